"""A third level: an L2 cache between SRAM and DRAM, as an observer of the two-level memory.

The model has one large memory. A GPU has two: what an SM asks for goes to the L2 first, and only
what the L2 does not hold goes on to DRAM. So the model's "HBM accesses" are SM↔L2 traffic, and the
misses of this cache are DRAM traffic::

    l2 = L2(size=200_000)                                      # elements, like everything here
    flashsim.forward("flash_basic", Q, K, V, observers=[l2])
    l2.flush()                                                 # what is still dirty goes to DRAM
    l2.accesses, l2.dram_reads, l2.dram_writes, l2.by_array["O"]

It is fully associative and replaces the least recently used line. A line is `line` consecutive
elements of one matrix in row-major order (32: a GPU's 128 bytes, in float32), so that passes which
divide a matrix into different blocks still share lines. A matrix starts on a line of its own, and
its last line takes up the room of a full one.

Policy: write back, write allocate. A line takes its room at once, but is filled element by element:
a read fetches only the elements that are asked for and not yet there, a write fetches nothing, and
a line that is replaced writes back what was written in it. So a cache too small for one line passes
every access on, no more and no less, and one that holds everything lets only the compulsory traffic
through: the first read of each input element, and one write of each element that was written. (A
GPU's L2 fetches sectors of 32 bytes, and writes with byte masks.)

Heads run one after another here, each with arrays of its own, and what earlier heads left in the
cache is replaced in time. A GPU runs about as many heads at once as it has SMs, and they share the
L2: one head then has about an SM's share, l2 / sms.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from flashsim.attention.arguments import check_count
from flashsim.memory.sram import SRAM, Event
from flashsim.memory.traffic import Traffic


@dataclass
class CacheTraffic:
    """What one array moved, in elements, between SM and L2 (`reads`, `writes`) and between L2 and
    DRAM.

    `hits` are accesses to an element that the cache held. Every read that misses is a DRAM read; a
    write that misses is not, as it fetches nothing. `dram_writes` are write-backs.
    """

    reads: int = 0
    writes: int = 0
    hits: int = 0
    dram_reads: int = 0
    dram_writes: int = 0

    @property
    def accesses(self) -> int:
        """SM↔L2 traffic: what the two-level model calls HBM accesses."""
        return self.reads + self.writes

    @property
    def misses(self) -> int:
        """Accesses, read or written, to an element that the cache did not hold."""
        return self.accesses - self.hits

    @property
    def dram_accesses(self) -> int:
        """L2↔DRAM traffic."""
        return self.dram_reads + self.dram_writes


class _Line:
    """A resident line: which of its elements it holds, which were written (one bit each), and
    whose traffic it counts for.
    """

    __slots__ = ("dirty", "held", "traffic")

    def __init__(self, held: int, dirty: int, traffic: CacheTraffic) -> None:
        self.held = held
        self.dirty = dirty
        self.traffic = traffic


class L2(CacheTraffic):
    """A fully associative LRU cache of `size` elements in lines of `line`, write back, write
    allocate. An observer.

    It is itself the traffic of all arrays; `by_array` is that of each, by name, all heads together.
    Call `flush` at the end of a run; until then `dram_writes` lacks what is still dirty. One cache
    may be passed to several runs: it keeps its contents, and its counts add up.

    It needs every access, in order, and so a run with numbers (`forward`, `backward`). `count`,
    which folds equal turns into one, is refused with ValueError.
    """

    # caches with the same traffic are two
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(self, size: int, *, line: int = 32) -> None:
        super().__init__()
        self.size, self.line = check_count("size", size, 0), check_count("line", line, most=2**20)
        self.capacity = self.size // self.line  # in lines
        self._whole = (1 << self.line) - 1
        self.by_array: dict[str, CacheTraffic] = {}
        self._lines: OrderedDict[int, _Line] = OrderedDict()  # the least recently used first
        self._next = 0  # the first line number that no array has yet
        self._sram: SRAM | None = None  # the head that runs,
        # and the first address, height and width of its arrays
        self._places: dict[str, tuple[int, int, int]] = {}

    def __call__(self, event: Event) -> None:
        """Follow one event."""
        if event.kind not in ("init", "load", "store"):
            return
        if event.times != 1:
            raise ValueError(
                "an L2 needs every access in order; count(…) folds equal turns into one: use "
                "forward(…)"
            )
        if event.sram is not self._sram:
            self._sram = event.sram
            self._places = {}
        array = event.name.partition("[")[0]
        if array not in self._places:
            height, width = event.sram.hbm.matrix(array).shape
            self._places[array] = self._next * self.line, height, width
            self._next += -(-height * width // self.line)
        start, height, width = self._places[array]
        top = 0
        end = height
        left = 0
        right = width
        # "init" writes all of it, and what is gathered lies anywhere in it
        if event.where is not None:
            rows, cols = event.where
            top = rows.start
            end = rows.stop
            left = cols.start
            right = cols.stop
        write = event.kind != "load"
        if event.rows is None and right - left == width:
            self.access(array, start + top * width, (end - top) * width, write)
        else:
            for row in range(top, end) if event.rows is None else event.rows:
                self.access(array, start + row * width + left, right - left, write)

    def access(self, array: str, start: int, elements: int, write: bool) -> None:
        """Read or write `elements` from the address `start` (in elements) on, and count them for
        `array`.
        """
        line = self.line
        lines = self._lines
        capacity = self.capacity
        traffic = self.by_array.setdefault(array, CacheTraffic())
        stop = start + elements
        hits = 0
        for number in range(start // line, -(-stop // line)):
            low = number * line
            if start <= low and low + line <= stop:
                sectors = self._whole
            else:
                sectors = (1 << min(stop - low, line)) - (1 << max(start - low, 0))
            entry = lines.get(number)
            if entry is None:
                entry = lines[number] = _Line(sectors, 0, traffic)
            else:
                lines.move_to_end(number)
                hits += (entry.held & sectors).bit_count()
                entry.held |= sectors
            if write:
                entry.dirty |= sectors
            if len(lines) > capacity:
                self._write_back(lines.popitem(last=False)[1])
        for traffic_of in (self, traffic):
            traffic_of.hits += hits
            if write:
                traffic_of.writes += elements
            else:
                traffic_of.reads += elements
                traffic_of.dram_reads += elements - hits

    def flush(self) -> None:
        """Write back all that is dirty. It stays in the cache, clean."""
        for entry in self._lines.values():
            self._write_back(entry)

    def _write_back(self, entry: _Line) -> None:
        elements = entry.dirty.bit_count()
        entry.dirty = 0
        self.dram_writes += elements
        entry.traffic.dram_writes += elements

    def dram_bytes(self, hbm: Traffic) -> int:
        """Return DRAM traffic in bytes, each array at its item size. `hbm` is the run's traffic,
        which knows the sizes.
        """
        return sum(
            array_traffic.dram_accesses * hbm.by_array[array].itemsize
            for array, array_traffic in self.by_array.items()
        )

    @property
    def total(self) -> CacheTraffic:
        """The traffic of all arrays until now."""
        return CacheTraffic(self.reads, self.writes, self.hits, self.dram_reads, self.dram_writes)

    def __repr__(self) -> str:
        held = f"{len(self._lines):,} of {self.capacity:,} lines of {self.line}"
        rows = [f"L2 of {self.size:,} elements, {held} in use"]
        rows.append(
            f"{'array':<10}{'accesses':>14}{'hits':>14}{'DRAM reads':>14}{'DRAM writes':>14}"
        )
        for name, a in {**self.by_array, "total": self}.items():
            rows.append(
                f"{name:<10}{a.accesses:>14,}{a.hits:>14,}{a.dram_reads:>14,}{a.dram_writes:>14,}"
            )
        return "\n".join(rows)

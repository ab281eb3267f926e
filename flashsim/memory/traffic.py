"""What a run cost, as plain records: the simulator fills them, theory fills them, and the two must
be equal.

Every count is an exact integer number of elements. Bytes are derived, array by array, from its item
size.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from flashsim.support.exporting import ByArray, html_table

Role = Literal["input", "output", "extra"]
ADDED = ("reads", "writes", "init_writes", "size")


@dataclass(frozen=True)
class ArrayTraffic:
    """HBM accesses of one named array, in elements.

    `init_writes` (the zeros and −∞ of line 2) are part of `writes`. `size` is what the array
    occupies in HBM; `role` says whether the algorithm was given it, returns it, or needs it besides
    (`"extra"`).
    """

    reads: int
    writes: int
    init_writes: int
    size: int
    itemsize: int
    role: Role

    @property
    def accesses(self) -> int:
        """Elements moved in either direction."""
        return self.reads + self.writes

    @property
    def bytes(self) -> int:
        """Bytes moved in either direction."""
        return self.accesses * self.itemsize

    def plus(self, other: ArrayTraffic) -> ArrayTraffic:
        """Return the sum with another array of the same kind."""
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in ADDED})

    def times(self, heads: int) -> ArrayTraffic:
        """Return the same traffic repeated for `heads` heads."""
        return replace(self, **{name: getattr(self, name) * heads for name in ADDED})

    def shared(self, heads: int) -> ArrayTraffic:
        """Return the same where so many heads use one array in turn: it is as large as one, and
        initialised once.
        """
        init = self.init_writes // heads
        size = self.size // heads
        return replace(
            self, writes=self.writes - self.init_writes + init, init_writes=init, size=size
        )


@dataclass(frozen=True, repr=False)
class Traffic(ByArray):
    """HBM accesses of a whole run: totals, and `by_array["K"]` for each named array."""

    by_array: Mapping[str, ArrayTraffic] = field(default_factory=dict)

    @property
    def reads(self) -> int:
        """Elements moved from HBM to SRAM."""
        return sum(a.reads for a in self.by_array.values())

    @property
    def writes(self) -> int:
        """Elements moved from SRAM to HBM, initial writes included."""
        return sum(a.writes for a in self.by_array.values())

    @property
    def init_writes(self) -> int:
        """The part of `writes` that only initialises (line 2 of Algorithm 1)."""
        return sum(a.init_writes for a in self.by_array.values())

    @property
    def accesses(self) -> int:
        """Reads + writes: the paper's "HBM accesses"."""
        return self.reads + self.writes

    @property
    def bytes(self) -> int:
        """Bytes moved in either direction, each array at its own item size."""
        return sum(a.bytes for a in self.by_array.values())

    @property
    def extra(self) -> int:
        """Elements allocated in HBM besides inputs and output: Theorem 1's "additional memory"."""
        return sum(a.size for a in self.by_array.values() if a.role == "extra")

    def to_dict(self) -> dict[str, Any]:
        """Return the totals, and those of each array, in elements and bytes."""
        counts = ("reads", "writes", "init_writes", "accesses", "bytes")
        by_array = {
            array: {name: getattr(a, name) for name in (*counts, "size", "itemsize", "role")}
            for array, a in self.by_array.items()
        }
        return {**{name: getattr(self, name) for name in (*counts, "extra")}, "by_array": by_array}

    def __eq__(self, other: object) -> bool:
        """Compare every number of every array, and warn where only the bytes of an element
        differ.
        """
        if not isinstance(other, Traffic):
            return NotImplemented
        mine = self.by_array
        its = other.by_array
        if mine.keys() != its.keys() or mine == its:
            return mine == its
        if its == {name: replace(a, itemsize=its[name].itemsize) for name, a in mine.items()}:
            sizes = {name: (a.itemsize, its[name].itemsize) for name, a in mine.items()}
            differ = ", ".join(
                f"{name} {one} and {other}" for name, (one, other) in sizes.items() if one != other
            )
            text = f"the accesses are equal, but the dtypes differ: bytes of an element, {differ}"
            # or else stored so by the algorithm
            of_inputs = any(a.role == "input" and a != its[name] for name, a in mine.items())
            if of_inputs:
                text += ". flashsim.count(…, dtype=…) counts for a run's dtype"
            warnings.warn(text, stacklevel=2)
        return False

    def __add__(self, other: Traffic) -> Traffic:
        sums = dict(self.by_array)
        for name, a in other.by_array.items():
            sums[name] = sums[name].plus(a) if name in sums else a
        return Traffic(sums)

    def times(self, heads: int) -> Traffic:
        """Return the same traffic repeated for `heads` heads: each head runs on its own, counts
        add up.
        """
        if heads == 1:
            return self
        return Traffic({name: a.times(heads) for name, a in self.by_array.items()})

    def __str__(self) -> str:
        rows = [f"{'array':<8}{'reads':>16}{'writes':>16}"]
        rows += [f"{name:<8}{a.reads:>16,}{a.writes:>16,}" for name, a in self.by_array.items()]
        rows.append(f"{'total':<8}{self.reads:>16,}{self.writes:>16,}   accesses {self.accesses:,}")
        return "\n".join(rows)

    def __repr__(self) -> str:
        by_array = ", ".join(f"{name} {a.accesses:,}" for name, a in self.by_array.items())
        return f"Traffic({self.accesses:,} accesses, {self.reads:,} of them reads: {by_array})"

    def _repr_html_(self) -> str:
        return self.table("HBM accesses, in elements")

    def table(self, caption: str, notes: Sequence[str] = ()) -> str:
        """Return a table in HTML, a row for each array, with lines of text below."""
        rows = [(name, a.reads, a.writes, a.accesses, a.bytes) for name, a in self.by_array.items()]
        total = ("total", self.reads, self.writes, self.accesses, self.bytes)
        return html_table(
            caption, ("array", "reads", "writes", "accesses", "bytes"), [*rows, total], notes
        )


@dataclass(frozen=True)
class Occupancy:
    """SRAM use in elements: the most resident at once, and M. `enforced` says whether exceeding
    M is an error.
    """

    peak: int
    capacity: int
    enforced: bool

    @property
    def over(self) -> int:
        """By how many elements the peak exceeds M; 0 where it does not."""
        return max(self.peak - self.capacity, 0)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, `over` included."""
        return {
            "peak": self.peak,
            "capacity": self.capacity,
            "over": self.over,
            "enforced": self.enforced,
        }

    def __str__(self) -> str:
        excess = f", {self.over:,} over" if self.over else " of"
        return f"SRAM peak {self.peak:,}{excess} M = {self.capacity:,}"


@dataclass(frozen=True)
class Flops:
    """Floating-point operations: matrix products at 2·m·n·k, everything else at one per element."""

    matmul: int
    other: int

    @property
    def total(self) -> int:
        """All operations."""
        return self.matmul + self.other

    def times(self, heads: int) -> Flops:
        """Return the same work repeated for `heads` heads."""
        return Flops(self.matmul * heads, self.other * heads)

    def __add__(self, other: Flops) -> Flops:
        return Flops(self.matmul + other.matmul, self.other + other.other)

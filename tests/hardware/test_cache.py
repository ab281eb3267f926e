"""The L2: exact where it can be known, the same as `pycachesim`, and never worse for being
larger.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashsim
from flashsim import theory
from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.attention.inputs import Array
from flashsim.hardware.cache import L2, CacheTraffic
from flashsim.memory.hbm import HBM
from flashsim.memory.sram import SRAM, Event

HUGE = 10**9


def inputs(
    N_q: int, N_k: int, d: int, d_v: int | None = None, dtype: str = "float64"
) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    shapes = (N_q, d), (N_k, d), (N_k, d_v or d)
    Q, K, V = (rng.normal(size=shape).astype(dtype) for shape in shapes)
    return Q, K, V


class Access(NamedTuple):
    array: str
    start: int
    elements: int
    write: bool


class Recorder(L2):
    """An L2 that also keeps its trace."""

    def __init__(self, size: int = 0, *, line: int = 1) -> None:
        super().__init__(size, line=line)
        self.trace: list[Access] = []

    def access(self, array: str, start: int, elements: int, write: bool) -> None:
        self.trace.append(Access(array, start, elements, write))
        super().access(array, start, elements, write)


@cache
def trace_of(
    name: str,
    direction: str = "forward",
    *,
    line: int,
    N: int = 24,
    d: int = 4,
    M: int = 64,
) -> list[Access]:
    recorder = Recorder(line=line)
    Q, K, V = inputs(N, N, d)
    watched = [recorder] if direction == "forward" else []
    of = name if direction == "forward" else BACKWARD[name].forward_pass
    run = flashsim.forward(of, Q, K, V, M=M, sizing="paper", observers=watched)
    if direction == "backward":
        flashsim.backward(name, run, np.ones_like(run.O), observers=[recorder])
    return recorder.trace


def replay(
    trace: Sequence[Access],
    size: int,
    line: int,
    flush: bool = True,
    of: Callable[..., L2] = L2,
) -> L2:
    l2 = of(size, line=line)
    for access in trace:
        l2.access(*access)
    if flush:
        l2.flush()
    return l2


# ------------------------------------------------------------ where nothing, and where all, is held


PARTS = {"causal": "MASK", "mask": "MASK", "dropout_p": "dropout"}
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "dropout": {"dropout_p": 0.2, "seed": 3},
    "dense mask": {"mask": "random", "dropout_p": 0.1},
    "one row mask": {"mask": "row"},
}


TAKEN = [  # what each algorithm takes of these
    (name, case)
    for name, algorithm in FORWARD.items()
    for case, asked in RUNS.items()
    if {PARTS[part] for part in asked if part in PARTS} <= {*algorithm.parts}
]


def turn(name: str, case: str) -> int:
    return ([*FORWARD].index(name) + [*RUNS].index(case)) % 2


def arguments(case: str, N_q: int, N_k: int) -> dict[str, Any]:
    options = dict(RUNS[case])
    masks = {
        "random": np.random.default_rng(1).random((N_q, N_k)) < 0.7,
        "row": np.arange(N_k)[None] % 5 > 0,
    }
    if isinstance(options.get("mask"), str):
        options["mask"] = masks[options["mask"]]
    return options


def run_both_ways(
    name: str,
    observer: L2,
    options: dict[str, Any],
    shape: tuple[int, int, int, int],
    M: int,
) -> list[Any]:
    Q, K, V = inputs(*shape)
    how: dict[str, Any] = {"M": M, "sizing": "paper", "observers": [observer]}
    runs: list[Any] = [flashsim.forward(name, Q, K, V, **how, **options)]
    if name in BACKWARD:
        dO = np.random.default_rng(2).normal(size=runs[0].O.shape)
        runs.append(flashsim.backward(name, runs[0], dO, observers=[observer]))
    return runs


@pytest.mark.parametrize(("name", "case"), TAKEN)
def test_without_room_every_access_reaches_dram_by_array(name: str, case: str) -> None:
    """Each algorithm and each case with lines of 1 and of 7 elements, but each pair with one."""
    line = (1, 7)[turn(name, case)]
    l2 = L2(line - 1, line=line)
    runs = run_both_ways(name, l2, arguments(case, 7, 12), (7, 12, 3, 5), M=60)
    l2.flush()
    traffic = runs[0].hbm
    for backward in runs[1:]:
        traffic = traffic + backward.hbm
    arrays = {array for array, a in traffic.by_array.items() if a.accesses}
    assert arrays == set(l2.by_array)
    for array, accesses in l2.by_array.items():
        want = traffic.by_array[array]
        assert accesses == CacheTraffic(want.reads, want.writes, 0, want.reads, want.writes)
    assert l2.accesses == traffic.accesses
    assert l2.misses == traffic.accesses
    assert l2.hits == 0
    assert l2.dram_accesses == traffic.accesses


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        *((name, "forward") for name in FORWARD),
        *((name, "backward") for name in FORWARD if name in BACKWARD),
    ],
)
def test_with_room_for_all_only_compulsory_traffic_is_left(name: str, direction: str) -> None:
    Q, K, V = inputs(13, 22, 3, 5)
    l2 = L2(HUGE)
    run: Any = flashsim.forward(
        name, Q, K, V, M=60, observers=[l2] if direction == "forward" else []
    )
    if direction == "backward":
        run = flashsim.backward(name, run, np.ones_like(run.O), observers=[l2])
    l2.flush()
    for array, a in run.hbm.by_array.items():
        if a.accesses:
            traffic = l2.by_array[array]
            assert traffic.accesses == a.accesses
            assert traffic.dram_reads == (a.size if a.role == "input" and a.reads else 0)
            assert traffic.dram_writes == (a.size if a.writes else 0)


def test_flash_that_fits_moves_inputs_and_outputs_alone_and_standard_its_squares_too() -> None:
    N = 1024
    d = 64
    M = 51_200
    Q, K, V = inputs(N, N, d, dtype="float32")
    l2 = {name: L2(200_000) for name in ("flash_basic", "flash", "standard")}
    for name, observer in l2.items():
        flashsim.forward(name, Q, K, V, M=M, observers=[observer])
        observer.flush()
    for name in ("flash_basic", "flash"):
        assert l2[name].dram_reads == 3 * N * d
        assert l2[name].dram_writes == N * d + 2 * N
        assert l2[name].accesses == theory.exact(name, N=N, d=d, M=M).hbm.accesses
    assert theory.compulsory(N, N, d, d) == 4 * N * d
    squares = [l2["standard"].by_array[array] for array in ("S", "P")]
    assert all(s.dram_writes == N * N for s in squares)
    assert sum(s.dram_reads for s in squares) > 1.9 * N * N
    all_of_it = L2(HUGE)
    flashsim.forward("standard", Q, K, V, M=M, observers=[all_of_it])
    all_of_it.flush()
    # nobody reads S and P from DRAM, but they end there
    assert all_of_it.dram_accesses == 4 * N * d + 2 * N * N


@pytest.mark.parametrize(("itemsize", "reaches_dram"), [(4, True), (2, False)])
def test_theorem_2_in_dram_on_an_h200(itemsize: int, reaches_dram: bool) -> None:
    """One head has 1/132 of 60 MB of L2. In float32 Q and O exceed it, in float16 they fit: as
    measured.
    """
    N = 1024
    d = 64
    B = 64
    Q, K, V = inputs(N, N, d, dtype="float32")
    l2 = L2(60 * 2**20 // 132 // itemsize)
    run = flashsim.forward("flash_basic", Q, K, V, M=51_200, blocks=(B, B), observers=[l2])
    l2.flush()
    if reaches_dram:
        assert l2.dram_reads >= 0.98 * run.hbm.reads
        # bytes, measured for 264 heads
        assert 264 * 4 * l2.dram_reads == pytest.approx(2.388e9, rel=0.02)
        # … which left dirty lines in the L2
        assert 264 * 4 * l2.dram_writes == pytest.approx(1.121e9, rel=0.05)
    else:
        assert l2.dram_reads == 3 * N * d
        assert l2.dram_writes == N * d + 2 * N


# --------------------------------------------------------------------------------------------------
# where blocks lie


class Finder(L2):
    """Checks by its values that each block lies where it was said to lie."""

    checked = 0

    def __call__(self, event: Event) -> None:
        self.asked: list[tuple[int, int]] = []
        super().__call__(event)
        if event.kind in ("load", "store"):
            array = event.name.partition("[")[0]
            values = event.sram.hbm.peek(array).ravel()
            first = self._places[array][0]
            result = np.concatenate(
                [values[start - first :][:elements] for start, elements in self.asked]
            )
            np.testing.assert_array_equal(
                result, np.asarray(event.tile).astype(values.dtype).ravel(), event.name
            )
            self.checked += 1

    def access(self, array: str, start: int, elements: int, write: bool) -> None:
        self.asked.append((start, elements))
        super().access(array, start, elements, write)


@pytest.mark.parametrize(("name", "case"), TAKEN)
def test_blocks_are_found_where_they_lie(name: str, case: str) -> None:
    """Each algorithm and each case at both sizes, but each pair at one."""
    sizes = ((40, 7, 12), (400, 17, 6))
    M, N_q, N_k = sizes[turn(name, case)]
    finder = Finder(0)
    options = arguments(case, N_q, N_k)
    run_both_ways(name, finder, options, (N_q, N_k, 3, 4), M)
    assert finder.checked > 5


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_blocks_are_found_where_they_lie_in_any_block_mask(data: st.DataObject) -> None:
    N_q = data.draw(st.integers(1, 14))
    N_k = data.draw(st.integers(1, 14))
    B_r = data.draw(st.integers(1, 14))
    B_c = data.draw(st.integers(1, 14))
    T_r = -(-N_q // min(B_r, N_q))
    T_c = -(-N_k // min(B_c, N_k))
    T = T_r * T_c
    tiles = data.draw(st.lists(st.booleans(), min_size=T, max_size=T))
    mask = np.array(tiles).reshape(T_r, T_c)
    Q, K, V = inputs(N_q, N_k, 2)
    finder = Finder(0)
    run = flashsim.forward(
        "block_sparse",
        Q,
        K,
        V,
        M=10**4,
        blocks=(B_r, B_c),
        block_mask=mask,
        observers=[finder],
    )
    flashsim.backward("block_sparse", run, np.ones_like(run.O), observers=[finder])


def test_blocks_are_where_they_say_whatever_came_before() -> None:
    """The last block alone, and blocks of several sizes at one line of the source."""
    hbm = HBM()
    X = hbm.place("X", np.arange(24.0).reshape(12, 2))
    recorder = Recorder(line=1)
    sram = SRAM(hbm, 100, observers=[recorder])
    sram.load(X.divide(5)[2])
    sram.load(X.divide(4)[0], X.divide(3)[1])
    assert [(access.start, access.elements) for access in recorder.trace] == [
        (20, 4),
        (0, 8),
        (6, 6),
    ]


# --------------------------------------------------------------------------------------------------
# properties of LRU


def held(l2: L2) -> dict[int, int]:
    """Which elements of each line are in it, as bits."""
    return {index: entry.held for index, entry in l2._lines.items()}


access = st.builds(
    Access,
    st.sampled_from("AB"),
    st.integers(0, 60),
    st.integers(1, 20),
    st.booleans(),
)
accesses = st.lists(access, max_size=60)


@settings(deadline=None)
@given(
    trace=accesses,
    small=st.integers(0, 12),
    more=st.integers(0, 12),
    line=st.sampled_from([1, 4, 8]),
)
def test_a_larger_cache_holds_what_a_smaller_one_holds(
    trace: list[Access], small: int, more: int, line: int
) -> None:
    caches = [L2(lines * line, line=line) for lines in (small, small + more)]
    for access in trace:
        for l2 in caches:
            l2.access(*access)
        by_smaller = held(caches[0])
        by_larger = held(caches[1])
        for index, bits in by_smaller.items():
            assert by_larger.get(index, 0) & bits == bits
        assert len(by_smaller) <= small
    for l2 in caches:
        l2.flush()
    for counter in ("misses", "dram_reads", "dram_writes"):
        assert getattr(caches[1], counter) <= getattr(caches[0], counter)


def stack_distances(trace: Sequence[Access], line: int) -> list[int | None]:
    """Return, for each line touched, how many other lines were touched since it was last:
    Mattson's definition, slowly.
    """
    order: list[int] = []
    distances: list[int | None] = []
    for _, start, elements, _ in trace:
        for number in range(start // line, -(-(start + elements) // line)):
            distances.append(order.index(number) if number in order else None)
            if number in order:
                order.remove(number)
            order.insert(0, number)
    return distances


@pytest.mark.parametrize(
    "key",
    [("flash", "forward"), ("standard", "forward"), ("flash", "backward")],
    ids=" ".join,
)
def test_hits_are_the_accesses_of_small_stack_distance(key: tuple[str, str]) -> None:
    distances = stack_distances(trace_of(*key, line=1), 1)
    for size in (0, 3, 50, 150, 300, 1000):
        assert replay(trace_of(*key, line=1), size, 1).hits == sum(
            x is not None and x < size for x in distances
        )


# --------------------------------------------------------------------------------------------------
# pycachesim


def counts(l2: L2) -> tuple[int, int, int]:
    """Hits, misses and write-backs in lines, where lines are touched whole."""
    return l2.hits // l2.line, l2.misses // l2.line, l2.dram_writes // l2.line


RECORDED = {  # (algorithm, direction, line, lines): HIT, MISS and EVICT of pycachesim 0.3.1
    ("standard", "forward", 1, 1): (0, 3648, 1248),
    ("standard", "forward", 1, 500): (960, 2688, 1248),
    ("standard", "forward", 1, 2048): (2112, 1536, 1248),
    ("standard", "forward", 8, 100): (192, 640, 288),
    ("standard", "forward", 8, 256): (444, 388, 288),
    ("flash", "forward", 1, 1): (0, 2640, 1008),
    ("flash", "forward", 1, 64): (864, 1776, 1008),
    ("flash", "forward", 1, 200): (908, 1732, 964),
    ("flash", "forward", 1, 500): (2208, 432, 144),
    ("flash", "forward", 8, 8): (128, 352, 160),
    ("flash", "forward", 8, 100): (352, 128, 32),
    ("memory_efficient", "forward", 1, 200): (2304, 4944, 120),
    ("memory_efficient", "forward", 8, 40): (1000, 2168, 32),
    ("memory_efficient", "forward", 8, 100): (3013, 155, 32),
    ("standard", "backward", 1, 200): (16, 6704, 1440),
    ("standard", "backward", 8, 100): (392, 1144, 352),
    ("flash", "backward", 1, 500): (2784, 1056, 528),
    ("flash", "backward", 1, 2048): (3024, 816, 288),
    ("flash", "backward", 8, 256): (608, 256, 96),
}


def whole_lines(name: str, direction: str, line: int) -> list[Access]:
    """A trace that touches whole lines only: blocks are multiples of a line, as pycachesim
    fetches lines whole.
    """
    if line == 1:
        return trace_of(name, direction, line=1)
    trace = trace_of(name, direction, line=line, N=32, d=8, M=256)
    return [a for a in trace if a.array not in "lmL"]  # columns of B_r elements


def pycachesim(trace: Sequence[Access], lines: int, line: int) -> tuple[int, int, int]:
    """Run a trace on pycachesim: one set, `lines` ways, LRU, write back, write allocate, 4 bytes an
    element.

    Its stores do not count hits and do not refresh what they hit, as if each store had its load
    before it; so each store is given one.
    """
    cachesim: Any = pytest.importorskip(
        "cachesim", reason="pycachesim, the independent cache simulator, is not installed"
    )
    memory = cachesim.MainMemory()
    cache = cachesim.Cache("L2", 1, lines, 4 * line, "LRU", write_back=True, write_allocate=True)
    memory.load_to(cache)
    memory.store_from(cache)
    simulator = cachesim.CacheSimulator(cache, memory)
    for _, start, elements, write in trace:
        assert start % line == elements % line == 0
        for index in range(start, start + elements, line):
            simulator.load(4 * index, length=4 * line)
            if write:
                simulator.store(4 * index, length=4 * line)
    simulator.force_write_back()
    stats = next(iter(simulator.stats()))
    return stats["HIT_count"], stats["MISS_count"], stats["EVICT_count"]


@settings(deadline=None)
@given(accesses, st.integers(1, 30))
def test_same_as_pycachesim_on_any_trace(trace: list[Access], lines: int) -> None:
    assert counts(replay(trace, lines, 1)) == pycachesim(trace, lines, 1)


@pytest.mark.parametrize("key", RECORDED, ids=str)
def test_same_as_pycachesim_where_it_is_not_installed(key: tuple[str, str, int, int]) -> None:
    name, direction, line, lines = key
    trace = whole_lines(name, direction, line)
    assert counts(replay(trace, lines * line, line)) == RECORDED[key]


# --------------------------------------------------------------------------------------------------
# planted bugs


class Stuck(OrderedDict[int, Any]):
    def move_to_end(self, key: int, last: bool = True) -> None:
        pass


class Backwards(OrderedDict[int, Any]):
    def popitem(self, last: bool = True) -> tuple[int, Any]:
        return super().popitem(last=not last)


def never_refreshed(size: int, *, line: int) -> L2:
    """First in, first out: a hit does not make a line the most recently used."""
    l2 = L2(size, line=line)
    l2._lines = Stuck()
    return l2


def most_recent_first(size: int, *, line: int) -> L2:
    """Evicts the line most recently used."""
    l2 = L2(size, line=line)
    l2._lines = Backwards()
    return l2


def one_line_too_many(size: int, *, line: int) -> L2:
    """Holds a line more than its size."""
    return L2(size + line, line=line)


class NeverDirty(L2):
    """Forgets that a line was written to, when it is read afterwards."""

    def access(self, array: str, start: int, elements: int, write: bool) -> None:
        super().access(array, start, elements, write)
        if not write:
            end = -(-(start + elements) // self.line)
            for number in range(start // self.line, end):
                if number in self._lines:
                    self._lines[number].dirty = 0


PLANTED: list[Callable[..., L2]] = [
    never_refreshed,
    most_recent_first,
    one_line_too_many,
    NeverDirty,
]


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bugs_are_noticed_by_what_pycachesim_counted(bug: Callable[..., L2]) -> None:
    def same(key: tuple[str, str, int, int]) -> bool:
        name, direction, line, lines = key
        trace = whole_lines(name, direction, line)
        return counts(replay(trace, lines * line, line, of=bug)) == RECORDED[key]

    assert not all(same(key) for key in RECORDED)


def test_never_refreshed_breaks_inclusion() -> None:
    """Belady's anomaly: first in, first out, a larger cache may miss more."""
    indices = (0, 1, 2, 3, 0, 1, 4, 0, 1, 2, 3, 4)
    trace = [Access("A", index, 1, False) for index in indices]
    assert replay(trace, 3, 1, of=never_refreshed).misses == 9
    assert replay(trace, 4, 1, of=never_refreshed).misses == 10
    assert replay(trace, 3, 1).misses == 10
    assert replay(trace, 4, 1).misses == 8


# --------------------------------------------------------------------------------------------------
# use


def test_heads_have_arrays_of_their_own_and_share_the_cache() -> None:
    Q, K, V = (np.stack([x, x]) for x in inputs(16, 16, 4))
    one = L2(HUGE)
    two = L2(HUGE)
    flashsim.forward("flash", Q[0], K[0], V[0], M=64, observers=[one])
    flashsim.forward("flash", Q, K, V, M=64, observers=[two])
    one.flush()
    two.flush()
    for array, traffic in two.by_array.items():
        alone = one.by_array[array]
        assert (traffic.accesses, traffic.dram_reads) == (2 * alone.accesses, 2 * alone.dram_reads)
        assert traffic.dram_writes == 2 * alone.dram_writes
    dirty = L2(16 * 4)
    flashsim.forward("flash", Q, K, V, M=64, observers=[dirty])
    before = dirty.dram_writes
    dirty.flush()
    once = dirty.dram_writes
    assert once > before
    dirty.flush()
    assert dirty.dram_writes == dirty.total.dram_writes == once


def test_partial_lines_move_the_elements_asked_for_alone() -> None:
    l2 = L2(8, line=8)
    l2.access("A", 2, 3, write=False)
    l2.access("A", 4, 3, write=True)
    l2.access("A", 0, 8, write=False)
    assert l2.by_array["A"] == CacheTraffic(
        reads=11, writes=3, hits=1 + 5, dram_reads=3 + 3, dram_writes=0
    )
    l2.access("B", 8, 1, write=False)
    assert l2.by_array["A"].dram_writes == 3
    assert l2.by_array["B"] == CacheTraffic(reads=1, dram_reads=1)
    assert l2.misses == 15 - 6


def test_arguments_are_checked_and_the_state_is_printed() -> None:
    for wrong in (-1, 1.5):
        with pytest.raises(ValueError, match="size"):
            L2(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="line"):
        L2(100, line=0)
    with pytest.raises(ValueError, match="use forward"):
        flashsim.count("flash", N=1024, d=64, observers=[L2(100)])
    l2 = L2(64, line=8)
    l2.access("K", 0, 16, write=False)
    output = repr(l2)
    assert output.startswith("L2 of 64 elements, 2 of 8 lines of 8 in use")
    *_, total = output.splitlines()
    assert total.split() == ["total", "16", "0", "16", "0"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("q_outer", {}),
        ("standard", {}),
        ("split_kv", {"splits": 3}),
    ],
)
def test_the_lower_bound_holds_beneath_each_level(name: str, options: dict[str, Any]) -> None:
    """What is above a cut is one memory: SRAM alone, then SRAM and L2. At d = 1 phases say more
    than compulsory there.
    """
    N = 40
    sharp = 0
    caches = [L2(size, line=1) for size in (8, 30, 200)]
    run = flashsim.forward(
        name,
        *inputs(N, N, 1),
        blocks=(2, 1),
        M=9,
        enforce=False,
        observers=caches,
        **options,
    )
    for l2 in caches:
        l2.flush()
        for traffic, M in (
            (l2.accesses, run.sram.peak),
            (l2.dram_accesses, run.sram.peak + l2.size),
        ):
            bound = theory.lower_bound(N=N, d=1, M=M)
            assert traffic >= bound.accesses
            sharp += bound.accesses > bound.compulsory
    assert sharp >= 4

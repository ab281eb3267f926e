"""The memory keeps its rules: counts, capacity, eviction, and no way round by accident."""

import copy
import operator
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
import pytest

from flashsim.algorithms import FORWARD
from flashsim.algorithms.parts import EveryTile
from flashsim.attention.masks.dropout import NoDropout
from flashsim.attention.shapes import Blocks
from flashsim.memory.errors import MemoryModelError, NotOnChip, SramOverflow
from flashsim.memory.hbm import HBM
from flashsim.memory.sram import SRAM, Event, Observer
from flashsim.simulate.tile_masks import NoSink


def chip(capacity: int = 1000, **options: Any) -> tuple[HBM, SRAM]:
    hbm = HBM()
    return hbm, SRAM(hbm, capacity, **options)


def matrix(rows: int = 6, cols: int = 2) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.arange(rows * cols, dtype=float).reshape(rows, cols)


# --------------------------------------------------------------------------------------------------
# bypass

WAYS_ROUND: dict[str, Callable[[Any], Any]] = {
    "np.exp(Q)": np.exp,
    "Q @ x": lambda Q: Q @ np.ones((2, 2)),
    "x @ Q": lambda Q: np.ones((2, 6)) @ Q,
    "np.asarray(Q)": np.asarray,
    "np.array([Q])": lambda Q: np.array([Q]),
    "Q + 1": lambda Q: Q + 1,
    "1 - Q": lambda Q: 1 - Q,
    "2 * Q": lambda Q: 2 * Q,
    "x * Q": lambda Q: np.ones(2) * Q,
    "-Q": operator.neg,
    "Q > 0": lambda Q: Q > 0,
    "np.sum(Q)": np.sum,
    "np.concatenate": lambda Q: np.concatenate([Q, Q]),
    "np.where": lambda Q: np.where(True, Q, 0),
    "Q.sum()": lambda Q: Q.sum(),
    "Q.T": lambda Q: Q.T,
    "Q.max()": lambda Q: Q.max(),
    "float(Q)": float,
    "np.copyto(x, Q)": lambda Q: np.copyto(np.ones((6, 2)), Q),
    "x[...] = Q": lambda Q: np.ones((6, 2)).__setitem__(..., Q),
    "Q[0] = x": lambda Q: operator.setitem(Q, 0, np.ones((6, 2))),
}


@pytest.mark.parametrize("way", WAYS_ROUND.values(), ids=WAYS_ROUND.keys())
@pytest.mark.parametrize("what", ["matrix", "block"])
def test_what_lives_in_hbm_is_not_an_array(way: Callable[[Any], Any], what: str) -> None:
    hbm, _ = chip()
    Q = hbm.place("Q", matrix())
    with pytest.raises(
        NotOnChip,
        match=r"Q.* is in HBM(\. To compute .*sram\.load.* hbm\.peek\(\"Q\"\)|.*sram\.store)",
    ):
        way(Q if what == "matrix" else Q[0])


@dataclass
class Bench:
    """What refusals are tried on: a chip that computes in float32, with tiles of Q and K on it."""

    def __post_init__(self) -> None:
        self.hbm, self.sram = chip(dtype=np.float32)
        self.Q = self.hbm.place("Q", matrix())
        self.O = self.hbm.empty("O", (6, 2), np.float64)
        self.rows = self.Q.divide(4)
        self.tiles = self.Q.divide(4, 1)
        self.K = self.hbm.place("K", matrix(5)).divide(3)
        self.V = self.hbm.place("V", matrix(5, 3)).divide(3)
        self.S, self.here, self.small = self.sram.load(self.Q[0], self.K[0], self.K[1])


REFUSED: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda on: on.sram.on_chip(on.Q), NotOnChip, "Q.*is in HBM"),
    (lambda on: on.sram.store(on.Q[0], on.Q[0]), NotOnChip, "is in HBM"),
    (lambda on: on.sram.store(on.O[0], np.ones((6, 2))), NotOnChip, "never registered"),
    (
        lambda on: on.sram.store(on.O.divide(4)[0], on.S),
        ValueError,
        r"6×2 tile cannot be stored to O\[0\], which is 4×2",
    ),
    (lambda on: on.sram.load(np.ones(3)), TypeError, "takes blocks in HBM"),
    (lambda on: on.sram.load(on.Q), TypeError, "takes blocks in HBM"),
    (
        lambda on: on.sram.load(on.K[0], over=on.small),
        ValueError,
        r"K\[0\], which is 3×2, cannot be loaded over a 2×2",
    ),
    (
        lambda on: on.sram.load(on.V[1], over=on.here),
        ValueError,
        r"V\[1\], which is 2×3, cannot be loaded over a 3×2",
    ),
    (
        lambda on: on.sram.load(on.K[0], over=np.ones((3, 2))),
        NotOnChip,
        "a 3×2 array is not on chip",
    ),
    (
        lambda on: on.sram.load(on.K[0], on.V[0], over=on.here),
        TypeError,
        "takes one block in HBM such as",
    ),
    (
        lambda on: on.sram.on_chip(on.S[:3] + 1, over=on.S),
        ValueError,
        "3×2 result cannot overwrite a 6×2 tile",
    ),
    (
        lambda on: on.sram.on_chip(on.S + 1, over=np.ones((6, 2), np.float32)),
        NotOnChip,
        "not on chip",
    ),
    (
        lambda on: on.sram.on_chip(on.S[:3] + 1, over=np.ones((6, 2), np.float32)[:3]),
        NotOnChip,
        "not on chip",
    ),
    (
        lambda on: on.sram.on_chip(on.S + 1, over=on.S[:, :1]),
        ValueError,
        "6×2 result cannot overwrite a 6×1 tile",
    ),
    (
        lambda on: on.sram.on_chip(on.S.astype(float)),
        TypeError,
        "float64 came on chip, which computes in float32",
    ),
    *[(lambda on, at=at: on.rows[at], IndexError, "2 × 1 blocks") for at in (2, -1, (0, 1))],
    *[
        (
            lambda on, at=at: on.tiles[at],
            IndexError,
            rf"Q\[{re.escape(str(at))}\]: Q has 2 × 2 blocks",
        )
        for at in (0, (0, 9), (2, 0))
    ],
    (lambda on: on.Q.divide(0), ValueError, "at least 1"),
    (
        lambda on: operator.setitem(on.rows, 1, np.zeros((2, 2))),
        NotOnChip,
        r"^Q\[1\] is in HBM: write .*store\(Q\[1\], …\)$",
    ),
    (
        lambda on: operator.setitem(on.rows[0], 1, 0.0),
        NotOnChip,
        r"^Q\[0\] is in HBM: write .*store\(Q\[0\], …\)$",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED, ids=[each[2] for each in REFUSED])
def test_what_is_against_the_rules_is_refused_and_moves_nothing(
    call: Callable[[Any], Any], error: type[Exception], message: str
) -> None:
    on = Bench()
    reads = on.hbm.traffic.reads
    with pytest.raises(error, match=message):
        call(on)
    assert on.hbm.traffic.reads == reads
    assert on.hbm.traffic.writes == 0
    assert on.S.dtype == np.float32
    assert len(on.rows) == 2
    assert on.rows[1].shape == (2, 2)


def test_an_evicted_tile_is_nan_and_so_is_what_is_computed_from_it_but_what_is_in_hbm_stays() -> (
    None
):
    hbm, sram = chip()
    inputs = matrix()
    Q = hbm.place("Q", inputs)
    O = hbm.empty("O", (6, 2), np.float64)
    assert np.isnan(sram.load(O[0])).all()  # allocated, not written
    for _ in sram.loop(1):
        Q_i = sram.load(Q[0])
        S = sram.on_chip(Q_i @ Q_i.T)
        half = sram.on_chip(Q_i[:3])  # a view is a tile of its own
        assert not np.shares_memory(half, Q_i)
        assert sram.occupancy == 12 + 12 + 36 + 6
        assert np.isfinite(S).all()
        sram.store(O[0], sram.on_chip(Q_i * 2))
    assert np.isnan(Q_i).all()
    assert np.isnan(S).all()
    assert np.isnan(sram.on_chip(Q_i + 1)).all()
    with pytest.raises(NotOnChip, match="evicted"):
        sram.store(O[0], Q_i)
    assert np.array_equal(hbm.peek("O"), matrix() * 2)
    assert np.array_equal(inputs, matrix())
    for name, values, gone in (
        ("Z", np.ones((2, 2), bool), False),
        ("R", np.ones((2, 2), np.uint32), 2**32 - 1),
    ):
        block = hbm.place(name, values)[0]
        for _ in sram.loop(1):
            tile = sram.load(block)
            assert tile.all()
        assert (tile == gone).all()


def test_a_tile_outlives_inner_loops_and_dies_with_its_own_turn() -> None:
    hbm, sram = chip()
    Q = hbm.place("Q", matrix()).divide(2)
    for _ in sram.loop(2):
        outer = sram.load(Q[0])
        for i in sram.loop(3):
            inner = sram.load(Q[i])
        assert np.isnan(inner).all()
        assert np.isfinite(outer).all()
    assert np.isnan(outer).all()
    assert sram.occupancy == 0
    for _ in sram.loop(5):
        outer = sram.load(Q[0])
        break
    assert np.isnan(outer).all()
    assert sram.occupancy == 0


def test_a_tile_may_be_evicted_before_its_turn_ends() -> None:
    messages: list[str] = []
    hbm, sram = chip(8, observers=[lambda event: messages.append(f"{event.kind} {event.name}")])
    Q = hbm.place("Q", matrix()).divide(2)
    first, second = sram.load(Q[0], Q[1])
    sram.evict(first)
    assert np.isnan(first).all()
    assert np.isfinite(second).all()
    assert (sram.occupancy, messages[-1]) == (4, "evict Q[0]")
    for _ in sram.loop(1):
        third = sram.load(Q[2])  # there is room for it again
        with pytest.raises(NotOnChip, match="evicted"):
            sram.evict(first)
        with pytest.raises(MemoryModelError, match="around"):
            sram.evict(second)
        sram.evict(third)
    assert (list(sram.resident), hbm.traffic.reads) == (["Q[1]"], 12)


def test_a_load_over_a_tile_takes_its_room_and_counts_what_it_reads() -> None:
    messages: list[Event] = []
    hbm, sram = chip(6, observers=[messages.append])
    K = hbm.place("K", matrix(5)).divide(3)
    here = sram.load(K[0])
    for j in sram.loop(range(1, 2)):
        K_j = sram.load(K[j], over=here)
        assert sram.resident == {"K[1]": 6}
        assert sram.occupancy == sram.peak == 6
        assert K_j.tolist() == matrix(5)[3:].tolist()
        assert np.isnan(here).all()
        assert np.isnan(K_j.base[2:]).all()  # type: ignore[index]
    assert K_j.tolist() == matrix(5)[3:].tolist()  # it lives as long as the tile that it is over
    again = sram.load(K[0], over=here)
    assert again.tolist() == matrix(5)[:3].tolist()
    assert np.isnan(K_j).all()
    assert hbm.traffic.by_array["K"].reads == 6 + 4 + 6
    gathered = sram.load(K.at([4, 0, 4]), over=here)
    assert gathered.tolist() == matrix(5)[[4, 0, 4]].tolist()
    assert sram.resident == {"K[[4, 0, 4]]": 6}
    assert sram.occupancy == sram.peak == 6
    assert [(e.name, e.elements) for e in messages if e.kind == "load"] == [
        ("K[0]", 6),
        ("K[1]", 4),
        ("K[0]", 6),
        ("K[[4, 0, 4]]", 6),
    ]
    assert messages[-1].rows == (4, 0, 4)


@pytest.mark.parametrize(
    "turns", [range(0), range(3, 4), range(2, 7), range(6, -1, -1), range(0, 7, 2)]
)
def test_a_range_of_turns_is_counted_as_it_is_run(turns: range) -> None:
    """Seven rows in blocks of 2: the last is ragged, whichever end it is at."""
    counted = HBM(arithmetic=False)
    run = HBM()
    for hbm, matrix_ in ((counted, (13, 1)), (run, np.ones((13, 1)))):
        K = hbm.place("K", matrix_, np.float64).divide(2)
        sram = SRAM(hbm, 10, fold=True)
        events = []
        for j in sram.loop(turns):
            sram.load(K[j])
            events.append(j)
        every = list(turns)
        folded = list(dict.fromkeys([*turns[:2], *turns[-1:]]))
        assert events == (every if hbm is run else folded)
    assert counted.traffic == run.traffic
    with pytest.raises(
        ValueError, match=r"sram.loop\(range\(0, 2\), …\) has a where or an alike as well"
    ):
        next(iter(sram.loop(range(2), alike=[0, 0])))


def test_peek_is_read_only_and_moves_nothing_and_an_hbm_that_counts_has_nothing_to_show() -> None:
    hbm, _ = chip()
    hbm.place("Q", matrix())
    with pytest.raises(ValueError, match="read-only"):
        hbm.peek("Q")[0, 0] = 7
    with pytest.raises(KeyError, match="it holds Q"):
        hbm.peek("K")
    assert hbm.traffic.accesses == 0
    with pytest.raises(TypeError, match="needs values"):
        hbm.place("S", (3, 2), np.float32)
    counting = HBM(arithmetic=False)
    counting.place("Q", (3, 2), np.float32)
    with pytest.raises(ValueError, match="only counts"):
        counting.peek("Q")
    with pytest.raises(ValueError, match="already holds"):
        counting.place("Q", (3, 2), np.float32)


# --------------------------------------------------------------------------------------------------
# counts


def test_reads_and_writes_are_counted_by_array() -> None:
    hbm, sram = chip()
    Q = hbm.place("Q", matrix()).divide(4)
    O = hbm.full("O", (6, 2), 0.0, np.float32, "output")
    O = O.divide(4)
    for i in sram.loop(2):
        Q_i, O_i = sram.load(Q[i], O[i])
        sram.store(O[i], sram.on_chip(Q_i + O_i))
    q = hbm.traffic.by_array["Q"]
    o = hbm.traffic.by_array["O"]
    assert q.reads == 12
    assert q.writes == 0
    assert q.init_writes == 0
    assert o.reads == 12
    assert o.writes == 24
    assert o.init_writes == 12
    assert hbm.traffic.reads == 24
    assert hbm.traffic.writes == 24
    assert hbm.traffic.init_writes == 12
    assert hbm.traffic.accesses == 48
    assert hbm.traffic.bytes == 12 * 8 + 36 * 4


def test_overwriting_in_place_counts_once() -> None:
    hbm, sram = chip()
    Q = hbm.place("Q", matrix())
    S = sram.load(Q[0])
    P = sram.on_chip(np.exp(S), over=S)
    assert sram.occupancy == sram.peak == 12
    sram.on_chip(np.negative(P, out=P))
    assert sram.occupancy == sram.peak == 12
    sram.on_chip(np.exp(P))
    assert sram.occupancy == sram.peak == 24


def test_a_part_of_a_tile_is_overwritten_in_place() -> None:
    hbm, sram = chip()
    Q = hbm.place("Q", matrix())
    S = sram.load(Q[0])
    before = S.copy()
    column = S[:, 1:]
    part = sram.on_chip(column + 1, over=column)
    want = before.copy()
    want[:, 1] += 1
    assert np.array_equal(S, want)
    assert np.shares_memory(part, S)
    assert sram.occupancy == sram.peak == 12
    assert sram.resident == {"Q[0]": 12}
    counting = SRAM(HBM(arithmetic=False), 100)
    O_i = counting.full((6, 2), 0.0)
    for part_of in (O_i[:, :1], O_i[:4][:, :1]):
        assert counting.on_chip(part_of * 2.0, over=part_of).shape == part_of.shape
    assert (counting.peak, counting.resident) == (12, {"O_i": 12})


# --------------------------------------------------------------------------------------------------
# capacity


def test_overflow_names_what_was_asked_what_is_resident_and_how_big() -> None:
    hbm, sram = chip(20)
    Q = hbm.place("Q", matrix())
    on_chip = sram.on_chip
    Q_i = sram.load(Q[0])
    with pytest.raises(SramOverflow) as caught:
        S_ij = on_chip(Q_i @ Q_i.T)  # noqa: F841 - the name is what the message is about
    error = caught.value
    assert (error.asked, error.elements, error.resident, error.capacity) == (
        "S_ij",
        36,
        {"Q[0]": 12},
        20,
    )
    for part in ("S_ij (6×6 = 36 elements)", "12 of M = 20", "28 too many", "Q[0] 12"):
        assert part in str(error)
    assert sram.peak == 12


def test_without_enforcement_the_peak_is_reported_and_summaries_fit_one_screen() -> None:
    hbm, sram = chip(5, enforced=False)
    sram.load(hbm.place("Q", matrix())[0])
    assert sram.use.peak == 12
    assert sram.use.capacity == 5
    assert not sram.use.enforced
    hbm, sram = chip()
    sram.load(hbm.place("Q", matrix())[0])
    assert "12 of M = 1,000 elements in use (enforced), peak 12" in repr(sram)
    assert "Q[0]" in repr(sram)
    assert "accesses 12" in repr(hbm)


# --------------------------------------------------------------------------------------------------
# counting only


def test_equal_turns_are_folded_and_counted_as_often_as_they_occur() -> None:
    hbm = HBM(arithmetic=False)
    sram = SRAM(hbm, 10**6, fold=True)
    Q = hbm.place("Q", (10**9 + 1, 2), np.float32).divide(10)
    turns = 0
    for i in sram.loop(len(Q)):
        for _ in sram.loop(7):
            sram.load(Q[i])
            sram.count_flops(matmul=3, other=2)
            turns += 1
    assert turns == 4
    assert hbm.traffic.reads == 7 * 2 * (10**9 + 1)
    assert sram.peak == 20
    assert sram.flops.matmul == 7 * 3 * len(Q)
    assert sram.flops.other == 7 * 2 * len(Q)
    # the first turn that is taken stands for its like
    for indices, stand in ([1, 2, 3], [1]), ([2, 4], [2, 4]), ([4], [4]):
        where = np.isin(range(5), indices)
        assert list(sram.loop(5, where=where)) == stand


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "x + y": operator.add,
    "x - y": operator.sub,
    "x * y": operator.mul,
    "x / y": operator.truediv,
    "x @ y": operator.matmul,
    "x ** y": operator.pow,
    "x * 2 + y * 2": lambda x, y: x * 2.0 + y * 2.0,
    "np.exp": lambda x, y: (np.exp(x), np.exp(y)),
    "np.maximum": np.maximum,
    "np.where": lambda x, y: np.where(True, x, y),
    "sums": lambda x, y: (x.sum(axis=1), y.sum(axis=1)),
    "maxima": lambda x, y: (x.max(axis=1), y.max(axis=1)),
}


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_without_numbers_no_operation_takes_what_an_ended_turn_made(
    operation: Callable[[Any, Any], Any], left: bool
) -> None:
    hbm = HBM(arithmetic=False)
    sram = SRAM(hbm, 1000)
    K = hbm.place("K", (4, 2), "float64").divide(2)
    kept: Any = None
    for j in sram.loop(2):
        K_j = sram.load(K[j])
        operation(K_j, K_j)
        if kept is None:
            kept = K_j * K_j
            operation(kept, K_j)
            continue
        with pytest.raises(NotOnChip, match="was made in a turn that has ended"):
            operation(*((kept, K_j) if left else (K_j, kept)))


def test_shapes_must_agree_without_numbers_too() -> None:
    hbm = HBM(arithmetic=False)
    sram = SRAM(hbm, 100)
    Q = hbm.place("Q", (3, 2), np.float32)
    K = hbm.place("K", (4, 3), np.float32)
    Q_i, K_j = sram.load(Q[0], K[0])
    with pytest.raises(ValueError, match="matmul"):
        Q_i @ K_j.T
    with pytest.raises(ValueError, match="broadcast"):
        Q_i + K_j
    assert sram.on_chip(K_j @ Q_i).shape == (4, 2)
    assert sram.flops.matmul == 2 * 4 * 2 * 3
    assert sram.flops.other == 0


# --------------------------------------------------------------------------------------------------
# observers


def test_observers_hear_every_event_with_names_from_the_source() -> None:
    heard: list[Event] = []
    hbm = HBM()
    sram = SRAM(hbm, 100, observers=[heard.append])
    on_chip = sram.on_chip
    Q = hbm.place("Q", matrix()).divide(3)
    for i in sram.loop(2):
        Q_i = sram.load(Q[i])  # line 8
        S_ij = on_chip(Q_i @ Q_i.T)  # line 9
        del S_ij
    kinds = [event.kind for event in heard]
    turn = ["turn", "load", "compute", "evict", "evict", "turn end"]
    assert kinds == ["enter", *turn, *turn, "leave"]
    load = heard[2]
    compute = heard[3]
    assert load.name == "Q[0]"
    assert load.elements == 6
    assert load.label == "line 8"
    assert load.loops == (("i", 0),)
    assert compute.name == "S_ij"
    assert compute.elements == 9
    assert compute.label == "line 9"
    assert heard[4].name == "Q[0]"
    assert heard[0].name == "i"
    l_i = sram.full((3, 1), 0.0)  # a constant, too
    last = heard[-1]
    assert last.kind == "compute"
    assert last.name == "l_i"
    assert last.elements == 3
    assert last.tile is l_i
    heard.clear()
    for _i in sram.loop(2):  # line 5
        sram.load(Q[0])
        for j in sram.loop(1):  # line 7
            sram.load(Q[j + 1])
    evicted = [(event.name, event.label) for event in heard if event.kind == "evict"]
    # at the line of the loop that ends
    assert evicted == [("Q[1]", "line 7"), ("Q[0]", "line 5")] * 2


def nested(observers: Sequence[Observer] = ()) -> None:
    """Run two loops, one in the other."""
    hbm = HBM()
    sram = SRAM(hbm, 100, observers=observers)
    Q = hbm.place("Q", matrix()).divide(3)
    for i in sram.loop(2):
        Q_i = sram.load(Q[i])
        for j in sram.loop(2):
            Q_j = sram.load(Q[j])
            S_ij = sram.on_chip(Q_i @ Q_j.T)
            del S_ij


@pytest.fixture
def ignored(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Python prints as "Exception ignored in …"."""
    result: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: result.append(what.exc_value))
    return result


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_what_an_observer_raises_reaches_the_caller_whatever_it_was_told(
    error: type[BaseException], ignored: list[Any]
) -> None:
    heard: list[Event] = []
    nested([heard.append])
    for n in range(len(heard)):
        left = iter(range(n))

        def raising(event: Event, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise error(event.kind)

        with pytest.raises(error, match=heard[n].kind):
            nested([raising])
    assert ignored == []


def test_an_interrupt_at_any_line_of_a_loop_reaches_the_caller(ignored: list[Any]) -> None:
    """Ctrl-C comes between any two lines. Here it does so after each in turn, until a run is
    left alone.
    """
    code = {SRAM.loop.__code__, SRAM._evict.__code__}

    def interrupting(after: int) -> Callable[..., Any]:
        left = iter(range(after))

        def trace(frame: FrameType, kind: str, _: Any) -> Any:
            if frame.f_code not in code:
                return None
            if kind == "line" and next(left, None) is None:
                raise KeyboardInterrupt
            return trace

        return trace

    before = sys.gettrace()
    interrupts = 0
    while True:
        try:
            sys.settrace(interrupting(interrupts))
            nested()
        except KeyboardInterrupt:
            interrupts += 1
        else:
            break
        finally:
            sys.settrace(before)
    assert interrupts > 50
    assert ignored == []


def test_after_an_error_in_a_turn_the_chip_holds_what_it_held_before(ignored: list[Any]) -> None:
    def raising(event: Event) -> None:
        if event.kind == "evict":
            raise ZeroDivisionError

    hbm = HBM()
    sram = SRAM(hbm, 100, observers=[raising])
    Q = hbm.place("Q", matrix()).divide(3)
    sram.load(Q[0])
    turns = sram.loop(2)
    next(turns)
    inner = sram.load(Q[1])
    with pytest.raises(ZeroDivisionError):
        next(turns)
    assert sram.resident == {"Q[0]": 6}
    assert sram.occupancy == 6
    assert np.isnan(inner).all()
    assert ignored == []


def test_where_a_line_stands_is_said_of_its_own_file_though_another_holds_the_same_function() -> (
    None
):
    """Python's code objects are equal if their text is, whatever their file, and, in some
    versions, their lines.
    """
    events: list[tuple[str, int]] = []
    _, sram = chip(observers=[lambda event: events.append(event.site)])
    text = "def double(sram, tile):\n    twice = sram.on_chip(tile + tile)\n    sram.evict(twice)\n"
    tile = sram.full((1, 1), 1.0)
    events.clear()
    for file, source in (
        ("one.py", text),
        ("two.py", text),
        ("two.py", text.replace("    twice", "\n    twice")),
    ):
        scope: dict[str, Any] = {}
        exec(compile(source, file, "exec"), scope)
        scope["double"](sram, tile)
    assert events == [
        ("one.py", 2),
        ("one.py", 3),
        ("two.py", 2),
        ("two.py", 3),
        ("two.py", 3),
        ("two.py", 4),
    ]


# ---------------------------------------------------------------------------------------------
# blocks that cover a matrix


@pytest.mark.parametrize(
    "lengths",
    [
        {"N_q": 12, "N_k": 9},
        {"N_q": 8, "N_k": 12},
        {"N_q": 12, "N_k": 15},
    ],
)
@pytest.mark.parametrize(
    "name", ["flash_basic", "q_outer", "standard", "small_cache", "memory_efficient"]
)
def test_blocks_of_another_length_are_refused_where_an_algorithm_divides(
    name: str, lengths: dict[str, int]
) -> None:
    """Called by hand: a key block would never be read, or rows of O never written, and O be
    wrong in silence.
    """
    X = matrix(12, 4)
    run = FORWARD[name].run
    hbm, sram = chip(10_000)
    operands = [hbm.place(operand, X) for operand in "QKV"]
    parts = [PARTS_BY_HAND[part] for part in FORWARD[name].parts]
    blocks = Blocks(B_r=4, B_c=3, **lengths)
    with pytest.raises(
        ValueError,
        match=r"has 12 rows and .*made for a length of (9|8|15): expected Blocks\(.*N_q=…, N_k=…",
    ):
        run(hbm, sram, *operands, blocks, *parts)


PARTS_BY_HAND: dict[str, Any] = {
    "tau": 1.0,
    "MASK": lambda S, i, j: S,
    "dropout": NoDropout(),
    "live": EveryTile(),
    "sink": NoSink(),
    "block_mask": None,
}


def test_blocks_say_what_they_make_of_their_lengths() -> None:
    blocks = Blocks(B_r=4, B_c=5, N_q=12, N_k=11)
    assert (blocks.T_r, blocks.T_c, blocks.tiles) == (3, 3, 9)
    assert eval(repr(blocks)) == blocks
    assert pickle.loads(pickle.dumps(blocks)) == blocks
    assert copy.deepcopy(blocks) == blocks
    assert Blocks(4, 99, N_q=12, N_k=11).B_c == 11
    assert Blocks(4, 5, N_q=0, N_k=11).T_r == 0  # a device may have no queries
    for wrong in ({"T_r": 3, "T_c": 3}, {"N_q": 12}, {}):
        with pytest.raises(TypeError):
            Blocks(4, 5, **wrong)
    for B_r, B_c, N_q, N_k in (
        (0, 5, 12, 11),
        (4, -1, 12, 11),
        (4, 5, -1, 11),
        (4, 5, 12, 2.5),
        ("4", 5, 12, 11),
    ):
        with pytest.raises(ValueError, match=r"expected a whole number of at least [01]"):
            Blocks(B_r, B_c, N_q=N_q, N_k=N_k)  # type: ignore[arg-type]


def test_matrices_of_ones_own_and_parts_of_an_input_are_divided_by_any_size() -> None:
    hbm, _ = chip()
    K = hbm.place("K", matrix(12, 4))
    size = Blocks(4, 5, N_q=12, N_k=12).B_c
    assert len(hbm.empty("partial", (24, 4), float).divide(size)) == 5
    assert len(K.rows(0, 6).divide(size)) == 2
    assert K.divide(4, size).blocks == (3, 1)

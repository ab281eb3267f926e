"""Windows of rows, and tables of words that a program follows: counted alike with numbers and without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashsim
from flashsim.memory import HBM, SRAM, Event, Matrix, SramOverflow

NONE = 2**32 - 1
PAGE, D = 4, 3


def memory(arithmetic: bool = True, capacity: int = 1000, **options: Any) -> tuple[HBM, SRAM]:
    hbm = HBM(arithmetic=arithmetic)
    return hbm, SRAM(hbm, capacity, **options)


def placed(hbm: HBM, name: str, rows: int, cols: int = D) -> Matrix:
    values = np.arange(rows * cols, dtype=float).reshape(rows, cols)
    return hbm.place(name, values if hbm.arithmetic else (rows, cols), np.float64)


# ------------------------------------------------------------------------------------------------------ loops of none


@pytest.mark.parametrize("choice", [{}, {"where": np.zeros(0, bool)}, {"alike": []}], ids=["all", "where", "alike"])
@pytest.mark.parametrize("arithmetic", [True, False])
def test_a_loop_of_no_turns_runs_none(arithmetic: bool, choice: dict[str, Any]) -> None:
    _, sram = memory(arithmetic)
    assert list(sram.loop(0, **choice)) == []


@pytest.mark.parametrize("arithmetic", [True, False])
def test_a_matrix_of_no_rows_has_no_blocks(arithmetic: bool) -> None:
    hbm, sram = memory(arithmetic)
    K = placed(hbm, "K", 0)
    assert (len(K), len(K.divide(2)), len(placed(hbm, "V", 5).rows(2, 2))) == (0, 0, 0)
    assert list(sram.loop(len(K))) == []


# ------------------------------------------------------------------------------------------------------------ windows


def test_a_window_is_divided_from_its_own_first_row() -> None:
    hbm, sram = memory()
    heard: list[Event] = []
    sram._observers = (heard.append,)
    K = placed(hbm, "K", 10).divide(4)
    window = K.rows(3, 9)
    assert (window.name, window.shape, len(window), len(K)) == ("K[3:9]", (6, D), 2, 3)
    first, last = sram.load(window[0], window[1])
    assert np.array_equal(first, hbm.peek("K")[3:7])
    assert np.array_equal(last, hbm.peek("K")[7:9])
    assert [(e.name, e.where[0]) for e in heard if e.where] == [("K[3:7]", slice(3, 7)), ("K[7:9]", slice(7, 9))]
    assert hbm.traffic.by_array["K"].reads == 6 * D
    assert window.rows(1, 3).name == "K[4:6]"
    assert window.divide(1, 2)[5, 1].name == "K[8:9, 1]"


def test_a_window_may_be_stored_to() -> None:
    hbm, sram = memory()
    O = hbm.empty("O", (5, 2), np.float64, "output")
    sram.store(O.rows(1, 3)[0], sram.full((2, 2), 7.0))
    assert np.array_equal(hbm.peek("O")[1:3], np.full((2, 2), 7.0))
    assert np.isnan(hbm.peek("O")[[0, 3, 4]]).all()
    assert hbm.traffic.by_array["O"].writes == 4


@pytest.mark.parametrize(("a", "b"), [(-1, 3), (4, 3), (0, 6), (6, 6), (1.0, 2), (None, 2)])
def test_windows_that_are_none_are_refused(a: Any, b: Any) -> None:
    hbm, _ = memory()
    with pytest.raises(ValueError, match=r"^K\[1:6\]\.rows\(a=.*, b=.*\): expected whole numbers 0 ≤ a ≤ b ≤ 5"):
        placed(hbm, "K", 9).rows(1, 6).rows(a, b)


# -------------------------------------------------------------------------------------------------------------- words


@pytest.mark.parametrize("arithmetic", [True, False])
def test_a_word_is_read_counted_and_held_until_the_turn_ends(arithmetic: bool) -> None:
    hbm, sram = memory(arithmetic)
    table = hbm.place("table", np.array([[5, NONE]]), index=True).divide(1, 1)
    for _ in sram.loop(2):
        word = sram.word(table[0, 1])
        assert (word, type(word), sram.resident) == (NONE, int, {"table[0, 1]": 1})
    assert sram.occupancy == 0
    moved = hbm.traffic.by_array["table"]
    assert (moved.reads, moved.size, moved.itemsize, moved.role) == (2, 2, 4, "input")


def test_words_are_told_and_take_room() -> None:
    heard: list[Event] = []
    hbm, sram = memory(capacity=1, observers=[heard.append])
    table = hbm.place("table", np.array([[1], [2]], np.uint8), index=True).divide(1)
    sram.word(table[1])
    assert [(e.kind, e.name, e.elements, e.where) for e in heard] == [
        ("load", "table[1]", 1, (slice(1, 2), slice(0, 1)))
    ]
    with pytest.raises(SramOverflow, match=r"table\[0\] .* does not fit"):
        sram.word(table[0])


def test_what_is_no_word_is_refused() -> None:
    hbm, sram = memory()
    table = hbm.place("table", np.array([[1, 2]]), index=True)
    with pytest.raises(ValueError, match=r"sram\.word reads one element; table\[0\] is 1×2: divide\(1, 1\)"):
        sram.word(table[0])
    with pytest.raises(TypeError, match=r"sram\.word reads index arrays, hbm\.place\(…, index=True\); K is none"):
        sram.word(placed(hbm, "K", 1, 1)[0])
    with pytest.raises(TypeError, match=r"sram\.word takes a block in HBM such as table\[s, j\]; got a Matrix|<table"):
        sram.word(table)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values", [(2, 3), np.array([[1.0]]), np.array([[-1]]), np.array([[2**32]]), np.array([[True]]), np.array([1, 2])]
)
@pytest.mark.parametrize("arithmetic", [True, False])
def test_values_that_are_no_words_are_refused(arithmetic: bool, values: Any) -> None:
    hbm, _ = memory(arithmetic)
    with pytest.raises(ValueError, match=r"^table is .*; expected whole numbers from 0 to 2³²−1, \(rows, columns\)"):
        hbm.place("table", values, index=True)


def test_words_are_copied_once_and_typed_as_words() -> None:
    hbm, sram = memory(arithmetic=False)
    given = np.array([[3]])
    table = hbm.place("table", given, index=True)
    given[0, 0] = 4
    assert (sram.word(table[0]), table.dtype.name) == (3, "uint32")
    assert HBM().place("table", given, np.uint32, index=True).dtype == np.uint32
    with pytest.raises(ValueError, match=r"^dtype of table is float64; expected none, as words are uint32"):
        HBM().place("table", given, np.float64, index=True)


# ------------------------------------------------------------------------------------------------ a program on a table


def paged_sum(hbm: HBM, sram: SRAM, table: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any], pages: int) -> Matrix:
    """Sum the rows of each sequence, which lie in the pages that a table names."""
    pool = placed(hbm, "K", pages * PAGE)
    words = hbm.place("table", table, index=True).divide(1, 1)
    counts = hbm.place("lengths", lengths[:, None], index=True).divide(1)
    O = hbm.empty("O", (len(lengths), D), np.float64, "output").divide(1)
    for s in sram.loop(len(O), alike=lengths.tolist()):
        n = sram.word(counts[s])
        total = sram.full((1, D), 0.0)
        for j in sram.loop(-(-n // PAGE)):
            b = sram.word(words[s, j])
            K_j = sram.load(pool.rows(b * PAGE, b * PAGE + min(PAGE, n - j * PAGE))[0])
            total = sram.on_chip(total + K_j.sum(axis=0, keepdims=True), over=total)
        sram.store(O[s], total)
    return O


@given(st.lists(st.integers(0, 5 * PAGE), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_a_program_that_follows_a_table_counts_alike_whatever_the_table_says(lengths: list[int], random: Any) -> None:
    n, width, pages = np.array(lengths), 5, 5 * len(lengths)
    order = [*range(pages)]
    random.shuffle(order)
    table = np.array(order).reshape(len(n), width)
    runs: list[Callable[[], tuple[HBM, SRAM]]] = [
        lambda: memory(), lambda: memory(False), lambda: memory(False, fold=False)
    ]  # fmt: skip
    found: list[Any] = []
    for made in (*runs, *runs):
        hbm, sram = made()
        paged_sum(hbm, sram, table if len(found) < len(runs) else np.sort(table.ravel()).reshape(table.shape), n, pages)
        found.append((hbm.traffic, sram.peak))
        if len(found) == 1:
            rows = hbm.peek("K").reshape(pages, PAGE, D)[table].reshape(len(n), -1, D)
            want = np.stack([row[:length].sum(axis=0) for row, length in zip(rows, n, strict=True)])
            assert np.array_equal(hbm.peek("O"), want)
    assert all(each == found[0] for each in found)
    by_array = found[0][0].by_array
    assert by_array["table"].reads == sum(-(-length // PAGE) for length in lengths)
    assert (by_array["K"].reads, by_array["lengths"].reads) == (D * sum(lengths), len(lengths))
    longest = max(lengths)
    assert found[0][1] == 1 + D + (1 + D * min(PAGE, longest) if longest else 0)


def first_keys(hbm: HBM, sram: SRAM, Q: Matrix, K: Matrix, V: Matrix, blocks: Any) -> Matrix:
    """Attend to as many keys as a word says."""
    O = hbm.empty("O", (Q.shape[0], V.shape[1]), V.dtype, "output")
    count = hbm.place("count", np.array([[3]]), index=True)
    Q_i, n = sram.load(Q[0]), sram.word(count[0])
    K_j, V_j = sram.load(K.rows(0, n)[0], V.rows(0, n)[0])
    P = sram.on_chip(np.exp(Q_i @ K_j.T))
    sram.store(O[0], sram.on_chip(P @ V_j / P.sum(axis=1, keepdims=True)))
    return O


def test_a_trace_knows_windows_and_words(tmp_path: Path) -> None:
    Q = np.ones((4, 2))
    trace = flashsim.trace(first_keys, Q, Q, Q, M=100)
    loaded = {event.name: (event.array, event.indices) for event in trace.events if event.kind == "load"}
    assert loaded == {"Q[0]": ("Q", (0,)), "count[0]": ("count", (0,)), "K[0:3]": ("K", ()), "V[0:3]": ("V", ())}
    for file in ("t.json.gz", "t.npz"):
        again = flashsim.load_trace(trace.save(tmp_path / file))
        assert [event.name for event in again.events] == [event.name for event in trace.events]

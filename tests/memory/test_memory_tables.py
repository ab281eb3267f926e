"""Windows of rows, and tables of words that a program follows: counted alike with numbers and
without.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashsim
from flashsim.hardware.cache import L2
from flashsim.memory.errors import SramOverflow
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM, Event

NONE = 2**32 - 1
PAGE = 4
D = 3


def memory(arithmetic: bool = True, capacity: int = 1000, **options: Any) -> tuple[HBM, SRAM]:
    hbm = HBM(arithmetic=arithmetic)
    return hbm, SRAM(hbm, capacity, **options)


def placed(hbm: HBM, name: str, rows: int, cols: int = D) -> Matrix:
    values = np.arange(rows * cols, dtype=float).reshape(rows, cols)
    return hbm.place(name, values if hbm.arithmetic else (rows, cols), np.float64)


# --------------------------------------------------------------------------------------------------
# loops of none


@pytest.mark.parametrize("arithmetic", [True, False])
def test_a_loop_of_no_turns_runs_none_and_a_matrix_of_no_rows_has_no_blocks(
    arithmetic: bool,
) -> None:
    hbm, sram = memory(arithmetic)
    assert list(sram.loop(0)) == []
    assert list(sram.loop(0, where=np.zeros(0, bool))) == []
    assert list(sram.loop(0, alike=[])) == []
    K = placed(hbm, "K", 0)
    assert len(K) == 0
    assert len(K.divide(2)) == 0
    V = placed(hbm, "V", 5)
    assert len(V.rows(2, 2)) == 0
    assert list(sram.loop(len(K))) == []


# --------------------------------------------------------------------------------------------------
# windows


def test_a_window_is_divided_from_its_own_first_row_and_may_be_stored_to() -> None:
    hbm, sram = memory()
    heard: list[Event] = []
    sram._observers = (heard.append,)
    K = placed(hbm, "K", 10).divide(4)
    window = K.rows(3, 9)
    assert window.name == "K[3:9]"
    assert window.shape == (6, D)
    assert len(window) == 2
    assert len(K) == 3
    first, last = sram.load(window[0], window[1])
    assert np.array_equal(first, hbm.peek("K")[3:7])
    assert np.array_equal(last, hbm.peek("K")[7:9])
    assert [(e.name, e.where[0]) for e in heard if e.where] == [
        ("K[3:7]", slice(3, 7)),
        ("K[7:9]", slice(7, 9)),
    ]
    assert hbm.traffic.by_array["K"].reads == 6 * D
    assert window.rows(1, 3).name == "K[4:6]"
    assert window.divide(1, 2)[5, 1].name == "K[8:9, 1]"
    O = hbm.empty("O", (5, 2), np.float64, "output")
    sevens = sram.full((2, 2), 7.0)
    sram.store(O.rows(1, 3)[0], sevens)
    assert (hbm.peek("O")[1:3] == 7.0).all()
    assert np.isnan(hbm.peek("O")[[0, 3, 4]]).all()
    assert hbm.traffic.by_array["O"].writes == 4


@pytest.mark.parametrize(("a", "b"), [(-1, 3), (4, 3), (0, 6), (6, 6), (1.0, 2), (None, 2)])
def test_windows_that_are_none_are_refused(a: Any, b: Any) -> None:
    hbm, _ = memory()
    with pytest.raises(
        ValueError, match=r"^K\[1:6\]\.rows\(a=.*, b=.*\): expected whole numbers 0 ≤ a ≤ b ≤ 5"
    ):
        placed(hbm, "K", 9).rows(1, 6).rows(a, b)


# --------------------------------------------------------------------------------------------------
# words


@pytest.mark.parametrize("arithmetic", [True, False])
def test_a_word_is_read_counted_and_held_until_the_turn_ends(arithmetic: bool) -> None:
    hbm, sram = memory(arithmetic)
    table = hbm.place("table", np.array([[5, NONE]]), index=True)
    table = table.divide(1, 1)
    for _ in sram.loop(2):
        word = sram.word(table[0, 1])
        assert word == NONE
        assert type(word) is int
        assert sram.resident == {"table[0, 1]": 1}
    assert sram.occupancy == 0
    traffic = hbm.traffic.by_array["table"]
    assert traffic.reads == 2
    assert traffic.size == 2
    assert traffic.itemsize == 4
    assert traffic.role == "input"


def test_words_are_told_and_take_room() -> None:
    heard: list[Event] = []
    hbm, sram = memory(capacity=1, observers=[heard.append])
    table = hbm.place("table", np.array([[1], [2]], np.uint8), index=True)
    table = table.divide(1)
    sram.word(table[1])
    (e,) = heard
    assert (e.kind, e.name, e.elements, e.where) == (
        "load",
        "table[1]",
        1,
        (slice(1, 2), slice(0, 1)),
    )
    with pytest.raises(SramOverflow, match=r"table\[0\] .* does not fit"):
        sram.word(table[0])


def test_what_is_no_word_is_refused() -> None:
    hbm, sram = memory()
    table = hbm.place("table", np.array([[1, 2]]), index=True)
    with pytest.raises(
        ValueError, match=r"sram\.word reads one element; table\[0\] is 1×2: divide\(1, 1\)"
    ):
        sram.word(table[0])
    with pytest.raises(
        TypeError, match=r"sram\.word reads index arrays, hbm\.place\(…, index=True\); K is not one"
    ):
        sram.word(placed(hbm, "K", 1, 1)[0])
    with pytest.raises(
        TypeError,
        match=r"sram\.word takes a block in HBM such as table\[s, j\]; got a Matrix|<table",
    ):
        sram.word(table)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values",
    [
        (2, 3),
        np.array([[1.0]]),
        np.array([[-1]]),
        np.array([[2**32]]),
        np.array([[True]]),
        np.array([1, 2]),
    ],
)
@pytest.mark.parametrize("arithmetic", [True, False])
def test_values_that_are_no_words_are_refused(arithmetic: bool, values: Any) -> None:
    hbm, _ = memory(arithmetic)
    with pytest.raises(
        ValueError, match=r"^table is .*; expected whole numbers from 0 to 2³²−1, \(rows, columns\)"
    ):
        hbm.place("table", values, index=True)


def test_words_are_copied_once_and_typed_as_words() -> None:
    hbm, sram = memory(arithmetic=False)
    inputs = np.array([[3]])
    table = hbm.place("table", inputs, index=True)
    inputs[0, 0] = 4
    assert (sram.word(table[0]), table.dtype.name) == (3, "uint32")
    words = hbm.place("words", np.array([[5], [6]]), index=True)
    assert sram.word(words.at([1])) == 6  # gathered
    assert HBM().place("table", inputs, np.uint32, index=True).dtype == np.uint32
    with pytest.raises(
        ValueError, match=r"^dtype of table is float64; expected none, as words are uint32"
    ):
        HBM().place("table", inputs, np.float64, index=True)


# --------------------------------------------------------------------------------------------------
# gathered rows


@pytest.mark.parametrize("arithmetic", [True, False])
def test_rows_from_anywhere_are_one_block(arithmetic: bool) -> None:
    heard: list[Event] = []
    hbm, sram = memory(arithmetic, observers=[heard.append])
    K = placed(hbm, "K", 10).divide(4, 2)
    tile = sram.load(K.at([7, 0, 7]))
    assert tile.shape == (3, D)
    assert sram.resident == {"K[[7, 0, 7]]": 3 * D}
    assert sram.peak == 3 * D
    assert hbm.traffic.by_array["K"].reads == 3 * D
    if arithmetic:
        assert np.array_equal(tile, hbm.peek("K")[[7, 0, 7]])
    (event,) = heard
    assert event.kind == "load"
    assert event.elements == 3 * D
    assert event.where is None
    assert event.rows == (7, 0, 7)
    assert repr(K.at(np.arange(6, dtype=np.uint32))) == "<K[[0, 1, 2, 3, …]] in HBM, 6×3>"
    assert K.rows(3, 9).at([1, 5]).rows == (4, 8)


def test_rows_are_gathered_when_they_are_loaded_and_take_room() -> None:
    hbm, sram = memory(capacity=2 * D)
    O = hbm.empty("O", (5, D), np.float64, "output")
    gathered = O.at([4, 1])
    for value in (1.0, 2.0):
        for _ in sram.loop(1):
            tile = sram.full((2, D), value)
            sram.store(O.at([4, 1]), tile)
        for _ in sram.loop(1):
            assert (sram.load(gathered) == value).all()
    with pytest.raises(SramOverflow, match=r"O\[\[0, 1, 2\]\] \(3×3 = 9 elements\) does not fit"):
        sram.load(O.at([0, 1, 2]))


@pytest.mark.parametrize("arithmetic", [True, False])
def test_a_store_to_gathered_rows_scatters(arithmetic: bool) -> None:
    hbm, sram = memory(arithmetic)
    O = hbm.empty("O", (5, D), np.float32, "output")
    tile = sram.load(placed(hbm, "K", 9).at([8, 3]))
    sram.store(O.rows(1, 5).at([3, 0]), tile)
    assert hbm.traffic.by_array["O"].writes == 2 * D
    if arithmetic:
        assert np.array_equal(hbm.peek("O")[[4, 1]], hbm.peek("K")[[8, 3]])
        assert np.isnan(hbm.peek("O")[[0, 2, 3]]).all()
    with pytest.raises(ValueError, match=r"^sram\.store to O\[\[2, 2\]\]: expected each row once"):
        sram.store(O.at([2, 2]), tile)


NO_ROWS: list[Any] = [[], 3, [1.0], [True], [2**70], "01", None]


@pytest.mark.parametrize("arithmetic", [True, False])
@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([0, 5], r"\(rows=…\) has row 5; expected rows from 0 to 4"),
        ([-1], r"\(rows=…\) has row -1; expected rows from 0 to 4"),
        ([NONE], r"\(rows=…\) has row 4294967295; expected rows from 0 to 4"),
        *(
            (rows, r"\(rows=.*\): expected whole numbers from 0 to 4, one or more")
            for rows in NO_ROWS
        ),
    ],
)
def test_rows_that_are_none_are_refused(arithmetic: bool, rows: Any, text: str) -> None:
    hbm, _ = memory(arithmetic)
    with pytest.raises(ValueError, match=rf"^K\[1:6\]\.at{text}"):
        placed(hbm, "K", 9).rows(1, 6).at(rows)


def test_a_cache_reads_the_lines_of_the_rows_that_are_gathered() -> None:
    l2 = L2(2 * D, line=D)
    hbm, sram = memory(observers=[l2])
    K = placed(hbm, "K", 9)
    O = hbm.empty("O", (9, D), np.float64, "output")
    for rows in ([8, 3], [8, 3], [0, 3]):  # a line each, and the cache holds two
        sram.load(K.at(rows))
    assert l2.by_array["K"].reads == 6 * D
    assert l2.by_array["K"].dram_reads == 3 * D
    zeros = sram.full((2, D), 0.0)
    sram.store(O.at([4, 2]), zeros)
    l2.flush()
    assert l2.by_array["O"].writes == 2 * D
    assert l2.by_array["O"].dram_writes == 2 * D


def reordered_sum(hbm: HBM, sram: SRAM, order: np.ndarray[Any, Any], C: int) -> Matrix:
    """Sum the rows of each cluster of C, in an order that a table says, and write the sum to
    each of them.
    """
    words = hbm.place("order", order, index=True).divide(1, 1)
    h, N = order.shape
    K = placed(hbm, "K", N)
    O = hbm.empty("O", (h * N, D), np.float64, "output")
    for a in sram.loop(h):
        for i in sram.loop(-(-N // C)):
            cluster = range(i * C, min((i + 1) * C, N))
            rows = [sram.word(words[a, n]) for n in cluster]
            K_i = sram.load(K.at(rows))
            sram.store(
                O.rows(a * N, (a + 1) * N).at(rows),
                sram.on_chip(K_i * 0 + K_i.sum(axis=0, keepdims=True)),
            )
    return O


@given(st.integers(1, 12), st.integers(1, 3), st.integers(1, 13), st.integers(0, 99))
def test_a_program_that_gathers_counts_alike_whatever_the_order(
    N: int, h: int, C: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    result: list[Any] = []
    for made in ((), (), (False,), (False,)):
        order = np.stack([rng.permutation(N) for _ in range(h)])
        hbm, sram = memory(*made, fold=len(result) != 3)
        reordered_sum(hbm, sram, order, C)
        result.append((hbm.traffic, sram.peak))
        if not made:
            for a in range(h):
                for first in range(0, N, C):
                    rows = order[a, first : first + C]
                    sums = hbm.peek("K")[rows].sum(axis=0)
                    assert (hbm.peek("O")[a * N + rows] == sums).all()
    assert all(each == result[0] for each in result)
    by_array = result[0][0].by_array
    assert by_array["order"].reads == h * N
    assert by_array["K"].reads == h * N * D
    assert by_array["O"].writes == h * N * D
    assert result[0][1] == min(C, N) * (1 + 2 * D)


# ----------------------------------------------------------------------------- a program on a table


def paged_sum(
    hbm: HBM, sram: SRAM, table: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any], pages: int
) -> Matrix:
    """Sum the rows of each sequence, which lie in the pages that a table names."""
    pool = placed(hbm, "K", pages * PAGE)
    words = hbm.place("table", table, index=True).divide(1, 1)
    counts = hbm.place("lengths", lengths[:, None], index=True).divide(1)
    O = hbm.empty("O", (len(lengths), D), np.float64, "output")
    O = O.divide(1)
    for s in sram.loop(len(O), alike=lengths.tolist()):
        n = sram.word(counts[s])
        total = sram.full((1, D), 0.0)
        for j in sram.loop(-(-n // PAGE)):
            b = sram.word(words[s, j])
            first = b * PAGE
            rows = min(PAGE, n - j * PAGE)
            K_j = sram.load(pool.rows(first, first + rows)[0])
            total = sram.on_chip(total + K_j.sum(axis=0, keepdims=True), over=total)
        sram.store(O[s], total)
    return O


@given(
    st.lists(st.integers(0, 5 * PAGE), min_size=1, max_size=5), st.randoms(use_true_random=False)
)
def test_a_program_that_follows_a_table_counts_alike_whatever_the_table_says(
    lengths: list[int], random: Any
) -> None:
    n = np.array(lengths)
    width = 5
    pages = 5 * len(lengths)
    order = [*range(pages)]
    random.shuffle(order)
    table = np.array(order).reshape(len(n), width)
    ascending = np.sort(table.ravel()).reshape(table.shape)
    runs: list[dict[str, Any]] = [
        {},
        {"arithmetic": False},
        {"arithmetic": False, "fold": False},
    ]
    result: list[Any] = []
    for how in (*runs, *runs):
        hbm, sram = memory(**how)
        own_table = table if len(result) < len(runs) else ascending
        paged_sum(hbm, sram, own_table, n, pages)
        result.append((hbm.traffic, sram.peak))
        if len(result) == 1:
            rows = hbm.peek("K").reshape(pages, PAGE, D)
            rows = rows[table].reshape(len(n), -1, D)
            sums = [row[:length].sum(axis=0) for row, length in zip(rows, n, strict=True)]
            want = np.stack(sums)
            assert np.array_equal(hbm.peek("O"), want)
    assert all(each == result[0] for each in result)
    by_array = result[0][0].by_array
    assert by_array["table"].reads == sum(-(-length // PAGE) for length in lengths)
    assert by_array["K"].reads == D * sum(lengths)
    assert by_array["lengths"].reads == len(lengths)
    longest = max(lengths)
    words_and_page = 1 + D * min(PAGE, longest) if longest else 0
    assert result[0][1] == 1 + D + words_and_page


def first_keys(hbm: HBM, sram: SRAM, Q: Matrix, K: Matrix, V: Matrix, blocks: Any) -> Matrix:
    """Attend to as many keys as a word says."""
    O = hbm.empty("O", (Q.shape[0], V.shape[1]), V.dtype, "output")
    count = hbm.place("count", np.array([[3]]), index=True)
    Q_i = sram.load(Q[0])
    n = sram.word(count[0])
    values = V.at([2, 0, 1])
    K_j, V_j = sram.load(K.rows(0, n)[0], values)
    P = sram.on_chip(np.exp(Q_i @ K_j.T))
    O_i = sram.on_chip(P @ V_j / P.sum(axis=1, keepdims=True))
    sram.store(O[0], O_i)
    return O


def test_a_trace_knows_windows_words_and_gathered_rows(tmp_path: Path) -> None:
    Q = np.ones((4, 2))
    trace = flashsim.trace(first_keys, Q, Q, Q, M=100)
    loaded = {
        event.name: (event.array, event.indices) for event in trace.events if event.kind == "load"
    }
    assert loaded == {
        "Q[0]": ("Q", (0,)),
        "count[0]": ("count", (0,)),
        "K[0:3]": ("K", ()),
        "V[[2, 0, 1]]": ("V", ()),
    }
    again = flashsim.load_trace(trace.save(tmp_path / "t.json.gz"))
    assert [event.name for event in again.events] == [event.name for event in trace.events]

"""The trace: that it is what the memory told, that files bring it back, and that what is derived
from it is right.
"""

import base64
import gzip
import itertools
import json
import re
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import flashsim
from flashsim import Fixed, serving
from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.attention.masks import patterns
from flashsim.cli import main, parse
from flashsim.cli.step import recorded as step_recorded
from flashsim.memory.sram import Event
from flashsim.tracing import Recorder, Trace, page, recording, text
from flashsim.tracing.bugs import BACKWARD_BUGS, BUGS, with_bug
from flashsim.tracing.listing import listing_of
from flashsim.tracing.observers import Ledger
from flashsim.tracing.spelled import spelled
from tests.helpers.cases import Arguments, with_trace

Array = NDArray[Any]


def operands(
    n: int, d: int, *, n_k: int | None = None, seed: int = 0, leading: tuple[int, ...] = ()
) -> list[Array]:
    rng = np.random.default_rng(seed)
    sizes = [(*leading, rows, d) for rows in (n, n_k or n, n_k or n)]
    return [2 * rng.standard_normal(size).astype(np.float32) for size in sizes]


def recorded(
    name: str = "flash", n: int = 13, d: int = 4, blocks: tuple[int, int] = (3, 5), **options: Any
) -> Trace:
    n_k = options.pop("n_k", None)
    Q, K, V = operands(n, d, n_k=n_k, seed=options.pop("seed", 0))
    sizing = Fixed(*blocks, enforced=False)
    return flashsim.trace(name, Q, K, V, sizing=sizing, M=64, **options)


def gradient(n: int, d: int, leading: tuple[int, ...] = ()) -> Array:
    rng = np.random.default_rng(7)
    return rng.standard_normal((*leading, n, d)).astype(np.float32)


def recorded_backward(
    name: str = "flash", n: int = 13, blocks: tuple[int, int] = (3, 5), **options: Any
) -> Trace:
    return recorded(name, n, 4, blocks, dO=gradient(n, 4), **options)


def same(a: Trace, b: Trace) -> bool:
    """Say whether two traces are equal, values bit for bit."""
    if a.about != b.about or len(a.events) != len(b.events):
        return False
    for x, y in zip(a.events, b.events, strict=True):
        # a file's path may differ, its line may not
        x_alone = x._replace(value=None, site=("", x.site[1]))
        y_alone = y._replace(value=None, site=("", y.site[1]))
        if x_alone != y_alone:
            return False
        if x.value is None or y.value is None:
            if x.value is not y.value:
                return False
            continue
        if x.value.dtype != y.value.dtype:
            return False
        if x.value.tobytes() != y.value.tobytes():
            return False
    return True


# ------------------------------------------------------------------------------ it is what happened


class Watch:
    """Notes of every event what a trace should say of it, from the memory itself."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def __call__(self, event: Event) -> None:
        traffic = event.sram.hbm.traffic
        occupancy = event.sram.occupancy - (event.elements if event.kind == "evict" else 0)
        value = None if event.tile is None or event.kind == "evict" else event.tile.copy()
        self.seen.append(
            (
                event.kind,
                event.name,
                occupancy,
                event.sram.resident,
                traffic.reads,
                traffic.writes,
                value,
            )
        )


PASSES = [(name, "forward") for name in FORWARD] + [(name, "backward") for name in BACKWARD]


@pytest.mark.parametrize(("name", "direction"), PASSES)
def test_every_event_is_kept_with_the_state_after_it_to_the_end(name: str, direction: str) -> None:
    """The end is the run's and the closed form's."""
    Q, K, V = operands(13, 4)
    watch = Watch()
    run = None
    if direction == "forward":
        run, run_trace = with_trace(flashsim.forward, name, Q, K, V, M=64, observers=[watch])
    else:
        forward_name = BACKWARD[name].forward_pass
        before = flashsim.forward(forward_name, Q, K, V, M=64, sizing="paper")
        run, run_trace = with_trace(
            flashsim.backward, name, before, gradient(13, 4), observers=[watch]
        )
        sizes: Arguments = {"N": 13, "d": 4, "M": 64}
        other = flashsim.theory.exact("standard", **sizes, direction="backward")
        assert run_trace.about.standard == (
            None if name == "standard" else (other.reads, other.writes)
        )
    assert len(run_trace.events) == len(watch.seen)
    for event, events in zip(run_trace.events, watch.seen, strict=True):
        kind, block, occupancy, resident, reads, writes, value = events
        assert (event.kind, event.name, event.occupancy) == (kind, block, occupancy)
        assert (dict(event.resident), event.reads, event.writes) == (resident, reads, writes)
        assert (event.value is None) == (value is None)
        if value is not None:
            assert np.array_equal(np.asarray(value, np.float32), event.value, equal_nan=True)  # type: ignore[arg-type]

    assert run_trace.about.direction == direction
    about = run_trace.about
    last = run_trace.events[-1]
    assert (last.reads, last.writes) == (run.hbm.reads, run.hbm.writes)
    traffic = {array.name: (array.reads, array.writes) for array in about.arrays}
    assert traffic.keys() == run.hbm.by_array.keys()
    for array_name, counts in run.hbm.by_array.items():
        assert traffic[array_name] == (counts.reads, counts.writes)
    for array in about.arrays:
        assert array.exact == (array.reads, array.writes)
    assert (about.peak, about.exact_peak) == (run.sram.peak, run.sram.peak)
    assert max(event.occupancy for event in run_trace.events) == run.sram.peak
    assert last.occupancy == 0 or name in ("memory_efficient", "q_outer_pinned", "snake")


def test_blocks_say_where_they_are_and_at_which_line() -> None:
    trace = recorded()
    moves = [event for event in trace.events if event.kind in ("load", "store")]
    others = [event for event in trace.events if event.kind not in ("load", "store")]
    where = {event.name: event.where for event in moves}
    assert where["Q[4]"] == ((12, 13), (0, 4))
    assert where["K[1]"] == ((5, 10), (0, 4))
    assert where["l[1]"] == ((3, 6), (0, 1))
    assert all(event.where is None for event in others)
    event = next(event for event in trace.events if event.name == "K[1]")
    assert (event.array, event.indices, event.label) == ("K", (1,), "line 7")
    mask = np.random.default_rng(0).random((13, 13)) < 0.5
    masked = recorded(mask=mask)
    loads = [event for event in masked.events if event.kind == "load" and event.array == "mask"]
    assert {event.label for event in loads} == {"line 11"}  # that masks
    assert all(event.site[0].endswith("algorithm_2_flash.py") for event in loads)
    assert [event.label for event in recorded(dropout_p=0.5).events if event.array == "R"] == [
        "line 1"
    ]


def test_stored_values_are_the_result() -> None:
    Q, K, V = operands(13, 4)
    run, run_trace = with_trace(flashsim.forward, "flash", Q, K, V, M=64, causal=True)
    O = np.full_like(run.O, np.nan)
    for event in run_trace.events:
        if event.kind == "store" and event.array == "O":
            assert event.where is not None
            assert event.value is not None
            O[slice(*event.where[0])] = event.value
    assert np.array_equal(O, run.O)


def test_it_is_off_by_default_and_changes_nothing() -> None:
    Q, K, V = operands(13, 4)
    plain = flashsim.forward("flash", Q, K, V)
    watched, _ = with_trace(flashsim.forward, "flash", Q, K, V)
    assert plain._repr_html_().startswith("<table>")
    assert np.array_equal(plain.O, watched.O)
    assert plain.hbm == watched.hbm


def test_counting_and_too_long_a_run_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="every turn"):
        flashsim.count("flash", N=64, d=4, M=64, observers=[Recorder()])
    monkeypatch.setattr(recording, "MOST_EVENTS", 50)
    with pytest.raises(ValueError, match="more than 50 events"):
        recorded()


# --------------------------------------------------------------------------------------------------
# heads


def test_a_head_is_chosen_with_its_kv_head() -> None:
    Q, _, _ = operands(13, 4, leading=(2, 4))
    _, K, V = operands(13, 4, leading=(2, 2), seed=1)
    trace = flashsim.trace("flash", Q, K, V, head=(1, 3), M=64)
    alone = flashsim.trace("flash", Q[1, 3], K[1, 1], V[1, 1], M=64)
    assert same(trace, alone)
    with pytest.raises(ValueError, match="head="):
        flashsim.trace("flash", Q, K, V)


def test_of_many_heads_a_run_keeps_the_first_and_grouped_ones_are_one_problem() -> None:
    Q, K, V = operands(13, 4, leading=(3,))
    run, run_trace = with_trace(flashsim.forward, "flash", Q, K, V, M=64)
    first = flashsim.trace("flash", Q[0], K[0], V[0], M=64)
    assert same(run_trace, first)
    assert run.hbm.reads == 3 * run_trace.events[-1].reads
    Q, _, _ = operands(7, 4, leading=(4,))
    _, K, V = operands(7, 4, leading=(2,))
    run, run_trace = with_trace(
        flashsim.forward, "flash", Q, K, V, M=64, gqa="grouped", causal=True
    )
    assert run_trace.about.shape.N_q == 14
    assert run.hbm.reads == 2 * run_trace.events[-1].reads
    assert all(array.exact == (array.reads, array.writes) for array in run_trace.about.arrays)


# --------------------------------------------------------------------------------------------------
# steps


def test_a_step_is_a_line_in_a_turn() -> None:
    trace = recorded("flash_basic", 64, 16, (8, 8))
    assert len(trace.steps) == 1 + 8 + 8 * 8 * 6
    labels = [step.label for step in trace.steps]
    assert labels[:8] == [
        "line 2",
        "line 6",
        "line 8",
        "line 9",
        "line 10",
        "line 11",
        "line 12",
        "line 13",
    ]
    covered: list[int] = []
    for step in trace.steps:
        covered += range(step.first, step.last + 1)
    kinds = ("init", "load", "compute", "store")
    assert covered == [n for n, event in enumerate(trace.events) if event.kind in kinds]


@pytest.mark.parametrize(("name", "direction"), PASSES)
def test_steps_show_what_a_record_follows(name: str, direction: str) -> None:
    """Each quantity that a record says is followed occurs, with as many rows as the rows, or
    keys, that are on chip.
    """
    record = recorded if direction == "forward" else recorded_backward
    trace = record(name, causal=name != "flash_basic")
    kinds = dict(trace.about.follows)
    assert tuple(kinds) == (FORWARD if direction == "forward" else BACKWARD)[name].follows
    output = set()
    for step in trace.steps:
        for quantity, pair in step.pairs.items():
            span = step.cols if kinds[quantity][0] == "N_k" else step.rows
            for tile in pair:
                if tile is not None:
                    output.add(quantity)
                    assert span is None or len(tile) == span[1] - span[0]
    assert output == set(kinds)


def test_a_scratch_of_one_block_of_rows_does_not_say_which_rows_are_on_chip() -> None:
    trace = recorded("small_cache")
    (kind,) = (array.kind for array in trace.about.arrays if array.name == "S")
    assert kind == ("", "N_k")
    steps = [step for step in trace.steps if step.tile]
    assert steps
    for step in steps:
        assert step.tile is not None
        assert step.tile[0] == dict(step.loops)["i"]


def test_a_user_s_lines_have_their_numbers_and_their_text() -> None:
    """Without labels: what MASK loads is at the user's line that called it, too."""

    def mine(hbm: Any, sram: Any, Q: Any, K: Any, V: Any, blocks: Any, MASK: Any) -> Any:
        O = hbm.empty("O", (Q.shape[0], V.shape[1]), V.dtype, "output").divide(blocks.B_r)
        Q = Q.divide(blocks.B_r)
        for i in sram.loop(blocks.T_r):
            S_ij = sram.on_chip(sram.load(Q[i]) @ sram.load(K[0]).T)
            masked = sram.on_chip(MASK(S_ij, i, 0))
            P = sram.on_chip(np.exp(masked), over=masked)
            O_i = sram.on_chip(P @ sram.load(V[0]) / P.sum(axis=1, keepdims=True))
            sram.store(O[i], O_i)
        return O

    first = mine.__code__.co_firstlineno
    Q, K, V = operands(6, 2)
    mask = np.ones((6, 6), bool)
    trace = flashsim.trace(mine, Q, K, V, blocks=(3, 6), M=200, mask=mask)
    index = {
        event.name: event.label
        for event in trace.events
        if event.kind in ("load", "store", "compute")
    }
    assert index["Q[0]"] == index["S_ij"] == f"line {first + 4} of test_trace.py"
    assert index["mask[0, 0]"] == index["masked"] == f"line {first + 5} of test_trace.py"
    assert index["O[1]"] == f"line {first + 8} of test_trace.py"
    printed = "\n".join(text.lines(trace))
    assert (
        f"line {first + 5} of test_trace.py · i = 1\n    masked = sram.on_chip(MASK(S_ij, i, 0))\n"
        in printed
    )
    ledger = Ledger()
    flashsim.count(mine, N=6, d=2, blocks=(3, 6), M=200, observers=[ledger])
    want = set()
    for line, array in ((4, "Q"), (4, "K"), (7, "V"), (8, "O")):
        want.add((f"line {first + line} of test_trace.py", array))
    assert {(movement.label, movement.array) for movement in ledger.movements} == want


def test_a_line_that_loads_and_computes_makes_two_steps() -> None:
    steps = recorded("standard").steps[:4]
    assert {step.label for step in steps} == {"line 1"}
    tiles = [step.tile for step in steps]
    assert tiles == [None, (0, 0), (0, 0), (0, 1)]


@pytest.mark.parametrize("name", ["flash", "block_sparse", "q_outer"])
@given(seed=st.integers(0, 99), n_k=st.integers(3, 14), causal=st.booleans())
def test_tiles_and_maxima_are_those_of_the_scores(
    name: str, seed: int, n_k: int, causal: bool
) -> None:
    """Every (i, j) is visited as the loops go; a step's moves are those of the running maximum
    of the scores.
    """
    Q, K, V = operands(13, 4, n_k=n_k, seed=seed)
    options: Arguments = {"block_mask": patterns.butterfly} if name == "block_sparse" else {}
    options |= {"sizing": Fixed(3, 5, enforced=False), "M": 64}
    trace = flashsim.trace(name, Q, K, V, causal=causal, **options)
    allowed = np.ones((13, n_k), bool)
    if causal:
        allowed = np.arange(n_k) <= np.arange(13)[:, None] + n_k - 13
    m = np.full(13, -np.inf)
    visits = []
    for step in trace.steps:
        inside = trace.events[step.first : step.last + 1]
        made = [event for event in inside if event.name == "m_i_new"]
        if not made:
            assert (step.moved, step.rescaled) == (0, 0)
            continue
        assert step.tile is not None
        i, j = step.tile
        visits.append((i, j))
        rows = slice(3 * i, min(3 * i + 3, 13))
        cols = slice(5 * j, min(5 * j + 5, n_k))
        assert step.rows == (rows.start, rows.stop)
        assert step.cols == (cols.start, cols.stop)
        scores = Q[rows] / np.float32(2) @ K[cols].T
        S = np.where(allowed[rows, cols], scores, -np.inf)
        new = np.maximum(m[rows], S.max(axis=1))
        old_seen, new_seen = step.pairs["m"]
        assert old_seen is not None
        assert new_seen is not None
        np.testing.assert_allclose(old_seen[:, 0], m[rows], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(new_seen[:, 0], new, rtol=1e-5, atol=1e-5)
        rises = new > m[rows]
        assert step.moved == rises.sum()
        assert step.rescaled == (rises & (m[rows] > -np.inf)).sum()
        m[rows] = new
    T_c = -(-n_k // 5)
    if name == "flash":
        assert visits == [(i, j) for j in range(T_c) for i in range(5)]
    if name == "block_sparse":
        assert sorted(visits) == [
            tuple(index) for index in np.argwhere(patterns.butterfly(5, T_c)).tolist()
        ]
    if name == "q_outer":
        live = []
        for i, j in itertools.product(range(5), range(T_c)):
            tile = allowed[3 * i : 3 * i + 3, 5 * j : 5 * j + 5]
            if tile.any():
                live.append((i, j))
        assert visits == live


@pytest.mark.parametrize("name", ["flash", "q_outer"])
def test_old_and_new_of_a_tile_follow_from_each_other(name: str) -> None:
    trace = recorded(name)
    done: dict[tuple[int, str], Array] = {}
    for step in trace.steps:
        if step.label != "line 16":
            continue
        assert step.tile is not None
        for quantity in ("m", "l", "O"):
            old, new = step.pairs[quantity]
            assert old is not None
            assert new is not None
            key = step.tile[0], quantity
            start = -np.inf if quantity == "m" else 0.0
            assert np.array_equal(old, done.get(key, np.full_like(old, start)))
            done[key] = new


# --------------------------------------------------------------------------------------------------
# backward


def test_a_backward_pass_is_traced_by_either_name_for_it() -> None:
    Q, K, V = operands(13, 4)
    run = flashsim.forward("flash", Q, K, V, M=64, causal=True)
    made, made_trace = with_trace(flashsim.backward, "flash", run, gradient(13, 4))
    by_trace = flashsim.trace("flash", Q, K, V, dO=gradient(13, 4), M=64, causal=True)
    assert same(made_trace, by_trace)
    plain = flashsim.backward("flash", run, gradient(13, 4))
    assert plain._repr_html_().startswith("<table>")
    assert np.array_equal(plain.dQ, made.dQ)
    assert plain.hbm == made.hbm
    assert made_trace._repr_html_().startswith(
        '<iframe sandbox="allow-scripts allow-downloads" srcdoc="'
    )
    with pytest.raises(ValueError, match="backward pass here"):
        flashsim.trace("flash_basic", Q, K, V, dO=gradient(13, 4), M=64)


@pytest.mark.parametrize("name", ["flash", "q_outer"])
def test_a_backward_pass_goes_through_its_tiles_key_block_by_key_block(name: str) -> None:
    trace = recorded_backward(name)
    assert [s.tile for s in trace.steps if s.label == "line 20"] == [
        (i, j) for j in range(3) for i in range(5)
    ]
    for step in trace.steps:
        assert step.moved == 0
        assert step.rescaled == 0


@pytest.mark.parametrize(
    "name", ["flash", "block_sparse", "q_outer", "q_outer_two_pass", "standard"]
)
def test_old_and_new_gradients_follow_from_each_other(name: str) -> None:
    """dQ of a row block and dK, dV of a key block: each old is the new before, from 0 on, and
    the last new is the result.
    """
    options: Arguments = {"block_mask": patterns.butterfly} if name == "block_sparse" else {}
    Q, K, V = operands(13, 4)
    sizing = Fixed(3, 5, enforced=False)
    dO = gradient(13, 4)
    forward_name = BACKWARD[name].forward_pass
    run = flashsim.forward(forward_name, Q, K, V, M=64, sizing=sizing, **options)
    made, made_trace = with_trace(flashsim.backward, name, run, dO)
    for array, keys in (("dQ", False), ("dK", True), ("dV", True)):
        done = np.zeros((13, 4), np.float32)
        times = 0
        for step in made_trace.steps:
            inside = made_trace.events[step.first : step.last + 1]
            old, new = step.pairs.get(array, (None, None))
            if new is None or not any(
                event.kind == "compute" and event.value is new for event in inside
            ):
                continue
            # zeros, set before what is on chip says of which rows they are
            if step.rows is None or step.cols is None:
                assert not new.any()
                continue
            block = slice(*(step.cols if keys else step.rows))
            assert old is not None
            assert np.array_equal(old, done[block])
            done[block] = new
            times += 1
        assert times >= 9
        assert np.array_equal(done, getattr(made, array))


def test_what_left_the_chip_is_no_longer_shown_and_D_is_for_its_rows() -> None:
    dO = gradient(13, 4)
    sizing = Fixed(3, 5, enforced=False)
    O = flashsim.forward("flash", *operands(13, 4), M=64, sizing=sizing).O
    for step in recorded_backward().steps:
        number = int((step.label or "line 0").split()[1])
        expected = (
            {"dK", "dV"}
            | ({"dQ"} if number < 24 else set())
            | ({"D"} if 19 <= number < 24 else set())
        )
        if number >= 10:
            assert set(step.pairs) == expected, step
        if number == 20:
            assert step.rows is not None
            rows = slice(*step.rows)
            new = step.pairs["D"][1]
            assert new is not None
            D = (dO[rows] * O[rows]).sum(axis=1)
            np.testing.assert_allclose(new[:, 0], D, rtol=1e-5, atol=1e-6)


def test_a_head_s_gradients_are_traced_with_its_own_part() -> None:
    Q, _, _ = operands(13, 4, leading=(2, 4))
    _, K, V = operands(13, 4, leading=(2, 2), seed=1)
    dO = gradient(13, 4, (2, 4))
    trace = flashsim.trace("flash", Q, K, V, dO=dO, head=(1, 3), M=64)
    alone = flashsim.trace("flash", Q[1, 3], K[1, 1], V[1, 1], dO=dO[1, 3], M=64)
    assert same(trace, alone)
    run = flashsim.forward("flash", Q, K, V, M=64)
    _, of_all_trace = with_trace(flashsim.backward, "flash", run, dO)
    first = flashsim.trace("flash", Q[0, 0], K[0, 0], V[0, 0], dO=dO[0, 0], M=64)
    assert same(of_all_trace, first)
    run = flashsim.forward("flash", Q, K, V, M=64, gqa="grouped")
    grouped, grouped_trace = with_trace(flashsim.backward, "flash", run, dO)
    assert grouped_trace.about.shape.N_q == 26
    assert grouped.hbm.reads == 4 * grouped_trace.events[-1].reads
    assert all(array.exact == (array.reads, array.writes) for array in grouped_trace.about.arrays)


@pytest.mark.parametrize(
    ("head", "text"),
    [
        ([], r"\[\]"),
        (1.5, "1.5"),
        ((0, 1.0), r"\(0, 1.0\)"),
        ("0", "'0'"),
        (True, "True"),
        ((0, -1), r"\(0, -1\)"),
        ((0, 2), ""),
    ],
)
def test_a_head_that_is_none_is_refused(head: Any, text: str) -> None:
    Q = np.ones((1, 2, 3, 2), np.float32)
    with pytest.raises(
        ValueError, match=rf"head is {text}.*; expected an index into Q's leading axes \(1, 2\)"
    ):
        flashsim.trace("flash", Q, Q, Q, head=head)


def test_operands_are_checked_before_a_head_is_taken() -> None:
    heads = np.ones((1, 2, 3, 2), np.float32)
    X = heads[0, 0]
    assert flashsim.trace("flash", X, X, X, head=()).steps  # of no leading axes: the only one
    for Q, K, options, message in (
        (heads, X, {"head": (0, 1)}, "leading axes must be equal"),
        (
            heads,
            heads,
            {"dO": X, "head": (0, 1)},
            r"dO has shape \(3, 2\); expected that of O, \(1, 2, 3, 2\)",
        ),
        (X, X, {"dO": np.ma.masked_array(X, mask=X > 0)}, "dO is a masked array"),
        (X, X, {"dO": [[1], [1, 2]]}, r"dO is \[\[1\], \[1, 2\]\]; expected an array"),
    ):
        with pytest.raises(ValueError, match=message):
            flashsim.trace("flash", Q, K, K, **options)


# --------------------------------------------------------------------------------------------------
# files


@pytest.mark.parametrize("name", ["standard", "split_kv", "flash, backward"])
def test_a_file_brings_the_trace_back(name: str, tmp_path: Path) -> None:
    name, _, backward = name.partition(", ")
    trace = (
        recorded_backward(name, causal=True, dropout_p=0.3)
        if backward
        else recorded(name, causal=True, n_k=17)
    )
    path = trace.save(tmp_path / "run.json.gz")
    back = flashsim.load_trace(path)
    assert same(back, trace)
    for mine, read in zip(trace.steps, back.steps, strict=True):
        assert replace(mine, pairs={}) == replace(read, pairs={})
        np.testing.assert_equal(dict(mine.pairs), dict(read.pairs))
    assert path.read_bytes() == back.save(tmp_path / "again.json.gz").read_bytes()


def test_float64_and_bfloat16_values_survive(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in (np.float64, ml_dtypes.bfloat16):
        Q, K, V = (array.astype(dtype) for array in operands(7, 3))
        trace = flashsim.trace("flash", Q, K, V, M=48)
        assert same(flashsim.load_trace(trace.save(tmp_path / "x.json.gz")), trace)


@pytest.mark.parametrize(("queries", "keys"), [(0, 3), (3, 0)])
def test_a_batch_without_queries_or_without_keys_comes_back(
    queries: int, keys: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    Q = rng.standard_normal((1, queries, 2))
    K = rng.standard_normal((1, keys, 2))
    V = rng.standard_normal((1, keys, 2))
    run = serving.varlen(Q, K, V, [0, queries], [0, keys], M=64)
    trace = flashsim.trace(serving.varlen_backward, run, [*run.O], M=64)
    assert (trace.about.shape.N_q, trace.about.shape.N_k) == (queries, keys)
    back = flashsim.load_trace(trace.save(tmp_path / "x.json.gz"))
    assert same(back, trace)
    assert back.html() == trace.html()


def test_a_run_that_has_no_step_is_refused() -> None:
    rng = np.random.default_rng(0)
    K = rng.standard_normal((1, 3, 2))
    with pytest.raises(
        ValueError, match=r"^the run of varlen has no step: it loads, computes and "
    ):
        flashsim.trace(serving.varlen, K[:, :0], K, K, [0, 0], [0, 3], M=64)


@pytest.mark.parametrize("suffix", ["json.gz", "html"])
def test_files_say_nothing_of_the_machine(suffix: str, tmp_path: Path) -> None:
    content = recorded().save(tmp_path / f"run.{suffix}").read_bytes()
    if suffix == "json.gz":
        content = gzip.decompress(content)
    assert str(Path(flashsim.__file__).parent.parent).encode() not in content
    assert suffix == "html" or b"flashsim/algorithms/algorithm_2_flash.py" in content


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    trace = recorded()
    with pytest.raises(ValueError, match="suffix"):
        trace.save(tmp_path / "run.txt")
    with pytest.raises(ValueError, match="one trace"):
        trace.save(tmp_path / "run.json.gz", versus=trace)
    file = trace.save(tmp_path / "run.json.gz")
    good = json.loads(gzip.decompress(file.read_bytes()))
    lacking = {name: good[name] for name in good if name != "events"}
    unequal = good | {"values": good["values"][:64]}
    bad = {
        "newer": gzip.compress(json.dumps(good | {"version": 3}).encode()),
        "older": gzip.compress(json.dumps(good | {"version": 1}).encode()),
        "other": gzip.compress(b'{"format": "another"}'),
        "list": gzip.compress(b"[]"),
        "cut": gzip.compress(json.dumps(good).encode())[:500],
        "empty": b"",
        "plain": json.dumps(good).encode(),
        "lacking": gzip.compress(json.dumps(lacking).encode()),
        "unequal": gzip.compress(json.dumps(unequal).encode()),
    }
    for name, content in bad.items():
        path = tmp_path / f"{name}.json.gz"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name}\.json\.gz cannot be read as a trace"):
            flashsim.load_trace(path)
    with pytest.raises(ValueError, match=r"expected \.json\.gz$"):
        flashsim.load_trace(tmp_path / "run.html")


# --------------------------------------------------------------------------------------------------
# page


def in_page(html: str) -> Any:
    """Return what a page holds, as the browser unpacks it."""
    packed = html.split('<script id="trace" type="text/plain">')[1].split("</script>")[0]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_few_steps_keep_values_and_many_drop_them_and_say_so() -> None:
    (few,) = in_page(recorded().html())
    assert few["shapes"]
    assert few["about"]["notes"] == []
    trace = recorded("flash", 256, 4, (16, 16), causal=True)
    assert len(trace.steps) > page.MOST_STEPS
    (many,) = in_page(trace.html())
    assert many["shapes"] == []
    assert many["values"] == ""
    assert set(many["events"]["value"]) == {-1}
    assert f"{len(trace.steps):,} steps are more than 2,000" in many["about"]["notes"][0]
    assert many["steps"]["moved"] == [step.moved for step in trace.steps]
    assert any(event.value is not None for event in trace.events)


def test_the_command_says_when_values_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few, many = (
        ["step", "--n", str(n), "--blocks", "8", "8", "-o", str(tmp_path / "page.html")]
        for n in (16, 128)
    )
    assert main(few) == 0
    assert "left out" not in capsys.readouterr().out
    assert main(many) == 0
    out = capsys.readouterr().out
    assert "Values of tiles are left out: 2,065 steps are more than 2,000" in out
    assert "All values: -o FILE.json.gz;" in out


def test_a_large_page_drops_values_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "LARGEST_PAGE", 60_000)
    large = recorded("flash", 40, 8, (8, 8))
    (data,) = in_page(large.html())
    assert data["shapes"] == []
    assert "MB" in data["about"]["notes"][0]


def test_the_page_s_size_is_as_studied() -> None:
    """The study: 74 kB and 0.9 MB, trace alone. With the player's own 97 kB and exact values it
    is 0.25 and 1.35 MB.
    """
    assert len(recorded("flash_basic", 64, 16, (8, 8)).html()) < 260_000
    assert len(recorded("flash_basic", 256, 16, (16, 16)).html()) < 1_400_000


def test_a_run_shows_itself_in_a_sandboxed_frame() -> None:
    Q, K, V = operands(7, 3)
    output = flashsim.trace("flash", Q, K, V, M=48)._repr_html_()
    assert output is not None
    assert output.startswith('<iframe sandbox="allow-scripts allow-downloads" srcdoc="')
    assert "allow-same-origin" not in output
    assert (
        output.count('"') == 8
    )  # four attributes: nothing of the page ends the attribute it is in
    words = re.sub("<[^>]*>", "", output)  # what is left where frames are not allowed
    assert words.startswith("Step player: Algorithm 2, FlashAttention, complete. ")
    assert "trust the notebook" in words


def test_listings_are_found() -> None:
    assert any("where M_ij ≠ 0" in line for line in recorded_backward("block_sparse").about.listing)
    assert listing_of("A module.\n\nIt has no listing.\n") == ()
    continued = (
        "A module.\n\n    Require: Q\n    1 S = Q Kᵀ,\n      masked\n    2 return S\n\nIts end."
    )
    assert listing_of(continued) == ("Require: Q", "1 S = Q Kᵀ, masked", "2 return S")


# --------------------------------------------------------------------------------------------------
# bugs and the CLI


@pytest.mark.parametrize(
    ("direction", "bug"),
    [("forward", bug) for bug in BUGS] + [("backward", bug) for bug in BACKWARD_BUGS],
)
def test_a_planted_bug_is_in_the_copy_and_not_in_the_original(direction: str, bug: str) -> None:
    Q, K, V = operands(13, 4)
    backward = direction == "backward"
    options: Arguments = {
        "M": 64,
        "sizing": "paper",
        "causal": True,
        "dO": gradient(13, 4) if backward else None,
    }
    right = flashsim.trace("flash", Q, K, V, **options)
    wrong = flashsim.trace(with_bug("flash", bug, direction), Q, K, V, **options)
    assert (BACKWARD_BUGS if backward else BUGS)[bug][0] in wrong.about.title
    assert not same(right, wrong)
    assert same(right, flashsim.trace("flash", Q, K, V, **options))
    assert any("with" in file for file, _, _ in wrong.about.source)  # the copy's source is its own
    assert not backward or any(event.name == "dQ_i_new" for event in wrong.events)
    if bug not in ("no_tau", "overwrite"):
        with pytest.raises(ValueError, match="no place in 'standard'"):
            with_bug("standard", bug, direction)
    with pytest.raises(ValueError, match="unknown bug"):
        with_bug("flash", "none", direction)
    if backward:
        with pytest.raises(ValueError, match="has no backward pass"):
            with_bug("split_kv", bug, direction)


@pytest.mark.parametrize(
    ("options", "titles"),
    [
        ("--algorithm flash --n 12 --d 4 --blocks 3 4 --causal", ["Algorithm 2, FlashAttention"]),
        (
            "--causal --vs q_outer",
            ["Algorithm 2, FlashAttention", "FlashAttention, loops exchanged"],
        ),
        ("--bug no_rescale", ["Algorithm 2, FlashAttention", "not rescaled"]),
        ("--backward --blocks 3 4", ["Algorithm 4, FlashAttention, backward"]),
        (
            "--backward --algorithm q_outer_two_pass --blocks 3 4",
            ["FlashAttention, loops exchanged, backward in two passes"],
        ),
        (
            "--backward --vs standard",
            ["Algorithm 4, FlashAttention, backward", "Algorithm 3, standard attention, backward"],
        ),
        ("--backward --bug overwrite", ["Algorithm 4, FlashAttention, backward", "overwritten"]),
        (
            "--backward block_sparse --block-mask butterfly --vs flash",
            ["Algorithm 5", "Algorithm 4, FlashAttention, backward"],
        ),
    ],
)
def test_step_writes_a_page(
    options: str, titles: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.html"
    assert main(["step", *options.split(), "-o", str(path)]) == 0
    data = in_page(path.read_text(encoding="utf-8"))
    for trace, title in zip(data, titles, strict=True):
        assert title in trace["about"]["title"]
    first = data[0]
    assert f"{len(first['steps']['first'])} steps" in capsys.readouterr().out
    assert first["about"]["command"].startswith(f"flashsim step {options}")
    if "--blocks" in options:
        blocks = first["about"]["blocks"]
        assert (blocks["B_r"], blocks["B_c"]) == (3, 4)
    if "butterfly" in options:
        assert len(first["steps"]["first"]) < len(data[1]["steps"]["first"])


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--blocks 3 4 --causal",
        "--algorithm standard",
        "--backward",
        "--backward --algorithm q_outer_two_pass",
        "--backward --algorithm block_sparse --block-mask butterfly",
        "--qkv x.npz --dropout 0.2",
        "--vs q_outer",
    ],
)
def test_step_fits_the_memory_it_shows(
    options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Q, K, V = operands(13, 4)
    np.savez("x.npz", q=Q, k=K, v=V)
    for trace in filter(None, step_recorded(parse(["step", *options.split()]))):
        assert max(event.occupancy for event in trace.events) <= trace.about.M
        assert trace.about.blocks.T_c >= 3


def test_step_shows_the_paper_s_blocks_if_asked() -> None:
    trace, _ = step_recorded(parse(["step", "--sizing", "paper"]))
    assert max(event.occupancy for event in trace.events) > trace.about.M == 48


def test_step_opens_the_page_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.chdir(tmp_path)
    assert main(["step", "--open"]) == 0
    assert opened == [(tmp_path / "flashsim-step.html").as_uri()]


def test_step_s_gradient_is_random_by_the_seed(tmp_path: Path) -> None:
    def dO(*arguments: str) -> Array:
        out = tmp_path / "x.json.gz"
        assert main(["step", "--backward", *arguments, "-o", str(out)]) == 0
        loads = [event for event in flashsim.load_trace(out).events if event.array == "dO"]
        values = [event.value for event in loads[:4] if event.value is not None]
        return np.concatenate(values)

    assert np.array_equal(dO(), dO("--causal"))
    assert not np.array_equal(dO(), dO("--seed", "1"))
    assert abs(dO()).max() > 0


def test_step_prints_gradients_where_they_change(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--n", "6", "--d", "2", "--blocks", "3", "3"]
    assert main(["step", "--backward", *sizes, "--text"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\nstep ") == 1 + 2 * (2 + 2 * 12 + 1)
    steps = {part.split(" · ")[0]: part for part in printed.split("\nstep ")}
    assert "line 21 · j = 1, i = 2" in steps["25"]
    assert "    dQ  row 3:  0 0 → " in steps["25"]
    assert "    D  → " in steps["25"]
    assert "dK" not in steps["25"].split("to HBM.")[1]
    assert "    dK  key 0:  " in steps["26"]
    assert "dQ  row" not in steps["26"]
    assert "standard attention's backward pass makes" in printed
    assert "closed form 24 and 36" in printed  # dQ: read twice, written twice and initialised


def test_step_reads_a_head_of_a_file(tmp_path: Path) -> None:
    Q, K, V = operands(13, 4, leading=(4,))
    np.savez(tmp_path / "x.npz", q=Q, k=K, v=V)
    out = tmp_path / "run.json.gz"
    file = str(tmp_path / "x.npz")
    command = ["step", "--qkv", file, "--head", "3", "--M", "64"]
    assert main([*command, "-o", str(out)]) == 0
    read = flashsim.load_trace(out)
    made = flashsim.trace("flash", Q[3], K[3], V[3], M=64, sizing="fit")
    assert same(replace(read, about=replace(read.about, command="")), made)


def test_step_prints_the_same_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["step", "--n", "6", "--d", "2", "--blocks", "3", "3", "--text"]) == 0
    printed = capsys.readouterr().out
    trace_steps = printed.count("\nstep ")
    assert trace_steps == 1 + 2 + 2 * 2 * 8
    assert "step 9 · line 16 · j = 1, i = 1" in printed
    assert "e^(m − m_new) = " in printed
    assert "closed form 24 and 36" in printed


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--text", "--open"], "--text prints one run"),
        (["--bug", "none"], "unknown bug"),
        (["--backward", "--bug", "no_rescale"], "unknown bug 'no_rescale' of a backward pass"),
        (["--bug", "no_D"], "unknown bug 'no_D' of a forward pass"),
        (["--backward", "--algorithm", "split_kv"], "'split_kv' has no backward pass here"),
        (["--backward", "--vs", "flash_basic"], "'flash_basic' has no backward pass here"),
        (["--algorithm", "q_outer_two_pass"], "is a backward pass only, of 'q_outer'"),
        (["--head", "3"], "--head goes with --qkv"),
        (["--n", "0"], "--n"),
        (["--open", "-o", "x.json.gz"], "--open shows a page"),
        (["--blocks", "3", "4", "--M", "20"], "does not fit"),
    ],
)
def test_step_refuses(
    arguments: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["step", *arguments]) == 2
    assert text in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_saved_is_refused_before_it_is_recorded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("flashsim.cli.step.recorded", lambda options: pytest.fail("recorded"))
    assert main(["step", "-o", "x.txt"]) == 2
    assert "x.txt has no suffix that says a trace's format" in capsys.readouterr().err
    assert main(["step", "-o", "x.json.gz", "--vs", "q_outer"]) == 2
    assert "the comparison of two is a page: expected .html" in capsys.readouterr().err


def test_lines_on_chip_are_spelled_and_others_are_not() -> None:
    lines = [
        "    S_ij = on_chip(tau * Q_i @ K_j.T)",
        "    O_i[0] = on_chip(exp(m_i) + 1, over=O_i)",
        "    x = Q_i",
    ]
    Q_i = ["name", "Q_i", "Q"]
    K_j = ["name", "K_j", "K"]
    product = ["@", ["*", ["name", "tau", "tau"], Q_i], ["T", K_j]]
    e_to_m = ["call", "exp", [["name", "m_i", "m"]]]
    total = ["+", e_to_m, ["number", 1.0]]
    assert list(spelled([("a.py", 7, lines), ("b.py", 1, ["no Python"])])) == [
        ("a.py", 7, 7, "S_ij", product),
        ("a.py", 8, 8, "O_i", total),
    ]

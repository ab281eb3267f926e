"""What `tune` finds is what trying every block size finds; it fits; and the pictures say so."""

import itertools
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashsim
from flashsim import Causal, SlidingWindow, plots, theory
from flashsim.algorithms import PASSES
from flashsim.algorithms.record import Direction
from flashsim.analysis.tune import best_of, sides, tune
from flashsim.attention.problem import Problem
from flashsim.attention.shapes import Blocks, Shape
from flashsim.cli import main
from flashsim.memory.errors import SramOverflow
from flashsim.theory.form import FormAtProblem
from flashsim.theory.problem import OneHead
from tests.helpers.cases import Arguments
from tests.helpers.own import FORM, TWO_SWEEPS, module_of, two_sweeps

UNMASKED: Arguments = {"causal": False, "mask": None}


def by_trying_all(name: Any, least: int, options: dict[str, Any]) -> int | None:
    """Run every pair of block sizes on shapes, M enforced, and return the fewest accesses."""
    counts = []
    if name == "flash" and (options["causal"] or options["mask"] is not None):
        name = "block_sparse"
        options = {**options, "block_mask": "live"}
    N_q = options["N_q"]
    N_k = options["N_k"]
    rows = range(min(least, N_q), N_q + 1)
    columns = range(min(least, N_k), N_k + 1)
    for blocks in itertools.product(rows, columns):
        try:
            # all tiles must fit
            flashsim.count(name, **{**options, **UNMASKED, "block_mask": None}, blocks=blocks)
            counts.append(flashsim.count(name, **options, blocks=blocks).hbm.accesses)
        except SramOverflow:
            continue
    return min(counts, default=None)


def test_least_is_kept_where_V_is_narrower() -> None:
    tuned = tune(N_q=15, N_k=9, d=5, d_v=1, M=86, least=2).by_loops
    for choice in tuned.values():
        assert choice.blocks.B_r >= 2
        assert choice.blocks.B_c >= 2


@pytest.mark.parametrize("direction", PASSES)
def test_a_search_s_quick_numbers_are_those_of_all_counts(direction: Direction) -> None:
    shape = Shape(13, 9, 5, 3)
    how: Arguments = {"M": 60, "dtype": "float16", "direction": direction}
    options: list[dict[str, Any]] = []
    for p, mask in itertools.product((0.0, 0.5), (None, SlidingWindow(2, 1))):
        options.append({"dropout_p": p, "mask": mask})
    for name, more in itertools.product(PASSES[direction], options):
        form = theory.form_of(name, direction)
        if form.plain and (more["dropout_p"] or more["mask"]):
            continue
        own = {option.name: option.default for option in form.options}
        posed = FormAtProblem.of(
            form, Problem.of(**vars(shape), M=60, dtype="float16", **more), own
        )
        for blocks in itertools.product((1, 4, 20), (1, 2, 20)):
            one = (name, blocks, more)
            want = theory.exact(name, **vars(shape), **how, blocks=blocks, **more)
            assert posed.accesses(*blocks) == want.accesses, one
            assert more["mask"] or posed.peak(*blocks) == want.sram.peak, one


@pytest.mark.parametrize("causal", [False, True])
def test_a_search_poses_its_problem_once_an_algorithm_and_not_in_all_blocks(
    causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems_made = mock.Mock(wraps=OneHead.__post_init__)
    forms = mock.Mock(wraps=FormAtProblem.accesses)
    monkeypatch.setattr(OneHead, "__post_init__", lambda p: problems_made(p))
    monkeypatch.setattr(FormAtProblem, "accesses", lambda one, *blocks: forms(one, *blocks))
    tuned = tune(N=2048, d=64, M=4096, causal=causal)
    assert forms.call_count > 1_000
    assert problems_made.call_count < 10 * len(tuned.by_loops)


@given(data=st.data())
def test_no_block_sizes_move_less(data: st.DataObject) -> None:
    N_q = data.draw(st.integers(1, 7))
    N_k = data.draw(st.integers(1, 7))
    d = data.draw(st.integers(1, 6))
    d_v = data.draw(st.integers(1, 6))
    options: Arguments = {
        "N_q": N_q,
        "N_k": N_k,
        "d": d,
        "d_v": d_v,
        "M": data.draw(st.integers(5, 250)),
    }
    options |= {
        "causal": data.draw(st.booleans()),
        "direction": data.draw(st.sampled_from(("forward", "backward"))),
    }
    masks = (None, None, Causal(offset=0), Causal(offset=3), SlidingWindow(2, 1))
    options["mask"] = data.draw(st.sampled_from(masks))
    options["dropout_p"] = data.draw(st.sampled_from((0.0, 0.5)))
    least = data.draw(st.integers(1, 4))
    # passes of one row each, fewer than `least`
    by_rows = {"q_outer_streamed": max(N_q, N_k), "q_outer_stored": N_q}
    if options["direction"] == "backward":
        by_rows |= {"hybrid_streamed": N_q, "streamed": N_q}
    candidates = [
        name
        for name, algorithm in PASSES[options["direction"]].items()
        if algorithm.loops and (least == 1 or by_rows.get(name, 1) == 1)
    ]
    every = {name: by_trying_all(name, least, options) for name in candidates}
    want = {name: accesses for name, accesses in every.items() if accesses is not None}
    if not want:
        with pytest.raises(ValueError, match="is too small: no algorithm here fits it"):
            tune(**options, least=least)
        return
    tuned = tune(**options, least=least)
    assert tuned.by_loops.keys() == want.keys()
    for name, choice in tuned.by_loops.items():
        assert choice.accesses >= want[name], name
        every_size = name != "snake" and (least == 1 or name not in ("q_outer_pinned", "streamed"))
        best_too = name not in ("q_outer_two_pass", "q_outer_streamed", "q_outer_stored")
        causal = options["causal"] and least == 1 and best_too
        if options["mask"] is None and every_size and (causal or not options["causal"]):
            assert choice.accesses == want[name], name
        assert choice.peak <= options["M"]
        assert choice.blocks.B_r >= min(least, N_q)
        assert choice.blocks.B_c >= min(least, N_k)
    assert tuned.best.accesses == min(choice.accesses for choice in tuned.by_loops.values())


def test_panels_of_standard_attentions_backward_pass_are_of_queries_and_of_keys() -> None:
    """Of rows that make as few panels of queries, the fewest need not make as few of keys."""
    options: Arguments = {
        "N_q": 5,
        "N_k": 4,
        "d": 1,
        "d_v": 1,
        "M": 9,
        "direction": "backward",
        **UNMASKED,
    }
    assert (
        tune(**options).by_loops["standard"].accesses
        == by_trying_all("standard", 1, options)
        == 184
    )


def test_pieces_of_gradients_are_of_d_and_of_d_v() -> None:
    """Blocks of 4 keys make as many as of 3, and Q and K one piece of d = 4 columns, not two."""
    options: Arguments = {
        "N_q": 11,
        "N_k": 5,
        "d": 4,
        "d_v": 5,
        "M": 27,
        "direction": "backward",
    }
    tuned = tune(**options).by_loops["small_cache"]
    assert (tuned.blocks.B_c, tuned.accesses) == (4, 1406)
    assert by_trying_all("small_cache", 1, {**options, **UNMASKED}) == 1406


def test_sides_are_the_smallest_of_each_number_of_blocks() -> None:
    for N, least in itertools.product((1, 2, 3, 10, 97, 100, 128), (1, 2, 16)):
        sizes = range(min(least, N), N + 1)
        want = set()
        for size in sizes:
            number = -(-N // size)
            want.add(min(B for B in sizes if number == -(-N // B)))
        assert list(sides(N, least)) == sorted(want), (N, least)


def test_the_readmes_case() -> None:
    """N = 1024, d = 64, M = 25,600: Q outermost, in tiles that fit; the paper's need 108% of M."""
    tuned = tune(N=1024, d=64, M=25_600)
    assert tuned.compulsory == 4 * 1024 * 64
    q_outer = tuned.by_loops["q_outer"]
    best = tuned.best
    assert q_outer.blocks.T_r == 6  # six row blocks, each of which streams K and V: 2Nd + 6·2Nd + N
    assert q_outer.accesses == 2 * 65_536 + 6 * 2 * 65_536 + 1024
    pinned = tuned.by_loops["q_outer_pinned"]
    assert pinned.blocks == best.blocks == Blocks(171, 1, N_q=1024, N_k=1024)
    # 171 rows leave room for 22 of K, V
    assert pinned.accesses == q_outer.accesses - 5 * 22 * 2 * 64
    assert best.algorithm == "streamed"
    # without two of three statistics, and K_j, V_j, for 26
    assert best.accesses == q_outer.accesses - 5 * 26 * 2 * 64
    assert tuned.bound is not None
    assert tuned.bound < best.accesses < 1.31 * tuned.bound
    assert tuned.paper["flash"].accesses == 2_406_400
    assert tuned.paper["flash"].peak == 27_776
    with pytest.raises(SramOverflow):
        # T_r = 5 does not fit, however narrow K_j
        flashsim.count("q_outer", N=1024, d=64, M=25_600, blocks=(205, 1))


def test_long_sequences_are_tuned_in_little_time_and_memory() -> None:
    """A row of K and V at a time, in T_r = ⌈N/192⌉ passes; causally, half of them, and the
    diagonal.
    """
    tuned = tune(N=65_536, d=64, M=25_600)
    assert (tuned.by_loops["q_outer"].blocks) == Blocks(192, 1, N_q=65_536, N_k=65_536)
    assert tuned.bound is not None
    assert f"{tuned.by_loops['q_outer'].accesses / tuned.bound:.3f}" == "1.047"
    # streamed: 196 rows in place of 192
    assert f"{tuned.best.accesses / tuned.bound:.3f}" == "1.025"
    longest = best_of("q_outer", N=10**14, d=64, M=25_600)
    assert longest is not None
    passes = -(-(10**14) // 192)
    once = 10**14 * (2 * 64 + 1)
    assert longest.accesses == once + passes * 2 * 10**14 * 64
    with pytest.raises(
        ValueError,
        match=r"up to 80,000,000 block sizes to try, for hours; expected at most 4,194,304",
    ):
        tune(N=4 * 10**14, d=64, M=10**12)


def test_small_cache_wins_left_of_d_squared_and_loses_right_of_it() -> None:
    for M in (128, 1024):
        assert tune(N=1024, d=64, M=M).best.algorithm == "tiles_streamed"
    for M in (2048, 4096):
        assert tune(N=1024, d=64, M=M).best.algorithm == "hybrid_streamed"
    for M in (8192, 2**18):
        tuned = tune(N=1024, d=64, M=M)
        assert tuned.best.algorithm == "streamed"
        assert tuned.by_loops["flash"].accesses < tuned.by_loops["small_cache"].accesses


def test_paper_sizes_are_absent_where_m_is_below_d() -> None:
    tuned = tune(N=64, d=32, M=20)
    assert set(tuned.by_loops) == {"small_cache", "tiles_streamed"}
    assert set(tuned.paper) == {
        "small_cache",
        "small_cache_hybrid",
        "tiles_streamed",
        "hybrid_streamed",
        "streamed",
    }
    choice = best_of("flash", N=64, d=32, M=20)
    assert choice is None


@pytest.mark.parametrize(
    ("message", "options"),
    [
        (r"algorithms is 'flash'; expected several: \['flash'\]", {"algorithms": "flash"}),
        (
            "algorithms is <function two_sweeps at .*>; expected several: ",
            {"algorithms": two_sweeps},
        ),
        ("direction is 'sideways'", {"direction": "sideways"}),
        ("least is 0; expected at least 1", {"least": 0}),
        ("M = 3 elements is too small", {"M": 3}),
        ("a length is missing", {"N": None}),
    ],
)
def test_what_is_refused(message: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=message):
        tune(**{"N": 8, "d": 4, **options})


def test_ones_own_algorithm_is_tried_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a form by running it, with one by the form: the same is found, and no block sizes
    move less.
    """
    own_algorithm = two_sweeps(tmp_path / "mine.py")
    options: Arguments = {"N_q": 9, "N_k": 7, "d": 3, "d_v": 2, "M": 60}
    tuned = tune(**options, algorithms=[own_algorithm, "rabe_staats"])
    result = tuned.by_loops["mine.py:two_sweeps"]
    assert result.accesses == by_trying_all(own_algorithm, 1, {**options, **UNMASKED})
    assert result.loops == "two_sweeps"
    assert list(tuned.by_loops) == [
        *(name for name, algorithm in PASSES["forward"].items() if algorithm.loops),
        "mine.py:two_sweeps",
        "rabe_staats",
    ]
    small: Arguments = {"N": 8, "d": 2, "M": 50}
    own_tuned = tune(**small, algorithms=[own_algorithm]).by_loops["mine.py:two_sweeps"]
    assert best_of(own_algorithm, **small) == own_tuned
    module = module_of(TWO_SWEEPS + FORM, tmp_path / "formed.py")
    monkeypatch.setitem(sys.modules, "formed", module)
    by_form = tune(**options, algorithms=[module.two_sweeps]).by_loops["formed.py:two_sweeps"]
    assert (by_form.blocks, by_form.accesses, by_form.peak) == (
        result.blocks,
        result.accesses,
        result.peak,
    )
    text = (TWO_SWEEPS + FORM).replace("2 * blocks.T_r * p.N_k", "blocks.T_r * p.N_k")
    wrong = module_of(text, tmp_path / "wrong.py")
    monkeypatch.setitem(sys.modules, "wrong", wrong)
    with pytest.raises(
        ValueError, match=r"'wrong.py:two_sweeps' makes .* accesses, .*; its closed form says"
    ):
        tune(**options, algorithms=[wrong.two_sweeps])


def test_progress_is_told() -> None:
    calls: list[tuple[int, int]] = []
    tune(N=16, d=2, M=100, on_tried=lambda done, of: calls.append((done, of)))
    number = sum(bool(algorithm.loops) for algorithm in PASSES["forward"].values())
    assert calls == [(done, number) for done in range(1, number + 1)]


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["tune", "--N", "256", "--d", "16", "--quiet", "--M"]
    assert main([*command, "2000"]) == 0
    text = capsys.readouterr().out
    assert "Fewest: streamed (K, V streamed)" in text
    assert "× the lower bound" in " ".join(text.split())
    assert "of M" in text
    assert main([*command, "2000", "--causal", "--backward", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["best"]["accesses"] == min(
        choice["accesses"] for choice in data["by_loops"].values()
    )
    assert data["command"].startswith("flashsim tune")
    assert main([*command, "3"]) == 2
    assert "is too small" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------------
# pictures


def test_the_frontier_is_of_all_block_sizes() -> None:
    data = plots.FIGURES["pareto"].data(N=24, d=4, M=300)
    for name, drawn in data["algorithms"].items():
        pairs = itertools.product(range(1, 25), range(1, 25))
        sizes: Arguments = {"N": 24, "d": 4, "M": 300}
        costs = (theory.exact(name, **sizes, blocks=blocks) for blocks in pairs)
        every = [(exact.sram.peak, exact.accesses) for exact in costs]
        for _, _, peak, accesses in drawn["frontier"]:
            assert (peak, accesses) in every
            assert not any(p <= peak and a < accesses for p, a in every)
        least = min(a for p, a in every if p <= 300)
        assert drawn["best"][3] == least
        choice = best_of(name, N=24, d=4, M=300)
        assert choice is not None
        assert choice.accesses == least


def test_backward_the_bound_is_prove_s() -> None:
    tuned = tune(N=256, d=16, M=4000, direction="backward")
    proof = flashsim.prove(N=256, d=16, M=4000, direction="backward")
    assert tuned.bound == proof.bound.accesses < tuned.best.accesses
    assert proof.best is not None
    assert proof.best.accesses == tuned.best.accesses


def test_the_bound_is_below_what_everything_moves() -> None:
    """Its order, with constant 1, and 4Nd: no counted algorithm is under either."""
    data = plots.FIGURES["cache_size"].data(N=256, d=16)
    assert data["M"][0] == 8
    assert data["M"][-1] <= 4 * 256 * 16
    for name, counts in data["series"].items():
        assert counts[-1] is not None
        for accesses, order in zip(counts, data["bound"], strict=True):
            assert accesses is None or accesses >= max(order, data["floor"]), name
    assert data["series"]["q_outer"][-1] is not None
    assert data["series"]["flash"][0] is None

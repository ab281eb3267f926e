"""One default, and what follows from it: blocks that fit, found by the closed form's peak; a
peak over M is said everywhere.
"""

import csv
import io
import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from inspect import isfunction, signature
from typing import Any, Literal

import numpy as np
import pytest

import flashsim
from flashsim import theory
from flashsim.algorithms import PASSES, Algorithm
from flashsim.algorithms.own import forward_of
from flashsim.analysis.sweeping.costs import DEFAULTS
from flashsim.attention.masks.rules import Mask
from flashsim.cli import main
from flashsim.cli.shared import DEFAULT_SIZING
from flashsim.extensions import approximate, kernels
from flashsim.simulate import matrices, planning
from flashsim.simulate.attention import AttentionPlan
from flashsim.support.sizes import largest_that_fits
from flashsim.theory import form as forms
from tests.helpers.cases import Arguments

DIRECTIONS: tuple[Literal["forward", "backward"], ...] = ("forward", "backward")

# --------------------------------------------------------------------------------------------------
# one default


def callers() -> Iterator[Callable[..., Any]]:
    """Whatever takes `sizing`."""
    yield from (flashsim.forward, flashsim.count, theory.exact, theory.exact_program)
    yield from (matrices.run_program, matrices.count_program)
    for room in (kernels, approximate, flashsim.plots):
        for name in getattr(room, "__all__", dir(room)):
            function = getattr(room, name)
            if isfunction(function) and "sizing" in _parameters(function):
                yield function


def _parameters(function: Any) -> Any:
    try:
        return signature(function).parameters
    except (TypeError, ValueError):
        return {}


@pytest.mark.parametrize(
    "function", [*callers()], ids=lambda function: f"{function.__module__}.{function.__name__}"
)
def test_blocks_that_fit_are_the_default(function: Callable[..., Any]) -> None:
    assert signature(function).parameters["sizing"].default == "fit"


def test_the_command_line_has_python_s_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert DEFAULT_SIZING == DEFAULTS["sizing"] == "fit"
    for name in ("flash", "q_outer", "standard"):
        tally = flashsim.count(name, N=1024, d=64)
        assert main(["count", name, "--N", "1024", "--d", "64", "--json", "-"]) == 0
        assert json.loads(capsys.readouterr().out)["accesses"] == tally.hbm.accesses
        sizes = ["--N", "1024", "--d", "64"]
        assert main(["sweep", name, *sizes, "--check", "0", "--csv", "-"]) == 0
        (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
        (same,) = flashsim.sweep(name, N=1024, d=64)
        assert int(row["accesses_elements"]) == same["accesses_elements"] == tally.hbm.accesses
        assert theory.exact(name, N=1024, d=64).hbm == tally.hbm
        assert not tally.sram.over
        assert tally.sram.enforced


def test_the_paper_s_blocks_are_asked_for_by_name() -> None:
    paper = flashsim.count("flash", N=1024, d=64, sizing="paper")
    fit = flashsim.count("flash", N=1024, d=64, sizing="fit")
    assert (paper.hbm.accesses, paper.sram.over) == (2_406_400, 2_176)
    assert (fit.hbm.accesses, fit.sram.over) == (2_607_104, 0)
    assert flashsim.count("q_outer", N=1024, d=64).hbm.accesses == 1_704_960


def test_a_backward_pass_follows_its_forward_pass() -> None:
    X = np.ones((64, 8), np.float32)
    ways: list[dict[str, Any]] = [{}, {"sizing": "paper"}, {"blocks": (4, 4)}]
    for how in ways:
        run = flashsim.forward("flash", X, X, X, M=600, **how)
        assert flashsim.backward("flash", run, X).sizing == run.sizing
    with pytest.raises(ValueError, match=r"it needs at least M = [0-9]+"):
        flashsim.backward("flash", run, X, M=20, sizing="fit")


def test_a_pass_that_keeps_its_blocks_says_which_fit_both() -> None:
    """Algorithm 5's backward pass has the forward pass's blocks, on which its mask is, and needs
    more room.
    """
    X = np.ones((64, 8), np.float32)
    rows: Arguments = {"block_mask": flashsim.patterns.butterfly}
    run = flashsim.forward("block_sparse", X, X, X, M=600, **rows)
    with pytest.raises(flashsim.SramOverflow) as caught:
        flashsim.backward("block_sparse", run, X)
    (note,) = caught.value.__notes__
    fitting = flashsim.count("block_sparse", run.problem, direction="backward").blocks
    assert f"blocks=({fitting.B_r}, {fitting.B_c})" in note
    rows["blocks"] = (fitting.B_r, fitting.B_c)
    both = flashsim.forward("block_sparse", X, X, X, M=600, **rows)
    assert not flashsim.backward("block_sparse", both, X).sram.over
    with pytest.raises(ValueError, match="keeps the forward pass's blocks"):
        flashsim.backward("block_sparse", run, X, sizing="fit")


@pytest.mark.parametrize("block_mask", [None, "live"])
def test_a_pass_without_a_mask_of_tiles_takes_blocks_of_its_own(block_mask: str | None) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(64, 8)).astype(np.float32)
    options: Arguments = {"M": 600, "causal": True}
    run = flashsim.forward("block_sparse", X, X, X, block_mask=block_mask, **options)
    dense = flashsim.forward("flash", X, X, X, **options)
    gradients = flashsim.backward("block_sparse", run, X)
    want = flashsim.backward("flash", dense, X)
    assert gradients.blocks == want.blocks != run.blocks
    tally = flashsim.count("block_sparse", run.problem, direction="backward", block_mask=block_mask)
    assert gradients.blocks == tally.blocks
    assert np.array_equal(gradients.dQ, want.dQ)
    assert not gradients.sram.over


# -------------------------------------------------------------- the closed form's peak, and trials'


@pytest.mark.parametrize("longest", [1, 2, 3, 7, 64, 1000])
def test_the_most_that_fits_is_found_from_above(longest: int) -> None:
    for limit in range(longest + 2):
        tried: list[int] = []

        def fits(rows: int, limit: int = limit, tried: list[int] = tried) -> bool:
            tried.append(rows)
            return rows <= limit

        assert largest_that_fits(fits, longest) == min(limit, longest)
        # none that are much smaller, which take long
        assert not tried or min(tried) >= min(limit, longest) // 2


def masks(rng: random.Random, N_q: int, N_k: int) -> list[Any]:
    masks: list[Any] = [
        None,
        flashsim.Causal(),
        flashsim.KeyPadding(max(1, N_k - 2)),
        flashsim.SlidingWindow(2, 1),
        flashsim.Sink(0.5),
        flashsim.Sink(0.5) & flashsim.Causal(),
        np.ones((N_q, N_k), bool),
        np.ones((1, N_k), bool),
        flashsim.SoftCap(3.0),
        flashsim.Bias(np.zeros((N_q, N_k), np.float32)),
        np.tri(N_q, N_k, dtype=bool) | True,
        flashsim.Causal(offset=0),
    ]
    if N_q <= N_k:
        parents = [rng.randrange(n) for n in range(1, N_q)]
        masks.append(flashsim.Tree([-1, *parents]))
    return masks


def options_of(rng: random.Random, algorithm: Algorithm) -> dict[str, Any]:
    drawn: dict[str, Callable[[], Any]] = {
        "window": lambda: rng.randint(1, 5),
        "splits": lambda: rng.randint(1, 5),
        "merge": lambda: rng.choice(["sequence", "tree"]),
        "block_mask": lambda: rng.choice([None, "live"]),
    }
    return {
        option.name: drawn[option.name]()
        for option in forward_of(algorithm).options
        if option.name in drawn
    }


def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, bool, str]]:
    """From here on, what the closed form says of blocks, and what a trial says, by plan."""
    answers: list[tuple[bool, bool, str]] = []
    by_form = planning._fits_by_form

    def both(plan: AttentionPlan) -> Callable[[flashsim.Blocks, int], bool]:
        fits = by_form(plan)

        def compare(blocks: flashsim.Blocks, M: int) -> bool:
            answer = fits(blocks, M)
            tried = planning._fits_by_trial(plan, blocks, M)
            answers.append(
                (
                    answer,
                    tried,
                    f"{plan.program.name} {plan.program.direction} {plan.problem} {blocks} M = {M}",
                )
            )
            return answer

        return compare

    monkeypatch.setattr(planning, "_fits_by_form", both)
    return answers


def search(seed: int, cases: int) -> None:
    rng = random.Random(seed)
    for number in range(cases):
        passes = PASSES[rng.choice(DIRECTIONS)]
        algorithm = passes[sorted(passes)[number % len(passes)]]
        N_q = rng.randint(1, 40)
        N_k = rng.randint(1, 40)
        d = rng.randint(1, 9)
        d_v = rng.randint(1, 9)
        heads, kv_heads, gqa = rng.choice(
            [(1, None, "separate"), (4, 2, "grouped"), (4, 2, "separate")]
        )
        try:
            flashsim.count(
                algorithm,
                N_q=N_q,
                N_k=N_k,
                d=d,
                d_v=d_v,
                M=rng.choice([16, 30, 50, 80, 150, 300, 1000]),
                heads=heads,
                kv_heads=kv_heads,
                gqa=gqa,
                mask=rng.choice(masks(rng, N_q, N_k)),
                dropout_p=rng.choice([0.0, 0.3]),
                dtype=rng.choice(["float32", "float16"]),
                direction=algorithm.direction,
                **options_of(rng, algorithm),
            )
        except ValueError:  # no mask, no dropout, or not even one row fits, as the trials say, too
            continue


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 9))]
)
def test_the_closed_form_says_of_each_blocks_what_a_trial_says(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all passes: ragged shapes, widths, M, masks with and without arrays, dropout, shared
    heads, options, two dtypes.
    """
    answers = compared(monkeypatch)
    search(seed, 300 if seed == 0 else 1500)
    assert len(answers) > 1000
    assert [what for answer, tried, what in answers if answer is not tried] == []
    assert {answer for answer, _, _ in answers} == {True, False}


PER_HEAD: list[Callable[[Any], Mask | Any]] = [
    lambda rng: rng.random((2, 4, 12, 9)) < 0.9,
    lambda rng: rng.random((4, 1, 9)) < 0.9,
    lambda rng: flashsim.KeyPadding(np.array([[3], [9]])),
    lambda rng: flashsim.Bias(rng.normal(size=(4, 12, 9)).astype("float32")),
    lambda rng: flashsim.Bias(rng.normal(size=(4, 1, 9)).astype("float32")),
    lambda rng: flashsim.ALiBi(np.array([0.1, 0.2, 0.3, 0.4])),
    lambda rng: flashsim.Sink(np.arange(4.0)),
]


@pytest.mark.parametrize("gqa", ["separate", "grouped"])
@pytest.mark.parametrize("made", PER_HEAD, ids=range(len(PER_HEAD)))
def test_it_does_for_masks_of_each_head_s_own(
    made: Callable[[Any], Any], gqa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = compared(monkeypatch)
    rng = np.random.default_rng(0)
    Q = rng.normal(size=(2, 4, 12, 4)).astype("float32")
    K = rng.normal(size=(2, 2, 9, 4)).astype("float32")
    for name in ("flash", "q_outer"):
        for M in (150, 400):
            mask = made(rng)
            run = flashsim.forward(name, Q, K, K, M=M, mask=mask, gqa=gqa)
            flashsim.backward(name, run, Q, M=600)
    assert answers
    assert [what for answer, tried, what in answers if answer is not tried] == []


@pytest.mark.parametrize("off", [1, -1])
def test_a_form_with_a_wrong_peak_is_noticed(off: int, monkeypatch: pytest.MonkeyPatch) -> None:
    right = theory.form_of("q_outer", "forward")

    def wrong_peak(p: Any, blocks: Any, tiles: Any) -> Any:
        return right.peak(p, blocks, tiles) + off

    wrong = replace(right, peak=wrong_peak)
    monkeypatch.setitem(forms.forms()["forward"], "q_outer", wrong)
    answers = compared(monkeypatch)
    for M in range(40, 90):
        try:
            flashsim.count("q_outer", N=12, d=3, M=M)
        except flashsim.SramOverflow:
            assert off == -1
    assert [what for answer, tried, what in answers if answer is not tried]


COUNTED: list[Callable[[int], Any]] = [
    lambda M: kernels.count(N=30, n=20, d=3, e=2, M=M),
    lambda M: kernels.count(N=30, d=3, M=M, order="z_outer"),
    lambda M: kernels.count(N=9, d=4, n=30, M=M),
    lambda M: approximate.count("linformer", N=40, d=4, k=3, M=M),
]


def test_programs_blocks_are_those_of_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    by_form = matrices._form_of
    sizes = set()
    for M, count in itertools.product((60, 100, 333, 1000), COUNTED):
        blocks = count(M).blocks
        monkeypatch.setattr(matrices, "_form_of", lambda program: None)
        assert count(M).blocks == blocks
        monkeypatch.setattr(matrices, "_form_of", by_form)
        sizes.add(str(blocks))
    assert len(sizes) > 8


# --------------------------------------------------------------------------- it fits, or it is said


def over() -> tuple[Any, Any, Any, Any, int]:
    """A run, its gradients, a tally and a closed form, whose peak is over M."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(64, 8)).astype(np.float32)
    how: Arguments = {"M": 300, "sizing": "paper"}
    run = flashsim.forward("flash", X, X, X, **how)
    tally = flashsim.count("flash", N=64, d=8, **how)
    exact = theory.exact("flash", N=64, d=8, **how)
    return run, flashsim.backward("flash", run, X), tally, exact, run.sram.over


def test_a_peak_over_m_is_said_wherever_a_result_shows() -> None:
    run, gradients, tally, exact, by = over()
    assert by > 0
    for result in (run, gradients, tally, exact):
        assert result.sram.over > 0
        for text in (repr(result), result._repr_html_()):
            assert f"{result.sram.over:,} over M = 300" in text
    for result in (run, gradients, tally):
        assert result.to_dict()["sram"]["over"] == result.sram.over
        assert json.loads(result.to_json())["sram"]["over"] == result.sram.over
        table = result.to_pandas()
        assert [*table["over_M_elements"]] == [result.sram.over] * len(table)
        assert table.attrs["sram"]["over"] == result.sram.over
    fit = flashsim.count("flash", N=64, d=8, M=300)
    assert "over" not in repr(fit)
    assert fit.to_dict()["sram"]["over"] == 0
    assert "over_M_elements" not in fit.to_pandas()


def test_a_peak_over_m_is_said_in_a_sweep() -> None:
    sizes: Arguments = {"d": 8, "M": 300}
    rows = flashsim.sweep("flash", N=[64, 128], sizing=["paper", "fit"], **sizes)
    for row in rows:
        tally = flashsim.count("flash", N=row["N"], sizing=row["sizing"], **sizes)
        assert row["over_M_elements"] == tally.sram.over
    most = max(row["over_M_elements"] for row in rows)
    assert most > 0
    text = f"2 points whose peak exceeds M, by {most} elements at most: M is not enforced there"
    assert text in " ".join(repr(rows).split())
    assert text in rows._repr_html_()
    assert "over_M_elements" in rows.to_csv().splitlines()[0].split(",")
    assert [*rows.to_pandas()["over_M_elements"]] == [row["over_M_elements"] for row in rows]
    assert [row["over_M_elements"] for row in rows.to_dict()["rows"]] == [
        row["over_M_elements"] for row in rows
    ]
    fitting = flashsim.sweep("flash", N=[64, 128], **sizes)
    assert "exceeds M" not in repr(fitting)


def test_a_peak_over_m_is_said_of_the_paper_s_blocks_beside_the_best() -> None:
    paper = flashsim.tune.tune(N=64, d=8, M=300).to_dict()["paper"]
    for name in ("flash", "q_outer"):
        exact = theory.exact(name, N=64, d=8, M=300, sizing="paper")
        assert paper[name]["over_M_elements"] == exact.sram.over
    assert paper["flash"]["over_M_elements"]


def test_a_peak_over_m_is_said_by_commands(capsys: pytest.CaptureFixture[str]) -> None:
    tally = flashsim.count("flash", N=64, d=8, M=300, sizing="paper")
    arguments = ["count", "flash", "--N", "64", "--d", "8", "--M", "300", "--sizing", "paper"]
    assert main(arguments) == 0
    assert f"of M, {tally.sram.over} too many" in capsys.readouterr().out
    assert main([*arguments, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["sram"]["over"] == tally.sram.over
    assert main(["sweep", "flash", *arguments[2:]]) == 0
    assert f"1 point whose peak exceeds M, by {tally.sram.over} elements" in " ".join(
        capsys.readouterr().out.split()
    )

"""The book chapter's worked examples: its numbers as it prints them, where they are right, and what
is wrong in it.

The numbers below are typed from the chapter ("FlashAttention: Theory and Practice"). Each is held
against an exact value, computed here with 50 digits and apart from the examples' code, and then
looked for in the examples' steps and in their text.
"""

import importlib
import json
import math
import sys
from dataclasses import replace
from decimal import ROUND_HALF_EVEN, Decimal, getcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashsim
from flashsim.cli import main
from flashsim.learn.examples import (
    EXAMPLES,
    as_json,
    exp_overflow,
    not_bit_for_bit,
    prefill,
    same_curve,
)
from flashsim.learn.examples.text import number as as_number
from flashsim.learn.examples.transformer import initial, loss_and_gradients
from flashsim.reference import attention, error_bound, rounding
from flashsim.support.jobs import in_any_order

getcontext().prec = 50
ROOT = Path(__file__).resolve().parents[2]


def d(x: str | float) -> Decimal:
    return Decimal(str(x))


def as_printed(exact: Decimal, printed: str) -> str:
    """Return the exact value with as many digits after the point as are printed."""
    return str(exact.quantize(Decimal(printed), ROUND_HALF_EVEN))


def same(value: Any, printed: str) -> bool:
    """Whether a computed number, rounded, is what is printed."""
    digits = len(printed.partition(".")[2])
    return f"{float(value):.{digits}f}" == printed


def flat(items: Any) -> list[Any]:
    """Return the numbers or texts in order, out of whatever tuples and arrays hold them."""
    return (
        [number for item in items for number in flat(item)]
        if isinstance(items, tuple | np.ndarray)
        else [items]
    )


def printed_by(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main(["example", *command]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


# ------------------------------------------------------------------------------------------------
# the chapter's numbers

# Prefill, query tile 0 and key tile 0.
PREFILL_PRODUCTS = (("0.65", "0.70", "0.30"), ("0.17", "0.46", "-0.16"))
PREFILL_SCORES = (("0.460", "0.495", "0.212"), ("0.120", "0.325", "-0.113"))
PREFILL_MASKED = (("0.460", "-inf", "-inf"), ("0.120", "0.325", "-inf"))
PREFILL_ROWS = (  # (m, weights, O, s, output)
    ("0.460", ("1.0", "0", "0"), ("1.0", "0.0"), "1.0", ("1.0", "0.0")),
    ("0.325", ("0.8146", "1.0", "0"), ("0.8146", "1.0"), "1.8146", ("0.449", "0.551")),
)
PREFILL_ROOT = "1.414"
PREFILL_DIFFERENCE = "-0.205"  # of row 1's scores, in its exponential

# exp(x): what is printed, whether that is right to its digits, and its fate in float32 as said.
EXPONENTIALS = (
    ("100", "2.69e43", "finite"),
    ("89", "4.49e38", "overflow"),
    ("90", None, "overflow"),
    ("85", None, "overflow"),
    ("-5", "0.0067", "finite"),
    ("-100", "3.72e-44", "finite"),
    ("-104", None, "zero"),
)
WRONG_IN_FLOAT32 = {"100", "85"}


# --------------------------------------------------------------------------------------------------
# prefill


def test_prefill_s_printed() -> None:
    run = prefill.compute()
    tile = run.query_tiles[0].tiles[0]
    root = d(2).sqrt()
    assert as_printed(root, PREFILL_ROOT) == PREFILL_ROOT
    assert tile.queries == range(2)
    assert tile.keys == range(3)
    assert not tile.skipped
    for i in range(2):
        for j in range(3):
            pairs = zip(prefill.Q[i], prefill.K[j], strict=True)
            dot = sum((d(a) * d(b) for a, b in pairs), d(0))
            assert as_printed(dot, PREFILL_PRODUCTS[i][j]) == PREFILL_PRODUCTS[i][j]
            assert as_printed(dot / root, PREFILL_SCORES[i][j]) == PREFILL_SCORES[i][j]
            assert same(tile.products[i, j], PREFILL_PRODUCTS[i][j])
            assert same(tile.S[i, j], PREFILL_SCORES[i][j])
            assert same(tile.S_masked[i, j], PREFILL_MASKED[i][j])
    first = d("0.17") / root
    second = d("0.46") / root
    weight = (first - second).exp()
    assert as_printed(first - second, PREFILL_DIFFERENCE) == PREFILL_DIFFERENCE
    zero = d(0)
    one = d(1)
    sum_of_two = weight + 1
    exact = (
        (d("0.65") / root, (one, zero, zero), (one, zero), one, (one, zero)),
        (
            second,
            (weight, one, zero),
            (weight, one),
            sum_of_two,
            (weight / sum_of_two, 1 / sum_of_two),
        ),
    )
    rows = zip(tile.rows, exact, PREFILL_ROWS, strict=True)
    for i, (row, numbers, printed) in enumerate(rows):
        assert row.correction == 0
        assert row.new_maximum
        output = run.query_tiles[0].output[i]
        result = (row.m, row.weights, row.O, row.s, output)
        flattened = zip(flat(numbers), flat(result), flat(printed), strict=True)
        for number, computed, text in flattened:
            assert as_printed(number, text) == text
            assert same(computed, text)


def test_prefill_goes_on_to_the_other_query_tiles_and_skips_one_tile() -> None:
    run = prefill.compute()
    for row, start in zip(run.query_tiles, (0, 2, 4), strict=True):
        assert row.queries == range(start, start + 2)
        assert [part.keys for part in row.tiles] == [range(3), range(3, 6)]
    skipped = [[tile.skipped for tile in row.tiles] for row in run.query_tiles]
    assert skipped == [[False, True], [False, False], [False, False]]
    # the chapter's own condition
    assert skipped == [[(q + 1) * 2 <= k * 3 for k in range(2)] for q in range(3)]
    # query 2 sees none of keys 3 to 5, and is not disturbed
    masked_whole = run.query_tiles[1].tiles[1].rows[0]
    assert (masked_whole.query, masked_whole.correction, masked_whole.weights.tolist()) == (
        2,
        1,
        [0, 0, 0],
    )
    assert (masked_whole.m, masked_whole.s) == (masked_whole.m_old, masked_whole.s_old)
    assert masked_whole.O.tolist() == masked_whole.O_old.tolist()
    raised = [
        row.query
        for tile in run.query_tiles
        for part in tile.tiles[1:]
        for row in part.rows
        if row.new_maximum
    ]
    assert raised == [4, 5]


def test_prefill_is_attention_and_flashsim_s_own_with_the_same_tiles() -> None:
    run = prefill.compute()
    mask = np.tril(np.ones((6, 6), bool))
    naive = attention(run.Q, run.K, run.V, mask=mask)
    np.testing.assert_array_equal(run.naive, naive)
    np.testing.assert_allclose(run.output, naive, rtol=1e-14)
    own = flashsim.forward(
        "block_sparse",
        run.Q,
        run.K,
        run.V,
        causal=True,
        block_mask="live",
        blocks=(run.B_q, run.B_k),
        M=1_000,
    )
    assert own.m is not None
    assert own.l is not None
    np.testing.assert_allclose(run.output, own.O, rtol=1e-14)
    m = [m for tile in run.query_tiles for m in tile.m]
    np.testing.assert_allclose(m, own.m.ravel(), rtol=1e-14)
    s = [s for tile in run.query_tiles for s in tile.s]
    np.testing.assert_allclose(s, own.l.ravel(), rtol=1e-14)
    computed = sum(not part.skipped for tile in run.query_tiles for part in tile.tiles)
    # it loads Q_i once for each of the five tiles
    assert own.hbm.by_array["Q"].reads == computed * run.B_q * 2


@given(
    n=st.integers(1, 9),
    width=st.integers(1, 4),
    B_q=st.integers(1, 10),
    B_k=st.integers(1, 10),
    seed=st.integers(0, 99),
)
def test_prefill_of_any_tiles_is_attention(
    n: int, width: int, B_q: int, B_k: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    Q, K, V = rng.normal(size=(3, n, width))
    run = prefill.prefill(Q, K, V, B_q, B_k)
    mask = np.tril(np.ones((n, n), bool))
    steps = math.ceil(n / B_k)
    bound = error_bound(Q, K, V, mask=mask, steps=steps)
    bound += error_bound(Q, K, V, mask=mask)
    error = abs(run.output - attention(Q, K, V, mask=mask))
    assert (error <= bound).all()
    # skipped where no query sees any key, only
    for part in (part for tile in run.query_tiles for part in tile.tiles):
        allowed = mask[np.ix_(part.queries, part.keys)]
        assert part.skipped == (not allowed.any())


def test_prefill_s_text(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed_by(capsys, "prefill")
    for line in (
        "    Q[1]·K[2] = 0.8·(−0.1) + (−0.1)·0.8   = −0.16  / 1.414 = −0.113",
        "      m_new = max(−∞, 0.120, 0.325) = 0.325   ← new maximum",
        "      weight of key 0 = exp(0.120 − 0.325) = exp(−0.205) = 0.8146",
        "    O[1] = [0.8146, 1.0] / 1.8146 = [0.449, 0.551]",
        "  Key tile 1 (keys 3–5): skipped",
        "    Its first key, 3, comes after the tile's last query, 1: every score would be",
        "      All of these keys are masked: m stays, correction = exp(0) = 1, every",
        "      weight is 0.",
        "      correction = exp(0.445 − 0.488) = 0.9585",
        "    O[5] = [2.5400, 2.3038] / 4.8438 = [0.524, 0.476]",
    ):
        assert line in out.splitlines()
    assert "Its printed numbers are all right to their last digit." in " ".join(out.split())
    lines_of_tiles = [out.count(f"Query tile {i} ") for i in range(4)]
    assert lines_of_tiles == [1, 1, 1, 0]
    assert out.count(": skipped") == 1


# ------------------------------------------------------------------------- the two wrong statements


def test_tiled_attention_is_not_standard_attention_bit_for_bit() -> None:
    run = not_bit_for_bit.compute()
    assert {row.dtype for row in run.comparisons} == {"float32", "float64"}
    assert len(run.comparisons) == 2 * (len(not_bit_for_bit.TILINGS) + 2)
    for row in run.comparisons:
        if row.other == f"{row.one}, again":
            assert (row.differing, row.largest) == (0, 0)
            continue
        assert row.elements == run.N * run.d
        assert row.differing > row.elements / 10
        assert 0 < row.largest < {"float32": 1e-5, "float64": 1e-14}[row.dtype]
        assert 0 < row.of_bound < 1
    assert run.left_to_right != run.right_to_left


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("blocks", [(8, 8), (24, 24), (5, 7), (24, 1), (1, 24)])
def test_the_same_at_other_sizes_and_counted_otherwise(dtype: Any, blocks: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    Q, K, V = rng.normal(size=(3, 24, 8)).astype(dtype)
    standard = flashsim.forward("standard", Q, K, V, M=10_000)
    tiled = flashsim.forward("flash_basic", Q, K, V, M=10_000, blocks=blocks)
    assert standard.O.tobytes() != tiled.O.tobytes()
    differing = 0
    for a, b in zip(standard.O.ravel(), tiled.O.ravel(), strict=True):
        differing += a.tobytes() != b.tobytes()
    assert not_bit_for_bit.bits_differ(standard.O, tiled.O) == differing > 0
    exact = attention(Q, K, V)
    wide = [X.astype(np.float64) for X in (Q, K, V)]
    of_the_reference = error_bound(*wide)
    for result in (standard, tiled):
        own = error_bound(Q, K, V, **rounding(result.algorithm, result.blocks))
        assert (abs(result.O - exact) <= own + of_the_reference).all()
    (compared, again) = not_bit_for_bit.compare(Q, K, V, [blocks])
    assert (compared.differing, again.differing) == (differing, 0)


def test_which_results_are_compared() -> None:
    X = np.ones((4, 2))
    result = not_bit_for_bit.compare(X, X, X, [(4, 4), (2, 4), (2, 2), (4, 2)])
    tiled = [f"Algorithm 1, {blocks}" for blocks in ("4 × 4", "2 × 4", "2 × 2", "4 × 2")]
    assert [each.one for each in result] == [*4 * ["Algorithm 0"], tiled[1], tiled[0]]
    assert [each.other for each in result] == [*tiled, tiled[2], f"{tiled[0]}, again"]


def test_bits_tell_minus_zero_from_zero() -> None:
    plus = np.array([0.0, 1.0])
    minus = np.array([-0.0, 1.0])
    assert not_bit_for_bit.bits_differ(plus, minus) == 1


def test_exp_of_100_is_infinite_in_float32() -> None:
    run = exp_overflow.compute()
    claims = {f"{row.x:g}": row for row in run.claims}
    assert claims.keys() == {x for x, _, _ in EXPONENTIALS}
    largest = d(float(np.finfo(np.float32).max))
    for x, printed, fate in EXPONENTIALS:
        exact = d(x).exp()
        row = claims[x]
        if printed is not None:
            digits = len(printed.partition("e")[0].partition(".")[2])
            rounded = (
                f"{exact:.{digits}e}".lower().replace("e+", "e")
                if "e" in printed
                else as_printed(exact, printed)
            )
            assert rounded == printed
        assert row.claimed == fate
        assert (exact > largest) == np.isinf(row.in_float32)
        assert row.in_float64 == pytest.approx(float(exact), rel=1e-15)
        assert row.right == (x not in WRONG_IN_FLOAT32)
    assert claims["100"].in_float32 == np.inf
    assert claims["85"].in_float32 == pytest.approx(8.223e36, rel=1e-4)  # the chapter: "overflow"
    # and yet the chapter has only the first overflow
    assert claims["89"].in_float64 < claims["100"].in_float64


def test_where_the_exponential_ends() -> None:
    single, double = exp_overflow.compute().limits
    assert single.dtype == "float32"
    assert f"{single.last_finite_x:.5f}" == "88.72283"
    assert d(single.last_finite_x).exp() < d(single.largest)
    assert d(single.first_infinite_x).exp() > d(single.largest)
    last_finite = np.float32(single.last_finite_x)
    assert np.nextafter(last_finite, np.float32(np.inf)) == np.float32(single.first_infinite_x)
    largest = float(np.finfo(np.float32).max)
    assert math.log(largest) == pytest.approx(88.7228390)
    # −103.97208, unless the machine flushes subnormal numbers
    assert -104 < single.last_nonzero_x < -87.3
    last_nonzero = np.float32(single.last_nonzero_x)
    assert np.nextafter(last_nonzero, np.float32(-np.inf)) == np.float32(single.first_zero_x)
    assert single.last_normal_x == pytest.approx(-87.33654, abs=1e-4)
    assert f"{double.last_finite_x:.4f}" == "709.7827"


def test_softmax_of_large_scores_needs_the_subtraction() -> None:
    run = exp_overflow.compute()
    assert np.isnan(run.unsafe[0])
    assert run.safe.dtype == np.float32
    first_weight = 1 / (1 + math.exp(-5))
    second_weight = 1 / (1 + math.exp(5))
    np.testing.assert_allclose(run.safe, [first_weight, second_weight], rtol=1e-5)


OF_OUR_OWN = ("kernel_product", "same_curve")


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in OF_OUR_OWN])
def test_who_reads_of_a_chapter_reads_which_one(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = " ".join(printed_by(capsys, name).split())
    assert out.count('"FlashAttention: Theory and Practice"') == 1


def test_their_text(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed_by(capsys, "not_bit_for_bit")
    assert " ".join(out.split()).startswith(
        "Is tiled attention the same as standard attention, bit for bit, as a book chapter says? "
        "No."
    )
    assert "rounding explains all of it" in out.replace("\n", " ")
    out = printed_by(capsys, "exp_overflow")
    assert out.startswith("Is exp(100) fine in float32, as a book chapter says? No.")
    rows = [line.split() for line in out.splitlines() if line.startswith("  exp(")]
    assert rows[0] == ["exp(100)", "2.69e43,", "fine", "inf", "2.688e+43", "WRONG"]
    assert [row[-1] for row in rows if row[-1] in ("right", "WRONG")] == [
        "WRONG" if x in WRONG_IN_FLOAT32 else "right"
        for x in ("100", "90", "89", "85", "-5", "-100", "-104")
    ]
    assert "88.72283   exp = 3.4028e+38" in out


# --------------------------------------------------------------------------------------------------
# the command


@pytest.mark.parametrize("command", [[], ["--list"], ["prefill", "--list"]])
def test_example_lists_the_examples(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    out = printed_by(capsys, *command)
    assert [line.split()[0] for line in out.splitlines()] == list(EXAMPLES)
    for line, example in zip(out.splitlines(), EXAMPLES.values(), strict=True):
        assert line.endswith(f"  {example.about}")
        assert len(line) <= 80


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train for as many steps as the text needs, in this process."""
    example = EXAMPLES["same_curve"]
    monkeypatch.setitem(EXAMPLES, "same_curve", replace(example, compute=lambda: two_steps()))


def test_heads_are_filled_up_to_the_32_columns_that_a_gpu_s_kernels_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stand-ins for CuPy and for the kernels: what these get, and that columns of zeros are
    taken off again.
    """
    widths: list[int] = []

    def forward(q: Any, k: Any, v: Any, **_: Any) -> Any:
        widths.extend(a.shape[-1] for a in (q, k, v))
        return q + v, None

    def backward(q: Any, k: Any, v: Any, o: Any, lse: Any, do: Any, **_: Any) -> Any:
        widths.append(do.shape[-1])
        return q, k, v

    monkeypatch.setitem(
        sys.modules, "cupy", SimpleNamespace(asarray=np.asarray, asnumpy=np.asarray)
    )
    monkeypatch.setattr("flashsim.gpu.forward", forward)
    monkeypatch.setattr("flashsim.gpu.backward", backward)
    Q, K, V = np.random.default_rng(0).normal(size=(3, 1, 1, 4, 6))
    O, back = same_curve.on_a_gpu(None, Q, K, V)
    assert np.array_equal(O, Q + V)
    assert all(map(np.array_equal, back(Q), (Q, K, V)))
    assert widths == [32] * 4


@cache
def two_steps() -> same_curve.SameCurve:
    return same_curve.compute(steps=2, jobs=1)


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_s_text_fits_a_terminal_and_says_where_the_step_is(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = printed_by(capsys, name)
    assert max(map(len, out.splitlines())) <= 80
    assert not any(line != line.rstrip() for line in out.splitlines())
    assert "The same step in flashsim:\n  " in out
    assert "\nIn flashsim: " in (
        importlib.import_module(f"flashsim.learn.examples.{name}").__doc__ or ""
    )


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_as_json(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = printed_by(capsys, name, "--json", "-")
    data = json.loads(out, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    assert data["command"] == f"flashsim example {name} --json -"
    assert (data["example"], data["about"], data["where"]) == (
        name,
        EXAMPLES[name].about,
        EXAMPLES[name].where,
    )
    steps = as_json(EXAMPLES[name].compute())
    assert data["steps"] == json.loads(json.dumps(steps))
    target = tmp_path / "steps.json"
    assert printed_by(capsys, name, "--json", str(target)).endswith("\n")
    assert json.loads(target.read_text(encoding="utf-8"))["steps"] == data["steps"]


def test_steps_as_data() -> None:
    tiles = as_json(prefill.compute())["query_tiles"]
    tile = tiles[0]["tiles"][0]
    assert tile["S_masked"][0][1:] == ["-inf", "-inf"]
    first = tile["rows"][0]
    assert (first["m_old"], first["new_maximum"]) == ("-inf", True)
    assert tiles[0]["tiles"][1]["keys"] == [3, 4, 5]
    assert tiles[0]["tiles"][1]["skipped"] is True
    assert as_json(exp_overflow.compute())["unsafe"][0] == "nan"


# --------------------------------------------------------------------------------------------------
# training curves


@pytest.mark.parametrize("name", initial(3, 0, "float64"))
def test_the_transformer_s_gradients_are_slopes_of_its_loss(name: str) -> None:
    rng = np.random.default_rng(0)
    weights = initial(5, 0, "float64")
    tokens = rng.integers(0, 5, size=(2, 9))
    attend = same_curve.Setup("standard", None, "float64", 0).attend()
    _, gradients = loss_and_gradients(weights, tokens, attend)
    way = rng.normal(size=weights[name].shape)
    there, back = (
        loss_and_gradients({**weights, name: weights[name] + h * way}, tokens, attend)[0]
        for h in (1e-6, -1e-6)
    )
    slope = (there - back) / 2e-6
    assert slope == pytest.approx((gradients[name] * way).sum(), rel=1e-6)


def test_right_attentions_train_alike_and_a_bug_shows_in_two_steps() -> None:
    for row in two_steps().distances:
        assert row.shows == (2 if row.bug else None), row
        assert (
            row.all > 1e-5
            if row.bug
            else row.all <= 1e-12
            if row.dtype == "float64"
            else row.early <= 1e-5
        )
    assert {(row.title.partition(",")[0], row.bug) for row in two_steps().distances if row.bug} == {
        (name, bug.what)
        for name in (
            "standard",
            "flash",
            "q_outer",
            *([same_curve.GPU] if same_curve.has_gpu() else []),
        )
        for bug in (same_curve.SCALED_TWICE, same_curve.NO_D)
    }


def test_in_float32_a_bug_shows_in_the_first_steps_and_drift_is_none() -> None:
    right = [4.0] * 12

    def shown(step: int, by: float) -> int | None:
        losses = [loss + by if index >= step - 1 else loss for index, loss in enumerate(right)]
        curves = (
            same_curve.Curve(name, "float32", "", tuple(of))
            for name, of in (("standard", right), ("gpu", losses))
        )
        (result,) = same_curve.distances(tuple(curves))
        return result.shows

    assert [
        shown(2, 2e-5),
        shown(10, -2e-5),
        shown(11, 1.0),
        shown(2, 5e-6),
        shown(2, math.nan),
    ] == [2, 10, None, None, 2]


def test_curves_that_differ_are_said_to() -> None:
    first = same_curve.Curve("standard", "float64", "", (4.0, 3.0))
    wrong = same_curve.Curve("flash", "float64", "", (4.0, math.nan))
    run = same_curve.SameCurve(
        10,
        5,
        2,
        (first, wrong, replace(first, dtype="float32")),
        tuple(same_curve.distances((first, wrong))),
    )
    assert run.distances[0].shows == 2
    assert "THE CURVES ARE NOT THE SAME: flash (float64, from step 2)." in " ".join(
        same_curve.lines(run)
    )


@pytest.mark.slow
def test_forty_steps_of_training_in_float64() -> None:
    right = [row for row in same_curve.setups(40) if row.bug is None]
    every = [row for row in right if row.dtype == "float64"]
    curves = [curve for _, curve in sorted(in_any_order(same_curve.train, every, 2))]
    result = list(same_curve.distances(curves))
    assert [(row.steps, row.shows) for row in result] == [(40, None)] * 2
    recorded_losses = recorded()["curves"][0]["losses"]
    assert curves[0].losses == pytest.approx(recorded_losses[:40], abs=1e-9)


def recorded() -> dict[str, Any]:
    data = json.loads((ROOT / "figures/same_curve.json").read_text(encoding="utf-8"))["data"]
    assert data["steps"] == 300
    return dict(data)


def test_the_recorded_curves_agree_and_show_a_bug_that_the_eye_does_not_see() -> None:
    data = recorded()
    for row in data["distances"]:
        assert row["shows"] == (2 if row["bug"] else None), row
        assert row["bug"] or row["all"] <= 1e-12 or row["dtype"] == "float32", row
    right = data["curves"][0]
    ends = {
        row["bug"]: row["end"] for row in data["distances"] if row["bug"] and row["steps"] == 300
    }
    end = float(np.mean(right["losses"][-20:]))
    assert ends[same_curve.SCALED_TWICE.what] == pytest.approx(end, rel=0.02)
    assert ends[same_curve.NO_D.what] > end + 0.2


def test_a_number_has_as_many_digits_as_it_needs() -> None:
    assert [as_number(x) for x in (1.0, 0.5, 0.12, 0.7408182, -np.inf)] == [
        "1.0",
        "0.5",
        "0.1200",
        "0.7408",
        "−∞",
    ]

"""An additive bias: what it means, what it moves, its gradient; and who refuses it."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashsim
from flashsim import Bias, Causal, KeyPadding, theory
from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.reference import (
    attention,
    backward_rounding,
    bias_gradient,
    bias_gradient_bound,
    error_bound,
    gradient_bounds,
    gradients,
    of_bound,
    rounding,
)
from flashsim.simulate import outcome, sums
from flashsim.simulate.tile_masks import BiasGradient, TileMask
from tests.helpers.cases import (
    FEW,
    Arguments,
    Array,
    Case,
    cases,
    forward_of,
    refused,
    room_for,
    swap,
)

TAKE = [name for name, a in FORWARD.items() if "MASK" in a.parts]
LEARN = [name for name, a in BACKWARD.items() if a.gives_dS]
KINDS = ((True, True), (True, False), (False, True), (False, False))
rng = np.random.default_rng(0)


def of(case: Case, rows: bool, columns: bool, dtype: Any = np.float32) -> Array:
    shape = (case.N_q if rows else 1, case.N_k if columns else 1)
    own = np.random.default_rng((case.seed, 3))
    return np.asarray(3 * own.normal(size=shape)).astype(dtype)


def asked(case: Case, bias: Array, name: str) -> dict[str, Any]:
    mask, _ = case.masked()
    rule = Bias(bias) if mask is None else Bias(bias) & mask
    room = 2 * room_for(case.B_r, case.B_c, case.d, case.d_v, case.N_k)
    blocks = (1 if name == "memory_efficient" else case.B_r, case.B_c)
    return {"mask": rule, "dropout_p": case.dropout_p, "M": room, "blocks": blocks}


SOME = cases(
    20,
    masks=("none", "causal", "packed entry", "dense"),
    dropouts=(0.0, 0.3),
    regimes=("gaussian", "outliers"),
)


@pytest.mark.parametrize("name", TAKE)
@given(
    case=SOME,
    kind=st.sampled_from(KINDS),
    wide=st.sampled_from((np.float32, np.float64, ml_dtypes.bfloat16)),
)
@FEW
def test_it_is_added_to_the_scores_within_rounding(
    name: str, case: Case, kind: tuple[bool, bool], wide: Any
) -> None:
    case = case.for_algorithm(name)
    Q, K, V = case.inputs()
    bias = of(case, *kind, wide)
    options = asked(case, bias, name)
    run = flashsim.forward(name, Q, K, V, **options, seed=case.seed)
    want = attention(Q, K, V, bias=bias, **case.oracle)
    rounded = rounding(name, run.blocks)
    bound = error_bound(Q, K, V, bias=bias, **rounded, **case.oracle)
    assert of_bound(run.O, want, bound) <= 1
    exact = theory.exact(name, **case.shape, dtype=case.dtype, **options)
    assert (run.hbm, run.sram) == (exact.hbm, exact.sram)


@pytest.mark.parametrize("name", LEARN)
@given(case=SOME, kind=st.sampled_from(KINDS))
@FEW
def test_its_gradient_is_right_within_rounding_and_counted_as_theory_says(
    name: str, case: Case, kind: tuple[bool, bool]
) -> None:
    Q, K, V = case.inputs()
    dO = case.dO()
    bias = of(case, *kind)
    options = asked(case, bias, name)
    if name == "block_sparse":
        options["block_mask"] = "live"
    forward_name = forward_of(name)
    run = flashsim.forward(forward_name, Q, K, V, **options, seed=case.seed)
    result = flashsim.backward(name, run, dO)
    assert result.dB is not None
    known: dict[str, Any] = {"bias": bias, **case.oracle}
    rounded = backward_rounding(name, run.blocks, result.blocks)
    assert result.dB.shape == bias.shape
    bound = bias_gradient_bound(Q, K, V, dO, **rounded, **known)
    assert of_bound(result.dB, bias_gradient(Q, K, V, dO, **known), bound) <= 1
    bounds = gradient_bounds(Q, K, V, dO, **rounded, **known)
    computed = (result.dQ, result.dK, result.dV)
    expected = gradients(Q, K, V, dO, **known)
    for gradient, want, most in zip(computed, expected, bounds, strict=True):
        assert of_bound(gradient, want, most) <= 1
    arguments = {**case.shape, "dtype": case.dtype, **options}
    exact = theory.exact(name, direction="backward", **arguments)
    tally = flashsim.count(name, direction="backward", **arguments)
    assert result.hbm == tally.hbm == exact.hbm
    assert result.sram == tally.sram == exact.sram


HEADS = ((13,), (10, 13), (3, 10, 13), (2, 1, 1, 13), (2, 3, 10, 1), (1, 3, 1, 1))


@pytest.mark.parametrize("shape", HEADS, ids=str)
def test_heads_that_share_a_bias_add_to_one_gradient(shape: tuple[int, ...]) -> None:
    Q = rng.normal(size=(2, 3, 10, 4))
    K = rng.normal(size=(2, 3, 13, 4))
    V = rng.normal(size=(2, 3, 13, 5))
    dO = rng.normal(size=(2, 3, 10, 5))
    bias = rng.normal(size=shape)
    tiles: Arguments = {"M": 300, "blocks": (3, 4)}
    run = flashsim.forward("flash", Q, K, V, mask=Bias(bias), causal=True, **tiles)
    result = flashsim.backward("flash", run, dO)
    known: dict[str, Any] = {"bias": bias, "mask": np.tri(10, 13, 3, dtype=bool)}
    O = attention(Q, K, V, **known)
    assert np.allclose(run.O, O, rtol=0, atol=1e-12)
    assert result.dB is not None
    assert result.dB.shape == shape
    dB = bias_gradient(Q, K, V, dO, **known)
    assert np.allclose(result.dB, dB, rtol=0, atol=1e-12)
    traffic = result.hbm.by_array["dB"]
    assert traffic.size == bias.size
    assert traffic.init_writes == bias.size
    assert traffic.role == "output"
    assert traffic.reads == traffic.writes - bias.size == result.hbm.by_array["bias"].reads
    if len(shape) == 2:
        options: Arguments = {
            "M": 300,
            "blocks": (3, 4),
            "mask": Bias(bias),
            "causal": True,
            "heads": 6,
        }
        options |= {
            "N_q": 10,
            "N_k": 13,
            "d": 4,
            "d_v": 5,
            "dtype": "float64",
            "direction": "backward",
        }
        assert (
            result.hbm
            == flashsim.count("flash", **options).hbm
            == theory.exact("flash", **options).hbm
        )


GROUPED = (
    (6, 7),
    (1, 7),
    (6, 1),
    (1, 1),
    (4, 6, 7),
    (4, 1, 7),
    (4, 1, 1),
    (3, 1, 6, 7),
    (3, 4, 1, 7),
    (1, 4, 6, 1),
)


@pytest.mark.parametrize("name", ["flash", "q_outer", "standard"])
@pytest.mark.parametrize("shape", GROUPED, ids=str)
def test_grouped_heads_take_it_and_learn_it(name: str, shape: tuple[int, ...]) -> None:
    """O, the gradient, and what is moved: dB has a row for each row of a group, and is then
    summed over the group.
    """
    Q, dO = rng.normal(size=(2, 3, 4, 6, 3))
    K, V = rng.normal(size=(2, 3, 2, 7, 3))
    bias = rng.normal(size=shape)
    options: Arguments = {"mask": Bias(bias), "gqa": "grouped"}
    options |= {"blocks": (5, 4), "M": 300}
    repeated = (Q, K.repeat(2, 1), V.repeat(2, 1))
    run = flashsim.forward(name, Q, K, V, **options)
    O = attention(*repeated, bias=bias)
    assert np.allclose(run.O, O, rtol=0, atol=1e-12)
    separate = flashsim.forward(name, Q, K, V, **options | {"gqa": "separate"})
    assert np.allclose(run.O, separate.O, rtol=0, atol=1e-12)
    result = flashsim.backward(name, run, dO)
    assert result.dB is not None
    assert result.dB.shape == shape
    dB = bias_gradient(*repeated, dO, bias=bias)
    assert np.allclose(result.dB, dB, rtol=0, atol=1e-12)
    traffic = result.hbm.by_array["dB"]
    each_head = len(shape) > 2 and shape[-3] > 1
    assert (traffic.role, traffic.size) == ("output", bias.size)
    if "dB_parts" in result.hbm.by_array:
        parts = result.hbm.by_array["dB_parts"]
        assert (traffic.reads, traffic.writes, parts.role) == (0, bias.size, "extra")
        assert parts.size == parts.init_writes == bias.size * (6 if each_head else 2)
    assert ("dB_parts" in result.hbm.by_array) == ((shape[-2] > 1) != each_head)
    if len(shape) == 2:
        lengths: Arguments = {
            "N_q": 6,
            "N_k": 7,
            "d": 3,
            "heads": 12,
            "kv_heads": 6,
            "dtype": "float64",
        }
        for forth in (run, separate):
            assert (
                forth.hbm
                == theory.exact(name, **lengths, **options | {"gqa": forth.problem.gqa}).hbm
            )
        exact = theory.exact(name, direction="backward", **lengths, **options)
        tally = flashsim.count(name, direction="backward", **lengths, **options)
        assert result.hbm == tally.hbm == exact.hbm
        assert result.sram == tally.sram == exact.sram


def test_a_single_grouped_query_has_no_parts() -> None:
    Q = rng.normal(size=(4, 1, 3))
    K = rng.normal(size=(2, 7, 3))
    V = rng.normal(size=(2, 7, 3))
    bias = rng.normal(size=(4, 1, 7))
    tiles: Arguments = {"blocks": (5, 4), "M": 300}
    run = flashsim.forward("flash", Q, K, V, mask=Bias(bias), gqa="grouped", **tiles)
    result = flashsim.backward("flash", run, Q)
    assert "dB_parts" not in result.hbm.by_array
    want = bias_gradient(Q, K.repeat(2, 0), V.repeat(2, 0), Q, bias=bias)
    assert result.dB is not None
    assert np.allclose(result.dB, want, rtol=0, atol=1e-12)


def test_linear_biases_are_alibi() -> None:
    """ALiBi's −slope·|i − j|, by head, with a causal mask."""
    Q, K, V = rng.normal(size=(3, 2, 9, 4))
    slopes = np.array([0.5, 0.25])[:, None, None]
    distances = abs(np.arange(9)[:, None] - np.arange(9))
    bias = -slopes * distances
    run = flashsim.forward(
        "block_sparse", Q, K, V, mask=Bias(bias) & Causal(), block_mask="live", blocks=(2, 3), M=200
    )
    causal = np.tri(9, dtype=bool)
    scores = np.where(causal, Q @ K.swapaxes(1, 2) / 2 + bias, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = weights @ V / weights.sum(-1, keepdims=True)
    assert np.allclose(run.O, want, rtol=0, atol=1e-13)


def test_who_refuses_it() -> None:
    X = rng.normal(size=(6, 4))
    bias = Bias(np.zeros((6, 6)))
    for name in FORWARD.keys() - {*TAKE}:
        with pytest.raises(ValueError, match="has no mask"):
            flashsim.forward(name, X, X, X, mask=bias)
    assert {name for name, each in BACKWARD.items() if each.gives_dS} == {*LEARN}
    run = flashsim.forward("small_cache", X, X, X, mask=bias, M=400)
    with pytest.raises(ValueError, match=r"makes no gradient of a bias"):
        flashsim.backward("small_cache", run, X)
    own = replace(BACKWARD["flash"], gives_dS=False)
    run = flashsim.forward("flash", X, X, X, mask=bias, M=400)
    with pytest.raises(
        ValueError, match=r"a bias; run one of these, forward and backward: 'standard', 'flash', "
    ):
        flashsim.backward(own, run, X)
    with pytest.raises(ValueError, match="makes no gradient of a bias"):
        flashsim.count(own, N=6, d=4, direction="backward", mask=bias)
    form = replace(theory.form_of("flash", "backward"), gives_dS=False)
    with pytest.raises(ValueError, match="makes no gradient of a bias"):
        theory.exact(form, N=6, d=4, direction="backward", mask=bias)
    plain = flashsim.forward("flash", X, X, X, mask=KeyPadding(3))
    assert flashsim.backward("flash", plain, X).dB is None


def test_what_is_no_bias_is_refused_by_name() -> None:
    X = rng.normal(size=(6, 4))

    def run(mask: Any) -> Any:
        return flashsim.forward("flash", X, X, X, mask=mask)

    refused(
        ("Bias's array has dtype int64; expected one of float16", lambda: Bias([[1]])),
        ("Bias's array has NaN or ∞ in it", lambda: Bias([[-np.inf]])),
        ("Bias's array is a masked array", lambda: Bias(np.ma.ones((1, 1)))),
        (
            r"Bias's array has shape \(5, 6\); expected .* \(6, 6\)",
            lambda: run(Bias(np.ones((5, 6)))),
        ),
        ("expected one Bias at most", lambda: run(Bias([[1.0]]) & Bias([[1.0]]))),
        (r"mask has dtype float64; .*flashsim.Bias\(array\)", lambda: run(np.ones((6, 6)))),
        ("Q and K and the bias are too large", lambda: run(Bias([[1e308]]))),
    )
    assert repr(Bias(np.ones((2, 3))) & Causal()) == "Bias(array of shape (2, 3)) & Causal()"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("S_ij + self._of_bias", "S_ij - self._of_bias"),
        ("_block(self._bias_tiles, i, j)", "_block(self._bias_tiles, i, 0)"),
    ],
)
def test_a_bias_that_is_added_wrongly_is_noticed(
    before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap(TileMask.__call__, before, after, monkeypatch)
    case = Case("gaussian", 8, 8, 3, 3, "float64", 0, 4, 4)
    Q, K, V = case.inputs()
    bias = of(case, True, True)
    run = flashsim.forward("flash", Q, K, V, **asked(case, bias, "flash"))
    bound = error_bound(Q, K, V, bias=bias, **rounding("flash", run.blocks))
    assert of_bound(run.O, attention(Q, K, V, bias=bias), bound) > 1


@pytest.mark.parametrize(
    ("function", "before", "after", "name", "shape"),
    [
        (BiasGradient.add, "dB_ij + summed", "summed + 0", "", (13,)),
        (Bias.summed, "(0, 1)", "(1,)", "", (13,)),
        (BiasGradient.whole, "sram.loop(down)", "sram.loop(down - 1)", "standard", (6, 7)),
        (sums.bias_gradient, "axis, 0)", "1 - axis, 0)", "flash", (6, 7)),
        (
            sums.bias_gradient,
            "reshape(N_q, group, -1)",
            "reshape(group, N_q, -1).swapaxes(0, 1)",
            "flash",
            (4, 1, 7),
        ),
        (sums.bias_gradient, "by_head(dB, group)", "dB", "flash", (4, 6, 7)),
        (outcome.Cost.with_sums, "replace(array, size=0)", "array", "flash", (6, 7)),
    ],
)
def test_a_gradient_that_is_added_up_wrongly_is_noticed(
    function: Any,
    before: str,
    after: str,
    name: str,
    shape: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of heads that share a bias, or, with an algorithm's name, of grouped ones."""
    swap(function, before, after, monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        test_grouped_heads_take_it_and_learn_it(
            name, shape
        ) if name else test_heads_that_share_a_bias_add_to_one_gradient(shape)


def test_the_passes_that_add_dS_up_take_as_many_rows_as_fit() -> None:
    """Algorithm 3 with M = 17: two rows of four dS and the four of dB, so that six rows take three
    tiles.

    Where dB has rows of its own they fill M, more than any other of its lines. So do tiles of a
    grouped gradient's sum.
    """
    way: Arguments = {"d": 1, "direction": "backward"}
    mask = Bias(np.zeros((1, 4)))
    sizes: Arguments = {"N_q": 6, "N_k": 4, "M": 17, **way, "d": 2}
    for count in (flashsim.count, theory.exact):
        tally = count("standard", **sizes, mask=mask)
        assert tally.hbm.by_array["dB"].reads == 3 * 4
    for N_k, M in ((4, 2 * 4 * 3), (8, 2 * 8 * 2)):
        options = {
            **way,
            "N_q": 7,
            "N_k": N_k,
            "M": M,
            "sizing": "fit",
            "mask": Bias(np.zeros((7, N_k))),
        }
        assert (
            theory.exact("standard", **options).sram.peak
            == flashsim.count("standard", **options).sram.peak
            == M
        )
    shared: Arguments = {
        **way,
        "N": 16,
        "M": 1000,
        "blocks": (2, 2),
        "heads": 2,
        "kv_heads": 1,
        "gqa": "grouped",
    }
    exact, tally = (
        of("flash", **shared, mask=Bias(np.zeros((16, 16))))
        for of in (theory.exact, flashsim.count)
    )
    assert exact.sram.peak == tally.sram.peak == 2 * 16 * 16


def test_the_docs_say_which_backward_passes_make_no_gradient_of_a_bias() -> None:
    page = (Path(__file__).parents[2] / "docs" / "conventions.md").read_text(encoding="utf-8")
    _, _, text = page.partition("## Which algorithms make the gradient of a bias")
    but, none = re.findall(
        r"All algorithms with a backward pass make it, except (.*?)\. (.*?) have\s+no",
        text,
        re.DOTALL,
    )[0]
    assert set(re.findall(r"`(\w+)`", but)) == {
        name for name, each in BACKWARD.items() if not each.gives_dS
    }
    assert set(re.findall(r"`(\w+)`", none)) == FORWARD.keys() - BACKWARD.keys()

"""Score modifications, a soft cap and ALiBi: what they mean, that they move nothing, their
gradients; and who refuses them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashsim
from flashsim import ALiBi, Bias, Causal, Mask, SoftCap, theory
from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.attention.masks.scores import ScoreMod
from flashsim.attention.shapes import Shape
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
from flashsim.simulate.tile_masks import TileMask
from flashsim.theory.form import forms
from tests.helpers.cases import FEW, Arguments, Array, Case, cases, forward_of, room_for, swap

TAKE = [name for name, a in FORWARD.items() if "MASK" in a.parts]
LEARN = [name for name, a in BACKWARD.items() if a.gives_dS and "MASK" in a.parts]
SOME = cases(
    20,
    masks=("none", "causal", "packed entry", "dense"),
    dropouts=(0.0, 0.3),
    regimes=("gaussian", "outliers", "rising"),
)
CAPS = st.sampled_from((0.5, 3.0, 50.0))
SLOPES = st.sampled_from((None, 0.25, -3.0))
rng = np.random.default_rng(0)


def linear(N_q: int, N_k: int, slope: float) -> Array:
    rows = np.arange(N_q)[:, None]
    columns = np.arange(N_k)
    distances: Array = np.abs(rows + N_k - N_q - columns)
    return -slope * distances


def asked(
    case: Case, cap: float, slope: float | None, name: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a run is asked, and what the oracle is told."""
    rule: Mask = SoftCap(cap)
    oracle = {"softcap": cap, **case.oracle}
    if slope is not None:
        rule = ALiBi(slope) & rule
        oracle = oracle | {"bias": linear(case.N_q, case.N_k, slope)}
    mask, _ = case.masked()
    blocks = (1 if name == "memory_efficient" else case.B_r, case.B_c)
    options = {
        "mask": rule if mask is None else rule & mask,
        "dropout_p": case.dropout_p,
        "blocks": blocks,
    }
    options["M"] = 2 * room_for(case.B_r, case.B_c, case.d, case.d_v, case.N_k)
    return options, oracle


@pytest.mark.parametrize("name", TAKE)
@given(case=SOME, cap=CAPS, slope=SLOPES)
@FEW
def test_scores_are_modified_before_the_mask_and_nothing_is_moved(
    name: str, case: Case, cap: float, slope: float | None
) -> None:
    case = case.for_algorithm(name)
    Q, K, V = case.inputs()
    options, oracle = asked(case, cap, slope, name)
    run = flashsim.forward(name, Q, K, V, **options, seed=case.seed)
    want = attention(Q, K, V, **oracle)
    bound = error_bound(Q, K, V, **rounding(name, run.blocks), **oracle)
    assert of_bound(run.O, want, bound) <= 1
    exact = theory.exact(name, **case.shape, dtype=case.dtype, **options)
    assert (run.hbm, run.sram) == (exact.hbm, exact.sram)
    assert not {"bias", "slopes"} & run.hbm.by_array.keys()


@pytest.mark.parametrize("name", LEARN)
@given(case=SOME, cap=CAPS, slope=SLOPES, biased=st.booleans())
@FEW
def test_gradients_are_right_within_rounding_and_counted_as_theory_says(
    name: str, case: Case, cap: float, slope: float | None, biased: bool
) -> None:
    Q, K, V = case.inputs()
    dO = case.dO()
    options, oracle = asked(case, cap, None if biased else slope, name)
    if biased:
        own = np.random.default_rng(case.seed)
        bias = own.normal(size=(case.N_q, case.N_k)).astype(np.float32)
        oracle["bias"] = bias
        options["mask"] = Bias(bias) & options["mask"]
    if name == "block_sparse":
        options["block_mask"] = "live"
    forward_name = forward_of(name)
    run = flashsim.forward(forward_name, Q, K, V, **options, seed=case.seed)
    result = flashsim.backward(name, run, dO)
    rounded = backward_rounding(name, run.blocks, result.blocks)
    bounds = gradient_bounds(Q, K, V, dO, **rounded, **oracle)
    computed = (result.dQ, result.dK, result.dV)
    expected = gradients(Q, K, V, dO, **oracle)
    for gradient, want, most in zip(computed, expected, bounds, strict=True):
        assert of_bound(gradient, want, most) <= 1
    if biased:
        most = bias_gradient_bound(Q, K, V, dO, **rounded, **oracle)
        assert of_bound(result.dB, bias_gradient(Q, K, V, dO, **oracle), most) <= 1
    arguments = {**case.shape, "dtype": case.dtype, **options}
    exact = theory.exact(name, direction="backward", **arguments)
    tally = flashsim.count(name, direction="backward", **arguments)
    assert result.hbm == tally.hbm == exact.hbm
    assert result.sram == tally.sram == exact.sram


@pytest.mark.parametrize("cap", [0.5, 20.0])
@pytest.mark.parametrize("name", LEARN)
def test_gradients_are_differences(name: str, cap: float) -> None:
    """Of a run itself, in tiles that are ragged, causal, and ALiBi's; without the oracle."""
    Q = 2 * rng.normal(size=(5, 3))
    K = 2 * rng.normal(size=(7, 3))
    V = 2 * rng.normal(size=(7, 2))
    dO = 2 * rng.normal(size=(5, 2))
    options: Arguments = {"mask": SoftCap(cap) & ALiBi(0.5), "causal": True}
    options["M"] = 300
    options["blocks"] = (1 if name == "memory_efficient" else 2, 3)

    def run(*inputs: Array) -> flashsim.Result:
        return flashsim.forward(forward_of(name), *inputs, **options)

    def loss(*inputs: Array) -> float:
        return float((run(*inputs).O * dO).sum())

    result = flashsim.backward(name, run(Q, K, V), dO)
    for number, gradient in enumerate((result.dQ, result.dK, result.dV)):
        for index in ((0, 0), (3, 1), (4, 0)):
            sides = []
            for step in (1e-5, -1e-5):
                inputs = [Q.copy(), K.copy(), V.copy()]
                inputs[number][index] += step
                sides.append(loss(*inputs))
            slope = (sides[0] - sides[1]) / 2e-5
            assert gradient[index] == pytest.approx(slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("gqa", ["separate", "grouped"])
@pytest.mark.parametrize(
    "slopes",
    [
        np.array(0.5),
        np.array([0.5, 0.25, 1.0, 2.0]),
        np.array([[1.0], [2.0], [0.1]]),
    ],
    ids=["one", "heads", "batch"],
)
def test_each_head_has_its_slope(gqa: str, slopes: Array) -> None:
    """Query heads that share a KV head: in rows of their own, and interleaved."""
    Q, dO = rng.normal(size=(2, 3, 4, 6, 3))
    K, V = rng.normal(size=(2, 3, 2, 7, 3))
    oracle: dict[str, Any] = {
        "bias": slopes[..., None, None] * linear(6, 7, 1.0),
        "softcap": 1.5,
        "mask": np.tri(6, 7, 1) > 0,
    }
    run = flashsim.forward(
        "q_outer",
        Q,
        K,
        V,
        mask=ALiBi(slopes) & SoftCap(1.5),
        causal=True,
        gqa=gqa,
        blocks=(5, 4),
        M=300,
    )
    whole = Q, K.repeat(2, 1), V.repeat(2, 1)
    O = attention(*whole, **oracle)
    assert np.allclose(run.O, O, rtol=0, atol=1e-12)
    result = flashsim.backward("q_outer", run, dO)
    dQ, dK, dV = gradients(*whole, dO, **oracle)
    assert np.allclose(result.dQ, dQ, rtol=0, atol=1e-12)
    for ours, each in ((result.dK, dK), (result.dV, dV)):
        of_groups = each.reshape(3, 2, 2, 7, 3).sum(2)
        assert np.allclose(ours, of_groups, rtol=0, atol=1e-12)
    if not slopes.ndim:
        options: Arguments = {
            "N_q": 6,
            "N_k": 7,
            "d": 3,
            "heads": 12,
            "kv_heads": 6,
            "dtype": "float64",
            "gqa": gqa,
        }
        options |= {
            "mask": ALiBi(slopes) & SoftCap(1.5),
            "causal": True,
            "blocks": (5, 4),
            "M": 300,
        }
        exact = theory.exact("q_outer", **options)
        assert run.hbm == exact.hbm
        assert run.sram == exact.sram
        exact = theory.exact("q_outer", direction="backward", **options)
        tally = flashsim.count("q_outer", direction="backward", **options)
        assert result.hbm == tally.hbm == exact.hbm
        assert result.sram == tally.sram == exact.sram


def test_a_cap_costs_a_tile_on_chip_backward_and_no_access() -> None:
    options: Arguments = {"N": 32, "d": 4, "M": 900, "blocks": (6, 5)}
    for direction, more in (("forward", 0), ("backward", 6 * 5)):
        options["direction"] = direction
        unmasked = flashsim.count("q_outer", **options)
        plain = flashsim.count("q_outer", **options, mask=ALiBi(0.1))
        capped = flashsim.count("q_outer", **options, mask=SoftCap(9.0) & ALiBi(0.1))
        assert plain.hbm == capped.hbm == unmasked.hbm
        assert capped.sram.peak - plain.sram.peak == more


def test_a_large_cap_is_none_and_infinite_keys_stay_masked() -> None:
    X = rng.normal(size=(9, 4))
    options: Arguments = {"causal": True, "M": 300}
    plain = flashsim.forward("flash", X, X, X, **options)
    capped = flashsim.forward("flash", X, X, X, mask=SoftCap(1e20), **options)
    assert np.allclose(capped.O, plain.O, rtol=0, atol=1e-15)
    K = X.copy()
    K[7:] = np.nan
    mask = SoftCap(2) & flashsim.KeyPadding(7)
    run = flashsim.forward("flash", X, K, X, mask=mask, M=300, check_finite=False)
    result = flashsim.backward("flash", run, X, check_finite=False)
    want = gradients(X, X[:7], X[:7], X, softcap=2.0)
    assert np.allclose(result.dQ, want.dQ, rtol=0, atol=1e-12)
    assert np.allclose(result.dK[:7], want.dK, rtol=0, atol=1e-12)


def test_who_refuses_a_cap() -> None:
    X = rng.normal(size=(6, 4))
    for name in FORWARD.keys() - {*TAKE}:
        with pytest.raises(ValueError, match="has no mask"):
            flashsim.forward(name, X, X, X, mask=SoftCap(1))
    text = r"makes no gradient through a soft cap; run one of these, forward and backward: 'flash', 'block_sparse'"
    sizes: Arguments = {"N": 6, "d": 4, "M": 400, "mask": SoftCap(1)}
    for name in ("standard", "small_cache"):
        run = flashsim.forward(name, X, X, X, mask=SoftCap(1), M=400)
        with pytest.raises(ValueError, match=text):
            flashsim.backward(name, run, X)
        with pytest.raises(ValueError, match="makes no gradient through a soft cap"):
            flashsim.count(name, direction="backward", **sizes)
    for name in {*forms()["backward"]} - {*LEARN}:
        with pytest.raises(ValueError, match="makes no gradient through a soft cap"):
            theory.exact(name, direction="backward", **sizes)
    run = flashsim.forward("standard", X, X, X, mask=ALiBi(1), M=400)
    result = flashsim.backward("standard", run, X)
    want = gradients(X, X, X, X, bias=linear(6, 6, 1))
    assert np.allclose(result.dQ, want.dQ)
    capped: dict[str, Any] = {"M": 400, "mask": SoftCap(1)}
    with pytest.raises(ValueError, match="expected a mask that depends on positions alone"):
        flashsim.devices.forward("ring", X, X, X, P=2, **capped)


def test_what_is_no_score_modification_is_refused_by_name() -> None:
    X = rng.normal(size=(6, 4))
    refused: list[tuple[str, Callable[[], Any]]] = [
        (
            "SoftCap's cap is 0; expected a number from 1e-30 to 1e[+]30, or no SoftCap for none",
            lambda: SoftCap(0),
        ),
        ("SoftCap's cap is inf; expected", lambda: SoftCap(float("inf"))),
        ("SoftCap's cap is '1'; expected", lambda: SoftCap("1")),  # type: ignore[arg-type]
        ("ALiBi's slopes has dtype bool; expected real", lambda: ALiBi([True])),
        (
            "ALiBi's slopes are .*; expected numbers up to 1e[+]30",
            lambda: ALiBi([1.0, float("nan")]),
        ),
        (
            "expected one SoftCap at most",
            lambda: flashsim.forward("flash", X, X, X, mask=SoftCap(1) & SoftCap(2)),
        ),
        (
            r"ALiBi's slopes array has shape \(2,\); expected",
            lambda: flashsim.forward("flash", X, X, X, mask=ALiBi([1, 2])),
        ),
        (
            "softcap is -1; expected a number above 0, or None",
            lambda: attention(X, X, X, softcap=-1),
        ),
    ]
    for text, call in refused:
        with pytest.raises(ValueError, match=text):
            call()
    narrow = X.astype(np.float16)
    with pytest.raises(ValueError, match="the bias are too large"):
        flashsim.forward("standard", narrow, narrow, narrow, mask=ALiBi(2e4))
    assert (
        repr(ALiBi([1, 2]) & SoftCap(30) & Causal()) == "ALiBi([1.0, 2.0]) & SoftCap(30) & Causal()"
    )
    assert ALiBi([1, 2]) == ALiBi([1.0, 2.0]) != ALiBi(1)
    assert hash(ALiBi([1, 2])) == hash(ALiBi([1.0, 2.0]))


CASE = Case("gaussian", 8, 11, 3, 3, "float64", 0, 4, 4, mask="causal")
PLANTED: list[tuple[Any, str, str]] = [
    (SoftCap.modified, "np.tanh(S / self.cap)", "S / self.cap"),
    (SoftCap.slope, "1 - tanh * tanh", "1 + 0 * tanh"),
    (ALiBi.added, "(-self._slopes", "(self._slopes"),
    (ALiBi.added, "shape.N_k - shape.N_q // self.group", "0"),
    (
        TileMask.__call__,
        "return np.where(allowed, S_ij, forbidden)",
        "return SoftCap(3.0).modified(np.where(allowed, S_ij, forbidden), *[None] * 4)",
    ),
    (TileMask.uncapped, "gated(dS_ij, self._slope)", "dS_ij"),
]


@pytest.mark.parametrize(
    ("function", "before", "after"), PLANTED, ids=[after[:30] for _, _, after in PLANTED]
)
def test_a_modification_that_is_wrong_is_noticed(
    function: Any, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(function.__globals__, "SoftCap", SoftCap)
    swap(function, before, after, monkeypatch)
    Q, K, V = CASE.inputs()
    dO = CASE.dO()
    options, oracle = asked(CASE, 3.0, 0.25, "q_outer")
    run = flashsim.forward("q_outer", Q, K, V, **options)
    result = flashsim.backward("q_outer", run, dO)
    rounded = backward_rounding("q_outer", run.blocks)
    bounds = gradient_bounds(Q, K, V, dO, **rounded, **oracle)
    want = gradients(Q, K, V, dO, **oracle)
    assert of_bound(result.dQ, want.dQ, bounds.dQ) > 1


def test_the_order_is_that_of_stages_however_they_are_combined() -> None:
    a = ALiBi(0.25)
    b = SoftCap(3.0)
    assert (a & b).scores == (b & a).scores == (b, a)
    assert all(isinstance(mod, ScoreMod) for mod in (a & Causal() & b).scores)


def test_a_cap_adds_nothing_to_a_score() -> None:
    assert SoftCap(30.0).largest(Shape(4, 4, 2, 2)) == 0

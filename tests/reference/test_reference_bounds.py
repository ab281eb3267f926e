"""The oracle's bounds are what their docstrings say, in plain numbers: a bound that is too wide
hides bugs.

Both keys score the same, whatever the scale, so that P = 1/2; the N_q queries are the same; V's
rows are 1, 1, 1 and 3, 3, 3.
"""

import math
from inspect import signature
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import flashsim
from flashsim.algorithms import BACKWARD
from flashsim.reference import (
    attention,
    backward_rounding,
    bias_gradient_bound,
    error_bound,
    gradient_bounds,
    gradients,
    group_bound,
    of_bound,
    rounding,
    score_reach,
    sink_gradient_bound,
)
from tests.helpers.cases import Arguments

N_q = 4
N_k = 2
d = 2
d_v = 3
P = 0.5
VALUES = (1.0, 3.0)  # of V's rows
DO = (1.0, -2.0, 2.0)
# q·k = 1
Q = np.ones((N_q, d))
K = np.full((N_k, d), 0.5)
V = np.repeat(np.array(VALUES)[:, None], d_v, axis=1)
# smallest numbers of the chip that matter
WIDE = {"chip": np.float16, "stored": ml_dtypes.bfloat16}
NARROW = {"chip": np.float32, "stored": np.float16}  # and of what is stored
ALIKE = {"chip": np.float16, "stored": np.float16}
FORMATS: dict[Any, tuple[float, float, float]] = {  # roundoff, smallest subnormal, smallest normal
    np.float16: (2.0**-11, 2.0**-24, 2.0**-14),
    np.float32: (2.0**-24, 2.0**-149, 2.0**-126),
    ml_dtypes.bfloat16: (2.0**-8, 2.0**-133, 2.0**-126),
}
PLAIN: Arguments = {
    "scale": 0.25,
    "steps": 1,
    "stores": None,
    "scores_stored": False,
    "operands_stored": False,
    "flushed": False,
    "logs_rounded": 0,
    "keep": None,
    "dropout_p": 0.0,
    "C": 2.0,
}
DROPPED = {"keep": np.ones((N_q, N_k), bool), "dropout_p": 0.75}
ASKED: list[dict[str, Any]] = [
    {},
    {"steps": 3},
    {"steps": 3, "stores": 2},
    {"scores_stored": True},
    {"operands_stored": True},
    {"flushed": True},
    {"logs_rounded": 2},
    DROPPED,
    {**DROPPED, "scores_stored": True},
    {**DROPPED, "operands_stored": True, "C": 3.0},
    {"scale": -2.0, "steps": 2},
    {"C": 0.5},
]


def what(o: dict[str, Any], sunk: bool = False) -> SimpleNamespace:
    """The docstrings' common terms; `sunk`: beside a sink log 2 above both scores, which leaves
    half of P.
    """
    u, least, normal = FORMATS[o["chip"]]
    u_s, smallest, _ = FORMATS[o["stored"]]
    u_s = 0.0 if o["chip"] == o["stored"] else u_s
    least = normal if o["flushed"] else least
    dropped = o["keep"] is not None
    kept = o["scores_stored"] or o["operands_stored"]
    gain = 1 / (1 - o["dropout_p"])
    tau = abs(o["scale"])
    largest = max(tau, abs(above(o))) if sunk else tau
    delta = (
        (d + 4) * u * tau
        + o["scores_stored"] * u_s * tau
        + o["logs_rounded"] * u * (largest + math.log(N_k + sunk))
    )
    delta += least * (d * max(1, tau) + d * (1 + 1) * 0.5)
    if sunk:
        delta += u * max(above(o) - tau, 0)
    additions = N_k + 8 * (o["steps"] + 1)
    undropped = math.expm1(2 * delta) + additions * u
    relative = undropped + 3 * dropped * u + kept * (1 + dropped) * u_s
    stores = o["steps"] if o["stores"] is None else o["stores"]
    return SimpleNamespace(
        u=u,
        u_s=u_s,
        least=least,
        step=max(least, smallest),
        dropped=dropped,
        kept=kept,
        gain=gain,
        tau=tau,
        stores=stores,
        relative=relative,
        undropped=undropped,
        mass=gain * P / (1 + sunk) * sum(VALUES),
        most=2 * gain * (1 + u_s) * max(VALUES),
    )


def above(o: dict[str, Any]) -> float:
    """Return the sink."""
    return float(o["scale"]) + math.log(2)


def of_O(o: dict[str, Any], C: float, sunk: bool = False) -> float:
    w = what(o, sunk)
    values = sum(VALUES)
    of_scores = w.least * (N_k + o["steps"] + w.gain * values)
    floor = w.stores * w.step + of_scores
    floor += w.kept * w.step * (w.gain + w.dropped) * values
    rounded = C * (w.relative + w.stores * w.u_s) * w.mass
    return float(min(rounded, w.most) + floor)


def of_gradients(
    o: dict[str, Any], dQ_stores: int, recombined: bool
) -> tuple[float, list[float], list[float]]:
    """Of dQ; of dK, for each key; of dV's columns."""
    w = what(o)
    u = w.u
    Z = w.gain
    size = sum(map(abs, DO))
    total = sum(DO)
    u_p, step_p = (w.u_s, w.step) if w.kept else (0.0, 0.0)
    E_P = w.relative * P + w.least + step_p
    if o["scores_stored"]:
        E_P = min(E_P, 1.0)
    E_dropped = Z * (E_P + 3 * u * P)
    E_dropped += (u_p * Z * P + step_p) * w.dropped
    dV = [
        N_q * E_dropped * abs(x)
        + ((N_q + 4) * u + w.u_s) * N_q * P * Z * abs(x)
        + w.step
        + N_q * w.least
        for x in DO
    ]
    A_Z = [Z * size * v for v in VALUES]
    dP = [Z * total * v for v in VALUES]
    extra = (d_v * w.least + step_p) * max(Z, 1) + step_p * w.dropped
    relative_dP = (d_v + 4) * u + (1 + w.dropped) * u_p
    E_dP = [relative_dP * a + extra for a in A_Z]
    D = P * sum(A_Z)
    if o["scores_stored"]:
        E_D = (
            sum((P + E_P) * e + E_P * a for e, a in zip(E_dP, A_Z, strict=True))
            + (N_k + 2) * u * D
            + N_k * w.least
        )
    else:
        E_of_O = of_O(o, 1.0) + (d_v + 2) * u * w.mass + w.least
        E_D = size * E_of_O + d_v * w.least
    off = [abs(x - P * sum(dP)) for x in dP]
    E_recombined = 4 * u * max(A_Z) * recombined
    E_dS = []
    for x, e, a in zip(off, E_dP, A_Z, strict=True):
        E_difference = e + E_D + 2 * u * (a + D) + E_recombined
        rounded = E_P * x + (P + E_P) * E_difference + u_p * P * x
        E_dS.append(rounded + w.least + step_p)
    reach = [P * x + e for x, e in zip(off, E_dS, strict=True)]  # |dS| as it may be
    k = 0.5
    q = 1.0
    relative_dQ = (N_k + 4) * u + dQ_stores * w.u_s
    sums = sum(E_dS) + relative_dQ * sum(reach)
    dQ = w.tau * k * sums + dQ_stores * w.step
    dQ += ((1 + w.tau) * N_k + k * sum(reach)) * w.least
    relative_dK = (N_q + 4) * u + w.u_s
    dK = []
    for e, r in zip(E_dS, reach, strict=True):
        underflows = ((1 + w.tau) * N_q + q * N_q * r) * w.least
        rounded = w.tau * q * N_q * (e + relative_dK * r)
        dK.append(rounded + w.step + underflows)
    C = o["C"]
    return C * dQ, [C * x for x in dK], [C * x for x in dV]


@pytest.mark.parametrize("formats", [WIDE, NARROW, ALIKE], ids=["wide", "narrow", "alike"])
@pytest.mark.parametrize("options", ASKED, ids=lambda asked: " ".join(asked) or "plain")
def test_bounds_are_what_they_are_said_to_be(
    options: dict[str, Any], formats: dict[str, Any]
) -> None:
    o = {**PLAIN, **options, **formats}
    bound = error_bound(Q, K, V, **o)
    assert np.allclose(bound, of_O(o, o["C"]), rtol=1e-12, atol=0)
    dO = np.tile(DO, (N_q, 1))
    for stores, recombined in ((1, False), (3, True), (None, False)):
        got = gradient_bounds(Q, K, V, dO, **o, dQ_stores=stores, recombined=recombined)
        dQ, dK, dV = of_gradients(o, stores or o["steps"], recombined)
        assert np.allclose(got.dQ, dQ, rtol=1e-12, atol=0)
        of_keys = np.array(dK)[:, None]
        assert np.allclose(got.dK, of_keys, rtol=1e-12, atol=0)
        assert np.allclose(got.dV, dV, rtol=1e-12, atol=0)


@pytest.mark.parametrize("formats", [WIDE, NARROW, ALIKE], ids=["wide", "narrow", "alike"])
@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: " ".join(asked) or "plain")
def test_the_bound_of_a_sink_s_gradient_is_what_it_is_said_to_be(
    asked: dict[str, Any], formats: dict[str, Any]
) -> None:
    """P_sink is 1/2, and P is 1/4 for both keys, so that D is a quarter of ΣV, times ΣdO = 1."""
    o = {**PLAIN, **asked, **formats}
    w = what(o, True)
    size = sum(map(abs, DO))
    P_sink = 0.5
    E_of_O = of_O(o, 1.0, True) + (d_v + 2) * w.u * w.mass + w.least
    E_D = size * E_of_O + d_v * w.least
    relative_P = w.undropped + w.u * math.log(2)
    E_P = min(P_sink * relative_P + w.least, 1.0)
    D = w.gain * sum(VALUES) / 4 * abs(sum(DO))
    of_the_sum = (N_q + 2) * w.u * (P_sink + E_P) * (D + E_D)
    want = E_P * (D + E_D) + P_sink * E_D + of_the_sum + w.least
    bound = error_bound(Q, K, V, **o, sink=above(o))
    assert np.allclose(bound, of_O(o, o["C"], True), rtol=1e-12, atol=0)
    dO = np.tile(DO, (N_q, 1))
    got = sink_gradient_bound(Q, K, V, dO, **o, sink=above(o))
    assert np.allclose(got, o["C"] * N_q * want, rtol=1e-12, atol=0)


@pytest.mark.parametrize("p", [0.0, 0.75])
def test_where_rounding_decides_the_softmax_two_averages_of_v_differ_by_its_range_at_most(
    p: float,
) -> None:
    rounded = 2 * 3 * (1 + 2.0**-8) / (1 - p)
    underflows = 2.0**-24 * (1 + N_k + 1 + 4 / (1 - p))
    bound = error_bound(Q, K, V, **WIDE, scale=2.0**20, dropout_p=p)
    assert np.allclose(bound, rounded + underflows, rtol=1e-12, atol=0)


def test_what_is_dropped_whole_leaves_the_smallest_numbers() -> None:
    o = {**PLAIN, "chip": np.float32, "stored": np.float32}
    o |= {"flushed": True, "steps": 3, "dropout_p": 0.75}
    o["keep"] = np.zeros((N_q, N_k), bool)
    bound = error_bound(Q, K, V, **o)
    assert (bound == 2.0**-126 * (3 + N_k + 3 + 4 * 4)).all()


@pytest.mark.parametrize(("chip", "u"), [(None, 2.0**-24), (np.float64, 2.0**-53)])
def test_the_sum_of_a_group_is_bounded_as_said(chip: Any, u: float) -> None:
    parts = np.array([1.0, -2.0, 4.0])
    bounds = np.array([0.25, 0.5, 1.0])
    roundings = 2 * u + 2.0**-11
    want = 1.75 + 2 * roundings * (7 + 1.75) + 2.0**-24
    heads = parts[:, None, None]
    bounds_of_heads = bounds[:, None, None]
    got = group_bound(heads, bounds_of_heads, stored=np.float16, chip=chip)
    assert np.allclose(got, want, rtol=1e-14, atol=0)
    assert (
        group_bound(parts, bounds, stored=np.float32, axis=0)
        == 1.75 + 2 * 2 * 2.0**-24 * 8.75 + 2.0**-149
    )
    assert group_bound(30000 * parts, bounds, stored=np.float16, axis=0) == np.inf


@pytest.mark.parametrize("C", [0.0, -1.0, math.inf, math.nan])
def test_what_c_cannot_be_is_refused(C: float) -> None:
    with pytest.raises(ValueError, match=r"C is .*; expected a number above 0"):
        error_bound(Q, K, V, C=C)
    with pytest.raises(ValueError, match=r"C is .*; expected a number above 0"):
        gradient_bounds(Q, K, V, np.tile(DO, (N_q, 1)), C=C)


def test_a_row_without_a_key_has_no_error() -> None:
    mask = np.ones((N_q, N_k), bool)
    mask[-1] = False
    bound = error_bound(Q, K, V, **{**PLAIN, **NARROW}, mask=mask)
    assert np.all(bound[-1] == 0)
    assert np.all(bound[:-1] > 2.0**-12)


def test_adding_up_a_bias_gradient() -> None:
    """dP − D is −1 and 1, so |dS| = 1/2 everywhere; adding up n elements loses n·u of their sum,
    times C = 2.
    """
    n = N_q * N_k
    u = 2.0**-53
    dO = np.tile(DO, (N_q, 1))
    each = bias_gradient_bound(Q, K, V, dO, bias=np.zeros((N_q, N_k)))
    whole = bias_gradient_bound(Q, K, V, dO, bias=np.zeros((1, 1)))
    of_additions = (whole.item() - each.sum()) / u
    assert of_additions == pytest.approx(2 * (n - 1) * n * P)


@pytest.mark.parametrize(
    "change",
    [
        {"scale": 0.5},
        {"steps": 3},
        {"stores": 2},
        {"scores_stored": True},
        {"operands_stored": True},
        {"flushed": True},
        {"logs_rounded": 2},
        {"mask": np.tri(N_q, N_k, dtype=bool)},
        {"keep": DROPPED["keep"], "dropout_p": 0.5},
        {"chip": np.float32},
        {"stored": np.float16},
        {"C": 3.0},
        {"recombined": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_bound_of_a_bias_gradient_takes_each_argument(change: dict[str, Any]) -> None:
    given = {**PLAIN, **WIDE, "bias": np.zeros((N_q, N_k))}
    plain, changed = (
        bias_gradient_bound(Q, K, V, np.tile(DO, (N_q, 1)), **o)
        for o in (given, {**given, **change})
    )
    assert not np.array_equal(plain, changed)


@pytest.mark.parametrize("function", [gradient_bounds, bias_gradient_bound, sink_gradient_bound])
def test_a_signature_says_what_is_taken(function: Any) -> None:
    own = signature(function).parameters
    known = signature(error_bound).parameters
    # a sink changes dS by L alone
    apart = {"bias", "sink"} if function is not gradient_bounds else {"bias"}
    kept = known.keys() - apart
    assert kept <= own.keys()
    assert {name: own[name].default for name in kept} == {
        name: known[name].default for name in kept
    }


LEAST = 2.0**-149
UNEQUAL = np.log([[1.0], *([[0.1]] * 19)])  # keys whose weights, not yet divided, are 1 and 0.1
# and of which the first has nine tenths
WEIGHTS = [1.0, *[0.1 / 59 / 0.9] * 59]
HEAVY = np.column_stack([np.log(WEIGHTS), np.eye(60)[0]])
LOST: dict[str, tuple[str, Any, Any, Any, Any, float]] = {  # algorithm; Q, K, V, dO; scale
    "what is summed up to O": ("flash", [[1]], UNEQUAL, [[5 * LEAST]] * 20, [[1]], 1.0),
    "products of Q and K": (
        "flash",
        [[2.9e-23] * 64],
        [[2.9e-23] * 64, [0] * 64],
        [[1], [-1]],
        [[1e-3]],
        3e38,
    ),
    "a scaled Q": (
        "flash_basic",
        [[3 * LEAST] * 64],
        [[3e38] * 64, [0] * 64],
        [[1], [-1]],
        [[1]],
        0.5,
    ),
    "the scale": ("flash", [[1e19]], [[1.2e19], [0]], [[1], [2]], [[1]], 3e-43),
    "sums that are scaled": ("flash", [[1e-30]], [[3e-30], [1e-30]], [[1], [2]], [[1e-20]], 1e30),
    "D": ("standard", [[1, 0]], HEAVY, [[0], *([[25]] * 59)], [[10 * LEAST]], 1.0),
}


@pytest.mark.parametrize("case", LOST.values(), ids=LOST)
def test_what_underflows_is_within_the_bounds(case: tuple[str, Any, Any, Any, Any, float]) -> None:
    name, *given, scale = case
    Q, K, V, dO = (np.array(a, np.float32) for a in given)
    run = flashsim.forward(name, Q, K, V, scale=scale, M=10**5)
    bound = error_bound(Q, K, V, scale=scale, **rounding(name, run.blocks))
    assert of_bound(run.O, attention(Q, K, V, scale=scale), bound) <= 1
    assert np.isfinite(bound).all()
    if name in BACKWARD:
        got = flashsim.backward(name, run, dO)
        bounds = gradient_bounds(
            Q, K, V, dO, scale=scale, **backward_rounding(name, run.blocks, got.blocks)
        )
        want = gradients(Q, K, V, dO, scale=scale)
        computed = (got.dQ, got.dK, got.dV)
        for found, exact, most in zip(computed, want, bounds, strict=True):
            assert of_bound(found, exact, most) <= 1


def test_a_reach_is_finite_though_its_products_overflow_before_a_small_scale() -> None:
    reach = score_reach([[1e160]], [[1e160]], scale=1e-300)
    assert np.allclose(reach, 1e20, rtol=1e-12, atol=0)

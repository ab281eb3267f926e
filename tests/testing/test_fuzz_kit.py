"""A fuzz of the property-test kit: what it is asked with sense and without it.

A call ends in a result, or in a ValueError or TypeError of flashsim's own that names an argument.
Neither warns, nor changes an argument. `pytest tests/testing/test_fuzz_kit.py --fuzz 100000` tries that
many calls in each test.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashsim import reference
from flashsim.attention.inputs import FLOATS
from flashsim.testing import (
    CHECKS,
    AttentionCheckFailed,
    Case,
    Report,
    Spec,
    cases,
    check_attention,
    parametrize_with_checks,
    replay,
    wrap,
)
from flashsim.testing.regimes import BIASES, MASKS, REGIMES
from flashsim.testing.spec import CHOICES
from tests.helpers import fuzzing

FUZZ = settings(fuzzing.FUZZ, suppress_health_check=list(HealthCheck))
OWN: list[Any] = [
    np.float32,
    object,
    len,
    "oracle",
    ["oracle"],
    {"oracle": "known"},
    {"oracle": 3},
    {"x": "?"},
    Spec(),
    Case(),
    np.array(["natural", "x"]),
]
PLAIN = Spec(unchecked=("causal", "scale", "mask", "window", "bias"))
junk = st.sampled_from(fuzzing.JUNK + OWN)
small = st.integers(1, 5)


def attention(
    q: Any,
    k: Any,
    v: Any,
    causal: bool = False,
    scale: Any = None,
    mask: Any = None,
    window: Any = None,
    bias: Any = None,
    *,
    spec: Spec,
) -> Any:
    """Return the oracle's own answer, by the spec's conventions."""
    if spec.layout == "BNHD":
        q, k, v = (a.swapaxes(1, 2) for a in (q, k, v))
    B, H_q, N_q, _ = q.shape
    N_k = k.shape[2]
    k = np.repeat(k, H_q // k.shape[1], axis=1)
    v = np.repeat(v, H_q // v.shape[1], axis=1)
    allowed = np.broadcast_to(True if mask is None else mask, (B, H_q, N_q, N_k))
    if causal:
        offset = N_k - N_q if spec.causal == "bottom_right" else 0
        allowed = allowed & np.tri(N_q, N_k, offset, dtype=bool)
    if window is not None:
        offset = N_k - N_q if spec.window == "bottom_right" else 0
        apart = np.arange(N_k) - np.arange(N_q)[:, None] - offset
        left, right = (math.inf if side < 0 else side for side in window)
        allowed = allowed & (apart >= -left) & (apart <= right)
    if not N_k:
        O = np.zeros((B, H_q, N_q, v.shape[-1]))
        l = np.zeros((B, H_q, N_q))
        m = np.full((B, H_q, N_q), -np.inf)
    else:
        O, l, m = reference.attention_with_statistics(q, k, v, scale=scale, mask=allowed, bias=bias)
    empty = ~allowed.any(axis=-1, keepdims=True)
    fill: Any = 0.0
    if spec.empty_rows == "nan":
        fill = np.nan
    elif spec.empty_rows == "mean" and N_k:
        fill = v.astype(float).mean(axis=2, keepdims=True)
    O = np.where(empty, fill, O).astype(q.dtype)
    if spec.layout == "BNHD":
        O = O.swapaxes(1, 2)
    if spec.lse is None:
        return O
    lse = m + np.log(l)
    if spec.lse == "base2":
        lse = lse / math.log(2)
    return O, lse


VALID_SPEC: dict[str, st.SearchStrategy[Any]] = {
    **{
        name: st.sampled_from([value for value in values if name != "stores"] or ["output"])
        for name, values in CHOICES.items()
    },
    "dtypes": st.lists(st.sampled_from(FLOATS), min_size=1, max_size=3).map(tuple)
    | st.sampled_from(FLOATS),
    "block": st.tuples(small, small),
    **dict.fromkeys(
        ("gqa", "masks", "scale", "cross", "d_v", "deterministic", "bias"), st.booleans()
    ),
    "zero_keys": st.sampled_from((True, False, "forward")),
    "unchecked": st.sampled_from(((), ("block_m",), ["a", "b"])),
    "head_dims": st.none() | st.lists(small, min_size=1, max_size=3),
    "accumulate": st.just(None),
    "max_shapes": st.none() | small,
    "C": st.sampled_from((1, 1.0, 2.5)),
}
VALID_CASE: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("B", "H_kv", "group", "N_q", "N_k", "d"), small),
    "d_v": st.none() | small,
    "dtype": st.sampled_from(FLOATS),
    "causal": st.booleans(),
    "mask": st.none() | st.sampled_from(list(MASKS)),
    "window": st.none() | st.tuples(st.integers(-1, 3), st.integers(-1, 3)),
    "bias": st.none() | st.sampled_from(list(BIASES)),
    "scale": st.none() | st.just(0.5),
    "dropout_p": st.sampled_from((0.0, 0.3)),
    "strides": st.sampled_from(("contiguous", "mixed", "columns")),
    "regime": st.sampled_from(list(REGIMES)),
    "block": st.tuples(small, small),
    "seed": st.integers(0, 9),
}


@st.composite
def arguments(
    draw: st.DrawFn, valid: Mapping[str, st.SearchStrategy[Any]], most: int = 2
) -> dict[str, Any]:
    """Some of the valid arguments, and up to `most` of them junk."""
    names = st.sampled_from(sorted(valid))
    keywords = draw(st.lists(names, unique=True, max_size=5))
    spoiled = draw(st.lists(names, max_size=most))
    options = {name: draw(valid[name]) for name in keywords}
    return options | {name: draw(junk) for name in spoiled}


def outcome(call: Callable[..., Any], /, *values: Any, **named: Any) -> Any:
    """Return what a call returns, or None where it refuses, as it may if it names an argument."""
    result = fuzzing.outcome(call, *values, **named)
    if fuzzing.accepted(result):
        return result
    assert isinstance(result, ValueError | TypeError)
    names = (*named, "fn", "spec", "check", "case", "xp")
    assert any(name in str(result) for name in names), f"{result} names nothing"
    return None


@given(keywords=arguments(VALID_SPEC))
@FUZZ
def test_a_spec_is_made_or_refused_and_cases_are_drawn_from_it(keywords: dict[str, Any]) -> None:
    spec = outcome(Spec, **keywords)
    if spec is None:
        return
    assert eval(repr(spec), {"Spec": Spec}) == spec
    kernel = partial(attention, spec=spec)
    report = outcome(
        check_attention, kernel, spec, max_examples=2, checks=["oracle"], on_fail="return"
    )
    assert isinstance(report, Report)
    assert not report.failures


@given(
    keywords=arguments(VALID_CASE),
    spec=arguments(VALID_SPEC, most=0),
    name=st.sampled_from(sorted(CHECKS)) | junk,
)
@FUZZ
def test_a_case_is_made_or_refused_and_replayed(
    keywords: dict[str, Any], spec: dict[str, Any], name: Any
) -> None:
    declared = Spec(**spec)
    case = outcome(Case, **keywords)
    if case is None:
        return
    assert eval(repr(case), {"Case": Case}) == case
    assert outcome(case.arrays, declared) is None or len(case.arrays(declared)) == 4
    with suppress(AttentionCheckFailed):  # the case may be none of the spec's
        outcome(replay, partial(attention, spec=declared), declared, name, case)


CALLABLE = st.just(partial(attention, spec=Spec()))
OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "max_examples": st.integers(1, 3),
    "backward": st.none(),
    "dropout": st.none(),
    "checks": st.none() | st.lists(st.sampled_from(("oracle", "strides")), min_size=1),
    "expected_failures": st.none() | st.just({}),
    "on_fail": st.sampled_from(("raise", "return")),
    "seed": st.integers(0, 2**70),
    "progress": st.just(lambda done, of: None),
}


@given(fn=CALLABLE | junk, spec=st.just(PLAIN) | junk, keywords=arguments(OPTIONS), other=junk)
@FUZZ
def test_the_entry_points_take_what_makes_sense(
    fn: Any, spec: Any, keywords: dict[str, Any], other: Any
) -> None:
    keywords.setdefault("max_examples", 2)
    try:
        report = outcome(check_attention, fn, spec, **keywords)
    except AttentionCheckFailed as failed:
        report = failed.report
    assert report is None or isinstance(report, Report)
    few = {
        name: value
        for name, value in keywords.items()
        if name not in ("checks", "on_fail", "progress")
    }
    outcome(parametrize_with_checks, fn, spec, **few)
    outcome(cases, spec)
    outcome(replay, fn, spec, "oracle", other)


@given(
    fn=CALLABLE | junk,
    xp=st.sampled_from(("torch", "jax", "cupy")) | junk,
    keywords=arguments({"convention": st.sampled_from((None, "sdpa")), "device": st.none()}),
)
@FUZZ
def test_wrap_takes_what_makes_sense(fn: Any, xp: Any, keywords: dict[str, Any]) -> None:
    try:
        outcome(wrap, fn, xp, **keywords)
    except ModuleNotFoundError as missing:
        if find_spec(missing.name or "") is not None or "pip install" not in str(missing):
            raise

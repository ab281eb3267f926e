"""The backward passes return the gradients of what the forward passes computed, within derived
bounds, and count alike.
"""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import flashsim
from flashsim import KeyPadding
from flashsim.algorithms import BACKWARD
from flashsim.attention.qkv import load_sample, sample_mask
from flashsim.reference import (
    attention,
    backward_rounding,
    error_bound,
    gradient_bounds,
    gradients,
    rounding,
)
from tests.helpers.cases import (
    DROPOUTS,
    MASKS,
    Case,
    cases,
    forward_of,
    of_bound,
    room_for,
)

PARTS = ("dQ", "dK", "dV")


@pytest.mark.parametrize("name", BACKWARD)
def test_a_step_along_the_gradient_changes_the_output_as_it_says(name: str) -> None:
    """Central differences of the algorithm's own forward pass, along random directions: no
    reference involved.

    f(x + h) − f(x − h) = 2h·slope + h³·f‴/3: with h = 10⁻⁴ that and float64's rounding are both
    near 10⁻⁸ of f's size.
    """
    rng = np.random.default_rng(0)
    case = Case("gaussian", 9, 12, 4, 3, "float64", 1, 3, 5, "causal & padding", 0.3)
    h, dO, (Q, K, V) = 1e-4, case.dO(), case.inputs()
    options: dict[str, Any] = {"M": room_for(3, 5, 4, 3, 12), "blocks": (3, 5), **case.options}
    result = flashsim.backward(
        name, flashsim.forward(forward_of(name), Q, K, V, **options), dO, M=10**4
    )
    assert case.masked()[1] is not None

    def f(step: list[Any]) -> float:
        traffic = [a + s for a, s in zip((Q, K, V), step, strict=True)]
        return float(
            (
                dO
                * flashsim.forward(
                    forward_of(name), traffic[0], traffic[1], traffic[2], **options
                ).O
            ).sum()
        )

    for position, part in enumerate(PARTS):
        step: list[Any] = [0.0, 0.0, 0.0]
        step[position] = direction = rng.normal(size=(Q, K, V)[position].shape)
        slope = (f([h * s for s in step]) - f([-h * s for s in step])) / (2 * h)
        want = float((getattr(result, part) * direction).sum())
        assert abs(want) > 1e-3  # something to see
        assert abs(slope - want) <= 1e-6 * np.abs(dO).sum()


@pytest.mark.parametrize(
    "name", [name for name, a in BACKWARD.items() if "block_mask" not in a.parts]
)
def test_backward_may_take_other_blocks_than_forward(name: str) -> None:
    case = Case("gaussian", 13, 22, 4, 3, "float64", 1, 3, 5, "all together", 0.3)
    Q, K, V = case.inputs()
    run = flashsim.forward(forward_of(name), Q, K, V, M=10**4, blocks=(3, 5), **case.options)
    choices: tuple[dict[str, Any], ...] = (
        {},
        {"M": 300, "sizing": "fit"},
        {"blocks": (7, 2)},
        {"sizing": "paper", "M": 64},
    )
    want = gradients(Q, K, V, case.dO(), **case.oracle)
    events = set()
    for choice in choices:
        result = flashsim.backward(name, run, case.dO(), **choice)
        events.add(result.blocks)
        rounded = backward_rounding(name, run.blocks, result.blocks)
        for part, bound in zip(
            PARTS, gradient_bounds(Q, K, V, case.dO(), **rounded, **case.oracle), strict=True
        ):
            assert of_bound(getattr(result, part), getattr(want, part), bound) <= 1
    assert len(events) >= 3


@pytest.mark.parametrize("name", BACKWARD)
@given(
    case=cases(
        16,
        ("float32", "float64", "bfloat16"),
        tuple(MASKS),
        DROPOUTS,
        ("gaussian", "all equal", "outliers", "ties"),
    ),
    power=st.integers(0, 18),
    blocks=st.tuples(st.integers(1, 18), st.integers(1, 18)),
)
@example(case=Case("gaussian", 13, 13, 7, 7, "float32", 0, 1, 8, "padding"), power=4, blocks=(5, 1))
@example(case=Case("gaussian", 13, 13, 7, 7, "float32", 0, 1, 8, "padding"), power=5, blocks=(5, 1))
def test_weights_are_at_most_1_however_large_the_scores(
    name: str, case: Case, power: int, blocks: tuple[int, int]
) -> None:
    """Whatever the backward pass's tiles: S may be rounded otherwise in them, and by more than
    the whole softmax.
    """
    Q, K, V = case.inputs()
    Q = Q * Q.dtype.type(10.0**power)
    K = K * K.dtype.type(10.0**power)
    dO = case.dO()
    other: dict[str, Any] = {} if "block_mask" in BACKWARD[name].parts else {"blocks": blocks}
    try:
        run = flashsim.forward(
            forward_of(name), Q, K, V, M=10**5, blocks=(case.B_r, case.B_c), **case.options
        )
        result = flashsim.backward(name, run, dO, **other)
    except ValueError as error:
        if re.search("too large: .* ends at", str(error)):
            return
        raise
    wide = np.abs(dO.astype(np.float64))
    gain = 1 / (1 - case.dropout_p)
    assert np.abs(result.dV.astype(np.float64)).max() <= gain * wide.sum(axis=0).max() * 1.01
    exact_O = attention(Q, K, V, **case.oracle)
    bound_O = error_bound(Q, K, V, **rounding(forward_of(name), run.blocks), **case.oracle)
    assert of_bound(run.O, exact_O, bound_O) <= 1
    bounds = gradient_bounds(
        Q, K, V, dO, **backward_rounding(name, run.blocks, result.blocks), **case.oracle
    )
    for part, want, bound in zip(PARTS, gradients(Q, K, V, dO, **case.oracle), bounds, strict=True):
        assert np.isfinite(getattr(result, part).astype(np.float64)).all()
        assert np.isfinite(bound).all()
        assert of_bound(getattr(result, part), want, bound) <= 1, part


def test_the_bounds_are_no_blank_cheque() -> None:
    """On Gaussian data a few hundred roundoffs of gradients of size 1."""
    rng = np.random.default_rng(0)
    wide = [rng.normal(size=(64, 16)) for _ in range(4)]
    for dtype, most in ((np.float64, 2e-12), (np.float32, 1e-3), (np.float16, 0.2)):
        Q, K, V, dO = (a.astype(dtype) for a in wide)
        assert max(bound.max() for bound in gradient_bounds(Q, K, V, dO, steps=4)) < most


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKWARD)
def test_real_data_with_its_padding(name: str) -> None:
    """Two heads of MiniLM's first layer, padded, with the tokenizer's own padding mask, or by
    turns with its length.
    """
    sample = load_sample(padded=True)
    attend = sample_mask()
    heads = (0, 7)
    Q, K, V = (np.ascontiguousarray(a[heads, :]) for a in (sample.Q, sample.K, sample.V))
    # an element or a pair at a time, in Python
    slow = "stream" in name or name in ("memory_efficient", "q_outer_stored")
    step = 16 if slow else 2
    Q = Q[:, ::step]
    K = K[:, ::step]
    V = V[:, ::step]
    attend = attend[::step]
    length = int(attend.sum())
    assert 0 < length < len(attend)
    assert attend[:length].all()
    dO = np.random.default_rng(0).normal(size=V.shape).astype(Q.dtype)
    oracle: dict[str, Any] = {"mask": attend}
    O = attention(Q, K, V, **oracle)
    want = gradients(Q, K, V, dO, **oracle)
    mask = attend if [*BACKWARD].index(name) % 2 else KeyPadding(length)
    run = flashsim.forward(forward_of(name), Q, K, V, mask=mask, M=8_000)
    bound = error_bound(Q, K, V, **rounding(forward_of(name), run.blocks), **oracle)
    assert of_bound(run.O, O, bound) <= 1
    result = flashsim.backward(name, run, dO)
    bounds = gradient_bounds(
        Q, K, V, dO, **backward_rounding(name, run.blocks, result.blocks), **oracle
    )
    for part in PARTS:
        assert of_bound(getattr(result, part), getattr(want, part), getattr(bounds, part)) <= 1, (
            part
        )
    assert (result.dK[:, length:] == 0).all()
    assert (result.dV[:, length:] == 0).all()

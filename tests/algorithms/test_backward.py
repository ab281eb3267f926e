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
    Arguments,
    Array,
    Case,
    cases,
    forward_of,
    of_bound,
    room_for,
)

PARTS = ("dQ", "dK", "dV")
PADDED = Case("gaussian", 13, 13, 7, 7, "float32", 0, 1, 8, "padding")


@pytest.mark.parametrize("name", BACKWARD)
def test_a_step_along_the_gradient_changes_the_output_as_it_says(name: str) -> None:
    """Central differences of the algorithm's own forward pass, along random directions: no
    reference involved.

    f(x + h) − f(x − h) = 2h·slope + h³·f‴/3: with h = 10⁻⁴ that and float64's rounding are both
    near 10⁻⁸ of f's size.
    """
    rng = np.random.default_rng(0)
    case = Case("gaussian", 9, 12, 4, 3, "float64", 1, 3, 5, "causal & padding", 0.3)
    Q, K, V = case.inputs()
    dO = case.dO()
    h = 1e-4
    options: Arguments = {"M": room_for(3, 5, 4, 3, 12), "blocks": (3, 5)}
    options |= case.options
    run = flashsim.forward(forward_of(name), Q, K, V, **options)
    result = flashsim.backward(name, run, dO, M=10**4)
    assert case.masked()[1] is not None

    def f(position: int, step: Array) -> float:
        operands = [Q, K, V]
        operands[position] = operands[position] + step
        O = flashsim.forward(forward_of(name), *operands, **options).O
        return float((dO * O).sum())

    for position, part in enumerate(PARTS):
        gradient = getattr(result, part)
        direction = rng.normal(size=gradient.shape)
        rise = f(position, h * direction) - f(position, -h * direction)
        slope = rise / (2 * h)
        want = float((gradient * direction).sum())
        assert abs(want) > 1e-3  # something to see
        assert abs(slope - want) <= 1e-6 * np.abs(dO).sum()


@pytest.mark.parametrize(
    "name", [name for name, a in BACKWARD.items() if "block_mask" not in a.parts]
)
def test_backward_may_take_other_blocks_than_forward(name: str) -> None:
    case = Case("gaussian", 13, 22, 4, 3, "float64", 1, 3, 5, "all together", 0.3)
    Q, K, V = case.inputs()
    options: Arguments = {"M": 10**4, "blocks": (3, 5), **case.options}
    run = flashsim.forward(forward_of(name), Q, K, V, **options)
    choices: tuple[dict[str, Any], ...] = (
        {},
        {"M": 300, "sizing": "fit"},
        {"blocks": (7, 2)},
        {"sizing": "paper", "M": 64},
    )
    want = gradients(Q, K, V, case.dO(), **case.oracle)
    sizes = set()
    for choice in choices:
        result = flashsim.backward(name, run, case.dO(), **choice)
        sizes.add(result.blocks)
        rounded = backward_rounding(name, run.blocks, result.blocks)
        bounds = gradient_bounds(Q, K, V, case.dO(), **rounded, **case.oracle)
        for part, bound in zip(PARTS, bounds, strict=True):
            assert of_bound(getattr(result, part), getattr(want, part), bound) <= 1
    assert len(sizes) >= 3


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
@example(case=PADDED, power=4, blocks=(5, 1))
@example(case=PADDED, power=5, blocks=(5, 1))
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
    other: Arguments = {"blocks": blocks}
    if "block_mask" in BACKWARD[name].parts:
        del other["blocks"]
    try:
        tiles = (case.B_r, case.B_c)
        run = flashsim.forward(forward_of(name), Q, K, V, M=10**5, blocks=tiles, **case.options)
        result = flashsim.backward(name, run, dO, **other)
    except ValueError as error:
        if re.search("too large: .* ends at", str(error)):
            return
        raise
    gain = 1 / (1 - case.dropout_p)
    column_sums = np.abs(dO.astype(np.float64)).sum(axis=0)
    largest_dV = np.abs(result.dV.astype(np.float64)).max()
    assert largest_dV <= gain * column_sums.max() * 1.01
    exact_O = attention(Q, K, V, **case.oracle)
    rounded = rounding(forward_of(name), run.blocks)
    bound_O = error_bound(Q, K, V, **rounded, **case.oracle)
    assert of_bound(run.O, exact_O, bound_O) <= 1
    exact = gradients(Q, K, V, dO, **case.oracle)
    rounded = backward_rounding(name, run.blocks, result.blocks)
    bounds = gradient_bounds(Q, K, V, dO, **rounded, **case.oracle)
    for part, want, bound in zip(PARTS, exact, bounds, strict=True):
        assert np.isfinite(getattr(result, part).astype(np.float64)).all()
        assert np.isfinite(bound).all()
        assert of_bound(getattr(result, part), want, bound) <= 1, part


def test_the_bounds_are_no_blank_cheque() -> None:
    """On Gaussian data a few hundred roundoffs of gradients of size 1."""
    rng = np.random.default_rng(0)
    wide = [rng.normal(size=(64, 16)) for _ in range(4)]
    largest = {np.float64: 2e-12, np.float32: 1e-3, np.float16: 0.2}
    for dtype, most in largest.items():
        Q, K, V, dO = (a.astype(dtype) for a in wide)
        for bound in gradient_bounds(Q, K, V, dO, steps=4):
            assert bound.max() < most


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKWARD)
def test_real_data_with_its_padding(name: str) -> None:
    """Two heads of MiniLM's first layer, padded, with the tokenizer's own padding mask, or by
    turns with its length.
    """
    sample = load_sample(padded=True)
    attend = sample_mask()
    heads = (0, 7)
    Q = np.ascontiguousarray(sample.Q[heads, :])
    K = np.ascontiguousarray(sample.K[heads, :])
    V = np.ascontiguousarray(sample.V[heads, :])
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
    rng = np.random.default_rng(0)
    dO = rng.normal(size=V.shape).astype(Q.dtype)
    oracle: Arguments = {"mask": attend}
    O = attention(Q, K, V, **oracle)
    want = gradients(Q, K, V, dO, **oracle)
    mask = attend if [*BACKWARD].index(name) % 2 else KeyPadding(length)
    run = flashsim.forward(forward_of(name), Q, K, V, mask=mask, M=8_000)
    rounded = rounding(forward_of(name), run.blocks)
    bound = error_bound(Q, K, V, **rounded, **oracle)
    assert of_bound(run.O, O, bound) <= 1
    result = flashsim.backward(name, run, dO)
    rounded = backward_rounding(name, run.blocks, result.blocks)
    bounds = gradient_bounds(Q, K, V, dO, **rounded, **oracle)
    for part, exact, bound in zip(PARTS, want, bounds, strict=True):
        assert of_bound(getattr(result, part), exact, bound) <= 1, part
    assert (result.dK[:, length:] == 0).all()
    assert (result.dV[:, length:] == 0).all()

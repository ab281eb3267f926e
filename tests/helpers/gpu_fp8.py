"""The kernel on 8 bits, run and compared with the reference."""

from typing import Any

import numpy as np

from flashsim import gpu
from flashsim.gpu import hopper_fp8
from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.kernel import Options
from flashsim.reference import attention_with_statistics
from tests.helpers.gpu_runs import Array, Given, Poisoned, given

KERNEL = gpu.kernel("hopper_fp8")


OFFSET = 2  # the kernel's


HALF = 2.0**-4  # rounding to e4m3: of a normal number, relative


LEAST = 2.0**-10  # of a subnormal one, absolute


# of sums in tensor cores, which keep fewer bits of 8-bit products than fp32 has: S's, as P's, and
# O's
PRODUCTS = 2.0**-7


def rounded(shape: tuple[int, ...], seed: int = 0) -> Given:
    problem = given(shape, "float32", seed)
    return Given(
        *(X.astype(hopper_fp8.dtype()) for X in (problem.q, problem.k, problem.v, problem.do))
    )


def on_gpu(problem: Given, keys_contiguous: bool = False) -> list[Any]:
    """q, k, v. V's keys may lie next to each other: then what is between its rows is NaN."""
    cupy = import_cupy()
    q, k, v = (cupy.asarray(X.view(np.uint8)) for X in (problem.q, problem.k, problem.v))
    if keys_contiguous:
        *others, N, d = v.shape
        transposed = cupy.full((*others, d, -(-N // 16) * 16 + 16), 0x7F, "uint8")[
            ..., :N
        ].swapaxes(2, 3)
        transposed[...] = v
        v = transposed
    return [X.view(hopper_fp8.dtype()) for X in (q, k, v)]


def run(
    problem: Given, scale: float, causal: bool, keys_contiguous: bool = False
) -> tuple[Array, Array]:
    """Into outputs of NaN between guard bands; inputs are as they were."""
    sent = on_gpu(problem, keys_contiguous)
    o = Poisoned(problem.q.shape, "float16")
    lse = Poisoned(problem.q.shape[:3], "float32")
    KERNEL.forward(*sent, o.array, lse.array, Options(scale, causal))
    for array, X in zip(sent, (problem.q, problem.k, problem.v), strict=True):
        assert (array.view("uint8").get() == X.view(np.uint8)).all(), "an input was modified"
    return o.get(), lse.get()


def assert_near(problem: Given, o: Array, lse: Array, scale: float, causal: bool) -> None:
    """Every weight is off by half a step of e4m3, P̃ being 2^OFFSET or more times a weight over
    the row's largest one.
    """
    q, k, v = (
        X.astype(np.float64) for X in (problem.q, problem.full(problem.k), problem.full(problem.v))
    )
    mask = problem.causal if causal else None
    O, l, m = attention_with_statistics(q, k, v, mask=mask, scale=scale)
    sizes, _, _ = attention_with_statistics(q, k, np.abs(v), mask=mask, scale=scale)  # P |V|
    allowed = np.ones(problem.causal.shape, bool) if mask is None else mask
    least = LEAST / 2**OFFSET / np.where(l == 0, 1, l)[..., None] * (allowed @ np.abs(v))
    bound = (HALF + PRODUCTS) * sizes + least + 2.0**-11 * np.abs(O) + 2.0**-24
    worst = np.max(np.abs(o - O) - bound)
    assert worst <= 0, f"O is off by {np.abs(o - O).max():.3g}, {worst:.3g} more than its bound"
    with np.errstate(divide="ignore"):
        expected = m + np.log(l)
    assert (np.isneginf(expected) == np.isneginf(lse)).all()
    finite = np.isfinite(expected)
    assert np.allclose(lse[finite], expected[finite], rtol=1e-3, atol=2e-2)

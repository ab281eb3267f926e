"""Kernels on a GPU, run and compared with the reference: what tests of several kernels share.

Where there is no GPU, who imports it is skipped, with the reason.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import flashsim
from flashsim import gpu
from flashsim.attention.inputs import float_dtype
from flashsim.attention.masks.dropout import keep_mask
from flashsim.attention.shapes import Blocks
from flashsim.gpu.kernel import Kernel, Options
from flashsim.reference import (
    attention_with_statistics,
    backward_rounding,
    error_bound,
    gradient_bounds,
    gradients,
    group_bound,
    rounding,
)
from flashsim.testing import Spec, check_attention, wrap


def _why_not() -> str:
    try:
        gpu.compiling.current_device()
    except gpu.MissingGPU as error:
        return str(error)
    return ""


if _why_not():
    pytest.skip(_why_not(), allow_module_level=True)

Array = NDArray[Any]


RUNGS = [rung for rung in gpu.ladder().values() if not rung.output]  # of 8 bits: test_gpu_fp8.py


GUARD = 512  # elements before and after what a kernel writes to


def by_name(rung: Kernel) -> str:
    return rung.name


@dataclass(frozen=True)
class Given:
    """A problem in NumPy arrays."""

    q: Array
    k: Array
    v: Array
    do: Array

    @property
    def group(self) -> int:
        return int(self.q.shape[1] // self.k.shape[1])

    def full(self, X: Array) -> Array:
        """X with a head for each query head."""
        return np.asarray(X.repeat(self.group, axis=1))

    @property
    def causal(self) -> Array:
        N_q = self.q.shape[2]
        N_k = self.k.shape[2]
        last_keys = np.arange(N_q)[:, None] + N_k - N_q
        return np.asarray(np.arange(N_k) <= last_keys)


def given(shape: tuple[int, ...], dtype: str, seed: int = 0, outliers: bool = False) -> Given:
    B, H_q, H_kv, N_q, N_k, d = shape
    rng = np.random.default_rng(seed)
    made = []
    for H, N in ((H_q, N_q), (H_kv, N_k), (H_kv, N_k), (H_q, N_q)):
        X = rng.normal(size=(B, H, N, d))
        if outliers:
            sizes = 10 * rng.normal(size=X.shape)
            X = X + sizes * (rng.random(X.shape) < 0.001)
        made.append(X.astype(float_dtype(dtype)))
    return Given(*made)


def on_gpu(problem: Given) -> list[Any]:
    import cupy

    return [cupy.asarray(X) for X in (problem.q, problem.k, problem.v)]


class Poisoned:
    """A contiguous array of NaN between two guard bands of NaN."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        import cupy

        self.size = int(np.prod(shape))
        self.memory = cupy.full(self.size + 2 * GUARD, float("nan"), dtype="float32").astype(dtype)
        self.array = self.memory[GUARD : GUARD + self.size].reshape(shape)

    def get(self) -> Array:
        """What was written, after a look at the guards."""
        result: Array = self.memory.get().astype(np.float64)
        around = np.concatenate([result[:GUARD], result[GUARD + self.size :]])
        assert np.isnan(around).all(), "written outside the output"
        inside = result[GUARD : GUARD + self.size].reshape(self.array.shape)
        assert not np.isnan(inside).any(), "not written everywhere, or NaN"
        return inside


@dataclass(frozen=True)
class Result:
    """What a kernel wrote, in float64."""

    o: Array
    lse: Array
    dq: Array | None = None
    dk: Array | None = None
    dv: Array | None = None


def run(rung: Kernel, problem: Given, backward: bool = False, **arguments: Any) -> Result:
    """Run a rung on poisoned outputs; check guards, and that inputs are as they were."""
    import cupy

    options = Options(arguments.pop("scale", problem.q.shape[-1] ** -0.5), **arguments)
    sent = {name: cupy.asarray(getattr(problem, name)) for name in ("q", "k", "v", "do")}
    inputs = (sent["q"], sent["k"], sent["v"])
    o = Poisoned(problem.q.shape, problem.q.dtype)
    lse = Poisoned(problem.q.shape[:3], "float32")
    rung.forward(*inputs, o.array, lse.array, options)
    results = [o.get(), lse.get()]
    if backward:
        assert rung.backward is not None
        outs = [Poisoned(X.shape, X.dtype) for X in inputs]
        rung.backward(
            *inputs, o.array, lse.array, sent["do"], *(out.array for out in outs), options
        )
        results += [out.get() for out in outs]
    for name, array in sent.items():
        assert (array.get().view(np.uint8) == getattr(problem, name).view(np.uint8)).all(), (
            f"{name} was modified"
        )
    return Result(*results)


def model_blocks(rung: Kernel, problem: Given, direction: str) -> Blocks:
    d = problem.q.shape[-1]
    N_q = problem.q.shape[2]
    N_k = problem.k.shape[2]
    # the narrowest that tensor_core takes
    B_r = 64
    B_c = 16
    if rung.choose_blocks and not (rung.tensor_cores and direction == "backward"):
        B_r, B_c = rung.choose_blocks(d, problem.q.dtype.name, direction)
    return Blocks(B_r, B_c, N_q=N_q, N_k=N_k)


def bounded(rung: Kernel, problem: Given) -> dict[str, Any]:
    """What the bounds need to know of a rung."""
    return {"flushed": True, "operands_stored": rung.tensor_cores}


def assert_near(
    rung: Kernel,
    problem: Given,
    result: Result,
    mask: Any = None,
    keep: Any = None,
    p: float = 0.0,
    scale: float | None = None,
) -> None:
    """Hold results against the reference, in float64 on the same numbers, and its bounds."""
    q = problem.q
    k = problem.full(problem.k)
    v = problem.full(problem.v)
    data = {"mask": mask, "keep": keep, "dropout_p": p, "scale": scale}
    O, l, m = attention_with_statistics(q, k, v, **data)
    rounded = rounding(rung.model, model_blocks(rung, problem, "forward"))
    bound = error_bound(q, k, v, **rounded, **bounded(rung, problem), **data)
    worst = np.max(np.abs(result.o - O) - bound)
    assert worst <= 0, (
        f"O is off by {np.abs(result.o - O).max():.3g}, {worst:.3g} more than its bound"
    )
    with np.errstate(divide="ignore"):
        lse = m + np.log(l)
    assert (np.isneginf(lse) == np.isneginf(result.lse)).all()
    finite = np.isfinite(lse)
    loose = 1e-2 if rung.name == "standard" and q.dtype.itemsize == 2 else 1e-5
    assert np.allclose(result.lse[finite], lse[finite], rtol=loose, atol=10 * loose)
    if result.dq is None:
        return
    once = rung.tensor_cores  # dQ is summed in float32, and rounded once
    backward = backward_rounding(
        "q_outer_two_pass" if once else rung.model,
        model_blocks(rung, problem, "forward"),
        model_blocks(rung, problem, "backward"),
    )
    backward["logs_rounded"] = 2  # what Algorithm 4 gets is the log-sum-exp
    bounds = gradient_bounds(q, k, v, problem.do, **backward, **bounded(rung, problem), **data)
    exact = gradients(q, k, v, problem.do, **data)
    for name, array in (("dQ", result.dq), ("dK", result.dk), ("dV", result.dv)):
        assert array is not None
        expected = getattr(exact, name)
        allowed = getattr(bounds, name)
        if name != "dQ" and problem.group > 1:
            by_group = (q.shape[0], -1, problem.group, *expected.shape[2:])
            allowed = group_bound(
                expected.reshape(by_group), allowed.reshape(by_group), stored=q.dtype
            )
            expected = expected.reshape(by_group).sum(axis=2)
        worst = np.max(np.abs(array - expected) - allowed)
        assert worst <= 0, (
            f"{name} is off by {np.abs(array - expected).max():.3g}, {worst:.3g} more than its bound"
        )


def skip_unless(rung: Kernel, dtype: str, shape: tuple[int, ...], causal: bool = False) -> None:
    if dtype not in rung.dtypes or shape[-1] not in rung.head_dims:
        pytest.skip(f"{rung.name} takes no {dtype} of d = {shape[-1]}")
    if causal and "causal" not in rung.takes:
        pytest.skip(f"{rung.name} has no mask")
    B, H_q, H_kv, N_q, N_k, d = shape
    if rung.unsuited and rung.unsuited((B, H_q, N_q, d), (B, H_kv, N_k, d)):
        pytest.skip("another rung runs in its place")


def tally(
    name: str, shape: tuple[Any, ...], direction: str = "forward", **options: Any
) -> dict[str, tuple[int, int]]:
    B, H_q, H_kv, N_q, N_k, d, blocks = shape
    counted = flashsim.count(
        name,
        N_q=N_q,
        N_k=N_k,
        d=d,
        heads=B * H_q,
        kv_heads=B * H_kv,
        blocks=blocks,
        M=10**9,
        direction=direction,
        **options,
    )
    arrays = counted.hbm.by_array
    return {name: (array.reads, array.writes) for name, array in arrays.items()}


def moved(counters: dict[str, gpu.Moved]) -> dict[str, tuple[int, int]]:
    traffic = {}
    for name, array in counters.items():
        if array.reads or array.writes:
            traffic[name] = (array.reads, array.writes)
    return traffic


def check(rung: Kernel, dtype: str, d: int, *, examples: int) -> None:
    """Run the kit over a rung."""
    import cupy

    def forward(q: Any, k: Any, v: Any, **options: Any) -> Any:
        return gpu.forward(q, k, v, kernel=rung.name, return_lse=True, **options)

    def backward(q: Any, k: Any, v: Any, do: Any, **options: Any) -> Any:
        q, k, v, do = (cupy.asarray(X) for X in (q, k, v, do))
        options = {
            name: cupy.asarray(X) if isinstance(X, np.ndarray) else X for name, X in options.items()
        }
        o, lse = gpu.forward(q, k, v, kernel=rung.name, return_lse=True, **options)
        result = gpu.backward(q, k, v, o, lse, do, kernel=rung.name, deterministic=True, **options)
        return tuple(X.get() for X in result)

    def dropout(shape: tuple[int, ...], p: float, seed: int) -> Array:
        heads = [
            keep_mask(seed, p, shape[2], shape[3], head) for head in range(shape[0] * shape[1])
        ]
        return np.stack(heads).reshape(shape)

    drops = "dropout_p" in rung.takes and "dropout_p" not in rung.not_backward.get(d, ())
    spec = Spec(
        dtypes=(dtype,),
        block=(64, 64),
        causal="bottom_right" if "causal" in rung.takes else None,
        lse="natural",
        gqa=True,
        masks="mask" in rung.takes and not rung.tensor_cores,  # which take 0 · NaN for NaN
        scale=True,
        head_dims=(d,),
        strides="contiguous" if rung.tensor_cores else "last_contiguous",
        stores={
            "algorithm_1": "output_per_block",
            "algorithm_2": "output_per_block",
            "standard": "scores",
        }.get(rung.name, "output"),
    )
    check_attention(
        wrap(forward, "cupy"),
        spec,
        max_examples=examples,
        backward=backward if rung.backward else None,
        dropout=dropout if drops else None,
        expected_failures=dict.fromkeys(
            ("masked_kv_poison", "backward_poison"), "0 · NaN is NaN to cuBLAS"
        )
        if rung.name == "standard"
        else None,
    )

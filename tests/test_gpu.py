"""The kernels on a GPU: results against the reference, counts against `flashsim.count`, and what is
written and what is not.

Skipped, with the reason, where there is no GPU. What needs none is in test_gpu_compile.py.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import flashsim
from flashsim import gpu
from flashsim.attention.inputs import float_dtype
from flashsim.attention.masks.dropout import keep_mask
from flashsim.attention.shapes import Blocks
from flashsim.gpu import hopper, hopper_backward
from flashsim.gpu.kernel import Kernel, Options
from flashsim.gpu.launching import launch
from flashsim.learn.examples import same_curve
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

Array = NDArray[Any]


def _why_not() -> str:
    try:
        gpu.compiling.current_device()
    except gpu.MissingGPU as error:
        return str(error)
    return ""


if _why_not():
    pytest.skip(_why_not(), allow_module_level=True)

pytestmark = [
    pytest.mark.filterwarnings("ignore:tensor_core runs instead of hopper"),
    pytest.mark.filterwarnings("ignore:hopper runs instead of hopper_decode"),
]

RUNGS = [rung for rung in gpu.ladder().values() if not rung.output]  # of 8 bits: test_gpu_fp8.py
COUNTING = [rung for rung in RUNGS if "count" in rung.takes]
BACKWARD = [rung for rung in RUNGS if rung.backward]
DTYPES = ("float32", "float16", "bfloat16")
GUARD = 512  # elements before and after what a kernel writes to

SHAPES = {  # B, H_q, H_kv, N_q, N_k, d
    "one": (1, 1, 1, 1, 1, 64),
    "63": (1, 3, 3, 63, 63, 64),
    "64": (1, 3, 3, 64, 64, 32),
    "65": (3, 1, 1, 65, 65, 64),
    "127": (1, 1, 1, 127, 127, 128),
    "128": (1, 2, 2, 128, 128, 64),
    "129, multi-query": (1, 3, 1, 129, 129, 64),
    "1000": (1, 3, 3, 1000, 1000, 64),
    "more keys": (1, 2, 2, 64, 200, 64),
    "more queries": (1, 2, 2, 200, 65, 64),
    "grouped": (2, 4, 2, 65, 191, 32),
    "few queries": (1, 1, 1, 7, 300, 128),
    "191": (1, 2, 1, 191, 191, 64),
    "192": (1, 1, 1, 192, 192, 64),
    "193": (2, 2, 1, 193, 193, 128),
}


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
        return np.asarray(np.arange(N_k) <= np.arange(N_q)[:, None] + N_k - N_q)


def given(shape: tuple[int, ...], dtype: str, seed: int = 0, outliers: bool = False) -> Given:
    B, H_q, H_kv, N_q, N_k, d = shape
    rng = np.random.default_rng(seed)
    made = []
    for H, N in ((H_q, N_q), (H_kv, N_k), (H_kv, N_k), (H_q, N_q)):
        X = rng.normal(size=(B, H, N, d))
        if outliers:
            X = X + 10 * rng.normal(size=X.shape) * (rng.random(X.shape) < 0.001)
        made.append(X.astype(float_dtype(dtype)))
    return Given(*made)


@pytest.fixture(autouse=True)
def _own_pool() -> Iterator[None]:
    import cupy

    yield
    cupy.get_default_memory_pool().free_all_blocks()


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
        found: Array = self.memory.get().astype(np.float64)
        around = np.concatenate([found[:GUARD], found[GUARD + self.size :]])
        assert np.isnan(around).all(), "written outside the output"
        inside = found[GUARD : GUARD + self.size].reshape(self.array.shape)
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


def run(rung: Kernel, problem: Given, backward: bool = False, **asked: Any) -> Result:
    """Run a rung on poisoned outputs; check guards, and that inputs are as they were."""
    import cupy

    options = Options(asked.pop("scale", problem.q.shape[-1] ** -0.5), **asked)
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
    found: Result,
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
    worst = np.max(np.abs(found.o - O) - bound)
    assert worst <= 0, (
        f"O is off by {np.abs(found.o - O).max():.3g}, {worst:.3g} more than its bound"
    )
    with np.errstate(divide="ignore"):
        lse = m + np.log(l)
    assert (np.isneginf(lse) == np.isneginf(found.lse)).all()
    finite = np.isfinite(lse)
    loose = 1e-2 if rung.name == "standard" and q.dtype.itemsize == 2 else 1e-5
    assert np.allclose(found.lse[finite], lse[finite], rtol=loose, atol=10 * loose)
    if found.dq is None:
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
    for name, array in (("dQ", found.dq), ("dK", found.dk), ("dV", found.dv)):
        assert array is not None
        wanted = getattr(exact, name)
        allowed = getattr(bounds, name)
        if name != "dQ" and problem.group > 1:
            by_group = (q.shape[0], -1, problem.group, *wanted.shape[2:])
            allowed = group_bound(
                wanted.reshape(by_group), allowed.reshape(by_group), stored=q.dtype
            )
            wanted = wanted.reshape(by_group).sum(axis=2)
        worst = np.max(np.abs(array - wanted) - allowed)
        assert worst <= 0, (
            f"{name} is off by {np.abs(array - wanted).max():.3g}, {worst:.3g} more than its bound"
        )


def skip_unless(rung: Kernel, dtype: str, shape: tuple[int, ...], causal: bool = False) -> None:
    if dtype not in rung.dtypes or shape[-1] not in rung.head_dims:
        pytest.skip(f"{rung.name} takes no {dtype} of d = {shape[-1]}")
    if causal and "causal" not in rung.takes:
        pytest.skip(f"{rung.name} has no mask")
    B, H_q, H_kv, N_q, N_k, d = shape
    if rung.unsuited and rung.unsuited((B, H_q, N_q, d), (B, H_kv, N_k, d)):
        pytest.skip("another rung runs in its place")


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("rung", RUNGS, ids=by_name)
def test_results_lie_within_rounding_of_the_reference(
    rung: Kernel, shape: tuple[int, ...], dtype: str, causal: bool
) -> None:
    skip_unless(rung, dtype, shape, causal)
    problem = given(shape, dtype, outliers=shape[3] == 1000)
    found = run(rung, problem, backward=rung.backward is not None, causal=causal)
    assert_near(rung, problem, found, problem.causal if causal else None)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rung", [rung for rung in RUNGS if "dropout_p" in rung.takes], ids=by_name)
def test_dropout_lies_within_rounding_of_the_reference(
    rung: Kernel, dtype: str, d: int, causal: bool
) -> None:
    shape = (1, 2, 2, 129, 150, d)
    skip_unless(rung, dtype, shape, causal)
    problem = given(shape, dtype)
    p = 0.3
    seed = 2**40 + 5
    keep = np.stack([keep_mask(seed, p, 129, 150, head) for head in range(2)])[None]
    found = run(
        rung, problem, backward=rung.backward is not None, causal=causal, dropout_p=p, seed=seed
    )
    assert_near(rung, problem, found, problem.causal if causal else None, keep, p)


@pytest.mark.parametrize("rung", [rung for rung in RUNGS if "dropout_p" in rung.takes], ids=by_name)
def test_the_dropout_mask_is_numpys_bit_for_bit(rung: Kernel) -> None:
    """With q = 0 every weight is 1/N_k, and with 64 rows of the identity for V, O shows the mask
    of 64 keys.
    """
    dtype = rung.dtypes[-1]
    B = 2
    H = 3
    N_q = 130
    N_k = 192
    d = 64
    p = 0.7
    seed = 0xFEDCBA9876543210
    for first in range(0, N_k, d):
        problem = given((B, H, H, N_q, N_k, d), dtype)
        problem.q[...] = 0
        problem.v[...] = np.eye(N_k, d, -first)
        found = run(rung, problem, dropout_p=p, seed=seed).o != 0
        for head in range(B * H):
            wanted = keep_mask(seed, p, N_q, N_k, head)[:, first : first + d]
            assert (found[head // H, head % H] == wanted).all()


@pytest.mark.parametrize("causal", [False, True], ids=["dense", "causal and dense"])
@pytest.mark.parametrize("broadcast", [(2, 3, 65, 130), (2, 1, 1, 130), (1, 3, 65, 1), (130,)])
@pytest.mark.parametrize("rung", [rung for rung in RUNGS if "mask" in rung.takes], ids=by_name)
def test_masks_lie_within_rounding_of_the_reference(
    rung: Kernel, broadcast: tuple[int, ...], causal: bool
) -> None:
    import cupy

    problem = given((2, 3, 3, 65, 130, 64), rung.dtypes[-1])
    mask = np.random.default_rng(1).random(broadcast) < 0.5
    whole = np.broadcast_to(mask, (2, 3, 65, 130))
    sent = cupy.broadcast_to(cupy.asarray(mask), whole.shape)
    found = run(rung, problem, backward=rung.backward is not None, causal=causal, mask=sent)
    assert_near(rung, problem, found, whole & problem.causal if causal else whole)


# --------------------------------------------------------------------------------------------------
# counts

COUNTED = {  # B, H_q, H_kv, N_q, N_k, d, blocks
    "whole": (1, 2, 2, 128, 128, 64, None),
    "ragged": (2, 3, 3, 129, 129, 64, None),
    "more keys": (1, 3, 3, 70, 331, 32, None),
    "more queries": (1, 3, 1, 331, 70, 32, None),
    "one": (1, 1, 1, 1, 1, 128, None),
    "grouped": (2, 6, 2, 100, 200, 128, None),
    "16 keys": (1, 2, 2, 200, 200, 64, (64, 16)),
    "32 rows, 128 keys": (1, 2, 2, 200, 200, 64, (32, 128)),
}


def tally(
    name: str, shape: tuple[Any, ...], direction: str = "forward", **asked: Any
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
        **asked,
    )
    return {array: (a.reads, a.writes) for array, a in counted.hbm.by_array.items()}


def moved(counters: dict[str, gpu.Moved]) -> dict[str, tuple[int, int]]:
    return {array: (a.reads, a.writes) for array, a in counters.items() if a.reads or a.writes}


@pytest.mark.parametrize("masked", ["full", "causal", "dense", "causal and dense"])
@pytest.mark.parametrize("dropout_p", [0.0, 0.1])
@pytest.mark.parametrize("shape", COUNTED.values(), ids=COUNTED)
@pytest.mark.parametrize("rung", COUNTING, ids=by_name)
def test_counts_are_the_simulators(
    rung: Kernel, shape: tuple[Any, ...], dropout_p: float, masked: str
) -> None:
    import cupy

    if (masked != "full" and "causal" not in rung.takes) or (
        dropout_p and "dropout_p" not in rung.takes
    ):
        pytest.skip(f"{rung.name} has neither mask nor dropout")
    if "dense" in masked and "mask" not in rung.takes:
        pytest.skip(f"{rung.name} has no dense masks")
    *sizes, blocks = shape
    if rung.name == "hopper_decode":
        pytest.skip("it cuts heads unlike each other: see below")
    if rung.name in ("hopper", "hopper_forward") and (sizes[5] == 32 or blocks):
        pytest.skip("tensor_core runs instead of hopper, or it does not have such blocks")
    if rung.name == "hopper":
        kind = {"full": "FULL", "causal": "CAUSAL"}.get(masked, "ARRAY")
        tiles = hopper.choose_tiles(sizes[5], kind, dropout_p > 0)
        blocks = (tiles.B_r, tiles.B_c)
    dtype = "float32" if "float32" in rung.dtypes else rung.dtypes[0]
    problem = given(tuple(sizes), dtype)
    chosen = rung.choose_blocks
    assert chosen is not None
    asked: dict[str, Any] = {"causal": masked.startswith("causal"), "dropout_p": dropout_p}
    dense = np.ones((sizes[3], sizes[4]), bool)
    q, k, v, do = (cupy.asarray(X) for X in (problem.q, problem.k, problem.v, problem.do))
    run_with = {
        **asked,
        "mask": cupy.asarray(dense) if "dense" in masked else None,
        "kernel": rung.name,
        "blocks": blocks,
    }
    model_with = {**asked, "mask": dense if "dense" in masked else None}
    # the seed comes with the call, and is not written
    unwritten = {"R"} if rung.name == "hopper" else set()
    o, lse, counted = gpu.forward(q, k, v, return_lse=True, count=True, **run_with)
    ours = (*sizes, blocks or chosen(sizes[5], dtype, "forward"))
    wanted = tally(rung.model, ours, **model_with)
    assert moved(counted) == {array: a for array, a in wanted.items() if array not in unwritten}
    if rung.backward and not rung.tensor_cores:
        *_, counted = gpu.backward(q, k, v, o, lse, do, count=True, **run_with)
        ours = (*sizes, blocks or chosen(sizes[5], "float32", "backward"))
        assert moved(counted) == tally(rung.model, ours, "backward", **model_with)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    "shape",
    [
        (1, 2, 2, 256, 256, 64),
        (2, 1, 1, 300, 700, 128),
        (1, 3, 3, 500, 130, 64),
        (1, 4, 2, 200, 333, 128),
        (2, 36, 18, 70, 900, 64),  # more key blocks than two for each multiprocessor
    ],
)
def test_hoppers_backward_pass_counts(shape: tuple[int, ...], causal: bool) -> None:
    """As q_outer's, but that L is copied, dQ's sums are rounded where rows see a key, and a
    group has one K_j and V_j.
    """
    import cupy

    B, H, H_kv, N_q, N_k, d = shape
    problem = given(shape, "float16")
    q, k, v, do = (cupy.asarray(X) for X in (problem.q, problem.k, problem.v, problem.do))
    asked: dict[str, Any] = {"kernel": "hopper", "causal": causal}
    o, lse = gpu.forward(q, k, v, return_lse=True, **asked)
    *_, counted = gpu.backward(q, k, v, o, lse, do, count=True, deterministic=True, **asked)
    wanted = tally("q_outer", (*shape, hopper_backward.choose_blocks(d)), "backward", causal=causal)
    rows = B * H * N_q
    keys = B * H_kv * N_k * d
    wanted |= {"K": (keys, 0), "V": (keys, 0), "dK": (0, keys), "dV": (0, keys)}
    wanted["L"] = wanted["L"][0] + rows, rows
    B_r = hopper_backward.choose_blocks(d)[0]
    summed = B * H * (N_q - max(0, N_q - N_k) // B_r * B_r * causal) * d
    wanted["dQ"] = wanted["dQ"][0] + summed, wanted["dQ"][1] + summed
    assert moved(counted) == {name: a for name, a in wanted.items() if "parts" not in name}


@pytest.mark.parametrize("scale", [1e9, -1e9, 0.0])
@pytest.mark.parametrize("rung", BACKWARD, ids=by_name)
def test_gradients_of_huge_scores_are_finite(rung: Kernel, scale: float) -> None:
    """P = e^(S − L) would not be at most 1 where S and L are so large that their rounding
    exceeds 1.
    """
    if rung.name == "standard":
        pytest.skip("it divides by ℓ, and has no L")
    problem = given((1, 1, 1, 130, 130, 64), rung.dtypes[-1])
    problem.q[...] = np.abs(problem.q)
    problem.k[...] = 1 + np.abs(problem.k) / 2**20  # all keys alike: the maximum is many keys'
    found = run(rung, problem, backward=True, scale=scale)
    assert found.dv is not None
    weights = np.abs(problem.do).astype(np.float64).sum(axis=2, keepdims=True)
    assert (np.abs(found.dv) <= 1.01 * weights + 1e-3).all()  # P ≤ 1


@pytest.mark.parametrize("B_c", [16, 32, 64, 128, 256])
def test_algorithm_1_counts_at_every_block_size_of_figure_2(B_c: int) -> None:
    import cupy

    problem = given((1, 3, 3, 333, 333, 64), "float32")
    q, k, v = (cupy.asarray(X) for X in (problem.q, problem.k, problem.v))
    o, counted = gpu.forward(q, k, v, kernel="algorithm_1", blocks=(64, B_c), count=True)
    assert moved(counted) == tally("flash_basic", (1, 3, 3, 333, 333, 64, (64, B_c)))
    # counting changes no bit
    assert (o == gpu.forward(q, k, v, kernel="algorithm_1", blocks=(64, B_c))).all()


# --------------------------------------------------------------------------------------------------
# behaviour


@pytest.mark.parametrize("rung", RUNGS, ids=by_name)
def test_repeats_give_the_same_bits(rung: Kernel) -> None:
    dtype = rung.dtypes[0]
    problem = given((2, 3, 3, 191, 191, 64), dtype)
    first = run(rung, problem, backward=rung.backward is not None, deterministic=True)
    for _ in range(19):
        again = run(rung, problem, backward=rung.backward is not None, deterministic=True)
        for name in ("o", "lse", "dq", "dk", "dv"):
            assert np.array_equal(getattr(first, name), getattr(again, name)), name


@pytest.mark.parametrize("rung", RUNGS, ids=by_name)
def test_strides_are_honoured(rung: Kernel) -> None:
    """(B, N, H, d) in memory, and rows that are part of longer ones."""
    import cupy

    problem = given((2, 3, 3, 70, 70, 64), rung.dtypes[0])
    plain = [cupy.asarray(X) for X in (problem.q, problem.k, problem.v, problem.do)]
    transposed = [cupy.ascontiguousarray(X.swapaxes(1, 2)).swapaxes(1, 2) for X in plain]
    wider = [cupy.concatenate([X, X], axis=-1)[..., 64:] for X in plain]
    o, lse = gpu.forward(*plain[:3], kernel=rung.name, return_lse=True)
    for views in (transposed, wider):
        assert (gpu.forward(*views[:3], kernel=rung.name) == o).all()
        if rung.backward:
            options: dict[str, Any] = {"kernel": rung.name, "deterministic": True}
            wanted, found = (
                gpu.backward(a, b, c, o, lse, do, **options) for a, b, c, do in (plain, views)
            )
            assert all((a == b).all() for a, b in zip(wanted, found, strict=True))


def test_offsets_are_64_bit() -> None:
    """More than 2³¹ elements: 520,000 heads of 65 × 64, the same thousand over and over, but for
    the last.
    """
    import cupy

    if cupy.cuda.runtime.memGetInfo()[0] < 40 * 2**30:
        pytest.skip("needs 40 GB of the GPU's memory")
    heads = 1000
    repeats = 520
    problem = given((1, heads, heads, 65, 65, 64), "float16")
    small = [cupy.asarray(X) for X in (problem.q, problem.k, problem.v)]
    large = [cupy.empty((1, repeats * heads, 65, 64), "float16") for _ in small]
    for whole, part in zip(large, small, strict=True):
        whole.reshape(repeats, heads, 65, 64)[...] = part
    assert large[0].size > 2**31
    large[2][0, -1] *= 2
    wanted = gpu.forward(*small, kernel="q_outer", causal=True)
    found = gpu.forward(*large, kernel="q_outer", causal=True)
    assert abs(found[0, -1] - 2 * wanted[0, -1]).max() < 1e-2
    found[0, -1] = wanted[0, -1]
    for part in found.reshape(repeats, heads, 65, 64):
        assert bool((part == wanted[0]).all())


def test_the_current_stream_is_respected() -> None:
    """Where the stream still has to make q, the kernel waits for it."""
    import cupy

    problem = given((1, 2, 2, 64, 64, 64), "float32")
    q, k, v = (cupy.asarray(X) for X in (problem.q, problem.k, problem.v))
    wanted = gpu.forward(q, k, v, kernel="q_outer")
    wait = cupy.RawKernel(
        r"""extern "C" __global__ void wait(long long cycles) { for (long long t = clock64(); clock64() - t < cycles;); }""",
        "wait",
    )
    stream = cupy.cuda.Stream(non_blocking=True)
    # the first time, memory is allocated and kernels are loaded, which waits for the GPU
    for first in (True, False):
        late = cupy.full_like(q, float("nan"))
        cupy.cuda.Device().synchronize()
        with stream:
            wait((1,), (1,), (np.int64(10**5 if first else 5 * 10**8),))
            late[...] = q
            found = gpu.forward(late, k, v, kernel="q_outer")
            waiting = not stream.done
        stream.synchronize()
        assert (found == wanted).all()
    assert waiting, "the GPU had nothing to do, so this has shown nothing"


def test_the_plan_is_the_fastest_that_takes_the_arguments() -> None:
    import cupy

    hopper = cupy.cuda.Device().compute_capability == "90"
    fast = "hopper" if hopper else "tensor_core"
    half, single, small = (
        cupy.ones((1, 2, 70, d), dtype)
        for d, dtype in ((64, "float16"), (64, "float32"), (32, "float16"))
    )
    wide = cupy.ones((1, 2, 70, 68), "float16")[..., :64]
    mask = cupy.ones((70, 70), bool)
    for X, asked, wanted, why in (
        (half, {}, fast, "70 keys" if hopper else "capability"),
        (half, {"dropout_p": 0.5, "causal": True}, fast, ""),
        (
            half[:, :, :8],
            {},
            "hopper_decode" if hopper else fast,
            "the fastest" if hopper else "capability",
        ),
        (half, {"mask": flashsim.SlidingWindow(9, 0)}, "hopper" if hopper else "q_outer", ""),
        (small, {}, "tensor_core", "d is 32" if hopper else ""),
        (wide, {}, "q_outer", "multiples of 16"),
        (
            half,
            {"mask": mask},
            "hopper" if hopper else "q_outer",
            "70 keys" if hopper else "does not take mask",
        ),
        (single, {}, "q_outer", "does not take float32"),
    ):
        found = gpu.plan(X, X, X, **asked)
        assert found.kernel == wanted
        assert why in found.why
        assert (gpu.forward(X, X, X, **asked) == gpu.forward(X, X, X, kernel=wanted, **asked)).all()
    assert gpu.plan(half, half, half, direction="backward").kernel == fast
    assert gpu.plan(half, half, half, direction="backward", blocks=(64, 64)).kernel == "algorithm_2"


def test_torch_tensors_go_in_and_come_back() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        q, k, v, do = (torch.randn(2, 3, 100, 64, device="cuda", dtype=dtype) for _ in range(4))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            o, lse = gpu.forward(
                q.requires_grad_(), k, v, kernel="algorithm_2", causal=True, return_lse=True
            )
            dq, dk, dv = gpu.backward(q, k, v, o, lse, do, kernel="algorithm_2", causal=True)
        side.synchronize()
        wanted = torch.nn.functional.scaled_dot_product_attention(
            q.float(), k.float(), v.float(), is_causal=True
        )
        assert o.dtype == dtype
        assert (o.float() - wanted).abs().max().item() < (1e-5 if dtype == torch.float32 else 3e-2)
        wanted.backward(do.float())
        assert q.grad is not None
        assert (dq.float() - q.grad.float()).abs().max().item() < (
            1e-4 if dtype == torch.float32 else 1e-1
        )
        assert dk.shape == dv.shape == k.shape


def test_wrong_arguments_are_refused_before_anything_is_launched() -> None:
    import cupy

    q = cupy.zeros((1, 2, 8, 64), "float32")
    half, wide = cupy.zeros((1, 2, 8, 64), "float16"), cupy.zeros((1, 2, 8, 72), "float16")
    forward: Any = partial(gpu.forward, kernel="q_outer")
    bad: list[tuple[str, Callable[[], Any]]] = [
        ("d = 48", lambda: gpu.forward(q[..., :48], q[..., :48], q[..., :48])),
        ("q has shape", lambda: gpu.forward(q[0, 0, 0, 0], q, q)),
        ("(256, 64)", lambda: gpu.forward(half, half, half, kernel="hopper", blocks=(64, 64))),
        (
            "multiples of 16",
            lambda: gpu.forward(*(wide[..., 1:65] for _ in "qkv"), kernel="hopper"),
        ),
        (
            "blocks is given",
            lambda: gpu.backward(
                half, half, half, half, q[..., 0], half, kernel="hopper", blocks=(128, 128)
            ),
        ),
        ("kernel is 'tensor'", lambda: gpu.forward(q, q, q, kernel="tensor")),
        ("q is a numpy.ndarray not on a GPU", lambda: forward(q.get(), q, q)),
        ("k is a list", lambda: forward(q, [1], q)),
        ("q has shape", lambda: forward(q[0], q, q)),
        ("v has dtype float64", lambda: forward(q, q, q.astype("float64"))),
        ("v has dtype float16", lambda: forward(q, q, q.astype("float16"))),
        ("d = 48", lambda: forward(q[..., :48], q[..., :48], q[..., :48])),
        ("k has shape", lambda: forward(q, q[..., :32], q[..., :32])),
        ("v has shape", lambda: forward(q, q, q[:, :, :4])),
        (
            "q has 2 heads",
            lambda: forward(
                q, cupy.zeros((1, 3, 8, 64), "float32"), cupy.zeros((1, 3, 8, 64), "float32")
            ),
        ),
        ("q has strides", lambda: forward(cupy.zeros((1, 2, 8, 128), "float32")[..., ::2], q, q)),
        ("every axis", lambda: forward(q, q[:, :, :0], q[:, :, :0])),
        ("causal is 1", lambda: forward(q, q, q, causal=1)),
        ("causal is given", lambda: gpu.forward(q, q, q, kernel="algorithm_1", causal=True)),
        ("count is given", lambda: gpu.forward(q, q, q, kernel="standard", count=True)),
        ("dropout_p is 1", lambda: forward(q, q, q, dropout_p=1)),
        ("seed is -1", lambda: forward(q, q, q, seed=-1)),
        ("blocks is 3", lambda: forward(q, q, q, blocks=3)),
        ("multiples of 16", lambda: forward(q, q, q, blocks=(64, 60))),
        ("shared memory", lambda: forward(q, q, q, blocks=(1024, 1024))),
        ("mask has dtype", lambda: forward(q, q, q, mask=q)),
        ("mask has shape", lambda: forward(q, q, q, mask=cupy.ones((3, 8), bool))),
        ("no backward pass", lambda: gpu.backward(q, q, q, q, q, q, kernel="q_outer")),
        ("lse has", lambda: gpu.backward(q, q, q, q, q, q, kernel="algorithm_2")),
        (
            "do has shape",
            lambda: gpu.backward(q, q, q, q, q[..., 0], q[:, :, :4], kernel="algorithm_2"),
        ),
        (
            "N and B·H of",
            lambda: forward(
                *(cupy.broadcast_to(q[:1, :1, :1], (2**16, 2**15, 1, 64)) for _ in "qkv")
            ),
        ),
        ("a grid has", lambda: launch("q_outer.cu", "q_outer", 2**31, 0, (), (), Options(1.0))),
    ]
    for message, call in bad:
        with pytest.raises(ValueError) as caught:  # noqa: PT011  (each has its message)
            call()
        assert message in str(caught.value)
    with pytest.raises(MemoryError, match="Out of memory"):
        forward(*(cupy.broadcast_to(q[:1, :1, :1], (2**10, 2**10, 2**10, 64)) for _ in "qkv"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rung", RUNGS, ids=by_name)
def test_the_kit_finds_nothing(rung: Kernel, dtype: str) -> None:
    if dtype not in rung.dtypes:
        pytest.skip(f"{rung.name} takes no {dtype}")
    check(rung, dtype, 64, examples=40)


def check(rung: Kernel, dtype: str, d: int, *, examples: int) -> None:
    """Run the kit over a rung."""
    import cupy

    def forward(q: Any, k: Any, v: Any, **asked: Any) -> Any:
        return gpu.forward(q, k, v, kernel=rung.name, return_lse=True, **asked)

    def backward(q: Any, k: Any, v: Any, do: Any, **asked: Any) -> Any:
        q, k, v, do = (cupy.asarray(X) for X in (q, k, v, do))
        asked = {
            name: cupy.asarray(X) if isinstance(X, np.ndarray) else X for name, X in asked.items()
        }
        o, lse = gpu.forward(q, k, v, kernel=rung.name, return_lse=True, **asked)
        found = gpu.backward(q, k, v, o, lse, do, kernel=rung.name, deterministic=True, **asked)
        return tuple(X.get() for X in found)

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


@pytest.mark.parametrize(
    "bug", [None, *same_curve.ON_GPU], ids=lambda bug: bug.what if bug else "right"
)
def test_a_kernel_s_bug_shows_in_two_steps_of_training(bug: same_curve.Bug | None) -> None:
    first = same_curve.train(same_curve.Setup("standard", None, "float32", 2))
    curve = same_curve.train(same_curve.Setup(same_curve.GPU, None, "float32", 2, bug))
    (apart,) = same_curve.distances([first, curve])
    assert apart.shows == (2 if bug else None)

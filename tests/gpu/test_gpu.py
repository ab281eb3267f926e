"""The kernels on a GPU: results against the reference, counts against `flashsim.count`, and what is
written and what is not.

Skipped, with the reason, where there is no GPU. What needs none is in test_gpu_compile.py.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import gpu
from flashsim.attention.masks.dropout import keep_mask
from flashsim.gpu import hopper, hopper_backward
from flashsim.gpu.kernel import Kernel, Options
from flashsim.gpu.launching import launch
from flashsim.learn.examples import same_curve
from tests.helpers.gpu_runs import (
    RUNGS,
    assert_near,
    by_name,
    check,
    given,
    moved,
    on_gpu,
    run,
    skip_unless,
    tally,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:tensor_core runs instead of hopper"),
    pytest.mark.filterwarnings("ignore:hopper runs instead of hopper_decode"),
]

COUNTING = [rung for rung in RUNGS if "count" in rung.takes]
BACKWARD = [rung for rung in RUNGS if rung.backward]
DROPPING = [rung for rung in RUNGS if "dropout_p" in rung.takes]
MASKED = [rung for rung in RUNGS if "mask" in rung.takes]
DTYPES = ("float32", "float16", "bfloat16")

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


@pytest.fixture(autouse=True)
def _own_pool() -> Iterator[None]:
    import cupy

    yield
    cupy.get_default_memory_pool().free_all_blocks()


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("rung", RUNGS, ids=by_name)
def test_results_lie_within_rounding_of_the_reference(
    rung: Kernel, shape: tuple[int, ...], dtype: str, causal: bool
) -> None:
    skip_unless(rung, dtype, shape, causal)
    problem = given(shape, dtype, outliers=shape[3] == 1000)
    result = run(rung, problem, backward=rung.backward is not None, causal=causal)
    assert_near(rung, problem, result, problem.causal if causal else None)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rung", DROPPING, ids=by_name)
def test_dropout_lies_within_rounding_of_the_reference(
    rung: Kernel, dtype: str, d: int, causal: bool
) -> None:
    shape = (1, 2, 2, 129, 150, d)
    skip_unless(rung, dtype, shape, causal)
    problem = given(shape, dtype)
    p = 0.3
    seed = 2**40 + 5
    keep = np.stack([keep_mask(seed, p, 129, 150, head) for head in range(2)])[None]
    result = run(
        rung,
        problem,
        backward=rung.backward is not None,
        causal=causal,
        dropout_p=p,
        seed=seed,
    )
    mask = problem.causal if causal else None
    assert_near(rung, problem, result, mask, keep, p)


@pytest.mark.parametrize("rung", DROPPING, ids=by_name)
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
        kept = run(rung, problem, dropout_p=p, seed=seed).o != 0
        for head in range(B * H):
            expected = keep_mask(seed, p, N_q, N_k, head)[:, first : first + d]
            assert (kept[head // H, head % H] == expected).all()


@pytest.mark.parametrize("causal", [False, True], ids=["dense", "causal and dense"])
@pytest.mark.parametrize(
    "broadcast",
    [
        (2, 3, 65, 130),
        (2, 1, 1, 130),
        (1, 3, 65, 1),
        (130,),
    ],
)
@pytest.mark.parametrize("rung", MASKED, ids=by_name)
def test_masks_lie_within_rounding_of_the_reference(
    rung: Kernel, broadcast: tuple[int, ...], causal: bool
) -> None:
    import cupy

    problem = given((2, 3, 3, 65, 130, 64), rung.dtypes[-1])
    mask = np.random.default_rng(1).random(broadcast) < 0.5
    whole = np.broadcast_to(mask, (2, 3, 65, 130))
    sent = cupy.broadcast_to(cupy.asarray(mask), whole.shape)
    result = run(rung, problem, backward=rung.backward is not None, causal=causal, mask=sent)
    assert_near(rung, problem, result, whole & problem.causal if causal else whole)


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


@pytest.mark.parametrize("masked", ["full", "causal", "dense", "causal and dense"])
@pytest.mark.parametrize("dropout_p", [0.0, 0.1])
@pytest.mark.parametrize("shape", COUNTED.values(), ids=COUNTED)
@pytest.mark.parametrize("rung", COUNTING, ids=by_name)
def test_counts_are_the_simulators(
    rung: Kernel, shape: tuple[Any, ...], dropout_p: float, masked: str
) -> None:
    import cupy

    takes_mask = masked == "full" or "causal" in rung.takes
    takes_dropout = not dropout_p or "dropout_p" in rung.takes
    if not (takes_mask and takes_dropout):
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
    options: dict[str, Any] = {"causal": masked.startswith("causal"), "dropout_p": dropout_p}
    dense = np.ones((sizes[3], sizes[4]), bool)
    q, k, v = on_gpu(problem)
    do = cupy.asarray(problem.do)
    run_with = {
        **options,
        "mask": cupy.asarray(dense) if "dense" in masked else None,
        "kernel": rung.name,
        "blocks": blocks,
    }
    model_with = {**options, "mask": dense if "dense" in masked else None}
    # the seed comes with the call, and is not written
    unwritten = {"R"} if rung.name == "hopper" else set()
    o, lse, counted = gpu.forward(q, k, v, return_lse=True, count=True, **run_with)
    ours = (*sizes, blocks or chosen(sizes[5], dtype, "forward"))
    expected = tally(rung.model, ours, **model_with)
    written = {array: a for array, a in expected.items() if array not in unwritten}
    assert moved(counted) == written
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
    q, k, v = on_gpu(problem)
    do = cupy.asarray(problem.do)
    options: dict[str, Any] = {"kernel": "hopper", "causal": causal}
    o, lse = gpu.forward(q, k, v, return_lse=True, **options)
    options["deterministic"] = True
    *_, counted = gpu.backward(q, k, v, o, lse, do, count=True, **options)
    blocks = hopper_backward.choose_blocks(d)
    expected = tally("q_outer", (*shape, blocks), "backward", causal=causal)
    rows = B * H * N_q
    keys = B * H_kv * N_k * d
    expected["K"] = (keys, 0)
    expected["V"] = (keys, 0)
    expected["dK"] = (0, keys)
    expected["dV"] = (0, keys)
    expected["L"] = expected["L"][0] + rows, rows
    B_r = blocks[0]
    blocks_without_keys = max(0, N_q - N_k) // B_r if causal else 0
    rows_with_keys = N_q - blocks_without_keys * B_r
    summed = B * H * rows_with_keys * d
    reads, writes = expected["dQ"]
    expected["dQ"] = reads + summed, writes + summed
    for name in [name for name in expected if "parts" in name]:
        del expected[name]
    assert moved(counted) == expected


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
    result = run(rung, problem, backward=True, scale=scale)
    assert result.dv is not None
    dO = np.abs(problem.do).astype(np.float64)
    weights = dO.sum(axis=2, keepdims=True)
    assert (np.abs(result.dv) <= 1.01 * weights + 1e-3).all()  # P ≤ 1


@pytest.mark.parametrize("B_c", [16, 32, 64, 128, 256])
def test_algorithm_1_counts_at_every_block_size_of_figure_2(B_c: int) -> None:
    problem = given((1, 3, 3, 333, 333, 64), "float32")
    q, k, v = on_gpu(problem)
    options: dict[str, Any] = {"kernel": "algorithm_1", "blocks": (64, B_c)}
    o, counted = gpu.forward(q, k, v, count=True, **options)
    assert moved(counted) == tally("flash_basic", (1, 3, 3, 333, 333, 64, (64, B_c)))
    # counting changes no bit
    assert (o == gpu.forward(q, k, v, **options)).all()


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
    plain = [*on_gpu(problem), cupy.asarray(problem.do)]
    transposed = []
    wider = []
    for X in plain:
        heads_last = cupy.ascontiguousarray(X.swapaxes(1, 2))
        transposed.append(heads_last.swapaxes(1, 2))
        wider.append(cupy.concatenate([X, X], axis=-1)[..., 64:])
    o, lse = gpu.forward(*plain[:3], kernel=rung.name, return_lse=True)
    for views in (transposed, wider):
        again = gpu.forward(*views[:3], kernel=rung.name)
        assert (again == o).all()
        if rung.backward:
            options: dict[str, Any] = {"kernel": rung.name, "deterministic": True}
            q, k, v, do = plain
            expected = gpu.backward(q, k, v, o, lse, do, **options)
            q, k, v, do = views
            gradients = gpu.backward(q, k, v, o, lse, do, **options)
            for want, gradient in zip(expected, gradients, strict=True):
                assert (want == gradient).all()


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
    small = on_gpu(problem)
    large = [cupy.empty((1, repeats * heads, 65, 64), "float16") for _ in small]
    for whole, part in zip(large, small, strict=True):
        whole.reshape(repeats, heads, 65, 64)[...] = part
    assert large[0].size > 2**31
    large[2][0, -1] *= 2
    expected = gpu.forward(*small, kernel="q_outer", causal=True)
    result = gpu.forward(*large, kernel="q_outer", causal=True)
    off = result[0, -1] - 2 * expected[0, -1]
    assert abs(off).max() < 1e-2
    result[0, -1] = expected[0, -1]
    for part in result.reshape(repeats, heads, 65, 64):
        assert bool((part == expected[0]).all())


def test_the_current_stream_is_respected() -> None:
    """Where the stream still has to make q, the kernel waits for it."""
    import cupy

    problem = given((1, 2, 2, 64, 64, 64), "float32")
    q, k, v = on_gpu(problem)
    expected = gpu.forward(q, k, v, kernel="q_outer")
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
            cycles = np.int64(10**5 if first else 5 * 10**8)
            wait((1,), (1,), (cycles,))
            late[...] = q
            result = gpu.forward(late, k, v, kernel="q_outer")
            waiting = not stream.done
        stream.synchronize()
        assert (result == expected).all()
    assert waiting, "the GPU had nothing to do, so this has shown nothing"


def test_the_plan_is_the_fastest_that_takes_the_arguments() -> None:
    import cupy

    hopper = cupy.cuda.Device().compute_capability == "90"
    fast = "hopper" if hopper else "tensor_core"
    half = cupy.ones((1, 2, 70, 64), "float16")
    single = cupy.ones((1, 2, 70, 64), "float32")
    small = cupy.ones((1, 2, 70, 32), "float16")
    wide = cupy.ones((1, 2, 70, 68), "float16")[..., :64]
    mask = cupy.ones((70, 70), bool)
    for X, options, expected, why in (
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
        plan = gpu.plan(X, X, X, **options)
        assert plan.kernel == expected
        assert why in plan.why
        o = gpu.forward(X, X, X, **options)
        assert (o == gpu.forward(X, X, X, kernel=expected, **options)).all()
    assert gpu.plan(half, half, half, direction="backward").kernel == fast
    in_blocks = gpu.plan(half, half, half, direction="backward", blocks=(64, 64))
    assert in_blocks.kernel == "algorithm_2"


def test_torch_tensors_go_in_and_come_back() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        q, k, v, do = (torch.randn(2, 3, 100, 64, device="cuda", dtype=dtype) for _ in range(4))
        options: dict[str, Any] = {"kernel": "algorithm_2", "causal": True}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            o, lse = gpu.forward(q.requires_grad_(), k, v, return_lse=True, **options)
            dq, dk, dv = gpu.backward(q, k, v, o, lse, do, **options)
        side.synchronize()
        expected = torch.nn.functional.scaled_dot_product_attention(
            q.float(), k.float(), v.float(), is_causal=True
        )
        assert o.dtype == dtype
        off = (o.float() - expected).abs().max().item()
        assert off < (1e-5 if dtype == torch.float32 else 3e-2)
        expected.backward(do.float())
        assert q.grad is not None
        off = (dq.float() - q.grad.float()).abs().max().item()
        assert off < (1e-4 if dtype == torch.float32 else 1e-1)
        assert dk.shape == dv.shape == k.shape


def test_wrong_arguments_are_refused_before_anything_is_launched() -> None:
    import cupy

    q = cupy.zeros((1, 2, 8, 64), "float32")
    half = cupy.zeros((1, 2, 8, 64), "float16")
    wide = cupy.zeros((1, 2, 8, 72), "float16")
    unaligned = wide[..., 1:65]
    narrow = q[..., :48]
    three_heads = cupy.zeros((1, 3, 8, 64), "float32")
    apart = cupy.zeros((1, 2, 8, 128), "float32")[..., ::2]
    no_keys = q[:, :, :0]
    lse = q[..., 0]
    many = cupy.broadcast_to(q[:1, :1, :1], (2**16, 2**15, 1, 64))
    large = cupy.broadcast_to(q[:1, :1, :1], (2**10, 2**10, 2**10, 64))
    on_hopper: Any = partial(gpu.forward, kernel="hopper")
    forward: Any = partial(gpu.forward, kernel="q_outer")
    bad: list[tuple[str, Callable[[], Any]]] = [
        ("d = 48", lambda: gpu.forward(narrow, narrow, narrow)),
        ("q has shape", lambda: gpu.forward(q[0, 0, 0, 0], q, q)),
        ("(256, 64)", lambda: on_hopper(half, half, half, blocks=(64, 64))),
        ("multiples of 16", lambda: on_hopper(unaligned, unaligned, unaligned)),
        (
            "blocks is given",
            lambda: gpu.backward(
                half,
                half,
                half,
                half,
                lse,
                half,
                kernel="hopper",
                blocks=(128, 128),
            ),
        ),
        ("kernel is 'tensor'", lambda: gpu.forward(q, q, q, kernel="tensor")),
        ("q is a numpy.ndarray not on a GPU", lambda: forward(q.get(), q, q)),
        ("k is a list", lambda: forward(q, [1], q)),
        ("q has shape", lambda: forward(q[0], q, q)),
        ("v has dtype float64", lambda: forward(q, q, q.astype("float64"))),
        ("v has dtype float16", lambda: forward(q, q, q.astype("float16"))),
        ("d = 48", lambda: forward(narrow, narrow, narrow)),
        ("k has shape", lambda: forward(q, q[..., :32], q[..., :32])),
        ("v has shape", lambda: forward(q, q, q[:, :, :4])),
        ("q has 2 heads", lambda: forward(q, three_heads, three_heads)),
        ("q has strides", lambda: forward(apart, q, q)),
        ("every axis", lambda: forward(q, no_keys, no_keys)),
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
            lambda: gpu.backward(q, q, q, q, lse, q[:, :, :4], kernel="algorithm_2"),
        ),
        ("N and B·H of", lambda: forward(many, many, many)),
        ("a grid has", lambda: launch("q_outer.cu", "q_outer", 2**31, 0, (), (), Options(1.0))),
    ]
    for message, call in bad:
        with pytest.raises(ValueError) as caught:  # noqa: PT011  (each has its message)
            call()
        assert message in str(caught.value)
    with pytest.raises(MemoryError, match="Out of memory"):
        forward(large, large, large)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rung", RUNGS, ids=by_name)
def test_the_kit_finds_nothing(rung: Kernel, dtype: str) -> None:
    if dtype not in rung.dtypes:
        pytest.skip(f"{rung.name} takes no {dtype}")
    check(rung, dtype, 64, examples=40)


@pytest.mark.parametrize(
    "bug", [None, *same_curve.ON_GPU], ids=lambda bug: bug.what if bug else "right"
)
def test_a_kernel_s_bug_shows_in_two_steps_of_training(bug: same_curve.Bug | None) -> None:
    first = same_curve.train(same_curve.Setup("standard", None, "float32", 2))
    curve = same_curve.train(same_curve.Setup(same_curve.GPU, None, "float32", 2, bug))
    (apart,) = same_curve.distances([first, curve])
    assert apart.shows == (2 if bug else None)

"""Masks that are arrays, on Hopper's own instructions: forward and backward beside the
reference, and what they count.
"""

from typing import Any

import numpy as np
import pytest

from flashsim import gpu
from flashsim.attention.masks.dropout import keep_mask
from flashsim.gpu import hopper, hopper_backward
from flashsim.gpu.compiling import import_cupy
from tests.helpers.gpu_runs import Given, assert_near, given, moved, on_gpu, run, tally
from tests.helpers.hopper import ON_HOPPER
from tests.helpers.hopper_counts import counted_backward

pytestmark = ON_HOPPER

SHAPES = {  # B, H_q, H_kv, N_q, N_k, d
    "one": (1, 1, 1, 1, 1, 64),
    "ragged, 64": (2, 3, 3, 333, 290, 64),
    "ragged, 128": (2, 3, 3, 190, 515, 128),
    "rows of 16 bytes, 64": (1, 2, 2, 256, 384, 64),
    "rows of 16 bytes, 128": (1, 4, 2, 300, 640, 128),
    "more queries": (1, 3, 1, 400, 144, 128),
    "many": (4, 40, 20, 150, 272, 64),
    "256": (2, 2, 1, 300, 208, 256),
}


def documents(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Return documents of random lengths, one after the other, of which queries see their own."""
    N_q, N_k = shape[-2:]
    rows = np.sort(rng.integers(0, 5, N_q))
    columns = np.sort(rng.integers(0, 5, N_k))
    return rows[:, None] == columns


def padding(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Return the first keys of each batch entry."""
    B, _, _, N_k = shape
    lengths = rng.integers(1, N_k + 1, (B, 1, 1, 1))
    return np.arange(N_k) < lengths


def padding_to_the_left(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    B, _, _, N_k = shape
    starts = rng.integers(0, N_k, (B, 1, 1, 1))
    return np.arange(N_k) >= starts


def of_a_head(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    _, H, N_q, N_k = shape
    return rng.random((1, H, N_q, N_k)) < 0.5


def of_a_batch_entry(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    B, _, N_q, N_k = shape
    return rng.random((B, 1, N_q, N_k)) < 0.5


MASKS: dict[str, Any] = {
    "half": lambda rng, shape: rng.random(shape) < 0.5,
    "few": lambda rng, shape: rng.random(shape) < 0.02,
    "of a head": of_a_head,
    "of a batch entry": of_a_batch_entry,
    "padding": padding,
    "padding to the left": padding_to_the_left,
    "queries": lambda rng, shape: rng.random((shape[2], 1)) < 0.5,
    "documents": documents,
    "nothing": lambda rng, shape: np.zeros((1, 1), bool),
}


def every_input(problem: Given) -> list[Any]:
    """Return q, k, v and dO on the GPU."""
    cupy = import_cupy()
    return [*on_gpu(problem), cupy.asarray(problem.do)]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_masks_lie_within_rounding_of_the_reference(
    shape: tuple[int, ...], mask: Any, causal: bool
) -> None:
    cupy = import_cupy()
    rung = gpu.kernel("hopper")
    B, H, _, N_q, N_k, d = shape
    problem = given(shape, "float16" if causal else "bfloat16")
    array = mask(np.random.default_rng(1), (B, H, N_q, N_k))
    whole = np.broadcast_to(array, (B, H, N_q, N_k))
    sent = cupy.broadcast_to(cupy.asarray(array), whole.shape)
    result = run(rung, problem, backward=d < 256, causal=causal, mask=sent)
    assert_near(rung, problem, result, whole & problem.causal if causal else whole)


@pytest.mark.parametrize(
    "shape",
    [
        (1, 2, 2, 300, 290, 64),
        (1, 2, 1, 200, 320, 128),
        (1, 1, 1, 200, 200, 256),
    ],
)
def test_masks_with_dropout(shape: tuple[int, ...]) -> None:
    cupy = import_cupy()
    rung = gpu.kernel("hopper")
    B, H, _, N_q, N_k, _ = shape
    problem = given(shape, "float16")
    whole = np.random.default_rng(1).random((B, H, N_q, N_k)) < 0.5
    heads = [keep_mask(7, 0.3, N_q, N_k, head) for head in range(B * H)]
    keep = np.stack(heads).reshape(whole.shape)
    mask = cupy.asarray(whole)
    result = run(rung, problem, mask=mask, dropout_p=0.3, seed=7)
    assert_near(rung, problem, result, whole, keep, 0.3)
    q, k, v = on_gpu(problem)
    plan = gpu.plan(q, k, v, direction="backward", mask=mask, dropout_p=0.3)
    if shape[-1] < 256:
        assert plan.kernel == "algorithm_2"
        assert "hopper: does not take dropout_p with mask" in plan.why


@pytest.mark.parametrize("d", [64, 128])
def test_masks_however_they_lie(d: int) -> None:
    """Rows at odd addresses, columns first, backwards, every second, and bytes other than 1: the
    same bits.
    """
    cupy = import_cupy()
    problem = given((2, 2, 2, 200, 160, d), "float16")
    q, k, v, do = every_input(problem)
    half = np.random.default_rng(1).random((2, 2, 200, 160)) < 0.5
    mask = cupy.asarray(half)
    wide = cupy.zeros((2, 2, 200, 163), bool)
    wide[..., 3:] = mask
    twice = cupy.zeros((2, 2, 400, 160), bool)
    backwards = cupy.ascontiguousarray(mask[:, :, ::-1])
    twice[:, :, ::2] = mask
    others = {
        "at odd addresses": wide[..., 3:],
        "columns first": cupy.ascontiguousarray(mask.swapaxes(2, 3)).swapaxes(2, 3),
        "backwards": backwards[:, :, ::-1],
        "every second row": twice[:, :, ::2],
        "heads first": cupy.ascontiguousarray(mask.swapaxes(0, 1)).swapaxes(0, 1),
        "other bytes": (mask.view("uint8") * cupy.uint8(128)).view(bool),
    }

    def results(of_mask: Any) -> list[Any]:
        options: dict[str, Any] = {"mask": of_mask, "kernel": "hopper"}
        o, lse = gpu.forward(q, k, v, return_lse=True, **options)
        gradients = gpu.backward(q, k, v, o, lse, do, deterministic=True, **options)
        return [o, lse, *gradients]

    expected = results(mask)
    for how, other in others.items():
        for array, want in zip(results(other), expected, strict=True):
            assert (array == want).all(), how


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("broadcast", [False, True], ids=["(N_q, N_k)", "(1, N_k)"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_masks_count_as_the_simulator_counts_them(
    shape: tuple[int, ...], broadcast: bool, causal: bool
) -> None:
    """A byte an element, each tile's once, and of what broadcasts over queries a row; bits
    repeat.
    """
    cupy = import_cupy()
    *_, N_q, N_k, d = shape
    problem = given(shape, "float16")
    q, k, v, do = every_input(problem)
    array = np.random.default_rng(1).random((1 if broadcast else N_q, N_k)) < 0.5
    options: dict[str, Any] = {
        "kernel": "hopper",
        "causal": causal,
        "mask": cupy.asarray(array),
    }
    o, lse, counted = gpu.forward(q, k, v, return_lse=True, count=True, **options)
    tiles = hopper.choose_tiles(d, "ARRAY")
    assert moved(counted) == tally(
        "q_outer", (*shape, (tiles.B_r, tiles.B_c)), causal=causal, mask=array
    )
    assert (gpu.forward(q, k, v, **options) == o).all()  # counting changes no bit
    if d == 256:
        return
    was_causal = causal
    options["deterministic"] = True
    *gradients, counted = gpu.backward(q, k, v, o, lse, do, count=True, **options)
    uncounted = gpu.backward(q, k, v, o, lse, do, **options)
    for gradient, again in zip(gradients, uncounted, strict=True):
        assert (gradient == again).all()
    every_pair = np.ones((N_q, N_k), bool)
    B_r, B_c = hopper_backward.choose_blocks(d)
    causal = causal and d == 128  # else the array has the causal mask
    model = tally(
        "q_outer",
        (*shape, (B_r, B_c)),
        "backward",
        causal=causal,
        mask=every_pair if was_causal and d == 64 else array,
    )
    sees = problem.causal if causal else every_pair
    live = np.zeros((-(-N_q // B_r), -(-N_k // B_c)), bool)
    for i, j in np.ndindex(live.shape):
        tile = sees[i * B_r : (i + 1) * B_r, j * B_c : (j + 1) * B_c]
        live[i, j] = tile.any()
    counts = moved(counted)
    assert counts == counted_backward(shape, live) | {"mask": model["mask"]}
    for name in ("Q", "O", "dO"):
        assert counts[name] == model[name]


def test_a_mask_goes_to_hopper_but_not_with_a_block_mask() -> None:
    cupy = import_cupy()
    problem = given((1, 2, 2, 300, 300, 128), "float16")
    q, k, v = on_gpu(problem)
    mask = cupy.ones((300, 300), bool)
    assert gpu.plan(q, k, v, mask=mask).kernel == "hopper"
    backward = gpu.plan(q, k, v, direction="backward", mask=mask, causal=True)
    assert backward.kernel == "hopper"
    block_mask = np.ones((3, 3), bool)
    message = r"block_mask with mask is given; kernel 'hopper' does not take it"
    with pytest.raises(ValueError, match=message):
        gpu.forward(q, k, v, mask=mask, block_mask=block_mask, kernel="hopper")

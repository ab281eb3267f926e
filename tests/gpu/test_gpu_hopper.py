"""What only the rungs on Hopper's own instructions do: decoding, windows, lists of tiles, on a
GPU of compute capability 90.
"""

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import gpu
from flashsim.attention.masks.dropout import keep_mask
from flashsim.attention.shapes import Shape
from flashsim.gpu import hopper, hopper_backward, hopper_decode, hopper_grouped
from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.contestants import DISTRIBUTIONS, Setting, drawn
from tests.helpers.gpu_runs import assert_near, given, moved, on_gpu, run, tally
from tests.helpers.hopper import ON_HOPPER
from tests.helpers.hopper_counts import counted_backward

pytestmark = ON_HOPPER


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    "shape", [(1, 2, 1, 1000, 777, 64), (2, 2, 2, 300, 900, 64), (1, 1, 1, 700, 130, 64)]
)
def test_hopper_counts_with_its_blocks_given(shape: tuple[int, ...], causal: bool) -> None:
    problem = given(shape, "bfloat16")
    q, k, v = on_gpu(problem)
    blocks = (128, 64) if causal else (256, 64)
    options: dict[str, Any] = {"kernel": "hopper", "causal": causal, "blocks": blocks}
    o, counted = gpu.forward(q, k, v, count=True, **options)
    assert moved(counted) | {"L": (0, 0)} == tally("q_outer", (*shape, blocks), causal=causal) | {
        "L": (0, 0)
    }
    assert (o == gpu.forward(q, k, v, **options)).all()  # counting changes no bit


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    ("d", "name"),
    [(d, name) for d in hopper.TILES for name in hopper.steps(d)],
    ids=lambda value: str(value),
)
def test_each_step_of_the_ladder_is_attention(d: int, name: str, causal: bool) -> None:
    """With more row blocks than multiprocessors, whole tiles of keys and a ragged one."""
    problem = given((1, 30, 3, 600, 333, d), "float16")
    tiles = hopper.steps(d)[name]
    step = replace(gpu.kernel("hopper"), forward=partial(hopper.launch, tiles))
    assert_near(
        step, problem, run(step, problem, causal=causal), problem.causal if causal else None
    )


@pytest.mark.parametrize("d", hopper.HEAD_DIMS)
def test_every_row_block_comes_where_heads_come_in_several_sections(d: int) -> None:
    """The last section has fewer heads than others; each head has three row blocks, of which the
    last sees most.
    """
    heads = 2 * hopper.MOST_HEADS + 13
    problem = given((1, heads, 1, 300, 300, d), "float16")
    rung = gpu.kernel("hopper")
    assert_near(rung, problem, run(rung, problem, causal=True), problem.causal)


WINDOWS = [(127, 0), (0, 0), (64, 64), (300, 5), (-1, 20), (400, -1)]


@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(
    "shape", [(1, 2, 1, 1000, 1000, 64), (1, 2, 2, 300, 777, 128), (2, 1, 1, 777, 300, 64)]
)
def test_windows_lie_within_rounding_and_skip_dead_tiles(
    shape: tuple[int, ...], window: tuple[int, int], dropout_p: float
) -> None:
    B, H, _, N_q, N_k, d = shape
    problem = given(shape, "float16")
    mask = flashsim.SlidingWindow(*window)
    allowed = mask.whole(Shape(N_q, N_k, d, d), ())
    keep = np.stack([keep_mask(7, dropout_p, N_q, N_k, head) for head in range(B * H)]).reshape(
        B, H, N_q, N_k
    )
    rung = gpu.kernel("hopper")
    result = run(rung, problem, backward=True, window=window, dropout_p=dropout_p, seed=7)
    assert_near(rung, problem, result, allowed, keep if dropout_p else None, dropout_p)
    tiles = hopper.choose_tiles(d, "WINDOW", dropout_p > 0)
    _, counted = gpu.forward(
        *on_gpu(problem), mask=mask, dropout_p=dropout_p, count=True, kernel="hopper"
    )
    expected = tally("q_outer", (*shape, (tiles.B_r, tiles.B_c)), mask=mask)
    assert moved(counted) | {"L": (0, 0)} == expected | {"L": (0, 0)}


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("d", [64, 128])
def test_block_masks_lie_within_rounding_and_skip_dead_tiles(d: int, causal: bool) -> None:
    shape = (1, 2, 1, 1000, 1300, d)
    problem = given(shape, "bfloat16")
    table = np.random.default_rng(1).random((8, 11)) < 0.4
    table[3] = False  # rows without a tile
    spread = table.repeat(128, axis=0)[:1000].repeat(128, axis=1)[:, :1300]
    rung = gpu.kernel("hopper")
    result = run(rung, problem, backward=True, block_mask=table, causal=causal, deterministic=True)
    assert_near(rung, problem, result, spread & problem.causal if causal else spread)
    _, counted = gpu.forward(*on_gpu(problem), block_mask=table, causal=causal, count=True)
    live = table.copy()
    if causal:
        live &= np.arange(11) * 128 <= np.minimum(np.arange(8) * 128 + 127, 999)[:, None] + 300
    # of K and V, as Algorithm 5 skips tiles
    columns = int((live * np.minimum(128, 1300 - np.arange(11) * 128)).sum())
    assert moved(counted)["K"] == moved(counted)["V"] == (2 * columns * d, 0)
    butterfly = gpu.forward(
        *on_gpu(problem), block_mask=flashsim.patterns.butterfly, kernel="hopper"
    )
    assert (
        butterfly == gpu.forward(*on_gpu(problem), block_mask=flashsim.patterns.butterfly(8, 11))
    ).all()


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(
    "shape", [(1, 2, 1, 1000, 1000, 64), (1, 4, 2, 300, 777, 128), (2, 1, 1, 777, 300, 64)]
)
def test_gradients_of_windows_and_block_masks_count(
    shape: tuple[int, ...], window: tuple[int, int]
) -> None:
    """A window's as q_outer's, but for what `test_hoppers_backward_pass_counts` says, and keys
    that nobody sees; bits repeat.
    """
    cupy = import_cupy()
    _, _, _, N_q, N_k, d = shape
    problem = given(shape, "float16")
    mask = flashsim.SlidingWindow(*window)
    q, k, v, do = (cupy.asarray(X) for X in (problem.q, problem.k, problem.v, problem.do))
    o, lse = gpu.forward(q, k, v, return_lse=True, mask=mask)
    assert gpu.plan(q, k, v, direction="backward", mask=mask).kernel == "hopper"
    options: dict[str, Any] = {"mask": mask, "deterministic": True}
    *result, counted = gpu.backward(q, k, v, o, lse, do, count=True, **options)
    again = gpu.backward(q, k, v, o, lse, do, **options)
    assert all((a == b).all() for a, b in zip(result, again, strict=True))
    blocks = hopper_backward.choose_blocks(d)
    sees = mask.whole(Shape(N_q, N_k, d, d), ())
    live = np.array(
        [
            [sees[r : r + blocks[0], c : c + blocks[1]].any() for c in range(0, N_k, blocks[1])]
            for r in range(0, N_q, blocks[0])
        ]
    )
    expected = counted_backward(shape, live)
    assert moved(counted) == expected
    model = tally("q_outer", (*shape, blocks), "backward", mask=mask)
    assert all(model[name] == expected[name] for name in ("Q", "O", "dO", "dK", "dV"))
    table = np.random.default_rng(1).random((-(-N_q // 128), -(-N_k // 128))) < 0.5
    o, lse = gpu.forward(q, k, v, return_lse=True, mask=mask, block_mask=table)
    *_, counted = gpu.backward(q, k, v, o, lse, do, count=True, block_mask=table, **options)
    spread = table.repeat(128 // blocks[0], axis=0)[: len(live)]
    assert moved(counted) == counted_backward(shape, live & spread)


DRAWN: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "window": {"window": (20, 0)},
    "window, rows without a first tile": {"window": (20, 5)},
    "block mask": {"block_mask": np.array([[1, 0], [1, 1]], bool)},
}


@pytest.mark.parametrize("options", DRAWN.values(), ids=DRAWN)
def test_row_blocks_beyond_the_places_are_drawn(options: dict[str, Any]) -> None:
    """With d = 64 a multiprocessor has two at a time: here there are 600, and a second launch
    finds the counter at 0.
    """
    problem = given((5, 60, 6, 130, 140, 64), "float16")
    rung = gpu.kernel("hopper")
    allowed = problem.causal
    if "window" in options:
        allowed = flashsim.SlidingWindow(*options["window"]).whole(Shape(130, 140, 64, 64), ())
    if "block_mask" in options:
        allowed = options["block_mask"].repeat(128, axis=0)[:130].repeat(128, axis=1)[:, :140]
    for _ in range(2):
        assert_near(rung, problem, run(rung, problem, backward=True, **options), allowed)


WIDE_CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "one": ((1, 1, 1, 1, 1, 256), {}),
    "full": ((1, 3, 1, 200, 333, 256), {}),
    "causal": ((2, 2, 2, 300, 300, 256), {"causal": True}),
    "rows without keys": ((1, 1, 1, 333, 130, 256), {"causal": True}),
    "window": ((1, 2, 1, 400, 400, 256), {"window": (100, 3)}),
    "block mask": (
        (1, 1, 1, 300, 300, 256),
        {"block_mask": np.eye(3, 5, dtype=bool), "causal": True},
    ),
}


@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("shape", "options"), WIDE_CASES.values(), ids=WIDE_CASES)
def test_heads_of_256_lie_within_rounding_and_count(
    shape: tuple[int, ...], options: dict[str, Any], dtype: str, dropout_p: float
) -> None:
    problem = given(shape, dtype, outliers=not dropout_p)
    rung = gpu.kernel("hopper")
    B, H, _, N_q, N_k, d = shape
    allowed = problem.causal if "causal" in options else np.ones((N_q, N_k), bool)
    if "window" in options:
        allowed = flashsim.SlidingWindow(*options["window"]).whole(Shape(N_q, N_k, d, d), ())
    if "block_mask" in options:
        allowed = (
            allowed & options["block_mask"].repeat(128, axis=0)[:N_q].repeat(64, axis=1)[:, :N_k]
        )
    keep = np.stack([keep_mask(7, dropout_p, N_q, N_k, head) for head in range(B * H)]).reshape(
        B, H, N_q, N_k
    )
    result = run(rung, problem, **options, dropout_p=dropout_p, seed=7)
    assert_near(rung, problem, result, allowed, keep if dropout_p else None, dropout_p)
    if "block_mask" not in options:
        mask = (
            {"mask": flashsim.SlidingWindow(*options["window"])} if "window" in options else options
        )
        *_, counted = gpu.forward(
            *on_gpu(problem), return_lse=True, count=True, dropout_p=dropout_p, **mask
        )
        assert moved(counted) == tally("q_outer", (*shape, (128, 64)), **mask)


WIDE_GRADIENTS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    **{name: case for name, case in WIDE_CASES.items() if "block_mask" not in case[1]},
    "grouped": ((2, 6, 2, 130, 257, 256), {"causal": True}),
    "a window that not all keys are in": ((1, 2, 1, 200, 900, 256), {"window": (70, 0)}),
    "a window to the right": ((1, 2, 2, 333, 129, 256), {"window": (-1, 20)}),
    "more blocks than multiprocessors": ((3, 30, 30, 300, 300, 256), {"causal": True}),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("shape", "options"), WIDE_GRADIENTS.values(), ids=WIDE_GRADIENTS)
def test_gradients_of_heads_of_256_lie_within_rounding_and_count(
    shape: tuple[int, ...], options: dict[str, Any], dtype: str
) -> None:
    """dK's and dV's pass moves as q_outer_two_pass's in tiles of 64 × 64, dQ's in those of 128 ×
    64; and L is copied.
    """
    cupy = import_cupy()
    problem = given(shape, dtype, outliers=True)
    rung = gpu.kernel("hopper")
    B, H, H_kv, N_q, N_k, d = shape
    allowed = problem.causal if "causal" in options else np.ones((N_q, N_k), bool)
    if "window" in options:
        allowed = flashsim.SlidingWindow(*options["window"]).whole(Shape(N_q, N_k, d, d), ())
    result = run(rung, problem, backward=True, **options)
    assert_near(rung, problem, result, allowed)
    mask = {"mask": flashsim.SlidingWindow(*options["window"])} if "window" in options else options
    q, k, v, do = (cupy.asarray(X) for X in (problem.q, problem.k, problem.v, problem.do))
    o, lse = gpu.forward(q, k, v, return_lse=True, kernel="hopper", **mask)
    *again, counted = gpu.backward(q, k, v, o, lse, do, count=True, **mask)
    assert all(
        (a.get() == b).all() for a, b in zip(again, (result.dq, result.dk, result.dv), strict=True)
    )
    expected = tally("q_outer_two_pass", (*shape, (64, 64)), "backward", **mask)
    of_queries = tally("q_outer_two_pass", (*shape, (128, 64)), "backward", **mask)
    rows = B * H * N_q
    columns = B * H_kv * N_k * d
    expected = {name: a for name, a in expected.items() if "parts" not in name}
    # dK's pass: once a KV head
    expected |= {name: (of_queries[name][0] - (H // H_kv - 1) * columns, 0) for name in "KV"}
    expected |= {"L": (expected["L"][0] + rows, rows), "dK": (0, columns), "dV": (0, columns)}
    if "window" in options:  # keys that nobody sees are not read by dK's pass
        unseen = (
            B
            * H_kv
            * d
            * sum(min(64, N_k - x) for x in range(0, N_k, 64) if not allowed[:, x : x + 64].any())
        )
        expected |= {name: (expected[name][0] - unseen, 0) for name in "KV"}
    assert moved(counted) == expected


def test_gradients_of_heads_of_256_take_neither_dropout_nor_lists_of_tiles() -> None:
    q, k, v = on_gpu(given((1, 1, 1, 9, 9, 256), "float16"))
    o, lse = gpu.forward(q, k, v, return_lse=True)
    with pytest.raises(ValueError, match="dropout_p is given; kernel 'hopper' does not take it"):
        gpu.backward(q, k, v, o, lse, o, kernel="hopper", dropout_p=0.5)


@pytest.mark.parametrize("name", ["hopper", "hopper_decode", "hopper_fp8"])
def test_offsets_are_64_bit(name: str) -> None:
    """Of more than 2³¹ elements: heads of 65 keys, the same thousand over and over, but that the
    last one is the first.
    """
    import cupy

    if cupy.cuda.runtime.memGetInfo()[0] < 90 * 2**30:
        pytest.skip("needs 90 GB of the GPU's memory")
    eight = name == "hopper_fp8"
    heads, repeats, d = (1000, 260, 128) if eight else (1000, 520, 64)
    small = []
    large = []
    for N in (8 if name == "hopper_decode" else 65, 65, 65):
        x = cupy.random.standard_normal((1, heads, N, d), dtype="float32")
        x = gpu.to_fp8(x) if eight else x.astype("float16")
        whole = cupy.empty((repeats, heads, N, d), f"uint{8 * x.itemsize}")
        whole[...] = x.view(whole.dtype)
        whole[-1, -1] = whole[0, 0]
        small.append(x)
        large.append(whole.reshape(1, repeats * heads, N, d).view(x.dtype))
    assert large[2].size > 2**31

    def results(q: Any, k: Any, v: Any) -> list[Any]:
        o, lse = gpu.forward(q, k, v, kernel=name, causal=True, return_lse=True)
        backward = name == "hopper"
        gradients = (
            gpu.backward(q, k, v, o, lse, q, kernel=name, causal=True, deterministic=True)
            if backward
            else ()
        )
        return [o, lse, *gradients]

    for result, expected in zip(results(*large), results(*small), strict=True):
        parts = result.reshape(repeats, heads, *result.shape[2:])
        expected = cupy.stack([expected[0], expected[0]])
        expected[1, -1] = expected[1, 0]
        # of 8 bits, whether maxima are taken is a matter of the row block before, too
        for n, part in enumerate(parts):
            off = abs(part - expected[int(n == repeats - 1)]).max()
            assert float(off) <= (0.3 if eight else 0), n


# of scores, tile by tile in the order of the kernel
GROWTH = (0, 9, 9, 12, 23, 5, 120, 0, 700, 701, 711, 690)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("d", [64, 128, 256])
def test_scores_that_grow_from_tile_to_tile(d: int, dtype: str, causal: bool) -> None:
    """So that weights with the maximum of before would be large, too large for fp16, or infinite.

    Causally the first row of a row block sees none of the first tile, but all of the second: it
    comes there without a maximum.
    """
    problem = given((1, 2, 1, 256, 64 * len(GROWTH) - 1, d), dtype)
    rung = gpu.kernel("hopper")
    problem.q[...] = 1
    levels = np.repeat(GROWTH[::-1], 64)[1:, None] / d**0.5
    problem.k[...] = (levels + problem.k.astype(np.float64)).astype(problem.k.dtype)
    result = run(rung, problem, causal=causal)
    assert_near(rung, problem, result, problem.causal if causal else None)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    ("dtype", "d"), [("float16", 64), ("float16", 128), ("bfloat16", 128), ("float16", 256)]
)
def test_what_the_benchmark_draws(dtype: str, d: int, causal: bool, distribution: str) -> None:
    """Where a row's maximum grows by a factor that a sum of weights tells, they are multiplied,
    and not computed again.
    """
    shape = (1, 2, 2, 1000, 1000, d)
    setting = Setting(1000, d, B=1, H=2, distribution=distribution)
    problem = given(shape, dtype)
    rung = gpu.kernel("hopper")
    normal = [x.astype(np.float32) for x in (problem.q, problem.k, problem.v)]
    for name, x in zip("qkv", drawn(setting, normal, np), strict=True):
        getattr(problem, name)[...] = x.astype(problem.q.dtype)
    assert_near(
        rung, problem, run(rung, problem, causal=causal), problem.causal if causal else None
    )


def test_a_window_is_an_array_to_kernels_that_take_masks() -> None:
    problem = given((2, 2, 1, 70, 90, 64), "float32")
    mask = flashsim.SlidingWindow(20, 3)
    result = gpu.forward(*on_gpu(problem), mask=mask, kernel="q_outer")
    allowed = import_cupy().asarray(mask.whole(Shape(70, 90, 64, 64), ()))
    assert (result == gpu.forward(*on_gpu(problem), mask=allowed, kernel="q_outer")).all()


DECODED = {  # B, H_q, H_kv, N_q, N_k, d
    "one": (1, 1, 1, 1, 1, 64),
    "a split head": (1, 8, 1, 1, 5000, 128),
    "alike": (2, 16, 4, 2, 4096, 64),
    "a pair has a head": (8, 16, 8, 2, 2000, 128),
    "8 blocks have a head": (1, 16, 8, 2, 1000, 128),
    "8 blocks, d = 64, 64 rows": (2, 64, 8, 8, 2100, 64),
    "4 blocks, some with a tile": (2, 16, 8, 1, 330, 128),
    "pairs, and a second launch": (8, 8, 8, 1, 65_600, 64),
    "clusters, 64 rows": (1, 64, 8, 8, 9000, 64),
    "unlike": (3, 24, 3, 8, 3001, 128),
    "full": (40, 8, 8, 1, 700, 128),
    "64 rows": (1, 64, 8, 8, 9000, 128),
    "more queries": (1, 4, 1, 16, 9, 64),
}


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", DECODED.values(), ids=DECODED)
def test_decoding_lies_within_rounding_and_its_counts_are_the_simulators(
    shape: tuple[int, ...], dtype: str, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    B, H_q, H_kv, N_q, N_k, d = shape
    problem = given(shape, dtype, outliers=True)
    rung = gpu.kernel("hopper_decode")
    monkeypatch.setattr(hopper_decode, "is_slower", lambda *_: False)
    result = run(rung, problem, causal=causal)
    assert_near(rung, problem, result, problem.causal if causal else None)
    *_, counted = gpu.forward(
        *on_gpu(problem), causal=causal, kernel="hopper_decode", return_lse=True, count=True
    )
    group = H_q // H_kv
    T_c = -(-N_k // 64)
    processors = import_cupy().cuda.Device().attributes["MultiProcessorCount"]
    reads = Counter[str]()
    writes = Counter[str]()
    blocks, cluster = hopper_decode.choose_cut(B * H_kv, T_c, group * N_q, processors)
    # what a cluster's blocks have leaves the chip as one part
    merged = blocks // cluster
    for t in hopper_decode.parts(B * H_kv, T_c, merged):
        one = (1, group, 1, N_q, N_k, d, (64, 64))
        split: dict[str, Any] = {"splits": t} if t > 1 else {}
        for array, (read, written) in tally(
            "split_kv" if t > 1 else "q_outer", one, gqa="grouped", **split
        ).items():
            # each of its blocks reads Q
            reads[array] += read * (blocks // merged if array == "Q" else 1)
            writes[array] += written
    writes["L"] = B * H_q * N_q  # which split_kv does not make
    assert moved(counted) == {
        a: (reads[a], writes[a]) for a in (*reads, "L") if reads[a] or writes[a]
    }


GROUPED = {  # B, H_q, H_kv, N_q, N_k, d: more than 64 rows a KV head, or few heads
    "few rows, few heads": (1, 64, 8, 5, 1024, 128),
    "few rows, two launches": (2, 8, 1, 8, 9000, 128),
    "a row more": (1, 5, 1, 13, 333, 64),
    "one tile": (2, 8, 1, 16, 128, 128),
    "no group": (1, 3, 3, 65, 260, 128),
    "in parts": (1, 16, 2, 16, 9000, 128),
    "in parts, d = 64": (1, 16, 2, 17, 9000, 64),
    "rows that do not fill a tile": (2, 6, 2, 100, 1000, 128),  # 126 of 128
    "a group of 48": (1, 96, 2, 20, 3001, 64),
    "a group of 128": (1, 128, 1, 3, 700, 128),
    "several items a block": (40, 16, 4, 40, 700, 128),
    "several items a block, in parts": (13, 16, 1, 130, 4000, 128),
    "most queries": (1, 2, 2, 256, 1500, 64),
    "tiles that no row sees": (1, 8, 1, 200, 801, 128),
}


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", GROUPED.values(), ids=GROUPED)
def test_more_queries_lie_within_rounding_and_their_counts_are_the_simulators(
    shape: tuple[int, ...], dtype: str, causal: bool
) -> None:
    B, H_q, H_kv, N_q, N_k, d = shape
    problem = given(shape, dtype, outliers=True)
    rung = gpu.kernel("hopper_decode")
    processors = import_cupy().cuda.Device().attributes["MultiProcessorCount"]
    sizes = (B, H_q, N_q, d), (B, H_kv, N_k, d)
    assert not hopper_decode.takes(*sizes) or hopper_decode.is_slower(*sizes, processors)
    result = run(rung, problem, causal=causal)
    assert_near(rung, problem, result, problem.causal if causal else None)
    *_, counted = gpu.forward(
        *on_gpu(problem), causal=causal, kernel="hopper_decode", return_lse=True, count=True
    )
    group = H_q // H_kv
    rows = hopper_grouped.block_rows(group)
    row_blocks = B * H_kv * -(-group * N_q // rows)
    cut = hopper_grouped.choose_cut(row_blocks, -(-N_k // hopper_grouped.KEYS), processors)
    split: dict[str, Any] = {"splits": cut.parts} if cut.parts > 1 else {}
    problem_sizes = (B, H_q, H_kv, N_q, N_k, d, (rows, hopper_grouped.KEYS))
    expected = tally(
        "split_kv" if split else "q_outer", problem_sizes, gqa="grouped", causal=causal, **split
    )
    expected["Q"] = (expected["Q"][0] * cut.cluster, 0)  # each of a cluster's blocks reads Q
    assert moved(counted) == expected | {"L": (0, B * H_q * N_q)}  # which split_kv does not make


@pytest.mark.parametrize("scale", [-0.3, 0.0])
def test_a_scale_of_more_queries_may_be_negative_or_0(scale: float) -> None:
    q, k, v = on_gpu(given((1, 12, 4, 40, 900, 128), "float16"))
    options: dict[str, Any] = {"causal": True, "scale": scale, "return_lse": True}
    result, expected = (
        gpu.forward(q, k, v, kernel=name, **options) for name in ("hopper_decode", "hopper")
    )
    for one, other in zip(result, expected, strict=True):
        assert abs(one.astype("float32") - other.astype("float32")).max() < 2e-3


def test_of_more_queries_bits_stay_and_nothing_else_is_written() -> None:
    """The same bits in 20 runs, whatever O held; q, k and v may be views with other strides."""
    import cupy

    q, k, v = on_gpu(given((3, 16, 2, 33, 5000, 128), "float16"))
    first = gpu.forward(q, k, v, kernel="hopper_decode", causal=True)
    for _ in range(20):
        assert (gpu.forward(q, k, v, kernel="hopper_decode", causal=True) == first).all()
    transposed = [cupy.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (q, k, v)]
    assert (gpu.forward(*transposed, kernel="hopper_decode", causal=True) == first).all()


@pytest.mark.parametrize(("causal", "dropout_p"), [(False, 0.0), (True, 0.0), (True, 0.3)])
@pytest.mark.parametrize("d", [64, 128])
def test_a_block_of_threads_has_one_key_block_after_another(
    d: int, causal: bool, dropout_p: float
) -> None:
    """Of many heads, more than two of a backward pass: the same bits as of few, where each has a
    block of threads of its own.
    """
    import cupy

    processors = cupy.cuda.Device().attributes["MultiProcessorCount"]
    problem = given((1, 36, 36, 70, 900, d), "float16")
    q, k, v, do = (cupy.asarray(X) for X in (problem.q, problem.k, problem.v, problem.do))
    options: dict[str, Any] = {
        "kernel": "hopper",
        "causal": causal,
        "dropout_p": dropout_p,
        "seed": 7,
    }
    o, lse = gpu.forward(q, k, v, return_lse=True, **options)
    whole = gpu.backward(q, k, v, o, lse, do, deterministic=True, **options)
    assert all(result.any() for result in whole)
    # dropout counts heads from the first; causally, all take turns
    few = slice(0, 10) if causal else slice(26, 36)
    assert 10 * -(-900 // 128) <= processors < 36 * -(-900 // 128) / 2
    part = gpu.backward(
        *(X[:, few].copy() for X in (q, k, v, o, lse, do)), deterministic=True, **options
    )
    assert all(
        (result[:, few] == expected).all() for result, expected in zip(whole, part, strict=True)
    )


def test_calls_are_captured_in_a_graph_of_pytorchs() -> None:
    """On a stream that has not been used before: nothing there may ask the driver for memory."""
    torch = pytest.importorskip("torch")
    for shape in ((2, 3, 200, 128), (1, 8, 1, 128)):
        q = torch.randn(*shape, device="cuda", dtype=torch.float16)
        k, v = (
            torch.randn(*shape[:2], 5000, 128, device="cuda", dtype=torch.float16) for _ in "kv"
        )

        def step(q: Any = q, k: Any = k, v: Any = v) -> list[Any]:
            o, lse = gpu.forward(q, k, v, return_lse=True)
            return [o, lse, *gpu.backward(q, k, v, o, lse, o, deterministic=True)]

        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = step()
        q.copy_(torch.randn_like(q))
        expected = step()
        graph.replay()
        assert all((a == b).all() for a, b in zip(result, expected, strict=True))

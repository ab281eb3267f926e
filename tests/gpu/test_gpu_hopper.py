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

Counts = dict[str, tuple[int, int]]


def but_for_L(counts: Counts) -> Counts:
    return counts | {"L": (0, 0)}


def in_window(window: tuple[int, int], N_q: int, N_k: int, d: int) -> Any:
    """Return which elements of (N_q, N_k) are within it."""
    mask = flashsim.SlidingWindow(*window)
    return mask.whole(Shape(N_q, N_k, d, d), ())


def of_elements(table: Any, keys: int, N_q: int, N_k: int) -> Any:
    """Return a block mask, of 128 rows and so many keys each, for each element."""
    whole = table.repeat(128, axis=0).repeat(keys, axis=1)
    return whole[:N_q, :N_k]


def live_tiles(sees: Any, blocks: tuple[int, int]) -> Any:
    """Return in which tiles a row sees a key."""
    B_r, B_c = blocks
    N_q, N_k = sees.shape
    live = np.zeros((-(-N_q // B_r), -(-N_k // B_c)), bool)
    for i, j in np.ndindex(live.shape):
        tile = sees[i * B_r : (i + 1) * B_r, j * B_c : (j + 1) * B_c]
        live[i, j] = tile.any()
    return live


def kept(shape: tuple[int, ...], p: float) -> Any:
    """Return what dropout keeps with seed 7: (B, H, N_q, N_k)."""
    B, H, _, N_q, N_k, _ = shape
    heads = [keep_mask(7, p, N_q, N_k, head) for head in range(B * H)]
    return np.stack(heads).reshape(B, H, N_q, N_k)


def assert_same_bits(results: Any, expected: Any) -> None:
    for result, want in zip(results, expected, strict=True):
        assert (result == want).all()


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    "shape",
    [
        (1, 2, 1, 1000, 777, 64),
        (2, 2, 2, 300, 900, 64),
        (1, 1, 1, 700, 130, 64),
    ],
)
def test_hopper_counts_with_its_blocks_given(shape: tuple[int, ...], causal: bool) -> None:
    problem = given(shape, "bfloat16")
    q, k, v = on_gpu(problem)
    blocks = (128, 64) if causal else (256, 64)
    options: dict[str, Any] = {"kernel": "hopper", "causal": causal, "blocks": blocks}
    o, counted = gpu.forward(q, k, v, count=True, **options)
    expected = tally("q_outer", (*shape, blocks), causal=causal)
    assert but_for_L(moved(counted)) == but_for_L(expected)
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
    result = run(step, problem, causal=causal)
    assert_near(step, problem, result, problem.causal if causal else None)


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
    "shape",
    [
        (1, 2, 1, 1000, 1000, 64),
        (1, 2, 2, 300, 777, 128),
        (2, 1, 1, 777, 300, 64),
    ],
)
def test_windows_lie_within_rounding_and_skip_dead_tiles(
    shape: tuple[int, ...], window: tuple[int, int], dropout_p: float
) -> None:
    *_, N_q, N_k, d = shape
    problem = given(shape, "float16")
    mask = flashsim.SlidingWindow(*window)
    allowed = in_window(window, N_q, N_k, d)
    keep = kept(shape, dropout_p)
    rung = gpu.kernel("hopper")
    result = run(rung, problem, backward=True, window=window, dropout_p=dropout_p, seed=7)
    assert_near(rung, problem, result, allowed, keep if dropout_p else None, dropout_p)
    tiles = hopper.choose_tiles(d, "WINDOW", dropout_p > 0)
    _, counted = gpu.forward(
        *on_gpu(problem), mask=mask, dropout_p=dropout_p, count=True, kernel="hopper"
    )
    expected = tally("q_outer", (*shape, (tiles.B_r, tiles.B_c)), mask=mask)
    assert but_for_L(moved(counted)) == but_for_L(expected)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("d", [64, 128])
def test_block_masks_lie_within_rounding_and_skip_dead_tiles(d: int, causal: bool) -> None:
    shape = (1, 2, 1, 1000, 1300, d)
    problem = given(shape, "bfloat16")
    table = np.random.default_rng(1).random((8, 11)) < 0.4
    table[3] = False  # rows without a tile
    spread = of_elements(table, 128, 1000, 1300)
    rung = gpu.kernel("hopper")
    result = run(rung, problem, backward=True, block_mask=table, causal=causal, deterministic=True)
    assert_near(rung, problem, result, spread & problem.causal if causal else spread)
    inputs = on_gpu(problem)
    _, counted = gpu.forward(*inputs, block_mask=table, causal=causal, count=True)
    live = table.copy()
    if causal:
        last_rows = np.minimum(np.arange(8) * 128 + 127, 999)
        first_keys = np.arange(11) * 128
        live &= first_keys <= last_rows[:, None] + 300
    # of K and V, as Algorithm 5 skips tiles
    keys = np.minimum(128, 1300 - np.arange(11) * 128)
    columns = int((live * keys).sum())
    counts = moved(counted)
    assert counts["K"] == counts["V"] == (2 * columns * d, 0)
    butterfly = flashsim.patterns.butterfly
    by_function = gpu.forward(*inputs, block_mask=butterfly, kernel="hopper")
    by_table = gpu.forward(*inputs, block_mask=butterfly(8, 11))
    assert (by_function == by_table).all()


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(
    "shape",
    [
        (1, 2, 1, 1000, 1000, 64),
        (1, 4, 2, 300, 777, 128),
        (2, 1, 1, 777, 300, 64),
    ],
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
    q, k, v = on_gpu(problem)
    do = cupy.asarray(problem.do)
    o, lse = gpu.forward(q, k, v, return_lse=True, mask=mask)
    assert gpu.plan(q, k, v, direction="backward", mask=mask).kernel == "hopper"
    options: dict[str, Any] = {"mask": mask, "deterministic": True}
    *gradients, counted = gpu.backward(q, k, v, o, lse, do, count=True, **options)
    uncounted = gpu.backward(q, k, v, o, lse, do, **options)
    assert_same_bits(gradients, uncounted)
    blocks = hopper_backward.choose_blocks(d)
    live = live_tiles(in_window(window, N_q, N_k, d), blocks)
    expected = counted_backward(shape, live)
    assert moved(counted) == expected
    model = tally("q_outer", (*shape, blocks), "backward", mask=mask)
    for name in ("Q", "O", "dO", "dK", "dV"):
        assert model[name] == expected[name]
    in_blocks = (-(-N_q // 128), -(-N_k // 128))
    table = np.random.default_rng(1).random(in_blocks) < 0.5
    options["block_mask"] = table
    o, lse = gpu.forward(q, k, v, return_lse=True, mask=mask, block_mask=table)
    *_, counted = gpu.backward(q, k, v, o, lse, do, count=True, **options)
    spread = table.repeat(128 // blocks[0], axis=0)[: len(live)]
    assert moved(counted) == counted_backward(shape, live & spread)


DRAWN: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "window": {"window": (20, 0)},
    "window, rows without a first tile": {"window": (20, 5)},
    "block mask": {"block_mask": np.tri(2, dtype=bool)},
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
        allowed = in_window(options["window"], 130, 140, 64)
    if "block_mask" in options:
        allowed = of_elements(options["block_mask"], 128, 130, 140)
    for _ in range(2):
        assert_near(rung, problem, run(rung, problem, backward=True, **options), allowed)


WIDE_CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "one": ((1, 1, 1, 1, 1, 256), {}),
    "full": ((1, 3, 1, 200, 333, 256), {}),
    "causal": ((2, 2, 2, 300, 300, 256), {"causal": True}),
    "rows without keys": ((1, 1, 1, 333, 130, 256), {"causal": True}),
    "window": (
        (1, 2, 1, 400, 400, 256),
        {"window": (100, 3)},
    ),
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
    *_, N_q, N_k, d = shape
    allowed = problem.causal if "causal" in options else np.ones((N_q, N_k), bool)
    if "window" in options:
        allowed = in_window(options["window"], N_q, N_k, d)
    if "block_mask" in options:
        allowed = allowed & of_elements(options["block_mask"], 64, N_q, N_k)
    keep = kept(shape, dropout_p)
    result = run(rung, problem, **options, dropout_p=dropout_p, seed=7)
    assert_near(rung, problem, result, allowed, keep if dropout_p else None, dropout_p)
    if "block_mask" not in options:
        mask = options
        if "window" in options:
            mask = {"mask": flashsim.SlidingWindow(*options["window"])}
        *_, counted = gpu.forward(
            *on_gpu(problem),
            return_lse=True,
            count=True,
            dropout_p=dropout_p,
            **mask,
        )
        assert moved(counted) == tally("q_outer", (*shape, (128, 64)), **mask)


WIDE_GRADIENTS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    **{name: case for name, case in WIDE_CASES.items() if "block_mask" not in case[1]},
    "grouped": ((2, 6, 2, 130, 257, 256), {"causal": True}),
    "a window that not all keys are in": (
        (1, 2, 1, 200, 900, 256),
        {"window": (70, 0)},
    ),
    "a window to the right": (
        (1, 2, 2, 333, 129, 256),
        {"window": (-1, 20)},
    ),
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
        allowed = in_window(options["window"], N_q, N_k, d)
    result = run(rung, problem, backward=True, **options)
    assert_near(rung, problem, result, allowed)
    mask = options
    if "window" in options:
        mask = {"mask": flashsim.SlidingWindow(*options["window"])}
    q, k, v = on_gpu(problem)
    do = cupy.asarray(problem.do)
    o, lse = gpu.forward(q, k, v, return_lse=True, kernel="hopper", **mask)
    *gradients, counted = gpu.backward(q, k, v, o, lse, do, count=True, **mask)
    in_numpy = [gradient.get() for gradient in gradients]
    assert_same_bits(in_numpy, (result.dq, result.dk, result.dv))
    expected = tally("q_outer_two_pass", (*shape, (64, 64)), "backward", **mask)
    of_queries = tally("q_outer_two_pass", (*shape, (128, 64)), "backward", **mask)
    rows = B * H * N_q
    columns = B * H_kv * N_k * d
    expected = {name: a for name, a in expected.items() if "parts" not in name}
    # keys that nobody sees are not read by dK's pass
    unseen = 0
    if "window" in options:
        for first in range(0, N_k, 64):
            if not allowed[:, first : first + 64].any():
                unseen += B * H_kv * d * min(64, N_k - first)
    for name in ("K", "V"):
        # dK's pass: once a KV head
        reads = of_queries[name][0] - (H // H_kv - 1) * columns
        expected[name] = (reads - unseen, 0)
    expected["L"] = (expected["L"][0] + rows, rows)
    expected["dK"] = (0, columns)
    expected["dV"] = (0, columns)
    assert moved(counted) == expected


def test_gradients_of_heads_of_256_take_neither_dropout_nor_lists_of_tiles() -> None:
    problem = given((1, 1, 1, 9, 9, 256), "float16")
    q, k, v = on_gpu(problem)
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
    heads = 1000
    repeats = 260 if eight else 520
    d = 128 if eight else 64
    small = []
    large = []
    for N in (8 if name == "hopper_decode" else 65, 65, 65):
        x = cupy.random.standard_normal((1, heads, N, d), dtype="float32")
        x = gpu.to_fp8(x) if eight else x.astype("float16")
        whole = cupy.empty((repeats, heads, N, d), f"uint{8 * x.itemsize}")
        whole[...] = x.view(whole.dtype)
        whole[-1, -1] = whole[0, 0]
        small.append(x)
        shape = (1, repeats * heads, N, d)
        large.append(whole.reshape(shape).view(x.dtype))
    assert large[2].size > 2**31

    def results(q: Any, k: Any, v: Any) -> list[Any]:
        options: dict[str, Any] = {"kernel": name, "causal": True}
        o, lse = gpu.forward(q, k, v, return_lse=True, **options)
        if name != "hopper":
            return [o, lse]
        gradients = gpu.backward(q, k, v, o, lse, q, deterministic=True, **options)
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
    N_k = 64 * len(GROWTH) - 1
    problem = given((1, 2, 1, 256, N_k, d), dtype)
    rung = gpu.kernel("hopper")
    problem.q[...] = 1
    levels = np.repeat(GROWTH[::-1], 64)[1:, None] / d**0.5
    grown = levels + problem.k.astype(np.float64)
    problem.k[...] = grown.astype(problem.k.dtype)
    result = run(rung, problem, causal=causal)
    assert_near(rung, problem, result, problem.causal if causal else None)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    ("dtype", "d"),
    [
        ("float16", 64),
        ("float16", 128),
        ("bfloat16", 128),
        ("float16", 256),
    ],
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
    result = run(rung, problem, causal=causal)
    assert_near(rung, problem, result, problem.causal if causal else None)


def test_a_window_is_an_array_to_kernels_that_take_masks() -> None:
    problem = given((2, 2, 1, 70, 90, 64), "float32")
    mask = flashsim.SlidingWindow(20, 3)
    inputs = on_gpu(problem)
    by_window = gpu.forward(*inputs, mask=mask, kernel="q_outer")
    allowed = import_cupy().asarray(in_window((20, 3), 70, 90, 64))
    by_array = gpu.forward(*inputs, mask=allowed, kernel="q_outer")
    assert (by_window == by_array).all()


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
        model = "split_kv" if t > 1 else "q_outer"
        split: dict[str, Any] = {"splits": t} if t > 1 else {}
        expected = tally(model, one, gqa="grouped", **split)
        for array, (read, written) in expected.items():
            # each of its blocks reads Q
            reads[array] += read * (blocks // merged if array == "Q" else 1)
            writes[array] += written
    writes["L"] = B * H_q * N_q  # which split_kv does not make
    counts = {}
    for array in (*reads, "L"):
        if reads[array] or writes[array]:
            counts[array] = (reads[array], writes[array])
    assert moved(counted) == counts


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
    problem = given((1, 12, 4, 40, 900, 128), "float16")
    q, k, v = on_gpu(problem)
    options: dict[str, Any] = {"causal": True, "scale": scale, "return_lse": True}
    result = gpu.forward(q, k, v, kernel="hopper_decode", **options)
    expected = gpu.forward(q, k, v, kernel="hopper", **options)
    for one, other in zip(result, expected, strict=True):
        assert abs(one.astype("float32") - other.astype("float32")).max() < 2e-3


def test_of_more_queries_bits_stay_and_nothing_else_is_written() -> None:
    """The same bits in 20 runs, whatever O held; q, k and v may be views with other strides."""
    import cupy

    problem = given((3, 16, 2, 33, 5000, 128), "float16")
    q, k, v = on_gpu(problem)
    options: dict[str, Any] = {"kernel": "hopper_decode", "causal": True}
    first = gpu.forward(q, k, v, **options)
    for _ in range(20):
        again = gpu.forward(q, k, v, **options)
        assert (again == first).all()
    transposed = []
    for x in (q, k, v):
        heads_last = cupy.ascontiguousarray(x.swapaxes(1, 2))
        transposed.append(heads_last.swapaxes(1, 2))
    again = gpu.forward(*transposed, **options)
    assert (again == first).all()


@pytest.mark.parametrize(
    ("causal", "dropout_p"),
    [(False, 0.0), (True, 0.0), (True, 0.3)],
)
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
    q, k, v = on_gpu(problem)
    do = cupy.asarray(problem.do)
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
    of_few = [X[:, few].copy() for X in (q, k, v, o, lse, do)]
    part = gpu.backward(*of_few, deterministic=True, **options)
    assert_same_bits([gradient[:, few] for gradient in whole], part)


def test_calls_are_captured_in_a_graph_of_pytorchs() -> None:
    """On a stream that has not been used before: nothing there may ask the driver for memory."""
    torch = pytest.importorskip("torch")
    for shape in ((2, 3, 200, 128), (1, 8, 1, 128)):
        normal: Any = partial(torch.randn, device="cuda", dtype=torch.float16)
        B, H, _, d = shape
        q = normal(B, H, shape[2], d)
        k = normal(B, H, 5000, d)
        v = normal(B, H, 5000, d)

        def step(q: Any = q, k: Any = k, v: Any = v) -> list[Any]:
            o, lse = gpu.forward(q, k, v, return_lse=True)
            gradients = gpu.backward(q, k, v, o, lse, o, deterministic=True)
            return [o, lse, *gradients]

        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = step()
        q.copy_(torch.randn_like(q))
        expected = step()
        graph.replay()
        assert_same_bits(result, expected)

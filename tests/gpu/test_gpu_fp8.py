"""Attention of 8-bit numbers, on a GPU of compute capability 90."""

from typing import Any

import numpy as np
import pytest

from flashsim import gpu
from flashsim.gpu import hopper_fp8, launching
from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.counters import Counters
from flashsim.gpu.kernel import Options
from tests.helpers.gpu_fp8 import HALF, KERNEL, OFFSET, assert_near, on_gpu, rounded, run
from tests.helpers.gpu_runs import Array, Given, Poisoned, moved, tally
from tests.helpers.hopper import ON_HOPPER

pytestmark = ON_HOPPER

LAGS = 9 - OFFSET  # powers of two by which m lags so far that it is raised
ROWS = 16  # of a warp
KEYS = 64  # of a half of a tile
SHAPES = [  # B, H_q, H_kv, N_q, N_k, d
    (1, 1, 1, 1, 1, 128),
    (2, 3, 3, 128, 128, 128),
    (1, 4, 2, 129, 257, 128),
    (1, 2, 1, 700, 130, 128),
    (2, 2, 2, 64, 1000, 128),
    (1, 3, 3, 1000, 1000, 128),
]


def fours(N_k: int) -> int:
    """So many keys, or up to three more."""
    return -(-N_k // 4) * 4


def assert_run_near(
    problem: Given, scale: float, causal: bool, keys_contiguous: bool = False
) -> None:
    o, lse = run(problem, scale, causal, keys_contiguous)
    assert_near(problem, o, lse, scale, causal)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("keys_contiguous", [False, True], ids=["rows of V", "keys of V"])
@pytest.mark.parametrize("shape", SHAPES)
def test_results_lie_within_rounding_of_the_reference_of_the_same_numbers(
    shape: tuple[int, ...], causal: bool, keys_contiguous: bool
) -> None:
    *others, N_k, d = shape
    problem = rounded((*others, fours(N_k), d) if keys_contiguous else shape)
    for scale in (shape[-1] ** -0.5, -0.05, 0.0):
        assert_run_near(problem, scale, causal, keys_contiguous)


@pytest.mark.parametrize("part", range(4))
def test_200_random_shapes(part: int) -> None:
    for n in range(part, 200, 4):
        rng = np.random.default_rng(n)
        N_q = int(np.exp(rng.uniform(0, np.log(700))))
        N_k = int(np.exp(rng.uniform(0, np.log(700))))
        H_kv = int(rng.integers(1, 3))
        group = int(rng.integers(1, 4))
        causal = bool(rng.integers(2))
        B = int(rng.integers(1, 3))
        keys_contiguous = bool(rng.integers(2))
        if keys_contiguous:
            N_k = fours(N_k)
        problem = rounded((B, group * H_kv, H_kv, N_q, N_k, 128), n)
        assert_run_near(problem, 128**-0.5, causal, keys_contiguous)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("keys_contiguous", [False, True], ids=["rows of V", "keys of V"])
@pytest.mark.parametrize("heads", [1, 31, 64, 200])
def test_every_row_block_comes_where_heads_come_in_several_sections(
    heads: int, causal: bool, keys_contiguous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An L2 that holds 64 heads: 200 make sections of 64, or of 32 and a last one of 40."""
    monkeypatch.setattr(hopper_fp8, "section", lambda *_: min(heads, 64))
    hopper_fp8._launch.cache_clear()
    for N_q in (100, 450):
        problem = rounded((1, heads, heads, N_q, 132, 128))
        assert_run_near(problem, 128**-0.5, causal, keys_contiguous)
    hopper_fp8._launch.cache_clear()


def test_v_whose_keys_lie_next_to_each_other_is_taken_as_it_is_or_copied_where_keys_are_no_fours() -> (
    None
):
    cupy = import_cupy()
    for N_k in (332, 333):
        problem = rounded((2, 4, 2, 300, N_k, 128))
        q, k, v = on_gpu(problem)
        transposed = on_gpu(problem, True)[2]
        assert gpu.plan(q, k, transposed).kernel == "hopper_fp8"
        for causal in (False, True):
            options: dict[str, Any] = {"causal": causal, "return_lse": True}
            o, lse = (X.get() for X in gpu.forward(q, k, transposed, **options))
            assert_near(problem, o, lse, 128**-0.5, causal)
            if N_k % 4:
                of_rows = gpu.forward(q, k, v, causal=causal).get()
                assert (o == of_rows).all()
    in_float32 = cupy.asarray(problem.v.astype(np.float32))
    made = gpu.to_fp8(in_float32, keys_contiguous=True)
    assert made.shape == v.shape
    assert made.strides[2:] == (1, 336)
    assert (made.view("uint8") == v.view("uint8")).all()
    torch = pytest.importorskip("torch")

    def of_torch(x: Any) -> Any:
        return torch.from_dlpack(x.view("uint8")).view(torch.float8_e4m3fn)

    tq = of_torch(q)
    tk = of_torch(k)[:, :, :332]
    tv = of_torch(v).view(torch.uint8).mT.contiguous().mT
    transposed = tv.view(torch.float8_e4m3fn)[:, :, :332]
    with pytest.raises(ValueError, match=r"v is at .* expected multiples of 16"):
        gpu.forward(tq, tk, transposed)
    cupy.cuda.Device().synchronize()


@pytest.mark.parametrize("growth", [0.5, 3.9, 4.1, 7.9, 20, 200])
@pytest.mark.parametrize("hot", [0, 1, 2], ids=lambda tile: f"tile {tile}")
def test_weights_do_not_saturate_where_the_maximum_lags_behind(growth: float, hot: int) -> None:
    """Keys come from the last tile on. Those of one later tile score `growth` powers of 2 more;
    of one key 2^4.8 would fit.
    """
    N = 512
    keys = slice(128 * hot, 128 * hot + 128)
    problem = rounded((1, 1, 1, N, N, 128))
    problem.q[...] = 0
    problem.k[...] = 0
    problem.v[...] = 0
    problem.q[..., 0] = 1
    problem.k[:, :, keys, 0] = 1
    problem.v[:, :, keys] = 1
    o, _ = run(problem, growth * np.log(2), False)
    share = 2**growth / (3 + 2**growth)
    assert np.abs(o / share - 1).max() < HALF


def raised(problem: Given, scale: float, causal: bool = False) -> tuple[int, int]:
    """Return of how many halves of tiles a warp mended P̃ with a higher m, and computed its
    scores again.
    """
    counters = Counters()
    o = Poisoned(problem.q.shape, "float16")
    options = Options(scale, causal, counters=counters)
    KERNEL.forward(*on_gpu(problem), o.array, None, options)
    assert np.isfinite(o.get()).all()
    happened = counters.happened()
    return happened["mended"], happened["S again"]


def steps(heads: int, tiles: int, heights: list[int]) -> Given:
    """Scores of the tiles' keys, in the order in which they come, from the last on."""
    problem = rounded((1, heads, heads, 128 * tiles, 128 * tiles, 128))
    problem.q[...] = 0
    problem.k[...] = 0
    problem.q[..., 0] = 1
    problem.k[..., 0] = np.repeat(heights[::-1], 128)
    return problem


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    "growth",
    [0.5, 0.9, 3.9, 4.1, 4.9, 7.9, 20, 200],
)
def test_p_is_mended_once_where_the_maximum_grows_once(growth: float, causal: bool) -> None:
    """Were m not to become the maximum, though it lags by little, sums would be too large in all
    the tiles that follow.
    """
    tiles = 8
    grown = (2 * 128 if causal else 128 * tiles) // ROWS
    fits = 16 * 2 ** (OFFSET + growth) <= hopper_fp8.LARGEST
    expected = (grown, 0)
    if fits:
        expected = (0, 0)
    elif growth > 127:
        expected = (0, grown)
    heights = [0, 0] + [1] * (tiles - 2)
    problem = steps(1, tiles, heights)
    assert raised(problem, growth * np.log(2), causal) == expected


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_of_normal_numbers_little_is_mended(causal: bool) -> None:
    """Causally rows that see few keys of their first half may have a low maximum."""
    heads = 2
    N = 2048
    halves = heads * (N // ROWS) * (N // KEYS) // (2 if causal else 1)
    problem = rounded((1, heads, heads, N, N, 128))
    mended, again = raised(problem, 128**-0.5, causal)
    assert mended <= halves / (50 if causal else 200)
    assert again == 0


def test_the_largest_weight_of_a_row_is_exact_once_p_is_mended() -> None:
    """Its P̃ is a power of two. V says how large a share it has: were P̃ another number, it
    would be rounded by up to 1/16.
    """
    N = 512
    problem = rounded((1, 1, 1, N, N, 128))
    problem.q[...] = 0
    problem.k[...] = 0
    problem.v[...] = 0
    queries = np.linspace(1, 2, N)
    problem.q[..., 0] = queries.astype(problem.q.dtype)
    problem.k[:, :, 7, 0] = 1
    problem.v[:, :, 7] = 1
    queries = problem.q[0, 0, :, :1].astype(np.float64)
    for growth in (7.3, 9.6, 13.9):  # powers of two, and up to twice as many
        o, _ = run(problem, growth * np.log(2), False)
        weight = 2 ** (growth * queries)
        share = weight / (weight + N - 1)
        assert np.abs(o[0, 0] / share - 1).max() < 2e-3


@pytest.mark.parametrize("growth", [3.9, 4.1, 4.9, 20])
@pytest.mark.parametrize(
    "heights",
    [[0, 1, 1, 2], [1, 0, 2, 3]],
    ids=str,
)
def test_results_where_maxima_grow(heights: list[int], growth: float) -> None:
    problem = steps(2, len(heights), heights)
    for causal in (False, True):
        assert_run_near(problem, growth * np.log(2), causal)


def test_results_of_more_row_blocks_than_multiprocessors_where_maxima_grow() -> None:
    processors = import_cupy().cuda.Device().attributes["MultiProcessorCount"]
    problem = steps(2 * processors, 3, [0, 1, 1])
    assert_run_near(problem, LAGS * np.log(2), False)
    problem.v[...] = 1
    o, _ = run(problem, LAGS * np.log(2), False)
    # were m to lag by more than P̃ has room for, P̃ would end at 448
    assert np.abs(o - 1).max() < HALF


def test_repeats_strides_and_the_plan() -> None:
    problem = rounded((2, 3, 3, 200, 200, 128))
    q, k, v = on_gpu(problem)
    assert gpu.plan(q, k, v).kernel == "hopper_fp8"
    o, lse = gpu.forward(q, k, v, causal=True, return_lse=True)
    assert o.dtype == np.float16
    cupy = import_cupy()
    transposed = []
    for X in (q, k, v):
        heads_last = cupy.ascontiguousarray(X.view("uint8").swapaxes(1, 2))
        transposed.append(heads_last.swapaxes(1, 2).view(q.dtype))
    for given_again in [transposed, *[(q, k, v)] * 10]:
        again = gpu.forward(*given_again, causal=True, return_lse=True)
        for result, want in zip(again, (o, lse), strict=True):
            assert (result == want).all()
    narrow = [X[..., :64] for X in (q, k, v)]
    with pytest.raises(ValueError, match=r"d = 64; hopper_fp8 takes d of 128"):
        gpu.forward(*narrow)
    with pytest.raises(ValueError, match="float8_e4m3fn"):
        gpu.backward(q, k, v, o, lse, o)


TOGETHER = [  # B, H_q, H_kv, N_q, N_k
    (1, 2, 1, 64, 9000),  # more tiles to transpose than row blocks
    (2, 260, 130, 130, 150),  # counts that heads share, the last with fewer
    (1, 3, 1, 1500, 200),  # causally, row blocks that see no key
    (3, 16, 16, 1024, 1024),  # all multiprocessors, more than once
]


def words() -> Array:
    """The counters of the current stream."""
    cupy = import_cupy()
    device = cupy.cuda.runtime.getDevice()
    index = launching.counter(device, cupy.cuda.get_current_stream().ptr)
    memory = cupy.cuda.UnownedMemory(index, 4 * launching.WORDS_EACH, None, device)
    pointer = cupy.cuda.MemoryPointer(memory, 0)
    counters = cupy.ndarray(launching.WORDS_EACH, "uint32", pointer)
    return counters.get()  # type: ignore[no-any-return]


def stale(rows: int) -> None:
    """Leave in the pool of memory, where V transposed comes to lie, something else than another
    call's.
    """
    cupy = import_cupy()
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.full(rows * 128, 0x55, "uint8")


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("shape", TOGETHER)
def test_no_row_block_reads_v_before_it_is_transposed_and_counters_end_at_0(
    shape: tuple[int, ...], causal: bool
) -> None:
    B, H, H_kv, N_q, N_k = shape
    cupy = import_cupy()
    bytes_of_8_bits = np.arange(256, dtype=np.uint8)
    numbers = cupy.asarray(bytes_of_8_bits.view(hopper_fp8.dtype()).astype(np.float32))
    for seed in range(5):
        rng = cupy.random.default_rng(seed)
        q, k, v = (
            gpu.to_fp8(rng.standard_normal((B, heads, N, 128), dtype=cupy.float32))
            for heads, N in ((H, N_q), (H_kv, N_k), (H_kv, N_k))
        )
        stale(B * H_kv * -(-N_k // 128) * 128)
        o = gpu.forward(q, k, v, causal=causal)
        group = H // H_kv
        q = numbers[q.view("uint8")]
        k = numbers[k.view("uint8").repeat(group, 1)]
        v = numbers[v.view("uint8").repeat(group, 1)]
        S = q @ k.swapaxes(2, 3) * 128**-0.5
        if causal:
            allowed = cupy.tri(N_q, N_k, N_k - N_q, dtype=bool)
            S[..., ~allowed] = -np.inf
        m = cupy.maximum(S.max(3, keepdims=True), -1e30)
        P = cupy.exp(S - m)
        l = cupy.maximum(P.sum(3, keepdims=True), 1e-30)
        expected = P @ v / l
        error = cupy.linalg.norm(o.astype("float32") - expected)
        off = float(error / cupy.linalg.norm(expected))
        assert off < HALF
        assert not words().any()


def test_streams_and_graphs_at_once() -> None:
    """Grids that share the GPU, so that neither is there as a whole, come to an end, and to what
    they come to alone.
    """
    cupy = import_cupy()
    shape = (2, 16, 16, 640, 640, 128)
    inputs = [on_gpu(rounded(shape, seed)) for seed in range(3)]
    alone = [gpu.forward(*arrays, causal=True) for arrays in inputs]
    streams = []
    for priority in (0, -1, 0):
        streams.append(cupy.cuda.Stream(non_blocking=True, priority=priority))
    graphs = []
    kept = []
    for stream, arrays in zip(streams, inputs, strict=True):
        with stream:
            gpu.forward(*arrays, causal=True)
            stream.synchronize()
            stream.begin_capture()
            kept.append([gpu.forward(*arrays, causal=True) for _ in range(3)])
            graphs.append(stream.end_capture())
    for _ in range(100):
        for stream, graph in zip(streams, graphs, strict=True):
            graph.launch(stream)
    cupy.cuda.Device().synchronize()
    for o, result in zip(alone, kept, strict=True):
        assert all((one == o).all() for one in result)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_counts_are_the_simulators_and_v_is_transposed_once_or_taken_as_it_is(causal: bool) -> None:
    for N_k, keys_contiguous in ((333, False), (332, True)):
        shape = (2, 4, 2, 260, N_k, 128)
        inputs = on_gpu(rounded(shape), keys_contiguous)
        *_, counted = gpu.forward(*inputs, causal=causal, return_lse=True, count=True)
        expected = tally("q_outer", (*shape, hopper_fp8.BLOCKS), causal=causal)
        # a warpgroup of the first row block has no rows, none of the last: as if 64 queries came
        # before all others
        if causal:
            padded = *shape[:3], 260 + 64, *shape[4:]
            of_padded = tally("q_outer", (*padded, hopper_fp8.BLOCKS), causal=True)
            expected["K"] = of_padded["K"]
            expected["V"] = of_padded["V"]
        expected.pop("R", None)
        if not keys_contiguous:
            once = 2 * 2 * N_k * 128
            expected["V transposed"] = (once, once)
        assert moved(counted) == expected


def test_numbers_are_rounded_as_ml_dtypes_rounds_them() -> None:
    cupy = import_cupy()
    torch = pytest.importorskip("torch")
    for dtype in ("float32", "float16", "bfloat16"):
        x = (
            cupy.random.default_rng(0)
            .standard_normal((3, 4, 5, 128), dtype=cupy.float32)
            .astype(dtype)
        )
        for place, number in enumerate((1e-3, 1000, -1000)):
            x[0, 0, 0, place] = number
        in_float32 = x.get().astype(np.float32)
        expected = np.clip(in_float32, -448, 448).astype(hopper_fp8.dtype()).view(np.uint8)
        assert (gpu.to_fp8(x).view("uint8").get() == expected).all()
        tensor = torch.from_dlpack(x.astype("float32")).to(getattr(torch, dtype))
        tensor.requires_grad_()
        for keys_contiguous in (False, True):
            rounded = gpu.to_fp8(tensor, keys_contiguous=keys_contiguous)
            assert rounded.dtype == torch.float8_e4m3fn
            of_torch = rounded.view(torch.uint8).cpu().numpy()
            assert (of_torch == expected).all()
    q = torch.randn(1, 2, 100, 128, device="cuda").to(torch.float8_e4m3fn)
    o = gpu.forward(q, q, q)
    expected = torch.nn.functional.scaled_dot_product_attention(*[q.float()] * 3)
    assert o.dtype == torch.float16
    assert (o.float() - expected).abs().max().item() < 0.3

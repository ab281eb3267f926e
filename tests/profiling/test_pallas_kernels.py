# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
"""Pallas kernels, JAX's own and some with planted waste, counted by array and by line."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from flashsim.attention.problem import Problem
from flashsim.profiling import OutsideArrays, Profile, ProfilingError, count, count_attention
from flashsim.profiling.pallas_call import Internals, PallasCall
from flashsim.theory import exact

jax = pytest.importorskip("jax", reason="JAX is not installed")
pl = pytest.importorskip("jax.experimental.pallas", reason="JAX has no Pallas")
jnp = jax.numpy
from jax.experimental.pallas import tpu as pltpu  # noqa: E402
from jax.experimental.pallas import triton as plgpu  # noqa: E402
from jax.experimental.pallas.ops.gpu import attention as gpu_attention  # noqa: E402
from jax.experimental.pallas.ops.gpu import decode_attention  # noqa: E402
from jax.experimental.pallas.ops.tpu import flash_attention as tpu_attention  # noqa: E402
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention  # noqa: E402
from jax.experimental.pallas.ops.tpu.splash_attention import (  # noqa: E402
    splash_attention_kernel as splash,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (  # noqa: E402
    splash_attention_mask as masks,
)

BLOCK = 128
TPU_BLOCKS = tpu_attention.BlockSizes(BLOCK, BLOCK, BLOCK, 1)


def random(*shape, seed=0):
    values = np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)
    return jnp.asarray(values)


def operands(*shape):
    return random(*shape, seed=1), random(*shape, seed=2), random(*shape, seed=3)


def counts(profile: Profile) -> dict[str, tuple[int, int]]:
    return {name: (array.reads, array.writes) for name, array in profile.by_array.items()}


def line_of(function: Callable[..., Any], text: str) -> str:
    """Return the place of the one line of a function that has this text."""
    lines, first = inspect.getsourcelines(function)
    numbers = [first + number for number, line in enumerate(lines) if text in line]
    assert len(numbers) == 1, (text, numbers)
    return f"{inspect.getsourcefile(function)}:{numbers[0]}"


def keeping(function, results):
    """Return a function that calls another with Q, K and V, and keeps what it returns."""

    def attention(q, k, v, **keywords):
        results.append(function(q, k, v, **keywords))
        return results[-1]

    return attention


def plain(q, k, v, scale, causal=False):
    """Return attention over the last two axes, in float64."""
    scores = np.asarray(q, np.float64) @ np.asarray(k, np.float64).swapaxes(-1, -2) * scale
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights @ np.asarray(v, np.float64) / weights.sum(axis=-1, keepdims=True)


# TPU: JAX's flash attention.


def test_a_tpu_kernel_moves_the_blocks_that_its_block_specs_bring() -> None:
    results: list[Any] = []
    q, k, v = operands(1, 1, 512, 128)
    function = keeping(partial(tpu_attention.flash_attention, block_sizes=TPU_BLOCKS), results)

    profile = count(function, q, k, v)

    assert counts(profile) == {
        "Q": (65_536, 0),
        "K": (262_144, 0),
        "V": (262_144, 0),
        "O": (0, 65_536),
    }
    assert profile.nearest is not None
    assert profile.nearest.equal
    form = exact(
        profile.nearest.algorithm, N_q=512, N_k=512, d=128, d_v=128, blocks=(BLOCK, BLOCK), M=2**20
    )
    assert counts(profile) == {
        name: (form.hbm.by_array[name].reads, form.hbm.by_array[name].writes) for name in "QKVO"
    }
    np.testing.assert_allclose(results[0], plain(q, k, v, 1.0), rtol=1e-4, atol=1e-4)
    assert [launch.grid for launch in profile.launches] == [(1, 1, 4, 4)]


def test_a_causal_tpu_kernel_in_the_order_of_its_grid_keeps_a_block_between_programs() -> None:
    """Past the diagonal, the index map names the first block of the next program. Programs 1 and 2
    bring it so; program 0's is the one that is there, which saves one of the 10 tiles.
    """
    results: list[Any] = []
    q, k, v = operands(1, 1, 512, 128)
    function = keeping(
        partial(tpu_attention.flash_attention, block_sizes=TPU_BLOCKS, causal=True), results
    )

    profile = count(function, q, k, v)

    tile = BLOCK * 128
    assert counts(profile) == {
        "Q": (4 * tile, 0),
        "K": (9 * tile, 0),
        "V": (9 * tile, 0),
        "O": (0, 4 * tile),
    }
    np.testing.assert_allclose(results[0], plain(q, k, v, 1.0, True), rtol=1e-4, atol=1e-4)


def test_a_causal_tpu_kernel_in_the_interpreters_random_order_brings_each_live_tile() -> None:
    function = partial(tpu_attention.flash_attention, block_sizes=TPU_BLOCKS)
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(random_seed=0)):
        profile = count(function, *operands(1, 1, 512, 128), causal=True)

    assert counts(profile)["K"] == counts(profile)["V"] == (163_840, 0)
    assert profile.nearest is not None
    assert (profile.nearest.skips, profile.nearest.difference) == (True, 0)


def test_the_interpreters_parameters_alone_do_not_shuffle_the_grid() -> None:
    function = partial(tpu_attention.flash_attention, block_sizes=TPU_BLOCKS, causal=True)
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams()):
        profile = count(function, *operands(1, 1, 512, 128))

    assert counts(profile)["K"] == (9 * BLOCK * 128, 0)


def test_a_tpu_kernels_vmem_is_two_blocks_of_each_operand_and_its_scratch() -> None:
    profile = count(
        partial(tpu_attention.flash_attention, block_sizes=TPU_BLOCKS), *operands(1, 1, 512, 128)
    )

    block = BLOCK * 128 * 4
    scratch = 2 * BLOCK * 128 * 4 + BLOCK * 128 * 4  # m, l and the sum of O
    assert profile.on_chip_bytes == 2 * 4 * block + scratch
    assert profile.to_dict()["on_chip_bytes"] == profile.on_chip_bytes


def test_a_block_that_never_moves_has_one_buffer() -> None:
    def kernel(x_ref, y_ref):
        y_ref[...] = 2 * x_ref[...]

    def double(x):
        return pl.pallas_call(kernel, out_shape=x)(x)

    assert count(double, random(64, 128)).on_chip_bytes == 2 * 64 * 128 * 4


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 1), (2, 2)])
def test_splash_attention_brings_the_tiles_that_its_mask_leaves(heads: int, kv_heads: int) -> None:
    N = 512
    mask = masks.MultiHeadMask([masks.CausalMask((N, N)) for _ in range(heads)])
    sizes = splash.BlockSizes(block_q=BLOCK, block_kv=BLOCK, block_kv_compute=BLOCK)
    make = splash.make_splash_mha if heads == kv_heads else splash.make_splash_mqa

    def attention(q, k, v, causal=True):
        kernel = make(mask, block_sizes=sizes, head_shards=1, q_seq_shards=1)
        if heads != kv_heads:
            k, v = k[0], v[0]
        return kernel(q, k, v)

    q = random(heads, N, 128)
    k, v = random(kv_heads, N, 128, seed=1), random(kv_heads, N, 128, seed=2)
    profile = count(attention, q, k, v)

    tile = BLOCK * 128
    traffic = counts(profile)
    assert traffic["Q"] == (heads * N * 128, 0)
    assert traffic["O"] == (0, heads * N * 128)
    # As in flash attention, programs 0 and 1 share a block.
    assert traffic["K"] == traffic["V"] == (heads * 9 * tile, 0)
    assert not [finding for finding in profile.findings if finding.kind == "needless tiles"]
    assert profile.on_chip_bytes is not None
    assert profile.on_chip_bytes > 2 * 4 * tile * 4


def test_paged_attention_brings_only_the_pages_in_use() -> None:
    page, heads, kv_heads, d = 16, 8, 2, 128
    lengths = np.array([40, 128], np.int32)
    table = np.random.default_rng(0).permutation(16).astype(np.int32).reshape(2, 8)

    def attention(q, k_pages, v_pages, lengths, page_indices):
        return paged_attention(
            q, k_pages, v_pages, lengths, page_indices, pages_per_compute_block=2
        )

    pages = random(kv_heads, 16, page, d, seed=1), random(kv_heads, 16, page, d, seed=2)
    profile = count(
        attention, random(2, heads, d), *pages, jnp.asarray(lengths), jnp.asarray(table)
    )

    tokens = sum(-(-length // (2 * page)) * 2 * page for length in lengths.tolist())
    traffic = counts(profile)
    assert traffic["k_pages"] == traffic["v_pages"] == (tokens * kv_heads * d, 0)
    assert traffic["Q"] == (2 * heads * d, 0)
    assert traffic["page_indices"] == (table.size, 0)
    assert traffic["lengths"] == (2, 0)
    rows = {line.line.file for line in profile.lines if line.array == "k_pages"}
    assert [file.rpartition("/")[2] for file in rows] == ["paged_attention_kernel.py"]


# TPU: kernels of our own.


def sum_kernel(q_ref, k_ref, v_ref, o_ref):
    """Add q kᵀ v, block after block, in the last pass."""
    passes, blocks = pl.program_id(1), pl.program_id(2)

    @pl.when((passes == 0) & (blocks == 0))
    def _():
        o_ref[...] = jnp.zeros_like(o_ref)

    @pl.when(passes == pl.num_programs(1) - 1)
    def _():
        o_ref[...] += q_ref[...] @ k_ref[...].T @ v_ref[...]


def linear_attention(q, k, v, passes=1):
    """Return q kᵀ v; in two passes over K and V, the first of which is for nothing."""
    N, d = q.shape
    rows = pl.BlockSpec((64, d), lambda i, p, j: (i, 0))
    columns = pl.BlockSpec((64, d), lambda i, p, j: (j, 0))
    return pl.pallas_call(  # the call
        sum_kernel,
        grid=(N // 64, passes, N // 64),
        in_specs=[rows, columns, columns],
        out_specs=rows,
        out_shape=q,
    )(q, k, v)


def test_an_index_map_that_brings_blocks_again_is_found_with_the_line_of_the_call() -> None:
    q, k, v = operands(256, 128)
    once = count(linear_attention, q, k, v)
    twice = count(linear_attention, q, k, v, passes=2)

    assert counts(once)["K"] == (4 * k.size, 0)
    # It computes linear attention, without a softmax.
    assert [finding.kind for finding in once.findings] == ["wrong result"]
    assert counts(twice)["K"] == (8 * k.size, 0)
    again = {
        finding.array: (str(finding.line), finding.elements)
        for finding in twice.findings
        if finding.kind == "read again"
    }
    # Of 4 programs, each brings 4 blocks twice.
    line = line_of(linear_attention, "# the call")
    assert again == {"K": (line, 4 * k.size), "V": (line, 4 * k.size)}


def test_tiles_of_keys_that_a_causal_tpu_kernel_brings_for_nothing_are_found() -> None:
    def attention(q, k, v, causal):
        return linear_attention(q, k, v)

    profile = count(attention, *operands(256, 128), causal=True)

    needless = {f.array: f.elements for f in profile.findings if f.kind == "needless tiles"}
    assert needless == {"K": 6 * 64 * 128, "V": 6 * 64 * 128}


def test_an_operand_that_is_passed_twice_is_brought_twice() -> None:
    def kernel(k_ref, same_ref, o_ref):
        o_ref[...] = k_ref[...] + same_ref[...]

    def function(x):
        return pl.pallas_call(kernel, out_shape=x)(x, x)

    profile = count(function, random(8, 128))

    assert counts(profile) == {"x": (2 * 8 * 128, 0), "o_ref": (0, 8 * 128)}
    assert [(f.kind, f.elements) for f in profile.findings] == [("read again", 8 * 128)]


@pytest.mark.parametrize("device", ["tpu", "gpu"])
def test_an_output_in_an_inputs_memory_is_that_array(device: str) -> None:
    params = plgpu.CompilerParams() if device == "gpu" else None

    def twice(x):
        double_in_place = pl.pallas_call(
            double_kernel, out_shape=x, input_output_aliases={0: 0}, compiler_params=params
        )
        results.append(double_in_place(double_in_place(x)))
        return results[-1]

    results: list[Any] = []
    x = random(8, 128)
    profile = count(twice, x)

    assert counts(profile) == {"x": (2 * x.size, 2 * x.size)}
    np.testing.assert_array_equal(results[0], 4 * x)


def copying_kernel(q_ref, k_hbm, o_ref, k_vmem, semaphore, *, fault):
    """Add q kᵀ k, with K's blocks copied by hand."""
    o_ref[...] = jnp.zeros_like(o_ref)

    def body(block, _):
        source = k_hbm.at[pl.ds(block * 64, 64), :]
        copy = pltpu.make_async_copy(source, k_vmem, semaphore)
        copy.start()  # K once
        copy.wait()
        product = q_ref[...] @ k_vmem[...].T
        if fault:
            copy = pltpu.make_async_copy(source, k_vmem, semaphore)
            copy.start()  # K again
            copy.wait()
        o_ref[...] += product @ k_vmem[...]
        return 0

    jax.lax.fori_loop(0, k_hbm.shape[0] // 64, body, 0)


def copying_attention(q, k, fault=False):
    N, d = q.shape
    rows = pl.BlockSpec((64, d), lambda i: (i, 0))
    return pl.pallas_call(
        partial(copying_kernel, fault=fault),
        grid=(N // 64,),
        in_specs=[rows, pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=rows,
        out_shape=q,
        scratch_shapes=[pltpu.VMEM((64, d), jnp.float32), pltpu.SemaphoreType.DMA],
    )(q, k)


def test_a_kernel_that_copies_k_twice_is_found_with_its_line() -> None:
    q, k, _ = operands(256, 128)
    good = count(copying_attention, q, k)
    bad = count(copying_attention, q, k, fault=True)

    assert counts(good) == {"Q": (q.size, 0), "K": (4 * k.size, 0), "o_ref": (0, q.size)}
    assert not good.findings
    assert counts(bad)["K"] == (8 * k.size, 0)
    assert [(f.kind, str(f.line), f.array, f.elements) for f in bad.findings] == [
        ("read again", line_of(copying_kernel, "# K again"), "K", 4 * k.size)
    ]
    lines = {str(line.line): line.elements for line in bad.lines if line.array == "K"}
    assert lines == {
        line_of(copying_kernel, "# K once"): 4 * k.size,
        line_of(copying_kernel, "# K again"): 4 * k.size,
    }
    # Two blocks of q and o each, one of K.
    assert good.on_chip_bytes == (2 * 2 + 1) * 64 * 128 * 4


def test_a_pipeline_inside_a_kernel_is_counted_and_its_buffers_are() -> None:
    def double(x_ref, y_ref):
        y_ref[...] = 2 * x_ref[...]

    def kernel(x_hbm, y_hbm):
        block = pl.BlockSpec((64, 128), lambda i: (i, 0))
        pltpu.emit_pipeline(double, grid=(4,), in_specs=[block], out_specs=[block])(x_hbm, y_hbm)

    def function(x):
        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(kernel, in_specs=[anywhere], out_specs=anywhere, out_shape=x)(x)

    profile = count(function, random(256, 128))

    assert counts(profile) == {"x": (256 * 128, 0), "y_hbm": (0, 256 * 128)}
    assert profile.on_chip_bytes == 2 * 2 * 64 * 128 * 4


def test_what_a_kernel_allocates_one_after_the_other_is_not_there_at_once() -> None:
    def kernel(x_ref, y_ref):
        def first(small, other):
            small[...] = x_ref[:8]
            other[...] = small[...]

        def second(large):
            large[...] = 2 * x_ref[...]
            y_ref[...] = large[...]

        pl.run_scoped(first, pltpu.VMEM((8, 128), jnp.float32), pltpu.VMEM((8, 128), jnp.float32))
        pl.run_scoped(second, pltpu.VMEM((32, 128), jnp.float32))

    def function(x):
        block = pl.BlockSpec((32, 128), lambda i: (i, 0))
        return pl.pallas_call(kernel, grid=(3,), in_specs=[block], out_specs=block, out_shape=x)(x)

    profile = count(function, random(96, 128))

    assert profile.on_chip_bytes == (2 + 2 + 1) * 32 * 128 * 4


def double_kernel(x_ref, y_ref):
    y_ref[...] = 2 * x_ref[...]  # both


def double(x, compiler_params=None, interpret=False):
    block = pl.BlockSpec((32, 128), lambda i: (i, 0))
    return pl.pallas_call(
        double_kernel,
        grid=(-(-x.shape[0] // 32),),
        in_specs=[block],
        out_specs=block,
        out_shape=x,
        compiler_params=compiler_params,
        interpret=interpret,
    )(x)


def test_of_a_block_that_passes_the_end_only_the_arrays_elements_move() -> None:
    profile = count(double, random(100, 128))

    assert counts(profile) == {"x": (100 * 128, 0), "y_ref": (0, 100 * 128)}
    assert max(tile.rows.stop for tile in profile.tiles) == 100


# What surrounds a kernel.


def test_a_call_that_was_compiled_before_is_counted() -> None:
    compiled = jax.jit(partial(double, interpret=True))
    x = random(64, 128)
    compiled(x)

    first, second = count(compiled, x), count(compiled, x)

    assert counts(first) == counts(second) == {"x": (x.size, 0), "y_ref": (0, x.size)}
    np.testing.assert_array_equal(compiled(x), 2 * x)


def test_several_launches_are_several_and_their_outputs_have_names_of_their_own() -> None:
    def four_times(x):
        return jax.lax.scan(lambda y, _: (double(y), None), x, None, length=2)[0]

    x = random(64, 128)
    profile = count(jax.jit(four_times), x)

    assert [launch.kernel for launch in profile.launches] == ["double_kernel"] * 2
    assert counts(profile) == {
        "x": (x.size, 0),
        "y_ref": (x.size, x.size),
        "double_kernel.y_ref": (0, x.size),
    }
    assert [finding.kind for finding in profile.findings] == ["kept in HBM"]


@pytest.mark.parametrize("device", ["tpu", "gpu"])
def test_a_kernels_loop_is_traced_once_and_not_unrolled(device: str) -> None:
    def kernel(x_ref, y_ref):
        def body(step, total):
            traces.append(step)
            return total + x_ref[...]

        y_ref[...] = jax.lax.fori_loop(0, 50, body, jnp.zeros_like(x_ref))

    def function(x):
        params = plgpu.CompilerParams() if device == "gpu" else None
        return pl.pallas_call(kernel, out_shape=x, compiler_params=params)(x)

    traces: list[Any] = []
    x = random(8, 128)
    profile = count(function, x)

    assert len(traces) < 5
    assert counts(profile)["x"] == ((50 if device == "gpu" else 1) * x.size, 0)


@pytest.mark.parametrize("device", ["tpu", "gpu"])
def test_vmap_adds_an_axis_to_the_grid(device: str) -> None:
    params = plgpu.CompilerParams() if device == "gpu" else None
    x = random(3, 64, 128)

    profile = count(jax.vmap(partial(double, compiler_params=params)), x)

    assert [launch.grid for launch in profile.launches] == [(3, 2)]
    assert counts(profile) == {"x": (x.size, 0), "y_ref": (0, x.size)}


@pytest.mark.parametrize("causal", [False, True])
def test_the_backward_pass_of_a_gpu_kernel_moves_what_q_outer_two_pass_moves(causal: bool) -> None:
    sizes = gpu_attention.BlockSizes(32, 32, 32, 32, 32, 32)
    profile = count(
        gpu_attention.mha,
        *operands(1, 128, 2, 32),
        None,
        causal=causal,
        block_sizes=sizes,
        layout="BNHD",
        direction="backward",
    )

    assert [launch.kernel for launch in profile.launches] == [
        "mha_preprocess_backward",
        "mha_backward",
    ]
    assert profile.nearest is not None
    assert (profile.nearest.algorithm, profile.nearest.equal) == ("q_outer_two_pass", True)
    for name in ("dQ", "dK", "dV"):
        assert counts(profile)[name] == (0, 128 * 2 * 32)
    lines = {line.line.number: line.array for line in profile.lines}
    assert len(lines) > 10  # of the kernels themselves, not that of the call


def test_the_backward_pass_of_a_tpu_kernel_has_the_lines_of_its_two_calls() -> None:
    profile = count(
        tpu_attention.flash_attention,
        *operands(1, 1, 256, 128),
        block_sizes=tpu_attention.BlockSizes(*[BLOCK] * 3, 1, *[BLOCK] * 7),
        direction="backward",
    )

    tile = BLOCK * 128
    traffic = counts(profile)
    # dK and dV are of one kernel, dQ of another; each brings one side once, the other twice.
    assert traffic["Q"] == traffic["K"] == traffic["V"] == traffic["dO"] == ((2 + 4) * tile, 0)
    assert traffic["dQ"] == traffic["dK"] == traffic["dV"] == (0, 2 * tile)
    assert traffic["O"] == (0, 0)
    places = [
        line_of(tpu_attention._flash_attention_bwd_dkv, "pl.pallas_call("),
        line_of(tpu_attention._flash_attention_bwd_dq, "pl.pallas_call("),
    ]
    assert [str(line) for line in dict.fromkeys(line.line for line in profile.lines)] == places


def test_a_kernel_without_a_gradient_has_no_backward_pass() -> None:
    with pytest.raises(ProfilingError, match=r"such as a jax\.custom_vjp"):
        count(linear_attention, *operands(128, 128), direction="backward")


# GPU.


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [32, 24])
def test_a_gpu_kernel_moves_what_it_loads_and_stores(d: int, causal: bool) -> None:
    B, N, H, B_r, B_c = 2, 128, 3, 32, 16
    sizes = gpu_attention.BlockSizes(B_r, B_c)
    q, k, v = operands(B, N, H, d)
    results: list[Any] = []

    def function(q, k, v, causal):
        results.append(gpu_attention.mha(q, k, v, None, causal=causal, block_sizes=sizes))
        return results[-1]

    profile = count(function, q, k, v, causal=causal, layout="BNHD")

    tiles = 0
    for row in range(0, N, B_r):
        last = row + B_r if causal else N
        tiles += -(-last // B_c)
    keys = B * H * tiles * B_c * d
    assert counts(profile) == {"Q": (q.size, 0), "K": (keys, 0), "V": (keys, 0), "O": (0, q.size)}
    assert profile.nearest is not None
    assert profile.nearest.equal
    assert profile.blocks == (B_r, B_c)
    assert profile.on_chip_bytes is None
    Q, K, V = (np.asarray(x).transpose(0, 2, 1, 3) for x in (q, k, v))
    expected = plain(Q, K, V, 1.0, causal).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(results[0], expected, rtol=1e-4, atol=1e-4)


def test_mha_in_a_cached_compiled_call_and_with_interpret_is_counted_alike() -> None:
    q, k, v = operands(1, 64, 2, 16)
    sizes = gpu_attention.BlockSizes(32, 32)
    gpu_attention.mha(q, k, v, None, block_sizes=sizes, interpret=True)
    profiles = [
        count(gpu_attention.mha, q, k, v, None, block_sizes=sizes, layout="BNHD", interpret=choice)
        for choice in (False, True)
    ]

    assert counts(profiles[0]) == counts(profiles[1])
    assert counts(profiles[0])["K"] == (2 * k.size, 0)


def test_decode_attention_moves_no_keys_behind_a_sequences_end() -> None:
    B, heads, N, d, splits, B_c = 2, 4, 256, 32, 4, 32
    lengths = np.array([100, 256], np.int32)
    results: list[Any] = []

    def function(q, k, v, kv_seq_len):
        results.append(
            decode_attention.mqa(q, k, v, kv_seq_len=kv_seq_len, k_splits=splits, block_k=B_c)
        )
        return results[-1]

    q = random(B, heads, d)
    k, v = random(B, N, d, seed=1), random(B, N, d, seed=2)
    profile = count(function, q, k, v, jnp.asarray(lengths))

    tiles = 0
    for length in lengths.tolist():
        for start in range(0, N, N // splits):
            tiles += -(-min(max(length - start, 0), N // splits) // B_c)
    traffic = counts(profile)
    assert traffic["K"] == traffic["V"] == (tiles * B_c * d, 0)
    # Every program with keys reads the 4 heads that there are, of a block of 16.
    programs = sum(-(-length // (N // splits)) for length in lengths.tolist())
    assert traffic["Q"] == (programs * heads * d, 0)
    assert traffic["kv_seq_len"] == (B * splits, 0)
    for entry, length in enumerate(lengths.tolist()):
        expected = plain(q[entry], k[entry, :length], v[entry, :length], 1 / math.sqrt(d))
        np.testing.assert_allclose(results[0][entry], expected, rtol=1e-4, atol=1e-4)


def wasteful_kernel(q_ref, k_ref, o_ref, *, fault):
    total = jnp.zeros(q_ref.shape, jnp.float32)

    def body(block, total):
        rows = pl.ds(block * 16, 16)
        k = plgpu.load(k_ref.at[rows, :])  # K
        scores = q_ref[...] @ k.T
        if fault:
            k = plgpu.load(k_ref.at[rows, :])  # K again
        return total + scores @ k

    o_ref[...] = jax.lax.fori_loop(0, k_ref.shape[0] // 16, body, total)


def wasteful_attention(q, k, fault=False):
    block = pl.BlockSpec((32, q.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        partial(wasteful_kernel, fault=fault),
        grid=(q.shape[0] // 32,),
        in_specs=[block, pl.BlockSpec(k.shape, lambda i: (0, 0))],
        out_specs=block,
        out_shape=q,
    )(q, k)


def test_a_gpu_kernel_that_loads_k_twice_is_found_with_its_line() -> None:
    q, k, _ = operands(64, 16)
    bad = count(wasteful_attention, q, k, fault=True)

    assert counts(bad)["K"] == (2 * 2 * k.size, 0)
    again = [finding for finding in bad.findings if finding.array == "K"]
    assert [(f.kind, str(f.line), f.elements) for f in again] == [
        ("read again", line_of(wasteful_kernel, "# K again"), 2 * k.size)
    ]
    assert counts(count(wasteful_attention, q, k))["K"] == (2 * k.size, 0)


def test_a_gpu_kernel_that_reads_behind_an_array_is_refused_with_its_line() -> None:
    with pytest.raises(OutsideArrays) as raised:
        count(double, random(100, 128), plgpu.CompilerParams())

    line = line_of(double_kernel, "# both")
    assert str(raised.value) == f"{line}: program (3,) reads 3,584 elements outside x of (100, 128)"


def test_masks_atomics_and_old_values_of_a_gpu_kernel() -> None:
    def kernel(x_ref, total_ref, old_ref):
        mask = jnp.arange(8) < 5
        x = plgpu.load(x_ref, mask=mask, other=0.0)
        plgpu.atomic_add(total_ref, (0,), x.sum())
        old_ref[...] = pl.program_id(0) + plgpu.atomic_max(total_ref, (1,), x.max())

    def function(x):
        results.append(
            pl.pallas_call(
                kernel,
                grid=(2,),
                in_specs=[pl.BlockSpec((8,), lambda i: (i,))],
                out_specs=[
                    pl.BlockSpec((2,), lambda i: (0,)),
                    pl.BlockSpec((None,), lambda i: (i,)),
                ],
                out_shape=[
                    jax.ShapeDtypeStruct((2,), jnp.float32),
                    jax.ShapeDtypeStruct((2,), jnp.float32),
                ],
            )(x)
        )
        return results[-1]

    results: list[Any] = []
    profile = count(function, jnp.arange(16.0))

    assert counts(profile) == {"x": (10, 0), "total_ref": (4, 4), "old_ref": (0, 2)}
    assert results[0][0].tolist() == [10.0 + 50.0, 12.0]
    assert results[0][1].tolist() == [0.0, 1.0 + 4.0]


# Bad input.


def test_a_kernel_that_fails_is_named_with_its_line() -> None:
    def kernel(x_ref, y_ref):
        y_ref[...] = x_ref[...] @ x_ref[...]  # of (8, 128)

    def function(x):
        return pl.pallas_call(kernel, out_shape=x)(x)

    with pytest.raises(ProfilingError, match="TypeError: dot_general") as raised:
        count(function, random(8, 128))

    assert str(raised.value).startswith(line_of(kernel, "# of (8, 128)"))


def test_a_tpu_block_outside_an_array_is_refused_and_the_next_count_works() -> None:
    def function(x):
        block = pl.BlockSpec((32, 128), lambda i: (i + 1, 0))
        return pl.pallas_call(
            double_kernel, grid=(2,), in_specs=[block], out_specs=block, out_shape=x
        )(x)

    with pytest.raises(ProfilingError, match="Out-of-bounds block index"):
        count(function, random(64, 128))

    assert counts(count(double, random(64, 128)))["x"] == (64 * 128, 0)


@pytest.mark.parametrize("interpret", [False, True, pltpu.InterpretParams()])
def test_a_kernel_inside_a_larger_compiled_program_is_refused(interpret: Any) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), "a")
    replicated = jax.sharding.PartitionSpec()
    function = jax.shard_map(
        partial(double, interpret=interpret),
        mesh=mesh,
        in_specs=replicated,
        out_specs=replicated,
        check_vma=False,
    )

    with pytest.raises(ProfilingError, match="part of a larger program"):
        count(function, random(64, 128))


def test_a_function_without_a_kernel_is_counted_by_operators() -> None:
    profile = count(jnp.sin, random(8, 128))
    assert [launch.kernel for launch in profile.launches] == ["sin"]
    assert profile.hbm.accesses == 2 * 8 * 128


def test_one_array_that_is_two_of_q_k_and_v_is_compared_with_nothing() -> None:
    x = random(256, 128)
    profile = count(linear_attention, x, x, random(256, 128, seed=1))
    assert profile.problem is None
    assert profile.nearest is None


def test_numpys_arrays_are_refused_by_name() -> None:
    values = np.zeros((256, 128), np.float32)
    with pytest.raises(ValueError, match="v is of the type ndarray; expected an array as Pallas"):
        count(linear_attention, *operands(256, 128)[:2], values)


def test_a_kernel_for_mosaic_on_gpus_is_refused() -> None:
    # Its module cannot be imported on a machine without a GPU.
    parameters = type("CompilerParams", (), {"__module__": "jax._src.pallas.mosaic_gpu.core"})()
    with pytest.raises(ProfilingError, match="written for Pallas's Mosaic GPU part"):
        count(double, random(64, 128), parameters)


def test_an_error_of_the_function_itself_is_its_own() -> None:
    def function(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        count(function, random(8, 128))


def test_parameters_that_jax_does_not_have_name_the_version_that_works() -> None:
    with pytest.raises(ProfilingError, match=r"counted with JAX 0\.10\.2; JAX .* differs inside"):
        PallasCall.of((), {})


def test_nothing_listens_after_a_call() -> None:
    internals = Internals.load()
    before = internals.pallas.pallas_call_p.impl, internals.tpu.get, jax.lax.reshape_p.impl
    count(double, random(64, 128))
    after = internals.pallas.pallas_call_p.impl, internals.tpu.get, jax.lax.reshape_p.impl

    assert before == after
    assert not jax.config.jax_disable_jit


# count_attention.


@pytest.mark.parametrize("library", [None, "jax"])
def test_count_attention_makes_arrays_of_jax_for_a_module_of_jax(library: str | None) -> None:
    problem = Problem.of(N_q=256, N_k=256, d=128, causal=True)
    profile = count_attention(
        tpu_attention.flash_attention,
        problem,
        library=library,
        block_sizes=TPU_BLOCKS,
    )

    # 2 × 2 tiles: of the first program's second, the index map keeps the first.
    assert counts(profile)["K"] == (2 * BLOCK * 128, 0)
    assert profile.problem is not None
    assert profile.problem.dtype == problem.dtype

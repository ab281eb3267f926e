"""Packed batches on Hopper: launches kernels/hopper.cu for sequences that follow each other in
memory, with a list of row blocks.

The list has groups of sequences, the longest sequences first. The L2 holds the keys and values of a
group, of some heads at a time. In a group, the row blocks that see the most keys run first.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flashsim.gpu import hopper, tensor_core
from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.hopper import FILE, MOST, O_ROWS, PROBLEM, ROWS, Tiles
from flashsim.gpu.kernel import Options
from flashsim.gpu.launching import L2_PART, Launch, Prepared, counter, ready, totals
from flashsim.gpu.tensor_maps import contiguous, tensor_map
from flashsim.gpu.tile_lists import to_gpu
from flashsim.support.sizes import ceil_div

ARRAYS = (*hopper.ARRAYS, "cu_q", "cu_k", "order")
HEAD_DIMS = (64, 128)


class Packed(NamedTuple):
    """A batch on the GPU: cu_q, cu_k and `order`'s list; how many row blocks a head has; how
    many heads make a section.
    """

    words: tuple[Any, ...]
    row_blocks: int
    section: int


def order(
    N: NDArray[Any], n: NDArray[Any], B_r: int, causal: bool, keys: float, most: int
) -> NDArray[np.int64]:
    """Return (row blocks, 2): the sequence and number of each row block. N and n are each
    sequence's queries and keys.

    A group has about `keys` keys and at most `most` sequences, and at least one.
    """
    longest_first = np.argsort(-n, kind="stable")
    size = np.maximum(n / keys, 1 / most)[longest_first]
    group = np.empty(len(n), np.int64)
    group[longest_first] = np.ceil(size.cumsum()) - 1
    blocks = -(-N // B_r)
    s = np.arange(len(N)).repeat(blocks)
    i = np.arange(len(s)) - (blocks.cumsum() - blocks).repeat(blocks)
    keys_in_reach = (
        np.clip(np.minimum((i + 1) * B_r, N[s]) + n[s] - N[s], 0, n[s]) if causal else n[s]
    )
    return np.stack([s, i], axis=1)[np.lexsort((-keys_in_reach, group[s]))]


@lru_cache(maxsize=256)
def _packed(
    device: int, cu_q: bytes, cu_k: bytes, B_r: int, causal: bool, heads: int, bytes_a_key: float
) -> Packed:
    """Return the batch; a head has `bytes_a_key` bytes of K and V for each key."""
    ends_q, ends_k = (np.frombuffer(words, np.uint32).astype(np.int64) for words in (cu_q, cu_k))
    n = np.diff(ends_k)
    on = import_cupy().cuda.Device(device)
    l2 = on.attributes["L2CacheSize"]
    section = hopper.section_of(max(1, n.max()) * bytes_a_key, l2, heads)
    keys = L2_PART * l2 / (section * bytes_a_key)
    listed = order(np.diff(ends_q), n, B_r, causal, keys, max(1, hopper.MOST_HEADS // section))
    with on:
        return Packed(to_gpu(ends_q, ends_k, listed), len(listed), section)


def prepared(
    device: int,
    q: Any,
    k: Any,
    v: Any,
    cu_q: NDArray[np.uint32],
    cu_k: NDArray[np.uint32],
    wants_L: bool,
    options: Options,
) -> Prepared | None:
    """Return what fills o and lse for arrays (H, rows, d) of these shapes, strides and dtypes,
    or None without queries.
    """
    (heads, _, d), tiles = q.shape, hopper.varlen_tiles(q.shape[2], options.causal)
    held = heads, 4 * d * k.shape[0] / heads
    batch = _packed(device, cu_q.tobytes(), cu_k.tobytes(), tiles.B_r, options.causal, *held)
    if not batch.row_blocks:
        return None
    strides = (q.strides, k.strides, v.strides)
    counting = options.counters is not None
    settings = wants_L, options.causal, options.scale, counting, batch.row_blocks, batch.section
    start = _launch(device, tiles, q.shape, k.shape, strides, q.dtype, *settings)
    words = tuple(array.data.ptr for array in batch.words)

    def run(stream: int, _: int, Q: int, K: int, V: int, O: int, L: int = 0) -> None:
        start(stream, Q, K, V, O, L, *words, counter(device, stream), totals(options, ARRAYS))

    return Prepared(run, kept=batch.words)


@lru_cache(maxsize=1024)
def _launch(
    device: int,
    tiles: Tiles,
    q: tuple[int, ...],
    k: tuple[int, ...],
    strides: tuple[tuple[int, ...], ...],
    dtype: Any,
    wants_L: bool,
    causal: bool,
    scale: float,
    counting: bool,
    row_blocks: int,
    section: int,
) -> Launch:
    """Return the launch, to be called with the addresses of Q, K, V, O, L, cu_q, cu_k, the
    order, the counter and totals.
    """
    (H, N_q, d), (H_kv, N_k, _) = q, k
    if H * row_blocks >= MOST:
        raise ValueError(
            f"q has shape {q}: {H * row_blocks:,} row blocks; hopper takes fewer than {MOST:,}"
        )
    attributes = import_cupy().cuda.Device(device).attributes
    problem = np.zeros((), PROBLEM)
    problem["N_q"] = N_q
    problem["N_k"] = N_k
    problem["H"] = H
    problem["group"] = H // H_kv
    problem["T_r"] = row_blocks
    problem["row_blocks"] = H * row_blocks
    problem["wants_L"] = wants_L
    problem["section"] = section
    problem["c"], problem["sign"] = tensor_core.factor_and_sign(scale)
    kind = "CAUSAL" if causal else "FULL"
    name, shared = (
        tiles.function(dtype.name, d, kind, False, varlen=True),
        tiles.shared_bytes(d, varlen=True),
    )
    (kernel,) = ready(device, FILE, (name,), name, shared, counting)
    blocks = min(attributes["MultiProcessorCount"], ceil_div(H * row_blocks, tiles.teams(d)))
    threads = 128 * (tiles.teams(d) * tiles.B_r // ROWS + 1)
    layout = (*((0, *of) for of in strides), contiguous((1, *q), dtype.itemsize))
    boxes = (tiles.B_r,), (tiles.B_c,), (tiles.B_c,), (O_ROWS, hopper.o_columns(d, False))
    sides = tuple(zip("qkvo", ((1, *shape) for shape in (q, k, k, q)), layout, boxes, strict=True))

    def arguments(
        Q: int,
        K: int,
        V: int,
        O: int,
        L: int,
        cu_q: int,
        cu_k: int,
        order: int,
        counter: int,
        totals: int,
    ) -> Any:
        addresses = (Q, K, V, O) if N_k else (Q, Q, Q, O)  # without keys, none is read
        of = sides if N_k else (sides[0], *[sides[0]] * 2, sides[3])
        maps = [
            tensor_map(name, where, *layout, dtype.name, *box)
            for (name, *layout, box), where in zip(of, addresses, strict=True)
        ]
        own = problem.copy()
        own["cu_q"] = cu_q
        own["cu_k"] = cu_k
        own["order"] = order
        own["O"] = O
        return (
            *maps,
            maps[0],
            np.uint64(L),
            np.uint64(counter),
            np.void(own.tobytes()),
            np.uint64(totals),
        )

    return Launch(kernel, blocks, threads, shared, arguments)

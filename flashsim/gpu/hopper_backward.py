"""FlashAttention's backward pass on Hopper's own instructions: launches kernels/hopper_backward.cu
on the current stream.

Blocks of threads that run at once sum dQ in HBM, in fp32: in any order, or in a fixed order if
`deterministic`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from flashsim.attention.shapes import Blocks, Shape
from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.kernel import Options, hopper_variants
from flashsim.gpu.launching import DROPOUT, Launches, Prepared, dropout, ready, section, totals
from flashsim.gpu.masking import in_tiles, with_causal
from flashsim.gpu.tensor_core import ELEMENTS, LOG2_E
from flashsim.gpu.tensor_maps import contiguous, mask_map, tensor_map
from flashsim.gpu.tile_lists import computed, live_tiles, to_gpu

FILE = "hopper_backward.cu"
HEAD_DIMS = (64, 128)
MASK_BLOCKS = 128, 128  # of a block mask, as in the forward pass
ROWS = 64  # dK_j and dV_j are stored in boxes of this many rows
# threads of the two kernels
PREPARES = 256
SUMS = 384
GRID = 2**31 - 1
KINDS = ("FULL", "CAUSAL", "ARRAY", "CAUSAL_ARRAY", "LISTED")  # of masks, as the kernel calls them
# too few registers: the causal mask is put into the array, and all tiles are computed
NOT_COMPILED = 64, "CAUSAL_ARRAY"
MOVES = (  # the arrays of each kernel's totals, in its order
    ("O", "dO", "L", "D", "dQ", "dK", "dV"),
    ("Q", "K", "V", "dO", "L", "D", "dQ", "dK", "dV", "mask"),
)
NOT_COUNTED = 0, 0

_PROBLEM = np.dtype(
    [(name, "i4") for name in ("N_q", "N_k", "H", "H_kv", "group", "T_r", "T_c")]
    + [(name, "i4") for name in ("heads", "section", "unseen", "left", "right")]
    + [("mask", "i4", 3)]
    + [(name, "u8") for name in ("starts", "adders", "tiles")]
    + [("tau", "f4"), ("half_c", "f4"), ("dropout", DROPOUT)]
    + [(name, "u8") for name in ("rows", "sums", "turns", "drawn")],
    align=True,
)


def choose_blocks(d: int) -> tuple[int, int]:
    """Return (B_r, B_c) as the kernel has them."""
    return (128 if d == 64 else 64), 128


def shared_bytes(d: int, drops: bool, masks: bool = False) -> int:
    """Return the bytes for K_j, V_j, two each of Q_i, dO_i, dS_ij, L_i and D_i, for dQ_i, dropout's
    bits, sums and barriers.

    A mask adds two of its tiles with their barriers, or one if d = 64.
    """
    B_r, B_c = choose_blocks(d)
    keys = 3 if d == 64 and not drops and not masks else 2  # tiles: K_j, V_j, and the next K_j
    tiles = 2 * (keys * B_c * d + 4 * B_r * d + 2 * B_r * B_c) + 4 * B_r * d + 2 * 8 * B_r
    masked = masks * (1 if d == 64 else 2) * (B_r * B_c + 16)
    return tiles + masked + drops * 2 * 2048 + 8 * (8 * 64 * 4 + 16) + 320


def functions(dtype: str, d: int, kind: str, drops: bool, deterministic: bool) -> tuple[str, str]:
    """Return the kernels for one case, in the order in which they are launched."""
    T = f"{ELEMENTS[dtype]}, {d}"
    switches = ", ".join(str(on).lower() for on in (drops, deterministic))
    return f"prepare<{T}>", f"hopper_backward<{T}, {kind}, {switches}>"


def prepared(device: int, q: Any, k: Any, v: Any, do: Any, options: Options) -> Prepared:
    """Return `hopper.backward` for arrays of these shapes, strides and dtypes."""
    strides = q.strides, k.strides, v.strides, do.strides
    settings = options.scale, options.dropout_p, options.seed, options.deterministic
    window = options.window or (-1, 0 if options.causal else -1)
    lists: tuple[Any, ...] = ()
    if options.window or options.block_mask is not None:
        lists = _listed(device, options.block_mask, window, q.shape, k.shape)
    kind = "LISTED" if lists else KINDS[options.causal]
    listed = tuple(array.data.ptr for array in lists)
    mask = None
    if options.mask is not None:
        kind = "CAUSAL_ARRAY" if options.causal else "ARRAY"
        array = options.mask
        if kind == NOT_COMPILED[1] and q.shape[3] == NOT_COMPILED[0]:
            kind = "ARRAY"
            array = with_causal(array)
            window = (-1, -1)
        mask = in_tiles(array)
    counting = options.counters is not None
    M = mask.array.data.ptr if mask else 0
    masked = window, mask and mask[1:], listed
    start, scratch = _launches(
        device, q.shape, k.shape, strides, q.dtype, kind, *masked, *settings, counting
    )

    def run(stream: int, scratch: int, *addresses: int) -> None:
        counts = [totals(options, names) for names in MOVES] if counting else NOT_COUNTED
        start(stream, scratch, M, *addresses, *counts)

    return Prepared(run, scratch, (*lists, mask))


def _listed(
    device: int, block_mask: Any, window: tuple[int, int], q: tuple[int, ...], k: tuple[int, ...]
) -> tuple[Any, Any, Any]:
    """Return on the GPU: where each key block's live tiles start in their list, how many tiles
    each row block has, the list.
    """
    B_r, B_c = choose_blocks(q[3])
    blocks = Blocks(B_r, B_c, N_q=q[2], N_k=k[2])
    shape = Shape(q[2], k[2], 1, 1)
    return _on_gpu(device, computed(block_mask, MASK_BLOCKS, shape), blocks, shape, window)


@lru_cache(maxsize=64)
def _on_gpu(
    device: int, bits: bytes, blocks: Blocks, shape: Shape, window: tuple[int, int]
) -> tuple[Any, Any, Any]:
    live = live_tiles(bits, MASK_BLOCKS, blocks, shape, window)
    j, i = np.nonzero(live.T)
    tiles = np.stack([i, (live.cumsum(axis=1) - 1)[i, j]], axis=1)
    return to_gpu(np.concatenate([[0], live.sum(axis=0).cumsum()]), live.sum(axis=1), tiles)


def section_of(
    q: tuple[int, ...],
    k: tuple[int, ...],
    kind: str,
    deterministic: bool,
    attributes: Mapping[str, int],
) -> int:
    """Return of how many KV heads the key blocks alternate.

    With a causal mask, these are as many as have Q, dO, and dQ in fp32 in the L2 together. Without
    a mask, all key blocks of a head start with the same dQ_i. If `deterministic`, they add to it
    one after the other, and each stays one addition behind the one before. So multiprocessors that
    start at the same time should have different heads. Then the number is that of the heads that
    have a multiprocessor for each of their key blocks.
    """
    (B, H, N_q, d), (_, H_kv, N_k, _) = q, k
    if "CAUSAL" in kind:
        return section(8 * N_q * d * H / H_kv, attributes["L2CacheSize"], B * H_kv)
    if deterministic and kind != "LISTED":
        return max(1, attributes["MultiProcessorCount"] // -(-N_k // choose_blocks(d)[1]))
    return 1


@lru_cache(maxsize=1024)
def _launches(
    device: int,
    q: tuple[int, ...],
    k: tuple[int, ...],
    strides: tuple[tuple[int, ...], ...],
    dtype: Any,
    kind: str,
    window: tuple[int, int],
    masked: tuple[tuple[int, ...], ...] | None,
    listed: tuple[int, ...],
    scale: float,
    dropout_p: float,
    seed: int,
    deterministic: bool,
    counting: bool,
) -> tuple[Launches, int]:
    """Return the launches for q and k of these shapes, and the bytes of scratch memory. Strides are
    of q, k, v and do.

    `listed` has the addresses of the lists of live tiles, `masked` the mask's shape, strides and
    steps. The launches are to be called with the addresses of scratch memory, the mask, Q, K, V, O,
    L, dO, dQ, dK, dV, and each kernel's totals.
    """
    (B, H, N_q, d), (_, H_kv, N_k, _) = q, k
    B_r, B_c = choose_blocks(d)
    T_r = -(-N_q // B_r)
    T_c = -(-N_k // B_c)
    row_blocks = B * H * T_r
    key_blocks = B * H_kv * T_c
    if max(row_blocks, key_blocks) > GRID:
        raise ValueError(
            f"q has shape {q}, k {k}: {max(row_blocks, key_blocks):,} tiles; hopper takes {GRID:,} "
            "at most"
        )
    attributes = import_cupy().cuda.Device(device).attributes
    # Blocks of threads that draw no key block help to round dQ.
    blocks = min(max(key_blocks, row_blocks), attributes["MultiProcessorCount"])
    shared = shared_bytes(d, dropout_p > 0, "ARRAY" in kind)
    causal = "CAUSAL" in kind
    problem = np.zeros((), _PROBLEM)
    problem["N_q"] = N_q
    problem["N_k"] = N_k
    problem["H"] = H
    problem["H_kv"] = H_kv
    problem["group"] = H // H_kv
    problem["T_r"] = T_r
    problem["T_c"] = T_c
    problem["heads"] = B * H_kv
    problem["unseen"] = min(T_r, max(0, N_q - N_k) // B_r) if causal else 0
    problem["section"] = section_of(q, k, kind, deterministic, attributes)
    problem["left"], problem["right"] = (
        N - 1 if side == -1 else min(side, N - 1)
        for side, N in zip(window, (N_k, N_q), strict=True)
    )
    *matrices, problem["mask"] = masked or ((0, 0, 0),)
    problem["starts"], problem["adders"], problem["tiles"] = listed or (0, 0, 0)
    most = float(np.finfo(np.float32).max)
    problem["tau"], problem["half_c"] = (
        max(-most, min(x, most)) for x in (scale, scale * LOG2_E / 2)
    )
    problem["dropout"] = dropout(dropout_p, seed)
    names = functions(dtype.name, d, kind, dropout_p > 0, deterministic)
    kernels = ready(device, FILE, names, names[1], shared, counting)
    sums = 4 * row_blocks * B_r * d  # dQ's
    rows = 8 * row_blocks * B_r  # L and D
    turns = 8 * row_blocks  # whose turn it is
    do_strides = tuple(np.int64(stride // 2) for stride in strides[3][:3])
    names_of = ("q", "k", "v", "do", "dk", "dv")
    layout = (*strides, *[contiguous(k, dtype.itemsize)] * 2)
    sides = tuple(
        zip(names_of, (q, k, k, q, k, k), layout, (B_r, B_c, B_c, B_r, ROWS, ROWS), strict=True)
    )

    def arguments(
        scratch: int,
        M: int,
        Q: int,
        K: int,
        V: int,
        O: int,
        L: int,
        dO: int,
        dQ: int,
        dK: int,
        dV: int,
        *count_addresses: int,
    ) -> Any:
        parameters = problem.copy()
        parameters["rows"] = scratch + sums
        parameters["sums"] = scratch
        parameters["turns"] = scratch + sums + rows
        parameters["drawn"] = scratch + sums + rows + turns
        placed = np.void(parameters.tobytes())
        counts = [np.uint64(address) for address in count_addresses]
        each = zip(sides, (Q, K, V, dO, dK, dV), strict=True)
        maps = [
            tensor_map(name, address, *layout, dtype.name, B)
            for (name, *layout, B), address in each
        ]
        maps.append(mask_map(M, *matrices, B_r, B_c) if masked else maps[0])
        return (
            (
                np.uint64(O),
                np.uint64(dO),
                *do_strides,
                *map(np.uint64, (L, dQ, dK, dV)),
                placed,
                counts[0],
            ),
            (*maps, np.uint64(dQ), placed, counts[1]),
        )

    grids = (row_blocks, PREPARES, 0), (blocks, SUMS, shared)
    each = [(kernel, *how) for kernel, how in zip(kernels, grids, strict=True)]
    return Launches(each, arguments), sums + rows + turns + 8


def _functions(dtype: str, count: bool) -> Iterator[str]:
    """Yield what the tests compile."""
    for d, kind, drops, deterministic in product(HEAD_DIMS, KINDS, (False, True), (False, True)):
        if (d, kind) != NOT_COMPILED and not (drops and (count or "ARRAY" in kind)):
            yield from functions(dtype, d, kind, drops, deterministic)


VARIANTS = hopper_variants(FILE, _functions)

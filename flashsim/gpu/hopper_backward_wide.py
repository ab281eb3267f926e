"""FlashAttention's backward pass for d = 256 on Hopper's own instructions: launches
kernels/hopper_backward_wide.cu.

One pass computes dK and dV and a second one dQ, as in "q_outer_two_pass". Nothing is summed in HBM,
so the bits always repeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.hopper_backward import GRID, PREPARES
from flashsim.gpu.kernel import Options, hopper_variants
from flashsim.gpu.launching import Launches, Prepared, ready, section, totals
from flashsim.gpu.tensor_core import ELEMENTS, LOG2_E
from flashsim.gpu.tensor_maps import contiguous, tensor_map

FILE = "hopper_backward_wide.cu"
# a tile is ROWS × KEYS in dK's and dV's pass, and ROW_BLOCK × KEYS in dQ's
ROWS = 64
KEYS = 64
ROW_BLOCK = 128
HALF = 64  # columns of a half
SUMS = 384  # threads of the two passes
TILE = 2 * KEYS * 256  # bytes
# of each pass: tiles, L and D, barriers
SHARED = 6 * TILE + 3 * 2 * ROWS * KEYS + 2 * 8 * ROWS + 48, 7 * TILE + 64
TAKES_NOT = ("mask", "block_mask", "dropout_p")
MOVES = (  # the arrays of each kernel's totals, in its order
    ("O", "dO", "L", "D"),
    ("Q", "K", "V", "dO", "L", "D", "dK", "dV"),
    ("Q", "K", "V", "dO", "L", "D", "dQ"),
)

_PROBLEM = np.dtype(
    [
        (name, "i4")
        for name in (
            "N_q",
            "N_k",
            "H",
            "H_kv",
            "group",
            "left",
            "right",
            "T_r",
            "T_c",
            "section",
            "heads",
        )
    ]
    + [("tau", "f4"), ("half_c", "f4"), ("rows", "u8")],
    align=True,
)


def functions(dtype: str) -> tuple[str, str, str]:
    """Return the kernels, in the order in which they are launched."""
    T = ELEMENTS[dtype]
    return f"prepare<{T}>", f"keys<{T}>", f"queries<{T}>"


def prepared(device: int, q: Any, k: Any, v: Any, do: Any, options: Options) -> Prepared:
    """Return `hopper.backward` for arrays of these shapes, strides and dtypes."""
    strides = q.strides, k.strides, v.strides, do.strides
    window = options.window or (-1, 0 if options.causal else -1)
    counting = options.counters is not None
    start, scratch = _launches(
        device, q.shape, k.shape, strides, q.dtype, window, options.scale, counting
    )

    def run(stream: int, *addresses: int) -> None:
        start(stream, *addresses, *[totals(options, names) for names in MOVES])

    return Prepared(run, scratch)


@lru_cache(maxsize=1024)
def _launches(
    device: int,
    q: tuple[int, ...],
    k: tuple[int, ...],
    strides: tuple[tuple[int, ...], ...],
    dtype: Any,
    window: tuple[int, int],
    scale: float,
    counting: bool,
) -> tuple[Launches, int]:
    """Return the launches for q and k of these shapes, and the bytes of scratch memory. Strides are
    of q, k, v and do.

    They are to be called with the addresses of scratch memory, Q, K, V, O, L, dO, dQ, dK, dV, and
    each kernel's totals.
    """
    (B, H, N_q, d), (_, H_kv, N_k, _) = q, k
    T_r = -(-N_q // ROW_BLOCK)
    T_c = -(-N_k // KEYS)
    row_blocks = B * H * T_r
    key_blocks = B * H_kv * T_c
    prepares = B * H * T_r * ROW_BLOCK // ROWS
    if max(prepares, key_blocks) > GRID:
        raise ValueError(
            f"q has shape {q}, k {k}: {max(prepares, key_blocks):,} tiles; hopper takes {GRID:,} "
            "at most"
        )
    problem = np.zeros((), _PROBLEM)
    problem["N_q"] = N_q
    problem["N_k"] = N_k
    problem["H"] = H
    problem["H_kv"] = H_kv
    problem["group"] = H // H_kv
    problem["left"], problem["right"] = (
        N - 1 if side == -1 else min(side, N - 1)
        for side, N in zip(window, (N_k, N_q), strict=True)
    )
    problem["T_r"] = T_r
    problem["T_c"] = T_c
    problem["heads"] = B * H_kv
    l2_bytes = import_cupy().cuda.Device(device).attributes["L2CacheSize"]
    a_head = 4 * d * max(N_q * H // H_kv, N_k)  # bytes of Q and dO, or of K and V
    problem["section"] = section(a_head, l2_bytes, B * H_kv) if window[1] == 0 else 1
    most = float(np.finfo(np.float32).max)
    problem["tau"], problem["half_c"] = (
        max(-most, min(x, most)) for x in (scale, scale * LOG2_E / 2)
    )
    names = functions(dtype.name)
    kernels = [
        ready(device, FILE, names, name, shared, counting)
        for name, shared in zip(names[1:], SHARED, strict=True)
    ]
    do_strides = tuple(np.int64(stride // 2) for stride in strides[3][:3])
    of_q, of_k = (contiguous(shape, 2) for shape in (q, k))

    def arguments(
        scratch: int,
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
        def tiles(name: str, address: int, rows: int, columns: int = d) -> Any:
            layout_of = {
                "q": strides[0],
                "k": strides[1],
                "v": strides[2],
                "do": strides[3],
                "dq": of_q,
            }
            shape = q if name in ("q", "do", "dq") else k
            return tensor_map(
                name, address, shape, layout_of.get(name, of_k), dtype.name, rows, columns
            )

        parameters = problem.copy()
        parameters["rows"] = scratch
        placed = np.void(parameters.tobytes())
        counts = [np.uint64(start) for start in count_addresses]
        k_and_v = tiles("k", K, KEYS), tiles("v", V, KEYS)
        results = [
            tiles(name, start, ROWS, HALF) for name, start in (("dq", dQ), ("dk", dK), ("dv", dV))
        ]
        return (
            (np.uint64(O), np.uint64(dO), *do_strides, np.uint64(L), placed, counts[0]),
            (tiles("q", Q, ROWS), *k_and_v, tiles("do", dO, ROWS), *results[1:], placed, counts[1]),
            (
                tiles("q", Q, ROW_BLOCK),
                *k_and_v,
                tiles("do", dO, ROW_BLOCK),
                results[0],
                placed,
                counts[2],
            ),
        )

    grids = (prepares, PREPARES, 0), (key_blocks, SUMS, SHARED[0]), (row_blocks, SUMS, SHARED[1])
    each = [
        (kernel, *how)
        for kernel, how in zip((kernels[0][0], kernels[0][1], kernels[1][2]), grids, strict=True)
    ]
    return Launches(each, arguments), 8 * prepares * ROWS


def _functions(dtype: str, count: bool) -> Iterator[str]:
    """Yield what the tests compile."""
    yield from functions(dtype)


VARIANTS = hopper_variants(FILE, _functions)

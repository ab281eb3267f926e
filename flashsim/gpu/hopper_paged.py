"""Paged decoding on Hopper: launches kernels/hopper_decode.cu with K and V in pages and, if
heads are split, its merging.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from flashsim.gpu import hopper_decode
from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.hopper_decode import (
    CLUSTER,
    KEYS,
    PLACES,
    ROWS,
    functions,
    launches,
    shared_bytes,
)
from flashsim.gpu.hopper_parts import MOST
from flashsim.gpu.kernel import Options
from flashsim.gpu.launching import Launches, Prepared, ready, totals
from flashsim.gpu.tensor_maps import HALF_BYTES

ARRAYS = (*hopper_decode.ARRAYS, "table", "lengths")
LEAST_PAGE = 8  # rows: the swizzle of shared memory repeats after 8


def check_page(page: int) -> None:
    """Raise ValueError unless whole pages make a tile, or whole tiles a page."""
    if page % KEYS and (KEYS % page or page < LEAST_PAGE):
        raise ValueError(
            f"k has pages of {page} rows; expected {LEAST_PAGE}, 16, 32, or a multiple of {KEYS}"
        )


def parts(heads: int, longest: int, rows: int, places: int) -> int:
    """Return into how many parts each KV head is cut, if the longest sequence has `longest`
    keys.
    """
    return max(1, hopper_decode.grid(heads, max(1, -(-longest // KEYS)), rows, places) // heads)


def prepared(
    device: int,
    q: Any,
    k: Any,
    v: Any,
    table: Any,
    wants_L: bool,
    options: Options,
    longest: int,
    splits: int | None,
) -> Prepared:
    """Return what fills o and lse, to be called with q, k, v, table and lengths of these shapes,
    strides and dtypes.

    splits  into how many parts heads are cut; None: as many as fill the GPU. Two of them may be
            merged on the chip
    """
    heads = q.shape[0] * k.shape[1]
    rows = q.shape[1] // k.shape[1] * q.shape[2]
    places = PLACES * import_cupy().cuda.Device(device).attributes["MultiProcessorCount"]
    t = parts(heads, longest, rows, places) if splits is None else splits
    cluster = CLUSTER if splits is None and t % CLUSTER == 0 else 1
    strides = q.strides, k.strides, v.strides, table.strides
    settings = wants_L, options.causal, options.scale, options.counters is not None
    start, scratch = _launches(device, q.shape, k.shape, strides, q.dtype, *settings, t, cluster)

    def run(
        stream: int,
        scratch: int,
        Q: int,
        K: int,
        V: int,
        table: int,
        lengths: int,
        O: int,
        L: int = 0,
    ) -> None:
        start(stream, scratch, Q, K, V, table, lengths, O, L, totals(options, ARRAYS))

    return Prepared(run, scratch)


@lru_cache(maxsize=1024)
def _launches(
    device: int,
    q: tuple[int, ...],
    k: tuple[int, ...],
    strides: tuple[tuple[int, ...], ...],
    dtype: Any,
    wants_L: bool,
    causal: bool,
    scale: float,
    counting: bool,
    t: int,
    cluster: int,
) -> tuple[Launches, int]:
    """Return the launches, and the bytes of all parts. Strides are of q, k, v and the table.

    They are to be called with the addresses of parts, Q, K, V, the table, lengths, O, L and totals.
    """
    (b, H, N_q, d), (pages, H_kv, page, _) = q, k
    heads = b * H_kv
    rows = H // H_kv * N_q
    if heads * max(rows, t) >= MOST:
        raise ValueError(
            f"q has shape {q}: {heads * rows:,} queries; hopper_decode takes fewer than {MOST:,}"
        )
    names = functions(dtype.name, d, cluster, paged=True)
    kernels = ready(device, hopper_decode.FILE, names, names[0], shared_bytes(d), counting)
    settings = {
        "causal": causal,
        "wants_L": wants_L,
        "width": strides[3][0] // 4,
        "pages": pages,
        "page": page,
    }
    leading_arguments = (
        q,
        k,
        strides,
        dtype,
        (min(page, KEYS), HALF_BYTES // dtype.itemsize),
        scale,
        settings,
    )
    return launches(
        kernels, *leading_arguments, T_c=t, blocks=heads * t, merged=heads * (t // cluster)
    )


def unsuited(q: tuple[int, ...], k: tuple[int, ...]) -> str:
    """Return why the kernel does not take queries and keys of these shapes, or ""."""
    rows = q[1] // max(k[1], 1) * q[2]
    return (
        f"{rows:,} queries of a sequence share a KV head; expected {ROWS} at most"
        if rows > ROWS
        else ""
    )

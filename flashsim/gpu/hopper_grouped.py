"""Few queries, but more than 64 of a KV head, on Hopper: launches kernels/hopper_grouped.cu and, if
heads are split, the kernel that merges parts.

Users call it as `hopper_decode`, which has two kernels; this module has the second one. The queries
of all heads of a group are the rows of one tile, of up to 128 rows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.hopper_parts import MOST, load_merge, merge_launch, parts_of, problem_of
from flashsim.gpu.kernel import Options
from flashsim.gpu.launching import Launches, Prepared, ready, totals
from flashsim.gpu.tensor_core import ELEMENTS
from flashsim.gpu.tensor_maps import rows_map, tensor_map

FILE = "hopper_grouped.cu"
ROWS = 128  # B_r
KEYS = 128  # B_c
THREADS = 384  # of a block, of which a multiprocessor has one
MOST_SPLITS = 128
MOST_QUERIES = 256  # of a head
KEYS_A_QUERY = 4  # at least; with fewer keys, `hopper` is as fast
CLUSTERS = (1, 2, 4, 8)  # blocks of threads that merge their parts on the chip
# the part of the multiprocessors on which such clusters surely have a place
IN_CLUSTERS = {1: 1.0, 2: 1.0, 4: 0.9, 8: 0.6}
# what they take, in times of a tile of keys
WHOLE_ITEM = 1.5
CUT_ITEM = 2.5
SECOND_LAUNCH = 3.0


class Cut(NamedTuple):
    """Into how many parts the keys of each head are cut, and how many of these are merged on the
    chip.
    """

    splits: int
    cluster: int = 1

    @property
    def parts(self) -> int:
        """How many parts of a head leave the chip."""
        return self.splits // self.cluster


def block_rows(group: int) -> int:
    """Return how many rows a row block has: as many whole queries, with all heads of their
    group, as fit.
    """
    return ROWS // group * group


def choose_cut(row_blocks: int, T_c: int, multiprocessors: int) -> Cut:
    """Return how heads are cut, if all heads together have `row_blocks` row blocks, and T_c tiles
    of keys each.

    An item of work is one part of a row block. It takes about as long as its tiles, a start and an
    end. Items run in waves, one item on each multiprocessor. With clusters there is one wave, and
    no second launch if one cluster has all parts of a row block.
    """

    def time(cut: Cut) -> float:
        each = -(-T_c // cut.splits) + (WHOLE_ITEM if cut.splits == 1 else CUT_ITEM)
        return -(-row_blocks * cut.splits // multiprocessors) * each + (
            SECOND_LAUNCH if cut.parts > 1 else 0
        )

    most = min(T_c, MOST_SPLITS, max(1, 4 * multiprocessors // row_blocks))
    cuts = (Cut(splits, cluster) for splits in range(1, most + 1) for cluster in CLUSTERS)
    able = (cut for cut in cuts if cut.splits % cut.cluster == 0)
    fitting = (
        cut
        for cut in able
        if cut.cluster == 1 or row_blocks * cut.splits <= IN_CLUSTERS[cut.cluster] * multiprocessors
    )
    return min(fitting, key=time)


def unsuited(q: tuple[int, ...], k: tuple[int, ...]) -> str:
    """Return why the kernel does not take queries and keys of these shapes, or ""."""
    group = q[1] // max(k[1], 1)
    N_q = q[2]
    N_k = k[2]
    if group > ROWS:
        return f"{group} heads share a KV head, and the kernel takes {ROWS} at most"
    if N_q > MOST_QUERIES:
        return f"a head has {N_q:,} queries, and the kernel takes {MOST_QUERIES} at most"
    return f"{N_k:,} keys are fewer than {KEYS_A_QUERY} a query" if N_k < KEYS_A_QUERY * N_q else ""


def prepared(
    device: int, q: Any, k: Any, v: Any, wants_L: bool, options: Options, arrays: tuple[str, ...]
) -> Prepared:
    """Return what fills o and lse for arrays of these shapes, strides and dtypes; `arrays` are
    those that a launch counts.
    """
    counting = options.counters is not None
    strides = q.strides, k.strides, v.strides
    arguments = wants_L, options.causal, options.scale, counting
    start, parts = _launches(device, q.shape, k.shape, strides, q.dtype, *arguments)

    def run(stream: int, scratch: int, Q: int, K: int, V: int, O: int, L: int = 0) -> None:
        start(stream, scratch, Q, K, V, O, L, totals(options, arrays))

    return Prepared(run, parts)


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
) -> tuple[Launches, int]:
    """Return the launches for q and k of these shapes, and the bytes of all parts. Strides are of
    q, k and v.

    They are to be called with the addresses of parts, Q, K, V, O, L and totals.
    """
    (B, H, N_q, d), (_, H_kv, N_k, _) = q, k
    heads = B * H_kv
    group = H // H_kv
    T_c = -(-N_k // KEYS)
    rows = group * N_q
    if heads * rows >= MOST:
        raise ValueError(
            f"q has shape {q}: {heads * rows:,} queries; hopper_decode takes fewer than {MOST:,}"
        )
    T_r = -(-rows // block_rows(group))
    row_blocks = heads * T_r
    multiprocessors = import_cupy().cuda.Device(device).attributes["MultiProcessorCount"]
    cut = choose_cut(row_blocks, T_c, multiprocessors)
    problem = problem_of(q, k, strides[0], scale, T_c=T_c, N_k=N_k, causal=causal, wants_L=wants_L)
    by_value = np.void(problem.tobytes())
    # struct Cut
    sizes = np.void(np.array([block_rows(group), T_r, cut.splits], np.int32).tobytes())
    name, shared = function(dtype.name, d, cut.cluster), shared_bytes(d)
    (kernel,) = ready(device, FILE, (name,), name, shared, counting)
    items = row_blocks * cut.splits
    each = [(kernel, items if cut.cluster > 1 else min(items, multiprocessors), THREADS, shared)]
    places, share = parts_of(heads, rows, heads * cut.parts)
    if cut.parts > 1:
        each.append(merge_launch(load_merge(device, dtype.name, d, counting), heads, rows, share))

    def arguments(parts: int, Q: int, K: int, V: int, O: int, L: int, totals: int) -> Any:
        maps = [rows_map("q", Q, q, strides[0], dtype.name, group, block_rows(group))]
        for name, address, strides_of in zip("kv", (K, V), strides[1:], strict=True):
            maps.append(tensor_map(name, address, k, strides_of, dtype.name, KEYS))
        # O_parts, l_parts, m_parts
        left = (np.uint64(parts + 4 * places * n) for n in (0, d, d + 1))
        written = np.uint64(O), np.uint64(L), *left
        attending = *maps, *written, by_value, sizes, np.uint64(totals)
        return (
            attending,
            (*written, np.int32(heads * cut.parts), np.int32(share), by_value, np.uint64(totals)),
        )[: len(each)]

    return Launches(each, arguments, early=True), 4 * places * (d + 2)


def shared_bytes(d: int) -> int:
    """Return the bytes for Q_i, K_j and V_j in 2 or 4 stages, their pairs of barriers, and two
    items.
    """
    stages = 256 // d
    return 2 * d * (ROWS + 2 * stages * KEYS) + (1 + 2 * stages) * 16 + 2 * 20


def function(dtype: str, d: int, cluster: int) -> str:
    """Return the kernel's name for one case."""
    return f"hopper_grouped<{ELEMENTS[dtype]}, {d}, {cluster}>"

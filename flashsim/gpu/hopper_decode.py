"""Decoding on Hopper: launches kernels/hopper_decode.cu and, if heads are split, its second kernel,
which merges the parts.

The kernel needs a GPU of compute capability 9.0, d of 64 or 128, and at most 64 queries for a KV
head: those of all heads of its group, at all positions. With more queries, up to 256 of a head,
`hopper_grouped` launches another kernel, and also where that kernel is faster. Otherwise `hopper`
runs instead, with a RuntimeWarning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from flashsim.gpu import hopper, hopper_grouped, tensor_core
from flashsim.gpu.compiling import capability, import_cupy
from flashsim.gpu.hopper_parts import MOST, merge_function, merge_launch, parts_of, problem_of
from flashsim.gpu.kernel import Kernel, Options, hopper_variants
from flashsim.gpu.launching import Launches, Prepared, check_rows, ready, totals, warn
from flashsim.gpu.tensor_maps import tensor_map

FILE = "hopper_decode.cu"
ARRAYS = ("Q", "K", "V", "O", "L", "O_parts", "l_parts", "m_parts")
ELEMENTS = tensor_core.ELEMENTS
HEAD_DIMS = (64, 128)  # of the kernel
ROWS = 64  # B_r
KEYS = 64  # B_c
THREADS = 160  # of the kernel
PLACES = 2  # blocks on a multiprocessor
FILLED = 0.95  # a GPU this full counts as full
SHORT = 8  # tiles of a head up to which heads are never split
MEDIUM = 64  # not split if each multiprocessor has one
LEAST = 4  # tiles of a part
LONG = 1024  # tiles of a head from which a second launch costs less than idle places
# with more rows, if there is no head for each multiprocessor, hopper_grouped's kernel is faster;
# and if a cluster has all parts of a head
FEW_ROWS = 16
CLUSTER_ROWS = 32
CLUSTER = 2  # blocks of threads that read each other's shared memory
CLUSTERS = (8, 4)  # further numbers, if a cluster has all parts of a head
# tiles of such a part, if clusters leave multiprocessors idle, and if they do not
PART = 8
FULL_PART = 32


class Cut(NamedTuple):
    """How many blocks of threads share the tiles of all heads, and how many of them merge their
    parts of a head on the chip.
    """

    blocks: int
    cluster: int = 1


def choose_cut(heads: int, T_c: int, rows: int, multiprocessors: int) -> Cut:
    """Return how `heads` heads of T_c tiles and `rows` rows each are cut.

    If there are few heads, a cluster has all parts of each. Then there is no second launch.
    """
    if on_chip := cluster_of_head(heads, T_c, multiprocessors):
        return Cut(heads * on_chip, on_chip)
    blocks = grid(heads, T_c, rows, PLACES * multiprocessors)
    return Cut(blocks, cluster(heads, blocks))


def cluster_of_head(heads: int, T_c: int, multiprocessors: int) -> int:
    """Return how many blocks of threads (4 or 8) compute one head as a cluster, or 0 if heads are
    not cut in this way.
    """
    for blocks in CLUSTERS:
        idle = heads * blocks < FILLED * multiprocessors
        if heads * blocks <= multiprocessors and blocks <= T_c:
            return blocks if T_c <= blocks * (PART if idle else FULL_PART) else 0
    return 0


def grid(heads: int, T_c: int, rows: int, places: int) -> int:
    """Return how many blocks of threads share the tiles of `heads` heads, T_c tiles each:
    `heads` if none is split.
    """
    multiprocessors = places // PLACES
    filled = heads / (places * -(-heads // places))
    one_each = FILLED * multiprocessors <= heads <= multiprocessors
    if filled >= (0.7 if rows > 32 else FILLED) or (one_each and T_c <= MEDIUM) or T_c <= SHORT:
        return heads
    # a block for each, and no second launch
    if FILLED * multiprocessors <= CLUSTER * heads <= multiprocessors and T_c < LONG:
        target = CLUSTER * heads
    else:
        each = places // heads
        alike = (heads * n for n in (each // CLUSTER * CLUSTER, each))
        target = next((blocks for blocks in alike if blocks >= 0.9 * places), places)
    return max(heads, min(target, heads * (T_c // LEAST)))


def cluster(heads: int, blocks: int) -> int:
    """Return how many blocks merge their parts of a head on the chip: 1 unless all heads are cut
    alike.
    """
    return 1 if blocks == heads or blocks % (heads * CLUSTER) else CLUSTER


def parts(heads: int, T_c: int, blocks: int) -> list[int]:
    """Return into how many parts each head is cut if there are `blocks` blocks of threads."""
    tiles = heads * T_c
    # the numbers, from 1, of its first and last tile
    ends = ((head * T_c + 1, (head + 1) * T_c) for head in range(heads))
    return [
        (last * blocks - 1) // tiles - (first * blocks - 1) // tiles + 1 for first, last in ends
    ]


def unsuited(q: tuple[int, ...], k: tuple[int, ...]) -> str:
    """Return why neither kernel takes queries and keys of these shapes, or ""."""
    return "" if takes(q, k) else hopper_grouped.unsuited(q, k)


def takes(q: tuple[int, ...], k: tuple[int, ...]) -> bool:
    """Say whether hopper_decode.cu takes them: not more than 64 queries share a KV head."""
    return q[1] // max(k[1], 1) * q[2] <= ROWS


def is_slower(q: tuple[int, ...], k: tuple[int, ...], multiprocessors: int) -> bool:
    """Say whether hopper_decode.cu takes them, but hopper_grouped.cu is faster on so many
    multiprocessors.
    """
    rows = q[1] // k[1] * q[2]
    heads = q[0] * k[1]
    on_chip = cluster_of_head(heads, -(-k[2] // KEYS), multiprocessors)
    return (
        q[3] == 128
        and rows > (CLUSTER_ROWS if on_chip else FEW_ROWS)
        and heads <= multiprocessors
        and not hopper_grouped.unsuited(q, k)
    )


def forward(q: Any, k: Any, v: Any, o: Any, lse: Any, options: Options) -> None:
    """Fill o and, unless None, lse. Raises ValueError for rows of q, k or v that do not start at
    multiples of 16 bytes.
    """
    device = import_cupy().cuda.runtime.getDevice()
    reason = hopper.why_not(capability(device), q.shape[3]) or unsuited(q.shape, k.shape)
    if reason:
        warn(f"hopper runs instead of hopper_decode: {reason}")
        hopper.forward(q, k, v, o, lse, options)
        return
    _prepared(device, q, k, v, lse is not None, options)(q, k, v, o, lse)


def prepare(
    device: int, q: Any, k: Any, v: Any, wants_L: bool, options: Options
) -> Prepared | None:
    """Return `forward` for arrays of these shapes, strides and dtypes, or None if `hopper` runs
    instead.
    """
    reason = hopper.why_not(capability(device), q.shape[3]) or unsuited(q.shape, k.shape)
    return None if reason else _prepared(device, q, k, v, wants_L, options)


def _prepared(device: int, q: Any, k: Any, v: Any, wants_L: bool, options: Options) -> Prepared:
    multiprocessors = import_cupy().cuda.Device(device).attributes["MultiProcessorCount"]
    if not takes(q.shape, k.shape) or is_slower(q.shape, k.shape, multiprocessors):
        return hopper_grouped.prepared(device, q, k, v, wants_L, options, ARRAYS)
    settings = wants_L, options.causal, options.scale, options.counters is not None
    start, parts = _launches(
        device, q.shape, k.shape, (q.strides, k.strides, v.strides), q.dtype, *settings
    )

    def run(stream: int, scratch: int, Q: int, K: int, V: int, O: int, L: int = 0) -> None:
        start(stream, scratch, Q, K, V, O, L, totals(options, ARRAYS))

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
    multiprocessors = import_cupy().cuda.Device(device).attributes["MultiProcessorCount"]
    blocks, cluster = choose_cut(heads, T_c, rows, multiprocessors)
    names = functions(dtype.name, d, cluster)
    kernels = ready(device, FILE, names, names[0], shared_bytes(d), counting)
    settings: dict[str, Any] = {"causal": causal, "wants_L": wants_L, "N_k": N_k}
    return launches(
        kernels,
        q,
        k,
        strides,
        dtype,
        (KEYS,),
        scale,
        settings,
        T_c=T_c,
        blocks=blocks,
        merged=blocks // cluster,
    )


def launches(
    kernels: Sequence[Any],
    q: tuple[int, ...],
    k: tuple[int, ...],
    strides: tuple[tuple[int, ...], ...],
    dtype: Any,
    box: tuple[int, ...],
    scale: float,
    settings: Mapping[str, int],
    *,
    T_c: int,
    blocks: int,
    merged: int,
) -> tuple[Launches, int]:
    """Return the launches that decode with so many blocks of threads, and merge `merged` parts if
    heads are cut; and how many bytes the parts take.

    It is called with the addresses of parts, Q, K, V, with pages of the table and lengths, of O, L
    and totals. Tiles of K and V are `box`; `settings` are other fields of PROBLEM.
    """
    (b, H, N_q, d), H_kv = q, k[1]
    heads = b * H_kv
    rows = H // H_kv * N_q
    problem = problem_of(q, k, strides[0], scale, T_c=T_c, **settings)
    places, share = parts_of(heads, rows, merged)
    each = [(kernels[0], blocks, THREADS, shared_bytes(d))]
    if merged > heads:
        each.append(merge_launch(kernels[1], heads, rows, share))

    def arguments(parts: int, Q: int, K: int, V: int, *others: int) -> Any:
        *pages, O, L, totals = others
        check_rows("q", Q, q, strides[0])
        sides = zip("kv", (K, V), strides[1:3], strict=True)
        maps = [
            tensor_map(name, address, k, layout, dtype.name, *box)
            for name, address, layout in sides
        ]
        own = problem.copy()
        if pages:
            own["table"], own["lengths"] = pages
        # O_parts, l_parts, m_parts
        cut = (np.uint64(parts + 4 * places * n) for n in (0, d, d + 1))
        written = (np.uint64(O), np.uint64(L), *cut)
        by_value = np.void(own.tobytes())
        decoding = np.uint64(Q), *maps, *written, by_value, np.uint64(totals)
        merging = *written, np.int32(merged), np.int32(share), by_value, np.uint64(totals)
        return (decoding, merging)[: len(each)]

    return Launches(each, arguments, early=True), 4 * places * (d + 2)


def shared_bytes(d: int) -> int:
    """Return the bytes for Q, 32 KB each of K_j and of V_j, a pair of barriers for each tile,
    and a run's words.
    """
    stages = 256 // d
    return 2 * d * (ROWS + 2 * stages * KEYS) + 2 * stages * 16 + 16


def functions(dtype: str, d: int, cluster: int, paged: bool = False) -> tuple[str, str]:
    """Return the kernels' names for one case."""
    return (
        f"hopper_decode<{ELEMENTS[dtype]}, {d}, {cluster}, {str(paged).lower()}>",
        merge_function(dtype, d),
    )


def choose_blocks(d: int, dtype: str, direction: str) -> tuple[int, int]:
    """Return (B_r, B_c); the rows are all queries of a group."""
    return (ROWS, KEYS) if d in HEAD_DIMS else hopper.choose_blocks(d, dtype, direction)


def _functions(dtype: str, count: bool) -> Iterator[str]:
    """Yield what the tests compile: with pages, d = 128, and in float16 every d."""
    all_of = dtype == "float16" and not count
    for d, cluster, paged in product(HEAD_DIMS, (1, CLUSTER, *CLUSTERS), (False, True)):
        if paged and cluster > CLUSTER:
            continue
        if not paged or d == 128 or all_of:
            yield from functions(dtype, d, cluster, paged)


def _grouped(dtype: str, _: bool) -> Iterator[str]:
    """Yield what the tests compile of the kernel for more queries."""
    for d, cluster in product(HEAD_DIMS, hopper_grouped.CLUSTERS):
        yield hopper_grouped.function(dtype, d, cluster)


KERNEL = Kernel(
    name="hopper_decode",
    about=(
        "few queries, a long cache: a group's queries in one tile, keys split over the machine; "
        "fp16 and bf16"
    ),
    short="wgmma and TMA, decoding",
    look=("vermillion", "X", "-"),
    rung=7,
    fastest_in=("forward",),
    model="split_kv",
    tensor_cores=True,
    dtypes=tuple(ELEMENTS),
    head_dims=tensor_core.HEAD_DIMS,
    variants=(*hopper_variants(FILE, _functions), *hopper_variants(hopper_grouped.FILE, _grouped)),
    forward=forward,
    prepare=prepare,
    takes=("causal", "count"),
    aligned=True,
    choose_blocks=choose_blocks,
    why_not=hopper.why_not,
    unsuited=unsuited,
)

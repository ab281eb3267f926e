"""FlashAttention on Hopper's own instructions: launches kernels/hopper.cu, with masks, windows and
lists of live tiles.

`hopper_backward` is the backward pass, or `hopper_backward_wide` if d = 256.

The kernel needs a GPU of compute capability 9.0 and d of 64, 128 or 256. Otherwise `tensor_core`
runs instead, if that takes d, with a RuntimeWarning. `flashsim.gpu.plan` says so beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from flashsim.attention.shapes import Blocks, Shape
from flashsim.gpu import hopper_backward, hopper_backward_wide, tensor_core, tensor_core_backward
from flashsim.gpu.compiling import capability, import_cupy
from flashsim.gpu.kernel import Kernel, Options, hopper_variants
from flashsim.gpu.launching import (
    DROPOUT,
    Launch,
    Prepared,
    counter,
    dropout,
    ready,
    section,
    totals,
    warn,
)
from flashsim.gpu.masking import in_tiles
from flashsim.gpu.tensor_maps import contiguous, mask_map, tensor_map
from flashsim.gpu.tile_lists import computed, live_tiles, to_gpu
from flashsim.support.sizes import ceil_div

FILE = "hopper.cu"
ARRAYS = ("Q", "K", "V", "O", "L", "mask")
ELEMENTS = tensor_core.ELEMENTS
HEAD_DIMS = (64, 128, 256)  # of the kernel; the rung takes tensor_core's too
WIDEST = 256  # this d has a backward pass of its own
ROWS = 64  # rows of Q_i that a warpgroup has
O_ROWS = 16  # rows of O_i that a warp stores at a time
O_COLUMNS = 128  # the most columns of O_i that are stored at a time
LEAST_HEADS = 8  # of a section in causal calls, whatever the L2 holds
MOST_HEADS = 64  # the most for each team
MOST = 2**31 - 2**16  # row blocks, which are counted in 32 bits


PROBLEM = np.dtype(
    [
        (name, "i4")
        for name in (
            "N_q",
            "N_k",
            "H",
            "group",
            "T_r",
            "row_blocks",
            "section",
            "wants_L",
            "left",
            "right",
        )
    ]
    + [
        ("mask", "i4", 3),
        ("starts", "u8"),
        ("tiles", "u8"),
        ("c", "f4"),
        ("sign", "f4"),
        ("dropout", DROPOUT),
    ]
    + [(name, "u8") for name in ("cu_q", "cu_k", "order", "O")],
    align=True,
)


class Tiles(NamedTuple):
    """B_r × B_c, and which ideas are used.

    longest     the row blocks that see the most keys run first
    split       tiles that need a mask have a loop of their own, so that the other tiles' loop has
                no masking
    lazy        O_i is rescaled only if a maximum has grown by much
    sums        a tile's maxima are computed only if sums of weights show that one has grown by much
    mends       if one has grown, most weights are multiplied by a factor instead of computed again
    turns       consumers start their products one after the other
    persistent  a block of threads takes row block after row block, instead of only one
    abreast     how many tiles, side by side, are one block of a block mask
    """

    B_r: int
    B_c: int
    longest: bool = True
    split: bool = True
    lazy: bool = True
    sums: bool = True
    mends: bool = True
    turns: bool = False
    persistent: bool = True
    abreast: int = 1

    @property
    def blocks(self) -> tuple[int, int]:
        """(B_r, B_c) as users name it: the blocks of a block mask."""
        return self.B_r, self.B_c * self.abreast

    def teams(self, d: int) -> int:
        """Return how many row blocks a block of threads works on at a time: kernels/hopper.cu's
        TEAMS.
        """
        return 256 // self.B_r if d == self.B_c == 64 else 1

    def function(self, dtype: str, d: int, kind: str, dropout: bool, varlen: bool = False) -> str:
        """Return the kernel's name for one case."""
        ideas = self.longest, self.split, self.turns, self.lazy, self.sums, self.mends
        switches = ", ".join(str(on).lower() for on in (dropout, *ideas, varlen))
        return f"hopper<{ELEMENTS[dtype]}, {d}, {self.B_r}, {self.B_c}, {kind}, {switches}>"

    def shared_bytes(self, d: int, masks: bool = False, varlen: bool = False) -> int:
        """Return the bytes for Q_i, K_j, V_j, O_i, a mask's tiles, pairs of barriers, and the
        row blocks' numbers.
        """
        Q_stages, stages = (2, self.B_r // 32) if d == self.B_c == 64 else (1, 2)
        tiles = 2 * (
            d * (Q_stages * self.B_r + 2 * stages * self.B_c) + o_columns(d, masks) * self.B_r
        )
        tiles += masks * stages * self.B_r * self.B_c
        return self.teams(d) * (
            tiles + (Q_stages + 2 * stages) * 16 + (Q_stages + 1) * (12 + 16 * varlen)
        )


def o_columns(d: int, masks: bool) -> int:
    """Return how many columns of O_i are stored at a time: kernels/hopper.cu's O_COLUMNS."""
    return 64 if d == WIDEST and masks else min(d, O_COLUMNS)


WIDE = Tiles(128, 128, turns=True)
SMALL = Tiles(128, 128)
DEEP = Tiles(128, 64)
FINE = Tiles(256, 64)
PAIR = Tiles(128, 64)
# without a mask; with dropout, or an array; with another mask
TILES = {256: (DEEP,), 128: (WIDE,), 64: (FINE, SMALL, PAIR)}
KINDS = ("FULL", "CAUSAL", "ARRAY", "WINDOW", "LISTED")  # of masks, as the kernel calls them
MENDS_NOT = (64, "WINDOW"), (256, "ARRAY")  # `mends` would need too many registers


@lru_cache(maxsize=1024)
def choose_tiles(
    d: int,
    kind: str,
    dropout: bool = False,
    blocks: tuple[int, int] | None = None,
    *,
    begun: bool = False,
) -> Tiles:
    """Return the tiles that the kernel is compiled for, or raise ValueError for other blocks.

    Registers do not suffice for Philox with more than two consumers, and for `sums` if d = 256 with
    a window or a list. In windows of d = 64, `sums` are faster only if all rows see some of their
    warpgroup's first tile (`begun`). `turns` are faster if d = 128, where two consumers see the
    same tiles.
    """
    tiles = TILES[d][
        min(1 if dropout or kind == "ARRAY" else 2 if kind != "FULL" else 0, len(TILES[d]) - 1)
    ]
    if (d, kind, dropout) == (64, "LISTED", False):
        tiles = tiles._replace(abreast=2)
    if blocks not in (None, tiles.blocks):
        masks = {
            "CAUSAL": ", causal",
            "ARRAY": ", with a mask",
            "WINDOW": ", with a window",
            "LISTED": ", with a block mask",
        }
        of = masks.get(kind, "")
        if dropout:
            of += ", with dropout"
        raise ValueError(f"blocks is {blocks}; hopper takes {tiles.blocks} where d = {d}{of}")
    sums = {256: kind in ("FULL", "CAUSAL", "ARRAY"), 128: True, 64: kind != "WINDOW" or begun}[
        d
    ] and not dropout
    return tiles._replace(
        sums=sums, mends=sums and (d, kind) not in MENDS_NOT, turns=tiles.turns and sums
    )


def varlen_tiles(d: int, causal: bool) -> Tiles:
    """Return the tiles of packed batches. If d = 64 and not causal, `mends` would need too many
    registers.
    """
    return (
        PAIR._replace(mends=causal) if d == 64 else choose_tiles(d, "CAUSAL" if causal else "FULL")
    )


def all_begin(window: tuple[int, int], N_q: int, N_k: int) -> bool:
    """Say whether this holds for each 64 successive rows: all of them see a key of the last tile of
    64 keys that any of them sees.
    """
    return window[1] == -1 or window[1] >= N_q - 1 or (N_k - N_q + window[1]) % ROWS == 0


def as_list(d: int, kind: str, dropout: bool) -> str:
    """Return the kind that is launched. Where a window leaves too few registers for Philox, it
    runs as a list of tiles.
    """
    return "LISTED" if (d, kind, dropout) == (WIDEST, "WINDOW", True) else kind


def steps(d: int) -> dict[str, Tiles]:
    """Return the kernel without its ideas, then with one more idea each time. `forward` uses the
    last one, or the one before `turns`.
    """
    tiles = TILES[d][0]._replace(
        longest=False,
        split=False,
        turns=False,
        lazy=False,
        sums=False,
        mends=False,
        persistent=False,
    )
    steps_by_kind = {"plain": tiles}
    for idea in ("split", "persistent", "longest", "lazy", "sums", "mends", "turns"):
        tiles = tiles._replace(**{idea: True})
        steps_by_kind[f"+ {idea}"] = tiles
    return steps_by_kind


def choose_blocks(d: int, dtype: str, direction: str) -> tuple[int, int]:
    """Return (B_r, B_c) without dropout and mask."""
    if d not in TILES:
        return tensor_core.block_sizes(d)
    if direction == "backward":
        return (64, 64) if d == WIDEST else hopper_backward.choose_blocks(d)
    return TILES[d][0].blocks


def why_not(capability: str, d: int) -> str:
    """Return why tensor_core must run instead of the kernel, or ""."""
    if capability != "90":
        return f"the GPU has compute capability {capability}, and wgmma needs 90 (Hopper)"
    return "" if d in HEAD_DIMS else f"d is {d}, and the kernel takes {min(HEAD_DIMS)} or more"


def forward(q: Any, k: Any, v: Any, o: Any, lse: Any, options: Options) -> None:
    """Fill o and, unless None, lse. Raises ValueError for rows of q, k or v that do not start at
    multiples of 16 bytes.
    """
    if _another_runs(q, options):
        tensor_core.forward(q, k, v, o, lse, options)
    else:
        launch(None, q, k, v, o, lse, options)


def prepare(
    device: int, q: Any, k: Any, v: Any, wants_L: bool, options: Options
) -> Prepared | None:
    """Return `forward` for arrays of these shapes, strides and dtypes, or None if tensor_core
    runs instead.
    """
    return (
        None
        if why_not(capability(device), q.shape[3])
        else prepared(None, device, q, k, v, wants_L, options)
    )


def kind_of(options: Options) -> str:
    """Return the mask's kind, one of KINDS."""
    if options.block_mask is not None:
        return "LISTED"
    return (
        "ARRAY"
        if options.mask is not None
        else "WINDOW"
        if options.window
        else KINDS[options.causal]
    )


def launch(tiles: Tiles | None, q: Any, k: Any, v: Any, o: Any, lse: Any, options: Options) -> None:
    """Fill o and, unless None, lse, by these tiles, or the fastest if None. Raises ValueError as
    `forward`.
    """
    device = import_cupy().cuda.runtime.getDevice()
    prepared(tiles, device, q, k, v, lse is not None, options)(q, k, v, o, lse)


def prepared(
    tiles: Tiles | None, device: int, q: Any, k: Any, v: Any, wants_L: bool, options: Options
) -> Prepared:
    """Return what fills o and lse for arrays of these shapes, strides and dtypes, by these
    tiles, or the fastest if None.
    """
    kind = kind_of(options)
    begun = options.window is not None and all_begin(options.window, q.shape[2], k.shape[2])
    tiles = tiles or choose_tiles(
        q.shape[3], kind, options.dropout_p > 0, options.blocks, begun=begun
    )
    window = options.window or (-1, 0 if options.causal else -1)
    drops = (options.dropout_p, options.seed)
    lists: Any = ()
    mask = None if options.mask is None else in_tiles(options.mask)
    kind = as_list(q.shape[3], kind, options.dropout_p > 0)
    if kind == "LISTED":
        lists = _listed(device, tiles, options.block_mask, window, q.shape[2], k.shape[2])
    listed = tuple(array.data.ptr for array in lists)
    strides = (q.strides, k.strides, v.strides)
    settings = (options.scale, drops, listed, options.counters is not None)
    start = _launch(
        device,
        tiles,
        q.shape,
        k.shape,
        strides,
        q.dtype,
        wants_L,
        kind,
        window,
        mask and mask[1:],
        *settings,
    )
    M = mask.array.data.ptr if mask else 0

    def run(stream: int, _: int, Q: int, K: int, V: int, O: int, L: int = 0) -> None:
        start(stream, Q, K, V, O, M, L, counter(device, stream), totals(options, ARRAYS))

    return Prepared(run, kept=(*lists, mask))


@lru_cache(maxsize=1024)
def _launch(
    device: int,
    tiles: Tiles,
    q: tuple[int, ...],
    k: tuple[int, ...],
    strides: tuple[tuple[int, ...], ...],
    dtype: Any,
    wants_L: bool,
    kind: str,
    window: tuple[int, int],
    masked: tuple[tuple[int, ...], ...] | None,
    scale: float,
    drops: tuple[float, int],
    listed: tuple[int, ...],
    counting: bool,
) -> Launch:
    """Return the launch, to be called with the addresses of Q, K, V, O, the mask, L, the counter
    and totals.

    `masked` is the mask's shape, strides and steps, as `in_tiles` returns them.
    """
    (B, H, N_q, d), (_, H_kv, N_k, _) = q, k
    T_r = -(-N_q // tiles.B_r)
    row_blocks = B * H * T_r
    if row_blocks >= MOST:
        raise ValueError(
            f"q has shape {q}: {row_blocks:,} row blocks; hopper takes fewer than {MOST:,}"
        )
    attributes = import_cupy().cuda.Device(device).attributes
    problem = np.zeros((), PROBLEM)
    problem["N_q"] = N_q
    problem["N_k"] = N_k
    problem["H"] = H
    problem["group"] = H // H_kv
    problem["T_r"] = T_r
    problem["row_blocks"] = row_blocks
    problem["wants_L"] = wants_L
    causal = kind == "CAUSAL" or (kind == "ARRAY" and window[1] == 0)
    held = 4 * N_k * d * H_kv / H, attributes["L2CacheSize"]
    problem["section"] = section_of(*held, B * H, tiles.teams(d)) if causal else 1
    problem["left"], problem["right"] = (
        most if side == -1 else min(side, most)
        for side, most in zip(window, (N_k - 1, N_q - 1), strict=True)
    )
    *matrices, problem["mask"] = masked or ((0, 0, 0),)
    problem["starts"], problem["tiles"] = listed or (0, 0)
    problem["c"], problem["sign"] = tensor_core.factor_and_sign(scale)
    problem["dropout"] = dropout(*drops)
    name, shared = (
        tiles.function(dtype.name, d, kind, drops[0] > 0),
        tiles.shared_bytes(d, kind == "ARRAY"),
    )
    (kernel,) = ready(device, FILE, (name,), name, shared, counting)
    team_blocks = -(-row_blocks // tiles.teams(d))
    threads = 128 * (tiles.teams(d) * tiles.B_r // ROWS + 1)
    blocks = (
        min(attributes["MultiProcessorCount"], team_blocks) if tiles.persistent else team_blocks
    )
    shapes = (q, k, k, q)
    layout = (*strides, contiguous(q, dtype.itemsize))
    boxes = (tiles.B_r,), (tiles.B_c,), (tiles.B_c,), (O_ROWS, o_columns(d, kind == "ARRAY"))
    sides = tuple(zip("qkvo", shapes, layout, boxes, strict=True))
    by_value = np.void(problem.tobytes())

    def arguments(
        Q: int, K: int, V: int, O: int, M: int, L: int, counter: int, totals: int
    ) -> tuple[Any, ...]:
        each = zip(sides, (Q, K, V, O), strict=True)
        maps = [
            tensor_map(name, address, *layout, dtype.name, *box)
            for (name, *layout, box), address in each
        ]
        maps.append(mask_map(M, *matrices, tiles.B_r, tiles.B_c) if masked else maps[0])
        return (*maps, np.uint64(L), np.uint64(counter), by_value, np.uint64(totals))

    return Launch(kernel, blocks, threads, shared, arguments)


def section_of(bytes_a_head: float, l2_bytes: int, heads: int, teams: int = 1) -> int:
    """Return how many heads make a section. In a section, the row blocks that see the most keys run
    first, those of all its heads.

    With more than MOST_HEADS short heads, all multiprocessors would load K and V of different heads
    at once, and no later load would find them in the L2. LEAST_HEADS long heads may exceed the L2,
    since row blocks of one length read the same keys at about the same time. Sections are about
    equal: in a last one with few heads, some multiprocessors would have no row block while others
    have a long one.
    """
    most = min(heads, MOST_HEADS * teams, max(LEAST_HEADS, section(bytes_a_head, l2_bytes, heads)))
    return ceil_div(heads, ceil_div(heads, most))


def _listed(
    device: int, tiles: Tiles, block_mask: Any, window: tuple[int, int], N_q: int, N_k: int
) -> tuple[Any, Any]:
    """Return two arrays on the GPU: where each row block's live tiles start in their list, and
    the list.
    """
    shape = Shape(N_q, N_k, 1, 1)
    return _on_gpu(
        device, computed(block_mask, tiles.blocks, shape), tiles.blocks, shape, window, tiles.B_c
    )


@lru_cache(maxsize=64)
def _on_gpu(
    device: int,
    bits: bytes,
    tile: tuple[int, int],
    shape: Shape,
    window: tuple[int, int],
    B_c: int,
) -> tuple[Any, Any]:
    blocks = Blocks(*tile, N_q=shape.N_q, N_k=shape.N_k)
    live = live_tiles(bits, tile, blocks, shape, window).repeat(tile[1] // B_c, axis=1)[
        :, : -(-shape.N_k // B_c)
    ]
    starts, tiles = to_gpu(np.concatenate([[0], live.sum(axis=1).cumsum()]), np.nonzero(live)[1])
    return starts, tiles


def backward(
    q: Any, k: Any, v: Any, o: Any, lse: Any, do: Any, dq: Any, dk: Any, dv: Any, options: Options
) -> None:
    """Fill dq, dk, dv. Raises ValueError for rows that do not start at multiples of 16 bytes,
    and for too large a grid.
    """
    if _another_runs(q, options):
        tensor_core_backward.backward(q, k, v, o, lse, do, dq, dk, dv, options)
    else:
        device = import_cupy().cuda.runtime.getDevice()
        _backward(q.shape[3]).prepared(device, q, k, v, do, options)(
            q, k, v, o, lse, do, dq, dk, dv
        )


def prepare_backward(
    device: int, q: Any, k: Any, v: Any, do: Any, options: Options
) -> Prepared | None:
    """Return `backward` for arrays of these shapes, strides and dtypes, or None as `prepare`."""
    if why_not(capability(device), q.shape[3]):
        return None

    return _backward(q.shape[3]).prepared(device, q, k, v, do, options)  # type: ignore[no-any-return]


def _backward(d: int) -> Any:
    return hopper_backward_wide if d == WIDEST else hopper_backward


def _another_runs(q: Any, options: Options) -> bool:
    """Say whether tensor_core runs instead, and then warn. Raises ValueError for what
    tensor_core does not take.
    """
    reason = why_not(capability(import_cupy().cuda.runtime.getDevice()), q.shape[3])
    if reason and q.shape[3] not in tensor_core.HEAD_DIMS:
        raise ValueError(
            f"q has shape {q.shape}, d = {q.shape[3]}, which tensor_core does not take, and "
            f"{reason}"
        )
    for name in ("blocks", "counters", "mask", "window", "block_mask") if reason else ():
        if getattr(options, name) is not None:
            option = "count" if name == "counters" else name
            raise ValueError(
                f"{option} is given; tensor_core does not take it, and runs instead of hopper "
                f"because {reason}"
            )
    if reason:
        warn(f"tensor_core runs instead of hopper: {reason}")
    return bool(reason)


def _functions(dtype: str, count: bool) -> Iterator[str]:
    """Yield what the tests compile: dropout, and packed batches of d = 64, only in float16."""
    for d, kind, drops in product(HEAD_DIMS, KINDS, (False, True)):
        if (not drops or (dtype == "float16" and not count)) and as_list(d, kind, drops) == kind:
            yield choose_tiles(d, kind, drops).function(dtype, d, kind, drops)
    for d, kind in product(
        (64, 128) if dtype == "float16" and not count else (128,), ("FULL", "CAUSAL")
    ):
        yield varlen_tiles(d, kind == "CAUSAL").function(dtype, d, kind, False, varlen=True)
    yield choose_tiles(64, "WINDOW", begun=True).function(dtype, 64, "WINDOW", False)


KERNEL = Kernel(
    name="hopper",
    about=(
        "loops exchanged, Hopper's wgmma and TMA, a producer and consumers, persistent; fp16 and "
        "bf16"
    ),
    short="wgmma and TMA",
    look=("vermillion", "P", "-"),
    rung=6,
    fastest_in=("forward", "backward"),
    model="q_outer",
    tensor_cores=True,
    dtypes=tuple(ELEMENTS),
    head_dims=(*tensor_core.HEAD_DIMS, WIDEST),
    variants=hopper_variants(FILE, _functions)
    + hopper_backward.VARIANTS
    + hopper_backward_wide.VARIANTS,
    forward=forward,
    backward=backward,
    prepare=prepare,
    prepare_backward=prepare_backward,
    takes=("causal", "mask", "window", "block_mask", "dropout_p", "blocks", "count"),
    forward_only=("blocks",),
    not_together=(("mask", "block_mask"),),
    not_together_backward=(("mask", "dropout_p"),),
    not_backward={WIDEST: hopper_backward_wide.TAKES_NOT},
    aligned=True,
    choose_blocks=choose_blocks,
    why_not=why_not,
)

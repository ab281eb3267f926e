"""`exact`: what a run costs, by formula. One entry of a table for each algorithm and direction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flashsim.masks import All, as_mask
from flashsim.records import Blocks, Occupancy, Shape, Traffic
from flashsim.theory import appendix_b, flash, groups, q_outer, small_cache, standard
from flashsim.theory.bounds import matmul_flops
from flashsim.theory.live import chosen
from flashsim.theory.problem import Arrays, Problem, Tiles, ceil_div, dense_shapes, has_tree, live_tiles

BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class Exact:
    """What theory says a run costs: `hbm`, `sram` and `blocks` must equal a run's and a tally's.

    `matmul` is the FLOPs of the matrix products, a tally's `flops.matmul`.
    """

    algorithm: str
    hbm: Traffic
    sram: Occupancy
    blocks: Blocks
    matmul: int

    @property
    def reads(self) -> int:
        """Elements read from HBM."""
        return self.hbm.reads

    @property
    def writes(self) -> int:
        """Elements written to HBM, line 2's included."""
        return self.hbm.writes

    @property
    def init_writes(self) -> int:
        """Elements written by line 2."""
        return self.hbm.init_writes

    @property
    def accesses(self) -> int:
        """Reads + writes."""
        return self.hbm.accesses


def _paper_rows(M: int, d: int, d_v: int) -> int:
    """Return ⌈M/4d⌉. Where d_v ≠ d, its 4d is 2(d + d_v)."""
    return ceil_div(M, 2 * (d + d_v))


@dataclass(frozen=True)
class _Form:
    proportions: Callable[[int, int], tuple[int, int]]  # (rows, d) -> line 1's (B_r, B_c)
    traffic: Callable[[Problem, Blocks, Tiles], Arrays]
    peak: Callable[[Problem, Blocks, Tiles], int]
    plain: bool = False  # neither mask nor dropout
    skips: bool = False  # takes a block mask
    live: bool = False  # skips what the mask forbids whole
    splits: bool = False  # splits the keys
    rows: Callable[[int, int, int], int] = _paper_rows  # (M, d, d_v) -> rows


_FORMS = {
    "forward": {
        "standard": _Form(standard.proportions, standard.forward_traffic, standard.forward_peak),
        "flash_basic": _Form(flash.proportions, flash.forward_traffic, flash.forward_peak, plain=True),
        "flash": _Form(flash.proportions, flash.forward_traffic, flash.forward_peak),
        "block_sparse": _Form(flash.proportions, flash.forward_traffic, flash.forward_peak, skips=True),
        "memory_efficient": _Form(appendix_b.one_by_one, appendix_b.closed_form_traffic, appendix_b.closed_form_peak),
        "rabe_staats": _Form(flash.proportions, appendix_b.rabe_staats_traffic, appendix_b.rabe_staats_peak),
        "small_cache": _Form(small_cache.proportions, small_cache.traffic, small_cache.peak, rows=small_cache.rows),
        "q_outer": _Form(q_outer.proportions, q_outer.traffic, q_outer.peak, live=True),
        "split_kv": _Form(q_outer.proportions, q_outer.split_traffic, q_outer.split_peak, live=True, splits=True),
    },
    "backward": {
        "standard": _Form(standard.proportions, standard.backward_traffic, standard.backward_peak),
        "flash": _Form(flash.proportions, flash.backward_traffic, flash.backward_peak),
        "block_sparse": _Form(flash.proportions, flash.backward_traffic, flash.backward_peak, skips=True),
        "memory_efficient": _Form(
            appendix_b.one_by_one, appendix_b.closed_form_backward_traffic, appendix_b.closed_form_backward_peak
        ),
        "rabe_staats": _Form(
            flash.proportions, appendix_b.rabe_staats_backward_traffic, appendix_b.rabe_staats_backward_peak
        ),
        "q_outer": _Form(flash.proportions, q_outer.backward_traffic, q_outer.backward_peak, live=True),
        "q_outer_two_pass": _Form(q_outer.square, q_outer.two_pass_traffic, q_outer.two_pass_peak, live=True),
    },
}


def exact(
    name: str,
    *,
    N: int | None = None,
    d: int,
    M: int | None = None,
    N_q: int | None = None,
    N_k: int | None = None,
    d_v: int | None = None,
    heads: int = 1,
    kv_heads: int | None = None,
    dtype: DTypeLike = "float32",
    sizing: str = "paper",
    blocks: tuple[int, int] | None = None,
    direction: str = "forward",
    causal: bool = False,
    mask: Any = None,
    dropout_p: float = 0.0,
    block_mask: Any = None,
    splits: int | None = None,
    merge: str = "sequence",
    gqa: str = "separate",
) -> Exact:
    """Return the exact counts of a run by formula. Arguments as in `flashsim.count`; unknown names raise ValueError.

    With `causal`, key j is attended to if j ≤ i + N_k − N_q: aligned at the bottom right.

    Theory does not refuse what does not fit: where `sram.peak` exceeds an enforced `sram.capacity`, a run would raise
    `SramOverflow`. "fit" blocks are chosen for all tiles, as a run chooses them, whatever the block mask then skips.
    """
    form = _form(name, direction)
    n, k = (N if N_q is None else N_q), (N if N_k is None else N_k)
    if n is None or k is None:
        raise ValueError("a length is missing: give N, or both N_q and N_k")
    shape = Shape(n, k, d, d if d_v is None else d_v)
    stored = BYTES.get("bfloat16" if str(dtype) == "bfloat16" else np.dtype(dtype).name)
    if stored is None:
        raise ValueError(f"no closed form for dtype {dtype!r}; known: {', '.join(BYTES)}")
    M = 102_400 // stored if M is None else M

    kv_heads = heads if kv_heads is None else kv_heads
    if heads % kv_heads or gqa not in ("separate", "grouped"):
        raise ValueError(f"no closed form for heads={heads}, kv_heads={kv_heads}, gqa={gqa!r}")
    share = heads // kv_heads
    group, problems = (share, kv_heads) if gqa == "grouped" else (1, heads)

    rule = as_mask(mask, causal, shape, ())
    masked = not isinstance(rule, All)
    if form.plain and (masked or dropout_p):
        raise ValueError(f"{name!r} has neither mask nor dropout; 'flash' (Algorithm 2) has")
    if block_mask is not None and not form.skips:
        raise ValueError(f"{name!r} has no block mask; 'block_sparse' (Algorithm 5) has")
    if not form.splits and (splits is not None or merge != "sequence"):
        raise ValueError(f"{name!r} does not split the keys; 'split_kv' does")

    n, dense = group * n, dense_shapes(rule, group)
    p = Problem(n, k, d, shape.d_v, M, stored, masked, dense, bool(dropout_p), has_tree(rule), splits, merge, group)
    sizes = _sizes(form, p, sizing, blocks)
    skipping = "live" if form.live else block_mask
    tiles = p.tiles(sizes.B_r, sizes.B_c, chosen(skipping, live_tiles(rule, n, k, sizes, group), sizes))
    arrays, peak = form.traffic(p, sizes, tiles), form.peak(p, sizes, tiles)
    traffic = Traffic(arrays).times(problems)
    if gqa == "separate" and share > 1:
        arrays = groups.shared(arrays, share, kv_heads)
        if direction == "backward":
            arrays, peak = groups.summed(arrays, p, share, kv_heads), max(peak, groups.sum_peak(p))
        traffic = Traffic(arrays)
    return Exact(
        name,
        traffic,
        Occupancy(peak, M, blocks is not None or sizing == "fit"),
        sizes,
        problems * matmul_flops(n, k, d, shape.d_v, name=name, direction=direction, area=tiles.area),
    )


def _form(name: str, direction: str) -> _Form:
    if direction not in _FORMS:
        raise ValueError(f"direction is {direction!r}; expected 'forward' or 'backward'")
    if name not in _FORMS[direction]:
        known = ", ".join(map(repr, _FORMS[direction]))
        raise ValueError(f"no closed form for {name!r}, {direction}; known: {known}")
    return _FORMS[direction][name]


def _sizes(form: _Form, p: Problem, sizing: str, blocks: tuple[int, int] | None) -> Blocks:
    """Return line 1's blocks. Where d_v ≠ d, its bound d on B_r is ⌈(d + d_v)/2⌉."""
    width = ceil_div(p.d + p.d_v, 2)

    def of(rows: int) -> Blocks:
        return _clipped(p, *form.proportions(rows, width))

    def fits(rows: int) -> bool:
        sizes = of(rows)
        return form.peak(p, sizes, p.tiles(sizes.B_r, sizes.B_c)) <= p.M

    if blocks is not None:
        return _clipped(p, *blocks)
    if sizing == "paper":
        return of(form.rows(p.M, p.d, p.d_v))
    if sizing != "fit":
        raise ValueError(f"no closed form for sizing {sizing!r}; known: 'paper', 'fit', or blocks=(B_r, B_c)")
    low, rows, longest = 0, 1, max(p.N_q, p.N_k)
    while fits(1) and rows < longest and fits(rows + 1):
        low, rows = rows, 2 * rows
    while (
        rows - low > 1
    ):  # at `low` one more fits, at `rows` not: searched as a run does, as a tree's peak need not grow
        middle = (low + rows) // 2
        low, rows = (middle, rows) if middle < longest and fits(middle + 1) else (low, middle)
    return of(rows)


def _clipped(p: Problem, B_r: int, B_c: int) -> Blocks:
    B_r, B_c = min(B_r, p.N_q), min(B_c, p.N_k)
    return Blocks(B_r, B_c, ceil_div(p.N_q, B_r), ceil_div(p.N_k, B_c))

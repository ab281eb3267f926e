"""`exact`: what a run costs, by formula. By the form of each algorithm and direction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Unpack

from flashsim.attention.arguments import check_blocks, check_flag, check_tiles, is_one_of, shown
from flashsim.attention.masks.rules import All, Head, Mask, as_mask
from flashsim.attention.masks.scores import cap_of
from flashsim.attention.options import Options, check_options
from flashsim.attention.problem import Problem
from flashsim.attention.shapes import Blocks, Shape
from flashsim.memory.traffic import Occupancy, Traffic
from flashsim.support.sizes import Size, most
from flashsim.theory import groups
from flashsim.theory.form import Form, form_of, forms
from flashsim.theory.live import Chosen, Live, listed
from flashsim.theory.problem import NoClosedForm, OneHead, Tiles, arrays_of, ceil_div, live_tiles
from flashsim.theory.theorems import products_flops


@dataclass(frozen=True, repr=False)
class Exact:
    """What theory says a run costs: `hbm`, `sram` and `blocks` must equal a run's and a tally's.

    `matmul` is the FLOPs of the matrix products, a tally's `flops.matmul`; `sizing`, who chose the
    blocks.
    """

    algorithm: str
    hbm: Traffic
    sram: Occupancy
    blocks: Blocks
    matmul: int
    sizing: str = field(default="", compare=False)

    def __repr__(self) -> str:
        return f"Exact({self.algorithm!r}: {self.hbm.accesses:,} HBM accesses, {self._costs})"

    def _repr_html_(self) -> str:
        return self.hbm.table(
            f"{self.algorithm}, by formula: HBM accesses, in elements", [self._costs]
        )

    @property
    def _costs(self) -> str:
        who = f" ({self.sizing})" if self.sizing else ""
        return f"blocks {self.blocks.B_r} × {self.blocks.B_c}{who}, {self.sram}"

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


def exact(
    name: Any,
    problem: Problem | None = None,
    *,
    N: int | None = None,
    d: int | None = None,
    M: Size | None = None,
    N_q: int | None = None,
    N_k: int | None = None,
    d_v: int | None = None,
    heads: int = 1,
    kv_heads: int | None = None,
    dtype: Any = "float32",
    sizing: str = "fit",
    blocks: tuple[int, int] | None = None,
    enforce: bool | None = None,
    direction: str = "forward",
    causal: bool = False,
    mask: Any = None,
    dropout_p: float = 0.0,
    gqa: str = "separate",
    **options: Unpack[Options],
) -> Exact:
    """Return the exact counts of a run by formula. Arguments as in `flashsim.count`, a
    `flashsim.Problem` too.

    For an algorithm of one's own, `name` is its `flashsim.theory.Form`, or the algorithm: its form
    is then looked for in the file that defines it (`flashsim.theory.form_of`).

    With `causal`, key j is attended to if j ≤ i + N_k − N_q: aligned at the bottom right.

    Theory does not refuse what does not fit: where `sram.peak` exceeds an enforced `sram.capacity`,
    a run would raise `SramOverflow`. "fit" blocks are chosen for all tiles, as a run chooses them,
    whatever the block mask then skips.
    """
    form = form_of(name, direction)
    fixed = check_blocks(blocks)
    asked = Problem.asked(
        problem,
        N=N,
        d=d,
        M=M,
        N_q=N_q,
        N_k=N_k,
        d_v=d_v,
        heads=heads,
        kv_heads=kv_heads,
        dtype=dtype,
        causal=causal,
        mask=mask,
        dropout_p=dropout_p,
        gqa=gqa,
    )
    one = Posed.of(
        form, asked, check_options(exact, options, repr(form.name), form, forms()["forward"])
    )
    p = one.p
    share = asked.group
    kv_heads = asked.heads // asked.group
    bias = one.rule.bias
    together = asked.gqa == "grouped"
    problems = kv_heads if together else asked.heads
    sizes = _sizes(form, p, sizing, fixed)
    tiles = one.tiles(sizes)
    arrays = form.moved(p, sizes, tiles)
    peak = _peak(form, p, sizes, tiles)
    if not isinstance(arrays, dict):
        raise ValueError(
            f"the traffic of Form {form.name!r} is {shown(arrays)}; expected a dict of p.array(…)"
        )
    traffic = Traffic(arrays).times(problems)
    if share > 1 and not together:
        arrays = groups.shared(arrays, share, kv_heads)
        if direction == "backward":
            arrays = groups.summed(arrays, p, share, kv_heads)
            peak = max(peak, groups.sum_peak(p))
        traffic = Traffic(arrays)
    if p.learns:
        gradient = {"dB": traffic.by_array["dB"].shared(problems)}
        if bias is not None and p.group > 1 and bias.matrix[0] > 1:
            gradient, most = groups.bias_summed(gradient["dB"], p.group, p.M)
            peak = max(peak, most)
        traffic = Traffic({**traffic.by_array, **gradient})
    if p.sink and direction == "backward":
        learnt, most = groups.sink_learnt(
            replace(p, N_q=asked.shape.N_q), form.sink_of, asked.heads
        )
        moved = traffic.by_array
        again = {
            name: moved[name].plus(replace(a, size=0)) if name in moved else a
            for name, a in learnt.items()
        }
        peak = max(peak, most)
        traffic = Traffic({**moved, **again})
    enforced = (
        (fixed is not None or sizing == "fit")
        if enforce is None
        else check_flag("enforce", enforce)
    )
    matmul = (
        form.matmul(p, sizes, tiles)
        if form.matmul
        else products_flops(form, tiles.area, p.d, p.d_v)
    )
    who = sizing if fixed is None else "given"
    return Exact(form.name, traffic, Occupancy(peak, p.M, enforced), sizes, problems * matmul, who)


@dataclass(frozen=True)
class Posed:
    """A form, and what of a problem is the same in all blocks: so a search through many looks at
    it once.
    """

    form: Form
    p: OneHead
    rule: Mask

    @classmethod
    def of(cls, form: Form, asked: Problem, own: Mapping[str, Any]) -> Posed:
        """Return a form at a problem, with options of its own. Raises ValueError for what it
        does not compute.
        """
        shape = asked.shape
        stored = asked.dtype.itemsize
        group = asked.group if asked.gqa == "grouped" else 1
        rule = as_mask(asked.mask, False, shape, (), own) if own else asked.mask
        sink = rule.sink
        rule = rule.without_sink() if rule.sink else rule
        masked = not isinstance(rule, All)
        backward = form.direction == "backward"
        if form.plain and (masked or asked.dropout_p):
            raise ValueError(
                f"{form.name!r} has neither mask nor dropout; 'flash' (Algorithm 2) has"
            )
        if rule.bias is not None and rule.bias.is_table and "P" in form.formulas:
            raise ValueError(
                f"{form.name!r} adds a bias in a pass of its own; expected Bias(table[buckets])"
            )
        learns = backward and rule.bias is not None
        if learns and not form.gives_dS:
            raise ValueError(
                f"{form.name!r} makes no gradient of a bias, backward; 'flash' (Algorithm 4) does"
            )
        capped = backward and cap_of(rule.scores) is not None
        if capped and not (form.gives_dS and "P" not in form.formulas):
            raise ValueError(
                f"{form.name!r} makes no gradient through a soft cap, backward; 'flash' (Algorithm "
                "4) does"
            )
        if sink is not None and (
            (form.sink or form.sink_of or None) is None or own.get("merge") == "tree"
        ):
            raise ValueError(
                f"{form.name!r}{', merged as a tree,' * ('merge' in own)} takes no sink; 'flash' "
                "(Algorithm 2) does"
            )
        dense = arrays_of(rule, group)
        dB = dense[-1]._replace(name="dB", itemsize=max(stored, 4)) if learns else None
        lengths = (group * shape.N_q, shape.N_k, shape.d, shape.d_v)
        dropout = bool(asked.dropout_p)
        of_mask = (dense, dropout, rule.tree is not None)
        sinks = 0 if sink is None else group
        return cls(
            form,
            OneHead(*lengths, asked.M, stored, masked, *of_mask, own, group, dB, capped, sinks),
            rule,
        )

    @classmethod
    def of_launch(
        cls, form: Form, asked: Problem, own: Mapping[str, Any], rows: Mask, head: Head, sunk: bool
    ) -> Posed:
        """Return a form at one launch of a run, which has been checked.

        rows  the mask for the launch's rows, those of a group of heads interleaved, without its
              sink
        head  which launch it is, as the mask may have arrays of each head's own
        sunk  whether there is a sink
        """
        group = asked.group if asked.gqa == "grouped" else 1
        backward = form.direction == "backward"
        stored = asked.dtype.itemsize
        dense = arrays_of(rows, 1, head)
        learns = None
        if backward and rows.bias is not None:
            learns = dense[-1]._replace(name="dB", itemsize=max(stored, 4))
        p = OneHead(
            N_q=group * asked.shape.N_q,
            N_k=asked.shape.N_k,
            d=asked.shape.d,
            d_v=asked.shape.d_v,
            M=asked.M,
            stored=stored,
            masked=not isinstance(rows, All),
            dense=dense,
            dropout=bool(asked.dropout_p),
            tree=rows.tree is not None,
            options=own,
            group=group,
            learns=learns,
            capped=backward and cap_of(rows.scores) is not None,
            sink=group if sunk else 0,
        )
        return cls(form, p, rows)

    @cached_property
    def live(self) -> Live:
        """The live tiles, of the largest blocks."""
        p = self.p
        return live_tiles(
            self.rule, p.N_q, p.N_k, Blocks(p.N_q, p.N_k, N_q=p.N_q, N_k=p.N_k), p.group
        )

    def tiles(self, sizes: Blocks) -> Tiles:
        """Return the tiles that are computed."""
        p = self.p
        skipping = "live" if self.form.live else self.p.options.get("block_mask")
        chosen: Chosen | None = None
        if isinstance(skipping, str):  # "live"
            chosen = self.live.cut(sizes.B_r, sizes.B_c)
        elif skipping is not None:
            chosen = listed(check_tiles(skipping, sizes, Shape(p.N_q, p.N_k, p.d, p.d_v)))
        return p.tiles(sizes.B_r, sizes.B_c, chosen)

    def accesses(self, B_r: int, B_c: int) -> int:
        """Return the accesses of one head: those of `exact`, sooner, as nothing else is counted."""
        sizes = _clipped(self.p, B_r, B_c)
        return self.form.accesses(self.p, sizes, self.tiles(sizes))

    def peak(self, B_r: int, B_c: int, M: int | None = None) -> int:
        """Return the most on chip where all tiles are computed; without a mask, that of `exact`.
        M: None, the problem's.
        """
        p = self.p if M is None or M == self.p.M else replace(self.p, M=M)
        sizes = _clipped(p, B_r, B_c)
        return _peak(self.form, p, sizes, p.tiles(sizes.B_r, sizes.B_c))


def _sizes(form: Form, p: OneHead, sizing: str, blocks: tuple[int, int] | None) -> Blocks:
    """Return line 1's blocks. Where d_v ≠ d, its bound d on B_r is ⌈(d + d_v)/2⌉."""
    width = ceil_div(p.d + p.d_v, 2)

    def of(rows: int) -> Blocks:
        found = form.asked(form.line_1, rows, width)
        if not isinstance(found, tuple) or len(found) != 2:
            raise ValueError(
                f"line_1 of Form {form.name!r} returned {shown(found)}; expected (B_r, B_c)"
            )
        return _clipped(p, *(form.whole("block size", size, 1) for size in found))

    def fits(rows: int) -> bool:
        sizes = of(rows)
        return _peak(form, p, sizes, p.tiles(sizes.B_r, sizes.B_c)) <= p.M

    if not is_one_of(sizing, ("paper", "fit")):
        raise NoClosedForm(
            f"no closed form for sizing {shown(sizing)}; known: 'paper', 'fit', or blocks=(B_r, "
            "B_c)"
        )
    if blocks is not None:
        return _clipped(p, *blocks)
    if sizing == "paper":
        return of(form.whole("number of rows", form.asked(form.rows, p.M, p.d, p.d_v), 1))
    longest = max(p.N_q, p.N_k)
    return of(max(most(fits, longest), 1))


def _peak(form: Form, p: OneHead, sizes: Blocks, tiles: Tiles) -> int:
    return form.whole("peak", form.asked(form.peak, p, sizes, tiles), 0)


def _clipped(p: OneHead, B_r: int, B_c: int) -> Blocks:
    return Blocks(B_r, B_c, N_q=p.N_q, N_k=p.N_k)

"""`exact`: what a run costs, by the closed form of its algorithm and direction."""

from __future__ import annotations

from typing import Any, Unpack

from flashsim.attention.arguments import check_blocks, check_flag, is_one_of, short_repr
from flashsim.attention.masks.agreement import check_agreement
from flashsim.attention.options import Options, check_options
from flashsim.attention.problem import Problem
from flashsim.attention.shapes import Blocks
from flashsim.support.sizes import Size, largest_that_fits
from flashsim.theory.closed_form import Exact, NoClosedForm
from flashsim.theory.form import Form, FormAtProblem, clipped, form_of, forms
from flashsim.theory.problem import OneHead, ceil_div


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

    For your own algorithm, `name` is its `flashsim.theory.Form`, or the algorithm, whose form must
    then be in the file that defines it (`flashsim.theory.form_of`).

    With `causal`, key j is attended to if j ≤ i + N_k − N_q: aligned at the bottom right.

    Blocks that do not fit raise no error here: `sram.peak` then exceeds an enforced
    `sram.capacity`, and a run would raise `SramOverflow`. "fit" blocks are chosen for all tiles, as
    a run chooses them, even if the block mask skips some.
    """
    form = form_of(name, direction)
    fixed = check_blocks(blocks)
    posed_problem = Problem.from_arguments(
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
    own = check_options(exact, options, repr(form.name), form, forms()["forward"])
    at_problem = FormAtProblem.of(form, posed_problem, own)
    sizes = _sizes(form, at_problem.p, sizing, fixed)
    shape = posed_problem.shape
    tiles = Blocks(sizes.B_r, sizes.B_c, N_q=shape.N_q, N_k=shape.N_k)
    check_agreement(posed_problem.mask, tiles, shape, ())
    enforced = fixed is not None or sizing == "fit"
    if enforce is not None:
        enforced = check_flag("enforce", enforce)
    return at_problem.cost(sizes, enforced, sizing if fixed is None else "given")


def _sizes(form: Form, p: OneHead, sizing: str, blocks: tuple[int, int] | None) -> Blocks:
    """Return line 1's blocks. Where d_v ≠ d, its bound d on B_r is ⌈(d + d_v)/2⌉."""
    width = ceil_div(p.d + p.d_v, 2)

    def of(rows: int) -> Blocks:
        sizes = form.call(form.line_1, rows, width)
        if not isinstance(sizes, tuple) or len(sizes) != 2:
            raise ValueError(
                f"line_1 of Form {form.name!r} returned {short_repr(sizes)}; expected (B_r, B_c)"
            )
        return clipped(p, *(form.whole("block size", size, 1) for size in sizes))

    def fits(rows: int) -> bool:
        sizes = of(rows)
        return form.peak_of(p, sizes, p.tiles(sizes.B_r, sizes.B_c)) <= p.M

    if not is_one_of(sizing, ("paper", "fit")):
        raise NoClosedForm(
            f"no closed form for sizing {short_repr(sizing)}; known: 'paper', 'fit', or "
            "blocks=(B_r, B_c)"
        )
    if blocks is not None:
        return clipped(p, *blocks)
    if sizing == "paper":
        return of(form.whole("number of rows", form.call(form.rows, p.M, p.d, p.d_v), 1))
    longest = max(p.N_q, p.N_k)
    return of(max(largest_that_fits(fits, longest), 1))

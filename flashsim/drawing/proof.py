"""The proof of a lower bound as a picture in a notebook: the run cut into phases, and the most that
one phase can do.

It is SVG in the page itself, and imports nothing to draw it. Lengths of a kind are to one scale.
"""

from __future__ import annotations

from html import escape
from math import isqrt, sqrt

from flashsim.theory.bounds.backward import BackwardBound
from flashsim.theory.bounds.certificate import most_terms
from flashsim.theory.bounds.forward import LowerBound

# pixels: the picture, a bar, and from one bar to the next
WIDE = 660
TALL = 18
GAP = 56
BOX = 96  # the longest edge of the box
ON_CHIP = "#0072B2"
READ = "#E69F00"
SHADES = ("#56B4E9", "#009E73", "#CC79A7")


def picture(bound: LowerBound | BackwardBound, best: int | None, name: str) -> str:
    """Return the proof at its sizes as SVG, and the schedule `name`, which moves `best`
    elements; "" without phases.
    """
    if bound.accesses > bound.phases:
        return ""
    scale = WIDE / max(bound.accesses, best or 0)
    parts = [*_phases(bound, scale)]
    if best is not None:
        parts += [
            _text(0, GAP + 12, f"{best:,}: {name}, {best / bound.accesses:.3f} × the bound"),
            _bar(0, GAP + 18, best * scale, "#999999"),
        ]
    y = 2.0 * GAP if best is not None else 1.0 * GAP
    parts += _one(bound, y)
    y += GAP
    if isinstance(bound, LowerBound) and not bound.a:
        depth, drawn = _box(bound, y)
        parts = [*parts, *drawn]
        y = y + depth
    else:
        parts = [
            *parts,
            *(_text(0, y + 12 + 18 * line, text) for line, text in enumerate(_in_words(bound))),
        ]
        y = y + 60
    style = "font:13px sans-serif;display:block;margin-top:8px"
    size = f'width="{WIDE}" height="{y:g}" viewBox="0 0 {WIDE} {y:g}" style="{style}"'
    words = 'role="img" aria-label="The proof at these sizes" fill="currentColor"'
    return f'<div style="overflow-x:auto"><svg {words} {size}>{"".join(parts)}</svg></div>'


def _phases(bound: LowerBound | BackwardBound, scale: float) -> list[str]:
    """Draw the bound as its phases: the first of Y charges, n − 2 of Y − M, and the last. What
    is too thin to see is not cut.
    """
    each = bound.Y - bound.M
    ends = [bound.Y + turn * (bound.Y - bound.M) for turn in range(bound.n - 1)]
    cuts = (
        [_line(end * scale, 18, end * scale, 18 + TALL) for end in ends]
        if each * scale >= 2
        else []
    )
    middle = f" + {bound.n - 2:,} × {each:,}" if bound.n > 2 else ""
    text = (
        f"{bound.accesses:,}, the bound: {bound.n:,} phases, {bound.Y:,}{middle} + {bound.last:,} "
        "accesses at least"
    )
    return [_text(0, 12, text), _bar(0, 18, bound.accesses * scale, READ), *cuts]


def _one(bound: LowerBound | BackwardBound, y: float) -> list[str]:
    """Draw what one phase touches."""
    part = WIDE * bound.M / bound.Y
    text = (
        f"One phase touches Y = {bound.Y:,} at most: M = {bound.M:,} on chip when it begins, "
        f"{bound.Y - bound.M:,} read or begun"
    )
    return [
        _text(0, y + 12, text),
        _bar(0, y + 18, part, ON_CHIP),
        _bar(part, y + 18, WIDE - part, READ),
    ]


def _box(bound: LowerBound, y: float) -> tuple[float, list[str]]:
    """Draw the box of most terms that Y elements allow, i across, k down, c into the page;
    return how tall it is, too.
    """
    if bound.Y**2 // (16 * bound.d) >= isqrt(bound.Y**3 // 27):  # of the two cases of G
        wide = bound.Y / (4 * bound.d)
        deep = float(bound.d)
        P = bound.Y**2 / (16 * bound.d**2)
        V = bound.Y / 4
        origin = f"made of {bound.Y / 4:,.0f} entries of Q and as many of K"
    else:
        wide = deep = sqrt(bound.Y / 3)
        P = V = bound.Y / 3
        origin = "read or on chip, as S is kept"
    side = BOX * wide / max(wide, deep)
    back = BOX * deep / max(wide, deep) / 2
    left = 4.0
    top = y + 8 + back
    right = left + side
    low = top + side
    faces = (
        [(left, top), (right, top), (right, low), (left, low)],
        [(right, top), (right + back, top - back), (right + back, low - back), (right, low)],
        [(left, top), (left + back, top - back), (right + back, top - back), (right, top)],
    )
    drawn = [
        (
            f'<polygon points="{" ".join(f"{x:.1f},{down:.1f}" for x, down in face)}" '
            f'fill="{shade}" stroke="currentColor"/>'
        )
        for face, shade in zip(faces, SHADES, strict=True)
    ]
    text = (
        (SHADES[0], f"front (i, k): |P| = {P:,.0f}, {origin}"),
        (SHADES[1], f"side (k, c): |V| = {V:,.0f}"),
        (SHADES[2], f"top (i, c): |O| = {V:,.0f}"),
        (
            "none",
            (
                f"{wide:,.0f} × {wide:,.0f} × {deep:,.0f}: √(|P|·|V|·|O|), so "
                f"{most_terms(bound.d, bound.Y):,} products at most"
            ),
        ),
        ("none", f"{bound.pairs * bound.d_v:,} products P_ik V_kc are needed: {bound.n:,} phases"),
    )
    beside = 4 + BOX * 1.5 + 28
    for line, (shade, words) in enumerate(text):
        down = y + 20 + 24 * line
        drawn += [f'<rect x="{beside}" y="{down - 11}" width="12" height="12" fill="{shade}"/>']
        drawn += [_text(beside + (20 if shade != "none" else 0), down, words)]
    return max(side + back + 16, 24 * len(text) + 8), drawn


def _in_words(bound: LowerBound | BackwardBound) -> tuple[str, str]:
    """Say what one phase can do where two or three products share what it touches, and no one
    box is all of it.
    """
    if isinstance(bound, BackwardBound):
        most = isqrt(bound.H)
        needed = bound.pairs * (2 * bound.d + bound.d_v)
        what = "products for dQ, dK and dV together"
    else:
        most = bound.H
        needed = bound.pairs * (bound.a * bound.d + bound.b * bound.d_v)
        what = f"points, {bound.a} for a product of QKᵀ and {bound.b} for one of PV"
    return f"So it has {most:,} {what} at most;", f"{needed:,} are needed: {bound.n:,} phases."


def _bar(x: float, y: float, width: float, fill: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{TALL}" fill="{fill}"/>'


def _line(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<path d="M{x:.1f} {y:g}L{to_x:.1f} {to_y:g}" stroke="currentColor"/>'


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x:g}" y="{y:g}">{escape(words)}</text>'

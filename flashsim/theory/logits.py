"""What the forms of cut cross-entropy share: their block sizes."""

from __future__ import annotations

from flashsim.records import Sizes


def logit_rows(M: int, p: Sizes) -> int:
    """Return ⌈M/4d⌉."""
    return -(-M // (4 * p.d))


def x_line_1(rows: int, p: Sizes) -> tuple[int, int]:
    """Return (B_r, B_c)."""
    return rows, min(rows, p.d)


def e_line_1(rows: int, p: Sizes) -> tuple[int, int]:
    """Return (B_r, B_c)."""
    return min(rows, p.d), rows

"""What the forms of cut cross-entropy share: their operands and block sizes."""

from __future__ import annotations

from collections.abc import Mapping

from flashsim.matrices import Kind
from flashsim.records import Role, Sizes

GIVEN: Mapping[str, tuple[Role, Kind]] = {
    "X": ("input", Kind("N", "d")), "E": ("input", Kind("v", "d")), "y": ("input", Kind("N", "1", "words"))
}  # fmt: skip
PASSED: Mapping[str, tuple[Role, Kind]] = {
    **GIVEN, "L": ("input", Kind("N", "1", "chip")), "g": ("input", Kind("N", "1"))
}  # fmt: skip
"""Operands; of a gradient."""


def logit_rows(M: int, p: Sizes) -> int:
    """Return ⌈M/4d⌉."""
    return -(-M // (4 * p.d))


def x_line_1(rows: int, p: Sizes) -> tuple[int, int]:
    """Return (B_r, B_c)."""
    return rows, min(rows, p.d)


def e_line_1(rows: int, p: Sizes) -> tuple[int, int]:
    """Return (B_r, B_c)."""
    return min(rows, p.d), rows

"""Rows of Z outermost, w = d + e.

reads   X: T_c·N·d   Z: n·d   V: n·e   Y: T_c·N·e
writes  Y: N·e zeros, T_c·N·e
peak    (b_r + b_c)w + b_r·b_c: X_i Y_i Z_j V_j, K_ij
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashsim.matrices import Kind
from flashsim.records import Sizes
from flashsim.theory.kernel_products import POINTS, kernel_rows, z_line_1
from flashsim.theory.problem import ceil_div
from flashsim.theory.program import Moved, ProgramForm


def traffic(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> Mapping[str, Moved]:
    """As above."""
    T_c = ceil_div(p.n, b.B_c)
    return {
        "X": Moved(reads=T_c * p.N * p.d),
        "Z": Moved(reads=p.n * p.d),
        "V": Moved(reads=p.n * p.e),
        "Y": Moved(reads=T_c * p.N * p.e, writes=T_c * p.N * p.e, init=p.N * p.e),
    }


def peak(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """The first tile's, whose blocks are whole."""
    return (b.B_r + b.B_c) * (p.d + p.e) + b.B_r * b.B_c


FORM = ProgramForm(
    name="kernel_z_outer",
    arrays={**POINTS, "Y": ("output", Kind("N", "e"))},
    blocks={"B_r": "N", "B_c": "n"},
    line_1=z_line_1,
    rows=kernel_rows,
    traffic=traffic,
    peak=peak,
    matmul=lambda p, b, options: 2 * p.N * p.n * p.e,
)

"""A log-sum-exp, rows of Z outermost.

reads   X: T_c·N·d   Z: n·d   V: n   Y: T_c·N
writes  Y: N of −∞, T_c·N
peak    (b_r + b_c)(d + 1) + b_r·b_c: X_i Y_i Z_j V_j, S_ij
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashsim.matrices import Kind
from flashsim.records import Sizes
from flashsim.theory.kernel_products import WEIGHTED, kernel_rows, z_line_1
from flashsim.theory.problem import ceil_div
from flashsim.theory.program import Moved, ProgramForm


def traffic(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> Mapping[str, Moved]:
    """As above."""
    T_c = ceil_div(p.n, b.B_c)
    return {
        "X": Moved(reads=T_c * p.N * p.d),
        "Z": Moved(reads=p.n * p.d),
        "V": Moved(reads=p.n),
        "Y": Moved(reads=T_c * p.N, writes=T_c * p.N, init=p.N),
    }


def peak(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """The first tile's, whose blocks are whole."""
    return (b.B_r + b.B_c) * (p.d + 1) + b.B_r * b.B_c


FORM = ProgramForm(
    name="kernel_logsumexp_z_outer",
    arrays={**WEIGHTED, "Y": ("output", Kind("N", "1", "chip"))},
    blocks={"B_r": "N", "B_c": "n"},
    line_1=z_line_1,
    rows=kernel_rows,
    traffic=traffic,
    peak=peak,
    matmul=lambda p, b, options: 0,
)

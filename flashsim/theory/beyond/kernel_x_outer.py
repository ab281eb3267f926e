"""Rows of X outermost, w = d + e.

peak    (b_r + b_c)w + b_r·b_c: X_i Y_i Z_j V_j, K_ij
"""

from __future__ import annotations

from flashsim.matrices import Kind
from flashsim.theory.kernel_products import POINTS, kernel_rows, x_line_1
from flashsim.theory.program import Moved, ProgramForm

FORM = ProgramForm(
    name="kernel_x_outer",
    arrays={**POINTS, "Y": ("output", Kind("N", "e"))},
    blocks={"B_r": "N", "B_c": "n"},
    line_1=x_line_1,
    rows=kernel_rows,
    traffic=lambda p, b, options: {
        "X": Moved(reads=p.N * p.d),
        "Z": Moved(reads=b.T_r * p.n * p.d),
        "V": Moved(reads=b.T_r * p.n * p.e),
        "Y": Moved(writes=p.N * p.e),
    },
    peak=lambda p, b, options: (b.B_r + b.B_c) * (p.d + p.e) + b.B_r * b.B_c,
    matmul=lambda p, b, options: 2 * p.N * p.n * p.e,
)

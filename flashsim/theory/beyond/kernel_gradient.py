"""The gradient to X.

peak    b_r(2d + e) + b_c(d + e) + b_r·b_c: X_i dX_i dY_i, Z_j V_j, dK_ij
"""

from __future__ import annotations

from flashsim.matrices import Kind
from flashsim.theory.kernel_products import POINTS, kernel_rows, x_line_1
from flashsim.theory.program import Moved, ProgramForm

FORM = ProgramForm(
    name="kernel_gradient",
    arrays={**POINTS, "dY": ("input", Kind("N", "e")), "dX": ("output", Kind("N", "d"))},
    blocks={"B_r": "N", "B_c": "n"},
    line_1=x_line_1,
    rows=kernel_rows,
    traffic=lambda p, b, options: {
        "X": Moved(reads=p.N * p.d),
        "Z": Moved(reads=b.T_r * p.n * p.d),
        "V": Moved(reads=b.T_r * p.n * p.e),
        "dY": Moved(reads=p.N * p.e),
        "dX": Moved(writes=p.N * p.d),
    },
    peak=lambda p, b, options: b.B_r * (2 * p.d + p.e) + b.B_c * (p.d + p.e) + b.B_r * b.B_c,
    matmul=lambda p, b, options: 2 * p.N * p.n * p.e,
)

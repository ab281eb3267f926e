"""The matrix K in HBM.

peak    b_r·b_c + (b_r + b_c)·max(d, e): K_ij with X_i Z_j, and then with Y_i V_j
"""

from __future__ import annotations

from flashsim.matrices import Kind
from flashsim.theory.kernel_products import POINTS, kernel_rows, x_line_1
from flashsim.theory.program import Moved, ProgramForm

FORM = ProgramForm(
    name="kernel_materialised",
    arrays={**POINTS, "Y": ("output", Kind("N", "e")), "K": ("extra", Kind("N", "n"))},
    blocks={"B_r": "N", "B_c": "n"},
    line_1=x_line_1,
    rows=kernel_rows,
    traffic=lambda p, b, options: {
        "X": Moved(reads=p.N * p.d),
        "Z": Moved(reads=b.T_r * p.n * p.d),
        "V": Moved(reads=b.T_r * p.n * p.e),
        "K": Moved(reads=p.N * p.n, writes=p.N * p.n),
        "Y": Moved(writes=p.N * p.e),
    },
    peak=lambda p, b, options: (b.B_r + b.B_c) * max(p.d, p.e) + b.B_r * b.B_c,
    matmul=lambda p, b, options: 2 * p.N * p.n * p.e,
)

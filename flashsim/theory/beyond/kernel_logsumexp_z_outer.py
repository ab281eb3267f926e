"""A log-sum-exp, rows of Z outermost.

peak    (b_r + b_c)(d + 1) + b_r·b_c: X_i Y_i Z_j V_j, S_ij
"""

from __future__ import annotations

from flashsim.matrices import Kind
from flashsim.theory.kernel_products import WEIGHTED, kernel_rows, z_line_1
from flashsim.theory.program import Moved, ProgramForm

FORM = ProgramForm(
    name="kernel_logsumexp_z_outer",
    arrays={**WEIGHTED, "Y": ("output", Kind("N", "1", "chip"))},
    blocks={"B_r": "N", "B_c": "n"},
    line_1=z_line_1,
    rows=kernel_rows,
    traffic=lambda p, b, options: {
        "X": Moved(reads=b.T_c * p.N * p.d),
        "Z": Moved(reads=p.n * p.d),
        "V": Moved(reads=p.n),
        "Y": Moved(reads=b.T_c * p.N, writes=b.T_c * p.N, init=p.N),
    },
    peak=lambda p, b, options: (b.B_r + b.B_c) * (p.d + 1) + b.B_r * b.B_c,
    matmul=lambda p, b, options: 0,
)

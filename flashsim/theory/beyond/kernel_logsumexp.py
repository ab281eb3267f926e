"""A log-sum-exp, rows of X outermost.

peak    b_r·d + b_c(d + 1) + b_r·b_c + 3b_r: X_i, Z_j V_j, S_ij, ℓ_i m_i m_i^new
"""

from __future__ import annotations

from flashsim.matrices import Kind
from flashsim.theory.kernel_products import WEIGHTED, kernel_rows, x_line_1
from flashsim.theory.program import Moved, ProgramForm

FORM = ProgramForm(
    name="kernel_logsumexp",
    arrays={**WEIGHTED, "Y": ("output", Kind("N", "1", "chip"))},
    blocks={"B_r": "N", "B_c": "n"},
    line_1=x_line_1,
    rows=kernel_rows,
    traffic=lambda p, b, options: {
        "X": Moved(reads=p.N * p.d),
        "Z": Moved(reads=b.T_r * p.n * p.d),
        "V": Moved(reads=b.T_r * p.n),
        "Y": Moved(writes=p.N),
    },
    peak=lambda p, b, options: b.B_r * (p.d + 3) + b.B_c * (p.d + 1) + b.B_r * b.B_c,
    matmul=lambda p, b, options: 0,
)

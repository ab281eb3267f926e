"""Cut cross-entropy, rows of X outermost.

peak    b_r(d + 1) + b_c·d + b_r·b_c + 4b_r: X_i y_i, E_j, S_ij, ℓ_i m_i c_i m_i^new
"""

from __future__ import annotations

from flashsim.matrices import Kind
from flashsim.theory.logits import GIVEN, logit_rows, x_line_1
from flashsim.theory.program import Moved, ProgramForm

FORM = ProgramForm(
    name="cut_cross_entropy",
    arrays={**GIVEN, "loss": ("output", Kind("N", "1", "chip")), "L": ("output", Kind("N", "1", "chip"))},
    blocks={"B_r": "N", "B_c": "v"},
    line_1=x_line_1,
    rows=logit_rows,
    traffic=lambda p, b, options: {
        "X": Moved(reads=p.N * p.d),
        "E": Moved(reads=b.T_r * p.v * p.d),
        "y": Moved(reads=p.N),
        "loss": Moved(writes=p.N),
        "L": Moved(writes=p.N),
    },
    peak=lambda p, b, options: b.B_r * (p.d + 5) + b.B_c * p.d + b.B_r * b.B_c,
    matmul=lambda p, b, options: 2 * p.N * p.v * p.d,
)

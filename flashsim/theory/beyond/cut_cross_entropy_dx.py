"""Cut cross-entropy's gradient to X, rows of X outermost.

peak    b_r(2d + 3) + b_c·d + b_r·b_c: X_i dX_i y_i L_i g_i, E_j, P_ij
"""

from __future__ import annotations

from flashsim.matrices import Kind
from flashsim.theory.logits import PASSED, logit_rows, x_line_1
from flashsim.theory.program import Moved, ProgramForm

FORM = ProgramForm(
    name="cut_cross_entropy_dx",
    arrays={**PASSED, "dX": ("output", Kind("N", "d"))},
    blocks={"B_r": "N", "B_c": "v"},
    line_1=x_line_1,
    rows=logit_rows,
    traffic=lambda p, b, options: {
        "X": Moved(reads=p.N * p.d),
        "E": Moved(reads=b.T_r * p.v * p.d),
        **dict.fromkeys(("y", "L", "g"), Moved(reads=p.N)),
        "dX": Moved(writes=p.N * p.d),
    },
    peak=lambda p, b, options: b.B_r * (2 * p.d + 3) + b.B_c * p.d + b.B_r * b.B_c,
    matmul=lambda p, b, options: 4 * p.N * p.v * p.d,
)

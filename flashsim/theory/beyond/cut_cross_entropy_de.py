"""Cut cross-entropy's gradient to E, rows of E outermost.

peak    2b_c·d + b_r(d + 3) + b_r·b_c: E_j dE_j, X_i y_i L_i g_i, P_ij
"""

from __future__ import annotations

from flashsim.matrices import Kind
from flashsim.theory.logits import PASSED, e_line_1, logit_rows
from flashsim.theory.program import Moved, ProgramForm

FORM = ProgramForm(
    name="cut_cross_entropy_de",
    arrays={**PASSED, "dE": ("output", Kind("v", "d"))},
    blocks={"B_r": "N", "B_c": "v"},
    line_1=e_line_1,
    rows=logit_rows,
    traffic=lambda p, b, options: {
        "X": Moved(reads=b.T_c * p.N * p.d),
        "E": Moved(reads=p.v * p.d),
        **dict.fromkeys(("y", "L", "g"), Moved(reads=b.T_c * p.N)),
        "dE": Moved(writes=p.v * p.d),
    },
    peak=lambda p, b, options: 2 * b.B_c * p.d + b.B_r * (p.d + 3) + b.B_r * b.B_c,
    matmul=lambda p, b, options: 4 * p.N * p.v * p.d,
)

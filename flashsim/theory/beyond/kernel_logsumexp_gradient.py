"""The gradient of a log-sum-exp to X.

peak    2b_r(d + 1) + b_c(d + 1) + b_r·b_c: X_i dX_i Y_i dY_i, Z_j V_j, S_ij
"""

from __future__ import annotations

from flashsim.matrices import Kind
from flashsim.theory.kernel_products import WEIGHTED, kernel_rows, x_line_1
from flashsim.theory.program import Moved, ProgramForm

FORM = ProgramForm(
    name="kernel_logsumexp_gradient",
    arrays={
        **WEIGHTED,
        "Y": ("input", Kind("N", "1", "chip")),
        "dY": ("input", Kind("N", "1")),
        "dX": ("output", Kind("N", "d")),
    },
    blocks={"B_r": "N", "B_c": "n"},
    line_1=x_line_1,
    rows=kernel_rows,
    traffic=lambda p, b, options: {
        "X": Moved(reads=p.N * p.d),
        "Z": Moved(reads=b.T_r * p.n * p.d),
        "V": Moved(reads=b.T_r * p.n),
        "Y": Moved(reads=p.N),
        "dY": Moved(reads=p.N),
        "dX": Moved(writes=p.N * p.d),
    },
    peak=lambda p, b, options: (2 * b.B_r + b.B_c) * (p.d + 1) + b.B_r * b.B_c,
    matmul=lambda p, b, options: 0,
)

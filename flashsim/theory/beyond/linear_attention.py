"""Linear attention in chunks of C, its state on chip.

peak    d·e + 2c(d + e) + c²: S, Q_i K_i V_i O_i, A_i

The compulsory traffic, at every N and M that fit.
"""

from __future__ import annotations

from flashsim.matrices import Kind
from flashsim.theory.linear_chunks import chunk_line_1, chunk_products, chunk_rows
from flashsim.theory.program import QKV, Moved, ProgramForm

FORM = ProgramForm(
    name="linear_attention",
    arrays={**QKV, "O": ("output", Kind("N", "e"))},
    blocks={"C": "N"},
    line_1=chunk_line_1,
    rows=chunk_rows,
    traffic=lambda p, b, options: {
        "Q": Moved(reads=p.N * p.d),
        "K": Moved(reads=p.N * p.d),
        "V": Moved(reads=p.N * p.e),
        "O": Moved(writes=p.N * p.e),
    },
    peak=lambda p, b, options: p.d * p.e + 2 * b.C * (p.d + p.e) + b.C**2,
    matmul=chunk_products,
)

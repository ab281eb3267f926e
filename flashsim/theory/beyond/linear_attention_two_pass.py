"""Linear attention in two passes over T = ⌈N/C⌉ chunks.

peak    2d·e + 2c(d + e) + c²: S^new, S_i, Q_i K_i V_i O_i, A_i
"""

from __future__ import annotations

from flashsim.matrices import Kind
from flashsim.theory.linear_chunks import chunk_line_1, chunk_products, chunk_rows
from flashsim.theory.program import QKV, Moved, ProgramForm

FORM = ProgramForm(
    name="linear_attention_two_pass",
    arrays={**QKV, "S": ("extra", Kind("T·d", "e", "chip")), "O": ("output", Kind("N", "e"))},
    blocks={"C": "N"},
    line_1=chunk_line_1,
    rows=lambda M, p: chunk_rows(M - p.d * p.e, p),
    traffic=lambda p, b, options: {
        "Q": Moved(reads=p.N * p.d),
        "K": Moved(reads=2 * p.N * p.d),
        "V": Moved(reads=2 * p.N * p.e),
        "S": Moved(reads=b.T * p.d * p.e, writes=b.T * p.d * p.e),
        "O": Moved(writes=p.N * p.e),
    },
    peak=lambda p, b, options: 2 * p.d * p.e + 2 * b.C * (p.d + p.e) + b.C**2,
    matmul=chunk_products,
)

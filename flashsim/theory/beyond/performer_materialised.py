"""Performer, log φ(Q) as A and log φ(K) as G in HBM.

peak    the largest of, loop by loop, (b_f + b_c)d + b_f·b_c: W_f K_j, G_fj,   (b_r + b_g)d + b_r·b_g: Q_i W_g, A_ig,
        (b_f + b_c)e + b_f·b_c + 3b_f: S_f V_j, G_fj, ℓ_f m_f m_f^new,   and (b_r + b_g)e + b_r·b_g + 3b_r + b_g
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashsim.matrices import Kind
from flashsim.records import Sizes
from flashsim.theory.beyond.performer import line_1
from flashsim.theory.kernel_products import kernel_rows
from flashsim.theory.program import QKV, Moved, ProgramForm


def peak(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    keys, queries = b.B_f * b.B_c, b.B_r * b.B_g
    return max(
        (b.B_f + b.B_c) * p.d + keys,
        (b.B_r + b.B_g) * p.d + queries,
        (b.B_f + b.B_c) * p.e + keys + 3 * b.B_f,
        (b.B_r + b.B_g) * p.e + queries + 3 * b.B_r + b.B_g,
    )


FORM = ProgramForm(
    name="performer_materialised",
    arrays={
        **QKV,
        "W": ("input", Kind("k", "d")),
        "G": ("extra", Kind("k", "N")),
        "A": ("extra", Kind("N", "k")),
        "S": ("extra", Kind("k", "e")),
        "z": ("extra", Kind("k", "1", "chip")),
        "O": ("output", Kind("N", "e")),
    },
    blocks={"B_r": "N", "B_c": "N", "B_f": "k", "B_g": "k"},
    line_1=line_1,
    rows=kernel_rows,
    traffic=lambda p, b, options: {
        "Q": Moved(reads=p.N * p.d),
        "K": Moved(reads=b.T_f * p.N * p.d),
        "V": Moved(reads=b.T_f * p.N * p.e),
        "W": Moved(reads=(b.T_r + 1) * p.k * p.d),
        "G": Moved(reads=p.N * p.k, writes=p.N * p.k),
        "A": Moved(reads=p.N * p.k, writes=p.N * p.k),
        "S": Moved(reads=b.T_r * p.k * p.e, writes=p.k * p.e),
        "z": Moved(reads=b.T_r * p.k, writes=p.k),
        "O": Moved(writes=p.N * p.e),
    },
    peak=peak,
    matmul=lambda p, b, options: 4 * p.k * p.N * (p.d + p.e),
)

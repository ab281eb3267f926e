"""Performer, not causal, k features.

peak    the larger of (b_f + b_c)(d + e) + b_f·b_c + 3b_f: W_f S_f K_j V_j, G_fj, ℓ_f m_f m_f^new,
        and of (b_r + b_g)(d + e) + b_r·b_g + 3b_r + b_g: Q_i O_i W_g S_g, G_ig, ℓ_i m_i m_i^new, z_g
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashsim.matrices import Kind
from flashsim.records import Sizes
from flashsim.theory.kernel_products import kernel_rows
from flashsim.theory.program import QKV, Moved, ProgramForm


def line_1(rows: int, p: Sizes) -> tuple[int, int, int, int]:
    return rows, min(rows, p.d), rows, min(rows, p.d)


def peak(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    keys = (b.B_f + b.B_c) * (p.d + p.e) + b.B_f * b.B_c + 3 * b.B_f
    queries = (b.B_r + b.B_g) * (p.d + p.e) + b.B_r * b.B_g + 3 * b.B_r + b.B_g
    return max(keys, queries)


FORM = ProgramForm(
    name="performer",
    arrays={
        **QKV,
        "W": ("input", Kind("k", "d")),
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
        "S": Moved(reads=b.T_r * p.k * p.e, writes=p.k * p.e),
        "z": Moved(reads=b.T_r * p.k, writes=p.k),
        "O": Moved(writes=p.N * p.e),
    },
    peak=peak,
    matmul=lambda p, b, options: 4 * p.k * p.N * (p.d + p.e),
)

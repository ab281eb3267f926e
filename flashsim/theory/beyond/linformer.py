"""Linformer, forward, E and F of k rows.

peak    the larger of (b_e + b_c)·max(d, e) + b_e·b_c: K^low_a K_j, or V^low_a V_j, and a tile of E or F,
        and of (b_r + b_k)(d + e) + b_r·b_k + 3b_r: Q_i O_i K^low_b V^low_b, S_ib, ℓ_i m_i m_i^new
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashsim.matrices import Kind
from flashsim.records import Sizes
from flashsim.theory.kernel_products import kernel_rows
from flashsim.theory.problem import ceil_div
from flashsim.theory.program import QKV, Moved, ProgramForm


def line_1(rows: int, p: Sizes) -> tuple[int, int, int, int]:
    return rows, ceil_div(p.d, 2), 2 * rows, min(rows, p.d)


def peak(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    mixing = (b.B_e + b.B_c) * max(p.d, p.e) + b.B_e * b.B_c
    attending = (b.B_r + b.B_k) * (p.d + p.e) + b.B_r * b.B_k + 3 * b.B_r
    return max(mixing, attending)


FORM = ProgramForm(
    name="linformer",
    arrays={
        **QKV,
        "E": ("input", Kind("k", "N")),
        "F": ("input", Kind("k", "N")),
        "K_low": ("extra", Kind("k", "d")),
        "V_low": ("extra", Kind("k", "e")),
        "O": ("output", Kind("N", "e")),
        "L": ("extra", Kind("N", "1", "chip")),
    },
    blocks={"B_r": "N", "B_c": "N", "B_e": "k", "B_k": "k"},
    line_1=line_1,
    rows=kernel_rows,
    traffic=lambda p, b, options: {
        "Q": Moved(reads=p.N * p.d),
        "K": Moved(reads=b.T_e * p.N * p.d),
        "V": Moved(reads=b.T_e * p.N * p.e),
        "E": Moved(reads=p.k * p.N),
        "F": Moved(reads=p.k * p.N),
        "K_low": Moved(reads=b.T_r * p.k * p.d, writes=p.k * p.d),
        "V_low": Moved(reads=b.T_r * p.k * p.e, writes=p.k * p.e),
        "O": Moved(writes=p.N * p.e),
        "L": Moved(writes=p.N),
    },
    peak=peak,
    matmul=lambda p, b, options: 4 * p.k * p.N * (p.d + p.e),
)

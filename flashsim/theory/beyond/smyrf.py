"""SMYRF, h rounds, T = ⌈N/C⌉ clusters of C rows, r in the last.

peak    C(2d + 2e + 4) + C²: q_i k_i, Q_i K_i V_i, S_i, m_i ℓ_i, O_i
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashsim.matrices import Kind
from flashsim.records import Sizes
from flashsim.theory.problem import ceil_div
from flashsim.theory.program import QKV, Moved, ProgramForm


def matmul(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """2(d + e) for each pair of a query and a key of one cluster."""
    T = ceil_div(p.N, b.C)
    return 2 * p.h * ((T - 1) * b.C**2 + (p.N - (T - 1) * b.C) ** 2) * (p.d + p.e)


FORM = ProgramForm(
    name="smyrf",
    arrays={
        **QKV,
        "order_Q": ("input", Kind("h", "N", "index")),
        "order_K": ("input", Kind("h", "N", "index")),
        "O_parts": ("extra", Kind("h·N", "e")),
        "L_parts": ("extra", Kind("h·N", "1", "chip")),
        "O": ("output", Kind("N", "e")),
    },
    blocks={"C": "N"},
    line_1=None,
    rows=None,
    traffic=lambda p, b, options: {
        "Q": Moved(reads=p.h * p.N * p.d),
        "K": Moved(reads=p.h * p.N * p.d),
        "V": Moved(reads=p.h * p.N * p.e),
        "order_Q": Moved(reads=p.h * p.N),
        "order_K": Moved(reads=p.h * p.N),
        "O_parts": Moved(reads=p.h * p.N * p.e, writes=p.h * p.N * p.e),
        "L_parts": Moved(reads=p.h * p.N, writes=p.h * p.N),
        "O": Moved(writes=p.N * p.e),
    },
    peak=lambda p, b, options: b.C * (2 * p.d + 2 * p.e + 4 + b.C),
    matmul=matmul,
)

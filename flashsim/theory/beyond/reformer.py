"""Reformer, h rounds, T = ⌈N/C⌉ clusters of C rows, r in the last; S = N + (T − 1)C keys a round, all but the last cluster twice.

peak    c rows attend to themselves: c(d + h + e + 3) + c(d + e + 1) + c², r_i Q_i H_i O_i ℓ_i m_i, K_i V_i m_i^new, S_ii;
        or to the C rows before: c(d + h + e + 3) + C(d + e + h + 1) + c·C + c, r_j K_j V_j H_j, S_ij, m_i^new
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashsim.matrices import Kind
from flashsim.records import Sizes
from flashsim.theory.problem import ceil_div
from flashsim.theory.program import QKV, Moved, ProgramForm


def traffic(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> Mapping[str, Moved]:
    S = p.N + (b.T - 1) * b.C
    return {
        "Q": Moved(reads=p.h * p.N * p.d),
        "K": Moved(reads=p.h * S * p.d),
        "V": Moved(reads=p.h * S * p.e),
        "order": Moved(reads=p.h * S),
        "home": Moved(reads=p.h * S * p.h),
        "O_parts": Moved(reads=p.h * p.N * p.e, writes=p.h * p.N * p.e),
        "L_parts": Moved(reads=p.h * p.N, writes=p.h * p.N),
        "O": Moved(writes=p.N * p.e),
    }


def peak(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """The first cluster's, or the second's, which is whole if there is a third."""
    T, row = ceil_div(p.N, b.C), p.d + p.h + p.e + 3
    own = b.C * (row + p.d + p.e + 1 + b.C)
    if T == 1:
        return own
    c = b.C if T > 2 else p.N - b.C
    return max(own, c * (row + 1) + b.C * (p.d + p.e + p.h + 1 + c))


def matmul(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """2(d + e) for each pair of rows in one cluster, and of one and the cluster before."""
    T = ceil_div(p.N, b.C)
    r = p.N - (T - 1) * b.C
    pairs = (T - 1) * b.C**2 + r**2 + (((T - 2) * b.C + r) * b.C if T > 1 else 0)
    return 2 * p.h * pairs * (p.d + p.e)


FORM = ProgramForm(
    name="reformer",
    arrays={
        **QKV,
        "order": ("input", Kind("h", "N", "index")),
        "home": ("input", Kind("N", "h", "words")),
        "O_parts": ("extra", Kind("h·N", "e")),
        "L_parts": ("extra", Kind("h·N", "1", "chip")),
        "O": ("output", Kind("N", "e")),
    },
    blocks={"C": "N"},
    line_1=None,
    rows=None,
    traffic=traffic,
    peak=peak,
    matmul=matmul,
)

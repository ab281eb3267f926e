"""Cut cross-entropy, rows of X outermost.

reads   X: N·d   y: N   E: T_r·v·d
writes  loss: N   L: N
peak    b_r(d + 1) + b_c·d + b_r·b_c + 4b_r: X_i y_i, E_j, S_ij, ℓ_i m_i c_i m_i^new
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashsim.matrices import Kind
from flashsim.records import Sizes
from flashsim.theory.logits import GIVEN, logit_rows, x_line_1
from flashsim.theory.problem import ceil_div
from flashsim.theory.program import Moved, ProgramForm


def traffic(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> Mapping[str, Moved]:
    """As above."""
    T_r = ceil_div(p.N, b.B_r)
    return {
        "X": Moved(reads=p.N * p.d),
        "E": Moved(reads=T_r * p.v * p.d),
        "y": Moved(reads=p.N),
        "loss": Moved(writes=p.N),
        "L": Moved(writes=p.N),
    }


def peak(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """The first tile's, whose blocks are whole."""
    return b.B_r * (p.d + 5) + b.B_c * p.d + b.B_r * b.B_c


FORM = ProgramForm(
    name="cut_cross_entropy",
    arrays={**GIVEN, "loss": ("output", Kind("N", "1", "chip")), "L": ("output", Kind("N", "1", "chip"))},
    blocks={"B_r": "N", "B_c": "v"},
    line_1=x_line_1,
    rows=logit_rows,
    traffic=traffic,
    peak=peak,
    matmul=lambda p, b, options: 2 * p.N * p.v * p.d,
)

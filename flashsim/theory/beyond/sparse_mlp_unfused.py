"""A sparse MLP in two passes of rows. nnz: elements of a weight's live blocks.

reads   X: N·d   W1: T_r·nnz₁   H: N·f   W2: T_r·nnz₂
writes  H: N·f   Y: N·o
peak    the more of b_r·d + b_f(b_r + b_d), X_i H_ij W1_cj, and b_r·o + b_f(b_r + b_o), Y_i H_ij W2_jk; without b_d, b_o where
        none is live
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashsim.matrices import Kind
from flashsim.records import Sizes
from flashsim.theory.mlp import ARRAYS, live, products, row_line_1, unfused_rows, widest
from flashsim.theory.program import Moved, ProgramForm


def traffic(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> Mapping[str, Moved]:
    at = live(p, b, options)
    return {
        "X": Moved(reads=p.N * p.d),
        "W1": Moved(reads=b.T_r * int(at.nnz1.sum())),
        "H": Moved(reads=p.N * p.f, writes=p.N * p.f),
        "W2": Moved(reads=b.T_r * int(at.nnz2.sum())),
        "Y": Moved(writes=p.N * p.o),
    }


def peak(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """The first row of blocks', which is whole."""
    at = live(p, b, options)
    first = b.B_r * p.d + int((at.f * (b.B_r + widest(at.M1, at.d))).max())
    return max(first, b.B_r * p.o + int((at.f * (b.B_r + widest(at.M2.T, at.o))).max()))


FORM = ProgramForm(
    name="sparse_mlp_unfused",
    arrays={**ARRAYS, "H": ("extra", Kind("N", "f"))},
    blocks={"B_r": "N", "B_d": "d", "B_f": "f", "B_o": "o"},
    line_1=row_line_1,
    rows=unfused_rows,
    traffic=traffic,
    peak=peak,
    matmul=products,
)

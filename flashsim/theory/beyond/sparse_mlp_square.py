"""A sparse MLP in two passes of square tiles. nnz: elements of a weight's live blocks.

reads   X: N·Σ_j d_j   W1: T_r·nnz₁   H: N·Σ_k f_k   W2: T_r·nnz₂; d_j are the live rows of W1 in block j of f, f_k those of
        W2 in block k of o
writes  H: N·f   Y: N·o
peak    the more of b_r·b_f + b_r + b_f and b_r·b_o + b_r + b_o: a tile, a column and a row; the tile alone where none is live
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashsim.matrices import Kind
from flashsim.records import Sizes
from flashsim.theory.mlp import ARRAYS, live, products, square_line_1, square_rows
from flashsim.theory.program import Moved, ProgramForm


def traffic(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> Mapping[str, Moved]:
    at = live(p, b, options)
    return {
        "X": Moved(reads=p.N * int(at.columns.sum())),
        "W1": Moved(reads=b.T_r * int(at.nnz1.sum())),
        "H": Moved(reads=p.N * int((at.f @ at.M2).sum()), writes=p.N * p.f),
        "W2": Moved(reads=b.T_r * int(at.nnz2.sum())),
        "Y": Moved(writes=p.N * p.o),
    }


def peak(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """The first row of tiles', which is whole."""
    at, r = live(p, b, options), b.B_r
    first = r * at.f + at.M1.any(0) * (r + at.f)
    return max(int(first.max()), int((r * at.o + at.M2.any(0) * (r + at.o)).max()))


FORM = ProgramForm(
    name="sparse_mlp_square",
    arrays={**ARRAYS, "H": ("extra", Kind("N", "f"))},
    blocks={"B_r": "N", "B_d": "d", "B_f": "f", "B_o": "o"},
    line_1=square_line_1,
    rows=square_rows,
    traffic=traffic,
    peak=peak,
    matmul=products,
)

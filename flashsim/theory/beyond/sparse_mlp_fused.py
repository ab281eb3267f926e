"""A sparse MLP, fused. nnz: elements of a weight's live blocks, of blocks of f that are live on both sides alone.

reads   X: N·d   W1: T_r·nnz₁   W2: T_r·nnz₂
writes  Y: N·o
peak    b_r(d + o): X_i, Y_i; and b_r·b_f + max(b_d·b_f, b_f·b_o): H_ij, W1_cj or W2_jk, the most of any such block of f
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashsim.records import Sizes
from flashsim.theory.mlp import ARRAYS, fused_rows, live, row_line_1, widest
from flashsim.theory.program import Moved, ProgramForm


def traffic(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> Mapping[str, Moved]:
    at = live(p, b, options)
    return {
        "X": Moved(reads=p.N * p.d),
        "W1": Moved(reads=b.T_r * int(at.nnz1[at.hidden].sum())),
        "W2": Moved(reads=b.T_r * int(at.nnz2[at.hidden].sum())),
        "Y": Moved(writes=p.N * p.o),
    }


def peak(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """The first row of blocks', which is whole."""
    at = live(p, b, options)
    tiles = at.f * (b.B_r + widest(at.M1, at.d).clip(widest(at.M2.T, at.o)))
    return b.B_r * (p.d + p.o) + int(tiles[at.hidden].max(initial=0))


def matmul(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    at = live(p, b, options)
    return 2 * p.N * int((at.nnz1 + at.nnz2)[at.hidden].sum())


FORM = ProgramForm(
    name="sparse_mlp_fused",
    arrays={**ARRAYS},
    blocks={"B_r": "N", "B_d": "d", "B_f": "f", "B_o": "o"},
    line_1=row_line_1,
    rows=fused_rows,
    traffic=traffic,
    peak=peak,
    matmul=matmul,
)

"""The sparse MLP: its forms. nnz: elements of a weight's live blocks; fused, of blocks of f that are live on both sides alone.

In square tiles X is read N·Σ_j d_j and H N·Σ_k f_k: d_j are the live rows of W1 in block j of f, f_k those of W2 in block k of o.
The peaks:

    fused    b_r(d + o): X_i, Y_i; and b_r·b_f + max(b_d·b_f, b_f·b_o): H_ij, W1_cj or W2_jk, the most of any such block of f
    unfused  the more of b_r·d + b_f(b_r + b_d), X_i H_ij W1_cj, and b_r·o + b_f(b_r + b_o), Y_i H_ij W2_jk; without b_d, b_o
             where none is live
    square   the more of b_r·b_f + b_r + b_f and b_r·b_o + b_r + b_o: a tile, a column and a row; the tile alone where none is
             live

When does fusing pay? Rows on chip are d + o wide when fused, max(d, o) unfused, so that the weights are read N(d + o)/M times, or
N·max(d, o)/M times. Where shares s₁, s₂ of them are live, fusing costs N·f·min(d, o)(s₁d + s₂o)/M more, and saves 2N·f, H's
way out and back. So it pays where

    M > min(d, o)(s₁d + s₂o)/2,

whatever N and f are: dense, with d = o, from Saha and Ye's border M = d² on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flashsim.problem.shapes import Sizes
from flashsim.theory.program import Moved, ProgramForm, between, given, returned

SIDE = 16


class Live(NamedTuple):
    """The live blocks of both weights, M1 (T_d, T_f) and M2 (T_f, T_o), and how long the blocks of d, f and o are.

    nnz     (2, T_f): elements of W1, and of W2, in live blocks, by block of f
    widest  (2, T_f): how long the longest of those are along d, and along o; 0 where there is none
    """

    M1: NDArray[np.bool_]
    M2: NDArray[np.bool_]
    d: NDArray[np.int64]
    f: NDArray[np.int64]
    o: NDArray[np.int64]
    nnz: NDArray[np.int64]
    widest: NDArray[np.int64]

    @property
    def hidden(self) -> NDArray[np.bool_]:
        """Which blocks of f have a live one on both sides."""
        return np.asarray(self.nnz.all(0))


def live(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> Live:
    """Return the live blocks; all, where a mask is left out."""
    d, f, o = (np.minimum(b[f"B_{s}"], p[s] - np.arange(0, p[s], b[f"B_{s}"], dtype=np.int64)) for s in "dfo")
    M1, M2 = _mask("mask1", options, len(d), len(f)), _mask("mask2", options, len(f), len(o))
    widest = np.array([(M1 * d[:, None]).max(0), (M2 * o).max(1)])
    return Live(M1, M2, d, f, o, np.array([d @ M1, M2 @ o]) * f, widest)


def square_rows(M: int, p: Sizes) -> int:
    """Return the largest b with (b + 1)² ≤ M + 1, at least 1."""
    return max(isqrt(M + 1) - 1, 1)


def fusing_border(d: int, o: int, s1: float = 1.0, s2: float = 1.0) -> float:
    """Return the M from which fusing pays, where shares s1, s2 of the weights are live: the formula above, without rounding."""
    return min(d, o) * (s1 * d + s2 * o) / 2


def _mask(name: str, options: Mapping[str, Any], rows: int, columns: int) -> NDArray[np.bool_]:
    mask = options.get(name)
    if mask is None:
        return np.ones((rows, columns), bool)
    array: NDArray[np.bool_] = np.asarray(mask(rows, columns) if callable(mask) else mask)
    if array.shape != (rows, columns) or array.dtype != bool:
        raise ValueError(f"{name} has shape {array.shape}, dtype {array.dtype}; expected booleans, ({rows}, {columns})")
    return array


def reads(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> dict[str, Moved]:
    """Return what is read of the weights."""
    nnz = live(p, b, options).nnz.sum(1)
    return {"W1": Moved(reads=b.T_r * int(nnz[0])), "W2": Moved(reads=b.T_r * int(nnz[1]))}


def unfused_peak(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """The first row of blocks', which is whole."""
    at = live(p, b, options)
    return max(
        b.B_r * width + int((at.f * (b.B_r + side)).max()) for width, side in zip((p.d, p.o), at.widest, strict=True)
    )


UNFUSED = ProgramForm(
    name="sparse_mlp_unfused",
    arrays={
        "X": given("N", "d"),
        "W1": given("d", "f"),
        "W2": given("f", "o"),
        "H": between("N", "f"),
        "Y": returned("N", "o"),
    },
    blocks={"B_r": "N", "B_d": "d", "B_f": "f", "B_o": "o"},
    line_1=lambda rows, p: (rows, *[min(rows, SIDE)] * 3),
    rows=lambda M, p: max((M - SIDE**2) // (max(p.d, p.o) + SIDE), 1),
    traffic=reads,
    peak=unfused_peak,
    matmul=lambda p, b, options: 2 * p.N * int(live(p, b, options).nnz.sum()),
)


def square_reads(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> dict[str, Moved]:
    at = live(p, b, options)
    X, H = Moved(reads=p.N * int((at.d @ at.M1).sum())), Moved(reads=p.N * int((at.f @ at.M2).sum()), writes=p.N * p.f)
    return {**reads(p, b, options), "X": X, "H": H}


def square_peak(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """The first row of tiles', which is whole."""
    at, r = live(p, b, options), b.B_r
    return max(int((r * side + M.any(0) * (r + side)).max()) for side, M in ((at.f, at.M1), (at.o, at.M2)))


SQUARE = replace(
    UNFUSED,
    name="sparse_mlp_square",
    line_1=lambda rows, p: (rows,) * 4,
    rows=square_rows,
    traffic=square_reads,
    peak=square_peak,
)


def fused_reads(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> dict[str, Moved]:
    at = live(p, b, options)
    nnz = at.nnz[:, at.hidden].sum(1)
    return {"W1": Moved(reads=b.T_r * int(nnz[0])), "W2": Moved(reads=b.T_r * int(nnz[1]))}


def fused_peak(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """The first row of blocks', which is whole."""
    at = live(p, b, options)
    tiles = at.f * (b.B_r + at.widest.max(0))
    return b.B_r * (p.d + p.o) + int(tiles[at.hidden].max(initial=0))


def fused_products(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    at = live(p, b, options)
    return 2 * p.N * int(at.nnz[:, at.hidden].sum())


FUSED = replace(
    UNFUSED,
    name="sparse_mlp_fused",
    arrays={name: array for name, array in UNFUSED.arrays.items() if name != "H"},
    rows=lambda M, p: max((M - SIDE**2) // (p.d + p.o + SIDE), 1),
    traffic=fused_reads,
    peak=fused_peak,
    matmul=fused_products,
)

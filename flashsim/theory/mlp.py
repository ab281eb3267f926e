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

from flashsim.records import Sizes
from flashsim.theory.program import Moved, ProgramForm, between, given, returned

SIDE = 16


class Live(NamedTuple):
    """Which blocks are live, (T_d, T_f) and (T_f, T_o), and how long the blocks of d, f and o are."""

    M1: NDArray[np.bool_]
    M2: NDArray[np.bool_]
    d: NDArray[np.int64]
    f: NDArray[np.int64]
    o: NDArray[np.int64]

    @property
    def hidden(self) -> NDArray[np.bool_]:
        """Which blocks of f have a live one on both sides."""
        both: NDArray[np.bool_] = np.logical_and(self.M1.any(0), self.M2.any(1))
        return both

    @property
    def columns(self) -> NDArray[np.int64]:
        """How many rows of W1 are live in each block of f: Σ over its live blocks of their rows."""
        return self.d @ self.M1

    @property
    def rows(self) -> NDArray[np.int64]:
        """How many columns of W2 are live in each block of f."""
        return self.M2 @ self.o

    @property
    def nnz1(self) -> NDArray[np.int64]:
        """Elements of W1 in live blocks, by block of f."""
        return self.columns * self.f

    @property
    def nnz2(self) -> NDArray[np.int64]:
        """Elements of W2 in live blocks, by block of f."""
        return self.rows * self.f


def live(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> Live:
    """Return the live blocks; all, where a mask is left out."""
    d, f, o = (lengths(p[s], b[f"B_{s}"]) for s in "dfo")
    return Live(_mask("mask1", options, len(d), len(f)), _mask("mask2", options, len(f), len(o)), d, f, o)


def lengths(whole: int, block: int) -> NDArray[np.int64]:
    """Return the lengths of the blocks that a length is divided into."""
    starts = np.arange(0, whole, block, dtype=np.int64)
    return np.minimum(block, whole - starts)


def widest(mask: NDArray[np.bool_], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the largest size that is live in each column of a mask; 0 where none is."""
    largest: NDArray[np.int64] = (mask * sizes[:, None]).max(0)
    return largest


def fused_rows(M: int, p: Sizes) -> int:
    """Return ⌊(M − 16²)/(d + o + 16)⌋, at least 1."""
    return max((M - SIDE**2) // (p.d + p.o + SIDE), 1)


def unfused_rows(M: int, p: Sizes) -> int:
    """Return ⌊(M − 16²)/(max(d, o) + 16)⌋, at least 1."""
    return max((M - SIDE**2) // (max(p.d, p.o) + SIDE), 1)


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
    at = live(p, b, options)
    return {"W1": Moved(reads=b.T_r * int(at.nnz1.sum())), "W2": Moved(reads=b.T_r * int(at.nnz2.sum()))}


def products(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """Both, of all live blocks, unfused."""
    at = live(p, b, options)
    return 2 * p.N * int(at.nnz1.sum() + at.nnz2.sum())


def unfused_peak(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """The first row of blocks', which is whole."""
    at = live(p, b, options)
    first = b.B_r * p.d + int((at.f * (b.B_r + widest(at.M1, at.d))).max())
    return max(first, b.B_r * p.o + int((at.f * (b.B_r + widest(at.M2.T, at.o))).max()))


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
    rows=unfused_rows,
    traffic=reads,
    peak=unfused_peak,
    matmul=products,
)


def square_reads(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> dict[str, Moved]:
    at = live(p, b, options)
    X, H = Moved(reads=p.N * int(at.columns.sum())), Moved(reads=p.N * int((at.f @ at.M2).sum()), writes=p.N * p.f)
    return {**reads(p, b, options), "X": X, "H": H}


def square_peak(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """The first row of tiles', which is whole."""
    at, r = live(p, b, options), b.B_r
    first = r * at.f + at.M1.any(0) * (r + at.f)
    return max(int(first.max()), int((r * at.o + at.M2.any(0) * (r + at.o)).max()))


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
    nnz = {"W1": at.nnz1, "W2": at.nnz2}
    return {name: Moved(reads=b.T_r * int(by_block[at.hidden].sum())) for name, by_block in nnz.items()}


def fused_peak(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """The first row of blocks', which is whole."""
    at = live(p, b, options)
    tiles = at.f * (b.B_r + widest(at.M1, at.d).clip(widest(at.M2.T, at.o)))
    return b.B_r * (p.d + p.o) + int(tiles[at.hidden].max(initial=0))


def fused_products(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    at = live(p, b, options)
    return 2 * p.N * int((at.nnz1 + at.nnz2)[at.hidden].sum())


FUSED = replace(
    UNFUSED,
    name="sparse_mlp_fused",
    arrays={name: array for name, array in UNFUSED.arrays.items() if name != "H"},
    rows=fused_rows,
    traffic=fused_reads,
    peak=fused_peak,
    matmul=fused_products,
)

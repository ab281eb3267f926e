"""The closed forms of the sparse MLP. nnz is the number of elements in a weight's live blocks; if
fused, only in blocks of f that are live in both weights.

In square tiles X is read N·Σ_j d_j and H N·Σ_k f_k: d_j are the live rows of W1 in block j of f,
f_k those of W2 in block k of o. The peaks:

    fused    b_r(d + o): X_i, Y_i; and b_r·b_f + max(b_d·b_f, b_f·b_o): H_ij, W1_cj or W2_jk, the
             most of any such block of f
    unfused  the more of b_r·d + b_f(b_r + b_d), X_i H_ij W1_cj, and b_r·o + b_f(b_r + b_o), Y_i
             H_ij W2_jk; without b_d, b_o where none is live
    square   the more of b_r·b_f + b_r + b_f and b_r·b_o + b_r + b_o: a tile, a column and a row;
             the tile alone where none is live

When does fusing pay? Rows on chip are d + o wide when fused, max(d, o) unfused, so that the weights
are read N(d + o)/M times, or N·max(d, o)/M times. Where shares s₁, s₂ of them are live, fusing
costs N·f·min(d, o)(s₁d + s₂o)/M more, and saves 2N·f, H's way out and back. So it pays where

    M > min(d, o)(s₁d + s₂o)/2,

whatever N and f are: with dense weights and d = o, from Saha and Ye's border M = d² on.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flashsim.attention.arguments import check_mask_blocks
from flashsim.attention.shapes import Sizes
from flashsim.support.sizes import ceil_div
from flashsim.theory.matrices import MatrixForm, Moved, between, given, returned

SIDE = 16


class Live(NamedTuple):
    """The live blocks of both weights, M1 (T_d, T_f) and M2 (T_f, T_o), and how long the blocks of
    d, f and o are.

    times   how often blocks of d, f and o occur; without masks one block stands for all that are as
            long
    nnz     (2, T_f): elements of W1, and of W2, in live blocks, by block of f
    widest  (2, T_f): how long the longest of those are along d, and along o; 0 where there is none
    """

    M1: NDArray[np.bool_]
    M2: NDArray[np.bool_]
    d: NDArray[Any]
    f: NDArray[Any]
    o: NDArray[Any]
    times: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
    nnz: NDArray[Any]
    widest: NDArray[Any]

    @property
    def hidden(self) -> NDArray[np.bool_]:
        """Which blocks of f have a live one on both sides."""
        return np.asarray(self.nnz.all(0), bool)


def live(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> Live:
    """Return the live blocks; all, where a mask is left out. Raises ValueError for more than
    `check_mask_blocks` takes.
    """
    dense = options.get("mask1") is None and options.get("mask2") is None
    for name, *sides in () if dense else (("mask1", "d", "f"), ("mask2", "f", "o")):
        check_mask_blocks(
            name,
            (ceil_div(p[sides[0]], b[f"B_{sides[0]}"]), ceil_div(p[sides[1]], b[f"B_{sides[1]}"])),
        )
    cuts = [(_alike if dense else _each)(p[s], b[f"B_{s}"]) for s in "dfo"]
    (d, f, o), (n_d, n_f, n_o) = ([cut[part] for cut in cuts] for part in (0, 1))
    M1 = _mask("mask1", options, len(d), len(f))
    M2 = _mask("mask2", options, len(f), len(o))
    widest = [
        np.max(np.broadcast_to(s[:, None], M.shape), axis=0, where=M, initial=0)
        for s, M in ((d, M1), (o, M2.T))
    ]
    nnz = [_dot(d * n_d, M1), _dot(o * n_o, M2.T)]
    return Live(M1, M2, d, f, o, (n_d, n_f, n_o), np.array(nnz) * f * n_f, np.array(widest))


def _each(length: int, block: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return how long each block is, and once for each that it is there once."""
    lengths = np.minimum(block, length - np.arange(0, length, block, dtype=np.int64))
    return lengths, np.ones_like(lengths)


def _alike(length: int, block: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return how long blocks are that differ, and how many there are of each, as whole numbers
    of any size.
    """
    both = [(block, length // block), (length % block, 1)]
    lengths, times = zip(*[pair for pair in both if all(pair)], strict=True)
    return np.array(lengths, object), np.array(times, object)


def _dot(lengths: NDArray[Any], M: NDArray[np.bool_]) -> NDArray[Any]:
    """Return lengths @ M; a large M is not copied, as it would be to have their type."""
    result = lengths @ M if lengths.dtype == object else np.einsum("i,ij->j", lengths, M)
    return np.asarray(result)


def square_rows(M: int, p: Sizes) -> int:
    """Return the largest b with (b + 1)² ≤ M + 1, at least 1."""
    return max(isqrt(M + 1) - 1, 1)


def fusing_border(d: int, o: int, s1: float = 1.0, s2: float = 1.0) -> float:
    """Return the M from which fusing pays, where shares s1, s2 of the weights are live: the
    formula above, without rounding.
    """
    return min(d, o) * (s1 * d + s2 * o) / 2


def _mask(name: str, options: Mapping[str, Any], rows: int, columns: int) -> NDArray[np.bool_]:
    mask = options.get(name)
    if mask is None:
        return np.ones((rows, columns), bool)
    array: NDArray[np.bool_] = np.asarray(mask(rows, columns) if callable(mask) else mask)
    if array.shape != (rows, columns) or array.dtype != bool:
        raise ValueError(
            f"{name} has shape {array.shape}, dtype {array.dtype}; expected booleans, ({rows}, "
            f"{columns})"
        )
    return array


def reads(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> dict[str, Moved]:
    """Return what is read of the weights."""
    nnz = live(p, b, options).nnz.sum(1)
    return {"W1": Moved(reads=b.T_r * int(nnz[0])), "W2": Moved(reads=b.T_r * int(nnz[1]))}


def unfused_peak(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """The first row of blocks', which is whole."""
    blocks = live(p, b, options)
    return max(
        b.B_r * width + int((blocks.f * (b.B_r + side)).max())
        for width, side in zip((p.d, p.o), blocks.widest, strict=True)
    )


UNFUSED = MatrixForm(
    name="sparse_mlp_unfused",
    blocks={"B_r": "N", "B_d": "d", "B_f": "f", "B_o": "o"},
    line_1=lambda rows, p: (rows, *[min(rows, SIDE)] * 3),
    rows=lambda M, p: max((M - SIDE**2) // (max(p.d, p.o) + SIDE), 1),
    arrays={
        "X": given("N", "d"),
        "W1": given("d", "f"),
        "W2": given("f", "o"),
        "H": between("N", "f"),
        "Y": returned("N", "o"),
    },
    traffic=reads,
    peak=unfused_peak,
    matmul=lambda p, b, options: 2 * p.N * int(live(p, b, options).nnz.sum()),
)


def square_reads(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> dict[str, Moved]:
    blocks = live(p, b, options)
    n_d, n_f, n_o = blocks.times
    of_X = int(_dot(blocks.d * n_d, blocks.M1) @ n_f)
    of_H = int(_dot(blocks.f * n_f, blocks.M2) @ n_o)
    X = Moved(reads=p.N * of_X)
    H = Moved(reads=p.N * of_H, writes=p.N * p.f)
    return {**reads(p, b, options), "X": X, "H": H}


def square_peak(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """The first row of tiles', which is whole."""
    blocks = live(p, b, options)
    r = b.B_r
    return max(
        int((r * side + M.any(0) * (r + side)).max())
        for side, M in ((blocks.f, blocks.M1), (blocks.o, blocks.M2))
    )


SQUARE = replace(
    UNFUSED,
    name="sparse_mlp_square",
    line_1=lambda rows, p: (rows,) * 4,
    rows=square_rows,
    traffic=square_reads,
    peak=square_peak,
)


def fused_reads(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> dict[str, Moved]:
    blocks = live(p, b, options)
    nnz = blocks.nnz[:, blocks.hidden].sum(1)
    return {"W1": Moved(reads=b.T_r * int(nnz[0])), "W2": Moved(reads=b.T_r * int(nnz[1]))}


def fused_peak(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """The first row of blocks', which is whole."""
    blocks = live(p, b, options)
    tiles = blocks.f * (b.B_r + blocks.widest.max(0))
    return b.B_r * (p.d + p.o) + int(tiles[blocks.hidden].max(initial=0))


def fused_products(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    blocks = live(p, b, options)
    return 2 * p.N * int(blocks.nnz[:, blocks.hidden].sum())


FUSED = replace(
    UNFUSED,
    name="sparse_mlp_fused",
    arrays={name: array for name, array in UNFUSED.arrays.items() if name != "H"},
    rows=lambda M, p: max((M - SIDE**2) // (p.d + p.o + SIDE), 1),
    traffic=fused_reads,
    peak=fused_peak,
    matmul=fused_products,
)

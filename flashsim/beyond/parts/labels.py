"""What the passes of cut cross-entropy share: which column of a tile is a row's label."""

from typing import Any

import numpy as np

from flashsim.algorithms.blocks import paper_rows
from flashsim.machine.memory import Tile
from flashsim.machine.shape_only import ShapeOnly
from flashsim.problem.matrices import Kind
from flashsim.problem.shapes import Sizes

NONE = 2**32 - 1
"""The label of a row that is left out."""


def at_label(S: Tile, y: Tile, first: int) -> Tile:
    """Return S where its column, counted from `first`, is the row's label, and 0 elsewhere."""
    if isinstance(S, ShapeOnly):
        return S.made(S.shape, other=S.size)
    return np.where(y == first + np.arange(S.shape[1]), S, S.dtype.type(0))


def minus_label(P: Tile, y: Tile, first: int) -> Tile:
    """Return P − 1 where its column is the row's label, P elsewhere; 0 in a row that is left out."""
    if isinstance(P, ShapeOnly):
        return P.made(P.shape, other=P.size)
    here = P - (y == first + np.arange(P.shape[1]))
    result: Tile = np.where(y == NONE, P.dtype.type(0), here)
    return result


def unless_none(x: Tile, y: Tile) -> Tile:
    """Return x, 0 in a row that is left out."""
    if isinstance(x, ShapeOnly):
        return x.made(x.shape, other=x.size)
    return np.where(y == NONE, x.dtype.type(0), x)


def logit_rows(M: int, p: Sizes) -> int:
    """Return ⌈M/4d⌉, as of attention's keys. ValueError below M = d."""
    return paper_rows(M, p.d, p.d)


def x_line_1(rows: int, p: Sizes) -> tuple[int, int]:
    """Return (B_r, B_c) where X is stationary."""
    return rows, min(rows, p.d)


def e_line_1(rows: int, p: Sizes) -> tuple[int, int]:
    """Return (B_r, B_c) where E is stationary."""
    return min(rows, p.d), rows


def example(rng: np.random.Generator, sizes: Sizes, blocks: Sizes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return labels to try a program with, some of them left out."""
    y = rng.integers(0, sizes.v, size=(sizes.N, 1))
    return {"y": np.where(rng.random((sizes.N, 1)) < 0.2, NONE, y)}, {}


def gradient_example(rng: np.random.Generator, sizes: Sizes, blocks: Sizes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the same, with the log-sum-exps that the loss would have returned."""
    X, E = rng.normal(size=(sizes.N, sizes.d)), rng.normal(size=(sizes.v, sizes.d))
    L = np.logaddexp.reduce(X @ E.T, axis=1, keepdims=True)
    return {"X": X, "E": E, "L": L, **example(rng, sizes, blocks)[0]}, {}


LOSS: dict[str, Any] = {
    "source": "Wijmans et al. 2024",
    "operands": {"X": Kind("N", "d"), "E": Kind("v", "d"), "y": Kind("N", "1", "words")},
    "blocks": {"B_r": "N", "B_c": "v"}, "rows": logit_rows, "words": ("rows of X", "rows of E"), "example": example,
}
"""What the record of cut cross-entropy has in common with its gradients'."""
GRADIENT: dict[str, Any] = {
    **LOSS, "operands": {**LOSS["operands"], "L": Kind("N", "1", "chip"), "g": Kind("N", "1")}, "direction": "backward",
    "example": gradient_example,
}
"""What the records of its gradients share."""

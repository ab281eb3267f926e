"""Whether a mask of the user's says of tiles what it says of pairs.

`allows` says which pairs attend. `live` and `full` say of whole tiles that they are empty, or need
no mask, and algorithms believe it: a tile that is called empty by mistake is left out of O. Counts
and closed forms believe `band`, so `live` and `full` must say what follows from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flashsim.attention.masks.rules import Bools, Both, Head, Index, Mask, allowed_by
from flashsim.attention.shapes import Blocks, Shape
from flashsim.memory.source import is_of_package

MOST_PAIRS = 2**22
"""Up to which pairs are looked at: some 20 ms. Of a larger problem, some blocks of rows are."""


def check_agreement(mask: Mask, blocks: Blocks, shape: Shape, head: Head) -> None:
    """Raise ValueError where `live` or `full` of a mask of the user's contradicts its `allows`, or
    its `band`. Raises TypeError where `allows` returns no booleans of a tile's shape.

    blocks  the tiles of the run
    head    of which query head
    """
    if isinstance(mask, Both):
        check_agreement(mask.a, blocks, shape, head)
        check_agreement(mask.b, blocks, shape, head)
        return
    kind: Any = type(mask)
    is_own = not is_of_package(kind.allows)
    if is_own:
        _check_allows(mask, shape, head)
    methods = (kind.live, kind.full, kind.band)
    if methods == (Mask.live, Mask.full, Mask.band):  # it says nothing of tiles
        return
    if not is_own and all(is_of_package(method) for method in methods):
        return
    band = mask.band(shape, head)
    cols = np.arange(blocks.T_c) * blocks.B_c
    col_ends = np.minimum(cols + blocks.B_c, shape.N_k)
    most_blocks = max(1, MOST_PAIRS // (blocks.B_r * shape.N_k))
    step = -(-blocks.T_r // most_blocks)
    for i in range(0, blocks.T_r, step):
        rows = np.array([i * blocks.B_r])
        row_ends = np.minimum(rows + blocks.B_r, shape.N_q)
        attending = np.arange(rows[0], row_ends[0])
        allowed = allowed_by(mask, attending, np.arange(shape.N_k), shape, head)
        allowed = np.broadcast_to(allowed, (len(attending), shape.N_k))
        some = np.logical_or.reduceat(allowed.any(axis=0), cols)
        every = np.logical_and.reduceat(allowed.all(axis=0), cols)
        tiles = rows, row_ends, cols, col_ends, shape, head
        live = _of_tiles(mask.live(*tiles), len(cols))
        full = _of_tiles(mask.full(*tiles), len(cols))
        _refuse(mask, "live", "empty", "a query there attends to a key", rows, cols, some & ~live)
        _refuse(mask, "full", "full", "a query there does not attend", rows, cols, full & ~every)
        if band is not None:
            for method, says, follows in (
                ("live", live, band.live(*tiles[:-1])),
                ("full", full, band.full(*tiles[:-1])),
            ):
                _refuse_beside_band(mask, method, rows, cols, says != _of_tiles(follows, len(cols)))


def _check_allows(mask: Mask, shape: Shape, head: Head) -> None:
    """Call `allows` on one small tile, as a count does not call it. Raises TypeError, or what it
    raises.
    """
    rows = np.arange(min(2, shape.N_q))
    cols = np.arange(min(3, shape.N_k))  # more than rows: a transposed result has another shape
    allowed_by(mask, rows, cols, shape, head)


def _refuse_beside_band(mask: Mask, method: str, rows: Index, cols: Index, wrong: Bools) -> None:
    if not wrong.any():
        return
    key = cols[int(np.argmax(wrong))]
    raise ValueError(
        f"mask is {mask!r}, whose {method}() and band() differ on the tile from query {rows[0]} "
        f"and key {key} on: a run would not move what is counted; expected {method}() to be left "
        "out, as it follows from band(), or band() to be left out"
    )


def _of_tiles(says: Bools, number: int) -> Bools:
    return np.broadcast_to(np.asarray(says).reshape(-1), (number,))


def _refuse(
    mask: Mask, method: str, what: str, truth: str, rows: Index, cols: Index, wrong: Bools
) -> None:
    if not wrong.any():
        return
    key = cols[int(np.argmax(wrong))]
    raise ValueError(
        f"mask is {mask!r}, whose {method}() calls the tile from query {rows[0]} and key {key} on "
        f"{what}, and by its allows() {truth}; expected {method}() to agree with allows()"
    )

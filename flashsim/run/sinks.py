"""A learnable sink, as the algorithms use it: what a row's softmax begins with."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flashsim.algorithms.notation import exp, finite, maximum, nonzero
from flashsim.machine.memory import HBM, SRAM, Block, Matrix, Tile
from flashsim.machine.shape_only import ShapeOnly
from flashsim.problem.inputs import Array


class NoSink:
    """What there is without a sink."""

    l = 0.0
    room = 0

    def m(self, of: Block | Matrix) -> float:
        """Return −∞."""
        return -math.inf

    def above(self, m: Tile, of: Block) -> Tile:
        """Return m itself."""
        return m

    def total(self, l: Tile, m: Tile) -> Tile:
        """Return ℓ itself."""
        return l

    def keep(self, m: Tile, l: Tile, of: Block) -> None:
        """Do nothing."""


class HeadSink:
    """The sink of a launch, whose row r is one of query head r % g: g logits, (1, g) in HBM, which are loaded together.

    Those of a row block are held until its turn ends, but for `m`, where they become m and are evicted.
    """

    l = 1.0

    def __init__(self, logits: Array, hbm: HBM, sram: SRAM, N: int) -> None:
        self._group = logits.shape[1]
        self.room = 2 * self._group  # for `above` and for `keep`
        self._sram, self._N = sram, N
        self._logits = hbm.place("sink", logits if hbm.arithmetic else logits.shape, sram.dtype)

    def m(self, of: Block | Matrix) -> Any:
        """Return s of each row, (rows, 1)."""
        s = self._sram.load(self._logits[0])
        column = self._column(s, of)
        self._sram.evict(s)
        return column

    def above(self, m: Tile, of: Block) -> Tile:
        """Return max(m, s), and hold s."""
        self._held = self._column(self._sram.load(self._logits[0]), of)
        top: Tile = maximum(m, self._held)
        return top

    def total(self, l: Tile, m: Tile) -> Tile:
        """Return ℓ + e^{s − m}, of what is held."""
        sum_: Tile = l + exp(self._held - finite(m))
        return sum_

    def keep(self, m: Tile, l: Tile, of: Block) -> None:
        """Write e^{s − m} / ℓ to these rows of P_sink."""
        hbm, on_chip = self._sram.hbm, self._sram.on_chip
        P_sink = hbm.matrix("P_sink") if "P_sink" in hbm else hbm.empty("P_sink", (self._N, 1), self._sram.dtype)
        s_i, (first, end) = self._column(self._sram.load(self._logits[0]), of), _rows(of)
        P_sink_i = on_chip(exp(s_i - finite(m)) / nonzero(l), over=l)
        self._sram.store(P_sink.rows(first, end)[0], P_sink_i)

    def _column(self, s: Tile, of: Block | Matrix) -> Any:
        """Return the logit of each row, (rows, 1)."""
        first, end = _rows(of)
        if isinstance(s, ShapeOnly):
            return s.made((end - first, 1), other=0)
        return s[0, np.arange(first, end) % self._group, None]


def _rows(of: Block | Matrix) -> tuple[int, int]:
    """Return which rows of all a block has, the first and the one behind the last."""
    first = of.where[0].start if isinstance(of, Block) and of.where else 0
    return first, first + of.shape[0]

"""MASK, as the algorithms use it: a mask applied to one tile of S on chip; what of it lives in HBM
is loaded and counted.

Scores are modified first: by a soft cap, ALiBi, a bias. The backward pass hands each tile of dS
back: `gradient` makes the bias's, by a `BiasGradient`, which standard attention is given by itself,
as it has dS in HBM; `uncapped` makes that of the scores before their cap. A sink forbids nothing,
and is where a row's softmax begins.
"""

from __future__ import annotations

import math
from copy import copy
from typing import Any

import numpy as np

from flashsim.algorithms.notation import exp, finite, gated, maximum, nonzero
from flashsim.attention.inputs import Array
from flashsim.attention.masks.bias import Bias
from flashsim.attention.masks.rules import Dense, Head, Mask, allowed_by
from flashsim.attention.masks.scores import ScoreMod, SoftCap
from flashsim.attention.masks.tree import WORD, Tree
from flashsim.attention.shapes import Blocks, Shape, pass_tiles
from flashsim.memory.hbm import HBM, Block, Matrix, Tile
from flashsim.memory.shape_only import ShapeOnly
from flashsim.memory.sram import SRAM


class NoMask:
    """MASK where every query attends to every key: it changes nothing, and takes no room."""

    def __call__(self, S_ij: Tile, i: int, j: int) -> Tile:
        return S_ij

    def gradient(self, dS_ij: Tile, i: int, j: int) -> None:
        """Do nothing: there is no bias."""

    def uncapped(self, dS_ij: Tile) -> Tile:
        return dS_ij

    def divided(self, blocks: Blocks) -> NoMask:
        return self

    def room(self, rows: int, columns: int) -> int:
        return 0

    def whole(self, sram: SRAM, S: Matrix) -> None:
        """Do nothing: no pass."""


class TileMask:
    """MASK, the function of Algorithm 2's line 11, for one head on one chip.

    If it `learns`, a bias's gradient is added to "dB" in HBM: to zeros, or to `dB`, what earlier
    heads left; and a soft cap's slope is kept on chip from `__call__` until `uncapped`, in the same
    turn.
    """

    def __init__(
        self,
        mask: Mask,
        hbm: HBM,
        sram: SRAM,
        blocks: Blocks,
        shape: Shape,
        head: Head,
        learns: bool = False,
        dB: Array | None = None,
    ) -> None:
        self._mask = mask
        self._sram = sram
        self._shape = shape
        self._head = head
        self._implicit = not isinstance(mask, Dense | Tree | Bias | ScoreMod)
        self._arrays = [
            hbm.place(f"mask{n or ''}", array, np.bool_) for n, array in enumerate(mask.dense(head))
        ]
        tree = mask.tree
        bias = mask.bias
        self._prefix = shape.N_k - len(tree.parents) if tree else 0
        self._tree = None
        if tree is not None:
            words = tree.words if hbm.arithmetic else (shape.N_q, -(-len(tree.parents) // WORD))
            self._tree = hbm.place("tree", words, np.uint32)
        self._bias = None if bias is None else hbm.place("bias", bias.of(head))
        self._of_bias = bias
        self._gradient = None if bias is None or not learns else BiasGradient(bias, sram, dB, shape)
        self._scores = mask.scores
        self._learns = learns
        loaded = self._arrays or tree is not None or bias is not None
        self._position_alone = self._implicit and not loaded and not mask.scores
        self._slope: Tile | None = None
        self._divide(blocks.B_r, blocks.B_c)

    def divided(self, blocks: Blocks) -> TileMask:
        other = copy(self)
        other._divide(blocks.B_r, blocks.B_c)
        return other

    def _divide(self, B_r: int, B_c: int) -> None:
        self._B_r = B_r
        self._B_c = B_c
        self._tiles = [
            a.divide(B_r if a.shape[0] > 1 else 1, B_c if a.shape[1] > 1 else 1)
            for a in self._arrays
        ]
        self._bias_tiles = self._bias and self._bias.divide(*self._of_bias.by_tile(B_r, B_c))
        self._gradient = self._gradient and self._gradient.divided(B_r, B_c)
        self._words = None if self._tree is None else self._tree.divide(B_r, 1)

    def __call__(self, S_ij: Tile, i: int, j: int) -> Tile:
        """Return S_ij, modified, plus the bias, with −∞ where the mask forbids. Loads what lives
        in HBM: its block, its words.
        """
        forbidden = np.asarray(-math.inf, self._sram.dtype)
        # a tile costs the same wherever it lies
        if self._position_alone and not self._sram.hbm.arithmetic:
            return np.where(True, S_ij, forbidden)
        top = i * self._B_r
        left = j * self._B_c
        rows = np.arange(top, top + S_ij.shape[0])
        cols = np.arange(left, left + S_ij.shape[1])
        for mod in self._scores:
            S_ij = mod.modified(S_ij, rows, cols, self._shape, self._head)
            if self._learns and isinstance(mod, SoftCap):
                self._slope = self._sram.on_chip(mod.slope(S_ij))
        if self._bias_tiles is not None:
            added = self._sram.load(_block(self._bias_tiles, i, j))
            S_ij = S_ij + self._of_bias.spread(added, rows, cols, self._shape)
        allowed: Any = True
        for matrix in self._tiles:
            allowed = self._sram.load(_block(matrix, i, j)) & allowed
        if self._words is not None:
            allowed = self._attends(self._words, i, j * self._B_c, *S_ij.shape) & allowed
        if self._implicit and self._sram.hbm.arithmetic:
            own = allowed_by(self._mask, rows, cols, self._shape, self._head)
            allowed = own if allowed is True else own & allowed
        if allowed is True and not self._implicit:  # scores are modified, and that is all
            return S_ij
        return np.where(allowed, S_ij, forbidden)

    def gradient(self, dS_ij: Tile, i: int, j: int) -> None:
        if self._gradient is not None:
            self._gradient.add(dS_ij, i, j)

    def uncapped(self, dS_ij: Tile) -> Tile:
        return (
            dS_ij
            if self._slope is None
            else self._sram.on_chip(gated(dS_ij, self._slope), over=dS_ij)
        )

    def room(self, rows: int, columns: int) -> int:
        """Return the most elements that masking a tile of that size brings on chip: of c keys,
        ⌈(c − 1)/32⌉ + 1 words at most.
        """
        room = sum(math.prod(map(min, a.shape, (rows, columns))) for a in self._arrays)
        if self._bias is not None:
            room += math.prod(map(min, self._bias.shape, self._of_bias.by_tile(rows, columns)))
        words = 0 if self._tree is None else min(-(-(columns - 1) // WORD) + 1, self._tree.shape[1])
        return room + rows * words

    def _attends(self, words: Matrix, i: int, left: int, rows: int, cols: int) -> Any:
        """Load the words with the bits of keys left … left + cols − 1, row block i; return the
        bits, True for the prefix.
        """
        prefix = self._prefix
        # the tile's nodes, as keys
        first = max(left, prefix)
        end = left + cols
        attends = np.ones((rows, cols), bool)
        for w in range((first - prefix) // WORD, -(-(end - prefix) // WORD)):
            word = self._sram.load(words[i, w])
            if self._sram.hbm.arithmetic:
                keys = np.arange(max(first, prefix + w * WORD), min(end, prefix + (w + 1) * WORD))
                attends[:, keys - left] = word >> ((keys - prefix) % WORD).astype(np.uint32) & 1
        return attends

    def whole(self, sram: SRAM, S: Matrix) -> None:
        """Mask S in HBM, tile by tile in place: a pass that reads and writes all of it. No pass
        if nothing is masked.
        """
        held = 1 + len(self._arrays) + (self._bias is not None)
        words = 0 if self._tree is None else self._tree.shape[1]
        rows, cols = _pass_tiles_with_words(sram.capacity, S.shape[1], held, words)
        self._divide(rows, cols)
        S = S.divide(rows, cols)
        down, across = S.blocks
        for i in sram.loop(down):  # line 2
            for j in sram.loop(across):  # line 2
                S_ij = sram.load(S[i, j])  # line 2
                S_masked_ij = sram.on_chip(self(S_ij, i, j), over=S_ij)  # line 2
                sram.store(S[i, j], S_masked_ij)  # line 2


class BiasGradient:
    """A bias's gradient, "dB" in HBM, to which tiles of dS are added: zeros at first, or what
    earlier heads left.
    """

    def __init__(self, bias: Bias, sram: SRAM, so_far: Array | None, shape: Shape) -> None:
        self._bias, self._sram, self._shape, hbm = bias, sram, shape, sram.hbm
        self._sizes = 0, 0
        if so_far is None:
            self._dB = hbm.full("dB", bias.matrix, 0.0, sram.dtype, "output")
        else:
            self._dB = hbm.place("dB", so_far, sram.dtype, "output")

    def divided(self, B_r: int, B_c: int) -> BiasGradient:
        """Return the same for tiles of B_r × B_c."""
        other = copy(self)
        other._dB = self._dB.divide(*self._bias.by_tile(B_r, B_c))
        other._sizes = (B_r, B_c)
        return other

    def add(self, dS_ij: Tile, i: int, j: int) -> None:
        """Add dS_ij to its block of dB, summed up where that is smaller."""
        block = _block(self._dB, i, j)
        dB_ij = self._sram.load(block)
        rows, cols = (
            n * size + np.arange(s)
            for n, size, s in zip((i, j), self._sizes, dS_ij.shape, strict=True)
        )
        summed = self._bias.summed(dS_ij, block.shape, rows, cols, self._shape)
        self._sram.store(block, self._sram.on_chip(dB_ij + summed, over=dB_ij))

    def whole(self, sram: SRAM, dS: Matrix) -> None:
        """Add dS in HBM, tile by tile, each beside its block of dB."""
        rows, cols = pass_tiles(sram.capacity, dS.shape[1], 2)
        mine = self.divided(rows, cols)
        dS = dS.divide(rows, cols)
        down, across = dS.blocks
        for i in sram.loop(down):  # line 3
            for j in sram.loop(across):  # line 3
                mine.add(sram.load(dS[i, j]), i, j)  # line 3


class NoBiasGradient:
    """What there is without a bias."""

    def whole(self, sram: SRAM, dS: Matrix) -> None:
        """Do nothing."""


class PartialTileMask(TileMask):
    """MASK for algorithms that skip empty tiles: it masks partial tiles, and full ones not."""

    def __call__(self, S_ij: Tile, i: int, j: int) -> Tile:
        """Return S_ij itself if positions tell that the tile is full; else with −∞ where the
        mask forbids.
        """
        if self._implicit:
            (rows, cols), top, left = S_ij.shape, i * self._B_r, j * self._B_c
            tops, bottoms, lefts, rights = np.array([[top], [top + rows], [left], [left + cols]])
            if self._mask.full(tops, bottoms, lefts, rights, self._shape, self._head)[0]:
                return S_ij
        return super().__call__(S_ij, i, j)


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
    """The sink of a launch, whose row r is one of query head r % g: g logits, (1, g) in HBM, which
    are loaded together.

    Those of a row block are held until its turn ends; but `m` makes m of them, and evicts them.
    """

    l = 1.0

    def __init__(self, logits: Array, hbm: HBM, sram: SRAM, N: int) -> None:
        self._group = logits.shape[1]
        self.room = 2 * self._group  # for `above` and for `keep`
        self._sram = sram
        self._N = N
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
        hbm = self._sram.hbm
        on_chip = self._sram.on_chip
        P_sink = (
            hbm.matrix("P_sink")
            if "P_sink" in hbm
            else hbm.empty("P_sink", (self._N, 1), self._sram.dtype)
        )
        s_i, (first, end) = self._column(self._sram.load(self._logits[0]), of), _rows(of)
        P_sink_i = on_chip(exp(s_i - finite(m)) / nonzero(l), over=l)
        self._sram.store(P_sink.rows(first, end)[0], P_sink_i)

    def _column(self, s: Tile, of: Block | Matrix) -> Any:
        """Return the logit of each row, (rows, 1)."""
        first, end = _rows(of)
        if isinstance(s, ShapeOnly):
            return s.made((end - first, 1), other=0)
        return s[0, np.arange(first, end) % self._group, None]


def _pass_tiles_with_words(M: int, N_k: int, held: int, words: int) -> tuple[int, int]:
    """Return `pass_tiles` where each row of a tile also holds the words that it overlaps: all of
    them, if it is whole.

    A piece of c keys overlaps ⌊(c + 30)/32⌋ + 1 words at most, and fits if held·c + ⌊(c + 30)/32⌋ <
    M; or with room for all.
    """
    rows = M // (held * N_k + words)
    if rows:
        return rows, N_k
    return 1, min(max((WORD * M - WORD + 1) // (WORD * held + 1), (M - words) // held, 1), N_k)


def _block(matrix: Matrix, i: int, j: int) -> Block:
    down, across = matrix.blocks
    return matrix[min(i, down - 1), min(j, across - 1)]


def _rows(of: Block | Matrix) -> tuple[int, int]:
    """Return which rows of all a block has, the first and the one behind the last."""
    first = of.where[0].start if isinstance(of, Block) and of.where else 0
    return first, first + of.shape[0]

"""Score modifications: objects that change scores tile by tile, from numbers and positions, and
move nothing.

SoftCap(cap)    S' = cap·tanh(S / cap), first
ALiBi(slopes)   S' = S − slope·|p − j|, then, where a `Bias` is added, too
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from flashsim.attention.arguments import check_number, check_real
from flashsim.attention.inputs import Array
from flashsim.attention.masks.band import Band
from flashsim.attention.masks.rules import BandMask, Head, Index, check_broadcast, head_of
from flashsim.attention.shapes import Shape
from flashsim.memory.hbm import Tile
from flashsim.support.records import set_fields

MOST_CAP = 1e30
MOST_SLOPE = 1e30


class ScoreMod(BandMask):
    """A score modification. It forbids nothing, and combines with masks by &; `stage` is its
    place among others.
    """

    stage: ClassVar[int]

    @property
    def scores(self) -> tuple[ScoreMod, ...]:
        return (self,)

    def band(self, shape: Shape, head: Head) -> Band:
        return Band(None, None, shape.N_k, is_exact=False)

    @abstractmethod
    def modified(self, S: Tile, rows: Index, cols: Index, shape: Shape, head: Head) -> Tile:
        """Return a tile of scores, changed, of these queries and keys."""

    def grouped(self, group: int) -> ScoreMod:
        """Return the same for the interleaved rows of a group of query heads."""
        return self

    def largest(self, shape: Shape) -> float:
        """Return the most that it adds to a score's absolute value."""
        return 0.0


@dataclass(frozen=True, repr=False)
class SoftCap(ScoreMod):
    """Scores no larger than `cap`: S' = cap·tanh(S / cap), of scaled scores, before ALiBi, a bias
    and the mask. It moves nothing.

    The backward pass makes dS = dS'·(1 − tanh²(S / cap)). It keeps that factor, a tile of B_r × B_c
    elements, on chip from the line that makes S until the one that makes dS. Every forward pass
    that takes masks takes a soft cap, and every backward pass that computes S again and has dS on
    chip: those that make a bias's gradient, but "standard".

    Sources: Gemma 2 (arXiv 2408.00118), whose caps are 50; `softcap` of flash-attn, which has the
    same order. Raises ValueError for a cap that is not a number from 1e-30 to 1e30; leave it out
    for none.
    """

    cap: float
    stage: ClassVar[int] = 0

    def __post_init__(self) -> None:
        expected = f"a number from {1 / MOST_CAP:g} to {MOST_CAP:g}, or no SoftCap for none"
        cap = check_number(
            "SoftCap's cap", self.cap, expected, lambda cap: 1 / MOST_CAP <= cap <= MOST_CAP
        )
        set_fields(self, cap=cap)

    def modified(self, S: Tile, rows: Index, cols: Index, shape: Shape, head: Head) -> Tile:
        return self.cap * np.tanh(S / self.cap)

    def slope(self, S_capped: Tile) -> Tile:
        """Return dS'/dS = 1 − (S'/cap)², of capped scores."""
        tanh = S_capped / self.cap
        return 1 - tanh * tanh

    def __repr__(self) -> str:
        return f"SoftCap({self.cap:g})"


@dataclass(frozen=True, repr=False)
class ALiBi(ScoreMod):
    """Linear biases: −slope·|p − j| is added to query i's score of key j; p = i + N_k − N_q is i's
    position, bottom-right.

    `slopes` is a number, or an array that broadcasts to the leading axes (one for each head). They
    are a launch's parameters, as the scale is: nothing is loaded, where `Bias` loads a block for
    each tile. They have no gradient, and dS passes unchanged. Sources: Press et al., arXiv
    2108.12409, whose slopes for H heads are 2^(−8h/H), h = 1 … H; `alibi_slopes` of flash-attn,
    which has the same alignment and absolute value.

    Raises ValueError for what is not a real number, or beyond 1e30 in absolute value.
    """

    slopes: Any
    group: int = 1
    stage: ClassVar[int] = 1

    def __post_init__(self) -> None:
        slopes = check_real("ALiBi's slopes", self.slopes).astype(np.float64)
        if not (np.abs(slopes) <= MOST_SLOPE).all():
            raise ValueError(
                f"ALiBi's slopes are {slopes.tolist()}; expected numbers up to {MOST_SLOPE:g}"
            )
        set_fields(self, slopes=slopes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ALiBi) and (repr(self), self.group) == (repr(other), other.group)

    def __hash__(self) -> int:
        return hash((repr(self), self.group))

    @property
    def per_head(self) -> bool:
        return bool(self.slopes.ndim)

    def check(self, shape: Shape, leading: Head) -> None:
        check_broadcast("ALiBi's slopes array", self.slopes.shape, leading, "the leading axes")

    def modified(self, S: Tile, rows: Index, cols: Index, shape: Shape, head: Head) -> Tile:
        if not isinstance(S, np.ndarray):  # shapes alone
            return S - np.zeros((len(rows), len(cols)))
        changed: Tile = S + self.added(rows, cols, shape, head).astype(S.dtype)
        return changed

    def added(self, rows: Index, cols: Index, shape: Shape, head: Head) -> Array:
        """Return what is added to the scores of these queries and keys, in float64. `head` is a
        KV head's for grouped rows.
        """
        apart = np.abs((rows // self.group)[:, None] + shape.N_k - shape.N_q // self.group - cols)
        return np.asarray(-self._slopes(rows, head) * apart)

    def _slopes(self, rows: Index, head: Head) -> Array:
        """Return the slope of each row, (rows, 1), or (1, 1) where all have one."""
        if self.group == 1 or not head:
            return np.full((1, 1), self.slopes[head_of(head, self.slopes.shape)])
        members = [(*head[:-1], head[-1] * self.group + member) for member in range(self.group)]
        each = np.array([self.slopes[head_of(member, self.slopes.shape)] for member in members])
        return np.asarray(each[rows % self.group, None])

    def grouped(self, group: int) -> ALiBi:
        return replace(self, group=group)

    def largest(self, shape: Shape) -> float:
        return float(np.abs(self.slopes).max(initial=0.0)) * max(shape.N_q, shape.N_k)

    def __repr__(self) -> str:
        return f"ALiBi({self.slopes.tolist()})"


def cap_of(scores: tuple[ScoreMod, ...]) -> SoftCap | None:
    """Return the soft cap among score modifications, if any."""
    return next((mod for mod in scores if isinstance(mod, SoftCap)), None)

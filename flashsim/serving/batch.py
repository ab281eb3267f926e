"""A ragged batch: what every program knows of it. One KV head's rows are those of its g query
heads, row r of head r % g.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from flashsim.attention.arguments import check_count, check_flag, check_heads, check_scale
from flashsim.attention.base import BaseProblem
from flashsim.attention.inputs import Array
from flashsim.memory.hbm import Tile
from flashsim.memory.shape_only import ShapeOnly
from flashsim.serving.checks import check_by_sequence
from flashsim.support.records import set_fields
from flashsim.support.sizes import ceil_div

Operands = Mapping[str, Array | tuple[int, int]]
"""By name: arrays (H_kv, rows, width), words (rows, width) as uint32, or shapes (rows, width) of
one KV head.
"""


@dataclass(frozen=True, kw_only=True)
class Batch(BaseProblem):
    """Sequences that are attended to each alone, the memory, and the blocks.

    queries, keys   N_s and n_s, the lengths by sequence; any may be 0
    heads, kv_heads query heads, and KV heads that they share: a divisor of them
    tau             the softmax scale; None: 1/√d
    causal          key j is seen from position p if j ≤ p + n_s − N_s: aligned at the bottom right
    starts          where sequences begin, packed, in queries and in keys; by default each where the
                    one before it ends

    Raises ValueError for a field that makes no sense.
    """

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    heads: int
    kv_heads: int
    d: int
    d_v: int
    tau: float
    causal: bool
    B_r: int = 1
    B_c: int = 1
    starts: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def __post_init__(self) -> None:
        """Check all fields, and convert them."""
        super().__post_init__()
        heads, kv_heads = check_heads(self.heads, self.kv_heads)
        d = check_count("d", self.d)
        set_fields(
            self,
            queries=check_by_sequence("queries", self.queries),
            keys=check_by_sequence("keys", self.keys),
            heads=heads,
            kv_heads=kv_heads,
            d=d,
            d_v=check_count("d_v", self.d_v),
            tau=check_scale(self.tau, d),
            causal=check_flag("causal", self.causal),
            B_r=check_count("B_r", self.B_r),
            B_c=check_count("B_c", self.B_c),
        )
        if len(self.queries) != len(self.keys):
            raise ValueError(
                f"queries has {len(self.queries)} lengths; expected {len(self.keys)}, one for each "
                "sequence, as keys has"
            )

    def in_blocks(self, B_r: int, B_c: int, M: int) -> Batch:
        """Return the same batch in other blocks and in another memory. What stays is not checked
        again, since a search for blocks asks this often.
        """
        batch = copy(self)
        set_fields(
            batch,
            B_r=check_count("B_r", B_r),
            B_c=check_count("B_c", B_c),
            M=check_count("M", M),
        )
        return batch

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def group(self) -> int:
        """Query heads that share a KV head, g."""
        return self.heads // self.kv_heads

    @cached_property
    def _starts(self) -> tuple[Sequence[int], Sequence[int]]:
        return self.starts or ((0, *accumulate(self.queries)), (0, *accumulate(self.keys)))

    def rows(self, s: int) -> tuple[int, int]:
        """Return where the rows of a sequence begin and end, in one KV head's Q."""
        first = self._starts[0][s]
        g = self.group
        return g * first, g * (first + self.queries[s])

    def cols(self, s: int) -> tuple[int, int]:
        """Return where the keys of a sequence begin and end, packed."""
        first = self._starts[1][s]
        return first, first + self.keys[s]

    @property
    def longest(self) -> int:
        """The most rows of a sequence."""
        return self.group * max(self.queries, default=0)

    def row_blocks(self, s: int) -> int:
        """Return T, how many blocks of B_r the rows of a sequence have."""
        return ceil_div(self.group * self.queries[s], self.B_r)

    def seen(self, s: int, i: int, n: int) -> int:
        """Return e, how many of its n keys the rows of block i of a sequence see: the first e."""
        N = self.queries[s]
        end = min((i + 1) * self.B_r, self.group * self.queries[s])
        return min(max((end - 1) // self.group + 1 + n - N, 0), n) if self.causal else n

    def mask(self, S_ij: Tile, s: int, i: int, first: int, n: int) -> Tile:
        """Return a tile of scores against the keys from `first`, with −∞ for those beyond n, and
        those after a row's position.
        """
        if isinstance(S_ij, ShapeOnly):
            return S_ij
        keys = first + np.arange(S_ij.shape[1])
        last = np.full((len(S_ij), 1), n - 1)
        if self.causal:
            last = (
                (i * self.B_r + np.arange(len(S_ij))[:, None]) // self.group + n - self.queries[s]
            )
        allowed = keys <= last
        return S_ij if allowed.all() else np.where(allowed, S_ij, S_ij.dtype.type(-np.inf))

    def shapes(self) -> dict[str, tuple[int, int]]:
        """Return the shapes of one KV head's Q, K and V, packed end to end."""
        n = sum(self.keys)
        return {"Q": (self.group * sum(self.queries), self.d), "K": (n, self.d), "V": (n, self.d_v)}

    @cached_property
    def alike(self) -> Sequence[Hashable]:
        """Sequences of equal lengths cost alike: for `sram.loop`."""
        return [*zip(self.queries, self.keys, strict=True)]

    def launched(self, s: int) -> Sequence[Hashable]:
        """Return the same of as many row blocks as the longest sequence has: the last one's own,
        and those that are not there.
        """
        own = self.rows_alike(s)
        last: list[Hashable] = [("last", own.pop())] if own else []
        return [*own, *last, *[None] * (ceil_div(self.longest, self.B_r) - len(own) - len(last))]

    def rows_alike(self, s: int) -> list[int]:
        """Return, for each row block of a sequence, the keys that it sees, as those of equally
        many cost alike.
        """
        return [self.seen(s, i, self.keys[s]) for i in range(self.row_blocks(s))]

"""Groups of query heads that share a KV head: grouped-query and multi-query attention.

Query heads g·k … g·k + g − 1 share KV head k. "grouped" makes of each group one problem of g·N_q
queries against one KV head, its rows interleaved by position: row r is query r // g of the group's
member r % g (what kernels call packed GQA). Algorithms run on that as they are; a mask and dropout
must know that rows are no longer positions.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.attention.masks.band import Band
from flashsim.attention.masks.bias import Bias
from flashsim.attention.masks.rules import All, Bools, Both, Dense, Head, Index, Mask, allowed_by
from flashsim.attention.masks.scores import ScoreMod
from flashsim.attention.masks.tree import Tree
from flashsim.attention.shapes import Shape


def interleave(a: Array, group: int) -> Array:
    """Return (..., H_q, N, w) as (..., H_kv, g·N, w): the rows of a group's heads, by position."""
    if group == 1:
        return a
    *leading, heads, N, width = a.shape
    split = a.reshape(*leading, heads // group, group, N, width).swapaxes(-3, -2)
    return split.reshape(*leading, heads // group, group * N, width)


def by_head(a: Array, group: int) -> Array:
    """Return (..., H_kv, g·N, w) as (..., H_q, N, w): the inverse of `interleave`."""
    if group == 1:
        return a
    *leading, heads, rows, width = a.shape
    split = a.reshape(*leading, heads, rows // group, group, width).swapaxes(-3, -2)
    return split.reshape(*leading, heads * group, rows // group, width)


def grouped(mask: Mask, group: int, N_q: int) -> Mask:
    """Return the mask, one of query heads of N_q rows, for the rows of groups."""
    if group == 1 or isinstance(mask, All):
        return mask
    if isinstance(mask, Both):
        return Both(grouped(mask.a, group, N_q), grouped(mask.b, group, N_q))
    if isinstance(mask, Bias) and mask.is_table:
        return mask.grouped(group)
    if isinstance(mask, Dense | Bias):
        return type(mask)(_grouped_array(mask.array, group, N_q))
    if isinstance(mask, ScoreMod):
        return mask.grouped(group)
    return GroupedTree(mask, group) if isinstance(mask, Tree) else GroupedMask(mask, group)


def summed_over(bias: Bias, group: int, N_q: int) -> int | None:
    """Return the axis of a grouped bias's gradient, as (N_q, g, N_k), that is summed to give the
    bias's; None: there is none.

    Rows that the heads of a group share are stored for each of them: 1. One row of a head is, for
    each of its queries: 0.
    """
    rows = bias.matrix[0] > 1
    each = bias.array.ndim > 2 and bias.array.shape[-3] > 1
    if bias.is_table or group == 1 or N_q == 1 or rows == each:
        return None
    return 1 if rows else 0


def _grouped_array(array: Array, group: int, N_q: int) -> Array:
    """Return an array for the rows of groups. Where it has rows, each is stored, and read, once
    for each head.
    """
    if array.ndim > 2 and array.shape[-3] > 1:
        return interleave(np.broadcast_to(array, (*array.shape[:-2], N_q, array.shape[-1])), group)
    if array.ndim > 1 and array.shape[-2] > 1:
        return array.repeat(group, axis=-2)
    return array


class GroupedMask(Mask):
    """A mask by position, for the interleaved rows of a group: row r is position r // g of its
    query head r % g.

    `head` is the KV head's index; `mask` itself is asked about query heads, with the shape of one.
    """

    def __init__(self, mask: Mask, group: int) -> None:
        self._mask = mask
        self._group = group

    def _one(self, shape: Shape) -> Shape:
        return replace(shape, N_q=shape.N_q // self._group)

    def _heads(self, head: Head) -> list[Head]:
        """Return the query heads of a group to ask: one, if all have the same mask."""
        members = range(self._group if self._mask.per_head else 1)
        return [
            (*head[:-1], head[-1] * self._group + member) if head else head for member in members
        ]

    def check(self, shape: Shape, leading: Head) -> None:
        self._mask.check(
            self._one(shape), (*leading[:-1], leading[-1] * self._group) if leading else leading
        )

    def allows(self, rows: Index, cols: Index, shape: Shape, head: Head) -> Bools:
        allowed = np.empty((len(rows), len(cols)), bool)
        for member, query_head in enumerate(self._heads(head)):
            mine = rows % self._group == member if self._mask.per_head else slice(None)
            allowed[mine] = allowed_by(
                self._mask, rows[mine] // self._group, cols, self._one(shape), query_head
            )
        return allowed

    def live(
        self, rows: Index, row_ends: Index, cols: Index, col_ends: Index, shape: Shape, head: Head
    ) -> Bools:
        """Ask for the positions that a tile's rows are of; a tile is live if it is for any head
        of the group.
        """
        tops = rows // self._group
        ends = (row_ends - 1) // self._group + 1
        one = self._one(shape)
        return np.asarray(
            np.any(
                [
                    self._mask.live(tops, ends, cols, col_ends, one, query_head)
                    for query_head in self._heads(head)
                ],
                axis=0,
            )
        )

    def full(
        self, rows: Index, row_ends: Index, cols: Index, col_ends: Index, shape: Shape, head: Head
    ) -> Bools:
        """Ask likewise; a tile is full if it is for every head of the group."""
        tops = rows // self._group
        ends = (row_ends - 1) // self._group + 1
        one = self._one(shape)
        return np.asarray(
            np.all(
                [
                    self._mask.full(tops, ends, cols, col_ends, one, query_head)
                    for query_head in self._heads(head)
                ],
                axis=0,
            )
        )

    def keys(self, shape: Shape, head: Head) -> int:
        return max(
            self._mask.keys(self._one(shape), query_head) for query_head in self._heads(head)
        )

    def queries(self, shape: Shape, head: Head) -> int:
        return self._group * max(
            self._mask.queries(self._one(shape), query_head) for query_head in self._heads(head)
        )

    def band(self, shape: Shape, head: Head) -> Band | None:
        """Return the band that all heads of the group have, in positions, not rows; None if each
        may have its own.
        """
        return (
            None if self._mask.per_head else self._mask.band(self._one(shape), self._heads(head)[0])
        )

    @property
    def per_head(self) -> bool:
        return self._mask.per_head

    def __repr__(self) -> str:
        return f"GroupedMask({self._mask!r}, {self._group})"


class GroupedTree(GroupedMask, Tree):
    """A tree whose bitmask has a row for each row of a group, (g·N_q, ⌈N_q/32⌉) words."""

    def __init__(self, tree: Tree, group: int) -> None:
        GroupedMask.__init__(self, tree, group)
        self.parents = tree.parents
        self._each = tree

    def band(self, shape: Shape, head: Head) -> Band:
        return self._each.band(self._one(shape), head)

    @property
    def tree(self) -> Tree:
        return self

    @cached_property
    def attends(self) -> Bools:
        """Which row attends to which node, (g·N_q, N_q)."""
        return self._each.attends.repeat(self._group, axis=0)

    def paths(self) -> list[list[int]]:
        """Return those of the tree: nodes, not rows."""
        return self._each.paths()

"""The mask of a tree of draft tokens, as in speculative decoding: a node attends to itself, its
ancestors and all earlier keys.

Source: "FlashAttention: Theory and Practice", its section on tree masking for speculative decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.attention.arguments import check_array, short_repr
from flashsim.attention.masks.band import Band
from flashsim.attention.masks.rules import BandMask, Bools, Head
from flashsim.attention.shapes import Shape

Words = NDArray[np.uint32]
WORD = 32  # bits


class Tree(BandMask):
    """A tree of drafted tokens after a committed prefix: queries are the N_q nodes, and so are the
    last N_q keys.

    A node attends to itself, its ancestors and the N_k − N_q keys of the prefix; not to siblings,
    nor to cousins. `parents` has an entry for each node: the index of its parent, which comes
    before it, or −1 or None for a root, of which there may be several. Other entries raise
    ValueError, as do N_q ≠ len(parents) and N_k < N_q in a run.

    In HBM it is "tree", (N_q, ⌈N_q/32⌉) words: bit c mod 32 of word ⌊c/32⌋ in row r says whether
    node r attends to node c. The prefix has no bits; positions tell. A mask may have one `Tree`.
    """

    def __init__(self, parents: Any) -> None:
        entries = (
            check_array("Tree's parents", parents).tolist()
            if isinstance(parents, np.ndarray)
            else parents
        )
        if not isinstance(entries, Iterable):
            raise ValueError(
                f"Tree's parents is {short_repr(parents)}; expected one entry for each node"
            )
        self.parents = tuple(_parent(node, entry) for node, entry in enumerate(entries))

    def check(self, shape: Shape, leading: Head) -> None:
        if shape.N_q != len(self.parents):
            raise ValueError(
                f"Tree has {len(self.parents)} nodes; expected N_q = {shape.N_q}, a node for each "
                "query"
            )
        if shape.N_k < shape.N_q:
            raise ValueError(
                f"N_k is {shape.N_k}; expected at least {shape.N_q}, as Tree's nodes are the last "
                "keys"
            )

    def paths(self) -> list[list[int]]:
        """Return each root-to-leaf path as its nodes, in order of the leaves."""
        inner = set(self.parents)
        return [
            np.flatnonzero(self.attends[leaf]).tolist()
            for leaf in range(len(self.parents))
            if leaf not in inner
        ]

    def band(self, shape: Shape, head: Head) -> Band:
        """Return that of a causal mask: no node attends to a later one."""
        return Band(None, 0, shape.N_k, is_exact=False)

    @property
    def tree(self) -> Tree:
        return self

    @cached_property
    def attends(self) -> Bools:
        """Which node attends to which, (N_q, N_q)."""
        return _ancestors(self.parents)

    @cached_property
    def words(self) -> Words:
        """The bitmask, (N_q, ⌈N_q/32⌉) words."""
        return _packed(self.attends)

    def __repr__(self) -> str:
        return f"Tree({list(self.parents)})"


def _parent(node: int, entry: Any) -> int:
    """Return the parent as an index, −1 for a root. ValueError for what is neither."""
    if entry is None:
        return -1
    if isinstance(entry, bool) or not isinstance(entry, int | np.integer) or not -1 <= entry < node:
        earlier = f"the index of an earlier node (at most {node - 1}), or " if node else ""
        raise ValueError(
            f"Tree's parents[{node}] is {short_repr(entry)}; expected {earlier}-1 or None for a "
            "root"
        )
    return int(entry)


def _ancestors(parents: Sequence[int]) -> Bools:
    attends = np.eye(len(parents), dtype=bool)
    for node, parent in enumerate(parents):
        if parent != -1:
            attends[node] |= attends[parent]
    return attends


def _packed(attends: Bools) -> Words:
    whole_words = np.pad(attends, ((0, 0), (0, -attends.shape[1] % WORD)))
    return np.packbits(whole_words, axis=1, bitorder="little").view("<u4").astype(np.uint32)

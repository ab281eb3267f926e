"""What the steps of a run hand on: a `Task`, what is asked, checked; and its `Plan`, the problems that it comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from flashsim.algorithms.blocks import Sizing
from flashsim.algorithms.record import Algorithm
from flashsim.masks.rules import All, Bools, Head, Mask
from flashsim.problem.arguments import check_tiles
from flashsim.problem.inputs import Array, Inputs
from flashsim.problem.matrices import kind_of
from flashsim.problem.shapes import Blocks, Shape
from flashsim.run.interleaving import interleave


@dataclass(frozen=True)
class AttentionVariant:
    """Scale τ, mask, dropout and the algorithm's own options by name, of a run, all checked.

    Algorithms that skip empty tiles compute all tiles if not `skips`: block sizes are chosen for that.
    `group` is of how many query heads the rows are interleaved: mask and dropout are for such rows (`flashsim.run.interleaving`).
    """

    tau: float
    mask: Mask
    dropout_p: float
    seed: int
    options: Mapping[str, Any]
    skips: bool = True
    group: int = 1


def attended(variant: AttentionVariant, blocks: Blocks, shape: Shape, head: Head, group: int = 1) -> Bools | None:
    """Return the whole (N_q, N_k) mask of one query head, block mask included, for the reference; None if it attends to all.

    `variant` is the run's as it was asked for; with `group` > 1, blocks are of interleaved rows of that many heads.
    """
    block_mask = variant.options.get("block_mask")
    given = None if isinstance(block_mask, str) else block_mask  # "live" leaves out what is masked
    if isinstance(variant.mask, All) and given is None:
        return None
    whole = variant.mask.whole(shape, head)
    if given is None:
        return whole
    rows, member = replace(shape, N_q=group * shape.N_q), head[-1] % group if head else 0
    tiles = check_tiles(given, blocks, rows)
    spread = tiles.repeat(blocks.B_r, axis=0)[: rows.N_q].repeat(blocks.B_c, axis=1)[:, : shape.N_k]
    return np.asarray(whole & spread[member::group])


@dataclass(frozen=True)
class Lengths:
    """What `Inputs` say of themselves, where there are none: to count on shapes alone."""

    shape: Shape
    group: int
    dtype: np.dtype[Any]
    leading: Head = ()


@dataclass(frozen=True)
class Task:
    """One pass over all heads, as it was asked for.

    given  Q, K, V, or their lengths alone
    more   what a backward pass is given besides, (..., H_q, N, width), by name
    saved  what the forward pass left for it, by name: a matrix for each of its problems
    """

    algorithm: Algorithm
    given: Inputs | Lengths
    variant: AttentionVariant
    M: int
    sizing: Sizing
    gqa: str
    check_finite: bool
    more: Mapping[str, Array] = field(default_factory=dict)
    saved: Mapping[str, Sequence[Array]] = field(default_factory=dict)

    @property
    def needs(self) -> tuple[str, ...]:
        """The matrices in HBM at the beginning. Dropout's are P_dropped and Z for Algorithm 3, R for other backward passes."""
        operands = self.algorithm.operands
        if not self.variant.dropout_p:
            return tuple(name for name in operands if name != "P_dropped")
        if self.algorithm.direction == "forward":
            return operands
        return (*operands, "Z" if "P" in operands else "R")


@dataclass(frozen=True)
class Plan:
    """The problems to run, alike but in their numbers: a query head each, or `group` of them with their rows interleaved.

    `shape` and `variant` are one problem's; `leading` counts the problems.
    """

    task: Task
    group: int
    shape: Shape
    variant: AttentionVariant
    leading: Head
    blocks: Blocks

    @property
    def parts(self) -> bool:
        """Whether query heads that share a KV head run each on its own, and so have dK and dV in parts."""
        return self.task.given.group > 1 and self.group == 1

    def operand(self, name: str, head: Head, number: int) -> Array:
        """Return a matrix of the problem at `head`, the `number`th: of query heads, or of the KV head that they share."""
        task, given = self.task, cast(Inputs, self.task.given)
        if name in task.saved:
            return task.saved[name][number]
        array: Any = task.more[name] if name in task.more else getattr(given, name)
        by_key = kind_of(name, task.algorithm.matrices).rows == "N_k"
        if self.group > 1 and not by_key:
            members = slice(self.group * head[-1], self.group * (head[-1] + 1))
            array, head = interleave(array[head[:-1]][members], self.group), (0,)
        return cast(Array, array[given.kv(head) if by_key and self.parts else head])

"""Every algorithm of a user's is compared with what no schedule moves less than: below it, numbers
came another way.

The bounds are `flashsim.theory.bounds` (forward and backward), proved for every M. A pass
with dropout has none here: a schedule that knows what is dropped need not compute it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from flashsim.attention.arguments import check_tiles
from flashsim.attention.masks.allowed import LONGEST, allowed_pairs
from flashsim.attention.masks.rules import Head
from flashsim.memory.errors import MemoryModelError
from flashsim.simulate.attention import AttentionPlan
from flashsim.theory.bounds.backward import lower_bound_backward
from flashsim.theory.bounds.certificate import most_terms
from flashsim.theory.bounds.forward import Phases, lower_bound

FAR = 2
"""Up to how many times the quickest bound the best bound is looked for, which takes some 50 ms,
once for each problem.
"""
Sizes = tuple[int, int, int, int]
"""N_q, N_k, d, d_v."""
Pairs = tuple[int, int, int]
"""How many pairs of query and key there are, and how many queries and keys have any."""


def least_accesses(
    plan: AttentionPlan, accesses: int, peak: int, heads: Sequence[Head]
) -> int | None:
    """Return what no schedule moves less than, one launch for each of `heads`, if that is more
    than `accesses`; else None.
    """
    if plan.problem.dropout_p or not heads:
        return None
    M = _capacity(plan, peak)
    same = not plan.row_mask.per_head
    try:
        pairs = [_pairs(plan, head) for head in (heads[:1] if same else heads)]
    except ValueError:  # of a mask that is too large to look at
        return None
    times = len(heads) if same else 1
    if accesses >= FAR * times * sum(_quick_bound(plan, M, *each) for each in pairs):
        return None
    least = times * sum(_bound(plan.program.direction, _sizes(plan), M, each) for each in pairs)
    return least if accesses < least else None


def moved_too_little(plan: AttentionPlan, accesses: int, peak: int, least: int) -> MemoryModelError:
    """Return the error for an algorithm that computes attention with fewer accesses than any
    schedule makes.
    """
    return MemoryModelError(
        f"{plan.program.name!r} ({plan.program.title}) makes {accesses:,} accesses, and no "
        "schedule makes fewer than "
        f"{least:,} at this problem, with M = {_capacity(plan, peak):,} elements on chip: numbers "
        "reached the chip by a way that "
        "is not counted, such as a global, a closure, or a copy that outlived its turn"
    )


def _capacity(plan: AttentionPlan, peak: int) -> int:
    return plan.M if plan.enforced else max(plan.M, _rounded_up(peak))


def _sizes(plan: AttentionPlan) -> Sizes:
    shape = plan.shape
    return shape.N_q, shape.N_k, shape.d, shape.d_v


def _rounded_up(peak: int) -> int:
    """Return a peak or a little more, so that few M differ: what is proved of a larger M holds
    of a smaller one, too.
    """
    step = 1 << max(peak.bit_length() - 4, 0)
    return -(-peak // step) * step


def _pairs(plan: AttentionPlan, head: Head) -> Pairs:
    """Return the pairs of one launch. Raises ValueError where they are too many to look at."""
    rule = plan.row_mask
    shape = plan.shape
    tiles = plan.options.get("block_mask")
    if tiles is None or isinstance(tiles, str):
        return allowed_pairs(rule, shape, head)[1:]
    if shape.N_q * shape.N_k > LONGEST:
        raise ValueError("block_mask is too large to look at")
    rows = check_tiles(tiles, plan.blocks, shape).repeat(plan.blocks.B_r, axis=0)[: shape.N_q]
    allowed = rows.repeat(plan.blocks.B_c, axis=1)[:, : shape.N_k] & np.asarray(
        rule.whole(shape, head)
    )
    return int(allowed.sum()), int(allowed.any(1).sum()), int(allowed.any(0).sum())


def _quick_bound(plan: AttentionPlan, M: int, pairs: int, queries: int, keys: int) -> int:
    """Return what is read and written once at least; forward, also what the theorem says of a
    few phases.
    """
    N_q, N_k, d, d_v = _sizes(plan)
    if plan.program.direction == "backward":
        return (queries + keys) * (d + d_v) + N_q * d + N_k * (d + d_v)
    best = queries * d + keys * (d + d_v) + N_q * d_v
    for Y in (M + M // 4 + 1, M + M // 2 + 1, 2 * M, 3 * M):
        n = (pairs * d_v - 1) // most_terms(d, Y) + 1
        if n >= 2:
            best = max(best, Y + (n - 2) * (Y - M) + 1)
    return best


@lru_cache(4096)
def _bound(direction: str, sizes: Sizes, M: int, pairs: Pairs) -> int:
    N_q, N_k, d, d_v = sizes
    all_pairs, queries, keys = pairs
    lower: Any = lower_bound if direction == "forward" else lower_bound_backward
    bound: Phases = lower(
        N_q=N_q, N_k=N_k, d=d, d_v=d_v, M=M, pairs=all_pairs, queries=queries, keys=keys
    )
    return bound.accesses

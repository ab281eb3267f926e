"""The lower bound that `flashsim.prove` proves, of all heads, at a point of a sweep."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim import theory
from flashsim.algorithms import FORWARD
from flashsim.algorithms.own import forward_of
from flashsim.analysis.proving import Proof
from flashsim.analysis.sweeping.points import Point
from flashsim.attention.arguments import check_tiles
from flashsim.attention.masks.allowed import LONGEST, allowed_pairs
from flashsim.attention.masks.rules import Mask, as_mask
from flashsim.attention.options import check_options
from flashsim.attention.problem import Problem
from flashsim.attention.shapes import Blocks, Shape
from flashsim.simulate.api import count
from flashsim.theory.bounds.backward import BackwardBound
from flashsim.theory.bounds.forward import LowerBound

PROBLEM_ARGUMENTS = signature(Problem.of).parameters.keys()
LOWER_BOUNDS: Mapping[str, Callable[..., LowerBound | BackwardBound]] = {
    "forward": cache(theory.lower_bound),
    "backward": cache(theory.lower_bound_backward),
}
"""The theorems, by direction. Many points of a sweep have the same bound."""
PairCounts = tuple[str, int, int, int]
"""Which pairs of query and key there are, how many, and how many queries and keys have any."""


class NoBound(ValueError):
    """No bound is known to hold, and why."""


@dataclass(frozen=True)
class HeadsBound:
    """The bound of all heads, in elements, and the certificate of one KV head's."""

    accesses: int
    certificate: dict[str, Any]


def bound_of(point: Point, blocks: Blocks, peak: int) -> HeadsBound:
    """Return the bound of all heads at a point whose blocks have this peak. Raises NoBound.

    The query heads of a KV head are bounded together, as rows of one matrix.
    """
    problem = _problem(point)
    if peak > problem.M:
        raise NoBound("its blocks need more than M, and the bound is of what fits M")
    if problem.dropout_p:
        raise NoBound("a schedule that knows what is dropped need not compute it")
    allowed, pairs, queries, keys = _pairs_of_a_head(point, problem, blocks)
    group = problem.group
    if group > 1 and allowed == "causal":
        allowed = "given"  # the rows of several heads are not one triangle
    shape = problem.shape
    direction = point.arguments["direction"]
    bound = LOWER_BOUNDS[direction](
        N_q=group * shape.N_q,
        N_k=shape.N_k,
        d=shape.d,
        d_v=shape.d_v,
        M=problem.M,
        pairs=group * pairs,
        queries=group * queries,
        keys=keys,
    )
    proof = Proof(bound, allowed, group * queries, keys, None, direction)
    kv_heads = problem.heads // group
    return HeadsBound(kv_heads * bound.accesses, proof.certificate())


def _problem(point: Point) -> Problem:
    arguments = {}
    for name, value in point.arguments.items():
        if name in PROBLEM_ARGUMENTS:
            arguments[name] = value
    return Problem.of(**arguments)


def _pairs_of_a_head(point: Point, problem: Problem, blocks: Blocks) -> PairCounts:
    """Return what `allowed_pairs` does, of one query head."""
    options = _options(point)
    rule = as_mask(problem.mask, False, problem.shape, (), options)
    tiles = options.get("block_mask")
    has_tiles = tiles is not None and not isinstance(tiles, str)
    if has_tiles and problem.group > 1 and problem.gqa == "grouped":
        raise NoBound("its block_mask is of rows of several heads")
    try:
        if has_tiles:
            return _pairs_in_tiles(rule, problem.shape, tiles, blocks)
        return allowed_pairs(rule, problem.shape)
    except ValueError as error:
        raise NoBound(str(error)) from None


def _options(point: Point) -> dict[str, Any]:
    """Return the algorithm's own options, checked."""
    algorithm = point.algorithm_pass.algorithm
    assert algorithm is not None
    values = {}
    for name in point.algorithm_pass.options:
        if name in point.arguments:
            values[name] = point.arguments[name]
    return check_options(count, values, repr(algorithm.name), forward_of(algorithm), FORWARD)


def _pairs_in_tiles(rule: Mask, shape: Shape, tiles: Any, blocks: Blocks) -> PairCounts:
    """Return the counts of the pairs in the tiles that are computed."""
    if shape.N_q * shape.N_k > LONGEST:
        raise NoBound(
            f"block_mask leaves out pairs of N_q = {shape.N_q:,} × N_k = {shape.N_k:,}: too many "
            "to look at"
        )
    live = check_tiles(tiles, blocks, shape)
    rows = live.repeat(blocks.B_r, axis=0)[: shape.N_q]
    pairs: NDArray[np.bool_] = rows.repeat(blocks.B_c, axis=1)[:, : shape.N_k]
    pairs = pairs & rule.whole(shape, ())
    queries = int(pairs.any(axis=1).sum())
    keys = int(pairs.any(axis=0).sum())
    return "given", int(pairs.sum()), queries, keys

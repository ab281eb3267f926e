"""The lower bound that `flashsim.prove` proves, of all heads, at a point of a sweep."""

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


class NoBound(ValueError):
    """No bound is known to hold, and why."""


@dataclass(frozen=True)
class HeadsBound:
    """The bound of all heads, in elements, and the certificate of one KV head's."""

    accesses: int
    certificate: dict[str, Any]


@dataclass(frozen=True)
class _Pairs:
    """The pairs of query and key that a schedule has to compute: which, how many, and how many
    queries and keys have any.
    """

    allowed: str
    pairs: int
    queries: int
    keys: int


@dataclass(frozen=True)
class _OneProblem:
    """What a bound depends on: one pass, with the query heads of a KV head as rows of one
    matrix.
    """

    direction: str
    N_q: int
    N_k: int
    d: int
    d_v: int
    M: int
    pairs: int
    queries: int
    keys: int


def bound_of(point: Point, blocks: Blocks, peak: int) -> HeadsBound:
    """Return the bound of all heads at a point whose blocks have this peak. Raises NoBound."""
    problem = _problem(point)
    if peak > problem.M:
        raise NoBound("its blocks need more than M, and the bound is of what fits M")
    if problem.dropout_p:
        raise NoBound("a schedule that knows what is dropped need not compute it")
    head = _pairs_of_a_head(point, problem, blocks)
    shape = problem.shape
    group = problem.group
    direction = point.arguments["direction"]
    one = _OneProblem(
        direction,
        group * shape.N_q,
        shape.N_k,
        shape.d,
        shape.d_v,
        problem.M,
        group * head.pairs,
        group * head.queries,
        head.keys,
    )
    bound = _lower_bound(one)
    # the rows of several heads are not one triangle
    allowed = "given" if group > 1 and head.allowed == "causal" else head.allowed
    proof = Proof(bound, allowed, one.queries, one.keys, None, direction)
    kv_heads = problem.heads // group
    return HeadsBound(kv_heads * bound.accesses, proof.certificate())


def _problem(point: Point) -> Problem:
    arguments = {}
    for name, value in point.arguments.items():
        if name in PROBLEM_ARGUMENTS:
            arguments[name] = value
    return Problem.of(**arguments)


def _pairs_of_a_head(point: Point, problem: Problem, blocks: Blocks) -> _Pairs:
    """Return the pairs of one query head."""
    options = _options(point)
    rule = as_mask(problem.mask, False, problem.shape, (), options)
    tiles = options.get("block_mask")
    has_tiles = tiles is not None and not isinstance(tiles, str)
    if has_tiles and problem.group > 1 and problem.gqa == "grouped":
        raise NoBound("its block_mask is of rows of several heads")
    try:
        if has_tiles:
            return _pairs_in_tiles(rule, problem.shape, tiles, blocks)
        return _Pairs(*allowed_pairs(rule, problem.shape))
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


def _pairs_in_tiles(rule: Mask, shape: Shape, tiles: Any, blocks: Blocks) -> _Pairs:
    """Return the pairs in the tiles that are computed."""
    if shape.N_q * shape.N_k > LONGEST:
        raise NoBound(
            f"block_mask leaves out pairs of N_q = {shape.N_q:,} × N_k = {shape.N_k:,}: too many "
            "to look at"
        )
    live = check_tiles(tiles, blocks, shape)
    rows = live.repeat(blocks.B_r, axis=0)[: shape.N_q]
    pairs: NDArray[np.bool_] = rows.repeat(blocks.B_c, axis=1)[:, : shape.N_k]
    pairs = pairs & rule.whole(shape, ())
    queries = pairs.any(axis=1).sum()
    keys = pairs.any(axis=0).sum()
    return _Pairs("given", int(pairs.sum()), int(queries), int(keys))


@cache
def _lower_bound(problem: _OneProblem) -> LowerBound | BackwardBound:
    arguments = vars(problem).copy()
    if arguments.pop("direction") == "forward":
        return theory.lower_bound(**arguments)
    return theory.lower_bound_backward(**arguments)

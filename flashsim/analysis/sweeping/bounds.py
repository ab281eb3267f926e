"""The lower bound that `flashsim.prove` proves, of all heads, at a point of a sweep."""

from functools import cache
from inspect import signature
from typing import Any

from flashsim import theory
from flashsim.algorithms import FORWARD
from flashsim.algorithms.own import forward_of
from flashsim.analysis.proving import Proof
from flashsim.analysis.sweeping.columns import CERTIFICATE
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

OF_PROBLEM = signature(Problem.of).parameters.keys()
Bound = LowerBound | BackwardBound


class NoBound(ValueError):
    """No bound is known to hold, and why."""


def _proof(point: Point, blocks: Blocks, peak: int) -> tuple[Proof, int]:
    """Return the bound of one KV head's pass, with the rows of all its query heads, and how many
    KV heads there are.
    """
    asked = Problem.of(
        **{name: value for name, value in point.arguments.items() if name in OF_PROBLEM}
    )
    if peak > asked.M:
        raise NoBound("its blocks need more than M, and the bound is of what fits M")
    if asked.dropout_p:
        raise NoBound("a schedule that knows what is dropped need not compute it")
    algorithm = point.way.algorithm
    group = asked.group
    assert algorithm is not None
    given = {name: value for name, value in point.arguments.items() if name in point.way.options}
    own = check_options(count, given, repr(algorithm.name), forward_of(algorithm), FORWARD)
    rule = as_mask(asked.mask, False, asked.shape, (), own)
    shape = asked.shape
    tiles = own.get("block_mask")
    if tiles is not None and not isinstance(tiles, str) and group > 1 and asked.gqa == "grouped":
        raise NoBound("its block_mask is of rows of several heads")
    try:
        if tiles is None or isinstance(tiles, str):
            allowed, pairs, queries, keys = allowed_pairs(rule, shape)
        else:
            allowed, pairs, queries, keys = _of_tiles(rule, shape, tiles, blocks)
    except ValueError as error:
        raise NoBound(str(error)) from None
    direction = point.arguments["direction"]
    together = group * shape.N_q, shape.N_k, shape.d, shape.d_v
    found = _lower(direction, *together, asked.M, group * pairs, group * queries, keys)
    # their rows are not one triangle
    allowed = "given" if group > 1 and allowed == "causal" else allowed
    return Proof(found, allowed, group * queries, keys, None, direction), asked.heads // group


@cache
def _lower(
    direction: str,
    N_q: int,
    N_k: int,
    d: int,
    d_v: int,
    M: int,
    pairs: int,
    queries: int,
    keys: int,
) -> Bound:
    lower = theory.lower_bound if direction == "forward" else theory.lower_bound_backward
    return lower(N_q=N_q, N_k=N_k, d=d, d_v=d_v, M=M, pairs=pairs, queries=queries, keys=keys)


def _of_tiles(rule: Mask, shape: Shape, tiles: Any, blocks: Blocks) -> tuple[str, int, int, int]:
    """Return what `allowed_pairs` does, of those in the tiles that are computed."""
    if shape.N_q * shape.N_k > LONGEST:
        raise ValueError(
            f"block_mask leaves out pairs of N_q = {shape.N_q:,} × N_k = {shape.N_k:,}: too many "
            "to look at"
        )
    live = (
        check_tiles(tiles, blocks, shape)
        .repeat(blocks.B_r, axis=0)[: shape.N_q]
        .repeat(blocks.B_c, axis=1)
    )
    allowed = live[:, : shape.N_k] & rule.whole(shape, ())
    return "given", int(allowed.sum()), int(allowed.any(1).sum()), int(allowed.any(0).sum())


def columns(point: Point, blocks: Blocks, peak: int, accesses: int) -> dict[str, Any]:
    """Return the columns of the bound, with the reason where there is none; and its certificate
    (`flashsim.prove`).
    """
    try:
        proof, kv_heads = _proof(point, blocks, peak)
    except NoBound as error:
        return {"lower_bound_elements": None, "over_bound": None, "no_bound": str(error)}
    least = kv_heads * proof.bound.accesses
    certificate = proof.certificate()
    return {
        "lower_bound_elements": least,
        "over_bound": accesses / least,
        "no_bound": None,
        CERTIFICATE: certificate,
    }

"""Runs beside naive attention and beside theory: how far each result is off, and whether each
count is the closed form's.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashsim import reference
from flashsim.algorithms import Algorithm
from flashsim.algorithms.blocks import Fixed
from flashsim.algorithms.own import backward_of, is_user_defined, resolve
from flashsim.attention.inputs import Array
from flashsim.attention.masks.dropout import keep_mask
from flashsim.attention.qkv import QKV
from flashsim.attention.shapes import Blocks
from flashsim.memory.traffic import Occupancy, Traffic
from flashsim.simulate.api import backward, count, forward
from flashsim.simulate.interleaving import interleave
from flashsim.simulate.results import Result
from flashsim.tracing.observers import Ledger

OnHead = Callable[[int, int], None]
Watch = Callable[[str, int], OnHead]
Compared = tuple[Array, Array, Array]
"""One computed array, naive attention's, and the bound of their difference."""

ROWS_AT_ONCE = 1_024  # of the N_q × N_k score matrix that the naive reference forms
# elements of that matrix up to which gradients are compared: its 20-odd copies fill 8 GB
LARGEST_GRADIENT = 2**25


@dataclass(frozen=True)
class Comparison:
    """One pass over all heads: its cost, its error (None: naive attention is too large to form),
    whether theory agrees.
    """

    title: str
    hbm: Traffic
    sram: Occupancy
    blocks: Blocks
    max_error: float | None
    error_of_bound: float | None
    equals_theory: bool | None
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the counts equal theory and the error is within rounding, as far as compared."""
        return self.equals_theory is not False and (
            self.error_of_bound is None or self.error_of_bound <= 1.0
        )


def run_all(
    inputs: QKV, algorithms: Sequence[Any], watch: Watch, *, both_ways: bool, **options: Any
) -> tuple[dict[str, Comparison], dict[str, Comparison]]:
    """Run each algorithm forward, and backward for a random dO if `both_ways`; return the results
    of each direction, by name.

    `watch(title, heads)` is called before each pass, and what it returns after each head, as
    `flashsim.forward`'s `on_head`.
    """
    forwards = {}
    backwards = {}
    passes = [resolve(each, "forward") for each in algorithms]
    user_options: set[str] = set()
    for algorithm in passes:
        if is_user_defined(algorithm):
            user_options.update(option.name for option in algorithm.options)
    for algorithm in passes:
        name = algorithm.name
        backward_pass = backward_of(algorithm) if both_ways else None
        options_of_others = user_options - {option.name for option in algorithm.options}
        sizes = {name: value for name, value in options.items() if name not in options_of_others}
        if backward_pass is not None:
            sizes = sized_for_both(backward_pass, inputs.Q, inputs.K, inputs.V, sizes)
        on_head = watch(algorithm.title, inputs.heads)
        start = time.perf_counter()
        run = forward(algorithm, inputs.Q, inputs.K, inputs.V, **sizes, on_head=on_head)
        forwards[name] = _result(run, forward_errors(run), time.perf_counter() - start)
        if backward_pass is None:
            continue
        dO = np.random.default_rng(0).standard_normal(run.O.shape).astype(run.O.dtype)
        on_head = watch(backward_pass.title, inputs.heads)
        start = time.perf_counter()
        gradients = backward(backward_pass, run, dO, on_head=on_head)
        errors = backward_errors(run, gradients, dO)
        backwards[name] = _result(gradients, errors, time.perf_counter() - start)
    return forwards, backwards


def sized_for_both(
    backward_pass: Algorithm, Q: Array, K: Array, V: Array, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a forward pass's options; its blocks fit its backward pass too where that keeps
    them, as a block mask does.
    """
    sized = dict(options)
    has_sizes = sized.get("sizing", "fit") != "fit" or sized.get("blocks") is not None
    if has_sizes or "block_mask" not in backward_pass.parts:
        return sized
    shape = {
        "N_q": Q.shape[-2],
        "N_k": K.shape[-2],
        "d": Q.shape[-1],
        "d_v": V.shape[-1],
        "dtype": Q.dtype.name,
    }
    heads: dict[str, Any] = {"heads": math.prod(Q.shape[:-2]), "kv_heads": math.prod(K.shape[:-2])}
    unused = ("scale", "seed", "blocks", "mask")
    others = {name: value for name, value in sized.items() if name not in unused}
    fitting = count(backward_pass, **shape, **heads, **others, direction="backward").blocks
    return sized | {"sizing": Fixed(fitting.B_r, fitting.B_c)}


def _result(cost: Result, compared: Iterable[Compared], seconds: float) -> Comparison:
    worst, of_bound = _worst(compared) or (None, None)
    return Comparison(
        cost.plan.program.title,
        cost.hbm,
        cost.sram,
        cost.blocks,
        worst,
        of_bound,
        cost.equals_theory,
        seconds,
    )


def forward_errors(run: Result) -> Iterator[Compared]:
    """Yield O, naive attention and the bound, some rows of one head at a time."""
    inputs = run.plan.inputs
    p = run.problem.dropout_p
    shape = run.plan.inputs.shape
    rounded = reference.rounding(run.plan.program, run.blocks)
    for number, head in enumerate(np.ndindex(inputs.leading)):
        Q = inputs.Q[head]
        K = inputs.K[inputs.kv(head)]
        V = inputs.V[inputs.kv(head)]
        whole, keep = _whole_masks(run, head, number)
        for top in range(0, shape.N_q, ROWS_AT_ONCE):
            rows = slice(top, top + ROWS_AT_ONCE)
            parts: dict[str, Any] = {
                "scale": run.problem.scale,
                "mask": None if whole is None else whole[rows],
                "keep": None if keep is None else keep[rows],
                "dropout_p": p,
            }
            parts["sink"] = _sink(run, head)
            bound = reference.error_bound(Q[rows], K, V, **rounded, **parts)
            yield run.O[head][rows], reference.attention(Q[rows], K, V, **parts), bound


def backward_errors(run: Result, gradients: Result, dO: Array) -> Iterator[Compared]:
    """Yield dQ, dK, dV and dsink, with what they should be and the bound, one KV head with its
    query heads at a time.

    Heads of a group may have different sinks, so the oracle takes them apart. Where they ran as
    one, a sum over a head's rows was one over g times as many, and first-order terms are taken so
    much more often.
    """
    inputs = run.plan.inputs
    p = run.problem.dropout_p
    shape = run.plan.inputs.shape
    g = run.plan.inputs.group
    if g * shape.N_q * shape.N_k > LARGEST_GRADIENT:
        return
    rounded = reference.backward_rounding(gradients.plan.program, run.blocks, gradients.blocks)
    has_sink = run.plan.mask.sink is not None
    C = 2.0 * g if has_sink and run.problem.gqa == "grouped" else 2.0
    heads = list(enumerate(np.ndindex(inputs.leading)))
    for first in range(0, len(heads), g):
        group = heads[first : first + g]
        kv_head = inputs.kv(group[0][1])
        masks = [_whole_masks(run, head, number) for number, head in group]
        mask = _stack(mask for mask, _ in masks)
        keep = _stack(keep for _, keep in masks)
        Q = np.stack([inputs.Q[head] for _, head in group])
        dO_h = np.stack([dO[head] for _, head in group])
        dQ = np.stack([gradients.dQ[head] for _, head in group])
        sinks = np.stack([_sink(run, head) for _, head in group]) if has_sink else None
        if run.problem.gqa == "grouped" and not has_sink:
            mask = None if mask is None else interleave(mask, g)
            keep = None if keep is None else interleave(keep, g)
            Q = interleave(Q, g)
            dO_h = interleave(dO_h, g)
            dQ = interleave(dQ, g)
        operands = Q, inputs.K[kv_head], inputs.V[kv_head], dO_h
        parts: dict[str, Any] = {
            "scale": run.problem.scale,
            "mask": mask,
            "keep": keep,
            "dropout_p": p,
            "sink": sinks,
        }
        exact = reference.gradients(*operands, **parts)
        bounds = reference.gradient_bounds(*operands, **rounded, **parts, C=C)
        yield dQ, exact.dQ, bounds.dQ
        stored = inputs.dtype
        yield gradients.dK[kv_head], exact.dK.sum(axis=0), _bound(exact.dK, bounds.dK, stored)
        yield gradients.dV[kv_head], exact.dV.sum(axis=0), _bound(exact.dV, bounds.dV, stored)
        if gradients.dsink is not None:
            yield (
                np.stack([gradients.dsink[head] for _, head in group]),
                reference.sink_gradient(*operands, **parts),
                reference.sink_gradient_bound(*operands, **rounded, **parts, C=C),
            )


def _stack(masks: Iterable[Array | None]) -> Array | None:
    """Return the masks of several heads as one array; None where there are none."""
    arrays = [mask for mask in masks if mask is not None]
    return np.stack(arrays) if arrays else None


def _bound(exact: Array, bounds: Array, stored: Any) -> Array:
    """Return the bound of the sum over the heads of a group."""
    if len(exact) == 1:
        bound: Array = bounds[0]
        return bound
    return reference.group_bound(exact, bounds, stored=stored)


def _sink(run: Result, head: tuple[int, ...]) -> Any:
    return None if run.plan.mask.sink is None else run.plan.mask.sink.of(head, 1)[0, 0]


def _whole_masks(
    run: Result, head: tuple[int, ...], number: int
) -> tuple[Array | None, Array | None]:
    problem = run.problem
    keep = None
    if problem.dropout_p:
        shape = problem.shape
        keep = keep_mask(problem.seed, problem.dropout_p, shape.N_q, shape.N_k, number)
    return run.plan.attended(head), keep


def _worst(compared: Iterable[Compared]) -> tuple[float, float] | None:
    """Return the largest error, and the largest error divided by its bound; None if nothing was
    compared. NaN is ∞.
    """
    worst: tuple[float, float] | None = None
    for computed, exact, bound in compared:
        differences = np.abs(computed.astype(np.float64) - exact)
        error = float(np.nan_to_num(differences, nan=np.inf, posinf=np.inf).max())
        ratio = reference.of_bound(computed, exact, bound)
        if worst is not None:
            error = max(worst[0], error)
            ratio = max(worst[1], ratio)
        worst = (error, ratio)
    return worst


@dataclass(frozen=True)
class Counted:
    """A tally with its line-by-line ledger, and whether the closed form agrees: None where there
    is none.
    """

    algorithm: Algorithm
    tally: Result
    ledger: Ledger
    arguments: Mapping[str, Any]
    agrees: bool | None


def count_lines(algorithm: Any, arguments: Mapping[str, Any]) -> Counted:
    """Count a run and keep which line moved what. Arguments as for `flashsim.count`."""
    algorithm = resolve(algorithm, arguments["direction"])
    ledger = Ledger()
    result = count(algorithm, **arguments, observers=[ledger])
    return Counted(algorithm, result, ledger, arguments, result.equals_theory)

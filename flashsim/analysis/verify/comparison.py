"""Runs beside naive attention and beside theory: how far each result is off, and whether each
count is the closed form's.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flashsim import reference, theory
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
"""Of one result: what was got, what naive attention says, and the bound."""

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
    given: QKV, algorithms: Sequence[Any], watch: Watch, *, both_ways: bool, **options: Any
) -> tuple[dict[str, Comparison], dict[str, Comparison]]:
    """Run each algorithm forward, and backward for a random dO if `both_ways`; return the results
    of each direction, by name.

    `watch(title, heads)` is called before each pass, and what it returns after each head, as
    `flashsim.forward`'s `on_head`.
    """
    forwards = {}
    backwards = {}
    passes = [resolve(what, "forward") for what in algorithms]
    of_users = {
        option.name
        for algorithm in passes
        if is_user_defined(algorithm)
        for option in algorithm.options
    }
    for algorithm in passes:
        name = algorithm.name
        back = backward_of(algorithm) if both_ways else None
        others = of_users - {option.name for option in algorithm.options}
        taken = {option: value for option, value in options.items() if option not in others}
        sizes = taken if back is None else sized_for_both(back, given.Q, given.K, given.V, taken)
        on_head = watch(algorithm.title, given.heads)
        start = time.perf_counter()
        run = forward(algorithm, given.Q, given.K, given.V, **sizes, on_head=on_head)
        forwards[name] = _result(run, run, forward_errors(run), time.perf_counter() - start)
        if back is None:
            continue
        dO = np.random.default_rng(0).standard_normal(run.O.shape).astype(run.O.dtype)
        on_head = watch(back.title, given.heads)
        start = time.perf_counter()
        found = backward(back, run, dO, on_head=on_head)
        backwards[name] = _result(
            run, found, backward_errors(run, found, dO), time.perf_counter() - start
        )
    return forwards, backwards


def sized_for_both(
    back: Algorithm, Q: Array, K: Array, V: Array, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a forward pass's options; its blocks fit its backward pass too where that keeps
    them, as a block mask does.
    """
    asked = dict(options)
    if (
        "block_mask" not in back.parts
        or asked.get("sizing", "fit") != "fit"
        or asked.get("blocks") is not None
    ):
        return asked
    shape = {
        "N_q": Q.shape[-2],
        "N_k": K.shape[-2],
        "d": Q.shape[-1],
        "d_v": V.shape[-1],
        "dtype": Q.dtype.name,
    }
    heads: dict[str, Any] = {"heads": math.prod(Q.shape[:-2]), "kv_heads": math.prod(K.shape[:-2])}
    plain = {
        name: value
        for name, value in asked.items()
        if name not in ("scale", "seed", "blocks", "mask")
    }
    fitting = count(back, **shape, **heads, **plain, direction="backward").blocks
    return asked | {"sizing": Fixed(fitting.B_r, fitting.B_c)}


def _result(run: Result, cost: Result, compared: Iterable[Compared], seconds: float) -> Comparison:
    worst, of_bound = _worst(compared) or (None, None)
    return Comparison(
        cost.plan.program.title,
        cost.hbm,
        cost.sram,
        cost.blocks,
        worst,
        of_bound,
        _agrees(run, cost),
        seconds,
    )


def _agrees(run: Result, cost: Result) -> bool | None:
    """Whether theory says the same; None for an algorithm without a form, and for masks by head."""
    algorithm = cost.plan.program
    plan = run.plan
    if plan.mask.per_head or not _has_form(algorithm):
        return None
    problem = replace(run.problem, M=cost.sram.capacity, mask=plan.mask)
    blocks = (cost.blocks.B_r, cost.blocks.B_c)
    want = theory.exact(
        algorithm, problem, blocks=blocks, direction=algorithm.direction, **plan.options
    )
    return (cost.hbm, cost.sram.peak, cost.blocks) == (want.hbm, want.sram.peak, want.blocks)


def _has_form(algorithm: Algorithm) -> bool:
    try:
        theory.form_of(algorithm, algorithm.direction)
    except ValueError:
        return False
    return True


def forward_errors(run: Result) -> Iterator[Compared]:
    """Yield O, naive attention and the bound, some rows of one head at a time."""
    given = run.plan.inputs
    p = run.problem.dropout_p
    shape = run.plan.inputs.shape
    rounded = reference.rounding(run.plan.program, run.blocks)
    for number, head in enumerate(np.ndindex(given.leading)):
        Q = given.Q[head]
        K = given.K[given.kv(head)]
        V = given.V[given.kv(head)]
        whole, keep = _whole_masks(run, head, number)
        for top in range(0, shape.N_q, ROWS_AT_ONCE):
            rows = slice(top, top + ROWS_AT_ONCE)
            mask, kept = (None if a is None else a[rows] for a in (whole, keep))
            parts: dict[str, Any] = {
                "scale": run.problem.scale,
                "mask": mask,
                "keep": kept,
                "dropout_p": p,
            }
            parts["sink"] = _sink(run, head)
            bound = reference.error_bound(Q[rows], K, V, **rounded, **parts)
            yield run.O[head][rows], reference.attention(Q[rows], K, V, **parts), bound


def backward_errors(run: Result, found: Result, dO: Array) -> Iterator[Compared]:
    """Yield dQ, dK, dV and dsink, with what they should be and the bound, one KV head with its
    query heads at a time.

    Heads of a group may have different sinks, so the oracle takes them apart. Where they ran as
    one, a sum over a head's rows was one over g times as many, and first-order terms are taken so
    much more often.
    """
    given = run.plan.inputs
    p = run.problem.dropout_p
    shape = run.plan.inputs.shape
    g = run.plan.inputs.group
    if g * shape.N_q * shape.N_k > LARGEST_GRADIENT:
        return
    rounded = reference.backward_rounding(found.plan.program, run.blocks, found.blocks)
    sunk = run.plan.mask.sink is not None
    C = 2.0 * g if sunk and run.problem.gqa == "grouped" else 2.0
    heads = list(enumerate(np.ndindex(given.leading)))
    for first in range(0, len(heads), g):
        sharing = heads[first : first + g]
        shared = given.kv(sharing[0][1])
        masks = [_whole_masks(run, head, number) for number, head in sharing]
        whole, keep = (None if of[0] is None else np.stack(of) for of in zip(*masks, strict=True))
        Q, dO_h, dQ = (np.stack([a[head] for _, head in sharing]) for a in (given.Q, dO, found.dQ))
        sinks = np.stack([_sink(run, head) for _, head in sharing]) if sunk else None
        if run.problem.gqa == "grouped" and not sunk:
            whole, keep = (None if a is None else interleave(a, g) for a in (whole, keep))
            Q = interleave(Q, g)
            dO_h = interleave(dO_h, g)
            dQ = interleave(dQ, g)
        operands = Q, given.K[shared], given.V[shared], dO_h
        parts: dict[str, Any] = {
            "scale": run.problem.scale,
            "mask": whole,
            "keep": keep,
            "dropout_p": p,
            "sink": sinks,
        }
        want = reference.gradients(*operands, **parts)
        bound = reference.gradient_bounds(*operands, **rounded, **parts, C=C)
        yield dQ, want.dQ, bound.dQ
        for got, exact, off in ((found.dK, want.dK, bound.dK), (found.dV, want.dV, bound.dV)):
            off = (
                off[0] if len(exact) == 1 else reference.group_bound(exact, off, stored=given.dtype)
            )
            yield got[shared], exact.sum(axis=0), off
        if found.dsink is not None:
            off = reference.sink_gradient_bound(*operands, **rounded, **parts, C=C)
            yield (
                np.stack([found.dsink[head] for _, head in sharing]),
                reference.sink_gradient(*operands, **parts),
                off,
            )


def _sink(run: Result, head: tuple[int, ...]) -> Any:
    return None if run.plan.mask.sink is None else run.plan.mask.sink.of(head, 1)[0, 0]


def _whole_masks(
    run: Result, head: tuple[int, ...], number: int
) -> tuple[Array | None, Array | None]:
    shape = run.problem.shape
    p = run.problem.dropout_p
    return run.plan.attended(head), keep_mask(
        run.problem.seed, p, shape.N_q, shape.N_k, number
    ) if p else None


def _worst(compared: Iterable[Compared]) -> tuple[float, float] | None:
    """Return the largest error, plain and as a part of its bound; None if nothing was compared.
    NaN is ∞.
    """
    worst: tuple[float, float] | None = None
    for got, want, bound in compared:
        plain = float(
            np.nan_to_num(np.abs(got.astype(np.float64) - want), nan=np.inf, posinf=np.inf).max()
        )
        before = worst or (0.0, 0.0)
        worst = max(before[0], plain), max(before[1], reference.of_bound(got, want, bound))
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


def count_lines(what: Any, arguments: Mapping[str, Any]) -> Counted:
    """Count a run and keep which line moved what. Arguments as for `flashsim.count`."""
    algorithm = resolve(what, arguments["direction"])
    ledger = Ledger()
    tally = count(algorithm, **arguments, observers=[ledger])
    agrees = None
    if _has_form(algorithm):
        want = theory.exact(algorithm, **arguments)
        agrees = (tally.hbm, tally.sram, tally.blocks) == (want.hbm, want.sram, want.blocks)
    return Counted(algorithm, tally, ledger, arguments, agrees)

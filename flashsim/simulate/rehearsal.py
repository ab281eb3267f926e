"""A user's algorithm is run once on small numbers before it is counted: what `forward` refuses,
`count` refuses too.

The small problem is like the one that is counted: several blocks where that has several, a ragged
last one where that has one, N_q = N_k, B_r = B_c and d = d_v where these are equal there. An
algorithm that is made for its own sizes may fail at others; then it is run at these, if they are
not too large. Its O is compared with naive attention, within the bound on rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from flashsim.algorithms.blocks import Fixed
from flashsim.algorithms.own import is_user_defined
from flashsim.algorithms.record import GRADIENTS, Algorithm
from flashsim.attention.inputs import Array, check_inputs
from flashsim.attention.masks.rules import All, Bools, Causal, Head, Mask
from flashsim.attention.problem import EVERYTHING, Problem
from flashsim.attention.shapes import Blocks, Shape
from flashsim.memory.errors import MemoryModelError, NotOnChip
from flashsim.memory.sram import Event
from flashsim.reference import (
    attention,
    backward_rounding,
    error_bound,
    gradient_bounds,
    gradients,
    rounding,
)
from flashsim.simulate.attention import AttentionPlan
from flashsim.simulate.least import least_accesses, moved_too_little
from flashsim.simulate.outcome import Cost, Outcome
from flashsim.simulate.pipeline import run_launch, simulate
from flashsim.simulate.planning import backward_plan, plan_of
from flashsim.simulate.results import Result
from flashsim.simulate.shadow import shadow_of
from flashsim.simulate.stacking import finished, returned_nan, stacked
from flashsim.simulate.sums import gather_gradients

LARGEST = 2**22
"""Up to how many pairs of query and key an algorithm that fails on small sizes is run at its
own.
"""
MOST_ROWS = 24
SEED = 20_220_527
"""Not one that a user's own numbers are likely to have."""
NEAR = 1e-3
"""Of the largest element of V: how far an O may be from attention that is computed with copies,
perhaps in float16.
"""
ATTENTION = "attention"
SOME_PAIRS = "attention over pairs of its own"
_verdicts: dict[Any, str] = {}
_passed_on_shapes: set[Any] = set()


@dataclass(frozen=True)
class _Axis:
    """What blocks of N rows are like: one block or several, an even or odd number of them, the
    last ragged or not.
    """

    several: int
    ragged: bool

    @classmethod
    def of(cls, N: int, B: int) -> _Axis:
        T = -(-N // B)
        return cls(T if T < 3 else 3 + (T + 1) % 2, N % B != 0)


def rehearse(algorithm: Algorithm, plan: AttentionPlan) -> str:
    """Run a user's forward pass on small numbers; return which pairs it computes, `ATTENTION` or
    `SOME_PAIRS`.

    Raises MemoryModelError for what `forward` refuses, and where O is not naive attention. What it
    has passed once is not run again, as long as its code and what its closure holds are the same.
    """
    if not is_user_defined(algorithm) and not is_user_defined(plan.program):
        return ATTENTION
    key = _key(algorithm, plan)
    if key not in _verdicts:
        _verdicts[key] = _verdict(_shadow(algorithm), plan)
    return _verdicts[key]


def check_on_shapes(plan: AttentionPlan) -> None:
    """Raise NotOnChip where a user's algorithm uses what an ended turn computed, as a count on a
    small problem's shapes shows.

    There a tile has no numbers that could be kept, wherever the algorithm puts it. An algorithm
    that cannot be counted, as its numbers decide where it goes on, is not refused. Each is counted
    once, as `rehearse` runs each once.
    """
    key = _key(plan.program, plan)
    if key in _passed_on_shapes:
        return
    shape, blocks = next(_problems(plan), (plan.shape, plan.blocks))
    policy = Fixed(blocks.B_r, blocks.B_c, enforced=False)
    try:
        problem = _problem(plan, shape)
        small = plan_of(_shadow(plan.program), problem, plan.options, policy, problem.mask)
        run_launch(small, small.launch(()))
    except NotOnChip:
        raise
    except Exception:
        # it cannot be counted, or not at small sizes; the run says what is wrong, if anything is
        return
    _passed_on_shapes.add(key)


def _key(algorithm: Algorithm, plan: AttentionPlan) -> Any:
    """Return what is the same for runs of which one rehearsal is enough."""
    passes = _identity(algorithm.run), _identity(plan.program.run)
    return (
        passes,
        algorithm.name,
        _Likeness.of(plan),
        plan.problem.dtype,
        repr(plan.mask),
        repr(plan.options),
    )


def check_moved(plan: AttentionPlan, cost: Cost, O: Sequence[Array]) -> None:
    """Raise MemoryModelError where a run moved less than any schedule can, and O is attention all
    the same.

    `O` is what the forward pass left, one matrix for each launch.
    """
    heads = [*np.ndindex(plan.leading)]
    accesses = cost.traffic.accesses
    peak = cost.peak
    least = least_accesses(plan, accesses, peak, heads)
    if least is None or not _is_attention(plan, heads[0], O[0]):
        return
    raise moved_too_little(plan, accesses, peak, least)


def check_counted(algorithm: Algorithm, plan: AttentionPlan, cost: Cost) -> None:
    """Rehearse a pass that is counted, and compare the count, of one launch, with what no schedule
    moves less than.

    `algorithm` is its forward pass. Raises MemoryModelError.
    """
    verdict = rehearse(algorithm, plan)
    accesses = cost.traffic.accesses
    peak = cost.peak
    least = least_accesses(plan, accesses, peak, [()]) if verdict == ATTENTION else None
    if least is not None:
        raise moved_too_little(plan, accesses, peak, least)


def check_gradients(plan: AttentionPlan, cost: Cost) -> None:
    """Raise MemoryModelError where a backward pass moved less than any schedule can."""
    O = plan.values("O", (0,) * len(plan.leading), 0)
    check_moved(plan, cost, [O])


def _is_attention(plan: AttentionPlan, head: Head, O: Array) -> bool:
    """Return whether the O of one launch is attention over all pairs of its problem, about;
    False where any average is.
    """
    placed = [plan.values(name, head, 0) for name in ("Q", "K", "V")]
    Q, K, V = (each.astype(np.float64) for each in placed)
    whole = None if isinstance(plan.row_mask, All) else plan.row_mask.whole(plan.shape, head)
    with np.errstate(all="ignore"):
        exact = attention(Q, K, V, scale=plan.problem.scale, mask=whole)
    tolerance = NEAR * np.abs(V).max()
    tells = (np.ptp(V, axis=0) > 10 * tolerance).any()
    return bool(tells and (np.abs(O - exact) <= tolerance).all())


def _shadow(algorithm: Algorithm) -> Algorithm:
    """Return a copy of the algorithm that prints nothing and stops in no debugger
    (`flashsim.simulate.shadow`).
    """
    return replace(algorithm, run=shadow_of(algorithm.run))


def _identity(run: Any) -> Any:
    function = run
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    if code is None:
        return function
    return (
        code,
        code.co_filename,
        tuple(map(id, map(_content, getattr(function, "__closure__", None) or ()))),
    )


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it has not been assigned yet
        return None


def _verdict(algorithm: Algorithm, plan: AttentionPlan) -> str:
    failure: Exception | None = None
    is_of_plan = False
    for shape, blocks in _problems(plan):
        try:
            return _run(algorithm, plan, shape, blocks)
        except Exception as error:  # of the user's, for whatever reason
            failure = error
            is_of_plan = shape == plan.shape
    if failure is not None and (is_of_plan or isinstance(failure, MemoryModelError)):
        raise failure  # as `forward` does at these sizes
    return ATTENTION  # it cannot be run at sizes that are small enough


@dataclass(frozen=True)
class _Likeness:
    """What a small problem has in common with the one that is counted. `_order` compares
    lengths, block sizes and widths.
    """

    rows: _Axis
    columns: _Axis
    lengths: int
    sizes: int
    widths: int
    is_narrow: bool  # d < 4: the small problem keeps the widths

    @classmethod
    def of(cls, plan: AttentionPlan) -> _Likeness:
        """Return what is to be like a plan."""
        shape = plan.shape
        blocks = plan.blocks
        return cls(
            rows=_Axis.of(shape.N_q, blocks.B_r),
            columns=_Axis.of(shape.N_k, blocks.B_c),
            lengths=_order(shape.N_q, shape.N_k),
            sizes=_order(blocks.B_r, blocks.B_c),
            widths=_order(shape.d, shape.d_v),
            is_narrow=shape.d < 4,
        )


def _order(a: int, b: int) -> int:
    return (a > b) - (a < b)


def _problems(plan: AttentionPlan) -> Iterator[tuple[Shape, Blocks]]:
    """Yield a small problem like the plan's, then the plan's own, if that is not large."""
    likeness = _Likeness.of(plan)
    d = plan.shape.d
    d_v = plan.shape.d_v
    if not likeness.is_narrow:
        d = 4
        d_v = 4 - 2 * likeness.widths  # 2, 4 or 6
    small = _small(likeness.rows, likeness.columns, likeness.lengths, likeness.sizes)
    if small is not None:
        N_q, N_k, B_r, B_c = small
        yield Shape(N_q, N_k, d, d_v), Blocks(B_r, B_c, N_q=N_q, N_k=N_k)
    if plan.shape.N_q * plan.shape.N_k <= LARGEST:
        yield plan.shape, plan.blocks


@lru_cache(1024)
def _small(
    rows: _Axis, columns: _Axis, lengths: int, sizes: int
) -> tuple[int, int, int, int] | None:
    """Return the smallest (N_q, N_k, B_r, B_c) that is like that, with blocks of more than one
    row where there are such.
    """
    axes = [
        [
            (N, B)
            for N in range(1, MOST_ROWS + 1)
            for B in range(1, N + 1)
            if _Axis.of(N, B) == length
        ]
        for length in (rows, columns)
    ]
    for least in (2, 1):
        for N_q, B_r in axes[0]:
            for N_k, B_c in axes[1]:
                if (
                    _order(N_q, N_k) == lengths
                    and _order(B_r, B_c) == sizes
                    and min(B_r, B_c) >= least
                ):
                    return N_q, N_k, B_r, B_c
    return None


def _run(algorithm: Algorithm, plan: AttentionPlan, shape: Shape, blocks: Blocks) -> str:
    """Run a problem of this shape, with random numbers. Raises MemoryModelError where O is not
    attention.
    """
    problem = _problem(plan, shape)
    rng = np.random.default_rng(SEED)
    sizes = ((shape.N_q, shape.d), (shape.N_k, shape.d), (shape.N_k, shape.d_v))
    Q, K, V = (rng.normal(size=size).astype(plan.problem.dtype) for size in sizes)
    policy = Fixed(blocks.B_r, blocks.B_c, enforced=False)
    trace = _Seen(shape)
    small = plan_of(
        algorithm,
        problem,
        plan.options,
        policy,
        problem.mask,
        inputs=check_inputs(Q, K, V),
        check_finite=True,
    )
    outcome: Outcome = simulate(small, [trace])
    O = stacked(small, "O", outcome.matrices["O"])
    if np.isnan(O).any():
        raise returned_nan(small, "O")
    whole = small.attended(())
    pairs: tuple[Bools | None, ...] = (whole,)
    if trace.is_complete:
        allowed = trace.pairs if whole is None else trace.pairs & whole
        # those on chip together, or what a causal mask of its own leaves of them, aligned at the
        # bottom right or the top left
        pairs = (
            whole,
            allowed,
            allowed & Causal().whole(shape, ()),
            allowed & np.tri(*trace.pairs.shape, dtype=bool),
        )
    for mask in pairs:
        bound = error_bound(Q, K, V, scale=problem.scale, mask=mask, **rounding(algorithm, blocks))
        with np.errstate(all="ignore"):
            if (np.abs(O - attention(Q, K, V, scale=problem.scale, mask=mask)) <= bound).all():
                if plan.program.direction == "backward":
                    _run_backward(_shadow(plan.program), finished(small, outcome), mask)
                return ATTENTION if mask is whole else SOME_PAIRS
    off = float(np.max(np.abs(O - attention(Q, K, V, scale=problem.scale, mask=whole))))
    raise MemoryModelError(
        f"{algorithm.name!r} ({algorithm.title}) computes an O that is not attention, so there is "
        "nothing to count: on random "
        f"numbers with N_q = {shape.N_q}, N_k = {shape.N_k}, d = {shape.d}, d_v = {shape.d_v} in "
        f"blocks of {blocks.B_r} × "
        f"{blocks.B_c}, it is off by up to {off:.2g}"
    )


def _run_backward(algorithm: Algorithm, run: Result, mask: Bools | None) -> None:
    """Run a backward pass of a small run. Raises MemoryModelError where its gradients are not
    attention's.
    """
    dO = np.random.default_rng(SEED + 1).normal(size=run.O.shape).astype(run.O.dtype)
    plan = backward_plan(algorithm, run, dO, None, None, None, None, False)
    result = gather_gradients(plan, simulate(plan), ())
    inputs = run.plan.inputs
    scale = run.problem.scale
    exact = gradients(inputs.Q, inputs.K, inputs.V, dO, scale=scale, mask=mask)
    rounded = backward_rounding(algorithm, run.blocks, result.blocks)
    bound = gradient_bounds(inputs.Q, inputs.K, inputs.V, dO, scale=scale, mask=mask, **rounded)
    for name in GRADIENTS:
        if not (np.abs(getattr(result, name) - getattr(exact, name)) <= getattr(bound, name)).all():
            raise MemoryModelError(
                f"{algorithm.name!r} ({algorithm.title}) computes a {name} that is not "
                "attention's, run on random numbers with "
                f"N_q = {plan.shape.N_q}, N_k = {plan.shape.N_k}, d = {plan.shape.d}"
            )


def _problem(plan: AttentionPlan, shape: Shape) -> Problem:
    mask: Mask = plan.problem.mask
    plain = mask.bias is None and not mask.scores and mask.sink is None and not mask.per_head
    if not plain or mask.dense(()) or mask.tree is not None:
        mask = EVERYTHING
    scale = plan.problem.scale if shape.d == plan.shape.d else shape.d**-0.5
    return replace(
        plan.problem,
        shape=shape,
        leading=(),
        group=1,
        gqa="separate",
        mask=mask,
        dropout_p=0.0,
        scale=scale,
    )


class _Seen:
    """An observer: which pairs of query and key were on chip at the same time, as far as blocks
    of Q and K tell.
    """

    def __init__(self, shape: Shape) -> None:
        self.pairs = np.zeros((shape.N_q, shape.N_k), bool)
        self._rows: dict[str, Any] = {}

    @property
    def is_complete(self) -> bool:
        """Whether each query met a key. Some keys may meet none, as in a window of one's own."""
        return bool(self.pairs.any(axis=1).all())

    def __call__(self, event: Event) -> None:
        if event.kind == "load":
            self._rows[event.name] = event.rows if event.where is None else event.where[0]
        if event.kind in ("load", "compute"):
            names = [name for name in event.sram.resident if name in self._rows]
            for query in (name for name in names if name.startswith("Q[")):
                for key in (name for name in names if name.startswith("K[")):
                    self.pairs[self._indices(query)[:, None], self._indices(key)] = True

    def _indices(self, name: str) -> Any:
        rows = self._rows[name]
        return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else np.array(rows)

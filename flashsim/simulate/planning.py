"""How an attention plan is made: what users hand in is checked, heads are put together, and
blocks are chosen.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from flashsim.algorithms import BACKWARD, FORWARD, for_sink
from flashsim.algorithms.blocks import (
    Fit,
    Fixed,
    Paper,
    Sizing,
    SizingOverride,
    SizingProblem,
    clipped,
    kv_outer_blocks,
    line_1_of,
    q_outer_blocks,
    unknown_loops,
)
from flashsim.algorithms.own import is_user_defined
from flashsim.algorithms.record import OPERANDS, Algorithm
from flashsim.algorithms.sink_gradient import least_room
from flashsim.attention.arguments import check_blocks, check_flag, short_repr
from flashsim.attention.inputs import (
    Inputs,
    check_backward_range,
    check_dO,
    check_inputs,
    check_range,
    to_layout,
)
from flashsim.attention.masks.agreement import check_agreement
from flashsim.attention.masks.rules import All, Head, Mask, as_mask
from flashsim.attention.masks.scores import cap_of
from flashsim.attention.problem import Problem
from flashsim.attention.shapes import Blocks
from flashsim.memory.errors import MemoryModelError, SramOverflow
from flashsim.simulate.attention import AttentionPlan
from flashsim.simulate.interleaving import grouped
from flashsim.simulate.pipeline import Memory, run_launch
from flashsim.simulate.sums import matrices_of_sink
from flashsim.support.sizes import largest_that_fits, smallest_true

SIZINGS: dict[str, Sizing] = {"paper": Paper(), "fit": Fit()}


def forward_plan(
    algorithm: Algorithm,
    options: Mapping[str, Any],
    sizing: Sizing,
    check_finite: bool,
    Q: Any,
    K: Any,
    V: Any,
    **fields: Any,
) -> AttentionPlan:
    """Return the plan of a forward pass, on copies of Q, K, V. `fields` is what `Problem.of_shape`
    takes.
    """
    inputs = check_inputs(Q, K, V)
    problem = Problem.of_shape(inputs.shape, inputs.leading, inputs.group, inputs.dtype, **fields)
    mask = _mask_of(algorithm, problem, options, inputs.leading)
    if check_finite:
        stored = problem.dtype if algorithm.stores_scores else None
        more = mask != All() and _added(mask, problem)
        check_range(
            inputs, problem.scale, problem.dropout_p, stored, more, "tau" not in algorithm.parts
        )
    return plan_of(
        algorithm, problem, options, sizing, mask, inputs=inputs.copy(), check_finite=check_finite
    )


def backward_plan(
    algorithm: Algorithm,
    run: Any,
    dO: Any,
    M: Any,
    sizing: Any,
    blocks: Any,
    enforce: Any,
    check_finite: Any,
) -> AttentionPlan:
    """Return the plan of a run's backward pass."""
    before = run.plan
    check_finite = check_flag("check_finite", check_finite)
    problem = before.problem
    mask = before.mask
    inputs = before.inputs
    _check_scores(algorithm, mask)
    O = to_layout("O", run.O, run.layout)
    gradient = check_dO(dO, O, check_finite=check_finite, layout=run.layout)
    problem = problem.with_memory(M)
    if check_finite:
        stored = problem.dtype if "P" in algorithm.operands else None
        check_backward_range(inputs, O, gradient, problem.scale, problem.dropout_p, stored)
    has_sizing = sizing is not None or blocks is not None
    policy = check_sizing(
        ("fit" if sizing is None else sizing) if has_sizing else before.sizing, blocks, enforce
    )
    if _keeps_blocks(algorithm, before):
        if has_sizing:
            why = (
                "keeps the forward pass's blocks, on which its mask is; leave sizing and blocks out"
            )
            raise ValueError(f"{algorithm.name!r} {why}")
        policy = Fixed(run.blocks.B_r, run.blocks.B_c, policy.enforced)
    columns = {
        name: a[..., None]
        for name, a in (("l", run.l), ("m", run.m), ("L", run.lse))
        if a is not None
    }
    more = {**columns, "O": O, "dO": gradient}
    plan = plan_of(
        algorithm,
        problem,
        before.options,
        policy,
        mask,
        inputs=inputs,
        check_finite=check_finite,
        more=more,
        saved=run.saved,
    )
    missing = [name for name in plan.needs if name not in {*OPERANDS, *more, *run.saved}]
    if missing:
        why = (
            f"which {run.algorithm!r} neither returned nor saved; expected it among `returns` or "
            "`saves` of that record"
        )
        raise MemoryModelError(
            f"{algorithm.name!r} ({algorithm.title}) takes {', '.join(missing)}, {why}"
        )
    return plan


def _keeps_blocks(algorithm: Algorithm, before: AttentionPlan) -> bool:
    """Say whether a backward pass has the forward pass's blocks: a mask of tiles is on them.
    "live" and None are of any.
    """
    of_tiles = before.options.get("block_mask")
    return "block_mask" in algorithm.parts and not (of_tiles is None or isinstance(of_tiles, str))


def note_what_fits(plan: AttentionPlan, error: SramOverflow) -> None:
    """Note what would fit: an M for these blocks, and the largest B_c at their B_r. Of a user's
    function, that would take many runs.
    """
    from flashsim.theory.form import has_form

    if plan.is_user_defined or not has_form(plan.program):
        return
    fits = _fits_by_form(plan)
    M = plan.M
    blocks = plan.blocks
    B_r = int(blocks.B_r)
    B_c = int(blocks.B_c)

    def fits_with(size: int) -> bool:
        return fits(Blocks(B_r, size, N_q=blocks.N_q, N_k=blocks.N_k), M)

    notes = []
    if not fits(blocks, M):
        needed = smallest_true(lambda more: fits(blocks, M + more)) + M
        notes.append(f"blocks ({B_r}, {B_c}) need M = {needed:,} in all")
    most = largest_that_fits(fits_with, B_c)
    if 0 < most < B_c:
        notes.append(f"with B_r = {B_r}, the largest B_c that fits M = {M:,} is {most}")
    elif most == 0:
        notes.append(f"with B_r = {B_r}, no B_c fits M = {M:,}")
    notes.append("without blocks, the largest that fit are chosen")
    notes.append("flashsim tune finds those with the fewest accesses")
    error.add_note("; ".join(notes))


def note_blocks_of_both(plan: AttentionPlan, error: SramOverflow) -> None:
    """Note which blocks fit both passes, where a backward pass does not fit M as it keeps its
    forward pass's blocks.
    """
    if not _keeps_blocks(plan.program, plan):
        note_what_fits(plan, error)
        return
    try:
        fitting = plan_of(plan.program, plan.problem, plan.options, Fit(), plan.mask).blocks
    except ValueError:  # none do
        return
    blocks = f"blocks=({fitting.B_r}, {fitting.B_c})"
    error.add_note(
        f"{plan.program.name!r} keeps its forward pass's blocks; forward(…, {blocks}) fits both "
        "passes"
    )


def count_plan(
    algorithm: Algorithm,
    of: Algorithm,
    problem: Problem,
    options: Mapping[str, Any],
    sizing: Sizing,
) -> AttentionPlan:
    """Return the plan of one pass on shapes alone, of one head or group. `of` is the forward
    pass's record.
    """
    mask = _mask_of(of, problem, options, ())
    _check_scores(algorithm, mask)
    return plan_of(algorithm, problem, options, sizing, mask)


def plan_of(
    algorithm: Algorithm,
    problem: Problem,
    options: Mapping[str, Any],
    sizing: Sizing,
    mask: Mask,
    inputs: Inputs | None = None,
    **of_pass: Any,
) -> AttentionPlan:
    """Return the plan: each query head on its own, or, "grouped", those that share a KV head; in
    the blocks of `sizing`. Where the mask has a sink, a forward pass's variant for sinks runs.

    `inputs`, Q, K, V, is None to count on shapes alone. `of_pass` are further fields of the plan.
    """
    if mask.sink is not None and algorithm.direction == "forward":
        algorithm = for_sink(algorithm)
    heads_per_launch = 1
    shape = problem.shape
    leading = problem.leading
    row_mask = mask.without_sink() if mask.sink else mask
    if problem.gqa == "grouped" and problem.group > 1:
        heads_per_launch = problem.group
        leading = (*leading[:-1], leading[-1] // heads_per_launch)
        row_mask = grouped(row_mask, heads_per_launch, shape.N_q)
        shape = replace(shape, N_q=heads_per_launch * shape.N_q)
    # the caller's blocks; or the smallest, until the policy has tried others
    sizes = (sizing.B_r, sizing.B_c) if isinstance(sizing, Fixed) else (1, 1)
    plan = AttentionPlan(
        program=algorithm,
        enforced=sizing.enforced,
        arithmetic=inputs is not None,
        is_user_defined=is_user_defined(algorithm),
        problem=problem,
        options=options,
        sizing=sizing,
        mask=mask,
        inputs=inputs,
        heads_per_launch=heads_per_launch,
        shape=shape,
        leading=leading,
        row_mask=row_mask,
        blocks=clipped(shape, *sizes),
        **of_pass,
    )
    if mask.sink is not None and algorithm.direction == "backward":
        _check_sink_pass(plan)
    if not isinstance(sizing, Fixed):
        plan = replace(plan, blocks=_choose_blocks(plan))
    if not isinstance(mask, All):
        blocks = clipped(problem.shape, plan.blocks.B_r, plan.blocks.B_c)
        heads = problem.leading if mask.per_head else (1,) * len(problem.leading)
        for head in np.ndindex(heads):
            check_agreement(mask, blocks, problem.shape, head)
    return plan


def _check_sink_pass(plan: AttentionPlan) -> None:
    """Raise ValueError where the pass that follows a backward pass, for a sink's gradient, does
    not fit an enforced M.
    """
    names = matrices_of_sink(plan)
    least = least_room(plan.shape.d_v, len(names) - 2)  # all but O and dO
    if plan.enforced and least > plan.M:
        raise ValueError(
            f"M = {plan.M:,} elements is too small for the gradient of a sink: with d_v = "
            f"{plan.shape.d_v} it needs at least "
            f"M = {least:,}"
        )


def _choose_blocks(plan: AttentionPlan) -> Blocks:
    """Return the blocks that the plan's policy chooses."""
    algorithm = plan.program
    policy = plan.sizing
    fits = partial(_fits_by_trial, plan) if plan.is_user_defined else _fits_by_form(plan)
    shape = plan.shape
    sizing_problem = SizingProblem(
        program=algorithm.name,
        shape=shape,
        M=plan.M,
        longest=max(shape.N_q, shape.N_k),
        blocks=line_1_of(shape, algorithm.line_1),
        fits=fits,
        paper_rows=lambda: algorithm.rows(plan.M, shape.d, shape.d_v),
    )
    if algorithm.line_1 is unknown_loops:
        return _blocks_by_trial(plan, sizing_problem)
    blocks: Blocks = policy(sizing_problem)
    return blocks


def _fits_by_form(plan: AttentionPlan) -> Callable[[Blocks, int], bool]:
    """Return what says whether a launch with these blocks stays within M: by the closed form of
    its peak, with every tile.
    """

    @cache
    def form_at_problem() -> Any:  # when it is asked: most sizes are chosen without
        from flashsim.theory.form import FormAtProblem, form_of

        form = form_of(plan.program.name, plan.program.direction)
        first = (0,) * len(plan.leading)
        return FormAtProblem.of_launch(
            form, plan.problem, plan.options, plan.row_mask, first, plan.mask.sink is not None
        )

    def fits(blocks: Blocks, M: int) -> bool:
        peak: int = form_at_problem().peak(blocks.B_r, blocks.B_c, M)
        return peak <= M

    return fits


def _fits_by_trial(plan: AttentionPlan, blocks: Blocks, M: int) -> bool:
    """Say the same by running the shadow of the algorithm on shapes: for functions without a
    form that is known to be right.
    """
    problem = replace(plan.problem, M=M)
    of_M = replace(plan, problem=problem, enforced=True, blocks=blocks)
    try:
        _trial(of_M)
    except SramOverflow:
        return False
    return True


def _trial(plan: AttentionPlan) -> Memory:
    """Run the plan's first launch on shapes alone, with every tile, unnoticed. An error says
    that it was a trial.
    """
    from flashsim.simulate.shadow import trial_of

    shadow = trial_of(plan.program)
    trial = replace(
        plan, program=shadow, is_user_defined=True, inputs=None, arithmetic=False, skips=False
    )
    try:
        return run_launch(trial, trial.launch((0,) * len(plan.leading)))
    except SramOverflow:
        raise
    except Exception as error:
        if plan.inputs is not None:
            error.add_note(
                "it was tried on shapes, without numbers, to find blocks that fit; blocks=(B_r, "
                "B_c) needs no trial"
            )
        raise


def _blocks_by_trial(plan: AttentionPlan, problem: SizingProblem) -> Blocks:
    """Return the blocks of a function whose loops are not known: by its closed form's line 1, if it
    has one; else those of `kv_outer_blocks` or `q_outer_blocks`, with which it moves fewer
    elements, on shapes alone and with every tile.
    """
    from flashsim.theory import NoClosedForm, form_of

    try:
        line_1 = form_of(plan.program, plan.program.direction).line_1
        blocks: Blocks = plan.sizing(replace(problem, blocks=line_1_of(plan.shape, line_1)))
        return blocks
    except NoClosedForm:
        keys: Blocks = plan.sizing(replace(problem, blocks=line_1_of(plan.shape, kv_outer_blocks)))
        queries: Blocks = plan.sizing(
            replace(problem, blocks=line_1_of(plan.shape, q_outer_blocks))
        )
    if keys == queries:
        return keys

    def accesses_in(blocks: Blocks) -> float:
        loose = replace(plan, blocks=blocks, enforced=False)
        try:
            accesses: int = _trial(loose)[0].traffic.accesses
        except Exception:  # of a function of the user's, whose run will say it
            return math.inf
        return accesses

    return min(keys, queries, key=accesses_in)


def _mask_of(
    algorithm: Algorithm, problem: Problem, options: Mapping[str, Any], leading: Head
) -> Mask:
    """Return the problem's mask with those options that are masks. Raises ValueError where the
    algorithm has no such part.
    """
    mask = (
        as_mask(problem.mask, False, problem.shape, leading, options) if options else problem.mask
    )
    if not isinstance(mask, All):
        _check_taken(algorithm, mask, options)
    if "dropout" not in algorithm.parts and problem.dropout_p:
        raise ValueError(
            f"{algorithm.name!r} ({algorithm.title}) has no dropout; 'flash' (Algorithm 2) has"
        )
    return mask


def _check_taken(algorithm: Algorithm, mask: Mask, options: Mapping[str, Any]) -> None:
    """Raise ValueError for a mask that the algorithm cannot apply, or a sink with which it
    cannot begin.
    """
    who = f"{algorithm.name!r} ({algorithm.title})"
    if "MASK" not in algorithm.parts:
        raise ValueError(f"{who} has no mask; 'flash' (Algorithm 2) has")
    if mask.bias is not None and mask.bias.is_table and algorithm.stores_scores:
        raise ValueError(
            f"{who} adds a bias in a pass of its own, and mask is {mask!r}; expected "
            "Bias(table[buckets])"
        )
    if mask.sink is None:
        return
    for_sink(algorithm)  # raises ValueError where it takes none
    if options.get("merge") == "tree":
        raise ValueError(
            "merge is 'tree', whose last part is not merged with a sink; expected 'sequence' with "
            "mask=Sink(…)"
        )


def _added(mask: Mask, problem: Problem) -> float:
    """Return the most that a bias and score modifications add to a score's absolute value."""
    return float(
        sum(each.largest(problem.shape) for each in (mask.bias, *mask.scores) if each is not None)
    )


def _check_scores(algorithm: Algorithm, mask: Mask) -> None:
    """Raise ValueError for a backward pass that makes no gradient of a bias, or through a soft
    cap.
    """
    if algorithm.direction == "forward":
        return
    for modification, what, again in (
        (mask.bias, "of a bias", False),
        (cap_of(mask.scores), "through a soft cap", True),
    ):
        makes = [
            a
            for a in (algorithm, *BACKWARD.values())
            if a.gives_dS and (not again or "MASK" in a.parts)
        ]
        if modification is not None and algorithm not in makes:
            have = ", ".join(repr(known.name) for known in makes if known.name in FORWARD)
            lack = f"{algorithm.name!r} ({algorithm.title}) makes no gradient {what}"
            raise ValueError(f"{lack}; run one of these, forward and backward: {have}")


def check_sizing(sizing: Any, blocks: Any, enforce: Any = None) -> Sizing:
    """Return the policy that chooses the blocks: `sizing`, by name or as an object, or `blocks`
    where they are given.

    `enforce` says whether to exceed M is an error; None: what the policy says.
    """
    policy = (
        SIZINGS[sizing]
        if isinstance(sizing, str) and sizing in SIZINGS
        else _policy_of_user(sizing)
    )
    sizes = check_blocks(blocks)
    if sizes is not None:
        policy = Fixed(*sizes)
    return policy if enforce is None else SizingOverride(policy, check_flag("enforce", enforce))


def _policy_of_user(policy: Any) -> Sizing:
    """Return a policy object of the user's, whose blocks are checked."""
    if isinstance(policy, str) or not callable(policy):
        raise ValueError(
            f"unknown sizing {short_repr(policy)}; known: {', '.join(map(repr, SIZINGS))}, or a "
            "policy object"
        )
    return SizingOverride(policy, check_flag("sizing.enforced", getattr(policy, "enforced", None)))

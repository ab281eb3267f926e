"""The first step: what users hand in becomes a `Plan`, or a ValueError that names the argument."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, cast

import numpy as np

from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.algorithms.blocks import Fit, Fixed, Paper, Sizing, SizingProblem, Told, by_keys, by_queries, by_trial
from flashsim.algorithms.own import is_own
from flashsim.algorithms.record import OPERANDS, Algorithm
from flashsim.attention.problem import Problem
from flashsim.machine.memory import HBM, SRAM, MemoryModelError, Observer, SramOverflow
from flashsim.machine.turns import Watch
from flashsim.masks.rules import All, Bools, Head, Mask, as_mask
from flashsim.masks.scores import cap_of
from flashsim.problem.arguments import check_blocks, check_flag, check_tiles, is_one_of, shown
from flashsim.problem.inputs import (
    Array,
    Inputs,
    check_backward_range,
    check_dO,
    check_inputs,
    check_M,
    check_range,
    chip_dtype,
    turned,
)
from flashsim.problem.matrices import Kind
from flashsim.problem.shapes import Blocks, Shape
from flashsim.run.interleaving import grouped, interleave

SIZINGS: dict[str, Sizing] = {"paper": Paper(), "fit": Fit()}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One pass over a problem: what is run, and on what.

    options   the algorithm's own, by name
    sizing    the policy that chose `blocks`
    mask      the problem's and the options' together, with its sink, which `row_mask` lacks
    given     Q, K, V; None: to count on shapes alone
    more      what a backward pass is given besides, (..., H_q, N, width), by name
    saved     what the forward pass left for it, by name: a matrix for each launch

    It is a number of launches that are alike but in their numbers, each of one query head, or of the heads of a group, with
    their rows interleaved (`flashsim.run.interleaving`). Of one of them are

    together  how many query heads it is of
    shape, leading, row_mask, blocks  its lengths; how many launches there are; the mask for its rows; its blocks
    skips     whether an algorithm that skips empty tiles does: block sizes are chosen for all tiles
    """

    algorithm: Algorithm
    problem: Problem
    options: Mapping[str, Any]
    sizing: Sizing
    mask: Mask
    given: Inputs | None = None
    check_finite: bool = False
    more: Mapping[str, Array] = field(default_factory=dict)
    saved: Mapping[str, Sequence[Array]] = field(default_factory=dict)
    together: int
    shape: Shape
    leading: Head
    row_mask: Mask
    blocks: Blocks
    skips: bool = True

    @property
    def needs(self) -> tuple[str, ...]:
        """The matrices in HBM at the beginning. Dropout's are P_dropped and Z for Algorithm 3, R for other backward passes."""
        if not self.problem.dropout_p:
            return tuple(name for name in self.algorithm.operands if name != "P_dropped")
        if self.algorithm.direction == "forward":
            return self.algorithm.operands
        return (*self.algorithm.operands, "Z" if "P" in self.algorithm.operands else "R")

    @property
    def parts(self) -> bool:
        """Whether query heads that share a KV head run each on its own, and so have dK and dV in parts."""
        return self.problem.group > 1 and self.together == 1

    def on_chip(self, hbm: HBM, observers: Sequence[Observer], fold: bool = False, watch: Watch | None = None) -> SRAM:
        """Return the memory that a launch computes in, beside its HBM."""
        M, chip = self.problem.M, chip_dtype(self.problem.dtype)
        return SRAM(hbm, M, enforced=self.sizing.enforced, dtype=chip, observers=observers, fold=fold, watch=watch)

    def operand(self, name: str, kind: Kind, head: Head, number: int) -> Array:
        """Return a matrix of the launch at `head`, the `number`th: of query heads, or of the KV head that they share."""
        if name in self.saved:
            return self.saved[name][number]
        array: Any = self.more[name] if name in self.more else getattr(self.given, name)
        by_key = kind.rows == "N_k"
        if self.together > 1 and not by_key:
            members = slice(self.together * head[-1], self.together * (head[-1] + 1))
            array, head = interleave(array[head[:-1]][members], self.together), (0,)
        return cast(Array, array[self.given.kv(head) if self.given and by_key and self.parts else head])

    def attended(self, head: Head) -> Bools | None:
        """Return the whole (N_q, N_k) mask of one query head, block mask included, for the reference; None: it attends to all."""
        block_mask, shape = self.options.get("block_mask"), self.problem.shape
        given = None if isinstance(block_mask, str) else block_mask  # "live" leaves out what is masked
        if isinstance(self.mask, All) and given is None:
            return None
        whole = self.mask.whole(shape, head)
        if given is None:
            return whole
        B, member = self.blocks, head[-1] % self.together if head else 0
        tiles = check_tiles(given, B, self.shape)
        spread = tiles.repeat(B.B_r, axis=0)[: self.shape.N_q].repeat(B.B_c, axis=1)[:, : shape.N_k]
        return np.asarray(whole & spread[member :: self.together])


Launched = Callable[[Plan, Head], Any]
"""`flashsim.run.launch.launch`, with which `plan_of` tries whether blocks fit."""


def forward_plan(
    algorithm: Algorithm, options: Mapping[str, Any], sizing: Sizing, check_finite: bool, launched: Launched,
    Q: Any, K: Any, V: Any, **asked: Any,
) -> Plan:  # fmt: skip
    """Return the plan of a forward pass, on copies of Q, K, V. `asked` is what `Problem.checked` takes."""
    given = check_inputs(Q, K, V)
    problem = Problem.checked(given.shape, given.leading, given.group, given.dtype, **asked)
    mask = _mask_of(algorithm, problem, options, given.leading)
    if check_finite:
        stored, more = problem.dtype if algorithm.stores_scores else None, mask != All() and _added(mask, problem)
        check_range(given, problem.scale, problem.dropout_p, stored, more, "tau" not in algorithm.parts)
    return plan_of(algorithm, problem, options, sizing, mask, launched, given=given.copy(), check_finite=check_finite)


def backward_plan(
    algorithm: Algorithm, run: Any, dO: Any, M: Any, sizing: Any, blocks: Any, enforce: Any, check_finite: Any, launched: Launched
) -> Plan:
    """Return the plan of a run's backward pass."""
    before, check_finite = run.plan, check_flag("check_finite", check_finite)
    problem, mask, given = before.problem, before.mask, before.given
    _check_scores(algorithm, mask)
    O = turned("O", run.O, run.layout)
    gradient = check_dO(dO, O, check_finite=check_finite, layout=run.layout)
    problem = problem if M is None else replace(problem, M=check_M(M, problem.dtype.itemsize))
    if check_finite:
        stored = problem.dtype if "P" in algorithm.operands else None
        check_backward_range(given, O, gradient, problem.scale, problem.dropout_p, stored)
    chosen = sizing is not None or blocks is not None
    policy = check_sizing(("fit" if sizing is None else sizing) if chosen else before.sizing, blocks, enforce)
    if _keeps_blocks(algorithm, before):
        if chosen:
            why = "keeps the forward pass's blocks, on which its mask is; leave sizing and blocks out"
            raise ValueError(f"{algorithm.name!r} {why}")
        policy = Fixed(run.blocks.B_r, run.blocks.B_c, policy.enforced)
    columns = {name: a[..., None] for name, a in (("l", run.l), ("m", run.m), ("L", run.lse)) if a is not None}
    more = {**columns, "O": O, "dO": gradient}
    plan = plan_of(
        algorithm, problem, before.options, policy, mask, launched, given=given, check_finite=check_finite, more=more,
        saved=run.saved,
    )  # fmt: skip
    missing = [name for name in plan.needs if name not in {*OPERANDS, *more, *run.saved}]
    if missing:
        why = f"which {run.algorithm!r} neither returned nor saved; expected it among `returns` or `saves` of that record"
        raise MemoryModelError(f"{algorithm.name!r} ({algorithm.title}) takes {', '.join(missing)}, {why}")
    return plan


def _keeps_blocks(algorithm: Algorithm, before: Plan) -> bool:
    """Say whether a backward pass has the forward pass's blocks: a mask of tiles is on them. "live" and None are of any."""
    of_tiles = before.options.get("block_mask")
    return "block_mask" in algorithm.parts and not (of_tiles is None or isinstance(of_tiles, str))


def note_blocks_of_both(plan: Plan, launched: Launched, error: SramOverflow) -> None:
    """Note which blocks fit both passes, where a backward pass does not fit M as it keeps its forward pass's blocks."""
    if not _keeps_blocks(plan.algorithm, plan):
        return
    try:
        fitting = plan_of(plan.algorithm, plan.problem, plan.options, Fit(), plan.mask, launched).blocks
    except ValueError:  # none do
        return
    blocks = f"blocks=({fitting.B_r}, {fitting.B_c})"
    error.add_note(f"{plan.algorithm.name!r} keeps its forward pass's blocks; forward(…, {blocks}) fits both passes")


def count_plan(
    algorithm: Algorithm, of: Algorithm, problem: Problem, options: Mapping[str, Any], sizing: Sizing, launched: Launched
) -> Plan:
    """Return the plan of one pass on shapes alone, of one head or group. `of` is the forward pass's record."""
    mask = _mask_of(of, problem, options, ())
    _check_scores(algorithm, mask)
    return plan_of(algorithm, problem, options, sizing, mask, launched)


def plan_of(
    algorithm: Algorithm, problem: Problem, options: Mapping[str, Any], sizing: Sizing, mask: Mask, launched: Launched,
    **given: Any,
) -> Plan:  # fmt: skip
    """Return the plan: each query head on its own, or, "grouped", those that share a KV head; in the blocks of `sizing`."""
    together, shape, leading, row_mask = 1, problem.shape, problem.leading, mask.without_sink() if mask.sink else mask
    if problem.gqa == "grouped" and problem.group > 1:
        together, leading = problem.group, (*leading[:-1], leading[-1] // problem.group)
        row_mask, shape = grouped(row_mask, together, shape.N_q), replace(shape, N_q=together * shape.N_q)
    plan = Plan(
        algorithm=algorithm, problem=problem, options=options, sizing=sizing, mask=mask, together=together, shape=shape,
        leading=leading, row_mask=row_mask, blocks=Blocks(1, 1, N_q=shape.N_q, N_k=shape.N_k), **given,
    )  # fmt: skip
    fits = partial(_fits_by_trial, plan, launched) if is_own(algorithm) else _fits_by_form(plan)
    asked = SizingProblem(algorithm.name, shape, problem.M, algorithm.line_1, algorithm.rows, fits)
    return replace(plan, blocks=_tried(plan, asked, launched) if algorithm.line_1 is by_trial else sizing(asked))


def _fits_by_form(plan: Plan) -> Callable[[Blocks, int], bool]:
    """Return what says whether a launch with these blocks stays within M: by the closed form of its peak, with every tile."""

    @cache
    def posed() -> Any:  # when it is asked: most sizes are chosen without
        from flashsim.theory.counts import Posed
        from flashsim.theory.form import form_of

        form, first = form_of(plan.algorithm.name, plan.algorithm.direction), (0,) * len(plan.leading)
        return Posed.of_launch(form, plan.problem, plan.options, plan.row_mask, first, plan.mask.sink is not None)

    def fits(blocks: Blocks, M: int) -> bool:
        peak: int = posed().peak(blocks.B_r, blocks.B_c, M)
        return peak <= M

    return fits


def _fits_by_trial(plan: Plan, launched: Launched, blocks: Blocks, M: int) -> bool:
    """Say the same by running the shadow of the algorithm on shapes: for functions without a form that is known to be right."""
    of_M = replace(plan, problem=replace(plan.problem, M=M), blocks=blocks, sizing=Fixed(blocks.B_r, blocks.B_c))
    try:
        _trial(of_M, launched)
    except SramOverflow:
        return False
    return True


def _trial(plan: Plan, launched: Launched) -> Any:
    """Run the plan's first launch on shapes alone, with every tile, unnoticed. An error says that it was a trial."""
    from flashsim.run.shadow import trial_of

    trial = replace(plan, algorithm=trial_of(plan.algorithm), given=None, skips=False)
    try:
        return launched(trial, (0,) * len(plan.leading))
    except SramOverflow:
        raise
    except Exception as error:
        if plan.given is not None:
            error.add_note("it was tried on shapes, without numbers, to find blocks that fit; blocks=(B_r, B_c) needs no trial")
        raise


def _tried(plan: Plan, asked: SizingProblem, launched: Launched) -> Blocks:
    """Return the blocks of a function whose loops are not known: by its closed form's line 1, if it has one; else those of
    `by_keys` or `by_queries`, with which it moves fewer elements, on shapes alone and with every tile.
    """
    from flashsim.theory import NoClosedForm, form_of

    try:
        return plan.sizing(replace(asked, line_1=form_of(plan.algorithm, plan.algorithm.direction).line_1))
    except NoClosedForm:
        keys, queries = (plan.sizing(replace(asked, line_1=line_1)) for line_1 in (by_keys, by_queries))
    if keys == queries:
        return keys

    def moved(blocks: Blocks) -> float:
        loose = replace(plan, blocks=blocks, sizing=Told(plan.sizing, False))
        try:
            accesses: int = _trial(loose, launched)[0].traffic.accesses
        except Exception:  # of a function of the user's, whose run will say it
            return math.inf
        return accesses

    return min(keys, queries, key=moved)


def _mask_of(algorithm: Algorithm, problem: Problem, options: Mapping[str, Any], leading: Head) -> Mask:
    """Return the problem's mask with those options that are masks. Raises ValueError where the algorithm has no such part."""
    mask = as_mask(problem.mask, False, problem.shape, leading, options) if options else problem.mask
    if not isinstance(mask, All):
        _check_taken(algorithm, mask, options)
    if "dropout" not in algorithm.parts and problem.dropout_p:
        raise ValueError(f"{algorithm.name!r} ({algorithm.title}) has no dropout; 'flash' (Algorithm 2) has")
    return mask


def _check_taken(algorithm: Algorithm, mask: Mask, options: Mapping[str, Any]) -> None:
    """Raise ValueError for a mask that the algorithm cannot apply, or a sink with which it cannot begin."""
    who = f"{algorithm.name!r} ({algorithm.title})"
    if "MASK" not in algorithm.parts:
        raise ValueError(f"{who} has no mask; 'flash' (Algorithm 2) has")
    if mask.bias is not None and mask.bias.is_table and algorithm.stores_scores:
        raise ValueError(f"{who} adds a bias in a pass of its own, and mask is {mask!r}; expected Bias(table[buckets])")
    if mask.sink is not None and "sink" not in algorithm.parts:
        takes = ", ".join(repr(known.name) for known in FORWARD.values() if "sink" in known.parts)
        raise ValueError(f"{who} takes no sink; expected one of these: {takes}")
    if mask.sink is not None and options.get("merge") == "tree":
        raise ValueError("merge is 'tree', whose last part is not merged with a sink; expected 'sequence' with mask=Sink(…)")


def _added(mask: Mask, problem: Problem) -> float:
    """Return the most that a bias and score modifications add to a score's absolute value."""
    return float(sum(each.largest(problem.shape) for each in (mask.bias, *mask.scores) if each is not None))


def _check_scores(algorithm: Algorithm, mask: Mask) -> None:
    """Raise ValueError for a backward pass that makes no gradient of a bias, or through a soft cap."""
    if algorithm.direction == "forward":
        return
    for asked, what, again in ((mask.bias, "of a bias", False), (cap_of(mask.scores), "through a soft cap", True)):
        makes = [a for a in (algorithm, *BACKWARD.values()) if a.gives_dS and (not again or "MASK" in a.parts)]
        if asked is not None and algorithm not in makes:
            have = ", ".join(repr(known.name) for known in makes if known.name in FORWARD)
            said = f"{algorithm.name!r} ({algorithm.title}) makes no gradient {what}"
            raise ValueError(f"{said}; run one of these, forward and backward: {have}")


def check_sizing(sizing: Any, blocks: Any, enforce: Any = None) -> Sizing:
    """Return the policy that chooses the blocks: `sizing`, by name or as an object, or `blocks` where they are given.

    `enforce` says whether to exceed M is an error; None: what the policy says.
    """
    policy = SIZINGS[sizing] if is_one_of(sizing, SIZINGS) else _told(sizing)
    if (given := check_blocks(blocks)) is not None:
        policy = Fixed(*given)
    return policy if enforce is None else Told(policy, check_flag("enforce", enforce))


def _told(policy: Any) -> Sizing:
    """Return a policy object of the user's, whose blocks are checked."""
    if isinstance(policy, str) or not callable(policy):
        raise ValueError(f"unknown sizing {shown(policy)}; known: {', '.join(map(repr, SIZINGS))}, or a policy object")
    return Told(policy, check_flag("sizing.enforced", getattr(policy, "enforced", None)))

"""The passes that follow an attention plan's launches: what query heads have in parts is summed up.

Query heads that share a KV head and ran each on its own have dK and dV in parts. Those whose rows
ran interleaved have a bias's gradient in parts, where its entries belong to several of these rows.
A sink's gradient is made of what both passes left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from flashsim.algorithms import GRADIENTS
from flashsim.algorithms.group_sum import sum_over_group
from flashsim.algorithms.sink_gradient import sink_gradient
from flashsim.attention.inputs import HEADS_FIRST, Array, chip_dtype, to_layout
from flashsim.attention.masks.rules import Head
from flashsim.attention.matrices import KINDS
from flashsim.memory.hbm import HBM
from flashsim.memory.sram import SRAM, Observer
from flashsim.memory.traffic import Traffic
from flashsim.simulate.attention import AttentionPlan
from flashsim.simulate.interleaving import by_head, summed_over
from flashsim.simulate.outcome import Cost, Outcome
from flashsim.simulate.pipeline import simulate
from flashsim.simulate.plan import Launch, Operand, Plan
from flashsim.simulate.results import Result
from flashsim.simulate.stacking import cost_of, refuse_overflow, stacked

Sums = dict[str, Array]
Parts = Mapping[str, Array | tuple[int, int]]
"""Parts by the names of their sums, a row for each; or, to count on shapes alone, how many and
how long.
"""


@dataclass(frozen=True)
class Pass:
    """The record of a pass that follows: a function of matrices in HBM alone."""

    name: str
    title: str
    run: Callable[..., Any]


GROUP_SUM = Pass("group_sum", "Sums over the query heads of a group", sum_over_group)
SINK_GRADIENT = Pass("sink_gradient", "Gradient of a sink's logits", sink_gradient)


@dataclass(frozen=True, kw_only=True, repr=False)
class PassPlan(Plan):
    """A pass that follows another's launches, in the same memory.

    parts  the operands of each launch
    """

    program: Pass
    parts: Sequence[Sequence[Operand]]
    folds: bool = False

    @classmethod
    def after(
        cls,
        plan: AttentionPlan,
        program: Pass,
        parts: Sequence[Sequence[Operand]],
        folds: bool = False,
    ) -> PassPlan:
        """Return the plan of a pass that follows `plan`; on shapes alone where its operands are."""
        arithmetic = not isinstance(parts[0][0].values, tuple)
        return cls(
            program=program,
            problem=plan.problem,
            enforced=plan.enforced,
            arithmetic=arithmetic,
            parts=parts,
            folds=folds,
        )

    def described_operands(self) -> list[str]:
        """Return name, shape and dtype of each operand of the first launch."""
        return [operand.described() for operand in self.parts[0]]

    def launches(self, outcome: Outcome) -> Iterator[Launch]:
        """Yield the launches."""
        for operands in self.parts:
            yield Launch(operands=operands, make_arguments=_nothing, folds=self.folds)


def _nothing(hbm: HBM, sram: SRAM) -> Sequence[Any]:
    return ()


def gather_gradients(
    plan: AttentionPlan, outcome: Outcome, observers: Sequence[Observer], layout: str = HEADS_FIRST
) -> Result:
    """Return the finished backward pass; dK and dV of query heads that ran each on its own are
    summed first.
    """
    left = {
        name: f"{name}_parts" if plan.has_parts and name != "dQ" else name for name in GRADIENTS
    }
    gradients: dict[str, Any] = {
        name: stacked(plan, name, outcome.matrices[name], left[name]) for name in GRADIENTS
    }
    cost = outcome.total
    dB = None
    if plan.has_parts:
        sums, summing = key_gradients(
            plan, {name: gradients[name] for name in ("dK", "dV")}, observers
        )
        for name, array in sums.items():
            refuse_overflow(plan, name, array)
        gradients |= sums
        cost = cost.with_sums(summing)
    if plan.row_mask.bias is not None:
        dB, summing = bias_gradient(plan, outcome.sums, observers)
        cost = cost.sized(dB=sum(matrix.size for matrix in outcome.sums.values())).with_sums(
            summing
        )
    dsink = None
    if plan.mask.sink is not None:
        dsink, summing = sink_gradients(plan, observers)
        cost = cost.with_sums(summing)
    by_name = {name: to_layout(name, gradients[name], layout) for name in GRADIENTS}
    return Result(
        **cost_of(plan, cost), arrays={**by_name, "dB": dB, "dsink": dsink}, layout=layout
    )


def gather_tally(
    plan: AttentionPlan, heads: int, outcome: Outcome, observers: Sequence[Observer]
) -> Result:
    """Return what `heads` query heads cost, of one problem's launch on shapes alone."""
    group = plan.problem.group
    launches = heads // plan.heads_per_launch
    cost = outcome.total.times(launches)
    if plan.has_parts and plan.program.direction == "backward":
        parts = {
            name: (group, prod(KINDS[name].shape(plan.problem.shape))) for name in ("dK", "dV")
        }
        cost = cost.with_sums(
            launch_sums(plan, [parts], plan.problem.dtype, observers)[1].times(heads // group)
        )
    bias = plan.mask.bias
    by_array = cost.traffic.by_array
    if "dB" in by_array:
        cost = replace(cost, traffic=Traffic({**by_array, "dB": by_array["dB"].shared(launches)}))
        if summed_over(bias, plan.heads_per_launch, plan.problem.shape.N_q) is not None:
            shapes = {"dB": (plan.heads_per_launch, prod(bias.matrix))}
            stored = chip_dtype(plan.problem.dtype)
            cost = cost.with_sums(launch_sums(plan, [shapes], stored, observers)[1])
    if plan.mask.sink is not None and plan.program.direction == "backward":
        shapes = {name: KINDS[name].shape(plan.problem.shape) for name in matrices_of_sink(plan)}
        cost = cost.with_sums(
            _sink_pass(plan, [{"sink": (1, 1), **shapes}], observers)[1].times(heads)
        )
    return Result(**cost_of(plan, cost), operations=cost.flops)


def launch_sums(
    plan: AttentionPlan,
    problems: Sequence[Parts],
    dtype: np.dtype[np.generic],
    observers: Sequence[Observer],
) -> tuple[list[Sums], Cost]:
    """Sum the parts of each problem, stored as `dtype`; return the sums, one row each, and the
    cost.
    """
    operands = [
        [Operand(f"{name}_parts", each, dtype) for name, each in parts.items()]
        for parts in problems
    ]
    names = [*problems[0]]
    summing = PassPlan.after(plan, GROUP_SUM, operands)
    outcome = simulate(summing, observers)
    sums = []
    if summing.arithmetic:
        sums = [
            {name: outcome.matrices[name][n][0] for name in names} for n in range(len(problems))
        ]
    return sums, outcome.total


def key_gradients(
    plan: AttentionPlan, parts: Sums, observers: Sequence[Observer]
) -> tuple[Sums, Cost]:
    """Return dK and dV, (..., H_kv, N_k, width), of parts (..., H_q, N_k, width), and what
    summing them up cost.
    """
    groups = [a.reshape(-1, plan.problem.group, prod(a.shape[-2:])) for a in parts.values()]
    problems = [dict(zip(parts, group, strict=True)) for group in zip(*groups, strict=True)]
    sums, cost = launch_sums(plan, problems, plan.problem.dtype, observers)
    shapes = {name: getattr(plan.inputs, name[1:]).shape for name in parts}
    return {
        name: np.stack([one[name] for one in sums]).reshape(shape) for name, shape in shapes.items()
    }, cost


def matrices_of_sink(plan: AttentionPlan) -> tuple[str, ...]:
    """Return what a sink's gradient is made of: O, dO, and what the backward pass has of its
    weights.
    """
    own = plan.program.operands
    return "O", "dO", *(["L"] if "L" in own else ["l", "m"] if "l" in own else ["P_sink"])


def _sink_pass(
    plan: AttentionPlan, problems: Sequence[Parts], observers: Sequence[Observer]
) -> tuple[Outcome, Cost]:
    stored = plan.problem.dtype
    types = {name: kind.dtype(stored) for name, kind in KINDS.items()} | {
        "sink": chip_dtype(stored)
    }
    operands = [
        [Operand(name, values, types[name]) for name, values in parts.items()] for parts in problems
    ]
    outcome = simulate(PassPlan.after(plan, SINK_GRADIENT, operands, folds=True), observers)
    return outcome, outcome.total


def sink_gradients(plan: AttentionPlan, observers: Sequence[Observer]) -> tuple[Array, Cost]:
    """Return the gradient of each query head's logit, (..., H_q), and what the passes that make
    it cost.
    """
    saved = {
        name: stacked(plan, name, plan.saved[name])[..., None]
        for name in matrices_of_sink(plan)
        if name in plan.saved
    }
    matrices = {**saved, **plan.more}
    chip = chip_dtype(plan.problem.dtype)
    problems: list[Parts] = []
    for head in np.ndindex(plan.problem.leading):
        logit = plan.mask.sink.of(head, 1).astype(chip)
        problems.append(
            {"sink": logit, **{name: matrices[name][head] for name in matrices_of_sink(plan)}}
        )
    outcome, cost = _sink_pass(plan, problems, observers)
    gradients = np.array([dsink[0, 0] for dsink in outcome.matrices["dsink"]], chip)
    return gradients.reshape(plan.problem.leading), cost


def bias_gradient(
    plan: AttentionPlan, sums_by_index: Mapping[Head, Array], observers: Sequence[Observer]
) -> tuple[Array, Cost]:
    """Return dB, as large as the bias was given, of what the launches left, by where it is among
    the bias's leading axes.

    And what summing it up cost, if anything.
    """
    bias = plan.mask.bias
    row_bias = plan.row_mask.bias
    N_q = plan.problem.shape.N_q
    group = plan.heads_per_launch
    dtype = chip_dtype(plan.problem.dtype)
    cost = Cost()
    axis = summed_over(bias, group, N_q)
    matrices = [*sums_by_index.values()]
    if axis is not None:
        parts = [np.moveaxis(matrix.reshape(N_q, group, -1), axis, 0) for matrix in matrices]
        sums, cost = launch_sums(
            plan, [{"dB": a.reshape(len(a), -1)} for a in parts], dtype, observers
        )
        matrices = [one["dB"].reshape(a.shape[1:]) for a, one in zip(parts, sums, strict=True)]
    dB = np.stack(matrices)
    dB = dB.reshape(*row_bias.leading, *dB.shape[1:])
    if axis is None and bias.matrix[0] > 1:
        dB = by_head(dB, group)
    return dB.reshape(bias.array.shape), cost

"""The last step of a backward pass and of a count: what query heads have in parts is summed up.

Query heads that share a KV head and ran each on its own have dK and dV in parts. Those whose rows ran interleaved have a bias's
gradient in parts, where its entries belong to several of these rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from flashsim.algorithms import GRADIENTS
from flashsim.algorithms.blocks import who_chose
from flashsim.algorithms.group_sum import sum_over_group
from flashsim.algorithms.sink_gradient import sink_gradient
from flashsim.machine.memory import HBM, SRAM, Observer
from flashsim.machine.traffic import Traffic
from flashsim.masks.rules import Head
from flashsim.problem.inputs import Array, chip_dtype
from flashsim.problem.matrices import KINDS
from flashsim.run.interleaving import by_head, summed_over
from flashsim.run.launch import Cost, Outcome, cost_of, refuse_overflow, stacked
from flashsim.run.plan import Plan
from flashsim.run.results import Gradients, Tally

Sums = dict[str, Array]
Parts = Mapping[str, Array | tuple[int, int]]
"""Parts by the names of their sums, a row for each; or, to count on shapes alone, how many and how long."""


def gather_gradients(plan: Plan, outcome: Outcome, observers: Sequence[Observer]) -> Gradients:
    """Return the finished backward pass; dK and dV of query heads that ran each on its own are summed first."""
    said = {name: f"{name}_parts" if plan.parts and name != "dQ" else name for name in GRADIENTS}
    found: dict[str, Any] = {name: stacked(plan, name, outcome.matrices[name], said[name]) for name in GRADIENTS}
    cost, dB = outcome.cost, None
    if plan.parts:
        sums, summing = key_gradients(plan, {name: found[name] for name in ("dK", "dV")}, observers)
        for name, array in sums.items():
            refuse_overflow(plan, name, array)
        found, cost = found | sums, cost.with_sums(summing)
    if plan.row_mask.bias is not None:
        dB, summing = bias_gradient(plan, outcome.dB, observers)
        cost = cost.sized(dB=sum(matrix.size for matrix in outcome.dB.values())).with_sums(summing)
    dsink = None
    if plan.mask.sink is not None:
        dsink, summing = sink_gradients(plan, observers)
        cost = cost.with_sums(summing)
    return Gradients(**found, **cost_of(plan, cost), dB=dB, dsink=dsink, plan=plan)


def gather_tally(plan: Plan, heads: int, hbm: HBM, sram: SRAM, observers: Sequence[Observer]) -> Tally:
    """Return what `heads` query heads cost, of one problem's launch on shapes alone."""
    g, launches = plan.problem.group, heads // plan.together
    cost = Cost(hbm.traffic, sram.peak, sram.flops).times(launches)
    if plan.parts and plan.algorithm.direction == "backward":
        parts = {name: (g, prod(KINDS[name].shape(plan.problem.shape))) for name in ("dK", "dV")}
        cost = cost.with_sums(launch_sums(plan, [parts], plan.problem.dtype, observers, heads // g)[1])
    bias, by_array = plan.mask.bias, cost.traffic.by_array
    if "dB" in by_array:
        cost = replace(cost, traffic=Traffic({**by_array, "dB": by_array["dB"].shared(launches)}))
        if summed_over(bias, plan.together, plan.problem.shape.N_q) is not None:
            shapes, stored = {"dB": (plan.together, prod(bias.matrix))}, chip_dtype(plan.problem.dtype)
            cost = cost.with_sums(launch_sums(plan, [shapes], stored, observers)[1])
    if plan.mask.sink is not None and plan.algorithm.direction == "backward":
        shapes = {name: KINDS[name].shape(plan.problem.shape) for name in _of_sink(plan)}
        cost = cost.with_sums(_sink_pass(plan, {"sink": (1, 1), **shapes}, observers)[1].times(heads))
    return Tally(**cost_of(plan, cost), flops=cost.flops, sizing=who_chose(plan.sizing))


def launch_sums(
    plan: Plan, problems: Sequence[Parts], dtype: np.dtype[np.generic], observers: Sequence[Observer], times: int = 1
) -> tuple[list[Sums], Cost]:
    """Sum the parts of each problem, stored as `dtype`; return the sums, one row each, and the cost, so many times."""
    sums, cost = [], Cost()
    for parts in problems:
        hbm = HBM(arithmetic=not any(isinstance(each, tuple) for each in parts.values()))
        sram = plan.on_chip(hbm, observers)
        placed = [hbm.place(f"{name}_parts", each, dtype) for name, each in parts.items()]
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            sum_over_group(hbm, sram, *placed)
        cost = cost + Cost(hbm.traffic, sram.peak, sram.flops).times(times)
        sums.append({name: hbm.peek(name)[0] for name in parts if hbm.arithmetic})
    return sums, cost


def key_gradients(plan: Plan, parts: Sums, observers: Sequence[Observer]) -> tuple[Sums, Cost]:
    """Return dK and dV, (..., H_kv, N_k, width), of parts (..., H_q, N_k, width), and what summing them up cost."""
    groups = [a.reshape(-1, plan.problem.group, prod(a.shape[-2:])) for a in parts.values()]
    problems = [dict(zip(parts, group, strict=True)) for group in zip(*groups, strict=True)]
    sums, cost = launch_sums(plan, problems, plan.problem.dtype, observers)
    shapes = {name: getattr(plan.given, name[1:]).shape for name in parts}
    return {name: np.stack([one[name] for one in sums]).reshape(shape) for name, shape in shapes.items()}, cost


def _of_sink(plan: Plan) -> tuple[str, ...]:
    """Return what a sink's gradient is made of: O, dO, and what the backward pass has of its weights."""
    own = plan.algorithm.operands
    return "O", "dO", *(["L"] if "L" in own else ["l", "m"] if "l" in own else ["P_sink"])


def _sink_pass(plan: Plan, given: Parts, observers: Sequence[Observer]) -> tuple[HBM, Cost]:
    hbm = HBM(arithmetic=plan.given is not None)
    sram = plan.on_chip(hbm, observers, fold=True)
    chip, stored = chip_dtype(plan.problem.dtype), plan.problem.dtype
    placed = [hbm.place(name, of, KINDS[name].dtype(stored) if name in KINDS else chip) for name, of in given.items()]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        sink_gradient(hbm, sram, *placed)
    return hbm, Cost(hbm.traffic, sram.peak, sram.flops)


def sink_gradients(plan: Plan, observers: Sequence[Observer]) -> tuple[Array, Cost]:
    """Return the gradient of each query head's logit, (..., H_q), and what the passes that make it cost."""
    saved = {name: stacked(plan, name, plan.saved[name])[..., None] for name in _of_sink(plan) if name in plan.saved}
    found, cost = np.empty(plan.problem.leading, chip_dtype(plan.problem.dtype)), Cost()
    for head in np.ndindex(plan.problem.leading):
        given = {name: {**saved, **plan.more}[name][head] for name in _of_sink(plan)}
        hbm, own = _sink_pass(plan, {"sink": plan.mask.sink.of(head, 1).astype(found.dtype), **given}, observers)
        found[head], cost = hbm.peek("dsink")[0, 0], cost + own
    return found, cost


def bias_gradient(plan: Plan, found: Mapping[Head, Array], observers: Sequence[Observer]) -> tuple[Array, Cost]:
    """Return dB, as large as the bias was given, of what the launches left, by where it is among the bias's leading axes.

    And what summing it up cost, if anything.
    """
    given, ran = plan.mask.bias, plan.row_mask.bias
    N_q, group, dtype, cost = plan.problem.shape.N_q, plan.together, chip_dtype(plan.problem.dtype), Cost()
    axis = summed_over(given, group, N_q)
    if axis is not None:
        parts = [np.moveaxis(matrix.reshape(N_q, group, -1), axis, 0) for matrix in found.values()]
        sums, cost = launch_sums(plan, [{"dB": a.reshape(len(a), -1)} for a in parts], dtype, observers)
        found = {at: one["dB"].reshape(a.shape[1:]) for at, a, one in zip(found, parts, sums, strict=True)}
    dB = np.stack([*found.values()])
    dB = dB.reshape(*ran.leading, *dB.shape[1:])
    if axis is None and given.matrix[0] > 1:
        dB = by_head(dB, group)
    return dB.reshape(given.array.shape), cost

"""The last step: what the problems left is stacked over heads, summed up, refused where it overflows, and returned.

Query heads that share a KV head and ran each on its own have dK and dV in parts. Those whose rows ran interleaved have a bias's
gradient in parts, where its entries belong to several of these rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, cast

import numpy as np

from flashsim.algorithms import GRADIENTS
from flashsim.algorithms.group_sum import sum_over_group
from flashsim.machine.memory import HBM, SRAM, Event, MemoryModelError, Observer
from flashsim.machine.source import at_line
from flashsim.machine.traffic import Occupancy, Traffic
from flashsim.masks.rules import Head
from flashsim.problem.inputs import Array, Inputs, chip_dtype, largest
from flashsim.problem.matrices import KINDS
from flashsim.run.interleaving import by_head, summed_over
from flashsim.run.launch import Cost, Outcome, launch
from flashsim.run.results import Gradients, Run, Tally
from flashsim.run.task import Plan, Task

Sums = dict[str, Array]
Parts = Mapping[str, Array | tuple[int, int]]
"""Parts by the names of their sums, a row for each; or, to count on shapes alone, how many and how long."""


def gather_run(plan: Plan, outcome: Outcome) -> Run:
    """Return the finished forward pass."""
    task, matrices = plan.task, outcome.matrices
    found = {name: _stacked(plan, name, matrices[name]) for name in ("O", "l", "m", "lse") if name in matrices}
    if task.check_finite and not task.algorithm.returns:
        for name, matrix in found.items():
            if np.isnan(matrix).any():
                returned = "L" if name == "lse" else name
                raise _of_nan(plan, f"{task.algorithm.name!r} returned an {returned} with NaN in it")
    saved = {name: each for name, each in matrices.items() if name not in {*found, "L"}}
    return Run(
        algorithm=task.algorithm.name, O=found["O"], l=found.get("l"), m=found.get("m"), lse=found.get("lse"),
        hbm=_once_per_group(plan, outcome.cost).traffic, sram=_use(plan, outcome.cost), blocks=plan.blocks, plan=plan,
        scale=task.variant.tau, gqa=task.gqa, inputs=cast(Inputs, task.given), variant=task.variant, saved=saved,
    )  # fmt: skip


def _of_nan(plan: Plan, said: str) -> MemoryModelError:
    """Return the error for a user's algorithm whose results are NaN: it is run again, to see where they begin."""
    events: list[Event] = []

    def first(event: Event) -> None:
        if not events and event.tile is not None and event.kind in ("load", "compute") and np.isnan(event.tile).any():
            events.append(event)

    for number, head in enumerate(np.ndindex(plan.leading)):
        with np.errstate(all="ignore"):
            launch(plan, head, number, [first])
    if not events:
        return MemoryModelError(f"{said}: rows of it were never stored")
    (event,) = events
    if event.kind == "load":
        error = MemoryModelError(f"{said}: it begins in {event.name}, which is loaded before it was stored")
    else:
        error = MemoryModelError(
            f"{said}: it begins in {event.name}, made of a tile that was evicted at the end of its turn "
            "(on_chip(…, over=tile) keeps that tile), or of numbers that are too large, or −∞ − −∞"
        )
    error.add_note(at_line(*event.site))
    return error


def gather_gradients(plan: Plan, outcome: Outcome, observers: Sequence[Observer]) -> Gradients:
    """Return the finished backward pass; dK and dV of query heads that ran each on its own are summed first."""
    said = {name: f"{name}_parts" if plan.parts and name != "dQ" else name for name in GRADIENTS}
    found: dict[str, Any] = {name: _stacked(plan, name, outcome.matrices[name], said[name]) for name in GRADIENTS}
    cost, dB = _once_per_group(plan, outcome.cost), None
    if plan.parts:
        sums, summing = key_gradients(plan.task, {name: found[name] for name in ("dK", "dV")}, observers)
        for name, array in sums.items():
            _refuse_overflow(plan, name, array)
        found, cost = found | sums, cost.with_sums(summing)
    if plan.variant.mask.bias is not None:
        dB, summing = bias_gradient(plan, outcome.dB, observers)
        cost = cost.sized(dB=sum(matrix.size for matrix in outcome.dB.values())).with_sums(summing)
    return Gradients(
        algorithm=plan.task.algorithm.name, **found, dB=dB,
        hbm=cost.traffic, sram=_use(plan, cost), blocks=plan.blocks, plan=plan,
    )  # fmt: skip


def gather_tally(plan: Plan, heads: int, hbm: HBM, sram: SRAM, observers: Sequence[Observer]) -> Tally:
    """Return what `heads` query heads cost, of one problem's launch on shapes alone."""
    task, g, problems = plan.task, plan.task.given.group, heads // plan.group
    cost = _once_per_group(plan, Cost(hbm.traffic.times(problems), sram.peak, sram.flops.times(problems)))
    if plan.parts and task.algorithm.direction == "backward":
        parts = {name: (g, prod(KINDS[name].shape(task.given.shape))) for name in ("dK", "dV")}
        cost = cost.with_sums(launch_sums(task, [parts], task.given.dtype, observers, heads // g)[1])
    bias, by_array = task.variant.mask.bias, cost.traffic.by_array
    if "dB" in by_array:
        cost = replace(cost, traffic=Traffic({**by_array, "dB": by_array["dB"].shared(problems)}))
        if summed_over(bias, plan.group, task.given.shape.N_q) is not None:
            shapes, stored = {"dB": (plan.group, prod(bias.matrix))}, chip_dtype(task.given.dtype)
            cost = cost.with_sums(launch_sums(task, [shapes], stored, observers)[1])
    return Tally(task.algorithm.name, cost.traffic, _use(plan, cost), plan.blocks, cost.flops)


def launch_sums(
    task: Task, problems: Sequence[Parts], dtype: np.dtype[np.generic], observers: Sequence[Observer], times: int = 1
) -> tuple[list[Sums], Cost]:
    """Sum the parts of each problem, stored as `dtype`; return the sums, one row each, and the cost, so many times."""
    sums, cost = [], Cost()
    for parts in problems:
        hbm = HBM(arithmetic=not any(isinstance(each, tuple) for each in parts.values()))
        sram = SRAM(hbm, task.M, enforced=task.sizing.enforced, dtype=chip_dtype(task.given.dtype), observers=observers)
        placed = [hbm.place(f"{name}_parts", each, dtype) for name, each in parts.items()]
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            sum_over_group(hbm, sram, *placed)
        cost = cost.plus(hbm, sram, times)
        sums.append({name: hbm.peek(name)[0] for name in parts if hbm.arithmetic})
    return sums, cost


def key_gradients(task: Task, parts: Sums, observers: Sequence[Observer]) -> tuple[Sums, Cost]:
    """Return dK and dV, (..., H_kv, N_k, width), of parts (..., H_q, N_k, width), and what summing them up cost."""
    groups = [a.reshape(-1, task.given.group, prod(a.shape[-2:])) for a in parts.values()]
    problems = [dict(zip(parts, group, strict=True)) for group in zip(*groups, strict=True)]
    sums, cost = launch_sums(task, problems, task.given.dtype, observers)
    shapes = {name: getattr(task.given, name[1:]).shape for name in parts}
    return {name: np.stack([one[name] for one in sums]).reshape(shape) for name, shape in shapes.items()}, cost


def bias_gradient(plan: Plan, found: Mapping[Head, Array], observers: Sequence[Observer]) -> tuple[Array, Cost]:
    """Return dB, as large as the bias was given, of what the launches left, by where it is among the bias's leading axes.

    And what summing it up cost, if anything.
    """
    given, ran = plan.task.variant.mask.bias, plan.variant.mask.bias
    N_q, group, dtype, cost = plan.task.given.shape.N_q, plan.group, chip_dtype(plan.task.given.dtype), Cost()
    axis = summed_over(given, group, N_q)
    if axis is not None:
        parts = [np.moveaxis(matrix.reshape(N_q, group, -1), axis, 0) for matrix in found.values()]
        sums, cost = launch_sums(plan.task, [{"dB": a.reshape(len(a), -1)} for a in parts], dtype, observers)
        found = {at: one["dB"].reshape(a.shape[1:]) for at, a, one in zip(found, parts, sums, strict=True)}
    dB = np.stack([*found.values()])
    dB = dB.reshape(*ran.array.shape[:-2], *dB.shape[1:])
    if axis is None and given.matrix[0] > 1:
        dB = by_head(dB, group)
    return dB.reshape(given.array.shape), cost


def _use(plan: Plan, cost: Cost) -> Occupancy:
    return Occupancy(cost.peak, plan.task.M, plan.task.sizing.enforced)


def _once_per_group(plan: Plan, cost: Cost) -> Cost:
    """Return the query heads' cost together, with K and V as large as they are: one for each KV head, not for each copy."""
    if not plan.parts:
        return cost
    return cost.sized(**{name: cost.traffic.by_array[name].size // plan.task.given.group for name in ("K", "V")})


def _stacked(plan: Plan, name: str, matrices: Sequence[Array], said: str = "") -> Array:
    """Stack a matrix over the problems, their interleaved heads taken apart; a column (N, 1) becomes a vector.

    Raises ValueError where finite input overflowed the type that a result is stored in.
    """
    stacked = np.stack(matrices)
    stacked = stacked.reshape(*plan.leading, *stacked.shape[1:])
    if KINDS[name].rows == "N_q":
        stacked = by_head(stacked, plan.group)
    _refuse_overflow(plan, said or name, stacked)
    return stacked[..., 0] if KINDS[name].columns == "1" else stacked


def _refuse_overflow(plan: Plan, name: str, array: Array) -> None:
    if plan.task.check_finite and array.dtype.itemsize == 2 and np.isinf(array).any():
        down, end = "dO" if name.startswith("d") else "V", largest(array.dtype)
        raise ValueError(
            f"{name} overflows {array.dtype}, which ends at {end:.3g}. Scale {down} down, or use a wider dtype"
        )

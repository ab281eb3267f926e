"""The last step: what the problems left is stacked over heads, refused where it overflows, and returned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, cast

import numpy as np

from flashsim.algorithms import GRADIENTS
from flashsim.groups import by_head, summed_over
from flashsim.inputs import Array, Inputs, chip_dtype, largest
from flashsim.matrices import KINDS
from flashsim.memory import HBM, SRAM, Event, MemoryModelError, Observer
from flashsim.records import Occupancy, Traffic
from flashsim.run.launch import Outcome, launch
from flashsim.run.results import Gradients, Run, Tally
from flashsim.run.sums import Cost, bias_gradient, key_gradients, launch_sums
from flashsim.run.task import Plan
from flashsim.source import at_line


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
    cost = _once_per_group(plan, Cost().plus(hbm, sram, problems))
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
        raise ValueError(
            f"{name} overflows {array.dtype}, which ends at {largest(array.dtype):.3g}. "
            f"Scale {'dO' if name.startswith('d') else 'V'} down, or use a wider dtype"
        )

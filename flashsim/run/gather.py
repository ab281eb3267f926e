"""The last step: what the problems left is stacked over heads, refused where it overflows, and returned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from flashsim.groups import by_head
from flashsim.inputs import Array, Inputs, largest
from flashsim.matrices import KINDS
from flashsim.memory import HBM, SRAM, Event, MemoryModelError, Observer
from flashsim.records import Occupancy, Traffic
from flashsim.run.launch import Outcome, launch
from flashsim.run.results import Gradients, Run, Tally
from flashsim.run.sums import NAMES, bias_gradient, sum_bias_gradient, sum_one_group, summed, with_parts
from flashsim.run.task import Plan
from flashsim.source import at_line


def gather_run(plan: Plan, outcome: Outcome) -> Run:
    """Return the finished forward pass."""
    task, matrices = plan.task, outcome.matrices
    found = {name: _stacked(plan, name, matrices[name]) for name in ("O", "l", "m", "lse") if name in matrices}
    if task.check_finite and not task.algorithm.returns:
        for name, matrix in found.items():
            if np.isnan(matrix).any():
                raise _of_nan(
                    plan, f"{task.algorithm.name!r} returned an {'L' if name == 'lse' else name} with NaN in it"
                )
    saved = {name: each for name, each in matrices.items() if name not in {*found, "L"}}
    return Run(
        algorithm=task.algorithm.name, O=found["O"], l=found.get("l"), m=found.get("m"), lse=found.get("lse"),
        hbm=_once_per_group(plan, outcome.traffic), sram=_use(plan, outcome.peak), blocks=plan.blocks, plan=plan,
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
    matrices, traffic, peak = outcome.matrices, _once_per_group(plan, outcome.traffic), outcome.peak
    dQ = _stacked(plan, "dQ", matrices["dQ"])
    if plan.parts:
        parts = {name: _stacked(plan, name, matrices[name], f"{name}_parts") for name in NAMES}
        summing, moved, most = summed(plan.task, parts, observers)
        traffic, peak = with_parts(traffic, moved), max(peak, most)
        for name, array in summing.items():
            _refuse_overflow(plan, name, array)
    else:
        summing = {name: _stacked(plan, name, matrices[name]) for name in NAMES}
    bias, dB = plan.variant.mask.bias, None
    if bias is not None:
        dB, adding, most = bias_gradient(plan, outcome.dB, observers)
        written = sum(matrix.size for matrix in outcome.dB.values())
        traffic = Traffic({**traffic.by_array, "dB": replace(traffic.by_array["dB"], size=written)})
        if adding is not None:
            traffic, peak = with_parts(traffic, adding), max(peak, most)
    return Gradients(
        dB=dB, algorithm=plan.task.algorithm.name, dQ=dQ, dK=summing["dK"], dV=summing["dV"],
        hbm=traffic, sram=_use(plan, peak), blocks=plan.blocks, plan=plan,
    )  # fmt: skip


def gather_tally(plan: Plan, heads: int, hbm: HBM, sram: SRAM, observers: Sequence[Observer]) -> Tally:
    """Return what `heads` query heads cost, of one problem's launch on shapes alone."""
    task, problems = plan.task, heads // plan.group
    traffic, flops, peak = _once_per_group(plan, hbm.traffic.times(problems)), sram.flops.times(problems), sram.peak
    if plan.parts and task.algorithm.direction == "backward":
        hbm, sram = sum_one_group(task, observers)
        groups = heads // task.given.group
        traffic, flops = with_parts(traffic, hbm.traffic.times(groups)), flops + sram.flops.times(groups)
        peak = max(peak, sram.peak)
    if "dB" in traffic.by_array:
        traffic = Traffic({**traffic.by_array, "dB": traffic.by_array["dB"].shared(problems)})
        summing = sum_bias_gradient(plan, observers)
        if summing is not None:
            hbm, sram = summing
            traffic, flops, peak = with_parts(traffic, hbm.traffic), flops + sram.flops, max(peak, sram.peak)
    return Tally(task.algorithm.name, traffic, _use(plan, peak), plan.blocks, flops)


def _use(plan: Plan, peak: int) -> Occupancy:
    return Occupancy(peak, plan.task.M, plan.task.sizing.enforced)


def _once_per_group(plan: Plan, traffic: Traffic) -> Traffic:
    """Return the query heads' traffic together, with K and V as large as they are: one for each KV head, not for each copy."""
    if not plan.parts:
        return traffic
    by_array = traffic.by_array
    shared = {name: replace(by_array[name], size=by_array[name].size // plan.task.given.group) for name in ("K", "V")}
    return Traffic({**by_array, **shared})


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

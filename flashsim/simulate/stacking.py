"""How the matrices that an attention plan's launches left become results: stacked over heads,
refused where they overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flashsim.algorithms.notation import log
from flashsim.attention.inputs import HEADS_FIRST, Array, largest, to_layout
from flashsim.attention.matrices import KINDS
from flashsim.memory.errors import MemoryModelError
from flashsim.memory.source import at_line
from flashsim.memory.sram import SRAM, Event
from flashsim.memory.traffic import Occupancy
from flashsim.simulate.attention import AttentionPlan
from flashsim.simulate.interleaving import by_head
from flashsim.simulate.outcome import Cost, Outcome
from flashsim.simulate.pipeline import run_launch
from flashsim.simulate.results import Result


def finished(plan: AttentionPlan, outcome: Outcome, layout: str = HEADS_FIRST) -> Result:
    """Return the finished forward pass."""
    matrices = outcome.matrices
    arrays: dict[str, Any] = {
        name: stacked(plan, name, matrices[name])
        for name in ("O", "l", "m", "lse")
        if name in matrices
    }
    if "l" in arrays:
        arrays["lse"] = arrays["m"] + log(arrays["l"])
    elif "L" in matrices:
        arrays["lse"] = stacked(plan, "L", matrices["L"])
    if plan.check_finite and not plan.program.returns:
        for name, array in arrays.items():
            if np.isnan(array).any():
                raise returned_nan(plan, "L" if name == "lse" else name)
    saved = {name: each for name, each in matrices.items() if name not in {*arrays, "L"}}
    arrays = {"O": None, "l": None, "m": None, "lse": None} | arrays
    arrays["O"] = to_layout("O", arrays["O"], layout)
    return Result(**cost_of(plan, outcome.total), arrays=arrays, layout=layout, saved=saved)


def returned_nan(plan: AttentionPlan, name: str) -> MemoryModelError:
    """Return the error for a user's algorithm whose results are NaN: it is run again, to see
    where they begin.
    """
    problem_text = f"{plan.program.name!r} returned an {name} with NaN in it"
    events: list[Event] = []
    sram: SRAM | None = None

    def first(event: Event) -> None:
        if (
            not events
            and event.tile is not None
            and event.kind in ("load", "compute")
            and np.isnan(event.tile).any()
        ):
            events.append(event)

    for number, head in enumerate(np.ndindex(plan.leading)):
        with np.errstate(all="ignore"):
            _, sram, _ = run_launch(plan, plan.launch(head, number), [first])
    if not events:
        return MemoryModelError(f"{problem_text}: rows of it were never stored")
    (event,) = events
    if event.kind == "load":
        error = MemoryModelError(
            f"{problem_text}: it begins in {event.name}, which is loaded before it was stored"
        )
    elif (death := None if sram is None else sram.death_at(event.site)) is not None:
        error = MemoryModelError(
            f"{problem_text}: it begins in {event.name}, made of {death.name} "
            f"({'×'.join(map(str, death.shape))}), which was overwritten "
            "with NaN when its turn ended, or a tile was evicted, as it was not on chip. Expected "
            "it in SRAM, by on_chip(…), "
            "or in HBM, by sram.store(…)"
        )
        if death.site is not None:
            error.add_note(at_line(*death.site))
    else:
        error = MemoryModelError(
            f"{problem_text}: it begins in {event.name}, made of a tile that was evicted at the "
            "end of its turn (on_chip(…, over=tile) keeps that tile), or whose room another tile "
            "took (after P = on_chip(…, over=S) the numbers are P's), or of numbers that are too "
            "large, or −∞ − −∞"
        )
    error.add_note(at_line(*event.site))
    return error


def cost_of(plan: AttentionPlan, cost: Cost) -> dict[str, Any]:
    """Return the query heads' cost together, as a result's fields: K and V are as large as they
    are, once for each KV head.
    """
    if plan.has_parts:
        cost = cost.sized(
            **{name: cost.traffic.by_array[name].size // plan.problem.group for name in ("K", "V")}
        )
    return {"plan": plan, "hbm": cost.traffic, "sram": Occupancy(cost.peak, plan.M, plan.enforced)}


def stacked(plan: AttentionPlan, name: str, matrices: Sequence[Array], note: str = "") -> Array:
    """Stack a matrix over the launches, their interleaved heads taken apart; a column (N, 1)
    becomes a vector.
    """
    stacked = np.stack(matrices).reshape(*plan.leading, *matrices[0].shape)
    if plan.heads_per_launch > 1 and KINDS[name].rows == "N_q":
        stacked = by_head(stacked, plan.heads_per_launch)
    refuse_overflow(plan, note or name, stacked)
    return stacked[..., 0] if KINDS[name].columns == "1" else stacked


def refuse_overflow(plan: AttentionPlan, name: str, array: Array) -> None:
    """Raise ValueError where finite input overflowed the type that a result is stored in."""
    if plan.check_finite and array.dtype.itemsize == 2 and np.isinf(array).any():
        down = "dO" if name.startswith("d") else "V"
        end = largest(array.dtype)
        raise ValueError(
            f"{name} overflows {array.dtype}, which ends at {end:.3g}. Scale {down} down, or use a "
            "wider dtype"
        )

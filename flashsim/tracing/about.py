"""What a trace says of its run as a whole: the problem, the counts with their closed forms, the listing, the source."""

from __future__ import annotations

from typing import Any

import numpy as np

from flashsim import theory
from flashsim.algorithms.record import Algorithm
from flashsim.masks import All, Causal
from flashsim.memory import MemoryModelError
from flashsim.run.task import Plan
from flashsim.tracing.recording import About, Recorder, Trace, counts_of, listing_of, source_of, tiles_of

LARGEST_MASK = 2**24  # elements of a mask up to which it is looked at tile by tile


def traced(recorder: Recorder, plan: Plan) -> Trace:
    """Return what the recorder recorded of a run's first problem, with what there is to say of it. ValueError if it saw none."""
    sram, task = recorder.sram, plan.task
    if sram is None:
        raise ValueError(f"the run has no head number {recorder.head}, counted from 0")
    shape, blocks, algorithm = plan.shape, plan.blocks, plan.task.algorithm
    exact = _closed_form(algorithm, plan, (blocks.B_r, blocks.B_c))
    standard = _closed_form("standard", plan, None)
    tiles = None
    if shape.N_q * shape.N_k <= LARGEST_MASK:
        tiles = tiles_of(plan.variant.mask.whole(shape, (0,) * len(plan.leading)), blocks)
    about = About(
        algorithm.name,
        algorithm.title,
        algorithm.direction,
        shape,
        blocks,
        task.M,
        task.sizing.enforced,
        sram.peak,
        sram.dtype.name,
        task.given.dtype.name,
        _options(plan),
        tiles,
        counts_of(sram, None if exact is None else exact.hbm.by_array),
        None if exact is None else exact.sram.peak,
        None if standard is None else (standard.hbm.reads, standard.hbm.writes),
        listing_of(algorithm.listing),
        source_of({event.site for event in recorder.events}),
        notes=recorder.notes,
    )
    return recorder.trace(about)


def _closed_form(what: str | Algorithm, plan: Plan, blocks: tuple[int, int] | None) -> theory.Exact | None:
    """Return the closed form of one problem of a plan, or of another algorithm on it; None where there is none."""
    shape, task, group = plan.shape, plan.task, plan.group
    variant = task.variant
    if variant.mask.per_head:
        return None
    try:
        return theory.exact(
            what,
            direction=task.algorithm.direction,
            N_q=shape.N_q // group,
            N_k=shape.N_k,
            d=shape.d,
            d_v=shape.d_v,
            M=task.M,
            heads=group,
            kv_heads=1,
            gqa="grouped" if group > 1 else "separate",
            dtype=task.given.dtype.name,
            blocks=blocks,
            mask=variant.mask,
            dropout_p=variant.dropout_p,
            **(variant.options if what is task.algorithm else {}),
        )
    except (ValueError, TypeError, MemoryModelError):
        return None


def _options(plan: Plan) -> str:
    """Say what was asked for besides plain attention."""
    variant, defaults = plan.task.variant, {option.name: option.default for option in plan.task.algorithm.options}
    said = {
        "causal" if isinstance(variant.mask, Causal) else repr(variant.mask): not isinstance(variant.mask, All),
        f"dropout {variant.dropout_p:g}": variant.dropout_p,
        **{f"{name} {_named(value)}": value is not defaults.get(name) for name, value in variant.options.items()},
        f"{plan.group} query heads grouped": plan.group > 1,
    }
    return ", ".join(words for words, is_so in said.items() if is_so)


def _named(value: Any) -> str:
    return "an array" if isinstance(value, np.ndarray) else str(getattr(value, "__name__", value))

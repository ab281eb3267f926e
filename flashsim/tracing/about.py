"""What a trace says of its run as a whole: the problem, the counts with their closed forms, the listing, the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flashsim import theory
from flashsim.algorithms import Algorithm
from flashsim.masks import All, Causal, Head
from flashsim.memory import MemoryModelError
from flashsim.records import Blocks, Shape
from flashsim.tracing.recording import About, Recorder, Trace, counts_of, listing_of, source_of, tiles_of
from flashsim.variant import Variant

LARGEST_MASK = 2**24  # elements of a mask up to which it is looked at tile by tile


@dataclass(frozen=True)
class Launched:
    """One launch, as `flashsim.variant.launch` was asked for it; `direction` is "forward" or "backward".

    `shape` and `variant` are of the rows that ran, interleaved ones of `group` heads where there are such; `whole` is the
    variant before that.
    """

    algorithm: Algorithm
    direction: str
    shape: Shape
    variant: Variant
    whole: Variant
    blocks: Blocks
    M: int
    enforced: bool
    stored: np.dtype[Any]
    group: int
    head: Head


def traced(recorder: Recorder, launched: Launched) -> Trace:
    """Return what the recorder recorded, with what there is to say of the run. Raises ValueError if it saw no such head."""
    sram = recorder.sram
    if sram is None:
        raise ValueError(f"the run has no head number {recorder.head}, counted from 0")
    shape, blocks = launched.shape, launched.blocks
    exact = _closed_form(launched.algorithm.name, launched, (blocks.B_r, blocks.B_c))
    standard = _closed_form("standard", launched, None)
    tiles = None
    if shape.N_q * shape.N_k <= LARGEST_MASK:
        tiles = tiles_of(launched.variant.mask.whole(shape, launched.head), blocks)
    about = About(
        launched.algorithm.name,
        launched.algorithm.title,
        launched.direction,
        shape,
        blocks,
        launched.M,
        launched.enforced,
        sram.peak,
        sram.dtype.name,
        launched.stored.name,
        _options(launched),
        tiles,
        counts_of(sram, None if exact is None else exact.hbm.by_array),
        None if exact is None else exact.sram.peak,
        None if standard is None else (standard.hbm.reads, standard.hbm.writes),
        listing_of(launched.algorithm.listing),
        source_of({event.site for event in recorder.events}),
        notes=recorder.notes,
    )
    return recorder.trace(about)


def _closed_form(name: str, launched: Launched, blocks: tuple[int, int] | None) -> theory.Exact | None:
    """Return the closed form of this launch, or of another algorithm on its problem; None where there is none."""
    shape, variant, group = launched.shape, launched.whole, launched.group
    itself = name == launched.algorithm.name
    if variant.mask.per_head:
        return None
    parts: dict[str, Any] = {}
    if itself:
        parts = {"block_mask": variant.block_mask, "splits": variant.splits, "merge": variant.merge}
    try:
        return theory.exact(
            name,
            direction=launched.direction,
            N_q=shape.N_q // group,
            N_k=shape.N_k,
            d=shape.d,
            d_v=shape.d_v,
            M=launched.M,
            heads=group,
            kv_heads=1,
            gqa="grouped" if group > 1 else "separate",
            dtype=launched.stored.name,
            blocks=blocks,
            mask=variant.mask,
            dropout_p=variant.dropout_p,
            **parts,
        )
    except (ValueError, MemoryModelError):
        return None


def _options(launched: Launched) -> str:
    """Say what was asked for besides plain attention."""
    variant = launched.whole
    block_mask = variant.block_mask
    named = block_mask if isinstance(block_mask, str) else getattr(block_mask, "__name__", "an array")
    said = {
        "causal" if isinstance(variant.mask, Causal) else repr(variant.mask): not isinstance(variant.mask, All),
        f"dropout {variant.dropout_p:g}": variant.dropout_p,
        f"block mask {named}": block_mask is not None,
        f"{variant.splits} splits": variant.splits,
        f"{launched.group} query heads grouped": launched.group > 1,
    }
    return ", ".join(words for words, is_so in said.items() if is_so)

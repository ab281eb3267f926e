"""A trace in a terminal: the steps that the player shows, a few lines each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.tracing.recording import Trace
from flashsim.tracing.saving import label_of
from flashsim.tracing.steps import Step

MOST_ROWS = 8  # of m, ℓ, D that are printed, and of a gradient's columns
GRADIENTS = {"dQ": "rows", "dK": "cols", "dV": "cols"}


def lines(trace: Trace) -> Iterator[str]:
    """Yield the text: what the run is, then each step, then the counts with their closed forms."""
    about = trace.about
    shape, blocks = about.shape, about.blocks
    yield f"{about.title}{f', {about.options}' if about.options else ''}"
    yield (
        f"N_q = {shape.N_q:,}, N_k = {shape.N_k:,}, d = {shape.d}, d_v = {shape.d_v}; M = {about.M:,} elements; "
        f"B_r × B_c = {blocks.B_r} × {blocks.B_c}, T_r × T_c = {blocks.T_r} × {blocks.T_c}"
    )
    listing = {label_of(line): line.split(maxsplit=1)[-1] for line in about.listing}
    for step in trace.steps:
        yield ""
        yield from _step(trace, step, listing)
    yield ""
    for array in about.arrays:
        formula = "" if array.exact is None else f"   closed form {array.exact[0]:,} and {array.exact[1]:,}"
        yield f"{array.name:10} {array.reads:>12,} read {array.writes:>12,} written{formula}"
    if about.standard is not None and about.algorithm != "standard":
        mine = sum(array.reads + array.writes for array in about.arrays)
        what = "standard attention" if about.direction == "forward" else "standard attention's backward pass"
        yield f"{mine:,} accesses; {what} makes {sum(about.standard):,}"


def _step(trace: Trace, step: Step, listing: dict[str, str]) -> Iterator[str]:
    loops = ", ".join(f"{variable} = {index}" for variable, index in step.loops)
    yield " · ".join(filter(None, (f"step {step.number}", step.label or "set-up", loops)))
    if step.label in listing:
        yield f"    {listing[step.label]}"
    done: dict[str, list[str]] = {}
    for event in trace.events[step.first : step.last + 1]:
        done.setdefault(event.kind, []).append(f"{event.name} ({event.elements:,})")
    last, M = trace.events[step.last], trace.about.M
    over = f", {last.occupancy - M:,} too many" if last.occupancy > M else ""
    yield (
        f"    {_said(done)}   HBM {last.reads:,} read, {last.writes:,} written   SRAM {last.occupancy:,} of {M:,}{over}"
    )
    for name in ("m", "l", "L", "D"):
        yield from _pair(name, step)
    for name in (name for name in GRADIENTS if _makes(name, trace, step)):
        yield from _gradient(name, step)


def _said(done: dict[str, list[str]]) -> str:
    return "; ".join(f"{kind} {', '.join(names)}" for kind, names in done.items())


def _pair(name: str, step: Step) -> Iterator[str]:
    """Yield old → new of one column where this step or one before it in the tile made the new."""
    old, new = step.pairs.get(name, (None, None))
    if new is None or new.shape[1] != 1:
        return
    factor = ""
    if name == "m" and old is not None:
        with np.errstate(invalid="ignore"):
            factor = f"   e^(m − m_new) = {_numbers(np.where(old == -np.inf, 0.0, np.exp(old - new)))}"
    before = "" if old is None else f"{_numbers(old)} "
    yield f"    {'ℓ' if name == 'l' else name}  {before}→ {_numbers(new)}{factor}"


def _makes(name: str, trace: Trace, step: Step) -> bool:
    """Say whether this step, and not one before it in the tile, made the new value."""
    new = step.pairs.get(name, (None, None))[1]
    made = [event.value for event in trace.events[step.first : step.last + 1] if event.kind == "compute"]
    return new is not None and any(value is new for value in made)


def _gradient(name: str, step: Step) -> Iterator[str]:
    """Yield old → new of a block of dQ, dK or dV, a row or a key a line."""
    old, new = step.pairs[name]
    assert new is not None
    span = step.rows if GRADIENTS[name] == "rows" else step.cols
    for n, row in enumerate(new[:MOST_ROWS]):
        before = "" if old is None or len(old) <= n else f"{_numbers(old[n][:, None])} "
        which = f"{n} of its block" if span is None else f"{span[0] + n}"
        yield f"    {name}  {'row' if GRADIENTS[name] == 'rows' else 'key'} {which}:  {before}→ {_numbers(row[:, None])}"
    if len(new) > MOST_ROWS:
        yield f"    {name}  … {len(new)} in all"


def _numbers(column: NDArray[Any]) -> str:
    shown = " ".join(f"{x:.4g}" for x in column[:MOST_ROWS, 0])
    return shown.replace("-inf", "−∞") + (" …" if len(column) > MOST_ROWS else "")

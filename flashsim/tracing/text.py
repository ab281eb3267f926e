"""A trace in a terminal: the steps that the player shows, a few lines each."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.tracing.data import MAXIMUM, Kind
from flashsim.tracing.listing import label_of, short
from flashsim.tracing.steps import Recording, Step
from flashsim.tracing.typeset import counted, plain

MOST_ROWS = 8  # of a column that are printed, and of a block, with as many of its columns


def lines(trace: Recording) -> Iterator[str]:
    """Yield the text: what the run is, then each step, then the counts with their closed forms."""
    about = trace.about
    shape = about.shape
    blocks = about.blocks
    yield f"{about.title}{f', {about.options}' if about.options else ''}"
    sizes = about.sizes or (
        ("N_q", shape.N_q),
        ("N_k", shape.N_k),
        ("d", shape.d),
        ("d_v", shape.d_v),
    )
    cuts = (
        ", ".join(f"{name} = {size:,}" for name, size in about.cuts)
        or f"B_r × B_c = {blocks.B_r} × {blocks.B_c}"
    )
    yield (
        f"{', '.join(f'{name} = {size:,}' for name, size in sizes)}; M = {about.M:,} elements; "
        f"{cuts}, T_r × T_c = {blocks.T_r} × {blocks.T_c}"
    )
    listing = {label_of(line): line.split(maxsplit=1)[-1] for line in about.listing}
    source = {
        (file, first + n): line for file, first, code in about.source for n, line in enumerate(code)
    }
    for step in trace.steps:
        yield ""
        file, number = trace.events[step.first].site
        yield from _step(
            trace, step, listing.get(step.label) or source.get((short(file), number), "").strip()
        )
    yield ""
    for array in about.arrays:
        formula = (
            ""
            if array.exact is None
            else f"   closed form {array.exact[0]:,} and {array.exact[1]:,}"
        )
        yield f"{array.name:10} {array.reads:>12,} read {array.writes:>12,} written{formula}"
    if about.standard is not None:
        mine = sum(array.reads + array.writes for array in about.arrays)
        what = (
            "standard attention"
            if about.direction == "forward"
            else "standard attention's backward pass"
        )
        yield f"{mine:,} accesses; {what} makes {sum(about.standard):,}"


def _step(trace: Recording, step: Step, line: str) -> Iterator[str]:
    loops = ", ".join(f"{variable} = {index + 1}" for variable, index in step.loops)
    yield " · ".join(filter(None, (f"step {step.number}", step.label, loops)))
    if line:
        yield f"    {line}"
    done: dict[str, list[str]] = {}
    for event in trace.of(step):
        done.setdefault(event.kind, []).append(f"{counted(event.name)} ({event.elements:,})")
    moves = "; ".join(f"{kind} {', '.join(names)}" for kind, names in done.items())
    last = trace.events[step.last]
    M = trace.about.M
    over = f", {last.occupancy - M:,} too many" if last.occupancy > M else ""
    yield (
        f"    {moves}   HBM {last.reads:,} read, {last.writes:,} written   SRAM {last.occupancy:,} "
        f"of {M:,}{over}"
    )
    tiles = [event.value for event in trace.of(step) if event.kind == "compute"]
    for name, kind in trace.about.follows:
        old, new = step.pairs.get(name, (None, None))
        if new is None:
            continue
        if kind[1] == "1" and new.shape[1] == 1:
            yield from _column(name, old, new)
        elif trace.about.direction == "backward" and any(value is new for value in tiles):
            yield from _block(name, kind, step, old, new)


def _column(name: str, old: NDArray[Any] | None, new: NDArray[Any]) -> Iterator[str]:
    factor = ""
    if name == MAXIMUM and old is not None:
        with np.errstate(invalid="ignore", over="ignore"):
            factor = (
                f"   e^(m − m_new) = {_numbers(np.where(old == -np.inf, 0.0, np.exp(old - new)))}"
            )
    before = "" if old is None else f"{_numbers(old)} "
    yield f"    {plain(name)}  {before}→ {_numbers(new)}{factor}"


def _block(
    name: str, kind: Kind, step: Step, old: NDArray[Any] | None, new: NDArray[Any]
) -> Iterator[str]:
    """Yield old → new of a block that this step made, and not one before it in the tile, a row
    or a key a line.
    """
    word, span = ("key", step.cols) if kind[0] == "N_k" else ("row", step.rows)
    for n, row in enumerate(new[:MOST_ROWS]):
        before = "" if old is None or len(old) <= n else f"{_numbers(old[n][:, None])} "
        which = f"{n} of its block" if span is None else f"{span[0] + n}"
        yield f"    {name}  {word} {which}:  {before}→ {_numbers(row[:, None])}"
    if len(new) > MOST_ROWS:
        yield f"    {name}  … {len(new)} in all"


def _numbers(column: NDArray[Any]) -> str:
    numbers = " ".join(f"{x:.4g}" for x in column[:MOST_ROWS, 0])
    return numbers.replace("-inf", "−∞") + (" …" if len(column) > MOST_ROWS else "")

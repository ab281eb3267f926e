"""Queries of a trace: a lesson asks for the steps and the numbers that its text names."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.simulate.api import count
from flashsim.simulate.results import Result
from flashsim.tracing import Step, Trace

KINDS = {"read": "load", "write": "store", "initialize": "init"}
MASKS = {"full": 1, "partial": 2}  # of a tile, as a trace has them


def find_steps(trace: Trace, event: str, after: int = -1, **loops: int) -> list[Step]:
    """Return the steps after step `after` that are an event, in these turns of loops.

    Events are "line 9", "read K", "write S", "initialize O", "first maximum", "maximum stays",
    "rescale", "last step", and "full tile" and "partial tile", where a tile is masked.
    """
    steps = []
    for step in trace.steps[after + 1 :]:
        if _is(trace, step, event) and loops.items() <= dict(step.loops).items():
            steps.append(step)
    return steps


def _is(trace: Trace, step: Step, event: str) -> bool:
    """Return whether a step is an event."""
    word, _, name = event.partition(" ")
    events = trace.of(step)
    if word in KINDS:
        return any(e.kind == KINDS[word] and e.array == name for e in events)
    results = {e.name for e in events}
    if name == "tile":
        return _mask_of(trace, step) == MASKS[word] and "S_masked_ij" in results
    if event == "first maximum":
        return step.moved > 0
    if event == "maximum stays":
        return "m_i_new" in results and not step.moved
    if event == "rescale":
        return step.rescaled > 0
    if event == "last step":
        return step is trace.steps[-1]
    return step.label == event


def _mask_of(trace: Trace, step: Step) -> int:
    """Return the kind of mask of a step's tile; 0 if there is none."""
    tiles = trace.about.tiles
    if not tiles or not step.tile:
        return 0
    i, j = step.tile
    return tiles[i][j]


def first_step(trace: Trace, event: str, after: int = -1, **loops: int) -> Step:
    """Return the first step of `find_steps`. Raises ValueError if there is none."""
    steps = find_steps(trace, event, after, **loops)
    if not steps:
        raise ValueError(
            f"event is {event!r} with {loops}; expected one that a step after {after} is"
        )
    return steps[0]


def number_at(trace: Trace, place: str) -> int:
    """Return the number of the step that a text names: "17", or the first that is "read K", or
    "read K, j = 1".
    """
    if place.isdecimal():
        return int(place)
    event, *turns = place.split(", ")
    loops = {}
    for turn in turns:
        loop, index = turn.split(" = ")
        loops[loop] = int(index)
    return first_step(trace, event, **loops).number


def tile_value(trace: Trace, step: Step, name: str) -> NDArray[Any]:
    """Return the values of the tile `name` that a step computes, loads or stores."""
    value = next(e.value for e in trace.of(step) if e.name == name)
    assert value is not None
    return value


def old_and_new(step: Step, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return a quantity of the step's tile, (rows, …), before the step's turn and now."""
    old, new = step.pairs[name]
    assert old is not None
    assert new is not None
    return old, new


def accesses(trace: Trace, *names: str) -> int:
    """Return the accesses to these arrays in the whole run; without names, to all arrays."""
    return sum(a.reads + a.writes for a in trace.about.arrays if not names or a.name in names)


def count_with(name: str, trace: Trace, **changes: Any) -> Result:
    """Return the count of an algorithm with a trace's sizes, except those in `changes`."""
    about = trace.about
    options: dict[str, Any] = {
        "N": about.shape.N_q,
        "d": about.shape.d,
        "M": about.M,
        "dtype": about.stored,
        "blocks": (about.blocks.B_r, about.blocks.B_c),
    }
    return count(name, **{**options, **changes})


def output(trace: Trace, array: str = "O") -> NDArray[Any]:
    """Return O (N_q, d_v), or ℓ, as the run leaves it: the last store of each block."""
    stored = {e.name: e.value for e in trace.events if e.kind == "store" and e.array == array}
    blocks = [stored[f"{array}[{i}]"] for i in range(len(stored))]
    return np.concatenate([block for block in blocks if block is not None])


def rescaled_rows(trace: Trace) -> set[int]:
    """Return the rows whose maximum rose at least once after it had a value."""
    rows: set[int] = set()
    for step in trace.steps:
        if step.rescaled and step.rows is not None:
            old, new = old_and_new(step, "m")
            rose = np.flatnonzero((new > old) & np.isfinite(old))
            rows |= {step.rows[0] + int(row) for row in rose}
    return rows


def _rises(step: Step) -> NDArray[Any]:
    """Return by how much each row's maximum rose; 0 where it had no value before."""
    old, new = old_and_new(step, "m")
    return np.asarray(np.where(np.isfinite(old), new - old, 0))


def largest_rise(trace: Trace) -> tuple[Step, int, float, float]:
    """Return the step at which a row's maximum rises by the most, the row, and its old and new
    maximum.
    """
    rescaling = [step for step in trace.steps if step.rescaled]
    step = max(rescaling, key=lambda step: float(_rises(step).max()))
    row = int(_rises(step).argmax())
    old, new = old_and_new(step, "m")
    assert step.rows is not None
    return step, step.rows[0] + row, float(old[row, 0]), float(new[row, 0])


def short(x: float) -> str:
    """Return a number with four digits; a tiny one as 3.5·10^{−14}."""
    if x and abs(x) < 1e-3:
        digits, power = f"{x:.1e}".split("e")
        return f"{digits}·10^{{{int(power)}}}".replace("-", "−")
    return f"{x:.4g}".replace("-", "−")

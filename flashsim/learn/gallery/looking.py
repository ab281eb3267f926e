"""Looking things up in a trace, for what a lesson says of it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.simulate.api import count
from flashsim.simulate.results import Result
from flashsim.tracing import Step, Trace

MOVES = {"read": "load", "write": "store", "initialize": "init"}
LEFT = {"full": 1, "partial": 2}


def every(trace: Trace, event: str, after: int = -1, **loops: int) -> list[Step]:
    """Return the steps after `after` that are an event, in these turns of loops.

    Events are "line 9", "read K", "write S", "initialize O", "first maximum", "maximum stays",
    "rescale", "last step", and "full tile" and "partial tile", where a tile is masked.
    """
    steps = trace.steps[after + 1 :]
    return [
        step
        for step in steps
        if _is(trace, step, event) and loops.items() <= dict(step.loops).items()
    ]


def _is(trace: Trace, step: Step, event: str) -> bool:
    word, _, of = event.partition(" ")
    events = trace.of(step)
    tiles = trace.about.tiles
    if word in MOVES:
        return any(e.kind == MOVES[word] and e.array == of for e in events)
    made = {e.name for e in events}
    if of == "tile":
        return (tiles[step.tile[0]][step.tile[1]] if tiles and step.tile else 0) == LEFT[
            word
        ] and "S_masked_ij" in made
    known = {
        "first maximum": step.moved > 0,
        "maximum stays": "m_i_new" in made and not step.moved,
        "rescale": step.rescaled > 0,
        "last step": step is trace.steps[-1],
    }
    return known.get(event, step.label == event)


def first(trace: Trace, event: str, after: int = -1, **loops: int) -> Step:
    """Return the first of them. ValueError if there is none."""
    found = every(trace, event, after, **loops)
    if not found:
        raise ValueError(
            f"event is {event!r} with {loops}; expected one that a step after {after} is"
        )
    return found[0]


def number_at(trace: Trace, where: str) -> int:
    """Return the number of the step that a text names: "17", or the first that is "read K", or
    "read K, j = 1".
    """
    event, *turns = where.split(", ")
    loops = {loop: int(turn) for loop, turn in (each.split(" = ") for each in turns)}
    return int(where) if where.isdecimal() else first(trace, event, **loops).number


def value(trace: Trace, step: Step, name: str) -> NDArray[Any]:
    """Return the values of the tile `name` that a step computes, loads or stores."""
    found = next(e.value for e in trace.of(step) if e.name == name)
    assert found is not None
    return found


def pair(step: Step, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return a followed quantity (rows, …) before the step's tile and as it is now."""
    old, new = step.pairs[name]
    assert old is not None
    assert new is not None
    return old, new


def moved(trace: Trace, *names: str) -> int:
    """Return the accesses to these arrays in the whole run; to all of them without names."""
    return sum(a.reads + a.writes for a in trace.about.arrays if not names or a.name in names)


def counted(name: str, trace: Trace, **changed: Any) -> Result:
    """Return the count of an algorithm with a trace's sizes, but for those `changed`."""
    about = trace.about
    blocks = trace.about.blocks
    same = {"N": about.shape.N_q, "d": about.shape.d, "M": about.M, "dtype": about.stored}
    return count(name, **{**same, "blocks": (blocks.B_r, blocks.B_c), **changed})


def output(trace: Trace, array: str = "O") -> NDArray[Any]:
    """Return O (N_q, d_v), or ℓ, as the run leaves it: of each block, what was stored last."""
    stored = {e.name: e.value for e in trace.events if e.kind == "store" and e.array == array}
    blocks = [stored[f"{array}[{i}]"] for i in range(len(stored))]
    return np.concatenate([block for block in blocks if block is not None])


def rescaled_rows(trace: Trace) -> set[int]:
    """Return the rows whose maximum rose at least once after it had a value."""
    rows = set()
    for step in trace.steps:
        if step.rescaled and step.rows is not None:
            old, new = pair(step, "m")
            rows |= {step.rows[0] + int(r) for r in np.flatnonzero((new > old) & np.isfinite(old))}
    return rows


def largest_rise(trace: Trace) -> tuple[Step, int, float, float]:
    """Return the step at which a row's maximum rises by the most, the row, and its old and new
    maximum.
    """

    def rise(step: Step) -> float:
        old, new = pair(step, "m")
        return float(np.where(np.isfinite(old), new - old, 0).max())

    step = max((s for s in trace.steps if s.rescaled), key=rise)
    old, new = pair(step, "m")
    row = int(np.where(np.isfinite(old), new - old, 0).argmax())
    assert step.rows is not None
    return step, step.rows[0] + row, float(old[row, 0]), float(new[row, 0])


def short(x: float) -> str:
    """Return a number as a reader wants it: four digits, 3.5·10^{−14} where it is tiny."""
    if x and abs(x) < 1e-3:
        digits, power = f"{x:.1e}".split("e")
        return f"{digits}·10^{{{int(power)}}}".replace("-", "−")
    return f"{x:.4g}".replace("-", "−")

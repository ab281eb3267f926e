"""What a point comes to: by its closed form where there is one, else by a count; or the reason why
it makes no sense.

And that as a row: arguments as `flashsim.count` takes them, then what was found, each with its
unit.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import chain
from typing import Any, Literal

import numpy as np

from flashsim import theory
from flashsim.analysis.sweeping import bounds
from flashsim.analysis.sweeping.columns import ARGUMENTS, CERTIFICATE, FOUND, OF_BOUND, is_found
from flashsim.analysis.sweeping.points import Point
from flashsim.attention.arguments import check_shape, shown
from flashsim.attention.inputs import check_M, float_name
from flashsim.attention.shapes import Blocks, Shape
from flashsim.memory.errors import MemoryModelError, SramOverflow
from flashsim.memory.traffic import Occupancy, Traffic
from flashsim.simulate.api import count
from flashsim.simulate.results import Result
from flashsim.support.entry import one_line
from flashsim.theory import Exact, NoClosedForm, exact
from flashsim.theory.form import forms

Row = dict[str, Any]
Status = Literal["ok", "does not fit", "refused"]
DEFAULTS = {name: parameter.default for name, parameter in signature(count).parameters.items()}


@dataclass(frozen=True)
class Outcome:
    """What a point costs.

    status  "ok"; "does not fit": blocks that are enforced take more than M, so a run would raise
            `SramOverflow`; "refused": the arguments make no sense
    reason  why there are no counts
    source  "closed form" or "count"
    hbm     None unless "ok"; sram and blocks are known where it does not fit, too, by closed form
    """

    status: Status
    reason: str = ""
    source: str = ""
    hbm: Traffic | None = None
    sram: Occupancy | None = None
    blocks: Blocks | None = None
    matmul: int | None = None


def outcome(point: Point) -> Outcome:
    """Return what a point comes to."""
    if point.way.algorithm is None:
        return Outcome("refused", point.way.refused)
    if "d" not in point.arguments:
        return Outcome("refused", "d is missing: give the head dimension")
    try:
        return by_form(point)
    except NoClosedForm:
        return by_count(point)
    except (ValueError, TypeError) as error:
        return Outcome("refused", _said(error))


def by_form(point: Point) -> Outcome:
    """Return it by the closed form. Raises NoClosedForm, or ValueError where a run would, too."""
    way = point.way
    arguments = point.arguments
    if way.form is None or way.algorithm is None:
        raise NoClosedForm(f"no closed form for {way.name!r}")
    found: Exact = exact(way.form, **arguments)
    if arguments.get("blocks") is None and arguments.get("sizing", DEFAULTS["sizing"]) == "paper":
        d = arguments["d"]
        # for its ValueError, of too small an M
        way.algorithm.rows(found.sram.capacity, d, arguments.get("d_v") or d)
    if found.sram.enforced and found.sram.peak > found.sram.capacity:
        B = found.blocks
        use = found.sram
        what = f"blocks of {B.B_r:,} × {B.B_c:,}" + (
            ", the smallest," if arguments.get("blocks") is None else ""
        )
        reason = (
            f"{what} take {use.peak:,} elements of SRAM, {use.peak - use.capacity:,} more than M = "
            f"{use.capacity:,}"
        )
        return Outcome("does not fit", reason, "closed form", None, use, B)
    return Outcome("ok", "", "closed form", found.hbm, found.sram, found.blocks, found.matmul)


def by_count(point: Point) -> Outcome:
    """Return it by counting on shapes."""
    algorithm = point.way.algorithm
    assert algorithm is not None
    try:
        tally: Result = count(algorithm, **point.arguments)
    except SramOverflow as error:
        return Outcome("does not fit", _said(error), "count")
    except (ValueError, TypeError, MemoryModelError) as error:
        return Outcome("refused", _said(error))
    return Outcome("ok", "", "count", tally.hbm, tally.sram, tally.blocks, tally.flops.matmul)


def _said(error: Exception) -> str:
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", []))
    kind = "" if isinstance(error, ValueError | MemoryModelError) else f"{type(error).__name__}: "
    return one_line(f"{kind}{error}{notes}")


def rows_of(points: Sequence[Point], bound: bool = False) -> list[Row]:
    """Return the row of each point, with its lower bound if asked. Where there is nothing to
    say, it has None, or no entry.
    """
    found = [(point, outcome(point)) for point in points]
    return [_row(*one) | (_bound(*one) if bound else {}) for one in found]


def _row(point: Point, found: Outcome) -> Row:
    given = point.arguments
    way = point.way
    shape = _sound(lambda: check_shape(*map(given.get, ("N", "d", "N_q", "N_k", "d_v"))), None)
    sizes = {name: given.get(name) for name in ("N", "N_q", "N_k", "d", "d_v")}
    if shape is not None:
        sizes = {"N": shape.N_q if shape.N_q == shape.N_k else None, **vars(shape)}
    dtype = given.get("dtype", DEFAULTS["dtype"])
    M = _sound(lambda: check_M(given.get("M"), theory.BYTES[float_name(dtype)]), given.get("M"))
    blocks = given.get("blocks")
    pair = blocks if isinstance(blocks, tuple | list) and len(blocks) == 2 else None
    asked = {
        name: given.get(name, DEFAULTS.get(name)) for name in (*ARGUMENTS, *way.options)
    } | sizes
    asked |= {
        "label": point.label or None,
        "algorithm": way.name,
        "M": M if found.sram is None else found.sram.capacity,
        "kv_heads": asked["heads"] if asked["kv_heads"] is None else asked["kv_heads"],
        "dtype": _sound(lambda: float_name(dtype), dtype),
        "blocks": f"{pair[0]} × {pair[1]}" if pair else blocks,
        "sizing": None if blocks is not None else asked["sizing"],
    }
    row = {name: _plain(value) for name, value in asked.items()}
    row |= {"status": found.status, "reason": found.reason or None, "source": found.source or None}
    row |= (
        dict(zip(("B_r", "B_c"), pair or (), strict=False))
        if found.blocks is None
        else found.blocks.to_dict()
    )
    if found.sram is not None:
        row |= {
            "peak_elements": found.sram.peak,
            "peak_over_M": found.sram.peak / found.sram.capacity,
        }
        row["over_M_elements"] = found.sram.over
        row["theta_elements"] = _theta(point, found.sram.capacity, shape)
    return row if found.hbm is None else row | _counts(point, found.hbm, found.matmul, shape)


def _counts(point: Point, hbm: Traffic, matmul: Any, shape: Any) -> Row:
    compulsory = _compulsory(point, shape)
    counts = {
        f"{name}_elements": getattr(hbm, name)
        for name in ("accesses", "reads", "writes", "init_writes", "extra")
    }
    counts |= {
        "traffic_bytes": hbm.bytes,
        "compulsory_elements": compulsory,
        "over_compulsory": hbm.accesses / compulsory,
        "matmul_flops": matmul,
        "intensity_flops_per_byte": matmul / hbm.bytes if hbm.bytes else None,
    }
    for name, array in hbm.by_array.items():
        counts[f"{name}_reads_elements"], counts[f"{name}_writes_elements"] = (
            array.reads,
            array.writes,
        )
    return counts


def _bound(point: Point, found: Outcome) -> Row:
    if found.hbm is None or found.sram is None or found.blocks is None:
        return dict.fromkeys(OF_BOUND)
    return bounds.columns(point, found.blocks, found.sram.peak, found.hbm.accesses)


def columns_of(rows: Sequence[Row], given: Container[str]) -> tuple[str, ...]:
    """Return the columns of these rows. Labels, masks, blocks and `enforce` have one where they
    were `given`.
    """
    names = dict.fromkeys(chain.from_iterable(rows))
    asked = [
        name
        for name in ARGUMENTS
        if name in given or name not in ("label", "mask", "blocks", "enforce")
    ]
    options = [
        name
        for name in names
        if name not in ARGUMENTS and name != CERTIFICATE and not is_found(name)
    ]
    found = [name for name in FOUND if name in names or name not in OF_BOUND]
    return (
        *asked,
        *options,
        *found,
        *(name for name in names if is_found(name) and name not in FOUND),
    )


def _compulsory(point: Point, shape: Shape) -> int:
    """Return the compulsory traffic of all heads: K and V, and their gradients, are the KV
    heads'.
    """
    heads = point.arguments.get("heads", 1)
    kv_heads = point.arguments.get("kv_heads") or heads
    times = 1 if point.arguments["direction"] == "forward" else 2
    of_keys = times * shape.N_k * (shape.d + shape.d_v)
    of_all = theory.compulsory(
        shape.N_q, shape.N_k, shape.d, shape.d_v, point.arguments["direction"]
    )
    return int(heads * (of_all - of_keys) + kv_heads * of_keys)


def _theta(point: Point, M: int, shape: Shape | None) -> float | None:
    """Return all heads' Θ by the form of the pass, or, of a backward one, by that of its forward
    pass.
    """
    algorithm = point.way.algorithm
    form = point.way.form
    if algorithm is not None and point.arguments["direction"] == "backward":
        form = forms()["forward"].get(algorithm.forward_pass)
    if (
        form is None
        or form.theta is None
        or shape is None
        or (shape.N_q, shape.d) != (shape.N_k, shape.d_v)
    ):
        return None
    heads: int = point.arguments.get("heads", 1)
    return heads * form.theta(shape.N_q, shape.d, M)


def _sound(read: Callable[[], Any], otherwise: Any) -> Any:
    try:
        return read()
    except ValueError:
        return otherwise


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray):
        return f"array of shape {value.shape}"
    return getattr(value, "name", None) or getattr(value, "__name__", None) or shown(value)

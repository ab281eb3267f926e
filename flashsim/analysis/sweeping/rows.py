"""A point and its cost as a row."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from flashsim import theory
from flashsim.analysis.sweeping import bounds
from flashsim.analysis.sweeping.costs import DEFAULTS, Cost, cost_of
from flashsim.analysis.sweeping.points import Point
from flashsim.analysis.sweeping.records import (
    ARGUMENTS,
    BOUND_RESULTS,
    OPTIONAL_ARGUMENTS,
    RESULTS,
    Row,
    Value,
    is_result,
)
from flashsim.attention.arguments import check_shape, short_repr
from flashsim.attention.inputs import check_M, float_name
from flashsim.attention.shapes import Shape
from flashsim.memory.traffic import Occupancy, Traffic
from flashsim.theory.form import forms

Work = Callable[[list[Point]], list[Row]]
"""Returns the rows of a piece of a sweep, as `rows_of` does."""
Executor = Callable[[Work, Sequence[list[Point]]], Iterator[tuple[int, list[Row]]]]
"""Does the work on each of several pieces, and yields each piece's number with its rows, in any
order.
"""
LENGTHS = ("N", "d", "N_q", "N_k", "d_v")


def rows_of(points: Iterable[Point], bound: bool = False) -> list[Row]:
    """Return the row of each point, with its lower bound where `bound` asks for it."""
    return [_row_of(point, bound=bound) for point in points]


def _row_of(point: Point, *, bound: bool) -> Row:
    cost = cost_of(point)
    shape = _shape_of(point)
    row = Row(
        _arguments(point, cost, shape),
        cost.status,
        reason=cost.reason or None,
        source=cost.source or None,
    )
    _add_blocks(row, point, cost)
    if cost.sram is not None:
        _add_occupancy(row, cost.sram)
        row.theta_elements = _theta(point, cost.sram.capacity, shape)
    if cost.hbm is not None and cost.matmul is not None:
        assert shape is not None
        _add_traffic(row, cost.hbm)
        _add_ratios(row, _compulsory(point, shape), cost.matmul)
    if bound:
        _add_bound(row, point, cost)
    return row


def _shape_of(point: Point) -> Shape | None:
    """Return the shape of one head; None where the lengths make no sense."""
    try:
        return check_shape(*(point.arguments.get(name) for name in LENGTHS))
    except ValueError:
        return None


# --------------------------------------------------------------------------------------------------
# the arguments


def _arguments(point: Point, cost: Cost, shape: Shape | None) -> dict[str, Value]:
    """Return the values of the columns of arguments, defaults included."""
    values = {}
    for name in (*ARGUMENTS, *point.algorithm_pass.options):
        values[name] = point.arguments.get(name, DEFAULTS.get(name))
    for name in LENGTHS:
        values[name] = point.arguments.get(name)
    if shape is not None:
        values["N"] = shape.N_q if shape.N_q == shape.N_k else None
        values |= vars(shape)
    values["label"] = point.label or None
    values["algorithm"] = point.algorithm_pass.name
    values["M"] = _M(point) if cost.sram is None else cost.sram.capacity
    values["dtype"] = _dtype(point)
    if values["kv_heads"] is None:
        values["kv_heads"] = values["heads"]
    blocks = point.arguments.get("blocks")
    if blocks is not None:
        values["sizing"] = None
        sides = _sides(blocks)
        values["blocks"] = f"{sides[0]} × {sides[1]}" if sides else blocks
    return {name: _plain(value) for name, value in values.items()}


def _sides(blocks: Any) -> tuple[Any, Any] | None:
    """Return the B_r and B_c that a caller sets; None where blocks are not a pair."""
    if isinstance(blocks, tuple | list) and len(blocks) == 2:
        return blocks[0], blocks[1]
    return None


def _M(point: Point) -> Any:
    """Return M in elements; where it makes no sense, as it is."""
    M = point.arguments.get("M")
    dtype = point.arguments.get("dtype", DEFAULTS["dtype"])
    try:
        return check_M(M, theory.BYTES[float_name(dtype)])
    except ValueError:
        return M


def _dtype(point: Point) -> Any:
    """Return the dtype's name; where it makes no sense, what there is."""
    dtype = point.arguments.get("dtype", DEFAULTS["dtype"])
    try:
        return float_name(dtype)
    except ValueError:
        return dtype


def _plain(value: Any) -> Value:
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)  # of a subclass, such as NumPy's float64, too
    if isinstance(value, np.ndarray):
        return f"array of shape {value.shape}"
    name = getattr(value, "name", None) or getattr(value, "__name__", None)
    return name or short_repr(value)


# --------------------------------------------------------------------------------------------------
# the results


def _add_blocks(row: Row, point: Point, cost: Cost) -> None:
    if cost.blocks is not None:
        row.B_r = int(cost.blocks.B_r)
        row.B_c = int(cost.blocks.B_c)
        row.T_r = cost.blocks.T_r
        row.T_c = cost.blocks.T_c
        return
    sides = _sides(point.arguments.get("blocks"))
    if sides and all(isinstance(side, int | np.integer) for side in sides):
        row.B_r = int(sides[0])
        row.B_c = int(sides[1])


def _add_occupancy(row: Row, sram: Occupancy) -> None:
    row.peak_elements = sram.peak
    row.peak_over_M = sram.peak / sram.capacity
    row.over_M_elements = sram.over


def _add_traffic(row: Row, hbm: Traffic) -> None:
    row.accesses_elements = hbm.accesses
    row.reads_elements = hbm.reads
    row.writes_elements = hbm.writes
    row.init_writes_elements = hbm.init_writes
    row.extra_elements = hbm.extra
    row.traffic_bytes = hbm.bytes
    for name, array in hbm.by_array.items():
        row.by_array[f"{name}_reads_elements"] = array.reads
        row.by_array[f"{name}_writes_elements"] = array.writes


def _add_ratios(row: Row, compulsory: int, matmul: int) -> None:
    assert row.accesses_elements is not None
    row.compulsory_elements = compulsory
    row.over_compulsory = row.accesses_elements / compulsory
    row.matmul_flops = matmul
    if row.traffic_bytes:
        row.intensity_flops_per_byte = matmul / row.traffic_bytes


def _add_bound(row: Row, point: Point, cost: Cost) -> None:
    if cost.hbm is None or cost.sram is None or cost.blocks is None:
        return
    try:
        bound = bounds.bound_of(point, cost.blocks, cost.sram.peak)
    except bounds.NoBound as error:
        row.no_bound = str(error)
        return
    row.lower_bound_elements = bound.accesses
    row.over_bound = cost.hbm.accesses / bound.accesses
    row.certificate = bound.certificate


def _compulsory(point: Point, shape: Shape) -> int:
    """Return the compulsory traffic of all heads. K, V and their gradients are the KV heads'."""
    heads = point.arguments.get("heads", 1)
    kv_heads = point.arguments.get("kv_heads") or heads
    direction = point.arguments["direction"]
    arrays = 1 if direction == "forward" else 2  # K and V; with dK and dV
    keys = arrays * shape.N_k * (shape.d + shape.d_v)
    head = theory.compulsory(shape.N_q, shape.N_k, shape.d, shape.d_v, direction)
    return int(heads * (head - keys) + kv_heads * keys)


def _theta(point: Point, M: int, shape: Shape | None) -> float | None:
    """Return Θ of all heads; None where the pass has no theorem. A backward pass has that of its
    forward pass.
    """
    algorithm = point.algorithm_pass.algorithm
    form = point.algorithm_pass.form
    if algorithm is not None and point.arguments["direction"] == "backward":
        form = forms()["forward"].get(algorithm.forward_pass)
    if form is None or form.theta is None or shape is None:
        return None
    if (shape.N_q, shape.d) != (shape.N_k, shape.d_v):
        return None
    heads: int = point.arguments.get("heads", 1)
    return heads * form.theta(shape.N_q, shape.d, M)


# --------------------------------------------------------------------------------------------------
# the columns


def columns_of(rows: Sequence[Row], arguments: set[str], *, bound: bool) -> tuple[str, ...]:
    """Return the columns of these rows: arguments, options, results, accesses by array.

    arguments  the names that the sweep sets, at some point
    bound      whether it has bounds
    """
    columns = [name for name in ARGUMENTS if name in arguments or name not in OPTIONAL_ARGUMENTS]
    options: dict[str, None] = {}
    by_array: dict[str, None] = {}
    for row in rows:
        options |= dict.fromkeys(row.arguments)
        by_array |= dict.fromkeys(row.by_array)
    columns += [name for name in options if name not in ARGUMENTS and not is_result(name)]
    columns += [name for name in RESULTS if bound or name not in BOUND_RESULTS]
    columns += by_array
    return tuple(columns)

"""A point and its outcome as one row: arguments as `flashsim.count` takes them, then what was found, each with its unit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flashsim import theory
from flashsim.checking import check_shape, shown
from flashsim.inputs import check_M, float_name
from flashsim.records import Blocks, Shape
from flashsim.sweeping.columns import ARGUMENTS, FOUND, OF_ARRAYS
from flashsim.sweeping.outcomes import Outcome
from flashsim.sweeping.points import Point

Row = dict[str, Any]


THETA: Mapping[str, Callable[[int, int, int], float]] = {
    **dict.fromkeys(("flash_basic", "flash", "q_outer"), theory.theorem_2_flash),
    "standard": lambda N, d, M: theory.theorem_2_standard(N, d),
    "small_cache": theory.theorem_saha_ye,
}
"""Theorems 2 and 5, and Saha and Ye's, of forward and backward passes: by the name of the forward pass."""


def row_of(point: Point, outcome: Outcome) -> Row:
    """Return the row; what there is nothing to say of is None, or not there."""
    shape, hbm, sram, matmul = _shape(point.arguments), outcome.hbm, outcome.sram, outcome.matmul
    row = _asked(point, outcome, shape) | {
        "status": outcome.status,
        "reason": outcome.reason or None,
        **_blocks(point.arguments.get("blocks"), outcome.blocks),
        "theta_elements": _theta(point, outcome, shape),
        "source": outcome.source or None,
    }
    if hbm is not None and shape is not None and matmul is not None:
        compulsory = _compulsory(point, shape)
        row |= {
            "accesses_elements": hbm.accesses,
            "reads_elements": hbm.reads,
            "writes_elements": hbm.writes,
            "init_writes_elements": hbm.init_writes,
            "traffic_bytes": hbm.bytes,
            "extra_elements": hbm.extra,
            "compulsory_elements": compulsory,
            "over_compulsory": hbm.accesses / compulsory,
            "matmul_flops": matmul,
            "intensity_flops_per_byte": matmul / hbm.bytes,
        }
        for name, array in hbm.by_array.items():
            row[f"{name}_reads_elements"], row[f"{name}_writes_elements"] = array.reads, array.writes
    if sram is not None:
        row |= {"peak_elements": sram.peak, "peak_over_M": sram.peak / sram.capacity}
    return row


def arguments_of(point: Point, outcome: Outcome) -> Row:
    """Return the part of the row that says what was asked."""
    return _asked(point, outcome, _shape(point.arguments))


def _asked(point: Point, outcome: Outcome, shape: Shape | None) -> Row:
    given, way = point.arguments, point.way
    length = None if shape is None or shape.N_q != shape.N_k else shape.N_q
    heads, dtype = given.get("heads", 1), given.get("dtype", "float32")
    M = _sound(lambda: check_M(given.get("M"), theory.BYTES[float_name(dtype)]), given.get("M"))
    row = {
        "label": point.label or None,
        "algorithm": way.name,
        "direction": given["direction"],
        "N": given.get("N") if shape is None else length,
        "N_q": given.get("N_q") if shape is None else shape.N_q,
        "N_k": given.get("N_k") if shape is None else shape.N_k,
        "d": given.get("d"),
        "d_v": given.get("d_v") if shape is None else shape.d_v,
        "M": M if outcome.sram is None else outcome.sram.capacity,
        "heads": heads,
        "kv_heads": heads if given.get("kv_heads") is None else given["kv_heads"],
        "gqa": given.get("gqa", "separate"),
        "dtype": _sound(lambda: float_name(dtype), dtype),
        "causal": given.get("causal", False),
        "mask": given.get("mask"),
        "dropout_p": given.get("dropout_p", 0.0),
        "blocks": _blocks_text(given.get("blocks")),
        "enforce": given.get("enforce"),
        "sizing": None if given.get("blocks") is not None else given.get("sizing", "paper"),
    }
    row |= {name: given.get(name) for name in way.options}
    return {name: plain(value) for name, value in row.items()}


def columns_of(points: Sequence[Point], outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """Return the columns that rows of these have: all but labels and masks where there are none, and what arrays there are."""
    ways = {id(point.way): point.way for point in points}.values()
    options = dict.fromkeys(name for way in ways for name in way.options)
    arrays = dict.fromkeys(name for outcome in outcomes if outcome.hbm for name in outcome.hbm.by_array)
    absent = {"label"} - {"label" for point in points if point.label}
    absent |= {"mask", "blocks", "enforce"} - {
        name for point in points for name, value in point.arguments.items() if value is not None
    }
    named = [f"{array}_{unit}" for array in arrays for unit in OF_ARRAYS]
    return (*(name for name in ARGUMENTS if name not in absent), *options, *FOUND, *named)


def _compulsory(point: Point, shape: Shape) -> int:
    """Return the compulsory traffic of all heads: K and V, and their gradients, are the KV heads'."""
    heads = point.arguments.get("heads", 1)
    kv_heads = point.arguments.get("kv_heads") or heads
    times = 1 if point.arguments["direction"] == "forward" else 2
    of_keys = times * shape.N_k * (shape.d + shape.d_v)
    of_all = theory.compulsory(shape.N_q, shape.N_k, shape.d, shape.d_v, point.arguments["direction"])
    return int(heads * (of_all - of_keys) + kv_heads * of_keys)


def _theta(point: Point, outcome: Outcome, shape: Shape | None) -> float | None:
    algorithm, use = point.way.algorithm, outcome.sram
    if algorithm is None or use is None or shape is None or (shape.N_q, shape.d) != (shape.N_k, shape.d_v):
        return None
    expression = THETA.get(algorithm.forward_pass)
    return (
        None if expression is None else point.arguments.get("heads", 1) * expression(shape.N_q, shape.d, use.capacity)
    )


def _blocks_text(given: Any) -> str | None:
    return f"{given[0]} × {given[1]}" if isinstance(given, tuple | list) and len(given) == 2 else plain(given)


def _blocks(given: Any, found: Blocks | None) -> Row:
    if found is not None:
        return {"B_r": found.B_r, "B_c": found.B_c, "T_r": found.T_r, "T_c": found.T_c}
    pair = given if isinstance(given, tuple | list) and len(given) == 2 else (None, None)
    return {"B_r": pair[0], "B_c": pair[1]}


def _sound(read: Callable[[], Any], otherwise: Any) -> Any:
    """Return what is read; where that makes no sense, the other."""
    try:
        return read()
    except ValueError:
        return otherwise


def _shape(given: Mapping[str, Any]) -> Shape | None:
    """Return the shape that was asked for, if it is one."""
    shape: Shape | None = _sound(lambda: check_shape(*map(given.get, ("N", "d", "N_q", "N_k", "d_v"))), None)
    return shape


def plain(value: Any) -> Any:
    """Return a value as a table holds it: a number, a truth, text, or None."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if callable(value) and not isinstance(value, type):
        return getattr(value, "__name__", shown(value))
    if isinstance(value, np.ndarray):
        return f"array of shape {value.shape}"
    return getattr(value, "name", None) or getattr(value, "__name__", None) or shown(value)

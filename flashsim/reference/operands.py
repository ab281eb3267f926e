"""The oracles beyond attention: what they are given, checked by the names of their arguments;
and which program is whose.
"""

import math
import re
from collections.abc import Callable, Mapping
from functools import cache, wraps
from inspect import signature
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from flashsim.attention.arguments import (
    broadcasts,
    check_array,
    check_booleans,
    check_choice,
    check_count,
    check_flag,
    check_number,
    check_real,
    check_scale,
    shown,
)
from flashsim.attention.inputs import (
    Array,
    check_matrix,
    chip_dtype,
    float_dtype,
    roundoff,
    smallest_step,
)
from flashsim.support.modules import modules_of

P = ParamSpec("P")
R = TypeVar("R")
Found = dict[str, tuple[Array, Array]]
"""What is right, and how far rounding may lead from it, by result."""
Naive = Callable[[Mapping[str, Any], Mapping[str, int]], Found]
"""Of operands, in float64, and options by name; and of block sizes."""
Check = Callable[[str, Any, Mapping[str, int]], Any]
"""(name, value, the operands' lengths by symbol) -> what the function gets. Raises ValueError."""


class Roundoffs(NamedTuple):
    """Unit roundoffs, of the chip's type and of what is stored, and the smallest steps of both."""

    u: float
    u_s: float
    least: float
    step: float


def roundoffs(stored: DTypeLike) -> Roundoffs:
    """Return those of a run on matrices that are stored so."""
    dtype = float_dtype(stored)
    chip = chip_dtype(dtype)
    return Roundoffs(roundoff(chip), roundoff(dtype), smallest_step(chip), smallest_step(dtype))


def oracle(shapes: str, **checks: Check) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give a function its operands in float64, checked, and its other arguments as `BY_NAME`, or
    `checks`, says of each.

    `shapes` is "X (N, d), Z (n, d)", the operands and their shapes in symbols; of one column, (N,)
    will do. The function raises ValueError where something does not fit, and where finite operands
    have a result that float64 does not hold.
    """
    other = {**BY_NAME, **checks}
    wanted = {
        name: (rows, columns)
        for name, rows, columns in re.findall(r"(\w+) \((\w+), (\w+)\)", shapes)
    }

    def checked(function: Callable[P, R]) -> Callable[P, R]:
        of = signature(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            given = of.bind(*args, **kwargs)
            given.apply_defaults()
            values = given.arguments
            lengths = dict[str, int]()
            whose = dict[str, str]()
            for name, symbols in wanted.items():
                values[name] = real(
                    name,
                    check_matrix(name, check_array(name, values[name]), symbols, lengths, whose),
                )
            for name in values.keys() & other.keys():
                values[name] = other[name](name, values[name], lengths)
            with np.errstate(over="ignore", invalid="ignore"):
                result = function(*given.args, **given.kwargs)
            for array in result if isinstance(result, tuple) else (result,):
                if not np.isfinite(np.asarray(array)).all():
                    raise ValueError(
                        f"{function.__name__} overflows float64. Scale {', '.join(wanted)} down"
                    )
            return result

        return call

    return checked


def real(name: str, value: Any) -> Array:
    """Return finite real numbers in float64. Raises ValueError for others."""
    wide: Array = check_real(name, value).astype(np.float64)
    if not np.isfinite(wide).all():
        raise ValueError(f"{name} holds NaN or ∞; expected finite numbers")
    return wide


def of_rounds(name: str, value: Any, lengths: Mapping[str, int]) -> Array:
    """Return what each of N rows hashes to in each round, (rounds, N), real numbers."""
    array = real(name, value)
    N = lengths["N"]
    if array.ndim != 2 or array.shape[1] != N or not len(array):
        raise ValueError(f"{name} has shape {array.shape}; expected (rounds, N) with N = {N}")
    return array


def kept(rows: str, columns: str) -> Check:
    """Return a check of booleans that broadcast to a shape in symbols."""

    def check(name: str, value: Any, lengths: Mapping[str, int]) -> Array:
        array = check_booleans(name, value)
        onto = (lengths[rows], lengths[columns])
        if not broadcasts(array.shape, onto):
            wanted = f"({rows}, {columns}) = {onto}"
            raise ValueError(
                f"{name} has shape {array.shape}; expected one that broadcasts to {wanted}"
            )
        return array

    return check


def whole(name: str, value: Any, _: Mapping[str, int]) -> int:
    """Return a whole number of at least 1."""
    return check_count(name, value)


def pair(name: str, value: Any, _: Mapping[str, int]) -> tuple[int, int]:
    """Return two whole numbers of at least 1."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ValueError(f"{name} is {shown(value)}; expected two whole numbers")
    return check_count(f"{name}[0]", value[0]), check_count(f"{name}[1]", value[1])


def positive(name: str, value: Any, _: Mapping[str, int]) -> float:
    """Return a finite number above 0."""
    return check_number(name, value, "a finite number above 0", lambda x: 0 < x < math.inf)


def not_negative(name: str, value: Any, _: Mapping[str, int]) -> float | None:
    """Return a scale of at least 0, or None."""
    if value is None:
        return None
    return check_number(
        name, value, "a finite number of at least 0, or None for 1/√d", lambda x: 0 <= x < math.inf
    )


def _stored(name: str, value: Any, _: Mapping[str, int]) -> np.dtype[Any]:
    try:
        return float_dtype(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


BY_NAME: dict[str, Check] = {
    "scale": lambda _, value, __: None if value is None else check_scale(value, 1),
    **dict.fromkeys(("sigma", "C", "factor"), positive),
    "blocks": whole,
    "phi": lambda name, value, _: check_choice(name, value, ("on_chip", "in_hbm")),
    "stored": _stored,
    "fused": lambda name, value, _: check_flag(name, value),
}
"""What an argument of that name must be, unless a function says otherwise."""


@cache
def naive_programs() -> dict[str, Naive]:
    """Return what each program computes, and how far rounding may lead from it, by its name, as
    `NAIVE` of a module here says.
    """
    return {
        name: naive
        for file in modules_of("flashsim.reference")
        for name, naive in getattr(file, "NAIVE", {}).items()
    }

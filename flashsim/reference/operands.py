"""The oracles beyond attention: checks of their arguments, and which program is whose."""

import math
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
    short_repr,
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
ResultsAndBounds = dict[str, tuple[Array, Array]]
"""What is right, and how far rounding may lead from it, by result."""
Naive = Callable[[Mapping[str, Any], Mapping[str, int]], ResultsAndBounds]
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


def oracle(
    shapes: Mapping[str, tuple[str, str]], **checks: Check
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function of matrices: it gets its operands in float64, and its other arguments as
    the check of each returns them.

    shapes  of the operands in symbols: {"X": ("N", "d"), "Z": ("n", "d")}. Of one column, (N,) will
            do
    checks  by argument

    The function raises ValueError where something does not fit, and where finite operands have a
    result that float64 does not hold.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = signature(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = parameters.bind(*args, **kwargs)
            bound.apply_defaults()
            values = bound.arguments
            lengths: dict[str, int] = {}
            whose: dict[str, str] = {}
            for name, symbols in shapes.items():
                array = check_array(name, values[name])
                values[name] = real(name, check_matrix(name, array, symbols, lengths, whose))
            for name, check in checks.items():
                values[name] = check(name, values[name], lengths)
            with np.errstate(over="ignore", invalid="ignore"):
                result = function(*bound.args, **bound.kwargs)
            for part in result if isinstance(result, tuple) else (result,):
                if not np.isfinite(np.asarray(part)).all():
                    raise ValueError(
                        f"{function.__name__} overflows float64. Scale {', '.join(shapes)} down"
                    )
            return result

        return call

    return decorate


def real(name: str, value: Any) -> Array:
    """Return finite real numbers in float64. Raises ValueError for others."""
    wide: Array = check_real(name, value).astype(np.float64)
    if not np.isfinite(wide).all():
        raise ValueError(f"{name} holds NaN or ∞; expected finite numbers")
    return wide


def hash_rounds(name: str, value: Any, lengths: Mapping[str, int]) -> Array:
    """Return what each of N rows hashes to in each round, (rounds, N), real numbers."""
    array = real(name, value)
    N = lengths["N"]
    if array.ndim != 2 or array.shape[1] != N or not len(array):
        raise ValueError(f"{name} has shape {array.shape}; expected (rounds, N) with N = {N}")
    return array


def booleans(rows: str, columns: str) -> Check:
    """Return a check of booleans that broadcast to a shape in symbols."""

    def check(name: str, value: Any, lengths: Mapping[str, int]) -> Array:
        array = check_booleans(name, value)
        onto = (lengths[rows], lengths[columns])
        if not broadcasts(array.shape, onto):
            expected = f"({rows}, {columns}) = {onto}"
            raise ValueError(
                f"{name} has shape {array.shape}; expected one that broadcasts to {expected}"
            )
        return array

    return check


def whole_number(name: str, value: Any, _: Mapping[str, int]) -> int:
    """Return a whole number of at least 1."""
    return check_count(name, value)


def two_whole_numbers(name: str, value: Any, _: Mapping[str, int]) -> tuple[int, int]:
    """Return two whole numbers of at least 1."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ValueError(f"{name} is {short_repr(value)}; expected two whole numbers")
    return check_count(f"{name}[0]", value[0]), check_count(f"{name}[1]", value[1])


def positive(name: str, value: Any, _: Mapping[str, int]) -> float:
    """Return a finite number above 0."""
    return check_number(name, value, "a finite number above 0", lambda x: 0 < x < math.inf)


def softmax_scale(name: str, value: Any, _: Mapping[str, int]) -> float | None:
    """Return a finite scale, or None for 1/√d."""
    return None if value is None else check_scale(value, 1)


def scale_not_negative(name: str, value: Any, _: Mapping[str, int]) -> float | None:
    """Return a finite scale of at least 0, or None for 1/√d."""
    if value is None:
        return None
    return check_number(
        name, value, "a finite number of at least 0, or None for 1/√d", lambda x: 0 <= x < math.inf
    )


def placement(name: str, value: Any, _: Mapping[str, int]) -> str:
    """Return where features are: "on_chip" or "in_hbm"."""
    return check_choice(name, value, ("on_chip", "in_hbm"))


def flag(name: str, value: Any, _: Mapping[str, int]) -> bool:
    """Return True or False."""
    return check_flag(name, value)


def float_type(name: str, value: Any, _: Mapping[str, int]) -> np.dtype[Any]:
    """Return one of the supported dtypes."""
    try:
        return float_dtype(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


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

"""What the fuzzers share: nonsense to call with, and what a call may do."""

import math
import traceback
import warnings
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import settings
from threadpoolctl import ThreadpoolController

import flashsim
from flashsim.memory.errors import MemoryModelError

FUZZ = settings.get_profile("fuzz")
SOURCES = Path(flashsim.__file__).parent
BLAS = ThreadpoolController()
NEVER: list[Any] = [object(), 1j, 10**400, slice(3), np.ma.masked]  # what no argument can be
JUNK: list[Any] = [
    *NEVER,
    None,
    True,
    False,
    -1,
    0,
    1,
    3,
    -(2**31),
    2**63,
    2**64,
    -(10**400),
    10**5000,
    0.0,
    -0.5,
    0.25,
    1.0,
    2.5,
    math.nan,
    math.inf,
    -math.inf,
    1e308,
    5e-324,
    Fraction(1, 3),
    np.uint8(3),
    np.int8(-3),
    np.float16(0.5),
    np.float32(math.nan),
    np.longdouble("1e4000"),
    np.bool_(True),
    "",
    "x",
    "3",
    "float32",
    ">f8",
    "a",
    "\ud800",
    b"flash",
    np.dtype("f2"),
    [],
    [1],
    [1, 2],
    [[]],
    [[1.0], [1.0, 2.0]],
    ["a"],
    (),
    (2, 3),
    (0, 1),
    (1.5, 2),
    (1, 2, 3),
    {},
    {"N": 1},
    set(),
    range(3),
    lambda *_: 0,
    lambda *_: None,
    Ellipsis,
    iter([1]),
    np.array(2),
    np.array([1, 2]),
    np.zeros((0, 3)),
    np.ones((3, 3), bool),
    np.full((2, 2), 2),
    np.array([None]),
    np.array("a"),
    np.ma.masked_array([[1.0, 2.0]], mask=[[True, False]]),
    np.ones((2, 2), ">f4"),
    np.zeros(2, "i4,f4"),
]


def seen(value: Any) -> Any:
    """What of an argument a call must not change."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        content = np.array(value, subok=False).tobytes()
        return value.dtype.str, value.shape, value.strides, content
    return None if isinstance(value, int) else repr(value)


def surroundings() -> Any:
    threads = [library["num_threads"] for library in BLAS.info()]
    return np.geterr(), np.geterrcall(), threads


def outcome(call: Callable[..., Any], /, *values: Any, **named: Any) -> Any:
    """Return what a call returns; where it refuses, its error, which must be flashsim's own."""
    before = [seen(value) for value in (*values, *named.values())]
    around = surroundings()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "INCOMPLETE")  # the kit's verdict, and no fault
            result = call(*values, **named)
        for value in (*values, *named.values()):
            assert not any(value is never for never in NEVER), "nonsense was accepted"
    except (ValueError, TypeError, MemoryModelError) as error:
        if not raised_by_flashsim(error):
            raise
        result = error
    assert [seen(value) for value in (*values, *named.values())] == before
    assert surroundings() == around
    return result


def raised_by_flashsim(error: Exception) -> bool:
    """Whether the error comes of a `raise` in flashsim's sources, and says something."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (
        SOURCES in Path(last.filename).parents
        and (last.line or "").startswith("raise")
        and len(str(error)) > 10
    )


def accepted(result: Any) -> bool:
    return not isinstance(result, Exception)

"""Checks of the arguments that users pass: a function for each kind of argument, the same for every
entry point.

Each returns the argument in the form that the code behind it takes (a Python int, a native array, a
tuple), or raises ValueError, which names the argument, its value (shortened) and what was expected.
Arrays of numbers are in `flashsim.attention.inputs`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from fractions import Fraction
from functools import partial, wraps
from inspect import signature
from reprlib import Repr
from typing import Any, ParamSpec, TypeGuard, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from flashsim.attention.dlpack import as_array
from flashsim.attention.shapes import Blocks, Shape, Sizes

P = ParamSpec("P")
R = TypeVar("R")

LARGEST = 2**63 - 1  # the longest axis that an array can have
MOST_SPLITS = 2**16
MOST_TILES = 2**28
MOST_MASK_BLOCKS = 2**30
MOST_MASK_ROWS = 2**26
DIRECTIONS = ("forward", "backward")

_short = Repr()
_short.maxstring = _short.maxother = 80
_LONGEST = 160


def short_repr(value: object) -> str:
    """Return a value as a message shows it: its repr, shortened, in one line."""
    try:
        text = " ".join(_short.repr(value).split())
    except Exception:  # a repr may fail, and that of an int does beyond 4,300 digits
        return f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def near(word: object, known: Iterable[object]) -> str | None:
    """Return the known name that `word` is a slip of, dashes and case aside; None where none is
    near.
    """
    names = {_bare(name): str(name) for name in known}
    close = get_close_matches(_bare(word), names, 1, cutoff=0.75)
    return names[close[0]] if close else None


def _bare(name: object) -> str:
    return str(name).strip("-").lower()


def check_array(name: str, value: Any) -> NDArray[Any]:
    """Return an array in the machine's byte order, of lists or of another library's array
    (`flashsim.attention.dlpack`).

    Masked arrays are refused: their masks would be ignored.
    """
    if type(value) is np.ndarray and value.dtype.isnative:
        return value
    if _is_masked(value):
        raise ValueError(
            f"{name} is a masked array (numpy.ma), whose mask would be ignored; expected a plain "
            "array"
        )
    try:
        array = as_array(value)
    except Exception as error:  # ragged lists; or whatever an object's __array__ raises
        raise ValueError(f"{name} is {short_repr(value)}; expected an array: {error}") from error
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _is_masked(value: Any, deep: int = 8) -> bool:
    if isinstance(value, list | tuple) and deep:
        return any(_is_masked(inner, deep - 1) for inner in value)
    # NumPy imports it only when asked; where there is a masked array, it has been
    ma = sys.modules.get("numpy.ma")
    return ma is not None and isinstance(value, ma.MaskedArray)


def check_real(name: str, value: Any) -> NDArray[Any]:
    """Return an array of real numbers."""
    array = check_array(name, value)
    if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
        raise ValueError(f"{name} has dtype {array.dtype}; expected real numbers")
    return array


def check_booleans(
    name: str, value: Any, *, or_else: str = "", for_floats: str = ""
) -> NDArray[np.bool_]:
    """Return a mask, an array of booleans; an error says what else may be given, where that is
    not an array, and for floats.
    """
    array = check_array(name, value)
    if array.dtype != bool:
        problem_text = f"has dtype {array.dtype}"
        hint = ""
        if not array.ndim:
            problem_text = f"is {short_repr(value)}"
            hint = or_else
        elif array.dtype.kind == "f":
            hint = for_floats
        raise ValueError(f"{name} {problem_text}; expected booleans, True = attend{hint}")
    return array


def check_whole(name: str, value: Any, most: int = LARGEST) -> NDArray[Any]:
    """Return whole numbers as an array. ValueError for others, and for those above `most`, or
    below its negative.
    """
    array = check_array(name, value)
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name}: dtype {array.dtype}; expected whole numbers")
    if array.size and (array.min() < -most or array.max() > most):
        raise ValueError(
            f"{name} runs from {array.min()} to {array.max()}; expected from -{most} to {most}"
        )
    return array


def broadcasts(shape: tuple[int, ...], onto: tuple[int, ...]) -> bool:
    """Say whether an array of one shape broadcasts to another."""
    return len(shape) <= len(onto) and all(
        n in (1, m) for n, m in zip(shape[::-1], onto[::-1], strict=False)
    )


def check_count(name: str, value: Any, least: int = 1, most: int = LARGEST) -> int:
    """Return a whole number from `least` to `most` as a Python int."""
    if type(value) is int and least <= value <= most:
        return value
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ValueError(f"{name} is {short_repr(value)}; expected a whole number")
    if value < least:
        raise ValueError(f"{name} is {short_repr(int(value))}; expected at least {least}")
    if value > most:
        raise ValueError(f"{name} is {short_repr(int(value))}; expected at most {most:,}")
    return int(value)


def check_number(name: str, value: Any, expected: str, fits: Callable[[float], bool]) -> float:
    """Return a real number that fits as a float."""
    try:
        if isinstance(value, int | float | Fraction | np.integer | np.floating) and not isinstance(
            value, bool
        ):
            number = float(value)
            if fits(number):
                return number
    except OverflowError:  # of an int beyond the floats
        pass
    raise ValueError(f"{name} is {short_repr(value)}; expected {expected}")


def check_flag(name: str, value: Any) -> bool:
    """Return True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} is {short_repr(value)}; expected True or False")
    return bool(value)


def is_one_of(value: Any, known: Collection[str]) -> TypeGuard[str]:
    """Say whether a value is one of the known names; no value, however odd, raises anything."""
    return isinstance(value, str) and value in known


def check_choice(name: str, value: Any, known: Collection[str]) -> str:
    """Return one of the known names."""
    if isinstance(value, str) and value in known:
        return value
    raise ValueError(f"{name} is {short_repr(value)}; expected {' or '.join(map(repr, known))}")


check_direction = partial(check_choice, "direction", known=DIRECTIONS)
check_gqa = partial(check_choice, "gqa", known=("separate", "grouped"))
"""The schedule of query heads that share a KV head."""
check_merge = partial(check_choice, "merge", known=("sequence", "tree"))
"""The way to merge splits."""


def check_p(dropout_p: Any) -> float:
    """Return the probability of dropping a weight."""
    if type(dropout_p) is float and 0 <= dropout_p < 1:
        return dropout_p
    return check_number("dropout_p", dropout_p, "a number in [0, 1)", lambda p: 0 <= p < 1)


def check_splits(splits: Any) -> int | None:
    """Return the number of splits; None is one for each block of keys."""
    return None if splits is None else check_count("splits", splits, most=MOST_SPLITS)


def check_scale(scale: Any, d: int) -> float:
    """Return the softmax scale τ, by default 1/√d: a finite number."""
    if scale is None:
        return 1.0 / math.sqrt(d)
    if type(scale) is float and math.isfinite(scale):
        return scale
    return check_number("scale", scale, "a finite number, or None for 1/√d", math.isfinite)


def check_seed(seed: Any) -> int:
    """Return dropout's seed, of 64 bits."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64:
        raise ValueError(f"seed is {short_repr(seed)}; expected a whole number from 0 to 2**64 - 1")
    return int(seed)


def check_shape(N: Any, d: Any, N_q: Any, N_k: Any, d_v: Any) -> Shape:
    """Return the problem's shape from lengths given as N, or as N_q and N_k; d_v is d by
    default.
    """
    if N is not None:
        N = check_count("N", N)
    if N is None and (N_q is None or N_k is None):
        raise ValueError("a length is missing: give N, or both N_q and N_k")
    for name, length in (("N_q", N_q), ("N_k", N_k)):
        if length is not None and check_count(name, length) != N and N is not None:
            raise ValueError(f"{name} is {length}, and N is {N}; expected N alone, or N_q and N_k")
    if d is None:
        raise ValueError("d is missing: give the head dimension")
    d = check_count("d", d)
    return Shape(int(N or N_q), int(N or N_k), d, d if d_v is None else check_count("d_v", d_v))


def check_heads(heads: Any, kv_heads: Any) -> tuple[int, int]:
    """Return the numbers of query heads and of KV heads, by default as many; a multiple."""
    heads = check_count("heads", heads)
    kv_heads = heads if kv_heads is None else check_count("kv_heads", kv_heads)
    if heads % kv_heads:
        raise ValueError(f"heads is {heads}; expected a multiple of kv_heads = {kv_heads}")
    return heads, kv_heads


def check_block_sizes(names: Collection[str], blocks: Any) -> tuple[int, ...] | None:
    """Return block sizes of these names, in order, or None where none are given."""
    if blocks is None:
        return None
    try:
        values = tuple(blocks)
    except (TypeError, ValueError):
        values = ()
    if len(values) != len(names):
        raise ValueError(f"blocks is {short_repr(blocks)}; expected ({', '.join(names)})")
    sizes = []
    for name, value in zip(names, values, strict=True):
        sizes.append(check_count(f"blocks, {name},", value))
    return tuple(sizes)


check_blocks = cast(
    "Callable[[Any], tuple[int, int] | None]", partial(check_block_sizes, ("B_r", "B_c"))
)
"""Return (B_r, B_c), or None where none are given."""


def check_lengths(symbols: Collection[str], sizes: Any) -> Sizes:
    """Return a length for each symbol, in order."""
    if not isinstance(sizes, Mapping) or set(sizes) != set(symbols):
        names = ", ".join(map(str, sizes)) if isinstance(sizes, Mapping) else short_repr(sizes)
        raise ValueError(f"sizes are {names or 'none'}; expected {', '.join(symbols)}")
    return Sizes(**{symbol: check_count(symbol, sizes[symbol]) for symbol in symbols})


def check_blocks_of_run(blocks: Any) -> Blocks:
    """Return the blocks of a run."""
    if not isinstance(blocks, Blocks):
        raise ValueError(
            f"blocks is {short_repr(blocks)}; expected flashsim.Blocks, as a run has them"
        )
    return blocks


def check_block_mask(block_mask: Any) -> Any:
    """Return a block mask whose tiles are not known yet: None, "live", a function, or a copy of
    an array as booleans.
    """
    if (
        block_mask is None
        or callable(block_mask)
        or (isinstance(block_mask, str) and block_mask == "live")
    ):
        return block_mask
    if isinstance(block_mask, str):
        expected = 'an array, a function of (T_r, T_c), or "live"'
        raise ValueError(f"block_mask is {short_repr(block_mask)}; expected {expected}")
    array = check_array("block_mask", block_mask)
    if array.dtype == bool:
        return array.copy()
    if array.dtype.kind not in "uif" or not np.isin(array, (0, 1)).all():
        raise ValueError(
            f"block_mask is {short_repr(block_mask)}; expected booleans, or zeros and ones"
        )
    return array.astype(bool)


def check_tiles(block_mask: Any, blocks: Blocks, shape: Shape) -> NDArray[np.bool_]:
    """Return a block mask, an array or a function that returns one, as booleans (T_r, T_c), 2²⁸
    of them at most.
    """
    T = (blocks.T_r, blocks.T_c)
    entries = blocks.T_r * blocks.T_c
    if callable(block_mask) and entries > MOST_TILES:
        raise ValueError(
            f"block_mask is a function, here of (T_r, T_c) = {T}: it would return {entries:,} "
            "entries; "
            f"expected at most {MOST_TILES:,}. Take larger blocks"
        )
    array = check_block_mask(block_mask(*T)) if callable(block_mask) else block_mask
    if not isinstance(array, np.ndarray):
        raise ValueError(f"block_mask returned {short_repr(array)}; expected an array of booleans")
    if array.shape != T:
        raise ValueError(
            f"block_mask has shape {array.shape}; expected (T_r, T_c) = {T}, "
            f"as B_r = {blocks.B_r} and B_c = {blocks.B_c} divide N_q = {shape.N_q} and N_k = "
            f"{shape.N_k}"
        )
    return array


def check_observers(observers: Any) -> tuple[Callable[[Any], None], ...]:
    """Return functions that are to be called with every event."""
    several = tuple(observers) if np.iterable(observers) else (None,)
    for function in several:
        if not _takes(function, 1):
            raise ValueError(
                f"observers is {short_repr(observers)}; expected a sequence of functions of an "
                "event"
            )
    return several


def check_callback(name: str, function: Any) -> Any:
    """Return a function that can be called with two arguments, or None where none is given."""
    if function is not None and not _takes(function, 2):
        raise ValueError(
            f"{name} is {short_repr(function)}; expected a function that takes 2 arguments, or None"
        )
    return function


def _takes(function: Any, arguments: int) -> bool:
    """Whether it can be called with so many arguments, as far as its signature tells."""
    if not callable(function):
        return False
    try:
        signature(function).bind(*[None] * arguments)
    except TypeError:
        return False
    except ValueError:  # some of those written in C have no signature
        pass
    return True


def check_mask_blocks(name: str, T: tuple[int, int]) -> tuple[int, int]:
    """Return how many blocks a mask has on both axes. Raises ValueError where a truth for each
    would take too much.
    """
    blocks = T[0] * T[1]
    if blocks > MOST_MASK_BLOCKS or max(T) > MOST_MASK_ROWS:
        raise ValueError(
            f"{name} has {T[0]:,} × {T[1]:,} blocks, which take {blocks:,} bytes and about "
            f"{blocks * 6e-8 / 3600:,.1f} hours; "
            f"expected at most {MOST_MASK_BLOCKS:,}, of {MOST_MASK_ROWS:,} rows and columns. "
            "Give larger `blocks`; without masks, `exact` takes any number"
        )
    return T


def whole_numbers(*names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function whose arguments of these names are whole numbers of at least 1: it gets
    Python ints, which do not overflow. Others raise ValueError.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = [*signature(function).parameters]

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            positional: list[Any] = [*args]
            for place, name in enumerate(parameters[: len(args)]):
                if name in names:
                    positional[place] = check_count(name, positional[place])
            for name in names:
                if name in kwargs:
                    kwargs[name] = check_count(name, kwargs[name])
            return function(*positional, **kwargs)

        return call

    return decorate

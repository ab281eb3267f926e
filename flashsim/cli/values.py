"""Readers of the values of options: one function for each kind of value, which takes the text and
raises ValueError for what makes no sense.
"""

import ast
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flashsim.attention.inputs import ALIASES, DEFAULT_SRAM_BYTES
from flashsim.attention.masks.rules import MOST_OFFSET
from flashsim.attention.masks.sink import MOST_LOGIT
from flashsim.support.sizes import parse_size

MOST = 2**20  # numbers of a range


def dtype(text: str) -> str:
    """Return a dtype's whole name, such as float16 for fp16; another text stays as it is."""
    return ALIASES.get(text, text)


def whole(least: int = 1, most: int = 2**63 - 1) -> Callable[[str], int]:
    """Return a reader of whole numbers from `least` to `most`."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:  # of too many digits, too
            number = most + 1 if text.strip().isdecimal() else least - 1
        if number < least:
            raise _error(text, f"a whole number of at least {least}")
        if number > most:
            raise _error(text, f"a whole number of at most 2**{(most + 1).bit_length() - 1} - 1")
        return number

    return read


def number(
    convert: Callable[[str], Any], fits: Callable[[Any], bool], expected: str
) -> Callable[[str], Any]:
    """Return a reader of values: `convert` makes one of a text, and `fits` tells whether it may
    be. For others, the error says what is `expected`.
    """

    def read(text: str) -> Any:
        with suppress(ValueError):
            value = convert(text)
            if fits(value):
                return value
        raise _error(text, expected)

    return read


offset = number(
    int, lambda n: abs(n) <= MOST_OFFSET, f"a whole number from -{MOST_OFFSET} to {MOST_OFFSET}"
)
seed = number(int, lambda n: 0 <= n < 2**64, "a whole number from 0 to 2**64 - 1")
probability = number(float, lambda p: 0 <= p < 1, "a number p with 0 ≤ p < 1")
finite = number(float, math.isfinite, "a finite number")
logits = number(
    lambda text: tuple(map(float, text.split(","))),
    lambda logits: all(abs(s) <= MOST_LOGIT or s == -math.inf for s in logits),
    f"a number, or one for each query head, as -1.5,0,2; up to {MOST_LOGIT:g}, or -inf",
)
positive = number(float, lambda x: 0 < x < math.inf, "a finite number above 0")


def declared(check: Callable[[Any], object], text: str) -> int | tuple[int, ...]:
    """Read an option that an algorithm declares: a whole number, or several with commas between.
    `check` raises ValueError for others.
    """
    numbers = _numbers(text, "a whole number, or several with commas between")
    value = numbers[0] if len(numbers) == 1 else numbers
    check(value)
    return value


def option(text: str) -> tuple[str, Any]:
    """Read NAME=VALUE, an option of an algorithm of the user's. The value is a literal of Python,
    such as 64, 0.5 or True; if it is none, it is text.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise _error(text, "NAME=VALUE, such as window=64")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return name, value


def size(text: str) -> str:
    """Read a size, such as 25600 or 100KB, which stays text until the dtype is known."""
    parse_size(text, 1)
    return text


def several(read: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Return a reader of a value, or of a range of whole numbers, START:STOP:STEP or
    START:STOP:xFACTOR, as a list.

    START..STOP:STEP is the same.
    """

    def read_all(text: str) -> list[Any]:
        if not _is_range(text):
            try:
                return [read(text)]
            except ValueError:
                if "," not in text:
                    raise
                raise _error(
                    text, "values side by side, as 64 128, or a range, as 128:4096:128"
                ) from None
        parts = text.replace("..", ":", 1).split(":")
        if len(parts) != 3:
            to = ".." if ".." in text else ":"
            raise _error(
                text,
                (
                    f"START{to}STOP:STEP, as 128{to}4096:128, or START{to}STOP:xFACTOR, as "
                    f"128{to}4096:x2"
                ),
            )
        start = read(parts[0])
        stop = read(parts[1])
        if stop < start:
            raise _error(text, f"a range from {start} up")
        if parts[2][:1] != "x":
            numbers: Any = range(start, stop + 1, read(parts[2]))
        else:
            factor = number(
                float, lambda x: 1 < x < math.inf, "a factor above 1, as in 128:4096:x2"
            )(parts[2][1:])
            exponents = range(int(math.log(stop / start) / math.log(factor) + 1e-9) + 1)
            numbers = dict.fromkeys(round(start * factor**exponent) for exponent in exponents)
        if len(numbers) > MOST:
            raise _error(text, f"at most {MOST:,} numbers")
        return [read(str(number)) for number in numbers]

    return read_all


def several_sizes(text: str) -> list[int | str]:
    """Read a size, or a range of sizes: elements as numbers; bytes as text, until the dtype is
    known.
    """
    parts = text.replace("..", ":", 1).split(":")
    sizes = [part for index, part in enumerate(parts) if index < 2 or part[:1] != "x"]
    in_bytes = {part.strip()[-1:].upper() == "B" for part in sizes}
    numbers = several(lambda part: parse_size(part, 1))(text)
    if len(in_bytes) > 1:
        raise _error(text, "sizes that are all elements, or all bytes")
    return [f"{number}B" for number in numbers] if in_bytes == {True} else numbers


def sides(text: str) -> str:
    """Read B_r or B_c, or a range of them, which stays text until both are known."""
    several(whole())(text)
    return text


def blocks_of(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Return the blocks of one --blocks: for two texts, B_r and B_c, all pairs of their values;
    for one range, squares. Raises ValueError for others.
    """
    read = several(whole())
    if len(texts) == 1 and _is_range(texts[0]):
        return [(side, side) for side in read(texts[0])]
    if len(texts) != 2:
        raise _error(
            " ".join(texts), "B_r B_c, as 64 88, or a range of square blocks, as 16..256:16"
        )
    return [(B_r, B_c) for B_r in read(texts[0]) for B_c in read(texts[1])]


def _is_range(text: str) -> bool:
    return ":" in text or ".." in text


def head(text: str) -> str:
    """Read an index into the leading axes, such as 3 or 0,3, which stays text."""
    _numbers(text, "an index such as 3, or 0,3 for axes of batch and head")
    return text


def _numbers(text: str, expected: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise _error(text, expected) from None


def output(text: str) -> Path:
    """Read the name of a file to be written."""
    path = Path(text)
    if path.name in ("", ".."):
        raise ValueError(f"{text!r} names no file")
    return path


def _error(text: str, expected: str) -> ValueError:
    short = text if len(text) <= 40 else f"{text[:40]}…"
    return ValueError(f"got {short!r}; expected {expected}")


def elements(M: str | None, itemsize: int) -> int:
    """Return --M in elements of a dtype of that item size; without it 100 KB."""
    if M is None:
        return DEFAULT_SRAM_BYTES // itemsize
    try:
        return parse_size(M, itemsize)
    except ValueError as error:
        raise ValueError(f"argument --M: {error}") from None

"""How what is typed is read: one function for each kind of value, which raises ValueError for
what makes no sense.
"""

import argparse
import ast
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from flashsim.attention.arguments import near
from flashsim.attention.inputs import ALIASES, DEFAULT_SRAM_BYTES
from flashsim.attention.masks.rules import MOST_OFFSET
from flashsim.attention.masks.sink import MOST_LOGIT
from flashsim.support.sizes import parse_size

MOST = 2**20  # numbers of a range


def meant(text: object, known: Iterable[object]) -> str:
    """Say which of the known names is near."""
    close = near(text, known)
    return f", perhaps you mean {close!r}" if close else ""


def dtype(text: str) -> str:
    """Return a dtype's whole name, as of fp16; what is none stays."""
    return ALIASES.get(text, text)


class Parser(argparse.ArgumentParser):
    """argparse's parser, which raises ValueError where that would print how it is used, and
    exit.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        # several, as -3,1, and −∞, are values, too
        self._negative_number_matcher = re.compile(r"-(\d|\.\d|inf)")

    def error(self, message: str) -> NoReturn:
        """Raise ValueError; what is missing is said with the choices there are."""
        for action in self._actions:
            known = [] if action.option_strings else list(action.choices or ())
            if len(known) > 1 and message.endswith(f"required: {action.metavar}"):
                message += f", one of {', '.join(known)}"
        raise ValueError(message)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Return what the option's type reads; argparse's has words of its own for a ValueError."""
        try:
            return self._registry_get("type", action.type, action.type)(arg_string)
        except (ValueError, TypeError) as error:
            raise argparse.ArgumentError(action, str(error)) from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = f"expected one of {', '.join(map(str, action.choices))}"
            raise argparse.ArgumentError(
                action, f"there is no {value!r}{meant(value, action.choices)}; {known}"
            )

    def _match_argument(self, action: argparse.Action, arg_strings_pattern: str) -> int:
        try:
            return super()._match_argument(action, arg_strings_pattern)
        except argparse.ArgumentError as error:
            takes = self._get_formatter()._format_args(action, action.dest.upper())
            if action.choices is not None:
                *first, last = map(str, action.choices)
                takes = f"{', '.join(first)} or {last}" if first else last
            raise argparse.ArgumentError(action, f"{error.message}: {takes}") from None

    def _print_message(self, message: str, file: Any = None) -> None:
        (file or sys.stdout).write(message)  # argparse's hides that it cannot


def whole(least: int = 1, most: int = 2**63 - 1) -> Callable[[str], int]:
    """Return a reader of whole numbers from `least` to `most`."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:  # of too many digits, too
            number = most + 1 if text.strip().isdecimal() else least - 1
        if number < least:
            raise _refused(text, f"a whole number of at least {least}")
        if number > most:
            raise _refused(text, f"a whole number of at most 2**{(most + 1).bit_length() - 1} - 1")
        return number

    return read


def number(
    convert: Callable[[str], Any], fits: Callable[[Any], bool], expected: str
) -> Callable[[str], Any]:
    """Return a reader of what `convert` takes and `fits`; of all else it says what was expected."""

    def read(text: str) -> Any:
        with suppress(ValueError):
            found = convert(text)
            if fits(found):
                return found
        raise _refused(text, expected)

    return read


offset = number(
    int, lambda n: abs(n) <= MOST_OFFSET, f"a whole number from -{MOST_OFFSET} to {MOST_OFFSET}"
)
seed = number(int, lambda n: 0 <= n < 2**64, "a whole number from 0 to 2**64 - 1")
probability = number(float, lambda p: 0 <= p < 1, "a number p with 0 ≤ p < 1")
finite = number(float, math.isfinite, "a finite number")
logits = number(
    lambda text: tuple(map(float, text.split(","))),
    lambda given: all(abs(s) <= MOST_LOGIT or s == -math.inf for s in given),
    f"a number, or one for each query head, as -1.5,0,2; up to {MOST_LOGIT:g}, or -inf",
)
positive = number(float, lambda x: 0 < x < math.inf, "a finite number above 0")


def declared(check: Callable[[Any], object]) -> Callable[[str], Any]:
    """Return a reader of an option that an algorithm declares: a whole number, or several with
    commas between.
    """

    def read(text: str) -> int | tuple[int, ...]:
        numbers = _numbers(text, "a whole number, or several with commas between")
        value = numbers[0] if len(numbers) == 1 else numbers
        check(value)
        return value

    return read


def option(text: str) -> tuple[str, Any]:
    """Read NAME=VALUE, an option of an algorithm of the user's: the value is Python's, as 64,
    0.5, True, or else text.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise _refused(text, "NAME=VALUE, such as window=64")
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
                raise _refused(
                    text, "values side by side, as 64 128, or a range, as 128:4096:128"
                ) from None
        parts = text.replace("..", ":", 1).split(":")
        if len(parts) != 3:
            to = ".." if ".." in text else ":"
            raise _refused(
                text,
                (
                    f"START{to}STOP:STEP, as 128{to}4096:128, or START{to}STOP:xFACTOR, as "
                    f"128{to}4096:x2"
                ),
            )
        start = read(parts[0])
        stop = read(parts[1])
        if stop < start:
            raise _refused(text, f"a range from {start} up")
        if parts[2][:1] != "x":
            numbers: Any = range(start, stop + 1, read(parts[2]))
        else:
            factor = number(
                float, lambda x: 1 < x < math.inf, "a factor above 1, as in 128:4096:x2"
            )(parts[2][1:])
            exponents = range(int(math.log(stop / start) / math.log(factor) + 1e-9) + 1)
            numbers = dict.fromkeys(round(start * factor**exponent) for exponent in exponents)
        if len(numbers) > MOST:
            raise _refused(text, f"at most {MOST:,} numbers")
        return [read(str(number)) for number in numbers]

    return read_all


def several_sizes(text: str) -> list[int | str]:
    """Read a size, or a range of sizes: elements as numbers; bytes as text, until the dtype is
    known.
    """
    parts = text.replace("..", ":", 1).split(":")
    sizes = [part for at, part in enumerate(parts) if at < 2 or part[:1] != "x"]
    in_bytes = {part.strip()[-1:].upper() == "B" for part in sizes}
    numbers = several(lambda part: parse_size(part, 1))(text)
    if len(in_bytes) > 1:
        raise _refused(text, "sizes that are all elements, or all bytes")
    return [f"{number}B" for number in numbers] if in_bytes == {True} else numbers


def sides(text: str) -> str:
    """Read B_r or B_c, or a range of them, which stays text until both are known."""
    several(whole())(text)
    return text


def blocks_of(typed: Sequence[str]) -> list[tuple[int, int]]:
    """Return the blocks of one --blocks: of B_r and B_c, all pairs of their values; of one
    range, squares. Else ValueError.
    """
    read = several(whole())
    if len(typed) == 1 and _is_range(typed[0]):
        return [(side, side) for side in read(typed[0])]
    if len(typed) != 2:
        raise _refused(
            " ".join(typed), "B_r B_c, as 64 88, or a range of square blocks, as 16..256:16"
        )
    return [(B_r, B_c) for B_r in read(typed[0]) for B_c in read(typed[1])]


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
        raise _refused(text, expected) from None


def output(text: str) -> Path:
    """Read the name of a file to be written."""
    path = Path(text)
    if path.name in ("", ".."):
        raise ValueError(f"{text!r} names no file")
    return path


def _refused(text: str, expected: str) -> ValueError:
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

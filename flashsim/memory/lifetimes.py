"""What a user's algorithm computed from tiles, and did not put on chip, dies with the turn it was
made in.

A tile is a plain array, so a copy of it (`x * 1`, `np.array(x)`, a list of such) would outlive the
tile, without room or traffic. At the end of each turn of a loop in the user's code, and where it
evicts a tile or loads over one, its variables are looked through: those of the function that loops
and of its callers, up to the one that launched it, and what closures, globals and containers hold
(`flashsim.memory.reach`). Whatever was there when the turn began, and has not changed, may stay.
What is new and not in SRAM

* is overwritten with NaN, if it is an array of numbers: what is computed with it later is NaN, too;
* is an `Escape`, if it cannot be overwritten: bytes, text, lists of numbers.

Masks, constants and sorted tables of indices may stay, and so may single numbers, which are
registers. What Python cannot show (a file, another process) is not seen; the lower bound of the
accesses catches what that gains (`flashsim.simulate.least`).
"""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from types import CodeType, FrameType
from typing import Any, TypeVar

import numpy as np

from flashsim.memory.bytecode import line_of_name, root_of
from flashsim.memory.contents import (
    bytes_of,
    digits_of,
    is_gone,
    is_noise,
    is_of_two_values,
    is_sorted,
    items_of,
    new_numbers,
    overwrite,
    owner_of,
    print_of,
)
from flashsim.memory.debuggers import steps_over_memory
from flashsim.memory.holders import ARRAY, SERIES, TABLE, TEXT, WHOLE
from flashsim.memory.reach import Reach
from flashsim.memory.source import Site

FEW_NUMBERS = 16
"""How many numbers containers may take up in a turn: a few registers."""
FEW_CHARACTERS = 500
FEW_BYTES = 64
SMALL_ARRAY = 4096
"""Elements of an array that is looked at every time for a change; a larger one, only where the
code may write to arrays.
"""
PART_OF_TIME = 0.03
"""What looks take up, but for the first at each place of the code: what is not seen at once dies
at a later look.
"""
EVERY = 64
"""Looks that go deep: the first, then one of so many."""
MOST_DEATHS = 1000
SKIPS_LOOKS = "skips_looks"
"""The attribute of a trace function that need not see what looks do."""
Looked = TypeVar("Looked")


@dataclass(frozen=True)
class Escape:
    """What outlives its turn and cannot be overwritten: which name holds what, and where it was
    made, if that is known.
    """

    text: str
    site: Site | None


@dataclass(frozen=True)
class Death:
    """An array that was overwritten at the end of its turn."""

    name: str
    shape: tuple[int, ...]
    code: CodeType

    @property
    def site(self) -> Site | None:
        """The line that made it, as far as its name tells."""
        return line_of_name(self.code, self.name)


class Known:
    """What was there when a turn began.

    deep    whether libraries' objects were looked into, and will be when the first turn ends
    fresh   whether no turn has ended since
    arrays  each with a number that tells whether it changed (None: nothing can change it), by id
    owners  the arrays whose memory these show
    series  lists and the like, with what was in them
    others  texts, bytes and what else holds numbers
    """

    def __init__(self, deep: bool = True) -> None:
        self.deep = deep
        self.fresh = True
        self.arrays: dict[int, tuple[Any, int | None]] = {}
        self.owners: dict[int, Any] = {}
        self.series: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        self.others: dict[int, Any] = {}


class Lifetimes:
    """Looks through the variables of a user's algorithm. `maker` is the code that made the memory.

    Looks would take longer than the algorithm if they came at the end of each turn. So they come at
    the first at each place of the code, and then so seldom that they take up PART_OF_TIME. What
    they miss is there at the next look, and dies then.
    """

    def __init__(self, memory: Any, maker: CodeType) -> None:
        self._reach = Reach(memory, maker)
        self._looks = 0
        self._turns = 0
        self.wait = 0  # how many turns end before the next look
        # with the code, so that its id stays its own
        self._places: dict[tuple[int, int], CodeType] = {}
        self._began = perf_counter()
        self._spent = 0.0
        self._deaths: dict[str, Death] = {}

    def is_due(self, frame: FrameType) -> bool:
        """Return whether to look now: the first time at a place of the code, and when `wait` is
        over.
        """
        code = frame.f_code
        place = id(code), frame.f_lasti
        if place not in self._places:
            self._places[place] = code
            return True
        if self.wait > 0:
            self.wait -= 1
            return False
        return True

    def known(self, frame: FrameType) -> Known:
        """Return what there is now, as a turn begins."""
        return self._look(self._known, frame)

    def end(self, known: Known, frame: FrameType) -> Escape | None:
        """Overwrite what was made since `known`, and is not on chip; return what cannot be
        overwritten, if there is any.
        """
        known.fresh = False
        return self._look(self._end, known, frame)

    def _look(self, look: Callable[..., Looked], *arguments: Any) -> Looked:
        """Look, and set `wait`.

        Meanwhile nothing follows the user's lines: a look would take twice as long.
        """
        start = perf_counter()
        tracer = sys.gettrace()
        skips = getattr(tracer, SKIPS_LOOKS, False) or steps_over_memory(tracer)
        if skips:
            sys.settrace(None)
        try:
            return look(*arguments)
        finally:
            if skips:
                sys.settrace(tracer)
            self._pause(start)

    def _pause(self, start: float) -> None:
        """Set `wait`, after a look that began at `start`, so that looks take up their part of
        the time.
        """
        now = perf_counter()
        self._spent += now - start
        self._turns += 1
        elapsed = now - self._began
        behind = self._spent / PART_OF_TIME - elapsed
        self.wait = int(self._turns * behind / elapsed) if behind > 0 else 0
        self._turns += self.wait

    def _known(self, frame: FrameType) -> Known:
        known = Known(deep=self._looks % EVERY == 0)
        self._looks += 1
        if not known.deep and self._reach.is_clear(frame, {}):
            return known
        for value, _, kind, _ in self._reach.holders(frame, known.deep):
            if kind == ARRAY:
                owner = owner_of(value)
                known.arrays[id(value)] = value, self._print_of(value)
                known.owners[id(owner)] = owner
            elif kind in (SERIES, TABLE):
                known.series[id(value)] = value, items_of(value)
            else:
                known.others[id(value)] = value
        return known

    def _end(self, known: Known, frame: FrameType) -> Escape | None:
        deep = known.deep
        known.deep = False
        if not deep and self._reach.is_clear(frame, known.arrays):
            return None
        escape: Escape | None = None
        totals = _Totals()
        for value, name, kind, is_variable in self._reach.holders(frame, deep):
            if kind == ARRAY:
                holding = self._end_array(known, value, name, is_variable, frame)
            elif kind in (SERIES, TABLE):
                before = known.series.get(id(value))
                holding = totals.of_series(value, () if before is None else before[1])
            elif id(value) in known.others:
                continue
            else:
                holding = totals.of_other(value, kind)
            if holding is not None and escape is None:
                escape = Escape(f"{name} holds {holding}", line_of_name(frame.f_code, name))
        return escape

    def _end_array(
        self, known: Known, value: Any, name: str, is_variable: bool, frame: FrameType
    ) -> str | None:
        """Overwrite an array that is new or has changed; return what it holds, if that cannot
        be.
        """
        before = known.arrays.get(id(value))
        changed = (
            before is not None and before[1] is not None and before[1] != self._print_of(value)
        )
        if not changed and (before is not None or id(owner_of(value)) in known.owners):
            return None
        kind = value.dtype.kind
        if kind == "b":
            harmless = changed or not is_noise(value)
            return (
                None
                if harmless or (is_variable and overwrite(value, False))
                else f"{value.size:,} bits"
            )
        if kind in "iu":
            harmless = not changed and is_sorted(value)
            gone = harmless or (
                not changed and is_variable and overwrite(value, np.iinfo(value.dtype).max)
            )
            return None if gone else f"{_by(value)} whole numbers"
        if is_gone(value) or (not changed and kind == "f" and is_of_two_values(value)):
            return None
        if kind in "SUMm" or not overwrite(value, np.nan):
            return f"an array of {_by(value)} that cannot be overwritten"
        if len(self._deaths) < MOST_DEATHS and name not in self._deaths:
            self._deaths[name] = Death(name, value.shape, frame.f_code)
        return None

    def death_at(self, site: Site) -> Death | None:
        """Return an array that died, and that the line mentions; else one of those in a
        container, if any died.
        """
        line = linecache.getline(*site)
        in_container = None
        for death in self._deaths.values():
            root = root_of(death.name)
            if re.search(rf"\b{re.escape(root)}\b", line):
                return death
            if root != death.name and in_container is None:
                in_container = death
        return in_container

    def _print_of(self, value: Any) -> int | None:
        if not value.flags.writeable and value.base is None:
            return None
        if value.size > SMALL_ARRAY and not self._reach.may_write():
            return None
        return print_of(value)


class _Totals:
    """What containers, texts and buffers have taken up since a turn began, together."""

    def __init__(self) -> None:
        self._numbers = self._characters = self._bytes = 0

    def of_series(self, value: Any, before: tuple[Any, ...]) -> str | None:
        new = new_numbers(value, before)
        self._numbers += new
        return f"some of {self._numbers:,} numbers" if new and self._numbers > FEW_NUMBERS else None

    def of_other(self, value: Any, kind: int) -> str | None:
        if kind == WHOLE:
            return f"a whole number of {value.bit_length():,} bits"
        if kind == TEXT:
            self._characters += digits_of(value)
            return (
                f"a text of {self._characters:,} characters"
                if self._characters > FEW_CHARACTERS
                else None
            )
        self._bytes += bytes_of(value)
        return (
            f"{self._bytes:,} bytes, as {type(value).__name__}" if self._bytes > FEW_BYTES else None
        )


def _by(value: Any) -> str:
    return "×".join(f"{n:,}" for n in value.shape)

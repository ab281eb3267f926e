"""Which turns of a user's own loop may be counted in one go: those that were shown to be alike.

A count of a user's own algorithm runs it on shapes alone. A loop runs its first two turns, its
third, which stands for all that follow but the last, and its last. What tells that the third may
stand for others:

* Its index is a `Turn`, which nothing but the memory can read, and the memory reads it to take
  blocks of one shape alone.
* What the algorithm can know at its beginning, it knows again at its end
  (`flashsim.memory.state`): so the next turn does the same, and leaves the same.

Where that fails, the `Watch` notes the loop, and the algorithm is run again from its start; this
loop now runs turn by turn, with plain indices. So nothing has to be repaired, and what is counted
is counted as a run would.
"""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Never, TypeVar

import numpy as np

from flashsim.memory.source import PACKAGE, Site, site_of, target_at

Result = TypeVar("Result")

FEW = 4
"""A loop of so many turns runs each of them."""
MORE = 32
"""So does one in a loop that runs turn by turn: to compare states takes as long as these."""
MOST_TURNS = 2**22
"""How many turns are run one by one at most."""
SECONDS_OF_A_TURN = 1e-4
PATIENCE = 3.0
"""Seconds after which a user is told how long a count takes."""
OUTSIDE = (PACKAGE, os.path.dirname(np.__file__) + os.sep)


class SlowCountWarning(UserWarning):
    """A count runs turn by turn, because turns of a loop could not be shown to be alike, and
    takes long.
    """


class TooManyTurns(ValueError):
    """A count would run too many turns one by one."""


class Differs(BaseException):
    """A loop's turns are not alike after all: the count begins again. Not an `Exception`, so
    that users do not catch it.
    """


class _Loop:
    """One pass over a loop: where it stands, the indices of its turns, and those that the
    current turn stands for.
    """

    __slots__ = ("attempt", "current", "high", "indices", "low", "site", "watch")

    def __init__(self, watch: Watch, site: Site, indices: Sequence[int]) -> None:
        self.watch = watch
        self.site = site
        self.indices = indices
        self.attempt = watch.attempt
        self.low, self.high = min(indices), max(indices)
        self.current: Turn | None = None


class Turn:
    """The index of a turn that may stand for others. Whatever is done with it, but to take a block,
    says that it may not.

    It is no `int`: C code, such as a list's, would read that without a call of any method.
    """

    __slots__ = ("_first", "_high", "_loop", "_low")

    def __init__(self, loop: _Loop, indices: Sequence[int]) -> None:
        _set_loop(self, loop)
        _set_first(self, indices[0])
        _set_low(self, min(indices))
        _set_high(self, max(indices))


# The slots of a Turn are read past its own `__getattribute__`, which below is one of the methods
# that mark.
_slots: Mapping[str, Any] = vars(Turn)
_loop_of = _slots["_loop"].__get__
_set_loop = _slots["_loop"].__set__
_first_of = _slots["_first"].__get__
_set_first = _slots["_first"].__set__
_low_of = _slots["_low"].__get__
_set_low = _slots["_low"].__set__
_high_of = _slots["_high"].__get__
_set_high = _slots["_high"].__set__

USES = {
    "compares": "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __contains__",
    "computes with": (
        "__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__ "
        "__rfloordiv__ __mod__ __rmod__ "
        "__divmod__ __rdivmod__ __pow__ __rpow__ __lshift__ __rlshift__ __rshift__ __rrshift__ "
        "__and__ __rand__ __or__ __ror__ "
        "__xor__ __rxor__ __matmul__ __rmatmul__ __neg__ __pos__ __abs__ __invert__ __round__ "
        "__trunc__ __floor__ __ceil__ "
        "__array_ufunc__ __array_function__"
    ),
    "tests": "__bool__",
    "looks up": "__hash__",
    "prints": "__str__ __repr__ __format__",
    "reads": (
        "__index__ __int__ __float__ __complex__ __bytes__ __len__ __iter__ __next__ __getitem__ "
        "__setitem__ __delitem__ "
        "__array__ __getattribute__ __setattr__ __delattr__ __dir__ __copy__ __deepcopy__ "
        "__reduce__ __reduce_ex__ __sizeof__"
    ),
}
"""What a user may do with an index, by the word for it."""


def _marking(method: str, verb: str) -> Callable[..., Any]:
    """Return a method of `Turn`: it says that turns differ; on an index that was left over from
    an earlier count, it is int's.
    """

    def use(turn: Turn, *others: Any) -> Any:
        loop = _loop_of(turn)
        if loop.watch.runs(loop):
            turns = [turn, *(other for other in others if type(other) is Turn)]
            loop.watch.mark([_loop_of(each).site for each in turns], verb)
        return getattr(_first_of(turn), method)(*others)

    return use


for _verb, _methods in USES.items():
    for _method in _methods.split():
        setattr(Turn, _method, _marking(_method, _verb))


def index_of(index: Any) -> int:
    """Return the index that observers are told: of a turn that stands for several, the first."""
    first: int = _first_of(index) if type(index) is Turn else index
    return first


def turn_state(turn: Turn) -> tuple[Any, ...]:
    """Return what the turns of a loop have in common: an index that is kept has to do for any of
    them.
    """
    loop = _loop_of(turn)
    return "turn", loop.site, loop.low, loop.high


Turn._turn_state = turn_state  # type: ignore[attr-defined]  # as `flashsim.memory.state` asks


def block_number(turn: Turn, blocks: int, ragged: bool) -> int:
    """Return the number of a block that a turn takes, of so many, the last of which may be ragged.

    It is shown that all blocks that the turn stands for are there, and have one shape. An index
    that was kept beyond its own turn may have become any of its loop's.
    """
    loop = _loop_of(turn)
    if loop.current is turn:
        low = _low_of(turn)
        high = _high_of(turn)
    else:
        low = loop.low
        high = loop.high
    if loop.watch.runs(loop) and low < high:
        if low < 0 or high >= blocks:
            loop.watch.mark([loop.site], "takes a block that is not there with")
        if ragged and high == blocks - 1:
            loop.watch.mark([loop.site], "takes blocks of different shapes with")
    first: int = _first_of(turn)
    return first


def mark_position(turns: Sequence[Turn]) -> None:
    """Say that a user's code asked where a block lies that these turns took."""
    loop = _loop_of(turns[0])
    if loop.watch.runs(loop):
        loop.watch.mark(
            [_loop_of(turn).site for turn in turns], "asks where a block lies that is taken with"
        )


class Watch:
    """What is known of a user's loops while theirs are counted: `unlike` are those that run turn
    by turn, each with why.
    """

    def __init__(self, runs: int = 1) -> None:
        self.unlike: dict[Site, str] = {}
        self._runs = runs  # of those that are left, this one included
        self.all_unlike = ""
        self.attempt = 0
        self.shared = False  # whether a turn of this attempt could stand for others
        self._open = self._final = self._marked = self._warned = False
        self._left: list[Site] = []  # loops that ended in a turn that stands for itself
        # of each loop that runs, how many turns have begun, of how many
        self._nest: list[list[int]] = []
        self._began = self._loop_began = 0.0

    # ----------------------------------------------------------------------------------------------
    # the launcher's

    def begin(self, final: bool = False) -> None:
        """Begin an attempt; the final one is what observers are told."""
        self.attempt += 1
        self._open = True
        self._final = final
        self._marked = False
        self.shared = False
        self._nest.clear()
        self._left.clear()
        self._began = time.perf_counter()

    def end(self) -> bool:
        """End it; return whether its count is true."""
        self._open = False
        return not self._marked

    def was_left_early(self) -> bool:
        """Return whether a loop ended in its first turns, before they were compared. Then its
        turns run one by one.
        """
        for site in self._left:
            self.unlike.setdefault(
                site, f"line {site[1]} of {os.path.basename(site[0])}: a turn ends the loop"
            )
        return bool(self._left)

    def call(self, function: Callable[..., Result], hbm: Any, sram: Any, *arguments: Any) -> Result:
        """Call the user's function: what the frames above this one can see is a turn's state."""
        for memory in (hbm, sram):
            # any other attribute is the user's
            memory._fields = frozenset({*vars(memory), "_fields"})
        return function(hbm, sram, *arguments)

    # ----------------------------------------------------------------------------------------------
    # the memory's

    def runs(self, loop: _Loop) -> bool:
        """Return whether a loop is of the attempt that runs."""
        return self._open and loop.attempt == self.attempt

    def mark(self, sites: Sequence[Site], verb: str) -> Never:
        """Note that turns of these loops differ, as the user's code does this with an index.
        Raises Differs.
        """
        file, line = _user_site()
        for site in sites:
            variable = target_at(site, "the index")
            self.unlike.setdefault(
                site, f"line {line} of {os.path.basename(file)} {verb} {variable}"
            )
        self._differ()

    def mark_all(self, what: str) -> None:
        """Note that the user's code reads a counter, which tells turns apart. Raises Differs,
        but not for an observer.
        """
        if not self._open or self._final or self.all_unlike:
            return
        file, line = _user_site()
        self.all_unlike = f"line {line} of {os.path.basename(file)} reads {what}"
        self._differ()

    def left(self, turn: int | Turn) -> None:
        """Note a turn that was left early, before turns were compared. Nothing can be raised
        where Python ends a generator.
        """
        if type(turn) is not Turn:
            return
        loop = _loop_of(turn)
        if not self.runs(loop):
            return
        if _low_of(turn) == _high_of(turn):
            self._left.append(loop.site)
        else:
            name = f"line {loop.site[1]} of {os.path.basename(loop.site[0])}"
            self.unlike.setdefault(loop.site, f"{name}: a turn ends the loop")
            self._marked = True

    def turns(
        self, site: Site, unseen: str, indices: Sequence[int], sram: Any
    ) -> Iterator[tuple[Any, int]]:
        """Return the turns of a loop that have to be run, each with how many it stands for."""
        if self._marked:
            raise Differs
        is_nested = any(turns > FEW for _, turns in self._nest)
        # within a long loop, to compare states takes longer than some turns
        few = MORE if is_nested else FEW
        if len(indices) <= few or self.all_unlike or site in self.unlike:
            return self._each(site, indices)
        if unseen:
            self.unlike[site] = f"line {site[1]} of {os.path.basename(site[0])} {unseen}"
            return self._each(site, indices)
        return self._alike(_Loop(self, site, indices), sram)

    def _each(self, site: Site, indices: Sequence[int]) -> Iterator[tuple[int, int]]:
        place = self._enter(len(indices))
        turns = math.prod(total for _, total in self._nest)
        if turns > MOST_TURNS:
            raise TooManyTurns(
                f"{self._why(site)}, so turns are counted one by one, and here are {turns:,} of "
                "them, which takes about "
                f"{turns * SECONDS_OF_A_TURN / 3600:,.1f} hours; expected at most {MOST_TURNS:,}. "
                "Take larger blocks"
            )
        try:
            for index in indices:
                self._next(place, site)
                yield index, 1
        finally:
            del self._nest[place:]

    def _alike(self, loop: _Loop, sram: Any) -> Iterator[tuple[Turn, int]]:
        """Yield the first two turns, the third for all that follow but the last, and the last.

        The memory's generator asks for them, and the user's `for` statement asks that: so two
        frames up is the user's.
        """
        from flashsim.memory.state import State, difference

        self.shared = True
        indices = loop.indices
        place = self._enter(FEW)
        try:
            yield self._turn(place, loop, indices[:1]), 1
            yield self._turn(place, loop, indices[1:2]), 1
            before = State(sram, sys._getframe(2), Watch.call.__code__)
            yield self._turn(place, loop, indices[2:-1]), len(indices) - 3
            after = State(sram, sys._getframe(2), Watch.call.__code__)
            what = difference(before, after)
            if what:
                where = f"line {loop.site[1]} of {os.path.basename(loop.site[0])}"
                self.unlike.setdefault(loop.site, f"{where}: {what} from turn to turn")
                self._differ()
            yield self._turn(place, loop, indices[-1:]), 1
            loop.current = None
        finally:
            del self._nest[place:]

    def _turn(self, place: int, loop: _Loop, indices: Sequence[int]) -> Turn:
        self._next(place, loop.site)
        loop.current = Turn(loop, indices)
        return loop.current

    def _differ(self) -> Never:
        self._marked = True
        raise Differs

    # ----------------------------------------------------------------------------------------------
    # how long it takes

    def _enter(self, turns: int) -> int:
        if not self._nest:
            self._loop_began = time.perf_counter()
        self._nest.append([-1, turns])
        return len(self._nest) - 1

    def _next(self, place: int, site: Site) -> None:
        if self._marked:  # and the user's code has caught what was raised
            raise Differs
        self._nest[place][0] += 1
        unlike = self.unlike or self.all_unlike
        if self._warned or not unlike or time.perf_counter() - self._began < PATIENCE:
            return
        self._warned = True
        done = sum(
            begun / math.prod(turns for _, turns in self._nest[: n + 1])
            for n, (begun, _) in enumerate(self._nest)
        )
        now = time.perf_counter()
        seconds = self._runs * (
            self._loop_began - self._began + (now - self._loop_began) / max(done, 1e-9)
        )
        message = (
            f"this count takes about {seconds:,.0f} seconds, because it runs turn by turn: "
            f"{self._why(site)}"
        )
        warnings.warn_explicit(message, SlowCountWarning, *site)

    def _why(self, site: Site) -> str:
        return (
            self.all_unlike
            or self.unlike.get(site)
            or next(iter(self.unlike.values()), "it has many short loops")
        )


def unseen_by(caller: FrameType) -> str:
    """Return why a loop that is asked for there cannot be followed; nothing if it can."""
    from flashsim.memory.user_code import why_unseen

    return why_unseen(caller, Watch.call.__code__)


def _user_site() -> Site:
    """Return the line of the user's code that runs; of flashsim's, where the user's record holds
    a function of that.
    """
    site: Site = "?", 0
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code is not Watch.call.__code__:
        site = site_of(frame)
        if not site[0].startswith(OUTSIDE):
            break
        frame = frame.f_back
    return site

"""Turns of a loop that are counted at once: in counting-only mode, a turn may stand for others that
are equal.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from flashsim.memory.errors import MemoryModelError


class Kinds(dict[int, int | Fraction]):
    """Turns of a loop that together stand for all: index -> for how many. What `loop` takes where
    turns are too many to list.

    A fraction is an average, where one turn of the outer loop stands for several, and these go
    round this loop unequally often.
    """

    def below(self, turns: int) -> list[tuple[int, int | Fraction]]:
        """Return those of the first `turns`, each with how many it stands for."""
        return [(index, times) for index, times in self.items() if index < turns]


def indices_of(turns: int | range, where: NDArray[np.bool_] | None) -> Sequence[int]:
    """Return the indices of all turns of a loop."""
    if where is not None:
        indices: list[int] = np.flatnonzero(where).tolist()
        return indices
    return turns if isinstance(turns, range) else range(turns)


def with_times(indices: Sequence[int], fold: bool) -> Iterable[tuple[int, int]]:
    """Return (turn, how many it stands for): each, or, to fold them, the ends, and the second
    for all between.
    """
    if not fold or len(indices) < 3:
        return ((index, 1) for index in indices)
    return (indices[0], 1), (indices[1], len(indices) - 2), (indices[-1], 1)


def whole_number(times: int | Fraction) -> int:
    """Return for how many turns a turn stands in all. Raises MemoryModelError for a fraction."""
    if times.denominator != 1:
        raise MemoryModelError(
            f"a loop's turn stands for {times} turns in all; expected a whole number"
        )
    return times.numerator


def folded(
    turns: int, where: NDArray[np.bool_] | Kinds | None, alike: Sequence[Hashable] | Kinds | None
) -> Sequence[tuple[int, int | Fraction]]:
    """Return (turn, how many it stands for) for each kind of turn. The last is its own kind, as
    it may be ragged.
    """
    if isinstance(where, Kinds):
        return where.below(turns)
    if isinstance(alike, Kinds):
        return alike.below(turns)
    if turns == 0:
        return []
    last = turns - 1
    if alike is None:
        return _all_but_last(last, where)
    kinds: dict[Hashable, list[int]] = {}
    for index in indices_of(turns, where):
        kind = kinds.setdefault((index == last, alike[index]), [index, 0])
        kind[1] += 1
    return [(index, times) for index, times in kinds.values()]


def _all_but_last(last: int, where: NDArray[np.bool_] | None) -> list[tuple[int, int]]:
    """Return the first turn, which stands for all before the last, and the last; of those that
    `where` takes.
    """
    before: Sequence[int]
    if where is None:
        before = range(last)
        takes_last = True
    else:
        before = np.flatnonzero(where[:last]).tolist()
        takes_last = bool(where[last])
    schedule = []
    if before:
        schedule.append((before[0], len(before)))
    if takes_last:
        schedule.append((last, 1))
    return schedule

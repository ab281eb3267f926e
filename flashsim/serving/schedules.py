"""Who does which tiles: all tiles of all problems, shared out over workers by Stream-K, or each
problem's cut into fixed splits.

A problem is a row block of a sequence. Its segments are runs of its tiles, each of one worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from flashsim.serving.batch import Batch
from flashsim.support.sizes import ceil_div

SCHEDULES = ("stream_k", "fixed")


class Segment(NamedTuple):
    """Tiles first … end − 1 of a problem, row block i of sequence s; the k-th of its segments."""

    problem: int
    s: int
    i: int
    k: int
    first: int
    end: int


@dataclass(frozen=True)
class Schedule:
    """The segments of each worker, and those of each problem, in order."""

    workers: Sequence[Sequence[Segment]]
    problems: Sequence[Sequence[Segment]]

    @property
    def busiest(self) -> int:
        """The most tiles that one worker does."""
        return max(sum(one.end - one.first for one in mine) for mine in self.workers)

    @property
    def parts(self) -> int:
        """How many parts are written, of problems that have several segments."""
        return sum(len(segments) for segments in self.problems if len(segments) > 1)


def schedule_of(batch: Batch, schedule: str, workers: int, splits: int) -> Schedule:
    """Return the schedule of all row blocks of a batch over so many workers; with "fixed", each
    is cut into `splits`.
    """
    blocks = [(s, i) for s in range(len(batch)) for i in range(batch.row_blocks(s))]
    tiles = [ceil_div(batch.seen(s, i, batch.keys[s]), batch.B_c) for s, i in blocks]
    mine: list[list[Segment]] = [[] for _ in range(workers)]
    problems: list[list[Segment]] = [[] for _ in blocks]
    if schedule == "fixed":
        for q, T in enumerate(tiles):
            size = ceil_div(T, splits)
            cuts = [min(k * size, T) for k in range(splits + 1)]
            problems[q] = [
                Segment(q, *blocks[q], k, *ends) for k, ends in enumerate(pairwise(cuts))
            ]
        for number, segment in enumerate(segment for segments in problems for segment in segments):
            mine[number % workers].append(segment)
        return Schedule(mine, problems)
    share, rest = divmod(sum(tiles), workers)
    w = 0
    left = share + (rest > 0)
    for q, T in enumerate(tiles):
        first = 0
        while True:
            while left == 0 and first < T:
                w += 1
                left = share + (w < rest)
            end = min(first + left, T)
            segment = Segment(q, *blocks[q], len(problems[q]), first, end)
            mine[w].append(segment)
            problems[q].append(segment)
            left -= end - first
            first = end
            if first == T:
                break
    return Schedule(mine, problems)

"""`sweep`: what many runs would move, by closed forms, some of them cross-checked by counting."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, zip_longest
from typing import Any

from flashsim.analysis.sweeping import checkpoint
from flashsim.analysis.sweeping.checkpoint import Over, Work
from flashsim.analysis.sweeping.points import ARGUMENTS, LABEL, Point, points_of
from flashsim.analysis.sweeping.result import Sweep
from flashsim.analysis.sweeping.rows import Outcome, Row, by_count, by_form, columns_of, rows_of
from flashsim.attention.arguments import check_callback, check_count, check_flag
from flashsim.support.jobs import in_any_order
from flashsim.version import __version__

AT_ONCE = 500  # points of one piece of work
CHECKED_TILES = 2**12  # of a point whose tiles a count may look at one by one
OnPoints = Callable[[int, int], None]


class Disagreement(RuntimeError):
    """A closed form and a count of the same point differ."""


def sweep(
    algorithms: Any = "flash",
    *,
    N: Any = None,
    d: Any = None,
    M: Any = None,
    blocks: Any = None,
    causal: Any = None,
    direction: Any = None,
    N_q: Any = None,
    N_k: Any = None,
    d_v: Any = None,
    heads: Any = None,
    kv_heads: Any = None,
    gqa: Any = None,
    dtype: Any = None,
    sizing: Any = None,
    enforce: Any = None,
    mask: Any = None,
    dropout_p: Any = None,
    points: Any = None,
    check: int = 32,
    seed: int = 0,
    jobs: int | Over | None = 1,
    on_points: OnPoints | None = None,
    resume: str | os.PathLike[str] | None = None,
    bound: bool = False,
    **options: Any,
) -> Sweep:
    """Return what each algorithm moves at each of many points: `flashsim.count` of every
    combination, as rows.

    Each argument of `flashsim.count`, the algorithm's own options included, takes one value or many
    (a list, a range, an array, a column of a table): all combinations are taken, the last of N, M,
    d changing fastest. A tuple is one value where the argument takes tuples: `blocks=(64, 64)` is
    one, `blocks=[(64, 64), None]` are two, and None is line 1's. None for an argument as a whole
    leaves it to its default. An option that only some algorithms have is varied for these alone.

    points     a table: a DataFrame, a dictionary of columns, or a list of dictionaries, with the
               names of arguments ("algorithm" and "label", any text, too); or a `flashsim.Problem`,
               or several. Each of its rows is taken with every combination of the other arguments.
               What is empty there (None, NaN) is left to its default, and columns of what a sweep
               found are passed over: so a sweep, its DataFrame and its CSV are tables
    check      how many points to count as well, by running the algorithm on shapes: a sample,
               spread over algorithms and directions, that `seed` draws
    jobs       processes of joblib; None: as many as `joblib.parallel_config` says. Its backend,
               which may be that of a Dask or a Ray cluster, serves for both. Or a function, as
               `flashsim.support.jobs.in_any_order` with its `jobs`
    on_points  called with (points done, points in all)
    resume     a file that keeps the rows as they come: after Ctrl-C, the same call goes on from
               there
    bound      also find the lower bound (`flashsim.prove`), in the columns `lower_bound_elements`
               and `over_bound`; it takes some milliseconds for each size. `no_bound` says why none
               is known

    A point has its closed form (`flashsim.theory.exact`), or is counted where there is none. One
    that makes no sense, or does not fit M, is a row with the reason, and without counts.

    Raises ValueError or TypeError for what is wrong at every point (an unknown algorithm or
    argument, no length, more than 2²⁰ points), and `Disagreement` where closed form and count
    differ.
    """
    asked = {
        name: value for name, value in locals().items() if name in ARGUMENTS and value is not None
    } | options
    over = (
        jobs
        if callable(jobs)
        else partial(_over_joblib, None if jobs is None else check_count("jobs", jobs))
    )
    check = check_count("check", check, 0)
    seed = check_count("seed", seed, 0, 2**64 - 1)
    bound = check_flag("bound", bound)
    on_points = check_callback("on_points", on_points)
    all_points = points_of(algorithms, points, asked, sweep)
    at_once = AT_ONCE if resume is None else checkpoint.AT_ONCE
    pieces = [all_points[first : first + at_once] for first in range(0, len(all_points), at_once)]
    kept = None if resume is None else checkpoint.Kept(resume, pieces, bound)
    work: Work = partial(rows_of, bound=True) if bound else rows_of
    found: dict[int, list[Row]] = {}
    done = 0
    try:
        for number, of_piece in over(work, pieces) if kept is None else kept.rest(work, over):
            found[number] = of_piece
            done += len(of_piece)
            if on_points is not None:
                on_points(done, len(all_points))
    except KeyboardInterrupt as stop:
        if kept is None:
            stop.add_note(
                f"{done:,} of {len(all_points):,} points were done, and are lost; resume=FILE "
                "keeps them"
            )
        else:
            stop.add_note(
                f"{kept.points:,} of {len(all_points):,} points are kept in {kept.path}; the same "
                "again goes on"
            )
        raise
    rows = [
        row | {"checked": False, "flashsim": __version__}
        for _, piece in sorted(found.items())
        for row in piece
    ]
    for number in _sample(all_points, rows, check, seed):
        _cross_check(all_points[number])
        rows[number]["checked"] = True
    given = {
        name for point in all_points for name, value in point.arguments.items() if value is not None
    }
    given |= {LABEL for point in all_points if point.label}
    return Sweep(rows, columns_of(rows, given), given)


def _over_joblib(
    jobs: int | None, work: Work, pieces: Sequence[list[Point]]
) -> Iterator[tuple[int, list[Row]]]:
    if jobs == 1:
        yield from in_any_order(work, pieces, 1)
        return
    from joblib import parallel_config

    with parallel_config(**({} if jobs is None else {"n_jobs": jobs})):
        yield from in_any_order(work, pieces, None)


def _sample(points: Sequence[Point], rows: Sequence[Row], size: int, seed: int) -> list[int]:
    """Return which points to count as well: of those with a closed form, some of each algorithm
    and direction.
    """
    groups: dict[int, list[int]] = {}
    for number in random.Random(seed).sample(range(len(points)), len(points)):
        if rows[number]["source"] == "closed form" and _is_quick(points[number], rows[number]):
            groups.setdefault(id(points[number].way), []).append(number)
    chosen = chain.from_iterable(zip_longest(*(reversed(group) for group in groups.values())))
    return sorted(islice((number for number in chosen if number is not None), size))


def _is_quick(point: Point, row: Row) -> bool:
    block_mask = point.arguments.get("block_mask")
    if point.arguments.get("mask") is None and (block_mask is None or isinstance(block_mask, str)):
        return True
    return bool(row["T_r"] * row["T_c"] <= CHECKED_TILES)


def _cross_check(point: Point) -> None:
    formed = by_form(point)
    counted = by_count(point)
    if _counts(formed) != _counts(counted):
        said = ", ".join(f"{name}={value!r}" for name, value in point.arguments.items())
        raise Disagreement(
            f"closed form and count differ for {point.way.name!r} at {said}: {_shown(formed)} by "
            "the closed form, "
            f"{_shown(counted)} by the count"
        )


def _counts(outcome: Outcome) -> tuple[Any, ...] | None:
    return (
        (outcome.hbm, outcome.sram, outcome.blocks, outcome.matmul)
        if outcome.status == "ok"
        else None
    )


def _shown(outcome: Outcome) -> str:
    if outcome.hbm is None or outcome.sram is None:
        return f"{outcome.status} ({outcome.reason})"
    return (
        f"{outcome.hbm.reads:,} reads, {outcome.hbm.writes:,} writes, a peak of "
        f"{outcome.sram.peak:,}"
    )

"""`sweep`: what many runs would move, by closed forms, some of them cross-checked by counting."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from flashsim.analysis.sweeping.costs import Cost, by_count, by_form
from flashsim.analysis.sweeping.points import LABEL, Point, pieces_of, points_of
from flashsim.analysis.sweeping.records import Row
from flashsim.analysis.sweeping.result import Sweep
from flashsim.analysis.sweeping.rows import Executor, Work, columns_of, rows_of
from flashsim.attention.arguments import check_callback, check_count, check_flag
from flashsim.support.jobs import in_any_order

if TYPE_CHECKING:
    from flashsim.analysis.sweeping.checkpoint import Checkpoint

PIECE = 500  # points of one piece of work
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
    jobs: int | Executor | None = 1,
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
               What is empty there (None, NaN) is left to its default, and columns of a sweep's
               results are passed over: so a sweep, its DataFrame and its CSV are tables
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
    arguments = {
        "N": N,
        "d": d,
        "M": M,
        "blocks": blocks,
        "causal": causal,
        "direction": direction,
        "N_q": N_q,
        "N_k": N_k,
        "d_v": d_v,
        "heads": heads,
        "kv_heads": kv_heads,
        "gqa": gqa,
        "dtype": dtype,
        "sizing": sizing,
        "enforce": enforce,
        "mask": mask,
        "dropout_p": dropout_p,
    }
    arguments = {name: value for name, value in arguments.items() if value is not None}
    executor = _executor(jobs)
    check = check_count("check", check, 0)
    seed = check_count("seed", seed, 0, 2**64 - 1)
    bound = check_flag("bound", bound)
    on_points = check_callback("on_points", on_points)
    every_point = points_of(algorithms, points, arguments | options, sweep)
    work: Work = partial(rows_of, bound=True) if bound else rows_of
    checkpoint = None if resume is None else _checkpoint(resume, every_point, bound=bound)
    rows = _rows(every_point, work, executor, on_points, checkpoint)
    for number in _sample(every_point, rows, check, seed):
        _cross_check(every_point[number])
        rows[number].checked = True
    names = _names(every_point)
    return Sweep(rows, columns_of(rows, names, bound=bound), names)


def _executor(jobs: Any) -> Executor:
    if callable(jobs):
        return jobs  # type: ignore[no-any-return]
    return partial(_with_joblib, None if jobs is None else check_count("jobs", jobs))


def _with_joblib(
    jobs: int | None, work: Work, pieces: Sequence[list[Point]]
) -> Iterator[tuple[int, list[Row]]]:
    if jobs == 1:
        yield from in_any_order(work, pieces, 1)
        return
    from joblib import parallel_config

    settings = {} if jobs is None else {"n_jobs": jobs}
    with parallel_config(**settings):
        yield from in_any_order(work, pieces, None)


def _checkpoint(
    path: str | os.PathLike[str], points: Sequence[Point], *, bound: bool
) -> Checkpoint:
    from flashsim.analysis.sweeping.checkpoint import PIECE, Checkpoint

    return Checkpoint(path, pieces_of(points, PIECE), bound)


def _rows(
    points: Sequence[Point],
    work: Work,
    executor: Executor,
    on_points: OnPoints | None,
    checkpoint: Checkpoint | None,
) -> list[Row]:
    """Return the rows of all points, in their order. A checkpoint has some, and keeps the others.

    After Ctrl-C, a note of the KeyboardInterrupt says how many points were done.
    """
    if checkpoint is None:
        pieces = executor(work, pieces_of(points, PIECE))
    else:
        pieces = checkpoint.complete(work, executor)
    by_piece: dict[int, list[Row]] = {}
    done = 0
    try:
        for number, rows in pieces:
            by_piece[number] = rows
            done += len(rows)
            if on_points is not None:
                on_points(done, len(points))
    except KeyboardInterrupt as stop:
        of_all = f"of {len(points):,} points"
        if checkpoint is None:
            stop.add_note(f"{done:,} {of_all} were done, and are lost; resume=FILE keeps them")
        else:
            kept = f"{checkpoint.points:,} {of_all} are kept in {checkpoint.path}"
            stop.add_note(f"{kept}; the same again goes on")
        raise
    return [row for number in sorted(by_piece) for row in by_piece[number]]


def _names(points: Sequence[Point]) -> set[str]:
    """Return the names of the arguments that are set, at some point."""
    names: set[str] = set()
    for point in points:
        names.update(name for name, value in point.arguments.items() if value is not None)
        if point.label:
            names.add(LABEL)
    return names


# --------------------------------------------------------------------------------------------------
# the cross-check


def _sample(points: Sequence[Point], rows: Sequence[Row], size: int, seed: int) -> list[int]:
    """Return the numbers of the points to count as well: of those with a closed form, some of each
    algorithm and direction.
    """
    groups: dict[int, list[int]] = {}
    for number in random.Random(seed).sample(range(len(points)), len(points)):
        if rows[number].source == "closed form" and _is_quick(points[number], rows[number]):
            groups.setdefault(id(points[number].algorithm_pass), []).append(number)
    sample: list[int] = []
    for turn in zip_longest(*(reversed(group) for group in groups.values())):
        sample += [number for number in turn if number is not None]
        if len(sample) >= size:
            break
    return sorted(sample[:size])


def _is_quick(point: Point, row: Row) -> bool:
    """Return whether a count need not look at many tiles of a mask one by one."""
    block_mask = point.arguments.get("block_mask")
    has_tiles = block_mask is not None and not isinstance(block_mask, str)
    if point.arguments.get("mask") is None and not has_tiles:
        return True
    assert row.T_r is not None
    assert row.T_c is not None
    return row.T_r * row.T_c <= CHECKED_TILES


def _cross_check(point: Point) -> None:
    form = by_form(point)
    count = by_count(point)
    if _counts(form) != _counts(count):
        arguments = ", ".join(f"{name}={value!r}" for name, value in point.arguments.items())
        raise Disagreement(
            f"closed form and count differ for {point.algorithm_pass.name!r} at {arguments}: "
            f"{_in_words(form)} by the closed form, {_in_words(count)} by the count"
        )


def _counts(cost: Cost) -> tuple[Any, ...] | None:
    if cost.status != "ok":
        return None
    return cost.hbm, cost.sram, cost.blocks, cost.matmul


def _in_words(cost: Cost) -> str:
    if cost.hbm is None or cost.sram is None:
        return f"{cost.status} ({cost.reason})"
    hbm = cost.hbm
    return f"{hbm.reads:,} reads, {hbm.writes:,} writes, a peak of {cost.sram.peak:,}"

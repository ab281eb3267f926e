"""What a kernel moves that it need not move, each with the line that moves it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from flashsim.attention.masks.rules import All
from flashsim.attention.problem import Problem
from flashsim.profiling.arrays import Array
from flashsim.profiling.checking import Difference
from flashsim.profiling.recording import SECTOR, Line, LineTraffic, Recorder, Tile

KEYS = ("K", "V", "dK", "dV")
QUERIES = ("Q", "O", "dO", "dQ")
"""Arrays whose rows are keys, and queries."""
Program = tuple[int, tuple[int, ...]]
"""A program by its launch and its place in the grid."""
UNUSED = 0.01
"""Unused bytes of a line's sectors are a finding from this part of all moved bytes on."""


WASTE = ("needless tiles", "read again", "written again", "masked off")
"""The kinds of findings that change how often Q, K, V and O move."""


@dataclass(frozen=True)
class Finding:
    """Something that a kernel moves without need, or a wrong result.

    kind      "needless tiles", "read again", "written again", "masked off", "kept in HBM",
              "wide output", "unused bytes", "padding", or "not seen inside"
    line      where; None: no single line
    array     of which array; empty: of none alone
    elements  that move and need not; None: no number of elements says it
    text      the finding in a sentence
    """

    kind: str
    line: Line | None
    array: str
    elements: int | None
    text: str


def findings(
    recorder: Recorder,
    arrays: Mapping[str, Array],
    problem: Problem | None,
    difference: Difference | None = None,
) -> tuple[Finding, ...]:
    """Return a wrong result, then what moves without need, the most first.

    arrays   by name, as in the recorder
    problem  what the kernel computes; None: nothing is known of its mask
    difference  how far O is from attention; None: not compared
    """
    lines = list(recorder.lines.values())
    waste: list[Finding] = []
    if problem is not None:
        waste.extend(_needless_tiles(recorder.tiles, problem))
        waste.extend(_wide_outputs(lines, arrays))
    total_bytes = sum(line.elements * arrays[line.array].itemsize for line in lines)
    for traffic in lines:
        waste.extend(_of_line(traffic, arrays[traffic.array], total_bytes))
    waste.extend(_kept_in_hbm(recorder, arrays))
    unseen = {launch.kernel: launch.unseen for launch in recorder.launches if launch.unseen}
    for kernel, reason in unseen.items():
        waste.append(Finding("not seen inside", None, "", None, f"{kernel}: {reason}"))
    waste.sort(key=lambda finding: -(finding.elements or 0))
    if difference is not None and difference.is_wrong:
        text = (
            f"O is not attention of Q, K and V: it is off by up to {difference.error:.3g}, and "
            f"rounding explains {difference.allowance:.3g}"
        )
        waste.insert(0, Finding("wrong result", None, "O", None, text))
    return tuple(waste)


def _of_line(traffic: LineTraffic, array: Array, total_bytes: int) -> Iterator[Finding]:
    """Yield what one line's own sums show."""
    line = traffic.line
    name = traffic.array
    if traffic.kind == "read" and traffic.repeated:
        yield Finding(
            "read again",
            line,
            name,
            traffic.repeated,
            f"programs read {traffic.repeated:,} elements of {name} that they have read before",
        )
    if traffic.kind == "write" and traffic.repeated:
        yield Finding(
            "written again",
            line,
            name,
            traffic.repeated,
            f"{traffic.repeated:,} elements of {name} are written that were written before",
        )
    if traffic.idle:
        yield Finding(
            "masked off",
            line,
            name,
            None,
            f"{traffic.idle:,} of {traffic.times:,} times the mask switches off the whole tile of "
            f"{name}",
        )
    if traffic.padding:
        yield Finding(
            "padding",
            line,
            name,
            traffic.padding,
            f"{traffic.padding:,} elements between those of {name} move",
        )
    useful = traffic.elements * array.itemsize
    sector_bytes = traffic.sectors * SECTOR
    if sector_bytes - useful > UNUSED * total_bytes:
        yield Finding(
            "unused bytes",
            line,
            name,
            None,
            f"{name} moves in sectors of {SECTOR} bytes: {sector_bytes:,} bytes, of which "
            f"{useful:,} are used",
        )


def _needless_tiles(tiles: Sequence[Tile], problem: Problem) -> Iterator[Finding]:
    """Yield the tiles of keys that a program reads though none of its queries attends to them, and
    the tiles of queries that attend to none of its keys.
    """
    if isinstance(problem.mask, All):
        return
    queries: dict[Program, set[range]] = defaultdict(set)
    keys: dict[Program, set[range]] = defaultdict(set)
    for tile in tiles:
        program = (tile.launch, tile.program)
        if tile.array in QUERIES:
            queries[program].add(tile.rows)
        if tile.array in KEYS:
            keys[program].add(tile.rows)

    @cache
    def live(query_rows: range, key_rows: range) -> bool:
        return _attends(problem, query_rows, key_rows)

    total: dict[tuple[Line, str], int] = defaultdict(int)
    needless: dict[tuple[Line, str], list[int]] = defaultdict(list)
    for tile in tiles:
        program = (tile.launch, tile.program)
        place = (tile.line, tile.array)
        if tile.kind != "read" or not queries[program] or not keys[program]:
            continue
        if tile.array in ("K", "V"):
            needed = any(live(rows, tile.rows) for rows in queries[program])
        elif tile.array in ("Q", "dO"):
            needed = any(live(tile.rows, rows) for rows in keys[program])
        else:
            continue
        total[place] += 1
        if not needed:
            needless[place].append(tile.elements)
    for (line, array), elements in needless.items():
        use = "that none of their queries attends to"
        if array not in KEYS:
            use = "whose queries attend to none of their keys"
        yield Finding(
            "needless tiles",
            line,
            array,
            sum(elements),
            f"programs read {len(elements):,} of {total[line, array]:,} tiles of {array} {use}",
        )


def _attends(problem: Problem, queries: range, keys: range) -> bool:
    allowed = problem.mask.allows(
        np.arange(queries.start, queries.stop),
        np.arange(keys.start, keys.stop),
        problem.shape,
        (0,) * len(problem.leading),
    )
    return bool(allowed.any())


def _wide_outputs(lines: Sequence[LineTraffic], arrays: Mapping[str, Array]) -> Iterator[Finding]:
    """Yield O where it is written in a wider type than Q has."""
    if "Q" not in arrays or "O" not in arrays:
        return
    wide = arrays["O"]
    narrow = arrays["Q"]
    if wide.itemsize <= narrow.itemsize:
        return
    for traffic in lines:
        if traffic.array == "O" and traffic.kind != "read":
            yield Finding(
                "wide output",
                traffic.line,
                "O",
                None,
                f"O is written in {wide.dtype}, {wide.itemsize} bytes an element; Q has "
                f"{narrow.dtype}, {narrow.itemsize}",
            )


def _kept_in_hbm(recorder: Recorder, arrays: Mapping[str, Array]) -> Iterator[Finding]:
    """Yield arrays that the kernels write and read again: such as statistics, or the scores."""
    for name, elements in recorder.read_after_write().items():
        lines = [
            traffic.line
            for traffic in recorder.lines.values()
            if traffic.array == name and traffic.kind != "write"
        ]
        yield Finding(
            "kept in HBM",
            lines[0] if lines else None,
            name,
            elements,
            f"{elements:,} elements of {name} are read that the kernels have written: {name} of "
            f"{arrays[name].shape} goes through HBM",
        )

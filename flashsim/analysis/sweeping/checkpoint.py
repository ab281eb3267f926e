"""The rows of a sweep kept in a file as they come, so that a sweep that was stopped goes on from
there.
"""

import inspect
import json
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from flashsim.algorithms import Algorithm
from flashsim.analysis.sweeping.points import Point
from flashsim.analysis.sweeping.rows import Row
from flashsim.version import __version__

Work = Callable[[list[Point]], list[Row]]
Over = Callable[[Work, Sequence[list[Point]]], Iterator[tuple[int, list[Row]]]]
"""Does the work on each of several pieces, and yields each piece's number with its rows, in any
order.
"""
AT_ONCE = 50  # points that are lost at most, in each process


class Kept:
    """A file with a line on which sweep it is of, then one for each piece that is done.
    ValueError for another file.
    """

    def __init__(
        self, path: str | os.PathLike[str], pieces: Sequence[list[Point]], bound: bool = False
    ) -> None:
        self.path = Path(path)
        self._pieces = pieces
        self._head = {
            "flashsim": __version__,
            "sweep": _known_by(pieces),
            "points": sum(map(len, pieces)),
            "bound": bound,
        }
        self.rows: dict[int, list[Row]] = self._read() if self.path.exists() else {}

    @property
    def points(self) -> int:
        """How many points are done."""
        return sum(map(len, self.rows.values()))

    def rest(self, work: Work, over: Over) -> Iterator[tuple[int, list[Row]]]:
        """Yield the number of each piece with its rows: those in the file at once, the others as
        they are done, and kept.
        """
        yield from self.rows.items()
        left = [number for number in range(len(self._pieces)) if number not in self.rows]
        with self.path.open("w", encoding="utf-8") as file:
            file.writelines(
                map(
                    _line,
                    [self._head, *({"piece": n, "rows": rows} for n, rows in self.rows.items())],
                )
            )
            file.flush()
            for at, rows in over(work, [self._pieces[number] for number in left]):
                self.rows[left[at]] = rows
                file.write(_line({"piece": left[at], "rows": rows}))
                file.flush()
                yield left[at], rows

    def _read(self) -> dict[int, list[Row]]:
        first, *lines = self.path.read_bytes().splitlines(keepends=True) or [b""]
        if _object(first) != self._head:
            what = f"the rows of this sweep, of flashsim {__version__}, as it was stopped"
            raise ValueError(
                f"resume is {self.path}, which is of another sweep, or of none; expected {what}, "
                "or a new file"
            )
        found = {}
        for line in lines:
            kept = _object(line) if line.endswith(b"\n") else {}  # the last may be cut short
            number = kept.get("piece")
            rows = kept.get("rows")
            if (
                type(number) is not int
                or not 0 <= number < len(self._pieces)
                or not isinstance(rows, list)
            ):
                continue
            if len(rows) == len(self._pieces[number]) and all(
                isinstance(row, dict) for row in rows
            ):
                found[number] = rows
        return found


def _line(held: dict[str, Any]) -> str:
    return json.dumps(held, ensure_ascii=False) + "\n"


def _object(line: bytes) -> dict[str, Any]:
    try:
        held = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return held if isinstance(held, dict) else {}


def _known_by(pieces: Sequence[list[Point]]) -> str:
    """Return what tells one sweep from another: a hash of its points, and of the text of
    algorithms that are the user's own.
    """
    algorithms = {id(point.way): point.way.algorithm for piece in pieces for point in piece}
    said = sha256("".join(map(_text, algorithms.values())).encode())
    for piece in pieces:
        try:
            said.update(
                pickle.dumps(
                    [(point.way.name, dict(point.arguments), point.label) for point in piece]
                )
            )
        except Exception as error:  # of whatever kind, as what pickling runs is the user's
            raise ValueError(
                f"resume goes with arguments that can be kept; these cannot: {error}"
            ) from None
    return said.hexdigest()


def _text(algorithm: Algorithm | None) -> str:
    try:
        return inspect.getsource(inspect.unwrap(algorithm.run)) if algorithm else ""
    except (OSError, TypeError):
        return ""

"""The rows of a sweep kept in a file as they come, so that a sweep that was stopped goes on from
there.

The file has a header, then a line of JSON for each piece of the sweep that is done.
"""

import inspect
import os
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import msgspec

from flashsim.algorithms import Algorithm
from flashsim.analysis.sweeping.points import Point
from flashsim.analysis.sweeping.records import Row
from flashsim.analysis.sweeping.rows import Executor, Work
from flashsim.version import __version__

PIECE = 50  # points that are lost at most, in each process
T = TypeVar("T")


@dataclass(frozen=True)
class Header:
    """Which sweep a file is of: flashsim's version, a digest of the points, how many there are, and
    whether rows have bounds.
    """

    flashsim: str
    sweep: str
    points: int
    bound: bool


@dataclass(frozen=True)
class Piece:
    """The rows of the piece of this number."""

    piece: int
    rows: list[Row]


class Checkpoint:
    """The file of a sweep, and the rows that it has, by the number of their piece.

    Raises ValueError for the file of another sweep, and for points that cannot be told apart.
    """

    def __init__(
        self, path: str | os.PathLike[str], pieces: Sequence[list[Point]], bound: bool = False
    ) -> None:
        self.path = Path(path)
        self._pieces = pieces
        total = sum(len(piece) for piece in pieces)
        self._header = Header(__version__, _digest(pieces), total, bound)
        self.rows = self._read() if self.path.exists() else {}

    @property
    def points(self) -> int:
        """How many points are done."""
        return sum(len(rows) for rows in self.rows.values())

    def complete(self, work: Work, executor: Executor) -> Iterator[tuple[int, list[Row]]]:
        """Yield the number of each piece with its rows: first those of the file, then the others,
        as they are done and written to it.
        """
        yield from self.rows.items()
        missing = [number for number in range(len(self._pieces)) if number not in self.rows]
        with self.path.open("wb") as file:
            file.write(_line(self._header))
            for number, rows in self.rows.items():
                file.write(_line(Piece(number, rows)))
            file.flush()
            for index, rows in executor(work, [self._pieces[number] for number in missing]):
                number = missing[index]
                self.rows[number] = rows
                file.write(_line(Piece(number, rows)))
                file.flush()
                yield number, rows

    def _read(self) -> dict[int, list[Row]]:
        first, *lines = self.path.read_bytes().splitlines() or [b""]
        if _decoded(first, Header) != self._header:
            raise ValueError(
                f"resume is {self.path}, which is of another sweep, or of none; expected the rows "
                f"of this sweep, of flashsim {__version__}, as it was stopped, or a new file"
            )
        rows = {}
        for line in lines:
            piece = _decoded(line, Piece)  # the last line may be cut short
            if piece is not None and self._is_whole(piece):
                rows[piece.piece] = piece.rows
        return rows

    def _is_whole(self, piece: Piece) -> bool:
        if not 0 <= piece.piece < len(self._pieces):
            return False
        return len(piece.rows) == len(self._pieces[piece.piece])


def _line(record: Header | Piece) -> bytes:
    return msgspec.json.encode(record) + b"\n"


def _decoded(line: bytes, kind: type[T]) -> T | None:
    """Return a line's record; None where it is none of this kind."""
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, RecursionError):
        return None


def _digest(pieces: Sequence[list[Point]]) -> str:
    """Return what tells one sweep from another: a hash of its points, and of the text of
    algorithms that are the user's own.
    """
    algorithms: dict[int, Algorithm | None] = {}
    for piece in pieces:
        for point in piece:
            algorithms[id(point.algorithm_pass)] = point.algorithm_pass.algorithm
    digest = sha256()
    for algorithm in algorithms.values():
        digest.update(_text(algorithm).encode())
    for piece in pieces:
        points = []
        for point in piece:
            points.append((point.algorithm_pass.name, dict(point.arguments), point.label))
        try:
            digest.update(pickle.dumps(points))
        except Exception as error:  # of whatever kind, as what pickling runs is the user's
            raise ValueError(
                f"resume goes with arguments that can be kept; these cannot: {error}"
            ) from None
    return digest.hexdigest()


def _text(algorithm: Algorithm | None) -> str:
    if algorithm is None:
        return ""
    try:
        return inspect.getsource(inspect.unwrap(algorithm.run))
    except (OSError, TypeError):
        return ""

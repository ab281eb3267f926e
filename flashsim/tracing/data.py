"""What a trace is made of: events, and what is said of the run as a whole. Plain data; all else
in this package works on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

from flashsim.attention.shapes import Blocks, Shape
from flashsim.memory.source import Site

DATA = ("init", "load", "compute", "store", "post", "wait")
KINDS = (*DATA, "evict", "enter", "turn", "turn end", "leave")
Resident = tuple[tuple[str, int], ...]
Span = tuple[int, int]
STANDARD = "standard"
"""The algorithm that all others are compared with."""
MAXIMUM = "m"
"""The followed quantity that is a running maximum: where it rises, what is summed so far is
scaled down.
"""

Kind = tuple[str, str]
"""What a matrix has as rows and as columns: "N_q" queries, "N_k" keys, "d", "d_v", "1"; "" where
it is none of these.
"""


class TraceEvent(NamedTuple):
    """One event of the memory, as `flashsim.memory.sram.Event` has it, and the state after it.

    kind, name, elements, loops  as there
    site       (file, line) of the algorithm's line that it happened at
    label      what that line is called: "line 9" in the paper's terms, or "line 12 of mine.py"
               where nothing labels it
    where      ((first row, end), (first column, end)) of a loaded or stored block in its matrix;
               None for all else, as for rows from anywhere
    occupancy  elements in SRAM
    resident   what they are: (name, elements) in order of arrival
    reads, writes  elements moved so far, of all arrays
    value      the tile's values, a copy in the chip's dtype; None for loops, and where they are not
               kept
    """

    kind: str
    name: str
    elements: int
    loops: tuple[tuple[str, int], ...]
    site: Site
    label: str
    where: tuple[Span, Span] | None
    occupancy: int
    resident: Resident
    reads: int
    writes: int
    value: NDArray[Any] | None

    @property
    def array(self) -> str | None:
        """The array in HBM that a block is of; None for tiles and loops."""
        return self.name.partition("[")[0] if self.kind in ("init", "load", "store") else None

    @property
    def indices(self) -> tuple[int, ...]:
        """The block's indices, counted from 0; () for none, and for one named by its rows,
        K[3:7], or its way, K[→2].
        """
        inside = self.name.partition("[")[2].rstrip("]")
        return (
            tuple(int(index) for index in inside.split(","))
            if inside and not {*":[→←"} & {*inside}
            else ()
        )


@dataclass(frozen=True)
class Counts:
    """What one array of the run moved: `exact` is the closed form, None where there is none for
    it.
    """

    name: str
    shape: tuple[int, int]
    kind: Kind
    role: str
    itemsize: int
    reads: int
    writes: int
    exact: tuple[int, int] | None


@dataclass(frozen=True)
class Lanes:
    """Of one of several devices, its `rank`, and what all did; the lists of a device's steps go by
    its own numbers.

    kinds     what each device's steps do
    messages  (from, its step, to, its step, name)
    """

    rank: int
    kinds: tuple[tuple[str, ...], ...]
    messages: tuple[tuple[int, int, int, int, str], ...]


@dataclass(frozen=True)
class About:
    """What a trace says of its run as a whole.

    dtype      what the chip computed in; `stored` is the inputs' type
    tiles      (T_r, T_c) of what a mask leaves: 0 nothing, 1 all, 2 some; by position and in data
    arrays     the counts by array
    exact_peak the closed form of SRAM's peak, None if there is none
    standard   (reads, writes) of standard attention at the same problem and M, by closed form; None
               if there is none, and in standard attention's own trace
    follows    the quantities that steps follow from tile to tile, as the algorithm's record has
               them, each with its kind
    listing    the paper's listing, line by line, from the algorithm's docstring
    source     the functions that ran: (file, number of the first line, lines)
    command    the command line that made it, if one did
    words      what rows and columns of tiles are
    sizes      where these are not queries and keys, the lengths that the run has in place of
               `shape`, by symbol
    cuts       and its block sizes, in place of B_r and B_c
    """

    algorithm: str
    title: str
    direction: str
    shape: Shape
    blocks: Blocks
    M: int
    enforced: bool
    peak: int
    dtype: str
    stored: str
    options: str
    tiles: tuple[tuple[int, ...], ...] | None
    arrays: tuple[Counts, ...]
    exact_peak: int | None
    standard: tuple[int, int] | None
    follows: tuple[tuple[str, Kind], ...]
    listing: tuple[str, ...]
    source: tuple[tuple[str, int, tuple[str, ...]], ...]
    command: str = ""
    notes: tuple[str, ...] = ()
    words: tuple[str, str] = ("queries", "keys")
    sizes: tuple[tuple[str, int], ...] = ()
    cuts: tuple[tuple[str, int], ...] = ()

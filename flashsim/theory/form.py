"""`Form`: what theory knows of an algorithm. Each algorithm's file in this folder ends in its form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from flashsim.checking import check_direction
from flashsim.options import Option
from flashsim.records import Blocks
from flashsim.source import note_line
from flashsim.theory.problem import Arrays, OneHead, Tiles, ceil_div

T = TypeVar("T")


def paper_rows(M: int, d: int, d_v: int) -> int:
    """Return ⌈M/4d⌉. Where d_v ≠ d, its 4d is 2(d + d_v)."""
    return ceil_div(M, 2 * (d + d_v))


@dataclass(frozen=True, kw_only=True)
class Form:
    """The closed forms of one algorithm's pass.

    name, direction  the algorithm's
    proportions      (rows, d) -> line 1's (B_r, B_c)
    rows             (M, d, d_v) -> rows, for the paper's sizes
    traffic          what each array moves, for a set of computed tiles
    peak             the most on chip, in elements
    products         how many products of 2·N_q·N_k·d FLOPs it makes, and of 2·N_q·N_k·d_v
    matmul           FLOPs of products for a set of computed tiles, where its passes cut S in tiles of their own
    extra            elements in HBM besides inputs and outputs, as text, in `EXTRA_SYMBOLS` (`flashsim.theory.formulas`)
    formulas         (reads, writes) of each array as text, in `SYMBOLS`, for no mask, no dropout, and all tiles
    plain            it has neither mask nor dropout
    options          the algorithm's own, as its record declares them
    live             it skips empty tiles
    gives_dS         a backward pass that makes a bias's gradient: each tile of dS is added to dB
    """

    name: str
    direction: str
    proportions: Callable[[int, int], tuple[int, int]]
    rows: Callable[[int, int, int], int] = paper_rows
    traffic: Callable[[OneHead, Blocks, Tiles], Arrays]
    peak: Callable[[OneHead, Blocks, Tiles], int]
    products: tuple[int, int]
    matmul: Callable[[OneHead, Blocks, Tiles], int] | None = None
    extra: str
    formulas: Mapping[str, tuple[str, str]]
    plain: bool = False
    options: tuple[Option, ...] = ()
    live: bool = False
    gives_dS: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for a direction that there is not."""
        check_direction(self.direction)

    def asked(self, function: Callable[..., T], *arguments: object) -> T:
        """Return what one of its functions says; an error in a user's own notes the line of their file."""
        try:
            return function(*arguments)
        except Exception as error:
            note_line(error, function)
            raise

    def whole(self, what: str, found: object, least: int) -> int:
        """Return a number that one of its functions returned. Raises ValueError for what is no whole number from `least` up."""
        if not isinstance(found, int) or found < least:
            raise ValueError(
                f"the {what} of Form {self.name!r} is {found!r}; expected a whole number of at least {least}"
            )
        return found

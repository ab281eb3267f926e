"""Block sizes: line 1 of every algorithm, as a policy.

`Paper` is line 1 as printed. FlashAttention's does not quite fit: K_j, V_j, Q_i, O_i
fill up to M, S_ij takes up to M/4 more, and the statistics a little (the Θ's only need
O(M)). So it reports its peak against M. `Fit` and `Fixed` enforce M.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from flashsim.attention.arguments import check_count, short_repr
from flashsim.attention.shapes import Blocks, Shape
from flashsim.support.sizes import ceil_div as ceil_div
from flashsim.support.sizes import largest_that_fits, smallest_true

LineOne = Callable[[int, int], tuple[int, int]]
"""(rows, d) -> (B_r, B_c): an algorithm's line 1."""


def clipped(shape: Shape, B_r: int, B_c: int) -> Blocks:
    """Return the blocks of these sizes that divide a shape, each clipped to the length
    that it divides.
    """
    return Blocks(B_r, B_c, N_q=shape.N_q, N_k=shape.N_k)


def kv_outer_blocks(rows: int, d: int) -> tuple[int, int]:
    """Return Algorithm 1's (B_r, B_c) where a block of K may have `rows` rows: the
    paper says ⌈M/4d⌉.
    """
    return min(rows, d), rows


def q_outer_blocks(rows: int, d: int) -> tuple[int, int]:
    """Return the same, rows and columns exchanged: (B_r, B_c) where a block of Q may
    have `rows` rows.
    """
    return rows, min(rows, d)


def squares(rows: int, d: int) -> tuple[int, int]:
    """Return (B_r, B_c): squares."""
    return rows, rows


def by_one_key(rows: int, d: int) -> tuple[int, int]:
    """Return (B_r, B_c): one key at a time."""
    return rows, 1


def by_one_query(rows: int, d: int) -> tuple[int, int]:
    """Return (B_r, B_c): one query at a time."""
    return 1, rows


def unknown_loops(rows: int, d: int) -> tuple[int, int]:
    """Return Algorithm 1's. A plan tries `kv_outer_blocks` and `q_outer_blocks` for a
    function whose loops are not known: it has this one.
    """
    return kv_outer_blocks(rows, d)


@dataclass(frozen=True)
class SizingProblem:
    """What a policy decides on: which blocks a program of any kind runs with.

    program     its name
    shape       the lengths, which errors show; of attention, N_q, N_k, d, d_v
    M           SRAM's size in elements
    longest     the most rows that a block can have
    blocks      rows -> line 1's block sizes for a stationary block of that many rows
    fits        (block sizes, M) -> whether a run stays within M: by the closed form of
                its peak, or else by a trial on shapes
    paper_rows  how many rows M allows on paper: the paper's ⌈M/4d⌉
    """

    program: str
    shape: Any
    M: int
    longest: int
    blocks: Callable[[int], Any]
    fits: Callable[[Any, int], bool]
    paper_rows: Callable[[], int] | None = None

    def most_rows(self) -> int:
        """Return the most rows of a stationary block with which a run fits M.

        Raises ValueError, naming the least M, where one row does not.
        """

        def fits(rows: int, M: int) -> bool:
            return self.fits(self.blocks(rows), M)

        rows = largest_that_fits(lambda rows: fits(rows, self.M), self.longest)
        if not rows:
            least = smallest_true(lambda M: fits(1, M))
            raise ValueError(
                f"M = {self.M:,} elements is too small for {self.program!r} even with "
                f"blocks of one row: at {self.shape} it needs at least M = {least:,}"
            )
        return rows


def line_1_of(shape: Shape, line_1: LineOne) -> Callable[[int], Blocks]:
    """Return rows -> blocks, of an attention algorithm's (rows, d) -> (B_r, B_c).

    Where d_v ≠ d the paper is silent. Its 4d, the width of K_j, V_j, Q_i, O_i together,
    is then 2(d + d_v), and the bound d on B_r, which keeps S_ij within M/4, is
    (d + d_v)/2.
    """
    width = ceil_div(shape.d + shape.d_v, 2)

    def blocks(rows: int) -> Blocks:
        return clipped(shape, *line_1(rows, width))

    return blocks


def paper_rows(M: int, d: int, d_v: int) -> int:
    """Return ⌈M/2(d + d_v)⌉, which is ⌈M/4d⌉. ValueError below M = max(d, d_v), the
    theorems' range.
    """
    if max(d, d_v) > M:
        raise ValueError(
            f"M = {M:,} elements is too small: the paper takes M ≥ d, room for one "
            "row, so here at "
            f"least {max(d, d_v):,}"
        )
    return -(-M // (2 * (d + d_v)))


class Sizing(Protocol):
    """A policy for line 1."""

    @property
    def enforced(self) -> bool:
        """Whether exceeding M raises `SramOverflow`; otherwise the peak is only
        reported.
        """

    def __call__(self, problem: SizingProblem) -> Any:
        """Return the blocks to run with."""


@dataclass(frozen=True)
class Paper:
    """B_c = ⌈M/4d⌉, B_r = min(⌈M/4d⌉, d), clipped to N. ValueError below M = max(d,
    d_v), the theorems' range.

    "small_cache" and "small_cache_hybrid", which are for smaller M, have sizes of their
    own, and no such least M.
    """

    enforced: bool = False

    def __call__(self, problem: SizingProblem) -> Any:
        assert problem.paper_rows is not None  # whoever offers "paper" has them
        return problem.blocks(problem.paper_rows())


@dataclass(frozen=True)
class Fit:
    """Line 1's proportions, as large as truly fits M. ValueError, naming the least M,
    where one row does not fit.
    """

    enforced: bool = True

    def __call__(self, problem: SizingProblem) -> Any:
        return problem.blocks(problem.most_rows())


@dataclass(frozen=True)
class Fixed:
    """The caller's own (B_r, B_c), clipped to the lengths."""

    B_r: int
    B_c: int
    enforced: bool = True

    def __post_init__(self) -> None:
        check_count("Fixed's B_r", self.B_r)
        check_count("Fixed's B_c", self.B_c)

    def __call__(self, problem: SizingProblem) -> Blocks:
        return clipped(problem.shape, self.B_r, self.B_c)


@dataclass(frozen=True)
class SizingOverride:
    """Another policy's blocks, checked, and whether exceeding M is an error as the
    caller says.
    """

    policy: Sizing
    enforced: bool

    def __call__(self, problem: SizingProblem) -> Blocks:
        sizes = self.policy(problem)
        if not isinstance(sizes, Blocks):
            raise ValueError(
                f"sizing returned {short_repr(sizes)}; expected flashsim.Blocks"
            )
        shape = problem.shape
        if (sizes.N_q, sizes.N_k) != (shape.N_q, shape.N_k):
            lengths = f"N_q = {shape.N_q:,}, N_k = {shape.N_k:,}"
            raise ValueError(
                f"sizing returned {sizes}; expected blocks of {lengths}, "
                "problem.shape's"
            )
        return sizes


def who_chose(sizing: Sizing) -> str:
    """Say who chose the blocks: "fit", "paper", "given", or what a policy of the user's
    is called.
    """
    if isinstance(sizing, SizingOverride):
        return who_chose(sizing.policy)
    known = {Fit: "fit", Paper: "paper", Fixed: "given"}
    return (
        known.get(type(sizing))
        or getattr(sizing, "__name__", None)
        or type(sizing).__name__
    )

"""What is optimal: the loop order and the block sizes that move the fewest elements and truly fit
an SRAM of M.

    tuned = tune(N=4096, d=64, M=25_600)
    tuned.best.algorithm, tuned.best.blocks, tuned.best.accesses

In the model only traffic costs: the best tiles are those that re-read least, however narrow. So one
side of the tile is often a single row, which no matrix unit likes; `tune(..., least=16)` asks for
tiles of at least that on each side.

Accesses depend on the blocks by T_r and T_c alone (by which tiles are live, and, for a small cache,
by how many pieces of B_c columns d and d_v make), so the search tries every T_c with the most rows
that fit, and every T_r with the most columns, by the closed forms of `theory`, or, for an algorithm
of one's own that has none, by running it on shapes; the winner is then run so, M enforced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from heapq import merge
from itertools import takewhile
from math import isqrt
from types import ModuleType
from typing import Any, Unpack

from flashsim import theory
from flashsim.algorithms import FORWARD, PASSES, Algorithm
from flashsim.algorithms.blocks import Fixed, clipped
from flashsim.algorithms.own import forward_of, is_user_defined, resolve
from flashsim.attention.arguments import check_callback, check_count, check_direction, shown
from flashsim.attention.masks.allowed import allowed_pairs
from flashsim.attention.masks.rules import All, Causal, Mask
from flashsim.attention.options import Options, check_options
from flashsim.attention.problem import Problem
from flashsim.attention.shapes import Blocks, Shape
from flashsim.simulate.api import count
from flashsim.simulate.results import Result
from flashsim.simulate.shadow import trial_of
from flashsim.support.exporting import Exported, html_table
from flashsim.support.sizes import Size
from flashsim.theory.bounds.backward import BackwardBound
from flashsim.theory.bounds.forward import LowerBound
from flashsim.theory.form import FormAtProblem

MOST_TRIED = 2**22
OnTried = Callable[[int, int], None]


@dataclass(frozen=True)
class Choice:
    """An algorithm with its blocks, and what that costs: elements moved, and the most on chip."""

    algorithm: str
    loops: str
    blocks: Blocks
    accesses: int
    peak: int


@dataclass(frozen=True, repr=False)
class Tuned(Exported):
    """What `tune` found.

    mask        as it is written, "Causal()"; "" for none
    best        the fewest accesses of all
    by_loops    each algorithm's best; one that does not fit M at all is absent
    paper       each with the sizes of its line 1, which may exceed M; absent where M is too small
                for them
    compulsory  inputs read once and outputs written once: no algorithm moves less
    bound       what no schedule moves less than (`flashsim.prove`); None where that would take too
                long
    """

    shape: Shape
    M: int
    direction: str
    causal: bool
    mask: str
    compulsory: int
    bound: int | None
    by_loops: Mapping[str, Choice]
    paper: Mapping[str, Choice]
    best: Choice = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "best", min(self.by_loops.values(), key=_cost))

    def __repr__(self) -> str:
        best = self.best
        bound = (
            ""
            if self.bound is None
            else f", {best.accesses / self.bound:.3f} × the lower bound {self.bound:,}"
        )
        fewest = (
            f"{best.algorithm!r} in blocks of {best.blocks.B_r:,} × {best.blocks.B_c:,} moves "
            f"{best.accesses:,} elements"
        )
        return f"Tuned({self._asked}: {fewest}{bound})"

    def _repr_html_(self) -> str:
        rows = []
        for one in sorted(self.by_loops.values(), key=_cost):
            blocks = f"{one.blocks.B_r:,} × {one.blocks.B_c:,}"
            peak = f"{one.peak / self.M:.0%}"
            rows.append((one.algorithm, one.loops, blocks, one.accesses, peak))
        notes = [f"compulsory: {self.compulsory:,} elements"]
        if self.bound is not None:
            notes.append(f"lower bound: {self.bound:,} elements; no schedule moves less")
        return html_table(
            f"Fewest: {self._asked}",
            ("name", "loops", "B_r × B_c", "accesses", "peak of M"),
            rows,
            notes,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what was found as plain data: what `flashsim tune --json` writes."""
        choices = {name: self._written(choice) for name, choice in self.by_loops.items()}
        paper = {
            name: self._written(choice) | {"over_M_elements": max(choice.peak - self.M, 0)}
            for name, choice in self.paper.items()
        }
        return asdict(self) | {
            "by_loops": choices,
            "paper": paper,
            "best": self._written(self.best),
        }

    @staticmethod
    def _written(choice: Choice) -> dict[str, Any]:
        return asdict(choice) | {"blocks": choice.blocks.to_dict()}

    @property
    def _asked(self) -> str:
        shape = self.shape
        mask = "causal, " if self.causal else f"{self.mask}, " if self.mask else ""
        sizes = f"N_q = {shape.N_q:,}, N_k = {shape.N_k:,}, d = {shape.d:,}"
        return f"{self.direction}, {mask}{sizes}, M = {self.M:,}"


@dataclass(frozen=True)
class _Search:
    """What one algorithm costs at one problem, by blocks."""

    algorithm: Algorithm
    shape: Shape
    options: Mapping[str, Any]

    @cached_property
    def posed(self) -> FormAtProblem | None:
        """The closed forms at this problem, or None where there are none."""
        algorithm, options = self.counted
        direction = options.pop("direction")
        try:
            form = theory.form_of(algorithm, direction)
        except theory.NoClosedForm:
            return None
        own = {option.name: options.pop(option.name, option.default) for option in form.options}
        return FormAtProblem.of(form, Problem.of(**vars(self.shape), **options), own)

    @cached_property
    def whole(self) -> FormAtProblem | None:
        """The same without a mask."""
        return _Search(self.algorithm, self.shape, {**self.options, "mask": None}).posed

    @property
    def counted(self) -> tuple[str | Algorithm, dict[str, Any]]:
        """What to count, and its options: Algorithm 2 skips as Algorithm 5 does, where there is
        what to skip.
        """
        if self.algorithm.skips_as and self.options["mask"] is not None:
            return self.algorithm.skips_as, {**self.options, "block_mask": "live"}
        return self.algorithm, dict(self.options)

    def choice(self, **sizes: Any) -> Choice:
        """Return what it costs, whether it fits or not."""
        algorithm, options = self.counted
        at = cost(algorithm, **vars(self.shape), **options, **sizes)
        loops = self.algorithm.loops or self.algorithm.title
        return Choice(self.algorithm.name, loops, at.blocks, at.hbm.accesses, at.sram.peak)

    def fits(self, B_r: int, B_c: int) -> bool:
        """Say whether all tiles fit: which are skipped does not change the peak, unless a mask
        skips all.
        """
        how = {**self.options, "mask": None}
        M = int(self.options["M"])
        if self.whole is None:
            return cost(self.algorithm, **vars(self.shape), **how, blocks=(B_r, B_c)).sram.peak <= M
        return self.whole.peak(B_r, B_c) <= M

    def candidates(self, least: int) -> Iterator[tuple[int, int]]:
        """Yield each (B_r, B_c) that fits and can be the best: of one side every T, of the other as
        many as fit.

        Where tiles are skipped, narrow ones hug the diagonal: so every size of one side with the
        least of the other, too.
        """
        n = self.shape.N_q
        k = self.shape.N_k
        B_r = n
        pieces = (takewhile(k.__ge__, sides(width)) for width in (self.shape.d, self.shape.d_v))
        for B_c in merge(sides(k, least), *pieces):  # T_c, T_d, T_v
            if B_c < min(least, k):
                continue
            B_r = _most(partial(self.fits, B_c=B_c), min(least, n), B_r)
            if not B_r:
                break
            # the more rows, the fewer panels of keys
            yield from ((_tight(n, B_r, least), B_c), (B_r, B_c))
        B_c = k
        for B_r in sides(n, least):
            B_c = _most(partial(self.fits, B_r), min(least, k), B_c)
            if not B_c:
                break
            # narrow blocks leave the most room to pin
            yield from ((B_r, _tight(k, B_c, least)), (B_r, min(least, k)))
        if self.options["mask"] is not None:
            thin_r = min(least, n)
            thin_c = min(least, k)
            yield from (
                (B_r, thin_c)
                for B_r in range(thin_r, _most(partial(self.fits, B_c=thin_c), thin_r, n) + 1)
            )
            yield from (
                (thin_r, B_c)
                for B_c in range(thin_c, _most(partial(self.fits, thin_r), thin_c, k) + 1)
            )

    def best(self, least: int) -> Choice | None:
        """Return the choice of fewest accesses among the candidates; None if there is none."""
        tried = [
            blocks
            for blocks in {*self.candidates(least)}
            if least == 1 or self._all_at_least(least, blocks)
        ]
        if self.posed is not None:
            moved = {blocks: self.posed.accesses(*blocks) for blocks in tried}
            fewest = min(moved.values(), default=0)
            tried = [blocks for blocks in tried if moved[blocks] == fewest]
        return min((self.choice(blocks=blocks) for blocks in tried), key=_cost, default=None)

    def _all_at_least(self, least: int, blocks: tuple[int, int]) -> bool:
        """Say whether tiles are that large in each pass: those of single rows are not."""
        n = self.shape.N_q
        k = self.shape.N_k
        cuts = self.algorithm.cuts(clipped(self.shape, *blocks), n, k)
        return all(cut.B_r >= min(least, n) and cut.B_c >= min(least, k) for cut in cuts)


def cost(
    algorithm: str | Algorithm, *, direction: str = "forward", **arguments: Any
) -> theory.Exact | Result:
    """Return what a run costs, whether it fits M or not: by the closed form, or, where there is
    none, by running it on shapes.

    Arguments as for `flashsim.count`.
    """
    try:
        form = theory.form_of(algorithm, direction)
    except ValueError:
        if arguments.get("blocks") is not None:
            B_r, B_c = arguments.pop("blocks")
            arguments["sizing"] = Fixed(B_r, B_c, enforced=False)
        return count(_unnoticed(algorithm, direction), direction=direction, **arguments)
    return theory.exact(form, direction=direction, **arguments)


def tune(
    problem: Problem | None = None,
    *,
    N: int | None = None,
    d: int | None = None,
    M: Size | None = None,
    N_q: int | None = None,
    N_k: int | None = None,
    d_v: int | None = None,
    dtype: Any = "float32",
    direction: str = "forward",
    causal: bool = False,
    mask: Mask | None = None,
    dropout_p: float = 0.0,
    least: int = 1,
    algorithms: Iterable[str | Algorithm | Callable[..., Any]] = (),
    on_tried: OnTried | None = None,
    **own: Unpack[Options],
) -> Tuned:
    """Find the loop order and (B_r, B_c) of fewest accesses whose peak is at most M elements, for
    one head.

    Arguments as for `flashsim.count`, or a `flashsim.Problem`, of one of whose heads it is then;
    `mask` is one of positions, such as `flashsim.Causal(offset=0)`. Empty tiles are skipped.
    `least` is the fewest rows and columns of a tile (clipped to the lengths). `algorithms` are
    tried besides those whose records name their loops: names, records, or functions of one's own.
    `on_tried` is called with (algorithms done, algorithms in all). `own` are options of algorithms
    that have any, as in `forward`: each is given those that it has, and one that none has is a
    TypeError. Of equally few accesses, the fewest tiles win, then the lowest peak.

    Without a mask, no block sizes at all move less than those found. With one that skips tiles,
    that holds for `causal` with `least` of 1, for algorithms of one sweep ("q_outer_two_pass" and
    "q_outer_streamed" make two). In other cases no sizes that were tried move less. The same goes
    for "snake", and, with `least` above 1, for "q_outer_pinned" and "streamed". With such a
    `least`, "q_outer_streamed", "q_outer_stored", "hybrid_streamed" and "streamed" are left out
    backward, as they have tiles of one row. Of an algorithm of your own it is assumed that its peak
    grows with the blocks.

    Raises ValueError for arguments that make no sense, where not even tiles of `least` × `least`
    fit, or where more than 2²² block sizes would have to be tried.
    """
    direction = check_direction(direction)
    on_tried = check_callback("on_tried", on_tried)
    least = check_count("least", least)
    if isinstance(problem, str | Algorithm) or callable(problem):
        raise ValueError(
            f"problem is {shown(problem)}; expected a flashsim.Problem. Algorithms are named so: "
            "algorithms=[…]"
        )
    asked = Problem.from_arguments(
        problem,
        N=N,
        d=d,
        M=M,
        N_q=N_q,
        N_k=N_k,
        d_v=d_v,
        dtype=dtype,
        causal=causal,
        mask=mask,
        dropout_p=dropout_p,
    )
    shape = asked.shape
    rule = asked.mask
    M = asked.M
    stored = asked.dtype
    if asked.in_hbm:
        raise ValueError(
            f"mask is {rule!r}; expected a mask that depends on positions alone, without an array "
            "in HBM"
        )
    masked = None if isinstance(rule, All) else rule
    sizes = sum(
        min(2 * isqrt(N), M) + (masked is not None) * min(N, M) for N in (shape.N_q, shape.N_k)
    )
    if sizes > MOST_TRIED:
        raise ValueError(
            f"N_q = {shape.N_q:,}, N_k = {shape.N_k:,} and M = {M:,} leave up to {sizes:,} block "
            "sizes to try, for hours; "
            f"expected at most {MOST_TRIED:,}. Take a smaller M or shorter lengths, or "
            "flashsim.count a few block sizes"
        )
    options: dict[str, Any] = {
        "M": M,
        "dtype": stored.name,
        "direction": direction,
        "mask": masked,
        "dropout_p": asked.dropout_p,
    }
    found: dict[str, Choice] = {}
    paper: dict[str, Choice] = {}
    tried = _tried(direction, algorithms)
    _check_own(own, tried)
    for done, algorithm in enumerate(tried):
        search = _Search(algorithm, shape, options | _own(algorithm, own))
        best = search.best(least)
        if best is not None:
            _confirm(search, best)
            found[algorithm.name] = best
        try:
            algorithm.rows(M, shape.d, shape.d_v)
        except ValueError:  # M is too small for line 1's sizes
            pass
        else:
            paper[algorithm.name] = search.choice(sizing="paper")
        if on_tried is not None:
            on_tried(done + 1, len(tried))
    if not found:
        raise ValueError(
            f"M = {M:,} elements is too small: no algorithm here fits it with tiles of {least} × "
            f"{least} at d = {shape.d}"
        )
    compulsory = theory.compulsory(shape.N_q, shape.N_k, shape.d, shape.d_v, direction)
    said = "" if masked is None else repr(masked)
    try:
        bound = bound_of(rule, shape, M, direction)[0].accesses
    except ValueError:  # the mask's pairs are too many to look at
        bound = None
    return Tuned(shape, M, direction, masked == Causal(), said, compulsory, bound, found, paper)


def _unnoticed(what: str | Algorithm, direction: str) -> Algorithm:
    """Return an algorithm to count with; of a user's, the shadow, as blocks are tried in which
    no debugger should stop.
    """
    algorithm = resolve(what, direction)
    return trial_of(algorithm) if is_user_defined(algorithm) else algorithm


def bound_of(
    rule: Mask, shape: Shape, M: int, direction: str
) -> tuple[LowerBound | BackwardBound, str, int, int]:
    """Return the lower bound; what is allowed, "all", "causal" or "given"; and how many queries and
    keys have any.

    Raises ValueError where the mask's pairs are too many to look at.
    """
    allowed, pairs, queries, keys = allowed_pairs(rule, shape)
    lower = theory.lower_bound if direction == "forward" else theory.lower_bound_backward
    return (
        lower(**asdict(shape), M=M, pairs=pairs, queries=queries, keys=keys),
        allowed,
        queries,
        keys,
    )


def best_of(
    name: str | Algorithm | Callable[..., Any],
    *,
    N: int,
    d: int,
    M: int,
    direction: str = "forward",
) -> Choice | None:
    """Return one algorithm's choice of fewest accesses that fits M, at N_q = N_k = N and d_v =
    d; None if nothing fits.
    """
    options = {"M": M, "dtype": "float32", "direction": direction, "mask": None, "dropout_p": 0.0}
    return _Search(resolve(name, direction), Shape(N, N, d, d), options).best(1)


def sides(N: int, least: int = 1) -> Iterator[int]:
    """Yield the block sizes that matter for N rows: for each number of blocks ⌈N/B⌉, the
    smallest B ≥ `least`; in order.
    """
    least = min(least, N)
    blocks = -(-N // least)
    while blocks >= 1:
        B = max(-(-N // blocks), least)
        yield B
        blocks = -(-N // B) - 1


def _most(fits: Callable[[int], bool], least: int, most: int) -> int:
    """Return the largest B from `least` to `most` that fits, 0 if not even `least` does. It is
    sought from `most` down.
    """
    low = most
    high = most + 1
    step = 1
    while not fits(low):
        if low == least:
            return 0
        low, high, step = max(low - step, least), low, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _tight(N: int, B: int, least: int) -> int:
    """Return the smallest block size that makes as few blocks of N as B does."""
    return max(-(-N // -(-N // B)), min(least, N))


def _cost(choice: Choice) -> tuple[int, int, int]:
    return choice.accesses, choice.blocks.tiles, choice.peak


def _tried(
    direction: str, algorithms: Iterable[str | Algorithm | Callable[..., Any]]
) -> list[Algorithm]:
    if isinstance(algorithms, str) or not isinstance(algorithms, Iterable):
        raise ValueError(
            f"algorithms is {shown(algorithms)}; expected several: [{shown(algorithms)}]"
        )
    known = PASSES["forward" if direction == "forward" else "backward"]
    tried = {name: algorithm for name, algorithm in known.items() if algorithm.loops}
    tried |= {
        algorithm.name: algorithm
        for algorithm in (resolve(given, direction) for given in algorithms)
    }
    return list(tried.values())


def _own(algorithm: Algorithm, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the options that an algorithm has."""
    names = {option.name for option in forward_of(algorithm).options}
    return {name: value for name, value in options.items() if name in names}


def _check_own(options: Mapping[str, Any], tried: Sequence[Algorithm]) -> None:
    """Raise TypeError or ValueError for an option that none of the algorithms has."""
    taken = {name for algorithm in tried for name in _own(algorithm, options)}
    for name in options:
        if name not in taken:
            check_options(tune, {name: options[name]}, "what is tuned", tried[-1], FORWARD)


def _confirm(search: _Search, choice: Choice) -> None:
    """Count the choice by running it on shapes, M enforced: SramOverflow if it did not fit."""
    algorithm, options = search.counted
    blocks = choice.blocks.B_r, choice.blocks.B_c
    tally = count(
        _unnoticed(algorithm, search.algorithm.direction),
        **asdict(search.shape),
        **options,
        blocks=blocks,
    )
    if (tally.hbm.accesses, tally.sram.peak) != (choice.accesses, choice.peak):
        raise ValueError(
            f"in blocks of {blocks[0]} × {blocks[1]}, {choice.algorithm!r} makes "
            f"{tally.hbm.accesses:,} accesses, with a peak "
            f"of {tally.sram.peak:,}; its closed form says {choice.accesses:,} and {choice.peak:,}"
        )


class _Callable(ModuleType):
    """This module, which may be called as its function: `flashsim.tune(N=1024, d=64)` is
    `flashsim.tune.tune(N=1024, d=64)`.

    Type checkers do not know of it.
    """

    def __call__(self, *given: Any, **options: Any) -> Tuned:
        return tune(*given, **options)


sys.modules[__name__].__class__ = _Callable

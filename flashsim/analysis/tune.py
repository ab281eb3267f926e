"""The loop order and the block sizes that move the fewest elements, and whose peak fits an SRAM of
M: `tune`.

    tuned = tune(N=4096, d=64, M=25_600)
    tuned.best.algorithm, tuned.best.blocks, tuned.best.accesses

In the model only traffic costs: the best tiles are those that re-read least, however narrow. So one
side of the tile is often a single row, on which a matrix unit is slow; `tune(..., least=16)` asks
for tiles of at least 16 rows and columns.

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
from flashsim.attention.arguments import check_callback, check_count, check_direction, short_repr
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

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self) | {"blocks": self.blocks.to_dict()}


@dataclass(frozen=True, repr=False)
class Tuned(Exported):
    """The result of `tune`.

    mask        its repr, such as "Causal()"; "" for none
    best        the choice of fewest accesses of all
    by_loops    each algorithm's best choice; an algorithm of which nothing fits M is absent
    paper       each algorithm with the sizes of its line 1, which may exceed M; absent where M is
                too small for them
    compulsory  inputs read once and outputs written once: no algorithm moves less
    bound       the lower bound of any schedule (`flashsim.prove`); None where that would take too
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
        fewest = (
            f"{best.algorithm!r} in blocks of {_in_words(best.blocks)} moves {best.accesses:,} "
            "elements"
        )
        bound = ""
        if self.bound is not None:
            bound = f", {best.accesses / self.bound:.3f} × the lower bound {self.bound:,}"
        return f"Tuned({self._problem}: {fewest}{bound})"

    def _repr_html_(self) -> str:
        rows = []
        for choice in sorted(self.by_loops.values(), key=_cost):
            blocks = _in_words(choice.blocks)
            peak = f"{choice.peak / self.M:.0%}"
            rows.append((choice.algorithm, choice.loops, blocks, choice.accesses, peak))
        notes = [f"compulsory: {self.compulsory:,} elements"]
        if self.bound is not None:
            notes.append(f"lower bound: {self.bound:,} elements; no schedule moves less")
        return html_table(
            f"Fewest: {self._problem}",
            ("name", "loops", "B_r × B_c", "accesses", "peak of M"),
            rows,
            notes,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data: what `flashsim tune --json` writes."""
        by_loops = {name: choice.to_dict() for name, choice in self.by_loops.items()}
        paper = {}
        for name, choice in self.paper.items():
            excess = max(choice.peak - self.M, 0)
            paper[name] = {**choice.to_dict(), "over_M_elements": excess}
        records = {"by_loops": by_loops, "paper": paper, "best": self.best.to_dict()}
        return asdict(self) | records

    @property
    def _problem(self) -> str:
        shape = self.shape
        sizes = f"N_q = {shape.N_q:,}, N_k = {shape.N_k:,}, d = {shape.d:,}, M = {self.M:,}"
        mask = "causal" if self.causal else self.mask
        parts = [self.direction, mask, sizes]
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class _Search:
    """The costs of one algorithm at one problem, by blocks."""

    algorithm: Algorithm
    shape: Shape
    options: Mapping[str, Any]

    @cached_property
    def form(self) -> FormAtProblem | None:
        """The closed form at this problem, or None where there is none."""
        algorithm, options = self.arguments
        direction = options.pop("direction")
        try:
            form = theory.form_of(algorithm, direction)
        except theory.NoClosedForm:
            return None
        own = {}
        for option in form.options:
            own[option.name] = options.pop(option.name, option.default)
        return FormAtProblem.of(form, Problem.of(**vars(self.shape), **options), own)

    @cached_property
    def unmasked_form(self) -> FormAtProblem | None:
        """The same without a mask."""
        return _Search(self.algorithm, self.shape, {**self.options, "mask": None}).form

    @property
    def arguments(self) -> tuple[str | Algorithm, dict[str, Any]]:
        """The algorithm to count, and its options. Where a mask skips tiles, Algorithm 2 is counted
        as Algorithm 5, which skips them.
        """
        if self.algorithm.skips_as and self.options["mask"] is not None:
            return self.algorithm.skips_as, {**self.options, "block_mask": "live"}
        return self.algorithm, dict(self.options)

    def choice(self, **sizes: Any) -> Choice:
        """Return what it costs, whether it fits or not."""
        algorithm, options = self.arguments
        result = cost(algorithm, **vars(self.shape), **options, **sizes)
        loops = self.algorithm.loops or self.algorithm.title
        accesses = result.hbm.accesses
        return Choice(self.algorithm.name, loops, result.blocks, accesses, result.sram.peak)

    def fits(self, B_r: int, B_c: int) -> bool:
        """Return whether all tiles fit, without a mask. Skipped tiles do not change the peak,
        unless all are skipped.
        """
        M = int(self.options["M"])
        if self.unmasked_form is not None:
            return self.unmasked_form.peak(B_r, B_c) <= M
        options = {**self.options, "mask": None, "blocks": (B_r, B_c)}
        return cost(self.algorithm, **vars(self.shape), **options).sram.peak <= M

    def candidates(self, least: int) -> Iterator[tuple[int, int]]:
        """Yield each (B_r, B_c) that fits and can be the best: for every number of blocks of one
        side, the largest other side that fits.

        Where tiles are skipped, narrow ones hug the diagonal: so every size of one side with the
        least of the other, too.
        """
        yield from self._by_keys(least)
        yield from self._by_queries(least)
        if self.options["mask"] is not None:
            yield from self._narrow(least)

    def _by_keys(self, least: int) -> Iterator[tuple[int, int]]:
        """Yield the candidates for each B_c that makes another number of blocks of keys, or of
        pieces of d or d_v columns.
        """
        N_q = self.shape.N_q
        N_k = self.shape.N_k
        B_r = N_q
        widths = (sides(self.shape.d), sides(self.shape.d_v))
        pieces = (takewhile(N_k.__ge__, each) for each in widths)
        for B_c in merge(sides(N_k, least), *pieces):
            if B_c < min(least, N_k):
                continue
            B_r = _largest_that_fits(partial(self.fits, B_c=B_c), min(least, N_q), B_r)
            if not B_r:
                break
            yield _tight(N_q, B_r, least), B_c
            yield B_r, B_c  # the more rows, the fewer panels of keys

    def _by_queries(self, least: int) -> Iterator[tuple[int, int]]:
        """Yield the candidates for each B_r that makes another number of blocks of queries."""
        N_k = self.shape.N_k
        B_c = N_k
        for B_r in sides(self.shape.N_q, least):
            B_c = _largest_that_fits(partial(self.fits, B_r), min(least, N_k), B_c)
            if not B_c:
                break
            yield B_r, _tight(N_k, B_c, least)
            yield B_r, min(least, N_k)  # narrow blocks leave the most room to pin

    def _narrow(self, least: int) -> Iterator[tuple[int, int]]:
        """Yield all tiles that fit of which one side is the least."""
        N_q = self.shape.N_q
        N_k = self.shape.N_k
        smallest_B_r = min(least, N_q)
        smallest_B_c = min(least, N_k)
        fits_rows = partial(self.fits, B_c=smallest_B_c)
        for B_r in range(smallest_B_r, _largest_that_fits(fits_rows, smallest_B_r, N_q) + 1):
            yield B_r, smallest_B_c
        fits_columns = partial(self.fits, smallest_B_r)
        for B_c in range(smallest_B_c, _largest_that_fits(fits_columns, smallest_B_c, N_k) + 1):
            yield smallest_B_r, B_c

    def best(self, least: int) -> Choice | None:
        """Return the choice of fewest accesses among the candidates; None if there is none."""
        candidates = set(self.candidates(least))
        if least > 1:
            candidates = {blocks for blocks in candidates if self._all_at_least(least, blocks)}
        if self.form is not None:
            accesses = {blocks: self.form.accesses(*blocks) for blocks in candidates}
            fewest = min(accesses.values(), default=0)
            candidates = {blocks for blocks in candidates if accesses[blocks] == fewest}
        choices = (self.choice(blocks=blocks) for blocks in candidates)
        return min(choices, key=_cost, default=None)

    def _all_at_least(self, least: int, blocks: tuple[int, int]) -> bool:
        """Return whether tiles are that large in each pass: tiles of single rows are not."""
        N_q = self.shape.N_q
        N_k = self.shape.N_k
        cuts = self.algorithm.cuts(clipped(self.shape, *blocks), N_q, N_k)
        has_rows = all(cut.B_r >= min(least, N_q) for cut in cuts)
        return has_rows and all(cut.B_c >= min(least, N_k) for cut in cuts)


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
        return count(_for_trials(algorithm, direction), direction=direction, **arguments)
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
            f"problem is {short_repr(problem)}; expected a flashsim.Problem. Algorithms are "
            "named so: algorithms=[…]"
        )
    problem = Problem.from_arguments(
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
    if problem.in_hbm:
        raise ValueError(
            f"mask is {problem.mask!r}; expected a mask that depends on positions alone, without "
            "an array in HBM"
        )
    shape = problem.shape
    M = problem.M
    mask = None if isinstance(problem.mask, All) else problem.mask
    _check_number_of_sizes(shape, M, has_mask=mask is not None)
    options: dict[str, Any] = {
        "M": M,
        "dtype": problem.dtype.name,
        "direction": direction,
        "mask": mask,
        "dropout_p": problem.dropout_p,
    }
    by_loops: dict[str, Choice] = {}
    paper: dict[str, Choice] = {}
    records = _records(direction, algorithms)
    _check_own(own, records)
    for number, algorithm in enumerate(records, 1):
        search = _Search(algorithm, shape, options | _own(algorithm, own))
        best = search.best(least)
        if best is not None:
            _confirm(search, best)
            by_loops[algorithm.name] = best
        try:
            algorithm.rows(M, shape.d, shape.d_v)
        except ValueError:  # M is too small for line 1's sizes
            pass
        else:
            paper[algorithm.name] = search.choice(sizing="paper")
        if on_tried is not None:
            on_tried(number, len(records))
    if not by_loops:
        raise ValueError(
            f"M = {M:,} elements is too small: no algorithm here fits it with tiles of {least} × "
            f"{least} at d = {shape.d}"
        )
    try:
        bound = bound_of(problem.mask, shape, M, direction)[0].accesses
    except ValueError:  # the mask's pairs are too many to look at
        bound = None
    return Tuned(
        shape,
        M,
        direction,
        causal=mask == Causal(),
        mask="" if mask is None else repr(mask),
        compulsory=theory.compulsory(shape.N_q, shape.N_k, shape.d, shape.d_v, direction),
        bound=bound,
        by_loops=by_loops,
        paper=paper,
    )


def _check_number_of_sizes(shape: Shape, M: int, *, has_mask: bool) -> None:
    """Raise ValueError where a search would take hours."""
    sizes = 0
    for N in (shape.N_q, shape.N_k):
        sizes += min(2 * isqrt(N), M)
        if has_mask:
            sizes += min(N, M)
    if sizes > MOST_TRIED:
        raise ValueError(
            f"N_q = {shape.N_q:,}, N_k = {shape.N_k:,} and M = {M:,} leave up to {sizes:,} block "
            f"sizes to try, for hours; expected at most {MOST_TRIED:,}. Take a smaller M or "
            "shorter lengths, or flashsim.count a few block sizes"
        )


def _for_trials(algorithm: str | Algorithm, direction: str) -> Algorithm:
    """Return an algorithm to count with. A user's function is its shadow: a debugger should not
    stop in blocks that are only tried.
    """
    record = resolve(algorithm, direction)
    return trial_of(record) if is_user_defined(record) else record


def bound_of(
    rule: Mask, shape: Shape, M: int, direction: str
) -> tuple[LowerBound | BackwardBound, str, int, int]:
    """Return the lower bound; which pairs are allowed, "all", "causal" or "given"; and how many
    queries and keys have any.

    Raises ValueError where the mask's pairs are too many to look at.
    """
    allowed, pairs, queries, keys = allowed_pairs(rule, shape)
    lower = theory.lower_bound if direction == "forward" else theory.lower_bound_backward
    bound = lower(**asdict(shape), M=M, pairs=pairs, queries=queries, keys=keys)
    return bound, allowed, queries, keys


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


def _largest_that_fits(fits: Callable[[int], bool], smallest: int, largest: int) -> int:
    """Return the largest B from `smallest` to `largest` that fits, 0 if not even `smallest` does.

    The search goes down from `largest` with steps that double, and then halves the last step.
    """
    fitting = largest
    too_large = largest + 1
    step = 1
    while not fits(fitting):
        if fitting == smallest:
            return 0
        too_large = fitting
        fitting = max(fitting - step, smallest)
        step *= 2
    while too_large - fitting > 1:
        middle = (fitting + too_large) // 2
        if fits(middle):
            fitting = middle
        else:
            too_large = middle
    return fitting


def _tight(N: int, B: int, least: int) -> int:
    """Return the smallest block size that makes as few blocks of N as B does."""
    return max(-(-N // -(-N // B)), min(least, N))


def _in_words(blocks: Blocks) -> str:
    return f"{blocks.B_r:,} × {blocks.B_c:,}"


def _cost(choice: Choice) -> tuple[int, int, int]:
    return choice.accesses, choice.blocks.tiles, choice.peak


def _records(
    direction: str, algorithms: Iterable[str | Algorithm | Callable[..., Any]]
) -> list[Algorithm]:
    if isinstance(algorithms, str) or not isinstance(algorithms, Iterable):
        raise ValueError(
            f"algorithms is {short_repr(algorithms)}; expected several: [{short_repr(algorithms)}]"
        )
    records = {}
    for name, record in PASSES["forward" if direction == "forward" else "backward"].items():
        if record.loops:
            records[name] = record
    for algorithm in algorithms:
        record = resolve(algorithm, direction)
        records[record.name] = record
    return list(records.values())


def _own(algorithm: Algorithm, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the options that an algorithm has."""
    names = {option.name for option in forward_of(algorithm).options}
    return {name: value for name, value in options.items() if name in names}


def _check_own(options: Mapping[str, Any], algorithms: Sequence[Algorithm]) -> None:
    """Raise TypeError or ValueError for an option that none of the algorithms has."""
    names = {name for algorithm in algorithms for name in _own(algorithm, options)}
    for name in options:
        if name not in names:
            check_options(tune, {name: options[name]}, "what is tuned", algorithms[-1], FORWARD)


def _confirm(search: _Search, choice: Choice) -> None:
    """Count the choice by running it on shapes, M enforced: SramOverflow if it did not fit."""
    algorithm, options = search.arguments
    blocks = (choice.blocks.B_r, choice.blocks.B_c)
    result = count(
        _for_trials(algorithm, search.algorithm.direction),
        **asdict(search.shape),
        **options,
        blocks=blocks,
    )
    accesses = result.hbm.accesses
    peak = result.sram.peak
    if (accesses, peak) != (choice.accesses, choice.peak):
        raise ValueError(
            f"in blocks of {blocks[0]} × {blocks[1]}, {choice.algorithm!r} makes {accesses:,} "
            f"accesses, with a peak of {peak:,}; its closed form says {choice.accesses:,} and "
            f"{choice.peak:,}"
        )


class _Callable(ModuleType):
    """This module, which may be called as its function: `flashsim.tune(N=1024, d=64)` is
    `flashsim.tune.tune(N=1024, d=64)`.

    Type checkers do not know of it.
    """

    def __call__(self, *problem: Any, **options: Any) -> Tuned:
        return tune(*problem, **options)


sys.modules[__name__].__class__ = _Callable

"""`Form`: what theory knows of an algorithm; and all of them: each algorithm's file in this
folder ends in its form.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from flashsim.attention.arguments import check_direction, checked, is_one_of, shown
from flashsim.attention.options import Option
from flashsim.attention.shapes import Blocks
from flashsim.memory.source import note_line
from flashsim.memory.traffic import Role
from flashsim.support.modules import records_of
from flashsim.theory.formulas import Mean, common_symbols, evaluated
from flashsim.theory.problem import Arrays, Kept, NoClosedForm, OneHead, Tiles, ceil_div

T = TypeVar("T")
ROLES: Mapping[str, Mapping[str, Role]] = {
    "forward": {"Q": "input", "K": "input", "V": "input", "O": "output"},
    "backward": {
        **dict.fromkeys(("Q", "K", "V", "O", "dO", "l", "m", "L"), "input"),
        **dict.fromkeys(("dQ", "dK", "dV"), "output"),
    },
}
"""Of arrays by name, in a pass; any other is "extra"."""


def paper_rows(M: int, d: int, d_v: int) -> int:
    """Return ⌈M/4d⌉. Where d_v ≠ d, its 4d is 2(d + d_v)."""
    return ceil_div(M, 2 * (d + d_v))


def means(p: OneHead, passes: tuple[Tiles, ...]) -> dict[str, Mean]:
    """Return T_c and T_r where the computed tiles of each pass are these: of rows in the first
    pass, of keys in the last.
    """
    return {"T_c": Mean(passes[0].rows, p.N_q), "T_r": Mean(passes[-1].columns, p.N_k)}


@dataclass(frozen=True, kw_only=True)
class Form:
    """The closed forms of one algorithm's pass.

    name, direction  the algorithm's; "forward" where nothing is said
    line_1           (rows, d) -> (B_r, B_c), as the algorithm's record says it
    rows             (M, d, d_v) -> rows, for the paper's sizes
    formulas         (reads, writes) of each array as text, in `SYMBOLS`
                     (`flashsim.theory.formulas`) and its own, without mask and dropout. Where tiles
                     are skipped, T_c * N_q is how many rows the computed tiles have together, T_r *
                     N_k how many columns
    initial          names of the arrays that are initialised, all of each
    symbols          values of symbols that are this algorithm's only
    meanings         what these stand for, in words
    kept             what arrays have in HBM that are not whole matrices, such as a strip of S:
                     elements, and how they are stored
    passes           the computed tiles of each pass over S; the first hands dS to a bias's gradient
    traffic          what each array moves, for a set of computed tiles, where the formulas do not
                     tell
    peak             the most on chip, in elements
    products         how many products of 2·N_q·N_k·d FLOPs it makes, and of 2·N_q·N_k·d_v
    matmul           FLOPs of products for a set of computed tiles, where its passes cut S in tiles
                     of their own
    plain            it has neither mask nor dropout
    options          the algorithm's own, as its record declares them
    live             it skips empty tiles
    theta            (N, d, M) -> what a theorem says that its accesses, and a backward pass's, are
                     Θ of; None: nothing
    gives_dS         a backward pass that makes a bias's gradient: each tile of dS is added to dB
    sink             forward: how often a sink is read; None: it takes none. Its peak knows of it
    sink_of          backward: columns that a sink's gradient is made of, besides O and dO
    """

    name: str
    direction: str = "forward"
    line_1: Callable[[int, int], tuple[int, int]]
    rows: Callable[[int, int, int], int] = paper_rows
    formulas: Mapping[str, tuple[str, str]]
    initial: tuple[str, ...] = ()
    symbols: Callable[[OneHead, Blocks], dict[str, int]] | None = None
    meanings: Mapping[str, str] = field(default_factory=dict)
    kept: Callable[[OneHead, Blocks], Mapping[str, Kept]] | None = None
    passes: Callable[[OneHead, Blocks, Tiles], tuple[Tiles, ...]] = lambda p, blocks, tiles: (
        tiles,
    )
    traffic: Callable[[OneHead, Blocks, Tiles], Arrays] | None = None
    peak: Callable[[OneHead, Blocks, Tiles], int]
    products: tuple[int, int]
    matmul: Callable[[OneHead, Blocks, Tiles], int] | None = None
    plain: bool = False
    options: tuple[Option, ...] = ()
    live: bool = False
    theta: Callable[[int, int, int], float] | None = None
    gives_dS: bool = False
    sink: Callable[[OneHead, Blocks], int] | None = None
    sink_of: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_direction(self.direction)

    # flashsim's is pickled by its name, as some of its functions are lambdas
    def __reduce__(self) -> Any:
        known = forms()[self.direction].get(self.name) is self
        return (form_of, (self.name, self.direction)) if known else super().__reduce__()

    def moved(self, p: OneHead, blocks: Blocks, tiles: Tiles) -> Arrays:
        """Return what each array moves, for a set of computed tiles."""
        sunk = self._sunk(p, blocks)
        if self.traffic is not None:
            moved = self.asked(self.traffic, p, blocks, tiles)
            return moved | sunk if sunk else moved
        passes, values = self._values(p, blocks, tiles)
        kept = self.asked(self.kept, p, blocks) if self.kept else {}
        given: Arrays = {}
        made: Arrays = {}
        for name, (reads, writes) in self.formulas.items():
            role = ROLES[self.direction].get(name, "extra")
            in_hbm = p.kept(name)
            init = in_hbm[0] if name in self.initial else 0
            read = evaluated(reads, values)
            written = evaluated(writes, values) - init
            moved = p.array(
                name, role, reads=read, writes=written, init=init, kept=kept.get(name, in_hbm)
            )
            (given if role == "input" else made).update(moved)
        return (
            given
            | sunk
            | p.masks(*passes)
            | p.generator(self.direction)
            | p.gradient(passes[0])
            | made
        )

    def accesses(self, p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
        """Return how many elements all arrays of `moved` move, sooner than that does."""
        if self.traffic is not None:
            return sum(array.accesses for array in self.moved(p, blocks, tiles).values())
        passes, values = self._values(p, blocks, tiles)
        others = (
            self._sunk(p, blocks)
            | p.masks(*passes)
            | p.generator(self.direction)
            | p.gradient(passes[0])
        )
        moved = [evaluated(formula, values) for both in self.formulas.values() for formula in both]
        return sum(moved) + sum(array.accesses for array in others.values())

    def _sunk(self, p: OneHead, blocks: Blocks) -> Arrays:
        """Return what a sink's logits move, where there are any."""
        if not p.sink or self.sink is None:
            return {}
        return p.array("sink", "input", reads=p.sink * self.sink(p, blocks), kept=(p.sink, "chip"))

    def _values(
        self, p: OneHead, blocks: Blocks, tiles: Tiles
    ) -> tuple[tuple[Tiles, ...], dict[str, Any]]:
        """Return the tiles of each pass, and what the symbols of the formulas stand for."""
        passes = self.asked(self.passes, p, blocks, tiles)
        values: dict[str, Any] = common_symbols(
            p.N_q, p.N_k, p.d, p.d_v, p.M, blocks, self.direction
        )
        values |= self.asked(self.symbols, p, blocks) if self.symbols else {}
        return passes, values | (means(p, passes) if tiles.chosen else {})

    def asked(self, function: Callable[..., T], *arguments: object) -> T:
        """Return what one of its functions says; an error in a user's own notes the line of
        their file.
        """
        try:
            return function(*arguments)
        except Exception as error:
            note_line(error, function)
            raise

    def whole(self, what: str, found: object, least: int) -> int:
        """Return a number that one of its functions returned. Raises ValueError unless it is a
        whole number from `least` up.
        """
        if not isinstance(found, int) or found < least:
            raise ValueError(
                f"the {what} of Form {self.name!r} is {found!r}; expected a whole number of at "
                f"least {least}"
            )
        return found


@cache
def forms() -> dict[str, dict[str, Form]]:
    """Return every `FORM` of this folder, by direction and then by name."""
    by_direction: dict[str, dict[str, Form]] = {"forward": {}, "backward": {}}
    for form in records_of("flashsim.theory", "FORM", Form):
        by_direction[form.direction][form.name] = form
    return by_direction


def form_of(what: Any, direction: str) -> Form:
    """Return the form of that name, or that form; or, of a user's own algorithm, the form that
    stands in its file.

    That is the `Form` among the names of the module that defines the function, if it has the
    function's name (or the record's) and direction. Raises NoClosedForm, a ValueError, where there
    is none, and ValueError for an unknown direction.
    """
    if isinstance(what, Form):
        return what
    known = forms()[check_direction(direction)]
    beside = None if isinstance(what, str) else _beside(what, direction)
    name = getattr(what, "name", what)
    lacks = {option.name for option in getattr(what, "options", ())} - {
        option.name for option in getattr(beside, "options", ())
    }
    if beside is not None and lacks:
        raise NoClosedForm(
            f"the Form of {shown(name)} has no option {', '.join(sorted(lacks))}; expected it in "
            "its `options`"
        )
    if beside is None and not is_one_of(name, known):
        raise NoClosedForm(
            f"no closed form for {shown(name)}, {direction}; known: {', '.join(map(repr, known))}"
        )
    return known[name] if beside is None else beside


def has_form(program: Any) -> bool:
    """Return whether a program has a closed form: flashsim's, or one that stands in its file."""
    try:
        form_of(program, program.direction)
    except NoClosedForm:
        return False
    return True


def _beside(algorithm: Any, direction: str) -> Form | None:
    function = inspect.unwrap(getattr(algorithm, "run", algorithm))
    module = sys.modules.get(getattr(function, "__module__", ""))
    names = (getattr(algorithm, "name", ""), getattr(function, "__name__", ""))
    forms_there = (
        [value for value in vars(module).values() if isinstance(value, Form)] if module else []
    )
    return next(
        (form for form in forms_there if form.name in names and form.direction == direction), None
    )


def formulas(name: Any, direction: str = "forward") -> Mapping[str, tuple[str, str]]:
    """Return (reads, writes) of each array as text, in `SYMBOLS` and the form's own. `name`, and
    errors, as in `form_of`.
    """
    return form_of(name, direction).formulas


@checked
def symbols(
    N_q: int,
    N_k: int,
    d: int,
    d_v: int,
    M: int,
    blocks: Blocks,
    *,
    direction: str = "forward",
    name: Any = None,
) -> dict[str, int]:
    """Return the value of each of `SYMBOLS`, and of a form's own, to evaluate its formulas with.

    name    as in `form_of`; None: all forward forms' own

    Raises ValueError for what is not a size, and as `form_of` does.
    """
    values = common_symbols(N_q, N_k, d, d_v, M, blocks, direction)
    if (blocks.N_q, blocks.N_k) != (N_q, N_k):
        raise ValueError(f"blocks is {blocks}; expected blocks of N_q = {N_q:,}, N_k = {N_k:,}")
    p = OneHead(N_q, N_k, d, d_v, M, stored=4, masked=False, dense=(), dropout=False)
    for form in forms()["forward"].values() if name is None else [form_of(name, direction)]:
        values |= form.asked(form.symbols, p, blocks) if form.symbols else {}
    return values

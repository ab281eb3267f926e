"""`Form`: the closed form of an attention algorithm. Each algorithm's file in this folder ends in
its form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, ClassVar, TypeVar

from flashsim.attention.arguments import (
    check_direction,
    check_tiles,
    is_one_of,
    short_repr,
    whole_numbers,
)
from flashsim.attention.masks.rules import All, Head, Mask, as_mask
from flashsim.attention.masks.scores import cap_of
from flashsim.attention.options import Option
from flashsim.attention.problem import Problem
from flashsim.attention.shapes import Blocks, Shape
from flashsim.memory.source import note_line
from flashsim.memory.traffic import Occupancy, Role, Traffic
from flashsim.theory import groups
from flashsim.theory.closed_form import ClosedForm, Exact, NoClosedForm, form_beside, forms_in
from flashsim.theory.formulas import Mean, common_symbols, evaluated
from flashsim.theory.live import Chosen, Live, choice_of
from flashsim.theory.problem import Arrays, Kept, OneHead, Tiles, arrays_of, ceil_div, live_tiles

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
    """Return the means that T_c and T_r stand for if these are the computed tiles of each pass: of
    rows in the first pass, of keys in the last.
    """
    return {"T_c": Mean(passes[0].rows, p.N_q), "T_r": Mean(passes[-1].columns, p.N_k)}


@dataclass(frozen=True, kw_only=True)
class Form(ClosedForm):
    """The closed form of one algorithm's pass.

    line_1           (rows, d) -> (B_r, B_c), as the algorithm's record says it
    rows             (M, d, d_v) -> rows, for the paper's sizes
    formulas         (reads, writes) of each array as text, in `SYMBOLS`
                     (`flashsim.theory.formulas`) and its own, without mask and dropout. Where tiles
                     are skipped, T_c * N_q is how many rows the computed tiles have together, T_r *
                     N_k how many columns
    initial          names of the arrays that are initialised, all of each
    symbols          values of symbols that are this algorithm's only
    meanings         what these stand for, in words
    kept             of arrays in HBM that are not whole matrices, such as a strip of S: their
                     elements, and how they are stored
    passes           the computed tiles of each pass over S; the first hands dS to a bias's gradient
    traffic          what each array moves, for a set of computed tiles, where the formulas are not
                     enough
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

    package: ClassVar[str] = "flashsim.theory"

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

    def traffic_by_array(self, p: OneHead, blocks: Blocks, tiles: Tiles) -> Arrays:
        """Return what each array moves, for a set of computed tiles."""
        sunk = self._sunk(p, blocks)
        if self.traffic is not None:
            arrays = self.call(self.traffic, p, blocks, tiles)
            return arrays | sunk if sunk else arrays
        passes, values = self._values(p, blocks, tiles)
        kept = self.call(self.kept, p, blocks) if self.kept else {}
        inputs: Arrays = {}
        results: Arrays = {}
        for name, (reads, writes) in self.formulas.items():
            role = ROLES[self.direction].get(name, "extra")
            in_hbm = p.kept(name)
            init = in_hbm[0] if name in self.initial else 0
            read = evaluated(reads, values)
            written = evaluated(writes, values) - init
            array = p.array(
                name, role, reads=read, writes=written, init=init, kept=kept.get(name, in_hbm)
            )
            (inputs if role == "input" else results).update(array)
        return (
            inputs
            | sunk
            | p.masks(*passes)
            | p.generator(self.direction)
            | p.gradient(passes[0])
            | results
        )

    def accesses(self, p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
        """Return how many elements all arrays move together; faster than `traffic_by_array`."""
        if self.traffic is not None:
            return sum(array.accesses for array in self.traffic_by_array(p, blocks, tiles).values())
        passes, values = self._values(p, blocks, tiles)
        others = (
            self._sunk(p, blocks)
            | p.masks(*passes)
            | p.generator(self.direction)
            | p.gradient(passes[0])
        )
        terms = [evaluated(formula, values) for both in self.formulas.values() for formula in both]
        return sum(terms) + sum(array.accesses for array in others.values())

    def _sunk(self, p: OneHead, blocks: Blocks) -> Arrays:
        """Return what a sink's logits move, where there are any."""
        if not p.sink or self.sink is None:
            return {}
        return p.array("sink", "input", reads=p.sink * self.sink(p, blocks), kept=(p.sink, "chip"))

    def _values(
        self, p: OneHead, blocks: Blocks, tiles: Tiles
    ) -> tuple[tuple[Tiles, ...], dict[str, Any]]:
        """Return the tiles of each pass, and what the symbols of the formulas stand for."""
        passes = self.call(self.passes, p, blocks, tiles)
        values: dict[str, Any] = common_symbols(
            p.N_q, p.N_k, p.d, p.d_v, p.M, blocks, self.direction
        )
        values |= self.call(self.symbols, p, blocks) if self.symbols else {}
        return passes, values | (means(p, passes) if tiles.chosen else {})

    def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Return the value of one of its functions. An error in a user's function names the line of
        their file.
        """
        try:
            return function(*arguments)
        except Exception as error:
            note_line(error, function)
            raise

    def products_flops(self, area: int, d: int, d_v: int) -> int:
        """Return the FLOPs of the matrix products where `area` elements of S are computed."""
        by_d, by_d_v = self.products
        return 2 * area * (by_d * d + by_d_v * d_v)

    def peak_of(self, p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
        """Return the most on chip, in elements. Raises ValueError where `peak` returns what is no
        number of elements.
        """
        return self.whole("peak", self.call(self.peak, p, blocks, tiles), 0)

    def cost(
        self,
        problem: Problem,
        blocks: Blocks,
        options: Mapping[str, Any],
        enforced: bool,
        sizing: str = "",
    ) -> Exact:
        """Return what a run costs, with checked options."""
        return FormAtProblem.of(self, problem, options).cost(blocks, enforced, sizing)

    def whole(self, what: str, value: object, least: int) -> int:
        """Return a number that one of its functions returned. Raises ValueError unless it is a
        whole number from `least` up.
        """
        if not isinstance(value, int) or value < least:
            raise ValueError(
                f"the {what} of Form {self.name!r} is {value!r}; expected a whole number of at "
                f"least {least}"
            )
        return value


def clipped(p: OneHead, B_r: int, B_c: int) -> Blocks:
    """Return blocks of these sizes, each at most as long as what it divides."""
    return Blocks(B_r, B_c, N_q=p.N_q, N_k=p.N_k)


@dataclass(frozen=True)
class FormAtProblem:
    """A form at a problem: what is the same in all blocks, so that a search through many blocks
    computes it once.

    p     one launch's lengths, and what is stored
    rule  the mask, without its sink
    """

    form: Form
    problem: Problem
    p: OneHead
    rule: Mask

    @classmethod
    def of(cls, form: Form, problem: Problem, own: Mapping[str, Any]) -> FormAtProblem:
        """Return a form at a problem, with options of its own. Raises ValueError for what it
        does not compute.
        """
        shape = problem.shape
        stored = problem.dtype.itemsize
        group = problem.group if problem.gqa == "grouped" else 1
        rule = as_mask(problem.mask, False, shape, (), own) if own else problem.mask
        sink = rule.sink
        rule = rule.without_sink() if rule.sink else rule
        masked = not isinstance(rule, All)
        backward = form.direction == "backward"
        if form.plain and (masked or problem.dropout_p):
            raise ValueError(
                f"{form.name!r} has neither mask nor dropout; 'flash' (Algorithm 2) has"
            )
        if rule.bias is not None and rule.bias.is_table and "P" in form.formulas:
            raise ValueError(
                f"{form.name!r} adds a bias in a pass of its own; expected Bias(table[buckets])"
            )
        learns = backward and rule.bias is not None
        if learns and not form.gives_dS:
            raise ValueError(
                f"{form.name!r} makes no gradient of a bias, backward; 'flash' (Algorithm 4) does"
            )
        capped = backward and cap_of(rule.scores) is not None
        if capped and not (form.gives_dS and "P" not in form.formulas):
            raise ValueError(
                f"{form.name!r} makes no gradient through a soft cap, backward; 'flash' (Algorithm "
                "4) does"
            )
        merged = ", merged as a tree," if "merge" in own else ""
        if sink is not None and (
            (form.sink or form.sink_of or None) is None or own.get("merge") == "tree"
        ):
            raise ValueError(f"{form.name!r}{merged} takes no sink; 'flash' (Algorithm 2) does")
        dense = arrays_of(rule, group)
        dB = dense[-1]._replace(name="dB", itemsize=max(stored, 4)) if learns else None
        lengths = (group * shape.N_q, shape.N_k, shape.d, shape.d_v)
        dropout = bool(problem.dropout_p)
        of_mask = (dense, dropout, rule.tree is not None)
        sinks = 0 if sink is None else group
        return cls(
            form,
            problem,
            OneHead(*lengths, problem.M, stored, masked, *of_mask, own, group, dB, capped, sinks),
            rule,
        )

    @classmethod
    def of_launch(
        cls,
        form: Form,
        problem: Problem,
        own: Mapping[str, Any],
        rows: Mask,
        head: Head,
        sunk: bool,
    ) -> FormAtProblem:
        """Return a form at one launch of a run, which has been checked.

        rows  the mask for the launch's rows, those of a group of heads interleaved, without its
              sink
        head  which launch it is, as the mask may have arrays of each head's own
        sunk  whether there is a sink
        """
        group = problem.group if problem.gqa == "grouped" else 1
        backward = form.direction == "backward"
        stored = problem.dtype.itemsize
        dense = arrays_of(rows, 1, head)
        learns = None
        if backward and rows.bias is not None:
            learns = dense[-1]._replace(name="dB", itemsize=max(stored, 4))
        p = OneHead(
            N_q=group * problem.shape.N_q,
            N_k=problem.shape.N_k,
            d=problem.shape.d,
            d_v=problem.shape.d_v,
            M=problem.M,
            stored=stored,
            masked=not isinstance(rows, All),
            dense=dense,
            dropout=bool(problem.dropout_p),
            tree=rows.tree is not None,
            options=own,
            group=group,
            learns=learns,
            capped=backward and cap_of(rows.scores) is not None,
            sink=group if sunk else 0,
        )
        return cls(form, problem, p, rows)

    @cached_property
    def live(self) -> Live:
        """The live tiles, of the largest blocks."""
        p = self.p
        return live_tiles(
            self.rule, p.N_q, p.N_k, Blocks(p.N_q, p.N_k, N_q=p.N_q, N_k=p.N_k), p.group
        )

    def tiles(self, sizes: Blocks) -> Tiles:
        """Return the tiles that are computed."""
        p = self.p
        skipping = "live" if self.form.live else self.p.options.get("block_mask")
        choice: Chosen | None = None
        if isinstance(skipping, str):  # "live"
            choice = self.live.cut(sizes.B_r, sizes.B_c)
        elif skipping is not None:
            choice = choice_of(check_tiles(skipping, sizes, Shape(p.N_q, p.N_k, p.d, p.d_v)))
        return p.tiles(sizes.B_r, sizes.B_c, choice)

    def cost(self, sizes: Blocks, enforced: bool, sizing: str = "") -> Exact:
        """Return what a run in these blocks costs, of all heads."""
        form = self.form
        p = self.p
        group = self.problem.group
        kv_heads = self.problem.heads // group
        is_grouped = self.problem.gqa == "grouped"
        launches = kv_heads if is_grouped else self.problem.heads
        tiles = self.tiles(sizes)
        arrays = form.traffic_by_array(p, sizes, tiles)
        peak = form.peak_of(p, sizes, tiles)
        if not isinstance(arrays, dict):
            raise ValueError(
                f"the traffic of Form {form.name!r} is {short_repr(arrays)}; expected a dict of "
                "p.array(…)"
            )
        traffic = Traffic(arrays).times(launches)
        if group > 1 and not is_grouped:
            arrays = groups.shared(arrays, group, kv_heads)
            if form.direction == "backward":
                arrays = groups.summed(arrays, p, group, kv_heads)
                peak = max(peak, groups.sum_peak(p))
            traffic = Traffic(arrays)
        if p.learns:
            gradient = {"dB": traffic.by_array["dB"].shared(launches)}
            bias = self.rule.bias
            if bias is not None and p.group > 1 and bias.matrix[0] > 1:
                gradient, most = groups.bias_summed(gradient["dB"], p.group, p.M)
                peak = max(peak, most)
            traffic = Traffic({**traffic.by_array, **gradient})
        if p.sink and form.direction == "backward":
            one_head = replace(p, N_q=self.problem.shape.N_q)
            learnt, most = groups.sink_learnt(one_head, form.sink_of, self.problem.heads)
            peak = max(peak, most)
            by_array = dict(traffic.by_array)
            for name, array in learnt.items():
                if name in by_array:
                    array = by_array[name].plus(replace(array, size=0))
                by_array[name] = array
            traffic = Traffic(by_array)
        matmul = form.products_flops(tiles.area, p.d, p.d_v)
        if form.matmul:
            matmul = form.matmul(p, sizes, tiles)
        use = Occupancy(peak, p.M, enforced)
        return Exact(form.name, traffic, use, sizes, launches * matmul, sizing)

    def accesses(self, B_r: int, B_c: int) -> int:
        """Return the accesses of one head, as `exact` does, but faster: nothing else is counted."""
        sizes = clipped(self.p, B_r, B_c)
        return self.form.accesses(self.p, sizes, self.tiles(sizes))

    def peak(self, B_r: int, B_c: int, M: int | None = None) -> int:
        """Return the most on chip where all tiles are computed; without a mask, that of `exact`.
        M: None, the problem's.
        """
        p = self.p if M is None or M == self.p.M else replace(self.p, M=M)
        sizes = clipped(p, B_r, B_c)
        return self.form.peak_of(p, sizes, p.tiles(sizes.B_r, sizes.B_c))


@cache
def forms() -> dict[str, dict[str, Form]]:
    """Return every `Form` of this folder, by direction and then by name."""
    by_direction: dict[str, dict[str, Form]] = {"forward": {}, "backward": {}}
    for form in forms_in(Form.package).values():
        if isinstance(form, Form):
            by_direction[form.direction][form.name] = form
    return by_direction


def form_of(what: Any, direction: str) -> Form:
    """Return the form of that name, or that form; for a user's own algorithm, the form in its file.

    That is the `Form` among the names of the module that defines the function, if it has the
    function's name (or the record's) and direction. Raises NoClosedForm, a ValueError, where there
    is none, and ValueError for an unknown direction.
    """
    if isinstance(what, Form):
        return what
    known = forms()[check_direction(direction)]
    beside = None if isinstance(what, str) else form_beside(what, direction, Form)
    name = getattr(what, "name", what)
    lacks = {option.name for option in getattr(what, "options", ())} - {
        option.name for option in getattr(beside, "options", ())
    }
    if beside is not None and lacks:
        raise NoClosedForm(
            f"the Form of {short_repr(name)} has no option {', '.join(sorted(lacks))}; expected "
            "it in its `options`"
        )
    if beside is None and not is_one_of(name, known):
        raise NoClosedForm(
            f"no closed form for {short_repr(name)}, {direction}; known: "
            f"{', '.join(map(repr, known))}"
        )
    return known[name] if beside is None else beside


def has_form(program: Any) -> bool:
    """Return whether a program has a closed form: flashsim's, or one in its own file."""
    try:
        form_of(program, program.direction)
    except NoClosedForm:
        return False
    return True


def formulas(name: Any, direction: str = "forward") -> Mapping[str, tuple[str, str]]:
    """Return (reads, writes) of each array as text, in `SYMBOLS` and the form's own. `name`, and
    errors, as in `form_of`.
    """
    return form_of(name, direction).formulas


@whole_numbers("N_q", "N_k", "d", "d_v", "M")
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
    check_direction(direction)
    values = common_symbols(N_q, N_k, d, d_v, M, blocks, direction)
    if (blocks.N_q, blocks.N_k) != (N_q, N_k):
        raise ValueError(f"blocks is {blocks}; expected blocks of N_q = {N_q:,}, N_k = {N_k:,}")
    p = OneHead(N_q, N_k, d, d_v, M, stored=4, masked=False, dense=(), dropout=False)
    for form in forms()["forward"].values() if name is None else [form_of(name, direction)]:
        values |= form.call(form.symbols, p, blocks) if form.symbols else {}
    return values

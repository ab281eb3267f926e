"""`MatrixForm`: the closed form of a program on matrices; and `exact_program`, what its run costs,
by formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple

from flashsim.attention.arguments import (
    check_block_sizes,
    check_flag,
    check_lengths,
    is_one_of,
    short_repr,
)
from flashsim.attention.matrices import Kind, MatrixProblem, Type
from flashsim.attention.shapes import Sizes
from flashsim.memory.traffic import ArrayTraffic, Occupancy, Role, Traffic
from flashsim.support.sizes import Size, largest_that_fits
from flashsim.theory.closed_form import ClosedForm, Exact, NoClosedForm, forms_in
from flashsim.theory.formulas import evaluated
from flashsim.theory.problem import ceil_div


class Array(NamedTuple):
    """An array in HBM, and how often all of it is read and written, as text in lengths and numbers
    of blocks: "T_r + 1".

    initial  whether the first time that it is written initialises it
    """

    role: Role
    kind: Kind
    reads: str = "0"
    writes: str = "0"
    initial: bool = False


def given(rows: str, columns: str, stored: Type = "inputs", *, reads: str = "1") -> Array:
    """Return an input."""
    return Array("input", Kind(rows, columns, stored), reads)


def between(rows: str, columns: str, stored: Type = "inputs", *, reads: str = "1") -> Array:
    """Return an array that is neither input nor output, written once."""
    return Array("extra", Kind(rows, columns, stored), reads, "1")


def returned(rows: str, columns: str, stored: Type = "inputs") -> Array:
    """Return an output, written once."""
    return Array("output", Kind(rows, columns, stored), writes="1")


class Moved(NamedTuple):
    """Elements of one array: read, written after initialisation, and written by it."""

    reads: int = 0
    writes: int = 0
    init: int = 0


@dataclass(frozen=True, kw_only=True)
class MatrixForm(ClosedForm):
    """The closed form of one program on matrices.

    arrays    each array in HBM, by name. Of block size B_r there are T_r blocks, of C, T
    blocks    its block sizes: name -> the symbol of the length that it divides
    line_1    (rows, lengths) -> block sizes; None: they must be given
    rows      (M, lengths) -> rows, for sizing "paper"; None: there is no such sizing
    traffic   (lengths, block sizes with the numbers of blocks, T_r of B_r, options) -> what arrays
              move of which not all is moved each time
    peak      the most on chip, in elements: mostly the first tile's, whose blocks are whole
    matmul    FLOPs of the matrix products
    """

    package: ClassVar[str] = "flashsim.theory"

    arrays: Mapping[str, Array | tuple[Role, Kind]]
    blocks: Mapping[str, str]
    line_1: Callable[[int, Sizes], tuple[int, ...]] | None = None
    rows: Callable[[int, Sizes], int] | None = None
    traffic: Callable[[Sizes, Sizes, Mapping[str, Any]], Mapping[str, Moved]] = (
        lambda p, b, options: {}
    )
    peak: Callable[[Sizes, Sizes, Mapping[str, Any]], int]
    matmul: Callable[[Sizes, Sizes, Mapping[str, Any]], int]

    def cost(
        self, problem: MatrixProblem, blocks: Sizes, options: Mapping[str, Any], enforced: bool
    ) -> Exact:
        """Return what a run costs. Options that move nothing may be left out."""
        p = problem.lengths
        stored = problem.dtype.itemsize
        itemsizes = {"inputs": stored, "chip": max(stored, 4), "bits": 1, "words": 4, "index": 4}
        numbers_of_blocks = {
            size.replace("B", "T").replace("C", "T"): ceil_div(p[symbol], blocks[size])
            for size, symbol in self.blocks.items()
        }
        symbols = {**numbers_of_blocks, **p}
        in_part = self.traffic(p, Sizes(**blocks, **numbers_of_blocks), options)
        by_array = {}
        for name, array in self.arrays.items():
            role, kind, reads, writes, initial = Array(*array)
            rows, columns = kind.shape(Sizes(**symbols))
            size = rows * columns
            init = size if initial else 0
            all_of_it = Moved(
                reads=size * evaluated(reads, symbols),
                writes=size * evaluated(writes, symbols) - init,
                init=init,
            )
            traffic = in_part.get(name, all_of_it)
            by_array[name] = ArrayTraffic(
                traffic.reads,
                traffic.init + traffic.writes,
                traffic.init,
                size,
                itemsizes[kind.type],
                role,
            )
        return Exact(
            self.name,
            Traffic(by_array),
            Occupancy(self.peak(p, blocks, options), problem.M, enforced),
            blocks,
            self.matmul(p, blocks, options),
        )


@cache
def matrix_forms() -> dict[str, MatrixForm]:
    """Return every `MatrixForm` of this folder's files, by name."""
    known = forms_in(MatrixForm.package).values()
    return {form.name: form for form in known if isinstance(form, MatrixForm)}


def exact_program(
    name: Any,
    sizes: Mapping[str, Any],
    *,
    M: Size | None = None,
    blocks: Sequence[int] | None = None,
    sizing: str = "fit",
    enforce: bool | None = None,
    dtype: Any = "float32",
    options: Mapping[str, Any] | None = None,
) -> Exact:
    """Return the exact counts of a program's run by formula, of its name or its `MatrixForm`.

    Arguments are those of `flashsim.simulate.matrices.count_program`; options that move nothing may
    be left out. Blocks that do not fit raise no error here: `sram.peak` then exceeds an enforced
    `sram.capacity`. Raises NoClosedForm, a ValueError, for an unknown name.
    """
    if not isinstance(name, MatrixForm) and not is_one_of(name, matrix_forms()):
        raise NoClosedForm(
            f"no closed form for {short_repr(name)}; known: {', '.join(map(repr, matrix_forms()))}"
        )
    form = name if isinstance(name, MatrixForm) else matrix_forms()[name]
    kinds = [kind for role, kind, *_ in form.arrays.values() if role == "input"]
    sides = dict.fromkeys(
        side for kind in kinds for side in (kind.rows, kind.columns) if not side.isdigit()
    )
    memory: dict[str, Any] = {"dtype": dtype, "M": M}  # which the problem checks and converts
    problem = MatrixProblem(lengths=check_lengths([*sides], sizes), **memory)
    if not is_one_of(sizing, ("fit", "paper")):
        raise NoClosedForm(
            f"no closed form for sizing {short_repr(sizing)}; known: 'fit', 'paper', or blocks"
        )
    fixed = check_block_sizes(form.blocks, blocks)
    enforced = fixed is not None or sizing == "fit"
    if enforce is not None:
        enforced = check_flag("enforce", enforce)
    cut = _blocks(form, problem, fixed, sizing, options or {})
    return form.cost(problem, cut, options or {}, enforced)


def _blocks(
    form: MatrixForm,
    problem: MatrixProblem,
    fixed: Sequence[int] | None,
    sizing: str,
    options: Mapping[str, Any],
) -> Sizes:
    """Return the block sizes: the fixed ones, line 1's, or the largest of its proportions that fit;
    of one row where none does.
    """

    p = problem.lengths

    def of(values: Sequence[int]) -> Sizes:
        return p.clipped(form.blocks, values)

    if fixed is not None:
        return of(fixed)
    names = ", ".join(form.blocks)
    if form.line_1 is None:
        raise NoClosedForm(f"{form.name!r} has no line_1; expected blocks ({names})")
    if sizing == "paper":
        if form.rows is None:
            raise NoClosedForm(
                f"sizing is 'paper', and {form.name!r} has no rows, the paper's sizes; expected "
                f"blocks ({names}), or sizing 'fit'"
            )
        return of(form.line_1(form.rows(problem.M, p), p))
    line_1, longest = form.line_1, max(p[symbol] for symbol in form.blocks.values())

    def fits(rows: int) -> bool:
        return form.peak(p, of(line_1(rows, p)), options) <= problem.M

    return of(line_1(max(largest_that_fits(fits, longest), 1), p))

"""`ProgramForm`: what theory knows of a program that is not attention; and `exact_program`, what
its run costs, by formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from flashsim.attention.arguments import (
    check_block_sizes,
    check_flag,
    check_lengths,
    is_one_of,
    shown,
)
from flashsim.attention.inputs import check_M, float_name
from flashsim.attention.matrices import Kind, Type
from flashsim.attention.shapes import Sizes
from flashsim.memory.traffic import ArrayTraffic, Occupancy, Role, Traffic
from flashsim.support.modules import modules_of
from flashsim.support.sizes import Size, most
from flashsim.theory.formulas import evaluated
from flashsim.theory.problem import BYTES, NoClosedForm, ceil_div


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
    """Return what is neither input nor output, written once."""
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
class ProgramForm:
    """The closed forms of one program.

    name      the program's
    arrays    each array in HBM, by name. Of block size B_r there are T_r blocks, of C, T
    blocks    its block sizes: name -> the symbol of the length that it divides
    line_1    (rows, lengths) -> block sizes; None: they must be given
    rows      (M, lengths) -> rows, for the paper's sizes
    traffic   (lengths, block sizes with the numbers of blocks, T_r of B_r, options) -> what arrays
              move of which not all is moved each time
    peak      the most on chip, in elements: mostly the first tile's, whose blocks are whole
    matmul    FLOPs of the matrix products
    """

    name: str
    arrays: Mapping[str, Array | tuple[Role, Kind]]
    blocks: Mapping[str, str]
    line_1: Callable[[int, Sizes], tuple[int, ...]] | None = None
    rows: Callable[[int, Sizes], int] | None = None
    traffic: Callable[[Sizes, Sizes, Mapping[str, Any]], Mapping[str, Moved]] = (
        lambda p, b, options: {}
    )
    peak: Callable[[Sizes, Sizes, Mapping[str, Any]], int]
    matmul: Callable[[Sizes, Sizes, Mapping[str, Any]], int]

    def __reduce__(self) -> Any:  # as `Form`
        return (
            (_known, (self.name,))
            if program_forms().get(self.name) is self
            else super().__reduce__()
        )


@dataclass(frozen=True, repr=False)
class ExactProgram:
    """What theory says that a program costs: `hbm`, `sram` and `blocks` must equal a run's and a
    tally's; `matmul`, its FLOPs.
    """

    algorithm: str
    hbm: Traffic
    sram: Occupancy
    blocks: Sizes
    matmul: int

    def __repr__(self) -> str:
        return (
            f"ExactProgram({self.algorithm!r}: {self.hbm.accesses:,} HBM accesses, {self.blocks}, "
            f"{self.sram})"
        )

    def _repr_html_(self) -> str:
        caption = f"{self.algorithm}, by formula: HBM accesses, in elements"
        return self.hbm.table(caption, [f"{self.blocks}, {self.sram}"])


@cache
def program_forms() -> dict[str, ProgramForm]:
    """Return every `ProgramForm` of this folder's files, by name."""
    found = (form for file in modules_of("flashsim.theory") for form in vars(file).values())
    return {form.name: form for form in found if isinstance(form, ProgramForm)}


def _known(name: str) -> ProgramForm:
    return program_forms()[name]


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
) -> ExactProgram:
    """Return the exact counts of a program's run by formula, of its name or its `ProgramForm`.

    Arguments are those of `flashsim.simulate.matrices.count_program`; options that move nothing may
    be left out. Theory does not refuse what does not fit: `sram.peak` then exceeds an enforced
    `sram.capacity`. Raises NoClosedForm, a ValueError, for an unknown name.
    """
    if not isinstance(name, ProgramForm) and not is_one_of(name, program_forms()):
        raise NoClosedForm(
            f"no closed form for {shown(name)}; known: {', '.join(map(repr, program_forms()))}"
        )
    form = name if isinstance(name, ProgramForm) else program_forms()[name]
    arrays = {array: Array(*known) for array, known in form.arrays.items()}
    kinds = [array.kind for array in arrays.values() if array.role == "input"]
    sides = dict.fromkeys(
        side for kind in kinds for side in (kind.rows, kind.columns) if not side.isdigit()
    )
    p = check_lengths([*sides], sizes)
    stored = BYTES[float_name(dtype)]
    asked = options or {}
    capacity = check_M(M, stored)
    if not is_one_of(sizing, ("fit", "paper")):
        raise NoClosedForm(
            f"no closed form for sizing {shown(sizing)}; known: 'fit', 'paper', or blocks"
        )
    b = _blocks(form, p, capacity, check_block_sizes(form.blocks, blocks), sizing, asked)
    itemsizes = {"inputs": stored, "chip": max(stored, 4), "bits": 1, "words": 4, "index": 4}
    counts = {
        size.replace("B", "T").replace("C", "T"): ceil_div(p[symbol], b[size])
        for size, symbol in form.blocks.items()
    }
    in_part = form.traffic(p, Sizes(**b, **counts), asked)
    by_array = {}
    for array, (role, kind, reads, writes, initial) in arrays.items():
        rows, columns = kind.shape(Sizes(**{**counts, **p}))
        read, written = (
            rows * columns * evaluated(times, {**counts, **p}) for times in (reads, writes)
        )
        init = rows * columns * initial
        moved = in_part.get(array, Moved(read, written - init, init))
        by_array[array] = ArrayTraffic(
            moved.reads,
            moved.init + moved.writes,
            moved.init,
            rows * columns,
            itemsizes[kind.type],
            role,
        )
    enforced = (
        (blocks is not None or sizing == "fit")
        if enforce is None
        else check_flag("enforce", enforce)
    )
    use = Occupancy(form.peak(p, b, asked), capacity, enforced)
    return ExactProgram(form.name, Traffic(by_array), use, b, form.matmul(p, b, asked))


def _blocks(
    form: ProgramForm,
    p: Sizes,
    M: int,
    given: Sequence[int] | None,
    sizing: str,
    options: Mapping[str, Any],
) -> Sizes:
    """Return the block sizes: those given, line 1's, or the largest of its proportions that fit;
    of one row where none does.
    """

    def of(values: Sequence[int]) -> Sizes:
        return p.clipped(form.blocks, values)

    if given is not None:
        return of(given)
    if form.line_1 is None or form.rows is None:
        raise NoClosedForm(
            f"{form.name!r} has no line 1; expected blocks ({', '.join(form.blocks)})"
        )
    if sizing == "paper":
        return of(form.line_1(form.rows(M, p), p))
    line_1, longest = form.line_1, max(p[symbol] for symbol in form.blocks.values())

    def fits(rows: int) -> bool:
        return form.peak(p, of(line_1(rows, p)), options) <= M

    return of(line_1(max(most(fits, longest), 1), p))

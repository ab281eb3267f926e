"""A program on matrices of given sizes, as a plan; and the functions that run and count it.

run_program(program, {"X": X, "Z": Z, "V": V}, …)     results by name, and what they cost
count_program(program, {"N": 1000, …}, …)             what it costs, on shapes alone
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flashsim.algorithms.blocks import Fit, Paper, Sizing, SizingProblem
from flashsim.algorithms.program import MatrixProgram, normal
from flashsim.attention.arguments import (
    check_array,
    check_block_sizes,
    check_flag,
    check_lengths,
    check_observers,
    is_one_of,
    short_repr,
)
from flashsim.attention.inputs import (
    FLOATS,
    Array,
    check_arrays,
    check_matrix,
    chip_dtype,
    describe_array,
    float_dtype,
    largest,
)
from flashsim.attention.matrices import MatrixProblem
from flashsim.attention.shapes import Sizes
from flashsim.memory.errors import MemoryModelError, SramOverflow
from flashsim.memory.hbm import HBM
from flashsim.memory.source import PACKAGE, file_of, is_of_package
from flashsim.memory.sram import SRAM, Event, Observer
from flashsim.memory.traffic import Occupancy
from flashsim.simulate.outcome import Outcome
from flashsim.simulate.pipeline import simulate
from flashsim.simulate.plan import Launch, Operand, Plan
from flashsim.simulate.results import Result
from flashsim.support.sizes import Size

if TYPE_CHECKING:  # theory is loaded when it is used
    from flashsim.theory.closed_form import Exact
    from flashsim.theory.matrices import MatrixForm

SMALL = 7
"""The lengths of a rehearsal: blocks of 2 do not divide them."""
SIZINGS: Mapping[str, Sizing] = {"fit": Fit(), "paper": Paper()}


@dataclass(frozen=True, kw_only=True, repr=False)
class MatrixPlan(Plan):
    """A program on matrices of given sizes.

    arrays   operands by name; for counting, only those that tell it where to go on ("index")
    """

    program: MatrixProgram
    problem: MatrixProblem
    arrays: Mapping[str, Array]
    blocks: Sizes
    options: Mapping[str, Any]

    @property
    def sizes(self) -> Sizes:
        """The lengths, by symbol."""
        return self.problem.lengths

    def exact(self) -> Exact:
        """Return what this run costs, by formula."""
        from flashsim.theory.closed_form import NoClosedForm, form_beside, forms_in_file
        from flashsim.theory.matrices import MatrixForm

        program = self.program
        form = _form_of(program)
        if form is None:
            form = form_beside(program, program.direction, MatrixForm)
        if form is None:
            others = forms_in_file(program, MatrixForm)
            if not others:
                return super().exact()
            names = ", ".join(f"{other.name!r} ({other.direction})" for other in others)
            raise NoClosedForm(
                f"there is no closed form of {program.name!r}: its file has a MatrixForm named "
                f"{names}; expected one named {program.name!r} ({program.direction})"
            )
        return form.cost(self.problem, self.blocks, self.options, self.enforced)

    def launches(self, outcome: Outcome) -> Iterator[Launch]:
        """Yield the one launch."""
        operands = []
        for name, kind in self.program.operands.items():
            values = self.arrays.get(name, kind.shape(self.sizes))
            operands.append(
                Operand(name, values, kind.dtype(self.dtype), index=kind.type == "index")
            )
        yield Launch(
            operands=operands,
            make_arguments=self._arguments,
            returns=[tuple(self.program.returns)],
            folds=not self.is_user_defined,
        )

    def described(self) -> dict[str, Any]:
        """Return what was asked, as plain data."""
        options = {name: short_repr(value) for name, value in self.options.items()}
        return {"sizes": dict(self.sizes), "dtype": self.dtype.name, "options": options}

    def described_operands(self) -> list[str]:
        """Return name, shape and dtype of each operand; to count, lengths and the dtype."""
        if not self.arithmetic:
            return [repr(self.sizes), self.dtype.name]
        return [describe_array(name, array) for name, array in self.arrays.items()]

    def main_results(self) -> Sequence[str]:
        """Return all results."""
        return tuple(self.program.returns)

    def _arguments(self, hbm: HBM, sram: SRAM) -> list[Any]:
        return [self.blocks, *(self.options[name] for name in self.program.options)]

    def shape_of(self, name: str) -> tuple[int, int]:
        """Return the shape of a result."""
        return self.program.returns[name].shape(self.sizes)


def run_program(
    program: MatrixProgram,
    operands: Mapping[str, Any],
    *,
    M: Size | None = None,
    blocks: Sequence[int] | None = None,
    sizing: str = "fit",
    enforce: bool | None = None,
    options: Mapping[str, Any] | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Run a program on arrays, of two axes each, of one type among float16, bfloat16, float32,
    float64.

    A column (N, 1) may be given as (N,); results that are always columns are returned as such.
    Lists of numbers have the type of those operands that are arrays. 16-bit operands are computed
    on in float32.

    M        SRAM's size in elements; None: 100 KB of the operands' type
    blocks   block sizes in the record's order; M is enforced
    sizing   without blocks: "fit", the largest of the program's proportions that fit, M enforced,
             or "paper", line 1
    enforce  whether to exceed M is an error, whatever the sizing says

    Raises ValueError for operands that do not fit together, are not finite, or overflow;
    SramOverflow.
    """
    check_program(program)
    arrays, sizes, dtype = check_operands(program, operands)
    plan = _plan(
        program, arrays, sizes, dtype, M, blocks, sizing, enforce, options or {}, arithmetic=True
    )
    return _gathered(plan, simulate(plan, check_observers(observers)))


def count_program(
    program: MatrixProgram,
    sizes: Mapping[str, Any],
    *,
    M: Size | None = None,
    blocks: Sequence[int] | None = None,
    sizing: str = "fit",
    enforce: bool | None = None,
    dtype: Any = "float32",
    options: Mapping[str, Any] | None = None,
    index: Mapping[str, Any] | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Count what `run_program` would move, on lengths alone, by symbol. `index` holds operands that
    say where to go on.

    Arguments and errors as there.
    """
    check_program(program)
    lengths = check_lengths(program.symbols, sizes)
    stored = float_dtype(dtype)
    arrays = dict(index or {})
    index_operands = [name for name, kind in program.operands.items() if kind.type == "index"]
    if set(arrays) != set(index_operands):
        expected = ", ".join(index_operands) or "none"
        raise ValueError(f"index holds {', '.join(arrays) or 'none'}; expected {expected}")
    plan = _plan(
        program,
        arrays,
        lengths,
        stored,
        M,
        blocks,
        sizing,
        enforce,
        options or {},
        arithmetic=False,
    )
    outcome = simulate(plan, check_observers(observers))
    _check_stored(plan, outcome)
    _rehearse(plan)
    return _result(plan, outcome, operations=outcome.total.flops)


def check_program(program: Any) -> None:
    """Raise ValueError for what is no MatrixProgram, such as its function alone."""
    if not isinstance(program, MatrixProgram):
        raise ValueError(
            f"program is {short_repr(program)}; expected a MatrixProgram, the record of a function "
            "(docs/own.md)"
        )


def check_operands(
    program: MatrixProgram, operands: Mapping[str, Any]
) -> tuple[dict[str, Array], Sizes, np.dtype[Any]]:
    """Return copies of the operands, the lengths that they have, and their type. Raises
    ValueError.
    """
    if set(operands) != set(program.operands):
        raise ValueError(
            f"operands are {', '.join(operands)}; expected {', '.join(program.operands)}"
        )
    numbers = [
        name for name, kind in program.operands.items() if kind.type not in ("words", "index")
    ]
    arrays = check_arrays({name: operands[name] for name in numbers})
    lengths = dict[str, int]()
    whose = dict[str, str]()
    for name, kind in program.operands.items():
        array = arrays[name] if name in numbers else check_array(name, operands[name])
        arrays[name] = array = check_matrix(
            name, array, (kind.rows, kind.columns), lengths, whose
        ).copy()
        first = arrays[numbers[0]].dtype
        if name not in numbers:
            if array.dtype.kind not in "iu" or np.any(
                (array < 0) | (array > np.iinfo(np.uint32).max)
            ):
                raise ValueError(
                    f"{name} is {short_repr(array)}; expected whole numbers from 0 to 2³²−1"
                )
            arrays[name] = array.astype(np.uint32)
        elif array.dtype.name not in FLOATS:
            raise ValueError(f"{name} has dtype {array.dtype}; expected one of {', '.join(FLOATS)}")
        elif array.dtype != (expected := chip_dtype(first) if kind.type == "chip" else first):
            other = f"{name} has dtype {array.dtype}"
            raise ValueError(
                f"{numbers[0]} has dtype {first} and {other}; expected {expected} for {name}"
            )
        elif not np.isfinite(array).all():
            raise ValueError(f"{name} holds NaN or ∞; expected finite numbers")
    return arrays, Sizes(**lengths), arrays[numbers[0]].dtype


def _plan(
    program: MatrixProgram,
    arrays: Mapping[str, Array],
    sizes: Sizes,
    dtype: np.dtype[Any],
    M: Any,
    blocks: Any,
    sizing: Any,
    enforce: Any,
    options: Mapping[str, Any],
    *,
    arithmetic: bool,
) -> MatrixPlan:
    if set(options) != set(program.options):
        raise ValueError(
            f"options are {', '.join(options) or 'none'}; expected "
            f"{', '.join(program.options) or 'none'}"
        )
    problem = MatrixProblem(lengths=sizes, dtype=dtype, M=M)
    fixed = check_block_sizes(program.blocks, blocks)
    if not is_one_of(sizing, SIZINGS):
        raise ValueError(
            f"unknown sizing {short_repr(sizing)}; known: {', '.join(map(repr, SIZINGS))}"
        )
    enforced = (
        (fixed is not None or sizing == "fit")
        if enforce is None
        else check_flag("enforce", enforce)
    )
    plan = MatrixPlan(
        program=program,
        problem=problem,
        enforced=enforced,
        arithmetic=arithmetic,
        is_user_defined=not is_of_package(program.run),
        arrays=arrays,
        blocks=Sizes(),
        options=options,
    )

    def of(values: Sequence[int]) -> Sizes:
        return sizes.clipped(program.blocks, values)

    if fixed is not None:
        return replace(plan, blocks=of(fixed))
    line_1 = program.line_1
    paper_rows = program.rows
    if line_1 is None or (sizing == "paper" and paper_rows is None):
        lack = "line_1, which says how blocks grow" if line_1 is None else "rows, the paper's sizes"
        raise ValueError(
            f"blocks is None; expected {', '.join(program.blocks)}, as the record of "
            f"{program.name!r} has no {lack}"
        )
    form = _form_of(program)

    def fits(blocks: Sizes, M: int) -> bool:
        if form is None:
            return _fits_by_trial(plan, blocks, M)
        return form.peak(sizes, blocks, options) <= M

    sizing_problem = SizingProblem(
        program=program.name,
        shape=sizes,
        M=problem.M,
        longest=max(sizes[symbol] for symbol in program.blocks.values()),
        blocks=lambda rows: of(line_1(rows, sizes)),
        fits=fits,
        paper_rows=partial(_paper_rows, program, problem),
    )
    return replace(plan, blocks=SIZINGS[sizing](sizing_problem))


def _paper_rows(program: MatrixProgram, problem: MatrixProblem) -> int:
    """Return line 1's rows. The program has some: `_plan` has looked."""
    assert program.rows is not None
    return program.rows(problem.M, problem.lengths)


def _form_of(program: MatrixProgram) -> MatrixForm | None:
    """Return the closed form of one of flashsim's own programs; None where it has none, or is the
    user's.
    """
    from flashsim.theory.matrices import matrix_forms

    code = getattr(inspect.unwrap(program.run), "__code__", None)
    if code is None or not file_of(code).startswith(PACKAGE):
        return None
    return matrix_forms().get(program.name)


def _fits_by_trial(plan: MatrixPlan, blocks: Sizes, M: int) -> bool:
    """Say whether a run with these blocks stays within M, by running the program's shadow on
    shapes.
    """
    from flashsim.simulate.shadow import shadow_of

    shadow = replace(plan.program, run=shadow_of(plan.program.run))
    try:
        at_M = replace(plan.problem, M=M)
        simulate(
            replace(
                plan,
                program=shadow,
                problem=at_M,
                blocks=blocks,
                enforced=True,
                arithmetic=False,
            )
        )
    except SramOverflow:
        return False
    return True


def _gathered(plan: MatrixPlan, outcome: Outcome) -> Result:
    """Return the finished run.

    Raises ValueError where finite operands overflowed a result's type, MemoryModelError for NaN of
    a program of the user's own.
    """
    _check_stored(plan, outcome)
    program = plan.program
    results = {}
    numbers = [name for name, kind in program.operands.items() if kind.type in ("inputs", "chip")]
    for name, kind in program.returns.items():
        result = np.array(outcome.matrices[name][0])
        if plan.is_user_defined and np.isnan(result).any():
            raise MemoryModelError(
                f"{program.name!r} ({program.title}) returned {name} with NaN in it: rows of it "
                "were never stored, or it was "
                "made of what an ended turn computed and did not put on chip, or its numbers are "
                "too large"
            )
        if not np.isfinite(result).all():
            overflow = f"{name} overflows {result.dtype}, which ends at {largest(result.dtype):.3g}"
            raise ValueError(
                f"{overflow}. Scale {' and '.join(numbers)} down, or use a wider dtype"
            )
        results[name] = result[:, 0] if kind.columns == "1" else result
    return _result(plan, outcome, arrays=results)


def _check_stored(plan: MatrixPlan, outcome: Outcome) -> None:
    """Raise MemoryModelError where a user's program stores fewer elements of a result than it has:
    its loops do not cover the result, so what it moves is not what the whole would.
    """
    if not plan.is_user_defined:
        return
    program = plan.program
    for name, kind in program.returns.items():
        rows, columns = kind.shape(plan.sizes)
        traffic = outcome.total.traffic.by_array.get(name)
        stored = 0 if traffic is None else traffic.writes
        if stored < rows * columns and name not in program.operands:
            raise MemoryModelError(
                f"{program.name!r} ({program.title}) stores {stored:,} of the {rows * columns:,} "
                f"elements of {name}; expected all of them. Do its loops cover {name}?"
            )


class _Coverage:
    """An observer that notes which elements of some matrices are stored."""

    def __init__(self, shapes: Mapping[str, tuple[int, int]]) -> None:
        self.stored = {name: np.zeros(shape, bool) for name, shape in shapes.items()}

    def __call__(self, event: Event) -> None:
        """Note a store, or that a whole matrix is set."""
        stored = self.stored.get(event.name.partition("[")[0])
        if stored is None:
            return
        if event.kind == "init":
            stored[...] = True
        elif event.kind == "store" and event.where is not None:
            stored[event.where] = True
        elif event.kind == "store":
            stored[list(event.rows or ())] = True


def _rehearse(plan: MatrixPlan) -> None:
    """Run a user's program that is counted once on small random numbers, unnoticed. Raises
    MemoryModelError where elements of a result are not stored: a count has no numbers, so that it
    cannot tell a part that is stored twice from two parts.

    A program that reads where to go on is rehearsed if its record has an `example`.
    """
    program = plan.program
    needs_example = any(kind.type in ("words", "index") for kind in program.operands.values())
    if not plan.is_user_defined or (needs_example and program.example is normal):
        return
    from flashsim.simulate.shadow import shadow_of

    sizes = Sizes(**{symbol: min(length, SMALL) for symbol, length in plan.sizes.items()})
    blocks = sizes.clipped(program.blocks, [min(size, 2) for size in plan.blocks.values()])
    rng = np.random.default_rng(0)
    operands, options = program.example(rng, sizes, blocks)
    arrays = dict(operands)
    for name, kind in program.operands.items():
        if name not in arrays:
            arrays[name] = rng.normal(size=kind.shape(sizes)).astype(kind.dtype(plan.dtype))
    coverage = _Coverage({name: kind.shape(sizes) for name, kind in program.returns.items()})
    rehearsal = replace(
        plan,
        program=replace(program, run=shadow_of(program.run)),
        problem=replace(plan.problem, lengths=sizes),
        blocks=blocks,
        arrays=arrays,
        options={**plan.options, **options},
        enforced=False,
        arithmetic=True,
    )
    try:
        simulate(rehearsal, [coverage])
    except MemoryModelError:
        raise
    except Exception:  # of a function that does not take such numbers or sizes: its run will say it
        return
    for name, stored in coverage.stored.items():
        missing = stored.size - int(np.count_nonzero(stored))
        if missing and name not in program.operands:
            raise MemoryModelError(
                f"{program.name!r} ({program.title}) leaves {missing:,} of the {stored.size:,} "
                f"elements of {name} without a store, with {sizes!r} and {blocks!r}; expected all "
                f"stored. Do its loops cover {name}?"
            )


def _result(plan: MatrixPlan, outcome: Outcome, **more: Any) -> Result:
    cost = outcome.total
    return Result(
        plan=plan, hbm=cost.traffic, sram=Occupancy(cost.peak, plan.M, plan.enforced), **more
    )

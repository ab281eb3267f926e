"""What `simulate` runs: a plan, which lists its launches. There is a kind of plan for each kind of
problem.

    AttentionPlan   attention with heads, a mask, dropout          flashsim.simulate.attention
    MatrixPlan      a program on matrices of given sizes           flashsim.simulate.matrices
    BatchPlan       a ragged batch                                 flashsim.serving.api
    DevicesPlan     attention that is shared out over devices      flashsim.devices.api

    PassPlan        what follows a backward pass: sums over heads  flashsim.simulate.sums

A plan is data: a program, a problem with its operands, block sizes, and the memory to run in.

A new kind of problem needs a class that says what is to be computed, a kind of `Program` with what
its functions take, a plan class, and a public function that checks what users hand in, makes the
plan, calls `simulate`, and returns a `flashsim.simulate.results.Result`.
Besides the methods of `Plan`, a plan has `blocks`, which results show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM
from flashsim.simulate.outcome import Outcome

if TYPE_CHECKING:  # theory is loaded when it is used
    from flashsim.theory.closed_form import Exact

Shape = tuple[int, int]


@dataclass(frozen=True, repr=False)
class Operand:
    """A matrix that is in HBM when a launch begins: its numbers, or, to count, its shape.

    index  whether it holds words that the program reads one by one, to know where to go on: it has
           them in a count, too
    """

    name: str
    values: NDArray[Any] | Shape
    dtype: np.dtype[Any]
    index: bool = False

    def described(self) -> str:
        """Return name, shape and dtype, without the numbers."""
        shape = self.values if isinstance(self.values, tuple) else self.values.shape
        return f"{self.name} {shape} {self.dtype}"

    def __repr__(self) -> str:
        return f"Operand({self.described()})"


@dataclass(frozen=True, kw_only=True, repr=False)
class Launch:
    """One call of a program's function: run(memory, *first, *operands, *arguments).

    operands   what is placed in HBM
    takes      the names of those that the function takes, in order; None: all of them
    first      what it takes before its operands
    make_arguments  returns what it takes behind its operands; some of it, such as a mask, works on
                    the launch's own memory
    returns    the names of the matrices that it returns; more than one list where it has a choice;
               (): not known
    folds      whether turns of a loop that are known to cost alike are counted at once
    key        which of `Outcome.sums` it adds to
    """

    operands: Sequence[Operand]
    make_arguments: Callable[[HBM, SRAM], Sequence[Any]]
    takes: Sequence[str] | None = None
    first: Sequence[Any] = ()
    returns: Sequence[tuple[str, ...]] = ()
    folds: bool = False
    key: Any = None

    def __repr__(self) -> str:
        operands = [operand.described() for operand in self.operands]
        return f"Launch({', '.join(operands)})"


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan:
    """A program on a problem: all that is known before the run. Each kind of problem has a kind of
    plan, which adds to this.

    program     the record of what runs: `name`, `title`, and the function, `run`
    problem     what is to be computed. Each kind has M, SRAM's size in elements, and dtype, the
                inputs' type. On chip, numbers of 16 bits are of 32
    enforced    whether to exceed M is an error
    arithmetic  whether there are numbers; otherwise the run only counts, on shapes
    is_user_defined  whether the function is the user's own: nothing is known of its loops, and it
                     may break rules
    """

    program: Any
    problem: Any
    enforced: bool = True
    arithmetic: bool
    is_user_defined: bool = False

    side_by_side: ClassVar[bool] = False
    """Whether launches run side by side, on devices that are joined by links; otherwise one
    after another.
    """

    def __repr__(self) -> str:
        parts = [repr(self.program.name), *self.described_operands(), f"M = {self.M:,}"]
        return f"{type(self).__name__}({', '.join(parts)})"

    def described_operands(self) -> Sequence[str]:
        """Return name, shape and dtype of each operand, for a short description; to count,
        lengths and the dtype.
        """
        return (self.dtype.name,)

    @property
    def M(self) -> int:
        """SRAM's size in elements."""
        M: int = self.problem.M
        return M

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the inputs."""
        dtype: np.dtype[Any] = self.problem.dtype
        return dtype

    def launches(self, outcome: Outcome) -> Iterable[Launch]:
        """Yield the launches, each on a memory of its own. `outcome` has what the launches
        before left.
        """
        raise NotImplementedError

    def exact(self) -> Exact:
        """Return what this run costs, by formula. Raises NoClosedForm where there is none."""
        from flashsim.theory.closed_form import NoClosedForm

        raise NoClosedForm(f"there is no closed form of {self.program.name!r}")

    def described(self) -> dict[str, Any]:
        """Return what was asked, as plain data."""
        raise NotImplementedError

    def main_results(self) -> Sequence[str]:
        """Return the names of the results that a short description shows."""
        return ()

    def shape_of(self, name: str) -> Shape | None:
        """Return the shape of a matrix that a launch returns; None: not known."""
        return None

    def keep(self, outcome: Outcome, launch: Launch, hbm: HBM, returned: Sequence[Matrix]) -> None:
        """Keep what a launch left in HBM: its results, and what comes after needs of it."""
        if self.arithmetic:
            outcome.add_matrices(hbm, [matrix.name for matrix in returned])

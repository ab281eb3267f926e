"""`Trial`: a problem that one program is tried on. Each kind of program has a kind of trial, and
checks know no other difference between the kinds.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from flashsim.algorithms.record import Program
from flashsim.memory.sram import Observer
from flashsim.simulate.results import Result
from flashsim.tracing import Recorder, Trace, traced

Array = NDArray[Any]


@dataclass(frozen=True)
class Trial(ABC):
    """A problem for a program: operands, blocks and options are fixed."""

    program: Program

    @abstractmethod
    def operands(self) -> Mapping[str, Array]:
        """Return the arrays that `run` takes: the same objects each time."""

    @abstractmethod
    def run(
        self,
        program: Any = None,
        M: int | None = None,
        observers: Sequence[Observer] = (),
    ) -> Result:
        """Run the program, or another one in its place, in the trial's memory or in M elements."""

    @cached_property
    def right(self) -> Result:
        """A run of the program itself."""
        return self.run()

    @abstractmethod
    def count(self) -> Result:
        """Count the same on shapes."""

    @abstractmethod
    def wrong(self, run: Result) -> list[str]:
        """Return the names of those results that are not the reference's, within rounding."""

    def costs(self, result: Result) -> Any:
        """Return what a run or a count cost."""
        return result.hbm, result.sram, result.blocks

    def exact(self, result: Result) -> Any:
        """Return the same by the closed form; None where theory has none for this problem."""
        exact = result.plan.exact()
        return exact.hbm, exact.sram, exact.blocks

    def matmul(self, result: Result) -> int | None:
        """Return the FLOPs of matrix products by the closed form; None where it has none."""
        matmul: int | None = result.plan.exact().matmul
        return matmul

    def in_common(self, result: Result) -> Any:
        """Return the costs in which a run and a count of the same must agree."""
        return self.costs(result)

    def peak(self, run: Result) -> int:
        """Return the most elements that were on chip."""
        return run.sram.peak

    def run_in(self, M: int, run: Result) -> Result:
        """Run in M elements with the blocks of that run."""
        return self.run(M=M)

    def may_refuse(self, error: ValueError) -> bool:
        """Return whether it is right that a run of this problem raises that error."""
        return False

    def trace(self) -> Trace | None:
        """Return the trace of the first launch; None where programs of this kind have none."""
        recorder = Recorder()
        return traced(recorder, self.run(observers=[recorder]))

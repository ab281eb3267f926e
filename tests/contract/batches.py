"""Trials of programs on ragged batches: those that `tests.helpers.ragged` draws."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from hypothesis import strategies as st

from flashsim import serving
from flashsim.memory.sram import Observer
from flashsim.serving.programs import programs
from flashsim.serving.record import BatchProgram
from flashsim.simulate.results import Result
from tests.contract.trials import Array, Trial
from tests.helpers.ragged import DRAWN, Drawn

PROGRAMS: Mapping[str, BatchProgram] = {
    **programs(),
    **{f"{name}, backward": program for name, program in programs("backward").items()},
}


def id_of(program: BatchProgram) -> str:
    return program.name if program.direction == "forward" else f"{program.name}, backward"


@dataclass(frozen=True)
class BatchTrial(Trial):
    program: BatchProgram
    seed: int

    @cached_property
    def drawn(self) -> Drawn:
        """The batch, the run of the right program, and what it must compute."""
        return DRAWN[id_of(self.program)](np.random.default_rng(self.seed))

    @property
    def right(self) -> Result:
        """What the function that users call returned."""
        run: Result = self.drawn.run
        return run

    def operands(self) -> Mapping[str, Array]:
        operands: Mapping[str, Array] = self.drawn.run.plan.operands
        return operands

    def run(
        self, program: Any = None, M: int | None = None, observers: Sequence[Observer] = ()
    ) -> Result:
        memory = {} if M is None else {"M": M}
        run: Result = self.drawn.again(program, observers, **memory)
        return run

    def run_in(self, M: int, run: Result) -> Result:
        """Count: it refuses what a run refuses."""
        blocks = (run.blocks.B_r, run.blocks.B_c)
        return serving.count(self.program.name, **{**self.drawn.asked, "M": M, "blocks": blocks})

    def count(self) -> Result:
        return serving.count(self.program.name, **self.drawn.asked)

    def wrong(self, run: Result) -> list[str]:
        return [f"{name}[{sequence}]" for sequence, name in self.drawn.wrong(run)]

    def in_common(self, result: Result) -> Any:
        """Pools have rows of no sequence, of which a count knows nothing: sizes may differ."""
        traffic = {}
        for name, array in result.hbm.by_array.items():
            traffic[name] = array.reads, array.writes
        return traffic, result.sram, result.blocks


def trials(program: BatchProgram) -> st.SearchStrategy[BatchTrial]:
    return st.builds(BatchTrial, st.just(program), st.integers(0, 2**32))


def samples(program: BatchProgram) -> list[BatchTrial]:
    return [BatchTrial(program, seed) for seed in range(1, 41)]

"""Trials of programs on matrices of given sizes: operands as their records draw them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from hypothesis import strategies as st

from flashsim.algorithms.program import MatrixProgram
from flashsim.analysis.verify.shared import drawn
from flashsim.attention.shapes import Sizes
from flashsim.extensions.programs import programs
from flashsim.memory.sram import Observer
from flashsim.reference import of_bound
from flashsim.reference.operands import naive_programs
from flashsim.simulate.matrices import count_program, run_program
from flashsim.simulate.results import Result
from tests.contract.trials import Array, Trial

PROGRAMS = programs()
MUCH = 10**6
DTYPES = ("float64", "float64", "float32", "float16")


@dataclass(frozen=True)
class MatrixTrial(Trial):
    program: MatrixProgram
    sizes: Sizes
    blocks: tuple[int, ...]
    seed: int = 0
    dtype: str = "float64"

    @cached_property
    def example(self) -> tuple[Mapping[str, Array], Mapping[str, Any]]:
        """Operands and options."""
        operands, options = drawn(self.program, self.sizes, self.blocks, self.seed)
        of_type = {}
        for name, array in operands.items():
            kind = self.program.operands[name]
            of_type[name] = array.astype(kind.dtype(np.dtype(self.dtype)))
        return of_type, options

    def operands(self) -> Mapping[str, Array]:
        return self.example[0]

    @property
    def how(self) -> dict[str, Any]:
        return {"M": MUCH, "blocks": self.blocks, "options": self.example[1]}

    def run(
        self, program: Any = None, M: int | None = None, observers: Sequence[Observer] = ()
    ) -> Result:
        how = self.how
        if M is not None:
            how["M"] = M
        return run_program(program or self.program, self.operands(), **how, observers=observers)

    def count(self) -> Result:
        index = {}
        for name, kind in self.program.operands.items():
            if kind.type == "index":
                index[name] = self.operands()[name]
        return count_program(self.program, self.sizes, **self.how, dtype=self.dtype, index=index)

    def wrong(self, run: Result) -> list[str]:
        """The bounds are of float64: results of other types are left to tests of their own."""
        if self.dtype != "float64":
            return []
        operands, options = self.example
        naive = naive_programs()[self.program.name]({**operands, **options}, run.blocks)
        names = []
        for name, (want, bound) in naive.items():
            if of_bound(run.arrays[name].reshape(want.shape), want, bound) > 1:
                names.append(name)
        return names


@st.composite
def trials(draw: st.DrawFn, program: MatrixProgram) -> MatrixTrial:
    lengths = {symbol: draw(st.integers(1, 16), label=symbol) for symbol in program.symbols}
    return MatrixTrial(
        program,
        sizes=Sizes(**lengths),
        blocks=tuple(draw(st.integers(1, 16), label=name) for name in program.blocks),
        seed=draw(st.integers(0, 99), label="seed"),
        dtype=draw(st.sampled_from(DTYPES)),
    )


def samples(program: MatrixProgram) -> list[MatrixTrial]:
    """Return a trial of a few tiles, and ragged ones with blocks of different sizes."""
    small = Sizes(**dict.fromkeys(program.symbols, 5))
    divided = {*program.blocks.values()}
    ragged = Sizes(**{symbol: 11 if symbol in divided else 6 for symbol in program.symbols})
    blocks = (4, 3, 2, 3)[: len(program.blocks)]
    few = MatrixTrial(program, small, (2,) * len(program.blocks))
    return [few, *(MatrixTrial(program, ragged, blocks, seed) for seed in range(4))]

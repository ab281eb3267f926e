"""`MatrixProgram`: a program on matrices, whose operands, their symbols and block sizes
are its own.

To add a program, as `kernel_x_outer` is one, with operands, symbols and block sizes of
its own:

1. `flashsim/extensions/programs/x.py`: the listing, a function with labelled lines, and
   at the end `PROGRAM = MatrixProgram(…)`. Give `example=` if operands are not just
   random numbers, and `bugs=`, mistakes that somebody could make, each as a change to
   its text.
2. `flashsim/theory/x.py`: its closed form, a `MatrixForm(…)`; those of a family share
   a file.
3. Its naive twin and bounds in `flashsim/reference/`, named in that module's `NAIVE`,
   and tests of its numbers in `tests/extensions/test_x.py`. `pytest tests/contract -k
   x` tests numbers, counts, labels and traces, and plants its bugs; `pytest
   tests/extensions -k x` tests bad input.
4. A function that users call, in a module beside `flashsim/extensions/kernels.py`, and
   that module in the list of `flashsim/__init__.py`; a section in `docs/beyond.md` and
   in `docs/reference/beyond.rst`; a lesson.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import numpy as np

from flashsim.algorithms.record import Program
from flashsim.attention.matrices import Kind
from flashsim.attention.shapes import Sizes
from flashsim.support.records import set_fields

QKV: Mapping[str, Kind] = {
    "Q": Kind("N", "d"),
    "K": Kind("N", "d"),
    "V": Kind("N", "e"),
}
"""What stands in for attention takes these."""
Example = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Operands and options, by name."""


def normal(rng: np.random.Generator, sizes: Sizes, blocks: Sizes) -> Example:
    """Return the default example: normally distributed operands, no options."""
    return {}, {}


@dataclass(frozen=True, kw_only=True)
class MatrixProgram(Program):
    """One pass: `run(hbm, sram, *operands, blocks, *options)` returns a matrix in HBM,
    or several.

    name       "": as its function
    operands   matrices it takes, by name, each with its kind: shape in the program's
               own symbols, and type
    returns    matrices it returns, in order
    extras     other matrices that it makes in HBM
    options    what else it takes behind `blocks`, by name, in order; whoever asks for
               the run checks the values; (): as its function's parameters say
    blocks     its block sizes: name -> the symbol of the length that it divides
    line_1     (rows, lengths) -> block sizes, in the order of `blocks`: how they grow
               with one number, for which sizing="fit" takes the largest that fits,
               such as `lambda rows, lengths: (rows, rows)`; None: they must be given
    rows       (M, lengths) -> that number for sizing="paper", line 1 as printed; None:
               there is no such sizing
    by         the block sizes that divide what the player shows as rows and as columns
               of tiles; (): the first and the last
    plane      the symbols of these; (): those that `by` divide
    across     where these are one symbol: the matrices whose rows are columns there
    words      what those rows and columns are called there, "queries" and "keys" in
               attention
    follows    what the player follows from tile to tile, as in
               `flashsim.algorithms.Algorithm`; (): what is returned
    example    (random numbers, lengths, block sizes) -> operands and options to try it
               with; an operand left out is normal
    """

    name: str = ""
    operands: Mapping[str, Kind] = field(hash=False)
    returns: Mapping[str, Kind] = field(hash=False)
    extras: Mapping[str, Kind] = field(default_factory=dict, hash=False)
    options: tuple[str, ...] = ()
    blocks: Mapping[str, str] = field(hash=False)
    line_1: Callable[[int, Sizes], tuple[int, ...]] | None = None
    rows: Callable[[int, Sizes], int] | None = None
    by: tuple[str, ...] = ()
    plane: tuple[str, ...] = ()
    across: tuple[str, ...] = ()
    words: tuple[str, str] = ("rows", "columns")
    follows: tuple[str, ...] = ()
    example: Callable[[np.random.Generator, Sizes, Sizes], Example] = normal

    def __post_init__(self) -> None:
        sizes = tuple(self.blocks)
        by = self.by or (sizes[0], sizes[-1])
        defaults = {
            "name": getattr(self.run, "__name__", ""),
            "options": tuple(signature(self.run).parameters)[len(self.operands) + 3 :],
            "by": by,
            "plane": tuple(self.blocks[size] for size in by),
            "follows": tuple(self.returns),
        }
        for name, value in defaults.items():
            set_fields(self, **{name: getattr(self, name) or value})

    @property
    def kinds(self) -> dict[str, Kind]:
        """The kind of each matrix, by name."""
        return {**self.operands, **self.returns, **self.extras}

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols of the lengths that its operands have, in order."""
        sides = [
            side
            for kind in self.operands.values()
            for side in (kind.rows, kind.columns)
        ]
        return tuple(dict.fromkeys(side for side in sides if not side.isdigit()))

"""What a program that serves is: a record at the end of its file, as an algorithm's is.

To add one:

1. `flashsim/serving/programs/x.py`: the listing, a function of one KV head with labelled lines, and
   at the end `PROGRAM = BatchProgram(…)`, with `bugs=` that tests plant.
2. `flashsim/serving/theory/x.py`: `FORM = BatchForm(…)`, what each array moves, and the exact
   peak.
3. A function that users call, in a module of `flashsim/serving/`. In `tests/helpers/ragged.py`, a
   function that draws a batch for it, and the expected results. `tests/contract` finds all else:
   numbers, counts, the peak, labels, traces, bugs.
4. Its name in the choices of `flashsim/cli/serve.py`.

A program of the user's own is counted by its record, with `blocks=`: `flashsim.serving.count`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flashsim.algorithms.blocks import q_outer_blocks
from flashsim.algorithms.record import Program
from flashsim.serving.batch import Batch, Operands


def one_line_1(rows: int, batch: Batch, **options: Any) -> tuple[int, int]:
    """Return (B_r, B_c) of a block of Q of `rows` rows, in the proportions of `q_outer`."""
    return q_outer_blocks(rows, -(-(batch.d + batch.d_v) // 2))


@dataclass(frozen=True, kw_only=True)
class BatchProgram(Program):
    """A function `run(hbm, sram, batch, *operands, *options)` of one KV head, with the query heads
    that share it as its rows.

    options    (batch, its own options by name) -> all of them, checked, in the order in which `run`
               takes them
    operands   (batch, options) -> each on lengths alone, in order: its shape; or, of an index
               array, its words
    shared     those that are not words and that all KV heads share nevertheless
    stored     the types of those that are not of the batch's, by name
    returns    the matrices in HBM that it returns
    line_1     (rows, batch, options by name) -> (B_r, B_c): the proportions of blocks, where none
               are asked for
    """

    options: Callable[..., Mapping[str, Any]] = lambda batch: {}
    operands: Callable[[Batch, Mapping[str, Any]], Operands]
    shared: tuple[str, ...] = ()
    stored: Mapping[str, str] = field(default_factory=dict)
    returns: tuple[str, ...] = ("O", "L")
    line_1: Callable[..., tuple[int, int]] = one_line_1

"""Latent attention, absorbed, to latents in pages: paged attention's program, or that in splits,
whose V is a view of C.

    Require: Q of all sequences, W_UK absorbed in it, a pool C of pages of p rows, their table, and
             lengths in HBM, t splits. The lines are those of paged.py, or, with t > 1, of
             paged_split.py, with C for K. In line 9 C_c alone is loaded: it is K_c, and V_c is its
             first u columns.

Source: FlashMLA, whose cache has pages of 64 rows, which splits share out. The listing is ours.
"""

from collections.abc import Mapping
from typing import Any

from flashsim.algorithms.record import Bug
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM
from flashsim.serving.batch import Batch, Operands
from flashsim.serving.programs import mla, paged, paged_split
from flashsim.serving.record import BatchProgram


def mla_paged(
    hbm: HBM,
    sram: SRAM,
    batch: Batch,
    Q: Matrix,
    C: Matrix,
    table: Matrix,
    lengths: Matrix,
    page: int,
    tail: str,
    splits: int,
) -> tuple[Matrix, Matrix]:
    """Run on Q (R, w), a pool C (pages·p, w), words `table` and `lengths`; return O (R, u), L
    (R, 1).
    """
    V = paged.FirstColumns(C, batch.d_v)
    if splits > 1:
        return paged_split.paged_split(
            hbm, sram, batch, Q, C, V, table, lengths, page, tail, splits
        )
    return paged.paged(hbm, sram, batch, Q, C, V, table, lengths, page, tail)


def check_options(
    batch: Batch, *, page: Any, tail: Any = "rows", splits: Any = 1
) -> Mapping[str, Any]:
    """Return those of paged_split. Raises ValueError where the value has more columns than the
    key, too.
    """
    return {
        **mla.check_options(batch),
        **paged_split.check_options(batch, page=page, tail=tail, splits=splits),
    }


def operands(batch: Batch, options: Mapping[str, Any]) -> Operands:
    arrays = paged.operands(batch, options)
    return {
        "Q": arrays["Q"],
        "C": arrays["K"],
        "table": arrays["table"],
        "lengths": arrays["lengths"],
    }


PROGRAM = BatchProgram(
    name="mla_paged",
    title="Latent attention in pages",
    run=mla_paged,
    options=check_options,
    operands=operands,
    line_1=paged.line_1,
    bugs=(
        Bug("the value has the columns of rope, too", "batch.d_v", "batch.d"),
        Bug("one split is left out", "page, tail, splits)", "page, tail, splits - 1)"),
        Bug("parts are written for one split, too", "splits > 1", "splits > 0"),
    ),
)

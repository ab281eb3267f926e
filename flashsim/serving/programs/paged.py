"""Attention to keys and values in pages: a table says, for each sequence, which pages of the pool
are its own.

    Require: Q of all sequences, pools K and V of pages of p rows, their table, and lengths n_s in
             HBM, on-chip SRAM of size M.
    1  for each sequence s, all at once, do
    2    for 1 ≤ i ≤ T_r do
    3      n ← word(lengths[s]).
    4      Load Q_i from HBM to on-chip SRAM.
    5      Initialize O_i = (0)_{B_r×d}, ℓ_i = (0)_{B_r}, m_i = (−∞)_{B_r} on SRAM.
    6      for 1 ≤ j ≤ ⌈e_i/p⌉, the pages with a key that row block i sees, do
    7        b ← word(table[s, j]), refused unless b < pages. r ← p, or the rows that are filled,
             n − (j − 1)p at most.
    8        for each tile c of page b's first r rows with a key that is seen do
    9          Load K_c, V_c from HBM to on-chip SRAM.
    10         S_ic = τ Q_i K_cᵀ.
    11         S_ic^masked = MASK(S_ic): −∞ for keys beyond n, and for those after a row's position.
    12         m_i^new = max(m_i, rowmax(S_ic^masked)).
    13         P̃_ic = exp(S_ic^masked − m_i^new).
    14         ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ic).
    15         O_i ← diag(e^{m_i − m_i^new}) O_i + P̃_ic V_c.
    16         m_i ← m_i^new.
    17       end for
    18     end for
    19     O_i ← diag(ℓ_i)⁻¹ O_i, L_i = m_i + log ℓ_i.
    20     Write O_i, L_i to HBM.
    21   end for
    22 end for
    23 Return O, L.

Source: "Efficient Memory Management for Large Language Model Serving with PagedAttention" (Kwon et
al.); the listing is ours. Tiles do not straddle pages: B_c divides p, and is p unless blocks say
otherwise. With tail = "page" whole tiles of the last page are loaded, filled or not, as TMA does,
and what is not filled is masked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flashsim.algorithms.notation import exp, finite, log, maximum, nonzero, product, rowmax, rowsum
from flashsim.algorithms.record import Bug
from flashsim.attention.arguments import check_choice, check_count
from flashsim.memory.hbm import HBM, Block, Matrix, Tile
from flashsim.memory.sram import SRAM
from flashsim.serving.batch import Batch, Operands
from flashsim.serving.checks import check_word
from flashsim.serving.record import BatchProgram
from flashsim.support.sizes import ceil_div

TAILS = ("rows", "page")


def paged(
    hbm: HBM,
    sram: SRAM,
    batch: Batch,
    Q: Matrix,
    K: Matrix,
    V: Matrix | FirstColumns,
    table: Matrix,
    lengths: Matrix,
    page: int,
    tail: str,
) -> tuple[Matrix, Matrix]:
    """Run on Q (R, d), pools K (pages·p, d), V (pages·p, d_v), words `table` and `lengths`;
    return O (R, d_v), L (R, 1).
    """
    on_chip = sram.on_chip
    B_r = batch.B_r
    B_c = batch.B_c
    tau = batch.tau
    O = hbm.empty("O", (Q.shape[0], V.shape[1]), V.dtype, "output")
    L = hbm.empty("L", (Q.shape[0], 1), sram.dtype)
    table = table.divide(1, 1)
    lengths = lengths.divide(1, 1)
    for s in sram.loop(len(batch), alike=batch.alike):  # line 1
        Q_s, O_s, L_s = (X.rows(*batch.rows(s)).divide(B_r) for X in (Q, O, L))
        for i in sram.loop(len(Q_s), alike=batch.rows_alike(s)):  # line 2
            n = sram.word(lengths[s, 0])  # line 3
            Q_i = sram.load(Q_s[i])  # line 4
            O_i = sram.full(O_s[i].shape, 0.0)  # line 5
            l_i = sram.full(L_s[i].shape, 0.0)  # line 5
            m_i = sram.full(L_s[i].shape, float("-inf"))  # line 5
            e_i = batch.seen(s, i, n)
            for j in sram.loop(ceil_div(e_i, page)):  # line 6
                b = check_word("table", s, j, sram.word(table[s, j]), K.shape[0] // page)  # line 7
                r = page if tail == "page" else min(page, n - j * page)  # line 7
                K_b, V_b = (X.rows(b * page, b * page + r).divide(B_c) for X in (K, V))
                for c in sram.loop(ceil_div(min(page, e_i - j * page), B_c)):  # line 8
                    K_c, V_c = tile_of(sram, K_b[c], V_b[c])  # line 9
                    S_ic = on_chip(tau * (Q_i @ K_c.T))  # line 10
                    S_masked_ic = on_chip(  # line 11
                        batch.mask(S_ic, s, i, j * page + c * B_c, n), over=S_ic
                    )
                    m_i_new = on_chip(maximum(m_i, rowmax(S_masked_ic)))  # line 12
                    P_tilde_ic = on_chip(  # line 13
                        exp(S_masked_ic - finite(m_i_new)), over=S_masked_ic
                    )
                    l_i = on_chip(  # line 14
                        exp(m_i - finite(m_i_new)) * l_i + rowsum(P_tilde_ic), over=l_i
                    )
                    O_i = on_chip(  # line 15
                        exp(m_i - finite(m_i_new)) * O_i + product(P_tilde_ic, V_c), over=O_i
                    )
                    m_i = on_chip(m_i_new, over=m_i)  # line 16
                # line 17: end for
            # line 18: end for
            O_i = on_chip(O_i / nonzero(l_i), over=O_i)  # line 19
            L_i = on_chip(m_i + log(l_i), over=l_i)  # line 19
            sram.store(O_s[i], O_i)  # line 20
            sram.store(L_s[i], L_i)  # line 20
        # line 21: end for
    # line 22: end for
    return O, L  # line 23


class FirstColumns:
    """V of latents: no matrix of its own, but the first u columns of each row of C."""

    def __init__(self, C: Matrix, u: int) -> None:
        self.shape, self.dtype = (C.shape[0], u), C.dtype

    def rows(self, a: int, b: int) -> FirstColumns:
        """Return the same, of these rows of C."""
        return self

    def divide(self, rows: int) -> FirstColumns:
        """Return the same, in blocks."""
        return self

    def __getitem__(self, c: int) -> FirstColumns:
        return self


def tile_of(sram: SRAM, K_c: Any, V_c: Block | FirstColumns) -> tuple[Tile, ...]:
    """Load a tile of keys, and of values; or take the values from the keys."""
    if isinstance(V_c, FirstColumns):
        C_c = sram.load(K_c)  # line 9
        return C_c, C_c[:, : V_c.shape[1]]
    return sram.load(K_c, V_c)  # line 9


def check_options(batch: Batch, *, page: Any, tail: Any = "rows") -> Mapping[str, Any]:
    """Return the size of pages, and how much of the last one is loaded."""
    return {"page": check_count("page", page), "tail": check_choice("tail", tail, TAILS)}


def operands(batch: Batch, options: Mapping[str, Any]) -> Operands:
    """Return the operands on lengths alone: pages of each sequence one after another."""
    needed = [ceil_div(n, options["page"]) for n in batch.keys]
    table = np.zeros((len(batch), max([1, *needed])), np.uint32)
    free = 0
    for s, pages in enumerate(needed):
        table[s, :pages] = free + np.arange(pages)
        free += pages
    rows = free * options["page"]
    pools = {"K": (rows, batch.d), "V": (rows, batch.d_v)}
    return {
        **batch.shapes(),
        **pools,
        "table": table,
        "lengths": np.array(batch.keys, np.uint32).reshape(-1, 1),
    }


def line_1(rows: int, batch: Batch, page: int = 0, **_: Any) -> tuple[int, int]:
    """Return (rows, p)."""
    return rows, page


PROGRAM = BatchProgram(
    name="paged",
    title="Paged attention",
    run=paged,
    options=check_options,
    operands=operands,
    line_1=line_1,
    bugs=(
        Bug(
            "the last page's tail is not masked",
            "batch.mask(S_ic, s, i, j * page + c * B_c, n)",
            "S_ic",
        ),
        Bug("keys are counted from the page", "s, i, j * page + c * B_c, n", "s, i, c * B_c, n"),
        Bug("another sequence's table", "table[s, j]), K", "table[s - 1, j]), K"),
        Bug(
            "the pool is read as if it were contiguous",
            "X.rows(b * page, b * page + r)",
            "X.rows(j * page, j * page + r)",
        ),
        Bug(
            "a word more for each page",
            "check_word(",
            "sram.word(table[s, j]) - sram.word(table[s, j]) + check_word(",
        ),
        Bug("all pages are read for all rows", "ceil_div(e_i, page)", "ceil_div(n, page)"),
        Bug(
            "whole pages whatever is filled",
            'page if tail == "page" else min(page, n - j * page)',
            "page",
        ),
    ),
)

"""Paged decoding in splits: each row block's pages in t runs, which are attended to independently,
and merged.

    Require: Q of all sequences, pools K and V of pages of p rows, their table, and lengths n_s in
             HBM, on-chip SRAM of size M.
    1  for each split k of t, each sequence s, all at once, do
    2    for 1 ≤ i ≤ T_r do
    3      n ← word(lengths[s]).
    4      Load Q_i from HBM to on-chip SRAM.
    5      Initialize O_i = (0)_{B_r×d}, ℓ_i = (0)_{B_r}, m_i = (−∞)_{B_r} on SRAM.
    6      for each page j of the k-th run of ⌈⌈e_i/p⌉/t⌉ pages do
    7        b ← word(table[s, j]), refused unless b < pages. r ← p, or the rows that are filled,
             n − (j − 1)p at most.
    8        for each tile c of page b's first r rows with a key that is seen do
    9          Load K_c, V_c from HBM to on-chip SRAM.
    10         S_ic^masked = MASK(τ Q_i K_cᵀ): −∞ for keys beyond n,
               and for those after a row's position.
    11         m_i^new = max(m_i, rowmax(S_ic^masked)), P̃_ic = exp(S_ic^masked − m_i^new).
    12         ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ic).
    13         O_i ← diag(e^{m_i − m_i^new}) O_i + P̃_ic V_c, m_i ← m_i^new.
    14       end for
    15     end for
    16     Write (O_i, ℓ_i, m_i) as part k to HBM.
    17   end for
    18 end for
    19 Merge the parts of each row block in order, divide by ℓ, and write O_i,
       L_i = m_i + log ℓ_i to HBM.
    20 Return O, L.

The listing is ours: paged attention (paged.py), cut and merged as FlashDecoding
(`flashsim.algorithms.split_kv`). A run that is empty leaves (0, 0, −∞), which changes nothing when
merged.
"""

from collections.abc import Mapping
from typing import Any

from flashsim.algorithms.notation import exp, finite, log, maximum, nonzero, product, rowmax, rowsum
from flashsim.algorithms.record import Bug
from flashsim.attention.arguments import MOST_SPLITS, check_count
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM
from flashsim.serving.batch import Batch
from flashsim.serving.checks import check_word
from flashsim.serving.programs import paged
from flashsim.serving.record import BatchProgram
from flashsim.support.sizes import ceil_div


def paged_split(
    hbm: HBM,
    sram: SRAM,
    batch: Batch,
    Q: Matrix,
    K: Matrix,
    V: Matrix | paged.FirstColumns,
    table: Matrix,
    lengths: Matrix,
    page: int,
    tail: str,
    splits: int,
) -> tuple[Matrix, Matrix]:
    """Run on Q (R, d), pools K (pages·p, d), V (pages·p, d_v), words `table` and `lengths`;
    return O (R, d_v), L (R, 1).
    """
    on_chip = sram.on_chip
    B_r = batch.B_r
    B_c = batch.B_c
    tau = batch.tau
    R = Q.shape[0]
    d_v = V.shape[1]
    O = hbm.empty("O", (R, d_v), V.dtype, "output")
    L = hbm.empty("L", (R, 1), sram.dtype)
    O_parts = hbm.empty("O_parts", (R, splits * d_v), sram.dtype).divide(max(R, 1), d_v)
    l_parts, m_parts = (
        hbm.empty(f"{X}_parts", (R, splits), sram.dtype).divide(max(R, 1), 1) for X in "lm"
    )
    table = table.divide(1, 1)
    lengths = lengths.divide(1, 1)
    for k in sram.loop(splits, alike=range(splits)):  # line 1
        for s in sram.loop(len(batch), alike=batch.alike):  # line 1
            rows = batch.rows(s)
            Q_s = Q.rows(*rows).divide(B_r)
            O_s, l_s, m_s = (
                X.rows(*rows).divide(B_r, w)
                for X, w in ((O_parts, d_v), (l_parts, 1), (m_parts, 1))
            )
            for i in sram.loop(len(Q_s), alike=batch.rows_alike(s)):  # line 2
                n = sram.word(lengths[s, 0])  # line 3
                Q_i = sram.load(Q_s[i])  # line 4
                O_i = sram.full(O_s[i, k].shape, 0.0)  # line 5
                l_i = sram.full(l_s[i, k].shape, 0.0)  # line 5
                m_i = sram.full(m_s[i, k].shape, float("-inf"))  # line 5
                e_i = batch.seen(s, i, n)
                pages = ceil_div(e_i, page)
                run = ceil_div(pages, splits)
                for j in sram.loop(range(min(k * run, pages), min((k + 1) * run, pages))):  # line 6
                    b = check_word(  # line 7
                        "table", s, j, sram.word(table[s, j]), K.shape[0] // page
                    )
                    r = page if tail == "page" else min(page, n - j * page)  # line 7
                    K_b, V_b = (X.rows(b * page, b * page + r).divide(B_c) for X in (K, V))
                    for c in sram.loop(ceil_div(min(page, e_i - j * page), B_c)):  # line 8
                        K_c, V_c = paged.tile_of(sram, K_b[c], V_b[c])  # line 9
                        S_ic = on_chip(tau * (Q_i @ K_c.T))  # line 10
                        S_masked_ic = on_chip(  # line 10
                            batch.mask(S_ic, s, i, j * page + c * B_c, n), over=S_ic
                        )
                        m_i_new = on_chip(maximum(m_i, rowmax(S_masked_ic)))  # line 11
                        P_tilde_ic = on_chip(  # line 11
                            exp(S_masked_ic - finite(m_i_new)), over=S_masked_ic
                        )
                        l_i = on_chip(  # line 12
                            exp(m_i - finite(m_i_new)) * l_i + rowsum(P_tilde_ic), over=l_i
                        )
                        O_i = on_chip(  # line 13
                            exp(m_i - finite(m_i_new)) * O_i + product(P_tilde_ic, V_c), over=O_i
                        )
                        m_i = on_chip(m_i_new, over=m_i)  # line 13
                    # line 14: end for
                # line 15: end for
                sram.store(O_s[i, k], O_i)  # line 16
                sram.store(l_s[i, k], l_i)  # line 16
                sram.store(m_s[i, k], m_i)  # line 16
            # line 17: end for
    # line 18: end for
    for s in sram.loop(len(batch), alike=batch.alike):  # line 19
        rows = batch.rows(s)
        parts = [
            X.rows(*rows).divide(B_r, w) for X, w in ((O_parts, d_v), (l_parts, 1), (m_parts, 1))
        ]
        _merge(sram, *parts, *(X.rows(*rows).divide(B_r) for X in (O, L)))  # line 19
    return O, L  # line 20


def _merge(
    sram: SRAM, O_parts: Matrix, l_parts: Matrix, m_parts: Matrix, O: Matrix, L: Matrix
) -> None:
    """Merge the parts of each row block one after another, as FlashDecoding does; write O, and L
    = m + log ℓ.
    """
    on_chip = sram.on_chip
    T_r, splits = l_parts.blocks
    for i in sram.loop(T_r):  # line 19
        O_i = sram.full(O[i].shape, 0.0)  # line 19
        l_i = sram.full(l_parts[i, 0].shape, 0.0)  # line 19
        m_i = sram.full(m_parts[i, 0].shape, float("-inf"))  # line 19
        for k in sram.loop(splits):  # line 19
            O_k, l_k, m_k = sram.load(O_parts[i, k], l_parts[i, k], m_parts[i, k])  # line 19
            m_i_new = on_chip(maximum(m_i, m_k))  # line 19
            O_i = on_chip(  # line 19
                exp(m_i - finite(m_i_new)) * O_i + exp(m_k - finite(m_i_new)) * O_k, over=O_i
            )
            l_i = on_chip(  # line 19
                exp(m_i - finite(m_i_new)) * l_i + exp(m_k - finite(m_i_new)) * l_k, over=l_i
            )
            m_i = on_chip(m_i_new, over=m_i)  # line 19
        O_i = on_chip(O_i / nonzero(l_i), over=O_i)  # line 19
        sram.store(O[i], O_i)  # line 19
        L_i = on_chip(m_i + log(l_i), over=l_i)  # line 19
        sram.store(L[i], L_i)  # line 19


def check_options(batch: Batch, *, page: Any, tail: Any = "rows", splits: Any) -> Mapping[str, Any]:
    """Return the same as of "paged", and in how many runs each row block's pages are."""
    return {
        **paged.check_options(batch, page=page, tail=tail),
        "splits": check_count("splits", splits, most=MOST_SPLITS),
    }


PROGRAM = BatchProgram(
    name="paged_split",
    title="Paged attention in splits",
    run=paged_split,
    options=check_options,
    operands=paged.operands,
    line_1=paged.line_1,
    bugs=(
        Bug(
            "a run begins where the one before it began",
            "min(k * run, pages)",
            "min(max(k - 1, 0) * run, pages)",
        ),
        Bug("pages are counted from the run", "table[s, j]), K", "table[s, j - k * run]), K"),
        Bug(
            "ℓ and m exchanged",
            "O_parts, d_v), (l_parts, 1), (m_parts, 1))]",
            "O_parts, d_v), (m_parts, 1), (l_parts, 1))]",
        ),
        Bug("n of the sequence before", "sram.word(lengths[s, 0])", "sram.word(lengths[s - 1, 0])"),
    ),
)

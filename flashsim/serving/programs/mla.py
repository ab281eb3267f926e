"""Latent attention, absorbed: one row of C a token is the key of all heads, and its first u columns
are their value.

    Require: Q of all sequences, W_UK absorbed in it, and C in HBM, on-chip SRAM of size M.
    1  for each sequence s, all at once, 1 ≤ i ≤ T_r of its rows, head by head of a position, do
    2    Load Q_i from HBM to on-chip SRAM.
    3    Initialize O_i = (0)_{B_r×u}, ℓ_i = (0)_{B_r}, m_i = (−∞)_{B_r} on SRAM.
    4    for each tile j of the keys that a row sees do
    5      Load C_j from HBM to on-chip SRAM, once: it is K_j, and V_j is a view,
           its first u columns.
    6      S_ij^masked = MASK(τ Q_i C_jᵀ), with τ of the model before anything was absorbed.
    7      m_i^new = max(m_i, rowmax(S_ij^masked)), P̃_ij = exp(S_ij^masked − m_i^new).
    8      ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ij).
    9      O_i ← diag(e^{m_i − m_i^new}) O_i + P̃_ij V_j, m_i ← m_i^new.
    10   end for
    11   O_i ← diag(ℓ_i)⁻¹ O_i, L_i = m_i + log ℓ_i.
    12   Write O_i, L_i to HBM.
    13 end for
    14 Return O, of which W_UV makes a head's output, and L.

Sources: "DeepSeek-V2" (DeepSeek-AI, 2024), section 2.1; FlashMLA's "A Deep-Dive Into the New Flash
MLA Kernel". The listing is ours.
"""

from collections.abc import Mapping
from typing import Any

from flashsim.algorithms.notation import exp, finite, log, maximum, nonzero, product, rowmax, rowsum
from flashsim.algorithms.record import Bug
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM
from flashsim.serving.batch import Batch, Operands
from flashsim.serving.record import BatchProgram


def mla(hbm: HBM, sram: SRAM, batch: Batch, Q: Matrix, C: Matrix) -> tuple[Matrix, Matrix]:
    """Run on Q (R, w), C (n, w), sequence after sequence; return O (R, u), L (R, 1)."""
    on_chip = sram.on_chip
    B_r = batch.B_r
    B_c = batch.B_c
    tau = batch.tau
    u = batch.d_v
    O = hbm.empty("O", (Q.shape[0], u), C.dtype, "output")
    L = hbm.empty("L", (Q.shape[0], 1), sram.dtype)
    for s in sram.loop(len(batch), alike=batch.alike):  # line 1
        n = batch.keys[s]
        Q_s, O_s, L_s = (X.rows(*batch.rows(s)).divide(B_r) for X in (Q, O, L))
        C_s = C.rows(*batch.cols(s)).divide(B_c)
        for i in sram.loop(len(Q_s), alike=batch.rows_alike(s)):  # line 1
            Q_i = sram.load(Q_s[i])  # line 2
            O_i = sram.full(O_s[i].shape, 0.0)  # line 3
            l_i = sram.full(L_s[i].shape, 0.0)  # line 3
            m_i = sram.full(L_s[i].shape, float("-inf"))  # line 3
            for j in sram.loop(-(-batch.seen(s, i, n) // B_c)):  # line 4
                C_j = sram.load(C_s[j])  # line 5
                S_ij = on_chip(tau * (Q_i @ C_j.T))  # line 6
                S_masked_ij = on_chip(batch.mask(S_ij, s, i, j * B_c, n), over=S_ij)  # line 6
                m_i_new = on_chip(maximum(m_i, rowmax(S_masked_ij)))  # line 7
                P_tilde_ij = on_chip(exp(S_masked_ij - finite(m_i_new)), over=S_masked_ij)  # line 7
                l_i = on_chip(  # line 8
                    exp(m_i - finite(m_i_new)) * l_i + rowsum(P_tilde_ij), over=l_i
                )
                O_i = on_chip(  # line 9
                    exp(m_i - finite(m_i_new)) * O_i + product(P_tilde_ij, C_j[:, :u]), over=O_i
                )
                m_i = on_chip(m_i_new, over=m_i)  # line 9
            # line 10: end for
            O_i = on_chip(O_i / nonzero(l_i), over=O_i)  # line 11
            L_i = on_chip(m_i + log(l_i), over=l_i)  # line 11
            sram.store(O_s[i], O_i)  # line 12
            sram.store(L_s[i], L_i)  # line 12
    # line 13: end for
    return O, L  # line 14


def check_options(batch: Batch) -> Mapping[str, Any]:
    """Return that there are none. Raises ValueError where the value has more columns than the
    key.
    """
    if batch.d_v > batch.d:
        raise ValueError(
            f"d_v is {batch.d_v}; expected at most d = {batch.d}, as V is the first d_v columns of "
            "C"
        )
    return {}


def operands(batch: Batch, options: Mapping[str, Any]) -> Operands:
    shapes = batch.shapes()
    return {"Q": shapes["Q"], "C": shapes["K"]}


PROGRAM = BatchProgram(
    name="mla",
    title="Latent attention, absorbed",
    run=mla,
    options=check_options,
    operands=operands,
    bugs=(
        Bug("the scale is that of C's columns", "tau * (Q_i", "Q_i.shape[1] ** -0.5 * (Q_i"),
        Bug("the value is the last columns of C", "C_j[:, :u]", "C_j[:, -u:]"),
        Bug(
            "the value is loaded as if it were not in C",
            "product(P_tilde_ij, C_j[",
            "product(P_tilde_ij, sram.load(C_s[j])[",
        ),
        Bug(
            "columns of rope have no part in the scores",
            "(Q_i @ C_j.T)",
            "(Q_i[:, :u] @ C_j[:, :u].T)",
        ),
        Bug(
            "no mask: drafted tokens see what comes after them",
            "batch.mask(S_ij, s, i, j * B_c, n)",
            "S_ij",
        ),
        Bug("all keys are read for all rows", "batch.seen(s, i, n)", "n"),
    ),
)

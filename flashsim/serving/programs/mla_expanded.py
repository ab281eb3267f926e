"""Latent attention, not absorbed: of the rows of C each head makes keys and values of its own in
HBM, and attends to them.

    Require: Q of all sequences, C, which all heads share, and the head's W_UK and W_UV in HBM,
             on-chip SRAM of size M.
    1  for (W, X) = (W_UK, K), then (W_UV, V), do
    2    Load W from HBM to on-chip SRAM.
    3    for each tile j of all sequences' keys do
    4      Load C_j from HBM to on-chip SRAM.
    5      X_j = C_j[:, :u] Wᵀ; in K, the columns of rope behind it: C_j[:, u:].
    6      Write X_j to HBM.
    7    end for
    8  end for
    9  for each sequence s, all at once, 1 ≤ i ≤ T_r of its rows, do
    10   Load Q_i from HBM to on-chip SRAM.
    11   Initialize O_i = (0)_{B_r×d}, ℓ_i = (0)_{B_r}, m_i = (−∞)_{B_r} on SRAM.
    12   for each tile j of the keys that a row sees do
    13     Load K_j, V_j from HBM to on-chip SRAM.
    14     S_ij^masked = MASK(τ Q_i K_jᵀ).
    15     m_i^new = max(m_i, rowmax(S_ij^masked)), P̃_ij = exp(S_ij^masked − m_i^new).
    16     ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ij).
    17     O_i ← diag(e^{m_i − m_i^new}) O_i + P̃_ij V_j, m_i ← m_i^new.
    18   end for
    19   O_i ← diag(ℓ_i)⁻¹ O_i, L_i = m_i + log ℓ_i.
    20   Write O_i, L_i to HBM.
    21 end for
    22 Return O, L.

Source: "DeepSeek-V2" (DeepSeek-AI, 2024), section 2.1; the listing is ours. W, one of the two at a
time, is on chip whole.
"""

from collections.abc import Mapping
from typing import Any

from flashsim.algorithms.notation import exp, finite, log, maximum, nonzero, product, rowmax, rowsum
from flashsim.algorithms.record import Bug
from flashsim.attention.arguments import check_count
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM
from flashsim.serving.batch import Batch, Operands
from flashsim.serving.record import BatchProgram


def mla_expanded(
    hbm: HBM,
    sram: SRAM,
    batch: Batch,
    Q: Matrix,
    C: Matrix,
    W_UK: Matrix,
    W_UV: Matrix,
    latent: int,
    rope: int,
) -> tuple[Matrix, Matrix]:
    """Run on Q (R, d), C (n, u + rope), W_UK (d − rope, u), W_UV (d_v, u); return O (R, d_v), L
    (R, 1).
    """
    on_chip = sram.on_chip
    B_r = batch.B_r
    B_c = batch.B_c
    tau = batch.tau
    u = latent
    K, V = (
        hbm.empty(name, (C.shape[0], w), C.dtype) for name, w in (("K", batch.d), ("V", batch.d_v))
    )
    O = hbm.empty("O", (Q.shape[0], batch.d_v), C.dtype, "output")
    L = hbm.empty("L", (Q.shape[0], 1), sram.dtype)
    C = C.divide(B_c)
    for which in sram.loop(2, alike=range(2)):  # line 1
        w, x = ((W_UK, K), (W_UV, V))[which]
        W = sram.load(w[0])  # line 2
        X = x.divide(B_c)  # line 2
        own = W.shape[0]
        for j in sram.loop(len(C)):  # line 3
            C_j = sram.load(C[j])  # line 4
            X_j = sram.full(X[j].shape, 0.0)  # line 5
            on_chip(C_j[:, :u] @ W.T, over=X_j[:, :own])  # line 5
            on_chip(C_j[:, u : u + X.shape[1] - own], over=X_j[:, own:])  # line 5
            sram.store(X[j], X_j)  # line 6
        # line 7: end for
    # line 8: end for
    for s in sram.loop(len(batch), alike=batch.alike):  # line 9
        n = batch.keys[s]
        Q_s, O_s, L_s = (X.rows(*batch.rows(s)).divide(B_r) for X in (Q, O, L))
        K_s, V_s = (X.rows(*batch.cols(s)).divide(B_c) for X in (K, V))
        for i in sram.loop(len(Q_s), alike=batch.rows_alike(s)):  # line 9
            Q_i = sram.load(Q_s[i])  # line 10
            O_i = sram.full(O_s[i].shape, 0.0)  # line 11
            l_i = sram.full(L_s[i].shape, 0.0)  # line 11
            m_i = sram.full(L_s[i].shape, float("-inf"))  # line 11
            for j in sram.loop(-(-batch.seen(s, i, n) // B_c)):  # line 12
                K_j, V_j = sram.load(K_s[j], V_s[j])  # line 13
                S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 14
                S_masked_ij = on_chip(batch.mask(S_ij, s, i, j * B_c, n), over=S_ij)  # line 14
                m_i_new = on_chip(maximum(m_i, rowmax(S_masked_ij)))  # line 15
                P_tilde_ij = on_chip(  # line 15
                    exp(S_masked_ij - finite(m_i_new)), over=S_masked_ij
                )
                l_i = on_chip(  # line 16
                    exp(m_i - finite(m_i_new)) * l_i + rowsum(P_tilde_ij), over=l_i
                )
                O_i = on_chip(  # line 17
                    exp(m_i - finite(m_i_new)) * O_i + product(P_tilde_ij, V_j), over=O_i
                )
                m_i = on_chip(m_i_new, over=m_i)  # line 17
            # line 18: end for
            O_i = on_chip(O_i / nonzero(l_i), over=O_i)  # line 19
            L_i = on_chip(m_i + log(l_i), over=l_i)  # line 19
            sram.store(O_s[i], O_i)  # line 20
            sram.store(L_s[i], L_i)  # line 20
    # line 21: end for
    return O, L  # line 22


def check_options(batch: Batch, *, latent: Any, rope: Any) -> Mapping[str, Any]:
    """Return u, the columns of C that are not of rope, and those that are, the last of K, too."""
    return {
        "latent": check_count("latent", latent),
        "rope": check_count("rope", rope, 0, batch.d - 1),
    }


def operands(batch: Batch, options: Mapping[str, Any]) -> Operands:
    shapes = batch.shapes()
    u = options["latent"]
    rope = options["rope"]
    return {
        "Q": shapes["Q"],
        "C": (shapes["K"][0], u + rope),
        "W_UK": (batch.d - rope, u),
        "W_UV": (batch.d_v, u),
    }


PROGRAM = BatchProgram(
    name="mla_expanded",
    title="Latent attention, not absorbed",
    run=mla_expanded,
    options=check_options,
    operands=operands,
    shared=("C",),
    bugs=(
        Bug("the scale is that of C's columns", "tau * (Q_i", "C.shape[1] ** -0.5 * (Q_i"),
        Bug(
            "columns of rope are left out of K", "on_chip(C_j[:, u : u", "on_chip(0 * C_j[:, u : u"
        ),
        Bug("columns of rope come before the others", "C_j[:, :u] @ W.T", "C_j[:, -u:] @ W.T"),
        Bug("W is loaded anew for each tile", "C_j[:, :u] @ W.T", "C_j[:, :u] @ sram.load(w[0]).T"),
        Bug(
            "another sequence's keys",
            "X.rows(*batch.cols(s)).divide(B_c) for X in (K",
            "X.rows(0, n).divide(B_c) for X in (K",
        ),
    ),
)

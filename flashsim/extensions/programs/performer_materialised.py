"""Performer as it is mostly written: log φ(Q) and log φ(K), N × k numbers each, go through HBM.

    Require: Q, K (N×d), V (N×e), features W (k×d) in HBM, on-chip SRAM of size M, c = √τ of the
             softmax scaling constant τ.
    1  Set block sizes B_r = B_f = ⌈M/2w⌉, B_c = B_g = min(B_r, d), where w = d + e.
    2  Divide Q, O into T_r blocks of B_r rows, K, V into T_c blocks of B_c rows; W, and S (k×e), z
       (k×1) in HBM, into T_f blocks of B_f rows, or T_g of B_g; A (N×k) into tiles of B_r × B_g, G
       (k×N) of B_f × B_c.
    3  for 1 ≤ f ≤ T_f do
    4    Load W_f from HBM to on-chip SRAM.
    5    for 1 ≤ j ≤ T_c do
    6      Load K_j from HBM to on-chip SRAM.
    7      G_fj = c W_f K_jᵀ − ½ rowsum((c K_j)²)ᵀ.
    8      Write G_fj to HBM.
    9    end for
    10 end for
    11 for 1 ≤ i ≤ T_r do
    12   Load Q_i from HBM to on-chip SRAM.
    13   for 1 ≤ g ≤ T_g do
    14     Load W_g from HBM to on-chip SRAM.
    15     A_ig = c Q_i W_gᵀ.
    16     Write A_ig to HBM.
    17   end for
    18 end for
    19 for 1 ≤ f ≤ T_f do
    20   Initialize S_f = (0)_{B_f×e}, ℓ_f = (0)_{B_f}, m_f = (−∞)_{B_f} on SRAM.
    21   for 1 ≤ j ≤ T_c do
    22     Load G_fj, V_j from HBM to on-chip SRAM.
    23     m_f^new = max(m_f, rowmax(G_fj)).
    24     P̃_fj = exp(G_fj − m_f^new).
    25     ℓ_f ← e^{m_f − m_f^new} ℓ_f + rowsum(P̃_fj).
    26     S_f ← diag(e^{m_f − m_f^new}) S_f + P̃_fj V_j.
    27     m_f ← m_f^new.
    28   end for
    29   S_f ← diag(ℓ_f)⁻¹ S_f, z_f = m_f + log ℓ_f.
    30   Write S_f, z_f to HBM.
    31 end for
    32 for 1 ≤ i ≤ T_r do
    33   Initialize O_i = (0)_{B_r×e}, ℓ_i = (0)_{B_r}, m_i = (−∞)_{B_r} on SRAM.
    34   for 1 ≤ g ≤ T_g do
    35     Load A_ig, S_g, z_g from HBM to on-chip SRAM.
    36     A_ig ← A_ig + z_gᵀ.
    37     m_i^new = max(m_i, rowmax(A_ig)).
    38     P̃_ig = exp(A_ig − m_i^new).
    39     ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ig).
    40     O_i ← diag(e^{m_i − m_i^new}) O_i + P̃_ig S_g.
    41     m_i ← m_i^new.
    42   end for
    43   O_i ← diag(ℓ_i)⁻¹ O_i.
    44   Write O_i to HBM.
    45 end for
    46 Return O.

The listing is ours: `performer` with its scores stored, as frameworks store them that run one
operation after another. φ(K) itself would overflow 16-bit numbers, and from large K others too. So
its logarithm is kept.
"""

from dataclasses import replace

from flashsim.algorithms.notation import exp, finite, log, maximum, rowmax, rowsum
from flashsim.attention.matrices import Kind
from flashsim.attention.shapes import Sizes
from flashsim.extensions.programs import performer
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def performer_materialised(
    hbm: HBM, sram: SRAM, Q: Matrix, K: Matrix, V: Matrix, W: Matrix, blocks: Sizes, c: float
) -> Matrix:
    """Run on Q, K (N, d), V (N, e), W (k, d); return O (N, e), in HBM."""
    on_chip = sram.on_chip
    B_r = blocks.B_r  # line 1
    B_c = blocks.B_c  # line 1
    B_f = blocks.B_f  # line 1
    B_g = blocks.B_g  # line 1
    O = hbm.empty("O", V.shape, V.dtype, "output")  # line 2
    z = hbm.empty("z", (W.shape[0], 1), sram.dtype)  # line 2
    S = hbm.empty("S", (W.shape[0], V.shape[1]), V.dtype)  # line 2
    A = hbm.empty("A", (Q.shape[0], W.shape[0]), Q.dtype).divide(B_r, B_g)  # line 2
    G = hbm.empty("G", (W.shape[0], K.shape[0]), K.dtype).divide(B_f, B_c)  # line 2
    Q = Q.divide(B_r)  # line 2
    O = O.divide(B_r)  # line 2
    K = K.divide(B_c)  # line 2
    V = V.divide(B_c)  # line 2
    W = W.divide(B_f)  # line 2
    S = S.divide(B_f)  # line 2
    z = z.divide(B_f)  # line 2
    for f in sram.loop(len(W)):  # line 3
        W_f = sram.load(W[f])  # line 4
        for j in sram.loop(len(K)):  # line 5
            K_j = sram.load(K[j])  # line 6
            G_fj = on_chip(c * (W_f @ K_j.T) - 0.5 * rowsum((c * K_j) * (c * K_j)).T)  # line 7
            sram.store(G[f, j], G_fj)  # line 8
        # line 9: end for
    # line 10: end for
    W = W.divide(B_g)  # line 2
    for i in sram.loop(len(Q)):  # line 11
        Q_i = sram.load(Q[i])  # line 12
        for g in sram.loop(len(W)):  # line 13
            W_g = sram.load(W[g])  # line 14
            A_ig = on_chip(c * (Q_i @ W_g.T))  # line 15
            sram.store(A[i, g], A_ig)  # line 16
        # line 17: end for
    # line 18: end for
    for f in sram.loop(len(S)):  # line 19
        S_f = sram.full(S[f].shape, 0.0)  # line 20
        l_f = sram.full(z[f].shape, 0.0)  # line 20
        m_f = sram.full(z[f].shape, float("-inf"))  # line 20
        for j in sram.loop(len(V)):  # line 21
            G_fj, V_j = sram.load(G[f, j], V[j])  # line 22
            m_f_new = on_chip(maximum(m_f, rowmax(G_fj)))  # line 23
            P_tilde_fj = on_chip(exp(G_fj - finite(m_f_new)), over=G_fj)  # line 24
            l_f = on_chip(  # line 25
                exp(m_f - finite(m_f_new)) * l_f + rowsum(P_tilde_fj), over=l_f
            )
            S_f = on_chip(exp(m_f - finite(m_f_new)) * S_f + P_tilde_fj @ V_j, over=S_f)  # line 26
            m_f = on_chip(m_f_new, over=m_f)  # line 27
        # line 28: end for
        S_f = on_chip(S_f / l_f, over=S_f)  # line 29
        z_f = on_chip(m_f + log(l_f), over=l_f)  # line 29
        sram.store(S[f], S_f)  # line 30
        sram.store(z[f], z_f)  # line 30
    # line 31: end for
    S = S.divide(B_g)  # line 2
    z = z.divide(B_g)  # line 2
    for i in sram.loop(len(O)):  # line 32
        O_i = sram.full(O[i].shape, 0.0)  # line 33
        l_i = sram.full((O[i].shape[0], 1), 0.0)  # line 33
        m_i = sram.full((O[i].shape[0], 1), float("-inf"))  # line 33
        for g in sram.loop(len(S)):  # line 34
            A_ig, S_g, z_g = sram.load(A[i, g], S[g], z[g])  # line 35
            A_ig = on_chip(A_ig + z_g.T, over=A_ig)  # line 36
            m_i_new = on_chip(maximum(m_i, rowmax(A_ig)))  # line 37
            P_tilde_ig = on_chip(exp(A_ig - finite(m_i_new)), over=A_ig)  # line 38
            l_i = on_chip(  # line 39
                exp(m_i - finite(m_i_new)) * l_i + rowsum(P_tilde_ig), over=l_i
            )
            O_i = on_chip(exp(m_i - finite(m_i_new)) * O_i + P_tilde_ig @ S_g, over=O_i)  # line 40
            m_i = on_chip(m_i_new, over=m_i)  # line 41
        # line 42: end for
        O_i = on_chip(O_i / l_i, over=O_i)  # line 43
        sram.store(O[i], O_i)  # line 44
    # line 45: end for
    return O  # line 46


PROGRAM = replace(
    performer.PROGRAM,
    name="performer_materialised",
    title="Performer, its features in HBM",
    run=performer_materialised,
    extras={
        "G": Kind("k", "N"),
        "A": Kind("N", "k"),
        "S": Kind("k", "e"),
        "z": Kind("k", "1", "chip"),
    },
)

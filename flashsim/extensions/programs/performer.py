"""Performer: attention by way of k random features, which attend to the keys, and to which the
queries attend.

    Require: Q, K (N×d), V (N×e), features W (k×d) in HBM, on-chip SRAM of size M, c = √τ of the
             softmax scaling constant τ.
    1  Set block sizes B_r = B_f = ⌈M/2w⌉, B_c = B_g = min(B_r, d), where w = d + e.
    2  Divide Q, O into T_r blocks of B_r rows, K, V into T_c blocks of B_c rows; W, and S (k×e), z
       (k×1) in HBM, into T_f blocks of B_f rows to write S and z, into T_g of B_g rows to read
       them.
    3  for 1 ≤ f ≤ T_f do
    4    Load W_f from HBM to on-chip SRAM.
    5    Initialize S_f = (0)_{B_f×e}, ℓ_f = (0)_{B_f}, m_f = (−∞)_{B_f} on SRAM.
    6    for 1 ≤ j ≤ T_c do
    7      Load K_j, V_j from HBM to on-chip SRAM.
    8      G_fj = c W_f K_jᵀ − ½ rowsum((c K_j)²)ᵀ.
    9      m_f^new = max(m_f, rowmax(G_fj)).
    10     P̃_fj = exp(G_fj − m_f^new).
    11     ℓ_f ← e^{m_f − m_f^new} ℓ_f + rowsum(P̃_fj).
    12     S_f ← diag(e^{m_f − m_f^new}) S_f + P̃_fj V_j.
    13     m_f ← m_f^new.
    14   end for
    15   S_f ← diag(ℓ_f)⁻¹ S_f, z_f = m_f + log ℓ_f.
    16   Write S_f, z_f to HBM.
    17 end for
    18 for 1 ≤ i ≤ T_r do
    19   Load Q_i from HBM to on-chip SRAM.
    20   Initialize O_i = (0)_{B_r×e}, ℓ_i = (0)_{B_r}, m_i = (−∞)_{B_r} on SRAM.
    21   for 1 ≤ g ≤ T_g do
    22     Load W_g, S_g, z_g from HBM to on-chip SRAM.
    23     G_ig = c Q_i W_gᵀ + z_gᵀ.
    24     m_i^new = max(m_i, rowmax(G_ig)).
    25     P̃_ig = exp(G_ig − m_i^new).
    26     ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ig).
    27     O_i ← diag(e^{m_i − m_i^new}) O_i + P̃_ig S_g.
    28     m_i ← m_i^new.
    29   end for
    30   O_i ← diag(ℓ_i)⁻¹ O_i.
    31   Write O_i to HBM.
    32 end for
    33 Return O.

The listing is ours, after K. Choromanski et al., "Rethinking Attention with Performers", whose
φ(x)_f = e^{w_f · x − ‖x‖²/2}. They divide φ(Q) (φ(K)ᵀ V) by φ(Q) (φ(K)ᵀ 1). Divided by its own sum,
and that kept as a logarithm, each feature is a softmax over the keys, and the queries take a
softmax over the features: φ never overflows, and never reaches HBM. e^{−‖q‖²/2} cancels. It cannot
be causal, as a feature holds late keys too.
"""

from flashsim.algorithms.notation import exp, finite, log, maximum, rowmax, rowsum
from flashsim.algorithms.program import QKV, MatrixProgram
from flashsim.algorithms.record import Bug
from flashsim.attention.matrices import Kind
from flashsim.attention.shapes import Sizes
from flashsim.extensions.parts.kernel_functions import kernel_rows
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def line_1(rows: int, p: Sizes) -> tuple[int, int, int, int]:
    """Return (B_r, B_c, B_f, B_g): either loop is attention with Q outermost."""
    return rows, min(rows, p.d), rows, min(rows, p.d)


def performer(
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
    Q = Q.divide(B_r)  # line 2
    O = O.divide(B_r)  # line 2
    K = K.divide(B_c)  # line 2
    V = V.divide(B_c)  # line 2
    W = W.divide(B_f)  # line 2
    S = S.divide(B_f)  # line 2
    z = z.divide(B_f)  # line 2
    for f in sram.loop(len(W)):  # line 3
        W_f = sram.load(W[f])  # line 4
        S_f = sram.full(S[f].shape, 0.0)  # line 5
        l_f = sram.full(z[f].shape, 0.0)  # line 5
        m_f = sram.full(z[f].shape, float("-inf"))  # line 5
        for j in sram.loop(len(K)):  # line 6
            K_j, V_j = sram.load(K[j], V[j])  # line 7
            G_fj = on_chip(c * (W_f @ K_j.T) - 0.5 * rowsum((c * K_j) * (c * K_j)).T)  # line 8
            m_f_new = on_chip(maximum(m_f, rowmax(G_fj)))  # line 9
            P_tilde_fj = on_chip(exp(G_fj - finite(m_f_new)), over=G_fj)  # line 10
            l_f = on_chip(  # line 11
                exp(m_f - finite(m_f_new)) * l_f + rowsum(P_tilde_fj), over=l_f
            )
            S_f = on_chip(exp(m_f - finite(m_f_new)) * S_f + P_tilde_fj @ V_j, over=S_f)  # line 12
            m_f = on_chip(m_f_new, over=m_f)  # line 13
        # line 14: end for
        S_f = on_chip(S_f / l_f, over=S_f)  # line 15
        z_f = on_chip(m_f + log(l_f), over=l_f)  # line 15
        sram.store(S[f], S_f)  # line 16
        sram.store(z[f], z_f)  # line 16
    # line 17: end for
    W = W.divide(B_g)  # line 2
    S = S.divide(B_g)  # line 2
    z = z.divide(B_g)  # line 2
    for i in sram.loop(len(Q)):  # line 18
        Q_i = sram.load(Q[i])  # line 19
        O_i = sram.full(O[i].shape, 0.0)  # line 20
        l_i = sram.full((Q_i.shape[0], 1), 0.0)  # line 20
        m_i = sram.full((Q_i.shape[0], 1), float("-inf"))  # line 20
        for g in sram.loop(len(W)):  # line 21
            W_g, S_g, z_g = sram.load(W[g], S[g], z[g])  # line 22
            G_ig = on_chip(c * (Q_i @ W_g.T) + z_g.T)  # line 23
            m_i_new = on_chip(maximum(m_i, rowmax(G_ig)))  # line 24
            P_tilde_ig = on_chip(exp(G_ig - finite(m_i_new)), over=G_ig)  # line 25
            l_i = on_chip(  # line 26
                exp(m_i - finite(m_i_new)) * l_i + rowsum(P_tilde_ig), over=l_i
            )
            O_i = on_chip(exp(m_i - finite(m_i_new)) * O_i + P_tilde_ig @ S_g, over=O_i)  # line 27
            m_i = on_chip(m_i_new, over=m_i)  # line 28
        # line 29: end for
        O_i = on_chip(O_i / l_i, over=O_i)  # line 30
        sram.store(O[i], O_i)  # line 31
    # line 32: end for
    return O  # line 33


PROGRAM = MatrixProgram(
    title="Performer",
    source="Choromanski et al. 2021",
    run=performer,
    operands={**QKV, "W": Kind("k", "d")},
    returns={"O": Kind("N", "e")},
    extras={"S": Kind("k", "e"), "z": Kind("k", "1", "chip")},
    words=("queries", "features"),
    blocks={"B_r": "N", "B_c": "N", "B_f": "k", "B_g": "k"},
    line_1=line_1,
    rows=kernel_rows,
    example=lambda rng, sizes, blocks: ({}, {"c": float(rng.uniform(0.1, 1))}),
    bugs=(
        Bug("features without −‖ck‖²/2", " - 0.5 * rowsum((c * K_j) * (c * K_j)).T", ""),
        Bug("c twice", "c * (W_f @ K_j.T)", "c * c * (W_f @ K_j.T)"),
        Bug("the features' sums left out", " + z_g.T", ""),
        Bug("S is not rescaled", "exp(m_f - finite(m_f_new)) * S_f +", "S_f +"),
        Bug("ℓ is not rescaled", "exp(m_i - finite(m_i_new)) * l_i +", "l_i +"),
        Bug("z without log ℓ", "m_f + log(l_f)", "m_f"),
    ),
)

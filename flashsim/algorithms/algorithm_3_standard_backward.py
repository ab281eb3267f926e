"""Algorithm 3: standard attention, backward.

    Require: Q, K, V, dO in HBM, P in HBM.
    1  Load P, dO by blocks from HBM, compute dV = Pᵀ dO, write dV to HBM.
    2  Load dO, V by blocks from HBM, compute dP = dO Vᵀ, write dP to HBM.
    3  Read P, dP from HBM, compute dS with dS_ij = P_ij (dP_ij − Σ_l P_il dP_il),
       write dS to HBM.
    4  Load dS and K by blocks from HBM, compute dQ = dS K, write dQ to HBM.
    5  Load dS and Q by blocks from HBM, compute dK = dSᵀ Q, write dK to HBM.
    6  Return dQ, dK, dV.

With τ, dQ and dK carry the factor τ. With dropout, dV uses P^dropped, and dP =
dP^dropped ∘ Z is a pass of its own before line 3. A bias adds a pass behind line 3,
which adds dS to its gradient. Products are blocked for SRAM as in Algorithm 0, so
operands are read again, T_r or T_c times.
"""

from flashsim.algorithms.blocks import q_outer_blocks
from flashsim.algorithms.notation import product
from flashsim.algorithms.parts import Dropout, WholeGradient
from flashsim.algorithms.record import Algorithm
from flashsim.algorithms.softmax_rows import softmax_backward_for
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def standard_backward(
    hbm: HBM,
    sram: SRAM,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
    dO: Matrix,
    P: Matrix,
    P_dropped: Matrix,
    blocks: Blocks,
    tau: float,
    dropout: Dropout,
    dB: WholeGradient,
) -> tuple[Matrix, Matrix, Matrix]:
    """Run Algorithm 3 on the forward pass's operands, P (N_q, N_k) and dO (N_q, d_v);
    return dQ, dK, dV, in HBM.

    `P_dropped` is P itself where there is no dropout.
    """
    on_chip = sram.on_chip
    N_q, N_k = P.shape
    # rows, of queries or keys, of a stationary panel, and of what streams past it
    B = int(blocks.B_r)
    b = int(blocks.B_c)
    dP = hbm.empty("dP", (N_q, N_k), Q.dtype)
    dS = hbm.empty("dS", (N_q, N_k), Q.dtype)
    dQ, dK, dV = (
        hbm.empty(f"d{X.name}", X.shape, X.dtype, "output") for X in (Q, K, V)
    )

    dV_panels = dV.divide(B)
    dO_rows = dO.divide(b)
    P_tiles = P_dropped.divide(b, B)
    for j in sram.loop(len(dV_panels)):  # line 1
        dV_j = sram.full(dV_panels[j].shape, 0.0)  # line 1
        for i in sram.loop(len(dO_rows)):  # line 1
            P_ij, dO_i = sram.load(P_tiles[i, j], dO_rows[i])  # line 1
            dV_j = on_chip(dV_j + product(P_ij.T, dO_i), over=dV_j)  # line 1
        sram.store(dV_panels[j], dV_j)  # line 1

    dO_panels = dO.divide(B)
    V_rows = V.divide(b)
    dP_tiles = dP.divide(B, b)
    for i in sram.loop(len(dO_panels)):  # line 2
        dO_i = sram.load(dO_panels[i])  # line 2
        for j in sram.loop(len(V_rows)):  # line 2
            V_j = sram.load(V_rows[j])  # line 2
            dP_ij = on_chip(dO_i @ V_j.T)  # line 2
            sram.store(dP_tiles[i, j], dP_ij)  # line 2

    dropout.whole_backward(sram, dP)  # line 3
    softmax_backward_for(sram.capacity, N_k)(sram, P, dP, dS)  # line 3
    dB.whole(sram, dS)  # line 3

    dQ_panels = dQ.divide(B)
    K_rows = K.divide(b)
    dS_tiles = dS.divide(B, b)
    for i in sram.loop(len(dQ_panels)):  # line 4
        dQ_i = sram.full(dQ_panels[i].shape, 0.0)  # line 4
        for j in sram.loop(len(K_rows)):  # line 4
            dS_ij, K_j = sram.load(dS_tiles[i, j], K_rows[j])  # line 4
            dQ_i = on_chip(dQ_i + tau * product(dS_ij, K_j), over=dQ_i)  # line 4
        sram.store(dQ_panels[i], dQ_i)  # line 4

    dK_panels = dK.divide(B)
    Q_rows = Q.divide(b)
    dS_tiles = dS.divide(b, B)
    for j in sram.loop(len(dK_panels)):  # line 5
        dK_j = sram.full(dK_panels[j].shape, 0.0)  # line 5
        for i in sram.loop(len(Q_rows)):  # line 5
            dS_ij, Q_i = sram.load(dS_tiles[i, j], Q_rows[i])  # line 5
            dK_j = on_chip(dK_j + tau * product(dS_ij.T, Q_i), over=dK_j)  # line 5
        sram.store(dK_panels[j], dK_j)  # line 5

    return dQ, dK, dV  # line 6


ALGORITHM = Algorithm(
    name="standard",
    direction="backward",
    title="Algorithm 3, standard attention, backward",
    run=standard_backward,
    line_1=q_outer_blocks,
    loops="standard",
    gives_dS=True,
)

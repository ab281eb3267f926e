"""Linformer: attention to k mixtures of the keys, E K and F V, instead of to the N keys.

    Require: Q, K (N×d), V (N×e), E, F (k×N) in HBM, on-chip SRAM of size M, softmax scaling
             constant τ.
    1  Set block sizes B_r = ⌈M/2w⌉, B_c = ⌈d/2⌉, B_e = 2B_r, B_k = min(B_r, d), where w = d + e.
    2  Divide Q, O, L into blocks of B_r rows, K, V of B_c rows, E, F into tiles of B_e × B_c;
       K^low, V^low (k rows) into T_e blocks of B_e rows to write, into T_k of B_k rows to read.
    3  for 1 ≤ a ≤ T_e do
    4    Initialize K^low_a = (0)_{B_e×d} on SRAM.
    5    for 1 ≤ j ≤ T_c do
    6      Load E_aj, K_j from HBM to on-chip SRAM.
    7      K^low_a ← K^low_a + E_aj K_j.
    8    end for
    9    Write K^low_a to HBM.
    10 end for
    11 for 1 ≤ a ≤ T_e do
    12   Initialize V^low_a = (0)_{B_e×e} on SRAM.
    13   for 1 ≤ j ≤ T_c do
    14     Load F_aj, V_j from HBM to on-chip SRAM.
    15     V^low_a ← V^low_a + F_aj V_j.
    16   end for
    17   Write V^low_a to HBM.
    18 end for
    19 for 1 ≤ i ≤ T_r do
    20   Load Q_i from HBM to on-chip SRAM.
    21   Initialize O_i = (0)_{B_r×e}, ℓ_i = (0)_{B_r}, m_i = (−∞)_{B_r} on SRAM.
    22   for 1 ≤ b ≤ T_k do
    23     Load K^low_b, V^low_b from HBM to on-chip SRAM.
    24     S_ib = τ Q_i (K^low_b)ᵀ.
    25     m_i^new = max(m_i, rowmax(S_ib)).
    26     P̃_ib = exp(S_ib − m_i^new).
    27     ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ib).
    28     O_i ← diag(e^{m_i − m_i^new}) O_i + P̃_ib V^low_b.
    29     m_i ← m_i^new.
    30   end for
    31   O_i ← diag(ℓ_i)⁻¹ O_i, L_i = m_i + log ℓ_i.
    32   Write O_i, L_i to HBM.
    33 end for
    34 Return O, L.

The listing is ours, after S. Wang et al., "Linformer: Self-Attention with Linear Complexity". Lines
19 to 33 are attention with Q outermost, over k keys. The tall block is that of E: K is read once
for each of the T_e. Linformer cannot be causal, as a mixture holds late keys too.
"""

from flashsim.algorithms.blocks import ceil_div
from flashsim.algorithms.notation import exp, finite, log, maximum, rowmax, rowsum
from flashsim.algorithms.program import QKV, MatrixProgram
from flashsim.algorithms.record import Bug
from flashsim.attention.matrices import Kind
from flashsim.attention.shapes import Sizes
from flashsim.extensions.parts.kernel_functions import kernel_rows
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def line_1(rows: int, p: Sizes) -> tuple[int, int, int, int]:
    """Return (B_r, B_c, B_e, B_k): a block of K^low then takes half of M, and its tile of E a
    quarter.
    """
    return rows, ceil_div(p.d, 2), 2 * rows, min(rows, p.d)


def linformer(
    hbm: HBM,
    sram: SRAM,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
    E: Matrix,
    F: Matrix,
    blocks: Sizes,
    tau: float,
) -> tuple[Matrix, Matrix]:
    """Run on Q, K (N, d), V (N, e), E, F (k, N); return O (N, e) and the log-sum-exp L (N, 1),
    in HBM.
    """
    on_chip = sram.on_chip
    B_r = blocks.B_r  # line 1
    B_c = blocks.B_c  # line 1
    B_e = blocks.B_e  # line 1
    B_k = blocks.B_k  # line 1
    O = hbm.empty("O", V.shape, V.dtype, "output")  # line 2
    L = hbm.empty("L", (Q.shape[0], 1), sram.dtype)  # line 2
    K_low = hbm.empty("K_low", (E.shape[0], K.shape[1]), K.dtype)  # line 2
    V_low = hbm.empty("V_low", (F.shape[0], V.shape[1]), V.dtype)  # line 2
    returned = O, L  # line 2
    Q = Q.divide(B_r)  # line 2
    O = O.divide(B_r)  # line 2
    L = L.divide(B_r)  # line 2
    K = K.divide(B_c)  # line 2
    V = V.divide(B_c)  # line 2
    E = E.divide(B_e, B_c)  # line 2
    F = F.divide(B_e, B_c)  # line 2
    K_low = K_low.divide(B_e)  # line 2
    V_low = V_low.divide(B_e)  # line 2
    for a in sram.loop(len(K_low)):  # line 3
        K_low_a = sram.full(K_low[a].shape, 0.0)  # line 4
        for j in sram.loop(len(K)):  # line 5
            E_aj, K_j = sram.load(E[a, j], K[j])  # line 6
            K_low_a = on_chip(K_low_a + E_aj @ K_j, over=K_low_a)  # line 7
        # line 8: end for
        sram.store(K_low[a], K_low_a)  # line 9
    # line 10: end for
    for a in sram.loop(len(V_low)):  # line 11
        V_low_a = sram.full(V_low[a].shape, 0.0)  # line 12
        for j in sram.loop(len(V)):  # line 13
            F_aj, V_j = sram.load(F[a, j], V[j])  # line 14
            V_low_a = on_chip(V_low_a + F_aj @ V_j, over=V_low_a)  # line 15
        # line 16: end for
        sram.store(V_low[a], V_low_a)  # line 17
    # line 18: end for
    K_low = K_low.divide(B_k)  # line 2
    V_low = V_low.divide(B_k)  # line 2
    for i in sram.loop(len(Q)):  # line 19
        Q_i = sram.load(Q[i])  # line 20
        O_i = sram.full(O[i].shape, 0.0)  # line 21
        l_i = sram.full(L[i].shape, 0.0)  # line 21
        m_i = sram.full(L[i].shape, float("-inf"))  # line 21
        for b in sram.loop(len(K_low)):  # line 22
            K_low_b, V_low_b = sram.load(K_low[b], V_low[b])  # line 23
            S_ib = on_chip(tau * (Q_i @ K_low_b.T))  # line 24
            m_i_new = on_chip(maximum(m_i, rowmax(S_ib)))  # line 25
            P_tilde_ib = on_chip(exp(S_ib - finite(m_i_new)), over=S_ib)  # line 26
            l_i = on_chip(  # line 27
                exp(m_i - finite(m_i_new)) * l_i + rowsum(P_tilde_ib), over=l_i
            )
            O_i = on_chip(  # line 28
                exp(m_i - finite(m_i_new)) * O_i + P_tilde_ib @ V_low_b, over=O_i
            )
            m_i = on_chip(m_i_new, over=m_i)  # line 29
        # line 30: end for
        O_i = on_chip(O_i / l_i, over=O_i)  # line 31
        L_i = on_chip(m_i + log(l_i), over=l_i)  # line 31
        sram.store(O[i], O_i)  # line 32
        sram.store(L[i], L_i)  # line 32
    # line 33: end for
    return returned  # line 34


PROGRAM = MatrixProgram(
    title="Linformer",
    source="Wang et al. 2020",
    run=linformer,
    operands={**QKV, "E": Kind("k", "N"), "F": Kind("k", "N")},
    returns={"O": Kind("N", "e"), "L": Kind("N", "1", "chip")},
    extras={"K_low": Kind("k", "d"), "V_low": Kind("k", "e")},
    words=("queries", "mixtures of keys"),
    blocks={"B_r": "N", "B_c": "N", "B_e": "k", "B_k": "k"},
    line_1=line_1,
    rows=kernel_rows,
    example=lambda rng, sizes, blocks: ({}, {"tau": float(rng.uniform(0.1, 1))}),
    bugs=(
        Bug("scores without τ", "tau * (Q_i @ K_low_b.T)", "Q_i @ K_low_b.T"),
        Bug("V mixed by E", "sram.load(F[a, j], V[j])", "sram.load(E[a, j], V[j])"),
        Bug(
            "V mixed from the last block alone",
            "on_chip(V_low_a + F_aj @ V_j,",
            "on_chip(F_aj @ V_j,",
        ),
        Bug("O is not rescaled", "exp(m_i - finite(m_i_new)) * O_i +", "O_i +"),
        Bug("ℓ is not rescaled", "exp(m_i - finite(m_i_new)) * l_i +", "l_i +"),
        Bug("L without m", "m_i + log(l_i)", "log(l_i)"),
    ),
)

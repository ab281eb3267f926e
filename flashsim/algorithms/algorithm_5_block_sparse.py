"""Algorithm 5: block-sparse FlashAttention, forward.

    Require: Q, K, V in HBM, on-chip SRAM of size M, softmax scaling constant τ, masking
             function MASK, dropout probability p_drop, block sizes B_c = ⌈M/4d⌉, B_r =
             min(⌈M/4d⌉, d), block mask M in {0,1}^{T_r×T_c}.
    1  Initialize the pseudo-random number generator state R and save it to HBM.
    2  Initialize O = (0)_{N×d}, ℓ = (0)_N, m = (−∞)_N in HBM.
    3  Divide Q into T_r blocks of B_r rows, K and V into T_c blocks of B_c rows.
    4  Divide O, ℓ, m into T_r blocks of B_r rows.
    5  for 1 ≤ j ≤ T_c do
    6    Load K_j, V_j from HBM to on-chip SRAM.
    7    for 1 ≤ i ≤ T_r do
    8      if M_ij ≠ 0 then
    9        Load Q_i, O_i, ℓ_i, m_i from HBM to on-chip SRAM.
    10       S_ij = τ Q_i K_jᵀ.
    11       S_ij^masked = MASK(S_ij).
    12       m̃_ij = rowmax(S_ij^masked), P̃_ij = exp(S_ij^masked − m̃_ij),
             ℓ̃_ij = rowsum(P̃_ij).
    13       m_i^new = max(m_i, m̃_ij), ℓ_i^new = e^{m_i − m_i^new} ℓ_i
             + e^{m̃_ij − m_i^new} ℓ̃_ij.
    14       P̃_ij^dropped = dropout(P̃_ij, p_drop).
    15       Write O_i ← diag(ℓ_i^new)⁻¹ (diag(ℓ_i) e^{m_i − m_i^new} O_i
             + e^{m̃_ij − m_i^new} P̃_ij^dropped V_j) to HBM.
    16       Write ℓ_i ← ℓ_i^new, m_i ← m_i^new to HBM.
    17     end if
    18   end for
    19 end for
    20 Return O, ℓ, m, R.

Algorithm 2 with a skip. The paper's Require line also lists dO and writes ⌈M/4D⌉; both
are slips. Rows all of whose tiles are skipped keep O = 0, ℓ = 0, m = −∞.

The option `block_mask` is a boolean array (T_r, T_c), True = computed; or a function of
(T_r, T_c) that returns one, such as `flashsim.patterns.butterfly`; or "live": skip the
tiles that are empty, as far as positions tell. Default: all tiles.
"""

from flashsim.algorithms.blocks import kv_outer_blocks
from flashsim.algorithms.notation import (
    exp,
    finite,
    maximum,
    nonzero,
    product,
    rowmax,
    rowsum,
)
from flashsim.algorithms.parts import BlockMask, Dropout, MaskFunction
from flashsim.algorithms.record import Algorithm, every_block
from flashsim.attention.arguments import check_block_mask
from flashsim.attention.masks.patterns import butterfly, local, strided_by_root
from flashsim.attention.options import Option
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def block_sparse(
    hbm: HBM,
    sram: SRAM,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
    blocks: Blocks,
    tau: float,
    MASK: MaskFunction,
    dropout: Dropout,
    block_mask: BlockMask,
) -> tuple[Matrix, Matrix, Matrix]:
    """Run Algorithm 5 on Q (N_q, d), K (N_k, d), V (N_k, d_v); return O (N_q, d_v), ℓ
    and m (N_q, 1), in HBM.
    """
    on_chip = sram.on_chip
    N = Q.shape[0]
    d_v = V.shape[1]
    dropout.save()  # line 1
    B_r = blocks.B_r
    B_c = blocks.B_c
    O = hbm.full("O", (N, d_v), 0.0, V.dtype, "output")  # line 2
    l = hbm.full("l", (N, 1), 0.0, sram.dtype)  # line 2
    m = hbm.full("m", (N, 1), float("-inf"), sram.dtype)  # line 2
    Q = Q.divide(B_r)  # line 3
    K = K.divide(B_c)  # line 3
    V = V.divide(B_c)  # line 3
    O = O.divide(B_r)  # line 4
    l = l.divide(B_r)  # line 4
    m = m.divide(B_r)  # line 4
    for j in sram.loop(blocks.T_c, alike=block_mask.alike):  # line 5
        K_j, V_j = sram.load(K[j], V[j])  # line 6
        for i in sram.loop(blocks.T_r, where=block_mask.column(j)):  # line 7
            # line 8: if M_ij ≠ 0 then: where=
            Q_i, O_i, l_i, m_i = sram.load(Q[i], O[i], l[i], m[i])  # line 9
            S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 10
            S_masked_ij = on_chip(MASK(S_ij, i, j), over=S_ij)  # line 11
            m_tilde_ij = on_chip(rowmax(S_masked_ij))  # line 12
            P_tilde_ij = on_chip(  # line 12
                exp(S_masked_ij - finite(m_tilde_ij)), over=S_masked_ij
            )
            l_tilde_ij = on_chip(rowsum(P_tilde_ij))  # line 12
            m_i_new = on_chip(maximum(m_i, m_tilde_ij))  # line 13
            l_i_new = on_chip(  # line 13
                exp(m_i - finite(m_i_new)) * l_i
                + exp(m_tilde_ij - finite(m_i_new)) * l_tilde_ij
            )
            P_dropped_ij = on_chip(  # line 14
                P_tilde_ij * dropout(P_tilde_ij, i, j), over=P_tilde_ij
            )
            O_i_new = on_chip(  # line 15
                (
                    l_i * exp(m_i - finite(m_i_new)) * O_i
                    + exp(m_tilde_ij - finite(m_i_new)) * product(P_dropped_ij, V_j)
                )
                / nonzero(l_i_new),
                over=O_i,
            )
            sram.store(O[i], O_i_new)  # line 15
            sram.store(l[i], l_i_new)  # line 16
            sram.store(m[i], m_i_new)  # line 16
            # line 17: end if
        # line 18: end for
    # line 19: end for
    return O, l, m  # line 20


ALGORITHM = Algorithm(
    name="block_sparse",
    title="Algorithm 5, block-sparse FlashAttention",
    short="block-sparse",
    run=block_sparse,
    line_1=kv_outer_blocks,
    returns=("O", "l", "m"),
    saves=("R",),
    follows=("m", "l", "O"),
    options=(
        Option(
            "block_mask",
            None,
            check_block_mask,
            "which tiles are computed; live: those that are not empty. Default: all",
            choices={
                "butterfly": butterfly,
                "local": local,
                "strided": strided_by_root,
                "live": "live",
            },
        ),
    ),
    rounds=every_block,
)

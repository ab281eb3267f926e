"""Cut cross-entropy: the loss of a language model's last layer, whose N × v logits never leave the chip.

    Require: X (N×d), classifier E (v×d), labels y (N×1) in HBM, on-chip SRAM of size M.
    1  Set block sizes B_r = ⌈M/4d⌉, B_c = min(⌈M/4d⌉, d).
    2  Divide X, y, L, loss into T_r blocks of B_r rows, E into T_c blocks of B_c rows.
    3  for 1 ≤ i ≤ T_r do
    4    Load X_i, y_i from HBM to on-chip SRAM.
    5    Initialize ℓ_i = (0)_{B_r}, m_i = (−∞)_{B_r}, c_i = (0)_{B_r} on SRAM.
    6    for 1 ≤ j ≤ T_c do
    7      Load E_j from HBM to on-chip SRAM.
    8      S_ij = X_i E_jᵀ.
    9      c_i ← c_i + rowsum(S_ij where its column is y_i).
    10     m_i^new = max(m_i, rowmax(S_ij)).
    11     P̃_ij = exp(S_ij − m_i^new).
    12     ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ij).
    13     m_i ← m_i^new.
    14   end for
    15   L_i = m_i + log ℓ_i.
    16   loss_i = L_i − c_i, 0 where y_i says "none".
    17   Write L_i, loss_i to HBM.
    18 end for
    19 Return loss, L.

The listing is ours, after E. Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models": FlashAttention's softmax
without values. One logit a row is picked, from the tile that passes; the others are only summed.
"""

from flashsim.algorithms.notation import exp, finite, log, maximum, rowmax, rowsum
from flashsim.algorithms.program import Bug, Program
from flashsim.beyond.parts.labels import LOSS, at_label, unless_none, x_line_1
from flashsim.machine.memory import HBM, SRAM, Matrix
from flashsim.problem.matrices import Kind
from flashsim.problem.shapes import Sizes


def cut_cross_entropy(hbm: HBM, sram: SRAM, X: Matrix, E: Matrix, y: Matrix, blocks: Sizes) -> tuple[Matrix, Matrix]:
    """Run on X (N, d), E (v, d), y (N, 1); return loss and L (N, 1), in HBM."""
    on_chip = sram.on_chip
    B_r, B_c = blocks.B_r, blocks.B_c  # line 1
    loss, L = (hbm.empty(name, (X.shape[0], 1), sram.dtype, "output") for name in ("loss", "L"))  # line 2
    returned = loss, L  # line 2
    X, y, loss, L, E = X.divide(B_r), y.divide(B_r), loss.divide(B_r), L.divide(B_r), E.divide(B_c)  # line 2
    for i in sram.loop(len(X)):  # line 3
        X_i, y_i = sram.load(X[i], y[i])  # line 4
        l_i = sram.full(L[i].shape, 0.0)  # line 5
        m_i = sram.full(L[i].shape, float("-inf"))  # line 5
        c_i = sram.full(L[i].shape, 0.0)  # line 5
        for j in sram.loop(len(E)):  # line 6
            E_j = sram.load(E[j])  # line 7
            S_ij = on_chip(X_i @ E_j.T)  # line 8
            c_i = on_chip(c_i + rowsum(at_label(S_ij, y_i, j * B_c)), over=c_i)  # line 9
            m_i_new = on_chip(maximum(m_i, rowmax(S_ij)))  # line 10
            P_tilde_ij = on_chip(exp(S_ij - finite(m_i_new)), over=S_ij)  # line 11
            l_i = on_chip(exp(m_i - finite(m_i_new)) * l_i + rowsum(P_tilde_ij), over=l_i)  # line 12
            m_i = on_chip(m_i_new, over=m_i)  # line 13
        # line 14: end for
        L_i = on_chip(m_i + log(l_i), over=l_i)  # line 15
        loss_i = on_chip(unless_none(L_i - c_i, y_i), over=c_i)  # line 16
        sram.store(L[i], L_i)  # line 17
        sram.store(loss[i], loss_i)  # line 17
    # line 18: end for
    return returned  # line 19


PROGRAM = Program(
    **LOSS, title="Cut cross-entropy", run=cut_cross_entropy,
    returns={"loss": Kind("N", "1", "chip"), "L": Kind("N", "1", "chip")},
    extras={name: Kind("N", "1", "chip") for name in ("m", "l", "c")}, follows=("m", "l", "c", "loss"),
    line_1=x_line_1,
    bugs=(
        Bug("labels counted from the tile", "j * B_c", "0"),
        Bug("labels counted by the wrong block size", "j * B_c", "j * B_r"),
        Bug("ℓ is not rescaled", "exp(m_i - finite(m_i_new)) * l_i", "l_i"),
        Bug("rows left out have a loss", "unless_none(L_i - c_i, y_i)", "L_i - c_i"),
    ),
)

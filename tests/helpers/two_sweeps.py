"""Sweep the keys twice: for ℓ and m, then for O, which is never rescaled."""

import numpy as np

from flashsim.algorithms.notation import exp, maximum, rowmax, rowsum


def two_sweeps(hbm, sram, Q, K, V, blocks):
    on_chip = sram.on_chip
    O = hbm.empty("O", (Q.shape[0], V.shape[1]), V.dtype, "output").divide(blocks.B_r)
    Q = Q.divide(blocks.B_r)
    K = K.divide(blocks.B_c)
    V = V.divide(blocks.B_c)
    for i in sram.loop(blocks.T_r):
        Q_i = sram.load(Q[i])
        m_i = sram.full((Q_i.shape[0], 1), -np.inf)
        l_i = sram.full((Q_i.shape[0], 1), 0.0)
        for j in sram.loop(blocks.T_c):
            S_ij = on_chip(Q_i @ sram.load(K[j]).T)
            m_new = on_chip(maximum(m_i, rowmax(S_ij)))
            l_i = on_chip(exp(m_i - m_new) * l_i + rowsum(exp(S_ij - m_new)), over=l_i)
            m_i = on_chip(m_new, over=m_i)
        O_i = sram.full(O[i].shape, 0.0)
        for j in sram.loop(blocks.T_c):
            K_j, V_j = sram.load(K[j], V[j])
            O_i = on_chip(O_i + on_chip(exp(Q_i @ K_j.T - m_i) / l_i) @ V_j, over=O_i)
        sram.store(O[i], O_i)
    return O


# mypy: ignore-errors

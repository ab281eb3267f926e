"""The backward pass in two passes, each with tiles of its own: 14 N²d²/M accesses, the fewest known for M well above d².

In the first K_j, V_j, dK_j, dV_j stay on chip, B_c rows of each, and rows of Q and dO come one by one; in the second Q_i, dO_i,
dQ_i stay, B_r rows of each, and keys come one by one. `q_outer_two_pass` has one tile shape for both. No mask, no dropout.
"""

from flashsim.algorithms import GRADIENTS, Algorithm
from flashsim.algorithms.notation import exp, rowsum


def two_passes(hbm, sram, Q, K, V, O, dO, L, blocks, tau):
    on_chip, B_r, B_c = sram.on_chip, blocks.B_r, blocks.B_c
    dQ, dK, dV = (hbm.empty(f"d{X.name}", X.shape, X.dtype, "output") for X in (Q, K, V))
    D = hbm.empty("D", L.shape, sram.dtype)
    rows, keys = Q.shape[0], K.shape[0]
    Q_n, dO_n, O_n, L_n, D_n, K_n, V_n = (X.divide(1) for X in (Q, dO, O, L, D, K, V))
    for n in sram.loop(rows):
        sram.store(D_n[n], on_chip(rowsum(sram.load(dO_n[n]) * sram.load(O_n[n]))))
    K_j, V_j, dK_j, dV_j = (X.divide(B_c) for X in (K, V, dK, dV))
    for j in sram.loop(blocks.T_c):
        K_here, V_here = sram.load(K_j[j], V_j[j])
        dK_here, dV_here = sram.full(K_here.shape, 0.0), sram.full(V_here.shape, 0.0)
        for n in sram.loop(rows):
            q, do, l, D_here = sram.load(Q_n[n], dO_n[n], L_n[n], D_n[n])
            p = on_chip(exp(tau * (q @ K_here.T) - l))
            dV_here = on_chip(dV_here + p.T @ do, over=dV_here)
            ds = on_chip(p * (do @ V_here.T - D_here), over=p)
            dK_here = on_chip(dK_here + tau * (ds.T @ q), over=dK_here)
        sram.store(dK_j[j], dK_here)
        sram.store(dV_j[j], dV_here)
    Q_i, dO_i, dQ_i, L_i, D_i = (X.divide(B_r) for X in (Q, dO, dQ, L, D))
    for i in sram.loop(blocks.T_r):
        Q_here, dO_here, l, D_here = sram.load(Q_i[i], dO_i[i], L_i[i], D_i[i])
        dQ_here = sram.full(Q_here.shape, 0.0)
        for n in sram.loop(keys):
            k, v = sram.load(K_n[n], V_n[n])
            p = on_chip(exp(tau * (Q_here @ k.T) - l))
            ds = on_chip(p * (dO_here @ v.T - D_here), over=p)
            dQ_here = on_chip(dQ_here + tau * (ds @ k), over=dQ_here)
        sram.store(dQ_i[i], dQ_here)
    return dQ, dK, dV


ALGORITHM = Algorithm(
    name="two_passes",
    direction="backward",
    of="q_outer",
    title="Backward in two passes, each with tiles of its own",
    run=two_passes,
    operands=("Q", "K", "V", "O", "dO", "L"),
    parts=("tau",),
    returns=GRADIENTS,
    follows=GRADIENTS,
    line_1=lambda rows, d: (rows, rows),
    loops="two passes, tiles of their own",
)


# mypy: ignore-errors

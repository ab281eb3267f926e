"""Ring attention, backward: keys, values and their gradients travel round the ring; queries and dQ
stay.

    Require: own rows of Q, K, V, O, dO, L in each device's HBM, positions `where[p]`, on-chip SRAM
             of size M.
    1  D_i = rowsum(dO_i ∘ O_i) for each head and row block; write D_i. Initialize dQ = 0 in HBM.
       cur ← own K, V.
    2  for 0 ≤ s < P do
    3    if s + 1 < P: post cur to rank + 1, and receive from rank − 1 into the buffer that is free.
    4    src ← (rank − s) mod P: whose K, V are in cur, and whose dK, dV are in acc.
    5    for each KV head, each key block j of src with a live tile in this step
         (in the first step: each) do
    6      Load K_j, V_j. In the first step dK̃_j = 0, dṼ_j = 0 on SRAM; else load dK̃_j,
           dṼ_j from acc.
    7      for each query head that shares them, each live row block i do
    8        Load Q_i, dO_i, dQ_i, L_i, D_i.
    9        S_ij = MASK(τ Q_i K_jᵀ), P_ij = exp(S_ij − L_i).
    10       dṼ_j ← dṼ_j + P_ijᵀ dO_i.
    11       dS_ij = P_ij ∘ (dO_i V_jᵀ − D_i).
    12       dQ_i ← dQ_i + τ dS_ij K_j, write dQ_i.
    13       dK̃_j ← dK̃_j + τ dS_ijᵀ Q_i.
    14     end for
    15     Write dK̃_j, dṼ_j to acc.
    16   end for
    17   if s + 1 < P: wait for K, V.
    18   Post acc to rank + 1, receive acc from rank − 1, wait: P times,
         so that the last brings own dK, dV home.
    19 end for

Source: as for the forward pass, and Algorithm 4 of "FlashAttention" for the tile. dK̃, dṼ and dQ
are kept, and travel, in the type that the chip computes in.
"""

from typing import Any

from flashsim.algorithms.notation import at_most_0, exp, finite, gated, product, rowsum
from flashsim.algorithms.record import Bug
from flashsim.devices.record import DevicesProgram
from flashsim.devices.share import Share
from flashsim.memory.device import Device
from flashsim.memory.hbm import Matrix


def ring_backward(
    device: Device,
    share: Share,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
    O: Matrix,
    dO: Matrix,
    L: Matrix,
) -> tuple[Matrix, Matrix, Matrix]:
    """Run on own rows; return dQ (H_q·n, d), and own dK (H_kv·n, d) and dV (H_kv·n, d_v) in the
    chip's type, in HBM.
    """
    hbm = device.hbm
    sram = device.sram
    on_chip = device.sram.on_chip
    rank = device.rank
    P = device.size
    H_q = share.H_q
    H_kv = share.H_kv
    g = share.group
    n = share.rows(rank)
    most = share.most_rows
    tau = share.tau
    B_r = share.B_r
    B_c = share.B_c
    d = K.shape[1]
    d_v = V.shape[1]
    D = hbm.empty("D", (H_q * n, 1), sram.dtype)
    for h in sram.loop(H_q):  # line 1
        O_h = share.head(O, h, n).divide(B_r)
        dO_h = share.head(dO, h, n).divide(B_r)
        D_h = share.head(D, h, n).divide(B_r)
        for i in sram.loop(len(D_h)):  # line 1
            O_i, dO_i = sram.load(O_h[i], dO_h[i])  # line 1
            D_i = on_chip(rowsum(dO_i * O_i))  # line 1
            sram.store(D_h[i], D_i)  # line 1
    dQ = hbm.full("dQ", (H_q * n, d), 0.0, sram.dtype, "output")  # line 1
    buffers = []
    for b in range(min(P - 1, 2)):
        K_b = hbm.empty(f"K_{b}", (H_kv * most, d), V.dtype)
        V_b = hbm.empty(f"V_{b}", (H_kv * most, d_v), V.dtype)
        buffers.append((K_b, V_b))
    sums = []
    for b in range(min(P, 2)):
        dK_b = hbm.empty(f"dK_{b}", (H_kv * most, d), sram.dtype)
        dV_b = hbm.empty(f"dV_{b}", (H_kv * most, d_v), sram.dtype)
        sums.append((dK_b, dV_b))
    right = (rank + 1) % P
    left = (rank - 1) % P
    cur = [K, V]  # line 1
    acc = [X.rows(0, H_kv * n) for X in sums[0]]  # line 1
    for s in range(P):  # line 2
        next_rows = H_kv * share.rows((rank - s - 1) % P)
        if s + 1 < P:
            new = [X.rows(0, next_rows) for X in buffers[s % 2]]
            ticket = device.post(  # line 3
                sends=[(X, right) for X in cur],
                receives=[(X, left) for X in new],
            )
        src = (rank - s) % P  # line 4
        rows = share.rows(src)
        due: Any = share.live(rank, src).any(axis=0) if s else None  # line 5
        for h_kv in sram.loop(H_kv):  # line 5
            K_h, V_h = (share.head(X, h_kv, rows).divide(B_c) for X in cur)
            dK_h, dV_h = (share.head(X, h_kv, rows).divide(B_c) for X in acc)
            for j in sram.loop(len(K_h), where=due):  # line 5
                live = share.column(rank, src, j, due)  # line 7
                K_j, V_j = sram.load(K_h[j], V_h[j])  # line 6
                if s:
                    dK_j, dV_j = sram.load(dK_h[j], dV_h[j])  # line 6
                else:
                    dK_j = sram.full(K_h[j].shape, 0.0)  # line 6
                    dV_j = sram.full(V_h[j].shape, 0.0)  # line 6
                for r in sram.loop(g):  # line 7
                    h = g * h_kv + r
                    Q_h = share.head(Q, h, n).divide(B_r)
                    dO_h = share.head(dO, h, n).divide(B_r)
                    dQ_h = share.head(dQ, h, n).divide(B_r)
                    L_h = share.head(L, h, n).divide(B_r)
                    D_h = share.head(D, h, n).divide(B_r)
                    for i in sram.loop(len(Q_h), where=live):  # line 7
                        Q_i, dO_i, dQ_i, L_i, D_i = sram.load(  # line 8
                            Q_h[i], dO_h[i], dQ_h[i], L_h[i], D_h[i]
                        )
                        S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 9
                        S_ij = on_chip(share.mask(S_ij, rank, i, src, j), over=S_ij)  # line 9
                        P_ij = on_chip(exp(at_most_0(S_ij - finite(L_i))), over=S_ij)  # line 9
                        dV_j = on_chip(dV_j + product(P_ij.T, dO_i), over=dV_j)  # line 10
                        dP_ij = on_chip(dO_i @ V_j.T)  # line 11
                        dS_ij = on_chip(gated(P_ij, dP_ij - D_i), over=dP_ij)  # line 11
                        dQ_i = on_chip(dQ_i + tau * product(dS_ij, K_j), over=dQ_i)  # line 12
                        sram.store(dQ_h[i], dQ_i)  # line 12
                        dK_j = on_chip(dK_j + tau * product(dS_ij.T, Q_i), over=dK_j)  # line 13
                # line 14: end for
                sram.store(dK_h[j], dK_j)  # line 15
                sram.store(dV_h[j], dV_j)  # line 15
        # line 16: end for
        if s + 1 < P:
            device.wait(ticket)  # line 17
            cur = new  # line 17
        if P > 1:
            back = [X.rows(0, next_rows) for X in sums[(s + 1) % 2]]
            ticket = device.post(  # line 18
                sends=[(X, right) for X in acc],
                receives=[(X, left) for X in back],
            )
            device.wait(ticket)  # line 18
            acc = back  # line 18
    # line 19: end for
    return dQ, acc[0], acc[1]


PROGRAM = DevicesProgram(
    name="ring",
    direction="backward",
    title="Ring attention, backward",
    run=ring_backward,
    layout="zigzag",
    bugs=(
        Bug(
            "τ is left out of dQ", "dQ_i + tau * product(dS_ij, K_j)", "dQ_i + product(dS_ij, K_j)"
        ),
        Bug("dK, dV start anew on each device", "if s:\n", "if s < 0:\n"),
        Bug(
            "a group's dK is its last head's",
            "dK_j + tau * product(dS_ij.T, Q_i)",
            "dK_j * (r == 0 or i > 0) + tau * product(dS_ij.T, Q_i)",
        ),
        Bug("dK, dV stay where they are", "acc = back  # line 18", "acc = acc  # line 18"),
    ),
)

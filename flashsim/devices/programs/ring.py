"""Ring attention, forward: keys and values travel round a ring of devices, queries stay.

    Require: own rows of Q, K, V in each device's HBM, positions `where[p]` of device p's rows,
             on-chip SRAM of size M.
    1  cur ← own K, V.
    2  for 0 ≤ s < P do
    3    if s + 1 < P: post cur to rank + 1, and receive from rank − 1 into the buffer that is free.
    4    src ← (rank − s) mod P: whose K, V are in cur.
    5    for each query head h, each row block i with a live tile in this step do
    6      Load Q_i. In its first such step O_i = 0, ℓ_i = 0, m_i = −∞ on SRAM; else load O_i, ℓ_i,
           m_i.
    7      for each live tile j of src do
    8        Load K_j, V_j of the KV head that h shares, from cur.
    9        S_ij = MASK(τ Q_i K_jᵀ), by positions.
    10       m_i^new = max(m_i, rowmax(S_ij)), P̃_ij = exp(S_ij − m_i^new).
    11       ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ij), O_i ← e^{m_i − m_i^new} O_i + P̃_ij V_j,
             m_i ← m_i^new.
    12     end for
    13     In its last such step O_i ← O_i / ℓ_i, L_i = m_i + log ℓ_i, write O_i, L_i;
           else write O_i, ℓ_i, m_i.
    14   end for
    15   if s + 1 < P: wait; cur ← that buffer.
    16 end for

Source: "Ring Attention with Blockwise Transformers for Near-Infinite Context" (Liu, Zaharia,
Abbeel). Unfinished O_i, ℓ_i, m_i are kept in the type that the chip computes in: in 16 bits the
error would grow with the number of devices. Heads lie one below the other: row n·h + r of Q is row
r of head h.
"""

import numpy as np

from flashsim.algorithms.notation import exp, finite, log, maximum, nonzero, product, rowmax, rowsum
from flashsim.algorithms.record import Bug
from flashsim.devices.record import DevicesProgram
from flashsim.devices.share import Share
from flashsim.memory.device import Device
from flashsim.memory.hbm import Matrix


def ring(
    device: Device,
    share: Share,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
) -> tuple[Matrix, Matrix]:
    """Run on own Q (H_q·n, d), K (H_kv·n, d), V (H_kv·n, d_v); return O (H_q·n, d_v), and L
    (H_q·n, 1), in HBM.
    """
    hbm = device.hbm
    sram = device.sram
    on_chip = device.sram.on_chip
    rank = device.rank
    P = device.size
    H_q = share.H_q
    H_kv = share.H_kv
    n = share.rows(rank)
    most = share.most_rows
    tau = share.tau
    B_r = share.B_r
    B_c = share.B_c
    shape = H_q * n, V.shape[1]
    O = hbm.empty("O", shape, V.dtype, "output")
    L = hbm.empty("L", (H_q * n, 1), sram.dtype)
    O_run = hbm.empty("O_run", shape, sram.dtype)
    l_run = hbm.empty("l_run", (H_q * n, 1), sram.dtype)
    m_run = hbm.empty("m_run", (H_q * n, 1), sram.dtype)
    buffers = []
    for b in range(min(P - 1, 2)):
        K_b = hbm.empty(f"K_{b}", (H_kv * most, K.shape[1]), K.dtype)
        V_b = hbm.empty(f"V_{b}", (H_kv * most, V.shape[1]), V.dtype)
        buffers.append((K_b, V_b))
    right = (rank + 1) % P
    left = (rank - 1) % P
    live_steps = _live_steps(share, rank)
    cur = K, V  # line 1
    for s in range(P):  # line 2
        if s + 1 < P:
            rows = H_kv * share.rows((rank - s - 1) % P)
            new = [matrix.rows(0, rows) for matrix in buffers[s % 2]]
            ticket = device.post(  # line 3
                sends=[(X, right) for X in cur],
                receives=[(X, left) for X in new],
            )
        src = (rank - s) % P  # line 4
        due = np.array([s in steps for steps in live_steps], bool)  # line 5
        kinds = [(s in steps, s == steps[0], s == steps[-1]) for steps in live_steps]  # line 5
        for h in sram.loop(H_q):  # line 5
            h_kv = h // share.group
            Q_h = share.head(Q, h, n).divide(B_r)
            O_h = share.head(O, h, n).divide(B_r)
            L_h = share.head(L, h, n).divide(B_r)
            parts = [share.head(X, h, n).divide(B_r) for X in (O_run, l_run, m_run)]
            K_h = share.head(cur[0], h_kv, share.rows(src)).divide(B_c)
            V_h = share.head(cur[1], h_kv, share.rows(src)).divide(B_c)
            for i in sram.loop(len(Q_h), where=due, alike=kinds):  # line 5
                Q_i = sram.load(Q_h[i])  # line 6
                if s == live_steps[i][0]:
                    O_i = sram.full(O_h[i].shape, 0.0)  # line 6
                    l_i = sram.full(L_h[i].shape, 0.0)  # line 6
                    m_i = sram.full(L_h[i].shape, float("-inf"))  # line 6
                else:
                    O_i, l_i, m_i = sram.load(*(X[i] for X in parts))  # line 6
                live = share.row(rank, src, i, kinds)  # line 7
                for j in sram.loop(len(K_h), where=live):  # line 7
                    K_j, V_j = sram.load(K_h[j], V_h[j])  # line 8
                    S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 9
                    S_ij = on_chip(share.mask(S_ij, rank, i, src, j), over=S_ij)  # line 9
                    m_i_new = on_chip(maximum(m_i, rowmax(S_ij)))  # line 10
                    P_tilde_ij = on_chip(exp(S_ij - finite(m_i_new)), over=S_ij)  # line 10
                    l_i = on_chip(  # line 11
                        exp(m_i - finite(m_i_new)) * l_i + rowsum(P_tilde_ij), over=l_i
                    )
                    O_i = on_chip(  # line 11
                        exp(m_i - finite(m_i_new)) * O_i + product(P_tilde_ij, V_j), over=O_i
                    )
                    m_i = on_chip(m_i_new, over=m_i)  # line 11
                # line 12: end for
                if s == live_steps[i][-1]:
                    O_i = on_chip(O_i / nonzero(l_i), over=O_i)  # line 13
                    L_i = on_chip(m_i + log(l_i), over=l_i)  # line 13
                    sram.store(O_h[i], O_i)  # line 13
                    sram.store(L_h[i], L_i)  # line 13
                else:
                    for X, tile in zip(parts, (O_i, l_i, m_i), strict=True):
                        sram.store(X[i], tile)  # line 13
        # line 14: end for
        if s + 1 < P:
            device.wait(ticket)  # line 15
            cur = new[0], new[1]  # line 15
    # line 16: end for
    return O, L


def _live_steps(share: Share, rank: int) -> list[list[int]]:
    """Return, for each row block, the steps in which it has a live tile; if none, the first,
    which writes zeros.
    """
    P = len(share.where)
    live = []
    for s in range(P):
        src = (rank - s) % P
        live.append(share.live(rank, src).any(axis=1))
    by_block = np.array(live).T
    return [np.flatnonzero(steps).tolist() or [0] for steps in by_block]


PROGRAM = DevicesProgram(
    name="ring",
    title="Ring attention",
    run=ring,
    layout="zigzag",
    bugs=(
        Bug(
            "K, V are taken to be another device's", "src = (rank - s) % P", "src = (rank + s) % P"
        ),
        Bug(
            "the maximum is kept from the first tile",
            "m_i = on_chip(m_i_new, over=m_i)",
            "m_i = on_chip(m_i + 0, over=m_i)",
        ),
        Bug(
            "a row block is finished in its first step",
            "live_steps[i][-1]",
            "live_steps[i][0]",
        ),
        Bug(
            "the last device's K, V are left out",
            "for s in range(P):  # line 2",
            "for s in range(max(P - 1, 1)):  # line 2",
        ),
    ),
)

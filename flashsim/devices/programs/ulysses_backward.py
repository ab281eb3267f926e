"""Ulysses, backward: devices exchange rows for heads, each computes whole heads' gradients, and
rows of these go home.

    Require: own rows of Q, K, V, O, dO, and own heads' L, in each device's HBM, positions
             `where[p]`, on-chip SRAM of size M.
    1  D_i = rowsum(dO_i ∘ O_i) for each head and row block; write D_i.
    2  Post, for each x ≠ rank, own rows of Q, dO, D of heads h_x, and of K, V of the KV heads that
       h_x share; receive own heads' rows of each x; wait. Initialize dQ = 0 in HBM.
    3  for each own KV head, each key block j of each y do
    4    Load K_j, V_j. dK̃_j = 0, dṼ_j = 0 on SRAM.
    5    for each own query head that shares them, each live row block i of each x do
    6      Load Q_i, dO_i, dQ_i, L_i, D_i.
    7      S_ij = MASK(τ Q_i K_jᵀ), P_ij = exp(S_ij − L_i).
    8      dṼ_j ← dṼ_j + P_ijᵀ dO_i.
    9      dS_ij = P_ij ∘ (dO_i V_jᵀ − D_i).
    10     dQ_i ← dQ_i + τ dS_ij K_j, write dQ_i.
    11     dK̃_j ← dK̃_j + τ dS_ijᵀ Q_i.
    12   end for
    13   Write dK̃_j, dṼ_j to the part of y.
    14 end for
    15 Post rows of dQ of own heads, and the parts of dK, dV, to each x ≠ rank;
       receive own rows of x's heads; wait.
    16 for each KV head, each own key block j: dK_j, dV_j are the sums of the parts of devices whose
       query heads share it.

Source: as for the forward pass, and Algorithm 4 of "FlashAttention" for the tile. Gradients are
kept, and travel, in the type that the chip computes in.
"""

from flashsim.algorithms.notation import at_most_0, exp, finite, gated, product, rowsum
from flashsim.algorithms.record import Bug
from flashsim.devices.heads import heads_of, kv_heads_of
from flashsim.devices.record import DevicesProgram
from flashsim.devices.share import Share
from flashsim.memory.device import Device
from flashsim.memory.hbm import Matrix


def ulysses_backward(
    device: Device,
    share: Share,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
    O: Matrix,
    dO: Matrix,
    L: Matrix,
) -> tuple[Matrix, Matrix, Matrix]:
    """Run on own rows, and L (heads·N, 1) of own heads; return own rows of dQ, dK, dV, in the
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
    N = len(share)
    n = share.rows(rank)
    tau = share.tau
    mine = heads_of(share, rank)
    kv = kv_heads_of(share, rank)
    B_r = share.B_r
    B_c = share.B_c
    d = K.shape[1]
    d_v = V.shape[1]
    others = [x for x in range(P) if x != rank]
    D = hbm.empty("D", (H_q * n, 1), sram.dtype)
    for h in sram.loop(H_q):  # line 1
        O_h = share.head(O, h, n).divide(B_r)
        dO_h = share.head(dO, h, n).divide(B_r)
        D_h = share.head(D, h, n).divide(B_r)
        for i in sram.loop(len(D_h)):  # line 1
            O_i, dO_i = sram.load(O_h[i], dO_h[i])  # line 1
            D_i = on_chip(rowsum(dO_i * O_i))  # line 1
            sram.store(D_h[i], D_i)  # line 1
    Q_of = {rank: share.of_heads(Q, mine, n)}
    dO_of = {rank: share.of_heads(dO, mine, n)}
    D_of = {rank: share.of_heads(D, mine, n)}
    K_of = {rank: share.of_heads(K, kv, n)}
    V_of = {rank: share.of_heads(V, kv, n)}
    sends = []
    receives = []
    for x in others:
        for X, X_of in ((Q, Q_of), (dO, dO_of), (D, D_of)):
            X_of[x] = _rows_of(device, X, x, len(mine) * share.rows(x))
            sends.append((share.of_heads(X, heads_of(share, x), n), x))
            receives.append((X_of[x], x))
        for X, X_of in ((K, K_of), (V, V_of)):
            X_of[x] = _rows_of(device, X, x, len(kv) * share.rows(x))
            sends.append((share.of_heads(X, kv_heads_of(share, x), n), x))
            receives.append((X_of[x], x))
    device.wait(device.post(sends=sends, receives=receives))  # line 2
    dQ = hbm.full("dQ", (H_q * n, d), 0.0, sram.dtype, "output")  # line 2
    dQ_of = {rank: share.of_heads(dQ, mine, n)}
    for x in others:
        rows = len(mine) * share.rows(x)
        dQ_of[x] = hbm.full(f"dQ_{x}", (rows, d), 0.0, sram.dtype)  # line 2
    dK_of = {}
    dV_of = {}
    for y in range(P):
        rows = len(kv) * share.rows(y)
        dK_of[y] = hbm.empty(f"dK_of_{y}", (rows, d), sram.dtype)
        dV_of[y] = hbm.empty(f"dV_of_{y}", (rows, d_v), sram.dtype)
    sharing = []  # own query heads of each own KV head
    for k in kv:
        first = max(mine.start, g * k)
        stop = min(mine.stop, g * (k + 1))
        sharing.append(range(first, stop))
    tops = [0]  # where each device's rows begin in a head of L
    for x in range(P):
        tops.append(tops[x] + share.rows(x))
    for k in sram.loop(len(kv), alike=[*map(len, sharing)]):  # line 3
        for y in range(P):  # line 3
            keys = share.rows(y)
            K_y = share.head(K_of[y], k, keys).divide(B_c)
            V_y = share.head(V_of[y], k, keys).divide(B_c)
            dK_y = share.head(dK_of[y], k, keys).divide(B_c)
            dV_y = share.head(dV_of[y], k, keys).divide(B_c)
            for j in sram.loop(len(K_y)):  # line 3
                K_j, V_j = sram.load(K_y[j], V_y[j])  # line 4
                dK_j = sram.full(K_y[j].shape, 0.0)  # line 4
                dV_j = sram.full(V_y[j].shape, 0.0)  # line 4
                for r in sram.loop(len(sharing[k])):  # line 5
                    h = sharing[k].start - mine.start + r
                    for x in range(P):  # line 5
                        rows = share.rows(x)
                        Q_x = share.head(Q_of[x], h, rows).divide(B_r)
                        dO_x = share.head(dO_of[x], h, rows).divide(B_r)
                        D_x = share.head(D_of[x], h, rows).divide(B_r)
                        dQ_x = share.head(dQ_of[x], h, rows).divide(B_r)
                        L_x = L.rows(h * N + tops[x], h * N + tops[x + 1]).divide(B_r)
                        live = share.column(x, y, j)  # line 5
                        for i in sram.loop(len(Q_x), where=live):  # line 5
                            Q_i, dO_i, dQ_i, L_i, D_i = sram.load(  # line 6
                                Q_x[i], dO_x[i], dQ_x[i], L_x[i], D_x[i]
                            )
                            S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 7
                            S_ij = on_chip(share.mask(S_ij, x, i, y, j), over=S_ij)  # line 7
                            P_ij = on_chip(exp(at_most_0(S_ij - finite(L_i))), over=S_ij)  # line 7
                            dV_j = on_chip(dV_j + product(P_ij.T, dO_i), over=dV_j)  # line 8
                            dP_ij = on_chip(dO_i @ V_j.T)  # line 9
                            dS_ij = on_chip(gated(P_ij, dP_ij - D_i), over=dP_ij)  # line 9
                            dQ_i = on_chip(dQ_i + tau * product(dS_ij, K_j), over=dQ_i)  # line 10
                            sram.store(dQ_x[i], dQ_i)  # line 10
                            dK_j = on_chip(dK_j + tau * product(dS_ij.T, Q_i), over=dK_j)  # line 11
                # line 12: end for
                sram.store(dK_y[j], dK_j)  # line 13
                sram.store(dV_y[j], dV_j)  # line 13
    # line 14: end for
    dK_from = {rank: dK_of[rank]}
    dV_from = {rank: dV_of[rank]}
    sends = []
    receives = []
    for x in others:
        rows = len(kv_heads_of(share, x)) * n
        dK_from[x] = hbm.empty(f"dK_from_{x}", (rows, d), sram.dtype)
        dV_from[x] = hbm.empty(f"dV_from_{x}", (rows, d_v), sram.dtype)
        sends += [(dQ_of[x], x), (dK_of[x], x), (dV_of[x], x)]
        receives.append((share.of_heads(dQ, heads_of(share, x), n), x))
        receives += [(dK_from[x], x), (dV_from[x], x)]
    device.wait(device.post(sends=sends, receives=receives))  # line 15
    dK = hbm.empty("dK", (H_kv * n, d), sram.dtype, "output")
    dV = hbm.empty("dV", (H_kv * n, d_v), sram.dtype, "output")
    for k in range(H_kv):  # line 16
        users = [x for x in range(P) if k in kv_heads_of(share, x)]
        for whole, X_from in ((dK, dK_from), (dV, dV_from)):  # line 16
            sums = share.head(whole, k, n).divide(B_c)
            parts = []
            for x in users:
                h_kv = k - kv_heads_of(share, x).start
                parts.append(share.head(X_from[x], h_kv, n).divide(B_c))
            for j in sram.loop(len(sums)):  # line 16
                X_j = sram.full(sums[j].shape, 0.0)  # line 16
                for x in sram.loop(len(parts), alike=range(len(parts))):  # line 16
                    X_j = on_chip(X_j + sram.load(parts[x][j]), over=X_j)  # line 16
                sram.store(sums[j], X_j)  # line 16
    return dQ, dK, dV


def _rows_of(device: Device, X: Matrix, x: int, rows: int) -> Matrix:
    """Return room for rows of device x's X."""
    return device.hbm.empty(f"{X.name}_{x}", (rows, X.shape[1]), X.dtype)


PROGRAM = DevicesProgram(
    name="ulysses",
    direction="backward",
    title="Ulysses, backward",
    run=ulysses_backward,
    whole_heads=True,
    bugs=(
        Bug("dS lacks D", "dP_ij - D_i", "dP_ij"),
        Bug(
            "every tile is masked as own rows'",
            "share.mask(S_ij, x, i, y, j)",
            "share.mask(S_ij, rank, i, y, j)",
        ),
        Bug(
            "L is the first head's",
            "L.rows(h * N + tops[x], h * N + tops[x + 1])",
            "L.rows(tops[x], tops[x + 1])",
        ),
        Bug(
            "K, V are loaded for each row block",
            "Q_i, dO_i, dQ_i, L_i, D_i = sram.load(",
            "sram.load(K_y[j]); Q_i, dO_i, dQ_i, L_i, D_i = sram.load(",
        ),
    ),
)

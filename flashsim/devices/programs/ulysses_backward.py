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
from flashsim.devices.record import DevicesProgram
from flashsim.devices.share import Share
from flashsim.memory.device import Device
from flashsim.memory.hbm import Matrix


def ulysses_backward(
    device: Device, share: Share, Q: Matrix, K: Matrix, V: Matrix, O: Matrix, dO: Matrix, L: Matrix
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
    mine = share.heads(rank)
    kv = share.kv_heads(rank)
    B_r = share.B_r
    B_c = share.B_c
    d = K.shape[1]
    d_v = V.shape[1]
    others = [x for x in range(P) if x != rank]
    D = hbm.empty("D", (H_q * n, 1), sram.dtype)
    for h in sram.loop(H_q):  # line 1
        O_h, dO_h, D_h = (share.head(X, h, n).divide(B_r) for X in (O, dO, D))
        for i in sram.loop(len(D_h)):  # line 1
            O_i, dO_i = sram.load(O_h[i], dO_h[i])  # line 1
            D_i = on_chip(rowsum(dO_i * O_i))  # line 1
            sram.store(D_h[i], D_i)  # line 1
    operands = [(X, share.heads) for X in (Q, dO, D)] + [(X, share.kv_heads) for X in (K, V)]
    of = [
        {
            x: hbm.empty(f"{X.name}_{x}", (len(heads(rank)) * share.rows(x), X.shape[1]), X.dtype)
            for x in others
        }
        for X, heads in operands
    ]
    sends = [(share.of_heads(X, heads(x), n), x) for x in others for X, heads in operands]
    device.wait(  # line 2
        device.post(sends=sends, receives=[(X_of[x], x) for x in others for X_of in of])
    )
    for X_of, (X, heads) in zip(of, operands, strict=True):
        X_of[rank] = share.of_heads(X, heads(rank), n)
    Q_of, dO_of, D_of, K_of, V_of = of
    dQ = hbm.full("dQ", (H_q * n, d), 0.0, sram.dtype, "output")  # line 2
    dQ_of = {  # line 2
        x: hbm.full(f"dQ_{x}", (len(mine) * share.rows(x), d), 0.0, sram.dtype) for x in others
    }
    dQ_of[rank] = share.of_heads(dQ, mine, n)
    dK_of, dV_of = (
        {y: hbm.empty(f"{X}_of_{y}", (len(kv) * share.rows(y), w), sram.dtype) for y in range(P)}
        for X, w in (("dK", d), ("dV", d_v))
    )
    sharing = [range(max(mine.start, g * k), min(mine.stop, g * (k + 1))) for k in kv]
    tops = [sum(share.rows(y) for y in range(x)) for x in range(P)]
    for k in sram.loop(len(kv), alike=[*map(len, sharing)]):  # line 3
        for y in range(P):  # line 3
            K_y, V_y, dK_y, dV_y = (
                share.head(X_of[y], k, share.rows(y)).divide(B_c)
                for X_of in (K_of, V_of, dK_of, dV_of)
            )
            for j in sram.loop(len(K_y)):  # line 3
                K_j, V_j = sram.load(K_y[j], V_y[j])  # line 4
                dK_j = sram.full(K_y[j].shape, 0.0)  # line 4
                dV_j = sram.full(V_y[j].shape, 0.0)  # line 4
                for r in sram.loop(len(sharing[k])):  # line 5
                    h = sharing[k].start - mine.start + r
                    for x in range(P):  # line 5
                        Q_x, dO_x, D_x, dQ_x = (
                            share.head(X_of[x], h, share.rows(x)).divide(B_r)
                            for X_of in (Q_of, dO_of, D_of, dQ_of)
                        )
                        L_x = L.rows(h * N + tops[x], h * N + tops[x] + share.rows(x)).divide(B_r)
                        for i in sram.loop(len(Q_x), where=share.column(x, y, j)):  # line 5
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
    received = {rank: (dK_of[rank], dV_of[rank])}
    for x in others:
        rows = len(share.kv_heads(x)) * n
        received[x] = (
            hbm.empty(f"dK_from_{x}", (rows, d), sram.dtype),
            hbm.empty(f"dV_from_{x}", (rows, d_v), sram.dtype),
        )
    home = [(share.of_heads(dQ, share.heads(x), n), x) for x in others]
    device.wait(  # line 15
        device.post(
            sends=[(X_of[x], x) for x in others for X_of in (dQ_of, dK_of, dV_of)],
            receives=[
                each
                for to, x in home
                for each in ((to, x), (received[x][0], x), (received[x][1], x))
            ],
        )
    )
    dK, dV = (
        hbm.empty(X, (H_kv * n, w), sram.dtype, "output") for X, w in (("dK", d), ("dV", d_v))
    )
    for k in range(H_kv):  # line 16
        users = [x for x in range(P) if k in share.kv_heads(x)]
        for which, whole in enumerate((dK, dV)):  # line 16
            sums = share.head(whole, k, n).divide(B_c)
            parts = [
                share.head(received[x][which], k - share.kv_heads(x).start, n).divide(B_c)
                for x in users
            ]
            for j in sram.loop(len(sums)):  # line 16
                X_j = sram.full(sums[j].shape, 0.0)  # line 16
                for x in sram.loop(len(parts), alike=range(len(parts))):  # line 16
                    X_j = on_chip(X_j + sram.load(parts[x][j]), over=X_j)  # line 16
                sram.store(sums[j], X_j)  # line 16
    return dQ, dK, dV


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
            "L.rows(h * N + tops[x], h * N + tops[x] + share.rows(x))",
            "L.rows(tops[x], tops[x] + share.rows(x))",
        ),
        Bug(
            "K, V are loaded for each row block",
            "Q_i, dO_i, dQ_i, L_i, D_i = sram.load(",
            "sram.load(K_y[j]); Q_i, dO_i, dQ_i, L_i, D_i = sram.load(",
        ),
    ),
)

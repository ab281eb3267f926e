"""A mesh of R × C devices, backward: Q and dO go along rows, K and V along columns, and parts of
the gradients come back.

    Require: own rows of Q, K, V, O, dO, L in each device's HBM, positions `where[p]`, on-chip SRAM
             of size M; device r·C + c is at (r, c).
    1  D_i = rowsum(dO_i ∘ O_i) for each head and row block; write D_i.
    2  Post own Q, dO, L, D to the C − 1 others of the row, own K, V to the R − 1 others of the
       column; receive theirs; wait. Initialize the part of dQ of each x of the row to 0 in HBM.
    3  for each KV head, each key block j of each y of the column do
    4    Load K_j, V_j. dK̃_j = 0, dṼ_j = 0 on SRAM.
    5    for each query head that shares them, each live row block i of each x of the row do
    6      Load Q_i, dO_i, dQ_i, L_i, D_i.
    7      S_ij = MASK(τ Q_i K_jᵀ), P_ij = exp(S_ij − L_i).
    8      dṼ_j ← dṼ_j + P_ijᵀ dO_i.
    9      dS_ij = P_ij ∘ (dO_i V_jᵀ − D_i).
    10     dQ_i ← dQ_i + τ dS_ij K_j, write dQ_i.
    11     dK̃_j ← dK̃_j + τ dS_ijᵀ Q_i.
    12   end for
    13   Write dK̃_j, dṼ_j to the part of y.
    14 end for
    15 Post the part of dQ of each x ≠ rank to x, the parts of dK, dV of each y ≠ rank to y;
       receive own parts; wait.
    16 for each head, each own block: dQ_i, dK_j, dV_j are the sums of their parts; write.

Source: as for the forward pass, and Algorithm 4 of "FlashAttention" for the tile. Gradients are
kept, and travel, in the type that the chip computes in.
"""

from flashsim.algorithms.notation import at_most_0, exp, finite, gated, product, rowsum
from flashsim.algorithms.record import Bug
from flashsim.devices.record import DevicesProgram
from flashsim.devices.share import Share
from flashsim.memory.device import Device
from flashsim.memory.hbm import Matrix


def mesh_backward(
    device: Device,
    share: Share,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
    O: Matrix,
    dO: Matrix,
    L: Matrix,
    C: int,
) -> tuple[Matrix, Matrix, Matrix]:
    """Run on own rows; return own rows of dQ, dK, dV, in the chip's type, in HBM."""
    hbm = device.hbm
    sram = device.sram
    on_chip = device.sram.on_chip
    rank = device.rank
    P = device.size
    H_q = share.H_q
    H_kv = share.H_kv
    g = share.group
    n = share.rows(rank)
    tau = share.tau
    B_r = share.B_r
    B_c = share.B_c
    d = K.shape[1]
    d_v = V.shape[1]
    in_row = [rank - rank % C + c for c in range(C)]
    in_column = [*range(rank % C, P, C)]
    D = hbm.empty("D", (H_q * n, 1), sram.dtype)
    for h in sram.loop(H_q):  # line 1
        O_h, dO_h, D_h = (share.head(X, h, n).divide(B_r) for X in (O, dO, D))
        for i in sram.loop(len(D_h)):  # line 1
            O_i, dO_i = sram.load(O_h[i], dO_h[i])  # line 1
            D_i = on_chip(rowsum(dO_i * O_i))  # line 1
            sram.store(D_h[i], D_i)  # line 1
    operands = [(X, in_row, H_q) for X in (Q, dO, L, D)] + [(X, in_column, H_kv) for X in (K, V)]
    of = [
        {
            x: X
            if x == rank
            else hbm.empty(f"{X.name}_{x}", (heads * share.rows(x), X.shape[1]), X.dtype)
            for x in group
        }
        for X, group, heads in operands
    ]
    sends = [(X, x) for X, group, _ in operands for x in group if x != rank]
    device.wait(  # line 2
        device.post(
            sends=sends, receives=[(X, x) for X_of in of for x, X in X_of.items() if x != rank]
        )
    )
    Q_of, dO_of, L_of, D_of, K_of, V_of = of
    dQ_of = {  # line 2
        x: hbm.full(f"dQ_of_{x}", (H_q * share.rows(x), d), 0.0, sram.dtype) for x in in_row
    }
    dK_of, dV_of = (
        {y: hbm.empty(f"{X}_of_{y}", (H_kv * share.rows(y), w), sram.dtype) for y in in_column}
        for X, w in (("dK", d), ("dV", d_v))
    )
    for h_kv in sram.loop(H_kv):  # line 3
        for y in in_column:  # line 3
            K_y, V_y, dK_y, dV_y = (
                share.head(X_of[y], h_kv, share.rows(y)).divide(B_c)
                for X_of in (K_of, V_of, dK_of, dV_of)
            )
            for j in sram.loop(len(K_y)):  # line 3
                K_j, V_j = sram.load(K_y[j], V_y[j])  # line 4
                dK_j = sram.full(K_y[j].shape, 0.0)  # line 4
                dV_j = sram.full(V_y[j].shape, 0.0)  # line 4
                for r in sram.loop(g):  # line 5
                    for x in in_row:  # line 5
                        Q_x, dO_x, dQ_x, L_x, D_x = (
                            share.head(X_of[x], g * h_kv + r, share.rows(x)).divide(B_r)
                            for X_of in (Q_of, dO_of, dQ_of, L_of, D_of)
                        )
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
    parts = [("dQ", dQ_of, H_q, B_r, d), ("dK", dK_of, H_kv, B_c, d), ("dV", dV_of, H_kv, B_c, d_v)]
    received = {
        (X, x): X_of[x] if x == rank else hbm.empty(f"{X}_from_{x}", (heads * n, w), sram.dtype)
        for X, X_of, heads, _, w in parts
        for x in X_of
    }
    sends = [(part, x) for _, X_of, *_ in parts for x, part in X_of.items() if x != rank]
    device.wait(  # line 15
        device.post(
            sends=sends, receives=[(part, x) for (_, x), part in received.items() if x != rank]
        )
    )
    sums = []
    for X, X_of, heads, size, w in parts:  # line 16
        sums.append(hbm.empty(X, (heads * n, w), sram.dtype, "output"))
        for h in sram.loop(heads):  # line 16
            X_h, *its = (
                share.head(each, h, n).divide(size)
                for each in (sums[-1], *(received[X, x] for x in X_of))
            )
            for i in sram.loop(len(X_h)):  # line 16
                X_i = sram.full(X_h[i].shape, 0.0)  # line 16
                for x in sram.loop(len(its), alike=range(len(its))):  # line 16
                    X_i = on_chip(X_i + sram.load(its[x][i]), over=X_i)  # line 16
                sram.store(X_h[i], X_i)  # line 16
    return sums[0], sums[1], sums[2]


PROGRAM = DevicesProgram(
    name="mesh",
    title="Mesh of devices, backward",
    run=mesh_backward,
    layout="striped",
    direction="backward",
    columns=True,
    bugs=(
        Bug("dS lacks D", "dP_ij - D_i", "dP_ij"),
        Bug(
            "τ is left out of dK",
            "dK_j + tau * product(dS_ij.T, Q_i)",
            "dK_j + product(dS_ij.T, Q_i)",
        ),
        Bug(
            "sums are of one part",
            "for x in sram.loop(len(its), alike=range(len(its))):",
            "for x in sram.loop(1):",
        ),
    ),
)

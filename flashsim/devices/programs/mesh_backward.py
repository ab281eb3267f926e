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
        O_h = share.head(O, h, n).divide(B_r)
        dO_h = share.head(dO, h, n).divide(B_r)
        D_h = share.head(D, h, n).divide(B_r)
        for i in sram.loop(len(D_h)):  # line 1
            O_i, dO_i = sram.load(O_h[i], dO_h[i])  # line 1
            D_i = on_chip(rowsum(dO_i * O_i))  # line 1
            sram.store(D_h[i], D_i)  # line 1
    Q_of = {rank: Q}
    dO_of = {rank: dO}
    L_of = {rank: L}
    D_of = {rank: D}
    K_of = {rank: K}
    V_of = {rank: V}
    sends = []
    receives = []
    for X, X_of in ((Q, Q_of), (dO, dO_of), (L, L_of), (D, D_of)):
        for x in in_row:
            if x != rank:
                X_of[x] = _rows_of(device, X, x, H_q * share.rows(x))
                sends.append((X, x))
                receives.append((X_of[x], x))
    for X, X_of in ((K, K_of), (V, V_of)):
        for y in in_column:
            if y != rank:
                X_of[y] = _rows_of(device, X, y, H_kv * share.rows(y))
                sends.append((X, y))
                receives.append((X_of[y], y))
    device.wait(device.post(sends=sends, receives=receives))  # line 2
    dQ_of = {}
    for x in in_row:
        rows = H_q * share.rows(x)
        dQ_of[x] = hbm.full(f"dQ_of_{x}", (rows, d), 0.0, sram.dtype)  # line 2
    dK_of = {}
    dV_of = {}
    for y in in_column:
        rows = H_kv * share.rows(y)
        dK_of[y] = hbm.empty(f"dK_of_{y}", (rows, d), sram.dtype)
        dV_of[y] = hbm.empty(f"dV_of_{y}", (rows, d_v), sram.dtype)
    for h_kv in sram.loop(H_kv):  # line 3
        for y in in_column:  # line 3
            keys = share.rows(y)
            K_y = share.head(K_of[y], h_kv, keys).divide(B_c)
            V_y = share.head(V_of[y], h_kv, keys).divide(B_c)
            dK_y = share.head(dK_of[y], h_kv, keys).divide(B_c)
            dV_y = share.head(dV_of[y], h_kv, keys).divide(B_c)
            for j in sram.loop(len(K_y)):  # line 3
                K_j, V_j = sram.load(K_y[j], V_y[j])  # line 4
                dK_j = sram.full(K_y[j].shape, 0.0)  # line 4
                dV_j = sram.full(V_y[j].shape, 0.0)  # line 4
                for r in sram.loop(g):  # line 5
                    h = g * h_kv + r
                    for x in in_row:  # line 5
                        rows = share.rows(x)
                        Q_x = share.head(Q_of[x], h, rows).divide(B_r)
                        dO_x = share.head(dO_of[x], h, rows).divide(B_r)
                        dQ_x = share.head(dQ_of[x], h, rows).divide(B_r)
                        L_x = share.head(L_of[x], h, rows).divide(B_r)
                        D_x = share.head(D_of[x], h, rows).divide(B_r)
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
    dQ_from = {rank: dQ_of[rank]}
    dK_from = {rank: dK_of[rank]}
    dV_from = {rank: dV_of[rank]}
    sends = []
    receives = []
    for x in in_row:
        if x != rank:
            dQ_from[x] = hbm.empty(f"dQ_from_{x}", (H_q * n, d), sram.dtype)
            sends.append((dQ_of[x], x))
            receives.append((dQ_from[x], x))
    for y in in_column:
        if y != rank:
            dK_from[y] = hbm.empty(f"dK_from_{y}", (H_kv * n, d), sram.dtype)
            dV_from[y] = hbm.empty(f"dV_from_{y}", (H_kv * n, d_v), sram.dtype)
            sends += [(dK_of[y], y), (dV_of[y], y)]
            receives += [(dK_from[y], y), (dV_from[y], y)]
    device.wait(device.post(sends=sends, receives=receives))  # line 15
    dQ = hbm.empty("dQ", (H_q * n, d), sram.dtype, "output")
    dK = hbm.empty("dK", (H_kv * n, d), sram.dtype, "output")
    dV = hbm.empty("dV", (H_kv * n, d_v), sram.dtype, "output")
    sums = (
        (dQ, [dQ_from[x] for x in in_row], H_q, B_r),
        (dK, [dK_from[y] for y in in_column], H_kv, B_c),
        (dV, [dV_from[y] for y in in_column], H_kv, B_c),
    )
    for whole, X_from, heads, size in sums:  # line 16
        for h in sram.loop(heads):  # line 16
            X_h = share.head(whole, h, n).divide(size)
            parts = [share.head(X, h, n).divide(size) for X in X_from]
            for i in sram.loop(len(X_h)):  # line 16
                X_i = sram.full(X_h[i].shape, 0.0)  # line 16
                for s in sram.loop(len(parts), alike=range(len(parts))):  # line 16
                    X_i = on_chip(X_i + sram.load(parts[s][i]), over=X_i)  # line 16
                sram.store(X_h[i], X_i)  # line 16
    return dQ, dK, dV


def _rows_of(device: Device, X: Matrix, x: int, rows: int) -> Matrix:
    """Return room for rows of device x's X."""
    return device.hbm.empty(f"{X.name}_{x}", (rows, X.shape[1]), X.dtype)


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
            "for s in sram.loop(len(parts), alike=range(len(parts))):",
            "for s in sram.loop(1):",
        ),
    ),
)

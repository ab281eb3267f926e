"""A mesh of R × C devices: queries go along rows, keys and values along columns, and parts of O
come back.

    Require: own rows of Q, K, V in each device's HBM, positions `where[p]`, on-chip SRAM of size M;
             device r·C + c is at (r, c).
    1  Post own Q to the C − 1 others of the row, own K, V to the R − 1 others of the column;
       receive theirs; wait.
    2  for each x of the row, each query head, each row block i of x do
    3    Load Q_i. O_i = 0, ℓ_i = 0, m_i = −∞ on SRAM.
    4    for each y of the column, each live tile j of y do
    5      Load K_j, V_j.
    6      S_ij = MASK(τ Q_i K_jᵀ), by positions.
    7      m_i^new = max(m_i, rowmax(S_ij)), P̃_ij = exp(S_ij − m_i^new).
    8      ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ij), O_i ← e^{m_i − m_i^new} O_i + P̃_ij V_j,
           m_i ← m_i^new.
    9    end for
    10   Write O_i, ℓ_i, m_i to the part of x.
    11 end for
    12 Post the part of each x ≠ rank to x; receive the others' parts of own rows; wait.
    13 for each query head, each row block i do
    14   O_i = 0, ℓ_i = 0, m_i = −∞ on SRAM. For each part: load (O, ℓ, m)_i, and merge it into O_i,
         ℓ_i, m_i.
    15   O_i ← O_i / ℓ_i, L_i = m_i + log ℓ_i, write O_i, L_i.
    16 end for

Sources: "Attention2D" (Elango), "Mesh-Attention" (Chen et al.). Parts travel in the type that the
chip computes in.
"""

from flashsim.algorithms.notation import exp, finite, log, maximum, nonzero, product, rowmax, rowsum
from flashsim.algorithms.record import Bug
from flashsim.devices.record import DevicesProgram
from flashsim.devices.share import Share
from flashsim.memory.device import Device
from flashsim.memory.hbm import Matrix


def mesh(
    device: Device, share: Share, Q: Matrix, K: Matrix, V: Matrix, C: int
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
    tau = share.tau
    B_r = share.B_r
    B_c = share.B_c
    d_v = V.shape[1]
    in_row = [rank - rank % C + c for c in range(C)]
    in_column = [*range(rank % C, P, C)]
    Q_of = {rank: Q}
    K_of = {rank: K}
    V_of = {rank: V}
    sends: list[tuple[Matrix, int]] = []
    receives: list[tuple[Matrix, int]] = []
    for x in in_row:
        if x != rank:
            rows = H_q * share.rows(x)
            Q_of[x] = hbm.empty(f"Q_{x}", (rows, Q.shape[1]), Q.dtype)
            sends.append((Q, x))
            receives.append((Q_of[x], x))
    for y in in_column:
        if y != rank:
            rows = H_kv * share.rows(y)
            K_of[y] = hbm.empty(f"K_{y}", (rows, K.shape[1]), K.dtype)
            V_of[y] = hbm.empty(f"V_{y}", (rows, d_v), V.dtype)
            sends += [(K, y), (V, y)]
            receives += [(K_of[y], y), (V_of[y], y)]
    device.wait(device.post(sends=sends, receives=receives))  # line 1
    sent = {x: _part(device, share, x, f"of_{x}", d_v) for x in in_row}
    received = {}
    for x in in_row:
        if x == rank:
            received[x] = sent[x]
        else:
            received[x] = _part(device, share, rank, f"from_{x}", d_v)
    for x in in_row:  # line 2
        for h in sram.loop(H_q):  # line 2
            rows = share.rows(x)
            Q_x = share.head(Q_of[x], h, rows).divide(B_r)
            O_x, l_x, m_x = (share.head(X, h, rows).divide(B_r) for X in sent[x])
            for i in sram.loop(len(Q_x)):  # line 2
                Q_i = sram.load(Q_x[i])  # line 3
                O_i = sram.full(O_x[i].shape, 0.0)  # line 3
                l_i = sram.full(l_x[i].shape, 0.0)  # line 3
                m_i = sram.full(m_x[i].shape, float("-inf"))  # line 3
                for y in in_column:  # line 4
                    h_kv = h // share.group
                    K_y = share.head(K_of[y], h_kv, share.rows(y)).divide(B_c)
                    V_y = share.head(V_of[y], h_kv, share.rows(y)).divide(B_c)
                    live = share.row(x, y, i)  # line 4
                    for j in sram.loop(len(K_y), where=live):  # line 4
                        K_j, V_j = sram.load(K_y[j], V_y[j])  # line 5
                        S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 6
                        S_ij = on_chip(share.mask(S_ij, x, i, y, j), over=S_ij)  # line 6
                        m_i_new = on_chip(maximum(m_i, rowmax(S_ij)))  # line 7
                        P_tilde_ij = on_chip(exp(S_ij - finite(m_i_new)), over=S_ij)  # line 7
                        l_i = on_chip(  # line 8
                            exp(m_i - finite(m_i_new)) * l_i + rowsum(P_tilde_ij), over=l_i
                        )
                        O_i = on_chip(  # line 8
                            exp(m_i - finite(m_i_new)) * O_i + product(P_tilde_ij, V_j), over=O_i
                        )
                        m_i = on_chip(m_i_new, over=m_i)  # line 8
                # line 9: end for
                sram.store(O_x[i], O_i)  # line 10
                sram.store(l_x[i], l_i)  # line 10
                sram.store(m_x[i], m_i)  # line 10
    # line 11: end for
    sends = []
    receives = []
    for x in in_row:
        if x != rank:
            sends += [(X, x) for X in sent[x]]
            receives += [(X, x) for X in received[x]]
    device.wait(device.post(sends=sends, receives=receives))  # line 12
    O = hbm.empty("O", (H_q * n, d_v), V.dtype, "output")
    L = hbm.empty("L", (H_q * n, 1), sram.dtype)
    for h in sram.loop(H_q):  # line 13
        O_h = share.head(O, h, n).divide(B_r)
        L_h = share.head(L, h, n).divide(B_r)
        parts = []
        for x in in_row:
            parts.append([share.head(X, h, n).divide(B_r) for X in received[x]])
        for i in sram.loop(len(O_h)):  # line 13
            O_i = sram.full(O_h[i].shape, 0.0)  # line 14
            l_i = sram.full(L_h[i].shape, 0.0)  # line 14
            m_i = sram.full(L_h[i].shape, float("-inf"))  # line 14
            for s in sram.loop(C, alike=range(C)):  # line 14
                O_s, l_s, m_s = sram.load(*(X[i] for X in parts[s]))  # line 14
                m_i_new = on_chip(maximum(m_i, m_s))  # line 14
                O_i = on_chip(  # line 14
                    exp(m_i - finite(m_i_new)) * O_i + exp(m_s - finite(m_i_new)) * O_s, over=O_i
                )
                l_i = on_chip(  # line 14
                    exp(m_i - finite(m_i_new)) * l_i + exp(m_s - finite(m_i_new)) * l_s, over=l_i
                )
                m_i = on_chip(m_i_new, over=m_i)  # line 14
            O_i = on_chip(O_i / nonzero(l_i), over=O_i)  # line 15
            L_i = on_chip(m_i + log(l_i), over=l_i)  # line 15
            sram.store(O_h[i], O_i)  # line 15
            sram.store(L_h[i], L_i)  # line 15
    # line 16: end for
    return O, L


def _part(
    device: Device, share: Share, x: int, name: str, d_v: int
) -> tuple[Matrix, Matrix, Matrix]:
    """Return room for O, ℓ, m of device x's rows."""
    rows = share.H_q * share.rows(x)
    dtype = device.sram.dtype
    O = device.hbm.empty(f"O_{name}", (rows, d_v), dtype)
    l = device.hbm.empty(f"l_{name}", (rows, 1), dtype)
    m = device.hbm.empty(f"m_{name}", (rows, 1), dtype)
    return O, l, m


PROGRAM = DevicesProgram(
    name="mesh",
    title="Mesh of devices",
    run=mesh,
    columns=True,
    layout="striped",
    bugs=(
        Bug("parts are added without their maxima", "exp(m_s - finite(m_i_new)) * O_s", "O_s"),
        Bug(
            "own rows' part alone is merged",
            "for s in sram.loop(C, alike=range(C)):",
            "for s in sram.loop(1):",
        ),
        Bug(
            "K, V of one device of the column",
            "for y in in_column:  # line 4",
            "for y in in_column[:1]:  # line 4",
        ),
    ),
)

"""Ulysses: devices exchange rows for heads, and each computes whole heads.

    Require: own rows of Q, K, V in each device's HBM, positions `where[p]`, on-chip SRAM of size M;
             device x has query heads h_x.
    1  Post, for each x ≠ rank, own rows of Q of heads h_x, and of K, V of the KV heads that h_x
       share; receive own heads' rows of each x; wait.
    2  for each own query head, each row block i of each x do
    3    Load Q_i. O_i = 0, ℓ_i = 0, m_i = −∞ on SRAM.
    4    for each y, each live tile j of y do
    5      Load K_j, V_j.
    6      S_ij = MASK(τ Q_i K_jᵀ), by positions.
    7      m_i^new = max(m_i, rowmax(S_ij)), P̃_ij = exp(S_ij − m_i^new).
    8      ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ij), O_i ← e^{m_i − m_i^new} O_i + P̃_ij V_j,
           m_i ← m_i^new.
    9    end for
    10   O_i ← O_i / ℓ_i, L_i = m_i + log ℓ_i, write O_i, L_i.
    11 end for
    12 Post O's rows of each x ≠ rank for each own head; receive own rows of x's heads; wait.

Source: "DeepSpeed Ulysses" (Jacobs et al.). Devices may have unequally many heads, and a KV head
goes to every device whose query heads share it. Heads lie one below the other, so that what goes to
a device is one message an array. L stays where it is made.
"""

from flashsim.algorithms.notation import exp, finite, log, maximum, nonzero, product, rowmax, rowsum
from flashsim.algorithms.record import Bug
from flashsim.devices.heads import heads_of, kv_heads_of
from flashsim.devices.record import DevicesProgram
from flashsim.devices.share import Share
from flashsim.memory.device import Device
from flashsim.memory.hbm import Matrix


def ulysses(
    device: Device,
    share: Share,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
) -> tuple[Matrix, Matrix]:
    """Run on own Q (H_q·n, d), K (H_kv·n, d), V (H_kv·n, d_v); return O (H_q·n, d_v), and own
    heads' L (heads·N, 1), in HBM.
    """
    hbm = device.hbm
    sram = device.sram
    on_chip = device.sram.on_chip
    rank = device.rank
    P = device.size
    N = len(share)
    n = share.rows(rank)
    tau = share.tau
    d_v = V.shape[1]
    B_r = share.B_r
    B_c = share.B_c
    mine = heads_of(share, rank)
    kv = kv_heads_of(share, rank)
    others = [x for x in range(P) if x != rank]
    Q_of = {rank: share.of_heads(Q, mine, n)}
    K_of = {rank: share.of_heads(K, kv, n)}
    V_of = {rank: share.of_heads(V, kv, n)}
    sends = []
    receives = []
    for x in others:
        queries = len(mine) * share.rows(x)
        keys = len(kv) * share.rows(x)
        Q_of[x] = hbm.empty(f"Q_{x}", (queries, Q.shape[1]), Q.dtype)
        K_of[x] = hbm.empty(f"K_{x}", (keys, K.shape[1]), K.dtype)
        V_of[x] = hbm.empty(f"V_{x}", (keys, d_v), V.dtype)
        sends.append((share.of_heads(Q, heads_of(share, x), n), x))
        sends.append((share.of_heads(K, kv_heads_of(share, x), n), x))
        sends.append((share.of_heads(V, kv_heads_of(share, x), n), x))
        receives += [(Q_of[x], x), (K_of[x], x), (V_of[x], x)]
    device.wait(device.post(sends=sends, receives=receives))  # line 1
    O = hbm.empty("O", (share.H_q * n, d_v), V.dtype, "output")
    L = hbm.empty("L", (len(mine) * N, 1), sram.dtype)
    O_of = {rank: share.of_heads(O, mine, n)}
    for x in others:
        rows = len(mine) * share.rows(x)
        O_of[x] = hbm.empty(f"O_{x}", (rows, d_v), V.dtype)
    for h in sram.loop(len(mine)):  # line 2
        top = h * N
        for x in range(P):  # line 2
            rows = share.rows(x)
            Q_x = share.head(Q_of[x], h, rows).divide(B_r)
            O_x = share.head(O_of[x], h, rows).divide(B_r)
            L_x = L.rows(top, top + rows).divide(B_r)
            top = top + rows
            for i in sram.loop(len(Q_x)):  # line 2
                Q_i = sram.load(Q_x[i])  # line 3
                O_i = sram.full(O_x[i].shape, 0.0)  # line 3
                l_i = sram.full(L_x[i].shape, 0.0)  # line 3
                m_i = sram.full(L_x[i].shape, float("-inf"))  # line 3
                for y in range(P):  # line 4
                    h_kv = (mine.start + h) // share.group - kv.start
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
                O_i = on_chip(O_i / nonzero(l_i), over=O_i)  # line 10
                L_i = on_chip(m_i + log(l_i), over=l_i)  # line 10
                sram.store(O_x[i], O_i)  # line 10
                sram.store(L_x[i], L_i)  # line 10
    # line 11: end for
    home = [(share.of_heads(O, heads_of(share, x), n), x) for x in others]
    device.wait(  # line 12
        device.post(sends=[(O_of[x], x) for x in others], receives=home)
    )
    return O, L


PROGRAM = DevicesProgram(
    name="ulysses",
    title="Ulysses",
    run=ulysses,
    whole_heads=True,
    bugs=(
        Bug(
            "a head's K, V are the first KV head's",
            "h_kv = (mine.start + h) // share.group - kv.start",
            "h_kv = 0",
        ),
        Bug(
            "every tile is masked as own rows'",
            "share.mask(S_ij, x, i, y, j)",
            "share.mask(S_ij, rank, i, y, j)",
        ),
        Bug(
            "own rows alone are attended to",
            "for y in range(P):  # line 4",
            "for y in [x]:  # line 4",
        ),
    ),
)

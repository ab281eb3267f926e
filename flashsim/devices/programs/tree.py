"""Decoding with keys over devices: the queries go down a tree of devices, and parts of O come up
and are merged.

    Require: own rows of K, V in each device's HBM, all of Q in device 0's, positions `where[p]`,
             on-chip SRAM of size M. Device p's parent is p − b, with b the lowest power of two in
             p; its children are p + 1, p + 2, p + 4, … below p + b.
    1  Receive Q from the parent, if there is one; wait. Post Q to the children; wait.
    2  for each query head, each row block i do
    3    Load Q_i. O_i = 0, ℓ_i = 0, m_i = −∞ on SRAM.
    4    for each live tile j of own keys do
    5      Load K_j, V_j.
    6      S_ij = MASK(τ Q_i K_jᵀ), by positions.
    7      m_i^new = max(m_i, rowmax(S_ij)), P̃_ij = exp(S_ij − m_i^new).
    8      ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ij), O_i ← e^{m_i − m_i^new} O_i + P̃_ij V_j,
           m_i ← m_i^new.
    9    end for
    10   Write O_i, ℓ_i, m_i to own part.
    11 end for
    12 for each child, the nearest first do
    13   Receive its part; wait.
    14   for each query head, each row block i: load (O, ℓ, m)_i of both parts, merge them,
         write O_i, ℓ_i, m_i to own part.
    15 end for
    16 Post own part to the parent, if there is one; wait. On device 0, for each query head, each
       row block i, load O_i, ℓ_i, m_i of its part, O_i ← O_i / ℓ_i, L_i = m_i + log ℓ_i, write O_i,
       L_i.

Source: "Tree Attention: Topology-aware Decoding for Long-Context Attention on GPU clusters" (Shyam
et al.). A part is (O, ℓ, m), in the type that the chip computes in, whatever the number of keys: so
words sent do not grow with N.
"""

from flashsim.algorithms.notation import exp, finite, log, maximum, nonzero, product, rowmax, rowsum
from flashsim.algorithms.record import Bug
from flashsim.devices.record import DevicesProgram
from flashsim.devices.share import Share
from flashsim.memory.device import Device
from flashsim.memory.hbm import Matrix


def tree(
    device: Device,
    share: Share,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
) -> tuple[Matrix, Matrix]:
    """Run on own K (H_kv·n, d), V (H_kv·n, d_v), device 0 on Q (H_q·N_q, d), too; return O, L
    there, and empty ones elsewhere.
    """
    hbm = device.hbm
    sram = device.sram
    on_chip = device.sram.on_chip
    rank = device.rank
    H_q = share.H_q
    N_q = len(share)
    n = share.rows(rank)
    tau = share.tau
    d_v = V.shape[1]
    B_r = share.B_r
    parent = _parent(rank)
    children = _children(rank, device.size)
    O = hbm.empty("O", (Q.shape[0], d_v), V.dtype, "output")
    L = hbm.empty("L", (Q.shape[0], 1), sram.dtype)
    if parent is not None:
        Q = hbm.empty("Q_here", (H_q * N_q, Q.shape[1]), Q.dtype)
        device.wait(device.post(receives=[(Q, parent)]))  # line 1
    device.wait(device.post(sends=[(Q, child) for child in children]))  # line 1
    part = _part(device, "part", H_q * N_q, d_v)
    for h in sram.loop(H_q):  # line 2
        h_kv = h // share.group
        Q_h = share.head(Q, h, N_q).divide(B_r)
        O_h, l_h, m_h = (share.head(X, h, N_q).divide(B_r) for X in part)
        K_h = share.head(K, h_kv, n).divide(share.B_c)
        V_h = share.head(V, h_kv, n).divide(share.B_c)
        for i in sram.loop(len(Q_h)):  # line 2
            Q_i = sram.load(Q_h[i])  # line 3
            O_i = sram.full(O_h[i].shape, 0.0)  # line 3
            l_i = sram.full(l_h[i].shape, 0.0)  # line 3
            m_i = sram.full(m_h[i].shape, float("-inf"))  # line 3
            live = share.row(0, rank, i)  # line 4
            for j in sram.loop(len(K_h), where=live):  # line 4
                K_j, V_j = sram.load(K_h[j], V_h[j])  # line 5
                S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 6
                S_ij = on_chip(share.mask(S_ij, 0, i, rank, j), over=S_ij)  # line 6
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
            sram.store(O_h[i], O_i)  # line 10
            sram.store(l_h[i], l_i)  # line 10
            sram.store(m_h[i], m_i)  # line 10
    # line 11: end for
    for child in children:  # line 12
        its = _part(device, f"of_{child}", H_q * N_q, d_v)
        device.wait(device.post(receives=[(X, child) for X in its]))  # line 13
        for h in sram.loop(H_q):  # line 14
            O_h, l_h, m_h = (share.head(X, h, N_q).divide(B_r) for X in part)
            O_c, l_c, m_c = (share.head(X, h, N_q).divide(B_r) for X in its)
            for i in sram.loop(len(O_h)):  # line 14
                O_i, l_i, m_i = sram.load(O_h[i], l_h[i], m_h[i])  # line 14
                O_s, l_s, m_s = sram.load(O_c[i], l_c[i], m_c[i])  # line 14
                m_i_new = on_chip(maximum(m_i, m_s))  # line 14
                O_i = on_chip(  # line 14
                    exp(m_i - finite(m_i_new)) * O_i + exp(m_s - finite(m_i_new)) * O_s, over=O_i
                )
                l_i = on_chip(  # line 14
                    exp(m_i - finite(m_i_new)) * l_i + exp(m_s - finite(m_i_new)) * l_s, over=l_i
                )
                sram.store(O_h[i], O_i)  # line 14
                sram.store(l_h[i], l_i)  # line 14
                sram.store(m_h[i], m_i_new)  # line 14
    # line 15: end for
    if parent is not None:
        device.wait(device.post(sends=[(X, parent) for X in part]))  # line 16
        return O, L
    for h in sram.loop(H_q):  # line 16
        parts = [share.head(X, h, N_q).divide(B_r) for X in part]
        O_h = share.head(O, h, N_q).divide(B_r)
        L_h = share.head(L, h, N_q).divide(B_r)
        for i in sram.loop(len(O_h)):  # line 16
            O_i, l_i, m_i = sram.load(*(X[i] for X in parts))  # line 16
            O_i = on_chip(O_i / nonzero(l_i), over=O_i)  # line 16
            L_i = on_chip(m_i + log(l_i), over=l_i)  # line 16
            sram.store(O_h[i], O_i)  # line 16
            sram.store(L_h[i], L_i)  # line 16
    return O, L


def _parent(rank: int) -> int | None:
    """Return a device's parent in the tree; None: it is the root."""
    lowest = rank & -rank
    return rank - lowest if rank else None


def _children(rank: int, P: int) -> list[int]:
    """Return a device's children, the nearest first."""
    lowest = rank & -rank or P
    children = []
    step = 1
    while step < lowest and rank + step < P:
        children.append(rank + step)
        step *= 2
    return children


def _part(device: Device, name: str, rows: int, d_v: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return room for O, ℓ, m of all queries."""
    dtype = device.sram.dtype
    O = device.hbm.empty(f"O_{name}", (rows, d_v), dtype)
    l = device.hbm.empty(f"l_{name}", (rows, 1), dtype)
    m = device.hbm.empty(f"m_{name}", (rows, 1), dtype)
    return O, l, m


PROGRAM = DevicesProgram(
    name="tree",
    title="Tree decoding",
    run=tree,
    at_root=True,
    bugs=(
        Bug(
            "a child's part is added without its maximum", "exp(m_s - finite(m_i_new)) * O_s", "O_s"
        ),
        Bug(
            "the merged maximum is not kept",
            "sram.store(m_h[i], m_i_new)",
            "sram.store(m_h[i], m_i)",
        ),
        Bug(
            "the last child is left out",
            "for child in children:  # line 12",
            "for child in children[:-1]:  # line 12",
        ),
    ),
)

"""The backward pass of packed batches: two passes over each sequence's tiles, as
`q_outer_two_pass`, with the words read anew.

    Require: Q, K, V, O, dO, L of all sequences end to end, words cu_q, cu_k in HBM, on-chip SRAM of
             size M.
    1  for each sequence s, 1 ≤ i ≤ ⌈max N/B_r⌉, all at once, do
    2    a, a' ← word(cu_q[s]), word(cu_q[s + 1]). If block i lies beyond a' − a: next.
    3    Load O_i, dO_i; write D_i = rowsum(dO_i ∘ O_i) to HBM.
    4  end for
    5  for each sequence s, 1 ≤ j ≤ ⌈max n/B_c⌉, all at once, do
    6    c, c' ← word(cu_k[s]), word(cu_k[s + 1]). If block j lies beyond c' − c: next.
    7    a, a' ← word(cu_q[s]), word(cu_q[s + 1]).
    8    Load K_j, V_j. Initialize dK̃_j = (0)_{B_c×d}, dṼ_j = (0)_{B_c×d} on SRAM.
    9    for each i of a' − a with a row that sees block j do
    10     Load Q_i, dO_i, L_i, D_i from HBM to on-chip SRAM.
    11     P_ij = exp(MASK(τ Q_i K_jᵀ) − L_i).
    12     dṼ_j ← dṼ_j + P_ijᵀ dO_i.
    13     dS_ij = P_ij ∘ (dO_i V_jᵀ − D_i).
    14     dK̃_j ← dK̃_j + τ dS_ijᵀ Q_i.
    15   end for
    16   Write dK_j ← dK̃_j, dV_j ← dṼ_j to HBM.
    17 end for
    18 for each sequence s, 1 ≤ i ≤ ⌈max N/B_r⌉, all at once, do
    19   a, a' ← word(cu_q[s]), word(cu_q[s + 1]). If block i lies beyond a' − a: next.
    20   c, c' ← word(cu_k[s]), word(cu_k[s + 1]).
    21   Load Q_i, dO_i, L_i, D_i. Initialize dQ̃_i = (0)_{B_r×d} on SRAM.
    22   for 1 ≤ j ≤ ⌈e_i/B_c⌉ do
    23     Load K_j, V_j from HBM to on-chip SRAM.
    24     P_ij = exp(MASK(τ Q_i K_jᵀ) − L_i), dS_ij = P_ij ∘ (dO_i V_jᵀ − D_i).
    25     dQ̃_i ← dQ̃_i + τ dS_ij K_j.
    26   end for
    27   Write dQ_i ← dQ̃_i to HBM.
    28 end for
    29 Return dQ, dK, dV.

The listing is ours. Keys that no query sees, and those of a sequence without queries, have
gradients 0, which are written.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from flashsim.algorithms.notation import at_most_0, exp, finite, gated, product, rowsum
from flashsim.algorithms.record import Bug
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM
from flashsim.serving.batch import Batch, Operands
from flashsim.serving.programs import varlen
from flashsim.serving.record import BatchProgram
from flashsim.support.sizes import ceil_div


def varlen_backward(
    hbm: HBM,
    sram: SRAM,
    batch: Batch,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
    cu_q: Matrix,
    cu_k: Matrix,
    O: Matrix,
    dO: Matrix,
    L: Matrix,
) -> tuple[Matrix, Matrix, Matrix]:
    """Run on the forward pass's operands, O, dO (R, d_v) and L (R, 1); return dQ, dK, dV of the
    shapes of Q, K, V.
    """
    on_chip = sram.on_chip
    B_r = batch.B_r
    B_c = batch.B_c
    tau = batch.tau
    g = batch.group
    word = sram.word
    D = hbm.empty("D", L.shape, sram.dtype)
    most = ceil_div(batch.longest, B_r)
    dQ, dK, dV = (hbm.empty(f"d{X.name}", X.shape, X.dtype, "output") for X in (Q, K, V))
    cu_q = cu_q.divide(1, 1)
    cu_k = cu_k.divide(1, 1)
    for s in sram.loop(len(batch), alike=batch.alike):  # line 1
        for i in sram.loop(most, alike=batch.launched(s)):  # line 1
            a = word(cu_q[s, 0])  # line 2
            a_next = word(cu_q[s + 1, 0])  # line 2
            if i * B_r >= g * (a_next - a):  # line 2
                continue  # line 2
            O_s, dO_s, D_s = (X.rows(g * a, g * a_next).divide(B_r) for X in (O, dO, D))
            O_i, dO_i = sram.load(O_s[i], dO_s[i])  # line 3
            D_i = on_chip(rowsum(dO_i * O_i))  # line 3
            sram.store(D_s[i], D_i)  # line 3
    # line 4: end for
    for s in sram.loop(len(batch), alike=batch.alike):  # line 5
        e = np.array(batch.rows_alike(s), np.int64)
        live = [e > j * B_c for j in range(ceil_div(batch.keys[s], B_c))]
        alike = [(j + 1 == len(live), int(rows.sum())) for j, rows in enumerate(live)]
        T_c = ceil_div(max(batch.keys), B_c)
        for j in sram.loop(T_c, alike=[*alike, *[None] * (T_c - len(alike))]):  # line 5
            c = word(cu_k[s, 0])  # line 6
            c_next = word(cu_k[s + 1, 0])  # line 6
            if j * B_c >= c_next - c:  # line 6
                continue  # line 6
            a = word(cu_q[s, 0])  # line 7
            a_next = word(cu_q[s + 1, 0])  # line 7
            Q_s, dO_s, L_s, D_s = (X.rows(g * a, g * a_next).divide(B_r) for X in (Q, dO, L, D))
            K_s, V_s, dK_s, dV_s = (X.rows(c, c_next).divide(B_c) for X in (K, V, dK, dV))
            K_j, V_j = sram.load(K_s[j], V_s[j])  # line 8
            dK_tilde_j = sram.full(K_s[j].shape, 0.0)  # line 8
            dV_tilde_j = sram.full(V_s[j].shape, 0.0)  # line 8
            for i in sram.loop(len(Q_s), where=live[j]):  # line 9
                Q_i, dO_i, L_i, D_i = sram.load(Q_s[i], dO_s[i], L_s[i], D_s[i])  # line 10
                S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 11
                S_masked_ij = on_chip(  # line 11
                    batch.mask(S_ij, s, i, j * B_c, c_next - c), over=S_ij
                )
                P_ij = on_chip(  # line 11
                    exp(at_most_0(S_masked_ij - finite(L_i))), over=S_masked_ij
                )
                dV_tilde_j = on_chip(dV_tilde_j + product(P_ij.T, dO_i), over=dV_tilde_j)  # line 12
                dP_ij = on_chip(dO_i @ V_j.T)  # line 13
                dS_ij = on_chip(gated(P_ij, dP_ij - D_i), over=dP_ij)  # line 13
                dK_tilde_j = on_chip(  # line 14
                    dK_tilde_j + tau * product(dS_ij.T, Q_i), over=dK_tilde_j
                )
            # line 15: end for
            sram.store(dK_s[j], dK_tilde_j)  # line 16
            sram.store(dV_s[j], dV_tilde_j)  # line 16
    # line 17: end for
    for s in sram.loop(len(batch), alike=batch.alike):  # line 18
        for i in sram.loop(most, alike=batch.launched(s)):  # line 18
            a = word(cu_q[s, 0])  # line 19
            a_next = word(cu_q[s + 1, 0])  # line 19
            if i * B_r >= g * (a_next - a):  # line 19
                continue  # line 19
            c = word(cu_k[s, 0])  # line 20
            c_next = word(cu_k[s + 1, 0])  # line 20
            Q_s, dQ_s, dO_s, L_s, D_s = (
                X.rows(g * a, g * a_next).divide(B_r) for X in (Q, dQ, dO, L, D)
            )
            K_s, V_s = (X.rows(c, c_next).divide(B_c) for X in (K, V))
            Q_i, dO_i, L_i, D_i = sram.load(Q_s[i], dO_s[i], L_s[i], D_s[i])  # line 21
            dQ_tilde_i = sram.full(Q_s[i].shape, 0.0)  # line 21
            for j in sram.loop(ceil_div(batch.seen(s, i, c_next - c), B_c)):  # line 22
                K_j, V_j = sram.load(K_s[j], V_s[j])  # line 23
                S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 24
                S_masked_ij = on_chip(  # line 24
                    batch.mask(S_ij, s, i, j * B_c, c_next - c), over=S_ij
                )
                P_ij = on_chip(  # line 24
                    exp(at_most_0(S_masked_ij - finite(L_i))), over=S_masked_ij
                )
                dP_ij = on_chip(dO_i @ V_j.T)  # line 24
                dS_ij = on_chip(gated(P_ij, dP_ij - D_i), over=dP_ij)  # line 24
                dQ_tilde_i = on_chip(  # line 25
                    dQ_tilde_i + tau * product(dS_ij, K_j), over=dQ_tilde_i
                )
            # line 26: end for
            sram.store(dQ_s[i], dQ_tilde_i)  # line 27
    # line 28: end for
    return dQ, dK, dV  # line 29


def operands(batch: Batch, options: Mapping[str, Any]) -> Operands:
    forward = varlen.operands(batch, options)
    R = batch.group * sum(batch.queries)
    return {**forward, "O": (R, batch.d_v), "dO": (R, batch.d_v), "L": (R, 1)}


PROGRAM = BatchProgram(
    name="varlen",
    direction="backward",
    title="Packed batches, backward",
    run=varlen_backward,
    operands=operands,
    line_1=lambda rows, batch: (rows, rows),
    returns=("dQ", "dK", "dV"),
    bugs=(
        Bug("τ twice in dK", "tau * product(dS_ij.T, Q_i)", "tau * tau * product(dS_ij.T, Q_i)"),
        Bug(
            "D of another sequence",
            "D_i = on_chip(rowsum(dO_i * O_i))",
            "D_i = on_chip(rowsum(dO_i * O_i) * (s == 0))",
        ),
        Bug(
            "no gradients where there are no queries",
            "K_j, V_j = sram.load(K_s[j], V_s[j])  # line 8",
            "K_j, V_j = sram.load(K_s[j], V_s[j])  # line 8\n            if a == a_next: continue",
        ),
        Bug(
            "every tile masked as the first",
            "on_chip(  # line 11\n batch.mask(S_ij, s, i, j * B_c",
            "on_chip(  # line 11\n batch.mask(S_ij, s, i, 0",
        ),
        Bug("every row block for every key block", "[e > j * B_c for j in", "[e >= 0 * j for j in"),
    ),
)

"""Shared prefixes: attention to what sequences have in common once for all their rows, to each
suffix alone, and merged.

    Require: Q of all sequences, K_p, V_p of the prefixes, K, V of the suffixes, in HBM, on-chip
             SRAM of size M. A level is a list of nodes, each some sequences in a row and the keys
             that they share; suffixes are the last level.
    1  for each level, the shortest way from the root first, do
    2    for each of its nodes, all at once, 1 ≤ i ≤ T_r of the rows of its sequences do
    3      Load Q_i from HBM to on-chip SRAM.
    4      Initialize O_i = (0)_{B_r×d}, ℓ_i = (0)_{B_r}, m_i = (−∞)_{B_r} on SRAM.
    5      for each tile j of the node's keys that a row sees: all of a prefix,
           of a suffix those up to its position, do
    6        Load K_j, V_j from HBM to on-chip SRAM.
    7        S_ij^masked = MASK(τ Q_i K_jᵀ): a prefix lies before every query.
    8        m_i^new = max(m_i, rowmax(S_ij^masked)), P̃_ij = exp(S_ij^masked − m_i^new).
    9        ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ij).
    10       O_i ← diag(e^{m_i − m_i^new}) O_i + P̃_ij V_j, m_i ← m_i^new.
    11     end for
    12     O_i ← diag(ℓ_i)⁻¹ O_i, L_i = m_i + log ℓ_i.
    13     Write O_i, L_i to HBM: on the first level as O and L, below it as O^new and L^new.
    14   end for
    15   for 1 ≤ i ≤ T_r of all rows, below the first level, do
    16     Load O_i, L_i, O_i^new, L_i^new from HBM to on-chip SRAM.
    17     m_i = max(L_i, L_i^new), z_i = e^{L_i − m_i} + e^{L_i^new − m_i}.
    18     O_i ← diag(z_i)⁻¹ (e^{L_i − m_i} O_i + e^{L_i^new − m_i} O_i^new), L_i ← m_i + log z_i.
    19     Write O_i, L_i to HBM.
    20   end for
    21 end for
    22 Return O, L.

Sources: "Cascade Inference" of FlashInfer's authors (Ye et al.), "Hydragen: High-Throughput LLM
Inference with Shared Prefixes" (Juravsky et al.); the listing is ours. Where both states are empty,
L_i = L_i^new = −∞, z is 0: O = 0, L = −∞.
"""

from collections.abc import Mapping
from typing import Any

from flashsim.algorithms.notation import exp, finite, log, maximum, nonzero, product, rowmax, rowsum
from flashsim.algorithms.record import Bug
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM
from flashsim.serving.batch import Batch, Operands
from flashsim.serving.checks import Levels, check_levels
from flashsim.serving.record import BatchProgram


def cascade(
    hbm: HBM,
    sram: SRAM,
    batch: Batch,
    Q: Matrix,
    K_p: Matrix,
    V_p: Matrix,
    K: Matrix,
    V: Matrix,
    levels: Levels,
) -> tuple[Matrix, Matrix]:
    """Run on Q (R, d), K_p, V_p, node after node, and K, V, suffix after suffix; return O (R,
    d_v), L (R, 1).
    """
    on_chip = sram.on_chip
    B_r = batch.B_r
    B_c = batch.B_c
    tau = batch.tau
    O = hbm.empty("O", (Q.shape[0], V.shape[1]), V.dtype, "output")
    L = hbm.empty("L", (Q.shape[0], 1), sram.dtype)
    O_new, L_new = (
        (hbm.empty(f"{X.name}_new", X.shape, sram.dtype) for X in (O, L)) if levels else (O, L)
    )
    first = 0  # of a node's keys
    for level in sram.loop(len(levels) + 1, alike=range(len(levels) + 1)):  # line 1
        last = level == len(levels)
        nodes = [(s, s + 1, n) for s, n in enumerate(batch.keys)] if last else levels[level]
        O_to, L_to = (O_new, L_new) if level else (O, L)
        starts: list[int] = []
        for _, _, n in nodes:
            starts.append(0 if last and not starts else first)
            first = starts[-1] + n
        alike = (
            batch.alike
            if last
            else [(batch.rows(b - 1)[1] - batch.rows(a)[0], n) for a, b, n in nodes]
        )
        for node in sram.loop(len(nodes), alike=alike):  # line 2
            a, b, n = nodes[node]
            rows = batch.rows(a)[0], batch.rows(b - 1)[1]
            Q_s, O_s, L_s = (X.rows(*rows).divide(B_r) for X in (Q, O_to, L_to))
            K_s, V_s = (
                X.rows(starts[node], starts[node] + n).divide(B_c)
                for X in ((K, V) if last else (K_p, V_p))
            )
            for i in sram.loop(len(Q_s), alike=batch.rows_alike(a) if last else None):  # line 2
                Q_i = sram.load(Q_s[i])  # line 3
                O_i = sram.full(O_s[i].shape, 0.0)  # line 4
                l_i = sram.full(L_s[i].shape, 0.0)  # line 4
                m_i = sram.full(L_s[i].shape, float("-inf"))  # line 4
                e_i = batch.seen(a, i, n) if last else n
                for j in sram.loop(-(-e_i // B_c)):  # line 5
                    K_j, V_j = sram.load(K_s[j], V_s[j])  # line 6
                    S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 7
                    S_ij = (  # line 7
                        on_chip(batch.mask(S_ij, a, i, j * B_c, n), over=S_ij) if last else S_ij
                    )
                    m_i_new = on_chip(maximum(m_i, rowmax(S_ij)))  # line 8
                    P_tilde_ij = on_chip(exp(S_ij - finite(m_i_new)), over=S_ij)  # line 8
                    l_i = on_chip(  # line 9
                        exp(m_i - finite(m_i_new)) * l_i + rowsum(P_tilde_ij), over=l_i
                    )
                    O_i = on_chip(  # line 10
                        exp(m_i - finite(m_i_new)) * O_i + product(P_tilde_ij, V_j), over=O_i
                    )
                    m_i = on_chip(m_i_new, over=m_i)  # line 10
                # line 11: end for
                O_i = on_chip(O_i / nonzero(l_i), over=O_i)  # line 12
                L_i = on_chip(m_i + log(l_i), over=l_i)  # line 12
                sram.store(O_s[i], O_i)  # line 13
                sram.store(L_s[i], L_i)  # line 13
        # line 14: end for
        O_r, L_r, O_more, L_more = (X.divide(B_r) for X in (O, L, O_new, L_new))
        for i in sram.loop(len(O_r) if level else 0):  # line 15
            O_i, L_i, O_n, L_n = sram.load(O_r[i], L_r[i], O_more[i], L_more[i])  # line 16
            m_i = on_chip(maximum(L_i, L_n))  # line 17
            z_i = on_chip(exp(L_i - finite(m_i)) + exp(L_n - finite(m_i)))  # line 17
            O_i = on_chip(  # line 18
                exp(L_i - finite(m_i)) * O_i + exp(L_n - finite(m_i)) * O_n, over=O_i
            )
            O_i = on_chip(O_i / nonzero(z_i), over=O_i)  # line 18
            L_i = on_chip(m_i + log(z_i), over=L_i)  # line 18
            sram.store(O_r[i], O_i)  # line 19
            sram.store(L_r[i], L_i)  # line 19
        # line 20: end for
    # line 21: end for
    return O, L  # line 22


def check_options(batch: Batch, *, prefix: Any = None, levels: Any = ()) -> Mapping[str, Any]:
    """Return the levels above the suffixes; `prefix` is the length of the one that all sequences
    share.
    """
    return {"levels": check_levels(len(batch), prefix, levels)}


def operands(batch: Batch, options: Mapping[str, Any]) -> Operands:
    Q, K, V = batch.shapes().items()
    n = sum(node[2] for level in options["levels"] for node in level)
    return dict([Q, ("K_p", (n, batch.d)), ("V_p", (n, batch.d_v)), K, V])


PROGRAM = BatchProgram(
    name="cascade",
    title="Shared prefixes, merged",
    run=cascade,
    options=check_options,
    operands=operands,
    bugs=(
        Bug("parts are merged unweighted", "exp(L_n - finite(m_i)) * O_n", "O_n"),
        Bug(
            "empty and empty is NaN",
            "L_i = on_chip(m_i + log(z_i), over=L_i)",
            "L_i = on_chip(m_i - m_i + L_i, over=L_i)",
        ),
        Bug("logarithms to the base of 2", "m_i + log(z_i)", "m_i + log(z_i) / log(z_i - z_i + 2)"),
        Bug(
            "positions of a suffix counted from its prefix",
            "over=S_ij) if last else S_ij",
            "over=S_ij) if False else S_ij",
        ),
        Bug("L of the level above is lost", "sram.store(L_r[i], L_i)", "sram.store(L_r[i], L_n)"),
        Bug("the prefix is causal, too", "if last else n\n", "if True else n\n"),
        Bug(
            "each sequence reads the prefix anew",
            "a, b, n = nodes[node]",
            "a, b, n = nodes[node][0], nodes[node][0] + 1, nodes[node][2]",
        ),
    ),
)

"""Decoding by a schedule: the tiles of all problems in one row, shared out evenly over workers
(Stream-K), or fixed splits.

    Require: Q, K, V of all sequences in HBM, on-chip SRAM of size M, and a schedule: each worker's
             segments, in order.
    1  for each worker w, all at once, for each of its segments,
       tiles f … f' − 1 of row block i of sequence s, do
    2    Load Q_i from HBM to on-chip SRAM.
    3    Initialize O_i = (0)_{B_r×d}, ℓ_i = (0)_{B_r}, m_i = (−∞)_{B_r} on SRAM.
    4    for f ≤ j < f' do
    5      Load K_j, V_j from HBM to on-chip SRAM.
    6      S_ij^masked = MASK(τ Q_i K_jᵀ).
    7      m_i^new = max(m_i, rowmax(S_ij^masked)), P̃_ij = exp(S_ij^masked − m_i^new).
    8      ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ij).
    9      O_i ← diag(e^{m_i − m_i^new}) O_i + P̃_ij V_j, m_i ← m_i^new.
    10   end for
    11   If the row block has one segment: write diag(ℓ_i)⁻¹ O_i and m_i + log ℓ_i as O_i,
         L_i to HBM.
    12   Else write (O_i, ℓ_i, m_i) as its next part to HBM.
    13 end for
    14 for each row block with parts, all at once, do
    15   Initialize O_i = (0)_{B_r×d}, ℓ_i = (0)_{B_r}, m_i = (−∞)_{B_r} on SRAM.
    16   for each of its parts, in order, load it and merge it: m_i^new = max(m_i, m),
         O_i and ℓ_i as in lines 8 and 9.
    17   Write diag(ℓ_i)⁻¹ O_i and m_i + log ℓ_i as O_i, L_i to HBM.
    18 end for
    19 Return O, L.

Source: "Lean Attention: Hardware-Aware Scalable Attention Mechanism for the Decode-Phase of
Transformers" (Sanovar et al.), after Stream-K (Osama et al.); the listing is ours. What a schedule
says is in registers: it is not read through HBM.
"""

from collections.abc import Hashable, Mapping
from itertools import accumulate
from typing import Any

from flashsim.algorithms.notation import exp, finite, log, maximum, nonzero, product, rowmax, rowsum
from flashsim.algorithms.record import Bug
from flashsim.attention.arguments import check_choice, check_count
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM
from flashsim.serving.batch import Batch
from flashsim.serving.record import BatchProgram
from flashsim.serving.schedules import SCHEDULES, Segment, schedule_of


def decode(
    hbm: HBM,
    sram: SRAM,
    batch: Batch,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
    schedule: str,
    workers: int,
    splits: int,
) -> tuple[Matrix, Matrix]:
    """Run on Q (R, d), K (n, d), V (n, d_v), sequence after sequence; return O (R, d_v), L (R,
    1).
    """
    on_chip = sram.on_chip
    B_r = batch.B_r
    B_c = batch.B_c
    tau = batch.tau
    d_v = V.shape[1]
    plan = schedule_of(batch, schedule, workers, splits)
    O = hbm.empty("O", (Q.shape[0], d_v), V.dtype, "output")
    L = hbm.empty("L", (Q.shape[0], 1), sram.dtype)
    cut = [one for segments in plan.problems if len(segments) > 1 for one in segments]
    height = {one: min(B_r, batch.group * batch.queries[one.s] - one.i * B_r) for one in cut}
    ends = dict(zip(cut, accumulate(height[one] for one in cut), strict=True))
    O_parts, l_parts, m_parts = (
        hbm.empty(f"{X}_parts", (sum(height.values()), w), sram.dtype)
        for X, w in (("O", d_v), ("l", 1), ("m", 1))
    )

    def part(one: Segment) -> list[Matrix]:
        return [X.rows(ends[one] - height[one], ends[one]) for X in (O_parts, l_parts, m_parts)]

    def kind(one: Segment) -> Hashable:
        return batch.queries[one.s], batch.keys[one.s], one.i, one.first, one.end, one in height

    for w in sram.loop(workers, alike=[tuple(map(kind, mine)) for mine in plan.workers]):  # line 1
        for number in sram.loop(  # line 1
            len(plan.workers[w]), alike=[*map(kind, plan.workers[w])]
        ):
            one = plan.workers[w][number]
            s = one.s
            i = one.i
            n = batch.keys[one.s]
            Q_s, O_s, L_s = (X.rows(*batch.rows(s)).divide(B_r) for X in (Q, O, L))
            K_s, V_s = (X.rows(*batch.cols(s)).divide(B_c) for X in (K, V))
            Q_i = sram.load(Q_s[i])  # line 2
            O_i = sram.full(O_s[i].shape, 0.0)  # line 3
            l_i = sram.full(L_s[i].shape, 0.0)  # line 3
            m_i = sram.full(L_s[i].shape, float("-inf"))  # line 3
            for j in sram.loop(range(one.first, one.end)):  # line 4
                K_j, V_j = sram.load(K_s[j], V_s[j])  # line 5
                S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 6
                S_masked_ij = on_chip(batch.mask(S_ij, s, i, j * B_c, n), over=S_ij)  # line 6
                m_i_new = on_chip(maximum(m_i, rowmax(S_masked_ij)))  # line 7
                P_tilde_ij = on_chip(exp(S_masked_ij - finite(m_i_new)), over=S_masked_ij)  # line 7
                l_i = on_chip(  # line 8
                    exp(m_i - finite(m_i_new)) * l_i + rowsum(P_tilde_ij), over=l_i
                )
                O_i = on_chip(  # line 9
                    exp(m_i - finite(m_i_new)) * O_i + product(P_tilde_ij, V_j), over=O_i
                )
                m_i = on_chip(m_i_new, over=m_i)  # line 9
            # line 10: end for
            if one not in height:  # line 11
                O_i = on_chip(O_i / nonzero(l_i), over=O_i)  # line 11
                L_i = on_chip(m_i + log(l_i), over=l_i)  # line 11
                sram.store(O_s[i], O_i)  # line 11
                sram.store(L_s[i], L_i)  # line 11
            else:
                for X, X_i in zip(part(one), (O_i, l_i, m_i), strict=True):  # line 12
                    sram.store(X[0], X_i)  # line 12
    # line 13: end for
    merged = [segments for segments in plan.problems if len(segments) > 1]
    for q in sram.loop(  # line 14
        len(merged), alike=[(height[segments[0]], len(segments)) for segments in merged]
    ):
        s = merged[q][0].s
        i = merged[q][0].i
        O_s, L_s = (X.rows(*batch.rows(s)).divide(B_r) for X in (O, L))
        O_i = sram.full(O_s[i].shape, 0.0)  # line 15
        l_i = sram.full(L_s[i].shape, 0.0)  # line 15
        m_i = sram.full(L_s[i].shape, float("-inf"))  # line 15
        for number in sram.loop(len(merged[q])):  # line 16
            O_k, l_k, m_k = sram.load(*(X[0] for X in part(merged[q][number])))  # line 16
            m_i_new = on_chip(maximum(m_i, m_k))  # line 16
            O_i = on_chip(  # line 16
                exp(m_i - finite(m_i_new)) * O_i + exp(m_k - finite(m_i_new)) * O_k, over=O_i
            )
            l_i = on_chip(  # line 16
                exp(m_i - finite(m_i_new)) * l_i + exp(m_k - finite(m_i_new)) * l_k, over=l_i
            )
            m_i = on_chip(m_i_new, over=m_i)  # line 16
        O_i = on_chip(O_i / nonzero(l_i), over=O_i)  # line 17
        L_i = on_chip(m_i + log(l_i), over=l_i)  # line 17
        sram.store(O_s[i], O_i)  # line 17
        sram.store(L_s[i], L_i)  # line 17
    # line 18: end for
    return O, L  # line 19


def check_options(
    batch: Batch, *, schedule: Any = "stream_k", workers: Any, splits: Any = 1
) -> Mapping[str, Any]:
    """Return the schedule, of how many workers; and the splits of each problem, which only a
    fixed one has.
    """
    schedule = check_choice("schedule", schedule, SCHEDULES)
    splits = check_count("splits", splits)
    if splits > 1 and schedule != "fixed":
        raise ValueError(
            f"splits is {splits}; expected 1, as schedule {schedule!r} cuts where workers' shares "
            "end"
        )
    return {"schedule": schedule, "workers": check_count("workers", workers), "splits": splits}


PROGRAM = BatchProgram(
    name="decode",
    title="Decoding by a schedule",
    run=decode,
    options=check_options,
    operands=lambda batch, options: batch.shapes(),
    bugs=(
        Bug("parts are added unweighted", "exp(m_k - finite(m_i_new)) * O_k", "O_k"),
        Bug(
            "a part of another problem",
            "part(merged[q][number])",
            "part(merged[q - 1][number % len(merged[q - 1])])",
        ),
        Bug("parts are finished, too", "if one not in height:", "if True:"),
        Bug(
            "Q is kept from the segment before",
            "Q_i = sram.load(Q_s[i])",
            "Q_i = sram.load(Q_s[0])",
        ),
        Bug(
            "keys are counted from the segment",
            "s, i, j * B_c, n), over",
            "s, i, (j - one.first) * B_c, n), over",
        ),
        Bug(
            "the last part is left out",
            "in sram.loop(len(merged[q]))",
            "in sram.loop(len(merged[q]) - 1)",
        ),
    ),
)

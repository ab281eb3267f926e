"""What no backward pass moves less than that moves whole rows and keeps nothing of a pair: 14
N²d²/M, which is reached.

Class of schedules: the row game, backward. What moves is a whole row of Q, K, V, dO, dQ, dK or dV,
one at a time. Statistics of rows cost nothing, and neither does a pair's S, P, dP and dS, which is
computed from rows that are on chip, used at once, and forgotten. In any order, and as often as it
likes, a schedule makes three products of each pair (i, k):
    dV_k += P_ik dO_i    with Q_i, dO_i, K_k and dV_k on chip,
    dK_k += dS_ik Q_i    with Q_i, dO_i, K_k, V_k and dK_k on chip,
    dQ_i += dS_ik K_k    with Q_i, dO_i, dQ_i, K_k and V_k on chip.
Rows of sums may be kept, spilled or split. So FlashAttention's pass is in the class, in any tiles
and in any number of passes that compute S and dP anew. Passes that write P or dS, as "standard" and
"q_outer_stored" do, or hold parts of rows, are not.

Theorem. Let δ be the smaller of d and d_v, and let m = ⌊M/δ⌋ rows fit. For `pairs` allowed pairs of
`queries` rows and `keys` keys, accesses are at least δ(⌈14·pairs/(m − 1)⌉ − queries − 2·keys).

Proof. Let all rows have δ elements: so at most m are on chip.
1. Costs. A stay of a row is a longest time in which something of it is on chip. Fix one moment for
   each product of each pair, and look at the stays that these need. A stay of a row of Q, K, V or
   dO costs a read. Let a row of dQ, dK or dV have n stays. In each it is written, or the stay's
   products are lost, and what all but one write must be read in another: 2n − 1 accesses. So with 2
   for these stays, 1 for the others, and C for the sum, accesses are at least δ(C − queries −
   2·keys).
2. Loads. Two rows meet if their stays overlap, one of a query (Q_i, dO_i, dQ_i) and one of a key
   (K_k, V_k, dK_k, dV_k). Such a meeting has a weight, of which one half is loaded on the stay that
   begins later, as it begins, and the other on the stay that ends earlier, as it ends. At its
   beginning a stay can bear half its cost times m − 1, and so at its end. It is shown below that no
   load is greater, and that all are 14·pairs at least. So C (m − 1) ≥ 14·pairs.
3. Weight 1. dV's product has four meetings: of Q_i and dO_i with K_k and dV_k. dK's has four: of
   Q_i and dO_i with V_k and dK_k. dQ's has six: of Q_i, dO_i and dQ_i with K_k and V_k. These are
   14, but four may be counted twice: those of Q_i and dO_i with K_k for dV and for dQ, with V_k for
   dK and for dQ. If the stays are the same ones, call the second lost.
4. What is lost. Let one or both of K_k's meetings be lost, so the stays of these rows go on from
   one product to the other. If the stays of dQ_i and dV_k overlap, they are a meeting of weight 2,
   which is enough. If not, let dV_k's end before dQ_i's begins; otherwise, read time backwards. At
   both these moments Q_i or dO_i, or both, and K_k are on chip. Load 1/2 more on the end of dV_k
   for each of Q_i and dO_i whose meeting is lost, and 1/2 on the beginning of dQ_i for K_k, once.
   That is 1 for one lost meeting, and 3/2 for two. So of each pair with two, and let there be e of
   these, 1/2 is still wanted.
5. It is there. As a stay of dV ends, load half the number of rows of K on chip; as a stay of dQ
   begins, half the number of queries with Q and dO on chip. For each pair let j be the number of
   the e pairs that have its stay of dV, and whose stay of dQ does not begin before its own. Their
   queries have Q and dO on chip then: j of them. And let l be the number of those that have its
   stay of dQ, and whose stay of dV does not end after its own: l rows of K are on chip then. Either
   j ≤ l; of one stay of dV, j is different for each pair, so there are no more of these than rows
   of K at its end. Or l < j; of one stay of dQ there are no more of these than queries at its
   beginning. So the loads make up for e/2.
6. The same with V_k and dK_k in place of K_k and dV_k.
7. No load is greater. As a stay begins or ends, the m − 1 other rows are on chip at most. Of rows
   of Q, K, V and dO each meeting loads 1/2, and a stay bears (m − 1)/2. A stay of dV bears m − 1,
   and is loaded with at most 1/2 + 1/2 for each Q_i and dO_i on chip, 1 for each dQ_i and 1/2 for
   each K_k; one of dK likewise. A stay of dQ is loaded with at most 1/2 + 1/2 for each K_k and V_k,
   1 for each dV_k and dK_k, and twice 1/2 for each query of which two rows are on chip. So each row
   on chip loads 1 at most. ∎

How tight. "q_outer_streamed" moves 14 N²d²/M and lower terms, so the constant is that of the class.
It needs the pairs to be forgotten: "q_outer_stored" keeps dS, and moves less than this bound for M
below 2.5 d². Phases, as in `backward`, cannot give it, nor more than 12: one may find dQ of
M/3d queries, dK and dV of M/4d keys on chip, and read all else that these M²/12d² pairs need.
Without step 5 this proof gives 13. `tests/theory/test_lower_rows.py` tries each step on random
schedules, and `scripts/research/row_game.py` all schedules of the smallest games.
"""

from __future__ import annotations

from flashsim.attention.arguments import check_count, check_shape
from flashsim.theory.bounds.certificate import of_rows
from flashsim.theory.bounds.forward import check_pairs


def lower_bound_rows(
    *,
    N: int | None = None,
    d: int,
    M: int,
    N_q: int | None = None,
    N_k: int | None = None,
    d_v: int | None = None,
    pairs: int | None = None,
    queries: int | None = None,
    keys: int | None = None,
) -> int:
    """Return what no backward schedule of the row game moves less than; 0 where the theorem says
    nothing.

    Arguments as for `lower_bound`. Raises ValueError for arguments that make no sense.
    """
    shape = check_shape(N, d, N_q, N_k, d_v)
    M = check_count("M", M)
    pairs, queries, keys = check_pairs(shape, pairs, queries, keys)
    return of_rows(min(shape.d, shape.d_v), M, pairs, queries, keys)

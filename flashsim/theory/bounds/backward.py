"""What no backward pass moves less than: the bound of `forward`, by the same method, for dQ, dK and
dV.

Class of schedules. Backward, with P = softmax(S) and statistics of rows (L, D and the like) that
cost nothing here,
    S_ik = Σ_c Q_ic K_kc    dP_ik = Σ_c dO_ic V_kc    dS_ik = P_ik (dP_ik − D_i)
    dV_kc = Σ_i P_ik dO_ic    dK_kc = Σ_i dS_ik Q_ic    dQ_ic = Σ_k dS_ik K_kc.
A schedule forms these products in any order, in any tiles, as often as it likes, with partial sums
kept, spilled or split at will; P may be in HBM from the start, as for Algorithm 3. Each element on
chip is one thing: an entry of Q, K, V or dO, something of a pair (i, k) (S, P, dP, dS, or a part of
one), or a part of an entry of dQ, of dK or of dV. What multiplies dO_ic is made of all of S_ik;
what multiplies Q_ic and K_kc of all of S_ik and all of dP_ik. An addition to HBM is a read and a
write. Left out is algebra that mixes things, such as Strassen's, and a dP_ik used piece by piece:
as dK and dQ are linear in dP, its d_v summands could be multiplied by Q and K one after the other.
No algorithm of flashsim does either.

With a mask only the allowed pairs count, `pairs` of them. T = pairs · (2d + d_v), and δ is the
smaller of d and d_v.

Theorem. Let G² ≥ (Y − A − c)(A³/(12√3 δ²) + A c) for all A, c ≥ 0 with A + c ≤ Y, let Y > M, and
let n be a whole number ≥ 2 with (n − 1) · G < T. Then a schedule makes more than Y + (n − 2)(Y − M)
accesses; with the last phase's as in `forward`. For M ≥ 2.7√3 d², d_v = d and Y = 2M this is M ·
⌈8·3^¼ · pairs · d² / M²⌉, so at least 10.52 N_q N_k d² / M without a mask.

Proof. Phases, charges and step 7 are `forward`'s; what differs is what a phase can do.
1. For each allowed (i, k) fix, for each c, one multiplication that reaches dV_kc, one that reaches
   dK_kc, and one that reaches dQ_ic. These are T useful terms.
2. Charges. Each read of an entry of Q, K, V, dO or of something of a pair is one. So is the start
   of each longest stretch of time in which something of an entry of dQ, dK or dV is on chip and
   takes a useful term: it is written in such a stretch, or the term would be lost. So there are at
   least as many accesses as charges.
3. Phases of Y − M charges, the first of Y. In a phase let q, k, v, o be the distinct entries of Q,
   K, V, dO touched, x, y, z those of dQ, dK, dV that take a useful term, and c the pairs of which
   something was on chip at the start or was read. All of these were on chip at the start, M at
   most, or are charged:  q + k + v + o + x + y + z + c ≤ Y.
4. Pairs. A P_ik that is not of the c is made from nothing, so all d entries of Q_i and of K_k are
   touched: there are at most p = qk/δ² + c. A dS_ik takes all of dO_i and V_k too. Rows with all of
   both are at most s/δ, s = min(q, o), and keys t/δ, t = min(k, v): there are at most r = st/δ² +
   c.
5. Terms. By Loomis and Whitney dV takes at most √(p·o·z), dK √(r·q·y), dQ √(r·k·x). By Cauchy and
   Schwarz their sum is at most √((x + y + z) · F),  F = p·o + r·(q + k) = (qko + st(q + k))/δ² +
   c(o + q + k).
6. Most of them. Let A = q + o + k + v. The last part of F is at most c·A. For the first let q and o
   be m ± a, k and v be n ± b, a and b ≥ 0, so s = m − a and t = n − b, and with qo = m² − a², q ≤ m
   + a and k ≤ n + b
       qko + st(q + k) ≤ (m² − a²)(n + b) + (m − a)(n − b)(m + a + n + b)
           = 2n(m² − a²) + (m − a)(n² − b²) ≤ mn(2m + n).
   As m + n = A/2, this is at most A³/(12√3): three factors (1 + √3)m, (2 + √3)n and 2m + n have the
   sum (3 + √3)A/2, and their product is at most the cube of a third of it. With x + y + z ≤ Y − A −
   c, a phase has at most G useful terms.
7. n − 1 phases of at most G terms have fewer than T. So there are n at least: one of Y charges, n −
   2 of Y − M, and one more, which has the terms that the others leave. ∎

The constant. Let W = A²/(12√3 δ²) and P = Y − A. Of all c, A(P − c)(W + c) is largest at c = (P −
W)/2, or at 0 if W ≥ P: there it is A·P·W, and A(P + W)²/4 where W < P. For Y ≥ 5.4√3 δ² the latter
grows with A until W = P, where both are equal: its derivative has the sign of Y − 3A + 5A²/(12√3
δ²), which is nowhere negative then. So the most is A·P·W at A = 3Y/4, which is 27/256 · Y⁴/(12√3
δ²), and G = 3^¾ Y²/32δ.

How tight. For M far above d², dQ alone costs 6 N²d²/M (by the same proof, and as it takes at most
d·r terms), dK and dV cost 8, and two passes with tiles of their own, "q_outer_streamed", reach
both, 14 in all. But the dQ, dK and dV of one phase may share what was on chip when it began, and
that leaves 8·3^¼ = 10.53 of the 14. Of schedules that move whole rows and keep nothing of a pair
none shares it: `rows` proves 14 for these.

H, a whole number, is at least G²: found in floating point, then proved
(`flashsim.theory.bounds.certificate`). The theorem is proved by hand; its arithmetic is checked by
machine.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import ceil, isqrt, sqrt

from flashsim.attention.arguments import check_count, check_shape
from flashsim.theory.bounds.certificate import most_in_a_phase_backward
from flashsim.theory.bounds.forward import Phases, check_pairs, most_charges, spread

BETA = 1 / sqrt(432)  # 1/12√3


@dataclass(frozen=True)
class BackwardBound(Phases):
    """The bound of a backward pass: a phase has at most √H useful terms."""

    H: int = 0


def lower_bound_backward(
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
) -> BackwardBound:
    """Return the best bound found for one head, backward, with M elements of SRAM.

    Arguments as for `lower_bound`. Raises ValueError for arguments that make no sense.
    """
    shape = check_shape(N, d, N_q, N_k, d_v)
    M = check_count("M", M)
    pairs, queries, keys = check_pairs(shape, pairs, queries, keys)
    w = shape.d + shape.d_v
    compulsory = (queries + keys) * w + shape.N_q * shape.d + shape.N_k * w
    problem = BackwardBound(**asdict(shape), M=M, pairs=pairs, compulsory=compulsory)
    if not pairs:
        return problem
    T = pairs * (shape.d + w)
    delta = min(shape.d, shape.d_v)
    low = M + 1
    # then G ≥ T: one phase
    high = max(M + 1, min(3 * ceil(T ** (2 / 3)), isqrt(16 * delta * T)) + 1)
    best = max(
        (_phases(problem, T, Y, delta) for Y in {2 * M, 3 * M, *spread(low, high)}),
        key=lambda bound: bound.phases,
    )
    if best.n:
        ratio = (high / low) ** (1 / 200)
        near = spread(max(low, ceil(best.Y / ratio)), ceil(best.Y * ratio))
        best = max(
            (best, *(_phases(problem, T, Y, delta) for Y in near)), key=lambda bound: bound.phases
        )
    if best.phases <= compulsory:
        return problem
    # as rounding, or its number of steps, may have it
    if not most_in_a_phase_backward(best.Y, delta, best.H):
        best = _phases(problem, T, best.Y, delta, slack=1e-4)
        if not best.n or not most_in_a_phase_backward(best.Y, delta, best.H):
            return problem
    left = T - (best.n - 1) * isqrt(best.H)
    sure = best.last <= 1 or most_in_a_phase_backward(best.M + best.last - 1, delta, left**2 - 1)
    return best if sure else replace(best, last=1)


def most(Y: float, delta: int) -> float:
    """Return G²: the most of (Y − A − c)(A³/(12√3 δ²) + A c), at one of three A, as the module's
    docstring finds.
    """
    beta = BETA / delta**2
    candidates = [
        3 * Y / 4,
        2 * Y / (1 + sqrt(1 + 4 * beta * Y)),
    ]  # the most of A·P·W; and where W = P
    if 20 * beta * Y < 9:
        candidates.append(2 * Y / (3 + sqrt(9 - 20 * beta * Y)))  # the most of A(P + W)²/4

    def value(A: float) -> float:
        P = Y - A
        W = beta * A * A
        return A * (P * W if W >= P else (P + W) ** 2 / 4)

    return max(map(value, candidates))


def _phases(
    problem: BackwardBound, T: int, Y: int, delta: int, slack: float = 1e-12
) -> BackwardBound:
    """Return what phases of Y prove, if a phase has at most √H terms; as given, where one phase
    is enough.
    """
    H = int(most(Y, delta) * (1 + slack)) + 1
    n = isqrt((T * T - 1) // H) + 1
    if n < 2:
        return problem
    left = T - (n - 1) * isqrt(H)
    last = most_charges(
        Y - problem.M, lambda touched: most(touched, delta) * (1 + slack) + 1 < left**2, problem.M
    )
    return replace(problem, Y=Y, n=n, last=last, H=H)

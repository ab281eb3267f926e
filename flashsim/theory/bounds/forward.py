"""What no schedule moves less than: a lower bound on HBM accesses with its constant, and its proof.

Class of schedules. Attention is S_ik = Σ_c Q_ic K_kc, then O_ic = Σ_k P_ik V_kc, P_ik a function of
S_ik and of statistics of row i, which cost nothing here. A schedule forms these products in any
order, in any tiles, as often as it likes, with partial sums kept, spilled or split at will. Each
element on chip is one thing: an entry of Q, of K, of V, something of a pair (i, k) (S_ik, P_ik, or
a part of either), or a part of O_ic. Left out is algebra that mixes them, such as Strassen's.
Algorithms 0, 1, 2, 5, `q_outer`, `split_kv`, `small_cache` and every other forward pass of flashsim
are in the class. With a mask only the allowed pairs count, `pairs` of them.

Theorem. With T = pairs · d_v and any Y > M, let n be a whole number ≥ 2 with (n − 1) · G(Y) < T,
where G(Y) is max(Y²/16d, (Y/3)^{3/2}), rounded down. Then a schedule makes more than Y + (n − 2)(Y
− M) accesses; and at least x more than that many if (n − 1) · G(Y) + G(M + x − 1) < T. For M ≥
(128/27) d² and Y = 2M the first is M · ⌈4·pairs·d·d_v / M²⌉, so at least 4 N_q N_k d d_v / M
without a mask.

Proof.
1. For each allowed (i, k) and each c fix one multiplication P_ik V_kc that reaches the output.
   These are T useful terms.
2. Charges. Each read of an entry of Q, K, V or of something of a pair is one charge. So is the
   start of each longest stretch of time in which something of O_ic is on chip and takes a useful
   term: in such a stretch it is written to HBM, or the term would be lost, and writes of different
   stretches differ. So there are at least as many accesses as charges.
3. Phases. Cut the time into phases of X = Y − M charges; the last may have fewer. All that a phase
   touches is on chip at its start, M elements at most, or is charged in it. With A_Q, A_K, A_V, A_O
   distinct entries of Q, K, V, O touched, and c pairs of which something was on chip at the start
   or was read:  A_Q + A_K + A_V + A_O + c ≤ Y. The first phase begins with nothing on chip, so it
   may have Y charges.
4. Pairs. A phase can use P_ik only if something of (i, k) was there or was read, or if it computes
   S_ik from nothing, for which it touches all d entries of Q_i and all of K_k. So it uses p ≤ A_Q
   A_K / d² + c pairs.
5. Terms. A useful term of the phase is a point (i, k, c) whose three shadows (i, k), (k, c), (i, c)
   are a pair used, an entry of V and one of O. A box that casts shadows of areas p, A_V, A_O has
   volume √(p A_V A_O), and no set of points has more (Loomis and Whitney, "An inequality related to
   the isoperimetric inequality"). So a phase has at most √(p A_V A_O) useful terms.
6. Most of them. Let B = A_Q + A_K + c. Then p ≤ (B − c)²/4d² + c, which is convex in c, so at most
   max(B²/4d², B), its ends. With B + A_V + A_O ≤ Y the product is largest at B = Y/2 in the first
   case, at B = Y/3 in the second: G(Y) terms at most.
7. n − 1 phases of at most G(Y) terms have fewer than T. So there are n at least: one of Y charges,
   n − 2 of X, and one more, with a charge at least. With x − 1 charges or fewer, it would touch M +
   x − 1 elements, and could not have the terms left.  ∎

Combined bound. Count the multiplications Q_ic K_kc too, pairs · d useful ones, and charge each
write of something of a pair. In a phase these are points (i, k, c) with shadows in Q, in K, and
among the pairs that take a useful term. Those pairs were there at the start or read (c), or are
begun and finished in the phase (A_Q A_K / d² at most), or are begun and left: on chip at its end (M
at most), or written (w of them, charged). So there are T₁ ≤ √(A_Q A_K (A_Q A_K / d² + c + w + M))
of them, beside T₂ ≤ √((A_Q A_K / d² + c) A_V A_O) of the others, with A_Q + A_K + A_V + A_O + c + w
≤ Y. Both only grow if A_Q = A_K, if A_V = A_O, and if w is made part of c. With s = A_Q + A_K and t
= A_V + A_O it is left to bound, for s + t + c ≤ Y,
    a·T₁ + b·T₂ ≤ a · s/2 · √(s²/4d² + c + M) + b · t/2 · √(s²/4d² + c) ≤ H.
It grows in s, t and c. So in a cell of (s, c) it is at most what its upper corner gives, t taken at
the lower one; cells are halved until each is at most H, roots rounded up
(`flashsim.theory.bounds.certificate`). Then n is any whole number with (n − 1) · H < pairs · (a·d +
b·d_v), and the rest is step 7, for the last phase with an H of its own. It is the better one from
about M = 5 d² down.

The weights and Y are looked for in floating point: a worse choice is a weaker bound, never a wrong
one. What is proved is whole numbers. The theorem is proved in Rocq too (scripts/proofs), the
combined bound by hand; a machine checks its arithmetic.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import cbrt, ceil, isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim.attention.arguments import check_count, check_shape
from flashsim.attention.shapes import Shape
from flashsim.theory.bounds.certificate import most_in_a_phase, most_terms

Floats = NDArray[Any]
COMBINED_BELOW = 6  # of M / d²: above, the theorem alone is as good
WEIGHTS = 20


@dataclass(frozen=True)
class Phases:
    """No schedule of a class moves fewer elements than `accesses`, of which the phases say
    `phases`, and inputs `compulsory`.

    pairs       (query, key) pairs that are allowed
    Y, n, last  the phases: Y touched in each, n of them, the last with so many charges. Where
                phases say nothing, all 0
    """

    N_q: int
    N_k: int
    d: int
    d_v: int
    M: int
    pairs: int
    compulsory: int
    Y: int = 0
    n: int = 0
    last: int = 0

    @property
    def phases(self) -> int:
        """What n phases have at least."""
        return self.Y + (self.n - 2) * (self.Y - self.M) + self.last if self.n else 0

    @property
    def accesses(self) -> int:
        """The bound."""
        return max(self.compulsory, self.phases)


@dataclass(frozen=True)
class LowerBound(Phases):
    """The bound of a forward pass.

    a, b, H     the weights of QKᵀ and of PV, and the most that a phase gives of them. By the
                theorem alone: a = H = 0, b = 1
    """

    a: int = 0
    b: int = 1
    H: int = 0


def check_pairs(
    shape: Shape, pairs: int | None, queries: int | None, keys: int | None
) -> tuple[int, int, int]:
    """Return pairs, queries and keys as `lower_bound` takes them. Raises ValueError for numbers
    that no mask has.
    """
    queries = shape.N_q if queries is None else check_count("queries", queries, 0, shape.N_q)
    keys = shape.N_k if keys is None else check_count("keys", keys, 0, shape.N_k)
    most = queries * keys
    return (
        (most if pairs is None else check_count("pairs", pairs, max(queries, keys), most)),
        queries,
        keys,
    )


def lower_bound(
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
) -> LowerBound:
    """Return the best bound found for one head, forward, with M elements of SRAM.

    Give N, or N_q and N_k; d_v is d where it is left out. `pairs` are those allowed, `queries` and
    `keys` those that have any; None: all. Raises ValueError for arguments that make no sense.
    """
    shape = check_shape(N, d, N_q, N_k, d_v)
    M = check_count("M", M)
    pairs, queries, keys = check_pairs(shape, pairs, queries, keys)
    compulsory = queries * shape.d + keys * (shape.d + shape.d_v) + shape.N_q * shape.d_v
    problem = LowerBound(**asdict(shape), M=M, pairs=pairs, compulsory=compulsory)
    if not pairs:
        return problem
    best = _by_terms(problem)
    return (
        max(best, _combined(problem), key=lambda bound: bound.phases)
        if COMBINED_BELOW * shape.d**2 > M
        else best
    )


def most_charges(most: int, too_little: Callable[[int], bool], M: int) -> int:
    """Return how many charges the last phase has at least, `most` at most: with one less, what it
    touches is `too_little`.

    One is sure, as the phases before it are not enough.
    """
    return (
        1 + bisect_left(range(1, most), True, key=lambda less: not too_little(M + less))
        if most > 1
        else 1
    )


def spread(low: int, high: int) -> list[int]:
    """Return about 200 whole numbers from low to high, evenly by ratio."""
    ratio = (high / low) ** (1 / 200)
    return [min(ceil(low * ratio**step), high) for step in range(201)]


def _by_terms(problem: LowerBound) -> LowerBound:
    """Return the best bound of the theorem: n for Y = 2M and for others, spread out, then about
    the best of these.
    """
    T = problem.pairs * problem.d_v
    M = problem.M
    d = problem.d
    most = max(M + 1, isqrt(16 * d * T))  # from there on there are fewer than two phases
    low = M + 1
    high = most
    best = problem
    for _ in range(4):
        for Y in sorted({2 * M, *spread(low, high)}):
            if (fewer := (T - 1) // most_terms(d, Y)) < 1:
                continue
            # phases, up to there
            as_many = min(isqrt((16 * d * T - 1) // fewer), int(cbrt((27 * T * T - 1) / fewer**2)))
            best = max(
                (best, *(_ended(problem, T, bound, best) for bound in {Y, max(Y, as_many)})),
                key=lambda bound: bound.phases,
            )
        if not best.n:
            break
        ratio = (high / low) ** (1 / 200)
        low = max(M + 1, ceil(best.Y / ratio))
        high = min(most, ceil(best.Y * ratio))
    return best


def _ended(problem: LowerBound, T: int, Y: int, best: LowerBound) -> LowerBound:
    """Return what phases of Y prove, with a last phase for what the others leave; or `given`, if
    that is not above the best.
    """
    M = problem.M
    d = problem.d
    fewer, left = divmod(T - 1, most_terms(d, Y))  # left is one term less than they leave
    if fewer < 1 or Y + fewer * (Y - M) <= best.phases:
        return problem
    last = most_charges(Y - M, lambda touched: most_terms(d, touched) <= left, M)
    return replace(problem, Y=Y, n=fewer + 1, last=last)


def _combined(problem: LowerBound) -> LowerBound:
    """Return the best combined bound found, its H certified."""
    pairs = problem.pairs
    d = problem.d
    d_v = problem.d_v
    M = problem.M
    weights, steps = np.mgrid[1 : WEIGHTS // 2 + 1, 1:17].reshape(2, -1, 1)
    Ys = M + M * (steps / 4)
    H_of = _about(weights, WEIGHTS - weights, Ys, d, M)
    work = float(pairs) * (weights * float(d) + (WEIGHTS - weights) * float(d_v))
    best = int(np.argmax(Ys + (work / H_of - 2) * (Ys - M)))
    a = int(weights[best, 0])
    Y = M + M * int(steps[best, 0]) // 4
    b = WEIGHTS - a
    H = float(_about(np.array([[a]]), np.array([[b]]), np.array([[float(Y)]]), d, M, fine=12)[0, 0])
    for slack in (2e-4, 2e-3, 2e-2):
        whole = ceil(H * (1 + slack)) + 1
        if most_in_a_phase(Y, d, M, a, b, whole):
            # left is less by one than fewer phases leave
            fewer, left = divmod(pairs * (a * d + b * d_v) - 1, whole)
            if not fewer:
                return problem
            candidate = replace(problem, Y=Y, n=fewer + 1, last=1, a=a, b=b, H=whole)
            last = most_charges(Y - M, partial(_gives_at_most, candidate, left), M)
            sure = last == 1 or most_in_a_phase(M + last - 1, d, M, a, b, left)
            return replace(candidate, last=last) if sure else candidate
    return problem


def _gives_at_most(phases: LowerBound, left: int, touched: int) -> bool:
    """Say whether a phase that touches so many elements gives no more than is left, as it seems."""
    a, b, Y = (np.array([[float(each)]]) for each in (phases.a, phases.b, touched))
    return 1.0002 * float(_about(a, b, Y, phases.d, phases.M, fine=12)[0, 0]) <= left


def _about(a: Floats, b: Floats, Y: Floats, d: int, M: int, fine: int = 3) -> Floats:
    """Return about the most of a·T₁ + b·T₂ in a phase, of columns of a, b, Y: by a grid, and
    ever smaller ones about its best.
    """

    def value(s: Floats, c: Floats) -> Floats:
        t = Y - s - c
        pairs = s * s / (4.0 * d * d)
        of_both: Floats = a * s / 2 * np.sqrt(pairs + c + M) + b * t / 2 * np.sqrt(pairs + c)
        return np.where(t >= 0, of_both, 0.0)

    i, j = np.mgrid[-fine : fine + 1, -fine : fine + 1].reshape(2, 1, -1) / fine
    s = Y / 2
    c = Y / 2
    width = Y / 2
    for _ in range(3 * fine):
        near_s = np.clip(s + i * width, 0.0, Y)
        near_c = np.clip(c + j * width, 0.0, Y)
        best = np.argmax(value(near_s, near_c), axis=1)[:, None]
        s, c, width = (
            np.take_along_axis(near_s, best, 1),
            np.take_along_axis(near_c, best, 1),
            width * 0.6,
        )
    return value(s, c)

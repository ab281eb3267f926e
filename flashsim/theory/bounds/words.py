"""What devices must receive: a lower bound on words, with its proof, by the phases of
`flashsim.theory.bounds.forward` with P memories.

Class of schedules. As there, each word is an entry of Q, K or V, something of a pair (i, k), or a
part of O_ic; the terms P_ik V_kc are formed in any order, anywhere, as often as a schedule likes,
and parts may be kept, added or sent. What the softmax knows of a row costs nothing. A device begins
with its own rows of Q, K, V, and ends with its own rows of O: q rows of queries and n of keys at
most. No device does more than W pairs of heads' rows. Without such a limit one could do all. Words
may be relayed.

Theorem 1. Let c = min(g · pairs, W), δ = min(d, d_v), and λ ≤ 1 a number with, for all n ≤ β ≤ N_k
and gq ≤ α ≤ gN_q, αβ ≤ c,
    λ (αβ − gqn) ≤ 2δ ((β − n) + (α − gq)).    (1)
Then all devices together receive at least λ (H_q · pairs − P · H_q · qn) words.

Proof.
1. A device's useful terms of the g heads that share a KV head, over d_v, be x. Let c_k be how many
   things of pairs it received for them, and A_K, A_V, A_Qh, A_Oh how many entries it touches. It
   uses a pair only if it received something of it, or touched all of Q_i and K_k. Terms of received
   pairs are c_k d_v at most. Of the others, a set of points whose shadows are pairs, entries of V
   and of O: √((A_Qh A_K / d²) A_V A_Oh) for a head at most (Loomis and Whitney). With β = √(A_K A_V
   / d d_v) and α = Σ_h √(A_Qh A_Oh / d d_v) it is x ≤ αβ + c_k, where β ≤ N_k, α ≤ gN_q.
2. It received at least A_K − nd entries of K, A_V − nd_v of V, A_Qh − qd of Q. It sent something of
   at least A_Oh − qd_v entries of O, as its terms would be lost; each word that it sends is
   received elsewhere. As a mean is at least the root of a product, these are 2δ((β − n)⁺ + (α −
   gq)⁺) words at least.
3. x − c_k ≤ min(αβ, c). If β < n or α < gq, or αβ > c, move to (1)'s range: that makes words fewer
   and pairs no fewer. So by (1), and as λ ≤ 1: λ (x − gqn) ≤ words, received ones of pairs
   included.
4. Sum over KV heads and devices: x becomes H_q · pairs, and each word is counted once, where it is
   received. ∎

If one device alone has the queries (decoding), sum over the other P − 1, with q = 0, which do H_q ·
pairs − W at least.

Theorem 2. If no device has room for more than S words, then for each Y > S all together receive at
least (T/G − P)(Y − S) − H_q N_q d_v words, T = H_q · pairs · d_v, and G the most terms of a phase
of Y, `flashsim.theory.bounds.forward`'s G(Y).

Proof. Charge a device each word that it receives, and the start of each stretch in which something
of O_ic is there and takes a useful term. Cut its time into phases of Y − S charges. A phase begins
with S words at most, touches Y, and so has G terms at most: g heads that share K and V are one with
gN_q rows, and G(Y) + G(Y′) ≤ G(Y + Y′). So a device with T_p terms has T_p/G − 1 whole phases at
least. A stretch ends in a word that is sent, and received elsewhere, or in an output that stays:
H_q N_q d_v of these. ∎

Theorem 1 needs no limit of memory, theorem 2 none of work. Both hold for masks, by the number of
pairs that they allow, but may then be weak. Still open are a mask's shape, and d ≠ d_v, where only
the smaller counts here. "Red-Blue Pebbling with Multiple Processors" (Böhnlein, Papp, Yzelman) has
phases for several processors.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fractions import Fraction
from math import ceil, isqrt
from typing import Any

from flashsim.theory.bounds.forward import spread


@dataclass(frozen=True, kw_only=True)
class SharedRows:
    """Attention that is shared out over devices: all that a bound on words is made of.

    P         how many devices
    pairs     that the mask allows, of one head
    W, q, n   the most that a device does, of all heads; its queries, its keys, at most
    at_root   whether device 0 has all queries
    """

    P: int
    N_q: int
    N_k: int
    d: int
    d_v: int
    heads: int
    kv_heads: int
    pairs: int
    W: int
    q: int
    n: int
    at_root: bool = False

    @property
    def group(self) -> int:
        """Query heads that share a KV head, g."""
        return self.heads // self.kv_heads


@dataclass(frozen=True, kw_only=True)
class WordsBound(SharedRows):
    """No schedule of the class has its devices receive fewer than `words` words in all.

    up, down  λ of theorem 1, as a fraction
    S, Y      a device's room, and a phase, of theorem 2; both 0: by theorem 1
    """

    up: int
    down: int
    S: int
    Y: int
    words: int

    def certificate(self) -> dict[str, Any]:
        """Return what `flashsim.theory.bounds.words_certificate.check` checks."""
        return {"kind": "words over devices", **asdict(self)}


def words_bound(rows: SharedRows, S: int | None = None) -> WordsBound:
    """Return the bound for a forward pass whose devices have room for S words; None: for
    everything.
    """
    P, g, q, n = rows.P, rows.group, rows.q, rows.n
    delta = min(rows.d, rows.d_v)
    total = rows.pairs * rows.heads
    rate = _rate(rows.N_q, rows.N_k, delta, g, min(g * rows.pairs, rows.W), q, n)
    of_others = total - rows.W if rows.at_root else total - P * rows.heads * q * n
    words = max(0, ceil(rate * of_others))
    phase = 0
    if S is not None and total:
        terms = total * rows.d_v
        outputs = rows.heads * rows.N_q * rows.d_v
        for Y in sorted({2 * S, *spread(S + 1, 16 * S)}):
            by_phases = (_fewer_phases(terms, rows.d, Y) - P) * (Y - S) - outputs
            if by_phases > words:
                phase = Y
                words = by_phases
    return WordsBound(
        **vars(rows),
        up=rate.numerator,
        down=rate.denominator,
        S=S if S and phase else 0,
        Y=phase,
        words=words,
    )


def _fewer_phases(T: int, d: int, Y: int) -> int:
    """Return the most phases that together have fewer than T terms: each has Y²/16d at most, or
    (Y/3)^{3/2}.
    """
    return min((16 * d * T - 1) // Y**2, isqrt((27 * T**2 - 1) // Y**3))


def _rate(N_q: int, N_k: int, delta: int, g: int, c: int, q: int, n: int) -> Fraction:
    """Return the largest λ of (1), or nearly: a root is rounded down.

    For one β the best α is at an end, as both sides are linear in it: at gq, or where it meets gN_q
    or αβ = c. So is the best β.
    """
    free = g * q * n
    rates = [Fraction(1), Fraction(2 * delta, n)]
    if q:
        rates.append(Fraction(2 * delta, g * q))
    if c > free:
        low = max(Fraction(n), Fraction(c, g * N_q))
        high = Fraction(N_k)
        high = min(high, Fraction(c, g * q)) if q else high
        if low >= high:  # the corner (gN_q, N_k), or less
            sums = high + min(Fraction(g * N_q), c / high)
            x = high * min(Fraction(g * N_q), c / high)
        elif low * low >= c or high * high <= c:
            point = low if low * low >= c else high
            sums = point + c / point
            x = Fraction(c)
        else:
            sums = Fraction(isqrt(4 * c))
            x = Fraction(c)
        rates.append(2 * delta * max(sums - n - g * q, Fraction(0)) / (x - free))
    return min(rates)

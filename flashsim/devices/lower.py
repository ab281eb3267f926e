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

import numpy as np

from flashsim.attention.masks.rules import Causal
from flashsim.attention.problem import EVERYTHING
from flashsim.devices.record import DevicesProgram
from flashsim.devices.share import Share
from flashsim.theory.bounds.forward import spread


@dataclass(frozen=True)
class WordsBound:
    """No schedule of the class has its devices receive fewer than `words` words in all.

    pairs     that the mask allows, of one head
    W, q, n   the most that a device does, of all heads; its queries, its keys, at most
    at_root   whether device 0 has all queries
    up, down  λ of theorem 1, as a fraction
    S, Y      a device's room, and a phase, of theorem 2; both 0: by theorem 1
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
    at_root: bool
    up: int
    down: int
    S: int
    Y: int
    words: int

    def certificate(self) -> dict[str, Any]:
        """Return what `flashsim.devices.certificate.check` checks."""
        return {"kind": "words over devices", **asdict(self)}


def lower_words(
    share: Share, most: int | None = None, *, at_root: bool = False, S: int | None = None
) -> WordsBound:
    """Return the bound for a forward pass whose devices each do at most `most` pairs of heads'
    rows, and have room for S words.

    `most` None: all do equally many. S None: there is room for everything.
    """
    shape = share.problem.shape
    P = len(share.where)
    g = share.group
    pairs = allowed(share)
    total = pairs * share.H_q
    most = -(-total // P) if most is None else min(most, total)
    q = 0 if at_root else max(map(len, share.queries))
    n = share.most_rows
    rate = _rate(shape.N_q, shape.N_k, min(shape.d, shape.d_v), g, min(g * pairs, most), q, n)
    of_others = total - most if at_root else total - P * share.H_q * q * n
    words = max(0, ceil(rate * of_others))
    Y = 0
    if S is not None and total:
        T = total * shape.d_v
        by_phases = {
            Y: (_fewer_phases(T, shape.d, Y) - P) * (Y - S) - share.H_q * shape.N_q * shape.d_v
            for Y in sorted({2 * S, *spread(S + 1, 16 * S)})
        }
        Y = max(by_phases, key=by_phases.__getitem__)
        Y, words = (Y, by_phases[Y]) if by_phases[Y] > words else (0, words)
    return WordsBound(
        P,
        shape.N_q,
        shape.N_k,
        shape.d,
        shape.d_v,
        share.H_q,
        share.H_kv,
        pairs,
        most,
        q,
        n,
        at_root,
        rate.numerator,
        rate.denominator,
        S if S and Y else 0,
        Y,
        words,
    )


def _fewer_phases(T: int, d: int, Y: int) -> int:
    """Return the most phases that together have fewer than T terms: each has Y²/16d at most, or
    (Y/3)^{3/2}.
    """
    return min((16 * d * T - 1) // Y**2, isqrt((27 * T**2 - 1) // Y**3))


def allowed(share: Share, rows: Any = None, cols: Any = None) -> int:
    """Return how many pairs a mask allows, of some positions; None: of all."""
    shape = share.problem.shape
    mask = share.problem.mask
    if mask is EVERYTHING:
        return (shape.N_q if rows is None else len(rows)) * (
            shape.N_k if cols is None else len(cols)
        )
    rows = np.arange(shape.N_q) if rows is None else rows
    if cols is None and type(mask) is Causal and mask.offset is None:
        return int((rows + shape.N_k - shape.N_q + 1).clip(0).sum())
    cols = np.arange(shape.N_k) if cols is None else cols
    return sum(
        int(mask.allows(rows[i : i + 256], cols, shape, ()).sum()) for i in range(0, len(rows), 256)
    )


def most_work(program: DevicesProgram, share: Share, columns: int) -> int:
    """Return the most pairs of heads' rows that a device does under a program."""
    P = len(share.where)
    everyone = range(len(share.where))
    mask = share.problem.mask
    if program.name == "ulysses":
        return max(len(share.heads(p)) for p in everyone) * allowed(share)
    if program.at_root:
        return share.H_q * max(allowed(share, share.queries[0], cols) for cols in share.where)
    if not program.columns:
        return share.H_q * max(allowed(share, rows) for rows in share.queries)
    rows = [np.concatenate([*share.queries[p : p + columns]]) for p in range(0, P, columns)]
    cols = [np.concatenate([*share.where[c::columns]]) for c in range(columns)]
    if mask is EVERYTHING:
        return share.H_q * max(map(len, rows)) * max(map(len, cols))
    if type(mask) is not Causal or mask.offset is not None:
        return share.H_q * max(allowed(share, r, c) for r in rows for c in cols)
    # a pass over all positions for each of few
    few, many = (rows, cols) if len(rows) < len(cols) else (cols, rows)
    of = np.zeros(len(share), np.int64)
    most = 0
    for k, group in enumerate(many):
        of[group] = k
    for group in few:
        inside = np.zeros(len(share), np.int64)
        inside[group] = 1
        met = inside[::-1].cumsum()[::-1] if few is rows else inside.cumsum()
        most = max(most, int(np.bincount(of, weights=met).max()))
    return share.H_q * most


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
            at = low if low * low >= c else high
            sums = at + c / at
            x = Fraction(c)
        else:
            sums = Fraction(isqrt(4 * c))
            x = Fraction(c)
        rates.append(2 * delta * max(sums - n - g * q, Fraction(0)) / (x - free))
    return min(rates)

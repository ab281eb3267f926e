"""What devices must receive in a backward pass: a lower bound on words, as in `words`, for dQ, dK
and dV.

Class of schedules. `flashsim.theory.bounds.backward`'s, on P devices, as in
`flashsim.theory.bounds.words`: a device begins with own rows of Q, K, V, dO, and ends with own rows
of dQ, dK, dV, q rows of queries and n of keys at most. What is known of a row, L and D, costs
nothing. Terms are counted in pairs: those of dV over d_v, of dK and dQ over d, so that each pair
has three. No device does more than 3W.

Theorem 3. Let κ = 2/(3√3), s₀ = gq + n, E₀ = gq + 2n, X₀ ≥ √(κ E₀ s₀³), δ = min(d, d_v), c = 3
min(g · pairs, W), and μ at most the least 2(s − s₀) + E − E₀ for s ≥ s₀, E ≥ E₀, κ E s³ = c². Let λ
≤ 1/3 and λ (c − X₀) ≤ δ μ. Then all devices together receive at least λ (3 H_q · pairs − P · H_kv ·
X₀) words.

Proof.
1. A device's terms of g heads that share a KV head be x. In rows of its width, let it touch u_Q,
   u_O, u_K, u_V of Q, dO, K, V, and y_Q, y_K, y_V of dQ, dK, dV. Steps 4 to 6 of
   `flashsim.theory.bounds.backward`, in these units, say of terms of pairs of which it received
   nothing: they are at most √(E F), E = y_Q + y_K + y_V, and F ≤ mk(2m + k), m = (u_Q + u_O)/2 and
   k = (u_K + u_V)/2. With s = m + k that is F ≤ κ s³, as m(1 − m)(1 + m) is κ at most. A pair has
   three terms.
2. It received at least δ (2(s − s₀))⁺ words of Q, dO, K and V, and sent δ (E − E₀)⁺ of dQ, dK, dV
   at least, which are received elsewhere. A received pair costs a word for three terms, and λ ≤
   1/3: let x be without them.
3. To show: λ (x − X₀) ≤ δ (2(s − s₀)⁺ + (E − E₀)⁺), where x ≤ √(κ E s³) and x ≤ c. If s < s₀, E <
   E₀ or κ E s³ > c², move to where they are not: words get fewer, and x may be as large. Let μ(X)
   be the theorem's least sum with X in c's place. While s ≤ 3E₀/2 it is 2(s − s₀) with E = E₀, s =
   (X²/κE₀)^{1/3}; from there on 8s/3 − 2s₀ − E₀, with E = 2s/3 and s = (3X²/2κ)^{1/4}. Both are
   concave in X, with one slope, 4s/3X, where they meet; μ(X₀) ≥ 0 is where they begin. So μ(X)/(X −
   X₀) is least at c.
4. Sum over KV heads and devices, as in theorem 1. ∎

For large P the mesh sends 7/6.49 times as much: a box of pairs costs 7 sides, and the proof lets a
device touch other shares of dQ, dK and dV. Open: which of the two is right; a theorem 2 for
backward passes; a mask's shape.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import ceil, isqrt
from typing import Any

from flashsim.theory.bounds.words import SharedRows

SCALE = 2**20  # s is a whole number of 1/SCALE rows


@dataclass(frozen=True, kw_only=True)
class BackwardWordsBound(SharedRows):
    """No schedule of the class has its devices receive fewer than `words` words in all.

    free, s   X₀ and s of theorem 3
    up, down  its λ, as a fraction
    """

    free: int
    s: int
    up: int
    down: int
    words: int

    def certificate(self) -> dict[str, Any]:
        """Return what `flashsim.theory.bounds.words_certificate.check` checks."""
        numbers = asdict(self)
        del numbers["at_root"]
        return {"kind": "words over devices, backward", **numbers}


def words_bound_backward(rows: SharedRows) -> BackwardWordsBound:
    """Return the bound for a backward pass."""
    g = rows.group
    total = rows.pairs * rows.heads
    s_0 = g * rows.q + rows.n
    E_0 = g * rows.q + 2 * rows.n
    c = 3 * min(g * rows.pairs, rows.W)
    free = isqrt(isqrt(4 * E_0**2 * s_0**6 // 27)) + 1
    s = 0
    rate = Fraction(1, 3)
    if c > free:
        early = 256 * 243 * c**4 <= 16 * (3 * E_0) ** 8

        def too_large(s: int) -> bool:
            if early:
                return 4 * E_0**2 * s**6 > 27 * c**4 * SCALE**6
            return 16 * s**8 > 243 * c**4 * SCALE**8

        s = bisect_left(range(1, 2 * SCALE * (E_0 if early else isqrt(c) + 1)), True, key=too_large)
        in_rows = Fraction(s, SCALE)
        least = 2 * (in_rows - s_0) if early else 8 * in_rows / 3 - 2 * s_0 - E_0
        rate = min(rate, max(Fraction(0), min(rows.d, rows.d_v) * least / (c - free)))
    words = max(0, ceil(rate * (3 * total - rows.P * rows.kv_heads * free)))
    return BackwardWordsBound(
        **vars(rows), free=free, s=s, up=rate.numerator, down=rate.denominator, words=words
    )

"""Check a certificate of a lower bound on words over devices, by whole numbers and fractions alone.

    python -m flashsim.devices.certificate FILE

This file does not search, and imports nothing of flashsim: it can be judged by reading it, beside flashsim/devices/lower.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from fractions import Fraction
from math import isqrt
from typing import Any

SIZES = ("P", "N_q", "N_k", "d", "d_v", "heads", "kv_heads", "pairs", "W", "q", "n", "up", "down", "S", "Y", "words")


def check(certificate: Mapping[str, Any]) -> str:
    """Return what is proved, in a sentence. Raises ValueError for a certificate that proves nothing, and says why."""
    if certificate.get("kind") != "words over devices" or {*certificate} != {"kind", "at_root", *SIZES}:
        raise ValueError(f"it is not a certificate of words over devices, with {', '.join(SIZES)}, at_root")
    for name in SIZES:
        if type(certificate[name]) is not int or not 0 <= certificate[name] < 10**60:
            raise ValueError(f"{name} is {str(certificate[name])[:50]}; expected a whole number below 10⁶⁰")
    P, N_q, N_k, d, d_v, H_q, H_kv, pairs, W, q, n, up, down, S, Y, words = (certificate[name] for name in SIZES)
    at_root = certificate["at_root"]
    if (
        min(P, N_q, N_k, d, d_v, H_q, H_kv, n, down) < 1
        or H_q % H_kv
        or not pairs <= N_q * N_k
        or type(at_root) is not bool
    ):
        raise ValueError("there is no such problem")
    if P * n < N_k or H_q * pairs > P * W or (q if at_root else P * q < N_q):
        raise ValueError("devices have too few rows, or do too little, for the problem")
    sizes = (
        f"P = {P}, N_q = {N_q}, N_k = {N_k}, d = {d}, d_v = {d_v}, {H_q} query heads, {H_kv} KV heads, {pairs} pairs"
    )
    if Y:
        if Y <= S:
            raise ValueError(f"Y = {Y} with S = {S} proves nothing: expected Y > S")
        T = H_q * pairs * d_v  # a phase has Y²/16d terms at most, or (Y/3)^{3/2}
        phases = min(16 * d * T // Y**2, isqrt(27 * T**2 // Y**3))
        if words > (phases - P) * (Y - S) - H_q * N_q * d_v:
            raise ValueError(f"words are {words}; {phases} phases prove {(phases - P) * (Y - S) - H_q * N_q * d_v}")
        return f"Devices with room for {S} words receive at least {words} words in all ({sizes})"
    g, rate = H_q // H_kv, Fraction(up, down)
    if rate > 1 or not holds(rate, N_q, N_k, 2 * min(d, d_v), g, min(g * pairs, W), q, n):
        raise ValueError(f"λ = {rate} is too large")
    total = H_q * pairs - (W if at_root else P * H_q * q * n)
    if words > max(0, -(-total * up // down)):
        raise ValueError(f"words are {words}; λ = {rate} proves {max(0, -(-total * up // down))}")
    return f"Devices that do at most {W} pairs each receive at least {words} words in all ({sizes})"


def holds(rate: Fraction, N_q: int, N_k: int, two: int, g: int, c: int, q: int, n: int) -> bool:
    """Say whether rate·(αβ − gqn) ≤ two·((β − n) + (α − gq)) for n ≤ β ≤ N_k, gq ≤ α ≤ gN_q, αβ ≤ c.

    The difference is linear in α, and in β: it is enough to look at α = gq and at β = n, where it is a multiple of one side, at
    the farthest corner, if that is allowed, and along αβ = c, where times β it is a parabola in β.
    """
    a, b, most = g * q, n, g * N_q
    if c <= a * b:
        return True
    if (N_k > b and rate * a > two) or (most > a and rate * b > two):
        return False
    if most * N_k <= c:
        return rate * (most * N_k - a * b) <= two * (N_k - b + most - a)
    low, high = max(Fraction(b), Fraction(c, most)), min(Fraction(N_k), Fraction(c, a)) if a else Fraction(N_k)
    middle = rate * (c - a * b) / two + a + b  # β² − middle·β + c ≥ 0 is to hold from low to high

    def parabola(beta: Fraction) -> Fraction:
        return beta * beta - middle * beta + c

    inside = low < middle / 2 < high
    return min(parabola(low), parabola(high)) >= 0 and not (inside and middle * middle > 4 * c)


if __name__ == "__main__":
    try:
        with open(sys.argv[1], encoding="utf-8") as file:
            print(check(json.load(file)))
    except (OSError, ValueError, IndexError) as error:
        sys.exit(f"This proves nothing: {error}")

"""Check a certificate of a lower bound on words over devices, by whole numbers and fractions alone.

    python -m flashsim.theory.bounds.words_certificate FILE

This file does not search, and imports nothing of flashsim: it can be judged by reading it, beside
words.py and words_backward.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import ceil, isqrt
from typing import Any

SIZES = (
    "P",
    "N_q",
    "N_k",
    "d",
    "d_v",
    "heads",
    "kv_heads",
    "pairs",
    "W",
    "q",
    "n",
    "up",
    "down",
    "S",
    "Y",
    "words",
)


OF_BACKWARD = ({*SIZES} - {"S", "Y"}) | {"free", "s"}
SCALE = 2**20  # s of theorem 3 is a whole number of 1/SCALE


def check(certificate: Mapping[str, Any]) -> str:
    """Return what is proved, in a sentence. Raises ValueError for a certificate that proves
    nothing, and says why.
    """
    if certificate.get("kind") == "words over devices, backward" and {*certificate} == {
        "kind",
        *OF_BACKWARD,
    }:
        return _check_backward(certificate)
    if certificate.get("kind") != "words over devices" or {*certificate} != {
        "kind",
        "at_root",
        *SIZES,
    }:
        raise ValueError(
            f"it is not a certificate of words over devices, with {', '.join(SIZES)}, at_root"
        )
    _check_whole(certificate, SIZES)
    P, N_q, N_k, d, d_v, H_q, H_kv, pairs, W, q, n, up, down, S, Y, words = (
        certificate[name] for name in SIZES
    )
    at_root = certificate["at_root"]
    _check_problem(certificate)
    if type(at_root) is not bool:
        raise ValueError("there is no such problem")
    if P * n < N_k or H_q * pairs > P * W or (q if at_root else P * q < N_q):
        raise ValueError("devices have too few rows, or do too little, for the problem")
    sizes = _text(certificate)
    if Y:
        if Y <= S:
            raise ValueError(f"Y = {Y} with S = {S} proves nothing: expected Y > S")
        T = H_q * pairs * d_v  # a phase has Y²/16d terms at most, or (Y/3)^{3/2}
        phases = min(16 * d * T // Y**2, isqrt(27 * T**2 // Y**3))
        if words > (phases - P) * (Y - S) - H_q * N_q * d_v:
            raise ValueError(
                f"words are {words}; {phases} phases prove "
                f"{(phases - P) * (Y - S) - H_q * N_q * d_v}"
            )
        return f"Devices with room for {S} words receive at least {words} words in all ({sizes})"
    g = H_q // H_kv
    rate = Fraction(up, down)
    if rate > 1 or not holds(rate, N_q, N_k, 2 * min(d, d_v), g, min(g * pairs, W), q, n):
        raise ValueError(f"λ = {rate} is too large")
    total = H_q * pairs - (W if at_root else P * H_q * q * n)
    if words > max(0, -(-total * up // down)):
        raise ValueError(f"words are {words}; λ = {rate} proves {max(0, -(-total * up // down))}")
    return f"Devices that do at most {W} pairs each receive at least {words} words in all ({sizes})"


def _check_backward(certificate: Mapping[str, Any]) -> str:
    """Check theorem 3: X₀ and s by whole numbers, as κ² = 4/27, and λ by them."""
    _check_whole(certificate, OF_BACKWARD)
    _check_problem(certificate)
    P, H_q, H_kv, pairs, W, q, n = (
        certificate[name] for name in ("P", "heads", "kv_heads", "pairs", "W", "q", "n")
    )
    free = certificate["free"]
    s = certificate["s"]
    rate = Fraction(certificate["up"], certificate["down"])
    if P * n < certificate["N_k"] or P * q < certificate["N_q"] or H_q * pairs > P * W:
        raise ValueError("devices have too few rows, or do too little, for the problem")
    g = H_q // H_kv
    s_0 = g * q + n
    E_0 = g * q + 2 * n
    c = 3 * min(g * pairs, W)
    if 27 * free**4 < 4 * E_0**2 * s_0**6:
        raise ValueError(f"free is {free}, which is too few")
    if c > free:
        early = 256 * 243 * c**4 <= 16 * (3 * E_0) ** 8  # s is at most 3E₀/2, so E is E₀
        if 4 * E_0**2 * s**6 > 27 * c**4 * SCALE**6 if early else 16 * s**8 > 243 * c**4 * SCALE**8:
            raise ValueError(f"s = {s} / {SCALE} is too large")
        least = (
            2 * (Fraction(s, SCALE) - s_0) if early else Fraction(8 * s, 3 * SCALE) - 2 * s_0 - E_0
        )
        if rate * (c - free) > max(0, min(certificate["d"], certificate["d_v"]) * least):
            raise ValueError(f"λ = {rate} is too large")
    if 3 * rate > 1:
        raise ValueError(f"λ = {rate} is too large")
    proved = max(0, ceil(rate * (3 * H_q * pairs - P * H_kv * free)))
    if certificate["words"] > proved:
        raise ValueError(f"words are {certificate['words']}; λ = {rate} proves {proved}")
    doing = f"Devices that do at most {W} pairs each, backward,"
    return f"{doing} receive at least {certificate['words']} words in all ({_text(certificate)})"


def _text(of: Mapping[str, Any]) -> str:
    sizes = ", ".join(f"{name} = {of[name]}" for name in ("P", "N_q", "N_k", "d", "d_v"))
    return f"{sizes}, {of['heads']} query heads, {of['kv_heads']} KV heads, {of['pairs']} pairs"


def _check_problem(of: Mapping[str, Any]) -> None:
    least = min(
        of[name] for name in ("P", "N_q", "N_k", "d", "d_v", "heads", "kv_heads", "n", "down")
    )
    if least < 1 or of["heads"] % of["kv_heads"] or of["pairs"] > of["N_q"] * of["N_k"]:
        raise ValueError("there is no such problem")


def _check_whole(certificate: Mapping[str, Any], names: Iterable[str]) -> None:
    for name in names:
        if type(certificate[name]) is not int or not 0 <= certificate[name] < 10**60:
            raise ValueError(
                f"{name} is {str(certificate[name])[:50]}; expected a whole number below 10⁶⁰"
            )


def holds(rate: Fraction, N_q: int, N_k: int, two: int, g: int, c: int, q: int, n: int) -> bool:
    """Say whether rate·(αβ − gqn) ≤ two·((β − n) + (α − gq)) for n ≤ β ≤ N_k, gq ≤ α ≤ gN_q, αβ ≤
    c.

    The difference is linear in α, and in β: it is enough to look at α = gq and at β = n, where it
    is a multiple of one side, at the farthest corner, if that is allowed, and along αβ = c, where
    times β it is a parabola in β.
    """
    a = g * q
    b = n
    most = g * N_q
    if c <= a * b:
        return True
    if (N_k > b and rate * a > two) or (most > a and rate * b > two):
        return False
    if most * N_k <= c:
        return rate * (most * N_k - a * b) <= two * (N_k - b + most - a)
    low = max(Fraction(b), Fraction(c, most))
    high = min(Fraction(N_k), Fraction(c, a)) if a else Fraction(N_k)
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

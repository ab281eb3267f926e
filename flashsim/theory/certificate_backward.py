"""Check a certificate of `flashsim prove --backward`, by whole numbers alone.

    python -m flashsim.theory.certificate_backward FILE

This file does not search, and imports nothing of flashsim: it can be judged by reading it, beside
flashsim/theory/lower_backward.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from math import isqrt
from typing import Any

MOST_CELLS = 10**6
FINE = 40  # bits behind the point of 12√3 δ², which is rounded down
FIELDS = ("N_q", "N_k", "d", "d_v", "M", "pairs", "queries", "keys", "Y", "n", "H", "bound")


def check(certificate: Mapping[str, Any]) -> str:
    """Return what is proved, in a sentence. Raises ValueError for a certificate that proves nothing, and says why."""
    if not isinstance(certificate, Mapping) or certificate.get("direction") != "backward":
        raise ValueError("its direction is not 'backward'")
    for name in FIELDS:
        value = certificate.get(name)
        if type(value) is not int or not 0 <= value < 10**60:
            raise ValueError(f"{name} is {str(value)[:50]}; expected a whole number below 10⁶⁰")
    N_q, N_k, d, d_v, M, pairs, queries, keys, Y, n, H, bound = (int(certificate[name]) for name in FIELDS)
    if min(N_q - queries, N_k - keys, d - 1, d_v - 1, M - 1, pairs - queries, pairs - keys, queries * keys - pairs) < 0:
        raise ValueError("there is no such problem")
    allowed = certificate.get("allowed")
    if allowed == "all" and (pairs, queries, keys) != (N_q * N_k, N_q, N_k):
        raise ValueError(f"pairs are {pairs}; all allowed, they are {N_q * N_k}")
    if allowed == "causal":  # the last query attends to all keys, the one before it to one less, and so on
        rows = min(N_q, N_k)
        if (pairs, queries, keys) != (rows * N_k - rows * (rows - 1) // 2, rows, N_k):
            raise ValueError(f"pairs are {pairs}; causal, they are {rows * N_k - rows * (rows - 1) // 2}")
    compulsory = (queries + keys) * (d + d_v) + N_q * d + N_k * (d + d_v)
    if bound <= compulsory:
        how = "Every input that matters is read once, and every output written once"
    else:
        how = by_phases(min(d, d_v), M, pairs * (2 * d + d_v), Y, n, H, bound)
    given = allowed if allowed in ("all", "causal") else f"{pairs} allowed pairs, taken as given"
    sizes = f"N_q = {N_q}, N_k = {N_k}, d = {d}, d_v = {d_v}, M = {M}, {given}"
    return f"{how}: no backward schedule moves fewer than {bound} elements ({sizes})"


def by_phases(delta: int, M: int, T: int, Y: int, n: int, H: int, bound: int) -> str:
    """Return how n phases prove the bound. Raises ValueError if they do not."""
    if n < 2 or Y <= M:
        raise ValueError(f"n = {n} phases of Y = {Y} with M = {M} prove nothing: expected n ≥ 2 and Y > M")
    if bound > Y + (n - 2) * (Y - M):
        raise ValueError(f"bound is {bound}; {n} phases of Y = {Y} prove {Y + (n - 2) * (Y - M)}")
    if (n - 1) ** 2 * H >= T * T:
        raise ValueError(f"{n - 1} phases are enough for {T} terms, if each may have √H, H = {H}")
    if not most_in_a_phase(Y, delta, H):
        raise ValueError(f"a phase may have more than √H terms, H = {H}")
    return f"There are at least {n} phases, which touch {Y} elements each and have at most √H terms, H = {H}"


def most_in_a_phase(Y: int, delta: int, H: int) -> bool:
    """Say whether (Y − A − c)(A³/(12√3 δ²) + A c) ≤ H for all whole A, c ≥ 0 with A + c ≤ Y.

    With P = Y − A, W = A²/(12√3 δ²) it is A(P − c)(W + c): at most A(P + W)²/4; at most A·P·W where W ≥ P. In a cell of A it
    is at most what the upper end gives, P taken at the lower one. What exceeds H is halved; a single A that does is a
    counterexample, but for rounding, and what takes too many cells is not shown either.
    """
    root = isqrt(432 * delta**4 << (2 * FINE))  # 12√3 δ², in units of 2^−FINE
    cells, left = [(0, Y)], MOST_CELLS
    while cells:
        left -= 1
        low, high = cells.pop()
        P, W = (Y - low) * root, high * high << FINE  # both times root
        wide = low**4 >= 432 * delta**4 * (Y - low) ** 2  # W ≥ P at the lower end, so in all of the cell
        if (high * (Y - low) * W <= H * root) if wide else (high * (P + W) ** 2 <= 4 * H * root**2):
            continue
        if low == high or not left:
            return False
        middle = (low + high) // 2
        cells += [(low, middle), (middle + 1, high)]
    return True


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        print(check(json.load(file)))

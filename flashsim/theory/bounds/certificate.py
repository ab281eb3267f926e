"""Check a certificate of `flashsim prove`, forward or backward, by whole numbers alone.

    python -m flashsim.theory.bounds.certificate FILE

This file does not search, and imports nothing of flashsim: it can be judged by reading it, beside
flashsim/theory/bounds/forward.py, backward.py and rows.py.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from math import isqrt
from typing import Any

MOST_CELLS = 10**6
SIZES = ("N_q", "N_k", "d", "d_v", "M", "pairs", "queries", "keys", "bound")
PHASES = {"forward": ("Y", "n", "last", "a", "b", "H"), "backward": ("Y", "n", "last", "H", "rows")}
MADE = {"command", "made_with"}
WORDS = ("direction", "class", "allowed", "schedule")


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of an object in JSON, as its object_pairs_hook. Raises ValueError for a
    field that is there twice.
    """
    held = dict(pairs)
    if len(held) < len(pairs):
        raise ValueError(
            "it has a field twice: "
            f"{Counter(name for name, _ in pairs).most_common(1)[0][0][:50]!r}"
        )
    return held


def check_fields(certificate: Mapping[str, Any], kind: str, names: Iterable[str]) -> None:
    """Raise ValueError unless a certificate is of this kind and has exactly these fields,
    besides how it was made.
    """
    if certificate.get("kind") != kind:
        raise ValueError(f"its kind is {str(certificate.get('kind'))[:50]!r}; expected {kind!r}")
    expected = {"kind", *names}
    fields = {*certificate} - MADE
    for name in sorted(map(str, expected ^ fields)):
        raise ValueError(
            f"it has no {name}"
            if name in expected
            else f"it has {name[:50]!r}; expected {', '.join(sorted(expected))}"
        )


def check(certificate: Mapping[str, Any]) -> str:
    """Return what is proved, in a sentence. Raises ValueError for a certificate that proves
    nothing, and says why.
    """
    direction = certificate.get("direction") if isinstance(certificate, Mapping) else None
    if direction not in ("forward", "backward"):
        raise ValueError("its direction is not 'forward' or 'backward'")
    check_fields(certificate, "lower bound", (*SIZES, *PHASES[direction], *WORDS))
    for name in (*SIZES, *PHASES[direction]):
        value = certificate.get(name)
        if type(value) is not int or not 0 <= value < 10**60:
            raise ValueError(f"{name} is {str(value)[:50]}; expected a whole number below 10⁶⁰")
    N_q, N_k, d, d_v, M, pairs, queries, keys, bound = (int(certificate[name]) for name in SIZES)
    Y, n, last, *most = (int(certificate[name]) for name in PHASES[direction])
    of_game = most.pop() if direction == "backward" else 0
    if (
        min(
            N_q - queries,
            N_k - keys,
            d - 1,
            d_v - 1,
            M - 1,
            pairs - queries,
            pairs - keys,
            queries * keys - pairs,
        )
        < 0
    ):
        raise ValueError("there is no such problem")
    allowed = certificate["allowed"]
    if allowed not in ("all", "causal", "given"):
        raise ValueError(f"allowed is {str(allowed)[:50]!r}; expected 'all', 'causal' or 'given'")
    if allowed == "all" and (pairs, queries, keys) != (N_q * N_k, N_q, N_k):
        raise ValueError(f"pairs are {pairs}; all allowed, they are {N_q * N_k}")
    # the last query attends to all keys, the one before it to one less, and so on
    if allowed == "causal":
        rows = min(N_q, N_k)
        if (pairs, queries, keys) != (rows * N_k - rows * (rows - 1) // 2, rows, N_k):
            raise ValueError(
                f"pairs are {pairs}; causal, they are {rows * N_k - rows * (rows - 1) // 2}"
            )
    read = queries * d + keys * (d + d_v)
    written = N_q * d_v
    if direction == "backward":  # dO is read, too
        read = read + queries * d_v
        written = N_q * d + N_k * (d + d_v)
    if bound <= read + written:
        how = "Every input that matters is read once, and every output written once"
    elif n < 2 or Y <= M:
        raise ValueError(
            f"n = {n} phases of Y = {Y} with M = {M} prove nothing: expected n ≥ 2 and Y > M"
        )
    elif bound > Y + (n - 2) * (Y - M) + last:
        proved = (
            f"{n} phases of Y = {Y}, with {last} charges in the last, prove "
            f"{Y + (n - 2) * (Y - M) + last}"
        )
        raise ValueError(f"bound is {bound}; {proved}")
    elif direction == "forward":
        how = by_phases(d, d_v, M, pairs, Y, n, last, *most)
    else:
        how = by_phases_backward(min(d, d_v), M, pairs * (2 * d + d_v), Y, n, last, *most)
    if of_game > (least := of_rows(min(d, d_v), M, pairs, queries, keys)):
        raise ValueError(
            f"rows is {of_game}; the theorem of flashsim/theory/bounds/rows.py proves {least}"
        )
    pairs_text = f"{pairs} allowed pairs, taken as given" if allowed == "given" else allowed
    sizes = f"N_q = {N_q}, N_k = {N_k}, d = {d}, d_v = {d_v}, M = {M}, {pairs_text}"
    backward = "backward " if direction == "backward" else ""
    more = f", and none of the row game fewer than {of_game}" if of_game > bound else ""
    return f"{how}: no {backward}schedule moves fewer than {bound} elements{more} ({sizes})"


def by_phases(
    d: int, d_v: int, M: int, pairs: int, Y: int, n: int, last: int, a: int, b: int, H: int
) -> str:
    """Return how it is known that there are n phases, the last with so many charges, by weights a,
    b and H.

    Raises ValueError if fewer may do. A last phase of last − 1 charges touches M + last − 1
    elements.
    """
    if b < 1:
        raise ValueError(f"b is {b}; expected a weight of at least 1")
    T = pairs * d_v
    work = pairs * (a * d + b * d_v)
    if not a and not H:
        if (n - 1) * most_terms(d, Y) >= T:
            raise ValueError(f"{n - 1} phases of Y = {Y} are enough: they may have all {T} terms")
        if last > 1 and (n - 1) * most_terms(d, Y) + most_terms(d, M + last - 1) >= T:
            raise ValueError(
                f"a last phase of {last - 1} charges is enough: it may have the terms that are left"
            )
        return (
            f"There are at least {n} phases, which touch {Y} elements each, and the last has "
            f"{last} charges"
        )
    if (n - 1) * H >= work:
        raise ValueError(f"{n - 1} phases are enough, if each may give H = {H}")
    if not most_in_a_phase(Y, d, M, a, b, H):
        raise ValueError(f"a phase may give more than H = {H}")
    if last > 1 and not most_in_a_phase(M + last - 1, d, M, a, b, work - (n - 1) * H - 1):
        raise ValueError(
            f"a last phase of {last - 1} charges is enough: it may give the {work - (n - 1) * H} "
            "left"
        )
    return (
        f"There are at least {n} phases, which touch {Y} elements each and multiply no more than H "
        f"= {H} allows, "
        f"and the last has {last} charges"
    )


def most_terms(d: int, Y: int) -> int:
    """Return the most terms of a phase that touches Y elements: Y²/16d, or (Y/3)^{3/2}; or one,
    that there be an end.
    """
    return max(Y**2 // (16 * d), isqrt(Y**3 // 27), 1)


def most_in_a_phase(Y: int, d: int, M: int, a: int, b: int, H: int) -> bool:
    """Say whether a·s/2·√(s²/4d² + c + M) + b·t/2·√(s²/4d² + c) ≤ H for all whole s, t, c ≥ 0 with
    s + t + c ≤ Y.

    In a cell of s and c it is at most what the upper corner gives, with t from the lower one. What
    exceeds H is halved; a single point that does is a counterexample, as far as roots are rounded
    up. What takes too many cells is not shown either.
    """
    fine = 20  # bits behind the point of roots

    def root_up(x: int) -> int:  # in units of 2^−fine
        return isqrt(x << (2 * fine)) + 1

    cells = [(0, Y, 0, Y)]
    left = MOST_CELLS
    while cells and left:
        left -= 1
        s0, s1, c0, c1 = cells.pop()
        t = Y - s0 - c0
        one = a * s1 * root_up(s1 * s1 + 4 * d * d * (c1 + M))
        if t < 0 or one + b * t * root_up(s1 * s1 + 4 * d * d * c1) <= (4 * d * H) << fine:
            continue
        if (s0, c0) == (s1, c1):
            return False
        s = (s0 + s1) // 2
        c = (c0 + c1) // 2
        wide = s1 - s0 >= c1 - c0
        cells += (
            [(s0, s, c0, c1), (s + 1, s1, c0, c1)]
            if wide
            else [(s0, s1, c0, c), (s0, s1, c + 1, c1)]
        )
    return not cells


def by_phases_backward(delta: int, M: int, T: int, Y: int, n: int, last: int, H: int) -> str:
    """Return the same of T terms backward, by H."""
    if (n - 1) ** 2 * H >= T * T:
        raise ValueError(f"{n - 1} phases are enough for {T} terms, if each may have √H, H = {H}")
    if not most_in_a_phase_backward(Y, delta, H):
        raise ValueError(f"a phase may have more than √H terms, H = {H}")
    left = T - (n - 1) * isqrt(H)
    if last > 1 and not most_in_a_phase_backward(M + last - 1, delta, left**2 - 1):
        raise ValueError(
            f"a last phase of {last - 1} charges is enough: it may have the {left} terms left"
        )
    return (
        f"There are at least {n} phases, which touch {Y} elements each and have at most √H terms, "
        f"H = {H}, "
        f"and the last has {last} charges"
    )


def most_in_a_phase_backward(Y: int, delta: int, H: int) -> bool:
    """Say whether (Y − A − c)(A³/(12√3 δ²) + A c) ≤ H for all whole A, c ≥ 0 with A + c ≤ Y.

    With P = Y − A, W = A²/(12√3 δ²) it is A(P − c)(W + c): at most A(P + W)²/4; at most A·P·W where
    W ≥ P. In a cell of A it is at most what the upper end gives, P taken at the lower one. A cell
    that exceeds H is halved. A single A that exceeds it is, apart from rounding, a counterexample.
    What takes too many cells is not shown either.
    """
    fine = 40  # bits behind the point
    root = isqrt(432 * delta**4 << (2 * fine))  # 12√3 δ², rounded down, in units of 2^−fine
    cells = [(0, Y)]
    left = MOST_CELLS
    while cells and left:
        left -= 1
        low, high = cells.pop()
        # both times root
        P = (Y - low) * root
        W = high * high << fine
        # W ≥ P at the lower end, so in all of the cell
        wide = low**4 >= 432 * delta**4 * (Y - low) ** 2
        if (high * (Y - low) * W <= H * root) if wide else (high * (P + W) ** 2 <= 4 * H * root**2):
            continue
        if low == high:
            return False
        middle = (low + high) // 2
        cells += [(low, middle), (middle + 1, high)]
    return not cells


def of_rows(delta: int, M: int, pairs: int, queries: int, keys: int) -> int:
    """Return the bound of flashsim/theory/bounds/rows.py; 0 where it says nothing, as where five
    rows do not fit.
    """
    m = M // delta
    return max(delta * (-(-14 * pairs // (m - 1)) - queries - 2 * keys), 0) if m > 4 else 0


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        print(check(json.load(file, object_pairs_hook=once)))

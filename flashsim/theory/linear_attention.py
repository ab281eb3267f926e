"""Linear attention in chunks of C: its forms. The state on chip moves the compulsory traffic, at every N and M that fit.

The peaks, for d·e of a state S, of which two passes hold two, S^new and S_i:

    linear_attention           d·e + 2c(d + e) + c²    S, Q_i K_i V_i O_i, A_i
    linear_attention_two_pass  2d·e + 2c(d + e) + c²
    linear_attention_buffered  d·e + 2(d + e)          S, q_t k_s v_s o_t; without S in one chunk

Buffered, a token reads the keys of its chunk up to its own, and the state that all earlier chunks left, which each chunk but
the last writes.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

from flashsim.problem.shapes import Sizes
from flashsim.theory.program import Moved, ProgramForm, between, given, returned


def chunk_rows(M: int, p: Sizes) -> int:
    """Return the largest C with (C + d + e)² ≤ M + (d + e)² − d·e, at least 1."""
    w = p.d + p.e
    C = isqrt(max(M + w * w - p.d * p.e, 0)) - w
    return C if C > 1 else 1


def products(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """Q_i K_iᵀ and A_i V_i in each chunk, 2c²(d + e); Q_i S and K_iᵀ V_i, 2·c·d·e each."""
    whole, rest = divmod(p.N, b.C)
    return 2 * (whole * b.C**2 + rest**2) * (p.d + p.e) + 4 * p.N * p.d * p.e


ON_CHIP = ProgramForm(
    name="linear_attention", blocks={"C": "N"}, line_1=lambda rows, p: (rows,), rows=chunk_rows,
    arrays={"Q": given("N", "d"), "K": given("N", "d"), "V": given("N", "e"), "O": returned("N", "e")},
    peak=lambda p, b, options: p.d * p.e + 2 * b.C * (p.d + p.e) + b.C**2, matmul=products,
)
TWO_PASS = replace(
    ON_CHIP,
    name="linear_attention_two_pass",
    arrays={
        "Q": given("N", "d"), "K": given("N", "d", reads="2"), "V": given("N", "e", reads="2"),
        "S": between("T·d", "e", "chip"), "O": returned("N", "e"),
    },
    rows=lambda M, p: chunk_rows(M - p.d * p.e, p),
    peak=lambda p, b, options: 2 * p.d * p.e + 2 * b.C * (p.d + p.e) + b.C**2,
)


def buffered(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> dict[str, Moved]:
    """Return what moves of K, V and S."""
    met, later = _met(p, b), p.N - min(b.C, p.N)
    return {"K": Moved(met * p.d), "V": Moved(met * p.e), "S": Moved(later * p.d * p.e, (b.T - 1) * p.d * p.e)}


def waiting(p: Sizes) -> int:
    """Return the C that makes d·e/C + C(d + e)/2 least: one more makes it no less."""
    C = 1
    while 2 * p.d * p.e >= C * (C + 1) * (p.d + p.e):
        C += 1
    return C


def _met(p: Sizes, b: Sizes) -> int:
    """Return how many keys the tokens meet in their chunks."""
    whole, rest = divmod(p.N, b.C)
    return (whole * b.C * (b.C + 1) + rest * (rest + 1)) // 2


def _buffered_products(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """(q_t k_sᵀ) v_s for what meets, q_t S after the first chunk, k_sᵀ v_s before the last."""
    folded = (p.N - 1) // b.C * b.C
    return 2 * _met(p, b) * (p.d + p.e) + 2 * (p.N - min(b.C, p.N) + folded) * p.d * p.e


BUFFERED = ProgramForm(
    name="linear_attention_buffered", blocks={"C": "N"}, line_1=lambda rows, p: (min(waiting(p), rows),),
    rows=lambda M, p: p.N,
    arrays={
        "Q": given("N", "d"), "K": given("N", "d"), "V": given("N", "e"), "S": between("d", "e", "chip"),
        "O": returned("N", "e"),
    },
    traffic=buffered, peak=lambda p, b, options: 2 * (p.d + p.e) + p.d * p.e * (b.C < p.N), matmul=_buffered_products,
)

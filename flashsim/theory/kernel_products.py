"""Kernel products: line 1, and Theorem 2 carried over, with constants derived.

Throughout w = d + e, the width of a row of X and Y together, or of Z and V; e is 1 under a log-sum-exp.
"""

from __future__ import annotations

from flashsim.checking import check_count
from flashsim.records import Sizes
from flashsim.theory.problem import ceil_div


def kernel_rows(M: int, p: Sizes) -> int:
    """Return ⌈M/2w⌉."""
    return ceil_div(M, 2 * (p.d + p.get("e", 1)))


def x_line_1(rows: int, p: Sizes) -> tuple[int, int]:
    """Return (B_r, B_c), X stationary."""
    return rows, min(rows, ceil_div(p.d + p.get("e", 1), 2))


def z_line_1(rows: int, p: Sizes) -> tuple[int, int]:
    """Return (B_r, B_c), Z stationary."""
    return min(rows, ceil_div(p.d + p.get("e", 1), 2)), rows


def kernel_product_bound(N: int, n: int, d: int, e: int, M: int) -> float:
    """Return N·n·w²/M: what Theorem 2's N²d²/M is for a kernel product. Raises ValueError for what is no size."""
    for name, size in (("N", N), ("n", n), ("d", d), ("e", e), ("M", M)):
        check_count(name, size)
    return N * n * (d + e) ** 2 / M


def kernel_product_constants(order: str) -> tuple[float, float]:
    """Return c₁ ≤ accesses / bound ≤ c₂ with line 1's blocks, for every N, n, d, e and 2w ≤ M ≤ w·min(N, n).

    The bound is X = N·n·w²/M for "x_outer" and "z_outer"; for "materialised", where M ≥ w² besides, it is N·n + (N + n)w.
    Let B = ⌈M/2w⌉ be the stationary block's rows, and T the number of such blocks, of N rows or of n.

    As M ≥ 2w, B < M/2w + 1 ≤ M/w. So T ≥ N/B ≥ Nw/M for X stationary, and T·n·w ≥ X.
    As B ≥ M/2w, T < 2Nw/M + 1, and T·n·w < 2X + nw. As M ≤ w·min(N, n), Nw ≤ X and nw ≤ X.

    x_outer       Nw + T·nw: at least X; at most Nw + 2X + nw ≤ 4X.
    z_outer       T·N(d + 2e) + nw + Ne, and w ≤ d + 2e ≤ 2w: at least X; at most 4X + 2Nw + nw + Ne ≤ 8X.
    materialised  Nw + T·nw + 2Nn: at least Nn + (N + n)w, as T ≥ 1; at most, as M ≥ w² makes 2X ≤ 2Nn, 4Nn + (N + n)w.
    """
    constants = {"x_outer": (1.0, 4.0), "z_outer": (1.0, 8.0), "materialised": (1.0, 4.0)}
    if order not in constants:
        raise ValueError(f"order is {order!r}; expected {' or '.join(map(repr, constants))}")
    return constants[order]

"""Kernel products: line 1, and Theorem 2 carried over, with constants derived.

Throughout w = d + e, the width of a row of X and Y together, or of Z and V; e is 1 under a log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Mapping

from flashsim.checking import check_count
from flashsim.matrices import Kind
from flashsim.records import Role, Sizes
from flashsim.theory.problem import ceil_div

POINTS: Mapping[str, tuple[Role, Kind]] = {
    "X": ("input", Kind("N", "d")), "Z": ("input", Kind("n", "d")), "V": ("input", Kind("n", "e"))
}  # fmt: skip
WEIGHTED: Mapping[str, tuple[Role, Kind]] = {**POINTS, "V": ("input", Kind("n", "1"))}
"""Operands; V one column of weights."""


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


def kernel_x_outer_constants() -> tuple[float, float]:
    """Return c₁ ≤ accesses / (N·n·w²/M) ≤ c₂ for a kernel product, w = d + e, rows of X outermost, 2w ≤ M ≤ w·min(N, n).

    Accesses are Nw + T·nw, T = ⌈N/B⌉, with B = ⌈M/2w⌉ rows a block. Write X = N·n·w²/M; as M ≤ w·min(N, n), Nw and nw ≤ X.
    Below: as M ≥ 2w, B < M/2w + 1 ≤ M/w. So T ≥ N/B > Nw/M, and T·nw > X.
    Above: as B ≥ M/2w, T < 2Nw/M + 1, and T·nw < 2X + nw:  in all 2X + nw + Nw ≤ 4X.
    """
    return 1.0, 4.0


def kernel_z_outer_constants() -> tuple[float, float]:
    """Return c₁ ≤ accesses / (N·n·w²/M) ≤ c₂ for a kernel product, w = d + e, rows of Z outermost, 2w ≤ M ≤ w·min(N, n).

    Accesses are T·N(d + 2e) + nw + Ne, T = ⌈n/B⌉, and w ≤ d + 2e ≤ 2w. With X and B as for X outermost,
    Below: T > nw/M, so T·N(d + 2e) > X.
    Above: T < 2nw/M + 1, so T·N(d + 2e) < 4X + 2Nw:  in all 4X + 2Nw + nw + Ne ≤ 8X.
    """
    return 1.0, 8.0


def kernel_materialised_constants() -> tuple[float, float]:
    """Return c₁ ≤ accesses / (N·n + (N + n)w) ≤ c₂ for a kernel product, w = d + e, its matrix in HBM, M ≥ w².

    Accesses are Nw + T·nw + 2N·n, T = ⌈N/B⌉, with B = ⌈M/2w⌉ rows a block, or N.
    Below: T ≥ 1, so at least (N + n)w + 2N·n.
    Above: T < 2Nw/M + 1, so T·nw < 2N·n·w²/M + nw ≤ 2N·n + nw:  in all 4N·n + (N + n)w.
    """
    return 1.0, 4.0

"""Kernel products: their forms, and Theorem 2 carried over, with constants derived.

Throughout w = d + e, the width of a row of X and Y together, or of Z and V. The peaks:

    x_outer, z_outer  (b_r + b_c)w + b_r·b_c            X_i Y_i Z_j V_j, K_ij
    materialised      (b_r + b_c)·max(d, e) + b_r·b_c   K_ij with X_i Z_j, and then with Y_i V_j
    gradient          b_r(2d + e) + b_c·w + b_r·b_c     X_i dX_i dY_i, Z_j V_j, dK_ij
"""

from __future__ import annotations

from dataclasses import replace

from flashsim.attention.arguments import check_count
from flashsim.attention.matrices import Kind
from flashsim.attention.shapes import Sizes
from flashsim.theory.matrices import Array, MatrixForm, between, given, returned
from flashsim.theory.problem import ceil_div


def kernel_rows(M: int, p: Sizes) -> int:
    """Return ⌈M/2w⌉."""
    return ceil_div(M, 2 * (p.d + p.e))


def z_line_1(rows: int, p: Sizes) -> tuple[int, int]:
    """Return (B_r, B_c), Z stationary."""
    return min(rows, ceil_div(p.d + p.e, 2)), rows


BY_X = {"X": given("N", "d"), "Z": given("n", "d", reads="T_r"), "V": given("n", "e", reads="T_r")}
BY_Z = {"X": given("N", "d", reads="T_c"), "Z": given("n", "d"), "V": given("n", "e")}

X_OUTER = MatrixForm(
    name="kernel_x_outer",
    blocks={"B_r": "N", "B_c": "n"},
    line_1=lambda rows, p: (rows, min(rows, ceil_div(p.d + p.e, 2))),
    rows=kernel_rows,
    arrays={**BY_X, "Y": returned("N", "e")},
    peak=lambda p, b, options: (b.B_r + b.B_c) * (p.d + p.e) + b.B_r * b.B_c,
    matmul=lambda p, b, options: 2 * p.N * p.n * p.e,
)
Z_OUTER = replace(
    X_OUTER,
    name="kernel_z_outer",
    arrays={**BY_Z, "Y": Array("output", Kind("N", "e"), "T_c", "T_c + 1", initial=True)},
    line_1=z_line_1,
)
MATERIALISED = replace(
    X_OUTER,
    name="kernel_materialised",
    arrays={**X_OUTER.arrays, "K": between("N", "n")},
    peak=lambda p, b, options: (b.B_r + b.B_c) * max(p.d, p.e) + b.B_r * b.B_c,
)
GRADIENT = replace(
    X_OUTER,
    name="kernel_gradient",
    direction="backward",
    arrays={**BY_X, "dY": given("N", "e"), "dX": returned("N", "d")},
    peak=lambda p, b, options: b.B_r * (2 * p.d + p.e) + b.B_c * (p.d + p.e) + b.B_r * b.B_c,
)


def kernel_product_bound(N: int, n: int, d: int, e: int, M: int) -> float:
    """Return N·n·w²/M: what Theorem 2's N²d²/M is for a kernel product. Raises ValueError for
    what is not a size.
    """
    for name, size in (("N", N), ("n", n), ("d", d), ("e", e), ("M", M)):
        check_count(name, size)
    return N * n * (d + e) ** 2 / M


def kernel_x_outer_constants() -> tuple[float, float]:
    """Return c₁ ≤ accesses / (N·n·w²/M) ≤ c₂ for a kernel product, w = d + e, rows of X outermost,
    2w ≤ M ≤ w·min(N, n).

    Accesses are Nw + T·nw, T = ⌈N/B⌉, with B = ⌈M/2w⌉ rows a block. Write X = N·n·w²/M; as M ≤
    w·min(N, n), Nw and nw ≤ X.
    Below: as M ≥ 2w, B < M/2w + 1 ≤ M/w. So T ≥ N/B > Nw/M, and T·nw > X.
    Above: as B ≥ M/2w, T < 2Nw/M + 1, and T·nw < 2X + nw:  in all 2X + nw + Nw ≤ 4X.
    """
    return 1.0, 4.0


def kernel_z_outer_constants() -> tuple[float, float]:
    """Return c₁ ≤ accesses / (N·n·w²/M) ≤ c₂ for a kernel product, w = d + e, rows of Z outermost,
    2w ≤ M ≤ w·min(N, n).

    Accesses are T·N(d + 2e) + nw + Ne, T = ⌈n/B⌉, and w ≤ d + 2e ≤ 2w. With X and B as for X
    outermost,
    Below: T > nw/M, so T·N(d + 2e) > X.
    Above: T < 2nw/M + 1, so T·N(d + 2e) < 4X + 2Nw:  in all 4X + 2Nw + nw + Ne ≤ 8X.
    """
    return 1.0, 8.0


def kernel_materialised_constants() -> tuple[float, float]:
    """Return c₁ ≤ accesses / (N·n + (N + n)w) ≤ c₂ for a kernel product, w = d + e, its matrix in
    HBM, M ≥ w².

    Accesses are Nw + T·nw + 2N·n, T = ⌈N/B⌉, with B = ⌈M/2w⌉ rows a block, or N.
    Below: T ≥ 1, so at least (N + n)w + 2N·n.
    Above: T < 2Nw/M + 1, so T·nw < 2N·n·w²/M + nw ≤ 2N·n + nw:  in all 4N·n + (N + n)w.
    """
    return 1.0, 4.0

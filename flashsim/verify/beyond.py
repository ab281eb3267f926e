"""Appendix D.2: what the paper's tiling extends to. Figure 3: what it is compared with."""

from __future__ import annotations

from typing import Any

import numpy as np

from flashsim import approximate, kernels, reference, theory
from flashsim.reference import kernel_gradient, kernel_gradient_bounds, kernel_product, kernel_product_bounds, of_bound
from flashsim.theory import kernel_product_bound, kernel_x_outer_constants
from flashsim.verify.claim import Claim


def kernel_products_exact(full: bool) -> Claim:
    """Kernel products and their gradients, tiled, are the naive ones, and cost what the closed forms say."""
    rng = np.random.default_rng(10)
    runs, worst, equal = 300 if full else 60, 0.0, True
    for number in range(runs):
        N, n, d, e = (int(size) for size in rng.integers(1, (60, 60, 6, 4)))
        order, kernel = [*kernels.ORDERS][number % 3], ("gaussian", "laplace", "cauchy")[number // 3 % 3]
        how: dict[str, Any] = {"kernel": kernel, "sigma": float(rng.uniform(0.3, 3))}
        X, Z, V, dY = (rng.normal(size=size) for size in ((N, d), (n, d), (n, e), (N, e)))
        blocks = int(rng.integers(1, 30)), int(rng.integers(1, 30))
        T_c = -(-n // blocks[1])
        run = kernels.product(X, Z, V, order=order, blocks=blocks, **how)
        back = kernels.gradient(run, dY, blocks=blocks)
        bound = kernel_product_bounds(X, Z, V, order=order, blocks=T_c, **how)
        worst = max(worst, of_bound(run.Y, kernel_product(X, Z, V, **how), bound))
        bound = kernel_gradient_bounds(X, Z, V, dY, blocks=T_c, **how)
        worst = max(worst, of_bound(back.dX, kernel_gradient(X, Z, V, dY, **how), bound))
        sizes: dict[str, Any] = {"N": N, "n": n, "d": d, "e": e, "blocks": blocks, "dtype": "float64"}
        for made, exact in (
            (run, kernels.exact(order=order, **sizes)),
            (back, kernels.exact(direction="backward", **sizes)),
        ):
            equal &= (made.hbm, made.sram) == (exact.hbm, exact.sram)
    return Claim(
        "Appendix D.2",
        "kernel products and their gradients, in tiles, are the naive ones",
        f"{runs} products in three orders, three kernels, N, n ≤ 60, d ≤ 6",
        f"largest error {worst:.2f} of the bound; counts {'equal' if equal else 'DIFFER FROM'} the closed forms",
        worst <= 1.0 and bool(equal),
        {"runs": runs, "worst_error_over_bound": worst, "counts_equal": bool(equal)},
    )


def kernel_products_bounds(full: bool) -> Claim:
    """Theorem 2 carries over: Θ(N·n·w²/M) accesses and no extra memory, w = d + e, with constants derived."""
    rng = np.random.default_rng(11)
    points, low, high, extra = 5_000 if full else 500, np.inf, 0.0, 0
    for _ in range(points):
        d, e = (int(width) for width in rng.integers(1, 65, size=2))
        w, N, n = d + e, int(10 ** rng.uniform(2, 6)), int(10 ** rng.uniform(2, 6))
        M = int(np.exp(rng.uniform(np.log(2 * w), np.log(w * min(N, n)))))
        moved = kernels.exact(N=N, n=n, d=d, e=e, M=M, sizing="paper").hbm
        ratio = moved.accesses / kernel_product_bound(N, n, d, e, M)
        low, high, extra = min(low, ratio), max(high, ratio), max(extra, moved.extra)
    c1, c2 = kernel_x_outer_constants()
    return Claim(
        "Appendix D.2",
        "a kernel product makes Θ(N·n·w²/M) accesses, w = d + e, and needs no extra memory",
        f"{points:,} points, d, e ≤ 64, N, n 10² … 10⁶, 2w ≤ M ≤ w·min(N, n)",
        f"between {low:.2f} and {high:.2f} times that; derived {c1:g} and {c2:g}; extra memory {extra}",
        c1 <= low <= high <= c2 and extra == 0,
        {"points": points, "least": float(low), "most": high, "extra": extra},
    )


def approximations_exact(full: bool) -> Claim:
    """Linformer and Performer, in tiles, are their own formulas, and cost what the closed forms say."""
    rng = np.random.default_rng(12)
    runs, worst, equal = 400 if full else 80, 0.0, True
    for number in range(runs):
        N, d, e, k = (int(size) for size in rng.integers(1, (60, 9, 9, 30)))
        Q, K, V = (rng.normal(size=size) for size in ((N, d), (N, d), (N, e)))
        B_r, B_c, B_e, B_k = (int(size) for size in rng.integers(1, 30, size=4))
        blocks, parts = (B_r, B_c, B_e, B_k), (-(-N // B_c), -(-k // B_k))
        if number % 2:
            phi = "in_hbm" if number % 4 == 1 else "on_chip"
            method, more = approximate.PHI[phi], [approximate.features(k, d, seed=number)]
            run = approximate.performer(Q, K, V, *more, phi=phi, blocks=blocks)
            bound = reference.performer_bounds(Q, K, V, *more, phi=phi, blocks=parts)
            worst = max(worst, of_bound(run.O, reference.performer(Q, K, V, *more), bound))
        else:
            method, more = "linformer", [*rng.normal(size=(2, k, N))]
            run = approximate.linformer(Q, K, V, *more, blocks=blocks)
            bound = reference.linformer_bounds(Q, K, V, *more, blocks=parts).O
            worst = max(worst, of_bound(run.O, reference.linformer(Q, K, V, *more).O, bound))
        exact = approximate.exact(method, N=N, d=d, e=e, k=k, blocks=blocks, dtype="float64")
        equal &= (run.hbm, run.sram) == (exact.hbm, exact.sram)
    return Claim(
        "Figure 3",
        "Linformer and Performer, in tiles, are their own formulas",
        f"{runs} runs, N ≤ 59, d, e ≤ 8, k ≤ 29",
        f"largest error {worst:.2f} of the bound; counts {'equal' if equal else 'DIFFER FROM'} the closed forms",
        worst <= 1.0 and bool(equal),
        {"runs": runs, "worst_error_over_bound": worst, "counts_equal": bool(equal)},
    )


def approximations_cross(full: bool) -> Claim:
    """Linformer and Performer move less than exact attention from about the N on from which their measured runtimes are less."""
    step, last = 16 if full else 64, 4096
    first: dict[str, int] = {}
    for M in (25_600, 49_152):
        for method in approximate.METHODS:
            for name in ("flash", "q_outer"):
                more = [
                    N
                    for N in range(step, last + step, step)
                    if approximate.exact(method, N=N, d=64, k=256, M=M).hbm.accesses
                    >= theory.exact(name, N=N, d=64, M=M, sizing="fit").accesses
                ]
                first[f"{method}, {name}, M = {M:,}"] = max(more) + step
    low, high = min(first.values()), max(first.values())
    return Claim(
        "Figure 3",
        "runtimes of approximations begin to cross FlashAttention's at N = 512 to 1,024; so do accesses, within a factor of two",
        f"Linformer, Performer, k = 256, against flash, q_outer, d = 64, M = 100 and 192 KB, each {step}th N ≤ {last:,}",
        f"fewer accesses from N = {low} to {high:,}",
        256 <= low <= high <= 2048,
        first,
    )

"""Appendix D.2: what the paper's tiling extends to."""

from __future__ import annotations

from typing import Any

import numpy as np

from flashsim import kernels, mlp
from flashsim.reference import (
    kernel_gradient,
    kernel_gradient_bounds,
    kernel_product,
    kernel_product_bounds,
    of_bound,
    sparse_mlp,
    sparse_mlp_bounds,
)
from flashsim.theory import kernel_product_bound, kernel_x_outer_constants
from flashsim.theory.mlp import fusing_border
from flashsim.verify.claim import Claim
from flashsim.verify.shared import exact_and_counted


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
    tried = f"{runs} products in three orders, three kernels, N, n ≤ 60, d ≤ 6"
    return exact_and_counted(
        "Appendix D.2", "kernel products and their gradients, in tiles, are the naive ones", tried, runs, worst, equal
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


def sparse_mlp_exact(full: bool) -> Claim:
    """A block-sparse MLP, fused or not, is the naive one, and costs what the closed forms say."""
    rng = np.random.default_rng(12)
    runs, worst, equal = 300 if full else 60, 0.0, True
    ways: tuple[dict[str, Any], ...] = ({}, {"fused": False}, {"fused": False, "tiles": "square"})
    for number in range(runs):
        way = ways[number % 3]
        N, d, f, o = (int(size) for size in rng.integers(1, 30, size=4))
        X, W1, W2 = (rng.normal(size=size) for size in ((N, d), (d, f), (f, o)))
        B_r, B_d, B_f, B_o = (int(rng.integers(1, size + 1)) for size in (N, d, f, o))
        mask1, mask2 = (
            rng.random((-(-rows // down), -(-columns // across))) < rng.random()
            for rows, down, columns, across in ((d, B_d, f, B_f), (f, B_f, o, B_o))
        )
        keep1, keep2 = (
            np.repeat(np.repeat(mask, down, axis=0), across, axis=1)[:rows, :columns]
            for mask, rows, down, columns, across in ((mask1, d, B_d, f, B_f), (mask2, f, B_f, o, B_o))
        )
        how: dict[str, Any] = {"mask1": mask1, "mask2": mask2, "blocks": (B_r, B_d, B_f, B_o), **way}
        run = mlp.run(X, W1, W2, **how)
        bound = sparse_mlp_bounds(X, W1, W2, keep1, keep2, blocks=(d, f), fused=not way)
        worst = max(worst, of_bound(run.Y, sparse_mlp(X, W1, W2, keep1, keep2), bound))
        exact = mlp.exact(N=N, d=d, f=f, o=o, dtype="float64", **how)
        equal &= (run.hbm, run.sram) == (exact.hbm, exact.sram)
    tried = f"{runs} MLPs of random block masks, N, d, f, o < 30"
    return exact_and_counted(
        "Appendix D.2",
        "a block-sparse MLP is the naive one, fused, unfused, and in square tiles, and loads live blocks alone",
        tried,
        runs,
        worst,
        equal,
    )


def fusing_pays_from_d_squared(full: bool) -> Claim:
    """Fusing an MLP's two layers pays only from M ≈ d² on."""
    ratios: list[float] = []
    for d in (256, 512, 1024, 2048) if full else (256, 512):
        for f in (d, 4 * d):

            def fusing_pays(M: int, d: int = d, f: int = f) -> bool:
                fused, unfused = (mlp.exact(N=2**20, d=d, f=f, M=M, fused=fused).hbm for fused in (True, False))
                return fused.accesses < unfused.accesses

            low, high = d * d // 4, 4 * d * d
            while high - low > d:  # it pays at `high`
                middle = (low + high) // 2
                low, high = (low, middle) if fusing_pays(middle) else (middle, high)
            ratios.append(high / fusing_border(d, d))
    return Claim(
        "Appendix D.2",
        "fusing the two layers of a dense MLP, d → f → d, pays only from M ≈ d² on",
        f"d 256 … {2048 if full else 512}, f = d and 4d, N = 2²⁰, M between d²/4 and 4d² by bisection",
        f"from M = {min(ratios):.2f} d² to {max(ratios):.2f} d² on",
        0.8 <= min(ratios) <= max(ratios) <= 1.25,
        {"least": min(ratios), "most": max(ratios)},
    )

"""Appendix D.2: what the paper's tiling extends to."""

from __future__ import annotations

import numpy as np

from flashsim import kernels, mlp
from flashsim.theory import kernel_product_bound, kernel_x_outer_constants
from flashsim.theory.mlp import fusing_border
from flashsim.verify.shared import Claim, exact_and_counted, within


def kernel_products_exact(full: bool) -> Claim:
    """Appendix D.2. Kernel products and their gradients, in tiles, are the naive ones."""
    return exact_and_counted(
        [*(kernels.program_name("sum", order) for order in kernels.ORDERS), kernels.GRADIENTS["sum"]],
        600 if full else 120,
        "runs, products in three orders and gradients, three kernels, N, n < 40, d, e < 7",
        d=7,
        e=7,
    )


def kernel_products_bounds(full: bool) -> Claim:
    """Appendix D.2. A kernel product makes Θ(N·n·w²/M) accesses, w = d + e, and needs no extra memory."""
    rng = np.random.default_rng(11)
    points, ratios, extra = 5_000 if full else 500, [], 0
    for _ in range(points):
        d, e = (int(width) for width in rng.integers(1, 65, size=2))
        w, N, n = d + e, int(10 ** rng.uniform(2, 6)), int(10 ** rng.uniform(2, 6))
        M = int(np.exp(rng.uniform(np.log(2 * w), np.log(w * min(N, n)))))
        moved = kernels.exact(N=N, n=n, d=d, e=e, M=M, sizing="paper").hbm
        ratios.append((moved.accesses / kernel_product_bound(N, n, d, e, M), *kernel_x_outer_constants()))
        extra = max(extra, moved.extra)
    return within(ratios, "points, d, e ≤ 64, N, n 10² … 10⁶, 2w ≤ M ≤ w·min(N, n)").also(
        f"derived {ratios[0][1]:g} and {ratios[0][2]:g}; extra memory {extra}", extra == 0, extra=extra
    )


def sparse_mlp_exact(full: bool) -> Claim:
    """Appendix D.2. A block-sparse MLP is the naive one, fused, unfused, and in square tiles, and loads live blocks
    alone."""
    return exact_and_counted(
        ("sparse_mlp_fused", "sparse_mlp_unfused", "sparse_mlp_square"),
        300 if full else 60,
        "MLPs of random block masks, N, d, f, o < 30",
        **dict.fromkeys("Ndfo", 30),
    )


def fusing_pays_from_d_squared(full: bool) -> Claim:
    """Appendix D.2. Fusing the two layers of a dense MLP, d → f → d, pays only from M ≈ d² on."""
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
        f"d 256 … {2048 if full else 512}, f = d and 4d, N = 2²⁰, M between d²/4 and 4d² by bisection",
        f"from M = {min(ratios):.2f} d² to {max(ratios):.2f} d² on",
        0.8 <= min(ratios) <= max(ratios) <= 1.25,
        {"least": min(ratios), "most": max(ratios)},
    )

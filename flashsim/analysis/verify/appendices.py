"""Appendices B and D: equation 4, the two observations of B.4, Rabe and Staats (B.5), block-sparse
attention (D.1), and what the paper's tiling extends to (D.2).
"""

from typing import Any

import numpy as np

from flashsim.analysis.verify.shared import Claim, right_and_counted, within
from flashsim.attention.masks import patterns
from flashsim.attention.masks.dropout import keep_mask
from flashsim.extensions import kernels, mlp
from flashsim.reference import attention, error_bound, of_bound, rounding
from flashsim.simulate.api import backward, count, forward
from flashsim.theory import kernel_product_bound, kernel_x_outer_constants
from flashsim.theory.mlp import fusing_border


def equation_4(full: bool) -> Claim:
    """Equation 4. D_i = P_i:ᵀ dP_i: = dO_iᵀ O_i, with and without dropout."""
    rng = np.random.default_rng(8)
    worst = 0.0
    rows = 0
    for _ in range(100 if full else 20):
        N_q, N_k, d, d_v = (int(n) for n in rng.integers(1, (60, 60, 16, 16)))
        Q = rng.normal(size=(N_q, d))
        K = rng.normal(size=(N_k, d))
        V = rng.normal(size=(N_k, d_v))
        dO = rng.normal(size=(N_q, d_v))
        p = float(rng.choice([0.0, 0.1, 0.5]))
        Z = keep_mask(rows, p, N_q, N_k) / (1 - p)
        S = Q @ K.T / np.sqrt(d)
        P = np.exp(S - S.max(axis=1, keepdims=True))
        P /= P.sum(axis=1, keepdims=True)
        reduced_over_keys = (P * ((dO @ V.T) * Z)).sum(axis=1)
        O = forward("flash", Q, K, V, dropout_p=p, seed=rows).O
        reduced_over_d = (dO * O).sum(axis=1)
        size = (P * Z * (np.abs(dO) @ np.abs(V).T)).sum(axis=1)
        worst = max(worst, of_bound(reduced_over_d, reduced_over_keys, size))
        rows += N_q
    roundoff = 2.0**-53
    return Claim(
        f"{rows:,} rows, float64, p ∈ {{0, 0.1, 0.5}}, against the sum over keys",
        f"largest relative difference {worst / roundoff:.1f} roundoffs",
        # sums of up to 60 keys and 16 columns, each term off by a few roundoffs
        worst <= 200 * roundoff,
        {"rows": rows, "worst": worst},
    )


def no_dropout_mask_kept(full: bool) -> Claim:
    """Appendix B.4. Observation 1: dropout costs FlashAttention 2 words of memory (standard: Z
    and P^dropped, 2N²).
    """
    extra: dict[str, list[int]] = {"flash": [], "standard": []}
    lengths = [2**p for p in range(4, 18 if full else 14)]
    for N in lengths:
        for name, differences in extra.items():
            with_dropout = count(name, N=N, d=64, M=2**16, dropout_p=0.1).hbm.extra
            without = count(name, N=N, d=64, M=2**16).hbm.extra
            differences.append(with_dropout - without)
    is_constant = extra["flash"] == [2] * len(lengths)
    holds = is_constant and extra["standard"] == [2 * N * N for N in lengths]
    return Claim(
        f"N 2⁴ … {lengths[-1]:,}",
        f"flash {', '.join(map(str, sorted(set(extra['flash']))))} elements; standard 2N² "
        f"{'in every case' if holds else 'NOT in every case'}",
        holds,
        {"N": lengths, **extra},
    )


def D_in_d_vectors(full: bool) -> Claim:
    """Appendix B.4. Observation 2: D_i is a sum over d, so that SRAM's use does not depend on N."""
    blocks = (32, 48)
    lengths = [2**p for p in range(7, 21 if full else 15)]
    peaks = {
        count("flash", N=N, d=64, M=10**6, blocks=blocks, direction="backward").sram.peak
        for N in lengths
    }
    tried = f"N {lengths[0]} … {lengths[-1]:,} at B_r, B_c = {blocks}"
    measured = f"peak {', '.join(f'{peak:,}' for peak in sorted(peaks))} elements at every N"
    return Claim(tried, measured, len(peaks) == 1, {"peaks": sorted(peaks)})


def rabe_staats(full: bool) -> Claim:
    """Appendix B.5. Rabe and Staats make about as many accesses; they keep T_c copies of O where
    flash keeps one, and their backward pass makes 6 products where flash makes 5.
    """
    rows = {}
    for N in [2**p for p in range(10, 19 if full else 15)]:
        shape: dict[str, Any] = {"N": N, "d": 64, "M": 25_600, "sizing": "paper"}
        theirs = count("rabe_staats", **shape)
        ours = count("flash", **shape)
        theirs_back = count("rabe_staats", **shape, direction="backward")
        ours_back = count("flash", **shape, direction="backward")
        rows[N] = {
            "accesses, theirs / flash": theirs.hbm.accesses / ours.hbm.accesses,
            "extra memory, theirs": theirs.hbm.extra,
            "extra memory, flash": ours.hbm.extra,
            "copies of O kept": theirs.hbm.by_array["O_parts"].size // (N * 64),
            "T_c": theirs.blocks.T_c,
            "backward products, theirs / flash": theirs_back.flops.matmul / ours_back.flops.matmul,
        }
    holds = all(
        row["copies of O kept"] == row["T_c"]
        and row["extra memory, flash"] == 2 * N
        and row["backward products, theirs / flash"] == 6 / 5
        and 0.9 < row["accesses, theirs / flash"] < 1.1
        for N, row in rows.items()
    )
    first = rows[min(rows)]
    last = rows[max(rows)]
    return Claim(
        f"N {min(rows):,} … {max(rows):,}, d = 64, M = 25,600",
        f"accesses {first['accesses, theirs / flash']:.2f} to "
        f"{last['accesses, theirs / flash']:.2f} × flash's; extra memory "
        f"{last['extra memory, theirs'] / last['extra memory, flash']:,.0f} × flash's at the "
        "largest N; products 6/5",
        holds,
        {str(N): row for N, row in rows.items()},
    )


def block_sparse_is_algorithm_2_with_a_skip(full: bool) -> Claim:
    """Appendix D.1. Algorithm 5 with a block mask of ones is Algorithm 2, bit for bit and count for
    count; to skip a tile gives what masking it gives.
    """
    rng = np.random.default_rng(9)
    runs = 40 if full else 10
    same = True
    worst = 0.0
    for _ in range(runs):
        N_q, N_k, d = (int(n) for n in rng.integers(8, (90, 90, 16)))
        Q = rng.normal(size=(N_q, d))
        K = rng.normal(size=(N_k, d))
        V = rng.normal(size=(N_k, d))
        dO = rng.normal(size=(N_q, d))
        M = int(rng.integers(4 * d, 2 * N_k * d))
        dense = forward("flash", Q, K, V, M=M, sizing="paper", causal=True)
        all_ones = forward("block_sparse", Q, K, V, M=M, sizing="paper", causal=True)
        same &= np.array_equal(dense.O, all_ones.O)
        same &= (dense.hbm, dense.sram) == (all_ones.hbm, all_ones.sram)
        back = backward("flash", dense, dO)
        back_ones = backward("block_sparse", all_ones, dO)
        same &= np.array_equal(back.dQ, back_ones.dQ) and back.hbm == back_ones.hbm
        blocks = dense.blocks
        block_mask = patterns.butterfly(blocks.T_r, blocks.T_c)
        mask = np.kron(block_mask, np.ones((blocks.B_r, blocks.B_c), bool))[:N_q, :N_k]
        run = forward("block_sparse", Q, K, V, M=M, sizing="paper", block_mask=block_mask)
        bound = error_bound(Q, K, V, mask=mask, **rounding("block_sparse", blocks))
        worst = max(worst, of_bound(run.O, attention(Q, K, V, mask=mask), bound))
    tried = f"{runs} inputs, forward and backward, causal; butterfly against the mask spread out"
    measured = f"{'the same' if same else 'NOT THE SAME'}; largest error {worst:.2f} of the bound"
    return Claim(
        tried,
        measured,
        bool(same) and worst <= 1.0,
        {"same": bool(same), "worst_error_over_bound": worst},
    )


def kernel_products_right(full: bool) -> Claim:
    """Appendix D.2. Kernel products and their gradients, in tiles, equal the naive ones."""
    names = [*map(kernels.program_name, kernels.ORDERS), "kernel_gradient"]
    tried = "runs, products in three orders and gradients, three kernels, N, n < 40, d, e < 7"
    return right_and_counted(names, 600 if full else 120, tried, d=7, e=7)


def kernel_products_bounds(full: bool) -> Claim:
    """Appendix D.2. A kernel product makes Θ(N·n·w²/M) accesses, w = d + e, and needs no extra
    memory.
    """
    rng = np.random.default_rng(11)
    points = 5_000 if full else 500
    ratios = []
    extra = 0
    for _ in range(points):
        d, e = (int(width) for width in rng.integers(1, 65, size=2))
        w = d + e
        N = int(10 ** rng.uniform(2, 6))
        n = int(10 ** rng.uniform(2, 6))
        M = int(np.exp(rng.uniform(np.log(2 * w), np.log(w * min(N, n)))))
        hbm = kernels.exact(N=N, n=n, d=d, e=e, M=M, sizing="paper").hbm
        ratio = hbm.accesses / kernel_product_bound(N, n, d, e, M)
        ratios.append((ratio, *kernel_x_outer_constants()))
        extra = max(extra, hbm.extra)
    return within(ratios, "points, d, e ≤ 64, N, n 10² … 10⁶, 2w ≤ M ≤ w·min(N, n)").also(
        f"derived {ratios[0][1]:g} and {ratios[0][2]:g}; extra memory {extra}",
        extra == 0,
        extra=extra,
    )


def sparse_mlp_right(full: bool) -> Claim:
    """Appendix D.2. A block-sparse MLP, fused, unfused or in square tiles, equals the naive one,
    and loads only live blocks.
    """
    names = ("sparse_mlp_fused", "sparse_mlp_unfused", "sparse_mlp_square")
    below = dict.fromkeys("Ndfo", 30)
    return right_and_counted(
        names, 300 if full else 60, "MLPs of random block masks, N, d, f, o < 30", **below
    )


def fusing_pays_from_d_squared(full: bool) -> Claim:
    """Appendix D.2. Fusing the two layers of a dense MLP, d → f → d, saves accesses only from M
    ≈ d² on.
    """
    ratios: list[float] = []
    for d in (256, 512, 1024, 2048) if full else (256, 512):
        for f in (d, 4 * d):

            def fusing_pays(M: int, d: int = d, f: int = f) -> bool:
                fused = mlp.exact(N=2**20, d=d, f=f, M=M, fused=True)
                unfused = mlp.exact(N=2**20, d=d, f=f, M=M, fused=False)
                return fused.hbm.accesses < unfused.hbm.accesses

            low = d * d // 4
            high = 4 * d * d
            while high - low > d:  # it pays at `high`
                middle = (low + high) // 2
                if fusing_pays(middle):
                    high = middle
                else:
                    low = middle
            ratios.append(high / fusing_border(d, d))
    tried = (
        f"d 256 … {2048 if full else 512}, f = d and 4d, N = 2²⁰, M between d²/4 and 4d² by "
        "bisection"
    )
    measured = f"from M = {min(ratios):.2f} d² to {max(ratios):.2f} d² on"
    return Claim(
        tried,
        measured,
        0.8 <= min(ratios) <= max(ratios) <= 1.25,
        {"least": min(ratios), "most": max(ratios)},
    )

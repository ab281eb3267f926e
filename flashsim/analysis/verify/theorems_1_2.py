"""Theorems 1 and 2: exactness, the induction, FLOPs, memory; HBM accesses of the forward pass."""

import itertools
from typing import Any

import numpy as np

from flashsim import theory
from flashsim.algorithms import FORWARD
from flashsim.analysis.verify.comparison import forward_errors
from flashsim.analysis.verify.shared import (
    Claim,
    accesses,
    in_range,
    largest_N,
    none_differs,
    power_laws,
    regimes,
    within,
)
from flashsim.reference import of_bound
from flashsim.simulate.api import count, forward
from flashsim.tracing.observers import InductionInvariant, InvariantBroken


def theorem_1_right(full: bool) -> Claim:
    """Theorem 1. Every algorithm returns softmax(QKᵀ)V."""
    rng = np.random.default_rng(1)
    shapes = [(37, 37, 16, 16), (23, 59, 8, 5), (1, 90, 4, 4), (60, 1, 3, 7), (17, 17, 1, 1)]
    if full:
        shapes += map(tuple, rng.integers(1, (200, 200, 50, 50), size=(60, 4)).tolist())
    worst = 0.0
    runs = 0
    refused = 0
    for (N_q, N_k, d, d_v), dtype in itertools.product(shapes, ("float64", "float32", "float16")):
        for _, *inputs in regimes(rng, N_q, N_k, d, d_v):
            Q, K, V = (a.astype(dtype) for a in inputs)
            for name in FORWARD:
                M = int(rng.integers(max(d, d_v), max(N_k * d, d, d_v) + 1))
                try:
                    run = forward(name, Q, K, V, M=M, sizing="paper", scale=1.0)
                except ValueError:
                    reach = np.prod([np.linalg.norm(a.astype(float), axis=1).max() for a in (Q, K)])
                    if not (FORWARD[name].stores_scores and dtype == "float16" and reach >= 65_504):
                        raise
                    refused += 1  # standard attention keeps S in float16, which ends there
                    continue
                worst = max(worst, *(of_bound(*each) for each in forward_errors(run)))
                runs += 1
    return Claim(
        (
            f"{runs} runs: {len(shapes)} shapes, ragged blocks, 7 kinds of scores, float64, "
            "float32, float16"
        ),
        (
            f"largest error {worst:.2f} of the derived rounding bound; standard refused {refused} "
            "whose S could overflow float16"
        ),
        worst <= 1.0,
        {"runs": runs, "refused": refused, "worst_error_over_bound": worst},
    )


def theorem_1_induction(full: bool) -> Claim:
    """Theorem 1. The proof's induction: after every outer step j, m, ℓ and O are those of the
    first j·B_c keys.
    """
    rng = np.random.default_rng(2)
    steps = InductionInvariant()
    broken = ""
    shapes = [(64, 64, 16, 16, 256), (23, 59, 8, 5, 100), (30, 60, 4, 4, 16)]
    if full:
        shapes.append((200, 500, 16, 16, 320))
    try:
        for N_q, N_k, d, d_v, M in shapes:
            for _, Q, K, V in regimes(rng, N_q, N_k, d, d_v):
                forward("flash_basic", Q, K, V, M=M, sizing="paper", scale=1.0, observers=[steps])
    except InvariantBroken as error:
        broken = str(error)
    worst = max((step.worst for step in steps.steps), default=0.0)
    return Claim(
        (
            f"{len(steps.steps):,} outer steps over {len(shapes)} shapes and 7 kinds of scores, "
            "float64"
        ),
        broken or f"largest error {worst:.2f} of the bound",
        not broken,
        {"steps": len(steps.steps), "worst_error_over_bound": worst},
    )


def theorem_1_flops(full: bool) -> Claim:
    """Theorem 1. O(N²d) FLOPs: products take exactly 4N²d, and 4 ≤ FLOPs/N²d ≤ 8 + 17/d in all."""
    ratios = []
    exact = True
    for N, d, M in in_range(full):
        flops = count("flash_basic", N=N, d=d, M=M, sizing="paper").flops
        exact &= flops.matmul == theory.matmul_flops(N, N, d, d)
        ratios.append((flops.total / (N * N * d), 4, 8 + 17 / d))
    return within(ratios, f"(N, d, M), N to {largest_N(full):,}, d ≤ M ≤ Nd").also(
        f"products {'equal' if exact else 'DIFFER FROM'} 4N²d", exact
    )


def theorem_1_memory(full: bool) -> Claim:
    """Theorem 1. Additional memory is exactly 2N elements (standard attention: 2N²)."""
    cases = list(in_range(full))
    flash = all(
        count("flash_basic", N=N, d=d, M=M, sizing="paper").hbm.extra == 2 * N for N, d, M in cases
    )
    standard = all(
        count("standard", N=N, d=d, M=M, sizing="paper").hbm.extra == 2 * N * N for N, d, M in cases
    )
    tried = f"{len(cases)} (N, d, M), N to {largest_N(full):,}"
    measured = (
        f"flash {'2N' if flash else 'NOT 2N'}, standard {'2N²' if standard else 'NOT 2N²'} in "
        "every case"
    )
    return Claim(tried, measured, flash and standard, {"cases": len(cases)})


def theorem_2_counts(full: bool) -> Claim:
    """Theorem 2. Executed counts = closed forms, by array, with peak and blocks (==)."""
    rng = np.random.default_rng(3)
    counted = simulated = 0
    unequal: list[str] = []
    for case in range(1500 if full else 60):
        N_q, N_k, d, d_v = (
            int(n) for n in rng.integers(1, (120, 120, 24, 24) if full else (80, 80, 24, 24))
        )
        smallest_M = max((d + d_v) * 2 + 7, 2 * max(d, d_v) + 1, 8)
        M = int(rng.integers(smallest_M, max(2 * N_k * (d + d_v), smallest_M) + 1))
        B_r = int(rng.integers(1, N_q + 20))
        B_c = int(rng.integers(1, N_k + 20))
        policies: list[dict[str, Any]] = [
            {"sizing": "paper"},
            {"sizing": "fit"},
            {"blocks": (B_r, B_c)},
        ]
        for name, policy in itertools.product(FORWARD, policies):
            shape: dict[str, Any] = {"N_q": N_q, "N_k": N_k, "d": d, "d_v": d_v}
            size = M
            if "blocks" in policy:
                size += 2 * ((B_r + B_c) * (d + d_v) + B_r * B_c + 6 * B_r)
            exact = theory.exact(name, **shape, M=size, **policy)
            result = count(name, **shape, M=size, **policy)
            counted += 1
            expected = (exact.hbm, exact.sram, exact.blocks)
            agree = (result.hbm, result.sram, result.blocks) == expected
            if case % 5 == 0:
                Q = rng.normal(size=(N_q, d)).astype(np.float32)
                K = rng.normal(size=(N_k, d)).astype(np.float32)
                V = rng.normal(size=(N_k, d_v)).astype(np.float32)
                run = forward(name, Q, K, V, M=size, **policy)
                simulated += 1
                agree &= (run.hbm, run.sram, run.blocks) == expected
            if not agree:
                unequal.append(f"{name} {shape} M={size} {policy}")
    tried = (
        f"{counted:,} counted and {simulated:,} simulated runs, ragged, N_q ≠ N_k, d_v ≠ d, three "
        "sizings"
    )
    return none_differs(tried, unequal, {"counted": counted, "simulated": simulated})


def theorem_2_flash_bounds(full: bool) -> Claim:
    """Theorem 2. FlashAttention: 12/5 ≤ accesses / (N²d²/M) ≤ 18 + 22/d."""
    ratios = []
    for N, d, M in in_range(full):
        ratio = accesses("flash_basic", N, d, M) / theory.theorem_2_flash(N, d, M)
        ratios.append((ratio, *theory.flash_constants(d)))
    return within(ratios, f"(N, d, M) over d ≤ M ≤ Nd, N to {largest_N(full):,}")


def theorem_2_exponents(full: bool) -> Claim:
    """Theorem 2. Exponents of accesses: N², d², M⁻¹ (standard: N²), within 0.02."""
    return power_laws("flash_basic", "forward", 19)


def theorem_2_standard(full: bool) -> Claim:
    """Theorem 2. Standard attention, M ≥ d² and rows that fit: 4 ≤ accesses / (Nd + N²) ≤ 12."""
    ratios = []
    for N, d, M in in_range(full):
        if d * d <= M and M >= N + 2:
            ratio = accesses("standard", N, d, M) / theory.theorem_2_standard(N, d)
            ratios.append((ratio, *theory.standard_constants()))
    return within(ratios, "(N, d, M)")


def theorem_2_standard_small_M(full: bool) -> Claim:
    """Theorem 2. Standard attention, any M: 8/5 ≤ accesses / (N²d²/M + N² + Nd) ≤ 8; above the
    proof's count if M < d² ≤ Nd.
    """
    ratios = []
    excess = []
    for N, d, M in in_range(full):
        count_of_accesses = accesses("standard", N, d, M)
        expected = theory.theorem_2_flash(N, d, M) + theory.theorem_2_standard(N, d)
        ratios.append((count_of_accesses / expected, *theory.standard_small_M_constants()))
        if d * d > M and d <= N:  # then Q has several panels, as M/4d < d ≤ N
            excess.append(count_of_accesses / sum(theory.proof_accounting(N, d)))
    return within(
        ratios, f"(N, d, M) over d ≤ M ≤ Nd, {len(excess)} of them with M < d² ≤ Nd"
    ).also(
        f"for M < d², {min(excess):.2f} to {max(excess):.1f} × the proof's count",
        min(excess) > 1,
        excess_least=min(excess),
        excess_most=max(excess),
    )

"""Theorem 5: the backward pass, exact and counted."""

import itertools
from typing import Any

import numpy as np

from flashsim import theory
from flashsim.algorithms import BACKWARD
from flashsim.analysis.verify.comparison import backward_errors, forward_errors
from flashsim.analysis.verify.shared import (
    Claim,
    accesses,
    differs,
    in_range,
    largest_N,
    none_differs,
    power_laws,
    within,
)
from flashsim.attention.masks.paddings import KeyPadding
from flashsim.attention.masks.rules import Causal, Dense, Mask, SlidingWindow
from flashsim.reference import of_bound
from flashsim.simulate.api import backward, forward


def masks(rng: np.random.Generator, N_q: int, N_k: int) -> dict[str, Mask | None]:
    """Return one mask of each kind, and combinations."""
    dense = Dense(rng.random((N_q, N_k)) < 0.7)
    return {
        "none": None,
        "causal": Causal(),
        "window": SlidingWindow(N_k // 3, 2),
        "padding": KeyPadding(max(N_k - 3, 0)),
        "dense": dense,
        "causal & dense & padding": Causal() & dense & KeyPadding(N_k // 2),
    }


def gradients_right(full: bool) -> Claim:
    """Algorithms 2–5. O, dQ, dK, dV equal the oracle's under every mask, with and without
    dropout.
    """
    rng = np.random.default_rng(6)
    shapes = [(11, 26, 5, 3), (26, 11, 8, 8)]
    if full:
        shapes += map(tuple, rng.integers(1, (120, 120, 20, 20), size=(20, 4)).tolist())
    worst = 0.0
    runs = 0
    for (N_q, N_k, d, d_v), dtype, p in itertools.product(
        shapes, ("float64", "float32", "float16"), (0.0, 0.2)
    ):
        Q = rng.normal(size=(N_q, d)).astype(dtype)
        K = rng.normal(size=(N_k, d)).astype(dtype)
        V = rng.normal(size=(N_k, d_v)).astype(dtype)
        dO = rng.normal(size=(N_q, d_v)).astype(dtype)
        for mask in masks(rng, N_q, N_k).values():
            M = int(rng.integers(2 * (d + d_v), 3 * N_k * (d + d_v)))
            options: dict[str, Any] = {
                "sizing": "paper",
                "mask": mask,
                "dropout_p": p,
                "seed": runs,
            }
            for name in BACKWARD:
                run = forward(BACKWARD[name].forward_pass, Q, K, V, M=M, **options)
                gradients = backward(name, run, dO)
                for comparison in (*forward_errors(run), *backward_errors(run, gradients, dO)):
                    worst = max(worst, of_bound(*comparison))
            runs += 1
    return Claim(
        (
            f"{runs} inputs × {len(BACKWARD)} algorithms: {len(shapes)} ragged shapes, 6 masks, "
            "float64, float32, float16, random dO"
        ),
        f"largest error {worst:.2f} of the derived rounding bound",
        worst <= 1.0,
        {"runs": runs, "worst_error_over_bound": worst},
    )


def theorem_5_counts(full: bool) -> Claim:
    """Theorem 5. Executed counts of every backward pass = closed forms, by array, with peak and
    blocks (==).
    """
    rng = np.random.default_rng(7)
    unequal = []
    cases = 0
    for _ in range(400 if full else 50):
        N_q, N_k, d, d_v = (
            int(n) for n in rng.integers(1, (120, 120, 24, 24) if full else (80, 80, 24, 24))
        )
        M = int(rng.integers(6 * (d + d_v) + 24, 4 * N_k * (d + d_v) + 6 * (d + d_v) + 25))
        for name, sizing, p in itertools.product(BACKWARD, ("paper", "fit"), (0.0, 0.1)):
            mask = list(masks(rng, N_q, N_k).values())[int(rng.integers(6))]
            shape: dict[str, Any] = {"N_q": N_q, "N_k": N_k, "d": d, "d_v": d_v, "M": M}
            options: dict[str, Any] = {
                **shape,
                "sizing": sizing,
                "dropout_p": p,
                "mask": mask,
                "direction": "backward",
            }
            cases += 1
            if differs(name, **options):
                unequal.append(f"{name} {options}")
    tried = (
        f"{cases:,} counts, ragged, N_q ≠ N_k, d_v ≠ d, two sizings, masks, with and without "
        "dropout"
    )
    return none_differs(tried, unequal, {"cases": cases})


def theorem_5_flash_bounds(full: bool) -> Claim:
    """Theorem 5. FlashAttention: c₁ ≤ accesses / (N²d²/M) ≤ c₂; theory derives both constants."""
    ratios = []
    for N, d, M in in_range(full):
        ratio = accesses("flash", N, d, M, "backward") / theory.theorem_5_flash(N, d, M)
        ratios.append((ratio, *theory.flash_backward_constants(d)))
    return within(ratios, f"(N, d, M) over d ≤ M ≤ Nd, N to {largest_N(full):,}")


def theorem_5_exponents(full: bool) -> Claim:
    """Theorem 5. Exponents of accesses: N², d², M⁻¹ (standard: N²), within 0.02."""
    return power_laws("flash", "backward", 18)


def theorem_5_standard(full: bool) -> Claim:
    """Theorem 5. Standard attention, M ≥ d² and rows that fit: c₁ ≤ accesses / (Nd + N²) ≤ c₂."""
    constants = theory.standard_backward_constants()
    ratios = []
    for N, d, M in in_range(full):
        if d * d <= M and 2 * N + 1 <= M:
            ratio = accesses("standard", N, d, M, "backward") / theory.theorem_5_standard(N, d)
            ratios.append((ratio, *constants))
    return within(ratios, "(N, d, M)")


def theorem_5_standard_small_M(full: bool) -> Claim:
    """Theorem 5. Standard attention, any M: c₁ ≤ accesses / (N²d²/M + N² + Nd) ≤ c₂."""
    ratios = []
    for N, d, M in in_range(full):
        expected = theory.theorem_5_flash(N, d, M) + theory.theorem_5_standard(N, d)
        ratio = accesses("standard", N, d, M, "backward") / expected
        ratios.append((ratio, *theory.standard_backward_small_M_constants()))
    return within(ratios, "(N, d, M) over d ≤ M ≤ Nd")

"""Propositions 3 and 4: the lower bound, and block-sparse attention's accesses."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from flashsim import theory
from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.analysis.verify.shared import (
    Claim,
    accesses,
    differs,
    in_range,
    largest_N,
    none_differs,
    slope,
    within,
)
from flashsim.attention.masks import patterns
from flashsim.simulate.api import count

BlockMask = np.ndarray[Any, np.dtype[np.bool_]]


def proposition_3(full: bool) -> Claim:
    """Proposition 3. For Nd/4 ≤ M ≤ Nd, every algorithm at least reads the inputs and writes the
    outputs once, and FlashAttention is within a derived constant of that.
    """
    below = []
    most = 0.0
    cases = 0
    within_factor = True
    for N, d, M in in_range(full):
        if N * d > 4 * M or N < 2:
            continue
        for direction, table in (("forward", FORWARD), ("backward", BACKWARD)):
            floor = theory.compulsory(N, N, d, d, direction)
            for name in table:
                total = accesses(name, N, d, M, direction)
                cases += 1
                if total < floor:
                    below.append(f"{name} {direction} N={N} d={d} M={M}")
                if name == "flash":
                    most = max(most, total / floor)
                    constant = theory.flash_over_compulsory_constant(d, direction)
                    within_factor &= total <= constant * floor
    tried = f"{cases:,} counts: all algorithms, both directions, N to {largest_N(full):,}"
    measured = f"{len(below)} below that; flash at most {most:.2f} × that"
    return Claim(
        tried,
        measured,
        not below and within_factor,
        {"cases": cases, "below": below[:10], "flash_most": most},
    )


def _sparse_cases(full: bool) -> Iterator[tuple[int, int, int, str, BlockMask]]:
    """Yield (N, d, M, pattern's name, block mask)."""
    rng = np.random.default_rng(4)
    for N, d, M in in_range(full):
        blocks = count("flash", N=N, d=d, M=M, sizing="paper").blocks
        T = blocks.T_r, blocks.T_c
        if math.prod(T) > (4_000_000 if full else 300_000):
            continue
        yield N, d, M, "random", rng.random(T) < rng.random()
        yield N, d, M, "butterfly", patterns.butterfly(*T)
        yield N, d, M, "local", patterns.local(*T)
        yield N, d, M, "strided", patterns.strided(*T, max(round(T[1] ** 0.5), 1))
        yield N, d, M, "none", np.zeros(T, bool)
        yield N, d, M, "all", np.ones(T, bool)


def proposition_4_counts(full: bool) -> Claim:
    """Proposition 4. Block-sparse counts = closed forms, by array, with peak and blocks (==),
    forward and backward.
    """
    unequal = []
    cases = 0
    for N, d, M, name, block_mask in _sparse_cases(full):
        for direction in ("forward", "backward"):
            cases += 1
            options: dict[str, Any] = {
                "block_mask": block_mask,
                "direction": direction,
                "sizing": "paper",
            }
            if differs("block_sparse", N=N, d=d, M=M, **options):
                unequal.append(f"{name} {direction} N={N} d={d} M={M}")
    tried = f"{cases:,} counts: random, butterfly, local, strided, empty and full block masks"
    return none_differs(tried, unequal, {"cases": cases})


def proposition_4_bounds(full: bool) -> Claim:
    """Proposition 4. c₁ ≤ accesses / (Nd + N²d²s/M) ≤ c₂, where s is the fraction of tiles
    computed, and theory derives both constants.
    """
    ratios = []
    for N, d, M, _, block_mask in _sparse_cases(full):
        s = float(block_mask.mean())
        for direction in ("forward", "backward"):
            options: dict[str, Any] = {
                "block_mask": block_mask,
                "direction": direction,
                "sizing": "paper",
            }
            result = count("block_sparse", N=N, d=d, M=M, **options)
            ratio = result.hbm.accesses / (N * d + N * N * d * d * s / M)
            ratios.append((ratio, *theory.block_sparse_constants(d, direction)))
    return within(ratios, "counts over d ≤ M ≤ Nd, s from 0 to 1, forward and backward")


def proposition_4_patterns(full: bool) -> Claim:
    """Proposition 4. Above the floor, accesses are linear in s; s = N^(−1/2) gives N√N;
    butterfly gives N log N.
    """
    # B_r = B_c = 16
    d = 64
    M = 4096
    root = []
    logs = []
    linear = True
    rng = np.random.default_rng(5)
    for p in range(10, 19 if full else 17):
        N = 2**p
        T = N // 16

        def sparse(block_mask: BlockMask, N: int = N) -> int:
            result = count("block_sparse", N=N, d=d, M=M, sizing="paper", block_mask=block_mask)
            return result.hbm.accesses

        floor = sparse(np.zeros((T, T), bool))
        if p % 2 == 0:  # every (√N/4)-th column of tiles: s = 4·N^(−1/2)
            columns = np.zeros((T, T), bool)
            columns[:, :: 2 ** (p // 2) // 4] = True
            root.append((N, sparse(columns) - floor))
        logs.append((sparse(patterns.butterfly(T, T)) - floor) / (N * (1 + math.log2(T))))
        if p < 14:
            tiles = rng.random((T, T)) < rng.random()
            linear &= sparse(tiles) - floor == int(tiles.sum()) * 16 * (3 * d + 4)
    exponent, residual = slope(root)
    constant = max(logs) == min(logs)
    return Claim(
        f"N 2¹⁰ … 2{'¹⁸' if full else '¹⁶'}, d = 64, M = 4,096",
        f"linear in s {'exactly' if linear else 'NOT exactly'}; exponent {exponent:.3f} (residual "
        f"{residual:.3f}) for N^1.5; "
        f"butterfly {logs[0]:g}·N·(1 + log₂ T) {'exactly' if constant else 'NOT constant'}",
        linear and abs(exponent - 1.5) <= 0.02 and constant,
        {"linear": linear, "exponent": exponent, "residual": residual, "butterfly": logs},
    )

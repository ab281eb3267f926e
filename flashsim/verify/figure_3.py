"""Figure 3: what the paper compares itself with, approximations of attention."""

from __future__ import annotations

from collections.abc import Callable

from flashsim import approximate, theory
from flashsim.verify.claim import Claim
from flashsim.verify.shared import exact_and_counted


def approximations_exact(full: bool) -> Claim:
    """Figure 3. Linformer and Performer, in tiles, are their own formulas."""
    return exact_and_counted(
        ("linformer", *approximate.PHI.values()),
        400 if full else 80,
        "runs, N, k < 40, d, e < 10",
        d=10,
        e=10,
    )


def clusters_exact(full: bool) -> Claim:
    """Figure 3. Reformer and SMYRF, in clusters of gathered rows, are their own formulas."""
    return exact_and_counted(
        ("reformer", "smyrf"),
        200 if full else 40,
        "runs, N < 40, d, e < 10, up to 3 rounds of clusters of up to 29 rows",
        d=10,
        e=10,
        h=4,
    )


def approximations_cross(full: bool) -> Claim:
    """Figure 3. Measured runtimes of approximations begin to cross FlashAttention's at N = 512 to 1,024; with the paper's
    k, N/8 and at most 256, accesses do so far before; with k = 256 at every N, within a factor of two of there."""
    step, last = 16 if full else 64, 4096
    first = {
        said: {
            f"{method}, {name}, M = {M:,}": _cross(method, name, M, of, range(step, last + step, step))
            for M in (25_600, 49_152)
            for method in approximate.METHODS
            for name in ("flash", "q_outer")
        }
        for said, of in (("k = 256", lambda N: 256), ("the paper's k", approximate.compressed))
    }
    low, high = min(first["k = 256"].values()), max(first["k = 256"].values())
    paper = max(N for case, N in first["the paper's k"].items() if ", flash," in case)
    return Claim(
        f"Linformer, Performer, against flash, q_outer, d = 64, M = 100 and 192 KB, each {step}th N ≤ {last:,}",
        f"fewer accesses than flash from N = {paper} on; with k = 256 from N = {low} to {high:,}",
        paper <= 256 and 256 <= low <= high <= 2048,
        first,
    )


def _cross(method: str, name: str, M: int, k: Callable[[int], int], lengths: range) -> int:
    """Return the first of the lengths from which on the method makes fewer accesses."""
    not_fewer = (
        N
        for N in lengths
        if approximate.exact(method, N=N, d=64, k=k(N), M=M).hbm.accesses
        >= theory.exact(name, N=N, d=64, M=M, sizing="fit").accesses
    )
    return max(not_fewer, default=0) + lengths.step

"""Section 4 and Appendix E: the approximations that the paper names; memory and speed, as far as
counts can tell.
"""

from collections.abc import Callable, Sequence
from typing import Any

from flashsim import theory
from flashsim.analysis.verify.shared import Claim, right_and_counted
from flashsim.attention.masks import patterns
from flashsim.attention.masks.rules import Causal
from flashsim.extensions import approximate
from flashsim.memory.traffic import Traffic
from flashsim.simulate.api import count


def approximations_right(full: bool) -> Claim:
    """Figure 3. Linformer and Performer, in tiles, equal their own formulas."""
    names = ("linformer", *approximate.PHI.values())
    tried = "runs, N, k < 40, d, e < 10"
    return right_and_counted(names, 400 if full else 80, tried, d=10, e=10)


def clusters_right(full: bool) -> Claim:
    """Figure 3. Reformer and SMYRF, in clusters of gathered rows, equal their own formulas."""
    tried = "runs, N < 40, d, e < 10, up to 3 rounds of clusters of up to 29 rows"
    return right_and_counted(("reformer", "smyrf"), 200 if full else 40, tried, d=10, e=10, h=4)


def approximations_cross(full: bool) -> Claim:
    """Figure 3. Measured runtimes of approximations begin to cross FlashAttention's at N = 512 to
    1,024. With the paper's k, N/8 and at most 256, accesses cross at far smaller N; with k = 256 at
    every N, within a factor of two of there.
    """
    step = 16 if full else 64
    last = 4096
    lengths = range(step, last + step, step)
    first: dict[str, dict[str, int]] = {"k = 256": {}, "the paper's k": {}}
    for M in (25_600, 49_152):
        for method in approximate.METHODS:
            for name in ("flash", "q_outer"):
                case = f"{method}, {name}, M = {M:,}"
                first["k = 256"][case] = _cross(method, name, M, _always_256, lengths)
                first["the paper's k"][case] = _cross(
                    method, name, M, approximate.compressed, lengths
                )
    low = min(first["k = 256"].values())
    high = max(first["k = 256"].values())
    paper = max(N for case, N in first["the paper's k"].items() if ", flash," in case)
    tried = (
        f"Linformer, Performer, against flash, q_outer, d = 64, M = 100 and 192 KB, each {step}th "
        f"N ≤ {last:,}"
    )
    measured = (
        f"fewer accesses than flash from N = {paper} on; with k = 256 from N = {low} to {high:,}"
    )
    return Claim(tried, measured, paper <= 256 and 256 <= low <= high <= 2048, first)


def _always_256(_N: int) -> int:
    return 256


def _cross(method: str, name: str, M: int, k: Callable[[int], int], lengths: range) -> int:
    """Return the length from which on an approximation makes fewer accesses."""
    last = 0
    for N in lengths:
        approximation = approximate.exact(method, N=N, d=64, k=k(N), M=M)
        attention = theory.exact(name, N=N, d=64, M=M, sizing="fit")
        if approximation.hbm.accesses >= attention.accesses:
            last = N
    return last + lengths.step


def _footprint(hbm: Traffic) -> int:
    return sum(array.size for array in hbm.by_array.values())


def memory_footprint(full: bool) -> Claim:
    """Figure 3. FlashAttention and block-sparse FlashAttention take the same memory, operands and
    results included, which is linear in N. Standard attention takes many times as much. Linformer
    with its projections and Performer with φ take more, at least twice as much from N = 1,024 on.
    """
    lengths = [2**p for p in range(7, 17)]
    shape: dict[str, Any] = {"d": 64, "M": 25_600}
    flash = [_footprint(count("flash", N=N, **shape).hbm) for N in lengths]
    standard = [_footprint(count("standard", N=N, **shape).hbm) for N in lengths]
    butterfly = {**shape, "block_mask": patterns.butterfly}
    sparse = [_footprint(count("block_sparse", N=N, **butterfly).hbm) for N in lengths]
    linformer = []
    performer = []
    for N in lengths:
        sizes = {**shape, "N": N, "k": approximate.compressed(N)}
        linformer.append(_footprint(approximate.count("linformer", **sizes).hbm))
        performer.append(_footprint(approximate.count("performer_materialised", **sizes).hbm))
    linear = flash == sparse == [(4 * 64 + 2) * N for N in lengths]
    of_standard = dict(zip(lengths, _ratios(standard, flash), strict=True))
    others = {"Linformer": _ratios(linformer, flash), "Performer": _ratios(performer, flash)}
    long = lengths.index(1024)
    smallest = {name: min(ratios[long:]) for name, ratios in others.items()}
    return Claim(
        (
            f"N {lengths[0]} … {lengths[-1]:,}, d = 64, the paper's k = min(N/8, 256), one head, "
            "forward, in elements"
        ),
        (
            f"flash and block_sparse {flash[0] / lengths[0]:g}N; "
            f"standard {of_standard[4096]:.0f} times at N = 4,096; "
        )
        + "from N = 1,024 on at least "
        + ", ".join(f"{name} {ratio:.1f} times" for name, ratio in smallest.items()),
        linear
        and of_standard[4096] >= 20
        and min(map(min, others.values())) > 1
        and min(smallest.values()) > 2,
        {
            "N": lengths,
            "flash": flash,
            "standard": standard,
            "linformer": linformer,
            "performer": performer,
        },
    )


def _ratios(sizes: Sequence[int], divisors: Sequence[int]) -> list[float]:
    return [size / divisor for size, divisor in zip(sizes, divisors, strict=True)]


def what_the_speedup_depends_on(full: bool) -> Claim:
    """Appendix E.5. The speed-up over standard attention is smaller at d = 128 and with a T4's
    smaller SRAM, and larger under a causal mask and with dropout. The share of accesses saved
    changes in the same direction.
    """
    cases: dict[str, dict[str, Any]] = {
        "d = 64": {},
        "d = 128": {"d": 128},
        "a T4's 64 KB": {"M": 64 * 256},
        "causal": {"mask": Causal()},
        "dropout": {"dropout_p": 0.1},
    }
    saved: dict[str, list[float]] = {case: [] for case in cases}
    lengths = [2**p for p in range(9, 15 if full else 13)]
    for N in lengths:
        for case, options in cases.items():
            arguments: dict[str, Any] = {"d": 64, "M": 192 * 256, "sizing": "fit", **options}
            standard = count("standard", N=N, **arguments).hbm.accesses
            flash = count("flash", N=N, **arguments).hbm.accesses
            saved[case].append(standard / flash)
    plain, *others = saved.values()
    holds = True
    for smaller in others[:2]:
        holds &= all(a < b for a, b in zip(smaller, plain, strict=True))
    for larger in others[2:]:
        holds &= all(a > b for a, b in zip(larger, plain, strict=True))
    return Claim(
        (
            f"flash against standard, forward, N {lengths[0]} … {lengths[-1]:,}, d = 64, M = 192 "
            "KB of float32, except where said"
        ),
        "times fewer accesses: "
        + ", ".join(f"{case} {min(r):.1f} to {max(r):.1f}" for case, r in saved.items()),
        holds,
        {"N": lengths, **saved},
    )

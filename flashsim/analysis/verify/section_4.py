"""Section 4 and Appendix E: the approximations that the paper names; memory and speed, as far as
counts can tell.
"""

from collections.abc import Callable
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
    first = {
        said: {
            f"{method}, {name}, M = {M:,}": _cross(
                method, name, M, of, range(step, last + step, step)
            )
            for M in (25_600, 49_152)
            for method in approximate.METHODS
            for name in ("flash", "q_outer")
        }
        for said, of in (("k = 256", lambda N: 256), ("the paper's k", approximate.compressed))
    }
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


def _cross(method: str, name: str, M: int, k: Callable[[int], int], lengths: range) -> int:
    not_fewer = (
        N
        for N in lengths
        if approximate.exact(method, N=N, d=64, k=k(N), M=M).hbm.accesses
        >= theory.exact(name, N=N, d=64, M=M, sizing="fit").accesses
    )
    return max(not_fewer, default=0) + lengths.step


def _footprint(moved: Traffic) -> int:
    return sum(array.size for array in moved.by_array.values())


def memory_footprint(full: bool) -> Claim:
    """Figure 3. FlashAttention and block-sparse FlashAttention take the same memory, operands and
    results included, which is linear in N. Standard attention takes many times as much. Linformer
    with its projections and Performer with φ take more, at least twice as much from N = 1,024 on.
    """
    lengths = [2**p for p in range(7, 17)]
    shape: dict[str, Any] = {"d": 64, "M": 25_600}
    flash, standard = (
        [_footprint(count(name, N=N, **shape).hbm) for N in lengths]
        for name in ("flash", "standard")
    )
    butterfly = {**shape, "block_mask": patterns.butterfly}
    sparse = [_footprint(count("block_sparse", N=N, **butterfly).hbm) for N in lengths]
    linformer, performer = (
        [
            _footprint(approximate.count(name, N=N, k=approximate.compressed(N), **shape).hbm)
            for N in lengths
        ]
        for name in ("linformer", "performer_materialised")
    )
    linear = flash == sparse == [(4 * 64 + 2) * N for N in lengths]
    most = {N: whole / own for N, whole, own in zip(lengths, standard, flash, strict=True)}
    others = {
        name: [its / own for its, own in zip(sizes, flash, strict=True)]
        for name, sizes in (("Linformer", linformer), ("Performer", performer))
    }
    long = lengths.index(1024)
    least = {name: min(ratios[long:]) for name, ratios in others.items()}
    return Claim(
        (
            f"N {lengths[0]} … {lengths[-1]:,}, d = 64, the paper's k = min(N/8, 256), one head, "
            "forward, in elements"
        ),
        (
            f"flash and block_sparse {flash[0] / lengths[0]:g}N; standard {most[4096]:.0f} times "
            "at N = 4,096; "
        )
        + "from N = 1,024 on at least "
        + ", ".join(f"{name} {ratio:.1f} times" for name, ratio in least.items()),
        linear
        and most[4096] >= 20
        and min(map(min, others.values())) > 1
        and min(least.values()) > 2,
        {
            "N": lengths,
            "flash": flash,
            "standard": standard,
            "linformer": linformer,
            "performer": performer,
        },
    )


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
            asked: dict[str, Any] = {"N": N, "d": 64, "M": 192 * 256, "sizing": "fit", **options}
            standard, flash = (count(name, **asked).hbm.accesses for name in ("standard", "flash"))
            saved[case].append(standard / flash)
    plain, *others = saved.values()
    less = others[:2]
    more = others[2:]
    holds = all(a < b for ratios in less for a, b in zip(ratios, plain, strict=True))
    holds &= all(a > b for ratios in more for a, b in zip(ratios, plain, strict=True))
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

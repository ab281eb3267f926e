"""What Section 4 and Appendix E say of memory and speed, as far as counts can tell."""

from __future__ import annotations

from typing import Any

from flashsim import approximate, patterns
from flashsim.api import count
from flashsim.masks import Causal
from flashsim.records import Traffic
from flashsim.verify.claim import Claim


def _footprint(moved: Traffic) -> int:
    """Return the elements of all arrays in HBM, operands and results included."""
    return sum(array.size for array in moved.by_array.values())


def memory_footprint(full: bool) -> Claim:
    """Figure 3. Memory, operands and results included: FlashAttention's and block-sparse FlashAttention's is the same,
    and linear in N; standard attention's is many times that; Linformer's with its projections and Performer's with φ are
    more, from N = 1,024 on twice."""
    lengths = [2**p for p in range(7, 17)]
    shape: dict[str, Any] = {"d": 64, "M": 25_600}
    options: dict[str, dict[str, Any]] = {
        "flash": {},
        "block_sparse": {"block_mask": patterns.butterfly},
        "standard": {},
    }
    flash, sparse, standard = (
        [_footprint(count(name, N=N, **shape, **more).hbm) for N in lengths] for name, more in options.items()
    )
    linformer, performer = (
        [_footprint(approximate.count(name, N=N, k=approximate.compressed(N), **shape).hbm) for N in lengths]
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
        f"N {lengths[0]} … {lengths[-1]:,}, d = 64, the paper's k = min(N/8, 256), one head, forward, in elements",
        f"flash and block_sparse {flash[0] / lengths[0]:g}N; standard {most[4096]:.0f} times at N = 4,096; "
        + "from N = 1,024 on at least "
        + ", ".join(f"{name} {ratio:.1f} times" for name, ratio in least.items()),
        linear and most[4096] >= 20 and min(map(min, others.values())) > 1 and min(least.values()) > 2,
        {"N": lengths, "flash": flash, "standard": standard, "linformer": linformer, "performer": performer},
    )


def what_the_speedup_depends_on(full: bool) -> Claim:
    """Appendix E.5. The speed-up over standard attention is less at d = 128, and with a T4's smaller SRAM; more under a
    causal mask, and with dropout; so is the share of accesses saved."""
    cases: dict[str, dict[str, Any]] = {
        "as it is": {},
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
    less, more = others[:2], others[2:]
    holds = all(a < b for ratios in less for a, b in zip(ratios, plain, strict=True))
    holds &= all(a > b for ratios in more for a, b in zip(ratios, plain, strict=True))
    return Claim(
        f"flash against standard, forward, N {lengths[0]} … {lengths[-1]:,}, d = 64, M = 192 KB of float32 but where said",
        "times fewer accesses: " + ", ".join(f"{case} {min(r):.1f} to {max(r):.1f}" for case, r in saved.items()),
        holds,
        {"N": lengths, **saved},
    )

"""Beyond the paper: the I/O complexity of attention in a small cache (Saha and Ye)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from flashsim import theory
from flashsim.verify.claim import Claim
from flashsim.verify.shared import accesses, exponents, slope, within


def _in_range(full: bool) -> Iterator[tuple[int, int, int]]:
    """Yield (N, d, M) over 5 ≤ M ≤ d² and N ≥ √M, both ends included, and M where the side of a tile steps."""
    for d in (3, 4, 16, 64, 128, 257):
        steps = {b * b + 4 * b + off for b in (1, 2, 3, 5, d // 4, d - 2) for off in (0, -1)}
        steps |= {int(M) for M in np.geomspace(5, d * d, 9 if full else 5)}
        for M in sorted({5, d * d, *steps} & {*range(5, d * d + 1)}):
            least = math.isqrt(M - 1) + 1  # ⌈√M⌉
            lengths = {2**p + off for p in range(2, 21 if full else 17, 2) for off in (0, 1)}
            yield from ((N, d, M) for N in sorted({least, least + 1, *lengths}) if least <= N)


def saha_ye_small_cache(full: bool) -> Claim:
    """Saha and Ye (arXiv 2402.07443). Accesses of small_cache: 4 ≤ accesses / (N²d/√M) ≤ 4√11 + 6 + 1/d for M ≤ d²;
    exponents N², d, M^(−1/2), within 0.02; fewer than FlashAttention's at M ≤ d²/4, more at M ≥ 4d²."""
    ratios = [
        (accesses("small_cache", N, d, M) / theory.theorem_saha_ye(N, d, M), *theory.small_cache_constants(d))
        for N, d, M in _in_range(full)
    ]
    fitted = exponents(
        "",
        {
            "N": (2.0, slope([(2**p, accesses("small_cache", 2**p, 2**10, 2**12)) for p in range(13, 21)])),
            "d": (1.0, slope([(2**p, accesses("small_cache", 2**16, 2**p, 2**12)) for p in range(10, 16)])),
            "M": (-0.5, slope([(2**p, accesses("small_cache", 2**16, 2**14, 2**p)) for p in range(12, 21)])),
        },
    )
    below: list[float] = []
    above: list[float] = []
    for d, k in itertools.product((64, 128, 256), (2, 4, 8)):
        for M, saved in ((d * d // k**2, below), (d * d * k**2, above)):
            saved.append(accesses("flash", 2**14, d, M) / accesses("small_cache", 2**14, d, M))
    return within(
        f"{len(ratios):,} (N, d, M) over 5 ≤ M ≤ d², N ≥ √M, N to {2**20 if full else 2**16:,}; slopes over N 2¹³…2²⁰, d "
        "2¹⁰…2¹⁵, M 2¹²…2²⁰, others fixed; against flash with the paper's blocks at N = 2¹⁴, d 64, 128, 256, M = d²/4 … d²/64 "
        "and 4d² … 64d²",
        ratios,
    ).also(
        f"slopes {fitted.measured}; flash / small_cache {min(below):.2f} to {max(below):.2f} below d², {min(above):.2f} to "
        f"{max(above):.2f} above",
        fitted.holds and min(below) > 1 > max(above),
        exponents=fitted.data,
        flash_over_small_cache={"below": below, "above": above},
    )

"""The closed forms, written from the paper and not from the simulator: the two must agree with `==`.

Symbols: N_q, N_k lengths (N when equal), d and d_v widths, M elements of SRAM, B_r × B_c tiles of S, T_r = ⌈N_q/B_r⌉,
T_c = ⌈N_k/B_c⌉.

`flash_basic` (Algorithm 1). K, V are read once. Each of the T_c outer steps reads all of Q, O, ℓ, m and writes O, ℓ, m:

    reads   N_k(d + d_v) + T_c·N_q(d + d_v + 2)        = 2Nd + T_c(2Nd + 2N)
    writes  N_q(d_v + 2) [line 2] + T_c·N_q(d_v + 2)   = Nd + 2N + T_c(Nd + 2N)
    peak    (B_r + B_c)(d + d_v) + B_r·B_c + 6B_r      K_j V_j Q_i O_i, S_ij, and ℓ, m: old, tile's, new

`standard` (Algorithm 0), with p = 1 if a row fits (N_k + 2 ≤ M), else 2:

    reads   Q: N_q·d   K: T_r·N_k·d   S: p·N_q·N_k   P: N_q·N_k   V: T_r·N_k·d_v
    writes  S: N_q·N_k   P: N_q·N_k   O: N_q·d_v

With T_r = p = 1 that is the proof's accounting, each operand read once: reads 3Nd + 2N², writes Nd + 2N².
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from flashsim.records import ArrayTraffic, Blocks, Occupancy, Role, Traffic

FORMULAS = {
    "flash_basic": {
        "Q": ("T_c * N_q * d", "0"),
        "K": ("N_k * d", "0"),
        "V": ("N_k * d_v", "0"),
        "O": ("T_c * N_q * d_v", "(T_c + 1) * N_q * d_v"),
        "l": ("T_c * N_q", "(T_c + 1) * N_q"),
        "m": ("T_c * N_q", "(T_c + 1) * N_q"),
    },
    "standard": {
        "Q": ("N_q * d", "0"),
        "K": ("T_r * N_k * d", "0"),
        "V": ("T_r * N_k * d_v", "0"),
        "S": ("p * N_q * N_k", "N_q * N_k"),
        "P": ("N_q * N_k", "N_q * N_k"),
        "O": ("0", "N_q * d_v"),
    },
}
"""(reads, writes) of each array, as text to read; p is 1 where a row fits in SRAM (N_k + 2 ≤ M), else 2."""

BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class Exact:
    """What theory says a run costs: `hbm`, `sram` and `blocks` must equal a run's and a tally's."""

    algorithm: str
    hbm: Traffic
    sram: Occupancy
    blocks: Blocks

    @property
    def reads(self) -> int:
        """Elements read from HBM."""
        return self.hbm.reads

    @property
    def writes(self) -> int:
        """Elements written to HBM, line 2's included."""
        return self.hbm.writes

    @property
    def init_writes(self) -> int:
        """Elements written by line 2."""
        return self.hbm.init_writes

    @property
    def accesses(self) -> int:
        """Reads + writes."""
        return self.hbm.accesses


def exact(
    name: str,
    *,
    N: int | None = None,
    d: int,
    M: int | None = None,
    N_q: int | None = None,
    N_k: int | None = None,
    d_v: int | None = None,
    heads: int = 1,
    dtype: DTypeLike = "float32",
    sizing: str = "paper",
    blocks: tuple[int, int] | None = None,
) -> Exact:
    """Return the exact counts of a run by formula. Arguments as in `flashsim.count`; unknown names raise ValueError.

    Theory does not refuse what does not fit: where `sram.peak` exceeds an enforced `sram.capacity`, a run would raise
    `SramOverflow`.
    """
    if name not in _FORMS:
        raise ValueError(f"no closed form for {name!r}; known: {', '.join(map(repr, _FORMS))}")
    n, k = (N if N_q is None else N_q), (N if N_k is None else N_k)
    if n is None or k is None:
        raise ValueError("a length is missing: give N, or both N_q and N_k")
    width = d if d_v is None else d_v
    width_in_bytes = BYTES.get("bfloat16" if str(dtype) == "bfloat16" else np.dtype(dtype).name)
    if width_in_bytes is None:
        raise ValueError(f"no closed form for dtype {dtype!r}; known: {', '.join(BYTES)}")
    M = 102_400 // width_in_bytes if M is None else M
    form = _FORMS[name]
    sizes = _sizes(form, n, k, d, width, M, sizing, blocks)
    traffic = form.traffic(n, k, d, width, M, sizes, width_in_bytes)
    enforced = blocks is not None or sizing == "fit"
    peak = form.peak(n, k, d, width, M, sizes.B_r, sizes.B_c)
    return Exact(name, traffic.times(heads), Occupancy(peak, M, enforced), sizes)


def _sizes(
    form: _Form, n: int, k: int, d: int, d_v: int, M: int, sizing: str, blocks: tuple[int, int] | None
) -> Blocks:
    if blocks is not None:
        B_r, B_c = blocks
    elif sizing == "paper":
        B_r, B_c = form.proportions(math.ceil(M / (2 * (d + d_v))), (d + d_v + 1) // 2)
    elif sizing == "fit":
        rows = 1
        for step in (2**e for e in range(40, -1, -1)):  # the largest that fits, by bits, as the peak grows with it
            B_r, B_c = form.proportions(rows + step, (d + d_v + 1) // 2)
            if rows + step <= max(n, k) and form.peak(n, k, d, d_v, M, min(B_r, n), min(B_c, k)) <= M:
                rows += step
        B_r, B_c = form.proportions(rows, (d + d_v + 1) // 2)
    else:
        raise ValueError(f"no closed form for sizing {sizing!r}; known: 'paper', 'fit', or blocks=(B_r, B_c)")
    B_r, B_c = min(B_r, n), min(B_c, k)
    return Blocks(B_r, B_c, math.ceil(n / B_r), math.ceil(k / B_c))


def _flash_basic_traffic(n: int, k: int, d: int, d_v: int, M: int, s: Blocks, width: int) -> Traffic:
    chip = max(width, 4)  # ℓ and m are kept at the chip's precision
    return Traffic(
        {
            "Q": _array(s.T_c * n * d, 0, 0, n * d, width, "input"),
            "K": _array(k * d, 0, 0, k * d, width, "input"),
            "V": _array(k * d_v, 0, 0, k * d_v, width, "input"),
            "O": _array(s.T_c * n * d_v, n * d_v + s.T_c * n * d_v, n * d_v, n * d_v, width, "output"),
            "l": _array(s.T_c * n, n + s.T_c * n, n, n, chip, "extra"),
            "m": _array(s.T_c * n, n + s.T_c * n, n, n, chip, "extra"),
        }
    )


def _flash_basic_peak(n: int, k: int, d: int, d_v: int, M: int, B_r: int, B_c: int) -> int:
    return (B_r + B_c) * (d + d_v) + B_r * B_c + 6 * B_r


def _standard_traffic(n: int, k: int, d: int, d_v: int, M: int, s: Blocks, width: int) -> Traffic:
    passes = 1 if k + 2 <= M else 2
    return Traffic(
        {
            "Q": _array(n * d, 0, 0, n * d, width, "input"),
            "K": _array(s.T_r * k * d, 0, 0, k * d, width, "input"),
            "V": _array(s.T_r * k * d_v, 0, 0, k * d_v, width, "input"),
            "S": _array(passes * n * k, n * k, 0, n * k, width, "extra"),
            "P": _array(n * k, n * k, 0, n * k, width, "extra"),
            "O": _array(0, n * d_v, 0, n * d_v, width, "output"),
        }
    )


def _standard_peak(n: int, k: int, d: int, d_v: int, M: int, B_r: int, B_c: int) -> int:
    product = (B_r + B_c) * max(d, d_v) + B_r * B_c
    softmax = min(n, M // (k + 2)) * (k + 2) if k + 2 <= M else min(k, max(M - 3, 1)) + 3
    return max(product, softmax)


def _array(reads: int, writes: int, init: int, size: int, itemsize: int, role: Role) -> ArrayTraffic:
    return ArrayTraffic(reads, writes, init, size, itemsize, role)


@dataclass(frozen=True)
class _Form:
    proportions: Callable[[int, int], tuple[int, int]]  # (rows, d) -> line 1's (B_r, B_c)
    traffic: Callable[[int, int, int, int, int, Blocks, int], Traffic]
    peak: Callable[[int, int, int, int, int, int, int], int]


_FORMS = {
    "standard": _Form(lambda rows, d: (rows, min(rows, d)), _standard_traffic, _standard_peak),
    "flash_basic": _Form(lambda rows, d: (min(rows, d), rows), _flash_basic_traffic, _flash_basic_peak),
}


# ------------------------------------------------------------------------------------------------------ Theorems 1, 2


def proof_accounting(N: int, d: int) -> tuple[int, int]:
    """Return (reads, writes) of standard attention when each operand is read once, as Theorem 2's proof counts."""
    return 3 * N * d + 2 * N * N, N * d + 2 * N * N


def matmul_flops(N_q: int, N_k: int, d: int, d_v: int) -> int:
    """Return the FLOPs of QKᵀ and PV, 2·N_q·N_k·(d + d_v): Theorem 1's O(N²d), the same for every exact algorithm."""
    return 2 * N_q * N_k * (d + d_v)


def theorem_2_flash(N: int, d: int, M: int) -> float:
    """Return N²d²/M."""
    return N * N * d * d / M


def theorem_2_standard(N: int, d: int) -> int:
    """Return Nd + N²."""
    return N * d + N * N


def flash_constants(d: int) -> tuple[float, float]:
    """Return c₁ ≤ accesses / (N²d²/M) ≤ c₂ for Algorithm 1 with the paper's blocks, for every N and d ≤ M ≤ Nd.

    Write X = N²d²/M. Accesses are 3Nd + 2N + T_c(3Nd + 4N) with T_c = ⌈N/B_c⌉, B_c = ⌈M/4d⌉ (≤ N, as M ≤ Nd).

    Below: B_c < M/4d + 1 ≤ M/4d + M/d = 5M/4d, as M ≥ d. So T_c ≥ N/B_c > 4Nd/5M, and 3Nd·T_c > 12/5·X.
    Above: B_c ≥ M/4d, so T_c < 4Nd/M + 1. As M ≤ Nd, Nd ≤ X and N ≤ X/d. Then
      T_c·3Nd < 12X + 3X,  T_c·4N < 16X/d + 4X/d,  3Nd + 2N ≤ 3X + 2X/d:  in all 18X + 22X/d.
    """
    return 12 / 5, 18 + 22 / d


def standard_constants() -> tuple[float, float]:
    """Return c₁ ≤ accesses / (Nd + N²) ≤ c₂ for Algorithm 0 as run here, for M ≥ d² and rows that fit (N + 2 ≤ M).

    Accesses are 2Nd + 2·T_r·Nd + 4N². Below: T_r ≥ 1. Above: B_r = ⌈M/4d⌉ or N, so T_r < 4Nd/M + 1, and
    2·T_r·Nd < 8N²d²/M + 2Nd ≤ 8N² + 2Nd, as M ≥ d². In all 4Nd + 12N².
    """
    return 4.0, 12.0


def standard_small_M_constants() -> tuple[float, float]:
    """Return c₁ ≤ accesses / (N²d²/M + N² + Nd) ≤ c₂ for Algorithm 0 as run here, for every N and d ≤ M ≤ Nd.

    Accesses are 2Nd + 2·T_r·Nd + (3 + p)·N², p ∈ {1, 2}. Below: as for Algorithm 1, T_r > 4Nd/5M, so
    2·T_r·Nd > 8/5·N²d²/M; the others have factors 2 and 4. Above: 2·T_r·Nd < 8N²d²/M + 2Nd; the others 4 and 5.
    """
    return 8 / 5, 8.0

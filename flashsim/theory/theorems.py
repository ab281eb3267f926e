"""Theorems 1, 2 and 5, Propositions 3 and 4: Θ expressions, and explicit constants derived for
them, none fitted.

Throughout X = N²d²/M, N = N_q = N_k, d = d_v, d ≤ M ≤ Nd, and blocks are the paper's. Two facts do
most of the work:

    (a)  ⌈M/4d⌉ < M/4d + 1 ≤ 5M/4d, as M ≥ d.  So T = ⌈N/⌈M/4d⌉⌉ > 4Nd/5M, and T·Nd > 4/5·X.
    (b)  ⌈M/4d⌉ ≥ M/4d.  So T < 4Nd/M + 1, and T·Nd < 4X + Nd ≤ 5X, as M ≤ Nd gives Nd ≤ X.

T is T_c for FlashAttention and T_r for standard attention; ⌈M/4d⌉ ≤ N wherever M ≤ Nd, so clipping
to N changes nothing.

The last part is Saha and Ye's bound for M < d². It is from another paper, and its blocks are not
the paper's.
"""

from __future__ import annotations

import math
from fractions import Fraction

from flashsim.attention.arguments import (
    check_count,
    check_direction,
    check_flag,
    check_number,
    whole_numbers,
)
from flashsim.attention.shapes import Blocks
from flashsim.memory.traffic import Traffic
from flashsim.theory.form import Form, form_of
from flashsim.theory.problem import OneHead

# --------------------------------------------------------------------------------------------------
# Theorem 1


@whole_numbers("N_q", "N_k", "d", "d_v")
def matmul_flops(
    N_q: int,
    N_k: int,
    d: int,
    d_v: int,
    *,
    name: str | Form = "flash",
    direction: str = "forward",
    area: int | None = None,
) -> int:
    """Return the FLOPs of the matrix products, 2·N_q·N_k·(a·d + b·d_v): Theorem 1's O(N²d) for
    every exact algorithm.

    Forward a = b = 1 (QKᵀ and PV), except for "memory_efficient", which computes QKᵀ twice.
    Backward, FlashAttention's a = 3, b = 2 exceed standard attention's a = b = 2 by the S that it
    recomputes. `area` is how many elements of S are computed, if not all N_q·N_k. Raises ValueError
    for an unknown name or direction.
    """
    area = N_q * N_k if area is None else check_count("area", area, 0, N_q * N_k)
    return form_of(name, direction).products_flops(area, d, d_v)


@whole_numbers("N_q", "N_k", "d", "d_v", "B_c", "B_r")
def extra_memory(
    name: str | Form,
    N_q: int,
    N_k: int,
    d: int,
    d_v: int,
    B_c: int,
    dropout: bool = False,
    direction: str = "forward",
    B_r: int = 1,
) -> int:
    """Return the elements that an algorithm keeps in HBM besides its inputs and outputs:
    `Traffic.extra`.

    2N for FlashAttention, ℓ and m (Theorem 1); 2N² for standard attention, S and P. What the
    forward pass kept is input to the backward pass. Raises ValueError for an unknown name or
    direction.
    """
    check_flag("dropout", dropout)
    form = form_of(name, direction)
    options = {option.name: option.default for option in form.options}
    # whatever M is, and the type
    p = OneHead(N_q, N_k, d, d_v, 1, 4, False, (), dropout and not form.plain, options=options)
    arrays = form.traffic_by_array(p, Blocks(B_r, B_c, N_q=N_q, N_k=N_k), p.tiles(B_r, B_c))
    return Traffic(arrays).extra


# --------------------------------------------------------------------------------------------------
# Theorem 2


@whole_numbers("N", "d")
def proof_accounting(N: int, d: int, direction: str = "forward") -> tuple[int, int]:
    """Return (reads, writes) of standard attention when each product reads each operand once, as
    the proofs count.
    """
    check_direction(direction)
    if direction == "forward":
        return 3 * N * d + 2 * N * N, N * d + 2 * N * N
    return 5 * N * d + 5 * N * N, 3 * N * d + 2 * N * N


@whole_numbers("N", "d", "M")
def theorem_2_flash(N: int, d: int, M: int) -> float:
    """Return N²d²/M."""
    return N * N * d * d / M


@whole_numbers("N", "d")
def theorem_2_standard(N: int, d: int) -> int:
    """Return Nd + N²."""
    return N * d + N * N


@whole_numbers("d")
def flash_constants(d: int) -> tuple[float, float]:
    """Return c₁ ≤ accesses / (N²d²/M) ≤ c₂ for Algorithm 1 with the paper's blocks, for every N and
    d ≤ M ≤ Nd.

    Write X = N²d²/M. Accesses are 3Nd + 2N + T_c(3Nd + 4N) with T_c = ⌈N/B_c⌉, B_c = ⌈M/4d⌉ (≤ N,
    as M ≤ Nd).

    Below: B_c < M/4d + 1 ≤ M/4d + M/d = 5M/4d, as M ≥ d. So T_c ≥ N/B_c > 4Nd/5M, and 3Nd·T_c >
    12/5·X.
    Above: B_c ≥ M/4d, so T_c < 4Nd/M + 1. As M ≤ Nd, Nd ≤ X and N ≤ X/d. Then
      T_c·3Nd < 12X + 3X,  T_c·4N < 16X/d + 4X/d,  3Nd + 2N ≤ 3X + 2X/d:  in all 18X + 22X/d.
    """
    return 12 / 5, 18 + 22 / d


def standard_constants() -> tuple[float, float]:
    """Return c₁ ≤ accesses / (Nd + N²) ≤ c₂ for Algorithm 0 as run here, for M ≥ d² and rows that
    fit (N + 2 ≤ M).

    Accesses are 2Nd + 2·T_r·Nd + 4N². Below: T_r ≥ 1. Above: B_r = ⌈M/4d⌉ or N, so T_r < 4Nd/M + 1,
    and 2·T_r·Nd < 8N²d²/M + 2Nd ≤ 8N² + 2Nd, as M ≥ d². In all 4Nd + 12N².
    """
    return 4.0, 12.0


def standard_small_M_constants() -> tuple[float, float]:
    """Return c₁ ≤ accesses / (N²d²/M + N² + Nd) ≤ c₂ for Algorithm 0 as run here, for every N and d
    ≤ M ≤ Nd.

    Accesses are 2Nd + 2·T_r·Nd + (3 + p)·N², p ∈ {1, 2}. Below: as for Algorithm 1, T_r > 4Nd/5M,
    so 2·T_r·Nd > 8/5·N²d²/M; the others have factors 2 and 4. Above: 2·T_r·Nd < 8N²d²/M + 2Nd; the
    others 4 and 5.
    """
    return 8 / 5, 8.0


# --------------------------------------------------------------------------------------------------
# Theorem 5


@whole_numbers("N", "d", "M")
def theorem_5_flash(N: int, d: int, M: int) -> float:
    """Return N²d²/M: the backward pass has the forward pass's Θ."""
    return theorem_2_flash(N, d, M)


@whole_numbers("N", "d")
def theorem_5_standard(N: int, d: int) -> int:
    """Return Nd + N²: the backward pass has the forward pass's Θ."""
    return theorem_2_standard(N, d)


@whole_numbers("d")
def flash_backward_constants(d: int) -> tuple[float, float]:
    """Return c₁ ≤ accesses / (N²d²/M) ≤ c₂ for Algorithm 4 with the paper's blocks, for every N and
    d ≤ M ≤ Nd.

    Accesses are 2Nd + T_c(4Nd + 2N) read, 3Nd + T_c·Nd + 2Nd written: 7Nd + T_c(5Nd + 2N) in all.

    Below, by (a): 5·T_c·Nd > 4X.
    Above, by (b): 5·T_c·Nd < 25X,  2·T_c·N < 10X/d,  7Nd ≤ 7X:  in all 32X + 10X/d.
    """
    return 4.0, 32 + 10 / d


def standard_backward_constants() -> tuple[float, float]:
    """Return c₁ ≤ accesses / (Nd + N²) ≤ c₂ for Algorithm 3 as run here, for M ≥ d² and rows that
    fit (2N + 1 ≤ M).

    Each of the four products reads one operand T_r times (dO, V, K, Q; as N_q = N_k, U_c = T_r),
    and line 2 reads dO once; dQ, dK, dV are written; P is read twice, dP once, dS twice, and dP, dS
    are written: (4T_r + 4)Nd + 7N².

    Below: T_r ≥ 1, so 8Nd + 7N². Above: T_r < 4Nd/M + 1, so 4·T_r·Nd < 16N²d²/M + 4Nd ≤ 16N² + 4Nd,
    as M ≥ d². In all 8Nd + 23N². (Where M > Nd, B_r is N and T_r = 1, which the same bound covers.)
    """
    return 7.0, 23.0


def standard_backward_small_M_constants() -> tuple[float, float]:
    """Return c₁ ≤ accesses / (N²d²/M + N² + Nd) ≤ c₂ for Algorithm 3 as run here, for every N and d
    ≤ M ≤ Nd.

    Rows that do not fit are read p = 2 times: (4T_r + 4)Nd + (5 + 2p)N². Below, by (a): 4·T_r·Nd >
    16/5·X; the others have factors 7 and 4. Above, by (b): 4·T_r·Nd < 16X + 4Nd; the others have 9
    and 4 + 4.
    """
    return 16 / 5, 16.0


@whole_numbers("d")
def q_outer_constants(d: int, direction: str = "forward") -> tuple[float, float]:
    """Return c₁ ≤ accesses / (N²d²/M) ≤ c₂ for "q_outer" with its own blocks, for every N and d ≤ M
    ≤ Nd.

    Forward, accesses are 2Nd + N + 2·T_r·Nd. Below, by (a): 2·T_r·Nd > 8/5·X. Above, by (b):
    2·T_r·Nd < 8X + 2Nd, so with Nd ≤ X and N ≤ X/d in all 12X + X/d.

    Backward, dQ accumulated: K, V, O, dO read once besides, D written, dQ set to 0, dK and dV
    written, 7Nd + N, and T_c(4Nd + 2N) for Q, dO, L, D and dQ, read and written. Below: 4·T_c·Nd >
    16/5·X. Above: 4·T_c·Nd < 16X + 4Nd and 2·T_c·N < 8X/d + 2N: in all 27X + 11X/d.
    """
    check_direction(direction)
    if direction == "forward":
        return 8 / 5, 12 + 1 / d
    return 16 / 5, 27 + 11 / d


# --------------------------------------------------------------------------------------------------
# Proposition 3


@whole_numbers("N_q", "N_k", "d", "d_v")
def compulsory(N_q: int, N_k: int, d: int, d_v: int, direction: str = "forward") -> int:
    """Return what any exact algorithm must move: its inputs read once, its outputs written once.

    Forward: Q, K, V in, O out: 4Nd. Backward: Q, K, V, dO in, dQ, dK, dV out: 7Nd. (O, ℓ and m
    follow from Q, K, V, so that reading them is a choice.) Every entry matters: a change of any
    input element changes the result for some value of the others. This is Proposition 3's Ω(Nd) at
    M = Θ(Nd), where N²d²/M is Θ(Nd) too.
    """
    check_direction(direction)
    forward = N_q * d + N_k * (d + d_v) + N_q * d_v
    return forward if direction == "forward" else forward + N_q * d + N_k * (d + d_v)


@whole_numbers("d")
def flash_over_compulsory_constant(
    d: int, direction: str = "forward", c: float | Fraction = Fraction(1, 4)
) -> Fraction:
    """Return C with accesses ≤ C · `compulsory` for FlashAttention with the paper's blocks,
    whenever c·Nd ≤ M ≤ Nd.

    B_c ≥ M/4d ≥ cN/4, so T_c = ⌈N/B_c⌉ ≤ ⌈4/c⌉ =: t (4 for M = Nd, 16 for M = Nd/4). Then
      forward   (3Nd + 2N + T_c(3Nd + 4N)) / 4Nd ≤ (3 + 2/d + t(3 + 4/d)) / 4
      backward  (7Nd + T_c(5Nd + 2N)) / 7Nd      ≤ 1 + t(5 + 2/d) / 7
    Both are attained where T_c = t, so C is a fraction: compare accesses ≤ C · compulsory exactly.
    """
    check_direction(direction)
    part = check_number("c", c, "0 < c ≤ 1, as c·Nd ≤ M ≤ Nd", lambda c: 0 < c <= 1)
    t = math.ceil(4 / (c if isinstance(c, Fraction) else Fraction(part)))
    if direction == "forward":
        return (3 + Fraction(2, d) + t * (3 + Fraction(4, d))) / 4
    return 1 + t * (5 + Fraction(2, d)) / 7


# --------------------------------------------------------------------------------------------------
# Proposition 4


@whole_numbers("N", "d", "M")
def proposition_4(N: int, d: int, M: int, s: float) -> float:
    """Return Nd + N²d²s/M, where s is the fraction of the T_r × T_c tiles that are computed."""
    return N * d + check_number(
        "s", s, "a fraction from 0 to 1", lambda s: 0 <= s <= 1
    ) * theorem_2_flash(N, d, M)


@whole_numbers("d")
def block_sparse_constants(d: int, direction: str = "forward") -> tuple[float, float]:
    """Return c₁ ≤ accesses / (Nd + N²d²s/M) ≤ c₂ for Algorithm 5, whatever the block mask, every N
    and d ≤ M ≤ Nd.

    Let z tiles be computed, s = z/(T_r·T_c), and A the sum of their rows. Accesses are
      forward   3Nd + 2N + A(3d + 4)
      backward  7Nd + A(5d + 2).

    Above: a tile has at most B_r rows, so A ≤ z·B_r = s·T_c·T_r·B_r. As M ≤ Nd, B_r ≤ ⌈M/4d⌉ ≤
    ⌈N/4⌉ ≤ (N + 3)/4, and
      T_r·B_r ≤ N + B_r − 1 < 5N/4.
    By (b) A·d ≤ s·(5/4)·T_c·Nd ≤ 25/4·sX. So forward at most (3 + 2/d)Nd + (3 + 4/d)·25/4·sX,
    backward at most 7Nd + (5 + 2/d)·25/4·sX, and c₂ is the larger factor, the second.

    Below: of the tiles, let u be in the last row of tiles, which may be short, and v in the others,
    of B_r rows: A ≥ v·B_r.
      u ≤ T_c, so its part of sX is at most X/T_r ≤ X·B_r/N, and B_r ≤ ⌈M/4d⌉ < 5M/4d makes that
      less than 5/4·Nd.
      v's part is X·v/(T_r·T_c) ≤ 5/4·Nd·v/T_r by (a), which is at most 5/4·v·B_r·d, as N ≤ T_r·B_r.
    So Nd + sX ≤ 9/4·Nd + 5/4·A·d, whereas accesses are at least 3Nd + 3A·d (backward 7Nd + 5A·d):
    c₁ = min(3·4/9, 3·4/5) = 4/3, backward min(7·4/9, 5·4/5) = 28/9.
    """
    check_direction(direction)
    if direction == "forward":
        return 4 / 3, (3 + 4 / d) * 25 / 4
    return 28 / 9, (5 + 2 / d) * 25 / 4


# --------------------------------------------------------------------------------------------------
# Saha and Ye


@whole_numbers("N", "d", "M")
def theorem_saha_ye(N: int, d: int, M: int) -> float:
    """Return N²d/√M: what attention costs where M < d² (B. Saha, C. Ye, arXiv 2402.07443).

    There it is at most N²d²/M, FlashAttention's, of which it is the part √M/d, and at least N²,
    what writing S costs.
    """
    return N * N * d / math.sqrt(M)


@whole_numbers("d")
def small_cache_constants(d: int, least: int = 5) -> tuple[float, float]:
    """Return c₁ ≤ accesses / (N²d/√M) ≤ c₂ for "small_cache" with its own blocks, for `least` ≤ M ≤
    d² and N ≥ √M.

    `least` is at least 5, below which not even tiles of one element fit. Write Y = N²d/√M,
    T = ⌈N/b⌉, T_v = ⌈d/b⌉, where b, the side of a tile, is the largest with b² + 4b ≤ M.
    So b < √M ≤ N: nothing is clipped. Accesses are
      Q, K, V: 3T·Nd   S: T_v·N² read, N² written   O, L: Nd + N.

    Below: T > N/√M and T_v > d/√M, so 3T·Nd + T_v·N² > 4Y.
    Above: b + 1 is too large, so M < (b + 1)² + 4(b + 1) = b² + 6b + 5, and √M ≤ ρb with ρ² = 1 +
    6/b + 4/b². Then
      3T·Nd < 3N²d/b + 3Nd ≤ 3ρY + 3Nd,  T_v·N² < N²d/b + N² ≤ ρY + N²:  in all 4ρY + 4Nd + 2N² + N.
    Nd ≤ Y, as √M ≤ N; N² ≤ Y, as √M ≤ d; N ≤ Y/d: in all (4ρ + 6 + 1/d)Y. ρ falls as b grows, so
    the ρ of `least` serves for every M from there on: √11 from M = 5, 1.16 from M = 396 (b = 18),
    and 1 in the limit.
    """
    b = (
        math.isqrt(check_count("least, the room of tiles of one element at least,", least, 5) + 4)
        - 2
    )
    return 4.0, 4 * math.sqrt(1 + 6 / b + 4 / b**2) + 6 + 1 / d

"""Beyond the paper: attention in a small cache (Saha and Ye), and what no schedule can beat."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from flashsim import theory
from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.algorithms.record import Algorithm
from flashsim.analysis.games.checker import check as check_optimum
from flashsim.analysis.optima import optimum
from flashsim.analysis.proving import Proof
from flashsim.analysis.tune import best_of
from flashsim.analysis.verify.shared import Claim, accesses, exponents, slope, within
from flashsim.attention.masks.rules import Causal
from flashsim.theory import (
    form_of,
    lower_bound,
    lower_bound_backward,
    lower_bound_rows,
)
from flashsim.theory.bounds import certificate


def _small_caches(full: bool) -> Iterator[tuple[int, int, int]]:
    """Yield (N, d, M) over 5 ≤ M ≤ d² and N ≥ √M, both ends included, and M where the side of a
    tile steps.
    """
    powers = [2**p for p in range(2, 21 if full else 17, 2)]
    lengths = {*powers, *(power + 1 for power in powers)}
    for d in (3, 4, 16, 64, 128, 257):
        sizes = {5, d * d}
        for side in (1, 2, 3, 5, d // 4, d - 2):
            step = side * side + 4 * side
            sizes |= {step, step - 1}
        sizes |= {int(M) for M in np.geomspace(5, d * d, 9 if full else 5)}
        for M in sorted(size for size in sizes if 5 <= size <= d * d):
            shortest = math.isqrt(M - 1) + 1  # ⌈√M⌉
            for N in sorted({shortest, shortest + 1, *lengths}):
                if shortest <= N:
                    yield N, d, M


def saha_ye_small_cache(full: bool) -> Claim:
    """Saha and Ye (arXiv 2402.07443). For small_cache, 4 ≤ accesses / (N²d/√M) ≤ 4√11 + 6 + 1/d if
    M ≤ d², with exponents N², d, M^(−1/2) within 0.02. It makes fewer accesses than FlashAttention
    at M ≤ d²/4, and more at M ≥ 4d².
    """
    ratios = []
    for N, d, M in _small_caches(full):
        ratio = accesses("small_cache", N, d, M) / theory.theorem_saha_ye(N, d, M)
        ratios.append((ratio, *theory.small_cache_constants(d)))
    over_N = [(2**p, accesses("small_cache", 2**p, 2**10, 2**12)) for p in range(13, 21)]
    over_d = [(2**p, accesses("small_cache", 2**16, 2**p, 2**12)) for p in range(10, 16)]
    over_M = [(2**p, accesses("small_cache", 2**16, 2**14, 2**p)) for p in range(12, 21)]
    fits = {"N": (2.0, slope(over_N)), "d": (1.0, slope(over_d)), "M": (-0.5, slope(over_M))}
    fitted = exponents("", fits)
    below = []
    above = []
    for d, k in itertools.product((64, 128, 256), (2, 4, 8)):
        below.append(_flash_over_small_cache(d, d * d // k**2))
        above.append(_flash_over_small_cache(d, d * d * k**2))
    return within(
        ratios,
        f"(N, d, M) over 5 ≤ M ≤ d², N ≥ √M, N to {2**20 if full else 2**16:,}; slopes over N "
        "2¹³…2²⁰, d 2¹⁰…2¹⁵, M 2¹²…2²⁰, others fixed; against flash with the paper's blocks at N "
        "= 2¹⁴, d 64, 128, 256, M = d²/4 … d²/64 and 4d² … 64d²",
    ).also(
        f"slopes {fitted.measured}; flash / small_cache {min(below):.2f} to {max(below):.2f} below "
        f"d², {min(above):.2f} to {max(above):.2f} above",
        fitted.holds and min(below) > 1 > max(above),
        exponents=fitted.data,
        flash_over_small_cache={"below": below, "above": above},
    )


def _flash_over_small_cache(d: int, M: int) -> float:
    return accesses("flash", 2**14, d, M) / accesses("small_cache", 2**14, d, M)


def nothing_below_the_lower_bound(full: bool) -> Claim:
    """Lower bound (flashsim.theory.bounds.forward). No algorithm makes fewer HBM accesses than the
    forward lower bound, and its certificates are valid.
    """
    algorithms = [each for name, each in FORWARD.items() if not each.options or name == "split_kv"]
    return _nothing_below(algorithms, lower_bound, full)


def nothing_below_the_backward_bound(full: bool) -> Claim:
    """Lower bound (flashsim.theory.bounds.backward). No algorithm makes fewer HBM accesses than the
    backward lower bound, and its certificates are valid.
    """
    return _nothing_below(
        [each for each in BACKWARD.values() if not each.options], lower_bound_backward, full
    )


def _nothing_below(algorithms: list[Algorithm], bound_of: Callable[..., Any], full: bool) -> Claim:
    direction = algorithms[0].direction
    rng = np.random.default_rng(12)
    shapes = 3_000 if full else 200
    runs = 0
    smallest_ratio = np.inf
    valid = 0
    for number in range(shapes):
        N_q, N_k, d, d_v = (int(size) for size in rng.integers(1, (150, 150, 24, 24)))
        sizes: dict[str, Any] = {
            "N_q": N_q,
            "N_k": N_k,
            "d": d,
            "d_v": d_v,
            "M": int(10 ** rng.uniform(1, 4)),
        }
        mask = Causal() if rng.integers(2) else None
        rows = np.clip(np.arange(N_q) + 1 + N_k - N_q, 0, N_k) if mask else np.full(N_q, N_k)
        queries = int((rows > 0).sum())
        bound = bound_of(**sizes, pairs=int(rows.sum()), queries=queries)
        proof = Proof(bound, "causal" if mask else "all", queries, N_k, None, direction)
        valid += _proves(certificate.check, proof.certificate())
        blocks: dict[str, Any] = (
            {"sizing": "fit"} if number % 2 else {"blocks": (int(rng.integers(1, 30)), 1)}
        )
        for algorithm in algorithms:
            if mask is not None and "MASK" not in algorithm.parts:
                continue
            exact = theory.exact(algorithm.name, **sizes, **blocks, mask=mask, direction=direction)
            if exact.sram.peak <= exact.sram.capacity:
                runs += 1
                smallest_ratio = min(smallest_ratio, exact.accesses / bound.accesses)
    return Claim(
        f"{runs:,} runs that fit M, of {len(algorithms)} algorithms at {shapes:,} shapes, N < 150, "
        "d < 24, M 10 … 10⁴, full and "
        f"causal; {valid:,} certificates",
        f"accesses ÷ bound at least {smallest_ratio:.3f}",
        smallest_ratio >= 1 and valid == shapes,
        {"runs": runs, "least": float(smallest_ratio), "certificates": valid},
    )


def _proves(check: Callable[..., str], certificate: Mapping[str, Any]) -> bool:
    with suppress(ValueError):
        return bool(check(certificate))
    return False


def q_outer_is_optimal(full: bool) -> Claim:
    """Lower bound (flashsim.theory.bounds.forward). q_outer is optimal to the leading constant:
    accesses ÷ bound falls with N, below 1.05.
    """
    ratios = []
    for N in (1024, 4096, 16_384, 65_536):
        best = best_of("q_outer", N=N, d=64, M=25_600)
        assert best is not None
        ratios.append(best.accesses / lower_bound(N=N, d=64, M=25_600).accesses)
    cases = "N 1,024 … 65,536, d = 64, M = 25,600, the best blocks that fit"
    holds = (
        all(1 <= later < earlier for earlier, later in itertools.pairwise(ratios))
        and ratios[-1] < 1.05
    )
    return Claim(cases, ", ".join(f"{ratio:.3f}" for ratio in ratios), holds, {"ratios": ratios})


def fourteen_is_the_constant_of_the_row_game(full: bool) -> Claim:
    """Lower bound (flashsim.theory.bounds.rows). Of backward passes that move whole rows and keep
    nothing of a pair, none moves less than about 14 N²d²/M. q_outer_streamed moves about that:
    accesses ÷ bound falls with N, below 1.03.
    """
    names = [
        name for name in BACKWARD if not {"S", "P", "dS"} & {*form_of(name, "backward").formulas}
    ]
    smallest_ratio = math.inf
    runs = 0
    ratios = []
    for N, d, M in itertools.product((50, 333), (4, 16), (90, 700, 3000)):
        bound = lower_bound_rows(N=N, d=d, M=M)
        if not bound:
            continue
        for name in names:
            choice = best_of(name, N=N, d=d, M=M, direction="backward")
            if choice is not None:
                runs += 1
                smallest_ratio = min(smallest_ratio, choice.accesses / bound)
    for N in (1024, 4096, 16_384, 65_536):
        sizes = {"N": N, "d": 64, "M": 25_600}
        best = best_of("q_outer_streamed", **sizes, direction="backward")
        assert best is not None
        ratios.append(best.accesses / lower_bound_rows(**sizes))
    return Claim(
        (
            f"{runs} runs of {', '.join(names)}, the best blocks that fit; q_outer_streamed at N "
            "1,024 … 65,536, d = 64, M = 25,600"
        ),
        (
            f"accesses ÷ bound at least {smallest_ratio:.3f}; q_outer_streamed: "
            f"{', '.join(f'{ratio:.3f}' for ratio in ratios)}"
        ),
        min(smallest_ratio, *ratios) >= 1
        and ratios == sorted(ratios, reverse=True)
        and ratios[-1] < 1.03,
        {"runs": runs, "least": float(smallest_ratio), "ratios": ratios},
    )


def the_backward_schedule_of_fewest_accesses(full: bool) -> Claim:
    """Lower bound (flashsim.theory.bounds.backward). Of the backward passes, q_outer_streamed moves
    the least: accesses ÷ bound falls with N, below 1.42 (14 ÷ 10.53 is 1.33).
    """
    names = ("flash", "q_outer", "q_outer_two_pass", "streamed")
    ratios = []
    fewest = True
    for N in (1024, 4096, 16_384, *((65_536,) if full else ())):
        sizes: dict[str, Any] = {"N": N, "d": 64, "M": 25_600}
        best = best_of("q_outer_streamed", **sizes, direction="backward")
        others = [best_of(name, **sizes, direction="backward") for name in names]
        assert best is not None
        fewest &= all(other is not None and best.accesses < other.accesses for other in others)
        ratios.append(best.accesses / lower_bound_backward(**sizes).accesses)
    return Claim(
        (
            f"{len(ratios)} lengths from N = 1,024, d = 64, M = 25,600, the best blocks that fit; "
            f"{', '.join(names)} move more"
        ),
        ", ".join(f"{ratio:.3f}" for ratio in ratios) + ("" if fewest else "; ANOTHER MOVES LESS"),
        fewest
        and all(1 <= later < earlier for earlier, later in itertools.pairwise(ratios))
        and ratios[-1] < 1.42,
        {"ratios": ratios},
    )


def nothing_below_the_optima(full: bool) -> Claim:
    """Exact optima (flashsim.analysis.games). The lower bound is at most the optimum, where the
    optimum is known.
    """
    rng = np.random.default_rng(5)
    problems = 300 if full else 40
    smallest_ratio = np.inf
    valid = 0
    for _ in range(problems):
        N_q, N_k, d, d_v = (int(size) for size in rng.integers(1, (4, 4, 6, 6)))
        smallest = 2 * d + 2 * d_v + 3
        M = int(rng.integers(smallest, 2 * smallest))
        best = optimum(N_q=N_q, N_k=N_k, d=d, d_v=d_v, M=M, causal=bool(rng.integers(2)))
        bound = lower_bound(
            N_q=N_q,
            N_k=N_k,
            d=d,
            d_v=d_v,
            M=M,
            pairs=int(best.allowed.sum()),
            queries=int(best.allowed.any(axis=1).sum()),
            keys=int(best.allowed.any(axis=0).sum()),
        )
        smallest_ratio = min(smallest_ratio, best.upper / bound.accesses)
        valid += _proves(check_optimum, best.certificate())
    cases = f"{problems} problems of up to 3 × 3 rows, d < 6, full and causal; {valid} certificates"
    measured = f"optimum ÷ bound at least {smallest_ratio:.3f}"
    holds = smallest_ratio >= 1 and valid == problems
    return Claim(
        cases,
        measured,
        holds,
        {"problems": problems, "least": float(smallest_ratio), "certificates": valid},
    )


def schedules_near_the_bound(full: bool) -> Claim:
    """Lower bound (flashsim.theory.bounds.forward). As M grows, the best schedule is first
    tiles_streamed, about d² hybrid_streamed, then streamed, each within 1.6 times the bound.
    """
    names = ("tiles_streamed", "hybrid_streamed", "streamed")
    worst = 0.0
    winners = []
    for exponent in range(-8, 11, 1 if full else 2):
        M = int(64 * 64 * 2 ** (exponent / 2))
        choices = [best_of(name, N=4096, d=64, M=M) for name in names]
        fitting = [choice for choice in choices if choice is not None]
        best = min(fitting, key=lambda choice: choice.accesses)
        worst = max(worst, best.accesses / lower_bound(N=4096, d=64, M=M).accesses)
        winners.append(best.algorithm)
    cases = f"{len(winners)} M from d²/16 to 32 d², N = 4,096, d = 64, the best blocks that fit"
    measured = f"at most {worst:.3f} times the bound; best: {', '.join(dict.fromkeys(winners))}"
    holds = 1 <= worst < 1.6 and tuple(dict.fromkeys(winners)) == names
    return Claim(cases, measured, holds, {"worst": worst, "best": winners})

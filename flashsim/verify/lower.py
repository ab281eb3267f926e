"""Beyond the paper: what no schedule can beat."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from flashsim.algorithms import FORWARD
from flashsim.api import count
from flashsim.certificate import check
from flashsim.exact.certificate import check as check_optimum
from flashsim.masks import Causal
from flashsim.memory import SramOverflow
from flashsim.optima import optimum
from flashsim.proving import Proof
from flashsim.theory import lower_bound
from flashsim.tune import best_of
from flashsim.verify.claim import Claim

_SOURCE = "Lower bound (flashsim.theory.lower)"


def nothing_below_the_lower_bound(full: bool) -> Claim:
    """No algorithm moves less than the bound, at random shapes, with and without a causal mask; and certificates check."""
    rng = np.random.default_rng(12)
    wanted, tried, least, checked = 3_000 if full else 150, 0, np.inf, 0
    names = [name for name, algorithm in FORWARD.items() if not algorithm.options or name == "split_kv"]
    while tried < wanted:
        N_q, N_k, d, d_v = (int(size) for size in rng.integers(1, (150, 150, 24, 24)))
        sizes: dict[str, Any] = {"N_q": N_q, "N_k": N_k, "d": d, "d_v": d_v, "M": int(10 ** rng.uniform(1, 4))}
        mask = Causal() if rng.integers(2) else None
        rows = np.clip(np.arange(N_q) + 1 + N_k - N_q, 0, N_k) if mask else np.full(N_q, N_k)
        queries = int((rows > 0).sum())
        bound = lower_bound(**sizes, pairs=int(rows.sum()), queries=queries)
        try:
            tally = count(names[tried % len(names)], **sizes, sizing="fit", mask=mask)
        except (SramOverflow, ValueError):  # nothing fits
            continue
        tried, least = tried + 1, min(least, tally.hbm.accesses / bound.accesses)
        checked += bool(check(Proof(bound, "causal" if mask else "all", queries, N_k, None).certificate()))
    return Claim(
        _SOURCE,
        "no algorithm makes fewer HBM accesses than the lower bound",
        f"{wanted:,} runs of {len(names)} algorithms, N < 150, d < 24, M 10 … 10⁴, full and causal; {checked} certificates",
        f"accesses ÷ bound at least {least:.3f}",
        least >= 1,
        {"runs": wanted, "least": float(least), "certificates": checked},
    )


def q_outer_is_optimal(full: bool) -> Claim:
    """With Q outermost and the best blocks, accesses ÷ bound falls towards 1 as N grows."""
    ratios = []
    for N in (1024, 4096, 16_384, 65_536):
        best = best_of("q_outer", N=N, d=64, M=25_600)
        assert best is not None
        ratios.append(best.accesses / lower_bound(N=N, d=64, M=25_600).accesses)
    return Claim(
        _SOURCE,
        "q_outer is optimal to the leading constant: accesses ÷ bound falls with N, below 1.05",
        "N 1,024 … 65,536, d = 64, M = 25,600, the best blocks that fit",
        ", ".join(f"{ratio:.3f}" for ratio in ratios),
        all(1 <= later < earlier for earlier, later in pairwise(ratios)) and ratios[-1] < 1.05,
        {"ratios": ratios},
    )


def nothing_below_exact_optima(full: bool) -> Claim:
    """The bound is at most the optimum of small problems, which are searched for; their certificates check."""
    rng = np.random.default_rng(5)
    wanted, least, checked = 300 if full else 40, np.inf, 0
    for _ in range(wanted):
        N_q, N_k, d, d_v = (int(size) for size in rng.integers(1, (4, 4, 6, 6)))
        smallest = 2 * d + 2 * d_v + 3
        M = int(rng.integers(smallest, 2 * smallest))
        found = optimum(N_q=N_q, N_k=N_k, d=d, d_v=d_v, M=M, causal=bool(rng.integers(2)))
        any_key, any_query = (int(found.allowed.any(axis).sum()) for axis in (1, 0))
        pairs = int(found.allowed.sum())
        bound = lower_bound(N_q=N_q, N_k=N_k, d=d, d_v=d_v, M=M, pairs=pairs, queries=any_key, keys=any_query)
        least = min(least, found.upper / bound.accesses)
        checked += bool(check_optimum(found.certificate()))
    return Claim(
        "Exact optima (flashsim.exact)",
        "the lower bound is at most the optimum, where that is known",
        f"{wanted} problems of up to 3 × 3 rows, d < 6, full and causal; {checked} certificates",
        f"optimum ÷ bound at least {least:.3f}",
        least >= 1,
        {"problems": wanted, "least": float(least), "certificates": checked},
    )

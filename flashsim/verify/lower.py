"""Beyond the paper: what no schedule can beat."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from flashsim import certificate, certificate_backward
from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.api import count
from flashsim.masks import Causal
from flashsim.memory import SramOverflow
from flashsim.proving import Proof
from flashsim.theory import lower_bound, lower_bound_backward
from flashsim.tune import best_of
from flashsim.verify.claim import Claim

_SOURCE = "Lower bound (flashsim.theory.lower)"


def nothing_below_the_lower_bound(full: bool) -> Claim:
    """No algorithm moves less than the bound, at random shapes, with and without a causal mask; and certificates check."""
    names = [name for name, algorithm in FORWARD.items() if not algorithm.options or name == "split_kv"]
    return _nothing_below("forward", names, lower_bound, certificate.check, full)


def nothing_below_the_backward_bound(full: bool) -> Claim:
    """The same of the backward pass."""
    names = [name for name, algorithm in BACKWARD.items() if not algorithm.options]
    return _nothing_below("backward", names, lower_bound_backward, certificate_backward.check, full)


def _nothing_below(
    direction: str, names: list[str], bound_of: Callable[..., Any], check: Callable[..., str], full: bool
) -> Claim:
    rng = np.random.default_rng(12)
    wanted, tried, least, checked = 3_000 if full else 150, 0, np.inf, 0
    while tried < wanted:
        N_q, N_k, d, d_v = (int(size) for size in rng.integers(1, (150, 150, 24, 24)))
        sizes: dict[str, Any] = {"N_q": N_q, "N_k": N_k, "d": d, "d_v": d_v, "M": int(10 ** rng.uniform(1, 4))}
        mask = Causal() if rng.integers(2) else None
        rows = np.clip(np.arange(N_q) + 1 + N_k - N_q, 0, N_k) if mask else np.full(N_q, N_k)
        queries = int((rows > 0).sum())
        bound = bound_of(**sizes, pairs=int(rows.sum()), queries=queries)
        try:
            tally = count(names[tried % len(names)], **sizes, sizing="fit", mask=mask, direction=direction)
        except (SramOverflow, ValueError):  # nothing fits
            continue
        tried, least = tried + 1, min(least, tally.hbm.accesses / bound.accesses)
        proof = Proof(bound, "causal" if mask else "all", queries, N_k, None, direction)
        checked += bool(check(proof.certificate()))
    return Claim(
        _SOURCE if direction == "forward" else f"{_SOURCE[:-1]}_backward)",
        f"no algorithm makes fewer HBM accesses than the lower bound, {direction}",
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

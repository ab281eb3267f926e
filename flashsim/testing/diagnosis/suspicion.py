"""What a diagnosis says: a known bug, and what speaks for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from flashsim.testing.case import Case


@dataclass(frozen=True)
class Suspicion:
    """A known bug that a kernel may have.

    says      the bug, in a sentence
    threads   where it was seen
    evidence  what speaks for it
    """

    says: str
    threads: tuple[str, ...]
    evidence: str


class Conviction(NamedTuple):
    """A suspicion with the numbers of the findings that it explains, and of how many it does not."""

    suspicion: Suspicion
    matched: frozenset[int]
    mismatched: int = 0


def failing_cases(n: int) -> str:
    """Return that number of them in words: of several, the first is made simpler from one that was drawn."""
    return "1 failing case" if n == 1 else f"{n} drawn and simplified failing cases"


def scores(case: Case) -> int:
    """Return how many scores the case has."""
    return math.prod((case.B, case.H_kv, case.group, case.N_q, case.N_k))

"""What a diagnosis says of a kernel: a known bug that it may have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Suspicion:
    """A known bug that a kernel may have.

    says      the bug, in a sentence
    threads   where it was seen
    evidence  what speaks for it
    explains  the numbers of the findings that it explains
    leaves    how many it does not
    """

    says: str
    threads: tuple[str, ...]
    evidence: str
    explains: frozenset[int] = frozenset()
    leaves: int = 0


def failing_cases(n: int) -> str:
    """Return that number of them in words: of several, the first is made simpler from one that was drawn."""
    return "1 failing case" if n == 1 else f"{n} drawn and simplified failing cases"

"""One line of the ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, the range it was tried on, what was measured, and whether it holds.

    `measured` is said in words, `data` holds the numbers.
    """

    source: str
    claim: str
    tried: str
    measured: str
    holds: bool
    data: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


Check = Callable[[bool], Claim]
"""Runs one claim. Its argument, `full`, asks for wide sweeps; without it, a check keeps to seconds."""

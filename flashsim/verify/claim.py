"""One line of the ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, the range it was tried on, what was measured, and whether it holds.

    `measured` is said in words, `data` holds the numbers. Source and claim are the docstring of the check that
    returns this: SOURCE. CLAIM.
    """

    tried: str
    measured: str
    holds: bool
    data: dict[str, Any]
    source: str = ""
    claim: str = ""

    def also(self, measured: str, holds: bool, **data: Any) -> Claim:
        """Return the claim with more that was measured, and must hold too."""
        measured = f"{self.measured}; {measured}"
        return replace(self, measured=measured, holds=bool(self.holds and holds), data={**self.data, **data})


Check = Callable[[bool], Claim]
"""Runs one claim. Its argument, `full`, asks for wide sweeps; without it, a check keeps to seconds."""

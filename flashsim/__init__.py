"""flashsim: FlashAttention on a simulated HBM and SRAM, with real numbers, executed counts and an enforced capacity."""

from __future__ import annotations

from flashsim import reference, theory
from flashsim.algorithms.blocks import Fit, Fixed, Paper
from flashsim.api import Run, Tally, count, forward
from flashsim.memory import HBM, SRAM, MemoryModelError, NotOnChip, SramOverflow
from flashsim.records import Blocks

__version__ = "0.1.0"

__all__ = [
    "HBM",
    "SRAM",
    "Blocks",
    "Fit",
    "Fixed",
    "MemoryModelError",
    "NotOnChip",
    "Paper",
    "Run",
    "SramOverflow",
    "Tally",
    "count",
    "forward",
    "reference",
    "theory",
]

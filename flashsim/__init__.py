"""flashsim: FlashAttention on a simulated HBM and SRAM, with real numbers, executed counts and an enforced capacity."""

from __future__ import annotations

from flashsim import dropout, patterns, reference, theory
from flashsim.algorithms.blocks import Fit, Fixed, Paper
from flashsim.api import Gradients, Run, Tally, backward, count, forward, trace
from flashsim.masks import Causal, Dense, KeyPadding, Mask, SlidingWindow
from flashsim.memory import HBM, SRAM, MemoryModelError, NotOnChip, SramOverflow
from flashsim.records import Blocks
from flashsim.tracing import load_trace
from flashsim.tree_mask import Tree

__version__ = "0.1.0"

__all__ = [
    "HBM",
    "SRAM",
    "Blocks",
    "Causal",
    "Dense",
    "Fit",
    "Fixed",
    "Gradients",
    "KeyPadding",
    "Mask",
    "MemoryModelError",
    "NotOnChip",
    "Paper",
    "Run",
    "SlidingWindow",
    "SramOverflow",
    "Tally",
    "Tree",
    "backward",
    "count",
    "dropout",
    "forward",
    "load_trace",
    "patterns",
    "reference",
    "theory",
    "trace",
]

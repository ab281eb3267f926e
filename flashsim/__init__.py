"""flashsim: FlashAttention on a simulated HBM and SRAM, with real numbers, executed counts and an enforced capacity."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flashsim import dropout, patterns, reference, theory
from flashsim.algorithms.blocks import Fit, Fixed, Paper
from flashsim.api import Gradients, Run, Tally, backward, count, forward, trace
from flashsim.masks import Causal, Dense, KeyPadding, Mask, SlidingWindow
from flashsim.memory import HBM, SRAM, MemoryModelError, NotOnChip, SramOverflow
from flashsim.records import Blocks
from flashsim.tree_mask import Tree

if TYPE_CHECKING:
    from flashsim.tracing import load_trace

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


def __getattr__(name: str) -> Any:
    """Import what traces are read with when it is asked for: `import flashsim` is quicker without."""
    if name == "sweep":
        return import_module("flashsim.sweeping").sweep
    if name != "load_trace":
        raise AttributeError(f"module 'flashsim' has no attribute {name!r}")
    from flashsim.tracing import load_trace

    return load_trace

"""flashsim: FlashAttention on a simulated HBM and SRAM, with real numbers, executed counts and an enforced capacity.

Five things one does:

    flashsim.forward("flash", Q, K, V, causal=True)          # run, and count
    flashsim.count("flash", N=4096, d=64, M="100KB")         # count alone
    flashsim.trace("flash", Q, K, V).save("flash.html")      # step through it
    flashsim.tune.tune(N=1024, d=64, M="100KB").best         # the best blocks
    flashsim.testing.check_attention(kernel, flashsim.testing.Spec())   # test

with, to try them,

    Q, K, V = numpy.random.default_rng(0).normal(size=(3, 64, 16))
    kernel = flashsim.reference.attention

`flashsim.backward` makes a run's gradients, `flashsim.sweep` counts at many
points, `flashsim.theory.exact` counts by formula, `flashsim.prove` says what
no schedule can beat, `flashsim.plots` draws, `flashsim.algorithms()` lists
what there is. docs/use.md shows each.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flashsim import dropout
from flashsim.algorithms.blocks import Fit, Fixed, Paper
from flashsim.api import Gradients, Run, Tally, backward, count, forward, trace
from flashsim.bias import Bias
from flashsim.masks import Causal, Dense, Mask, SlidingWindow
from flashsim.memory import HBM, SRAM, MemoryModelError, NotOnChip, SramOverflow
from flashsim.paddings import KeyPadding, QueryPadding
from flashsim.records import Blocks
from flashsim.tree_mask import Tree

if TYPE_CHECKING:
    from flashsim import approximate as approximate
    from flashsim import cache as cache
    from flashsim import cross_entropy as cross_entropy
    from flashsim import kernels as kernels
    from flashsim import linear as linear
    from flashsim import machines as machines
    from flashsim import mlp as mlp
    from flashsim import observers as observers
    from flashsim import patterns as patterns
    from flashsim import plots as plots
    from flashsim import reference as reference
    from flashsim import testing as testing
    from flashsim import theory as theory
    from flashsim import tune as tune
    from flashsim.optima import optimum as optimum
    from flashsim.proving import prove as prove
    from flashsim.sweeping import sweep as sweep
    from flashsim.tracing import load_trace

__version__ = "0.1.0"

__all__ = [
    "HBM",
    "SRAM",
    "Bias",
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
    "QueryPadding",
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
    "sweep",
    "theory",
    "trace",
]


LATER = {
    "approximate": "flashsim.approximate",
    "cache": "flashsim.cache",
    "cross_entropy": "flashsim.cross_entropy",
    "kernels": "flashsim.kernels",
    "linear": "flashsim.linear",
    "machines": "flashsim.machines",
    "mlp": "flashsim.mlp",
    "observers": "flashsim.observers",
    "patterns": "flashsim.patterns",
    "plots": "flashsim.plots",
    "reference": "flashsim.reference",
    "testing": "flashsim.testing",
    "theory": "flashsim.theory",
    "tune": "flashsim.tune",
    "load_trace": "flashsim.tracing",
    "optimum": "flashsim.optima",
    "prove": "flashsim.proving",
    "sweep": "flashsim.sweeping",
}
"""What is imported when it is asked for, and from where: `import flashsim` is quicker without."""


def __getattr__(name: str) -> Any:
    """Import a module of `LATER`, or a name that is in one."""
    if name not in LATER:
        raise AttributeError(f"module 'flashsim' has no attribute {name!r}")
    module = import_module(LATER[name])
    return module if LATER[name].endswith(f".{name}") else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *LATER})

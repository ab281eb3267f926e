"""flashsim: FlashAttention on a simulated HBM and SRAM, with real numbers, executed counts and an
enforced capacity.

Five things one does:

    flashsim.forward("flash", Q, K, V, causal=True)          # run, and count
    flashsim.count("flash", N=4096, d=64, M="100KB")         # count alone
    flashsim.trace("flash", Q, K, V).save("flash.html")      # step through it
    flashsim.tune.tune(N=1024, d=64, M="100KB").best         # the best blocks
    flashsim.testing.check_attention(kernel, flashsim.testing.Spec())   # test

with, to try them,

    Q, K, V = numpy.random.default_rng(0).normal(size=(3, 64, 16))
    kernel = lambda Q, K, V: flashsim.reference.attention(Q, K, V)

`flashsim.backward` makes a run's gradients, `flashsim.sweep` counts at many
points, `flashsim.theory.exact` counts by formula, `flashsim.prove` says what
no schedule can beat, `flashsim.plots` draws, `flashsim.algorithms()` lists
what there is. docs/use.md shows each.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the public names for type checkers; MODULES and NAMES have them for Python
    from flashsim import algorithms as algorithms
    from flashsim import devices as devices
    from flashsim import memory as memory
    from flashsim import plots as plots
    from flashsim import profiling as profiling
    from flashsim import reference as reference
    from flashsim import serving as serving
    from flashsim import testing as testing
    from flashsim import theory as theory
    from flashsim.algorithms.blocks import Fit as Fit
    from flashsim.algorithms.blocks import Fixed as Fixed
    from flashsim.algorithms.blocks import Paper as Paper
    from flashsim.algorithms.program import MatrixProgram as MatrixProgram
    from flashsim.analysis import tune as tune
    from flashsim.analysis.optima import optimum as optimum
    from flashsim.analysis.proving import prove as prove
    from flashsim.analysis.sweeping import sweep as sweep
    from flashsim.attention import masks as masks
    from flashsim.attention.masks import dropout as dropout
    from flashsim.attention.masks import patterns as patterns
    from flashsim.attention.masks.bias import Bias as Bias
    from flashsim.attention.masks.paddings import KeyPadding as KeyPadding
    from flashsim.attention.masks.paddings import QueryPadding as QueryPadding
    from flashsim.attention.masks.relative import RelativeBias as RelativeBias
    from flashsim.attention.masks.rules import Causal as Causal
    from flashsim.attention.masks.rules import Dense as Dense
    from flashsim.attention.masks.rules import Mask as Mask
    from flashsim.attention.masks.rules import SlidingWindow as SlidingWindow
    from flashsim.attention.masks.scores import ALiBi as ALiBi
    from flashsim.attention.masks.scores import SoftCap as SoftCap
    from flashsim.attention.masks.sink import Sink as Sink
    from flashsim.attention.masks.streaming import Streaming as Streaming
    from flashsim.attention.masks.tree import Tree as Tree
    from flashsim.attention.matrices import Kind as Kind
    from flashsim.attention.problem import Problem as Problem
    from flashsim.attention.shapes import Blocks as Blocks
    from flashsim.extensions import approximate as approximate
    from flashsim.extensions import kernels as kernels
    from flashsim.extensions import mlp as mlp
    from flashsim.hardware import cache as cache
    from flashsim.hardware import machines as machines
    from flashsim.memory.errors import MemoryModelError as MemoryModelError
    from flashsim.memory.errors import NotOnChip as NotOnChip
    from flashsim.memory.errors import SramOverflow as SramOverflow
    from flashsim.memory.hbm import HBM as HBM
    from flashsim.memory.sram import SRAM as SRAM
    from flashsim.memory.turns import SlowCountWarning as SlowCountWarning
    from flashsim.simulate.api import backward as backward
    from flashsim.simulate.api import count as count
    from flashsim.simulate.api import forward as forward
    from flashsim.simulate.matrices import count_program as count_program
    from flashsim.simulate.matrices import run_program as run_program
    from flashsim.simulate.results import Result as Result
    from flashsim.tracing import observers as observers
    from flashsim.tracing import trace as trace
    from flashsim.tracing.loading import load_trace as load_trace
    from flashsim.version import __version__ as __version__

if not Path(__file__).is_file():
    raise ImportError(
        f"flashsim is imported from {Path(__file__).parents[1]}, an archive, and it reads its own "
        "sources: "
        "expected it installed, or unpacked"
    )

MODULES = (
    "algorithms",
    "approximate",
    "cache",
    "devices",
    "dropout",
    "kernels",
    "machines",
    "masks",
    "memory",
    "mlp",
    "observers",
    "patterns",
    "plots",
    "profiling",
    "reference",
    "serving",
    "testing",
    "theory",
    "tune",
)
"""Public modules: `flashsim.tune` is the module that `import flashsim.tune` imports."""

NAMES = {
    "Fit": "flashsim.algorithms.blocks",
    "Fixed": "flashsim.algorithms.blocks",
    "Paper": "flashsim.algorithms.blocks",
    "MatrixProgram": "flashsim.algorithms.program",
    "optimum": "flashsim.analysis.optima",
    "prove": "flashsim.analysis.proving",
    "sweep": "flashsim.analysis.sweeping",
    "Bias": "flashsim.attention.masks.bias",
    "KeyPadding": "flashsim.attention.masks.paddings",
    "QueryPadding": "flashsim.attention.masks.paddings",
    "RelativeBias": "flashsim.attention.masks.relative",
    "Causal": "flashsim.attention.masks.rules",
    "Dense": "flashsim.attention.masks.rules",
    "Mask": "flashsim.attention.masks.rules",
    "SlidingWindow": "flashsim.attention.masks.rules",
    "ALiBi": "flashsim.attention.masks.scores",
    "SoftCap": "flashsim.attention.masks.scores",
    "Sink": "flashsim.attention.masks.sink",
    "Streaming": "flashsim.attention.masks.streaming",
    "Tree": "flashsim.attention.masks.tree",
    "Kind": "flashsim.attention.matrices",
    "Problem": "flashsim.attention.problem",
    "Blocks": "flashsim.attention.shapes",
    "MemoryModelError": "flashsim.memory.errors",
    "NotOnChip": "flashsim.memory.errors",
    "SramOverflow": "flashsim.memory.errors",
    "HBM": "flashsim.memory.hbm",
    "SRAM": "flashsim.memory.sram",
    "SlowCountWarning": "flashsim.memory.turns",
    "backward": "flashsim.simulate.api",
    "count": "flashsim.simulate.api",
    "forward": "flashsim.simulate.api",
    "count_program": "flashsim.simulate.matrices",
    "run_program": "flashsim.simulate.matrices",
    "Result": "flashsim.simulate.results",
    "trace": "flashsim.tracing",
    "load_trace": "flashsim.tracing.loading",
    "__version__": "flashsim.version",
}
"""Public classes and functions, each with its module."""

__all__ = [*MODULES, *NAMES]
__all__.remove("__version__")
if find_spec("hypothesis") is None:  # the extra `testing` has it
    __all__.remove("testing")


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that `import flashsim` loads no plots."""
    if name in MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(NAMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *MODULES, *NAMES})

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

import ast
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

# the public names, and where they are: type checkers read this list, and so does `_listed`
if TYPE_CHECKING:
    from flashsim import algorithms as algorithms
    from flashsim import devices as devices
    from flashsim import memory as memory
    from flashsim import plots as plots
    from flashsim import reference as reference
    from flashsim import serving as serving
    from flashsim import testing as testing
    from flashsim import theory as theory
    from flashsim.algorithms.blocks import Fit as Fit
    from flashsim.algorithms.blocks import Fixed as Fixed
    from flashsim.algorithms.blocks import Paper as Paper
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
    from flashsim.simulate.results import Result as Result
    from flashsim.tracing import load_trace as load_trace
    from flashsim.tracing import observers as observers
    from flashsim.tracing import trace as trace
    from flashsim.version import __version__ as __version__

if not Path(__file__).is_file():
    raise ImportError(
        f"flashsim is imported from {Path(__file__).parents[1]}, an archive, and it reads its own "
        "sources: "
        "expected it installed, or unpacked"
    )


def _listed() -> dict[str, str]:
    """Return the public names, each with the module that it is, or is in."""
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    return {
        node.names[0].name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
    }


PUBLIC = _listed()
NEEDS = {"testing": "hypothesis"}
"""Public names that a plain install cannot import, each with the package that is missing then."""
__all__ = [
    name
    for name in PUBLIC
    if not name.startswith("_") and (name not in NEEDS or find_spec(NEEDS[name]) is not None)
]  # so that `from flashsim import *` works


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: who imports flashsim for its memory loads no
    plots.
    """
    if name not in PUBLIC:
        raise AttributeError(f"module 'flashsim' has no attribute {name!r}")
    where = import_module(PUBLIC[name])
    in_it = PUBLIC[name] != __name__ and hasattr(where, name)
    found = getattr(where, name) if in_it else import_module(f"{PUBLIC[name]}.{name}")
    globals()[name] = found
    return found


class _Rooms:
    """Finds `import flashsim.tune` and its like: a public name is imported where it is, in a
    room.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return how to import a public module by its public name; None for all else."""
        package, _, public = name.rpartition(".")
        if package != __name__ or not isinstance(
            PUBLIC.get(public) and __getattr__(public), ModuleType
        ):
            return None
        return ModuleSpec(name, _Rooms)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """Leave it to Python to make an empty module, which `exec_module` replaces."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Put the module from its room in the place of the empty one: they are one and the same
        then.
        """
        sys.modules[module.__name__] = globals()[module.__name__.rpartition(".")[2]]


if not any(getattr(finder, "__name__", "") == _Rooms.__name__ for finder in sys.meta_path):
    sys.meta_path.append(_Rooms)


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})

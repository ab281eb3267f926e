"""Mutants: known bugs. Each is an attention with a bug that a real kernel had, so that a test can
show that it notices such bugs.

A `Mutant` is a small change to the text of one of four correct attentions. `BASES` has three of
them: "tiled", as in FlashAttention-2; "unfused", with the whole matrix of scores; "split", with the
keys in parts whose results are merged. The fourth, "served", is for kernels that serve. `ALL` has
bugs of attention itself, `SERVING` bugs of kernels that serve, and `OUTSIDE` bugs that were looked
up after the kit was frozen.

    from flashsim.testing.mutants import ALL

    for mutant in ALL:
        # kernel(q, k, v), kernel.backward(q, k, v, do), kernel.keep(shape, p, seed), kernel.spec
        kernel = mutant.build()

Each built kernel is an attribute of this module, too: `flashsim.testing.mutants.causal_top_left`.
"""

from flashsim.testing.mutants.early import EARLY
from flashsim.testing.mutants.late import LATE
from flashsim.testing.mutants.mutant import BASES, Implementation, Mutant
from flashsim.testing.mutants.outside import OUTSIDE
from flashsim.testing.mutants.serving import SERVING
from flashsim.testing.mutants.since import SINCE

ALL: tuple[Mutant, ...] = EARLY + LATE + SINCE

__all__ = [
    "ALL",
    "BASES",
    "EARLY",
    "LATE",
    "OUTSIDE",
    "SERVING",
    "SINCE",
    "Implementation",
    "Mutant",
]


def __getattr__(name: str) -> Implementation:
    for mutant in ALL + SERVING + OUTSIDE:
        if mutant.name == name:
            kernel = mutant.build()
            globals()[name] = kernel
            return kernel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *(mutant.name for mutant in ALL + SERVING + OUTSIDE)])

"""The named checks: what must hold of any attention, each a function that yields what to compare.

Some compare with the oracle; others compare the kernel with itself on a problem with the same
answer, and would notice a bug that kernel and oracle share. A check may first change the case, so
that it applies: `fit`.
"""

from importlib import import_module

from flashsim.testing.checks.check import CHECKS, Check, Comparison, Trial, of_gradients

for family in ("oracle", "itself", "backward"):  # in the order in which the checks are listed
    import_module(f"{__name__}.{family}")

__all__ = ["CHECKS", "Check", "Comparison", "Trial", "of_gradients"]

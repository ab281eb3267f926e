"""The named checks: properties of every attention. Each is a function that yields comparisons.

Some compare the kernel with the oracle. Others compare the kernel with itself on a problem with the
same answer: they notice a bug that kernel and oracle share. A check may first change the case, so
that the check applies: `fit`.
"""

from importlib import import_module

from flashsim.testing.checks.check import CHECKS, Check, Comparison, Trial, of_gradients

for family in ("oracle", "self_consistency", "backward"):  # in the order of `flashsim check --list`
    import_module(f"{__name__}.{family}")

__all__ = ["CHECKS", "Check", "Comparison", "Trial", "of_gradients"]

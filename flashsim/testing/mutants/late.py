"""Bugs that real attention kernels had, the second half."""

from __future__ import annotations

from flashsim.testing.mutants.planting import Mutant

LATE: tuple[Mutant, ...] = ()

"""What serves: attention of ragged batches, with index arrays that are read through HBM and counted.

paged                     to keys and values in pages, which a table names
count, exact              what a program moves, on lengths alone, and by formula
"""

from __future__ import annotations

from flashsim.serving.api import (
    ServingExact,
    ServingGradients,
    ServingRun,
    ServingTally,
    count,
    exact,
)
from flashsim.serving.pages import paged

__all__ = [
    "ServingExact", "ServingGradients", "ServingRun", "ServingTally", "count", "exact", "paged",
]  # fmt: skip

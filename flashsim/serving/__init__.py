"""What serves: attention of ragged batches, with index arrays that are read through HBM and counted.

paged                     to keys and values in pages, which a table names
cascade                   of sequences that share prefixes, once for all of them
varlen, varlen_backward   of sequences that lie end to end
decode                    with all tiles shared out over workers: Stream-K, or fixed splits
mla, mla_expanded         to latents that all heads share; `absorb` makes the queries of the first
quantised                 to keys and values in 2, 4 or 8 bits, which `quantise` packs
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
from flashsim.serving.latents import absorb, mla, mla_expanded
from flashsim.serving.packing import varlen, varlen_backward
from flashsim.serving.pages import paged
from flashsim.serving.prefixes import cascade
from flashsim.serving.quantising import quantise, quantised
from flashsim.serving.scheduling import decode

__all__ = [
    "ServingExact", "ServingGradients", "ServingRun", "ServingTally", "absorb", "cascade", "count", "decode", "exact",
    "mla", "mla_expanded", "paged", "quantise", "quantised", "varlen", "varlen_backward",
]  # fmt: skip

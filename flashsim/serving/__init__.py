"""What serves: attention of ragged batches, with index arrays that are read through HBM and
counted.

paged                     to keys and values in pages, which a table names
cascade                   of sequences that share prefixes, once for all of them
varlen, varlen_backward   of sequences that lie end to end
decode                    with all tiles shared out over workers: Stream-K, or fixed splits
mla, mla_paged, mla_expanded  to latents that all heads share, or in pages, or not absorbed;
                              `absorb` makes the queries
quantised, fp8            to keys and values in 2, 4 or 8 bits, which `quantise` packs, or in floats
                          of 8 bits
count, exact              what a program moves, on lengths alone, and by formula
"""

from __future__ import annotations

from flashsim.serving.api import count, exact
from flashsim.serving.latents import absorb, mla, mla_expanded, mla_paged
from flashsim.serving.packing import varlen, varlen_backward
from flashsim.serving.pages import paged
from flashsim.serving.prefixes import cascade
from flashsim.serving.quantising import fp8, quantise, quantised, to_fp8
from flashsim.serving.scheduling import decode

__all__ = [
    "absorb",
    "cascade",
    "count",
    "decode",
    "exact",
    "fp8",
    "mla",
    "mla_expanded",
    "mla_paged",
    "paged",
    "quantise",
    "quantised",
    "to_fp8",
    "varlen",
    "varlen_backward",
]

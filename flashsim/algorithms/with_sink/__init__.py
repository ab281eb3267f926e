"""Variants of algorithms for problems with an attention sink, one a file. Each is the
algorithm of the file of the same name one folder up; only its softmax begins with the
sink.

A sink is one more logit s for each query head. Its term e^s is in the sum ℓ, but it
brings no value. A variant has its algorithm's name, and runs in its place where the
problem's mask has a `flashsim.Sink` (`flashsim.algorithms.for_sink`). Backward passes
need no variant: to them a sink is a part of L, or of ℓ and m.
"""

from collections.abc import Mapping
from functools import cache

from flashsim.algorithms.record import Algorithm
from flashsim.support.modules import records_of


@cache
def variants() -> Mapping[str, Algorithm]:
    """Return the variants, by the names of their algorithms."""
    return {
        record.name: record for record in records_of(__name__, "ALGORITHM", Algorithm)
    }

"""What the scores are multiplied by."""

from __future__ import annotations

import math

import numpy as np

from flashsim.testing.suspects.family import Changes, key_blocks, reads
from flashsim.testing.suspects.reading import Question, Reading


@reads("The scale is missing: scores are QKᵀ.", "huggingface/transformers#38290")
def scale_missing(q: Question, r: Reading) -> Changes:
    return {"tau": 1.0}


@reads("The scale is applied twice.", "huggingface/transformers#38290")
def scale_twice(q: Question, r: Reading) -> Changes:
    return {"tau": r.tau**2}


@reads("The default scale is 1/√d_v, not 1/√d.", "tenstorrent/tt-metal#42891")
def scale_from_d_v(q: Question, r: Reading) -> Changes:
    return {"tau": 1 / math.sqrt(r.v.shape[-1])} if q.problem.scale is None else None


@reads("`scale` is ignored: it is 1/√d although another is given.")
def scale_argument_ignored(q: Question, r: Reading) -> Changes:
    return None if q.problem.scale is None else {"tau": 1 / math.sqrt(r.q.shape[-1])}


@reads("`scale` is applied besides 1/√d, not in its place.")
def scale_on_top(q: Question, r: Reading) -> Changes:
    return None if q.problem.scale is None else {"tau": r.tau / math.sqrt(r.q.shape[-1])}


@reads("Scores are {0} by the scale's {1}.", over=lambda spec: [("divided", "value"), ("multiplied", "square root")])
def scale_misapplied(q: Question, r: Reading, says: str, of: str) -> Changes:
    return {"tau": 1 / r.tau if says == "divided" else math.sqrt(r.tau)}


@reads("Powers of 2 and of e are mixed up: scores are {0} log₂ e {1}.",
       over=lambda spec: [("not multiplied by", "before exp2", math.log(2)),
                          ("multiplied by", "before exp", 1 / math.log(2))])  # fmt: skip
def scale_in_other_base(q: Question, r: Reading, one: str, other: str, factor: float) -> Changes:
    return {"tau": r.tau * factor}


@reads("The scale is multiplied by log₂ e once for every block of {0} keys: it grows along them.",
       "flagos-ai/FlagGems#424", over=key_blocks)  # fmt: skip
def scale_grows(q: Question, r: Reading, block: int) -> Changes:
    return {"k": r.k * math.log2(math.e) ** (np.arange(r.k.shape[2]) // block)[:, None]}

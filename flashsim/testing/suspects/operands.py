"""Whose numbers are read, and how precisely: heads, sequences, rounding."""

from __future__ import annotations

import numpy as np

from flashsim.inputs import float_dtype
from flashsim.testing.suspects.family import Changes, reads
from flashsim.testing.suspects.reading import Question, Reading


@reads("Query head h reads KV head h mod H_kv, not h div (H_q/H_kv): K and V are tiled, not repeated.",
       "ekzhang/jax-js#180", "onnx/onnx#7274")  # fmt: skip
def heads_modulo(q: Question, r: Reading) -> Changes:
    return {"owner": np.arange(r.q.shape[1]) % r.k.shape[1]}


@reads("All query heads read the first KV head.")
def heads_first(q: Question, r: Reading) -> Changes:
    return {"owner": np.zeros(r.q.shape[1], int)}


@reads("All sequences of the batch read K and V of the first.")
def batch_first(q: Question, r: Reading) -> Changes:
    return {"k": np.broadcast_to(r.k[:1], r.k.shape), "v": np.broadcast_to(r.v[:1], r.v.shape)}


@reads("float32 inputs are rounded to {0} on their way into the products.",
       over=lambda spec: ["TF32", "float16"] + ["bfloat16"] * ("bfloat16" in spec.dtypes))  # fmt: skip
def inputs_rounded(q: Question, r: Reading, narrow: str) -> Changes:
    if q.problem.q.dtype != np.float32:
        return None
    arrays = {"q": r.q, "k": r.k, "v": r.v}
    if narrow != "TF32":
        return {name: a.astype(float_dtype(narrow)).astype(np.float64) for name, a in arrays.items()}
    bits = {name: a.astype(np.float32).view(np.uint32) for name, a in arrays.items()}
    return {name: ((b + 0x1000) & 0xFFFFE000).view(np.float32).astype(np.float64) for name, b in bits.items()}

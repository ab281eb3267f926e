"""Which keys a query attends to: causal masking, and the mask."""

from __future__ import annotations

from flashsim.testing.suspects.family import FA, Changes, reads
from flashsim.testing.suspects.reading import Question, Reading


@reads("Causal masking is aligned at {there}; the spec says at {here}.", FA + "282", FA + "402", "NVIDIA/cutlass#2336")
def causal_at_other_corner(q: Question, r: Reading) -> Changes:
    _, _, N_q, N_k = q.problem.score_shape
    return {"allowed": q.causally(N_k - N_q - q.shift)} if q.problem.causal else None


@reads("`causal` is ignored: queries attend to later keys.", "jax-ml/jax#19237")
def causal_ignored(q: Question, r: Reading) -> Changes:
    return {"allowed": q.problem.but(causal=False).allowed} if q.problem.causal else None


@reads("Causal masking is applied although it was not asked for.", "triton-lang/triton#4541")
def causal_always(q: Question, r: Reading) -> Changes:
    return None if q.problem.causal else {"allowed": q.causally(q.shift)}


@reads("Causal masking is off by one: {0}.", "huggingface/transformers#39408",
       over=lambda spec: [("a query does not attend to the key on the diagonal (j < i, not j ≤ i)", -1),
                          ("a query attends to the key after the diagonal (j ≤ i + 1, not j ≤ i)", 1)])  # fmt: skip
def causal_off_by_one(q: Question, r: Reading, says: str, off: int) -> Changes:
    return {"allowed": q.causally(q.shift + off)} if q.problem.causal else None


@reads("With more queries than keys the first rows, which come before every key, attend to keys nevertheless: the causal "
       "diagonal is moved by max(0, N_k − N_q), not by N_k − N_q.", "NVIDIA/cutlass#2336", FA + "1778")  # fmt: skip
def causal_never_empty(q: Question, r: Reading) -> Changes:
    return {"allowed": q.causally(max(0, q.shift))} if q.problem.causal else None


@reads("`mask` is ignored.")
def mask_ignored(q: Question, r: Reading) -> Changes:
    return None if q.problem.mask is None else {"allowed": q.problem.but(mask=None).allowed}


@reads("`mask` is inverted: True is taken for \"masked\".")  # fmt: skip
def mask_inverted(q: Question, r: Reading) -> Changes:
    return None if q.problem.mask is None else {"allowed": q.problem.but(mask=~q.problem.mask).allowed}


@reads("The mask of the first {0} is used for all.", over=lambda spec: [("sequence", 0), ("head", 1)])
def mask_of_the_first(q: Question, r: Reading, says: str, axis: int) -> Changes:
    if q.problem.mask is None or q.problem.mask.shape[axis] == 1:
        return None
    return {"allowed": q.problem.but(mask=q.problem.mask.take([0], axis=axis)).allowed}


@reads("Where both are given, `{0}` is applied and `{1}` is not.",
       over=lambda spec: [("mask", "causal"), ("causal", "mask")])  # fmt: skip
def one_of_two_masks(q: Question, r: Reading, used: str, ignored: str) -> Changes:
    if q.problem.mask is None or not q.problem.causal:
        return None
    return {"allowed": (q.problem.but(causal=False) if used == "mask" else q.problem.but(mask=None)).allowed}

"""Attention as buggy kernels compute it: models with one thing wrong each, which a failing kernel is compared with.

Three kinds, each registered by a decorator. `reads`: what is computed is attention, of something else than was asked for; a
function of a `Reading` that returns another, which holds for the forward and for the backward pass. `computes`: the softmax
itself goes wrong; a function of a `Question` that returns O and log-sum-exp. `derives`: the backward pass goes wrong; a
function of `Backward` that returns dq, dk, dv. With `over`, the function has a parameter, and is a suspect for each value.
"""

# What a suspect does is said in its decorator, in the words that a user reads.
# ruff: noqa: D103

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from flashsim.inputs import Array, float_dtype
from flashsim.testing.case import Problem
from flashsim.testing.spec import Spec

FA = "Dao-AILab/flash-attention#"
MOST_STEPS = 400  # of a tiled model: what has more is not tried

Arrays = tuple[Array, ...]


class Answer(NamedTuple):
    """O (B, H_q, N_q, d_v), the natural log-sum-exp (B, H_q, N_q), and the row sums ℓ, as a column, if O was divided by them.

    O is NaN where it is 0/0, which kernels may replace by 0.
    """

    O: Array
    lse: Array
    l: Array | float = 1.0


@dataclass(frozen=True, eq=False)
class Reading:
    """What a kernel takes a problem for, in float64: q, k, v by head, which keys are allowed, the scale, whose KV head is whose.

    owner  of each query head, the KV head that it reads
    Z      what dropout multiplies the weights by
    """

    q: Array
    k: Array
    v: Array
    allowed: Array
    tau: float
    owner: Array
    Z: Array | float = 1.0

    @cached_property
    def S(self) -> Array:
        """The scores, −∞ where masked."""
        scores = self.tau * (self.q @ self.k[:, self.owner].swapaxes(-1, -2))
        return np.asarray(np.where(self.allowed, scores, -np.inf))

    @cached_property
    def V(self) -> Array:
        """The values by query head."""
        return np.asarray(self.v[:, self.owner])

    @cached_property
    def m(self) -> Array:
        """The row maxima, as a column; −∞ in an empty row."""
        return np.asarray(self.S.max(axis=-1, keepdims=True, initial=-np.inf))

    @cached_property
    def answer(self) -> Answer:
        """O, NaN in an empty row, and log-sum-exp."""
        P = np.exp(self.S - np.where(self.m == -np.inf, 0, self.m))
        l = P.sum(axis=-1, keepdims=True)
        return Answer((P * self.Z) @ self.V / l, (self.m + np.log(l))[..., 0], l)


class Question:
    """A problem to be answered wrongly: for O, for the log-sum-exp ("lse") or for the gradients."""

    def __init__(self, problem: Problem, keep: Array | None, aspect: str, got: Arrays) -> None:
        self.problem, self.keep, self.aspect, self.got = problem, keep, aspect, got
        self.spec = problem.spec
        self.chip = self.spec.chip(problem.q.dtype.name)

    @cached_property
    def reading(self) -> Reading:
        """The right reading."""
        p = self.problem
        q, k, v = (a.astype(np.float64) for a in (p.q, p.k, p.v))
        Z = 1.0 if self.keep is None else self.keep / (1 - p.dropout_p)
        return Reading(q, k, v, p.allowed, p.tau, np.arange(q.shape[1]) // p.group, Z)

    @property
    def shift(self) -> int:
        """By which the causal diagonal is moved to the right."""
        _, _, N_q, N_k = self.problem.score_shape
        return N_k - N_q if self.spec.causal == "bottom_right" else 0

    def causally(self, shift: int) -> Array:
        """Return what is allowed under the mask, if there is one, and causal masking with that shift."""
        _, _, N_q, N_k = shape = self.problem.score_shape
        allowed = np.arange(N_k)[None, :] <= np.arange(N_q)[:, None] + shift
        return np.broadcast_to(allowed if self.problem.mask is None else allowed & self.problem.mask, shape)

    def but_mask(self, mask: Array | None) -> Array:
        """Return what is allowed with another mask."""
        return self.problem.but(mask=mask).allowed

    def forward(self, answer: Answer, literally: bool = False) -> list[Arrays]:
        """Return the answers to the question: where the model gives 0/0, O may be 0 or NaN, or right if the row is empty.

        `literally`, what is NaN in the answer is NaN.
        """
        if self.aspect == "lse":
            return [(answer.lse / math.log(2) if self.spec.lse == "base2" else answer.lse,)]
        O = answer.O if literally else np.where(self.problem.empty[..., None] & (answer.l == 0), self.right, answer.O)
        stored = np.asarray(O.astype(self.problem.q.dtype).astype(np.float64))
        if literally or not np.isnan(stored).any():
            return [(stored,)]
        nothing = np.isnan(stored) & (answer.l == 0) & ~self.problem.empty[..., None]
        return [(np.where(nothing, 0.0, stored),), (stored,), (np.nan_to_num(stored, nan=0.0, posinf=np.inf),)]

    @property
    def right(self) -> Array:
        """O as the spec wants it."""
        return self.problem.solution.O

    def backward(self, three: Arrays) -> Arrays:
        """Return dq, dk, dv, cut to the problem's size and rounded to its dtype."""
        shapes = [a.shape for a in (self.problem.q, self.problem.k, self.problem.v)]
        cut = [a[:, :, : shape[2]] for a, shape in zip(three, shapes, strict=True)]
        return tuple(a.astype(self.problem.q.dtype).astype(np.float64) for a in cut)


class Backward:
    """The right backward pass of a reading, step by step; `done` finishes it from other intermediate results.

    `forward` is the reading whose O and log-sum-exp it inherits.
    """

    def __init__(self, reading: Reading, question: Question, forward: Reading | None = None) -> None:
        self.reading, self.problem = reading, question.problem
        self.keep = 1.0 if question.keep is None else question.keep
        of = (reading if forward is None else forward).answer
        self.tau, self.Z = reading.tau, reading.Z
        self.dO = self.problem.dO.astype(np.float64)
        self.O = np.nan_to_num(of.O, nan=0.0)
        self.P = np.exp(reading.S - np.where(of.lse == -np.inf, np.inf, of.lse)[..., None])
        self.undropped = self.dO @ reading.V.swapaxes(-1, -2)
        self.dP = self.undropped * self.Z
        self.D = (self.dO * self.O).sum(axis=-1, keepdims=True)
        self.dS = self.P * (self.dP - self.D)

    def done(
        self,
        dS: Array | None = None,
        weights: Array | None = None,
        tau_q: float | None = None,
        tau_k: float | None = None,
        share: Callable[[list[Array]], Array] = sum,  # type: ignore[assignment]
    ) -> Arrays:
        """Return dq, dk, dv. `weights` enter dv; `share` makes one of the gradients of a group's heads."""
        r = self.reading
        dS = self.dS if dS is None else dS
        weights = self.P * self.Z if weights is None else weights
        dq = (self.tau if tau_q is None else tau_q) * (dS @ r.k[:, r.owner])
        dk = (self.tau if tau_k is None else tau_k) * (dS.swapaxes(-1, -2) @ r.q)
        dv = weights.swapaxes(-1, -2) @ self.dO
        return dq, *(self._shared(a, r.k.shape[1], share) for a in (dk, dv))

    def _shared(self, by_head: Array, H_kv: int, share: Callable[[list[Array]], Array]) -> Array:
        owners = self.reading.owner
        groups = [[by_head[:, h] for h in np.flatnonzero(owners == n)] for n in range(H_kv)]
        nothing = np.zeros_like(by_head[:, 0])
        return np.stack([np.asarray(share(group)) if group else nothing for group in groups], axis=1)


# ------------------------------------------------------------------------------------------------------------ registry


@dataclass(frozen=True)
class Suspect:
    """A known bug: what to say of it, where it was seen, and how a kernel that has it answers, in the one way or another."""

    family: str
    says: str
    threads: tuple[str, ...]
    answers: Callable[[Question], list[Arrays]]


@dataclass(frozen=True)
class _Family:
    says: str
    threads: tuple[str, ...]
    answers: Callable[..., list[Arrays]]
    over: Callable[[Spec], Sequence[Any]] | None


_FAMILIES: dict[str, _Family] = {}
Over = Callable[[Spec], Sequence[Any]]


def suspects(spec: Spec) -> list[Suspect]:
    """Return all suspects, the simplest first: those that speak of empty rows alone, then as they are listed here."""
    corners = ("the top left (j ≤ i)", "the bottom right (j ≤ i + N_k − N_q)")
    there, here = corners if spec.causal != "top_left" else corners[::-1]
    found = []
    for name, family in sorted(_FAMILIES.items(), key=lambda item: not item[0].startswith("empty_row")):
        for value in [()] if family.over is None else family.over(spec):
            given = value if isinstance(value, tuple) else (value,)
            says = family.says.format(*given, there=there, here=here)
            answers = partial(lambda own, given, question: own(question, *given), family.answers, given)
            found.append(Suspect(name, says, family.threads, answers))
    return found


def reads(says: str, *threads: str, over: Over | None = None) -> Callable[[Any], Any]:
    """Register a function (question, reading, ...) -> the changes to the reading, or None where it has none."""

    def register(change: Callable[..., dict[str, Any] | None]) -> Any:
        def answers(question: Question, *given: Any) -> list[Arrays]:
            right = question.reading
            changes = change(question, right, *given)
            if changes is None:
                return []
            wrong = replace(right, **changes)
            if question.aspect != "gradients":
                return question.forward(wrong.answer)
            inherited = (None, right)  # both passes wrong; or the backward pass alone
            return [question.backward(Backward(wrong, question, of).done()) for of in inherited]

        _FAMILIES[change.__name__] = _Family(says, threads, answers, over)
        return change

    return register


def computes(says: str, *threads: str, over: Over | None = None, literally: bool = False) -> Callable[[Any], Any]:
    """Register a function (question, ...) -> Answer, or None where it has none; `literally` as in `Question.forward`."""

    def register(compute: Callable[..., Answer | None]) -> Any:
        def answers(question: Question, *given: Any) -> list[Arrays]:
            answer = None if question.aspect == "gradients" else compute(question, *given)
            return [] if answer is None else question.forward(answer, literally)

        _FAMILIES[compute.__name__] = _Family(says, threads, answers, over)
        return compute

    return register


def derives(says: str, *threads: str, over: Over | None = None) -> Callable[[Any], Any]:
    """Register a function (backward, ...) -> dq, dk, dv, or None where it has none."""

    def register(derive: Callable[..., Arrays | None]) -> Any:
        def answers(question: Question, *given: Any) -> list[Arrays]:
            three = derive(Backward(question.reading, question), *given) if question.aspect == "gradients" else None
            return [] if three is None else [question.backward(three)]

        _FAMILIES[derive.__name__] = _Family(says, threads, answers, over)
        return derive

    return register


Changes = dict[str, Any] | None


def _blocks(axis: int, spec: Spec) -> list[int]:
    return list(dict.fromkeys((spec.block[axis], 4, 8, 16, 32, 64, 128)))


_query_blocks, _key_blocks = partial(_blocks, 0), partial(_blocks, 1)


def _tiles(spec: Spec) -> list[tuple[int, int]]:
    return list(dict.fromkeys((spec.block, *((b, b) for b in _key_blocks(spec)))))


# ---------------------------------------------------------------------------------------------- attention, but of what?


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
    return None if q.problem.mask is None else {"allowed": q.but_mask(None)}


@reads("`mask` is inverted: True is taken for \"masked\".")  # fmt: skip
def mask_inverted(q: Question, r: Reading) -> Changes:
    return None if q.problem.mask is None else {"allowed": q.but_mask(~q.problem.mask)}


@reads("The mask of the first {0} is used for all.", over=lambda spec: [("sequence", 0), ("head", 1)])
def mask_of_the_first(q: Question, r: Reading, says: str, axis: int) -> Changes:
    if q.problem.mask is None or q.problem.mask.shape[axis] == 1:
        return None
    return {"allowed": q.but_mask(q.problem.mask.take([0], axis=axis))}


@reads("Where both are given, `{0}` is applied and `{1}` is not.",
       over=lambda spec: [("mask", "causal"), ("causal", "mask")])  # fmt: skip
def one_of_two_masks(q: Question, r: Reading, used: str, ignored: str) -> Changes:
    if q.problem.mask is None or not q.problem.causal:
        return None
    return {"allowed": (q.problem.but(causal=False) if used == "mask" else q.problem.but(mask=None)).allowed}


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
       "flagos-ai/FlagGems#424", over=_key_blocks)  # fmt: skip
def scale_grows(q: Question, r: Reading, block: int) -> Changes:
    return {"k": r.k * math.log2(math.e) ** (np.arange(r.k.shape[2]) // block)[:, None]}


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


@reads("The last keys are dropped where N_k is not a multiple of {0}.", "jax-ml/jax#27224", over=_key_blocks)
def tail_dropped(q: Question, r: Reading, block: int) -> Changes:
    N_k = r.k.shape[2]
    return {"allowed": r.allowed & (np.arange(N_k) < N_k // block * block)}


@reads("Where N_k is not a multiple of {0}, the zeros that fill up the last block of keys take part in the softmax{1}.",
       "jax-ml/jax#27224", "NVIDIA/cutlass#2428",
       over=lambda spec: [(b, where) for b in _key_blocks(spec)
                          for where in ("", " if there is no mask", " unless masked")])  # fmt: skip
def tail_unmasked(q: Question, r: Reading, block: int, says: str) -> Changes:
    N_k, more = r.k.shape[2], -r.k.shape[2] % block
    if more == 0 or (says == " if there is no mask" and q.problem.mask is not None):
        return None
    k, v = (np.concatenate([a, np.zeros((*a.shape[:2], more, a.shape[3]))], axis=2) for a in (r.k, r.v))
    seen = np.ones((r.q.shape[2], more), bool)
    if says and q.problem.causal:
        seen = np.arange(N_k, N_k + more)[None, :] <= np.arange(r.q.shape[2])[:, None] + q.shift
    allowed = np.concatenate([r.allowed, np.broadcast_to(seen, (*r.allowed.shape[:3], more))], axis=3)
    Z = r.Z if isinstance(r.Z, float) else np.concatenate([r.Z, np.ones((*r.Z.shape[:3], more))], axis=3)
    return {"k": k, "v": v, "allowed": allowed, "Z": Z}


@reads("Only the last block of {0} keys is masked.", "ROCm/rocMLIR#2165", "triton-lang/triton#8853", over=_key_blocks)
def last_block_masked(q: Question, r: Reading, block: int) -> Changes:
    N_k = r.k.shape[2]
    return {"allowed": r.allowed | (np.arange(N_k) < (N_k - 1) // block * block)}


@reads("In tiles of {0} queries and {1} keys, the causal mask is applied to the last tile of a row of tiles only, though "
       "the diagonal crosses several.", "ROCm/rocMLIR#2165", "triton-lang/triton#8853", over=_tiles)  # fmt: skip
def diagonal_in_last_tile(q: Question, r: Reading, B_r: int, B_c: int) -> Changes:
    if not q.problem.causal:
        return None
    N_q, N_k = r.allowed.shape[2:]
    ends = np.minimum(N_k, (np.arange(N_q) // B_r + 1) * B_r + q.shift)[:, None]  # of each row's loop over keys
    ends = np.minimum(ends, np.minimum(N_q, (np.arange(N_q) // B_r + 1) * B_r)[:, None] + q.shift)
    before = np.arange(N_k)[None, :] < (ends - 1) // B_c * B_c
    return {"allowed": r.allowed | (before & q.problem.but(causal=False).allowed)}


@reads("In tiles of {0} queries and {1} keys, the causal loop over keys ends where the first row of a tile ends.",
       "ROCm/rocMLIR#2165", over=_tiles)  # fmt: skip
def loop_ends_at_first_row(q: Question, r: Reading, B_r: int, B_c: int) -> Changes:
    if not q.problem.causal:
        return None
    N_q, N_k = r.allowed.shape[2:]
    ends = np.minimum(N_k, np.arange(N_q) // B_r * B_r + 1 + q.shift)[:, None]
    return {"allowed": r.allowed & (np.arange(N_k)[None, :] < -(-ends // B_c) * B_c)}


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


# -------------------------------------------------------------------------------------------------- dropout, both passes


def _factor(q: Question, factor: Callable[[Array, float], Array]) -> Changes:
    return None if q.keep is None else {"Z": factor(q.keep, q.problem.dropout_p)}


@reads("Dropout: kept weights are not divided by 1 − p.", "NVIDIA/apex#816")
def dropout_undivided(q: Question, r: Reading) -> Changes:
    return _factor(q, lambda keep, p: keep * 1.0)


@reads("Dropout: kept weights are {0}, not divided by 1 − p.", "NVIDIA/apex#816",
       over=lambda spec: ["divided by p", "multiplied by p", "multiplied by 1 − p"])  # fmt: skip
def dropout_factor(q: Question, r: Reading, says: str) -> Changes:
    return _factor(q, lambda keep, p: keep * {"divided by p": 1 / p, "multiplied by p": p}.get(says, 1 - p))


@reads("Dropout: the keep mask is inverted, what it keeps is dropped.")
def dropout_inverted(q: Question, r: Reading) -> Changes:
    return _factor(q, lambda keep, p: ~keep / (1 - p))


@reads("`dropout_p` is ignored: nothing is dropped.")
def dropout_ignored(q: Question, r: Reading) -> Changes:
    return _factor(q, lambda keep, p: np.ones(keep.shape))


@reads("Dropout: all heads use the keep mask of the first.")
def dropout_of_first_head(q: Question, r: Reading) -> Changes:
    return _factor(q, lambda keep, p: np.broadcast_to(keep[:1, :1], keep.shape) / (1 - p))


# ------------------------------------------------------------------------------------------------- the softmax, forward


def _parts(q: Question) -> tuple[Array, Array, Array, Array | Any]:
    """Return scores, their maxima as a column, values and Z in the type that the kernel computes in."""
    r = q.reading
    Z = r.Z if isinstance(r.Z, float) else r.Z.astype(q.chip)
    return r.S.astype(q.chip), r.m.astype(q.chip), r.V.astype(q.chip), Z


def _with_maximum(q: Question, m: Array, S: Array | None = None) -> Answer:
    """Return the answer with other numbers subtracted from each row's scores than its maximum, or of other scores."""
    right, _, V, Z = _parts(q)
    P = np.exp((right if S is None else S) - m)
    l = P.sum(axis=-1, keepdims=True)
    return Answer((P * Z) @ V / l, (m + np.log(l))[..., 0], l)


@computes("Masked scores are set to a finite number, such as {0:g}, not to −∞: a masked key counts where all scores are as low.",
          "flashinfer-ai/flashinfer#4267", "TransformerLensOrg/TransformerLens#318",
          over=lambda spec: [-1e30, -1e9, -1e4, -1e5, -65504.0, float(np.finfo(np.float32).min)])  # fmt: skip
def sentinel(q: Question, low: float) -> Answer:
    S = np.where(q.reading.allowed, _parts(q)[0], np.asarray(low, q.chip))
    return _with_maximum(q, S.max(axis=-1, keepdims=True, initial=-np.inf), S)


@computes("The row maximum is not subtracted before the exponential, which overflows, or vanishes.",
          "NVIDIA/DeepLearningExamples#169", "pytorch/pytorch#121558",
    over=lambda spec: [False, True])  # fmt: skip
def maximum_not_subtracted(q: Question, weights_first: bool) -> Answer:
    S, m, V, Z = _parts(q)
    if not weights_first:
        return _with_maximum(q, np.zeros_like(m))
    P = np.exp(S)
    l = P.sum(axis=-1, keepdims=True)
    return Answer((P / l * Z) @ V, np.log(l)[..., 0], l)


@computes("The row maximum is never below 0 (a running maximum that starts at 0): very negative scores vanish.",
          FA + "2082", FA + "2174")  # fmt: skip
def maximum_from_0(q: Question) -> Answer:
    return _with_maximum(q, np.maximum(_parts(q)[1], 0))


@computes("After a wholly masked first block of {0} keys the running maximum is 0, not −∞: negative scores vanish.",
          FA + "2082", FA + "2174", over=_key_blocks)  # fmt: skip
def maximum_0_after_masked_block(q: Question, block: int) -> Answer:
    m = _parts(q)[1]
    dead = ~q.reading.allowed[..., :block].any(axis=-1, keepdims=True)
    return _with_maximum(q, np.where(dead, np.maximum(m, 0), m))


def _online(q: Question, block: int, l_by: str = "", O_by: str = "", reset: bool = False, narrow: str = "") -> Answer:
    """Return the answer of the online softmax, its old sums rescaled by another factor: "one" or "inverse".

    reset   each block's own maximum is used, whatever came before
    narrow  what is kept in the inputs' dtype from block to block: "l", "O"
    """
    S, _, V, Z = _parts(q)
    if S.shape[-1] > block * MOST_STEPS:
        raise ValueError("too many steps")
    stored = q.problem.q.dtype
    m = np.full((*S.shape[:3], 1), -np.inf, S.dtype)
    l, acc = np.zeros_like(m), np.zeros((*S.shape[:3], V.shape[-1]), S.dtype)
    for start in range(0, S.shape[-1], block):
        part = slice(start, start + block)
        top = S[..., part].max(axis=-1, keepdims=True)
        m_new = top if reset else np.maximum(m, top)
        shown = np.where(m_new == -np.inf, 0, m_new)
        P = np.exp(S[..., part] - shown)
        inverse = np.where(m == -np.inf, 0, np.exp(shown - m))
        factors = {"": np.exp(m - shown), "one": np.ones_like(m), "inverse": inverse}
        l = l * factors[l_by] + P.sum(axis=-1, keepdims=True)
        acc = acc * factors[O_by] + (P * (Z if isinstance(Z, float) else Z[..., part])) @ V[..., part, :]
        if "l" in narrow:
            l = l.astype(stored).astype(S.dtype)
        if "O" in narrow:
            acc = acc.astype(stored).astype(S.dtype)
        m = m_new
    return Answer(acc / l, (m + np.log(l))[..., 0], l)


@computes("When the running maximum rises, the accumulated output is not rescaled (blocks of {0} keys).",
          "deepseek-ai/FlashMLA#177", over=_key_blocks)  # fmt: skip
def output_not_rescaled(q: Question, block: int) -> Answer:
    return _online(q, block, O_by="one")


@computes("When the running maximum rises, the row sum ℓ is not rescaled (blocks of {0} keys).",
          "deepseek-ai/FlashMLA#177", over=_key_blocks)  # fmt: skip
def sum_not_rescaled(q: Question, block: int) -> Answer:
    return _online(q, block, l_by="one")


@computes("When the running maximum rises, neither ℓ nor the accumulated output is rescaled (blocks of {0} keys).",
          "deepseek-ai/FlashMLA#177", over=_key_blocks)  # fmt: skip
def neither_rescaled(q: Question, block: int) -> Answer:
    return _online(q, block, "one", "one")


@computes("Old sums are rescaled by exp(new maximum − old), the inverse of what is right (blocks of {0} keys).",
          "deepseek-ai/FlashMLA#177", over=_key_blocks)  # fmt: skip
def rescaled_inversely(q: Question, block: int) -> Answer:
    return _online(q, block, "inverse", "inverse")


@computes("The maximum is that of a block of {0} keys alone, and sums of blocks with different maxima are added up.",
          "tile-ai/TileOPs#239", over=_key_blocks)  # fmt: skip
def maximum_reset(q: Question, block: int) -> Answer:
    return _online(q, block, "one", "one", reset=True)


@computes("The output is not divided by the row sum ℓ.")
def not_divided(q: Question) -> Answer:
    S, m, V, Z = _parts(q)
    P = np.exp(S - np.where(m == -np.inf, 0, m))
    return Answer((P * Z) @ V, q.reading.answer.lse)


def _narrow_steps(spec: Spec) -> list[int]:
    return [*_key_blocks(spec), 1]


def _kept_in_16_bits(q: Question, step: int, narrow: str) -> Answer | None:
    return _online(q, step, narrow=narrow) if q.problem.q.dtype.itemsize == 2 else None


@computes("The row sum ℓ is kept in the inputs' 16 bits, in steps of {0} keys.", "sonos/tract#2586",
          "huggingface/candle#3727", over=_narrow_steps)  # fmt: skip
def sum_in_16_bits(q: Question, step: int) -> Answer | None:
    return _kept_in_16_bits(q, step, "l")


@computes("The accumulated output is kept in the inputs' 16 bits, in steps of {0} keys.", over=_narrow_steps)
def output_in_16_bits(q: Question, step: int) -> Answer | None:
    return _kept_in_16_bits(q, step, "O")


@computes("Where N_k is not a multiple of {0}, the output is NaN: what fills up the last block is not cleared, and 0 · NaN "
          "is NaN.", FA + "1745", "jax-ml/jax#27224", over=_key_blocks)  # fmt: skip
def tail_nan(q: Question, block: int) -> Answer | None:
    O, lse, l = q.reading.answer
    return None if q.problem.causal or O.size == 0 or q.reading.k.shape[2] % block == 0 else Answer(O + np.nan, lse, l)


@computes("Dropout: ℓ is summed after dropping, so that the kept weights sum to {0}.",
          over=lambda spec: [("1", 1), ("1/(1 − p)", 0)])  # fmt: skip
def dropout_renormalised(q: Question, says: str, undone: int) -> Answer | None:
    if q.keep is None:
        return None
    S, m, V, _ = _parts(q)
    P = np.exp(S - np.where(m == -np.inf, 0, m)) * q.keep
    l = P.sum(axis=-1, keepdims=True)
    return Answer(P @ V / (l * (1 - q.problem.dropout_p) ** (1 - undone)), (m + np.log(l))[..., 0])


# ------------------------------------------------------------------------------------------- log-sum-exp, and empty rows


@computes("The log-sum-exp is {0}.", FA + "2573", "pytorch/pytorch#181645", "flashinfer-ai/flashinfer#4452",
          over=lambda spec: [("a natural logarithm, not one to base 2", math.log(2)), ("too large by 1/ln 2", 1 / math.log(2))]
          if spec.lse == "base2" else [("a logarithm to base 2, not a natural one", 1 / math.log(2)),
                                       ("multiplied by ln 2, as if it had been to base 2", math.log(2))])  # fmt: skip
def lse_in_other_base(q: Question, says: str, factor: float) -> Answer | None:
    O, lse, l = q.reading.answer
    return Answer(O, lse * factor, l) if q.aspect == "lse" else None


@computes("The log-sum-exp {0}.", over=lambda spec: [
          ("is log ℓ: the row maximum is not added", 0), ("is m + ℓ: the logarithm is missing", 1),
          ("is ℓ: the logarithm and the maximum are missing", 2), ("is the row maximum: log ℓ is missing", 3),
          ("has the wrong sign", 4)])  # fmt: skip
def lse_lacks(q: Question, says: str, which: int) -> Answer | None:
    if q.aspect != "lse":
        return None
    O, lse, _ = q.reading.answer
    m = q.reading.m[..., 0]
    l = np.exp(lse - m)
    wrong = (lse - m, m + l, l, m, -lse)[which]
    return Answer(O, np.where(q.problem.empty, -np.inf, wrong))


def _in_empty_rows(q: Question, aspect: str, values: Array) -> Answer | None:
    """Return the right answer, but for what empty rows give."""
    if q.aspect != aspect:
        return None
    O, lse, l = q.reading.answer
    empty = q.problem.empty
    if aspect == "O":
        return Answer(np.where(empty[..., None], values, O), lse, l)
    return Answer(O, np.where(empty, values, lse), l)


@computes("A row in which every key is masked is NaN (−∞ − (−∞), or 0/0).", "pytorch/pytorch#103963",
          "tracel-ai/burn#4697", "ml-explore/mlx#2608", literally=True)  # fmt: skip
def empty_row_nan(q: Question) -> Answer | None:
    return _in_empty_rows(q, "O", np.array(np.nan))


@computes("A row in which every key is masked is the mean of all values.", FA + "1778", literally=True)
def empty_row_mean(q: Question) -> Answer | None:
    return _in_empty_rows(q, "O", q.reading.V.mean(axis=-2, keepdims=True))


@computes("A row in which every key is masked is 0.", literally=True)
def empty_row_zero(q: Question) -> Answer | None:
    return _in_empty_rows(q, "O", np.array(0.0))


@computes("The log-sum-exp of a row in which every key is masked is {0}, not −∞.", FA + "978",
          over=lambda spec: [("+∞", np.inf), ("NaN", np.nan), ("0", 0.0)])  # fmt: skip
def lse_of_empty_row(q: Question, says: str, value: float) -> Answer | None:
    return _in_empty_rows(q, "lse", np.array(value))


@computes("The log-sum-exp of a row in which every key is masked is a finite number, not −∞.", FA + "978")
def lse_of_empty_row_finite(q: Question) -> Answer | None:
    got = q.got[0] * (math.log(2) if q.spec.lse == "base2" else 1)
    return _in_empty_rows(q, "lse", np.where(np.isfinite(got), got, -np.inf)) if q.aspect == "lse" else None


# ---------------------------------------------------------------------------------------------------- the backward pass


@derives("{0} not multiplied by the scale.",
         over=lambda spec: [("dq is", 1, 0), ("dk is", 0, 1), ("dq and dk are", 1, 1)])  # fmt: skip
def gradient_unscaled(b: Backward, says: str, q: int, k: int) -> Arrays:
    return b.done(tau_q=1.0 if q else None, tau_k=1.0 if k else None)


@derives("{0} multiplied by the scale twice.", "HKUSTDial/flash-sparse-attention#203",
         over=lambda spec: [("dq is", 1, 0), ("dk is", 0, 1), ("dq and dk are", 1, 1)])  # fmt: skip
def gradient_scaled_twice(b: Backward, says: str, q: int, k: int) -> Arrays:
    return b.done(tau_q=b.tau**2 if q else None, tau_k=b.tau**2 if k else None)


@derives("D = rowsum(dO ∘ O) is left out: dS is P ∘ dP.", "HomericIntelligence/Odyssey#2134")
def D_omitted(b: Backward) -> Arrays:
    return b.done(dS=b.P * b.dP)


@derives("D is rowsum(O), which is right for dO = 1 only.")
def D_for_ones(b: Backward) -> Arrays:
    return b.done(dS=b.P * (b.dP - b.O.sum(axis=-1, keepdims=True)))


@derives("dS is dP − D: it is not multiplied by P.")
def dS_without_P(b: Backward) -> Arrays:
    return b.done(dS=np.where(b.reading.allowed, b.dP - b.D, 0.0))


@derives("dk and dv of a KV head come from the {0} query head of its group, not from the sum over all.",
         "marin-community/levanter#449", over=lambda spec: [("last", -1), ("first", 0)])  # fmt: skip
def group_not_summed(b: Backward, says: str, which: int) -> Arrays:
    return b.done(share=lambda group: group[which])


@derives("dk and dv are averaged over the query heads of a group, not summed.")
def group_averaged(b: Backward) -> Arrays:
    return b.done(share=lambda group: np.mean(group, axis=0))


@derives("dq is 0 in the last rows where N_q is not a multiple of {0}.", over=_query_blocks)
def query_tail_zero(b: Backward, block: int) -> Arrays:
    dq, dk, dv = b.done()
    N_q = dq.shape[2]
    return np.where((np.arange(N_q) < N_q // block * block)[:, None], dq, 0), dk, dv


@derives("The last rows give no dk and dv where N_q is not a multiple of {0}.", over=_query_blocks)
def query_tail_dropped(b: Backward, block: int) -> Arrays:
    N_q = b.P.shape[2]
    full = (np.arange(N_q) < N_q // block * block)[:, None]
    dq, _, _ = b.done()
    _, dk, dv = b.done(dS=np.where(full, b.dS, 0), weights=np.where(full, b.P * b.Z, 0))
    return dq, dk, dv


@derives("dk and dv are 0 for the last keys where N_k is not a multiple of {0}.", "jax-ml/jax#27224", over=_key_blocks)
def key_tail_zero(b: Backward, block: int) -> Arrays:
    dq, dk, dv = b.done()
    N_k = dk.shape[2]
    full = (np.arange(N_k) < N_k // block * block)[:, None]
    return dq, np.where(full, dk, 0), np.where(full, dv, 0)


@derives("Where N_q is not a multiple of {0}, dk and dv are NaN: the rows that fill up the last block have no log-sum-exp.",
         "tile-ai/tilelang#2461", FA + "443", over=_query_blocks)  # fmt: skip
def statistics_uninitialised(b: Backward, block: int) -> Arrays | None:
    dq, dk, dv = b.done()
    return None if dq.shape[2] % block == 0 else (dq, dk + np.nan, dv + np.nan)


@derives("Where N_k is not a multiple of {0}, dq is NaN: what fills up the last block of K is not cleared, and 0 · NaN is "
         "NaN.", FA + "334", FA + "1395", over=_key_blocks)  # fmt: skip
def short_K_not_cleared(b: Backward, block: int) -> Arrays | None:
    dq, dk, dv = b.done()
    return None if b.problem.causal or dk.shape[2] % block == 0 else (dq + np.nan, dk, dv)


@derives(
    "Dropout: dS is computed from the weights after dropout, as P_dropped ∘ (dP − D).", "aws-neuron/nki-samples#81"
)
def dS_from_dropped(b: Backward) -> Arrays | None:
    return b.done(dS=b.P * b.Z * (b.dP - b.D)) if b.problem.dropout_p else None


@derives("Dropout: dv is computed from the weights before dropout.", "aws-neuron/nki-samples#81")
def dv_from_undropped(b: Backward) -> Arrays | None:
    return b.done(weights=b.P) if b.problem.dropout_p else None


@derives("Dropout: dP, the gradient of the weights, does not pass through dropout.", "aws-neuron/nki-samples#81")
def dP_undropped(b: Backward) -> Arrays | None:
    return b.done(dS=b.P * (b.undropped - b.D)) if b.problem.dropout_p else None


@derives("Dropout: 1/(1 − p) is missing in dv.", "NVIDIA/apex#816")
def dv_undivided(b: Backward) -> Arrays | None:
    return b.done(weights=b.P * b.keep) if b.problem.dropout_p else None


@derives("Dropout: 1/(1 − p) is missing in dP, the gradient of the weights.", "NVIDIA/apex#816")
def dP_undivided(b: Backward) -> Arrays | None:
    return b.done(dS=b.P * (b.undropped * b.keep - b.D)) if b.problem.dropout_p else None

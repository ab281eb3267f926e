"""The softmax in the forward pass, at once or block by block."""

from __future__ import annotations

import numpy as np

from flashsim.inputs import Array
from flashsim.testing.spec import Spec
from flashsim.testing.suspects.family import FA, computes, key_blocks
from flashsim.testing.suspects.reading import Answer, Question

MOST_STEPS = 400  # of a tiled model: what has more is not tried


def _with_maximum(q: Question, m: Array, S: Array | None = None) -> Answer:
    """Return the answer with other numbers subtracted from each row's scores than its maximum, or of other scores."""
    right, _, V, Z = q.parts
    P = np.exp((right if S is None else S) - m)
    l = P.sum(axis=-1, keepdims=True)
    return Answer((P * Z) @ V / l, (m + np.log(l))[..., 0], l)


@computes("Masked scores are set to a finite number, such as {0:g}, not to −∞: a masked key counts where all scores are as low.",
          "flashinfer-ai/flashinfer#4267", "TransformerLensOrg/TransformerLens#318",
          over=lambda spec: [-1e30, -1e9, -1e4, -1e5, -65504.0, float(np.finfo(np.float32).min)])  # fmt: skip
def sentinel(q: Question, low: float) -> Answer:
    S = np.where(q.reading.allowed, q.parts[0], np.asarray(low, q.chip))
    return _with_maximum(q, S.max(axis=-1, keepdims=True, initial=-np.inf), S)


@computes("The row maximum is not subtracted before the exponential, which overflows, or vanishes.",
          "NVIDIA/DeepLearningExamples#169", "pytorch/pytorch#121558",
    over=lambda spec: [False, True])  # fmt: skip
def maximum_not_subtracted(q: Question, weights_first: bool) -> Answer:
    S, m, V, Z = q.parts
    if not weights_first:
        return _with_maximum(q, np.zeros_like(m))
    P = np.exp(S)
    l = P.sum(axis=-1, keepdims=True)
    return Answer((P / l * Z) @ V, np.log(l)[..., 0], l)


@computes("The row maximum is never below 0 (a running maximum that starts at 0): very negative scores vanish.",
          FA + "2082", FA + "2174")  # fmt: skip
def maximum_from_0(q: Question) -> Answer:
    return _with_maximum(q, np.maximum(q.parts[1], 0))


@computes("After a wholly masked first block of {0} keys the running maximum is 0, not −∞: negative scores vanish.",
          FA + "2082", FA + "2174", over=key_blocks)  # fmt: skip
def maximum_0_after_masked_block(q: Question, block: int) -> Answer:
    m = q.parts[1]
    dead = ~q.reading.allowed[..., :block].any(axis=-1, keepdims=True)
    return _with_maximum(q, np.where(dead, np.maximum(m, 0), m))


def _online(q: Question, block: int, l_by: str = "", O_by: str = "", reset: bool = False, narrow: str = "") -> Answer:
    """Return the answer of the online softmax, its old sums rescaled by another factor: "one" or "inverse".

    reset   each block's own maximum is used, whatever came before
    narrow  what is kept in the inputs' dtype from block to block: "l", "O"
    """
    S, _, V, Z = q.parts
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
          "deepseek-ai/FlashMLA#177", over=key_blocks)  # fmt: skip
def output_not_rescaled(q: Question, block: int) -> Answer:
    return _online(q, block, O_by="one")


@computes("When the running maximum rises, the row sum ℓ is not rescaled (blocks of {0} keys).",
          "deepseek-ai/FlashMLA#177", over=key_blocks)  # fmt: skip
def sum_not_rescaled(q: Question, block: int) -> Answer:
    return _online(q, block, l_by="one")


@computes("When the running maximum rises, neither ℓ nor the accumulated output is rescaled (blocks of {0} keys).",
          "deepseek-ai/FlashMLA#177", over=key_blocks)  # fmt: skip
def neither_rescaled(q: Question, block: int) -> Answer:
    return _online(q, block, "one", "one")


@computes("Old sums are rescaled by exp(new maximum − old), the inverse of what is right (blocks of {0} keys).",
          "deepseek-ai/FlashMLA#177", over=key_blocks)  # fmt: skip
def rescaled_inversely(q: Question, block: int) -> Answer:
    return _online(q, block, "inverse", "inverse")


@computes("The maximum is that of a block of {0} keys alone, and sums of blocks with different maxima are added up.",
          "tile-ai/TileOPs#239", over=key_blocks)  # fmt: skip
def maximum_reset(q: Question, block: int) -> Answer:
    return _online(q, block, "one", "one", reset=True)


@computes("The output is not divided by the row sum ℓ.")
def not_divided(q: Question) -> Answer:
    S, m, V, Z = q.parts
    P = np.exp(S - np.where(m == -np.inf, 0, m))
    return Answer((P * Z) @ V, q.reading.answer.lse)


def _narrow_steps(spec: Spec) -> list[int]:
    return [*key_blocks(spec), 1]


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
          "is NaN.", FA + "1745", "jax-ml/jax#27224", over=key_blocks)  # fmt: skip
def tail_nan(q: Question, block: int) -> Answer | None:
    O, lse, l = q.reading.answer
    return None if q.problem.causal or O.size == 0 or q.reading.k.shape[2] % block == 0 else Answer(O + np.nan, lse, l)

"""Bugs of the softmax, of its blocks, of its log-sum-exp, and of rows without keys."""

import math

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.testing.spec import Spec
from flashsim.testing.suspects.family import FA, computes, key_blocks
from flashsim.testing.suspects.reading import Answer, Question

MOST_STEPS = 400  # of a tiled model; it does not answer problems with more
# numbers that kernels use for −∞
LOWS = (-1e30, -1e9, -1e4, -1e5, -65504.0, float(np.finfo(np.float32).min))


def _renormalised(q: Question, says: str, undone: int) -> Answer | None:
    if q.keep is None:
        return None
    S, m, V, _ = q.parts
    P = np.exp(S - np.where(m == -np.inf, 0, m)) * q.keep
    l = P.sum(axis=-1, keepdims=True)
    return Answer(P @ V / (l * (1 - q.problem.dropout_p) ** (1 - undone)), (m + np.log(l))[..., 0])


def _with_maximum(q: Question, m: Array, S: Array | None = None) -> Answer:
    """Return the answer if m is subtracted from each row's scores instead of its maximum, or
    from the scores S.
    """
    right, _, V, Z = q.parts
    P = np.exp((right if S is None else S) - m)
    l = P.sum(axis=-1, keepdims=True)
    return Answer((P * Z) @ V / l, (m + np.log(l))[..., 0], l)


def _sentinel(q: Question, low: float) -> Answer:
    S = np.where(q.reading.allowed, q.parts[0], np.asarray(low, q.chip))
    return _with_maximum(q, S.max(axis=-1, keepdims=True, initial=-np.inf), S)


def _maximum_not_subtracted(q: Question, weights_first: bool) -> Answer:
    S, m, V, Z = q.parts
    if not weights_first:
        return _with_maximum(q, np.zeros_like(m))
    P = np.exp(S)
    l = P.sum(axis=-1, keepdims=True)
    return Answer((P / l * Z) @ V, np.log(l)[..., 0], l)


def _maximum_0_after_masked_block(q: Question, block: int) -> Answer:
    m = q.parts[1]
    dead = ~q.reading.allowed[..., :block].any(axis=-1, keepdims=True)
    return _with_maximum(q, np.where(dead, np.maximum(m, 0), m))


def _online(
    q: Question, block: int, l_by: str = "", O_by: str = "", reset: bool = False, narrow: str = ""
) -> Answer:
    """Return the answer of an online softmax whose old sums are rescaled by another factor, "one"
    or "inverse".

    reset   each block uses its own maximum
    narrow  what is kept in the inputs' dtype between blocks: "l" or "O"
    """
    S, _, V, Z = q.parts
    if S.shape[-1] > block * MOST_STEPS:
        raise ValueError("too many steps")
    stored = q.problem.q.dtype
    m = np.full((*S.shape[:3], 1), -np.inf, S.dtype)
    l = np.zeros_like(m)
    acc = np.zeros((*S.shape[:3], V.shape[-1]), S.dtype)
    for start in range(0, S.shape[-1], block):
        part = slice(start, start + block)
        top = S[..., part].max(axis=-1, keepdims=True)
        m_new = top if reset else np.maximum(m, top)
        shown = np.where(m_new == -np.inf, 0, m_new)
        P = np.exp(S[..., part] - shown)
        factors = {
            "": np.exp(m - shown),
            "one": np.ones_like(m),
            "inverse": np.where(m == -np.inf, 0, np.exp(shown - m)),
        }
        l = l * factors[l_by] + P.sum(axis=-1, keepdims=True)
        acc = (
            acc * factors[O_by]
            + (P * (Z if isinstance(Z, float) else Z[..., part])) @ V[..., part, :]
        )
        if narrow == "l":
            l = l.astype(stored).astype(S.dtype)
        if narrow == "O":
            acc = acc.astype(stored).astype(S.dtype)
        m = m_new
    return Answer(acc / l, (m + np.log(l))[..., 0], l)


def _not_divided(q: Question) -> Answer:
    S, m, V, Z = q.parts
    return Answer((np.exp(S - np.where(m == -np.inf, 0, m)) * Z) @ V, q.reading.answer.lse)


def _divided_twice(q: Question) -> Answer:
    O, lse, l = q.reading.answer
    return Answer(O / l, lse, l)


def _scores_in_16_bits(q: Question, says: str, scaled: bool) -> Answer | None:
    stored = q.problem.q.dtype
    r = q.reading
    if stored.itemsize != 2:
        return None
    tau = q.chip.type(r.tau)
    S = r.q.astype(q.chip) @ r.k[:, r.owner].astype(q.chip).swapaxes(-1, -2)
    S = (S * tau).astype(stored).astype(q.chip) if scaled else S.astype(stored).astype(q.chip) * tau
    S = np.where(r.allowed, S + np.asarray(r.bias, q.chip), -np.inf)
    m = S.max(axis=-1, keepdims=True, initial=-np.inf)
    return _with_maximum(q, np.where(np.isfinite(m), m, 0), S)


def _steps(spec: Spec) -> list[int]:
    return [*key_blocks(spec), 1]


def _in_16_bits(q: Question, step: int, narrow: str) -> Answer | None:
    return _online(q, step, narrow=narrow) if q.problem.q.dtype.itemsize == 2 else None


def _tail_nan(q: Question, block: int) -> Answer | None:
    O, lse, l = q.reading.answer
    return (
        None
        if q.problem.causal or O.size == 0 or q.reading.k.shape[2] % block == 0
        else Answer(O + np.nan, lse, l)
    )


def _lse_in_other_base(q: Question, says: str, factor: float) -> Answer | None:
    O, lse, l = q.reading.answer
    return Answer(O, lse * factor, l) if q.aspect == "lse" else None


def _lse_lacks(q: Question, says: str, which: int) -> Answer | None:
    if q.aspect != "lse":
        return None
    O, lse, _ = q.reading.answer
    m = q.reading.m[..., 0]
    l = np.exp(lse - m)
    return Answer(O, np.where(q.problem.empty, -np.inf, (lse - m, m + l, l, m, -lse)[which]))


def _in_empty_rows(q: Question, aspect: str, values: Array | float) -> Answer | None:
    """Return the right answer, but with these values in empty rows."""
    if q.aspect != aspect:
        return None
    O, lse, l = q.reading.answer
    empty = q.problem.empty
    if aspect == "O":
        return Answer(np.where(empty[..., None], values, O), lse, l)
    return Answer(O, np.where(empty, values, lse), l)


def _lse_of_empty_row_finite(q: Question) -> Answer | None:
    got = q.got[0] * (math.log(2) if q.spec.lse == "base2" else 1)
    return (
        _in_empty_rows(q, "lse", np.where(np.isfinite(got), got, -np.inf))
        if q.aspect == "lse"
        else None
    )


SOFTMAX = (
    computes(
        "dropout_renormalised",
        "The row sum ℓ is taken after dropout, so that the kept weights sum to {0}.",
        _renormalised,
        over=lambda spec: [("1", 1), ("1/(1 − p)", 0)],
    ),
    # ----------------------------------------------------------------------------------------------
    # the maximum
    computes(
        "sentinel",
        "Masked scores are set to a finite number, such as {0:g}, instead of −∞. Where all other "
        "scores are as low, "
        "masked keys count.",
        _sentinel,
        "flashinfer-ai/flashinfer#4267",
        "TransformerLensOrg/TransformerLens#318",
        over=lambda spec: LOWS,
    ),
    computes(
        "maximum_not_subtracted",
        "The row maximum is not subtracted before the exponential, which overflows or vanishes.",
        _maximum_not_subtracted,
        "NVIDIA/DeepLearningExamples#169",
        "pytorch/pytorch#121558",
        over=lambda spec: [False, True],
    ),
    computes(
        "maximum_from_0",
        (
            "The row maximum is never below 0 (a running maximum that starts at 0), so very "
            "negative scores vanish."
        ),
        lambda q: _with_maximum(q, np.maximum(q.parts[1], 0)),
        FA + "2082",
        FA + "2174",
    ),
    computes(
        "maximum_0_after_masked_block",
        "After a first block of {0} keys that are all masked, the running maximum is 0 instead of "
        "−∞, so very negative "
        "scores vanish.",
        _maximum_0_after_masked_block,
        FA + "2082",
        FA + "2174",
        over=key_blocks,
    ),
    # ----------------------------------------------------------------------------------------------
    # block by block
    computes(
        "output_not_rescaled",
        (
            "When the running maximum rises, the accumulated output is not rescaled (blocks of {0} "
            "keys)."
        ),
        lambda q, block: _online(q, block, O_by="one"),
        "deepseek-ai/FlashMLA#177",
        over=key_blocks,
    ),
    computes(
        "sum_not_rescaled",
        "When the running maximum rises, the row sum ℓ is not rescaled (blocks of {0} keys).",
        lambda q, block: _online(q, block, l_by="one"),
        "deepseek-ai/FlashMLA#177",
        over=key_blocks,
    ),
    computes(
        "neither_rescaled",
        (
            "When the running maximum rises, neither ℓ nor the accumulated output is rescaled "
            "(blocks of {0} keys)."
        ),
        lambda q, block: _online(q, block, "one", "one"),
        "deepseek-ai/FlashMLA#177",
        over=key_blocks,
    ),
    computes(
        "rescaled_inversely",
        (
            "Old sums are rescaled by exp(new maximum − old maximum), the inverse of the right "
            "factor (blocks of {0} keys)."
        ),
        lambda q, block: _online(q, block, "inverse", "inverse"),
        "deepseek-ai/FlashMLA#177",
        over=key_blocks,
    ),
    computes(
        "maximum_reset",
        (
            "Each block of {0} keys uses its own maximum, and sums of blocks with different maxima "
            "are added."
        ),
        lambda q, block: _online(q, block, "one", "one", reset=True),
        "tile-ai/TileOPs#239",
        over=key_blocks,
    ),
    computes("not_divided", "The output is not divided by the row sum ℓ.", _not_divided),
    computes("divided_twice", "The output is divided by the row sum ℓ twice.", _divided_twice),
    computes(
        "scores_in_16_bits",
        (
            "The scores are kept in the inputs' 16 bits{0}, which are coarse; in float16, scores "
            "beyond 65,504 overflow."
        ),
        _scores_in_16_bits,
        "philipturner/metal-flash-attention#8",
        "ultralytics/ultralytics#24990",
        over=lambda spec: [("", True), (", before they are scaled", False)],
    ),
    computes(
        "sum_in_16_bits",
        "The row sum ℓ is kept in the inputs' 16 bits, in steps of {0} keys.",
        lambda q, step: _in_16_bits(q, step, "l"),
        "sonos/tract#2586",
        "huggingface/candle#3727",
        over=_steps,
    ),
    computes(
        "output_in_16_bits",
        "The accumulated output is kept in the inputs' 16 bits, in steps of {0} keys.",
        lambda q, step: _in_16_bits(q, step, "O"),
        over=_steps,
    ),
    computes(
        "tail_nan",
        "If N_k is not a multiple of {0}, the output is NaN: the padding of the last block is not "
        "set to 0, and 0 · NaN "
        "is NaN.",
        _tail_nan,
        FA + "1745",
        "jax-ml/jax#27224",
        over=key_blocks,
    ),
    # ----------------------------------------------------------------------------------------------
    # the log-sum-exp
    computes(
        "lse_in_other_base",
        "The log-sum-exp is {0}.",
        _lse_in_other_base,
        FA + "2573",
        "pytorch/pytorch#181645",
        "flashinfer-ai/flashinfer#4452",
        over=lambda spec: (
            [
                ("a natural logarithm instead of one to base 2", math.log(2)),
                ("too large by the factor 1/ln 2", 1 / math.log(2)),
            ]
            if spec.lse == "base2"
            else [
                ("a logarithm to base 2 instead of a natural one", 1 / math.log(2)),
                ("multiplied by ln 2, as if it had been to base 2", math.log(2)),
            ]
        ),
    ),
    computes(
        "lse_lacks",
        "The log-sum-exp {0}.",
        _lse_lacks,
        over=lambda spec: [
            ("is log ℓ: the row maximum is not added", 0),
            ("is m + ℓ: the logarithm is missing", 1),
            ("is ℓ: the logarithm and the maximum are missing", 2),
            ("is the row maximum: log ℓ is missing", 3),
            ("has the wrong sign", 4),
        ],
    ),
    # ----------------------------------------------------------------------------------------------
    # rows without keys
    computes(
        "empty_row_nan",
        "A row in which every key is masked is NaN (−∞ − (−∞), or 0/0).",
        lambda q: _in_empty_rows(q, "O", np.nan),
        "pytorch/pytorch#103963",
        "tracel-ai/burn#4697",
        "ml-explore/mlx#2608",
        literally=True,
    ),
    computes(
        "empty_row_mean",
        "A row in which every key is masked is the mean of all values.",
        lambda q: (
            _in_empty_rows(q, "O", q.reading.V.mean(axis=-2, keepdims=True))
            if q.reading.V.shape[-2]
            else None
        ),
        FA + "1778",
        literally=True,
    ),
    computes(
        "empty_row_zero",
        "A row in which every key is masked is 0.",
        lambda q: _in_empty_rows(q, "O", 0.0),
        literally=True,
    ),
    computes(
        "lse_of_empty_row",
        "The log-sum-exp of a row in which every key is masked is {0}, not −∞.",
        lambda q, says, value: _in_empty_rows(q, "lse", value),
        FA + "978",
        over=lambda spec: [("+∞", np.inf), ("NaN", np.nan), ("0", 0.0)],
    ),
    computes(
        "lse_of_empty_row_finite",
        "The log-sum-exp of a row in which every key is masked is a finite number, not −∞.",
        _lse_of_empty_row_finite,
        FA + "978",
    ),
)

"""Bugs of the softmax, of its blocks, of its log-sum-exp, and of rows without keys."""

import math
from typing import NamedTuple

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.testing.bug_models.family import FA, key_blocks, softmax_bug
from flashsim.testing.bug_models.interpretation import Answer, Inputs, finite_maximum
from flashsim.testing.spec import Spec

MOST_STEPS = 400  # of an online softmax: a model does not answer inputs with more
# numbers that kernels use for −∞
LOWS = (-1e30, -1e9, -1e4, -1e5, -65504.0, float(np.finfo(np.float32).min))


def _renormalised(inputs: Inputs, words: str, divided: bool) -> Answer | None:
    if inputs.keep is None:
        return None
    S, m, V, _ = inputs.softmax_operands
    P = np.exp(S - finite_maximum(m)) * inputs.keep
    l = P.sum(axis=-1, keepdims=True)
    divisor = l * (1 - inputs.problem.dropout_p) if divided else l
    return Answer(P @ V / divisor, (m + np.log(l))[..., 0])


def _with_maximum(inputs: Inputs, m: Array, S: Array | None = None) -> Answer:
    """Return the answer if m instead of the row maxima is subtracted from the scores, which are S
    or the right ones.
    """
    right_S, _, V, Z = inputs.softmax_operands
    P = np.exp((right_S if S is None else S) - m)
    l = P.sum(axis=-1, keepdims=True)
    return Answer((P * Z) @ V / l, (m + np.log(l))[..., 0], l)


def _sentinel(inputs: Inputs, low: float) -> Answer:
    number = np.asarray(low, inputs.chip)
    S = np.where(inputs.interpretation.allowed, inputs.softmax_operands.S, number)
    return _with_maximum(inputs, S.max(axis=-1, keepdims=True, initial=-np.inf), S)


def _maximum_not_subtracted(inputs: Inputs, weights_first: bool) -> Answer:
    S, m, V, Z = inputs.softmax_operands
    if not weights_first:
        return _with_maximum(inputs, np.zeros_like(m))
    P = np.exp(S)
    l = P.sum(axis=-1, keepdims=True)
    return Answer((P / l * Z) @ V, np.log(l)[..., 0], l)


def _maximum_from_0(inputs: Inputs) -> Answer:
    return _with_maximum(inputs, np.maximum(inputs.softmax_operands.m, 0))


def _maximum_0_after_masked_block(inputs: Inputs, block: int) -> Answer:
    m = inputs.softmax_operands.m
    first_block = inputs.interpretation.allowed[..., :block]
    masked = ~first_block.any(axis=-1, keepdims=True)
    return _with_maximum(inputs, np.where(masked, np.maximum(m, 0), m))


class Online(NamedTuple):
    """An online softmax with a bug.

    block     how many keys it takes at once
    l_factor  what the old row sum is multiplied by: "right", "one" or "inverse"
    O_factor  what the old output is multiplied by
    reset     whether each block uses its own maximum
    narrow    what is kept in the inputs' dtype between blocks: "l", "O" or ""
    """

    block: int
    l_factor: str = "right"
    O_factor: str = "right"
    reset: bool = False
    narrow: str = ""

    def answer(self, inputs: Inputs) -> Answer:
        """Return the answer. Raises ValueError if it takes too many steps."""
        S, _, V, Z = inputs.softmax_operands
        N_k = S.shape[-1]
        if N_k > self.block * MOST_STEPS:
            raise ValueError("too many steps")
        m = np.full((*S.shape[:3], 1), -np.inf, S.dtype)
        l = np.zeros_like(m)
        acc = np.zeros((*S.shape[:3], V.shape[-1]), S.dtype)
        for start in range(0, N_k, self.block):
            keys = slice(start, start + self.block)
            block_m = S[..., keys].max(axis=-1, keepdims=True)
            m_new = block_m if self.reset else np.maximum(m, block_m)
            finite_m = finite_maximum(m_new)
            P = np.exp(S[..., keys] - finite_m)
            Z_block = Z if isinstance(Z, float) else Z[..., keys]
            l_old = l * _factor(self.l_factor, m, finite_m)
            acc_old = acc * _factor(self.O_factor, m, finite_m)
            l = self._stored(inputs, "l", l_old + P.sum(axis=-1, keepdims=True))
            acc = self._stored(inputs, "O", acc_old + (P * Z_block) @ V[..., keys, :])
            m = m_new
        return Answer(acc / l, (m + np.log(l))[..., 0], l)

    def _stored(self, inputs: Inputs, name: str, a: Array) -> Array:
        return a.astype(inputs.dtype).astype(a.dtype) if self.narrow == name else a


def _factor(name: str, m: Array, m_new: Array) -> Array:
    """Return the factor of old sums where the maximum changes from m to m_new."""
    if name == "one":
        return np.ones_like(m)
    if name == "inverse":
        return np.asarray(np.where(m == -np.inf, 0, np.exp(m_new - m)))
    return np.asarray(np.exp(m - m_new))


def _sum_in_16_bits(inputs: Inputs, step: int) -> Answer | None:
    return Online(step, narrow="l").answer(inputs) if inputs.dtype.itemsize == 2 else None


def _output_in_16_bits(inputs: Inputs, step: int) -> Answer | None:
    return Online(step, narrow="O").answer(inputs) if inputs.dtype.itemsize == 2 else None


def _not_divided(inputs: Inputs) -> Answer:
    S, m, V, Z = inputs.softmax_operands
    P = np.exp(S - finite_maximum(m))
    return Answer((P * Z) @ V, inputs.interpretation.answer.lse)


def _divided_twice(inputs: Inputs) -> Answer:
    O, lse, l = inputs.interpretation.answer
    return Answer(O / l, lse, l)


def _scores_in_16_bits(inputs: Inputs, words: str, after_scaling: bool) -> Answer | None:
    dtype = inputs.dtype
    chip = inputs.chip
    right = inputs.interpretation
    if dtype.itemsize != 2:
        return None
    tau = chip.type(right.tau)
    S = right.q.astype(chip) @ right.k[:, right.owner].astype(chip).swapaxes(-1, -2)
    if after_scaling:
        S = (S * tau).astype(dtype).astype(chip)
    else:
        S = S.astype(dtype).astype(chip) * tau
    S = np.where(right.allowed, S + np.asarray(right.bias, chip), -np.inf)
    m = S.max(axis=-1, keepdims=True, initial=-np.inf)
    return _with_maximum(inputs, np.where(np.isfinite(m), m, 0), S)


def _blocks_or_1(spec: Spec) -> list[int]:
    return [*key_blocks(spec), 1]


def _tail_nan(inputs: Inputs, block: int) -> Answer | None:
    O, lse, l = inputs.interpretation.answer
    whole_blocks = inputs.interpretation.k.shape[2] % block == 0
    if inputs.problem.causal or O.size == 0 or whole_blocks:
        return None
    return Answer(O + np.nan, lse, l)


def _other_bases(spec: Spec) -> list[tuple[str, float]]:
    if spec.lse == "base2":
        return [
            ("a natural logarithm instead of one to base 2", math.log(2)),
            ("too large by the factor 1/ln 2", 1 / math.log(2)),
        ]
    return [
        ("a logarithm to base 2 instead of a natural one", 1 / math.log(2)),
        ("multiplied by ln 2, as if it had been to base 2", math.log(2)),
    ]


def _lse_in_other_base(inputs: Inputs, words: str, factor: float) -> Answer | None:
    O, lse, l = inputs.interpretation.answer
    return Answer(O, lse * factor, l) if inputs.aspect == "lse" else None


def _lse_incomplete(inputs: Inputs, words: str, formula: str) -> Answer | None:
    if inputs.aspect != "lse":
        return None
    O, lse, _ = inputs.interpretation.answer
    m = inputs.interpretation.m[..., 0]
    l = np.exp(lse - m)
    values = {"log l": lse - m, "m + l": m + l, "l": l, "m": m, "-lse": -lse}
    return Answer(O, np.where(inputs.problem.empty, -np.inf, values[formula]))


def _O_of_empty_rows(inputs: Inputs, values: Array | float) -> Answer | None:
    """Return the right answer, but with these values in empty rows of O."""
    if inputs.aspect != "O":
        return None
    O, lse, l = inputs.interpretation.answer
    return Answer(np.where(inputs.problem.empty[..., None], values, O), lse, l)


def _lse_of_empty_rows(inputs: Inputs, values: Array | float) -> Answer | None:
    """Return the right answer, but with these values in empty rows of the log-sum-exp."""
    if inputs.aspect != "lse":
        return None
    O, lse, l = inputs.interpretation.answer
    return Answer(O, np.where(inputs.problem.empty, values, lse), l)


def _empty_row_mean(inputs: Inputs) -> Answer | None:
    V = inputs.interpretation.V
    if V.shape[-2] == 0:
        return None
    return _O_of_empty_rows(inputs, V.mean(axis=-2, keepdims=True))


def _lse_of_empty_row_finite(inputs: Inputs) -> Answer | None:
    if inputs.aspect != "lse":
        return None
    (actual,) = inputs.actual
    if inputs.spec.lse == "base2":
        actual = actual * math.log(2)
    return _lse_of_empty_rows(inputs, np.where(np.isfinite(actual), actual, -np.inf))


SOFTMAX_BUGS = (
    softmax_bug(
        "dropout_renormalised",
        "The row sum ℓ is taken after dropout, so that the kept weights sum to {0}.",
        _renormalised,
        parameters=lambda spec: [("1", False), ("1/(1 − p)", True)],
    ),
    # ----------------------------------------------------------------------------------------------
    # the maximum
    softmax_bug(
        "sentinel",
        "Masked scores are set to a finite number, such as {0:g}, instead of −∞. Where all other "
        "scores are as low, "
        "masked keys count.",
        _sentinel,
        "flashinfer-ai/flashinfer#4267",
        "TransformerLensOrg/TransformerLens#318",
        parameters=lambda spec: LOWS,
    ),
    softmax_bug(
        "maximum_not_subtracted",
        "The row maximum is not subtracted before the exponential, which overflows or vanishes.",
        _maximum_not_subtracted,
        "NVIDIA/DeepLearningExamples#169",
        "pytorch/pytorch#121558",
        parameters=lambda spec: [False, True],
    ),
    softmax_bug(
        "maximum_from_0",
        (
            "The row maximum is never below 0 (a running maximum that starts at 0), so very "
            "negative scores vanish."
        ),
        _maximum_from_0,
        FA + "2082",
        FA + "2174",
    ),
    softmax_bug(
        "maximum_0_after_masked_block",
        "After a first block of {0} keys that are all masked, the running maximum is 0 instead of "
        "−∞, so very negative "
        "scores vanish.",
        _maximum_0_after_masked_block,
        FA + "2082",
        FA + "2174",
        parameters=key_blocks,
    ),
    # ----------------------------------------------------------------------------------------------
    # block by block
    softmax_bug(
        "output_not_rescaled",
        (
            "When the running maximum rises, the accumulated output is not rescaled (blocks of {0} "
            "keys)."
        ),
        lambda inputs, block: Online(block, O_factor="one").answer(inputs),
        "deepseek-ai/FlashMLA#177",
        parameters=key_blocks,
    ),
    softmax_bug(
        "sum_not_rescaled",
        "When the running maximum rises, the row sum ℓ is not rescaled (blocks of {0} keys).",
        lambda inputs, block: Online(block, l_factor="one").answer(inputs),
        "deepseek-ai/FlashMLA#177",
        parameters=key_blocks,
    ),
    softmax_bug(
        "neither_rescaled",
        (
            "When the running maximum rises, neither ℓ nor the accumulated output is rescaled "
            "(blocks of {0} keys)."
        ),
        lambda inputs, block: Online(block, "one", "one").answer(inputs),
        "deepseek-ai/FlashMLA#177",
        parameters=key_blocks,
    ),
    softmax_bug(
        "rescaled_inversely",
        (
            "Old sums are rescaled by exp(new maximum − old maximum), the inverse of the right "
            "factor (blocks of {0} keys)."
        ),
        lambda inputs, block: Online(block, "inverse", "inverse").answer(inputs),
        "deepseek-ai/FlashMLA#177",
        parameters=key_blocks,
    ),
    softmax_bug(
        "maximum_reset",
        (
            "Each block of {0} keys uses its own maximum, and sums of blocks with different maxima "
            "are added."
        ),
        lambda inputs, block: Online(block, "one", "one", reset=True).answer(inputs),
        "tile-ai/TileOPs#239",
        parameters=key_blocks,
    ),
    softmax_bug("not_divided", "The output is not divided by the row sum ℓ.", _not_divided),
    softmax_bug("divided_twice", "The output is divided by the row sum ℓ twice.", _divided_twice),
    softmax_bug(
        "scores_in_16_bits",
        (
            "The scores are kept in the inputs' 16 bits{0}, which are coarse; in float16, scores "
            "beyond 65,504 overflow."
        ),
        _scores_in_16_bits,
        "philipturner/metal-flash-attention#8",
        "ultralytics/ultralytics#24990",
        parameters=lambda spec: [("", True), (", before they are scaled", False)],
    ),
    softmax_bug(
        "sum_in_16_bits",
        "The row sum ℓ is kept in the inputs' 16 bits, in steps of {0} keys.",
        _sum_in_16_bits,
        "sonos/tract#2586",
        "huggingface/candle#3727",
        parameters=_blocks_or_1,
    ),
    softmax_bug(
        "output_in_16_bits",
        "The accumulated output is kept in the inputs' 16 bits, in steps of {0} keys.",
        _output_in_16_bits,
        parameters=_blocks_or_1,
    ),
    softmax_bug(
        "tail_nan",
        "If N_k is not a multiple of {0}, the output is NaN: the padding of the last block is not "
        "set to 0, and 0 · NaN "
        "is NaN.",
        _tail_nan,
        FA + "1745",
        "jax-ml/jax#27224",
        parameters=key_blocks,
    ),
    # ----------------------------------------------------------------------------------------------
    # the log-sum-exp
    softmax_bug(
        "lse_in_other_base",
        "The log-sum-exp is {0}.",
        _lse_in_other_base,
        FA + "2573",
        "pytorch/pytorch#181645",
        "flashinfer-ai/flashinfer#4452",
        parameters=_other_bases,
    ),
    softmax_bug(
        "lse_lacks",
        "The log-sum-exp {0}.",
        _lse_incomplete,
        parameters=lambda spec: [
            ("is log ℓ: the row maximum is not added", "log l"),
            ("is m + ℓ: the logarithm is missing", "m + l"),
            ("is ℓ: the logarithm and the maximum are missing", "l"),
            ("is the row maximum: log ℓ is missing", "m"),
            ("has the wrong sign", "-lse"),
        ],
    ),
    # ----------------------------------------------------------------------------------------------
    # rows without keys
    softmax_bug(
        "empty_row_nan",
        "A row in which every key is masked is NaN (−∞ − (−∞), or 0/0).",
        lambda inputs: _O_of_empty_rows(inputs, np.nan),
        "pytorch/pytorch#103963",
        "tracel-ai/burn#4697",
        "ml-explore/mlx#2608",
        keep_nan=True,
    ),
    softmax_bug(
        "empty_row_mean",
        "A row in which every key is masked is the mean of all values.",
        _empty_row_mean,
        FA + "1778",
        keep_nan=True,
    ),
    softmax_bug(
        "empty_row_zero",
        "A row in which every key is masked is 0.",
        lambda inputs: _O_of_empty_rows(inputs, 0.0),
        keep_nan=True,
    ),
    softmax_bug(
        "lse_of_empty_row",
        "The log-sum-exp of a row in which every key is masked is {0}, not −∞.",
        lambda inputs, words, value: _lse_of_empty_rows(inputs, value),
        FA + "978",
        parameters=lambda spec: [("+∞", np.inf), ("NaN", np.nan), ("0", 0.0)],
    ),
    softmax_bug(
        "lse_of_empty_row_finite",
        "The log-sum-exp of a row in which every key is masked is a finite number, not −∞.",
        _lse_of_empty_row_finite,
        FA + "978",
    ),
)

"""Bugs of the backward pass."""

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.testing.bug_models.family import FA, gradient_bug, key_blocks, query_blocks
from flashsim.testing.bug_models.interpretation import Arrays, Backward
from flashsim.testing.spec import Spec


def _dq_or_dk(spec: Spec) -> list[tuple[str, bool, bool]]:
    return [("dq is", True, False), ("dk is", False, True), ("dq and dk are", True, True)]


def _unscaled(b: Backward, words: str, of_dq: bool, of_dk: bool) -> Arrays:
    return b.gradients(tau_q=1.0 if of_dq else None, tau_k=1.0 if of_dk else None)


def _scaled_twice(b: Backward, words: str, of_dq: bool, of_dk: bool) -> Arrays:
    twice = b.tau**2
    return b.gradients(tau_q=twice if of_dq else None, tau_k=twice if of_dk else None)


def _D_for_ones(b: Backward) -> Arrays:
    return b.gradients(dS=b.P * (b.dP - b.O.sum(axis=-1, keepdims=True)))


def _dS_without_P(b: Backward) -> Arrays:
    return b.gradients(dS=np.where(b.interpretation.allowed, b.dP - b.D, 0.0))


def _one_head_of_group(b: Backward, words: str, head: int) -> Arrays:
    return b.gradients(combine=lambda group: group[head])


def _mean_of_group(b: Backward) -> Arrays:
    return b.gradients(combine=lambda group: np.mean(group, axis=0))


def _in_whole_blocks(n: int, block: int) -> Array:
    """Return which of n rows are in whole blocks, (n, 1)."""
    return np.asarray((np.arange(n) < n // block * block)[:, None])


def _query_tail_zero(b: Backward, block: int) -> Arrays:
    dq, dk, dv = b.gradients()
    return np.where(_in_whole_blocks(dq.shape[2], block), dq, 0), dk, dv


def _query_tail_dropped(b: Backward, block: int) -> Arrays:
    rows = _in_whole_blocks(b.P.shape[2], block)
    dq, _, _ = b.gradients()
    _, dk, dv = b.gradients(dS=np.where(rows, b.dS, 0), weights=np.where(rows, b.P * b.Z, 0))
    return dq, dk, dv


def _key_tail_zero(b: Backward, block: int) -> Arrays:
    dq, dk, dv = b.gradients()
    rows = _in_whole_blocks(dk.shape[2], block)
    return dq, np.where(rows, dk, 0), np.where(rows, dv, 0)


def _statistics_uninitialised(b: Backward, block: int) -> Arrays | None:
    dq, dk, dv = b.gradients()
    if dq.shape[2] % block == 0:
        return None
    return dq, dk + np.nan, dv + np.nan


def _short_K_not_cleared(b: Backward, block: int) -> Arrays | None:
    dq, dk, dv = b.gradients()
    if b.problem.causal or dk.shape[2] % block == 0:
        return None
    return dq + np.nan, dk, dv


def _dS_from_dropped(b: Backward) -> Arrays | None:
    if not b.problem.dropout_p:
        return None
    return b.gradients(dS=b.P * b.Z * (b.dP - b.D))


def _dv_from_undropped(b: Backward) -> Arrays | None:
    return b.gradients(weights=b.P) if b.problem.dropout_p else None


def _dP_undropped(b: Backward) -> Arrays | None:
    if not b.problem.dropout_p:
        return None
    return b.gradients(dS=b.P * (b.dP_before_dropout - b.D))


def _dv_undivided(b: Backward) -> Arrays | None:
    return b.gradients(weights=b.P * b.keep) if b.problem.dropout_p else None


def _dP_undivided(b: Backward) -> Arrays | None:
    if not b.problem.dropout_p:
        return None
    return b.gradients(dS=b.P * (b.dP_before_dropout * b.keep - b.D))


GRADIENT_BUGS = (
    gradient_bug(
        "gradient_unscaled",
        "{0} not multiplied by the scale.",
        _unscaled,
        parameters=_dq_or_dk,
    ),
    gradient_bug(
        "gradient_scaled_twice",
        "{0} multiplied by the scale twice.",
        _scaled_twice,
        "HKUSTDial/flash-sparse-attention#203",
        parameters=_dq_or_dk,
    ),
    gradient_bug(
        "D_omitted",
        "D = rowsum(dO ∘ O) is left out, so that dS is P ∘ dP.",
        lambda b: b.gradients(dS=b.P * b.dP),
        "HomericIntelligence/Odyssey#2134",
    ),
    gradient_bug(
        "D_for_ones",
        "D is rowsum(O), which is right only if dO = 1.",
        _D_for_ones,
    ),
    gradient_bug(
        "dS_without_P",
        "dS is dP − D, not multiplied by P.",
        _dS_without_P,
    ),
    gradient_bug(
        "group_not_summed",
        (
            "dk and dv of a KV head come from the {0} query head of its group, instead of the sum "
            "over all."
        ),
        _one_head_of_group,
        "marin-community/levanter#449",
        parameters=lambda spec: [("last", -1), ("first", 0)],
    ),
    gradient_bug(
        "group_averaged",
        "dk and dv are averaged over the query heads of a group instead of summed.",
        _mean_of_group,
    ),
    gradient_bug(
        "query_tail_zero",
        "dq is 0 in the last rows if N_q is not a multiple of {0}.",
        _query_tail_zero,
        parameters=query_blocks,
    ),
    gradient_bug(
        "query_tail_dropped",
        "The last rows are left out of dk and dv if N_q is not a multiple of {0}.",
        _query_tail_dropped,
        parameters=query_blocks,
    ),
    gradient_bug(
        "key_tail_zero",
        "dk and dv are 0 for the last keys if N_k is not a multiple of {0}.",
        _key_tail_zero,
        "jax-ml/jax#27224",
        parameters=key_blocks,
    ),
    gradient_bug(
        "statistics_uninitialised",
        (
            "If N_q is not a multiple of {0}, dk and dv are NaN: the log-sum-exp of the last "
            "block's padding rows is not set."
        ),
        _statistics_uninitialised,
        "tile-ai/tilelang#2461",
        FA + "443",
        parameters=query_blocks,
    ),
    gradient_bug(
        "short_K_not_cleared",
        (
            "If N_k is not a multiple of {0}, dq is NaN: the padding of the last block of K is not "
            "set to 0, and 0 · NaN is NaN."
        ),
        _short_K_not_cleared,
        FA + "334",
        FA + "1395",
        parameters=key_blocks,
    ),
    # ----------------------------------------------------------------------------------------------
    # dropout
    gradient_bug(
        "dS_from_dropped",
        "dS is computed from the weights after dropout, as P_dropped ∘ (dP − D).",
        _dS_from_dropped,
        "aws-neuron/nki-samples#81",
    ),
    gradient_bug(
        "dv_from_undropped",
        "dv is computed from the weights before dropout.",
        _dv_from_undropped,
        "aws-neuron/nki-samples#81",
    ),
    gradient_bug(
        "dP_undropped",
        "dP, the gradient of the weights, does not pass through dropout.",
        _dP_undropped,
        "aws-neuron/nki-samples#81",
    ),
    gradient_bug(
        "dv_undivided",
        "Dropout's factor 1/(1 − p) is missing in dv.",
        _dv_undivided,
        "NVIDIA/apex#816",
    ),
    gradient_bug(
        "dP_undivided",
        "Dropout's factor 1/(1 − p) is missing in dP, the gradient of the weights.",
        _dP_undivided,
        "NVIDIA/apex#816",
    ),
)

"""Bugs of the backward pass."""

from collections.abc import Callable

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.testing.spec import Spec
from flashsim.testing.suspects.family import FA, derives, key_blocks, query_blocks
from flashsim.testing.suspects.reading import Arrays, Backward


def _of_q_or_k(spec: Spec) -> list[tuple[str, int, int]]:
    return [("dq is", 1, 0), ("dk is", 0, 1), ("dq and dk are", 1, 1)]


def _whole_blocks(n: int, block: int) -> Array:
    """Return which of n rows are in whole blocks, (n, 1)."""
    return np.asarray((np.arange(n) < n // block * block)[:, None])


def _query_tail_zero(b: Backward, block: int) -> Arrays:
    dq, dk, dv = b.done()
    return np.where(_whole_blocks(dq.shape[2], block), dq, 0), dk, dv


def _query_tail_dropped(b: Backward, block: int) -> Arrays:
    full = _whole_blocks(b.P.shape[2], block)
    dq, _, _ = b.done()
    _, dk, dv = b.done(dS=np.where(full, b.dS, 0), weights=np.where(full, b.P * b.Z, 0))
    return dq, dk, dv


def _key_tail_zero(b: Backward, block: int) -> Arrays:
    dq, dk, dv = b.done()
    full = _whole_blocks(dk.shape[2], block)
    return dq, np.where(full, dk, 0), np.where(full, dv, 0)


def _statistics_uninitialised(b: Backward, block: int) -> Arrays | None:
    dq, dk, dv = b.done()
    return None if dq.shape[2] % block == 0 else (dq, dk + np.nan, dv + np.nan)


def _short_K_not_cleared(b: Backward, block: int) -> Arrays | None:
    dq, dk, dv = b.done()
    return None if b.problem.causal or dk.shape[2] % block == 0 else (dq + np.nan, dk, dv)


def _dropping(derive: Callable[[Backward], Arrays]) -> Callable[[Backward], Arrays | None]:
    return lambda b: derive(b) if b.problem.dropout_p else None


GRADIENTS = (
    derives(
        "gradient_unscaled",
        "{0} not multiplied by the scale.",
        lambda b, says, q, k: b.done(tau_q=1.0 if q else None, tau_k=1.0 if k else None),
        over=_of_q_or_k,
    ),
    derives(
        "gradient_scaled_twice",
        "{0} multiplied by the scale twice.",
        lambda b, says, q, k: b.done(tau_q=b.tau**2 if q else None, tau_k=b.tau**2 if k else None),
        "HKUSTDial/flash-sparse-attention#203",
        over=_of_q_or_k,
    ),
    derives(
        "D_omitted",
        "D = rowsum(dO ∘ O) is left out, so that dS is P ∘ dP.",
        lambda b: b.done(dS=b.P * b.dP),
        "HomericIntelligence/Odyssey#2134",
    ),
    derives(
        "D_for_ones",
        "D is rowsum(O), which is right only if dO = 1.",
        lambda b: b.done(dS=b.P * (b.dP - b.O.sum(axis=-1, keepdims=True))),
    ),
    derives(
        "dS_without_P",
        "dS is dP − D, not multiplied by P.",
        lambda b: b.done(dS=np.where(b.reading.allowed, b.dP - b.D, 0.0)),
    ),
    derives(
        "group_not_summed",
        (
            "dk and dv of a KV head come from the {0} query head of its group, instead of the sum "
            "over all."
        ),
        lambda b, says, which: b.done(share=lambda group: group[which]),
        "marin-community/levanter#449",
        over=lambda spec: [("last", -1), ("first", 0)],
    ),
    derives(
        "group_averaged",
        "dk and dv are averaged over the query heads of a group instead of summed.",
        lambda b: b.done(share=lambda group: np.mean(group, axis=0)),
    ),
    derives(
        "query_tail_zero",
        "dq is 0 in the last rows if N_q is not a multiple of {0}.",
        _query_tail_zero,
        over=query_blocks,
    ),
    derives(
        "query_tail_dropped",
        "The last rows are left out of dk and dv if N_q is not a multiple of {0}.",
        _query_tail_dropped,
        over=query_blocks,
    ),
    derives(
        "key_tail_zero",
        "dk and dv are 0 for the last keys if N_k is not a multiple of {0}.",
        _key_tail_zero,
        "jax-ml/jax#27224",
        over=key_blocks,
    ),
    derives(
        "statistics_uninitialised",
        (
            "If N_q is not a multiple of {0}, dk and dv are NaN: the log-sum-exp of the last "
            "block's padding rows is not set."
        ),
        _statistics_uninitialised,
        "tile-ai/tilelang#2461",
        FA + "443",
        over=query_blocks,
    ),
    derives(
        "short_K_not_cleared",
        (
            "If N_k is not a multiple of {0}, dq is NaN: the padding of the last block of K is not "
            "set to 0, and 0 · NaN is NaN."
        ),
        _short_K_not_cleared,
        FA + "334",
        FA + "1395",
        over=key_blocks,
    ),
    # ----------------------------------------------------------------------------------------------
    # dropout
    derives(
        "dS_from_dropped",
        "dS is computed from the weights after dropout, as P_dropped ∘ (dP − D).",
        _dropping(lambda b: b.done(dS=b.P * b.Z * (b.dP - b.D))),
        "aws-neuron/nki-samples#81",
    ),
    derives(
        "dv_from_undropped",
        "dv is computed from the weights before dropout.",
        _dropping(lambda b: b.done(weights=b.P)),
        "aws-neuron/nki-samples#81",
    ),
    derives(
        "dP_undropped",
        "dP, the gradient of the weights, does not pass through dropout.",
        _dropping(lambda b: b.done(dS=b.P * (b.undropped - b.D))),
        "aws-neuron/nki-samples#81",
    ),
    derives(
        "dv_undivided",
        "Dropout's factor 1/(1 − p) is missing in dv.",
        _dropping(lambda b: b.done(weights=b.P * b.keep)),
        "NVIDIA/apex#816",
    ),
    derives(
        "dP_undivided",
        "Dropout's factor 1/(1 − p) is missing in dP, the gradient of the weights.",
        _dropping(lambda b: b.done(dS=b.P * (b.undropped * b.keep - b.D))),
        "NVIDIA/apex#816",
    ),
)

"""The backward pass."""

from __future__ import annotations

import numpy as np

from flashsim.testing.suspects.family import FA, derives, key_blocks, query_blocks
from flashsim.testing.suspects.reading import Arrays, Backward


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


@derives("dq is 0 in the last rows where N_q is not a multiple of {0}.", over=query_blocks)
def query_tail_zero(b: Backward, block: int) -> Arrays:
    dq, dk, dv = b.done()
    N_q = dq.shape[2]
    return np.where((np.arange(N_q) < N_q // block * block)[:, None], dq, 0), dk, dv


@derives("The last rows give no dk and dv where N_q is not a multiple of {0}.", over=query_blocks)
def query_tail_dropped(b: Backward, block: int) -> Arrays:
    N_q = b.P.shape[2]
    full = (np.arange(N_q) < N_q // block * block)[:, None]
    dq, _, _ = b.done()
    _, dk, dv = b.done(dS=np.where(full, b.dS, 0), weights=np.where(full, b.P * b.Z, 0))
    return dq, dk, dv


@derives("dk and dv are 0 for the last keys where N_k is not a multiple of {0}.", "jax-ml/jax#27224", over=key_blocks)
def key_tail_zero(b: Backward, block: int) -> Arrays:
    dq, dk, dv = b.done()
    N_k = dk.shape[2]
    full = (np.arange(N_k) < N_k // block * block)[:, None]
    return dq, np.where(full, dk, 0), np.where(full, dv, 0)


@derives("Where N_q is not a multiple of {0}, dk and dv are NaN: the rows that fill up the last block have no log-sum-exp.",
         "tile-ai/tilelang#2461", FA + "443", over=query_blocks)  # fmt: skip
def statistics_uninitialised(b: Backward, block: int) -> Arrays | None:
    dq, dk, dv = b.done()
    return None if dq.shape[2] % block == 0 else (dq, dk + np.nan, dv + np.nan)


@derives("Where N_k is not a multiple of {0}, dq is NaN: what fills up the last block of K is not cleared, and 0 · NaN is "
         "NaN.", FA + "334", FA + "1395", over=key_blocks)  # fmt: skip
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

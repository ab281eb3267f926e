"""Packed batches: `varlen` runs them, `varlen_backward` their backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.memory.sram import Observer
from flashsim.serving.api import batch_of, gradients, plan_of, run
from flashsim.serving.checks import check_ends, check_fit, check_packed, check_sequences
from flashsim.serving.programs import programs
from flashsim.simulate.interleaving import interleave
from flashsim.simulate.results import Result
from flashsim.support.sizes import Size


def varlen(
    Q: Any,
    K: Any,
    V: Any,
    cu_q: Any,
    cu_k: Any,
    *,
    M: Size | None = None,
    blocks: tuple[int, int] | None = None,
    causal: bool = True,
    scale: float | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Run attention of sequences that lie end to end.

    Q, K, V     (H_q, ΣN, d), (H_kv, Σn, d), (H_kv, Σn, d_v)
    cu_q, cu_k  (b + 1,), where each sequence begins, and where the last one ends (cu_seqlens);
                sequences may be empty. Rows before the first and behind the last belong to none,
                may hold anything, and are not read
    causal      query r of N_s sees keys up to position r + n_s − N_s of its sequence

    O and lse are by sequence. Raises ValueError for arguments that make no sense, `SramOverflow`
    where blocks do not fit M.
    """
    Q, K, V = (check_packed(name, X) for name, X in (("Q", Q), ("K", K), ("V", V)))
    check_fit(Q, K, V)
    ends_q = check_ends("cu_q", cu_q, Q.shape[1], "Q")
    ends_k = check_ends("cu_k", cu_k, K.shape[1], "K")
    if len(ends_q) != len(ends_k):
        raise ValueError(f"cu_k has {len(ends_k)} ends; expected {len(ends_q)}, as cu_q has")
    N, n = (np.diff(ends.astype(np.int64)).tolist() for ends in (ends_q, ends_k))
    batch = batch_of(
        Q, K, V, N, n, M, causal, scale, (tuple(ends_q.tolist()), tuple(ends_k.tolist()))
    )
    words = {"cu_q": ends_q[:, None], "cu_k": ends_k[:, None]}
    return run(
        "varlen",
        batch,
        {"Q": interleave(Q, batch.group), "K": K, "V": V, **words},
        blocks,
        observers,
    )


def varlen_backward(
    run: Result,
    dO: Any,
    *,
    M: Size | None = None,
    blocks: tuple[int, int] | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Run the backward pass of a run of `varlen`, for dO, a list with (H_q, N_s, d_v) for each
    sequence, as run.O.

    M by default the run's; blocks and errors as in `varlen`. Returns dQ, dK, dV by sequence.
    """
    if not isinstance(run, Result) or run.algorithm != "varlen" or "O" not in run.arrays:
        raise ValueError(f"run is {run!r:.80}; expected what flashsim.serving.varlen returned")
    batch = run.plan.batch.with_memory(M)
    gradients_of_O = check_sequences("dO", dO, ("run.O", run.O))
    for s, (array, O) in enumerate(zip(gradients_of_O, run.O, strict=True)):
        if array.shape != O.shape:
            raise ValueError(
                f"dO[{s}] has shape {array.shape}; expected that of run.O[{s}], {O.shape}"
            )
    more = {"O": run.O, "dO": gradients_of_O, "L": [lse[..., None] for lse in run.lse]}
    rows = run.plan.operands["Q"].shape[1]
    operands = {**run.plan.operands, **{name: _among(batch, X, rows) for name, X in more.items()}}
    plan = plan_of(programs("backward")["varlen"], batch, blocks, {}, lambda _: operands)
    return gradients(plan, observers)


def _among(batch: Any, sequences: Sequence[Array], rows: int) -> Array:
    """Return arrays (H_q, N_s, width) at their sequences' rows, (H_kv, rows, width), with NaN in
    rows of no sequence.
    """
    whole = np.full((batch.kv_heads, rows, sequences[0].shape[2]), np.nan, sequences[0].dtype)
    for s, array in enumerate(sequences):
        whole[:, slice(*batch.rows(s))] = interleave(array, batch.group)
    return whole

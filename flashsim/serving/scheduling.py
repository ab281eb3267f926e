"""Decoding by a schedule: `decode` shares tiles out over workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flashsim.machine.memory import Observer
from flashsim.serving.api import ServingRun, batch_of, called, finished, packed
from flashsim.serving.checks import check_fit, check_sequences
from flashsim.serving.programs import programs
from flashsim.support.sizes import Size


def decode(
    Q: Any,
    K: Any,
    V: Any,
    *,
    workers: int,
    schedule: str = "stream_k",
    splits: int = 1,
    M: Size | None = None,
    blocks: tuple[int, int] | None = None,
    causal: bool = True,
    scale: float | None = None,
    observers: Sequence[Observer] = (),
) -> ServingRun:
    """Run attention of a batch, whose tiles are shared out over workers, such as a GPU's multiprocessors.

    Q, K, V   lists with (H_q, N_s, d), (H_kv, n_s, d), (H_kv, n_s, d_v) for each sequence
    schedule  "stream_k": all tiles in one row, cut into even shares, wherever the cuts fall; "fixed": each row block's tiles in
              `splits` parts, which workers take in turn
    workers   of one KV head

    Parts are merged in order, so a run gives the same bits every time. Raises ValueError for arguments that make no sense,
    `SramOverflow` where blocks do not fit M.
    """
    queries = check_sequences("Q", Q)
    keys, values = check_sequences("K", K, ("Q", queries)), check_sequences("V", V, ("Q", queries))
    for s in range(len(queries)):
        check_fit(queries[s], keys[s], values[s], f"Q[{s}] K[{s}] V[{s}]")
    N, n = ([array.shape[1] for array in of] for of in (queries, keys))
    batch = batch_of(queries[0], keys[0], values[0], N, n, M, causal, scale)
    operands = {
        "Q": packed(batch, queries), "K": np.concatenate(keys, axis=1), "V": np.concatenate(values, axis=1)
    }  # fmt: skip
    asked = {"schedule": schedule, "workers": workers, "splits": splits}
    return finished(called(programs()["decode"], batch, blocks, asked, lambda _: operands), observers)

"""Decoding by a schedule: `decode` shares tiles out over workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flashsim.memory.sram import Observer
from flashsim.serving.api import batch_of_lists, run
from flashsim.simulate.results import Result
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
) -> Result:
    """Run attention of a batch, whose tiles are shared out over workers, such as a GPU's
    multiprocessors.

    Q, K, V   lists with (H_q, N_s, d), (H_kv, n_s, d), (H_kv, n_s, d_v) for each sequence
    schedule  "stream_k": all tiles in one row, cut into even shares, wherever the cuts fall;
              "fixed": each row block's tiles in `splits` parts, which workers take in turn
    workers   of one KV head

    Parts are merged in order, so a run gives the same bits every time. Raises ValueError for
    arguments that make no sense, `SramOverflow` where blocks do not fit M.
    """
    batch, rows, keys, values = batch_of_lists(Q, K, V, M, causal, scale)
    operands = {"Q": rows, "K": np.concatenate(keys, axis=1), "V": np.concatenate(values, axis=1)}
    return run(
        "decode",
        batch,
        operands,
        blocks,
        observers,
        schedule=schedule,
        workers=workers,
        splits=splits,
    )

"""Shared prefixes: `cascade` attends to them once for all rows of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flashsim.memory.sram import Observer
from flashsim.serving.api import batch_of, packed, run
from flashsim.serving.checks import (
    check_fit,
    check_items,
    check_levels,
    check_packed,
    check_sequences,
)
from flashsim.simulate.results import Result
from flashsim.support.sizes import Size


def cascade(
    Q: Any,
    suffixes: Any,
    *,
    prefix: Any = None,
    levels: Any = (),
    M: Size | None = None,
    blocks: tuple[int, int] | None = None,
    causal: bool = True,
    scale: float | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Run attention of a batch whose sequences share prefixes: to each prefix once for all rows, to
    each suffix alone; merged.

    Q         a list with (H_q, N_s, d) for each sequence
    suffixes  a list with (K_s, V_s), (H_kv, n_s, ·), for each sequence: its own keys, those of its
              queries at the end
    prefix    (K_p, V_p), (H_kv, n_p, ·), which all sequences share; it lies before every query
    levels    in place of `prefix`, a tree of prefixes: levels, the root first, each a list of
              (first, end, K, V), which sequences first … end − 1 share
    causal    of suffixes: query r of N_s sees those up to position r + n_s − N_s

    Raises ValueError for arguments that make no sense, naming sequence, level and node;
    `SramOverflow` where blocks do not fit M.

    Sources: FlashInfer's "Cascade Inference" (Ye et al.); "Hydragen" (Juravsky et al.).
    """
    queries = check_sequences("Q", Q)
    own = [
        check_items(f"suffixes[{s}]", pair, "K, V")
        for s, pair in enumerate(check_items("suffixes", suffixes))
    ]
    K, V = (
        check_sequences(f"suffixes, {X}", [pair[k] for pair in own], ("Q", queries))
        for k, X in enumerate("KV")
    )
    tree = check_items("levels", levels)
    if prefix is not None:
        if tree:
            raise ValueError("prefix and levels are given; expected one of the two")
        tree = [[(0, len(queries), *check_items("prefix", prefix, "K, V"))]]
    lengths: list[list[tuple[int, int, int]]] = []
    shared = [K[0][:, :0]], [V[0][:, :0]]
    for number, level in enumerate(tree):
        lengths.append([])
        for k, node in enumerate(check_items(f"levels[{number}]", level)):
            name = "prefix" if prefix is not None else f"levels[{number}][{k}]"
            first, end, *pair = check_items(name, node, "first, end, K, V")
            K_n, V_n = (
                check_packed(f"{name}, {X}", array) for X, array in zip("KV", pair, strict=True)
            )
            check_fit(queries[0], K_n, V_n, f"Q[0] {name},K {name},V")
            if len(K_n) != len(K[0]):
                raise ValueError(
                    f"{name} has {len(K_n)} KV heads; expected {len(K[0])}, as suffixes[0] has"
                )
            lengths[-1].append((first, end, K_n.shape[1]))
            shared[0].append(K_n)
            shared[1].append(V_n)
    for s in range(len(queries)):
        check_fit(queries[s], K[s], V[s], f"Q[{s}] K[{s}] V[{s}]")
    batch = batch_of(
        queries[0],
        K[0],
        V[0],
        [q.shape[1] for q in queries],
        [k.shape[1] for k in K],
        M,
        causal,
        scale,
    )
    K_p, V_p = (np.concatenate(arrays, axis=1) for arrays in shared)
    ends = {"K_p": K_p, "V_p": V_p, "K": np.concatenate(K, axis=1), "V": np.concatenate(V, axis=1)}
    operands = {"Q": packed(batch, queries), **ends}
    return run(
        "cascade",
        batch,
        operands,
        blocks,
        observers,
        levels=check_levels(len(queries), None, lengths),
    )

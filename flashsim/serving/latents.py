"""Latent attention (MLA): `mla` attends to latents, `mla_expanded` to the keys and values that
it makes of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np

from flashsim.attention.arguments import check_count, check_number
from flashsim.attention.inputs import Array
from flashsim.memory.sram import Observer
from flashsim.serving.api import batch_of, packed, run
from flashsim.serving.checks import (
    check_fit,
    check_packed,
    check_pages,
    check_pool,
    check_sequences,
)
from flashsim.simulate.results import Result
from flashsim.support.sizes import Size


def absorb(Q: Any, W_UK: Any) -> Array:
    """Return queries of latents, (H_q, N, u + r), from those of keys, (H_q, N, d + r), and W_UK,
    (H_q, d, u).

    The last r columns, rope's, stay. Raises ValueError.
    """
    Q = check_packed("Q", Q)
    W_UK = check_packed("W_UK", W_UK)
    d = W_UK.shape[1]
    if len(W_UK) != len(Q) or d > Q.shape[2]:
        raise ValueError(
            f"W_UK has shape {W_UK.shape}; expected ({len(Q)}, at most {Q.shape[2]}, ·), as Q is "
            f"{Q.shape}"
        )
    return np.concatenate([Q[..., :d] @ W_UK, Q[..., d:]], axis=2)


def mla(
    Q: Any,
    C: Any,
    *,
    latent: int,
    scale: float,
    M: Size | None = None,
    blocks: tuple[int, int] | None = None,
    causal: bool = True,
    observers: Sequence[Observer] = (),
) -> Result:
    """Run latent attention, absorbed: all heads share the rows of C, which are keys, and values in
    their first columns.

    Q       a list with (H_q, N_s, w) for each sequence, as `absorb` returns it
    C       a list with (H_kv, n_s, w), a latent and columns of rope; DeepSeek's has one KV head,
            512 + 64 columns
    latent  u, the columns that are the value
    scale   τ, that of the model before anything was absorbed: DeepSeek's is 1/√(128 + 64), not
            1/√576, so there is no default

    O[s] is (H_q, N_s, u); O[s] @ W_UV, with (H_q, u, d_v), is the heads' output. Raises ValueError
    for arguments that make no sense, `SramOverflow` where blocks do not fit M.

    Sources: "DeepSeek-V2" (DeepSeek-AI, 2024); FlashMLA's "A Deep-Dive Into the New Flash MLA
    Kernel".
    """
    queries, latents = _sequences(Q, C)
    for s in range(len(queries)):
        check_fit(queries[s], latents[s], latents[s], f"Q[{s}] C[{s}] C[{s}]")
    u = _latent(latent, latents[0])
    tau = _scale(scale)
    N, n = ([array.shape[1] for array in of] for of in (queries, latents))
    batch = batch_of(queries[0], latents[0], latents[0][..., :u], N, n, M, causal, tau)
    return run(
        "mla",
        batch,
        {"Q": packed(batch, queries), "C": np.concatenate(latents, axis=1)},
        blocks,
        observers,
    )


def mla_paged(
    Q: Any,
    C: Any,
    table: Any,
    lengths: Any,
    *,
    latent: int,
    scale: float,
    page: int,
    tail: str = "rows",
    splits: int = 1,
    M: Size | None = None,
    blocks: tuple[int, int] | None = None,
    causal: bool = True,
    observers: Sequence[Observer] = (),
) -> Result:
    """Run latent attention, absorbed, to latents in pages: arguments as of `mla`, and of
    `flashsim.serving.paged`.

    C       a pool (H_kv, pages·page, w), of whole pages; FlashMLA's have 64 rows of 576 columns
    splits  in how many runs each row block's pages are attended to independently, and merged

    Raises ValueError for arguments that make no sense, naming sequence and page, `SramOverflow`
    where blocks do not fit M.

    Source: FlashMLA (DeepSeek-AI, 2025), `flash_mla_with_kvcache`.
    """
    queries = check_sequences("Q", Q)
    C = check_packed("C", C)
    page = check_count("page", page)
    check_fit(queries[0], C, C, "Q[0] C C")
    check_pool("C", C, page)
    words, n = check_pages(table, lengths, len(queries), page)
    u = _latent(latent, C)
    tau = _scale(scale)
    batch = batch_of(
        queries[0], C, C[..., :u], [array.shape[1] for array in queries], n.tolist(), M, causal, tau
    )
    operands = {"Q": packed(batch, queries), "C": C, "table": words, "lengths": n[:, None]}
    return run("mla_paged", batch, operands, blocks, observers, page=page, tail=tail, splits=splits)


def _latent(latent: Any, C: Array) -> int:
    return check_count("latent", latent, most=C.shape[2])


def _scale(scale: Any) -> float:
    expected = "a finite number: that of the model before W_UK was absorbed, not 1/√ of C's columns"
    return check_number("scale", scale, expected, isfinite)


def mla_expanded(
    Q: Any,
    C: Any,
    W_UK: Any,
    W_UV: Any,
    *,
    M: Size | None = None,
    blocks: tuple[int, int] | None = None,
    causal: bool = True,
    scale: float | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Run latent attention, not absorbed: each head makes keys and values of all latents in HBM,
    and attends to them.

    Q     a list with (H_q, N_s, d + r) for each sequence, the columns of rope, r, last
    C     a list with (1, n_s, u + r)
    W_UK  (H, d, u), W_UV (H, d_v, u); H_q is a multiple of H

    Raises ValueError for arguments that make no sense, `SramOverflow` where blocks do not fit M.

    Source: "DeepSeek-V2" (DeepSeek-AI, 2024), section 2.1.
    """
    queries, latents = _sequences(Q, C)
    W_UK = check_packed("W_UK", W_UK)
    W_UV = check_packed("W_UV", W_UV)
    H, d, u = W_UK.shape
    rope = queries[0].shape[2] - d
    w = latents[0].shape[2]
    if (
        len(W_UV) != H
        or W_UV.shape[2] != u
        or W_UK.dtype != W_UV.dtype
        or W_UK.dtype != queries[0].dtype
    ):
        text = (
            f"W_UK has shape {W_UK.shape} and W_UV {W_UV.shape}, of {W_UK.dtype} and {W_UV.dtype}"
        )
        raise ValueError(
            f"{text}; expected the same number of heads and columns, and the dtype of Q, "
            f"{queries[0].dtype}"
        )
    if len(latents[0]) != 1 or rope < 0 or w != u + rope or len(queries[0]) % H:
        text = f"Q[0] has shape {queries[0].shape}, C[0] {latents[0].shape}, W_UK {W_UK.shape}"
        raise ValueError(
            f"{text}; expected (H_q, ·, d + r), (1, ·, u + r), (H, d, u), and H_q a multiple of H"
        )
    N, n = ([array.shape[1] for array in of] for of in (queries, latents))
    K = np.broadcast_to(np.concatenate(latents, axis=1), (H, sum(n), w))
    batch = batch_of(queries[0], W_UK, W_UV.swapaxes(1, 2), N, n, M, causal, scale)
    operands = {"Q": packed(batch, queries), "C": K, "W_UK": W_UK, "W_UV": W_UV}
    return run("mla_expanded", batch, operands, blocks, observers, latent=u, rope=rope)


def _sequences(Q: Any, C: Any) -> tuple[list[Array], list[Array]]:
    queries = check_sequences("Q", Q)
    return queries, check_sequences("C", C, ("Q", queries))

"""Kernels that take no batch (B, H, N, d) as functions that the kit can call: packed sequences,
paged caches, latents.

Each call puts the case's sequences among others, in a new random order and on new random pages.
Then the usual checks ask what such kernels must do: `oracle` asks that only a sequence's own keys
reach its output, `determinism` that the order and the pages change no bit, and `batch_invariance`
that the other sequences change none.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from flashsim.attention.arguments import check_choice, check_count, check_flag, shown
from flashsim.attention.inputs import Array

Kernel = Callable[..., Any]
UNMAPPED = -1  # 2³² − 1 without a sign


def varlen(fn: Kernel, *, fill: float = np.nan, zero_lengths: bool = True) -> Kernel:
    """Return a kernel of packed sequences as one that the kit can check.

    It is called as flash_attn_varlen_func is: fn(q, k, v, cu_seqlens_q=, cu_seqlens_k=,
    max_seqlen_q=, max_seqlen_k=, **options), with q (rows, H_q, d), k (rows, H_kv, d), v (rows,
    H_kv, d_v), cu_seqlens int32 (sequences + 1,). It returns O (rows, H_q, d_v), or O and the
    log-sum-exp (H_q, rows). A backward function is given do after v, and all is packed.

    Between a case's sequences, and after the last, are others whose rows are all `fill`. Unless
    zero_lengths is False, some have no queries or no keys. Raises ValueError if fn is not a
    function, or returns another shape.
    """
    check_flag("zero_lengths", zero_lengths)
    rng = np.random.default_rng(0)
    given = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")

    def packed(q: Array, k: Array, v: Array, *do: Array, **options: Any) -> Any:
        (B, _, N_q, _), N_k = q.shape, k.shape[2]
        others = int(rng.integers(1, 4))
        order = rng.permutation(B + others)
        at = np.argsort(order)[:B]
        ends = []
        rows = []
        for N in (N_q, N_k):
            drawn = rng.integers(0 if zero_lengths else 1, N + 3, others) * (
                rng.random(others) < 0.7
            )
            lengths = np.array([N] * B + list(drawn if zero_lengths else np.maximum(drawn, 1)))[
                order
            ]
            ends.append(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
            rows.append([slice(*pair) for pair in pairwise(ends[-1])])
        tail = int(rng.integers(3))

        def pack(a: Array, side: int) -> Array:
            pack = np.full((ends[side][-1] + tail, a.shape[1], a.shape[3]), fill, a.dtype)
            for b in range(B):
                pack[rows[side][at[b]]] = a[b].swapaxes(0, 1)
            return pack

        def unpack(name: str, a: Any, side: int, like: Array, heads_first: bool = False) -> Array:
            total = ends[side][-1] + tail
            shape = (like.shape[1], total) if heads_first else (total, like.shape[1], like.shape[3])
            a = _shaped(name, a, shape).swapaxes(0, 1) if heads_first else _shaped(name, a, shape)
            return np.stack([a[rows[side][at[b]]].swapaxes(0, 1) for b in range(B)])

        longest = (int(np.diff(ends[0]).max()), int(np.diff(ends[1]).max()))
        arrays = [pack(q, 0), pack(k, 1), pack(v, 1), *(pack(a, 0) for a in do)]
        returned = fn(*arrays, **dict(zip(given, (*ends, *longest), strict=True)), **options)
        if do:
            gradients = zip(("dq", "dk", "dv"), returned[:3], (0, 1, 1), (q, k, v), strict=True)
            return *(unpack(*each) for each in gradients), *returned[3:]
        like = np.empty((*q.shape[:3], v.shape[-1]))
        if isinstance(returned, tuple | list):
            return unpack("O", returned[0], 0, like), unpack(
                "lse", returned[1], 0, like, heads_first=True
            )
        return unpack("O", returned, 0, like)

    return _as(packed, fn, given)


def paged(fn: Kernel, *, page: int = 16, fill: float = np.nan) -> Kernel:
    """Return a kernel on a paged cache as one that the kit can check.

    It is called as flash_attn_with_kvcache is: fn(q, k_cache, v_cache, block_table=,
    cache_seqlens=, **options), with q (B, N_q, H_q, d), k_cache (pages, page, H_kv, d), v_cache
    (pages, page, H_kv, d_v), block_table int32 (B, width), whose unused entries are −1,
    cache_seqlens int32 (B,). It returns O (B, N_q, H_q, d_v), or O and the log-sum-exp (B, H_q,
    N_q).

    The pages are permuted. Rows of a page after a sequence's last key, pages that no sequence has,
    and other sequences of the batch, of other lengths, are all `fill`. So are pages that lie before
    every query's window, which is aligned at the bottom right: a server may have given them back.
    The table is wider than any sequence needs. Raises ValueError if fn is not a function or returns
    another shape, and if page is not a positive number.
    """
    check_count("page", page)
    rng = np.random.default_rng(0)
    given = ("block_table", "cache_seqlens")

    def on_pages(q: Array, k: Array, v: Array, **options: Any) -> Any:
        (B, H_q, N_q, d), N_k = q.shape, k.shape[2]
        others = int(rng.integers(1, 4))
        order = rng.permutation(B + others)
        at = np.argsort(order)[:B]
        lengths = np.array([N_k] * B + list(rng.integers(0, N_k + page + 1, others)), np.int32)[
            order
        ]
        queries = np.full((len(order), N_q, H_q, d), fill, q.dtype)
        queries[at] = q.swapaxes(1, 2)
        rows = [
            tuple(np.full((n, a.shape[1], a.shape[3]), fill, a.dtype) for a in (k, v))
            for n in lengths
        ]
        left = (options.get("window") or (-1,))[0]
        gone = max(N_k - N_q - left, 0) // page * page if left >= 0 else 0
        for b, to in enumerate(at):
            for a, here in zip((k, v), rows[to], strict=True):
                here[gone:] = a[b, :, gone:].swapaxes(0, 1)
        cache, table = _in_pages(rng, page, fill, rows)
        returned = fn(queries, *cache, block_table=table, cache_seqlens=lengths, **options)
        O, *lse = returned if isinstance(returned, tuple | list) else (returned,)
        O = _shaped("O", O, (len(order), N_q, H_q, v.shape[-1]))[at].swapaxes(1, 2)
        return (O, _shaped("lse", lse[0], (len(order), H_q, N_q))[at]) if lse else O

    return _as(on_pages, fn, given)


def vllm(fn: Kernel, *, page: int = 16, fill: float = np.nan) -> Kernel:
    """Return a kernel of packed queries on a paged cache as one that the kit can check.

    It is called as vLLM's flash_attn_varlen_func is: fn(q, k_cache, v_cache, cu_seqlens_q=,
    max_seqlen_q=, seqused_k=, max_seqlen_k=, block_table=, **options). Queries are as `varlen` has
    them, caches and the table as `paged`, but k_cache and v_cache are the halves of one array (2,
    pages, page, H_kv, d). It returns what a kernel for `varlen` does. Raises as `paged`.
    """
    check_count("page", page)
    rng = np.random.default_rng(0)

    def on_pages(
        q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array, **given: Any
    ) -> Any:
        cache, table = _in_pages(
            rng, page, fill, [(k[a:b], v[a:b]) for a, b in pairwise(cu_seqlens_k)]
        )
        lengths = np.diff(cu_seqlens_k)
        return fn(
            q,
            *np.stack(cache),
            cu_seqlens_q=cu_seqlens_q,
            seqused_k=lengths,
            block_table=table,
            **given,
        )

    return _as(
        varlen(on_pages, fill=fill),
        fn,
        ("cu_seqlens_q", "max_seqlen_q", "seqused_k", "max_seqlen_k", "block_table"),
    )


def flashinfer(fn: Kernel, *, page: int = 16, fill: float = np.nan, layout: str = "NHD") -> Kernel:
    """Return a kernel on a paged cache as FlashInfer has it as one that the kit can check.

    It is called as fn(q, cache, qo_indptr=, paged_kv_indptr=, paged_kv_indices=,
    paged_kv_last_page_len=, **options), with the cache (pages, 2, page, H_kv, d) in layout "NHD",
    (pages, 2, H_kv, page, d) in "HND". Sequence s has the pages numbered
    paged_kv_indices[paged_kv_indptr[s] : paged_kv_indptr[s + 1]]; of its last,
    paged_kv_last_page_len[s] rows are filled, from 1 to page, or 0 where it has none. It returns O
    (rows, H_q, d), or O and the log-sum-exp (rows, H_q). Raises as `paged`.
    """

    check_choice("layout", layout, ("NHD", "HND"))

    def on_lists(
        q: Array,
        k: Array,
        v: Array,
        cu_seqlens_q: Array,
        seqused_k: Array,
        block_table: Array,
        max_seqlen_q: int,
        max_seqlen_k: int,
        **options: Any,
    ) -> Any:
        used = -(-seqused_k // page)
        cache = np.stack([k, v], axis=1)
        lists = {
            "qo_indptr": cu_seqlens_q,
            "paged_kv_indptr": np.concatenate([[0], np.cumsum(used)]).astype(np.int32),
            "paged_kv_indices": block_table[block_table != UNMAPPED],
            "paged_kv_last_page_len": seqused_k - page * np.maximum(used - 1, 0).astype(np.int32),
        }
        returned = fn(
            q,
            np.ascontiguousarray(cache.swapaxes(2, 3)) if layout == "HND" else cache,
            **lists,
            **options,
        )
        return (
            (returned[0], np.asarray(returned[1]).T)
            if isinstance(returned, tuple | list)
            else returned
        )

    given = ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
    return _as(vllm(on_lists, page=page, fill=fill), fn, given)


def mla(fn: Kernel) -> Kernel:
    """Return a decode kernel on latents (multi-head latent attention, absorbed) as one that the kit
    can check.

    It is called as fn(q, latents, width=, scale=, **options), with q (B, N_q, H_q, w), and latents
    (B, N_k, w), which are every head's keys, and whose first `width` columns are its values. It
    returns O (B, N_q, H_q, width), or O and the log-sum-exp (B, H_q, N_q).

    A case's values and the first half of its keys are put into the latents, in columns that d and
    d_v decide on: the matrices that decompress them choose columns, which is exact. `scale` is the
    expanded keys', 1/√d, and not 1/√w. Raises ValueError as `varlen` does.
    """

    def on_latents(q: Array, k: Array, v: Array, scale: float | None = None, **options: Any) -> Any:
        (B, H_q, N_q, d), (H_kv, _, d_v) = q.shape, v.shape[1:]
        group = H_q // H_kv
        nope = d - d // 2
        width = d_v + nope
        scale = 1 / math.sqrt(d) if scale is None else scale
        columns = np.concatenate(
            [np.random.default_rng((d, d_v)).permutation(width), np.arange(width, d_v + d)]
        )
        queries = np.concatenate([np.zeros((*q.shape[:3], d_v), q.dtype), q], axis=-1)[
            ..., columns
        ].swapaxes(1, 2)
        latents = np.concatenate([v, k], axis=-1)[..., columns]
        values = np.argsort(columns)[:d_v]
        Os = []
        lses = []
        for n in range(H_kv):
            own = slice(n * group, (n + 1) * group)
            ours = {
                name: a[own] if name in ("sink", "alibi_slopes") else a
                for name, a in options.items()
            }
            returned = fn(
                queries[:, :, own].copy(), latents[:, n].copy(), width=width, scale=scale, **ours
            )
            O, *lse = returned if isinstance(returned, tuple | list) else (returned,)
            Os.append(_shaped("O", O, (B, N_q, group, width))[..., values].swapaxes(1, 2))
            lses += [_shaped("lse", each, (B, group, N_q)) for each in lse]
        return (
            (np.concatenate(Os, axis=1), np.concatenate(lses, axis=1))
            if lses
            else np.concatenate(Os, axis=1)
        )

    return _as(on_latents, fn, ["width"])


def _in_pages(
    rng: np.random.Generator, page: int, fill: float, rows: Sequence[tuple[Array, ...]]
) -> tuple[list[Array], Array]:
    """Return each sequence's keys and values, (length, heads, width), on random pages, and the
    table of the pages' numbers.
    """
    used = np.array([-(-len(k) // page) for k, _ in rows])
    pages = rng.permutation(used.sum() + int(rng.integers(1, 4)))
    table = np.full((len(rows), used.max() + int(rng.integers(1, 3))), UNMAPPED, np.int32)
    cache = [np.full((len(pages), page, *a.shape[1:]), fill, a.dtype) for a in rows[0]]
    for s, first in enumerate(np.cumsum(used) - used):
        table[s, : used[s]] = pages[first : first + used[s]]
        at = np.arange(len(rows[s][0]))
        for pool, a in zip(cache, rows[s], strict=True):
            pool[table[s, at // page], at % page] = a
    return cache, table


def _shaped(name: str, a: Any, shape: tuple[int, ...]) -> Array:
    found: Array = np.asarray(a)
    if found.shape != shape:
        raise ValueError(f"{name} has shape {found.shape}; expected {shape}")
    return found


def _as(adapted: Kernel, fn: Kernel, given: Iterable[str]) -> Kernel:
    """Return a function with the name of the kernel that it calls, and its parameters except
    those in `given`.
    """
    if not callable(fn):
        raise ValueError(f"fn is {shown(fn)}; expected a function")
    adapted.__name__ = adapted.__qualname__ = getattr(fn, "__name__", type(fn).__name__)
    adapted.__module__ = getattr(fn, "__module__", adapted.__module__)
    try:
        found = inspect.signature(fn)
    except (TypeError, ValueError):
        return adapted
    kept = [each for name, each in found.parameters.items() if name not in given]
    adapted.__signature__ = found.replace(parameters=kept)  # type: ignore[attr-defined]
    return adapted

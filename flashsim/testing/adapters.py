"""Adapters: they make kernels of packed sequences, paged caches and latents into functions of a
batch (B, H, N, d), which the kit can call.

Each call puts the case's sequences among others, in a new random order and on new random pages.
The usual checks then test what such kernels must do: `oracle`, that only a sequence's own keys
reach its output; `determinism`, that the order and the pages change no bit; `batch_invariance`,
that the other sequences change no bit.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from flashsim.attention.arguments import check_choice, check_count, check_flag, short_repr
from flashsim.attention.inputs import Array

Function = Callable[..., Any]
UNMAPPED = -1  # 2³² − 1 without a sign


@dataclass(frozen=True)
class _Packing:
    """Where a case's B sequences lie in packed rows, among other sequences.

    positions  of each sequence of the case, in the order of the pack
    ends       cu_seqlens: where each sequence of the pack begins, and the last ends
    tail       how many rows follow the last sequence
    fill       what the other rows hold
    """

    positions: Array
    ends: Array
    tail: int
    fill: float

    @property
    def total(self) -> int:
        """How many rows the pack has."""
        return int(self.ends[-1]) + self.tail

    @property
    def longest(self) -> int:
        """The length of the longest sequence."""
        return int(np.diff(self.ends).max())

    def rows(self, b: int) -> slice:
        """Return the rows of sequence b of the case."""
        position = self.positions[b]
        return slice(self.ends[position], self.ends[position + 1])

    def pack(self, a: Array) -> Array:
        """Return an array (B, H, N, d) as packed rows (total, H, d)."""
        B, H, _, width = a.shape
        packed = np.full((self.total, H, width), self.fill, a.dtype)
        for b in range(B):
            packed[self.rows(b)] = a[b].swapaxes(0, 1)
        return packed

    def unpack(self, name: str, result: Any, heads: int, width: int) -> Array:
        """Return packed rows (total, heads, width) as an array (B, heads, N, width)."""
        packed = _as_array(name, result, (self.total, heads, width))
        B = len(self.positions)
        return np.stack([packed[self.rows(b)].swapaxes(0, 1) for b in range(B)])

    def unpack_lse(self, result: Any, heads: int) -> Array:
        """Return a log-sum-exp (heads, total) as an array (B, heads, N)."""
        packed = _as_array("lse", result, (heads, self.total))
        B = len(self.positions)
        return np.stack([packed[:, self.rows(b)] for b in range(B)])


def _random_ends(
    rng: np.random.Generator, order: Array, B: int, N: int, zero_lengths: bool
) -> Array:
    """Return cu_seqlens of B sequences of length N and others of random lengths, in that order."""
    count = len(order) - B
    others = rng.integers(0 if zero_lengths else 1, N + 3, count) * (rng.random(count) < 0.7)
    if not zero_lengths:
        others = np.maximum(others, 1)
    lengths = np.array([N] * B + list(others))[order]
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def varlen(fn: Function, *, fill: float = np.nan, zero_lengths: bool = True) -> Function:
    """Return a function that calls a kernel of packed sequences, and that the kit can check.

    The kernel is called as flash_attn_varlen_func is: fn(q, k, v, cu_seqlens_q=, cu_seqlens_k=,
    max_seqlen_q=, max_seqlen_k=, **options), with q (rows, H_q, d), k (rows, H_kv, d), v (rows,
    H_kv, d_v), cu_seqlens int32 (sequences + 1,). It returns O (rows, H_q, d_v), or O and the
    log-sum-exp (H_q, rows). A backward function is given do after v, and all is packed.

    Between a case's sequences, and after the last, are other sequences, whose rows are all `fill`.
    Unless zero_lengths is False, some have no queries or no keys. Raises ValueError if fn is not a
    function, or returns another shape.
    """
    check_flag("zero_lengths", zero_lengths)
    rng = np.random.default_rng(0)
    added = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")

    def packed(q: Array, k: Array, v: Array, *do: Array, **options: Any) -> Any:
        B, H_q, N_q, d = q.shape
        _, H_kv, N_k, d_v = v.shape
        others = int(rng.integers(1, 4))
        order = rng.permutation(B + others)
        positions = np.argsort(order)[:B]
        q_ends = _random_ends(rng, order, B, N_q, zero_lengths)
        k_ends = _random_ends(rng, order, B, N_k, zero_lengths)
        tail = int(rng.integers(3))
        queries = _Packing(positions, q_ends, tail, fill)
        keys = _Packing(positions, k_ends, tail, fill)
        arrays = [queries.pack(q), keys.pack(k), keys.pack(v)]
        arrays += [queries.pack(a) for a in do]
        lengths = (q_ends, k_ends, queries.longest, keys.longest)
        result = fn(*arrays, **dict(zip(added, lengths, strict=True)), **options)
        if do:
            dq, dk, dv = result[:3]
            return (
                queries.unpack("dq", dq, H_q, d),
                keys.unpack("dk", dk, H_kv, d),
                keys.unpack("dv", dv, H_kv, d_v),
                *result[3:],
            )
        O, lse = _output(result)
        unpacked = queries.unpack("O", O, H_q, d_v)
        if lse is None:
            return unpacked
        return unpacked, queries.unpack_lse(lse, H_q)

    return _with_signature(packed, fn, added)


def paged(fn: Function, *, page: int = 16, fill: float = np.nan) -> Function:
    """Return a function that calls a kernel on a paged cache, and that the kit can check.

    The kernel is called as flash_attn_with_kvcache is: fn(q, k_cache, v_cache, block_table=,
    cache_seqlens=, **options), with q (B, N_q, H_q, d), k_cache (pages, page, H_kv, d), v_cache
    (pages, page, H_kv, d_v), block_table int32 (B, width), whose unused entries are −1,
    cache_seqlens int32 (B,). It returns O (B, N_q, H_q, d_v), or O and the log-sum-exp (B, H_q,
    N_q).

    The pages are in random order. `fill` is in rows of a page after a sequence's last key, in pages
    that no sequence has, and in other sequences of the batch, whose lengths differ. It is also in
    pages before every query's window, which is aligned at the bottom right: a server may have freed
    them.
    The table is wider than any sequence needs. Raises ValueError if fn is not a function or returns
    another shape, and if page is not a positive number.
    """
    check_count("page", page)
    rng = np.random.default_rng(0)
    added = ("block_table", "cache_seqlens")

    def on_pages(q: Array, k: Array, v: Array, **options: Any) -> Any:
        B, H_q, N_q, d = q.shape
        N_k = k.shape[2]
        others = int(rng.integers(1, 4))
        order = rng.permutation(B + others)
        positions = np.argsort(order)[:B]
        other_lengths = rng.integers(0, N_k + page + 1, others)
        lengths = np.array([N_k] * B + list(other_lengths), np.int32)[order]
        queries = np.full((len(order), N_q, H_q, d), fill, q.dtype)
        queries[positions] = q.swapaxes(1, 2)
        freed = _freed_rows(options.get("window"), N_q, N_k, page)
        sequences = []
        for length in lengths:
            keys = np.full((length, k.shape[1], k.shape[3]), fill, k.dtype)
            values = np.full((length, v.shape[1], v.shape[3]), fill, v.dtype)
            sequences.append((keys, values))
        for b, position in enumerate(positions):
            keys, values = sequences[position]
            keys[freed:] = k[b, :, freed:].swapaxes(0, 1)
            values[freed:] = v[b, :, freed:].swapaxes(0, 1)
        cache, table = _in_pages(rng, page, fill, sequences)
        result = fn(queries, *cache, block_table=table, cache_seqlens=lengths, **options)
        O, lse = _output(result)
        O = _as_array("O", O, (len(order), N_q, H_q, v.shape[-1]))
        O = O[positions].swapaxes(1, 2)
        if lse is None:
            return O
        return O, _as_array("lse", lse, (len(order), H_q, N_q))[positions]

    return _with_signature(on_pages, fn, added)


def _freed_rows(window: tuple[int, int] | None, N_q: int, N_k: int, page: int) -> int:
    """Return how many first rows of a sequence lie in pages before every query's window."""
    if window is None or window[0] < 0:
        return 0
    return max(N_k - N_q - window[0], 0) // page * page


def vllm(fn: Function, *, page: int = 16, fill: float = np.nan) -> Function:
    """Return a function that calls a kernel of packed queries on a paged cache, and that the kit
    can check.

    The kernel is called as vLLM's flash_attn_varlen_func is: fn(q, k_cache, v_cache, cu_seqlens_q=,
    max_seqlen_q=, seqused_k=, max_seqlen_k=, block_table=, **options). Queries are as `varlen` has
    them, caches and the table as `paged`, but k_cache and v_cache are the halves of one array (2,
    pages, page, H_kv, d). It returns what a kernel for `varlen` does. Raises as `paged`.
    """
    check_count("page", page)
    rng = np.random.default_rng(0)

    def on_pages(
        q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array, **options: Any
    ) -> Any:
        sequences = [(k[begin:end], v[begin:end]) for begin, end in pairwise(cu_seqlens_k)]
        cache, table = _in_pages(rng, page, fill, sequences)
        lengths = np.diff(cu_seqlens_k)
        return fn(
            q,
            *np.stack(cache),
            cu_seqlens_q=cu_seqlens_q,
            seqused_k=lengths,
            block_table=table,
            **options,
        )

    added = ("cu_seqlens_q", "max_seqlen_q", "seqused_k", "max_seqlen_k", "block_table")
    return _with_signature(varlen(on_pages, fill=fill), fn, added)


def flashinfer(
    fn: Function, *, page: int = 16, fill: float = np.nan, layout: str = "NHD"
) -> Function:
    """Return a function that calls a kernel on a paged cache as FlashInfer has it, and that the kit
    can check.

    The kernel is called as fn(q, cache, qo_indptr=, paged_kv_indptr=, paged_kv_indices=,
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
        pages = -(-seqused_k // page)  # of each sequence
        cache = np.stack([k, v], axis=1)
        if layout == "HND":
            cache = np.ascontiguousarray(cache.swapaxes(2, 3))
        lists = {
            "qo_indptr": cu_seqlens_q,
            "paged_kv_indptr": np.concatenate([[0], np.cumsum(pages)]).astype(np.int32),
            "paged_kv_indices": block_table[block_table != UNMAPPED],
            "paged_kv_last_page_len": seqused_k - page * np.maximum(pages - 1, 0).astype(np.int32),
        }
        O, lse = _output(fn(q, cache, **lists, **options))
        return O if lse is None else (O, np.asarray(lse).T)

    added = ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
    return _with_signature(vllm(on_lists, page=page, fill=fill), fn, added)


def mla(fn: Function) -> Function:
    """Return a function that calls a decode kernel on latents (multi-head latent attention,
    absorbed), and that the kit can check.

    The kernel is called as fn(q, latents, width=, scale=, **options), with q (B, N_q, H_q, w), and
    latents (B, N_k, w), which are every head's keys, and whose first `width` columns are its
    values. It returns O (B, N_q, H_q, width), or O and the log-sum-exp (B, H_q, N_q).

    The latents hold a case's values and the first half of its keys, in an order of columns that
    depends on d and d_v: the matrices that decompress latents select columns, which is exact.
    `scale` is that of the expanded keys, 1/√d, and not 1/√w. Raises ValueError as `varlen` does.
    """

    def on_latents(q: Array, k: Array, v: Array, scale: float | None = None, **options: Any) -> Any:
        B, H_q, N_q, d = q.shape
        _, H_kv, _, d_v = v.shape
        group = H_q // H_kv
        width = d_v + d - d // 2
        scale = 1 / math.sqrt(d) if scale is None else scale
        shuffled = np.random.default_rng((d, d_v)).permutation(width)
        columns = np.concatenate([shuffled, np.arange(width, d_v + d)])
        zeros = np.zeros((*q.shape[:3], d_v), q.dtype)
        queries = np.concatenate([zeros, q], axis=-1)[..., columns].swapaxes(1, 2)
        latents = np.concatenate([v, k], axis=-1)[..., columns]
        value_columns = np.argsort(columns)[:d_v]
        outputs = []
        lses = []
        for n in range(H_kv):
            heads = slice(n * group, (n + 1) * group)
            options_of_heads = options.copy()
            for name in {"sink", "alibi_slopes"} & options.keys():
                options_of_heads[name] = options[name][heads]
            result = fn(
                queries[:, :, heads].copy(),
                latents[:, n].copy(),
                width=width,
                scale=scale,
                **options_of_heads,
            )
            O, lse = _output(result)
            O = _as_array("O", O, (B, N_q, group, width))
            outputs.append(O[..., value_columns].swapaxes(1, 2))
            if lse is not None:
                lses.append(_as_array("lse", lse, (B, group, N_q)))
        O = np.concatenate(outputs, axis=1)
        return (O, np.concatenate(lses, axis=1)) if lses else O

    return _with_signature(on_latents, fn, ["width"])


def _in_pages(
    rng: np.random.Generator, page: int, fill: float, sequences: Sequence[tuple[Array, Array]]
) -> tuple[list[Array], Array]:
    """Return the sequences' keys and values, each (length, heads, width), on random pages of two
    caches (pages, page, heads, width), and the table of page numbers.
    """
    counts = np.array([-(-len(keys) // page) for keys, _ in sequences])
    pages = rng.permutation(counts.sum() + int(rng.integers(1, 4)))
    columns = counts.max() + int(rng.integers(1, 3))
    table = np.full((len(sequences), columns), UNMAPPED, np.int32)
    caches = []
    for a in sequences[0]:
        caches.append(np.full((len(pages), page, *a.shape[1:]), fill, a.dtype))
    for s, first in enumerate(np.cumsum(counts) - counts):
        table[s, : counts[s]] = pages[first : first + counts[s]]
        rows = np.arange(len(sequences[s][0]))
        for cache, a in zip(caches, sequences[s], strict=True):
            cache[table[s, rows // page], rows % page] = a
    return caches, table


def _output(result: Any) -> tuple[Any, Any]:
    """Return O, and the log-sum-exp or None, of a kernel's result."""
    if isinstance(result, tuple | list):
        return result[0], result[1] if len(result) > 1 else None
    return result, None


def _as_array(name: str, result: Any, shape: tuple[int, ...]) -> Array:
    array: Array = np.asarray(result)
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}; expected {shape}")
    return array


def _with_signature(adapted: Function, fn: Function, added: Iterable[str]) -> Function:
    """Return the adapted function with the kernel's name, and with the kernel's parameters except
    those that the adapter adds.
    """
    if not callable(fn):
        raise ValueError(f"fn is {short_repr(fn)}; expected a function")
    adapted.__name__ = adapted.__qualname__ = getattr(fn, "__name__", type(fn).__name__)
    adapted.__module__ = getattr(fn, "__module__", adapted.__module__)
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return adapted
    others = [each for name, each in signature.parameters.items() if name not in added]
    adapted.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
    return adapted

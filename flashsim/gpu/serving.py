"""Serving on Hopper: `paged` computes attention over keys in pages, and `varlen` over packed
sequences, one after the other. See `flashsim.serving`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from flashsim.attention.arguments import MOST_SPLITS, check_count, check_flag, check_scale
from flashsim.gpu import hopper_paged, hopper_varlen
from flashsim.gpu.arrays import Taken, as_cupy
from flashsim.gpu.compiling import capability, import_cupy
from flashsim.gpu.counters import Counters
from flashsim.gpu.hopper import ELEMENTS, why_not
from flashsim.gpu.kernel import Options
from flashsim.gpu.launching import Prepared
from flashsim.serving.checks import check_ends, check_mapped, check_pages, check_words

WORDS = ("int32", "uint32")


def paged(
    q: Any,
    k: Any,
    v: Any,
    table: Any,
    lengths: Any,
    *,
    causal: bool = True,
    scale: float | None = None,
    splits: int | None = None,
    check: bool = True,
    return_lse: bool = False,
    count: bool = False,
) -> Any:
    """Return attention of a batch to keys and values in pages, (b, H_q, N, d), float16 or bfloat16,
    d of 64 or 128.

    q        (b, H_q, N, d): the last N queries of each sequence. At most 64 queries may share a KV
             head
    k, v     pools (pages, H_kv, page, d) with any strides but the last, such as a pool (pages,
             page, H_kv, d) with its axes swapped. A page has 8, 16, 32 or a multiple of 64 rows
    table    (b, width), int32 or uint32, on the GPU or the host: table[s, j] is the page of
             sequence s's keys from page·j on. Entries that are not needed may be anything, such as
             −1
    lengths  (b,), likewise: how many keys each sequence has, those of its queries included; may be
             0
    splits   into how many runs each sequence's pages are split; they run independently and are
             merged. None: as many as fill the GPU
    check    check table and lengths before the launch, which waits for the GPU. Without it, a page
             number outside the pool stops the kernel and all further work of the process on this
             GPU, and other mistakes are not noticed
    count    also return what was moved, by array, as `flashsim.gpu.forward` does

    Rows of the pool that belong to no sequence may have any value, even NaN. Finite inputs give
    finite results as long as scaled scores, and sums of values, are finite. Returns O, or a tuple
    (O, lse), (O, moved), (O, lse, moved); lse is (b, H_q, N), float32.

    Raises ValueError for arguments that make no sense, with the sequence and the page, and
    `MissingGPU` without a GPU or a package.
    """
    check_flag("check", check)
    splits = None if splits is None else check_count("splits", splits, most=MOST_SPLITS)
    table = _on_gpu("table", table, 2)
    lengths = _on_gpu("lengths", lengths, 1)
    with Taken(("q", "k", "v", "table", "lengths"), (q, k, v, table, lengths), None) as x:
        q, k, v, table, lengths = _described(x)
        _check_arrays(x.device, q, k, v, 4)
        pages, _, page, _ = k.shape
        hopper_paged.check_page(page)
        if reason := hopper_paged.unsuited(q.shape, k.shape):
            raise ValueError(f"q has shape {q.shape}, k {k.shape}: {reason}")
        for name, of, axes in (("table", table, 2), ("lengths", lengths, 1)):
            if (
                of.ndim != axes
                or of.shape[0] != q.shape[0]
                or of.dtype.name not in WORDS
                or 0 in of.shape
            ):
                raise ValueError(
                    f"{name} has shape {of.shape}, dtype {of.dtype.name}; expected "
                    f"({q.shape[0]}{', ·' * (axes - 1)}) of int32, "
                    "a row for each sequence, as q has"
                )
            if of.strides[-1] != 4:
                raise ValueError(
                    f"{name} has strides {of.strides} bytes; expected 4 for the last axis"
                )
        longest = table.shape[1] * page
        if check:
            x.enter()
            words, n = (
                as_cupy(name, array).get()
                for name, array in zip(x.names[3:], x.given[3:], strict=True)
            )
            words, n = check_pages(words, n, q.shape[0], page)
            check_mapped(words, n, page, pages)
            longest = int(n.max())
        options = _options(q, causal, scale, count)
        run = hopper_paged.prepared(
            x.device, q, k, v, table, bool(return_lse), options, longest, splits
        )
        return _finished(x, run, q, return_lse, options)


def varlen(
    q: Any,
    k: Any,
    v: Any,
    cu_q: Any,
    cu_k: Any,
    *,
    causal: bool = True,
    scale: float | None = None,
    return_lse: bool = False,
    count: bool = False,
) -> Any:
    """Return attention of packed sequences, one after the other: (H_q, ΣN, d), float16 or bfloat16,
    d of 64 or 128.

    q, k, v     (H_q, ΣN, d), (H_kv, Σn, d), (H_kv, Σn, d) with any strides but the last, such as
                (ΣN, H_q, d) with axes swapped
    cu_q, cu_k  (b + 1,): where each sequence begins, and where the last one ends. Sequences may be
                empty. Best on the host, as a list or NumPy array: if they are on a GPU, they are
                fetched, which waits for the GPU
    causal      query r of N_s sees keys up to position r + n_s − N_s of its sequence

    A sequence's results have the same bits in any batch, and nothing of other sequences reaches
    them, not even NaN. Rows before the first sequence or after the last one have O = 0 and lse =
    −∞. Other arguments, results and errors are as in `paged`.
    """
    with Taken("qkv", (q, k, v), None) as x:
        q, k, v = _described(x)
        _check_arrays(x.device, q, k, v, 3)
        x.enter()
        host = [
            ends if isinstance(ends, list | tuple | np.ndarray) else as_cupy(name, ends).get()
            for name, ends in (("cu_q", cu_q), ("cu_k", cu_k))
        ]
        ends_q = check_ends("cu_q", host[0], q.shape[1], "q")
        ends_k = check_ends("cu_k", host[1], k.shape[1], "k")
        if len(ends_q) != len(ends_k):
            raise ValueError(f"cu_k has {len(ends_k)} ends; expected {len(ends_q)}, as cu_q has")
        options = _options(q, causal, scale, count)
        run = hopper_varlen.prepared(x.device, q, k, v, ends_q, ends_k, bool(return_lse), options)
        return _finished(x, run, q, return_lse, options, (int(ends_q[0]), int(ends_q[-1])))


def _on_gpu(name: str, words: Any, axes: int) -> Any:
    """Return words as a CuPy array; copy them if they are on the host."""
    if isinstance(words, list | tuple | np.ndarray):
        return import_cupy().asarray(
            check_words(name, words, (None,) * axes, least=-(name == "table"))
        )
    return words


def _described(x: Taken) -> list[Any]:
    return _described_before(x.library, x.found)


@lru_cache(maxsize=1024)
def _described_before(library: Any, layout: tuple[Any, ...]) -> list[Any]:
    from flashsim.gpu.settling import Described

    return [Described(*library.described(*layout[n : n + 3])) for n in range(0, len(layout), 3)]


def _check_arrays(device: int, q: Any, k: Any, v: Any, axes: int) -> None:
    """Raise ValueError for a GPU, shapes, dtypes or strides that the kernels do not take."""
    for name, array in (("q", q), ("k", k), ("v", v)):
        if array.ndim != axes or 0 in (array.shape[0], *array.shape[2 if axes == 3 else 1 :]):
            expected = (
                "(heads, rows, d)" if axes == 3 else "(b, H_q, N, d), pools (pages, H_kv, page, d)"
            )
            raise ValueError(
                f"{name} has shape {array.shape}; expected {expected}, no axis of 0"
                + ", but rows" * (axes == 3)
            )
        if array.dtype.name not in ELEMENTS or array.dtype != q.dtype:
            raise ValueError(
                f"{name} has dtype {array.dtype.name}; expected {' or '.join(ELEMENTS)}, and one "
                "of q, k and v"
            )
        if array.strides[-1] != array.itemsize:
            raise ValueError(
                f"{name} has strides {array.strides} bytes; expected {array.itemsize} for the last "
                "axis"
            )
    d = q.shape[-1]
    heads = q.shape[axes - 3]
    kv_heads = k.shape[axes - 3]
    if (
        d not in hopper_varlen.HEAD_DIMS
        or k.shape[-1] != d
        or v.shape != k.shape
        or heads % kv_heads
    ):
        raise ValueError(
            f"q has shape {q.shape}, k {k.shape}, v {v.shape}; expected one d, 64 or 128, k and v "
            "alike, and heads of q "
            "that are a multiple of theirs"
        )
    if reason := why_not(capability(device), d):
        raise ValueError(f"{reason}; no other kernel here serves")


def _options(q: Any, causal: bool, scale: float | None, count: bool) -> Options:
    check_flag("causal", causal), check_flag("count", count)
    return Options(check_scale(scale, q.shape[-1]), causal, counters=Counters() if count else None)


def _finished(
    x: Taken,
    run: Prepared | None,
    q: Any,
    return_lse: bool,
    options: Options,
    rows: Sequence[int] = (),
) -> Any:
    """Run it and return what was asked for. Rows outside `rows`, (first, end), get O = 0."""
    specifications: list[Any] = [(0, x.found[0], x.found[2])]
    if return_lse:
        specifications.append((None, x.found[0][:-1], x.library.dtype("float32")))
    results = x.fill(run, specifications)
    if rows and (rows[0] or rows[1] < q.shape[1]):
        for array, nothing in zip(results, (0, -np.inf), strict=False):
            array[:, : rows[0]] = array[:, rows[1] :] = nothing
    if options.counters is not None:
        results.append(options.counters.moved())
    return results[0] if len(results) == 1 else tuple(results)

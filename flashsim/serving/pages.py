"""Paged attention: `paged` runs it, forward, on a pool of pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flashsim.attention.arguments import check_count
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


def paged(
    Q: Any,
    K: Any,
    V: Any,
    table: Any,
    lengths: Any,
    *,
    page: int,
    M: Size | None = None,
    blocks: tuple[int, int] | None = None,
    causal: bool = True,
    scale: float | None = None,
    tail: str = "rows",
    splits: int | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Run attention of a batch of sequences to keys and values that lie in pages.

    Q        a list with (H_q, N_s, d) for each sequence; N_s may be 0
    K, V     pools (H_kv, pages·page, ·), of whole pages; H_q is a multiple of H_kv
    table    (b, width): table[s, j] is the page in which the keys page·j … of sequence s lie;
             entries that are not needed may be anything, and −1, or 2³²−1, says that there is none
    lengths  (b,), the keys of each sequence, those of its queries included
    tail     "rows": of a sequence's last page what is filled is loaded; "page": all of it, and
             masked
    splits   in how many runs each row block's pages are attended to independently, and merged
             (FlashDecoding); None: one
    blocks   (B_r, B_c); tiles do not straddle pages. None: B_c = page, and the largest B_r that
             fits M

    Q r of N_s is at position r + n_s − N_s. Rows of the pool that no sequence fills may hold
    anything, NaN too. Raises ValueError for arguments that make no sense, naming sequence and page,
    `SramOverflow` where blocks do not fit M.

    Source: "Efficient Memory Management for Large Language Model Serving with PagedAttention" (Kwon
    et al.).
    """
    queries = check_sequences("Q", Q)
    page = check_count("page", page)
    K = check_packed("K", K)
    V = check_packed("V", V)
    check_fit(queries[0], K, V, "Q[0] K V")
    check_pool("K", K, page)
    words, n = check_pages(table, lengths, len(queries), page)
    batch = batch_of(
        queries[0], K, V, [array.shape[1] for array in queries], n.tolist(), M, causal, scale
    )
    operands = {"Q": packed(batch, queries), "K": K, "V": V, "table": words, "lengths": n[:, None]}
    name, more = ("paged", {}) if splits is None else ("paged_split", {"splits": splits})
    return run(name, batch, operands, blocks, observers, page=page, tail=tail, **more)

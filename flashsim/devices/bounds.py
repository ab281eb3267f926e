"""Lower bounds on the words that devices receive, for a problem that is divided among them: the
theorems of `flashsim.theory.bounds.words`, at this problem's numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flashsim.attention.masks.rules import Causal
from flashsim.attention.problem import EVERYTHING
from flashsim.devices.heads import heads_of
from flashsim.devices.layouts import Positions
from flashsim.devices.record import DevicesProgram
from flashsim.devices.share import Share
from flashsim.theory.bounds.words import SharedRows, WordsBound, words_bound
from flashsim.theory.bounds.words_backward import BackwardWordsBound, words_bound_backward


def lower_words(
    share: Share,
    most: int | None = None,
    *,
    at_root: bool = False,
    S: int | None = None,
) -> WordsBound:
    """Return the bound for a forward pass.

    most     pairs of heads' rows that a device does at most; None: all do equally many
    at_root  whether device 0 has all queries
    S        the memory of a device, in words; None: enough for everything
    """
    return words_bound(_rows(share, most, at_root), S)


def lower_words_backward(share: Share, most: int | None = None) -> BackwardWordsBound:
    """Return the bound for a backward pass; `most` as in `lower_words`."""
    return words_bound_backward(_rows(share, most, at_root=False))


def _rows(share: Share, most: int | None, at_root: bool) -> SharedRows:
    shape = share.problem.shape
    P = len(share.where)
    pairs = allowed(share)
    total = pairs * share.H_q
    return SharedRows(
        P=P,
        N_q=shape.N_q,
        N_k=shape.N_k,
        d=shape.d,
        d_v=shape.d_v,
        heads=share.H_q,
        kv_heads=share.H_kv,
        pairs=pairs,
        W=-(-total // P) if most is None else min(most, total),
        q=0 if at_root else max(map(len, share.queries)),
        n=share.most_rows,
        at_root=at_root,
    )


def allowed(share: Share, rows: Any = None, cols: Any = None) -> int:
    """Return how many pairs a mask allows, of some positions; None: of all."""
    shape = share.problem.shape
    mask = share.problem.mask
    if mask is EVERYTHING:
        N_q = shape.N_q if rows is None else len(rows)
        N_k = shape.N_k if cols is None else len(cols)
        return N_q * N_k
    if rows is None:
        rows = np.arange(shape.N_q)
    if cols is None and type(mask) is Causal and mask.offset is None:
        keys = rows + shape.N_k - shape.N_q + 1
        return int(keys.clip(0).sum())
    if cols is None:
        cols = np.arange(shape.N_k)
    pairs = 0
    for first in range(0, len(rows), 256):
        some = rows[first : first + 256]
        pairs += int(mask.allows(some, cols, shape, ()).sum())
    return pairs


def most_work(program: DevicesProgram, share: Share, columns: int) -> int:
    """Return the most pairs of heads' rows that a device does under a program."""
    mask = share.problem.mask
    if program.whole_heads:
        heads = [len(heads_of(share, p)) for p in range(len(share.where))]
        return max(heads) * allowed(share)
    if program.at_root:
        queries = share.queries[0]
        return share.H_q * max(allowed(share, queries, cols) for cols in share.where)
    if not program.columns:
        return share.H_q * max(allowed(share, rows) for rows in share.queries)
    rows, cols = _of_lines(share, columns)
    if mask is EVERYTHING:
        return share.H_q * max(map(len, rows)) * max(map(len, cols))
    if type(mask) is Causal and mask.offset is None:
        return share.H_q * _most_causal(len(share), rows, cols)
    return share.H_q * max(allowed(share, r, c) for r in rows for c in cols)


def _of_lines(share: Share, columns: int) -> tuple[list[Positions], list[Positions]]:
    """Return the positions of queries of each row of a mesh, and those of keys of each column."""
    rows = []
    for first in range(0, len(share.where), columns):
        row = share.queries[first : first + columns]
        rows.append(np.concatenate([*row]))
    cols = []
    for c in range(columns):
        column = share.where[c::columns]
        cols.append(np.concatenate([*column]))
    return rows, cols


def _most_causal(N: int, rows: Sequence[Positions], cols: Sequence[Positions]) -> int:
    """Return the most pairs of one of `rows` and one of `cols`, by a pass over all positions for
    each of those that are few.
    """
    few_rows = len(rows) < len(cols)
    few, many = (rows, cols) if few_rows else (cols, rows)
    line = np.zeros(N, np.int64)
    for k, group in enumerate(many):
        line[group] = k
    most = 0
    for group in few:
        inside = np.zeros(N, np.int64)
        inside[group] = 1
        met = inside.cumsum()  # keys up to a row
        if few_rows:
            met = inside[::-1].cumsum()[::-1]  # rows at or after a key
        pairs = np.bincount(line, weights=met)
        most = max(most, int(pairs.max()))
    return most

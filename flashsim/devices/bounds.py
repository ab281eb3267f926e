"""Lower bounds on the words that devices receive, of a problem that is shared out: what
`flashsim.theory.bounds.words` proves, at this problem's numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flashsim.attention.masks.rules import Causal
from flashsim.attention.problem import EVERYTHING
from flashsim.devices.record import DevicesProgram
from flashsim.devices.share import Share
from flashsim.theory.bounds.words import SharedRows, WordsBound, words_bound
from flashsim.theory.bounds.words_backward import BackwardWordsBound, words_bound_backward


def lower_words(
    share: Share, most: int | None = None, *, at_root: bool = False, S: int | None = None
) -> WordsBound:
    """Return the bound for a forward pass.

    most     pairs of heads' rows that a device does at most; None: all do equally many
    at_root  whether device 0 has all queries
    S        the room of a device, in words; None: there is room for everything
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
        return (shape.N_q if rows is None else len(rows)) * (
            shape.N_k if cols is None else len(cols)
        )
    rows = np.arange(shape.N_q) if rows is None else rows
    if cols is None and type(mask) is Causal and mask.offset is None:
        return int((rows + shape.N_k - shape.N_q + 1).clip(0).sum())
    cols = np.arange(shape.N_k) if cols is None else cols
    return sum(
        int(mask.allows(rows[i : i + 256], cols, shape, ()).sum()) for i in range(0, len(rows), 256)
    )


def most_work(program: DevicesProgram, share: Share, columns: int) -> int:
    """Return the most pairs of heads' rows that a device does under a program."""
    P = len(share.where)
    everyone = range(len(share.where))
    mask = share.problem.mask
    if program.name == "ulysses":
        return max(len(share.heads(p)) for p in everyone) * allowed(share)
    if program.at_root:
        return share.H_q * max(allowed(share, share.queries[0], cols) for cols in share.where)
    if not program.columns:
        return share.H_q * max(allowed(share, rows) for rows in share.queries)
    rows = [np.concatenate([*share.queries[p : p + columns]]) for p in range(0, P, columns)]
    cols = [np.concatenate([*share.where[c::columns]]) for c in range(columns)]
    if mask is EVERYTHING:
        return share.H_q * max(map(len, rows)) * max(map(len, cols))
    if type(mask) is not Causal or mask.offset is not None:
        return share.H_q * max(allowed(share, r, c) for r in rows for c in cols)
    # a pass over all positions for each of few
    few, many = (rows, cols) if len(rows) < len(cols) else (cols, rows)
    of = np.zeros(len(share), np.int64)
    most = 0
    for k, group in enumerate(many):
        of[group] = k
    for group in few:
        inside = np.zeros(len(share), np.int64)
        inside[group] = 1
        met = inside[::-1].cumsum()[::-1] if few is rows else inside.cumsum()
        most = max(most, int(np.bincount(of, weights=met).max()))
    return share.H_q * most

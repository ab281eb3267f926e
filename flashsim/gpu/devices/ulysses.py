"""Ulysses on GPUs: the messages of flashsim/devices/programs/ulysses.py, and one kernel for own
heads and all rows.

    forward   rows of Q, K, V of x's heads go to each device x; O of own heads comes back, rows of x
              to x.
    backward  rows of dO go as O's come; dQ, dK, dV of own heads come back.

Tensors are PyTorch's: own rows of Q, O, dO (H_q, n, d), K, V (H_kv, n, d). Rows are contiguous, so
that those of all devices, one after the other, are in the order of positions, which a causal kernel
needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from flashsim.attention.masks.rules import Causal
from flashsim.devices.share import Share
from flashsim.gpu.devices import tiles
from flashsim.gpu.devices.links import Links


@dataclass(frozen=True)
class Heads:
    """Own heads, all rows: what the backward pass needs. Q, O (heads, N, d), K, V (KV heads, N,
    d), L (heads, N).
    """

    Q: Any
    K: Any
    V: Any
    O: Any
    L: Any


def check(share: Share, layout: Any) -> None:
    """Raise ValueError unless rows are contiguous and each device has as many query heads, and
    KV heads of its own.
    """
    P = len(share.where)
    if layout not in (None, "contiguous"):
        raise ValueError(f"layout is {layout!r}; ulysses on GPUs has rows contiguous")
    if share.H_kv % P:
        raise ValueError(
            f"ulysses has {share.H_kv} KV heads on {P} devices; expected a multiple of {P}"
        )


def ulysses(links: Links, share: Share, Q: Any, K: Any, V: Any) -> tuple[Any, Heads]:
    """Return O of own rows, and what there is of own heads."""
    q, k, v = _to_heads(links, share, Q, K, V)
    o, lse = tiles.attend(q, k, v, causal=isinstance(share.problem.mask, Causal), scale=share.tau)
    (O,) = _to_rows(links, share, o)
    return O, Heads(q, k, v, o, lse)


def ulysses_backward(links: Links, share: Share, saved: Heads, dO: Any) -> list[Any]:
    """Return dQ, dK, dV of own rows."""
    (do,) = _to_heads(links, share, dO)
    operands = saved.Q, saved.K, saved.V, saved.O, saved.L, do
    return _to_rows(
        links,
        share,
        *tiles.gradients(*operands, causal=isinstance(share.problem.mask, Causal), scale=share.tau),
    )


def _to_heads(links: Links, share: Share, *own: Any) -> list[Any]:
    """Return own heads, all rows, of tensors of which each device has all heads, own rows."""
    P = links.size
    rank = links.rank
    parts = [
        [
            X[_heads(X, P, rank)]
            if x == rank
            else X.new_empty((len(X) // P, share.rows(x), X.shape[2]))
            for x in range(P)
        ]
        for X in own
    ]
    others = [x for x in range(P) if x != rank]
    sends = [(X[_heads(X, P, x)], x) for x in others for X in own]
    links.wait(links.post(sends, [(each[x], x) for x in others for each in parts]))
    return [import_module("torch").cat(each, dim=1) for each in parts]


def _to_rows(links: Links, share: Share, *mine: Any) -> list[Any]:
    """Return all heads, own rows, of tensors of which each device has own heads, all rows."""
    P = links.size
    rank = links.rank
    ends = [0]
    for x in range(P):
        ends.append(ends[-1] + share.rows(x))
    buffers = [X.new_empty((len(X) * P, share.rows(rank), X.shape[2])) for X in mine]
    others = [x for x in range(P) if x != rank]
    sends = [(X[:, ends[x] : ends[x + 1]].contiguous(), x) for x in others for X in mine]
    posted = links.post(sends, [(Y[_heads(Y, P, x)], x) for x in others for Y in buffers])
    for X, Y in zip(mine, buffers, strict=True):
        Y[_heads(Y, P, rank)] = X[:, ends[rank] : ends[rank + 1]]
    links.wait(posted)
    return buffers


def _heads(X: Any, P: int, x: int) -> slice:
    """Return which of a tensor's heads device x has."""
    return slice(len(X) // P * x, len(X) // P * (x + 1))

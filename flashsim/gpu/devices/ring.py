"""Ring attention on GPUs: the messages of flashsim/devices/programs/ring.py and ring_backward.py,
and a kernel for each step.

    forward   K, V go round while a kernel attends to those that are here; its part is merged into
              O, L.
    backward  K, V go round, and dK, dV after them, in float32, which come home after P hops.
              Messages of one step arrive while the kernel of the next one runs, but for the last.

Tensors are PyTorch's: own rows of Q, O, dO (H_q, n, d), K, V (H_kv, n, d), L (H_q, n).
"""

from __future__ import annotations

from typing import Any

from flashsim.devices.share import Share
from flashsim.gpu.devices import tiles
from flashsim.gpu.devices.links import Links
from flashsim.gpu.devices.pieces import pieces


def ring(links: Links, share: Share, Q: Any, K: Any, V: Any) -> tuple[Any, Any]:
    """Return O and L of own rows. Of more than two parts O is kept in float32, since each merge
    rounds it.
    """
    rank = links.rank
    P = links.size
    right = (rank + 1) % P
    left = (rank - 1) % P
    O = Q.new_empty(Q.shape)
    L = Q.new_empty(Q.shape[:2]).float()
    cur = [K, V]
    for s in range(P):
        if s + 1 < P:
            new = [_rows_of(share, X, (rank - s - 1) % P) for X in cur]
            posted = links.post([(X, right) for X in cur], [(X, left) for X in new])
            if posted:  # the backward pass's kernel does not begin by filling the GPU
                tiles.pause(Q.get_device())
        for piece in pieces(share, rank, (rank - s) % P):
            q, (k, v) = Q[:, piece.first : piece.end], (X[:, : piece.keys] for X in cur)
            o, lse = tiles.attend(q, k, v, causal=piece.causal, scale=share.tau)
            if s == 0:  # own keys: one piece, of all rows
                O = o if P <= 2 else o.float()
                L = lse
            else:
                tiles.merge(O, L, piece.first, o, lse)
        if s + 1 < P:
            links.wait(posted)
            cur = new
    return O.to(Q.dtype), L


def ring_backward(
    links: Links, share: Share, Q: Any, K: Any, V: Any, O: Any, L: Any, dO: Any
) -> tuple[Any, Any, Any]:
    """Return dQ, dK, dV of own rows."""
    rank = links.rank
    P = links.size
    right = (rank + 1) % P
    left = (rank - 1) % P
    cur = [K, V]
    returning = list[Any]()
    dQ, *acc = (X.new_empty(X.shape, dtype=L.dtype) for X in (Q, K, V))
    back = acc
    for s in range(P):
        src = (rank - s) % P
        if s + 1 < P:
            new = [_rows_of(share, X, (src - 1) % P) for X in cur]
            posted = links.post([(X, right) for X in cur], [(X, left) for X in new])
        gradients = []
        for piece in pieces(share, rank, src):
            q, o, lse, do = (X[:, piece.first : piece.end] for X in (Q, O, L, dO))
            k, v = (X[:, : piece.keys] for X in cur)
            operands = q, k, v, o, lse, do
            gradients.append(
                (piece, *tiles.gradients(*operands, causal=piece.causal, scale=share.tau))
            )
        links.wait(returning)
        acc = back
        for piece, dq, *parts in gradients:
            if s == 0:  # own keys: one piece, of all rows
                dQ, *acc = (X.float() for X in (dq, *parts))
            else:
                dQ[:, piece.first : piece.end] += dq
                for X, part in zip(acc, parts, strict=True):
                    X[:, : piece.keys] += part
        if s + 1 < P:
            links.wait(posted)
            cur = new
        if P > 1:
            back = [_rows_of(share, X, (src - 1) % P) for X in acc]
            returning = links.post([(X, right) for X in acc], [(X, left) for X in back])
    links.wait(returning)
    dK, dV = back if P > 1 else acc
    return dQ.to(Q.dtype), dK.to(K.dtype), dV.to(V.dtype)


def _rows_of(share: Share, like: Any, rank: int) -> Any:
    """Return room for what a device has, of as many heads, and the width and type of a tensor."""
    return like.new_empty((like.shape[0], share.rows(rank), like.shape[2]))

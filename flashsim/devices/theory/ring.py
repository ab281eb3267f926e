"""Ring attention. Row block i has a live tile in k_i steps (if in none, the first step counts as
one): its Q is read k_i times, and its O, ℓ, m are written and read again k_i − 1 times.
"""

import numpy as np

from flashsim.devices.share import Share
from flashsim.devices.theory.form import (
    DevicesForm,
    LiveTiles,
    Moved,
    arrays_of,
    tile_peak,
    unfinished,
)


def ring_words(share: Share, p: int, passes: int = 1) -> int:
    """Return what device p sends: all K and V but device p + 1's; in a backward pass also all dK
    and dV.
    """
    P = len(share.where)
    if P == 1:
        return 0
    shape = share.problem.shape
    rows = passes * len(share) - share.rows((p + 1) % P)
    return rows * share.H_kv * (shape.d + shape.d_v)


def words(share: Share, p: int, columns: int = 1) -> int:
    return ring_words(share, p)


def traffic(share: Share, p: int, columns: int = 1) -> dict[str, Moved]:
    tiles = LiveTiles(share)
    P = len(share.where)
    d = share.problem.shape.d
    d_v = share.problem.shape.d_v
    queries = share.H_q * share.rows(p)
    keys = share.H_kv * share.rows(p)
    rows = tiles.rows(p)
    live_steps = np.zeros(len(rows), int)
    key_reads = []
    for s in range(P):
        src = (p - s) % P
        live_steps += tiles.live(p, src).any(axis=1)
        key_reads.append(share.H_q * tiles.keys_met(p, src))
    k = np.maximum(live_steps, 1)
    query_reads = share.H_q * int(rows @ k)
    away = query_reads - queries
    arrays = {
        "Q": Moved(d, queries, reads=query_reads, role="input"),
        "K": Moved(d, keys, reads=key_reads[0], role="input"),
        "V": Moved(d_v, keys, reads=key_reads[0], role="input"),
        "O": Moved(d_v, queries, writes=queries, role="output"),
        "L": Moved(1, queries, writes=queries, chip=True),
    }
    arrays |= arrays_of(unfinished("run", d_v), queries, reads=away, writes=away, chip=True)
    for buffer in range(min(P - 1, 2)):
        received = sum(key_reads[1 + buffer :: 2])
        widths = {f"K_{buffer}": d, f"V_{buffer}": d_v}
        arrays |= arrays_of(widths, share.H_kv * share.most_rows, reads=received)
    return arrays


def room(share: Share, p: int, columns: int = 1) -> int:
    """Own rows."""
    return share.rows(p)


FORM = DevicesForm(name="ring", words=words, traffic=traffic, peak=tile_peak, room=room)

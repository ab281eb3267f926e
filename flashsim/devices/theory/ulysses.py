"""Ulysses. q_outer's on all N rows for each own head.

Device p sends Σ over the others x of n_p(h_x·d + kv_x·w) + n_x·h_p·d_v words.
"""

from flashsim.devices.heads import heads_of, kv_heads_of
from flashsim.devices.share import Share
from flashsim.devices.theory.form import DevicesForm, LiveTiles, Moved, arrays_of, tile_peak


def ulysses_words(share: Share, p: int, columns: int = 1) -> int:
    """Return what device p sends: rows of Q, K, V to each other device's heads, and its own
    heads' O to each other's rows.
    """
    shape = share.problem.shape
    own_heads = len(heads_of(share, p))
    own_rows = share.rows(p)
    words = 0
    for x in range(len(share.where)):
        if x != p:
            of_queries = len(heads_of(share, x)) * shape.d
            of_keys = len(kv_heads_of(share, x)) * (shape.d + shape.d_v)
            words += own_rows * (of_queries + of_keys)
            words += share.rows(x) * own_heads * shape.d_v
    return words


def traffic(share: Share, p: int, columns: int = 1) -> dict[str, Moved]:
    tiles = LiveTiles(share)
    P = len(share.where)
    d = share.problem.shape.d
    d_v = share.problem.shape.d_v
    n = share.rows(p)
    heads = len(heads_of(share, p))
    kv_heads = len(kv_heads_of(share, p))
    everywhere = heads * len(share)
    key_reads = []
    for y in range(P):
        met = sum(tiles.keys_met(x, y) for x in range(P))
        key_reads.append(heads * met)
    arrays = {
        "Q": Moved(d, share.H_q * n, reads=heads * n, role="input"),
        "K": Moved(d, share.H_kv * n, reads=key_reads[p], role="input"),
        "V": Moved(d_v, share.H_kv * n, reads=key_reads[p], role="input"),
        "O": Moved(d_v, share.H_q * n, writes=heads * n, role="output"),
        "L": Moved(1, everywhere, writes=everywhere, chip=True),
    }
    for x in range(P):
        if x == p:
            continue
        queries = heads * share.rows(x)
        keys = kv_heads * share.rows(x)
        arrays[f"Q_{x}"] = Moved(d, queries, reads=queries)
        arrays |= arrays_of({f"K_{x}": d, f"V_{x}": d_v}, keys, reads=key_reads[x])
        arrays[f"O_{x}"] = Moved(d_v, queries, writes=queries)
    return arrays


def room(share: Share, p: int, columns: int = 1) -> int:
    """Own rows of all heads, the others' of own heads, and L."""
    shape = share.problem.shape
    n = share.rows(p)
    heads = len(heads_of(share, p))
    kv_heads = len(kv_heads_of(share, p))
    own = (share.H_q + share.H_kv) * n
    received = (heads + kv_heads) * (len(share) - n)
    return (shape.d + shape.d_v) * (own + received) + heads * len(share)


FORM = DevicesForm(name="ulysses", words=ulysses_words, traffic=traffic, peak=tile_peak, room=room)

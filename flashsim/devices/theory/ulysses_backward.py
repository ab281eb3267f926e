"""Ulysses, backward. The ring's tiles, of own heads and all rows; then own rows of dK, dV are
summed, a part of each device that shares them.
"""

from flashsim.devices.heads import heads_of, kv_heads_of
from flashsim.devices.share import Share
from flashsim.devices.theory.form import DevicesForm, LiveTiles, Moved, arrays_of, backward_peak


def ulysses_backward_words(share: Share, p: int, columns: int = 1) -> int:
    """Σ_{x≠p} n_p(h_x(d + d_v + 1) + kv_x·w) + n_x(h_p·d + kv_p·w): rows to each other's heads,
    and gradients home.
    """
    d = share.problem.shape.d
    w = share.problem.shape.d + share.problem.shape.d_v
    gradients = len(heads_of(share, p)) * d + len(kv_heads_of(share, p)) * w
    words = 0
    for x in range(len(share.where)):
        if x != p:
            inputs = len(heads_of(share, x)) * (w + 1) + len(kv_heads_of(share, x)) * w
            words += share.rows(p) * inputs + share.rows(x) * gradients
    return words


def ulysses_kept_backward_words(share: Share, p: int) -> int:
    """The same where each device has kept its heads, as on GPUs: rows of dO out, rows of dQ, dK,
    dV back.
    """
    d = share.problem.shape.d
    d_v = share.problem.shape.d_v
    gradients = len(heads_of(share, p)) * d + len(kv_heads_of(share, p)) * (d + d_v)
    words = 0
    for x in range(len(share.where)):
        if x != p:
            dO = len(heads_of(share, x)) * d_v
            words += share.rows(p) * dO + share.rows(x) * gradients
    return words


def traffic(share: Share, p: int, columns: int = 1) -> dict[str, Moved]:
    tiles = LiveTiles(share)
    P = len(share.where)
    d = share.problem.shape.d
    d_v = share.problem.shape.d_v
    n = share.rows(p)
    queries = share.H_q * n
    keys = share.H_kv * n
    heads = len(heads_of(share, p))
    kv_heads = len(kv_heads_of(share, p))
    A = []  # rows of live tiles, device by device
    for x in range(P):
        met = sum(tiles.rows_met(x, y) for y in range(P))
        A.append(heads * met)
    arrays = {
        "Q": Moved(d, queries, reads=A[p], role="input"),
        "K": Moved(d, keys, reads=kv_heads * n, role="input"),
        "V": Moved(d_v, keys, reads=kv_heads * n, role="input"),
        "O": Moved(d_v, queries, reads=queries, role="input"),
        "dO": Moved(d_v, queries, reads=queries + A[p], role="input"),
        "L": Moved(1, heads * len(share), reads=sum(A), chip=True, role="input"),
        "D": Moved(1, queries, reads=A[p], writes=queries, chip=True),
        "dQ": Moved(
            d, queries, reads=A[p], writes=A[p] + queries, zeros=queries, chip=True, role="output"
        ),
        "dK": Moved(d, keys, writes=keys, chip=True, role="output"),
        "dV": Moved(d_v, keys, writes=keys, chip=True, role="output"),
    }
    own_part = {f"dK_of_{p}": d, f"dV_of_{p}": d_v}
    size = kv_heads * n
    arrays |= arrays_of(own_part, size, reads=size, writes=size, chip=True)
    for x in range(P):
        if x != p:
            arrays |= _exchanged(share, p, x, A[x])
    return arrays


def _exchanged(share: Share, p: int, x: int, A: int) -> dict[str, Moved]:
    """Return what device p has of x's rows, and of x's heads; A are the rows of live tiles."""
    d = share.problem.shape.d
    d_v = share.problem.shape.d_v
    queries = len(heads_of(share, p)) * share.rows(x)
    keys = len(kv_heads_of(share, p)) * share.rows(x)
    from_x = len(kv_heads_of(share, x)) * share.rows(p)
    arrays = {
        f"Q_{x}": Moved(d, queries, reads=A),
        f"dO_{x}": Moved(d_v, queries, reads=A),
        f"D_{x}": Moved(1, queries, reads=A, chip=True),
        f"dQ_{x}": Moved(d, queries, reads=A, writes=A + queries, zeros=queries, chip=True),
    }
    arrays |= arrays_of({f"K_{x}": d, f"V_{x}": d_v}, keys, reads=keys)
    arrays |= arrays_of({f"dK_of_{x}": d, f"dV_of_{x}": d_v}, keys, writes=keys, chip=True)
    arrays |= arrays_of({f"dK_from_{x}": d, f"dV_from_{x}": d_v}, from_x, reads=from_x, chip=True)
    return arrays


FORM = DevicesForm(
    name="ulysses",
    direction="backward",
    words=ulysses_backward_words,
    traffic=traffic,
    peak=backward_peak,
)

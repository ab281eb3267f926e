"""Ring attention, backward. Each live tile reads rows of Q, dO, dQ, L, D; each key block with one,
and in the first step each, its K, V, dK, dV. dK, dV travel P times.
"""

from flashsim.devices.share import Share
from flashsim.devices.theory.form import DevicesForm, LiveTiles, Moved, arrays_of, backward_peak
from flashsim.devices.theory.ring import ring_words


def words(share: Share, p: int, columns: int = 1) -> int:
    return ring_words(share, p, passes=2)


def traffic(share: Share, p: int, columns: int = 1) -> dict[str, Moved]:
    tiles = LiveTiles(share)
    P = len(share.where)
    d = share.problem.shape.d
    d_v = share.problem.shape.d_v
    queries = share.H_q * share.rows(p)
    keys = share.H_kv * share.rows(p)
    most = share.H_kv * share.most_rows
    A = 0  # rows of live tiles
    C = []  # keys of blocks that are loaded, step by step
    for s in range(P):
        src = (p - s) % P
        A += share.H_q * tiles.rows_met(p, src)
        loaded = tiles.cols(src)
        if s > 0:
            loaded = loaded * tiles.live(p, src).any(axis=0)
        C.append(share.H_kv * int(loaded.sum()))
    arrays = {
        "Q": Moved(d, queries, reads=A, role="input"),
        "K": Moved(d, keys, reads=C[0], role="input"),
        "V": Moved(d_v, keys, reads=C[0], role="input"),
        "O": Moved(d_v, queries, reads=queries, role="input"),
        "dO": Moved(d_v, queries, reads=queries + A, role="input"),
        "L": Moved(1, queries, reads=A, chip=True, role="input"),
        "D": Moved(1, queries, reads=A, writes=queries, chip=True),
        "dQ": Moved(
            d, queries, reads=A, writes=A + queries, zeros=queries, chip=True, role="output"
        ),
    }
    for buffer in range(min(P - 1, 2)):
        received = sum(C[1 + buffer :: 2])
        widths = {f"K_{buffer}": d, f"V_{buffer}": d_v}
        arrays |= arrays_of(widths, most, reads=received)
    for buffer in range(min(P, 2)):
        writes = sum(C[buffer::2])
        reads = writes
        if buffer == 0:
            reads = writes - C[0]
        widths = {f"dK_{buffer}": d, f"dV_{buffer}": d_v}
        arrays |= arrays_of(widths, most, reads=reads, writes=writes, chip=True)
    return arrays


FORM = DevicesForm(
    name="ring", direction="backward", words=words, traffic=traffic, peak=backward_peak
)

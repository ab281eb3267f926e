"""Tree decoding. q_outer's on own keys; then, of c children, each part is read once, and the own
one read and written with each.

A device sends d to each child, and d_v + 2 to its parent, for each row of the H_q·N_q.
"""

from flashsim.devices.share import Share
from flashsim.devices.theory.form import (
    DevicesForm,
    LiveTiles,
    Moved,
    arrays_of,
    merging_peak,
    unfinished,
)


def children_of(share: Share, p: int) -> list[int]:
    """Return the devices that are p when the lowest bit of their number is 0."""
    return [x for x in range(p + 1, len(share.where)) if x & (x - 1) == p]


def words(share: Share, p: int, columns: int = 1) -> int:
    shape = share.problem.shape
    rows = share.H_q * shape.N_q
    down = rows * shape.d * len(children_of(share, p))
    up = rows * (shape.d_v + 2)
    return down if p == 0 else down + up


def traffic(share: Share, p: int, columns: int = 1) -> dict[str, Moved]:
    tiles = LiveTiles(share)
    d = share.problem.shape.d
    d_v = share.problem.shape.d_v
    rows = share.H_q * share.problem.shape.N_q
    keys = share.H_kv * share.rows(p)
    key_reads = share.H_q * tiles.keys_met(0, p)
    children = children_of(share, p)
    part_writes = rows * (1 + len(children))
    part_reads = rows * len(children)
    at_root = 0
    if p == 0:
        part_reads += rows
        at_root = rows
    arrays = {
        "Q": Moved(d, at_root, reads=at_root, role="input"),
        "K": Moved(d, keys, reads=key_reads, role="input"),
        "V": Moved(d_v, keys, reads=key_reads, role="input"),
        "O": Moved(d_v, at_root, writes=at_root, role="output"),
        "L": Moved(1, at_root, writes=at_root, chip=True),
    }
    own_part = unfinished("part", d_v)
    arrays |= arrays_of(own_part, rows, reads=part_reads, writes=part_writes, chip=True)
    if p != 0:
        arrays["Q_here"] = Moved(d, rows, reads=rows)
    for child in children:
        arrays |= arrays_of(unfinished(f"of_{child}", d_v), rows, reads=rows, chip=True)
    return arrays


FORM = DevicesForm(name="tree", words=words, traffic=traffic, peak=merging_peak)

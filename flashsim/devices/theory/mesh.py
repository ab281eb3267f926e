"""A mesh of R × C devices. q_outer's on the row's queries and the column's keys; then own rows are
merged, part by part.

(C − 1)·n·d·H_q + (R − 1)·n·w·H_kv words go out, and n_x(d_v + 2)H_q for each other x of the row
come back.
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
from flashsim.devices.theory.mesh_lines import lines, mesh_words


def traffic(share: Share, p: int, columns: int) -> dict[str, Moved]:
    tiles = LiveTiles(share)
    d = share.problem.shape.d
    d_v = share.problem.shape.d_v
    queries = share.H_q * share.rows(p)
    row, column = lines(share, p, columns)
    arrays = {
        "Q": Moved(d, queries, reads=queries, role="input"),
        "O": Moved(d_v, queries, writes=queries, role="output"),
        "L": Moved(1, queries, writes=queries, chip=True),
    }
    for y in column:
        widths = {f"K_{y}": d, f"V_{y}": d_v}
        role = "extra"
        if y == p:
            widths = {"K": d, "V": d_v}
            role = "input"
        met = sum(tiles.keys_met(x, y) for x in row)
        keys = share.H_kv * share.rows(y)
        arrays |= arrays_of(widths, keys, reads=share.H_q * met, role=role)
    for x in row:
        size = share.H_q * share.rows(x)
        part = unfinished(f"of_{x}", d_v)
        if x == p:
            arrays |= arrays_of(part, size, reads=size, writes=size, chip=True)
            continue
        arrays |= arrays_of(part, size, writes=size, chip=True)
        arrays[f"Q_{x}"] = Moved(d, size, reads=size)
        received = unfinished(f"from_{x}", d_v)
        arrays |= arrays_of(received, queries, reads=queries, chip=True)
    return arrays


def room(share: Share, p: int, columns: int) -> int:
    """Rows of the mesh's row and column, and parts."""
    d = share.problem.shape.d
    d_v = share.problem.shape.d_v
    row, column = lines(share, p, columns)
    row_rows = sum(map(share.rows, row))
    column_rows = sum(map(share.rows, column))
    of_rows = row_rows * (d + d_v + 2)
    of_parts = share.rows(p) * (columns * (d_v + 2) - 1)
    of_keys = column_rows * (d + d_v)
    return share.H_q * (of_rows + of_parts) + share.H_kv * of_keys


FORM = DevicesForm(name="mesh", words=mesh_words, traffic=traffic, peak=merging_peak, room=room)

"""A mesh of R × C devices, backward. The ring's tiles, of the row's queries and the column's keys;
then own rows of each gradient are summed, part by part.
"""

from flashsim.devices.share import Share
from flashsim.devices.theory.form import DevicesForm, LiveTiles, Moved, arrays_of, backward_peak
from flashsim.devices.theory.mesh_lines import lines, mesh_words


def words(share: Share, p: int, columns: int) -> int:
    return mesh_words(share, p, columns, "backward")


def traffic(share: Share, p: int, columns: int) -> dict[str, Moved]:
    tiles = LiveTiles(share)
    d = share.problem.shape.d
    d_v = share.problem.shape.d_v
    queries = share.H_q * share.rows(p)
    keys = share.H_kv * share.rows(p)
    row, column = lines(share, p, columns)
    arrays = {
        "O": Moved(d_v, queries, reads=queries, role="input"),
        "dQ": Moved(d, queries, writes=queries, chip=True, role="output"),
        "dK": Moved(d, keys, writes=keys, chip=True, role="output"),
        "dV": Moved(d_v, keys, writes=keys, chip=True, role="output"),
    }
    for x in row:
        met = sum(tiles.rows_met(x, y) for y in column)
        A = share.H_q * met
        if x == p:
            arrays |= _own_queries(share, p, A)
        else:
            arrays |= _queries_of(share, x, A)
            arrays[f"dQ_from_{x}"] = Moved(d, queries, reads=queries, chip=True)
    for y in column:
        size = share.H_kv * share.rows(y)
        part = {f"dK_of_{y}": d, f"dV_of_{y}": d_v}
        if y == p:
            arrays |= arrays_of({"K": d, "V": d_v}, size, reads=size, role="input")
            arrays |= arrays_of(part, size, reads=size, writes=size, chip=True)
            continue
        arrays |= arrays_of({f"K_{y}": d, f"V_{y}": d_v}, size, reads=size)
        arrays |= arrays_of(part, size, writes=size, chip=True)
        received = {f"dK_from_{y}": d, f"dV_from_{y}": d_v}
        arrays |= arrays_of(received, keys, reads=keys, chip=True)
    return arrays


def _own_queries(share: Share, p: int, A: int) -> dict[str, Moved]:
    """Return what moves of own rows, of which live tiles have A."""
    d = share.problem.shape.d
    d_v = share.problem.shape.d_v
    size = share.H_q * share.rows(p)
    return {
        "Q": Moved(d, size, reads=A, role="input"),
        "dO": Moved(d_v, size, reads=size + A, role="input"),
        "L": Moved(1, size, reads=A, chip=True, role="input"),
        "D": Moved(1, size, reads=A, writes=size, chip=True),
        f"dQ_of_{p}": Moved(d, size, reads=A + size, writes=A + size, zeros=size, chip=True),
    }


def _queries_of(share: Share, x: int, A: int) -> dict[str, Moved]:
    """Return what moves of the rows of another device of the row, of which live tiles have A."""
    d = share.problem.shape.d
    d_v = share.problem.shape.d_v
    size = share.H_q * share.rows(x)
    return {
        f"Q_{x}": Moved(d, size, reads=A),
        f"dO_{x}": Moved(d_v, size, reads=A),
        f"L_{x}": Moved(1, size, reads=A, chip=True),
        f"D_{x}": Moved(1, size, reads=A, chip=True),
        f"dQ_of_{x}": Moved(d, size, reads=A, writes=A + size, zeros=size, chip=True),
    }


FORM = DevicesForm(
    name="mesh", direction="backward", words=words, traffic=traffic, peak=backward_peak
)

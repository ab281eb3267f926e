"""Exact counts of the programs over devices, by formula: what each device sends, and what it moves
between its HBM and SRAM.

Written without the simulator, and equal to what it counts. n is a device's rows, w = d + d_v. A
tile is live if it holds a pair that the mask allows; for row block i of device p against device y,
cols(p, i, y) is how many keys its live tiles have together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from flashsim.attention.inputs import chip_dtype
from flashsim.attention.masks.rules import Causal
from flashsim.attention.problem import EVERYTHING
from flashsim.devices.share import Share
from flashsim.memory.traffic import ArrayTraffic, Traffic
from flashsim.theory.closed_form import ClosedForm


@dataclass(frozen=True)
class ExactDevice:
    """What one device sends, in elements, and moves, by array."""

    words: int
    hbm: Traffic


class _Tiles:
    """Which tiles are live, and their sizes, from positions alone."""

    def __init__(self, share: Share) -> None:
        self.share = share

    def rows(self, p: int) -> Any:
        return _cut(len(self.share.queries[p]), self.share.B_r)

    def cols(self, p: int) -> Any:
        return _cut(len(self.share.where[p]), self.share.B_c)

    def live(self, p: int, y: int) -> Any:
        """(T_r, T_c) of device p's row blocks and device y's key blocks."""
        share = self.share
        shape = self.share.problem.shape
        mask = self.share.problem.mask
        rows = share.queries[p]
        cols = share.where[y]
        if not len(rows) or not len(cols):
            return np.zeros((len(self.rows(p)), len(self.cols(y))), bool)
        row_blocks = np.arange(0, len(rows), share.B_r)
        col_blocks = np.arange(0, len(cols), share.B_c)
        # the last row may attend to the first key, or no row to any
        if type(mask) is Causal and mask.offset is None:
            last = np.maximum.reduceat(rows, row_blocks)
            first = np.minimum.reduceat(cols, col_blocks)
            return last[:, None] + shape.N_k - shape.N_q >= first
        if mask is EVERYTHING:
            return np.ones((len(row_blocks), len(col_blocks)), bool)
        down = np.logical_or.reduceat(mask.allows(rows, cols, shape, ()), row_blocks, axis=0)
        return np.logical_or.reduceat(down, col_blocks, axis=1)

    def keys(self, p: int, y: int) -> int:
        """Σ over row blocks of the keys of their live tiles."""
        return int((self.live(p, y) @ self.cols(y)).sum())


def ring(share: Share, p: int, columns: int = 1) -> ExactDevice:
    """Row block i has a live tile in k_i steps: its Q is read k_i times, and its O, ℓ, m go and
    come k_i − 1 times.
    """
    t = _Tiles(share)
    P = len(share.where)
    H_q = share.H_q
    H_kv = share.H_kv
    d, d_v, n, (stored, chip) = (
        share.problem.shape.d,
        share.problem.shape.d_v,
        share.rows(p),
        _itemsizes(share),
    )
    steps = np.array([t.live(p, (p - s) % P).any(1) for s in range(P)]).sum(0).clip(1)
    rk = H_q * int((t.rows(p) * steps).sum())
    away = H_q * int((t.rows(p) * (steps - 1)).sum())
    read = [H_q * t.keys(p, (p - s) % P) for s in range(P)]
    arrays = {
        **_rows({"Q": d}, rk, 0, H_q * n, stored, "input"),
        **_rows({"K": d, "V": d_v}, read[0], 0, H_kv * n, stored, "input"),
        **_rows({"O": d_v}, 0, H_q * n, H_q * n, stored, "output"),
        **_rows({"L": 1}, 0, H_q * n, H_q * n, chip),
        **_rows({"O_run": d_v, "l_run": 1, "m_run": 1}, away, away, H_q * n, chip),
    }
    for buffer in range(min(P - 1, 2)):
        received = sum(read[s] for s in range(1, P) if (s - 1) % 2 == buffer)
        arrays |= _rows(
            {f"K_{buffer}": d, f"V_{buffer}": d_v}, received, 0, H_kv * share.most_rows, stored
        )
    return ExactDevice(ring_words(share, p), Traffic(arrays))


def ring_words(share: Share, p: int, passes: int = 1) -> int:
    """Return what device p sends: all K and V but device p + 1's; in a backward pass also all dK
    and dV.
    """
    P = len(share.where)
    shape = share.problem.shape
    rows = passes * len(share) - share.rows((p + 1) % P)
    return rows * share.H_kv * (shape.d + shape.d_v) if P > 1 else 0


def ring_backward(share: Share, p: int, columns: int = 1) -> ExactDevice:
    """Each live tile reads rows of Q, dO, dQ, L, D; each key block with one, its K, V, dK, dV.
    dK, dV travel P times.
    """
    t = _Tiles(share)
    P = len(share.where)
    H_kv = share.H_kv
    n = share.rows(p)
    d, d_v, (stored, chip) = share.problem.shape.d, share.problem.shape.d_v, _itemsizes(share)
    live = [t.live(p, (p - s) % P) for s in range(P)]
    A = share.H_q * sum(int((t.rows(p) @ step).sum()) for step in live)
    cols = [t.cols((p - s) % P) for s in range(P)]
    C = [H_kv * int((cols[s] * (live[s].any(0) if s else True)).sum()) for s in range(P)]
    most = H_kv * share.most_rows
    D = share.H_q * n
    arrays = {
        **_rows({"Q": d}, A, 0, D, stored, "input"),
        **_rows({"K": d, "V": d_v}, C[0], 0, H_kv * n, stored, "input"),
        **_rows({"O": d_v}, D, 0, D, stored, "input"),
        **_rows({"dO": d_v}, D + A, 0, D, stored, "input"),
        **_rows({"L": 1}, A, 0, D, chip, "input"),
        **_rows({"D": 1}, A, D, D, chip),
        **_rows({"dQ": d}, A, A + D, D, chip, "output", zeros=D),
    }
    for buffer in range(min(P - 1, 2)):
        received = sum(C[s] for s in range(1, P) if (s - 1) % 2 == buffer)
        arrays |= _rows({f"K_{buffer}": d, f"V_{buffer}": d_v}, received, 0, most, stored)
    for buffer in range(min(P, 2)):
        wrote = sum(C[s] for s in range(P) if s % 2 == buffer)
        loaded = wrote - (C[0] if buffer == 0 else 0)
        arrays |= _rows({f"dK_{buffer}": d, f"dV_{buffer}": d_v}, loaded, wrote, most, chip)
    return ExactDevice(ring_words(share, p, passes=2), Traffic(arrays))


def ulysses_backward(share: Share, p: int, columns: int = 1) -> ExactDevice:
    """The ring's tiles, of own heads and all rows; then own rows of dK, dV are summed, a part of
    each device that shares them.
    """
    t = _Tiles(share)
    where = range(len(share.where))
    own = len(share.heads(p))
    own_kv = len(share.kv_heads(p))
    d, d_v, n, (stored, chip) = (
        share.problem.shape.d,
        share.problem.shape.d_v,
        share.rows(p),
        _itemsizes(share),
    )
    arrays = _own_rows(share, p)
    everywhere = 0
    for x in where:
        m = share.rows(x)
        here = x == p
        parts = len(share.kv_heads(x)) * n
        A = own * sum(int((t.rows(x) @ t.live(x, y)).sum()) for y in where)
        everywhere += A
        H_q, H_kv = (share.H_q, share.H_kv) if here else (own, own_kv)
        away, role = ("", "input") if here else (f"_{x}", "extra")
        own_O = H_q * n if here else 0
        arrays |= {
            **_rows({f"Q{away}": d}, A, 0, H_q * m, stored, role),
            **_rows({f"dO{away}": d_v}, own_O + A, 0, H_q * m, stored, role),
            **_rows({f"D{away}": 1}, A, own_O, H_q * m, chip),
            **_rows({f"K{away}": d, f"V{away}": d_v}, own_kv * m, 0, H_kv * m, stored, role),
            **_rows(
                {f"dQ{away}": d},
                A,
                A + H_q * m,
                H_q * m,
                chip,
                "output" if here else "extra",
                zeros=H_q * m,
            ),
            **_rows(
                {f"dK_of_{x}": d, f"dV_of_{x}": d_v},
                parts if here else 0,
                own_kv * m,
                own_kv * m,
                chip,
            ),
        }
        if not here:
            arrays |= _rows({f"dK_from_{x}": d, f"dV_from_{x}": d_v}, parts, 0, parts, chip)
    arrays |= _rows({"L": 1}, everywhere, 0, own * len(share), chip, "input")
    return ExactDevice(ulysses_backward_words(share, p), Traffic(arrays))


def ulysses_backward_words(share: Share, p: int, columns: int = 1) -> int:
    """Σ_{x≠p} n_p(h_x(d + d_v + 1) + kv_x·w) + n_x(h_p·d + kv_p·w): rows to each other's heads,
    and gradients home.
    """
    d = share.problem.shape.d
    w = share.problem.shape.d + share.problem.shape.d_v
    n = share.rows(p)
    others = [x for x in range(len(share.where)) if x != p]
    own = len(share.heads(p)) * d + len(share.kv_heads(p)) * w
    out = sum(len(share.heads(x)) * (w + 1) + len(share.kv_heads(x)) * w for x in others)
    return n * out + own * sum(share.rows(x) for x in others)


def mesh_backward(share: Share, p: int, columns: int) -> ExactDevice:
    """The ring's tiles, of the row's queries and the column's keys; then own rows of each
    gradient are summed, part by part.
    """
    t, H_q, H_kv, (row, column) = _Tiles(share), share.H_q, share.H_kv, lines(share, p, columns)
    d, d_v, n, (stored, chip) = (
        share.problem.shape.d,
        share.problem.shape.d_v,
        share.rows(p),
        _itemsizes(share),
    )
    arrays = _own_rows(share, p)
    for x in row:
        m, (away, role) = H_q * share.rows(x), ("", "input") if x == p else (f"_{x}", "extra")
        A = H_q * sum(int((t.rows(x) @ t.live(x, y)).sum()) for y in column)
        own = m if x == p else 0
        arrays |= {
            **_rows({f"Q{away}": d}, A, 0, m, stored, role),
            **_rows({f"dO{away}": d_v}, own + A, 0, m, stored, role),
            **_rows({f"L{away}": 1}, A, 0, m, chip, role),
            **_rows({f"D{away}": 1}, A, own, m, chip),
            **_rows({f"dQ_of_{x}": d}, A + own, A + m, m, chip, zeros=m),
        }
    for y in column:
        m, (away, role) = H_kv * share.rows(y), ("", "input") if y == p else (f"_{y}", "extra")
        arrays |= _rows({f"K{away}": d, f"V{away}": d_v}, m, 0, m, stored, role)
        arrays |= _rows({f"dK_of_{y}": d, f"dV_of_{y}": d_v}, m if y == p else 0, m, m, chip)
    for name, others, size, width in (
        ("dQ", row, H_q * n, d),
        ("dK", column, H_kv * n, d),
        ("dV", column, H_kv * n, d_v),
    ):
        arrays |= _rows({f"{name}_from_{x}": width for x in others if x != p}, size, 0, size, chip)
        arrays |= _rows({name: width}, 0, size, size, chip, "output")
    return ExactDevice(mesh_words(share, p, columns, "backward"), Traffic(arrays))


def _own_rows(share: Share, p: int) -> dict[str, ArrayTraffic]:
    """Return what D_i reads of O and dO, and the gradients of own rows."""
    d, d_v, (stored, chip) = share.problem.shape.d, share.problem.shape.d_v, _itemsizes(share)
    queries = share.H_q * share.rows(p)
    keys = share.H_kv * share.rows(p)
    own = _rows({"O": d_v, "dO": d_v}, queries, 0, queries, stored, "input")
    return own | _rows({"dK": d, "dV": d_v}, 0, keys, keys, chip, "output")


def ulysses(share: Share, p: int, columns: int = 1) -> ExactDevice:
    """q_outer's on all N rows for each own head. Σ_{x≠p} [n_p(h_x·d + kv_x·w) + n_x·h_p·d_v]
    words.
    """
    t = _Tiles(share)
    where = range(len(share.where))
    own = len(share.heads(p))
    kv = len(share.kv_heads(p))
    d, d_v, n, (stored, chip) = (
        share.problem.shape.d,
        share.problem.shape.d_v,
        share.rows(p),
        _itemsizes(share),
    )
    keys = {y: own * sum(t.keys(x, y) for x in where) for y in where}
    arrays = {
        **_rows({"Q": d}, own * n, 0, share.H_q * n, stored, "input"),
        **_rows({"K": d, "V": d_v}, keys[p], 0, share.H_kv * n, stored, "input"),
        **_rows({"O": d_v}, 0, own * n, share.H_q * n, stored, "output"),
        **_rows({"L": 1}, 0, own * len(share), own * len(share), chip),
    }
    for x in (x for x in where if x != p):
        m = share.rows(x)
        arrays |= _rows({f"Q_{x}": d}, own * m, 0, own * m, stored)
        arrays |= _rows({f"K_{x}": d, f"V_{x}": d_v}, keys[x], 0, kv * m, stored)
        arrays |= _rows({f"O_{x}": d_v}, 0, own * m, own * m, stored)
    return ExactDevice(ulysses_words(share, p), Traffic(arrays))


def ulysses_words(share: Share, p: int) -> int:
    """Return what device p sends: rows of Q, K, V to each other device's heads, and its own
    heads' O to each other's rows.
    """
    shape = share.problem.shape
    others = [x for x in range(len(share.where)) if x != p]
    n = share.rows(p)
    Q_out = n * shape.d * sum(len(share.heads(x)) for x in others)
    KV_out = n * (shape.d + shape.d_v) * sum(len(share.kv_heads(x)) for x in others)
    return Q_out + KV_out + len(share.heads(p)) * shape.d_v * sum(share.rows(x) for x in others)


def ulysses_kept_backward_words(share: Share, p: int) -> int:
    """The same where each device has kept its heads, as on GPUs: rows of dO out, rows of dQ, dK,
    dV back.
    """
    shape = share.problem.shape
    others = [x for x in range(len(share.where)) if x != p]
    n = share.rows(p)
    dO_out = n * shape.d_v * sum(len(share.heads(x)) for x in others)
    back = len(share.heads(p)) * shape.d + len(share.kv_heads(p)) * (shape.d + shape.d_v)
    return dO_out + back * sum(share.rows(x) for x in others)


def mesh(share: Share, p: int, columns: int) -> ExactDevice:
    """(C − 1)·n·d·H_q + (R − 1)·n·w·H_kv words go out, and n_x(d_v + 2)H_q for each other x of
    the row come back.
    """
    t, H_q, H_kv, (row, column) = _Tiles(share), share.H_q, share.H_kv, lines(share, p, columns)
    d, d_v, n, (stored, chip) = (
        share.problem.shape.d,
        share.problem.shape.d_v,
        share.rows(p),
        _itemsizes(share),
    )
    keys = {y: H_q * sum(t.keys(x, y) for x in row) for y in column}
    arrays = {
        **_rows({"Q": d}, H_q * n, 0, H_q * n, stored, "input"),
        **_rows({"K": d, "V": d_v}, keys[p], 0, H_kv * n, stored, "input"),
        **_rows({"O": d_v}, 0, H_q * n, H_q * n, stored, "output"),
        **_rows({"L": 1}, 0, H_q * n, H_q * n, chip),
    }
    for y in (y for y in column if y != p):
        arrays |= _rows({f"K_{y}": d, f"V_{y}": d_v}, keys[y], 0, H_kv * share.rows(y), stored)
    for x in row:
        m = H_q * share.rows(x)
        mine = x == p
        arrays |= _rows(
            {f"O_of_{x}": d_v, f"l_of_{x}": 1, f"m_of_{x}": 1}, m if mine else 0, m, m, chip
        )
        if not mine:
            arrays |= _rows({f"Q_{x}": d}, m, 0, m, stored)
            arrays |= _rows(
                {f"O_from_{x}": d_v, f"l_from_{x}": 1, f"m_from_{x}": 1}, H_q * n, 0, H_q * n, chip
            )
    return ExactDevice(mesh_words(share, p, columns), Traffic(arrays))


def mesh_words(share: Share, p: int, columns: int, direction: str = "forward") -> int:
    """Return what device p sends: own rows to each other device of its row and column, and parts
    of their rows back.
    """
    sent = 0
    n = share.rows(p)
    for line, (there, back) in zip(
        lines(share, p, columns), _each_way(share, direction), strict=True
    ):
        sent += n * (len(line) - 1) * there + back * sum(share.rows(x) for x in line if x != p)
    return sent


def _each_way(share: Share, direction: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the words of a query's row, and of a key's, that go along a line of the mesh, and that
    come back.

    Of queries Q, and parts of O, ℓ, m; backward Q, dO, L, D, and dQ. Of keys K and V; backward dK
    and dV come back.
    """
    (d, d_v), H_q, H_kv = (share.problem.shape.d, share.problem.shape.d_v), share.H_q, share.H_kv
    if direction == "forward":
        return (d * H_q, (d_v + 2) * H_q), ((d + d_v) * H_kv, 0)
    return ((d + d_v + 2) * H_q, d * H_q), ((d + d_v) * H_kv, (d + d_v) * H_kv)


def lines(share: Share, p: int, columns: int) -> tuple[range, range]:
    """Return the devices of p's row in a mesh, and of its column."""
    first = p - p % columns
    return range(first, first + columns), range(p % columns, len(share.where), columns)


def mesh_total(share: Share, columns: int, direction: str = "forward") -> int:
    """Return what all devices of a mesh send together: each row goes, and comes back, C − 1
    times, each key R − 1 times.
    """
    by_row, by_key = map(sum, _each_way(share, direction))
    return len(share) * ((columns - 1) * by_row + (len(share.where) // columns - 1) * by_key)


def fewest_columns(share: Share, direction: str = "forward") -> int:
    """Return the columns of the mesh with the fewest words sent by all devices, a divisor of how
    many devices there are.
    """
    P = len(share.where)
    return min(
        (C for C in range(1, P + 1) if P % C == 0), key=lambda C: mesh_total(share, C, direction)
    )


def tree(share: Share, p: int, columns: int = 1) -> ExactDevice:
    """q_outer's on own keys; then, of c children, each part is read once, and the own one read
    and written with each.
    """
    t, shape, (parent, children) = _Tiles(share), share.problem.shape, share.family(p)
    d, d_v, rows, (stored, chip) = shape.d, shape.d_v, share.H_q * shape.N_q, _itemsizes(share)
    keys = share.H_q * int((t.live(0, p) @ t.cols(p)).sum())
    c = len(children)
    root = parent is None
    of_root = rows * root
    arrays = {
        **_rows({"Q": d}, of_root, 0, of_root, stored, "input"),
        **_rows({"K": d, "V": d_v}, keys, 0, share.H_kv * share.rows(p), stored, "input"),
        **_rows({"O": d_v}, 0, of_root, of_root, stored, "output"),
        **_rows({"L": 1}, 0, of_root, of_root, chip),
        **_rows(
            {"O_part": d_v, "l_part": 1, "m_part": 1}, rows * (c + root), rows * (1 + c), rows, chip
        ),
    }
    if not root:
        arrays |= _rows({"Q_here": d}, rows, 0, rows, stored)
    for child in children:
        arrays |= _rows(
            {f"O_of_{child}": d_v, f"l_of_{child}": 1, f"m_of_{child}": 1}, rows, 0, rows, chip
        )
    return ExactDevice(rows * (d * c + (d_v + 2) * (not root)), Traffic(arrays))


def tile_peak(B_r: int, B_c: int, d: int, d_v: int) -> int:
    """Return the most elements on chip at once, in the inner loop, of forward passes: q_outer's."""
    return (B_r + B_c) * (d + d_v) + B_r * B_c + 3 * B_r


def mesh_peak(B_r: int, B_c: int, d: int, d_v: int) -> int:
    """Return the same of a mesh and a tree: O_i, ℓ_i, m_i, a part of them and m_i^new may be
    more, where parts are merged.
    """
    return max(tile_peak(B_r, B_c, d, d_v), B_r * (2 * d_v + 5))


def backward_peak(B_r: int, B_c: int, d: int, d_v: int) -> int:
    """Return the same of the backward pass: K_j, V_j and their gradients, Q_i, dO_i, dQ_i, L_i,
    D_i, P_ij, dS_ij; or line 1's.
    """
    return max(B_r * (2 * d + d_v + 2) + 2 * B_c * (d + d_v) + 2 * B_r * B_c, B_r * (2 * d_v + 1))


@dataclass(frozen=True, kw_only=True)
class DevicesForm(ClosedForm):
    """The closed form of one program over devices.

    device  (share, rank, columns) -> what that device sends and moves
    peak    (B_r, B_c, d, d_v) -> the most on chip of any device, in elements: where its blocks are
            whole
    """

    device: Callable[[Share, int, int], ExactDevice]
    peak: Callable[[int, int, int, int], int]

    def devices(self, share: Share, columns: int) -> list[ExactDevice]:
        """Return what each device sends and moves."""
        return [self.device(share, rank, columns) for rank in range(len(share.where))]


_FORMS = [
    DevicesForm(name="ring", device=ring, peak=tile_peak),
    DevicesForm(name="ring", direction="backward", device=ring_backward, peak=backward_peak),
    DevicesForm(name="ulysses", device=ulysses, peak=tile_peak),
    DevicesForm(name="ulysses", direction="backward", device=ulysses_backward, peak=backward_peak),
    DevicesForm(name="mesh", device=mesh, peak=mesh_peak),
    DevicesForm(name="mesh", direction="backward", device=mesh_backward, peak=backward_peak),
    DevicesForm(name="tree", device=tree, peak=mesh_peak),
]
FORMS: Mapping[tuple[str, str], DevicesForm] = {
    (form.name, form.direction): form for form in _FORMS
}


def balance(where: Sequence[Any], allows: Any) -> Fraction:
    """Return the greatest number of allowed pairs of a device, over their mean. `allows(rows,
    cols)` is booleans.
    """
    everywhere = np.sort(np.concatenate([*where]))
    work = [int(allows(rows, everywhere).sum()) for rows in where]
    return Fraction(max(work) * len(work), sum(work))


def _cut(length: int, size: int) -> Any:
    """Return the sizes of a length's blocks."""
    return np.array([min(size, length - first) for first in range(0, length, size)], dtype=np.int64)


def _itemsizes(share: Share) -> tuple[int, int]:
    """Return the bytes of an element as it is stored, and as the chip computes with it."""
    dtype = share.problem.dtype
    return dtype.itemsize, chip_dtype(dtype).itemsize


def _rows(
    widths: Mapping[str, int],
    reads: int,
    writes: int,
    there: int,
    itemsize: int,
    role: Any = "extra",
    zeros: int = 0,
) -> dict[str, ArrayTraffic]:
    """Return what arrays of these widths move: rows that are read, written (`zeros` of them
    before all else), and there.
    """
    return {
        X: ArrayTraffic(reads * w, writes * w, zeros * w, there * w, itemsize, role)
        for X, w in widths.items()
    }

"""Exact counts of the programs over devices, by formula: what each device sends, and what it moves between its HBM and SRAM.

Written without the simulator, and equal to what it counts. n is a device's rows, w = d + d_v. A tile is live if it holds a pair
that the mask allows; for row block i of device p against device y, cols(p, i, y) is how many keys its live tiles have together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from flashsim.attention.problem import EVERYTHING
from flashsim.devices.share import Share
from flashsim.machine.traffic import ArrayTraffic, Traffic
from flashsim.masks.rules import Causal
from flashsim.problem.inputs import chip_dtype


@dataclass(frozen=True)
class ExactDevice:
    """What one device sends, in elements, and moves, by array."""

    words: int
    hbm: Traffic


class _Tiles:
    """Which tiles are live, and their sizes, from positions alone."""

    def __init__(self, share: Share) -> None:
        self.share, self.P = share, len(share.where)

    def rows(self, p: int) -> Any:
        return _cut(len(self.share.queries[p]), self.share.B_r)

    def cols(self, p: int) -> Any:
        return _cut(len(self.share.where[p]), self.share.B_c)

    def live(self, p: int, y: int) -> Any:
        """(T_r, T_c) of device p's row blocks and device y's key blocks."""
        share, shape, mask = self.share, self.share.problem.shape, self.share.problem.mask
        rows, cols = share.queries[p], share.where[y]
        if not len(rows) or not len(cols):
            return np.zeros((len(self.rows(p)), len(self.cols(y))), bool)
        row_blocks, col_blocks = np.arange(0, len(rows), share.B_r), np.arange(0, len(cols), share.B_c)
        if type(mask) is Causal and mask.offset is None:  # the last row may attend to the first key, or no row to any
            last, first = np.maximum.reduceat(rows, row_blocks), np.minimum.reduceat(cols, col_blocks)
            return last[:, None] + shape.N_k - shape.N_q >= first
        if mask is EVERYTHING:
            return np.ones((len(row_blocks), len(col_blocks)), bool)
        down = np.logical_or.reduceat(mask.allows(rows, cols, shape, ()), row_blocks, axis=0)
        return np.logical_or.reduceat(down, col_blocks, axis=1)

    def keys(self, p: int, y: int) -> int:
        """Σ over row blocks of the keys of their live tiles."""
        return int((self.live(p, y) @ self.cols(y)).sum())


def ring(share: Share, p: int, columns: int = 1) -> ExactDevice:
    """Row block i has a live tile in k_i steps: its Q is read k_i times, and its O, ℓ, m go and come k_i − 1 times."""
    t, P, H_q, H_kv = _Tiles(share), len(share.where), share.H_q, share.H_kv
    d, d_v, n = share.problem.shape.d, share.problem.shape.d_v, share.rows(p)
    steps = np.array([t.live(p, (p - s) % P).any(1) for s in range(P)]).sum(0).clip(1)
    rk, away = int((t.rows(p) * steps).sum()), int((t.rows(p) * (steps - 1)).sum())
    read = [H_q * t.keys(p, (p - s) % P) for s in range(P)]
    most, b = H_kv * share.most_rows, _bytes(share)
    arrays = {
        "Q": _array(H_q * d * rk, 0, H_q * n * d, b.stored, "input"),
        "K": _array(d * read[0], 0, H_kv * n * d, b.stored, "input"),
        "V": _array(d_v * read[0], 0, H_kv * n * d_v, b.stored, "input"),
        "O": _array(0, H_q * n * d_v, H_q * n * d_v, b.stored, "output"),
        "L": _array(0, H_q * n, H_q * n, b.chip),
        "O_run": _array(H_q * d_v * away, H_q * d_v * away, H_q * n * d_v, b.chip),
        "l_run": _array(H_q * away, H_q * away, H_q * n, b.chip),
        "m_run": _array(H_q * away, H_q * away, H_q * n, b.chip),
    }
    for buffer in range(min(P - 1, 2)):
        got = sum(read[s] for s in range(1, P) if (s - 1) % 2 == buffer)
        arrays |= {
            f"K_{buffer}": _array(d * got, 0, most * d, b.stored),
            f"V_{buffer}": _array(d_v * got, 0, most * d_v, b.stored),
        }
    return ExactDevice(ring_words(share, p), Traffic(arrays))


def ring_words(share: Share, p: int, passes: int = 1) -> int:
    """Return what device p sends: all K and V but device p + 1's; in a backward pass also all dK and dV."""
    P, shape = len(share.where), share.problem.shape
    rows = passes * len(share) - share.rows((p + 1) % P)
    return rows * share.H_kv * (shape.d + shape.d_v) if P > 1 else 0


def ring_backward(share: Share, p: int, columns: int = 1) -> ExactDevice:
    """Each live tile reads rows of Q, dO, dQ, L, D; each key block with one, its K, V, dK, dV. dK, dV travel P times."""
    t, P, H_q, H_kv = _Tiles(share), len(share.where), share.H_q, share.H_kv
    d, d_v, n = share.problem.shape.d, share.problem.shape.d_v, share.rows(p)
    live = [t.live(p, (p - s) % P) for s in range(P)]
    A = H_q * sum(int((t.rows(p) @ step).sum()) for step in live)
    cols = [t.cols((p - s) % P) for s in range(P)]
    C = [H_kv * int((cols[s] * (live[s].any(0) if s else True)).sum()) for s in range(P)]
    most, b, D = H_kv * share.most_rows, _bytes(share), H_q * n
    arrays = {
        "Q": _array(A * d, 0, D * d, b.stored, "input"),
        "K": _array(C[0] * d, 0, H_kv * n * d, b.stored, "input"),
        "V": _array(C[0] * d_v, 0, H_kv * n * d_v, b.stored, "input"),
        "O": _array(D * d_v, 0, D * d_v, b.stored, "input"),
        "dO": _array((D + A) * d_v, 0, D * d_v, b.stored, "input"),
        "L": _array(A, 0, D, b.chip, "input"),
        "D": _array(A, D, D, b.chip),
        "dQ": ArrayTraffic(A * d, A * d + D * d, D * d, D * d, b.chip, "output"),
    }
    for buffer in range(min(P - 1, 2)):
        got = sum(C[s] for s in range(1, P) if (s - 1) % 2 == buffer)
        arrays |= {
            f"K_{buffer}": _array(d * got, 0, most * d, b.stored),
            f"V_{buffer}": _array(d_v * got, 0, most * d_v, b.stored),
        }
    for buffer in range(min(P, 2)):
        wrote = sum(C[s] for s in range(P) if s % 2 == buffer)
        loaded = wrote - (C[0] if buffer == 0 else 0)
        for name, width in (("dK", d), ("dV", d_v)):
            arrays[f"{name}_{buffer}"] = _array(width * loaded, width * wrote, most * width, b.chip)
    return ExactDevice(ring_words(share, p, passes=2), Traffic(arrays))


def ulysses_backward(share: Share, p: int, columns: int = 1) -> ExactDevice:
    """The ring's tiles, of own heads and all rows; then own rows of dK, dV are summed, a part of each device that shares them."""
    t, where, heads, kv = _Tiles(share), range(len(share.where)), share.heads(p), share.kv_heads(p)
    d, d_v, n, own, own_kv = share.problem.shape.d, share.problem.shape.d_v, share.rows(p), len(heads), len(kv)
    b, parts = _bytes(share), [len(share.kv_heads(x)) for x in where]
    arrays = _own_rows(share, p)
    for x in where:
        m, here = share.rows(x), x == p
        A = own * sum(int((t.rows(x) @ t.live(x, y)).sum()) for y in where)
        H_q, H_kv = (share.H_q, share.H_kv) if here else (own, own_kv)
        away = "" if here else f"_{x}"
        role: Any = "input" if here else "extra"
        first = arrays["dO"].reads if here else 0
        arrays |= {
            f"Q{away}": _array(A * d, 0, H_q * m * d, b.stored, role),
            f"dO{away}": _array(first + A * d_v, 0, H_q * m * d_v, b.stored, role),
            f"D{away}": _array(A, share.H_q * m if here else 0, H_q * m, b.chip),
            f"K{away}": _array(own_kv * m * d, 0, H_kv * m * d, b.stored, role),
            f"V{away}": _array(own_kv * m * d_v, 0, H_kv * m * d_v, b.stored, role),
            f"dQ{away}": ArrayTraffic(
                A * d, (A + H_q * m) * d, H_q * m * d, H_q * m * d, b.chip, "output" if here else "extra"
            ),
        }
        for name, width in (("dK", d), ("dV", d_v)):
            mine, from_x = own_kv * m * width, parts[x] * n * width
            arrays[f"{name}_of_{x}"] = _array(from_x if here else 0, mine, mine, b.chip)
            if not here:
                arrays[f"{name}_from_{x}"] = _array(from_x, 0, from_x, b.chip)
    A = own * sum(int((t.rows(x) @ t.live(x, y)).sum()) for x in where for y in where)
    arrays["L"] = _array(A, 0, own * len(share), b.chip, "input")
    return ExactDevice(ulysses_backward_words(share, p), Traffic(arrays))


def ulysses_backward_words(share: Share, p: int, columns: int = 1) -> int:
    """Σ_{x≠p} n_p(h_x(d + d_v + 1) + kv_x·w) + n_x(h_p·d + kv_p·w): rows to each other's heads, and gradients home."""
    d, w, n = share.problem.shape.d, share.problem.shape.d + share.problem.shape.d_v, share.rows(p)
    others, own = [x for x in range(len(share.where)) if x != p], len(share.heads(p)) * d + len(share.kv_heads(p)) * w
    out = sum(len(share.heads(x)) * (w + 1) + len(share.kv_heads(x)) * w for x in others)
    return n * out + own * sum(share.rows(x) for x in others)


def mesh_backward(share: Share, p: int, columns: int) -> ExactDevice:
    """The ring's tiles, of the row's queries and the column's keys; then own rows of each gradient are summed, part by part."""
    t, P, H_q, H_kv, C = _Tiles(share), len(share.where), share.H_q, share.H_kv, columns
    d, d_v, n, b = share.problem.shape.d, share.problem.shape.d_v, share.rows(p), _bytes(share)
    row, column, arrays = range(p - p % C, p - p % C + C), range(p % C, P, C), _own_rows(share, p)
    for x in row:
        m, away, role = share.rows(x), "" if x == p else f"_{x}", "input" if x == p else "extra"
        A = H_q * sum(int((t.rows(x) @ t.live(x, y)).sum()) for y in column)
        first = arrays["dO"].reads if x == p else 0
        arrays |= {
            f"Q{away}": _array(A * d, 0, H_q * m * d, b.stored, role),
            f"dO{away}": _array(first + A * d_v, 0, H_q * m * d_v, b.stored, role),
            f"L{away}": _array(A, 0, H_q * m, b.chip, role),
            f"D{away}": _array(A, H_q * m if x == p else 0, H_q * m, b.chip),
        }
        back = H_q * n * d if x == p else 0
        arrays[f"dQ_of_{x}"] = ArrayTraffic(A * d + back, (A + H_q * m) * d, H_q * m * d, H_q * m * d, b.chip, "extra")
    for y in column:
        m, away, role = H_kv * share.rows(y), "" if y == p else f"_{y}", "input" if y == p else "extra"
        for name, width in (("K", d), ("V", d_v)):
            arrays[f"{name}{away}"] = _array(m * width, 0, m * width, b.stored, role)
            arrays[f"d{name}_of_{y}"] = _array(m * width if y == p else 0, m * width, m * width, b.chip)
    for name, others, heads, width in (("dQ", row, H_q, d), ("dK", column, H_kv, d), ("dV", column, H_kv, d_v)):
        size = heads * n * width
        arrays |= {f"{name}_from_{x}": _array(size, 0, size, b.chip) for x in others if x != p}
        arrays[name] = _array(0, size, size, b.chip, "output")
    return ExactDevice(mesh_backward_words(share, p, columns), Traffic(arrays))


def mesh_backward_words(share: Share, p: int, columns: int) -> int:
    """(C − 1)·n·(d + d_v + 2)·H_q + (R − 1)·n·w·H_kv go out, and gradients of the others' rows come back."""
    P, C, d, w = len(share.where), columns, share.problem.shape.d, share.problem.shape.d + share.problem.shape.d_v
    out = share.rows(p) * ((C - 1) * (w + 2) * share.H_q + (P // C - 1) * w * share.H_kv)
    in_row = sum(share.rows(x) for x in range(p - p % C, p - p % C + C) if x != p)
    return out + in_row * d * share.H_q + sum(share.rows(y) for y in range(p % C, P, C) if y != p) * w * share.H_kv


def _own_rows(share: Share, p: int) -> dict[str, ArrayTraffic]:
    """Return what D_i reads of O and dO, and the gradients of own rows."""
    shape, n, b = share.problem.shape, share.rows(p), _bytes(share)
    rows, keys = share.H_q * n * shape.d_v, share.H_kv * n
    return {
        "O": _array(rows, 0, rows, b.stored, "input"),
        "dO": _array(rows, 0, rows, b.stored, "input"),
        "dK": _array(0, keys * shape.d, keys * shape.d, b.chip, "output"),
        "dV": _array(0, keys * shape.d_v, keys * shape.d_v, b.chip, "output"),
    }


def ulysses(share: Share, p: int, columns: int = 1) -> ExactDevice:
    """q_outer's on all N rows for each own head. Σ_{x≠p} [n_p(h_x·d + kv_x·w) + n_x·h_p·d_v] words."""
    t, where = _Tiles(share), range(len(share.where))
    d, d_v, n = share.problem.shape.d, share.problem.shape.d_v, share.rows(p)
    kv = share.kv_heads(p)
    keys = {y: sum(t.keys(x, y) for x in where) for y in where}
    b, own = _bytes(share), len(share.heads(p))
    arrays = {
        "Q": _array(own * n * d, 0, share.H_q * n * d, b.stored, "input"),
        "K": _array(own * keys[p] * d, 0, share.H_kv * n * d, b.stored, "input"),
        "V": _array(own * keys[p] * d_v, 0, share.H_kv * n * d_v, b.stored, "input"),
        "O": _array(0, own * n * d_v, share.H_q * n * d_v, b.stored, "output"),
        "L": _array(0, own * len(share), own * len(share), b.chip),
    }
    for x in (x for x in where if x != p):
        m, read = share.rows(x), own * keys[x]
        for name, reads, writes, size in (
            ("Q", own * m * d, 0, own * m * d), ("K", read * d, 0, len(kv) * m * d), ("V", read * d_v, 0, len(kv) * m * d_v),
            ("O", 0, own * m * d_v, own * m * d_v),
        ):  # fmt: skip
            arrays[f"{name}_{x}"] = _array(reads, writes, size, b.stored)
    return ExactDevice(ulysses_words(share, p), Traffic(arrays))


def ulysses_words(share: Share, p: int) -> int:
    """Return what device p sends: rows of Q, K, V to each other device's heads, and its own heads' O to each other's rows."""
    shape, others, n = share.problem.shape, [x for x in range(len(share.where)) if x != p], share.rows(p)
    Q_out = n * shape.d * sum(len(share.heads(x)) for x in others)
    KV_out = n * (shape.d + shape.d_v) * sum(len(share.kv_heads(x)) for x in others)
    return Q_out + KV_out + len(share.heads(p)) * shape.d_v * sum(share.rows(x) for x in others)


def ulysses_kept_backward_words(share: Share, p: int) -> int:
    """The same where each device has kept its heads, as on GPUs: rows of dO out, rows of dQ, dK, dV back."""
    shape, others, n = share.problem.shape, [x for x in range(len(share.where)) if x != p], share.rows(p)
    dO_out = n * shape.d_v * sum(len(share.heads(x)) for x in others)
    back = len(share.heads(p)) * shape.d + len(share.kv_heads(p)) * (shape.d + shape.d_v)
    return dO_out + back * sum(share.rows(x) for x in others)


def mesh(share: Share, p: int, columns: int) -> ExactDevice:
    """(C − 1)·n·d·H_q + (R − 1)·n·w·H_kv words go out, and n_x(d_v + 2)H_q for each other x of the row come back."""
    t, P, H_q, H_kv = _Tiles(share), len(share.where), share.H_q, share.H_kv
    d, d_v, n, C = share.problem.shape.d, share.problem.shape.d_v, share.rows(p), columns
    row, column = range(p - p % C, p - p % C + C), range(p % C, P, C)
    b, keys = _bytes(share), {y: H_q * sum(t.keys(x, y) for x in row) for y in column}
    arrays = {
        "Q": _array(H_q * n * d, 0, H_q * n * d, b.stored, "input"),
        "K": _array(keys[p] * d, 0, H_kv * n * d, b.stored, "input"),
        "V": _array(keys[p] * d_v, 0, H_kv * n * d_v, b.stored, "input"),
        "O": _array(0, H_q * n * d_v, H_q * n * d_v, b.stored, "output"),
        "L": _array(0, H_q * n, H_q * n, b.chip),
    }
    for y in (y for y in column if y != p):
        m = H_kv * share.rows(y)
        arrays |= {
            f"K_{y}": _array(keys[y] * d, 0, m * d, b.stored),
            f"V_{y}": _array(keys[y] * d_v, 0, m * d_v, b.stored),
        }
    for x in row:
        m, mine = H_q * share.rows(x), x == p
        if not mine:
            arrays[f"Q_{x}"] = _array(m * d, 0, m * d, b.stored)
        for name, width in (("O", d_v), ("l", 1), ("m", 1)):
            arrays[f"{name}_of_{x}"] = _array(m * width if mine else 0, m * width, m * width, b.chip)
            if not mine:
                arrays[f"{name}_from_{x}"] = _array(H_q * n * width, 0, H_q * n * width, b.chip)
    return ExactDevice(mesh_words(share, p, columns), Traffic(arrays))


def mesh_words(share: Share, p: int, columns: int) -> int:
    """Return what device p sends: Q along its row, K and V along its column, and parts of O, ℓ, m back along the row."""
    n, P, C, shape = share.rows(p), len(share.where), columns, share.problem.shape
    out = (C - 1) * n * shape.d * share.H_q + (P // C - 1) * n * (shape.d + shape.d_v) * share.H_kv
    others = (x for x in range(p - p % C, p - p % C + C) if x != p)
    return out + sum(share.rows(x) * (shape.d_v + 2) * share.H_q for x in others)


def mesh_total(share: Share, columns: int, direction: str = "forward") -> int:
    """Return what all devices of a mesh send together: each row goes, and comes back, C − 1 times, each key R − 1 times."""
    H_q, H_kv, d, w = share.H_q, share.H_kv, share.problem.shape.d, share.problem.shape.d + share.problem.shape.d_v
    by_row = (w + 2) * H_q if direction == "forward" else (w + 2 + d) * H_q
    by_key = w * H_kv if direction == "forward" else 2 * w * H_kv
    return len(share) * ((columns - 1) * by_row + (len(share.where) // columns - 1) * by_key)


def fewest_columns(share: Share, direction: str = "forward") -> int:
    """Return the columns of the mesh with the fewest words sent by all devices, a divisor of how many devices there are."""
    P = len(share.where)
    return min((C for C in range(1, P + 1) if P % C == 0), key=lambda C: mesh_total(share, C, direction))


def tree(share: Share, p: int, columns: int = 1) -> ExactDevice:
    """q_outer's on own keys; then, of c children, each part is read once, and the own one read and written with each."""
    t, shape, (parent, children) = _Tiles(share), share.problem.shape, share.family(p)
    rows, n, b = share.H_q * shape.N_q, share.H_kv * share.rows(p), _bytes(share)
    keys, c, root = share.H_q * int((t.live(0, p) @ t.cols(p)).sum()), len(children), parent is None
    arrays = {
        "Q": _array(rows * shape.d * root, 0, rows * shape.d * root, b.stored, "input"),
        "K": _array(keys * shape.d, 0, n * shape.d, b.stored, "input"),
        "V": _array(keys * shape.d_v, 0, n * shape.d_v, b.stored, "input"),
        "O": _array(0, rows * shape.d_v * root, rows * shape.d_v * root, b.stored, "output"),
        "L": _array(0, rows * root, rows * root, b.chip),
    }
    if not root:
        arrays["Q_here"] = _array(rows * shape.d, 0, rows * shape.d, b.stored)
    for name, width in (("O", shape.d_v), ("l", 1), ("m", 1)):
        arrays[f"{name}_part"] = _array(rows * width * (c + root), rows * width * (1 + c), rows * width, b.chip)
        arrays |= {f"{name}_of_{child}": _array(rows * width, 0, rows * width, b.chip) for child in children}
    return ExactDevice(rows * (shape.d * c + (shape.d_v + 2) * (not root)), Traffic(arrays))


def tile_peak(B_r: int, B_c: int, d: int, d_v: int) -> int:
    """Return the most elements on chip at once, in the inner loop, of forward passes: q_outer's."""
    return (B_r + B_c) * (d + d_v) + B_r * B_c + 3 * B_r


def mesh_peak(B_r: int, B_c: int, d: int, d_v: int) -> int:
    """Return the same of a mesh and a tree: O_i, ℓ_i, m_i, a part of them and m_i^new may be more, where parts are merged."""
    return max(tile_peak(B_r, B_c, d, d_v), B_r * (2 * d_v + 5))


def backward_peak(B_r: int, B_c: int, d: int, d_v: int) -> int:
    """Return the same of the backward pass: K_j, V_j and their gradients, Q_i, dO_i, dQ_i, L_i, D_i, P_ij, dS_ij; or line 1's."""
    return max(B_r * (2 * d + d_v + 2) + 2 * B_c * (d + d_v) + 2 * B_r * B_c, B_r * (2 * d_v + 1))


@dataclass(frozen=True)
class DeviceForm:
    """A program's counts on one device, of (share, rank, columns), and its peak, of (B_r, B_c, d, d_v)."""

    exact: Callable[[Share, int, int], ExactDevice]
    peak: Callable[[int, int, int, int], int]


FORMS: Mapping[tuple[str, str], DeviceForm] = {
    ("ring", "forward"): DeviceForm(ring, tile_peak),
    ("ring", "backward"): DeviceForm(ring_backward, backward_peak),
    ("ulysses", "forward"): DeviceForm(ulysses, tile_peak),
    ("ulysses", "backward"): DeviceForm(ulysses_backward, backward_peak),
    ("mesh", "forward"): DeviceForm(mesh, mesh_peak),
    ("mesh", "backward"): DeviceForm(mesh_backward, backward_peak),
    ("tree", "forward"): DeviceForm(tree, mesh_peak),
}


def balance(where: Sequence[Any], allows: Any) -> Fraction:
    """Return the greatest number of allowed pairs of a device, over their mean. `allows(rows, cols)` is booleans."""
    everywhere = np.sort(np.concatenate([*where]))
    work = [int(allows(rows, everywhere).sum()) for rows in where]
    return Fraction(max(work) * len(work), sum(work))


@dataclass(frozen=True)
class _Bytes:
    stored: int
    chip: int


def _cut(length: int, size: int) -> Any:
    """Return the sizes of a length's blocks."""
    return np.array([min(size, length - first) for first in range(0, length, size)], dtype=np.int64)


def _bytes(share: Share) -> _Bytes:
    dtype = share.problem.dtype
    return _Bytes(dtype.itemsize, chip_dtype(dtype).itemsize)


def _array(reads: int, writes: int, size: int, itemsize: int, role: Any = "extra") -> ArrayTraffic:
    return ArrayTraffic(int(reads), int(writes), 0, int(size), itemsize, role)

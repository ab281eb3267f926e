"""Causal prefill in tiles: for each tile of queries, all tiles of keys and values are loaded in
turn; its m, s and O stay.

In flashsim: Algorithm 2, lines 10 to 15, with its two loops exchanged, so that O is written once.
The mask is its line 11; the skipped tile is Algorithm 5, line 8, with block_mask="live". Lines 12
and 13 there use finite(m) where a row has seen only masked keys (m = −∞) and exp(m − m) would be
NaN. Here each row sees key 0 first, so that does not arise.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.learn.examples.text import (
    CHAPTER,
    bracketed,
    factor,
    fixed,
    number,
    paragraph,
    table,
    tiny,
    vector,
    wrapped,
)
from flashsim.reference import attention

Q = ((1.0, 0.5), (0.8, -0.1), (0.2, 0.9), (-0.3, 0.4), (0.7, 0.6), (0.1, -0.5))
K = ((0.3, 0.7), (0.6, 0.2), (-0.1, 0.8), (0.4, -0.3), (0.9, 0.1), (0.2, 0.5))
V = ((1.0, 0.0), (0.0, 1.0), (0.5, 0.5), (0.8, 0.2), (0.3, 0.7), (0.6, 0.4))
B_q = 2
B_k = 3
no_scores = partial(np.zeros, (0, 0))


@dataclass(frozen=True, eq=False)
class Row:
    """One query's update by one tile of keys: m, s and O before, corrected, and after it; a
    weight for each key.
    """

    query: int
    m_old: float
    s_old: float
    O_old: Array
    m: float
    correction: float
    s_corrected: float
    O_corrected: Array
    weights: Array
    s: float
    O: Array

    @property
    def new_maximum(self) -> bool:
        """Whether the maximum rose, so that s and O are scaled down."""
        return self.m > self.m_old


@dataclass(frozen=True, eq=False)
class Tile:
    """One tile of the scores: before and after scaling and masking, and its rows' updates. None
    of it if it was skipped.
    """

    queries: range
    keys: range
    products: Array = field(default_factory=no_scores)
    S: Array = field(default_factory=no_scores)
    S_masked: Array = field(default_factory=no_scores)
    rows: tuple[Row, ...] = ()

    @property
    def skipped(self) -> bool:
        """Whether nothing of it was loaded."""
        return not self.rows


@dataclass(frozen=True, eq=False)
class QueryTile:
    """One tile of queries: its tiles of keys in order, then m, s and O of its rows, and O / s."""

    queries: range
    tiles: tuple[Tile, ...]
    m: Array
    s: Array
    O: Array
    output: Array


@dataclass(frozen=True, eq=False)
class Prefill:
    """The inputs, one record for each tile of queries, the output; and the same by naive
    attention.
    """

    Q: Array
    K: Array
    V: Array
    B_q: int
    B_k: int
    query_tiles: tuple[QueryTile, ...]
    output: Array
    naive: Array


def update(query: int, m_old: Any, s_old: Any, O_old: Array, S: Array, V_tile: Array) -> Row:
    """Take a tile of keys into one query's m, s and O. Masked scores are −∞, and their weights
    0.
    """
    m = max(m_old, S.max())
    correction = np.exp(m_old - m)
    s_corrected = s_old * correction
    O_corrected = O_old * correction
    weights = np.exp(S - m)
    s = s_corrected + weights.sum()
    O = O_corrected + weights @ V_tile
    return Row(query, m_old, s_old, O_old, m, correction, s_corrected, O_corrected, weights, s, O)


def query_tile(Q: Array, K: Array, V: Array, queries: range, B_k: int) -> QueryTile:
    """Stream all keys and values past one tile of queries."""
    dtype = Q.dtype.type
    m = [dtype(-np.inf)] * len(queries)
    s = [dtype(0)] * len(queries)
    O = [np.zeros(V.shape[1], dtype)] * len(queries)
    tiles = []
    for start in range(0, len(K), B_k):
        keys = range(start, min(start + B_k, len(K)))
        if keys.start > queries[-1]:  # all masked: even its first key comes after its last query
            tiles.append(Tile(queries, keys))
            continue
        K_tile = K[keys.start : keys.stop]
        V_tile = V[keys.start : keys.stop]
        products = Q[queries.start : queries.stop] @ K_tile.T
        S = products / dtype(math.sqrt(Q.shape[1]))
        after = np.arange(keys.start, keys.stop) > np.arange(queries.start, queries.stop)[:, None]
        S_masked = np.where(after, dtype(-np.inf), S)
        rows = [
            update(queries[i], m[i], s[i], O[i], S_masked[i], V_tile) for i in range(len(queries))
        ]
        m = [row.m for row in rows]
        s = [row.s for row in rows]
        O = [row.O for row in rows]
        tiles.append(Tile(queries, keys, products, S, S_masked, tuple(rows)))
    sums = np.array(s)
    unnormalised = np.array(O)
    return QueryTile(
        queries, tuple(tiles), np.array(m), sums, unnormalised, unnormalised / sums[:, None]
    )


def prefill(Q: Any, K: Any, V: Any, B_q: int, B_k: int) -> Prefill:
    """Return causal attention, scaled by 1/√d, tile by tile, of as many queries as keys. The
    last tiles may be smaller.
    """
    Q, K, V = (np.asarray(a) for a in (Q, K, V))
    n = len(Q)
    tiles = tuple(
        query_tile(Q, K, V, range(start, min(start + B_q, n)), B_k) for start in range(0, n, B_q)
    )
    output = np.concatenate([tile.output for tile in tiles])
    return Prefill(Q, K, V, B_q, B_k, tiles, output, attention(Q, K, V, mask=np.tri(n, dtype=bool)))


def compute() -> Prefill:
    """Run the chapter's example. It shows the first query tile; here are all three."""
    return prefill(Q, K, V, B_q, B_k)


def lines(run: Prefill) -> Iterator[str]:
    """Yield the steps as text."""
    n, d = run.Q.shape
    root = fixed(math.sqrt(d), 3)
    yield f"Causal prefill in tiles: n = {n}, d = {d}, B_q = {run.B_q}, B_k = {run.B_k}"
    yield ""
    operands = [("", "Q", "K", "V")]
    for i in range(n):
        operands.append((str(i), _aligned(run.Q[i]), _aligned(run.K[i]), _aligned(run.V[i])))
    yield from table(operands)
    yield from paragraph("All numbers are computed unrounded, and rounded only to be shown.")
    yield f"\nScores are divided by √d = {root}. Query i sees keys 0 … i. So, of the tiles:"
    yield ""
    grid = [["", *(_named("keys", tile.keys) for tile in run.query_tiles[0].tiles)]]
    for row in run.query_tiles:
        states = ["skipped" if tile.skipped else "computed" for tile in row.tiles]
        grid.append([_named("queries", row.queries), *states])
    yield from table(grid, left=(0, 1, 2))
    zero = vector([0] * run.V.shape[1])
    for i, row in enumerate(run.query_tiles):
        yield (
            f"\nQuery tile {i} ({_named('queries', row.queries)}): m = −∞, s = 0, O = {zero} in "
            "each row"
        )
        for j, tile in enumerate(row.tiles):
            skipped = ": skipped" if tile.skipped else ""
            yield f"\n  Key tile {j} ({_named('keys', tile.keys)}){skipped}"
            if tile.skipped:
                yield from _skipped_lines(tile)
            else:
                yield from _tile_lines(run, tile, root)
        yield "\n  Normalize: O / s"
        for i, query in enumerate(row.queries):
            yield (
                f"    O[{query}] = {vector(row.O[i])} / {number(row.s[i])} = "
                f"{vector(row.output[i], 3)}"
            )
    yield "\nCheck by naive attention with the causal mask (flashsim.reference.attention):"
    rows = [("", "tiled", "naive")]
    for i in range(n):
        rows.append((f"O[{i}]", vector(run.output[i], 3), vector(run.naive[i], 3)))
    yield from table(rows, left=(0, 1, 2))
    yield f"  The largest difference is {tiny(abs(run.output - run.naive).max())}."
    yield from paragraph(
        f"This example is of a book chapter, {CHAPTER}. Its printed numbers are all right to their "
        "last digit. It shows query "
        "tile 0 only; its loop runs over query tiles 1 and 2 just the same."
    )


def _aligned(numbers: Array) -> str:
    return "  ".join(f"{number(x):>4}" for x in numbers)


def _named(noun: str, indices: range) -> str:
    return f"{noun} {indices[0]}–{indices[-1]}"


def _skipped_lines(tile: Tile) -> Iterator[str]:
    last = tile.queries[-1]
    first = tile.keys[0]
    yield from wrapped(
        f"Its first key, {first}, comes after the tile's last query, {last}: every score would be "
        "masked to −∞ and every "
        f"weight 0. K[{first}:{tile.keys.stop}] and V[{first}:{tile.keys.stop}] are not even "
        "loaded.",
        "    ",
    )


def _tile_lines(run: Prefill, tile: Tile, root: str) -> Iterator[str]:
    rows = []
    for i, query in enumerate(tile.queries):
        for j, key in enumerate(tile.keys):
            pairs = zip(run.Q[query], run.K[key], strict=True)
            terms = " + ".join(f"{factor(a)}·{factor(b)}" for a, b in pairs)
            dot = fixed(tile.products[i, j], 2)
            score = fixed(tile.S[i, j], 3)
            rows.append((f"Q[{query}]·K[{key}] = {terms}", f"= {dot:>5}  / {root} = {score:>6}"))
    yield from table(rows, "    ")
    yield ""
    masked = bool(np.isinf(tile.S_masked).any())
    header = [f"key {key}" for key in tile.keys]
    scores = [["S", *header]]
    if masked:
        scores[0] += ["  masked", *header]
    for query, S, S_masked in zip(tile.queries, tile.S, tile.S_masked, strict=True):
        row = [f"query {query}", *(fixed(x, 3) for x in S)]
        if masked:
            row += ["", *(fixed(x, 3) for x in S_masked)]
        scores.append(row)
    yield from table(scores, "    ")
    if not masked:
        yield "    (No key here comes after a query: nothing to mask.)"
    for update_of_row, S_masked in zip(tile.rows, tile.S_masked, strict=True):
        yield from _row_lines(run, tile, update_of_row, S_masked)


def _row_lines(run: Prefill, tile: Tile, row: Row, scores: Array) -> Iterator[str]:
    m_old = fixed(row.m_old, 3)
    m = fixed(row.m, 3)
    visible = []  # (key, score, weight)
    masked = []
    for key, score, weight in zip(tile.keys, scores, row.weights, strict=True):
        if np.isfinite(score):
            visible.append((key, score, number(weight)))
        else:
            masked.append(str(key))
    yield f"\n    Row {row.query}"
    if not visible:
        yield from wrapped(
            "All of these keys are masked: m stays, correction = exp(0) = 1, every weight is 0.",
            "      ",
        )
        yield f"      m = {m}, s = {number(row.s)}, O = {vector(row.O)}, as before"
        return
    candidates = ", ".join(fixed(score, 3) for _, score, _ in visible)
    remark = "   ← new maximum" if row.new_maximum else ""
    correction = number(row.correction)
    yield f"      m_new = max({m_old}, {candidates}) = {m}{remark}"
    yield f"      correction = exp({m_old} − {bracketed(m)}) = {correction}"
    yield f"      O = {vector(row.O_old)} · {correction} = {vector(row.O_corrected)}"
    yield f"      s = {number(row.s_old)} · {correction} = {number(row.s_corrected)}"
    for key, score, weight in visible:
        inner = "" if score == row.m else f" = exp({fixed(score - row.m, 3)})"
        yield (
            f"      weight of key {key} = exp({fixed(score, 3)} − {bracketed(m)}){inner} = {weight}"
        )
    if masked:
        plural = "s" if len(masked) > 1 else ""
        yield f"      (masked: key{plural} {', '.join(masked)}, of weight exp(−∞) = 0)"
    products = " + ".join(f"{weight}·{vector(run.V[key])}" for key, _, weight in visible)
    yield from wrapped(f"O = {vector(row.O_corrected)} + {products}", "      ")
    yield f"        = {vector(row.O)}"
    terms = [number(row.s_corrected), *(weight for _, _, weight in visible)]
    yield f"      s = {' + '.join(terms)} = {number(row.s)}"
    yield f"      m = {m}"

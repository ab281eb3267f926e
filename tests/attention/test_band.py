"""Live tiles counted by kind in closed form are those that looking at every tile finds; large
counts finish, or are refused.
"""

import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import Causal, Dense, KeyPadding, QueryPadding, SlidingWindow, Tree, theory
from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.attention.masks.band import Band, floor_sum
from flashsim.attention.masks.rules import All, Mask
from flashsim.attention.shapes import Blocks, Shape
from flashsim.memory.errors import MemoryModelError
from flashsim.memory.folding import Kinds
from flashsim.memory.hbm import HBM
from flashsim.memory.sram import SRAM
from flashsim.simulate import interleaving as groups
from flashsim.simulate.live_tiles import CountedTiles


def drawn(rng: random.Random) -> tuple[Mask, Shape, Blocks, int]:
    """A mask of positions, alone or combined, for rows of `group` heads; with lengths and
    blocks.
    """
    N_q = rng.randint(1, 30)
    N_k = rng.randint(1, 30)
    group = rng.choice((1, 1, 2, 3, 4))
    B_r = rng.randint(1, group * N_q)
    B_c = rng.randint(1, N_k)
    offset = rng.choice((None, rng.randint(-N_q - 3, N_k + 3)))
    left = rng.randint(-1, 12)
    right = rng.randint(-1, 12)
    kinds = [
        Causal(),
        Causal(offset=rng.randint(-N_q - 3, N_k + 3)),
        SlidingWindow(left, right, offset=offset),
        KeyPadding(rng.randint(0, N_k)),
        QueryPadding(rng.randint(0, N_q)),
        Dense(np.ones((1, 1), bool)),
        All(),
    ]
    mask: Mask = rng.choice(kinds[:5])
    for _ in range(rng.choice((0, 0, 1, 2))):
        mask = mask & rng.choice(kinds)
    blocks = Blocks(B_r, B_c, N_q=group * N_q, N_k=N_k)
    shape = Shape(group * N_q, N_k, 1, 1)
    return groups.grouped(mask, group, N_q), shape, blocks, group


Kind = tuple[bool, bool, bool]
"""Of a tile: in the last row, in the last column, partial."""


def looked_at(mask: Mask, shape: Shape, blocks: Blocks) -> dict[Kind, list[tuple[int, int]]]:
    """Return the live tiles of each kind, (last row, last column, partial), as the mask says of
    each.
    """
    rows = np.arange(blocks.T_r)[:, None] * blocks.B_r
    cols = np.arange(blocks.T_c)[None, :] * blocks.B_c
    row_ends = np.minimum(rows + blocks.B_r, shape.N_q)
    col_ends = np.minimum(cols + blocks.B_c, shape.N_k)
    real_row_ends = np.minimum(row_ends, mask.queries(shape, ()))
    real_col_ends = np.minimum(col_ends, mask.keys(shape, ()))
    live = mask.live(rows, real_row_ends, cols, real_col_ends, shape, ())
    full = mask.full(rows, row_ends, cols, col_ends, shape, ())
    dense = bool(mask.dense(()))
    tiles: dict[Kind, list[tuple[int, int]]] = {}
    for i, j in np.argwhere(live).tolist():
        partial = dense or not full[i, j]
        kind = (i == blocks.T_r - 1, j == blocks.T_c - 1, partial)
        tiles.setdefault(kind, []).append((i, j))
    return tiles


def test_kinds_are_those_of_looking_at_every_tile() -> None:
    rng = random.Random(1)
    tiles_as_wide_as_the_window = [
        (
            groups.grouped(SlidingWindow(5, 3), 3, 11),
            Shape(33, 12, 1, 1),
            Blocks(8, 8, N_q=33, N_k=12),
            3,
        ),
        (
            groups.grouped(SlidingWindow(1, 4) & KeyPadding(7), 3, 8),
            Shape(24, 7, 1, 1),
            Blocks(5, 6, N_q=24, N_k=7),
            3,
        ),
    ]
    for mask, shape, blocks, group in (
        *tiles_as_wide_as_the_window,
        *(drawn(rng) for _ in range(500)),
    ):
        band = mask.band(shape, ())
        assert band is not None
        kinds = band.kinds(blocks, shape, group)
        want = looked_at(mask, shape, blocks)
        about = mask, shape, blocks, group
        assert kinds.keys() == want.keys(), about
        for kind, (count, index) in kinds.items():
            assert count == len(want[kind]), about
            assert index in want[kind], about


def test_rows_and_columns_to_run_stand_for_all() -> None:
    """Each way round, the turns of both loops multiply to each kind's count, and the outer ones
    to all.
    """
    rng = random.Random(2)
    for _ in range(200):
        mask, shape, blocks, group = drawn(rng)
        band = mask.band(shape, ())
        assert band is not None
        tiles = CountedTiles(band, blocks, shape, group)
        want = looked_at(mask, shape, blocks)
        by_row = {}
        for i, n in tiles.rows_alike.items():
            for j, m in tiles.row(i).items():
                by_row[i, j] = n * m
        by_column = {}
        for j, n in tiles.alike.items():
            for i, m in tiles.column(j).items():
                by_column[i, j] = n * m
        assert by_row == by_column
        assert sorted(by_row.values()) == sorted(len(result) for result in want.values())
        loops = ((tiles.rows_alike, blocks.T_r), (tiles.alike, blocks.T_c))
        for outer, turns in loops:
            assert sum(outer.values()) == turns
            assert outer[turns - 1] == 1
            assert min(outer.values()) >= 1


def test_bands_meet_in_the_lesser() -> None:
    with_window = Band(None, 3, 9) & Band(2, None, 7, is_exact=False)
    assert with_window == Band(2, 3, 7, is_exact=False)
    of_both = Band(5, 3, 9) & Band(2, 4, 9)
    assert of_both == Band(2, 3, 9)


def test_floor_sums() -> None:
    rng = random.Random(3)
    for _ in range(500):
        a = rng.randint(0, 30)
        b = rng.randint(0, 40)
        m = rng.randint(1, 20)
        n = rng.randint(0, 25)
        want = sum((a * i + b) // m for i in range(n))
        assert floor_sum(a, b, m, n) == want


def test_a_turn_for_a_part_of_a_turn_is_refused() -> None:
    sram = SRAM(HBM(arithmetic=False), 1)
    with pytest.raises(
        MemoryModelError, match="stands for 1/2 turns in all; expected a whole number"
    ):
        list(sram.loop(3, where=Kinds({0: Fraction(1, 2)})))


EVERY = [*FORWARD.values(), *BACKWARD.values()]
SKIPPING: list[tuple[str, dict[str, Any]]] = [
    ("split_kv", {"splits": 7, "merge": "tree"}),
    ("block_sparse", {"block_mask": "live"}),
    *((a.name, {"direction": a.direction}) for a in EVERY if {"live", "splits"} & {*a.parts}),
]


@pytest.mark.parametrize(("name", "options"), SKIPPING)
@pytest.mark.parametrize(
    "mask",
    [
        Causal(),
        SlidingWindow(5000, 0),
        KeyPadding(10**12) & Causal(),
        Causal(offset=-(10**13)),
        Causal(offset=7 * 10**8) & SlidingWindow(5000, 0) & QueryPadding(10**9 + 1),
    ],
    ids=["causal", "window", "padding", "offset", "two offsets and query padding"],
)
def test_any_length_is_counted_at_once(name: str, options: dict[str, Any], mask: Mask) -> None:
    """10¹⁴ tokens, and theory says the same."""
    index: dict[str, Any] = {"N": 99_999_999_999_999, "d": 64, "M": 25_600}
    index |= {"mask": mask, **options}
    tally = flashsim.count(name, **index)
    exact = theory.exact(name, **index)
    assert tally.hbm == exact.hbm
    assert tally.sram == exact.sram
    assert tally.flops.matmul == exact.matmul


def test_what_would_run_for_hours_is_refused_before_it_runs() -> None:
    """Where each tile is looked at: trees, masks of one's own, functions of (T_r, T_c)."""
    tree = Tree([-1, 0, 1])
    problem: dict[str, Any] = {"N_q": 3, "N_k": 10**9, "d": 64, "mask": tree}
    with pytest.raises(
        ValueError,
        match=r"mask is Tree\(\[-1, 0, 1\]\): .* T_r × T_c = 1 × 15,625,000 .* 0\.4 hours",
    ):
        flashsim.count("flash", **problem, blocks=(3, 64))
    wide = theory.exact("flash", **problem, blocks=(3, 64))
    assert wide.hbm.by_array["tree"].reads == 3

    class Even(Mask):
        """Of one's own: it names no band."""

        def allows(self, rows: Any, cols: Any, shape: Shape, head: Any) -> Any:
            return np.broadcast_to(cols % 2 == 0, (len(rows), len(cols)))

    plain = flashsim.count("q_outer", N=9, d=2, M=99)
    even = flashsim.count("q_outer", N=9, d=2, M=99, mask=Even())
    assert even.hbm == plain.hbm
    with pytest.raises(ValueError, match=r"its tiles are counted one by one"):
        flashsim.count("q_outer", N=2**20, d=2, M=99, mask=Even())
    for function in (flashsim.count, theory.exact):
        with pytest.raises(
            ValueError, match=r"it would return 49,978,015,744 entries.* at most 268,435,456"
        ):
            function("block_sparse", N=2**24, d=64, block_mask=flashsim.patterns.butterfly)

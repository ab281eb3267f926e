"""Algorithm 5 computes the tiles it is told to, and no others; patterns are what their names
say.
"""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashsim
from flashsim import Causal, KeyPadding, SlidingWindow
from flashsim.attention.masks import patterns
from flashsim.reference import (
    attention,
    backward_rounding,
    error_bound,
    gradient_bounds,
    gradients,
    rounding,
)
from tests.helpers.cases import MASKS, Arguments, Array, Case, cases, full_cases, of_bound, room_for

PARTS = ("dQ", "dK", "dV")


def tiled(case: Case) -> dict[str, Any]:
    return {
        "M": room_for(case.B_r, case.B_c, case.d, case.d_v, case.N_k),
        "blocks": (case.B_r, case.B_c),
    }


def grid(case: Case) -> tuple[int, int]:
    return -(-case.N_q // case.B_r), -(-case.N_k // case.B_c)


def spread(tiles: Array, case: Case) -> Array:
    """The element mask that a block mask amounts to."""
    tile = np.ones((case.B_r, case.B_c), bool)
    return np.kron(tiles, tile)[: case.N_q, : case.N_k]


@given(case=full_cases())
def test_with_every_tile_it_is_algorithm_2_and_4_bit_for_bit(case: Case) -> None:
    Q, K, V = case.inputs()
    options = {**tiled(case), **case.options}
    flash = flashsim.forward("flash", Q, K, V, **options)
    want = flashsim.backward("flash", flash, case.dO())
    for block_mask in (
        None,
        np.ones(grid(case), bool),
        np.ones(grid(case), int),
        lambda T_r, T_c: np.ones((T_r, T_c), bool),
    ):
        sparse = flashsim.forward("block_sparse", Q, K, V, block_mask=block_mask, **options)
        result = flashsim.backward("block_sparse", sparse, case.dO())
        for values in ("O", "l", "m", "hbm", "sram", "blocks"):
            assert np.array_equal(getattr(sparse, values), getattr(flash, values))
        for values in (*PARTS, "hbm", "sram", "blocks"):
            assert np.array_equal(
                getattr(result, values), getattr(want, values), equal_nan=values in PARTS
            )


@given(case=full_cases(), share=st.sampled_from((0.5, 0.1, 0.9, 0.0)))
def test_only_the_tiles_asked_for_are_computed(case: Case, share: float) -> None:
    """Values against the reference with the tiles spread to elements; counts against a sum over
    tiles, and `count`.
    """
    Q, K, V = case.inputs()
    rng = np.random.default_rng((case.seed, 3))
    tiles = rng.random(grid(case)) < share
    options = {**tiled(case), **case.options, "block_mask": tiles}
    run = flashsim.forward("block_sparse", Q, K, V, **options)
    result = flashsim.backward("block_sparse", run, case.dO())
    allowed = spread(tiles, case)
    oracle = case.oracle
    oracle["mask"] = allowed if oracle["mask"] is None else allowed & oracle["mask"]
    rounded = backward_rounding("block_sparse", run.blocks)
    bound = error_bound(Q, K, V, **rounding("block_sparse", run.blocks), **oracle)
    assert of_bound(run.O, attention(Q, K, V, **oracle), bound) <= 1
    bounds = gradient_bounds(Q, K, V, case.dO(), **rounded, **oracle)
    exact = gradients(Q, K, V, case.dO(), **oracle)
    for part, want, most in zip(PARTS, exact, bounds, strict=True):
        assert of_bound(getattr(result, part), want, most) <= 1
    dead = ~oracle["mask"].any(axis=1)
    assert run.l is not None
    assert run.m is not None
    assert (run.O[dead] == 0).all()
    assert (run.l[dead] == 0).all()
    assert np.isneginf(run.m[dead]).all()
    assert (result.dQ[dead] == 0).all()
    for direction, counted in (("forward", run), ("backward", result)):
        arguments: Arguments = {
            **case.shape,
            **options,
            "dtype": case.dtype,
            "direction": direction,
        }
        del arguments["seed"]
        tally = flashsim.count("block_sparse", **arguments)
        assert tally.hbm == counted.hbm
        assert tally.sram == counted.sram
        assert tally.blocks == counted.blocks


@given(case=cases(dtypes=("float32",)), share=st.sampled_from((0.5, 0.1)))
def test_counts_by_hand(case: Case, share: float) -> None:
    """K and V once; for each tile computed, its rows of Q, O, ℓ, m in, and of O, ℓ, m out."""
    tiles = np.random.default_rng(case.seed).random(grid(case)) < share
    options = {**case.shape, **tiled(case), "block_mask": tiles}
    tally = flashsim.count("block_sparse", **options)
    tops = np.arange(len(tiles)) * case.B_r
    heights = np.minimum(tops + case.B_r, case.N_q) - tops
    rows = int(heights @ tiles.sum(axis=1))
    N_q = case.N_q
    N_k = case.N_k
    d = case.d
    d_v = case.d_v
    assert tally.hbm.reads == N_k * (d + d_v) + rows * (d + d_v + 2)
    assert tally.hbm.writes == N_q * (d_v + 2) + rows * (d_v + 2)
    back = flashsim.count("block_sparse", **options, direction="backward")
    row_reads = 2 * d + 2 * d_v + 2
    assert back.hbm.reads == N_k * (d + d_v) + rows * row_reads
    assert back.hbm.writes == N_q * d + 2 * N_k * (d + d_v) + rows * d


@given(case=cases(masks=tuple(MASKS), dtypes=("float64", "float32", "float16", "bfloat16")))
def test_skipping_dead_tiles_changes_counts_alone(case: Case) -> None:
    """A tile that is computed though wholly masked rescales by 1: O = (ℓ·O)/ℓ, two roundings a
    tile and no more.
    """
    Q, K, V = case.inputs()
    options = {**tiled(case), **case.options}
    full = flashsim.forward("flash", Q, K, V, **options)
    live = flashsim.forward("block_sparse", Q, K, V, block_mask="live", **options)
    assert np.array_equal(live.l, full.l)
    assert np.array_equal(live.m, full.m)
    # float32's roundings vanish in 16 bits
    roundoff = 0.0
    if Q.dtype.itemsize > 2:
        roundoff = float(np.finfo(Q.dtype).eps) / 2
    O_full = full.O.astype(np.float64)
    O_live = live.O.astype(np.float64)
    bound = 3 * full.blocks.T_c * roundoff * np.abs(O_full)
    assert (np.abs(O_live - O_full) <= bound).all()
    assert live.hbm.accesses <= full.hbm.accesses
    assert live.sram.peak <= full.sram.peak
    tally = flashsim.count(
        "block_sparse",
        **case.shape,
        **tiled(case),
        mask=options["mask"],
        block_mask="live",
        dtype=case.dtype,
    )
    assert tally.hbm == live.hbm


def test_causal_skips_about_half_and_a_window_nearly_all() -> None:
    options: Arguments = {
        "N": 1024,
        "d": 64,
        "M": 64 * 64 * 4,
        "block_mask": "live",
        "sizing": "paper",
    }
    full = flashsim.count("flash", N=1024, d=64, M=64 * 64 * 4, sizing="paper")
    assert (full.blocks.T_r, full.blocks.T_c) == (16, 16)
    tile = 64 * (2 * 64 + 2)
    kept = 2 * 1024 * 64
    for mask, tiles in (
        (Causal(), 136),
        (SlidingWindow(63, 0), 31),
        (KeyPadding(100), 32),
        (KeyPadding(0), 0),
    ):
        assert flashsim.count("block_sparse", mask=mask, **options).hbm.reads == kept + tiles * tile


# --------------------------------------------------------------------------------------------------
# patterns


@pytest.mark.parametrize("T", [1, 2, 4, 8, 64])
def test_butterfly_has_1_plus_log_t_tiles_a_row_and_reaches_everything(T: int) -> None:
    tiles = patterns.butterfly(T, T)
    assert (tiles.sum(axis=1) == 1 + math.log2(T)).all()
    assert np.array_equal(tiles, tiles.T)
    reach = np.eye(T, dtype=int)
    for _ in range(int(math.log2(T))):
        reach = np.minimum(reach @ tiles.astype(int), 1)
    assert reach.all()  # log T steps take every block to every other


def test_patterns_drawn() -> None:
    def drawn(tiles: Array) -> list[str]:
        return ["".join("x" if tile else "." for tile in row) for row in tiles]

    assert drawn(patterns.butterfly(4, 4)) == ["xxx.", "xx.x", "x.xx", ".xxx"]
    assert drawn(patterns.local(4, 4)) == ["xx..", "xxx.", ".xxx", "..xx"]
    assert drawn(patterns.local(3, 3, 0)) == ["x..", ".x.", "..x"]
    assert drawn(patterns.strided(4, 4, 3)) == ["x..x", "xx.x", "x.xx", "x..x"]
    assert drawn(patterns.local(2, 4, 0)) == ["x...", "..x."]


@given(T_r=st.integers(1, 40), T_c=st.integers(1, 40))
def test_patterns_of_any_grid_leave_no_row_empty_where_it_is_square_or_wider(
    T_r: int, T_c: int
) -> None:
    for tiles in (
        patterns.butterfly(T_r, T_c),
        patterns.local(T_r, T_c),
        patterns.strided(T_r, T_c, 3),
    ):
        assert tiles.shape == (T_r, T_c)
        assert tiles.dtype == bool
        if T_r == T_c:
            assert tiles.diagonal().all()
        assert tiles.any()


def test_the_peak_is_that_of_the_fullest_head() -> None:
    """The second head has no key at all, so every tile of it is skipped; the first one's peak is
    reported.
    """
    x = np.ones((2, 12, 3))
    lengths = flashsim.KeyPadding([12, 0])
    options: Arguments = {"M": 40, "block_mask": "live"}
    both = flashsim.forward("block_sparse", x, x, x, mask=lengths, **options)
    first = flashsim.forward("block_sparse", x[0], x[0], x[0], **options)
    no_key = flashsim.KeyPadding(0)
    last = flashsim.forward("block_sparse", x[1], x[1], x[1], mask=no_key, **options)
    assert both.sram.peak == first.sram.peak > last.sram.peak


def test_patterns_of_more_rows_than_columns_are_spread() -> None:
    """Each column of a tall pattern is every other one of the square's; each row of a wide one
    likewise.
    """
    for pattern in (patterns.butterfly, patterns.local):
        square = pattern(8, 8)
        assert np.array_equal(pattern(8, 4), square[:, ::2])
        assert np.array_equal(pattern(4, 8), square[::2])
    assert patterns.strided_by_root(2, 2).all()  # a stride of 1
    assert np.array_equal(patterns.strided_by_root(9, 9), patterns.strided(9, 9, 3))
    with pytest.raises(ValueError, match="T_c is '9'; expected a whole number"):
        patterns.strided_by_root(9, "9")  # type: ignore[arg-type]

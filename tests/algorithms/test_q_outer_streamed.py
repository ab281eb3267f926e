"""Two backward passes with tiles of their own: counts by hand, blocks that fill M, words of a
tree, and sizes refused.
"""

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashsim
import flashsim.attention.shapes
from flashsim import Causal, Dense, Tree, theory
from flashsim.analysis.tune import tune
from flashsim.attention.masks.rules import Mask
from flashsim.theory.problem import Tiles
from tests.helpers.cases import FEW, Arguments, same


def count(**options: Any) -> flashsim.Result:
    return flashsim.count("q_outer_streamed", direction="backward", **options)


def test_what_moves_by_hand() -> None:
    """N = 8, d = 2, B_r = 4, B_c = 2: T_c = 4 blocks of keys have Q and dO pass, T_r = 2 of
    queries K and V; Nd = 16.
    """
    tally = count(N=8, d=2, M=200, blocks=(4, 2))
    traffic = {name: (array.reads, array.writes) for name, array in tally.hbm.by_array.items()}
    assert traffic == {
        "Q": (4 * 16 + 16, 0),
        "K": (16 + 2 * 16, 0),
        "V": (16 + 2 * 16, 0),
        "O": (16, 0),
        "dO": (4 * 16 + 2 * 16, 0),
        "L": (4 * 8 + 8, 0),
        "D": (4 * 8 + 8, 8),
        "dQ": (0, 16),
        "dK": (0, 16),
        "dV": (0, 16),
    }
    # first K_j, V_j, dK̃_j, dṼ_j 4·4, a row of Q and dO, L_n, D_n, P_nj; second Q_i, dO_i, dQ̃_i
    # 3·8, L_i, D_i, k, v, P_in
    assert tally.sram.peak == max(16 + 6 + 2, 24 + 8 + 4 + 4)
    assert tally.flops.matmul == 7 * 2 * 8 * 8 * 2
    dropped = count(N=8, d=2, M=200, blocks=(1, 2), dropout_p=0.5)
    assert dropped.sram.peak == 16 + 6 + 3 * 2 + 2  # Z_nj and P_nj^dropped, and R


def test_single_rows_hug_the_diagonal() -> None:
    """Causal, N = 8: key blocks of 2 pass rows 0–7, 2–7, 4–7, 6–7; query blocks of 4 pass keys
    0–3, 0–7.
    """
    tally = count(N=8, d=2, M=200, blocks=(4, 2), causal=True)
    assert tally.hbm.by_array["Q"].reads == (8 + 6 + 4 + 2 + 8) * 2
    assert tally.hbm.by_array["K"].reads == (8 + 4 + 8) * 2
    first = 2 * (8 + 6 + 4 + 2)
    second = 4 * (4 + 8)
    assert tally.flops.matmul == 2 * 2 * (4 * first + 3 * second)


@pytest.mark.parametrize(("M", "d"), [(25_600, 64), (1000, 64), (4096, 16), (1280, 128), (64, 1)])
def test_line_2_fills_m(M: int, d: int) -> None:
    """Blocks of its own size fit M, rounded up to a multiple of 4d, and of one more neither side
    does.
    """
    tally = count(N=4096, d=d, M=M, sizing="paper")
    room = 4 * d * -(-M // (4 * d))
    B_r = tally.blocks.B_r
    B_c = tally.blocks.B_c
    assert tally.sram.peak <= room
    for blocks in ((B_r + 1, 1), (1, B_c + 1)):
        assert count(N=4096, d=d, M=2 * room, blocks=blocks).sram.peak > room


def words_by_looking(parents: list[int], N_k: int, B_r: int, B_c: int) -> int:
    """Add up, tile by tile, the words of 32 nodes that its keys lie in, of tiles with a key that
    a causal mask allows.
    """
    N_q = len(parents)
    words = 0
    prefix = N_k - N_q
    for top in range(0, N_q, B_r):
        rows = range(top, min(top + B_r, N_q))
        for left in range(0, N_k, B_c):
            keys = range(left, min(left + B_c, N_k))
            if keys[0] <= rows[-1] + prefix:
                real = {(key - prefix) // 32 for key in keys if key >= prefix}
                words += len(rows) * len(real)
    return words


@FEW
@given(data=st.data())
def test_the_words_of_a_tree_and_the_blocks_of_a_mask_in_tiles_of_one_row_and_of_one_key(
    data: st.DataObject,
) -> None:
    N_q = data.draw(st.integers(1, 36))
    prefix = data.draw(st.integers(0, 9))
    B_r = data.draw(st.integers(1, 45))
    B_c = data.draw(st.integers(1, 45))
    parents = [n - 1 - n % 2 for n in range(N_q)]
    N_k = N_q + prefix
    B_r = min(B_r, N_q)
    B_c = min(B_c, N_k)
    shape = data.draw(st.sampled_from([(N_q, N_k), (1, N_k), (N_q, 1)]))
    allowed = Dense(np.random.default_rng(0).random(shape) < 0.7)
    mask = Tree(parents) & allowed
    options: Arguments = {
        "N_q": N_q,
        "N_k": N_k,
        "d": 3,
        "M": 10**5,
        "blocks": (B_r, B_c),
        "mask": mask,
    }
    tally = count(**options)
    same(tally, theory.exact("q_outer_streamed", direction="backward", **options))
    want = words_by_looking(parents, N_k, 1, B_c) + words_by_looking(parents, N_k, B_r, 1)
    assert tally.hbm.by_array["tree"].reads == want


def test_theory_is_quick_for_a_tree_of_4096_nodes() -> None:
    options: Arguments = {
        "N": 4096,
        "d": 64,
        "M": 25_600,
        "mask": Tree([-1] * 4096),
        "direction": "backward",
    }
    begin = time.process_time()
    exact = theory.exact("q_outer_streamed", **options)
    assert time.process_time() - begin < 1
    assert exact.hbm.by_array["tree"].reads > 4096 * 128


def test_tiles_are_counted_one_by_one_no_longer_than_that_ends() -> None:
    """A tree's tiles differ: of 65,536 nodes there are 16 million of single rows, though 70
    thousand of line 1's blocks.
    """
    tree = Tree([-1] * 2**16)
    with pytest.raises(
        ValueError, match=r"65,536 × \d+ \+ \d+ × 65,536 of them, which takes about"
    ):
        count(N=2**16, d=64, M=2**17, mask=tree)


def test_tiles_that_a_matrix_unit_likes_are_not_of_one_row() -> None:
    sizes: Arguments = {"N": 16, "d": 8, "M": 300, "direction": "backward"}
    assert "q_outer_streamed" in tune(**sizes).by_loops
    assert "q_outer_streamed" not in tune(**sizes, least=2).by_loops


@pytest.mark.parametrize("mask", [None, Causal(offset=3)])
def test_the_same_part_of_s_in_tiles_of_other_sizes(mask: Mask | None) -> None:
    """All of S is all of it in tiles of any size; of what is live, tiles of one element are what
    a mask allows.
    """
    if mask is None:
        assert Tiles.of(7, 9, 3, 4).cut(2, 5).area == 63
        return
    options: Arguments = {
        "N_q": 7,
        "N_k": 9,
        "d": 1,
        "M": 10**4,
        "blocks": (1, 1),
        "mask": mask,
    }
    S = flashsim.attention.shapes.Shape(7, 9, 1, 1)
    allowed = int(mask.whole(S, ()).sum())
    assert count(**options).flops.matmul == 7 * 2 * allowed

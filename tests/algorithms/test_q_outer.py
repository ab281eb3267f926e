"""The loops exchanged: what is loaded and masked tile by tile, counts by hand, and what dQ
costs.
"""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashsim
from flashsim.algorithms import FORWARD
from flashsim.attention.masks.band import Band
from flashsim.attention.masks.paddings import KeyPadding
from flashsim.attention.masks.rules import Causal, Mask, SlidingWindow
from flashsim.attention.shapes import Blocks, Shape
from flashsim.memory.sram import Event
from tests.helpers.cases import Array, of_bound, swap


def inputs(*shape: int) -> tuple[Array, Array, Array, Array]:
    N_q, N_k, d, d_v = shape
    rng = np.random.default_rng(0)
    sizes = ((N_q, d), (N_k, d), (N_k, d_v), (N_q, d_v))
    Q, K, V, dO = (rng.normal(size=size) for size in sizes)
    return Q, K, V, dO


class Seen:
    """What a run loaded and stored, in order, and which tiles it masked."""

    def __init__(self) -> None:
        self.moved: list[str] = []
        self.masked: list[tuple[int, ...]] = []

    def __call__(self, event: Event) -> None:
        if event.kind in ("load", "store"):
            self.moved.append(event.name)
        if event.name == "S_masked_ij" and event.tile is not None and np.isneginf(event.tile).any():
            self.masked.append(tuple(index for _, index in event.loops))


def test_the_chapters_march_through_the_causal_matrix() -> None:
    """n = 16, B_q = B_k = 4 (the chapter): "Processing order for Q tile 2"."""
    Q, K, V, _ = inputs(16, 16, 4, 4)
    events = Seen()
    flashsim.forward("q_outer", Q, K, V, blocks=(4, 4), M=200, causal=True, observers=[events])
    third = events.moved.index("Q[2]")
    assert events.moved[third : events.moved.index("Q[3]")] == [
        "Q[2]",
        "K[0]",
        "V[0]",
        "K[1]",
        "V[1]",
        "K[2]",
        "V[2]",
        "O[2]",
        "L[2]",
    ]
    assert events.masked == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_counts_by_hand() -> None:
    """N = 8, d = 2, B_r = 4, B_c = 2: reads Nd + T_r·2Nd, writes Nd + N."""
    tally = flashsim.count("q_outer", N=8, d=2, M=100, blocks=(4, 2))
    assert (tally.hbm.reads, tally.hbm.writes) == (16 + 2 * 32, 16 + 8)
    # Q_i O_i 4·4, K_j V_j 2·4, S_ij 8, ℓ_i m_i m_i^new 12
    assert tally.sram.peak == 16 + 8 + 8 + 12
    causal = flashsim.count("q_outer", N=8, d=2, M=100, blocks=(4, 2), causal=True)
    assert causal.hbm.by_array["K"].reads == (2 + 4) * 2 * 2
    # more keys than queries: rows 0–3 see keys 0–5, rows 4–7 keys 0–9
    longer = flashsim.count("q_outer", N_q=8, N_k=10, d=2, M=100, blocks=(4, 2), causal=True)
    assert longer.hbm.by_array["K"].reads == (3 + 5) * 2 * 2
    # fewer keys than queries: rows 0–3 see none, rows 4–7 keys 0–3
    shorter = flashsim.count("q_outer", N_q=8, N_k=4, d=2, M=100, blocks=(4, 2), causal=True)
    assert shorter.hbm.by_array["K"].reads == 2 * 2 * 2


def test_what_dq_costs_by_hand() -> None:
    """N = 8, d = 2, tiles of 4 × 2, T_r = 2, T_c = 4: additions read and write dQ T_c times; two
    passes write it once.
    """
    shape: dict[str, Any] = {"N": 8, "d": 2, "M": 200, "blocks": (4, 2), "direction": "backward"}
    added = flashsim.count("q_outer", **shape).hbm.by_array
    twice = flashsim.count("q_outer_two_pass", **shape).hbm.by_array
    assert (added["dQ"].reads, added["dQ"].writes) == (4 * 16, 5 * 16)
    assert (twice["dQ"].reads, twice["dQ"].writes) == (0, 16)
    assert (added["K"].reads, twice["K"].reads) == (16, 16 + 2 * 16)
    assert (added["Q"].reads, twice["Q"].reads) == (4 * 16, 5 * 16)
    assert added["D"].writes == twice["D"].writes == 8
    # FLOPs: five products, and S and dP again
    area = 2 * 64 * 2
    assert flashsim.count("q_outer", **shape).flops.matmul == 5 * area
    assert flashsim.count("q_outer_two_pass", **shape).flops.matmul == 7 * area


def test_both_backward_passes_are_of_one_forward_pass() -> None:
    Q, K, V, dO = inputs(13, 22, 4, 3)
    run = flashsim.forward("q_outer", Q, K, V, M=300, causal=True, dropout_p=0.3, seed=5)
    one = flashsim.backward("q_outer", run, dO)
    other = flashsim.backward("q_outer_two_pass", run, dO)
    for part in ("dQ", "dK", "dV"):
        assert np.allclose(getattr(one, part), getattr(other, part), rtol=0, atol=1e-13)
    with pytest.raises(ValueError, match="run was made by 'q_outer'"):
        flashsim.backward("flash", run, dO)
    with pytest.raises(
        ValueError, match="'q_outer_two_pass' is a backward pass only, of 'q_outer'"
    ):
        flashsim.forward("q_outer_two_pass", Q, K, V)
    plain = flashsim.forward("flash", Q, K, V, M=300)
    with pytest.raises(ValueError, match="run was made by 'flash'"):
        flashsim.backward("q_outer_two_pass", plain, dO)


@pytest.mark.parametrize(
    ("M", "d", "b"), [(25_600, 64, 76), (1000, 64, 3), (10, 64, 1), (4096, 16, 39)]
)
def test_two_passes_take_square_tiles_that_fill_m(M: int, d: int, b: int) -> None:
    """b² + 4bd ≤ M, M rounded up to a multiple of 4d, and b + 1 is too large."""
    tally = flashsim.count(
        "q_outer_two_pass", N=4096, d=d, M=max(M, d), direction="backward", sizing="paper"
    )
    assert tally.blocks == Blocks(b, b, N_q=4096, N_k=4096)
    room = 4 * d * -(-max(M, d) // (4 * d))
    assert (b + 1) ** 2 + 4 * (b + 1) * d > room
    assert b == 1 or b * b + 4 * b * d <= room


def taken_for_full(mask: Mask, shape: Shape, B_r: int, B_c: int) -> list[bool]:
    """Return, for each tile, whether the mask is wrong on whether it is full."""
    result = []
    allowed = mask.whole(shape, ())
    for top, left in itertools.product(range(0, shape.N_q, B_r), range(0, shape.N_k, B_c)):
        bottom = min(top + B_r, shape.N_q)
        right = min(left + B_c, shape.N_k)
        rows, row_ends, cols, col_ends = (np.array([n]) for n in (top, bottom, left, right))
        text = mask.full(rows, row_ends, cols, col_ends, shape, ())[0]
        result.append(bool(text) != bool(allowed[top:bottom, left:right].all()))
    return result


@given(data=st.data())
def test_full_tiles_are_those_where_positions_allow_all(data: st.DataObject) -> None:
    N_q, N_k, B_r, B_c = (data.draw(st.integers(1, 20)) for _ in range(4))
    length = data.draw(st.integers(0, N_k))
    left = data.draw(st.integers(-1, 9))
    right = data.draw(st.integers(-1, 9))
    masks = (
        Causal(),
        KeyPadding(length),
        SlidingWindow(left, right),
        Causal() & KeyPadding(length),
        SlidingWindow(-1, -1),
    )
    mask = data.draw(st.sampled_from(masks))
    shape = Shape(N_q, N_k, 1, 1)
    assert not any(taken_for_full(mask, shape, B_r, B_c))


def test_folding_counts_the_flops_of_masked_tiles_alone() -> None:
    """N = 16 in tiles of 4, causal: 10 live tiles, of which the 4 on the diagonal are masked,
    one operation an element.
    """
    none, causal, window = (
        flashsim.count("q_outer", N=16, d=4, M=200, blocks=(4, 4), mask=mask).flops.other
        for mask in (None, Causal(), SlidingWindow(-1, -1) & Causal())
    )
    by_row = [
        flashsim.count("q_outer", N_q=4, N_k=4 * n, d=4, M=200, blocks=(4, 4)).flops.other
        for n in (1, 2, 3, 4)
    ]
    assert none == 4 * by_row[3]
    assert causal == window == sum(by_row) + 4 * 16


def test_flops_are_those_of_a_run_tile_by_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folded turns and all turns, for every algorithm that skips: equal operations, equal
    counts.
    """
    arguments: list[tuple[str, dict[str, Any]]] = [
        (
            name,
            {
                "N_q": 29,
                "N_k": 41,
                "d": 4,
                "M": 500,
                "blocks": (3, 5),
                "mask": mask,
                "direction": direction,
            },
        )
        for direction, names in (
            ("forward", ("q_outer", "split_kv")),
            ("backward", ("q_outer", "q_outer_two_pass", "q_outer_streamed")),
        )
        for name in names
        for mask in (Causal(), KeyPadding(18), SlidingWindow(11, 4), Causal() & KeyPadding(33))
    ]
    folded = [flashsim.count(name, **options) for name, options in arguments]
    monkeypatch.setattr(Causal, "folds", False)
    monkeypatch.setattr(Mask, "folds", False)
    unfolded = [flashsim.count(name, **options) for name, options in arguments]
    for one, other in zip(folded, unfolded, strict=True):
        assert (one.hbm, one.sram, one.flops) == (other.hbm, other.sram, other.flops)


@pytest.mark.parametrize(
    "after", ["col_ends + 1 - rows, cols", "cols - rows, cols", "cols - row_ends, cols"]
)
def test_a_tile_that_is_wrongly_taken_for_full_or_not_is_noticed(
    after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any(taken_for_full(Causal(), Shape(13, 22, 1, 1), 3, 5))
    swap(Band.full, "col_ends - rows, cols", after, monkeypatch)
    assert any(taken_for_full(Causal(), Shape(13, 22, 1, 1), 3, 5))


def test_a_diagonal_tile_that_is_taken_for_full_makes_o_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Q, K, V, _ = inputs(13, 22, 4, 3)
    right = flashsim.forward("q_outer", Q, K, V, M=300, blocks=(3, 5), causal=True).O
    swap(Band.full, "col_ends - rows, cols", "cols - rows, cols", monkeypatch)
    wrong = flashsim.forward("q_outer", Q, K, V, M=300, blocks=(3, 5), causal=True).O
    assert abs(wrong - right).max() > 0.01


@pytest.mark.parametrize(
    ("bug", "before", "after"),
    [
        ("off by one", "cols - row_ends", "cols - row_ends + 1"),
        ("lengths taken for equal", "cols - row_ends", "cols - row_ends + shape.N_k - shape.N_q"),
        ("by the tile's first row", "cols - row_ends", "cols - rows - 1"),
    ],
)
@pytest.mark.parametrize(
    "name", [name for name, a in FORWARD.items() if {"live", "splits"} & {*a.parts}]
)
def test_a_causal_skip_with_a_wrong_bound_is_noticed(
    name: str, bug: str, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N_q ≠ N_k, so that the bound has to be shifted: O is wrong, and not only the counts."""
    Q, K, V, _ = inputs(13, 22, 4, 3)
    allowed = np.tri(13, 22, 9, dtype=bool)

    def right() -> bool:
        run = flashsim.forward(name, Q, K, V, M=300, blocks=(3, 5), causal=True)
        bound = flashsim.reference.error_bound(
            Q, K, V, mask=allowed, **flashsim.reference.rounding(name, run.blocks)
        )
        return of_bound(run.O, flashsim.reference.attention(Q, K, V, mask=allowed), bound) <= 1

    assert right()
    swap(Band.live, before, after, monkeypatch)
    assert not right()

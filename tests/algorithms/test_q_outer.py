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
from tests.helpers.cases import Arguments, Array, of_bound, swap, tile_ends


def inputs(*shape: int) -> tuple[Array, Array, Array, Array]:
    N_q, N_k, d, d_v = shape
    rng = np.random.default_rng(0)
    Q = rng.normal(size=(N_q, d))
    K = rng.normal(size=(N_k, d))
    V = rng.normal(size=(N_k, d_v))
    dO = rng.normal(size=(N_q, d_v))
    return Q, K, V, dO


class Seen:
    """What a run loaded and stored, in order, and which tiles it masked."""

    def __init__(self) -> None:
        self.moved: list[str] = []
        self.masked: list[tuple[int, ...]] = []

    def __call__(self, event: Event) -> None:
        if event.kind in ("load", "store"):
            self.moved.append(event.name)
        if event.name != "S_masked_ij" or event.tile is None:
            return
        if np.isneginf(event.tile).any():
            self.masked.append(tuple(index for _, index in event.loops))


def test_the_chapters_march_through_the_causal_matrix() -> None:
    """n = 16, B_q = B_k = 4 (the chapter): "Processing order for Q tile 2"."""
    Q, K, V, _ = inputs(16, 16, 4, 4)
    events = Seen()
    options: Arguments = {"blocks": (4, 4), "M": 200, "causal": True}
    flashsim.forward("q_outer", Q, K, V, observers=[events], **options)
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
    options: Arguments = {"d": 2, "M": 100, "blocks": (4, 2)}
    tally = flashsim.count("q_outer", N=8, **options)
    assert tally.hbm.reads == 16 + 2 * 32
    assert tally.hbm.writes == 16 + 8
    # Q_i O_i 4·4, K_j V_j 2·4, S_ij 8, ℓ_i m_i m_i^new 12
    assert tally.sram.peak == 16 + 8 + 8 + 12
    causal = flashsim.count("q_outer", N=8, causal=True, **options)
    assert causal.hbm.by_array["K"].reads == (2 + 4) * 2 * 2
    # more keys than queries: rows 0–3 see keys 0–5, rows 4–7 keys 0–9
    longer = flashsim.count("q_outer", N_q=8, N_k=10, causal=True, **options)
    assert longer.hbm.by_array["K"].reads == (3 + 5) * 2 * 2
    # fewer keys than queries: rows 0–3 see none, rows 4–7 keys 0–3
    shorter = flashsim.count("q_outer", N_q=8, N_k=4, causal=True, **options)
    assert shorter.hbm.by_array["K"].reads == 2 * 2 * 2


def test_what_dq_costs_by_hand() -> None:
    """N = 8, d = 2, tiles of 4 × 2, T_r = 2, T_c = 4: additions read and write dQ T_c times; two
    passes write it once.
    """
    shape: Arguments = {"N": 8, "d": 2, "M": 200, "blocks": (4, 2)}
    shape["direction"] = "backward"
    added = flashsim.count("q_outer", **shape).hbm.by_array
    twice = flashsim.count("q_outer_two_pass", **shape).hbm.by_array
    assert added["dQ"].reads == 4 * 16
    assert added["dQ"].writes == 5 * 16
    assert twice["dQ"].reads == 0
    assert twice["dQ"].writes == 16
    assert added["K"].reads == 16
    assert twice["K"].reads == 16 + 2 * 16
    assert added["Q"].reads == 4 * 16
    assert twice["Q"].reads == 5 * 16
    assert added["D"].writes == twice["D"].writes == 8
    # FLOPs: five products, and S and dP again
    area = 2 * 64 * 2
    assert flashsim.count("q_outer", **shape).flops.matmul == 5 * area
    assert flashsim.count("q_outer_two_pass", **shape).flops.matmul == 7 * area


def test_both_backward_passes_are_of_one_forward_pass() -> None:
    Q, K, V, dO = inputs(13, 22, 4, 3)
    options: Arguments = {"M": 300, "causal": True, "dropout_p": 0.3, "seed": 5}
    run = flashsim.forward("q_outer", Q, K, V, **options)
    one = flashsim.backward("q_outer", run, dO)
    other = flashsim.backward("q_outer_two_pass", run, dO)
    for part in ("dQ", "dK", "dV"):
        dX_one_pass = getattr(one, part)
        dX_two_passes = getattr(other, part)
        assert np.allclose(dX_one_pass, dX_two_passes, rtol=0, atol=1e-13)
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
    options: Arguments = {"direction": "backward", "sizing": "paper"}
    tally = flashsim.count("q_outer_two_pass", N=4096, d=d, M=max(M, d), **options)
    assert tally.blocks == Blocks(b, b, N_q=4096, N_k=4096)
    room = 4 * d * -(-max(M, d) // (4 * d))
    assert (b + 1) ** 2 + 4 * (b + 1) * d > room
    assert b == 1 or b * b + 4 * b * d <= room


def taken_for_full(mask: Mask, shape: Shape, B_r: int, B_c: int) -> list[bool]:
    """Return, for each tile, whether the mask is wrong on whether it is full."""
    mistakes = []
    allowed = mask.whole(shape, ())
    tops = range(0, shape.N_q, B_r)
    lefts = range(0, shape.N_k, B_c)
    for top, left in itertools.product(tops, lefts):
        bottom = min(top + B_r, shape.N_q)
        right = min(left + B_c, shape.N_k)
        ends = tile_ends(top, bottom, left, right)
        (full,) = mask.full(*ends, shape, ())
        all_allowed = allowed[top:bottom, left:right].all()
        mistakes.append(bool(full) != bool(all_allowed))
    return mistakes


@given(data=st.data())
def test_full_tiles_are_those_where_positions_allow_all(data: st.DataObject) -> None:
    N_q = data.draw(st.integers(1, 20))
    N_k = data.draw(st.integers(1, 20))
    B_r = data.draw(st.integers(1, 20))
    B_c = data.draw(st.integers(1, 20))
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

    def flops(N_k: int, N_q: int = 16, mask: Mask | None = None) -> int:
        sizes: Arguments = {"N_q": N_q, "N_k": N_k, "d": 4, "M": 200}
        return flashsim.count("q_outer", **sizes, blocks=(4, 4), mask=mask).flops.other

    window = SlidingWindow(-1, -1) & Causal()
    row_of_tiles = [flops(4 * tiles, N_q=4) for tiles in (1, 2, 3, 4)]
    assert flops(16) == 4 * row_of_tiles[3]
    assert flops(16, mask=Causal()) == sum(row_of_tiles) + 4 * 16
    assert flops(16, mask=window) == sum(row_of_tiles) + 4 * 16


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
        assert one.hbm == other.hbm
        assert one.sram == other.sram
        assert one.flops == other.flops


@pytest.mark.parametrize(
    "after", ["col_ends + 1 - rows, cols", "cols - rows, cols", "cols - row_ends, cols"]
)
def test_a_tile_that_is_wrongly_taken_for_full_or_not_is_noticed(
    after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = Shape(13, 22, 1, 1)
    assert not any(taken_for_full(Causal(), shape, 3, 5))
    swap(Band.full, "col_ends - rows, cols", after, monkeypatch)
    assert any(taken_for_full(Causal(), shape, 3, 5))


def test_a_diagonal_tile_that_is_taken_for_full_makes_o_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Q, K, V, _ = inputs(13, 22, 4, 3)
    options: Arguments = {"M": 300, "blocks": (3, 5), "causal": True}
    right = flashsim.forward("q_outer", Q, K, V, **options).O
    swap(Band.full, "col_ends - rows, cols", "cols - rows, cols", monkeypatch)
    wrong = flashsim.forward("q_outer", Q, K, V, **options).O
    assert abs(wrong - right).max() > 0.01


SKIPPING = [name for name, program in FORWARD.items() if {"live", "splits"} & {*program.parts}]


@pytest.mark.parametrize(
    ("bug", "before", "after"),
    [
        ("off by one", "cols - row_ends", "cols - row_ends + 1"),
        ("lengths taken for equal", "cols - row_ends", "cols - row_ends + shape.N_k - shape.N_q"),
        ("by the tile's first row", "cols - row_ends", "cols - rows - 1"),
    ],
)
@pytest.mark.parametrize("name", SKIPPING)
def test_a_causal_skip_with_a_wrong_bound_is_noticed(
    name: str, bug: str, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N_q ≠ N_k, so that the bound has to be shifted: O is wrong, and not only the counts."""
    Q, K, V, _ = inputs(13, 22, 4, 3)
    allowed = np.tri(13, 22, 9, dtype=bool)

    def right() -> bool:
        options: Arguments = {"M": 300, "blocks": (3, 5), "causal": True}
        run = flashsim.forward(name, Q, K, V, **options)
        rounded = flashsim.reference.rounding(name, run.blocks)
        bound = flashsim.reference.error_bound(Q, K, V, mask=allowed, **rounded)
        want = flashsim.reference.attention(Q, K, V, mask=allowed)
        return of_bound(run.O, want, bound) <= 1

    assert right()
    swap(Band.live, before, after, monkeypatch)
    assert not right()

"""Closed forms equal counts and runs, field by field; formulas evaluate to them; the theorems'
constants hold.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashsim
from flashsim import theory
from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.attention.masks.band import Band
from flashsim.attention.masks.paddings import KeyPadding
from flashsim.attention.masks.rules import All, Causal, Mask, SlidingWindow
from flashsim.attention.shapes import Blocks, Shape
from flashsim.theory.formulas import Mean, evaluated
from flashsim.theory.live import points
from flashsim.theory.problem import Tiles, live_tiles
from tests.helpers.cases import Arguments, combined_masks, same

PASSES_BY_NAME = {"forward": FORWARD, "backward": BACKWARD}
PASSES = [("forward", name) for name in FORWARD] + [("backward", name) for name in BACKWARD]


# --------------------------------------------------------------------------------------------------
# live tiles


def live_by_looking(mask: Mask, N_q: int, N_k: int, blocks: Blocks, group: int) -> Any:
    """(T_r, T_c), True where a tile has an element that positions allow, as the mask says of
    each.
    """
    positions = np.arange(N_q) // group
    shape = Shape(N_q // group, N_k, 1, 1)
    allowed = mask.allows(positions, np.arange(N_k), shape, ())
    live = np.zeros((blocks.T_r, blocks.T_c), bool)
    for i, j in itertools.product(range(blocks.T_r), range(blocks.T_c)):
        rows = slice(i * blocks.B_r, (i + 1) * blocks.B_r)
        columns = slice(j * blocks.B_c, (j + 1) * blocks.B_c)
        live[i, j] = allowed[rows, columns].any()
    return live


@given(data=st.data())
def test_live_tiles_are_those_with_a_position_that_all_masks_allow(data: st.DataObject) -> None:
    """In any run of columns, for interleaved rows of a group too."""
    N_q = data.draw(st.integers(1, 25))
    N_k = data.draw(st.integers(1, 25))
    B_r = data.draw(st.integers(1, 25))
    B_c = data.draw(st.integers(1, 25))
    mask = data.draw(combined_masks(N_q, N_k)) or All()
    group = data.draw(st.sampled_from((1, 1, 2, 3)))
    N_q *= group
    B_r = min(B_r, N_q)
    B_c = min(B_c, N_k)
    blocks = Blocks(B_r, B_c, N_q=N_q, N_k=N_k)
    want = live_by_looking(mask, N_q, N_k, blocks, group)
    live = live_tiles(mask, N_q, N_k, blocks, group)
    first = data.draw(st.integers(0, blocks.T_c))
    end = data.draw(st.integers(first, blocks.T_c))
    there = want[:, first:end]
    in_last_row = there[-1].sum()
    assert live(first, end) == (there[:-1].sum(), in_last_row)


def test_live_tiles_of_padding_and_a_left_window_and_of_2000_by_2000() -> None:
    # keys 0 to 8; rows 8 to 15 of keys 8 to 15 have only key 8, seen by 8, 9, 10
    mask = KeyPadding(9) & SlidingWindow(2, 0)
    drawn: Arguments = {
        "N": 16,
        "d": 2,
        "M": 10_000,
        "blocks": (2, 8),
        "mask": mask,
        "block_mask": "live",
    }
    same(flashsim.count("block_sparse", **drawn), theory.exact("block_sparse", **drawn))
    drawn = {
        "N": 2**17,
        "d": 64,
        "M": 2**20,
        "blocks": (66, 66),
        "causal": True,
        "block_mask": "live",
    }
    want = theory.exact("block_sparse", **drawn)
    assert want.blocks.T_r == want.blocks.T_c == 1986
    triangle = 1986 * 1987 // 2
    last = 2**17 - 1985 * 66
    assert want.hbm.by_array["l"].reads == (triangle - 1986) * 66 + 1986 * last


def test_points_under_a_line() -> None:
    ranges = (range(0, 12, 3), range(0, 15, 4), range(1, 9, 2), range(9))
    for a, b, m, n in itertools.product(*ranges):
        want = sum((a * j + b) // m for j in range(n))
        assert points(a, b, m, n) == want


# ----------------------------------------------------------------------------------------------
# derived with pencil


def accesses(exact: theory.Exact) -> dict[str, tuple[int, int]]:
    arrays = exact.hbm.by_array
    return {name: (array.reads, array.writes) for name, array in arrays.items()}


def test_algorithm_4_by_hand() -> None:
    """N = 8, d = 2, M = 16: B_c = ⌈16/8⌉ = 2, B_r = min(2, 2), T_c = 4, Nd = 16."""
    sizes: Arguments = {"N": 8, "d": 2, "M": 16, "sizing": "paper"}
    exact = theory.exact("flash", direction="backward", **sizes)
    assert exact.blocks == Blocks(2, 2, N_q=8, N_k=8)
    assert exact.reads == 2 * 16 + 4 * (4 * 16 + 2 * 8) == 352
    assert exact.init_writes == 3 * 16
    assert exact.writes == 3 * 16 + 4 * 16 + 2 * 16 == 144
    # K_j V_j dK̃_j dṼ_j 4·4, Q_i O_i dO_i dQ_i 4·4, P_ij and dP_ij 2·4, ℓ_i m_i D_i 3·2
    assert exact.sram.peak == 16 + 16 + 8 + 6
    # with dropout: Z_ij and P_ij^dropped 2·4, R 2
    dropped = theory.exact("flash", direction="backward", dropout_p=0.1, **sizes)
    assert (dropped.reads, dropped.sram.peak) == (354, 56)


def test_algorithm_5_by_hand() -> None:
    """N_q = 5 in 2, 2, 1 and N_k = 7 in 3, 3, 1; tiles 2×3, 2×1, 1×3, 1×1 are computed: 2 + 2 +
    1 + 1 = 6 rows.
    """
    block_mask = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 1]])
    shape: Arguments = {"N_q": 5, "N_k": 7, "d": 2, "d_v": 3}
    shape |= {"M": 1000, "blocks": (2, 3)}
    mask = np.ones((5, 7), bool)
    exact = theory.exact("block_sparse", **shape, block_mask=block_mask, mask=mask)
    assert accesses(exact) == {
        "Q": (6 * 2, 0),
        "K": (14, 0),
        "V": (21, 0),
        "mask": (6 + 2 + 3 + 1, 0),  # the tiles' elements
        "O": (6 * 3, 15 + 6 * 3),
        "l": (6, 5 + 6),
        "m": (6, 5 + 6),
    }
    assert exact.sram.peak == (2 + 3) * 5 + 6 + 6 * 2 + 6  # and the mask's 2 × 3
    assert exact.matmul == 2 * 12 * 5
    backward = theory.exact(
        "block_sparse", **shape, block_mask=np.zeros((3, 3)), direction="backward"
    )
    assert accesses(backward)["dV"] == (0, 2 * 21)
    assert accesses(backward)["dQ"] == (0, 10)
    assert backward.sram.peak == 2 * 3 * 5  # K_j, V_j, dK̃_j, dṼ_j


def test_masks_in_hbm_by_hand() -> None:
    """5 × 7 in tiles of 2 × 3: 3 × 3 of them. A row of keys is read once for each of 3 row
    blocks, and so on.
    """
    shape: Arguments = {"N_q": 5, "N_k": 7, "d": 2, "M": 1000, "blocks": (2, 3)}
    for mask, reads, held in (
        ((5, 7), 35, 6),
        ((1, 7), 3 * 7, 3),
        ((5, 1), 3 * 5, 2),
        ((1, 1), 9, 1),
    ):
        array = np.ones(mask, bool)
        exact = theory.exact("flash", **shape, mask=array)
        assert exact.hbm.by_array["mask"].reads == reads
        unmasked = theory.exact("flash", **shape)
        assert exact.sram.peak == unmasked.sram.peak + held
        twice = theory.exact("memory_efficient", **shape, mask=array)
        assert twice.hbm.by_array["mask"].reads == 2 * reads
    assert theory.exact("flash", **shape, causal=True) == theory.exact("flash", **shape)
    # a pass over S: M = 1000 holds it whole
    standard = theory.exact("standard", **shape, causal=True)
    assert accesses(standard)["S"] == (70, 70)


def test_algorithm_3_by_hand() -> None:
    """N = 4, d = 2, M = 100: one panel; rows of P and dP fit, so everything is read once for
    each product.
    """
    exact = theory.exact("standard", N=4, d=2, M=100, direction="backward")
    assert exact.reads == 5 * 8 + 5 * 16
    assert exact.writes == 3 * 8 + 2 * 16
    assert (exact.reads, exact.writes) == theory.proof_accounting(4, 2, "backward")
    # line 3 holds 4 rows of P, dP and a sum: 4·9; the products a panel, a block and a tile: (4 +
    # 2)·2 + 4·2
    assert exact.sram.peak == 36
    # M = 8 < 2·4 + 1: P and dP are read twice, in pieces of ⌊7/2⌋ = 3; B = ⌈8/8⌉ = 1, so four
    # panels
    small = theory.exact("standard", N=4, d=2, M=8, direction="backward")
    of_operands = 2 * 4 * 8 + 2 * 4 * 8 + 8
    of_scores = (3 + 2 + 2) * 16
    assert small.reads == of_operands + of_scores
    assert small.sram.peak == 7


def test_appendix_b_by_hand() -> None:
    """N_q = 3, N_k = 4, d = 2, d_v = 1, sums of two terms at a time."""
    shape: Arguments = {"N_q": 3, "N_k": 4, "d": 2, "d_v": 1, "M": 1000}
    backward = theory.exact("memory_efficient", **shape, blocks=(1, 2), direction="backward")
    assert accesses(backward) == {
        "Q": (4 * 6 + 6 + 4 * 6, 0),  # equations 3, 5, 6
        "K": (8 + 3 * 8 + 8, 0),
        "V": (3 * 4 + 4, 0),  # 5, 6
        "O": (3, 0),  # 4
        "dO": (4 * 3 + 3 + 3 + 4 * 3, 0),
        "L": (4 * 3 + 3 + 4 * 3, 0),
        "D": (3 + 4 * 3, 3),
        "dQ": (0, 6),
        "dK": (0, 8),
        "dV": (0, 4),
    }
    # (6): k v dk, and twice q do, L D, S dP
    assert backward.sram.peak == 2 + 1 + 2 + 2 * (3 + 2 + 2)
    rabe = theory.exact("rabe_staats", **shape, blocks=(2, 2))
    assert accesses(rabe)["O_parts"] == (6, 6)
    assert accesses(rabe)["l_parts"] == accesses(rabe)["m_parts"] == (6, 6)
    assert rabe.hbm.extra == 2 * 3 + 2 * 3 * (1 + 2)


# --------------------------------------------------------------------------------------------------
# formulas


@pytest.mark.parametrize(("direction", "name"), PASSES)
@given(data=st.data())
def test_formulas_evaluate_to_the_counts(direction: str, name: str, data: st.DataObject) -> None:
    N_q = data.draw(st.integers(1, 60))
    N_k = data.draw(st.integers(1, 60))
    d = data.draw(st.integers(1, 9))
    d_v = data.draw(st.integers(1, 9))
    about_a_row = st.sampled_from([N_k + 1, N_k + 2, 2 * N_k, 2 * N_k + 1])  # where one fits
    M = max(d, d_v, data.draw(st.integers(1, 300) | about_a_row))
    shape: Arguments = {"N_q": N_q, "N_k": N_k, "d": d, "d_v": d_v, "M": M}
    tally = flashsim.count(name, **shape, direction=direction, sizing="paper")
    values = theory.symbols(**shape, blocks=tally.blocks, direction=direction, name=name)
    own_symbols = theory.form_of(name, direction).meanings.keys()
    assert values.keys() == theory.SYMBOLS.keys() | own_symbols
    formulas = theory.formulas(name, direction).items()
    evaluated = {
        array: tuple(eval(text, {}, values) for text in texts) for array, texts in formulas
    }
    counted = tally.hbm.by_array
    assert evaluated == {name: (array.reads, array.writes) for name, array in counted.items()}


@pytest.mark.parametrize(("direction", "name"), PASSES)
@given(data=st.data())
def test_extra_memory_and_products(direction: str, name: str, data: st.DataObject) -> None:
    N_q = data.draw(st.integers(1, 60))
    N_k = data.draw(st.integers(1, 60))
    d = data.draw(st.integers(1, 60))
    d_v = data.draw(st.integers(1, 60))
    M = 60
    dropout = "dropout" in PASSES_BY_NAME[direction][name].parts and data.draw(st.booleans())
    shape: Arguments = {"N_q": N_q, "N_k": N_k, "d": d, "d_v": d_v}
    tally = flashsim.count(
        name, **shape, M=M, sizing="paper", direction=direction, dropout_p=0.5 * dropout
    )
    blocks: dict[str, int] = {"B_r": tally.blocks.B_r, "B_c": tally.blocks.B_c}
    assert tally.hbm.extra == theory.extra_memory(
        name, **shape, **blocks, dropout=dropout, direction=direction
    )
    assert tally.flops.matmul == theory.matmul_flops(
        N_q, N_k, d, d_v, name=name, direction=direction
    )
    assert tally.hbm.accesses >= theory.compulsory(N_q, N_k, d, d_v, direction)
    standard = (3, 5, 2, 2, 1)
    assert theory.extra_memory("standard", *standard) == 30
    assert theory.extra_memory("standard", *standard, False) == 30
    assert theory.extra_memory("standard", *standard, True) == 60


# --------------------------------------------------------------------------------------------------
# constants


def in_range() -> Iterator[tuple[int, int, int]]:
    """Yield (N, d, M) over d ≤ M ≤ Nd: powers of two and their neighbours, M at both ends, and
    where ⌈M/4d⌉ steps.
    """
    powers = (*range(7), 8, 11, 14, 20)
    for power, d in itertools.product(powers, (1, 2, 3, 16, 64, 257)):
        for N in {max(2**power + off, 1) for off in (-1, 0, 1)}:
            rooms = {d, d + 1, 4 * d, 4 * d + 1, d * d}
            rooms |= {N * d // 4, N * d - 1, N * d}
            rooms |= {int(M) for M in np.geomspace(d, N * d, 9)}
            for M in sorted(rooms):
                if d <= M <= N * d:
                    yield N, d, M


def holds(
    name: str,
    direction: str,
    expected: Callable[..., float],
    constants: Callable[[int], tuple[float, float]],
) -> None:
    for N, d, M in in_range():
        ratio = theory.exact(
            name, N=N, d=d, M=M, direction=direction, sizing="paper"
        ).accesses / expected(N, d, M)
        low, high = constants(d)
        assert low <= ratio <= high, (N, d, M)


def test_theorems_2_and_5_for_flash_attention() -> None:
    holds("flash", "forward", theory.theorem_2_flash, theory.flash_constants)
    holds("flash", "backward", theory.theorem_5_flash, theory.flash_backward_constants)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_theorem_2_for_the_loops_exchanged(direction: str) -> None:
    holds(
        "q_outer",
        direction,
        theory.theorem_2_flash,
        lambda d: theory.q_outer_constants(d, direction),
    )


def test_theorems_2_and_5_for_standard_attention_with_small_m() -> None:
    def expected(N: int, d: int, M: int) -> float:
        return theory.theorem_5_flash(N, d, M) + theory.theorem_5_standard(N, d)

    holds("standard", "forward", expected, lambda d: theory.standard_small_M_constants())
    holds("standard", "backward", expected, lambda d: theory.standard_backward_small_M_constants())


def test_theorems_2_and_5_for_standard_attention() -> None:
    tried = 0
    for N, d, M in in_range():
        for direction, row, constants in (
            ("forward", N + 2, theory.standard_constants()),
            ("backward", 2 * N + 1, theory.standard_backward_constants()),
        ):
            for room in {M, max(d * d, row)}:  # the least M of the claim, which may exceed Nd
                if room >= d * d and room >= row:
                    ratio = theory.exact(
                        "standard", N=N, d=d, M=room, direction=direction, sizing="paper"
                    ).accesses
                    low, high = constants
                    assert low <= ratio / theory.theorem_5_standard(N, d) <= high, (
                        N,
                        d,
                        room,
                        direction,
                    )
                    tried += 1
    assert tried > 1000


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_proposition_4_at_the_corners_of_all_block_masks(direction: str) -> None:
    """The ratio is a quotient of linear functions of how many tiles are computed in the last row,
    and in the others.

    So its extremes over all block masks are where each is none or all.
    """
    for N, d, M in in_range():
        B_c = -(-M // (4 * d))
        blocks = Blocks(min(B_c, d), B_c, N_q=N, N_k=N)
        own = theory.exact("block_sparse", N=N, d=d, M=M, sizing="paper").blocks
        assert own == blocks
        low, high = theory.block_sparse_constants(d, direction)
        for last, others in itertools.product((False, True), repeat=2):
            upper_blocks = others * (blocks.T_r - 1)
            z = last * blocks.T_c + upper_blocks * blocks.T_c
            last_rows = last * (N - (blocks.T_r - 1) * blocks.B_r)
            A = blocks.T_c * (last_rows + upper_blocks * blocks.B_r)
            if direction == "forward":
                traffic = 3 * N * d + 2 * N + A * (3 * d + 4)
            else:
                traffic = 7 * N * d + A * (5 * d + 2)
            if blocks.T_r * blocks.T_c <= 1000:
                rows = np.array([others] * (blocks.T_r - 1) + [last])
                mask = np.repeat(rows[:, None], blocks.T_c, axis=1)
                exact = theory.exact(
                    "block_sparse",
                    N=N,
                    d=d,
                    M=M,
                    block_mask=mask,
                    direction=direction,
                    sizing="paper",
                )
                assert exact.accesses == traffic
            expected = theory.proposition_4(N, d, M, z / (blocks.T_r * blocks.T_c))
            assert low <= traffic / expected <= high, (N, d, M, last, others)


@given(data=st.data())
def test_proposition_4_for_any_block_mask(data: st.DataObject) -> None:
    N = data.draw(st.integers(1, 200))
    d = data.draw(st.integers(1, 40))
    M = data.draw(st.integers(d, N * d))
    seed = data.draw(st.integers(0, 99))
    density = data.draw(st.floats(0, 1))
    direction = data.draw(st.sampled_from(("forward", "backward")))
    blocks = theory.exact("block_sparse", N=N, d=d, M=M, sizing="paper").blocks
    mask = np.random.default_rng(seed).random((blocks.T_r, blocks.T_c)) < density
    options: Arguments = {"block_mask": mask, "direction": direction, "sizing": "paper"}
    tally = flashsim.count("block_sparse", N=N, d=d, M=M, **options)
    low, high = theory.block_sparse_constants(d, direction)
    expected = theory.proposition_4(N, d, M, float(mask.mean()))
    assert low <= tally.hbm.accesses / expected <= high


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_proposition_3_flash_stays_near_what_must_be_moved(direction: str) -> None:
    attained = 0
    for N, d in {(N, d) for N, d, _ in in_range()}:
        for M in {-(-N * d // 4), -(-N * d // 3), N * d // 2, N * d - 1, N * d}:
            if d <= M <= N * d <= 4 * M:
                exact = theory.exact("flash", N=N, d=d, M=M, direction=direction, sizing="paper")
                floor = theory.compulsory(N, N, d, d, direction)
                constant = theory.flash_over_compulsory_constant(d, direction)
                assert floor <= exact.accesses <= constant * floor, (N, d, M)
                least = Fraction(M, N * d)
                constant = theory.flash_over_compulsory_constant(d, direction, least)
                attained += exact.accesses == constant * floor
                assert exact.accesses <= constant * floor, (N, d, M)
    assert attained > 100  # as T_c = ⌈4Nd/M⌉ wherever 4d divides M, and often besides
    all_at_once = theory.flash_over_compulsory_constant(64, c=1.0)
    assert all_at_once == (3 + 2 / 64 + 4 * (3 + 4 / 64)) / 4
    backward = theory.block_sparse_constants(64, "backward")
    assert backward == (28 / 9, (5 + 2 / 64) * 25 / 4)
    # a float's third is less, and would make it 13
    third = theory.flash_over_compulsory_constant(64, c=Fraction(1, 3))
    one_pass = 3 + Fraction(4, 64)
    assert third == (3 + Fraction(2, 64) + 12 * one_pass) / 4
    with pytest.raises(ValueError, match="0 < c"):
        theory.flash_over_compulsory_constant(64, c=2.0)


# --------------------------------------------------------------------------------------------------
# refusals


class FirstHalf(Mask):
    """A mask of one's own."""

    def allows(self, rows: Any, cols: Any, shape: Shape, head: Any) -> Any:
        return np.broadcast_to(cols < shape.N_k // 2, (len(rows), len(cols)))


class FirstHalfBand(FirstHalf):
    """The same, which says what it allows as a band."""

    def live(
        self, rows: Any, row_ends: Any, cols: Any, col_ends: Any, shape: Shape, head: Any
    ) -> Any:
        tiles = np.broadcast_shapes(rows.shape, cols.shape)
        return np.broadcast_to(cols < shape.N_k // 2, tiles)

    def band(self, shape: Shape, head: Any) -> Band:
        return Band(None, None, shape.N_k // 2)


@pytest.mark.parametrize("gqa", ["separate", "grouped"])
def test_a_mask_that_is_a_band_needs_nothing_of_theory(gqa: str) -> None:
    mask = FirstHalfBand() & Causal()
    allowed = np.tri(23, dtype=bool) & (np.arange(23) < 11)
    drawn: Arguments = {
        "N": 23,
        "d": 2,
        "M": 10_000,
        "blocks": (2, 5),
        "block_mask": "live",
        "heads": 4,
    }
    exact = theory.exact("block_sparse", **drawn, kv_heads=2, gqa=gqa, mask=mask)
    tally = flashsim.count("block_sparse", **drawn, kv_heads=2, gqa=gqa, mask=mask)
    same(tally, exact)
    if gqa == "separate":
        live = [
            (i, j)
            for i in range(0, 23, 2)
            for j in range(0, 23, 5)
            if allowed[i : i + 2, j : j + 5].any()
        ]
        rows = sum(min(2, 23 - i) for i, _ in live)
        assert exact.hbm.by_array["m"].reads == 4 * rows
    how = {
        **drawn,
        "block_mask": None,
        "mask": FirstHalf() & np.tri(23, dtype=bool),
    }  # where no tile is skipped, it need not be one
    same(flashsim.count("block_sparse", **how), theory.exact("block_sparse", **how))


def test_what_theory_does_not_know_is_refused() -> None:
    refused: list[tuple[str, str, dict[str, Any]]] = [
        ("no closed form for 'flash_basic', backward", "flash_basic", {"direction": "backward"}),
        ("direction is 'sideways'", "flash", {"direction": "sideways"}),
        ("neither mask nor dropout", "flash_basic", {"causal": True}),
        ("neither mask nor dropout", "flash_basic", {"dropout_p": 0.5}),
        ("takes no option block_mask", "flash", {"block_mask": "live"}),
        ("expected an array, a function", "block_sparse", {"block_mask": "alive"}),
        (r"expected \(T_r, T_c\)", "block_sparse", {"block_mask": np.ones((7, 9))}),
        ("no closed form for sizing", "flash", {"sizing": "huge"}),
        ("dtype int8 is not supported", "flash", {"dtype": "int8"}),
        ("a length is missing", "flash", {"N": None, "N_q": 8}),
        (
            "no closed form for a mask of type FirstHalf: its band is None",
            "block_sparse",
            {"mask": FirstHalf(), "block_mask": "live"},
        ),
    ]
    for message, name, arguments in refused:
        with pytest.raises(ValueError, match=message):
            theory.exact(name, **{"N": 8, "d": 2, "M": 16, **arguments})
    assert Tiles({}).most(lambda r, c: r) == 0


def test_constants_are_those_of_their_proofs() -> None:
    """At d = 4; a constant that is too generous would hold, too."""
    assert theory.flash_constants(4) == (12 / 5, 18 + 22 / 4)
    assert theory.flash_backward_constants(4) == (4, 32 + 10 / 4)
    assert theory.block_sparse_constants(4) == (4 / 3, 25)
    assert theory.block_sparse_constants(4, "backward") == (28 / 9, 34.375)
    assert theory.q_outer_constants(4) == (8 / 5, 12.25)
    assert theory.q_outer_constants(4, "backward") == (16 / 5, 29.75)
    assert theory.small_cache_constants(4) == (4, 4 * math.sqrt(11) + 6.25)
    # b = 3
    upper = 4 * math.sqrt(1 + 6 / 3 + 4 / 9) + 6.25
    assert theory.small_cache_constants(4, 21) == (4, upper)
    assert theory.standard_constants() == (4, 12)
    assert theory.standard_small_M_constants() == (8 / 5, 8)
    assert theory.standard_backward_constants() == (7, 23)
    assert theory.standard_backward_small_M_constants() == (16 / 5, 16)


def test_a_formula_of_skipped_tiles_has_their_rows_and_columns_together() -> None:
    values = {"T_c": Mean(30, 9), "T_r": Mean(35, 7), "N_q": 9, "N_k": 7, "d": 4}
    assert evaluated("T_c * N_q * d", values) == 120
    assert evaluated("(2 * T_c + 1) * N_q", values) == 69
    assert evaluated("2 * T_r * N_k", values) == 70
    with pytest.raises(ValueError, match=r"expected T_c \* N_q"):
        evaluated("T_c * N_k", values)

"""A sparse MLP: its numbers within derived bounds, blocks of zeros never loaded, fusing that
pays from M = d² on, and bugs.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashsim.attention.masks import patterns
from flashsim.attention.shapes import Sizes
from flashsim.extensions import mlp
from flashsim.reference import sparse_mlp, sparse_mlp_bounds
from flashsim.theory.mlp import fusing_border, square_rows

Array = np.ndarray[Any, Any]
WAYS: dict[str, dict[str, Any]] = {
    "sparse_mlp_fused": {},
    "sparse_mlp_unfused": {"fused": False},
    "sparse_mlp_square": {"fused": False, "tiles": "square"},
}
ways = pytest.mark.parametrize("way", WAYS)


def operands(
    N: int,
    d: int,
    f: int,
    o: int,
    seed: int = 0,
    dtype: str = "float64",
) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, d)).astype(dtype)
    W1 = rng.normal(size=(d, f)).astype(dtype)
    W2 = rng.normal(size=(f, o)).astype(dtype)
    return X, W1, W2


def of_elements(mask: Array, size: tuple[int, int], block: tuple[int, int]) -> Array:
    """A mask of blocks, for each element."""
    every = np.repeat(np.repeat(mask, block[0], axis=0), block[1], axis=1)
    return every[: size[0], : size[1]]


def masks(
    d: int,
    f: int,
    o: int,
    blocks: tuple[int, ...],
    share: float,
    seed: int = 0,
) -> tuple[Array, ...]:
    """Block masks, and the same for each element."""
    rng = np.random.default_rng(seed)
    B_d = min(blocks[1], d)
    B_f = min(blocks[2], f)
    B_o = min(blocks[3], o)
    T_d = -(-d // B_d)
    T_f = -(-f // B_f)
    T_o = -(-o // B_o)
    mask1 = rng.random((T_d, T_f)) < share
    mask2 = rng.random((T_f, T_o)) < share
    keep1 = of_elements(mask1, (d, f), (B_d, B_f))
    keep2 = of_elements(mask2, (f, o), (B_f, B_o))
    return mask1, mask2, keep1, keep2


@ways
@given(
    sizes=st.tuples(*[st.integers(1, 12)] * 4),
    blocks=st.tuples(*[st.integers(1, 14)] * 4),
    seed=st.integers(0, 99),
    share=st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
)
def test_numbers_are_the_naive_ones_within_their_bound(
    way: str,
    sizes: tuple[int, ...],
    blocks: tuple[int, int, int, int],
    seed: int,
    share: float,
    dtype: str,
) -> None:
    N, d, f, o = sizes
    inputs = operands(N, d, f, o, seed, dtype)
    mask1, mask2, keep1, keep2 = masks(d, f, o, blocks, share, seed)
    run = mlp.run(*inputs, mask1, mask2, blocks=blocks, **WAYS[way])
    terms = (d, f) if way == "sparse_mlp_square" else (len(mask1), len(mask2))
    bound = sparse_mlp_bounds(
        *inputs,
        keep1,
        keep2,
        blocks=terms,
        fused=way == "sparse_mlp_fused",
        stored=dtype,
    )
    want = sparse_mlp(*inputs, keep1, keep2)
    assert (abs(run.Y - want) <= bound).all()
    how: dict[str, Any] = {
        "N": N,
        "d": d,
        "f": f,
        "o": o,
        "mask1": mask1,
        "mask2": mask2,
        "blocks": blocks,
        "dtype": dtype,
    }
    exact = mlp.exact(**how, **WAYS[way])
    tally = mlp.count(**how, **WAYS[way])
    assert run.hbm == exact.hbm == tally.hbm
    assert run.sram == exact.sram == tally.sram
    assert tally.flops.matmul == exact.matmul


def test_the_oracle_is_the_sum_element_by_element() -> None:
    X, W1, W2 = operands(3, 4, 5, 2)
    Y = sparse_mlp(X, W1, W2)
    for i in range(3):
        hidden = []
        for j in range(5):
            dot = sum(X[i, c] * W1[c, j] for c in range(4))
            hidden.append(max(dot, 0))
        for k in range(2):
            dot = sum(hidden[j] * W2[j, k] for j in range(5))
            assert Y[i, k] == pytest.approx(dot)


@ways
def test_with_no_live_block_nothing_of_the_weights_is_read(way: str) -> None:
    X, W1, W2 = operands(5, 4, 6, 3)
    mask1 = np.zeros((2, 3), bool)
    mask2 = np.zeros((3, 2), bool)
    run = mlp.run(X, W1, W2, mask1, mask2, blocks=(2, 2, 2, 2), **WAYS[way])
    assert not run.Y.any()
    assert run.hbm.by_array["W1"].reads == run.hbm.by_array["W2"].reads == 0
    assert run.hbm.by_array["Y"].writes == 5 * 3
    hidden = 5 * 6
    accesses = {
        "sparse_mlp_fused": 20 + 15,
        "sparse_mlp_unfused": 20 + 15 + 2 * hidden,
        "sparse_mlp_square": 15 + hidden,
    }
    assert run.hbm.accesses == accesses[way]


def test_a_dead_column_of_W1_costs_nothing_of_W2_where_fused() -> None:
    X, W1, W2 = operands(4, 4, 6, 4)
    mask1 = np.array([[True, False, True]] * 2)
    blocks = (4, 2, 2, 2)
    fused = mlp.run(X, W1, W2, mask1, fused=True, blocks=blocks)
    unfused = mlp.run(X, W1, W2, mask1, fused=False, blocks=blocks)
    assert fused.hbm.by_array["W2"].reads == 4 * 4  # 4 of its 6 rows
    assert unfused.hbm.by_array["W2"].reads == 6 * 4
    assert (fused.Y == unfused.Y).all()


def test_what_a_dead_block_holds_has_no_part() -> None:
    X, W1, W2 = operands(4, 4, 6, 4)
    mask1 = np.array([[True, False, True], [True, True, False]])
    blocks = (4, 2, 2, 2)
    before = mlp.run(X, W1, W2, mask1, blocks=blocks)
    W1[:2, 2:4] = 1e300
    after = mlp.run(X, W1, W2, mask1, blocks=blocks)
    assert (before.Y == after.Y).all()


class Strided:
    """Every so many blocks live, in turn."""

    def __init__(self, stride: int) -> None:
        self.stride = stride

    def __call__(self, rows: int, columns: int) -> Array:
        diagonal = np.arange(rows)[:, None] + np.arange(columns)
        live: Array = diagonal % self.stride == 0
        return live


@pytest.mark.parametrize(
    ("d", "o"),
    [(512, 512), (512, 128), (256, 1024)],
)
@pytest.mark.parametrize("strides", [(1, 1), (4, 4), (1, 4)])
def test_fusing_pays_from_the_derived_border_on(d: int, o: int, strides: tuple[int, int]) -> None:
    """Within a factor of 1.2, as blocks are whole and a block of H and one of a weight are on
    chip, too; whatever f is.
    """
    border = fusing_border(d, o, 1 / strides[0], 1 / strides[1])
    sizes: dict[str, Any] = {
        "N": 2**20,
        "d": d,
        "o": o,
        "mask1": Strided(strides[0]),
        "mask2": Strided(strides[1]),
    }
    below = int(border / 1.2)
    above = int(border * 1.2)
    for f in (512, 2048):
        for M, pays in ((below, False), (above, True)):
            fused = mlp.exact(**sizes, f=f, M=M, fused=True)
            unfused = mlp.exact(**sizes, f=f, M=M, fused=False)
            assert (fused.hbm.accesses < unfused.hbm.accesses) == pays


def test_a_mask_may_be_a_function_of_the_numbers_of_blocks() -> None:
    X, W1, W2 = operands(40, 64, 64, 64)
    run = mlp.run(X, W1, W2, patterns.butterfly, patterns.butterfly, M=3000)
    tally = mlp.count(
        N=40,
        d=64,
        f=64,
        mask1=patterns.butterfly,
        mask2=patterns.butterfly,
        M=3000,
        dtype="float64",
    )
    assert run.hbm == tally.hbm
    whole = mlp.run(X, W1, W2, M=3000)
    assert run.hbm.accesses < whole.hbm.accesses


def test_bad_input_is_named() -> None:
    X, W1, W2 = operands(5, 4, 6, 3)
    wide = np.full((4, 6), 1e30, np.float32)
    some = np.ones((2, 3), bool)
    blocks = (2, 2, 2, 2)
    calls: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((X, W1, W2, some), {}, r"blocks is None, mask1 is .*; expected \(B_r, B_d, B_f, B_o\)"),
        (
            (X, W1, W2, some.T),
            {"blocks": blocks},
            r"mask1 has shape \(3, 2\); expected \(2, 3\): W1 is 4 × 6",
        ),
        (
            (X, W1, W2, None, some),
            {"blocks": blocks},
            r"mask2 has shape \(2, 3\); expected \(3, 2\)",
        ),
        (
            (X, W1, W2, some.astype(float)),
            {"blocks": blocks},
            "mask1 has shape .*, dtype float64; expected booleans",
        ),
        ((X, W1, W2, some[0]), {"blocks": blocks}, r"mask1 has shape \(3,\)"),
        (
            (X, W1, W2, lambda rows, columns: some[:1]),
            {},
            r"mask1 has shape \(1, 3\)",
        ),
        ((X, W1, W2), {"fused": "yes"}, "fused is 'yes'"),
        ((X, W1, W2), {"tiles": "round"}, "tiles is 'round'"),
        ((X, W1, W2), {"tiles": "square"}, "tiles is 'square', fused is True"),
        (
            (X, W1, W2),
            {"blocks": (2, 2, 2)},
            r"blocks is \(2, 2, 2\); expected \(B_r, B_d, B_f, B_o\)",
        ),
        ((X, W1, W2), {"M": 3}, "M = 3 elements is too small"),
        ((X, W1.T, W2), {}, "W1 has shape"),
        ((wide.T, wide, wide.T), {}, "Y overflows float32"),
    ]
    for arrays, how, match in calls:
        with pytest.raises(ValueError, match=match):
            mlp.run(*arrays, **how)
    with pytest.raises(ValueError, match="mask1 has shape"):
        mlp.exact(N=5, d=4, f=6, o=3, mask1=some.T, blocks=blocks)


def test_square_tiles_fit_and_are_one_at_least() -> None:
    p = Sizes(d=4, f=4, o=4)
    rows = {3: 1, 7: 1, 8: 2, 14: 2, 15: 3}
    for M, most in rows.items():
        assert square_rows(M, p) == most


@pytest.mark.parametrize("ask", [mlp.count, mlp.exact])
def test_the_output_is_as_wide_as_the_input_by_default(ask: Any) -> None:
    by_default = ask(N=5, d=4, f=7)
    assert by_default.hbm == ask(N=5, d=4, f=7, o=4).hbm


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@given(
    sizes=st.fixed_dictionaries({name: st.integers(1, 30) for name in "Ndfo"}),
    blocks=st.tuples(*[st.integers(1, 9)] * 4),
)
def test_without_masks_blocks_that_are_alike_are_counted_once(
    way: dict[str, Any],
    sizes: dict[str, Any],
    blocks: tuple[int, int, int, int],
) -> None:
    whole: dict[str, Any] = {
        "mask1": lambda *T: np.ones(T, bool),
        "mask2": lambda *T: np.ones(T, bool),
    }
    by_block = mlp.exact(**sizes, blocks=blocks, **whole, **way)
    assert mlp.exact(**sizes, blocks=blocks, **way) == by_block


def test_lengths_of_which_no_mask_could_be_made() -> None:
    """By formula they take no memory; a count, and any mask, are refused before something is
    made for every block.
    """
    blocks = (4, 16, 16, 16)
    large = 2**40
    T = 2**36
    exact = mlp.exact(N=64, d=large, f=large, blocks=blocks)
    assert exact.hbm.by_array["W1"].reads == 16 * 2**80
    assert exact.matmul == 4 * 64 * 2**80
    mask = {"mask1": lambda rows, columns: np.ones((rows, columns), bool)}
    asks: list[tuple[Any, dict[str, Any]]] = [
        (mlp.count, {}),
        (mlp.count, mask),
        (mlp.exact, mask),
    ]
    for ask, masks in asks:
        with pytest.raises(
            ValueError,
            match=rf"mask1 has {T:,} × {T:,} blocks, which take .* hours; expected at most",
        ):
            ask(N=64, d=large, f=large, blocks=blocks, **masks)
        with pytest.raises(ValueError, match=rf"mask1 has {T:,} × 1 blocks"):
            ask(N=64, d=large, f=16, blocks=blocks, **masks)
        with pytest.raises(ValueError, match=rf"mask2 has 1 × {T:,} blocks"):
            ask(N=64, d=16, f=16, o=large, blocks=blocks, **masks)

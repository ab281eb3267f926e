"""FlashDecoding: splits that divide or not, empty ones, uneven lengths; both merges; counts;
planted bugs.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashsim
from flashsim import KeyPadding, theory
from flashsim.algorithms import FORWARD, Algorithm, split_kv_merge
from flashsim.algorithms.parts import EveryTile
from flashsim.algorithms.split_kv_merge import MERGES
from flashsim.attention.masks.rules import All
from flashsim.attention.shapes import Blocks, Shape
from flashsim.memory.traffic import Traffic
from flashsim.reference import attention, error_bound, rounding
from flashsim.simulate.live_tiles import LiveTiles, TileSplits
from flashsim.tracing.planting import planted
from tests.helpers.bugs import SPLIT_KV
from tests.helpers.cases import (
    Arguments,
    Array,
    Case,
    exact_of,
    full_cases,
    of_bound,
    room_for,
    swap,
    unnoticed,
)


def inputs(
    N_q: int, N_k: int, d: int, d_v: int, leading: tuple[int, ...] = ()
) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    Q = rng.normal(size=(*leading, N_q, d))
    K = rng.normal(size=(*leading, N_k, d))
    V = rng.normal(size=(*leading, N_k, d_v))
    return Q, K, V


@given(
    case=full_cases(),
    splits=st.one_of(st.none(), st.integers(1, 30)),
    merge=st.sampled_from(sorted(MERGES)),
)
def test_any_split_merged_either_way_is_attention(
    case: Case, splits: int | None, merge: str
) -> None:
    Q, K, V = case.inputs()
    how: Arguments = {
        "M": room_for(case.B_r, case.B_c, case.d, case.d_v, case.N_k),
        "blocks": (case.B_r, case.B_c),
    }
    options: Arguments = {**how, "splits": splits, "merge": merge}
    run = flashsim.forward("split_kv", Q, K, V, **options, **case.options)
    bound = error_bound(Q, K, V, **rounding("split_kv", run.blocks), **case.oracle)
    assert of_bound(run.O, attention(Q, K, V, **case.oracle), bound) <= 1
    how_counted: Arguments = {**case.shape, **options, "dtype": case.dtype}
    how_counted |= {"mask": case.masked()[0], "dropout_p": case.dropout_p}
    tally = flashsim.count("split_kv", **how_counted)
    exact = exact_of("split_kv", **how_counted)
    assert (run.hbm, run.sram) == (tally.hbm, tally.sram)
    if exact is not None:
        assert (run.hbm, run.sram) == (exact.hbm, exact.sram)


def test_decoding_by_hand() -> None:
    """One query, n = 10 keys, t = 5 tiles of 2, d = 4 (spec): t·d + 2nd, then t(d + 2); t(d +
    2), then d.
    """
    sizes: Arguments = {"N_q": 1, "N_k": 10, "d": 4, "M": 100}
    tally = flashsim.count("split_kv", **sizes, blocks=(1, 2))
    assert tally.hbm.reads == 5 * 4 + 2 * 10 * 4 + 5 * 6
    assert tally.hbm.writes == 5 * 6 + 4
    # q o 8, K_j V_j 16, S 2, ℓ m m^new 3
    assert tally.sram.peak == 29
    tree = flashsim.count("split_kv", **sizes, blocks=(1, 2), merge="tree")
    # four merges of two parts; at last o and ℓ
    assert tree.hbm.reads == 5 * 4 + 2 * 10 * 4 + 4 * 2 * 6 + 5
    assert tree.hbm.writes == 5 * 6 + 4 * 6 + 4
    assert tree.hbm.extra == tally.hbm.extra == 5 * 6


def test_splits_that_do_not_divide_and_empty_ones() -> None:
    """22 keys in tiles of 3: 8 tiles. In 3 splits: 3, 3, 2 of them. In 5: 2, 2, 2, 2, 0. In 20:
    one each, 12 empty.
    """
    Q, K, V = inputs(2, 22, 4, 3)
    blocks = Blocks(2, 3, N_q=2, N_k=22)
    shape = Shape(2, 22, 4, 3)
    tiles_of_splits = {3: [3, 3, 2], 5: [2, 2, 2, 2, 0], 20: [1] * 8 + [0] * 12}
    for splits, want in tiles_of_splits.items():
        cut = TileSplits(EveryTile(), All(), blocks, shape, (), splits)
        assert [int(cut.row(s, 0).sum()) for s in range(splits)] == want
        for merge in MERGES:
            options: Arguments = {"splits": splits, "merge": merge}
            run = flashsim.forward("split_kv", Q, K, V, blocks=(2, 3), M=100, **options)
            assert run.hbm.by_array["O_parts"].size == splits * 2 * 3
            assert run.hbm.by_array["K"].reads == 22 * 4
            bound = error_bound(Q, K, V, **rounding("split_kv", run.blocks))
            assert of_bound(run.O, attention(Q, K, V), bound) <= 1


@pytest.mark.parametrize("merge", MERGES)
def test_each_sequence_has_its_own_length(merge: str) -> None:
    """A batch of four caches, 0, 1, 17 and 40 keys long, two heads: keys beyond a length are not
    loaded, NaN or not.
    """
    lengths = np.array([[0], [1], [17], [40]])
    Q, K, V = inputs(1, 40, 4, 3, (4, 2))
    for b, length in enumerate(lengths[:, 0]):
        K[b, :, length:] = V[b, :, length:] = np.nan
    mask = KeyPadding(lengths)
    run = flashsim.forward(
        "split_kv",
        Q,
        K,
        V,
        blocks=(1, 4),
        M=100,
        splits=3,
        merge=merge,
        mask=mask,
        check_finite=False,
    )
    total = Traffic()
    for b, length in enumerate(lengths[:, 0].tolist()):
        for h in range(2):
            want = (
                attention(Q[b, h], K[b, h, :length], V[b, h, :length])
                if length
                else np.zeros((1, 3))
            )
            assert np.allclose(run.O[b, h], want, rtol=0, atol=1e-14)
            total += theory.exact(
                "split_kv",
                N_q=1,
                N_k=40,
                d=4,
                d_v=3,
                M=100,
                blocks=(1, 4),
                splits=3,
                merge=merge,
                mask=KeyPadding(length),
                dtype="float64",
            ).hbm
    assert run.hbm == total
    assert run.hbm.by_array["K"].reads == 2 * (0 + 4 + 20 + 40) * 4  # whole tiles


def test_the_splits_of_a_short_sequence_share_its_tiles() -> None:
    """17 of 40 keys, in tiles of 4: 5 tiles, so 3 splits have 2, 2 and 1, not 4, 1 and 0."""
    blocks = Blocks(1, 4, N_q=1, N_k=40)
    shape = Shape(1, 40, 4, 4)
    mask = KeyPadding(17)
    live = LiveTiles(mask, blocks, shape, ())
    cut = TileSplits(live, mask, blocks, shape, (), 3)
    assert [int(cut.row(s, 0).sum()) for s in range(3)] == [2, 2, 1]


def test_merging_is_associative_to_rounding() -> None:
    """In sequence, as a tree, and in one split: equal to rounding, and not bit for bit."""
    Q, K, V = inputs(1, 300, 8, 8)
    ways: tuple[dict[str, Any], ...] = (
        {},
        {"merge": "tree"},
        {"splits": 1},
        {"splits": 7, "merge": "tree"},
    )
    K = 5 * K
    runs = [flashsim.forward("split_kv", Q, K, V, blocks=(1, 10), M=400, **way) for way in ways]
    bound = 2 * error_bound(Q, K, V, **rounding("split_kv", runs[0].blocks))
    for run in runs:
        assert (np.abs(run.O - runs[0].O) <= bound).all()
    assert not np.array_equal(runs[0].O, runs[1].O)


def test_what_is_refused() -> None:
    Q, K, V = inputs(1, 8, 2, 2)
    with pytest.raises(ValueError, match="splits is 0; expected at least 1"):
        flashsim.forward("split_kv", Q, K, V, splits=0)
    with pytest.raises(ValueError, match="merge is 'mean'; expected 'sequence' or 'tree'"):
        flashsim.forward("split_kv", Q, K, V, merge="mean")
    with pytest.raises(ValueError, match=r"'flash' .*takes no option splits; 'split_kv' does"):
        flashsim.forward("flash", Q, K, V, splits=2)
    with pytest.raises(ValueError, match="takes no option splits"):
        theory.exact("flash", N=8, d=2, splits=2)
    with pytest.raises(ValueError, match="has no backward pass here"):
        flashsim.count("split_kv", N=8, d=2, direction="backward")


# --------------------------------------------------------------------------------------------------
# planted bugs

VARIANTS = [
    Case(regime, N_q, 23, 4, 3, "float64", seed, 2, 3, mask, p)
    for seed, (regime, N_q, mask, p) in enumerate(
        [
            ("gaussian", 1, "none", 0.0),
            ("outliers", 1, "none", 0.0),
            ("rising", 5, "causal", 0.3),
            ("falling", 5, "first keys", 0.0),
            ("all very negative", 5, "first keys", 0.0),
            ("gaussian", 3, "padding", 0.0),
        ]
    )
]


def objections(algorithm: Algorithm) -> Iterator[str]:
    with np.errstate(all="ignore"):
        for case in VARIANTS:
            Q, K, V = case.inputs()
            for merge in MERGES:
                for splits in (None, 1, 3, 20):
                    how: Arguments = {
                        "blocks": (2, 3),
                        "M": 400,
                        "splits": splits,
                        "merge": merge,
                    }
                    run = flashsim.forward(algorithm, Q, K, V, **how, **case.options)
                    oracle = case.oracle
                    bound = error_bound(Q, K, V, **rounding("split_kv", run.blocks), **oracle)
                    if of_bound(run.O, attention(Q, K, V, **oracle), bound) > 1:
                        yield "exact"
                    options = {**case.shape, **how, "dtype": "float64"}
                    options |= {"dropout_p": case.dropout_p, "mask": case.masked()[0]}
                    want = theory.exact("split_kv", **options)
                    if (run.hbm, run.sram) != (want.hbm, want.sram):
                        yield "counts"


MERGE_BUGS = [
    (
        "merge that averages",
        "merge_in_sequence",
        "exp(m_s - finite(m_i_new)) * O_s, over=O_i",
        "O_s, over=O_i",
    ),
    (
        "merge that averages parts",
        "merge_in_sequence",
        "O_i / nonzero(l_i)",
        "O_i / l_parts.blocks[1]",
    ),
    (
        "old part not rescaled",
        "merge_in_sequence",
        "O_i = on_chip(exp(m_i - finite(m_i_new)) * O_i",
        "O_i = on_chip(O_i",
    ),
    ("ℓ not rescaled", "merge_in_sequence", "exp(m_s - finite(m_i_new)) * l_s", "l_s"),
    (
        "−∞ − (−∞) of empty splits",
        "merge_in_sequence",
        "exp(m_s - finite(m_i_new)) * O_s",
        "exp(m_s - m_i_new) * O_s",
    ),
    (
        "the last part left out",
        "merge_in_sequence",
        "for s in sram.loop(t)",
        "for s in sram.loop(max(t - 1, 1))",
    ),
    ("in a tree, O not rescaled", "merge_as_tree", "exp(m_b - finite(m_ab)) * O_b", "O_b"),
    (
        "in a tree, the odd one left out",
        "merge_as_tree",
        "-(-(t - apart) // (2 * apart))",
        "(t // (2 * apart))",
    ),
    ("in a tree, m not kept", "merge_as_tree", "sram.store(m_parts[i, a], m_ab)", "pass"),
    ("in a tree, ℓ not kept", "merge_as_tree", "sram.store(l_parts[i, a], l_ab)", "pass"),
    ("in a tree, one level only", "merge_as_tree", "apart *= 2", "apart = t"),
]


def test_the_original_is_not_accused() -> None:
    assert list(objections(FORWARD["split_kv"])) == []


@pytest.mark.parametrize(
    ("bug", "before", "after", "by"), SPLIT_KV, ids=[bug[0] for bug in SPLIT_KV]
)
def test_bugs_in_the_splits_are_caught(bug: str, before: str, after: str, by: set[str]) -> None:
    mutant = planted(FORWARD["split_kv"], (before, after))
    assert unnoticed(by, objections(mutant)) == set()


@pytest.mark.parametrize(
    ("bug", "function", "before", "after"), MERGE_BUGS, ids=[bug[0] for bug in MERGE_BUGS]
)
def test_bugs_in_merging_are_caught(
    bug: str, function: str, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap(getattr(split_kv_merge, function), before, after, monkeypatch)
    assert unnoticed({"exact"}, objections(FORWARD["split_kv"])) == set()


def test_a_split_cut_by_all_keys_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    swap(TileSplits.__init__, "mask.keys(shape, head)", "shape.N_k", monkeypatch)
    with pytest.raises(AssertionError):
        test_the_splits_of_a_short_sequence_share_its_tiles()

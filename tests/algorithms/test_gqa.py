"""Query heads that share KV heads: both schedules compute what repeated K and V would, and their
counts differ as theory says.

The oracle repeats K and V with `np.repeat` and sums dK and dV over each group. Which row of a group
is whose is said here once more, row by row (`packed`). Planted bugs, at the end, must be caught by
`objections`, which asks what the tests above ask.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Generator

import flashsim
from flashsim import Causal, Dense, KeyPadding, QueryPadding, SlidingWindow, Tree, theory
from flashsim.algorithms import BACKWARD, FORWARD, group_sum
from flashsim.attention.inputs import Inputs
from flashsim.attention.masks.dropout import TileDropout, keep_mask
from flashsim.attention.masks.rules import as_mask
from flashsim.attention.qkv import QKV
from flashsim.attention.shapes import Shape
from flashsim.cli import main
from flashsim.memory.hbm import HBM
from flashsim.memory.sram import SRAM
from flashsim.reference import (
    attention,
    backward_rounding,
    error_bound,
    gradient_bounds,
    gradients,
    group_bound,
    rounding,
)
from flashsim.simulate import interleaving as groups
from flashsim.simulate import outcome, stacking, sums
from flashsim.tracing.about import tiles_of
from flashsim.tracing.observers import InductionInvariant
from tests.helpers.cases import (
    DTYPES,
    FEW,
    MASKS,
    Arguments,
    Array,
    exact_of,
    of_bound,
    room_for,
    same,
    swap,
    tile_ends,
    unnoticed,
    with_trace,
)

SCHEDULES = ("separate", "grouped")
DROPPING = [name for name, algorithm in FORWARD.items() if "dropout" in algorithm.parts]
Masked = tuple[Any, Array | None]
MaskMaker = Callable[[Generator, int, int, int], Masked]

# -------------------------------------------------------------------------------------------------
# what is drawn


def _padded(rng: Generator, heads: int, n: int, k: int) -> Masked:
    lengths = rng.integers(0, k + 1, size=heads)
    return KeyPadding(lengths), np.broadcast_to(
        np.arange(k) < lengths[:, None, None], (heads, n, k)
    )


def _causal_and_padded(rng: Generator, heads: int, n: int, k: int) -> Masked:
    padding, allowed = _padded(rng, heads, n, k)
    assert allowed is not None
    return Causal() & padding, allowed & np.tri(n, k, k - n, dtype=bool)


def _window_and_padded(rng: Generator, heads: int, n: int, k: int) -> Masked:
    padding, allowed = _padded(rng, heads, n, k)
    assert allowed is not None
    in_window = ~np.tri(n, k, k - n - 3, dtype=bool)
    return padding & SlidingWindow(2, -1), allowed & in_window


def _offsets(rng: Generator, heads: int, n: int, k: int) -> Masked:
    """Heads with offsets and lengths of their own, and a window that some offsets move away from
    it.
    """
    offsets = rng.integers(-n - 1, k + 2, size=heads)
    rows = rng.integers(0, n + 1, size=heads)
    i = np.arange(n)[:, None]
    j = np.arange(k)
    causal = j <= i + offsets[:, None, None]
    real_rows = i < rows[:, None, None]
    in_window = j >= i + k - n - 4
    allowed = causal & real_rows & in_window
    return Causal(offset=offsets) & SlidingWindow(4, -1) & QueryPadding(rows), allowed


def _arrays(rows: bool, cols: bool) -> MaskMaker:
    def make(rng: Generator, heads: int, n: int, k: int) -> Masked:
        array = rng.random((heads, n if rows else 1, k if cols else 1)) < 0.7
        return Dense(array), np.broadcast_to(array, (heads, n, k))

    return make


def _tree(rng: Generator, heads: int, n: int, k: int) -> Masked:
    """Where there are keys enough for all nodes."""
    if k < n:
        return None, None
    parents = [int(rng.integers(-1, node)) for node in range(n)]
    allowed = np.eye(n, dtype=bool)
    for node, parent in enumerate(parents):
        allowed[node] |= allowed[parent] & (parent >= 0)
    prefix = np.ones((n, k - n), bool)
    return Tree(parents) & SlidingWindow(k, -1), np.hstack([prefix, allowed])


PER_HEAD: dict[str, MaskMaker] = {
    "offset per head": _offsets,
    "padding by head": _padded,
    "causal & padding by head": _causal_and_padded,
    "window & padding by head": _window_and_padded,
    "dense by head": _arrays(True, True),
    "dense by head (1, N_k)": _arrays(False, True),
    "dense by head (N_q, 1)": _arrays(True, False),
}


@dataclass(frozen=True)
class Shared:
    """A problem of g·H_kv query heads, or of as many in each of two batches. `mask` is a name in
    MASKS or PER_HEAD, or "tree".
    """

    H_kv: int
    g: int
    N_q: int
    N_k: int
    d: int
    d_v: int
    dtype: str
    seed: int
    B_r: int
    B_c: int
    mask: str = "none"
    dropout_p: float = 0.0
    batches: int | None = None

    @property
    def heads(self) -> int:
        """In all."""
        return self.g * self.H_kv * (self.batches or 1)

    def inputs(self) -> tuple[Array, Array, Array, Array]:
        """Q, K, V and dO."""
        rng = np.random.default_rng(self.seed)
        lead = () if self.batches is None else (self.batches,)
        sizes = (
            (self.g, self.N_q, self.d),
            (1, self.N_k, self.d),
            (1, self.N_k, self.d_v),
            (self.g, self.N_q, self.d_v),
        )
        Q, K, V, dO = (
            rng.normal(size=(*lead, share * self.H_kv, *size)).astype(DTYPES[self.dtype])
            for share, *size in sizes
        )
        return Q, K, V, dO

    def masked(self) -> Masked:
        rng = np.random.default_rng((self.seed, 2))
        if self.mask in PER_HEAD:
            make = PER_HEAD[self.mask]
            return make(rng, self.g * self.H_kv, self.N_q, self.N_k)
        return (
            _tree(rng, 1, self.N_q, self.N_k)
            if self.mask == "tree"
            else MASKS[self.mask](rng, self.N_q, self.N_k)
        )

    def options(self, name: str) -> dict[str, Any]:
        """As `forward` takes them; Algorithm 1 has neither mask nor dropout."""
        how: Arguments = {
            "blocks": (self.B_r, self.B_c),
            "M": 4 * room_for(self.B_r, self.B_c, self.d, self.d_v, self.N_k),
        }
        if name in DROPPING:
            mask, _ = self.masked()
            how |= {"mask": mask, "dropout_p": self.dropout_p, "seed": self.seed}
        return how

    def oracle(self, name: str) -> dict[str, Any]:
        if name not in DROPPING:
            return {}
        kept = [
            keep_mask(self.seed, self.dropout_p, self.N_q, self.N_k, head=h)
            for h in range(self.heads)
        ]
        lead = () if self.batches is None else (self.batches,)
        keep = None
        if self.dropout_p:
            keep = np.array(kept).reshape(*lead, -1, self.N_q, self.N_k)
        return {"mask": self.masked()[1], "keep": keep, "dropout_p": self.dropout_p}

    @property
    def shape(self) -> dict[str, Any]:
        """As `count` takes it."""
        lengths = {
            "N_q": self.N_q,
            "N_k": self.N_k,
            "d": self.d,
            "d_v": self.d_v,
            "dtype": self.dtype,
        }
        return lengths | {"heads": self.heads, "kv_heads": self.heads // self.g}


def shared(masks: tuple[str, ...] = (*MASKS, "tree", *PER_HEAD)) -> st.SearchStrategy[Shared]:
    return st.builds(
        Shared,
        H_kv=st.integers(1, 2),
        g=st.integers(1, 3),
        N_q=st.integers(1, 9),
        N_k=st.integers(1, 9),
        d=st.integers(1, 4),
        d_v=st.integers(1, 4),
        dtype=st.sampled_from(("float64", "float32", "float16", "bfloat16")),
        seed=st.integers(0, 2**16),
        B_r=st.integers(1, 24),
        B_c=st.integers(1, 11),
        mask=st.sampled_from(masks),
        dropout_p=st.sampled_from((0.0, 0.4)),
        batches=st.sampled_from((None, None, 1, 2)),
    )


def repeated(a: Array, g: int) -> Array:
    return np.repeat(a, g, axis=-3)


def packed(a: Array, g: int) -> Array:
    """(..., H_q, N, w) to (..., H_kv, g·N, w), a row at a time."""
    heads = a.shape[-3]
    n = a.shape[-2]
    packed_heads = []
    for kv_head in range(heads // g):
        rows = []
        for row in range(g * n):
            position, member = divmod(row, g)
            rows.append(a[..., g * kv_head + member, position, :])
        packed_heads.append(np.stack(rows, axis=-2))
    return np.stack(packed_heads, axis=-3)


def over_groups(a: Array, g: int) -> Array:
    """(..., H_q, N_k, w) to (..., H_kv, g, N_k, w)."""
    *lead, heads, n, width = a.shape
    return a.reshape(*lead, heads // g, g, n, width)


def backward_of(name: str) -> list[str]:
    return [back for back, algorithm in BACKWARD.items() if (algorithm.of or back) == name]


# --------------------------------------------------------------------------------------------------
# what they compute


def of_output(case: Shared, name: str, run: flashsim.Result) -> float:
    """O's error, as a part of its bound."""
    Q, K, V, _ = case.inputs()
    operands = (Q, repeated(K, case.g), repeated(V, case.g))
    oracle = case.oracle(name)
    return of_bound(
        run.O,
        attention(*operands, **oracle),
        error_bound(*operands, **rounding(name, run.blocks), **oracle),
    )


def of_gradients(case: Shared, back: str, run: flashsim.Result, value: flashsim.Result) -> float:
    """The worst error of dQ, dK, dV. Grouped, dK and dV are sums over g·N_q queries; else of
    parts that were stored.
    """
    Q, K, V, dO = case.inputs()
    g = case.g
    oracle = case.oracle(run.algorithm)
    repeats = Q, repeated(K, g), repeated(V, g), dO
    want = gradients(*repeats, **oracle)
    rounded = backward_rounding(back, run.blocks, value.blocks)
    dK_by_group = over_groups(want.dK, g)
    dV_by_group = over_groups(want.dV, g)
    if run.problem.gqa == "separate":
        bounds = gradient_bounds(*repeats, **rounded, **oracle)
        bound_dQ = bounds.dQ
        bound_dK = bounds.dK
        bound_dV = bounds.dV
        if g > 1:
            bound_dK = group_bound(dK_by_group, over_groups(bounds.dK, g), stored=K.dtype)
            bound_dV = group_bound(dV_by_group, over_groups(bounds.dV, g), stored=K.dtype)
    else:
        scores = (*Q.shape[:-2], case.N_q, case.N_k)
        for part in ("mask", "keep"):
            if oracle.get(part) is not None:
                oracle[part] = packed(np.broadcast_to(oracle[part], scores), g)
        bounds = gradient_bounds(packed(Q, g), K, V, packed(dO, g), **rounded, **oracle)
        bound_dQ = np.empty(Q.shape)
        for kv_head, row in np.ndindex(case.H_kv, g * case.N_q):
            position, member = divmod(row, g)
            bound_dQ[..., g * kv_head + member, position, :] = bounds.dQ[..., kv_head, row, :]
        bound_dK = bounds.dK
        bound_dV = bounds.dV
    return max(
        of_bound(value.dQ, want.dQ, bound_dQ),
        of_bound(value.dK, dK_by_group.sum(axis=-3), bound_dK),
        of_bound(value.dV, dV_by_group.sum(axis=-3), bound_dV),
    )


@pytest.mark.parametrize("gqa", SCHEDULES)
@pytest.mark.parametrize("name", FORWARD)
@given(case=shared())
@FEW
def test_both_schedules_compute_what_repeated_heads_would(
    name: str, gqa: str, case: Shared
) -> None:
    """Every mask, by query head too; dropout; a batch axis; H_kv = 1; g = 1; every dtype."""
    Q, K, V, dO = case.inputs()
    options = case.options(name)
    run = flashsim.forward(name, Q, K, V, gqa=gqa, **options)
    assert run.O.shape == (*Q.shape[:-1], case.d_v)
    assert run.O.dtype == Q.dtype
    for statistic in (run.l, run.m, run.lse):
        assert statistic is None or statistic.shape == Q.shape[:-1]
    assert of_output(case, name, run) <= 1
    for back in backward_of(name):
        result = flashsim.backward(back, run, dO)
        for gradient, operand in ((result.dQ, Q), (result.dK, K), (result.dV, V)):
            assert gradient.shape == operand.shape
            assert gradient.dtype == Q.dtype
        assert of_gradients(case, back, run, result) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*MASKS, "tree", *PER_HEAD])
def test_a_grouped_mask_answers_as_each_heads_own_does(kind: str) -> None:
    """Every public method, and traces, forward and backward, against rows packed one by one: a
    tree's of every algorithm.
    """
    case = Shared(1, 3, 3, 5, 2, 2, "float64", 8, 5, 3, kind)
    Q, K, V, dO = case.inputs()
    inputs, allowed = case.masked()
    own = Shape(3, 5, 2, 2)
    rows = Shape(9, 5, 2, 2)
    mask = as_mask(inputs, False, own, (3,))
    together = groups.grouped(mask, 3, 3)
    together.check(rows, (1,))
    assert (together.per_head, together.folds) == (mask.per_head, mask.folds)
    allowed_everywhere = np.broadcast_to(True if allowed is None else allowed, (3, 3, 5))
    (want,) = packed(allowed_everywhere, 3)
    assert np.array_equal(together.whole(rows, (0,)), want)
    assert not want[:, together.keys(rows, (0,)) :].any()
    for top, left in ((0, 0), (5, 0), (0, 3), (5, 3)):
        bottom = min(top + 5, 9)
        right = min(left + 3, 5)
        ends = tile_ends(top, bottom, left, right)
        tile = want[top:bottom, left:right]
        (live,) = together.live(*ends, rows, (0,))
        (full,) = together.full(*ends, rows, (0,))
        assert live or not tile.any()
        assert tile.all() or not full or mask.dense((0,))
    tree = together.tree
    if tree is not None and mask.tree is not None:
        assert np.array_equal(tree.attends, mask.tree.attends.repeat(3, axis=0))
        assert np.array_equal(tree.words, mask.tree.words.repeat(3, axis=0))
        assert tree.paths() == mask.tree.paths()
    turn = [*MASKS, *PER_HEAD].index(kind) % 5 if kind != "tree" else None
    for name in DROPPING if turn is None else DROPPING[turn::5]:
        run, run_trace = with_trace(
            flashsim.forward, name, Q, K, V, gqa="grouped", **case.options(name)
        )
        assert of_output(case, name, run) <= 1
        assert run_trace.about.tiles == tiles_of(want, run.blocks)
        for back in backward_of(name):
            result, got_trace = with_trace(flashsim.backward, back, run, dO)
            assert of_gradients(case, back, run, result) <= 1
            assert got_trace.about.tiles == tiles_of(want, result.blocks)


def test_a_tile_of_one_position_of_each_head_is_full_where_that_position_has_all_keys() -> None:
    together = groups.grouped(SlidingWindow(0, 0), 2, 3)
    rows = Shape(6, 3, 2, 2)
    for top, bottom, full in ((0, 2, True), (0, 3, False), (2, 4, False)):
        ends = tile_ends(top, bottom, 0, 1)
        assert together.full(*ends, rows, ()) == [full]


@pytest.mark.parametrize("name", FORWARD)
def test_statistics_are_those_of_each_head(name: str) -> None:
    case = Shared(2, 3, 7, 9, 4, 3, "float64", 5, 4, 3, "causal & padding by head", 0.4, 2)
    Q, K, V, _ = case.inputs()
    options = case.options(name)
    alone = flashsim.forward(name, Q, repeated(K, 3), repeated(V, 3), **options)
    for gqa in SCHEDULES:
        run = flashsim.forward(name, Q, K, V, gqa=gqa, **options)
        for statistic in ("l", "m", "lse"):
            grouped = getattr(run, statistic)
            repeated_heads = getattr(alone, statistic)
            if grouped is None and repeated_heads is None:
                continue
            assert np.allclose(grouped, repeated_heads, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", FORWARD)
def test_one_query_head_for_each_kv_head_is_as_before_bit_for_bit(name: str) -> None:
    case = Shared(3, 1, 7, 9, 4, 3, "float16", 5, 4, 3, "causal", 0.4)
    Q, K, V, dO = case.inputs()
    options = case.options(name)
    runs = [flashsim.forward(name, Q, K, V, gqa=gqa, **options) for gqa in SCHEDULES]
    alone = [flashsim.forward(name, Q[h], K[h], V[h], **options) for h in range(3)]
    assert np.array_equal(runs[0].O, runs[1].O)
    assert np.array_equal(runs[0].O[0], alone[0].O)
    one_head = alone[0].hbm
    assert runs[0].hbm == runs[1].hbm == one_head.times(3)
    for back in backward_of(name):
        one, other = (flashsim.backward(back, run, dO) for run in runs)
        for part in ("dQ", "dK", "dV"):
            assert np.array_equal(getattr(one, part), getattr(other, part))
        gradients_alone = flashsim.backward(back, alone[0], dO[0])
        assert one.hbm == other.hbm == gradients_alone.hbm.times(3)
        assert "dK_parts" not in one.hbm.by_array


@pytest.mark.parametrize("name", DROPPING)
def test_what_is_masked_in_a_kv_head_stays_there(name: str) -> None:
    """NaN in keys that no head of the group attends to; of other heads, one attends to more."""
    case = Shared(2, 2, 5, 8, 3, 3, "float64", 1, 3, 3)
    Q, K, V, dO = case.inputs()
    K[:, 6:] = V[:, 6:] = np.nan
    for gqa in SCHEDULES:
        options: Arguments = {
            "mask": KeyPadding([2, 6, 5, 0]),
            "M": 10**4,
            "check_finite": False,
            "gqa": gqa,
        }
        run = flashsim.forward(name, Q, K, V, blocks=(4, 3), **options)
        assert np.isfinite(run.O).all()
        assert (run.O[3] == 0).all()
        for back in backward_of(name):
            result = flashsim.backward(back, run, dO, check_finite=False)
            for gradient in (result.dQ, result.dK, result.dV):
                assert np.isfinite(gradient).all()
            assert (result.dK[:, 6:] == 0).all()


def test_parts_that_overflow_are_refused_though_their_sum_would_not() -> None:
    """float16 ends at 65504: dV's parts are ±80,000, and ∞ − ∞ would be NaN."""
    ones = np.ones((1, 1, 1), np.float16)
    V = ones
    dO = np.empty((2, 2, 1), np.float16)
    dO[0] = 40_000
    dO[1] = -40_000
    Q = np.zeros((2, 2, 1), np.float16)
    with pytest.raises(ValueError, match=r"dV_parts overflows float16, which ends at 6.55e\+04"):
        flashsim.backward("flash", flashsim.forward("flash", Q, ones, V), dO)
    run = flashsim.forward("flash", Q, ones, V, gqa="grouped")
    result = flashsim.backward("flash", run, dO)
    assert (result.dV == 0).all()


# --------------------------------------------------------------------------------------------------
# what they count


@pytest.mark.parametrize("gqa", SCHEDULES)
@pytest.mark.parametrize("name", FORWARD)
@given(case=shared((*MASKS, "tree")), sizing=st.sampled_from(("blocks", "paper", "fit")))
@FEW
def test_runs_counts_and_theory_are_equal(name: str, gqa: str, case: Shared, sizing: str) -> None:
    Q, K, V, dO = case.inputs()
    how = case.options(name) | {"gqa": gqa}
    if sizing != "blocks":
        del how["blocks"]
        how["sizing"] = sizing
    run = flashsim.forward(name, Q, K, V, **how)
    options = {**case.shape, **how}
    options.pop("seed", None)
    tally = flashsim.count(name, **options)
    exact = exact_of(name, **options)
    same(run, tally)
    if exact is not None:
        same(tally, exact)
        assert tally.flops.matmul == exact.matmul
    for back in backward_of(name):
        if name == "block_sparse":
            options |= {"blocks": (run.blocks.B_r, run.blocks.B_c)}
        result = flashsim.backward(back, run, dO, M=4 * options["M"])
        asked_back = {**options, "direction": "backward", "M": 4 * options["M"]}
        tally = flashsim.count(back, **asked_back)
        exact = exact_of(back, **asked_back)
        assert result.hbm == tally.hbm
        assert (result.sram.peak, result.blocks) == (tally.sram.peak, tally.blocks)
        if exact is not None:
            same(tally, exact)
            assert tally.flops.matmul == exact.matmul


@pytest.mark.slow
@pytest.mark.parametrize("gqa", SCHEDULES)
@pytest.mark.parametrize(
    ("direction", "name"), [("forward", n) for n in FORWARD] + [("backward", n) for n in BACKWARD]
)
def test_counts_equal_theory_at_real_sizes(direction: str, name: str, gqa: str) -> None:
    """32 query heads on 8, and on 1; a long cache."""
    shapes = (
        {"N": 4096, "d": 128},
        {"N_q": 3, "N_k": 32_768, "d": 128},
        {"N": 333, "d": 64, "d_v": 40},
    )
    for shape, kv_heads in zip(shapes, (8, 1, 8), strict=True):
        options: Arguments = {
            **shape,
            "heads": 32,
            "kv_heads": kv_heads,
            "gqa": gqa,
            "direction": direction,
        }
        if name != "flash_basic":
            options["causal"] = True
        same(
            flashsim.count(name, **options, dtype="bfloat16"),
            theory.exact(name, **options, dtype="bfloat16"),
        )


def both(name: str, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """By array, separate and grouped."""
    separate = flashsim.count(name, gqa="separate", **options)
    grouped = flashsim.count(name, gqa="grouped", **options)
    return dict(separate.hbm.by_array), dict(grouped.hbm.by_array)


def test_algorithm_1_reads_k_and_v_once_a_group_by_hand() -> None:
    """N = 8, d = 2, M = 16: B_r = B_c = 2, Nd = 16. Twelve query heads on three: K and V 12·Nd
    each, or 3·Nd.
    """
    heads: Arguments = {"heads": 12, "kv_heads": 3}
    separate, grouped = both("flash_basic", N=8, d=2, M=16, sizing="paper", **heads)
    for array in ("K", "V"):
        assert separate[array].reads == 12 * 16
        assert grouped[array].reads == 3 * 16
        assert separate[array].size == grouped[array].size == 3 * 16
    for array in ("Q", "O", "l", "m"):
        assert separate[array] == grouped[array]
    assert grouped["Q"].reads == 12 * 4 * 16  # T_c = 4, whatever the schedule


def test_live_tiles_of_groups_by_hand() -> None:
    """Causal, N = 4, two heads: rows 0 to 3 are positions 0, 0, 1, 1, so of keys in twos the
    first block needs one, of 2 keys.
    """
    options: Arguments = {
        "N": 4,
        "d": 3,
        "M": 10_000,
        "heads": 2,
        "kv_heads": 1,
        "blocks": (4, 2),
        "causal": True,
    }
    separate, grouped = both("q_outer", **options)
    assert separate["K"].reads == 2 * 4 * 3  # the one row block has position 3
    assert grouped["K"].reads == (2 + 4) * 3
    rng = np.random.default_rng(0)
    Q = rng.normal(size=(2, 5, 3))
    K = rng.normal(size=(1, 8, 3))
    V = rng.normal(size=(1, 8, 3))
    how: Arguments = {"blocks": (4, 2), "M": 1000, "mask": KeyPadding([2, 7])}
    runs = [flashsim.forward("q_outer", Q, K, V, gqa=gqa, **how) for gqa in SCHEDULES]
    reads_separate, reads_grouped = (run.hbm.by_array["K"].reads for run in runs)
    assert reads_separate == (2 * 2 + 2 * 8) * 3  # two row blocks each: one tile, and four
    # three row blocks, each with rows of the head that attends to more
    assert reads_grouped == 3 * 8 * 3
    how = {"M": 100, "gqa": "grouped", "sizing": "fit"}
    fit = flashsim.forward("q_outer", Q, K, V, mask=KeyPadding([2, 7]), **how)
    alike = flashsim.forward("q_outer", Q, K, V, mask=KeyPadding(7), **how)
    assert fit.blocks == alike.blocks  # blocks that fit, though each head has a mask of its own
    assert fit.sram.peak <= 100


def test_summing_over_groups_by_hand() -> None:
    """Algorithm 4, N = 8, d = 2, d_v = 3, six heads on two: parts of 16 and 24, written as zeros
    and once more, and read.
    """
    options: Arguments = {
        "N": 8,
        "d": 2,
        "d_v": 3,
        "M": 20,
        "heads": 6,
        "kv_heads": 2,
        "direction": "backward",
        "sizing": "paper",
    }
    separate, grouped = both("flash", **options)
    for X, elements in (("dK", 16), ("dV", 24)):
        parts = separate[f"{X}_parts"]
        total = separate[X]
        assert (parts.reads, parts.writes, parts.init_writes) == (
            6 * elements,
            12 * elements,
            6 * elements,
        )
        assert (parts.size, parts.role) == (6 * elements, "extra")
        assert (total.reads, total.writes, total.init_writes, total.size) == (
            0,
            2 * elements,
            0,
            2 * elements,
        )
        assert grouped[X].writes == 4 * elements
        assert grouped[X].init_writes == 2 * elements
        assert f"{X}_parts" not in grouped
    tally = flashsim.count("flash", gqa="separate", **options)
    assert tally.hbm.extra == 6 * (16 + 24)


@pytest.mark.parametrize(("M", "tile"), [(1, 1), (2, 1), (5, 2), (12, 6), (100, 12)])
def test_the_sum_takes_tiles_of_half_of_m(M: int, tile: int) -> None:
    rng = np.random.default_rng(0)
    parts = {
        "dK": rng.normal(size=(3, 7)).astype(np.float16),
        "dV": rng.normal(size=(3, 12)).astype(np.float16),
    }
    hbm = HBM()
    sram = SRAM(hbm, M, enforced=M > 1, dtype=np.float32)
    placed = [hbm.place(f"{name}_parts", of_heads) for name, of_heads in parts.items()]
    group_sum.sum_over_group(hbm, sram, *placed)
    assert sram.peak == 2 * tile
    for name, of_heads in parts.items():
        wide = of_heads.astype(np.float32)
        total = wide[0] + wide[1] + wide[2]
        assert np.array_equal(hbm.peek(name)[0], total.astype(np.float16))
    traffic = {name: (array.reads, array.writes) for name, array in hbm.traffic.by_array.items()}
    assert traffic == {
        "dK_parts": (21, 0),
        "dV_parts": (36, 0),
        "dK": (0, 7),
        "dV": (0, 12),
    }
    options: Arguments = {
        "N": 2,
        "d": 1,
        "M": 3,
        "heads": 2,
        "kv_heads": 1,
        "direction": "backward",
    }
    assert (
        flashsim.count("standard", **options).sram.peak
        == 3
        == theory.exact("standard", **options).sram.peak
    )


def test_progress_is_told_by_problem_and_the_induction_holds_for_groups() -> None:
    case = Shared(2, 3, 7, 9, 4, 3, "float32", 5, 4, 3)
    Q, K, V, _ = case.inputs()
    steps = InductionInvariant()
    tiles: Arguments = {"blocks": (4, 2), "M": 500}
    flashsim.forward("flash_basic", Q, K, V, gqa="grouped", observers=[steps], **tiles)
    assert len(steps.steps) == 2 * 5
    messages: list[tuple[int, int]] = []

    def note(*progress: int) -> None:
        messages.append((progress[0], progress[1]))

    flashsim.forward("flash", Q, K, V, on_head=note)
    assert messages == [(n, 6) for n in range(1, 7)]
    messages.clear()
    flashsim.forward("flash", Q, K, V, gqa="grouped", on_head=note)
    assert messages == [(1, 2), (2, 2)]


# --------------------------------------------------------------------------------------------------
# the command line


@pytest.mark.usefixtures("no_pictures")
def test_run_takes_heads_that_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = Shared(2, 3, 12, 16, 4, 4, "float32", 0, 4, 4)
    Q, K, V, _ = case.inputs()
    file = tmp_path / "qkv.npz"
    stem = ["-o", str(tmp_path / "out"), "--quiet", "--json", "-"]
    np.savez(file, q=Q, k=K, v=V)
    reads = {}
    for gqa in SCHEDULES:
        names = ["--algorithm", "standard", "flash"]
        arguments = ["--backward", "--causal", "--dropout", "0.2", "--gqa", gqa, "--M", "80"]
        assert main(["run", "--qkv", str(file), *names, *arguments, *stem]) == 0
        messages = json.loads(capsys.readouterr().out)
        for direction in ("algorithms", "backward"):
            assert all(result["equals_theory"] for result in messages[direction].values())
            assert all(
                result["error_of_rounding_bound"] <= 1 for result in messages[direction].values()
            )
        reads[gqa] = messages["algorithms"]["flash"]["by_array"]["K"]["reads"]
    assert reads["separate"] == 3 * reads["grouped"]
    assert main(["run", "--qkv", str(file), "--head", "4", *stem]) == 0  # with KV head 1
    assert (
        main(
            ["run", "--qkv", str(file), "--gqa", "grouped", "-o", str(tmp_path / "out"), "--quiet"]
        )
        == 0
    )
    assert (
        "6 heads on 2 KV heads, N_q = 12, N_k = 16, d = 4, float32, query heads grouped"
        in capsys.readouterr().out
    )
    for head in range(6):
        one = QKV(Q, K, V, "made up").head(str(head))
        assert np.array_equal(one.Q, Q[head])
        assert np.array_equal(one.K, K[head // 3])
        assert np.array_equal(one.V, V[head // 3])


def test_count_takes_kv_heads(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["count", "flash", "--N", "64", "--d", "8", "--heads", "8", "--kv-heads", "2"]
    for gqa, reads in (("separate", 8 * 512), ("grouped", 2 * 512)):
        assert main([*options, "--gqa", gqa, "--json", "-"]) == 0
        messages = json.loads(capsys.readouterr().out)
        assert messages["equals_theory"]
        assert messages["by_array"]["K"]["reads"] == reads
    assert main([*options, "--gqa", "grouped", "--backward"]) == 0
    assert "one group of 4 heads" in capsys.readouterr().out
    assert main([*options, "--backward"]) == 0
    assert "dK_parts" in capsys.readouterr().out


# --------------------------------------------------------------------------------------------------
# planted bugs

TRIED = [
    Shared(2, 3, 7, 9, 4, 3, "float64", 0, 5, 4),
    Shared(2, 3, 7, 9, 4, 3, "float64", 1, 5, 4, "causal", 0.4),
    Shared(1, 4, 6, 9, 4, 3, "float32", 2, 4, 4, "padding by head", 0.0, 2),
    Shared(2, 2, 5, 9, 4, 3, "float64", 3, 4, 2, "causal & padding by head"),
    Shared(2, 2, 5, 9, 4, 3, "float64", 4, 3, 4, "dense by head (1, N_k)"),
    Shared(2, 2, 6, 9, 4, 3, "float64", 5, 3, 4, "dense"),
    Shared(2, 2, 6, 9, 4, 3, "float64", 6, 3, 4, "tree"),
    Shared(1, 3, 7, 9, 4, 3, "float64", 21, 5, 2, "window & padding by head"),
]


CHECKS = {
    f"{check}, {gqa}"
    for check in ("exact", "gradients", "counts", "counts backward")
    for gqa in SCHEDULES
}


def objections(checks: set[str] = CHECKS) -> Iterator[str]:
    """Yield what of this is wrong with either schedule: O ("exact"), gradients, or counts, run
    against theory.
    """
    schedules = [gqa for gqa in SCHEDULES if any(check.endswith(gqa) for check in checks)]
    for case, name, gqa in product(TRIED, ("flash", "q_outer", "standard"), schedules):
        Q, K, V, dO = case.inputs()
        options = case.options(name) | {"gqa": gqa}
        run = flashsim.forward(name, Q, K, V, **options)
        if of_output(case, name, run) > 1:
            yield f"exact, {gqa}"
        if all(check.startswith("exact") for check in checks):
            continue
        result = flashsim.backward(name, run, dO)
        if of_gradients(case, name, run, result) > 1:
            yield f"gradients, {gqa}"
        if case.mask in PER_HEAD:
            continue
        options.pop("seed", None)
        if run.hbm != theory.exact(name, **case.shape, **options).hbm:
            yield f"counts, {gqa}"
        exact = theory.exact(name, **case.shape, **options, direction="backward")
        if result.hbm != exact.hbm:
            yield f"counts backward, {gqa}"


PLANTED: list[tuple[str, Callable[..., Any], str, str, set[str]]] = [
    (
        "KV head by modulo",
        Inputs.kv,
        "head[-1] // self.group",
        "head[-1] % self.K.shape[-3]",
        {"exact, separate"},
    ),
    (
        "rows not interleaved",
        groups.interleave,
        ".swapaxes(-3, -2)",
        "",
        {"exact, grouped", "gradients, grouped"},
    ),
    (
        "results not taken apart",
        groups.by_head,
        "heads, rows // group, group, width).swapaxes(-3, -2)",
        "heads, group, rows // group, width)",
        {"exact, grouped", "gradients, grouped"},
    ),
    (
        "mask of concatenated heads",
        groups.GroupedMask.allows,
        "rows[mine] // self._group",
        "rows[mine] % (shape.N_q // self._group)",
        {"exact, grouped", "gradients, grouped"},
    ),
    (
        "mask by row, not by position",
        groups.GroupedMask.allows,
        "rows[mine] // self._group",
        "rows[mine]",
        {"exact, grouped"},
    ),
    (
        "mask of the group's first head",
        groups.GroupedMask._heads,
        "+ member",
        "",
        {"exact, grouped"},
    ),
    (
        "mask of the wrong head",
        groups.GroupedMask.allows,
        "rows % self._group == member",
        "rows % self._group == self._group - 1 - member",
        {"exact, grouped"},
    ),
    (
        "live tiles by row",
        groups.GroupedMask.live,
        "rows // self._group",
        "rows",
        {"exact, grouped"},
    ),
    (
        "live tiles of one position fewer",
        groups.GroupedMask.live,
        "(row_ends - 1) // self._group + 1",
        "(row_ends - 1) // self._group",
        {"exact, grouped"},
    ),
    (
        "live for all heads, not for any",
        groups.GroupedMask.live,
        "np.any",
        "np.all",
        {"exact, grouped"},
    ),
    ("keys of the head with fewest", groups.GroupedMask.keys, "max(", "min(", {"exact, grouped"}),
    (
        "a dense array's rows in the wrong order",
        groups._grouped_array,
        "array.repeat(group, axis=-2)",
        "np.concatenate([array] * group, axis=-2)",
        {"exact, grouped"},
    ),
    (
        "dropout of the group's first head",
        TileDropout._kept,
        "+ rows % self._group",
        "",
        {"exact, grouped"},
    ),
    (
        "dropout by row, not by position",
        TileDropout._kept,
        "rows // self._group, cols",
        "rows, cols",
        {"exact, grouped"},
    ),
    (
        "dropout of the KV head's number",
        TileDropout._kept,
        "self._group * self._head + rows % self._group",
        "self._head",
        {"exact, grouped"},
    ),
    (
        "dK not summed",
        group_sum.sum_over_group,
        "sum_i + part_hi",
        "part_hi + 0",
        {"gradients, separate"},
    ),
    (
        "a mean, not a sum",
        group_sum.sum_over_group,
        "sum_i + part_hi",
        "sum_i + part_hi / g",
        {"gradients, separate"},
    ),
    (
        "last head left out",
        group_sum.sum_over_group,
        "sram.loop(g)",
        "sram.loop(g - 1)",
        {"gradients, separate", "counts backward, separate"},
    ),
    (
        "parts of neighbouring groups",
        sums.key_gradients,
        "a.reshape(-1, plan.problem.group, prod(a.shape[-2:]))",
        "a.reshape(plan.problem.group, -1, prod(a.shape[-2:])).swapaxes(0, 1)",
        {"gradients, separate"},
    ),
    (
        "K and V as large as their copies",
        stacking.cost_of,
        "// plan.problem.group",
        "",
        {"counts, separate"},
    ),
    (
        "parts not written",
        outcome.Cost.with_sums,
        'replace(array, role="extra")',
        'replace(array, role="extra", writes=0)',
        {"counts backward, separate"},
    ),
    (
        "parts as large twice",
        outcome.Cost.with_sums,
        "replace(array, size=0)",
        "array",
        {"counts backward, separate"},
    ),
]


def test_the_original_is_not_accused() -> None:
    assert list(objections()) == []


@pytest.mark.parametrize(
    ("bug", "function", "before", "after", "by"), PLANTED, ids=[bug[0] for bug in PLANTED]
)
def test_bugs_are_caught(
    bug: str,
    function: Callable[..., Any],
    before: str,
    after: str,
    by: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swap(function, before, after, monkeypatch)
    with np.errstate(all="ignore"):
        assert unnoticed(by, objections(by)) == set()


def test_the_mask_of_each_query_head_of_a_group_is_what_its_result_attends_to() -> None:
    """A mask by head and a block mask of interleaved rows, as the reference needs them:
    `Plan.attended`.
    """
    rng = np.random.default_rng(0)
    Q = rng.normal(size=(4, 9, 3))
    K = rng.normal(size=(2, 7, 3))
    V = rng.normal(size=(2, 7, 2))
    skip = np.ones((6, 3), bool)  # 2 · 9 rows in blocks of 3, 7 keys in blocks of 3
    skip[1, 0] = skip[2, 1] = skip[4, 2] = False
    run = flashsim.forward(
        "block_sparse",
        Q,
        K,
        V,
        mask=rng.random((4, 9, 7)) < 0.7,
        block_mask=skip,
        gqa="grouped",
        blocks=(3, 3),
        M=200,
    )
    for head in range(4):
        mask = run.plan.attended((head,))
        O = attention(Q[head], K[head // 2], V[head // 2], mask=mask)
        assert np.allclose(run.O[head], O, rtol=1e-12)

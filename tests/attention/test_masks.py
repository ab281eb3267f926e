"""Masks mean what they say, disturb nothing else, and what they forbid is never read."""

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import flashsim
from flashsim import Causal, Dense, KeyPadding, QueryPadding, SlidingWindow
from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.analysis.tune import tune
from flashsim.attention.masks.band import Band
from flashsim.attention.masks.rules import Both, Mask, as_mask
from flashsim.attention.shapes import Shape
from flashsim.memory.traffic import Traffic
from flashsim.reference import (
    attention,
    attention_with_statistics,
    backward_rounding,
    error_bound,
    gradient_bounds,
    gradients,
    rounding,
    score_reach,
)
from tests.helpers.cases import (
    FEW,
    MASKS,
    Arguments,
    Case,
    cases,
    forward_of,
    full_cases,
    of_bound,
    room_for,
)
from tests.helpers.own import module_of

MASKED = tuple(BACKWARD)  # and what has no backward pass, by the kit: test_testing_conformance.py
# where what a mask is does not know of loops
SOME = ("flash", "block_sparse", "q_outer", "memory_efficient", "standard")
OF_POSITIONS = {
    "causal",
    "padding",
    "window",
    "window, left open",
    "causal, offset",
    "window, offset",
    "query padding",
}
KEEP_STATISTICS = [
    name
    for name, algorithm in FORWARD.items()
    if {"l", "m"} <= {*algorithm.returns} and "MASK" in algorithm.parts
]


def tiled(case: Case) -> dict[str, Any]:
    return {
        "M": room_for(case.B_r, case.B_c, case.d, case.d_v, case.N_k),
        "blocks": (case.B_r, case.B_c),
    }


@given(case=cases(masks=tuple(MASKS)))
def test_each_mask_is_what_its_words_say(case: Case) -> None:
    mask, allowed = case.masked()
    shape = Shape(case.N_q, case.N_k, case.d, case.d_v)
    want = np.ones((case.N_q, case.N_k), bool) if allowed is None else allowed
    rule = as_mask(mask, False, shape, ())
    assert np.array_equal(rule.whole(shape, ()), want)


@example(
    case=Case("gaussian", 1, 12, 1, 1, "float64", 0, 1, 11, "packed entry", 0.0)
)  # an empty band
@given(case=cases(masks=tuple(MASKS)))
def test_live_tiles_are_those_with_an_allowed_entry(case: Case) -> None:
    """Exactly those for a mask of positions; never too few where several are combined or an
    array has its say.
    """
    mask, allowed = case.masked()
    shape = Shape(case.N_q, case.N_k, case.d, case.d_v)
    rows = np.arange(0, case.N_q, case.B_r)[:, None]
    cols = np.arange(0, case.N_k, case.B_c)[None, :]
    row_ends = np.minimum(rows + case.B_r, case.N_q)
    col_ends = np.minimum(cols + case.B_c, case.N_k)
    rule = as_mask(mask, False, shape, ())
    live = rule.live(rows, row_ends, cols, col_ends, shape, ())
    band = rule.band(shape, ())
    if band is not None:  # counts and closed forms go by it
        full = rule.full(rows, row_ends, cols, col_ends, shape, ())
        assert np.array_equal(live, band.live(rows, row_ends, cols, col_ends, shape))
        assert np.array_equal(full, band.full(rows, row_ends, cols, col_ends, shape))
    want = np.ones((case.N_q, case.N_k), bool) if allowed is None else allowed
    tiles = np.zeros((len(rows), cols.size), bool)
    for i, top in enumerate(rows[:, 0]):
        for j, left in enumerate(cols[0]):
            tiles[i, j] = want[top : top + case.B_r, left : left + case.B_c].any()
    assert (live | ~tiles).all()
    if case.mask in OF_POSITIONS:
        assert np.array_equal(live, tiles)


def test_causal_by_hand_is_aligned_at_the_bottom_right() -> None:
    def triangle(n: int, k: int) -> list[str]:
        whole = Causal().whole(Shape(n, k, 1, 1), ())
        return ["".join("x" if allowed else "." for allowed in row) for row in whole]

    assert triangle(3, 3) == ["x..", "xx.", "xxx"]
    assert triangle(2, 4) == ["xxx.", "xxxx"]
    assert triangle(4, 2) == ["..", "..", "x.", "xx"]
    assert triangle(1, 3) == ["xxx"]


@pytest.mark.parametrize("name", SOME)
@FEW
@given(case=cases(masks=tuple(MASKS)[1:], dtypes=("float64", "float16"), regimes=("gaussian",)))
def test_an_array_that_says_the_same_gives_the_same_numbers(name: str, case: Case) -> None:
    mask, allowed = case.masked()
    Q, K, V = case.inputs()
    forward_name = forward_of(name)
    by_rule = flashsim.forward(forward_name, Q, K, V, mask=mask, **tiled(case))
    by_array = flashsim.forward(forward_name, Q, K, V, mask=allowed, **tiled(case))
    assert np.array_equal(by_rule.O, by_array.O)
    back_by_rule = flashsim.backward(name, by_rule, case.dO())
    back_by_array = flashsim.backward(name, by_array, case.dO())
    for gradient in ("dQ", "dK", "dV"):
        assert np.array_equal(getattr(back_by_rule, gradient), getattr(back_by_array, gradient))


@pytest.mark.parametrize("name", SOME)
def test_causal_can_be_asked_for_either_way_and_combines(name: str) -> None:
    Q, K, V = Case("gaussian", 9, 14, 4, 3, "float64", 0, 1, 1).inputs()
    forward_name = forward_of(name)
    flag = flashsim.forward(forward_name, Q, K, V, M=60, causal=True)
    mask = flashsim.forward(forward_name, Q, K, V, M=60, mask=Causal())
    assert np.array_equal(flag.O, mask.O)
    assert flag.hbm == mask.hbm
    padding = KeyPadding(10)
    both = flashsim.forward(forward_name, Q, K, V, M=60, causal=True, mask=padding)
    joined = flashsim.forward(forward_name, Q, K, V, M=60, mask=padding & Causal())
    assert np.array_equal(both.O, joined.O)
    assert not np.array_equal(both.O, flag.O)


# ------------------------------------------------------------------------------------------------
# masks that do nothing


@given(case=cases(), policy=st.sampled_from(("paper", "fit", "blocks")))
def test_flash_with_nothing_to_do_is_algorithm_1_bit_for_bit(case: Case, policy: str) -> None:
    Q, K, V = case.inputs()
    options: Arguments = (
        tiled(case) if policy == "blocks" else {"M": tiled(case)["M"], "sizing": policy}
    )
    basic = flashsim.forward("flash_basic", Q, K, V, scale=1.0, **options)
    nothings: tuple[dict[str, Any], ...] = (
        {},
        {"mask": None, "causal": False, "dropout_p": 0.0, "seed": 5},
    )
    for extras in nothings:
        complete = flashsim.forward("flash", Q, K, V, scale=1.0, **options, **extras)
        for values in ("O", "l", "m"):
            assert np.array_equal(getattr(complete, values), getattr(basic, values))
        for counts in ("hbm", "sram", "blocks"):
            assert getattr(complete, counts) == getattr(basic, counts)
    # implicit masks that allow everything read nothing either
    for mask in (
        KeyPadding(case.N_k),
        SlidingWindow(-1, -1),
        SlidingWindow(case.N_q + case.N_k, case.N_q),
    ):
        allowing = flashsim.forward("flash", Q, K, V, scale=1.0, mask=mask, **options)
        assert np.array_equal(allowing.O, basic.O)
        assert allowing.hbm == basic.hbm


@pytest.mark.parametrize("name", SOME)
@FEW
@given(case=cases(regimes=("gaussian", "all very negative")))
def test_masks_that_allow_everything_change_no_number(name: str, case: Case) -> None:
    Q, K, V = case.inputs()
    plain = flashsim.forward(forward_of(name), Q, K, V, **tiled(case))
    masks: tuple[Any, ...] = (
        KeyPadding(case.N_k),
        SlidingWindow(-1, -1),
        np.ones((1, 1), bool),
        np.array(True),
    )
    for mask in masks:
        masked = flashsim.forward(forward_of(name), Q, K, V, mask=mask, **tiled(case))
        assert np.array_equal(masked.O, plain.O)


# --------------------------------------------------------------------------------------------------
# rows and tiles gone


@pytest.mark.parametrize("name", MASKED)
@FEW
@given(case=full_cases())
def test_what_is_wholly_masked_is_zero(name: str, case: Case) -> None:
    """O = 0, ℓ = 0, m = −∞, gradients 0: exactly, and without a warning (pytest makes them
    errors).
    """
    allowed = case.oracle["mask"]
    if allowed is None or case.regime == "±5·10⁴":
        allowed = np.zeros((case.N_q, case.N_k), bool)
        case = replace(case, mask="padding", regime="gaussian")
        options = {**case.options, "mask": KeyPadding(0)}
    else:
        options = case.options
    Q, K, V = case.inputs()
    run = flashsim.forward(forward_of(name), Q, K, V, **options, **tiled(case))
    gradient = flashsim.backward(name, run, case.dO())
    rows = ~allowed.any(axis=1)
    keys = ~allowed.any(axis=0)
    assert (run.O[rows] == 0).all()
    if run.l is not None:
        assert (run.l[rows] == 0).all()
        assert (run.l[~rows] > 0).all()
    for logarithm in (run.m, run.lse):
        if logarithm is not None:
            assert np.isneginf(logarithm[rows]).all()
            assert np.isfinite(logarithm[~rows]).all()
    assert (gradient.dQ[rows] == 0).all()
    assert (gradient.dK[keys] == 0).all()
    assert (gradient.dV[keys] == 0).all()


@given(case=cases(dtypes=("float64", "float32", "float16")), dead=st.integers(1, 4))
def test_leading_tiles_that_are_masked_leave_no_trace(case: Case, dead: int) -> None:
    """A running maximum clamped at 0, or a finite stand-in for −∞, would show where later scores
    are very negative.
    """
    Q, K, V = case.inputs()
    dead *= case.B_c
    rng = np.random.default_rng(case.seed)
    dead_K = rng.normal(size=(dead, case.d)).astype(K.dtype)
    dead_V = rng.normal(size=(dead, case.d_v)).astype(V.dtype)
    longer_K = np.vstack([dead_K, K])
    longer_V = np.vstack([dead_V, V])
    keys = np.arange(dead + case.N_k)
    live = np.broadcast_to(keys >= dead, (case.N_q, len(keys)))
    every = np.ones((case.N_q, case.N_k), bool)
    options = tiled(case)
    options["M"] += dead
    for name in KEEP_STATISTICS:
        forward_name = forward_of(name)
        with_dead = flashsim.forward(forward_name, Q, longer_K, longer_V, mask=live, **options)
        without = flashsim.forward(forward_name, Q, K, V, mask=every, **options)
        for values in ("O", "l", "m"):
            assert np.array_equal(getattr(with_dead, values), getattr(without, values))


@given(case=cases(masks=tuple(MASKS)))
def test_statistics_are_those_of_the_allowed_scores(case: Case) -> None:
    Q, K, V = case.inputs()
    allowed = case.oracle["mask"]
    want = attention_with_statistics(Q, K, V, mask=allowed)
    for name in KEEP_STATISTICS:
        run = flashsim.forward(forward_of(name), Q, K, V, **case.options, **tiled(case))
        assert run.l is not None
        assert run.m is not None
        u = float(np.finfo(run.l.dtype).eps) / 2
        reach = score_reach(Q, K, scale=run.problem.scale, mask=allowed)[:, 0]
        delta = (case.d + 4) * u * reach
        live = np.isfinite(want.m)
        assert np.array_equal(live, np.isfinite(run.m))
        assert of_bound(run.m[live], want.m[live], 2 * delta[live]) <= 1
        additions = case.N_k + 8 * run.blocks.T_c + 8
        relative = 2 * np.expm1(2 * delta) + 2 * additions * u
        assert of_bound(run.l, want.l, relative * want.l) <= 1


# --------------------------------------------------------------------------------------------------
# never read

POISON = (np.nan, np.inf, -np.inf)


@pytest.mark.parametrize("name", MASKED)
@given(
    case=cases(
        masks=tuple(MASKS)[1:],
        dropouts=(0.0, 0.3),
        regimes=("gaussian", "rising", "all very negative"),
    ),
    poison=st.sampled_from(POISON),
    where=st.sampled_from(("K", "V", "K and V")),
)
@FEW
def test_poison_in_keys_that_nobody_attends_to_reaches_nothing(
    name: str, case: Case, poison: float, where: str
) -> None:
    Q, K, V = case.inputs()
    dO = case.dO()
    oracle = case.oracle
    dead = ~oracle["mask"].any(axis=0)
    bad_K = K.copy()
    bad_V = V.copy()
    if "K" in where:
        bad_K[dead] = poison
    if "V" in where:
        bad_V[dead] = poison
    run = flashsim.forward(
        forward_of(name), Q, bad_K, bad_V, check_finite=False, **case.options, **tiled(case)
    )
    rounded = rounding(forward_of(name), run.blocks)
    bound = error_bound(Q, K, V, **rounded, **oracle)
    assert of_bound(run.O, attention(Q, K, V, **oracle), bound) <= 1
    result = flashsim.backward(name, run, dO, check_finite=False)
    rounded = backward_rounding(name, run.blocks, result.blocks)
    bounds = gradient_bounds(Q, K, V, dO, **rounded, **oracle)
    computed = (result.dQ, result.dK, result.dV)
    expected = gradients(Q, K, V, dO, **oracle)
    for gradient, want, most in zip(computed, expected, bounds, strict=True):
        assert of_bound(gradient, want, most) <= 1


@pytest.mark.parametrize("name", MASKED)
@given(
    case=cases(
        masks=("causal", "dense", "dense, few", "window", "first keys"), regimes=("gaussian",)
    ),
    poison=st.sampled_from(POISON),
    which=st.integers(0, 10**6),
    where=st.sampled_from("KV"),
)
@FEW
def test_poison_reaches_those_who_attend_to_it_and_no_others(
    name: str, case: Case, poison: float, which: int, where: str
) -> None:
    Q, K, V = case.inputs()
    dO = case.dO()
    oracle = case.oracle
    key = which % case.N_k
    bad_K = K.copy()
    bad_V = V.copy()
    (bad_K if where == "K" else bad_V)[key] = poison
    run = flashsim.forward(
        forward_of(name), Q, bad_K, bad_V, check_finite=False, **case.options, **tiled(case)
    )
    result = flashsim.backward(name, run, dO, check_finite=False)
    attend = oracle["mask"][:, key]
    rounded = rounding(forward_of(name), run.blocks)
    bound = error_bound(Q, K, V, **rounded, **oracle)
    rounded = backward_rounding(name, run.blocks, result.blocks)
    bounds = gradient_bounds(Q, K, V, dO, **rounded, **oracle)
    expected = gradients(Q, K, V, dO, **oracle)
    pairs = (
        (run.O, attention(Q, K, V, **oracle), bound),
        (result.dQ, expected.dQ, bounds.dQ),
    )
    for values, want, most in pairs:
        if not attend.all():
            assert of_bound(values[~attend], want[~attend], most[~attend]) <= 1
    if where == "V" or np.isnan(poison):
        assert not np.isfinite(run.O[attend].astype(np.float64)).any()
    if where == "V":  # P is untouched, and so is dV
        assert of_bound(result.dV, expected.dV, bounds.dV) <= 1


# --------------------------------------------------------------------------------------------------
# heads

HEADS: Arguments = {
    "one length": KeyPadding(5),
    "a length for each head": KeyPadding([2, 0, 7]),
    "a length for each batch": KeyPadding(np.array([[3], [6]])),
    "a length for each": KeyPadding(np.arange(6).reshape(2, 3)),
    "dense for all": "(6, 7)",
    "dense for each head": "(3, 6, 7)",
    "dense for each batch": "(2, 1, 6, 7)",
    "dense for each": "(2, 3, 6, 7)",
    "dense rows for each": "(2, 3, 1, 7)",
    "causal": Causal(),
    "an offset for each batch": Causal(offset=[[0], [-2]]),
    "an offset for each, and lengths": Causal(offset=np.arange(6).reshape(2, 3))
    & QueryPadding([[4], [6]]),
}


# each name with a third of the kinds, and the other way round: heads do not know of loops
@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for at, name in enumerate(MASKED) for kind in [*HEADS][at % 3 :: 3]],
)
def test_a_batch_of_heads_is_each_head_alone(name: str, kind: str) -> None:
    rng = np.random.default_rng(0)
    Q = rng.normal(size=(2, 3, 6, 4))
    K = rng.normal(size=(2, 3, 7, 4))
    V = rng.normal(size=(2, 3, 7, 5))
    dO = rng.normal(size=(2, 3, 6, 5))
    mask: Any = HEADS[kind]
    if isinstance(mask, str):
        shape = [int(length) for length in mask.strip("()").split(", ")]
        mask = rng.random(shape) < 0.6
    room: Arguments = {"M": 60, "sizing": "paper"}
    forward_name = forward_of(name)
    run = flashsim.forward(forward_name, Q, K, V, mask=mask, **room)
    got = flashsim.backward(name, run, dO)
    forward_sum = Traffic()
    backward_sum = Traffic()
    for b, h in np.ndindex(2, 3):
        alone_mask = of_head(mask, b, h)
        alone = flashsim.forward(forward_name, Q[b, h], K[b, h], V[b, h], mask=alone_mask, **room)
        assert np.array_equal(run.O[b, h], alone.O)
        gradient = flashsim.backward(name, alone, dO[b, h])
        for part in ("dQ", "dK", "dV"):
            assert np.array_equal(getattr(got, part)[b, h], getattr(gradient, part))
        forward_sum = forward_sum + alone.hbm
        backward_sum = backward_sum + gradient.hbm
    assert run.hbm == forward_sum
    assert got.hbm == backward_sum


def of_head(mask: Any, b: int, h: int) -> Any:
    if isinstance(mask, Both):
        return of_head(mask.a, b, h) & of_head(mask.b, b, h)
    if isinstance(mask, KeyPadding | QueryPadding):
        lengths = np.broadcast_to(mask.lengths, (2, 3))
        return type(mask)(lengths[b, h])
    if isinstance(mask, Causal) and mask.per_head:
        return Causal(np.broadcast_to(mask.offset, (2, 3))[b, h])
    if isinstance(mask, np.ndarray):
        of_heads = np.broadcast_to(mask, (2, 3, *mask.shape[-2:]))
        return of_heads[b, h]
    return mask


@pytest.mark.parametrize("name", MASKED)
def test_a_run_keeps_its_own_copies(name: str) -> None:
    """What the caller does to its arrays after the forward pass is nothing to the backward pass."""
    case = Case("gaussian", 9, 11, 4, 3, "float64", 3, 3, 4, "dense", 0.2)

    def gradient(meddle: bool) -> flashsim.Result:
        Q, K, V = case.inputs()
        dense = np.array(case.masked()[1])
        lengths = np.array(8)
        mask = Dense(dense) & KeyPadding(lengths)
        block_mask = {}
        if name == "block_sparse":
            block_mask["block_mask"] = np.eye(3, dtype=bool) | (np.arange(3) == 0)
        options: Arguments = {**tiled(case), **block_mask}
        options |= {"mask": mask, "dropout_p": 0.2}
        run = flashsim.forward(forward_of(name), Q, K, V, **options)
        if meddle:
            for array in (Q, K, V):
                array[...] = 7.0
            dense[...] = ~dense
            lengths[...] = 2
            for array in block_mask.values():
                array[...] = ~array
        return flashsim.backward(name, run, case.dO())

    want = gradient(False)
    got = gradient(True)
    for part in ("dQ", "dK", "dV"):
        assert np.array_equal(getattr(want, part), getattr(got, part))


def test_an_offset_is_where_the_first_query_stands() -> None:
    """By hand; and what needed an array in HBM before costs no access."""

    def shown(mask: Any, n: int, k: int) -> list[str]:
        whole = mask.whole(Shape(n, k, 1, 1), ())
        return ["".join("x" if allowed else "." for allowed in row) for row in whole]

    assert shown(Causal(offset=0), 3, 5) == ["x....", "xx...", "xxx.."]
    assert shown(Causal(offset=2), 2, 5) == ["xxx..", "xxxx."]
    assert shown(Causal(offset=-1), 3, 2) == ["..", "x.", "xx"]
    window = SlidingWindow(1, 0, offset=1)
    assert shown(window, 3, 5) == ["xx...", ".xx..", "..xx."]
    assert shown(QueryPadding(2), 3, 2) == ["xx", "xx", ".."]
    shape: Arguments = {"N_q": 40, "N_k": 60, "d": 4, "M": 400, "blocks": (8, 8)}
    dense = np.tri(40, 60, dtype=bool)
    for name in KEEP_STATISTICS:
        plain = flashsim.count(name, **shape)
        offset = flashsim.count(name, **shape, mask=Causal(offset=0))
        assert (
            offset.hbm.accesses
            <= plain.hbm.accesses
            < flashsim.count(name, **shape, mask=dense).hbm.accesses
        )
    skipped = flashsim.count("block_sparse", **shape, mask=Causal(offset=0), block_mask="live")
    assert skipped.hbm.by_array["l"].reads == 8 * (1 + 2 + 3 + 4 + 5)


def test_masks_are_listed_where_they_are_found() -> None:
    names = {name for name in dir(flashsim.masks) if name[:1].isupper()}
    assert {"ALiBi", "Causal", "Dense", "KeyPadding", "SlidingWindow", "Streaming", "Tree"} <= names
    assert all(isinstance(getattr(flashsim.masks, name), type) for name in names)


def test_masks_show_what_they_are() -> None:
    causal = [Causal(), Causal(offset=0), Causal([[1], [2]])]
    assert repr(causal) == "[Causal(), Causal(offset=0), Causal(offset=[[1], [2]])]"
    windows = [SlidingWindow(2, -1), SlidingWindow(2, 1, 4)]
    assert repr(windows) == "[SlidingWindow(2, -1), SlidingWindow(2, 1, offset=4)]"
    assert repr(QueryPadding(3)) == "QueryPadding(3)"
    assert Causal(offset=[1, 2]) == Causal(np.array([1, 2]))
    assert len({Causal(), Causal(0), Causal([0, 1]), Causal(0)}) == 3
    assert repr(Causal() & KeyPadding([3, 4])) == "Causal() & KeyPadding([3, 4])"
    assert repr(Dense(np.ones((2, 3), bool))) == "Dense(array of shape (2, 3))"


@pytest.mark.parametrize("name", BACKWARD)
def test_poison_in_a_query_that_attends_to_nothing_reaches_no_other(name: str) -> None:
    """Its row of Q and of dO may hold anything: O's others, dK and dV stay finite, and its own
    are 0.
    """
    rng = np.random.default_rng(0)
    Q = rng.normal(size=(9, 3))
    K = rng.normal(size=(7, 3))
    V = rng.normal(size=(7, 2))
    dO = rng.normal(size=(9, 2))
    mask = np.ones((9, 7), bool)
    mask[4] = False
    clean = flashsim.forward(forward_of(name), Q, K, V, mask=mask, M=200)
    wanted = flashsim.backward(name, clean, dO)
    Q[4] = np.nan
    dO[4] = np.inf
    options: Arguments = {"mask": mask, "M": 200, "check_finite": False}
    run = flashsim.forward(forward_of(name), Q, K, V, **options)
    got = flashsim.backward(name, run, dO, check_finite=False)
    assert np.array_equal(run.O, clean.O)
    assert not run.O[4].any()
    for part in ("dQ", "dK", "dV"):
        gradient = getattr(got, part)
        assert np.allclose(gradient, getattr(wanted, part), rtol=0, atol=1e-14), part


AN_ARRAY = "returned an array of"
BOOLEANS = "expected booleans of shape (2, 3)"
OWN_MASKS = {
    "numbers to add": (
        "np.where(rows[:, None] >= cols, 0.0, -np.inf)",
        f"{AN_ARRAY} float64 of shape (2, 3); expected",
    ),
    "nothing": ("None", f"returned None; {BOOLEANS}, True = attend, such as rows[:, None] >= cols"),
    "one of a tile": ("True", f"returned True; {BOOLEANS}"),
    "columns down": ("rows >= cols[:, None]", f"{AN_ARRAY} bool of shape (3, 2); {BOOLEANS}"),
    "lists": ("[[bool(i >= j) for j in cols] for i in rows]", BOOLEANS),
    "integers": (
        "(rows[:, None] >= cols).astype(np.int64)",
        f"{AN_ARRAY} int64 of shape (2, 3); {BOOLEANS}",
    ),
    "too much": ("rows[:, None] >= cols, True", "returned (array"),
    "a name that there is not": ("rows[:, None] >= colz", "name 'colz' is not defined"),
}


@pytest.mark.parametrize(("returned", "said"), OWN_MASKS.values(), ids=list(OWN_MASKS))
def test_a_mask_of_ones_own_that_returns_what_it_should_not(
    returned: str, said: str, tmp_path: Path
) -> None:
    lines = f"""import flashsim, numpy as np
class Mine(flashsim.Mask):
    def allows(self, rows, cols, shape, head):
        return {returned}
"""
    mine = module_of(lines, tmp_path / "mask.py").Mine()
    Q, K, V = np.ones((3, 4, 2))
    asked: dict[str, Any] = {"blocks": (4, 2), "M": 100}
    for mask in (mine, mine & Causal(), SlidingWindow(1, 1) & mine):
        with pytest.raises((TypeError, NameError), match=re.escape(said)) as caught:
            flashsim.forward("flash", Q, K, V, mask=mask, **asked)
        assert f" of {tmp_path / 'mask.py'}: " in caught.value.__notes__[0]
        with pytest.raises((TypeError, NameError)) as counted:
            flashsim.count("flash", N=4, d=2, mask=mask, **asked)
        assert str(counted.value) == str(caught.value)
        assert counted.value.__notes__ == caught.value.__notes__
    said = said.replace("(2, 3)", "(4, 6)").replace("(3, 2)", "(6, 4)")
    with pytest.raises((TypeError, NameError), match=re.escape(said)):
        flashsim.prove(N_q=4, N_k=6, d=2, M=100, mask=mine)


class TooFew(Mask):
    """Every second key, by an `allows` that lacks two parameters."""

    def allows(self, rows: Any, cols: Any) -> Any:  # type: ignore[override]
        return (cols % 2 == 0) & (rows[:, None] >= 0)


SMALL: Arguments = {"N": 8, "d": 2, "M": 100}
COUNTS: dict[str, Callable[[Mask], object]] = {
    "flash": lambda mask: flashsim.count("flash", **SMALL, mask=mask),
    "standard": lambda mask: flashsim.count("standard", **SMALL, mask=mask),
    "backward": lambda mask: flashsim.count("flash", **SMALL, direction="backward", mask=mask),
    "tune": lambda mask: tune(**SMALL, mask=mask),
    "theory": lambda mask: flashsim.theory.exact("flash", **SMALL, mask=mask),
    "devices": lambda mask: flashsim.devices.count("ring", **SMALL, P=2, mask=mask),
}


@pytest.mark.parametrize("count", COUNTS.values(), ids=[*COUNTS])
def test_every_count_tries_a_mask_of_ones_own_on_one_tile(
    count: Callable[[Mask], object],
) -> None:
    with pytest.raises(
        TypeError, match="allows\\(\\) takes 3 positional arguments but 5 were given"
    ):
        count(TooFew())


@pytest.mark.parametrize("mask", [TooFew, Causal])
def test_a_mask_s_class_is_to_be_called(mask: Any) -> None:
    expected = f"mask is the class {mask.__name__}; expected an object; call it: {mask.__name__}()"
    with pytest.raises(ValueError, match=re.escape(expected)):
        flashsim.count("flash", **SMALL, mask=mask)
    with pytest.raises(ValueError, match=re.escape(expected)):
        flashsim.count("flash", **SMALL, mask=Causal() & mask)
    with pytest.raises(ValueError, match=re.escape(expected)):
        flashsim.forward("flash", *np.ones((3, 4, 2)), mask=mask)


def test_a_mask_is_found_in_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else has to name it."""
    assert flashsim.attention.masks.KeyPadding is KeyPadding
    text = "from flashsim.attention.masks.rules import Causal\n\nclass Mine(Causal): pass\n"
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(
        flashsim.attention.masks, "__path__", [*flashsim.attention.masks.__path__, str(tmp_path)]
    )
    try:
        assert flashsim.attention.masks.Mine.__module__ == "flashsim.attention.masks.mine"
        assert (
            flashsim.attention.masks.Causal is Causal
        )  # where it is defined, not where it is imported
    finally:
        sys.modules.pop("flashsim.attention.masks.mine", None)
    with pytest.raises(
        AttributeError, match=r"module 'flashsim\.attention\.masks' has no attribute 'Nobody'"
    ):
        _ = flashsim.attention.masks.Nobody


class EvenKeys(Mask):
    """Every second key, which says wrongly of tiles that they are empty, or full."""

    def __init__(self, wrong: str) -> None:
        self.wrong = wrong

    def allows(self, rows: Any, cols: Any, shape: Any, head: Any) -> Any:
        return np.broadcast_to(cols % 2 == 0, (len(rows), len(cols)))

    def live(
        self, rows: Any, row_ends: Any, cols: Any, col_ends: Any, shape: Any, head: Any
    ) -> Any:
        shape_of_tiles = np.broadcast_shapes(np.shape(rows), np.shape(cols))
        everywhere = np.broadcast_to(True, shape_of_tiles)
        return everywhere & (cols >= 16) if self.wrong == "live" else everywhere

    def full(
        self, rows: Any, row_ends: Any, cols: Any, col_ends: Any, shape: Any, head: Any
    ) -> Any:
        shape_of_tiles = np.broadcast_shapes(np.shape(rows), np.shape(cols))
        nowhere = np.broadcast_to(False, shape_of_tiles)
        return nowhere | (cols >= 48) if self.wrong == "full" else nowhere


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("also", [None, flashsim.Causal()])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("wrong", ["live", "full"])
def test_a_mask_that_contradicts_itself_is_refused(
    wrong: str, first: bool, also: Any, heads: int
) -> None:
    """O was wrong, and nothing said so: a tile that is called empty is skipped."""
    Q = np.random.default_rng(0).normal(size=(heads, 64, 4))
    K = V = Q[:1]
    mask: Any = EvenKeys(wrong)
    if also is not None:
        mask = mask & also if first else also & mask
    for gqa in ("separate", "grouped"):
        with pytest.raises(ValueError, match=rf"{wrong}\(\) calls the tile .* agree with allows"):
            flashsim.forward("q_outer", Q, K, V, M=600, mask=mask, gqa=gqa)
    with pytest.raises(ValueError, match="agree with allows"):
        flashsim.count("q_outer", N=64, d=4, M=600, mask=mask)
    right: Any = EvenKeys("") if also is None else EvenKeys("") & also
    run = flashsim.forward("q_outer", Q, K, V, M=600, mask=right)
    keys = np.arange(64)
    pairs = np.broadcast_to(keys % 2 == 0, (64, 64))
    if also is not None:
        pairs = pairs & (keys <= keys[:, None])
    want = flashsim.reference.attention(Q, K, V, mask=pairs)
    assert np.abs(run.O - want).max() < 1e-12


class Diagonals(Mask):
    """Every seventh diagonal, which no band is; `live` knows its empty tiles, and `band`, which is
    wider, does not.
    """

    def allows(self, rows: Any, cols: Any, shape: Any, head: Any) -> Any:
        return (rows[:, None] - cols) % 7 == 0

    def band(self, shape: Shape, head: Any) -> Band:
        return Band(None, None, shape.N_k, is_exact=False)


class LiveDiagonals(Diagonals):
    def live(
        self, rows: Any, row_ends: Any, cols: Any, col_ends: Any, shape: Any, head: Any
    ) -> Any:
        return (row_ends - 1 - cols) // 7 * 7 >= rows - (col_ends - 1)


class FullDiagonals(Diagonals):
    def full(
        self, rows: Any, row_ends: Any, cols: Any, col_ends: Any, shape: Any, head: Any
    ) -> Any:
        one_element = (row_ends - rows == 1) & (col_ends - cols == 1)
        return one_element & ((rows - cols) % 7 == 0)


@pytest.mark.parametrize("method", ["live", "full"])
def test_tiles_that_differ_from_the_band_are_refused(method: str) -> None:
    """The run skipped tiles that the count and the closed form had, and nothing said so."""
    mask = {"live": LiveDiagonals, "full": FullDiagonals}[method]()
    X = np.random.default_rng(0).normal(size=(43, 4))  # the last tile is of one row and column
    tiles: Arguments = {"M": 500, "blocks": (2, 2)}
    sizes: Arguments = {"N": 43, "d": 4, "dtype": "float64", **tiles}
    sizes["mask"] = mask
    match = rf"{method}\(\) and band\(\) differ on the tile"
    with pytest.raises(ValueError, match=match):
        flashsim.forward("q_outer", X, X, X, mask=mask, **tiles)
    with pytest.raises(ValueError, match=match):
        flashsim.count("q_outer", **sizes)
    with pytest.raises(ValueError, match=match):
        flashsim.theory.exact("q_outer", **sizes)
    with pytest.raises(ValueError, match=match):
        flashsim.devices.count("ring", P=2, **sizes)
    sizes["mask"] = Diagonals()
    run = flashsim.forward("q_outer", X, X, X, mask=Diagonals(), **tiles)
    assert run.hbm == flashsim.count("q_outer", **sizes).hbm
    assert run.hbm == flashsim.theory.exact("q_outer", **sizes).hbm


class OfEmptyBand(Mask):
    """A band without a distance inside."""

    def allows(self, rows: Any, cols: Any, shape: Any, head: Any) -> Any:
        return np.zeros((len(rows), len(cols)), bool)

    def band(self, shape: Shape, head: Any) -> Band:
        return Band(1, -3, shape.N_k)


def test_an_empty_band_has_no_live_tile() -> None:
    """Near the diagonal a run had tiles that its count and closed form had not."""
    X = np.ones((12, 4))
    mask = OfEmptyBand()
    tiles: Arguments = {"M": 1000, "blocks": (3, 4), "mask": mask}
    sizes: Arguments = {"N": 12, "d": 4, "dtype": "float64", **tiles}
    run = flashsim.forward("q_outer", X, X, X, **tiles)
    assert run.hbm == flashsim.count("q_outer", **sizes).hbm
    assert run.hbm == flashsim.theory.exact("q_outer", **sizes).hbm
    assert run.hbm.by_array["K"].reads == 0


class OfOneHead(EvenKeys):
    """Only the last head's tiles are wrong."""

    per_head = True

    def live(
        self, rows: Any, row_ends: Any, cols: Any, col_ends: Any, shape: Any, head: Any
    ) -> Any:
        self.wrong = "live" if head[-1:] == (3,) else ""
        return super().live(rows, row_ends, cols, col_ends, shape, head)


def test_a_mask_that_contradicts_itself_for_one_head_is_refused() -> None:
    Q = np.random.default_rng(0).normal(size=(4, 64, 4))
    with pytest.raises(ValueError, match="agree with allows"):
        flashsim.forward("q_outer", Q, Q, Q, M=600, mask=OfOneHead(""))

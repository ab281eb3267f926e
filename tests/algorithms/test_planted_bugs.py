"""Break it to trust it: each planted bug must be caught by a check that our tests rely on.

A bug is a change to the text of an algorithm, which makes a record of its own
(`flashsim.tracing.planting`), or to the text of what it is given. The mutant runs, and the named
checks, the same that the other tests make, must notice; others are not made. For Algorithms 0 and 1
without mask and dropout:

    exact       O within its rounding bound
    induction   the proof's invariant after every outer step
    counts      accesses and peak, against theory
    count only  the same, counted on shapes alone
    refused     the memory refuses the program
    escape      a result that was never registered

For the others, on masks and dropout, forward and backward:

    exact, statistics, gradients   O; ℓ and m, or L; dQ, dK, dV, within their bounds
    dO = 1      the gradients for a dO of ones: what a careless test would see
    poison      NaN in masked keys and values stays there
    refused     the memory refuses the program, or does not find what was not saved
    counts      accesses and peak, against theory
"""

import itertools
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import theory
from flashsim.algorithms import BACKWARD, FORWARD, Algorithm, softmax_rows
from flashsim.attention.masks import band, dropout, paddings
from flashsim.attention.masks import rules as masks
from flashsim.memory.errors import MemoryModelError
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
from flashsim.simulate import tile_masks
from flashsim.tracing.observers import InductionInvariant, InvariantBroken
from flashsim.tracing.planting import planted
from tests.helpers.bugs import FLASH, LONG_ROWS, STANDARD, TEXTS, UNSEEN_WITH_ONES
from tests.helpers.cases import REGIMES, Arguments, Case, of_bound, on_each, swap, unnoticed
from tests.helpers.watching import watching_locals

SHAPE: Arguments = {"N_q": 13, "N_k": 22, "d": 4, "d_v": 3}


def on_regimes(algorithm: Algorithm, M: int = 96) -> Iterator[str]:
    """Make the checks that our tests make, and yield those that object."""
    options: Arguments = {**SHAPE, "M": M, "dtype": "float64"}
    exact = theory.exact(algorithm.name, **options)
    with np.errstate(all="ignore"):
        for seed, regime in itertools.product(range(3), REGIMES):
            Q, K, V = Case(regime, 13, 22, 4, 3, "float64", seed, 1, 1).inputs()
            escaped: list[str] = []
            try:
                if seed == 0:
                    with watching_locals(escaped):
                        flashsim.forward(algorithm, Q, K, V, M=M)
                run = flashsim.forward(algorithm, Q, K, V, M=M)
                if algorithm.name == "flash_basic":
                    flashsim.forward(algorithm, Q, K, V, M=M, observers=[InductionInvariant()])
            except InvariantBroken:
                yield "induction"
            except MemoryModelError:
                yield "refused"
                return
            if escaped:
                yield "escape"
            bound = error_bound(Q, K, V, **rounding(algorithm, run.blocks))
            if of_bound(run.O, attention(Q, K, V), bound) > 1:
                yield "exact"
            if (run.hbm, run.sram) != (exact.hbm, exact.sram):
                yield "counts"
            try:
                differs = flashsim.count(algorithm, **options).hbm != exact.hbm
            except MemoryModelError:  # it is run on small numbers first, and is not attention
                differs = True
            if differs:
                yield "count only"


def each(*tables: tuple[Any, ...]) -> list[Any]:
    """Return a parameter for each bug of (algorithm, …, bugs): what is before bugs, and the bug."""
    return [
        pytest.param(*before, *bug[1:], id=f"{before[0].title}: {bug[0]}")
        for *before, bugs in tables
        for bug in bugs
    ]


@pytest.mark.parametrize(("name", "M"), [("flash_basic", 96), ("standard", 96), ("standard", 20)])
def test_the_original_is_not_accused(name: str, M: int) -> None:
    assert list(on_regimes(FORWARD[name], M)) == []


@pytest.mark.parametrize(
    ("algorithm", "within", "M", "before", "after", "by"),
    each(
        (FORWARD["flash_basic"], None, 96, FLASH),
        (FORWARD["standard"], None, 96, STANDARD),
        (FORWARD["standard"], softmax_rows.long_rows, 20, LONG_ROWS),
    ),
)
def test_bugs_in_algorithms_0_and_1_are_caught(
    algorithm: Algorithm, within: Any, M: int, before: str, after: str, by: set[str]
) -> None:
    mutant = planted(algorithm, (before, after), within=within)
    assert unnoticed(by, on_regimes(mutant, M)) == set()


# ----------------------------------------------------------------- all others, on masks and dropout

OFFSET = "cols - rows[:, None]"
HEAD = "at_head(self.lengths, head)"
LEFT = "left = j * self._B_c"
PARTS = [
    ("causal one too far", band.Band.allows, OFFSET, f"{OFFSET} - 1", {"exact", "gradients"}),
    ("causal one too short", band.Band.allows, OFFSET, f"{OFFSET} + 1", {"exact", "gradients"}),
    (
        "causal aligned at the top left",
        band.Band._meets,
        "shift = shape.N_k - shape.N_q",
        "shift = 0",
        {"exact"},
    ),
    ("window's right end left out", band.Band._meets, "least <= self", "least < self", {"exact"}),
    ("window's left end left out", band.Band._meets, "most >= shift", "most > shift", {"exact"}),
    (
        "padding one key too long",
        paddings.KeyPadding.band,
        HEAD,
        f"{HEAD} + 1",
        {"exact", "poison"},
    ),
    ("padding one query too long", paddings.QueryPadding.band, HEAD, f"{HEAD} + 1", {"exact"}),
    ("offset the wrong way", masks.SlidingWindow.band, "at_head(np", "-at_head(np", {"exact"}),
    (
        "rows counted in columns' blocks",
        tile_masks.TileMask.__call__,
        "i * self._B_r",
        "i * self._B_c",
        {"exact"},
    ),
    (
        "columns counted in rows' blocks",
        tile_masks.TileMask.__call__,
        LEFT,
        LEFT.replace("_B_c", "_B_r"),
        {"exact"},
    ),
    (
        "a finite number for −∞",
        tile_masks.TileMask.__call__,
        "-math.inf",
        "-1e4",
        {"exact", "statistics"},
    ),
    (
        "dropout by place in the tile",
        dropout.TileDropout._kept,
        "top = i * self._B_r\n        left = j * self._B_c",
        "top = left = 0",
        {"exact"},
    ),
    ("not divided by 1 − p", dropout.TileDropout.__call__, "1 / (1 - self._p)", "1.0", {"exact"}),
    ("divided by p", dropout.TileDropout.__call__, "1 / (1 - self._p)", "1 / self._p", {"exact"}),
]
VARIANTS = [
    Case(regime, *lengths, 4, 3, "float64", seed, 3, 5, mask, p)
    for seed, (regime, lengths, mask, p) in enumerate(
        [
            ("gaussian", (13, 22), "none", 0.0),
            ("gaussian", (13, 22), "none", 0.4),
            ("gaussian", (13, 22), "causal", 0.4),
            ("gaussian", (13, 9), "causal", 0.0),
            ("rising", (13, 22), "first keys", 0.0),
            ("falling", (13, 22), "first keys", 0.4),
            ("all very negative", (13, 22), "first keys", 0.0),
            ("gaussian", (9, 22), "window", 0.0),
            ("outliers", (13, 22), "dense, few", 0.4),
            ("gaussian", (13, 22), "padding", 0.4),
            ("gaussian", (13, 22), "all together", 0.0),
            ("gaussian", (13, 22), "packed entry", 0.0),
            ("gaussian", (13, 22), "causal, offset", 0.0),
        ]
    )
]


ALONE = {
    "q_outer_pinned": (220, 3),
    "snake": (400, 3),
    "small_cache": (400, 6),
    "small_cache_hybrid": (12, 3),
    "streamed": (300, 9),
    "tiles_streamed": (400, 9),
    "hybrid_streamed": (10, 9),
}
"""Of those that run forward alone here: M, with room to pin some blocks, not all; and d_v, for O
of several tiles.
"""


CHECKS = frozenset({"exact", "statistics", "gradients", "poison", "refused", "counts"})


def on_variants(algorithm: Algorithm, checks: Collection[str] = CHECKS) -> Iterator[str]:
    """Run both passes on masks and dropout, the other one as it is, and yield those of the
    checks that object.
    """
    if "counts" in checks:
        with np.errstate(all="ignore"):
            try:
                if not counted_as_known(algorithm):
                    yield "counts"
            except (MemoryModelError, LookupError, ValueError):
                yield "counts"
    if {*checks} != {"counts"}:
        yield from on_each(variants(algorithm), objections, algorithm, checks)


def variants(algorithm: Algorithm) -> list[Case]:
    return (
        [replace(case, d_v=ALONE[algorithm.name][1]) for case in VARIANTS]
        if alone(algorithm)
        else VARIANTS
    )


def alone(algorithm: Algorithm) -> bool:
    return algorithm.direction == "forward" and algorithm.name in ALONE


def passes(algorithm: Algorithm) -> list[Algorithm]:
    """Return the forward pass and the backward pass, of which the algorithm is one; or it alone."""
    if algorithm.direction == "backward":
        return [FORWARD[algorithm.forward_pass], algorithm]
    return [algorithm] if alone(algorithm) else [algorithm, BACKWARD[algorithm.name]]


def how(algorithm: Algorithm, case: Case) -> dict[str, Any]:
    blocks = 1 if algorithm.name == "memory_efficient" else case.B_r, case.B_c
    options: Arguments = {
        "M": 400,
        "blocks": blocks,
        "mask": case.masked()[0],
        "dropout_p": case.dropout_p,
    }
    if alone(algorithm):
        del options["blocks"]
        options |= {
            "M": ALONE[algorithm.name][0],
            "sizing": flashsim.Fixed(case.B_r, case.B_c, enforced=False),
        }
    if algorithm.name == "block_sparse":
        T_r = -(-case.N_q // case.B_r)
        T_c = -(-case.N_k // case.B_c)
        causal = np.tri(T_r, T_c, max(T_r - T_c, 0), dtype=bool)
        last_column = np.arange(T_c) == T_c - 1
        options["block_mask"] = causal | last_column
    return options


def counted_as_known(algorithm: Algorithm) -> bool:
    """Say whether both passes move what theory says, on a variant with all parts, and with tiles
    that positions forbid.
    """
    cases = variants(algorithm)
    registry = FORWARD if algorithm.direction == "forward" else BACKWARD
    original = registry[algorithm.name]
    tried = [cases[number] for number in (5, 2, 3, 7)]
    for one, case in itertools.product(passes(algorithm), tried):
        if one is not algorithm and algorithm is not original:  # its other pass, which is as it is
            continue
        options = {**case.shape, **how(algorithm, case)}
        tally = flashsim.count(one, **options, direction=one.direction)
        if (tally.hbm, tally.sram) != known(one.name, one.direction, original, case):
            return False
    return True


@cache
def known(name: str, direction: str, of: Algorithm, case: Case) -> tuple[Any, Any]:
    """What theory says of a pass of this algorithm."""
    options = how(of, case)
    if options.pop("sizing", None):
        options |= {"blocks": (case.B_r, case.B_c), "enforce": False}
    exact = theory.exact(name, **case.shape, **options, direction=direction)
    return exact.hbm, exact.sram


@cache
def oracle_of(case: Case, sparse: bool) -> tuple[dict[str, Any], Any]:
    """What the reference takes, and what it says of the forward pass."""
    oracle = case.oracle
    if sparse:
        block_mask = how(FORWARD["block_sparse"], case)["block_mask"]
        tile = np.ones((case.B_r, case.B_c), bool)
        tiles = np.kron(block_mask, tile)[: case.N_q, : case.N_k]
        oracle["mask"] = tiles if oracle["mask"] is None else tiles & oracle["mask"]
    return oracle, attention_with_statistics(*case.inputs(), **oracle)


@cache
def gradients_of(case: Case, sparse: bool, check: str) -> tuple[Any, Any]:
    """dO, and the gradients that the reference has for it."""
    dO = case.dO() if check == "gradients" else np.ones_like(case.dO())
    return dO, gradients(*case.inputs(), dO, **oracle_of(case, sparse)[0])


Items = tuple[tuple[str, Any], ...]
"""Keyword arguments as a cache's key."""


@cache
def bounds_of(case: Case, sparse: bool, check: str, rounded: Items) -> Any:
    dO, _ = gradients_of(case, sparse, check)
    Q, K, V = case.inputs()
    oracle, _ = oracle_of(case, sparse)
    return gradient_bounds(Q, K, V, dO, **dict(rounded), **oracle)


@cache
def as_it_is(name: str, case: Case) -> flashsim.Result:
    """The forward pass before a backward pass, which reads it."""
    back = BACKWARD[name]
    options = {**how(back, case), "seed": case.seed}
    return flashsim.forward(back.forward_pass, *case.inputs(), **options)


def objections(algorithm: Algorithm, case: Case, checks: Collection[str] = CHECKS) -> Iterator[str]:
    Q, K, V = case.inputs()
    ahead, *backward = passes(algorithm)
    sparse = algorithm.name == "block_sparse"
    options = {**how(algorithm, case), "seed": case.seed}
    oracle, want = oracle_of(case, sparse)
    if algorithm.direction == "backward" and algorithm is not BACKWARD[algorithm.name]:  # a mutant
        run = as_it_is(algorithm.name, case)
    else:
        run = flashsim.forward(ahead, Q, K, V, **options)
    if "exact" in checks:
        bound = error_bound(Q, K, V, **rounding(ahead, run.blocks), **oracle)
        if of_bound(run.O, want.O, bound) > 1:
            yield "exact"
    reach = score_reach(Q, K, scale=run.problem.scale, mask=oracle["mask"])[:, 0]
    if "statistics" in checks and run.l is not None and run.m is not None:
        delta = (case.d + 4) * 2**-53 * reach
        additions = case.N_k + 8 * run.blocks.T_c + 8
        relative = 2 * np.expm1(2 * delta) + 2 * additions * 2**-53
        live = np.isfinite(want.m)
        wrong_l = of_bound(run.l, want.l, relative * want.l) > 1
        wrong_rows = not np.array_equal(np.isfinite(run.m), live)
        if wrong_l or wrong_rows or of_bound(run.m[live], want.m[live], 2 * delta[live]) > 1:
            yield "statistics"
    if run.lse is not None and "statistics" in checks:
        with np.errstate(divide="ignore"):
            expected = want.m + np.log(want.l)
        live = np.isfinite(expected)
        off = (
            2 * (case.d + 4) * reach
            + 2 * run.blocks.T_c * (reach + 1)
            + case.N_k
            + 8 * run.blocks.T_c
            + 8
        ) * 2**-53
        if (
            not np.array_equal(np.isfinite(run.lse), live)
            or of_bound(run.lse[live], expected[live], 4 * off[live]) > 1
        ):
            yield "statistics"
    for check, back in itertools.product(
        [c for c in ("gradients", "dO = 1") if c in checks], backward
    ):
        dO, exact = gradients_of(case, sparse, check)
        result = flashsim.backward(back, run, dO)
        rounded = backward_rounding(back, run.blocks, result.blocks)
        bounds = bounds_of(case, sparse, check, tuple(rounded.items()))
        computed = (result.dQ, result.dK, result.dV)
        errors = [of_bound(*three) for three in zip(computed, exact, bounds, strict=True)]
        if any(error > 1 for error in errors):
            yield check
    mask = oracle["mask"]
    dead = np.zeros(case.N_k, bool) if mask is None else ~mask.any(axis=0)
    if dead.any() and "poison" in checks:
        K[dead] = V[dead] = np.nan
        run = flashsim.forward(ahead, Q, K, V, check_finite=False, **options)
        numbers = [run.O]
        for back in backward:
            result = flashsim.backward(back, run, case.dO(), check_finite=False)
            numbers += [result.dQ, result.dK, result.dV]
        if not all(np.isfinite(a).all() for a in numbers):
            yield "poison"


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", [*BACKWARD.values(), *map(FORWARD.__getitem__, ALONE)], ids=lambda one: one.title
)
def test_the_original_is_not_accused_on_masks_and_dropout(algorithm: Algorithm) -> None:
    assert list(on_variants(algorithm)) == []
    allowed = [case.oracle["mask"] for case in VARIANTS if case.oracle["mask"] is not None]
    assert any(not a.any(axis=0).all() for a in allowed)  # keys to poison
    assert any(not a.any(axis=1).all() for a in allowed)  # rows without a key


@pytest.mark.filterwarnings("ignore:the accesses are equal")  # of a bug that stores another type
@pytest.mark.parametrize(("algorithm", "within", "before", "after", "by"), each(*TEXTS))
def test_bugs_in_the_text_are_caught(
    algorithm: Algorithm, within: Any, before: str, after: str, by: set[str]
) -> None:
    checks = CHECKS if "refused" in by else by  # the memory may refuse either pass
    assert (
        unnoticed(by, on_variants(planted(algorithm, (before, after), within=within), checks))
        == set()
    )


@pytest.mark.parametrize(
    ("bug", "function", "before", "after", "by"), PARTS, ids=[bug[0] for bug in PARTS]
)
def test_bugs_in_mask_and_dropout_are_caught_by_every_algorithm(
    bug: str, function: Any, before: str, after: str, by: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    swap(function, before, after, monkeypatch)
    for name in ("flash", "rabe_staats"):
        assert unnoticed(by, on_variants(BACKWARD[name], by)) == set()
    if bug != "columns counted in rows' blocks":  # its passes over S take whole rows
        assert unnoticed(by - {"statistics"}, on_variants(BACKWARD["standard"], by)) == set()


@pytest.mark.parametrize(
    ("bug", "before", "after"), UNSEEN_WITH_ONES, ids=[bug[0] for bug in UNSEEN_WITH_ONES]
)
def test_a_gradient_of_ones_would_miss_what_a_random_one_catches(
    bug: str, before: str, after: str
) -> None:
    wrong = planted(BACKWARD["flash"], (before, after))
    noticed = {
        check for case in VARIANTS for check in objections(wrong, case, ["gradients", "dO = 1"])
    }
    assert "gradients" in noticed
    assert "dO = 1" not in noticed

"""Attention for a small cache: exact, counted to the element, within Saha and Ye's bound, and bugs in it are caught."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashsim
from flashsim import theory
from flashsim.algorithms import FORWARD, Algorithm, small_cache
from flashsim.machine.memory import Event
from flashsim.problem.shapes import Blocks
from flashsim.reference import attention, attention_with_statistics, error_bound, rounding, score_reach
from flashsim.tracing.planting import mutated, planted
from flashsim.verify import optimality
from flashsim.verify.shared import accesses

from .cases import DTYPES, Case, of_bound, on_each, unnoticed
from .test_planted_bugs import VARIANTS

# ------------------------------------------------------------------------------------------------------ counted by hand


def moved(tally: flashsim.Tally | flashsim.Run | theory.Exact) -> dict[str, tuple[int, int]]:
    return {array: (a.reads, a.writes) for array, a in tally.hbm.by_array.items()}


def test_counts_by_hand() -> None:
    """N_q = 5 in 2, 2, 1 rows; N_k = 7 in 3, 3, 1; d = 2 columns; d_v = 4 in 3 and 1."""
    shape: dict[str, Any] = {"N_q": 5, "N_k": 7, "d": 2, "d_v": 4, "M": 1000, "blocks": (2, 3)}
    for tally in (flashsim.count("small_cache", **shape), theory.exact("small_cache", **shape)):
        assert tally.blocks == Blocks(2, 3, 3, 3)
        assert moved(tally) == {
            "Q": (3 * 10, 0),
            "K": (3 * 14, 0),
            "V": (3 * 28, 0),
            "S": (2 * 35, 35),
            "O": (0, 20),
            "L": (0, 5),
        }
        # S_ij 2·3, ℓ_i and m_i 2·2, Q_ik 2 and K_jk 3; a strip of 2·7 and L in HBM
        assert tally.sram.peak == 6 + 4 + 5
        assert tally.hbm.extra == 2 * 7 + 5
    assert flashsim.count("small_cache", **shape).flops.matmul == 2 * 35 * (2 + 4)
    masked = flashsim.count("small_cache", **shape, mask=np.ones((5, 7), bool))
    assert moved(masked) == {**moved(flashsim.count("small_cache", **shape)), "mask": (35, 0)}
    assert masked.sram.peak == 6 + 4 + 2 + 6  # m_i^new and the mask's tile


def test_a_run_by_hand() -> None:
    """N = 2, d = 1, tiles of one element; scores 0 and log 3, and log 3 and log 9."""
    Q, K, V = np.array([[1.0], [2.0]]), np.array([[0.0], [math.log(3)]]), np.array([[4.0], [8.0]])
    run = flashsim.forward("small_cache", Q, K, V, M=5, scale=1.0)
    assert run.blocks == Blocks(1, 1, 2, 2)
    np.testing.assert_allclose(run.O, [[(4 + 3 * 8) / 4], [(4 + 9 * 8) / 10]], rtol=1e-15)
    assert run.lse is not None
    np.testing.assert_allclose(run.lse, [math.log(4), math.log(10)], rtol=1e-15)
    assert run.l is run.m is None
    assert moved(run) == {"Q": (4, 0), "K": (4, 0), "V": (4, 0), "S": (4, 4), "O": (0, 2), "L": (0, 2)}
    assert run.sram.peak == 5


@given(M=st.integers(1, 10**9), d=st.integers(1, 500), d_v=st.integers(1, 500))
def test_line_2_is_the_largest_square_that_fits(M: int, d: int, d_v: int) -> None:
    rows = flashsim.count("small_cache", N=10**6, d=d, d_v=d_v, M=M).blocks
    b = rows.B_r
    assert rows.B_r == rows.B_c == min(small_cache.rows(M, d, d_v), 10**6)
    assert b * b + 4 * b <= M or b == 1
    assert (b + 1) ** 2 + 4 * (b + 1) > M
    tally = flashsim.count("small_cache", N=2 * b, d=d, d_v=d_v, M=M)
    assert tally.sram.peak == b * b + 4 * b
    assert tally.blocks == flashsim.count("small_cache", N=2 * b, d=d, d_v=d_v, M=max(M, 5), sizing="fit").blocks


def test_it_runs_with_less_room_than_one_row_takes() -> None:
    d = 64
    Q, K, V = (np.random.default_rng(0).normal(size=(9, d)) for _ in range(3))
    for M in (5, 12, 40, d - 1):
        with pytest.raises(ValueError, match="the paper takes M ≥ d"):
            flashsim.forward("flash", Q, K, V, M=M)
        run = flashsim.forward("small_cache", Q, K, V, M=M, sizing="fit")
        assert run.sram.enforced
        assert run.sram.peak <= M
        assert run.blocks == flashsim.forward("small_cache", Q, K, V, M=M).blocks
        assert of_bound(run.O, attention(Q, K, V), error_bound(Q, K, V, **rounding("small_cache", run.blocks))) <= 1
    with pytest.raises(ValueError, match="at least M = 5"):
        flashsim.forward("small_cache", Q, K, V, M=4, sizing="fit")


# ------------------------------------------------------------------------------------------------------------ the strip


def test_one_strip_of_s_serves_every_row_block() -> None:
    """O(N√M) extra memory: the strip is written anew for every i, before it is read for that i."""
    Q, K, V = (np.random.default_rng(0).normal(size=(n, 6)) for n in (17, 23, 23))
    told: list[tuple[str, int, str, int]] = []

    def watch(event: Event) -> None:
        if event.name.startswith("S[") and event.kind in ("load", "store"):
            told.append((event.kind, dict(event.loops)["i"], event.name, event.elements))

    run = flashsim.forward("small_cache", Q, K, V, M=1000, blocks=(4, 5), observers=[watch])
    strip = run.hbm.by_array["S"]
    assert strip.size == 4 * 23
    assert run.hbm.extra == 4 * 23 + 17
    assert strip.writes == 17 * 23
    assert strip.reads == 2 * 17 * 23  # d_v = 6 in 5 and 1
    for i, rows in enumerate((4, 4, 4, 4, 1)):
        of_i = [(kind, name, elements) for kind, at, name, elements in told if at == i]
        assert of_i[:5] == [("store", f"S[0, {j}]", rows * keys) for j, keys in enumerate((5, 5, 5, 5, 3))]
        assert of_i[5:] == 2 * [("load", f"S[0, {n}]", rows) for n in range(23)]
    for N in (10**3, 10**6):
        for M in (100, 10**4):
            assert flashsim.count("small_cache", N=N, d=200, M=M).hbm.extra <= N * (math.sqrt(M) + 1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scores_in_the_strip_are_not_rounded_to_16_bits(dtype: str) -> None:
    rng = np.random.default_rng(0)
    Q, K, V = ((size * rng.normal(size=(12, 4))).astype(DTYPES[dtype]) for size in (30, 30, 1))
    Q[0], K[0] = 200, 300  # a score of 240,000, beyond float16
    run = flashsim.forward("small_cache", Q, K, V, M=40, scale=1.0)
    bound = error_bound(Q, K, V, scale=1.0, **rounding("small_cache", run.blocks))
    assert of_bound(run.O, attention(Q, K, V, scale=1.0), bound) <= 1
    assert run.hbm.by_array["S"].itemsize == 4
    assert run.hbm == theory.exact("small_cache", N=12, d=4, M=40, dtype=dtype).hbm


# ------------------------------------------------------------------------------------------------- masks, dropout, NaN


def L_bound(case: Case, run: flashsim.Run, m: Any, l: Any) -> Any:
    """Return how far L may be off: m and ℓ as they may be, and the rounding of a logarithm and a sum."""
    Q, K, _ = case.inputs()
    u = np.finfo(run.lse.dtype).eps / 2 if run.lse is not None else 0
    delta = (case.d + 4) * u * score_reach(Q, K, scale=run.scale, mask=case.masked()[1])[:, 0]
    with np.errstate(over="ignore"):
        return 4 * delta + 4 * (case.N_k + 8 * run.blocks.T_c + 8) * u + 4 * u * (np.abs(m) + np.abs(np.log(l)))


def L_is_right(case: Case, run: flashsim.Run) -> bool:
    want = attention_with_statistics(*case.inputs(), **case.oracle)
    live = np.isfinite(want.m)
    if run.lse is None or not np.array_equal(np.isfinite(run.lse), live) or (run.lse[~live] != -np.inf).any():
        return False
    m, l = want.m[live], want.l[live]
    return of_bound(run.lse[live], m + np.log(l), L_bound(case, run, want.m, np.where(live, want.l, 1))[live]) <= 1


# ------------------------------------------------------------------------------------------------------------ constants


def small() -> Iterator[tuple[int, int, int]]:
    """Yield (N, d, M) over 5 ≤ M ≤ d², N ≥ √M: both ends, the M at which a tile's side steps, the N at which T does."""
    for d in (3, 4, 5, 16, 64, 128, 257):
        rooms = {5, d * d, *(int(M) for M in np.geomspace(5, d * d, 9))}
        rooms |= {b * b + 4 * b - off for b in (1, 2, 3, 7, 18, d // 2, d - 2) for off in (0, 1)}
        for M in sorted(rooms & {*range(5, d * d + 1)}):
            b, least = math.isqrt(M + 4) - 2, math.isqrt(M - 1) + 1
            lengths = {least, least + 1, *(k * b + off for k in (1, 2, 3, 50) for off in (0, 1))}
            lengths |= {2**p + off for p in range(0, 21, 2) for off in (-1, 0, 1)}
            yield from ((N, d, M) for N in sorted(lengths) if least <= N)


def test_saha_and_ye_s_bound_with_derived_constants() -> None:
    ratios = []
    for N, d, M in small():
        ratio = theory.exact("small_cache", N=N, d=d, M=M).accesses / theory.theorem_saha_ye(N, d, M)
        for least in {5, M}:
            low, high = theory.small_cache_constants(d, least)
            assert low < ratio < high, (N, d, M, least)
        ratios.append(ratio)
    assert len(ratios) > 1000
    assert min(ratios) < 4.5  # c₁ = 4 is nearly attained
    assert max(ratios) > 15  # c₂ = 19.3, of which 4√11 = 13.3 is attained at M = 11
    large = theory.exact("small_cache", N=2**20, d=2**15, M=2**20).accesses
    assert large / theory.theorem_saha_ye(2**20, 2**15, 2**20) == pytest.approx(4, rel=0.03)
    with pytest.raises(ValueError, match="expected at least 5"):
        theory.small_cache_constants(64, 4)


def test_the_claim_holds_and_flash_attention_moves_more_in_a_small_cache_and_less_in_a_large_one() -> None:
    claim = optimality.saha_ye_small_cache(False)
    assert claim.holds
    for d, M in itertools.product((64, 128), (64, 1024)):
        N = 4096
        ours, flash = (theory.exact(name, N=N, d=d, M=max(M, d)).accesses for name in ("small_cache", "flash"))
        assert ours < flash
        ours, flash = (theory.exact(name, N=N, d=d, M=8 * d * d).accesses for name in ("small_cache", "flash"))
        assert ours > flash


@pytest.mark.parametrize(
    "change",
    [
        {"small_cache_constants": lambda d, least=5: (4.6, 100.0)},
        {"small_cache_constants": lambda d, least=5: (4.0, 15.0)},
        {"theorem_saha_ye": lambda N, d, M: N * N * d * d / M},
    ],
)
def test_the_claim_fails_where_it_should(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, other in change.items():
        monkeypatch.setattr(theory, name, other)
    assert not optimality.saha_ye_small_cache(False).holds


@pytest.mark.parametrize("name", ["flash", "standard"])
def test_the_claim_fails_for_other_algorithms(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = accesses

    def instead(asked: str, N: int, d: int, M: int) -> int:
        return real(name if asked == "small_cache" else asked, N, d, max(M, d))

    monkeypatch.setattr(optimality, "accesses", instead)
    assert not optimality.saha_ye_small_cache(False).holds


# --------------------------------------------------------------------------------------------------------- planted bugs


BUGS = [
    ("ℓ is not rescaled", "exp(m_i - finite(m_i_new)) * l_i +", "l_i +", {"exact", "L"}),
    ("ℓ rescaled by the inverse", "exp(m_i - finite(m_i_new)) * l_i", "exp(finite(m_i_new) - m_i) * l_i", {"exact"}),
    ("ℓ from a stale m", "rowsum(exp(S_masked_ij - finite(m_i_new)))", "rowsum(exp(S_masked_ij - finite(m_i)))",
     {"exact", "L"}),
    ("m of the last block alone", "maximum(m_i, rowmax(S_masked_ij))", "(rowmax(S_masked_ij) + 0 * finite(m_i))", {"exact"}),
    ("m never kept", "m_i = on_chip(m_i_new, over=m_i)", "pass", {"exact", "L"}),
    ("m clamped at 0", 'sram.full(L[i].shape, float("-inf"))', "sram.full(L[i].shape, 0.0)", {"L"}),
    ("weights of a row with no key: m = −∞ subtracted", "exp(S_in - finite(m_i))", "exp(S_in - m_i)", {"exact"}),
    ("divided by ℓ = 0", "O_ic / nonzero(l_i)", "O_ic / l_i", {"exact"}),
    ("O not divided by ℓ", "O_ic / nonzero(l_i)", "O_ic / 1", {"exact"}),
    ("the strip takes probabilities, not scores", "sram.store(S_tiles[0, j], S_masked_ij)",
     "P_ij = on_chip(exp(S_masked_ij - finite(m_i)), over=S_masked_ij); sram.store(S_tiles[0, j], P_ij)", {"exact"}),
    ("the strip is not masked", "MASK(tau * S_ij, i, j), over=S_ij)",
     "MASK(tau * S_ij, i, j)); S_ij = on_chip(tau * S_ij, over=S_ij); sram.store(S_tiles[0, j], S_ij)",
     {"counts"}),
    ("τ twice", "exp(S_in - finite(m_i))", "exp(tau * S_in - finite(m_i))", {"exact"}),
    ("τ in every column", "S_ij + Q_ik @ K_jk.T", "tau * S_ij + Q_ik @ K_jk.T", {"exact", "L"}),
    ("τ left out", "MASK(tau * S_ij", "MASK(1.0 * S_ij", {"exact", "L"}),
    ("S not accumulated", "S_ij + Q_ik @ K_jk.T", "0 * S_ij + Q_ik @ K_jk.T", {"exact", "L"}),
    ("O not accumulated", "O_ic + product(P_dropped_in", "0 * O_ic + product(P_dropped_in", {"exact"}),
    ("last column of Q and K dropped", "sram.loop(d)", "sram.loop(d - 1)", {"exact", "L", "counts"}),
    ("last, ragged columns of V dropped", "sram.loop(O.blocks[1])", "sram.loop(O.blocks[1] - 1)", {"exact", "counts"}),
    ("last key dropped from O", "sram.loop(N_k)", "sram.loop(N_k - 1)", {"exact", "counts"}),
    ("last, ragged block of keys dropped", "sram.loop(blocks.T_c)", "sram.loop(blocks.T_c - 1)", {"exact", "L", "counts"}),
    ("last, ragged block of queries dropped", "sram.loop(blocks.T_r)", "sram.loop(blocks.T_r - 1)", {"exact", "counts"}),
    ("the last strip as tall as the others", "S.divide(l_i.shape[0], B_c)", "S.divide(B_r, B_c)", {"refused"}),
    ("K's columns off by one", "K[j, k])", "K[j, k - (k > 0)])", {"exact", "L"}),
    ("V's pieces of the first columns alone", "V[n, c])", "V[n, 0])", {"refused"}),
    ("dropout left out", "P_in * dropout_by_key(P_in, i, n)", "P_in * 1", {"exact"}),
    ("dropout of the first key everywhere", "dropout_by_key(P_in, i, n)", "dropout_by_key(P_in, i, 0)", {"exact"}),
    ("dropout keyed to blocks of keys", "dropout_by_key(P_in, i, n)", "dropout(P_in, i, n)", {"exact"}),
    ("dropout in rows of one", "Blocks(B_r, 1, blocks.T_r, N_k)", "Blocks(1, 1, blocks.T_r, N_k)", {"exact"}),
    ("ℓ sums what dropout left", "rowsum(exp(S_masked_ij - finite(m_i_new)))",
     "rowsum(exp(S_masked_ij - finite(m_i_new)) * dropout(S_masked_ij, i, j))", {"exact", "L"}),
    ("mask of the tile before", "MASK(tau * S_ij, i, j)", "MASK(tau * S_ij, i, j - (j > 0))", {"exact"}),
    ("mask left out", "MASK(tau * S_ij, i, j)", "tau * S_ij", {"exact", "poison", "counts"}),
    ("0·NaN", "product(P_dropped_in, V_nc)", "(P_dropped_in @ V_nc)", {"poison"}),
    ("L without ℓ", "m_i + log(l_i)", "m_i + 0 * l_i", {"L"}),
    ("L never stored", "sram.store(L[i], L_i)", "pass", {"counts", "L"}),
    ("a strip for every query", "(B_r, N_k), sram.dtype)", "(N_q, N_k), sram.dtype)", {"counts"}),
    ("the strip in the inputs' type", "N_k), sram.dtype)", "N_k), 'float16')", {"exact", "counts"}),
    ("S read twice", "S_in, V_nc = sram.load(S_columns[0, n], V[n, c])",
     "S_in, V_nc, _ = sram.load(S_columns[0, n], V[n, c], S_columns[0, n])", {"counts"}),
    ("S beside S", "MASK(tau * S_ij, i, j), over=S_ij)", "MASK(tau * S_ij, i, j) + 0.0)", {"counts"}),
    ("S_ij not registered", "S_ij = on_chip(S_ij + Q_ik @ K_jk.T, over=S_ij)", "S_ij = S_ij + Q_ik @ K_jk.T", {"refused"}),
    ("P_in not registered", "P_in = on_chip(exp(S_in - finite(m_i)), over=S_in)", "P_in = exp(S_in - finite(m_i))",
     {"refused"}),
]  # fmt: skip


def objections_to(
    name: str, algorithm: Algorithm, case: Case, V: Any, options: dict[str, Any], **counted: Any
) -> Iterator[str]:
    """Run a record made of the pass of that name, on V as it is given, and yield what is wrong: O, L, counts, poison."""
    Q, K, _ = case.inputs()
    run = flashsim.forward(algorithm, Q, K, V, **options)
    bound = error_bound(Q, K, V, **rounding(name, run.blocks), **case.oracle)
    if of_bound(run.O, attention(Q, K, V, **case.oracle), bound) > 1:
        yield "exact"
    if not L_is_right(case, run):
        yield "L"
    asked = {key: value for key, value in options.items() if key not in ("seed", "sizing")} | counted
    exact = theory.exact(name, **{**case.shape, "d_v": V.shape[1]}, **asked, dtype="float64")
    if (run.hbm, run.sram) != (exact.hbm, exact.sram):
        yield "counts"
    allowed = case.masked()[1]
    dead = np.zeros(case.N_k, bool) if allowed is None else ~allowed.any(axis=0)
    if dead.any():
        K[dead] = V[dead] = np.nan
        if not np.isfinite(flashsim.forward(algorithm, Q, K, V, check_finite=False, **options).O).all():
            yield "poison"


def objections(algorithm: Algorithm, case: Case) -> Iterator[str]:
    V = case.inputs()[2]
    V = np.concatenate([V, V[:, ::-1] + 1], axis=1)  # d_v = 6: five columns, and a ragged one
    options: dict[str, Any] = {"M": 400, "blocks": (case.B_r, case.B_c), **case.options}
    return objections_to("small_cache", algorithm, case, V, options)


def test_the_original_is_not_accused() -> None:
    assert list(on_each(VARIANTS, objections, FORWARD["small_cache"])) == []


@pytest.mark.filterwarnings("ignore:the accesses are equal")  # of a bug that stores another type
@pytest.mark.parametrize(("bug", "before", "after", "by"), BUGS, ids=[bug[0] for bug in BUGS])
def test_bugs_are_caught(bug: str, before: str, after: str, by: set[str]) -> None:
    assert unnoticed(by, on_each(VARIANTS, objections, planted(FORWARD["small_cache"], (before, after)))) == set()


def test_blocks_too_large_by_one_are_caught() -> None:
    rows = mutated(small_cache.rows, ("isqrt(M + 4) - 2", "isqrt(M + 4) - 1"))
    tally = flashsim.count(replace(FORWARD["small_cache"], rows=rows), N=100, d=50, M=200)
    assert tally.sram.peak > 200
    assert tally.blocks != theory.exact("small_cache", N=100, d=50, M=200).blocks

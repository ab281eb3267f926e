"""Attention for a small cache: exact, counted to the element, within Saha and Ye's bound, and
bugs in it are caught.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashsim
from flashsim import theory
from flashsim.algorithms import FORWARD, small_cache
from flashsim.analysis.verify import optimality
from flashsim.analysis.verify.shared import accesses
from flashsim.attention.shapes import Blocks
from flashsim.memory.sram import Event
from flashsim.reference import attention, error_bound, rounding
from flashsim.tracing.planting import mutated
from tests.helpers.cases import DTYPES, Arguments, of_bound
from tests.helpers.counting import moved

# --------------------------------------------------------------------------------------------------
# counted by hand


def test_counts_by_hand() -> None:
    """N_q = 5 in 2, 2, 1 rows; N_k = 7 in 3, 3, 1; d = 2 columns; d_v = 4 in 3 and 1."""
    shape: Arguments = {"N_q": 5, "N_k": 7, "d": 2, "d_v": 4}
    shape |= {"M": 1000, "blocks": (2, 3)}
    by_count = flashsim.count("small_cache", **shape)
    by_theory = theory.exact("small_cache", **shape)
    for tally in (by_count, by_theory):
        assert tally.blocks == Blocks(2, 3, N_q=5, N_k=7)
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
    assert by_count.flops.matmul == 2 * 35 * (2 + 4)
    masked = flashsim.count("small_cache", **shape, mask=np.ones((5, 7), bool))
    assert moved(masked) == moved(by_count) | {"mask": (35, 0)}
    assert masked.sram.peak == 6 + 4 + 2 + 6  # m_i^new and the mask's tile


def test_a_run_by_hand() -> None:
    """N = 2, d = 1, tiles of one element; scores 0 and log 3, and log 3 and log 9."""
    Q = np.array([[1.0], [2.0]])
    K = np.array([[0.0], [math.log(3)]])
    V = np.array([[4.0], [8.0]])
    run = flashsim.forward("small_cache", Q, K, V, M=5, scale=1.0)
    assert run.blocks == Blocks(1, 1, N_q=2, N_k=2)
    first_row = (4 + 3 * 8) / 4
    second_row = (4 + 9 * 8) / 10
    np.testing.assert_allclose(run.O, [[first_row], [second_row]], rtol=1e-15)
    assert run.lse is not None
    log_sums = [math.log(4), math.log(10)]
    np.testing.assert_allclose(run.lse, log_sums, rtol=1e-15)
    assert run.l is run.m is None
    assert moved(run) == {
        "Q": (4, 0),
        "K": (4, 0),
        "V": (4, 0),
        "S": (4, 4),
        "O": (0, 2),
        "L": (0, 2),
    }
    assert run.sram.peak == 5


@given(M=st.integers(1, 10**9), d=st.integers(1, 500), d_v=st.integers(1, 500))
def test_line_2_is_the_largest_square_that_fits(M: int, d: int, d_v: int) -> None:
    widths: Arguments = {"d": d, "d_v": d_v}
    blocks = flashsim.count("small_cache", N=10**6, **widths, M=M, sizing="paper").blocks
    b = blocks.B_r
    assert blocks.B_c == b
    assert b == min(small_cache.rows(M, d, d_v), 10**6)
    assert b * b + 4 * b <= M or b == 1
    assert (b + 1) ** 2 + 4 * (b + 1) > M
    tally = flashsim.count("small_cache", N=2 * b, **widths, M=M, sizing="paper")
    assert tally.sram.peak == b * b + 4 * b
    enforced = flashsim.count("small_cache", N=2 * b, **widths, M=max(M, 5))
    assert tally.blocks == enforced.blocks


def test_it_runs_with_less_room_than_one_row_takes() -> None:
    d = 64
    Q, K, V = np.random.default_rng(0).normal(size=(3, 9, d))
    for M in (5, 12, 40, d - 1):
        with pytest.raises(ValueError, match="the paper takes M ≥ d"):
            flashsim.forward("flash", Q, K, V, M=M, sizing="paper")
        run = flashsim.forward("small_cache", Q, K, V, M=M)
        assert run.sram.enforced
        assert run.sram.peak <= M
        by_paper = flashsim.forward("small_cache", Q, K, V, M=M, sizing="paper")
        assert run.blocks == by_paper.blocks
        bound = error_bound(Q, K, V, **rounding("small_cache", run.blocks))
        assert of_bound(run.O, attention(Q, K, V), bound) <= 1
    with pytest.raises(ValueError, match="at least M = 5"):
        flashsim.forward("small_cache", Q, K, V, M=4, sizing="fit")


# --------------------------------------------------------------------------------------------------
# the strip


def test_one_strip_of_s_serves_every_row_block() -> None:
    """O(N√M) extra memory: the strip is written anew for every i, before it is read for that i."""
    rng = np.random.default_rng(0)
    Q = rng.normal(size=(17, 6))
    K = rng.normal(size=(23, 6))
    V = rng.normal(size=(23, 6))
    messages: dict[int, list[tuple[str, str, int]]] = defaultdict(list)

    def watch(event: Event) -> None:
        if event.name.startswith("S[") and event.kind in ("load", "store"):
            i = dict(event.loops)["i"]
            messages[i].append((event.kind, event.name, event.elements))

    tiles: Arguments = {"M": 1000, "blocks": (4, 5)}
    run = flashsim.forward("small_cache", Q, K, V, observers=[watch], **tiles)
    strip = run.hbm.by_array["S"]
    assert strip.size == 4 * 23
    assert run.hbm.extra == 4 * 23 + 17
    assert strip.writes == 17 * 23
    assert strip.reads == 2 * 17 * 23  # d_v = 6 in 5 and 1
    for i, rows in enumerate((4, 4, 4, 4, 1)):
        stores = []
        for j, keys in enumerate((5, 5, 5, 5, 3)):
            stores.append(("store", f"S[0, {j}]", rows * keys))
        loads = [("load", f"S[0, {n}]", rows) for n in range(23)]
        assert messages[i] == stores + 2 * loads
    for N in (10**3, 10**6):
        for M in (100, 10**4):
            extra = flashsim.count("small_cache", N=N, d=200, M=M).hbm.extra
            assert extra <= N * (math.sqrt(M) + 1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scores_in_the_strip_are_not_rounded_to_16_bits(dtype: str) -> None:
    rng = np.random.default_rng(0)
    Q = (30 * rng.normal(size=(12, 4))).astype(DTYPES[dtype])
    K = (30 * rng.normal(size=(12, 4))).astype(DTYPES[dtype])
    V = rng.normal(size=(12, 4)).astype(DTYPES[dtype])
    # a score of 240,000, beyond float16
    Q[0] = 200
    K[0] = 300
    run = flashsim.forward("small_cache", Q, K, V, M=40, scale=1.0)
    bound = error_bound(Q, K, V, scale=1.0, **rounding("small_cache", run.blocks))
    assert of_bound(run.O, attention(Q, K, V, scale=1.0), bound) <= 1
    assert run.hbm.by_array["S"].itemsize == 4
    exact = theory.exact("small_cache", N=12, d=4, M=40, dtype=dtype)
    assert run.hbm == exact.hbm


# --------------------------------------------------------------------------------------------------
# constants


def small() -> Iterator[tuple[int, int, int]]:
    """Yield (N, d, M) over 5 ≤ M ≤ d², N ≥ √M: both ends, the M at which a tile's side steps,
    the N at which T does.
    """
    for d in (3, 4, 5, 16, 64, 128, 257):
        rooms = {5, d * d}
        rooms |= {int(M) for M in np.geomspace(5, d * d, 9)}
        for b in (1, 2, 3, 7, 18, d // 2, d - 2):
            room = b * b + 4 * b
            rooms |= {room, room - 1}
        for M in sorted(rooms & {*range(5, d * d + 1)}):
            b = math.isqrt(M + 4) - 2
            least = math.isqrt(M - 1) + 1
            lengths = {least, least + 1}
            for tiles in (1, 2, 3, 50):
                lengths |= {tiles * b, tiles * b + 1}
            for power in range(0, 21, 2):
                lengths |= {2**power - 1, 2**power, 2**power + 1}
            for N in sorted(lengths):
                if least <= N:
                    yield N, d, M


def test_saha_and_ye_s_bound_with_derived_constants() -> None:
    ratios = []
    for N, d, M in small():
        accesses = theory.exact("small_cache", N=N, d=d, M=M).accesses
        ratio = accesses / theory.theorem_saha_ye(N, d, M)
        for least in {5, M}:
            low, high = theory.small_cache_constants(d, least)
            assert low < ratio < high, (N, d, M, least)
        ratios.append(ratio)
    assert len(ratios) > 1000
    assert min(ratios) < 4.5  # c₁ = 4 is nearly attained
    assert max(ratios) > 15  # c₂ = 19.3, of which 4√11 = 13.3 is attained at M = 11
    N = 2**20
    d = 2**15
    M = 2**20
    accesses = theory.exact("small_cache", N=N, d=d, M=M).accesses
    ratio = accesses / theory.theorem_saha_ye(N, d, M)
    assert ratio == pytest.approx(4, rel=0.03)
    with pytest.raises(ValueError, match="expected at least 5"):
        theory.small_cache_constants(64, 4)


def test_the_claim_holds_and_flash_attention_moves_more_in_a_small_cache_and_less_in_a_large_one() -> (
    None
):
    claim = optimality.saha_ye_small_cache(False)
    assert claim.holds
    N = 4096
    for d, M in itertools.product((64, 128), (64, 1024)):
        room = max(M, d)
        ours = theory.exact("small_cache", N=N, d=d, M=room).accesses
        flash = theory.exact("flash", N=N, d=d, M=room).accesses
        assert ours < flash
        room = 8 * d * d
        ours = theory.exact("small_cache", N=N, d=d, M=room).accesses
        flash = theory.exact("flash", N=N, d=d, M=room).accesses
        assert ours > flash


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"small_cache_constants": lambda d, least=5: (4.6, 100.0)},
        {"small_cache_constants": lambda d, least=5: (4.0, 15.0)},
        {"theorem_saha_ye": lambda N, d, M: N * N * d * d / M},
    ],
)
def test_the_claim_fails_where_it_should(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, other in change.items():
        monkeypatch.setattr(theory, name, other)
    assert not optimality.saha_ye_small_cache(False).holds


@pytest.mark.parametrize("name", ["flash", "standard"])
def test_the_claim_fails_for_other_algorithms(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = accesses

    def instead(options: str, N: int, d: int, M: int) -> int:
        return real(name if options == "small_cache" else options, N, d, max(M, d))

    monkeypatch.setattr(optimality, "accesses", instead)
    assert not optimality.saha_ye_small_cache(False).holds


def test_blocks_too_large_by_one_are_caught() -> None:
    rows = mutated(small_cache.rows, ("isqrt(M + 4) - 2", "isqrt(M + 4) - 1"))
    sizes: Arguments = {"N": 100, "d": 50, "M": 200, "sizing": "paper"}
    tally = flashsim.count(replace(FORWARD["small_cache"], rows=rows), **sizes)
    assert tally.sram.peak > 200
    assert tally.blocks != theory.exact("small_cache", **sizes).blocks

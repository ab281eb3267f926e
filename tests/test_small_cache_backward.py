"""The backward pass of `small_cache`: counted by hand, Θ(N²d/√M) for M < d², and bugs in it are caught."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import theory
from flashsim.algorithms import BACKWARD, Algorithm
from flashsim.problem.shapes import Blocks
from flashsim.reference import backward_rounding, gradient_bounds, gradients
from flashsim.tracing.planting import planted

from .cases import Case, of_bound, on_each, unnoticed
from .test_planted_bugs import VARIANTS
from .test_small_cache import moved


@pytest.mark.parametrize("counted", [flashsim.count, theory.exact])
def test_counts_by_hand(counted: Any) -> None:
    """N_q = 5 in 2, 2, 1 rows; N_k = 7 in 3, 3, 1; d = 2 columns, one piece; d_v = 4 in 3 and 1."""
    shape: dict[str, Any] = {"N_q": 5, "N_k": 7, "d": 2, "d_v": 4, "M": 1000, "blocks": (2, 3), "direction": "backward"}
    by_hand = counted("small_cache", **shape)
    assert by_hand.blocks == Blocks(2, 3, 3, 3)
    assert moved(by_hand) == {
        "Q": (2 * 3 * 10, 0), "K": (2 * 3 * 14, 0), "V": (3 * 28, 0), "O": (20, 0), "dO": (20 + 2 * 3 * 20, 0), "L": (15, 0),
        "D": (15, 5), "P": (3 * 35, 35), "dS": (2 * 35, 35), "dQ": (30, 40), "dK": (0, 14), "dV": (0, 28),
    }  # fmt: skip
    assert by_hand.sram.peak == 3 * 3 + 3 + 3  # dV_jc 3·3, P_nj 3, dO_nc 3: more than S_ij 2·3, Q_ik 2, K_jk 3
    assert by_hand.hbm.extra == 2 * 5 * 3 + 5


def test_line_2_is_the_largest_square_that_fits() -> None:
    for M in (3, 8, 15, 100, 255, 256, 4096):
        tally = flashsim.count("small_cache", N=300, d=80, M=M, direction="backward")
        b = tally.blocks.B_r
        assert b * b + 2 * b == tally.sram.peak <= M < (b + 1) ** 2 + 2 * (b + 1)
        assert (
            tally.blocks == flashsim.count("small_cache", N=300, d=80, M=M, direction="backward", sizing="fit").blocks
        )


def test_below_d_squared_it_moves_least_and_grows_as_saha_and_ye_s_bound() -> None:
    def accesses(name: str, M: int) -> int:
        return flashsim.count(name, N=1024, d=64, M=M, direction="backward").hbm.accesses

    assert [accesses("small_cache", M) for M in (256, 512, 1024)] == [60_042_240, 45_059_072, 33_035_264]
    for M in (256, 512):
        assert accesses("small_cache", M) < min(accesses("standard", M), accesses("flash", M), accesses("q_outer", M))
    assert accesses("small_cache", 1024) > theory.exact("q_outer", N=1024, d=64, M=8192, direction="backward").accesses
    N, d, M = 2**14, 2**13, 2**16
    per_pair = theory.exact("small_cache", N=N, d=d, M=M, direction="backward").accesses / N**2
    assert per_pair == pytest.approx(12 * d / M**0.5 + 3, rel=0.03)


def test_strips_are_not_rounded_to_16_bits() -> None:
    rng = np.random.default_rng(0)
    Q, K, V = (rng.normal(size=(9, 4)).astype(np.float16) for _ in range(3))
    run = flashsim.forward("small_cache", Q, K, V, M=40)
    arrays = flashsim.backward("small_cache", run, V).hbm.by_array
    assert (arrays["P"].itemsize, arrays["dS"].itemsize, arrays["dQ"].itemsize) == (4, 4, 2)


# --------------------------------------------------------------------------------------------------------- planted bugs

BUGS: list[tuple[str, str, str, set[str]]] = [
    ("dQ of the last block of keys alone", "dQ_ic + tau * product(dS_in, K_nc)", "0 * dQ_ic + tau * product(dS_in, K_nc)",
     {"gradients"}),
    ("dQ without τ", "dQ_ic + tau * product", "dQ_ic + product", {"gradients"}),
    ("dK without τ", "dK_jc + tau * product", "dK_jc + product", {"gradients"}),
    ("D of the last column alone", "D_i + O_ik * dO_ik", "O_ik * dO_ik", {"gradients"}),
    ("D left out", "- D_i), over=P_in", "- 0 * D_i), over=P_in", {"gradients"}),
    ("S not accumulated", "S_ij + Q_ik @ K_jk.T", "0 * S_ij + Q_ik @ K_jk.T", {"gradients"}),
    ("the mask left out", "MASK(tau * S_ij, i, j)", "(tau * S_ij)", {"gradients"}),
    ("a row with no key: −∞ subtracted", "- finite(L_i)", "- L_i", {"gradients"}),
    ("dV of all weights, none dropped", "P_nj * dropout_by_query(P_nj, n, j)", "P_nj * 1", {"gradients"}),
    ("dP of all weights, none dropped", "* dropout_by_key(P_in, i, j * B_c + n) - D_i", "- D_i", {"gradients"}),
    ("dropout of the first key of a block", "dropout_by_key(P_in, i, j * B_c + n)", "dropout_by_key(P_in, i, j * B_c)",
     {"gradients"}),
    ("dS of the column before", "dP_dropped_ij[:, n : n + 1]", "dP_dropped_ij[:, max(n - 1, 0) : max(n, 1)]", {"gradients"}),
    ("keys of the first block for dQ", "K[j * B_c + n, c]", "K[n, c]", {"gradients"}),
    ("the last query left out of dV", "for n in sram.loop(N_q):  # line 22", "for n in sram.loop(N_q - 1):",
     {"gradients", "counts"}),
    ("strips as wide for the last block", "keys = K_columns[j, 0].shape[0]", "keys = B_c", {"refused"}),
    ("a strip for every key", "(N_q, B_c), sram.dtype)", "(N_q, N_k), sram.dtype)", {"counts"}),
    ("dP beside itself", "dO_ik @ V_jk.T, over=dP_dropped_ij)", "dO_ik @ V_jk.T)", {"counts"}),
    ("0·NaN in dS", "gated(P_in, ", "(lambda P, X: P * X)(P_in, ", {"poison"}),
    ("0·NaN in dQ", "product(dS_in, K_nc)", "(dS_in @ K_nc)", {"poison"}),
]  # fmt: skip


def objections(algorithm: Algorithm, case: Case) -> Iterator[str]:
    Q, K, V = case.inputs()
    dO = case.dO()
    options: dict[str, Any] = {"M": 400, "blocks": (case.B_r, case.B_c), **case.options}
    run = flashsim.forward("small_cache", Q, K, V, **options)
    found = flashsim.backward(algorithm, run, dO)
    bounds = gradient_bounds(Q, K, V, dO, **backward_rounding("small_cache", run.blocks), **case.oracle)
    wanted = gradients(Q, K, V, dO, **case.oracle)
    if max(map(of_bound, (found.dQ, found.dK, found.dV), wanted, bounds)) > 1:
        yield "gradients"
    asked = {key: value for key, value in options.items() if key != "seed"}
    exact = theory.exact("small_cache", **case.shape, **asked, dtype="float64", direction="backward")
    if (found.hbm, found.sram) != (exact.hbm, exact.sram):
        yield "counts"
    allowed = case.masked()[1]
    dead = np.zeros(case.N_k, bool) if allowed is None else ~allowed.any(axis=0)
    if dead.any():
        K[dead] = V[dead] = np.nan
        run = flashsim.forward("small_cache", Q, K, V, check_finite=False, **options)
        found = flashsim.backward(algorithm, run, dO, check_finite=False)
        if not all(np.isfinite(gradient).all() for gradient in (found.dQ, found.dK, found.dV)):
            yield "poison"


def test_the_original_is_not_accused() -> None:
    assert list(on_each(VARIANTS, objections, BACKWARD["small_cache"])) == []


@pytest.mark.parametrize(("bug", "before", "after", "by"), BUGS, ids=[bug[0] for bug in BUGS])
def test_bugs_are_caught(bug: str, before: str, after: str, by: set[str]) -> None:
    assert unnoticed(by, on_each(VARIANTS, objections, planted(BACKWARD["small_cache"], (before, after)))) == set()

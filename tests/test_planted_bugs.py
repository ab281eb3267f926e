"""Break it to trust it: each planted bug must be caught by a check that our tests rely on.

A bug is a change to the text of an algorithm, which makes a record of its own (`flashsim.tracing.planting`), or to the text of
what it is given. The mutant runs, and the named checks, the same that the other tests make, must notice; what would notice it
after them is not run. For Algorithms 0 and 1 without mask and dropout:

    exact       O within its rounding bound             induction   the proof's invariant after every outer step
    counts      accesses and peak, against theory       count only  the same, counted on shapes alone
    refused     the memory refuses the program          escape      a result that was never registered

For the others, on masks and dropout, forward and backward:

    exact, statistics, gradients   O; ℓ and m; dQ, dK, dV, within their bounds
    dO = 1      the gradients once more, for a dO of ones: what a careless test would see
    poison      NaN in masked keys and values stays there
    refused     the memory refuses the program, or does not find what was not saved
    counts      accesses and peak, against theory
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import theory
from flashsim.algorithms import BACKWARD, FORWARD, Algorithm, softmax_rows
from flashsim.machine.memory import MemoryModelError
from flashsim.masks import band, dropout, paddings
from flashsim.masks import rules as masks
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
from flashsim.run import tile_masks
from flashsim.tracing.observers import InductionInvariant, InvariantBroken
from flashsim.tracing.planting import planted

from .cases import REGIMES, Case, of_bound, on_each, swap, unnoticed
from .test_algorithms import watching_locals

Bugs = list[tuple[str, str, str, set[str]]]
SHAPE: dict[str, Any] = {"N_q": 13, "N_k": 22, "d": 4, "d_v": 3}
FLASH: Bugs = [
    ("O is not rescaled", "(l_i * exp(m_i - m_i_new) * O_i", "(l_i * O_i", {"exact", "induction"}),
    ("ℓ is not rescaled", "exp(m_i - m_i_new) * l_i +", "l_i +", {"exact", "induction"}),
    ("rescaling factor inverted", "exp(m_i - m_i_new) * O_i", "exp(m_i_new - m_i) * O_i", {"exact", "induction"}),
    ("tile's factor missing in O", "+ exp(m_tilde_ij - m_i_new) * (P", "+ (P", {"exact", "induction"}),
    ("tile's factor missing in ℓ", "+ exp(m_tilde_ij - m_i_new) * l_t", "+ l_t", {"exact", "induction"}),
    ("maximum reset in every block", "maximum(m_i, m_tilde_ij)", "m_tilde_ij + 0", {"exact", "induction"}),
    ("maximum clamped at 0", "maximum(m_i, m_tilde_ij)", "maximum(maximum(m_i, m_tilde_ij), 0)",
     {"exact", "induction"}),
    ("no maximum subtracted", "exp(S_ij - m_tilde_ij)", "exp(S_ij)", {"exact", "induction"}),
    ("O not divided by ℓ", ") / l_i_new, over", ") / 1, over", {"exact", "induction"}),
    ("last block of keys dropped", "loop(blocks.T_c)", "loop(blocks.T_c - 1)", {"exact", "counts", "count only"}),
    ("last block of rows dropped", "loop(blocks.T_r)", "loop(blocks.T_r - 1)", {"exact", "counts", "count only"}),
    ("keys off by one block", "sram.load(K[j], V[j])", "sram.load(K[j - (j > 0)], V[j - (j > 0)])", {"exact"}),
    ("m never stored", "            sram.store(m[i], m_i_new)", "            pass", {"exact", "counts", "count only"}),
    ("K and V loaded in the inner loop", "S_ij = on_chip(Q", "K_j, V_j = sram.load(K[j], V[j]); S_ij = on_chip(Q",
     {"counts", "count only"}),
    ("S_ij not registered", "S_ij = on_chip(Q_i @ K_j.T)", "S_ij = Q_i @ K_j.T", {"refused"}),
    ("m̃_ij not registered", "m_tilde_ij = on_chip(rowmax(S_ij))", "m_tilde_ij = rowmax(S_ij)", {"escape", "counts"}),
    ("line 2's m starts at 0", 'float("-inf")', "0.0", {"exact", "induction"}),
    ("P̃ beside S instead of over it", "exp(S_ij - m_tilde_ij), over=S_ij)", "exp(S_ij - m_tilde_ij))", {"counts"}),
    ("nothing returned", "return O, l, m", "return None", {"refused"}),
    ("O returned last", "return O, l, m", "return m, l, O", {"refused"}),
]  # fmt: skip
STANDARD: Bugs = [
    ("last block of keys dropped", "for j in sram.loop(T_c):  # line 3", "for j in sram.loop(T_c - 1):",
     {"exact", "counts"}),
    ("P read twice", "P_ij, V_j = sram.load(P_tiles[i, j], V[j])",
     "P_ij, V_j = sram.load(P_tiles[i, j], V[j]); sram.load(P_tiles[i, j])", {"counts", "count only"}),
    ("O not accumulated", "on_chip(O_i + product(P_ij", "on_chip(product(P_ij", {"exact"}),
    ("softmax skipped", "softmax_rows(sram, S, P, sink)", "softmax_rows(sram, P, S, sink)", {"exact"}),
]  # fmt: skip
LONG_ROWS: Bugs = [
    ("long rows: ℓ not rescaled", "exp(m_i - finite(m_i_new)) * l_i +", "l_i +", {"exact"}),
    ("long rows: m not kept", "m_i = on_chip(m_i_new, over=m_i)", "pass", {"exact"}),
    ("long rows: no second maximum", "exp(S_ij - finite(m_i)) / nonzero", "exp(S_ij) / nonzero", {"exact"}),
]


def on_regimes(algorithm: Algorithm, M: int = 96) -> Iterator[str]:
    """Make the checks that our tests make, and yield those that object."""
    asked: dict[str, Any] = {**SHAPE, "M": M, "dtype": "float64"}
    exact = theory.exact(algorithm.name, **asked)
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
            if flashsim.count(algorithm, **asked).hbm != exact.hbm:
                yield "count only"


def each(*tables: tuple[Any, ...]) -> list[Any]:
    """Return a parameter for each bug of (algorithm, …, bugs): what is before bugs, and the bug."""
    return [
        pytest.param(*before, *bug[1:], id=f"{before[0].title}: {bug[0]}") for *before, bugs in tables for bug in bugs
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
    assert unnoticed(by, on_regimes(planted(algorithm, (before, after), within=within), M)) == set()


# ---------------------------------------------------------------------------- Algorithms 2 to 5, Appendix B, and the parts

FLASH_2: Bugs = [
    ("O is not rescaled", "l_i * exp(m_i - finite(m_i_new)) * O_i", "l_i * O_i", {"exact", "gradients"}),
    ("ℓ is not rescaled", "exp(m_i - finite(m_i_new)) * l_i + exp", "l_i + exp", {"exact", "statistics"}),
    ("ℓ of the dropped P̃", "rowsum(P_tilde_ij))", "rowsum(P_tilde_ij * dropout(P_tilde_ij, i, j)))",
     {"exact", "statistics", "gradients"}),
    ("τ missing", "tau * (Q_i", "1.0 * (Q_i", {"exact", "statistics"}),
    ("τ twice", "tau * (Q_i", "tau * tau * (Q_i", {"exact", "statistics"}),
    ("mask left out", "MASK(S_ij, i, j)", "S_ij", {"exact", "statistics", "poison", "counts"}),
    ("dropout left out", "P_tilde_ij * dropout(P_tilde_ij, i, j), over", "P_tilde_ij * 1, over", {"exact"}),
    ("dropout of the first tile everywhere", "P_tilde_ij * dropout(P_tilde_ij, i, j), over",
     "P_tilde_ij * dropout(P_tilde_ij, 0, 0), over", {"exact"}),
    ("dropout of the transposed tile", "P_tilde_ij * dropout(P_tilde_ij, i, j), over",
     "P_tilde_ij * dropout(P_tilde_ij, j, i), over", {"exact"}),
    ("m̃ = −∞ subtracted", "finite(m_tilde_ij)", "m_tilde_ij", {"exact", "statistics"}),
    ("m^new = −∞ subtracted, in ℓ", "exp(m_i - finite(m_i_new)) * l_i +", "exp(m_i - m_i_new) * l_i +",
     {"exact", "statistics"}),
    ("m^new = −∞ subtracted, in O", "l_i * exp(m_i - finite(m_i_new)) * O_i", "l_i * exp(m_i - m_i_new) * O_i", {"exact"}),
    ("divided by ℓ = 0", "/ nonzero(l_i_new)", "/ l_i_new", {"exact"}),
    ("0·NaN", "product(P_dropped_ij, V_j)", "(P_dropped_ij @ V_j)", {"poison"}),
    ("a finite number for m = −∞", "sink.m(Q)", "-1e4", {"statistics"}),
    ("maximum clamped at 0", "maximum(m_i, m_tilde_ij)", "maximum(maximum(m_i, m_tilde_ij), 0)", {"exact", "statistics"}),
    ("maximum reset in every block", "maximum(m_i, m_tilde_ij)", "m_tilde_ij + 0", {"statistics"}),
    ("last, ragged block of keys dropped", "loop(blocks.T_c)", "loop(blocks.T_c - 1)", {"exact", "counts"}),
    ("R not saved", "dropout.save()", "pass", {"counts", "refused"}),
    ("nothing returned", "return O, l, m", "return None", {"refused", "counts"}),
    ("O returned last", "return O, l, m", "return m, l, O", {"refused", "counts"}),
]  # fmt: skip
SPARSE: Bugs = [
    ("block mask transposed", "block_mask.column(j)", "[block_mask.column(i)[j] for i in range(blocks.T_r)]", {"exact"}),
    ("block mask inverted", "block_mask.column(j)", "~block_mask.column(j)", {"exact"}),
    ("nothing skipped", ", where=block_mask.column(j)", "", {"exact", "counts"}),
]  # fmt: skip
SPARSE_4: Bugs = [
    ("block mask transposed", "block_mask.column(j)", "[block_mask.column(i)[j] for i in range(blocks.T_r)]", {"gradients"}),
    ("nothing skipped", ", where=block_mask.column(j)", "", {"gradients", "counts"}),
]  # fmt: skip
FLASH_4: Bugs = [
    ("dS from the dropped P", "gated(P_ij, dP", "gated(P_dropped_ij, dP", {"gradients"}),
    ("dV from the undropped P", "product(P_dropped_ij.T, dO_i)", "P_ij.T @ dO_i", {"gradients"}),
    ("dP not dropped", "dP_dropped_ij * Z_ij", "dP_dropped_ij * 1", {"gradients"}),
    ("Z of the first tile everywhere", "dropout(P_ij, i, j)", "dropout(P_ij, 0, 0)", {"gradients"}),
    ("dQ without τ", "tau * product(dS_ij, K_j)", "product(dS_ij, K_j)", {"gradients"}),
    ("dK without τ", "tau * product(dS_ij.T", "1.0 * product(dS_ij.T", {"gradients"}),
    ("scores without τ", "tau * (Q_i @ K_j.T)", "1.0 * (Q_i @ K_j.T)", {"gradients"}),
    ("D of the undropped O", "rowsum(dO_i * O_i)", "rowsum(dO_i * (O_i + (P_ij - P_dropped_ij) @ V_j))", {"gradients"}),
    ("D of this tile alone", "rowsum(dO_i * O_i)", "rowsum(P_ij * dP_ij)", {"gradients"}),
    ("D left out", "dP_ij - D_i)", "dP_ij - 0 * D_i)", {"gradients"}),
    ("mask left out", "MASK(S_ij, i, j)", "S_ij", {"gradients", "poison", "counts"}),
    ("P not divided by ℓ", "/ nonzero(l_i)", "/ 1", {"gradients"}),
    ("m = −∞ subtracted", "finite(m_i)", "m_i", {"gradients"}),
    ("divided by ℓ = 0", "/ nonzero(l_i)", "/ l_i", {"gradients"}),
    ("0·NaN in dQ", "product(dS_ij, K_j)", "(dS_ij @ K_j)", {"poison"}),
    ("0·NaN in dS", "gated(P_ij, dP_ij - D_i)", "P_ij * (dP_ij - D_i)", {"poison"}),
    ("dQ not accumulated", "on_chip(dQ_i + tau", "on_chip(tau", {"gradients"}),
    ("dK not accumulated", "on_chip(dK_tilde_j + tau", "on_chip(tau", {"gradients"}),
    ("dV not accumulated", "on_chip(dV_tilde_j + p", "on_chip(p", {"gradients"}),
    ("last block of queries dropped", "loop(blocks.T_r)", "loop(blocks.T_r - 1)", {"gradients", "counts"}),
    ("last, ragged block of keys dropped", "loop(blocks.T_c)", "loop(blocks.T_c - 1)", {"gradients", "counts"}),
    ("R not restored", "dropout.restore()", "pass", {"counts"}),
    ("dK returned first", "    return dQ, dK, dV", "    return dK, dQ, dV", {"refused", "counts"}),
]  # fmt: skip
UNSEEN_WITH_ONES = [
    ("D = rowsum(O)", "rowsum(dO_i * O_i)", "rowsum(O_i)"),
    ("dO's columns reversed in dP", "dO_i @ V_j.T", "dO_i[:, ::-1] @ V_j.T"),
    ("dO's rows reversed in dV", "product(P_dropped_ij.T, dO_i)", "P_dropped_ij.T @ dO_i[::-1]"),
    ("dO left out of dV", "product(P_dropped_ij.T, dO_i)", "P_dropped_ij.T @ (0 * dO_i + 1)"),
]
STANDARD_3: Bugs = [
    ("dV from the undropped P", "P_tiles = dV.divide(B), dO.divide(b), P_dropped", "P_tiles = dV.divide(B), dO.divide(b), P",
     {"gradients"}),
    ("dP not dropped", "    dropout.whole_backward(sram, dP)  # line 3\n", "", {"gradients", "counts"}),
    ("dQ without τ", "tau * product(dS_ij, K_j)", "product(dS_ij, K_j)", {"gradients"}),
    ("dK without τ", "tau * product(dS_ij.T, Q_i)", "dS_ij.T @ Q_i", {"gradients"}),
    ("0·NaN in dQ", "product(dS_ij, K_j)", "(dS_ij @ K_j)", {"poison"}),
]  # fmt: skip
WHOLE_ROWS_3: Bugs = [
    ("D left out", "gated(P_i, dP_i - D_i)", "gated(P_i, dP_i)", {"gradients"}),
    ("D without P", "rowsum(gated(P_i, dP_i))", "rowsum(dP_i)", {"gradients"}),
    ("0·NaN in dS", "gated(P_i, dP_i - D_i)", "P_i * (dP_i - D_i)", {"poison"}),
]
WHOLE_ROWS: Bugs = [
    ("m = −∞ subtracted", "exp(S_i - finite(m_i))", "exp(S_i - m_i)", {"exact"}),
    ("divided by ℓ = 0", "P_tilde_i / nonzero(l_i)", "P_tilde_i / l_i", {"exact"}),
]
CLOSED_FORM: Bugs = [
    ("L of the largest key", "logaddexp(log_L_i, logsumexp(S_masked_ij))", "(log_L_i + 0 * logsumexp(S_masked_ij))", {"exact"}),
    ("0·NaN", "product(P_dropped_ij, v_j)", "(P_dropped_ij @ v_j)", {"poison"}),
]  # fmt: skip
CLOSED_FORM_BACK: Bugs = [
    ("dq without τ", "dq_i + tau * product", "dq_i + product", {"gradients"}),
    ("dk without τ", "dk_j + tau * product(dS", "dk_j + product(dS", {"gradients"}),
    ("D of o alone", "rowsum(do_i * o_i)", "rowsum(o_i)", {"gradients"}),
    ("dv from the undropped P", "P_ij * dropout_by_key(P_ij, i, j), over=P_ij", "P_ij * 1, over=P_ij", {"gradients"}),
]
COMBINED: Bugs = [
    (
        "combined without ℓ_ij",
        "exp(m_ij - finite(m_i_new)) * l_ij * O_ij",
        "exp(m_ij - finite(m_i_new)) * O_ij",
        {"exact"},
    ),
    ("running output not rescaled", "exp(m_i - finite(m_i_new)) * O_i +", "O_i +", {"exact"}),
    ("divided by ℓ_ij = 0", "/ nonzero(l_ij))  # summarise", "/ l_ij)  # summarise", {"exact"}),
]
COMBINED_BACK: Bugs = [
    ("weight of a block without its ℓ_ij", "* l_ij / nonzero(l_i)", "/ nonzero(l_i)", {"gradients"}),
    ("combination not differentiated", "+ (own_ij - whole_i)", "+ 0 * whole_i", {"gradients"}),
    ("dV without the block's weight", "w_ij * dO_i)", "dO_i)", {"gradients"}),
]
Q_OUTER: Bugs = [
    ("O is not rescaled", "exp(m_i - finite(m_i_new)) * O_i +", "O_i +", {"exact"}),
    ("O rescaled the wrong way", "exp(m_i - finite(m_i_new)) * O_i +", "exp(finite(m_i_new) - finite(m_i)) * O_i +", {"exact"}),
    ("ℓ is not rescaled", "exp(m_i - finite(m_i_new)) * l_i +", "l_i +", {"exact", "statistics"}),
    ("O is not divided by ℓ", "O_i / nonzero(l_i)", "O_i / 1", {"exact"}),
    ("divided by ℓ = 0", "/ nonzero(l_i)", "/ l_i", {"exact"}),
    ("m is not kept", "m_i = on_chip(m_i_new, over=m_i)", "pass", {"exact", "statistics"}),
    ("log-sum-exp in base 2", "m_i + log(l_i)", "m_i + log(l_i) / 0.6931471805599453", {"statistics", "gradients"}),
    ("log-sum-exp without m", "m_i + log(l_i)", "log(l_i)", {"statistics", "gradients"}),
    ("log-sum-exp of the dropped P̃", "rowsum(P_tilde_ij), over=l_i",
     "rowsum(P_tilde_ij * dropout(P_tilde_ij, i, j)), over=l_i", {"exact", "statistics"}),
    ("m^new = −∞ subtracted", "exp(S_masked_ij - finite(m_i_new))", "exp(S_masked_ij - m_i_new)", {"exact"}),
    ("0·NaN", "product(P_dropped_ij, V_j)", "(P_dropped_ij @ V_j)", {"poison"}),
    ("mask left out", "MASK(S_ij, i, j)", "S_ij", {"exact", "statistics", "poison", "counts"}),
    ("only the first diagonal tile masked", "MASK(S_ij, i, j)", "(MASK(S_ij, i, j) if i == 0 else S_ij)", {"exact"}),
    ("nothing skipped", ", where=live.row(i)", "", {"counts"}),
    ("the causal skip a tile too far", "where=live.row(i)", "where=live.row(max(i - 1, 0))", {"exact", "counts"}),
    ("the causal skip by the loop's other index", "where=live.row(i)", "where=live.row(0)", {"exact", "counts"}),
    ("last, ragged block of keys dropped", "loop(blocks.T_c, where=live.row(i))",
     "loop(blocks.T_c - 1, where=live.row(i)[:-1] if hasattr(live.row(i), 'shape') else live.row(i))", {"exact", "counts"}),
    ("last, ragged block of queries dropped", "loop(blocks.T_r, alike=live.rows_alike)",
     "loop(blocks.T_r - 1, alike=live.rows_alike)", {"exact", "counts"}),
]  # fmt: skip
Q_OUTER_BACK: Bugs = [
    ("P without L", "- finite(L_i)", "- 0 * finite(L_i)", {"gradients"}),
    ("L = −∞ subtracted", "- finite(L_i)", "- L_i", {"gradients"}),
    ("D of dO alone", "rowsum(dO_i * O_i)", "rowsum(dO_i)", {"gradients"}),
    ("D left out", "dP_ij - D_i)", "dP_ij - 0 * D_i)", {"gradients"}),
    ("dS from the dropped P", "gated(P_ij, dP", "gated(P_dropped_ij, dP", {"gradients"}),
    ("dV from the undropped P", "product(P_dropped_ij.T, dO_i)", "product(P_ij.T, dO_i)", {"gradients"}),
    ("dP not dropped", "dO_i @ V_j.T * Z_ij", "dO_i @ V_j.T * 1", {"gradients"}),
    ("dQ not accumulated", "on_chip(dQ_i + tau", "on_chip(tau", {"gradients"}),
    ("dQ without τ", "tau * product(dS_ij, K_j)", "product(dS_ij, K_j)", {"gradients"}),
    ("dK without τ", "tau * product(dS_ij.T", "1.0 * product(dS_ij.T", {"gradients"}),
    ("mask left out", "MASK(S_ij, i, j)", "S_ij", {"gradients", "poison", "counts"}),
    ("0·NaN in dQ", "product(dS_ij, K_j)", "(dS_ij @ K_j)", {"poison"}),
    ("0·NaN in dS", "gated(P_ij, dP_ij - D_i)", "P_ij * (dP_ij - D_i)", {"poison"}),
    ("the causal skip a tile too far", "where=live.column(j)", "where=live.column(min(j + 1, blocks.T_c - 1))",
     {"gradients", "counts"}),
    ("nothing skipped", ", where=live.column(j)", "", {"counts"}),
]  # fmt: skip
TWO_PASS: Bugs = [
    ("dQ of the last tile alone", "on_chip(dQ_tilde_i + tau", "on_chip(tau", {"gradients"}),
    ("dQ without τ", "tau * product(dS_ij, K_j)", "product(dS_ij, K_j)", {"gradients"}),
    ("the second pass not dropped", "dO_i @ V_j.T * dropout(P_ij, i, j)", "dO_i @ V_j.T", {"gradients"}),
    ("the second pass's skip a tile too far", "where=live.row(i)", "where=live.row(max(i - 1, 0))", {"gradients", "counts"}),
    ("the second pass skips nothing", ", where=live.row(i)", "", {"counts"}),
    ("the first pass's skip a tile too far", "where=live.column(j)", "where=live.column(min(j + 1, blocks.T_c - 1))",
     {"gradients", "counts"}),
    ("0·NaN in dQ", "product(dS_ij, K_j)", "(dS_ij @ K_j)", {"poison"}),
]  # fmt: skip
STREAMED: Bugs = [
    ("dQ of the last key alone", "on_chip(dQ_tilde_i + tau", "on_chip(tau", {"gradients"}),
    ("dK of the last row alone", "on_chip(dK_tilde_j + tau", "on_chip(tau", {"gradients"}),
    ("dV of the last row alone", "on_chip(dV_tilde_j + p", "on_chip(p", {"gradients"}),
    ("dQ without τ", "tau * product(dS_in, K_n)", "product(dS_in, K_n)", {"gradients"}),
    ("D of dO alone", "rowsum(dO_n * O_n)", "rowsum(dO_n)", {"gradients"}),
    ("dS from the dropped P", "gated(P_nj, dO_n", "gated(P_dropped_nj, dO_n", {"gradients"}),
    ("dV from the undropped P", "product(P_dropped_nj.T, dO_n)", "product(P_nj.T, dO_n)", {"gradients"}),
    ("the second pass not dropped", "dO_i @ V_n.T * dropout_by_key(P_in, i, n)", "dO_i @ V_n.T", {"gradients"}),
    ("rows dropped as line 1's blocks", "dropout_by_row(P_nj, n, j)", "dropout(P_nj, n, j)", {"gradients"}),
    ("the first key's mask for all keys", "MASK_by_key(S_in, i, n)", "MASK_by_key(S_in, i, 0)", {"gradients"}),
    ("keys skipped as rows are", "where=live_by_key.row(i)", "where=live_by_row.row(i)", {"gradients", "counts"}),
    ("the second pass skips nothing", ", where=live_by_key.row(i)", "", {"counts"}),
    ("the first pass's skip a block too far", "where=live_by_row.column(j)",
     "where=live_by_row.column(min(j + 1, blocks.T_c - 1))", {"gradients", "counts"}),
    ("last row of queries dropped", "loop(N_q, where=live_by_row.column(j))",
     "loop(N_q - 1, where=live_by_row.column(j)[:-1] if hasattr(live_by_row.column(j), 'shape') else live_by_row.column(j))",
     {"gradients", "counts"}),
    ("dP beside P", "dS_nj = on_chip(gated(P_nj, dO_n @ V_j.T * Z_nj - D_n), over=P_nj)",
     "dS_nj = on_chip(gated(P_nj, dO_n @ V_j.T * Z_nj - D_n))", {"counts"}),
    ("0·NaN in dQ", "product(dS_in, K_n)", "(dS_in @ K_n)", {"poison"}),
    ("0·NaN in dS", "gated(P_in, dO_i @ V_n.T * dropout_by_key(P_in, i, n) - D_i)",
     "P_in * (dO_i @ V_n.T * dropout_by_key(P_in, i, n) - D_i)", {"poison"}),
]  # fmt: skip
TEXTS: list[tuple[Algorithm, Any, Bugs]] = [
    (FORWARD["flash"], None, FLASH_2),
    (FORWARD["block_sparse"], None, SPARSE),
    (FORWARD["memory_efficient"], None, CLOSED_FORM),
    (FORWARD["rabe_staats"], None, COMBINED),
    (BACKWARD["flash"], None, FLASH_4),
    (BACKWARD["block_sparse"], None, SPARSE_4),
    (BACKWARD["standard"], None, STANDARD_3),
    (BACKWARD["memory_efficient"], None, CLOSED_FORM_BACK),
    (BACKWARD["rabe_staats"], None, COMBINED_BACK),
    (FORWARD["q_outer"], None, Q_OUTER),
    (BACKWARD["q_outer"], None, Q_OUTER_BACK),
    (BACKWARD["q_outer_two_pass"], None, TWO_PASS),
    (BACKWARD["q_outer_streamed"], None, STREAMED),
    (FORWARD["standard"], softmax_rows.whole_rows, WHOLE_ROWS),
    (BACKWARD["standard"], softmax_rows.whole_rows_backward, WHOLE_ROWS_3),
]
OFFSET = "cols - rows[:, None]"
PARTS = [
    ("causal one too far", band.Band.allows, OFFSET, f"{OFFSET} - 1", {"exact", "gradients"}),
    ("causal one too short", band.Band.allows, OFFSET, f"{OFFSET} + 1", {"exact", "gradients"}),
    ("causal aligned at the top left", band.Band._meets, "shift = shape.N_k - shape.N_q", "shift = 0", {"exact"}),
    ("window's right end left out", band.Band._meets, "least <= self", "least < self", {"exact"}),
    ("window's left end left out", band.Band._meets, "most >= shift", "most > shift", {"exact"}),
    (
        "padding one key too long",
        paddings.KeyPadding.band,
        "at_head(self.lengths, head)",
        "at_head(self.lengths, head) + 1",
        {"exact", "poison"},
    ),
    (
        "padding one query too long",
        paddings.QueryPadding.band,
        "at_head(self.lengths, head)",
        "at_head(self.lengths, head) + 1",
        {"exact"},
    ),
    ("offset the wrong way", masks.SlidingWindow.band, "at_head(np", "-at_head(np", {"exact"}),
    ("rows counted in columns' blocks", tile_masks.TileMask.__call__, "i * self._B_r", "i * self._B_c", {"exact"}),
    (
        "columns counted in rows' blocks",
        tile_masks.TileMask.__call__,
        "top, left = i * self._B_r, j * self._B_c",
        "top, left = i * self._B_r, j * self._B_r",
        {"exact"},
    ),
    ("a finite number for −∞", tile_masks.TileMask.__call__, "-math.inf", "-1e4", {"exact", "statistics"}),
    ("dropout by place in the tile", dropout.TileDropout._kept, "i * self._B_r, j * self._B_c", "0, 0", {"exact"}),
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


def on_variants(algorithm: Algorithm) -> Iterator[str]:
    """Run both passes on masks and dropout, the other one as it is, and yield the checks that object."""
    with np.errstate(all="ignore"):
        try:
            if not counted_as_known(algorithm):
                yield "counts"
        except (MemoryModelError, LookupError):
            yield "counts"
    yield from on_each(VARIANTS, objections, algorithm)


def passes(algorithm: Algorithm) -> tuple[Algorithm, Algorithm]:
    """Return the forward and the backward pass, of which the algorithm is one."""
    if algorithm.direction == "forward":
        return algorithm, BACKWARD[algorithm.name]
    return FORWARD[algorithm.forward_pass], algorithm


def how(name: str, case: Case) -> dict[str, Any]:
    blocks = 1 if name == "memory_efficient" else case.B_r, case.B_c
    asked: dict[str, Any] = {"M": 400, "blocks": blocks, "mask": case.masked()[0], "dropout_p": case.dropout_p}
    if name == "block_sparse":
        T_r, T_c = -(-case.N_q // case.B_r), -(-case.N_k // case.B_c)
        asked["block_mask"] = np.tri(T_r, T_c, max(T_r - T_c, 0), dtype=bool) | (np.arange(T_c) == T_c - 1)
    return asked


def counted_as_known(algorithm: Algorithm) -> bool:
    """Say whether both passes move what theory says, on a variant with all parts, and with tiles that positions forbid."""
    for one, case in itertools.product(passes(algorithm), (VARIANTS[5], VARIANTS[2], VARIANTS[3], VARIANTS[7])):
        asked: dict[str, Any] = {**case.shape, **how(algorithm.name, case), "direction": one.direction}
        got, exact = flashsim.count(one, **asked), theory.exact(one.name, **asked)
        if (got.hbm, got.sram) != (exact.hbm, exact.sram):
            return False
    return True


def objections(algorithm: Algorithm, case: Case) -> Iterator[str]:
    Q, K, V = case.inputs()
    ahead, back = passes(algorithm)
    oracle, options = case.oracle, {**how(algorithm.name, case), "seed": case.seed}
    if algorithm.name == "block_sparse":
        tiles = np.kron(options["block_mask"], np.ones((case.B_r, case.B_c), bool))[: case.N_q, : case.N_k]
        oracle["mask"] = tiles if oracle["mask"] is None else tiles & oracle["mask"]
    run = flashsim.forward(ahead, Q, K, V, **options)
    want = attention_with_statistics(Q, K, V, **oracle)
    bound = error_bound(Q, K, V, **rounding(ahead, run.blocks), **oracle)
    if of_bound(run.O, want.O, bound) > 1:
        yield "exact"
    if run.l is not None and run.m is not None:
        delta = (case.d + 4) * 2**-53 * score_reach(Q, K, scale=run.scale, mask=oracle["mask"])[:, 0]
        relative = 2 * np.expm1(2 * delta) + 2 * (case.N_k + 8 * run.blocks.T_c + 8) * 2**-53
        live = np.isfinite(want.m)
        if (
            of_bound(run.l, want.l, relative * want.l) > 1
            or not np.array_equal(np.isfinite(run.m), live)
            or of_bound(run.m[live], want.m[live], 2 * delta[live]) > 1
        ):
            yield "statistics"
    if run.lse is not None:
        with np.errstate(divide="ignore"):
            wanted = want.m + np.log(want.l)
        live = np.isfinite(wanted)
        reach = score_reach(Q, K, scale=run.scale, mask=oracle["mask"])[:, 0]
        off = (2 * (case.d + 4) * reach + 2 * run.blocks.T_c * (reach + 1) + case.N_k + 8 * run.blocks.T_c + 8) * 2**-53
        if not np.array_equal(np.isfinite(run.lse), live) or of_bound(run.lse[live], wanted[live], 4 * off[live]) > 1:
            yield "statistics"
    for check, dO in (("gradients", case.dO()), ("dO = 1", np.ones_like(case.dO()))):
        got = flashsim.backward(back, run, dO)
        bounds = gradient_bounds(Q, K, V, dO, **backward_rounding(back, run.blocks, got.blocks), **oracle)
        exact = gradients(Q, K, V, dO, **oracle)
        if any(of_bound(*three) > 1 for three in zip((got.dQ, got.dK, got.dV), exact, bounds, strict=True)):
            yield check
    dead = np.zeros(case.N_k, bool) if oracle["mask"] is None else ~oracle["mask"].any(axis=0)
    if dead.any():
        K[dead] = V[dead] = np.nan
        run = flashsim.forward(ahead, Q, K, V, check_finite=False, **options)
        got = flashsim.backward(back, run, case.dO(), check_finite=False)
        if not all(np.isfinite(a).all() for a in (run.O, got.dQ, got.dK, got.dV)):
            yield "poison"


@pytest.mark.parametrize("name", BACKWARD)
def test_the_original_is_not_accused_on_masks_and_dropout(name: str) -> None:
    assert list(on_variants(BACKWARD[name])) == []
    allowed = [case.oracle["mask"] for case in VARIANTS if case.oracle["mask"] is not None]
    assert any(not a.any(axis=0).all() for a in allowed)  # keys to poison
    assert any(not a.any(axis=1).all() for a in allowed)  # rows without a key


@pytest.mark.parametrize(("algorithm", "within", "before", "after", "by"), each(*TEXTS))
def test_bugs_in_the_text_are_caught(algorithm: Algorithm, within: Any, before: str, after: str, by: set[str]) -> None:
    assert unnoticed(by, on_variants(planted(algorithm, (before, after), within=within))) == set()


@pytest.mark.parametrize(("bug", "function", "before", "after", "by"), PARTS, ids=[bug[0] for bug in PARTS])
def test_bugs_in_mask_and_dropout_are_caught_by_every_algorithm(
    bug: str, function: Any, before: str, after: str, by: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    swap(function, before, after, monkeypatch)
    for name in ("flash", "rabe_staats"):
        assert unnoticed(by, on_variants(BACKWARD[name])) == set()
    if bug != "columns counted in rows' blocks":  # its passes over S take whole rows
        assert unnoticed(by - {"statistics"}, on_variants(BACKWARD["standard"])) == set()


@pytest.mark.parametrize(("bug", "before", "after"), UNSEEN_WITH_ONES, ids=[bug[0] for bug in UNSEEN_WITH_ONES])
def test_a_gradient_of_ones_would_miss_what_a_random_one_catches(bug: str, before: str, after: str) -> None:
    wrong = planted(BACKWARD["flash"], (before, after))
    noticed = {check for case in VARIANTS for check in objections(wrong, case)}
    assert "gradients" in noticed
    assert "dO = 1" not in noticed

"""Break it to trust it: each planted bug must be caught by a check that our tests rely on.

A bug is a change to the text of Algorithm 1 or 0. The mutant runs in place of the original, and the named checks, the
same that the other tests make, must notice.
"""

from __future__ import annotations

import inspect
import linecache
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import theory
from flashsim.algorithms import FORWARD, algorithm_0_standard, algorithm_1_flash_basic, softmax_rows
from flashsim.memory import MemoryModelError
from flashsim.observers import InductionInvariant, InvariantBroken
from flashsim.reference import attention, error_bound

from .cases import REGIMES, Case
from .test_algorithms import watching_locals

SHAPE: dict[str, Any] = {"N_q": 13, "N_k": 22, "d": 4, "d_v": 3}
FLASH = [
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
]  # fmt: skip
STANDARD = [
    ("last block of keys dropped", "for j in sram.loop(T_c):  # line 3", "for j in sram.loop(T_c - 1):",
     {"exact", "counts"}),
    ("P read twice", "P_ij, V_j = sram.load(P_tiles[i, j], V[j])",
     "P_ij, V_j = sram.load(P_tiles[i, j], V[j]); sram.load(P_tiles[i, j])", {"counts", "count only"}),
    ("O not accumulated", "on_chip(O_i + P_ij @ V_j", "on_chip(P_ij @ V_j", {"exact"}),
    ("softmax skipped", "softmax_rows(sram, S, P)", "softmax_rows(sram, P, S)", {"exact"}),
]  # fmt: skip
LONG_ROWS = [
    ("long rows: ℓ not rescaled", "exp(m_i - m_i_new) * l_i +", "l_i +", {"exact"}),
    ("long rows: m not kept", "m_i = on_chip(m_i_new, over=m_i)", "pass", {"exact"}),
    ("long rows: no second maximum", "exp(S_ij - m_i) / l_i", "exp(S_ij) / l_i", {"exact"}),
]


def mutant(module: ModuleType, before: str, after: str) -> Any:
    source = inspect.getsource(module)
    assert source.count(before) == 1, f"{before!r} occurs {source.count(before)} times"
    name = f"flashsim/algorithms/mutant_{abs(hash((before, after)))}.py"
    text = source.replace(before, after)
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    scope: dict[str, Any] = {}
    exec(compile(text, name, "exec"), scope)
    return scope


def noticed_by(name: str, M: int = 96, seeds: range = range(3)) -> set[str]:
    """Make the checks that our tests make, and return those that object."""
    noticed = set()
    options: dict[str, Any] = {"M": M}
    with np.errstate(all="ignore"):
        for regime in REGIMES:
            for seed in seeds:
                Q, K, V = Case(regime, 13, 22, 4, 3, "float64", seed, 1, 1).inputs()
                escaped: list[str] = []
                try:
                    with watching_locals(escaped):
                        run = flashsim.forward(name, Q, K, V, **options)
                    if name == "flash_basic":
                        flashsim.forward(name, Q, K, V, **options, observers=[InductionInvariant()])
                except InvariantBroken:
                    noticed.add("induction")
                except MemoryModelError:
                    return {"refused"}
                if escaped:
                    noticed.add("escape")
                bound = error_bound(Q, K, V, steps=run.blocks.T_c, scores_stored=FORWARD[name].stores_scores)
                if not (np.abs(run.O - attention(Q, K, V)) <= bound).all():
                    noticed.add("exact")
        exact = theory.exact(name, **SHAPE, **options, dtype="float64")
        if (run.hbm, run.sram) != (exact.hbm, exact.sram):
            noticed.add("counts")
        if flashsim.count(name, **SHAPE, **options, dtype="float64").hbm != exact.hbm:
            noticed.add("count only")
    return noticed


@pytest.mark.parametrize("name", FORWARD)
def test_the_original_is_not_accused(name: str) -> None:
    assert noticed_by(name) == noticed_by(name, M=20) == set()


@pytest.mark.parametrize(("bug", "before", "after", "by"), FLASH, ids=[bug[0] for bug in FLASH])
def test_bugs_in_algorithm_1_are_caught(
    bug: str, before: str, after: str, by: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = mutant(algorithm_1_flash_basic, before, after)["flash_basic"]
    monkeypatch.setitem(FORWARD, "flash_basic", replace(FORWARD["flash_basic"], run=run))
    assert noticed_by("flash_basic") >= by


@pytest.mark.parametrize(("bug", "before", "after", "by"), STANDARD, ids=[bug[0] for bug in STANDARD])
def test_bugs_in_algorithm_0_are_caught(
    bug: str, before: str, after: str, by: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = mutant(algorithm_0_standard, before, after)["standard"]
    monkeypatch.setitem(FORWARD, "standard", replace(FORWARD["standard"], run=run))
    assert noticed_by("standard") >= by


@pytest.mark.parametrize(("bug", "before", "after", "by"), LONG_ROWS, ids=[bug[0] for bug in LONG_ROWS])
def test_bugs_in_the_softmax_of_long_rows_are_caught(
    bug: str, before: str, after: str, by: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = mutant(softmax_rows, before, after)
    monkeypatch.setattr(softmax_rows.long_rows, "__code__", scope["long_rows"].__code__)
    assert noticed_by("standard", M=20) >= by

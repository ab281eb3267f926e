"""Each claim of the ledger can fail: what it checks is broken, and it must say so, and not break itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flashsim import approximate, certificate, theory
from flashsim.algorithms import FORWARD
from flashsim.planting import planted
from flashsim.verify import figure_3, lower, theorems_1_2
from flashsim.verify.claim import Check


@pytest.mark.parametrize(
    ("bug", "said"),
    [
        (("rowsum(P_tilde_ij)", "2 * rowsum(P_tilde_ij)"), "after outer step j = 0, for the first "),
        (("l_i * exp(m_i - m_i_new) * O_i", "l_i * O_i"), "after outer step j = 1, for the first "),
    ],
)
def test_the_induction_breaks_where_the_algorithm_does(
    bug: tuple[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first step, when none is right, as at a later one."""
    monkeypatch.setitem(FORWARD, "flash_basic", planted(FORWARD["flash_basic"], bug))
    claim = theorems_1_2.theorem_1_induction(False)
    assert not claim.holds
    assert claim.measured.startswith(said)


def refuses(*_: Any) -> str:
    raise ValueError("no schedule moves that few")


@pytest.mark.parametrize(
    ("claim", "checker"),
    [
        (lower.nothing_below_exact_optima, (lower, "check_optimum")),
        (lower.nothing_below_the_lower_bound, (certificate, "check")),
    ],
)
def test_certificates_that_prove_nothing_fail_the_claim(
    claim: Check, checker: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*checker, refuses)
    monkeypatch.setattr(lower, "FORWARD", {"flash": FORWARD["flash"]})
    found = claim(False)
    assert not found.holds
    assert found.data["certificates"] == 0


@pytest.mark.parametrize("accesses", [0, 2])
def test_approximations_that_move_less_everywhere_or_nowhere_fail_the_claim(
    accesses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = SimpleNamespace(hbm=SimpleNamespace(accesses=accesses))
    monkeypatch.setattr(approximate, "exact", lambda *_, **__: theirs)
    monkeypatch.setattr(theory, "exact", lambda *_, **__: SimpleNamespace(accesses=1))
    assert not figure_3.approximations_cross(False).holds

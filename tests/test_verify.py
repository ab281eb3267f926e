"""Each claim of the ledger can fail: what it checks is broken, and it must say so, and not break itself."""

from __future__ import annotations

import pytest

from flashsim.algorithms import FORWARD
from flashsim.planting import planted
from flashsim.verify import theorems_1_2


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

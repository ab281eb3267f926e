"""What is tried of a kernel before its spec is known: plain cases, and the specs near to a given
one.
"""

from typing import Any

import pytest

from flashsim.testing import Spec, probe
from flashsim.testing.case import Case
from flashsim.testing.strategies import pool


def test_a_plain_case_is_one_that_the_spec_allows() -> None:
    assert probe.plain(Spec()) == Case(B=2, H_kv=2, N_q=5, N_k=7, d=8)
    assert probe.plain(Spec(cross=False)).N_k == 5
    assert probe.plain(Spec(head_dims=(64, 16))).d == 16
    few = Spec(max_shapes=2)
    shape = pool(few).shapes[0]
    assert probe.plain(few) == Case(**shape)


def test_the_smallest_case_keeps_what_its_kind_is() -> None:
    case = Case(B=3, H_kv=2, group=2, N_q=5, N_k=7, d=8, mask="dense")
    assert probe.smallest(case, Spec()) == Case(
        B=1, H_kv=2, group=2, N_q=1, N_k=1, d=8, mask="dense"
    )
    assert probe.smallest(Case(N_k=0), Spec()).N_k == 0
    whole = probe.smallest(case, Spec(multiples=(4, 8)))
    assert (whole.N_q, whole.N_k) == (4, 8)


def test_other_specs_change_up_to_three_things_the_fewest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "exists", lambda dtype: dtype != "bfloat16")
    changes = list(probe.other_specs(Spec(dtypes=("float32",), lse=None)))
    sizes = [len(each) for each in changes]
    assert sizes == sorted(sizes)
    assert {*sizes} == {1, 2, 3}
    assert {"lse": "base2", "layout": "BNHD", "cross": False} in changes
    tried = {str(each["dtypes"]) for each in changes if "dtypes" in each}
    assert tried == {"('float16',)", "('float64',)"}


def test_a_type_without_its_package_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: Any) -> Any:
        raise ValueError("bfloat16 needs ml_dtypes")

    assert probe.exists("float32")
    monkeypatch.setattr(probe, "float_dtype", missing)
    assert not probe.exists("bfloat16")

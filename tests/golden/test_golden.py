"""What flashsim computes, counts and says is what its golden records say;
`tests/golden/record.py` writes them.
"""

import pytest

from .record import SECTIONS, differences, same_machine, stored


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS)
def test_nothing_differs_from_the_golden_records(section: str) -> None:
    records = dict(SECTIONS[section]())
    assert not differences(stored(section), records, same_machine())


def test_a_changed_record_is_seen() -> None:
    before = {"a": "Q 8r 0w | O #0123456789abcdef", "b": "the same"}
    results = {**before, "a": "Q 8r 0w | O #ffffffffffffffff"}
    counts = {**before, "a": "Q 9r 0w | O #0123456789abcdef"}
    assert differences(before, results, digests=True)
    assert not differences(before, results, digests=False)
    assert differences(before, counts, digests=False)
    assert differences(before, {"a": before["a"]}, digests=False) == [
        "b\n  before: the same\n  after:  no such case"
    ]
    assert not differences(before, before, digests=True)

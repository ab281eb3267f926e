"""`flashsim.algorithms()`: a table of what there is, and the package that it was."""

import importlib
from types import ModuleType

import flashsim
from flashsim import algorithms
from flashsim.algorithms import BACKWARD, FORWARD, table


def test_the_table_has_every_pass_and_fits_a_terminal() -> None:
    found = flashsim.algorithms()  # type: ignore[operator]
    assert [each.name for each in found] == list(FORWARD)
    assert {name for each in found for name in each.backward} == set(BACKWARD)
    shown = repr(found)
    assert all(f"\n{name} " in shown and record.title in shown for name, record in FORWARD.items())
    assert "q_outer_two_pass: another backward pass of q_outer" in shown
    assert "without mask and dropout: flash_basic" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert found._repr_html_().count("<tr>") == len(FORWARD) + 1
    assert repr(table()) == shown
    by_name = {each.name: each for each in found}
    assert by_name["split_kv"].options == ("splits", "merge")
    assert (by_name["flash_basic"].mask, by_name["flash"].dropout) == (False, True)
    assert repr(by_name["q_outer"]) == (
        "<q_outer: FlashAttention, loops exchanged, backward q_outer, q_outer_stored, "
        "q_outer_streamed, q_outer_two_pass>"
    )


def test_it_is_a_package_as_before() -> None:
    assert isinstance(algorithms, ModuleType)
    assert importlib.import_module("flashsim.algorithms") is flashsim.algorithms is algorithms
    assert importlib.import_module("flashsim.algorithms.blocks") is algorithms.blocks
    assert "flashsim.algorithms" in repr(algorithms)

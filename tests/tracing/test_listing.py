"""`flashsim.algorithms()`: a table of what there is, and the package that it was."""

import importlib
from types import ModuleType

import flashsim
from flashsim import algorithms
from flashsim.algorithms import BACKWARD, FORWARD, table


def test_the_table_has_every_pass_and_fits_a_terminal() -> None:
    result = flashsim.algorithms()  # type: ignore[operator]
    assert [each.name for each in result] == list(FORWARD)
    assert {name for each in result for name in each.backward} == set(BACKWARD)
    output = repr(result)
    assert all(
        f"\n{name} " in output and record.title in output for name, record in FORWARD.items()
    )
    assert "q_outer_two_pass: another backward pass of q_outer" in output
    assert "without mask and dropout: flash_basic" in output
    assert max(map(len, output.splitlines())) <= 80
    assert result._repr_html_().count("<tr>") == len(FORWARD) + 1
    assert repr(table()) == output
    by_name = {each.name: each for each in result}
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

"""Every program satisfies every check, of whatever kind it is. A new file of a program is found by
its record: it needs no test of its own here.
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashsim.algorithms import FORWARD, Algorithm
from flashsim.algorithms.program import MatrixProgram
from flashsim.algorithms.record import Program
from flashsim.algorithms.with_sink import variants
from tests.contract import checks, sources
from tests.contract.programs import (
    KINDS,
    PROGRAMS,
    each_program,
    files,
    help_of,
    kind_of,
    page_of,
    samples_of,
    trials_of,
)
from tests.contract.trials import Trial
from tests.helpers.bugs import FLASH, SPLIT_KV, STANDARD, TEXTS

each_file = pytest.mark.parametrize("module", files(), ids=lambda module: module.__name__)

# --------------------------------------------------------------------------------------------------
# records and files


@each_program()
def test_its_record_stands_at_the_end_of_its_file(program: Program) -> None:
    checks.check_record(program)
    checks.check_form(program, kind_of(program).forms[program.name, program.direction])


@pytest.mark.parametrize("kind", KINDS)
def test_programs_have_forms_and_forms_programs(kind: str) -> None:
    programs = {(one.name, one.direction) for one in KINDS[kind].programs.values()}
    assert programs == KINDS[kind].forms.keys()


@each_program("attention", "batches", "devices")
def test_its_page_and_its_command_name_it(program: Program) -> None:
    kind = next(name for name, kind in KINDS.items() if kind is kind_of(program))
    checks.check_named(program, page_of(kind))
    checks.check_named(program, help_of(kind))


@each_file
def test_lines_are_the_listing_s(module: ModuleType) -> None:
    sources.check_lines_are_the_listing_s(module)
    sources.check_each_use_of_the_memory_is_labelled(module)


@each_file
def test_a_program_does_not_look_into_the_memory(module: ModuleType) -> None:
    sources.check_it_does_not_look_into_the_memory(module)
    if sources.of_algorithms(module):
        sources.check_it_has_no_branches(module)


@each_program("matrices")
def test_each_statement_of_a_program_on_matrices_is_labelled(program: Program) -> None:
    sources.check_each_statement_is_labelled(sys.modules[program.home])


# --------------------------------------------------------------------------------------------------
# runs


def check_run(trial: Trial) -> None:
    """Make the checks of a run: of one, as runs take time."""
    before = checks.copies(trial)
    run = checks.attempt(trial)
    if run is None:
        return
    checks.check_results(trial, run)
    checks.check_counts(trial, run)
    checks.check_too_small_a_memory_is_refused(trial, run)
    checks.check_operands_stay(trial, before)


@each_program("attention", "matrices", "devices")
@given(data=st.data())
def test_it_computes_and_costs_what_it_should(program: Program, data: st.DataObject) -> None:
    check_run(data.draw(trials_of(program)))


@each_program("batches")
@settings(max_examples=3 * settings().max_examples)  # a batch has many ways to be ragged
@given(data=st.data())
def test_a_batch_is_computed_and_costs_what_it_should(
    program: Program, data: st.DataObject
) -> None:
    check_run(data.draw(trials_of(program)))


@each_program()
def test_it_repeats_itself_and_computes_on_the_chip(program: Program) -> None:
    for trial in samples_of(program)[:2]:
        checks.check_results(trial, trial.right)
        checks.check_it_repeats_itself_on_the_chip(trial, trial.right)


@each_program()
def test_it_can_be_stepped_through(program: Program, tmp_path: Path) -> None:
    trial = samples_of(program)[0]
    trace = trial.trace()
    if trace is None:
        pytest.skip("backward passes over devices have no traces")
    checks.check_trace(trial, trace, tmp_path)
    checks.check_the_chip_is_left_empty(trace)
    if isinstance(program, MatrixProgram):
        checks.check_tiles_have_names(trace)


# --------------------------------------------------------------------------------------------------
# bugs

TABLES = [
    (FORWARD["flash_basic"], None, FLASH),
    (FORWARD["standard"], None, STANDARD),
    (FORWARD["split_kv"], None, SPLIT_KV),
    *TEXTS,
]
OF_RECORDS = [
    pytest.param(program, bug, id=f"{name}: {bug.what}")
    for name, program in PROGRAMS.items()
    for bug in program.bugs
]


@pytest.mark.parametrize(("program", "bug"), OF_RECORDS)
def test_a_bug_of_its_record_is_seen(program: Program, bug: Any) -> None:
    checks.check_bug_is_seen(program, bug, samples_of(program))


@each_program("matrices", "batches", "devices")
def test_its_record_has_bugs(program: Program) -> None:
    assert program.bugs


@each_program("attention")
def test_bugs_of_an_algorithm_are_in_its_record_or_in_a_table(program: Algorithm) -> None:
    """The tables are of algorithms that share bugs (tests/helpers/bugs.py). A variant is its
    algorithm, but for one line.
    """
    if program is not variants().get(program.name):
        assert program.bugs or any(program.run is planted_in.run for planted_in, *_ in TABLES)

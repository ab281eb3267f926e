"""What every program must satisfy, of whatever kind it is: a check each, of a program, or of a
trial of it and its run. A check raises AssertionError.
"""

import pickle
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flashsim import load_trace
from flashsim.algorithms.record import Bug, Program
from flashsim.memory.errors import MemoryModelError, SramOverflow
from flashsim.simulate.results import Result
from flashsim.tracing import Trace
from flashsim.tracing.data import DATA
from flashsim.tracing.listing import label_of
from flashsim.tracing.planting import planted
from tests.contract.trials import Trial
from tests.helpers.watching import watching_locals

UNNAMED = {"a result", "an unnamed tile", "registers", "loop"}
"""What tiles are called that no variable of a program holds."""

# --------------------------------------------------------------------------------------------------
# of a program


def check_record(program: Program) -> None:
    """Its file ends in it, says what it is, and gives it to whoever unpickles it."""
    module = sys.modules[program.home]
    assert getattr(module, program.called) is program
    assert pickle.loads(pickle.dumps(program)) is program
    assert program.name
    assert program.title
    assert program.run.__doc__
    assert program.listing
    assert module.__doc__
    assert program.direction in ("forward", "backward")


def check_form(program: Program, form: Any) -> None:
    """Its closed form is of the same name, and can be pickled."""
    assert (form.name, form.direction) == (program.name, program.direction)
    assert pickle.loads(pickle.dumps(form)) == form


def check_named(program: Program, text: str) -> None:
    """A text names it, by more than the name of a file."""
    assert re.search(rf"(?<![\w/]){program.name}\b(?!\.py)", text)


# --------------------------------------------------------------------------------------------------
# of a trial


def attempt(trial: Trial) -> Result | None:
    """Return the run of a trial; None where it is right to refuse the problem."""
    try:
        return trial.right
    except ValueError as error:
        if trial.may_refuse(error):
            return None
        raise


def check_results(trial: Trial, run: Result) -> None:
    """It computes what the reference does, within rounding."""
    assert trial.wrong(run) == []


def check_counts(trial: Trial, run: Result) -> None:
    """A run, a count on shapes and the closed form say the same."""
    tally = trial.count()
    assert trial.in_common(tally) == trial.in_common(run)
    for result in (run, tally):
        exact = trial.exact(result)
        if exact is not None:
            assert trial.costs(result) == exact
    matmul = trial.matmul(tally)
    if matmul is not None and tally.operations is not None:
        assert tally.operations.matmul == matmul


def check_too_small_a_memory_is_refused(trial: Trial, run: Result) -> None:
    """With the same blocks and an element less, it overflows, or makes do with less."""
    M = trial.peak(run) - 1
    if M < 1:
        return
    try:
        smaller = trial.run_in(M, run)
    except SramOverflow:
        return
    assert trial.peak(smaller) <= M


def check_operands_stay(trial: Trial, before: dict[str, Any]) -> None:
    """What it was given is as it was."""
    for name, array in trial.operands().items():
        assert np.array_equal(array, before[name], equal_nan=True), name


def copies(trial: Trial) -> dict[str, Any]:
    return {name: array.copy() for name, array in trial.operands().items()}


def check_it_repeats_itself_on_the_chip(trial: Trial, run: Result) -> None:
    """Another run computes the same bits, costs the same, and holds no array that is neither on chip
    nor evicted.
    """
    escaped: list[str] = []
    with watching_locals(escaped):
        again = trial.run()
    assert escaped == [], escaped[:3]
    assert trial.costs(again) == trial.costs(run)
    for name, array in run.arrays.items():
        for one, other in zip(_parts(array), _parts(again.arrays[name]), strict=True):
            assert np.array_equal(one, other, equal_nan=True), name


def _parts(result: Any) -> list[Any]:
    """Return an array for each sequence, or the one that there is, or none."""
    if result is None:
        return []
    return result if isinstance(result, list) else [result]


# --------------------------------------------------------------------------------------------------
# of a trace


def check_trace(trial: Trial, trace: Trace, folder: Path) -> None:
    """Its steps are the listing's lines, with its counts, and can be kept."""
    about = trace.about
    assert (about.algorithm, about.direction) == (trial.program.name, trial.program.direction)
    assert about.title.startswith(trial.program.title)
    assert about.source
    for array in about.arrays:
        assert array.exact == (array.reads, array.writes), array.name
    last = trace.events[-1]
    assert last.reads == sum(array.reads for array in about.arrays)
    assert last.writes == sum(array.writes for array in about.arrays)
    assert about.exact_peak in (None, about.peak)
    assert max(event.occupancy for event in trace.events) == about.peak
    check_steps(trace)
    numbered = [line for line in about.listing if not line.startswith("Require")]
    listed = {label_of(line) for line in numbered}
    if listed:
        labels = {step.label for step in trace.steps}
        assert labels <= listed, labels - listed
    assert load_trace(trace.save(folder / "trace.json.gz")).about == about


def check_tiles_have_names(trace: Trace) -> None:
    """Each tile is called what the program's variable is."""
    names = {event.name for event in trace.events}
    for event in trace.events:
        names.update(name for name, _ in event.resident)
    assert not names & UNNAMED


def check_the_chip_is_left_empty(trace: Trace) -> None:
    """Loops evict what their turns brought: what is left at the end is no more than what was
    brought outside of them.
    """
    outside = 0
    for event in trace.events:
        if event.kind in ("load", "compute") and not event.loops:
            outside += event.elements
    assert trace.events[-1].occupancy <= outside


def check_steps(trace: Trace) -> None:
    """Each event that moves or makes numbers is of one step, at one line, in one turn."""
    in_steps: list[int] = []
    for step in trace.steps:
        in_steps.extend(range(step.first, step.last + 1))
        places = {(event.label, event.loops) for event in trace.of(step)}
        assert places == {(step.label, step.loops)}
    of_data = [number for number, event in enumerate(trace.events) if event.kind in DATA]
    assert in_steps == of_data


# --------------------------------------------------------------------------------------------------
# of planted bugs


def objections(trial: Trial, program: Program) -> Iterator[str]:
    """Yield what is wrong with a program in the place of the trial's: "refused", "results",
    "counts".
    """
    try:
        run = trial.run(program)
    except (ValueError, LookupError, MemoryModelError):
        yield "refused"
        return
    if trial.wrong(run):
        yield "results"
    if trial.costs(run) != trial.costs(trial.right):
        yield "counts"


def check_bug_is_seen(program: Program, bug: Bug, trials: Iterable[Trial]) -> None:
    """Some trial objects to the program with this bug in it."""
    wrong = planted(program, (bug.before, bug.after), what=bug.what)
    with np.errstate(all="ignore"):
        for trial in trials:
            if any(objections(trial, wrong)):
                return
    raise AssertionError(f"nothing sees it: {bug.what}")

"""Each check of the contract objects to a program that breaks it, and to none that does not."""

import ast
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from flashsim.algorithms import FORWARD
from flashsim.algorithms.record import Bug, Program
from flashsim.extensions.programs import programs as matrix_programs
from flashsim.memory.errors import SramOverflow
from flashsim.memory.hbm import HBM
from flashsim.memory.sram import SRAM
from flashsim.simulate.results import Result
from flashsim.tracing import Trace
from flashsim.tracing.planting import planted
from tests.contract import checks, sources
from tests.contract.attention import AttentionTrial
from tests.contract.programs import PROGRAMS, samples_of
from tests.contract.trials import Trial
from tests.helpers.watching import watching_locals

# --------------------------------------------------------------------------------------------------
# of a file's text

FLASH = sys.modules[FORWARD["flash"].home]
PRODUCT = sys.modules[matrix_programs()["kernel_x_outer"].home]
SCORES = "S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 10"
RETURN = "return Y  # line 13"
Check = Callable[[ModuleType], None]
TEXTS: list[tuple[Check, ModuleType, str, str]] = [
    (sources.check_lines_are_the_listing_s, FLASH, SCORES, SCORES.replace("10", "99")),
    (sources.check_lines_are_the_listing_s, FLASH, SCORES, SCORES.replace("10", "9")),
    (sources.check_lines_are_the_listing_s, FLASH, "    10     S_ij", "    11     S_ij"),
    (sources.check_lines_are_the_listing_s, FLASH, "    1  Init", "  1  Init"),
    (sources.check_each_use_of_the_memory_is_labelled, FLASH, "  # line 10", ""),
    (sources.check_each_statement_is_labelled, PRODUCT, RETURN, "return Y"),
    (sources.check_it_does_not_look_into_the_memory, FLASH, SCORES, f"print(Q_i); {SCORES}"),
    (sources.check_it_does_not_look_into_the_memory, FLASH, SCORES, f"sram.peak; {SCORES}"),
    (sources.check_it_does_not_look_into_the_memory, FLASH, SCORES, f"hbm.peek('S'); {SCORES}"),
    (sources.check_it_has_no_branches, FLASH, "tau * (Q", "(tau if B_r else 1) * (Q"),
]
"""A check, and a change to a file that it objects to."""


def changed_file(module: ModuleType, before: str, after: str, folder: Path) -> ModuleType:
    """Return what a check reads of a file with a change in it."""
    text = Path(module.__file__ or "").read_text(encoding="utf-8")
    assert text.count(before) == 1, before
    text = text.replace(before, after)
    file = folder / "changed.py"
    file.write_text(text, encoding="utf-8")
    changed = ModuleType(module.__name__, ast.get_docstring(ast.parse(text), clean=False))
    changed.__file__ = str(file)
    return changed


@pytest.mark.parametrize(("check", "module", "before", "after"), TEXTS)
def test_a_file_that_breaks_a_rule_is_seen(
    check: Check, module: ModuleType, before: str, after: str, tmp_path: Path
) -> None:
    check(module)
    with pytest.raises(AssertionError):
        check(changed_file(module, before, after, tmp_path))


# --------------------------------------------------------------------------------------------------
# of a record


@pytest.mark.parametrize("name", ["flash", "linformer", "paged", "ring over devices"])
def test_a_record_that_no_file_ends_in_is_seen(name: str) -> None:
    program = PROGRAMS[name]
    checks.check_record(program)
    with pytest.raises(AssertionError):
        checks.check_record(replace(program, title="another"))


def test_a_form_of_another_name_is_seen() -> None:
    flash = FORWARD["flash"]
    with pytest.raises(AssertionError):
        checks.check_form(flash, replace(flash, name="flsh"))


def test_a_name_is_a_word() -> None:
    flash = FORWARD["flash"]
    checks.check_named(flash, "`standard`, `flash`")
    checks.check_named(flash, "standard, flash")
    checks.check_named(flash, "call `serving.flash(Q, K, V)`")
    for text in ("flash_basic", "flash.py", "algorithms/flash"):
        with pytest.raises(AssertionError):
            checks.check_named(flash, text)


# --------------------------------------------------------------------------------------------------
# of runs

ONE_OF_EACH_KIND = ["flash", "flash, backward", "kernel_x_outer", "paged", "ring over devices"]
each_kind = pytest.mark.parametrize("name", ONE_OF_EACH_KIND)


def trial_of(name: str) -> Trial:
    return samples_of(PROGRAMS[name])[1]


BOUNDLESS = property(lambda sram: 10**6, lambda sram, M: None)
"""A capacity that is never exceeded, whatever M is."""
WRONG = {
    "flash": ("tau * (Q_i @ K_j.T)", "(Q_i @ K_j.T)"),
    "flash, backward": ("dQ_i + tau * product(dS_ij, K_j)", "dQ_i + product(dS_ij, K_j)"),
    "kernel_x_outer": ("Y_i + K_ij @ V_j", "Y_i + 2 * K_ij @ V_j"),
    "paged": ("tau * (Q_i @ K_c.T)", "(Q_i @ K_c.T)"),
    "ring over devices": ("tau * (Q_i @ K_j.T)", "(Q_i @ K_j.T)"),
}


def with_mistake(name: str) -> Program:
    return planted(PROGRAMS[name], WRONG[name])


@each_kind
def test_wrong_results_are_seen(name: str) -> None:
    trial = trial_of(name)
    checks.check_results(trial, trial.run())
    with pytest.raises(AssertionError):
        checks.check_results(trial, trial.run(with_mistake(name)))


AGAIN = {
    "flash": "K_j, V_j = sram.load(K[j], V[j])",
    "flash, backward": "K_j, V_j = sram.load(K[j], V[j])",
    "kernel_x_outer": "Z_j, V_j = sram.load(Z[j], V[j])",
    "paged": "Q_i = sram.load(Q_s[i])",
    "ring over devices": "Q_i = sram.load(Q_h[i])",
}
"""What is loaded twice, so that other counts result."""


def twice(name: str) -> Program:
    return planted(PROGRAMS[name], (AGAIN[name], f"{AGAIN[name]}; {AGAIN[name]}"))


@each_kind
def test_other_counts_are_seen(name: str) -> None:
    trial = trial_of(name)
    checks.check_counts(trial, trial.run())
    with pytest.raises(AssertionError):
        checks.check_counts(trial, trial.run(twice(name)))


@each_kind
def test_a_memory_that_does_not_overflow_is_seen(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = trial_of(name)
    run = trial.run()
    checks.check_too_small_a_memory_is_refused(trial, run)
    with pytest.raises(SramOverflow):
        trial.run_in(trial.peak(run) - 1, run)
    monkeypatch.setattr(SRAM, "capacity", BOUNDLESS, raising=False)
    with pytest.raises(AssertionError):
        checks.check_too_small_a_memory_is_refused(trial, run)


@each_kind
def test_operands_that_change_are_seen(name: str) -> None:
    trial = trial_of(name)
    before = checks.copies(trial)
    checks.check_operands_stay(trial, before)
    operand = next(array for array in trial.operands().values() if array.dtype.kind == "f")
    operand.flags.writeable = True
    operand.reshape(-1)[0] += 1
    with pytest.raises(AssertionError):
        checks.check_operands_stay(trial, before)


@each_kind
def test_a_run_that_is_not_repeated_is_seen(name: str) -> None:
    trial = trial_of(name)
    checks.check_it_repeats_itself_on_the_chip(trial, trial.run())
    for other in (with_mistake(name), twice(name)):
        with pytest.raises(AssertionError):
            checks.check_it_repeats_itself_on_the_chip(trial, trial.run(other))


@pytest.mark.parametrize("name", ["flash", "kernel_x_outer", "paged", "ring over devices"])
def test_tiles_that_are_never_evicted_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = samples_of(PROGRAMS[name])[0]
    checks.check_the_chip_is_left_empty(trace_of(trial))
    monkeypatch.setattr(SRAM, "_evict", lambda *_: None)
    monkeypatch.setattr(SRAM, "capacity", BOUNDLESS, raising=False)
    with pytest.raises(AssertionError):
        checks.check_the_chip_is_left_empty(trace_of(trial))


def trace_of(trial: Trial) -> Trace:
    trace = trial.trace()
    assert trace is not None
    return trace


class Leaking(AttentionTrial):
    """A trial that runs Algorithm 2 with a tile that is never put on chip."""

    def run(self, program: Any = None, *args: Any, **options: Any) -> Result:
        leaking = ("on_chip(rowmax(S_masked_ij))", "rowmax(S_masked_ij)")
        return super().run(planted(self.program, leaking), *args, **options)


def test_a_tile_off_the_chip_is_seen() -> None:
    trial = trial_of("flash")
    with pytest.raises(AssertionError, match="m_tilde_ij at line"):
        checks.check_it_repeats_itself_on_the_chip(Leaking(**vars_of(trial)), trial.right)


def vars_of(trial: Trial) -> dict[str, Any]:
    """Return the fields of a trial."""
    return {field.name: getattr(trial, field.name) for field in fields(trial)}


def test_the_watch_says_where_an_array_is() -> None:
    source = "def leaky(sram, Q):\n    Q_i = sram.load(Q[0])\n    S = Q_i + 1\n    return S\n"
    scope: dict[str, Any] = {}
    exec(compile(source, "flashsim/algorithms/leaky.py", "exec"), scope)
    hbm = HBM()
    Q = hbm.place("Q", np.ones((2, 2)))
    escaped: list[str] = []
    with watching_locals(escaped):
        scope["leaky"](SRAM(hbm, 100), Q)
    assert escaped == ["S at line 4", "S at line 4"]


# --------------------------------------------------------------------------------------------------
# of traces and bugs


def test_a_trace_that_is_not_the_run_s_is_seen(tmp_path: Path) -> None:
    trial = trial_of("flash")
    trace = trace_of(trial)
    checks.check_trace(trial, trace, tmp_path)
    about = trace.about
    first, *others = about.arrays
    arrays = (replace(first, reads=first.reads + 1), *others)
    wrong = [
        replace(trace, about=replace(about, title="another")),
        replace(trace, about=replace(about, peak=about.peak + 1)),
        replace(trace, about=replace(about, arrays=arrays)),
        replace(trace, about=replace(about, listing=about.listing[:5])),
        replace(trace, events=(*trace.events[:-1], trace.events[-1]._replace(reads=0))),
    ]
    for other in wrong:
        with pytest.raises(AssertionError):
            checks.check_trace(trial, other, tmp_path)


def test_a_tile_without_a_name_is_seen() -> None:
    trace = trace_of(trial_of("kernel_x_outer"))
    checks.check_tiles_have_names(trace)
    unnamed = trace.events[0]._replace(name="a result")
    with pytest.raises(AssertionError):
        checks.check_tiles_have_names(replace(trace, events=(unnamed, *trace.events[1:])))


def test_a_bug_that_is_none_is_seen() -> None:
    program = PROGRAMS["kernel_x_outer"]
    none = Bug("turned round", "Y_i + K_ij @ V_j", "K_ij @ V_j + Y_i")
    with pytest.raises(AssertionError, match="nothing sees it: turned round"):
        checks.check_bug_is_seen(program, none, samples_of(program))

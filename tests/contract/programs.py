"""All programs that flashsim has, of all kinds: what `records_of` finds in their folders."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st

from flashsim import algorithms, theory
from flashsim.algorithms import with_sink
from flashsim.algorithms.record import Program
from flashsim.cli import main
from flashsim.devices import programs as devices_programs
from flashsim.devices import theory as devices_theory
from flashsim.extensions import programs as extensions_programs
from flashsim.serving import programs as serving_programs
from flashsim.serving.theory import forms as serving_forms
from flashsim.support.modules import modules_of
from flashsim.theory.closed_form import ClosedForm
from tests.contract import attention, batches, devices, matrices
from tests.contract.sources import on_the_memory, tree_of
from tests.contract.trials import Trial


class ProgramKind(NamedTuple):
    """How programs of one kind are tried.

    programs  by the names that tests show
    trials    a problem at random
    samples   a few problems that do not change
    forms     their closed forms, by name and direction
    page      the page that names them; "": none does
    command   the command that takes their names; "": none does
    """

    programs: Mapping[str, Any]
    trials: Callable[[Any], st.SearchStrategy[Any]]
    samples: Callable[[Any], Sequence[Any]]
    forms: Mapping[tuple[str, str], ClosedForm]
    page: str = ""
    command: str = ""


def _forms_of_attention() -> dict[tuple[str, str], ClosedForm]:
    by_name: dict[tuple[str, str], ClosedForm] = {}
    for direction, forms in theory.form.forms().items():
        for name, form in forms.items():
            by_name[name, direction] = form
    return by_name


def _forms_of_matrices() -> dict[tuple[str, str], ClosedForm]:
    return {(name, form.direction): form for name, form in theory.matrices.matrix_forms().items()}


KINDS = {
    "attention": ProgramKind(
        programs=attention.PROGRAMS,
        trials=attention.trials,
        samples=attention.samples,
        forms=_forms_of_attention(),
        page="README.md",
        command="count",
    ),
    "matrices": ProgramKind(
        programs=matrices.PROGRAMS,
        trials=matrices.trials,
        samples=matrices.samples,
        forms=_forms_of_matrices(),
    ),
    "batches": ProgramKind(
        programs=batches.PROGRAMS,
        trials=batches.trials,
        samples=batches.samples,
        forms=serving_forms(),
        page="docs/serving.md",
        command="serve",
    ),
    "devices": ProgramKind(
        programs=devices.PROGRAMS,
        trials=devices.trials,
        samples=devices.samples,
        forms=devices_theory.forms(),
        page="docs/devices.md",
        command="devices",
    ),
}
PROGRAMS: dict[str, Program] = {}
for _kind in KINDS.values():
    PROGRAMS.update(_kind.programs)
ROOT = Path(__file__).parents[2]
FOLDERS: list[ModuleType] = [
    algorithms,
    with_sink,
    extensions_programs,
    serving_programs,
    devices_programs,
]
"""Packages whose files hold programs, and functions that several programs call."""


def each_program(*kinds: str) -> pytest.MarkDecorator:
    """Run a test for each program of these kinds; of all, if none is named."""
    named: dict[str, Program] = {}
    for kind in kinds or KINDS:
        named.update(KINDS[kind].programs)
    return pytest.mark.parametrize("program", [*named.values()], ids=[*named])


def kind_of(program: Program) -> ProgramKind:
    """Return the kind of a program, or of a mutant of one."""
    for kind in KINDS.values():
        if any(type(known) is type(program) for known in kind.programs.values()):
            return kind
    raise ValueError(f"{program!r} is of no kind; expected one of {', '.join(KINDS)}")


def trials_of(program: Program) -> st.SearchStrategy[Trial]:
    return kind_of(program).trials(program)


def samples_of(program: Program) -> Sequence[Trial]:
    return kind_of(program).samples(program)


def files() -> list[ModuleType]:
    """Return the files of `FOLDERS` with functions that run on the memory."""
    modules = []
    for folder in FOLDERS:
        for module in modules_of(folder.__name__):
            if on_the_memory(tree_of(module)):
                modules.append(module)
    return modules


@cache
def page_of(kind: str) -> str:
    """Return the text of the page that names programs of a kind."""
    return (ROOT / KINDS[kind].page).read_text(encoding="utf-8")


@cache
def help_of(kind: str) -> str:
    """Return what the `--help` of the command that takes programs of a kind says of their names."""
    printed = StringIO()
    with redirect_stdout(printed):
        main([KINDS[kind].command, "--help"])
    _, _, arguments = printed.getvalue().partition("positional arguments:")
    names, _, _ = arguments.partition("options:")
    return names

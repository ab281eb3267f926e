"""The first two files of a kernel's tests: its spec, as `infer` found it, and a pytest file of one test for each check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from textwrap import wrap as wrapped

from flashsim.testing.inferring import Inferred
from flashsim.testing.spec import Spec

SPEC_FILE = '''\
"""What {name} takes and promises, as a few calls show: check each line.

What is not here has its default; help(flashsim.testing.Spec) lists it all. Written by
{command}
"""

{imports}
SPEC = Spec({arguments})
'''

TEST_FILE = '''\
"""Tests of {name}, one for each of flashsim's checks. Run: pytest {file}"""

from flashsim.testing import parametrize_with_checks
{imports}

@parametrize_with_checks({arguments})
def test_{name}(check):
    check()
'''


@dataclass(frozen=True)
class Subject:
    """The kernel that the files are for.

    module, name  from where, and under which name, it is imported
    wrapped       Python that wraps it, as `unwrapped`, or ""
    backward      its backward function: Python, such as "attention.backward", or ""
    backward_from the module of that function, or "" where it needs no import
    expected      checks that are known to fail
    """

    module: str
    name: str
    wrapped: str = ""
    backward: str = ""
    backward_from: str = ""
    expected: Sequence[str] = ()


def paths(name: str, folder: Path) -> tuple[Path, Path]:
    """Return where a kernel's spec and its tests go."""
    return folder / f"{name}_spec.py", folder / f"test_{name}.py"


def first_files(subject: Subject, inferred: Inferred, folder: Path, command: str) -> Mapping[Path, str]:
    """Return the text of each file by its path in `folder`: NAME_spec.py and test_NAME.py."""
    name, (spec, test) = subject.name, paths(subject.name, folder)
    imports = ["from flashsim.testing import Spec"]
    if subject.wrapped:
        imports = [f"from {subject.module} import {name} as unwrapped", "from flashsim.testing import Spec, wrap", ""]
        imports += [f"{name} = {subject.wrapped}"]
    return {
        spec: SPEC_FILE.format(
            name=name, command=command, imports="\n".join([*imports, ""]), arguments=_arguments(inferred)
        ),
        test: TEST_FILE.format(
            name=name, file=test.name, imports="\n".join(_test_imports(subject)), arguments=_bound(subject)
        ),
    }


def _arguments(inferred: Inferred) -> str:  # a line each, with how it was found as a comment before it
    lines = []
    for field in fields(Spec):
        note, value = inferred.notes.get(field.name, ""), getattr(inferred.spec, field.name)
        if note:
            lines += wrapped(note, 96, initial_indent="    # ", subsequent_indent="    # ", break_on_hyphens=False)
        if value != field.default or note:
            lines.append(f"    {field.name}={value!r},")
    return "\n".join(["", *lines, ""]) if lines else ""


def _test_imports(subject: Subject) -> list[str]:
    name = subject.name
    if subject.wrapped:
        lines = [f"from {name}_spec import SPEC, {name}"]
    else:
        lines = [f"from {subject.module} import {name}", f"from {name}_spec import SPEC"]
    if subject.backward_from:
        lines.append(f"from {subject.backward_from} import {subject.backward}")
    return [*sorted(lines), ""]


def _bound(subject: Subject) -> str:
    arguments = [subject.name, "SPEC"]
    if subject.backward:
        arguments.append(f"backward={subject.backward}")
    if subject.expected:
        arguments.append(f"expected_failures={dict.fromkeys(subject.expected, 'known')}")
    said = ", ".join(arguments)
    return said if len(said) < 80 else "\n    " + ",\n    ".join(arguments) + ",\n"

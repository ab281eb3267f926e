"""A kernel's first tests, as files: its spec, a test for each check, and one that fails until
what is doubtful is confirmed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from textwrap import wrap

from flashsim.testing.inferring import Inferred
from flashsim.testing.spec import Spec

SPEC_FILE = '''\
"""What {name} takes and promises, as a few calls show: check each line.

What is not here has its default; help(flashsim.testing.Spec) lists it all. Written by
{command}
"""

{imports}

SPEC = Spec({arguments})
{doubtful}'''

DOUBTFUL = """
# A test fails until nothing is left here: look at each, mend the spec or the kernel, and strike it out.
DOUBTFUL = {{
{doubts}
}}
"""

TEST_FILE = '''\
"""Tests of {name}, one for each of flashsim's checks. Run: pytest {file}"""

from flashsim.testing import {kit}
{imports}


@parametrize_with_checks({arguments})
def test_{name}(check):
    check()
{confirmed}'''

CONFIRMED = """

def test_{name}_spec_is_confirmed():
    assert not DOUBTFUL, "in {spec}: " + "; ".join(f"{{field}}: {{why}}" for field, why in DOUBTFUL.items())
"""


def paths(name: str, folder: Path) -> tuple[Path, Path]:
    """Return where a kernel's spec and its tests go."""
    return folder / f"{name}_spec.py", folder / f"test_{name}.py"


def first_files(
    module: str,
    name: str,
    inferred: Inferred,
    folder: Path,
    command: str,
    *,
    wrapped: str = "",
    backward: str = "",
    backward_import: str = "",
    expected: Sequence[str] = (),
) -> Mapping[Path, str]:
    """Return the text of each file by its path in `folder`: NAME_spec.py and test_NAME.py.

    module, name  from where, and under which name, the kernel is imported
    command       what writes the files
    wrapped       Python that wraps it, as `unwrapped`, or ""
    backward      its backward function: Python, such as "attention.backward", or "" for none
    backward_import  the line that it needs, or ""
    expected      checks that are known to fail
    """
    spec, test = paths(name, folder)
    doubt = "DOUBTFUL, " if inferred.doubtful else ""
    if wrapped:
        fetched = (
            f"from {module} import {name} as unwrapped\nfrom flashsim.testing import Spec, wrap\n"
            f"\n{name} = {wrapped}"
        )
        imports = [f"from {name}_spec import {doubt}SPEC, {name}"]
    else:
        fetched = "from flashsim.testing import Spec"
        imports = [f"from {module} import {name}", f"from {name}_spec import {doubt}SPEC"]
    imports += [backward_import] if backward_import else []
    given = [name, "SPEC", *([f"backward={backward}"] if backward else [])]
    given += [f"expected_failures={dict.fromkeys(expected, 'known')}"] if expected else []
    bound = ", ".join(given)
    if len(bound) >= 80:
        bound = "\n    " + ",\n    ".join(given) + ",\n"
    doubts = "\n".join(f"    {field!r}: {inferred.notes[field]!r}," for field in inferred.doubtful)
    kit = (
        "parametrize_with_checks, wrap"
        if backward.startswith("wrap(")
        else "parametrize_with_checks"
    )
    command = command.replace("\\", r"\\").replace('"', r"\"")  # in a docstring
    doubtful = DOUBTFUL.format(doubts=doubts) if doubt else ""
    confirmed = CONFIRMED.format(name=name, spec=spec.name) if doubt else ""
    said = {
        "name": name,
        "file": test.name,
        "kit": kit,
        "imports": "\n".join(sorted(imports)),
        "arguments": bound,
    }
    return {
        spec: SPEC_FILE.format(
            name=name,
            command=command,
            imports=fetched,
            arguments=_arguments(inferred),
            doubtful=doubtful,
        ),
        test: TEST_FILE.format(**said, confirmed=confirmed),
    }


# a line each, with how it was found as a comment before it
def _arguments(inferred: Inferred) -> str:
    lines = []
    for field in fields(Spec):
        note = inferred.notes.get(field.name, "")
        value = getattr(inferred.spec, field.name)
        if note:
            lines += wrap(
                note,
                96,
                initial_indent="    # ",
                subsequent_indent="    # ",
                break_on_hyphens=False,
            )
        if value != field.default or note:
            lines.append(f"    {field.name}={value!r},")
    return "\n".join(["", *lines, ""]) if lines else ""

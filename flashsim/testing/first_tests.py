"""A kernel's first tests, as files: its spec, a test for each check, and one that fails until
somebody has confirmed what is doubtful.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from textwrap import wrap

from flashsim.testing.spec import Spec
from flashsim.testing.spec_inference import Inference

SPEC_FILE = '''\
"""What {name} takes and promises, as a few calls show: check each line.

Other fields have their defaults; help(flashsim.testing.Spec) lists them all. Written by
{command}
"""

{imports}

SPEC = Spec({arguments})
{doubtful}'''

DOUBTFUL = """
# A test fails until this is empty: look at each entry, correct the spec or the kernel, and delete the entry.
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
    """Return the paths of the files for a kernel's spec and its tests."""
    return folder / f"{name}_spec.py", folder / f"test_{name}.py"


def first_files(
    module: str,
    name: str,
    inference: Inference,
    folder: Path,
    command: str,
    *,
    wrapped: str = "",
    backward: str = "",
    backward_import: str = "",
    expected: Sequence[str] = (),
) -> Mapping[Path, str]:
    """Return the text of each file by its path in `folder`: NAME_spec.py and test_NAME.py.

    module, name  the module from which the kernel is imported, and its name
    command       the command that writes the files
    wrapped       Python that wraps the kernel, which is called `unwrapped`, or ""
    backward      Python of its backward function, such as "attention.backward", or ""
    backward_import  the line that imports it, or ""
    expected      checks that are known to fail
    """
    spec, test = paths(name, folder)
    doubt = "DOUBTFUL, " if inference.doubtful else ""
    if wrapped:
        spec_imports = (
            f"from {module} import {name} as unwrapped\nfrom flashsim.testing import Spec, wrap\n"
            f"\n{name} = {wrapped}"
        )
        imports = [f"from {name}_spec import {doubt}SPEC, {name}"]
    else:
        spec_imports = "from flashsim.testing import Spec"
        imports = [f"from {module} import {name}", f"from {name}_spec import {doubt}SPEC"]
    if backward_import:
        imports.append(backward_import)
    arguments = [name, "SPEC"]
    if backward:
        arguments.append(f"backward={backward}")
    if expected:
        arguments.append(f"expected_failures={dict.fromkeys(expected, 'known')}")
    joined = ", ".join(arguments)
    if len(joined) >= 80:
        joined = "\n    " + ",\n    ".join(arguments) + ",\n"
    entries = []
    for field in inference.doubtful:
        entries.append(f"    {field!r}: {inference.notes[field]!r},")
    kit = "parametrize_with_checks"
    if backward.startswith("wrap("):
        kit = "parametrize_with_checks, wrap"
    spec_text = SPEC_FILE.format(
        name=name,
        command=command.replace("\\", r"\\").replace('"', r"\""),  # in a docstring
        imports=spec_imports,
        arguments=_arguments(inference),
        doubtful=DOUBTFUL.format(doubts="\n".join(entries)) if doubt else "",
    )
    test_text = TEST_FILE.format(
        name=name,
        file=test.name,
        kit=kit,
        imports="\n".join(sorted(imports)),
        arguments=joined,
        confirmed=CONFIRMED.format(name=name, spec=spec.name) if doubt else "",
    )
    return {spec: spec_text, test: test_text}


def _arguments(inference: Inference) -> str:
    """Return the arguments of Spec, a line each, after a comment that says how each was inferred."""
    lines = []
    for field in fields(Spec):
        note = inference.notes.get(field.name, "")
        value = getattr(inference.spec, field.name)
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

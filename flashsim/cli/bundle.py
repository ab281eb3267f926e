"""`--bundle OUT.zip`: the results of a sweep, with all that is needed to make them again."""

import argparse
import io
import json
import shlex
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flashsim.cli.parser import Parser
from flashsim.cli.shared import FILE, OPTIONS
from flashsim.support.exporting import plain
from flashsim.support.files import write_whole
from flashsim.support.provenance import made_with

AGAIN = "again.csv"
README = """\
{command}

made the rows in rows.csv and rows.json (the JSON also says what each column holds). To make them
again, unpack this in an empty folder, and there

    {again}

writes {made}, which is equal to rows.csv with the flashsim of made_with.json, which says versions,
day and commit.

{picture}{certificates}"""
NO_CERTIFICATES = "No lower bound is known at these points: rows.csv says why.\n"
PICTURE = "picture.png and picture.svg are drawn from picture.json.\n\n"
CERTIFICATES = """\
certificates/ has the proofs of the lower bounds, each of one KV head: `flashsim prove --check FILE`
checks one, and flashsim/theory/bounds/certificate.py does so on its own. A row's
lower_bound_elements is
its certificate's bound times its KV heads.
"""


def write_bundle(
    sweep: Any,
    options: argparse.Namespace,
    pictures: Mapping[str, str | bytes],
    add_outputs: Callable[[Parser], None],
) -> Path:
    """Write a sweep's rows, pictures by name, certificates, versions, inputs, and the command
    that makes the rows again.

    `add_outputs` adds to a parser the options that say what is written, which that command lacks.
    """
    inputs: dict[str, bytes] = {}
    command = [*_command_again(options, inputs, add_outputs), "--bound", "--csv", AGAIN]
    certificates = {
        f"certificates/{number:04d}.json": _json(proof)
        for number, proof in enumerate(sweep.certificates, 1)
    }
    readme = README.format(
        command=options.command_line,
        again=shlex.join(command),
        made=AGAIN,
        picture=PICTURE if pictures else "",
        certificates=CERTIFICATES if certificates else NO_CERTIFICATES,
    )
    files: dict[str, str | bytes] = {
        "README.txt": readme,
        "command.json": _json({"run": command}),
        "made_with.json": _json(made_with()),
        "rows.csv": sweep.to_csv(),
        "rows.json": sweep.to_json(),
        **pictures,
        **certificates,
        **inputs,
    }
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in files.items():
            # of 1980: the same bytes each time
            file.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return write_whole(options.bundle, archive.getvalue())


def _json(value: Any) -> str:
    return json.dumps(plain(value), indent=1, ensure_ascii=False) + "\n"


def _command_again(
    options: argparse.Namespace,
    inputs: dict[str, bytes],
    add_outputs: Callable[[Parser], None],
) -> list[str]:
    """Return the command without the options of its outputs, its input files by their names
    alone; add these to `inputs`.
    """
    outputs = Parser("flashsim sweep", "", common=OPTIONS, add_help=False)
    add_outputs(outputs)
    outputs.add("--points", **FILE)
    name, *words = options.words
    output_options, others = outputs.read(words)
    command = ["flashsim", name, *(_with_name_alone(word, inputs) for word in others)]
    if output_options.points is not None:
        command += ["--points", _input(output_options.points, inputs)]
    return command


def _with_name_alone(word: str, inputs: dict[str, bytes]) -> str:
    """Return FILE.py:NAME without the file's folder, and any other word as it is.

    The word may be --algorithm=FILE.py:NAME. Raises ValueError for MODULE:NAME, which has no file.
    """
    option, equals, value = word.rpartition("--algorithm=")
    module, colon, function = value.rpartition(":")
    if not colon or not function.replace(".", "").isidentifier():
        return word
    if module.endswith(".py"):
        return f"{option}{equals}{_input(Path(module), inputs)}:{function}"
    if module.replace(".", "").isidentifier():
        raise ValueError(
            f"argument --bundle: {word} names no file to put into it; expected FILE.py:NAME"
        )
    return word


def _input(path: Path, inputs: dict[str, bytes]) -> str:
    content = path.read_bytes()
    if inputs.setdefault(path.name, content) != content:
        raise ValueError(
            f"argument --bundle: two inputs are called {path.name}; expected other names"
        )
    return path.name

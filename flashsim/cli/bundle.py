"""`--bundle OUT.zip`: what a sweep found, with all that is needed to find it again."""

import argparse
import io
import json
import re
import shlex
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from flashsim.support.exporting import plain
from flashsim.support.files import write_whole
from flashsim.support.provenance import made_with

OUTPUTS = {
    "--bundle": 1,
    "--csv": 1,
    "--json": 1,
    "--output": 1,
    "--resume": 1,
    "--jobs": 1,
    "--x": 1,
    "--y": 1,
    "--by": None,
    "--quiet": 0,
    "--bound": 0,
    "--png": 1,
    "--svg": 1,
    "--pdf": 1,
    "--compulsory": 0,
}
"""Options that change what is written, and not the rows, with how many values each takes; None:
all up to the next option.
"""
OWN = re.compile(r"(--algorithm=)?(.+\.py)(:[\w.]+)")
MODULE = re.compile(r"(--algorithm=)?[a-zA-Z_][\w.]*:[a-zA-Z_][\w.]*")
AGAIN = "again.csv"
README = """\
{command}

made the rows in rows.csv and rows.json (the JSON also says what each column holds). To make them
again, unpack this in an empty folder, and there

    {again}

writes {made}, which is equal to rows.csv with the flashsim of made_with.json, which says versions,
day and commit.

{picture}{certificates}"""
PICTURE = "picture.png and picture.svg are drawn from picture.json.\n\n"
CERTIFICATES = """\
certificates/ has the proofs of the lower bounds, each of one KV head: `flashsim prove --check FILE`
checks one, and flashsim/theory/bounds/certificate.py does so on its own. A row's
lower_bound_elements is
its certificate's bound times its KV heads.
"""


def write_bundle(
    found: Any, options: argparse.Namespace, pictures: Mapping[str, str | bytes]
) -> Path:
    """Write a sweep's rows, pictures by name, certificates, versions, inputs, and the command
    that makes the rows again.
    """
    inputs: dict[str, bytes] = {}
    again = [*_again(options, inputs), "--bound", "--csv", AGAIN]
    certificates = {
        f"certificates/{number:04d}.json": _json(proof)
        for number, proof in enumerate(found.certificates, 1)
    }
    proved = (
        CERTIFICATES
        if certificates
        else "No lower bound is known at these points: rows.csv says why.\n"
    )
    drawn = PICTURE if pictures else ""
    typed = shlex.join(again)
    said = README.format(
        command=options.command_line, again=typed, made=AGAIN, picture=drawn, certificates=proved
    )
    files: dict[str, str | bytes] = {
        "README.txt": said,
        "command.json": _json({"run": again}),
        "made_with.json": _json(made_with()),
        "rows.csv": found.to_csv(),
        "rows.json": found.to_json(),
        **pictures,
        **certificates,
        **inputs,
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in files.items():
            # of 1980: the same bytes each time
            file.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return write_whole(options.bundle, packed.getvalue())


def _json(held: Any) -> str:
    return json.dumps(plain(held), indent=1, ensure_ascii=False) + "\n"


def _again(options: argparse.Namespace, inputs: dict[str, bytes]) -> list[str]:
    """Return the command without what is written where, its input files by their names alone;
    add these to `inputs`.
    """
    words = list(options.words)
    kept = ["flashsim"]
    while words:
        word = words.pop(0)
        flag = _whole(word, options.flags)
        if flag in OUTPUTS:
            takes = OUTPUTS[flag]
            joined = "=" in word or (word.startswith("-o") and word != "-o")
            while (
                words and not joined and (takes or (takes is None and not words[0].startswith("-")))
            ):
                words.pop(0)
                takes = takes and takes - 1
        elif own := OWN.fullmatch(word):
            before, path, name = own.groups(default="")
            kept.append(f"{before}{_input(Path(path), inputs)}{name}")
        elif MODULE.fullmatch(word):
            raise ValueError(
                f"argument --bundle: {word} names no file to put into it; expected FILE.py:NAME"
            )
        elif flag == "--points":
            path = word.partition("=")[2] or words.pop(0)
            kept += ["--points", _input(Path(path), inputs)]
        else:
            kept.append(word)
    return kept


def _whole(word: str, flags: Collection[str]) -> str:
    """Return the option that a word is, which may be cut short, as argparse takes it; else ""."""
    if word.startswith("-o"):
        return "--output"
    name = word.partition("=")[0]
    known = [flag for flag in flags if name.startswith("--") and flag.startswith(name)]
    return name if name in known else next(iter(known), "")


def _input(path: Path, inputs: dict[str, bytes]) -> str:
    content = path.read_bytes()
    if inputs.setdefault(path.name, content) != content:
        raise ValueError(
            f"argument --bundle: two inputs are called {path.name}; expected other names"
        )
    return path.name

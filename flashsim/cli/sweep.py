"""`flashsim sweep`: what algorithms move at many points, as a table, CSV, JSON or a picture."""

import argparse
import csv
import pickle
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from textwrap import wrap
from typing import Any

from flashsim.algorithms import options as declared
from flashsim.attention.inputs import DEFAULT_DTYPE, FLOATS
from flashsim.cli import values
from flashsim.cli.bundle import write_bundle
from flashsim.cli.loading import algorithm
from flashsim.cli.outputs import FIGURE, figure_stem, finish, progress
from flashsim.cli.shared import (
    DEFAULT_ALGORITHM,
    DEFAULT_SIZING,
    FILE,
    FLAG,
    NAMES,
    SIZINGS,
    add,
    add_declared,
    own_pairs_in,
)
from flashsim.cli.values import whole
from flashsim.support.exporting import out_of_csv
from flashsim.support.files import write_whole
from flashsim.support.jobs import in_any_order

SUMMARY = (
    "Count what algorithms move at every combination of many values, and write a table, CSV, JSON "
    "or a picture."
)
EXAMPLES = (
    "flashsim sweep flash standard --N 128:65536:x2 --d 64\n"
    "flashsim sweep flash --N 4096 --d 64 --M 25KB:400KB:25KB --csv sweep.csv\n"
    "flashsim sweep q_outer flash --N 512:8192:64 --d 64 128 --M 228KB --dtype float16 -o sweep\n"
    "flashsim sweep flash q_outer --N 1024 --d 64 --blocks 16..256:16 --png blocks.png\n"
    "flashsim sweep flash --N 1024 --d 64 --blocks 32 32 --blocks 64 64 --causal both --backward "
    "both\n"
    "flashsim sweep split_kv --N-q 1 --N-k 65536 --d 128 --splits 1:64:x2\n"
    "flashsim sweep flash standard --points shapes.csv --json -"
)
MANY = (
    "one or many: 64 128, 128:4096:128 (steps of 128; so is 128..4096:128), 128:65536:x2 (times 2)"
)
CAUSAL = {"no": [False], "yes": [True], "both": [False, True]}
PASSES = {"no": ["forward"], "yes": ["backward"], "both": ["forward", "backward"]}
FORMS = ("png", "svg", "pdf")
SHOWN = 20
WIDTH = 80


def add_options(parser: Any) -> None:
    lengths = values.several(whole())
    sizes = values.several_sizes
    some = {"nargs": "+"}
    which = f"algorithms: {NAMES}. Default: {DEFAULT_ALGORITHM}"
    parser.add_argument("named", nargs="*", type=algorithm, metavar="NAME", help=which)
    add(parser, "--algorithm", nargs="+", default=[], help="the same as NAME")
    for flag, what in (
        ("--N", f"sequence lengths, {MANY}"),
        ("--N-q", "numbers of queries, if not those of the keys"),
        ("--N-k", "numbers of keys"),
        ("--d", "head dimensions"),
        ("--d-v", "widths of V, if not d"),
    ):
        add(parser, flag, **some, type=lengths, metavar="N", required=False, help=what)
    said = (
        "SRAM sizes: elements (25600), or bytes of the dtype (100KB, 1 KB = 1024), ranges too. "
        "Default: 100KB"
    )
    add(parser, "--M", **some, type=sizes, help=said)
    said = (
        "block sizes B_r B_c, each may be a range; or a range of square blocks, 16..256:16. M is "
        "enforced. Repeat it for more"
    )
    add(parser, "--blocks", nargs="+", action="append", type=values.sides, metavar="B", help=said)
    add(parser, "--sizing", **some, default=None, help=f"{SIZINGS}. Default: {DEFAULT_SIZING}")
    dtypes = f"one or more of {', '.join(FLOATS)}. Default: {DEFAULT_DTYPE}"
    add(parser, "--dtype", **some, default=None, metavar="NAME", help=dtypes)
    for flag, what in (("--causal", "causal masks"), ("--backward", "backward passes")):
        said = f"{what}: yes, no, or both. Default: no"
        add(
            parser,
            flag,
            action="store",
            nargs="?",
            const="yes",
            default=None,
            choices=list(CAUSAL),
            help=said,
        )
    add(parser, "--dropout", **some, default=None)
    add(parser, "--heads", "--kv-heads", **some, type=lengths)
    add(parser, "--gqa", **some, default=None)
    add_declared(parser, many=True)
    points = (
        "a CSV file with columns N, d, M, …: each row is taken with every combination of the other "
        "options"
    )
    add(parser, "--points", **FILE, help=points)
    add(
        parser,
        "--check",
        type=whole(0),
        default=32,
        metavar="N",
        help="points to check by counting. Default: 32",
    )
    add(parser, "--seed", help="seed that draws those points. Default: 0")
    add(parser, "--jobs", default=1, help="processes. Default: 1")
    kept = (
        "keep the rows in this file as they come: after Ctrl-C, the same command goes on from there"
    )
    add(parser, "--resume", metavar="FILE", help=kept)
    add(
        parser,
        "--bound",
        **FLAG,
        help="also compute the lower bound (flashsim prove), and each count divided by it",
    )
    add(
        parser,
        "--csv",
        metavar="FILE",
        help="write the rows as CSV; -: to stdout, and print nothing else there",
    )
    add(parser, "--json", "--output")
    for form in FORMS:
        add(parser, f"--{form}", metavar="FILE", help=f"draw the rows, as {form.upper()}")
    packed = (
        "write rows, picture, the bounds' certificates, versions, and the command that makes them "
        "again"
    )
    add(parser, "--bundle", metavar="OUT.zip", help=packed)
    for flag, what in (
        ("--x", "the column on the x axis. Default: the argument with most values; of blocks, B_c"),
        ("--y", "the column on the y axis. Default: accesses"),
        (
            "--by",
            (
                "columns; each combination of their values is a line. Default: the other arguments "
                "that vary"
            ),
        ),
    ):
        parser.add_argument(
            flag,
            metavar="COLUMN",
            nargs="+" if flag == "--by" else None,
            help=f"for a picture: {what}",
        )
    add(
        parser,
        "--compulsory",
        **FLAG,
        help="for a picture: draw, too, what any exact algorithm moves",
    )
    add(parser, "--quiet")


def run(options: argparse.Namespace) -> int:
    from flashsim.analysis.sweeping.running import Disagreement, sweep

    if options.csv == "-" == options.json:
        raise ValueError("--csv - and --json - both want stdout; give one of them a file")
    if options.resume is not None and options.resume in (
        options.csv,
        options.json,
        "-",
        str(options.points),
    ):
        raise ValueError(
            f"--resume {options.resume} is another option's file; give it one of its own"
        )
    if options.bundle is not None and not options.bundle.endswith(".zip"):
        raise ValueError(f"--bundle: got {options.bundle!r}; expected a file that ends in .zip")
    pictures = _pictures(options)
    for name in ("x", "y", "by", "compulsory"):
        if getattr(options, name) and options.output is options.bundle is None and not pictures:
            raise ValueError(f"--{name} is for a picture: give --png FILE, or -o STEM")
    algorithms = [*options.named, *options.algorithm]
    if options.jobs > 1:
        _check_they_can_be_handed_on(algorithms)
    stem = None if options.output is None else figure_stem(options, "")
    table = None if options.points is None else _table(options.points)
    with progress(options) as told:
        try:
            found = sweep(
                algorithms or DEFAULT_ALGORITHM,
                **_arguments(options, table),
                points=table,
                jobs=partial(in_any_order, jobs=options.jobs),
                check=options.check,
                seed=options.seed,
                on_points=told,
                resume=options.resume,
                bound=options.bound or options.bundle is not None,
            )
        except TypeError as error:
            raise ValueError(f"argument --points: {error}") from None
        except KeyboardInterrupt as stop:
            stop.__notes__ = [
                note.replace("resume=FILE", "--resume FILE")
                for note in getattr(stop, "__notes__", [])
            ]
            raise
        except Disagreement as error:
            print(f"flashsim sweep: {error}", file=sys.stderr)
            return 1
    return _write(replace(found, command=options.command_line), options, stem, pictures)


def _check_they_can_be_handed_on(algorithms: Sequence[Any]) -> None:
    for each in algorithms:
        try:
            pickle.dumps(each)
            module = getattr(getattr(each, "run", None), "__module__", "")
            if "(" in module:  # a file of the name of another module (`flashsim.support.loading`)
                raise ValueError(f"another module is called {module.partition(' ')[0]}")
        except Exception as error:  # of whatever kind, as what pickling runs is the user's
            said = (
                f"{getattr(each, 'name', each)} cannot be handed to other processes: {error}; "
                "leave --jobs out"
            )
            raise ValueError(f"argument --jobs: {said}") from None


def _pictures(options: argparse.Namespace) -> dict[str, str]:
    """Return the files of --png, --svg and --pdf, by form. Raises ValueError for another suffix."""
    files = {form: getattr(options, form) for form in FORMS if getattr(options, form) is not None}
    for form, file in files.items():
        if Path(file).suffix.lower() != f".{form}":
            raise ValueError(
                f"argument --{form}: got {file!r}; expected a file that ends in .{form}"
            )
    return files


def _write(
    found: Any, options: argparse.Namespace, stem: Path | None, pictures: Mapping[str, str]
) -> int:
    from flashsim.analysis.sweeping.crossovers import sentences

    saved: list[Path] = []
    if options.csv == "-":
        sys.stdout.write(found.to_csv())
    elif options.csv is not None:
        saved.append(write_whole(options.csv, found.to_csv()))
    wanted = bool(stem or options.bundle or pictures)
    drawn, said = _drawn(found, options, pictures) if wanted else ({}, "")
    files = {suffix: content for suffix, content in drawn.items() if suffix in FIGURE}
    if stem is not None:
        saved += [
            write_whole(stem.with_name(stem.name + suffix), content)
            for suffix, content in files.items()
        ]
    saved += [write_whole(file, drawn[f".{form}"]) for form, file in pictures.items() if drawn]
    if options.bundle is not None:
        saved.append(
            write_bundle(
                found, options, {f"picture{suffix}": content for suffix, content in files.items()}
            )
        )

    def show() -> None:
        if options.csv == "-":
            return
        for line in (found.summary, *sentences(found)):
            print(*wrap(line, WIDTH, subsequent_indent="    "), sep="\n")
        print(f"\n{found.as_text(SHOWN, WIDTH)}")
        if saved:
            print(f"\nSaved {', '.join(map(str, saved))}")
        if said:
            print(*wrap(f"The picture: {said}", WIDTH), sep="\n")

    finish(options, found.to_dict() if options.json is not None else {}, show)
    return 0 if len(found.ok) else 1


def _drawn(
    found: Any, options: argparse.Namespace, pictures: Mapping[str, str]
) -> tuple[dict[str, str | bytes], str]:
    """Return a picture's files by suffix, with what it says of its lines; nothing where there is
    nothing to draw.
    """
    from flashsim import plots
    from flashsim.drawing.style import drawn
    from flashsim.drawing.sweep import hint
    from flashsim.plots.saving import contents

    if not len(found.ok):
        return {}, ""
    try:
        data = plots.sweep_data(
            found,
            x=options.x,
            y=options.y or "accesses",
            by=options.by,
            compulsory=options.compulsory,
        )
    except ValueError:
        if options.output is not None or pictures or options.x or options.y or options.by:
            raise
        return {}, ""  # nothing varies, in a bundle
    figure = plots.figure_of(plots.plot_sweep(data))
    files = contents(figure, data, options.command_line)
    if "pdf" in pictures:
        files[".pdf"] = drawn(figure, "pdf")
    return files, hint(data)


def _arguments(
    options: argparse.Namespace, table: Sequence[Mapping[str, Any]] | None
) -> dict[str, Any]:
    from flashsim.analysis.sweeping.points import ARGUMENTS

    given: dict[str, Any] = {
        name: getattr(options, name, None) for name in (*ARGUMENTS, *declared())
    }
    given = {name: values for name, values in given.items() if values is not None}
    for name, ways in (("causal", CAUSAL), ("direction", PASSES)):
        if name in given:
            given[name] = ways[given[name]]
    for name in given.keys() - {"blocks"}:  # of lists, which ranges are, too
        given[name] = list(
            chain.from_iterable(each if isinstance(each, list) else [each] for each in given[name])
        )
    if "blocks" in given:
        given["blocks"] = _blocks(given["blocks"])
    if not {"blocks", "sizing"} & (given.keys() | set(table[0] if table else ())):
        given["sizing"] = [DEFAULT_SIZING]
    for name in given.keys() & declared():
        choices = declared()[name][0][1].choices
        given[name] = [choices.get(value, value) for value in given[name]]
    own: dict[str, list[Any]] = {}
    for name, value in own_pairs_in(options):
        own.setdefault(name, []).append(value)
    for name in own.keys() & given.keys():
        raise ValueError(f"argument --option: {name} is given by --{name.replace('_', '-')} too")
    return given | own


def _blocks(typed: Sequence[Sequence[str]]) -> list[tuple[int, int]]:
    try:
        return list(chain.from_iterable(values.blocks_of(words) for words in typed))
    except ValueError as error:
        raise ValueError(f"argument --blocks: {error}") from None


def _table(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file)
            rows = list(table)
            names = table.fieldnames or []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"argument --points: {path} cannot be read as CSV: {said}") from None
    if not rows:
        raise ValueError(f"argument --points: {path} has no rows; expected at least one")
    for twice in sorted(name for name, times in Counter(names).items() if name and times > 1):
        raise ValueError(f"argument --points: {path} has several columns {twice}; expected one")
    if any(None in row for row in rows):
        raise ValueError(
            f"argument --points: {path} has a line with more cells than the first line has names"
        )
    return [{name: _read(text or "") for name, text in row.items()} for row in rows]


def _read(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return out_of_csv(text)

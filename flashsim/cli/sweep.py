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
from flashsim.cli.parser import Parser
from flashsim.cli.shared import (
    DEFAULT_ALGORITHM,
    DEFAULT_SIZING,
    FILE,
    FLAG,
    NAMES,
    SIZINGS,
    add_declared,
    by_name,
    check_given_once,
    own_options,
)
from flashsim.cli.values import whole
from flashsim.support.exporting import text_of_csv_cell
from flashsim.support.files import write_whole
from flashsim.support.jobs import in_any_order

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


def add_options(parser: Parser) -> None:
    which = f"algorithms: {NAMES}. Default: {DEFAULT_ALGORITHM}"
    parser.add("named", nargs="*", type=algorithm, metavar="NAME", help=which)
    parser.add("--algorithm", nargs="+", default=[], help="the same as NAME")
    _add_axes(parser)
    points = (
        "a CSV file with columns N, d, M, …: each row is taken with every combination of the other "
        "options"
    )
    parser.add("--points", **FILE, help=points)
    check = "points to check by counting. Default: 32"
    parser.add("--check", type=whole(0), default=32, metavar="N", help=check)
    parser.add("--seed", help="seed that draws those points. Default: 0")
    add_outputs(parser)


def _add_axes(parser: Parser) -> None:
    """Add the arguments of `flashsim.count`, each with many values."""
    many: dict[str, Any] = {"nargs": "+"}
    lengths: dict[str, Any] = {"type": values.several(whole()), "metavar": "N", "required": False}
    parser.add("--N", **many, **lengths, help=f"sequence lengths, {MANY}")
    parser.add("--N-q", **many, **lengths, help="numbers of queries, if not those of the keys")
    parser.add("--N-k", **many, **lengths, help="numbers of keys")
    parser.add("--d", **many, **lengths, help="head dimensions")
    parser.add("--d-v", **many, **lengths, help="widths of V, if not d")
    sizes = (
        "SRAM sizes: elements (25600), or bytes of the dtype (100KB, 1 KB = 1024), ranges too. "
        "Default: 100KB"
    )
    parser.add("--M", **many, type=values.several_sizes, help=sizes)
    blocks = (
        "block sizes B_r B_c, each may be a range; or a range of square blocks, 16..256:16. M is "
        "enforced. Repeat it for more"
    )
    parser.add("--blocks", **many, action="append", type=values.sides, metavar="B", help=blocks)
    sizings = f"{SIZINGS}. Default: {DEFAULT_SIZING}"
    parser.add("--sizing", **many, default=None, help=sizings)
    parser.add("--no-enforce", const=[False])
    dtypes = f"one or more of {', '.join(FLOATS)}. Default: {DEFAULT_DTYPE}"
    parser.add("--dtype", **many, default=None, metavar="NAME", help=dtypes)
    answer: dict[str, Any] = {
        "action": "store",
        "nargs": "?",
        "const": "yes",
        "default": None,
        "choices": list(CAUSAL),
    }
    parser.add("--causal", **answer, help="causal masks: yes, no, or both. Default: no")
    parser.add("--backward", **answer, help="backward passes: yes, no, or both. Default: no")
    parser.add("--dropout", **many, default=None)
    parser.add("--heads", "--kv-heads", **many, type=values.several(whole()))
    parser.add("--gqa", **many, default=None)
    add_declared(parser, many=True)


def add_outputs(parser: Parser) -> None:
    """Add the options that say how the rows are made and what is written, which leave the rows as
    they are.
    """
    parser.add("--jobs", default=1, help="processes. Default: 1")
    resume = (
        "keep the rows in this file as they come: after Ctrl-C, the same command goes on from there"
    )
    parser.add("--resume", metavar="FILE", help=resume)
    bound = "also compute the lower bound (flashsim prove), and each count divided by it"
    parser.add("--bound", **FLAG, help=bound)
    table = "write the rows as CSV; -: to stdout, and print nothing else there"
    parser.add("--csv", metavar="FILE", help=table)
    parser.add("--json", "--output")
    for form in FORMS:
        parser.add(f"--{form}", metavar="FILE", help=f"draw the rows, as {form.upper()}")
    bundle = (
        "write rows, picture, the bounds' certificates, versions, and the command that makes them "
        "again"
    )
    parser.add("--bundle", metavar="OUT.zip", help=bundle)
    x = "the column on the x axis. Default: the argument with most values; of blocks, B_c"
    parser.add("--x", metavar="COLUMN", help=f"for a picture: {x}")
    y = "the column on the y axis. Default: accesses"
    parser.add("--y", metavar="COLUMN", help=f"for a picture: {y}")
    by = (
        "columns; each combination of their values is a line. Default: the other arguments that "
        "vary"
    )
    parser.add("--by", metavar="COLUMN", nargs="+", help=f"for a picture: {by}")
    compulsory = "for a picture: draw, too, what any exact algorithm moves"
    parser.add("--compulsory", **FLAG, help=compulsory)
    parser.add("--quiet")


def run(options: argparse.Namespace) -> int:
    from flashsim.analysis.sweeping.running import Disagreement, sweep

    _check_combinations(options)
    algorithms = [*options.named, *options.algorithm]
    if options.jobs > 1:
        _check_they_can_be_handed_on(algorithms)
    stem = None if options.output is None else figure_stem(options, options.output, "")
    table = None if options.points is None else _table(options.points)
    with progress(options) as update:
        try:
            result = sweep(
                algorithms or DEFAULT_ALGORITHM,
                **_arguments(options, algorithms, table),
                points=table,
                jobs=partial(in_any_order, jobs=options.jobs),
                check=options.check,
                seed=options.seed,
                on_points=update,
                resume=options.resume,
                bound=options.bound or options.bundle is not None,
            )
        except TypeError as error:
            raise ValueError(f"argument --points: {error}") from None
        except KeyboardInterrupt as stop:
            notes = getattr(stop, "__notes__", [])
            stop.__notes__ = [note.replace("resume=FILE", "--resume FILE") for note in notes]
            raise
        except Disagreement as error:
            print(f"flashsim sweep: {error}", file=sys.stderr)
            return 1
    return _write(replace(result, command=options.command_line), options, stem)


def _check_combinations(options: argparse.Namespace) -> None:
    """Raise ValueError for options that exclude each other, and for names of files with a wrong
    suffix.
    """
    if options.csv == "-" == options.json:
        raise ValueError("--csv - and --json - both want stdout; give one of them a file")
    others = (options.csv, options.json, "-", str(options.points))
    if options.resume is not None and options.resume in others:
        raise ValueError(
            f"--resume {options.resume} is another option's file; give it one of its own"
        )
    if options.bundle is not None and not options.bundle.endswith(".zip"):
        raise ValueError(f"--bundle: got {options.bundle!r}; expected a file that ends in .zip")
    pictures = _pictures(options)
    for form, file in pictures.items():
        if Path(file).suffix.lower() != f".{form}":
            raise ValueError(
                f"argument --{form}: got {file!r}; expected a file that ends in .{form}"
            )
    for name, value in by_name(options, "x", "y", "by", "compulsory").items():
        if value and options.output is options.bundle is None and not pictures:
            raise ValueError(f"--{name} is for a picture: give --png FILE, or -o STEM")


def _check_they_can_be_handed_on(algorithms: Sequence[Any]) -> None:
    for each in algorithms:
        try:
            pickle.dumps(each)
            module = getattr(getattr(each, "run", None), "__module__", "")
            if "(" in module:  # a file of the name of another module (`flashsim.support.loading`)
                raise ValueError(f"another module is called {module.partition(' ')[0]}")
        except Exception as error:  # of whatever kind, as what pickling runs is the user's
            raise ValueError(
                f"argument --jobs: {getattr(each, 'name', each)} cannot be handed to other "
                f"processes: {error}; leave --jobs out"
            ) from None


def _pictures(options: argparse.Namespace) -> dict[str, str]:
    """Return the files of --png, --svg and --pdf, by form."""
    pictures = {}
    for form, file in by_name(options, *FORMS).items():
        if file is not None:
            pictures[form] = file
    return pictures


def _write(result: Any, options: argparse.Namespace, stem: Path | None) -> int:
    """Write and print a sweep, and return the exit status."""
    from flashsim.analysis.sweeping.crossovers import sentences

    files: list[Path] = []
    if options.csv == "-":
        sys.stdout.write(result.to_csv())
    elif options.csv is not None:
        files.append(write_whole(options.csv, result.to_csv()))
    pictures = _pictures(options)
    contents: dict[str, str | bytes] = {}
    caption = ""
    if stem or options.bundle or pictures:
        contents, caption = _draw(result, options, pictures)
    figure = {suffix: content for suffix, content in contents.items() if suffix in FIGURE}
    if stem is not None:
        for suffix, content in figure.items():
            files.append(write_whole(stem.with_name(stem.name + suffix), content))
    if contents:
        for form, file in pictures.items():
            files.append(write_whole(file, contents[f".{form}"]))
    if options.bundle is not None:
        members = {f"picture{suffix}": content for suffix, content in figure.items()}
        files.append(write_bundle(result, options, members, add_outputs))

    def show() -> None:
        if options.csv == "-":
            return
        for line in (result.summary, *sentences(result)):
            print(*wrap(line, WIDTH, subsequent_indent="    "), sep="\n")
        print(f"\n{result.as_text(SHOWN, WIDTH)}")
        if files:
            print(f"\nSaved {', '.join(map(str, files))}")
        if caption:
            print(*wrap(f"The picture: {caption}", WIDTH), sep="\n")

    finish(options, result.to_dict() if options.json is not None else {}, show)
    return 0 if len(result.ok) else 1


def _draw(
    result: Any, options: argparse.Namespace, pictures: Mapping[str, str]
) -> tuple[dict[str, str | bytes], str]:
    """Return a picture's files by suffix, and what its lines are; nothing where there is nothing
    to draw.
    """
    from flashsim import plots
    from flashsim.drawing.style import drawn
    from flashsim.drawing.sweep import hint
    from flashsim.plots.saving import contents

    if not len(result.ok):
        return {}, ""
    axes = by_name(options, "x", "by", "compulsory")
    try:
        data = plots.sweep_data(result, y=options.y or "accesses", **axes)
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
    options: argparse.Namespace,
    algorithms: Sequence[Any],
    table: Sequence[Mapping[str, Any]] | None,
) -> dict[str, Any]:
    """Return the arguments of `flashsim.sweep` that vary, each with a list of its values."""
    from flashsim.analysis.sweeping.arguments import ARGUMENTS

    by_dest = vars(options)
    axes: dict[str, Any] = {}
    for name in (*ARGUMENTS, *declared()):
        if by_dest.get(name) is not None:  # the command line lacks some of them
            axes[name] = by_dest[name]
    if "causal" in axes:
        axes["causal"] = CAUSAL[axes["causal"]]
    if "direction" in axes:
        axes["direction"] = PASSES[axes["direction"]]
    for name in axes.keys() - {"blocks"}:
        axes[name] = _flat(axes[name])
    if "blocks" in axes:
        axes["blocks"] = _blocks(axes["blocks"])
    columns = set(table[0]) if table else set()
    if not {"blocks", "sizing"} & (axes.keys() | columns):
        axes["sizing"] = [DEFAULT_SIZING]
    for name in axes.keys() & declared():
        choices = declared()[name][0][1].choices
        axes[name] = [choices.get(value, value) for value in axes[name]]
    own = own_options(options.option, algorithms)
    check_given_once(own, axes)
    return axes | own


def _flat(axis: Sequence[Any]) -> list[Any]:
    """Return the values of an axis, of which each may be a list: a range."""
    flat: list[Any] = []
    for value in axis:
        flat += value if isinstance(value, list) else [value]
    return flat


def _blocks(options: Sequence[Sequence[str]]) -> list[tuple[int, int]]:
    """Return the blocks of all --blocks. Raises ValueError."""
    try:
        return list(chain.from_iterable(map(values.blocks_of, options)))
    except ValueError as error:
        raise ValueError(f"argument --blocks: {error}") from None


def _table(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file)
            rows = list(table)
            names = table.fieldnames or []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"argument --points: {path} cannot be read as CSV: {why}") from None
    if not rows:
        raise ValueError(f"argument --points: {path} has no rows; expected at least one")
    for name, times in sorted(Counter(names).items()):
        if name and times > 1:
            raise ValueError(f"argument --points: {path} has several columns {name}; expected one")
    if any(None in row for row in rows):
        raise ValueError(
            f"argument --points: {path} has a line with more cells than the first line has names"
        )
    points = []
    for row in rows:
        points.append({name: _read(text or "") for name, text in row.items()})
    return points


def _read(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text_of_csv_cell(text)

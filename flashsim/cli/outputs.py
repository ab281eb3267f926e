"""The results of a command: JSON, figures and the terminal. Files are checked before the work, and
written after it.
"""

import argparse
import json
import os
import sys
import warnings
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flashsim.memory.turns import SlowCountWarning
from flashsim.support.entry import one_line
from flashsim.support.exporting import plain
from flashsim.support.files import check_target, write_whole
from flashsim.support.provenance import made_with
from flashsim.support.sizes import human_bytes

WRITTEN = ("--json", "--csv", "--bundle", "--png", "--svg", "--pdf")
"""The options whose value is a file that is written, besides --output."""
FIGURE = (".png", ".svg", ".json")
# suffixes of pictures that are not written
NO_STEM = {".pdf", ".eps", ".ps", ".jpg", ".jpeg", ".gif", ".webp", ".tif", ".tiff"}


def check_outputs(options: argparse.Namespace, *figures: Path) -> None:
    """Check before the work that its results can be written: to the files of `WRITTEN`, and to
    `figures`, the files of --output.

    Raises ValueError that names the option; also for a file that is an input, and for one that
    two options write.
    """
    values = vars(options)
    files = [("-o/--output", path) for path in figures]
    for option in WRITTEN:
        path = values.get(option.removeprefix("--"))
        if path in (None, "-"):
            continue
        for other, file in files:
            if _same(path, file):
                raise ValueError(
                    f"argument {option}: {path} is what {other.partition('/')[0]} writes too"
                )
        files.append((option, Path(path)))
    inputs = [
        *(values.get("qkv") or ()),
        values.get("mask"),
        values.get("points"),
    ]
    for option, path in files:
        try:
            check_target(path)
        except OSError as error:
            raise ValueError(f"argument {option}: {error.strerror or error}") from None
        if any(_same(path, file) for file in inputs if file):
            raise ValueError(f"argument {option}: {path} is the input")


def figure_stem(options: argparse.Namespace, output: Path | None, default: str) -> Path:
    """Return the stem of a figure's files, `output` or `default`, in a folder that is there.

    The folder is made. Raises ValueError as `check_outputs` does.
    """
    stem = output or Path(default)
    if stem.suffix in FIGURE:  # p.png is p's picture, and not p.png.png's
        stem = stem.with_suffix("")
    elif stem.suffix.lower() in NO_STEM:
        suffixes = ", ".join(FIGURE)
        raise ValueError(
            f"argument -o/--output: {stem} ends in {stem.suffix}; expected a stem, to which "
            f"{suffixes} are added"
        )
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"argument -o/--output: cannot make the folder {stem.parent}: {error.strerror}"
        ) from None
    check_outputs(options, *(stem.with_name(stem.name + suffix) for suffix in FIGURE))
    return stem


def trace_file(path: Path, only_as_a_page: str = "") -> Path:
    """Return the path of --output if its suffix is that of a trace's format. Raises ValueError if
    it is not.

    `only_as_a_page` names a content that only .html can hold; empty: every format can.
    """
    from flashsim.tracing.traces import check_suffix

    try:
        return check_suffix(path, only_as_a_page)
    except ValueError as error:
        raise ValueError(f"argument -o/--output: {error}") from None


def print_saved(path: Path, remark: str = "") -> None:
    """Print that a file was written, its size, and a remark."""
    print(f"Saved {path} ({human_bytes(path.stat().st_size)}{remark})")


def open_page(path: Path) -> None:
    """Open a page in the browser."""
    webbrowser.open(path.resolve().as_uri())


def finish(
    options: argparse.Namespace, numbers: Mapping[str, Any], show: Callable[[], object]
) -> None:
    """Write the numbers to the file of --json, with versions, date and commit; and call `show`,
    which prints them, unless the JSON goes to stdout.
    """
    if options.json is not None:
        write_json(options.json, {**numbers, "made_with": made_with()})
    if options.json != "-":
        show()


def _same(one: str | Path, other: str | Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def write_json(target: str, data: Mapping[str, Any]) -> None:
    """Write data as JSON to a file, or to stdout for "-"."""
    utf_8 = target != "-" or (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    text = json.dumps(plain(data), indent=2, ensure_ascii=not utf_8, allow_nan=False) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        write_whole(target, text)


@contextmanager
def slow_counts_in_one_line(program: str) -> Iterator[None]:
    """Print the warning that a count takes long on stderr, in one line. Python would print the
    line of the source as well.
    """
    with warnings.catch_warnings():
        show_others = warnings.showwarning

        def show(
            message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any
        ) -> None:
            if issubclass(category, SlowCountWarning):
                print(one_line(f"{program}: {message}"), file=sys.stderr, flush=True)
            else:
                show_others(message, category, *args, **kwargs)

        warnings.showwarning = show
        yield


@contextmanager
def progress(options: argparse.Namespace, announcement: str = "") -> Iterator[Callable[..., None]]:
    """Yield a function of (done, total, what), each or None, that shows a bar of progress on
    stderr, if that is a terminal.
    """
    from rich import progress as rich

    from flashsim.support.tables import console

    terminal = console(stderr=True)
    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(bar_width=16),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TextColumn("left"),
        rich.TimeRemainingColumn(),
    )
    off = options.quiet or not terminal.is_terminal
    if announcement and not off:
        terminal.print(announcement)
    with rich.Progress(*columns, console=terminal, transient=True, disable=off) as bar:
        task = bar.add_task(options.name, total=None)

        def update(
            done: int | None = None, total: int | None = None, what: str | None = None
        ) -> None:
            bar.update(task, completed=done, total=total, description=what)

        yield update

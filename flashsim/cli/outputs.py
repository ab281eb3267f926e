"""Where results go: JSON, figures, the terminal. Whether they can be written is checked before
the work.
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

FIGURE = (".png", ".svg", ".json")
# pictures' that none is saved as
NO_STEM = {".pdf", ".eps", ".ps", ".jpg", ".jpeg", ".gif", ".webp", ".tif", ".tiff"}


def check_outputs(options: argparse.Namespace, *outputs: Path) -> None:
    """Check before the work that its results can be written to --json, --csv, and `outputs`, the
    files of --output.

    Raises ValueError that names the option; also for a file that is the input, and for one that
    both would write.
    """
    given = [getattr(options, name, None) for name in ("mask", "points")]
    inputs = [*(getattr(options, "qkv", None) or ()), *filter(None, given)]
    targets = [("-o/--output", path) for path in outputs]
    for option in ("--json", "--csv", "--bundle", "--png", "--svg", "--pdf"):
        path = getattr(options, option[2:], None)
        if path not in (None, "-"):
            for other, written in targets:
                if _same(path, written):
                    raise ValueError(
                        f"argument {option}: {path} is what {other.partition('/')[0]} writes too"
                    )
            targets.append((option, Path(path)))
    for option, path in targets:
        try:
            check_target(path)
        except OSError as error:
            raise ValueError(f"argument {option}: {error.strerror or error}") from None
        if any(_same(path, file) for file in inputs):
            raise ValueError(f"argument {option}: {path} is the input")


def figure_stem(options: argparse.Namespace, default: str) -> Path:
    """Return the stem of a figure's files, -o's or `default`, in a folder that is there; checked
    as by `check_outputs`.
    """
    stem = options.output or Path(default)
    if stem.suffix in FIGURE:  # p.png is p's picture, and not p.png.png's
        stem = stem.with_suffix("")
    elif stem.suffix.lower() in NO_STEM:
        added = ", ".join(FIGURE)
        raise ValueError(
            f"argument -o/--output: {stem} ends in {stem.suffix}; expected a stem, to which "
            f"{added} are added"
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
    """Return -o's path if its suffix says a trace's format; .html for what is `only_as_a_page`.
    Else raise ValueError.
    """
    from flashsim.tracing.traces import check_suffix

    try:
        return check_suffix(path, only_as_a_page)
    except ValueError as error:
        raise ValueError(f"argument -o/--output: {error}") from None


def saved(path: Path, said: str = "") -> None:
    """Say that a file was written, how large it is, and what else there is to say."""
    print(f"Saved {path} ({human_bytes(path.stat().st_size)}{said})")


def opened(path: Path) -> None:
    """Open a page in the browser."""
    webbrowser.open(path.resolve().as_uri())


def finish(
    options: argparse.Namespace, numbers: Mapping[str, Any], show: Callable[[], object]
) -> None:
    """Write the numbers where --json says, with versions, date and commit; and show them, unless
    stdout has the JSON.
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
    """Say on stderr, in one line, that a count takes long, where Python would print its source
    as well.
    """
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, SlowCountWarning):
                print(one_line(f"{program}: {message}"), file=sys.stderr, flush=True)
            else:
                others(message, category, *where, **more)

        warnings.showwarning = show
        yield


@contextmanager
def progress(options: argparse.Namespace, said: str = "") -> Iterator[Callable[..., None]]:
    """Yield what takes (done, of, what is being done), each or None, and shows it on stderr, if
    a person watches that.
    """
    from rich import progress as rich

    from flashsim.support.tables import console

    shown = console(stderr=True)
    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(bar_width=16),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TextColumn("left"),
        rich.TimeRemainingColumn(),
    )
    off = options.quiet or not shown.is_terminal
    if said and not off:
        shown.print(said)
    with rich.Progress(*columns, console=shown, transient=True, disable=off) as bar:
        task = bar.add_task(options.name, total=None)
        yield lambda done=None, of=None, what=None: bar.update(
            task, completed=done, total=of, description=what
        )

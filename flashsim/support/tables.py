"""Tables and lines on the console, no wider than it is: in a terminal its width, in a pipe 80
columns, without colour.
"""

from __future__ import annotations

import textwrap
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from flashsim.support.entry import printable
from flashsim.support.sizes import human_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE = 80  # columns, where no terminal says how many there are


def console(**options: Any) -> Console:
    """Return a console of Rich that raises BrokenPipeError when the reader has gone, as Python's
    streams do.
    """
    from rich.console import Console

    class Raising(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Raising(**options)


def page() -> Console:
    """Return a console for tables and words, without colours."""
    options: dict[str, Any] = {"highlight": False, "markup": False, "soft_wrap": True}
    terminal = console(**options)
    return terminal if terminal.is_terminal else console(**options, width=PIPE)


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[Any] | None], output: Console | None = None
) -> None:
    """Print a table of cells, as `cell` writes them. A row None is the end of a section.

    The first column is text, the others are numbers unless headed "… =", "array" or "loops". Where
    the table is too wide, its columns come in several tables, one below another, each with the
    first column.
    """
    from rich.measure import Measurement

    output = output or page()
    listed = list(rows)
    any_width = output.options.update_width(10_000)
    waiting = list(range(1, len(headings)))
    columns = [0]
    while waiting:
        columns.append(waiting.pop(0))
        wider = _table(headings, listed, [*columns, *waiting[:1]])
        if not waiting or Measurement.get(output, any_width, wider).maximum > output.width:
            output.print(_table(headings, listed, columns))
            columns = [0]
            if waiting:
                output.print()


def _table(
    headings: Sequence[str], rows: Sequence[Sequence[Any] | None], columns: Sequence[int]
) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        heading = headings[column]
        is_text = column == 0 or heading.endswith(("=", "array", "loops"))
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=True)
    for row in rows:
        if row is None:
            table.add_section()
        else:
            # a row may be shorter than the headings
            table.add_row(*(cell(row[i]) if i < len(row) else "" for i in columns))
    return table


def cell(value: Any) -> str:
    """Return the text of a value: whole numbers with commas, yes or no, a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    return printable(value)


def print_words(text: str, indent: str = "") -> None:
    """Print a line of words; where it is too wide, several lines, of which each but the first
    begins with `indent`.
    """
    print(
        textwrap.fill(
            text,
            page().width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def print_paragraphs(*texts: str) -> None:
    """Print each text as words, with an empty line before it."""
    for text in texts:
        print()
        print_words(text)


def aligned(
    rows: Sequence[Sequence[str]], left: Container[int] = (), between: str = "  "
) -> list[str]:
    """Return rows of cells as lines of text: the columns numbered in `left` to the left, the
    others to the right.
    """
    formats = []
    for index, column in enumerate(zip(*rows, strict=True)):
        side = "<" if index in left else ">"
        formats.append(f"{side}{max(map(len, column))}")
    return [between.join(map(format, row, formats)).rstrip() for row in rows]


def problem(N_q: int, N_k: int, d: int, d_v: int) -> str:
    """Return lengths and widths in words, each once where two are the same."""
    lengths = f"N = {N_q:,}" if N_q == N_k else f"N_q = {N_q:,}, N_k = {N_k:,}"
    widths = f"d = {d}" if d_v == d else f"d = {d}, d_v = {d_v}"
    return f"{lengths}, {widths}"


def sram(M: int, itemsize: int, dtype: str) -> str:
    """Return SRAM's size in words."""
    return f"SRAM of M = {M:,} elements ({human_bytes(M * itemsize)} of {dtype})"

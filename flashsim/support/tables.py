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
    """Return a console of rich that raises BrokenPipeError where the reader has gone, as all
    streams do.
    """
    from rich.console import Console

    class Raising(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Raising(**options)


def page() -> Console:
    """Return a console for tables and words, which colours nothing."""
    plain: dict[str, Any] = {"highlight": False, "markup": False, "soft_wrap": True}
    made = console(**plain)
    return made if made.is_terminal else console(**plain, width=PIPE)


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[Any] | None], on: Console | None = None
) -> None:
    """Print a table of cells, as `cell` writes them; below the row None a section begins.

    The first column is text, the others are numbers unless headed "… =", "array" or "loops". Where
    the table is too wide, its columns come in several tables, one below another, each with the
    first column.
    """
    from rich.measure import Measurement

    on = on or page()
    listed = list(rows)
    columns = list(range(1, len(headings)))
    shown = [0]
    while columns:
        shown.append(columns.pop(0))
        wider = _table(headings, listed, [*shown, *columns[:1]])
        if (
            not columns
            or Measurement.get(on, on.options.update_width(10_000), wider).maximum > on.width
        ):
            on.print(_table(headings, listed, shown))
            shown = [0]
            if columns:
                on.print()


def _table(
    headings: Sequence[str], rows: Sequence[Sequence[Any] | None], columns: Sequence[int]
) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for at in columns:
        text = at == 0 or headings[at].endswith(("=", "array", "loops"))
        table.add_column(headings[at], justify="left" if text else "right", no_wrap=True)
    for row in rows:
        if row is None:
            table.add_section()
        else:
            table.add_row(*(cell(row[at]) if at < len(row) else "" for at in columns))
    return table


def cell(value: Any) -> str:
    """Return a value as a reader sees it: whole numbers with commas, yes or no, a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:g}"
        if isinstance(value, float)
        else printable(value)
    )


def print_words(text: str, further: str = "") -> None:
    """Print a line of words; where it is too wide, several lines, which begin with `further`
    from the second on.
    """
    print(
        textwrap.fill(
            text,
            page().width,
            subsequent_indent=further,
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
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    forms = [f"{'<' if at in left else '>'}{width}" for at, width in enumerate(widths)]
    return [between.join(map(format, row, forms)).rstrip() for row in rows]


def problem(N_q: int, N_k: int, d: int, d_v: int) -> str:
    """Return lengths and widths in words, each once where two are the same."""
    lengths = f"N = {N_q:,}" if N_q == N_k else f"N_q = {N_q:,}, N_k = {N_k:,}"
    return f"{lengths}, d = {d}" + (f", d_v = {d_v}" if d_v != d else "")


def sram(M: int, itemsize: int, dtype: str) -> str:
    """Return SRAM's size in words."""
    return f"SRAM of M = {M:,} elements ({human_bytes(M * itemsize)} of {dtype})"

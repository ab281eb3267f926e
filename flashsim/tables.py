"""Tables and lines on the console, no wider than it is: in a terminal its width, in a pipe 80 columns, without colour."""

from __future__ import annotations

import textwrap
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

from flashsim.sizes import human_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE = 80  # columns, where no terminal says how many there are


def console(**options: Any) -> Console:
    """Return a console of rich that raises BrokenPipeError where the reader has gone, as all streams do."""
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


def new_table(first: str, *columns: str) -> Table:
    """Return an empty table: its first column is text, the others are numbers unless named "… =", "array" or "loops"."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="left" if column.endswith(("=", "array", "loops")) else "right", no_wrap=True)
    return table


def print_table(table: Table, on: Console | None = None) -> None:
    """Print a table; where it is too wide, its columns in several tables, one below another, each with the first column."""
    on, columns, shown = on or page(), list(range(1, len(table.columns))), list[int]()
    while columns:
        shown.append(columns.pop(0))
        if not columns or _width(on, _part(table, [*shown, columns[0]])) > on.width:
            on.print(_part(table, shown))
            shown = []
            if columns:
                on.print()


def print_words(text: str, further: str = "") -> None:
    """Print a line of words; where it is too wide, several lines, which begin with `further` from the second on."""
    width = page().width
    print(textwrap.fill(text, width, subsequent_indent=further, break_long_words=False, break_on_hyphens=False))


def print_paragraphs(*texts: str) -> None:
    """Print each text as words, with an empty line before it."""
    for text in texts:
        print()
        print_words(text)


def aligned(rows: Sequence[Sequence[str]], left: Container[int] = (), between: str = "  ") -> list[str]:
    """Return rows of cells as lines of text: the columns numbered in `left` to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        between.join(
            cell.ljust(width) if at in left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def problem(N_q: int, N_k: int, d: int, d_v: int) -> str:
    """Return lengths and widths in words, each once where two are the same."""
    lengths = f"N = {N_q:,}" if N_q == N_k else f"N_q = {N_q:,}, N_k = {N_k:,}"
    return f"{lengths}, d = {d}" + (f", d_v = {d_v}" if d_v != d else "")


def sram(M: int, itemsize: int, dtype: str) -> str:
    """Return SRAM's size in words."""
    return f"SRAM of M = {M:,} elements ({human_bytes(M * itemsize)} of {dtype})"


def _part(table: Table, columns: list[int]) -> Table:
    kept = [table.columns[at] for at in (0, *columns)]
    part = new_table(*(str(column.header) for column in kept))
    for row, cells in zip(table.rows, zip(*(column.cells for column in kept), strict=True), strict=True):
        part.add_row(*cells, end_section=row.end_section)
    return part


def _width(console: Console, table: Table) -> int:
    from rich.measure import Measurement

    return Measurement.get(console, console.options.update_width(10_000), table).maximum

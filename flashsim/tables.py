"""Tables on the console: readable in a terminal, plain in a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def console_for_tables() -> Console:
    """Return a console that neither wraps nor colours what goes into a pipe."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, soft_wrap=True)
    return console if console.is_terminal else Console(highlight=False, markup=False, soft_wrap=True, width=200)


def new_table(first: str, *columns: str) -> Table:
    """Return an empty table: its first column is text, the others are numbers unless named "… =" or "array"."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="left" if column.endswith(("=", "array", "name")) else "right", no_wrap=True)
    return table

"""Tables on the console: readable in a terminal, plain in a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def console(**options: Any) -> Console:
    """Return a console of rich that raises BrokenPipeError where the reader has gone, as all streams do."""
    from rich.console import Console

    class Raising(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Raising(**options)


def console_for_tables() -> Console:
    """Return a console that neither wraps nor colours what goes into a pipe."""
    plain: dict[str, Any] = {"highlight": False, "markup": False, "soft_wrap": True}
    made = console(**plain)
    return made if made.is_terminal else console(**plain, width=200)


def new_table(first: str, *columns: str) -> Table:
    """Return an empty table: its first column is text, the others are numbers unless named "… =" or "array"."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="left" if column.endswith(("=", "array", "name")) else "right", no_wrap=True)
    return table

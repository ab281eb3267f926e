"""What records are in a notebook: small tables in HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[int | str]], notes: Sequence[str] = ()) -> str:
    """Return a table, numbers with commas; the first column is text, the last row a total. `notes` are lines below it."""
    parts = [f"<table><caption>{escape(caption)}</caption><thead><tr>"]
    parts += [f"<th>{escape(heading)}</th>" for heading in headings]
    parts.append("</tr></thead><tbody>")
    for row in rows:
        cells = [f"{cell:,}" if isinstance(cell, int) else escape(cell) for cell in row]
        parts.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return "".join(parts) + "</tbody></table>" + "".join(f"<div>{escape(note)}</div>" for note in notes)

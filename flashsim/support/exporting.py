"""Results as JSON, as a pandas table, and as a table in a notebook, every count exactly the
integer it is.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, overload

LARGEST = 2**63 - 1
FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")


class Exported:
    """What has `to_dict`, as JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data: dictionaries, lists, numbers, text."""
        raise NotImplementedError

    @overload
    def to_json(self, path: None = None) -> str: ...
    @overload
    def to_json(self, path: str | os.PathLike[str]) -> None: ...
    def to_json(self, path: str | os.PathLike[str] | None = None) -> str | None:
        """Return `to_dict` as JSON, and under "made_with" versions, date and commit.

        With a path, write it to that file, completely or not at all, and return None.
        """
        from flashsim.support.provenance import made_with

        record = plain({**self.to_dict(), "made_with": made_with()})
        text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
        return write_or_return(f"{text}\n", path)


class ByArray(Exported):
    """What has HBM accesses by array, as a table of them, too."""

    def to_pandas(self) -> Any:
        """Return HBM accesses as a `pandas.DataFrame`, a row for each array; all else is in its
        `attrs`.

        Where SRAM's peak exceeds M, a column `over_M_elements` says by how many elements.

        Counts are in elements, exactly the integers they are. Needs pandas, which the extra
        `pandas` brings.
        """
        record = self.to_dict()
        traffic = record.pop("hbm", record)  # of a run, or of traffic alone
        over = record.get("sram", {}).get("over")
        rows = []
        for name, counts in traffic.pop("by_array").items():
            row = {"array": name, **counts}
            if over:
                row["over_M_elements"] = over
            rows.append(row)
        return to_pandas(rows, list(rows[0]), index="array", attrs={**traffic, **record})


def write_or_return(text: str, path: str | os.PathLike[str] | None) -> str | None:
    """Return a text; with a path, write it to that file, completely or not at all, and return
    None.
    """
    if path is None:
        return text
    from flashsim.support.files import write_whole

    write_whole(path, text)
    return None


def csv_cell(value: Any) -> Any:
    """Return a cell of CSV: a truth as true or false; text that a spreadsheet would take for a
    formula, or that begins with ', after a '.
    """
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def text_of_csv_cell(text: str) -> str:
    """Return the text of a cell that `csv_cell` has written."""
    return text[1:] if text.startswith("'") and text[1:].startswith(FORMULA) else text


def plain(value: Any) -> Any:
    """Return a value as JSON has it: mappings, lists, and None for a number that is not finite."""
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_pandas(
    rows: Iterable[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    index: str | None = None,
    attrs: Mapping[str, Any] | None = None,
) -> Any:
    """Return rows as a `pandas.DataFrame` of these columns, `index` among them if it is to be that.

    Integers are int64; Int64, which has gaps, where some are missing; Python's own where one is
    larger. `attrs` are those of the table. Raises ModuleNotFoundError, with what to install, where
    there is no pandas.
    """
    try:
        import pandas as pd
    except ModuleNotFoundError as missing:
        if missing.name != "pandas":
            raise
        from flashsim.support.install import extra_with

        raise ModuleNotFoundError(
            f"to_pandas needs the package pandas: {extra_with('pandas')}", name="pandas"
        ) from None
    records = list(rows)
    series = {}
    for name in columns:
        series[name] = _series(pd, [record.get(name) for record in records])
    table = pd.DataFrame(series)
    table.attrs.update(attrs or {})
    return table if index is None else table.set_index(index)


def _series(pd: Any, values: list[Any]) -> Any:
    """Return a column. pandas alone would make floats of integers with gaps, which rounds them."""
    present = [value for value in values if value is not None]
    has_gaps = len(present) < len(values)
    kinds = set(map(type, present))
    if kinds == {bool}:
        return pd.Series(values, dtype="boolean" if has_gaps else "bool")
    if kinds == {int} and max(map(abs, present)) <= LARGEST:
        return pd.Series(values, dtype="Int64" if has_gaps else "int64")
    if float in kinds <= {int, float}:
        return pd.Series(values, dtype="float64")
    return pd.Series(values, dtype=None if kinds == {str} else "object")


def html_table(
    caption: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[int | str]],
    notes: Sequence[str] = (),
) -> str:
    """Return a table, numbers with commas; the first column is text, the last row a total.
    `notes` are lines below it.
    """
    parts = [f"<table><caption>{escape(caption)}</caption><thead><tr>"]
    parts += [f"<th>{escape(heading)}</th>" for heading in headings]
    parts.append("</tr></thead><tbody>")
    for row in rows:
        parts.append("<tr>")
        for cell in row:
            text = f"{cell:,}" if isinstance(cell, int) else escape(cell)
            parts.append(f"<td>{text}</td>")
        parts.append("</tr>")
    parts.append("</tbody></table>")
    parts += [f"<div>{escape(note)}</div>" for note in notes]
    return "".join(parts)

"""The pictures that the site shows and git does not keep, drawn before the build from their
records.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kit_picture import PARTS, SHADES
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from flashsim.drawing.style import drawn, styled
from flashsim.plots import FIGURES
from flashsim.support.files import write_whole

DRAWN: dict[str, Callable[[dict[str, Any]], Figure]] = {
    name: chart.draw for name, chart in FIGURES.items()
}
"""By record: what draws its data."""


def make(app: Any) -> None:
    """Draw the pictures that figures/ lacks, from the numbers that it has."""
    figures = Path(app.srcdir) / "figures"
    for name in DRAWN:
        record = figures / f"{name}.json"
        picture = figures / f"{name}.png"
        if record.exists() and not picture.exists():
            write_whole(picture, png(name, json.loads(record.read_text(encoding="utf-8"))["data"]))


@styled
def png(name: str, data: dict[str, Any]) -> bytes:
    """Return the picture of a record's data."""
    return drawn(DRAWN[name](data), "png")


def add(app: Any, docname: str, source: list[str]) -> None:
    """Add the pictures to the page of figures, and the matrix to the page of the kit's."""
    if docname == "docs/figures":
        source[0] += "".join(f"{line}\n" for line in pictures_of(Path(app.srcdir) / "figures"))
    elif docname == "figures/kit_matrix":
        app.env.note_dependency(app.srcdir / "figures" / "kit_matrix.json")
        data = json.loads((app.srcdir / "figures" / "kit_matrix.json").read_text(encoding="utf-8"))[
            "data"
        ]
        title, rest = source[0].split("\n", 1)
        source[0] = f"{title}\n\n{matrix(data)}\n{anchored(rest)}"


def matrix(data: dict[str, Any]) -> str:
    """Return the shares as HTML, a row a bug, a column a check; their names lead to the page's
    lines of them, by `anchored`.
    """
    heads = "".join(
        (
            f'<th scope="col"><a href="#check-{name}" '
            f'title="{html.escape(about)}">{name.replace("_", " ")}</a></th>'
        )
        for name, about in data["checks"].items()
    )
    lines = [
        f"In % of {data['cases']} cases; a name leads to what it means.",
        "",
        (
            '<div class="matrix"><table '
            f'class="shares"><thead><tr><th>bug</th>{heads}</tr></thead><tbody>'
        ),
    ]
    for part, text in PARTS.items():
        lines.append(f'<tr><th class="part" colspan="{len(data["checks"]) + 1}">{text}</th></tr>')
        for row in (row for row in data["mutants"] if row["part"] == part):
            name = (
                f'<a href="#bug-{row["name"]}" '
                f'title="{html.escape(row["bug"])}">{row["name"].replace("_", " ")}</a>'
            )
            shares = "".join(
                _cell(row["failed"].get(check, 0), row["tried"].get(check, 0))
                for check in data["checks"]
            )
            lines.append(f'<tr><th scope="row">{name}</th>{shares}</tr>')
    return "\n".join([*lines, "</tbody></table></div>", ""])


def _cell(failed: int, tried: int) -> str:
    if not failed:
        return "<td></td>" if tried else "<td>–</td>"
    share = failed / tried
    ink = "#fff" if share > 0.5 else "#000"
    return (
        "<td "
        f'style="background:{to_hex(SHADES(share**0.5))};color:{ink}">{max(1, round(100 * share))}</td>'  # noqa: E501
    )


def anchored(text: str) -> str:
    """Return the page's text with places for the matrix's links: each check's line, and each
    bug's.
    """
    text = re.sub(r"^(\d+\. )`(\w+)`", r'\1<a id="check-\2"></a>`\2`', text, flags=re.M)
    return re.sub(r"^\| (\w+)(?=( [○●])?: )", r'| <a id="bug-\1"></a>\1', text, flags=re.M)


def pictures_of(figures: Path) -> Iterator[str]:
    """Yield the lines of each figure: what it shows, the picture, and the command of its record."""
    for name, chart in FIGURES.items():
        title = chart.about[0].upper() + chart.about[1:]
        command = json.loads((figures / f"{name}.json").read_text(encoding="utf-8"))["command"]
        # a phone scrolls in it
        output = f'<div class="wide"><img src="../figures/{name}.png" alt="{title}"></div>'
        picture = output if chart.columns > 1 else f"![{title}](../figures/{name}.png)"
        yield from ("", f"## {title}", "", picture, "", "```sh", command, "```")


def setup(app: Any) -> dict[str, Any]:
    """Join Sphinx."""
    app.connect("builder-inited", make)
    app.connect("source-read", add)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

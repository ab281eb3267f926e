"""The pictures that the site shows and git does not keep, drawn before the build from their records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from flashsim.drawing.style import drawn, styled
from flashsim.plots import FIGURES, figure_of
from flashsim.plots.kit_matrix import plot_kit_matrix
from flashsim.support.files import write_whole

DRAWN: dict[str, Callable[[dict[str, Any]], Figure]] = {
    **{name: chart.draw for name, chart in FIGURES.items()},
    "kit_matrix": lambda data: figure_of(plot_kit_matrix(data)),
}
"""By record: what draws its data."""


def make(app: Any) -> None:
    """Draw the pictures that figures/ lacks, from the numbers that it has."""
    figures = Path(app.srcdir) / "figures"
    for name in DRAWN:
        record, picture = figures / f"{name}.json", figures / f"{name}.png"
        if record.exists() and not picture.exists():
            write_whole(picture, png(name, json.loads(record.read_text(encoding="utf-8"))["data"]))


@styled
def png(name: str, data: dict[str, Any]) -> bytes:
    """Return the picture of a record's data."""
    return drawn(DRAWN[name](data), "png")


def add(app: Any, docname: str, source: list[str]) -> None:
    """Add the pictures to the page of figures, and to that of the kit's matrix, its table."""
    if docname == "docs/figures":
        source[0] += "".join(f"{line}\n" for line in shown(Path(app.srcdir) / "figures"))
    elif docname == "figures/kit_matrix":
        title, rest = source[0].split("\n", 1)
        source[0] = f"{title}\n\n![The share of cases in which a check notices a bug](kit_matrix.png)\n{rest}"


def shown(figures: Path) -> Iterator[str]:
    """Yield the lines of each figure: what it shows, the picture, and the command of its record."""
    for name, chart in FIGURES.items():
        title = chart.what[0].upper() + chart.what[1:]
        command = json.loads((figures / f"{name}.json").read_text(encoding="utf-8"))["command"]
        yield from ("", f"## {title}", "", f"![{title}](../figures/{name}.png)", "", "```sh", command, "```")


def setup(app: Any) -> dict[str, Any]:
    """Join Sphinx."""
    app.connect("builder-inited", make)
    app.connect("source-read", add)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

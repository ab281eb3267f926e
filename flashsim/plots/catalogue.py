"""Every figure by name: the `Chart`s of this folder, collected."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from flashsim.plots.chart import Chart
from flashsim.problem.arguments import is_one_of, shown

_FILES = [file.name for file in pkgutil.iter_modules([str(Path(__file__).parent)]) if file.name != "catalogue"]
FIGURES: dict[str, Chart] = {
    found.name: found
    for file in _FILES
    for found in vars(import_module(f"flashsim.plots.{file}")).values()
    if isinstance(found, Chart)
}


def draw(
    name: str, *, ax: Axes | Sequence[Axes] | None = None, wide: bool = False, **options: Any
) -> Axes | Sequence[Axes]:
    """Count and draw the figure of that name, and return its axes.

    `options` are what the figure takes: `FIGURES[name].takes`. `ax`: axes of yours, as many as it has panels; None: a new
    figure, `wide` as a slide of 16:9. Raises ValueError for no such figure, and for an option it does not take.
    """
    if not is_one_of(name, FIGURES):
        raise ValueError(f"there is no figure {shown(name)}; expected one of {', '.join(FIGURES)}")
    chart = FIGURES[name]
    for option in options:
        if option not in chart.takes:
            raise ValueError(f"{name} does not take {option}; it takes {', '.join(chart.takes) or 'no options'}")
    if wide and ax is not None:
        raise ValueError("wide is for a new figure; with ax the size is that of its own")
    drawn: Axes | Sequence[Axes] = chart(chart.data(**options), ax=ax, wide=wide)
    return drawn

"""Pictures: the paper's Figures 2 and 3 as models, Theorems 2 and 5, Appendix B.5, and a run's
accesses by array.

`draw("pareto", N=2048, M="228KB", ax=ax)` draws a figure by its name, and returns the axes.
`FIGURES` has all figures, and the options that each takes. No window opens and no global state
changes: pyplot is not used.

Each figure has a file: a `*_data` function counts, and a `plot_*` function draws the numbers on
axes. A `Chart` joins the two.

Many `*_data` take `M` (by default 100 KB of the dtype), `sizing` ("paper": line 1's blocks),
`blocks` ((B_r, B_c) of all; M is enforced) and `algorithms` (others to draw, the user's own too);
`sram_peak` is then the most that FlashAttention has on chip.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from matplotlib.axes import Axes

from flashsim.analysis.sweeping.series import sweep_data
from flashsim.attention.arguments import is_one_of, short_repr
from flashsim.drawing.bars import plot_run
from flashsim.drawing.style import column_figure
from flashsim.drawing.sweep import plot_sweep
from flashsim.plots.by_array import run_figure
from flashsim.plots.chart import Chart
from flashsim.plots.saving import figure_of, save

__all__ = [
    "FIGURES",
    "Chart",
    "column_figure",
    "draw",
    "figure_of",
    "plot_run",
    "plot_sweep",
    "run_figure",
    "save",
    "sweep_data",
]

FIGURES: dict[str, Chart] = {}
for file in pkgutil.iter_modules(__path__):
    for value in vars(import_module(f"{__name__}.{file.name}")).values():
        if isinstance(value, Chart):
            FIGURES[value.name] = value


def draw(
    name: str, *, ax: Axes | Sequence[Axes] | None = None, wide: bool = False, **options: Any
) -> Axes | Sequence[Axes]:
    """Count and draw the figure of that name, and return its axes.

    `options` are what the figure takes: `FIGURES[name].takes`. `ax`: axes of yours, as many as it
    has panels; None: a new figure, `wide` as a slide of 16:9. Raises ValueError for no such figure,
    and for an option it does not take.
    """
    if not is_one_of(name, FIGURES):
        raise ValueError(
            f"there is no figure {short_repr(name)}; expected one of {', '.join(FIGURES)}"
        )
    chart = FIGURES[name]
    for option in options:
        if option not in chart.takes:
            raise ValueError(
                f"{name} does not take {option}; it takes {', '.join(chart.takes) or 'no options'}"
            )
    if wide and ax is not None:
        raise ValueError("wide is for a new figure; with ax the size is that of its own")
    axes: Axes | Sequence[Axes] = chart(chart.data(**options), ax=ax, wide=wide)
    return axes

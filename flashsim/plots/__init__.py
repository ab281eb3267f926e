"""Pictures: the paper's Figures 2 and 3 as models, Theorems 2 and 5, Appendix B.5, and a run's accesses by array.

`draw("pareto", N=2048, M="228KB", ax=ax)` draws one by name, and returns the axes; `FIGURES` has them all, and says what
options each takes. Nothing is shown and no global state is kept: no pyplot.

A file a figure: a `*_data` function counts, and a `plot_*` function draws that on axes. A `Chart` makes these one.
"""

from __future__ import annotations

from flashsim.drawing.bars import plot_run
from flashsim.drawing.style import column_figure
from flashsim.plots.by_array import run_figure
from flashsim.plots.catalogue import FIGURES, draw
from flashsim.plots.chart import Chart
from flashsim.plots.saving import figure_of, save
from flashsim.sweeping.drawing import plot_sweep, sweep_data

__all__ = [
    "FIGURES", "Chart", "column_figure", "draw", "figure_of", "plot_run", "plot_sweep", "run_figure", "save",
    "sweep_data",
]  # fmt: skip

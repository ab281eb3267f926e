"""Pictures: HBM accesses against block size (Figure 2, middle), Theorem 2's exponents, and a run's accesses by array.

Each `plot_*` draws on the axes it is given, or on a new figure one printed column wide, and returns the axes; the
numbers drawn come from the `*_data` function beside it. Nothing is shown and no global state is kept: no pyplot.
"""

from __future__ import annotations

from flashsim.plots.blocks import blocks_data, plot_blocks
from flashsim.plots.by_array import plot_run, run_figure
from flashsim.plots.saving import figure_of, save
from flashsim.plots.style import column_figure
from flashsim.plots.theorem_2 import plot_theorem2, theorem2_data

__all__ = [
    "blocks_data",
    "column_figure",
    "figure_of",
    "plot_blocks",
    "plot_run",
    "plot_theorem2",
    "run_figure",
    "save",
    "theorem2_data",
]

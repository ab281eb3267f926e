"""Pictures: the paper's Figures 2 and 3 as models, Theorems 2 and 5, Appendix B.5, and a run's accesses by array.

Each `plot_*` draws the numbers that the `*_data` function beside it returns (called, if none are given) on the axes it is
given, or on a new figure, and returns the axes. `FIGURES` lists them by name. Nothing is shown and no global state is
kept: no pyplot.
"""

from __future__ import annotations

from flashsim.plots.appendix_b5 import appendix_b5_data, plot_appendix_b5
from flashsim.plots.blocks import blocks_data, plot_blocks
from flashsim.plots.by_array import arrays_data, plot_arrays, plot_run, run_figure
from flashsim.plots.cache_size import cache_size_data, plot_cache_size
from flashsim.plots.catalogue import FIGURES, Chart, write_figure
from flashsim.plots.footprint import memory_data, plot_memory
from flashsim.plots.l2 import l2_data, plot_l2
from flashsim.plots.pareto import pareto_data, plot_pareto
from flashsim.plots.roofline import plot_roofline, roofline_data
from flashsim.plots.saving import figure_of, save
from flashsim.plots.sparsity import plot_sparsity, sparsity_data
from flashsim.plots.style import column_figure
from flashsim.plots.sweep import plot_sweep, sweep_data
from flashsim.plots.theorems import plot_theorem2, plot_theorem5, theorem2_data, theorem5_data
from flashsim.plots.traffic import plot_traffic, traffic_data

__all__ = [
    "FIGURES",
    "Chart",
    "appendix_b5_data",
    "arrays_data",
    "blocks_data",
    "cache_size_data",
    "column_figure",
    "figure_of",
    "l2_data",
    "memory_data",
    "pareto_data",
    "plot_appendix_b5",
    "plot_arrays",
    "plot_blocks",
    "plot_cache_size",
    "plot_l2",
    "plot_memory",
    "plot_pareto",
    "plot_roofline",
    "plot_run",
    "plot_sparsity",
    "plot_sweep",
    "plot_theorem2",
    "plot_theorem5",
    "plot_traffic",
    "roofline_data",
    "run_figure",
    "save",
    "sparsity_data",
    "sweep_data",
    "theorem2_data",
    "theorem5_data",
    "traffic_data",
    "write_figure",
]

"""Every figure by name, for the command line and the scripts."""

from __future__ import annotations

import argparse
import inspect
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flashsim.entry import run_script
from flashsim.files import name_of
from flashsim.plots.appendix_b5 import appendix_b5_data, plot_appendix_b5
from flashsim.plots.blocks import blocks_data, plot_blocks
from flashsim.plots.by_array import arrays_data, plot_arrays
from flashsim.plots.cache_size import cache_size_data, plot_cache_size
from flashsim.plots.footprint import memory_data, plot_memory
from flashsim.plots.l2 import l2_data, plot_l2
from flashsim.plots.pareto import pareto_data, plot_pareto
from flashsim.plots.roofline import plot_roofline, roofline_data
from flashsim.plots.saving import figure_of, save
from flashsim.plots.sparsity import plot_sparsity, sparsity_data
from flashsim.plots.theorems import plot_theorem2, plot_theorem5, theorem2_data, theorem5_data
from flashsim.plots.traffic import plot_traffic, traffic_data


@dataclass(frozen=True)
class Chart:
    """A figure: `data()` counts, `plot(data)` draws on a new figure and returns the axes, `what` says what it shows."""

    data: Callable[..., dict[str, Any]]
    plot: Callable[..., Axes | Sequence[Axes]]
    what: str

    @property
    def takes(self) -> dict[str, Any]:
        """The arguments of `data`, with their defaults."""
        return {name: given.default for name, given in inspect.signature(self.data).parameters.items()}

    def draw(self, data: dict[str, Any] | None = None) -> Figure:
        """Return the figure of `data`, by default of `data()`."""
        return figure_of(self.plot(self.data() if data is None else data))


FIGURES: dict[str, Chart] = {
    "blocks": Chart(blocks_data, plot_blocks, "Figure 2 (middle): HBM accesses against block size, both passes"),
    "theorem2": Chart(theorem2_data, plot_theorem2, "Theorem 2: accesses against N, d, M, with fitted exponents"),
    "theorem5": Chart(theorem5_data, plot_theorem5, "Theorem 5: the same for the backward pass"),
    "traffic": Chart(traffic_data, plot_traffic, "Figure 2 (left): GPT-2 medium's GB and GFLOPs, pass by pass"),
    "sparsity": Chart(sparsity_data, plot_sparsity, "Figure 2 (right), Proposition 4: accesses against sparsity"),
    "memory": Chart(memory_data, plot_memory, "Figure 3 (right): extra memory against N, and where 40 GB end"),
    "arrays": Chart(arrays_data, plot_arrays, "accesses by array, every algorithm, forward and backward"),
    "appendix_b5": Chart(appendix_b5_data, plot_appendix_b5, "Appendix B.5: FlashAttention and Rabe & Staats compared"),
    "roofline": Chart(roofline_data, plot_roofline, "the roofline of an A100: intensity, and what binds"),
    "l2": Chart(l2_data, plot_l2, "a third level: DRAM traffic against the size of an L2"),
    "pareto": Chart(pareto_data, plot_pareto, "accesses against occupancy: every block size, both loop orders"),
    "cache_size": Chart(
        cache_size_data, plot_cache_size, "accesses against M, and where FlashAttention is not optimal"
    ),
}


def write_figure(name: str, script: str, description: str | None) -> None:
    """Do what a script of figure `name` does: parse its command line, draw, write PNG, SVG, JSON, print the paths, and exit."""
    path = Path(script)
    parser = argparse.ArgumentParser(prog=path.name, description=description)
    parser.add_argument("-o", "--output", type=Path, default=Path("figures") / path.stem, help="stem of the files")

    def work() -> None:
        output = parser.parse_args().output
        data = FIGURES[name].data()
        command = shlex.join(["python", f"scripts/{path.name}", *map(name_of, sys.argv[1:])])
        print(*save(FIGURES[name].draw(data), output, data, command), sep="\n")

    run_script(work)

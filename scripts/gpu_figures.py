"""Draw what `flashsim bench` measured: figures/gpu_times, gpu_runtime, gpu_memory (Figure 3), gpu_gpt2 (Figure 1, right).

python scripts/gpu_figures.py        # from figures/gpu_bench.json, which a GPU made; needs none
python scripts/gpu_figures.py --record figures/gpu_ladder.json       # of flashsim bench --ladder: figures/gpu_ladder
python scripts/gpu_figures.py --record figures/gpu_figure_3.json     # of flashsim bench --only hopper hopper_window …
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flashsim.entry import run_script
from flashsim.files import read_record, write_whole
from flashsim.plots.gpu import plot_figure_1, plot_ladder, plot_peak_memory, plot_runtime, plot_times
from flashsim.plots.saving import drawn, figure_of

DRAWN: dict[str, Callable[..., Any]] = {
    "gpu_times": plot_times,
    "gpu_runtime": plot_runtime,
    "gpu_memory": plot_peak_memory,
    "gpu_gpt2": plot_figure_1,
}
ALONE: dict[str, dict[str, Callable[..., Any]]] = {
    "gpu_ladder": {"gpu_ladder": plot_ladder},
    "gpu_figure_3": {"gpu_figure_3": plot_runtime},
}


def main() -> None:
    """Draw, write PNG and SVG, and print the paths. Raises ValueError for a record that holds something else."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--record", type=Path, default=Path("figures/gpu_bench.json"), help="what flashsim bench --json wrote"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("figures"), help="folder of the figures")
    options = parser.parse_args()
    drawn_of = ALONE.get(options.record.stem, DRAWN)
    record = read_record(options.record, "machine", "steps" if options.record.stem == "gpu_ladder" else "results")
    for name, plot in drawn_of.items():
        try:
            figure = figure_of(plot(record))
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ValueError(f"{options.record} has not what {name} draws: {type(error).__name__}: {error}") from error
        write_whole(options.output / f"{name}.png", drawn(figure, "png"))
        write_whole(options.output / f"{name}.svg", drawn(figure, "svg"))
        print(options.output / f"{name}.png")


if __name__ == "__main__":
    run_script(main)

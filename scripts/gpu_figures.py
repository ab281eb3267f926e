"""Draw what `flashsim bench` measured: rates, runtime and memory (Figure 3), GPT-2's attention
(Figure 1, right), the ladder.

# all, from the records that a GPU made; needs none
python scripts/gpu_figures.py
python scripts/gpu_figures.py --record figures/gpu_ladder.json       # what is drawn of one
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from devices_pictures import plot_devices
from gpu_pictures import (
    plot_figure_1,
    plot_figure_3,
    plot_front,
    plot_ladder,
    plot_peak_memory,
    plot_runtime,
    plot_times,
)

from flashsim.drawing.style import drawn
from flashsim.plots.saving import figure_of
from flashsim.support.entry import run_script
from flashsim.support.files import read_record, write_whole

FIGURES = Path("figures")
DRAWN: dict[str, dict[str, Callable[..., Any]]] = {
    "gpu_bench": {
        "gpu_times": plot_times,
        "gpu_runtime": plot_runtime,
        "gpu_memory": plot_peak_memory,
    },
    "gpu_hopper": {"gpu_hopper": plot_front},
    "gpu_hopper_backward": {"gpu_hopper_backward": plot_front},
    "gpu_gpt2": {"gpu_gpt2": plot_figure_1},
    "gpu_figure_3": {"gpu_figure_3": plot_figure_3},
    "gpu_ladder": {"gpu_ladder": plot_ladder},
    "gpu_ladder_causal": {"gpu_ladder_causal": plot_ladder},
    "devices_gpu": {"devices_gpu": plot_devices},
}
"""Of each record the pictures, and what draws them. Any other is drawn as a ladder where it has
steps, or else as gpu_bench.
"""


def main() -> None:
    """Draw, write PNG and SVG, and print the paths. Raises ValueError for a record that holds
    something else.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--record", type=Path, help="what flashsim bench --json wrote. Default: all of figures/"
    )
    parser.add_argument("-o", "--output", type=Path, default=FIGURES, help="folder of the figures")
    options = parser.parse_args()
    for path in (
        [options.record] if options.record else [FIGURES / f"{name}.json" for name in DRAWN]
    ):
        record = read_record(path)
        ladder = isinstance(record, dict) and "steps" in record
        drawings = DRAWN.get(path.stem, {path.stem: plot_ladder} if ladder else DRAWN["gpu_bench"])
        record = read_record(
            path, "machine", "steps" if plot_ladder in drawings.values() else "results"
        )
        # a picture has a place for each setting once
        if not ladder and isinstance(record["results"], list):
            others = [
                r
                for r in record["results"]
                if isinstance(r, dict) and r.get("distribution", "normal") != "normal"
            ]
            normal = [r for r in record["results"] if r not in others]
            record["results"] = normal or record["results"]
        for name, plot in drawings.items():
            try:
                figure = figure_of(plot(record))
            except (KeyError, IndexError, TypeError, AttributeError) as error:
                raise ValueError(
                    f"{path} has not what {name} draws: {type(error).__name__}: {error}"
                ) from error
            write_whole(options.output / f"{name}.png", drawn(figure, "png"))
            write_whole(options.output / f"{name}.svg", drawn(figure, "svg"))
            print(options.output / f"{name}.png")


if __name__ == "__main__":
    run_script(main)

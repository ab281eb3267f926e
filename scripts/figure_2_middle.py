"""Draw figures/figure_2_middle: HBM accesses against block size, the paper's Figure 2 (middle) as a model."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from flashsim import plots


def main() -> None:
    """Write the PNG, SVG and JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("figures/figure_2_middle"), help="stem of the files")
    output = parser.parse_args().output
    command = shlex.join(["python", "scripts/figure_2_middle.py", *sys.argv[1:]])
    figure = plots.column_figure(3.4)
    plots.plot_blocks(ax=figure.subplots())
    print(*plots.save(figure, output, plots.blocks_data(), command), sep="\n")


if __name__ == "__main__":
    main()

"""Draw figures/theorem_2: HBM accesses against N, d and M, with fitted exponents."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from flashsim import plots


def main() -> None:
    """Write the PNG, SVG and JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("figures/theorem_2"), help="stem of the files")
    output = parser.parse_args().output
    command = shlex.join(["python", "scripts/theorem_2.py", *sys.argv[1:]])
    figure = plots.column_figure(8.6)
    plots.plot_theorem2(ax=list(figure.subplots(3)))
    print(*plots.save(figure, output, plots.theorem2_data(), command), sep="\n")


if __name__ == "__main__":
    main()

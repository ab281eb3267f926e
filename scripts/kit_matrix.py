"""Try every mutant of flashsim.testing against every check: figures/kit_matrix (.png, .svg, .json) and .md, the table.

    python scripts/kit_matrix.py --jobs 2        # about ten minutes
    python scripts/kit_matrix.py --draw          # the picture again, from the record that is there

Counts of cases, not times: the same on every machine with the same versions of Hypothesis, NumPy and flashsim.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is imported: tiles are small

from flashsim.cli.values import whole
from flashsim.entry import run_script
from flashsim.files import read_record, write_whole
from flashsim.plots import save
from flashsim.plots.kit_matrix import plot_kit_matrix
from flashsim.plots.saving import figure_of
from flashsim.testing.matrix import as_markdown, matrix


def main() -> None:
    """Run, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("figures/kit_matrix"), help="stem of the files")
    parser.add_argument("--jobs", type=whole(), default=1, help="processes. Default: 1")
    parser.add_argument("--draw", action="store_true", help="draw the record that is there")
    options = parser.parse_args()
    if options.draw:
        kept = read_record(options.output.with_suffix(".json"), "command", "machine", "data")
        figure = figure_of(plot_kit_matrix(kept["data"]))
        print(*save(figure, options.output, kept["data"], kept["command"], machine=kept["machine"]), sep="\n")
        return
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("mutants", total=None)
        data = matrix(options.jobs, lambda done, total: bar.update(task, completed=done, total=total))
    data["hypothesis"] = version("hypothesis")
    command = shlex.join(["python", f"scripts/{Path(__file__).name}", *sys.argv[1:]])
    machine = f"any with these versions: counts of cases; drawn on {platform.machine()}"
    paths = save(figure_of(plot_kit_matrix(data)), options.output, data, command, machine=machine)
    table = options.output.with_suffix(".md")
    write_whole(table, as_markdown(data))
    print(*paths, table, sep="\n")
    print(f"{data['caught_with_every_seed']} of {len(data['mutants'])} bugs are noticed with every seed; the textbook test "
          f"notices {data['caught_by_the_textbook_test']}")  # fmt: skip


if __name__ == "__main__":
    run_script(main)

"""Every figure by name, for the command line and the scripts: the `Chart`s of this folder, collected."""

from __future__ import annotations

import argparse
import pkgutil
import shlex
import sys
from importlib import import_module
from pathlib import Path

from flashsim.entry import run_script
from flashsim.files import name_of
from flashsim.plots.chart import Chart
from flashsim.plots.saving import save

_FILES = [file.name for file in pkgutil.iter_modules([str(Path(__file__).parent)]) if file.name != "catalogue"]
FIGURES: dict[str, Chart] = {
    found.name: found
    for file in _FILES
    for found in vars(import_module(f"flashsim.plots.{file}")).values()
    if isinstance(found, Chart)
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

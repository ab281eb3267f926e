"""Write README's tables of algorithms and of GPU kernels: between their own markers, and nowhere else.

python scripts/readme_tables.py         # from the algorithms' records and from figures/gpu_bench.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from flashsim.algorithms import BACKWARD, FORWARD, Algorithm, backward_passes
from flashsim.files import write_whole

ROOT = Path(__file__).resolve().parents[1]
SETTING = {"N": 2048, "d": 64, "causal": False, "dropout_p": 0.0}
WIDTH = 6  # cells of a row of kernels, and one


def main() -> None:
    """Write the tables and print what has changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    readme = ROOT / "README.md"
    before = readme.read_text(encoding="utf-8")
    after = written(before)
    write_whole(readme, after)
    print("README.md: " + ("unchanged" if after == before else "written"))


def written(text: str) -> str:
    """Return README's text with its tables made anew. Raises ValueError where a marker is not there exactly once."""
    for name, table in TABLES.items():
        start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        if text.count(start) != 1 or text.count(end) != 1 or text.index(start) > text.index(end):
            raise ValueError(f"README.md: expected {start.strip()!r} and then {end!r}, once each")
        before, _, rest = text.partition(start)
        inside, _, after = rest.partition(end)
        text = f"{before}{start}{table(inside)}{end}{after}"
    return text


def algorithms(_: str) -> str:
    """Return the table of algorithms, from their records."""
    rows = [
        f"| `{name}` | {linked(algorithm)} | {'<br>'.join(linked(BACKWARD[back]) for back in backward_passes(name))} |\n"
        for name, algorithm in FORWARD.items()
    ]
    return "| name | forward | backward |\n|---|---|---|\n" + "".join(rows)


def linked(algorithm: Algorithm) -> str:
    """Return the title as a link to the file; for a pass with a name of its own, with that."""
    own = f"`{algorithm.name}`: " if algorithm.of else ""
    file = algorithm.run.__module__.replace(".", "/")
    return f"{own}[{algorithm.title}]({file}.py)"


def kernels(table: str) -> str:
    """Return the table of kernels with the recorded rates in its last two columns; its other columns as they are."""
    results = json.loads((ROOT / "figures" / "gpu_bench.json").read_text(encoding="utf-8"))["results"]
    rates: dict[str, dict[str, str]] = {}
    for result in results:
        if all(result[key] == value for key, value in SETTING.items()):
            for timing in result["timings"]:
                if not timing["failed"]:
                    rates.setdefault(timing["name"], {})[result["direction"]] = f"{timing['tflops']:.1f}"
    head, rows = table.splitlines(keepends=True)[:2], table.splitlines()[2:]
    for row in rows:
        cells = row.split("|")
        name = cells[1].strip(" `")
        if len(cells) != WIDTH + 1 or name not in rates:
            raise ValueError(
                f"README.md: a row of the table of kernels that figures/gpu_bench.json does not have: {row}"
            )
        measured = (rates[name].get(direction, "–") for direction in ("forward", "backward"))
        head.append("|".join([*cells[:4], *(f" {rate} " for rate in measured), ""]) + "\n")
    return "".join(head)


TABLES: dict[str, Callable[[str], str]] = {"table of algorithms": algorithms, "table of kernels": kernels}

if __name__ == "__main__":
    main()

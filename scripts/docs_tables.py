"""Write the tables of README.md and docs/ that come from records: between their own markers, and nowhere else.

python scripts/docs_tables.py         # from the records of algorithms, kernels and figures, and from figures/gpu_bench.json
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from flashsim.algorithms import BACKWARD, FORWARD, Algorithm, backward_passes
from flashsim.entry import run_script
from flashsim.files import write_whole
from flashsim.gpu.rungs import ladder
from flashsim.plots import FIGURES

ROOT = Path(__file__).resolve().parents[1]
SETTING = {"N": 2048, "d": 64, "causal": False, "dropout_p": 0.0}
CONTESTANTS = {
    "torch_unfused": "attention written in PyTorch, unfused",
    "torch_math": "PyTorch's own unfused attention",
    "torch_flash": "PyTorch's FlashAttention-2",
    "torch_cudnn": "PyTorch's cuDNN",
    "fa4": "FlashAttention-4",
}


def main() -> None:
    """Write the tables and print what has changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    for page in TABLES:
        before = (ROOT / page).read_text(encoding="utf-8")
        after = written(page, before)
        write_whole(ROOT / page, after)
        print(f"{page}: " + ("unchanged" if after == before else "written"))


def written(page: str, text: str) -> str:
    """Return a page's text with its tables made anew. Raises ValueError where a marker is not there exactly once."""
    for name, rows in TABLES[page].items():
        start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        if text.count(start) != 1 or text.count(end) != 1 or text.index(start) > text.index(end):
            raise ValueError(f"{page}: expected {start.strip()!r} and then {end!r}, once each")
        before, _, rest = text.partition(start)
        _, _, after = rest.partition(end)
        text = before + start + "".join(f"| {' | '.join(row)} |\n" for row in rows()) + end + after
    return text


def algorithms() -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table of algorithms."""
    yield "name", "forward", "backward"
    yield "---", "---", "---"
    for name, algorithm in FORWARD.items():
        yield f"`{name}`", linked(algorithm), "<br>".join(linked(BACKWARD[back]) for back in backward_passes(name))


def linked(algorithm: Algorithm) -> str:
    """Return the title as a link to the file; for a pass with a name of its own, with that."""
    own = f"`{algorithm.name}`: " if algorithm.of else ""
    file = algorithm.run.__module__.replace(".", "/")
    return f"{own}[{algorithm.title}]({file}.py)"


def kernels() -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table of kernels, those that the record has a rate of."""
    results = json.loads((ROOT / "figures" / "gpu_bench.json").read_text(encoding="utf-8"))["results"]
    rates: dict[str, dict[str, str]] = {}
    for result in results:
        if all(result[key] == value for key, value in SETTING.items()):
            for timing in result["timings"]:
                if not timing["failed"]:
                    rates.setdefault(timing["name"], {})[result["direction"]] = f"{timing['tflops']:.1f}"
    yield "kernel", "what it is", "source", "forward", "backward"
    yield "---", "---", "---", "--:", "--:"
    about = {name: rung.about for name, rung in ladder().items()} | CONTESTANTS
    for name in [name for name in about if name in rates]:
        files = dict.fromkeys(variant.file for variant in ladder()[name].variants) if name in ladder() else ()
        sources = ", ".join(f"[{file}](../flashsim/gpu/kernels/{file})" for file in files)
        yield f"`{name}`", about[name], sources, *(rates[name].get(way, "–") for way in ("forward", "backward"))


def figures() -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table of figures, which scripts draw."""
    yield "figure", "made by"
    yield "---", "---"
    for script in sorted((ROOT / "scripts").glob("*.py")):
        for name in re.findall(r'^    write_figure\("(\w+)"', script.read_text(encoding="utf-8"), re.MULTILINE):
            what = FIGURES[name].what
            yield f"[{what[0].upper()}{what[1:]}](../figures/{script.stem}.png)", f"`python scripts/{script.name}`"


TABLES: dict[str, dict[str, Callable[[], Iterator[tuple[str, ...]]]]] = {
    "README.md": {"table of algorithms": algorithms},
    "docs/gpu.md": {"table of kernels": kernels},
    "docs/checked.md": {"table of figures": figures},
}

if __name__ == "__main__":
    run_script(main)

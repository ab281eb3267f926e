"""Write the tables of README.md and docs/ that come from records: between their own markers, and
nowhere else.

# from the records of algorithms, closed forms and kernels, and from figures/
python scripts/docs_tables.py
"""

import argparse
import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import devices_pictures

from flashsim import theory
from flashsim.algorithms import BACKWARD, FORWARD, Algorithm, backward_passes
from flashsim.analysis import verify
from flashsim.gpu.hopper import Tiles
from flashsim.gpu.rungs import ladder
from flashsim.support.entry import run_script
from flashsim.support.files import write_whole
from flashsim.theory import SYMBOLS

ROOT = Path(__file__).resolve().parents[1]
SETTING = {"N": 2048, "d": 64, "causal": False, "dropout_p": 0.0}
CONTESTANTS = {
    "torch_unfused": "attention written in PyTorch, unfused",
    "torch_math": "PyTorch's own unfused attention",
    "torch_flash": "PyTorch's FlashAttention-2",
    "torch_cudnn": "PyTorch's cuDNN",
    "fa3": "FlashAttention-3",
    "fa4": "FlashAttention-4",
}


def main() -> None:
    """Write the tables and print what has changed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    for page in TABLES:
        before = (ROOT / page).read_text(encoding="utf-8")
        after = written(page, before)
        write_whole(ROOT / page, after)
        print(f"{page}: " + ("unchanged" if after == before else "written"))


def written(page: str, text: str) -> str:
    """Return a page's text with its tables made anew. Raises ValueError where a marker is not
    there exactly once.
    """
    for name, rows in TABLES[page].items():
        start = f"<!-- {name} -->\n"
        end = f"<!-- end of {name} -->"
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
        yield (
            f"`{name}`",
            linked(algorithm),
            "<br>".join(linked(BACKWARD[back]) for back in backward_passes(name)),
        )


def linked(algorithm: Algorithm) -> str:
    """Return the title as a link to the file; for a pass with a name of its own, with that."""
    own = f"`{algorithm.name}`: " if algorithm.of else ""
    file = algorithm.home.replace(".", "/")
    return f"{own}[{algorithm.title}]({file}.py)"


def kernels() -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table of kernels, those that the record has a rate of."""
    results = json.loads((ROOT / "figures" / "gpu_bench.json").read_text(encoding="utf-8"))[
        "results"
    ]
    rates: dict[str, dict[str, str]] = {}
    for result in results:
        if all(result[key] == value for key, value in SETTING.items()):
            for timing in result["timings"]:
                if not timing["failed"]:
                    rates.setdefault(timing["name"], {})[result["direction"]] = (
                        f"{timing['tflops']:.1f}"
                    )
    yield "kernel", "what it is", "source", "forward", "backward"
    yield "---", "---", "---", "--:", "--:"
    about = {name: rung.about for name, rung in ladder().items()} | CONTESTANTS
    for name in [name for name in about if name in rates]:
        files = (
            dict.fromkeys(variant.file for variant in ladder()[name].variants)
            if name in ladder()
            else ()
        )
        sources = ", ".join(f"[{file}](../flashsim/gpu/kernels/{file})" for file in files)
        yield (
            f"`{name}`",
            about[name],
            sources,
            *(rates[name].get(way, "–") for way in ("forward", "backward")),
        )


def steps() -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table of `hopper`'s ideas, in the words of Tiles' docstring, from
    the rung before to the peers.
    """
    records = [
        json.loads((ROOT / "figures" / f"gpu_ladder{of}.json").read_text(encoding="utf-8"))
        for of in ("", "_causal")
    ]
    rates = [
        {step["name"]: f"{step['tflops']:.0f}" for step in record["steps"]} for record in records
    ]
    # an entry is a name and its words; a line that is indented further goes on with them
    entries = re.findall(r"^(\w+)  +(.*(?:\n .*)*)$", inspect.getdoc(Tiles) or "", re.MULTILINE)
    text = {name: " ".join(words.split()) for name, words in entries}
    about = (
        {name: rung.about for name, rung in ladder().items()}
        | CONTESTANTS
        | {"hopper, plain": "wgmma and TMA"}
    )
    about |= {
        name: text[idea]
        for name in rates[0]
        for idea in [name.removeprefix("hopper, + ")]
        if idea != name
    }
    yield (
        "step",
        "what it is",
        *(f"N = {r['setting']['N']:,}{', causal' * r['setting']['causal']}" for r in records),
    )
    yield "---", "---", "--:", "--:"
    for name in (
        "tensor_core",
        *(name for name in rates[0] if name.startswith("hopper,")),
        "fa4",
        "torch_cudnn",
    ):
        yield f"`{name}`", about[name], *(rate[name] for rate in rates)


def constants() -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table of attention's constants: what their functions say, and what
    they return at d = 64.
    """
    yield "accesses of", "are between c₁ and c₂ times", "c₁", "c₂"
    yield "---", "---", "--:", "--:"
    for name in theory.__all__:
        if name.endswith("_constants") and not name.startswith("kernel_product"):
            function = getattr(theory, name)
            first_paragraph = (inspect.getdoc(function) or "").partition("\n\n")[0]
            result = re.fullmatch(
                r"Return c₁ ≤ accesses / \((.*?)\) ≤ c₂ for (.*)\.",
                " ".join(first_paragraph.split()),
            )
            if result is None:
                raise ValueError(
                    f"theory.{name}: expected a docstring of 'Return c₁ ≤ accesses / (…) ≤ c₂ for "
                    "….'"
                )
            takes = inspect.signature(function).parameters
            for direction in ("forward", "backward") if "direction" in takes else ("",):
                inputs = {"d": 64} if "d" in takes else {}
                values = function(**inputs, **({"direction": direction} if direction else {}))
                which = result[2].replace(",", f", {direction},", 1) if direction else result[2]
                yield f"{which}: `{name}`", result[1], *(f"{value:.4g}" for value in values)


def meanings() -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table of the forms' symbols."""
    yield "symbol", "meaning"
    yield "---", "---"
    yield from SYMBOLS.items()


def referee() -> Iterator[tuple[str, ...]]:
    """Yield the rows of the comparison with AccelForge, by front, from figures/referee.json."""
    yield (
        "N, d",
        "points",
        "fewer here",
        "at most 1.02 times",
        "with a statistic's room more",
        "here ÷ AccelForge",
    )
    yield "---", "--:", "--:", "--:", "--:", "--:"
    rows = json.loads((ROOT / "figures" / "referee.json").read_text(encoding="utf-8"))["rows"]
    fronts: dict[tuple[int, int, str], list[dict[str, Any]]] = {}
    for row in rows:
        fronts.setdefault((row["N"], row["d"], row["direction"]), []).append(row)
    for (N, d, direction), points in fronts.items():
        ratios = [row["ours"] / row["accesses"] for row in points if row["ours"]]
        near, fewer = (sum(ratio <= most for ratio in ratios) for most in (1.02, 1 - 1e-9))
        granted = sum(0 < row["more"] <= row["statistic"] for row in points)
        of = "" if direction == "forward" else ", backward"
        yield (
            f"{N:,}, {d}{of}",
            f"{len(points)}",
            f"{fewer}",
            f"{near}",
            f"{near + granted}",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
        )


def several_gpus() -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table of several GPUs: ms of one, and how many times as fast others
    are.
    """
    record = json.loads((ROOT / "figures" / "devices_gpu.json").read_text(encoding="utf-8"))
    others = {
        "ring": "ring",
        "ring, no overlap": "no overlap",
        "ring, no graph": "no graph",
        "ulysses": "Ulysses",
        "context_parallel, allgather": "`context_parallel`",
    }
    yield "pass", "N", "one GPU, ms", *others.values()
    yield "---", *["--:"] * (2 + len(others))
    for direction, causal in devices_pictures.CASES:
        for result in devices_pictures.results_of(record, direction, causal):
            if result["N"].bit_count() == 1:
                ratios = (
                    f"{devices_pictures.times_one(result, name):.2f}"
                    if name in result["ms"]
                    else "–"
                    for name in others
                )
                which = f"{direction}{', causal' * causal}"
                yield (
                    which,
                    f"{result['N']:,}",
                    f"{devices_pictures.median(result, 'one GPU'):.3f}",
                    *ratios,
                )


def claims() -> Iterator[tuple[str, ...]]:
    """Yield the rows of what serving moves, as `flashsim verify` finds it."""
    yield "who says so", "claim", "tried", "found"
    yield "---", "---", "---", "---"
    for claim in verify.run(
        [
            check
            for check in verify.checks()
            if check.__module__ == "flashsim.analysis.verify.serving"
        ]
    ):
        yield claim.source, " ".join(claim.claim.split()), claim.tried, claim.measured


TABLES: dict[str, dict[str, Callable[[], Iterator[tuple[str, ...]]]]] = {
    "README.md": {"table of algorithms": algorithms},
    "docs/devices.md": {"table of several GPUs": several_gpus},
    "docs/gpu.md": {"table of kernels": kernels, "table of steps": steps},
    "docs/prove.md": {"table of the referee": referee},
    "docs/serving.md": {"table of claims": claims},
    "docs/theory.md": {"table of constants": constants, "table of their symbols": meanings},
}

if __name__ == "__main__":
    run_script(main)

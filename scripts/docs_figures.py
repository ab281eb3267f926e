"""Write docs/figures.md: every picture of figures/, what it shows, and the commands that made it, from the records.

python scripts/docs_figures.py

What it shows is said by its `Chart`, or where another page shows it, or by the function that draws it; the commands are those of
its JSON, and of the script that draws it.
"""

from __future__ import annotations

import argparse
import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flashsim.plots import FIGURES
from flashsim.support.entry import run_script
from flashsim.support.files import write_whole

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "figures.md"
INTRODUCTION = """# Which figures are there?

`flashsim plot` draws most of them at sizes of your own. Below each are the commands that made it; its numbers are beside it, as
JSON of the same name. `python scripts/docs_figures.py` writes this page.
"""


def main() -> None:
    """Write the page, and say so."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    write_whole(PAGE, page())
    print(PAGE.relative_to(ROOT))


def page() -> str:
    """Return the page's text. Raises ValueError for a picture of which there is no record."""
    pictures = sorted([*(ROOT / "figures").glob("*.png"), *(ROOT / "figures").glob("*.gif")])
    return INTRODUCTION + "".join(f"{line}\n" for picture in pictures for line in shown(picture))


def shown(picture: Path) -> Iterator[str]:
    """Yield the lines of a picture. Raises ValueError where nothing says what it shows, or how it was made."""
    script = script_of(picture.stem)
    drawn = script.read_text(encoding="utf-8") if script else ""
    chart = re.findall(r'^    write_figure\("(\w+)"', drawn, re.MULTILINE)
    what = FIGURES[chart[0]].what if chart else _alt(picture.name) or _drawn_by(script, picture.stem)
    made = list(commands(picture, script))
    if not what or not made:
        raise ValueError(f"{picture.name}: expected a record that says what it shows and a command that makes it")
    title = what[0].upper() + what[1:]
    yield from ("", f"## {title}", "", f"![{title}](../figures/{picture.name})", "")
    yield from ("```sh", *made, "```")


def commands(picture: Path, script: Path | None) -> Iterator[str]:
    """Yield the commands of the picture's JSON, or of the record it is drawn from, and then that of the script which draws it."""
    drawn_from = next((name for name, plots in _given(script).items() if picture.stem in plots), picture.stem)
    record = picture.with_name(f"{drawn_from}.json")
    if record.exists():
        kept = json.loads(record.read_text(encoding="utf-8"))["command"]
        yield from [kept] if isinstance(kept, str) else kept
        if script and script.name == "gpu_figures.py":
            yield f"python scripts/{script.name} --record figures/{record.name}"
    elif script:
        yield f"python scripts/{script.name}"
    else:
        said = (ROOT / "README.md").read_text(encoding="utf-8")
        yield from re.findall(rf"`(flashsim .* -o figures/{picture.name})`", said)


def script_of(stem: str) -> Path | None:
    """Return the script that draws figures/`stem`."""
    own = ROOT / "scripts" / f"{stem}.py"
    scripts = sorted((ROOT / "scripts").glob("*.py"))
    texts = {path: path.read_text(encoding="utf-8") for path in scripts if path.name != Path(__file__).name}
    says = rf'"{stem}": plot_', rf"figures/{stem}\b"
    named = [path for wanted in says for path, text in texts.items() if re.search(wanted, text)]
    return own if own.exists() else next(iter(named), None)


def _given(script: Path | None) -> dict[str, dict[str, Any]]:
    """Return, by record, what a script of several pictures draws them with."""
    given: dict[str, dict[str, Any]] = runpy.run_path(str(script)).get("DRAWN", {}) if script else {}
    return given


def _drawn_by(script: Path | None, stem: str) -> str:
    """Return the first sentence of the function that draws it, where the script has that function."""
    plots = {name: plot for pictures in _given(script).values() for name, plot in pictures.items()}
    plot = plots.get(stem) or (runpy.run_path(str(script)).get(f"plot_{stem}") if script else None)
    told = re.match(r"Draw (.*?)\.(\s|$)", plot.__doc__ or "", re.DOTALL) if plot else None
    return " ".join(told[1].split()) if told else ""


def _alt(name: str) -> str:
    """Return what a page says of the picture where it shows it."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        found = re.search(rf"!\[([^]]*)\]\([./]*figures/{re.escape(name)}\)", path.read_text(encoding="utf-8"))
        if found and path != PAGE:
            return found[1]
    return ""


if __name__ == "__main__":
    run_script(main)

"""The pages that people read, README and docs/, as tests take them apart."""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
OWN = ROOT / "docs" / "own.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def said(name: str) -> str:
    """Return the words of a page, the ends of lines no matter."""
    return " ".join(text_of(ROOT / name).split())


def blocks(page: Path, language: str) -> list[str]:
    """Return a page's blocks of code in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)]+)\)", text)


def pictures(text: str) -> list[tuple[str, str]]:
    """Return the pictures of a page: what everybody sees, and what a phone sees in its place, if
    that is another.
    """
    output = re.findall(
        r'!\[[^\]]*\]\(([^)]+)\)|(?:<source media="\(max-width[^"]*" srcset="([^"]+)">)?<img src="([^"]+)"',
        text,
    )
    return [(plain or desk, phone) for plain, phone, desk in output]


def table(page: str, name: str) -> list[list[str]]:
    """Return the cells of a table between markers, its head left out."""
    inside = (
        text_of(ROOT / page)
        .partition(f"<!-- {name} -->\n")[2]
        .partition(f"<!-- end of {name} -->")[0]
    )
    rows = inside.splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def listing(text: str) -> dict[int, str]:
    """Return the lines of a listing in a file, by number. A line that is too long for the file goes
    on in the next, further indented.
    """
    lines = re.findall(r"^[/ ]{4,9}(\d+) +(.*(?:\n {7,}(?!\d).+)*)$", text, re.MULTILINE)
    return {int(number): " ".join(line.split()) for number, line in lines}


def paragraphs(text: str) -> list[str]:
    """Return a page's paragraphs, without blocks of code; an item of a list is one, and a row of
    a table.
    """
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.split(r"\n\s*\n|\n(?=\s*(?:[*|-]|\d+\.) )", prose)


def has_numbers(parts: Iterable[str], text: str, about: str = "") -> bool:
    """Say whether one of these paragraphs has all numbers of a text, in whatever words and order.

    `about` is a text that the paragraph must have too. Raises AssertionError where more than one
    paragraph fits: if the numbers of the one that is meant became wrong, another would still fit,
    and the test would not see it.
    """
    numbers = _numbers(text)
    assert numbers, f"no number in {text!r}"
    fitting = [part for part in parts if about in part and numbers <= _numbers(part)]
    assert len(fitting) <= 1, (
        f"{text!r} fits {len(fitting)} paragraphs: say by `about` which one is meant"
    )
    return bool(fitting)


def _numbers(text: str) -> Counter[str]:
    return Counter(
        number.replace(",", "")
        for number in re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?", text)
    )

"""The gallery's files: the lessons' pages, the index, which alone knows their order, and a README for code hosts."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import replace

from flashsim.learn import playground
from flashsim.learn.gallery.lessons import pages
from flashsim.learn.gallery.page import Page
from flashsim.tracing.page import filled, policy, read
from flashsim.tracing.typeset import typeset

INTRODUCTION = (
    "Each page plays a recorded run of one algorithm: line by line, forwards and backwards, with all numbers. ← and → step, "
    "↑ and ↓ go tile by tile, space plays; now and then a page asks what will happen. Read them in order. The pages need no "
    "network and load nothing. The links below each text open a page at a step; `&panel=tiles` after it shows the picture "
    "alone, as a slide."
)


def index(made: list[Page]) -> str:
    """Return the index as a page. Its script leads from a lesson to the one before or after."""
    style = read("index.css", "flashsim.learn.gallery") + read("typeset.css")
    script = read("index.js", "flashsim.learn.gallery")
    parts = {
        "style": style,
        "script": script,
        "policy": policy(style, script),
        "introduction": typeset(INTRODUCTION),
        "contents": "\n".join(_entry(number, page) for number, page in enumerate(made, 1)),
        "articles": "\n".join(map(_article, made)),
    }
    return filled(read("index.html", "flashsim.learn.gallery"), parts)


def _entry(number: int, page: Page) -> str:
    title = f'{number}. <a href="{page.name}.html">{html.escape(page.title)}</a>, about {page.lesson.minutes} min'
    about = f'{typeset(page.about)} <a href="#{page.name}">What to look for</a>'
    return f'<li>{page.picture}<span>{title}<br><span class="faint">{about}</span></span></li>'


def _article(page: Page) -> str:
    file = f"{page.name}.html"
    return f"""<article id="{page.name}">
<h2><a href="{file}">{html.escape(page.title)}</a></h2>
<p class="about">{typeset(page.about)} <span class="size">{page.size}</span></p>
{page.lesson.html(file)}
<details><summary class="faint">How to make it</summary><pre>{html.escape(page.made_by)}</pre></details>
</article>"""


README = """# Lessons

Pages that play a recorded run, each with a text on what to look for. A code host shows their source; to see them,
run `flashsim lessons --open`, or clone the repository and open `figures/gallery/index.html` in a browser (from 2023 or later).
They need no network.

The index lists the lessons in the order in which to read them, with what each shows and how it is made.
[The playground](playground.html) has sliders for lengths, d, M and block sizes (`flashsim playground` writes it).
"""

OURS = {
    "README.md": "Pages that play a recorded run",
    "index.html": "<title>FlashAttention, step by step: lessons</title>",
}
"""Of the files whose names other folders have too, the words by which ours are known again."""


def files(names: list[str] | None = None) -> Iterator[tuple[str, str]]:
    """Yield (file name, content) of the lessons with these names, each alone, or of all of them and the index."""
    made = [replace(page, alone=bool(names)) for name, page in pages().items() if not names or name in names]
    for page in made:
        yield f"{page.name}.html", page.html
    if not names:
        yield "playground.html", playground.page()
        yield "index.html", index(made)
        yield "README.md", README

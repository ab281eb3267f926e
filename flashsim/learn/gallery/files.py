"""The gallery's files: the lessons' pages, an index, and a README for code hosts, which show no HTML."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import replace

from flashsim.learn import playground
from flashsim.learn.gallery.lessons import pages
from flashsim.learn.gallery.page import Page
from flashsim.tracing import Place
from flashsim.tracing.page import filled, policy, read
from flashsim.tracing.typeset import typeset


def placed(found: list[Page]) -> list[Page]:
    """Return the lessons with their places among all of these."""

    def way(at: int) -> tuple[str, str] | None:
        return (f"{found[at].name}.html", found[at].title) if 0 <= at < len(found) else None

    places = (Place(at + 1, len(found), way(at - 1), way(at + 1)) for at in range(len(found)))
    return [replace(page, place=place) for page, place in zip(found, places, strict=True)]


INTRODUCTION = (
    "Each page plays a recorded run of one algorithm: line by line, forwards and backwards, with all numbers. ← and → step, "
    "↑ and ↓ go tile by tile, space plays; now and then a page asks what will happen. Read them in order. The pages need no "
    "network and load nothing. The links below each text open a page at a step; `&panel=tiles` after it shows the picture "
    "alone, as a slide."
)


def index(made: list[Page]) -> str:
    """Return the index as a page without scripts."""
    style = read("index.css", "flashsim.learn.gallery") + read("typeset.css")
    parts = {
        "style": style,
        "policy": policy(style),
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


def readme(made: list[Page]) -> str:
    """Return the same as Markdown, for a code host, which shows no HTML."""
    rows = "\n".join(
        f"| {n} | [{page.title}]({page.name}.html) | {page.about} | {page.lesson.minutes} min | {page.size} |"
        for n, page in enumerate(made, 1)
    )
    commands = "\n".join(f"{page.command} -o {page.name}.html" for page in made if page.command)
    python = "\n```\n\n```python\n".join(
        f'{page.made_by}\ntrace.save("{page.name}.html"{", versus=versus" * (len(page.traces) - 1)})'
        for page in made
        if not page.command
    )
    return f"""# Lessons

Pages that play a recorded run, each with a text on what to look for. A code host shows their source; to see them,
run `flashsim lessons --open`, or clone the repository and open `figures/gallery/index.html` in a browser (from 2023 or later).
They need no network.

| | lesson | what it shows | takes | size |
|--:|---|---|--:|--:|
{rows}

[The playground](playground.html) has sliders for lengths, d, M and block sizes (`flashsim playground` writes it).

`flashsim lessons` makes them all. Without their texts, these commands make the same pages; `--open` in place of
`-o …` opens them:

```sh
{commands}
```

and this Python the others:

```python
{python}
```
"""


OURS = {
    "README.md": "Pages that play a recorded run",
    "index.html": "<title>FlashAttention, step by step: lessons</title>",
}
"""Of the files whose names other folders have too, the words by which ours are known again."""


def files(names: list[str] | None = None) -> Iterator[tuple[str, str]]:
    """Yield (file name, content) of the lessons with these names, each alone, or of all of them and the index."""
    made = placed([*pages().values()]) if not names else [replace(pages()[name]) for name in pages() if name in names]
    for page in made:
        yield f"{page.name}.html", page.html
    if not names:
        yield "playground.html", playground.page()
        yield "index.html", index(made)
        yield "README.md", readme(made)

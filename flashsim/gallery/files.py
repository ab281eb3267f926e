"""The gallery's files: the lessons' pages, an index, and a README for code hosts, which show no HTML."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from flashsim import playground
from flashsim.gallery.lessons import pages
from flashsim.gallery.page import Page
from flashsim.gallery.thumbnail import thumbnail
from flashsim.tracing import Lesson, Place, Trace
from flashsim.tracing.page import filled, policy, read
from flashsim.tracing.typeset import typeset


@dataclass(frozen=True)
class Made:
    """A lesson as it is: its name, the page in the gallery, and what is shown there."""

    name: str
    page: Page
    lesson: Lesson
    traces: tuple[Trace, ...]

    @cached_property
    def html(self) -> str:
        """The page."""
        return self.traces[0].html(versus=self.traces[1] if len(self.traces) > 1 else None, lesson=self.lesson)

    @property
    def picture(self) -> str:
        """A small picture, at the moment in the middle."""
        moments = self.lesson.moments
        return thumbnail(self.traces[0], self.traces[0].steps[moments[len(moments) // 2].step])

    @property
    def size(self) -> str:
        """The page's size, in words."""
        return f"{len(self.html.encode('utf-8')) / 1000:,.0f} kB"


def placed(made: list[Made]) -> list[Made]:
    """Return the lessons with their places among all of these."""

    def way(at: int) -> tuple[str, str] | None:
        return (f"{made[at].name}.html", made[at].page.title) if 0 <= at < len(made) else None

    found = []
    for at, one in enumerate(made):
        place = Place(at + 1, len(made), way(at - 1), way(at + 1))
        found.append(replace(one, lesson=replace(one.lesson, place=place)))
    return found


INTRODUCTION = (
    "Each page plays a recorded run of one algorithm: line by line, forwards and backwards, with all numbers. ← and → step, "
    "↑ and ↓ go tile by tile, space plays; now and then a page asks what will happen. Read them in order. The pages need no "
    "network and load nothing. The links below each text open a page at a step; `&panel=tiles` after it shows the picture "
    "alone, as a slide."
)


def index(made: list[Made]) -> str:
    """Return the index as a page without scripts."""
    style = read("index.css", "flashsim.gallery") + read("typeset.css")
    parts = {
        "style": style,
        "policy": policy(style),
        "introduction": typeset(INTRODUCTION),
        "contents": "\n".join(_entry(number, one) for number, one in enumerate(made, 1)),
        "articles": "\n".join(map(_article, made)),
    }
    return filled(read("index.html", "flashsim.gallery"), parts)


def _entry(number: int, made: Made) -> str:
    title = (
        f'{number}. <a href="{made.name}.html">{html.escape(made.lesson.title)}</a>, about {made.lesson.minutes} min'
    )
    about = f'{typeset(made.page.about)} <a href="#{made.name}">What to look for</a>'
    return f'<li>{made.picture}<span>{title}<br><span class="faint">{about}</span></span></li>'


def _article(made: Made) -> str:
    file = f"{made.name}.html"
    return f"""<article id="{made.name}">
<h2><a href="{file}">{html.escape(made.lesson.title)}</a></h2>
<p class="about">{typeset(made.page.about)} <span class="size">{made.size}</span></p>
{made.lesson.html(file)}
<details><summary class="faint">How to make it</summary><pre>{html.escape(made.page.made_by)}</pre></details>
</article>"""


def readme(made: list[Made]) -> str:
    """Return the same as Markdown, for a code host, which shows no HTML."""
    rows = "\n".join(
        f"| {n} | [{m.lesson.title}]({m.name}.html) | {m.page.about} | {m.lesson.minutes} min | {m.size} |"
        for n, m in enumerate(made, 1)
    )
    commands = "\n".join(f"{m.page.command} -o {m.name}.html" for m in made if m.page.command)
    python = "\n```\n\n```python\n".join(
        f'{m.page.made_by}\ntrace.save("{m.name}.html"{", versus=versus" * (len(m.traces) - 1)})'
        for m in made
        if not m.page.command
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
    chosen = {name: (page, page.traces()) for name, page in pages().items() if not names or name in names}
    made = [Made(name, page, page.lesson(*traces), traces) for name, (page, traces) in chosen.items()]
    made = made if names else placed(made)
    for one in made:
        yield f"{one.name}.html", one.html
    if not names:
        yield "playground.html", playground.page()
        yield "index.html", index(made)
        yield "README.md", readme(made)

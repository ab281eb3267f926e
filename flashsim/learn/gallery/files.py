"""The gallery's files: the lessons' pages, the playground, and the index. Only the index knows the
order of the lessons.
"""

import html
from collections.abc import Iterator
from dataclasses import replace

from flashsim.learn import playground
from flashsim.learn.gallery.lessons import pages
from flashsim.learn.gallery.page import Page
from flashsim.tracing.page import fill, policy, read
from flashsim.tracing.typeset import typeset

INTRODUCTION = (
    "Each page plays a recorded run of one algorithm: line by line, forwards and backwards, with "
    "all numbers. ← and → step, "
    "↑ and ↓ go tile by tile, space plays; now and then a page asks what will happen. Read them in "
    "order. The pages need no "
    "network and load nothing. The links below each text open a page at a step; `&panel=tiles` "
    "after it shows the picture "
    "alone, as a slide."
)


def index(lessons: list[Page]) -> str:
    """Return the index as a page. Its script leads from a lesson to the previous and the next."""
    style = read("index.css", "flashsim.learn.gallery") + read("typeset.css")
    script = '"use strict";\n' + read("magnify.js") + read("index.js", "flashsim.learn.gallery")
    parts = {
        "style": style,
        "script": script,
        "policy": policy(style, script),
        "introduction": typeset(INTRODUCTION),
        "lessons": "\n".join(_entry(number, page) for number, page in enumerate(lessons, 1)),
    }
    return fill(read("index.html", "flashsim.learn.gallery"), parts)


def _entry(number: int, page: Page) -> str:
    file = f"{page.name}.html"
    minutes = page.lesson.minutes
    return f"""<li>{page.picture}<article id="{page.name}">
<h2>{number}. <a href="{file}">{html.escape(page.title)}</a></h2>
<p class="about">{typeset(page.about)} About {minutes} min, <span class="size">{page.size}</span>.</p>
<details><summary class="faint">What to look for</summary>
{page.lesson.html(file)}
<details><summary class="faint">How to make it</summary><pre>{html.escape(page.made_by)}</pre></details>
</details>
</article></li>"""


TITLE = "<title>FlashAttention, step by step: lessons</title>"
"""A part of our index.html that no other file of that name has."""


def files(names: list[str] | None = None) -> Iterator[tuple[str, str]]:
    """Yield (file name, content) of the lessons with these names, each alone; without names, of
    all lessons, the playground and the index.
    """
    if names:
        for name, page in pages().items():
            if name in names:
                yield f"{name}.html", replace(page, alone=True).html
        return
    lessons = [*pages().values()]
    for page in lessons:
        yield f"{page.name}.html", page.html
    yield "playground.html", playground.page()
    yield "index.html", index(lessons)

"""The lessons on the site: their pages, and a card for each, with a player to open."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from flashsim.learn import gallery
from flashsim.support.files import write_whole
from flashsim.tracing.typeset import typeset

LIST = "docs/lessons"
PLAYER = """<details ontoggle="if (this.open) this.lastChild.src ||= this.lastChild.dataset.src"><summary>{0}</summary>\
<iframe data-src="{1}" title="{2}"></iframe></details>"""  # loaded when it is opened


def add(app: Any, docname: str, source: list[str]) -> None:
    """Add the cards to the page that says how to open lessons."""
    if docname == LIST:
        app.env.note_reread()  # no file of it says that a lesson has changed
        messages = "A title opens its page at full size; _Play it here_ opens it on this page."
        source[0] += "\n".join(["", messages, "", *cards(), ""])


def cards() -> list[str]:
    """Return a card for each lesson, with its thumbnail, title and time, and one for the
    playground.
    """
    made = []
    for number, (name, page) in enumerate(gallery.pages().items(), 1):
        file = f"../lessons/{name}.html"
        title = html.escape(page.title)
        made.append(
            f'<section class="lesson" id="{name}"><a href="{file}" aria-hidden="true" '
            f'tabindex="-1">{page.picture}</a>'
            f'<div><p class="title"><a href="{file}">{number}. {title}</a>, about '
            f"{page.lesson.minutes} min</p>"
            f'<p>{typeset(page.about)} <a href="../lessons/index.html#{name}">What to look '
            "for</a></p></div>" + PLAYER.format("Play it here", file, title) + "</section>"
        )
    playground = PLAYER.format(
        "Sizes of your own: the playground", "../lessons/playground.html", "Playground"
    )
    return [*made, f'<section class="lesson">{playground}</section>']


def write(app: Any, error: Exception | None) -> None:
    """Write the lessons' pages, and the playground, among the site's."""
    if error is None and app.builder.name == "html" and LIST in app.env.all_docs:
        folder = Path(app.outdir) / "lessons"
        folder.mkdir(exist_ok=True)
        for name, content in gallery.files():
            write_whole(folder / name, content)


def setup(app: Any) -> dict[str, Any]:
    """Join Sphinx."""
    app.connect("source-read", add)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""`Trace`: a recorded run, with all that can be made of it."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path

from flashsim.support.files import path_of, write_whole
from flashsim.tracing.lesson import Lesson
from flashsim.tracing.page import page_of
from flashsim.tracing.steps import Recording
from flashsim.tracing.writing import as_json, zipped


@dataclass(frozen=True, repr=False)
class Trace(Recording):
    """A recorded run of one head: `events`, and `steps` to go through them.

    `save(path)` writes it in the format that the suffix says: .html, the player; .json.gz, which
    `flashsim.load_trace` reads.
    """

    def save(
        self, path: str | Path, *, versus: Trace | None = None, lesson: Lesson | None = None
    ) -> Path:
        """Write the trace; return the path. `versus` is a second trace for the page's compare mode,
        `lesson` its text.

        Raises ValueError for any suffix but .html and .json.gz.
        """
        path = check_suffix(
            path, "the comparison of two" if versus else "a lesson" if lesson else ""
        )
        if path.name.endswith(".html"):
            return write_whole(path, self.html(versus=versus, lesson=lesson))
        return write_whole(path, zipped(as_json(self)))

    def html(self, *, versus: Trace | None = None, lesson: Lesson | None = None) -> str:
        """Return the player as one self-contained page. It drops values where there are more than
        it can take.

        Raises ValueError for a lesson on a step that the trace does not have.
        """
        return page_of(self, versus, lesson)[0]

    def __repr__(self) -> str:
        about = self.about
        blocks = self.about.blocks
        sizes = f"{about.shape}, blocks {blocks.B_r} × {blocks.B_c}"
        return (
            f"Trace({about.algorithm!r}, {about.direction}: {len(self.events):,} events, {sizes})"
        )

    def _repr_html_(self) -> str:
        """Return the player in a frame that may run its script and save pictures; a notebook
        that is not trusted drops it.
        """
        page = html.escape(self.html(), quote=True)
        title = html.escape(f"Step player: {self.about.title}", quote=True)
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" srcdoc="{page}" title="{title}" '
            f'style="width:100%;height:720px;border:1px solid #8888">{title}. It needs its script: '
            "run this cell, or trust the notebook.</iframe>"
        )


def check_suffix(path: str | Path, only_as_a_page: str = "") -> Path:
    """Return the path if its suffix says a trace's format: .html for what is `only_as_a_page`.
    Else raise ValueError.
    """
    path = path_of(path)
    if only_as_a_page and path.suffix != ".html":
        raise ValueError(f"{path.name} holds one trace; {only_as_a_page} is a page: expected .html")
    if not path.name.endswith((".html", ".json.gz")):
        raise ValueError(
            f"{path.name} has no suffix that says a trace's format; expected .html or .json.gz"
        )
    return path

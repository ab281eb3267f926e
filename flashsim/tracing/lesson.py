"""What a page says above its player: what the run shows, and which of its steps to look at."""

from __future__ import annotations

import html
from dataclasses import dataclass

from flashsim.tracing.typeset import typeset


@dataclass(frozen=True)
class Moment:
    """A step to look at: its number, what kind of event it is in a word or two, and what there is to see."""

    step: int
    event: str
    words: str


@dataclass(frozen=True)
class Lesson:
    """A title, a text of paragraphs, with an empty line between them, and moments in order of their steps.

    In the text and in the moments' words symbols are set as in the listing: S_ij, m_i^new, e^{−3}. `code` is set as code.
    """

    title: str
    text: str
    moments: tuple[Moment, ...] = ()

    def html(self, page: str = "") -> str:
        """Return paragraphs and links as HTML; the links are to `page`, by default the one they are in."""
        paragraphs = "\n".join(f"<p>{typeset(' '.join(part.split()))}</p>" for part in self.text.strip().split("\n\n"))
        links = "\n".join(
            f'<li><a href="{html.escape(page)}#t={moment.step}" data-event="{html.escape(moment.event)}">'
            f"Step {moment.step:,}</a>, {typeset(moment.event)}: <span>{typeset(moment.words)}</span></li>"
            for moment in self.moments
        )
        return f'{paragraphs}\n<ul class="moments">\n{links}\n</ul>' if links else paragraphs

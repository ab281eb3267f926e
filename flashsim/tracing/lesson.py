"""What a page says above its player: what the run shows, which of its steps to look at, and what
it asks on the way.
"""

import html
import math
from dataclasses import dataclass

from flashsim.tracing.typeset import typeset

SHOWN = "<span>{}</span>"
FOLDED = f"<details><summary>the page asks first</summary>{SHOWN}</details>"
LATER = f"<details><summary>after the question</summary>{SHOWN}</details>"


@dataclass(frozen=True)
class Moment:
    """A step to look at: its number, what kind of event it is in a word or two, and what there
    is to see.
    """

    step: int
    event: str
    words: str


@dataclass(frozen=True)
class Stop:
    """A question that is asked before a step is shown: what to guess, the answers to choose
    from, which is right, and why.
    """

    step: int
    asks: str
    choices: tuple[str, ...]
    right: str
    because: str

    def __post_init__(self) -> None:
        """Raise ValueError for a right answer that cannot be chosen."""
        if self.right not in self.choices:
            raise ValueError(
                f"right is {self.right!r}; expected one of the choices, {', '.join(self.choices)}"
            )


@dataclass(frozen=True)
class Lesson:
    """A title, a text of paragraphs, with an empty line between them, and moments in order of their
    steps.

    In all texts symbols are set as in the listing: S_ij, m_i^new, e^{−3}. `code` is set as code.
    `among` is its name among other lessons, whose order is in their index.html alone; "" for one
    that stands alone.
    """

    title: str
    text: str
    moments: tuple[Moment, ...] = ()
    stops: tuple[Stop, ...] = ()
    among: str = ""

    def html(self, page: str = "") -> str:
        """Return paragraphs and links as HTML; the links are to `page`, by default the one they are
        in.

        On another page, which does not ask, what there is to see from the first question on is
        folded; and so are paragraphs that begin with », which the page itself shows once it has
        asked all.
        """
        paragraphs = "\n".join(
            _paragraph(" ".join(part.split()), bool(page))
            for part in self.text.strip().split("\n\n")
        )
        first_question = (
            min((stop.step for stop in self.stops), default=math.inf) if page else math.inf
        )
        links = "\n".join(
            f'<li><a href="{html.escape(page)}#t={moment.step}" '
            f'data-event="{html.escape(moment.event)}">'
            f"Step {moment.step:,}</a>, {typeset(moment.event)}: "
            f"{self._shown(moment, first_question).format(typeset(moment.words))}</li>"
            for moment in self.moments
        )
        return f'{paragraphs}\n<ul class="moments">\n{links}\n</ul>' if links else paragraphs

    def _shown(self, moment: Moment, first_question: float) -> str:
        if moment.step < first_question:
            return SHOWN
        return FOLDED if moment.step in {stop.step for stop in self.stops} else LATER

    @property
    def minutes(self) -> int:
        """About how long it takes: two words a second, half a minute for each moment and each
        question.
        """
        words = len(self.text.split()) + sum(len(moment.words.split()) for moment in self.moments)
        return round(words / 120 + 0.5 * (len(self.moments) + len(self.stops))) or 1

    @property
    def way(self) -> str:
        """The links to the index, and through it to the lessons before and after, as HTML; ""
        for one that stands alone.
        """
        if not self.among:
            return ""
        return (
            f'<nav aria-label="Lessons"><a href="index.html">All lessons</a>'
            f'<a href="index.html#prev={self.among}" rel="prev" aria-label="Previous lesson">← '
            "Previous</a>"
            f'<a href="index.html#next={self.among}" rel="next" aria-label="Next lesson">Next '
            "→</a></nav>"
        )

    @property
    def questions(self) -> str:
        """The stops, as templates that the page's script takes up."""
        return "\n".join(
            f'<template class="stop" data-step="{stop.step}"><p>{typeset(stop.asks)}</p>'
            + "".join(
                f"<button{' data-right' if choice == stop.right else ''}>{typeset(choice)}</button>"
                for choice in stop.choices
            )
            + f"<p>{typeset(stop.because)}</p></template>"
            for stop in self.stops
        )


def _paragraph(text: str, elsewhere: bool) -> str:
    markup = typeset(text.removeprefix("» "))
    if not text.startswith("» "):
        return f"<p>{markup}</p>"
    return LATER.format(markup) if elsewhere else f'<div class="after" hidden><p>{markup}</p></div>'

"""What a page says above its player: what the run shows, and which of its steps to look at."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

SCRIPT = r"[_^](?:\{[^}]*\}|[A-Za-z0-9]+)"
SYMBOL = re.compile(rf"(?<![A-Za-z'’])(QK|PV|d?[A-Za-zℓ]\u0303?)(?![A-Za-z0-9])((?:{SCRIPT})*)|([0-9)])((?:{SCRIPT})+)")
WORDS = {"a", "A", "I", "do"}
UPRIGHT = {"new", "masked", "dropped", "parts"}


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


def typeset(text: str) -> str:
    """Return text as HTML with its symbols in italics, their indices and exponents where these belong, and `code` as code."""
    parts = html.escape(text, quote=False).split("`")
    return "".join(f"<code>{part}</code>" if n % 2 else SYMBOL.sub(_symbol, part) for n, part in enumerate(parts))


def _symbol(found: re.Match[str]) -> str:
    letter, scripts, before, after = found.groups()
    if before:
        return f"{before}{_scripted(after)}"
    if not scripts and letter in WORDS:
        return str(found[0])
    return f'<span class="symbol"><i>{letter}</i>{_scripted(scripts)}</span>'


def _scripted(scripts: str) -> str:
    parts = {"_": "", "^": ""}
    for mark, braced, bare in re.findall(r"([_^])(?:\{([^}]*)\}|([A-Za-z0-9]+))", scripts):
        inside = braced or bare
        if inside in UPRIGHT:
            parts[mark] = inside
        elif inside.isalpha():
            parts[mark] = f"<i>{inside}</i>"
        else:
            parts[mark] = SYMBOL.sub(_symbol, inside)
    below, above = parts["_"] and f"<sub>{parts['_']}</sub>", parts["^"] and f"<sup>{parts['^']}</sup>"
    return f'<span class="ss">{above}{below}</span>' if below and above else below or above

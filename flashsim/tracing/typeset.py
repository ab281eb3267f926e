"""Symbols set as in print, as HTML: S_ij, m_i^new, e^{−3}, and the program's names for them.
Pages get what is made here.
"""

import html
import re
from unicodedata import normalize

SCRIPT = r"[_^](?:\{[^}]*\}|[A-Za-z0-9]+)"
SYMBOL = re.compile(
    rf"(?<![A-Za-z\u0303'’])(QK|PV|d?[A-Za-zℓΣ]\u0303?|[A-Z]\d(?=_)|[a-z]{{2,}}(?=_[ij]\b))(?![A-Za-z0-9\u0303])((?:{SCRIPT})*)|([0-9)])((?:{SCRIPT})+)"
)
WORDS = {"a", "A", "I", "do"}
UPRIGHT = {"new", "masked", "dropped", "drop", "parts"}


def typeset(text: str) -> str:
    """Return text as HTML with its symbols in italics, their indices and exponents where these
    belong, and `code` as code.
    """
    parts = html.escape(normalize("NFD", text), quote=False).split("`")
    return "".join(
        f"<code>{part}</code>" if n % 2 else SYMBOL.sub(_symbol, part)
        for n, part in enumerate(parts)
    )


def named(name: str) -> str:
    """Return a name of the program as HTML: m_tilde_ij as m̃ with index ij."""
    base, *rest = html.escape(normalize("NFD", plain(name)), quote=False).split("_")
    if base == "log" and rest:
        base = f"log {rest.pop(0)}"
    if rest[:1] == ["tilde"]:
        base += "\u0303"
        del rest[0]
    above, below = (
        " ".join(part for part in rest if (part in UPRIGHT) == up) for up in (True, False)
    )
    scripts = _scripted((below and f"_{{{below}}}") + (above and f"^{{{above}}}"))
    return f'<span class="symbol">{_lettered(base)}{scripts}</span>' if scripts else _lettered(base)


def plain(name: str) -> str:
    """Return a name as it is read in plain text: ℓ for l."""
    return re.sub(r"^l(?=[\[_]|$)", "ℓ", name)


def counted(name: str) -> str:
    """Return a block's name as the player and the paper count, from 1: K_1 for K[0]."""
    base, bracket, index = plain(name).partition("[")
    numbers = [part.strip() for part in index.rstrip("]").split(",")]
    if not bracket or not all(part.isdecimal() for part in numbers):
        return plain(name)
    return f"{base}_{', '.join(str(int(part) + 1) for part in numbers)}"


def _symbol(match: re.Match[str]) -> str:
    letter, scripts, before, after = match.groups()
    if before:
        return f"{before}{_scripted(after)}"
    if not scripts and letter in WORDS:
        return str(match[0])
    return f'<span class="symbol">{_lettered(letter)}{_scripted(scripts)}</span>'


def _lettered(letter: str) -> str:
    """Return a letter in italics, with its tilde drawn above it by the page's style: few fonts
    have one that fits.
    """
    if not letter.endswith("\u0303"):
        return re.sub(r"^\w+?(?=\d?$)", r"<i>\g<0></i>", letter)
    before = f"<i>{letter[:-2]}</i>" if letter[:-2] else ""
    return f'{before}<span class="tilde"><i>{letter[-2]}</i></span>'


def _scripted(scripts: str) -> str:
    parts = {"_": "", "^": ""}
    for mark, braced, bare in re.findall(r"([_^])(?:\{([^}]*)\}|([A-Za-z0-9]+))", scripts):
        inside = braced or bare
        if inside in UPRIGHT:
            parts[mark] = inside
        elif re.fullmatch("[A-Za-z]+", inside):
            parts[mark] = f"<i>{inside}</i>"
        else:
            parts[mark] = SYMBOL.sub(_symbol, inside)
    below = parts["_"] and f"<sub>{parts['_']}</sub>"
    above = parts["^"] and f"<sup>{parts['^']}</sup>"
    return f'<span class="ss">{above}{below}</span>' if below and above else below or above

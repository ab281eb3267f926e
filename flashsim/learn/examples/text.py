"""How the examples show numbers: rounded, with a true minus sign."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from flashsim.support.tables import aligned

WIDTH = 80  # of a terminal
CHAPTER = '"FlashAttention: Theory and Practice"'


def number(x: Any, digits: int = 4) -> str:
    """Return x to so many digits after the point, or to one digit where that is exact: 0.7408,
    but 1.0.
    """
    x = float(x)
    if np.isinf(x):
        return "∞" if x > 0 else "−∞"
    return fixed(x, 1 if abs(x - round(x, 1)) < 1e-12 else digits)


def fixed(x: Any, digits: int) -> str:
    """Return x to exactly so many digits after the point; −∞ as such."""
    text = "−∞" if x == -np.inf else f"{float(x):.{digits}f}".replace("-", "−")
    return text[1:] if text.startswith("−") and not text.strip("−0.") else text


def factor(x: Any) -> str:
    """Return x to one digit, as it stands in a product."""
    return bracketed(number(x, 1))


def bracketed(text: str) -> str:
    """Return a number in brackets where it is negative."""
    return f"({text})" if text.startswith("−") else text


def scientific(x: Any, digits: int = 3) -> str:
    """Return x as 2.688e+43, and 0 and infinities as such."""
    if np.isnan(x):
        return "nan"
    if np.isinf(x) or x == 0:
        return str(float(x))
    return f"{float(x):.{digits}e}"


def tiny(x: float) -> str:
    """Return a difference as 1.1e-16, or 0."""
    return f"{x:.1e}" if x else "0"


def vector(v: Iterable[Any], digits: int = 4) -> str:
    """Return [0.7408, 1.0]."""
    return f"[{', '.join(number(x, digits) for x in v)}]"


def table(
    rows: Sequence[Sequence[str]], indent: str = "  ", left: Sequence[int] = (0,), gap: str = "   "
) -> Iterator[str]:
    """Yield lines of aligned columns: those numbered in `left` to the left, the others to the
    right.
    """
    yield from (indent + line for line in aligned(rows, left, gap))


def paragraph(text: str) -> Iterator[str]:
    """Yield the text in lines that fit a terminal, below an empty one."""
    yield ""
    yield from wrapped(text)


def wrapped(text: str, indent: str = "") -> Iterator[str]:
    """Yield the text in lines that fit a terminal."""
    yield from textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )

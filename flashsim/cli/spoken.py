"""Errors of the Python functions, in the words of the command line: --sizing fit for sizing="fit"."""

from __future__ import annotations

import re
from collections.abc import Callable


def _flag(match: re.Match[str]) -> str:
    return f"--{match[0].replace('_', '-')}"


ARGUMENTS = (
    "N|N_q|N_k|d|d_v|M|heads|kv_heads|blocks|sizing|dtype|gqa|seed|scale|mask|window|splits|merge|block_mask|least"
)
SPOKEN: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r'\bsizing="fit"', "--sizing fit"),
    (r"\bShape\(([^()]*)\)", lambda m: m[1].replace("=", " = ")),
    (r"give N, or both N_q and N_k|expected N alone, or N_q and N_k", lambda m: re.sub(r"\bN(_.)?\b", _flag, m[0])),
    (rf"^(argument --[\w-]+: )(?:{ARGUMENTS}) is ", r"\1got "),
    (rf"(?:(?<=^)|(?<=\band ))({ARGUMENTS})(?= is\b)", _flag),
    (r"\bkv_heads(?= = )", _flag),
    (r"(?<=\bno option )\w+", _flag),
    (r", a number, or None$", ", or a number"),
)


def spoken(message: str) -> str:
    """Return an error's message with arguments called as one types them."""
    for pattern, words in SPOKEN:
        message = re.sub(pattern, words, message)
    return message

"""Errors of the Python functions, in the words of the command line: --sizing fit for sizing="fit".

They advise no option that a command does not have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection


def _flag(match: re.Match[str]) -> str:
    return f"--{match[0].replace('_', '-')}"


ARGUMENTS = "N|N_q|N_k|d|d_v|M|heads|kv_heads|blocks|sizing|dtype|gqa|seed|scale|mask|window|splits|merge|block_mask|least|points"
SPOKEN: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"give N, or both N_q and N_k|expected N alone, or N_q and N_k", lambda m: re.sub(r"\bN(_.)?\b", _flag, m[0])),
    (rf"^(argument --[\w-]+: )(?:{ARGUMENTS}) is ", r"\1got "),
    (rf"(?:(?<=^)|(?<=\band ))({ARGUMENTS})(?= (?:is|has)\b)", _flag),
    (r"\bkv_heads(?= = )", _flag),
    (r"(?<=\bno option )\w+", _flag),
    (r"^checks(?= names )", "--check"),
    (r"^expected_failures(?= names )", "--expect"),
    (r"\bno (backward|dropout)(?= was given)", r"no --\1"),
    (r"^unknown bug\b", r"argument --bug: \g<0>"),
    (r", or check_finite=False$", ""),
    (r", a number, or None$", ", or a number"),
)

WAYS = {"--M": "a larger M", "--blocks": "smaller blocks", "--sizing": "--sizing fit in place of --blocks"}
"""To fit into SRAM, by the option that does it."""
ADVICE = re.compile(r' Take a larger M, smaller blocks, or sizing="fit" in place of blocks\.')


def spoken(message: str, flags: Collection[str]) -> str:
    """Return an error's message with arguments called as one types them, where these options can be given."""
    for pattern, words in SPOKEN:
        message = re.sub(pattern, words, message)
    if "--dtype" not in flags:
        message = re.sub(r", or (give|use) a wider dtype$", "", message)
    return ADVICE.sub(_advice([said for flag, said in WAYS.items() if flag in flags]), message)


def _advice(ways: list[str]) -> str:
    if not ways:
        return ""
    *first, last = ways
    return f" Take {', '.join(first)}{',' * (len(first) > 1)}{' or ' if first else ''}{last}."

"""The closed forms as text to read, array by array, for runs without mask and dropout that
compute all tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import CodeType
from typing import Any

from flashsim.attention.arguments import check_blocks_of_run
from flashsim.attention.shapes import Blocks
from flashsim.support.sizes import ceil_div

SYMBOLS = {
    "N_q": "queries",
    "N_k": "keys",
    "d": "width of Q and K",
    "d_v": "width of V and O",
    "T_r": "⌈N_q / B_r⌉",
    "T_c": "⌈N_k / B_c⌉",
    "T_v": "⌈d_v / B_c⌉: blocks of the columns of V",
    "T_d": "⌈d / B_c⌉: blocks of the columns of Q and K",
    "U_c": "⌈N_k / B_r⌉: panels of keys in Algorithm 3",
    "p": "1 if a row fits in SRAM (forward N_k + 2 ≤ M, backward 2 N_k + 1 ≤ M), else 2",
}
"""Those that any form may use; a `Form` says what its own mean."""

NO_NAMES: dict[str, Any] = {"__builtins__": {}}


@dataclass(frozen=True)
class Mean:
    """T_c or T_r if only some tiles are computed: the mean number of computed tiles that a row, or
    a key, is in.

    Only its product with the number of rows, or of keys, is a whole number: that of the rows, or
    columns, of those tiles together.
    """

    total: Any
    number: Any

    def __add__(self, times: int) -> Mean:
        return Mean(self.total + times * self.number, self.number)

    def __mul__(self, number: Any) -> Any:
        if number != self.number:
            raise ValueError("T_c and T_r stand for a mean; expected T_c * N_q, T_r * N_k")
        return self.total

    def __rmul__(self, times: int) -> Mean:
        return Mean(times * self.total, self.number)


def evaluated(formula: str, values: Mapping[str, Any]) -> int:
    """Return the value of a formula. Raises ValueError for text that is not one."""
    try:
        value = eval(_code(formula), NO_NAMES, values)
        if not isinstance(value, int):
            raise TypeError(f"it is {value!r}, no whole number")
        return value
    except Exception as error:
        raise ValueError(
            f"the formula {formula!r}: {error}; expected one in {', '.join(values)}"
        ) from None


@cache
def _code(formula: str) -> CodeType:
    return compile(formula, "<formula>", "eval")


def common_symbols(
    N_q: int, N_k: int, d: int, d_v: int, M: int, blocks: Blocks, direction: str
) -> dict[str, int]:
    """Return the value of the symbols that all algorithms share."""
    check_blocks_of_run(blocks)
    row = N_k + 2 if direction == "forward" else 2 * N_k + 1
    return {
        "N_q": N_q,
        "N_k": N_k,
        "d": d,
        "d_v": d_v,
        "T_r": blocks.T_r,
        "T_c": blocks.T_c,
        "T_v": ceil_div(d_v, blocks.B_c),
        "T_d": ceil_div(d, blocks.B_c),
        "U_c": ceil_div(N_k, blocks.B_r),
        "p": 1 if row <= M else 2,
    }

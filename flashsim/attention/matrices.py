"""What kind of matrix an array is: its shape in a problem's symbols, and the type that it is
stored in.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from flashsim.attention.arguments import check_lengths
from flashsim.attention.base import BaseProblem
from flashsim.attention.inputs import chip_dtype
from flashsim.attention.shapes import Sizes
from flashsim.support.records import set_fields

Type = Literal["inputs", "chip", "bits", "words", "index"]
"""The inputs' type; the type that is computed in; a byte, True or False; 32 bits; 32 bits that
`sram.word` reads one by one.
"""


@dataclass(frozen=True, kw_only=True)
class MatrixProblem(BaseProblem):
    """Matrices of these sizes, and the memory to compute in.

    lengths  by symbol, such as N and d: whole numbers of at least 1
    """

    lengths: Sizes

    def __post_init__(self) -> None:
        """Check the lengths, too."""
        super().__post_init__()
        set_fields(self, lengths=check_lengths([*self.lengths], self.lengths))


@dataclass(frozen=True)
class Kind:
    """`rows` × `columns`, each a symbol ("N_q", "N_k", "d", "d_v"), a number ("1") or a product
    ("T·d"), stored as `type`.
    """

    rows: str
    columns: str
    type: Type = "inputs"

    def shape(self, problem: Any) -> tuple[int, int]:
        """Return the shape in one problem, which has these lengths and widths (such as
        `flashsim.attention.shapes.Shape`).
        """
        return _length(self.rows, problem), _length(self.columns, problem)

    def dtype(self, stored: np.dtype[Any]) -> np.dtype[Any]:
        """Return the type, where inputs are stored as `stored`."""
        if self.type == "inputs":
            return stored
        return (
            chip_dtype(stored)
            if self.type == "chip"
            else np.dtype(bool if self.type == "bits" else np.uint32)
        )


def _length(symbol: str, problem: Any) -> int:
    if "·" in symbol:
        return prod(_length(factor, problem) for factor in symbol.split("·"))
    return int(symbol if symbol.isdigit() else getattr(problem, symbol))


KINDS: Mapping[str, Kind] = {
    **dict.fromkeys(("Q", "dQ"), Kind("N_q", "d")),
    **dict.fromkeys(("K", "dK"), Kind("N_k", "d")),
    **dict.fromkeys(("V", "dV"), Kind("N_k", "d_v")),
    **dict.fromkeys(("O", "dO"), Kind("N_q", "d_v")),
    **dict.fromkeys(("l", "m", "L", "D", "lse", "P_sink"), Kind("N_q", "1", "chip")),
    **dict.fromkeys(("S", "P", "P_dropped", "dP", "dS"), Kind("N_q", "N_k")),
    "Z": Kind("N_q", "N_k", "bits"),
    "R": Kind("1", "2", "words"),
}
"""By name. An algorithm's record may add others (`Algorithm.matrices`)."""


def kind_of(name: str, added: Mapping[str, Kind]) -> Kind:
    """Return the kind of a matrix, those `added` first. Raises ValueError for a name that is in
    neither table.
    """
    if name not in added and name not in KINDS:
        raise ValueError(
            f"the shape of {name} is not known; say it in the record: matrices={{{name!r}: "
            f"Kind(…)}}"
        )
    return added.get(name) or KINDS[name]


def symbols(added: Mapping[str, Kind] | None = None) -> dict[str, tuple[str, str]]:
    """Return (rows, columns) of every kind, as plain text, by name."""
    return {name: (kind.rows, kind.columns) for name, kind in {**KINDS, **(added or {})}.items()}

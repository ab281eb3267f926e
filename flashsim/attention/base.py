"""`BaseProblem`: what problems of all kinds have, the inputs' type and the memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np

from flashsim.attention.inputs import check_M, float_dtype
from flashsim.support.records import set_fields
from flashsim.support.sizes import Size


@dataclass(frozen=True, kw_only=True)
class BaseProblem:
    """What is to be computed, and the memory to compute it in. It has no arrays.

    dtype    of the inputs: one of the supported dtypes, or its name
    M        SRAM's size in elements, or as text ("100KB"); None: 100 KB

    Each kind of problem adds its own fields, and checks them when it is made: a problem that is
    there is right. Fields may be given as users write them, and are kept in one form. Raises
    ValueError, which names the field, its value, and what was expected.
    """

    dtype: np.dtype[Any]
    M: int

    def __post_init__(self) -> None:
        """Check the type and the memory."""
        dtype = float_dtype(self.dtype)
        set_fields(self, dtype=dtype, M=check_M(self.M, dtype.itemsize))

    def with_memory(self, M: Size | None) -> Self:
        """Return the same problem in an SRAM of M elements; None: in its own."""
        return self if M is None else replace(self, M=cast(int, M))

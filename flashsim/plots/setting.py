"""The setting of one head's counts, checked: what figures have in common."""

from __future__ import annotations

from typing import Any

from flashsim.checking import check_count
from flashsim.inputs import check_M, float_dtype
from flashsim.sizes import Size


def setting(*, N: int, d: int, M: Size | None, dtype: Any, blocks: tuple[int, int] | None = None) -> dict[str, Any]:
    """Return arguments of `flashsim.count`: N, d, M in elements (by default 100 KB of the dtype), dtype by its name.

    And `blocks`, where they are given. Raises ValueError or TypeError, with the argument's name, for what makes no sense.
    """
    stored = float_dtype(dtype)
    checked = {
        "N": check_count("N", N), "d": check_count("d", d), "M": check_M(M, stored.itemsize), "dtype": stored.name
    }  # fmt: skip
    return checked if blocks is None else {**checked, "blocks": tuple(blocks)}


def said(data: dict[str, Any] | Any, *names: str) -> str:
    """Say those numbers of a figure's data, and its blocks if it has them: "N = 1,024, d = 64, one head"."""
    words = [f"{name} = {data[name]:,}" for name in names]
    if "blocks" in data:
        words.append("{:,} × {:,} blocks".format(*data["blocks"]))
    return ", ".join([*words, "one head"])

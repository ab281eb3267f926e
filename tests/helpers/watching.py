"""Local arrays of algorithms, watched while they run."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

from flashsim.memory.sram import SRAM


@contextmanager
def watching_locals(found: list[str]) -> Iterator[None]:
    """Look at every local array of every algorithm line: it must be on chip, or evicted and so
    NaN.
    """

    def look(frame: FrameType, event: str, _: Any) -> Any:
        sram = frame.f_locals.get("sram")
        if isinstance(sram, SRAM):
            for name, value in frame.f_locals.items():
                if (
                    isinstance(value, np.ndarray)
                    and not sram.holds(value)
                    and not np.isnan(value).all()
                ):
                    found.append(f"{name} at line {frame.f_lineno}")
        return look

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        return look if "flashsim/algorithms" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)

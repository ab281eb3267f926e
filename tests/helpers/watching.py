"""Local arrays of programs, watched while they run."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

from flashsim.memory.sram import SRAM

FOLDERS = (
    "flashsim/algorithms/",
    "flashsim/extensions/programs/",
    "flashsim/serving/programs/",
    "flashsim/devices/programs/",
)


@contextmanager
def watching_locals(result: list[str]) -> Iterator[None]:
    """Look at every local array of numbers at every line of a program: it must be on chip, or
    evicted and so NaN.
    """

    def look(frame: FrameType, event: str, _: Any) -> Any:
        sram = frame.f_locals.get("sram")
        if isinstance(sram, SRAM):
            for name, value in frame.f_locals.items():
                if not is_of_numbers(value) or sram.holds(value):
                    continue
                if not np.isnan(value).all():
                    result.append(f"{name} at line {frame.f_lineno}")
        return look

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        return look if any(folder in file for folder in FOLDERS) else None

    before = sys.gettrace()
    sys.settrace(enter)
    threading.settrace(enter)  # devices run in threads
    try:
        yield
    finally:
        sys.settrace(before)
        threading.settrace(None)


def is_of_numbers(value: Any) -> bool:
    """Return whether a value is an array of numbers to compute with, and not of places."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"

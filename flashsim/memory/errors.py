"""The errors of the memory: what is wrong, in which array, and what would help."""

from __future__ import annotations

import math


class MemoryModelError(RuntimeError):
    """A program broke a rule of the two-level memory."""


class NotOnChip(MemoryModelError):
    """Something that is not in SRAM was computed with or stored."""


class SramOverflow(MemoryModelError):
    """More was brought on chip than an enforced capacity holds.

    Attributes: `asked` (name), `elements`, `resident` (name -> elements, in order of arrival),
    `capacity`.
    """

    is_of_all_turns = True  # as `flashsim.memory.turns` asks

    def __init__(
        self, asked: str, shape: tuple[int, ...], resident: dict[str, int], capacity: int
    ) -> None:
        self.asked = asked
        self.elements = math.prod(shape)
        self.resident = resident
        self.capacity = capacity
        used = sum(resident.values())
        held = ", ".join(f"{name} {elements:,}" for name, elements in resident.items()) or "nothing"
        super().__init__(
            f"{asked} ({describe_shape(shape)} = {self.elements:,} elements) does not fit in SRAM: "
            f"{used:,} of M = {capacity:,} elements are in use, so "
            f"{self.elements + used - capacity:,} too many. Resident: {held}. "
            "Take a larger M or smaller blocks."
        )


def describe_shape(shape: tuple[int, ...]) -> str:
    """Return a shape as "64×16"."""
    return "×".join(f"{n:,}" for n in shape)

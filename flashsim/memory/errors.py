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
        self.asked, self.elements, self.resident, self.capacity = (
            asked,
            math.prod(shape),
            resident,
            capacity,
        )
        used = sum(resident.values())
        held = ", ".join(f"{name} {elements:,}" for name, elements in resident.items()) or "nothing"
        super().__init__(
            f"{asked} ({describe_shape(shape)} = {self.elements:,} elements) does not fit in SRAM: "
            f"{used:,} "
            f"of M = {capacity:,} "
            f"elements are in use, so {self.elements + used - capacity:,} too many. Resident: "
            f"{held}. "
            f'Take a larger M or smaller blocks; the sizing "fit" finds some.'
        )


def describe_shape(shape: tuple[int, ...]) -> str:
    """Return a shape as "64×16"."""
    return "×".join(f"{n:,}" for n in shape)

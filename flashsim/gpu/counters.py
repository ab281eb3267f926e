"""Where counting builds add what they move: for each array, elements read and elements written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flashsim.gpu.compiling import import_cupy


@dataclass(frozen=True)
class Moved:
    """What kernels moved between HBM and the chip, of one array, in elements, over all heads."""

    reads: int
    writes: int


class Counters:
    """Totals of arrays, by name, in the GPU's memory. Kernels get `pointer(names)`, an array {reads, writes} per name.

    Of names that several launches share the totals add up.
    """

    def __init__(self) -> None:
        self._launches: list[tuple[tuple[str, ...], Any]] = []

    def for_launch(self, names: Sequence[str]) -> Any:
        """Return zeros, (len(names), 2) of 64 bits, for one launch to add to."""
        totals = import_cupy().zeros((len(names), 2), "uint64")
        self._launches.append((tuple(names), totals))
        return totals

    def moved(self) -> dict[str, Moved]:
        """Wait for the launches; return what each array's accesses add up to."""
        sums: dict[str, Moved] = {}
        for names, totals in self._launches:
            for name, (reads, writes) in zip(names, totals.get().tolist(), strict=True):
                before = sums.get(name, Moved(0, 0))
                sums[name] = Moved(before.reads + reads, before.writes + writes)
        return sums

"""Counters on the GPU, to which counting builds add what they move: for each array, elements
read and elements written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flashsim.gpu.compiling import import_cupy


@dataclass(frozen=True)
class Moved:
    """How many elements of one array kernels moved between HBM and the chip, over all heads."""

    reads: int
    writes: int


class Counters:
    """Totals in the GPU's memory: reads and writes of each array, then how often each event
    happened.

    If several launches share a name, their totals are added.
    """

    def __init__(self) -> None:
        self._launches: list[tuple[tuple[str, ...], tuple[str, ...], Any]] = []

    def for_launch(self, names: Sequence[str], events: Sequence[str] = ()) -> Any:
        """Return 64-bit zeros for one launch to add to: two for each name, one for each event.

        The launch may go to any stream. So the zeros are written before this returns.
        """
        cupy = import_cupy()
        totals = cupy.zeros(2 * len(names) + len(events), "uint64")
        cupy.cuda.get_current_stream().synchronize()
        self._launches.append((tuple(names), tuple(events), totals))
        return totals

    def moved(self) -> dict[str, Moved]:
        """Wait for the launches, on any stream; return each array's totals."""
        import_cupy().cuda.runtime.deviceSynchronize()
        sums: dict[str, Moved] = {}
        for names, _, totals in self._launches:
            for name, (reads, writes) in zip(
                names, totals[: 2 * len(names)].reshape(-1, 2).get().tolist(), strict=True
            ):
                before = sums.get(name, Moved(0, 0))
                sums[name] = Moved(before.reads + reads, before.writes + writes)
        return sums

    def happened(self) -> dict[str, int]:
        """Wait for the launches, on any stream; return how often each event happened."""
        import_cupy().cuda.runtime.deviceSynchronize()
        sums: dict[str, int] = {}
        for names, events, totals in self._launches:
            for event, times in zip(events, totals[2 * len(names) :].get().tolist(), strict=True):
                sums[event] = sums.get(event, 0) + times
        return sums

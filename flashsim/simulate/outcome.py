"""What launches leave: their matrices, and what they cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from flashsim.memory.device import Device
from flashsim.memory.hbm import HBM
from flashsim.memory.sram import SRAM
from flashsim.memory.traffic import Flops, Traffic


@dataclass(frozen=True)
class Cost:
    """What launches cost together: elements moved, the highest peak, and, where they only
    counted, operations.
    """

    traffic: Traffic = field(default_factory=Traffic)
    peak: int = 0
    flops: Flops = field(default_factory=lambda: Flops(0, 0))

    @classmethod
    def of(cls, hbm: HBM, sram: SRAM) -> Cost:
        """Return what a launch cost, of its memory."""
        return cls(hbm.traffic, sram.peak, sram.flops)

    def sized(self, **sizes: int) -> Cost:
        """Return the same, where matrices of these names are so large."""
        by_array = self.traffic.by_array
        of_size = {name: replace(by_array[name], size=size) for name, size in sizes.items()}
        return replace(self, traffic=Traffic({**by_array, **of_size}))

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.traffic + other.traffic, max(self.peak, other.peak), self.flops + other.flops
        )

    def times(self, launches: int) -> Cost:
        """Return what so many launches cost alike, one after another."""
        return Cost(self.traffic.times(launches), self.peak, self.flops.times(launches))

    def with_sums(self, of: Cost) -> Cost:
        """Return what launches cost that write some gradients as parts, with the passes that sum
        those up.
        """
        named = {
            name: f"{name}_parts"
            for name in of.traffic.by_array
            if f"{name}_parts" in of.traffic.by_array
        }
        written = {}
        for name, array in self.traffic.by_array.items():
            written[named.get(name, name)] = (
                replace(array, role="extra") if name in named else array
            )
        read = {}
        for name, array in of.traffic.by_array.items():
            read[name] = replace(array, size=0) if name in written else array
        return Cost(
            Traffic(written) + Traffic(read), max(self.peak, of.peak), self.flops + of.flops
        )


@dataclass
class Outcome:
    """What the launches of a plan left so far.

    matrices  by name, one for each launch
    sums      matrices that launches add to, one after another, by which of them it is (a bias's
              gradient, that heads share)
    cost      of all launches together; None before the first
    devices   the devices, where launches ran side by side
    """

    matrices: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    sums: dict[Any, NDArray[Any]] = field(default_factory=dict)
    cost: Cost | None = None
    devices: list[Device] = field(default_factory=list)

    @property
    def total(self) -> Cost:
        """The cost of all launches together; nothing before the first."""
        return Cost() if self.cost is None else self.cost

    def add_cost(self, hbm: HBM, sram: SRAM) -> None:
        """Add what a launch cost."""
        cost = Cost.of(hbm, sram)
        self.cost = cost if self.cost is None else self.cost + cost

    def add_matrices(self, hbm: HBM, names: Iterable[str]) -> None:
        """Add what a launch left in HBM under these names."""
        for name in names:
            self.matrices.setdefault(name, []).append(hbm.peek(name))

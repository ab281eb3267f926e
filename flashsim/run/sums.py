"""Gradients that heads wrote as parts, and the passes that sum those up.

Query heads that share a KV head and ran each on its own have dK and dV in parts. Those whose rows ran interleaved have a bias's
gradient in parts, where its entries belong to several of these rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from flashsim.algorithms.group_sum import sum_over_group
from flashsim.groups import by_head, summed_over
from flashsim.inputs import Array, chip_dtype
from flashsim.masks import Head
from flashsim.memory import HBM, SRAM, Observer
from flashsim.records import Flops, Traffic
from flashsim.run.task import Plan, Task

Sums = dict[str, Array]
Parts = Mapping[str, Array | tuple[int, int]]
"""Parts by the names of their sums, a row for each; or, to count on shapes alone, how many and how long."""


@dataclass(frozen=True)
class Cost:
    """What launches cost together: elements moved, the highest peak, and, where they only counted, operations."""

    traffic: Traffic = field(default_factory=Traffic)
    peak: int = 0
    flops: Flops = field(default_factory=lambda: Flops(0, 0))

    def sized(self, **sizes: int) -> Cost:
        """Return the same, where matrices of these names are so large."""
        by_array = self.traffic.by_array
        of_size = {name: replace(by_array[name], size=size) for name, size in sizes.items()}
        return replace(self, traffic=Traffic({**by_array, **of_size}))

    def plus(self, hbm: HBM, sram: SRAM, times: int = 1) -> Cost:
        """Return the cost with that of a launch, so many times."""
        traffic, flops = hbm.traffic.times(times), sram.flops.times(times)
        return Cost(self.traffic + traffic, max(self.peak, sram.peak), self.flops + flops)

    def with_sums(self, of: Cost) -> Cost:
        """Return what launches cost that write some gradients as parts, with the passes that sum those up."""
        named = {name: f"{name}_parts" for name in of.traffic.by_array if f"{name}_parts" in of.traffic.by_array}
        written = {
            named.get(name, name): replace(a, role="extra") if name in named else a
            for name, a in self.traffic.by_array.items()
        }
        read = {name: replace(a, size=0) if name in written else a for name, a in of.traffic.by_array.items()}
        return Cost(Traffic(written) + Traffic(read), max(self.peak, of.peak), self.flops + of.flops)


def launch_sums(
    task: Task, problems: Sequence[Parts], dtype: np.dtype[np.generic], observers: Sequence[Observer], times: int = 1
) -> tuple[list[Sums], Cost]:
    """Sum the parts of each problem, stored as `dtype`; return the sums, one row each, and the cost, so many times."""
    sums, cost = [], Cost()
    for parts in problems:
        hbm = HBM(arithmetic=not any(isinstance(each, tuple) for each in parts.values()))
        sram = SRAM(hbm, task.M, enforced=task.sizing.enforced, dtype=chip_dtype(task.given.dtype), observers=observers)
        placed = [hbm.place(f"{name}_parts", each, dtype) for name, each in parts.items()]
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            sum_over_group(hbm, sram, *placed)
        cost = cost.plus(hbm, sram, times)
        sums.append({name: hbm.peek(name)[0] for name in parts if hbm.arithmetic})
    return sums, cost


def key_gradients(task: Task, parts: Sums, observers: Sequence[Observer]) -> tuple[Sums, Cost]:
    """Return dK and dV, (..., H_kv, N_k, width), of parts (..., H_q, N_k, width), and what summing them up cost."""
    groups = [a.reshape(-1, task.given.group, prod(a.shape[-2:])) for a in parts.values()]
    problems = [dict(zip(parts, group, strict=True)) for group in zip(*groups, strict=True)]
    sums, cost = launch_sums(task, problems, task.given.dtype, observers)
    shapes = {name: getattr(task.given, name[1:]).shape for name in parts}
    return {name: np.stack([one[name] for one in sums]).reshape(shape) for name, shape in shapes.items()}, cost


def bias_gradient(plan: Plan, found: Mapping[Head, Array], observers: Sequence[Observer]) -> tuple[Array, Cost]:
    """Return dB, as large as the bias was given, of what the launches left, by where it is among the bias's leading axes.

    And what summing it up cost, if anything.
    """
    given, ran = plan.task.variant.mask.bias, plan.variant.mask.bias
    N_q, group, dtype, cost = plan.task.given.shape.N_q, plan.group, chip_dtype(plan.task.given.dtype), Cost()
    axis = summed_over(given, group, N_q)
    if axis is not None:
        parts = [np.moveaxis(matrix.reshape(N_q, group, -1), axis, 0) for matrix in found.values()]
        sums, cost = launch_sums(plan.task, [{"dB": a.reshape(len(a), -1)} for a in parts], dtype, observers)
        found = {at: one["dB"].reshape(a.shape[1:]) for at, a, one in zip(found, parts, sums, strict=True)}
    dB = np.stack([*found.values()])
    dB = dB.reshape(*ran.array.shape[:-2], *dB.shape[1:])
    if axis is None and given.matrix[0] > 1:
        dB = by_head(dB, group)
    return dB.reshape(given.array.shape), cost

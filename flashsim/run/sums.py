"""Query heads that share a KV head and ran each on its own wrote dK and dV as parts: a pass of its own sums them up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from flashsim.algorithms.group_sum import sum_over_group
from flashsim.inputs import Array, chip_dtype
from flashsim.matrices import KINDS
from flashsim.memory import HBM, SRAM, Observer
from flashsim.records import Traffic
from flashsim.run.task import Task

NAMES = ("dK", "dV")


def launch_sum(
    task: Task, parts: Mapping[str, Array] | None = None, observers: Sequence[Observer] = ()
) -> tuple[HBM, SRAM]:
    """Sum one group's dK and dV. `parts` are (g, N_k, d) and (g, N_k, d_v) by name; None counts on shapes alone."""
    hbm, g = HBM(arithmetic=parts is not None), task.given.group
    sram = SRAM(hbm, task.M, enforced=task.sizing.enforced, dtype=chip_dtype(task.given.dtype), observers=observers)
    placed = []
    for name in NAMES:
        N, width = KINDS[name].shape(task.given.shape)
        values = (g, N * width) if parts is None else parts[name].reshape(g, -1)
        placed.append(hbm.place(f"{name}_parts", values, task.given.dtype))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        sum_over_group(hbm, sram, *placed)
    return hbm, sram


def summed(
    task: Task, parts: Mapping[str, Array], observers: Sequence[Observer]
) -> tuple[dict[str, Array], Traffic, int]:
    """Return dK and dV, (..., H_kv, N_k, width), of parts (..., H_q, N_k, width); and what it cost: elements moved, the peak."""
    groups = {name: a.reshape(-1, task.given.group, *a.shape[-2:]) for name, a in parts.items()}
    sums = {name: np.empty(getattr(task.given, name[1:]).shape, task.given.dtype) for name in NAMES}
    flat = {name: a.reshape(len(groups[name]), -1) for name, a in sums.items()}
    traffic, peak = Traffic(), 0
    for number in range(len(groups["dK"])):
        hbm, sram = launch_sum(task, {name: a[number] for name, a in groups.items()}, observers)
        for name, a in flat.items():
            a[number] = hbm.peek(name)[0]
        traffic, peak = traffic + hbm.traffic, max(peak, sram.peak)
    return sums, traffic, peak


def with_parts(heads: Traffic, summing: Traffic) -> Traffic:
    """Return the traffic of heads that write dK and dV as parts, and of the passes that sum those up."""
    named = {name: f"{name}_parts" for name in NAMES}
    written = {
        named.get(name, name): replace(a, role="extra") if name in named else a for name, a in heads.by_array.items()
    }
    read = {name: replace(a, size=0) if name in written else a for name, a in summing.by_array.items()}
    return Traffic(written) + Traffic(read)

"""Gradients that heads wrote as parts, and the passes that sum those up.

Query heads that share a KV head and ran each on its own have dK and dV in parts. Those whose rows ran interleaved have a bias's
gradient in parts, where its entries belong to several of these rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flashsim.algorithms.group_sum import sum_over_group
from flashsim.groups import by_head, summed_over
from flashsim.inputs import Array, chip_dtype
from flashsim.masks import Head
from flashsim.matrices import KINDS
from flashsim.memory import HBM, SRAM, Observer
from flashsim.records import Traffic
from flashsim.run.task import Plan, Task

NAMES = ("dK", "dV")
Parts = Mapping[str, Array | tuple[int, int]]
"""Parts by the names of their sums, a row for each; or, to count on shapes alone, how many and how long."""


def launch_sum(task: Task, parts: Parts, dtype: np.dtype[Any], observers: Sequence[Observer] = ()) -> tuple[HBM, SRAM]:
    """Sum parts, stored as `dtype`."""
    hbm = HBM(arithmetic=not any(isinstance(each, tuple) for each in parts.values()))
    sram = SRAM(hbm, task.M, enforced=task.sizing.enforced, dtype=chip_dtype(task.given.dtype), observers=observers)
    placed = [hbm.place(f"{name}_parts", each, dtype) for name, each in parts.items()]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        sum_over_group(hbm, sram, *placed)
    return hbm, sram


def sum_one_group(task: Task, observers: Sequence[Observer]) -> tuple[HBM, SRAM]:
    """Sum one group's dK and dV on shapes alone."""
    shapes = {name: KINDS[name].shape(task.given.shape) for name in NAMES}
    parts = {name: (task.given.group, N * width) for name, (N, width) in shapes.items()}
    return launch_sum(task, parts, task.given.dtype, observers)


def summed(
    task: Task, parts: Mapping[str, Array], observers: Sequence[Observer]
) -> tuple[dict[str, Array], Traffic, int]:
    """Return dK and dV, (..., H_kv, N_k, width), of parts (..., H_q, N_k, width); and what it cost: elements moved, the peak."""
    groups = {name: a.reshape(-1, task.given.group, *a.shape[-2:]) for name, a in parts.items()}
    sums = {name: np.empty(getattr(task.given, name[1:]).shape, task.given.dtype) for name in NAMES}
    flat = {name: a.reshape(len(groups[name]), -1) for name, a in sums.items()}
    traffic, peak = Traffic(), 0
    for number in range(len(groups["dK"])):
        one = {name: a[number].reshape(task.given.group, -1) for name, a in groups.items()}
        hbm, sram = launch_sum(task, one, task.given.dtype, observers)
        for name, a in flat.items():
            a[number] = hbm.peek(name)[0]
        traffic, peak = traffic + hbm.traffic, max(peak, sram.peak)
    return sums, traffic, peak


def bias_gradient(
    plan: Plan, found: Mapping[Head, Array], observers: Sequence[Observer]
) -> tuple[Array, Traffic | None, int]:
    """Return dB, as large as the bias was given, of what the launches left, by where it is among the bias's leading axes.

    And what summing it up cost, if anything: elements moved, the peak.
    """
    given, ran = plan.task.variant.mask.bias, plan.variant.mask.bias
    assert given is not None
    assert ran is not None
    N_q, group, traffic, peak = plan.task.given.shape.N_q, plan.group, Traffic(), 0
    axis = summed_over(given, group, N_q)
    rows = ran.matrix[0] if axis is None else (N_q, group)[1 - axis]
    dB = np.empty((*ran.array.shape[:-2], rows, ran.matrix[1]), chip_dtype(plan.task.given.dtype))
    for at, matrix in found.items():
        if axis is None:
            dB[at] = matrix
            continue
        parts = np.moveaxis(matrix.reshape(N_q, group, -1), axis, 0)
        hbm, sram = launch_sum(plan.task, {"dB": parts.reshape(len(parts), -1)}, matrix.dtype, observers)
        dB[at] = hbm.peek("dB").reshape(parts.shape[1:])
        traffic, peak = traffic + hbm.traffic, max(peak, sram.peak)
    if axis is None and given.matrix[0] > 1:
        dB = by_head(dB, group)
    return dB.reshape(given.array.shape), traffic if axis is not None else None, peak


def sum_bias_gradient(plan: Plan, observers: Sequence[Observer]) -> tuple[HBM, SRAM] | None:
    """Sum dB on shapes alone, for a bias that is one head's; None where there is nothing to sum."""
    given = plan.task.variant.mask.bias
    if given is None or summed_over(given, plan.group, plan.task.given.shape.N_q) is None:
        return None
    rows, columns = given.matrix
    return launch_sum(plan.task, {"dB": (plan.group, rows * columns)}, chip_dtype(plan.task.given.dtype), observers)


def with_parts(heads: Traffic, summing: Traffic) -> Traffic:
    """Return the traffic of launches that write some gradients as parts, and of the passes that sum those up."""
    named = {name: f"{name}_parts" for name in summing.by_array if f"{name}_parts" in summing.by_array}
    written = {
        named.get(name, name): replace(a, role="extra") if name in named else a for name, a in heads.by_array.items()
    }
    read = {name: replace(a, size=0) if name in written else a for name, a in summing.by_array.items()}
    return Traffic(written) + Traffic(read)

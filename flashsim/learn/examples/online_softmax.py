"""Online softmax, one value at a time: a running maximum m and a running sum s of exp(z − m).

In flashsim: Algorithm 1, line 11, with blocks of one key (m is m_i, s is ℓ_i); and long_rows in
flashsim/algorithms/softmax_rows.py, standard attention's softmax of rows too long for SRAM.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flashsim.learn.examples.text import NEW_MAXIMUM, ROUNDED, Slip, number, paragraph, slips_lines
from flashsim.problem.inputs import Array

Z = (2.0, 5.0, 1.0, 4.0)


@dataclass(frozen=True, eq=False)
class Step:
    """One value: m and s before it, the factor that corrects the old s, its own weight, and m and s after it."""

    z: float
    m_old: float
    s_old: float
    m: float
    correction: float
    weight: float
    s: float

    @property
    def new_maximum(self) -> bool:
        """Whether the maximum rose, so that what was summed before is scaled down."""
        return self.m > self.m_old


@dataclass(frozen=True, eq=False)
class OnlineSoftmax:
    """The values, one step for each, and their softmax."""

    z: Array
    steps: tuple[Step, ...]
    softmax: Array
    slips: tuple[Slip, ...] = ()


def step(m_old: Any, s_old: Any, z: Any) -> Step:
    """Take in one value. exp(−∞ − m) = 0, so the first step forgets the initial s, which is 0 anyway."""
    m = max(m_old, z)
    correction = np.exp(m_old - m)
    weight = np.exp(z - m)
    return Step(z, m_old, s_old, m, correction, weight, s_old * correction + weight)


def online_softmax(z: Sequence[float], dtype: DTypeLike = np.float64) -> OnlineSoftmax:
    """Return the softmax of finite values in one pass over them, and one more to divide."""
    values = np.asarray(z, dtype)
    m, s = values.dtype.type(-np.inf), values.dtype.type(0)
    steps = []
    for value in values:
        steps.append(step(m, s, value))
        m, s = steps[-1].m, steps[-1].s
    return OnlineSoftmax(values, tuple(steps), np.exp(values - m) / s)


def compute() -> OnlineSoftmax:
    """Run the chapter's example."""
    run = online_softmax(Z)
    rounded = [round(float(p), 4) for p in run.softmax]
    slip = Slip(
        "the sum of the softmax",
        f"{sum(rounded):.4f}",
        f"{run.softmax.sum():.4f}",
        f"It adds {' + '.join(f'{p:.4f}' for p in rounded)}, each rounded before. Unrounded, they add up to 1.",
    )
    return replace(run, slips=(slip,))


def lines(run: OnlineSoftmax) -> Iterator[str]:
    """Yield the steps as text."""
    yield f"Online softmax of z = [{', '.join(number(z) for z in run.z)}]"
    yield from paragraph(
        "For each value: m_new = max(m, z), s = s · exp(m − m_new) + exp(z − m_new), m = m_new. The factor exp(m − m_new) "
        "corrects the old sum, which was taken relative to the old maximum; it is 1 unless the maximum rises. "
        + ROUNDED
    )
    yield "\nStep 0: m = −∞, s = 0"
    for i, at in enumerate(run.steps):
        z, m_old, m = number(at.z), number(at.m_old), number(at.m)
        yield f"\nStep {i + 1}: z[{i}] = {z}"
        yield f"  m_new = max({m_old}, {z}) = {m}" + (NEW_MAXIMUM if at.new_maximum else "")
        yield f"  s = {number(at.s_old)} · exp({m_old} − {m}) + exp({z} − {m})"
        yield f"    = {number(at.s_old)} · {number(at.correction)} + {number(at.weight)}"
        yield f"    = {number(at.s)}"
        if at.new_maximum and i:
            direct = np.exp(run.z[: i + 1] - at.m)
            terms = " + ".join(f"exp({number(value)} − {m})" for value in run.z[: i + 1])
            yield f"  Directly: {terms} = {' + '.join(map(number, direct))} = {number(direct.sum())}, the same."
    m, s = number(run.steps[-1].m), number(run.steps[-1].s)
    yield f"\nSoftmax: exp(z − m) / s, with m = {m}, s = {s}"
    weights = [number(np.exp(z - run.steps[-1].m)) for z in run.z]
    wide = max(map(len, weights))
    for i, (z, weight, p) in enumerate(zip(run.z, weights, run.softmax, strict=True)):
        yield f"  softmax[{i}] = exp({number(z)} − {m}) / {s} = {weight:>{wide}} / {s} = {number(p)}"
    yield f"  Sum = {number(run.softmax.sum())}"
    yield from slips_lines(run.slips)

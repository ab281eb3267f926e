"""Observers of the memory: they follow a run from outside, so that the algorithms need no probes.

steps = InductionInvariant()
# raises InvariantBroken where the proof would fail
flashsim.forward("flash_basic", Q, K, V, observers=[steps])
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import numpy as np

from flashsim.attention.inputs import roundoff
from flashsim.memory.source import line_of
from flashsim.memory.sram import Event
from flashsim.reference import attention_with_statistics, error_bound, score_reach
from flashsim.reference.rounding import parts_of_bound


class InvariantBroken(AssertionError):
    """After some outer step, m, ℓ or O is not what it should be for the keys seen so far."""


@dataclass(frozen=True)
class InvariantStep:
    """A checked outer step: its index j, how many keys were seen by then, and the worst error,
    divided by its bound.
    """

    j: int
    keys: int
    worst: float


@dataclass
class InductionInvariant:
    """Checks Theorem 1's induction after every outer step j of Algorithm 1.

    For the first keys, K_{:j}: m = rowmax(S_{:,:j}), ℓ = rowsum(exp(S_{:,:j} − m)), O =
    softmax(S_{:,:j}) V_{:j}, each within the rounding bound of `flashsim.reference` (twice the
    computed terms, C = 2). The oracle works in float64 on what HBM holds. Works on any number of
    heads in turn. Raises InvariantBroken.
    """

    steps: list[InvariantStep] = field(default_factory=list)
    _keys: int = 0

    def __call__(self, event: Event) -> None:
        """Follow one event."""
        if event.kind == "enter" and not event.loops:
            self._keys = 0
        elif event.kind == "load" and event.name.startswith("K[") and event.tile is not None:
            self._keys += event.tile.shape[0]
        elif event.kind == "turn end" and len(event.loops) == 1:
            self._check(event, j=event.loops[0][1])

    def _check(self, event: Event, j: int) -> None:
        hbm = event.sram.hbm
        Q = hbm.peek("Q")
        K = hbm.peek("K")[: self._keys]
        V = hbm.peek("V")[: self._keys]
        want = attention_with_statistics(Q, K, V, scale=1.0)  # τ is in Q already
        u = roundoff(event.sram.dtype)
        delta = (Q.shape[1] + 4) * u * score_reach(Q, K, scale=1.0)[:, 0]
        with np.errstate(over="ignore"):
            sums = (2 * np.expm1(2 * delta) + 2 * (self._keys + 8 * (j + 2)) * u) * want.l
        O_bound = error_bound(
            Q, K, V, scale=1.0, steps=j + 1, chip=event.sram.dtype, stored=hbm.peek("O").dtype
        )
        worst = 0.0
        for name, right, bound in (
            ("m", want.m, 2 * delta),
            ("l", want.l, sums),
            ("O", want.O, O_bound),
        ):
            value = hbm.peek(name).astype(np.float64).reshape(right.shape)
            parts = parts_of_bound(value, right, bound)
            worst = max(worst, float(parts.max()))
            if worst > 1:
                position = tuple(int(i) for i in np.argwhere(parts > 1)[0])
                raise InvariantBroken(
                    f"after outer step j = {j}, for the first {self._keys:,} keys, "
                    f"{name}{list(position)} is {value[position]:.9g}; "
                    f"it should be {right[position]:.9g} ± {bound[position]:.2g}"
                )
        self.steps.append(InvariantStep(j, self._keys, worst))


@dataclass(frozen=True)
class Movement:
    """One load, store or initialisation in the source: its line, the array, how often, how many
    elements in all.

    `label` is the paper's line, "line 9", or "line 12 of mine.py" where nothing labels it.
    """

    label: str
    kind: str
    array: str
    times: int
    elements: int


@dataclass
class Ledger:
    """Sums every load, store and initialisation by line, and keeps what was resident when SRAM
    was fullest.
    """

    at_peak: dict[str, int] = field(default_factory=dict)
    _sums: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)
    _fullest: int = 0

    def __call__(self, event: Event) -> None:
        """Follow one event."""
        if event.kind in ("init", "load", "store"):
            key = line_of(event.site, sys._getframe(1))[1], event.kind, event.name.partition("[")[0]
            sums = self._sums.setdefault(key, [0, 0])
            sums[0] += event.times
            sums[1] += event.elements * event.times
        if event.sram.occupancy > self._fullest:
            self._fullest, self.at_peak = event.sram.occupancy, event.sram.resident

    @property
    def movements(self) -> list[Movement]:
        """All of them, in the order first seen."""
        return [Movement(*key, times, elements) for key, (times, elements) in self._sums.items()]

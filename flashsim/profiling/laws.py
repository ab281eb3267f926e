"""The counts of a kernel as a function of N: polynomials through counts at short lengths.

A kernel of tiles moves, of each array, a·N² + b·N + c elements wherever N is a multiple of its
block sizes. Three lengths give a, b and c; two more must agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from flashsim.attention.masks.rules import All, Causal
from flashsim.attention.problem import Problem
from flashsim.memory.traffic import ArrayTraffic, Traffic
from flashsim.profiling.calls import count_attention, name_of
from flashsim.profiling.errors import ProfilingError
from flashsim.profiling.profile import Profile

FIRST = 256
"""The length at which the blocks are looked for."""
STEP = 64
"""From one length to the next, for code that has no blocks."""
FITTED = (2, 3, 4)
CHECKED = (5, 7)
"""Multiples of the blocks' least common multiple at which a law is fitted, and checked."""

Polynomial = tuple[Fraction, Fraction, Fraction]
"""a, b, c of a·N² + b·N + c."""


@dataclass(frozen=True)
class Law:
    """What a kernel moves at lengths N_q = N_k = N, by array.

    function  its name
    step      N must be a multiple of it
    lengths   at which the kernel was counted: the first three fix the law, the others agree with it
    problem   at one of these lengths
    blocks    B_r and B_c; None: operators have none
    reads, writes  polynomials of each array
    profile   the count at the longest of these lengths
    """

    function: str
    step: int
    lengths: tuple[int, ...]
    problem: Problem
    blocks: tuple[int, int] | None
    reads: Mapping[str, Polynomial]
    writes: Mapping[str, Polynomial]
    profile: Profile

    def traffic(self, N: int) -> Traffic:
        """Return the accesses at a length. Raises ValueError where N is no multiple of `step`."""
        if N % self.step or N < 1:
            raise ValueError(
                f"N is {N:,}; expected a multiple of {self.step:,}, where the law of "
                f"{self.function} holds"
            )
        by_array = {}
        for name, array in self.profile.by_array.items():
            size = array.size * N // self.lengths[-1]
            reads = _value(self.reads[name], N)
            writes = _value(self.writes[name], N)
            by_array[name] = ArrayTraffic(reads, writes, 0, size, array.itemsize, array.role)
        return Traffic(by_array)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        formulas = {}
        for name, (reads, writes) in self.formulas().items():
            formulas[name] = {"reads": reads, "writes": writes}
        return {
            "function": self.function,
            "step": self.step,
            "lengths": list(self.lengths),
            "blocks": None if self.blocks is None else list(self.blocks),
            "formulas": formulas,
        }

    def formulas(self) -> dict[str, tuple[str, str]]:
        """Return reads and writes of each array in words, such as "N²·d/B_r"."""
        formulas = {}
        for name, polynomial in self.reads.items():
            formulas[name] = (self._formula(polynomial), self._formula(self.writes[name]))
        return formulas

    def _formula(self, polynomial: Polynomial) -> str:
        terms = []
        for coefficient, power in zip(polynomial, ("N²", "N", ""), strict=True):
            if coefficient:
                terms.append(self._term(coefficient, power))
        return " + ".join(terms) or "0"

    def _term(self, coefficient: Fraction, power: str) -> str:
        """Return a term with the symbols that its coefficient is made of, if it is."""
        d = self.problem.shape.d
        heads = self.problem.heads
        kv_heads = heads // self.problem.group
        symbols = {"": Fraction(1), "d": Fraction(d), "d/2": Fraction(d, 2)}
        if self.blocks is not None and power == "N²":  # an array is read once for each block
            B_r, B_c = self.blocks
            by_block = {
                "d/B_r": Fraction(d, B_r),
                "d/(2·B_r)": Fraction(d, 2 * B_r),
                "d/B_c": Fraction(d, B_c),
                "d/(2·B_c)": Fraction(d, 2 * B_c),
            }
            symbols = by_block | symbols
        numbers = {"H": heads, "H_kv": kv_heads, "": 1}
        for label, number in numbers.items():
            for text, value in symbols.items():
                if coefficient == number * value and (number > 1 or not label):
                    return "·".join(factor for factor in (label, power, text) if factor) or "1"
        return "·".join(factor for factor in (str(coefficient), power) if factor)


def _value(polynomial: Polynomial, N: int) -> int:
    a, b, c = polynomial
    value = a * N * N + b * N + c
    assert value.denominator == 1, "it is whole at three multiples of the step, so at all"
    return int(value)


def law(
    function: Callable[..., Any], problem: Problem, *, layout: str = "BHND", **keywords: Any
) -> Law:
    """Return how the accesses of a kernel grow with N, where N_q = N_k = N; arguments as for
    `count_attention`. The problem's own lengths do not matter.

    Raises `ProfilingError` where the kernel moves at some length other than the law says.
    """
    if not isinstance(problem.mask, All) and problem.mask != Causal():
        raise ValueError(f"mask is {problem.mask!r}; expected none, or causal: those grow with N")

    def counted(N: int) -> Profile:
        shape = replace(problem.shape, N_q=N, N_k=N)
        return count_attention(function, replace(problem, shape=shape), layout=layout, **keywords)

    blocks = counted(FIRST).blocks
    step = STEP if blocks is None else math.lcm(*blocks)
    lengths = tuple(multiple * step for multiple in FITTED + CHECKED)
    profiles = [counted(N) for N in lengths]
    names = list(profiles[-1].by_array)
    for N, profile in zip(lengths, profiles, strict=True):
        if set(profile.by_array) != set(names):
            raise ProfilingError(
                f"{name_of(function)} moves the arrays {', '.join(profile.by_array)} at N = {N}, "
                f"and {', '.join(names)} at N = {lengths[-1]}; expected the same at every length"
            )
    reads = {}
    writes = {}
    for name in names:
        reads[name] = _fitted(lengths, [profile.by_array[name].reads for profile in profiles])
        writes[name] = _fitted(lengths, [profile.by_array[name].writes for profile in profiles])
    for N, profile in zip(lengths, profiles, strict=True):
        if profile.blocks != blocks:
            raise ProfilingError(
                f"{name_of(function)} has blocks of {blocks} at N = {FIRST} and of "
                f"{profile.blocks} at N = {N}; expected the same at every length"
            )
        for name in names:
            array = profile.by_array[name]
            by_law = (_exact(reads[name], N), _exact(writes[name], N))
            if array.reads != by_law[0] or array.writes != by_law[1]:
                raise ProfilingError(
                    f"{name_of(function)} follows no law: at N = {N} it reads {array.reads:,} and "
                    f"writes {array.writes:,} elements of {name}; a polynomial through N = "
                    f"{lengths[0]}, {lengths[1]}, {lengths[2]} says {by_law[0]} and {by_law[1]}"
                )
    return Law(
        name_of(function),
        step,
        lengths,
        profiles[-1].problem or problem,
        blocks,
        reads,
        writes,
        profiles[-1],
    )


def _exact(polynomial: Polynomial, N: int) -> Fraction:
    a, b, c = polynomial
    return a * N * N + b * N + c


def _fitted(lengths: tuple[int, ...], counts: list[int]) -> Polynomial:
    """Return the polynomial through the first three points."""
    x, y, z = (Fraction(length) for length in lengths[:3])
    at_x, at_y, at_z = counts[:3]
    slope = (at_y - at_x) / (y - x)
    next_slope = (at_z - at_y) / (z - y)
    a = (next_slope - slope) / (z - x)
    b = slope - a * (x + y)
    c = at_x - a * x * x - b * x
    return a, b, c

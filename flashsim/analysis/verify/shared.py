"""What the checks share: the ledger's line; inputs that break careless softmaxes; the range of
(N, d, M); fits; runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flashsim import theory
from flashsim.algorithms.program import MatrixProgram
from flashsim.attention.inputs import Array
from flashsim.attention.shapes import Sizes
from flashsim.extensions.programs import programs
from flashsim.memory.errors import MemoryModelError
from flashsim.reference import of_bound
from flashsim.reference.operands import naive_programs
from flashsim.simulate.api import count
from flashsim.simulate.matrices import run_program
from flashsim.theory import exact_program

Regime = tuple[str, Array, Array, Array]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, the range on which it was tried, the result, and whether it holds.

    `measured` is the result in words, `data` in numbers. Source and claim are the docstring of the
    check that returns this: SOURCE. CLAIM.
    """

    tried: str
    measured: str
    holds: bool
    data: dict[str, Any]
    source: str = ""
    claim: str = ""

    def also(self, measured: str, holds: bool, **data: Any) -> Claim:
        """Return the claim with one more result, which must hold too."""
        return replace(
            self,
            measured=f"{self.measured}; {measured}",
            holds=bool(self.holds and holds),
            data={**self.data, **data},
        )


Check = Callable[[bool], Claim]
"""Runs one claim. Its argument, `full`, asks for wide sweeps; without it, a check keeps to
seconds.
"""


def regimes(rng: np.random.Generator, N_q: int, N_k: int, d: int, d_v: int) -> Iterator[Regime]:
    """Yield inputs of the kinds that break careless softmaxes, named, in float64."""
    Q = rng.normal(size=(N_q, d))
    K = rng.normal(size=(N_k, d))
    V = rng.normal(size=(N_k, d_v))
    along = np.linspace(0.0, 1.0, N_k)[:, None]
    toward = np.ones((N_q, d)) / math.sqrt(d)
    yield "Gaussian", Q, K, V
    yield "peaky", 8 * Q, 8 * K, V
    yield "rising", toward, 60 * along * np.ones(d) + 0.01 * K, V
    yield "falling", toward, 60 * (1 - along) * np.ones(d) + 0.01 * K, V
    yield "all equal", toward, np.ones((N_k, d)), V
    yield "all very negative", toward, -1e4 * np.ones((N_k, d)) + K, V
    yield "±5·10⁴", toward * math.sqrt(d), 5e4 * np.sign(K) / d, V


def largest_N(full: bool) -> int:
    """Return the largest N of `in_range`."""
    return 2**20 if full else 2**16


def in_range(full: bool) -> Iterator[tuple[int, int, int]]:
    """Yield (N, d, M) over d ≤ M ≤ Nd, powers of two and their odd neighbours, both ends of M
    included.
    """
    powers = range(0, 21, 2) if full else range(0, 17, 4)
    for p, d in itertools.product(powers, (1, 3, 16, 64, 128, 257)):
        for N in {2**p, 2**p + 1, max(2**p - 1, 1)}:
            steps = np.geomspace(d, N * d, 9 if full else 5)
            for M in sorted({d, N * d, *(int(s) for s in steps)}):
                if d <= M <= N * d:
                    yield N, d, M


def accesses(name: str, N: int, d: int, M: int, direction: str = "forward") -> int:
    """Return the HBM accesses of a run with the paper's blocks, counted."""
    return count(name, N=N, d=d, M=M, direction=direction, sizing="paper").hbm.accesses


def differs(name: str, **arguments: Any) -> bool:
    """Return whether a count and the closed form differ: in an array's accesses, the peak, or
    the blocks.
    """
    result = count(name, **arguments)
    exact = theory.exact(name, **arguments)
    counts = (result.hbm, result.sram, result.blocks)
    return counts != (exact.hbm, exact.sram, exact.blocks)


def slope(points: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Return the least-squares slope of log₂ y over log₂ x, and the largest residual in log₂."""
    x = np.log2([float(x) for x, _ in points])
    y = np.log2([float(y) for _, y in points])
    a, b = np.polyfit(x, y, 1)
    residuals = np.abs(y - (a * x + b))
    return float(a), float(residuals.max())


def exponents(tried: str, fits: Mapping[str, tuple[float, tuple[float, float]]]) -> Claim:
    """Return the claim that each fitted slope is the expected one, within 0.02. `fits`: name ->
    expected, (slope, residual).
    """
    holds = True
    texts = []
    data = {}
    for name, (expected, (fit, residual)) in fits.items():
        holds = holds and abs(fit - expected) <= 0.02
        texts.append(f"{name} {fit:+.3f} (residual {residual:.3f})")
        data[name] = {"expected": expected, "slope": fit, "residual": residual}
    return Claim(tried, "; ".join(texts), holds, data)


def power_laws(flash: str, direction: str, last: int) -> Claim:
    """Return the claim that accesses are as N², d², M⁻¹; standard attention's as N², for N from
    2¹³ to 2^`last`.
    """

    def count_of(name: str, N: int, d: int, M: int) -> int:
        return accesses(name, N, d, M, direction)

    over_N = [(2**p, count_of(flash, 2**p, 64, 2**14)) for p in range(12, 21)]
    over_d = [(2**p, count_of(flash, 2**20, 2**p, 2**20)) for p in range(6, 11)]
    over_M = [(2**p, count_of(flash, 2**16, 64, 2**p)) for p in range(8, 17)]
    standard = [(2**p, count_of("standard", 2**p, 64, 2**20)) for p in range(13, last + 1)]
    fits = {
        "N": (2.0, slope(over_N)),
        "d": (2.0, slope(over_d)),
        "M": (-1.0, slope(over_M)),
        "N, standard": (2.0, slope(standard)),
    }
    exponent = {18: "¹⁸", 19: "¹⁹"}[last]
    tried = f"N 2¹²…2²⁰, d 2⁶…2¹⁰, M 2⁸…2¹⁶ (standard: N 2¹³…2{exponent}), others fixed"
    return exponents(tried, fits)


def within(ratios: Sequence[tuple[float, float, float]], tried: str) -> Claim:
    """Return the claim that each (ratio, c_1, c_2) has c_1 ≤ ratio ≤ c_2. `tried` says what the
    ratios are of; their number is put before it.
    """
    low = min(r for r, _, _ in ratios)
    high = max(r for r, _, _ in ratios)
    holds = all(c_1 <= ratio <= c_2 for ratio, c_1, c_2 in ratios)
    data = {"cases": len(ratios), "least": low, "most": high}
    return Claim(f"{len(ratios):,} {tried}", f"ratio from {low:.2f} to {high:.2f}", holds, data)


def none_differs(tried: str, unequal: Sequence[str], data: Mapping[str, int]) -> Claim:
    """Return the claim that nothing differs; `unequal` names what does."""
    measured = f"{len(unequal)} differ"
    if unequal:
        measured += f", first {unequal[0]}"
    return Claim(tried, measured, not unequal, {**data, "unequal": list(unequal[:10])})


def drawn(
    program: MatrixProgram, sizes: Sizes, blocks: tuple[int, ...], seed: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return operands and options to try a program with: its example's, and else normal numbers."""
    rng = np.random.default_rng(seed)
    clipped = {}
    for (name, symbol), block in zip(program.blocks.items(), blocks, strict=True):
        clipped[name] = min(block, sizes[symbol])
    special, options = program.example(rng, sizes, Sizes(**clipped))
    operands = {}
    for name, kind in program.operands.items():
        operands[name] = rng.normal(size=kind.shape(sizes))
    return {**operands, **special}, dict(options)


def attempt(
    program: MatrixProgram, sizes: Sizes, blocks: tuple[int, ...], seed: int
) -> tuple[float, bool]:
    """Run a program; return its largest error as a share of the bound, ∞ if it fails, and
    whether counts are the form's.
    """
    operands, options = drawn(program, sizes, blocks, seed)
    try:
        run = run_program(program, operands, M=10**6, blocks=blocks, options=options)
    except (ValueError, IndexError, MemoryModelError):
        return np.inf, False
    precise = {}
    for name, operand in operands.items():
        precise[name] = operand.astype(np.float64) if operand.dtype.kind == "f" else operand
    naive = naive_programs()[program.name]({**precise, **options}, run.blocks)
    errors = []
    for name, (array, bound) in naive.items():
        errors.append(of_bound(run.arrays[name].reshape(array.shape), array, bound))
    exact = exact_program(
        program.name, sizes, M=10**6, blocks=blocks, dtype="float64", options=options
    )
    return max(errors), (run.hbm, run.sram) == (exact.hbm, exact.sram)


def right_and_counted(names: Iterable[str], runs: int, tried: str, **below: int) -> Claim:
    """Return the claim that programs on random shapes, lengths `below` 40, are the naive ones
    and cost what theory says.
    """
    rng = np.random.default_rng(15)
    worst = 0.0
    equal = True
    every_program = [programs()[name] for name in names]
    for number in range(runs):
        program = every_program[number % len(every_program)]
        lengths = {}
        for symbol in program.symbols:
            lengths[symbol] = int(rng.integers(1, below.get(symbol, 40)))
        blocks = tuple(int(rng.integers(1, 30)) for _ in program.blocks)
        error, is_equal = attempt(program, Sizes(**lengths), blocks, number)
        worst = max(worst, error)
        equal = equal and is_equal
    measured = (
        f"largest error {worst:.2f} of the bound; counts {'equal' if equal else 'DIFFER FROM'} the "
        "closed forms"
    )
    data = {"runs": runs, "worst_error_over_bound": worst, "counts_equal": equal}
    return Claim(f"{runs} {tried}", measured, worst <= 1 and equal, data)

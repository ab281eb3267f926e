"""exp(100) does not fit in float32, whose exponential overflows just above 88.72; subtracting the
maximum avoids it.

In flashsim: Algorithm 1, line 10, exp(S_ij − m̃_ij), and line 11, exp(m_i − m_i^new): no argument
is above 0, so no exponential is above 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from flashsim.attention.inputs import Array
from flashsim.learn.examples.text import CHAPTER, fixed, paragraph, scientific, table, vector

CLAIMS: tuple[tuple[float, str, Literal["finite", "overflow", "zero"]], ...] = (
    (100, "2.69e43, fine", "finite"),
    (90, "+inf, overflow", "overflow"),
    (89, "4.49e38, above the largest", "overflow"),
    (85, "overflow", "overflow"),
    (-5, "0.0067", "finite"),
    (-100, "3.72e-44, subnormal", "finite"),
    (-104, "0.0, underflow", "zero"),
)
SCORES = (90.0, 85.0)


@dataclass(frozen=True)
class Claim:
    """What the chapter says of exp(x) in float32, and what it is there, and in float64."""

    x: float
    chapter: str
    claimed: Literal["finite", "overflow", "zero"]
    in_float32: float
    in_float64: float

    @property
    def right(self) -> bool:
        """Whether it is finite, infinite, or zero in float32, as the chapter says."""
        return kind_of(self.in_float32) == self.claimed


@dataclass(frozen=True)
class Limits:
    """Where a dtype's exponential ends: the numbers around overflow, and the least x whose exp
    is not 0.
    """

    dtype: str
    largest: float
    smallest_normal: float
    smallest_subnormal: float
    last_finite_x: float
    exp_of_last_finite_x: float
    first_infinite_x: float
    last_normal_x: float
    last_nonzero_x: float
    first_zero_x: float


@dataclass(frozen=True, eq=False)
class ExpOverflow:
    """The chapter's statements, the limits, and the softmax of two large scores with and without
    subtraction.
    """

    claims: tuple[Claim, ...]
    limits: tuple[Limits, ...]
    scores: Array
    exponentials: Array
    unsafe: Array
    safe: Array


def exp(x: Any, dtype: DTypeLike) -> float:
    """Return exp(x), x rounded to the dtype and the exponential computed in it."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.exp(np.dtype(dtype).type(x)))


def kind_of(y: float) -> Literal["finite", "overflow", "zero"]:
    """Return whether an exponential overflowed, or underflowed to 0."""
    if np.isinf(y):
        return "overflow"
    return "zero" if y == 0 else "finite"


def limits(dtype: DTypeLike) -> Limits:
    """Find, by trying neighbouring numbers of the dtype, where its exponential becomes infinite,
    and where 0.
    """
    info: Any = np.finfo(np.dtype(dtype))
    normal = info.smallest_normal
    log_subnormal = np.log(np.float64(info.smallest_subnormal))
    finite, infinite = _edge(dtype, np.log(info.max), np.inf, lambda y: not np.isinf(y))
    nonzero, zero = _edge(dtype, log_subnormal, -np.inf, lambda y: y != 0)
    last_normal, _ = _edge(dtype, np.log(normal), -np.inf, lambda y: y >= normal)
    return Limits(
        dtype=np.dtype(dtype).name,
        largest=float(info.max),
        smallest_normal=float(normal),
        smallest_subnormal=float(info.smallest_subnormal),
        last_finite_x=finite,
        exp_of_last_finite_x=exp(finite, dtype),
        first_infinite_x=infinite,
        last_normal_x=last_normal,
        last_nonzero_x=nonzero,
        first_zero_x=zero,
    )


def _edge(dtype: DTypeLike, guess: Any, outward: float, holds: Any) -> tuple[float, float]:
    """Return the two neighbours between which `holds(exp(x))` ends, going outward. Halving, from
    1 either side.
    """
    type_: Any = np.dtype(dtype).type
    sign = 1.0 if outward > 0 else -1.0
    inner = type_(guess - sign)
    outer = type_(guess + sign)
    while np.nextafter(inner, type_(outward)) != outer:
        middle = type_((float(inner) + float(outer)) / 2)
        if holds(exp(middle, dtype)):
            inner = middle
        else:
            outer = middle
    return float(inner), float(outer)


def compute() -> ExpOverflow:
    """Compute each exponential that the chapter names, in float32 and float64."""
    claims = []
    for x, chapter, claimed in CLAIMS:
        claims.append(Claim(x, chapter, claimed, exp(x, np.float32), exp(x, np.float64)))
    both = (limits(np.float32), limits(np.float64))
    scores = np.array(SCORES, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        exponentials = np.exp(scores)
        unsafe = exponentials / exponentials.sum()
    weights = np.exp(scores - scores.max())
    return ExpOverflow(tuple(claims), both, scores, exponentials, unsafe, weights / weights.sum())


def lines(run: ExpOverflow) -> Iterator[str]:
    """Yield what each exponential is."""
    yield "Is exp(100) fine in float32, as a book chapter says? No."
    yield ""
    rows = [("", "the chapter, for float32", "float32", "float64", "it is")]
    for claim in run.claims:
        name = f"exp({fixed(claim.x, 0)})"
        in_float32 = scientific(claim.in_float32)
        in_float64 = scientific(claim.in_float64)
        verdict = "right" if claim.right else "WRONG"
        rows.append((name, claim.chapter, in_float32, in_float64, verdict))
    yield from table(rows, left=(0, 1))
    yield "  Right or wrong: whether exp(x) is finite, infinite or 0 in float32."
    for end in run.limits:
        yield f"\n{end.dtype}: largest number {scientific(end.largest, 4)}"
        digits = 5 if end.dtype == "float32" else 4
        ends = [
            (
                "largest x with a finite exp(x)",
                fixed(end.last_finite_x, digits),
                f"exp = {scientific(end.exp_of_last_finite_x, 4)}",
            ),
            (
                "least x of full precision",
                fixed(end.last_normal_x, digits),
                f"smallest normal {scientific(end.smallest_normal)}",
            ),
            (
                "least x with exp(x) above 0",
                fixed(end.last_nonzero_x, digits),
                f"smallest subnormal {scientific(end.smallest_subnormal)}",
            ),
        ]
        yield from table(ends, left=(0, 2))
    by_x = {claim.x: claim for claim in run.claims}
    small = by_x[-100]
    off = abs(small.in_float32 / small.in_float64 - 1)
    steps = small.in_float32 / run.limits[0].smallest_subnormal
    yield from paragraph(
        f"exp(−100) is {scientific(small.in_float64)}, but what float32 keeps of it is "
        f"{scientific(small.in_float32)}: "
        f"{steps:.0f} times its smallest subnormal number, so {off:.1%} off."
    )
    yield f"\nSoftmax of {vector(run.scores)} in float32"
    yield (
        f"  exp(z) / sum, without subtraction: [{_list(run.exponentials)}] / sum = "
        f"[{_list(run.unsafe)}]"
    )
    yield f"  exp(z − max) / sum:                 {vector(run.safe)}"
    hundred = by_x[100]
    eighty_five = by_x[85]
    yield from paragraph(
        f"The chapter is {CHAPTER}. exp(100) is {scientific(hundred.in_float64)}, as it says, but "
        "in float64: it is far above "
        "float32's largest number. The chapter's next line says that exp(89) = 4.49e38 is above "
        "it already, and the two lines "
        f"contradict each other. exp(85) = {scientific(eighty_five.in_float32)} is finite: "
        "overflow starts above x = "
        f"{run.limits[0].last_finite_x:.5f}."
    )


def _list(values: Array) -> str:
    return ", ".join(scientific(x) for x in values)

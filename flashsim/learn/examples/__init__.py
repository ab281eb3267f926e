"""Worked examples, step by step: a book chapter's causal tiles, two statements of the chapter that
are wrong, and two examples of ours.

    EXAMPLES[name].compute()    the steps, as dataclasses of numbers and arrays
    EXAMPLES[name].lines(steps) the same as text, in pieces of a line or more
    as_json(steps)              the same as plain data; JSON has no infinities, so these become
                                "inf", "-inf", "nan"

Each number is computed from the example's inputs, at full precision, and rounded only when it is
printed. The chapter is "FlashAttention: Theory and Practice"; its m is the paper's m, its s the
paper's ℓ, its O not yet divided by s.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from flashsim.learn.examples import (
    exp_overflow,
    kernel_product,
    not_bit_for_bit,
    prefill,
    same_curve,
)

__all__ = ["EXAMPLES", "Example", "as_json"]


@dataclass(frozen=True)
class Example:
    """A worked example.

    about    its subject, in a line
    where    the same step in flashsim's algorithms
    compute  returns its steps
    lines    returns the steps as text
    """

    about: str
    where: str
    compute: Callable[[], Any]
    lines: Callable[[Any], Iterator[str]]


def _example(about: str, module: Any) -> Example:
    where = " ".join((module.__doc__ or "").partition("\nIn flashsim: ")[2].split())
    return Example(about, where, module.compute, module.lines)


EXAMPLES: dict[str, Example] = {
    "prefill": _example("causal attention in tiles: n = 6, d = 2, three query tiles", prefill),
    "not_bit_for_bit": _example(
        "tiled and standard attention differ, within rounding", not_bit_for_bit
    ),
    "exp_overflow": _example(
        "exp(100) is infinite in float32: why the maximum is subtracted", exp_overflow
    ),
    "kernel_product": _example(
        "distances by differences, and by squares, which cancel", kernel_product
    ),
    "same_curve": _example("one training curve, whichever attention (about a minute)", same_curve),
}


def as_json(steps: Any) -> Any:
    """Return dataclasses, arrays and numbers as plain data that JSON can hold."""
    if is_dataclass(steps):
        names = [field.name for field in fields(steps)]
        attributes = vars(type(steps)).items()
        names += [name for name, value in attributes if isinstance(value, property)]
        return {name: as_json(getattr(steps, name)) for name in names}
    if isinstance(steps, np.ndarray | np.generic):
        return as_json(steps.tolist())
    if isinstance(steps, list | tuple | range):
        return [as_json(item) for item in steps]
    if isinstance(steps, float) and not math.isfinite(steps):
        return str(steps)
    return steps

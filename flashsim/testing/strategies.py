"""Hypothesis strategies for cases. They draw a regime, a shape and a seed instead of elements, so
that a failing case fits in a line.

Hypothesis shrinks towards the first of a list of choices, so the simplest value comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from flashsim.testing.case import Case
from flashsim.testing.kernel import strides_of
from flashsim.testing.regimes import BIASES, MASKS, REGIMES, SINKS, SOFT_CAPS
from flashsim.testing.spec import Spec, check_spec

SMALL = 12
LONG = (257, 1500, 4100)
SCALES = (None, None, 1.0, 0.5, 0.1, 2.5)


def cases(spec: Spec) -> st.SearchStrategy[Case]:
    """Return a strategy of the cases that a kernel with that spec must handle.

    Most are small. Some have lengths around the multiples of the spec's blocks, and a few one long
    row. With `spec.max_shapes` the shapes come from `pool(spec)`. Raises ValueError if `spec` is
    not a Spec.
    """
    check_spec(spec)
    shape = shapes(spec) if spec.max_shapes is None else st.sampled_from(pool(spec).shapes)
    return st.builds(lambda shape, rest: Case(**shape, **rest), shape, features(spec))


def features(spec: Spec) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy of a case's other fields: all but its shape."""
    strategies: dict[str, st.SearchStrategy[Any]] = {
        "dtype": st.sampled_from(spec.dtypes),
        "regime": st.sampled_from((*REGIMES, "negative", "real")),
        "seed": st.integers(0, 2**16),
        "block": st.just(spec.block),
    }
    B_c = spec.block[1]
    windows = ((0, 0), (1, 0), (2, 1), (5, 0), (3, -1), (-1, 2), (B_c - 1, 0), (B_c, B_c))
    if spec.causal:
        strategies["causal"] = st.booleans()
    if spec.masks:
        strategies["mask"] = _none_or(MASKS, len(MASKS) // 2)
    if spec.window:
        strategies["window"] = _none_or(windows, len(windows) // 2)
    if spec.bias:
        strategies["bias"] = _none_or(BIASES, len(BIASES) // 2)
    if spec.softcap:
        strategies["softcap"] = _none_or(SOFT_CAPS, len(SOFT_CAPS))
    if spec.alibi:
        strategies["alibi"] = st.booleans()
    if spec.sink:
        strategies["sink"] = _none_or(SINKS, len(SINKS) // 2)
    if spec.scale:
        strategies["scale"] = st.sampled_from(SCALES)
    kinds = strides_of(spec)
    if len(kinds) > 1:
        contiguous = ["contiguous"] * (len(kinds) - 1)
        strategies["strides"] = st.sampled_from((*contiguous, *kinds[1:]))
    return st.fixed_dictionaries(strategies)


def _none_or(values: Iterable[Any], times: int) -> st.SearchStrategy[Any]:
    """Return a strategy of None, so many times, and the values."""
    return st.sampled_from((*[None] * times, *values))


@st.composite
def shapes(draw: st.DrawFn, spec: Spec) -> dict[str, Any]:
    """Draw B, heads, lengths and widths."""
    size = draw(st.sampled_from(("small",) * 10 + ("block",) * 7 + ("long",) * 2))
    small = size == "small"
    if small:
        N_q = draw(st.integers(1, SMALL))
        lengths = [*range(1, SMALL + 1)]
        if spec.zero_keys:
            lengths += [0, 0]
        N_k = draw(st.sampled_from(lengths)) if spec.cross else N_q
    elif size == "block":
        B_r, B_c = spec.block
        N_q = draw(st.sampled_from(around(B_r)))
        N_k = draw(st.sampled_from(around(B_c))) if spec.cross else N_q
    else:
        N_q, N_k = draw(long_lengths(spec))
    N_q, N_k = spec.lengths(N_q, N_k)
    shape = {"N_q": N_q, "N_k": N_k, "d": draw(width(spec, size))}
    if spec.d_v and draw(st.booleans()):
        shape["d_v"] = draw(width(spec, size))
    most_kv_heads = {"small": 3, "block": 2, "long": 1}[size]
    shape["B"] = draw(st.integers(1, 3 if small else 1))
    shape["H_kv"] = draw(st.integers(1, most_kv_heads))
    if spec.gqa:
        shape["group"] = draw(st.sampled_from((1, 2, 3, 4) if small else (1, 1, 2)))
    return shape


@st.composite
def long_lengths(draw: st.DrawFn, spec: Spec) -> tuple[int, int]:
    """Draw (N_q, N_k), of which one is long."""
    long = draw(st.sampled_from(LONG))
    short = draw(st.integers(1, 3))
    if not spec.cross:
        return LONG[0], LONG[0]
    many_queries = draw(st.integers(0, 3)) == 3
    return (long, short) if many_queries else (short, long)


def around(block: int) -> list[int]:
    """Return lengths at, next to and between the multiples of a block, the shortest first."""
    lengths = set()
    for m in (1, 2, 3, 5):
        if m * block <= 300 or m == 1:
            for offset in (-1, 0, 1, block // 2):
                lengths.add(m * block + offset)
    return sorted(n for n in lengths if n > 0)


def width(spec: Spec, size: str) -> st.SearchStrategy[int]:
    """Return a strategy of head dimensions: those of the spec, or mostly small ones."""
    if spec.head_dims is not None:
        return st.sampled_from(sorted(spec.head_dims))
    if size == "small":
        return st.integers(1, 9)
    return st.sampled_from((1, 2, 3, 4, 8, 16, 32, 64) if size == "block" else (2, 64))


# ------------------------------------------------------------------------ few shapes, for compilers


@dataclass(frozen=True)
class Pool:
    """At most `spec.max_shapes` shapes.

    shapes   of cases, as fields of a Case
    allowed  the shapes of (q, k, v) with which the kernel may be called
    """

    shapes: Sequence[dict[str, Any]]
    allowed: frozenset[tuple[tuple[int, ...], ...]]


def pool(spec: Spec) -> Pool:
    """Return the shapes for a spec with `max_shapes`: half of them for cases, the others for the
    problems that checks make from those.
    """
    assert spec.max_shapes is not None
    bases = _candidates(spec)[: max(1, (spec.max_shapes + 1) // 2)]
    shapes = list(bases)
    for base in bases:
        shapes += _derived(base, spec)
    allowed = list(dict.fromkeys(map(_shapes_of_arrays, shapes)))
    return Pool(bases, frozenset(allowed[: spec.max_shapes]))


def _candidates(spec: Spec) -> list[dict[str, Any]]:
    """Return distinct shapes, those that show most bugs first: ragged, N_q < N_k, N_q > N_k,
    grouped, aligned, single, …
    """
    B_r, B_c = spec.block
    dims = sorted(spec.head_dims or (8, 3, 16, 64))
    lengths = [
        (B_r + 1, 2 * B_c + 3),
        (2 * B_r + 3, B_c - 1 or 1),
        (5, 7),
        (1, 1),
        (2 * B_r, 2 * B_c),
        (1, 3 * B_c + 1),
        (B_r - 1 or 1, B_c + 1),
        (B_r, B_c),
        (3, 2 * B_c),
        (7, 4),
        (3 * B_r + 1, 5 * B_c),
        (2, 600),
        (9, 9),
    ]
    rng = np.random.default_rng(0)
    shapes = []
    for i in range(8 * len(lengths)):
        N_q, N_k = lengths[i % len(lengths)]
        N_q, N_k = spec.lengths(N_q, N_k if spec.cross else N_q)
        shape: dict[str, Any] = {"N_q": N_q, "N_k": N_k, "d": dims[i % len(dims)]}
        if spec.d_v and i % 2:
            shape["d_v"] = dims[(i + 1) % len(dims)]
        shape["B"] = int(rng.integers(1, 3))
        shape["H_kv"] = int(rng.integers(1, 3))
        if spec.gqa:
            shape["group"] = (2, 1, 3)[i % 3]
        if shape not in shapes:
            shapes.append(shape)
    return shapes


def _derived(shape: dict[str, Any], spec: Spec) -> list[dict[str, Any]]:
    """Return the shapes that checks make of this one: heads repeated, keys appended, keys split."""
    N_k = shape["N_k"]
    shapes = []
    if shape.get("group", 1) > 1:
        shapes.append(shape | {"H_kv": shape["H_kv"] * shape["group"], "group": 1})
    if spec.cross and N_k > spec.multiples[1]:
        _, half = spec.lengths(1, N_k // 2)
        _, extra = spec.lengths(1, spec.block[1])
        for n in (N_k + extra, half, N_k - half):
            shapes.append(shape | {"N_k": n})
    return shapes


def _shapes_of_arrays(shape: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of q, k and v."""
    case = Case(**shape)
    d_v = case.d if case.d_v is None else case.d_v
    q = (case.B, case.H_kv * case.group, case.N_q, case.d)
    k = (case.B, case.H_kv, case.N_k, case.d)
    v = (case.B, case.H_kv, case.N_k, d_v)
    return q, k, v

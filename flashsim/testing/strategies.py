"""Hypothesis strategies for cases: a regime, a shape and a seed rather than elements, so that
failures shrink to a line.

Whatever is off, short or plain comes first in a choice, which is where Hypothesis shrinks to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from flashsim.testing.case import Case
from flashsim.testing.regimes import BIASES, MASKS, REGIMES, SINKS, SOFT_CAPS
from flashsim.testing.spec import Spec, check_spec
from flashsim.testing.subject import strides_of

SMALL = 12
LONG = (257, 1500, 4100)
SCALES = (None, None, 1.0, 0.5, 0.1, 2.5)


def cases(spec: Spec) -> st.SearchStrategy[Case]:
    """Return a strategy of the cases that a kernel with that spec must handle.

    Most are small; some have lengths around the multiples of the spec's blocks, and a few one long
    row. With `spec.max_shapes` shapes come from `pool(spec)`. Raises ValueError unless it is a
    Spec.
    """
    check_spec(spec)
    drawn = shapes(spec) if spec.max_shapes is None else st.sampled_from(pool(spec).shapes)
    return st.builds(lambda shape, rest: Case(**shape, **rest), drawn, features(spec))


def features(spec: Spec) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy of everything in a case but its shape."""
    offered: dict[str, st.SearchStrategy[Any]] = {
        "dtype": st.sampled_from(spec.dtypes),
        "regime": st.sampled_from((*REGIMES, "negative", "real")),
        "seed": st.integers(0, 2**16),
        "block": st.just(spec.block),
    }
    B_c = spec.block[1]
    windows = ((0, 0), (1, 0), (2, 1), (5, 0), (3, -1), (-1, 2), (B_c - 1, 0), (B_c, B_c))
    for name, taken, values in (
        ("causal", spec.causal, (False, True)),
        ("mask", spec.masks, (*[None] * (len(MASKS) // 2), *MASKS)),
        ("window", spec.window, (*[None] * (len(windows) // 2), *windows)),
        ("bias", spec.bias, (*[None] * (len(BIASES) // 2), *BIASES)),
        ("softcap", spec.softcap, (*[None] * len(SOFT_CAPS), *SOFT_CAPS)),
        ("alibi", spec.alibi, (False, True)),
        ("sink", spec.sink, (*[None] * (len(SINKS) // 2), *SINKS)),
        ("scale", spec.scale, SCALES),
    ):
        if taken:
            offered[name] = st.booleans() if values == (False, True) else st.sampled_from(values)
    kinds = strides_of(spec)
    if len(kinds) > 1:
        offered["strides"] = st.sampled_from((*["contiguous"] * (len(kinds) - 1), *kinds[1:]))
    return st.fixed_dictionaries(offered)


@st.composite
def shapes(draw: st.DrawFn, spec: Spec) -> dict[str, Any]:
    """Draw B, heads, lengths and widths."""
    size = draw(st.sampled_from(("small",) * 10 + ("block",) * 7 + ("long",) * 2))
    shape: dict[str, Any] = {}
    if size == "small":
        shape["N_q"] = draw(st.integers(1, SMALL))
        keys = (*range(1, SMALL + 1), *[0, 0] * bool(spec.zero_keys))
        shape["N_k"] = draw(st.sampled_from(keys)) if spec.cross else shape["N_q"]
    elif size == "block":
        B_r, B_c = spec.block
        shape["N_q"] = draw(st.sampled_from(around(B_r)))
        shape["N_k"] = draw(st.sampled_from(around(B_c))) if spec.cross else shape["N_q"]
    else:
        long = draw(st.sampled_from(LONG))
        short = draw(st.integers(1, 3))
        swapped = spec.cross and draw(st.integers(0, 3)) == 3
        shape["N_q"], shape["N_k"] = (long, short) if swapped else (short, long)
        if not spec.cross:
            shape["N_q"] = shape["N_k"] = LONG[0]
    shape["N_q"], shape["N_k"] = spec.lengths(shape["N_q"], shape["N_k"])
    shape["d"] = draw(width(spec, size))
    if spec.d_v and draw(st.booleans()):
        shape["d_v"] = draw(width(spec, size))
    small = size == "small"
    shape["B"] = draw(st.integers(1, 3 if small else 1))
    shape["H_kv"] = draw(st.integers(1, 3 if small else 2 if size == "block" else 1))
    if spec.gqa:
        shape["group"] = draw(st.sampled_from((1, 2, 3, 4) if small else (1, 1, 2)))
    return shape


def around(block: int) -> list[int]:
    """Return lengths at, next to and between the multiples of a block, the shortest first."""
    lengths = {
        m * block + off
        for m in (1, 2, 3, 5)
        for off in (-1, 0, 1, block // 2)
        if m * block <= 300 or m == 1
    }
    return sorted(n for n in lengths if n > 0)


def width(spec: Spec, size: str) -> st.SearchStrategy[int]:
    """Return a strategy of head dimensions: what the spec says; else mostly small, odd ones too."""
    if spec.head_dims is not None:
        return st.sampled_from(sorted(spec.head_dims))
    if size == "small":
        return st.integers(1, 9)
    return st.sampled_from((1, 2, 3, 4, 8, 16, 32, 64) if size == "block" else (2, 64))


# ------------------------------------------------------------------------ few shapes, for compilers


@dataclass(frozen=True)
class Pool:
    """At most `spec.max_shapes` shapes: those that cases have, and all that a kernel may be
    called with.
    """

    shapes: Sequence[dict[str, Any]]
    allowed: frozenset[tuple[tuple[int, ...], ...]]


def pool(spec: Spec) -> Pool:
    """Return the shapes to stay within: half of them for cases, the others for what checks make
    of those.
    """
    assert spec.max_shapes is not None
    bases = list(_candidates(spec))[: max(1, (spec.max_shapes + 1) // 2)]
    wanted = [*bases, *(shape for base in bases for shape in _derived(base, spec))]
    allowed = list(dict.fromkeys(_key(shape) for shape in wanted))[: spec.max_shapes]
    return Pool(bases, frozenset(allowed))


def _candidates(spec: Spec) -> list[dict[str, Any]]:
    """Return distinct shapes, the most telling first: ragged, N_q < N_k, N_q > N_k, grouped,
    aligned, single, …
    """
    (B_r, B_c), dims = spec.block, sorted(spec.head_dims or (8, 3, 16, 64))
    lengths = [
        (B_r + 1, 2 * B_c + 3),
        (2 * B_r + 3, B_c - 1 or 1),
        (5, 7),
        (1, 1),
        (2 * B_r, 2 * B_c),
        (1, 3 * B_c + 1),
    ]
    lengths += [
        (B_r - 1 or 1, B_c + 1),
        (B_r, B_c),
        (3, 2 * B_c),
        (7, 4),
        (3 * B_r + 1, 5 * B_c),
        (2, 600),
        (9, 9),
    ]
    rng = np.random.default_rng(0)
    found = []
    for at in range(8 * len(lengths)):
        N_q, N_k = lengths[at % len(lengths)]
        N_q, N_k = spec.lengths(N_q, N_k if spec.cross else N_q)
        shape: dict[str, Any] = {"N_q": N_q, "N_k": N_k, "d": dims[at % len(dims)]}
        if spec.d_v and at % 2:
            shape["d_v"] = dims[(at + 1) % len(dims)]
        shape["B"], shape["H_kv"] = int(rng.integers(1, 3)), int(rng.integers(1, 3))
        if spec.gqa:
            shape["group"] = (2, 1, 3)[at % 3]
        if shape not in found:
            found.append(shape)
    return found


def _derived(shape: dict[str, Any], spec: Spec) -> list[dict[str, Any]]:
    """Return the shapes that checks make of this one: heads repeated, keys appended, keys split."""
    N_k = shape["N_k"]
    made = []
    _, half = spec.lengths(1, N_k // 2)
    _, more = spec.lengths(1, spec.block[1])
    if shape.get("group", 1) > 1:
        made.append(shape | {"H_kv": shape["H_kv"] * shape["group"], "group": 1})
    if spec.cross and N_k > spec.multiples[1]:
        made += [shape | {"N_k": n} for n in (N_k + more, half, N_k - half)]
    return made


def _key(shape: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    case = Case(**shape)
    d_v = case.d if case.d_v is None else case.d_v
    q = (case.B, case.H_kv * case.group, case.N_q, case.d)
    return q, (case.B, case.H_kv, case.N_k, case.d), (case.B, case.H_kv, case.N_k, d_v)

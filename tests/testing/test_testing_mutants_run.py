"""The museum of buggy attentions: each bug is a bug. That what they are made of is correct, the kit
says: test_testing.py.

That our checks catch the bugs is not shown here, but that there is something to catch.
"""

import math
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from flashsim.attention.inputs import Array, float_dtype
from flashsim.testing import mutants
from flashsim.testing.mutants import ALL, BASES, Implementation, Mutant
from flashsim.testing.mutants.mutant import source
from flashsim.tracing.planting import changed

IDS = [mutant.name for mutant in ALL]


@dataclass(frozen=True)
class Case:
    """A call of an attention, all of it drawn from the seed."""

    N_q: int
    N_k: int
    d: int = 4
    d_v: int = 3
    B: int = 1
    heads: int = 1
    group: int = 1
    dtype: str = "float32"
    causal: bool = False
    mask: str = "none"
    scale: float | None = None
    dropout_p: float = 0.0
    size: float = 1.0
    shift: float = 0.0
    poison: bool = False
    strided: bool = False
    strided_keys: bool = False
    seed: int = 0

    def arrays(self) -> tuple[Array, Array, Array, Array]:
        """Return q, k, v and dO. `shift` makes all scores of that order of magnitude, with that
        sign.
        """
        rng = np.random.default_rng(self.seed)
        dtype = float_dtype(self.dtype)
        heads_q = self.heads * self.group
        shapes = [
            (heads_q, self.N_q, self.d),
            (self.heads, self.N_k, self.d),
            (self.heads, self.N_k, self.d_v),
        ]
        q, k, v, do = (
            self.laid_out(
                rng.standard_normal((self.B, *shape)),
                dtype,
                self.strided or (self.strided_keys and i == 1),
            )
            for i, shape in enumerate((*shapes, (heads_q, self.N_q, self.d_v)))
        )
        root = math.sqrt(abs(self.shift))
        q[...] = (q.astype(float) * self.size + root).astype(dtype)
        k[...] = (k.astype(float) * self.size + math.copysign(root, self.shift)).astype(dtype)
        if self.poison:
            dead = ~self.attends().any(axis=2).reshape(
                self.B, self.heads, self.group, self.N_k
            ).any(axis=2)
            k[dead], v[dead] = np.nan, np.inf
        return q, k, v, do

    @staticmethod
    def laid_out(a: Array, dtype: np.dtype[Any], strided: bool) -> Array:
        """Return the array, or an equal one whose axes lie otherwise in memory."""
        if not strided:
            return a.astype(dtype)
        other_layout = a.astype(dtype).transpose(2, 0, 3, 1).copy()
        return other_layout.transpose(1, 3, 0, 2)

    def given_mask(self) -> Array | None:
        """Return the mask."""
        rng = np.random.default_rng(self.seed + 1000)
        shape = (self.B, self.heads * self.group, self.N_q, self.N_k)
        if self.mask == "none":
            return None
        if self.mask == "padding":  # the last third of the keys of each batch is not there
            there = np.arange(self.N_k) < self.N_k - self.N_k // 3
            return np.broadcast_to(there, (self.B, 1, 1, self.N_k)).copy()
        if self.mask == "late":  # the first 8 keys are masked, and one row is empty
            mask = np.broadcast_to(np.arange(self.N_k) >= 8, shape).copy()
            mask[..., 0, :] = False
            return mask
        if self.mask == "absent":  # the last batch has no keys
            return np.broadcast_to(
                np.arange(self.B)[:, None, None, None] < self.B - 1, shape
            ).copy()
        mask = rng.random(shape) < 0.6
        mask[:, :, :: max(2, self.N_q // 2)] = False  # empty rows
        mask[..., :: max(2, self.N_k // 2)] = False  # dead keys
        return mask

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments."""
        as_they_are = {
            name: getattr(self, name) for name in ("causal", "scale", "dropout_p", "seed")
        }
        return {**as_they_are, "mask": self.given_mask()}

    def attends(self) -> Array:
        """Return which keys each query attends to."""
        shape = (self.B, self.heads * self.group, self.N_q, self.N_k)
        ok = np.ones(shape, bool)
        if self.causal:
            ok &= np.tri(self.N_q, self.N_k, self.N_k - self.N_q, dtype=bool)
        mask = self.given_mask()
        return ok if mask is None else ok & mask


@pytest.mark.parametrize("name", BASES)
def test_bases_drop_what_the_other_algorithms_drop(name: str) -> None:
    from flashsim.attention.masks.dropout import keep_mask

    kept = BASES[name].keep((2, 3, 5, 7), 0.4, 11)
    for b, h in np.ndindex(2, 3):
        expected = keep_mask(11, 0.4, 5, 7, head=b * 3 + h)
        assert np.array_equal(kept[b, h], expected)
    whole = BASES[name].keep((2, 3, 5, 7), 0.0, 11)
    assert whole.all()


# --------------------------------------------------------------------------------------------------
# mutants

TRIED = [
    Case(13, 22),
    Case(13, 22, size=4.0),
    Case(13, 22, causal=True),
    Case(22, 13, causal=True),
    Case(24, 24, causal=True, d=3),
    Case(8, 8),
    Case(1, 1, d=16, d_v=16),
    Case(14, 19, mask="padding", poison=True),
    Case(14, 19, mask="late", shift=-1000.0),
    Case(14, 19, mask="late", shift=-3e5),
    Case(14, 19, mask="random", poison=True, B=2),
    Case(14, 19, shift=300.0),
    Case(13, 22, heads=2, group=2, d_v=4),
    Case(13, 22, heads=2, group=3, B=2, causal=True),
    Case(13, 22, strided=True, heads=2),
    Case(1, 40, dtype="bfloat16"),
    Case(1, 600, dtype="bfloat16"),
    Case(1, 600, dtype="float16"),
    Case(9, 33, dtype="bfloat16", size=4.0),
    Case(13, 22, scale=0.3),
    Case(13, 22, dropout_p=0.3),
    Case(13, 22, dropout_p=0.75, causal=True, heads=2),
    Case(5, 0),
    Case(1, 1100, d=64, d_v=64),
    Case(6, 6, d=1),
    Case(13, 22, d=2, d_v=7),
    Case(13, 22, heads=2, strided_keys=True),
    Case(9, 33, d=3, dtype="bfloat16", size=4.0),
    Case(1, 17, heads=2, group=3),
    Case(30, 13, causal=True, heads=2),
    Case(14, 19, mask="random", causal=True, poison=True, heads=2),
    Case(13, 22, mask="absent", B=2, heads=2),
]


@cache
def of_base(name: str, case: Case) -> tuple[Array, ...]:
    return results(BASES[name], case)


def results(implementation: Implementation, case: Case) -> tuple[Array, ...]:
    """Return O, the log-sum-exp, dQ, dK, dV, and what has become of the inputs."""
    q, k, v, do = case.arrays()
    options = case.options()
    with np.errstate(all="ignore"):
        result = (
            *implementation(q, k, v, **options),
            *implementation.backward(q, k, v, do, **options),
        )
    return *result, q, k, v, do


def differs(mutant: Mutant, built: Implementation, case: Case) -> set[str]:
    """Return which results of the bug are not the correct attention's: or "fails".

    By far more than rounding, or, where it promises bits, by a bit.
    """
    try:
        wrong = results(built, case)
    except (ValueError, IndexError):
        return {"fails"}
    names = ("O", "lse", "dq", "dk", "dv", "input", "input", "input", "input")
    tolerance = 0.0 if mutant.spec.batch_invariant else 1e-4 if case.dtype == "float32" else 2e-3
    right = of_base(mutant.base, case)
    differing = set()
    for name, a, b in zip(names, wrong, right, strict=True):
        close = np.allclose(
            a.astype(float), b.astype(float), rtol=tolerance, atol=tolerance, equal_nan=True
        )
        if not close:
            differing.add(name)
    return differing


@pytest.mark.slow
@pytest.mark.parametrize("mutant", ALL, ids=IDS)
def test_the_bug_is_one(mutant: Mutant) -> None:
    """Somewhere it shows: in the pass that it is said to be in, and in no other if that is the
    backward pass.

    And somewhere it does not, or it would not be a challenge.
    """
    hiding = mutant.build()
    assert not all(differs(mutant, hiding, case) for case in TRIED)
    built = mutant.build()  # anew: some bugs are in what a kernel remembers
    difference = (differs(mutant, built, case) for case in TRIED)
    if mutant.part == "forward":
        assert any(difference)
        return
    noticed = [*difference]
    assert any(noticed)
    if mutant.part == "backward":
        assert not set().union(*noticed) & {"O", "lse"}
    if mutant.part == "dropout":
        assert not any(
            difference
            for difference, case in zip(noticed, TRIED, strict=True)
            if case.dropout_p == 0
        )


@pytest.mark.parametrize("mutant", ALL, ids=IDS)
def test_descriptions(mutant: Mutant) -> None:
    text = source(mutant.base)[1]
    assert mutant.changes
    for before, after in mutant.changes:
        assert changed(text, [(before, after)], mutant.base) != text
    assert mutant.name.isidentifier()
    assert mutant.bug.endswith(".")
    assert mutant.threads or mutant.name == "causal_offset_flipped"  # which the kit met itself
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", thread) for thread in mutant.threads)
    assert mutant.part in ("forward", "backward", "dropout")


def test_names_are_unique_and_importable() -> None:
    assert len(set(IDS)) == len(IDS) >= 26
    assert not set(IDS) & {*mutants.__all__, *BASES}
    kernel = mutants.causal_top_left
    assert isinstance(kernel, Implementation)
    q, k, v, do = Case(5, 9).arrays()
    O = kernel(q, k, v)[0]
    assert np.array_equal(O, kernel.forward(q, k, v)[0])
    assert len(kernel.backward(q, k, v, do)) == 3
    kept = kernel.keep((1, 1, 5, 9), 0.5, 0)
    assert kept.shape == (1, 1, 5, 9)
    assert kernel.spec.causal == "bottom_right"
    assert "causal_top_left" in dir(mutants)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = mutants.nothing


def test_a_change_that_does_not_fit_is_refused() -> None:
    changes = (("no such text", ""),)
    stale = Mutant("stale", "Stale.", ("a/b#1",), "tiled", changes)
    with pytest.raises(ValueError, match="occurs 0 times"):
        stale.build()

"""Tests that most kernels have: np.allclose on Gaussian inputs of one square, aligned shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flashsim import reference
from flashsim.inputs import float_dtype
from flashsim.testing.mutants import Implementation, Mutant

TOLERANCE = 1e-2  # absolute and relative


@dataclass(frozen=True)
class UsualTest:
    """Such a test: (B, H, N, d) of its inputs, of seed 0, and what it compares besides O. Gradients are for dO = 1."""

    shape: tuple[int, int, int, int]
    dtypes: tuple[str, ...] = ("float32",)
    causal: tuple[bool, ...] = (False,)
    gradients: bool = False
    dropout: bool = False

    def notices(self, mutant: Mutant, built: Implementation) -> bool:
        """Whether the test would fail. Only a bug of dropout's is tried with dropout, the mask given."""
        rng = np.random.default_rng(0)
        arrays = [rng.normal(size=self.shape) for _ in range(3)]
        dropped = (0.0, 0.2) if self.dropout and mutant.part == "dropout" else (0.0,)
        return any(
            self._differs(built, [a.astype(float_dtype(dtype)) for a in arrays], causal, p)
            for dtype in self.dtypes
            for causal in self.causal
            for p in dropped
        )

    def _differs(self, built: Implementation, inputs: list[Any], causal: bool, p: float) -> bool:
        B, H, N, _ = self.shape
        q, k, v = inputs
        options: dict[str, Any] = {"causal": causal} | ({"dropout_p": p, "seed": 1} if p else {})
        keep = built.keep((B, H, N, N), p, 1) if p else None
        how: dict[str, Any] = {"mask": np.tri(N, dtype=bool) if causal else None, "keep": keep, "dropout_p": p}
        with np.errstate(all="ignore"):
            want = [reference.attention(q, k, v, **how)]
            want += reference.gradients(q, k, v, np.ones_like(q), **how) if self.gradients else []
            got = [built(q, k, v, **options)[0]]
            got += built.backward(q, k, v, np.ones_like(q), **options) if self.gradients else []
        return not all(
            np.allclose(np.asarray(a, float), b, TOLERANCE, TOLERANCE) for a, b in zip(got, want, strict=True)
        )


TEXTBOOK = UsualTest((1, 2, 64, 32), ("float32", "float16"), (False, True), gradients=True, dropout=True)
COURSE = {  # what a course's tests compare, one 128 × 128 shape, float32
    "O": UsualTest((1, 1, 128, 128)),
    "O and the gradients": UsualTest((1, 1, 128, 128), gradients=True),
    "the same, causal too": UsualTest((1, 1, 128, 128), causal=(False, True), gradients=True),
    "the same, with dropout's mask too": UsualTest(
        (1, 1, 128, 128), causal=(False, True), gradients=True, dropout=True
    ),
}

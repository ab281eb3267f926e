"""Attention problems for property tests: regime + small shape + seed, so that failures shrink to something readable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

Array = NDArray[Any]
DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def _gaussian(rng: np.random.Generator, q: Array, k: Array) -> tuple[Array, Array]:
    return q, k


def _rising(rng: np.random.Generator, q: Array, k: Array) -> tuple[Array, Array]:
    return np.abs(q), np.linspace(0, 30, len(k))[:, None] + np.zeros_like(k)


def _falling(rng: np.random.Generator, q: Array, k: Array) -> tuple[Array, Array]:
    return np.abs(q), np.linspace(30, 0, len(k))[:, None] + np.zeros_like(k)


def _equal(rng: np.random.Generator, q: Array, k: Array) -> tuple[Array, Array]:
    return q, np.ones_like(k)


def _massive(rng: np.random.Generator, q: Array, k: Array) -> tuple[Array, Array]:
    return np.sign(q) / q.shape[1], np.sign(k) * 5e4


def _very_negative(rng: np.random.Generator, q: Array, k: Array) -> tuple[Array, Array]:
    return np.ones_like(q) / q.shape[1], k - 1e4


def _mostly_masked_like(rng: np.random.Generator, q: Array, k: Array) -> tuple[Array, Array]:
    """All keys but a few look masked, as by a large negative bias."""
    live = rng.random((len(k), 1)) < 0.2
    return np.ones_like(q) / q.shape[1], np.where(live, k, -3e4)


def _outliers(rng: np.random.Generator, q: Array, k: Array) -> tuple[Array, Array]:
    return q, k + 30 * (rng.random(k.shape) < 0.05) * rng.normal(size=k.shape)


def _ties(rng: np.random.Generator, q: Array, k: Array) -> tuple[Array, Array]:
    return np.round(q), np.round(k)


REGIMES: dict[str, Callable[[np.random.Generator, Array, Array], tuple[Array, Array]]] = {
    "gaussian": _gaussian,
    "rising": _rising,
    "falling": _falling,
    "all equal": _equal,
    "±5·10⁴": _massive,
    "all very negative": _very_negative,
    "masked-like": _mostly_masked_like,
    "outliers": _outliers,
    "ties": _ties,
}


@dataclass(frozen=True)
class Case:
    """One problem, and how to tile it."""

    regime: str
    N_q: int
    N_k: int
    d: int
    d_v: int
    dtype: str
    seed: int
    B_r: int
    B_c: int

    def inputs(self) -> tuple[Array, Array, Array]:
        rng = np.random.default_rng(self.seed)
        q, k, v = (rng.normal(size=s) for s in ((self.N_q, self.d), (self.N_k, self.d), (self.N_k, self.d_v)))
        q, k = REGIMES[self.regime](rng, q, k)
        return q.astype(DTYPES[self.dtype]), k.astype(DTYPES[self.dtype]), v.astype(DTYPES[self.dtype])


def cases(max_n: int = 40, dtypes: tuple[str, ...] = tuple(DTYPES)) -> st.SearchStrategy[Case]:
    lengths = st.integers(1, max_n)
    blocks = st.integers(1, max_n + 10)  # B > N included
    return st.builds(
        Case,
        regime=st.sampled_from(list(REGIMES)),
        N_q=lengths,
        N_k=lengths,
        d=st.integers(1, 9),
        d_v=st.integers(1, 9),
        dtype=st.sampled_from(dtypes),
        seed=st.integers(0, 2**16),
        B_r=blocks,
        B_c=blocks,
    )


def room_for(B_r: int, B_c: int, d: int, d_v: int, N_k: int) -> int:
    """Enough SRAM for any algorithm here with these blocks."""
    return (B_r + B_c) * (d + d_v) + B_r * B_c + 6 * B_r + N_k + 8

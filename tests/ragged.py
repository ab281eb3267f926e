"""Ragged batches to try programs with: drawn at random, run, and what they should give, by NumPy alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim import serving
from flashsim.serving import ServingRun

Array = NDArray[Any]


def attention(Q: Array, K: Array, V: Array, causal: bool = True) -> tuple[Array, Array]:
    """O (H_q, N, d_v) and its log-sum-exp (H_q, N) of one sequence; 0 and −∞ for a row without a key."""
    g = len(Q) // len(K)
    S = np.einsum("hid,hjd->hij", Q, np.repeat(K, g, axis=0)) / np.sqrt(Q.shape[2])
    N, n = S.shape[1:]
    if causal:
        S = np.where(np.arange(n) <= np.arange(N)[:, None] + n - N, S, -np.inf)
    top = S.max(axis=2, initial=-np.inf, keepdims=True)
    P = np.exp(S - np.where(top == -np.inf, 0, top))
    l = P.sum(axis=2, keepdims=True)
    with np.errstate(divide="ignore"):
        return P @ np.repeat(V, g, axis=0) / np.where(l == 0, 1, l), (top + np.log(l))[..., 0]


@dataclass(frozen=True)
class Drawn:
    """A run; what each sequence attends to by itself; and how `serving.count` is asked for the same."""

    run: ServingRun
    wanted: list[tuple[Array, Array]]
    asked: Mapping[str, Any]

    def wrong(self, run: ServingRun) -> list[int]:
        """The sequences in which a run's numbers are not these."""
        pairs = zip(run.O, run.lse, self.wanted, strict=True)
        equal = [np.allclose(O, o, atol=1e-11) and np.allclose(L, l, atol=1e-11) for O, L, (o, l) in pairs]
        return [s for s, fine in enumerate(equal) if not fine]


def lengths(rng: np.random.Generator, most: tuple[int, int] = (6, 14)) -> tuple[list[int], list[int]]:
    """N_s and n_s of up to 4 sequences, often 0, 1, or equal."""
    b = int(rng.integers(1, 5))
    N, n = (rng.integers(0, end, b) * (rng.random(b) > 0.15) for end in most)
    n = np.where(rng.random(b) < 0.2, N, n)
    return N.tolist(), n.tolist()


def arrays(rng: np.random.Generator) -> tuple[list[Array], list[Array], list[Array], dict[str, Any]]:
    """Q, K, V by sequence, and what `serving.count` is asked for the same lengths."""
    N, n = lengths(rng)
    H, g, d, d_v = (int(rng.integers(1, end)) for end in (3, 4, 5, 5))
    Q, K, V = (
        [rng.normal(size=(heads, length, width)) for length in of]
        for heads, of, width in ((g * H, N, d), (H, n, d), (H, n, d_v))
    )
    return Q, K, V, {"queries": N, "keys": n, "d": d, "d_v": d_v, "heads": g * H, "kv_heads": H, "dtype": "float64"}


def blocks(rng: np.random.Generator) -> tuple[int, int] | None:
    return None if rng.random() < 0.2 else (int(rng.integers(1, 9)), int(rng.integers(1, 8)))


def in_pages(rng: np.random.Generator, K: list[Array], p: int) -> tuple[Array, Array, Callable[[list[Array]], Array]]:
    """A table of pages at random in a pool, and lengths; and what puts sequences there, with NaN in all other rows."""
    n = np.array([k.shape[1] for k in K])
    needed = -(-n // p)
    pages = int(needed.sum()) + 2
    table = np.full((len(K), max(1, *needed) + int(rng.integers(2))), -1)
    free = rng.permutation(pages).tolist()
    for s, width in enumerate(needed):
        table[s, :width] = [free.pop() for _ in range(width)]

    def pool(sequences: list[Array]) -> Array:
        found = np.full((len(sequences[0]), pages * p, sequences[0].shape[2]), np.nan)
        for s, rows in enumerate(sequences):
            at = [table[s, j // p] * p + j % p for j in range(rows.shape[1])]
            found[:, at] = rows
        return found

    return table, n, pool


def paged(rng: np.random.Generator) -> Drawn:
    Q, K, V, asked = arrays(rng)
    p = int(rng.integers(1, 7))
    how: dict[str, Any] = {
        "page": p, "tail": ("rows", "page")[int(rng.integers(2))], "causal": bool(rng.integers(2)), "M": 1000,
        "blocks": blocks(rng),
    }  # fmt: skip
    table, n, pool = in_pages(rng, K, p)
    run = serving.paged(Q, pool(K), pool(V), table, n, **how)
    return Drawn(run, [*map(attention, Q, K, V, [how["causal"]] * len(Q))], {**asked, **how})


DRAWN: dict[str, Callable[[np.random.Generator], Drawn]] = {"paged": paged}

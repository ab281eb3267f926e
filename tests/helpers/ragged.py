"""Ragged batches to try programs with: drawn at random, run, and what they should give, by NumPy
alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim import serving
from flashsim.memory.sram import Observer
from flashsim.serving.api import BatchPlan, finished, gradients
from flashsim.serving.record import BatchProgram

Array = NDArray[Any]


def attention(
    Q: Array, K: Array, V: Array, causal: bool = True, shared: int = 0
) -> tuple[Array, Array]:
    """O (H_q, N, d_v) and its log-sum-exp (H_q, N) of one sequence; 0 and −∞ for a row without a
    key. All see `shared` keys.
    """
    g = len(Q) // len(K)
    S = np.einsum("hid,hjd->hij", Q, np.repeat(K, g, axis=0)) / np.sqrt(Q.shape[2])
    N, n = S.shape[1:]
    if causal:
        S = np.where(
            (np.arange(n) <= np.arange(N)[:, None] + n - N) | (np.arange(n) < shared), S, -np.inf
        )
    top = S.max(axis=2, initial=-np.inf, keepdims=True)
    P = np.exp(S - np.where(top == -np.inf, 0, top))
    l = P.sum(axis=2, keepdims=True)
    with np.errstate(divide="ignore"):
        return P @ np.repeat(V, g, axis=0) / np.where(l == 0, 1, l), (top + np.log(l))[..., 0]


def attention_gradients(
    Q: Array, K: Array, V: Array, dO: Array, causal: bool
) -> tuple[Array, Array, Array]:
    """dQ, dK, dV of one sequence, those of heads that share K and V summed up."""
    O, lse = attention(Q, K, V, causal)
    k, v = (np.repeat(X, len(Q) // len(K), axis=0) for X in (K, V))
    scale, (N, n) = 1 / np.sqrt(Q.shape[2]), (Q.shape[1], K.shape[1])
    events = (np.arange(n) <= np.arange(N)[:, None] + n - N) | (not causal)
    with np.errstate(invalid="ignore", over="ignore"):
        P = np.where(events, np.exp(scale * Q @ k.swapaxes(1, 2) - lse[..., None]), 0)
    dS = P * (dO @ v.swapaxes(1, 2) - (dO * O).sum(2, keepdims=True))
    dK, dV = (
        X.reshape(len(K), len(Q) // len(K), *X.shape[1:]).sum(1)
        for X in (scale * dS.swapaxes(1, 2) @ Q, P.swapaxes(1, 2) @ dO)
    )
    return scale * dS @ k, dK, dV


@dataclass(frozen=True)
class Drawn:
    """A run; what each sequence attends to by itself; and how `serving.count` is asked for the
    same.
    """

    run: Any
    wanted: Sequence[tuple[Array, ...]]
    asked: Mapping[str, Any]
    given: list[tuple[Array, Array, Array]] = field(default_factory=list)

    def again(
        self,
        program: BatchProgram | None = None,
        observers: Sequence[Observer] = (),
        **batch: Any,
    ) -> Any:
        """Run the same with another program, or with a batch of which something else is so."""
        plan = self.run.plan
        changed = BatchPlan.of(
            program or plan.program, replace(plan.batch, **batch), plan.options, plan.operands
        )
        finish = finished if plan.program.direction == "forward" else gradients
        return finish(changed, observers)

    def wrong(self, run: Any) -> list[tuple[int, str]]:
        """The sequences, and arrays, in which a run's numbers are not these."""
        names = ("O", "lse") if "O" in run.arrays else ("dQ", "dK", "dV")
        return [
            (s, name)
            for s, arrays in enumerate(self.wanted)
            for name, want in zip(names, arrays, strict=True)
            if not np.allclose(getattr(run, name)[s], want, rtol=1e-10, atol=1e-10)
        ]


def lengths(
    rng: np.random.Generator, most: tuple[int, int] = (6, 14)
) -> tuple[list[int], list[int]]:
    """N_s and n_s of up to 4 sequences, often 0, 1, or equal."""
    b = int(rng.integers(1, 5))
    N, n = (rng.integers(0, end, b) * (rng.random(b) > 0.15) for end in most)
    n = np.where(rng.random(b) < 0.2, N, n)
    return N.tolist(), n.tolist()


def arrays(
    rng: np.random.Generator,
) -> tuple[list[Array], list[Array], list[Array], dict[str, Any]]:
    """Q, K, V by sequence, and what `serving.count` is asked for the same lengths."""
    N, n = lengths(rng)
    H, g, d, d_v = (int(rng.integers(1, end)) for end in (3, 4, 5, 5))
    Q, K, V = (
        [rng.normal(size=(heads, length, width)) for length in of]
        for heads, of, width in ((g * H, N, d), (H, n, d), (H, n, d_v))
    )
    return (
        Q,
        K,
        V,
        {
            "queries": N,
            "keys": n,
            "d": d,
            "d_v": d_v,
            "heads": g * H,
            "kv_heads": H,
            "dtype": "float64",
        },
    )


def blocks(rng: np.random.Generator) -> tuple[int, int] | None:
    return None if rng.random() < 0.2 else (int(rng.integers(1, 9)), int(rng.integers(1, 8)))


def in_pages(
    rng: np.random.Generator, K: list[Array], p: int
) -> tuple[Array, Array, Callable[[list[Array]], Array]]:
    """A table of pages at random in a pool, and lengths; and what puts sequences there, with NaN
    in all other rows.
    """
    n = np.array([k.shape[1] for k in K])
    needed = -(-n // p)
    pages = int(needed.sum()) + 2
    table = np.full((len(K), max(1, *needed) + int(rng.integers(2))), -1)
    free = rng.permutation(pages).tolist()
    for s, width in enumerate(needed):
        table[s, :width] = [free.pop() for _ in range(width)]

    def pool(sequences: list[Array]) -> Array:
        result = np.full((len(sequences[0]), pages * p, sequences[0].shape[2]), np.nan)
        for s, rows in enumerate(sequences):
            index = [table[s, j // p] * p + j % p for j in range(rows.shape[1])]
            result[:, index] = rows
        return result

    return table, n, pool


def paged(rng: np.random.Generator, splits: bool = False) -> Drawn:
    Q, K, V, options = arrays(rng)
    p = int(rng.integers(1, 7))
    how: dict[str, Any] = {
        "page": p,
        "tail": ("rows", "page")[int(rng.integers(2))],
        "causal": bool(rng.integers(2)),
        "M": 1000,
        "blocks": blocks(rng),
    }
    if splits:
        how["splits"] = int(rng.integers(1, 5))
    table, n, pool = in_pages(rng, K, p)
    run = serving.paged(Q, pool(K), pool(V), table, n, **how)
    return Drawn(run, [*map(attention, Q, K, V, [how["causal"]] * len(Q))], {**options, **how})


def cascade(rng: np.random.Generator) -> Drawn:
    Q, K, V, options = arrays(rng)
    b = len(Q)
    H = len(K[0])
    widths = (options["d"], options["d_v"])
    levels = []
    before = [[[X[s][:, :0]] for X in (K, V)] for s in range(b)]
    for _ in range(int(rng.integers(0, 3))):
        cuts = sorted({int(c) for c in rng.integers(0, b + 1, 3)})
        level: list[Any] = []
        for a, end in pairwise(cuts):
            n = int(rng.integers(0, 9))
            node = [rng.normal(size=(H, n, w)) for w in widths]
            level.append((a, end, *node))
            for s in range(a, end):
                for result, X in zip(before[s], node, strict=True):
                    result.append(X)
        levels.append(level)
    how: dict[str, Any] = {"causal": bool(rng.integers(2)), "M": 1000, "blocks": blocks(rng)}
    run = serving.cascade(Q, [*zip(K, V, strict=True)], levels=levels, **how)
    expected = []
    for s in range(b):
        k, v = (
            np.concatenate([*result, X[s]], axis=1)
            for result, X in zip(before[s], (K, V), strict=True)
        )
        expected.append(attention(Q[s], k, v, how["causal"], shared=k.shape[1] - K[s].shape[1]))
    lengths = [[(a, end, K.shape[1]) for a, end, K, _ in level] for level in levels]
    return Drawn(run, expected, {**options, **how, "levels": lengths})


def packed(
    rng: np.random.Generator, sequences: list[Array], before: int
) -> tuple[Array, list[int]]:
    """Sequences end to end, with NaN in rows before and behind them; and where they begin."""
    apart = [
        np.full((len(sequences[0]), rows, sequences[0].shape[2]), np.nan)
        for rows in (before, int(rng.integers(3)))
    ]
    ends = before + np.cumsum([0, *(X.shape[1] for X in sequences)])
    return np.concatenate([apart[0], *sequences, apart[1]], axis=1), ends.tolist()


def varlen(rng: np.random.Generator) -> Drawn:
    Q, K, V, options = arrays(rng)
    how: dict[str, Any] = {"causal": bool(rng.integers(2)), "M": 1000, "blocks": blocks(rng)}
    before = [int(rows) for rows in rng.integers(0, 3, 2)]
    (Q_all, cu_q), (K_all, cu_k) = packed(rng, Q, before[0]), packed(rng, K, before[1])
    V_all = np.full((*K_all.shape[:2], options["d_v"]), np.nan)
    V_all[:, cu_k[0] : cu_k[-1]] = np.concatenate(V, axis=1)
    run = serving.varlen(Q_all, K_all, V_all, cu_q, cu_k, **how)
    expected = [*map(attention, Q, K, V, [how["causal"]] * len(Q))]
    return Drawn(run, expected, {**options, **how}, [*zip(Q, K, V, strict=True)])


def varlen_backward(rng: np.random.Generator) -> Drawn:
    before = varlen(rng)
    dO = [rng.normal(size=O.shape) for O in before.run.O]
    sizes = blocks(rng)
    run = serving.varlen_backward(before.run, dO, blocks=sizes)
    causal = before.asked["causal"]
    expected = []
    for s in range(len(dO)):
        Q, K, V = before.given[s]
        expected.append(attention_gradients(Q, K, V, dO[s], causal))
    return Drawn(run, expected, {**before.asked, "blocks": sizes, "direction": "backward"})


def decode(rng: np.random.Generator) -> Drawn:
    Q, K, V, options = arrays(rng)
    schedule = ("fixed", "stream_k")[int(rng.integers(2))]
    how: dict[str, Any] = {
        "schedule": schedule,
        "workers": int(rng.integers(1, 9)),
        "causal": bool(rng.integers(2)),
        "M": 1000,
        "blocks": blocks(rng),
        "splits": int(rng.integers(1, 5)) if schedule == "fixed" else 1,
    }
    run = serving.decode(Q, K, V, **how)
    return Drawn(run, [*map(attention, Q, K, V, [how["causal"]] * len(Q))], {**options, **how})


def latents(rng: np.random.Generator, absorbed: bool) -> Drawn:
    """What each sequence attends to is keys of every head, as the model has them; values are
    latents where W_UK is absorbed.
    """
    N, n = lengths(rng)
    H, d, d_v, u, r = (int(rng.integers(1, 5)) for _ in range(5))
    r -= 1
    Q = [rng.normal(size=(H, rows, d + r)) for rows in N]
    C = [rng.normal(size=(1, rows, u + r)) for rows in n]
    W_UK = rng.normal(size=(H, d, u))
    W_UV = rng.normal(size=(H, d_v, u))
    how: dict[str, Any] = {"causal": bool(rng.integers(2)), "M": 1000, "blocks": blocks(rng)}
    K = [
        np.concatenate([c[..., :u] @ W_UK.swapaxes(1, 2), np.repeat(c[..., u:], H, axis=0)], axis=2)
        for c in C
    ]
    options = {**how, "queries": N, "keys": n, "heads": H, "dtype": "float64"}
    if absorbed:
        queries = [serving.absorb(q, W_UK) for q in Q]
        run = serving.mla(queries, C, latent=u, scale=(d + r) ** -0.5, **how)
        options |= {"d": u + r, "d_v": u, "kv_heads": 1}
        V = [np.repeat(c[..., :u], H, axis=0) for c in C]
    else:
        run = serving.mla_expanded(Q, C, W_UK, W_UV, **how)
        options |= {"d": d + r, "d_v": d_v, "latent": u, "rope": r}
        V = [c[..., :u] @ W_UV.swapaxes(1, 2) for c in C]
    return Drawn(run, [*map(attention, Q, K, V, [how["causal"]] * len(Q))], options)


def rounded(X: Array, bits: int, group: int, by: int) -> Array:
    """X (H, n, d) as it is after quantising, group by group along an axis."""
    result = np.empty_like(X)
    for first in range(0, X.shape[by], group):
        index = (slice(None),) * by + (slice(first, first + group),)
        low, high = (end(X[index], axis=by, keepdims=True) for end in (np.min, np.max))
        step = (high - low) / (2**bits - 1)
        result[index] = low + step * np.rint((X[index] - low) / np.where(step == 0, 1, step))
    return result


def quantised(rng: np.random.Generator) -> Drawn:
    """Sizes differ by channel and by token, so that no scale is another's; some channels are
    constant.
    """
    Q, K, V, options = arrays(rng)
    K, V = (
        [x * np.exp(rng.normal(size=x.shape[1:])) * (rng.random(x.shape[2]) > 0.1) for x in X]
        for X in (K, V)
    )
    how: dict[str, Any] = {"bits": int(rng.choice([2, 4, 8])), "group": int(rng.integers(1, 6))}
    how["causal"] = bool(rng.integers(2))
    how |= {"M": 1000, "blocks": blocks(rng)}
    run = serving.quantised(Q, K, V, **how)
    k, v = ([rounded(x, how["bits"], how["group"], by) for x in X] for X, by in ((K, 1), (V, 2)))
    return Drawn(run, [*map(attention, Q, k, v, [how["causal"]] * len(Q))], {**options, **how})


def float_of_8_bits(X: Array, mantissa: int, least: int, most: float) -> Array:
    """X rounded to so many bits behind the point, subnormal below 2^least, and no larger than
    `most`.
    """
    power = np.floor(np.log2(np.abs(X), where=X != 0, out=np.full(X.shape, -99.0)))
    step = 2.0 ** (np.maximum(power, least) - mantissa)
    return np.asarray((np.rint(X / step) * step).clip(-most, most))


def fp8(rng: np.random.Generator) -> Drawn:
    """Sizes differ by token, so that no group's scale is another's."""
    Q, K, V, options = arrays(rng)
    K, V = ([x * np.exp(rng.normal(size=(1, x.shape[1], 1))) for x in X] for X in (K, V))
    name, mantissa, least, most = (("e4m3", 3, -6, 448.0), ("e5m2", 2, -14, 57344.0))[
        int(rng.integers(2))
    ]
    group = None if rng.random() < 0.3 else int(rng.integers(1, 6))
    how: dict[str, Any] = {
        "group": group,
        "causal": bool(rng.integers(2)),
        "M": 1000,
        "blocks": blocks(rng),
    }
    run = serving.fp8(Q, K, V, dtype=name, **how)
    both: list[list[Array]] = [[], []]
    for result, X in zip(both, (K, V), strict=True):
        for x in X:
            y = x.copy()
            for first in range(0, x.shape[1], group or max(x.shape[1], 1)):
                own = y[:, first : first + (group or x.shape[1])]
                scale = (np.abs(own).max(axis=(1, 2), keepdims=True) / most).astype(np.float32)
                # ml_dtypes rounds numbers of 64 bits to 32 bits first
                scaled = (own / scale).astype(np.float32).astype(np.float64)
                own[:] = scale * float_of_8_bits(scaled, mantissa, least, most)
            result.append(y)
    return Drawn(run, [*map(attention, Q, *both, [how["causal"]] * len(Q))], {**options, **how})


def latents_in_pages(rng: np.random.Generator) -> Drawn:
    """Latents of one KV head in a pool, NaN in all rows but theirs; each is key and value of
    every head.
    """
    N, n = lengths(rng)
    H, u, r, p = (int(rng.integers(1, end)) for end in (5, 5, 4, 7))
    Q = [rng.normal(size=(H, rows, u + r)) for rows in N]
    C = [rng.normal(size=(1, rows, u + r)) for rows in n]
    how: dict[str, Any] = {
        "page": p,
        "tail": ("rows", "page")[int(rng.integers(2))],
        "splits": int(rng.integers(1, 4)),
        "causal": bool(rng.integers(2)),
        "M": 1000,
        "blocks": blocks(rng),
    }
    table, rows, pool = in_pages(rng, C, p)
    run = serving.mla_paged(Q, pool(C), table, rows, latent=u, scale=(u + r) ** -0.5, **how)
    expected = [*map(attention, Q, C, [c[..., :u] for c in C], [how["causal"]] * len(Q))]
    options = {
        "queries": N,
        "keys": n,
        "d": u + r,
        "d_v": u,
        "heads": H,
        "kv_heads": 1,
        "dtype": "float64",
    }
    return Drawn(run, expected, {**how, **options})


DRAWN: dict[str, Callable[[np.random.Generator], Drawn]] = {
    "cascade": cascade,
    "decode": decode,
    "fp8": fp8,
    "mla": partial(latents, absorbed=True),
    "mla_expanded": partial(latents, absorbed=False),
    "mla_paged": latents_in_pages,
    "paged": paged,
    "paged_split": partial(paged, splits=True),
    "quantised": quantised,
    "varlen": varlen,
    "varlen, backward": varlen_backward,
}

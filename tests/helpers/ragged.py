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
Arguments = dict[str, Any]


def attention(
    Q: Array, K: Array, V: Array, causal: bool = True, shared: int = 0
) -> tuple[Array, Array]:
    """O (H_q, N, d_v) and its log-sum-exp (H_q, N) of one sequence; 0 and −∞ for a row without a
    key. All see `shared` keys.
    """
    g = len(Q) // len(K)
    k = np.repeat(K, g, axis=0)
    v = np.repeat(V, g, axis=0)
    S = np.einsum("hid,hjd->hij", Q, k) / np.sqrt(Q.shape[2])
    N, n = S.shape[1:]
    if causal:
        keys = np.arange(n)
        last_keys = np.arange(N)[:, None] + n - N
        allowed = (keys <= last_keys) | (keys < shared)
        S = np.where(allowed, S, -np.inf)
    top = S.max(axis=2, initial=-np.inf, keepdims=True)
    P = np.exp(S - np.where(top == -np.inf, 0, top))
    l = P.sum(axis=2, keepdims=True)
    O = P @ v / np.where(l == 0, 1, l)
    with np.errstate(divide="ignore"):
        lse = top + np.log(l)
    return O, lse[..., 0]


def each_alone(
    Q: list[Array], K: list[Array], V: list[Array], causal: bool
) -> list[tuple[Array, Array]]:
    """What each sequence attends to by itself."""
    return [attention(q, k, v, causal) for q, k, v in zip(Q, K, V, strict=True)]


def attention_gradients(
    Q: Array, K: Array, V: Array, dO: Array, causal: bool
) -> tuple[Array, Array, Array]:
    """dQ, dK, dV of one sequence, those of heads that share K and V summed up."""
    O, lse = attention(Q, K, V, causal)
    g = len(Q) // len(K)
    k = np.repeat(K, g, axis=0)
    v = np.repeat(V, g, axis=0)
    scale = 1 / np.sqrt(Q.shape[2])
    N = Q.shape[1]
    n = K.shape[1]
    allowed = np.ones((N, n), bool)
    if causal:
        allowed = np.arange(n) <= np.arange(N)[:, None] + n - N
    S = scale * Q @ k.swapaxes(1, 2)
    with np.errstate(invalid="ignore", over="ignore"):
        P = np.where(allowed, np.exp(S - lse[..., None]), 0)
    dP = dO @ v.swapaxes(1, 2)
    dS = P * (dP - (dO * O).sum(2, keepdims=True))
    dQ = scale * dS @ k
    dK = scale * dS.swapaxes(1, 2) @ Q
    dV = P.swapaxes(1, 2) @ dO
    dK = dK.reshape(len(K), g, *dK.shape[1:]).sum(1)
    dV = dV.reshape(len(K), g, *dV.shape[1:]).sum(1)
    return dQ, dK, dV


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
        places = []
        for s, arrays in enumerate(self.wanted):
            for name, want in zip(names, arrays, strict=True):
                computed = getattr(run, name)[s]
                if not np.allclose(computed, want, rtol=1e-10, atol=1e-10):
                    places.append((s, name))
        return places


def lengths(
    rng: np.random.Generator, most: tuple[int, int] = (6, 14)
) -> tuple[list[int], list[int]]:
    """N_s and n_s of up to 4 sequences, often 0, 1, or equal."""
    b = int(rng.integers(1, 5))
    N = rng.integers(0, most[0], b)
    n = rng.integers(0, most[1], b)
    N = np.where(rng.random(b) > 0.15, N, 0)
    n = np.where(rng.random(b) > 0.15, n, 0)
    n = np.where(rng.random(b) < 0.2, N, n)
    return N.tolist(), n.tolist()


def arrays(
    rng: np.random.Generator,
) -> tuple[list[Array], list[Array], list[Array], dict[str, Any]]:
    """Q, K, V by sequence, and what `serving.count` is asked for the same lengths."""
    N, n = lengths(rng)
    H = int(rng.integers(1, 3))
    g = int(rng.integers(1, 4))
    d = int(rng.integers(1, 5))
    d_v = int(rng.integers(1, 5))
    Q = [rng.normal(size=(g * H, rows, d)) for rows in N]
    K = [rng.normal(size=(H, keys, d)) for keys in n]
    V = [rng.normal(size=(H, keys, d_v)) for keys in n]
    options = {
        "queries": N,
        "keys": n,
        "d": d,
        "d_v": d_v,
        "heads": g * H,
        "kv_heads": H,
        "dtype": "float64",
    }
    return Q, K, V, options


def blocks(rng: np.random.Generator) -> tuple[int, int] | None:
    if rng.random() < 0.2:
        return None
    return int(rng.integers(1, 9)), int(rng.integers(1, 8))


def scheduled(rng: np.random.Generator) -> Arguments:
    """A causal mask or none, and tiles."""
    causal = bool(rng.integers(2))
    return {"causal": causal, "M": 1000, "blocks": blocks(rng)}


def in_pages(
    rng: np.random.Generator, K: list[Array], p: int
) -> tuple[Array, Array, Callable[[list[Array]], Array]]:
    """A table of pages at random in a pool, and lengths; and what puts sequences there, with NaN
    in all other rows.
    """
    n = np.array([k.shape[1] for k in K])
    needed = -(-n // p)
    pages = int(needed.sum()) + 2
    width = max(1, *needed) + int(rng.integers(2))
    table = np.full((len(K), width), -1)
    free = rng.permutation(pages).tolist()
    for s, width in enumerate(needed):
        table[s, :width] = [free.pop() for _ in range(width)]

    def pool(sequences: list[Array]) -> Array:
        heads, _, width = sequences[0].shape
        rows_of_pool = np.full((heads, pages * p, width), np.nan)
        for s, rows in enumerate(sequences):
            index = [table[s, j // p] * p + j % p for j in range(rows.shape[1])]
            rows_of_pool[:, index] = rows
        return rows_of_pool

    return table, n, pool


def paged(rng: np.random.Generator, splits: bool = False) -> Drawn:
    Q, K, V, options = arrays(rng)
    p = int(rng.integers(1, 7))
    tail = ("rows", "page")[int(rng.integers(2))]
    how: Arguments = {"page": p, "tail": tail}
    how |= scheduled(rng)
    if splits:
        how["splits"] = int(rng.integers(1, 5))
    table, n, pool = in_pages(rng, K, p)
    run = serving.paged(Q, pool(K), pool(V), table, n, **how)
    expected = each_alone(Q, K, V, how["causal"])
    return Drawn(run, expected, {**options, **how})


def cascade(rng: np.random.Generator) -> Drawn:
    Q, K, V, options = arrays(rng)
    b = len(Q)
    H = len(K[0])
    widths = (options["d"], options["d_v"])
    levels = []
    keys_before: list[list[Array]] = [[] for _ in range(b)]
    values_before: list[list[Array]] = [[] for _ in range(b)]
    for _ in range(int(rng.integers(0, 3))):
        cuts = sorted({int(c) for c in rng.integers(0, b + 1, 3)})
        level: list[Any] = []
        for a, end in pairwise(cuts):
            n = int(rng.integers(0, 9))
            keys, values = (rng.normal(size=(H, n, width)) for width in widths)
            level.append((a, end, keys, values))
            for s in range(a, end):
                keys_before[s].append(keys)
                values_before[s].append(values)
        levels.append(level)
    how = scheduled(rng)
    run = serving.cascade(Q, [*zip(K, V, strict=True)], levels=levels, **how)
    expected = []
    for s in range(b):
        k = np.concatenate([*keys_before[s], K[s]], axis=1)
        v = np.concatenate([*values_before[s], V[s]], axis=1)
        shared = k.shape[1] - K[s].shape[1]
        expected.append(attention(Q[s], k, v, how["causal"], shared))
    lengths = []
    for level in levels:
        lengths.append([(a, end, keys.shape[1]) for a, end, keys, _ in level])
    return Drawn(run, expected, {**options, **how, "levels": lengths})


def packed(
    rng: np.random.Generator, sequences: list[Array], before: int
) -> tuple[Array, list[int]]:
    """Sequences end to end, with NaN in rows before and behind them; and where they begin."""
    heads, _, width = sequences[0].shape
    ahead = np.full((heads, before, width), np.nan)
    behind = np.full((heads, int(rng.integers(3)), width), np.nan)
    lengths = [X.shape[1] for X in sequences]
    ends = before + np.cumsum([0, *lengths])
    return np.concatenate([ahead, *sequences, behind], axis=1), ends.tolist()


def varlen(rng: np.random.Generator) -> Drawn:
    Q, K, V, options = arrays(rng)
    how = scheduled(rng)
    rows_before, keys_before = (int(rows) for rows in rng.integers(0, 3, 2))
    Q_all, cu_q = packed(rng, Q, rows_before)
    K_all, cu_k = packed(rng, K, keys_before)
    V_all = np.full((*K_all.shape[:2], options["d_v"]), np.nan)
    V_all[:, cu_k[0] : cu_k[-1]] = np.concatenate(V, axis=1)
    run = serving.varlen(Q_all, K_all, V_all, cu_q, cu_k, **how)
    expected = each_alone(Q, K, V, how["causal"])
    operands = [*zip(Q, K, V, strict=True)]
    return Drawn(run, expected, {**options, **how}, operands)


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
    expected = each_alone(Q, K, V, how["causal"])
    return Drawn(run, expected, {**options, **how})


def latents(rng: np.random.Generator, absorbed: bool) -> Drawn:
    """What each sequence attends to is keys of every head, as the model has them; values are
    latents where W_UK is absorbed.
    """
    N, n = lengths(rng)
    H = int(rng.integers(1, 5))
    d = int(rng.integers(1, 5))
    d_v = int(rng.integers(1, 5))
    u = int(rng.integers(1, 5))
    r = int(rng.integers(1, 5))
    r -= 1
    Q = [rng.normal(size=(H, rows, d + r)) for rows in N]
    C = [rng.normal(size=(1, rows, u + r)) for rows in n]
    W_UK = rng.normal(size=(H, d, u))
    W_UV = rng.normal(size=(H, d_v, u))
    how = scheduled(rng)
    K = []
    for c in C:
        keys = c[..., :u] @ W_UK.swapaxes(1, 2)
        rotated = np.repeat(c[..., u:], H, axis=0)
        K.append(np.concatenate([keys, rotated], axis=2))
    options = {**how, "queries": N, "keys": n, "heads": H, "dtype": "float64"}
    if absorbed:
        queries = [serving.absorb(q, W_UK) for q in Q]
        scale = (d + r) ** -0.5
        run = serving.mla(queries, C, latent=u, scale=scale, **how)
        options |= {"d": u + r, "d_v": u, "kv_heads": 1}
        V = [np.repeat(c[..., :u], H, axis=0) for c in C]
    else:
        run = serving.mla_expanded(Q, C, W_UK, W_UV, **how)
        options |= {"d": d + r, "d_v": d_v, "latent": u, "rope": r}
        V = [c[..., :u] @ W_UV.swapaxes(1, 2) for c in C]
    return Drawn(run, each_alone(Q, K, V, how["causal"]), options)


def rounded(X: Array, bits: int, group: int, by: int) -> Array:
    """X (H, n, d) as it is after quantising, group by group along an axis."""
    result = np.empty_like(X)
    for first in range(0, X.shape[by], group):
        index = (slice(None),) * by + (slice(first, first + group),)
        part = X[index]
        low = part.min(axis=by, keepdims=True)
        high = part.max(axis=by, keepdims=True)
        step = (high - low) / (2**bits - 1)
        steps = np.rint((part - low) / np.where(step == 0, 1, step))
        result[index] = low + step * steps
    return result


def of_unequal_channels(rng: np.random.Generator, X: Array) -> Array:
    """X (H, n, d), each element times a size of its own, and some channels 0."""
    sizes = np.exp(rng.normal(size=X.shape[1:]))
    return X * sizes * (rng.random(X.shape[2]) > 0.1)


def quantised(rng: np.random.Generator) -> Drawn:
    """Sizes differ by channel and by token, so that no scale is another's; some channels are
    constant.
    """
    Q, K, V, options = arrays(rng)
    K = [of_unequal_channels(rng, k) for k in K]
    V = [of_unequal_channels(rng, v) for v in V]
    bits = int(rng.choice([2, 4, 8]))
    group = int(rng.integers(1, 6))
    how: Arguments = {"bits": bits, "group": group}
    how |= scheduled(rng)
    run = serving.quantised(Q, K, V, **how)
    rounded_K = [rounded(k, bits, group, 1) for k in K]
    rounded_V = [rounded(v, bits, group, 2) for v in V]
    expected = each_alone(Q, rounded_K, rounded_V, how["causal"])
    return Drawn(run, expected, {**options, **how})


def float_of_8_bits(X: Array, mantissa: int, least: int, most: float) -> Array:
    """X rounded to so many bits behind the point, subnormal below 2^least, and no larger than
    `most`.
    """
    power = np.full(X.shape, -99.0)
    np.log2(np.abs(X), where=X != 0, out=power)
    step = 2.0 ** (np.maximum(np.floor(power), least) - mantissa)
    nearest = np.rint(X / step) * step
    return np.asarray(nearest.clip(-most, most))


def of_unequal_rows(rng: np.random.Generator, X: Array) -> Array:
    """X (H, n, d), each row times a size of its own."""
    return X * np.exp(rng.normal(size=(1, X.shape[1], 1)))


def fp8(rng: np.random.Generator) -> Drawn:
    """Sizes differ by token, so that no group's scale is another's."""
    Q, K, V, options = arrays(rng)
    K = [of_unequal_rows(rng, k) for k in K]
    V = [of_unequal_rows(rng, v) for v in V]
    types = (("e4m3", 3, -6, 448.0), ("e5m2", 2, -14, 57344.0))
    name, mantissa, least, most = types[int(rng.integers(2))]
    group = None if rng.random() < 0.3 else int(rng.integers(1, 6))
    how: Arguments = {"group": group, **scheduled(rng)}
    run = serving.fp8(Q, K, V, dtype=name, **how)
    both: list[list[Array]] = [[], []]
    for result, X in zip(both, (K, V), strict=True):
        for x in X:
            y = x.copy()
            rows = group or max(x.shape[1], 1)
            for first in range(0, x.shape[1], rows):
                own = y[:, first : first + rows]
                largest = np.abs(own).max(axis=(1, 2), keepdims=True)
                scale = (largest / most).astype(np.float32)
                # ml_dtypes rounds numbers of 64 bits to 32 bits first
                scaled = (own / scale).astype(np.float32).astype(np.float64)
                own[:] = scale * float_of_8_bits(scaled, mantissa, least, most)
            result.append(y)
    rounded_K, rounded_V = both
    expected = each_alone(Q, rounded_K, rounded_V, how["causal"])
    return Drawn(run, expected, {**options, **how})


def latents_in_pages(rng: np.random.Generator) -> Drawn:
    """Latents of one KV head in a pool, NaN in all rows but theirs; each is key and value of
    every head.
    """
    N, n = lengths(rng)
    H = int(rng.integers(1, 5))
    u = int(rng.integers(1, 5))
    r = int(rng.integers(1, 4))
    p = int(rng.integers(1, 7))
    Q = [rng.normal(size=(H, rows, u + r)) for rows in N]
    C = [rng.normal(size=(1, rows, u + r)) for rows in n]
    how: Arguments = {
        "page": p,
        "tail": ("rows", "page")[int(rng.integers(2))],
        "splits": int(rng.integers(1, 4)),
        **scheduled(rng),
    }
    table, rows, pool = in_pages(rng, C, p)
    scale = (u + r) ** -0.5
    run = serving.mla_paged(Q, pool(C), table, rows, latent=u, scale=scale, **how)
    V = [c[..., :u] for c in C]
    expected = each_alone(Q, C, V, how["causal"])
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

"""Serving on a GPU, run and compared with the reference."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim import gpu
from flashsim.gpu.compiling import import_cupy
from flashsim.testing import Spec, check_attention, wrap

Array = NDArray[Any]


SPARE = 3  # pages that no sequence has


PAGE = 16  # rows, as the kit is given them


def in_pages(keys: list[Array], page: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """Return a pool (pages, H_kv, page, d) on the GPU with the keys of sequences, NaN elsewhere;
    their table; their lengths.
    """
    cupy = import_cupy()
    rng = np.random.default_rng(seed)
    lengths = np.array([x.shape[1] for x in keys], np.int32)
    needed = -(-lengths // page)
    table = np.full((len(keys), max(1, *needed) + 1), -1, np.int32)
    free = rng.permutation(int(needed.sum()) + SPARE)
    pool = np.full((len(free), len(keys[0]), page, keys[0].shape[2]), np.nan, keys[0].dtype)
    for s, x in enumerate(keys):
        own = free[: needed[s]]
        free = free[needed[s] :]
        table[s, : needed[s]] = own
        for j, index in enumerate(own):
            rows = x[:, j * page : (j + 1) * page]
            pool[index, :, : rows.shape[1]] = rows
    return cupy.asarray(pool), cupy.asarray(table), cupy.asarray(lengths)


def through_pages(
    q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None
) -> Any:
    """Attention as the kit asks for it, from pages at random in a pool of NaN, as many queries at a
    time as the kernel takes.

    Behind each sequence comes a decoy of another length.
    """
    cupy = import_cupy()
    (B, H, N, _), (_, H_kv, n, _) = q.shape, k.shape
    both = (
        [x for own in X.get() for x in (own, np.resize(own, (H_kv, n // 2 + 1, own.shape[2])))]
        for X in (k, v)
    )
    (K, table, lengths), (V, *_) = (in_pages(keys, PAGE) for keys in both)
    O = cupy.empty_like(q)
    lse = cupy.empty((B, H, N), "float32")
    most = max(1, 64 * H_kv // H)
    for a in range(0, N, most):
        rows = slice(a, min(a + most, N))
        lengths[::2] = max(n - (N - rows.stop), 0) if causal else n
        options: dict[str, Any] = {"causal": causal, "scale": scale, "return_lse": True}
        result = gpu.paged(q[:, :, rows].repeat(2, axis=0), K, V, table, lengths, **options)
        O[:, :, rows], lse[:, :, rows] = (x[::2] for x in result)
    return O, lse


def among_others(
    q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None
) -> Any:
    """Attention as the kit asks for it, each sequence behind a decoy of another length, which
    holds NaN.
    """
    cupy = import_cupy()

    def ends_to_end(X: Any) -> tuple[Any, list[int]]:
        rows = [
            part
            for b, own in enumerate(X)
            for part in (cupy.full_like(own, np.nan, shape=(len(own), b % 3, own.shape[2])), own)
        ]
        return cupy.concatenate(rows, axis=1), np.cumsum([0, *[x.shape[1] for x in rows]]).tolist()

    (Q, cu_q), (K, cu_k), (V, _) = map(ends_to_end, (q, k, v))
    O, lse = gpu.varlen(Q, K, V, cu_q, cu_k, causal=causal, scale=scale, return_lse=True)
    own = [slice(*cu_q[n : n + 2]) for n in range(1, len(cu_q) - 1, 2)]
    return cupy.stack([O[:, rows] for rows in own]), cupy.stack([lse[:, rows] for rows in own])


def run_kit(way: Any, dtype: str, d: int, examples: int, **how: Any) -> Any:
    options: dict[str, Any] = {
        "dtypes": (dtype,),
        "head_dims": (d,),
        "block": (64, 64),
        "strides": "contiguous",
    }
    spec = Spec(causal="bottom_right", lse="natural", gqa=True, scale=True, **options)
    return check_attention(wrap(way, "cupy"), spec, max_examples=examples, **how)

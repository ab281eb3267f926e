"""`forward` and `count`: run an algorithm on the counted memory, with numbers or with shapes alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from flashsim.algorithms import FORWARD, Algorithm
from flashsim.algorithms.blocks import Fit, Fixed, Paper, Problem, Sizing
from flashsim.inputs import Array, check_count, check_inputs, check_M, check_range, check_scale, chip_dtype, float_dtype
from flashsim.memory import HBM, SRAM, Observer, SramOverflow
from flashsim.records import Blocks, Flops, Occupancy, Shape, Traffic

SIZINGS: dict[str, Sizing] = {"paper": Paper(), "fit": Fit()}


@dataclass(frozen=True)
class Tally:
    """What a run costs. `hbm`: accesses by array. `sram`: peak and capacity. `blocks`: B_r, B_c, T_r, T_c. `flops`."""

    algorithm: str
    hbm: Traffic
    sram: Occupancy
    blocks: Blocks
    flops: Flops


@dataclass(frozen=True)
class Run:
    """A finished run: the result, and what it cost.

    O     (..., N_q, d_v), in the inputs' dtype
    l, m  (..., N_q), softmax statistics of the scaled scores in the chip's dtype; None where the algorithm keeps none
    hbm, sram, blocks  as in `Tally`
    """

    algorithm: str
    O: Array = field(repr=False)
    l: Array | None = field(repr=False)
    m: Array | None = field(repr=False)
    hbm: Traffic = field(repr=False)
    sram: Occupancy
    blocks: Blocks
    scale: float


def forward(
    name: str,
    Q: Any,
    K: Any,
    V: Any,
    *,
    M: int | None = None,
    scale: float | None = None,
    sizing: str | Sizing = "paper",
    blocks: tuple[int, int] | None = None,
    check_finite: bool = True,
    observers: Sequence[Observer] = (),
) -> Run:
    """Run softmax(scale · QKᵀ) V with the named algorithm on the counted memory.

    Q is (..., N_q, d), K (..., N_k, d), V (..., N_k, d_v), of one dtype among float16, bfloat16, float32, float64; each
    head runs on its own and the counts add up. 16-bit inputs are computed on in float32 and rounded at every store.
    Inputs are not modified.

    name     "standard" (Algorithm 0) or "flash_basic" (Algorithm 1)
    M        SRAM's size in elements; None: 100 KB of the inputs' dtype
    scale    None: 1/√d. It is folded into Q when Q is placed in HBM. For 16-bit inputs that product is kept in float32
             (and counted as 16-bit), since rounding it would shift large scores by more than any kernel does
    sizing   "paper" (line 1; M only reported against), "fit" (the largest blocks that fit; M enforced), or a policy
    blocks   (B_r, B_c), overrides `sizing`; M enforced
    observers  called with every memory event (`flashsim.memory.Event`)

    Raises ValueError for arguments that make no sense, `SramOverflow` where an enforced M is exceeded.
    """
    algorithm = _algorithm(name)
    given = check_inputs(Q, K, V, check_finite=check_finite)
    tau = check_scale(scale, given.shape.d)
    M = check_M(M, given.dtype)
    chip = chip_dtype(given.dtype)
    if check_finite:
        check_range(given, tau, given.dtype if algorithm.stores_scores else None)
    policy = _policy(sizing, blocks)
    sizes = _blocks(algorithm, given.shape, M, policy)

    heads = [a.reshape(-1, *a.shape[-2:]) for a in (given.Q, given.K, given.V)]
    results: dict[str, list[Array]] = {returned: [] for returned in algorithm.returns}
    traffic = Traffic()
    with _one_blas_thread(), np.errstate(over="ignore", under="ignore"):
        for Q_h, K_h, V_h in zip(*heads, strict=True):
            hbm = HBM()
            sram = SRAM(hbm, M, enforced=policy.enforced, dtype=chip, observers=observers)
            scaled_Q = np.multiply(Q_h, tau, dtype=chip)
            placed = (hbm.place("Q", scaled_Q, given.dtype), hbm.place("K", K_h), hbm.place("V", V_h))
            for matrix in algorithm.run(hbm, sram, *placed, sizes):
                results[matrix.name].append(hbm.peek(matrix.name))
            traffic += hbm.traffic

    def gathered(returned: str) -> Array | None:
        if returned not in results:
            return None
        stacked = np.stack(results[returned])
        return stacked.reshape(*given.leading, *(stacked.shape[1:] if returned == "O" else stacked.shape[1:2]))

    O = gathered("O")
    assert O is not None
    return Run(name, O, gathered("l"), gathered("m"), traffic, sram.use, sizes, tau)


def count(
    name: str,
    *,
    N: int | None = None,
    d: int,
    M: int | None = None,
    N_q: int | None = None,
    N_k: int | None = None,
    d_v: int | None = None,
    heads: int = 1,
    dtype: DTypeLike = "float32",
    sizing: str | Sizing = "paper",
    blocks: tuple[int, int] | None = None,
    observers: Sequence[Observer] = (),
) -> Tally:
    """Count what `forward` would move, by running the same algorithm on shapes alone: no arithmetic.

    Give N, or N_q and N_k where they differ; d_v defaults to d. `heads` multiplies the counts; `dtype` matters for
    bytes and for the default M (100 KB). Other arguments and errors as in `forward`.
    """
    algorithm = _algorithm(name)
    shape = check_shape(N, d, N_q, N_k, d_v)
    heads = check_count("heads", heads)
    stored = float_dtype(dtype)
    M = check_M(M, stored)
    policy = _policy(sizing, blocks)
    sizes = _blocks(algorithm, shape, M, policy)
    hbm, sram = _count_one(algorithm, shape, M, policy.enforced, sizes, stored, observers)
    return Tally(name, hbm.traffic.times(heads), sram.use, sizes, sram.flops.times(heads))


def check_shape(N: int | None, d: int, N_q: int | None, N_k: int | None, d_v: int | None) -> Shape:
    """Return the problem's shape from lengths given as N, or as N_q and N_k, or ValueError."""
    N_q, N_k = (N if N_q is None else N_q), (N if N_k is None else N_k)
    if N_q is None or N_k is None:
        raise ValueError("a length is missing: give N, or both N_q and N_k")
    return Shape(
        check_count("N_q" if N is None else "N", N_q),
        check_count("N_k" if N is None else "N", N_k),
        check_count("d", d),
        check_count("d_v", d if d_v is None else d_v),
    )


def _algorithm(name: str) -> Algorithm:
    if name not in FORWARD:
        raise ValueError(f"unknown algorithm {name!r}; known: {', '.join(map(repr, FORWARD))}")
    return FORWARD[name]


def _policy(sizing: str | Sizing, blocks: tuple[int, int] | None) -> Sizing:
    if blocks is not None:
        try:
            B_r, B_c = blocks
        except (TypeError, ValueError):
            raise ValueError(f"blocks is {blocks!r}; expected a pair (B_r, B_c)") from None
        return Fixed(check_count("blocks[0], B_r,", B_r), check_count("blocks[1], B_c,", B_c))
    if isinstance(sizing, str):
        if sizing not in SIZINGS:
            raise ValueError(f"unknown sizing {sizing!r}; known: {', '.join(map(repr, SIZINGS))}, or a policy object")
        return SIZINGS[sizing]
    return sizing


def _blocks(algorithm: Algorithm, shape: Shape, M: int, policy: Sizing) -> Blocks:
    def fits(blocks: Blocks, M: int) -> bool:
        try:
            _count_one(algorithm, shape, M, True, blocks, np.dtype(np.float32))
        except SramOverflow:
            return False
        return True

    return policy(Problem(algorithm.name, shape, M, algorithm.line_1, fits))


def _count_one(
    algorithm: Algorithm,
    shape: Shape,
    M: int,
    enforced: bool,
    blocks: Blocks,
    stored: np.dtype[Any],
    observers: Sequence[Observer] = (),
) -> tuple[HBM, SRAM]:
    hbm = HBM(arithmetic=False)
    sram = SRAM(hbm, M, enforced=enforced, dtype=chip_dtype(stored), observers=observers)
    Q, K, V = (
        hbm.place(name, size, stored)
        for name, size in (("Q", (shape.N_q, shape.d)), ("K", (shape.N_k, shape.d)), ("V", (shape.N_k, shape.d_v)))
    )
    algorithm.run(hbm, sram, Q, K, V, blocks)
    return hbm, sram


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Tiles are too small to share: on busy cores BLAS threads made a tiled run 70 times slower than one thread."""
    with _blas().limit(limits=1, user_api="blas"):
        yield


@cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()

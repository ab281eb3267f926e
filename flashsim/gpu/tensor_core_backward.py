"""FlashAttention's backward pass on tensor cores: launches kernels/tensor_core_backward.cu on the current stream.

Two forms, as the choice `deterministic` says: dQ summed in HBM by atomic additions, whose order and so last bits vary from
run to run; or dQ by a kernel of its own, which computes S and dP again, as flashsim's "q_outer_two_pass" does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flashsim.dropout import seed_words
from flashsim.gpu.compiling import import_cupy, load
from flashsim.gpu.kernel import Variant

FILE = "tensor_core_backward.cu"
HEAD_DIMS = (32, 64, 128)
PAD = 128  # rows to which D and L·log₂e are padded; the file's PAD
GRID = 2**31 - 1

_STRIDES = np.dtype([("batch", "i8"), ("head", "i8"), ("row", "i8")])
_POINTERS = ("Q", "K", "V", "O", "dO", "L", "dQ", "dK", "dV", "L2", "D", "dQ_sum")
_STRIDED = ("q", "k", "v", "o", "do", "dq", "dk", "dv")
_PROBLEM = np.dtype(
    [(name, "u8") for name in _POINTERS]
    + [(name, _STRIDES) for name in _STRIDED]
    + [(name, "u4") for name in ("key_0", "key_1", "threshold")]
    + [("keep_scale", "f4")]
    + [(name, "i4") for name in ("N_q", "N_k", "H_q", "H_k", "causal")]
    + [("tau", "f4")]
)  # struct Problem


@dataclass(frozen=True)
class Tiles:
    """How a kernel divides its work; the names are the file's defines, in lower case."""

    warps: int
    m_tiles: int
    stream: int
    warps_down: int = 2
    blocks: int = 1

    @property
    def stay(self) -> int:
        """Rows of the tile that stays on chip."""
        return 16 * self.m_tiles * self.warps

    def shared(self, d: int, add_dq: bool) -> int:
        """Return the bytes of shared memory of dk_dv, which are at least those of dq."""
        stay, stream = self.stay * 2 * d, self.stream * 2 * d
        return 2 * stay + 4 * stream + (2 * self.stay * self.stream if add_dq else 0) + 2 * 8 * self.stream


TILES = {128: Tiles(8, 1, 64), 64: Tiles(4, 2, 32, blocks=2), 32: Tiles(4, 2, 32, blocks=2)}
"""For each d, what is fastest on an H200."""


def defines(d: int, dtype: str, dropout: bool, deterministic: bool, tiles: Tiles) -> dict[str, str | int]:
    """Return the defines that compile the file for one case."""
    return {
        "HEAD_DIM": d,
        "BF16": int(dtype == "bfloat16"),
        "DROPOUT": int(dropout),
        "ADD_DQ": int(not deterministic),
        "WARPS": tiles.warps,
        "M_TILES": tiles.m_tiles,
        "STREAM": tiles.stream,
        "WARPS_DOWN": tiles.warps_down,
        "BLOCKS": tiles.blocks,
    }


def functions(deterministic: bool) -> tuple[str, ...]:
    """Return the kernels, in the order in which they are launched."""
    return ("prepare", "dk_dv", "dq" if deterministic else "round_dq")


VARIANTS = tuple(
    Variant(FILE, tuple(defines(d, dtype, dropout, deterministic, TILES[d]).items()), functions(deterministic))
    for d in HEAD_DIMS
    for dtype in ("float16", "bfloat16")
    for dropout in (False, True)
    for deterministic in (False, True)
)


def backward(
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    do: Any,
    lse: Any,
    dq: Any,
    dk: Any,
    dv: Any,
    *,
    causal: bool,
    scale: float,
    dropout_p: float = 0.0,
    seed: int = 0,
    deterministic: bool = False,
    tiles: Tiles | None = None,
) -> None:
    """Fill dq, dk, dv: the gradients of softmax(scale · q kᵀ) v, given o, its gradient do, and lse.

    q, o, do, dq  (B, H_q, N_q, d), fp16, or bf16 as uint16
    k, v, dk, dv  (B, H_k, N_k, d); H_q is a multiple of H_k, and each H_q / H_k query heads share a KV head
    lse           (B, H_q, N_q), float32, contiguous: log-sum-exp of scaled scores; −∞ where all keys are masked
    causal        key j is attended to if j ≤ i + N_k − N_q
    deterministic the same bits in every run

    The last axis is contiguous; rows start at multiples of 16 bytes. Raises ValueError for arrays that are not so, and for
    more tiles than a grid has room for.
    """
    cupy = import_cupy()
    (B, H_q, N_q, d), (_, H_k, N_k, _) = q.shape, k.shape
    tiles = tiles or TILES[d]
    arrays = dict(zip(_STRIDED, (q, k, v, o, do, dq, dk, dv), strict=True))
    for name, x in arrays.items():
        _check_rows(name, x)
    padded, stay = -(-N_q // PAD) * PAD, tiles.stay
    grids = {
        "prepare": B * H_q * (padded // PAD),
        "dk_dv": B * H_k * -(-N_k // stay),
        "round_dq": B * H_q * -(-N_q // tiles.stream),
        "dq": B * H_q * -(-N_q // stay),
    }
    names = functions(deterministic)
    for name in names:
        if grids[name] > GRID:
            raise ValueError(f"kernel {name} would need {grids[name]} blocks; expected at most 2**31 - 1")

    rows = cupy.empty((2, B * H_q, padded), "float32")
    sums = None if deterministic else cupy.empty((B * H_q, padded, d), "float32")
    problem = np.zeros((), _PROBLEM)
    pointers = (q, k, v, o, do, lse, dq, dk, dv, rows[0], rows[1], sums)
    for name, x in zip(_POINTERS, pointers, strict=True):
        problem[name] = 0 if x is None else x.data.ptr
    for name, x in arrays.items():
        problem[name] = tuple(stride // 2 for stride in x.strides[:3])
    problem["key_0"], problem["key_1"] = seed_words(seed)
    problem["threshold"], problem["keep_scale"] = int(dropout_p * 2**32), 1 / (1 - dropout_p)
    problem["N_q"], problem["N_k"], problem["H_q"], problem["H_k"] = N_q, N_k, H_q, H_k
    problem["causal"], problem["tau"] = causal, scale

    dtype = "bfloat16" if q.dtype == np.uint16 else "float16"
    kernels = load(FILE, names, defines(d, dtype, dropout_p > 0, deterministic, tiles))
    for name in names:
        kernel = kernels[name]
        shared = tiles.shared(d, not deterministic) if name in ("dk_dv", "dq") else 0
        if shared > 48 * 1024:
            kernel.max_dynamic_shared_size_bytes = shared
        block = 256 if name == "prepare" else 32 * tiles.warps
        kernel((grids[name],), (block,), (np.void(problem.tobytes()),), shared_mem=shared)


def _check_rows(name: str, x: Any) -> None:
    """Raise ValueError unless rows of x are contiguous and start at multiples of 16 bytes."""
    if x.strides[-1] != x.dtype.itemsize:
        raise ValueError(f"{name} has strides {x.strides} bytes; expected a contiguous last axis")
    if x.data.ptr % 16 or any(stride % 16 for stride, n in zip(x.strides[:3], x.shape[:3], strict=True) if n > 1):
        raise ValueError(f"{name} is at {x.data.ptr:#x} with strides {x.strides} bytes; expected multiples of 16")

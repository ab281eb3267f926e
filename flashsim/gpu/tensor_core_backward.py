"""FlashAttention's backward pass on tensor cores: launches kernels/tensor_core_backward.cu on the
current stream.

It has two forms. By default, atomic additions sum dQ in HBM; their order, and so the last bits,
differ from run to run. With `deterministic`, a kernel of its own computes S and dP again, and then
dQ, as "q_outer_two_pass" does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashsim.gpu import launching
from flashsim.gpu.compiling import import_cupy, load
from flashsim.gpu.kernel import Options, Variant

FILE = "tensor_core_backward.cu"
HEAD_DIMS = (32, 64, 128)
PAD = 128  # D and L·log₂e are padded to a multiple of this many rows, as in the file
GRID = 2**31 - 1
LOG2_E = math.log2(math.e)

_POINTERS = ("Q", "K", "V", "O", "dO", "L", "dQ", "dK", "dV", "L2", "D", "dQ_sum")
_STRIDED = ("q", "k", "v", "o", "do", "dq", "dk", "dv")
_PROBLEM = np.dtype(
    [(name, "u8") for name in _POINTERS]
    + [(name, launching.STRIDES) for name in _STRIDED]
    + [("dropout", launching.DROPOUT)]
    + [(name, "i4") for name in ("N_q", "N_k", "H_q", "H_k", "group", "causal", "padded")]
    + [("tau", "f4"), ("tau_2", "f4")],
    align=True,
)  # struct Problem


@dataclass(frozen=True)
class Tiles:
    """How dk_dv and, in the deterministic form, dq divide their work.

    warps, halves  each 16 · m keys have `halves` warps
    B_r            rows of the tiles of Q and dO that are read one after the other
    warps_down     how many warps divide the rows of dQ_i in dS_ij K_j; the others divide its
                   columns
    blocks         blocks of threads on one multiprocessor, for which registers must suffice
    dq             (warps, m, B_c, blocks) of dq, where each warp has 16 · m queries
    """

    warps: int
    m: int
    halves: int
    B_r: int
    warps_down: int
    blocks: int
    dq: tuple[int, int, int, int] = (4, 2, 32, 2)

    def functions(self, deterministic: bool) -> tuple[str, str, str]:
        """Return the kernels, in the order in which they are launched."""
        dk_dv = (self.warps, self.m, self.halves, self.B_r, self.warps_down, self.blocks)
        last = (
            f"dq<{_list(self.dq)}>"
            if deterministic
            else f"round_dq<{_list((self.warps, self.B_r, self.warps_down))}>"
        )
        adds = str(not deterministic).lower()
        return f"prepare<{adds}>", f"dk_dv<{_list(dk_dv)}, {adds}>", last

    def launches(
        self, deterministic: bool, heads_q: int, heads_k: int, N_q: int, N_k: int, d: int
    ) -> tuple[tuple[int, int, int], ...]:
        """Return each kernel's number of blocks, threads, and bytes of shared memory."""
        B_c = 16 * self.m * self.warps // self.halves
        # P_ij, dS_ij in shared memory
        P_tiles = self.halves > 1, self.halves > 1 or not deterministic
        shared = (
            2 * (2 * B_c * d + 4 * self.B_r * d + sum(P_tiles) * B_c * self.B_r) + 16 * self.B_r
        )
        warps, m, B_c_dq, _ = self.dq
        B_r_dq = 16 * m * warps
        return (
            (heads_q * -(-N_q // PAD), 256, 0),
            (heads_k * -(-N_k // B_c), 32 * self.warps, shared),
            (heads_q * -(-N_q // B_r_dq), 32 * warps, 2 * (2 * B_r_dq * d + 4 * B_c_dq * d))
            if deterministic
            else (heads_q * -(-N_q // self.B_r), 32 * self.warps, 0),
        )


def _list(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


TILES = {
    128: Tiles(8, 2, 2, 64, 4, 1),
    64: Tiles(4, 2, 1, 32, 1, 2, dq=(4, 2, 64, 2)),
    32: Tiles(4, 2, 1, 32, 2, 2, dq=(4, 2, 64, 2)),
}
"""By d."""
SMALL = {128: Tiles(8, 1, 2, 32, 2, 1, dq=(4, 1, 32, 2))}
"""For GPUs with too little shared memory for the above, such as the 99 KB of compute capability
8.6 and 8.9.
"""


def defines(d: int, dtype: str, dropout: bool) -> dict[str, str | int]:
    """Return the defines that compile the file for one case."""
    return {"HEAD_DIM": d, "BF16": int(dtype == "bfloat16"), "DROPOUT": int(dropout)}


VARIANTS = tuple(
    Variant(
        FILE,
        tuple(defines(d, dtype, dropout).items()),
        tuple(dict.fromkeys(tiles.functions(False) + tiles.functions(True))),
        ("sm_80", "sm_90a") if dropout and (dtype == "float16") == (d == 128) else ("sm_90a",),
    )
    for of in (TILES, SMALL)
    for d, tiles in of.items()
    for dtype, dropout in (("float16", False), ("float16", True), ("bfloat16", True))
)
"""What the tests compile: bfloat16 and sm_80 only for the largest case."""


def backward(
    q: Any, k: Any, v: Any, o: Any, lse: Any, do: Any, dq: Any, dk: Any, dv: Any, options: Options
) -> None:
    """Fill dq, dk, dv: the gradients of softmax(scale · q kᵀ) v, given o, lse (−∞ where all keys
    are masked) and do.

    Raises ValueError for rows that do not start at multiples of 16 bytes, and for too many tiles.
    """
    cupy = import_cupy()
    (B, H_q, N_q, d), (_, H_k, N_k, _) = q.shape, k.shape
    arrays = dict(zip(_STRIDED, (q, k, v, o, do, dq, dk, dv), strict=True))
    for name, x in arrays.items():
        launching.check_rows(name, x.data.ptr, x.shape, x.strides)
    dropout = options.dropout_p > 0
    deterministic = options.deterministic
    room = cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
    for choice in (of[d] for of in (TILES, SMALL) if d in of):
        names = choice.functions(deterministic)
        launches = choice.launches(deterministic, B * H_q, B * H_k, N_q, N_k, d)
        needed = max(shared for _, _, shared in launches)
        if needed <= room:
            break
    else:
        raise ValueError(
            f"d = {d} needs {needed} bytes of shared memory; this GPU's blocks have {room}"
        )
    for name, (blocks, _, _) in zip(names, launches, strict=True):
        if blocks > GRID:
            raise ValueError(
                f"kernel {name} would need {blocks} blocks; expected at most 2**31 - 1"
            )

    padded = -(-N_q // PAD) * PAD
    rows = cupy.empty((2, B * H_q, padded), "float32")
    sums = None if deterministic else cupy.empty((B * H_q, padded, d), "float32")
    problem = np.zeros((), _PROBLEM)
    for name, x in zip(
        _POINTERS, (q, k, v, o, do, lse, dq, dk, dv, rows[0], rows[1], sums), strict=True
    ):
        problem[name] = 0 if x is None else x.data.ptr
    for name, x in arrays.items():
        problem[name] = tuple(stride // 2 for stride in x.strides[:3])
    problem["dropout"] = launching.dropout(options.dropout_p, options.seed)
    problem["N_q"] = N_q
    problem["N_k"] = N_k
    problem["H_q"] = H_q
    problem["H_k"] = H_k
    problem["group"], problem["causal"], problem["padded"] = H_q // H_k, options.causal, padded
    problem["tau"], problem["tau_2"] = options.scale, options.scale * LOG2_E

    kernels = load(
        FILE, names, defines(d, "float16" if q.dtype.name == "float16" else "bfloat16", dropout)
    )
    for name, (blocks, threads, shared) in zip(names, launches, strict=True):
        kernel = kernels[name]
        if shared > 48 * 1024 and kernel.max_dynamic_shared_size_bytes < shared:
            kernel.max_dynamic_shared_size_bytes = shared
        kernel((blocks,), (threads,), (np.void(problem.tobytes()),), shared_mem=shared)

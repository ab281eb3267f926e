"""FlashAttention's backward pass on Hopper's own instructions: launches kernels/hopper_backward.cu on the current stream."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np

from flashsim.gpu.compiling import import_cupy, load
from flashsim.gpu.kernel import Options, Variant
from flashsim.gpu.launching import DROPOUT, dropout
from flashsim.gpu.tensor_core import ELEMENTS, LOG2_E

FILE = "hopper_backward.cu"
HEAD_DIMS = (64, 128)
B_R, B_C = {64: 128, 128: 64}, 128
THREADS = 384
_PROBLEM = np.dtype(
    [(name, "i4") for name in ("N_q", "N_k", "H", "H_kv", "group", "T_r", "T_c")]
    + [("tau", "f4"), ("c", "f4"), ("dropout", DROPOUT)]
    + [(name, "u8") for name in ("rows", "sums", "turns")],
    align=True,
)

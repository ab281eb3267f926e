"""Attention on an NVIDIA GPU: a ladder of kernels, from the paper's algorithms as printed to
kernels on tensor cores.

    import cupy, flashsim.gpu
    q, k, v = (cupy.random.standard_normal((2, 8, 1024, 64), dtype="float32") for _ in range(3))
    o, lse = flashsim.gpu.forward(q, k, v, kernel="q_outer", causal=True, return_lse=True)
    o, moved = flashsim.gpu.forward(q, k, v, kernel="algorithm_1", count=True)

The kernels are in kernels/*.cu. CuPy is imported when a kernel is first used; the extra `gpu`
installs it. `flashsim gpu info` says what is missing.
"""

from flashsim.gpu.api import backward, forward, plan
from flashsim.gpu.compiling import CompileError, MissingGPU
from flashsim.gpu.counters import Moved
from flashsim.gpu.hopper_fp8 import to_fp8
from flashsim.gpu.machine import info
from flashsim.gpu.rungs import kernel, ladder
from flashsim.gpu.serving import paged, varlen
from flashsim.gpu.settling import Plan

__all__ = [
    "CompileError",
    "MissingGPU",
    "Moved",
    "Plan",
    "backward",
    "forward",
    "info",
    "kernel",
    "ladder",
    "paged",
    "plan",
    "to_fp8",
    "varlen",
]

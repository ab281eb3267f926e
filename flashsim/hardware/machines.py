"""Machines by their public numbers, and the roofline: how long a run takes at least, and what binds
it.

    >>> from flashsim.hardware.machines import MACHINES, predict
    >>> predict(MACHINES["H100"], "standard", N=4096, d=128, dtype="float16").bound
    'bandwidth'

A machine is only its peaks here: time = max(bytes / bandwidth, FLOPs / peak), as if both overlapped
perfectly and all heads filled it. Which bytes is the caller's choice: the model's HBM accesses, or
what an L2 (`flashsim.cache`) lets through to DRAM. Sizes are in bytes, 1 KB = 1024; bandwidths and
FLOP/s are decimal, as vendors give them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from flashsim.algorithms import Algorithm
from flashsim.attention.arguments import check_number, short_repr, whole_numbers
from flashsim.attention.inputs import DEFAULT_DTYPE, float_dtype
from flashsim.simulate.api import count

_KB = 1024
_MB = 1024**2
_GB = 1024**3


@dataclass(frozen=True)
class Machine:
    """One GPU, or another accelerator, whose cores are called SMs here.

    sram_per_sm  bytes of shared memory that one SM's programs can use; `sms`: how many SMs
    l2           bytes of the last cache before DRAM, shared by all SMs; 0: there is none
    hbm          bytes of DRAM, of whatever kind; `bandwidth` in bytes/s
    peak         dense FLOP/s by dtype: tensor cores for 16 bits; plain arithmetic for float32 and
                 float64 (tensor cores would compute float32 in TF32, which has 10 bits of mantissa)
    sources      where each number is from; `notes`: what is disputed, rounded, or no vendor's own
    """

    name: str
    sram_per_sm: int
    sms: int
    l2: int
    hbm: int
    bandwidth: float
    peak: Mapping[str, float]
    sources: Mapping[str, str] = field(repr=False)
    notes: str = field(default="", repr=False)

    def peak_for(self, dtype: Any) -> float:
        """Return FLOP/s in a dtype. Raises ValueError where the machine has none."""
        name = float_dtype(dtype).name
        if name not in self.peak:
            raise ValueError(f"{self.name} has no {name} arithmetic; it has {', '.join(self.peak)}")
        return self.peak[name]

    def ridge(self, dtype: Any) -> float:
        """Return the arithmetic intensity, FLOP/byte, from which the arithmetic binds."""
        return self.peak_for(dtype) / self.bandwidth

    def M(self, dtype: Any) -> int:
        """Return one SM's SRAM in elements: the model's M."""
        return self.sram_per_sm // float_dtype(dtype).itemsize

    def l2_share(self, dtype: Any) -> int:
        """Return in elements what one SM has of the L2 when all are busy: what one head has
        where each SM runs one.
        """
        return self.l2 // self.sms // float_dtype(dtype).itemsize


_AMPERE = "NVIDIA A100 Tensor Core GPU Architecture (whitepaper, 2020): A100 SXM4, 40 GB"
_AMPERE_TUNING = (
    "https://docs.nvidia.com/cuda/ampere-tuning-guide/: shared memory of up to 164 KB per SM"
)
_HOPPER = "NVIDIA H100 Tensor Core GPU Architecture (whitepaper): H100 SXM5"
_HOPPER_TUNING = (
    "https://docs.nvidia.com/cuda/hopper-tuning-guide/: shared memory of up to 228 KB per SM"
)
_H100 = "https://www.nvidia.com/en-us/data-center/h100/ specifications: H100 SXM, 80 GB, 3.35 TB/s"
_H200 = (
    "https://www.nvidia.com/en-us/data-center/h200/ specifications: H200 SXM, 141 GB, 4.8 TB/s; "
    "H100's FLOP/s"
)
_BLACKWELL_TUNING = (
    "https://docs.nvidia.com/cuda/blackwell-tuning-guide/: up to 228 KB per SM, L2 of 126 MB, HBM "
    "up to 180 GB"
)
_BLACKWELL = "NVIDIA Blackwell Architecture Technical Brief (2024): HGX B200"
_B200 = "what one B200 says of itself: https://github.com/pytorch/ao/pull/4002"
_MI300X = "AMD Instinct MI300X Accelerator data sheet (2023)"
_ROCM = "https://rocm.docs.amd.com/en/latest/reference/gpu-arch-specs.html: LDS, compute units, L3"
_V5P = "https://cloud.google.com/tpu/docs/v5p"
_PALLAS = "https://docs.jax.dev/en/latest/pallas/tpu/hardware.html: VMEM of a TensorCore; CMEM 0"
_M2 = "https://www.apple.com/newsroom/2022/06/apple-unveils-m2-with-breakthrough-performance-and-capabilities/"
_METAL = (
    "https://developer.apple.com/metal/Metal-Feature-Set-Tables.pdf: maximum threadgroup memory, "
    "family Apple8"
)

_HOPPER_PEAK = {"float16": 989.4e12, "bfloat16": 989.4e12, "float32": 66.9e12, "float64": 33.5e12}

MACHINES: dict[str, Machine] = {
    m.name: m
    for m in (
        Machine(
            "A100-40GB",
            sram_per_sm=164 * _KB,
            sms=108,
            l2=40 * _MB,
            hbm=40 * _GB,
            bandwidth=1.555e12,
            peak={"float16": 312e12, "bfloat16": 312e12, "float32": 19.5e12, "float64": 9.7e12},
            sources={"sram_per_sm": _AMPERE_TUNING, "sms, l2, hbm, bandwidth, peak": _AMPERE},
            notes="The FlashAttention paper says 192 KB of SRAM per SM: that is shared memory and "
            "L1 together, of which a "
            "program can have 164 KB as shared memory. Tensor cores reach 19.5e12 in float64.",
        ),
        Machine(
            "H100",
            sram_per_sm=228 * _KB,
            sms=132,
            l2=50 * _MB,
            hbm=80 * _GB,
            bandwidth=3.35e12,
            peak=_HOPPER_PEAK,
            sources={
                "sram_per_sm": _HOPPER_TUNING,
                "sms, l2, peak": _HOPPER,
                "hbm, bandwidth": _H100,
            },
            notes="The SXM5 module; PCIe and NVL differ. Advertised 16-bit peaks of 1,979e12 count "
            "zeros skipped by 2:4 "
            "sparsity: dense is half. Tensor cores reach 66.9e12 in float64.",
        ),
        Machine(
            "H200",
            sram_per_sm=228 * _KB,
            sms=132,
            l2=60 * _MB,
            hbm=141 * 10**9,
            bandwidth=4.8e12,
            peak=_HOPPER_PEAK,
            sources={
                "sram_per_sm": _HOPPER_TUNING,
                "sms, peak": _HOPPER + "; the H200 has the same GPU",
                "hbm, bandwidth": _H200,
                "l2": "what one H200 says of itself",
            },
            notes="NVIDIA's data sheet gives no L2 size; many tables repeat the H100's 50 MB.",
        ),
        Machine(
            "B200",
            sram_per_sm=228 * _KB,
            sms=148,
            l2=126 * _MB,
            hbm=180 * 10**9,
            bandwidth=8.0e12,
            peak={"float16": 2.25e15, "bfloat16": 2.25e15, "float32": 80e12, "float64": 40e12},
            sources={
                "sram_per_sm, l2, hbm": _BLACKWELL_TUNING,
                "sms": _B200,
                "bandwidth, peak": _BLACKWELL,
            },
            notes="NVIDIA gives no number of SMs. One B200 reports a bus of 7,680 bits, which "
            "makes 7.67e12 bytes/s. Its tensor "
            "memory of 256 KB per SM, for accumulators, is not counted as SRAM. The brief says 192 "
            "GB.",
        ),
        Machine(
            "MI300X",
            sram_per_sm=64 * _KB,
            sms=304,
            l2=256 * _MB,
            hbm=192 * _GB,
            bandwidth=5.3e12,
            peak={
                "float16": 1307.4e12,
                "bfloat16": 1307.4e12,
                "float32": 163.4e12,
                "float64": 81.7e12,
            },
            sources={"sram_per_sm, sms, l2": _ROCM, "hbm, bandwidth, peak": _MI300X},
            notes="An SM is a compute unit, its SRAM the local data share. The last cache before "
            "DRAM is the Infinity Cache; "
            "before it each of the 8 dies has an L2 of 4 MB. Matrix cores reach 163.4e12 in "
            "float64.",
        ),
        Machine(
            "TPU v5p",
            sram_per_sm=64 * _MB,
            sms=2,
            l2=0,
            hbm=95 * _GB,
            bandwidth=2.765e12,
            peak={"bfloat16": 459e12},
            sources={"sms, hbm, bandwidth, peak": _V5P, "sram_per_sm, l2": _PALLAS},
            notes="An SM is a TensorCore, its SRAM the vector memory. There is no cache before "
            "DRAM. Google gives no peak for "
            "float32.",
        ),
        Machine(
            "M2",
            sram_per_sm=32 * _KB,
            sms=10,
            l2=8 * _MB,
            hbm=24 * _GB,
            bandwidth=1.0e11,
            peak={"float16": 3.6e12, "bfloat16": 3.6e12, "float32": 3.6e12},
            sources={
                "sms, hbm, bandwidth, peak": _M2,
                "sram_per_sm": _METAL,
                "l2": "no vendor's number: https://en.wikipedia.org/wiki/Apple_M2 (last level cache)",  # noqa: E501
                "peak at 16 bits": (
                    "no vendor's number: https://github.com/philipturner/metal-benchmarks (F16 as "
                    "fast as F32)"
                ),
            },
            notes="32 KB is what one threadgroup may have, a limit of the interface: Apple "
            "publishes no size of the memory. "
            "8 MB is the system-level cache, which CPU and GPU share; the GPU's own L2 is smaller "
            "and unpublished. The 10-core "
            "GPU with 24 GB; half-precision peak measured on M1 by third parties. The chapter's "
            "200 GB/s are an M2 Pro's.",
        ),
    )
}


@dataclass(frozen=True)
class Roofline:
    """The least time to move `nbytes` and compute `flops` on a machine.

    time       seconds: the longer of the two
    intensity  FLOP/byte; `ridge` is the machine's, where both take equally long
    bound      "bandwidth" or "compute": what takes longer
    """

    nbytes: float
    flops: float
    time: float
    intensity: float
    bound: str
    ridge: float

    @property
    def reached(self) -> float:
        """FLOP/s in that time: the height of the roof at this intensity."""
        return self.flops / self.time


def roofline(machine: Machine, nbytes: float, flops: float, dtype: Any = DEFAULT_DTYPE) -> Roofline:
    """Return the roofline's prediction for moving `nbytes` and computing `flops` in a dtype.

    Raises ValueError for negative numbers, or if both are 0.
    """
    _known(machine)
    for name, number in (("nbytes", nbytes), ("flops", flops)):
        check_number(name, number, "a finite number ≥ 0", lambda n: 0 <= n < math.inf)
    if nbytes + flops == 0:
        raise ValueError(f"nbytes is {nbytes} and flops {flops}; expected not both to be 0")
    moving = nbytes / machine.bandwidth
    computing = flops / machine.peak_for(dtype)
    return Roofline(
        nbytes,
        flops,
        time=max(moving, computing),
        intensity=flops / nbytes if nbytes else math.inf,
        bound="compute" if computing >= moving else "bandwidth",
        ridge=machine.ridge(dtype),
    )


def _known(machine: Any) -> Machine:
    if not isinstance(machine, Machine):
        raise ValueError(
            f"machine is {short_repr(machine)}; expected a Machine, such as MACHINES['H100']"
        )
    return machine


def predict(
    machine: Machine, algorithm: str | Algorithm, *, dtype: Any = DEFAULT_DTYPE, **arguments: Any
) -> Roofline:
    """Return the roofline of an algorithm, counted with M = one SM's SRAM, all its HBM accesses
    being DRAM traffic.

    `arguments` are `flashsim.count`'s other arguments: N, d, heads, direction, causal, … All FLOPs
    count alike, though the peak is one of matrix products: exponentials and sums are slower, so
    this is a lower bound. With an L2 in between, give `roofline` what
    `flashsim.cache.L2.dram_bytes` says.
    """
    tally = count(algorithm, M=_known(machine).M(dtype), dtype=dtype, **arguments)
    return roofline(machine, tally.hbm.bytes, tally.flops.total, dtype)


# --------------------------------------------------------------------------------------------------
# the book chapter


@dataclass(frozen=True)
class Tile:
    """FLOPs and bytes of one KV tile, as the chapter counts them: K and V tiles are loaded, Q
    and O stay on chip.
    """

    flops: int
    nbytes: int

    @property
    def intensity(self) -> Fraction:
        """FLOP/byte, exactly: 2 B_q / itemsize, whatever B_k and d."""
        return Fraction(self.flops, self.nbytes)

    @property
    def as_printed(self) -> Fraction:
        """FLOP/byte as the chapter divides: FLOPs in whole thousands by bytes in whole KB of 1024.

        524,288 FLOPs are "524K" and 16,384 bytes "16 KB": 524/16 = 32.75, where 524,288/16,384 =
        32. The two K differ by 1024/1000, and rounding takes back a little: 32 · 1.024 = 32.768,
        less 0.288/16 = 0.018. Below 100 thousand the chapter takes 1024 for both ("16K / 16K"), and
        the quotient is exact.
        """
        thousand = 1000 if self.flops >= 100_000 else 1024
        return Fraction(self.flops // thousand, self.nbytes // 1024)


@whole_numbers("B_q", "B_k", "d", "itemsize")
def kv_tile(*, B_q: int, B_k: int, d: int, itemsize: int = 2) -> Tile:
    """Return one step of a Q tile over a KV tile: S = Q Kᵀ and O += P V, 2 B_q B_k d FLOPs each; K
    and V come in.

    The chapter's prefill has B_q = B_k = 32 and d = 128: 32 FLOP/byte (printed 32.75). Its decode
    has B_q = 1: 1 FLOP/byte.
    """
    return Tile(2 * (2 * B_q * B_k * d), 2 * B_k * d * itemsize)

"""`Kernel` is the record of one kernel, a rung of the ladder. Each kernel's file ends with its
record, KERNEL, and `ladder` collects them.

To add a kernel:

1. `flashsim/gpu/kernels/x.cu`, and `flashsim/gpu/x.py`, which launches it and ends in `KERNEL =
   Kernel(…)`. It may share the headers `scalar.cuh`, `mma.cuh` and `hopper.cuh`.
2. Install the extras `test` and `gpu`, also without a GPU. Then `pytest -k x
   tests/gpu/test_gpu_compile.py` compiles it for every architecture; without CuPy or NVRTC it
   skips. With `nvidia-cuda-nvdisasm` it also looks in the SASS for exponentials that the compiler
   moved. On a GPU, run `pytest tests/gpu/test_gpu.py`, whose tests range over the ladder.
3. On a GPU: `flashsim bench --json figures/gpu_bench.json`, then `python scripts/gpu_figures.py`,
   `python scripts/docs_tables.py`, and for Hopper's kernels `python scripts/header_tables.py`.
4. Has a change made a kernel slower? On a GPU, `python scripts/research/bench_against.py` times it
   and its state at an older commit, which take turns, and says how much one build differs from
   itself (`figures/gpu_bench_against.json`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flashsim.gpu.counters import Counters


@dataclass(frozen=True)
class Options:
    """The arguments of a call besides its arrays, checked.

    scale      softmax scale τ
    causal     key j is attended to if j ≤ i + N_k − N_q
    dropout_p, seed  as in `flashsim.forward`
    mask       None, or booleans (B, H_q, N_q, N_k), True = attend, with any strides: 0 along axes
               that broadcast
    window     None, or (left, right) of a `flashsim.SlidingWindow`; then `causal` is False
    block_mask None, or NumPy booleans (T_r, T_c), True = computed, or a function of (T_r, T_c) that
    returns them
    blocks     (B_r, B_c), or None: the kernel's own
    deterministic  whether a kernel that can choose must give the same bits in every run
    counters   where a counting build adds what it moves, or None: nothing is counted
    """

    scale: float
    causal: bool = False
    dropout_p: float = 0.0
    seed: int = 0
    mask: Any = None
    window: tuple[int, int] | None = None
    block_mask: Any = None
    blocks: tuple[int, int] | None = None
    deterministic: bool = False
    counters: Counters | None = None


@dataclass(frozen=True)
class Variant:
    """One compilation that the tests make for each of `architectures`: a file, its defines, its
    functions.
    """

    file: str
    defines: tuple[tuple[str, str | int], ...]
    functions: tuple[str, ...]
    architectures: tuple[str, ...] = ("sm_80", "sm_90a")


MOST = 4  # functions in one of Hopper's variants, which take some 10 seconds to compile


def hopper_variants(
    file: str, functions: Callable[[str, bool], Iterable[str]]
) -> tuple[Variant, ...]:
    """Return the variants of a file for Hopper. `functions` yields names for a dtype and whether
    the build counts.

    float16 has all of them, bfloat16 and counting builds every third, and the first of each
    function. A third still has every width and every kind of mask. More than MOST are split into
    several variants, each with at least one of every function, so that a build uses all code of the
    file.
    """
    variants = []
    for dtype, count, first in (("float16", 0, None), ("bfloat16", 0, 2), ("float16", 1, 1)):
        listed = [*dict.fromkeys(functions(dtype, bool(count)))]
        firsts = {name.partition("<")[0]: name for name in reversed(listed)}
        some = [
            name
            for number, name in enumerate(listed)
            if first in (None, number % 3) or name in firsts.values()
        ]
        parts = -(-len(some) // MOST)
        for part in (some[number::parts] for number in range(parts)):
            there = {name.partition("<")[0] for name in part}
            lacking = (name for function, name in firsts.items() if function not in there)
            variants.append(Variant(file, (("COUNT", count),), (*part, *lacking), ("sm_90a",)))
    return tuple(variants)


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """The record of a kernel.

    name, about  the name in `flashsim.gpu.forward(kernel=name)`, and one line about it
    short, look  its name in pictures, and its curve's colour, marker and dashes
    rung         its place on the ladder, from 0; a kernel with a higher number is faster
    fastest_in   the directions in which `flashsim.gpu.plan` may choose it
    model        the simulator's algorithm that has the same counts and bounds on rounding
    tensor_cores whether it multiplies on tensor cores itself, which rounds P̃ and dS to the inputs'
                 type
    longest      the largest N in benchmarks that do not name it; None: any
    dtypes       those that it takes of "float16", "bfloat16", "float32" and "float8_e4m3fn"
    output       the dtype of its results, or None: the inputs'
    head_dims    widths d of Q, K and V that it takes
    takes        which other parameters of `flashsim.gpu.forward` it takes; "window" is a mask that
                 is a window
    forward_only those of `takes` that the backward pass does not take
    not_backward further ones that the backward pass does not take, by d
    not_together pairs that it does not take together; with `_backward`, pairs that only the
                 backward pass does not
    variants     what the tests compile
    aligned      whether rows must start at multiples of 16 bytes
    keys_contiguous  V's keys may have stride 1, instead of its columns, if N_k is a multiple of
                     this; 0: never
    choose_blocks (d, dtype, direction) -> its default (B_r, B_c), or None if it has no such sizes
    why_not      (capability, d) -> why a GPU of this compute capability, such as "90", cannot run
                 it, or ""
    unsuited     (q's shape, k's shape) -> why it does not take arrays of these shapes, or ""
    forward      (q, k, v, o, lse, options): fills o (B, H_q, N_q, d) and, unless None, lse (B, H_q,
                 N_q), float32
    backward     (q, k, v, o, lse, do, dq, dk, dv, options): fills dq, dk, dv, shaped as q, k, v; or
                 None
    prepare      (device, q, k, v, whether lse is wanted, options) -> a `launching.Prepared` that
                 does the work of `forward` for arrays of these shapes, strides and dtypes, which is
                 all it looks at, or None; or None
    prepare_backward  (device, q, k, v, do, options) -> the same for `backward`; or None

    Arrays are CuPy's, checked, on the current device. Inputs have last stride 1, or as
    `keys_contiguous` says, and otherwise any strides. Arrays to be filled are contiguous, as are o
    and lse in the backward pass. Bfloat16 is ml_dtypes' type, so `q.dtype.name` is "bfloat16".
    Launches go to the current stream.
    """

    name: str
    about: str
    short: str
    look: tuple[str, str, str]
    rung: int
    fastest_in: tuple[str, ...]
    model: str
    dtypes: tuple[str, ...]
    head_dims: tuple[int, ...]
    variants: tuple[Variant, ...]
    forward: Callable[..., None]
    backward: Callable[..., None] | None = None
    prepare: Callable[..., Any] | None = None
    prepare_backward: Callable[..., Any] | None = None
    tensor_cores: bool = False
    output: str | None = None
    longest: int | None = None
    takes: tuple[str, ...] = ("causal",)
    forward_only: tuple[str, ...] = ()
    not_together: tuple[tuple[str, str], ...] = ()
    not_together_backward: tuple[tuple[str, str], ...] = ()
    not_backward: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    aligned: bool = False
    keys_contiguous: int = 0
    choose_blocks: Callable[[int, str, str], tuple[int, int]] | None = None
    why_not: Callable[[str, int], str] | None = None
    unsuited: Callable[[tuple[int, ...], tuple[int, ...]], str] | None = None

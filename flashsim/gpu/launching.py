"""How kernels are launched: struct Problem of kernels/scalar.cuh, shared memory, counters, and
launches that are kept.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from flashsim.attention.masks.dropout import seed_words, threshold
from flashsim.gpu.compiling import import_cupy, load
from flashsim.gpu.kernel import Options, Variant

ELEMENTS = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float"}
HEAD_DIMS = (32, 64, 128)
THREADS = 256
SIDE = 16
GRID = 2**31 - 1
FLOAT = 4
L2_PART = 0.8  # the part of the L2 for what a section of heads reads again

DROPOUT = np.dtype([("key_0", "u4"), ("key_1", "u4"), ("last", "u4"), ("keep_scale", "f4")])
STRIDES = np.dtype([("batch", "i8"), ("head", "i8"), ("row", "i8")])
_PROBLEM = np.dtype(
    [(name, STRIDES) for name in ("q", "k", "v", "o", "dO")]
    + [(name, "i8") for name in ("mask", "mask_batch", "mask_head", "mask_row", "mask_column")]
    + [(name, "i4") for name in ("H", "group", "N_q", "N_k")]
    + [("tau", "f4"), ("dropout", DROPOUT), ("unused", "i4")]
)


def problem(q: Any, k: Any, v: Any, options: Options, *, o: Any = None, do: Any = None) -> np.void:
    """Return struct Problem, which kernels take by value. Arrays are (B, H, N, d)."""
    record = np.zeros((), _PROBLEM)
    for name, array in (("q", q), ("k", k), ("v", v), ("o", o), ("dO", do)):
        if array is not None:
            record[name] = tuple(stride // array.itemsize for stride in array.strides[:3])
    if options.mask is not None:
        record["mask"] = options.mask.data.ptr
        for name, stride in zip(
            ("batch", "head", "row", "column"), options.mask.strides, strict=True
        ):
            record[f"mask_{name}"] = stride
    record["H"], record["group"] = q.shape[1], q.shape[1] // k.shape[1]
    record["N_q"], record["N_k"] = q.shape[2], k.shape[2]
    record["tau"] = options.scale
    record["dropout"] = dropout(options.dropout_p, options.seed)
    return np.void(record.tobytes())


def dropout(p: float, seed: int) -> tuple[int, int, int, float]:
    """Return what struct Dropout of kernels/common.cuh holds. Kernels do not use it if p is 0."""
    return (*seed_words(seed), max((threshold(p) << 16) - 1, 0), 1 / (1 - p))


def variant_types(options: Options) -> tuple[str, str]:
    """Return the types Mask and Drop of kernels/scalar.cuh."""
    mask = {
        (False, False): "NoMask",
        (True, False): "Causal",
        (False, True): "Dense",
        (True, True): "CausalDense",
    }
    return mask[
        options.causal, options.mask is not None
    ], "PhiloxDropout" if options.dropout_p else "NoDropout"


def check_blocks(kernel: str, blocks: tuple[int, int], shared: int) -> tuple[int, int]:
    """Return blocks, or raise ValueError unless they are multiples of 16 and this GPU has
    `shared` bytes of shared memory.
    """
    if any(b % SIDE or b <= 0 for b in blocks):
        raise ValueError(
            f"blocks is {blocks}; expected multiples of {SIDE}, the side of {kernel}'s block of "
            "threads"
        )
    most = import_cupy().cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
    if shared > most:
        raise ValueError(
            f"blocks is {blocks}, which needs {shared:,} bytes of shared memory; this GPU has "
            f"{most:,}"
        )
    return blocks


def check_rows(name: str, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Raise ValueError unless rows start at multiples of 16 bytes, since 16 bytes are copied at
    a time.
    """
    if address % 16 or any(
        stride % 16 for stride, n in zip(strides[:3], shape[:3], strict=True) if n > 1
    ):
        raise ValueError(
            f"{name} is at {address:#x} with strides {strides} bytes; expected multiples of 16 for "
            "tensor_core"
        )


def launch(
    file: str,
    function: str,
    blocks: int,
    shared: int,
    arguments: Sequence[Any],
    names: Sequence[str],
    options: Options,
) -> None:
    """Launch `function` of kernels/`file` with `blocks` blocks of threads, on the current stream.

    The kernel's last parameter, the totals of the arrays `names`, is added to `arguments`. Raises
    ValueError if the grid is too large.
    """
    if blocks > GRID:
        raise ValueError(
            f"{function} would need {blocks:,} blocks of threads; a grid has {GRID:,} at most"
        )
    kernel = load(file, (function,), {"COUNT": int(options.counters is not None)})[function]
    if shared > 48 * 1024:
        kernel.max_dynamic_shared_size_bytes = shared
    totals = options.counters.for_launch(names) if options.counters is not None else np.uint64(0)
    values = tuple(np.uint64(0) if argument is None else argument for argument in arguments)
    kernel((blocks,), (THREADS,), (*values, totals), shared_mem=shared)


def variants(
    file: str, function: str, types: Sequence[str], *, dims: Sequence[tuple[int, int, int]]
) -> tuple[Variant, ...]:
    """Return what the tests compile of `function<T, d, B_r, B_c, types>`, for (d, B_r, B_c) in
    `dims`.

    The last of `types`, such as ", Causal, NoDropout", uses the most of the code. For sm_90a, float
    has all of `types` at the middle of `dims`, and the first and the last elsewhere. Half has the
    last of `types` at all `dims`. Bfloat16, counting builds and sm_80, which has the same source,
    have the last of `types` at the middle.
    """
    middle = dims[len(dims) // 2]
    most = types[-1:]
    ends = tuple(dict.fromkeys((types[0], types[-1])))

    def names(
        T: str, of: Sequence[str], where: Sequence[tuple[int, int, int]] = dims
    ) -> tuple[str, ...]:
        return tuple(
            f"{function}<{T}, {d}, {B_r}, {B_c}{rest}>" for d, B_r, B_c in where for rest in of
        )

    def variant(count: int, functions: tuple[str, ...], arch: str) -> Variant:
        return Variant(file, (("COUNT", count),), functions, (arch,))

    half, other, scalar = ELEMENTS.values()
    in_scalar = tuple(dict.fromkeys(names(scalar, types, [middle]) + names(scalar, ends)))
    return (
        *(variant(0, some, "sm_90a") for start in range(3) if (some := in_scalar[start::3])),
        variant(0, names(half, most), "sm_90a"),
        variant(0, names(other, most, [middle]), "sm_90a"),
        variant(1, names(scalar, most, [middle]), "sm_90a"),
        variant(
            0, tuple(name for T in ELEMENTS.values() for name in names(T, most, [middle])), "sm_80"
        ),
    )


@cache
def ready(
    device: int, file: str, names: tuple[str, ...], large: str, shared: int, counting: bool
) -> tuple[Any, ...]:
    """Return loaded functions on `device`, the current one. `large` is the one that may use
    `shared` bytes of shared memory.
    """
    loaded = load(file, names, {"COUNT": int(counting)})
    loaded[large].max_dynamic_shared_size_bytes = shared
    return tuple(loaded[name] for name in names)


class Launches:
    """Launches, one after the other, that are complete but for addresses. To be called with the
    stream's handle and the addresses.

    `each` has a kernel, its grid, threads and shared memory. `arguments` makes every kernel's
    arguments from the addresses. They are kept for later calls with the same addresses, so they may
    depend on nothing else that changes: the same address may then be another array's.

    From the second call on, the launches are a CUDA graph, which the host launches in less time
    than one kernel.

    early  kernels after the first may start before the one before them has ended; they call
           `wait_for_kernel` of hopper.cuh
    """

    def __init__(
        self,
        each: Sequence[tuple[Any, int, int, int]],
        arguments: Callable[..., Sequence[Sequence[Any]]],
        *,
        early: bool = False,
    ) -> None:
        cuda = import_cupy().cuda
        self._early = early
        # CuPy would inspect each argument
        self._runtime, self._launch = cuda.runtime, cuda.driver.launchKernel
        self._kernels = [kernel.kernel for kernel, *_ in each]
        shapes = [(grid, 1, 1, threads, 1, 1, shared) for _, grid, threads, shared in each]
        hows = [(kernel.ptr, *shape) for kernel, shape in zip(self._kernels, shapes, strict=True)]
        self._kept = lru_cache(maxsize=256)(
            lambda *addresses: Repeated(
                list(zip(hows, map(InMemory, arguments(*addresses)), strict=True))
            )
        )
        self._one_at_a_time = threading.Lock()

    def __call__(self, stream: int, *addresses: int) -> None:
        """Launch the kernels."""
        kept = self._kept(*addresses)
        if not kept.again or self._runtime.streamIsCapturing(stream):
            kept.again = True
            self._launch_each(kept, stream)
            return
        with self._one_at_a_time:  # two threads must not launch one graph at once
            if kept.graph is None:
                own = import_cupy().cuda.Stream(non_blocking=True)
                own.begin_capture()
                self._launch_each(kept, own.ptr)
                kept.graph = own.end_capture()
            self._runtime.graphLaunch(kept.graph.graphExec, stream)

    def _launch_each(self, kept: Repeated, stream: int) -> None:
        for n, (how, arguments) in enumerate(kept.each):
            if self._early and n:
                launch_early(*how, stream, arguments.at)
            else:
                self._launch(*how, stream, arguments.at, 0)


class Attribute(ctypes.Structure):
    """The driver's CUlaunchAttribute, with a number for its value."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("unused", ctypes.c_int),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_byte * 60),
    )


class Config(ctypes.Structure):
    """The driver's CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    )


PROGRAMMATIC_STREAM_SERIALIZATION = 6  # the driver's number of that attribute


def launch_early(kernel: int, *how: int) -> None:
    """Launch a kernel whose blocks of threads may start before the kernel before it in the stream
    has ended.

    `how` has three sizes of the grid, three of a block of threads, bytes of shared memory, the
    stream's handle, and the address of the arguments' table. Raises RuntimeError if the driver
    refuses.
    """
    attribute = Attribute(PROGRAMMATIC_STREAM_SERIALIZATION, 0, 1)
    grid, block, (shared, stream, arguments) = how[:3], how[3:6], how[6:]
    config = Config(grid, block, shared, stream, ctypes.pointer(attribute), 1)
    status = _launcher()(
        ctypes.byref(config), ctypes.c_void_p(kernel), ctypes.c_void_p(arguments), None
    )
    if status:
        raise RuntimeError(f"cuLaunchKernelEx returned {status}")


@cache
def _launcher() -> Any:
    return ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx


@dataclass(eq=False)
class Repeated:
    """Kernels with their arguments, whether they were launched before, and their graph once
    there is one.
    """

    each: list[tuple[Any, InMemory]]
    again: bool = False
    graph: Any = None


class Launch(Launches):
    """A single launch. `arguments` makes its arguments of the addresses."""

    def __init__(
        self,
        kernel: Any,
        grid: int,
        threads: int,
        shared: int,
        arguments: Callable[..., Sequence[Any]],
    ) -> None:
        super().__init__(
            [(kernel, grid, threads, shared)], lambda *addresses: [arguments(*addresses)]
        )


class Prepared(NamedTuple):
    """A kernel's work for arrays of known shapes, strides and dtypes; only the addresses are
    missing.

    run      to be called with the stream's handle, the address of scratch memory, and the arrays'
             addresses: q, k, v, o, and lse if it is wanted; or q, k, v, o, lse, do, dq, dk, dv. The
             thread must have used the device before
    scratch  the bytes of scratch memory
    kept     other arrays on the GPU that `run` reads, such as lists of tiles
    """

    run: Callable[..., None]
    scratch: int = 0
    kept: Sequence[Any] = ()

    def __call__(self, *arrays: Any) -> None:
        """Run it with CuPy's arrays, leaving out those that are None, on CuPy's current stream
        and device.
        """
        cuda = import_cupy().cuda
        cuda.runtime.setDevice(cuda.runtime.getDevice())
        stream = cuda.get_current_stream().ptr
        # `run` may allocate, too: this name keeps the pool from handing the memory out twice
        with temporaries():
            memory = cuda.alloc(self.scratch)
        self.run(stream, memory.ptr, *[x.data.ptr for x in arrays if x is not None])


def temporaries() -> AbstractContextManager[Any]:
    """Return a context in which CuPy allocates what only launches on the current stream use.

    If the stream captures a graph, the driver allocates and frees this memory each time the graph
    runs, which takes the GPU some time.
    """
    cuda = import_cupy().cuda
    if cuda.runtime.streamIsCapturing(cuda.get_current_stream().ptr):
        return cuda.using_allocator(cuda.malloc_async)  # type: ignore[no-any-return]
    return nullcontext()


class InMemory:
    """A kernel's arguments, NumPy scalars, in memory for the driver: `at` is the address of the
    table of their addresses.
    """

    def __init__(self, arguments: Sequence[Any]) -> None:
        self.values = [
            ctypes.create_string_buffer(value.tobytes(), value.nbytes) for value in arguments
        ]
        self._table = (ctypes.c_void_p * len(self.values))(*map(ctypes.addressof, self.values))
        self.at = ctypes.addressof(self._table)


def section(bytes_a_head: float, l2_bytes: int, heads: int) -> int:
    """Return how many heads' bytes fit into the L2 together: a power of two, or all."""
    return min(heads, 1 << max(0, int(L2_PART * l2_bytes / bytes_a_head).bit_length() - 1))


WORDS = 65_536  # allocated at a time
WORDS_EACH = 64  # of each stream
_counters: dict[tuple[int, ...], int] = {}
_one_at_a_time = threading.Lock()


def counter(device: int, stream: int) -> int:
    """Return the address of a stream's own words, from which blocks of threads draw their next
    work. Between launches, all are 0.

    Memory is allocated for many streams together, and not whenever a stream is new, since a stream
    may be capturing a graph.
    """
    key = device, stream, threading.get_ident()
    if key not in _counters:
        with _one_at_a_time:
            n = sum(known[0] == device for known in _counters)
            _counters[key] = _words(device, n * WORDS_EACH // WORDS).data.ptr + 4 * (
                n * WORDS_EACH % WORDS
            )
    return _counters[key]


@cache
def _words(device: int, _: int) -> Any:
    cupy = import_cupy()
    with cupy.cuda.Device(device):
        words = cupy.zeros(WORDS, "uint32")
        cupy.cuda.get_current_stream().synchronize()  # before other streams use them
    return words


@dataclass(frozen=True)
class Stream:
    """A stream's handle in the CUDA stream protocol, which streams of older PyTorch versions
    lack.
    """

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def warn(message: str) -> None:
    """Issue a RuntimeWarning at the line that called this package."""
    frame = sys._getframe(1)
    level = 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(
        "flashsim.gpu"
    ):
        frame = frame.f_back
        level = level + 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)


def totals(options: Options, names: Sequence[str], events: Sequence[str] = ()) -> int:
    """Return the address where a launch adds what it moves of the arrays `names`, and counts
    events, or 0.
    """
    return (
        0 if options.counters is None else int(options.counters.for_launch(names, events).data.ptr)
    )


def state(heads: int, seed: int | None) -> Any:
    """Return R of each head, (heads, 2): the seed's words, or, if `seed` is None, memory for a
    kernel to write them to.
    """
    cupy = import_cupy()
    if seed is None:
        return cupy.empty((heads, 2), "uint32")
    return cupy.tile(cupy.asarray(seed_words(seed), "uint32"), (heads, 1))

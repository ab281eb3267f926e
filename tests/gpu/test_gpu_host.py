"""What a call on a GPU keeps for the next one, and that it is the next one's: with a driver that
only writes down launches.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import itertools
import math
import shutil
import struct
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

import flashsim
from flashsim import gpu
from flashsim.gpu import arrays as of_gpus
from flashsim.gpu import (
    compiling,
    hopper,
    hopper_backward,
    hopper_backward_wide,
    hopper_decode,
    hopper_fp8,
    hopper_grouped,
    hopper_paged,
    hopper_parts,
    hopper_varlen,
    launching,
    settling,
    tensor_core,
    tensor_maps,
)
from flashsim.gpu.compiling import KERNELS
from flashsim.gpu.counters import Counters
from flashsim.gpu.kernel import Options
from flashsim.gpu.masking import InTiles

ml_dtypes = pytest.importorskip("ml_dtypes")
DEVICE = 7
STREAM = 5  # the stream is PyTorch's
LAUNCHING = (
    hopper,
    hopper_backward,
    hopper_backward_wide,
    hopper_decode,
    hopper_fp8,
    hopper_grouped,
    hopper_paged,
    hopper_parts,
    hopper_varlen,
)
CACHES = (
    settling._settled_before,
    of_gpus._library,
    compiling.capability,
    hopper._launch,
    hopper_backward._launches,
    hopper_backward_wide._launches,
    hopper_decode._launches,
    hopper_fp8._launch,
    hopper_grouped._launches,
    hopper_paged._launches,
    hopper_varlen._launch,
    hopper_varlen._packed,
    tensor_maps.rows_map,
    tensor_maps.tensor_map,
    launching._counters,
    launching._words,
)
Launches = list[tuple[Any, ...]]


class Array:
    """What of a CuPy array is looked at."""

    at = 0  # where the next one is

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        ptr: Any = 0,
        strides: tuple[int, ...] = (),
    ) -> None:
        """The array at an address, or in memory; of 0, at an address of its own."""
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.itemsize = self.dtype.itemsize
        self.strides = strides or tensor_maps.contiguous(shape, self.dtype.itemsize)
        self.nbytes = math.prod(shape) * self.itemsize
        self.data = SimpleNamespace(ptr=getattr(ptr, "ptr", ptr) or _place(), device_id=DEVICE)

    def view(self, dtype: Any) -> Array:
        return Array(self.shape, dtype, self.data.ptr, self.strides)


class Dtype(str):
    """One of PyTorch's."""


class Tensor:
    """What of a tensor of PyTorch's is looked at."""

    is_cuda = True
    layout = "strided"

    def __init__(self, like: Array) -> None:
        self.shape = Size(like.shape)
        self.dtype = Dtype(f"torch.{like.dtype.name}")
        self.data_ptr: Callable[[], int] = lambda: like.data.ptr
        itemsize = like.dtype.itemsize
        self.stride = lambda: tuple(stride // itemsize for stride in like.strides)
        self.get_device = lambda: DEVICE
        self.is_neg = lambda: False

    def new_empty(self, shape: Any, dtype: Dtype) -> Tensor:
        sizes = shape if isinstance(shape, tuple) else (shape,)
        return Tensor(Array(sizes, dtype.removeprefix("torch.")))


class Size(tuple[int, ...]):
    """A shape of PyTorch's."""


Tensor.__module__ = "torch"


def _like(tensor: Tensor, memory_format: str) -> Tensor:
    assert memory_format == "contiguous"
    return tensor.new_empty(tensor.shape, tensor.dtype)


def _place() -> int:
    Array.at += 2**30
    return Array.at


def _encode(
    result: Any,
    kind: int,
    _: int,
    pointer: Any,
    dims: Any,
    strides: Any,
    box: Any,
    *__: Any,
) -> int:
    """Write down, in the place of the driver's description, what is to be described."""
    words = kind, pointer.value, *dims, *strides, *box  # fewer of a mask's
    packed = struct.pack(f"<{len(words)}Q", *words)
    ctypes.memmove(result.value, packed.ljust(128, b"\0"), 128)
    return int(pointer.value % 16 or any(stride % 16 for stride in strides))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launches]:
    """What was launched, on a GPU that is not there: function, grid, threads, arguments, shared
    memory.
    """
    result: Launches = []
    device = MagicMock(
        compute_capability="90", attributes={"MultiProcessorCount": 132, "L2CacheSize": 60 * 2**20}
    )
    runtime = SimpleNamespace(
        getDeviceCount=lambda: 8, getDevice=lambda: DEVICE, CUDARuntimeError=RuntimeError
    )
    stream = SimpleNamespace(ptr=0, synchronize=lambda: None)
    cupy = ModuleType("cupy")
    cupy.ndarray = Array  # type: ignore[attr-defined]

    cupy.zeros = lambda *_: SimpleNamespace(data=SimpleNamespace(ptr=64))  # type: ignore[attr-defined]
    cupy.ascontiguousarray = lambda x: Array(x.shape, x.dtype)  # type: ignore[attr-defined]
    graphs: list[Launches] = []

    class Stream:
        """What is launched while it captures is not found, but a graph's."""

        ptr = -1
        from_external = MagicMock()

        def __init__(self, non_blocking: bool) -> None:
            assert non_blocking

        def begin_capture(self) -> None:
            self.start = len(result)

        def end_capture(self) -> Any:
            graphs.append(result[self.start :])
            del result[self.start :]
            return SimpleNamespace(graphExec=len(graphs) - 1)

    def launch_graph(graph: int, stream: int) -> None:
        assert {launch[8] for launch in graphs[graph]} == {Stream.ptr}
        for launch in graphs[graph]:
            result.append((*launch[:8], stream, *launch[9:]))

    runtime.graphLaunch = launch_graph
    runtime.streamIsCapturing = lambda _: False
    cupy.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        runtime=runtime,
        Device=lambda *_: device,
        get_current_stream=lambda: stream,
        Stream=Stream,
        alloc=lambda _: SimpleNamespace(ptr=_place()),
        malloc_async=lambda _: SimpleNamespace(ptr=_place()),
    )

    names: list[str] = []

    def ready(_: int, __: str, options: tuple[str, ...], *___: Any) -> tuple[Any, ...]:
        functions = []
        for option in options:
            kernel = SimpleNamespace(ptr=len(names))
            names.append(option)
            functions.append(SimpleNamespace(kernel=kernel))
        return tuple(functions)

    def launch_kernel(function: int, *how: int) -> None:
        *how_much, stream, index, _ = how
        result.append((names[function], *how_much, stream, *kept[index]))

    class InMemory(launching.InMemory):
        def __init__(self, arguments: Sequence[Any]) -> None:
            super().__init__(arguments)
            # as the driver reads it
            table = (ctypes.c_void_p * len(arguments)).from_address(self.at)
            kept[self.at] = [
                ctypes.string_at(index or 0, value.nbytes)
                for index, value in zip(table, arguments, strict=True)
            ]

    kept: dict[int, list[bytes]] = {}
    cupy.cuda.driver = SimpleNamespace(launchKernel=launch_kernel)
    runtime.setDevice = lambda device: None
    monkeypatch.setattr(launching, "InMemory", InMemory)
    monkeypatch.setattr(
        launching, "launch_early", lambda function, *how: launch_kernel(function, *how, 0)
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    torch = ModuleType("torch")

    torch.Tensor = Tensor  # type: ignore[attr-defined]
    torch.nn = SimpleNamespace(Parameter=Tensor)  # type: ignore[attr-defined]
    torch.strided = "strided"  # type: ignore[attr-defined]
    torch.float32 = Dtype("torch.float32")  # type: ignore[attr-defined]
    torch.float16 = Dtype("torch.float16")  # type: ignore[attr-defined]
    torch.uint8 = Dtype("torch.uint8")  # type: ignore[attr-defined]
    torch.empty_like = _like  # type: ignore[attr-defined]
    torch.contiguous_format = "contiguous"  # type: ignore[attr-defined]
    own_stream = SimpleNamespace(cuda_stream=STREAM)
    torch.cuda = SimpleNamespace(current_stream=lambda _: own_stream)  # type: ignore[attr-defined]
    torch._C = SimpleNamespace()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(tensor_maps, "_encode", lambda: _encode)
    for module in LAUNCHING:
        monkeypatch.setattr(module, "ready", ready)
    _forget()
    yield result
    _forget()


def _forget() -> None:
    for cache in CACHES:
        if isinstance(cache, dict):
            cache.clear()
        else:
            cache.cache_clear()


def arrays(
    dtype: Any = "float16",
    d: int = 128,
    N: tuple[int, int] = (96, 160),
    more: tuple[int, int] = (0, 0),
    group: int = 2,
    elsewhere: tuple[str, ...] = (),
    strided: tuple[str, ...] = (),
    swapped: bool = False,
) -> dict[str, Array]:
    """Return q, k, v, o, lse, do: some elsewhere, some with rows further apart, k and v in each
    other's place.
    """
    names = ("q", "k", "v", "o", "lse", "do")
    places = {name: n * 2**24 for n, name in enumerate(names, 1)}
    if swapped:
        places["k"], places["v"] = places["v"], places["k"]
    result = {}
    for name, place in places.items():
        if name in "kv":
            H = 2
            rows = N[1] + more[1]
        else:
            H = 2 * group
            rows = N[0] + more[0]
        shape = (1, H, rows) if name == "lse" else (1, H, rows, d)
        kind = np.dtype("float32" if name == "lse" else dtype)
        elements_apart = (H * rows * 2 * d, rows * 2 * d, 2 * d, 1)
        strides = tuple(kind.itemsize * n for n in elements_apart)
        if name in elsewhere:
            place += 2**20
        result[name] = Array(shape, kind, place, strides if name in strided else ())
    return result


VARIATIONS: list[dict[str, Any]] = [
    {},
    {"elsewhere": "q"},
    {"elsewhere": "k"},
    {"elsewhere": "v"},
    {"elsewhere": ("do",)},
    {"elsewhere": ("o",)},
    {"elsewhere": ("lse",)},
    {"strided": "q"},
    {"strided": "k"},
    {"strided": "v"},
    {"strided": ("do",)},
    {"swapped": True},
    {"dtype": ml_dtypes.bfloat16},
    {"d": 64},
    {"more": (1, 0)},
    {"more": (0, 1)},
    {"group": 4},
]
ASKED: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"scale": 0.5},
    {"scale": -0.5},
]
WINDOWS = [
    {"mask": flashsim.SlidingWindow(9, 0)},
    {"mask": flashsim.SlidingWindow(9, 1)},
    {"mask": flashsim.SlidingWindow(8, 0)},
]
DROPPING: list[dict[str, Any]] = [{"dropout_p": 0.1}, {"dropout_p": 0.1, "seed": 1}]
Call = tuple[Callable[..., None], dict[str, Any], list[dict[str, Any]]]


def _forward(X: dict[str, Array], **options: Any) -> None:
    gpu.forward(X["q"], X["k"], X["v"], **options)


def _backward(X: dict[str, Array], **options: Any) -> None:
    gpu.backward(*X.values(), **options)


CALLS: dict[str, Call] = {
    "hopper": (
        _forward,
        {"kernel": "hopper"},
        [{"return_lse": True}, *DROPPING, *WINDOWS],
    ),
    "hopper_decode": (
        _forward,
        {"kernel": "hopper_decode", "N": (3, 20_000)},
        [{"return_lse": True}],
    ),
    "hopper_decode, more queries": (
        _forward,
        {"kernel": "hopper_decode", "N": (99, 20_000)},
        [{"return_lse": True}],
    ),
    "hopper_fp8": (
        _forward,
        {"kernel": "hopper_fp8", "dtype": ml_dtypes.float8_e4m3fn},
        [{"return_lse": True}],
    ),
    "backward": (
        _backward,
        {"kernel": "hopper"},
        [{"deterministic": True}, *DROPPING],
    ),
}


def _sizes(always: dict[str, Any]) -> dict[str, Any]:
    """What of a call's options is its arrays'."""
    return {key: always[key] for key in ("N", "dtype") if key in always}


@contextmanager
def _written(launches: Launches) -> Iterator[Launches]:
    """What is launched within, where the same memory is given out each time."""
    written: Launches = []
    Array.at = 2**40
    launches.clear()
    yield written
    written.extend(launches)


LIBRARIES: dict[str, Callable[[Array], Any]] = {
    "CuPy": lambda array: array,
    "PyTorch": Tensor,
}


@pytest.mark.parametrize("library", LIBRARIES.values(), ids=LIBRARIES)
@pytest.mark.parametrize("name", CALLS)
def test_what_a_call_keeps_is_never_another_calls(
    name: str, library: Callable[[Array], Any], launches: Launches
) -> None:
    """Every variation after every other: the launches are those of a call that has nothing to
    remember.
    """
    call, always, more = CALLS[name]
    sizes = _sizes(always)
    always = {key: option for key, option in always.items() if key not in sizes}
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for options in ASKED + more:
        pairs.append(({}, options))
    for variation in VARIATIONS[1:]:
        if "dtype" in sizes and {"dtype", "d"} & set(variation):
            continue
        pairs.append((variation, {}))
    made = []
    for variation, options in pairs:
        X = {}
        for letter, array in arrays(**sizes | variation).items():
            X[letter] = library(array)
        made.append((X, options))
    alone = []
    for X, options in made:
        _forget()
        with _written(launches) as written:
            call(X, **always, **options)
        alone.append(written)
    unlike = {str(written) for written in alone}
    unused = 0 if name == "backward" else 3  # o, lse, do are not forward's; there they are new
    assert len(unlike) >= len(alone) - unused - 1
    _forget()
    for n in range(len(made)):
        for m in range(len(made)):
            calls = ((made[n], alone[n]), (made[m], alone[m]))
            for (X, options), expected in calls:
                with _written(launches) as written:
                    call(X, **always, **options)
                assert written == expected


@pytest.mark.parametrize("name", CALLS)
def test_tensors_of_pytorchs_are_launched_as_cupys_arrays_are_but_on_pytorchs_stream(
    name: str, launches: Launches
) -> None:
    call, always, _ = CALLS[name]
    X = arrays(**_sizes(always), strided=("v",))
    options = {"kernel": always["kernel"]}
    with _written(launches) as expected:
        call(X, **options)
    launching._counters.clear()  # or the other stream has the next one
    with _written(launches) as result:
        call({name: Tensor(x) for name, x in X.items()}, **options)
    assert result
    assert {launch[8] for launch in expected} == {0}
    on_its_stream = [(*launch[:8], STREAM, *launch[9:]) for launch in expected]
    assert result == on_its_stream


def test_a_tensor_whose_memory_is_not_its_numbers_is_not_launched_where_it_lies(
    launches: Launches,
) -> None:
    """On another device, negated on reading, sparse, or on the CPU."""
    elsewhere = {
        "is_neg": lambda: True,
        "get_device": lambda: DEVICE + 1,
        "is_cuda": False,
        "layout": "sparse_coo",
    }
    for name, value in elsewhere.items():
        tensors = [Tensor(x) for x in arrays().values()]
        assert of_gpus.PyTorch().look(tensors, DEVICE)
        setattr(tensors[1], name, value)
        assert of_gpus.PyTorch().look(tensors, DEVICE) is None, name


def test_a_launch_has_the_addresses_strides_and_dtype_of_its_arrays(launches: Launches) -> None:
    X = arrays(strided=("k",))
    gpu.forward(X["q"], X["k"], X["v"], kernel="hopper")
    (launch,) = launches
    function, grid, _, _, threads, _, _, _, stream, Q, K, V, _O, _mask, L, *_ = launch
    assert function == hopper.WIDE.function("float16", 128, "FULL", False)
    assert (grid, threads, stream) == (4, 384, 0)
    for tensor_map, name in ((Q, "q"), (K, "k"), (V, "v")):
        array = X[name]
        kind, pointer, *words = struct.unpack("<16Q", tensor_map)
        assert (kind, pointer) == (6, array.data.ptr)
        dims = words[:5]
        assert dims == [64, array.shape[2], 2, array.shape[1], 1]
        row, half, head, _batch = words[5:9]
        assert row == array.strides[2]
        assert half == 128
        assert head == array.strides[1]
        columns, rows, halves = words[9:12]
        assert (columns, rows, halves) == (64, 128, 2)
    assert int.from_bytes(L) == 0


def test_bad_input_gets_its_error_in_every_call(launches: Launches) -> None:
    X = arrays()
    q = X["q"]
    k = X["k"]
    v = X["v"]
    forward: Any = partial(gpu.forward, kernel="hopper")
    strides = 2**20, 2**16, 2**8, 4
    of_float32 = Array(v.shape, "float32", 2**24)
    bad: list[tuple[str, Callable[[], Any]]] = [
        (
            r"k is at 0x1000008 with strides .* expected multiples of 16",
            lambda: forward(q, Array(k.shape, "float16", 2**24 + 8), v),
        ),
        ("v has dtype float32", lambda: forward(q, k, of_float32)),
        ("count is 0", lambda: forward(q, k, v, count=0)),
        ("causal is 1", lambda: forward(q, k, v, causal=1)),
        (
            "strides",
            lambda: _backward(
                X | {"do": Array(X["do"].shape, "float16", strides=strides)}, kernel="hopper"
            ),
        ),
    ]
    for _ in range(2):
        forward(q, k, v)
        for message, call in bad:
            with pytest.raises(ValueError, match=message):
                call()
    assert len(launches) == 2


def eight_bits(x: Any, keys_contiguous: bool = False) -> Array:
    """As `gpu.to_fp8` does it, but for numbers."""
    _, H, N, d = x.shape
    steps = -(-N // 16) * 16
    strides = (H * d * steps, d * steps, 1, steps) if keys_contiguous else ()
    return Array(x.shape, ml_dtypes.float8_e4m3fn, 0, strides)


def test_the_sanitizer_watches_every_kernel_of_hoppers(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    sanitize_gpu = importlib.import_module("scripts.sanitize_gpu")

    monkeypatch.setattr(
        sanitize_gpu, "_normal", lambda *shape, dtype="float16": Array(shape, dtype)
    )
    monkeypatch.setattr(sanitize_gpu, "_half", lambda *shape: Array(shape, "bool"))
    cupy = sys.modules["cupy"]
    monkeypatch.setattr(cupy, "broadcast_to", lambda x, onto: Array(onto, x.dtype), raising=False)
    monkeypatch.setattr(cupy, "asarray", lambda x, _="": Array(x.shape, "int32"), raising=False)
    for module in (hopper, hopper_backward):
        array = Array((1, 300, 336), "bool")
        tiles = InTiles(array, (1, 300, 333), (16, 336, 1), (1, 0, 0))
        monkeypatch.setattr(module, "in_tiles", lambda _, tiles=tiles: tiles)
    monkeypatch.setattr(hopper_backward, "with_causal", lambda mask: mask)
    monkeypatch.setattr(gpu, "to_fp8", eight_bits)
    monkeypatch.setattr(tensor_core, "_ready", lambda *_: lambda *_, **__: None)

    def lists(count: int, *_: Any) -> tuple[Array, ...]:
        return tuple(Array((9,), "int32") for _ in range(count))

    monkeypatch.setattr(hopper, "_on_gpu", partial(lists, 2))
    monkeypatch.setattr(hopper_backward, "_on_gpu", partial(lists, 3))
    for _, launch in sanitize_gpu.launches():
        launch()
    expected: set[str] = set()
    for name in ("hopper", "hopper_decode", "hopper_fp8"):
        for variant in gpu.kernel(name).variants:
            if variant.defines == (("COUNT", 0),):
                expected.update(variant.functions)
    expected = {name for name in expected if "bfloat16" not in name and "round_to_8" not in name}
    assert expected == {launch[0] for launch in launches}


class TensorLike:
    """What `to_fp8` asks of a tensor before anything is on a GPU: as PyTorch's, `size` is a
    method.
    """

    def __init__(self, dtype: str, *shape: int, memory: str = "GPU") -> None:
        self.dtype = Dtype(dtype)
        self.shape = shape
        self.memory = memory

    def size(self) -> tuple[int, ...]:
        return self.shape

    def __dlpack_device__(self) -> tuple[int, int]:
        return {"GPU": 2, "CPU": 1}[self.memory], 0


def test_tensors_that_cannot_be_rounded_to_8_bits_are_refused(launches: Launches) -> None:
    for inputs, message in (
        (
            TensorLike("torch.int64", 8),
            "x has dtype int64 and 8 elements; expected one of float16, bfloat16, float32",
        ),
        (
            TensorLike("torch.float16", 3, 5),
            "x has dtype float16 and 15 elements; .*, and a multiple of 4 elements",
        ),
        (
            TensorLike("torch.float16", 8, memory="CPU"),
            "x is a tensor in the CPU's memory; expected one on a GPU",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            hopper_fp8.to_fp8(inputs)
    assert not launches


@pytest.mark.parametrize("library", LIBRARIES.values(), ids=LIBRARIES)
def test_strides_of_axes_of_length_1_may_be_any(
    library: Callable[[Array], Any], launches: Launches
) -> None:
    """DLPack may give such axes the stride of one element."""

    def three(strides: tuple[int, ...]) -> list[Any]:
        shape = (1, 1, 70, 64)
        return [library(Array(shape, "float16", 2**24, strides)) for _ in "qkv"]

    plain = three(strides=())
    odd = three(strides=(2, 2, 128, 2))
    plan = gpu.plan(*plain)
    assert plan.kernel == "hopper"
    assert plan == gpu.plan(*odd)
    for arrays in (plain, odd):
        gpu.forward(*arrays)
    assert [launch[0] for launch in launches] == [launches[0][0]] * 2
    wide = three(strides=(2, 2, 136, 2))
    assert "hopper: needs rows that start at multiples of 16 bytes" in gpu.plan(*wide).why


@pytest.mark.parametrize(
    "heads_kv",
    [
        (1, 2),
        (3, 7),
        (31, 2),
        (9, 7),
        (62, 1),
        (1, 125),
        (5, 100),
        (300, 13),
    ],
)
def test_the_kernel_of_8_bits_counts_all_tiles_and_row_blocks_to_0(
    launches: Launches, heads_kv: tuple[int, int]
) -> None:
    """Counts end where all of their heads' tiles have been transposed, and all of their heads'
    row blocks have seen it.
    """
    B, H_kv = heads_kv
    group = 3
    kind = ml_dtypes.float8_e4m3fn
    q = Array((B, H_kv * group, 300, 128), kind)
    k = Array((B, H_kv, 700, 128), kind)
    v = Array((B, H_kv, 700, 128), kind)
    gpu.forward(q, k, v)
    (launch,) = launches
    name, grid, *_, counters, inputs, _ = launch
    assert name == hopper_fp8.function(False, False)
    words = struct.unpack("<3Q", counters)
    assert words == tuple(launching.counter(DEVICE, 0) + 4 * n for n in range(3))
    problem = np.frombuffer(inputs, hopper_fp8._PROBLEM)[0]
    T_r = 2
    T_c = 6
    heads = B * H_kv
    assert problem["T_c"] == T_c
    assert problem["tiles"] == heads * T_c
    assert problem["last_draw"] == heads * T_c + grid - 1
    counted = np.bincount(np.arange(heads) >> problem["together"])  # heads
    assert len(counted) == problem["last"] + 1 <= launching.WORDS_EACH - 2
    for n, of in enumerate(counted):
        tiles, steps = problem["count"][int(n == problem["last"])]
        assert (tiles, steps) == (of * T_c, of * T_c + of * group * T_r - 1)


def test_what_hopper_takes_forward_alone_another_rung_has_backward(launches: Launches) -> None:
    X = Array((1, 2, 300, 64), np.float16)
    assert gpu.plan(X, X, X, blocks=(128, 128)).kernel == "hopper"
    backward: Any = partial(gpu.plan, X, X, X, direction="backward")
    assert backward(blocks=(128, 128)).kernel == "algorithm_2"
    assert backward(mask=flashsim.SlidingWindow(9, 0)).kernel == "hopper"
    assert backward(block_mask=np.eye(3, dtype=bool)).kernel == "hopper"


def test_lists_of_tiles_live_as_long_as_what_reads_them(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that is settled is kept for the next one, longer than the lists themselves may be."""
    made: list[weakref.ref[Array]] = []

    def lists(count: int, *_: Any) -> tuple[Array, ...]:
        result = tuple(Array((9,), "int32") for _ in range(count))
        made.extend(map(weakref.ref, result))
        return result

    monkeypatch.setattr(hopper, "_on_gpu", partial(lists, 2))
    monkeypatch.setattr(hopper_backward, "_on_gpu", partial(lists, 3))
    options: dict[str, Any] = {"mask": flashsim.SlidingWindow(9, 0), "dropout_p": 0.5}
    wide = Array((1, 2, 300, 256), np.float16)
    X = Array((1, 2, 300, 64), np.float16)
    gpu.forward(wide, wide, wide, **options)
    lse = Array((1, 2, 300), np.float32)
    gpu.backward(X, X, X, X, lse, X, **options)
    gc.collect()
    assert [array() is not None for array in made] == [True] * 5


def test_causally_row_blocks_that_see_no_key_are_not_waited_for(launches: Launches) -> None:
    """Nobody adds to their dQ_i: `prepare` writes its zeros."""
    for N_q, N_k, causal, unseen in (
        (1000, 100, True, 7),
        (1000, 1000, True, 0),
        (1000, 100, False, 0),
    ):
        q, o, do = (Array((1, 2, N_q, 64), np.float16) for _ in range(3))
        k, v = (Array((1, 2, N_k, 64), np.float16) for _ in "kv")
        lse = Array((1, 2, N_q), np.float32)
        gpu.backward(q, k, v, o, lse, do, causal=causal, kernel="hopper")
        problem = np.frombuffer(launches[-1][-2], hopper_backward._PROBLEM)[0]
        assert problem["unseen"] == unseen, (N_q, N_k, causal)


def test_row_blocks_and_sections_of_8_bits(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Causally the first row block has what does not fill one, in warpgroups: a copy to HBM may not
    begin before the array.

    Sections are small while V is transposed, but for the last, whose first head is where whole
    sections end.
    """
    kind = ml_dtypes.float8_e4m3fn
    for N_q, causal, ahead in (
        (1024, True, 128),
        (260, True, 64),
        (384, True, 0),
        (1024, False, 0),
    ):
        q = Array((1, 2, N_q, 128), kind)
        k, v = (Array((1, 2, 1024, 128), kind) for _ in "kv")
        gpu.forward(q, k, v, causal=causal)
        problem = np.frombuffer(launches.pop()[-2], hopper_fp8._PROBLEM)[0]
        assert problem["ahead"] == ahead, (N_q, causal)
    sections_of = {  # by L2: heads, a section and the last one
        128: [
            (20, (20, 0)),
            (64, (32, 0)),
            (80, (32, 32)),
            (128, (32, 32)),
            (256, (32, 128)),
        ],
        64: [(150, (32, 96))],
        8: [(150, (8, 144))],
    }
    for l2, sections in sections_of.items():
        for heads, expected in sections:
            monkeypatch.setattr(hopper_fp8, "section", partial(min, l2, heads))
            _forget()
            q, k, v = (Array((1, heads, 300, 128), kind) for _ in "qkv")
            gpu.forward(q, k, v, causal=True)
            problem = np.frombuffer(launches.pop()[-2], hopper_fp8._PROBLEM)[0]
            assert (problem["section"], problem["last_section"]) == expected, (heads, l2)
    _forget()


def test_sections_are_equal_and_larger_where_two_row_blocks_are_computed_at_a_time(
    launches: Launches,
) -> None:
    section_of = {  # by d and heads
        (128, 512): 64,
        (64, 512): 128,
        (128, 160): 54,
        (64, 160): 80,
    }
    for (d, heads), section in section_of.items():
        q, k, v = (Array((1, heads, 512, d), np.float16) for _ in "qkv")
        gpu.forward(q, k, v, causal=True, kernel="hopper")
        problem = np.frombuffer(launches.pop()[-2], hopper.PROBLEM)[0]
        assert problem["section"] == section


ORDER = """#include <algorithm>
#include <cstdio>
#define __device__
using std::min;
typedef unsigned Word;
OWN
int main(int, char** asked) {
    Problem p;
    if (fread(&p, sizeof p, 1, stdin) != 1) return 1;
    for (int n = 0; n < p.row_blocks; ++n) {
        const RowBlock at = *asked[1] ? *asked[2] ? in_order<true, true>(p, n) : in_order<true, false>(p, n)
                                      : *asked[2] ? in_order<false, true>(p, n) : in_order<false, false>(p, n);
        fwrite(&at, sizeof at, 1, stdout);
    }
}
"""


@pytest.mark.skipif(
    shutil.which("c++") is None,
    reason="needs a C++ compiler, to run the kernel's own function here",
)
def test_every_row_block_of_8_bits_comes_once_and_those_that_take_longest_first(
    launches: Launches, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`in_order` itself, on the CPU. Of each section, causally those that see most first; else
    each head's last at the end.
    """
    source = (KERNELS / hopper_fp8.FILE).read_text(encoding="utf-8")
    own = source[source.index("struct Problem {") : source.index("// A row block's first query.")]
    shared = (KERNELS / "hopper_softmax.cuh").read_text(encoding="utf-8")
    row_block = shared[shared.index("struct RowBlock {") :].partition("};\n")[0] + "};\n"
    program = tmp_path / "order.cpp"
    program.write_text(ORDER.replace("OWN", row_block + own), encoding="utf-8")
    subprocess.run(["c++", "-std=c++17", "-o", tmp_path / "order", program], check=True)
    problems = itertools.product(
        (1, 31, 33, 80, 150, 256),
        (1, 64, 128),
        (100, 384, 1024),
        (False, True),
        (False, True),
    )
    for heads, l2, N, causal, keys in problems:
        monkeypatch.setattr(hopper_fp8, "section", partial(min, l2, heads))
        _forget()
        shape = (heads, 1, N, 128)
        q, k, v = (Array(shape, ml_dtypes.float8_e4m3fn) for _ in "qkv")
        gpu.forward(q, k, eight_bits(v, keys), causal=causal)
        inputs = launches.pop()[-2]
        T_r = -(-N // 192)
        command = [str(tmp_path / "order"), "causal" * causal, "keys" * keys]
        result = subprocess.run(command, input=inputs, stdout=subprocess.PIPE, check=True).stdout
        i, _, head = np.frombuffer(result, "i4").reshape(-1, 3).T
        every_row_block = [*itertools.product(range(heads), range(T_r))]
        assert sorted(zip(head, i, strict=True)) == every_row_block
        problem = np.frombuffer(inputs, hopper_fp8._PROBLEM)[0]
        section = int(problem["section"])
        if keys:
            begins = [*range(0, heads, section), heads]
        else:
            last = int(problem["last_section"])
            begins = [*range(0, last, section), last, heads]
        for begin, end in itertools.pairwise(begins):
            within = slice(begin * T_r, end * T_r)
            assert set(head[within]) == set(range(begin, end))
            late = -i[within] if causal else i[within] == T_r - 1
            steps = np.diff(late.astype(int))
            assert (steps >= 0).all(), (heads, l2, N, causal, keys)
    _forget()


def test_the_kernel_of_8_bits_takes_v_as_it_is_where_its_keys_lie_next_to_each_other(
    launches: Launches,
) -> None:
    """K comes in pairs, the first of 16 fours of keys and then the second; V as it lies, so that
    there is no scratch memory.
    """
    kind = ml_dtypes.float8_e4m3fn
    q = Array((2, 6, 300, 128), kind)
    k, v = (Array((2, 3, 1000, 128), kind) for _ in "kv")
    rotated = eight_bits(v, keys_contiguous=True)
    assert rotated.strides == (3 * 128 * 1008, 128 * 1008, 1, 1008)
    assert gpu.plan(q, k, rotated).kernel == "hopper_fp8"
    gpu.forward(q, k, rotated, causal=True)
    (launch,) = launches
    name, grid, *_, K, V, _O, _L, transposed, _counters, _problem, _totals = launch
    assert name == hopper_fp8.function(True, True)
    assert grid == 24
    assert int.from_bytes(transposed) == 0
    kind, pointer, *words = struct.unpack("<16Q", K)
    assert (kind, pointer) == (0, k.data.ptr)
    assert words[:5] == [128, 4, 250, 3, 2]  # dims
    assert words[5:9] == [128, 4 * 128, 1000 * 128, 3 * 1000 * 128]  # strides
    assert words[9:] == [128, 2, 16, 1, 1]  # a box
    kind, pointer, *words = struct.unpack("<16Q", V)
    assert (kind, pointer) == (0, rotated.data.ptr)
    assert words[:5] == [1000, 128, 1, 3, 2]
    assert words[5:9] == [1008, 16, 128 * 1008, 3 * 128 * 1008]
    assert words[9:] == [128, 128, 1, 1, 1]


@pytest.mark.parametrize("N_k", [701, 702, 703])
def test_the_kernel_of_8_bits_gets_a_copy_of_v_where_its_keys_are_no_fours(
    launches: Launches, N_k: int
) -> None:
    kind = ml_dtypes.float8_e4m3fn
    q = Array((2, 6, 300, 128), kind)
    k, v = (Array((2, 3, N_k, 128), kind) for _ in "kv")
    rotated = eight_bits(v, keys_contiguous=True)
    for inputs in (v, rotated):
        gpu.forward(q, k, inputs)
    (own, copied) = launches
    assert own[0] == copied[0] == hopper_fp8.function(False, False)
    _, place, *rest = struct.unpack("<16Q", own[11])
    _, other, *same = struct.unpack("<16Q", copied[11])
    assert rest == same
    assert place == v.data.ptr != other
    with pytest.raises(
        ValueError, match="its keys stride 1; hopper_fp8 then expects a multiple of 4 keys"
    ):
        hopper_fp8.prepare(DEVICE, q, k, rotated, False, Options(1.0))
    unaligned = Array(q.shape, q.dtype, 0, (6 * 128 * 300, 128 * 300, 1, 300))
    with pytest.raises(ValueError, match=r"v is at .* with strides .*; expected multiples of 16"):
        gpu.forward(q, q, unaligned)
    half = Array((2, 3, 64, 128), "float16")
    transposed = Array((2, 3, 64, 128), "float16", 0, (2**20, 2**18, 2, 256))
    with pytest.raises(ValueError, match=r"v has strides .* expected 2 for the last axis"):
        gpu.forward(half, half, transposed, kernel="hopper")


def test_what_is_called_again_is_a_graph_but_not_what_is_captured_for_anothers(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two kernels of the backward pass, on a stream that is captured in turns."""
    runtime = sys.modules["cupy"].cuda.runtime
    X = arrays()
    launch = runtime.graphLaunch
    captures: list[bool] = []
    launched: list[int] = []

    def launch_graph(graph: int, stream: int) -> None:
        launched.append(graph)
        launch(graph, stream)

    monkeypatch.setattr(runtime, "graphLaunch", launch_graph)
    monkeypatch.setattr(runtime, "streamIsCapturing", lambda _: captures[-1])
    result = []
    calls = (
        (False, 0),
        (True, 0),
        (True, 0),
        (False, 1),
        (False, 2),
        (True, 2),
        (False, 3),
    )
    for capturing, graphs in calls:
        captures.append(capturing)
        with _written(launches) as written:
            _backward(X, kernel="hopper")
        result.append(written)
        assert len(launched) == graphs
    assert [len(written) for written in result] == [2] * 7
    assert [written == result[0] for written in result] == [not capturing for capturing, _ in calls]
    # a graph's scratch memory lives as long as its first result, and lies behind it
    for (capturing, _), written in zip(calls, result, strict=True):
        *_, dq, problem, _ = written[1]
        sums = int(np.frombuffer(problem, hopper_backward._PROBLEM)["sums"][0])
        assert (sums - struct.unpack("<Q", dq)[0] == X["q"].nbytes) == capturing
    assert set(launched) == {0}
    launched.clear()
    monkeypatch.setattr(runtime, "streamIsCapturing", lambda _: False)
    for _ in range(2):
        with _written(launches) as written:
            _backward(arrays(elsewhere=("do",)), kernel="hopper")
        assert written != result[0]
    assert launched == [1]


class Memory:
    """Memory of CuPy's pool. The pool may give it to another array once this object is gone."""

    def __init__(self) -> None:
        self.ptr = _place()


@pytest.mark.parametrize("name", ["hopper_decode", "hopper_fp8", "backward"])
def test_scratch_memory_is_not_freed_before_all_kernels_are_launched(
    name: str, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even while memory for counters is allocated, which would then be the same."""
    cuda = sys.modules["cupy"].cuda
    live: weakref.WeakSet[Memory] = weakref.WeakSet()
    launch = cuda.driver.launchKernel
    launched: list[int] = []

    def alloc(size: int) -> Memory:
        assert size > 0
        memory = Memory()
        live.add(memory)
        return memory

    def launch_kernel(*how: int) -> None:
        launched.append(len(live))
        launch(*how)

    cuda.alloc = alloc
    cuda.driver.launchKernel = launch_kernel
    monkeypatch.setattr(launching, "launch_early", lambda *how: launch_kernel(*how, 0))
    counters = Counters()
    monkeypatch.setattr(
        counters, "for_launch", lambda *_: SimpleNamespace(data=SimpleNamespace(ptr=len(live)))
    )
    _, always, _ = CALLS[name]
    X = arrays(**_sizes(always))
    q, k, v, o, lse, do = X.values()
    rung = gpu.kernel(always["kernel"])
    options = Options(1.0, counters=counters)
    if name == "backward":
        assert rung.backward is not None
        gradients = [Array(x.shape, x.dtype) for x in (q, k, v)]
        rung.backward(q, k, v, o, lse, do, *gradients, options)
    else:
        rung.forward(q, k, v, o, None, options)
    totals = {struct.unpack("<Q", launch[-1])[0] for launch in launches}
    assert set(launched) == totals == {1}
    assert not live


def test_where_there_is_no_hopper_another_rung_runs_and_the_callers_line_is_warned_of(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(tensor_core, "forward", lambda *inputs: ran.append(inputs))
    for module in (hopper, hopper_decode):
        monkeypatch.setattr(module, "capability", lambda _: "80")
    q, k, v, *_ = arrays(N=(5, 90)).values()
    o = Array(q.shape, "float16")
    for name, text in (("hopper", ["tensor_core"]), ("hopper_decode", ["hopper", "tensor_core"])):
        rung = gpu.kernel(name)
        for call in (
            partial(gpu.forward, q, k, v, kernel=name),
            partial(rung.forward, q, k, v, o, None, Options(1.0)),
        ):
            with pytest.warns(RuntimeWarning) as warned:
                call()
            assert [str(one.message).split()[0] for one in warned] == text
            assert {one.filename for one in warned} == {__file__}
    assert len(ran) == 4
    assert not launches
    with pytest.raises(
        ValueError, match=r"window is given; .* runs instead of hopper because the GPU has .* 80"
    ):
        gpu.forward(q, k, v, kernel="hopper", mask=flashsim.SlidingWindow(9, 3))
    wide = Array((1, 1, 9, 256), "float16")
    with pytest.raises(
        ValueError, match=r"d = 256, which tensor_core does not take, and the GPU has"
    ):
        gpu.forward(wide, wide, wide, kernel="hopper")


def test_every_stream_and_thread_has_a_counter_of_its_own(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "WORDS", 3 * launching.WORDS_EACH)
    cupy = sys.modules["cupy"]
    monkeypatch.setattr(
        cupy, "zeros", lambda *_: SimpleNamespace(data=SimpleNamespace(ptr=_place()))
    )
    result = [launching.counter(DEVICE, stream) for stream in range(8)]
    other = Thread(target=lambda: result.append(launching.counter(DEVICE, 0)))
    other.start()
    other.join()
    assert len({index // (4 * launching.WORDS_EACH) for index in result}) == 9
    assert result[:8] == [launching.counter(DEVICE, stream) for stream in range(8)]

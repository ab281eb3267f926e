"""What a call on a GPU keeps for the next one, and that it is the next one's: with a driver that only writes down launches."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flashsim import gpu
from flashsim.gpu import api, compiling, hopper, hopper_backward, hopper_decode, launching, tensor_maps

ml_dtypes = pytest.importorskip("ml_dtypes")
DEVICE = 7
CACHES = (
    api._settled_before,
    compiling.capability,
    hopper._launch,
    hopper_backward._launches,
    hopper_decode._launches,
    tensor_maps.tensor_map,
    launching._counters,
)
Launches = list[tuple[Any, ...]]


class Array:
    """What of a CuPy array is looked at."""

    at = 0  # where the next one is

    def __init__(self, shape: tuple[int, ...], dtype: Any, ptr: int = 0, strides: tuple[int, ...] = ()) -> None:
        self.shape, self.dtype, self.ndim = shape, np.dtype(dtype), len(shape)
        self.strides = strides or tensor_maps.contiguous(shape, self.dtype.itemsize)
        self.data = SimpleNamespace(ptr=ptr or _place(), device_id=DEVICE)
        self.flags = SimpleNamespace(c_contiguous=True)


def _place() -> int:
    Array.at += 2**30
    return Array.at


def _encode(found: Any, kind: int, _: int, pointer: Any, dims: Any, strides: Any, box: Any, *__: Any) -> int:
    """Write down, in the place of the driver's description, what is to be described."""
    ctypes.memmove(found.value, struct.pack("<16Q", kind, pointer.value, *dims, *strides, *box), 128)
    return int(pointer.value % 16 or any(stride % 16 for stride in strides))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launches]:
    """What was launched, on a GPU that is not there: function, grid, threads, arguments, shared memory."""
    found: Launches = []
    device = SimpleNamespace(
        compute_capability="90", attributes={"MultiProcessorCount": 132, "L2CacheSize": 60 * 2**20}
    )
    runtime = SimpleNamespace(getDeviceCount=lambda: 8, getDevice=lambda: DEVICE, CUDARuntimeError=RuntimeError)
    stream = SimpleNamespace(ptr=0)
    cupy = ModuleType("cupy")
    cupy.ndarray = Array  # type: ignore[attr-defined]
    cupy.zeros = lambda *_: SimpleNamespace(data=SimpleNamespace(ptr=64))  # type: ignore[attr-defined]
    cupy.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        runtime=runtime,
        Device=lambda *_: device,
        get_current_stream=lambda: stream,
        alloc=lambda _: SimpleNamespace(ptr=_place()),
    )

    names: list[str] = []

    def ready(_: int, __: str, asked: tuple[str, ...], *___: Any) -> tuple[Any, ...]:
        names.extend(asked)
        functions = range(len(names) - len(asked), len(names))
        return tuple(SimpleNamespace(kernel=SimpleNamespace(ptr=function)) for function in functions)

    def launch_kernel(function: int, *how: int) -> None:
        *how_much, _, at, _ = how
        found.append((names[function], *how_much, *kept[at]))

    class InMemory(launching.InMemory):
        def __init__(self, arguments: Sequence[Any]) -> None:
            super().__init__(arguments)
            table = (ctypes.c_void_p * len(arguments)).from_address(self.at)  # as the driver reads it
            kept[self.at] = [
                ctypes.string_at(at or 0, value.nbytes) for at, value in zip(table, arguments, strict=True)
            ]

    kept: dict[int, list[bytes]] = {}
    cupy.cuda.driver = SimpleNamespace(launchKernel=launch_kernel)
    runtime.setDevice = lambda device: None
    monkeypatch.setattr(launching, "InMemory", InMemory)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(tensor_maps, "_encode", lambda: _encode)
    for module in (hopper, hopper_backward, hopper_decode):
        monkeypatch.setattr(module, "ready", ready)
    _forget()
    yield found
    _forget()


def _forget() -> None:
    for cache in CACHES:
        (cache.clear if isinstance(cache, dict) else cache.cache_clear)()


def arrays(
    dtype: Any = "float16",
    d: int = 128,
    N: tuple[int, int] = (96, 160),
    more: tuple[int, int] = (0, 0),
    group: int = 2,
    moved: tuple[str, ...] = (),
    strided: tuple[str, ...] = (),
    swapped: bool = False,
) -> dict[str, Array]:
    """Return q, k, v, o, lse, do: some elsewhere, some with rows further apart, k and v in each other's place."""
    places = {name: n * 2**24 for n, name in enumerate(("q", "k", "v", "o", "lse", "do"), 1)}
    if swapped:
        places["k"], places["v"] = places["v"], places["k"]
    found = {}
    for name, place in places.items():
        H, rows = (2, N[1] + more[1]) if name in "kv" else (2 * group, N[0] + more[0])
        shape = (1, H, rows) if name == "lse" else (1, H, rows, d)
        apart = 2 * (H * rows * 2 * d), 2 * (rows * 2 * d), 2 * 2 * d, 2
        kind = "float32" if name == "lse" else dtype
        found[name] = Array(shape, kind, place + 2**20 * (name in moved), apart if name in strided else ())
    return found


VARIATIONS: list[dict[str, Any]] = [
    {},
    {"moved": "q"},
    {"moved": "k"},
    {"moved": "v"},
    {"moved": ("do",)},
    {"moved": ("o",)},
    {"moved": ("lse",)},
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
ASKED: list[dict[str, Any]] = [{}, {"causal": True}, {"scale": 0.5}, {"scale": -0.5}]


def _forward(X: dict[str, Array], **asked: Any) -> None:
    gpu.forward(X["q"], X["k"], X["v"], **asked)


def _backward(X: dict[str, Array], **asked: Any) -> None:
    gpu.backward(*X.values(), **asked)


CALLS: dict[str, tuple[Callable[..., None], dict[str, Any], list[dict[str, Any]]]] = {
    "hopper": (
        _forward,
        {"kernel": "hopper"},
        [{"return_lse": True}, {"dropout_p": 0.1}, {"dropout_p": 0.1, "seed": 1}],
    ),
    "hopper_decode": (_forward, {"kernel": "hopper_decode", "N": (3, 20_000)}, [{"return_lse": True}]),
    "backward": (
        _backward,
        {"kernel": "hopper"},
        [{"deterministic": True}, {"dropout_p": 0.1}, {"dropout_p": 0.1, "seed": 1}],
    ),
}


@contextmanager
def _written(launches: Launches) -> Iterator[Launches]:
    """What is launched within, where the same memory is given out each time."""
    written: Launches = []
    Array.at = 2**40
    launches.clear()
    yield written
    written.extend(launches)


@pytest.mark.parametrize("name", CALLS)
def test_what_a_call_keeps_is_never_another_calls(name: str, launches: Launches) -> None:
    """Every variation after every other: the launches are those of a call that has nothing to remember."""
    call, always, more = CALLS[name]
    always = dict(always)
    N = always.pop("N", None)
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = [({}, asked) for asked in ASKED + more] + [
        (variation, {}) for variation in VARIATIONS[1:]
    ]
    made = [(arrays(**({"N": N} if N else {}) | variation), asked) for variation, asked in pairs]
    alone = []
    for X, asked in made:
        _forget()
        with _written(launches) as written:
            call(X, **always, **asked)
        alone.append(written)
    unlike = {str(written) for written in alone}
    unused = {"hopper": 3, "hopper_decode": 3, "backward": 0}[name]  # o, lse, do are not forward's; there they are new
    assert len(unlike) >= len(alone) - unused - 1
    _forget()
    for n in range(len(made)):
        for m in range(len(made)):
            for (X, asked), wanted in ((made[n], alone[n]), (made[m], alone[m])):
                with _written(launches) as written:
                    call(X, **always, **asked)
                assert written == wanted


def test_a_launch_has_the_addresses_strides_and_dtype_of_its_arrays(launches: Launches) -> None:
    X = arrays(strided=("k",))
    gpu.forward(X["q"], X["k"], X["v"], kernel="hopper")
    ((function, grid, _, _, threads, _, _, _, Q, K, V, _O, L, *_),) = launches
    assert function == hopper.WIDE.function("float16", 128, "FULL", False)
    assert (grid, threads) == (4, 384)
    for tensor_map, array, rows in ((Q, X["q"], 128), (K, X["k"], 128), (V, X["v"], 128)):
        kind, pointer, *dims, row, half, head, _batch, columns, box_rows, halves, _, _ = struct.unpack(
            "<16Q", tensor_map
        )
        assert (kind, pointer) == (6, array.data.ptr)
        assert dims == [64, array.shape[2], 2, array.shape[1], 1]
        assert (row, half, head) == (array.strides[2], 128, array.strides[1])
        assert (columns, box_rows, halves) == (64, rows, 2)
    assert int.from_bytes(L) == 0


def test_bad_input_gets_its_error_in_every_call(launches: Launches) -> None:
    X = arrays()
    odd = Array(X["k"].shape, "float16", 2**24 + 8)
    wide = Array(X["v"].shape, "float32", 2**24)
    for _ in range(2):
        gpu.forward(X["q"], X["k"], X["v"], kernel="hopper")
        with pytest.raises(ValueError, match=r"k is at 0x1000008 with strides .* expected multiples of 16"):
            gpu.forward(X["q"], odd, X["v"], kernel="hopper")
        with pytest.raises(ValueError, match="v has dtype float32"):
            gpu.forward(X["q"], X["k"], wide, kernel="hopper")
        with pytest.raises(ValueError, match="count is 0"):
            gpu.forward(X["q"], X["k"], X["v"], kernel="hopper", count=0)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="causal is 1"):
            gpu.forward(X["q"], X["k"], X["v"], kernel="hopper", causal=1)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="strides"):
            _backward(X | {"do": Array(X["do"].shape, "float16", strides=(2**20, 2**16, 2**8, 4))}, kernel="hopper")
    assert len(launches) == 2


def test_an_early_launch_is_written_as_the_driver_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def cuLaunchKernelEx(config: Any, function: Any, arguments: Any, extra: None) -> int:
        raw = ctypes.string_at(config, 56)
        attributes, count = struct.unpack_from("<QI", raw, 40)
        which, _, value = struct.unpack("<iii", ctypes.string_at(attributes, 12))
        seen.append(
            (struct.unpack_from("<7I", raw), struct.unpack_from("<Q", raw, 32), which, value, count, function.value)
        )
        return 700 if arguments.value == 2 else 0

    monkeypatch.setattr(launching, "_driver", lambda: SimpleNamespace(cuLaunchKernelEx=cuLaunchKernelEx))
    launching.launch_early(5, (10, 1, 1, 384, 1, 1, 2048), 9, 1)
    assert seen == [((10, 1, 1, 384, 1, 1, 2048), (9,), 6, 1, 1, 5)]
    with pytest.raises(RuntimeError, match="CUDA error 700"):
        launching.launch_early(5, (10, 1, 1, 384, 1, 1, 2048), 9, 2)

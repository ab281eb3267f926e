"""Arrays on a GPU, of any library: how they are described, and how results of the same library are
made.

A kernel needs only addresses, shapes and strides. CuPy arrays and PyTorch tensors have these as
attributes. Arrays of other libraries become CuPy arrays by DLPack, and so do all arrays for kernels
that CuPy launches. Neither copies.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any

import numpy as np

from flashsim.attention.masks.rules import Mask
from flashsim.gpu.compiling import current_device, import_cupy
from flashsim.gpu.launching import Prepared, Stream

APART = 512  # bytes: what shares memory starts at multiples of it, as pools' memory does
CUDA = (2, 13)  # DLPack's device types for a GPU's memory and for managed memory
# of a new array: which given array it is like, or None; its shape; its dtype
New = tuple[int | None, Any, Any]
Look = tuple[tuple[Any, ...], list[int]]
"""Shape, strides and dtype of each array, as the library has them; addresses."""


class CuPy:
    """CuPy's arrays."""

    def __init__(self) -> None:
        self._cupy = import_cupy()

    def look(self, arrays: Sequence[Any], device: int) -> Look | None:
        """Return what a launch needs to know of the arrays, or None unless all are CuPy's on
        this device.
        """
        ndarray = self._cupy.ndarray
        layout: list[Any] = []
        addresses = []
        for x in arrays:
            if not isinstance(x, ndarray):
                return None
            data = x.data
            if data.device_id != device:
                return None
            layout += (x.shape, x.strides, x.dtype)
            addresses.append(data.ptr)
        return tuple(layout), addresses

    def described(self, shape: Any, strides: Any, dtype: Any) -> tuple[Any, ...]:
        """Return what `look` found of one array as a shape, strides in bytes, and a NumPy dtype."""
        return shape, strides, dtype

    def own(self, name: str, array: Any) -> Any:
        """Return an array of any library, on a GPU, as one of this library, or raise ValueError."""
        return as_cupy(name, array)

    def dtype(self, name: str) -> Any:
        """Return a dtype as `new` takes it."""
        return np.dtype(name)

    def new(self, specifications: Sequence[New], arrays: Sequence[Any]) -> list[Any]:
        """Return new arrays."""
        ndarray = self._cupy.ndarray
        return [ndarray(shape, dtype) for _, shape, dtype in specifications]

    def contiguous(self, array: Any) -> Any:
        """Return a contiguous copy."""
        bits = array.view(f"u{array.itemsize}")  # CuPy does not copy 8-bit floating point
        return self._cupy.ascontiguousarray(bits).view(array.dtype)

    def scratch(self, size: int, results: list[Any]) -> tuple[Any, int]:
        """Return memory of `size` bytes for the kernels that fill `results`, and its address.

        It may be freed once they are launched: a later call on the stream that takes the same
        memory from the pool runs after them. But a graph that is being captured runs again later,
        for as long as its results are used. So in a capture, the first result is replaced by an
        array that owns this memory too.
        """
        cuda = self._cupy.cuda
        if not cuda.runtime.streamIsCapturing(self.stream(0)):
            memory = cuda.alloc(size)
            return memory, memory.ptr
        first = results[0]
        behind = -(-first.nbytes // APART) * APART
        memory = cuda.alloc(behind + size)
        results[0] = self._cupy.ndarray(first.shape, first.dtype, memory)
        return memory, memory.ptr + behind

    def stream(self, device: int) -> int:
        """Return the handle of the current stream."""
        return int(self._cupy.cuda.get_current_stream().ptr)

    def addresses(self, arrays: Sequence[Any]) -> list[int]:
        """Return the arrays' addresses."""
        return [x.data.ptr for x in arrays]

    def enter(self, within: ExitStack, device: int) -> None:
        """Make this library's current stream CuPy's."""


class PyTorch:
    """PyTorch's tensors. To read their attributes, and to take memory from PyTorch's own pool, is
    faster than DLPack.
    """

    def __init__(self) -> None:
        self._torch = importlib.import_module("torch")
        self._types = (self._torch.Tensor, self._torch.nn.Parameter)
        # current_stream makes an object for the stream; Triton's way takes a twentieth of the time
        usual = self._torch.cuda.current_stream
        self.stream = getattr(
            self._torch._C, "_cuda_getCurrentRawStream", lambda device: usual(device).cuda_stream
        )

    def look(self, arrays: Sequence[Any], device: int) -> Look | None:
        """Return as `CuPy.look`; None also for tensors that are not plain numbers in memory."""
        types = self._types
        strided = self._torch.strided
        layout: list[Any] = []
        addresses = []
        for x in arrays:
            if type(x) not in types or not x.is_cuda or x.get_device() != device:
                return None
            if x.layout is not strided or x.is_neg():
                return None
            layout += (x.shape, x.stride(), x.dtype)
            addresses.append(x.data_ptr())
        return tuple(layout), addresses

    def described(self, shape: Any, strides: Any, dtype: Any) -> tuple[Any, ...]:
        """Return as `CuPy.described`."""
        name = str(dtype).removeprefix("torch.")
        try:
            known = np.dtype(name)
        except TypeError:
            known = np.dtype(getattr(importlib.import_module("ml_dtypes"), name, np.void))
        return tuple(shape), tuple(stride * known.itemsize for stride in strides), known

    def own(self, name: str, array: Any) -> Any:
        """Return as `CuPy.own`."""
        if isinstance(array, self._torch.Tensor):
            if array.layout is not self._torch.strided:
                raise ValueError(
                    f"{name} has layout {array.layout}; expected {self._torch.strided}"
                )
            return array.detach().resolve_neg().as_subclass(self._torch.Tensor)
        try:
            return self._torch.from_dlpack(array)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"{name} cannot be taken by DLPack: {error}") from None

    def dtype(self, name: str) -> Any:
        """Return as `CuPy.dtype`."""
        return getattr(self._torch, name)

    def new(self, specifications: Sequence[New], arrays: Sequence[Any]) -> list[Any]:
        """Return new tensors. To make one like another tensor takes half the time."""
        like = self._torch.empty_like
        dense = self._torch.contiguous_format
        first = arrays[0]
        return [
            first.new_empty(shape, dtype=dtype)
            if n is None
            else like(arrays[n], memory_format=dense)
            for n, shape, dtype in specifications
        ]

    def scratch(self, size: int, results: list[Any]) -> tuple[Any, int]:
        """Return as `CuPy.scratch`. A graph that PyTorch captures has a pool of its own."""
        memory = results[0].new_empty(size, dtype=self._torch.uint8)
        return memory, memory.data_ptr()

    def contiguous(self, array: Any) -> Any:
        """Return a contiguous copy."""
        return array.contiguous()

    def addresses(self, arrays: Sequence[Any]) -> list[int]:
        """Return the tensors' addresses."""
        return [x.data_ptr() for x in arrays]

    def enter(self, within: ExitStack, device: int) -> None:
        """Make this library's current stream CuPy's."""
        within.enter_context(import_cupy().cuda.Stream.from_external(Stream(self.stream(device))))


@cache
def _library(kind: Any) -> CuPy | PyTorch:
    """Return the library of arrays of this type; libraries other than PyTorch are treated as
    CuPy.
    """
    return PyTorch() if kind.__module__.split(".")[0] == "torch" else CuPy()


class Taken:
    """The arrays of a call, all of one library and device. To be used in a `with`.

    `found` and `at` are what `look` returns. `mask` is a CuPy array, or None unless the mask is an
    array.
    """

    def __init__(self, names: Sequence[str], arrays: Sequence[Any], mask: Any) -> None:
        self._within: ExitStack | None = None
        self.names, self.given, self.mask = names, list(arrays), None
        self.device, self.library = current_device(), _library(arrays[0].__class__)
        looked = (
            self.library.look(arrays, self.device)
            if mask is None or isinstance(mask, Mask)
            else None
        )
        self.found, self.at = looked or self._asked_for(mask)

    def __enter__(self) -> Taken:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._within is not None:
            self._within.__exit__(None, None, None)

    def enter(self) -> None:
        """Make the arrays' device, and their library's stream, CuPy's current ones until the
        `with` ends.
        """
        if self._within is None:
            self._within = ExitStack()
            self._within.enter_context(import_cupy().cuda.Device(self.device))
            self.library.enter(self._within, self.device)

    def _asked_for(self, mask: Any) -> Look:
        """Take arrays of other libraries or devices, or raise ValueError."""
        everything = dict(zip(self.names, self.given, strict=True))
        if mask is not None and not isinstance(mask, Mask):
            everything["mask"] = mask
        devices = {name: _device(name, array) for name, array in everything.items()}
        self.device = devices[self.names[0]]
        for name, device in devices.items():
            if device != self.device:
                raise ValueError(
                    f"{name} is on GPU {device}; expected {self.device}, where {self.names[0]} is"
                )
        self.enter()
        try:
            if "mask" in everything:
                self.mask = as_cupy("mask", mask)
            self.given = [self.library.own(name, everything[name]) for name in self.names]
            looked = self.library.look(self.given, self.device)
        except BaseException:
            self.__exit__()
            raise
        assert looked is not None
        return looked

    def as_cupy(self, filled: Sequence[Any]) -> list[Any]:
        """Return the arrays, then those to be filled, as CuPy's."""
        self.enter()
        names = (*self.names, *["result"] * len(filled))
        return [as_cupy(name, x) for name, x in zip(names, (*self.given, *filled), strict=True)]

    def fill(self, run: Prepared | None, specifications: Sequence[New]) -> list[Any]:
        """Return new arrays, filled by `run`, or left empty if it is None."""
        results = self.library.new(specifications, self.given)
        if run is not None:
            import_cupy().cuda.runtime.setDevice(self.device)
            _memory, address = (
                self.library.scratch(run.scratch, results) if run.scratch else (None, 0)
            )
            run.run(
                self.library.stream(self.device),
                address,
                *self.at,
                *self.library.addresses(results),
            )
        return results

    def make_contiguous(self, n: int) -> None:
        """Replace the nth array by a contiguous copy."""
        self.given[n] = self.library.contiguous(self.given[n])
        (self.at[n],) = self.library.addresses([self.given[n]])


def _device(name: str, array: Any) -> int:
    if isinstance(array, import_cupy().ndarray):
        return int(array.data.device_id)
    if not hasattr(array, "__dlpack_device__") or not hasattr(array, "__dlpack__"):
        raise ValueError(
            f"{name} is a {type(array).__name__}; expected a CuPy array, or one with DLPack, on a "
            "GPU"
        )
    kind, number = array.__dlpack_device__()
    if int(kind) not in CUDA:
        raise ValueError(
            f"{name} is a {type(array).__module__}.{type(array).__name__} not on a GPU; expected "
            "one on a GPU"
        )
    return int(number)


def as_cupy(name: str, array: Any) -> Any:
    """Return an array of any library, on a GPU, as CuPy's, or raise ValueError."""
    cupy = import_cupy()
    if isinstance(array, cupy.ndarray):
        return array
    if getattr(array, "requires_grad", False):
        array = array.detach()
    try:
        if str(array.dtype) == "torch.float8_e4m3fn":  # DLPack knows it, CuPy does not
            return cupy.from_dlpack(array.view(importlib.import_module("torch").uint8)).view(
                importlib.import_module("ml_dtypes").float8_e4m3fn
            )
        return cupy.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot be taken by DLPack: {error}") from None


def host(block_mask: Any) -> Any:
    """Return a block mask, as a NumPy copy if it is on a GPU."""
    kind = block_mask.__dlpack_device__()[0] if hasattr(block_mask, "__dlpack_device__") else None
    return as_cupy("block_mask", block_mask).get() if kind in CUDA else block_mask

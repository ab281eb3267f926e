"""Bridges between NumPy arrays and those of another package, on the same memory, or as copies with
the same strides.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.array_utils import byte_bounds

from flashsim.attention.arguments import check_count, short_repr
from flashsim.attention.inputs import Array, float_dtype
from flashsim.support.install import OTHERS
from flashsim.testing.kernel import memory_of

# integers with as many bits, by the size of an element
INTEGERS: dict[int, Any] = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}


@dataclass(frozen=True)
class NativeArray:
    """An array of the other package.

    name    of the argument
    native  the array
    source  the NumPy memory that it is a copy of; None if it is on the same memory
    fetch   reads the copy back
    """

    name: str
    native: Any
    source: SourceMemory | None = None
    fetch: Callable[[], Any] | None = None

    def write_back(self, function: str) -> None:
        """Write what the function changed in its copy to the caller's memory. Raises ValueError if
        that is read-only.
        """
        if self.source is None or self.fetch is None:
            return
        memory = self.source.memory
        after = np.asarray(self.fetch()).reshape(memory.shape)
        changed = after != self.source.copy
        if changed.any():
            if not memory.flags.writeable:
                raise ValueError(f"{function} wrote into {self.name}, which is read-only")
            memory[changed] = after[changed]


class SourceMemory(NamedTuple):
    """The memory around an array, which is copied to a device as one row, and the array's place in
    it.

    memory   the caller's: all that the array is a view of, as integers; if that is not a row, the
             array's elements
    copy     of it
    start    the index of the array's first element in the row
    strides  of the array, in elements
    """

    memory: Array
    copy: Array
    start: int
    strides: tuple[int, ...]


class Bridge:
    """A bridge to the arrays of one package; this class is that to NumPy itself.

    gradients  (output, inputs, do) -> the gradients of Σ do ∘ output(*inputs); bridges to packages
               that cannot differentiate do not have it
    """

    package = "numpy"
    kind: Any = np.ndarray  # the type of its arrays
    gradients: Callable[[Callable[..., Any], tuple[Any, ...], Any], tuple[Any, ...]]

    def __init__(self, device: Any = None) -> None:
        if device is not None:
            raise ValueError(
                f"device is {short_repr(device)}; expected none, because NumPy has no devices"
            )

    def use(self) -> AbstractContextManager[Any]:
        """Return the context in which the package is used."""
        return nullcontext()

    def send(self, name: str, array: Array) -> NativeArray:
        """Return the package's array with the numbers of `array`."""
        return NativeArray(name, array)

    def receive(self, result: Any) -> Array:
        """Return the package's array as a NumPy array."""
        return np.asarray(result)


class _Torch(Bridge):
    """A bridge to torch tensors, on the same memory if torch can use it, else copies with the same
    strides.
    """

    package = "torch"

    def __init__(self, device: Any) -> None:
        self.torch = _import("torch")
        self.kind = self.torch.Tensor
        try:
            self.device = self.torch.device("cpu" if device is None else device)
        except (TypeError, RuntimeError) as error:
            raise ValueError(
                f"device is {short_repr(device)}; expected what torch.device takes: {error}"
            ) from None

    def send(self, name: str, array: Array) -> NativeArray:
        torch = self.torch
        dtype = self._dtype(name, array)
        if self.device.type == "cpu" and _can_be_shared(array) and array.flags.writeable:
            return NativeArray(name, torch.from_dlpack(_bits(array)).view(dtype))
        source = _source_memory(array)
        row = torch.from_dlpack(source.copy.flatten()).to(self.device)
        native = row.as_strided(array.shape, source.strides, source.start).view(dtype)
        return NativeArray(name, native, source, lambda: row.cpu().numpy())

    def receive(self, result: Any) -> Array:
        tensor = result.detach().cpu()
        if tensor.dtype == self.torch.bfloat16:
            return np.asarray(tensor.view(self.torch.int16).numpy().view(float_dtype("bfloat16")))
        return np.asarray(tensor.numpy())

    def gradients(
        self, output: Callable[..., Any], inputs: tuple[Any, ...], do: Any
    ) -> tuple[Any, ...]:
        torch = self.torch
        with torch.enable_grad():
            leaves = tuple(a.requires_grad_() for a in inputs)
            out = output(*leaves)
            if not out.requires_grad:
                raise ValueError(
                    "the output does not require grad; expected a function that autograd can go "
                    "through"
                )
            gradients = list(torch.autograd.grad(out, leaves, do, allow_unused=True))
        for i, leaf in enumerate(leaves):
            if gradients[i] is None:  # the output does not depend on this input
                gradients[i] = torch.zeros_like(leaf)
        return tuple(gradients)

    def _dtype(self, name: str, array: Array) -> Any:
        dtype = getattr(self.torch, array.dtype.name, None)
        if not isinstance(dtype, self.torch.dtype) or array.dtype.kind == "c":
            raise ValueError(f"{name} has dtype {array.dtype}; expected one that torch has")
        return dtype


class _Cupy(Bridge):
    """A bridge to CuPy arrays, copies with the same strides. It has no `gradients`."""

    package = "cupy"

    def __init__(self, device: Any) -> None:
        self.cupy = _import("cupy")
        self.kind = self.cupy.ndarray
        self.device = None if device is None else check_count("device", device, 0)

    def use(self) -> AbstractContextManager[Any]:
        if self.device is None:
            return nullcontext()
        device: AbstractContextManager[Any] = self.cupy.cuda.Device(self.device)
        return device

    def send(self, name: str, array: Array) -> NativeArray:
        source = _source_memory(array)
        row = self.cupy.asarray(source.copy.ravel())
        try:
            elements = row.view(array.dtype)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name} has dtype {array.dtype}, which this CuPy ({self.cupy.__version__}) does "
                "not have; "
                "bfloat16 came with CuPy 14"
            ) from error
        strides = [n * array.itemsize for n in source.strides]
        as_strided = self.cupy.lib.stride_tricks.as_strided
        native = as_strided(elements[source.start :], array.shape, strides)
        return NativeArray(name, native, source, lambda: self.cupy.asnumpy(row))

    def receive(self, result: Any) -> Array:
        return np.asarray(self.cupy.asnumpy(result))


class _Jax(Bridge):
    """A bridge to JAX arrays, contiguous copies."""

    package = "jax"

    def __init__(self, device: Any) -> None:
        self.jax = _import("jax")
        self.kind = self.jax.Array
        try:
            self.device = self.jax.devices(device)[0] if isinstance(device, str) else device
        except RuntimeError as error:
            raise ValueError(
                f"device is {short_repr(device)}; expected a platform: {error}"
            ) from None
        if not (device is None or isinstance(self.device, self.jax.Device)):
            raise ValueError(
                f"device is {short_repr(device)}; expected a jax.Device, or a platform's name"
            )

    def send(self, name: str, array: Array) -> NativeArray:
        if array.dtype.itemsize == 8 and not self.jax.config.jax_enable_x64:
            raise ValueError(
                f"{name} has dtype {array.dtype}, which JAX would make one of 32 bits; "
                'expected jax.config.update("jax_enable_x64", True)'
            )
        copy = self.jax.numpy.array(array, copy=True)
        return NativeArray(name, self.jax.device_put(copy, self.device))

    def receive(self, result: Any) -> Array:
        return np.array(result)

    def gradients(
        self, output: Callable[..., Any], inputs: tuple[Any, ...], do: Any
    ) -> tuple[Any, ...]:
        _, pull_back = self.jax.vjp(output, *inputs)
        return tuple(pull_back(do))


BRIDGES: dict[str, Callable[[Any], Any]] = {
    "numpy": Bridge,
    "torch": _Torch,
    "cupy": _Cupy,
    "jax": _Jax,
}


def _import(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(
            f"xp={package!r} needs the package {package}: {OTHERS[package]}", name=package
        ) from None


def _bits(array: Array) -> Array:
    return array.view(INTEGERS[array.dtype.itemsize])


def _can_be_shared(array: Array) -> bool:
    """Return whether another package can use an array's memory: it is aligned, its strides are
    whole elements, and none is negative.

    torch.from_dlpack does not refuse negative strides: it ends the process.
    """
    whole = all(s >= 0 and s % array.itemsize == 0 for s in array.strides)
    return bool(array.flags.aligned) and whole


def _source_memory(array: Array) -> SourceMemory:
    """Return the memory that the array is a view of, and a copy of it."""
    memory = _bits(array)
    start = 0
    strides = np.empty(array.shape, array.dtype).strides
    if array.size and _can_be_shared(array):
        strides = array.strides
        memory, start = _surroundings(memory)
    if not array.flags.writeable:
        memory.flags.writeable = False
    in_elements = tuple(n // array.itemsize for n in strides)
    return SourceMemory(memory, np.array(memory, order="C"), start, in_elements)


def _surroundings(bits: Array) -> tuple[Array, int]:
    """Return the whole array that `bits` is a view of, as a row, and the index at which `bits`
    begins in it.
    """
    owner = memory_of(bits)
    begin, end = byte_bounds(bits)
    if owner.flags.forc and not owner.dtype.hasobject:
        memory = owner.ravel(order="A").view(np.uint8)
        low, high = byte_bounds(memory)
        if low <= begin and end <= high:
            first = (begin - low) % bits.itemsize
            last = first + (memory.size - first) // bits.itemsize * bits.itemsize
            return memory[first:last].view(bits.dtype), (begin - low) // bits.itemsize
    # from the first element to the last
    count = (end - begin) // bits.itemsize
    return np.lib.stride_tricks.as_strided(bits, (count,), (bits.itemsize,)), 0

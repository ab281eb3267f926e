"""NumPy arrays as those of another package, and back: on the same memory, or as copies with the
same strides.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.array_utils import byte_bounds

from flashsim.attention.arguments import check_count, shown
from flashsim.attention.inputs import Array, float_dtype
from flashsim.support.install import OTHERS
from flashsim.testing.subject import memory_of

INTEGERS: dict[int, Any] = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}  # an element's bits


@dataclass(frozen=True)
class Sent:
    """One array as fn gets it: `native`. Where that is a copy, `lent` is what was copied, and
    `fetch` reads it back.
    """

    name: str
    native: Any
    lent: Lent | None = None
    fetch: Callable[[], Any] | None = None

    def settle(self, function: str) -> None:
        """Write back what fn changed in its copy, or ValueError where the caller's array is
        read-only.
        """
        if self.lent is None or self.fetch is None:
            return
        home = self.lent.home
        now = np.asarray(self.fetch()).reshape(home.shape)
        changed = now != self.lent.before
        if changed.any():
            if not home.flags.writeable:
                raise ValueError(f"{function} wrote into {self.name}, which is read-only")
            home[changed] = now[changed]


class Lent(NamedTuple):
    """The memory around an array, to be copied elsewhere as one row, and where the array lies in
    it.

    home     the caller's memory: all that the array is a view of, as integers; if that is not a
             row, the array's elements
    before   a copy
    start    where the array's first element is in the row
    strides  of the array, in elements
    """

    home: Array
    before: Array
    start: int
    strides: tuple[int, ...]


class Bridge:
    """To the arrays of one package, here NumPy's own. One that can differentiate has `gradients`
    too.
    """

    package = "numpy"
    kind: Any = np.ndarray  # of its arrays
    # of Σ do ∘ output(*inputs)
    gradients: Callable[[Callable[..., Any], tuple[Any, ...], Any], tuple[Any, ...]]

    def __init__(self, device: Any = None) -> None:
        if device is not None:
            raise ValueError(
                f"device is {shown(device)}; expected none, because NumPy has no devices"
            )

    def use(self) -> AbstractContextManager[Any]:
        """The context in which everything runs."""
        return nullcontext()

    def send(self, name: str, array: Array) -> Sent:
        """Return the package's array of what `array` holds."""
        return Sent(name, array)

    def receive(self, result: Any) -> Array:
        """Return a NumPy array of the package's array."""
        return np.asarray(result)


class _Torch(Bridge):
    """To torch tensors: on the same memory where torch can have it, else of the same strides on
    a copy.
    """

    package = "torch"

    def __init__(self, device: Any) -> None:
        self.torch = _import("torch")
        self.kind = self.torch.Tensor
        try:
            self.device = self.torch.device("cpu" if device is None else device)
        except (TypeError, RuntimeError) as error:
            raise ValueError(
                f"device is {shown(device)}; expected what torch.device takes: {error}"
            ) from None

    def send(self, name: str, array: Array) -> Sent:
        torch = self.torch
        dtype = self._dtype(name, array)
        if self.device.type == "cpu" and _as_it_is(array) and array.flags.writeable:
            return Sent(name, torch.from_dlpack(_bits(array)).view(dtype))
        lent = _lend(array)
        there = torch.from_dlpack(lent.before.flatten()).to(self.device)
        native = there.as_strided(array.shape, lent.strides, lent.start).view(dtype)
        return Sent(name, native, lent, lambda: there.cpu().numpy())

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
            # None for an input that the output does not depend on
            found = torch.autograd.grad(out, leaves, do, allow_unused=True)
        return tuple(
            torch.zeros_like(a) if g is None else g for a, g in zip(leaves, found, strict=True)
        )

    def _dtype(self, name: str, array: Array) -> Any:
        found = getattr(self.torch, array.dtype.name, None)
        if not isinstance(found, self.torch.dtype) or array.dtype.kind == "c":
            raise ValueError(f"{name} has dtype {array.dtype}; expected one that torch has")
        return found


class _Cupy(Bridge):
    """To CuPy arrays, copies of the same strides. There is no `gradients`."""

    package = "cupy"

    def __init__(self, device: Any) -> None:
        self.cupy = _import("cupy")
        self.kind = self.cupy.ndarray
        self.device = None if device is None else check_count("device", device, 0)

    def use(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = (
            nullcontext() if self.device is None else self.cupy.cuda.Device(self.device)
        )
        return context

    def send(self, name: str, array: Array) -> Sent:
        lent = _lend(array)
        there = self.cupy.asarray(lent.before.ravel())
        try:
            native = there.view(array.dtype)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name} has dtype {array.dtype}, which this CuPy ({self.cupy.__version__}) does "
                "not have; "
                "bfloat16 came with CuPy 14"
            ) from error
        strides = [n * array.itemsize for n in lent.strides]
        native = self.cupy.lib.stride_tricks.as_strided(native[lent.start :], array.shape, strides)
        return Sent(name, native, lent, lambda: self.cupy.asnumpy(there))

    def receive(self, result: Any) -> Array:
        return np.asarray(self.cupy.asnumpy(result))


class _Jax(Bridge):
    """To JAX arrays, contiguous copies."""

    package = "jax"

    def __init__(self, device: Any) -> None:
        self.jax = _import("jax")
        self.kind = self.jax.Array
        try:
            self.device = self.jax.devices(device)[0] if isinstance(device, str) else device
        except RuntimeError as error:
            raise ValueError(f"device is {shown(device)}; expected a platform: {error}") from None
        if not (device is None or isinstance(self.device, self.jax.Device)):
            raise ValueError(
                f"device is {shown(device)}; expected a jax.Device, or a platform's name"
            )

    def send(self, name: str, array: Array) -> Sent:
        if array.dtype.itemsize == 8 and not self.jax.config.jax_enable_x64:
            raise ValueError(
                f"{name} has dtype {array.dtype}, which JAX would make one of 32 bits; "
                'expected jax.config.update("jax_enable_x64", True)'
            )
        return Sent(name, self.jax.device_put(self.jax.numpy.array(array, copy=True), self.device))

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


def _as_it_is(array: Array) -> bool:
    """Whether another package can read it in place: aligned, whole elements from one to the next,
    no negative strides.

    torch.from_dlpack does not refuse negative strides: it ends the process.
    """
    return bool(array.flags.aligned) and all(
        s >= 0 and s % array.itemsize == 0 for s in array.strides
    )


def _lend(array: Array) -> Lent:
    """Return the memory that the array is a view of: a copy has what is around it, too."""
    home = _bits(array)
    start = 0
    strides = np.empty(array.shape, array.dtype).strides
    if array.size and _as_it_is(array):
        strides = array.strides
        home, start = _surroundings(home)
    if not array.flags.writeable:
        home.flags.writeable = False
    return Lent(home, np.array(home, order="C"), start, tuple(n // array.itemsize for n in strides))


def _surroundings(bits: Array) -> tuple[Array, int]:
    """Return the whole array that `bits` is a view of, as a row, and where in it `bits` begins."""
    owner, (begin, end) = memory_of(bits), byte_bounds(bits)
    if owner.flags.forc and not owner.dtype.hasobject:
        memory = owner.ravel(order="A").view(np.uint8)
        low, high = byte_bounds(memory)
        if low <= begin and end <= high:
            first = (begin - low) % bits.itemsize
            last = first + (memory.size - first) // bits.itemsize * bits.itemsize
            return memory[first:last].view(bits.dtype), (begin - low) // bits.itemsize
    # from the first element to the last
    return np.lib.stride_tricks.as_strided(
        bits, ((end - begin) // bits.itemsize,), (bits.itemsize,)
    ), 0

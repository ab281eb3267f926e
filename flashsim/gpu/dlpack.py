"""Arrays on a GPU, whosever they are, taken as CuPy's by DLPack, without a copy; and results handed back in kind."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flashsim.gpu.compiling import current_device, import_cupy
from flashsim.masks import Mask

CUDA = (2, 13)  # DLPack's device types for a GPU's memory and for managed memory


@contextmanager
def taken(given: dict[str, Any], mask: Any) -> Iterator[tuple[dict[str, Any], Any, Callable[[Any], Any]]]:
    """Within their device, and PyTorch's stream for tensors: the arrays as CuPy's, the mask, and how to hand results back."""
    cupy, current = import_cupy(), current_device()
    if mask is None and all(type(x) is cupy.ndarray and x.data.device_id == current for x in given.values()):
        yield given, None, _itself  # what follows, in less time
        return
    everything = given if mask is None or isinstance(mask, Mask) else {**given, "mask": mask}
    devices = {name: _device(name, array) for name, array in everything.items()}
    first = next(iter(devices.values()))
    for name, device in devices.items():
        if device != first:
            raise ValueError(f"{name} is on GPU {device}; expected {first}, where {next(iter(devices))} is")
    torch = _torch(next(iter(given.values())))
    with cupy.cuda.Device(first):
        if torch is None:
            arrays = {name: _cupy(name, array) for name, array in everything.items()}
            yield {name: arrays[name] for name in given}, arrays.get("mask"), _itself
        else:
            with cupy.cuda.Stream.from_external(_Stream(torch.cuda.current_stream(first).cuda_stream)):
                arrays = {name: _cupy(name, array) for name, array in everything.items()}
                yield {name: arrays[name] for name in given}, arrays.get("mask"), torch.from_dlpack


def _itself(array: Any) -> Any:
    return array


def _device(name: str, array: Any) -> int:
    if isinstance(array, import_cupy().ndarray):
        return int(array.data.device_id)
    if not hasattr(array, "__dlpack_device__") or not hasattr(array, "__dlpack__"):
        raise ValueError(f"{name} is a {type(array).__name__}; expected a CuPy array, or one with DLPack, on a GPU")
    kind, number = array.__dlpack_device__()
    if int(kind) not in CUDA:
        raise ValueError(
            f"{name} is a {type(array).__module__}.{type(array).__name__} not on a GPU; expected one on a GPU"
        )
    return int(number)


def _cupy(name: str, array: Any) -> Any:
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


@dataclass(frozen=True)
class _Stream:
    """A stream of PyTorch's, by the CUDA stream protocol, which its older versions lack."""

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def host(block_mask: Any) -> Any:
    """Return a block mask, of a GPU's memory a copy in NumPy."""
    kind = block_mask.__dlpack_device__()[0] if hasattr(block_mask, "__dlpack_device__") else None
    return _cupy("block_mask", block_mask).get() if kind in CUDA else block_mask


def _torch(array: Any) -> Any:
    return importlib.import_module("torch") if type(array).__module__.split(".")[0] == "torch" else None

"""Arrays of other libraries, as NumPy's: by `__array__` where that works, else by DLPack,
without a copy.
"""

import ctypes
from contextlib import suppress
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from flashsim.support.install import extra_with

# DLPack's device types for memory that the host reads: its own, and pinned for CUDA and ROCm
HOST = (1, 3, 11)
# where a DLTensor's type code is: behind data, device type, device number, ndim
CODE = 8 + 4 + 4 + 4
# where the DLTensor is in a managed one that has a version, manager, deleter and flags
VERSIONED = 8 + 8 + 8 + 8
UINT = 1
BFLOAT = 4


def as_array(value: Any) -> NDArray[Any]:
    """Return a value as NumPy's array. Of a tensor that requires gradients, the detached one;
    bfloat16 is ml_dtypes'.

    Lists may hold such arrays. Raises whatever the other library does where it cannot, BufferError
    for a device's memory.
    """
    inner = innermost(value)
    if not hasattr(inner, "__dlpack__") or isinstance(inner, np.ndarray | np.generic | type):
        return np.asarray(value)
    if inner is not value:
        return np.stack([as_array(part) for part in value])
    if getattr(value, "requires_grad", False):
        value = value.detach()
    if hasattr(value, "__array__"):
        # of bfloat16, or of a GPU's memory
        with suppress(TypeError, ValueError, RuntimeError, BufferError):
            return np.asarray(value)
    return _imported(value)


def innermost(value: Any) -> Any:
    """Return the first value in a list, or in lists within lists; any other value as it is."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return value


def _imported(value: Any) -> NDArray[Any]:
    kind = int(value.__dlpack_device__()[0])
    try:
        capsule = (
            value.__dlpack__() if kind in HOST else value.__dlpack__(dl_device=(1, 0), copy=True)
        )
    except (TypeError, NotImplementedError, BufferError) as error:
        if kind in HOST:
            raise
        raise BufferError(
            "it is in a device's memory; expected the host's, as .cpu() or .get() copies it"
        ) from error
    is_bfloat16 = _read_as_words(capsule)
    methods = {
        "__dlpack__": lambda self, **options: capsule,
        "__dlpack_device__": lambda self: (1, 0),
    }
    array: NDArray[Any] = np.from_dlpack(type("Taken", (), methods)())
    return array.view(bfloat16()) if is_bfloat16 else array


def bfloat16() -> np.dtype[Any]:
    """Return ml_dtypes' bfloat16. ValueError where that package is not installed."""
    try:
        import ml_dtypes
    except ModuleNotFoundError:
        raise ValueError(
            f"bfloat16 needs the package ml_dtypes: {extra_with('ml_dtypes')}"
        ) from None
    return cast("np.dtype[Any]", np.dtype(ml_dtypes.bfloat16))


def _read_as_words(capsule: Any) -> bool:
    """Say whether a capsule is of bfloat16, which NumPy's import does not know; it then says
    16-bit unsigned words.
    """
    name = _name(capsule)
    start: int = _pointer(capsule, name)
    code, bits = (
        ctypes.c_uint8.from_address(start + VERSIONED * name.endswith(b"_versioned") + CODE + i)
        for i in (0, 1)
    )
    if (code.value, bits.value) != (BFLOAT, 16):
        return False
    code.value = UINT
    return True


_name: Any = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer: Any = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

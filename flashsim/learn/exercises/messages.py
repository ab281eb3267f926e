"""Messages between a grader and the process that runs a student's file. They have numbers and text,
in JSON; nothing is unpickled.

A value is a list that begins with its kind: ["plain", 3], ["array", "<f8", [2, 3], bytes in base
64]. A value of any other type is ["other", its type, text].
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM

LARGEST = 2**26  # bytes of a message
MOST_BITS = 10_000  # of a whole number


def send(stream: BinaryIO, message: Any) -> None:
    """Write the length of a message, and the message. Raises ValueError if it is too long."""
    text = json.dumps(message).encode()
    if len(text) > LARGEST:
        raise ValueError(f"an answer of {len(text):,} bytes; expected at most {LARGEST:,}")
    stream.write(len(text).to_bytes(8, "big") + text)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Read a message. Raises EOFError if there is none, ValueError if it is too long or no JSON."""
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    length = int.from_bytes(head, "big")
    if length > LARGEST:
        raise ValueError(f"a message of {length:,} bytes; expected at most {LARGEST:,}")
    text = stream.read(length)
    if len(text) < length:
        raise EOFError
    return json.loads(text)


def pack(value: Any) -> list[Any]:
    """Return a value as it is in a message. Raises ValueError for an array that is too large."""
    if value is None or isinstance(value, bool | float | str):
        return ["plain", value]
    if isinstance(value, int) and fits(value):
        return ["plain", value]
    if isinstance(value, np.ndarray | np.generic) and _has_numbers(value.dtype):
        if value.nbytes > LARGEST:
            raise ValueError(f"an array of {value.nbytes:,} bytes; expected at most {LARGEST:,}")
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return [kind, value.dtype.str, list(value.shape), b64encode(value.tobytes()).decode()]
    if isinstance(value, list | tuple):
        return ["list", [pack(element) for element in value]]
    if isinstance(value, Blocks):
        return ["blocks", [int(value.B_r), int(value.B_c), value.N_q, value.N_k]]
    if isinstance(value, Matrix):
        return ["matrix", value._storage.name, value._rows, value._cols, value._window]
    if isinstance(value, HBM | SRAM):
        return [type(value).__name__]
    return ["other", type(value).__name__, "a thing that is not a number"]


def _has_numbers(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biuf" and dtype.itemsize <= 8


def fits(number: int) -> bool:
    """Return whether a whole number is short enough for a message."""
    return number.bit_length() <= MOST_BITS


def unpack(value: Any, memory: Callable[[list[Any]], Any] | None = None) -> Any:
    """Return the value of a packed one. `memory` makes matrices and memories of theirs. Raises
    ValueError or TypeError for anything else.
    """
    match value:
        case ["plain", None | bool() | int() | float() | str() as plain]:
            return plain
        case ["array" | "scalar" as kind, str() as name, [*shape], str() as text]:
            dtype = np.dtype(name)
            if dtype.kind not in "biuf" or not all(type(n) is int and n >= 0 for n in shape):
                raise ValueError("no array of numbers")
            data = b64decode(text, validate=True)
            array = np.frombuffer(data, dtype).reshape(shape).copy()
            return array if kind == "array" else array[()]
        case ["list", [*values]]:
            return tuple(unpack(element, memory) for element in values)
        case ["blocks", [int() as B_r, int() as B_c, int() as N_q, int() as N_k]]:
            return Blocks(B_r, B_c, N_q=N_q, N_k=N_k)
        case ["other", str() as name, str() as text]:
            return type(name[:50] or "?", (), {"__repr__": lambda self: text})()
        case ["HBM" | "SRAM" | "matrix", *_] if memory is not None:
            return memory(value)
    raise ValueError("no value")

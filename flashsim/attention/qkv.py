"""Q, K, V to run on: the bundled real sample, and the user's own files. Nothing is ever
unpickled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from flashsim.attention.inputs import Array, float_dtype
from flashsim.support.files import name_of, what_is_there
from flashsim.support.install import extra_with

LARGEST_UNPACKED = 2**28
MOST_TIMES = 16  # of a larger file's own size: numbers are seldom packed as well as this
SAMPLE: Any = files("flashsim") / "data" / "minilm_layer0.npz"


class UnreadableInput(ValueError):
    """A file that does not hold Q, K and V in a form that can be read."""


@dataclass(frozen=True)
class QKV:
    """Q (..., H_q, N_q, d), K (..., H_kv, N_k, d), V (..., H_kv, N_k, d_v), and where they came
    from.
    """

    Q: Array
    K: Array
    V: Array
    source: str

    def astype(self, dtype: np.dtype[Any]) -> QKV:
        """Return the same data converted."""
        return QKV(self.Q.astype(dtype), self.K.astype(dtype), self.V.astype(dtype), self.source)

    @property
    def shape(self) -> dict[str, Any]:
        """One head's lengths and widths: N (keys), N_q, d, d_v, and the dtype's name."""
        N_q = self.Q.shape[-2]
        N = self.K.shape[-2]
        d = self.Q.shape[-1]
        d_v = self.V.shape[-1]
        return {"N": N, "N_q": N_q, "d": d, "d_v": d_v, "dtype": self.Q.dtype.name}

    @property
    def heads(self) -> int:
        """How many query heads there are over all leading axes."""
        return math.prod(self.Q.shape[:-2])

    def head(self, index: str | None) -> QKV:
        """Return one query head, with its KV head, by its index into the leading axes, "3" or
        "0,3"; None keeps all.
        """
        if index is None:
            return self
        leading = self.Q.shape[:-2]
        try:
            position = tuple(int(part) for part in index.split(","))
        except ValueError:
            raise UnreadableInput(
                f"--head {index} is not an index; write 3, or 0,3 for axes of batch and head"
            ) from None
        if len(position) > len(leading) or any(
            not 0 <= i < n for i, n in zip(position, leading, strict=False)
        ):
            raise UnreadableInput(
                f"--head {index} is out of range: Q's leading axes are {leading}, counted from 0"
            )
        shared = position
        if len(position) == len(leading) == self.K.ndim - 2 and leading[-1] % self.K.shape[-3] == 0:
            shared = (*position[:-1], position[-1] * self.K.shape[-3] // leading[-1])
        return QKV(self.Q[position], self.K[shared], self.V[shared], f"{self.source}, head {index}")


def load_sample(*, padded: bool = False) -> QKV:
    """Return the bundled real input: layer 0 of all-MiniLM-L6-v2 reading the Gettysburg Address.

    12 heads, d = 32, float16, N = 331 tokens; with `padded=True` all 384 positions, of which
    `sample_mask` tells the real ones. Provenance and licence: flashsim/data/README.md.
    """
    with np.load(SAMPLE, allow_pickle=False) as sample:
        n = sample["attend"].shape[0] if padded else int(sample["attend"].sum())
        Q, K, V = (sample[name][:, :n] for name in ("q", "k", "v"))
        source = f"layer 0 of all-MiniLM-L6-v2 reading the Gettysburg Address, {n} tokens"
        return QKV(Q, K, V, f"The bundled sample: {source}")


def sample_mask() -> Array:
    """Return the bundled sample's padding mask, (384,), True where a token is real."""
    with np.load(SAMPLE, allow_pickle=False) as sample:
        return np.asarray(sample["attend"])


def load_qkv(paths: Sequence[Path]) -> QKV:
    """Read Q, K, V from one .npz or .safetensors file (arrays named q, k, v in any case), from one
    .npy file that stacks them on its first axis, or from three .npy files.

    Raises UnreadableInput, which is a ValueError.
    """
    if len(paths) not in (1, 3):
        raise UnreadableInput(
            f"expected one file, or three .npy files for Q, K and V; got {len(paths)} files"
        )
    arrays = [_read(path, "a file with Q, K, V") for path in paths]
    source = ", ".join(map(name_of, paths))
    if len(paths) == 3:
        each = "of three files each must be a .npy with one"
        Q, K, V = (_only(array, path, each) for array, path in zip(arrays, paths, strict=True))
        return QKV(Q, K, V, source)
    (contents,) = arrays
    if isinstance(contents, Mapping):
        return QKV(*_by_name(contents, paths[0]), source)
    if contents.ndim < 3 or contents.shape[0] != 3:
        description = f"{paths[0]} holds one array of shape {contents.shape}"
        raise UnreadableInput(
            f"{description}; expected Q, K, V stacked, (3, ..., N, d); or give three files"
        )
    return QKV(contents[0], contents[1], contents[2], source)


def load_mask(path: Path) -> Array:
    """Read a mask from a .npy file. Raises UnreadableInput; what it must be is checked where it
    is used.
    """
    return _only(
        _read(path, "a .npy file with a mask"), path, "expected a .npy file with one, the mask"
    )


_NOT_READ = np.empty(0)


def _read(path: Path, expected: str) -> Array | Mapping[str, Array]:
    if not path.is_file():
        raise UnreadableInput(f"{path} is {what_is_there(path)}; expected {expected}")
    try:
        match path.suffix.lower():
            case ".npy" | ".npz":
                return _read_numpy(path)
            case ".safetensors":
                return _read_safetensors(path)
    except UnreadableInput:
        raise
    except Exception as error:  # whatever a reader says of a damaged file, the user needs its name
        raise UnreadableInput(f"{path} cannot be read as {path.suffix}: {error}") from error
    raise UnreadableInput(f"{path} has suffix {path.suffix!r}; expected .npz, .npy or .safetensors")


def _read_numpy(path: Path) -> Array | Mapping[str, Array]:
    if path.stat().st_size == 0:
        raise UnreadableInput(f"{path} is empty")
    try:
        with path.open("rb") as file:
            begins = file.read(6)
            # an archive, an array, a pickle
            if not begins.startswith((b"PK", b"\x93NUMPY", b"\x80")):
                raise UnreadableInput(
                    f"{path} is not a .npz or .npy file: it does not begin like one"
                )
            file.seek(0)
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            names = {name for name in loaded.files if name.lower() in ("q", "k", "v")}
            unpacked = sum(
                info.file_size
                for info in loaded.zip.infolist()
                if info.filename.removesuffix(".npy") in names
            )
            packed = path.stat().st_size
            if unpacked > max(LARGEST_UNPACKED, MOST_TIMES * packed):
                raise UnreadableInput(
                    f"{path} unpacks to {unpacked:,} bytes from {packed:,}; expected {MOST_TIMES} "
                    "times as much at most, or "
                    f"{LARGEST_UNPACKED:,} bytes. np.savez, which does not pack, writes any size"
                )
            return {name: loaded[name] if name in names else _NOT_READ for name in loaded.files}
    except ValueError as error:
        if "pickle" in str(error):
            raise UnreadableInput(
                f"{path} holds pickled Python objects, which flashsim never loads"
            ) from error
        raise


def _read_safetensors(path: Path) -> Mapping[str, Array]:
    try:
        from safetensors import safe_open
    except ModuleNotFoundError:
        raise UnreadableInput(
            f".safetensors files need the package safetensors: {extra_with('safetensors')}"
        ) from None
    arrays = {}
    with safe_open(path, framework="np") as file:
        for name in file.keys():  # noqa: SIM118  (it is not a mapping)
            is_operand = name.lower() in ("q", "k", "v")
            if is_operand and file.get_slice(name).get_dtype() == "BF16":
                float_dtype("bfloat16")  # NumPy knows the type once ml_dtypes has been imported
            arrays[name] = file.get_tensor(name) if is_operand else _NOT_READ
    return arrays


def _by_name(arrays: Mapping[str, Array], path: Path) -> tuple[Array, Array, Array]:
    by_lower = {name.lower(): array for name, array in arrays.items()}
    missing = [name.upper() for name in "qkv" if name not in by_lower]
    if missing:
        lacks = " and no ".join(missing)
        held = ", ".join(arrays) or "nothing"
        raise UnreadableInput(
            f"{path} has no {lacks}; expected arrays named q, k, v. It holds: {held}"
        )
    return by_lower["q"], by_lower["k"], by_lower["v"]


def _only(contents: Array | Mapping[str, Array], path: Path, expected: str) -> Array:
    if isinstance(contents, Mapping):
        raise UnreadableInput(f"{path} holds several arrays; {expected}")
    return contents

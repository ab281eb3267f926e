"""Checks of the arrays that users pass, Q, K, V, dO. Errors name the argument, its value and
what was expected.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from flashsim.attention.arguments import (
    LARGEST,
    broadcasts,
    check_array,
    check_booleans,
    check_choice,
    check_count,
    check_real,
    short_repr,
)
from flashsim.attention.dlpack import bfloat16, innermost
from flashsim.attention.shapes import Shape
from flashsim.support.install import extra_with
from flashsim.support.sizes import parse_size

Array = NDArray[Any]
T = TypeVar("T")

KB = 1024
DEFAULT_SRAM_BYTES = 100 * KB
DEFAULT_DTYPE = "float32"
REFERENCE_N = 1024
REFERENCE_D = 64
"""The one setting of pages, figures and the playground, with the default M and dtype: GPT-2's
head, 25,600 elements of SRAM.
"""
FLOATS = ("float16", "bfloat16", "float32", "float64")
HEADS_FIRST = "BHND"
ALIASES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}


def describe_array(name: str, array: Array) -> str:
    """Return an array's name, shape and dtype, without its numbers."""
    return f"{name} {array.shape} {array.dtype}"


@dataclass(frozen=True, repr=False)
class Inputs:
    """Q (..., H_q, N_q, d), K (..., H_kv, N_k, d) and V (..., H_kv, N_k, d_v) of one dtype, H_q a
    multiple of H_kv.

    shape    one head's problem
    leading  batch, query heads, …
    group    how many query heads share a KV head, g = H_q / H_kv
    """

    Q: Array
    K: Array
    V: Array
    shape: Shape
    leading: tuple[int, ...]
    group: int
    dtype: np.dtype[Any]

    def __repr__(self) -> str:
        return f"Inputs({', '.join(self.described())})"

    def described(self) -> list[str]:
        """Return name, shape and dtype of each array."""
        return [
            describe_array("Q", self.Q),
            describe_array("K", self.K),
            describe_array("V", self.V),
        ]

    def kv(self, head: tuple[int, ...]) -> tuple[int, ...]:
        """Return the index of the KV head that a query head shares: h // g."""
        return (*head[:-1], head[-1] // self.group) if head else head

    def copy(self) -> Inputs:
        """Return copies, which the caller cannot change afterwards."""
        return replace(self, Q=self.Q.copy(), K=self.K.copy(), V=self.V.copy())


def float_dtype(dtype: Any) -> np.dtype[Any]:
    """Return one of the supported dtypes (float16, bfloat16, float32, float64) by name or object,
    or ValueError.

    A name may be short, as "fp16" and "bf16" are; an object NumPy's or PyTorch's.
    """
    if isinstance(dtype, np.dtype) and dtype.isnative and dtype.name in FLOATS:
        return dtype
    name = float_name(dtype)
    return bfloat16() if name == "bfloat16" else np.dtype(name)


def float_name(dtype: Any) -> str:
    """Return the name of one of the supported dtypes, or ValueError. None, NumPy's word for
    float64, is refused.
    """
    name = str(dtype) if isinstance(dtype, str) or type(dtype).__module__ == "torch" else ""
    name = name.removeprefix("torch.")
    if name in FLOATS or name in ALIASES:
        return ALIASES.get(name, name)
    try:
        numpy_name = str(np.dtype(dtype).name) if dtype is not None else None
    except Exception:  # TypeError, ValueError, SyntaxError, … as it comes to NumPy
        numpy_name = None
    if numpy_name is None:
        raise ValueError(
            f"dtype {short_repr(dtype)} is not known; expected one of {', '.join(FLOATS)}"
        )
    if numpy_name not in FLOATS:
        raise ValueError(
            f"dtype {numpy_name} is not supported; expected one of {', '.join(FLOATS)}"
        )
    return numpy_name


def stored_type(name: str) -> np.dtype[Any]:
    """Return a dtype. Raises ValueError for one of 8 bits where its package is missing."""
    if name.startswith("float8"):
        try:
            import ml_dtypes
        except ModuleNotFoundError as error:
            raise ValueError(
                f"dtype {name} needs the package ml_dtypes: {extra_with('ml_dtypes')}"
            ) from error
        of_8_bits: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return of_8_bits
    return np.dtype(name)


def chip_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return what the chip computes in: float32 for inputs of 16 bits and fewer, else the
    inputs' own dtype.
    """
    return np.dtype(np.float32) if dtype.itemsize <= 2 else dtype


@cache
def _limit(name: str, dtype: DTypeLike) -> float:
    dtype = np.dtype(dtype)
    info = cast(Any, np.finfo)
    if dtype.name == "bfloat16" or dtype.itemsize == 1:
        import ml_dtypes

        info = ml_dtypes.finfo
    return float(getattr(info(dtype), name))


smallest_step = partial(_limit, "smallest_subnormal")
"""Of a dtype, its smallest positive (subnormal) number."""
smallest_normal = partial(_limit, "smallest_normal")
"""Its smallest positive number of full precision."""
roundoff = partial(_limit, "epsneg")
"""Its unit roundoff u: half the distance from 1 to the next number."""
largest = partial(_limit, "max")
"""Its largest finite number."""
check_layout = partial(check_choice, "layout", known=(HEADS_FIRST, "BNHD"))
"""Heads first, (..., H, N, d), as code here has it, or "BNHD", (..., N, H, d), as flash-attn's
kernels take it.
"""


def to_layout(name: str, array: Array, layout: str) -> Array:
    """Return an array of that layout as (..., H, N, d), or back. ValueError for one of two axes,
    which has no heads.
    """
    if layout == HEADS_FIRST:
        return array
    if array.ndim < 3:
        raise ValueError(
            f"{name} has shape {array.shape}; expected (..., N, H, d), as layout is 'BNHD'"
        )
    return np.ascontiguousarray(array.swapaxes(-3, -2))


@contextmanager
def errors_with_layout(layout: str) -> Iterator[None]:
    """Have errors say that the shapes and places in them are those of (..., H, N, d)."""
    try:
        yield
    except ValueError as error:
        if layout != HEADS_FIRST:
            error.add_note(
                f"layout is {layout!r}: shapes here are said heads first, (..., H, N, d)"
            )
        raise


def check_arrays(values: Mapping[str, Any]) -> dict[str, Array]:
    """Return arrays by name. Lists of numbers have the type of the first that is an array of
    floats, else float64.
    """
    arrays = {}
    only_arrays = True
    for name, value in values.items():
        arrays[name] = check_array(name, value)
        only_arrays = only_arrays and isinstance(value, np.ndarray)
    if only_arrays:
        return arrays
    first = {
        name: innermost(value) for name, value in values.items() if isinstance(value, list | tuple)
    }
    listed = {
        name
        for name, one in first.items()
        if type(one) in (int, float) and arrays[name].dtype.kind in "iuf"
    }
    types = [a.dtype for name, a in arrays.items() if name not in listed and a.dtype.name in FLOATS]
    dtype = types[0] if types else np.dtype(np.float64)
    return {name: a.astype(dtype) if name in listed else a for name, a in arrays.items()}


def check_matrix(
    name: str,
    array: Array,
    symbols: tuple[str, str],
    lengths: dict[str, int],
    whose: dict[str, str],
) -> Array:
    """Return an array as a matrix of that shape in symbols, (N,) as one column; learn the
    lengths that are new, and of whom.
    """
    shape = array.shape
    expected = f"({', '.join(symbols)})"
    matrix = array[:, None] if array.ndim == 1 else array
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"{name} has shape {shape}; expected {expected}, at least 1 each")
    for symbol, length in zip(symbols, matrix.shape, strict=True):
        if symbol.isdigit() and length != int(symbol):
            raise ValueError(f"{name} has shape {shape}; expected {expected}")
        if not symbol.isdigit() and lengths.setdefault(symbol, length) != length:
            why = f"{symbol} = {lengths[symbol]}, as {whose[symbol]} has"
            raise ValueError(f"{name} has shape {shape}; expected {expected} with {why}")
        whose.setdefault(symbol, name)
    return matrix


def check_inputs(Q: Any, K: Any, V: Any) -> Inputs:
    """Return the inputs, heads first, as arrays, or ValueError. `check_range` sees whether they
    are finite.
    """
    arrays = check_arrays({"Q": Q, "K": K, "V": V})
    for name, a in arrays.items():
        if a.dtype.name not in FLOATS:
            raise ValueError(f"{name} has dtype {a.dtype}; expected one of {', '.join(FLOATS)}")
        if a.ndim < 2:
            raise ValueError(f"{name} has shape {a.shape}; expected (..., N, d), at least two axes")
        if 0 in a.shape:
            raise ValueError(f"{name} has shape {a.shape}; every axis must be at least 1")
        if a.dtype != arrays["Q"].dtype:
            raise ValueError(
                f"Q has dtype {arrays['Q'].dtype} and {name} has dtype {a.dtype}; expected one "
                "dtype for all"
            )
    of_Q = arrays["Q"].shape
    of_K = arrays["K"].shape
    of_V = arrays["V"].shape
    shares_keys = of_V[:-1] == of_K[:-1]
    shares_axes = len(of_Q) == len(of_K) and of_Q[:-3] == of_K[:-3]
    shares_width = of_Q[-1] == of_K[-1]
    if not (shares_keys and shares_axes and shares_width):
        raise ValueError(_misfit(of_Q, of_K, of_V))
    group = 1
    if len(of_Q) > 2:
        group, rest = divmod(of_Q[-3], of_K[-3])
        if rest:
            raise ValueError(_misfit(of_Q, of_K, of_V))
    shape = Shape(of_Q[-2], of_K[-2], of_Q[-1], of_V[-1])
    return Inputs(arrays["Q"], arrays["K"], arrays["V"], shape, of_Q[:-2], group, arrays["Q"].dtype)


def heads_first(layout: str, Q: Any, K: Any, V: Any) -> tuple[Any, Any, Any]:
    """Return Q, K, V of that layout with heads first. Raises ValueError for an unknown layout."""
    if check_layout(layout) == HEADS_FIRST:
        return Q, K, V
    arrays = check_arrays({"Q": Q, "K": K, "V": V})
    transposed = {name: to_layout(name, array, layout) for name, array in arrays.items()}
    return transposed["Q"], transposed["K"], transposed["V"]


def _misfit(Q: tuple[int, ...], K: tuple[int, ...], V: tuple[int, ...]) -> str:
    """Say what does not fit in these shapes."""
    both = f"Q has shape {Q} and K has shape {K}"
    values = f"K has shape {K} and V has shape {V}"
    if V[:-2] != K[:-2]:
        return f"{values}; leading axes must be equal"
    if len(Q) != len(K) or Q[:-3] != K[:-3]:
        return f"{both}; leading axes must be equal, except the last: query heads, KV heads"
    if len(Q) > 2 and Q[-3] % K[-3]:
        return (
            f"{both}; expected H_q = {Q[-3]}, the query heads, to be a multiple of H_kv = {K[-3]}"
        )
    if K[-1] != Q[-1]:
        return f"{both}; their last axis, d, must be equal"
    return f"{values}; their second-last axis, N_k, must be equal"


def _check_finite(name: str, a: Array) -> None:
    finite = np.isfinite(a)
    if not finite.all():
        first = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise ValueError(f"{name}{list(first)} is {a[first]}; expected finite numbers")


def check_shape_of_dO(dO: Array, shape: tuple[int, ...], layout: str) -> None:
    """Raise ValueError unless dO, heads first, has O's shape."""
    with errors_with_layout(layout):
        if dO.shape != shape:
            raise ValueError(f"dO has shape {dO.shape}; expected that of O, {shape}")


def check_dO(dO: Any, O: Array, *, check_finite: bool, layout: str = HEADS_FIRST) -> Array:
    """Return the output gradient as an array of O's shape, heads first, and dtype, or
    ValueError.
    """
    gradient = to_layout("dO", check_arrays({"dO": dO, "O": O})["dO"], layout)
    check_shape_of_dO(gradient, O.shape, layout)
    if gradient.dtype != O.dtype:
        raise ValueError(f"dO has dtype {gradient.dtype}; expected that of O, {O.dtype}")
    if check_finite:
        _check_finite("dO", gradient)
    return gradient


NO_RULE = (
    ": the oracle takes arrays, and run.plan.attended(head) is that of a run; bias, softcap and "
    "sink are its other arguments"
)


def check_attention(
    *, mask: Any = None, keep: Any = None, bias: Any = None, **operands: Any
) -> list[Array]:
    """Return Q, K, V, dO, those that are given, as arrays of real numbers that fit together, or
    ValueError.

    Leading axes need only broadcast. `mask` and `keep` must be booleans that broadcast to (...,
    N_q, N_k), `bias` real numbers.
    """
    arrays = {name: check_real(name, a) for name, a in operands.items()}
    shapes = {name: a.shape for name, a in arrays.items()}
    for name, shape in shapes.items():
        if len(shape) < 2 or 0 in shape:
            raise ValueError(
                f"{name} has shape {shape}; expected (..., N, d), no axis of which is empty"
            )
    Q = shapes["Q"]
    K = shapes["K"]
    V = shapes.get("V", K)
    shapes_text = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    if Q[-1] != K[-1] or V[-2] != K[-2] or shapes.get("dO", (Q[-2], V[-1]))[-2:] != (Q[-2], V[-1]):
        raise ValueError(
            f"shapes are {shapes_text}; expected Q (N_q, d), K (N_k, d), V (N_k, d_v), "
            "dO (N_q, d_v)"
        )
    try:
        leading = np.broadcast_shapes(*(shape[:-2] for shape in shapes.values()))
    except ValueError:
        raise ValueError(
            f"shapes are {shapes_text}; expected leading axes that broadcast"
        ) from None
    onto = (*leading, Q[-2], K[-2])
    for name, a, check in (
        ("mask", mask, partial(check_booleans, or_else=NO_RULE)),
        ("keep", keep, check_booleans),
        ("bias", bias, check_real),
    ):
        if a is not None and not broadcasts(check(name, a).shape, onto):
            expected = f"(..., N_q, N_k) = {onto}"
            raise ValueError(
                f"{name} has shape {np.shape(a)}; expected one that broadcasts to {expected}"
            )
    return list(arrays.values())


def check_backward_range(
    inputs: Inputs,
    O: Array,
    dO: Array,
    scale: float,
    dropout_p: float,
    stored: np.dtype[Any] | None,
) -> None:
    """Refuse finite gradients so large that a sum could overflow the chip, or dP the type it is
    stored in.

    |dP| is at most |do|·|v| / (1 − p), and so is |D|, or |do|·|o|, where o is not an average for
    all that rounding left of log L. P is at most 1, so |dS| is at most |dP| + |D|; the sums run
    over N_k terms of it, or over N_q of each query head of a group, and are scaled last.
    """
    chip = chip_dtype(inputs.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        q, k, v, o, do = (_longest_row(a) for a in (inputs.Q, inputs.K, inputs.V, O, dO))
        dP = do * v / (1 - dropout_p)
        dS = dP + max(dP, do * o)
        N = max(inputs.group * inputs.shape.N_q, inputs.shape.N_k)
        most = max(N * dS * max(1.0, abs(scale)) * max(q, k, 1.0), N * do / (1 - dropout_p))
    type_ = stored if stored is not None and largest(stored) < largest(chip) else chip
    if not (dS < largest(type_) and most < largest(chip) / 4):
        raise ValueError(
            f"dO is too large: dP could reach {dP:.3g} and a sum {most:.3g}, and {type_.name} ends "
            "at "
            f"{largest(type_):.3g}. Scale dO down, or use a wider dtype"
        )


def check_range(
    inputs: Inputs,
    scale: float,
    dropout_p: float,
    stored: np.dtype[Any] | None,
    bias: float = 0.0,
    folded: bool = False,
) -> None:
    """Refuse finite inputs so large that a score or a weighted sum could overflow, which would give
    NaN.

    Scores, and every partial sum on the way to one, are at most |scale|·|q|·|k| (Cauchy–Schwarz),
    or |q|·|k|, as they are scaled last unless `folded`: then Q comes scaled. The difference of two
    is at most twice a score; partial sums of P̃V are at most N_k·max|v|. `bias` is the most that
    one adds. `stored` is the type S is written to HBM in, for the algorithms that do.

    Raises ValueError, for numbers that are not finite, too.
    """
    chip = chip_dtype(inputs.dtype)
    q = _longest_row(inputs.Q)
    k = _longest_row(inputs.K)
    score = abs(scale) * q * k + bias
    row = max(q, abs(scale) * q)
    limit = largest(chip)
    total = (
        float(np.max(np.abs(inputs.V.astype(np.float64)), initial=0.0))
        * inputs.shape.N_k
        / (1 - dropout_p)
    )
    product = 0.0 if folded else q * k
    in_memory = chip if stored is None else stored
    fits = (
        product < limit
        and row < limit
        and 2 * score < limit
        and 4 * total < limit
        and score < largest(in_memory)
    )
    if not (fits and abs(scale) <= limit):
        for name in ("Q", "K", "V"):
            _check_finite(name, getattr(inputs, name))
        if not abs(scale) <= limit:
            raise ValueError(
                f"scale is {scale:.3g}; expected one that {chip.name} holds, which ends at "
                f"{limit:.3g}"
            )
        for text, most, type_ in (
            ("products of Q and K could reach {:.3g}", product, chip),
            ("scores could reach {:.3g}", score, in_memory),
            ("a row of scale · Q could be {:.3g} long", row, chip),
            ("two scores could be {:.3g} apart", 2 * score, chip),
        ):
            if not most < largest(type_):
                names = "Q and K and the bias" if bias else "Q and K"
                raise ValueError(
                    f"{names} are too large: {text.format(most)}, "
                    f"and {type_.name} ends at "
                    f"{largest(type_):.3g}. Scale the inputs down, or give a wider dtype"
                )
        raise ValueError(
            f"V is too large: a sum over {inputs.shape.N_k:,} keys could reach {total:.3g}, and "
            f"{chip.name} ends at "
            f"{limit:.3g}. Scale V down, or give a wider dtype"
        )


def _longest_row(a: Array) -> float:
    wide = a.astype(np.float64)
    top = float(np.max(np.abs(wide), initial=0.0))
    return (
        math.sqrt(float(np.max(np.sum((wide / top) ** 2, axis=-1)))) * top
        if 0 < top < math.inf
        else top
    )


def check_M(M: Any, itemsize: int) -> int:
    """Return SRAM's size in elements of that item size, given so (25_600, 1e5) or as text
    ("100KB"); by default 100 KB.
    """
    if type(M) is int and 1 <= M <= LARGEST:
        return M
    if M is None:
        return DEFAULT_SRAM_BYTES // itemsize
    if isinstance(M, str):
        try:
            M = parse_size(M, itemsize)
        except ValueError as error:
            raise ValueError(f"M: {error}") from None
    elif isinstance(M, float | np.floating) and math.isfinite(M) and int(M) == M:
        M = int(M)
    return check_count("M", M)

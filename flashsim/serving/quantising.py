"""Quantised keys and values: `quantise` makes packed integers of numbers, `quantised` attends to
them; so do `to_fp8`, `fp8`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flashsim.attention.arguments import check_choice, check_count
from flashsim.attention.inputs import Array, stored_type
from flashsim.memory.sram import Observer
from flashsim.serving.api import batch_of_lists, run
from flashsim.serving.checks import check_packed
from flashsim.serving.programs.fp8 import FORMATS
from flashsim.serving.programs.quantised import check_options
from flashsim.simulate.results import Result
from flashsim.support.sizes import Size, ceil_div


def quantise(X: Any, *, bits: int, group: int, axis: str) -> tuple[Array, Array, Array]:
    """Return numbers (H, n, d) as integers, packed in bytes (H, n, ⌈d·bits/8⌉), the first in the
    lowest bits; scales; zeros.

    A number is about zero + scale · integer, with a group's smallest as its zero, and its largest
    as the last integer.

    axis  what a group is of: "channel", `group` tokens of a channel: scales are (H, ⌈n/group⌉, d);
          "token", `group` channels of a token: (H, n, ⌈d/group⌉). A last group may be smaller

    Raises ValueError.
    """
    X, bits, group = check_packed("X", X), *check_options(None, bits=bits, group=group).values()
    by = 1 if check_choice("axis", axis, ("channel", "token")) == "channel" else 2
    starts = np.arange(0, X.shape[by], group)
    if not len(starts):
        return np.zeros((*X.shape[:2], ceil_div(X.shape[2] * bits, 8)), np.uint8), X, X
    zero = np.minimum.reduceat(X, starts, axis=by)
    scale = ((np.maximum.reduceat(X, starts, axis=by) - zero) / (2**bits - 1)).astype(X.dtype)
    each = [np.take(of, np.arange(X.shape[by]) // group, axis=by) for of in (scale, zero)]
    integers = (
        np.rint((X - each[1]) / np.where(each[0] == 0, 1, each[0]))
        .clip(0, 2**bits - 1)
        .astype(np.uint8)
    )
    bytes_ = np.zeros((*X.shape[:2], ceil_div(X.shape[2] * bits, 8)), np.uint8)
    for column in range(X.shape[2]):
        bytes_[..., column * bits // 8] |= integers[..., column] << column * bits % 8
    return bytes_, scale, zero


def quantised(
    Q: Any,
    K: Any,
    V: Any,
    *,
    bits: int,
    group: int,
    M: Size | None = None,
    blocks: tuple[int, int] | None = None,
    causal: bool = True,
    scale: float | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Run attention to keys and values that are first quantised, keys by channel, values by token;
    that costs nothing here.

    Q, K, V  lists with (H_q, N_s, d), (H_kv, n_s, d), (H_kv, n_s, d_v) for each sequence
    bits     2, 4 or 8
    group    how many tokens of a key's channel, and channels of a token's value, share a scale and
             a zero, of the type of Q

    Raises ValueError for arguments that make no sense, `SramOverflow` where blocks do not fit M.

    Source: "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache" (Liu et al., 2024).
    """
    batch, rows, keys, values = batch_of_lists(Q, K, V, M, causal, scale)
    operands = {"Q": rows}
    for X, k, of, axis in (("K", "k", keys, "channel"), ("V", "v", values, "token")):
        parts = zip(
            *(quantise(array, bits=bits, group=group, axis=axis) for array in of), strict=True
        )
        names = (X, f"{k}_scale", f"{k}_zero")
        operands |= {
            name: np.concatenate(arrays, axis=1) for name, arrays in zip(names, parts, strict=True)
        }
    return run("quantised", batch, operands, blocks, observers, bits=bits, group=group)


def to_fp8(X: Any, *, dtype: str = "e4m3", group: int | None = None) -> tuple[Array, Array]:
    """Return numbers (H, n, d) in floats of 8 bits, of the same shape; and the scales by which
    these are multiplied.

    dtype  "e4m3", up to 448, or "e5m2", up to 57,344
    group  how many tokens of a head share a scale, (H, ⌈n/group⌉, 1) in float32; the last group may
           be smaller. None: all

    The largest number of a group becomes the largest of the format, so that nothing overflows.
    Raises ValueError.
    """
    X, (name, most) = check_packed("X", X), FORMATS[check_choice("dtype", dtype, FORMATS)]
    stored = stored_type(name)
    n = X.shape[1]
    group = max(n, 1) if group is None else check_count("group", group)
    starts = np.arange(0, n, group)
    if not len(starts):
        return X.astype(stored), np.zeros((len(X), 0, 1), np.float32)
    largest = np.maximum.reduceat(
        np.abs(X.astype(np.float64)).max(axis=2, keepdims=True), starts, axis=1
    )
    scale = np.where(largest == 0, 1, largest / most).astype(np.float32)
    scaled = X.astype(np.float64) / np.take(scale, np.arange(n) // group, axis=1)
    return scaled.clip(-most, most).astype(stored), scale


def fp8(
    Q: Any,
    K: Any,
    V: Any,
    *,
    dtype: str = "e4m3",
    group: int | None = None,
    M: Size | None = None,
    blocks: tuple[int, int] | None = None,
    causal: bool = True,
    scale: float | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Run attention to keys and values that are first rounded to floats of 8 bits, by `to_fp8`;
    that costs nothing here.

    Q, K, V  lists with (H_q, N_s, d), (H_kv, n_s, d), (H_kv, n_s, d_v) for each sequence
    group    how many keys of a sequence share a scale; None: all of them, which kernels call a
             scale per tensor

    Raises ValueError for arguments that make no sense, `SramOverflow` where blocks do not fit M.

    Sources: "FP8 Formats for Deep Learning" (Micikevicius et al., 2022); FlashAttention-3's
    descales (Shah et al., 2024).
    """
    batch, rows, keys, values = batch_of_lists(Q, K, V, M, causal, scale)
    operands = {"Q": rows}
    for X, k, of in (("K", "k", keys), ("V", "v", values)):
        parts = zip(*(to_fp8(array, dtype=dtype, group=group) for array in of), strict=True)
        operands |= dict(
            zip(
                (X, f"{k}_scale"), (np.concatenate(arrays, axis=1) for arrays in parts), strict=True
            )
        )
    return run("fp8", batch, operands, blocks, observers, group=group)

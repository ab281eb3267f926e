"""Masks in the form that kernels take, made from `forward`'s arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from flashsim.attention.arguments import check_block_mask, check_flag, short_repr
from flashsim.attention.masks.band import Band
from flashsim.attention.masks.rules import Causal, Mask
from flashsim.attention.shapes import Shape
from flashsim.gpu.compiling import import_cupy


@dataclass(frozen=True)
class Rule:
    """The masks of `Options`. At most one of `causal` and `window` is given."""

    causal: bool
    mask: Any = None
    window: tuple[int, int] | None = None
    block_mask: Any = None


def rule_of(q: Any, k: Any, causal: bool, mask: Any, array: Any, block_mask: Any = None) -> Rule:
    """Return the rule of a mask object, or of `array` if `mask` is an array, with `causal` and a
    block mask.

    A window that is open to the left and ends at the query's own position becomes `causal`. Raises
    ValueError.
    """
    check_flag("causal", causal)
    if isinstance(block_mask, str):
        raise ValueError(
            f"block_mask is {block_mask!r}; expected an array, or a function of (T_r, T_c)"
        )
    block_mask = check_block_mask(block_mask)
    if not isinstance(mask, Mask):
        return Rule(causal, array, None, block_mask)
    N_q, N_k = (X.shape[2] if X.ndim == 4 else 1 for X in (q, k))  # other shapes are refused later
    band = (
        None
        if mask.per_head
        else (Causal() & mask if causal else mask).band(Shape(N_q, N_k, 1, 1), ())
    )
    if (
        band is None
        or band != Band(band.left, band.right, N_k)
        or min(band.left or 0, band.right or 0) < 0
    ):
        raise ValueError(
            f"mask is {short_repr(mask)}; on a GPU expected an array, SlidingWindow or Causal"
        )
    if band.left is None and band.right in (None, 0):
        return Rule(band.right == 0, None, None, block_mask)
    left, right = (-1 if side is None else side for side in (band.left, band.right))
    return Rule(False, None, (left, right), block_mask)


class InTiles(NamedTuple):
    """A mask as TMA reads it: matrices (N_q, N_k), or (1, N_k) if it broadcasts over queries.

    array    the mask, which must live as long as it is read
    shape, strides  of (matrices, rows, columns)
    steps    whether rows differ, 1 or 0; how many matrices to step from one head to the next, and
             from one batch entry
    """

    array: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    steps: tuple[int, int, int]


def in_tiles(mask: Any) -> InTiles:
    """Return a mask (B, H, N_q, N_k) for TMA. It is copied unless its rows start at multiples of
    16 bytes.
    """
    differ = tuple(
        int(n > 1 and stride != 0) for n, stride in zip(mask.shape[:3], mask.strides, strict=False)
    )
    cut = mask[tuple(slice(None) if own else slice(1) for own in differ)]
    batches, heads, rows = (
        stride if own else 0 for own, stride in zip(differ, cut.strides, strict=False)
    )
    step = min((stride for stride in (batches, heads) if stride), default=16)
    apart = [stride % 16 or stride < 0 for stride in (batches, heads, rows)]
    if (
        cut.data.ptr % 16
        or any(apart)
        or batches % step
        or heads % step
        or cut.strides[3] != 1 < cut.shape[3]
    ):
        padded = import_cupy().empty((*cut.shape[:3], -(-cut.shape[3] // 16) * 16), bool)[
            ..., : cut.shape[3]
        ]
        padded[...] = cut
        cut = padded
        batches, heads, rows = (
            stride if own else 0 for own, stride in zip(differ, cut.strides, strict=False)
        )
        step = min((stride for stride in (batches, heads) if stride), default=16)
    steps = differ[2], heads // step, batches // step
    matrices = 1 + (cut.shape[0] - 1) * steps[2] + (cut.shape[1] - 1) * steps[1]
    return InTiles(cut, (matrices, *cut.shape[2:]), (step, rows or 16, 1), steps)


def with_causal(mask: Any) -> Any:
    """Return a copy of a mask (B, H, N_q, N_k) that also masks what the causal mask does."""
    one = mask[tuple(slice(None) if stride else slice(1) for stride in mask.strides[:2])]
    return import_cupy().broadcast_to(one & as_array((-1, 0), *mask.shape[2:]), mask.shape)


def as_array(window: tuple[int, int], N_q: int, N_k: int) -> Any:
    """Return a window as booleans (N_q, N_k) on the GPU."""
    cupy = import_cupy()
    offset = cupy.arange(N_k) - (cupy.arange(N_q)[:, None] + N_k - N_q)
    left, right = (N_q + N_k if side == -1 else side for side in window)
    return (offset >= -left) & (offset <= right)

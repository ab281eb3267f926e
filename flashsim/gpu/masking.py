"""Which scores are computed, and which count: of what `forward` is asked for, what kernels know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flashsim.gpu.compiling import import_cupy
from flashsim.masks.band import Band
from flashsim.masks.rules import Causal, Mask
from flashsim.problem.arguments import check_block_mask, check_flag, shown
from flashsim.problem.shapes import Shape


@dataclass(frozen=True)
class Rule:
    """As in `Options`: at most one of `causal` and `window`."""

    causal: bool
    mask: Any = None
    window: tuple[int, int] | None = None
    block_mask: Any = None


def rule_of(q: Any, k: Any, causal: bool, mask: Any, array: Any, block_mask: Any = None) -> Rule:
    """Return the rule of a mask object or, where `mask` is one, of `array`, with `causal` and a block mask.

    A window that is open to the left and ends at the query's own position is causal. Raises ValueError.
    """
    check_flag("causal", causal)
    if isinstance(block_mask, str):
        raise ValueError(f"block_mask is {block_mask!r}; expected an array, or a function of (T_r, T_c)")
    block_mask = check_block_mask(block_mask)
    if not isinstance(mask, Mask):
        return Rule(causal, array, None, block_mask)
    N_q, N_k = (X.shape[2] if X.ndim == 4 else 1 for X in (q, k))  # other shapes are refused later
    band = None if mask.per_head else (Causal() & mask if causal else mask).band(Shape(N_q, N_k, 1, 1), ())
    if band is None or band != Band(band.left, band.right, N_k) or min(band.left or 0, band.right or 0) < 0:
        raise ValueError(f"mask is {shown(mask)}; on a GPU expected an array, SlidingWindow or Causal")
    if band.left is None and band.right in (None, 0):
        return Rule(band.right == 0, None, None, block_mask)
    left, right = (-1 if side is None else side for side in (band.left, band.right))
    return Rule(False, None, (left, right), block_mask)


def in_tiles(mask: Any) -> tuple[Any, tuple[int, int, int]]:
    """Return a mask (B, H, N_q, N_k) as TMA reads it, and whether its rows, heads and batch entries differ: 1, or 0.

    Of what broadcasts there is one; rows start at multiples of 16 bytes. A mask whose rows do not is copied.
    """
    differ = tuple(int(n > 1 and stride != 0) for n, stride in zip(mask.shape[:3], mask.strides, strict=False))
    cut = mask[tuple(slice(None) if own else slice(1) for own in differ)]
    wrong = [stride <= 0 or stride % 16 for n, stride in zip(cut.shape[:3], cut.strides, strict=False) if n > 1]
    if cut.data.ptr % 16 or any(wrong) or cut.shape[3] > 1 != cut.strides[3]:
        padded = import_cupy().empty((*cut.shape[:3], -(-cut.shape[3] // 16) * 16), bool)[..., : cut.shape[3]]
        padded[...] = cut
        cut = padded
    batches, heads, rows = differ
    return cut, (rows, heads, batches)


def as_array(window: tuple[int, int], N_q: int, N_k: int) -> Any:
    """Return a window as booleans (N_q, N_k) on the GPU."""
    cupy = import_cupy()
    offset = cupy.arange(N_k) - (cupy.arange(N_q)[:, None] + N_k - N_q)
    left, right = (N_q + N_k if side == -1 else side for side in window)
    return (offset >= -left) & (offset <= right)

"""How well-known functions on torch tensors are called, and what they promise."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple


class Convention(NamedTuple):
    """One way of calling.

    keywords  (q, k, causal, scale, mask, dropout_p) -> what the function is given besides q, k, v
    promises  fields of the Spec
    """

    keywords: Callable[..., dict[str, Any]]
    promises: Mapping[str, Any]

    def call(self, fn: Callable[..., Any], q: Any, k: Any, v: Any, seed: int | None = None, **keywords: Any) -> Any:
        """Return O, or (O, lse), of `fn`; a `seed` seeds torch's generators, which are restored after the call."""
        with ExitStack() as stack:
            if seed is not None:
                torch: Any = importlib.import_module("torch")
                stack.enter_context(torch.random.fork_rng(devices=[q.device] if q.device.type == "cuda" else []))
                torch.manual_seed(seed)
            result = fn(q, k, v, **self.keywords(q, k, **keywords))
        return tuple(result[:2]) if isinstance(result, tuple | list) else result


def _sdpa(
    q: Any, k: Any, causal: bool = False, scale: float | None = None, mask: Any = None, dropout_p: float = 0.0
) -> dict[str, Any]:
    keywords: dict[str, Any] = {"scale": scale} if scale is not None else {}
    if mask is not None:
        mask = mask[(None,) * (4 - mask.ndim)]  # its flash backend takes masks of 2 or 4 axes
        keywords["attn_mask"] = mask & mask.new_ones(q.shape[-2], k.shape[-2]).tril() if causal else mask
    elif causal:
        keywords["is_causal"] = True
    if dropout_p:
        keywords["dropout_p"] = dropout_p
    if q.shape[1] != k.shape[1]:
        keywords["enable_gqa"] = True
    return keywords


def _flash_attn(
    q: Any, k: Any, causal: bool = False, scale: float | None = None, mask: Any = None, dropout_p: float = 0.0
) -> dict[str, Any]:
    if mask is not None:
        raise ValueError("mask is given; expected none, which flash_attn does not take")
    keywords: dict[str, Any] = {"softmax_scale": scale} if scale is not None else {}
    return keywords | {name: value for name, value in (("causal", causal), ("dropout_p", dropout_p)) if value}


CONVENTIONS = {
    "sdpa": Convention(
        _sdpa,
        {
            "dtypes": ("float32", "float16", "bfloat16"),
            "layout": "BHND",
            "causal": "top_left",
            "empty_rows": "zero",
            "gqa": True,
            "masks": True,
            "scale": True,
            "d_v": True,
            "zero_keys": True,
        },
    ),
    "flash_attn": Convention(
        _flash_attn,
        {
            "dtypes": ("float16", "bfloat16"),
            "layout": "BNHD",
            "block": (128, 128),
            "causal": "bottom_right",
            "empty_rows": "zero",
            "gqa": True,
            "scale": True,
            "head_dims": tuple(range(8, 257, 8)),
            "strides": "contiguous",
        },
    ),
}

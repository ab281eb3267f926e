"""How functions that people run are called, and what they promise: a record each, in
`CONVENTIONS`.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from flashsim.attention.arguments import shown
from flashsim.testing.adapters import flashinfer, paged, varlen, vllm


def _given(**options: Any) -> dict[str, Any]:
    """Return the options that are not left out."""
    return {name: value for name, value in options.items() if value is not None}


def _called(fn: Any, arrays: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Return what `fn` does; of a forward function O, or (O, lse), alone."""
    result = fn(*arrays, **keywords)
    if not isinstance(result, tuple | list) or len(arrays) > 3:
        return result
    O, lse = result[:2]
    return O, getattr(lse, "lse", lse)  # FlexAttention's AuxOutput has it


class Convention(NamedTuple):
    """How a well-known function is called, and what it promises.

    keywords  (q, k, the kit's keywords, and the adapter's) -> what the function is given besides
              its arrays
    promises  fields of the Spec
    packages  whose arrays it takes
    adapter   makes a function on packs or pages one on batches, as the kit has them; None: it takes
              batches
    page      rows of a page, by default; 0: it has none
    calls     (fn, its arrays, its keywords) -> what it returns
    """

    keywords: Callable[..., dict[str, Any]]
    promises: Mapping[str, Any]
    packages: tuple[str, ...] = ("torch",)
    adapter: Callable[..., Callable[..., Any]] | None = None
    page: int = 0
    calls: Callable[..., Any] = _called

    def call(self, fn: Any, *arrays: Any, seed: int | None = None, **keywords: Any) -> Any:
        """Return what `fn` does. A `seed` seeds torch's generators for the call; their state is
        restored.
        """
        given = self.keywords(*arrays[:2], **keywords)
        if seed is None:
            return self.calls(fn, arrays, given)
        if not type(arrays[0]).__module__.startswith("torch"):
            raise ValueError(
                f"seed is {shown(seed)}; expected none: in a convention only torch's generator has "
                "one"
            )
        torch: Any = importlib.import_module("torch")
        with torch.random.fork_rng(
            devices=[arrays[0].device] if arrays[0].device.type == "cuda" else []
        ):
            torch.manual_seed(seed)
            return self.calls(fn, arrays, given)

    def adapted(self, fn: Callable[..., Any], page: int) -> Callable[..., Any]:
        """Return a function on the arrays that this one takes as one on batches."""
        if self.adapter is None:
            return fn
        return self.adapter(fn, page=page) if page else self.adapter(fn)


# --------------------------------------------------------------------------------------------------
# PyTorch


def _sdpa(
    q: Any,
    k: Any,
    causal: bool = False,
    scale: float | None = None,
    mask: Any = None,
    dropout_p: float = 0.0,
    bias: Any = None,
) -> dict[str, Any]:
    keywords = _given(
        scale=scale, dropout_p=dropout_p or None, enable_gqa=q.shape[1] != k.shape[1] or None
    )
    if bias is not None:
        if causal:
            tril = bias.new_ones(q.shape[-2], k.shape[-2]).bool().tril()
            mask = tril if mask is None else mask & tril
        if mask is not None:
            bias = bias + bias.new_zeros(mask.shape).masked_fill(~mask, float("-inf"))
        keywords["attn_mask"] = bias
    elif mask is not None:
        mask = mask[(None,) * (4 - mask.ndim)]  # its flash backend takes masks of 2 or 4 axes
        keywords["attn_mask"] = (
            mask & mask.new_ones(q.shape[-2], k.shape[-2]).tril() if causal else mask
        )
    elif causal:
        keywords["is_causal"] = True
    return keywords


def _flex(
    q: Any,
    k: Any,
    causal: bool = False,
    scale: float | None = None,
    mask: Any = None,
    bias: Any = None,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi_slopes: Any = None,
) -> dict[str, Any]:
    """Return a block mask of all that forbids, and a score_mod of all that changes scores, in
    the kit's order.
    """
    torch: Any = importlib.import_module("torch")
    flex: Any = importlib.import_module("torch.nn.attention.flex_attention")
    shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    every = {name: a.expand(shape) for name, a in (("mask", mask), ("bias", bias)) if a is not None}
    left, right = (side if side >= 0 else sum(shape) for side in (window or (-1, -1)))

    def allowed(b: Any, h: Any, i: Any, j: Any) -> Any:
        near = (i - j <= left) & (j - i <= right)
        near = near & (i >= j) if causal else near
        return near & every["mask"][b, h, i, j] if mask is not None else near

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        s = s if softcap is None else softcap * torch.tanh(s / softcap)
        s = s if alibi_slopes is None else s - alibi_slopes[h] * (i + shape[3] - shape[2] - j).abs()
        return s if bias is None else s + every["bias"][b, h, i, j]

    keywords = _given(scale=scale, enable_gqa=q.shape[1] != k.shape[1] or None)
    if causal or mask is not None or window is not None:
        keywords["block_mask"] = flex.create_block_mask(allowed, *shape, device=q.device)
    if any(each is not None for each in (softcap, alibi_slopes, bias)):
        keywords["score_mod"] = score
    return keywords


# --------------------------------------------------------------------------------------------
# FlashAttention, and pages


def _flash_attn(
    q: Any,
    k: Any,
    causal: bool = False,
    scale: float | None = None,
    mask: Any = None,
    dropout_p: float = 0.0,
    window: tuple[int, int] | None = None,
    **given: Any,
) -> dict[str, Any]:
    if mask is not None:
        raise ValueError("mask is given; expected none, which flash_attn does not take")
    return given | _given(
        softmax_scale=scale, window_size=window, causal=causal or None, dropout_p=dropout_p or None
    )


def _flashinfer(
    q: Any, cache: Any, scale: float | None = None, softcap: float | None = None, **given: Any
) -> dict[str, Any]:
    return given | _given(sm_scale=scale, logits_soft_cap=softcap)


def _planned(layout: str, fn: Any, arrays: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Return what a wrapper of FlashInfer's does that is planned and run; a function is called."""
    if not hasattr(fn, "plan"):
        return _called(fn, arrays, keywords)
    q, cache = arrays
    lists = ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
    page, heads = cache.shape[2:4] if layout == "NHD" else cache.shape[3:1:-1]
    more = {name: value for name, value in keywords.items() if name not in lists}
    fn.plan(
        *map(keywords.get, lists), q.shape[1], heads, q.shape[2], page, q_data_type=q.dtype, **more
    )
    return fn.run(q, cache, return_lse=True)


# --------------------------------------------------------------------------------------------------
# ONNX


def _onnx(
    q: Any,
    k: Any,
    causal: bool = False,
    mask: Any = None,
    bias: Any = None,
    softcap: float | None = None,
    window: tuple[int, int] | None = None,
) -> dict[str, Any]:
    left, right = (None, None) if window is None else window
    sides = {"left_window_size": left, "right_window_size": right}
    keywords = _given(is_causal=1 if causal else None, softcap=softcap, **sides)
    added = (
        mask
        if bias is None
        else bias
        if mask is None
        else np.where(mask, bias, np.asarray(-np.inf, bias.dtype))
    )
    if added is None:
        return keywords
    # a last axis of 1 would be padded by −∞, and not broadcast
    return keywords | {"attn_mask": np.broadcast_to(added, (*added.shape[:-1], k.shape[2]))}


def _operator(fn: Any, arrays: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Return the first output of an operator, whose inputs come by position and whose attributes
    by name.
    """
    inputs = [keywords[name] for name in ("attn_mask",) if name in keywords]
    result = fn(
        *arrays, *inputs, **{name: value for name, value in keywords.items() if name != "attn_mask"}
    )
    return result[0] if isinstance(result, tuple | list) else result


# --------------------------------------------------------------------------------------------------
# all of them

TORCH: Mapping[str, Any] = {
    "dtypes": ("float32", "float16", "bfloat16"),
    "causal": "top_left",
    **dict.fromkeys(("gqa", "masks", "scale", "d_v"), True),
}
FLASH: Mapping[str, Any] = {
    "dtypes": ("float16", "bfloat16"),
    "block": (128, 128),
    "causal": "bottom_right",
    "gqa": True,
    "scale": True,
    "head_dims": tuple(range(8, 257, 8)),
    "strides": "contiguous",
}
_FLASHINFER = {**FLASH, "lse": "base2", "head_dims": (64, 128, 256)}
_ONNX = {
    **dict.fromkeys(("causal", "window"), "top_left"),
    **dict.fromkeys(("gqa", "masks", "bias", "softcap", "d_v"), True),
}
_ANY = ("torch", "numpy")
CONVENTIONS = {
    "sdpa": Convention(_sdpa, {**TORCH, "zero_keys": True}),
    "flex_attention": Convention(
        _flex,
        {
            **TORCH,
            "window": "top_left",
            "bias": True,
            "softcap": True,
            "alibi": True,
            "block": (128, 128),
        },
    ),
    "flash_attn": Convention(_flash_attn, {**FLASH, "layout": "BNHD"}, _ANY),
    "flash_attn_varlen": Convention(_flash_attn, FLASH, _ANY, varlen),
    "flash_attn_with_kvcache": Convention(_flash_attn, FLASH, _ANY, paged, page=256),
    "vllm": Convention(_flash_attn, FLASH, _ANY, vllm, page=16),
    "flashinfer": Convention(
        _flashinfer, _FLASHINFER, _ANY, flashinfer, 16, partial(_planned, "NHD")
    ),
    "flashinfer_hnd": Convention(
        _flashinfer,
        _FLASHINFER,
        _ANY,
        partial(flashinfer, layout="HND"),
        16,
        partial(_planned, "HND"),
    ),
    "onnx": Convention(_onnx, _ONNX, ("numpy",), calls=_operator),
}

"""`CONVENTIONS`: how well-known functions are called, and what they promise, a record each."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from flashsim.attention.arguments import short_repr
from flashsim.testing.adapters import flashinfer, paged, varlen, vllm


def _without_none(**options: Any) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def _call(fn: Any, arrays: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Return the result of `fn`; of a forward function O, or (O, lse), alone."""
    result = fn(*arrays, **keywords)
    if not isinstance(result, tuple | list) or len(arrays) > 3:
        return result
    O, lse = result[:2]
    return O, getattr(lse, "lse", lse)  # FlexAttention's AuxOutput has it


class Convention(NamedTuple):
    """How a well-known function is called, and what it promises.

    keywords  (q, k, the kit's keywords, and the adapter's) -> the function's keywords
    promises  fields of the Spec
    packages  whose arrays it takes
    adapter   makes a function of a batch from one of packs or pages; None: it takes a batch
    page      rows of a page by default; 0: it has no pages
    calls     (fn, its arrays, its keywords) -> its result
    """

    keywords: Callable[..., dict[str, Any]]
    promises: Mapping[str, Any]
    packages: tuple[str, ...] = ("torch",)
    adapter: Callable[..., Callable[..., Any]] | None = None
    page: int = 0
    calls: Callable[..., Any] = _call

    def call(self, fn: Any, *arrays: Any, seed: int | None = None, **keywords: Any) -> Any:
        """Return the result of `fn`. A `seed` seeds torch's generators for the call; their state is
        restored.
        """
        options = self.keywords(*arrays[:2], **keywords)
        if seed is None:
            return self.calls(fn, arrays, options)
        if not type(arrays[0]).__module__.startswith("torch"):
            raise ValueError(
                f"seed is {short_repr(seed)}; expected none: in a convention only torch's "
                "generator has one"
            )
        torch: Any = importlib.import_module("torch")
        device = arrays[0].device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            return self.calls(fn, arrays, options)

    def of_batch(self, fn: Callable[..., Any], page: int) -> Callable[..., Any]:
        """Return a function of a batch that calls `fn`."""
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
    grouped = q.shape[1] != k.shape[1]
    keywords = _without_none(scale=scale, dropout_p=dropout_p or None, enable_gqa=grouped or None)
    N_q = q.shape[-2]
    N_k = k.shape[-2]
    if bias is not None:
        if causal:
            tril = bias.new_ones(N_q, N_k).bool().tril()
            mask = tril if mask is None else mask & tril
        if mask is not None:
            bias = bias + bias.new_zeros(mask.shape).masked_fill(~mask, float("-inf"))
        keywords["attn_mask"] = bias
    elif mask is not None:
        mask = mask[(None,) * (4 - mask.ndim)]  # its flash backend takes masks of 2 or 4 axes
        if causal:
            mask = mask & mask.new_ones(N_q, N_k).tril()
        keywords["attn_mask"] = mask
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
    """Return a block mask of causal, mask and window, and a score_mod of soft cap, slopes and bias,
    in the kit's order.
    """
    torch: Any = importlib.import_module("torch")
    flex: Any = importlib.import_module("torch.nn.attention.flex_attention")
    B, H_q, N_q, _ = q.shape
    N_k = k.shape[2]
    shape = (B, H_q, N_q, N_k)
    whole_mask = None if mask is None else mask.expand(shape)
    whole_bias = None if bias is None else bias.expand(shape)
    left, right = (side if side >= 0 else sum(shape) for side in (window or (-1, -1)))

    def mask_mod(b: Any, h: Any, i: Any, j: Any) -> Any:
        allowed = (i - j <= left) & (j - i <= right)
        if causal:
            allowed = allowed & (i >= j)
        if whole_mask is not None:
            allowed = allowed & whole_mask[b, h, i, j]
        return allowed

    def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        if softcap is not None:
            s = softcap * torch.tanh(s / softcap)
        if alibi_slopes is not None:
            s = s - alibi_slopes[h] * (i + N_k - N_q - j).abs()
        if whole_bias is not None:
            s = s + whole_bias[b, h, i, j]
        return s

    grouped = q.shape[1] != k.shape[1]
    keywords = _without_none(scale=scale, enable_gqa=grouped or None)
    if causal or mask is not None or window is not None:
        keywords["block_mask"] = flex.create_block_mask(mask_mod, *shape, device=q.device)
    if any(option is not None for option in (softcap, alibi_slopes, bias)):
        keywords["score_mod"] = score_mod
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
    **others: Any,
) -> dict[str, Any]:
    if mask is not None:
        raise ValueError("mask is given; expected none, which flash_attn does not take")
    return others | _without_none(
        softmax_scale=scale, window_size=window, causal=causal or None, dropout_p=dropout_p or None
    )


def _flashinfer(
    q: Any, cache: Any, scale: float | None = None, softcap: float | None = None, **others: Any
) -> dict[str, Any]:
    return others | _without_none(sm_scale=scale, logits_soft_cap=softcap)


def _plan_and_run(layout: str, fn: Any, arrays: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Return the result of a wrapper of FlashInfer, which is planned and run, or of a function."""
    if not hasattr(fn, "plan"):
        return _call(fn, arrays, keywords)
    q, cache = arrays
    names = ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
    lists = [keywords.get(name) for name in names]
    options = {name: value for name, value in keywords.items() if name not in names}
    if layout == "NHD":
        page, H_kv = cache.shape[2:4]
    else:
        H_kv, page = cache.shape[2:4]
    fn.plan(*lists, q.shape[1], H_kv, q.shape[2], page, q_data_type=q.dtype, **options)
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
    keywords = _without_none(
        is_causal=1 if causal else None,
        softcap=softcap,
        left_window_size=left,
        right_window_size=right,
    )
    attn_mask = mask
    if bias is not None:
        attn_mask = bias
        if mask is not None:
            attn_mask = np.where(mask, bias, np.asarray(-np.inf, bias.dtype))
    if attn_mask is not None:
        # a last axis of 1 would be padded by −∞, and not broadcast
        shape = (*attn_mask.shape[:-1], k.shape[2])
        keywords["attn_mask"] = np.broadcast_to(attn_mask, shape)
    return keywords


def _operator(fn: Any, arrays: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Return the first output of an operator. It takes its inputs by position, and its attributes
    by name.
    """
    inputs = list(arrays)
    attributes = dict(keywords)
    if "attn_mask" in attributes:
        inputs.append(attributes.pop("attn_mask"))
    result = fn(*inputs, **attributes)
    return result[0] if isinstance(result, tuple | list) else result


# --------------------------------------------------------------------------------------------------
# all of them

TORCH: Mapping[str, Any] = {
    "dtypes": ("float32", "float16", "bfloat16"),
    "causal": "top_left",
    "gqa": True,
    "masks": True,
    "scale": True,
    "d_v": True,
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
    "causal": "top_left",
    "window": "top_left",
    "gqa": True,
    "masks": True,
    "bias": True,
    "softcap": True,
    "d_v": True,
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
        _flashinfer, _FLASHINFER, _ANY, flashinfer, 16, partial(_plan_and_run, "NHD")
    ),
    "flashinfer_hnd": Convention(
        _flashinfer,
        _FLASHINFER,
        _ANY,
        partial(flashinfer, layout="HND"),
        16,
        partial(_plan_and_run, "HND"),
    ),
    "onnx": Convention(_onnx, _ONNX, ("numpy",), calls=_operator),
}

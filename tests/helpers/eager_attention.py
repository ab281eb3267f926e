"""Attentions without a kernel of their own, in the operators of PyTorch, JAX or NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flashsim.profiling import fused

LARGEST = {"torch": "amax", "jax": "max", "numpy": "max"}
"""The function that returns the largest elements of an axis."""


def library(name: str) -> Any:
    """Return the module of operators of "torch", "jax" or "numpy", which is installed."""
    if name == "torch":
        import torch

        return torch
    if name == "jax":
        import jax.numpy

        return jax.numpy
    import numpy as np

    return np


def softmax_attention(name: str, group: str | None = None) -> Callable[..., Any]:
    """Return softmax(QKᵀ) V in a library's operators; those of the softmax are fused under the name
    `group`.
    """
    operators = library(name)
    largest = getattr(operators, LARGEST[name])

    def softmax(S: Any) -> Any:
        E = operators.exp(S - largest(S, axis=-1, keepdims=True))
        return E / operators.sum(E, axis=-1, keepdims=True)

    def attention(q: Any, k: Any, v: Any) -> Any:
        S = operators.matmul(q, k.swapaxes(-1, -2))
        if group is None:
            P = softmax(S)
        else:
            with fused(group):
                P = softmax(S)
        return operators.matmul(P, v)

    return attention


def repeat_heads(tensor: Any, times: int) -> Any:
    """Return (B, H · times, N, d) from (B, H, N, d): each KV head, as often as queries share it."""
    batch, heads, rows, width = tensor.shape
    if times == 1:
        return tensor
    copies = tensor[:, :, None].expand(batch, heads, times, rows, width)
    return copies.reshape(batch, heads * times, rows, width)


def model_attention(
    query: Any, key: Any, value: Any, mask: Any = None, scaling: float = 1.0, groups: int = 1
) -> tuple[Any, Any]:
    """Return O of (B, N, H, d), and P: attention as libraries of models write it for PyTorch."""
    from torch.nn import functional

    key = repeat_heads(key, groups)
    value = repeat_heads(value, groups)
    weights = query @ key.transpose(2, 3) * scaling
    if mask is not None:
        weights = weights + mask[:, :, :, : key.shape[-2]]
    weights = functional.softmax(weights, dim=-1, dtype=weights.dtype)
    weights = functional.dropout(weights, p=0.0, training=False)
    output = weights @ value
    return output.transpose(1, 2).contiguous(), weights

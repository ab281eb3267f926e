"""The contestants of a benchmark (our kernels, unfused attention, PyTorch's backends,
FlashAttention) and its problems.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from flashsim.attention.masks.patterns import butterfly
from flashsim.attention.masks.rules import SlidingWindow
from flashsim.attention.qkv import SAMPLE
from flashsim.gpu import hopper, hopper_fp8
from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.kernel import Kernel
from flashsim.gpu.machine import torch_if_there, version
from flashsim.gpu.rungs import ladder

Call = Callable[[], Any]
TORCH = {
    "torch_unfused": "",
    "torch_math": "MATH",
    "torch_flash": "FLASH_ATTENTION",
    "torch_cudnn": "CUDNN_ATTENTION",
}
"""Backends of PyTorch's scaled_dot_product_attention. "" is unfused attention written in
PyTorch, the paper's baseline.
"""
FA3 = "fa3"
FA4 = "fa4"
PACKAGES = {FA3: "tokenspeed-fa3", FA4: "flash-attn-4"}
"""FlashAttention-3, of which that package has the forward pass only, and FlashAttention-4. They
take part if installed.
"""
SPARSE: dict[str, dict[str, Any]] = {
    "hopper_window": {"mask": SlidingWindow(128, 127)},
    "hopper_butterfly": {"block_mask": butterfly},
}
"""Sparse attention, forward, by `hopper`, which the paper's Figure 3 compares too. These take
part only if asked for.
"""
PEERS = (*TORCH, *PACKAGES)
NAMES = (*ladder(), *SPARSE, *PEERS)
LONGEST = {"torch_unfused": 16_384, "torch_math": 16_384}
"""Beyond these lengths the N × N matrices are not worth the time. For our kernels,
`Kernel.longest` says so.
"""
TOKENS = 16_384
HEADS = 16
DISTRIBUTIONS = {
    "normal": "normal numbers, so that scores have standard deviation 1",
    "wide": "normal, with Q 9 times as large, so that scores have standard deviation 9",
    "growing": (
        "normal, but keys grow from 1 times to 9 times towards the first key, which kernels read "
        "last"
    ),
    "sink": "normal, but the first key's scores are 16 above all others",
    "captured": "Q, K, V of a real model, the bundled sample, repeated over heads and tokens",
}
"""What Q, K and V are drawn from. They differ in how much the rows' maxima grow as keys are
read.
"""
LARGE = 9.0
SINK = 16.0


@dataclass(frozen=True)
class Setting:
    """One problem: self-attention of B sequences of N tokens in H heads, with numbers of a
    distribution.
    """

    N: int
    d: int
    causal: bool = False
    direction: str = "forward"
    dtype: str = "float16"
    B: int = 0
    H: int = HEADS
    dropout_p: float = 0.0
    distribution: str = "normal"

    @property
    def batch(self) -> int:
        """B; by default, B·N is 16,384."""
        return self.B or max(TOKENS // self.N, 1)

    @property
    def flops(self) -> float:
        """4·B·H·N²·d forward, 2.5 times that backward, about half if causal, as authors of
        kernels usually count.
        """
        pairs = self.N * (self.N + 1) / 2 if self.causal else self.N**2
        return (
            4
            * self.batch
            * self.H
            * pairs
            * self.d
            * (2.5 if self.direction == "backward" else 1.0)
        )

    def __str__(self) -> str:
        causal = ", causal" if self.causal else ""
        sizes = f"N = {self.N:,}, d = {self.d}, B = {self.batch}, H = {self.H}, {self.dtype}"
        return f"{self.direction}, {sizes}{causal}, {self.distribution}"


def settings(
    lengths: Iterable[int],
    head_dims: Iterable[int],
    causal: Iterable[bool] = (False, True),
    directions: Iterable[str] = ("forward", "backward"),
    **others: Any,
) -> list[Setting]:
    """Return all combinations, the shortest first; `others` are fields of each."""
    return [Setting(*each, **others) for each in product(lengths, head_dims, causal, directions)]


def contestants(
    setting: Setting, requested_names: Sequence[str]
) -> Iterator[tuple[str, Callable[[], Call]]]:
    """Yield names, and what makes a call of each. Making it may fail, too."""
    usual = [
        name for name in NAMES if name not in SPARSE and _longest(name, setting.N) >= setting.N
    ]
    names = [name for name in NAMES if name in requested_names] if requested_names else usual
    torch = torch_if_there()
    for name in names:
        if name in ladder():
            if _can(ladder()[name], setting):
                yield name, partial(_ours, name, setting)
        elif name in SPARSE:
            if setting.direction == "forward" and not setting.causal:
                yield name, partial(_ours, "hopper", setting, **SPARSE[name])
        elif torch is None or (name in PACKAGES and version(PACKAGES[name]) is None):
            continue
        elif setting.direction == "backward" and (
            name == FA3 or (name == FA4 and name not in requested_names)
        ):
            # FlashAttention-3's is not in the package, and FlashAttention-4's may not return: see
            # `absent`
            continue
        elif name in PACKAGES:
            yield name, partial(_flash_attention, name, setting, torch)
        else:
            yield name, partial(_torchs, TORCH[name], setting, torch)


def absent(names: Sequence[str]) -> dict[str, str]:
    """Return why peers do not take part on this machine, by name. `requested_names` are those that
    the user named, if any.
    """
    if torch_if_there() is None:
        return dict.fromkeys(PEERS, "PyTorch is not installed, or sees no GPU")
    reasons = {
        name: f"{package} is not installed"
        for name, package in PACKAGES.items()
        if version(package) is None
    }
    if FA3 not in reasons:
        reasons[f"{FA3}, backward"] = f"{PACKAGES[FA3]} has the forward pass only"
    if FA4 not in reasons and FA4 not in names:
        reasons[f"{FA4}, backward"] = "it may not return; --only fa4 asks for it"
    return reasons


def share(name: str, setting: Setting) -> float:
    """Return the part of S's elements that a contestant computes, from 0 to 1."""
    N = setting.N
    more = SPARSE.get(name, {})
    if "mask" in more:
        rows = np.arange(N)
        window = more["mask"]
        keys = np.minimum(rows, window.left) + 1 + np.minimum(N - 1 - rows, window.right)
        return float(keys.sum()) / N**2
    if "block_mask" in more:
        rows, columns = (
            np.diff([*range(0, N, B), N]) for B in hopper.choose_tiles(setting.d, "LISTED").blocks
        )
        return float(rows @ more["block_mask"](len(rows), len(columns)) @ columns) / N**2
    return 1.0


def _longest(name: str, otherwise: int) -> int:
    own = ladder()[name].longest if name in ladder() else LONGEST.get(name)
    return otherwise if own is None else own


def dtype_of(rung: Kernel, setting: Setting) -> str:
    """Return the setting's dtype, or the 8-bit dtype of a kernel that takes nothing else."""
    return rung.dtypes[0] if rung.output else setting.dtype


def _can(rung: Kernel, setting: Setting) -> bool:
    """Say whether a rung can run the setting."""
    shape = setting.batch, setting.H, setting.N, setting.d
    lacks = (
        rung.unsuited and rung.unsuited(shape, shape),
        setting.causal and "causal" not in rung.takes,
        setting.dropout_p and "dropout_p" not in rung.takes,
        setting.direction == "backward" and rung.backward is None,
        rung.output and setting.d not in rung.head_dims,
    )
    return not any(lacks)


def arrays(setting: Setting, count: int, dtype: str = "") -> list[Any]:
    """Return `count` arrays with the shape of a setting's q: Q, K, V of its distribution, and a
    normal dO.
    """
    cupy = import_cupy()
    rng = cupy.random.default_rng(0)
    shape = setting.batch, setting.H, setting.N, setting.d
    normals = [rng.standard_normal(shape, dtype=cupy.float32) for _ in range(count)]
    normals[:3] = drawn(setting, normals[:3], cupy)
    if dtype == hopper_fp8.NAME:
        return [hopper_fp8.to_fp8(x) for x in normals]
    return [x.astype(dtype or setting.dtype) for x in normals]


def drawn(setting: Setting, normal: Sequence[Any], xp: Any) -> list[Any]:
    """Return Q, K, V of a setting's distribution, made of normal numbers (B, H, N, d), as arrays
    of the module xp.
    """
    (Q, K, V), d = normal, setting.d
    if setting.distribution == "wide":
        Q = Q * xp.float32(LARGE)
    elif setting.distribution == "growing":
        K = K * xp.linspace(LARGE, 1.0, setting.N, dtype="float32")[:, None]
    elif setting.distribution == "sink":
        # Q's first column is positive, and the first key is nonzero in that column alone
        Q[..., 0] = abs(Q[..., 0]) * 0.1 + 4.0
        K[..., 0] = 0.0
        K[:, :, 0] = 0.0
        K[:, :, 0, 0] = SINK * d**0.5 / 4.0
    elif setting.distribution == "captured":
        return [xp.asarray(x) for x in captured(setting)]
    return [Q, K, V]


def captured(setting: Setting) -> list[Any]:
    """Return the bundled Q, K, V as (B, H, N, d): its heads, tokens and columns are repeated until
    they fill that shape.

    Columns repeated n times make Q Kᵀ n times as large. Q is scaled so that τ Q Kᵀ is the sample's.
    """
    sample = np.load(SAMPLE)
    attend = sample["attend"]
    B = setting.batch
    H = setting.H
    N = setting.N
    d = setting.d
    outputs = []
    for name in "qkv":
        x = sample[name].astype(np.float32)[:, attend]  # (heads, tokens, width)
        width = x.shape[-1]
        x = np.take(
            np.take(x, np.arange(B * H) % len(x), axis=0), np.arange(N) % x.shape[1], axis=1
        )
        outputs.append(np.tile(x, d // width).reshape(B, H, N, d))
    outputs[0] *= (width / d) ** 0.5
    return outputs


def _ours(name: str, setting: Setting, **more: Any) -> Call:
    from flashsim import gpu

    q, k, v, do = arrays(setting, 4, dtype_of(ladder()[name], setting))
    options: dict[str, Any] = {
        "kernel": name,
        "causal": setting.causal,
        "dropout_p": setting.dropout_p,
        "seed": 1,
    } | more
    if setting.direction == "forward":
        return lambda: gpu.forward(q, k, v, **options)
    o, lse = gpu.forward(q, k, v, return_lse=True, **options)
    return lambda: gpu.backward(q, k, v, o, lse, do, **options)


def _torchs(backend: str, setting: Setting, torch: Any) -> Call:
    attention = _fused(backend, setting) if backend else _unfused(setting, torch)
    return _peer(attention, setting, torch)


def _flash_attention(name: str, setting: Setting, torch: Any) -> Call:
    """Return a call of FlashAttention-3 or -4, whose arrays are (B, N, H, d)."""
    if setting.dropout_p:
        raise ValueError(f"{name} has no dropout")
    if name == FA3:
        from flash_attn_interface import flash_attn_func
    else:
        from flash_attn.cute import flash_attn_func

    def attention(q: Any, k: Any, v: Any) -> Any:
        output = flash_attn_func(q, k, v, causal=setting.causal)
        return output[0] if isinstance(output, tuple) else output

    return _peer(attention, setting, torch, rows_first=True)


def _peer(
    attention: Callable[..., Any], setting: Setting, torch: Any, *, rows_first: bool = False
) -> Call:
    """Return a call of attention, or of its backward pass, on our numbers as tensors: (B, N, H,
    d) if `rows_first`.
    """
    backward = setting.direction == "backward"
    calls = (
        torch.from_dlpack(x).to(getattr(torch, setting.dtype))
        for x in arrays(setting, 3, "float32")
    )
    laid = (x.transpose(1, 2).contiguous() if rows_first else x for x in calls)
    q, k, v = (x.requires_grad_(backward) for x in laid)
    if not backward:
        return partial(attention, q, k, v)
    o = attention(q, k, v)
    do = torch.randn_like(o)
    return lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True)


def _fused(backend: str, setting: Setting) -> Callable[..., Any]:
    """Return PyTorch's scaled_dot_product_attention with this backend."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def attention(q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return scaled_dot_product_attention(
                q, k, v, is_causal=setting.causal, dropout_p=setting.dropout_p
            )

    return attention


def _unfused(setting: Setting, torch: Any, device: str = "cuda") -> Callable[..., Any]:
    """Return unfused attention in PyTorch: products, scale, mask, softmax and dropout, one call
    each.
    """
    from torch.nn.functional import dropout, softmax

    above = (
        torch.ones(setting.N, setting.N, dtype=torch.bool, device=device).triu(1)
        if setting.causal
        else None
    )

    def attention(q: Any, k: Any, v: Any) -> Any:
        S = (q @ k.transpose(-2, -1)) * setting.d**-0.5
        if above is not None:
            S = S.masked_fill(above, -math.inf)
        P = softmax(S, -1)
        if setting.dropout_p:
            P = dropout(P, setting.dropout_p)
        return P @ v

    return attention

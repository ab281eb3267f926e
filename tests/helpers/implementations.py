"""Correct attentions, as the test kit takes them: this package's own, plain NumPy ones, and those
of PyTorch, JAX and Triton.

    from tests.helpers.implementations import IMPLEMENTATIONS

    subject = IMPLEMENTATIONS["flash"].build()
    check_attention(subject.fn, subject.spec, backward=subject.backward, dropout=subject.keep)

Each declares what it truly promises. Packages are imported when an attention of theirs is built,
not before.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

import flashsim
from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.attention.inputs import Array
from flashsim.attention.masks.dropout import keep_mask
from flashsim.testing import Report, Spec, check_attention, wrap
from flashsim.testing.mutants import BASES

if TYPE_CHECKING:
    import triton.language as tl  # at run time `_triton` imports it

BLOCKS = dict.fromkeys(FORWARD, (4, 3))
# One query at a time, log L rounded after every block of keys: of 3 keys each, a row of 4,100 is
# off by more than a Spec can say (`reference.error_bound` allows for it, logs_kept=True), by up to
# 4 times its budget where scores are large.
BLOCKS["memory_efficient"] = (1, 64)
BLOCKS["small_cache"] = (16, 16)  # a column at a time: slow in Python with smaller tiles
BLOCKS["small_cache_hybrid"] = (16, 8)
# a column at a time, and log L rounded as in memory_efficient
BLOCKS["streamed"] = BLOCKS["hybrid_streamed"] = (128, 64)
BLOCKS["tiles_streamed"] = (1024, 64)  # an element at a time
AMPLE = 10**6  # elements of SRAM


@dataclass(frozen=True)
class Subject:
    """An attention under test: arguments of `check_attention`."""

    fn: Callable[..., Any]
    spec: Spec
    backward: Callable[..., Any] | None = None
    keep: Callable[..., Any] | None = None
    expected_failures: Mapping[str, str] = field(default_factory=dict)

    def check(self, **options: Any) -> Report:
        """Check it. Expected failures may be too rare to be seen in few examples."""
        return check_attention(
            self.fn,
            self.spec,
            backward=self.backward,
            dropout=self.keep,
            expected_failures=self.expected_failures,
            on_fail="return",
            **options,
        )


@dataclass(frozen=True)
class Implementation:
    """How to build an attention.

    about     what it is
    packages  that it needs besides this one's own, the one whose version counts first
    share     of the examples asked for that it is given: interpreters are slow
    """

    about: str
    build: Callable[[], Subject]
    packages: tuple[str, ...] = ()
    share: float = 1.0

    @property
    def missing(self) -> str:
        """Why it cannot be built here, or nothing."""
        return ", ".join(
            f"{name} is not installed" for name in self.packages if find_spec(name) is None
        )


# -------------------------------------------------------------------------------------------------
# this package's own

RECOMBINED = (
    "Appendix B.5 forms dP − D by way of a block's own D_j, and loses what is small against D_j: "
    "with dropout D can be, "
    "where the heaviest keys are dropped. `reference.gradient_bounds` allows for that "
    "(recombined=True), a Spec cannot say it"
)


def _own(name: str) -> Subject:
    algorithm = FORWARD[name]
    keeps_logs = not {"l", "L"}.isdisjoint(algorithm.returns)
    plain = "MASK" not in algorithm.parts
    stores = (
        "scores"
        if algorithm.stores_scores
        else "output_per_block"
        if algorithm.rounds(2) == 2
        else "output"
    )
    spec = Spec(
        dtypes=("float32", "float16", "bfloat16", "float64"),
        block=BLOCKS[name],
        causal=None if plain else "bottom_right",
        lse="natural" if keeps_logs else None,
        gqa=True,
        masks=not plain,
        scale=True,
        d_v=True,
        stores=stores,
    )
    return Subject(
        _named(name, partial(_own_forward, name)),
        spec,
        partial(_own_backward, name) if name in BACKWARD else None,
        _keep if "dropout" in algorithm.parts else None,
        {"dropout_gradients": RECOMBINED} if name in BACKWARD and BACKWARD[name].recombines else {},
    )


def _run(name: str, q: Array, k: Array, v: Array, **options: Any) -> Any:
    options |= {"blocks": BLOCKS[name], "M": AMPLE, "check_finite": False}
    return flashsim.forward(name, q, k, v, **options)


def _own_forward(name: str, q: Array, k: Array, v: Array, **options: Any) -> Any:
    run = _run(name, q, k, v, **options)
    # where S or its statistics were stored, so is their rounding
    return run.O if FORWARD[name].lse else (run.O, run.lse)


def _own_backward(
    name: str, q: Array, k: Array, v: Array, do: Array, **options: Any
) -> tuple[Array, Array, Array]:
    run = _run(name, q, k, v, **options)
    result = flashsim.backward(name, run, do, check_finite=False)
    return result.dQ, result.dK, result.dV


def _keep(shape: tuple[int, int, int, int], dropout_p: float, seed: int) -> Array:
    B, H, N_q, N_k = shape
    heads = [keep_mask(seed, dropout_p, N_q, N_k, head) for head in range(B * H)]
    return np.array(heads).reshape(shape)


def _named(name: str, fn: Any) -> Any:
    fn.__qualname__ = fn.__name__ = name
    return fn


def _numpy(name: str) -> Subject:
    base = BASES[name]
    return Subject(base, base.spec, base.backward, base.keep)


# --------------------------------------------------------------------------------------------------
# PyTorch

ZERO_TIMES_NAN = (
    "a masked key's weight is 0, and 0 · NaN is NaN: masking sets scores to −∞, values stay in the "
    "product "
    "(pytorch/pytorch#101967)"
)


def _sdpa(backend: str | None) -> Subject:
    import torch

    fn = torch.nn.functional.scaled_dot_product_attention
    if backend is not None:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        plain = fn
        forced = getattr(SDPBackend, backend)

        def fn(*args: Any, **options: Any) -> Any:
            with sdpa_kernel(forced):
                return plain(*args, **options)

    wrapped = wrap(
        _named("scaled_dot_product_attention", fn) if backend else fn, "torch", convention="sdpa"
    )
    narrow: dict[str, Any] = (
        {"d_v": False, "strides": "last_contiguous"} if backend == "FLASH_ATTENTION" else {}
    )
    return Subject(
        wrapped,
        wrapped.spec(**narrow),
        wrapped.backward,
        expected_failures=dict.fromkeys(("masked_kv_poison", "backward_poison"), ZERO_TIMES_NAN),
    )


# --------------------------------------------------------------------------------------------------
# JAX

FINITE_MASK = (
    "a masked key's score is set to a large negative number and its weight is 0, but 0 · NaN is "
    "NaN: its value stays in the "
    "product (jax/_src/nn/functions.py, _apply_masks)"
)


def _jax() -> Subject:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax

    eager = jax.nn.dot_product_attention
    compiled = jax.jit(eager, static_argnames=("is_causal",))

    def attend(
        q: Any, k: Any, v: Any, causal: bool = False, scale: float | None = None, mask: Any = None
    ) -> Any:
        scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        mask = None if mask is None else mask[(None,) * (4 - mask.ndim)]  # it wants four axes
        # jitted for the CPU, float16 is refused: no F16_F16_F32 there
        fn = eager if q.dtype == "float16" else compiled
        return fn(q, k, v, mask=mask, scale=scale, is_causal=causal)

    wrapped = wrap(_named("dot_product_attention", attend), "jax")
    spec = Spec(
        # its softmax is in float32 for float64 inputs, too
        dtypes=("float32", "float16", "bfloat16"),
        layout="BNHD",
        causal="top_left",
        empty_rows="mean",  # all scores of such a row are the same large negative number
        gqa=True,
        masks=True,
        scale=True,
        max_shapes=24,  # each is compiled anew
    )
    expected = dict.fromkeys(("masked_kv_poison", "backward_poison"), FINITE_MASK)
    return Subject(wrapped, spec, wrapped.backward, expected_failures=expected)


def _pallas() -> Subject:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from jax.experimental.pallas.ops.gpu.attention import BlockSizes, mha

    def blocks(N_q: int, N_k: int) -> Any:
        rows = max(n for n in range(1, 17) if N_q % n == 0)
        keys = max(n for n in range(1, 17) if N_k % n == 0)
        return BlockSizes(rows, keys, rows, keys, rows, keys)

    def attend(q: Any, k: Any, v: Any, causal: bool = False, residuals: bool = True) -> Any:
        how: dict[str, Any] = {
            "sm_scale": 1 / math.sqrt(q.shape[-1]),
            "causal": causal,
            "interpret": True,
        }
        result = mha(
            q,
            k,
            v,
            None,
            block_sizes=blocks(q.shape[1], k.shape[1]),
            return_residuals=residuals,
            **how,
        )
        return tuple(result) if residuals else result

    spec = Spec(
        dtypes=("float32", "float16", "bfloat16"),
        layout="BNHD",
        causal="top_left",
        lse="base2",
        cross=False,  # with N_q > N_k and causal=True it would read past the last key
        max_shapes=8,
    )
    forward = wrap(_named("mha", attend), "jax")
    backward = wrap(partial(attend, residuals=False), "jax").backward
    return Subject(forward, spec, backward)


# --------------------------------------------------------------------------------------------------
# Triton


def attention_kernel(
    Q: Any,
    K: Any,
    V: Any,
    O: Any,
    LSE: Any,
    scale: Any,
    N_q: Any,
    N_k: Any,
    group: Any,
    causal: tl.constexpr,
    d: tl.constexpr,
    d_padded: tl.constexpr,
    B_r: tl.constexpr,
    B_c: tl.constexpr,
) -> None:
    """FlashAttention's forward in Triton: one program per head and block of B_r queries."""
    head = tl.program_id(1)
    i = tl.program_id(0) * B_r + tl.arange(0, B_r)
    cols = tl.arange(0, d_padded)
    here = (i[:, None] < N_q) & (cols[None, :] < d)
    index = head * N_q * d + i[:, None] * d + cols[None, :]
    shared = (head // group) * N_k * d  # where the KV head begins
    q = tl.load(Q + index, mask=here, other=0.0)
    m = tl.full((B_r,), float("-inf"), tl.float32)
    l = tl.zeros((B_r,), tl.float32)
    o = tl.zeros((B_r, d_padded), tl.float32)
    for start in range(0, N_k, B_c):
        j = start + tl.arange(0, B_c)
        there = (j[:, None] < N_k) & (cols[None, :] < d)
        of_keys = shared + j[:, None] * d + cols[None, :]
        k = tl.load(K + of_keys, mask=there, other=0.0)
        v = tl.load(V + of_keys, mask=there, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        allowed = j[None, :] < N_k
        if causal:
            allowed = allowed & (j[None, :] <= i[:, None] + N_k - N_q)
        s = tl.where(allowed, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        finite = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp(s - finite[:, None])
        shrink = tl.exp(m - finite)
        l = shrink * l + tl.sum(p, 1)
        o = shrink[:, None] * o + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = m_new
    empty = l == 0
    o = o / tl.where(empty, 1.0, l)[:, None]
    lse = tl.where(empty, float("-inf"), m + tl.log(tl.where(empty, 1.0, l)))
    tl.store(O + index, o.to(O.dtype.element_ty), mask=here)
    tl.store(LSE + head * N_q + i, lse, mask=i < N_q)


def _triton() -> Subject:
    global tl  # the kernel's own name for it
    os.environ["TRITON_INTERPRET"] = "1"
    import torch
    import triton
    import triton.language as tl

    kernel = triton.jit(attention_kernel)

    def attend(q: Any, k: Any, v: Any, causal: bool = False, scale: float | None = None) -> Any:
        q, k, v = (a.contiguous() for a in (q, k, v))
        B, H, N_q, d = q.shape
        o = torch.empty_like(q)
        lse = torch.empty((B, H, N_q), dtype=torch.float32)
        scale = 1 / math.sqrt(d) if scale is None else scale
        group = H // k.shape[1]
        B_r = 16
        B_c = 16
        kernel[(-(-N_q // B_r), B * H)](
            q,
            k,
            v,
            o,
            lse,
            scale,
            N_q,
            k.shape[2],
            group,
            causal,
            d=d,
            d_padded=triton.next_power_of_2(d),
            B_r=B_r,
            B_c=B_c,
        )
        return o, lse

    spec = Spec(
        # the interpreter takes bfloat16 for whole numbers (triton-lang/triton#4972, #11584)
        dtypes=("float32", "float16"),
        block=(16, 16),
        causal="bottom_right",
        lse="natural",
        gqa=True,
        scale=True,
        max_shapes=12,  # the interpreter is slow
    )
    return Subject(wrap(_named("attention_kernel", attend), "torch"), spec)


# --------------------------------------------------------------------------------------------------
# all

IMPLEMENTATIONS: dict[str, Implementation] = {
    **{
        name: Implementation(algorithm.title, partial(_own, name))
        for name, algorithm in FORWARD.items()
    },
    "numpy_tiled": Implementation("NumPy, as FlashAttention-2", partial(_numpy, "tiled")),
    "numpy_unfused": Implementation("NumPy, with the matrix of scores", partial(_numpy, "unfused")),
    "numpy_split": Implementation("NumPy, keys in parts, merged", partial(_numpy, "split")),
    "torch_sdpa": Implementation(
        "PyTorch SDPA, default backend, CPU", partial(_sdpa, None), ("torch",)
    ),
    "torch_sdpa_math": Implementation(
        "PyTorch SDPA, MATH, CPU", partial(_sdpa, "MATH"), ("torch",)
    ),
    "torch_sdpa_flash": Implementation(
        "PyTorch SDPA, FLASH_ATTENTION, CPU", partial(_sdpa, "FLASH_ATTENTION"), ("torch",)
    ),
    "jax": Implementation("jax.nn.dot_product_attention, CPU", _jax, ("jax",)),
    "jax_pallas": Implementation(
        "JAX Pallas GPU kernel, interpret=True", _pallas, ("jax",), share=0.1
    ),
    "triton": Implementation(
        "Triton kernel, TRITON_INTERPRET=1", _triton, ("triton", "torch"), share=0.1
    ),
}

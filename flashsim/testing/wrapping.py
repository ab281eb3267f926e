"""`wrap`: it makes an attention on another package's arrays, which is called in its own way, into a
function of NumPy arrays, which the kit can call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from flashsim.attention.arguments import check_count, is_one_of, short_repr
from flashsim.attention.inputs import Array
from flashsim.testing.bridges import BRIDGES, Bridge
from flashsim.testing.conventions import CONVENTIONS
from flashsim.testing.spec import Spec


class Wrapped:
    """`fn` on NumPy arrays. Made by `wrap`.

    Called as kernel(q, k, v, **keywords), it returns O, or (O, lse) where fn returns two arrays.
    `backward(q, k, v, do, **keywords)` returns (dq, dk, dv), by torch's autograd or jax.vjp through
    O; it is missing where there is neither. Where fn is a backward function of its own, it is
    itself called so.
    """

    def __init__(
        self,
        fn: Any,
        bridge: Bridge,
        convention: str | None,
        device: Any = None,
        page: int | None = None,
    ) -> None:
        self.fn = fn
        self.device = device
        self.convention = convention
        self.page = page
        inner = getattr(fn, "func", fn)  # of a functools.partial
        self.__name__ = str(getattr(inner, "__name__", type(inner).__name__))
        self.__qualname__ = self.__name__
        self._bridge = bridge
        self._forward = self._of_batch(self._call_native)
        if convention is None:  # a convention's function has other names for its parameters
            with suppress(TypeError, ValueError):
                self.__signature__ = inspect.signature(fn)

    def __call__(self, q: Any, k: Any, v: Any, *do: Any, **keywords: Any) -> Any:
        """Return O, or (O, lse), as NumPy arrays; or dq, dk, dv."""
        return self._forward(q, k, v, *do, **keywords)

    @property
    def backward(self) -> Callable[..., tuple[Array, Array, Array]]:
        """The gradient, a function of (q, k, v, do, **keywords)."""
        if not hasattr(self._bridge, "gradients"):
            raise AttributeError(
                f"no backward for {self.__name__}: {self._bridge.package} has no automatic "
                "differentiation"
            )
        if self.convention is not None and CONVENTIONS[self.convention].page:
            raise AttributeError(
                f"no backward for {self.__name__}: convention {self.convention!r} is for decoding"
            )
        return self._of_batch(self._backward)

    def spec(self, **overrides: Any) -> Spec:
        """Return what fn promises by its convention, changed by `overrides`; without a convention,
        Spec(**overrides).

        "sdpa": what torch 2.13 does on the CPU. A forced flash backend there takes no d_v and wants
        strides="last_contiguous". NaN in a masked key or value does reach the output, and with
        causal=True a scale ≤ 0 gives NaN in the flash backend, the default one. Its tile is nearer
        (32, 512) than the default `block`, a slower test. On CUDA it depends on the backend: in
        torch 2.11, cuDNN's, the default for 16 bits on an H200, gives rows without keys something
        other than 0, and NaN for a scale ≤ 0; and rows that do not begin at multiples of 16 bytes
        end in NaN or an error there: override strides="contiguous".

        "flex_attention": what torch 2.13 does on the CPU without torch.compile, where it has no
        backward pass, and NaN reaches the output as with "sdpa". Compiled, it is one function for
        each shape: override max_shapes.

        "flash_attn", and those after it down to "flashinfer_hnd": what flash_attn 2.1 and later
        promise. Heads of other widths are padded, and not listed; FlashInfer's are 64, 128 or 256
        wide. Arrays are contiguous: kernels read 16 bytes at a time, so every row has to begin at a
        multiple of that. `lse` is None where fn returns O alone by default; see `wrap`. Soft caps,
        slopes and windows came later: override softcap=True, alibi=True, window="bottom_right".

        "onnx": what ONNX 1.23's reference does in opset 25. A scale is not among it: Q and K are
        multiplied by its root, so none ≤ 0 is taken.
        """
        defaults = {} if self.convention is None else CONVENTIONS[self.convention].promises
        default = defaults.get("layout", "BHND")
        layout = overrides.get("layout", default)
        if self.convention is not None and layout != default:
            raise ValueError(
                f"layout is {layout!r}; expected {default!r}, that of {self.convention}"
            )
        return Spec(**{**defaults, **overrides})

    def code(self, name: str = "") -> str:
        """Return Python that wraps the function again. `name` is the function's name there, by
        default its own.
        """
        arguments = [name or self.__name__, repr(self._bridge.package)]
        options = {"convention": self.convention, "device": self.device, "page": self.page}
        for option, value in options.items():
            if value is not None:
                arguments.append(f"{option}={value!r}")
        return f"wrap({', '.join(arguments)})"

    def __repr__(self) -> str:
        return f"<{self.__name__} on {self._bridge.package}, wrapped for NumPy>"

    def _of_batch(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of a batch that calls `fn`, which may take packs or pages."""
        if self.convention is None:
            return fn
        convention = CONVENTIONS[self.convention]
        return convention.of_batch(fn, self.page or convention.page)

    def _call_native(self, *arrays: Any, **keywords: Any) -> Any:
        """Call the function with the package's arrays, and return NumPy arrays."""
        names = ("q", "cache") if len(arrays) == 2 else ("q", "k", "v", "do")
        by_name = dict(zip(names, arrays, strict=False))
        with self._native_arguments(by_name, keywords) as (inputs, options):
            return self._as_numpy(self._call(*inputs, **options))

    def _backward(
        self, q: Any, k: Any, v: Any, do: Any, **keywords: Any
    ) -> tuple[Array, Array, Array]:
        by_name = {"q": q, "k": k, "v": v, "do": do}
        with self._native_arguments(by_name, keywords) as (inputs, options):
            native_q, native_k, native_v, native_do = inputs

            def output(q: Any, k: Any, v: Any) -> Any:
                result = self._call(q, k, v, **options)
                return result[0] if isinstance(result, tuple | list) else result

            gradients = self._bridge.gradients(output, (native_q, native_k, native_v), native_do)
            dq, dk, dv = map(self._bridge.receive, gradients)
        return dq, dk, dv

    @contextmanager
    def _native_arguments(
        self, arrays: dict[str, Any], keywords: dict[str, Any]
    ) -> Iterator[tuple[list[Any], dict[str, Any]]]:
        """Yield the package's arrays and the options of a call. After the call, write back what the
        function changed in copies.
        """
        with self._bridge.use():
            inputs = []
            copies = []
            for name, a in arrays.items():
                native_array = self._bridge.send(name, np.asarray(a))
                copies.append(native_array)
                inputs.append(native_array.native)
            options = {}
            for name, value in keywords.items():
                if isinstance(value, np.ndarray):
                    native_array = self._bridge.send(name, value)
                    copies.append(native_array)
                    options[name] = native_array.native
                else:
                    options[name] = value.item() if isinstance(value, np.generic) else value
            yield inputs, options
            for native_array in copies:
                native_array.write_back(self.__name__)

    def _call(self, *inputs: Any, **keywords: Any) -> Any:
        if self.convention is None:
            return self.fn(*inputs, **keywords)
        return CONVENTIONS[self.convention].call(self.fn, *inputs, **keywords)

    def _as_numpy(self, result: Any) -> Any:
        """Return the package's array, or several, as NumPy arrays. Raises ValueError for anything
        else.
        """
        several = isinstance(result, tuple | list)
        for array in result if several else (result,):
            if not isinstance(array, self._bridge.kind):
                kind = type(array).__name__
                raise ValueError(
                    f"{self.__name__} returned an object of type {kind}; expected a "
                    f"{self._bridge.package} array"
                )
        return tuple(map(self._bridge.receive, result)) if several else self._bridge.receive(result)


def wrap(
    fn: Any, xp: str, *, convention: str | None = None, device: Any = None, page: int | None = None
) -> Wrapped:
    """Return `fn`, an attention on the arrays of `xp`, or its backward, as one on NumPy arrays.

    `xp` is "numpy", "torch", "cupy" or "jax"; only that package is imported. `device` is where fn
    runs: for torch, what torch.device takes; for CuPy, a number; for JAX, a jax.Device or a
    platform's name. By default the package's own (for torch, the CPU).

    torch on the CPU works on the caller's memory. On another device, and for arrays that torch
    cannot take as they are, it works on a copy with the same strides. The copy has all the memory
    that an array is a view of, so that fn reads the same around it and between its elements.
    Whatever fn changes there is written back after the call, so that a modified input shows. Arrays
    with negative strides are copied to contiguous ones. A function that writes into a read-only
    array raises ValueError. CuPy likewise. JAX arrays are immutable, contiguous copies.

    `convention` says how fn is called:

    None            fn(q, k, v, **keywords) as the kit does, arrays among the keywords (`mask`) in
                    the form of `xp`. Under jax.jit, `causal` has to be static
    "sdpa"          as torch.nn.functional.scaled_dot_product_attention: (B, H, N, d), causal
                    aligned at the top left. It takes no mask together with is_causal, so both are
                    given as one mask, which always has four axes. `enable_gqa` is given only where
                    H_q ≠ H_kv
    "flex_attention"
                    as torch.nn.attention.flex_attention.flex_attention: (B, H, N, d). Causal masks
                    (i ≥ j), other masks and windows are a block mask; soft caps, slopes and biases
                    are a score_mod. With functools.partial(flex_attention,
                    return_aux=AuxRequest(lse=True)), or return_lse=True, there is a natural
                    log-sum-exp
    "flash_attn"    as flash_attn_func of flash_attn ≥ 2.1: (B, N, H, d), causal aligned at the
                    bottom right, no masks. functools.partial(flash_attn_func,
                    return_attn_probs=True) returns (O, lse, S_dmask), of which O and lse are passed
                    on. Rows without keys are 0, and their lse is +∞ there, where
                    Spec(lse="natural") expects −∞ unless empty_rows is "undefined". Its backward
                    pass gives the same bits again only with deterministic=True
    "flash_attn_varlen"
                    as flash_attn_varlen_func: packed rows (total, H, d), cu_seqlens, lse (H,
                    total); else the same
    "flash_attn_with_kvcache"
                    as the function of that name, without new keys: a cache (pages, 256, H, d),
                    block_table, cache_seqlens; its lse with return_softmax_lse=True
    "vllm"          as vLLM's flash_attn_varlen_func: packed queries, the halves of a cache (2,
                    pages, 16, H, d), block_table, seqused_k
    "flashinfer"    as FlashInfer's BatchPrefillWithPagedKVCacheWrapper, planned and run: fn is one,
                    with kv_layout "NHD". A cache (pages, 2, 16, H, d), its pages as lists, lse to
                    base 2. A function is called with q, the cache, and by name what would be
                    planned
    "flashinfer_hnd"
                    the same with kv_layout "HND", (pages, 2, H, 16, d)
    "onnx"          as the operator Attention of ONNX: fn(Q, K, V, attn_mask, **attributes),
                    attn_mask where there is one; (B, H, N, d), causal aligned at the top left.
                    onnx.reference.ops.op_attention.Attention.eval is such

    Where there are packs or pages, a case lies among other sequences, as `varlen` and `paged` have
    it. `page` is how many rows a page has. With a convention a `seed` seeds torch's generator for
    the call, whose state is restored.

    Raises ValueError for an unknown xp or convention, ModuleNotFoundError where the package is
    missing.
    """
    if not callable(fn) and not hasattr(fn, "plan"):
        raise ValueError(f"fn is {short_repr(fn)}; expected a function of (q, k, v)")
    if not is_one_of(xp, BRIDGES):
        raise ValueError(f"xp is {short_repr(xp)}; expected one of {', '.join(map(repr, BRIDGES))}")
    if convention is not None:
        if not is_one_of(convention, CONVENTIONS):
            known = ", ".join(map(repr, (None, *CONVENTIONS)))
            raise ValueError(f"convention is {short_repr(convention)}; expected one of {known}")
        packages = CONVENTIONS[convention].packages
        if xp not in packages:
            expected = " or ".join(map(repr, packages))
            raise ValueError(
                f"xp is {xp!r}; expected {expected}, which convention {convention!r} is of"
            )
    if page is not None:
        if convention is None or not CONVENTIONS[convention].page:
            raise ValueError(
                f"page is {short_repr(page)}; expected none, as convention {convention!r} has no "
                "pages"
            )
        page = check_count("page", page)
    return Wrapped(fn, BRIDGES[xp](device), convention, device, page)

"""An attention on torch, CuPy or JAX arrays as one on NumPy arrays, the way the kit calls it, however it is called itself."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np

from flashsim.problem.arguments import is_one_of, shown
from flashsim.problem.inputs import Array
from flashsim.testing.bridges import BRIDGES, Bridge
from flashsim.testing.spec import Spec


class Convention(NamedTuple):
    """How a well-known function on torch tensors is called, and what it promises.

    keywords  (q, k, causal, scale, mask, dropout_p) -> what the function is given besides q, k, v
    promises  fields of the Spec
    """

    keywords: Callable[..., dict[str, Any]]
    promises: Mapping[str, Any]

    def call(self, fn: Callable[..., Any], q: Any, k: Any, *v_do: Any, seed: int | None = None, **keywords: Any) -> Any:
        """Return what `fn` does, of a forward function O, or (O, lse), alone.

        A `seed` seeds torch's generators, which are restored after the call.
        """
        with ExitStack() as stack:
            if seed is not None:
                torch: Any = importlib.import_module("torch")
                stack.enter_context(torch.random.fork_rng(devices=[q.device] if q.device.type == "cuda" else []))
                torch.manual_seed(seed)
            result = fn(q, k, *v_do, **self.keywords(q, k, **keywords))
        return tuple(result[:2]) if isinstance(result, tuple | list) and len(v_do) == 1 else result


def _sdpa(
    q: Any, k: Any, causal: bool = False, scale: float | None = None, mask: Any = None, dropout_p: float = 0.0,
    bias: Any = None,
) -> dict[str, Any]:  # fmt: skip
    keywords: dict[str, Any] = {"scale": scale} if scale is not None else {}
    if bias is not None:
        if causal:
            tril = bias.new_ones(q.shape[-2], k.shape[-2]).bool().tril()
            mask = tril if mask is None else mask & tril
        if mask is not None:
            bias = bias + bias.new_zeros(mask.shape).masked_fill(~mask, float("-inf"))
        keywords["attn_mask"] = bias
    elif mask is not None:
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
    q: Any, k: Any, causal: bool = False, scale: float | None = None, mask: Any = None, dropout_p: float = 0.0,
    window: tuple[int, int] | None = None,
) -> dict[str, Any]:  # fmt: skip
    if mask is not None:
        raise ValueError("mask is given; expected none, which flash_attn does not take")
    keywords: dict[str, Any] = {"softmax_scale": scale} if scale is not None else {}
    keywords |= {"window_size": window} if window is not None else {}
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


class Wrapped:
    """`fn` on NumPy arrays. Made by `wrap`.

    Called as kernel(q, k, v, **keywords), it returns O, or (O, lse) where fn returns two arrays. `backward(q, k, v, do,
    **keywords)` returns (dq, dk, dv), by torch's autograd or jax.vjp through O; it is missing where there is neither. Where
    fn is a backward function of its own, it is itself called so.
    """

    def __init__(self, fn: Callable[..., Any], bridge: Bridge, convention: str | None, device: Any = None) -> None:
        self.fn = fn
        self.device = device
        self.convention = convention
        inner = getattr(fn, "func", fn)  # of a functools.partial
        self.__name__ = str(getattr(inner, "__name__", type(inner).__name__))
        self.__qualname__ = self.__name__
        self._bridge = bridge
        if convention is None:  # which names what it takes in its own way
            with suppress(TypeError, ValueError):
                self.__signature__ = inspect.signature(fn)

    def __call__(self, q: Any, k: Any, v: Any, *do: Any, **keywords: Any) -> Any:
        """Return O, or (O, lse), as NumPy arrays; or dq, dk, dv."""
        with self._sent(dict(zip(("q", "k", "v", "do"), (q, k, v, *do), strict=False)), keywords) as (inputs, keywords):
            return self._results(self._call(*inputs, **keywords))

    @property
    def backward(self) -> Callable[..., tuple[Array, Array, Array]]:
        """The gradient, a function of (q, k, v, do, **keywords)."""
        if not hasattr(self._bridge, "gradients"):
            raise AttributeError(
                f"no backward for {self.__name__}: {self._bridge.package} has no automatic differentiation"
            )
        return self._backward

    def spec(self, **overrides: Any) -> Spec:
        """Return what fn promises by its convention, where `overrides` say nothing else.

        "sdpa": what torch 2.13 does on the CPU. A forced flash backend there takes no d_v and wants
        strides="last_contiguous". NaN in a masked key or value does reach the output, and with causal=True a scale ≤ 0
        gives NaN in the flash backend, the default one. Its tile is nearer (32, 512) than the default `block`, a slower
        test. On CUDA it depends on the backend: in torch 2.11, cuDNN's, the default for 16 bits on an H200, gives rows
        without keys something other than 0, and NaN for a scale ≤ 0; and rows that do not begin at multiples of 16 bytes
        end in NaN or an error there: override strides="contiguous".

        "flash_attn": what flash_attn 2.1 and later promise. Heads of other widths are padded, and not listed. Arrays are
        contiguous: its kernels read 16 bytes at a time, so every row has to begin at a multiple of that. `lse` is None,
        since fn returns O alone by default; see `wrap`.

        For no convention, this is Spec(**overrides).
        """
        defaults = {} if self.convention is None else CONVENTIONS[self.convention].promises
        layout = overrides.get("layout", defaults.get("layout"))
        if self.convention is not None and layout != defaults["layout"]:
            raise ValueError(f"layout is {layout!r}; expected {defaults['layout']!r}, that of {self.convention}")
        return Spec(**{**defaults, **overrides})

    def code(self, name: str = "") -> str:
        """Return Python that wraps the function again, which is there by that name, or by its own."""
        said = {"convention": self.convention, "device": self.device}
        more = "".join(f", {name}={value!r}" for name, value in said.items() if value is not None)
        return f"wrap({name or self.__name__}, {self._bridge.package!r}{more})"

    def __repr__(self) -> str:
        return f"<{self.__name__} on {self._bridge.package}, wrapped for NumPy>"

    def _backward(self, q: Any, k: Any, v: Any, do: Any, **keywords: Any) -> tuple[Array, Array, Array]:
        with self._sent({"q": q, "k": k, "v": v, "do": do}, keywords) as ((*inputs, do), keywords):

            def output(q: Any, k: Any, v: Any) -> Any:
                result = self._call(q, k, v, **keywords)
                return result[0] if isinstance(result, tuple | list) else result

            dq, dk, dv = (self._bridge.receive(g) for g in self._bridge.gradients(output, tuple(inputs), do))
        return dq, dk, dv

    @contextmanager
    def _sent(self, arrays: dict[str, Any], keywords: dict[str, Any]) -> Iterator[tuple[list[Any], dict[str, Any]]]:
        """Give the inputs and the keywords for fn; after the call, settle what it changed."""
        with self._bridge.use():
            sent = [self._bridge.send(name, np.asarray(a)) for name, a in arrays.items()]
            more = {name: self._bridge.send(name, a) for name, a in keywords.items() if isinstance(a, np.ndarray)}
            plain = {name: a.item() if isinstance(a, np.generic) else a for name, a in keywords.items()}
            yield [one.native for one in sent], plain | {name: one.native for name, one in more.items()}
            for one in (*sent, *more.values()):
                one.settle(self.__name__)

    def _call(self, *inputs: Any, **keywords: Any) -> Any:
        if self.convention is None:
            return self.fn(*inputs, **keywords)
        return CONVENTIONS[self.convention].call(self.fn, *inputs, **keywords)

    def _results(self, result: Any) -> Any:
        several = isinstance(result, tuple | list)
        for one in result if several else (result,):
            if not self._bridge.is_array(one):
                raise ValueError(
                    f"{self.__name__} returned an object of type {type(one).__name__}; expected a {self._bridge.package} array"
                )
        return tuple(map(self._bridge.receive, result)) if several else self._bridge.receive(result)


def wrap(fn: Callable[..., Any], xp: str, *, convention: str | None = None, device: Any = None) -> Wrapped:
    """Return `fn`, an attention on the arrays of `xp`, "torch", "cupy" or "jax", as one on NumPy arrays; or its backward.

    Only that package is imported. `device` is where fn runs: for torch, what torch.device takes; for CuPy, a number;
    for JAX, a jax.Device or a platform's name. By default the package's own (for torch, the CPU).

    torch on the CPU works on the caller's memory. On another device, and for arrays that torch cannot take as they are,
    it works on a copy, with the same strides. All the memory that an array is a view of is copied, so that fn reads the
    same around it and between its elements, and whatever fn changes there is written back after the call, so that one can
    see that it modified its inputs. Arrays with negative strides are copied to contiguous ones. A function that writes
    into a read-only array raises ValueError. CuPy likewise. JAX arrays are immutable, contiguous copies.

    `convention` says how fn is called:

    None            fn(q, k, v, **keywords) as the kit does, arrays among the keywords (`mask`) in the form of `xp`. Under
                    jax.jit, `causal` has to be static
    "sdpa"          as torch.nn.functional.scaled_dot_product_attention: (B, H, N, d), causal aligned at the top left. It
                    takes no mask together with is_causal, so both are given as one mask, which always has four axes.
                    `enable_gqa` is given only where H_q ≠ H_kv
    "flash_attn"    as flash_attn_func of flash_attn ≥ 2.1: (B, N, H, d), causal aligned at the bottom right, no masks.
                    functools.partial(flash_attn_func, return_attn_probs=True) returns (O, lse, S_dmask), of which O and lse
                    are passed on. Rows without keys are 0, and their lse is +∞ there, where Spec(lse="natural") expects
                    −∞ unless empty_rows is "undefined". Its backward pass gives the same bits again only with
                    deterministic=True

    In the latter two a `seed` seeds torch's generator for the call, whose state is restored.

    Raises ValueError for an unknown xp or convention, ModuleNotFoundError where the package is missing.
    """
    if not callable(fn):
        raise ValueError(f"fn is {shown(fn)}; expected a function of (q, k, v)")
    if not is_one_of(xp, BRIDGES):
        raise ValueError(f"xp is {shown(xp)}; expected one of {', '.join(map(repr, BRIDGES))}")
    if convention is not None and not is_one_of(convention, CONVENTIONS):
        raise ValueError(
            f"convention is {shown(convention)}; expected one of {', '.join(map(repr, (None, *CONVENTIONS)))}"
        )
    if convention is not None and xp != "torch":
        raise ValueError(f"xp is {xp!r}; expected 'torch', which convention {convention!r} is of")
    return Wrapped(fn, BRIDGES[xp](device), convention, device)

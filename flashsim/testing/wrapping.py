"""An attention on torch, CuPy or JAX arrays as one on NumPy arrays, the way the kit calls it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashsim.checking import is_one_of, shown
from flashsim.inputs import Array, float_dtype
from flashsim.testing.kernel import memory_of
from flashsim.testing.spec import Spec

INSTALL = {
    "torch": "pip install torch",
    "jax": "pip install jax",
    "cupy": "pip install cupy-cuda12x (or the build for your CUDA; see https://docs.cupy.dev/en/stable/install.html)",
}
INTEGERS: dict[int, Any] = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}  # an element's bits


class Wrapped:
    """`fn` on NumPy arrays. Made by `wrap`.

    Called as kernel(q, k, v, **keywords), it returns O, or (O, lse) where fn returns two arrays. `backward(q, k, v, do,
    **keywords)` returns (dq, dk, dv), by torch's autograd or jax.vjp through O; it is missing where there is neither.
    """

    def __init__(self, fn: Callable[..., Any], bridge: Bridge, convention: str | None, device: Any = None) -> None:
        self.fn = fn
        self.device = device
        self.convention = convention
        self.__name__ = str(getattr(getattr(fn, "func", fn), "__name__", fn))  # .func: of a functools.partial
        self.__qualname__ = self.__name__
        self._bridge = bridge

    def __call__(self, q: Any, k: Any, v: Any, **keywords: Any) -> Any:
        """Return O, or (O, lse), as NumPy arrays."""
        with self._bridge.use():
            inputs, keywords, sent = self._send({"q": q, "k": k, "v": v}, keywords)
            result = self._results(self._call(*inputs.values(), **keywords))
            for one in sent:
                one.settle(self.__name__)
        return result

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
        defaults: dict[str, Any] = {}
        if self.convention == "sdpa":
            defaults = {
                "dtypes": ("float32", "float16", "bfloat16"),
                "layout": "BHND",
                "causal": "top_left",
                "empty_rows": "zero",
                "gqa": True,
                "masks": True,
                "scale": True,
                "d_v": True,
                "zero_keys": True,
            }
        elif self.convention == "flash_attn":
            defaults = {
                "dtypes": ("float16", "bfloat16"),
                "layout": "BNHD",
                "block": (128, 128),
                "causal": "bottom_right",
                "empty_rows": "zero",
                "gqa": True,
                "scale": True,
                "head_dims": tuple(range(8, 257, 8)),
                "strides": "contiguous",
            }
        layout = overrides.get("layout", defaults.get("layout"))
        if self.convention is not None and layout != defaults["layout"]:
            raise ValueError(f"layout is {layout!r}; expected {defaults['layout']!r}, that of {self.convention}")
        return Spec(**(defaults | overrides))

    def code(self) -> str:
        """Return Python that wraps the function again, where that has its own name."""
        said = {"convention": self.convention, "device": self.device}
        more = "".join(f", {name}={value!r}" for name, value in said.items() if value is not None)
        return f"wrap({self.__name__}, {self._bridge.package!r}{more})"

    def __repr__(self) -> str:
        return f"<{self.__name__} on {self._bridge.package}, wrapped for NumPy>"

    def _backward(self, q: Any, k: Any, v: Any, do: Any, **keywords: Any) -> tuple[Array, Array, Array]:
        with self._bridge.use():
            given, keywords, sent = self._send({"q": q, "k": k, "v": v, "do": do}, keywords)
            q, k, v, do = given.values()

            def output(q: Any, k: Any, v: Any) -> Any:
                result = self._call(q, k, v, **keywords)
                return result[0] if isinstance(result, tuple | list) else result

            dq, dk, dv = (self._bridge.receive(g) for g in self._bridge.gradients(output, (q, k, v), do))
            for one in sent:
                one.settle(self.__name__)
        return dq, dk, dv

    def _send(
        self, arrays: dict[str, Any], keywords: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any], list[Sent]]:
        """Return the inputs and the keywords for fn, and what has to be settled after the call."""
        sent = {name: self._bridge.send(name, np.asarray(a)) for name, a in arrays.items()}
        more = {name: self._bridge.send(name, a) for name, a in keywords.items() if isinstance(a, np.ndarray)}
        plain = {name: a.item() if isinstance(a, np.generic) else a for name, a in keywords.items() if name not in more}
        inputs = {name: one.native for name, one in sent.items()}
        return inputs, plain | {name: one.native for name, one in more.items()}, [*sent.values(), *more.values()]

    def _call(self, q: Any, k: Any, v: Any, **keywords: Any) -> Any:
        if self.convention is None:
            return self.fn(q, k, v, **keywords)
        with _seeded(keywords.pop("seed", None), q.device):
            result = self.fn(q, k, v, **CONVENTIONS[self.convention](q, k, **keywords))
        return tuple(result[:2]) if self.convention == "flash_attn" and isinstance(result, tuple | list) else result

    def _results(self, result: Any) -> Any:
        several = isinstance(result, tuple | list)
        for one in result if several else (result,):
            if not self._bridge.is_array(one):
                raise ValueError(
                    f"{self.__name__} returned an object of type {type(one).__name__}; expected a {self._bridge.package} array"
                )
        return tuple(map(self._bridge.receive, result)) if several else self._bridge.receive(result)


def wrap(fn: Callable[..., Any], xp: str, *, convention: str | None = None, device: Any = None) -> Wrapped:
    """Return `fn`, an attention on the arrays of `xp`, "torch", "cupy" or "jax", as one on NumPy arrays.

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


# ----------------------------------------------------------------------------------------------------- conventions


def _sdpa(
    q: Any, k: Any, causal: bool = False, scale: float | None = None, mask: Any = None, dropout_p: float = 0.0
) -> dict[str, Any]:
    """Return what torch.nn.functional.scaled_dot_product_attention is given besides q, k, v."""
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
    """Return what flash_attn_func is given besides q, k, v."""
    if mask is not None:
        raise ValueError("mask is given; expected none, which flash_attn does not take")
    keywords: dict[str, Any] = {"softmax_scale": scale} if scale is not None else {}
    return keywords | {name: value for name, value in (("causal", causal), ("dropout_p", dropout_p)) if value}


CONVENTIONS: dict[str, Callable[..., dict[str, Any]]] = {"sdpa": _sdpa, "flash_attn": _flash_attn}


@contextmanager
def _seeded(seed: int | None, device: Any) -> Iterator[None]:
    """Seed torch's generators, if at all, and restore them afterwards."""
    if seed is None:
        yield
        return
    torch: Any = importlib.import_module("torch")
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


# ------------------------------------------------------------------------------------------- from NumPy to there, and back


class Sent:
    """One array as fn gets it: `native`. Where that is a copy, `lent` is what was copied, and `fetch` reads it back."""

    def __init__(
        self, name: str, native: Any, lent: Lent | None = None, fetch: Callable[[], Any] | None = None
    ) -> None:
        self.name, self.native = name, native
        self._lent, self._fetch = lent, fetch

    def settle(self, function: str) -> None:
        """Write back what fn changed in its copy, or ValueError where the caller's array is read-only."""
        if self._lent is None or self._fetch is None:
            return
        now = np.asarray(self._fetch()).reshape(self._lent.home.shape)
        changed = now != self._lent.before
        if not changed.any():
            return
        if not (self._lent.writeable and self._lent.home.flags.writeable):
            raise ValueError(f"{function} wrote into {self.name}, which is read-only")
        self._lent.home[changed] = now[changed]


@dataclass
class Lent:
    """The memory around an array, to be copied elsewhere as one row, and where the array lies in it.

    home       the caller's memory: all that the array is a view of, as integers; if that is no row, the array's elements
    before     a copy
    start      where the array's first element is in the row
    strides    of the array, in elements
    writeable  whether the array is
    """

    home: Array
    before: Array
    start: int
    strides: tuple[int, ...]
    writeable: bool


class Bridge:
    """To the arrays of one package. One that can differentiate has `gradients` too."""

    package: str
    gradients: Callable[[Callable[..., Any], tuple[Any, ...], Any], tuple[Any, ...]]  # of Σ do ∘ output(*inputs)

    def use(self) -> AbstractContextManager[Any]:
        """The context in which everything runs."""
        return nullcontext()

    def send(self, name: str, array: Array) -> Sent:
        """Return the package's array of what `array` holds."""
        raise NotImplementedError

    def is_array(self, result: Any) -> bool:
        """Whether it is an array of the package."""
        raise NotImplementedError

    def receive(self, result: Any) -> Array:
        """Return a NumPy array of the package's array."""
        raise NotImplementedError


class _Torch(Bridge):
    """To torch tensors: on the same memory where torch can have it, else of the same strides on a copy."""

    package = "torch"

    def __init__(self, device: Any) -> None:
        self.torch = _import("torch")
        self.device = self.torch.device("cpu" if device is None else device)

    def send(self, name: str, array: Array) -> Sent:
        torch, dtype = self.torch, self._dtype(name, array)
        if self.device.type == "cpu" and _as_it_is(array) and array.flags.writeable:
            return Sent(name, torch.from_dlpack(_bits(array)).view(dtype))
        lent = _lend(array)
        there = torch.from_dlpack(lent.before.flatten()).to(self.device)
        native = there.as_strided(array.shape, lent.strides, lent.start).view(dtype)
        return Sent(name, native, lent, lambda: there.cpu().numpy())

    def is_array(self, result: Any) -> bool:
        return bool(self.torch.is_tensor(result))

    def receive(self, result: Any) -> Array:
        tensor = result.detach().cpu()
        if tensor.dtype == self.torch.bfloat16:
            return np.asarray(tensor.view(self.torch.int16).numpy().view(float_dtype("bfloat16")))
        return np.asarray(tensor.numpy())

    def gradients(self, output: Callable[..., Any], inputs: tuple[Any, ...], do: Any) -> tuple[Any, ...]:
        torch = self.torch
        with torch.enable_grad():
            leaves = tuple(a.requires_grad_() for a in inputs)
            out = output(*leaves)
            if not out.requires_grad:
                raise ValueError("the output does not require grad; expected a function that autograd can go through")
            # None for an input that the output does not depend on
            found = torch.autograd.grad(out, leaves, do, allow_unused=True)
        return tuple(torch.zeros_like(a) if g is None else g for a, g in zip(leaves, found, strict=True))

    def _dtype(self, name: str, array: Array) -> Any:
        found = getattr(self.torch, array.dtype.name, None)
        if not isinstance(found, self.torch.dtype) or array.dtype.kind == "c":
            raise ValueError(f"{name} has dtype {array.dtype}; expected one that torch has")
        return found


class _Cupy(Bridge):
    """To CuPy arrays, copies of the same strides. There is no `gradients`."""

    package = "cupy"

    def __init__(self, device: Any) -> None:
        self.cupy = _import("cupy")
        self.device = device

    def use(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = (
            nullcontext() if self.device is None else self.cupy.cuda.Device(self.device)
        )
        return context

    def send(self, name: str, array: Array) -> Sent:
        lent = _lend(array)
        there = self.cupy.asarray(lent.before.ravel())
        try:
            native = there.view(array.dtype)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name} has dtype {array.dtype}, which this CuPy ({self.cupy.__version__}) does not have; "
                "bfloat16 came with CuPy 14"
            ) from error
        strides = [n * array.itemsize for n in lent.strides]
        native = self.cupy.lib.stride_tricks.as_strided(native[lent.start :], array.shape, strides)
        return Sent(name, native, lent, lambda: self.cupy.asnumpy(there))

    def is_array(self, result: Any) -> bool:
        return isinstance(result, self.cupy.ndarray)

    def receive(self, result: Any) -> Array:
        return np.asarray(self.cupy.asnumpy(result))


class _Jax(Bridge):
    """To JAX arrays, contiguous copies."""

    package = "jax"

    def __init__(self, device: Any) -> None:
        self.jax = _import("jax")
        self.device = self.jax.devices(device)[0] if isinstance(device, str) else device

    def send(self, name: str, array: Array) -> Sent:
        if array.dtype.itemsize == 8 and not self.jax.config.jax_enable_x64:
            raise ValueError(
                f"{name} has dtype {array.dtype}, which JAX would make one of 32 bits; "
                'expected jax.config.update("jax_enable_x64", True)'
            )
        return Sent(name, self.jax.device_put(self.jax.numpy.array(array, copy=True), self.device))

    def is_array(self, result: Any) -> bool:
        return isinstance(result, self.jax.Array)

    def receive(self, result: Any) -> Array:
        return np.array(result)

    def gradients(self, output: Callable[..., Any], inputs: tuple[Any, ...], do: Any) -> tuple[Any, ...]:
        _, pull_back = self.jax.vjp(output, *inputs)
        return tuple(pull_back(do))


BRIDGES: dict[str, Callable[[Any], Any]] = {"torch": _Torch, "cupy": _Cupy, "jax": _Jax}


def _import(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(
            f"xp={package!r} needs the package {package}: {INSTALL[package]}", name=package
        ) from None


def _bits(array: Array) -> Array:
    """Return the array's elements as integers of the same width, on the same memory."""
    return array.view(INTEGERS[array.dtype.itemsize])


def _as_it_is(array: Array) -> bool:
    """Whether another package can read it in place: aligned, whole elements from one to the next, no negative strides.

    torch.from_dlpack does not refuse negative strides: it ends the process.
    """
    return bool(array.flags.aligned) and all(s >= 0 and s % array.itemsize == 0 for s in array.strides)


def _lend(array: Array) -> Lent:
    """Return the memory that the array is a view of: a copy has what is around it, too."""
    bits, writeable = _bits(array), array.flags.writeable
    if array.size == 0 or not _as_it_is(array):
        strides = np.empty(array.shape, bits.dtype).strides
        home, start = bits, 0
    else:
        home, start = _surroundings(bits)
        strides = bits.strides
    before = np.array(home, order="C")
    return Lent(home, before, start, tuple(n // bits.itemsize for n in strides), writeable)


def _surroundings(bits: Array) -> tuple[Array, int]:
    """Return the whole array that `bits` is a view of, as a row, and where in it `bits` begins."""
    owner = memory_of(bits)
    reach = bits.itemsize + sum((n - 1) * s for n, s in zip(bits.shape, bits.strides, strict=True))
    row = np.lib.stride_tricks.as_strided(bits, (reach // bits.itemsize,), (bits.itemsize,))
    if not owner.flags.forc or owner.dtype.hasobject:
        return row, 0  # from the first element to the last
    memory = owner.ravel(order="A").view(np.uint8)
    offset = _address(bits) - _address(memory)
    if not 0 <= offset <= memory.size - reach:
        return row, 0
    first = offset % bits.itemsize
    last = first + (memory.size - first) // bits.itemsize * bits.itemsize
    return memory[first:last].view(bits.dtype), offset // bits.itemsize


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])

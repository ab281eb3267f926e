"""Attentions on torch, JAX and CuPy arrays, wrapped for NumPy."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest

from flashsim.inputs import Array, float_dtype
from flashsim.reference import attention, attention_with_statistics, gradients
from flashsim.testing.spec import Spec
from flashsim.testing.wrapping import wrap

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")

DTYPES = ("float16", "bfloat16", "float32", "float64")


def _cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def _cupy() -> bool:
    if importlib.util.find_spec("cupy") is None:
        return False
    import cupy  # type: ignore[import-not-found, unused-ignore]

    return bool(cupy.is_available())


DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.skipif(not _cuda(), reason="torch has no CUDA device")))


def inputs(
    B: int = 2,
    H_q: int = 2,
    H_kv: int = 2,
    N_q: int = 5,
    N_k: int = 7,
    d: int = 8,
    d_v: int = 8,
    dtype: str = "float32",
) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    shapes = (B, H_q, N_q, d), (B, H_kv, N_k, d), (B, H_kv, N_k, d_v)
    q, k, v = (rng.standard_normal(shape).astype(float_dtype(dtype)) for shape in shapes)
    return q, k, v


def layouts(dtype: str) -> dict[str, Array]:
    """Return one array's worth of numbers, in several strides."""
    base = np.arange(2 * 3 * 10 * 16, dtype=np.float64).reshape(2, 3, 10, 16).astype(float_dtype(dtype))
    read_only = base[:, :, ::2].copy()
    read_only.flags.writeable = False
    return {
        "contiguous": base,
        "transposed": base.transpose(0, 2, 1, 3),
        "last axis apart": base.swapaxes(-1, -2),
        "every second": base[:, :, ::2, ::2],
        "offset": base[1:, :, 3:, 5:],
        "one long": base[:, :1, :1],
        "broadcast": np.broadcast_to(base[:, :1], base.shape),
        "stride 0, writable": np.lib.stride_tricks.as_strided(base, (2, 3, 10, 16), (0, *base.strides[1:])),
        "read-only": read_only,
        "read-only, every second": np.broadcast_to(base[..., ::2], (2, 3, 10, 8)),
        "no keys": base[:, :, :0],
        "F order": np.asfortranarray(base)[1:],
        "of a buffer": np.frombuffer(bytearray(base[1].tobytes()), base.dtype)[30:430].reshape(2, 2, 10, 10),
        "unaligned": np.frombuffer(bytearray(b"..." + base[1].tobytes()), np.uint8)[3:]
        .view(base.dtype)
        .reshape(1, 3, 10, 16),
        "of other numbers": np.pad(base.ravel().view(np.uint16), (8, 9))[8:-9].view(base.dtype).reshape(base.shape),
    }


def backwards(a: Array) -> Array:
    return a[:, :, ::-1]


def in_a_record(a: Array) -> Array:
    record = np.zeros(a.shape, dtype=[("a", a.dtype), ("b", np.uint8)])
    record["a"] = a
    found: Array = record["a"]
    return found


def bits(a: Array) -> Array:
    found: Array = np.ascontiguousarray(a).view(np.uint8)
    return found


def same_bits(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bool((bits(a) == bits(b)).all())


def grouped(a: Array, heads: int) -> Array:
    repeated: Array = np.repeat(a, heads // a.shape[1], axis=1)
    return repeated


def close(found: Array, expected: Array, rtol: float = 1e-5) -> None:
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=rtol, atol=rtol)


def sdpa() -> Callable[..., Any]:
    import torch

    found: Callable[..., Any] = torch.nn.functional.scaled_dot_product_attention
    return found


def backend(name: str | None) -> Any:
    if name is None:
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(getattr(SDPBackend, name))


# ------------------------------------------------------------------------------------------------------ any package


def test_the_package_is_imported_only_when_asked_for() -> None:
    code = "import sys, flashsim.testing.wrapping\nprint([name for name in ('torch', 'jax', 'cupy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("xp", "install"), [("torch", "pip install torch"), ("jax", "jax"), ("cupy", "cupy-cuda12x")])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, xp: str, install: str) -> None:
    monkeypatch.setitem(sys.modules, xp, None)
    with pytest.raises(ModuleNotFoundError, match=f"xp='{xp}' needs the package {xp}: .*{install}"):
        wrap(lambda q, k, v: q, xp)


def test_unknown_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="xp is 'numpy'; expected one of 'torch', 'cupy', 'jax'"):
        wrap(lambda q, k, v: q, "numpy")
    with pytest.raises(ValueError, match="convention is 'flash'; expected one of None, 'sdpa', 'flash_attn'"):
        wrap(lambda q, k, v: q, "torch", convention="flash")
    with pytest.raises(ValueError, match="xp is 'jax'; expected 'torch'"):
        wrap(lambda q, k, v: q, "jax", convention="sdpa")
    with pytest.raises(ValueError, match="fn is 3; expected a function"):
        wrap(3, "torch")  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------------------------- torch


@needs_torch
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", layouts("float32"))
def test_torch_gets_and_gives_the_very_bits_and_strides(device: str, dtype: str, layout: str) -> None:
    array = layouts(dtype)[layout]
    seen: list[Any] = []

    def first(q: Any, k: Any, v: Any) -> Any:
        seen.append((str(q.dtype), q.device.type, q.shape, q.stride(), q.data_ptr()))
        return q.clone()

    found = wrap(first, "torch", device=device)(array, array, array)
    kind, on, shape, stride, address = seen[0]
    assert (kind, on, shape) == (f"torch.{dtype}", device, array.shape)
    if array.size:
        used = [i for i, n in enumerate(array.shape) if n > 1]
        assert [stride[i] * array.itemsize for i in used] == [array.strides[i] for i in used]
        assert (address == array.ctypes.data) == (device == "cpu" and array.flags.writeable and array.flags.aligned)
    assert same_bits(found, array)


@needs_torch
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_sixteen_bit_pattern_survives(dtype: str) -> None:
    patterns = np.arange(2**16, dtype=np.uint16)
    array = np.tile(patterns, 4).view(float_dtype(dtype)).reshape(1, 1, 4, -1)
    assert same_bits(wrap(lambda q, k, v: q.clone(), "torch")(array, array, array), array)
    assert same_bits(wrap(lambda q, k, v: q.mT, "torch")(array, array, array), array.swapaxes(-1, -2))


@needs_torch
@pytest.mark.parametrize("change", [backwards, in_a_record])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_torch_cannot_read_in_place_is_copied_and_written_back(
    change: Callable[[Array], Array], dtype: str
) -> None:
    def writes(q: Any, k: Any, v: Any) -> Any:
        result = q.clone()
        q[..., 0] = 5
        return result

    array = change(inputs(dtype=dtype)[0])
    before = array.copy()
    assert same_bits(wrap(writes, "torch")(array, array, array), before)
    assert (array[..., 0] == 5).all()
    assert same_bits(array[..., 1:], before[..., 1:])


@needs_torch
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["contiguous", "transposed", "every second", "offset"])
def test_a_function_that_changes_its_inputs_is_seen(device: str, dtype: str, name: str) -> None:
    def scales(q: Any, k: Any, v: Any, mask: Any) -> Any:
        k[..., 1:2] = 3
        mask[..., 0] = False
        return q.clone()

    array = layouts(dtype)[name]
    before, mask = array.copy(), np.ones((4, 4), bool)
    wrap(scales, "torch", device=device)(array.copy(), array, array.copy(), mask=mask)
    assert (array[..., 1] == 3).all()
    assert same_bits(array[..., 2:], before[..., 2:])
    assert not mask[:, 0].any()
    assert mask[:, 1:].all()


@needs_torch
@pytest.mark.parametrize("device", DEVICES)
def test_the_gaps_between_elements_are_there_too(device: str) -> None:
    """A function that reads or writes past a row's end meets the caller's memory."""
    whole = np.zeros((1, 1, 4, 8), np.float32)
    part, poison = whole[..., :4], whole[..., 4:]
    poison[:] = np.nan

    def reaches_over(q: Any, k: Any, v: Any) -> Any:
        wide = k.as_strided((1, 1, 3, 8), k.stride())
        result = wide.isnan().sum().reshape(1).float()
        wide[..., -1] = 7
        return result

    assert wrap(reaches_over, "torch", device=device)(part.copy(), part, part.copy()) == 12
    assert (whole[0, 0, :3, -1] == 7).all()
    assert np.isnan(whole[0, 0, :, 4:7]).all()


@needs_torch
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_copy_has_what_is_around_the_array(device: str, read_only: bool, dtype: str) -> None:
    if device == "cpu" and not read_only:
        pytest.skip("torch works on the caller's memory, and begins at the array")

    def looks_around(q: Any, k: Any, v: Any) -> Any:
        ahead = k.as_strided((1,), (1,), k.storage_offset() - 1)
        behind = k.as_strided((1,), (1,), k.storage_offset() + k.numel())
        result = ahead.clone(), behind.clone()
        if not read_only:
            behind += 2
        return result

    memory = np.arange(40).astype(float_dtype(dtype))
    array = memory[5:29].reshape(1, 2, 3, 4)
    array.flags.writeable = not read_only
    ahead, behind = wrap(looks_around, "torch", device=device)(array.copy(), array, array.copy())
    assert (ahead, behind) == (4, 29)
    assert memory[29] == (29 if read_only else 31)
    assert (memory[:29] == np.arange(29)).all()


@needs_torch
@pytest.mark.parametrize("device", DEVICES)
def test_writing_into_a_read_only_array_is_refused(device: str) -> None:
    def writes(q: Any, k: Any, v: Any) -> Any:
        v.zero_()
        return q

    q, k, v = inputs()
    v.flags.writeable = False
    before = v.copy()
    with pytest.raises(ValueError, match="writes wrote into v, which is read-only"):
        wrap(writes, "torch", device=device)(q, k, v)
    assert same_bits(v, before)


@needs_torch
@pytest.mark.parametrize("device", DEVICES)
def test_keywords_reach_the_function(device: str) -> None:
    import torch

    got: dict[str, Any] = {}

    def takes(q: Any, k: Any, v: Any, **keywords: Any) -> Any:
        got.update(keywords)
        return q, k.float().sum(-1), [v][0]

    q, k, v = inputs()
    mask = np.broadcast_to(np.arange(7) < 3, (5, 7))
    result = wrap(takes, "torch", device=device)(
        q, k, v, causal=np.True_, scale=np.float64(0.5), mask=mask, dropout_p=0.1, seed=3
    )
    assert isinstance(result, tuple)
    assert [type(a) for a in result] == [np.ndarray] * 3
    assert got["causal"] is True
    assert type(got["scale"]) is float
    assert (got["scale"], got["dropout_p"], got["seed"]) == (0.5, 0.1, 3)
    assert got["mask"].dtype == torch.bool
    assert got["mask"].device.type == device
    assert got["mask"].stride() == (0, 1)
    assert (got["mask"].cpu().numpy() == mask).all()


@needs_torch
def test_results_that_require_grad_are_detached() -> None:
    import torch

    weight = torch.ones(8, requires_grad=True)
    q, k, v = inputs()
    assert same_bits(wrap(lambda q, k, v: q * weight, "torch")(q, k, v), q)


@needs_torch
def test_what_torch_does_not_have_is_refused() -> None:
    q, k, v = inputs()
    with pytest.raises(ValueError, match="k has dtype complex64; expected one that torch has"):
        wrap(lambda q, k, v: q, "torch")(q, k.astype(np.complex64), v)
    with pytest.raises(ValueError, match="<lambda> returned an object of type int; expected a torch array"):
        wrap(lambda q, k, v: 3, "torch")(q, k, v)


# ---------------------------------------------------------------------------------------------- torch: conventions


def test_specs_of_the_conventions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(device=lambda name: name))
    promised = wrap(lambda q, k, v: q, "torch", convention="sdpa").spec()
    assert (promised.layout, promised.causal, promised.empty_rows, promised.lse) == ("BHND", "top_left", "zero", None)
    assert all((promised.masks, promised.scale, promised.gqa, promised.cross, promised.d_v, promised.zero_keys))
    assert promised.dtypes == ("float32", "float16", "bfloat16")
    flash = wrap(lambda q, k, v: q, "torch", convention="flash_attn")
    assert (flash.spec().layout, flash.spec().causal, flash.spec().masks) == ("BNHD", "bottom_right", False)
    assert flash.spec().head_dims == tuple(8 * n for n in range(1, 33))
    assert flash.spec(head_dims=(64,), lse="natural").head_dims == (64,)
    with pytest.raises(ValueError, match="layout is 'BHND'; expected 'BNHD', that of flash_attn"):
        flash.spec(layout="BHND")
    assert wrap(lambda q, k, v: q, "torch").spec(layout="BNHD", masks=True) == Spec(layout="BNHD", masks=True)


SDPA_CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal, fewer queries": {"causal": True},
    "causal, fewer keys": {"N_q": 9, "causal": True},
    "causal=False": {"causal": False},
    "scale": {"scale": 0.7},
    "negative scale": {"scale": -0.7},
    "scale 0": {"scale": 0.0},
    "one head's keys": {"mask": "keys"},
    "mask": {"mask": "full"},
    "mask of two axes": {"mask": "matrix"},
    "mask and causal": {"mask": "full", "causal": True},
    "mask and causal, fewer keys": {"mask": "matrix", "causal": True, "N_q": 9},
    "grouped": {"H_q": 4},
    "grouped, causal": {"H_q": 4, "H_kv": 1, "causal": True},
    "grouped, masked, scaled": {"H_q": 6, "mask": "full", "scale": 0.3, "causal": True},
    "one key": {"N_k": 1},
    "no keys": {"N_k": 0},
    "d_v": {"d_v": 5, "causal": True},
}


def problem(case: dict[str, Any], dtype: str) -> tuple[tuple[Array, Array, Array], dict[str, Any], Array | None]:
    """Return the inputs, the keywords, and the mask that they amount to."""
    sizes = {name: value for name, value in case.items() if name not in ("causal", "scale", "mask")}
    q, k, v = inputs(dtype=dtype, **sizes)
    keywords = {name: value for name, value in case.items() if name in ("causal", "scale", "mask")}
    N_q, N_k = q.shape[2], k.shape[2]
    full = np.random.default_rng(1).random((2, q.shape[1], N_q, N_k)) < 0.7
    full[:, :, 1] = False  # a query with no keys
    masks = {"full": full, "matrix": full[0, 0], "keys": full[0, 0, 0]}
    whole = None
    if "mask" in keywords:
        keywords["mask"] = whole = masks[keywords["mask"]]
    if keywords.get("causal"):
        lower = np.tri(N_q, N_k, dtype=bool)
        whole = lower if whole is None else whole & lower
    return (q, k, v), keywords, whole


@needs_torch
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [None, "MATH", "FLASH_ATTENTION"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("case", SDPA_CASES)
def test_sdpa_against_the_reference(device: str, name: str | None, dtype: str, case: str) -> None:
    if name == "FLASH_ATTENTION" and (device == "cuda" or case in ("d_v", "no keys")):
        pytest.skip("this backend does not take it, or not in every version")
    if name is None and device == "cuda" and dtype != "float32":
        pytest.skip("cuDNN, which torch may choose, differs: empty rows are not 0, a scale ≤ 0 gives NaN")
    (q, k, v), keywords, mask = problem(SDPA_CASES[case], dtype)
    kernel = wrap(sdpa(), "torch", convention="sdpa", device=device)
    with backend(name):
        found = kernel(q, k, v, **keywords)
    if k.shape[2]:
        K, V = (grouped(a, q.shape[1]) for a in (k, v))
        expected = attention(q, K, V, scale=keywords.get("scale"), mask=mask)
    else:
        expected = np.zeros((*q.shape[:3], v.shape[3]))
    assert found.dtype == q.dtype
    close(found, expected, {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype])


@needs_torch
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [None, "MATH", "FLASH_ATTENTION"])
@pytest.mark.parametrize("case", [name for name in SDPA_CASES if name != "no keys"])
def test_sdpa_gradients_against_the_reference(device: str, name: str | None, case: str) -> None:
    if name == "FLASH_ATTENTION" and (device == "cuda" or case == "d_v"):
        pytest.skip("this backend does not take it")
    (q, k, v), keywords, mask = problem(SDPA_CASES[case], "float32")
    do = np.random.default_rng(2).standard_normal((*q.shape[:3], v.shape[3])).astype(np.float32)
    untouched = [a.copy() for a in (q, k, v, do)]
    with backend(name):
        dq, dk, dv = wrap(sdpa(), "torch", convention="sdpa", device=device).backward(q, k, v, do, **keywords)
    K, V = (grouped(a, q.shape[1]) for a in (k, v))
    expected = gradients(q, K, V, do, scale=keywords.get("scale"), mask=mask)
    close(dq, expected.dQ)
    for found, whole, a in ((dk, expected.dK, k), (dv, expected.dV, v)):
        close(found, whole.reshape(a.shape[0], a.shape[1], -1, *a.shape[2:]).sum(axis=2))
    assert all(same_bits(a, b) for a, b in zip((q, k, v, do), untouched, strict=True))


@needs_torch
@pytest.mark.parametrize("device", DEVICES)
def test_sdpa_gets_strides_and_one_mask_of_four_axes(device: str) -> None:
    got: dict[str, Any] = {}

    def records(q: Any, k: Any, v: Any, **keywords: Any) -> Any:
        got.update(keywords, strides=(q.stride(), k.stride(), v.stride()))
        return sdpa()(q, k, v, **keywords)

    q, k, v = (a.swapaxes(1, 2).copy().swapaxes(1, 2) for a in inputs())
    kernel = wrap(records, "torch", convention="sdpa", device=device)
    kernel(q, k, v)
    assert got == {"strides": tuple(tuple(s // 4 for s in a.strides) for a in (q, k, v))}
    kernel(q, k, v, causal=True, scale=2.0)
    assert (got.pop("is_causal"), got.pop("scale")) == (True, 2.0)
    kernel(q, k, v, causal=True, mask=np.ones(7, bool))
    assert "is_causal" not in got
    assert (got.pop("attn_mask").cpu().numpy() == np.tri(5, 7, dtype=bool)[None, None]).all()
    kernel(q, k, v, mask=np.ones((2, 1, 1, 7), bool))
    assert got["attn_mask"].shape == (2, 1, 1, 7)
    kernel(q, k[:, :1], v[:, :1])
    assert got["enable_gqa"] is True
    with pytest.raises(TypeError, match="window"):
        kernel(q, k, v, window=3)


@needs_torch
@pytest.mark.parametrize("device", DEVICES)
def test_a_seed_repeats_dropout_and_leaves_the_generator(device: str) -> None:
    import torch

    q, k, v = inputs(N_q=20, N_k=20)
    kernel = wrap(sdpa(), "torch", convention="sdpa", device=device)
    state = torch.get_rng_state()
    once, again, other = (kernel(q, k, v, dropout_p=0.5, seed=seed) for seed in (1, 1, 2))
    assert (torch.get_rng_state() == state).all()
    assert same_bits(once, again)
    assert not same_bits(once, other)
    assert not same_bits(once, kernel(q, k, v))


def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Do what flash_attn's function of that name documents, in plain torch."""
    q, k, v = (a.transpose(1, 2).float() for a in (q, k, v))
    k, v = (a.repeat_interleave(q.shape[1] // a.shape[1], dim=1) for a in (k, v))
    N_q, N_k = q.shape[2], k.shape[2]
    S = q @ k.mT * (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
    if causal:
        S = S.masked_fill(~S.new_ones(N_q, N_k).bool().tril(N_k - N_q), float("-inf"))
    lse = S.logsumexp(-1)
    empty = lse == float("-inf")
    P = (S - lse.masked_fill(empty, 0)[..., None]).exp()
    O = (P @ v).transpose(1, 2).contiguous().half()
    return (O, lse.masked_fill(empty, float("inf")), None) if return_attn_probs else O


@needs_torch
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("N_q", "N_k"), [(5, 7), (7, 5), (1, 4), (6, 6)])
def test_flash_attn_against_the_reference(device: str, N_q: int, N_k: int, causal: bool, scale: float | None) -> None:
    q, k, v = inputs(H_q=4, N_q=N_q, N_k=N_k, dtype="float16")
    keywords: dict[str, Any] = {"causal": True} if causal else {}
    if scale is not None:
        keywords["scale"] = scale
    mask = np.tri(N_q, N_k, N_k - N_q, dtype=bool) if causal else None
    expected = attention_with_statistics(q, grouped(k, 4), grouped(v, 4), scale=scale, mask=mask)
    turned = [a.swapaxes(1, 2) for a in (q, k, v)]
    kernel = wrap(flash_attn_func, "torch", convention="flash_attn", device=device)
    O = kernel(*turned, **keywords)
    assert O.shape == turned[0].shape
    close(O.swapaxes(1, 2), expected.O, 2e-3)

    with_lse = wrap(
        functools.partial(flash_attn_func, return_attn_probs=True), "torch", convention="flash_attn", device=device
    )
    again, lse = with_lse(*turned, **keywords)
    assert same_bits(again, O)
    empty = expected.l == 0
    assert (lse[empty] == np.inf).all()
    close(lse[~empty], expected.m[~empty] + np.log(expected.l[~empty]))

    do = np.random.default_rng(2).standard_normal(q.shape).astype(np.float16)
    exact = gradients(q, grouped(k, 4), grouped(v, 4), do, scale=scale, mask=mask)
    dq, dk, dv = with_lse.backward(*turned, do.swapaxes(1, 2), **keywords)
    close(dq.swapaxes(1, 2), exact.dQ, 1e-2)
    close(dk.swapaxes(1, 2), exact.dK.reshape(2, 2, 2, N_k, 8).sum(axis=2), 1e-2)
    close(dv.swapaxes(1, 2), exact.dV.reshape(2, 2, 2, N_k, 8).sum(axis=2), 1e-2)
    assert repr(with_lse) == "<flash_attn_func on torch, wrapped for NumPy>"


@needs_torch
def test_flash_attn_takes_no_masks() -> None:
    q, k, v = (a.swapaxes(1, 2) for a in inputs(dtype="float16"))
    with pytest.raises(ValueError, match="mask is given; expected none, which flash_attn does not take"):
        wrap(flash_attn_func, "torch", convention="flash_attn")(q, k, v, mask=np.ones((5, 7), bool))


@needs_torch
def test_backward_needs_a_graph_and_knows_what_does_not_matter() -> None:
    q, k, v = inputs(N_k=5)
    with pytest.raises(ValueError, match="does not require grad"):
        wrap(lambda q, k, v: q.detach(), "torch").backward(q, k, v, q)
    dq, dk, dv = wrap(lambda q, k, v: (2 * q, k), "torch").backward(q, k, v, q)
    assert same_bits(dq, 2 * q)
    assert not dk.any()
    assert not dv.any()


# ---------------------------------------------------------------------------------------------------------------- JAX


def jax_attention(q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None, mask: Any = None) -> Any:
    import jax

    q, k, v = (a.swapaxes(1, 2) for a in (q, k, v))  # jax.nn's is (B, N, H, d)
    if mask is not None:
        mask = mask[(None,) * (4 - mask.ndim)]
    result = jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=causal, scale=scale)
    return result.swapaxes(1, 2)


JAX_CASES: dict[str, dict[str, Any]] = {
    name: {key: value for key, value in case.items() if key != "d_v"}
    for name, case in SDPA_CASES.items()
    if name not in ("one head's keys", "no keys", "d_v") and "mask" not in case
}


@needs_jax
@pytest.mark.parametrize("case", JAX_CASES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_jax_against_the_reference(case: str, dtype: str) -> None:
    (q, k, v), keywords, mask = problem(JAX_CASES[case], dtype)
    found = wrap(jax_attention, "jax")(q, k, v, **keywords)
    assert type(found) is np.ndarray
    assert found.dtype == q.dtype
    K, V = (grouped(a, q.shape[1]) for a in (k, v))
    expected = attention(q, K, V, scale=keywords.get("scale"), mask=mask)
    close(found, expected, {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype])


@needs_jax
def test_jax_masks_and_gradients() -> None:
    (q, k, v), keywords, mask = problem({"H_q": 4, "mask": "full", "causal": True}, "float32")
    assert mask is not None
    keywords["mask"] = keywords["mask"].copy()
    keywords["mask"][..., 0] = mask[..., 0] = True  # jax.nn's says nothing of queries with no keys
    do = np.random.default_rng(2).standard_normal(q.shape).astype(np.float32)
    kernel = wrap(lambda q, k, v, **keywords: (jax_attention(q, k, v, **keywords), q), "jax")
    close(kernel(q, k, v, **keywords)[0], attention(q, grouped(k, 4), grouped(v, 4), mask=mask))
    expected = gradients(q, grouped(k, 4), grouped(v, 4), do, mask=mask)
    dq, dk, dv = kernel.backward(q, k, v, do, **keywords)
    close(dq, expected.dQ)
    close(dk, expected.dK.reshape(2, 2, 2, 7, 8).sum(axis=2))
    close(dv, expected.dV.reshape(2, 2, 2, 7, 8).sum(axis=2))


@needs_jax
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("layout", layouts("float32"))
def test_jax_gets_and_gives_the_very_bits(dtype: str, layout: str) -> None:
    array = layouts(dtype)[layout]
    assert same_bits(wrap(lambda q, k, v: q, "jax", device="cpu")(array, array, array), array)


@needs_jax
def test_jax_holds_no_memory_of_the_caller() -> None:
    import jax

    kept: list[Any] = []

    def keeps(q: Any, k: Any, v: Any) -> Any:
        kept.append(q)
        assert isinstance(q, jax.Array)
        return q

    q, k, v = inputs()
    result = wrap(keeps, "jax")(q, k, v)
    before = q.copy()
    q[:] = 0
    assert same_bits(np.asarray(kept[0]), before)
    result[:] = 0
    assert same_bits(np.asarray(kept[0]), before)


@needs_jax
def test_jax_has_float64_only_where_it_is_enabled() -> None:
    import jax

    q, k, v = inputs(dtype="float64")
    kernel = wrap(jax_attention, "jax")
    with pytest.raises(
        ValueError, match=r'q has dtype float64, .*expected jax.config.update\("jax_enable_x64", True\)'
    ):
        kernel(q, k, v)
    jax.config.update("jax_enable_x64", True)
    try:
        found = wrap(lambda q, k, v: jax.nn.softmax(q @ k.mT / 8**0.5) @ v, "jax")(q, k, v)
    finally:
        jax.config.update("jax_enable_x64", False)
    assert found.dtype == np.float64
    close(found, attention(q, k, v), 1e-13)


# --------------------------------------------------------------------------------------------------------------- CuPy


@contextmanager
def _device(number: int) -> Iterator[int]:
    yield number


def fake_cupy() -> types.ModuleType:
    """Return what `wrap` uses of CuPy, in NumPy."""
    cupy: Any = types.ModuleType("cupy")
    cupy.__version__ = "0"
    cupy.ndarray = np.ndarray
    cupy.asarray = np.array  # onto the device: always a copy
    cupy.asnumpy = np.array
    cupy.lib = types.SimpleNamespace(stride_tricks=np.lib.stride_tricks)
    cupy.cuda = types.SimpleNamespace(Device=_device)
    module: types.ModuleType = cupy
    return module


@pytest.fixture(
    params=["stand-in", pytest.param("cupy", marks=pytest.mark.skipif(not _cupy(), reason="cupy has no device here"))]
)
def cupy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "stand-in":
        monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    import cupy

    return cupy


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", layouts("float32"))
def test_cupy_gets_and_gives_the_very_bits_and_strides(cupy: Any, dtype: str, layout: str) -> None:
    array = layouts(dtype)[layout]
    seen: list[Any] = []

    def first(q: Any, k: Any, v: Any, mask: Any) -> Any:
        seen.append((q, mask))
        assert isinstance(q, cupy.ndarray)
        return q.copy(), mask

    mask = np.broadcast_to(np.arange(7) < 3, (5, 7))
    found, same = wrap(first, "cupy", device=0)(array, array, array, mask=mask)
    used = [i for i, n in enumerate(array.shape) if n > 1 and array.size]
    assert [seen[0][0].strides[i] for i in used] == [array.strides[i] for i in used]
    assert same_bits(found, array)
    assert same_bits(same, mask)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["contiguous", "transposed", "every second", "offset", "stride 0, writable"])
def test_what_cupy_changes_is_written_back(cupy: Any, dtype: str, name: str) -> None:
    def writes(q: Any, k: Any, v: Any) -> Any:
        k[..., 1:2] = 3
        return q.copy()

    array = layouts(dtype)[name]
    before = array.copy()
    wrap(writes, "cupy")(array.copy(), array, array.copy())
    assert (array[..., 1] == 3).all()
    assert same_bits(array[..., 2:], before[..., 2:])
    array = before.copy()
    array.flags.writeable = False
    with pytest.raises(ValueError, match="writes wrote into k, which is read-only"):
        wrap(writes, "cupy")(before, array, before)
    assert same_bits(array, before)


def test_cupy_has_no_backward(cupy: Any) -> None:
    kernel = wrap(lambda q, k, v: q, "cupy")
    assert not hasattr(kernel, "backward")
    with pytest.raises(AttributeError, match="no backward for <lambda>: cupy has no automatic differentiation"):
        _ = kernel.backward


def test_an_old_cupy_without_bfloat16_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old(np.ndarray[Any, Any]):
        def view(self, *args: Any) -> Any:  # type: ignore[override]
            raise TypeError("Unsupported type")

    module: Any = fake_cupy()
    module.asarray = lambda a: np.array(a).view(Old)
    monkeypatch.setitem(sys.modules, "cupy", module)
    q, k, v = inputs(dtype="bfloat16")
    with pytest.raises(ValueError, match="q has dtype bfloat16, which this CuPy"):
        wrap(lambda q, k, v: q, "cupy")(q, k, v)

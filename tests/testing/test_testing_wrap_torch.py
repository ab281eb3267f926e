"""Attentions on torch's tensors, wrapped for NumPy: with `pip install torch`, pytest
tests/testing/test_testing_wrap_torch.py.
"""

import functools
import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashsim.attention.inputs import Array, float_dtype
from flashsim.cli import main
from flashsim.reference import attention, attention_with_statistics, gradients
from flashsim.testing import CHECKS, Case, Spec, check_attention
from flashsim.testing.kernel import Kernel
from flashsim.testing.survey import try_check
from flashsim.testing.wrapping import wrap
from tests.helpers.wrapping import (
    DTYPES,
    SDPA_CASES,
    backwards,
    close,
    grouped,
    in_a_record,
    inputs,
    layouts,
    problem,
    same_bits,
)

torch = pytest.importorskip("torch", reason="torch is not installed")
DEVICES = (
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no CUDA device"),
    ),
)


def sdpa() -> Callable[..., Any]:
    result: Callable[..., Any] = torch.nn.functional.scaled_dot_product_attention
    return result


def backend(name: str | None) -> Any:
    if name is None:
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(getattr(SDPBackend, name))


# --------------------------------------------------------------------------------------------------
# torch


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", layouts("float32"))
def test_torch_gets_and_gives_the_very_bits_and_strides(
    device: str, dtype: str, layout: str
) -> None:
    array = layouts(dtype)[layout]
    events: list[Any] = []

    def first(q: Any, k: Any, v: Any) -> Any:
        bits = (str(q.dtype), q.device.type, q.shape)
        events.append((*bits, q.stride(), q.data_ptr()))
        return q.clone()

    result = wrap(first, "torch", device=device)(array, array, array)
    kind, on, shape, stride, address = events[0]
    assert (kind, on, shape) == (f"torch.{dtype}", device, array.shape)
    if array.size:
        used = [i for i, n in enumerate(array.shape) if n > 1]
        strides = [array.strides[i] for i in used]
        assert [stride[i] * array.itemsize for i in used] == strides
        in_place = device == "cpu" and array.flags.writeable and array.flags.aligned
        assert (address == array.ctypes.data) == in_place
    assert same_bits(result, array)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_sixteen_bit_pattern_survives(dtype: str) -> None:
    patterns = np.arange(2**16, dtype=np.uint16)
    array = np.tile(patterns, 4).view(float_dtype(dtype)).reshape(1, 1, 4, -1)
    copies = wrap(lambda q, k, v: q.clone(), "torch")
    assert same_bits(copies(array, array, array), array)
    turns = wrap(lambda q, k, v: q.mT, "torch")
    assert same_bits(turns(array, array, array), array.swapaxes(-1, -2))


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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["contiguous", "transposed", "every second", "offset"])
def test_a_function_that_changes_its_inputs_is_seen(device: str, dtype: str, name: str) -> None:
    def scales(q: Any, k: Any, v: Any, mask: Any) -> Any:
        k[..., 1:2] = 3
        mask[..., 0] = False
        return q.clone()

    array = layouts(dtype)[name]
    before = array.copy()
    mask = np.ones((4, 4), bool)
    kernel = wrap(scales, "torch", device=device)
    kernel(array.copy(), array, array.copy(), mask=mask)
    assert (array[..., 1] == 3).all()
    assert same_bits(array[..., 2:], before[..., 2:])
    assert not mask[:, 0].any()
    assert mask[:, 1:].all()


@pytest.mark.parametrize("device", DEVICES)
def test_the_gaps_between_elements_are_there_too(device: str) -> None:
    """A function that reads or writes past a row's end meets the caller's memory."""
    whole = np.zeros((1, 1, 4, 8), np.float32)
    part = whole[..., :4]
    poison = whole[..., 4:]
    poison[:] = np.nan

    def reaches_over(q: Any, k: Any, v: Any) -> Any:
        wide = k.as_strided((1, 1, 3, 8), k.stride())
        result = wide.isnan().sum().reshape(1).float()
        wide[..., -1] = 7
        return result

    kernel = wrap(reaches_over, "torch", device=device)
    assert kernel(part.copy(), part, part.copy()) == 12
    assert (whole[0, 0, :3, -1] == 7).all()
    assert np.isnan(whole[0, 0, :, 4:7]).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_copy_has_what_is_around_the_array(device: str, read_only: bool, dtype: str) -> None:
    if device == "cpu" and not read_only:
        pytest.skip("torch works on the caller's memory, and begins at the array")

    def looks_around(q: Any, k: Any, v: Any) -> Any:
        ahead = k.as_strided((1,), (1,), k.storage_offset() - 1)
        end = k.storage_offset() + k.numel()
        behind = k.as_strided((1,), (1,), end)
        copies = ahead.clone(), behind.clone()
        if not read_only:
            behind += 2
        return copies

    memory = np.arange(40).astype(float_dtype(dtype))
    array = memory[5:29].reshape(1, 2, 3, 4)
    array.flags.writeable = not read_only
    kernel = wrap(looks_around, "torch", device=device)
    ahead, behind = kernel(array.copy(), array, array.copy())
    assert (ahead, behind) == (4, 29)
    assert memory[29] == (29 if read_only else 31)
    assert (memory[:29] == np.arange(29)).all()


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


@pytest.mark.parametrize("device", DEVICES)
def test_keywords_reach_the_function(device: str) -> None:
    keywords: dict[str, Any] = {}

    def takes(q: Any, k: Any, v: Any, **of_call: Any) -> Any:
        keywords.update(of_call)
        return q, k.float().sum(-1), [v][0]

    q, k, v = inputs()
    mask = np.broadcast_to(np.arange(7) < 3, (5, 7))
    kernel = wrap(takes, "torch", device=device)
    outputs = kernel(
        q,
        k,
        v,
        causal=np.True_,
        scale=np.float64(0.5),
        mask=mask,
        dropout_p=0.1,
        seed=3,
    )
    assert isinstance(outputs, tuple)
    assert [type(output) for output in outputs] == [np.ndarray] * 3
    assert keywords["causal"] is True
    assert type(keywords["scale"]) is float
    assert keywords["scale"] == 0.5
    assert keywords["dropout_p"] == 0.1
    assert keywords["seed"] == 3
    assert keywords["mask"].dtype == torch.bool
    assert keywords["mask"].device.type == device
    assert keywords["mask"].stride() == (0, 1)
    assert (keywords["mask"].cpu().numpy() == mask).all()


def test_results_that_require_grad_are_detached() -> None:
    weight = torch.ones(8, requires_grad=True)
    q, k, v = inputs()
    weighted = wrap(lambda q, k, v: q * weight, "torch")
    assert same_bits(weighted(q, k, v), q)


def test_what_torch_does_not_have_is_refused() -> None:
    q, k, v = inputs()
    first = wrap(lambda q, k, v: q, "torch")
    with pytest.raises(ValueError, match="k has dtype complex64; expected one that torch has"):
        first(q, k.astype(np.complex64), v)
    with pytest.raises(
        ValueError, match="<lambda> returned an object of type int; expected a torch array"
    ):
        wrap(lambda q, k, v: 3, "torch")(q, k, v)


# ----------------------------------------------------------------------------------------------
# torch: conventions


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [None, "MATH", "FLASH_ATTENTION"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("case", SDPA_CASES)
def test_sdpa_against_the_reference(device: str, name: str | None, dtype: str, case: str) -> None:
    if name == "FLASH_ATTENTION" and (device == "cuda" or case in ("d_v", "no keys")):
        pytest.skip("this backend does not take it, or not in every version")
    if name is None and device == "cuda" and dtype != "float32":
        pytest.skip(
            "cuDNN, which torch may choose, differs: empty rows are not 0, a scale ≤ 0 gives NaN"
        )
    (q, k, v), keywords, mask = problem(SDPA_CASES[case], dtype)
    kernel = wrap(sdpa(), "torch", convention="sdpa", device=device)
    with backend(name):
        result = kernel(q, k, v, **keywords)
    if k.shape[2]:
        K, V = (grouped(a, q.shape[1]) for a in (k, v))
        expected = attention(q, K, V, scale=keywords.get("scale"), mask=mask)
    else:
        expected = np.zeros((*q.shape[:3], v.shape[3]))
    assert result.dtype == q.dtype
    close(result, expected, {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [None, "MATH", "FLASH_ATTENTION"])
@pytest.mark.parametrize("case", [name for name in SDPA_CASES if name != "no keys"])
def test_sdpa_gradients_against_the_reference(device: str, name: str | None, case: str) -> None:
    if name == "FLASH_ATTENTION" and (device == "cuda" or case == "d_v"):
        pytest.skip("this backend does not take it")
    (q, k, v), keywords, mask = problem(SDPA_CASES[case], "float32")
    normal = np.random.default_rng(2).standard_normal((*q.shape[:3], v.shape[3]))
    do = normal.astype(np.float32)
    untouched = [a.copy() for a in (q, k, v, do)]
    with backend(name):
        dq, dk, dv = wrap(sdpa(), "torch", convention="sdpa", device=device).backward(
            q, k, v, do, **keywords
        )
    K, V = (grouped(a, q.shape[1]) for a in (k, v))
    expected = gradients(q, K, V, do, scale=keywords.get("scale"), mask=mask)
    close(dq, expected.dQ)
    for gradient, of_heads, a in ((dk, expected.dK, k), (dv, expected.dV, v)):
        B, H_kv, N, width = a.shape
        close(gradient, of_heads.reshape(B, H_kv, -1, N, width).sum(axis=2))
    for operand, copy in zip((q, k, v, do), untouched, strict=True):
        assert same_bits(operand, copy)


@pytest.mark.parametrize("device", DEVICES)
def test_sdpa_gets_strides_and_one_mask_of_four_axes(device: str) -> None:
    events: dict[str, Any] = {}

    def records(q: Any, k: Any, v: Any, **keywords: Any) -> Any:
        strides = [q.stride(), k.stride(), v.stride()]
        events.update(keywords, strides=strides)
        return sdpa()(q, k, v, **keywords)

    q, k, v = (a.swapaxes(1, 2).copy().swapaxes(1, 2) for a in inputs())
    strides = []
    for array in (q, k, v):
        strides.append(tuple(stride // 4 for stride in array.strides))
    kernel = wrap(records, "torch", convention="sdpa", device=device)
    kernel(q, k, v)
    assert events == {"strides": strides}
    kernel(q, k, v, causal=True, scale=2.0)
    assert events.pop("is_causal") is True
    assert events.pop("scale") == 2.0
    kernel(q, k, v, causal=True, mask=np.ones(7, bool))
    assert "is_causal" not in events
    attn_mask = events.pop("attn_mask").cpu().numpy()
    assert (attn_mask == np.tri(5, 7, dtype=bool)[None, None]).all()
    kernel(q, k, v, mask=np.ones((2, 1, 1, 7), bool))
    assert events["attn_mask"].shape == (2, 1, 1, 7)
    kernel(q, k[:, :1], v[:, :1])
    assert events["enable_gqa"] is True
    with pytest.raises(TypeError, match="window"):
        kernel(q, k, v, window=3)


@pytest.mark.parametrize("device", DEVICES)
def test_a_seed_repeats_dropout_and_leaves_the_generator(device: str) -> None:
    q, k, v = inputs(N_q=20, N_k=20)
    kernel = wrap(sdpa(), "torch", convention="sdpa", device=device)
    state = torch.get_rng_state()
    once = kernel(q, k, v, dropout_p=0.5, seed=1)
    again = kernel(q, k, v, dropout_p=0.5, seed=1)
    other = kernel(q, k, v, dropout_p=0.5, seed=2)
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
    group = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(group, dim=1)
    v = v.repeat_interleave(group, dim=1)
    N_q = q.shape[2]
    N_k = k.shape[2]
    tau = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    S = q @ k.mT * tau
    if causal:
        allowed = S.new_ones(N_q, N_k).bool().tril(N_k - N_q)
        S = S.masked_fill(~allowed, float("-inf"))
    lse = S.logsumexp(-1)
    empty = lse == float("-inf")
    P = (S - lse.masked_fill(empty, 0)[..., None]).exp()
    O = (P @ v).transpose(1, 2).contiguous().half()
    return (O, lse.masked_fill(empty, float("inf")), None) if return_attn_probs else O


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("N_q", "N_k"),
    [(5, 7), (7, 5), (1, 4), (6, 6)],
)
def test_flash_attn_against_the_reference(
    device: str, N_q: int, N_k: int, causal: bool, scale: float | None
) -> None:
    q, k, v = inputs(H_q=4, N_q=N_q, N_k=N_k, dtype="float16")
    keywords: dict[str, Any] = {"causal": True} if causal else {}
    if scale is not None:
        keywords["scale"] = scale
    mask = np.tri(N_q, N_k, N_k - N_q, dtype=bool) if causal else None
    K = grouped(k, 4)
    V = grouped(v, 4)
    expected = attention_with_statistics(q, K, V, scale=scale, mask=mask)
    transposed = [a.swapaxes(1, 2) for a in (q, k, v)]
    kernel = wrap(flash_attn_func, "torch", convention="flash_attn", device=device)
    O = kernel(*transposed, **keywords)
    assert O.shape == transposed[0].shape
    close(O.swapaxes(1, 2), expected.O, 2e-3)

    probs = functools.partial(flash_attn_func, return_attn_probs=True)
    with_lse = wrap(probs, "torch", convention="flash_attn", device=device)
    again, lse = with_lse(*transposed, **keywords)
    assert same_bits(again, O)
    empty = expected.l == 0
    assert (lse[empty] == np.inf).all()
    want_lse = expected.m + np.log(np.where(empty, 1, expected.l))
    close(lse[~empty], want_lse[~empty])

    do = np.random.default_rng(2).standard_normal(q.shape).astype(np.float16)
    exact = gradients(q, K, V, do, scale=scale, mask=mask)
    dq, dk, dv = with_lse.backward(*transposed, do.swapaxes(1, 2), **keywords)
    close(dq.swapaxes(1, 2), exact.dQ, 1e-2)
    of_groups = (2, 2, 2, N_k, 8)
    close(dk.swapaxes(1, 2), exact.dK.reshape(of_groups).sum(axis=2), 1e-2)
    close(dv.swapaxes(1, 2), exact.dV.reshape(of_groups).sum(axis=2), 1e-2)
    assert repr(with_lse) == "<flash_attn_func on torch, wrapped for NumPy>"


def test_flash_attn_takes_no_masks() -> None:
    q, k, v = (a.swapaxes(1, 2) for a in inputs(dtype="float16"))
    mask = np.ones((5, 7), bool)
    kernel = wrap(flash_attn_func, "torch", convention="flash_attn")
    message = "mask is given; expected none, which flash_attn does not take"
    with pytest.raises(ValueError, match=message):
        kernel(q, k, v, mask=mask)


FLEX: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal, grouped": {"causal": True, "group": 2},
    "masked": {"mask": "dense", "causal": True, "d_v": 5},
    "all": {
        "softcap": 0.5,
        "alibi": True,
        "bias": "dense",
        "window": (2, 1),
        "scale": -0.3,
    },
    "rows without keys": {"mask": "rows"},
}


@pytest.mark.filterwarnings(
    "ignore:flex_attention called without torch.compile", "ignore:return_lse is deprecated"
)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("how", ["return_aux", "return_lse"])
def test_flex_attention_passes_and_its_bugs_show(device: str, how: str) -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    if how == "return_aux":
        attention = functools.partial(flex.flex_attention, return_aux=flex.AuxRequest(lse=True))
    else:
        attention = functools.partial(flex.flex_attention, return_lse=True)
    wrapped = wrap(attention, "torch", convention="flex_attention", device=device)
    kernel = Kernel(wrapped, wrapped.spec(lse="natural"))
    case = Case(B=2, H_kv=2, N_q=3, N_k=5, d=8)
    for name, changes in FLEX.items():
        for check in ("oracle", "log_sum_exp", "empty_rows"):
            finding = try_check(CHECKS[check], kernel, replace(case, **changes))
            assert finding is None or not finding.failed, (name, finding)

    def capped_late(q: Any, k: Any, v: Any, score_mod: Any, **more: Any) -> Any:
        def capped(s: Any, *index: Any) -> Any:
            return 0.5 * torch.tanh(score_mod(s, *index) / 0.5)

        return attention(q, k, v, capped, **more)

    def at_the_bottom(q: Any, k: Any, v: Any, block_mask: Any, **more: Any) -> Any:
        N_q = q.shape[2]
        N_k = k.shape[2]
        causal_mask = lambda b, h, i, j: i + N_k - N_q >= j  # noqa: E731
        mask = flex.create_block_mask(causal_mask, None, None, N_q, N_k, device)
        return attention(q, k, v, None, mask, **more)

    for wrong, changes in (
        (capped_late, {"softcap": 0.5, "bias": "dense"}),
        (at_the_bottom, {"causal": True}),
    ):
        wrapped = wrap(wrong, "torch", convention="flex_attention", device=device)
        kernel = Kernel(wrapped, wrapped.spec(lse="natural"))
        finding = try_check(CHECKS["oracle"], kernel, Case(N_q=3, N_k=5, d=8, **changes))
        assert finding is not None
        assert finding.failed
        assert not finding.broken


def test_a_packed_function_s_gradients_are_those_of_autograd() -> None:
    def packed(
        q: Any,
        k: Any,
        v: Any,
        cu_seqlens_q: Any,
        cu_seqlens_k: Any,
        softmax_scale: float = 0.5,
        **_: Any,
    ) -> Any:
        q, k, v = (a.float() for a in (q, k, v))
        ends_q = cu_seqlens_q.tolist()
        ends_k = cu_seqlens_k.tolist()
        outputs = []
        for s in range(len(ends_q) - 1):
            of_q = slice(ends_q[s], ends_q[s + 1])
            of_k = slice(ends_k[s], ends_k[s + 1])
            heads_first = (a.transpose(0, 1) for a in (q[of_q], k[of_k], v[of_k]))
            outputs.append(sdpa()(*heads_first).transpose(0, 1))
        behind = 0 * q[ends_q[-1] :].nan_to_num()
        return torch.cat([*outputs, behind]).half()

    kernel = wrap(packed, "torch", convention="flash_attn_varlen")
    report = check_attention(
        kernel,
        kernel.spec(causal=None, scale=False, gqa=False, head_dims=(8,)),
        max_examples=8,
        backward=kernel.backward,
        checks=["oracle", "gradients"],
    )
    assert report.ok


def test_backward_needs_a_graph_and_knows_what_does_not_matter() -> None:
    q, k, v = inputs(N_k=5)
    detached = wrap(lambda q, k, v: q.detach(), "torch")
    with pytest.raises(ValueError, match="does not require grad"):
        detached.backward(q, k, v, q)
    doubles = wrap(lambda q, k, v: (2 * q, k), "torch")
    dq, dk, dv = doubles.backward(q, k, v, q)
    assert same_bits(dq, 2 * q)
    assert not dk.any()
    assert not dv.any()


# --------------------------------------------------------- a kernel with a backward pass of its own

OWN = """
import torch

def scores(q, k, causal, scale, mask):
    group = q.shape[1] // k.shape[1]
    tau = q.shape[-1] ** -0.5 if scale is None else scale
    s = tau * q.float() @ k.float().repeat_interleave(group, 1).mT
    allowed = torch.ones_like(s, dtype=torch.bool) if mask is None else mask.expand(s.shape)
    return s.masked_fill(~(allowed.tril(s.shape[3] - s.shape[2]) if causal else allowed), -torch.inf), tau, group

def weights(q, k, causal, scale, mask):
    s, tau, group = scores(q, k, causal, scale, mask)
    lse = s.logsumexp(-1, keepdim=True)
    return (s - lse.masked_fill(lse == -torch.inf, 0)).exp(), tau, group

def attend(q, k, v, causal=False, scale=None, mask=None):
    P, _, group = weights(q, k, causal, scale, mask)
    return (P @ v.float().repeat_interleave(group, 1)).to(q.dtype)

def attend_backward(q, k, v, do, causal=False, scale=None, mask=None):
    assert all(isinstance(a, torch.Tensor) and a.dtype == q.dtype for a in (q, k, v, do))
    P, tau, group = weights(q, k, causal, scale, mask)
    K, V, dO = k.float().repeat_interleave(group, 1), v.float().repeat_interleave(group, 1), do.float()
    dP = dO @ V.mT
    dS = tau * P * (dP - (P * dP).sum(-1, keepdim=True))
    dk, dv = (a.unflatten(1, (k.shape[1], group)).sum(2).to(q.dtype) for a in (dS.mT @ q.float(), P.mT @ dO))
    return (dS @ K).to(q.dtype), dk.mT.contiguous().mT, dv  # dk is not contiguous

def reads_as_contiguous(q, k, v, do, **options):
    return attend_backward(q, k, v, do.as_strided(do.shape, torch.empty(do.shape).stride()), **options)

class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, *options):
        ctx.save_for_backward(q, k, v)
        ctx.options = options
        return attend(q, k, v, *options)

    @staticmethod
    def backward(ctx, do):
        return *attend_backward(*ctx.saved_tensors, do, *ctx.options), None, None, None

class Doubled(Attend):
    @staticmethod
    def backward(ctx, do):
        return Attend.backward(ctx, 2 * do)

def function(q, k, v, causal=False, scale=None, mask=None):
    return Attend.apply(q, k, v, causal, scale, mask)

def doubled(q, k, v, causal=False, scale=None, mask=None):
    return Doubled.apply(q, k, v, causal, scale, mask)
"""
DECLARED: dict[str, Any] = {
    "dtypes": ("float32", "float16", "bfloat16"),
    "causal": "bottom_right",
    "masks": True,
    "scale": True,
    "gqa": True,
    "strides": "any",
    "max_shapes": 6,
}
OF_GRADIENTS = ["gradients", "masked_gradients", "strides", "inputs_unmodified"]


@pytest.mark.parametrize(
    ("forward", "backward", "failing"),
    [
        ("attend", "attend_backward", []),
        ("function", "auto", []),
        ("attend", "reads_as_contiguous", ["strides", "gradients"]),
        ("doubled", "auto", ["gradients"]),
    ],
)
def test_a_backward_pass_of_one_s_own_is_checked_in_python_and_by_the_command(
    forward: str,
    backward: str,
    failing: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / f"own_{forward}_{backward}.py"
    file.write_text(OWN, encoding="utf-8")
    where = "" if backward == "auto" else f"{file}:"
    options = (
        "--wrap torch --examples 40 --quiet --causal bottom_right --masks --scale --gqa "
        "--max-shapes 6 --dtypes"
    )
    command = [
        "check",
        f"{file}:{forward}",
        "--backward",
        where + backward,
        *options.split(),
        *DECLARED["dtypes"],
    ]
    assert main([*command, "--check", *OF_GRADIENTS, "--json", "-"]) == (1 if failing else 0)
    report = json.loads(capsys.readouterr().out)
    assert report["mismatches"] == []
    assert all(report["checks"][name]["cases"] for name in OF_GRADIENTS)
    assert {each["check"] for each in report["failures"]} >= set(failing)

    own: dict[str, Any] = {}
    exec(OWN, own)
    fn = wrap(own[forward], "torch")
    back = fn.backward if backward == "auto" else wrap(own[backward], "torch")
    again = check_attention(
        fn,
        Spec(**DECLARED),
        backward=back,
        checks=OF_GRADIENTS,
        max_examples=40,
        on_fail="return",
    )
    checks_that_fail = {failure["check"] for failure in report["failures"]}
    assert {failure.check for failure in again.failures} == checks_that_fail

"""The conventions of `wrap` on stand-ins in NumPy: right functions pass, each planted bug shows, calls are as documented."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashsim.cli import check
from flashsim.testing import Case, Spec, check_attention, wrap
from flashsim.testing.checks import CHECKS
from flashsim.testing.conventions import CONVENTIONS
from flashsim.testing.running import try_check
from flashsim.testing.subject import Subject
from flashsim.tracing.planting import mutated

from . import libraries

MORE: dict[str, Any] = {"softcap": True, "alibi": True, "window": "bottom_right", "lse": "natural", "head_dims": None}


def planned(layout: str, prefill: Callable[..., Any] = libraries.single_prefill) -> Any:
    made = libraries.BatchPrefillWithPagedKVCacheWrapper(None, layout)
    made.single_prefill = prefill
    return made


# the function, as it is wrapped to give a log-sum-exp, and what it promises besides
KINDS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "flash_attn_varlen": (libraries.flash_attn_varlen_func, {"return_attn_probs": True}, MORE),
    "flash_attn_with_kvcache": (libraries.flash_attn_with_kvcache, {"return_softmax_lse": True}, MORE),
    "vllm": (libraries.vllm_flash_attn_varlen_func, {"return_softmax_lse": True}, MORE),
    "flashinfer": (libraries.single_prefill, {}, {"softcap": True, "head_dims": None}),
    "flashinfer_hnd": (libraries.single_prefill, {}, {"softcap": True, "head_dims": None}),
    "onnx": (libraries.onnx_attention, {}, {}),
}


def made(convention: str, *changes: tuple[str, str]) -> Subject:
    """Return a stand-in, with changes to its text, as the kit has it."""
    function, more, promises = KINDS[convention]
    function = mutated(function, *changes) if changes else function
    fn = (
        planned("HND" if "hnd" in convention else "NHD", function)
        if "infer" in convention
        else partial(function, **more)
    )
    kernel = wrap(fn, "numpy", convention=convention, page=2 if CONVENTIONS[convention].page else None)
    return Subject(kernel, kernel.spec(**promises))


CASE = Case(B=2, H_kv=2, group=2, N_q=3, N_k=5, d=8, dtype="float16", seed=1)
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "rows without keys": {"causal": True, "N_q": 7},
    "a long one": {"N_q": 1, "N_k": 33, "causal": True, "scale": 0.3},
    "all": {"causal": True, "softcap": 0.5, "alibi": True, "window": (2, 0)},
    "masked": {"mask": "dense", "bias": "dense", "softcap": 2.0, "window": (1, 1)},
}
FIELDS = {"softcap": "softcap", "alibi": "alibi", "window": "window", "mask": "masks", "bias": "bias", "scale": "scale"}


def case_for(subject: Subject, name: str) -> Case:
    """Return the case, with what the spec takes."""
    taken = {k: v for k, v in CASES[name].items() if k not in FIELDS or getattr(subject.spec, FIELDS[k])}
    return Case(
        **{**{f: getattr(CASE, f) for f in CASE.__dataclass_fields__}, "dtype": subject.spec.dtypes[0], **taken}
    )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("convention", KINDS)
def test_a_right_function_passes_every_check(convention: str, name: str) -> None:
    subject = made(convention)
    case = case_for(subject, name)
    for each in (each for each in CHECKS.values() if not each.needs(subject)):
        if (convention, each.name) != ("onnx", "masked_kv_poison"):  # 0 · NaN, as in its reference
            found = try_check(each, subject, case)
            assert found is None or not found.failed, (each.name, found)


BUGS = {
    "K by the queries' ends": ("flash_attn_varlen", "oracle", "plain", "pairwise(cu_seqlens_k)", "pairwise(cu_seqlens_q)"),
    "causal at the top left": ("flash_attn_varlen", "oracle", "causal", "p = (e - c) - (b - a)", "p = 0"),
    "lse as (rows, H)": ("flash_attn_varlen", "log_sum_exp", "plain", "(O, lse, None)", "(O, lse.T.reshape(lse.shape), 0)"),
    "a query's row for a sequence": (
        "vllm", "oracle", "plain", "values, cu_seqlens_q", "values, len(q) * np.arange(b := len(cu_seqlens_q)) // (b - 1)",
    ),
    "a page past the last": ("vllm", "oracle", "plain", "[:n] for", "[:] for"),
    "the pool as contiguous": ("vllm", "oracle", "plain", "a[u].reshape", "a[: len(u)].reshape"),
    "V of the cache's first half": ("vllm", "oracle", "plain", "for a in (k, v)", "for a in (k, k)"),
    "lse by sequence, not head": (
        "flash_attn_with_kvcache", "log_sum_exp", "plain", "lse.reshape(-1, B, N).swapaxes(0, 1)", "lse.reshape(B, -1, N)",
    ),
    "scale 1/√d whatever is asked": ("flash_attn_with_kvcache", "oracle", "a long one", "softmax_scale, causal", "None, causal"),
    "lse natural, not base 2": ("flashinfer", "log_sum_exp", "plain", " / np.log(np.float32(2))", ""),
    "HND's lse natural": ("flashinfer_hnd", "log_sum_exp", "plain", " / np.log(np.float32(2))", ""),
    "causal at the bottom right": ("onnx", "oracle", "causal", "K.shape[2], 0", "K.shape[2], K.shape[2] - Q.shape[2]"),
    "a key too few in the window": ("onnx", "oracle", "masked", "(left_window_size,", "(left_window_size - 1,"),
    "True means masked": ("onnx", "oracle", "masked", "np.ones(1, bool) if", "np.ones(1, bool) if 1 else 0 if"),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_shows(bug: str) -> None:
    convention, shows, name, before, after = BUGS[bug]
    subject = made(convention, (before, after))
    found = try_check(CHECKS[shows], subject, case_for(subject, name))
    assert found is not None
    assert found.failed
    assert not found.broken  # it answers, and wrongly


@pytest.mark.parametrize("bug", ["a layout for another", "a last page that is full"])
def test_a_bug_of_flashinfer_s_pages_shows(bug: str) -> None:
    fn = planned("HND" if bug == "a layout for another" else "NHD")  # 2 rows a page, and 2 heads: no shape tells
    if bug == "a last page that is full":
        fn.plan = lambda qo, indptr, indices, last, *more, **given: type(fn).plan(
            fn, qo, indptr, indices, np.minimum(last, 1) * 2, *more, **given
        )
    kernel = wrap(fn, "numpy", convention="flashinfer", page=2)
    found = try_check(CHECKS["oracle"], Subject(kernel, kernel.spec(head_dims=None)), CASE)
    assert found is not None
    assert found.failed


def test_the_whole_check_finds_it() -> None:
    """As one uses it, in the words of its report."""
    causal = mutated(libraries.flash_attn_varlen_func, ("p = (e - c) - (b - a)", "p = 0"))
    kernel = wrap(causal, "numpy", convention="flash_attn_varlen")
    report = check_attention(kernel, kernel.spec(head_dims=(8,)), checks=["oracle"], max_examples=15, on_fail="return")
    assert "top left" in report.failures[0].suspicions[0].says


def test_calls_are_as_documented() -> None:
    got: list[Any] = []

    def records(q: Any, *arrays: Any, **given: Any) -> Any:
        got.append((q, arrays, given))
        return np.zeros_like(q)

    q, k, v, _ = CASE.arrays(Spec(gqa=True, dtypes=("float16",)))
    for convention in KINDS:
        wrap(records, "numpy", convention=convention)(
            q, k, v, causal=True, **({} if convention == "onnx" else {"scale": 2.0})
        )
    packs, cache, halves, lists, heads, operator = got
    assert packs[2].keys() == {
        "cu_seqlens_q",
        "cu_seqlens_k",
        "max_seqlen_q",
        "max_seqlen_k",
        "causal",
        "softmax_scale",
    }
    assert cache[2].keys() == {"block_table", "cache_seqlens", "causal", "softmax_scale"}
    assert cache[1][0].shape[1:] == (256, 2, 8)
    assert halves[1][0].shape[1:] == (16, 2, 8)
    assert halves[1][0].base is halves[1][1].base
    assert halves[2].keys() == packs[2].keys() - {"cu_seqlens_k"} | {"seqused_k", "block_table"}
    assert lists[1][0].shape[1:] == (2, 16, 2, 8)
    assert heads[1][0].shape[1:] == (2, 2, 16, 8)
    assert (operator[0].shape, operator[2]) == ((2, 4, 3, 8), {"is_causal": 1})
    indptr, last = lists[2]["paged_kv_indptr"], lists[2]["paged_kv_last_page_len"]
    assert indptr[-1] == len(lists[2]["paged_kv_indices"])
    assert ((last > 0) == (np.diff(indptr) > 0)).all()
    whole = [a for _, _, given in got for a in given.values() if isinstance(a, np.ndarray)]
    assert {a.dtype.name for a in whole} == {"int32"}


def test_pages_are_of_conventions_that_have_them() -> None:
    kernel = wrap(planned("NHD"), "numpy", convention="flashinfer", page=3)
    assert kernel.code("mine") == "wrap(mine, 'numpy', convention='flashinfer', page=3)"
    for page, convention in ((16, "onnx"), (16, None)):
        with pytest.raises(ValueError, match=f"page is 16; expected none, as convention {convention!r} has no pages"):
            wrap(libraries.onnx_attention, "numpy", convention=convention, page=page)
    with pytest.raises(ValueError, match="page is 0; expected at least 1"):
        wrap(libraries.vllm_flash_attn_varlen_func, "numpy", convention="vllm", page=0)
    with pytest.raises(ValueError, match="xp is 'cupy'; expected 'torch' or 'numpy', which convention 'vllm' is of"):
        wrap(libraries.vllm_flash_attn_varlen_func, "cupy", convention="vllm")
    with pytest.raises(ValueError, match="layout is 'BNHD'; expected 'BHND', that of vllm"):
        wrap(libraries.vllm_flash_attn_varlen_func, "numpy", convention="vllm").spec(layout="BNHD")
    with pytest.raises(ValueError, match="seed is 3; expected none"):
        kernel(*(np.zeros((1, 1, 2, 8), np.float16),) * 3, seed=3)


def test_a_cache_has_no_backward_pass() -> None:
    kernel = wrap(libraries.vllm_flash_attn_varlen_func, "numpy", convention="vllm")
    with pytest.raises(AttributeError, match="no backward for vllm_flash_attn_varlen_func: numpy has no automatic"):
        _ = kernel.backward
    kernel._bridge.gradients = lambda *given: given
    with pytest.raises(AttributeError, match="convention 'vllm' is of decoding"):
        _ = kernel.backward


def test_the_command_and_the_page_have_every_convention() -> None:
    assert tuple(CONVENTIONS) == check.CONVENTIONS
    page = Path(__file__).parents[1].joinpath("docs/conventions.md").read_text(encoding="utf-8")
    assert all(f'`"{name}"`' in page for name in CONVENTIONS)

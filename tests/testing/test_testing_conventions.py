"""The conventions of `wrap` on stand-ins in NumPy: right functions pass, each planted bug shows,
calls are as documented.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashsim.cli import check
from flashsim.testing import CHECKS, Case, Spec, wrap
from flashsim.testing.conventions import CONVENTIONS
from flashsim.testing.kernel import Kernel
from flashsim.testing.survey import try_check
from flashsim.tracing.planting import mutated
from tests.helpers import libraries

MORE: dict[str, Any] = {
    "softcap": True,
    "alibi": True,
    "window": "bottom_right",
    "lse": "natural",
    "head_dims": None,
}
# the function, how it is told to return a log-sum-exp, and what it promises besides
KINDS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "flash_attn_varlen": (libraries.flash_attn_varlen_func, {"return_attn_probs": True}, MORE),
    "flash_attn_with_kvcache": (
        libraries.flash_attn_with_kvcache,
        {"return_softmax_lse": True},
        MORE,
    ),
    "vllm": (libraries.vllm_flash_attn_varlen_func, {"return_softmax_lse": True}, MORE),
    "flashinfer": (libraries.single_prefill, {}, {"softcap": True, "head_dims": None}),
    "flashinfer_hnd": (libraries.single_prefill, {}, {"softcap": True, "head_dims": None}),
    "onnx": (libraries.onnx_attention, {}, {}),
}
CASE = Case(B=2, H_kv=2, group=2, N_q=3, N_k=5, d=8, dtype="float16", seed=1)
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "rows without keys": {"causal": True, "N_q": 7},
    "a long one": {"N_q": 1, "N_k": 33, "causal": True, "scale": 0.3},
    "all": {"causal": True, "softcap": 0.5, "alibi": True, "window": (2, 0)},
    "masked": {"mask": "dense", "bias": "dense", "softcap": 2.0, "window": (1, 1)},
}


def made(convention: str, *changes: tuple[str, str]) -> Kernel:
    """Return a stand-in, with changes to its text, as the kit has it."""
    function, more, promises = KINDS[convention]
    fn: Any = partial(mutated(function, *changes) if changes else function, **more)
    if "flashinfer" in convention:
        fn = libraries.BatchPrefillWithPagedKVCacheWrapper(
            "HND" if "hnd" in convention else "NHD", fn
        )
    kernel = wrap(
        fn, "numpy", convention=convention, page=2 if CONVENTIONS[convention].page else None
    )
    return Kernel(kernel, kernel.spec(**promises))


def case_for(spec: Spec, name: str) -> Case:
    """Return the case, with what the spec takes."""
    left_out = {
        name for name in ("softcap", "alibi", "window", "bias", "scale") if not getattr(spec, name)
    }
    left_out |= set() if spec.masks else {"mask"}
    duration = {field: value for field, value in CASES[name].items() if field not in left_out}
    return replace(CASE, dtype=spec.dtypes[0], **duration)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("convention", KINDS)
def test_a_right_function_passes_every_check(convention: str, name: str) -> None:
    kernel = made(convention)
    for each in (each for each in CHECKS.values() if not each.needs(kernel)):
        if (convention, each.name) != ("onnx", "masked_kv_poison"):  # 0 · NaN, as in its reference
            result = try_check(each, kernel, case_for(kernel.spec, name))
            assert result is None or not result.failed, (each.name, result)


BUGS = {
    "K by the queries' ends": (
        "flash_attn_varlen",
        "oracle",
        "plain",
        "pairwise(cu_seqlens_k)",
        "pairwise(cu_seqlens_q)",
    ),
    "causal at the top left": (
        "flash_attn_varlen",
        "oracle",
        "causal",
        "p = (e - c) - (b - a)",
        "p = 0",
    ),
    "lse as (rows, H)": (
        "flash_attn_varlen",
        "log_sum_exp",
        "plain",
        "(O, lse, None)",
        "(O, lse.T.reshape(lse.shape), 0)",
    ),
    "sequences of one length": (
        "vllm",
        "oracle",
        "plain",
        "np.concatenate(values), cu_seqlens_q",
        "np.concatenate(values), len(q) * np.arange(b := len(cu_seqlens_q)) // (b - 1)",
    ),
    "a last page that is full": (
        "vllm",
        "oracle",
        "plain",
        "row[:-(-length // page)]",
        "row[:(length := -(-length // page) * page) // page]",
    ),
    "the pool as contiguous": (
        "vllm",
        "oracle",
        "plain",
        "row[:-(-length // page)]",
        "np.arange(-(-length // page))",
    ),
    "V of the cache's first half": (
        "vllm",
        "oracle",
        "plain",
        "v[pages].reshape(-1, *v.shape[2:])",
        "k[pages].reshape(-1, *k.shape[2:])",
    ),
    "lse by sequence, not head": (
        "flash_attn_with_kvcache",
        "log_sum_exp",
        "plain",
        "lse.reshape(-1, B, N).swapaxes(0, 1)",
        "lse.reshape(B, -1, N)",
    ),
    "lse natural, not base 2": (
        "flashinfer",
        "log_sum_exp",
        "plain",
        " / np.log(np.float32(2))",
        "",
    ),
    "HND's lse natural": ("flashinfer_hnd", "log_sum_exp", "plain", " / np.log(np.float32(2))", ""),
    "causal at the bottom right": (
        "onnx",
        "oracle",
        "causal",
        "p = 0",
        "p = K.shape[2] - Q.shape[2]",
    ),
    "a key too few in the window": (
        "onnx",
        "oracle",
        "masked",
        "(left_window_size,",
        "(left_window_size - 1,",
    ),
    "no mask": ("onnx", "oracle", "masked", "if attn_mask is None else", "if True else"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_shows(bug: str) -> None:
    convention, shows, name, before, after = BUGS[bug]
    kernel = made(convention, (before, after))
    result = try_check(CHECKS[shows], kernel, case_for(kernel.spec, name))
    assert result is not None
    assert result.failed
    assert not result.broken  # it answers, and wrongly


@pytest.mark.parametrize("wrong", ["layout", "last"])
def test_flashinfer_s_pages_read_wrongly_show(wrong: str) -> None:
    class Wrong(libraries.BatchPrefillWithPagedKVCacheWrapper):
        def plan(  # type: ignore[override]
            self, qo: Any, indptr: Any, indices: Any, last: Any, *more: Any, **keywords: Any
        ) -> None:
            super().plan(
                qo, indptr, indices, 2 * (last > 0) if wrong == "last" else last, *more, **keywords
            )

    # 2 rows a page, and 2 heads: no shape tells the layout
    kernel = wrap(
        Wrong("HND" if wrong == "layout" else "NHD"), "numpy", convention="flashinfer", page=2
    )
    result = try_check(CHECKS["oracle"], Kernel(kernel, kernel.spec(head_dims=None)), CASE)
    assert result is not None
    assert result.failed
    assert not result.broken


def test_calls_are_as_documented() -> None:
    result: list[Any] = []

    def records(*arrays: Any, **keywords: Any) -> Any:
        result.append((arrays, keywords))
        return np.zeros_like(arrays[0])

    q, k, v, _ = CASE.arrays(Spec(gqa=True, dtypes=("float16",)))
    for convention in KINDS:
        scale = {} if convention == "onnx" else {"scale": 2.0}
        wrap(records, "numpy", convention=convention)(q, k, v, causal=True, **scale)
    packs, cache, halves, lists, heads, operator = result
    assert packs[1].keys() == {
        "cu_seqlens_q",
        "cu_seqlens_k",
        "max_seqlen_q",
        "max_seqlen_k",
        "causal",
        "softmax_scale",
    }
    assert cache[1].keys() == {"block_table", "cache_seqlens", "causal", "softmax_scale"}
    assert halves[1].keys() == packs[1].keys() - {"cu_seqlens_k"} | {"seqused_k", "block_table"}
    assert [each[0][1].shape[1:] for each in (cache, halves, lists, heads)] == [
        (256, 2, 8),
        (16, 2, 8),
        (2, 16, 2, 8),
        (2, 2, 16, 8),
    ]
    assert halves[0][1].base is halves[0][2].base
    assert operator[1] == {"is_causal": 1}
    indptr = lists[1]["paged_kv_indptr"]
    last = lists[1]["paged_kv_last_page_len"]
    assert indptr[-1] == len(lists[1]["paged_kv_indices"])
    assert ((last > 0) == (np.diff(indptr) > 0)).all()
    assert {
        a.dtype.name
        for _, keywords in result
        for a in keywords.values()
        if isinstance(a, np.ndarray)
    } == {"int32"}


def test_what_a_convention_does_not_have_is_refused() -> None:
    fn = libraries.vllm_flash_attn_varlen_func
    kernel = wrap(fn, "numpy", convention="vllm", page=3)
    assert kernel.code("mine") == "wrap(mine, 'numpy', convention='vllm', page=3)"
    for page, convention in ((16, "onnx"), (16, None)):
        with pytest.raises(
            ValueError,
            match=f"page is 16; expected none, as convention {convention!r} has no pages",
        ):
            wrap(fn, "numpy", convention=convention, page=page)
    with pytest.raises(ValueError, match="page is 0; expected at least 1"):
        wrap(fn, "numpy", convention="vllm", page=0)
    with pytest.raises(
        ValueError, match="xp is 'cupy'; expected 'torch' or 'numpy', which convention 'vllm' is of"
    ):
        wrap(fn, "cupy", convention="vllm")
    with pytest.raises(ValueError, match="layout is 'BNHD'; expected 'BHND', that of vllm"):
        kernel.spec(layout="BNHD")
    with pytest.raises(ValueError, match="seed is 3; expected none"):
        kernel(*(np.zeros((1, 1, 2, 8), np.float16),) * 3, seed=3)
    kernel._bridge.gradients = lambda *keywords: keywords
    with pytest.raises(AttributeError, match="convention 'vllm' is for decoding"):
        _ = kernel.backward


def test_the_command_and_the_page_have_every_convention() -> None:
    assert tuple(CONVENTIONS) == check.CONVENTIONS
    page = Path(__file__).parents[2].joinpath("docs/conventions.md").read_text(encoding="utf-8")
    assert all(f'`"{name}"`' in page for name in CONVENTIONS)

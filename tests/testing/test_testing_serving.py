"""The kit on kernels that serve: soft caps, slopes, sinks, 8 bits; packed sequences, pages and
latents, by adapters.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashsim.attention.inputs import Array
from flashsim.testing import Case, Spec, check_attention, mla, mutants, paged, replay, varlen
from flashsim.testing.checks import CHECKS
from flashsim.testing.diagnosis.experiments import _split_by_batch
from flashsim.testing.kernel import Kernel
from flashsim.testing.mutants import BASES, OUTSIDE, SERVING, Mutant
from flashsim.testing.mutants.mutant import SERVING as CORRECT
from flashsim.testing.regimes import SINKS
from flashsim.testing.spec import FP8
from flashsim.testing.survey import survey, try_check
from tests.helpers.libraries import attention
from tests.helpers.pages import ROOT

CASE = Case(
    B=2,
    H_kv=2,
    group=2,
    N_q=3,
    N_k=21,
    d=4,
    d_v=3,
    block=(8, 16),
    seed=5,
)
WORDS: dict[str, dict[str, Any]] = {
    "softcap": {"softcap": 0.5, "causal": True},
    "slopes": {"alibi": True},
    "sink": {"sink": "high"},
    "no sink": {"sink": "none"},
    "a sink alone": {"sink": "zero", "N_k": 1, "causal": True},
    "all": {
        "softcap": 5.0,
        "alibi": True,
        "sink": "low",
        "window": (5, 0),
        "causal": True,
    },
}


def plain(
    q: Array,
    k: Array,
    v: Array,
    case: Case,
    sink: Array | None,
    slopes: Array | None,
) -> tuple[Array, Array]:
    """Return O and log-sum-exp as the definitions have them, in float64, one row after the
    other.
    """
    O = np.zeros((*q.shape[:3], v.shape[-1]))
    lse = np.zeros(q.shape[:3])
    for b, h, i in np.ndindex(*q.shape[:3]):
        K = k[b, h // case.group].astype(float)
        V = v[b, h // case.group].astype(float)
        S = K @ q[b, h, i].astype(float) / np.sqrt(q.shape[-1])
        if case.softcap is not None:
            S = case.softcap * np.tanh(S / case.softcap)
        position = i + len(K) - q.shape[2] - np.arange(len(K))
        if slopes is not None:
            S = S - float(slopes[h]) * np.abs(position)
        allowed = np.ones(len(K), bool)
        if case.causal:
            allowed &= position >= 0
        if case.window:
            allowed &= position <= case.window[0]
        weights = np.exp(S[allowed].astype(np.longdouble))  # a sink of 800 is within its range
        total = weights.sum()
        if sink is not None:
            total += np.exp(np.longdouble(sink[h]))
        if total:
            O[b, h, i] = weights @ V[allowed] / total
        with np.errstate(divide="ignore"):
            lse[b, h, i] = np.log(total)
    return O, lse


@pytest.mark.parametrize("name", WORDS)
def test_the_oracle_is_the_definition(name: str) -> None:
    case = replace(CASE, **WORDS[name])
    problem = case.problem(CORRECT["served"].spec)
    O, lse = plain(problem.q, problem.k, problem.v, case, problem.sink, problem.slopes)
    assert np.allclose(problem.solution.O, O, rtol=1e-12, atol=1e-12)
    assert np.allclose(problem.solution.lse, lse, rtol=1e-12, atol=1e-12)
    assert (problem.solution.O_budget < 5e-3).all()  # a sink of ±800 widens it


def test_the_oracle_s_gradient_of_a_sink_is_its_slope() -> None:
    spec = replace(CORRECT["served"].spec, dtypes=("float64",))
    problem = replace(CASE, sink="low", dtype="float64", causal=True).problem(spec)
    assert problem.sink is not None
    finite = np.where(np.isfinite(problem.sink), problem.sink, 0.5)
    problem = problem.but(sink=finite.astype(np.float64))
    *_, dsink = problem.gradients().exact
    for h in range(len(finite)):
        step = 1e-5 * (np.arange(len(finite)) == h)
        above = (problem.but(sink=finite + step).solution.O * problem.dO).sum()
        below = (problem.but(sink=finite - step).solution.O * problem.dO).sum()
        slope = (above - below) / 2e-5
        assert np.isclose(slope, dsink[h], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("scales", [None, "head", "block"])
def test_8_bits_are_near_what_they_stand_for_and_judged_as_stored(dtype: str, scales: Any) -> None:
    spec = Spec(dtypes=(dtype,), scales=scales, block=(8, 16), gqa=True)
    case = replace(CASE, dtype=dtype, d_v=None)
    problem = case.problem(spec)
    wide = replace(case, dtype="float64").problem(spec)
    assert problem.q.dtype.name == dtype
    for stored, expected in zip(problem.heads, wide.heads, strict=True):
        largest = np.abs(expected).max()
        assert np.abs(stored - expected).max() <= 0.15 * largest
    if scales:
        assert problem.scales is not None
        heads = [(2, 4), (2, 2), (2, 2)]
        in_blocks = [(2, 4, 1), (2, 2, 2), (2, 2, 2)]
        shapes = in_blocks if scales == "block" else heads
        assert [a.shape for a in problem.scales] == shapes
        assert all(np.unique(a).size == a.size for a in problem.scales)
        assert set(problem.options) == {"q_descale", "k_descale", "v_descale"}


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRECT)
def test_correct_kernels_that_serve_pass(name: str) -> None:
    attention = CORRECT[name]
    spec = attention.spec
    kernel = Kernel(attention, spec, attention.backward)
    case = replace(CASE, dtype=spec.dtypes[0], d_v=None if spec.scales else 3)
    cases = [case]
    if not spec.scales:
        cases = [replace(case, **word) for word in WORDS.values()]
    for check in CHECKS.values():
        if check.needs(kernel):
            continue
        for case in cases:
            finding = try_check(check, kernel, case)
            assert finding is None or not finding.failed, (check.name, finding)


# what shows each bug in a case or two: the check, and what the case has
SHOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "empty_parts_merge_to_nan": ("empty_rows", {"causal": True, "N_q": 9, "N_k": 3}),
    "lse_of_shifted_keys": ("log_sum_exp", {}),
    "statistics_before_the_scale": ("mergeable_lse", {}),
    "lse_not_stored": ("log_sum_exp", {"N_k": 70}),
    "single_queries_as_a_batch": ("oracle", {"N_q": 1}),
    "empty_sequences_not_written": ("empty_rows", {"N_k": 0}),
    "next_sequence_s_values": ("oracle", {}),
    "nan_in_a_page_s_tail": ("oracle", {}),
    "pages_of_the_pool": ("oracle", {}),
    "pool_as_contiguous": ("oracle", {}),
    "lse_of_packed_rows_transposed": ("grouped_heads", {"N_k": 3, "seed": 40}),
    "scale_of_the_latent": ("oracle", {}),
    "scales_ignored": ("oracle", {}),
    "scales_not_indexed": ("batch_invariance", {}),
    "descale_of_values_from_keys": ("oracle", {}),
    "sink_at_another_scale": ("log_sum_exp", {"sink": "high"}),
    "no_sink_in_backward": ("gradients", {"sink": "zero"}),
    "window_of_the_last_row": ("oracle", {"window": (2, 0)}),
    "window_of_one_more": ("oracle", {"window": (2, 0)}),
    "window_on_both_sides": ("oracle", {"window": (2, 0)}),
    "cap_after_the_mask": ("oracle", {"softcap": 0.5, "causal": True}),
    "cap_dropped_in_decode": ("oracle", {"softcap": 0.5, "N_q": 1}),
    "window_not_applied_to_the_first_tile": ("log_sum_exp", {"window": (2, 0)}),
    "values_before_the_window": ("oracle", {"window": (2, 0)}),
    "window_by_whole_tiles": ("log_sum_exp", {"window": (2, 0)}),
    "dsink_from_other_rows": ("gradients", {"sink": "zero"}),
    "slopes_lost_in_decode": ("log_sum_exp", {"alibi": True, "N_q": 1}),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_bug_shows_and_the_correct_kernel_does_not_have_it(name: str) -> None:
    mutant = next(each for each in (*SERVING, *OUTSIDE) if each.name == name)
    check, changes = SHOWN[name]
    serves = {"": "eight_bits_by_head" if mutant.spec.scales else "served"}.get(
        mutant.adapter, mutant.adapter
    )
    correct = BASES[mutant.base] if mutant.base in BASES else CORRECT[serves]
    dtype = mutant.spec.dtypes[0]
    d_v = 3 if mutant.spec.d_v else None
    case = replace(CASE, dtype=dtype, d_v=d_v, **changes)
    failed = []
    for kernel in (mutant.build(), correct):
        result = try_check(CHECKS[check], Kernel(kernel, kernel.spec, kernel.backward), case)
        assert result is not None
        failed.append(result.failed)
    assert failed == [True, False]


def test_a_lazy_maximum_may_lag_by_what_8_bits_hold() -> None:
    """2^(8 + 0.75) ≤ 448, and 2^(8 + 4) is not."""
    case = Case(
        N_q=2,
        N_k=48,
        d=4,
        dtype="float8_e4m3fn",
        regime="rising",
        block=(8, 16),
    )
    for steep in range(8):
        replay(
            CORRECT["eight_bits_by_head"],
            CORRECT["eight_bits_by_head"].spec,
            "oracle",
            replace(case, seed=steep),
        )
    kernel = mutants.lazy_maximum_saturates
    result = survey(Kernel(kernel, kernel.spec), 60, 0, ["oracle"], until_failure=True)
    assert result.tallies["oracle"].failed


@pytest.mark.slow
@pytest.mark.parametrize("mutant", SERVING, ids=lambda mutant: mutant.name)
def test_every_bug_of_a_kernel_that_serves_is_caught_within_300_examples(mutant: Mutant) -> None:
    kernel = mutant.build()
    result = survey(
        Kernel(kernel, kernel.spec, kernel.backward, kernel.keep), 300, 0, until_failure=True
    )
    assert [name for name, tally in result.tallies.items() if tally.failed], mutant.bug


def test_the_matrix_has_bugs_of_8_bits_and_goes_on_from_where_it_was_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    script = import_module("kit_matrix")
    few = {"lse_times_ln_2", "scales_ignored", "lse_not_stored"}
    named = [mutant for mutant in script.MUTANTS if mutant.name in few]
    fewer = {"MUTANTS": named, "CASES": 1, "EXAMPLES": 1, "SEEDS": 1}
    for name, value in fewer.items():
        monkeypatch.setattr(script, name, value)
    monkeypatch.setattr("sys.argv", ["kit_matrix.py", "-o", str(tmp_path / "it")])
    rows_file = tmp_path / "it.rows.json"
    written = []

    def stop(path: Path, text: str) -> None:
        path.write_text(text.replace(named[0].bug, "what was found before"))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(script, "write_whole", stop)
        with pytest.raises(KeyboardInterrupt):
            script.main()
    assert rows_file.exists()
    monkeypatch.setattr(script, "_write", lambda stem, data, *how: written.append(data))
    script.main()
    first, *others = written[0]["mutants"]
    assert first["bug"] == "what was found before"
    rows = [(row["name"], row["part"], row["textbook"]) for row in others]
    assert rows == [("lse_not_stored", "serving", False), ("scales_ignored", "serving", None)]
    served, scaled = others
    assert served["tried"].keys() > scaled["tried"].keys() > {"oracle"}
    assert "| – |" in script.as_markdown(written[0])
    assert not rows_file.exists()


def test_names_of_bugs_are_unique_and_each_is_a_change() -> None:
    names = [mutant.name for mutant in (*mutants.ALL, *SERVING, *OUTSIDE)]
    assert len(set(names)) == len(names)
    for mutant in (*SERVING, *OUTSIDE):
        assert mutant.threads
        assert mutant.bug.endswith(".")
        mutant.build()


# --------------------------------------------------------------------------------------------------
# adapters


def test_adapters_leave_the_kernel_s_own_parameters() -> None:
    def kernel(
        q: Any,
        k: Any,
        v: Any,
        cu_seqlens_q: Any,
        cu_seqlens_k: Any,
        max_seqlen_q: Any,
        max_seqlen_k: Any,
        causal: bool,
    ) -> None:
        return None

    adapted = varlen(kernel)
    assert list(inspect.signature(adapted).parameters) == ["q", "k", "v", "causal"]
    assert adapted.__name__ == "kernel"


@pytest.mark.parametrize("adapter", [varlen, paged, mla])
def test_adapters_refuse_what_is_no_kernel_and_name_what_is_of_another_shape(
    adapter: Callable[..., Any],
) -> None:
    with pytest.raises(ValueError, match="fn is 3; expected a function"):
        adapter(3)
    q = np.zeros((1, 1, 2, 4), np.float32)
    with pytest.raises(ValueError, match=r"O has shape \(7,\); expected"):
        adapter(lambda *_, **options: np.zeros(7))(q, q, q)


def test_pages_and_packs_hold_the_case_s_rows_and_nan() -> None:
    arrays = (np.random.default_rng(n).normal(size=(2, 1, 5, 3)) for n in range(3))
    q, k, v = arrays
    events: list[Any] = []

    def on_pages(
        q: Array, k_cache: Array, v_cache: Array, block_table: Array, cache_seqlens: Array
    ) -> Array:
        pages = (block_table >= 0).sum(axis=1)
        events.append((block_table.tolist(), pages))
        assert np.isfinite(k_cache).all(axis=(2, 3)).sum() == 10
        assert np.isfinite(v_cache).all(axis=(2, 3)).sum() == 10
        assert (pages == -(-cache_seqlens // 2)).all()
        assert (block_table[:, -1] == -1).all()
        assert len(cache_seqlens) > 2
        return np.zeros((*q.shape[:3], v_cache.shape[-1]))

    def on_packs(
        q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array, **longest: Any
    ) -> Array:
        assert np.isfinite(q).all(axis=(1, 2)).sum() == 10
        assert np.isfinite(k).all(axis=(1, 2)).sum() == 10
        assert cu_seqlens_q[-1] <= len(q)
        events.append((cu_seqlens_q.tolist(), cu_seqlens_k.tolist()))
        return q

    for fn in (paged(on_pages, page=2), varlen(on_packs)):
        returned = [fn(q, k, v) for _ in range(12)]
        assert len({str(each) for each in events[-12:]}) > 6  # others, in another order
    assert all(np.array_equal(each, q) for each in returned)
    assert any(0 in np.diff(ends) for ends, _ in events[-12:])


def test_a_packed_backward_pass_is_checked() -> None:
    unfused = BASES["unfused"].backward
    assert unfused is not None

    def backward(
        q: Array,
        k: Array,
        v: Array,
        do: Array,
        cu_seqlens_q: Array,
        cu_seqlens_k: Array,
        **longest: Any,
    ) -> Any:
        gradients = [np.zeros_like(a) for a in (q, k, v)]
        for a, b, c, d in zip(
            cu_seqlens_q, cu_seqlens_q[1:], cu_seqlens_k, cu_seqlens_k[1:], strict=False
        ):
            of_q = slice(a, b)
            of_k = slice(c, d)
            if b > a and d > c:
                head = (
                    X[rows].swapaxes(0, 1)[None]
                    for X, rows in ((q, of_q), (k, of_k), (v, of_k), (do, of_q))
                )
                for to, rows, gradient in zip(
                    gradients, (of_q, of_k, of_k), unfused(*head), strict=True
                ):
                    to[rows] = gradient[0].swapaxes(0, 1)
        return tuple(gradients)

    options: dict[str, Any] = {
        "backward": varlen(backward),
        "checks": ["gradients"],
        "max_examples": 12,
    }
    assert check_attention(CORRECT["varlen"], Spec(lse="natural"), **options).ok


# --------------------------------------------------------------------------------------------------
# which split it was


@pytest.mark.parametrize(
    ("N_k", "message"),
    [
        (17, "begin at 6, 12 if a sequence is alone, and at 9 in a batch of 2"),
        (24, "begin at 8, 16 if a sequence is alone, and"),
    ],
)
def test_the_cuts_of_a_sum_are_told(N_k: int, message: str) -> None:
    mutant = mutants.splits_follow_the_batch
    kernel = Kernel(mutant, mutant.spec)
    case = Case(B=2, H_kv=2, N_k=N_k, block=(8, 4))
    result = try_check(CHECKS["batch_invariance"], kernel, case)
    assert result is not None
    (sentence,) = _split_by_batch(kernel, result)
    assert message in sentence
    assert not _split_by_batch(Kernel(BASES["tiled"], kernel.spec), result)


def test_sinks_are_drawn_for_each_head() -> None:
    problem = replace(CASE, sink="highest").problem(CORRECT["served"].spec)
    assert problem.sink is not None
    assert problem.sink[0] == 800
    assert set(problem.sink.tolist()) <= set(SINKS.values())


@pytest.mark.parametrize(
    "case",
    [
        Case(N_q=2, N_k=5, d=4, alibi=True),
        Case(N_k=0, bias="keys"),
    ],
)
def test_keys_are_appended_where_slopes_or_a_bias_of_no_keys_are(case: Case) -> None:
    """They move the queries, which slopes would see."""

    def kernel(
        q: Array,
        k: Array,
        v: Array,
        mask: Any = True,
        bias: Any = 0.0,
        alibi_slopes: Any = None,
    ) -> Array:
        shape = (*q.shape[:3], k.shape[2])
        masks = np.broadcast_to(mask, shape)
        biases = np.broadcast_to(bias, shape)
        offset = shape[3] - shape[2]
        outputs = []
        for b in range(len(q)):
            how = (offset, False, (-1, -1), None, 0.0, alibi_slopes, masks[b], biases[b])
            O, _ = attention(q[b], k[b], v[b], *how)
            outputs.append(O)
        return np.stack(outputs)

    spec = Spec(masks=True, bias=True, alibi=True, zero_keys=True)
    result = try_check(CHECKS["appended_masked_keys"], Kernel(kernel, spec), case)
    assert result is not None
    assert not result.failed

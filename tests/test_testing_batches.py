"""Two checks of the kit: log-sum-exps merge, and a sequence does not depend on the batch that it is in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashsim.testing import Case, Report, Spec, check_attention, mutants, replay
from flashsim.testing.checks import CHECKS
from flashsim.testing.checks.itself import LARGE
from flashsim.testing.mutants import BASES, Implementation
from flashsim.testing.subject import Subject


def tried(kernel: Implementation, name: str, examples: int = 100, **changes: object) -> Report:
    spec = replace(kernel.spec, **changes)  # type: ignore[arg-type]
    return check_attention(kernel, spec, checks=[name], max_examples=examples, on_fail="return")


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize(
    "changes", [{}, {"cross": False}, {"masks": False}, {"masks": False, "zero_keys": False}], ids=str
)
def test_log_sum_exps_of_correct_attentions_merge(name: str, changes: dict[str, object]) -> None:
    report = tried(BASES[name], "mergeable_lse", 40, **changes, causal=None)
    assert report.ok
    assert report.worst < 1
    assert report.tallies["mergeable_lse"].tried > 20


def test_a_wrong_log_sum_exp_that_the_output_hides_does_not_merge() -> None:
    for name in ("lse_in_base_2", "lse_times_ln_2"):
        kernel = getattr(mutants, name)
        assert tried(kernel, "oracle").ok
        assert not tried(kernel, "mergeable_lse").ok
        assert not tried(kernel, "mergeable_lse", cross=False).ok  # the parts are masked
        assert not tried(kernel, "mergeable_lse", masks=False).ok  # the parts are taken


def test_an_empty_part_counts_as_what_is_returned_of_it() -> None:
    kernel = mutants.lse_of_empty_row_positive
    assert tried(kernel, "split_and_merge").ok
    for changes in ({"cross": False}, {"masks": False, "causal": None}):
        assert not tried(kernel, "mergeable_lse", **changes).ok
        assert tried(kernel, "mergeable_lse", **changes, empty_rows="undefined").ok


@pytest.mark.parametrize("name", BASES)
def test_correct_attentions_are_batch_invariant(name: str) -> None:
    assert tried(BASES[name], "batch_invariance", 60, batch_invariant=True).worst == 0


def test_splits_that_follow_the_batch_are_noticed_where_bits_are_promised() -> None:
    kernel = mutants.splits_follow_the_batch
    assert tried(kernel, "batch_invariance", 300, batch_invariant=False).ok  # within budget
    (failure,) = tried(kernel, "batch_invariance", 300).failures
    assert failure.case.B > 1
    assert 8 < failure.case.N_k <= 12  # more than one part, and few
    assert "in a batch of" in failure.message
    assert "first differ in bit" in failure.message


def test_no_batch_of_keys_within_one_part_shows_how_they_are_split() -> None:
    kernel = mutants.splits_follow_the_batch
    for seed in range(0, 40, 2):  # of odd seeds the check makes longer ones
        replay(kernel, kernel.spec, "batch_invariance", Case(B=8, N_k=8, d=4, seed=seed))


def test_a_sequence_that_reads_its_neighbour_fails_without_a_promise() -> None:
    def leaky(q, k, v):  # type: ignore[no-untyped-def]
        O, _ = BASES["unfused"](q, k, v)
        return O + v[-1:, :1, -1:].astype(O.dtype) * (len(q) > 1)

    assert not check_attention(leaky, Spec(), checks=["batch_invariance"], max_examples=20, on_fail="return").ok


def test_a_batch_is_made_where_a_case_has_one_sequence() -> None:
    fit, subject = CHECKS["batch_invariance"].fit, Subject(BASES["split"], BASES["split"].spec)
    made = [fit(Case(seed=seed, block=(8, 4)), subject) for seed in range(64)]
    assert {case.B for case in made if case} == {2, 3, 5, 17}
    assert {case.N_k for case in made if case} == {1, *(m * 4 + off for m in (1, 2, 3, 5) for off in (-1, 0, 1, 2))} - {
        3,
        4,
    }
    assert all(case and fit(case, subject) == case for case in made)  # or nothing would shrink
    long = fit(Case(N_k=4100, N_q=3), subject)
    assert long is not None
    assert long.B == 2
    assert long.scores > LARGE
    few = replace(subject, spec=replace(subject.spec, max_shapes=3))
    assert fit(Case(), few) is None
    assert fit(Case(B=2), few) == Case(B=2)


@pytest.mark.parametrize(
    "changes", [{"cross": False}, {"multiples": (4, 6)}, {"cross": False, "multiples": (4, 6)}], ids=str
)
def test_a_batch_keeps_the_lengths_that_are_declared(changes: dict[str, object]) -> None:
    spec = replace(BASES["split"].spec, **changes)  # type: ignore[arg-type]
    start = Case(**dict(zip(("N_q", "N_k"), spec.lengths(1, 1), strict=True)), block=(8, 4))
    for seed in range(32):
        case = CHECKS["batch_invariance"].fit(replace(start, seed=seed), Subject(BASES["split"], spec))
        assert case is not None
        assert spec.lengths(case.N_q, case.N_k) == (case.N_q, case.N_k)
        assert spec.cross or case.N_q == case.N_k

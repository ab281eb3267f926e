"""Two checks of the kit: log-sum-exps merge, and a sequence does not depend on the batch that it
is in.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flashsim.testing import Case, Spec, check_attention, mutants, replay
from flashsim.testing.checks import CHECKS
from flashsim.testing.checks.self_consistency import MOST_SCORES
from flashsim.testing.kernel import Kernel
from flashsim.testing.mutants import BASES, Implementation
from flashsim.testing.survey import Tally, shrink, survey, try_check


def tried(
    attention: Implementation,
    name: str,
    examples: int = 24,
    until_failure: bool = False,
    **changes: Any,
) -> Tally:
    kernel = Kernel(attention, replace(attention.spec, **changes))
    return survey(kernel, examples, 0, [name], until_failure=until_failure).tallies[name]


MERGING: list[dict[str, Any]] = [
    {},
    {"cross": False},
    {"masks": False},
    {"masks": False, "zero_keys": False},
]


@pytest.mark.parametrize("changes", MERGING, ids=str)
def test_log_sum_exps_of_correct_attentions_merge(changes: dict[str, Any]) -> None:
    result = tried(BASES["unfused"], "mergeable_lse", **changes)
    assert result.tried > 5
    assert result.worst < 1


def test_a_wrong_log_sum_exp_that_the_output_hides_does_not_merge() -> None:
    kernel = mutants.lse_in_base_2
    assert not tried(kernel, "oracle").failed
    for changes in MERGING:
        assert tried(kernel, "mergeable_lse", until_failure=True, **changes).failed
    assert not tried(kernel, "mergeable_lse", lse="base2").failed


def test_rows_whose_stored_scores_may_overflow_need_not_merge() -> None:
    spec = Spec(dtypes=("float16",), stores="scores", lse="natural")

    def overflows(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
        O, lse = BASES["unfused"](q, k, v)
        return O + np.where(np.abs(k).max() > 1000, np.nan, 0), lse

    for regime in ("gaussian", "massive"):
        case = Case(d=64, N_k=9, dtype="float16", regime=regime)
        result = try_check(CHECKS["mergeable_lse"], Kernel(overflows, spec), case)
        if case.problem(spec).overflowing.all():
            assert result is None  # nothing is asked
        else:
            assert result is not None
            assert not result.failed


@pytest.mark.slow
def test_an_empty_part_counts_as_what_is_returned_of_it() -> None:
    kernel = mutants.lse_of_empty_row_positive
    assert not tried(kernel, "split_and_merge").failed
    for changes in MERGING[1:3]:  # the part is masked, or taken
        assert tried(kernel, "mergeable_lse", until_failure=True, **changes).failed
        assert not tried(kernel, "mergeable_lse", 12, **changes, empty_rows="undefined").failed


# NumPy sums in "split" as the shape of the whole batch says
@pytest.mark.parametrize("name", ["tiled", "unfused"])
def test_correct_attentions_are_batch_invariant(name: str) -> None:
    result = tried(BASES[name], "batch_invariance", batch_invariant=True)
    assert result.tried == 24
    assert result.worst == 0


@pytest.mark.parametrize("name", ["splits_follow_the_batch", "tiles_follow_the_batch"])
def test_sums_that_follow_the_batch_are_noticed_where_bits_are_promised(name: str) -> None:
    kernel = getattr(mutants, name)
    assert tried(kernel, "batch_invariance", 200, until_failure=True).failed
    assert not tried(kernel, "batch_invariance", batch_invariant=False).failed  # within budget
    assert not tried(kernel, "determinism", batch_invariant=False).failed


def test_the_smallest_batch_and_the_first_bit_are_shown() -> None:
    mutant = mutants.splits_follow_the_batch
    check = CHECKS["batch_invariance"]
    kernel = Kernel(mutant, mutant.spec)
    simplest = tried(mutant, "batch_invariance", 200, until_failure=True).simplest
    assert simplest is not None
    result = shrink(check, kernel, simplest.case)
    assert result is not None
    assert result.case.B < simplest.case.B or result.case.B == 2
    assert 8 < result.case.N_k <= 17  # more keys than one part has, and few parts
    with pytest.raises(AssertionError, match=r"in a batch of(.|\n)*first differ in bit \d+ of"):
        replay(mutant, mutant.spec, "batch_invariance", result.case)


def test_no_sequence_within_one_part_shows_how_sequences_are_split() -> None:
    kernel = mutants.splits_follow_the_batch
    for seed in range(0, 40, 2):  # the check lengthens those of odd seeds
        replay(kernel, kernel.spec, "batch_invariance", Case(B=8, N_k=8, d=4, seed=seed))


def test_a_sequence_that_reads_its_neighbour_fails_without_a_promise() -> None:
    def leaky(q: Any, k: Any, v: Any) -> Any:
        return BASES["unfused"](q, k, v)[0] + v[-1:, :1, -1:] * (len(q) > 1)

    assert not check_attention(
        leaky, Spec(), checks=["batch_invariance"], max_examples=5, on_fail="return"
    ).ok


def test_a_batch_is_made_where_a_case_has_one_sequence() -> None:
    fit = CHECKS["batch_invariance"].fit
    kernel = Kernel(BASES["split"], BASES["split"].spec)
    made = [fit(Case(seed=seed, block=(8, 4)), kernel) for seed in range(128)]
    assert {case.B for case in made if case} == {2, 3, 5, 17}
    around = {m * 4 + off for m in (1, 2, 3, 5) for off in (-1, 0, 1, 2)}
    assert {case.N_k for case in made if case} == {1, *(n for n in around if n > 4)}
    assert all(case and fit(case, kernel) == case for case in made)  # or nothing would shrink
    long = fit(Case(N_k=4100, N_q=3), kernel)
    assert long is not None
    assert long.B == 2
    assert long.scores > MOST_SCORES
    # two would be more than a case may have
    assert fit(Case(H_kv=4, N_k=6000, N_q=6000), kernel) is None
    few = replace(kernel, spec=replace(kernel.spec, max_shapes=3))
    assert fit(Case(), few) is None
    assert fit(Case(B=2), few) == Case(B=2)


@pytest.mark.parametrize(
    "changes",
    [{"cross": False}, {"multiples": (4, 6)}, {"cross": False, "multiples": (4, 6)}],
    ids=str,
)
def test_a_batch_keeps_the_lengths_that_are_declared(changes: dict[str, Any]) -> None:
    spec = replace(BASES["split"].spec, **changes)
    N_q, N_k = spec.lengths(1, 1)
    for seed in range(32):
        case = CHECKS["batch_invariance"].fit(
            Case(N_q=N_q, N_k=N_k, seed=seed), Kernel(BASES["split"], spec)
        )
        assert case is not None
        assert spec.lengths(case.N_q, case.N_k) == (case.N_q, case.N_k)
        assert spec.cross or case.N_q == case.N_k

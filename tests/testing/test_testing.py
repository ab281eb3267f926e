"""The property-test kit, on kernels that are right, on kernels that are wrong, and on nonsense."""

import itertools
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

import numpy as np
import pytest

from flashsim import reference
from flashsim.algorithms.algorithm_2_flash import flash
from flashsim.reference.rounding import parts_of_bound
from flashsim.testing import (
    CHECKS,
    AttentionCheckFailed,
    Case,
    Report,
    Spec,
    check_attention,
    mutants,
    replay,
)
from flashsim.testing import parametrize_with_checks as parametrize
from flashsim.testing.case import STRIDES
from flashsim.testing.kernel import Kernel, lay_out
from flashsim.testing.mutants import ALL, BASES, EARLY, LATE, SINCE, Implementation, Mutant
from flashsim.testing.regimes import MASKS, REGIMES, values
from flashsim.testing.report import code
from flashsim.testing.strategies import around, pool
from flashsim.testing.survey import Finding, applicable, shrink, survey, try_check
from tests.helpers.pages import ROOT

TILED = BASES["tiled"]
UNFUSED = BASES["unfused"]


def full(implementation: Implementation, **options: Any) -> Report:
    return check_attention(
        implementation,
        implementation.spec,
        backward=implementation.backward,
        dropout=implementation.keep,
        **options,
    )


# -------------------------------------------------------------------------------------------------
# it notices real bugs


def test_there_are_enough_mutants_and_half_are_written_after_the_strategies() -> None:
    assert len(ALL) >= 40
    assert len(LATE) * 2 >= len(ALL) - 10
    assert len({mutant.name for mutant in ALL}) == len(EARLY) + len(LATE) + len(SINCE)
    parts = {"forward", "backward", "dropout"}
    assert {mutant.part for mutant in LATE} == parts
    assert {mutant.part for mutant in EARLY} == parts
    assert all(mutant.threads for mutant in EARLY + LATE)


def seeds() -> dict[str, int]:
    """By mutant: of the record's seeds, that with which a check failed first."""
    record = json.loads((ROOT / "figures" / "kit_matrix.json").read_text(encoding="utf-8"))
    seed_of = {}
    for row in record["data"]["mutants"]:
        examples = row["first"]
        seed_of[row["name"]] = examples.index(min(examples))
    return seed_of


@pytest.mark.slow
@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_every_mutant_is_caught_within_300_examples(mutant: Mutant) -> None:
    built = mutant.build()
    kernel = Kernel(built, built.spec, built.backward, built.keep)
    seed = seeds().get(mutant.name, 0)
    tallies = survey(kernel, 300, seed, until_failure=True).tallies
    failed = [name for name, tally in tallies.items() if tally.failed]
    assert failed, mutant.bug
    # a bug of the backward pass or of dropout shows in checks of those
    if mutant.part != "forward":
        forward_alone = Kernel(built, built.spec)
        of_both = {"strides", "inputs_unmodified"}
        for name in failed:
            assert CHECKS[name].needs(forward_alone) or name in of_both


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
def test_what_mutants_are_made_of_passes(name: str) -> None:
    report = full(BASES[name], max_examples=25, seed=1)
    assert report.ok
    assert report.worst < 1
    assert set(report.tallies) == set(CHECKS)
    assert all(tally.tried for tally in report.tallies.values())


# --------------------------------------------------------------------------------------------------
# what a failure says


def test_a_failure_says_what_where_and_how_to_see_it_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(AttentionCheckFailed) as caught:
        full(mutants.causal_top_left, max_examples=80, checks=["oracle"])
    message = str(caught.value)
    assert "causal_top_left fails 'oracle'" in message
    assert "Case(N_k=2, causal=True, block=(8, 4))" in message
    assert re.search(r"O \[0, 0, 0, 0\] is \S+; expected \S+ ± \S+\n.*× its budget", message)
    assert "top left" in message
    assert "Dao-AILab/flash-attention#282" in message
    assert "from flashsim.testing.mutants import causal_top_left" in message
    case = Case(N_k=2, causal=True, block=(8, 4))
    assert caught.value.report.failures[0].finding.case == case
    start = message.index("    from flashsim.testing import Case")
    indented = message[start : message.index("\n\ncheck ")]
    lines = [line.removeprefix("    ") for line in indented.splitlines()]
    first, second = "\n".join(lines).split("import numpy as np")
    with pytest.raises(AttentionCheckFailed, match="fails 'oracle'"):
        exec(first, {})
    capsys.readouterr()
    exec("from flashsim.testing.mutants import causal_top_left\nimport numpy as np" + second, {})
    printed = capsys.readouterr().out
    number = re.search(r"is (\S+); expected", message)
    assert number is not None
    assert number[1][:6] in printed


def test_up_to_64_numbers_are_shown_with_a_failure() -> None:
    def off_by_1(q: Any, k: Any, v: Any) -> Any:
        return reference.attention(q, k, v) + 1

    kernel = Kernel(off_by_1, Spec())
    cases = (
        (Case(N_q=4, N_k=2, d=8), True),
        (Case(N_q=5, N_k=4, d=5), False),
    )
    for case, output in cases:
        finding = try_check(CHECKS["oracle"], kernel, case)
        assert finding is not None
        assert ("q = np.array(" in code(kernel, finding)) == output


def test_what_raises_is_a_finding_and_not_a_crash() -> None:
    def kernel(q: Any, k: Any, v: Any, **_: Any) -> Any:
        if q.shape[2] > 3:
            raise RuntimeError("unsupported length")
        return reference.attention(q, k, v).astype(q.dtype)

    report = check_attention(
        kernel,
        Spec(),
        max_examples=50,
        checks=["oracle"],
        on_fail="return",
    )
    failure = report.failures[0]
    assert "raised RuntimeError: unsupported length" in failure.message
    assert failure.finding.case == Case(N_q=4)


def test_a_failure_that_does_not_come_again_is_said_to_be_one() -> None:
    calls = itertools.count()

    def kernel(q: Any, k: Any, v: Any, **_: Any) -> Any:
        error = 1 if next(calls) == 20 else 0
        return (reference.attention(q, k, v) + error).astype(q.dtype)

    def forgetful(q: Any, k: Any, v: Any) -> Any:
        O = reference.attention(q, k, v).astype(q.dtype)
        error = 0.5 if next(calls) % 7 == 0 else 0.0
        return O + error

    report = check_attention(
        kernel,
        Spec(),
        max_examples=30,
        checks=["oracle"],
        on_fail="return",
    )
    (failure,) = report.failures
    said = "tried once more it passed, so the kernel may not be deterministic; 1 of 30 cases"
    assert said in failure.message
    report = check_attention(
        forgetful,
        Spec(),
        max_examples=60,
        checks=["oracle", "determinism"],
        on_fail="return",
    )
    # though it cannot be shrunk
    assert "determinism" in {failure.check for failure in report.failures}


def test_a_case_is_made_smaller_with_other_numbers_where_its_own_pass() -> None:
    def attempt(check: Any, kernel: Kernel, case: Case) -> Finding:
        fails = case.N_q == 9 or case.seed == 3
        return Finding("oracle", case, 2.0 if fails else 0.5)

    kernel = Kernel(TILED, TILED.spec)
    smaller = shrink(CHECKS["oracle"], kernel, Case(N_q=9, seed=2), attempt)
    assert smaller is not None
    assert smaller.case == Case(N_q=1, seed=3)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda O: (O, O), "expected O alone"),
        (lambda O: O[..., :0], "it returned an O of shape"),
        (lambda O: O.astype(int), "it returned an O of dtype int64; expected floating point"),
        (lambda O: None, "it returned None; expected O"),
        (lambda O: sys.exit(0), "it raised SystemExit"),
        (lambda O: np.full_like(O, np.nan), "is nan; expected"),
    ],
)
def test_what_is_no_answer_is_said_to_be_none(returned: Callable[[Any], Any], message: str) -> None:
    def kernel(q: Any, k: Any, v: Any, **_: Any) -> Any:
        return returned(reference.attention(q, k, v).astype(q.dtype))

    report = check_attention(kernel, Spec(), max_examples=5, checks=["oracle"], on_fail="return")
    assert message in re.sub(r"\s+", " ", str(report))
    assert not report.ok


@pytest.mark.parametrize("what", ["q", "v", "mask", "beyond k"])
def test_what_a_kernel_writes_to_is_named(what: str) -> None:
    spec = Spec(masks=True)

    def kernel(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        O = plain(spec, q, k, v, mask=mask)
        if what == "mask" and mask is not None:
            mask[...] = True
        elif what == "beyond k":
            k.base.ravel()[0] = 1.0
        elif what in ("q", "v"):
            {"q": q, "v": v}[what][..., 0] = 1.0
        return O

    report = check_attention(kernel, spec, max_examples=20, on_fail="return")
    assert [failure.check for failure in report.failures] == ["inputs_unmodified"]
    named = {
        "q": "memory of q",
        "v": "memory of v",
        "mask": "mask afterwards",
        "beyond k": "memory of k",
    }[what]
    assert named in report.failures[0].message


# ------------------------------------------------------------------------------------------------
# only what is declared


@pytest.mark.parametrize(
    "spec",
    [
        Spec(),
        Spec(causal="top_left", cross=False),
        Spec(masks=True, layout="BNHD", empty_rows="mean"),
        Spec(masks=True, lse="base2", empty_rows="nan"),
        Spec(gqa=True, head_dims=(16, 32), strides="last_contiguous"),
        Spec(
            scale=True,
            d_v=True,
            dtypes=("float64",),
            empty_rows="undefined",
            masks=True,
        ),
        Spec(
            causal="bottom_right",
            masks=True,
            lse="natural",
            gqa=True,
            scale=True,
            d_v=True,
            max_shapes=12,
        ),
        Spec(
            causal="bottom_right",
            masks=True,
            lse="natural",
            multiples=(4, 8),
            dtypes=("float64",),
        ),
        Spec(causal="top_left", cross=False, multiples=(4, 6)),
        Spec(masks=True, lse="natural", multiples=(8, 8), max_shapes=6),
    ],
    ids=repr,
)
def test_a_kernel_is_asked_only_for_what_it_declares(spec: Spec) -> None:
    calls: list[Any] = []

    def kernel(q: Any, k: Any, v: Any, **options: Any) -> Any:
        calls.append((q, k, v, options))
        return plain(spec, q, k, v, **options)

    report = check_attention(kernel, spec, max_examples=20)
    assert report.ok
    declared = {"causal": "causal", "scale": "scale", "mask": "masks"}
    heads = 2 if spec.layout == "BNHD" else 1
    rows = 3 - heads
    assert len(calls) > 50
    shapes = set()
    for q, k, v, options in calls:
        shapes.add((q.shape, k.shape, v.shape))
        assert set(options) <= {name for name in declared if getattr(spec, declared[name])}
        assert options.get("causal", True) is True
        assert q.dtype.name in spec.dtypes
        assert spec.gqa or q.shape[heads] == k.shape[heads]
        assert spec.cross or q.shape[rows] == k.shape[rows]
        assert spec.d_v or q.shape[3] == v.shape[3]
        assert spec.head_dims is None or q.shape[3] in spec.head_dims
        assert spec.strides == "any" or q.strides[3] == q.itemsize
        assert k.shape[rows] > 0
        assert q.shape[rows] % spec.multiples[0] == 0
        assert k.shape[rows] % spec.multiples[1] == 0
    assert spec.max_shapes is None or len(shapes) <= spec.max_shapes


def plain(
    spec: Spec,
    q: Any,
    k: Any,
    v: Any,
    causal: bool = False,
    scale: float | None = None,
    mask: Any = None,
) -> Any:
    """Textbook attention with all that a spec may say."""
    if spec.layout == "BNHD":
        q, k, v = (a.swapaxes(1, 2) for a in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k = np.repeat(k, group, axis=1)
    v = np.repeat(v, group, axis=1)
    N_q = q.shape[2]
    N_k = k.shape[2]
    allowed = np.ones((*q.shape[:3], N_k), bool)
    if causal:
        last_of_row_0 = N_k - N_q if spec.causal == "bottom_right" else 0
        allowed &= np.tri(N_q, N_k, last_of_row_0, dtype=bool)
    if mask is not None:
        allowed &= mask
    O, l, m = reference.attention_with_statistics(q, k, v, scale=scale, mask=allowed)
    empty = np.logical_not(allowed.any(axis=-1))
    if spec.empty_rows == "mean":
        mean = v.astype(float).mean(axis=-2, keepdims=True)
        O = np.where(empty[..., None], mean, O)
    elif spec.empty_rows != "zero":
        O[empty] = np.nan
    if spec.layout == "BNHD":
        O = O.swapaxes(1, 2)
    O = O.astype(q.dtype)
    if spec.lse is None:
        return O
    with np.errstate(divide="ignore"):
        lse = m + np.log(l)
    if spec.lse == "base2":
        lse = lse / np.log(2)
    return O, lse


@pytest.mark.slow
def test_wrong_declarations_are_noticed() -> None:
    spec = Spec(masks=True, causal="bottom_right", lse="natural")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"empty_rows": "mean"}, "empty_rows"),
        ({"empty_rows": "nan"}, "empty_rows"),
        ({"lse": "base2"}, "log_sum_exp"),
        ({"causal": "top_left"}, "oracle"),
    ]
    for change, check in wrong:
        report = check_attention(
            partial(plain, spec),
            replace(spec, **change),
            checks=[check],
            max_examples=100,
            on_fail="return",
        )
        assert not report.ok, change


def softmax(q: Any, k: Any) -> Any:
    """P, in the type of q and k."""
    S = q @ k.swapaxes(-1, -2) / q.dtype.type(np.sqrt(q.shape[-1]))
    P = np.exp(S - S.max(axis=-1, keepdims=True))
    return P / P.sum(axis=-1, keepdims=True)


@pytest.mark.slow
def test_a_strict_budget_tells_16_bit_sums_from_float32_ones() -> None:
    def sloppy(q: Any, k: Any, v: Any) -> Any:
        P = softmax(q.astype(np.float32), k.astype(np.float32)).astype(np.float16)
        # a running sum in float16
        products = P[..., None] * v[:, :, None]
        return np.add.accumulate(products, axis=-2)[..., -1, :]

    with pytest.raises(AttentionCheckFailed):
        check_attention(sloppy, Spec(dtypes=("float16",)), checks=["oracle"], max_examples=150)
    gentle = Spec(
        dtypes=("float16",),
        accumulate="float16",
        head_dims=(4,),
        strides="contiguous",
    )

    def moderate(q: Any, k: Any, v: Any) -> Any:
        P = softmax(q.astype(np.float32), k.astype(np.float32))
        return (P @ v.astype(np.float32)).astype(np.float16)

    assert check_attention(moderate, gentle, max_examples=60).ok


# --------------------------------------------------------------------------------------------------
# the API


@pytest.mark.slow
def test_expected_failures_are_expected_and_only_they() -> None:
    leaky = next(mutant for mutant in ALL if mutant.name == "nan_in_masked_values").build()
    reasons = {"masked_kv_poison": "0·NaN", "backward_poison": "0·NaN"}
    checks = [*reasons]
    report = full(leaky, max_examples=12, checks=checks, expected_failures=reasons)
    assert report.ok
    assert "fails, as expected: 0·NaN" in str(report)
    with pytest.raises(AttentionCheckFailed, match="masked_kv_poison"):
        full(leaky, max_examples=12, checks=checks)
    with pytest.raises(AttentionCheckFailed, match="fails 'backward_poison'"):
        full(leaky, max_examples=12, checks=checks, expected_failures={"masked_kv_poison": "0·NaN"})
    with pytest.raises(AttentionCheckFailed, match="was expected to fail, and passes: oracle"):
        full(TILED, max_examples=20, checks=["oracle"], expected_failures={"oracle": "why not"})


def test_a_report_a_spec_and_a_case_can_be_read_and_kept() -> None:
    report = full(UNFUSED, max_examples=15)
    message = str(report)
    assert all(name in message for name in CHECKS)
    assert "FAILS" not in message
    record = report.as_json()
    assert report.name == report.kernel == record["kernel"]
    assert message.startswith(f"{report.name}, 15 cases")
    assert record["ok"] is True
    assert record["examples"] == 15
    assert record["checks"]["oracle"]["cases"] > 0
    one_check = check_attention(
        partial(plain, Spec()),
        Spec(),
        checks=["oracle"],
        max_examples=10,
    )
    assert list(one_check.tallies) == ["oracle"]
    kernel = Kernel(UNFUSED, UNFUSED.spec)
    first, again, other = (survey(kernel, 15, seed, ["oracle"]).verdicts for seed in (3, 3, 4))
    assert first == again != other  # by the seed
    spec = Spec(dtypes=("float16",), causal="top_left", C=1.0)
    case = Case(N_q=3, mask="holes", seed=7)
    assert eval(repr(spec)) == spec
    assert eval(repr(case)) == case


@pytest.mark.parametrize(
    ("of", "arguments", "message"),
    [
        (check_attention, {"spec": {"causal": True}}, "expected a flashsim.testing.Spec"),
        (check_attention, {"fn": None}, "expected a function"),
        (check_attention, {"backward": 3}, "backward is 3; expected a function"),
        (check_attention, {"max_examples": 0}, "max_examples is 0; expected at least 1"),
        (check_attention, {"fail_fast": "no"}, "fail_fast is 'no'; expected True or False"),
        (check_attention, {"on_fail": "ignore"}, "expected 'raise' or 'return'"),
        (
            check_attention,
            {"checks": ["orakel"]},
            "there is no check 'orakel'; expected one of oracle, ",
        ),
        (
            check_attention,
            {"checks": ["gradients", "dropout"]},
            "'gradients' is asked for, but does not apply: no backward",
        ),
        (check_attention, {"expected_failures": {"gradients": "?"}}, "does not apply: no backward"),
        (
            check_attention,
            {"expected_failures": {"strides": "?"}, "checks": ["oracle"]},
            "not among the checks",
        ),
        (
            parametrize,
            {"expected_failures": {"stride": "no"}},
            "there is no check 'stride'; expected one of",
        ),
        (Spec, {"causal": True}, "causal is True"),
        (Spec, {"layout": "HBND"}, "expected one of 'BHND', 'BNHD'"),
        (Spec, {"dtypes": ("float8",)}, "float8"),
        (Spec, {"dtypes": ()}, "dtypes is empty"),
        (Spec, {"block": 16}, "expected 2 positive whole numbers"),
        (Spec, {"block": (16, 0)}, "expected 2 positive whole numbers"),
        (Spec, {"multiples": 16}, "multiples is 16; expected 2 positive whole numbers"),
        (Spec, {"head_dims": ()}, "head_dims is ()"),
        (Spec, {"max_shapes": 0}, "max_shapes is 0"),
        (Spec, {"max_shapes": 10**5000}, "; expected a positive whole number of at most"),
        (Spec, {"masks": 1}, "expected True or False"),
        (Spec, {"C": 0}, "expected a positive number"),
        (Spec, {"strides": False}, "expected one of 'any'"),
        (
            Case,
            {"N_q": 2**31, "N_k": 2**31},
            "N_q, N_k, d, d_v make an array of up to 4611686018427387904 elements",
        ),
        (Case, {"N_k": 2_147_483_648}, "expected at most 268,435,456"),
    ],
)
def test_bad_arguments_are_refused(of: Any, arguments: dict[str, Any], message: str) -> None:
    if of in (check_attention, parametrize):
        arguments = {"spec": UNFUSED.spec, **arguments}
        of = partial(of, arguments.pop("fn", UNFUSED))
    with pytest.raises(ValueError, match=re.escape(message)):
        of(**arguments)


def whole_tiles(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """A kernel without ragged tiles, of 4 rows and 8 keys."""
    if q.shape[2] % 4 or k.shape[2] % 8:
        raise ValueError("lengths must be multiples of the tile")
    O, lse = plain(Spec(lse="natural"), q, k, v, mask=mask)
    return O, lse


def test_lengths_may_be_declared_to_be_multiples() -> None:
    spec = Spec(lse="natural", masks=True, multiples=(4, 8))
    report = check_attention(whole_tiles, spec, max_examples=40)
    assert report.ok
    checks = report.as_json()["checks"]
    for name in ("oracle", "split_and_merge", "appended_masked_keys", "empty_rows"):
        assert checks[name]["cases"] > 0

    def wrong(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        O, lse = whole_tiles(q, k, v, mask)
        return O * q.dtype.type(1.5), lse

    report = check_attention(wrong, spec, max_examples=60, on_fail="return", checks=["oracle"])
    (failure,) = report.failures
    smallest = failure.finding.case
    assert (smallest.N_q, smallest.N_k) == (4, 8)


def test_a_kernel_of_whole_tiles_is_told_what_to_declare_and_the_simulator_s_algorithm_where_it_goes() -> (
    None
):
    with pytest.raises(
        AssertionError, match="It takes only lengths that are multiples of 16"
    ) as caught:
        check_attention(whole_tiles, Spec(lse="natural"), max_examples=5)
    assert "Spec(multiples=(16, 16))" in str(caught.value)
    with pytest.raises(AssertionError) as caught:
        check_attention(flash, Spec(), max_examples=5)
    message = " ".join(str(caught.value).split())
    assert "It is written on flashsim's memory: flashsim run --algorithm FILE.py:NAME" in message


def test_replay_runs_one_check_on_one_case() -> None:
    broken = next(mutant for mutant in ALL if mutant.name == "scale_twice").build()
    case = Case(N_k=3, d=4)
    replay(UNFUSED, UNFUSED.spec, "oracle", case)
    with pytest.raises(AttentionCheckFailed, match="scale_twice fails 'oracle'"):
        replay(broken, broken.spec, "oracle", case)
    with pytest.raises(ValueError, match="does not apply: no backward"):
        replay(UNFUSED, UNFUSED.spec, "gradients", case)


@parametrize(TILED, TILED.spec, max_examples=3, backward=TILED.backward, dropout=TILED.keep)
def test_pytest_gets_a_test_for_each_check(check: Any) -> None:
    check()


LEAKY = next(mutant for mutant in EARLY if mutant.name == "nan_in_masked_values").build()


@parametrize(LEAKY, LEAKY.spec, max_examples=5, expected_failures={"masked_kv_poison": "0·NaN"})
def test_pytest_marks_what_is_expected_to_fail(check: Any) -> None:
    check()


def test_parametrize_names_its_tests_and_tries_as_many_cases_as_one_call_does() -> None:
    marks = parametrize(UNFUSED, UNFUSED.spec, expected_failures={"strides": "no"}).mark
    ids = [parameter.id for parameter in marks.args[1]]
    assert ids == [check.name for check in applicable(Kernel(UNFUSED, UNFUSED.spec))[0]]
    assert "gradients" not in ids
    (marked,) = (parameter for parameter in marks.args[1] if parameter.marks)
    assert marked.id == "strides"
    assert marked.marks[0].kwargs["strict"] is True
    defaults = [
        signature(each).parameters["max_examples"].default
        for each in (check_attention, parametrize)
    ]
    assert defaults == [300, 300]  # within which the kit's claims are measured


# --------------------------------------------------------------------------------------------------
# what is drawn


def test_strategies_reach_everything_they_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Case] = []
    monkeypatch.setattr(
        "flashsim.testing.survey.try_check", lambda check, kernel, case, trial: events.append(case)
    )
    survey(Kernel(UNFUSED, UNFUSED.spec), 400, 0, ["oracle"])
    B_r, B_c = UNFUSED.spec.block
    assert {case.regime for case in events} == set(REGIMES)
    assert {case.mask for case in events} == {None, *MASKS}
    assert {case.strides for case in events} == {*STRIDES}
    assert {case.dtype for case in events} == set(UNFUSED.spec.dtypes)
    assert {case.group for case in events} == {1, 2, 3, 4}
    for what in (
        lambda c: c.N_q == c.N_k == 1,
        lambda c: c.N_q < c.N_k and c.causal,
        lambda c: c.N_q > c.N_k > 0 and c.causal,
        lambda c: c.N_k > 4000,
        lambda c: c.N_q > 1000,
        lambda c: c.N_k == 0,
        lambda c: c.N_k % B_c == 1 and c.N_k > B_c,
        lambda c: c.N_k % B_c == B_c - 1 and c.N_k > B_c,
        lambda c: c.N_k % B_c == 0 and c.N_k > B_c,
        lambda c: c.N_q % B_r and c.N_q > B_r,
        lambda c: c.d_v not in (None, c.d),
        lambda c: c.scale is not None,
        lambda c: c.B > 1 and c.H_kv > 1 and c.group > 1,
    ):
        assert any(what(case) for case in events)


def some(booleans: Any) -> bool:
    """Whether some are true, and not all."""
    return bool(booleans.any() and not booleans.all())


def test_masks_do_what_their_names_say() -> None:
    case = Case(B=2, group=2, N_q=9, N_k=11, block=(4, 3))
    problems = {}
    for name in MASKS:
        drawn = [replace(case, mask=name, seed=seed) for seed in range(20)]
        problems[name] = [case_of_seed.problem(UNFUSED.spec) for case_of_seed in drawn]
    for p in itertools.chain(*problems.values()):
        assert np.broadcast_shapes(p.options["mask"].shape, p.score_shape) == p.score_shape
    assert any(p.empty.any() for p in problems["few"])
    assert any(some(p.empty) for p in problems["rows"])
    assert all(p.dead[..., :3].all() for p in problems["first_block"])
    right = problems["padding_right"][0].allowed
    steps = np.diff(right[0, 0, 0].astype(int))
    assert (steps <= 0).all()
    on_the_left = [p.dead[0, 0, 0] and not p.dead[0, 0, -1] for p in problems["padding_left"]]
    assert any(on_the_left)
    assert any(some(p.dead) for p in problems["holes"])


@pytest.mark.parametrize("strides", [s for s in STRIDES if s != "mixed"])
@pytest.mark.parametrize("layout", ["BHND", "BNHD"])
def test_arrays_lie_as_asked_with_nan_around_them(strides: str, layout: str) -> None:
    a = np.random.default_rng(0).normal(size=(2, 3, 4, 5))
    laid = lay_out(a, strides, layout)
    assert np.array_equal(laid if layout == "BHND" else laid.swapaxes(1, 2), a)
    assert laid.flags.c_contiguous == (strides == "contiguous")
    base = laid
    while base.base is not None:
        base = base.base
    assert np.isnan(base.ravel()[[0, -1]]).all()
    assert np.isnan(base).sum() == base.size - a.size


def test_a_case_that_has_groups_keeps_them() -> None:
    fit = CHECKS["grouped_heads"].fit
    kernel = Kernel(TILED, TILED.spec)

    groups = set()
    for seed in range(4):
        fitted = fit(Case(seed=seed), kernel)
        assert fitted is not None
        groups.add(fitted.group)
    assert groups == {2, 3}
    for case in (Case(group=2, seed=1), Case(group=3, seed=2)):
        assert fit(case, kernel) == case  # or nothing would shrink


def test_lengths_lie_around_the_block() -> None:
    assert {63, 64, 65, 96, 127, 128, 129, 193} <= set(around(64))
    assert around(1) == [1, 2, 3, 4, 5, 6]
    assert around(512) == [511, 512, 513, 768]


@pytest.mark.slow
def test_a_pool_of_shapes_keeps_its_bound_and_still_tells() -> None:
    for bound in (1, 2, 8, 30):
        spec = Spec(causal="bottom_right", gqa=True, lse="natural", max_shapes=bound)
        result = pool(spec)
        assert len(result.shapes) >= 1
        assert len(result.allowed) <= bound
    broken = replace(TILED.spec, max_shapes=8)
    for name in ("causal_top_left", "kv_head_modulo", "ragged_keys_unmasked", "scale_twice"):
        kernel = next(mutant for mutant in ALL if mutant.name == name).build()
        tallies = survey(Kernel(kernel, broken), 60, 0, until_failure=True).tallies
        assert any(tally.failed for tally in tallies.values()), name


def test_real_data_is_among_the_regimes_with_the_scores_of_real_heads() -> None:
    case = Case(H_kv=12, N_q=200, N_k=200, d=32, regime="real")
    problem = case.problem(UNFUSED.spec)
    K_T = problem.k.astype(float).swapaxes(-1, -2)
    S = problem.tau * problem.q.astype(float) @ K_T
    assert S.max() > 20
    outliers = values(np.random.default_rng(0), (1, 1, 4000, 8), "outliers")  # a twentieth
    assert 0.03 < (np.abs(outliers) > 20).mean() < 0.06


def test_nan_never_passes_and_infinite_budgets_do() -> None:
    ones = np.ones(1)
    zero = np.zeros(1)
    nan = np.full(1, np.nan)
    assert parts_of_bound(nan, ones, ones)[0] == np.inf
    assert parts_of_bound(ones, nan, ones)[0] == np.inf
    assert parts_of_bound(nan, nan, ones)[0] == 0
    assert parts_of_bound(ones, zero, np.full(1, np.inf))[0] == 0
    assert parts_of_bound(ones, ones, zero)[0] == 0
    assert parts_of_bound(1.5 * ones, ones, ones)[0] == 0.5


# ----------------------------------------------------------------------- the oracle and its budgets


def test_the_oracle_never_reads_what_is_masked() -> None:
    for seed in range(10):
        case = Case(B=2, group=2, N_q=5, N_k=9, d=3, mask="holes", seed=seed)
        problem = case.problem(UNFUSED.spec)
        dead = problem.dead[..., None]
        poisoned = problem.but(
            k=np.where(dead, np.float32(np.nan), problem.k),
            v=np.where(dead, np.float32(np.inf), problem.v),
        )
        for ours, theirs in zip(problem.solution, poisoned.solution, strict=True):
            assert np.array_equal(ours, theirs)
        gradients = problem.gradients()
        of_poisoned = poisoned.gradients()
        for ours, theirs in zip(gradients.exact, of_poisoned.exact, strict=True):
            assert np.array_equal(ours, theirs)
        for ours, theirs in zip(gradients.budgets, of_poisoned.budgets, strict=True):
            assert np.array_equal(ours, theirs)


def test_budgets_are_the_data_s_and_not_a_constant() -> None:
    def budget(spec: Spec, **changed: Any) -> Any:
        case = replace(Case(N_q=4, N_k=6, d=8, regime="integers"), **changed)
        return case.problem(spec).solution.O_budget

    small = budget(Spec())
    large = budget(Spec(), regime="massive")
    assert large.mean() > 1000 * small.mean()
    half = budget(Spec(), dtype="float16")
    assert half.mean() > 50 * small.mean()
    assert np.allclose(budget(Spec(C=4)), 2 * small)


@pytest.mark.parametrize(
    ("lse", "unit"),
    [("natural", 1.0), ("base2", np.log(2))],
)
def test_budgets_of_equal_weights(lse: str, unit: float) -> None:
    """Scores of 0 are not off: what is left is a sum of 300, and what is stored. Values are 1,
    so that O is 1.
    """
    spec = Spec(lse=lse)
    even = Case(N_q=1, N_k=300, d=8).problem(spec)
    solution = even.but(q=0 * even.q, v=0 * even.v + 1).solution
    u = 2.0**-24
    of_O = 300 + 8 + 2 + 1
    of_lse = 300 + 8 + 4 * (1 + np.log(300))
    np.testing.assert_allclose(solution.O_budget, spec.C * of_O * u, rtol=1e-6)
    np.testing.assert_allclose(solution.lse_budget * unit, spec.C * of_lse * u, rtol=1e-6)


def test_stored_scores_that_overflow_have_no_budget_and_others_do() -> None:
    def unfused(q: Any, k: Any, v: Any) -> Any:
        scaled = q.astype(np.float32) / np.float32(np.sqrt(q.shape[-1]))
        S = (scaled @ k.astype(np.float32).swapaxes(-1, -2)).astype(q.dtype)
        m = S.max(axis=-1, keepdims=True).astype(np.float32)
        P = np.exp(S.astype(np.float32) - m)
        O = P / P.sum(axis=-1, keepdims=True) @ v.astype(np.float32)
        return O.astype(q.dtype)

    spec = Spec(dtypes=("float16",), stores="scores")
    with np.errstate(all="ignore"):
        assert check_attention(unfused, spec, checks=["oracle"], max_examples=100).ok
    huge = Case(d=64, N_k=9, dtype="float16", regime="massive").problem(spec)
    huge = huge.but(q=huge.q * np.float16(8))
    assert huge.overflowing.all()
    assert np.isinf(huge.solution.O_budget).all()
    unstored = huge.but(spec=Spec(dtypes=("float16",)))
    assert np.isfinite(unstored.solution.O_budget).all()
    small = Case(d=64, N_k=9, dtype="float16").problem(spec)
    assert not small.overflowing.any()


def stored_scores(q: Any, k: Any, v: Any, scale: float | None = None) -> tuple[Any, Any, Any]:
    """Unfused attention that keeps S and P in the inputs' dtype: O, its log-sum-exp, and P."""
    f = np.float64

    def stored(x: Any) -> Any:
        return x.astype(q.dtype).astype(f)

    tau = scale or q.shape[-1] ** -0.5
    S = stored(q.astype(f) @ k.astype(f).swapaxes(-1, -2) * tau)
    m = S.max(axis=-1, keepdims=True)
    l = np.exp(S - m).sum(axis=-1, keepdims=True)
    P = stored(np.exp(S - m) / l)
    O = (P @ v.astype(f)).astype(q.dtype)
    lse = (m + np.log(l))[..., 0].astype(np.float32)
    return O, lse, P


def test_rounding_of_stored_scores_that_decides_the_softmax_is_within_budget() -> None:
    """Scores in the thousands, stored in bfloat16, are off by several: a weight by e to twice
    that. Or they overflow.
    """

    def forward(q: Any, k: Any, v: Any, **options: Any) -> Any:
        return stored_scores(q, k, v, **options)[:2]

    def backward(q: Any, k: Any, v: Any, do: Any, scale: float | None = None) -> Any:
        f = np.float64

        def stored(x: Any) -> Any:
            return x.astype(q.dtype).astype(f)

        tau = scale or q.shape[-1] ** -0.5
        P = stored_scores(q, k, v, scale)[2]
        dV = P.swapaxes(-1, -2) @ do.astype(f)
        dP = stored(do.astype(f) @ v.astype(f).swapaxes(-1, -2))
        D = (P * dP).sum(axis=-1, keepdims=True)
        dS = stored(P * (dP - D))
        dQ = tau * dS @ k.astype(f)
        dK = tau * dS.swapaxes(-1, -2) @ q.astype(f)
        return dQ.astype(q.dtype), dK.astype(q.dtype), dV.astype(q.dtype)

    def spec(dtype: str) -> Spec:
        return Spec(
            dtypes=(dtype,),
            block=(64, 64),
            lse="natural",
            scale=True,
            stores="scores",
        )

    with np.errstate(all="ignore"):
        far = Case(
            H_kv=2,
            N_q=3,
            N_k=5,
            d=64,
            dtype="bfloat16",
            scale=2.5,
            regime="negative",
            block=(64, 64),
            seed=161,
        )
        replay(forward, spec("bfloat16"), "gradients", far, backward=backward)
        over = Case(
            N_k=3,
            d=64,
            dtype="float16",
            regime="negative",
            block=(64, 64),
        )
        replay(forward, spec("float16"), "split_and_merge", over)


@pytest.mark.slow
def test_300_examples_on_a_numpy_kernel_are_tried_with_every_check() -> None:
    report = full(UNFUSED, max_examples=300)
    assert report.examples == 300
    assert min(tally.tried for tally in report.tallies.values()) >= 20


def test_a_mean_of_values_in_empty_rows_is_within_rounding() -> None:
    spec = Spec(masks=True, empty_rows="mean")
    problem = Case(N_q=40, N_k=3, d=3, mask="few").problem(spec)
    O, _, budget, _ = problem.solution
    rows = problem.empty
    assert rows.any()
    mean = problem.v.astype(float).mean(axis=-2)[:, :, None]
    np.testing.assert_allclose(O[rows], np.broadcast_to(mean, O.shape)[rows])
    assert budget[rows].max() < 1e-4 * np.abs(problem.v).max()

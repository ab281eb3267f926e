"""Which known bug a failing kernel has: by experiment, by a model with that bug that gives the same wrong numbers, or, failing
those, by what the failing cases have in common."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from flashsim.inputs import Array, roundoff
from flashsim.testing.case import Case, Problem, of_budget
from flashsim.testing.kernel import Broken, Kernel, OutsidePool, kinds_of, lay_out, lay_out_all, memory_of
from flashsim.testing.running import Finding
from flashsim.testing.spec import Spec
from flashsim.testing.suspects import FA, Arrays, Question, Suspect, suspects

MOST_SCORES = 10**6  # of a case that is looked at
FEW_SCORES = 4096  # of a passing case that a model is held against
ALIBIS = 24  # so many passing cases
CLEARLY = 4  # budgets
POISONED = ("masked_kv_poison", "backward_poison")
OF_GRADIENTS = ("gradients", "finite_differences", "masked_gradients", POISONED[1], "dropout_gradients", "strides")


@dataclass(frozen=True)
class Suspicion:
    """A known bug that a kernel may have.

    says      the bug, in a sentence
    threads   where it was seen
    evidence  what speaks for it
    """

    says: str
    threads: tuple[str, ...]
    evidence: str


def diagnose(kernel: Kernel, findings: Sequence[Finding], verdicts: Sequence[tuple[Case, bool]]) -> list[Suspicion]:
    """Return up to three bugs that would explain the failing findings, the likeliest first; none if nothing fits.

    `verdicts` says of each case tried whether it passed.
    """
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        convictions, exhibits = _convicted(kernel, findings, verdicts)
        found = _explaining(convictions)
        explained = set().union(*(c.matched for c in found)) if found else set()
        suspicions = [Suspicion(c.says, c.threads, c.evidence) for c in found]
        if not suspicions or len(explained) < exhibits:
            suspicions += _common(kernel.spec, verdicts)
    return suspicions[:3]


class Conviction(NamedTuple):
    """A bug with the numbers of the findings that it explains, and of how many it does not."""

    says: str
    threads: tuple[str, ...]
    evidence: str
    matched: frozenset[int]
    mismatched: int = 0


def _convicted(
    kernel: Kernel, findings: Sequence[Finding], verdicts: Sequence[tuple[Case, bool]]
) -> tuple[list[Conviction], int]:
    """Return all bugs that fit, the simplest first, and how many findings were looked at."""
    failing = [f for f in findings if f.failed and math.prod(_score_shape(f.case)) <= MOST_SCORES]
    found = [bug for experiment in EXPERIMENTS if (bug := experiment.convict(kernel, failing)) is not None]
    exhibits = {n: e for n, f in enumerate(failing) if (e := _exhibit(kernel, f)) is not None}
    if exhibits:
        found += _by_model(kernel, exhibits, failing, [case for case, passed in verdicts if passed])
    if not found and (bug := ONLY_DROPOUT.convict(kernel, failing)) is not None:
        found.append(bug)
    return found, len(failing)


def _explaining(convictions: Sequence[Conviction]) -> list[Conviction]:
    """Return the bugs that explain most, and those that explain what they do not; of equal ones the first three."""
    ranked = sorted(convictions, key=lambda c: (c.mismatched - len(c.matched), c.mismatched))
    chosen: list[Conviction] = []
    for c in ranked:
        so_far = frozenset().union(*(other.matched for other in chosen))
        if c.matched - so_far or c.matched == ranked[0].matched:
            chosen.append(c)
    return chosen[:3]


def _score_shape(case: Case) -> tuple[int, ...]:
    return case.B, case.H_kv, case.group, case.N_q, case.N_k


# ------------------------------------------------------------------------------------------------------------ exhibits


@dataclass(frozen=True, eq=False)
class Exhibit:
    """Numbers of a kernel, beside the right ones: of O or the log-sum-exp, or all three gradients.

    beside  what the same call returned besides: where that is right, a model must not be wrong
    """

    question: Question
    want: Arrays
    budget: Arrays
    at: Arrays
    beside: tuple[Exhibit, ...] = ()

    @cached_property
    def wrong(self) -> Arrays:
        """Where the kernel is wrong."""
        return self._off(self.question.got)

    @property
    def right(self) -> bool:
        """Whether the kernel is right."""
        return not any(part.any() for part in self.wrong)

    @cached_property
    def tolerance(self) -> Arrays:
        """How near a model must come to be right, besides a part of its own size."""
        u = roundoff(self.question.problem.q.dtype)
        return tuple(
            3 * budget + 4 * u * np.abs(np.where(np.isfinite(got), got, 0)).max(axis=-1, keepdims=True, initial=0)
            for budget, got in zip(self.budget, self.question.got, strict=True)
        )

    def _off(self, answer: Arrays, budgets: int = 1) -> Arrays:
        return tuple(
            (of_budget(a, want, budget) > budgets) & at
            for a, want, budget, at in zip(answer, self.want, self.budget, self.at, strict=True)
        )

    def refutes(self, answers: Sequence[Arrays]) -> bool:
        """Return whether a model is wrong where the kernel is right."""
        return bool(answers) and all(any(part.any() for part in self._off(a, CLEARLY)) for a in answers)

    def verdict(self, answers: Sequence[Arrays]) -> bool | None:
        """Return whether one of a model's answers is what the kernel returned, or None if the model is right here."""
        off = [any(part.any() for part in self._off(answer)) for answer in answers]
        if any(map(self._same, (a for a, wrong in zip(answers, off, strict=True) if wrong))):
            return True
        return False if answers and all(off) else None

    def _same(self, answer: Arrays) -> bool:
        kinds = self.question.aspect == "lse"
        apart, astray = 0.0, 0.0
        parts = zip(answer, self.question.got, self.want, self.tolerance, self.at, self.wrong, self.budget, strict=True)
        for a, got, want, tolerance, at, wrong, budget in parts:
            judged = at & (budget < np.inf)
            both = np.isfinite(a) & np.isfinite(got)
            alike = (a == got) | (np.isnan(a) & np.isnan(got)) if kinds else ~np.isfinite(a) & ~np.isfinite(got)
            near = np.abs(np.where(both, a - got, 0)) <= tolerance + 1e-3 * np.abs(a)
            if not (np.where(both, near, alike) | ~judged).all():
                return False
            count = wrong & both & np.isfinite(want)
            size = np.where(budget > 0, budget, 1e-30)[count]
            apart += float((np.abs(a - got)[count] / size).sum())
            astray += float((np.abs(want - got)[count] / size).sum())
        return apart <= 0.3 * astray


def _exhibit(kernel: Kernel, finding: Finding) -> Exhibit | None:
    """Return where the kernel is wrong about the finding's case, or about what the check made of it."""
    problems = [finding.case.problem(kernel.spec)]
    if finding.comparison is not None and finding.comparison.problem is not None:
        problems.append(finding.comparison.problem)
    for problem in problems:
        if math.prod(problem.score_shape) > MOST_SCORES or not all(map(_finite, (problem.q, problem.k, problem.v))):
            continue
        try:
            for exhibit in _aspects(kernel, finding, problem):
                if not exhibit.right:
                    return exhibit
        except (Broken, OutsidePool, ValueError, ArithmeticError):
            continue
    return None


def _aspects(kernel: Kernel, finding: Finding, problem: Problem) -> Iterator[Exhibit]:
    """Yield what the kernel says of a problem, part by part, what the finding's check looks at first."""
    keep = kernel.keep(problem) if problem.dropout_p and kernel.keep_mask else None
    live, empty = ~problem.empty, problem.empty
    if kernel.back and finding.check in OF_GRADIENTS and (kernel.spec.empty_rows == "zero" or live.all()):
        exact, budgets = problem.gradients(keep)
        got = kernel.backward(problem, finding.case.strides)
        yield Exhibit(
            Question(problem, keep, "gradients", got), exact, budgets, tuple(np.ones(a.shape, bool) for a in got)
        )
    right, out = problem.solution, kernel.forward(problem, finding.case.strides)
    O, O_budget = (right.O, right.O_budget) if keep is None else problem.dropped(keep)
    promised = [live] if kernel.spec.empty_rows == "undefined" else [live, empty]
    if finding.check == "empty_rows":
        promised.reverse()
    in_O = [
        Exhibit(Question(problem, keep, "O", (out.O,)), (O,), (O_budget,), (np.broadcast_to(at[..., None], O.shape),))
        for at in promised
    ]
    in_lse = []
    if out.lse is not None:
        question = Question(problem, keep, "lse", (out.lse,))
        rows = promised if kernel.spec.empty_rows == "zero" else [live]
        in_lse = [Exhibit(question, (right.lse,), (right.lse_budget,), (at,), tuple(in_O)) for at in rows]
    yield from (*in_lse, *in_O) if finding.check == "log_sum_exp" else (*in_O, *in_lse)


def _finite(a: Array) -> bool:
    return bool(np.isfinite(a.astype(np.float64)).all())


# ------------------------------------------------------------------------------------------------------------- by model


def _by_model(
    kernel: Kernel, exhibits: dict[int, Exhibit], findings: Sequence[Finding], passing: Sequence[Case]
) -> list[Conviction]:
    """Return the suspects whose answers are the kernel's wherever they are wrong, of each family the best."""
    alibis: list[Exhibit] | None = None
    check, failing = findings[0].check, [finding.case for finding in findings]
    ordered = sorted(exhibits.items(), key=lambda item: math.prod(item[1].question.problem.score_shape))
    best: dict[str, Conviction] = {}
    for suspect in suspects(kernel.spec):
        matched, mismatched = set(), 0
        for number, exhibit in ordered:
            verdict = exhibit.verdict(_answers(suspect, exhibit))
            if verdict:
                matched.add(number)
            mismatched += verdict is False
            if mismatched > max(0, (len(ordered) - mismatched) // 4):
                break
        if not matched or len(matched) < 4 * mismatched:
            continue
        if alibis is None:
            alibis = _alibis(kernel, check, passing, failing)
        beside = [other for n in matched for other in exhibits[n].beside if other.right]
        if any(alibi.refutes(_answers(suspect, alibi)) for alibi in (*alibis, *beside)):
            continue
        aspects = {exhibits[n].question.aspect for n in matched}
        says = f"In the backward pass: {suspect.says}" if aspects == {"gradients"} else suspect.says
        evidence = f"a model with this bug gives the same wrong numbers in {len(matched)} of {_cases(len(exhibits))}"
        found = Conviction(says, suspect.threads, evidence, frozenset(matched), mismatched)
        known = best.get(suspect.family)
        if known is None or len(found.matched) - mismatched > len(known.matched) - known.mismatched:
            best[suspect.family] = found
    return list(best.values())


def _answers(suspect: Suspect, exhibit: Exhibit) -> list[Arrays]:
    try:
        return suspect.answers(exhibit.question)
    except Exception:  # a model that does not go with a case says nothing of it
        return []


def _alibis(kernel: Kernel, check: str, passing: Sequence[Case], failing: Sequence[Case]) -> list[Exhibit]:
    """Return what the kernel is right about, by the check's first part, in the passing cases most like failing ones."""
    small = [case for case in dict.fromkeys(passing) if 1 < math.prod(_score_shape(case)) <= FEW_SCORES]
    traits = [_traits(case) for case in failing]
    small.sort(key=lambda case: -max(len(_traits(case) & other) for other in traits))
    found = []
    for case in small[:ALIBIS]:
        try:
            exhibit = next(_aspects(kernel, Finding(check, case, 0.0), case.problem(kernel.spec)))
        except Exception:
            continue
        if exhibit.at[0].any() and exhibit.right:
            found.append(exhibit)
    return found


def _traits(case: Case) -> set[tuple[object, object]]:
    given = (case.mask is not None, case.scale is not None, case.dropout_p > 0, case.group > 1)
    return {("causal", case.causal), ("dtype", case.dtype), ("regime", case.regime), *enumerate(given)}


def _cases(n: int) -> str:
    return f"{n} failing case{'s' if n != 1 else ''}"


# -------------------------------------------------------------------------------------------------------- by experiment


def _run(kernel: Kernel, problem: Problem, arrays: list[Array], back: bool) -> Arrays:
    if back:
        return kernel.backward_on(arrays, problem)
    out = kernel.forward_on(arrays, problem)
    return (out.O,) if out.lse is None else (out.O, out.lse)


def _wrong(problem: Problem, got: Arrays, back: bool) -> bool:
    """Return whether a kernel's answer is wrong about a problem without dropout, its empty rows left aside."""
    if back:
        exact, budgets = problem.gradients()
        return any((of_budget(*three) > 1).any() for three in zip(got, exact, budgets, strict=True))
    right, live = problem.solution, ~problem.empty
    O_wrong = bool(((of_budget(got[0], right.O, right.O_budget) > 1) & live[..., None]).any())
    return O_wrong or (len(got) > 1 and bool(((of_budget(got[1], right.lse, right.lse_budget) > 1) & live).any()))


def _arrays(kernel: Kernel, problem: Problem, back: bool) -> dict[str, Array]:
    arrays = {"q": problem.q, "k": problem.k, "v": problem.v}
    return arrays | {"do": problem.dO} if back else arrays


def _passes(kernel: Kernel, finding: Finding) -> list[bool]:
    """Return whether to look at the forward pass (False), the backward pass (True), or both."""
    if kernel.back is None or finding.check not in OF_GRADIENTS:
        return [False]
    return [False, True] if finding.check == "strides" else [True]


@dataclass(frozen=True)
class Experiment:
    """Something to try with each failing finding.

    culprits  what it convicts: names, or none
    says      the bug, by the names
    evidence  of how many cases, for {0}
    """

    culprits: Callable[[Kernel, Finding], set[str]]
    says: Callable[[set[str]], str]
    evidence: str
    threads: tuple[str, ...]

    def convict(self, kernel: Kernel, findings: Sequence[Finding]) -> Conviction | None:
        """Return what it convicts, if anything; nothing either where the kernel, or a case, does not allow it."""
        try:
            found = {n: names for n, finding in enumerate(findings) if (names := self.culprits(kernel, finding))}
        except Exception:
            return None
        if not found:
            return None
        evidence = self.evidence.format(f"{len(found)} of {_cases(len(findings))}")
        return Conviction(self.says(set().union(*found.values())), self.threads, evidence, frozenset(found))


def _strides_ignored(kernel: Kernel, finding: Finding) -> set[str]:
    """Ask whether the same numbers in contiguous arrays go well, and which array it is that must be contiguous."""
    case, culprits = finding.case, set[str]()
    if case.strides == "contiguous" or case.dropout_p:
        return culprits
    problem = case.problem(kernel.spec)
    for back in _passes(kernel, finding):
        named = _arrays(kernel, problem, back)

        def wrong(only: str | None, back: bool = back, named: dict[str, Array] = named) -> bool:
            arrays = [
                lay_out(a, kind if name == only else "contiguous", kernel.spec.layout)
                for (name, a), kind in zip(named.items(), kinds_of(case.strides), strict=False)
            ]
            return _wrong(problem, _run(kernel, problem, arrays, back), back)

        with suppress(Broken, OutsidePool):
            culprits |= set() if wrong(None) else {name for name in named if wrong(name)}
    return culprits


def _memory_around(kernel: Kernel, finding: Finding) -> set[str]:
    """Ask whether the answer changes with what lies around the arrays in memory."""
    problem = finding.case.problem(kernel.spec)
    if finding.case.dropout_p or not all(map(_finite, (problem.q, problem.k, problem.v))):
        return set()
    for back in _passes(kernel, finding):
        nan, zero, again = (_surrounded(kernel, problem, finding.case.strides, back, x) for x in (np.nan, 0.0, 0.0))
        if _differ(nan, zero) and not _differ(zero, again):
            return {"memory"}
    return set()


def _surrounded(kernel: Kernel, problem: Problem, strides: str, back: bool, by: float) -> Arrays:
    """Return the kernel's answer with that number around the arrays, and in their gaps."""
    arrays = lay_out_all(list(_arrays(kernel, problem, back).values()), strides, kernel.spec.layout)
    for a in arrays:
        memory = memory_of(a)
        memory[np.isnan(memory.astype(np.float64))] = by
    return _run(kernel, problem, arrays, back)


def _differ(one: Arrays, other: Arrays) -> bool:
    return not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other, strict=True))


def _poison_spreads(kernel: Kernel, finding: Finding) -> set[str]:
    """Ask whether it is NaN or ∞ in masked values, or in masked keys, that spoils an answer otherwise right."""
    if finding.check not in POISONED or finding.comparison is None or finding.comparison.problem is None:
        return set()
    clean, poisoned = finding.case.problem(kernel.spec), finding.comparison.problem
    back, culprits = finding.check == "backward_poison", set()
    dO = [lay_out(clean.dO, "contiguous", kernel.spec.layout)] if back else []
    for name in ("v", "k"):
        with suppress(Broken, OutsidePool):
            answers = (
                _run(kernel, p, kernel.lay(p, "contiguous") + dO, back)
                for p in (clean, clean.but(**{name: getattr(poisoned, name)}))
            )
            if [all(map(_numbers, answer)) for answer in answers] == [True, False]:
                culprits.add(name)
    return culprits


def _numbers(a: Array) -> bool:
    return not np.isnan(a).any() and not (a == np.inf).any()  # −∞ is the log-sum-exp of an empty row


def _right_without_dropout(kernel: Kernel, finding: Finding) -> set[str]:
    """Ask whether the same problem goes well without dropout."""
    if not finding.case.dropout_p:
        return set()
    problem = finding.case.problem(kernel.spec).but(dropout_p=0.0)
    back = finding.check == "dropout_gradients"
    arrays = lay_out_all(list(_arrays(kernel, problem, back).values()), finding.case.strides, kernel.spec.layout)
    return set() if _wrong(problem, _run(kernel, problem, arrays, back), back) else {"dropout"}


CAUSAL = (FA + "282", FA + "402", "NVIDIA/cutlass#2336")
TAIL = ("jax-ml/jax#27224", "NVIDIA/cutlass#2428")
STRIDES = (FA + "2666", FA + "355", "flagos-ai/FlagGems#5896")
MASKING = ("pytorch/pytorch#103963", FA + "2082")
SPREAD = {
    "v": "NaN or ∞ in a masked key's value reaches the answer: its weight is 0, and 0 · NaN is NaN",
    "k": "NaN or ∞ in a masked key reaches the answer: its score is not replaced, or 0 · NaN is NaN in the backward pass",
}
EXPERIMENTS = (
    Experiment(
        _strides_ignored,
        lambda names: "The strides of {} are ignored: what is not contiguous is read as if it were.".format(
            " and ".join(name for name in ("q", "k", "v", "do") if name in names)
        ),
        "{0} pass with the same numbers in contiguous arrays",
        STRIDES,
    ),
    Experiment(
        _memory_around,
        lambda _: "Memory outside of the arrays, or in the gaps of strided ones, is read and reaches the answer.",
        "the answer changes with what lies there in {0}",
        ("jax-ml/jax#27224", FA + "334", FA + "1947"),
    ),
    Experiment(
        _poison_spreads,
        lambda names: "; ".join(why for name, why in SPREAD.items() if name in names) + ".",
        "without the NaN or ∞ there is none in the answer, in {0}",
        (FA + "1745", FA + "2374", "vllm-project/vllm#936", "pytorch/pytorch#101967"),
    ),
)
ONLY_DROPOUT = Experiment(
    _right_without_dropout,
    lambda _: "Dropout alone goes wrong, in no way known: does it use another keep mask, of another seed or offset?",
    "{0} pass with the same numbers without dropout",
    ("pytorch/pytorch#190717",),
)


# -------------------------------------------------------------------------------------- what failing cases have in common


class Feature(NamedTuple):
    """Something that a case has or has not, and what it hints at."""

    words: str
    has: Callable[[Case], bool]
    hint: str
    threads: tuple[str, ...] = ()


def _features(spec: Spec, cases: Sequence[Case]) -> list[Feature]:
    """Return the features to look for, the plainest first."""
    B_r, B_c = spec.block
    found = [
        Feature("N_k = 0", lambda c: c.N_k == 0, "no keys at all", (FA + "1155", FA + "2470", "deepseek-ai/FlashMLA#11")),
        Feature("causal", lambda c: c.causal, "causal masking", CAUSAL),
        Feature("a mask", lambda c: c.mask is not None, "masking", MASKING),
        Feature("H_q > H_kv", lambda c: c.group > 1, "head mapping", ("ekzhang/jax-js#180", "onnx/onnx#7274")),
        Feature("N_q ≠ N_k", lambda c: c.N_q != c.N_k, "alignment or sizes of queries and keys mixed up", CAUSAL),
        Feature("N_q > N_k", lambda c: c.N_q > c.N_k, "rows before the first key", CAUSAL),
        Feature("N_q = 1", lambda c: c.N_q == 1, "a single query", ()),
        Feature("B > 1", lambda c: c.B > 1, "the batch's offset", ()),
        Feature("H_kv > 1", lambda c: c.H_kv > 1, "the head's offset", ()),
        Feature(f"N_k not a multiple of {B_c}", lambda c: c.N_k % B_c != 0, "the tail of the last block", TAIL),
        Feature(f"N_q not a multiple of {B_r}", lambda c: c.N_q % B_r != 0, "the tail of the last rows", TAIL),
        Feature(f"N_k > {B_c}", lambda c: c.N_k > B_c, "rescaling from block to block", ("deepseek-ai/FlashMLA#177",)),
        Feature(f"N_q > {B_r}", lambda c: c.N_q > B_r, "the second block of rows", ()),
        Feature("N_k > 256", lambda c: c.N_k > 256, "sums over long rows", ("sonos/tract#2586",)),
        Feature("N_q > 256", lambda c: c.N_q > 256, "many rows", ()),
        Feature("arrays that are not contiguous", lambda c: c.strides != "contiguous", "strides ignored", STRIDES),
        Feature("16-bit inputs", lambda c: c.dtype in ("float16", "bfloat16"), "sums kept in 16 bits", ("sonos/tract#2586",)),
        Feature("d_v ≠ d", lambda c: c.d_v not in (None, c.d), "a width mixed up", ("tenstorrent/tt-metal#42891",)),
        Feature("`scale` given", lambda c: c.scale is not None, "the scale", ("huggingface/transformers#38290",)),
        Feature("dropout", lambda c: c.dropout_p > 0, "dropout", ("aws-neuron/nki-samples#81", "NVIDIA/apex#816")),
    ]  # fmt: skip
    for name, hint in (("dtype", "one dtype"), ("mask", "one kind of mask"), ("strides", "one way to lie in memory")):
        values = {str(getattr(case, name)) for case in cases} - {"None", "contiguous"}
        found += [Feature(f"{name} {value}", _is(name, value), hint) for value in sorted(values)]
    hints = {"massive": "overflow of the exponential", "negative": "a maximum or a sentinel that wins over low scores",
             "rising": "rescaling from block to block", "falling": "rescaling from block to block"}  # fmt: skip
    regimes = sorted({case.regime for case in cases})
    return found + [Feature(f"regime {r}", _is("regime", r), hints.get(r, "its numbers")) for r in regimes]


def _is(name: str, value: str) -> Callable[[Case], bool]:
    return lambda case: str(getattr(case, name)) == value


def _common(spec: Spec, verdicts: Sequence[tuple[Case, bool]]) -> list[Suspicion]:
    """Return what all failing cases have in common and few others, a feature or two of them, if that is no accident."""
    cases = [case for case, _ in verdicts]
    failed = np.array([not passed for _, passed in verdicts], bool)
    n_failed, n_passed = int(failed.sum()), int((~failed).sum())
    if n_failed < 5 or n_passed < 5:
        return []
    features = _features(spec, cases)
    rows: list[tuple[tuple[Feature, ...], Array]] = []
    for feature in features:
        has = np.array([feature.has(case) for case in cases])
        if has[failed].all() and not has.all():
            rows.append(((feature,), has))
    rows += [((*one, *other), a & b) for (one, a), (other, b) in combinations(rows, 2)]
    telling = []
    for features_, has in rows:
        passing = int(has[~failed].sum())
        chance = n_failed * math.log(max(has.mean(), 1e-9)) + len(features_) * math.log(
            40
        )  # log: that it is an accident
        if chance < math.log(0.01) and passing <= n_passed / 2:
            telling.append((passing + (len(features_) - 1) * max(2, n_passed // 20), features_, has))
    if not telling:
        return []
    _, chosen, has = min(telling, key=lambda t: t[0])
    words = " and ".join(f.words for f in chosen)
    hints = ", or ".join(dict.fromkeys(f.hint for f in chosen))
    threads = tuple(dict.fromkeys(thread for f in chosen for thread in f.threads))
    evidence = f"fails in {n_failed} of {int(has.sum())} cases with {words}, and in 0 of {int((~has).sum())} others"
    return [Suspicion(f"It fails only with {words}: {hints}?", threads, evidence)]


__all__: list[Any] = ["Suspicion", "diagnose"]

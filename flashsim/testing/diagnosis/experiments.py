"""Bugs that show if the call is changed: its strides, the memory around arrays, NaN, dropout."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.testing.checks import Comparison, of_gradients
from flashsim.testing.diagnosis.exhibits import (
    POISONED,
    Suspicion,
    failing_cases,
    finite,
    of_gradients_too,
)
from flashsim.testing.problem import Problem
from flashsim.testing.running import Finding
from flashsim.testing.subject import Broken, OutsidePool, Subject, memory_of
from flashsim.testing.suspects import FA, Arrays

STRIDES = (FA + "2666", FA + "355", "flagos-ai/FlagGems#5896")


def _run(subject: Subject, problem: Problem, arrays: dict[str, Array], back: bool) -> Arrays:
    if back:
        return subject.backward_on(arrays, problem)
    out = subject.forward_on(arrays, problem)
    return (out.O,) if out.lse is None else (out.O, out.lse)


def _wrong(problem: Problem, got: Arrays, back: bool) -> bool:
    """Return whether a kernel's answer to a problem without dropout is wrong in rows that are
    not empty.
    """
    if back:
        asked = [*of_gradients("{}", got, *problem.gradients(), problem)]
    else:
        right = problem.solution
        live = ~problem.empty
        asked = [Comparison("O", got[0], right.O, right.O_budget, live[..., None])]
        asked += [Comparison("lse", lse, right.lse, right.lse_budget, live) for lse in got[1:]]
    return any((comparison.parts() > 1).any() for comparison in asked)


def _passes(subject: Subject, finding: Finding) -> list[bool]:
    """Return which passes to look at: forward (False), backward (True)."""
    if not of_gradients_too(subject, finding):
        return [False]
    return [False, True] if finding.check == "strides" else [True]


@dataclass(frozen=True)
class Experiment:
    """A call to try for each failing finding.

    culprits  (subject, finding) -> names of what is at fault, or none
    says      names -> the bug, in a sentence
    evidence  a sentence with {0} for the number of cases
    """

    culprits: Callable[[Subject, Finding], set[str]]
    says: Callable[[Collection[str]], str]
    evidence: str
    threads: tuple[str, ...]

    def convict(self, subject: Subject, findings: Sequence[Finding]) -> list[Suspicion]:
        """Return the bug that it finds, if any. If the kernel or a case does not allow the
        experiment, return nothing.
        """
        try:
            found = {
                n: names
                for n, finding in enumerate(findings)
                if (names := self.culprits(subject, finding))
            }
        except Exception:
            return []
        evidence = self.evidence.format(f"{len(found)} of {failing_cases(len(findings))}")
        culprits = dict.fromkeys(name for names in found.values() for name in names)
        return (
            [Suspicion(self.says(culprits), self.threads, evidence, frozenset(found))]
            if found
            else []
        )


def _strides_ignored(subject: Subject, finding: Finding) -> set[str]:
    """Ask whether the same numbers pass in contiguous arrays, and which array must be
    contiguous.
    """
    case, culprits = finding.case, set[str]()
    if case.strides == "contiguous" or case.dropout_p:
        return culprits
    problem = case.problem(subject.spec)
    for back in _passes(subject, finding):

        def wrong(*names: str, back: bool = back) -> bool:
            strided = subject.lay(problem, case.strides, back)
            arrays = subject.lay(problem, "contiguous", back) | {
                name: strided[name] for name in names
            }
            return _wrong(problem, _run(subject, problem, arrays, back), back)

        with suppress(Broken, OutsidePool):
            culprits |= (
                set()
                if wrong()
                else {name for name in ("q", "k", "v", "do")[: 3 + back] if wrong(name)}
            )
    return culprits


def _misread(subject: Subject, finding: Finding) -> set[str]:
    """Ask whether the answer is that to k or v read with each other's strides."""
    problem = finding.case.problem(subject.spec)
    culprits = set[str]()
    if finding.case.dropout_p or not all(map(finite, (problem.q, problem.k, problem.v))):
        return culprits
    for back in _passes(subject, finding):
        arrays = subject.lay(problem, finding.case.strides, back)
        seen = {"v": _read_as(arrays["v"], arrays["k"]), "k": _read_as(arrays["k"], arrays["v"])}
        if subject.spec.layout == "BNHD":
            seen = {name: a.swapaxes(1, 2) for name, a in seen.items()}
        got = _run(subject, problem, arrays, back)
        for names in (("v",), ("k",), ("k", "v")):
            other = problem.but(**{name: seen[name] for name in names})
            changed = any(not np.array_equal(seen[name], getattr(problem, name)) for name in names)
            if changed and not _wrong(other, got, back):
                culprits |= {" and ".join(names)}
                break
    return culprits


def _read_as(a: Array, like: Array) -> Array:
    """Return what is read of an array, from its first element on, with another array's strides;
    NaN outside its memory.
    """
    memory = memory_of(a).ravel()
    start = (a.__array_interface__["data"][0] - memory.__array_interface__["data"][0]) // a.itemsize
    at = (
        sum(
            np.arange(n).reshape(-1, *[1] * (a.ndim - 1 - axis))
            * (like.strides[axis] // a.itemsize)
            for axis, n in enumerate(a.shape)
        )
        + start
    )
    inside = (at >= 0) & (at < memory.size)
    return np.asarray(np.where(inside, memory[np.where(inside, at, 0)], np.nan).astype(a.dtype))


def _memory_around(subject: Subject, finding: Finding) -> set[str]:
    """Ask whether the answer changes with what lies around the arrays in memory."""
    problem = finding.case.problem(subject.spec)
    if finding.case.dropout_p or not all(map(finite, (problem.q, problem.k, problem.v))):
        return set()
    for back in _passes(subject, finding):
        nan, zero, again = (
            _surrounded(subject, problem, finding.case.strides, back, x) for x in (np.nan, 0.0, 0.0)
        )
        if _differ(nan, zero) and not _differ(zero, again):
            return {"memory"}
    return set()


def _surrounded(subject: Subject, problem: Problem, strides: str, back: bool, by: float) -> Arrays:
    arrays = subject.lay(problem, strides, back)
    for a in arrays.values():
        memory = memory_of(a)
        memory[np.isnan(memory.astype(np.float64))] = by
    return _run(subject, problem, arrays, back)


def _differ(one: Arrays, other: Arrays) -> bool:
    return not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other, strict=True))


def _poison_spreads(subject: Subject, finding: Finding) -> set[str]:
    """Ask whether NaN or ∞ in masked values, or in masked keys, spoils an answer that is right
    without.
    """
    if (
        finding.check not in POISONED
        or finding.comparison is None
        or finding.comparison.problem is None
    ):
        return set()
    clean = finding.case.problem(subject.spec)
    poisoned = finding.comparison.problem
    back = finding.check == "backward_poison"
    culprits = set()
    for name in ("v", "k"):
        with suppress(Broken, OutsidePool):
            answers = (
                _run(subject, p, subject.lay(p, "contiguous", back), back)
                for p in (clean, clean.but(**{name: getattr(poisoned, name)}))
            )
            if [all(map(_numbers, answer)) for answer in answers] == [True, False]:
                culprits.add(name)
    return culprits


def _numbers(a: Array) -> bool:
    # −∞ is the log-sum-exp of an empty row
    return not np.isnan(a).any() and not (a == np.inf).any()


def _right_without_dropout(subject: Subject, finding: Finding) -> set[str]:
    if not finding.case.dropout_p:
        return set()
    problem = finding.case.problem(subject.spec).but(dropout_p=0.0)
    back = finding.check == "dropout_gradients"
    got = _run(subject, problem, subject.lay(problem, finding.case.strides, back), back)
    return set() if _wrong(problem, got, back) else {"dropout"}


HUGE = 2.0**100
MOST_KEYS = 200


def _split_otherwise(subject: Subject, finding: Finding) -> set[str]:
    """Ask where the sum over keys is cut, alone and in the batch. Two huge values that cancel
    absorb the ones summed before.

    Where a cut lies between the two, those on both sides of it are absorbed. All weights are equal,
    as the queries are 0. Xie et al., "FPRev: Revealing floating-point summation order", arXiv
    2411.00442.
    """
    case = finding.case
    n = finding.case.N_k
    wide = case.dtype in ("float32", "bfloat16", "float64")  # it holds the huge values
    if finding.check != "batch_invariance" or not wide or not 2 < n <= MOST_KEYS:
        return set()
    nothing = dict.fromkeys(("mask", "window", "bias", "softcap", "slopes", "sink", "scale"))
    batch = case.problem(subject.spec).but(**nothing, causal=False)
    batch = batch.but(q=np.zeros_like(batch.q))
    cuts = []
    for problem in (batch.but(q=batch.q[:1], k=batch.k[:1], v=batch.v[:1]), batch):
        absorbed = np.zeros(n)  # by values before and behind a key
        for key in range(1, n):
            v = np.ones_like(problem.v)
            v[:, :, key - 1] = HUGE
            v[:, :, key] = -HUGE
            left = n * float(subject.forward(problem.but(v=v)).O[0, 0, 0, 0])
            # they do not quite cancel where parts were divided before
            absorbed[key] = n - left if abs(left) <= n else 2 * n
        near = {
            key: np.delete(absorbed[max(key - 3, 0) : key + 4], min(key, 3))
            for key in range(2, n - 1)
        }
        peaks = {key for key, others in near.items() if absorbed[key] > others.max()}
        # one part
        within = max((absorbed[key] for key in range(1, n) if key not in peaks), default=0.0)
        cuts.append({key for key in peaks if absorbed[key] > within})
    only = (
        ("if a sequence is alone", cuts[0] - cuts[1]),
        (f"in a batch of {case.B}", cuts[1] - cuts[0]),
    )
    said = [f"at {', '.join(map(str, sorted(keys)))} {how}" for how, keys in only if keys]
    return {f"of {n} keys, parts begin {', and '.join(said)}"} if said else set()


SPREAD = {
    "v": "NaN or ∞ in a masked key's value reaches the answer: its weight is 0, and 0 · NaN is NaN",
    "k": (
        "NaN or ∞ in a masked key reaches the answer: its score is not replaced, or 0 · NaN is NaN "
        "in the backward pass"
    ),
}
OTHERS = {
    "v": (
        "v is read with k's strides, which differ if d_v ≠ d, or if v lies in memory in another way"
    ),
    "k": (
        "k is read with v's strides, which differ if d_v ≠ d, or if k lies in memory in another way"
    ),
    "k and v": "k and v are read with each other's strides",
}
EXPERIMENTS = (
    Experiment(
        _strides_ignored,
        lambda names: (
            "The strides of {} are ignored: arrays that are not contiguous are read as if they "
            "were."
        ).format(" and ".join(name for name in ("q", "k", "v", "do") if name in names)),
        "{0} pass with the same numbers in contiguous arrays",
        STRIDES,
    ),
    Experiment(
        _misread,
        lambda names: "; ".join(OTHERS[name] for name in sorted(names)) + ".",
        "{0} have the answer for arrays read in this way",
        ("flagos-ai/FlagGems#5896",),
    ),
    Experiment(
        _memory_around,
        lambda _: (
            "Memory outside of the arrays, or in the gaps of strided ones, is read and reaches the "
            "answer."
        ),
        "the answer changes with that memory in {0}",
        ("jax-ml/jax#27224", FA + "334", FA + "1947"),
    ),
    Experiment(
        _split_otherwise,
        lambda names: f"The batch decides where the keys are split: {next(iter(names))}.",
        "shown by values that cancel, in {0}",
        (FA + "1897", "vllm-project/vllm#51902"),
    ),
    Experiment(
        _poison_spreads,
        lambda names: "; ".join(why for name, why in SPREAD.items() if name in names) + ".",
        "without NaN or ∞ in the input, the answer has none, in {0}",
        (FA + "1745", FA + "2374", "vllm-project/vllm#936", "pytorch/pytorch#101967"),
    ),
)
ONLY_DROPOUT = Experiment(
    _right_without_dropout,
    lambda _: (
        "Only dropout goes wrong, in an unknown way. Does it use another keep mask, of another "
        "seed or offset?"
    ),
    "{0} pass with the same numbers without dropout",
    ("pytorch/pytorch#190717",),
)

"""Experiments: they change a failing call, its strides, the memory around arrays, NaN or dropout,
and so show which bug the kernel has.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.testing.bug_models import FA, Arrays
from flashsim.testing.checks import Comparison, of_gradients
from flashsim.testing.diagnosis.kernel_results import (
    POISONED,
    Suspicion,
    failing_cases,
    finite,
    may_be_gradients,
)
from flashsim.testing.kernel import Broken, Kernel, OutsidePool, memory_of
from flashsim.testing.problem import Problem
from flashsim.testing.survey import Finding

STRIDES = (FA + "2666", FA + "355", "flagos-ai/FlagGems#5896")


def _run(kernel: Kernel, problem: Problem, arrays: dict[str, Array], back: bool) -> Arrays:
    if back:
        return kernel.backward_on(arrays, problem)
    out = kernel.forward_on(arrays, problem)
    return (out.O,) if out.lse is None else (out.O, out.lse)


def _is_wrong(problem: Problem, results: Arrays, back: bool) -> bool:
    """Return whether a kernel's results for a problem without dropout are wrong in rows that are
    not empty.
    """
    if back:
        exact, budgets = problem.gradients()
        comparisons = list(of_gradients("{}", results, exact, budgets, problem))
    else:
        right = problem.solution
        rows = ~problem.empty
        O, *lses = results
        comparisons = [Comparison("O", O, right.O, right.O_budget, rows[..., None])]
        for lse in lses:
            comparisons.append(Comparison("lse", lse, right.lse, right.lse_budget, rows))
    return any((comparison.error_ratios() > 1).any() for comparison in comparisons)


def _passes(kernel: Kernel, finding: Finding) -> list[bool]:
    """Return which passes to call: forward (False), backward (True)."""
    if not may_be_gradients(kernel, finding):
        return [False]
    return [False, True] if finding.check == "strides" else [True]


def _is_finite(problem: Problem) -> bool:
    return finite(problem.q) and finite(problem.k) and finite(problem.v)


@dataclass(frozen=True)
class Experiment:
    """A call to make for each failing finding.

    causes    (kernel, finding) -> names of what causes the failure, or none
    says      names -> the bug, in a sentence
    evidence  a sentence with {0} for the number of cases
    threads   public threads about such bugs
    """

    causes: Callable[[Kernel, Finding], set[str]]
    says: Callable[[Collection[str]], str]
    evidence: str
    threads: tuple[str, ...]

    def suspicions(self, kernel: Kernel, findings: Sequence[Finding]) -> list[Suspicion]:
        """Return the bug that the experiment shows, if any; nothing if the kernel or a case does
        not allow the experiment.
        """
        causes: dict[str, None] = {}  # in the order in which they are seen
        explained = set()
        for number, finding in enumerate(findings):
            try:
                names = self.causes(kernel, finding)
            except Exception:
                return []
            if names:
                explained.add(number)
                causes |= dict.fromkeys(names)
        if not explained:
            return []
        cases = f"{len(explained)} of {failing_cases(len(findings))}"
        evidence = self.evidence.format(cases)
        return [Suspicion(self.says(causes), self.threads, evidence, frozenset(explained))]


def _strides_ignored(kernel: Kernel, finding: Finding) -> set[str]:
    """Return the arrays that must be contiguous: the same numbers pass in contiguous arrays, and
    fail if one of these is strided.
    """
    case = finding.case
    causes = set[str]()
    if case.strides == "contiguous" or case.dropout_p:
        return causes
    problem = case.problem(kernel.spec)
    for back in _passes(kernel, finding):
        names = ("q", "k", "v", "do") if back else ("q", "k", "v")
        with suppress(Broken, OutsidePool):
            if _is_wrong_with_strided(kernel, problem, case.strides, back, None):
                continue
            in_pass = set()
            for name in names:
                if _is_wrong_with_strided(kernel, problem, case.strides, back, name):
                    in_pass.add(name)
            causes |= in_pass
    return causes


def _is_wrong_with_strided(
    kernel: Kernel, problem: Problem, strides: str, back: bool, name: str | None
) -> bool:
    """Return whether a kernel is wrong if one array has these strides, and all others are
    contiguous.
    """
    arrays = kernel.lay(problem, "contiguous", back)
    if name is not None:
        arrays[name] = kernel.lay(problem, strides, back)[name]
    return _is_wrong(problem, _run(kernel, problem, arrays, back), back)


def _strides_exchanged(kernel: Kernel, finding: Finding) -> set[str]:
    """Return "k", "v" or "k and v" if the result is that of reading them with the other's
    strides.
    """
    problem = finding.case.problem(kernel.spec)
    causes = set[str]()
    if finding.case.dropout_p or not _is_finite(problem):
        return causes
    for back in _passes(kernel, finding):
        arrays = kernel.lay(problem, finding.case.strides, back)
        k = _read_with_strides(arrays["k"], arrays["v"])
        v = _read_with_strides(arrays["v"], arrays["k"])
        if kernel.spec.layout == "BNHD":
            k = k.swapaxes(1, 2)
            v = v.swapaxes(1, 2)
        results = _run(kernel, problem, arrays, back)
        for cause, changes in (("v", {"v": v}), ("k", {"k": k}), ("k and v", {"k": k, "v": v})):
            changed = any(
                not np.array_equal(a, getattr(problem, name)) for name, a in changes.items()
            )
            if changed and not _is_wrong(problem.but(**changes), results, back):
                causes.add(cause)
                break
    return causes


def _read_with_strides(a: Array, other: Array) -> Array:
    """Return what a kernel reads from the first element of an array on, if it takes another array's
    strides; NaN outside the array's memory.
    """
    memory = memory_of(a).ravel()
    start = (a.__array_interface__["data"][0] - memory.__array_interface__["data"][0]) // a.itemsize
    offsets = np.full(a.shape, start)
    for axis, index in enumerate(np.indices(a.shape)):
        offsets += index * (other.strides[axis] // a.itemsize)
    inside = (offsets >= 0) & (offsets < memory.size)
    elements = memory[np.where(inside, offsets, 0)]
    return np.asarray(np.where(inside, elements, np.nan).astype(a.dtype))


def _memory_around(kernel: Kernel, finding: Finding) -> set[str]:
    """Return "memory" if the result changes with what lies around the arrays in memory."""
    problem = finding.case.problem(kernel.spec)
    strides = finding.case.strides
    if finding.case.dropout_p or not _is_finite(problem):
        return set()
    for back in _passes(kernel, finding):
        with_nan = _run_surrounded_by(np.nan, kernel, problem, strides, back)
        with_zero = _run_surrounded_by(0.0, kernel, problem, strides, back)
        repeated = _run_surrounded_by(0.0, kernel, problem, strides, back)
        if _differ(with_nan, with_zero) and not _differ(with_zero, repeated):
            return {"memory"}
    return set()


def _run_surrounded_by(
    number: float, kernel: Kernel, problem: Problem, strides: str, back: bool
) -> Arrays:
    arrays = kernel.lay(problem, strides, back)
    for a in arrays.values():
        memory = memory_of(a)
        memory[np.isnan(memory.astype(np.float64))] = number
    return _run(kernel, problem, arrays, back)


def _differ(results: Arrays, others: Arrays) -> bool:
    pairs = zip(results, others, strict=True)
    return not all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def _poison_spreads(kernel: Kernel, finding: Finding) -> set[str]:
    """Return "v" or "k" if NaN or ∞ in masked values, or in masked keys, reaches the result, and
    the result has none without it.
    """
    if finding.check not in POISONED or finding.comparison is None:
        return set()
    poisoned = finding.comparison.problem
    if poisoned is None:
        return set()
    clean = finding.case.problem(kernel.spec)
    back = finding.check == "backward_poison"
    causes = set()
    for name in ("v", "k"):
        changed = clean.but(**{name: getattr(poisoned, name)})
        with suppress(Broken, OutsidePool):
            clean_results = _run(kernel, clean, kernel.lay(clean, "contiguous", back), back)
            results = _run(kernel, changed, kernel.lay(changed, "contiguous", back), back)
            if _are_numbers(clean_results) and not _are_numbers(results):
                causes.add(name)
    return causes


def _are_numbers(results: Arrays) -> bool:
    """Return whether results have no NaN and no +∞. −∞ is the log-sum-exp of an empty row."""
    return not any(np.isnan(a).any() or (a == np.inf).any() for a in results)


def _right_without_dropout(kernel: Kernel, finding: Finding) -> set[str]:
    if not finding.case.dropout_p:
        return set()
    problem = finding.case.problem(kernel.spec).but(dropout_p=0.0)
    back = finding.check == "dropout_gradients"
    arrays = kernel.lay(problem, finding.case.strides, back)
    results = _run(kernel, problem, arrays, back)
    return set() if _is_wrong(problem, results, back) else {"dropout"}


HUGE = 2.0**100
MOST_KEYS = 200


def _split_by_batch(kernel: Kernel, finding: Finding) -> set[str]:
    """Return where the kernel splits the sum over keys for a sequence alone and for one in the
    batch, if these differ.

    Two neighbouring values ±2¹⁰⁰ cancel, and absorb the values that are summed before them. If a
    split lies between the two, those on both sides of it are absorbed. All weights are equal, as
    the queries are 0. Source: Xie et al., "FPRev: Revealing floating-point summation order", arXiv
    2411.00442.
    """
    case = finding.case
    N_k = case.N_k
    holds_huge = case.dtype in ("float32", "bfloat16", "float64")
    if finding.check != "batch_invariance" or not holds_huge or not 2 < N_k <= MOST_KEYS:
        return set()
    no_options = dict.fromkeys(("mask", "window", "bias", "softcap", "slopes", "sink", "scale"))
    batch = case.problem(kernel.spec).but(**no_options, causal=False)
    batch = batch.but(q=np.zeros_like(batch.q))
    alone = batch.but(q=batch.q[:1], k=batch.k[:1], v=batch.v[:1])
    splits_alone = _splits(kernel, alone, N_k)
    splits_in_batch = _splits(kernel, batch, N_k)
    words = []
    for splits, where in (
        (splits_alone - splits_in_batch, "if a sequence is alone"),
        (splits_in_batch - splits_alone, f"in a batch of {case.B}"),
    ):
        if splits:
            words.append(f"at {', '.join(map(str, sorted(splits)))} {where}")
    return {f"of {N_k} keys, parts begin {', and '.join(words)}"} if words else set()


def _splits(kernel: Kernel, problem: Problem, N_k: int) -> set[int]:
    """Return the keys with which parts of the sum over keys begin."""
    absorbed = np.zeros(N_k)  # how many values ±HUGE absorb, in front of each key
    for key in range(1, N_k):
        v = np.ones_like(problem.v)
        v[:, :, key - 1] = HUGE
        v[:, :, key] = -HUGE
        remaining = N_k * float(kernel.forward(problem.but(v=v)).O[0, 0, 0, 0])
        # they do not quite cancel where parts were divided before
        absorbed[key] = N_k - remaining if abs(remaining) <= N_k else 2 * N_k
    peaks = set()
    for key in range(2, N_k - 1):
        neighbours = np.delete(absorbed[max(key - 3, 0) : key + 4], min(key, 3))
        if absorbed[key] > neighbours.max():
            peaks.add(key)
    within_part = max((absorbed[key] for key in range(1, N_k) if key not in peaks), default=0.0)
    return {key for key in peaks if absorbed[key] > within_part}


SPREAD = {
    "v": "NaN or ∞ in a masked key's value reaches the answer: its weight is 0, and 0 · NaN is NaN",
    "k": (
        "NaN or ∞ in a masked key reaches the answer: its score is not replaced, or 0 · NaN is NaN "
        "in the backward pass"
    ),
}
EXCHANGED = {
    "v": (
        "v is read with k's strides, which differ if d_v ≠ d, or if v lies in memory in another way"
    ),
    "k": (
        "k is read with v's strides, which differ if d_v ≠ d, or if k lies in memory in another way"
    ),
    "k and v": "k and v are read with each other's strides",
}


def _say_strides_ignored(names: Collection[str]) -> str:
    arrays = " and ".join(name for name in ("q", "k", "v", "do") if name in names)
    return (
        f"The strides of {arrays} are ignored: arrays that are not contiguous are read as if they "
        "were."
    )


def _say_strides_exchanged(names: Collection[str]) -> str:
    return "; ".join(EXCHANGED[name] for name in sorted(names)) + "."


def _say_memory_around(names: Collection[str]) -> str:
    return (
        "Memory outside of the arrays, or in the gaps of strided ones, is read and reaches the "
        "answer."
    )


def _say_split_by_batch(names: Collection[str]) -> str:
    return f"The batch decides where the keys are split: {next(iter(names))}."


def _say_poison_spreads(names: Collection[str]) -> str:
    return "; ".join(sentence for name, sentence in SPREAD.items() if name in names) + "."


def _say_only_dropout(names: Collection[str]) -> str:
    return (
        "Only dropout goes wrong, in an unknown way. Does it use another keep mask, of another "
        "seed or offset?"
    )


EXPERIMENTS = (
    Experiment(
        _strides_ignored,
        _say_strides_ignored,
        "{0} pass with the same numbers in contiguous arrays",
        STRIDES,
    ),
    Experiment(
        _strides_exchanged,
        _say_strides_exchanged,
        "{0} have the answer for arrays read in this way",
        ("flagos-ai/FlagGems#5896",),
    ),
    Experiment(
        _memory_around,
        _say_memory_around,
        "the answer changes with that memory in {0}",
        ("jax-ml/jax#27224", FA + "334", FA + "1947"),
    ),
    Experiment(
        _split_by_batch,
        _say_split_by_batch,
        "shown by values that cancel, in {0}",
        (FA + "1897", "vllm-project/vllm#51902"),
    ),
    Experiment(
        _poison_spreads,
        _say_poison_spreads,
        "without NaN or ∞ in the input, the answer has none, in {0}",
        (FA + "1745", FA + "2374", "vllm-project/vllm#936", "pytorch/pytorch#101967"),
    ),
)
ONLY_DROPOUT = Experiment(
    _right_without_dropout,
    _say_only_dropout,
    "{0} pass with the same numbers without dropout",
    ("pytorch/pytorch#190717",),
)

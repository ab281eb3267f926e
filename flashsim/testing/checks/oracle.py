"""O and the log-sum-exp against the oracle's; what is masked has no say in them."""

from dataclasses import replace
from typing import Any

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.testing.case import Case
from flashsim.testing.checks.check import Comparison, Comparisons, Trial, check, of_outputs
from flashsim.testing.problem import Problem
from flashsim.testing.subject import Subject


def _defined_empty_rows(subject: Subject) -> str:
    if subject.spec.empty_rows == "undefined":
        return "the spec leaves empty rows undefined"
    spec = subject.spec
    may = (
        spec.masks
        or spec.zero_keys
        or (spec.cross and (spec.causal == "bottom_right" or spec.window))
    )
    return "" if may else "by the spec no row can be empty"


@check()
def oracle(t: Trial) -> Comparisons:
    """O against float64 softmax attention on the same, rounded, inputs."""
    # in this order: where the kernel breaks, nothing more is computed
    O = t.out.O
    want = t.problem.solution
    yield Comparison("O", O, want.O, want.O_budget, ~t.problem.empty[..., None], t.problem)


@check("lse")
def log_sum_exp(t: Trial) -> Comparisons:
    """The log-sum-exp of each row's scores, in the base declared."""
    lse = t.out.lse
    want = t.problem.solution
    assert lse is not None
    yield Comparison("lse", lse, want.lse, want.lse_budget, ~t.problem.empty, t.problem)


def _with_empty_rows(case: Case, subject: Subject) -> Case | None:
    if case.N_k == 0 or case.mask is not None:
        return case
    if subject.spec.masks:
        return replace(case, mask=("rows", "few", "padding_right")[case.seed % 3])
    given: dict[str, Any] = (
        {"causal": True} if subject.spec.causal == "bottom_right" else {"window": (0, 0)}
    )
    if case.N_q == case.N_k or not (given.get("causal") or subject.spec.window):
        return None
    return replace(case, **given, N_q=max(case.N_q, case.N_k), N_k=min(case.N_q, case.N_k))


@check(_defined_empty_rows, fit=_with_empty_rows)
def empty_rows(t: Trial) -> Comparisons:
    """Rows whose keys are all masked give what the spec says; if that is 0, their lse is −∞."""
    empty = t.problem.empty
    want = t.problem.solution
    if not empty.any():
        return
    yield Comparison("O of empty rows", t.out.O, want.O, want.O_budget, empty[..., None], t.problem)
    if t.out.lse is not None and t.spec.empty_rows == "zero":
        yield Comparison("lse of empty rows", t.out.lse, want.lse, 0.0, empty, t.problem)


def with_dead_keys(case: Case, subject: Subject) -> Case | None:
    """Return the case with a mask."""
    if case.mask is not None:
        return case
    return replace(
        case, mask=("padding_right", "holes", "padding_left", "first_block")[case.seed % 4]
    )


def poisoned(t: Trial) -> Problem | None:
    """Return the problem with NaN or ±∞ in the keys that nobody may attend to, and in their
    values.
    """
    problem = t.problem
    rng = t.rng
    dead = problem.dead
    if not dead.any():
        return None
    poison = (np.nan, np.inf, -np.inf)[int(rng.integers(3))]
    arrays = {}
    for name in (("k", "v"), ("v",), ("k",))[int(rng.integers(3))]:
        arrays[name] = np.where(
            dead[..., None], np.asarray(poison, problem.k.dtype), getattr(problem, name)
        )
    return problem.but(**arrays)


@check("masks", fit=with_dead_keys)
def masked_kv_poison(t: Trial) -> Comparisons:
    """NaN and ±∞ in keys that are masked for every query, or in their values, never reach the
    output.
    """
    changed = poisoned(t)
    if changed is None:
        return
    want = t.problem.solution
    at = (t.defined, ~t.problem.empty)
    yield from of_outputs("{} with poisoned keys", t.forward(changed), want, want[2:], at, changed)


@check("masks", "cross", computes=True)
def appended_masked_keys(t: Trial) -> Comparisons:
    """More keys, all of them masked, change nothing."""
    problem = t.problem
    rng = t.rng
    B_c = t.spec.block[1]
    _, more = t.spec.lengths(1, B_c if t.spec.max_shapes else int(rng.integers(1, B_c + 2)))
    B, H_q, N_q, _ = problem.score_shape

    def longer(a: Array) -> Array:
        extra = 10 * rng.normal(size=(*a.shape[:2], more, a.shape[3]))
        return np.concatenate([a, extra.astype(a.dtype)], axis=2)

    allowed = np.concatenate([problem.allowed, np.zeros((B, H_q, N_q, more), bool)], axis=-1)
    bias = problem.bias
    if bias is not None and bias.shape[-1] != 1:
        extra = 10 * rng.normal(size=(*bias.shape[:-1], more))
        bias = np.concatenate([bias, extra.astype(bias.dtype)], axis=-1)
    kv = {"k": longer(problem.k), "v": longer(problem.v)}
    nowhere = {"causal": False, "window": None, "slopes": None}
    appended = problem.but(**kv, **nowhere, mask=allowed, bias=bias)
    yield t.alike(f"O with {more} masked keys appended", appended, problem.but(slopes=None))


@check("causal", fit=lambda case, subject: replace(case, causal=True) if case.N_k > 1 else None)
def causal_no_leak(t: Trial) -> Comparisons:
    """If the keys and values after a query are replaced by large ones, its output stays the
    same.
    """
    problem = t.problem
    rng = t.rng
    first = int(rng.integers(1, problem.score_shape[-1]))
    k = problem.k.copy()
    v = problem.v.copy()
    k[:, :, first:] = (8 * rng.normal(size=k[:, :, first:].shape)).astype(k.dtype)
    v[:, :, first:] = (100 + rng.normal(size=v[:, :, first:].shape)).astype(v.dtype)
    changed = problem.but(k=k, v=v)
    past = ~problem.allowed[..., first:].any(axis=-1, keepdims=True) & ~problem.empty[..., None]
    if not past.any():
        return
    got = t.forward(changed)
    budget = 2 * problem.solution.O_budget
    yield Comparison(
        f"O where keys from {first} on are in the future", got.O, t.out.O, budget, past, changed
    )

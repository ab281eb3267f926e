"""Checks of O and the log-sum-exp against the oracle, and that masked keys do not reach them."""

from dataclasses import replace

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.testing.case import Case
from flashsim.testing.checks.check import Comparison, Comparisons, Trial, check, of_outputs
from flashsim.testing.kernel import Kernel
from flashsim.testing.problem import Problem


def _may_have_empty_rows(kernel: Kernel) -> str:
    spec = kernel.spec
    if spec.empty_rows == "undefined":
        return "the spec leaves empty rows undefined"
    if spec.masks or spec.zero_keys:
        return ""
    if spec.cross and (spec.causal == "bottom_right" or spec.window):
        return ""
    return "by the spec no row can be empty"


@check()
def oracle(t: Trial) -> Comparisons:
    """O against float64 softmax attention on the same, rounded, inputs."""
    # the kernel first: if it fails, the oracle computes nothing
    O = t.out.O
    exact = t.problem.solution
    rows = ~t.problem.empty[..., None]
    yield Comparison("O", O, exact.O, exact.O_budget, rows, t.problem)


@check("lse")
def log_sum_exp(t: Trial) -> Comparisons:
    """The log-sum-exp of each row's scores, in the base declared."""
    lse = t.out.lse
    exact = t.problem.solution
    assert lse is not None
    yield Comparison("lse", lse, exact.lse, exact.lse_budget, ~t.problem.empty, t.problem)


def _with_empty_rows(case: Case, kernel: Kernel) -> Case | None:
    if case.N_k == 0 or case.mask is not None:
        return case
    spec = kernel.spec
    if spec.masks:
        masks = ("rows", "few", "padding_right")
        return replace(case, mask=masks[case.seed % 3])
    if case.N_q == case.N_k:
        return None
    # with more queries than keys, the first queries come before every key
    longer = replace(case, N_q=max(case.N_q, case.N_k), N_k=min(case.N_q, case.N_k))
    if spec.causal == "bottom_right":
        return replace(longer, causal=True)
    return replace(longer, window=(0, 0)) if spec.window else None


@check(_may_have_empty_rows, fit=_with_empty_rows)
def empty_rows(t: Trial) -> Comparisons:
    """Rows whose keys are all masked give what the spec says; if that is 0, their lse is −∞."""
    empty = t.problem.empty
    exact = t.problem.solution
    if not empty.any():
        return
    rows = empty[..., None]
    yield Comparison("O of empty rows", t.out.O, exact.O, exact.O_budget, rows, t.problem)
    if t.out.lse is not None and t.spec.empty_rows == "zero":
        yield Comparison("lse of empty rows", t.out.lse, exact.lse, 0.0, empty, t.problem)


def with_dead_keys(case: Case, kernel: Kernel) -> Case | None:
    """Return the case with a mask that forbids some keys to all queries."""
    if case.mask is not None:
        return case
    masks = ("padding_right", "holes", "padding_left", "first_block")
    return replace(case, mask=masks[case.seed % 4])


def poisoned(t: Trial) -> Problem | None:
    """Return the problem with NaN or ±∞ in the keys that no query may attend to, or in their
    values, or both.
    """
    problem = t.problem
    rng = t.rng
    dead = problem.dead
    if not dead.any():
        return None
    poison = (np.nan, np.inf, -np.inf)[int(rng.integers(3))]
    element = np.asarray(poison, problem.k.dtype)
    names = (("k", "v"), ("v",), ("k",))[int(rng.integers(3))]
    arrays = {}
    for name in names:
        arrays[name] = np.where(dead[..., None], element, getattr(problem, name))
    return problem.but(**arrays)


@check("masks", fit=with_dead_keys)
def masked_kv_poison(t: Trial) -> Comparisons:
    """NaN and ±∞ in keys that are masked for every query, or in their values, never reach the
    output.
    """
    problem = poisoned(t)
    if problem is None:
        return
    exact = t.problem.solution
    budgets = (exact.O_budget, exact.lse_budget)
    rows = (t.defined_rows, ~t.problem.empty)
    out = t.forward(problem)
    yield from of_outputs("{} with poisoned keys", out, exact, budgets, rows, problem)


@check("masks", "cross", computes=True)
def appended_masked_keys(t: Trial) -> Comparisons:
    """More keys, all of them masked, change nothing."""
    problem = t.problem
    rng = t.rng
    B_c = t.spec.block[1]
    count = B_c if t.spec.max_shapes else int(rng.integers(1, B_c + 2))
    _, count = t.spec.lengths(1, count)
    B, H_q, N_q, _ = problem.score_shape

    def longer(a: Array, axis: int) -> Array:
        shape = list(a.shape)
        shape[axis] = count
        extra = 10 * rng.normal(size=shape)
        return np.concatenate([a, extra.astype(a.dtype)], axis=axis)

    forbidden = np.zeros((B, H_q, N_q, count), bool)
    allowed = np.concatenate([problem.allowed, forbidden], axis=-1)
    bias = problem.bias
    if bias is not None and bias.shape[-1] != 1:
        bias = longer(bias, -1)
    k = longer(problem.k, 2)
    v = longer(problem.v, 2)
    # `allowed` already has what causal and window forbid; slopes would follow N_k
    appended = problem.but(
        k=k, v=v, bias=bias, mask=allowed, causal=False, window=None, slopes=None
    )
    label = f"O with {count} masked keys appended"
    yield t.same_output(label, appended, problem.but(slopes=None))


def _causal(case: Case, kernel: Kernel) -> Case | None:
    return replace(case, causal=True) if case.N_k > 1 else None


@check("causal", fit=_causal)
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
    sees_changed = problem.allowed[..., first:].any(axis=-1, keepdims=True)
    rows = ~sees_changed & ~problem.empty[..., None]
    if not rows.any():
        return
    O = t.forward(changed).O
    budget = 2 * problem.solution.O_budget
    label = f"O where keys from {first} on are in the future"
    yield Comparison(label, O, t.out.O, budget, rows, changed)

"""Checks of the backward pass, and of dropout in both passes."""

from dataclasses import replace

import numpy as np

from flashsim.testing.case import Case
from flashsim.testing.checks.check import (
    Comparison,
    Comparisons,
    Trial,
    check,
    of_gradients,
    sum_of_budgets,
)
from flashsim.testing.checks.oracle import poisoned, with_dead_keys
from flashsim.testing.kernel import Kernel


@check("backward")
def gradients(t: Trial) -> Comparisons:
    """dq, dk, dv for a random dO against the oracle's."""
    yield from of_gradients("{}", t.gradients, *t.problem.gradients(), t.problem)


def _widest(case: Case, kernel: Kernel) -> Case | None:
    wide = [name for name in ("float64", "float32") if name in kernel.spec.dtypes]
    if not wide or case.N_k == 0 or case.regime == "massive":
        return None
    return replace(case, dtype=wide[0])


@check("backward", fit=_widest)
def finite_differences(t: Trial) -> Comparisons:
    """The slope of the kernel's own forward function, at a few spots, is what its backward
    function says.
    """
    problem = t.problem
    exact, budgets = problem.gradients()
    by_kernel = t.gradients
    step = 2.0**-12 if problem.q.dtype == np.float64 else 2.0**-4
    dO = problem.dO.astype(np.float64)
    for i, name in enumerate("qkv"):
        array = getattr(problem, name)
        spot = tuple(int(t.rng.integers(n)) for n in array.shape)
        ends = []
        for sign in (1, -1):
            changed = array.copy()
            changed[spot] += sign * step
            ends.append(problem.but(**{name: changed}))
        forth, back = ends
        distance = float(getattr(forth, name)[spot]) - float(getattr(back, name)[spot])
        if distance == 0:
            continue
        rise = t.kernel.forward(forth).O - t.kernel.forward(back).O
        slope = (rise * dO).sum() / distance
        exact_rise = forth.solution.O - back.solution.O
        exact_slope = (exact_rise * dO).sum() / distance
        slope -= exact_slope - exact[i][spot]  # what the curvature adds, by the oracle
        rise_budget = (np.abs(dO) * sum_of_budgets(forth, back)).sum()
        budget = rise_budget / distance + budgets[i][spot]
        label = f"d{name}{list(spot)} against the slope of O"
        gradient = np.array(by_kernel[i][spot])
        yield Comparison(label, gradient, np.array(slope), budget, True, problem)


@check("backward", "masks", fit=with_dead_keys)
def masked_gradients(t: Trial) -> Comparisons:
    """Keys that no query attends to, and queries that attend to no key, have gradients of
    exactly 0.
    """
    dead = t.problem.dead[..., None]
    empty = t.problem.empty[..., None]
    if t.problem.overflowing.any():
        return
    zeros = tuple(map(np.zeros_like, t.gradients))
    label = "{} of what is masked"
    elements = (empty, dead, dead)
    yield from of_gradients(label, t.gradients, zeros, zeros, t.problem, elements)


@check("backward", "masks", fit=with_dead_keys)
def backward_poison(t: Trial) -> Comparisons:
    """NaN and ±∞ in keys that are masked for every query, or in their values, never reach the
    gradients.
    """
    problem = poisoned(t)
    if problem is None:
        return
    gradients = t.kernel.backward(problem, t.case.strides)
    exact, budgets = t.problem.gradients()
    yield from of_gradients("{} with poisoned keys", gradients, exact, budgets, problem)


def _with_dropout(case: Case, kernel: Kernel) -> Case | None:
    if case.dropout_p:
        return case
    return replace(case, dropout_p=(0.1, 0.5, 0.8)[case.seed % 3])


@check("dropout", fit=_with_dropout)
def dropout(t: Trial) -> Comparisons:
    """With dropout, O has the weights that the keep mask keeps, and the log-sum-exp is the one
    without dropout.
    """
    problem = t.problem
    O, budget = problem.dropped(t.kernel.keep(problem))
    rows = ~problem.empty
    yield Comparison("O under dropout", t.out.O, O, budget, rows[..., None], problem)
    if t.out.lse is not None:
        exact = problem.solution
        yield Comparison("lse under dropout", t.out.lse, exact.lse, exact.lse_budget, rows, problem)


@check("dropout", "backward", fit=_with_dropout)
def dropout_gradients(t: Trial) -> Comparisons:
    """With dropout, the gradients are those of the forward function with the same keep mask."""
    problem = t.problem
    exact, budgets = problem.gradients(t.kernel.keep(problem))
    yield from of_gradients("{} under dropout", t.gradients, exact, budgets, problem)


@check("dropout", fit=_with_dropout)
def dropout_mask(t: Trial) -> Comparisons:
    """The keep mask keeps a share of 1 − p, is the same for the same seed, and differs between
    seeds and between heads.
    """
    problem = t.problem
    mask = t.kernel.keep(problem)
    second = t.kernel.keep(problem)
    yield Comparison("the keep mask, asked for again,", second * 1.0, mask * 1.0, 0.0)
    n = mask.size
    p = problem.dropout_p
    if n < 64:
        return
    budget = 6 * np.sqrt(p * (1 - p) / n)  # six standard deviations
    yield Comparison("the share kept", np.array(mask.mean()), np.array(1 - p), budget)
    other = t.kernel.keep(problem.but(seed=problem.seed + 1))
    same = np.array((mask == other).all() * 1.0)
    yield Comparison("whether another seed has the same keep mask", same, np.array(0), 0.0)
    heads = mask.reshape(-1, *mask.shape[2:])
    if len(heads) > 1 and heads[0].size >= 64:
        same = np.array((heads[0] == heads[1]).all() * 1.0)
        yield Comparison("whether another head has the same keep mask", same, np.array(0), 0.0)

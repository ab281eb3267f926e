"""The backward pass; and dropout, in both."""

from dataclasses import replace

import numpy as np

from flashsim.testing.case import Case
from flashsim.testing.checks.check import (
    Comparison,
    Comparisons,
    Trial,
    both_budgets,
    check,
    of_gradients,
)
from flashsim.testing.checks.oracle import poisoned, with_dead_keys
from flashsim.testing.subject import Subject


@check("backward")
def gradients(t: Trial) -> Comparisons:
    """dq, dk, dv for a random dO against the oracle's."""
    yield from of_gradients("{}", t.gradients, *t.problem.gradients(), t.problem)


def _widest(case: Case, subject: Subject) -> Case | None:
    wide = [name for name in ("float64", "float32") if name in subject.spec.dtypes]
    return replace(case, dtype=wide[0]) if wide and case.N_k and case.regime != "massive" else None


@check("backward", fit=_widest)
def finite_differences(t: Trial) -> Comparisons:
    """The slope of the kernel's own forward function, at a few spots, is what its backward
    function says.
    """
    problem, rng, (exact, budgets) = t.problem, t.rng, t.problem.gradients()
    step = 2.0**-12 if problem.q.dtype == np.float64 else 2.0**-4
    dO = problem.dO.astype(np.float64)
    for name, got, oracle_gradient, gradient_budget in zip(
        "qkv", t.gradients[:3], exact[:3], budgets[:3], strict=True
    ):
        array = getattr(problem, name)
        spot = tuple(int(rng.integers(n)) for n in array.shape)
        ends = []
        for sign in (1, -1):
            moved = array.copy()
            moved[spot] += sign * step
            ends.append(problem.but(**{name: moved}))
        over = float(getattr(ends[0], name)[spot]) - float(getattr(ends[1], name)[spot])
        if over == 0:
            continue
        outs = [t.subject.forward(end) for end in ends]
        slope = ((outs[0].O - outs[1].O) * dO).sum() / over
        true_slope = ((ends[0].solution.O - ends[1].solution.O) * dO).sum() / over
        slope -= true_slope - oracle_gradient[spot]  # what the curvature adds, by the oracle
        budget = (np.abs(dO) * both_budgets(*ends)).sum() / over + gradient_budget[spot]
        yield Comparison(
            f"d{name}{list(spot)} against the slope of O",
            np.array(got[spot]),
            np.array(slope),
            budget,
            True,
            problem,
        )


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
    yield from of_gradients(
        "{} of what is masked", t.gradients, zeros, zeros, t.problem, (empty, dead, dead)
    )


@check("backward", "masks", fit=with_dead_keys)
def backward_poison(t: Trial) -> Comparisons:
    """NaN and ±∞ in keys that are masked for every query, or in their values, never reach the
    gradients.
    """
    changed = poisoned(t)
    if changed is None:
        return
    found = t.subject.backward(changed, t.case.strides)
    yield from of_gradients("{} with poisoned keys", found, *t.problem.gradients(), changed)


def _with_dropout(case: Case, subject: Subject) -> Case | None:
    return case if case.dropout_p else replace(case, dropout_p=(0.1, 0.5, 0.8)[case.seed % 3])


@check("dropout", fit=_with_dropout)
def dropout(t: Trial) -> Comparisons:
    """With dropout, O has the weights that the keep mask keeps, and the log-sum-exp is the one
    without dropout.
    """
    problem = t.problem
    want, budget = problem.dropped(t.subject.keep(problem))
    live = ~problem.empty
    yield Comparison("O under dropout", t.out.O, want, budget, live[..., None], problem)
    if t.out.lse is not None:
        exact = problem.solution
        yield Comparison("lse under dropout", t.out.lse, exact.lse, exact.lse_budget, live, problem)


@check("dropout", "backward", fit=_with_dropout)
def dropout_gradients(t: Trial) -> Comparisons:
    """With dropout, the gradients are those of the forward function with the same keep mask."""
    problem = t.problem
    yield from of_gradients(
        "{} under dropout", t.gradients, *problem.gradients(t.subject.keep(problem)), problem
    )


@check("dropout", fit=_with_dropout)
def dropout_mask(t: Trial) -> Comparisons:
    """The keep mask keeps a share of 1 − p, is the same for the same seed, and differs between
    seeds and between heads.
    """
    problem = t.problem
    kept = t.subject.keep(problem)
    yield Comparison(
        "the keep mask, asked for again,", t.subject.keep(problem) * 1.0, kept * 1.0, 0.0
    )
    n = kept.size
    p = problem.dropout_p
    if n < 64:
        return
    budget = 6 * np.sqrt(p * (1 - p) / n)  # six standard deviations
    yield Comparison("the share kept", np.array(kept.mean()), np.array(1 - p), budget)
    other = t.subject.keep(problem.but(seed=problem.seed + 1))
    yield Comparison(
        "whether another seed has the same keep mask",
        np.array((kept == other).all() * 1.0),
        np.array(0),
        0.0,
    )
    heads = kept.reshape(-1, *kept.shape[2:])
    if len(heads) > 1 and heads[0].size >= 64:
        same = (heads[0] == heads[1]).all() * 1.0
        yield Comparison(
            "whether another head has the same keep mask", np.array(same), np.array(0), 0.0
        )

"""The kernel against itself: on another problem with the same answer, in other memory, once more."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from flashsim.problem.inputs import Array
from flashsim.testing.case import Case, Problem
from flashsim.testing.checks.check import (
    IS_DETERMINISTIC,
    TAKES_CROSS,
    TAKES_STRIDES,
    Comparison,
    Comparisons,
    Trial,
    check,
    declares,
    of_gradients,
)
from flashsim.testing.subject import Subject, memory_of, strides_of


def _with_keys(problem: Problem, keys: Array | slice) -> Problem:
    """Return the problem with these of its keys, in this order."""
    mask = problem.mask
    if mask is not None and mask.shape[-1] > 1:
        mask = mask[..., keys]
    bias = problem.bias
    if bias is not None and bias.shape[-1] > 1:
        bias = bias[..., keys]
    return problem.but(k=problem.k[:, :, keys], v=problem.v[:, :, keys], mask=mask, bias=bias)


@check(fit=lambda case, subject: replace(case, causal=False, window=None) if case.N_k > 1 else None)
def key_permutation(t: Trial) -> Comparisons:
    """The order of the keys does not matter."""
    other = _with_keys(t.problem, t.rng.permutation(t.problem.score_shape[-1]))
    yield t.alike("O with keys in another order", other, t.problem)


def _any_keys(case: Case, subject: Subject) -> Case | None:
    return case if case.N_k else None


@check(fit=_any_keys)
def shift_invariance(t: Trial) -> Comparisons:
    """One vector added to all keys shifts each row of scores by a constant, which the softmax does not see."""
    k = np.clip(np.round(8 * t.problem.k.astype(np.float64)) / 8, -7, 7)  # so that adding 8 is exact in every dtype
    shift = 8 * np.sign(t.rng.normal(size=k.shape[-1]))
    plain, shifted = (t.problem.but(k=a.astype(t.problem.k.dtype)) for a in (k, k + shift))
    yield t.alike("O with shifted scores", shifted, plain)


@check(fit=_any_keys)
def identity_values(t: Trial) -> Comparisons:
    """Where V holds columns of the identity, O reads out the weights: a masked key's is exactly 0."""
    problem = t.problem
    N_k, width = problem.v.shape[2:]
    first = int(t.rng.integers(max(N_k - width, 0) + 1))
    v = np.broadcast_to(np.eye(N_k, width, -first), problem.v.shape).astype(problem.v.dtype)
    identity = problem.but(v=v)
    got, want = t.forward(identity), identity.solution
    live = ~problem.empty[..., None]
    yield Comparison(f"the weights of keys from {first} on", got.O, want.O, want.O_budget, live, identity)
    allowed = np.zeros((*problem.score_shape[:3], width), bool)
    seen = problem.allowed[..., first : first + width]
    allowed[..., : seen.shape[-1]] = seen
    masked = live & ~allowed & ~problem.overflowing[..., None]
    yield Comparison("the weights of masked keys", got.O, np.zeros_like(got.O), 0.0, masked, identity)


@check(declares("lse"), TAKES_CROSS, fit=lambda case, subject: case if case.N_k > subject.spec.multiples[1] else None)
def split_and_merge(t: Trial) -> Comparisons:
    """Attention to parts of the keys, merged by their log-sum-exps, is attention to all of them."""
    problem, N_k = t.problem, t.problem.score_shape[-1]
    whole = problem
    if problem.causal or problem.window is not None:
        whole = problem.but(causal=False, window=None, mask=problem.allowed if t.spec.masks else problem.mask)
    near = [N_k // 2] if t.spec.max_shapes else [int(c) for c in t.rng.integers(1, N_k, size=3)]
    edges = sorted({0, N_k, *(t.spec.lengths(1, cut)[1] for cut in near)})
    parts = [_with_keys(whole, slice(*ends)) for ends in pairwise(edges)]
    outs = [t.forward(part) for part in parts]
    base = np.log(2) if t.spec.lse == "base2" else 1.0
    with np.errstate(all="ignore"):
        empty = np.stack([part.empty for part in parts])
        lses = np.where(empty, -np.inf, np.stack([base * np.asarray(out.lse) for out in outs]))
        top = lses.max(axis=0)
        weights = np.exp(lses - np.where(np.isfinite(top), top, 0))
        total = np.where(whole.empty, 1.0, weights.sum(axis=0))
        merged_lse = (np.log(total) + top) / base
        shares = (weights / total)[..., None]
        Os = np.stack([np.where(part.empty[..., None], 0, out.O) for part, out in zip(parts, outs, strict=True)])
        merged = (shares * Os).sum(axis=0)
        off = np.stack([base * part.solution.lse_budget for part in parts])[..., None]
        budgets = np.stack([part.solution.O_budget for part in parts])
        weight_errors = (
            2 * np.expm1(2 * np.where(empty[..., None], 0, off).max(axis=0)) * np.abs(shares * Os).sum(axis=0)
        )
        budget = (shares * np.where(empty[..., None], 0, budgets)).sum(axis=0) + weight_errors
    want = whole.solution
    live = ~whole.empty & ~whole.overflowing
    split = f"merged from keys split at {', '.join(map(str, edges[1:-1]))}"
    yield Comparison(f"O {split}", merged, want.O, budget + want.O_budget, live[..., None], whole)
    lse_budget = want.lse_budget + off[..., 0].max(axis=0) / base
    yield Comparison(f"lse {split}", merged_lse, want.lse, lse_budget, live, whole)


@check(declares("gqa"), fit=lambda case, subject: case if case.group > 1 else replace(case, group=2 + case.seed % 2))
def grouped_heads(t: Trial) -> Comparisons:
    """Query heads that share a KV head do as if each had a copy of it."""
    problem = t.problem
    repeated = problem.but(**{name: np.repeat(getattr(problem, name), problem.group, axis=1) for name in ("k", "v")})
    want, budget = t.forward(repeated), 2 * problem.solution.O_budget
    yield Comparison("O, against KV heads repeated,", t.out.O, want.O, budget, t.defined, problem)


@check(declares("scale"))
def scale_equivalence(t: Trial) -> Comparisons:
    """Twice the scale does what queries twice as large do; the default scale is 1/√d."""
    problem = t.problem
    scale = float(t.rng.choice([0.25, 1.0, 1.5]))
    doubled = problem.but(q=problem.q * np.asarray(2, problem.q.dtype), scale=scale)
    yield t.alike(f"O with scale={2 * scale}", problem.but(scale=2 * scale), doubled)
    said = problem.but(scale=1 / np.sqrt(problem.q.shape[-1]))
    yield t.alike("O with the default scale, against 1/√d given,", problem.but(scale=None), said)


def _strided(case: Case, subject: Subject) -> Case | None:
    kinds = strides_of(subject.spec)[1:]
    return case if case.strides != "contiguous" else replace(case, strides=kinds[case.seed % len(kinds)])


@check(TAKES_STRIDES, fit=_strided, both=True)
def strides(t: Trial) -> Comparisons:
    """Arrays that are not contiguous, with NaN in their gaps, give what contiguous ones give."""
    want, budget = t.subject.forward(t.problem), 2 * t.problem.solution.O_budget
    yield Comparison(f"O of strided arrays ({t.case.strides})", t.out.O, want.O, budget, t.defined, t.problem)
    if t.subject.back and t.gradients_promised:
        plain, budgets = t.subject.backward(t.problem), t.problem.gradients().budgets
        twice = tuple(2 * budget for budget in budgets)
        yield from of_gradients(f"{{}} of strided arrays ({t.case.strides})", t.gradients, plain, twice, t.problem)


@check(both=True)
def inputs_unmodified(t: Trial) -> Comparisons:
    """No input is written to, nor memory around it."""
    mask = t.problem.mask
    given = t.problem if mask is None else t.problem.but(mask=mask.copy())
    for by in ("", ", by the backward function,") if t.subject.back and t.takes_backward else ("",):
        arrays = t.subject.lay(t.problem, t.case.strides, back=bool(by))
        before = {name: memory_of(a).astype(np.float64) for name, a in arrays.items()}
        if by:
            t.subject.backward_on(arrays, t.problem)
        else:
            t.subject.forward_on(arrays, given, copies=False)
        for name, a in arrays.items():
            yield Comparison(f"memory of {name}{by} afterwards", memory_of(a).astype(np.float64), before[name], 0.0)
        if not by and mask is not None and given.mask is not None:
            yield Comparison("mask afterwards", given.mask.astype(float), mask.astype(float), 0.0)


@check(IS_DETERMINISTIC)
def determinism(t: Trial) -> Comparisons:
    """The same call again, after another one, gives the same bits."""
    problem = t.problem
    t.forward(problem.but(q=-problem.q, v=problem.v + np.asarray(1, problem.v.dtype)))
    again = t.subject.forward(problem, t.case.strides)
    yield Comparison("O, called again,", again.O, t.out.O, 0.0, t.defined, problem)
    if again.lse is not None and t.out.lse is not None:
        yield Comparison("lse, called again,", again.lse, t.out.lse, 0.0, ~problem.empty, problem)

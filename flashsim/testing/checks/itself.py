"""The kernel against itself: on another problem with the same answer, in other memory, once
more.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.testing.case import MOST_ELEMENTS, Case
from flashsim.testing.checks.check import (
    Comparison,
    Comparisons,
    Trial,
    check,
    of_gradients,
    of_outputs,
)
from flashsim.testing.problem import Problem
from flashsim.testing.strategies import around
from flashsim.testing.subject import Output, Subject, memory_of, strides_of

LARGE = 4096  # scores of a batch that a check makes


def _with_keys(problem: Problem, keys: Array | slice) -> Problem:
    """Return the problem with these of its keys, in this order."""
    mask = problem.mask
    if mask is not None and mask.shape[-1] > 1:
        mask = mask[..., keys]
    bias = problem.bias
    if bias is not None and bias.shape[-1] > 1:
        bias = bias[..., keys]
    return problem.but(k=problem.k[:, :, keys], v=problem.v[:, :, keys], mask=mask, bias=bias)


@check(
    fit=lambda case, _: (
        replace(case, causal=False, window=None, alibi=False) if case.N_k > 1 else None
    ),
    computes=True,
)
def key_permutation(t: Trial) -> Comparisons:
    """The order of the keys does not matter."""
    other = _with_keys(t.problem, t.rng.permutation(t.problem.score_shape[-1]))
    yield t.alike("O with keys in another order", other, t.problem)


def _any_keys(case: Case, subject: Subject) -> Case | None:
    return case if case.N_k else None


@check(
    fit=lambda case, _: replace(case, softcap=None, sink=None) if case.N_k else None, computes=True
)
def shift_invariance(t: Trial) -> Comparisons:
    """One vector added to all keys shifts each row of scores by a constant, which the softmax
    does not see.
    """
    # so that adding 8 is exact in every dtype
    k = np.clip(np.round(8 * t.problem.k.astype(np.float64)) / 8, -7, 7)
    shift = 8 * np.sign(t.rng.normal(size=k.shape[-1]))
    plain, shifted = (t.problem.but(k=a.astype(t.problem.k.dtype)) for a in (k, k + shift))
    yield t.alike("O with shifted scores", shifted, plain)


@check(fit=_any_keys)
def identity_values(t: Trial) -> Comparisons:
    """If V holds columns of the identity, O is the weights; a masked key's weight is exactly 0."""
    problem = t.problem
    N_k, width = problem.v.shape[2:]
    first = int(t.rng.integers(max(N_k - width, 0) + 1))
    v = np.broadcast_to(np.eye(N_k, width, -first), problem.v.shape).astype(problem.v.dtype)
    identity = problem.but(v=v)
    got = t.forward(identity)
    want = identity.solution
    live = ~problem.empty[..., None]
    yield Comparison(
        f"the weights of keys from {first} on", got.O, want.O, want.O_budget, live, identity
    )
    allowed = np.zeros((*problem.score_shape[:3], width), bool)
    seen = problem.allowed[..., first : first + width]
    allowed[..., : seen.shape[-1]] = seen
    masked = live & ~allowed & ~problem.overflowing[..., None]
    yield Comparison(
        "the weights of masked keys", got.O, np.zeros_like(got.O), 0.0, masked, identity
    )


@check(
    "lse",
    "cross",
    fit=lambda case, subject: case if case.N_k > subject.spec.multiples[1] else None,
    computes=True,
)
def split_and_merge(t: Trial) -> Comparisons:
    """Attention to parts of the keys, merged by their log-sum-exps, is attention to all of them."""
    N_k = t.problem.score_shape[-1]
    near = [N_k // 2] if t.spec.max_shapes else [int(c) for c in t.rng.integers(1, N_k, size=3)]
    edges = sorted({0, N_k, *(t.spec.lengths(1, cut)[1] for cut in near)})
    whole = _in_any_order(t)
    parts = [_with_keys(whole, slice(*ends)) for ends in pairwise(edges)]
    yield from _merged(
        t, whole, parts, f"merged from keys split at {', '.join(map(str, edges[1:-1]))}"
    )


def _takes_parts(subject: Subject) -> str:
    return (
        ""
        if subject.spec.cross or subject.spec.masks
        else "the spec declares N_q = N_k, and no masks"
    )


@check("lse", _takes_parts, fit=_any_keys, computes=True)
def mergeable_lse(t: Trial) -> Comparisons:
    """Attention to keys [0, c) and to [c, N_k), merged as returned, is the whole; a part may be
    empty or masked.
    """
    N_k = t.problem.score_shape[-1]
    whole = _in_any_order(t)
    masked = t.spec.masks and (not t.spec.cross or bool(t.rng.integers(2)))
    cut = int(t.rng.choice([0, N_k, *t.rng.integers(N_k + 1, size=2)]))
    if masked:
        before = np.arange(N_k) < cut
        parts = [
            whole.but(mask=whole.allowed & keys, causal=False, window=None)
            for keys in (before, ~before)
        ]
    else:
        cut = min(N_k, t.spec.lengths(1, N_k // 2 if t.spec.max_shapes else cut)[1])
        if cut in (0, N_k) and not t.spec.zero_keys:
            return
        parts = [_with_keys(whole, slice(0, cut)), _with_keys(whole, slice(cut, N_k))]
    how = "masked" if masked else "taken"
    yield from _merged(
        t,
        whole,
        parts,
        f"merged from keys {how} in two parts, up to {cut} and from there",
        as_is=True,
    )


def _in_any_order(t: Trial) -> Problem:
    """Return the problem without causal masking, window and slopes, which go by a key's
    position; a mask keeps the first two.
    """
    problem = t.problem
    if not problem.causal and problem.window is None and problem.slopes is None:
        return problem
    return problem.but(
        causal=False,
        window=None,
        slopes=None,
        mask=problem.allowed if t.spec.masks else problem.mask,
    )


def _merged(
    t: Trial, whole: Problem, parts: list[Problem], how: str, as_is: bool = False
) -> Comparisons:
    """Compare O and lse of parts of the keys, merged, with the whole's; `as_is`: with empty rows
    as a part returns them.
    """
    # or it would count twice
    parts = [part if n == 0 else part.but(sink=None) for n, part in enumerate(parts)]
    outs = [t.forward(part) for part in parts]
    base = np.log(2) if t.spec.lse == "base2" else 1.0
    with np.errstate(all="ignore"):
        empty = np.stack([part.empty for part in parts])
        lses = np.stack([base * np.asarray(out.lse) for out in outs])
        if not as_is or t.spec.empty_rows == "undefined":
            lses = np.where(empty, -np.inf, lses)
        top = lses.max(axis=0)
        weights = np.exp(lses - np.where(np.isfinite(top), top, 0))
        total = np.where(whole.empty, 1.0, weights.sum(axis=0))
        merged_lse = (np.log(total) + top) / base
        shares = (weights / total)[..., None]
        Os = np.stack([out.O for out in outs])
        if not as_is or t.spec.empty_rows != "zero":
            Os = np.where(empty[..., None], 0, Os)
        merged = (shares * Os).sum(axis=0)
        off = np.stack([base * part.solution.lse_budget for part in parts])[..., None]
        budgets = np.stack([part.solution.O_budget for part in parts])
        weight_errors = (
            2
            * np.expm1(2 * np.where(empty[..., None], 0, off).max(axis=0))
            * np.abs(shares * Os).sum(axis=0)
        )
        budget = (shares * np.where(empty[..., None], 0, budgets)).sum(axis=0) + weight_errors
    want = whole.solution
    live = ~whole.empty & ~whole.overflowing
    yield Comparison(f"O {how}", merged, want.O, budget + want.O_budget, live[..., None], whole)
    yield Comparison(
        f"lse {how}",
        merged_lse,
        want.lse,
        want.lse_budget + off[..., 0].max(axis=0) / base,
        live,
        whole,
    )


def _in_groups(case: Case, subject: Subject) -> Case:
    """Return the case with groups; for every fourth seed with one query and more keys than a
    block, as in decoding.
    """
    case = case if case.group > 1 else replace(case, group=2 + case.seed % 2)
    if (
        case.seed % 4
        or case.N_k > subject.spec.block[1]
        or not subject.spec.cross
        or subject.spec.max_shapes
    ):
        return case
    lengths = [n for n in around(subject.spec.block[1]) if n > subject.spec.block[1]]
    N_q, N_k = subject.spec.lengths(1, lengths[case.seed // 4 % len(lengths)])
    return replace(case, N_q=N_q, N_k=N_k, H_kv=max(case.H_kv, 2))


@check("gqa", fit=_in_groups)
def grouped_heads(t: Trial) -> Comparisons:
    """Query heads that share a KV head give the same as if each had a copy of it."""
    problem = t.problem
    repeated = problem.but(
        **{name: np.repeat(getattr(problem, name), problem.group, axis=1) for name in ("k", "v")}
    )
    if problem.scales is not None:
        q_scale, *others = problem.scales
        repeated = repeated.but(
            scales=(q_scale, *(np.repeat(a, problem.group, axis=1) for a in others))
        )
    want = t.forward(repeated)
    twice = (2 * problem.solution.O_budget, 2 * problem.solution.lse_budget)
    yield from of_outputs(
        "{}, against KV heads repeated,", t.out, want, twice, (t.defined, ~problem.empty), problem
    )


@check("scale", computes=True)
def scale_equivalence(t: Trial) -> Comparisons:
    """Twice the scale gives the same as queries twice as large; the default scale is 1/√d."""
    problem = t.problem
    scale = float(t.rng.choice([0.25, 1.0, 1.5]))
    doubled = problem.but(q=problem.q * np.asarray(2, problem.q.dtype), scale=scale)
    yield t.alike(f"O with scale={2 * scale}", problem.but(scale=2 * scale), doubled)
    said = problem.but(scale=1 / np.sqrt(problem.q.shape[-1]))
    yield t.alike("O with the default scale, against 1/√d given,", problem.but(scale=None), said)


def _strided(case: Case, subject: Subject) -> Case | None:
    kinds = strides_of(subject.spec)[1:]
    return (
        case
        if case.strides != "contiguous"
        else replace(case, strides=kinds[case.seed % len(kinds)])
    )


@check("strides", fit=_strided, both=True)
def strides(t: Trial) -> Comparisons:
    """Arrays that are not contiguous, with NaN in their gaps, give the same as contiguous ones."""
    want = t.subject.forward(t.problem)
    budget = 2 * t.problem.solution.O_budget
    yield Comparison(
        f"O of strided arrays ({t.case.strides})", t.out.O, want.O, budget, t.defined, t.problem
    )
    if t.subject.back and t.gradients_promised:
        plain = t.subject.backward(t.problem)
        budgets = t.problem.gradients().budgets
        twice = tuple(2 * budget for budget in budgets)
        yield from of_gradients(
            f"{{}} of strided arrays ({t.case.strides})", t.gradients, plain, twice, t.problem
        )


@check(both=True)
def inputs_unmodified(t: Trial) -> Comparisons:
    """The kernel does not write to its inputs, or to memory around them."""
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
            yield Comparison(
                f"memory of {name}{by} afterwards",
                memory_of(a).astype(np.float64),
                before[name],
                0.0,
            )
        if not by and mask is not None and given.mask is not None:
            yield Comparison("mask afterwards", given.mask.astype(float), mask.astype(float), 0.0)


@check("deterministic")
def determinism(t: Trial) -> Comparisons:
    """The same call again, after another one, gives the same bits."""
    problem = t.problem
    t.forward(problem.but(q=-problem.q, v=problem.v + np.asarray(1, problem.v.dtype)))
    again = t.subject.forward(problem, t.case.strides)
    yield from of_outputs(
        "{}, called again,", again, t.out, (0.0, 0.0), (t.defined, ~problem.empty), problem
    )


def _in_a_batch(case: Case, subject: Subject) -> Case | None:
    """Return the case in a batch; for every other seed with more keys than a block, so that they
    may be split.
    """
    spec, (_, B_c) = subject.spec, subject.spec.block
    if spec.max_shapes:
        return case if case.B > 1 else None
    if case.seed % 2 and case.N_k <= B_c:
        lengths = [n for n in around(B_c) if n > B_c]
        N_q, N_k = spec.lengths(case.N_q, lengths[case.seed // 2 % len(lengths)])
        case = replace(case, N_q=N_q if spec.cross else N_k, N_k=N_k)
    if case.B > 1:
        return case
    room = LARGE // max(case.scores, 1)
    most = MOST_ELEMENTS // (
        case.H_kv * case.group * max(case.N_q, case.N_k) * max(case.N_k, case.d, case.d_v or 0)
    )
    return (
        replace(case, B=min((2, 3, 5, 17)[case.seed // 2 % 4], max(room, 2))) if most > 1 else None
    )


@check(fit=_in_a_batch)
def batch_invariance(t: Trial) -> Comparisons:
    """A sequence gives the same alone as in a batch of others, and the same bits if the spec
    says so.
    """
    problem = t.problem
    B = len(problem.q)
    b = int(t.rng.integers(B))
    own = {name: getattr(problem, name) for name in ("q", "k", "v", "mask", "bias")}
    alone = problem.but(
        **{name: a[b : b + 1] for name, a in own.items() if a is not None and len(a) == B}
    )
    alone = alone.but(
        scales=None if problem.scales is None else tuple(a[b : b + 1] for a in problem.scales)
    )
    out = t.subject.forward(alone, t.case.strides)
    here = (np.arange(B) == b)[:, None, None]
    lse = None if out.lse is None else np.broadcast_to(out.lse, problem.score_shape[:3])
    want = Output(np.broadcast_to(out.O, t.out.O.shape), lse)
    budgets = (
        (0.0, 0.0)
        if t.spec.batch_invariant
        else (2 * problem.solution.O_budget, 2 * problem.solution.lse_budget)
    )
    at = t.defined & here[..., None], ~problem.empty & here
    yield from of_outputs(
        f"{{}} of sequence {b} in a batch of {B}, against it alone,",
        t.out,
        want,
        budgets,
        at,
        problem,
    )

"""Checks of the kernel against itself: on another problem that has the same answer, with arrays
that lie in memory in another way, or called again.
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
from flashsim.testing.kernel import Kernel, Output, memory_of, strides_of
from flashsim.testing.problem import Problem
from flashsim.testing.strategies import around

MOST_SCORES = 4096  # of a batch that a check makes


def _with_keys(problem: Problem, keys: Array | slice) -> Problem:
    """Return the problem with the selected keys, in the selection's order."""
    mask = problem.mask
    if mask is not None and mask.shape[-1] > 1:
        mask = mask[..., keys]
    bias = problem.bias
    if bias is not None and bias.shape[-1] > 1:
        bias = bias[..., keys]
    return problem.but(k=problem.k[:, :, keys], v=problem.v[:, :, keys], mask=mask, bias=bias)


def _without_positions(case: Case, kernel: Kernel) -> Case | None:
    if case.N_k < 2:
        return None
    return replace(case, causal=False, window=None, alibi=False)


@check(fit=_without_positions, computes=True)
def key_permutation(t: Trial) -> Comparisons:
    """The order of the keys does not matter."""
    order = t.rng.permutation(t.problem.score_shape[-1])
    other = _with_keys(t.problem, order)
    yield t.same_output("O with keys in another order", other, t.problem)


def _any_keys(case: Case, kernel: Kernel) -> Case | None:
    return case if case.N_k else None


def _without_cap_and_sink(case: Case, kernel: Kernel) -> Case | None:
    return replace(case, softcap=None, sink=None) if case.N_k else None


@check(fit=_without_cap_and_sink, computes=True)
def shift_invariance(t: Trial) -> Comparisons:
    """One vector added to all keys shifts each row of scores by a constant, which the softmax
    does not see.
    """
    dtype = t.problem.k.dtype
    # so that adding 8 is exact in every dtype
    k = np.clip(np.round(8 * t.problem.k.astype(np.float64)) / 8, -7, 7)
    shift = 8 * np.sign(t.rng.normal(size=k.shape[-1]))
    plain = t.problem.but(k=k.astype(dtype))
    shifted = t.problem.but(k=(k + shift).astype(dtype))
    yield t.same_output("O with shifted scores", shifted, plain)


@check(fit=_any_keys)
def identity_values(t: Trial) -> Comparisons:
    """If V holds columns of the identity, O is the weights; a masked key's weight is exactly 0."""
    problem = t.problem
    N_k, width = problem.v.shape[2:]
    first = int(t.rng.integers(max(N_k - width, 0) + 1))
    v = np.broadcast_to(np.eye(N_k, width, -first), problem.v.shape).astype(problem.v.dtype)
    identity = problem.but(v=v)
    O = t.forward(identity).O
    exact = identity.solution
    rows = ~problem.empty[..., None]
    label = f"the weights of keys from {first} on"
    yield Comparison(label, O, exact.O, exact.O_budget, rows, identity)
    allowed = np.zeros((*problem.score_shape[:3], width), bool)
    columns = problem.allowed[..., first : first + width]
    allowed[..., : columns.shape[-1]] = columns
    masked = rows & ~allowed & ~problem.overflowing[..., None]
    yield Comparison("the weights of masked keys", O, np.zeros_like(O), 0.0, masked, identity)


def _with_several_blocks(case: Case, kernel: Kernel) -> Case | None:
    return case if case.N_k > kernel.spec.multiples[1] else None


@check("lse", "cross", fit=_with_several_blocks, computes=True)
def split_and_merge(t: Trial) -> Comparisons:
    """Attention to parts of the keys, merged by their log-sum-exps, is attention to all of them."""
    N_k = t.problem.score_shape[-1]
    cuts = [N_k // 2] if t.spec.max_shapes else [int(c) for c in t.rng.integers(1, N_k, size=3)]
    edges = {0, N_k}
    for cut in cuts:
        _, N = t.spec.lengths(1, cut)  # a length that the kernel takes
        edges.add(N)
    ordered = sorted(edges)
    whole = _without_key_positions(t)
    parts = [_with_keys(whole, slice(begin, end)) for begin, end in pairwise(ordered)]
    suffix = f"merged from keys split at {', '.join(map(str, ordered[1:-1]))}"
    yield from _merged(t, whole, parts, suffix)


def _takes_parts(kernel: Kernel) -> str:
    if kernel.spec.cross or kernel.spec.masks:
        return ""
    return "the spec declares N_q = N_k, and no masks"


@check("lse", _takes_parts, fit=_any_keys, computes=True)
def mergeable_lse(t: Trial) -> Comparisons:
    """Attention to keys [0, c) and to [c, N_k), merged as returned, is the whole; a part may be
    empty or masked.
    """
    N_k = t.problem.score_shape[-1]
    whole = _without_key_positions(t)
    by_mask = t.spec.masks and (not t.spec.cross or bool(t.rng.integers(2)))
    cut = int(t.rng.choice([0, N_k, *t.rng.integers(N_k + 1, size=2)]))
    if by_mask:
        before = np.arange(N_k) < cut
        head = whole.but(mask=whole.allowed & before, causal=False, window=None)
        tail = whole.but(mask=whole.allowed & ~before, causal=False, window=None)
    else:
        _, N = t.spec.lengths(1, N_k // 2 if t.spec.max_shapes else cut)
        cut = min(N_k, N)
        if cut in (0, N_k) and not t.spec.zero_keys:
            return
        head = _with_keys(whole, slice(0, cut))
        tail = _with_keys(whole, slice(cut, N_k))
    verb = "masked" if by_mask else "taken"
    suffix = f"merged from keys {verb} in two parts, up to {cut} and from there"
    yield from _merged(t, whole, [head, tail], suffix, as_is=True)


def _without_key_positions(t: Trial) -> Problem:
    """Return the problem without what depends on a key's position: causal masking, window and
    slopes. If the kernel takes masks, a mask replaces the first two.
    """
    problem = t.problem
    if not problem.causal and problem.window is None and problem.slopes is None:
        return problem
    mask = problem.allowed if t.spec.masks else problem.mask
    return problem.but(causal=False, window=None, slopes=None, mask=mask)


def _merged(
    t: Trial, whole: Problem, parts: list[Problem], suffix: str, as_is: bool = False
) -> Comparisons:
    """Yield comparisons of O and lse, merged from those of parts of the keys, with the whole's.

    suffix  of the comparisons' labels
    as_is   whether a part's empty rows are merged as the kernel returns them
    """
    first, *others = parts
    # a sink belongs to one part: otherwise it would count twice
    parts = [first, *(part.but(sink=None) for part in others)]
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
        merged_O = (shares * Os).sum(axis=0)
        lse_budgets = np.stack([base * part.solution.lse_budget for part in parts])[..., None]
        O_budgets = np.stack([part.solution.O_budget for part in parts])
        # of rows that are not empty
        lse_error = np.where(empty[..., None], 0, lse_budgets).max(axis=0)
        O_errors = np.where(empty[..., None], 0, O_budgets)
        weight_errors = 2 * np.expm1(2 * lse_error) * np.abs(shares * Os).sum(axis=0)
        budget = (shares * O_errors).sum(axis=0) + weight_errors
    exact = whole.solution
    rows = ~whole.empty & ~whole.overflowing
    O_budget = budget + exact.O_budget
    yield Comparison(f"O {suffix}", merged_O, exact.O, O_budget, rows[..., None], whole)
    lse_budget = exact.lse_budget + lse_budgets[..., 0].max(axis=0) / base
    yield Comparison(f"lse {suffix}", merged_lse, exact.lse, lse_budget, rows, whole)


def _in_groups(case: Case, kernel: Kernel) -> Case:
    """Return the case with groups. Every fourth seed has one query and more keys than a block, as
    in decoding.
    """
    spec = kernel.spec
    _, B_c = spec.block
    if case.group == 1:
        case = replace(case, group=2 + case.seed % 2)
    if case.seed % 4 or case.N_k > B_c or not spec.cross or spec.max_shapes:
        return case
    lengths = [n for n in around(B_c) if n > B_c]
    N_q, N_k = spec.lengths(1, lengths[case.seed // 4 % len(lengths)])
    return replace(case, N_q=N_q, N_k=N_k, H_kv=max(case.H_kv, 2))


@check("gqa", fit=_in_groups)
def grouped_heads(t: Trial) -> Comparisons:
    """Query heads that share a KV head give the same as if each had a copy of it."""
    problem = t.problem
    k = np.repeat(problem.k, problem.group, axis=1)
    v = np.repeat(problem.v, problem.group, axis=1)
    repeated = problem.but(k=k, v=v)
    if problem.scales is not None:
        q_scale, *kv_scales = problem.scales
        repeats = [np.repeat(scale, problem.group, axis=1) for scale in kv_scales]
        repeated = repeated.but(scales=(q_scale, *repeats))
    out = t.forward(repeated)
    budgets = _doubled_budgets(problem)
    rows = (t.defined_rows, ~problem.empty)
    label = "{}, against KV heads repeated,"
    yield from of_outputs(label, t.out, out, budgets, rows, problem)


def _doubled_budgets(problem: Problem) -> tuple[Array, Array]:
    """Return the budgets of O and lse of two calls."""
    return 2 * problem.solution.O_budget, 2 * problem.solution.lse_budget


@check("scale", computes=True)
def scale_equivalence(t: Trial) -> Comparisons:
    """Twice the scale gives the same as queries twice as large; the default scale is 1/√d."""
    problem = t.problem
    scale = float(t.rng.choice([0.25, 1.0, 1.5]))
    doubled = problem.but(q=problem.q * np.asarray(2, problem.q.dtype), scale=scale)
    yield t.same_output(f"O with scale={2 * scale}", problem.but(scale=2 * scale), doubled)
    default = problem.but(scale=None)
    explicit = problem.but(scale=1 / np.sqrt(problem.q.shape[-1]))
    yield t.same_output("O with the default scale, against 1/√d given,", default, explicit)


def _strided(case: Case, kernel: Kernel) -> Case | None:
    if case.strides != "contiguous":
        return case
    kinds = strides_of(kernel.spec)[1:]
    return replace(case, strides=kinds[case.seed % len(kinds)])


@check("strides", fit=_strided, both=True)
def strides(t: Trial) -> Comparisons:
    """Arrays that are not contiguous, with NaN in their gaps, give the same as contiguous ones."""
    contiguous = t.kernel.forward(t.problem)
    budget = 2 * t.problem.solution.O_budget
    label = f"{{}} of strided arrays ({t.case.strides})"
    O_label = label.format("O")
    yield Comparison(O_label, t.out.O, contiguous.O, budget, t.defined_rows, t.problem)
    if t.kernel.back and t.gradients_promised:
        gradients = t.kernel.backward(t.problem)
        budgets = tuple(2 * budget for budget in t.problem.gradients().budgets)
        yield from of_gradients(label, t.gradients, gradients, budgets, t.problem)


@check(both=True)
def inputs_unmodified(t: Trial) -> Comparisons:
    """The kernel does not write to its inputs, or to memory around them."""
    strides = t.case.strides
    mask = t.problem.mask
    problem = t.problem if mask is None else t.problem.but(mask=mask.copy())
    arrays = t.kernel.lay(t.problem, strides)
    before = _memories(arrays)
    t.kernel.forward_on(arrays, problem, copies=False)
    after = _memories(arrays)
    for name in arrays:
        yield Comparison(f"memory of {name} afterwards", after[name], before[name], 0.0)
    if mask is not None and problem.mask is not None:
        mask_after = problem.mask.astype(float)
        yield Comparison("mask afterwards", mask_after, mask.astype(float), 0.0)
    if not t.kernel.back or not t.takes_backward:
        return
    arrays = t.kernel.lay(t.problem, strides, back=True)
    before = _memories(arrays)
    t.kernel.backward_on(arrays, t.problem)
    after = _memories(arrays)
    for name in arrays:
        label = f"memory of {name}, by the backward function, afterwards"
        yield Comparison(label, after[name], before[name], 0.0)


def _memories(arrays: dict[str, Array]) -> dict[str, Array]:
    """Return copies, in float64, of all the memory that the arrays are views of."""
    return {name: memory_of(a).astype(np.float64) for name, a in arrays.items()}


@check("deterministic")
def determinism(t: Trial) -> Comparisons:
    """The same call again, after another one, gives the same bits."""
    problem = t.problem
    t.forward(problem.but(q=-problem.q, v=problem.v + np.asarray(1, problem.v.dtype)))
    second = t.kernel.forward(problem, t.case.strides)
    rows = (t.defined_rows, ~problem.empty)
    yield from of_outputs("{}, called again,", second, t.out, (0.0, 0.0), rows, problem)


def _in_a_batch(case: Case, kernel: Kernel) -> Case | None:
    """Return the case in a batch. Every other seed has more keys than a block, so that the kernel
    may split them.
    """
    spec = kernel.spec
    _, B_c = spec.block
    if spec.max_shapes:
        return case if case.B > 1 else None
    if case.seed % 2 and case.N_k <= B_c:
        lengths = [n for n in around(B_c) if n > B_c]
        N_q, N_k = spec.lengths(case.N_q, lengths[case.seed // 2 % len(lengths)])
        case = replace(case, N_q=N_q if spec.cross else N_k, N_k=N_k)
    if case.B > 1:
        return case
    longest = max(case.N_q, case.N_k)
    widest = max(case.N_k, case.d, case.d_v or 0)
    elements = case.H_kv * case.group * longest * widest
    if MOST_ELEMENTS // elements < 2:
        return None
    most = max(MOST_SCORES // max(case.scores, 1), 2)
    B = (2, 3, 5, 17)[case.seed // 2 % 4]
    return replace(case, B=min(B, most))


@check(fit=_in_a_batch)
def batch_invariance(t: Trial) -> Comparisons:
    """A sequence gives the same alone as in a batch of others, and the same bits if the spec
    says so.
    """
    problem = t.problem
    B = len(problem.q)
    b = int(t.rng.integers(B))
    changes = {}
    for name in ("q", "k", "v", "mask", "bias"):
        a = getattr(problem, name)
        if a is not None and len(a) == B:
            changes[name] = a[b : b + 1]
    alone = problem.but(**changes)
    if problem.scales is not None:
        alone = alone.but(scales=tuple(a[b : b + 1] for a in problem.scales))
    out = t.kernel.forward(alone, t.case.strides)
    lse = None if out.lse is None else np.broadcast_to(out.lse, problem.score_shape[:3])
    broadcast = Output(np.broadcast_to(out.O, t.out.O.shape), lse)
    budgets: tuple[Array | float, Array | float] = (0.0, 0.0)
    if not t.spec.batch_invariant:
        budgets = _doubled_budgets(problem)
    is_b = (np.arange(B) == b)[:, None, None]
    rows = (t.defined_rows & is_b[..., None], ~problem.empty & is_b)
    label = f"{{}} of sequence {b} in a batch of {B}, against it alone,"
    yield from of_outputs(label, t.out, broadcast, budgets, rows, problem)

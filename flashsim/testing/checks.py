"""The named checks: what must hold of any attention, each a function that yields what to compare.

Some compare with the oracle; others compare the kernel with itself on a problem with the same answer, and would notice a
bug that kernel and oracle share. A check may first change the case, so that it applies: `fit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from flashsim.problem.inputs import Array
from flashsim.reference.rounding import parts_of_bound
from flashsim.testing.case import Case, Problem
from flashsim.testing.kernel import Kernel, Output, memory_of, strides_of


class Comparison(NamedTuple):
    """Arrays of one shape: |got − want| ≤ budget is asked of each element where `at` is true. A budget of 0 means equal."""

    what: str
    got: Array
    want: Array
    budget: Array | float
    at: Array | bool = True
    problem: Problem | None = None

    def parts(self, answer: Array | None = None) -> Array:
        """Return each error of `got`, or of another answer, as a part of its budget; −1 where nothing is asked."""
        want = np.asarray(self.want)
        budget = np.broadcast_to(np.asarray(self.budget, float), want.shape)
        return np.where(self.at, parts_of_bound(self.got if answer is None else answer, want, budget), -1.0)


Comparisons = Iterator[Comparison]
Three = tuple[Array, ...]


def of_gradients(
    what: str, got: Three, want: Three, budgets: Three, problem: Problem, at: Sequence[Array | bool] = (True,) * 3
) -> Comparisons:
    """Yield what to compare of dq, dk and dv, each being {} in `what`."""
    for name, g, w, budget, where in zip(("dq", "dk", "dv"), got, want, budgets, at, strict=True):
        yield Comparison(what.format(name), g, w, budget, where, problem)


class Trial:
    """One case, and one kernel to try on it. What several checks need is computed once."""

    def __init__(self, kernel: Kernel, case: Case) -> None:
        self.kernel, self.case, self.spec = kernel, case, kernel.spec

    @cached_property
    def problem(self) -> Problem:
        """The case's arrays, with the oracle's answer."""
        return self.case.problem(self.spec)

    @cached_property
    def out(self) -> Output:
        """What the kernel returns for the case."""
        return self.kernel.forward(self.problem, self.case.strides)

    @cached_property
    def gradients(self) -> tuple[Array, Array, Array]:
        """What the kernel's backward function returns for the case."""
        return self.kernel.backward(self.problem, self.case.strides)

    @cached_property
    def rng(self) -> np.random.Generator:
        """For choices that a check makes: the same for the same case."""
        return np.random.default_rng((self.case.seed, 3))

    @property
    def defined(self) -> Array:
        """Rows, (B, H_q, N_q, 1), whose output does not come from masked keys and is promised."""
        live = ~self.problem.empty
        return np.asarray(live if self.spec.empty_rows in ("undefined", "mean") else np.ones_like(live))[..., None]

    @property
    def gradients_promised(self) -> bool:
        """Whether the spec says what the gradients are: it does not where an empty row is anything but 0."""
        return self.spec.empty_rows == "zero" or not self.problem.empty.any()

    def forward(self, problem: Problem) -> Output:
        """Return what the kernel returns for a problem made of the case's."""
        return self.out if problem is self.problem else self.kernel.forward(problem, self.case.strides)

    def alike(self, what: str, problem: Problem, other: Problem) -> Comparison:
        """Return the comparison of the kernel with itself, on two problems that have the same O."""
        got, want = self.forward(problem).O, self.forward(other).O
        return Comparison(what, got, want, both_budgets(problem, other), self.defined, problem)


def both_budgets(one: Problem, other: Problem) -> Array:
    """Return the sum of the budgets of two problems' O."""
    return one.solution.O_budget + other.solution.O_budget


Run = Callable[[Trial], Comparisons]
Needs = Callable[[Kernel], str]
Fit = Callable[[Case, Kernel], Case | None]


@dataclass(frozen=True)
class Check:
    """A property. `fit` makes a case fit, or returns None."""

    name: str
    run: Run
    conditions: tuple[Needs, ...]
    fit: Fit

    def needs(self, kernel: Kernel) -> str:
        """Return why it does not apply to a kernel, or ""."""
        return next((why for condition in self.conditions if (why := condition(kernel))), "")

    def compare(self, trial: Trial) -> Comparisons:
        """Yield what to compare; nothing where that would be gradients that the spec does not promise."""
        if _backward not in self.conditions or trial.gradients_promised:
            yield from self.run(trial)

    @property
    def about(self) -> str:
        """What it checks, in a line."""
        said = (self.run.__doc__ or self.name).strip()  # python -OO drops what it says
        return said.splitlines()[0]


CHECKS: dict[str, Check] = {}


def check(*conditions: Needs, fit: Fit = lambda case, kernel: case) -> Callable[[Run], Run]:
    """Register a function as the check of that name, under these conditions: each says why it does not apply, or ""."""

    def register(run: Run) -> Run:
        CHECKS[run.__name__] = Check(run.__name__, run, conditions, fit)
        return run

    return register


def _unless(has: Callable[[Kernel], object], why: str) -> Needs:
    return lambda kernel: "" if has(kernel) else why


_lse = _unless(lambda kernel: kernel.spec.lse, "the spec declares no lse")
_masks = _unless(lambda kernel: kernel.spec.masks, "the spec declares no masks")
_causal = _unless(lambda kernel: kernel.spec.causal, "the spec declares no causal")
_gqa = _unless(lambda kernel: kernel.spec.gqa, "the spec declares no gqa")
_scale = _unless(lambda kernel: kernel.spec.scale, "the spec declares no scale")
_cross = _unless(lambda kernel: kernel.spec.cross, "the spec declares N_q = N_k")
_strides = _unless(lambda kernel: kernel.spec.strides != "contiguous", "the spec declares contiguous arrays")
_deterministic = _unless(lambda kernel: kernel.spec.deterministic, "the spec declares it not deterministic")
_backward = _unless(lambda kernel: kernel.back, "no backward was given")
_dropout = _unless(lambda kernel: kernel.keep_mask, "no dropout was given")


def _defined_empty_rows(kernel: Kernel) -> str:
    if kernel.spec.empty_rows == "undefined":
        return "the spec leaves empty rows undefined"
    may = kernel.spec.masks or kernel.spec.zero_keys or (kernel.spec.causal == "bottom_right" and kernel.spec.cross)
    return "" if may else "by the spec no row can be empty"


# ---------------------------------------------------------------------------------------------------- with the oracle


@check()
def oracle(t: Trial) -> Comparisons:
    """O against float64 softmax attention on the same, rounded, inputs."""
    O, want = t.out.O, t.problem.solution  # in this order: where the kernel breaks, nothing more is computed
    yield Comparison("O", O, want.O, want.O_budget, ~t.problem.empty[..., None], t.problem)


@check(_lse)
def log_sum_exp(t: Trial) -> Comparisons:
    """The log-sum-exp of each row's scores, in the base declared."""
    lse, want = t.out.lse, t.problem.solution
    assert lse is not None
    yield Comparison("lse", lse, want.lse, want.lse_budget, ~t.problem.empty, t.problem)


def _with_empty_rows(case: Case, kernel: Kernel) -> Case | None:
    if case.N_k == 0 or case.mask is not None:
        return case
    if kernel.spec.masks:
        return replace(case, mask=("rows", "few", "padding_right")[case.seed % 3])
    if case.N_q == case.N_k:
        return None
    return replace(case, causal=True, N_q=max(case.N_q, case.N_k), N_k=min(case.N_q, case.N_k))


@check(_defined_empty_rows, fit=_with_empty_rows)
def empty_rows(t: Trial) -> Comparisons:
    """Rows in which every key is masked give what the spec says; where that is 0, their lse is −∞."""
    empty, want = t.problem.empty, t.problem.solution
    if not empty.any():
        return
    yield Comparison("O of empty rows", t.out.O, want.O, want.O_budget, empty[..., None], t.problem)
    if t.out.lse is not None and t.spec.empty_rows == "zero":
        yield Comparison("lse of empty rows", t.out.lse, want.lse, 0.0, empty, t.problem)


# ---------------------------------------------------------------------------------------------------- masked for good


def _with_dead_keys(case: Case, kernel: Kernel) -> Case | None:
    if case.mask is not None:
        return case
    return replace(case, mask=("padding_right", "holes", "padding_left", "first_block")[case.seed % 4])


def _poisoned(t: Trial) -> Problem | None:
    """Return the problem with NaN or ±∞ in the keys that nobody may attend to, and in their values."""
    problem, rng = t.problem, t.rng
    dead = problem.dead
    if not dead.any():
        return None
    poison = (np.nan, np.inf, -np.inf)[int(rng.integers(3))]
    arrays = {}
    for name in (("k", "v"), ("v",), ("k",))[int(rng.integers(3))]:
        arrays[name] = np.where(dead[..., None], np.asarray(poison, problem.k.dtype), getattr(problem, name))
    return problem.but(**arrays)


@check(_masks, fit=_with_dead_keys)
def masked_kv_poison(t: Trial) -> Comparisons:
    """NaN and ±∞ in keys that are masked for every query, or in their values, reach no output."""
    poisoned = _poisoned(t)
    if poisoned is None:
        return
    got, want = t.forward(poisoned), t.problem.solution
    yield Comparison("O with poisoned keys", got.O, want.O, want.O_budget, t.defined, poisoned)
    if got.lse is not None:
        live = ~t.problem.empty
        yield Comparison("lse with poisoned keys", got.lse, want.lse, want.lse_budget, live, poisoned)


@check(_masks, _cross)
def appended_masked_keys(t: Trial) -> Comparisons:
    """More keys, all of them masked, change nothing."""
    problem, rng = t.problem, t.rng
    B_c = t.spec.block[1]
    _, more = t.spec.lengths(1, B_c if t.spec.max_shapes else int(rng.integers(1, B_c + 2)))
    B, H_q, N_q, _ = problem.score_shape

    def longer(a: Array) -> Array:
        extra = 10 * rng.normal(size=(*a.shape[:2], more, a.shape[3]))
        return np.concatenate([a, extra.astype(a.dtype)], axis=2)

    allowed = np.concatenate([problem.allowed, np.zeros((B, H_q, N_q, more), bool)], axis=-1)
    appended = problem.but(k=longer(problem.k), v=longer(problem.v), mask=allowed, causal=False)
    yield t.alike(f"O with {more} masked keys appended", appended, problem)


@check(_causal, fit=lambda case, kernel: replace(case, causal=True) if case.N_k > 1 else None)
def causal_no_leak(t: Trial) -> Comparisons:
    """Other, large keys and values in the future of a query do not change its output."""
    problem, rng = t.problem, t.rng
    first = int(rng.integers(1, problem.score_shape[-1]))
    k, v = problem.k.copy(), problem.v.copy()
    k[:, :, first:] = (8 * rng.normal(size=k[:, :, first:].shape)).astype(k.dtype)
    v[:, :, first:] = (100 + rng.normal(size=v[:, :, first:].shape)).astype(v.dtype)
    changed = problem.but(k=k, v=v)
    past = ~problem.allowed[..., first:].any(axis=-1, keepdims=True) & ~problem.empty[..., None]
    if not past.any():
        return
    got, budget = t.forward(changed), 2 * problem.solution.O_budget
    yield Comparison(f"O where keys from {first} on are in the future", got.O, t.out.O, budget, past, changed)


# ------------------------------------------------------------------------------------------- the kernel against itself


def _with_keys(problem: Problem, keys: Array | slice) -> Problem:
    """Return the problem with these of its keys, in this order."""
    mask = problem.mask
    if mask is not None and mask.shape[-1] > 1:
        mask = mask[..., keys]
    return problem.but(k=problem.k[:, :, keys], v=problem.v[:, :, keys], mask=mask)


@check(fit=lambda case, kernel: replace(case, causal=False) if case.N_k > 1 else None)
def key_permutation(t: Trial) -> Comparisons:
    """The order of the keys does not matter."""
    other = _with_keys(t.problem, t.rng.permutation(t.problem.score_shape[-1]))
    yield t.alike("O with keys in another order", other, t.problem)


def _any_keys(case: Case, kernel: Kernel) -> Case | None:
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


@check(_lse, _cross, fit=lambda case, kernel: case if case.N_k > kernel.spec.multiples[1] else None)
def split_and_merge(t: Trial) -> Comparisons:
    """Attention to parts of the keys, merged by their log-sum-exps, is attention to all of them."""
    problem, N_k = t.problem, t.problem.score_shape[-1]
    whole = problem
    if problem.causal:
        whole = problem.but(causal=False, mask=problem.allowed if t.spec.masks else problem.mask)
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


@check(_gqa, fit=lambda case, kernel: case if case.group > 1 else replace(case, group=2 + case.seed % 2))
def grouped_heads(t: Trial) -> Comparisons:
    """Query heads that share a KV head do as if each had a copy of it."""
    problem = t.problem
    repeated = problem.but(**{name: np.repeat(getattr(problem, name), problem.group, axis=1) for name in ("k", "v")})
    want, budget = t.forward(repeated), 2 * problem.solution.O_budget
    yield Comparison("O, against KV heads repeated,", t.out.O, want.O, budget, t.defined, problem)


@check(_scale)
def scale_equivalence(t: Trial) -> Comparisons:
    """Twice the scale does what queries twice as large do; the default scale is 1/√d."""
    problem = t.problem
    scale = float(t.rng.choice([0.25, 1.0, 1.5]))
    doubled = problem.but(q=problem.q * np.asarray(2, problem.q.dtype), scale=scale)
    yield t.alike(f"O with scale={2 * scale}", problem.but(scale=2 * scale), doubled)
    said = problem.but(scale=1 / np.sqrt(problem.q.shape[-1]))
    yield t.alike("O with the default scale, against 1/√d given,", problem.but(scale=None), said)


# --------------------------------------------------------------------------------------------------- memory and repeats


def _strided(case: Case, kernel: Kernel) -> Case | None:
    kinds = strides_of(kernel.spec)[1:]
    return case if case.strides != "contiguous" else replace(case, strides=kinds[case.seed % len(kinds)])


@check(_strides, fit=_strided)
def strides(t: Trial) -> Comparisons:
    """Arrays that are not contiguous, with NaN in their gaps, give what contiguous ones give."""
    want, budget = t.kernel.forward(t.problem), 2 * t.problem.solution.O_budget
    yield Comparison(f"O of strided arrays ({t.case.strides})", t.out.O, want.O, budget, t.defined, t.problem)
    if t.kernel.back and t.gradients_promised:
        plain, budgets = t.kernel.backward(t.problem), t.problem.gradients().budgets
        twice = tuple(2 * budget for budget in budgets)
        yield from of_gradients(f"{{}} of strided arrays ({t.case.strides})", t.gradients, plain, twice, t.problem)


@check()
def inputs_unmodified(t: Trial) -> Comparisons:
    """No input is written to, nor memory around it."""
    mask = t.problem.mask
    given = t.problem if mask is None else t.problem.but(mask=mask.copy())
    for by in ("", ", by the backward function,") if t.kernel.back else ("",):
        arrays = t.kernel.lay(t.problem, t.case.strides, back=bool(by))
        before = {name: memory_of(a).astype(np.float64) for name, a in arrays.items()}
        if by:
            t.kernel.backward_on(arrays, t.problem)
        else:
            t.kernel.forward_on(arrays, given, copies=False)
        for name, a in arrays.items():
            yield Comparison(f"memory of {name}{by} afterwards", memory_of(a).astype(np.float64), before[name], 0.0)
        if not by and mask is not None and given.mask is not None:
            yield Comparison("mask afterwards", given.mask.astype(float), mask.astype(float), 0.0)


@check(_deterministic)
def determinism(t: Trial) -> Comparisons:
    """The same call again, after another one, gives the same bits."""
    problem = t.problem
    t.forward(problem.but(q=-problem.q, v=problem.v + np.asarray(1, problem.v.dtype)))
    again = t.kernel.forward(problem, t.case.strides)
    yield Comparison("O, called again,", again.O, t.out.O, 0.0, t.defined, problem)
    if again.lse is not None and t.out.lse is not None:
        yield Comparison("lse, called again,", again.lse, t.out.lse, 0.0, ~problem.empty, problem)


# ------------------------------------------------------------------------------------------------------------ backward


@check(_backward)
def gradients(t: Trial) -> Comparisons:
    """dq, dk, dv for a random dO against the oracle's."""
    wants = t.problem.gradients()
    yield from of_gradients("{}", t.gradients, *wants, t.problem)


def _widest(case: Case, kernel: Kernel) -> Case | None:
    wide = [name for name in ("float64", "float32") if name in kernel.spec.dtypes]
    return replace(case, dtype=wide[0]) if wide and case.N_k and case.regime != "massive" else None


@check(_backward, fit=_widest)
def finite_differences(t: Trial) -> Comparisons:
    """The slope of the kernel's own forward function, at a few spots, is what its backward function says."""
    problem, rng, (exact, budgets) = t.problem, t.rng, t.problem.gradients()
    step = 2.0**-12 if problem.q.dtype == np.float64 else 2.0**-4
    dO = problem.dO.astype(np.float64)
    for name, got, oracle_gradient, gradient_budget in zip("qkv", t.gradients, exact, budgets, strict=True):
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
        outs = [t.kernel.forward(end) for end in ends]
        slope = ((outs[0].O - outs[1].O) * dO).sum() / over
        true_slope = ((ends[0].solution.O - ends[1].solution.O) * dO).sum() / over
        slope -= true_slope - oracle_gradient[spot]  # what the curvature adds, by the oracle
        budget = (np.abs(dO) * both_budgets(*ends)).sum() / over + gradient_budget[spot]
        yield Comparison(
            f"d{name}{list(spot)} against the slope of O", np.array(got[spot]), np.array(slope), budget, True, problem
        )


@check(_backward, _masks, fit=_with_dead_keys)
def masked_gradients(t: Trial) -> Comparisons:
    """Keys that nobody attends to, and queries that attend to nothing, have gradients of exactly 0."""
    dead, empty = t.problem.dead[..., None], t.problem.empty[..., None]
    if t.problem.overflowing.any():
        return
    zeros = tuple(map(np.zeros_like, t.gradients))
    yield from of_gradients("{} of what is masked", t.gradients, zeros, zeros, t.problem, (empty, dead, dead))


@check(_backward, _masks, fit=_with_dead_keys)
def backward_poison(t: Trial) -> Comparisons:
    """NaN and ±∞ in keys that are masked for every query, or in their values, reach no gradient."""
    poisoned = _poisoned(t)
    if poisoned is None:
        return
    found = t.kernel.backward(poisoned, t.case.strides)
    yield from of_gradients("{} with poisoned keys", found, *t.problem.gradients(), poisoned)


# ------------------------------------------------------------------------------------------------------------- dropout


def _with_dropout(case: Case, kernel: Kernel) -> Case | None:
    return case if case.dropout_p else replace(case, dropout_p=(0.1, 0.5, 0.8)[case.seed % 3])


@check(_dropout, fit=_with_dropout)
def dropout(t: Trial) -> Comparisons:
    """Under dropout O is what the keep mask makes of the weights, and the log-sum-exp is as without."""
    problem = t.problem
    want, budget = problem.dropped(t.kernel.keep(problem))
    live = ~problem.empty
    yield Comparison("O under dropout", t.out.O, want, budget, live[..., None], problem)
    if t.out.lse is not None:
        exact = problem.solution
        yield Comparison("lse under dropout", t.out.lse, exact.lse, exact.lse_budget, live, problem)


@check(_dropout, _backward, fit=_with_dropout)
def dropout_gradients(t: Trial) -> Comparisons:
    """Under dropout the gradients are those of the forward function with that keep mask."""
    problem = t.problem
    wants = problem.gradients(t.kernel.keep(problem))
    yield from of_gradients("{} under dropout", t.gradients, *wants, problem)


@check(_dropout, fit=_with_dropout)
def dropout_mask(t: Trial) -> Comparisons:
    """The keep mask keeps 1 − p, is the same for the same seed, and differs between seeds and between heads."""
    problem = t.problem
    kept = t.kernel.keep(problem)
    yield Comparison("the keep mask, asked for again,", t.kernel.keep(problem) * 1.0, kept * 1.0, 0.0)
    n, p = kept.size, problem.dropout_p
    if n < 64:
        return
    budget = 6 * np.sqrt(p * (1 - p) / n)  # six standard deviations
    yield Comparison("the share kept", np.array(kept.mean()), np.array(1 - p), budget)
    other = t.kernel.keep(problem.but(seed=problem.seed + 1))
    yield Comparison(
        "whether another seed has the same keep mask", np.array((kept == other).all() * 1.0), np.array(0), 0.0
    )
    heads = kept.reshape(-1, *kept.shape[2:])
    if len(heads) > 1 and heads[0].size >= 64:
        same = (heads[0] == heads[1]).all() * 1.0
        yield Comparison("whether another head has the same keep mask", np.array(same), np.array(0), 0.0)

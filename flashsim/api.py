"""`forward`, `backward` and `count`: run an algorithm on the counted memory, with numbers or with shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from flashsim.algorithms import Algorithm
from flashsim.algorithms.blocks import Fit, Fixed, Paper, Problem, Sizing, clipped
from flashsim.algorithms.notation import log
from flashsim.algorithms.own import chosen
from flashsim.blas import one_blas_thread
from flashsim.checking import (
    check_block_mask,
    check_blocks,
    check_callback,
    check_count,
    check_flag,
    check_gqa,
    check_heads,
    check_merge,
    check_observers,
    check_p,
    check_scale,
    check_seed,
    check_shape,
    check_splits,
    is_one_of,
    shown,
)
from flashsim.groups import by_head, interleave, interleaved, launch_sum, once_per_group, with_parts
from flashsim.inputs import (
    Array,
    Inputs,
    check_backward_range,
    check_dO,
    check_inputs,
    check_M,
    check_range,
    chip_dtype,
    float_dtype,
    largest,
)
from flashsim.masks import as_mask
from flashsim.memory import HBM, MemoryModelError, Observer, SramOverflow
from flashsim.records import Blocks, Flops, Occupancy, Shape, Traffic
from flashsim.variant import BlockMaskArgument, Variant, launch

if TYPE_CHECKING:
    from flashsim.tracing import Recorder, Trace

SIZINGS: dict[str, Sizing] = {"paper": Paper(), "fit": Fit()}
COLUMNS = ("l", "m", "lse")  # kept as (N, 1)
OnHead = Callable[[int, int], None]


@dataclass(frozen=True)
class Tally:
    """What a run costs. `hbm`: accesses by array. `sram`: peak and capacity. `blocks`: B_r, B_c, T_r, T_c. `flops`."""

    algorithm: str
    hbm: Traffic
    sram: Occupancy
    blocks: Blocks
    flops: Flops


@dataclass(frozen=True)
class Run:
    """A finished forward pass: the result, and what it cost.

    O     (..., H_q, N_q, d_v), in the inputs' dtype
    l, m  (..., H_q, N_q), softmax statistics of the scaled scores in the chip's dtype; None where the algorithm keeps none
    lse   (..., H_q, N_q), the scaled scores' log-sum-exp, m + log ℓ; where an algorithm returns neither it nor ℓ and m, it is
          made of what the run left in HBM, uncounted. −∞ for a row without a key. None for a function that returns O alone
    hbm, sram, blocks  as in `Tally`
    gqa   the schedule of query heads that share a KV head, as in `forward`
    inputs, variant, saved  what the backward pass needs: copies, independent of the caller's arrays
    trace  the first head's events, if `trace=True` asked for them; else None. In Jupyter, such a run shows as their player
    """

    algorithm: str
    O: Array = field(repr=False)
    l: Array | None = field(repr=False)
    m: Array | None = field(repr=False)
    lse: Array | None = field(repr=False)
    hbm: Traffic = field(repr=False)
    sram: Occupancy
    blocks: Blocks
    scale: float
    gqa: str
    sizing: Sizing = field(repr=False)
    inputs: Inputs = field(repr=False)
    variant: Variant = field(repr=False)
    saved: Mapping[str, Sequence[Array]] = field(repr=False)
    trace: Trace | None = field(default=None, repr=False)

    def _repr_html_(self) -> str | None:
        """Return the player of the trace in a sandboxed frame, as Jupyter shows it; None without a trace."""
        return None if self.trace is None else self.trace._repr_html_()


@dataclass(frozen=True)
class Gradients:
    """A finished backward pass: dQ, dK, dV, shaped and typed as Q, K, V, and what it cost, as in `Tally`.

    trace  the first head's events, if `trace=True` asked for them; else None. In Jupyter, it shows as their player
    """

    algorithm: str
    dQ: Array = field(repr=False)
    dK: Array = field(repr=False)
    dV: Array = field(repr=False)
    hbm: Traffic = field(repr=False)
    sram: Occupancy
    blocks: Blocks
    trace: Trace | None = field(default=None, repr=False)

    def _repr_html_(self) -> str | None:
        """Return the player of the trace in a sandboxed frame, as Jupyter shows it; None without a trace."""
        return None if self.trace is None else self.trace._repr_html_()


@dataclass(frozen=True)
class Job:
    """One pass over all heads (or all groups of interleaved heads), each on its own, with counts that add up."""

    algorithm: Algorithm
    given: Inputs
    variant: Variant
    blocks: Blocks
    M: int
    enforced: bool
    observers: Sequence[Observer]
    on_head: OnHead | None

    def run(
        self, operands: Callable[[tuple[int, ...], int], Mapping[str, Array]]
    ) -> tuple[dict[str, list[Array]], Traffic, Occupancy]:
        """Return what each head returned and saved, by name, and what it all cost. `operands(head, number)` by name."""
        results: dict[str, list[Array]] = {}
        traffic, peak = Traffic(), 0
        heads = list(np.ndindex(self.given.leading))
        with one_blas_thread(), np.errstate(over="ignore", under="ignore", invalid="ignore"):
            for number, head in enumerate(heads):
                hbm, sram, returned = launch(
                    self.algorithm,
                    self.given.shape,
                    self.variant,
                    self.blocks,
                    self.M,
                    self.enforced,
                    self.given.dtype,
                    operands(head, number),
                    head,
                    number,
                    self.observers,
                )
                traffic += hbm.traffic
                peak = max(peak, sram.peak)
                names = [matrix.name for matrix in returned]
                for name in (*names, *(name for name in self.algorithm.saves if name in hbm)):
                    results.setdefault(name, []).append(hbm.peek(name))
                if (lse := self._lse(hbm, names)) is not None:
                    results.setdefault("lse", []).append(lse)
                if self.on_head is not None:
                    self.on_head(number + 1, len(heads))
        return results, once_per_group(traffic, self.given.group), Occupancy(peak, self.M, self.enforced)

    def _lse(self, hbm: HBM, returned: Sequence[str]) -> Array | None:
        """Return a forward pass's log-sum-exp, (N_q, 1), from what it returned, or else left in HBM."""
        if self.algorithm.direction == "backward":
            return None
        if self.algorithm.lse is not None:
            return self.algorithm.lse(hbm, self.variant.merge)
        if "L" in returned:
            return hbm.peek("L")
        return hbm.peek("m") + log(hbm.peek("l")) if {"l", "m"} <= set(returned) else None


def forward(
    name: str | Algorithm | Callable[..., Any],
    Q: Any,
    K: Any,
    V: Any,
    *,
    M: int | None = None,
    scale: float | None = None,
    sizing: str | Sizing = "paper",
    blocks: tuple[int, int] | None = None,
    causal: bool = False,
    mask: Any = None,
    dropout_p: float = 0.0,
    seed: int = 0,
    block_mask: BlockMaskArgument = None,
    splits: int | None = None,
    merge: str = "sequence",
    gqa: str = "separate",
    check_finite: bool = True,
    observers: Sequence[Observer] = (),
    on_head: OnHead | None = None,
    trace: bool = False,
) -> Run:
    """Run dropout(softmax(MASK(scale · QKᵀ))) V with the named algorithm on the counted memory.

    Q is (..., H_q, N_q, d), K (..., H_kv, N_k, d), V (..., H_kv, N_k, d_v), of one dtype among float16, bfloat16, float32,
    float64, or (N, d) without heads. H_q is a multiple of H_kv: query heads g·k … g·k + g − 1 share KV head k, g = H_q / H_kv
    (multi-query attention where H_kv = 1). Heads run one after another and the counts add up. 16-bit inputs are computed on
    in float32 and rounded at every store. Inputs are not modified.

    name     of an algorithm (`flashsim.algorithms.FORWARD` has them all), an `Algorithm`, or a function of one's own
             `f(hbm, sram, Q, K, V, blocks)` that returns O, in HBM (`flashsim.algorithms.own`)
    M        SRAM's size in elements; None: 100 KB of the inputs' dtype
    scale    None: 1/√d. Algorithms 0 and 1 have no τ: there it is folded into Q when Q is placed in HBM. For 16-bit inputs
             that product is kept in float32 (and counted as 16-bit), since rounding it would shift large scores by more
             than any kernel does
    sizing   "paper" (line 1; M only reported against), "fit" (the largest blocks that fit; M enforced), or a policy
    blocks   (B_r, B_c), overrides `sizing`; M enforced
    causal   key j is attended to if j ≤ i + N_k − N_q: aligned at the bottom right
    mask     boolean array that broadcasts to (..., N_q, N_k), True = attend, or a mask object (`flashsim.Causal`,
             `KeyPadding`, `SlidingWindow`, `Dense`, `Tree`, combined with &). With `causal`, both must allow
    dropout_p, seed  drop attention weights with this probability; the mask is `flashsim.dropout.keep_mask`
    block_mask  for "block_sparse": boolean (T_r, T_c), True = computed; or a function of (T_r, T_c) that returns it, such
             as `flashsim.patterns.butterfly`; or "live": skip the tiles that the mask forbids whole, as far as positions
             tell without data. Default: all tiles
    splits   for "split_kv": how many runs of blocks the keys are cut into; some may be empty. None: one for each block
    merge    for "split_kv": "sequence" or "tree"
    gqa      how query heads that share a KV head run ("FlashAttention: Theory and Practice", "GQA Handling in FlashAttention").
             "separate" (its option B): each on its own, streaming K and V of its KV head anew.
             "grouped" (option A): a group at once, as one problem of g·N_q queries whose row r is query r // g of the group's
             head r % g; B_r and `block_mask` count such rows. A tile of K and V that is loaded serves all rows on chip. So
             where K and V are the outer loop ("flash") they are read once a group, g times less. Where queries are ("q_outer",
             "split_kv") they are read ⌈g·N_q / B_r⌉ times a group in place of g·⌈N_q / B_r⌉: g times less for a row block
             that holds the whole group, as in decoding, and no less where B_r divides N_q
    check_finite  refuse NaN and ∞. Without, they reach those queries only that attend to them
    observers  called with every memory event (`flashsim.memory.Event`)
    on_head  called after each head with (heads done, heads in all)
    trace    record the first head's events as `run.trace`, to step through (`flashsim.trace`)

    Raises ValueError for arguments that make no sense, `SramOverflow` where an enforced M is exceeded.
    """
    algorithm = chosen(name, "forward")
    gqa, check_finite = check_gqa(gqa), check_flag("check_finite", check_finite)
    observers, on_head = check_observers(observers), check_callback("on_head", on_head)
    given = check_inputs(Q, K, V, check_finite=check_finite)
    variant = _variant(scale, causal, mask, dropout_p, seed, block_mask, splits, merge, given.shape, given.leading)
    variant.refuse_what(algorithm)
    M = check_M(M, given.dtype.itemsize)
    if check_finite:
        check_range(given, variant.tau, variant.dropout_p, given.dtype if algorithm.stores_scores else None)
    policy = _policy(sizing, blocks)
    given = given.copy()
    group, rows, asked = _scheduled(gqa, given, variant)
    sizes = _blocks(algorithm, rows.shape, asked, M, policy, rows.leading)

    def operands(head: tuple[int, ...], number: int) -> dict[str, Array]:
        Q_h, shared = rows.Q[head], rows.kv(head)
        if "tau" not in algorithm.parts:
            Q_h = np.multiply(Q_h, variant.tau, dtype=chip_dtype(given.dtype))
        return {"Q": Q_h, "K": rows.K[shared], "V": rows.V[shared]}

    watching, recorder = _watched(observers, trace=trace)
    job = Job(algorithm, rows, asked, sizes, M, policy.enforced, watching, on_head)
    results, traffic, use = job.run(operands)
    gathered = {
        kept: _gather(kept, results[kept], rows.leading, group, check_finite=check_finite)
        for kept in ("O", *COLUMNS)
        if kept in results
    }
    if check_finite and not algorithm.returns and np.isnan(gathered["O"]).any():
        raise MemoryModelError(
            f"{algorithm.name!r} returned an O with NaN in it: rows never stored, or made of what was evicted"
        )
    saved = {kept: results[kept] for kept in algorithm.saves if kept in results}
    recorded = _recorded(recorder, "forward", job, variant, group)
    return Run(
        algorithm.name,
        gathered["O"],
        gathered.get("l"),
        gathered.get("m"),
        gathered.get("lse"),
        traffic,
        use,
        sizes,
        variant.tau,
        gqa,
        policy,
        given,
        variant,
        saved,
        recorded,
    )


def backward(
    name: str | Algorithm,
    run: Run,
    dO: Any,
    *,
    M: int | None = None,
    sizing: str | Sizing | None = None,
    blocks: tuple[int, int] | None = None,
    check_finite: bool = True,
    observers: Sequence[Observer] = (),
    on_head: OnHead | None = None,
    trace: bool = False,
) -> Gradients:
    """Run the backward pass of `run`, which the algorithm of that name made, for the output gradient dO (..., H_q, N_q, d_v).

    name     of its backward pass (`flashsim.algorithms.BACKWARD`): the forward pass's own, or another's that belongs to it,
             as "q_outer_two_pass" does to "q_outer"; or an `Algorithm`
    dO       of O's shape and dtype
    M, sizing, blocks  by default the forward pass's. "block_sparse" keeps the forward pass's blocks, on which its mask is
    trace    record the first head's events as the result's `trace`, to step through (`flashsim.trace`)

    Query heads that share a KV head are scheduled as in the forward pass, and dK, dV are sums over them. "grouped" has those
    sums on chip. "separate" has each query head write its own, "dK_parts" and "dV_parts", in the inputs' dtype; then a pass
    (`flashsim.algorithms.group_sum`) loads the g parts, adds them up in the chip's dtype, and writes dK and dV.

    Scores computed again in other tiles may be rounded to other numbers, 2(d + 4)·u·Σ|τ||q||k| apart at most (u: the chip's
    roundoff). Weights are kept at most 1 all the same, so gradients stay finite and within `reference.gradient_bounds`. Where
    that distance nears 1, as with float32 at scores of 10⁵ and more, the bounds say that rounding decides the softmax.

    Returns dQ, dK, dV. Raises ValueError for arguments that make no sense, `SramOverflow` where an enforced M is exceeded.
    """
    algorithm = chosen(name, "backward")
    if not isinstance(run, Run):
        raise ValueError(f"run is a {type(run).__name__}; expected what flashsim.forward({name!r}, …) returned")
    if run.algorithm != algorithm.forward_pass:
        raise ValueError(
            f"run was made by {run.algorithm!r}; its backward pass is backward({run.algorithm!r}, …), if any"
        )
    check_finite = check_flag("check_finite", check_finite)
    observers, on_head = check_observers(observers), check_callback("on_head", on_head)
    given, variant = run.inputs, run.variant
    gradient = check_dO(dO, run.O, check_finite=check_finite)
    M = run.sram.capacity if M is None else check_M(M, given.dtype.itemsize)
    if check_finite:
        stored = given.dtype if "P" in algorithm.operands else None
        check_backward_range(given, run.O, gradient, variant.tau, variant.dropout_p, stored)
    policy = run.sizing if sizing is None and blocks is None else _policy("paper" if sizing is None else sizing, blocks)
    if "block_mask" in algorithm.parts:
        if sizing is not None or blocks is not None:
            raise ValueError(
                f"{name!r} keeps the forward pass's blocks, on which its mask is; leave sizing and blocks out"
            )
        policy = Fixed(run.blocks.B_r, run.blocks.B_c, policy.enforced)
    group, rows, asked = _scheduled(run.gqa, given, variant)
    sizes = _blocks(algorithm, rows.shape, asked, M, policy, rows.leading)

    columns = {
        key: array[..., None] for key, array in (("l", run.l), ("m", run.m), ("L", run.lse)) if array is not None
    }
    kept = {key: interleave(array, group) for key, array in {**columns, "O": run.O, "dO": gradient}.items()}

    def operands(head: tuple[int, ...], number: int) -> dict[str, Array]:
        found = {key: array[head] for key, array in kept.items()}
        shared = {"Q": rows.Q[head], "K": rows.K[rows.kv(head)], "V": rows.V[rows.kv(head)]}
        return found | shared | {key: arrays[number] for key, arrays in run.saved.items()}

    watching, recorder = _watched(observers, trace=trace)
    job = Job(algorithm, rows, asked, sizes, M, policy.enforced, watching, on_head)
    results, traffic, use = job.run(operands)
    recorded = _recorded(recorder, "backward", job, variant, group)
    dQ = _gather("dQ", results["dQ"], rows.leading, group, check_finite=check_finite)
    part = "_parts" if rows.group > 1 else ""
    dK, dV = (_gather(X + part, results[X], rows.leading, 1, check_finite=check_finite) for X in ("dK", "dV"))
    if part:
        dK, dV, traffic, use = _summed(dK, dV, given, traffic, use, observers)
        for X, array in (("dK", dK), ("dV", dV)):
            _refuse_overflow(X, array, check_finite=check_finite)
    return Gradients(algorithm.name, dQ, dK, dV, traffic, use, sizes, recorded)


def count(
    name: str | Algorithm | Callable[..., Any],
    *,
    N: int | None = None,
    d: int,
    M: int | None = None,
    N_q: int | None = None,
    N_k: int | None = None,
    d_v: int | None = None,
    heads: int = 1,
    kv_heads: int | None = None,
    dtype: DTypeLike = "float32",
    direction: str = "forward",
    sizing: str | Sizing = "paper",
    blocks: tuple[int, int] | None = None,
    causal: bool = False,
    mask: Any = None,
    dropout_p: float = 0.0,
    block_mask: BlockMaskArgument = None,
    splits: int | None = None,
    merge: str = "sequence",
    gqa: str = "separate",
    observers: Sequence[Observer] = (),
) -> Tally:
    """Count what `forward` or `backward` would move, by running the same algorithm on shapes alone: no arithmetic.

    Give N, or N_q and N_k where they differ; d_v defaults to d. `heads` are the query heads, batch included, of which
    heads / `kv_heads` share a KV head each, as `gqa` says; None: each has its own. Counts are those of one head (or group)
    times their number, so a mask must be one head's. `dtype` matters for bytes and for the default M (100 KB); `direction` is
    "forward" or "backward". Other arguments and errors as in `forward`.
    """
    algorithm = chosen(name, direction)
    shape = check_shape(N, d, N_q, N_k, d_v)
    heads, kv_heads = check_heads(heads, kv_heads)
    group, together = heads // kv_heads, check_gqa(gqa) == "grouped"
    observers = check_observers(observers)
    stored = float_dtype(dtype)
    M = check_M(M, stored.itemsize)
    variant = _variant(None, causal, mask, dropout_p, 0, block_mask, splits, merge, shape, ())
    variant.refuse_what(algorithm if direction == "forward" else chosen(algorithm.forward_pass, "forward"))
    policy = _policy(sizing, blocks)
    rows, asked = shape, variant
    if together:
        rows, asked = replace(shape, N_q=group * shape.N_q), variant.for_groups(group, shape.N_q)
    sizes = _blocks(algorithm, rows, asked, M, policy)
    hbm, sram, _ = launch(algorithm, rows, asked, sizes, M, policy.enforced, stored, observers=observers)
    if together:
        return Tally(algorithm.name, hbm.traffic.times(kv_heads), sram.use, sizes, sram.flops.times(kv_heads))
    traffic, use, flops = once_per_group(hbm.traffic.times(heads), group), sram.use, sram.flops.times(heads)
    if group > 1 and direction == "backward":
        hbm, sram = launch_sum(shape, group, M, policy.enforced, stored, observers=observers)
        traffic, flops = with_parts(traffic, hbm.traffic.times(kv_heads)), flops + sram.flops.times(kv_heads)
        use = replace(use, peak=max(use.peak, sram.peak))
    return Tally(algorithm.name, traffic, use, sizes, flops)


def _variant(
    scale: float | None,
    causal: bool,
    mask: Any,
    dropout_p: float,
    seed: int,
    block_mask: BlockMaskArgument,
    splits: int | None,
    merge: str,
    shape: Shape,
    leading: tuple[int, ...],
) -> Variant:
    return Variant(
        check_scale(scale, shape.d),
        as_mask(mask, causal, shape, leading),
        check_p(dropout_p),
        check_seed(seed),
        check_block_mask(block_mask),
        check_splits(splits),
        check_merge(merge),
    )


def _policy(sizing: str | Sizing, blocks: tuple[int, int] | None) -> Sizing:
    policy = SIZINGS[sizing] if is_one_of(sizing, SIZINGS) else sizing
    if isinstance(policy, str) or not callable(policy):
        raise ValueError(f"unknown sizing {shown(sizing)}; known: {', '.join(map(repr, SIZINGS))}, or a policy object")
    check_flag("sizing.enforced", getattr(policy, "enforced", None))
    given = check_blocks(blocks)
    return policy if given is None else Fixed(*given)


def _blocks(
    algorithm: Algorithm, shape: Shape, variant: Variant, M: int, policy: Sizing, leading: tuple[int, ...] = ()
) -> Blocks:
    dense = replace(variant, block_mask=None, skips=False)  # every tile may be computed

    def fits(blocks: Blocks, M: int) -> bool:
        try:
            launch(algorithm, shape, dense, blocks, M, True, np.dtype(np.float32), head=(0,) * len(leading))
        except SramOverflow:
            return False
        return True

    sizes = policy(Problem(algorithm.name, shape, M, algorithm.line_1, algorithm.rows, fits))
    if not isinstance(sizes, Blocks):
        raise ValueError(f"sizing returned {shown(sizes)}; expected flashsim.Blocks")
    return clipped(shape, check_count("sizing's B_r", sizes.B_r), check_count("sizing's B_c", sizes.B_c))


def _watched(observers: Sequence[Observer], *, trace: bool) -> tuple[Sequence[Observer], Recorder | None]:
    """Return the observers, with a recorder among them if there is to be a trace."""
    if not check_flag("trace", trace):
        return observers, None
    from flashsim.tracing import Recorder

    recorder = Recorder()
    return (*observers, recorder), recorder


def _recorded(recorder: Recorder | None, direction: str, job: Job, whole: Variant, group: int) -> Trace | None:
    """Return the trace of a job's first head; `whole` is the variant before its rows were interleaved."""
    if recorder is None:
        return None
    from flashsim.tracing.about import Launched, traced

    given, first = job.given, (0,) * len(job.given.leading)
    launched = Launched(
        job.algorithm,
        direction,
        given.shape,
        job.variant,
        whole,
        job.blocks,
        job.M,
        job.enforced,
        given.dtype,
        group,
        first,
    )
    return traced(recorder, launched)


def _scheduled(gqa: str, given: Inputs, variant: Variant) -> tuple[int, Inputs, Variant]:
    """Return how many heads' rows are interleaved, and the inputs and the variant of the problems to run."""
    if gqa == "separate" or given.group == 1:
        return 1, given, variant
    return given.group, interleaved(given), variant.for_groups(given.group, given.shape.N_q)


def _gather(name: str, results: Sequence[Array], leading: tuple[int, ...], group: int, *, check_finite: bool) -> Array:
    """Stack a returned matrix over the heads, interleaved ones taken apart; a column (N, 1) becomes a vector.

    Raises ValueError where finite input overflowed the type that a result is stored in.
    """
    stacked = np.stack(results)
    gathered = by_head(stacked.reshape(*leading, *stacked.shape[1:]), group)
    _refuse_overflow(name, gathered, check_finite=check_finite)
    return gathered[..., 0] if name in COLUMNS else gathered


def _refuse_overflow(name: str, array: Array, *, check_finite: bool) -> None:
    if check_finite and array.dtype.itemsize == 2 and np.isinf(array).any():
        raise ValueError(
            f"{name} overflows {array.dtype}, which ends at {largest(array.dtype):.3g}. "
            f"Scale {'dO' if name.startswith('d') else 'V'} down, or use a wider dtype"
        )


def _summed(
    dK: Array, dV: Array, given: Inputs, traffic: Traffic, use: Occupancy, observers: Sequence[Observer]
) -> tuple[Array, Array, Traffic, Occupancy]:
    """Sum dK and dV of query heads over each group, and add what that costs."""
    g, shape, summing, peak = given.group, given.shape, Traffic(), use.peak
    parts = {name: a.reshape(-1, g, *a.shape[-2:]) for name, a in (("dK", dK), ("dV", dV))}
    sums = {name: np.empty(X.shape, X.dtype) for name, X in (("dK", given.K), ("dV", given.V))}
    flat = {name: a.reshape(len(parts[name]), -1) for name, a in sums.items()}
    for number in range(len(parts["dK"])):
        of_group = {name: a[number] for name, a in parts.items()}
        hbm, sram = launch_sum(shape, g, use.capacity, use.enforced, given.dtype, of_group, observers)
        for name, a in flat.items():
            a[number] = hbm.peek(name)[0]
        summing, peak = summing + hbm.traffic, max(peak, sram.peak)
    return sums["dK"], sums["dV"], with_parts(traffic, summing), replace(use, peak=peak)

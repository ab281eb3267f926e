"""`forward`, `backward` and `count`: what users call. The steps behind them are in
`flashsim.simulate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Unpack

from flashsim.algorithms import BACKWARD, FORWARD, Algorithm
from flashsim.algorithms.blocks import Sizing
from flashsim.algorithms.own import forward_of, resolve
from flashsim.attention.arguments import (
    check_callback,
    check_direction,
    check_flag,
    check_observers,
    short_repr,
)
from flashsim.attention.inputs import HEADS_FIRST, errors_with_layout, heads_first
from flashsim.attention.options import NoOptions, Options, check_how, check_options
from flashsim.attention.problem import Problem
from flashsim.memory.errors import SramOverflow
from flashsim.memory.sram import Observer
from flashsim.simulate.attention import AttentionPlan
from flashsim.simulate.pipeline import OnLaunch, simulate
from flashsim.simulate.planning import (
    backward_plan,
    check_sizing,
    count_plan,
    forward_plan,
    note_blocks_of_both,
    note_what_fits,
)
from flashsim.simulate.results import Result
from flashsim.simulate.stacking import finished
from flashsim.simulate.sums import gather_gradients, gather_tally
from flashsim.support.sizes import Size

OnHead = Callable[[int, int], None]


def forward(
    name: str | Algorithm | Callable[..., Any],
    Q: Any,
    K: Any,
    V: Any,
    *,
    M: Size | None = None,
    scale: float | None = None,
    sizing: str | Sizing = "fit",
    blocks: tuple[int, int] | None = None,
    enforce: bool | None = None,
    causal: bool = False,
    mask: Any = None,
    dropout_p: float = 0.0,
    seed: int = 0,
    gqa: str = "separate",
    layout: str = HEADS_FIRST,
    check_finite: bool = True,
    observers: Sequence[Observer] = (),
    on_head: OnHead | None = None,
    **options: Unpack[Options],
) -> Result:
    """Run dropout(softmax(MASK(scale · QKᵀ))) V with the named algorithm on the counted memory.

    Q is (..., H_q, N_q, d), K (..., H_kv, N_k, d), V (..., H_kv, N_k, d_v), of one dtype among
    float16, bfloat16, float32, float64, or (N, d) without heads. H_q is a multiple of H_kv: query
    heads g·k … g·k + g − 1 share KV head k, g = H_q / H_kv (multi-query attention where H_kv = 1).
    Heads run one after another and the counts add up. 16-bit inputs are computed on in float32 and
    rounded at every store. Inputs are not modified.

    name     of an algorithm (`flashsim.algorithms.FORWARD` has them all), an `Algorithm`, or a
             function of one's own `f(hbm, sram, Q, K, V, blocks)` that returns O, in HBM
             (`flashsim.algorithms.own`)
    M        SRAM's size in elements; None: 100 KB of the inputs' dtype
    scale    None: 1/√d. Algorithms 0 and 1 have no τ: there it is folded into Q when Q is placed in
             HBM. For 16-bit inputs that product is kept in float32 (and counted as 16-bit), since
             rounding it would shift large scores by more than any kernel does
    sizing   "fit" (the largest blocks that fit; M enforced), "paper" (line 1 as printed, which may
             need more; M only reported against), or a policy
    blocks   (B_r, B_c), overrides `sizing`; M enforced
    enforce  whether to exceed M is an error, whatever `sizing` says: with False the run is counted
             all the same, and `run.sram.over` says by how much it exceeds M
    causal   key j is attended to if j ≤ i + N_k − N_q: aligned at the bottom right
    mask     boolean array that broadcasts to (..., N_q, N_k), True = attend, or a mask object
             (`flashsim.Causal`, `KeyPadding`, `QueryPadding`, `SlidingWindow`, `Dense`, `Tree`,
             `Bias`, `SoftCap`, `ALiBi`, combined with &). With `causal`, both must allow
    dropout_p, seed  drop attention weights with this probability; the mask is
                     `flashsim.dropout.keep_mask`
    gqa      how query heads that share a KV head run ("FlashAttention: Theory and Practice", "GQA
             Handling in FlashAttention"). "separate" (its option B): each on its own, streaming K
             and V of its KV head anew. "grouped" (option A): a group at once, as one problem of
             g·N_q queries whose row r is query r // g of the group's head r % g; B_r and
             `block_mask` count such rows. A tile of K and V that is loaded serves all rows on chip.
             So where K and V are the outer loop ("flash") they are read once a group, g times less.
             Where queries are ("q_outer", "split_kv") they are read ⌈g·N_q / B_r⌉ times a group in
             place of g·⌈N_q / B_r⌉: g times less for a row block that holds the whole group, as in
             decoding, and no less where B_r divides N_q
    layout   "BHND": as above. "BNHD": Q, K, V and O, and their gradients, are (..., N, H, d), as
             flash-attn's kernels have them; masks and statistics stay as they are
    check_finite  refuse NaN and ∞. Without, they reach those queries only that attend to them
    observers  called with every memory event (`flashsim.memory.sram.Event`)
    on_head  called after each head with (heads done, heads in all)
    options  the algorithm's own, which its record declares
             (`flashsim.algorithms.FORWARD[name].options`) and its file explains

    Raises ValueError for arguments that make no sense, TypeError for unknown ones, `SramOverflow`
    where an enforced M is exceeded.
    """
    algorithm = resolve(name, "forward")
    policy = check_sizing(sizing, blocks, enforce)
    observers = check_observers(observers)
    on_head = check_callback("on_head", on_head)
    own = _options_of(forward, algorithm, options) if options or algorithm.options else {}
    check_finite = check_flag("check_finite", check_finite)
    Q, K, V = heads_first(layout, Q, K, V)
    with errors_with_layout(layout):
        plan = forward_plan(
            algorithm,
            own,
            policy,
            check_finite,
            Q,
            K,
            V,
            M=M,
            scale=scale,
            causal=causal,
            mask=mask,
            dropout_p=dropout_p,
            seed=seed,
            gqa=gqa,
        )
    try:
        outcome = simulate(plan, observers, None if on_head is None else _per_head(plan, on_head))
    except SramOverflow as error:
        note_what_fits(plan, error)
        raise
    run = finished(plan, outcome, layout)
    if plan.is_user_defined and outcome.cost:
        from flashsim.simulate.rehearsal import check_moved, check_on_shapes

        check_moved(plan, outcome.cost, outcome.matrices["O"])
        check_on_shapes(plan)
    return run


def backward(
    name: str | Algorithm,
    run: Result,
    dO: Any,
    *,
    M: Size | None = None,
    sizing: str | Sizing | None = None,
    blocks: tuple[int, int] | None = None,
    enforce: bool | None = None,
    check_finite: bool = True,
    observers: Sequence[Observer] = (),
    on_head: OnHead | None = None,
    **unknown: Unpack[NoOptions],
) -> Result:
    """Run the backward pass of `run`, which the algorithm of that name made, for the output
    gradient dO (..., H_q, N_q, d_v).

    name     of its backward pass (`flashsim.algorithms.BACKWARD`): the forward pass's own, or
             another's that belongs to it, as "q_outer_two_pass" does to "q_outer"; or an
             `Algorithm`
    dO       of O's shape, layout and dtype
    M, sizing, blocks, enforce  by default the forward pass's. "block_sparse" with a mask of tiles
                                keeps the blocks themselves

    Query heads that share a KV head are scheduled as in the forward pass, and dK, dV are sums over
    them. "grouped" has those sums on chip. "separate" has each query head write its own, "dK_parts"
    and "dV_parts", in the inputs' dtype; then a pass (`flashsim.algorithms.group_sum`) loads the g
    parts, adds them up in the chip's dtype, and writes dK and dV.

    Scores computed again in other tiles may be rounded to other numbers, 2(d + 4)·u·Σ|τ||q||k|
    apart at most (u: the chip's roundoff). Weights are kept at most 1 all the same, so gradients
    stay finite and within `reference.gradient_bounds`. Where that distance nears 1, as with float32
    at scores of 10⁵ and more, the bounds say that rounding decides the softmax.

    Returns dQ, dK, dV. Raises ValueError for arguments that make no sense, `SramOverflow` where an
    enforced M is exceeded.
    """
    check_how(backward, unknown, ())
    algorithm = resolve(name, "backward")
    observers = check_observers(observers)
    on_head = check_callback("on_head", on_head)
    run = check_run(algorithm, run)
    plan = backward_plan(algorithm, run, dO, M, sizing, blocks, enforce, check_finite)
    try:
        outcome = simulate(plan, observers, None if on_head is None else _per_head(plan, on_head))
    except SramOverflow as error:
        note_blocks_of_both(plan, error)
        raise
    gradients = gather_gradients(plan, outcome, observers, run.layout)
    if plan.is_user_defined and outcome.cost:
        from flashsim.simulate.rehearsal import check_gradients

        check_gradients(plan, outcome.cost)
    return gradients


def count(
    name: str | Algorithm | Callable[..., Any],
    problem: Problem | None = None,
    *,
    N: int | None = None,
    d: int | None = None,
    M: Size | None = None,
    N_q: int | None = None,
    N_k: int | None = None,
    d_v: int | None = None,
    heads: int = 1,
    kv_heads: int | None = None,
    dtype: Any = "float32",
    direction: str = "forward",
    sizing: str | Sizing = "fit",
    blocks: tuple[int, int] | None = None,
    enforce: bool | None = None,
    causal: bool = False,
    mask: Any = None,
    dropout_p: float = 0.0,
    gqa: str = "separate",
    observers: Sequence[Observer] = (),
    **options: Unpack[Options],
) -> Result:
    """Count what `forward` or `backward` would move, by running the same algorithm on shapes alone:
    no arithmetic.

    Give a `flashsim.Problem`, such as `run.problem`; or d, and N, or N_q and N_k where they differ;
    d_v defaults to d. `heads` are the query heads, batch included, of which heads / `kv_heads`
    share a KV head each, as `gqa` says; None: each has its own. Counts are those of one head (or
    group) times their number, so a mask must be one head's. `dtype` matters for bytes and for the
    default M (100 KB); `direction` is "forward" or "backward". Other arguments and errors as in
    `forward`.
    """
    algorithm = resolve(name, check_direction(direction))
    observers = check_observers(observers)
    before = algorithm if direction == "forward" else forward_of(algorithm)
    problem = Problem.from_arguments(
        problem,
        N=N,
        d=d,
        M=M,
        N_q=N_q,
        N_k=N_k,
        d_v=d_v,
        heads=heads,
        kv_heads=kv_heads,
        dtype=dtype,
        causal=causal,
        mask=mask,
        dropout_p=dropout_p,
        gqa=gqa,
    )
    plan = count_plan(
        algorithm,
        before,
        problem,
        _options_of(count, before, options) if options or before.options else options,
        check_sizing(sizing, blocks, enforce),
    )
    try:
        outcome = simulate(plan, observers)
    except SramOverflow as error:
        note_what_fits(plan, error)
        raise
    if plan.is_user_defined and outcome.cost:
        from flashsim.simulate.rehearsal import check_counted

        check_counted(before, plan, outcome.cost)
    return gather_tally(plan, problem.heads, outcome, observers)


def _per_head(plan: AttentionPlan, on_head: OnHead) -> OnLaunch:
    """Return what `simulate` calls after each launch, so that `on_head` learns how many there
    are in all.
    """
    launches = prod(plan.leading)
    return lambda number: on_head(number, launches)


def _options_of(
    function: Callable[..., Any], algorithm: Algorithm, options: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the algorithm's own options, checked."""
    return check_options(
        function, options, f"{algorithm.name!r} ({algorithm.title})", algorithm, FORWARD
    )


def check_run(algorithm: Algorithm, run: Any) -> Result:
    """Return the run whose backward pass is asked for. Raises ValueError for anything else, and
    for another algorithm's.
    """
    if (
        not isinstance(run, Result)
        or not isinstance(run.plan, AttentionPlan)
        or "O" not in run.arrays
    ):
        expected = f"what flashsim.forward({algorithm.forward_pass!r}, …) returned"
        kind = short_repr(run) if isinstance(run, Result) else f"a {type(run).__name__}"
        raise ValueError(f"run is {kind}; expected {expected}")
    if run.algorithm != algorithm.forward_pass:
        own = f"its backward pass is backward({run.algorithm!r}, …), if any"
        if run.algorithm in FORWARD.keys() - BACKWARD.keys():
            own = f"it has no backward pass; run {algorithm.forward_pass!r} forward, too"
        elif run.algorithm not in FORWARD:
            own = (
                f"expected the run of {algorithm.forward_pass!r}, or a backward pass, an "
                f"Algorithm, of={run.algorithm!r}"
            )
        raise ValueError(f"run was made by {run.algorithm!r}; {own}")
    return run

"""The first step: what users hand in becomes a `Task`, or a ValueError that names the argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flashsim.algorithms import BACKWARD
from flashsim.algorithms.blocks import Fit, Fixed, Paper, Sizing, Told
from flashsim.algorithms.record import OPERANDS, Algorithm
from flashsim.machine.memory import MemoryModelError
from flashsim.masks.rules import All, Head, as_mask
from flashsim.problem.arguments import (
    check_blocks,
    check_flag,
    check_gqa,
    check_p,
    check_scale,
    check_seed,
    is_one_of,
    shown,
)
from flashsim.problem.inputs import (
    check_backward_range,
    check_dO,
    check_inputs,
    check_M,
    check_range,
    said_heads_first,
    turned,
)
from flashsim.problem.shapes import Shape
from flashsim.run.results import Run
from flashsim.run.task import AttentionVariant, Lengths, Task

SIZINGS: dict[str, Sizing] = {"paper": Paper(), "fit": Fit()}


def forward_task(
    algorithm: Algorithm, Q: Any, K: Any, V: Any, M: Any, policy: Sizing, gqa: Any, check_finite: Any, layout: str,
    **variant: Any,
) -> Task:  # fmt: skip
    """Return the task of a forward pass, on copies of Q, K, V. `variant` is what `_variant` takes."""
    gqa, check_finite = check_gqa(gqa), check_flag("check_finite", check_finite)
    given = check_inputs(Q, K, V, check_finite=check_finite, layout=layout)
    with said_heads_first(layout):
        asked = _variant(algorithm, given.shape, given.leading, **variant)
    M = check_M(M, given.dtype.itemsize)
    if check_finite:
        stored, bias = given.dtype if algorithm.stores_scores else None, asked.mask.bias
        most, folded = 0.0 if bias is None else bias.largest, "tau" not in algorithm.parts
        check_range(given, asked.tau, asked.dropout_p, stored, most, folded)
    return Task(algorithm, given.copy(), asked, M, policy, gqa, check_finite)


def backward_task(
    algorithm: Algorithm, run: Any, dO: Any, M: Any, sizing: Any, blocks: Any, enforce: Any, check_finite: Any
) -> Task:
    """Return the task of a run's backward pass."""
    if not isinstance(run, Run):
        wanted = f"what flashsim.forward({algorithm.forward_pass!r}, …) returned"
        raise ValueError(f"run is a {type(run).__name__}; expected {wanted}")
    if run.algorithm != algorithm.forward_pass:
        own = f"backward({run.algorithm!r}, …), if any"
        raise ValueError(f"run was made by {run.algorithm!r}; its backward pass is {own}")
    check_finite = check_flag("check_finite", check_finite)
    task, variant, given = run.plan.task, run.variant, run.inputs
    _check_bias(algorithm, variant)
    O = turned("O", run.O, run.layout)
    gradient = check_dO(dO, O, check_finite=check_finite, layout=run.layout)
    M = task.M if M is None else check_M(M, given.dtype.itemsize)
    if check_finite:
        stored = given.dtype if "P" in algorithm.operands else None
        check_backward_range(given, O, gradient, variant.tau, variant.dropout_p, stored)
    chosen = sizing is not None or blocks is not None
    policy = check_sizing(("paper" if sizing is None else sizing) if chosen else task.sizing, blocks, enforce)
    if "block_mask" in algorithm.parts:
        if chosen:
            why = "keeps the forward pass's blocks, on which its mask is; leave sizing and blocks out"
            raise ValueError(f"{algorithm.name!r} {why}")
        policy = Fixed(run.blocks.B_r, run.blocks.B_c, policy.enforced)
    columns = {name: a[..., None] for name, a in (("l", run.l), ("m", run.m), ("L", run.lse)) if a is not None}
    more = {**columns, "O": O, "dO": gradient}
    task = replace(task, algorithm=algorithm, M=M, sizing=policy, check_finite=check_finite, more=more, saved=run.saved)
    missing = [name for name in task.needs if name not in {*OPERANDS, *more, *run.saved}]
    if missing:
        why = (
            f"which {run.algorithm!r} neither returned nor saved; expected it among `returns` or `saves` of that record"
        )
        raise MemoryModelError(f"{algorithm.name!r} ({algorithm.title}) takes {', '.join(missing)}, {why}")
    return task


def count_task(
    algorithm: Algorithm, of: Algorithm, given: Lengths, M: Any, policy: Sizing, gqa: Any, **variant: Any
) -> Task:
    """Return the task of one pass on shapes alone. `of` is the forward pass's record; `variant` is what `_variant` takes."""
    asked = _variant(of, given.shape, (), scale=None, seed=0, **variant)
    _check_bias(algorithm, asked)
    return Task(algorithm, given, asked, check_M(M, given.dtype.itemsize), policy, check_gqa(gqa), False)


def _variant(
    algorithm: Algorithm, shape: Shape, leading: Head, *,
    scale: Any, causal: Any, mask: Any, dropout_p: Any, seed: Any, options: Mapping[str, Any],
) -> AttentionVariant:  # fmt: skip
    tau, rule, p = check_scale(scale, shape.d), as_mask(mask, causal, shape, leading, options), check_p(dropout_p)
    for part, asked in (("MASK", not isinstance(rule, All)), ("dropout", p > 0)):
        if asked and part not in algorithm.parts:
            raise ValueError(f"{algorithm.name!r} ({algorithm.title}) has no {part.lower()}; 'flash' (Algorithm 2) has")
    return AttentionVariant(tau, rule, p, check_seed(seed), options)


def _check_bias(algorithm: Algorithm, variant: AttentionVariant) -> None:
    if variant.mask.bias is None or algorithm.direction == "forward":
        return
    if not algorithm.gives_dS:
        have = " or ".join(repr(name) for name, known in BACKWARD.items() if known.gives_dS)
        raise ValueError(f"{algorithm.name!r} ({algorithm.title}) makes no gradient of a bias; {have} does")


def check_sizing(sizing: Any, blocks: Any, enforce: Any = None) -> Sizing:
    """Return the policy that chooses the blocks: `sizing`, by name or as an object, or `blocks` where they are given.

    `enforce` says whether to exceed M is an error; None: what the policy says.
    """
    policy = SIZINGS[sizing] if is_one_of(sizing, SIZINGS) else sizing
    if isinstance(policy, str) or not callable(policy):
        raise ValueError(f"unknown sizing {shown(sizing)}; known: {', '.join(map(repr, SIZINGS))}, or a policy object")
    check_flag("sizing.enforced", getattr(policy, "enforced", None))
    given = check_blocks(blocks)
    policy = policy if given is None else Fixed(*given)
    return policy if enforce is None else Told(policy, check_flag("enforce", enforce))

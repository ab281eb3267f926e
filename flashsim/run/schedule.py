"""The second step: which problems a task comes to, and the blocks to run them with."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from flashsim.algorithms.blocks import Fixed, SizingProblem, clipped
from flashsim.checking import check_count, shown
from flashsim.memory import SramOverflow
from flashsim.records import Blocks
from flashsim.run.launch import launch
from flashsim.run.task import Lengths, Plan, Task


def schedule(task: Task) -> Plan:
    """Return the plan: each query head on its own, or, "grouped", those that share a KV head with their rows interleaved."""
    given, variant = task.given, task.variant
    plan = Plan(task, 1, given.shape, variant, given.leading, Blocks(1, 1, 1, 1))
    if task.gqa == "grouped" and given.group > 1:
        g, N_q, leading = given.group, given.shape.N_q, given.leading
        grouped = (*leading[:-1], leading[-1] // g) if leading else leading
        plan = replace(
            plan, group=g, shape=replace(given.shape, N_q=g * N_q), variant=variant.for_groups(g, N_q), leading=grouped
        )
    algorithm = task.algorithm
    sizes = task.sizing(
        SizingProblem(algorithm.name, plan.shape, task.M, algorithm.line_1, algorithm.rows, partial(_fits, plan))
    )
    if not isinstance(sizes, Blocks):
        raise ValueError(f"sizing returned {shown(sizes)}; expected flashsim.Blocks")
    B_r, B_c = check_count("sizing's B_r", sizes.B_r), check_count("sizing's B_c", sizes.B_c)
    return replace(plan, blocks=clipped(plan.shape, B_r, B_c))


def _fits(plan: Plan, blocks: Blocks, M: int) -> bool:
    """Say whether a launch with these blocks stays within M, by trying it on shapes alone, with every tile."""
    given = plan.task.given
    lengths = Lengths(given.shape, given.group, given.dtype)
    task = replace(plan.task, given=lengths, M=M, sizing=Fixed(1, 1))  # enforced
    try:
        launch(
            replace(plan, task=task, variant=replace(plan.variant, skips=False), blocks=blocks),
            (0,) * len(plan.leading),
        )
    except SramOverflow:
        return False
    return True

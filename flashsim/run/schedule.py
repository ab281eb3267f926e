"""The second step: which problems a task comes to, and the blocks to run them with."""

from __future__ import annotations

from dataclasses import replace

from flashsim.algorithms.blocks import Fixed, SizingProblem, clipped
from flashsim.machine.memory import SramOverflow
from flashsim.problem.arguments import check_count, shown
from flashsim.problem.shapes import Blocks
from flashsim.run.interleaving import grouped
from flashsim.run.launch import launch
from flashsim.run.task import AttentionVariant, Lengths, Plan, Task


def schedule(task: Task) -> Plan:
    """Return the plan: each query head on its own, or, "grouped", those that share a KV head with their rows interleaved."""
    given, variant, algorithm = task.given, task.variant, task.algorithm
    g, shape, leading = 1, given.shape, given.leading
    if task.gqa == "grouped" and given.group > 1:
        g, leading = given.group, (*leading[:-1], leading[-1] // given.group) if leading else leading
        variant = replace(variant, mask=grouped(variant.mask, g, shape.N_q), group=g)
        shape = replace(shape, N_q=g * shape.N_q)

    def plan(task: Task, blocks: Blocks, variant: AttentionVariant = variant) -> Plan:
        return Plan(task, g, shape, variant, leading, blocks)

    def fits(blocks: Blocks, M: int) -> bool:
        """Say whether a launch with these blocks stays within M, by trying it on shapes alone, with every tile."""
        lengths = Lengths(given.shape, given.group, given.dtype)
        enforced = replace(task, given=lengths, M=M, sizing=Fixed(1, 1))
        try:
            launch(plan(enforced, blocks, replace(variant, skips=False)), (0,) * len(leading))
        except SramOverflow:
            return False
        return True

    sizes = task.sizing(SizingProblem(algorithm.name, shape, task.M, algorithm.line_1, algorithm.rows, fits))
    if not isinstance(sizes, Blocks):
        raise ValueError(f"sizing returned {shown(sizes)}; expected flashsim.Blocks")
    B_r, B_c = check_count("sizing's B_r", sizes.B_r), check_count("sizing's B_c", sizes.B_c)
    return plan(task, clipped(shape, B_r, B_c))

"""The paper's algorithms and the practice built on them, one a file, and the tables of their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flashsim.algorithms import (
    algorithm_0_standard,
    algorithm_1_flash_basic,
    algorithm_2_flash,
    algorithm_3_standard_backward,
    algorithm_4_flash_backward,
    algorithm_5_block_sparse,
    algorithm_5_block_sparse_backward,
    appendix_b_memory_efficient,
    appendix_b_rabe_staats,
    q_outer,
    q_outer_backward,
    q_outer_backward_two_pass,
    small_cache,
    split_kv,
)
from flashsim.algorithms.blocks import paper_rows
from flashsim.memory import Matrix

OPERANDS = ("Q", "K", "V")
PARTS = ("tau", "MASK", "dropout")


@dataclass(frozen=True)
class Algorithm:
    """One pass: `run(hbm, sram, *operands, blocks, *parts)` returns matrices in HBM.

    operands       matrices it takes, by name
    parts          what else it takes, in order; without "tau", the scale is folded into Q; without "MASK" and "dropout",
                   it has neither
    returns        names of the matrices it returns
    saves          names of the matrices, besides those it returns, that its backward pass needs
    stores_scores  S is written to HBM, in the inputs' dtype, and must not overflow there
    after          for a backward pass: the forward pass that it belongs to, where that has another name
    line_1         (rows, d) -> (B_r, B_c)
    rows           (M, d, d_v) -> rows, for the paper's sizes; ValueError where M is too small
    """

    name: str
    title: str
    run: Callable[..., tuple[Matrix, ...]]
    line_1: Callable[[int, int], tuple[int, int]]
    rows: Callable[[int, int, int], int] = paper_rows
    operands: tuple[str, ...] = OPERANDS
    parts: tuple[str, ...] = PARTS
    returns: tuple[str, ...] = ("O", "l", "m")
    saves: tuple[str, ...] = ()
    stores_scores: bool = False
    after: str = ""

    @property
    def forward_pass(self) -> str:
        """The name of the forward pass: this one's, or that which it comes after."""
        return self.after or self.name


FORWARD = {
    a.name: a
    for a in (
        Algorithm(
            "standard",
            "Algorithm 0, standard attention",
            algorithm_0_standard.standard,
            algorithm_0_standard.line_1,
            parts=("MASK", "dropout"),
            returns=("O",),
            saves=("P", "P_dropped", "Z"),
            stores_scores=True,
        ),
        Algorithm(
            "flash_basic",
            "Algorithm 1, FlashAttention",
            algorithm_1_flash_basic.flash_basic,
            algorithm_1_flash_basic.line_1,
            parts=(),
        ),
        Algorithm(
            "flash",
            "Algorithm 2, FlashAttention, complete",
            algorithm_2_flash.flash,
            algorithm_2_flash.line_2,
            saves=("R",),
        ),
        Algorithm(
            "block_sparse",
            "Algorithm 5, block-sparse FlashAttention",
            algorithm_5_block_sparse.block_sparse,
            algorithm_5_block_sparse.block_sizes,
            parts=(*PARTS, "block_mask"),
            saves=("R",),
        ),
        Algorithm(
            "memory_efficient",
            "Appendix B.1, closed form",
            appendix_b_memory_efficient.memory_efficient,
            appendix_b_memory_efficient.block_sizes,
            returns=("O", "L"),
            saves=("R",),
        ),
        Algorithm(
            "rabe_staats",
            "Appendix B.5, Rabe and Staats",
            appendix_b_rabe_staats.rabe_staats,
            appendix_b_rabe_staats.block_sizes,
            saves=("R",),
        ),
        Algorithm(
            "q_outer",
            "FlashAttention, loops exchanged",
            q_outer.q_outer,
            q_outer.line_2,
            parts=(*PARTS, "live"),
            returns=("O", "L"),
            saves=("R",),
        ),
        Algorithm(
            "split_kv",
            "FlashDecoding",
            split_kv.split_kv,
            split_kv.line_2,
            parts=(*PARTS, "splits", "merge"),
            returns=("O",),
        ),
        Algorithm(
            "small_cache",
            "Saha and Ye, small cache",
            small_cache.small_cache,
            small_cache.line_2,
            small_cache.rows,
            returns=("O", "L"),
        ),
    )
}

GRADIENTS = ("dQ", "dK", "dV")

BACKWARD = {
    a.name: a
    for a in (
        Algorithm(
            "standard",
            "Algorithm 3, standard attention, backward",
            algorithm_3_standard_backward.standard_backward,
            algorithm_3_standard_backward.line_1,
            operands=("Q", "K", "V", "dO", "P", "P_dropped"),
            parts=("tau", "dropout"),
            returns=GRADIENTS,
        ),
        Algorithm(
            "flash",
            "Algorithm 4, FlashAttention, backward",
            algorithm_4_flash_backward.flash_backward,
            algorithm_4_flash_backward.line_2,
            operands=("Q", "K", "V", "O", "dO", "l", "m"),
            returns=GRADIENTS,
        ),
        Algorithm(
            "block_sparse",
            "Algorithm 5, block-sparse FlashAttention, backward",
            algorithm_5_block_sparse_backward.block_sparse_backward,
            algorithm_5_block_sparse_backward.line_2,
            operands=("Q", "K", "V", "O", "dO", "l", "m"),
            parts=(*PARTS, "block_mask"),
            returns=GRADIENTS,
        ),
        Algorithm(
            "memory_efficient",
            "Appendix B.2, closed form, backward",
            appendix_b_memory_efficient.memory_efficient_backward,
            appendix_b_memory_efficient.block_sizes,
            operands=("Q", "K", "V", "O", "dO", "L"),
            returns=GRADIENTS,
        ),
        Algorithm(
            "rabe_staats",
            "Appendix B.5, Rabe and Staats, backward",
            appendix_b_rabe_staats.rabe_staats_backward,
            appendix_b_rabe_staats.block_sizes,
            operands=("Q", "K", "V", "O", "dO", "l", "m"),
            returns=GRADIENTS,
        ),
        Algorithm(
            "q_outer",
            "FlashAttention, loops exchanged, backward, dQ accumulated",
            q_outer_backward.q_outer_backward,
            q_outer_backward.line_2,
            operands=("Q", "K", "V", "O", "dO", "L"),
            parts=(*PARTS, "live"),
            returns=GRADIENTS,
        ),
        Algorithm(
            "q_outer_two_pass",
            "FlashAttention, loops exchanged, backward in two passes",
            q_outer_backward_two_pass.q_outer_backward_two_pass,
            q_outer_backward_two_pass.line_2,
            operands=("Q", "K", "V", "O", "dO", "L"),
            parts=(*PARTS, "live"),
            returns=GRADIENTS,
            after="q_outer",
        ),
    )
}


def backward_passes(name: str) -> list[str]:
    """Return the names of the backward passes of a forward pass; none if it has none."""
    return [a.name for a in BACKWARD.values() if a.forward_pass == name]

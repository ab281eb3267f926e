"""The paper's algorithms, one a file, and the table of their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flashsim.algorithms import algorithm_0_standard, algorithm_1_flash_basic
from flashsim.memory import Matrix


@dataclass(frozen=True)
class Algorithm:
    """A forward pass: `run(hbm, sram, Q, K, V, blocks)` returns O and the statistics it keeps, by name in `returns`.

    `stores_scores`: S is written to HBM, in the inputs' dtype, and must not overflow there.
    """

    name: str
    title: str
    run: Callable[..., tuple[Matrix, ...]]
    line_1: Callable[[int, int], tuple[int, int]]
    returns: tuple[str, ...]
    stores_scores: bool


FORWARD = {
    a.name: a
    for a in (
        Algorithm(
            "standard",
            "Algorithm 0, standard attention",
            algorithm_0_standard.standard,
            algorithm_0_standard.line_1,
            ("O",),
            stores_scores=True,
        ),
        Algorithm(
            "flash_basic",
            "Algorithm 1, FlashAttention",
            algorithm_1_flash_basic.flash_basic,
            algorithm_1_flash_basic.line_1,
            ("O", "l", "m"),
            stores_scores=False,
        ),
    )
}

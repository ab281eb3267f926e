"""Bugs to look at: an algorithm with one change to its text, beside which the player shows the
correct one.
"""

from collections.abc import Callable
from typing import Any

from flashsim.algorithms import Algorithm
from flashsim.algorithms.own import resolve
from flashsim.tracing.planting import Change, planted

BUGS: dict[str, tuple[str, *tuple[Change, ...]]] = {
    "no_rescale": (
        "O is not rescaled when the maximum rises",
        ("l_i * exp(m_i - finite(m_i_new)) * O_i", "l_i * O_i"),
        ("l_i * exp(m_i - m_i_new) * O_i", "l_i * O_i"),
        ("exp(m_i - finite(m_i_new)) * O_i + product", "O_i + product"),
    ),
    "max_reset": (
        "the maximum starts anew in every tile",
        ("maximum(m_i, m_tilde_ij)", "m_tilde_ij + 0"),
        ("maximum(m_i, rowmax(S_masked_ij))", "rowmax(S_masked_ij)"),
    ),
    "no_mask": ("the mask is left out", ("MASK(S_ij, i, j)", "S_ij + 0")),
    "last_block": (
        "the last block of keys is dropped",
        ("sram.loop(blocks.T_c)", "sram.loop(blocks.T_c - 1)"),
    ),
}
"""What is wrong, and changes that make it so: the first whose text an algorithm has once is
made.
"""
BACKWARD_BUGS: dict[str, tuple[str, *tuple[Change, ...]]] = {
    "no_D": ("dS lacks D", ("gated(P_ij, dP_ij - D_i)", "gated(P_ij, dP_ij + 0)")),
    "no_tau": (
        "dQ lacks the factor τ",
        ("dQ_i + tau * product(dS_ij, K_j)", "dQ_i + product(dS_ij, K_j)"),
    ),
    "overwrite": (
        "dQ is overwritten, not added to",
        ("dQ_i + tau * product(dS_ij, K_j)", "tau * product(dS_ij, K_j) + 0"),
    ),
    "no_mask": BUGS["no_mask"],
    "last_block": BUGS["last_block"],
}


def with_bug(
    name: str | Algorithm | Callable[..., Any], bug: str, direction: str = "forward"
) -> Algorithm:
    """Return the algorithm with the bug of that name in it. `direction` says whether it is a
    forward or a backward pass.

    ValueError for a bug that is not known there, or that this algorithm's text has no place for,
    and for an algorithm that has no such pass.
    """
    known = BUGS if direction == "forward" else BACKWARD_BUGS
    if bug not in known:
        raise ValueError(f"unknown bug {bug!r} of a {direction} pass; known: {', '.join(known)}")
    algorithm, (what, *changes) = resolve(name, direction), known[bug]
    for change in changes:
        try:
            return planted(algorithm, change, what=what, name=bug)
        except ValueError:
            continue
    raise ValueError(f"bug {bug!r} ({what}) has no place in {algorithm.name!r}, {direction}")

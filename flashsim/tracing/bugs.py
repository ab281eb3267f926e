"""Bugs to look at: an algorithm with one change to its text, beside which the player shows the correct one."""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from flashsim.algorithms import BACKWARD, FORWARD


@dataclass(frozen=True)
class Bug:
    """What is wrong, and the change that makes it so: the first of `changes` whose text an algorithm has once."""

    what: str
    changes: Sequence[tuple[str, str]]


BUGS = {
    "no_rescale": Bug(
        "O is not rescaled when the maximum rises",
        (
            ("l_i * exp(m_i - finite(m_i_new)) * O_i", "l_i * O_i"),
            ("l_i * exp(m_i - m_i_new) * O_i", "l_i * O_i"),
            ("exp(m_i - finite(m_i_new)) * O_i + product", "O_i + product"),
        ),
    ),
    "max_reset": Bug(
        "the maximum starts anew in every tile",
        (
            ("maximum(m_i, m_tilde_ij)", "m_tilde_ij + 0"),
            ("maximum(m_i, rowmax(S_masked_ij))", "rowmax(S_masked_ij)"),
        ),
    ),
    "no_mask": Bug("the mask is left out", (("MASK(S_ij, i, j)", "S_ij + 0"),)),
    "last_block": Bug("the last block of keys is dropped", (("sram.loop(blocks.T_c)", "sram.loop(blocks.T_c - 1)"),)),
}

BACKWARD_BUGS = {
    "no_D": Bug("dS lacks D", (("gated(P_ij, dP_ij - D_i)", "gated(P_ij, dP_ij + 0)"),)),
    "no_tau": Bug("dQ lacks the factor τ", (("dQ_i + tau * product(dS_ij, K_j)", "dQ_i + product(dS_ij, K_j)"),)),
    "overwrite": Bug(
        "dQ is overwritten, not added to",
        (("dQ_i + tau * product(dS_ij, K_j)", "tau * product(dS_ij, K_j) + 0"),),
    ),
    "no_mask": BUGS["no_mask"],
    "last_block": BUGS["last_block"],
}


@contextmanager
def planted(name: str, bug: str, direction: str = "forward") -> Iterator[str]:
    """Have the algorithm `name` with `bug` among the known ones, under the name that is yielded.

    `direction` says whether it is the forward pass of that name, or the backward pass. ValueError for a bug that is not
    known there, or that this algorithm's text has no place for, and for an algorithm that has no such pass.
    """
    known_bugs, passes = (BUGS, FORWARD) if direction == "forward" else (BACKWARD_BUGS, BACKWARD)
    if bug not in known_bugs:
        raise ValueError(f"unknown bug {bug!r} of a {direction} pass; known: {', '.join(known_bugs)}")
    if name not in passes:
        raise ValueError(f"{name!r} has no {direction} pass; these have: {', '.join(map(repr, passes))}")
    algorithm = passes[name]
    module = sys.modules[algorithm.run.__module__]
    source = inspect.getsource(module)
    change = next((change for change in known_bugs[bug].changes if source.count(change[0]) == 1), None)
    if change is None:
        raise ValueError(f"bug {bug!r} ({known_bugs[bug].what}) has no place in {name!r}, {direction}")
    file = f"flashsim/algorithms/{module.__name__.rpartition('.')[2]} with {bug}.py"
    text = source.replace(*change)
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    scope: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(text, file, "exec"), scope)
    known = f"{name} with {bug}"
    run = scope[algorithm.run.__name__]
    title = f"{algorithm.title}: {known_bugs[bug].what}"
    passes[known] = replace(algorithm, title=title, run=run)
    try:
        yield known
    finally:
        del passes[known]

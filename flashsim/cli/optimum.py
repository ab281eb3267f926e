"""`flashsim prove --exact`: the optimum of a small problem, step by step."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flashsim.cli.outputs import finish, saved
from flashsim.support.tables import print_paragraphs, print_table, print_words, problem, sram

if TYPE_CHECKING:
    from flashsim.analysis.optima import Optimum
    from flashsim.tracing import Trace

SEARCHED = "Checked by machine, except the game's normal form, which is proved by hand."


def run_optimum(options: argparse.Namespace, problem: dict[str, Any]) -> int:
    """Search for the optimum, replay it, and show it. Ctrl-C shows the bounds so far."""
    from flashsim.analysis.optima import Optimum
    from flashsim.tracing import Recorder, traced

    found = Optimum(**problem)
    states, seconds = found.estimate
    if states:
        took = f"{seconds:,.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} minutes"
        took = "under a second" if seconds < 1 else took
        said = (
            f"Up to about {states:,} states to search, {took}; Ctrl-C stops with the best bounds "
            "so far."
        )
        print(said, file=sys.stderr, flush=True)
    try:
        found.run()
    except KeyboardInterrupt:
        _show_bounds(found)
        print_words(
            f"Stopped. The optimum is between {found.lower:,} and {found.upper:,} elements."
        )
        raise
    shape = found.shape
    lengths = (shape.N_q, shape.d), (shape.N_k, shape.d), (shape.N_k, shape.d_v)
    rng = np.random.default_rng(0)
    Q, K, V = (rng.normal(size=size).astype(found.dtype) for size in lengths)
    recorder = Recorder()
    played = found.replay(Q, K, V, observers=[recorder])
    off, trace = found.off(played), traced(recorder, played)
    if options.output is not None:
        replace(trace, about=replace(trace.about, command=options.command_line)).save(
            options.output
        )
    finish(
        options,
        {"command": options.command_line, **found.certificate()},
        lambda: _show(options, found, trace, off),
    )
    return 0


def _show_bounds(found: Optimum) -> None:
    allowed = "" if found.allowed.all() else f", {int(found.allowed.sum())} allowed pairs"
    print(f"One head, forward, {problem(**asdict(found.shape))}{allowed}")
    print(sram(found.M, found.dtype.itemsize, found.dtype.name) + "\n")
    rows = {
        "lower bound of the theorem's larger class": found.proof.bound.accesses,
        "compulsory: each row once, O and L written": found.compulsory,
    }
    if found.lower == found.upper:
        rows["optimum of the row game"] = found.upper
    else:
        rows |= {
            "no schedule of the row game moves less": found.lower,
            "best schedule found": found.upper,
        }
    best = found.proof.best
    for name, said in (("snake", "the snake"), ("q_outer", "uniform tiles")):
        tiles = found.tiles(name)
        if tiles is not None:
            rows[f"{said}: {name}, {tiles.blocks.B_r} × {tiles.blocks.B_c}"] = tiles.hbm.accesses
    if best is not None and best.algorithm not in ("snake", "q_outer"):
        rows[f"best schedule here: {best.algorithm}, {best.B_r} × {best.B_c}"] = best.accesses
    print_table(("", "elements moved"), rows.items())
    print()


def _show(options: argparse.Namespace, found: Optimum, trace: Trace, off: float) -> None:
    from flashsim.analysis.optima import CLASS

    _show_bounds(found)
    steps = []
    for number, (turn, moved) in enumerate(zip(found.schedule, found.moved, strict=True)):
        units = (" ".join(f"{X}{n}" for X, n in part) for part in (turn.evict, turn.load))
        steps.append((number, *units, " ".join(f"{i},{j}" for i, j in turn.products), moved))
    print_table(("turn", "evict =", "load =", "products =", "moved so far"), steps)
    end = trace.events[-1]
    print_paragraphs(
        "The schedule was replayed on the memory with random numbers, M enforced: "
        f"{end.reads + end.writes:,} elements were "
        f"counted, and O differs from naive attention's by at most {off:.2g} of its error bound.",
        f"No schedule of the row game moves less than {found.upper:,} elements: a search went "
        "through "
        f"{len(found.search.prices):,} states. --json writes a certificate, with which --check "
        "verifies this without a search. "
        "A proof by hand shows that the search misses no better schedule.",
        f"The class: {CLASS}",
    )
    best = found.proof.best
    if best is not None and best.accesses < found.upper:
        print_words(
            f"{best.algorithm} moves less: it keeps S, so it is not a schedule of this game."
        )
    if options.output is not None:
        print()
        saved(options.output, f", {len(trace.steps):,} steps")

"""`flashsim prove --exact`: the optimum of a small problem, step by step."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flashsim.cli.outputs import finish, print_saved
from flashsim.support.tables import print_paragraphs, print_table, print_words, problem, sram

if TYPE_CHECKING:
    from flashsim.analysis.optima import Optimum
    from flashsim.tracing import Trace

SEARCHED = "Checked by machine, except the game's normal form, which is proved by hand."


def run_optimum(options: argparse.Namespace, problem: dict[str, Any]) -> int:
    """Search for the optimum, replay it, and show it. Ctrl-C shows the bounds so far."""
    from flashsim.analysis.optima import Optimum
    from flashsim.tracing import Recorder, traced

    optimum = Optimum(**problem)
    _announce(optimum)
    try:
        optimum.run()
    except KeyboardInterrupt:
        _show_bounds(optimum)
        print_words(
            f"Stopped. The optimum is between {optimum.lower:,} and {optimum.upper:,} elements."
        )
        raise
    shape = optimum.shape
    rng = np.random.default_rng(0)
    Q = rng.normal(size=(shape.N_q, shape.d))
    K = rng.normal(size=(shape.N_k, shape.d))
    V = rng.normal(size=(shape.N_k, shape.d_v))
    recorder = Recorder()
    operands = [array.astype(optimum.dtype) for array in (Q, K, V)]
    replayed = optimum.replay(*operands, observers=[recorder])
    error = optimum.off(replayed)
    trace = traced(recorder, replayed)
    if options.output is not None:
        about = replace(trace.about, command=options.command_line)
        replace(trace, about=about).save(options.output)
    record = {"command": options.command_line, **optimum.certificate()}
    finish(options, record, lambda: _show(options, optimum, trace, error))
    return 0


def _announce(optimum: Optimum) -> None:
    """Print on stderr how many states there are to search, and how long that takes."""
    states, seconds = optimum.estimate
    if not states:
        return
    if seconds < 1:
        duration = "under a second"
    elif seconds < 120:
        duration = f"{seconds:,.0f} s"
    else:
        duration = f"{seconds / 60:,.0f} minutes"
    print(
        f"Up to about {states:,} states to search, {duration}; Ctrl-C stops with the best bounds "
        "so far.",
        file=sys.stderr,
        flush=True,
    )


def _show_bounds(optimum: Optimum) -> None:
    allowed = "" if optimum.allowed.all() else f", {int(optimum.allowed.sum())} allowed pairs"
    print(f"One head, forward, {problem(**asdict(optimum.shape))}{allowed}")
    print(sram(optimum.M, optimum.dtype.itemsize, optimum.dtype.name) + "\n")
    rows = {
        "lower bound of the theorem's larger class": optimum.proof.bound.accesses,
        "compulsory: each row once, O and L written": optimum.compulsory,
    }
    if optimum.lower == optimum.upper:
        rows["optimum of the row game"] = optimum.upper
    else:
        rows |= {
            "no schedule of the row game moves less": optimum.lower,
            "best schedule found": optimum.upper,
        }
    best = optimum.proof.best
    for name, title in (("snake", "the snake"), ("q_outer", "uniform tiles")):
        tiles = optimum.tiles(name)
        if tiles is not None:
            rows[f"{title}: {name}, {tiles.blocks.B_r} × {tiles.blocks.B_c}"] = tiles.hbm.accesses
    if best is not None and best.algorithm not in ("snake", "q_outer"):
        rows[f"best schedule here: {best.algorithm}, {best.B_r} × {best.B_c}"] = best.accesses
    print_table(("", "elements moved"), rows.items())
    print()


def _show(options: argparse.Namespace, optimum: Optimum, trace: Trace, error: float) -> None:
    from flashsim.analysis.optima import CLASS

    _show_bounds(optimum)
    steps = []
    for number, (turn, elements) in enumerate(zip(optimum.schedule, optimum.moved, strict=True)):
        evicted = " ".join(f"{X}{n}" for X, n in turn.evict)
        loaded = " ".join(f"{X}{n}" for X, n in turn.load)
        products = " ".join(f"{i},{j}" for i, j in turn.products)
        steps.append((number, evicted, loaded, products, elements))
    print_table(("turn", "evict =", "load =", "products =", "moved so far"), steps)
    end = trace.events[-1]
    print_paragraphs(
        "The schedule was replayed on the memory with random numbers, M enforced: "
        f"{end.reads + end.writes:,} elements were "
        f"counted, and O differs from naive attention's by at most {error:.2g} of its error bound.",
        f"No schedule of the row game moves less than {optimum.upper:,} elements: a search went "
        "through "
        f"{len(optimum.search.prices):,} states. --json writes a certificate, with which --check "
        "verifies this without a search. "
        "A proof by hand shows that the search misses no better schedule.",
        f"The class: {CLASS}",
    )
    best = optimum.proof.best
    if best is not None and best.accesses < optimum.upper:
        print_words(
            f"{best.algorithm} moves less: it keeps S, so it is not a schedule of this game."
        )
    if options.output is not None:
        print()
        print_saved(options.output, f", {len(trace.steps):,} steps")

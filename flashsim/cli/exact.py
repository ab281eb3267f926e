"""`flashsim prove --exact`: the optimum of a small problem, step by step."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

from flashsim.cli.outputs import finish
from flashsim.sizes import human_bytes

TOLD = 500  # states between two lines of progress


def run_exact(options: argparse.Namespace, problem: dict[str, Any]) -> int:
    """Search for the optimum, replay it, and show it; return 0. Ctrl-C shows the bounds so far, and goes on its way."""
    from flashsim.optima import Optimum

    found = Optimum(**problem)
    states, seconds = found.estimate
    print(f"Searching about {states:,} states, about {seconds:,} s. Ctrl-C: the bounds so far.", file=sys.stderr)
    try:
        found.run()
    except KeyboardInterrupt:
        _show_bounds(found)
        raise
    rng = np.random.default_rng(0)
    shape = found.shape
    sizes = (shape.N_q, shape.d), (shape.N_k, shape.d), (shape.N_k, shape.d_v)
    Q, K, V = (rng.normal(size=size).astype(found.dtype) for size in sizes)
    played = found.replay(Q, K, V, trace=options.output is not None)
    if options.output is not None:
        played.trace.save(options.output)
    finish(
        options, {"command": options.command_line, **found.certificate()}, lambda: _show(found, played, (Q, K, V))
    )
    if options.output is not None and options.json != "-":
        print(f"Saved {options.output} ({human_bytes(options.output.stat().st_size)}, {len(played.trace.steps):,} steps)")
    return 0

"""Traces of programs over devices, by the observer that traces all else: one device's run, with
a lane for each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

from flashsim.attention.arguments import check_count
from flashsim.attention.shapes import Blocks, Shape
from flashsim.devices.api import DevicesResult, exact, forward
from flashsim.tracing.about import trace_of
from flashsim.tracing.data import Lanes
from flashsim.tracing.recording import Recorder
from flashsim.tracing.steps import Recording
from flashsim.tracing.traces import Trace

FOLLOWS = (("m", ("N_q", "1")), ("l", ("N_q", "1")), ("O", ("N_q", "d_v")))


def trace(
    name: str,
    Q: Any,
    K: Any,
    V: Any,
    *,
    P: int,
    rank: int = 0,
    **options: Any,
) -> Trace:
    """Run `flashsim.devices.forward(name, Q, K, V, P=P, **options)` on one head; return device
    `rank`'s trace.

    Its page has a lane for each device: what its steps do, and messages, from the step that posts
    one to the step that has waited for it. The steps are each device's own, as if all ran side by
    side. Messages in flight at the step that is shown are thick. Raises ValueError as `forward`
    does, and for several heads.
    """
    check_count("rank", rank, 0, P - 1)
    recorders = [Recorder() for _ in range(P)]
    observers = [[recorder] for recorder in recorders]
    run = forward(name, Q, K, V, P=P, observers=observers, **options)
    if run.share.H_q > 1:
        raise ValueError(f"Q has {run.share.H_q} heads; a trace is of one head")
    traces = [_of(run, p, recorder) for p, recorder in enumerate(recorders)]
    return replace(traces[rank], lanes=lanes_of(rank, traces))


def lanes_of(rank: int, traces: Sequence[Recording]) -> Lanes:
    """Return what each device's steps do, and the messages: between two devices the first that
    is posted arrives first.
    """
    kinds = []
    posts: dict[Pair, list[_End]] = defaultdict(list)
    waits: dict[Pair, list[_End]] = defaultdict(list)
    for p, one in enumerate(traces):
        kinds.append(tuple(one.events[step.first].kind for step in one.steps))
        for step in one.steps:
            for event in one.of(step):
                name, _, way = event.name.partition("[")  # X[→2], or X[←2]
                if event.kind == "post":
                    posts[p, int(way[1:-1])].append(_End(step.number, name))
                elif event.kind == "wait":
                    waits[int(way[1:-1]), p].append(_End(step.number, name))
    messages = []
    for (sender, receiver), posted in posts.items():
        for post, wait in zip(posted, waits[sender, receiver], strict=True):
            messages.append((sender, post.step, receiver, wait.step, post.name))
    messages.sort(key=lambda message: message[1])
    return Lanes(rank, tuple(kinds), tuple(messages))


Pair = tuple[int, int]
"""Who sends a message, and who receives it."""


class _End(NamedTuple):
    """The step that posts a message, or has waited for it, and the array's name."""

    step: int
    name: str


def _of(run: DevicesResult, p: int, recorder: Recorder) -> Trace:
    """Return device p's own trace: its queries, and as many keys as it has at a time."""
    share = run.share
    of = run.share.problem.shape
    shape = Shape(len(share.queries[p]), share.most_rows, of.d, of.d_v)
    kinds: dict[str, tuple[str, str]] = {}
    assert recorder.sram is not None
    hbm = recorder.sram.hbm
    for array in hbm.traffic.by_array:
        width = hbm.matrix(array).shape[1]
        rows = "N_k" if array[0] in "KV" else "N_q"
        columns = {1: "1", of.d: "d"}.get(width, "d_v")
        if array[0] in "VO":
            columns = "d_v"
        kinds[array] = (rows, columns)
    return trace_of(
        recorder,
        run.plan.program,
        kinds,
        shape,
        SimpleNamespace(hbm=exact(run)[p].hbm, sram=SimpleNamespace(peak=None)),
        blocks=Blocks(share.B_r, share.B_c, N_q=shape.N_q, N_k=shape.N_k),
        M=share.problem.M,
        enforced=True,
        stored=share.problem.dtype.name,
        options=f"device {p} of {run.P}",
        follows=FOLLOWS,
    )

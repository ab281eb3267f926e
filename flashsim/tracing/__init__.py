"""The trace of a run: every event of the memory with its state, in a file or in a page on which a person steps through it.

trace = flashsim.trace("flash", Q, K, V, blocks=(3, 4))     # or forward(..., trace=True).trace
trace = flashsim.trace("flash", Q, K, V, dO=dO, M=64)       # its backward pass; or backward(..., trace=True).trace
trace.save("run.html")                                      # the player; also .json.gz, .npz, .perfetto.json
flashsim.load_trace("run.json.gz")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flashsim.algorithms.record import Algorithm
from flashsim.checking import check_array
from flashsim.inputs import check_inputs
from flashsim.tracing.lesson import Lesson, Moment
from flashsim.tracing.loading import load_trace
from flashsim.tracing.recording import About, Counts, Recorder, Trace, TraceEvent
from flashsim.tracing.steps import Step

__all__ = ["About", "Counts", "Lesson", "Moment", "Recorder", "Step", "Trace", "TraceEvent", "load_trace", "trace"]


def trace(
    name: str | Algorithm | Callable[..., Any],
    Q: Any,
    K: Any,
    V: Any,
    *,
    dO: Any = None,
    head: Any = None,
    **options: Any,
) -> Trace:
    """Run `flashsim.forward(name, Q, K, V, **options)` on one head, and return its trace; with dO, its backward pass's.

    dO    the output's gradient, (..., H_q, N_q, d_v): the trace is of `flashsim.backward(name, run, dO)`, where `run` is
          the forward pass, which is not recorded. `name` is then a backward pass's, "q_outer_two_pass" included, and
          blocks and M are the forward pass's
    head  an index into Q's leading axes, (0, 3) or 3; None where there is but one head. K and V are those of its
          KV head, and dK, dV are this head's part. Options must be one head's: a mask without leading axes

    Raises ValueError as `forward` and `backward` do, and for several heads without `head`.
    """
    from flashsim.algorithms.own import chosen
    from flashsim.api import backward, forward

    given = check_inputs(Q, K, V, check_finite=False)
    Q, K, V, dO = given.Q, given.K, given.V, None if dO is None else check_array("dO", dO)
    if dO is not None and dO.shape != (*Q.shape[:-1], V.shape[-1]):
        raise ValueError(f"dO has shape {dO.shape}; expected that of O, {(*Q.shape[:-1], V.shape[-1])}")
    if head is not None:
        at = _index(head, given.leading)
        Q, K, V, dO = Q[at], K[given.kv(at)], V[given.kv(at)], None if dO is None else dO[at]
    elif any(axis > 1 for axis in given.leading):
        raise ValueError(f"Q has leading axes {given.leading}; a trace is of one head: give head=")
    if dO is None:
        found = forward(name, Q, K, V, trace=True, **options).trace
    else:
        algorithm = chosen(name, "backward")
        found = backward(algorithm, forward(algorithm.forward_pass, Q, K, V, **options), dO, trace=True).trace
    assert found is not None
    return found


def _index(head: Any, leading: tuple[int, ...]) -> tuple[int, ...]:
    """Return a head's index into Q's leading axes."""
    at = tuple(head) if isinstance(head, tuple | list) else (head,)
    whole = all(isinstance(i, int | np.integer) and not isinstance(i, bool) for i in at)
    if not whole or len(at) != len(leading) or any(not 0 <= i < n for i, n in zip(at, leading, strict=True)):
        raise ValueError(f"head is {head!r}; expected an index into Q's leading axes {leading}, counted from 0")
    return at

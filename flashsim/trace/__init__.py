"""The trace of a run: every event of the memory with its state, in a file or in a page on which a person steps through it.

trace = flashsim.trace("flash", Q, K, V, blocks=(3, 4))     # or forward(..., trace=True).trace
trace = flashsim.trace("flash", Q, K, V, dO=dO, M=64)       # its backward pass; or backward(..., trace=True).trace
trace.save("run.html")                                      # the player; also .json.gz, .npz, .perfetto.json
flashsim.trace.load("run.json.gz")
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flashsim.algorithms.record import Algorithm
from flashsim.trace.lesson import Lesson, Moment
from flashsim.trace.loading import LARGEST_FILE
from flashsim.trace.loading import load as load_trace
from flashsim.trace.recording import About, Counts, Recorder, Trace, TraceEvent
from flashsim.trace.steps import Step

__all__ = ["About", "Counts", "Lesson", "Moment", "Recorder", "Step", "Trace", "TraceEvent", "trace"]


class Tracing:
    """`flashsim.trace`: call it to run an algorithm and record it; `flashsim.trace.load` reads a saved trace."""

    def __call__(
        self,
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

        Q, K, V = np.asarray(Q), np.asarray(K), np.asarray(V)
        dO = dO if dO is None else np.asarray(dO)
        if head is None:
            if any(axis > 1 for axis in Q.shape[:-2]):
                raise ValueError(f"Q has leading axes {Q.shape[:-2]}; a trace is of one head: give head=")
        else:
            at, shared = _one_head(Q, K, head)
            Q, K, V = Q[at], K[shared], V[shared]
            dO = dO if dO is None else dO[at]
        if dO is None:
            found = forward(name, Q, K, V, trace=True, **options).trace
        else:
            algorithm = chosen(name, "backward")
            found = backward(algorithm, forward(algorithm.forward_pass, Q, K, V, **options), dO, trace=True).trace
        assert found is not None
        return found

    @staticmethod
    def load(path: str | Path, *, max_bytes: int = LARGEST_FILE) -> Trace:
        """Read a trace from the .json.gz or .npz file that `Trace.save` wrote.

        max_bytes  the most that the file may unpack to, so that none fills the memory; by default 256 MB

        Raises ValueError, with the file's name and what is wrong, for any other file, and OSError where there is none.
        """
        return load_trace(path, max_bytes)


def _one_head(Q: Any, K: Any, head: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the head's index into Q's leading axes, and that of its KV head into K's."""
    at = tuple(head) if isinstance(head, tuple | list) else (head,)
    leading = Q.shape[:-2]
    if len(at) != len(leading) or any(not 0 <= i < n for i, n in zip(at, leading, strict=True)):
        raise ValueError(f"head is {head!r}; expected an index into Q's leading axes {leading}, counted from 0")
    return at, (*at[:-1], at[-1] * K.shape[-3] // leading[-1])


trace = Tracing()

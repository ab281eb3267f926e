"""The trace of a run: every event of the memory with its state, in a file or in a page on which a person steps through it.

trace = flashsim.trace("flash", Q, K, V, blocks=(3, 4))     # or forward(..., trace=True).trace
trace.save("run.html")                                      # the player; also .json.gz, .npz, .perfetto.json
flashsim.trace.load("run.json.gz")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from flashsim.trace.recording import About, Counts, Recorder, Trace, TraceEvent
from flashsim.trace.saving import load as load_trace
from flashsim.trace.steps import Step

__all__ = ["About", "Counts", "Recorder", "Step", "Trace", "TraceEvent", "trace"]


class Tracing:
    """`flashsim.trace`: call it to run an algorithm and record it; `flashsim.trace.load` reads a saved trace."""

    def __call__(self, name: str, Q: Any, K: Any, V: Any, *, head: Any = None, **options: Any) -> Trace:
        """Run `flashsim.forward(name, Q, K, V, **options)` on one head, and return its trace.

        head  an index into Q's leading axes, (0, 3) or 3; None where there is but one head. K and V are those of its
              KV head. Options must be one head's: a mask without leading axes

        Raises ValueError as `forward` does, and for several heads without `head`.
        """
        from flashsim.api import forward

        Q, K, V = np.asarray(Q), np.asarray(K), np.asarray(V)
        if head is None:
            if any(axis > 1 for axis in Q.shape[:-2]):
                raise ValueError(f"Q has leading axes {Q.shape[:-2]}; a trace is of one head: give head=")
        else:
            Q, K, V = _one_head(Q, K, V, head)
        found = forward(name, Q, K, V, trace=True, **options).trace
        assert found is not None
        return found

    @staticmethod
    def load(path: str | Path) -> Trace:
        """Read a trace from the .json.gz or .npz file that `Trace.save` wrote. ValueError for any other."""
        return load_trace(path)


def _one_head(Q: Any, K: Any, V: Any, head: Any) -> tuple[Any, Any, Any]:
    at = tuple(head) if isinstance(head, tuple | list) else (head,)
    leading = Q.shape[:-2]
    if len(at) != len(leading) or any(not 0 <= i < n for i, n in zip(at, leading, strict=True)):
        raise ValueError(f"head is {head!r}; expected an index into Q's leading axes {leading}, counted from 0")
    shared = (*at[:-1], at[-1] * K.shape[-3] // leading[-1])
    return Q[at], K[shared], V[shared]


trace = Tracing()

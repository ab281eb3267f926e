"""pdb, and debuggers made from it (ipdb, IPython's, Spyder's): `s` takes a line of an algorithm in
one step, where it would enter `sram.load` and NumPy.

Other debuggers, such as debugpy, are configured by their own files: docs/debug.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from bdb import Bdb
    from types import FrameType

MEMORY = f"{__package__}.*"
MEMORY_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
STEPPED_OVER = (
    MEMORY,
    "numpy",
    "numpy.*",
    # of Python's own modules, those that the memory calls
    "bisect",
    "collections",
    "contextlib",
    "dis",
    "inspect",
    "namedtuple_*",
    "threading",
    "typing",
)
"""Modules that `s` does not enter, as patterns of `bdb.Bdb`'s `skip`."""


_MONITORING: Any = getattr(sys, "monitoring", None)
"""By which pdb may follow a program from Python 3.14 on, without a trace function."""


def debugger_of(tracer: Any) -> Bdb | None:
    """Return the debugger of pdb's kind that follows the program here, by this trace function or by
    monitoring; None for no such one.
    """
    bdb = sys.modules.get("bdb")
    if bdb is None:
        return None
    owner: Any = getattr(tracer, "__self__", None)
    if _MONITORING is not None and _MONITORING.get_tool(_MONITORING.DEBUGGER_ID) is not None:
        frame: FrameType | None = sys._getframe()
        while frame is not None and not isinstance(owner, bdb.Bdb):
            owner = frame.f_locals.get("self")
            frame = frame.f_back
    return cast("Bdb", owner) if isinstance(owner, bdb.Bdb) else None


@contextmanager
def stepping_over_memory() -> Iterator[None]:
    """Let pdb not step into the memory meanwhile: the one that follows the program, unless it has
    breakpoints there, and one that `breakpoint()` starts.
    """
    tracer = sys.gettrace()
    debugger = None if tracer is None and _MONITORING is None else debugger_of(tracer)
    skip = None if debugger is None else debugger.skip
    if debugger is not None and not any(file.startswith(MEMORY_FOLDER) for file in debugger.breaks):
        debugger.skip = {*(skip or ()), *STEPPED_OVER}
    name = "" if sys.flags.ignore_environment else os.environ.get("PYTHONBREAKPOINT", "")
    starts_pdb = sys.breakpointhook is sys.__breakpointhook__ and name in ("", "pdb.set_trace")
    if starts_pdb:
        sys.breakpointhook = _start_pdb
    try:
        yield
    finally:
        # threads share the hook: only who has set it takes it back, and only Python's own returns
        if starts_pdb and sys.breakpointhook is _start_pdb:
            sys.breakpointhook = sys.__breakpointhook__
        tracer = sys.gettrace()
        if tracer is not None or _MONITORING is not None:
            debugger = debugger_of(tracer)  # which may have begun meanwhile
            if debugger is not None:
                debugger.skip = skip


def _start_pdb(*, header: str | None = None) -> None:
    """Start pdb in the frame that calls `breakpoint()`."""
    import pdb  # of which runs without breakpoints need none

    debugger = pdb.Pdb(skip=STEPPED_OVER)
    if header is not None:
        debugger.message(header)
    debugger.set_trace(sys._getframe(1))


def steps_over_memory(tracer: Any) -> bool:
    """Return whether a trace function is of a debugger that does not step into the memory now."""
    return MEMORY in (getattr(getattr(tracer, "__self__", None), "skip", None) or ())


def keep_following(tracer: Any) -> None:
    """Let pdb follow this thread, too, if the trace function is its: it is of the thread in which
    it began.
    """
    if debugger_of(tracer) is not None:
        sys.settrace(tracer)

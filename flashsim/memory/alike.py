"""Counting a user's algorithm: turns of a loop are counted in one go only where they were shown
to be alike.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from flashsim.memory.turns import Differs, SlowCountWarning, TooManyTurns, Watch

Result = TypeVar("Result")


def _is_debugged() -> bool:
    tracer = sys.gettrace()
    if tracer is not None and type(tracer).__module__.partition(".")[0] != "coverage":
        return True
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    return monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None


def count_alike(run: Callable[[Watch, Sequence[Any]], Result], observers: Sequence[Any]) -> Result:
    """Return what `run(watch, observers)` returns, with turns counted in one go only where they
    were shown to be alike.

    It runs as often as it takes to know which those are, and then, if there are observers, once
    more for them. An error is raised of a run whose turns all ran, unless it says that it
    `is_of_all_turns`: what does not fit on chip in some turns does not fit in all of them.
    """
    watch = Watch(runs=2 if observers else 1)
    if _is_debugged():  # by somebody who wants to see numbers
        watch.all_unlike = "a debugger follows it"
    while True:
        known = len(watch.unlike)
        watch.begin()
        try:
            result = run(watch, ())
            true = watch.end() and not watch.was_left_early()
        except Differs:
            true = watch.end()
            if len(watch.unlike) == known:  # by an index that an earlier attempt left somewhere
                watch.all_unlike = watch.all_unlike or "its loops could not be followed"
            continue
        except (TooManyTurns, SlowCountWarning):
            watch.end()
            raise
        except Exception as error:
            if not watch.end():  # it is what the user's code made of Differs
                continue
            is_of_all_turns = getattr(error, "is_of_all_turns", False)
            if not watch.shared or is_of_all_turns or type(error).__name__ == "BdbQuit":
                raise
            watch.all_unlike = (
                watch.all_unlike
                or f"it raises {type(error).__name__} where turns are counted in one go"
            )
            continue
        if true:
            break
    if not observers:
        return result
    watch.begin(final=True)
    try:
        result = run(watch, observers)
    except Differs:
        raise RuntimeError(
            f"{watch.unlike}: the function did something else when it ran again"
        ) from None
    finally:
        true = watch.end()
    return result

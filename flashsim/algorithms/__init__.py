"""The paper's algorithms and the practice built on them, one a file, collected by name.

`flashsim.algorithms()` lists them.

Each file in this folder that ends in a record, `ALGORITHM`, is one: nothing else has to
name it. Those in `with_sink/` are variants for problems with an attention sink.
"""

from __future__ import annotations

import sys
from types import ModuleType

from flashsim.algorithms.record import GRADIENTS as GRADIENTS
from flashsim.algorithms.record import Algorithm as Algorithm
from flashsim.algorithms.record import Direction
from flashsim.algorithms.rows import Row, Table
from flashsim.attention.options import Option
from flashsim.support.modules import records_of

FORWARD: dict[str, Algorithm] = {}
BACKWARD: dict[str, Algorithm] = {}
PASSES: dict[Direction, dict[str, Algorithm]] = {
    "forward": FORWARD,
    "backward": BACKWARD,
}

for _record in records_of(__name__, "ALGORITHM", Algorithm):
    PASSES[_record.direction][_record.name] = _record


def for_sink(forward: Algorithm) -> Algorithm:
    """Return what runs a forward pass on a problem with a sink: its variant among
    `with_sink.variants()`; or itself, if it takes the part `sink`.

    Raises ValueError where there is neither.
    """
    from flashsim.algorithms.with_sink import variants  # loaded where there is a sink

    if "sink" in forward.parts:
        return forward
    if FORWARD.get(forward.name) is forward and forward.name in variants():
        return variants()[forward.name]
    raise ValueError(
        f"{forward.name!r} ({forward.title}) takes no sink; expected one of these: "
        f"{', '.join(map(repr, variants()))}"
    )


def backward_passes(name: str) -> list[str]:
    """Return the names of the backward passes of a forward pass; none if it has
    none.
    """
    return [a.name for a in BACKWARD.values() if a.forward_pass == name]


def options() -> dict[str, list[tuple[str, Option]]]:
    """Return the options that algorithms declare: name -> (algorithm, option) of each
    that has it.
    """
    by_name: dict[str, list[tuple[str, Option]]] = {}
    for algorithm in FORWARD.values():
        for option in algorithm.options:
            by_name.setdefault(option.name, []).append((algorithm.name, option))
    return by_name


def table() -> Table:
    """Return all algorithms, as a table where it is shown; what
    `flashsim.algorithms()` returns.
    """
    return Table(
        Row(name, record, {back: BACKWARD[back] for back in backward_passes(name)})
        for name, record in FORWARD.items()
    )


class _Callable(ModuleType):
    """This package, which may be called: Python's reference lets a module's `__class__`
    be set to a class of one's own.

    Type checkers do not know of it: to them, `flashsim.algorithms.table()` is the same.
    """

    def __call__(self) -> Table:
        return table()


sys.modules[__name__].__class__ = _Callable

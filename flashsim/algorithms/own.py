"""An algorithm of the user's own: a plain function on the memory, or a record, wherever
a name is taken.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flashsim.algorithms import BACKWARD, FORWARD, PASSES
from flashsim.algorithms.blocks import unknown_loops
from flashsim.algorithms.record import (
    OPERANDS,
    SERVICES,
    Algorithm,
    Program,
    every_block,
)
from flashsim.algorithms.with_sink import variants
from flashsim.attention.arguments import is_one_of, short_repr
from flashsim.attention.options import Option
from flashsim.memory.source import note_line

SIGNATURE = "f(hbm, sram, Q, K, V, blocks)"
PARTS = ("tau", "MASK", "dropout", "live", "sink")
ARGUMENTS = frozenset(
    {
        "problem",
        "name",
        "what",
        "algorithms",
        "Q",
        "K",
        "V",
        "N",
        "N_q",
        "N_k",
        "d",
        "d_v",
        "M",
        "dtype",
        "heads",
        "kv_heads",
        "gqa",
        "direction",
        "sizing",
        "blocks",
        "enforce",
        "causal",
        "mask",
        "dropout_p",
        "seed",
        "scale",
        "layout",
        "check_finite",
        "observers",
        "on_head",
        "dO",
        "head",
        "least",
        "on_tried",
        "points",
        "jobs",
        "check",
        "on_points",
        "resume",
        "bound",
        "run",
        "given",
    }
)
"""What `forward`, `count`, `tune`, `sweep`, `trace` take themselves: a function's own
options have other names.
"""
RETURNS = (("O",), ("O", "L"), ("O", "l", "m"))
"""What a function may return, by the names of the matrices."""


def resolve(what: Any, direction: str) -> Algorithm:
    """Return the algorithm of that name; or that record, or that function, as an
    algorithm.

    A function is a forward pass `f(hbm, sram, Q, K, V, blocks)`, on the five verbs of
    `flashsim.memory.sram`, that returns the matrix O in HBM, or (O, L), or (O, l,
    m). Behind `blocks` it may take "tau", "MASK", "dropout", "live", "sink", by these
    names, as the algorithms here do (`flashsim.algorithms.parts`); without "tau", Q
    comes scaled. What else it takes there has a default, such as `window=128`: it is an
    option, `forward(f, …, window=64)`. Its blocks have the proportions of its closed
    form's line 1; without one, of `kv_outer_blocks` or `q_outer_blocks`
    (`flashsim.algorithms.blocks`), as it moves less.

    Backward, a function stands for the backward pass that goes with it, a record
    (`backward_of`).

    Raises ValueError for anything else, and for a record or name of the other
    direction.
    """
    passes: dict[str, Algorithm] = BACKWARD if direction == "backward" else FORWARD
    if isinstance(what, str) and what in passes:
        return passes[what]
    if isinstance(what, Algorithm):
        if (
            direction == "backward"
            and what.direction == "forward"
            and is_user_defined(what)
        ):
            return backward_of(what)
        if what.direction != direction:
            raise ValueError(
                f"{what.name!r} is a {what.direction} pass; expected a {direction} pass"
            )
        return what
    if isinstance(what, Program):
        raise ValueError(
            f"{what.name!r} is a {type(what).__name__}, not attention; "
            "flashsim.simulate.matrices.run_program runs a program on "
            "matrices, and count_program counts it"
        )
    if callable(what):
        return (
            algorithm_of(what)
            if direction == "forward"
            else backward_of(algorithm_of(what))
        )
    known = ", ".join(map(repr, passes))
    if is_one_of(what, FORWARD):
        both = ", ".join(repr(name) for name in passes if name in FORWARD)
        raise ValueError(
            f"{what!r} has no backward pass here; these have: {both}. Run one of them "
            "forward, too"
        )
    if is_one_of(what, BACKWARD):
        raise ValueError(
            f"{what!r} is a backward pass only, of {BACKWARD[what].forward_pass!r}"
        )
    yours = (
        "; of your own, pass the function itself, or its record"
        if isinstance(what, str) and ".py:" in what
        else ""
    )
    raise ValueError(f"unknown algorithm {short_repr(what)}; known: {known}{yours}")


def is_user_defined(algorithm: Algorithm) -> bool:
    """Return whether an algorithm is the user's, not flashsim's."""
    if algorithm is PASSES[algorithm.direction].get(algorithm.name):
        return False
    return algorithm is not variants().get(algorithm.name)


def backward_of(forward: Algorithm) -> Algorithm:
    """Return the backward pass that goes with a forward pass: flashsim's, or the user's
    record in the same file.

    Raises ValueError where there is none.
    """
    if forward.name in FORWARD:
        return resolve(forward.name, "backward")
    for record in _beside(forward):
        if record.direction == "backward" and record.forward_pass == forward.name:
            return record
    raise ValueError(
        f"{forward.name!r} has no backward pass: its file lacks one, a function g(hbm, "
        "sram, Q, K, "
        "V, O, dO, …, blocks, tau, …) "
        "that returns dQ, dK, dV, in a record, Algorithm(name=…, direction='backward', "
        f"of={forward.name!r}, run=g, line_1=…)"
    )


def forward_of(backward: Algorithm) -> Algorithm:
    """Return the forward pass that a pass goes with: itself, its record, flashsim's, or
    the user's own in the same file.

    That is a record of that name, or a function, by "FILE.py:NAME". Raises ValueError
    where there is none.
    """
    if backward.direction == "forward":
        return backward
    if isinstance(backward.of, Algorithm):
        return backward.of
    for record in _beside(backward):
        if record.direction == "forward" and record.name == backward.forward_pass:
            return record
    file, _, name = backward.forward_pass.rpartition(":")
    function = getattr(
        sys.modules.get(inspect.unwrap(backward.run).__module__), name, None
    )
    if inspect.isfunction(function) and Path(_file_of(function)).name == file:
        return algorithm_of(function)
    if backward.forward_pass not in FORWARD:
        raise ValueError(
            f"{backward.name!r} is the backward pass of {backward.forward_pass!r}, "
            "which is not "
            "known; expected its record: "
            "Algorithm(…, of=record)"
        )
    return FORWARD[backward.forward_pass]


def _beside(algorithm: Algorithm) -> list[Algorithm]:
    module = sys.modules.get(inspect.unwrap(algorithm.run).__module__)
    return (
        [record for record in vars(module).values() if isinstance(record, Algorithm)]
        if module
        else []
    )


def algorithm_of(function: Callable[..., Any]) -> Algorithm:
    """Return a function's record. Raises ValueError where its parameters are not those
    of `resolve`.
    """
    name = getattr(function, "__name__", type(function).__name__)
    file = _file_of(function)
    try:
        parameters = tuple(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # of a builtin type
        raise ValueError(
            f"{name} does not say what it takes; expected {SIGNATURE}"
        ) from None
    first = ("hbm", "sram", *OPERANDS, "blocks")
    names = tuple(each.name for each in parameters)
    own = [each for each in parameters[len(first) :] if each.name not in PARTS]
    if names[: len(first)] != first or any(each.default is each.empty for each in own):
        raise ValueError(
            f"{name} takes ({', '.join(names)}); expected {SIGNATURE}, and behind "
            "blocks any of "
            f"{', '.join(PARTS)}, and options "
            "with a default, such as window=128"
        )
    return Algorithm(
        name=f"{Path(file).name}:{name}",
        title=(inspect.getdoc(function) or name).splitlines()[0].rstrip("."),
        run=_Explained(
            function,
            tuple(each.name for each in parameters if each.kind is each.KEYWORD_ONLY),
        ),
        options=tuple(_option(name, each) for each in own),
        line_1=unknown_loops,
        rounds=every_block,
    )


def _option(name: str, parameter: inspect.Parameter) -> Option:
    """Return a parameter of a user's function as an option. Raises ValueError for a
    name that flashsim's functions take.
    """
    if parameter.name in ARGUMENTS or parameter.name in SERVICES:
        raise ValueError(
            f"{name} has an option {parameter.name!r}, which is an argument of "
            "flashsim's own; "
            "expected another name for it"
        )
    return Option(parameter.name, parameter.default, check=_as_it_is)


def _as_it_is(value: Any) -> Any:
    return value


def _file_of(function: Callable[..., Any]) -> str:
    try:
        return inspect.getsourcefile(function) or "?"
    except TypeError:
        return "?"


class _Explained:
    """A function of the user's; its errors, and Ctrl-C, say at which of its lines
    they occurred.
    """

    def __init__(self, function: Callable[..., Any], by_name: tuple[str, ...]) -> None:
        self._function = function
        self._by_name = by_name  # the last of its parameters
        self.__module__ = function.__module__
        self.__wrapped__ = function

    def __call__(self, *args: Any) -> Any:
        first = len(args) - len(self._by_name)
        named = dict(zip(self._by_name, args[first:], strict=True))
        try:
            return self._function(*args[:first], **named)
        except BaseException as error:  # sys.exit's, and Ctrl-C's, too
            note_line(error, self._function)
            raise

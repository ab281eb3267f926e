"""Options that one algorithm has and others lack: each is declared where the algorithm is, and checked for all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import signature
from typing import Any


@dataclass(frozen=True)
class Option:
    """An option `name=value`. `check` returns the value as a run takes it, or raises ValueError; `help` is a line on it.

    A value that is a mask (`flashsim.Mask`) joins the run's mask. `examples` are values that the tests try.
    """

    name: str
    default: Any
    check: Callable[[Any], Any]
    help: str = ""
    examples: tuple[Any, ...] = ()


def check_options(
    function: Callable[..., Any],
    given: Mapping[str, Any],
    whose: str,
    declared: Sequence[Option],
    known: Mapping[str, Sequence[Option]],
) -> dict[str, Any]:
    """Return a value for each declared option: the given one, checked, or the default.

    `function` was called with `given` for the algorithm `whose`; `known` holds the options of all algorithms. Another
    algorithm's option asks for nothing where it has its default. Else it is a ValueError, and an unknown name a TypeError.
    """
    own = {option.name: option for option in declared}
    values = {option.name: option.default for option in declared}
    for name, value in given.items():
        if name in own:
            values[name] = own[name].check(value)
            continue
        others = {who: option for who, options in known.items() for option in options if option.name == name}
        if not others:
            raise TypeError(_unknown(function, name, [*own, *(o.name for options in known.values() for o in options)]))
        if not any(value is o.default or (isinstance(value, str) and value == o.default) for o in others.values()):
            raise ValueError(f"{whose} takes no option {name}; {' or '.join(map(repr, others))} does")
    return values


def _unknown(function: Callable[..., Any], name: str, options: Sequence[str]) -> str:
    close = get_close_matches(name, [*signature(function).parameters, *options], 1)
    return f"{function.__name__} takes no argument {name!r}" + f"; did you mean {close[0]!r}?" * bool(close)

"""Options that one algorithm has and others lack: each is declared where the algorithm is, and
checked for all alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Protocol, TypedDict

from flashsim.attention.arguments import near


@dataclass(frozen=True)
class Option:
    """An option `name=value`. `check` returns the value as a run takes it, or raises ValueError;
    `help` is a line on it.

    `choices` are the values that have a name on the command line, by that name; without any, it
    takes whole numbers there. A value that is a mask (`flashsim.Mask`) joins the run's mask.
    `examples` are values that the tests try.
    """

    name: str
    default: Any = field(hash=False)
    check: Callable[[Any], Any]
    help: str = ""
    examples: tuple[Any, ...] = ()
    choices: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def is_default(self, value: Any) -> bool:
        """Whether the value asks for nothing."""
        return value is self.default or (isinstance(value, str) and value == self.default)


class Options(TypedDict, total=False):
    """The options of flashsim's own algorithms, each of whose records explains its own: for type
    checkers alone.

    One that an algorithm of the user's own declares is not here: to a type checker it is given as
    **{"name": value}.
    """

    block_mask: Any
    merge: str
    splits: int
    window: Any


class NoOptions(TypedDict):
    """For type checkers: a function takes only the keywords that it names. Others it accepts to
    say what was meant.
    """


class HasOptions(Protocol):
    """An algorithm's record, or its form."""

    @property
    def options(self) -> Sequence[Option]:
        """Its own options."""


def check_options(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    whose: str,
    own: HasOptions,
    known: Mapping[str, HasOptions],
) -> dict[str, Any]:
    """Return a value for each of its own options: the given one, checked, or the default.

    `function` was called with `arguments` for the algorithm `own`, which a message calls `whose`;
    `known` are all algorithms. Another one's option asks for nothing where it has its default; else
    it is a ValueError. An unknown name is a TypeError.
    """
    declared = {option.name: option for option in own.options}
    values = {name: option.default for name, option in declared.items()}
    for name, value in arguments.items():
        if name in declared:
            values[name] = declared[name].check(value)
            continue
        others = {
            who: option
            for who, each in known.items()
            for option in each.options
            if option.name == name
        }
        if not others:
            raise _unknown(
                function,
                name,
                [option.name for each in (own, *known.values()) for option in each.options],
            )
        if not any(option.is_default(value) for option in others.values()):
            raise ValueError(
                f"{whose} takes no option {name}; {' or '.join(map(repr, others))} does"
            )
    return values


def check_how(
    function: Callable[..., Any], arguments: Mapping[str, Any], known: Sequence[str]
) -> None:
    """Raise TypeError for a name in `arguments`, the further keywords of `function`, that is not
    among `known`.
    """
    for name in arguments:
        if name not in known:
            raise _unknown(function, name, known)


def _unknown(function: Callable[..., Any], name: str, known: Sequence[str]) -> TypeError:
    names = [*signature(function).parameters, *known]
    close = near(name, names) or near(name.rpartition("_")[2], names)  # attn_mask, softmax_scale
    hint = f"; did you mean {close!r}?" if close else ""
    if name == "backward" and "direction" in names:
        hint = "; did you mean direction='backward'?"
    if name == "trace":
        hint = "; flashsim.trace(…) returns a run's trace"
    return TypeError(f"{function.__name__} takes no argument {name!r}{hint}")

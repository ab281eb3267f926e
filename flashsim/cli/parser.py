"""The parser of one command: argparse's, with one list of options, one kind of error, and a help
text that fits the terminal.
"""

import argparse
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NoReturn

OPTIONS = "options"
POSITIONAL = "positional arguments"
TAKES_A_VALUE = ("store", "append", "extend")  # actions of argparse


class Parser(argparse.ArgumentParser):
    """argparse's parser of one command. `add` adds options; where argparse would print its usage
    and exit, this raises ValueError.

    summary   what the command does, a sentence
    examples  command lines, one below another, with remarks that are indented
    common    settings of options that several commands have, by name
    notes     what the help text says above the examples
    options   the options and positional arguments, without --help
    flags     how they are spelt, with --help
    sections  the options by the heading that they have in the help text
    """

    def __init__(
        self,
        prog: str,
        summary: str,
        examples: str = "",
        common: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
        **settings: Any,
    ) -> None:
        super().__init__(
            prog=prog, formatter_class=argparse.RawDescriptionHelpFormatter, **settings
        )
        self.summary = summary
        self.examples = examples
        self.common = common
        self.notes = ""
        self.options: list[argparse.Action] = []
        self.flags = ["-h", "--help"]
        self.sections: dict[str, list[argparse.Action]] = {}

    def add(self, *names: str, group: Any = None, own: bool = False, **changes: Any) -> None:
        """Add options, or positional arguments, in this order.

        The settings of each are those of `common`, overridden by `changes`. They are argparse's,
        and two more: `flags`, how the option is spelt, if not by its name alone; `former`, former
        names, which are still read. `type` may raise ValueError, whose message the user reads;
        argparse has a message of its own for that. `group` is one of argparse's groups of options.
        `own` is for an option that has only its name in `common`: it has no settings from there.
        """
        target = self if group is None else group
        for name in names:
            common = {} if own else self.common.get(name, {})
            settings = {**common, **changes}
            flags = settings.pop("flags", (name,))
            former = settings.pop("former", ())
            if settings.get("action", "store") in TAKES_A_VALUE:
                read = settings.get("type", str)
                settings["type"] = partial(read_value, read, settings.get("choices"))
            option = target.add_argument(*flags, **settings)
            heading = OPTIONS if name.startswith("-") else POSITIONAL
            if group is not None and group.title:
                heading = f"{group.title}. {group.description}"
            self.sections.setdefault(heading, []).append(option)
            self.options.append(option)
            self.flags += option.option_strings
            if former:
                settings["dest"] = option.dest
                settings["required"] = False
                settings["default"] = argparse.SUPPRESS
                settings["help"] = argparse.SUPPRESS
                self.options.append(target.add_argument(*former, **settings))
                self.flags += former

    def error(self, message: str) -> NoReturn:
        """Raise ValueError with argparse's message, and what the option takes."""
        for option in self.options:
            name = "/".join(option.option_strings) or option.metavar
            if message.startswith(f"argument {name}: expected ") and message.endswith(
                ("argument", "arguments")
            ):
                message += f": {_alternatives(option) or values_of(option)}"
            if not option.option_strings and message.endswith(f"required: {name}"):
                known = [*map(str, option.choices or ())]
                message += f", one of {', '.join(known)}" if len(known) > 1 else ""
        raise ValueError(message)

    def read(self, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Return the options of a command line, and the words that no option takes. Raises
        ValueError.
        """
        return self.parse_known_args(with_negative_values(words))

    def examples_text(self) -> str:
        """Return the examples as the help text shows them."""
        lines = map(_example, self.examples.splitlines())
        return self.notes + "examples:\n" + "\n".join(lines)

    def format_help(self) -> str:
        """Return the help text, in lines that the terminal holds."""
        self.description = self.description or wrapped(self.summary)
        self.epilog = self.epilog or self.examples_text()
        return super().format_help()

    def print_help(self, file: Any = None) -> None:
        """Print the help text. Unlike argparse's, this raises OSError where it cannot."""
        (file or sys.stdout).write(self.format_help())


def read_value(read: Callable[[str], Any], choices: Sequence[Any] | None, text: str) -> Any:
    """Return the value of an option. Raises argparse's error, with the message of `read`, or with
    the choices.
    """
    try:
        value = read(text)
    except (ValueError, TypeError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if choices is not None and value not in choices:
        known = f"expected one of {', '.join(map(str, choices))}"
        raise argparse.ArgumentTypeError(
            f"there is no {value!r}{suggestion(value, choices)}; {known}"
        )
    return value


def suggestion(word: object, known: Iterable[object]) -> str:
    """Return the end of a message, which names the known word that `word` is a slip of; nothing
    where none is near.
    """
    from flashsim.attention.arguments import near

    close = near(word, known)
    return f", perhaps you mean {close!r}" if close else ""


def with_negative_values(words: Sequence[str]) -> list[str]:
    """Return a command line in which an option and a value such as -1,2 or -inf are one word,
    --sink=-1,2.

    On its own, argparse takes such a value for an option; of numbers with a minus it knows only
    those like -3 and -0.5.
    """
    joined: list[str] = []
    for word in words:
        option = joined[-1] if joined else ""
        is_option = option.startswith("--") and option != "--" and "=" not in option
        if is_option and word.startswith("-") and _is_unknown_negative(word):
            joined[-1] = f"{option}={word}"
        else:
            joined.append(word)
    return joined


def _is_unknown_negative(word: str) -> bool:
    """Return whether a word with a minus is a value that argparse would take for an option."""
    if word[1:].isdigit():
        return False
    return word[1:2].isdigit() or word.startswith(("-.", "-inf"))


def invocation(option: argparse.Action) -> str:
    """Return how an option is called, as in the help text: `-o STEM, --output STEM`."""
    if not option.option_strings:
        return _name_of_value(option)
    values = values_of(option)
    return ", ".join(f"{flag} {values}".rstrip() for flag in option.option_strings)


def values_of(option: argparse.Action) -> str:
    """Return the values that an option takes, as in the help text: `SIZE`, `B_r B_c` or
    `N [N ...]`.
    """
    if option.nargs == 0:
        return ""
    if isinstance(option.metavar, tuple):
        return " ".join(option.metavar)
    name = _name_of_value(option)
    forms = {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} [{name} ...]"}
    return forms.get(str(option.nargs), name)


def _name_of_value(option: argparse.Action) -> str:
    if option.metavar is not None:
        return str(option.metavar)
    if option.choices is not None:
        return "{" + ",".join(map(str, option.choices)) + "}"
    return option.dest.upper()


def _alternatives(option: argparse.Action) -> str:
    """Return the choices in words, `fit or paper`; nothing where any value will do."""
    names = [*map(str, option.choices or ())]
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} or {names[-1]}"


def wrapped(text: str, line_end: str = "", indent: str = "") -> str:
    """Return text in lines that the terminal holds, each but the last with `line_end`, each but
    the first with `indent`.
    """
    columns = shutil.get_terminal_size().columns - 2
    width = max(11, columns) - len(line_end)  # 11 at least, as argparse
    lines = textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return f"{line_end}\n".join(lines)


def _example(line: str) -> str:
    """Return a line of the examples, wrapped: a command as the shell takes it, or a remark."""
    if line.startswith("flashsim "):
        return wrapped(f"  {line}", " \\", "      ")
    indent = " " * (2 + len(line) - len(line.lstrip()))
    return wrapped(f"{indent}{line.lstrip()}", "", indent)

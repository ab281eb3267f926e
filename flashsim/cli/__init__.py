"""The command line: `flashsim run`, `count` and the others of `PURPOSES`.

Each command is a module: SUMMARY, EXAMPLES, add_options(parser), and run(options), which returns 0,
or 1 where a claim or a check failed, and raises ValueError for what makes no sense. Results go to
stdout, progress and errors to stderr. `flashsim.support.entry` says what each exit status means.
"""

import argparse
import shutil
import sys
import textwrap
from collections.abc import Collection, Sequence
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from flashsim.algorithms import FORWARD
from flashsim.attention.inputs import DEFAULT_DTYPE
from flashsim.cli.outputs import check_outputs, slow_counts_in_one_line
from flashsim.cli.values import Parser, meant
from flashsim.support import forks
from flashsim.support.entry import guarded
from flashsim.support.files import command_line, name_of
from flashsim.support.forks import Ending
from flashsim.version import __version__

PURPOSES = {
    "start here": "run example",
    "learn": "lessons playground step exercise debug",
    "measure": "count sweep tune devices serve plot",
    "prove": "prove verify",
    "test your kernel": "check",
    "GPU": "gpu bench",
}
COMMANDS: dict[str, ModuleType] = {
    name: import_module(f"flashsim.cli.{name}")
    for names in PURPOSES.values()
    for name in names.split()
}
ROUTE = {
    "flashsim run": "what FlashAttention saves on real data, counted",
    "flashsim example prefill": "attention in tiles, every number shown",
    "flashsim lessons 3 --open": "Algorithm 1, played line by line",
    "flashsim playground --open": "what N, d, M and block sizes change",
    "flashsim exercise start 5": "write Algorithm 1's inner loop yourself",
}
"""The first ten minutes: what to type, and what it shows."""
ABOUT = (
    "FlashAttention on a simulated HBM and SRAM: real numbers, executed counts, an enforced "
    "capacity."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    program = (
        " ".join(["flashsim", *arguments[:1]])
        if set(arguments[:1]) & COMMANDS.keys()
        else "flashsim"
    )

    def work() -> int:
        if not arguments:
            print(_beginning())
            return 0
        options = parse(arguments)
        check_outputs(options)
        with slow_counts_in_one_line(program):
            status: int = COMMANDS[options.name].run(options)
        return status

    own = [each for each in arguments if ".py" in each] or (
        arguments[1:] if program == "flashsim check" else []
    )
    # what ends the user's own code leaves this process to say so
    if argv is None and own and forks.POSSIBLE:
        ending = forks.fork()
        if ending is not None:
            return guarded(program, lambda: _ended(arguments, own[0], ending))
    return forks.done(guarded(program, work))


def _ended(arguments: Sequence[str], own: str, ending: Ending) -> int:
    """Return the exit status of a fork. Raises ValueError if the user's own code ended it and
    left no case.
    """
    if ending.status is not None:
        return ending.status
    if ending.words:
        status: int = COMMANDS["check"].ended(parse(arguments), ending)
        return status
    raise ValueError(f"{own.rpartition('=')[2]} ended the process ({ending.how})")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command, with its `name` and `command_line`. Raises ValueError."""
    commands = parsers(arguments[:1])  # others need not know their options
    parser = commands.pop("")
    flags = _flags(commands[arguments[0]]) if arguments[0] in commands else []
    for text in takewhile(lambda text: text != "--", arguments[1:]) if flags else ():
        flag = text.partition("=")[0]
        if (
            flag.startswith("--")
            and " " not in text
            and not any(known.startswith(flag) for known in flags)
        ):
            _refuse([flag], flags)
    options, extra = parser.parse_known_args(arguments)
    if extra:
        _refuse(extra, flags)
    options.words = list(arguments)
    options.flags = flags
    options.command_line = command_line(["flashsim", *map(name_of, arguments)])
    return options


def _flags(command: argparse.ArgumentParser) -> list[str]:
    return [flag for action in command._actions for flag in action.option_strings]


def _refuse(unknown: Sequence[str], flags: Collection[str]) -> NoReturn:
    """Raise ValueError for arguments that a command with these options does not have, with what
    could be meant.
    """
    first = unknown[0]
    having = [name for name, command in parsers().items() if name and first in _flags(command)]
    if Path(first).suffix in (".npz", ".npy", ".safetensors") and "--qkv" in flags:
        instead = "; files of Q, K, V are given as --qkv FILE"
    elif first in FORWARD and "--algorithm" in flags:
        instead = f"; an algorithm is given as --algorithm {first}"
    else:
        instead = f"; {first} is for {', '.join(having)}" if having else meant(first, flags)
    raise ValueError(f"unrecognized arguments: {' '.join(unknown)}{instead}")


def parsers(whole: Collection[str] = tuple(COMMANDS)) -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command, those of these names with their options; under "" the
    one of them all.
    """
    parser = Parser(
        prog="flashsim",
        usage="flashsim [-h] [--version] COMMAND ...",
        description=f"{_wrapped(ABOUT, '', '')}\n\n{_by_purpose()}",
        epilog=_wrapped(
            f"Defaults: --dtype {DEFAULT_DTYPE}, --M 100KB, unless a command's help says "
            "otherwise. `flashsim` alone says "
            "where to begin, and `flashsim COMMAND --help` shows a command's options and examples.",
            "",
            "",
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"flashsim {__version__}")
    found: dict[str, argparse.ArgumentParser] = {"": parser}
    commands = parser.add_subparsers(
        prog="flashsim", required=True, metavar="COMMAND", help=argparse.SUPPRESS
    )
    for name, command in COMMANDS.items():
        found[name] = commands.add_parser(
            name,
            description=_wrapped(command.SUMMARY, "", ""),
            epilog="examples:\n" + "\n".join(map(_example, command.EXAMPLES.splitlines())),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        found[name].set_defaults(name=name)
        if name in whole:
            command.add_options(found[name])
    return found


def _beginning() -> str:
    width = max(map(len, ROUTE))
    route = "\n".join(f"  {command:{width}}  {shows}" for command, shows in ROUTE.items())
    return (
        f"{_wrapped(ABOUT, '', '')}\n\nBegin here; it takes ten minutes:\n\n{route}\n\nAll "
        "commands: flashsim --help"
    )


def _by_purpose() -> str:
    indent = " " * (4 + max(map(len, COMMANDS)))
    listed = ""
    for purpose, names in PURPOSES.items():
        listed += f"{purpose}:\n"
        for name in names.split():
            listed += (
                f"{_wrapped(f'  {name:{len(indent) - 2}}{COMMANDS[name].SUMMARY}', '', indent)}\n"
            )
        listed += "\n"
    return listed.rstrip()


def _wrapped(text: str, end: str, further: str) -> str:
    """Return text in lines that a terminal holds, each but the last with an `end`."""
    width = max(11, shutil.get_terminal_size().columns - 2) - len(end)  # 11 at least, as argparse
    lines = textwrap.wrap(
        text, width, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )
    return f"{end}\n".join(lines)


def _example(line: str) -> str:
    if line.startswith("flashsim "):
        return _wrapped(f"  {line}", " \\", "      ")
    indent = " " * (2 + len(line) - len(line.lstrip()))
    return _wrapped(f"{indent}{line.lstrip()}", "", indent)

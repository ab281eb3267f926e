"""The command line: `flashsim run`, `count` and the others of `COMMANDS`.

Each command is a module of this folder, with EXAMPLES, `add_options(parser)`, which adds its
options, and `run(options)`, which returns 0, or 1 where a claim or a check failed, and raises
ValueError for options that make no sense. Only the module of the command that is called is
imported. Results go to stdout, progress and errors to stderr. `flashsim.support.entry` says what
each exit status means.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from flashsim.cli.parser import Parser, suggestion, wrapped
from flashsim.support.entry import guarded
from flashsim.support.files import command_line, name_of
from flashsim.version import __version__

if TYPE_CHECKING:
    from flashsim.support.forks import Ending

PURPOSES = {
    "start here": {
        "run": "Run attention on real Q, K, V (bundled, or your own) and compare what each "
        "algorithm moves.",
        "example": "Print a worked example, step by step: causal attention in tiles, and what "
        "rounding does.",
    },
    "learn": {
        "lessons": "Write the lessons, pages that play an algorithm line by line with a text and "
        "questions, and their index.",
        "playground": "Write a page with sliders for lengths, d, M and blocks; it shows tiles, "
        "accesses and SRAM's use at once.",
        "step": "Record a run and write a page that plays it: line by line, forwards and "
        "backwards.",
        "exercise": "Learn by writing the algorithms yourself: exercises with holes, graded step "
        "by step, with hints.",
        "debug": "Stop in the debugger at a line of an algorithm, at the tile that you name.",
    },
    "measure": {
        "count": "Count what an algorithm moves, line by line, at any size, without computing it.",
        "sweep": "Count what algorithms move at every combination of many values, and write a "
        "table, CSV, JSON or a picture.",
        "tune": "Find the loop order and the block sizes that move the fewest elements and fit "
        "in M.",
        "devices": "Count what attention over several devices sends and moves; under torchrun or "
        "mpiexec, run it on real processes.",
        "serve": "Count what attention of a ragged batch moves: pages, shared prefixes, packed "
        "batches, schedules, latents.",
        "plot": "Draw a figure: PNG, SVG, and its data as JSON.",
    },
    "prove": {
        "prove": "Prove how many elements every schedule must move at least, and show how near "
        "the best schedule here comes.",
        "verify": "Check the paper's claims, and print the range tried, the measurement and the "
        "verdict of each.",
    },
    "test your kernel": {
        "check": "Check your attention kernel on cases that Hypothesis draws, and show the "
        "simplest case that fails.",
    },
    "GPU": {
        "gpu": "Say whether the GPU kernels can be compiled and run here, and what is missing.",
        "bench": "Time the GPU kernels against unfused attention and PyTorch's backends, "
        "interleaved in one run (needs a GPU).",
    },
}
"""The commands by purpose, each with what it does."""
COMMANDS = {name: summary for commands in PURPOSES.values() for name, summary in commands.items()}
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
DEFAULTS = (
    "Defaults: --dtype float32, --M 100KB, unless a command's help says otherwise. `flashsim` "
    "alone says where to begin, and `flashsim COMMAND --help` shows a command's options and "
    "examples."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments and arguments[0] in COMMANDS else ""
    program = f"flashsim {name}".rstrip()

    def work() -> int:
        return _run(program, arguments)

    user_code = _user_code(name, arguments) if argv is None else []
    if user_code:
        from flashsim.support import forks

        if forks.POSSIBLE:
            ending = forks.run(lambda: guarded(program, work))
            return guarded(program, lambda: _status(arguments, user_code[0], ending))
    return guarded(program, work)


def _user_code(name: str, arguments: Sequence[str]) -> list[str]:
    """Return the words of a command line that name code of the user's."""
    files = [word for word in arguments if ".py" in word]
    if name == "check" and not files:
        return [*arguments[1:]]
    return files


def _run(program: str, arguments: Sequence[str]) -> int:
    """Parse a command line and run its command."""
    if not arguments:
        print(_beginning())
        return 0
    options = parse(arguments)
    from flashsim.cli.outputs import check_outputs, slow_counts_in_one_line

    check_outputs(options)
    with slow_counts_in_one_line(program):
        status: int = options.run(options)
    return status


def _status(arguments: Sequence[str], user_code: str, ending: "Ending") -> int:
    """Return the exit status of the child process that ran the user's own code. Raises ValueError
    where that code ended the process, and no case is known.
    """
    if ending.status is not None:
        return ending.status
    if ending.words is not None:
        status: int = module_of("check").report_crash(parse(arguments), ending)
        return status
    raise ValueError(f"{user_code.rpartition('=')[2]} ended the process ({ending.how})")


def module_of(name: str) -> ModuleType:
    """Import the module of a command."""
    return import_module(f"flashsim.cli.{name}")


def parser_of(name: str) -> Parser:
    """Return the parser of a command."""
    from flashsim.cli.shared import OPTIONS

    module = module_of(name)
    parser = Parser(f"flashsim {name}", COMMANDS[name], module.EXAMPLES, OPTIONS)
    module.add_options(parser)
    parser.set_defaults(name=name, run=module.run)
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command, with its `name`, its function `run`, its `words`, and the
    `command_line` that they make. Raises ValueError.
    """
    name, *words = arguments
    if name not in COMMANDS:
        _, unknown = _parser_of_all().read(arguments)
        _refuse(unknown or [name], Parser("flashsim", ABOUT))
    parser = parser_of(name)
    # argparse would first say what else is wrong, such as a missing option
    if unknown := _unknown_flags(words, parser.flags):
        _refuse(unknown, parser)
    parser.set_defaults(
        words=list(arguments),
        command_line=name_of(command_line(["flashsim", *arguments])),
    )
    options, unknown = parser.read(words)
    if unknown:
        _refuse(unknown, parser)
    return options


def _unknown_flags(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Return the first option of a command line that is no option, nor the beginning of one, if
    there is one.
    """
    for word in words:
        if word == "--":
            break
        flag = word.partition("=")[0]
        if not flag.startswith("--") or " " in word or flag in flags:
            continue
        if not any(known.startswith(flag) for known in flags):
            return [flag]
    return []


def _refuse(unknown: Sequence[str], parser: Parser) -> NoReturn:
    """Raise ValueError for words that a command does not take, with what they may mean."""
    from flashsim.algorithms import FORWARD

    first = unknown[0]
    owners = [name for name in COMMANDS if first in parser_of(name).flags]
    if Path(first).suffix in (".npz", ".npy", ".safetensors") and "--qkv" in parser.flags:
        hint = "; files of Q, K, V are given as --qkv FILE"
    elif first in FORWARD and "--algorithm" in parser.flags:
        hint = f"; an algorithm is given as --algorithm {first}"
    elif owners:
        hint = f"; {first} is for {', '.join(owners)}"
    else:
        hint = suggestion(first, parser.flags)
    raise ValueError(f"unrecognized arguments: {' '.join(unknown)}{hint}")


class _ShowVersion(argparse.Action):
    """--version. Unlike argparse's, it raises OSError where it cannot print."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(f"flashsim {__version__}")
        parser.exit()


def _parser_of_all() -> Parser:
    """Return the parser of `flashsim --help` and `--version`, and of a command that there is
    not.
    """
    parser = Parser("flashsim", ABOUT, usage="flashsim [-h] [--version] COMMAND ...")
    parser.description = f"{wrapped(ABOUT)}\n\n{_by_purpose()}"
    parser.epilog = wrapped(DEFAULTS)
    shows = "show program's version number and exit"
    parser.add("--version", action=_ShowVersion, nargs=0, help=shows)
    parser.add("command", choices=[*COMMANDS], metavar="COMMAND", help=argparse.SUPPRESS)
    return parser


def _beginning() -> str:
    width = max(map(len, ROUTE))
    route = "\n".join(f"  {command:{width}}  {shows}" for command, shows in ROUTE.items())
    return (
        f"{wrapped(ABOUT)}\n\nBegin here; it takes ten minutes:\n\n{route}\n\nAll commands: "
        "flashsim --help"
    )


def _by_purpose() -> str:
    width = max(map(len, COMMANDS)) + 2
    indent = " " * (width + 2)
    sections = []
    for purpose, commands in PURPOSES.items():
        lines = [wrapped(f"  {name:{width}}{commands[name]}", "", indent) for name in commands]
        sections.append("\n".join([f"{purpose}:", *lines]))
    return "\n\n".join(sections)

"""The parsers of the commands: what argparse does not do by its public interface, and what they
import.
"""

import argparse
import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flashsim.attention.inputs import DEFAULT_DTYPE, DEFAULT_SRAM_BYTES
from flashsim.cli import COMMANDS, DEFAULTS, parse, parser_of
from flashsim.cli.parser import Parser, invocation, with_negative_values
from flashsim.learn.exercises import exercises
from flashsim.support.sizes import human_bytes
from tests.helpers.exercise_solutions import SOLUTIONS

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_is_called_as_the_help_text_says(name: str) -> None:
    parser = parser_of(name)
    lines = parser.format_help().splitlines()
    for option in parser.options:
        if option.help != argparse.SUPPRESS:
            called = f"  {invocation(option)}"
            assert any(line == called or line.startswith(f"{called}  ") for line in lines), called


@pytest.mark.parametrize(
    ("words", "joined"),
    [
        ("--sink -1,2", "--sink=-1,2"),
        ("--sink -inf --causal", "--sink=-inf --causal"),
        ("--scale -.5e1", "--scale=-.5e1"),
        ("--offset -3", "--offset -3"),  # which argparse knows
        ("--blocks -3 4", "--blocks -3 4"),
        ("--sink=-1 -1,2", "--sink=-1 -1,2"),
        ("-o -1,2", "-o -1,2"),
        ("-- -1,2", "-- -1,2"),
        ("--causal --sink", "--causal --sink"),
    ],
)
def test_a_negative_value_goes_with_its_option(words: str, joined: str) -> None:
    assert with_negative_values(words.split()) == joined.split()


def options_of_a_small_parser(*words: str) -> argparse.Namespace:
    common: dict[str, Any] = {
        "--M": {"type": int, "metavar": "SIZE", "former": ["--m"]},
        "--N": {"type": int},
    }
    parser = Parser("flashsim small", "Try options.", common=common)
    parser.add("--M", "--N")
    parser.add("--mode", choices=["fast", "slow"], default="fast")
    parser.add("--stem", flags=["-s", "--stem"], nargs=2, metavar=("A", "B"))
    options, unknown = parser.read(words)
    assert not unknown
    return options


def test_options_have_the_settings_that_they_share_and_former_names() -> None:
    options = options_of_a_small_parser("--m", "3", "--N", "4", "-s", "x", "y")
    assert vars(options) == {"M": 3, "N": 4, "mode": "fast", "stem": ["x", "y"]}
    assert options_of_a_small_parser().M is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--M", "argument --M: expected one argument: SIZE"),
        ("--m", "argument --m: expected one argument: SIZE"),
        ("--stem x", "argument -s/--stem: expected 2 arguments: A B"),
        ("--mode", "argument --mode: expected one argument: fast or slow"),
        (
            "--mode slw",
            "argument --mode: there is no 'slw', perhaps you mean 'slow'; expected one of fast, "
            "slow",
        ),
        (
            "--M three",  # the reader's own words, which argparse would drop
            "argument --M: invalid literal for int() with base 10: 'three'",
        ),
    ],
)
def test_an_error_says_what_an_option_takes(words: str, message: str) -> None:
    with pytest.raises(ValueError, match="argument") as error:
        options_of_a_small_parser(*words.split())
    assert str(error.value) == message


def test_the_defaults_that_the_help_text_names_are_those() -> None:
    size = human_bytes(DEFAULT_SRAM_BYTES).replace(" ", "")
    assert DEFAULTS.startswith(f"Defaults: --dtype {DEFAULT_DTYPE}, --M {size}, ")


def modules_after(*commands: str) -> set[str]:
    """The modules that a process has imported after these command lines."""
    code = "import sys\nfrom flashsim.cli import main\n"
    for command in commands:
        code += f"assert main({command.split()!r}) == 0\n"
    code += "print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_help_imports_no_command_and_not_numpy() -> None:
    modules = modules_after("--help", "--version", "")
    assert not {"numpy", "rich", *(f"flashsim.cli.{name}" for name in COMMANDS)} & modules


@pytest.mark.parametrize("command", ["count --N 8 --d 4", "example", "count --help"])
def test_only_the_command_that_is_called_is_imported(command: str) -> None:
    commands = {f"flashsim.cli.{name}" for name in COMMANDS}
    assert commands & modules_after(command) == {f"flashsim.cli.{command.split()[0]}"}


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    "command",
    [
        "lessons 1 -o pages",
        "devices ring --P 2 --N 8 --d 4 --M 1000",
        "devices --plan --P 2:4:2 --N 8 --d 4 --M 1000",
        "exercise check 05_inner_loop.py",
        "exercise check --hint 05_inner_loop.py",
        "step 05_inner_loop.py -o page.html",
        "plot blocks --N 32 --d 4 --M 512",
        "sweep flash --N 8 16 --d 4 --causal both",
        "tune --N 8 --d 4 --M 100",
    ],
)
def test_a_command_leaves_its_options_as_they_are(command: str) -> None:
    exercise = exercises()["inner_loop"]
    explanation, _, _ = exercise.starting_text().partition('\n"""\n')
    solution = f'{explanation}\n"""\n{SOLUTIONS["inner_loop"]}'
    Path(exercise.file).write_text(solution, encoding="utf-8")
    options = parse(command.split())
    before = copy.deepcopy(vars(options))
    assert options.run(options) == 0
    assert vars(options) == before

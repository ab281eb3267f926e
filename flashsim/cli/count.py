"""`flashsim count`: what an algorithm moves, line by line, at any size."""

import argparse
from typing import Any

from flashsim.cli.outputs import finish
from flashsim.cli.shared import (
    DEFAULT_ALGORITHM,
    LENGTHS,
    add,
    add_algorithm,
    add_declared,
    algorithm_in,
    problem_in,
)

SUMMARY = "Count what an algorithm moves, line by line, at any size, without computing it."
EXAMPLES = (
    "flashsim count --N 1024 --d 64\n"
    "flashsim count --N 1024 --d 64 --sizing paper\n"
    "flashsim count flash --backward --N 4096 --d 64 --causal --dropout 0.1\n"
    "flashsim count block_sparse --N 65536 --d 64 --block-mask butterfly\n"
    "flashsim count flash_basic --N 1048576 --d 128 --M 228KB --dtype bfloat16\n"
    "flashsim count flash --N 4096 --d 128 --heads 32 --kv-heads 8 --gqa grouped\n"
    "flashsim count q_outer --N 4096 --d 64 --causal --sink 0.5\n"
    "flashsim count split_kv --N-q 1 --N-k 65536 --d 128 --splits 16 --merge tree\n"
    "flashsim count standard --N 4096 --d 64 --heads 1024 --json -\n"
    "flashsim count mine.py:attention --N 1024 --d 64"
)


def add_options(parser: Any) -> None:
    add_algorithm(parser, DEFAULT_ALGORITHM)
    add(parser, *LENGTHS)
    add(parser, "--heads", default=1)
    add(parser, "--kv-heads", "--gqa")
    add(parser, "--backward", help="count the backward pass")
    add(
        parser,
        "--causal",
        "--offset",
        "--sink",
        "--dropout",
        "--M",
        "--sizing",
        "--blocks",
        "--json",
    )
    add_declared(parser)


def run(options: argparse.Namespace) -> int:
    from flashsim.analysis.verify import comparison
    from flashsim.cli import report

    arguments = problem_in(options, "sizing", "blocks", "heads", "kv_heads", "gqa", "dropout_p")
    counted = comparison.count_lines(algorithm_in(options, DEFAULT_ALGORITHM), arguments)
    finish(options, report.count_numbers(counted), lambda: report.print_count(counted))
    return 1 if counted.agrees is False else 0

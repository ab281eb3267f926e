"""`flashsim count`: what an algorithm moves, line by line, at any size; and what the kernels of a
user's function move.
"""

import argparse

from flashsim.cli.loading import Kernel, algorithm_or_kernel
from flashsim.cli.outputs import finish
from flashsim.cli.parser import Parser
from flashsim.cli.shared import (
    DEFAULT_ALGORITHM,
    LENGTHS,
    add_algorithm,
    add_declared,
    algorithm_named,
    algorithm_options,
    mask_of_file,
    one_sink,
    problem_arguments,
)

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
    "flashsim count mine.py:attention --N 1024 --d 64\n"
    "flashsim count kernel.py:attention --N 256 --d 64 --causal --M 100KB\n"
    "  A function f(q, k, v) of PyTorch's tensors: Triton's kernels run in Triton's interpreter, "
    "and operators are counted as if each read its operands and wrote its result once. The "
    "tensors are (1, heads, N, d), or (1, N, heads, d) with --layout BNHD; --option NAME=VALUE "
    "gives it an argument. A function without parameters is called as it is, and needs no --N and "
    "--d"
)


def add_options(parser: Parser) -> None:
    kernel = "; or a kernel of yours, FILE.py:FUNCTION"
    add_algorithm(parser, DEFAULT_ALGORITHM, read=algorithm_or_kernel, also=kernel)
    parser.add(*LENGTHS, required=False)
    parser.add(
        "--layout",
        choices=["BHND", "BNHD"],
        default="BHND",
        help="of a kernel's tensors: batch, heads, rows, width. Default: BHND",
    )
    parser.add("--heads", default=1)
    parser.add("--kv-heads", "--gqa")
    parser.add("--backward", help="count the backward pass")
    parser.add(
        "--causal",
        "--offset",
        "--mask",
        "--sink",
        "--dropout",
        "--M",
        "--sizing",
        "--blocks",
        "--no-enforce",
        "--json",
    )
    add_declared(parser)


def run(options: argparse.Namespace) -> int:
    from flashsim.analysis.verify import comparison
    from flashsim.cli import report

    what = algorithm_named(options, DEFAULT_ALGORITHM)
    if isinstance(what, Kernel):
        from flashsim.cli import kernel_report

        return kernel_report.run(options, what.function)
    if options.d is None:
        raise ValueError("the following arguments are required: --d")
    names = ("sizing", "blocks", "heads", "kv_heads", "gqa", "dropout_p")
    sink = one_sink(options)
    mask = None if options.mask is None else mask_of_file(options.mask)
    arguments = problem_arguments(options, *names, sink=sink, mask=mask)
    if options.enforce is not None:
        arguments["enforce"] = options.enforce
    arguments |= algorithm_options(options, [options.named, options.algorithm])
    counted = comparison.count_lines(what, arguments)
    finish(options, report.count_numbers(counted), lambda: report.print_count(counted))
    return 1 if counted.agrees is False else 0

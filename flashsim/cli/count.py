"""`flashsim count`: what an algorithm moves, line by line, at any size."""

from __future__ import annotations

import argparse
from typing import Any

from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.cli.shared import (
    BLOCK_MASKS,
    add_block_mask,
    add_causal,
    add_dropout,
    add_gqa,
    add_json,
    add_lengths,
    add_sizing,
    add_splits,
    check_outputs,
    elements,
    whole,
    write_json,
)
from flashsim.inputs import float_dtype

SUMMARY = "Count what an algorithm moves, line by line, at any size, without computing it."
EXAMPLES = (
    "flashsim count --N 1024 --d 64\n"
    "flashsim count flash --backward --N 4096 --d 64 --causal --dropout 0.1\n"
    "flashsim count block_sparse --N 65536 --d 64 --block-mask butterfly\n"
    "flashsim count flash_basic --N 1048576 --d 128 --M 228KB --dtype bfloat16\n"
    "flashsim count flash --N 4096 --d 128 --heads 32 --kv-heads 8 --gqa grouped\n"
    "flashsim count split_kv --N_q 1 --N_k 65536 --d 128 --splits 16 --merge tree\n"
    "flashsim count standard --N 4096 --d 64 --heads 1024 --json -"
)


def add_options(parser: Any) -> None:
    """Add the command's options to its parser."""
    parser.add_argument(
        "algorithm",
        nargs="?",
        choices=list(dict.fromkeys([*FORWARD, *BACKWARD])),
        metavar="NAME",
        default="flash_basic",
        help=f"of {', '.join(FORWARD)}; with --backward also q_outer_two_pass. Default: flash_basic",
    )
    add_lengths(parser)
    parser.add_argument("--heads", type=whole(), default=1, metavar="H", help="batch × query heads; the counts add up")
    parser.add_argument("--kv-heads", type=whole(), metavar="H", help="batch × KV heads, where query heads share them")
    add_gqa(parser)
    add_splits(parser)
    parser.add_argument("--backward", action="store_true", help="count the backward pass")
    add_causal(parser)
    add_dropout(parser)
    add_block_mask(parser)
    add_sizing(parser, "Default: 100KB")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command; return 0 if theory says the same, else 1. Raises ValueError."""
    from flashsim import report

    check_outputs(options)
    arguments = {name: getattr(options, name) for name in ("N", "N_q", "N_k", "d", "d_v", "dtype", "sizing")}
    arguments |= {name: getattr(options, name) for name in ("heads", "kv_heads", "gqa", "causal", "splits", "merge")}
    arguments["M"] = elements(options.M, float_dtype(options.dtype).itemsize)
    arguments["blocks"] = None if options.blocks is None else tuple(options.blocks)
    arguments["direction"] = "backward" if options.backward else "forward"
    arguments["dropout_p"] = options.dropout
    arguments["block_mask"] = BLOCK_MASKS.get(options.block_mask)
    counted = report.count_lines(options.algorithm, arguments)
    write_json(options.json, counted.as_json())
    if options.json != "-":
        report.print_count(counted)
    return 0 if counted.agrees else 1

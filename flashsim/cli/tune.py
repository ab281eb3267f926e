"""`flashsim tune`: the loop order and the block sizes that move the fewest elements and fit."""

import argparse
from collections.abc import Mapping
from typing import Any

from flashsim.attention.inputs import float_dtype
from flashsim.cli.loading import algorithm
from flashsim.cli.outputs import finish, progress
from flashsim.cli.parser import Parser
from flashsim.cli.shared import (
    BOTH,
    LENGTHS,
    add_own_options,
    own_option_values,
    problem_arguments,
)
from flashsim.cli.values import whole
from flashsim.support.tables import print_paragraphs, print_table, print_words, problem, sram

EXAMPLES = (
    "flashsim tune --N 1024 --d 64\n"
    "flashsim tune --N 4096 --d 128 --M 228KB --dtype float16 --causal --least 16\n"
    "flashsim tune --N 1024 --d 64 --M 2000\n"
    "flashsim tune --N 1024 --d 64 --backward --json -\n"
    "flashsim tune mine.py:attention rabe_staats --N 1024 --d 64"
)


def add_options(parser: Parser) -> None:
    which = f"try these too: {BOTH}"
    parser.add("named", nargs="*", type=algorithm, metavar="NAME", help=which)
    parser.add(*LENGTHS, "--M")
    parser.add("--algorithm", nargs="+", default=[], help="the same as NAME")
    parser.add("--backward", help="tune the backward pass")
    parser.add(
        "--causal",
        help="causal: query i attends to keys j ≤ i + N_k − N_q; empty tiles are skipped",
    )
    parser.add("--offset", "--dropout")
    fewest = (
        "least rows and columns of a tile; the model allows 1, but matrix units want 16. Default: 1"
    )
    parser.add("--least", type=whole(), default=1, metavar="B", help=fewest)
    add_own_options(parser)
    parser.add("--json", "--quiet")


def run(options: argparse.Namespace) -> int:
    from flashsim.analysis.tune import tune

    algorithms = [*options.named, *options.algorithm]
    problem = problem_arguments(options, "dropout_p", "least")
    own = own_option_values(options.option, algorithms)
    with progress(options) as update:
        tuned = tune(**problem, **own, algorithms=algorithms, on_tried=update)
    finish(
        options,
        {"command": options.command_line, **tuned.to_dict()},
        lambda: print_tuned(tuned, options.dtype),
    )
    return 0


def print_tuned(tuned: Any, dtype: str) -> None:
    """Print each loop order's best beside what its line 1 chooses, and the best of all."""
    shape = tuned.shape
    M = tuned.M
    sizes = problem(shape.N_q, shape.N_k, shape.d, shape.d_v)
    causal = ", causal" if tuned.causal else f", {tuned.mask}" if tuned.mask else ""
    print(f"One head, {tuned.direction}, {sizes}{causal}")
    print(sram(M, float_dtype(dtype).itemsize, dtype))
    once = {
        "forward": "Q, K, V read once, O written",
        "backward": "Q, K, V, dO read once, dQ, dK, dV written",
    }
    print(f"Compulsory: {tuned.compulsory:,} elements ({once[tuned.direction]})")
    if tuned.bound is not None:
        print(f"Lower bound: {tuned.bound:,} elements; no schedule moves less (flashsim prove)")
    print()
    _print_choices(tuned, tuned.by_loops)
    if tuned.paper:
        print("\nThe same with the blocks of line 1 of each:\n")
        _print_choices(tuned, tuned.paper)
    best = tuned.best
    summary = (
        f"Fewest: {best.algorithm} ({best.loops}) with tiles of {best.blocks.B_r:,} × "
        f"{best.blocks.B_c:,}. "
        f"It moves {best.accesses / tuned.compulsory:.2f} × the compulsory traffic"
    )
    if tuned.bound is not None:
        summary += f", {best.accesses / tuned.bound:.3f} × the lower bound"
    paper = tuned.paper.get("flash")
    if paper is not None:
        ratio = f"{paper.accesses / best.accesses:.2f} × as much"
        summary += f", and the paper's choice, its loops with line 1's blocks, {ratio}"
        if paper.peak > M:
            summary += f", in blocks that need {paper.peak / M:.0%} of M"
    print_paragraphs(summary + ".")
    smallest_side = min(best.blocks.B_r, best.blocks.B_c)
    if smallest_side < 8 <= min(shape.N_q, shape.N_k):
        print_words(
            "In the model a tile of one row costs nothing extra; --least 16 asks for tiles that a "
            "matrix unit likes."
        )


def _print_choices(tuned: Any, by_name: Mapping[str, Any]) -> None:
    rows = []
    for name, choice in by_name.items():
        rows.append(
            (
                name,
                choice.loops,
                f"{choice.blocks.B_r:,} × {choice.blocks.B_c:,}",
                choice.accesses,
                f"{choice.accesses / tuned.compulsory:.2f}",
                f"{choice.peak / tuned.M:.0%}",
            )
        )
    print_table(("name", "loops", "B_r × B_c", "accesses", "×\ncompulsory", "peak\nof M"), rows)

"""`flashsim step`: record a run, and go through it step by step, in a page or in the terminal."""

from __future__ import annotations

import argparse
import webbrowser
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.cli.shared import (
    BLOCK_MASKS,
    add_block_mask,
    add_blocks,
    add_causal,
    add_dropout,
    add_qkv,
    add_seed,
    check_outputs,
    elements,
    output,
    size,
    whole,
)
from flashsim.files import write_whole

SUMMARY = "Record a run and write a page that plays it: line by line, forwards and backwards."
EXAMPLES = (
    "flashsim step --open\n"
    "flashsim step --algorithm flash --n 12 --d 4 --blocks 3 4 --causal\n"
    "flashsim step --qkv mine.npz --head 3 --blocks 32 32 -o head3.html\n"
    "flashsim step --causal --vs q_outer\n"
    "flashsim step --algorithm flash --bug no_rescale\n"
    "flashsim step --backward --algorithm flash --open\n"
    "flashsim step --backward --algorithm q_outer --vs q_outer_two_pass\n"
    "flashsim step --n 8 --d 2 --blocks 4 4 --text | less\n"
    "flashsim step --n 64 --d 16 -o run.perfetto.json"
)
N, D = 12, 4


def add_options(parser: Any) -> None:
    """Add the command's options to its parser."""
    algorithms = list(dict.fromkeys([*FORWARD, *BACKWARD]))
    parser.add_argument(
        "--algorithm",
        choices=algorithms,
        metavar="NAME",
        default="flash",
        help=f"of {', '.join(algorithms)}. Default: flash",
    )
    parser.add_argument(
        "--backward",
        action="store_true",
        help=f"its backward pass, for a random dO; the forward pass before it is not shown. Of {', '.join(BACKWARD)}",
    )
    other = parser.add_mutually_exclusive_group()
    other.add_argument(
        "--vs", choices=algorithms, metavar="NAME", help="a second algorithm, shown beside the first at the same tile"
    )
    other.add_argument(
        "--bug",
        metavar="NAME",
        help="the same with a planted bug beside it: no_rescale, max_reset, no_mask, last_block; with --backward: no_D, "
        "no_tau, overwrite, no_mask, last_block",
    )
    add_inputs(parser)
    parser.add_argument("--text", action="store_true", help="print the steps in the terminal, and write no file")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument(
        "-o",
        "--output",
        type=output,
        metavar="FILE",
        help="the page, FILE.html; or the trace, .json.gz or .npz; or .perfetto.json. Default: flashsim-step.html",
    )


def add_inputs(parser: Any) -> None:
    """Add the options that say what one run is of: its operands, sizes and parts."""
    parser.add_argument("--n", type=whole(), help=f"sequence length of random Q, K, V. Default: {N}")
    parser.add_argument("--n-k", type=whole(), metavar="N", help="number of keys, where it differs from the queries'")
    parser.add_argument("--d", type=whole(), help=f"head dimension of random Q, K, V. Default: {D}")
    add_qkv(
        parser,
        "run on these Q, K, V, as in `flashsim run`",
        "the head of --qkv, an index into the leading axes",
    )
    add_blocks(parser, "block sizes. Default: line 1's for M")
    parser.add_argument(
        "--M",
        type=size,
        metavar="SIZE",
        help="SRAM size: elements, or bytes of the dtype (2KB); with --blocks, enforced. Default: for which line 1 takes "
        "blocks as large as --blocks, or a quarter of the keys",
    )
    add_causal(parser)
    add_dropout(parser)
    add_block_mask(parser)
    add_seed(parser, "random operands, and of dropout")


def run(options: argparse.Namespace) -> int:
    """Run the command and return 0. Raises ValueError for options that make no sense together."""
    from flashsim.tracing.saving import check_suffix, page_of
    from flashsim.tracing.text import lines

    second = options.vs or options.bug
    if options.text and (second or options.open or options.output):
        raise ValueError("--text prints one run; leave out --vs, --bug, --open and --output")
    output = options.output or Path("flashsim-step.html")
    if options.open and output.suffix != ".html":
        raise ValueError(f"--open shows a page; expected -o FILE.html, got {output}")
    if not options.text:
        check_outputs(options, output)
        check_suffix(output, "the comparison of two" if second else "")
    trace, versus = recorded(options)
    if options.text:
        print("\n".join(lines(trace)))
        return 0
    note = ""
    if output.suffix == ".html":
        page, note = page_of(trace, versus)
        write_whole(output, page)
    else:
        trace.save(output, versus=versus)
    print(f"Saved {output} ({output.stat().st_size / 1000:,.0f} kB, {len(trace.steps):,} steps)")
    if note:
        print(f"{note} All values: -o FILE.json.gz or .npz; fewer steps: larger --blocks.")
    if options.open:
        webbrowser.open(output.resolve().as_uri())
    return 0


def recorded(options: argparse.Namespace) -> tuple[Any, Any]:
    """Return the trace that was asked for, and the one beside it; None where there is none. Raises ValueError."""
    Q, K, V = operands(options)
    trace = _trace(options.algorithm, Q, K, V, options)
    if not (options.vs or options.bug):
        return trace, None
    return trace, _trace(options.vs or options.algorithm, Q, K, V, options, options.bug)


def operands(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Return Q (N_q, d), K (N_k, d), V (N_k, d_v): a head of --qkv, or random. Raises ValueError."""
    import numpy as np

    from flashsim import qkv

    if options.qkv:
        if options.n is not None or options.d is not None or options.n_k is not None:
            raise ValueError("--n, --n-k and --d are for random inputs; --qkv has sizes of its own")
        given = qkv.load_qkv(options.qkv).head(options.head)
        if given.heads > 1:
            raise ValueError(f"{given.source} has heads {given.Q.shape[:-2]}; expected one: give --head")
        return tuple(array.reshape(array.shape[-2:]) for array in (given.Q, given.K, given.V))  # type: ignore[return-value]
    if options.head is not None:
        raise ValueError("--head goes with --qkv")
    n, d = options.n or N, options.d or D
    keys = options.n_k or n
    rng = np.random.default_rng(options.seed)
    Q, K, V = (rng.standard_normal((rows, d), np.float32) for rows in (n, keys, keys))
    return 2 * Q, K, V  # scores of standard deviation 2, so that maxima move


def arguments(options: argparse.Namespace, Q: Any, K: Any, V: Any) -> dict[str, Any]:
    """Return what `flashsim.forward` takes besides the operands. Raises ValueError for sizes that make no sense."""
    import flashsim

    width = Q.shape[1] + V.shape[1]
    asked: dict[str, Any] = {"causal": options.causal, "dropout_p": options.dropout, "seed": options.seed}
    if options.blocks:
        B_r, B_c = options.blocks
        asked["M"] = 2 * width * max(B_r, B_c)
        asked["sizing"] = flashsim.Fixed(B_r, B_c, enforced=options.M is not None)
    else:
        asked["M"] = 2 * width * max(-(-K.shape[0] // 4), 1)
    asked["M"] = elements(options.M, Q.dtype.itemsize, asked["M"])
    asked["block_mask"] = BLOCK_MASKS.get(options.block_mask)
    return asked


def _trace(
    name: str,
    Q: Any,
    K: Any,
    V: Any,
    options: argparse.Namespace,
    bug: str | None = None,
) -> Any:
    import numpy as np

    import flashsim
    from flashsim.tracing.bugs import planted

    asked = arguments(options, Q, K, V)
    direction = "backward" if options.backward else "forward"
    before = BACKWARD[name].forward_pass if options.backward and name in BACKWARD else name
    if options.vs and before in FORWARD and "block_mask" not in FORWARD[before].parts:
        del asked["block_mask"]
    if options.backward:
        shape = Q.shape[0], V.shape[1]
        asked["dO"] = np.random.default_rng([options.seed, 1]).standard_normal(shape, np.float32).astype(Q.dtype)
    with planted(name, bug, direction) if bug else nullcontext(name) as known:
        trace = flashsim.trace(known, Q, K, V, **asked)
    return replace(trace, about=replace(trace.about, command=options.command_line))

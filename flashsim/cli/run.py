"""`flashsim run`: attention on real Q, K, V, and what each algorithm moves."""

import argparse
from collections.abc import Callable
from typing import Any

from flashsim.attention.inputs import float_dtype
from flashsim.attention.masks.paddings import KeyPadding
from flashsim.cli.outputs import figure_stem, finish, progress
from flashsim.cli.shared import (
    DEFAULT_ALGORITHM,
    FLAG,
    NAMES,
    add,
    add_declared,
    by_name,
    declared_in,
    masks_in,
)
from flashsim.cli.values import elements, finite

SUMMARY = (
    "Run attention on real Q, K, V (bundled, or your own) and compare what each algorithm moves."
)
EXAMPLES = (
    "flashsim run\n"
    "flashsim run --qkv mine.npz --head 3 --M 100KB\n"
    "flashsim run --algorithm standard mine.py:attention\n"
    "flashsim run --padded --dropout 0.1 --backward --algorithm standard flash rabe_staats\n"
    "flashsim run --qkv q.npy k.npy v.npy --algorithm flash_basic --json -"
)


def add_options(parser: Any) -> None:
    qkv = (
        "a .npz or .safetensors file with arrays q, k, v; a .npy file that stacks them; or three "
        ".npy files. "
        "Shapes (N, d) or (..., N, d); q may have a multiple of the heads of k and v. Default: the "
        "bundled real sample"
    )
    add(parser, "--qkv", help=qkv)
    add(parser, "--head", help="run this head only: an index into the leading axes. Default: all")
    default = f"standard and {DEFAULT_ALGORITHM}"
    add(parser, "--algorithm", nargs="+", help=f"which to compare: {NAMES}. Default: {default}")
    add(parser, "--backward", help="run the backward pass too, for a random dO")
    add(parser, "--causal", "--offset", "--sink", "--dropout")
    add(parser, "--seed", help="seed of dropout. Default: 0")
    add(parser, "--mask")
    add(parser, "--padded", **FLAG, help="the bundled sample with its padding and padding mask")
    converted = (
        "convert Q, K, V to this type first. Default: the type in the file; float32 for the sample"
    )
    add(parser, "--dtype", default=None, help=converted)
    add(parser, "--M", "--sizing", "--blocks", "--gqa")
    add_declared(parser)
    parser.add_argument("--scale", type=finite, help="softmax scale τ. Default: 1/√d")
    add(parser, "--output", help="save STEM.png, .svg, .json. Default: flashsim-run")
    add(parser, "--json", "--quiet")


def run(options: argparse.Namespace) -> int:
    from flashsim import plots
    from flashsim.analysis.verify import comparison
    from flashsim.attention import qkv
    from flashsim.cli import report

    if options.padded and options.qkv:
        raise ValueError(
            "--padded goes with the bundled sample; for your own data give --mask FILE.npy"
        )
    if options.padded and options.mask:
        raise ValueError("--padded has a mask of its own; leave out --mask or --padded")
    given = qkv.load_qkv(options.qkv) if options.qkv else qkv.load_sample(padded=options.padded)
    if options.dtype or not options.qkv:
        given = given.astype(float_dtype(options.dtype or "float32"))
    given = given.head(options.head)
    mask: Any = qkv.load_mask(options.mask) if options.mask else None
    if options.padded:
        mask = KeyPadding(int(qkv.sample_mask().sum()))
    asked = _asked(options)
    both_ways = options.direction == "backward"
    stem = figure_stem(options, "flashsim-run")
    with progress(options) as told:

        def watch(title: str, heads: int) -> Callable[[int, int], None]:
            told(0, heads, title)
            return told

        forwards, backwards = comparison.run_all(
            given,
            options.algorithm or ["standard", DEFAULT_ALGORITHM],
            watch,
            both_ways=both_ways,
            M=elements(options.M, given.Q.dtype.itemsize),
            **by_name(options, "scale", "sizing", "blocks", "dropout_p", "seed", "gqa"),
            **masks_in(options, mask),
            **declared_in(options),
        )
    numbers = report.run_numbers(given, forwards, backwards)
    schedule = "query heads grouped" if options.gqa == "grouped" else ""
    what = ", ".join(
        filter(None, (asked, schedule, report.SIZED["given" if options.blocks else options.sizing]))
    )
    finish(options, numbers, lambda: report.print_run(given, forwards, backwards, what))
    figure = plots.run_figure(
        forwards, heads=given.heads, M=next(iter(forwards.values())).sram.capacity, **given.shape
    )
    saved = plots.save(figure, stem, numbers, options.command_line)
    if options.json != "-":
        print(f"Saved {', '.join(map(str, saved))}")
    return (
        0
        if all(result.ok for results in (forwards, backwards) for result in results.values())
        else 1
    )


def _typed(options: argparse.Namespace, name: str, value: Any) -> Any:
    """Return an option's value as it was typed."""
    return getattr(options, name, None) or value


def _asked(options: argparse.Namespace) -> str:
    said = {
        "causal" if options.offset is None else f"causal from {options.offset}": options.causal,
        "keys padded": options.padded,
        f"mask {options.mask}": options.mask,
        f"sink {','.join(f'{s:g}' for s in options.sink or ())}": options.sink,
        f"dropout {options.dropout_p:g}": options.dropout_p,
        **{
            f"{name.replace('_', ' ')} {_typed(options, name, value)}": True
            for name, value in declared_in(options).items()
        },
    }
    return ", ".join(words for words, is_asked in said.items() if is_asked)

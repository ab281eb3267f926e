"""`flashsim run`: attention on real Q, K, V, and what each algorithm moves."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from flashsim.attention.inputs import float_dtype
from flashsim.attention.masks.paddings import KeyPadding
from flashsim.attention.masks.rules import Mask
from flashsim.attention.masks.sink import Sink
from flashsim.cli.outputs import figure_stem, finish, progress
from flashsim.cli.parser import Parser
from flashsim.cli.shared import (
    DEFAULT_ALGORITHM,
    FLAG,
    NAMES,
    add_declared,
    algorithm_options,
    by_name,
    mask_arguments,
    mask_of_file,
)
from flashsim.cli.values import elements, finite

EXAMPLES = (
    "flashsim run\n"
    "flashsim run --qkv mine.npz --head 3 --M 100KB\n"
    "flashsim run --algorithm standard mine.py:attention\n"
    "flashsim run --padded --dropout 0.1 --backward --algorithm standard flash rabe_staats\n"
    "flashsim run --qkv q.npy k.npy v.npy --algorithm flash_basic --json -"
)


def add_options(parser: Parser) -> None:
    qkv = (
        "a .npz or .safetensors file with arrays q, k, v; a .npy file that stacks them; or three "
        ".npy files. "
        "Shapes (N, d) or (..., N, d); q may have a multiple of the heads of k and v. Default: the "
        "bundled real sample"
    )
    parser.add("--qkv", help=qkv)
    parser.add("--head", help="run this head only: an index into the leading axes. Default: all")
    default = f"standard and {DEFAULT_ALGORITHM}"
    parser.add("--algorithm", nargs="+", help=f"which to compare: {NAMES}. Default: {default}")
    parser.add("--backward", help="run the backward pass too, for a random dO")
    parser.add("--causal", "--offset", "--sink", "--dropout")
    parser.add("--seed", help="seed of dropout. Default: 0")
    parser.add("--mask")
    parser.add("--padded", **FLAG, help="the bundled sample with its padding and padding mask")
    converted = (
        "convert Q, K, V to this type first. Default: the type in the file; float32 for the sample"
    )
    parser.add("--dtype", default=None, help=converted)
    parser.add("--M", "--sizing", "--blocks", "--no-enforce", "--gqa")
    add_declared(parser)
    parser.add("--scale", type=finite, help="softmax scale τ. Default: 1/√d")
    parser.add("--output", help="save STEM.png, .svg, .json. Default: flashsim-run")
    parser.add("--json", "--quiet")


def run(options: argparse.Namespace) -> int:
    from flashsim import plots
    from flashsim.analysis.verify import comparison
    from flashsim.attention import qkv
    from flashsim.cli import report

    _check_combinations(options)
    inputs = qkv.load_qkv(options.qkv) if options.qkv else qkv.load_sample(padded=options.padded)
    if options.dtype or not options.qkv:
        inputs = inputs.astype(float_dtype(options.dtype or "float32"))
    inputs = inputs.head(options.head)
    mask: Mask | None = None if options.mask is None else mask_of_file(options.mask)
    if options.padded:
        mask = KeyPadding(int(qkv.sample_mask().sum()))
    algorithms = options.algorithm or ["standard", DEFAULT_ALGORITHM]
    extra = algorithm_options(options, algorithms)
    stem = figure_stem(options, options.output, "flashsim-run")
    with progress(options) as update:

        def watch(title: str, heads: int) -> Callable[[int, int], None]:
            update(0, heads, title)
            return update

        forwards, backwards = comparison.run_all(
            inputs,
            algorithms,
            watch,
            both_ways=options.direction == "backward",
            M=elements(options.M, inputs.Q.dtype.itemsize),
            **by_name(options, "scale", "sizing", "blocks", "enforce", "dropout_p", "seed", "gqa"),
            **mask_arguments(options, sink=_sink(options), mask=mask),
            **extra,
        )
    numbers = report.run_numbers(inputs, forwards, backwards)
    description = _description(options, extra)
    finish(options, numbers, lambda: report.print_run(inputs, forwards, backwards, description))
    M = next(iter(forwards.values())).sram.capacity
    figure = plots.run_figure(forwards, heads=inputs.heads, M=M, **inputs.shape)
    files = plots.save(figure, stem, numbers, options.command_line)
    if options.json != "-":
        print(f"Saved {', '.join(map(str, files))}")
    passes = [*forwards.values(), *backwards.values()]
    return 0 if all(result.ok for result in passes) else 1


def _check_combinations(options: argparse.Namespace) -> None:
    """Raise ValueError for options that exclude each other."""
    if options.padded and options.qkv:
        raise ValueError(
            "--padded goes with the bundled sample; for your own data give --mask FILE.npy"
        )
    if options.padded and options.mask:
        raise ValueError("--padded has a mask of its own; leave out --mask or --padded")


def _sink(options: argparse.Namespace) -> Sink | None:
    """Return the sink of all heads, or of each."""
    logits = options.sink
    if logits is None:
        return None
    return Sink(logits if len(logits) > 1 else logits[0])


def _description(options: argparse.Namespace, extra: Mapping[str, Any]) -> str:
    """Return the options of a run in words, such as "causal, dropout 0.1", and how blocks are
    chosen; `extra` are those that algorithms declare.
    """
    from flashsim.cli import report

    words = []
    if options.causal:
        words.append("causal" if options.offset is None else f"causal from {options.offset}")
    if options.padded:
        words.append("keys padded")
    if options.mask:
        words.append(f"mask {options.mask}")
    if options.sink:
        words.append(f"sink {','.join(f'{logit:g}' for logit in options.sink)}")
    if options.dropout_p:
        words.append(f"dropout {options.dropout_p:g}")
    by_dest = vars(options)
    for name, value in extra.items():
        # a choice as the user typed it
        words.append(f"{name.replace('_', ' ')} {by_dest.get(name) or value}")
    if options.gqa == "grouped":
        words.append("query heads grouped")
    words.append(report.SIZED["given" if options.blocks else options.sizing])
    return ", ".join(words)

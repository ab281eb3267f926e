"""The command line: `flashsim run`, `count`, `plot`, `tune`, `gpu`, `check`, `example`, `step`, `debug`, `verify`.

Results go to stdout, progress and errors to stderr.
Exit status: 0 all is well, 1 a claim or a check failed, 2 the arguments or the input make no sense.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import flashsim
from flashsim import cli_bench, cli_check, cli_debug, cli_example, cli_gpu, cli_step, cli_tune, patterns
from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.files import write_whole
from flashsim.gpu.compiling import MissingGPU
from flashsim.inputs import DEFAULT_SRAM_BYTES, FLOATS, float_dtype
from flashsim.machines import MACHINES
from flashsim.memory import MemoryModelError
from flashsim.sizes import parse_size

if TYPE_CHECKING:
    from rich.progress import Progress

SAMPLE_M = 4_096
FIGURES = {  # as in flashsim.plots.FIGURES, which `--help` need not wait for
    "blocks": "Figure 2 (middle), accesses against block size",
    "theorem2": "accesses against N, d, M, log–log",
    "theorem5": "the same, backward",
    "traffic": "Figure 2 (left), GPT-2 medium's GB and GFLOPs",
    "sparsity": "Figure 2 (right), accesses against sparsity",
    "memory": "Figure 3 (right), extra memory against N",
    "arrays": "accesses by array, every algorithm",
    "appendix_b5": "FlashAttention and Rabe & Staats",
    "roofline": "FLOP/byte on an A100, and what binds",
    "l2": "DRAM traffic against the size of an L2",
    "pareto": "accesses against occupancy, every block size",
    "cache_size": "accesses against M, and what is optimal",
}
BLOCK_MASKS: dict[str, Any] = {
    "butterfly": patterns.butterfly,
    "local": patterns.local,
    "strided": lambda T_r, T_c: patterns.strided(T_r, T_c, max(round(T_c**0.5), 1)),
    "live": "live",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser()
    options = parser.parse_args(arguments)
    options.command_line = shlex.join(["flashsim", *arguments])
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except (ValueError, MemoryModelError, MissingGPU, argparse.ArgumentTypeError) as error:
        print(f"flashsim {options.name}: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # `flashsim verify | head`: the reader has gone, so stop quietly
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        print(f"flashsim {options.name}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return status


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="flashsim",
        description="FlashAttention on a simulated HBM and SRAM: real numbers, executed counts, an enforced capacity.",
        epilog="`flashsim COMMAND --help` shows a command's options and examples.",
    )
    parser.add_argument("--version", action="version", version=f"flashsim {flashsim.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], summary: str, examples: str) -> Any:
        added = commands.add_parser(
            name,
            help=summary,
            description=summary,
            epilog="examples:\n" + "\n".join(f"  {line}" for line in examples.splitlines()),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.set_defaults(run=run, name=name)
        return added

    run = command(
        "run",
        _run,
        "Run attention on real Q, K, V (bundled, or your own) and compare what each algorithm moves.",
        "flashsim run\n"
        "flashsim run --qkv mine.npz --head 3 --M 100KB\n"
        "flashsim run --padded --dropout 0.1 --backward --algorithm standard flash rabe_staats\n"
        "flashsim run --qkv q.npy k.npy v.npy --algorithm flash_basic --json -",
    )
    run.add_argument(
        "--qkv",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="a .npz or .safetensors file with arrays q, k, v; a .npy file that stacks them; or three .npy files. "
        "Shapes (N, d) or (..., N, d); q may have a multiple of the heads of k and v. Default: the bundled real sample",
    )
    run.add_argument(
        "--head", metavar="I[,J…]", help="run this head only: an index into the leading axes. Default: all"
    )
    run.add_argument(
        "--algorithm",
        nargs="+",
        choices=list(FORWARD),
        metavar="NAME",
        help=f"of {', '.join(FORWARD)}. Default: standard and flash_basic, or flash where a mask, dropout or backward is asked",
    )
    run.add_argument("--backward", action="store_true", help="run the backward pass too, for a random dO")
    _add_parts(run)
    run.add_argument("--seed", type=int, default=0, help="of dropout. Default: 0")
    run.add_argument("--mask", type=Path, metavar="FILE", help="a .npy file: booleans (..., N_q, N_k), True = attend")
    run.add_argument("--padded", action="store_true", help="the bundled sample with its padding and padding mask")
    run.add_argument("--dtype", choices=FLOATS, help="convert the inputs first. Default: as they are (sample: float32)")
    _add_sizing(run, f"Default: 100KB; for the small bundled sample {SAMPLE_M} elements")
    _add_gqa(run)
    _add_splits(run)
    run.add_argument("--scale", type=float, help="softmax scale τ. Default: 1/√d")
    _add_output(run, Path("flashsim-run"))

    count = command(
        "count",
        _count,
        "Count what an algorithm moves, line by line, at any size, without computing it.",
        "flashsim count --N 1024 --d 64\n"
        "flashsim count flash --backward --N 4096 --d 64 --causal --dropout 0.1\n"
        "flashsim count block_sparse --N 65536 --d 64 --block-mask butterfly\n"
        "flashsim count flash_basic --N 1048576 --d 128 --M 228KB --dtype bfloat16\n"
        "flashsim count flash --N 4096 --d 128 --heads 32 --kv-heads 8 --gqa grouped\n"
        "flashsim count split_kv --N_q 1 --N_k 65536 --d 128 --splits 16 --merge tree\n"
        "flashsim count standard --N 4096 --d 64 --heads 1024 --json -",
    )
    count.add_argument(
        "algorithm",
        nargs="?",
        choices=list(dict.fromkeys([*FORWARD, *BACKWARD])),
        metavar="NAME",
        default="flash_basic",
        help=f"of {', '.join(FORWARD)}; with --backward also q_outer_two_pass. Default: flash_basic",
    )
    count.add_argument("--N", type=int, help="sequence length")
    count.add_argument("--N_q", type=int, metavar="N", help="number of queries, where it differs from the keys'")
    count.add_argument("--N_k", type=int, metavar="N", help="number of keys")
    count.add_argument("--d", type=int, required=True, help="head dimension")
    count.add_argument("--d_v", type=int, metavar="D", help="width of V, where it differs from d")
    count.add_argument("--heads", type=int, default=1, metavar="H", help="batch × query heads; the counts add up")
    count.add_argument("--kv-heads", type=int, metavar="H", help="batch × KV heads, where query heads share them")
    _add_gqa(count)
    _add_splits(count)
    count.add_argument("--dtype", choices=FLOATS, default="float32", help="for bytes. Default: float32")
    count.add_argument("--backward", action="store_true", help="count the backward pass")
    _add_parts(count)
    _add_sizing(count, "Default: 100KB")
    count.add_argument("--json", metavar="FILE", help="write the numbers as JSON (- for stdout)")

    plot = command(
        "plot",
        _plot,
        "Draw a figure: PNG, SVG, and its data as JSON.",
        "flashsim plot blocks\nflashsim plot blocks --N 4096 --d 128 --M 228KB -o out/blocks\nflashsim plot theorem2\n"
        "flashsim plot roofline --machine H200 --N 4096 --d 128",
    )
    plot.add_argument(
        "figure",
        choices=list(FIGURES),
        metavar="FIGURE",
        help="; ".join(f"{name}: {what}" for name, what in FIGURES.items()),
    )
    plot.add_argument("--N", type=int, default=1024, help="for blocks and roofline: sequence length. Default: 1024")
    plot.add_argument("--d", type=int, default=64, help="for blocks and roofline: head dimension. Default: 64")
    plot.add_argument("--dtype", choices=FLOATS, default="float16", help="for blocks and roofline. Default: float16")
    plot.add_argument(
        "--machine",
        default="A100-40GB",
        metavar="NAME",
        help=f"for roofline: {', '.join(MACHINES)}. Default: A100-40GB",
    )
    plot.add_argument("--M", metavar="SIZE", help="for blocks: SRAM size. Default: 100KB")
    _add_output(plot, None)

    tune = command("tune", lambda options: cli_tune.run(options, _progress), cli_tune.SUMMARY, cli_tune.EXAMPLES)
    cli_tune.add_options(tune)

    on_gpu = command("gpu", cli_gpu.run, cli_gpu.SUMMARY, cli_gpu.EXAMPLES)
    cli_gpu.add_options(on_gpu)

    bench = command("bench", lambda options: cli_bench.run(options, _progress), cli_bench.SUMMARY, cli_bench.EXAMPLES)
    cli_bench.add_options(bench)

    check = command("check", cli_check.run, cli_check.SUMMARY, cli_check.EXAMPLES)
    cli_check.add_options(check)

    example = command("example", cli_example.run, cli_example.SUMMARY, cli_example.EXAMPLES)
    cli_example.add_options(example)

    step = command("step", lambda options: cli_step.run(options, BLOCK_MASKS), cli_step.SUMMARY, cli_step.EXAMPLES)
    cli_step.add_options(step, list(FORWARD), BLOCK_MASKS)

    debug = command("debug", lambda options: cli_debug.run(options, BLOCK_MASKS), cli_debug.SUMMARY, cli_debug.EXAMPLES)
    cli_debug.add_options(debug, list(dict.fromkeys([*FORWARD, *BACKWARD])), BLOCK_MASKS)

    verify = command(
        "verify",
        _verify,
        "Check the paper's claims and print the ledger: claim, range tried, measurement, verdict.",
        "flashsim verify\nflashsim verify --full --json ledger.json",
    )
    verify.add_argument("--full", action="store_true", help="sweep far wider ranges (minutes)")
    verify.add_argument("--json", metavar="FILE", help="write the ledger as JSON (- for stdout)")
    verify.add_argument("--quiet", action="store_true", help="no progress on stderr")
    return parser


def _add_sizing(parser: Any, default: str) -> None:
    parser.add_argument(
        "--M",
        metavar="SIZE",
        help=f"SRAM size: elements (25600), or bytes of the dtype (100KB, 1 KB = 1024). {default}",
    )
    parser.add_argument(
        "--sizing",
        choices=["paper", "fit"],
        default="paper",
        help="paper: line 1's blocks, M only reported against; fit: the largest blocks that fit, M enforced",
    )
    parser.add_argument("--blocks", nargs=2, type=int, metavar=("B_r", "B_c"), help="block sizes; M enforced")


def _add_parts(parser: Any) -> None:
    parser.add_argument(
        "--causal", action="store_true", help="query i attends to keys j ≤ i + N_k − N_q (bottom right)"
    )
    parser.add_argument("--dropout", type=float, default=0.0, metavar="P", help="drop weights with this probability")
    parser.add_argument(
        "--block-mask",
        choices=list(BLOCK_MASKS),
        help="for block_sparse: which tiles are computed; live: those that the mask does not forbid whole. Default: all",
    )


def _add_splits(parser: Any) -> None:
    parser.add_argument(
        "--splits", type=int, metavar="T", help="for split_kv: cut the keys in so many. Default: by block"
    )
    parser.add_argument(
        "--merge", choices=["sequence", "tree"], default="sequence", help="for split_kv. Default: sequence"
    )


def _add_gqa(parser: Any) -> None:
    parser.add_argument(
        "--gqa",
        choices=["separate", "grouped"],
        default="separate",
        help="query heads that share a KV head run separate, each streaming it, or grouped, as one problem. Default: separate",
    )


def _add_output(parser: Any, stem: Path | None) -> None:
    where = stem or "flashsim-FIGURE"
    parser.add_argument(
        "-o", "--output", type=Path, default=stem, metavar="STEM", help=f"save STEM.png, .svg, .json. Default: {where}"
    )
    parser.add_argument("--json", metavar="FILE", help="write the numbers as JSON too (- for stdout, and nothing else)")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")


# ----------------------------------------------------------------------------------------------------------- commands


def _run(options: argparse.Namespace) -> int:
    from flashsim import plots, qkv, report

    if options.padded and options.qkv:
        raise ValueError("--padded goes with the bundled sample; for your own data give --mask FILE.npy")
    given = qkv.load_qkv(options.qkv) if options.qkv else qkv.load_sample(padded=options.padded)
    if options.dtype or not options.qkv:
        given = given.astype(float_dtype(options.dtype or "float32"))
    given = given.head(options.head)
    mask: Any = qkv.load_mask(options.mask) if options.mask else None
    if options.padded:
        mask = flashsim.KeyPadding(int(qkv.sample_mask().sum()))
    default_M = None if options.qkv else SAMPLE_M
    M = default_M if options.M is None else parse_size(options.M, given.Q.dtype.itemsize)
    asked = _asked(options)
    with _progress(options.quiet) as progress:
        forwards, backwards = report.run_all(
            given,
            options.algorithm or ["standard", "flash" if asked or options.backward else "flash_basic"],
            progress,
            both_ways=options.backward,
            M=M,
            scale=options.scale,
            sizing=options.sizing,
            blocks=None if options.blocks is None else tuple(options.blocks),
            causal=options.causal,
            mask=mask,
            dropout_p=options.dropout,
            seed=options.seed,
            gqa=options.gqa,
            block_mask=BLOCK_MASKS.get(options.block_mask),
            splits=options.splits,
            merge=options.merge,
        )
    numbers = report.run_numbers(given, forwards, backwards)
    if options.json:
        _write_json(options.json, numbers)
    if options.json != "-":
        report.print_run(given, forwards, backwards, ", ".join(filter(None, (asked, _schedule(options)))))
    figure = plots.run_figure(forwards, M=next(iter(forwards.values())).sram.capacity, **given.shape)
    saved = plots.save(figure, options.output, numbers, options.command_line)
    if options.json != "-":
        print(f"Saved {', '.join(map(str, saved))}")
    return 0 if all(result.ok for results in (forwards, backwards) for result in results.values()) else 1


def _asked(options: argparse.Namespace) -> str:
    """Say what is asked besides plain attention."""
    said = {
        "causal": options.causal,
        "keys padded": options.padded,
        f"mask {options.mask}": options.mask,
        f"dropout {options.dropout:g}": options.dropout,
        f"block mask {options.block_mask}": options.block_mask,
    }
    return ", ".join(words for words, is_asked in said.items() if is_asked)


def _schedule(options: argparse.Namespace) -> str:
    return "query heads grouped" if options.gqa == "grouped" else ""


def _count(options: argparse.Namespace) -> int:
    from flashsim import report

    itemsize = float_dtype(options.dtype).itemsize
    arguments = {name: getattr(options, name) for name in ("N", "N_q", "N_k", "d", "d_v", "dtype", "sizing")}
    arguments |= {name: getattr(options, name) for name in ("heads", "kv_heads", "gqa")}
    arguments["M"] = DEFAULT_SRAM_BYTES // itemsize if options.M is None else parse_size(options.M, itemsize)
    arguments["blocks"] = None if options.blocks is None else tuple(options.blocks)
    arguments["direction"] = "backward" if options.backward else "forward"
    arguments |= {"causal": options.causal, "dropout_p": options.dropout}
    arguments["block_mask"] = BLOCK_MASKS.get(options.block_mask)
    arguments |= {"splits": options.splits, "merge": options.merge}
    counted = report.count_lines(options.algorithm, arguments)
    if options.json:
        _write_json(options.json, counted.as_json())
    if options.json != "-":
        report.print_count(counted)
    return 0 if counted.agrees else 1


def _plot(options: argparse.Namespace) -> int:
    from flashsim import plots

    with _progress(options.quiet) as progress:
        progress.add_task(f"plot {options.figure}", total=None)
        chart, arguments = plots.FIGURES[options.figure], {}
        if options.figure == "blocks":
            itemsize = float_dtype(options.dtype).itemsize
            M = DEFAULT_SRAM_BYTES // itemsize if options.M is None else parse_size(options.M, itemsize)
            arguments = {"N": options.N, "d": options.d, "M": M, "dtype": options.dtype}
        if options.figure == "roofline":
            arguments = {"machine": options.machine, "N": options.N, "d": options.d, "dtype": options.dtype}
        data = chart.data(**arguments)
        figure = chart.draw(data)
        stem = options.output or Path(f"flashsim-{options.figure}")
        saved = plots.save(figure, stem, data, options.command_line)
    if options.json:
        _write_json(options.json, data)
    if options.json != "-":
        print(f"Saved {', '.join(map(str, saved))}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    from flashsim import report, verify

    claims = []
    with _progress(options.quiet) as progress:
        checks = verify.checks()
        task = progress.add_task("verify", total=len(checks))
        for check in checks:
            progress.update(task, description=check.__name__.replace("_", " "))
            claims.append(check(options.full))
            progress.advance(task)
    if options.json:
        _write_json(options.json, {"command": options.command_line, "claims": [claim.as_json() for claim in claims]})
    if options.json != "-":
        report.print_ledger(claims)
    return 0 if all(claim.holds for claim in claims) else 1


# ------------------------------------------------------------------------------------------------------------- shared


def _write_json(target: str, data: dict[str, Any]) -> None:
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        write_whole(target, text)


@contextmanager
def _progress(quiet: bool) -> Iterator[Progress]:
    """Show progress on stderr where a person is watching it; nothing with --quiet or in a pipe."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        yield progress

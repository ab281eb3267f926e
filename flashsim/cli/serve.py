"""`flashsim serve`: what a ragged batch moves, with keys in pages, shared prefixes, packed, by a
schedule, or latents.
"""

import argparse
import sys
from typing import Any

from flashsim.cli.outputs import finish
from flashsim.cli.shared import FLAG, add, by_name
from flashsim.cli.values import whole
from flashsim.support.tables import print_paragraphs, print_table, print_words, sram

SUMMARY = (
    "Count what attention of a ragged batch moves: pages, shared prefixes, packed batches, "
    "schedules, latents."
)
EXAMPLES = (
    "flashsim serve paged --keys 2048 500 90 --d 128 --heads 32 --kv-heads 8 --page 16\n"
    "flashsim serve cascade --keys 128 64 7 --prefix 4096 --d 128 --blocks 64 64\n"
    "flashsim serve varlen --queries 500 7 90 --keys 500 7 90 --d 64 --backward\n"
    "flashsim serve decode --keys 500 4000 90 --d 64 --workers 8 --json -\n"
    "flashsim serve mla --keys 4096 --heads 128 --kv-heads 1 --d 576 --d-v 512 --M 227KB --dtype "
    "float16"
)
PROGRAMS = (
    "paged",
    "paged_split",
    "cascade",
    "varlen",
    "decode",
    "mla",
    "mla_paged",
    "mla_expanded",
    "quantised",
    "fp8",
)
OWN = {
    "page": (whole(), "rows of a page, for paged, paged_split and mla_paged"),
    "splits": (
        whole(),
        (
            "parts of each row block's keys, for paged_split, mla_paged, and decode with "
            "--schedule fixed"
        ),
    ),
    "prefix": (whole(0), "keys that all sequences share, for cascade"),
    "workers": (whole(), "workers that share the tiles of a KV head, for decode"),
    "bits": (whole(), "bits of a number of K and V: 2, 4 or 8, for quantised"),
    "group": (
        whole(),
        (
            "for quantised: numbers that share a scale and a zero; for fp8: keys that share a "
            "scale, by default all"
        ),
    ),
    "latent": (whole(), "columns of a latent, for mla_expanded; for mla, give --d-v"),
    "rope": (whole(0), "columns for rope, in a latent and in --d, for mla_expanded"),
}


def add_options(parser: Any) -> None:
    parser.add_argument("program", choices=PROGRAMS, metavar="NAME", help=", ".join(PROGRAMS))
    lengths = {"type": whole(0), "nargs": "+", "metavar": "N"}
    parser.add_argument("--keys", required=True, **lengths, help="keys of each sequence")
    parser.add_argument(
        "--queries", **lengths, help="queries of each sequence, or of all. Default: 1"
    )
    add(parser, "--d", "--d-v", "--dtype")
    add(parser, "--heads", default=1, help="query heads")
    add(parser, "--kv-heads", help="KV heads, where query heads share them")
    for name, (reads, said) in OWN.items():
        parser.add_argument(f"--{name}", type=reads, metavar="N", help=said)
    parser.add_argument(
        "--tail", choices=("rows", "page"), help="how much of a last page is loaded. Default: rows"
    )
    parser.add_argument(
        "--schedule", choices=("stream_k", "fixed"), help="for decode. Default: stream_k"
    )
    add(parser, "--full", **FLAG, help="every query sees every key. Default: causal")
    add(parser, "--backward", help="count the backward pass, for varlen")
    add(parser, "--M", "--blocks", "--json")


def run(options: argparse.Namespace) -> int:
    from flashsim import serving

    given = by_name(options, *OWN, "tail", "schedule")
    queries = options.queries or [1]
    tally = serving.count(
        options.program,
        queries=queries[0] if len(queries) == 1 else queries,
        causal=not options.full,
        **by_name(
            options, "keys", "d", "d_v", "dtype", "heads", "kv_heads", "direction", "M", "blocks"
        ),
        **{name: value for name, value in given.items() if value is not None},
    )
    exact = serving.exact(tally)
    agree = (exact.hbm, exact.sram) == (tally.hbm, tally.sram)
    finish(options, {"agrees": agree, **tally.to_dict()}, lambda: _show(tally))
    if not agree:
        print("The counts differ from theory.", file=sys.stderr)
    return 0 if agree else 1


def _show(tally: Any) -> None:
    from flashsim.cli.report import work

    batch = tally.problem
    program = tally.plan.program
    heads = (
        "one head" if batch.heads == 1 else f"{batch.heads} query heads, {batch.kv_heads} KV heads"
    )
    print(f"{program.title}: {len(batch)} sequences, {heads}, d = {batch.d}, {tally.blocks}")
    print(
        sram(batch.M, batch.dtype.itemsize, batch.dtype.name)
        + f", at most {tally.sram.peak:,} in use\n"
    )
    rows: list[Any] = [(name, a.reads, a.writes, a.bytes) for name, a in tally.hbm.by_array.items()]
    print_table(
        ("array", "reads", "writes", "bytes"),
        [*rows, ("total", tally.hbm.reads, tally.hbm.writes, tally.hbm.bytes)],
    )
    print_paragraphs(f"{_sizes(tally)} Theory gives the same counts.")
    print_words(work(tally.flops, tally.hbm.bytes), "  ")


def _sizes(tally: Any) -> str:
    """Say in which elements was counted, and which arrays have others: tables of words, and
    statistics.
    """
    dtype = tally.problem.dtype
    others: dict[int, list[str]] = {}
    for name, array in tally.hbm.by_array.items():
        if array.itemsize != dtype.itemsize:
            others.setdefault(array.itemsize, []).append(name)
    said = ""
    for size, names in others.items():
        said += f"; those of {', '.join(names)} are of {size} {'byte' if size == 1 else 'bytes'}"
    return f"In elements, of {dtype.itemsize} bytes in {dtype.name}{said}."

"""`flashsim serve`: what a ragged batch moves, with keys in pages, shared prefixes, packed, by a
schedule, or latents.
"""

import argparse
import sys
from typing import Any

from flashsim.cli.outputs import finish
from flashsim.cli.parser import Parser
from flashsim.cli.shared import FLAG, by_name
from flashsim.cli.values import whole
from flashsim.support.tables import print_paragraphs, print_table, print_words, sram

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


def add_options(parser: Parser) -> None:
    parser.add("program", choices=PROGRAMS, metavar="NAME", help=", ".join(PROGRAMS))
    lengths: dict[str, Any] = {"type": whole(0), "nargs": "+", "metavar": "N"}
    parser.add("--keys", required=True, **lengths, help="keys of each sequence")
    parser.add("--queries", **lengths, help="queries of each sequence, or of all. Default: 1")
    parser.add("--d", "--d-v", "--dtype")
    parser.add("--heads", default=1, help="query heads")
    parser.add("--kv-heads", help="KV heads, where query heads share them")
    for name, (read, what) in OWN.items():
        parser.add(f"--{name}", type=read, metavar="N", help=what)
    tail = "how much of a last page is loaded. Default: rows"
    parser.add("--tail", choices=("rows", "page"), help=tail)
    schedule = "for decode. Default: stream_k"
    parser.add("--schedule", choices=("stream_k", "fixed"), help=schedule)
    parser.add("--full", **FLAG, help="every query sees every key. Default: causal")
    parser.add("--backward", help="count the backward pass, for varlen")
    parser.add("--M", "--blocks", "--json")


def run(options: argparse.Namespace) -> int:
    from flashsim import serving

    queries = options.queries or [1]
    batch = ("keys", "d", "d_v", "dtype", "heads", "kv_heads", "direction", "M", "blocks")
    own = by_name(options, *OWN, "tail", "schedule")
    tally = serving.count(
        options.program,
        queries=queries[0] if len(queries) == 1 else queries,
        causal=not options.full,
        **by_name(options, *batch),
        **{name: value for name, value in own.items() if value is not None},
    )
    agree = tally.equals_theory
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
    hbm = tally.hbm
    rows: list[Any] = []
    for name, array in hbm.by_array.items():
        rows.append((name, array.reads, array.writes, array.bytes))
    rows.append(("total", hbm.reads, hbm.writes, hbm.bytes))
    print_table(("array", "reads", "writes", "bytes"), rows)
    print_paragraphs(f"{_sizes(tally)} Theory gives the same counts.")
    print_words(work(tally.flops, tally.hbm.bytes), "  ")


def _sizes(tally: Any) -> str:
    """Return in words the size of an element, and the arrays whose elements have another size:
    tables of words, and statistics.
    """
    dtype = tally.problem.dtype
    others: dict[int, list[str]] = {}
    for name, array in tally.hbm.by_array.items():
        if array.itemsize != dtype.itemsize:
            others.setdefault(array.itemsize, []).append(name)
    sentence = f"In elements, of {dtype.itemsize} bytes in {dtype.name}"
    for size, names in others.items():
        unit = "byte" if size == 1 else "bytes"
        sentence += f"; those of {', '.join(names)} are of {size} {unit}"
    return f"{sentence}."

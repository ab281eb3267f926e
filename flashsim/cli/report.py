"""What the command line prints: tables for people, plain numbers for JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

from flashsim import theory
from flashsim.algorithms.blocks import unknown_loops
from flashsim.attention.arguments import check_shape
from flashsim.attention.qkv import QKV
from flashsim.support.sizes import human_bytes
from flashsim.support.tables import print_paragraphs, print_table, print_words, problem, sram
from flashsim.theory.formulas import evaluated

if TYPE_CHECKING:
    from flashsim.analysis.verify import Claim
    from flashsim.analysis.verify.comparison import Comparison, Counted
    from flashsim.memory.traffic import Flops, Occupancy


SIZED = {
    "fit": "the largest blocks that fit",
    "paper": "line 1's blocks",
    "given": "the blocks given",
}
TRIED = {
    "fit": "the largest blocks of Algorithm 1's shape, or turned, that fit",
    "paper": "Algorithm 1's blocks, or turned",
}
"""The same for a function of the user's, whose line 1 is not known."""


def run_numbers(
    given: QKV, forwards: Mapping[str, Comparison], backwards: Mapping[str, Comparison]
) -> dict[str, Any]:
    """Return the results as plain data."""
    shapes = {
        name: list(array.shape) for name, array in (("Q", given.Q), ("K", given.K), ("V", given.V))
    }
    return {
        "source": given.source,
        "shapes": shapes,
        "dtype": given.Q.dtype.name,
        "algorithms": {name: _numbers(result) for name, result in forwards.items()},
        "backward": {name: _numbers(result) for name, result in backwards.items()},
    }


def _numbers(result: Comparison) -> dict[str, Any]:
    return {
        **result.hbm.to_dict(),
        "sram": result.sram.to_dict(),
        "blocks": result.blocks.to_dict(),
        "max_error": result.max_error,
        "error_of_rounding_bound": result.error_of_bound,
        "equals_theory": result.equals_theory,
    }


def count_numbers(counted: Counted) -> dict[str, Any]:
    """Return a count as plain data."""
    costs = counted.tally.to_dict()
    given = counted.arguments.items()
    return {
        "arguments": {
            key: repr(value) if key == "mask" else getattr(value, "__name__", value)
            for key, value in given
        },
        **costs.pop("hbm"),
        **costs,
        "resident_at_peak": counted.ledger.at_peak,
        "equals_theory": counted.agrees,
        "by_line": [asdict(movement) for movement in counted.ledger.movements],
    }


def print_run(
    given: QKV, forwards: Mapping[str, Comparison], backwards: Mapping[str, Comparison], asked: str
) -> None:
    """Print the comparison. `asked` says what was asked besides, such as "causal, dropout 0.1"."""
    M = next(iter(forwards.values())).sram.capacity
    sizes = problem(given.Q.shape[-2], given.K.shape[-2], given.Q.shape[-1], given.V.shape[-1])
    print_words(given.source)
    kv_heads = math.prod(given.K.shape[:-2])
    heads = _heads(given.heads, "head") + (
        f" on {_heads(kv_heads, 'KV head')}" if kv_heads < given.heads else ""
    )
    print_words(f"{heads}, {sizes}, {given.Q.dtype.name}" + (f", {asked}" if asked else ""))
    print(sram(M, given.Q.dtype.itemsize, given.Q.dtype.name) + "\n")
    for results in filter(None, (forwards, backwards)):
        _print_results(results, given.Q.shape[-1])


def _heads(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number > 1)


def _print_results(results: Mapping[str, Comparison], d: int) -> None:
    titles = (result.title.replace(", ", ",\n") for result in results.values())
    by_array = [
        {name: a.accesses for name, a in result.hbm.by_array.items()} for result in results.values()
    ]
    moved = [
        (array, *(of.get(array) for of in by_array))
        for array in dict.fromkeys(chain.from_iterable(by_array))
    ]
    costs = [_costs(result) for result in results.values()]
    rest = [(label, *(of[label] for of in costs)) for label in costs[0]]
    print_table(("HBM accesses, elements", *titles), [*moved, None, *rest])
    both = {"flash", "flash_basic"} <= results.keys()
    for name, result in results.items() if "standard" in results else ():
        if name in ("flash", "flash_basic"):
            ratio = results["standard"].hbm.accesses / result.hbm.accesses
            which = f"FlashAttention ({name})" if both else "FlashAttention"
            said = f"Standard attention moves {ratio:.2f}× the elements that {which} does."
            near = (
                f"The factor follows M/d², here {result.sram.capacity / d**2:.3g} (flashsim plot "
                "saved)."
            )
            print_paragraphs(f"{said} {near}")
            print()


def _costs(result: Comparison) -> dict[str, int | str | None]:
    hbm = result.hbm
    sram = result.sram
    blocks = result.blocks
    share = result.error_of_bound
    return {
        "reads": hbm.reads,
        "writes": hbm.writes,
        "  of them initial": hbm.init_writes,
        "accesses": hbm.accesses,
        "bytes": human_bytes(hbm.bytes),
        "equals the closed form": {True: "yes, by array", False: "NO", None: "no closed form"}[
            result.equals_theory
        ],
        "blocks B_r × B_c": f"{blocks.B_r} × {blocks.B_c}",
        "blocks T_r × T_c": f"{blocks.T_r} × {blocks.T_c}",
        "extra HBM, elements": hbm.extra,
        "SRAM peak, elements": sram.peak,
        "  of M": f"{sram.peak / sram.capacity:.0%}{_over(sram)}",
        "error against naive": "too large"
        if result.max_error is None
        else f"{result.max_error:.1e}",
        "  of its rounding limit": None
        if share is None
        else f"{share:.3f}" + ", TOO LARGE" * (share > 1),
        "simulated in": f"{result.seconds:.2f} s",
    }


def _over(use: Occupancy) -> str:
    """Say by how much the peak exceeds M; "" where it does not."""
    return f", {use.over:,} too many" if use.over else ""


def print_count(counted: Counted) -> None:
    """Print what moved: by line of the paper, by array with its closed form, and what fills
    SRAM.
    """
    tally = counted.tally
    arguments = counted.arguments
    blocks = tally.blocks
    heads = arguments["heads"]
    M = tally.sram.capacity
    print(counted.algorithm.title)
    sizing = "given" if arguments["blocks"] is not None else arguments["sizing"]
    tried = (
        counted.algorithm.line_1 is unknown_loops and counted.agrees is None and sizing != "given"
    )
    sized = (TRIED if tried else SIZED)[sizing]
    print(
        f"M = {M:,} elements ({human_bytes(M * theory.BYTES[arguments['dtype']])} of "
        f"{arguments['dtype']}), {sized}"
    )
    print(
        f"B_r = {blocks.B_r:,}, B_c = {blocks.B_c:,}, so T_r = {blocks.T_r:,}, T_c = {blocks.T_c:,}"
    )
    papers = (
        _choosing_line(counted)
        if arguments["blocks"] is None and arguments["sizing"] == "paper"
        else ""
    )
    if papers:
        print(f"Blocks as in {papers}: its ⌈M/4d⌉ is a number of rows, so M counts elements")
    print()

    group = _group(arguments)
    one = f", one group of {group} heads" if group > 1 else ", one head" if heads > 1 else ""
    moves = ((each.label.removeprefix("line "), each) for each in counted.ledger.movements)
    lines = (
        (f"{line}  {each.kind}", each.array, each.times, each.elements) for line, each in moves
    )
    print_table(("by line of the algorithm" + one, "array", "how often", "elements"), lines)

    named = f", {heads:,} heads" if heads > 1 else ""
    formulas, notes = ({}, []) if counted.agrees is None else _formulas(counted)
    headings = (
        f"by array{named}",
        "reads",
        "writes",
        *(("reads =", "writes =") if formulas else ()),
    )
    arrays = [
        (name, a.reads, a.writes, *formulas.get(name, ())) for name, a in tally.hbm.by_array.items()
    ]
    print()
    print_table(headings, [*arrays, None, ("total", tally.hbm.reads, tally.hbm.writes)])
    for note in notes:
        print_words(note)
    verdict = {
        True: "equal to the closed form",
        False: "NOT EQUAL TO THE CLOSED FORM",
        None: "no closed form",
    }
    print(
        f"{tally.hbm.accesses:,} accesses, {human_bytes(tally.hbm.bytes)}; "
        f"{verdict[counted.agrees]}"
    )
    print_words(work(tally.flops, tally.hbm.bytes), "  ")

    print(
        f"\nSRAM at its fullest: {tally.sram.peak:,} elements, {tally.sram.peak / M:.0%} of "
        f"M{_over(tally.sram)}"
    )
    print_words(
        "= " + " + ".join(f"{name} {held:,}" for name, held in counted.ledger.at_peak.items()), "  "
    )
    if tried:
        print_words(
            "Blocks of another shape may move less: flashsim tune, with this function and sizes, "
            "looks for the best."
        )
    if papers and tally.sram.peak > M:
        said = (
            f"The blocks of {papers} need more than M: the paper's Θ(M) leaves the constant open."
        )
        print_words(f"{said} --sizing fit takes smaller ones.")


def work(flops: Flops, moved: int) -> str:
    """Say how many operations there are, and how many of those in matrix products for each byte
    that is moved.
    """
    per_byte = f", {flops.matmul / moved:.3g} per byte moved" if moved else ""
    return f"{flops.matmul:,} FLOPs in matrix products{per_byte}; {flops.other:,} others"


def _choosing_line(counted: Counted) -> str:
    """Return which line of the algorithm's listing sets the paper's block sizes; "" where none
    does.
    """
    found = re.search(r"^ +(\d+) +[^\n]*⌈M/4d⌉", counted.algorithm.listing, re.MULTILINE)
    return f"line {found[1]}" if found else ""


def _formulas(counted: Counted) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """Return each array's (reads, writes) as formulas of one plain head, a star where they do
    not give its counts; and notes.
    """
    arguments = counted.arguments
    tally = counted.tally
    direction = counted.algorithm.direction
    group = _group(arguments)
    shape = check_shape(*map(arguments.get, ("N", "d", "N_q", "N_k", "d_v")))
    problems = arguments["heads"] // group
    queries = group * shape.N_q
    sizes = queries, shape.N_k, shape.d, shape.d_v, tally.sram.capacity, tally.blocks
    values = theory.symbols(*sizes, direction=direction, name=counted.algorithm)
    form = theory.form_of(counted.algorithm, direction)

    def said(formula: str, elements: int) -> str:
        if problems * evaluated(formula, values) != elements:
            return "*"
        return formula.replace(" * ", "·") if elements else ""

    found = {}
    for array, traffic in tally.hbm.by_array.items():
        reads, writes = form.formulas.get(array, ("0", "0"))
        found[array] = said(reads, traffic.reads), said(writes, traffic.writes)
    words = " ".join(" ".join(pair) for pair in found.values())
    notes = [
        f"{symbol} = {values[symbol]:,}: {meaning}"
        for symbol, meaning in {**theory.SYMBOLS, **form.meanings}.items()
        if symbol not in ("N_q", "N_k", "d", "d_v", "T_r", "T_c")
        and re.search(rf"\b{symbol}\b", words)
    ]
    if problems > 1:
        what = "heads" if group == 1 else f"groups of {group} heads"
        notes.insert(
            0, f"each times {problems:,} {what}" + f", N_q = {queries:,} of a group" * (group > 1)
        )
    if "*" in words:
        why = (
            "mask, dropout, shared heads or an option of the algorithm make it differ from the "
            "plain formula"
        )
        notes.append(f"*: {why}")
    return found, notes


def _group(arguments: Mapping[str, Any]) -> int:
    heads: int = arguments["heads"]
    return heads // (arguments.get("kv_heads") or heads) if arguments["gqa"] == "grouped" else 1


def print_ledger(claims: Sequence[Claim]) -> None:
    """Print the ledger, one claim after another."""
    for claim in claims:
        print_words(
            f"{'holds' if claim.holds else 'FAILS'}  {claim.source}: {claim.claim}", " " * 7
        )
        print_words(f"       tried     {claim.tried}", " " * 17)
        print_words(f"       measured  {claim.measured}", " " * 17)
        print()
    failed = sum(not claim.holds for claim in claims)
    print(f"{len(claims)} claims, {f'{failed} FAIL' if failed else 'all hold'}")

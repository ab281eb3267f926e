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
    from flashsim.algorithms import Algorithm
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
"""The same for a function of the user's without a line 1 of its own: two shapes are tried."""
KNOWN_SYMBOLS = ("N_q", "N_k", "d", "d_v", "T_r", "T_c")  # printed above the formulas


def run_numbers(
    inputs: QKV, forwards: Mapping[str, Comparison], backwards: Mapping[str, Comparison]
) -> dict[str, Any]:
    """Return the results as plain data."""
    arrays = {"Q": inputs.Q, "K": inputs.K, "V": inputs.V}
    return {
        "source": inputs.source,
        "shapes": {name: list(array.shape) for name, array in arrays.items()},
        "dtype": inputs.Q.dtype.name,
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
    arguments = {}
    for name, value in counted.arguments.items():
        arguments[name] = repr(value) if name == "mask" else getattr(value, "__name__", value)
    return {
        "arguments": arguments,
        **costs.pop("hbm"),
        **costs,
        "resident_at_peak": counted.ledger.at_peak,
        "equals_theory": counted.agrees,
        "by_line": [asdict(movement) for movement in counted.ledger.movements],
    }


def print_run(
    inputs: QKV,
    forwards: Mapping[str, Comparison],
    backwards: Mapping[str, Comparison],
    description: str,
) -> None:
    """Print the comparison. `description` has the other options in words, such as "causal,
    dropout 0.1".
    """
    Q = inputs.Q
    K = inputs.K
    M = next(iter(forwards.values())).sram.capacity
    *_, N_q, d = Q.shape
    *_, N_k, _ = K.shape
    *_, d_v = inputs.V.shape
    sizes = problem(N_q, N_k, d, d_v)
    heads = _heads(inputs.heads, "head")
    kv_heads = math.prod(K.shape[:-2])
    if kv_heads < inputs.heads:
        heads += f" on {_heads(kv_heads, 'KV head')}"
    print_words(inputs.source)
    print_words(f"{heads}, {sizes}, {Q.dtype.name}" + (f", {description}" if description else ""))
    print(sram(M, Q.dtype.itemsize, Q.dtype.name) + "\n")
    for results in (forwards, backwards):
        if results:
            _print_results(results, d)


def _heads(number: int, what: str) -> str:
    return f"{number} {what}s" if number > 1 else f"{number} {what}"


def _print_results(results: Mapping[str, Comparison], d: int) -> None:
    titles = (result.title.replace(", ", ",\n") for result in results.values())
    by_array = []
    costs = []
    for result in results.values():
        by_array.append({name: array.accesses for name, array in result.hbm.by_array.items()})
        costs.append(_costs(result))
    rows: list[Sequence[Any] | None] = []
    for name in dict.fromkeys(chain.from_iterable(by_array)):
        rows.append((name, *(column.get(name) for column in by_array)))
    rows.append(None)
    for label in costs[0]:
        rows.append((label, *(column[label] for column in costs)))
    print_table(("HBM accesses, elements", *titles), rows)
    if "standard" not in results:
        return
    both = {"flash", "flash_basic"} <= results.keys()
    for name, result in results.items():
        if name in ("flash", "flash_basic"):
            ratio = results["standard"].hbm.accesses / result.hbm.accesses
            title = f"FlashAttention ({name})" if both else "FlashAttention"
            print_paragraphs(
                f"Standard attention moves {ratio:.2f}× the elements that {title} does. The factor "
                f"follows M/d², here {result.sram.capacity / d**2:.3g} (flashsim plot saved)."
            )
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
        "  of its rounding limit": None if share is None else _share(share),
        "simulated in": f"{result.seconds:.2f} s",
    }


def _share(share: float) -> str:
    return f"{share:.3f}, TOO LARGE" if share > 1 else f"{share:.3f}"


def _over(use: Occupancy) -> str:
    """Return in words by how much the peak exceeds M; "" where it does not."""
    return f", {use.over:,} too many" if use.over else ""


def print_count(counted: Counted) -> None:
    """Print the traffic: by line of the paper, by array with its closed form, and the content of
    SRAM at its peak.
    """
    arguments = counted.arguments
    sizing = "given" if arguments["blocks"] is not None else arguments["sizing"]
    # `unknown_loops` is line 1 of a function that has none of its own
    without_line_1 = counted.algorithm.line_1 is unknown_loops and counted.agrees is None
    other_shapes = without_line_1 and sizing != "given"
    line = _line_of_blocks(counted.algorithm) if sizing == "paper" else ""
    _print_blocks(counted, (TRIED if other_shapes else SIZED)[sizing], line)
    _print_lines(counted)
    _print_arrays(counted)
    _print_peak(counted)
    if other_shapes:
        print_words(
            "Blocks of another shape may move less: flashsim tune, with this function and sizes, "
            "looks for the best."
        )
    if line and counted.tally.sram.over:
        print_words(
            f"The blocks of {line} need more than M: the paper's Θ(M) leaves the constant open. "
            "--sizing fit takes smaller ones."
        )


def _print_blocks(counted: Counted, sizing: str, line: str) -> None:
    """Print the title, M and the blocks; `line` is the paper's line that chooses them, if one
    does.
    """
    blocks = counted.tally.blocks
    M = counted.tally.sram.capacity
    dtype = counted.arguments["dtype"]
    print(counted.algorithm.title)
    print(f"M = {M:,} elements ({human_bytes(M * theory.BYTES[dtype])} of {dtype}), {sizing}")
    print(
        f"B_r = {blocks.B_r:,}, B_c = {blocks.B_c:,}, so T_r = {blocks.T_r:,}, T_c = {blocks.T_c:,}"
    )
    if line:
        print(f"Blocks as in {line}: its ⌈M/4d⌉ is a number of rows, so M counts elements")
    print()


def _line_of_blocks(algorithm: Algorithm) -> str:
    """Return the line of an algorithm's listing that sets the paper's block sizes; "" where none
    does.
    """
    match = re.search(r"^ +(\d+) +[^\n]*⌈M/4d⌉", algorithm.listing, re.MULTILINE)
    return f"line {match[1]}" if match else ""


def _print_lines(counted: Counted) -> None:
    """Print what each line of the algorithm moves."""
    group = _group(counted.arguments)
    heading = "by line of the algorithm"
    if group > 1:
        heading += f", one group of {group} heads"
    elif counted.arguments["heads"] > 1:
        heading += ", one head"
    rows = []
    for each in counted.ledger.movements:
        line = each.label.removeprefix("line ")
        rows.append((f"{line}  {each.kind}", each.array, each.times, each.elements))
    print_table((heading, "array", "how often", "elements"), rows)


def _print_arrays(counted: Counted) -> None:
    """Print what moves of each array, with the closed form's formulas, the sums and the work."""
    hbm = counted.tally.hbm
    heads = counted.arguments["heads"]
    formulas: dict[str, tuple[str, str]] = {}
    notes: list[str] = []
    if counted.agrees is not None:
        formulas, notes = _formulas(counted)
    headings = [f"by array, {heads:,} heads" if heads > 1 else "by array", "reads", "writes"]
    if formulas:
        headings += ["reads =", "writes ="]
    rows: list[Sequence[Any] | None] = [
        (name, array.reads, array.writes, *formulas.get(name, ()))
        for name, array in hbm.by_array.items()
    ]
    print()
    print_table(headings, [*rows, None, ("total", hbm.reads, hbm.writes)])
    for note in notes:
        print_words(note)
    verdict = {
        True: "equal to the closed form",
        False: "NOT EQUAL TO THE CLOSED FORM",
        None: "no closed form",
    }
    print(f"{hbm.accesses:,} accesses, {human_bytes(hbm.bytes)}; {verdict[counted.agrees]}")
    print_words(work(counted.tally.flops, hbm.bytes), "  ")


def _print_peak(counted: Counted) -> None:
    """Print the peak of SRAM, and which arrays are there then."""
    use = counted.tally.sram
    share = f"{use.peak / use.capacity:.0%} of M{_over(use)}"
    print(f"\nSRAM at its fullest: {use.peak:,} elements, {share}")
    arrays = [f"{name} {elements:,}" for name, elements in counted.ledger.at_peak.items()]
    print_words(f"= {' + '.join(arrays)}", "  ")


def work(flops: Flops, moved_bytes: int) -> str:
    """Return in words how many operations there are, and how many of those in matrix products for
    each byte moved.
    """
    products = f"{flops.matmul:,} FLOPs in matrix products"
    if moved_bytes:
        products += f", {flops.matmul / moved_bytes:.3g} per byte moved"
    return f"{products}; {flops.other:,} others"


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

    def checked(formula: str, elements: int) -> str:
        if problems * evaluated(formula, values) != elements:
            return "*"
        return formula.replace(" * ", "·") if elements else ""

    formulas = {}
    for array, traffic in tally.hbm.by_array.items():
        reads, writes = form.formulas.get(array, ("0", "0"))
        formulas[array] = (checked(reads, traffic.reads), checked(writes, traffic.writes))
    text = " ".join(chain.from_iterable(formulas.values()))
    notes = []
    if problems > 1:
        note = f"each times {problems:,} heads"
        if group > 1:
            note = f"each times {problems:,} groups of {group} heads, N_q = {queries:,} of a group"
        notes.append(note)
    for symbol, meaning in {**theory.SYMBOLS, **form.meanings}.items():
        if symbol not in KNOWN_SYMBOLS and re.search(rf"\b{symbol}\b", text):
            notes.append(f"{symbol} = {values[symbol]:,}: {meaning}")
    if "*" in text:
        notes.append(
            "*: mask, dropout, shared heads or an option of the algorithm make it differ from the "
            "plain formula"
        )
    return formulas, notes


def _group(arguments: Mapping[str, Any]) -> int:
    """Return how many query heads run as one problem."""
    if arguments["gqa"] != "grouped":
        return 1
    heads: int = arguments["heads"]
    kv_heads: int = arguments.get("kv_heads") or heads
    return heads // kv_heads


def print_ledger(claims: Sequence[Claim]) -> None:
    """Print the ledger, one claim after another."""
    for claim in claims:
        verdict = "holds" if claim.holds else "FAILS"
        print_words(f"{verdict}  {claim.source}: {claim.claim}", " " * 7)
        print_words(f"       tried     {claim.tried}", " " * 17)
        print_words(f"       measured  {claim.measured}", " " * 17)
        print()
    failed = sum(not claim.holds for claim in claims)
    summary = f"{failed} FAIL" if failed else "all hold"
    print(f"{len(claims)} claims, {summary}")

"""What the command line prints: tables for people, plain numbers for JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from flashsim import theory
from flashsim.algorithms import Algorithm
from flashsim.algorithms.own import forward_of
from flashsim.qkv import QKV
from flashsim.records import Traffic
from flashsim.sizes import human_bytes
from flashsim.tables import console_for_tables, new_table

if TYPE_CHECKING:
    from rich.console import Console

    from flashsim.comparison import Counted, Result
    from flashsim.verify import Claim


def run_numbers(given: QKV, forwards: Mapping[str, Result], backwards: Mapping[str, Result]) -> dict[str, Any]:
    """Return the results as plain data."""
    shapes = {name: list(array.shape) for name, array in (("Q", given.Q), ("K", given.K), ("V", given.V))}
    return {
        "source": given.source,
        "shapes": shapes,
        "dtype": given.Q.dtype.name,
        "algorithms": {name: _numbers(result) for name, result in forwards.items()},
        "backward": {name: _numbers(result) for name, result in backwards.items()},
    }


def _numbers(result: Result) -> dict[str, Any]:
    return {
        **result.hbm.to_dict(),
        "sram": asdict(result.sram),
        "blocks": asdict(result.blocks),
        "max_error": result.max_error,
        "error_of_rounding_bound": result.error_of_bound,
        "equals_theory": result.equals_theory,
    }


def count_numbers(counted: Counted) -> dict[str, Any]:
    """Return a count as plain data."""
    return {
        "algorithm": counted.tally.algorithm,
        "arguments": {key: getattr(value, "__name__", value) for key, value in counted.arguments.items()},
        **counted.tally.hbm.to_dict(),
        "sram": asdict(counted.tally.sram),
        "resident_at_peak": counted.ledger.at_peak,
        "blocks": asdict(counted.tally.blocks),
        "flops": asdict(counted.tally.flops),
        "equals_theory": counted.agrees,
        "by_line": [asdict(movement) for movement in counted.ledger.movements],
    }


def print_run(given: QKV, forwards: Mapping[str, Result], backwards: Mapping[str, Result], asked: str) -> None:
    """Print the comparison. `asked` says what was asked besides, such as "causal, dropout 0.1"."""
    console, M = console_for_tables(), next(iter(forwards.values())).sram.capacity
    N_q, d, N_k, d_v = given.Q.shape[-2], given.Q.shape[-1], given.K.shape[-2], given.V.shape[-1]
    lengths = f"N = {N_q:,}" if N_q == N_k else f"N_q = {N_q:,}, N_k = {N_k:,}"
    widths = f"d = {d}" if d == d_v else f"d = {d}, d_v = {d_v}"
    console.print(given.source)
    kv_heads = math.prod(given.K.shape[:-2])
    heads = f"{given.heads} head(s)" + (f" on {kv_heads} KV head(s)" if kv_heads < given.heads else "")
    console.print(f"{heads}, {lengths}, {widths}, {given.Q.dtype.name}" + (f", {asked}" if asked else ""))
    console.print(f"SRAM of M = {M:,} elements ({human_bytes(M * given.Q.dtype.itemsize)} of {given.Q.dtype.name})\n")
    for results in (forwards, backwards):
        if results:
            _print_results(console, results)


def _print_results(console: Console, results: Mapping[str, Result]) -> None:
    table = new_table("HBM accesses in elements", *(result.title for result in results.values()))
    arrays = [name for result in results.values() for name in result.hbm.by_array]
    for array in dict.fromkeys(arrays):
        table.add_row(array, *(_accesses(result.hbm, array) for result in results.values()))
    table.add_section()
    for label, cell in _RUN_ROWS:
        table.add_row(label, *(cell(result) for result in results.values()))
    console.print(table)
    for flash in {"flash", "flash_basic"} & results.keys():
        if "standard" in results:
            ratio = results["standard"].hbm.accesses / results[flash].hbm.accesses
            console.print(f"\nStandard attention moves {ratio:.2f}× the elements that FlashAttention does.\n")


_RUN_ROWS: tuple[tuple[str, Callable[[Result], str]], ...] = (
    ("reads", lambda r: f"{r.hbm.reads:,}"),
    ("writes", lambda r: f"{r.hbm.writes:,}"),
    ("  of them initial", lambda r: f"{r.hbm.init_writes:,}"),
    ("accesses", lambda r: f"{r.hbm.accesses:,}"),
    ("bytes", lambda r: human_bytes(r.hbm.bytes)),
    (
        "equal to the closed form",
        lambda r: {True: "yes, by array", False: "NO", None: "no closed form"}[r.equals_theory],
    ),
    ("blocks B_r × B_c", lambda r: f"{r.blocks.B_r} × {r.blocks.B_c}"),
    ("blocks T_r × T_c", lambda r: f"{r.blocks.T_r} × {r.blocks.T_c}"),
    ("extra HBM, elements", lambda r: f"{r.hbm.extra:,}"),
    ("SRAM peak, elements", lambda r: f"{r.sram.peak:,} ({r.sram.peak / r.sram.capacity:.0%} of M)"),
    ("max error against naive", lambda r: "too large" if r.max_error is None else f"{r.max_error:.1e}"),
    (
        "  of its rounding bound",
        lambda r: (
            "–" if r.error_of_bound is None else f"{r.error_of_bound:.3f}" + ", TOO LARGE" * (r.error_of_bound > 1)
        ),
    ),
    ("simulated in", lambda r: f"{r.seconds:.2f} s"),
)


def _accesses(traffic: Traffic, array: str) -> str:
    return f"{traffic.by_array[array].accesses:,}" if array in traffic.by_array else "–"


def print_count(counted: Counted) -> None:
    """Print what moved: by line of the paper, by array with its closed form, and what fills SRAM."""
    console, tally = console_for_tables(), counted.tally
    itemsize = theory.BYTES[counted.arguments["dtype"]]
    blocks, heads = tally.blocks, counted.arguments["heads"]
    console.print(counted.algorithm.title)
    console.print(
        f"M = {tally.sram.capacity:,} elements ({human_bytes(tally.sram.capacity * itemsize)} of "
        f"{counted.arguments['dtype']}): M counts elements, so that line 1's ⌈M/4d⌉ is a number of rows"
    )
    console.print(f"B_r = {blocks.B_r:,}, B_c = {blocks.B_c:,}, so T_r = {blocks.T_r:,}, T_c = {blocks.T_c:,}\n")

    together = counted.arguments.get("gqa") == "grouped" and _group(counted.arguments) > 1
    one = f", one group of {_group(counted.arguments)} heads" if together else ", one head" if heads > 1 else ""
    lines = new_table("by line of the algorithm" + one, "array", "how often", "elements")
    for movement in counted.ledger.movements:
        label = movement.label.removeprefix("line ")
        lines.add_row(f"{label}  {movement.kind}", movement.array, f"{movement.times:,}", f"{movement.elements:,}")
    console.print(lines)

    arrays = new_table(
        "by array" + (f", {heads:,} heads" if heads > 1 else ""), "reads", "writes", "reads =", "writes ="
    )
    formulas = {} if counted.agrees is None else _formulas(counted.algorithm, counted.arguments)
    for array, traffic in tally.hbm.by_array.items():
        reads, writes = (_pretty(formula) for formula in formulas.get(array, ("0", "0")))
        arrays.add_row(array, f"{traffic.reads:,}", f"{traffic.writes:,}", reads, writes)
    arrays.add_section()
    arrays.add_row("total", f"{tally.hbm.reads:,}", f"{tally.hbm.writes:,}")
    console.print()
    console.print(arrays)
    console.print(
        f"{tally.hbm.accesses:,} accesses, {human_bytes(tally.hbm.bytes)}; "
        + {True: "equal to the closed form", False: "NOT EQUAL TO THE CLOSED FORM", None: "no closed form"}[
            counted.agrees
        ]
    )

    held = " + ".join(f"{name} {elements:,}" for name, elements in counted.ledger.at_peak.items())
    console.print(
        f"\nSRAM at its fullest: {tally.sram.peak:,} elements, {tally.sram.peak / tally.sram.capacity:.0%} of M"
    )
    console.print(f"  = {held}")


def _formulas(algorithm: Algorithm, arguments: Mapping[str, Any]) -> Mapping[str, tuple[str, str]]:
    """Return each array's (reads, writes) as text, where they are the plain ones: no mask, no dropout, no tile skipped.

    Nor for query heads that share a KV head, where that changes them: grouped, N_q is g·N_q; else, backward adds a sum.
    """
    changed = arguments.get("gqa") == "grouped" or arguments.get("direction") == "backward"
    if _group(arguments) > 1 and changed:
        return {}
    if arguments.get("causal") or arguments.get("dropout_p"):
        return {}
    if any(
        not option.is_default(arguments.get(option.name, option.default)) for option in forward_of(algorithm).options
    ):
        return {}
    return theory.formulas(algorithm, algorithm.direction)


def _group(arguments: Mapping[str, Any]) -> int:
    """Return how many query heads share a KV head."""
    heads: int = arguments["heads"]
    return heads // (arguments.get("kv_heads") or heads)


def _pretty(formula: str) -> str:
    return formula.replace(" * ", "·") if formula != "0" else ""


# -------------------------------------------------------------------------------------------------------------- verify


def print_ledger(claims: Sequence[Claim]) -> None:
    """Print the ledger, one claim after another."""
    console = console_for_tables()
    for claim in claims:
        console.print(f"{'holds' if claim.holds else 'FAILS'}  {claim.source}: {claim.claim}")
        console.print(f"       tried     {claim.tried}")
        console.print(f"       measured  {claim.measured}\n")
    failed = sum(not claim.holds for claim in claims)
    console.print(f"{len(claims)} claims, {f'{failed} FAIL' if failed else 'all hold'}")

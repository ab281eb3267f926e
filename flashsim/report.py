"""What the command line prints: tables for people, plain numbers for JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flashsim import theory
from flashsim.algorithms import FORWARD
from flashsim.api import Tally, count, forward
from flashsim.inputs import Array
from flashsim.observers import Ledger
from flashsim.qkv import QKV
from flashsim.records import Blocks, Occupancy, Traffic
from flashsim.reference import attention, error_bound
from flashsim.sizes import human_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from flashsim.verify import Claim

ROWS_AT_ONCE = 1_024  # of the N_q × N_k score matrix that the naive reference forms


# ----------------------------------------------------------------------------------------------------------------- run


@dataclass(frozen=True)
class Result:
    """One algorithm over all heads: what it cost, how far from naive attention it came, whether theory agrees."""

    hbm: Traffic
    sram: Occupancy
    blocks: Blocks
    max_error: float
    error_of_bound: float
    equals_theory: bool
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the counts equal theory and the error is within rounding."""
        return self.equals_theory and self.error_of_bound <= 1.0


def run_all(given: QKV, names: Sequence[str], progress: Progress, **options: Any) -> dict[str, Result]:
    """Run each algorithm on each head; each head runs on its own and the counts add up."""
    results = {}
    for name in names:
        task = progress.add_task(FORWARD[name].title, total=given.heads)
        traffic, worst, worst_of_bound, seconds = Traffic(), 0.0, 0.0, 0.0
        for Q, K, V in given.each_head():
            start = time.perf_counter()
            run = forward(name, Q, K, V, **options)
            seconds += time.perf_counter() - start
            traffic += run.hbm
            error, of_bound = _compare(name, run.O, Q, K, V, options["scale"], run.blocks.T_c)
            worst, worst_of_bound = max(worst, error), max(worst_of_bound, of_bound)
            progress.advance(task)
        want = theory.exact(name, **_theory_arguments(given, options))
        agree = (traffic, run.sram, run.blocks) == (want.hbm, want.sram, want.blocks)
        results[name] = Result(traffic, run.sram, run.blocks, worst, worst_of_bound, agree, seconds)
    return results


def _theory_arguments(given: QKV, options: Mapping[str, Any]) -> dict[str, Any]:
    shape = {"N_q": given.Q.shape[-2], "N_k": given.K.shape[-2], "d": given.Q.shape[-1], "d_v": given.V.shape[-1]}
    rest = {name: options[name] for name in ("M", "sizing", "blocks")}
    return {**shape, **rest, "heads": given.heads, "dtype": given.Q.dtype.name}


def _compare(name: str, O: Array, Q: Array, K: Array, V: Array, scale: float | None, T_c: int) -> tuple[float, float]:
    """Return the largest error against naive attention in float64, plain and as a part of its rounding bound."""
    worst = of_bound = 0.0
    stored = FORWARD[name].stores_scores
    for top in range(0, len(Q), ROWS_AT_ONCE):
        rows = slice(top, top + ROWS_AT_ONCE)
        error = np.abs(O[rows].astype(np.float64) - attention(Q[rows], K, V, scale=scale))
        bound = error_bound(Q[rows], K, V, scale=scale, steps=T_c, scores_stored=stored)
        worst = max(worst, float(error.max()))
        of_bound = max(of_bound, float(np.divide(error, bound, out=np.zeros_like(error), where=error > 0).max()))
    return worst, of_bound


def run_numbers(given: QKV, results: Mapping[str, Result]) -> dict[str, Any]:
    """Return the results as plain data."""
    shapes = {name: list(array.shape) for name, array in (("Q", given.Q), ("K", given.K), ("V", given.V))}
    return {
        "source": given.source,
        "shapes": shapes,
        "dtype": given.Q.dtype.name,
        "algorithms": {
            name: {
                **traffic_numbers(result.hbm),
                "sram": asdict(result.sram),
                "blocks": asdict(result.blocks),
                "max_error": result.max_error,
                "error_of_rounding_bound": result.error_of_bound,
                "equals_theory": result.equals_theory,
            }
            for name, result in results.items()
        },
    }


def traffic_numbers(traffic: Traffic) -> dict[str, Any]:
    """Return HBM accesses as plain data, in elements and bytes."""
    names = ("reads", "writes", "init_writes", "accesses", "bytes")
    by_array = {array: {name: getattr(a, name) for name in names} for array, a in traffic.by_array.items()}
    return {**{name: getattr(traffic, name) for name in names}, "by_array": by_array}


def print_run(given: QKV, results: Mapping[str, Result]) -> None:
    """Print the comparison."""
    console, some = _console(), next(iter(results.values()))
    N_q, d, N_k, d_v = given.Q.shape[-2], given.Q.shape[-1], given.K.shape[-2], given.V.shape[-1]
    itemsize, M = given.Q.dtype.itemsize, some.sram.capacity
    lengths = f"N = {N_q:,}" if N_q == N_k else f"N_q = {N_q:,}, N_k = {N_k:,}"
    widths = f"d = {d}" if d == d_v else f"d = {d}, d_v = {d_v}"
    console.print(given.source)
    console.print(f"{given.heads} head(s), {lengths}, {widths}, {given.Q.dtype.name}")
    console.print(f"SRAM of M = {M:,} elements ({human_bytes(M * itemsize)} of {given.Q.dtype.name})\n")
    table = _table("HBM accesses in elements", *(FORWARD[name].title for name in results))
    arrays = [name for result in results.values() for name in result.hbm.by_array]
    for array in dict.fromkeys(arrays):
        table.add_row(array, *(_accesses(result.hbm, array) for result in results.values()))
    table.add_section()
    for label, cell in _RUN_ROWS:
        table.add_row(label, *(cell(result) for result in results.values()))
    console.print(table)
    if {"standard", "flash_basic"} <= results.keys():
        ratio = results["standard"].hbm.accesses / results["flash_basic"].hbm.accesses
        console.print(f"\nStandard attention moves {ratio:.2f}× the elements that FlashAttention does.")


_RUN_ROWS: tuple[tuple[str, Callable[[Result], str]], ...] = (
    ("reads", lambda r: f"{r.hbm.reads:,}"),
    ("writes", lambda r: f"{r.hbm.writes:,}"),
    ("  of them initial", lambda r: f"{r.hbm.init_writes:,}"),
    ("accesses", lambda r: f"{r.hbm.accesses:,}"),
    ("bytes", lambda r: human_bytes(r.hbm.bytes)),
    ("equal to the closed form", lambda r: "yes, by array" if r.equals_theory else "NO"),
    ("blocks B_r × B_c", lambda r: f"{r.blocks.B_r} × {r.blocks.B_c}"),
    ("blocks T_r × T_c", lambda r: f"{r.blocks.T_r} × {r.blocks.T_c}"),
    ("extra HBM, elements", lambda r: f"{r.hbm.extra:,}"),
    ("SRAM peak, elements", lambda r: f"{r.sram.peak:,} ({r.sram.peak / r.sram.capacity:.0%} of M)"),
    ("max error against naive", lambda r: f"{r.max_error:.1e}"),
    ("  of its rounding bound", lambda r: f"{r.error_of_bound:.3f}" + ("" if r.error_of_bound <= 1 else ", TOO LARGE")),
    ("simulated in", lambda r: f"{r.seconds:.2f} s"),
)


def _accesses(traffic: Traffic, array: str) -> str:
    return f"{traffic.by_array[array].accesses:,}" if array in traffic.by_array else "–"


# --------------------------------------------------------------------------------------------------------------- count


@dataclass(frozen=True)
class Counted:
    """A tally with its line-by-line ledger, and whether the closed form agrees."""

    tally: Tally
    ledger: Ledger
    arguments: Mapping[str, Any]
    agrees: bool

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "algorithm": self.tally.algorithm,
            "arguments": dict(self.arguments),
            **traffic_numbers(self.tally.hbm),
            "sram": asdict(self.tally.sram),
            "resident_at_peak": self.ledger.at_peak,
            "blocks": asdict(self.tally.blocks),
            "flops": asdict(self.tally.flops),
            "equals_theory": self.agrees,
            "by_line": [asdict(movement) for movement in self.ledger.movements],
        }


def count_lines(name: str, arguments: Mapping[str, Any]) -> Counted:
    """Count a run and keep which line moved what. Arguments as for `flashsim.count`."""
    ledger = Ledger()
    tally = count(name, **arguments, observers=[ledger])
    want = theory.exact(name, **arguments)
    agrees = (tally.hbm, tally.sram, tally.blocks) == (want.hbm, want.sram, want.blocks)
    return Counted(tally, ledger, arguments, agrees)


def print_count(counted: Counted) -> None:
    """Print what moved: by line of the paper, by array with its closed form, and what fills SRAM."""
    console, tally = _console(), counted.tally
    itemsize = theory.BYTES[counted.arguments["dtype"]]
    blocks, heads = tally.blocks, counted.arguments["heads"]
    console.print(FORWARD[tally.algorithm].title)
    console.print(
        f"M = {tally.sram.capacity:,} elements ({human_bytes(tally.sram.capacity * itemsize)} of "
        f"{counted.arguments['dtype']}): M counts elements, so that line 1's ⌈M/4d⌉ is a number of rows"
    )
    console.print(f"B_r = {blocks.B_r:,}, B_c = {blocks.B_c:,}, so T_r = {blocks.T_r:,}, T_c = {blocks.T_c:,}\n")

    lines = _table("by line of the algorithm" + (", one head" if heads > 1 else ""), "array", "how often", "elements")
    if tally.hbm.init_writes:
        lines.add_row("2  initialise", "", "1", f"{tally.hbm.init_writes // heads:,}")
    for movement in counted.ledger.movements:
        lines.add_row(
            f"{movement.line}  {movement.kind}", movement.array, f"{movement.times:,}", f"{movement.elements:,}"
        )
    console.print(lines)

    arrays = _table("by array" + (f", {heads:,} heads" if heads > 1 else ""), "reads", "writes", "reads =", "writes =")
    for array, traffic in tally.hbm.by_array.items():
        reads, writes = (_pretty(formula) for formula in theory.FORMULAS[tally.algorithm][array])
        arrays.add_row(array, f"{traffic.reads:,}", f"{traffic.writes:,}", reads, writes)
    arrays.add_section()
    arrays.add_row("total", f"{tally.hbm.reads:,}", f"{tally.hbm.writes:,}")
    console.print()
    console.print(arrays)
    console.print(
        f"{tally.hbm.accesses:,} accesses, {human_bytes(tally.hbm.bytes)}; "
        + ("equal to the closed form" if counted.agrees else "NOT EQUAL TO THE CLOSED FORM")
    )

    held = " + ".join(f"{name} {elements:,}" for name, elements in counted.ledger.at_peak.items())
    console.print(
        f"\nSRAM at its fullest: {tally.sram.peak:,} elements, {tally.sram.peak / tally.sram.capacity:.0%} of M"
    )
    console.print(f"  = {held}")


def _pretty(formula: str) -> str:
    return formula.replace(" * ", "·") if formula != "0" else ""


# -------------------------------------------------------------------------------------------------------------- verify


def print_ledger(claims: Sequence[Claim]) -> None:
    """Print the ledger, one claim after another."""
    console = _console()
    for claim in claims:
        console.print(f"{'holds' if claim.holds else 'FAILS'}  {claim.source}: {claim.claim}")
        console.print(f"       tried     {claim.tried}")
        console.print(f"       measured  {claim.measured}\n")
    failed = sum(not claim.holds for claim in claims)
    console.print(f"{len(claims)} claims, {f'{failed} FAIL' if failed else 'all hold'}")


# -------------------------------------------------------------------------------------------------------------- shared


def _console() -> Console:
    """Return a console that neither wraps nor colours what goes into a pipe."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, soft_wrap=True)
    return console if console.is_terminal else Console(highlight=False, markup=False, soft_wrap=True, width=200)


def _table(first: str, *columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="left" if column.endswith(("=", "array")) else "right", no_wrap=True)
    return table

"""What the command line prints: tables for people, plain numbers for JSON."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flashsim import theory
from flashsim.algorithms import Algorithm
from flashsim.algorithms.own import backward_of, chosen
from flashsim.api import Gradients, Run, Tally, backward, count, forward
from flashsim.dropout import keep_mask
from flashsim.groups import interleave
from flashsim.inputs import Array
from flashsim.observers import Ledger
from flashsim.qkv import QKV
from flashsim.records import Blocks, Occupancy, Traffic
from flashsim.reference import (
    attention,
    backward_rounding,
    error_bound,
    gradient_bounds,
    gradients,
    group_bound,
    rounding,
)
from flashsim.run.task import attended
from flashsim.sizes import human_bytes
from flashsim.tables import console_for_tables, new_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from flashsim.verify import Claim

ROWS_AT_ONCE = 1_024  # of the N_q × N_k score matrix that the naive reference forms
LARGEST_GRADIENT = 2**25  # elements of that matrix up to which gradients are compared: its 20-odd copies fill 8 GB


# ----------------------------------------------------------------------------------------------------------------- run


@dataclass(frozen=True)
class Result:
    """One pass of one algorithm over all heads: what it cost, how far from naive attention, whether theory agrees.

    The errors are None where naive attention was too large to form.
    """

    title: str
    hbm: Traffic
    sram: Occupancy
    blocks: Blocks
    max_error: float | None
    error_of_bound: float | None
    equals_theory: bool | None
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the counts equal theory and the error is within rounding, as far as compared."""
        return self.equals_theory is not False and (self.error_of_bound is None or self.error_of_bound <= 1.0)


def run_all(
    given: QKV, algorithms: Sequence[Any], progress: Progress, *, both_ways: bool, **options: Any
) -> tuple[dict[str, Result], dict[str, Result]]:
    """Run each algorithm forward, and backward for a random dO if `both_ways`; return the results of each direction, by name."""
    forwards, backwards = {}, {}
    for what in algorithms:
        algorithm = chosen(what, "forward")
        name, back = algorithm.name, backward_of(algorithm) if both_ways else None
        on_head = _progress_bar(progress, algorithm.title, given.heads)
        start = time.perf_counter()
        run = forward(algorithm, given.Q, given.K, given.V, **options, on_head=on_head)
        seconds = time.perf_counter() - start
        errors = _worst(_forward_errors(algorithm, run))
        forwards[name] = _result(algorithm, run, run.hbm, run.sram, run.blocks, errors, seconds)
        if back is None:
            continue
        dO = np.random.default_rng(0).standard_normal(run.O.shape).astype(run.O.dtype)
        on_head = _progress_bar(progress, back.title, given.heads)
        start = time.perf_counter()
        found = backward(back, run, dO, on_head=on_head)
        seconds = time.perf_counter() - start
        errors = _worst(_backward_errors(run, found, dO))
        backwards[name] = _result(back, run, found.hbm, found.sram, found.blocks, errors, seconds)
    return forwards, backwards


def _progress_bar(progress: Progress, title: str, heads: int) -> Callable[[int, int], None]:
    task = progress.add_task(title, total=heads)
    return lambda done, of: progress.update(task, completed=done, total=of)


def _result(
    algorithm: Algorithm,
    run: Run,
    hbm: Traffic,
    sram: Occupancy,
    blocks: Blocks,
    errors: tuple[float, float] | None,
    seconds: float,
) -> Result:
    worst, of_bound = errors or (None, None)
    agrees = _agrees(algorithm, run, hbm, sram, blocks)
    return Result(algorithm.title, hbm, sram, blocks, worst, of_bound, agrees, seconds)


def _agrees(algorithm: Algorithm, run: Run, hbm: Traffic, sram: Occupancy, blocks: Blocks) -> bool | None:
    """Whether theory says the same; None where it says nothing: of an algorithm without a form, and of masks by head."""
    if run.variant.mask.per_head or not _has_form(algorithm):
        return None
    shape, variant = run.inputs.shape, run.variant
    want = theory.exact(
        algorithm,
        N_q=shape.N_q,
        N_k=shape.N_k,
        d=shape.d,
        d_v=shape.d_v,
        M=sram.capacity,
        heads=math.prod(run.inputs.leading),
        kv_heads=math.prod(run.inputs.K.shape[:-2]),
        gqa=run.gqa,
        dtype=run.inputs.dtype.name,
        blocks=(blocks.B_r, blocks.B_c),
        direction=algorithm.direction,
        mask=variant.mask,
        dropout_p=variant.dropout_p,
        **variant.options,
    )
    return (hbm, sram.peak, blocks) == (want.hbm, want.sram.peak, want.blocks)


def _has_form(algorithm: Algorithm) -> bool:
    try:
        theory.form_of(algorithm, algorithm.direction)
    except ValueError:
        return False
    return True


def _forward_errors(algorithm: Algorithm, run: Run) -> Iterator[tuple[Array, Array]]:
    """Yield (error, bound) of O, some rows of one head at a time."""
    given, variant, shape = run.inputs, run.variant, run.inputs.shape
    for number, head in enumerate(np.ndindex(given.leading)):
        Q, K, V = given.Q[head], given.K[given.kv(head)], given.V[given.kv(head)]
        whole, keep = _whole_masks(run, head, number)
        for top in range(0, shape.N_q, ROWS_AT_ONCE):
            rows = slice(top, top + ROWS_AT_ONCE)
            parts: dict[str, Any] = {
                "scale": run.scale,
                "mask": None if whole is None else whole[rows],
                "keep": None if keep is None else keep[rows],
                "dropout_p": variant.dropout_p,
            }
            error = np.abs(run.O[head][rows].astype(np.float64) - attention(Q[rows], K, V, **parts))
            yield error, error_bound(Q[rows], K, V, **rounding(algorithm, run.blocks), **parts)


def _backward_errors(run: Run, found: Gradients, dO: Array) -> Iterator[tuple[Array, Array]]:
    """Yield (error, bound) of dQ, dK and dV, one KV head with its query heads at a time."""
    given, variant, shape, g = run.inputs, run.variant, run.inputs.shape, run.inputs.group
    if g * shape.N_q * shape.N_k > LARGEST_GRADIENT:
        return
    rounded = backward_rounding(run.algorithm, run.blocks, found.blocks)
    heads = list(enumerate(np.ndindex(given.leading)))
    for first in range(0, len(heads), g):
        sharing = heads[first : first + g]
        shared = given.kv(sharing[0][1])
        masks = [_whole_masks(run, head, number) for number, head in sharing]
        whole, keep = (None if of[0] is None else np.stack(of) for of in zip(*masks, strict=True))
        Q, dO_h, dQ = (np.stack([a[head] for _, head in sharing]) for a in (given.Q, dO, found.dQ))
        if run.gqa == "grouped":
            whole, keep = (None if a is None else interleave(a, g) for a in (whole, keep))
            Q, dO_h, dQ = interleave(Q, g), interleave(dO_h, g), interleave(dQ, g)
        operands = Q, given.K[shared], given.V[shared], dO_h
        parts: dict[str, Any] = {"scale": run.scale, "mask": whole, "keep": keep, "dropout_p": variant.dropout_p}
        want, bound = gradients(*operands, **parts), gradient_bounds(*operands, **rounded, **parts)
        yield np.abs(dQ.astype(np.float64) - want.dQ), bound.dQ
        for got, exact, off in ((found.dK, want.dK, bound.dK), (found.dV, want.dV, bound.dV)):
            off = off[0] if len(exact) == 1 else group_bound(exact, off, stored=given.dtype)
            yield np.abs(got[shared].astype(np.float64) - exact.sum(axis=0)), off


def _whole_masks(run: Run, head: tuple[int, ...], number: int) -> tuple[Array | None, Array | None]:
    shape, variant = run.inputs.shape, run.variant
    keep = keep_mask(variant.seed, variant.dropout_p, shape.N_q, shape.N_k, number) if variant.dropout_p else None
    return attended(variant, run.blocks, shape, head, run.inputs.group if run.gqa == "grouped" else 1), keep


def _worst(errors: Iterable[tuple[Array, Array]]) -> tuple[float, float] | None:
    """Return the largest error, plain and as a part of its bound; None if nothing was compared."""
    worst: tuple[float, float] | None = None
    for error, bound in errors:
        of_bound = np.divide(error, bound, out=np.where(error > 0, np.inf, 0.0), where=bound > 0)
        before = worst or (0.0, 0.0)
        worst = max(before[0], float(error.max())), max(before[1], float(of_bound.max()))
    return worst


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
        **traffic_numbers(result.hbm),
        "sram": asdict(result.sram),
        "blocks": asdict(result.blocks),
        "max_error": result.max_error,
        "error_of_rounding_bound": result.error_of_bound,
        "equals_theory": result.equals_theory,
    }


def traffic_numbers(traffic: Traffic) -> dict[str, Any]:
    """Return HBM accesses as plain data, in elements and bytes."""
    names = ("reads", "writes", "init_writes", "accesses", "bytes")
    by_array = {array: {name: getattr(a, name) for name in names} for array, a in traffic.by_array.items()}
    return {**{name: getattr(traffic, name) for name in names}, "by_array": by_array}


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


# --------------------------------------------------------------------------------------------------------------- count


@dataclass(frozen=True)
class Counted:
    """A tally with its line-by-line ledger, and whether the closed form agrees: None where there is none."""

    algorithm: Algorithm
    tally: Tally
    ledger: Ledger
    arguments: Mapping[str, Any]
    agrees: bool | None

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "algorithm": self.tally.algorithm,
            "arguments": {key: getattr(value, "__name__", value) for key, value in self.arguments.items()},
            **traffic_numbers(self.tally.hbm),
            "sram": asdict(self.tally.sram),
            "resident_at_peak": self.ledger.at_peak,
            "blocks": asdict(self.tally.blocks),
            "flops": asdict(self.tally.flops),
            "equals_theory": self.agrees,
            "by_line": [asdict(movement) for movement in self.ledger.movements],
        }


def count_lines(what: Any, arguments: Mapping[str, Any]) -> Counted:
    """Count a run and keep which line moved what. Arguments as for `flashsim.count`."""
    algorithm, ledger = chosen(what, arguments["direction"]), Ledger()
    tally = count(algorithm, **arguments, observers=[ledger])
    agrees = None
    if _has_form(algorithm):
        want = theory.exact(algorithm, **arguments)
        agrees = (tally.hbm, tally.sram, tally.blocks) == (want.hbm, want.sram, want.blocks)
    return Counted(algorithm, tally, ledger, arguments, agrees)


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
    if arguments.get("splits") is not None or arguments.get("merge", "sequence") != "sequence":
        return {}
    if arguments.get("causal") or arguments.get("dropout_p") or arguments.get("block_mask") is not None:
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

"""What `flashsim count` does with a function of the user's: it calls it, and prints what the
function's kernels and operators move.
"""

from __future__ import annotations

import argparse
import linecache
from bdb import BdbQuit
from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from traceback import walk_tb
from typing import Any

from flashsim import profiling
from flashsim.attention.problem import Problem
from flashsim.cli.outputs import finish
from flashsim.profiling import Law, Profile, ProfilingError
from flashsim.profiling.comparing import Nearest
from flashsim.profiling.recording import SECTOR, Line, LineTraffic
from flashsim.support.install import extra_with
from flashsim.support.sizes import human_bytes
from flashsim.support.tables import print_table, print_words

LONGEST = 2048
"""The longest N at which a kernel is run; beyond it, minutes become hours."""
NOT_FOR_KERNELS = (
    ("offset", "--offset"),
    ("sink", "--sink"),
    ("blocks", "--blocks"),
    ("mask", "--mask"),
    ("enforce", "--no-enforce"),
)
"""Options that say what flashsim's programs compute, by their names in a command's values."""


def run(options: argparse.Namespace, function: Callable[..., Any]) -> int:
    """Count the function's kernels as the options say, and print what they move; at long lengths by
    the law that short ones follow. Raises ValueError.
    """
    _check_options(options)
    is_long = options.N is not None and options.N > LONGEST
    try:
        if is_long and options.N_q is None and options.N_k is None:
            law = profiling.law(function, _problem(options), **_call(options))
            traffic = law.traffic(options.N)
            plain = {"law": law.to_dict(), "N": options.N, **traffic.to_dict()}
            finish(options, plain, lambda: _show_law(law, options.N))
            return 0
        counts = _profile(options, function)
    except ProfilingError as error:
        raise ValueError(str(error)) from error
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{error.name} is not installed; kernels of Triton need it: {extra_with('triton')}"
        ) from None
    except (BdbQuit, ValueError):
        raise
    except Exception as error:  # of the user's function, whatever it is
        place = _place_of(error, function)
        raise ValueError(f"{place} raised {type(error).__name__}: {error}") from error
    finish(options, _numbers(counts, options.M), lambda: _show(counts, options.M))
    return 0


def _place_of(error: Exception, function: Callable[..., Any]) -> str:
    """Return the innermost line of the function's own file that an error passed; the function's
    name where there is none.
    """
    code = getattr(function, "__code__", None)
    file = None if code is None else code.co_filename
    lines = [
        line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == file
    ]
    if not lines:
        return str(getattr(function, "__name__", "the function"))
    return _place(Line(str(file), lines[-1]))


def _check_options(options: argparse.Namespace) -> None:
    for name, flag in NOT_FOR_KERNELS:
        if getattr(options, name) is not None:
            raise ValueError(f"argument {flag}: it is for flashsim's algorithms, not for a kernel")
    if options.dropout_p:
        raise ValueError("argument --dropout: a kernel is counted without dropout")


def _call(options: argparse.Namespace) -> dict[str, Any]:
    """Return how the function is called, besides its problem."""
    how = {"layout": options.layout, "direction": options.direction}
    return {**dict(options.option), **how}


def _profile(options: argparse.Namespace, function: Callable[..., Any]) -> Profile:
    if not signature(function).parameters:
        return profiling.count(function)
    return profiling.count_attention(function, _problem(options), **_call(options))


def _problem(options: argparse.Namespace) -> Problem:
    if options.d is None:
        raise ValueError("the following arguments are required: --d")
    return Problem.of(
        N=options.N,
        N_q=options.N_q,
        N_k=options.N_k,
        d=options.d,
        d_v=options.d_v,
        heads=options.heads,
        kv_heads=options.kv_heads,
        dtype=options.dtype,
        causal=options.causal,
    )


def _numbers(counts: Profile, M: Any) -> dict[str, Any]:
    """Return the profile as plain data, with the bound for M."""
    plain = counts.to_dict()
    if M is not None and counts.problem is not None:
        plain["fewest_with_M"] = counts.fewest(M)
    return plain


def _show(counts: Profile, M: Any) -> None:
    """Print the traffic by array and by line, what it is compared with, and the findings."""
    _print_launches(counts)
    _print_arrays(counts)
    _print_lines(counts.lines)
    _print_comparison(counts, M)
    _print_findings(counts)


def _show_law(law: Law, N: int) -> None:
    """Print what a kernel moves at a length, by its law."""
    fitted = ", ".join(f"{length:,}" for length in law.lengths[:3])
    agreeing = " and ".join(f"{length:,}" for length in law.lengths[3:])
    print_words(
        f"{law.function} at N = {N:,}, not run there: by the law of its counts at N = {fitted}, "
        f"with which its counts at N = {agreeing} agree"
    )
    print()
    traffic = law.traffic(N)
    formulas = law.formulas()
    rows: list[Sequence[Any] | None] = []
    for name, array in traffic.by_array.items():
        rows.append((name, array.reads, array.writes, *formulas[name]))
    headings = ("by array", "reads", "writes", "reads =", "writes =")
    print_table(headings, [*rows, None, ("total", traffic.reads, traffic.writes)])
    print(f"{traffic.accesses:,} accesses, {human_bytes(traffic.bytes)}\n")
    if law.blocks is not None:
        B_r, B_c = law.blocks
        print_words(f"B_r = {B_r}, B_c = {B_c}; H = {law.problem.heads} heads")
    _print_findings(law.profile)


def _print_launches(counts: Profile) -> None:
    manner = "its kernels run by an interpreter"
    if not any(launch.grid for launch in counts.launches):
        manner = "operator by operator"
    print_words(f"{counts.function}, {manner}")
    for launch in counts.launches:
        if not launch.grid:
            print_words(f"operator {launch.kernel}", "  ")
            continue
        grid = " × ".join(f"{programs:,}" for programs in launch.grid)
        config = f"; {launch.config} configurations" if launch.config else ""
        print_words(f"launch of {launch.kernel}: {grid} programs{config}", "  ")
    if counts.on_chip_bytes:
        size = human_bytes(counts.on_chip_bytes)
        print_words(f"at most {size} on chip: blocks, their second buffers, and scratch", "  ")
    print()


def _print_arrays(counts: Profile) -> None:
    program = counts.nearest
    headings = ["by array", "reads", "writes", "bytes", "in sectors"]
    if program is not None:
        headings.append(program.algorithm)
    rows: list[Sequence[Any] | None] = []
    for name, array in counts.by_array.items():
        row: list[Any] = [name, array.reads, array.writes, array.bytes, counts.sectors[name]]
        if program is not None:
            form = program.by_array.get(name)
            row.append(None if form is None else form.accesses)
        rows.append(row)
    hbm = counts.hbm
    total = [hbm.reads, hbm.writes, hbm.bytes, sum(counts.sectors.values())]
    print_table(headings, [*rows, None, ("total", *total)])
    print(f"{hbm.accesses:,} accesses, {human_bytes(hbm.bytes)}\n")


def _print_lines(lines: Sequence[LineTraffic]) -> None:
    rows = []
    for each in sorted(lines, key=lambda each: (each.line.file, each.line.number)):
        place = _place(each.line)
        sector_bytes = each.sectors * SECTOR
        rows.append((place, each.kind, each.array, each.times, each.elements, sector_bytes))
    headings = ("by line", "what =", "array", "how often", "elements", "in sectors")
    print_table(headings, rows)
    print()


def _print_comparison(counts: Profile, M: Any) -> None:
    """Print which program of flashsim's moves the same or nearly so, and the bounds."""
    program = counts.nearest
    if program is not None:
        name = f"{program.algorithm} moves with each operand of a product read once"
        if program.blocks is not None:
            B_r, B_c = program.blocks
            name = f"{program.algorithm} moves with blocks of {B_r} × {B_c}"
        if not program.skips:
            name += " if it computes every tile"
        arrays = _all_of(program)
        if program.equal:
            print_words(f"{arrays}: exactly what {name}, by its closed form")
        else:
            accesses = sum(counts.by_array[array].accesses for array in program.by_array)
            ratio = accesses / program.accesses
            print_words(f"{arrays}: {ratio:.3f} times what {name}, by its closed form")
    if counts.problem is None:
        return
    print_words(
        f"in all: {counts.over_bound():.3f} times {counts.fewest():,} elements, which is each "
        "input read once and each output written once"
    )
    if M is not None:
        print_words(
            f"in all: {counts.over_bound(M):.3f} times {counts.fewest(M):,} elements, the fewest "
            "that any schedule with this M moves (flashsim prove)"
        )


def _all_of(program: Nearest) -> str:
    """Return the arrays that are compared, in words."""
    *names, last = program.by_array
    return f"{', '.join(names)} and {last}"


def _print_findings(counts: Profile) -> None:
    if counts.difference is not None and not counts.difference.is_wrong:
        print_words("O is attention of Q, K and V, up to rounding")
    if not counts.findings:
        print_words("none of the kinds of waste that docs/profiling.md lists was found")
        return
    print()
    for finding in counts.findings:
        place = "" if finding.line is None else f"{_place(finding.line)}  "
        share = ""
        if finding.elements and counts.hbm.accesses:
            share = f" ({finding.elements / counts.hbm.accesses:.1%} of all accesses)"
        print_words(f"{place}{finding.text}{share}")
        if finding.line is not None:
            source = linecache.getline(finding.line.file, finding.line.number).strip()
            print_words(source, "    ")


def _place(line: Line) -> str:
    return f"{Path(line.file).name}:{line.number}"

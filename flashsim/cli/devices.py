"""`flashsim devices`: what attention over several devices sends and moves; and, under torchrun
or mpiexec, the same for real.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from flashsim.cli.outputs import finish
from flashsim.cli.parser import Parser
from flashsim.cli.shared import FLAG, by_name
from flashsim.cli.values import positive, several, whole
from flashsim.support.tables import print_paragraphs, print_table, problem, sram

if TYPE_CHECKING:
    from flashsim.attention.problem import Problem
    from flashsim.devices import DevicesResult

EXAMPLES = (
    "flashsim devices --P 8 --N 4096 --d 64 --heads 32 --kv-heads 8 --causal\n"
    "flashsim devices ring --P 4 --N 1024 --d 64 --layout zigzag --causal\n"
    "flashsim devices tree --P 8 --N 131072 --N-q 1 --d 128 --heads 32 --kv-heads 8\n"
    "flashsim devices ring --backward --P 4 --N 1024 --d 64 --json -\n"
    "torchrun --standalone --nproc-per-node 4 -m -- flashsim devices ring --N 512 --d 64 --causal\n"
    "mpiexec -n 4 python -m flashsim devices mesh --N 512 --d 64 --columns 2"
)
PROGRAMS = ("ring", "ulysses", "mesh", "tree")
LAYOUTS = ("contiguous", "striped", "zigzag")


def add_options(parser: Parser) -> None:
    names = f"{', '.join(PROGRAMS)}. Default: all except tree, side by side"
    parser.add("program", nargs="?", choices=PROGRAMS, metavar="NAME", help=names)
    parser.add(
        "--P",
        type=several(whole()),
        metavar="P",
        help="devices. Default: 4; under torchrun or mpiexec, the processes",
    )
    parser.add("--N", required=True)
    parser.add("--N-q", help="queries, for tree, which decodes. Default: as many as keys")
    parser.add("--d", "--d-v", "--dtype")
    parser.add("--heads", default=1, help="query heads")
    parser.add("--kv-heads", help="KV heads, where query heads share them")
    layout = "which rows a device has. Default: the program's own layout"
    parser.add("--layout", choices=LAYOUTS, help=layout)
    parser.add(
        "--columns",
        type=whole(),
        metavar="C",
        help="columns of the mesh. Default: the number with the fewest words",
    )
    parser.add("--backward", help="count the backward pass; tree has none")
    parser.add("--causal", "--M", "--blocks")
    parser.add("--seed", help="of the random numbers, on real processes. Default: 0")
    plan = (
        "compute by formula alone, and compare with the lower bound on words; takes several P, "
        "such as 4:4096:x4"
    )
    parser.add("--plan", **FLAG, help=plan)
    flops = "with --plan: operations a second, such as 312e12, to show times"
    parser.add("--flops", type=positive, metavar="F", help=flops)
    link = "with --plan: bytes a second on a link, such as 300e9, to show times"
    parser.add("--link", type=positive, metavar="B", help=link)
    parser.add("--json")


def run(options: argparse.Namespace) -> int:
    from flashsim.devices import distributed

    _check_combinations(options)
    if options.plan:
        return _plan(options)
    P = options.P[0] if options.P else None
    if distributed.started_by() is not None:
        return _run_on_processes(options, P)
    from flashsim import devices

    sizes = by_name(options, "N", "N_q", "d", "d_v", "dtype", "heads", "kv_heads", "M", "blocks")
    schedule = by_name(options, "layout", "direction", "causal")
    tallies = []
    for name in [options.program] if options.program else PROGRAMS[:3]:
        columns = _columns(options, name)
        tallies.append(devices.count(name, P=P or 4, columns=columns, **sizes, **schedule))
    agree = all(tally.equals_theory for tally in tallies)
    numbers = {"agrees": agree, "programs": [tally.to_dict() for tally in tallies]}
    finish(options, numbers, lambda: _show(tallies))
    if not agree:
        print("The counts differ from theory.", file=sys.stderr)
    return 0 if agree else 1


def _check_combinations(options: argparse.Namespace) -> None:
    """Raise ValueError for options that do not go together."""
    if not options.plan:
        if options.flops is not None or options.link is not None:
            raise ValueError("argument --flops, --link: expected with --plan")
        if len(options.P or ()) > 1:
            raise ValueError("argument --P: expected one number without --plan")
    elif options.direction == "backward" or options.N_q is not None or options.blocks is not None:
        raise ValueError("argument --plan: expected a forward pass, without --N-q and --blocks")


def _columns(options: argparse.Namespace, program: str) -> int | None:
    """Return --columns for the program that takes it; for another, only if it was named, so that
    it is refused.
    """
    columns: int | None = options.columns
    return columns if program == "mesh" or options.program else None


def _print_problem(attention: Problem, where: str) -> None:
    heads = "One head"
    if attention.heads > 1:
        kv_heads = attention.heads // attention.group
        heads = f"{attention.heads} query heads, {kv_heads} KV heads"
    print(f"{heads}, {problem(*vars(attention.shape).values())}{where}")
    print(sram(attention.M, attention.dtype.itemsize, attention.dtype.name) + "\n")


def _show(tallies: list[DevicesResult]) -> None:
    share = tallies[0].share
    _print_problem(share.problem, f", on {tallies[0].P} devices")
    if len(tallies) > 1:
        rows: list[Any] = []
        for tally in tallies:
            words = [one.words for one in tally.devices]
            accesses = [one.hbm.accesses for one in tally.devices]
            rows.append((_title(tally), sum(words), max(words), sum(accesses), max(accesses)))
        print_table(("program", "words sent", "one device", "HBM accesses", "one device"), rows)
    else:
        (tally,) = tallies
        print(f"{_title(tally)}, blocks {share.B_r} × {share.B_c}\n")
        rows = []
        for p, one in enumerate(tally.devices):
            to = ", ".join(map(str, sorted(one.links))) or "–"
            row = (
                p,
                share.rows(p),
                one.words,
                to,
                one.hbm.accesses,
                one.sram.peak,
            )
            rows.append(row)
        print_table(("device", "rows", "words sent", "to", "HBM accesses", "peak"), rows)
    legend = (
        "Words are elements that links carry; HBM accesses are not among them. Theory gives the "
        "same numbers."
    )
    if len(tallies) > 1:
        legend += " “One device” is the device with the most."
    print_paragraphs(legend)


def _plan(options: argparse.Namespace) -> int:
    from flashsim.attention.problem import Problem
    from flashsim.devices.planning import PLANNED, plan

    arguments = by_name(options, "N", "d", "d_v", "dtype", "heads", "kv_heads", "M", "causal")
    attention = Problem.of(**arguments)
    speeds = by_name(options, "flops", "link")
    rows = []
    plans = []
    for P in options.P or [4]:
        for name in [options.program] if options.program else PLANNED:
            if name == "ulysses" and attention.heads < P and not options.program:
                continue
            one = plan(
                name,
                P=P,
                layout=options.layout,
                columns=_columns(options, name),
                **arguments,
                **speeds,
            )
            plans.append(one)
            title = f"mesh, {P // one.columns} × {one.columns}" if name == "mesh" else name
            rows.append((P, title, one.most_words, one.over_bound, one.room, one.seconds))
            if name == "ring":
                rows += _papers(one, attention, P)
    records = [vars(one) | {"bound": one.bound.certificate()} for one in plans]
    finish(options, {"plans": records}, lambda: _show_plans(options, attention, rows))
    return 0


def _show_plans(
    options: argparse.Namespace, attention: Problem, rows: list[tuple[Any, ...]]
) -> None:
    """Print the rows of P, program, words, ratio to the bound, room and seconds; these only with
    --flops and --link.
    """
    from flashsim.devices.planning import hidden_from

    _print_problem(attention, ", causal" if options.causal else "")
    headings = ["P", "program", "words a device", "÷ bound", "its room"]
    has_times = options.flops is not None and options.link is not None
    if has_times:
        headings.append("ms")
    table = []
    for P, name, words, ratio, room, seconds in rows:
        cells = [P, name, words, "–" if ratio is None else f"{ratio:.3f}", room]
        if has_times:
            cells.append("–" if seconds is None else f"{seconds * 1e3:.3f}")
        table.append(cells)
    print_table(headings, table)
    print_paragraphs(
        "“Words a device” is of the device that sends the most; “÷ bound” compares the words of "
        "all devices. The bound is for devices that do no more work, and have no more room, than "
        "the program's. StarTrail and TASP are computed by formula."
    )
    if has_times:
        n = hidden_from(
            heads=attention.heads,
            kv_heads=attention.heads // attention.group,
            itemsize=attention.dtype.itemsize,
            **by_name(options, "causal", "flops", "link"),
        )
        print_paragraphs(f"The ring's messages are hidden if a device has {n:,.0f} rows or more.")


def _papers(ring: Any, attention: Problem, P: int) -> list[tuple[Any, ...]]:
    """Return the rows of StarTrail and TASP, with a bound for any room, because theirs is not
    known.
    """
    from flashsim.devices.bounds import lower_words
    from flashsim.devices.layouts import positions
    from flashsim.devices.planning import star_trail
    from flashsim.devices.share import Share

    rows_of_devices = positions("contiguous", attention.shape.N_k, P)
    share = Share(attention, rows_of_devices, rows_of_devices, 1, 1)
    least = lower_words(share, ring.work).words
    other = star_trail(share)
    if not least:
        return []
    rows = [(P, "TASP", ring.most_words, ring.words / least, None, None)]
    if other is not None:
        columns, words = other
        rows.append((P, f"StarTrail, {columns}", -(-words // P), words / least, None, None))
    return rows


def _title(tally: DevicesResult) -> str:
    if tally.plan.program.columns:
        return f"mesh, {tally.P // tally.plan.columns} × {tally.plan.columns}"
    return tally.algorithm


def _run_on_processes(options: argparse.Namespace, P: int | None) -> int:
    """Run this process's part, and compare its bits, counts and bytes with the simulation's.
    Rank 0 prints the results of all.
    """
    import numpy as np

    from flashsim import devices
    from flashsim.devices import distributed

    if options.program is None:
        raise ValueError("expected a program's name under torchrun or mpiexec")
    engine = distributed.engine()
    if P not in (None, engine.size):
        raise ValueError(f"argument --P: {P}; expected {engine.size}, the processes, or none")
    Q, K, V, dO = _operands(options)
    how = by_name(options, "columns", "M", "blocks")
    both = how | by_name(options, "layout", "causal")
    part: Any = distributed.forward(options.program, Q, K, V, engine=engine, **both)
    simulated: Any = devices.forward(options.program, Q, K, V, P=engine.size, **both)
    rows = simulated.share.queries[engine.rank]
    names = ["O"]
    if options.direction == "backward":
        part = distributed.backward(part, dO, engine=engine, **how)
        names = ["dQ", "dK", "dV"]
        simulated = devices.backward(options.program, simulated, dO, **how)
    costs = simulated.devices[engine.rank]
    same_bits = all(
        np.array_equal(getattr(part, name), getattr(simulated, name)[:, rows]) for name in names
    )
    modelled = sum(link.bytes for link in costs.links.values())
    row = (
        engine.rank,
        len(rows),
        modelled,
        part.handed,
        part.received,
        same_bits,
        part.costs == costs,
    )
    table = engine.everyone_s(row)
    engine.close()
    agree = True
    for _, _, model, handed, _, bits, counts in table:
        agree = agree and model == handed and bits and counts
    received = [row[4] for row in table]
    if received[0] is not None:
        agree = agree and sum(received) == sum(row[2] for row in table)
    if engine.rank == 0:
        direction = ", backward," if options.direction == "backward" else ""
        engine_name = type(engine).__name__.lower()
        print(f"{options.program}{direction} on {engine.size} processes, over {engine_name}\n")
        headings = (
            "rank",
            "rows",
            "bytes, model",
            "handed over",
            "received",
            "same bits",
            "same counts",
        )
        rows_of_text = []
        for *numbers, bits, counts in table:
            rows_of_text.append((*numbers, "yes" if bits else "NO", "yes" if counts else "NO"))
        print_table(headings, rows_of_text)
    return 0 if agree else 1


def _operands(options: argparse.Namespace) -> tuple[Any, Any, Any, Any]:
    """Return random Q, K, V and dO, of shape (heads, rows, columns) each."""
    import numpy as np

    from flashsim.attention.inputs import float_dtype

    rng = np.random.default_rng(options.seed)
    dtype = float_dtype(options.dtype)
    heads = options.heads
    kv_heads = options.kv_heads or heads
    d = options.d
    d_v = options.d_v or d
    N_q = options.N_q or options.N
    Q = rng.normal(size=(heads, N_q, d)).astype(dtype)
    K = rng.normal(size=(kv_heads, options.N, d)).astype(dtype)
    V = rng.normal(size=(kv_heads, options.N, d_v)).astype(dtype)
    dO = rng.normal(size=(heads, N_q, d_v)).astype(dtype)
    return Q, K, V, dO

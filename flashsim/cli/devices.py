"""`flashsim devices`: what attention over several devices sends and moves; and, under torchrun
or mpiexec, the same for real.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from flashsim.cli.outputs import finish
from flashsim.cli.shared import FLAG, add, by_name
from flashsim.cli.values import positive, several, whole
from flashsim.support.tables import print_paragraphs, print_table, problem, sram

if TYPE_CHECKING:
    from flashsim.attention.problem import Problem
    from flashsim.devices import DevicesResult

SUMMARY = (
    "Count what attention over several devices sends and moves; under torchrun or mpiexec, run it "
    "on real processes."
)
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


def add_options(parser: Any) -> None:
    known = f"{', '.join(PROGRAMS)}. Default: all except tree, side by side"
    parser.add_argument("program", nargs="?", choices=PROGRAMS, metavar="NAME", help=known)
    add(
        parser,
        "--P",
        type=several(whole()),
        metavar="P",
        help="devices. Default: 4; under torchrun or mpiexec, the processes",
    )
    add(parser, "--N", required=True)
    add(parser, "--N-q", help="queries, for tree, which decodes. Default: as many as keys")
    add(parser, "--d", "--d-v", "--dtype")
    add(parser, "--heads", default=1, help="query heads")
    add(parser, "--kv-heads", help="KV heads, where query heads share them")
    parser.add_argument(
        "--layout",
        choices=LAYOUTS,
        help="which rows a device has. Default: the program's own layout",
    )
    add(
        parser,
        "--columns",
        type=whole(),
        metavar="C",
        help="columns of the mesh. Default: the number with the fewest words",
    )
    add(parser, "--backward", help="count the backward pass; tree has none")
    add(parser, "--causal", "--M", "--blocks")
    add(parser, "--seed", help="of the random numbers, on real processes. Default: 0")
    plan = (
        "compute by formula alone, and compare with the lower bound on words; takes several P, "
        "such as 4:4096:x4"
    )
    add(parser, "--plan", **FLAG, help=plan)
    for flag, unit, what in (
        ("--flops", "F", "operations a second, such as 312e12"),
        ("--link", "B", "bytes a second on a link, such as 300e9"),
    ):
        add(parser, flag, type=positive, metavar=unit, help=f"with --plan: {what}, to show times")
    add(parser, "--json")


def run(options: argparse.Namespace) -> int:
    from flashsim.devices import distributed

    if options.plan:
        return _plan(options)
    if options.flops is not None or options.link is not None:
        raise ValueError("argument --flops, --link: expected with --plan")
    if len(options.P or [4]) > 1:
        raise ValueError("argument --P: expected one number without --plan")
    options.P = options.P[0] if options.P else None
    if distributed.started_by() is not None:
        return _for_real(options)
    from flashsim import devices

    lengths = by_name(options, "N", "N_q", "d", "d_v", "dtype", "heads", "kv_heads")
    how = by_name(options, "layout", "direction", "causal", "M", "blocks")
    tallies = []
    for name in [options.program] if options.program else PROGRAMS[:3]:
        columns = options.columns if name == "mesh" or options.program else None
        tallies.append(devices.count(name, P=options.P or 4, columns=columns, **lengths, **how))
    agree = all(_agrees(tally) for tally in tallies)
    finish(
        options,
        {"agrees": agree, "programs": [tally.to_dict() for tally in tallies]},
        lambda: _show(tallies),
    )
    if not agree:
        print("The counts differ from theory.", file=sys.stderr)
    return 0 if agree else 1


def _agrees(tally: DevicesResult) -> bool:
    from flashsim.devices import exact

    both = zip(exact(tally), tally.devices, strict=True)
    return all((form.words, form.hbm) == (device.words, device.hbm) for form, device in both)


def _print_problem(of: Problem, where: str) -> None:
    heads = (
        "One head" if of.heads == 1 else f"{of.heads} query heads, {of.heads // of.group} KV heads"
    )
    print(f"{heads}, {problem(*vars(of.shape).values())}{where}")
    print(sram(of.M, of.dtype.itemsize, of.dtype.name) + "\n")


def _show(tallies: list[DevicesResult]) -> None:
    share = tallies[0].share
    _print_problem(share.problem, f", on {tallies[0].P} devices")
    if len(tallies) > 1:
        rows: list[Any] = []
        for tally in tallies:
            words = [one.words for one in tally.devices]
            moved = [one.hbm.accesses for one in tally.devices]
            rows.append((_named(tally), sum(words), max(words), sum(moved), max(moved)))
        print_table(("program", "words sent", "one device", "HBM accesses", "one device"), rows)
    else:
        (tally,) = tallies
        print(f"{_named(tally)}, blocks {share.B_r} × {share.B_c}\n")
        rows = []
        for p, one in enumerate(tally.devices):
            to = ", ".join(map(str, sorted(one.links))) or "–"
            rows.append((p, share.rows(p), one.words, to, one.hbm.accesses, one.sram.peak))
        print_table(("device", "rows", "words sent", "to", "HBM accesses", "peak"), rows)
    said = (
        "Words are elements that links carry; HBM accesses are not among them. Theory gives the "
        "same numbers."
    )
    print_paragraphs(
        said + (" “One device” is the device with the most." if len(tallies) > 1 else "")
    )


def _plan(options: argparse.Namespace) -> int:
    from flashsim.attention.problem import Problem
    from flashsim.devices.planning import PLANNED, hidden_from, plan

    if options.direction == "backward" or options.N_q is not None or options.blocks is not None:
        raise ValueError("argument --plan: expected a forward pass, without --N-q and --blocks")
    names = [options.program] if options.program else PLANNED
    asked = by_name(options, "N", "d", "d_v", "dtype", "heads", "kv_heads", "M", "causal")
    of = Problem.of(**asked)
    speeds = {"flops": options.flops, "link": options.link}
    rows = []
    plans = []
    for P in options.P or [4]:
        for name in names:
            if name == "ulysses" and of.heads < P and not options.program:
                continue
            columns = options.columns if name == "mesh" or options.program else None
            found = plan(name, P=P, layout=options.layout, columns=columns, **asked, **speeds)
            plans.append(found)
            said = f"mesh, {P // found.columns} × {found.columns}" if name == "mesh" else name
            rows.append((P, said, found.most_words, found.over_bound, found.room, found.seconds))
            if name == "ring":
                rows += _papers(found, of, P)

    def show() -> None:
        _print_problem(of, ", causal" if options.causal else "")
        timed = None not in speeds.values()
        headings = ("P", "program", "words a device", "÷ bound", "its room", "ms")
        shown = [
            (
                P,
                name,
                words,
                "–" if ratio is None else f"{ratio:.3f}",
                "–" if room is None else room,
                "–" if seconds is None else f"{seconds * 1e3:.3f}",
            )
            for P, name, words, ratio, room, seconds in rows
        ]
        print_table(headings[: 6 if timed else 5], [row[: 6 if timed else 5] for row in shown])
        print_paragraphs(
            "“Words a device” is of the device that sends the most; “÷ bound” compares the words "
            "of all devices. The bound "
            "is for devices that do no more work, and have no more room, than the program's. "
            "StarTrail and TASP are "
            "computed by formula."
        )
        if timed:
            size = of.dtype.itemsize
            causal = options.causal
            n = hidden_from(
                heads=of.heads,
                kv_heads=of.heads // of.group,
                itemsize=size,
                causal=causal,
                **speeds,
            )
            print_paragraphs(
                f"The ring's messages are hidden if a device has {n:,.0f} rows or more."
            )

    finish(
        options,
        {"plans": [vars(found) | {"bound": found.bound.certificate()} for found in plans]},
        show,
    )
    return 0


def _papers(ring: Any, of: Any, P: int) -> list[tuple[Any, ...]]:
    """Return the rows of StarTrail and TASP, with a bound for any room, because theirs is not
    known.
    """
    from flashsim.devices.bounds import lower_words
    from flashsim.devices.layouts import positions
    from flashsim.devices.planning import star_trail
    from flashsim.devices.share import Share

    where = positions("contiguous", of.shape.N_k, P)
    share = Share(of, where, where, 1, 1)
    least = lower_words(share, ring.work).words
    other = star_trail(share)
    if not least:
        return []
    rows = [(P, "TASP", ring.most_words, ring.words / least, None, None)]
    if other is not None:
        columns, words = other
        rows.append((P, f"StarTrail, {columns}", -(-words // P), words / least, None, None))
    return rows


def _named(tally: DevicesResult) -> str:
    return (
        f"mesh, {tally.P // tally.plan.columns} × {tally.plan.columns}"
        if tally.plan.program.columns
        else tally.algorithm
    )


def _for_real(options: argparse.Namespace) -> int:
    """Run this process's part, and compare its bits, counts and bytes with the simulation's.
    Rank 0 prints what all found.
    """
    import numpy as np

    from flashsim import devices
    from flashsim.attention.inputs import float_dtype
    from flashsim.devices import distributed

    if options.program is None:
        raise ValueError("expected a program's name under torchrun or mpiexec")
    engine = distributed.engine()
    if options.P not in (None, engine.size):
        raise ValueError(
            f"argument --P: {options.P}; expected {engine.size}, the processes, or none"
        )
    rng = np.random.default_rng(options.seed)
    dtype = float_dtype(options.dtype)
    kv = options.kv_heads or options.heads
    d = options.d
    d_v = options.d_v or options.d
    N_q = options.N_q or options.N
    sizes = (
        (options.heads, N_q, d),
        (kv, options.N, d),
        (kv, options.N, d_v),
        (options.heads, N_q, d_v),
    )
    Q, K, V, dO = (rng.normal(size=size).astype(dtype) for size in sizes)
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
    bits = all(np.array_equal(getattr(part, X), getattr(simulated, X)[:, rows]) for X in names)
    modelled = sum(link.bytes for link in costs.links.values())
    found = engine.everyone_s(
        (engine.rank, len(rows), modelled, part.handed, part.received, bits, part.costs == costs)
    )
    engine.close()
    right = all(row[2] == row[3] and row[5] and row[6] for row in found)
    if found[0][4] is not None:
        right = right and sum(row[4] for row in found) == sum(row[2] for row in found)
    if engine.rank == 0:
        headings = (
            "rank",
            "rows",
            "bytes, model",
            "handed over",
            "received",
            "same bits",
            "same counts",
        )
        direction = ", backward," if options.direction == "backward" else ""
        print(
            f"{options.program}{direction} on {engine.size} processes, over "
            f"{type(engine).__name__.lower()}\n"
        )
        words = {True: "yes", False: "NO"}
        print_table(
            headings,
            [
                (*row[:4], "–" if row[4] is None else row[4], *map(words.get, row[5:]))
                for row in found
            ],
        )
    return 0 if right else 1

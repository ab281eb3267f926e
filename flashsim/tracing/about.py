"""What a trace says of its run as a whole: the problem, the counts with their closed forms, the
listing, the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from flashsim import theory
from flashsim.algorithms.record import Algorithm
from flashsim.attention.inputs import Array
from flashsim.attention.masks.rules import All, Causal
from flashsim.attention.matrices import symbols
from flashsim.attention.shapes import Blocks, Shape
from flashsim.memory.errors import MemoryModelError
from flashsim.memory.sram import SRAM
from flashsim.simulate.attention import AttentionPlan
from flashsim.simulate.matrices import MatrixPlan
from flashsim.simulate.results import Result
from flashsim.tracing.data import DATA, STANDARD, About, Counts, Kind
from flashsim.tracing.listing import listing_of, source_of
from flashsim.tracing.recording import Recorder
from flashsim.tracing.traces import Trace

LARGEST_MASK = 2**24  # elements of a mask up to which it is looked at tile by tile


class Traced(Protocol):
    """A plan that makes the traces of its runs itself."""

    def traced(self, recorder: Recorder) -> Trace:
        """Return the trace of a run, which `trace_of` makes."""


def traced(recorder: Recorder, run: Result) -> Trace:
    """Return the trace of a run that the recorder was an observer of, with what there is to say of
    it.

    Raises ValueError where the recorder saw nothing of it.
    """
    if recorder.sram is None:
        raise ValueError(f"the run has no head number {recorder.head}, counted from 0")
    plan: AttentionPlan | MatrixPlan | Traced = run.plan
    if isinstance(plan, AttentionPlan):
        return _traced(recorder, plan)
    return (
        _traced_program(recorder, plan) if isinstance(plan, MatrixPlan) else plan.traced(recorder)
    )


def _traced(recorder: Recorder, plan: AttentionPlan) -> Trace:
    shape = plan.shape
    blocks = plan.blocks
    algorithm = plan.program
    exact = _closed_form(algorithm, plan, (blocks.B_r, blocks.B_c))
    standard = None if algorithm.name == STANDARD else _closed_form(STANDARD, plan, None)
    kinds = symbols(algorithm.matrices)
    tiles = None
    if shape.N_q * shape.N_k <= LARGEST_MASK:
        tiles = tiles_of(plan.row_mask.whole(shape, (0,) * len(plan.leading)), blocks)
    return trace_of(
        recorder,
        algorithm,
        kinds,
        shape,
        exact,
        blocks=blocks,
        M=plan.problem.M,
        enforced=plan.sizing.enforced,
        stored=plan.problem.dtype.name,
        options=_options(plan),
        tiles=tiles,
        standard=None if standard is None else (standard.hbm.reads, standard.hbm.writes),
        follows=tuple((name, kinds.get(name, ("N_q", "d"))) for name in algorithm.follows),
    )


def _traced_program(recorder: Recorder, plan: MatrixPlan) -> Trace:
    """Return the trace of a program's run. Its plane's symbols are N_q and N_k there, as the
    player knows rows and columns.
    """
    program = plan.program
    sizes = plan.sizes
    blocks = plan.blocks
    rows, columns = program.plane
    kinds = {}
    for name, kind in program.kinds.items():
        known = {rows: "N_k"} if name in program.across else {columns: "N_k", rows: "N_q"}
        if kind.type == "index":  # words by place in an order, say, are of no row
            known = dict.fromkeys((kind.rows, kind.columns), "")
        kinds[name] = known.get(kind.rows, kind.rows), known.get(kind.columns, kind.columns)
    B_r, B_c = (blocks[by] for by in program.by)
    shape = Shape(sizes[rows], sizes[columns], sizes.get("d", 1), sizes.get("e", sizes.get("d", 1)))
    try:
        exact = plan.exact()
    except theory.NoClosedForm:
        exact = None
    return trace_of(
        recorder,
        program,
        kinds,
        shape,
        exact,
        blocks=Blocks(B_r, B_c, N_q=shape.N_q, N_k=shape.N_k),
        M=plan.M,
        enforced=plan.enforced,
        stored=plan.dtype.name,
        options=", ".join(
            f"{name} {_named(value)}" for name, value in plan.options.items() if value is not None
        ),
        follows=tuple((name, kinds[name]) for name in program.follows),
        words=program.words,
        sizes=tuple(sizes.items()),
        cuts=tuple(blocks.items()),
    )


def trace_of(
    recorder: Recorder, of: Any, kinds: Mapping[str, Kind], shape: Shape, exact: Any, **about: Any
) -> Trace:
    """Return the trace of what has a record, `of`. `exact`: its closed form, or None; `about`:
    an `About`'s other fields. Raises ValueError for a run without a step.
    """
    sram = recorder.sram
    assert sram is not None
    if not any(event.kind in DATA for event in recorder.events):
        raise ValueError(
            f"the run of {of.name} has no step: it loads, computes and stores nothing; expected at "
            "least one of these"
        )
    description = About(
        algorithm=of.name,
        title=of.title,
        direction=of.direction,
        shape=shape,
        peak=sram.peak,
        dtype=sram.dtype.name,
        arrays=_counts(sram, kinds, shape, None if exact is None else exact.hbm.by_array),
        exact_peak=None if exact is None else exact.sram.peak,
        listing=listing_of(of.listing),
        source=source_of({event.site for event in recorder.events}),
        notes=recorder.notes,
        **{"tiles": None, "standard": None, **about},
    )
    return Trace(description, tuple(recorder.events))


def _counts(
    sram: SRAM, kinds: Mapping[str, Kind], shape: Shape, exact: Mapping[str, Any] | None
) -> tuple[Counts, ...]:
    counts = []
    for name, array in sram.hbm.traffic.by_array.items():
        formula = (
            (exact[name].reads, exact[name].writes) if exact is not None and name in exact else None
        )
        sizes = sram.hbm.matrix(name).shape
        kind = _fitting(kinds.get(name, ("N_q", "N_k")), sizes, shape)
        counts.append(
            Counts(
                name, sizes, kind, array.role, array.itemsize, array.reads, array.writes, formula
            )
        )
    return tuple(counts)


def _fitting(kind: Kind, sizes: tuple[int, int], shape: Shape) -> Kind:
    """Return a kind, "" for the side that is not as long as it says: S of one block of rows is
    not of all queries.
    """
    sides = zip(kind, sizes, strict=True)
    rows, cols = (
        of if str(size) == of or getattr(shape, of, None) == size else "" for of, size in sides
    )
    return rows, cols


def tiles_of(allowed: Array, blocks: Blocks) -> tuple[tuple[int, ...], ...]:
    """Return what a whole mask, (N_q, N_k), leaves of each tile: 0 nothing, 1 all, 2 some."""

    def kind(i: int, j: int) -> int:
        tile = allowed[i * blocks.B_r : (i + 1) * blocks.B_r, j * blocks.B_c : (j + 1) * blocks.B_c]
        return 1 if tile.all() else 2 if tile.any() else 0

    return tuple(tuple(kind(i, j) for j in range(blocks.T_c)) for i in range(blocks.T_r))


def _closed_form(
    what: str | Algorithm, plan: AttentionPlan, blocks: tuple[int, int] | None
) -> theory.Exact | None:
    """Return the closed form of one problem of a plan, or of another algorithm on it; None where
    there is none.
    """
    problem = plan.problem
    group = plan.heads_per_launch
    if plan.mask.per_head:
        return None
    gqa = "grouped" if group > 1 else "separate"
    one = replace(problem, leading=(group,) * (group > 1), group=group, gqa=gqa, mask=plan.mask)
    own = plan.options if what is plan.program else {}
    try:
        return theory.exact(what, one, direction=plan.program.direction, blocks=blocks, **own)
    except (ValueError, TypeError, MemoryModelError):
        return None


def _options(plan: AttentionPlan) -> str:
    defaults = {option.name: option.default for option in plan.program.options}
    p = plan.problem.dropout_p
    options = {
        "causal" if plan.mask == Causal() else repr(plan.mask): not isinstance(plan.mask, All),
        f"dropout {p:g}": p,
        **{
            f"{name} {_named(value)}": value is not defaults.get(name)
            and repr(value) != repr(plan.mask)
            for name, value in plan.options.items()
        },
        f"{plan.heads_per_launch} query heads grouped": plan.heads_per_launch > 1,
    }
    return ", ".join(words for words, is_so in options.items() if is_so)


def _named(value: Any) -> str:
    return "an array" if isinstance(value, np.ndarray) else str(getattr(value, "__name__", value))

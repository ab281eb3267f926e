"""What the room's functions share: choosing blocks, launching a program for each KV head, and
what that returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import numpy as np

from flashsim.algorithms.blocks import Fit, SizingProblem, clipped
from flashsim.attention.arguments import (
    check_blocks,
    check_choice,
    check_observers,
    short_repr,
)
from flashsim.attention.inputs import Array, chip_dtype, describe_array, stored_type
from flashsim.attention.shapes import Shape, Sizes
from flashsim.memory.errors import MemoryModelError
from flashsim.memory.hbm import HBM
from flashsim.memory.source import is_of_package
from flashsim.memory.sram import SRAM, Observer
from flashsim.memory.traffic import Occupancy, Traffic
from flashsim.serving.batch import Batch, Operands
from flashsim.serving.checks import check_by_sequence, check_fit, check_sequences
from flashsim.serving.programs import programs
from flashsim.serving.record import BatchProgram
from flashsim.serving.theory import forms
from flashsim.serving.theory.form import BatchForm, Stored
from flashsim.simulate.interleaving import by_head, interleave
from flashsim.simulate.outcome import Outcome
from flashsim.simulate.pipeline import simulate
from flashsim.simulate.plan import Launch, Operand, Plan
from flashsim.simulate.results import Result
from flashsim.support.sizes import Size
from flashsim.theory.closed_form import Exact, NoClosedForm, form_beside
from flashsim.tracing.about import trace_of
from flashsim.tracing.recording import Recorder
from flashsim.tracing.traces import Trace


@dataclass(frozen=True, kw_only=True, repr=False)
class BatchPlan(Plan):
    """A program on a ragged batch in its blocks, with the program's options, and its operands:
    arrays, or lengths alone.
    """

    program: BatchProgram
    problem: Batch
    options: Mapping[str, Any]
    operands: Operands

    @classmethod
    def of(
        cls, program: BatchProgram, batch: Batch, options: Mapping[str, Any], operands: Operands
    ) -> BatchPlan:
        """Return the plan. Words alone, which say where to go on, are not numbers to compute
        with.
        """
        arithmetic = False
        for values in operands.values():
            if isinstance(values, np.ndarray) and values.ndim == 3:
                arithmetic = True
        return cls(
            program=program,
            problem=batch,
            arithmetic=arithmetic,
            is_user_defined=not is_of_package(program.run),
            options=options,
            operands=operands,
        )

    @property
    def words(self) -> list[str]:
        """The operands that are words, which all KV heads share."""
        return [name for name, values in self.operands.items() if _is_words(values)]

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """The shapes of one KV head's operands."""
        shapes = {}
        for name, values in self.operands.items():
            rows, columns = values if isinstance(values, tuple) else values.shape[-2:]
            shapes[name] = (rows, columns)
        return shapes

    @property
    def blocks(self) -> Sizes:
        """B_r and B_c."""
        return Sizes(B_r=self.batch.B_r, B_c=self.batch.B_c)

    @property
    def batch(self) -> Batch:
        """The problem: lengths, heads and widths."""
        return self.problem

    def exact(self) -> Exact:
        """Return what this run costs, by formula."""
        form = form_beside(self.program, self.program.direction, BatchForm)
        form = form or form_of(self.program)
        operands = {}
        for name, (rows, columns) in self.shapes.items():
            itemsize = None
            if name in self.words:
                itemsize = 4
            elif name in self.program.stored:
                itemsize = stored_type(self.program.stored[name]).itemsize
            operands[name] = Stored(rows, columns, itemsize)
        return form.cost(self.problem, self.options, operands, self.is_shared)

    def is_shared(self, name: str) -> bool:
        """Return whether all KV heads share an array: words, and what the program says."""
        return name in self.words or name in self.program.shared

    def described(self) -> dict[str, Any]:
        """Return what was asked, as plain data."""
        batch = self.batch
        plain = bool | int | float | str | None
        return {
            "direction": self.program.direction,
            **{name: getattr(batch, name) for name in ("heads", "kv_heads", "d", "d_v", "causal")},
            "queries": list(batch.queries),
            "keys": list(batch.keys),
            "dtype": batch.dtype.name,
            "scale": batch.tau,
            "options": {
                name: v if isinstance(v, plain) else short_repr(v)
                for name, v in self.options.items()
            },
        }

    def described_operands(self) -> list[str]:
        """Return name, shape and dtype of each operand."""
        described = []
        for name, values in self.operands.items():
            if isinstance(values, tuple):
                dtype = self.program.stored.get(name, self.dtype.name)
                described.append(f"{name} {values} {dtype}")
            else:
                described.append(describe_array(name, values))
        return described

    def traced(self, recorder: Recorder) -> Trace:
        """Return the trace of the first KV head. Keys are those of the pool, of the prefixes, or
        latents.
        """
        batch = replace(self.batch, heads=self.batch.group, kv_heads=1)
        shapes = self.shapes
        suffix = "_p" if "K_p" in shapes else ""  # of the prefixes
        keys = {f"K{suffix}": ("N_k", "d"), f"V{suffix}": ("N_k", "d_v")}
        keys = {"C": ("N_k", "d"), **keys}
        rows = {
            "Q": "d",
            "dQ": "d",
            **dict.fromkeys(("O", "O_new", "dO"), "d_v"),
            **dict.fromkeys(("L", "L_new", "D"), "1"),
        }
        kinds = {
            **dict.fromkeys(shapes, ("", "")),
            **keys,
            **{name: ("N_q", w) for name, w in rows.items()},
        }
        shape = Shape(
            shapes["Q"][0],
            shapes[next(name for name in keys if name in shapes)][0],
            batch.d,
            batch.d_v,
        )
        follows = ("m", "l", "O", "L") if self.program.direction == "forward" else ("D", "dQ")
        return trace_of(
            recorder,
            self.program,
            kinds,
            shape,
            replace(self, problem=batch).exact(),
            blocks=clipped(shape, batch.B_r, batch.B_c),
            M=batch.M,
            enforced=True,
            stored=batch.dtype.name,
            options=", ".join(
                f"{name} {short_repr(value)}" for name, value in self.options.items()
            ),
            follows=tuple((name, kinds.get(name, ("N_q", "1"))) for name in follows),
        )

    def launches(self, outcome: Outcome) -> Iterator[Launch]:
        """Yield a launch for each KV head; to count, one that stands for all."""
        for head in range(self.batch.kv_heads if self.arithmetic else 1):
            yield Launch(
                operands=[self._operand(name, head) for name in self.operands],
                first=[self.batch],
                make_arguments=self._arguments,
                returns=[self.program.returns],
                folds=not self.is_user_defined,
            )

    def _operand(self, name: str, head: int) -> Operand:
        values = self.operands[name]
        if _is_words(values):
            return Operand(name, values, np.dtype(np.uint32), index=True)
        if name in self.program.stored:
            dtype = stored_type(self.program.stored[name])
        else:
            dtype = chip_dtype(self.dtype) if name == "L" else self.dtype
        return Operand(name, values if isinstance(values, tuple) else values[head], dtype)

    def _arguments(self, hbm: HBM, sram: SRAM) -> list[Any]:
        return [*self.options.values()]


def _is_words(values: Array | tuple[int, int]) -> bool:
    """Return whether an operand is words that say where to go on, and not numbers or a shape."""
    return not isinstance(values, tuple) and values.dtype == np.uint32


def form_of(program: BatchProgram) -> BatchForm:
    """Return the closed form of one of flashsim's programs.

    Raises NoClosedForm, a ValueError, for the user's own: blocks cannot be chosen by its peak.
    """
    form = forms().get((program.name, program.direction))
    if form is None or not is_of_package(program.run):
        raise NoClosedForm(
            f"there is no closed form of {program.name!r}, {program.direction}, by which blocks "
            "could be chosen; expected blocks=(B_r, B_c)"
        )
    return form


def check_options(program: BatchProgram, options: Mapping[str, Any]) -> None:
    """Raise ValueError for an option that the program does not take, or lacks."""
    _, *parameters = signature(program.options).parameters.values()
    described = []
    names = []
    missing = []
    for parameter in parameters:
        names.append(parameter.name)
        if parameter.default is not parameter.empty:
            described.append(f"{parameter.name} (may be left out)")
            continue
        described.append(parameter.name)
        if parameter.name not in options:
            missing.append(parameter.name)
    expected = ", ".join(described) or "none"
    if set(options) - set(names):
        raise ValueError(
            f"options of {program.name!r} are {', '.join(options)}; expected {expected}"
        )
    if missing:
        raise ValueError(f"{', '.join(missing)} missing; {program.name!r} takes {expected}")


def plan_of(
    program: BatchProgram,
    batch: Batch,
    blocks: Any,
    options: Mapping[str, Any],
    make_operands: Callable[[Mapping[str, Any]], Operands],
) -> BatchPlan:
    """Return the plan of a program in blocks (B_r, B_c), or, None, in the largest of its
    proportions that fit M.

    `make_operands` returns the operands, of the checked options.
    """
    check_options(program, options)
    checked_options = program.options(batch, **options)
    most_queries = max(batch.shapes()["Q"][0], 1)
    most_keys = checked_options.get("page") or max(1, *batch.keys)

    def cut(sizes: tuple[int, int], M: int) -> Batch:
        B_r, B_c = sizes
        return batch.in_blocks(min(B_r, most_queries), min(B_c, most_keys), M)

    sizes = check_blocks(blocks)
    if sizes is None:
        form = form_of(program)

        def fits(sizes: tuple[int, int], M: int) -> bool:
            return form.peak(cut(sizes, M), **checked_options) <= M

        sizing_problem = SizingProblem(
            program=program.name,
            shape=f"{len(batch)} sequences with d = {batch.d}, d_v = {batch.d_v}",
            M=batch.M,
            longest=max(most_queries, most_keys),
            blocks=lambda rows: program.line_1(rows, batch, **checked_options),
            fits=fits,
        )
        sizes = Fit()(sizing_problem)
    return BatchPlan.of(
        program, cut(sizes, batch.M), checked_options, make_operands(checked_options)
    )


def launched(
    plan: BatchPlan, observers: Sequence[Observer] = ()
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Run a plan; return its costs over all KV heads, and the matrices that it returned, (H_kv,
    rows, width), by name.
    """
    batch = plan.batch
    outcome = simulate(plan, observers)
    _check_stored(plan, outcome)
    total = outcome.total if plan.arithmetic else outcome.total.times(batch.kv_heads)
    costs = {
        "hbm": _total(plan, total.traffic),
        "sram": Occupancy(total.peak, batch.M, True),
        "plan": plan,
        "operations": None if plan.arithmetic else total.flops,
    }
    return costs, {name: np.stack(heads) for name, heads in outcome.matrices.items()}


def _check_stored(plan: BatchPlan, outcome: Outcome) -> None:
    """Raise MemoryModelError where a user's program stores fewer elements of a result than the
    sequences have: its loops do not cover them, so what it moves is not what the whole would.
    """
    if not plan.is_user_defined:
        return
    batch = plan.batch
    program = plan.program
    rows = batch.group * sum(batch.queries)
    keys = sum(batch.keys)
    sizes = {
        "O": rows * batch.d_v,
        "L": rows,
        "dQ": rows * batch.d,
        "dK": keys * batch.d,
        "dV": keys * batch.d_v,
    }
    heads = batch.kv_heads if plan.arithmetic else 1
    for name in program.returns:
        traffic = outcome.total.traffic.by_array.get(name)
        stored = 0 if traffic is None else traffic.writes
        needed = heads * sizes.get(name, 0)
        if stored < needed:
            raise MemoryModelError(
                f"{program.name!r} ({program.title}) stores {stored:,} of the {needed:,} elements "
                f"that its sequences have of {name}; expected all of them"
            )


def _total(plan: BatchPlan, traffic: Traffic) -> Traffic:
    """Return the traffic of all KV heads, which share words, and what else the program says."""
    heads = plan.batch.kv_heads
    by_array = {}
    for name, array in traffic.by_array.items():
        by_array[name] = array.shared(heads) if plan.is_shared(name) else array
    return Traffic(by_array)


def run(
    name: str,
    batch: Batch,
    operands: Operands,
    blocks: Any,
    observers: Sequence[Observer],
    **options: Any,
) -> Result:
    """Run the program of that name, forward, on these operands."""
    return finished(
        plan_of(programs()[name], batch, blocks, options, lambda _: operands), observers
    )


def finished(plan: BatchPlan, observers: Sequence[Observer] = ()) -> Result:
    """Run the plan of a forward pass."""
    costs, matrices = launched(plan, check_observers(observers))
    O, L = (by_sequence(plan.batch, matrices[name]) for name in ("O", "L"))
    _check_finite(plan, "O", O)
    return Result(**costs, arrays={"O": O, "lse": [lse[..., 0] for lse in L]})


def gradients(plan: BatchPlan, observers: Sequence[Observer] = ()) -> Result:
    """Run the plan of a backward pass."""
    batch, (costs, matrices) = plan.batch, launched(plan, check_observers(observers))
    keys = [slice(*batch.cols(s)) for s in range(len(batch))]
    dK, dV = ([matrices[name][:, own] for own in keys] for name in ("dK", "dV"))
    dQ = by_sequence(batch, matrices["dQ"])
    for name, of in (("dQ", dQ), ("dK", dK), ("dV", dV)):
        _check_finite(plan, name, of)
    return Result(**costs, arrays={"dQ": dQ, "dK": dK, "dV": dV})


def _check_finite(plan: BatchPlan, name: str, arrays: Sequence[Array]) -> None:
    """Raise ValueError for results that are not finite: rows that no sequence has may hold
    anything, so inputs may.
    """
    for s, array in enumerate(arrays):
        if not np.isfinite(array).all():
            raise ValueError(
                f"{name} of sequence {s} is not finite; expected finite numbers in its rows, whose "
                "products "
                f"{chip_dtype(plan.batch.dtype).name} holds"
            )


def by_sequence(batch: Batch, packed: Array) -> list[Array]:
    """Return (H_kv, rows, width) as (H_q, N_s, width) for each sequence."""
    return [by_head(packed[:, slice(*batch.rows(s))], batch.group) for s in range(len(batch))]


def packed(batch: Batch, sequences: Sequence[Array]) -> Array:
    """Return the inverse: (H_q, N_s, width) for each sequence as (H_kv, rows, width)."""
    return np.concatenate([interleave(array, batch.group) for array in sequences], axis=1)


def batch_of_lists(
    Q: Any, K: Any, V: Any, M: Any, causal: Any, scale: Any
) -> tuple[Batch, Array, list[Array], list[Array]]:
    """Return the batch of lists with an array for each sequence; Q packed, K and V as lists.
    Raises ValueError.
    """
    queries = check_sequences("Q", Q)
    keys = check_sequences("K", K, ("Q", queries))
    values = check_sequences("V", V, ("Q", queries))
    for s in range(len(queries)):
        check_fit(queries[s], keys[s], values[s], f"Q[{s}] K[{s}] V[{s}]")
    N, n = ([array.shape[1] for array in of] for of in (queries, keys))
    batch = batch_of(queries[0], keys[0], values[0], N, n, M, causal, scale)
    return batch, packed(batch, queries), keys, values


def batch_of(
    Q: Array,
    K: Array,
    V: Array,
    queries: Sequence[int],
    keys: Sequence[int],
    M: Any,
    causal: Any,
    scale: Any,
    starts: Any = None,
) -> Batch:
    """Return the batch of arrays (heads, ·, width) that were checked, of these lengths by
    sequence.
    """
    return Batch(
        queries=tuple(queries),
        keys=tuple(keys),
        heads=len(Q),
        kv_heads=len(K),
        d=Q.shape[2],
        d_v=V.shape[2],
        dtype=Q.dtype,
        M=M,
        tau=scale,
        causal=causal,
        starts=starts,
    )


def count(
    name: str | BatchProgram,
    *,
    queries: Any,
    keys: Any,
    d: int,
    d_v: int | None = None,
    heads: int = 1,
    kv_heads: int | None = None,
    dtype: Any = "float32",
    direction: str = "forward",
    M: Size | None = None,
    blocks: tuple[int, int] | None = None,
    causal: bool = True,
    observers: Sequence[Observer] = (),
    **options: Any,
) -> Result:
    """Count what a program of this room would move, by running it on lengths alone.

    name           of a program; or a `BatchProgram`, the record of your own, which needs blocks
    queries, keys  N_s and n_s, a length for each sequence; one number of queries is every
                   sequence's
    options        the program's own, such as page=16 for "paged"

    Other arguments as in the functions that run them. Raises ValueError.
    """
    known = programs(check_choice("direction", direction, ("forward", "backward")))
    program = name if isinstance(name, BatchProgram) else known[check_choice("name", name, known)]
    keys = check_by_sequence("keys", keys)
    fields: dict[str, Any] = {  # as the caller wrote them: the batch checks and converts them
        "queries": (queries,) * len(keys) if isinstance(queries, int) else queries,
        "keys": keys,
        "heads": heads,
        "kv_heads": heads if kv_heads is None else kv_heads,
        "d": d,
        "d_v": d if d_v is None else d_v,
        "dtype": dtype,
        "M": M,
        "tau": None,
        "causal": causal,
    }
    batch = Batch(**fields)
    plan = plan_of(
        program,
        batch,
        blocks,
        options,
        lambda checked_options: program.operands(batch, checked_options),
    )
    costs, _ = launched(plan, check_observers(observers))
    return Result(**costs)


def exact(tally: Result) -> Exact:
    """Return by formula what was counted, with which it agrees by `==`.

    Raises ValueError for what is not a result of this room, NoClosedForm, a ValueError, for a
    program of the user's own.
    """
    plan = getattr(tally, "plan", None)
    if not isinstance(plan, BatchPlan):
        raise ValueError(
            f"tally is {short_repr(tally)}; expected what flashsim.serving's functions return"
        )
    return plan.exact()

"""What users call: attention over P devices, run on the simulated network, counted on lengths
alone, or by formula.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np

from flashsim.algorithms.blocks import Fit, SizingProblem, clipped, q_outer_blocks
from flashsim.attention.arguments import (
    check_blocks,
    check_choice,
    check_count,
    check_flag,
    is_one_of,
    short_repr,
)
from flashsim.attention.inputs import (
    Array,
    Inputs,
    check_dO,
    check_inputs,
    check_range,
    chip_dtype,
    describe_array,
)
from flashsim.attention.masks.agreement import check_agreement
from flashsim.attention.problem import Problem
from flashsim.attention.shapes import Sizes
from flashsim.devices import theory
from flashsim.devices.heads import heads_of
from flashsim.devices.layouts import positions
from flashsim.devices.programs import programs
from flashsim.devices.record import DIRECTIONS, DevicesProgram
from flashsim.devices.share import CountedShare, Share
from flashsim.memory.device import Link, whole
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.source import is_of_package
from flashsim.memory.sram import SRAM, Observer
from flashsim.memory.traffic import Occupancy, Traffic
from flashsim.simulate.outcome import Outcome
from flashsim.simulate.pipeline import simulate
from flashsim.simulate.plan import Launch, Operand, Plan
from flashsim.simulate.results import Result
from flashsim.support.sizes import Size
from flashsim.theory.closed_form import Exact, NoClosedForm, form_beside


@dataclass(frozen=True, kw_only=True, repr=False)
class DevicesPlan(Plan):
    """A program on the shares of P devices: one launch for each device; links connect them.

    share    the problem, the rows of each device, and the blocks
    columns  of a mesh, else 1
    arrays   (heads, N, width) by name; None: to count on lengths alone
    """

    program: DevicesProgram
    problem: Problem
    share: Share
    columns: int
    arrays: Mapping[str, Array] | None = None

    side_by_side = True

    @classmethod
    def of(
        cls,
        program: DevicesProgram,
        share: Share,
        columns: int,
        arrays: Mapping[str, Array] | None = None,
    ) -> DevicesPlan:
        """Return the plan."""
        return cls(
            program=program,
            problem=share.problem,
            arithmetic=arrays is not None,
            is_user_defined=not is_of_package(program.run),
            share=share,
            columns=columns,
            arrays=arrays,
        )

    @property
    def blocks(self) -> Sizes:
        """B_r and B_c."""
        return Sizes(B_r=self.share.B_r, B_c=self.share.B_c)

    def exact(self) -> Exact:
        """Raise an error that names the closed form: it is one of each device."""
        raise NoClosedForm(
            "the closed form of a program over devices is of each device; expected "
            "flashsim.devices.exact(result)"
        )

    def described(self) -> dict[str, Any]:
        """Return the arguments, as plain data."""
        share = self.share
        problem = self.share.problem
        return {
            "direction": self.program.direction,
            "P": len(share.where),
            **asdict(problem.shape),
            "heads": problem.heads,
            "kv_heads": share.H_kv,
            "dtype": problem.dtype.name,
            "mask": repr(problem.mask),
            "M": problem.M,
            "B_r": share.B_r,
            "B_c": share.B_c,
        }

    def described_operands(self) -> list[str]:
        """Return name, shape and dtype of each operand; to count, lengths and the dtype."""
        if self.arrays is None:
            return [str(self.problem.shape), self.dtype.name]
        return [describe_array(name, array) for name, array in self.arrays.items()]

    def launches(self, outcome: Outcome) -> Iterator[Launch]:
        """Yield each device's launch."""
        for rank in range(len(self.share.where)):
            yield self.launch(own_rows(self.program, self.share, rank, self.arrays))

    def launch(self, own: Mapping[str, Any]) -> Launch:
        """Return the launch of a device with its own rows of the operands, or their shapes."""
        operands = []
        for name in self.program.operands:
            operands.append(
                Operand(name, own[name], chip_dtype(self.dtype) if name == "L" else self.dtype)
            )
        return Launch(
            operands=operands,
            first=[self._share_of_launches],
            make_arguments=self._arguments,
            folds=self._folds,
        )

    @property
    def _folds(self) -> bool:
        # of a user's program every turn is run
        return not self.arithmetic and not self.is_user_defined

    @cached_property
    def _share_of_launches(self) -> Share:
        """The share that the program's function gets: all devices have the same."""
        share = self.share
        if not self._folds:
            return share
        return CountedShare(share.problem, share.where, share.queries, share.B_r, share.B_c)

    def _arguments(self, hbm: HBM, sram: SRAM) -> list[Any]:
        return [self.columns] if self.program.columns else []

    def keep(
        self,
        outcome: Outcome,
        launch: Launch,
        hbm: HBM,
        returned: Sequence[Matrix],
    ) -> None:
        """Keep a device's results, in the order in which its program returns them."""
        if self.arithmetic:
            for place, matrix in enumerate(returned):
                outcome.matrices.setdefault(str(place), []).append(values_of(matrix))


def values_of(matrix: Matrix) -> Array:
    """Return the numbers of a matrix, or of a window of its rows."""
    return (
        cast(Array, whole(matrix)._values)
        if matrix.shape[0]
        else np.empty(matrix.shape, matrix.dtype)
    )


@dataclass(frozen=True)
class DeviceCosts:
    """What one device moved: `hbm`, accesses by array; `sram`, peak and capacity; `links[to]`,
    what it sent there.
    """

    hbm: Traffic
    sram: Occupancy
    links: dict[int, Link]

    @property
    def words(self) -> int:
        """The elements that it sent."""
        return sum(link.words for link in self.links.values())


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class DevicesResult(Result):
    """What a program moved on P devices, and what it computed. `hbm` and `sram` are of all devices
    together.

    devices  what each moved: `devices[p]`

    Forward, it has O (..., H_q, N, d_v) and lse (..., H_q, N); backward, dQ, dK, dV, of the shapes
    and the type of Q, K, V.
    """

    plan: DevicesPlan
    devices: Sequence[DeviceCosts]

    @property
    def P(self) -> int:
        """How many devices."""
        return len(self.devices)

    @property
    def share(self) -> Share:
        """The problem, the rows of each device, and the blocks."""
        return self.plan.share

    @property
    def words(self) -> int:
        """The elements that all devices sent together."""
        return sum(device.words for device in self.devices)

    @property
    def accesses(self) -> int:
        """The HBM accesses of all devices together, in elements."""
        return self.hbm.accesses

    @property
    def equals_theory(self) -> bool | None:
        """Whether each device's words and accesses are those of the closed form; None where there
        is none.
        """
        try:
            forms = exact(self)
        except NoClosedForm:
            return None
        pairs = zip(forms, self.devices, strict=True)
        return all((form.words, form.hbm) == (device.words, device.hbm) for form, device in pairs)

    def _counted(self) -> tuple[Any, ...]:
        return *super()._counted(), self.devices

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments, and each device's numbers, as plain data."""
        data: dict[str, Any] = {"program": self.algorithm, **self.plan.described()}
        data["devices"] = []
        for p, device in enumerate(self.devices):
            links = {}
            for to, link in sorted(device.links.items()):
                links[str(to)] = asdict(link)
            data["devices"].append(
                {
                    "rows": self.share.rows(p),
                    "words": device.words,
                    "links": links,
                    "hbm": device.hbm.to_dict(),
                    "sram": device.sram.to_dict(),
                }
            )
        return data

    def __repr__(self) -> str:
        costs = (
            f"{self.words:,} words sent, {self.accesses:,} HBM accesses, blocks {self.share.B_r} × "
            f"{self.share.B_c}"
        )
        return f"DevicesResult({self.algorithm!r} on {self.P} devices: {costs})"


def forward(
    name: str | DevicesProgram,
    Q: Any,
    K: Any,
    V: Any,
    *,
    P: int,
    layout: str | None = None,
    columns: int | None = None,
    M: Size | None = None,
    blocks: tuple[int, int] | None = None,
    causal: bool = False,
    mask: Any = None,
    scale: float | None = None,
    check_finite: bool = True,
    observers: Sequence[Sequence[Observer]] = (),
) -> DevicesResult:
    """Run attention over P simulated devices, each with an SRAM of M elements.

    Q is (..., H_q, N, d), K and V (..., H_kv, N, ·), as in `flashsim.forward`; the N rows are
    divided among the devices.

    name     "ring", "ulysses", "mesh", or "tree", where device 0 has all queries, which may be
             fewer than the keys; or a record of your own, like theirs
    layout   which rows a device has: "contiguous", "striped" or "zigzag"
             (`flashsim.devices.layouts`); None: the program's own
    columns  of the mesh, a divisor of P; None: those with the fewest words sent
    blocks   (B_r, B_c) on every device; None: line 1's proportions of q_outer, the largest that fit
             M
    mask     a mask of positions: `flashsim.Causal`, `SlidingWindow`, padding; not one that must be
             in HBM
    observers  `observers[p]` follow device p: they receive each event of its memory, and its posts
               and waits

    Raises ValueError for arguments that make no sense, `SramOverflow` where blocks do not fit M,
    `LinkError` for a program that breaks a rule of the links.
    """
    inputs, problem = check_operands(
        Q, K, V, M=M, scale=scale, causal=causal, mask=mask, check_finite=check_finite
    )
    program, share, columns = share_out(name, "forward", problem, P, layout, columns, blocks)
    matrices = {}
    for X in "QKV":
        matrices[X] = by_rows(getattr(inputs, X)).copy()
    plan = DevicesPlan.of(program, share, columns, matrices)
    outcome = simulate(plan, observers)
    O = _gathered(share, outcome.matrices["0"])
    L = _gathered(share, outcome.matrices["1"], program.whole_heads)
    arrays = {
        "O": O.reshape(*inputs.leading, *O.shape[1:]),
        "lse": L.reshape(*inputs.leading, len(share)),
    }
    return _result(plan, outcome, arrays)


def backward(
    name: str,
    run: DevicesResult,
    dO: Any,
    *,
    columns: int | None = None,
    M: Size | None = None,
    blocks: tuple[int, int] | None = None,
    check_finite: bool = True,
) -> DevicesResult:
    """Run the backward pass of a run, whichever program made it, on the same devices and rows, for
    dO (..., H_q, N, d_v).

    M by default the run's; columns and blocks as in `forward`. Raises ValueError as there.
    """
    if not isinstance(run, DevicesResult) or "O" not in run.arrays:
        raise ValueError(
            f"run is {short_repr(run)}; expected what flashsim.devices.forward returned"
        )
    gradient = check_dO(dO, run.O, check_finite=check_flag("check_finite", check_finite))
    problem = run.share.problem.with_memory(M)
    program, share, columns = share_out(
        name, "backward", problem, run.P, run.share.where, columns, blocks
    )
    inputs = cast("Mapping[str, Array]", run.plan.arrays)
    matrices = {X: inputs[X] for X in "QKV"}
    matrices["O"] = by_rows(run.O)
    matrices["dO"] = by_rows(gradient)
    matrices["L"] = by_rows(run.lse[..., None])
    plan = DevicesPlan.of(program, share, columns, matrices)
    outcome = simulate(plan)
    gradients: dict[str, Any] = {}
    parts_of_each = outcome.matrices.values()
    for X, parts in zip(("dQ", "dK", "dV"), parts_of_each, strict=True):
        gradient = _gathered(share, parts).astype(run.O.dtype)
        leading = run.O.shape[:-2]  # of query heads
        if leading and X != "dQ":
            leading = (*leading[:-1], leading[-1] // share.group)
        gradients[X] = gradient.reshape(*leading, *gradient.shape[1:])
    return _result(plan, outcome, gradients)


def count(
    name: str | DevicesProgram,
    *,
    P: int,
    N: int,
    d: int,
    N_q: int | None = None,
    M: Size | None = None,
    d_v: int | None = None,
    heads: int = 1,
    kv_heads: int | None = None,
    dtype: Any = "float32",
    direction: str = "forward",
    layout: str | None = None,
    columns: int | None = None,
    blocks: tuple[int, int] | None = None,
    causal: bool = False,
    mask: Any = None,
) -> DevicesResult:
    """Count what `forward` or `backward` would move, by running the same program on lengths
    alone; arguments as there.
    """
    problem = Problem.of(
        N_q=N if N_q is None else N_q,
        N_k=N,
        d=d,
        d_v=d_v,
        M=M,
        heads=heads,
        kv_heads=kv_heads,
        dtype=dtype,
        causal=causal,
        mask=mask,
    )
    program, share, columns = share_out(name, direction, problem, P, layout, columns, blocks)
    plan = DevicesPlan.of(program, share, columns)
    return _result(plan, simulate(plan))


def form_of(program: DevicesProgram) -> theory.DevicesForm:
    """Return the closed form of one of flashsim's programs.

    Raises NoClosedForm, a ValueError, for a user's own program: its blocks cannot be chosen by a
    peak that is not known.
    """
    form = theory.forms().get((program.name, program.direction))
    if form is None or not is_of_package(program.run):
        raise NoClosedForm(
            f"there is no closed form of {program.name!r}, {program.direction}, by which blocks "
            "could be chosen; expected blocks=(B_r, B_c)"
        )
    return form


def exact(tally: DevicesResult) -> list[theory.ExactDevice]:
    """Return the same by formula, for each device: `words` and `hbm`, with which counts agree by
    `==`.

    Raises ValueError for what is not a result of this package, NoClosedForm for a user's own
    program.
    """
    if not isinstance(tally, DevicesResult):
        raise ValueError(
            f"tally is {short_repr(tally)}; expected what flashsim.devices' functions return"
        )
    program = tally.plan.program
    form = form_beside(program, program.direction, theory.DevicesForm) or form_of(program)
    return form.devices(tally.share, tally.plan.columns)


def check_operands(
    Q: Any,
    K: Any,
    V: Any,
    *,
    M: Any,
    scale: Any,
    causal: Any,
    mask: Any,
    check_finite: Any,
) -> tuple[Inputs, Problem]:
    """Return the arrays and their problem. Raises ValueError."""
    check_finite = check_flag("check_finite", check_finite)
    inputs = check_inputs(Q, K, V)
    problem = Problem.of_shape(
        inputs.shape,
        inputs.leading,
        inputs.group,
        inputs.dtype,
        M=M,
        scale=scale,
        causal=causal,
        mask=mask,
        dropout_p=0.0,
        seed=0,
        gqa="separate",
    )
    if check_finite:
        check_range(inputs, problem.scale, 0.0, None)
    return inputs, problem


def share_out(
    name: Any,
    direction: Any,
    problem: Problem,
    P: Any,
    layout: Any,
    columns: Any,
    blocks: Any,
) -> tuple[DevicesProgram, Share, int]:
    """Divide a problem among P devices: return the program, the devices' shares in their blocks,
    and the columns of a mesh, else 1. Raises ValueError.
    """
    known = programs(check_choice("direction", direction, DIRECTIONS))
    if isinstance(name, DevicesProgram):
        known = {name.name: name}
        name = name.name
    if is_one_of(name, programs()) and name not in known:
        raise ValueError(
            f"{name!r} has no backward pass over devices; {', '.join(map(repr, known))} have one"
        )
    program = known[check_choice("name", name, known)]
    shape = problem.shape
    P = check_count("P", P)
    if shape.N_q != shape.N_k and not program.at_root:
        raise ValueError(
            f"Q has N_q = {shape.N_q:,} and K has N_k = {shape.N_k:,}; expected as many queries as "
            "keys over devices"
        )
    if isinstance(layout, list):
        where = layout
    else:
        where = positions(layout or program.layout, shape.N_k, P)
    queries = where
    if program.at_root:
        none = np.arange(0)
        queries = [np.arange(shape.N_q)] + [none] * (P - 1)
    fixed = check_blocks(blocks)
    if fixed is None:
        form = form_of(program)

        def fits(sizes: tuple[int, int], M: int) -> bool:
            B_r, B_c = sizes
            return form.peak(B_r, B_c, shape.d, shape.d_v) <= M

        sizing_problem = SizingProblem(
            program=program.name,
            shape=shape,
            M=problem.M,
            longest=max(map(len, queries)),
            blocks=lambda rows: q_outer_blocks(rows, shape.d),
            fits=fits,
        )
        fixed = Fit()(sizing_problem)
    B_r = min(fixed[0], shape.N_q)
    B_c = min(fixed[1], shape.N_k)
    share = Share(problem, where, queries, B_r, B_c)
    check_agreement(problem.mask, clipped(shape, B_r, B_c), shape, ())
    if not program.columns:
        if columns is not None:
            raise ValueError(
                f"columns is {columns!r}; expected None, because {program.name!r} has no columns"
            )
        return program, share, 1
    divisors = [C for C in range(1, P + 1) if P % C == 0]
    if columns is None:
        return program, share, theory.fewest_columns(share, direction)
    if check_count("columns", columns) not in divisors:
        raise ValueError(
            f"columns is {columns}; expected a divisor of P = {P}: {', '.join(map(str, divisors))}"
        )
    return program, share, columns


def own_rows(
    program: DevicesProgram, share: Share, rank: int, arrays: Mapping[str, Array] | None
) -> dict[str, Any]:
    """Return a device's own rows of the arrays, (heads, N, width) by name; None: their shapes."""
    shape = share.problem.shape
    rows_by_name = dict[str, Any]()
    widths = {
        "Q": shape.d,
        "K": shape.d,
        "V": shape.d_v,
        "O": shape.d_v,
        "dO": shape.d_v,
        "L": 1,
    }
    for X in program.operands if arrays is None else arrays:
        if X in "KV":
            heads = range(share.H_kv)
            rows = share.where[rank]
        elif X == "L" and program.whole_heads:
            heads = heads_of(share, rank)
            rows = np.concatenate([*share.where])
        else:
            heads = range(share.H_q)
            rows = share.queries[rank]
        lengths = len(heads) * len(rows), widths[X]
        if arrays is None:
            rows_by_name[X] = lengths
        else:
            own = arrays[X][heads.start : heads.stop, rows]
            rows_by_name[X] = own.reshape(lengths)
    return rows_by_name


def by_rows(array: Array) -> Array:
    """Return (..., N, width) as (heads, N, width)."""
    return array.reshape(-1, *array.shape[-2:])


def _gathered(share: Share, parts: Sequence[Array], whole_heads: bool = False) -> Array:
    """Return (heads, N, width) of each device's rows; or of each device's whole heads, whose
    rows come device by device.
    """
    rows = [len(share) if whole_heads else len(queries) for queries in share.queries]
    arrays = []
    for part, n in zip(parts, rows, strict=True):
        if len(part):
            arrays.append(part.reshape(-1, n, part.shape[1]))
    stacked = np.concatenate(arrays, axis=0 if whole_heads else 1)
    in_order = np.empty_like(stacked)
    in_order[:, np.concatenate([*share.queries])] = stacked
    return in_order


def _result(
    plan: DevicesPlan, outcome: Outcome, arrays: Mapping[str, Array] | None = None
) -> DevicesResult:
    devices = [
        DeviceCosts(device.hbm.traffic, device.sram.use, device.links) for device in outcome.devices
    ]
    total = outcome.total
    use = Occupancy(total.peak, plan.M, plan.enforced)
    operations = total.flops if arrays is None else None
    return DevicesResult(
        plan=plan,
        hbm=total.traffic,
        sram=use,
        operations=operations,
        arrays=arrays or {},
        devices=devices,
    )

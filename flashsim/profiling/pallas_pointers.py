"""Pallas kernels for GPUs: their jaxpr, evaluated program by program.

On a GPU a ref is a pointer: what moves is what the kernel loads from it and stores to it, not the
block of its BlockSpec. JAX's interpreter (interpret=True) turns loads and stores into functions of
whole blocks before it runs, and calls nobody. So the jaxpr is evaluated here, one equation after
the other: those that touch refs by the methods of `Programs`, all others by JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from flashsim.profiling.arrays import Array
from flashsim.profiling.errors import OutsideArrays, ProfilingError
from flashsim.profiling.pallas_call import Internals, Operand, PallasCall, inner_jaxprs
from flashsim.profiling.pallas_operands import OUTSIDE, block, view, whole
from flashsim.profiling.recording import Kind, Line, Recorder


@dataclass(frozen=True)
class Buffer:
    """The elements of an array, or of scratch.

    values  of all elements, one behind the other
    array   None: it is on the chip
    """

    name: str
    values: np.ndarray
    array: Array | None


@dataclass(frozen=True)
class Ref:
    """What a kernel's parameter is: the elements of a buffer at these positions."""

    buffer: Buffer
    positions: np.ndarray


class Programs:
    """All programs of one launch.

    line  of the `pallas_call`: of accesses whose own line is not known
    """

    def __init__(
        self, recorder: Recorder, internals: Internals, call: PallasCall, line: Line
    ) -> None:
        self._recorder = recorder
        self._internals = internals
        self._call = call
        self._line = line
        self._lines: dict[int, Line] = {}
        self._live = set(_live(call.jaxpr))
        self._program: tuple[int, ...] = ()
        self._rules: dict[str, Callable[..., list[Any]]] = {
            "get": self._get,
            "swap": self._swap,
            "addupdate": self._add_update,
            "masked_load": self._masked_load,
            "masked_swap": self._masked_swap,
            "atomic_rmw": self._atomic,
            "atomic_cas": self._compare_and_swap,
            "run_scoped": self._run_scoped,
            "program_id": self._program_id,
            "num_programs": self._number_of_programs,
            "cond": self._cond,
            "scan": self._scan,
            "while": self._while,
            "jit": self._inline,
            "pjit": self._inline,
            "closed_call": self._inline,
            "core_call": self._inline,
            "custom_jvp_call": self._inline,
            "custom_vjp_call": self._inline,
            "elementwise_inline_asm_p": self._assembly,
            "debug_barrier_p": self._nothing,
            "debug_print": self._nothing,
            "delay": self._nothing,
        }

    def run(self, prefetch: Sequence[Buffer], operands: Sequence[Buffer]) -> None:
        """Run every program, in the order of the grid. Writes land in the buffers."""
        scalars = [_whole(buffer, ()) for buffer in prefetch]
        positions = []
        for operand in self._call.operands:
            positions.append(whole(operand.shape))
        scratch = []
        for number, entry in enumerate(self._call.scratch):
            values = np.zeros(int(np.prod(entry.shape)), entry.dtype)
            scratch.append(_whole(Buffer(f"scratch_{number}", values, None), entry.shape))
        for point in product(*(range(length) for length in self._call.grid)):
            self._program = point
            refs = []
            for buffer, operand, elements in zip(
                operands, self._call.operands, positions, strict=True
            ):
                starts = self._starts(operand, point, scalars)
                sizes = tuple(axis.size for axis in operand.axes)
                squeezed = tuple(axis.squeezed for axis in operand.axes)
                refs.append(Ref(buffer, block(elements, starts, sizes, squeezed)))
            self._evaluate(self._call.jaxpr, (), [*scalars, *refs, *scratch])

    def _starts(
        self, operand: Operand, point: tuple[int, ...], scalars: list[Ref]
    ) -> tuple[int, ...]:
        """Return where a program's block begins on each axis."""
        grid = [np.int32(index) for index in point]
        index_map = operand.index_map
        indices = self._evaluate(index_map.jaxpr, index_map.consts, [*grid, *scalars])
        starts = []
        for index, axis in zip(indices, operand.axes, strict=False):
            starts.append(int(index) * axis.step - axis.before)
        return tuple(starts)

    def _evaluate(
        self, jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any]
    ) -> list[Any]:
        """Return a jaxpr's results."""
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))

        def of(atom: Any) -> Any:
            return atom.val if hasattr(atom, "val") else values[atom]

        for equation in jaxpr.eqns:
            operands = [of(atom) for atom in equation.invars]
            try:
                results = self._apply(equation, operands)
            except ProfilingError:
                raise
            except Exception as error:
                raise ProfilingError(
                    f"{self._line_of(equation)}: the kernel {self._call.kernel} fails at "
                    f"{equation.primitive.name}: {type(error).__name__}: {error}"
                ) from error
            values.update(zip(equation.outvars, results, strict=True))
        return [of(atom) for atom in jaxpr.outvars]

    def _apply(self, equation: Any, operands: list[Any]) -> list[Any]:
        """Return one equation's results."""
        primitive = equation.primitive
        rule = self._rules.get(primitive.name)
        if rule is not None:
            return rule(equation, operands)
        if any(isinstance(operand, Ref) for operand in operands):
            raise ProfilingError(
                f"{self._line_of(equation)}: the kernel {self._call.kernel} uses a ref in "
                f"{primitive.name}, which is not counted; expected loads, stores and atomics"
            )
        results = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
        return list(results) if primitive.multiple_results else [results]

    def _line_of(self, equation: Any) -> Line:
        key = id(equation)
        if key not in self._lines:
            traceback = equation.source_info.traceback
            self._lines[key] = self._internals.line(traceback) or self._line
        return self._lines[key]

    # Loads and stores.

    def _get(self, equation: Any, operands: list[Any]) -> list[Any]:
        transforms = self._tree(equation.params["tree"], operands[1:])
        return [self._load(equation, operands[0], transforms, None, None)]

    def _swap(self, equation: Any, operands: list[Any]) -> list[Any]:
        transforms = self._tree(equation.params["tree"], operands[2:])
        return [self._exchange(equation, operands[0], transforms, operands[1], None)]

    def _masked_load(self, equation: Any, operands: list[Any]) -> list[Any]:
        ref, transforms, mask, other = self._tree(equation.params["args_tree"], operands)
        return [self._load(equation, ref, transforms, mask, other)]

    def _masked_swap(self, equation: Any, operands: list[Any]) -> list[Any]:
        ref, transforms, value, mask = self._tree(equation.params["args_tree"], operands)
        return [self._exchange(equation, ref, transforms, value, mask)]

    def _add_update(self, equation: Any, operands: list[Any]) -> list[Any]:
        ref, value, *indices = operands
        positions = view(ref.positions, self._tree(equation.params["tree"], indices))
        active = self._access(equation, "read", ref, positions, None)
        self._access(equation, "write", ref, positions, None)
        np.add.at(ref.buffer.values, positions[active], _spread(value, active)[active])
        return []

    def _atomic(self, equation: Any, operands: list[Any]) -> list[Any]:
        ref, transforms, value, mask = self._tree(equation.params["args_tree"], operands)
        positions = view(ref.positions, transforms)
        active = self._access(equation, "atomic", ref, positions, mask)
        values = ref.buffer.values
        old = _elements(values, positions, active, None)
        kind = equation.params["atomic_type"].value
        if kind == "xchg":
            values[positions[active]] = _spread(value, active)[active]
        else:
            ATOMICS[kind].at(values, positions[active], _spread(value, active)[active])
        return [old]

    def _compare_and_swap(self, equation: Any, operands: list[Any]) -> list[Any]:
        ref, expected, value = operands
        active = self._access(equation, "atomic", ref, ref.positions, None)
        old = _elements(ref.buffer.values, ref.positions, active, None)
        if old == np.asarray(expected):
            ref.buffer.values[ref.positions] = np.asarray(value)
        return [old]

    def _load(self, equation: Any, ref: Ref, transforms: Any, mask: Any, other: Any) -> np.ndarray:
        positions = view(ref.positions, transforms)
        active = self._access(equation, "read", ref, positions, mask)
        return _elements(ref.buffer.values, positions, active, other)

    def _exchange(
        self, equation: Any, ref: Ref, transforms: Any, value: Any, mask: Any
    ) -> np.ndarray:
        """Store a value and return the old one, which a kernel reads only where it uses it."""
        positions = view(ref.positions, transforms)
        if id(equation) in self._live:
            self._access(equation, "read", ref, positions, mask)
        active = self._access(equation, "write", ref, positions, mask)
        old = _elements(ref.buffer.values, positions, active, None)
        ref.buffer.values[positions[active]] = _spread(value, active)[active]
        return old

    def _access(
        self, equation: Any, kind: Kind, ref: Ref, positions: np.ndarray, mask: Any
    ) -> np.ndarray:
        """Record an access, and return which of its elements move.

        Raises OutsideArrays where one of these is none of the array's: a GPU would touch what lies
        behind it.
        """
        active = np.ones(positions.shape, bool)
        if mask is not None:
            active = np.broadcast_to(np.asarray(mask).astype(bool), positions.shape)
        array = ref.buffer.array
        outside = int((active & (positions == OUTSIDE)).sum())
        line = self._line_of(equation)
        if outside:
            elements = "1 element" if outside == 1 else f"{outside:,} elements"
            verb = "reads" if kind == "read" else "writes"
            name = ref.buffer.name if array is None else array.name
            shape = ref.buffer.values.shape if array is None else array.shape
            raise OutsideArrays(
                f"{line}: program {self._program} {verb} {elements} outside {name} of {shape}"
            )
        if array is not None:
            addresses = array.address + positions * array.itemsize
            self._recorder.access(kind, addresses, active, array.itemsize, self._program, line)
        return active

    def _tree(self, tree: Any, leaves: Sequence[Any]) -> Any:
        return self._internals.jax.tree_util.tree_unflatten(tree, leaves)

    # Control flow.

    def _program_id(self, equation: Any, operands: list[Any]) -> list[Any]:
        return [np.int32(self._own_axes(self._program)[equation.params["axis"]])]

    def _number_of_programs(self, equation: Any, operands: list[Any]) -> list[Any]:
        return [np.int32(self._own_axes(self._call.grid)[equation.params["axis"]])]

    def _own_axes(self, values: tuple[int, ...]) -> list[int]:
        """Leave out the axes of the grid that the kernel does not know of."""
        vmapped = self._call.vmapped
        return [value for axis, value in enumerate(values) if axis not in vmapped]

    def _inline(self, equation: Any, operands: list[Any]) -> list[Any]:
        for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
            inner = equation.params.get(name)
            if inner is not None:
                return self._closed(inner, operands)
        raise KeyError(f"{equation.primitive.name} has no jaxpr")

    def _closed(self, closed: Any, operands: Sequence[Any]) -> list[Any]:
        return self._evaluate(closed.jaxpr, closed.consts, operands)

    def _cond(self, equation: Any, operands: list[Any]) -> list[Any]:
        branches = equation.params["branches"]
        choice = min(max(int(operands[0]), 0), len(branches) - 1)
        return self._closed(branches[choice], operands[1:])

    def _while(self, equation: Any, operands: list[Any]) -> list[Any]:
        first = equation.params["cond_nconsts"]
        second = first + equation.params["body_nconsts"]
        carry = operands[second:]
        while bool(self._closed(equation.params["cond_jaxpr"], operands[:first] + carry)[0]):
            carry = self._closed(equation.params["body_jaxpr"], operands[first:second] + carry)
        return carry

    def _scan(self, equation: Any, operands: list[Any]) -> list[Any]:
        params = equation.params
        first = params["num_consts"]
        second = first + params["num_carry"]
        carry = operands[first:second]
        steps = list(range(params["length"]))
        if params["reverse"]:
            steps.reverse()
        columns: list[list[Any]] = [[] for _ in equation.outvars[params["num_carry"] :]]
        for step in steps:
            entries = [operand[step] for operand in operands[second:]]
            results = self._closed(params["jaxpr"], operands[:first] + carry + entries)
            carry = results[: params["num_carry"]]
            for column, value in zip(columns, results[params["num_carry"] :], strict=True):
                column.append(value)
        stacks = []
        for column, variable in zip(columns, equation.outvars[params["num_carry"] :], strict=True):
            if params["reverse"]:
                column.reverse()
            values = np.zeros(variable.aval.shape, variable.aval.dtype)
            for place, value in enumerate(column):
                values[place] = value
            stacks.append(values)
        return carry + stacks

    def _run_scoped(self, equation: Any, operands: list[Any]) -> list[Any]:
        inner = equation.params["jaxpr"]
        refs = []
        for number, variable in enumerate(inner.invars):
            shape = tuple(variable.aval.shape)
            values = np.zeros(int(np.prod(shape)), variable.aval.dtype)
            refs.append(_whole(Buffer(f"scoped_{number}", values, None), shape))
        return self._evaluate(inner, operands, refs)

    # Triton's own.

    def _assembly(self, equation: Any, operands: list[Any]) -> list[Any]:
        """Evaluate `plgpu.approx_tanh`, the one piece of assembly that Pallas itself writes."""
        if "tanh.approx" not in equation.params["asm"]:
            raise ProfilingError(
                f"{self._line_of(equation)}: the kernel {self._call.kernel} has inline assembly, "
                f"which a CPU cannot run: {equation.params['asm']}"
            )
        return [self._internals.jax.numpy.tanh(operands[0])]

    def _nothing(self, equation: Any, operands: list[Any]) -> list[Any]:
        return []


ATOMICS: dict[str, np.ufunc] = {
    "add": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _live(jaxpr: Any) -> Iterator[int]:
    """Yield the ids of the equations whose first result is used."""
    atoms = [atom for equation in jaxpr.eqns for atom in equation.invars]
    operands = {id(atom) for atom in [*atoms, *jaxpr.outvars]}
    for equation in jaxpr.eqns:
        if equation.outvars and id(equation.outvars[0]) in operands:
            yield id(equation)
        for inner in inner_jaxprs(equation.params):
            yield from _live(inner)


def _whole(buffer: Buffer, shape: tuple[int, ...]) -> Ref:
    if not shape and buffer.array is not None:
        shape = buffer.array.shape
    return Ref(buffer, whole(shape))


def _elements(
    values: np.ndarray, positions: np.ndarray, active: np.ndarray, other: Any
) -> np.ndarray:
    """Return the elements that move; `other` in place of those that do not. Where a kernel gives
    no other, Triton leaves the value open; zero is as good as any.
    """
    elements = np.zeros(positions.shape, values.dtype)
    if other is not None:
        elements[...] = np.broadcast_to(np.asarray(other), positions.shape)
    elements[active] = values[positions[active]]
    return elements


def _spread(value: Any, active: np.ndarray) -> np.ndarray:
    spread: np.ndarray = np.broadcast_to(np.asarray(value), active.shape)
    return spread


def values_of(buffers: Sequence[Buffer], operands: Sequence[Operand]) -> Iterator[np.ndarray]:
    """Yield the buffers' elements in their operands' shapes."""
    for buffer, operand in zip(buffers, operands, strict=True):
        yield buffer.values.reshape(operand.shape)

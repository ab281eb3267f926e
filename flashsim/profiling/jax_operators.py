"""JAX's operators, counted in the jaxpr of a call.

The call is traced, and its jaxpr evaluated operator by operator, so that loops run as often as they
do and a `cond` takes its branch. Free are operators whose result has the elements of the operand
and no more, as XLA gives it the same memory or folds it into the product that reads it: `reshape`,
`squeeze`, `expand_dims`, `transpose`, and `broadcast_in_dim` that makes no more elements. A scalar
is an argument or a constant of a kernel: it does not move, nor does its broadcast. All else moves,
also slices, broadcasts that make more elements, and updates, which make a new array. A `scan`
slices its inputs and stacks its outputs by operators of their own, as XLA's loop does; what a
loop's body makes lies in the same memory each time, where no variable needs it yet.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from flashsim.memory.traffic import Role
from flashsim.profiling.arrays import Array, Block, row_major_strides
from flashsim.profiling.errors import ProfilingError
from flashsim.profiling.operators import SCOPE, Group, Operators, View
from flashsim.profiling.recording import Line, Recorder

FREE = (
    *("reshape", "squeeze", "expand_dims", "transpose"),
    *("stop_gradient", "name", "optimization_barrier"),  # say something to JAX alone
)
GATHERING = ("slice", "dynamic_slice", "gather", "split")
"""Operators that read as many elements of their first operand as their results have."""
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}
"""Operators that call a jaxpr, and the parameter that it is."""
UNSEEN_OPERATORS = ("pallas_call", "custom_call", "ffi_call", "xla_call_module")
UNSEEN = (
    "a kernel; what moves inside is not seen: it is counted as if it read each operand and wrote "
    "each result once"
)


class Jax:
    """JAX's operators: a `Frontend`."""

    kernels = "JAX's operators"

    def __init__(self) -> None:
        self._recorder = Recorder()

    def is_array(self, value: Any) -> bool:
        """Return whether a value is an array of JAX."""
        jax = sys.modules.get("jax")
        return jax is not None and isinstance(value, jax.Array)

    def make(self, values: Any, dtype: str) -> Any:
        """Return an array of JAX with these values."""
        import jax.numpy as jnp

        return jnp.asarray(values).astype(dtype)

    def add(self, recorder: Recorder, name: str, array: Any, role: Role) -> None:
        """Add an array to the recorder's memory, unless it is there."""
        view = _view_of(recorder, name, array)
        if view is None or recorder.memory.knows(view.block):
            return
        row_axis = view.array.row_axis
        if len(view.array.shape) == 4:
            row_axis = 4 + recorder.row_axis
        known = replace(view.array, row_axis=row_axis, role=role)
        recorder.memory.add(known, view.block)

    @contextmanager
    def listening(self, recorder: Recorder) -> Iterator[None]:
        """Have `run` record its operators in this block."""
        self._recorder = recorder
        yield

    def run(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Any:
        """Trace a function, evaluate its operators, and return its result. Raises ProfilingError
        where it cannot be traced.
        """
        import jax

        leaves, structure = jax.tree.flatten((arguments, dict(keywords)))
        places = [place for place, leaf in enumerate(leaves) if self.is_array(leaf)]

        def of_arrays(*arrays: Any) -> Any:
            substitutes = list(leaves)
            for place, array in zip(places, arrays, strict=True):
                substitutes[place] = array
            positional, named = jax.tree.unflatten(structure, substitutes)
            return function(*positional, **named)

        arrays = [leaves[place] for place in places]
        try:
            closed, shapes = jax.make_jaxpr(of_arrays, return_shape=True)(*arrays)
        except jax.errors.ConcretizationTypeError as error:
            raise ProfilingError(
                f"JAX cannot trace the function: {str(error).splitlines()[0]}"
            ) from None
        evaluator = _Evaluator(self._recorder, str(Path(jax.__file__).parent))
        values = [_Value(array, _view_of(self._recorder, "argument", array)) for array in arrays]
        results = evaluator.call(closed, values)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    def with_gradient(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        by: Sequence[str],
    ) -> tuple[Any, Callable[[Any], Any]]:
        """Call the function, and return its first result and its backward pass: see `Frontend`."""
        import jax

        def with_pullback(*operands: Any) -> Any:
            def output_of(*substitutes: Any) -> Any:
                changes = dict(zip(by, substitutes, strict=True))
                return jax.tree.leaves(function(**{**arguments, **changes}))[0]

            return jax.vjp(output_of, *operands)

        operands = tuple(arguments[name] for name in by)
        output, pullback = self.run(with_pullback, operands, {})

        def gradients_of(gradient: Any) -> Any:
            return self.run(lambda saved, incoming: saved(incoming), (pullback, gradient), {})

        return output, gradients_of

    def arrays_of(self, recorder: Recorder, results: Any) -> Iterator[Array]:
        """Yield the recorder's arrays that are among the results, in their order."""
        import jax

        for leaf in jax.tree.leaves(results):
            view = _view_of(recorder, "result", leaf) if self.is_array(leaf) else None
            if view is not None:
                for array, _ in recorder.memory.parts(view.array, view.block):
                    yield array


@dataclass(frozen=True)
class _Value:
    """What a variable of a jaxpr stands for: an array of JAX, and where it lies; None: nothing of
    it moves.
    """

    value: Any
    view: View | None


@dataclass(frozen=True)
class _Call:
    """A use of a jaxpr.

    path    the operators that call it, the outermost first
    line    where the user's code does; None: the operators inside say it themselves
    group   the group that all of it belongs to; None: of none
    groups  those that begin in it, by their scope
    """

    path: tuple[int, ...]
    line: Line | None
    group: Group | None
    groups: dict[str, Group]


class _Evaluator:
    """Evaluates a jaxpr and records its operators."""

    def __init__(self, recorder: Recorder, package: str) -> None:
        self._recorder = recorder
        self._operators = Operators(recorder)
        folder = str(Path(__file__).parent)
        self._packages = (package + os.sep, folder + os.sep, str(contextlib.__file__))
        self._memories: dict[tuple[tuple[int, ...], int, int], list[View]] = defaultdict(list)
        self._live: list[Collection[_Value]] = []

    def call(self, closed: Any, values: Sequence[_Value]) -> list[Any]:
        """Return the results of a whole jaxpr; each knows where it lies."""
        call = _Call((), None, None, {})
        results = self._evaluate(closed, values, call)
        for result in results:
            if result.view is not None:
                self._recorder.memory.place(result.value, result.view.block.start)
        return [result.value for result in results]

    def _evaluate(self, closed: Any, values: Sequence[_Value], call: _Call) -> list[_Value]:
        jaxpr = getattr(closed, "jaxpr", closed)
        constants = [self._constant(value) for value in getattr(closed, "consts", ())]
        variables: dict[Any, _Value] = {}
        variables.update(zip(jaxpr.constvars, constants, strict=True))
        variables.update(zip(jaxpr.invars, values, strict=True))

        self._live.append(variables.values())

        def value_of(atom: Any) -> _Value:
            if hasattr(atom, "val"):
                return _Value(atom.val, None)
            return variables[atom]

        for operator in jaxpr.eqns:
            operands = [value_of(atom) for atom in operator.invars]
            results = self._operator(operator, operands, call)
            variables.update(zip(operator.outvars, results, strict=True))
        self._live.pop()
        return [value_of(atom) for atom in jaxpr.outvars]

    def _constant(self, value: Any) -> _Value:
        return _Value(value, _view_of(self._recorder, "constant", value))

    def _operator(self, operator: Any, operands: list[_Value], call: _Call) -> list[_Value]:
        """Return an operator's results, and record it."""
        name = operator.primitive.name
        if name in CALLS:
            return self._evaluate(
                operator.params[CALLS[name]], operands, self._inner(operator, call)
            )
        if name == "cond":
            index, *operands = operands
            branches = operator.params["branches"]
            branch = branches[int(np.clip(int(index.value), 0, len(branches) - 1))]
            return self._evaluate(branch, operands, self._inner(operator, call))
        if name == "scan":
            return self._scan(operator, operands, call)
        if name == "while":
            return self._while(operator, operands, call)
        values = [operand.value for operand in operands]
        results = _bind(operator, values)
        if not operator.primitive.multiple_results:
            results = [results]
        if self._is_free(name, operands, results):
            pairs = zip(results, operands, strict=False)
            return [
                _Value(result, operand.view if result.ndim else None) for result, operand in pairs
            ]
        return self._record(operator, name, operands, results, call)

    @staticmethod
    def _is_free(name: str, operands: Sequence[_Value], results: Sequence[Any]) -> bool:
        if name == "broadcast_in_dim":
            operand = operands[0]
            return operand.view is None or results[0].size == operand.value.size
        if name == "convert_element_type":
            return bool(operands[0].value.dtype == results[0].dtype)
        return name in FREE

    def _record(
        self,
        operator: Any,
        name: str,
        operands: Sequence[_Value],
        results: Sequence[Any],
        call: _Call,
    ) -> list[_Value]:
        views = []
        for place, result in enumerate(results):
            views.append(self._place(operator, place, name, result, call))
        reads = [operand.view for operand in operands if operand.view is not None]
        if name in GATHERING and reads:
            elements = sum(result.size for result in results)
            reads[0] = replace(reads[0], elements=elements)
        makes = [view for view in views if view is not None]
        if reads or makes:
            self._tell(operator, name, reads, makes, call)
        return [_Value(result, view) for result, view in zip(results, views, strict=True)]

    def _scan(self, operator: Any, operands: Sequence[_Value], call: _Call) -> list[_Value]:
        import jax.numpy as jnp

        parameters = operator.params
        constants = list(operands[: parameters["num_consts"]])
        first_input = parameters["num_consts"] + parameters["num_carry"]
        carry = list(operands[parameters["num_consts"] : first_input])
        inputs = operands[first_input:]
        stacks = operator.outvars[parameters["num_carry"] :]
        rows_of_stacks: list[dict[int, Any]] = [{} for _ in stacks]
        views = []
        for place, stack in enumerate(stacks):
            view = self._place(operator, place, "scan", stack.aval, call)
            views.append(view)
            if view is not None:
                self._operators.allocate(view, self._group(operator, call))
        turns: Sequence[int] = range(parameters["length"])
        if parameters["reverse"]:
            turns = turns[::-1]
        for turn in turns:
            self._live.append(carry)
            slices = []
            for place, operand in enumerate(inputs):
                slices.append(self._slice(operator, len(stacks) + place, operand, turn, call))
            values = [*constants, *carry, *slices]
            results = self._evaluate(parameters["jaxpr"], values, self._inner(operator, call))
            self._live.pop()
            carry = results[: parameters["num_carry"]]
            rows = results[parameters["num_carry"] :]
            for by_turn, view, row in zip(rows_of_stacks, views, rows, strict=True):
                by_turn[turn] = row.value
                self._stack(operator, view, row, turn, call)
        results = carry
        for stack, by_turn, view in zip(stacks, rows_of_stacks, views, strict=True):
            if by_turn:
                value = jnp.stack([by_turn[turn] for turn in sorted(by_turn)])
            else:
                value = jnp.zeros(stack.aval.shape, stack.aval.dtype)
            results.append(_Value(value, view))
        return results

    def _slice(self, operator: Any, place: int, operand: _Value, turn: int, call: _Call) -> _Value:
        """Return what a scan gives its body of an array, and record its copy."""
        name = "dynamic_slice"
        value = operand.value[turn]
        view = self._place(operator, place, name, value, call)
        if operand.view is None or view is None:
            return _Value(value, None)
        self._tell(operator, name, [_row(operand.view, view.array, turn)], [view], call)
        return _Value(value, view)

    def _stack(
        self, operator: Any, stack: View | None, row: _Value, turn: int, call: _Call
    ) -> None:
        """Record that a scan puts what its body returns into the array of all that it returns."""
        if stack is None:
            return
        part = replace(stack.array, shape=stack.array.shape[1:], strides=stack.array.strides[1:])
        reads = [] if row.view is None else [row.view]
        name = "dynamic_update_slice"
        self._tell(operator, name, reads, [], call, writes=[_row(stack, part, turn)])

    def _while(self, operator: Any, operands: Sequence[_Value], call: _Call) -> list[_Value]:
        parameters = operator.params
        first_of_body = parameters["cond_nconsts"]
        first_carried = first_of_body + parameters["body_nconsts"]
        condition_constants = operands[:first_of_body]
        body_constants = operands[first_of_body:first_carried]
        carry = list(operands[first_carried:])
        while True:
            values = [*condition_constants, *carry]
            inner = self._inner(operator, call)
            (condition,) = self._evaluate(parameters["cond_jaxpr"], values, inner)
            if not bool(condition.value):
                return carry
            values = [*body_constants, *carry]
            inner = self._inner(operator, call)
            carry = self._evaluate(parameters["body_jaxpr"], values, inner)

    def _tell(
        self,
        operator: Any,
        name: str,
        reads: Sequence[View],
        makes: Sequence[View],
        call: _Call,
        writes: Sequence[View] = (),
    ) -> None:
        self._operators.record(
            name,
            call.line or self._line(operator),
            reads,
            writes,
            makes,
            group=self._group(operator, call),
            unseen=UNSEEN if name in UNSEEN_OPERATORS else "",
        )

    def _inner(self, operator: Any, call: _Call) -> _Call:
        """Return the use of a jaxpr by an operator. The lines in a function of JAX itself, which
        may have been traced for another call, are not the user's.
        """
        line = call.line
        if line is None and self._calls_jax(operator):
            line = self._line(operator)
        return _Call((*call.path, id(operator)), line, self._group(operator, call), {})

    def _calls_jax(self, operator: Any) -> bool:
        closed = operator.params.get(CALLS.get(operator.primitive.name, ""))
        information = getattr(getattr(closed, "jaxpr", closed), "debug_info", None)
        return f" at {self._packages[0]}" in str(getattr(information, "func_src_info", ""))

    def _line(self, operator: Any) -> Line:
        """Return the user's line that an operator is of: the innermost outside JAX."""
        traceback = operator.source_info.traceback
        for frame in traceback.frames if traceback is not None else ():
            if not frame.file_name.startswith(self._packages):
                return Line(frame.file_name, frame.line_num)
        return Line("<unknown>", 0)

    @staticmethod
    def _group(operator: Any, call: _Call) -> Group | None:
        """Return the group that an operator is in, by the name of its scope."""
        if call.group is not None:
            return call.group
        scope = re.search(rf"{SCOPE}\d+:([^/)]*)", str(operator.source_info.name_stack))
        if scope is None:
            return None
        return call.groups.setdefault(scope[0], Group(scope[1]))

    def _place(
        self, operator: Any, number: int, name: str, result: Any, call: _Call
    ) -> View | None:
        """Return where an operator's result of that number lies; None: nothing of it moves.

        Where a loop runs the operator again, the result lies in the same memory, unless a variable
        is there yet.
        """
        memories = self._memories[call.path, id(operator), number]
        live = {id(value.view) for values in self._live for value in values}
        for memory in memories:
            if id(memory) not in live:
                return memory
        view = _view_of(self._recorder, name, result, object())
        if view is not None:
            memories.append(view)
        return view


def _bind(operator: Any, values: Sequence[Any]) -> Any:
    """Return an operator's results."""
    parameters = operator.primitive.get_bind_params(operator.params)
    if isinstance(parameters, tuple):  # before JAX 0.10
        functions, parameters = parameters
        values = [*functions, *values]
    return operator.primitive.bind(*values, **parameters)


def _row(whole: View, row: Array, turn: int) -> View:
    """Return the row of an array, on its first axis, that a turn of a loop moves."""
    size = row.size * row.itemsize
    array = replace(row, name=whole.array.name, address=whole.array.address + turn * size)
    return View(array, whole.block, whole.owner)


def _view_of(recorder: Recorder, name: str, value: Any, owner: object = None) -> View | None:
    """Return where an array of JAX lies, or another `owner` of its shape; None for a scalar and an
    array without elements. The addresses are invented.
    """
    shape = tuple(np.shape(value))
    if not shape or 0 in shape:
        return None
    itemsize = int(value.dtype.itemsize)
    nbytes = int(np.prod(shape)) * itemsize
    owner = value if owner is None else owner
    address = recorder.memory.invent(owner, nbytes)
    array = Array(
        name,
        shape,
        row_major_strides(shape),
        itemsize,
        str(value.dtype),
        address,
        max(len(shape) - 2, 0),
    )
    return View(array, Block(address, address + nbytes), owner)

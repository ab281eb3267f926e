"""Operators of PyTorch, JAX and NumPy, counted unfused: each reads its operands from HBM once and
writes its result once, as the program `standard` does.

An operand is read as far as its elements in memory go: a broadcast one once, a slice without the
rest. Operators that the user's code groups (`fused`) are one: what they make moves where something
outside the group uses it, and what they read from outside moves once.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from flashsim.attention.arguments import short_repr
from flashsim.profiling.arrays import PADDING, Array, Block
from flashsim.profiling.recording import Launch, Line, Recorder

SCOPE = "fused in one kernel "
"""How the names of JAX's scopes begin that `fused` makes; then a number for each use, and the name.
"""
_uses = count(1)


@dataclass(frozen=True)
class View:
    """An operand or result of an operator: elements of a block of memory.

    array     which elements; its name is used where the memory is not known yet
    block     the memory
    owner     keeps the memory alive
    elements  how many of its elements the operator moves, where that depends on indices; None: all
    """

    array: Array
    block: Block
    owner: object
    elements: int | None = None


@dataclass(frozen=True, eq=False)
class Group:
    """One use of `fused` by the user's code."""

    name: str


_group: ContextVar[Group | None] = ContextVar("fused", default=None)


@contextmanager
def fused(name: str) -> Iterator[Group]:
    """Count the operators of this block as one kernel of that name: what they make does not move,
    unless something outside the block uses it. In a block within a block, the outer one counts.

    For operators of PyTorch and NumPy, and of JAX by the name of their scope. Kernels that are
    counted themselves, such as Triton's, stay launches of their own.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"name is {short_repr(name)}; expected a name for the group, in words")
    group = _group.get()
    if group is not None:
        yield group
        return
    group = Group(name)
    token = _group.set(group)
    try:
        with _jax_scope(group):
            yield group
    finally:
        _group.reset(token)


def _jax_scope(group: Group) -> AbstractContextManager[Any]:
    """Return a scope of JAX that names a group, which operators that JAX traces then carry."""
    jax = sys.modules.get("jax")
    if jax is None:
        return nullcontext()
    scope: AbstractContextManager[Any] = jax.named_scope(f"{SCOPE}{next(_uses)}:{group.name}")
    return scope


class _Kernel:
    """Operators that are one kernel: those of `fused`, or a single one.

    results  names of the arrays that they make
    on_chip  of other arrays, which elements they have read or written
    stores   of all arrays, which elements they have written
    """

    def __init__(self) -> None:
        self.results: set[str] = set()
        self.on_chip: dict[str, np.ndarray] = {}
        self.stores: dict[str, np.ndarray] = {}


class Operators:
    """Tells a `Recorder` what operators read and write."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._kernels: dict[Group, _Kernel] = {}
        self._numbers: dict[str, int] = defaultdict(int)
        self._allocated: dict[int, tuple[View, Group | None]] = {}

    def allocate(self, view: View, group: Group | None = None) -> None:
        """Note memory that an operator takes and does not fill, as part of a group as in
        `record`.
        """
        if self._recorder.memory.knows(view.block):
            self._reuse(view)
        else:
            self._allocated[view.block.start] = (view, group or _group.get())

    def record(
        self,
        name: str,
        line: Line,
        reads: Sequence[View],
        writes: Sequence[View] = (),
        makes: Sequence[View] = (),
        *,
        group: Group | None = None,
        unseen: str = "",
    ) -> None:
        """Record an operator.

        reads   its operands
        writes  those that it changes
        makes   its results in memory of their own; they are named by the operator and a number
        group   the group that it belongs to; None: that of `flashsim.profiling.fused`
        unseen  as in `Launch`
        """
        group = group or _group.get()
        kernel = self._launch(name, group, unseen)
        for view in reads:
            self._read(kernel, view, line)
        for view in writes:
            self._write(kernel, view, line)
        blocks: set[int] = set()
        for view in makes:
            if view.block.start in blocks:  # the results are parts of one array
                self._write(kernel, view, line)
                continue
            blocks.add(view.block.start)
            if self._recorder.memory.knows(view.block):
                array = self._reuse(view)
            else:
                array = self._add(view, name, with_number=True)
            if group is None:
                _first_time(kernel.stores, array, None)
                self._recorder.move("write", array, None, line)
            else:
                kernel.results.add(array.name)
                self._recorder.unsettled[array.name] = (array, line)

    def see(self, view: View) -> None:
        """Note memory of which an operator takes a view: it may be known by the view alone later,
        and is larger. Memory that is not filled yet waits for a kernel or operator that fills it.
        """
        if view.block.start not in self._allocated:
            self.know(view)

    def know(self, view: View) -> list[tuple[Array, np.ndarray | None]]:
        """Return the arrays that a view lies in, and the positions of its elements in each, as
        `Memory.parts` does. Memory that is not known yet is added.
        """
        memory = self._recorder.memory
        start = view.block.start
        if start in self._allocated:
            allocation, group = self._allocated.pop(start)
            if not memory.knows(view.block):
                array = self._add(allocation, allocation.array.name, with_number=True)
                if group in self._kernels:
                    self._kernels[group].results.add(array.name)
        parts = memory.parts(view.array, view.block)
        padding = any(
            positions is not None and bool((positions == PADDING).any()) for _, positions in parts
        )
        if padding or not parts:
            self._add(view, view.array.name)
            parts = memory.parts(view.array, view.block)
        return parts

    def _launch(self, name: str, group: Group | None, unseen: str) -> _Kernel:
        """Return the kernel of an operator; a new one is a launch."""
        if group in self._kernels:
            return self._kernels[group]
        kernel = _Kernel()
        if group is not None:
            self._kernels[group] = kernel
            name = group.name
        self._recorder.launches.append(Launch(name, (), unseen=unseen))
        return kernel

    def _read(self, kernel: _Kernel, view: View, line: Line) -> None:
        for array, positions in self._parts(view):
            if array.name in kernel.results:
                continue
            self._recorder.settle(array.name)
            if view.elements is None:
                positions = _first_time(kernel.on_chip, array, positions)
            if positions is None or positions.size:
                self._recorder.move("read", array, positions, line)

    def _write(self, kernel: _Kernel, view: View, line: Line) -> None:
        for array, positions in self._parts(view):
            if array.name in kernel.results:
                self._recorder.unsettled.setdefault(array.name, (array, line))
                continue
            self._recorder.settle(array.name)
            if view.elements is None:
                _first_time(kernel.on_chip, array, positions)
                positions = _first_time(kernel.stores, array, positions)
            if positions is None or positions.size:
                self._recorder.move("write", array, positions, line)

    def _parts(self, view: View) -> list[tuple[Array, np.ndarray | None]]:
        """Return what an operator moves of a view. Where indices choose its elements, the first are
        taken, as many as move.
        """
        parts = self.know(view)
        if view.elements is None:
            return parts
        array = parts[0][0]
        return [(array, np.arange(min(view.elements, view.array.elements, array.elements)))]

    def _reuse(self, view: View) -> Array:
        """Return the array of memory that a loop uses again for what it makes."""
        array, _ = self._recorder.memory.parts(view.array, view.block)[0]
        self._recorder.renew(array)
        return array

    def _add(self, view: View, name: str, *, with_number: bool = False) -> Array:
        """Add a view's memory under a name that is free, with a number where it is the result of an
        operator.
        """
        memory = self._recorder.memory
        names = {array.name for array in memory.arrays()}
        unique = name
        while unique in names or with_number:
            self._numbers[name] += 1
            unique = f"{name}_{self._numbers[name]}"
            with_number = unique in names
        array = replace(view.array, name=unique)
        memory.add(array, view.block)
        self._recorder.keep_alive(view.owner)
        return array


def _first_time(
    marks_by_array: dict[str, np.ndarray], array: Array, positions: np.ndarray | None
) -> np.ndarray | None:
    """Return those of an array's elements that have no mark, and mark them; None: all."""
    if array.name not in marks_by_array:
        marks_by_array[array.name] = np.zeros(array.size, bool)
        if positions is None:
            marks_by_array[array.name][:] = True
            return None
    marks = marks_by_array[array.name]
    if positions is None:
        positions = array.indices(array.addresses(array.itemsize))
    new: np.ndarray = positions[~marks[positions]]
    marks[new] = True
    return new

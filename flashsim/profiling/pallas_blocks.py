"""Pallas kernels for TPUs: what JAX's interpreter of them copies between HBM and VMEM.

`pltpu.InterpretParams` runs a kernel with a callback into Python for each step. Five are listened
to: `get` and `store`, which bring blocks, take outputs back and make up DMAs, where they touch HBM;
the allocation and release of buffers, for VMEM; and the one for each point of the grid. The
interpreter brings a block only when its index differs from that of the point before, as a TPU does.

One core runs the whole grid, in row-major order. The interpreter itself shuffles "parallel" axes;
its order would decide which blocks two programs share.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from flashsim.profiling.arrays import Array
from flashsim.profiling.errors import ProfilingError
from flashsim.profiling.pallas_call import IN_HBM, ON_CHIP, Internals, Operand, PallasCall
from flashsim.profiling.pallas_operands import OUTSIDE, view, whole
from flashsim.profiling.recording import Kind, Line, Recorder


class BlockListener:
    """Records the copies of one launch.

    buffers  the operands that the interpreter allocates in HBM, in its order: inputs, then outputs
             that are not in an input's memory; each with its array
    line     of the `pallas_call`: of copies that no line of the kernel asks for
    """

    def __init__(
        self,
        recorder: Recorder,
        internals: Internals,
        call: PallasCall,
        buffers: Sequence[tuple[Operand, Array]],
        line: Line,
    ) -> None:
        self.failure: Exception | None = None
        self._recorder = recorder
        self._internals = internals
        self._call = call
        self._operands = buffers
        self._line = line
        self._positions: dict[int, np.ndarray] = {}
        self._buffers: list[int] = []
        self._scoped: dict[int, int] = {}
        self._program = (0,) * len(call.program_axes)
        recorder.occupy(call.vmem_bytes)

    def interpreter_params(self, params: Any) -> Any:
        """Return the interpreter's parameters: the user's, if there are any, on one core.

        Axes of the grid that are "parallel" run in their order, and not shuffled, unless the user
        sets `random_seed`: what is brought again depends on the order.
        """
        if not isinstance(params, self._internals.tpu.InterpretParams):
            params = self._internals.tpu.InterpretParams()
        return dataclasses.replace(params, num_cores_or_threads=1, grid_point_recorder=self._point)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Have the interpreter's callbacks recorded in this block."""
        tpu = self._internals.tpu
        with ExitStack() as stack:
            for name, listener in (
                ("get", self._get),
                ("store", self._store),
                ("_allocate_buffer", self._allocate),
                ("_deallocate_buffer", self._release),
            ):
                original = getattr(tpu, name)
                replacement = self._callback(listener, original)
                if hasattr(original, "__wrapped__"):
                    # DMAs call what the interpreter's decorator has wrapped.
                    inner = self._callback(listener, original.__wrapped__)
                    replacement.__wrapped__ = inner  # type: ignore[attr-defined]
                stack.enter_context(patch.object(tpu, name, replacement))
            yield

    def _callback(
        self, listener: Callable[..., None], original: Callable[..., Any]
    ) -> Callable[..., Any]:
        def callback(*arguments: Any, **keywords: Any) -> Any:
            try:
                result = original(*arguments, **keywords)
                listener(result, arguments, keywords)
            except Exception as error:
                if self.failure is None:
                    self.failure = error
                raise
            return result

        return callback

    def _point(self, token: Any, point: Any, core: Any) -> Any:
        coordinates = [int(index) for index in np.asarray(point)]
        self._program = tuple(coordinates[axis] for axis in self._call.program_axes)
        return token

    def _get(self, result: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        block = keywords.get("input_name") is not None
        if block or keywords.get("src_device_id") is not None:
            self._copy("read", arguments, keywords)

    def _store(self, result: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        block = keywords.get("output_name") is not None
        if block or keywords.get("src_device_id") is not None:
            self._copy("write", arguments, keywords)

    def _copy(self, kind: Kind, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Record one copy from or to HBM."""
        _, _, _, space, buffer, transforms = arguments[:6]
        if self._space(space) not in IN_HBM:
            return
        place = self._buffers.index(int(buffer))
        operand, array = self._operands[place]
        if place not in self._positions:
            self._positions[place] = whole(operand.shape)
        positions = view(self._positions[place], transforms)
        line = self._line
        source = keywords.get("source_info")
        if source is not None:
            line = self._internals.line(source.traceback) or line
        self._recorder.access(
            kind,
            array.address + positions * array.itemsize,
            positions != OUTSIDE,
            array.itemsize,
            self._program,
            line,
        )

    def _allocate(self, result: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        _, _, _, space, value = arguments[:5]
        buffer = int(result[1])
        scoped = keywords.get("source_info") is not None
        if self._space(space) in IN_HBM:
            if len(self._buffers) == len(self._operands) or scoped:
                raise ProfilingError(
                    f"{self._line}: {self._call.kernel} allocates HBM of its own; expected a "
                    "kernel that takes HBM from its caller"
                )
            self._buffers.append(buffer)
        elif scoped and self._space(space) in ON_CHIP:
            self._scoped[buffer] = np.asarray(value).nbytes
            self._recorder.occupy(self._call.vmem_bytes + sum(self._scoped.values()))

    def _release(self, result: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._scoped.pop(int(arguments[4]), None)

    def _space(self, number: Any) -> str:
        return str(self._internals.tpu.TPU_MEMORY_SPACE_NAMES[int(number)])


def in_order(compiler_params: Any) -> Any:
    """Return a kernel's compiler parameters, with no axis of the grid to be shuffled."""
    if getattr(compiler_params, "dimension_semantics", None) is None:
        return compiler_params
    return dataclasses.replace(compiler_params, dimension_semantics=None)

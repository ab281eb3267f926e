"""Triton's kernels, run by its interpreter: each of their memory accesses is recorded.

The interpreter computes on NumPy arrays of addresses; four functions of its C++ part touch memory
(load, store, atomic_rmw, atomic_cas), and all of the language goes through them: block pointers,
tensor descriptors, masks. `listening` puts a listener in their place while a call is counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from flashsim.memory.traffic import Role
from flashsim.profiling.arrays import Array, Block
from flashsim.profiling.errors import ProfilingError
from flashsim.profiling.recording import Kind, Launch, Recorder, line_outside


class Triton:
    """Triton's kernels on PyTorch's tensors: a `Frontend`."""

    kernels = "Triton kernels"

    def is_array(self, value: Any) -> bool:
        """Return whether a value is a PyTorch tensor."""
        return hasattr(value, "untyped_storage")

    def make(self, values: Any, dtype: str) -> Any:
        """Return a tensor with these values."""
        import torch

        # PyTorch's own memory begins with a sector, as a GPU's does; NumPy's does not.
        tensor = torch.empty(values.shape, dtype=getattr(torch, dtype))
        return tensor.copy_(torch.from_numpy(values))

    def add(self, recorder: Recorder, name: str, array: Any, role: Role) -> None:
        """Add a tensor to the recorder's memory, unless it is there."""
        _add_tensor(recorder, name, array, role)

    def run(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Any:
        """Call a function whose kernels are interpreted, and return its result.

        Raises ProfilingError for what goes wrong in a kernel, with the kernel's own message.
        """
        from triton.runtime.errors import InterpreterError

        try:
            return function(*arguments, **keywords)
        except InterpreterError as error:
            cause: BaseException = error
            while isinstance(cause, InterpreterError) and cause.__cause__ is not None:
                cause = cause.__cause__
            if isinstance(cause, ProfilingError):
                raise cause from None
            place = _line_of(cause)
            raise ProfilingError(
                f"{place}: a kernel failed in Triton's interpreter: {type(cause).__name__}: {cause}"
            ) from error

    def with_gradient(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        by: Sequence[str],
    ) -> tuple[Any, Callable[[Any], Any]]:
        """Call the function, and return its first result and its backward pass: see `Frontend`."""
        import torch

        changed = dict(arguments)
        for name in by:
            changed[name] = arguments[name].detach().requires_grad_()
        result = self.run(function, (), changed)
        output = next(_tensors_in(result), None)
        if output is None or output.grad_fn is None:
            raise ProfilingError(
                "the function's first result has no gradient; expected one that PyTorch "
                "differentiates, such as that of a torch.autograd.Function"
            )
        operands = [changed[name] for name in by]

        def pullback(gradient: Any) -> Any:
            return self.run(torch.autograd.grad, (output, operands, gradient), {})

        return output.detach(), pullback

    def arrays_of(self, recorder: Recorder, results: Any) -> Iterator[Array]:
        """Yield the recorder's arrays that are among the results, in their order."""
        arrays = recorder.memory.arrays()
        for tensor in _tensors_in(results):
            yield from (array for array in arrays if array.address == tensor.data_ptr())

    @contextmanager
    def listening(
        self,
        recorder: Recorder,
        around_launch: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> Iterator[None]:
        """Record what Triton's kernels read and write in this block; all run in the interpreter,
        each launch in a context of `around_launch`.
        """
        import triton
        from triton.runtime import autotuner, interpreter, jit

        memory = _Listener(interpreter, recorder, str(Path(triton.__file__).parent))
        launch = interpreter.GridExecutor.__call__

        def recorded_launch(executor: Any, *arguments: Any, **keywords: Any) -> None:
            memory.begin(executor, arguments, keywords)
            with around_launch():
                launch(executor, *arguments, **keywords)

        def interpreted_kernel(function: Any, *arguments: Any, **keywords: Any) -> None:
            interpreter.InterpretedFunction(function.fn).run(*arguments, **keywords)

        def interpreted_call(function: Any, *arguments: Any, **keywords: Any) -> Any:
            return interpreter.InterpretedFunction(function.fn)(*arguments, **keywords)

        def first_configuration(tuner: Any, *arguments: Any, config: Any, **keywords: Any) -> float:
            return float(tuner.configs.index(config))

        def named_configuration(tuner: Any, *arguments: Any, **keywords: Any) -> Any:
            memory.tuner = tuner
            return tune(tuner, *arguments, **keywords)

        tune = autotuner.Autotuner.run
        with (
            patch.object(interpreter, "_interpreter", memory),
            patch.object(interpreter.GridExecutor, "__call__", recorded_launch),
            # Kernels, and functions that kernels call, that were decorated for a GPU.
            patch.object(jit.JITFunction, "run", interpreted_kernel),
            patch.object(jit.JITFunction, "__call__", interpreted_call),
            # It would time every configuration; an interpreter's times say nothing.
            patch.object(autotuner.Autotuner, "_bench", first_configuration),
            patch.object(autotuner.Autotuner, "run", named_configuration),
        ):
            yield


class _Listener:
    """Stands in for the interpreter's C++ part: it records, then does the same."""

    def __init__(self, interpreter: Any, recorder: Recorder, package: str) -> None:
        self.tuner: Any = None
        self._functions = interpreter._interpreter
        self._grid = interpreter.interpreter_builder
        self._recorder = recorder
        self._packages = (package + os.sep, __file__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._functions, name)

    def load(self, addresses: Any, mask: Any, other: Any, dtype: Any) -> Any:
        self._record("read", addresses, mask, np.dtype(dtype).itemsize)
        return self._functions.load(addresses, mask, other, dtype)

    def store(self, addresses: Any, values: Any, mask: Any) -> Any:
        self._record("write", addresses, mask, values.dtype.itemsize)
        return self._functions.store(addresses, values, mask)

    def atomic_rmw(self, operation: Any, addresses: Any, values: Any, mask: Any, order: Any) -> Any:
        self._record("atomic", addresses, mask, values.dtype.itemsize)
        return self._functions.atomic_rmw(operation, addresses, values, mask, order)

    def atomic_cas(self, addresses: Any, expected: Any, values: Any, order: Any) -> Any:
        active = np.ones(np.shape(addresses), bool)
        self._record("atomic", addresses, active, values.dtype.itemsize)
        return self._functions.atomic_cas(addresses, expected, values, order)

    def _record(self, kind: Kind, addresses: Any, mask: Any, itemsize: int) -> None:
        active = np.broadcast_to(mask, np.shape(addresses)).astype(bool)
        self._recorder.access(
            kind,
            np.asarray(addresses),
            active,
            itemsize,
            tuple(self._grid.grid_idx),
            line_outside(self._packages),
        )

    def begin(self, executor: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        """Record a launch, and the arrays among its arguments."""
        values = dict(zip(executor.arg_names, arguments, strict=False)) | dict(keywords)
        grid = executor.grid(values) if callable(executor.grid) else executor.grid
        config = ""
        if self.tuner is not None:
            config = f"{self.tuner.best_config} of {len(self.tuner.configs)}"
            self.tuner = None
        kernel = executor.fn.__name__
        self._recorder.launches.append(Launch(kernel, tuple(map(int, grid)), config))
        for name, value in values.items():
            for tensor in _tensors_in(value):
                _add_tensor(self._recorder, name, tensor, "extra", kernel)


def _line_of(error: BaseException) -> str:
    """Return the innermost line outside of Triton that an error passed."""
    import triton

    inside = (str(Path(triton.__file__).parent) + os.sep, __file__)
    place = "?"
    traceback = error.__traceback__
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not file.startswith(inside):
            place = f"{Path(file).name}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place


def _tensors_in(value: Any) -> Iterator[Any]:
    """Yield the tensors in a value: itself, those of a tuple or list, a descriptor's base."""
    if isinstance(value, tuple | list):
        for part in value:
            yield from _tensors_in(part)
    elif hasattr(value, "block_shape") and hasattr(value, "base"):
        yield from _tensors_in(value.base)
    elif hasattr(value, "untyped_storage"):
        yield value
    elif hasattr(value, "base") and hasattr(value, "data_ptr"):
        yield from _tensors_in(value.base)


def _add_tensor(recorder: Recorder, name: str, tensor: Any, role: Role, kernel: str = "") -> None:
    """Add a tensor to the memory, unless the same is known. A name that is taken gets the kernel's
    before it.
    """
    address = tensor.data_ptr()
    shape = tuple(tensor.shape)
    same = {
        array.name
        for array in recorder.memory.arrays()
        if array.address == address and array.size == tensor.numel()
    }
    if same or not tensor.numel():
        return
    storage = tensor.untyped_storage()
    row_axis = max(len(shape) - 2, 0)
    if len(shape) == 4:
        row_axis = 4 + recorder.row_axis
    array = Array(
        recorder.memory.free_name(name, kernel),
        shape,
        tuple(tensor.stride()),
        tensor.element_size(),
        str(tensor.dtype).removeprefix("torch."),
        address,
        row_axis,
        role,
    )
    recorder.memory.add(array, Block(storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
    recorder.keep_alive(tensor)

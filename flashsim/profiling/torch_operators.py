"""PyTorch's operators and Triton's kernels, counted in one call.

A dispatch mode sees each operator after PyTorch has taken composite ones apart. An operator whose
results share the memory of its operands and that changes none of them is a view: it moves nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

from flashsim.profiling.arrays import Array, Block
from flashsim.profiling.errors import ProfilingError
from flashsim.profiling.operators import Operators, View
from flashsim.profiling.recording import Recorder, line_outside
from flashsim.profiling.triton_kernels import Triton

FLEX = "torch.nn.attention.flex_attention"
UNCOMPILED = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
"""PyTorch's own switch: FlexAttention called in a dispatch mode fails where it tries to compile."""
OVERWRITING = ("copy_", "fill_", "zero_")
"""Operators in place that do not read what they write; so do those that draw random numbers. Their
schemas do not tell them from the others.
"""
GATHERING = ("index", "index_select", "gather", "take", "embedding")
"""Operators that read as many elements of their first operand as their result has."""
SCATTERING = ("index_put_", "index_copy_", "scatter_")
"""Operators that write as many elements of their first operand as their largest other one has."""
FUSED = ("attention", "transformer")
"""Parts of the names of operators that compute what else takes several."""
UNSEEN = (
    "one operator; what moves inside is not seen: it is counted as if it read each operand and "
    "wrote each result once"
)


class Torch(Triton):
    """PyTorch's operators, and Triton's kernels where Triton is installed: a `Frontend`."""

    kernels = "PyTorch operators or Triton kernels"

    def run(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Any:
        """Call a function, whose kernels are interpreted, and return its result.

        Raises ProfilingError for what goes wrong in a kernel, with the kernel's own message.
        """
        if _triton_is_installed():
            return super().run(function, arguments, keywords)
        return function(*arguments, **keywords)

    def arrays_of(self, recorder: Recorder, results: Any) -> Iterator[Array]:
        """Yield the recorder's arrays that are among the results, in their order."""
        for view in _views("result", results):
            for array, _ in recorder.memory.parts(view.array, view.block):
                yield array

    @contextmanager
    def listening(
        self,
        recorder: Recorder,
        around_launch: Callable[[], AbstractContextManager[Any]] | None = None,
    ) -> Iterator[None]:
        """Record what operators and kernels read and write in this block."""
        import torch

        listener = _Listener(recorder, str(Path(torch.__file__).parent))
        with ExitStack() as contexts:
            if _triton_is_installed():
                kernels = super().listening(recorder, around_launch or listener.paused)
                contexts.enter_context(kernels)
            if hasattr(sys.modules.get(FLEX), UNCOMPILED):
                contexts.enter_context(patch.object(sys.modules[FLEX], UNCOMPILED, True))
            contexts.enter_context(_dispatch_mode(listener))
            yield


def _triton_is_installed() -> bool:
    return find_spec("triton") is not None


def _dispatch_mode(listener: _Listener) -> Any:
    """Return a dispatch mode that gives every operator to a listener."""
    from torch.utils import _python_dispatch

    class Mode(_python_dispatch.TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        supports_higher_order_operators = True

        def __torch_dispatch__(
            self,
            operator: Any,
            types: Any,
            arguments: tuple[Any, ...] = (),
            keywords: Mapping[str, Any] | None = None,
        ) -> Any:
            return listener.call(self, operator, arguments, keywords or {})

    return Mode()


class _Listener:
    """Runs operators and records them, unless a kernel's launch is running."""

    def __init__(self, recorder: Recorder, package: str) -> None:
        self._recorder = recorder
        self._operators = Operators(recorder)
        self._packages = (package + os.sep, str(Path(__file__).parent) + os.sep)
        self._in_launch = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing in this block: the interpreter's own use of PyTorch."""
        self._in_launch = True
        try:
            yield
        finally:
            self._in_launch = False

    def call(
        self, mode: Any, operator: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Any:
        """Run an operator, record it, and return its results."""
        if self._in_launch:
            return operator(*arguments, **keywords)
        if not hasattr(operator, "_schema"):
            return self._higher_order(mode, operator, arguments, keywords)
        launches = len(self._recorder.launches)
        results = operator(*arguments, **keywords)
        # An operator that launches kernels is those kernels.
        if len(self._recorder.launches) == launches:
            self._record(operator, arguments, keywords, results)
        return results

    def _higher_order(
        self, mode: Any, operator: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Any:
        """Run an operator that takes functions, such as FlexAttention, by its implementation in
        other operators, which are recorded.
        """
        import torch

        decomposition = operator.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
        if decomposition is None:
            raise ProfilingError(
                f"PyTorch has no implementation of {operator} in operators, so that it cannot be "
                "counted"
            )
        with mode:
            return decomposition(*arguments, **keywords)

    def _record(
        self, operator: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any], results: Any
    ) -> None:
        schema = operator._schema
        name = schema.name.split("::")[1].strip("_")
        operands: list[View] = []
        targets: list[View] = []
        overwrites = _overwrites(operator)
        for place, parameter in enumerate(schema.arguments):
            value = arguments[place] if place < len(arguments) else keywords.get(parameter.name)
            is_target = parameter.alias_info is not None and parameter.alias_info.is_write
            for tensor in tensors_in(value):
                view = view_of(f"{name}.{parameter.name}", tensor)
                if is_target:
                    targets.append(view)
                if not is_target or not (overwrites or parameter.is_out):
                    operands.append(view)
        memory = {view.block.start for view in (*operands, *targets)}
        new = [view for view in _views(name, results) if view.block.start not in memory]
        if name.startswith(("empty", "new_empty")):
            for view in new:
                self._operators.allocate(view)
            return
        if not new and not targets and list(tensors_in(results)):
            for view in operands:
                self._operators.see(view)
            return
        unseen = UNSEEN if any(part in name for part in FUSED) else ""
        operands, targets = _chosen_by_indices(schema.name, operands, targets, new)
        line = line_outside(self._packages)
        self._operators.record(name, line, operands, targets, new, unseen=unseen)


def _overwrites(operator: Any) -> bool:
    """Return whether an operator in place does not read what it writes."""
    import torch

    name = operator._schema.name.split("::")[1]
    return name in OVERWRITING or torch.Tag.nondeterministic_seeded in operator.tags


def _chosen_by_indices(
    name: str, operands: list[View], targets: list[View], new: Sequence[View]
) -> tuple[list[View], list[View]]:
    """Return the operands that an operator reads and those that it changes, as far as it does:
    indices may choose some of their elements.
    """
    name = name.split("::")[1]
    if name in GATHERING and operands and new:
        elements = new[0].array.elements
        operands = [_part(operands[0], elements), *operands[1:]]
    if name in SCATTERING and targets:
        start = targets[0].block.start
        others = [view for view in operands if view.block.start != start]
        elements = max(view.array.elements for view in others)
        operands = others
        targets = [_part(view, elements) for view in targets]
    return operands, targets


def _part(view: View, elements: int) -> View:
    return View(view.array, view.block, view.owner, elements)


def _views(name: str, value: Any) -> Iterator[View]:
    for tensor in tensors_in(value):
        yield view_of(name, tensor)


def tensors_in(value: Any) -> Iterator[Any]:
    """Yield the tensors with elements in a value: itself, or those of a tuple, list or mapping."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, tuple | list):
        for part in value:
            yield from tensors_in(part)
    elif hasattr(value, "untyped_storage") and value.numel():
        yield value


def view_of(name: str, tensor: Any) -> View:
    """Return the elements of a tensor in its memory. Raises ProfilingError where it has none."""
    import torch

    if tensor.layout != torch.strided or not tensor.data_ptr():
        raise ProfilingError(
            f"{name} is a tensor of layout {tensor.layout} on the device {tensor.device}; expected "
            "a strided one with memory"
        )
    shape = tuple(tensor.shape)
    dtype = str(tensor.dtype).removeprefix("torch.")
    array = Array(
        name,
        shape,
        tuple(tensor.stride()),
        tensor.element_size(),
        dtype,
        tensor.data_ptr(),
        max(len(shape) - 2, 0),
    )
    storage = tensor.untyped_storage()
    start = storage.data_ptr()
    return View(array, Block(start, start + storage.nbytes()), tensor)

"""Pallas, JAX's kernel language: each call of `pallas_call` is counted on a CPU.

JAX's own compiled calls are switched off (`jax.disable_jit`), so that each `pallas_call` reaches
its primitive with the arrays themselves; a listener stands in the place of that primitive's
implementation. A call that was compiled before is counted like any other, and loops, `jax.vmap` and
gradients around a kernel, too.

What moves depends on the device that a kernel is written for:

  TPU  blocks of BlockSpecs, when their index changes, and DMAs: `flashsim.profiling.pallas_blocks`
  GPU  what loads and stores touch, as pointers: `flashsim.profiling.pallas_pointers`

`flashsim.profiling.pallas_call.PallasCall.of` says how the device is found.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from flashsim.memory.traffic import Role
from flashsim.profiling.arrays import Array
from flashsim.profiling.errors import ProfilingError
from flashsim.profiling.pallas_blocks import BlockListener, in_order
from flashsim.profiling.pallas_call import RESHAPES, Internals, PallasCall
from flashsim.profiling.pallas_operands import Operands, arrays_in, whole
from flashsim.profiling.pallas_pointers import Buffer, Programs, values_of
from flashsim.profiling.recording import Launch, Line, Recorder

CALLBACKS = "jax._src.callback"
"""Who logs what fails in a callback of the interpreter."""
INSIDE = (
    "a kernel is compiled as a part of a larger program, as jax.shard_map, jax.pmap and pl.kernel "
    "do; expected a function that calls pl.pallas_call outside of these"
)
ON_CPU = "Only interpret mode is supported on CPU"
"""What JAX says of such a call where its kernel is for a device."""


class Pallas:
    """Pallas kernels on JAX's arrays: a `Frontend`."""

    kernels = "Pallas kernels"

    def __init__(self) -> None:
        self._operands: Operands | None = None

    def is_array(self, value: Any) -> bool:
        """Return whether a value is an array of JAX."""
        jax = sys.modules.get("jax")
        return jax is not None and isinstance(value, jax.Array)

    def make(self, values: Any, dtype: str) -> Any:
        """Return an array of JAX with these values."""
        return Internals.load().jax.numpy.asarray(values, dtype=dtype)

    def add(self, recorder: Recorder, name: str, array: Any, role: Role) -> None:
        """Add an array to the recorder's memory, unless it is there."""
        self._known(recorder).add(name, array, role)

    def run(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Any:
        """Call a function and return its result. Raises ProfilingError for what goes wrong in a
        kernel.
        """
        jax = Internals.load().jax
        try:
            return jax.block_until_ready(function(*arguments, **keywords))
        except ValueError as error:
            if ON_CPU in str(error):
                raise ProfilingError(INSIDE) from error
            raise

    def with_gradient(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        by: Sequence[str],
    ) -> tuple[Any, Callable[[Any], Any]]:
        """Call the function, and return its first result and its backward pass: see `Frontend`."""
        jax = Internals.load().jax

        def output(*operands: Any) -> Any:
            changed = {**arguments, **dict(zip(by, operands, strict=True))}
            return next(arrays_in(function(**changed)), None)

        operands = [arguments[name] for name in by]
        rules = jax.interpreters.ad.primitive_jvps
        with patch.dict(rules, {Internals.load().pallas.pallas_call_p: _not_differentiable}):
            result, pullback = self.run(jax.vjp, (output, *operands), {})

        def gradients(gradient: Any) -> Any:
            return self.run(pullback, (gradient,), {})

        return result, gradients

    def arrays_of(self, recorder: Recorder, results: Any) -> Iterator[Array]:
        """Yield the recorder's arrays that are among the results, in their order."""
        for value in arrays_in(results):
            array = self._known(recorder).find(value)
            if array is not None:
                yield array

    @contextmanager
    def listening(self, recorder: Recorder) -> Iterator[None]:
        """Record what Pallas kernels read and write in this block."""
        internals = Internals.load()
        launcher = _Launcher(internals, recorder, self._known(recorder))
        primitive = internals.pallas.pallas_call_p
        with ExitStack() as stack:
            stack.enter_context(patch.object(primitive, "impl", launcher.call))
            stack.enter_context(
                patch.object(internals.pallas, "_trace_kernel_to_jaxpr", launcher.trace)
            )
            stack.enter_context(
                patch.object(internals.hlo, "pallas_call_hlo_interpret", launcher.compiled)
            )
            stack.enter_context(
                patch.object(internals.tpu, "interpret_pallas_call", launcher.interpret)
            )
            for name in RESHAPES:
                reshape = getattr(internals.jax.lax, name)
                stack.enter_context(patch.object(reshape, "impl", launcher.reshape(reshape.impl)))
            stack.enter_context(internals.jax.disable_jit())
            yield

    def _known(self, recorder: Recorder) -> Operands:
        if self._operands is None:
            self._operands = Operands(recorder)
        return self._operands


def _not_differentiable(*arguments: Any, **params: Any) -> None:
    """Refuse the derivative of a kernel itself: JAX has none in reverse."""
    raise ProfilingError(
        "JAX cannot differentiate a kernel; expected a function whose backward pass is given, "
        "such as a jax.custom_vjp"
    )


class _Launcher:
    """Stands in for JAX's functions that run a `pallas_call`."""

    def __init__(self, internals: Internals, recorder: Recorder, operands: Operands) -> None:
        self._internals = internals
        self._recorder = recorder
        self._operands = operands
        self._interpreting = False
        self._call_impl = internals.pallas.pallas_call_p.impl
        self._trace_kernel = internals.pallas._trace_kernel_to_jaxpr
        self._interpret_call = internals.tpu.interpret_pallas_call

    def call(self, *arguments: Any, **params: Any) -> list[Any]:
        """Run a kernel on arrays, and record what it moves."""
        line = self._internals.line_of_call()
        dynamic = params["grid_mapping"].num_dynamic_grid_bounds
        call = PallasCall.of(arguments[:dynamic], params)
        values = arguments[dynamic:]
        self._recorder.launches.append(Launch(call.kernel, call.grid))
        scalars = len(call.prefetch)
        names = [*call.prefetch, *(operand.name for operand in call.inputs)]
        arrays = []
        for name, value in zip(names, values, strict=True):
            arrays.append(self._operands.add(name, value, "extra", call.kernel))
        inputs = arrays[scalars:]
        outputs = []
        for place, output in enumerate(call.outputs):
            if place in call.aliases:
                outputs.append(inputs[call.aliases[place]])
            else:
                outputs.append(
                    self._operands.add_output(output.name, output.shape, output.dtype, call.kernel)
                )
        if call.device == "tpu":
            self._prefetch(call, arrays[:scalars], line)
            buffers = list(zip(call.inputs, inputs, strict=True))
            for place, array in enumerate(outputs):
                if place not in call.aliases:
                    buffers.append((call.outputs[place], array))
            listener = BlockListener(self._recorder, self._internals, call, buffers, line)
            results = self._run_blocks(listener, call, line, arguments, params)
        else:
            results = self._run_programs(call, line, values, arrays, outputs)
        for value, array in zip(results, outputs, strict=True):
            self._operands.identify(value, array)
        return results

    def _prefetch(self, call: PallasCall, arrays: list[Array], line: Line) -> None:
        """Record that a TPU brings these whole before the kernel begins."""
        program = (0,) * len(call.program_axes)
        for array in arrays:
            addresses = array.address + whole(array.shape) * array.itemsize
            active = np.ones(array.shape, bool)
            self._recorder.access("read", addresses, active, array.itemsize, program, line)

    def _run_blocks(
        self,
        listener: BlockListener,
        call: PallasCall,
        line: Line,
        arguments: tuple[Any, ...],
        params: dict[str, Any],
    ) -> list[Any]:
        interpreter = listener.interpreter_params(params["interpret"])
        compiler = params["compiler_params"]
        if interpreter.random_seed is None:
            compiler = in_order(compiler)
        settings = {**params, "interpret": interpreter, "compiler_params": compiler}
        self._internals.tpu.reset_tpu_interpret_mode_state()
        self._interpreting = True
        log = logging.getLogger(CALLBACKS)
        try:
            # JAX would print the traceback of what is raised below.
            with listener.listening(), patch.object(log, "disabled", True):
                results = self._call_impl(*arguments, **settings)
                return list(self._internals.jax.block_until_ready(results))
        except Exception as error:
            self._internals.tpu.reset_tpu_interpret_mode_state()
            cause = listener.failure or error
            if isinstance(cause, ProfilingError):
                raise cause from None
            raise ProfilingError(
                f"{line}: the kernel {call.kernel} fails in JAX's interpreter for TPUs: "
                f"{type(cause).__name__}: {cause}"
            ) from cause
        finally:
            self._interpreting = False

    def _run_programs(
        self,
        call: PallasCall,
        line: Line,
        values: tuple[Any, ...],
        arrays: list[Array],
        outputs: list[Array],
    ) -> list[Any]:
        buffers = []
        for value, array in zip(values, arrays, strict=True):
            buffers.append(Buffer(array.name, np.array(value).ravel(), array))
        scalars = len(call.prefetch)
        inputs = buffers[scalars:]
        targets = []
        for place, array in enumerate(outputs):
            if place in call.aliases:
                targets.append(inputs[call.aliases[place]])
                continue
            empty = np.zeros(array.size, call.outputs[place].dtype)
            targets.append(Buffer(array.name, empty, array))
        programs = Programs(self._recorder, self._internals, call, line)
        programs.run(buffers[:scalars], [*inputs, *targets])
        make = self._internals.jax.numpy.asarray
        return [make(result) for result in values_of(targets, call.outputs)]

    def trace(self, *arguments: Any, **keywords: Any) -> Any:
        """Trace a kernel as ever: its loops are loops, not unrolled as without compilation. A
        kernel that asks for the TPU that it runs on, as `pltpu.emit_pipeline` does, learns of one.
        """
        try:
            with (
                self._internals.jax.disable_jit(False),
                self._internals.simulated_tpu(),
                self._internals.own_lines(),
            ):
                return self._trace_kernel(*arguments, **keywords)
        except ProfilingError:
            raise
        except Exception as error:
            line = self._internals.line_of_error(error)
            place = "" if line is None else f"{line}: "
            raise ProfilingError(
                f"{place}a kernel fails as JAX traces it: {type(error).__name__}: {error}"
            ) from error

    def interpret(self, *arguments: Any, **keywords: Any) -> Any:
        """Let a kernel be compiled that `call` runs, and no other."""
        if not self._interpreting:
            self.compiled()
        return self._interpret_call(*arguments, **keywords)

    def compiled(self, *arguments: Any, **keywords: Any) -> Any:
        """Refuse a kernel that is compiled into a larger program: nobody could listen to it."""
        raise ProfilingError(INSIDE)

    def reshape(self, implementation: Callable[..., Any]) -> Callable[..., Any]:
        """Return an implementation whose result is known to be the same memory."""

        def reshaped(value: Any, *arguments: Any, **params: Any) -> Any:
            result = implementation(value, *arguments, **params)
            array = self._operands.find(value)
            if array is not None:
                self._operands.identify(result, array)
            return result

        return reshaped

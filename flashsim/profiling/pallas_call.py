"""One `pallas_call` of JAX, read into plain data: all that depends on JAX's internals is here.

JAX has no public way to listen to a kernel's accesses, so that private names are used. Where one is
missing, `ProfilingError` says with which version of JAX kernels are counted.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from flashsim.profiling.errors import ProfilingError
from flashsim.profiling.recording import Line
from flashsim.support.install import extra_with

TESTED = "0.10.2"
"""The version of JAX that the tests run with."""
SIMULATED = "TPU v5 lite"
"""The TPU that a kernel is told it runs on."""
OWN = tuple(
    str(Path(__file__).with_name(f"{name}.py"))
    for name in ("pallas_blocks", "pallas_call", "pallas_kernels", "pallas_pointers", "calls")
)
"""Files that are no user's."""
ON_CHIP = ("default", "vmem")
"""Memory spaces whose blocks a TPU keeps in VMEM."""
IN_HBM = ("any", "hbm")
RESHAPES = ("reshape_p", "squeeze_p")
"""JAX's primitives whose result is the same memory."""
POINTERS = ("masked_load", "masked_swap", "atomic_rmw", "atomic_cas")
"""Primitives of Triton's part of Pallas."""


PARAMETERS = {
    "get": ("token", "device_id", "local_core_id", "memory_space", "buffer_id", "transforms"),
    "store": ("token", "device_id", "local_core_id", "memory_space", "buffer_id", "transforms"),
    "_allocate_buffer": ("token", "device_id", "local_core_id", "memory_space", "val"),
    "_deallocate_buffer": ("token", "device_id", "local_core_id", "memory_space", "buffer_id"),
}
"""The interpreter's callbacks that are listened to, with the parameters that are read by place."""
KEYWORDS = {
    "get": ("source_info", "src_device_id", "input_name"),
    "store": ("source_info", "src_device_id", "output_name"),
    "_allocate_buffer": ("source_info",),
}
"""Their parameters that are read by name."""


@dataclass(frozen=True)
class Internals:
    """JAX and the modules of it that counting listens to.

    pallas       jax._src.pallas.pallas_call
    hlo          the interpreter of interpret=True
    tpu          the interpreter of `pltpu.InterpretParams`
    source_info  jax._src.source_info_util
    """

    jax: Any
    pallas: Any
    hlo: Any
    tpu: Any
    source_info: Any

    @classmethod
    def load(cls) -> Internals:
        """Import them. Raises ProfilingError where JAX is not installed, or has other names."""
        try:
            import jax
        except ImportError:
            raise ProfilingError(
                f"JAX is not installed; Pallas kernels need it: {extra_with('jax')}"
            ) from None
        with only_in_tested_versions():
            import jax.interpreters.ad
            from jax._src import source_info_util
            from jax._src.pallas import hlo_interpreter, pallas_call
            from jax._src.pallas.mosaic.interpret import interpret_pallas_call

            internals = cls(
                jax, pallas_call, hlo_interpreter, interpret_pallas_call, source_info_util
            )
            internals.check()
        return internals

    def check(self) -> None:
        """Raise AttributeError where a name is missing that is listened to, and TypeError where a
        callback has other parameters.
        """
        names = {
            self.pallas: ("pallas_call_p", "_trace_kernel_to_jaxpr"),
            self.hlo: ("pallas_call_hlo_interpret",),
            self.tpu: (
                "interpret_pallas_call",
                "reset_tpu_interpret_mode_state",
                "InterpretParams",
                "TPU_MEMORY_SPACE_NAMES",
            ),
            self.source_info: (
                "_source_info_context",
                "current",
                "is_user_filename",
                "new_source_info",
                "user_frames",
            ),
            self.jax.lax: RESHAPES,
            self.jax.interpreters.ad: ("primitive_jvps",),
            self.jax.sharding: ("AbstractDevice", "get_abstract_mesh", "use_abstract_mesh"),
        }
        for module, expected in names.items():
            for name in expected:
                getattr(module, name)
        for name, expected in PARAMETERS.items():
            callback = getattr(self.tpu, name)
            parameters = list(inspect.signature(callback).parameters)
            places = tuple(parameters[: len(expected)])
            if places != expected or not set(KEYWORDS.get(name, ())) <= set(parameters):
                raise TypeError(f"{callback.__module__}.{name} has the parameters {parameters}")

    def simulated_tpu(self) -> AbstractContextManager[Any]:
        """Return a context in which kernels are traced for a TPU, unless the user has set one."""
        sharding = self.jax.sharding
        if sharding.get_abstract_mesh().abstract_device is not None:
            return nullcontext()
        device = sharding.AbstractDevice(device_kind=SIMULATED, num_cores=1, platform="tpu")
        mesh = sharding.AbstractMesh((), (), abstract_device=device)
        return sharding.use_abstract_mesh(mesh)  # type: ignore[no-any-return]

    def line(self, traceback: Any) -> Line | None:
        """Return the user's innermost line in one of JAX's tracebacks."""
        for frame in self.source_info.user_frames(traceback):
            if frame.file_name not in OWN:
                return Line(frame.file_name, frame.start_line)
        return None

    def own_lines(self) -> AbstractContextManager[Any]:
        """Return a context in which equations get their own lines; in a backward pass, JAX would
        give them the line of the forward pass's call.
        """
        with only_in_tested_versions():
            fresh = self.source_info.new_source_info()
            return patch.object(self.source_info._source_info_context, "context", fresh)

    def line_of_call(self) -> Line:
        """Return the user's line that calls `pallas_call`'s function, now on the stack. Where JAX
        evaluates a call that it has recorded, the line of that.
        """
        frame: FrameType | None = sys._getframe(1)
        inside = False
        while frame is not None:
            file = frame.f_code.co_filename
            if file == self.pallas.__file__ and frame.f_code.co_name == "wrapped":
                inside = True
            elif inside and self.source_info.is_user_filename(file):
                return Line(file, frame.f_lineno)
            frame = frame.f_back
        return self.line(self.source_info.current().traceback) or Line("unknown", 0)

    def line_of_error(self, error: BaseException) -> Line | None:
        """Return the user's innermost line that an error passed."""
        traceback = error.__traceback__
        line = None
        while traceback is not None:
            file = traceback.tb_frame.f_code.co_filename
            if self.source_info.is_user_filename(file) and file not in OWN:
                line = Line(file, traceback.tb_lineno)
            traceback = traceback.tb_next
        return line


@contextmanager
def only_in_tested_versions() -> Iterator[None]:
    """Raise ProfilingError where JAX has not the names that this block uses."""
    try:
        yield
    except (ImportError, AttributeError, KeyError, TypeError) as error:
        import jax

        raise ProfilingError(
            f"Pallas kernels are counted with JAX {TESTED}; JAX {jax.__version__} differs inside: "
            f"{type(error).__name__}: {error}"
        ) from error


@dataclass(frozen=True)
class BlockAxis:
    """One axis of a BlockSpec.

    size      of the block
    step      elements from one block index to the next
    before    elements of padding before the array
    squeezed  whether the kernel's ref lacks the axis
    """

    size: int
    step: int
    before: int
    squeezed: bool


@dataclass(frozen=True)
class Operand:
    """An input or an output of a `pallas_call`.

    name       the kernel's parameter, or operand_2, output_0
    axes       of its block
    index_map  the jaxpr of block indices
    space      the memory that its ref is in: "default", "any", "hbm", "vmem", "smem"
    buffers    how many blocks of it a TPU's pipeline keeps: 2, or 1 of a block that never moves
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    axes: tuple[BlockAxis, ...]
    index_map: Any
    space: str
    buffers: int

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        size = int(self.dtype.itemsize)
        for axis in self.axes:
            size *= axis.size
        return size


@dataclass(frozen=True)
class Scratch:
    """What a kernel allocates for all its programs."""

    shape: tuple[int, ...]
    dtype: Any
    space: str


@dataclass(frozen=True)
class PallasCall:
    """One call of a kernel.

    kernel    its name
    grid      how many programs, by axis
    vmapped   axes of the grid that `jax.vmap` added
    device    "tpu" or "gpu"
    prefetch  arrays that are brought before the kernel begins, for index maps and the kernel
    inputs, outputs
    aliases   the input in whose memory an output is, by output
    jaxpr     the kernel: its parameters are prefetch, inputs, outputs, scratch
    """

    kernel: str
    grid: tuple[int, ...]
    vmapped: tuple[int, ...]
    device: str
    prefetch: tuple[str, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    scratch: tuple[Scratch, ...]
    aliases: Mapping[int, int]
    jaxpr: Any

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Inputs, then outputs."""
        return self.inputs + self.outputs

    @property
    def program_axes(self) -> tuple[int, ...]:
        """The axes of the grid along which a block of an output moves. Along the others, one
        program goes on: it fills the same blocks. Where no output has blocks, all axes.
        """
        axes: set[int] = set()
        for output in self.outputs:
            axes |= _axes_used(output.index_map.jaxpr, len(self.grid))
        return tuple(sorted(axes)) or tuple(range(len(self.grid)))

    @property
    def vmem_bytes(self) -> int:
        """Bytes of VMEM that blocks and scratch occupy, without `pl.run_scoped`'s."""
        total = 0
        for operand in self.operands:
            if operand.space in ON_CHIP:
                total += operand.buffers * operand.block_bytes
        for scratch in self.scratch:
            if scratch.space in ON_CHIP:
                size = int(scratch.dtype.itemsize)
                for length in scratch.shape:
                    size *= length
                total += size
        return total

    @classmethod
    def of(cls, bounds: Sequence[Any], params: Mapping[str, Any]) -> PallasCall:
        """Read the parameters of JAX's primitive; `bounds` are the values of dynamic grid bounds.

        Raises ProfilingError for what cannot be counted.
        """
        with only_in_tested_versions():
            mapping = params["grid_mapping"]
            jaxpr = params["jaxpr"]
            names = _parameter_names(jaxpr)
            scalars = mapping.num_index_operands
            operands = []
            for place, block in enumerate(mapping.block_mappings):
                default = f"operand_{scalars + place}"
                if place >= mapping.num_inputs:
                    default = f"output_{place - mapping.num_inputs}"
                name = names[scalars + place] or default
                operands.append(_operand(name, block, bool(mapping.grid)))
            prefetch = []
            for place in range(scalars):
                prefetch.append(names[place] or f"operand_{place}")
            scratch = []
            for aval in mapping.scratch_avals:
                space = _space(aval)
                dtype = getattr(aval, "dtype", None)
                scratch.append(Scratch(tuple(aval.shape), dtype, space))
            values = iter(bounds)
            grid = []
            for bound in mapping.grid:
                grid.append(bound if isinstance(bound, int) else int(next(values)))
            return cls(
                params["name"] or jaxpr.debug_info.func_name,
                tuple(grid),
                tuple(mapping.vmapped_dims),
                _device(params, operands, scratch),
                tuple(prefetch),
                tuple(operands[: mapping.num_inputs]),
                tuple(operands[mapping.num_inputs :]),
                tuple(scratch),
                {output: entry - scalars for entry, output in params["input_output_aliases"]},
                jaxpr,
            )


def _parameter_names(jaxpr: Any) -> list[str]:
    """Return the names of a kernel's parameters; "" where it has none, as of *args."""
    names = jaxpr.debug_info.arg_names or ()
    padded = list(names) + [""] * (len(jaxpr.invars) - len(names))
    return [name if name and name.isidentifier() else "" for name in padded]


def _operand(name: str, block: Any, has_grid: bool) -> Operand:
    axes = []
    for dimension in block.block_shape:
        kind = type(dimension).__name__
        if kind == "Squeezed":
            axes.append(BlockAxis(1, 1, 0, True))
        elif kind == "Blocked":
            size = int(dimension.block_size)
            axes.append(BlockAxis(size, size, 0, False))
        elif kind == "Element":
            axes.append(BlockAxis(int(dimension.block_size), 1, int(dimension.padding[0]), False))
        else:
            raise ProfilingError(
                f"{name} has a block with an axis of the kind {kind}; expected axes of a length, "
                "None, or pl.Element"
            )
    buffers = 2
    if block.pipeline_mode is not None:
        buffers = int(block.pipeline_mode.buffer_count)
    if block.has_trivial_window() or not has_grid:
        buffers = 1
    return Operand(
        name,
        tuple(block.array_aval.shape),
        block.array_aval.dtype,
        tuple(axes),
        block.index_map_jaxpr,
        _space(block.transformed_block_aval),
        buffers,
    )


def _space(aval: Any) -> str:
    """Return the name of the memory that a ref is in."""
    space = getattr(aval, "memory_space", None)
    if space is None:
        return "default"
    return str(getattr(space, "value", space))


def _device(params: Mapping[str, Any], operands: list[Operand], scratch: list[Scratch]) -> str:
    """Return for which device a kernel is written.

    By its compiler parameters; else by what it uses: a TPU's memory spaces, scratch or prefetched
    scalars, or the loads and stores of Triton's part. A kernel with none of these is taken for a
    TPU's: its blocks are brought as BlockSpecs say.
    """
    compiler = type(params["compiler_params"]).__module__
    interpreter = type(params["interpret"]).__name__
    if "mosaic_gpu" in compiler or interpreter == "InterpretGPUParams":
        raise ProfilingError(
            "a kernel is written for Pallas's Mosaic GPU part; expected a kernel for TPUs, or for "
            "GPUs through Triton"
        )
    if ".triton" in compiler:
        return "gpu"
    if ".mosaic" in compiler or interpreter == "InterpretParams" or scratch:
        return "tpu"
    neutral = ("default", "any", "host", "error")
    if any(operand.space not in neutral for operand in operands):
        return "tpu"
    if params["grid_mapping"].num_index_operands:
        return "tpu"
    if _uses(params["jaxpr"], POINTERS):
        return "gpu"
    return "tpu"


def _uses(jaxpr: Any, primitives: tuple[str, ...]) -> bool:
    for equation in jaxpr.eqns:
        if equation.primitive.name in primitives:
            return True
        if any(_uses(inner, primitives) for inner in inner_jaxprs(equation.params)):
            return True
    return False


def inner_jaxprs(params: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the jaxprs among an equation's parameters, without their constants."""
    for value in params.values():
        parts = value if isinstance(value, tuple | list) else (value,)
        for part in parts:
            inner = getattr(part, "jaxpr", part)
            if hasattr(inner, "eqns"):
                yield inner


def _axes_used(jaxpr: Any, axes: int) -> set[int]:
    """Return on which of its first parameters, the axes of the grid, a jaxpr's results depend."""
    dependencies: dict[Any, set[int]] = {}
    for place, variable in enumerate(jaxpr.invars):
        dependencies[variable] = {place} if place < axes else set()

    def of(atom: Any) -> set[int]:
        return set() if hasattr(atom, "val") else dependencies.get(atom, set())

    for equation in jaxpr.eqns:
        union: set[int] = set()
        for atom in equation.invars:
            union |= of(atom)
        for variable in equation.outvars:
            dependencies[variable] = union
    result: set[int] = set()
    for atom in jaxpr.outvars:
        result |= of(atom)
    return result

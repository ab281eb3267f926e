"""A call of kernels or operators, counted: which arrays are Q, K, V, O, and what it computes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flashsim.attention.arguments import check_choice, check_direction
from flashsim.attention.masks.rules import All
from flashsim.attention.problem import Problem
from flashsim.memory.traffic import Role
from flashsim.profiling.arrays import Array
from flashsim.profiling.checking import Difference, difference
from flashsim.profiling.errors import ProfilingError
from flashsim.profiling.frontend import Frontend
from flashsim.profiling.jax_operators import Jax
from flashsim.profiling.numpy_operators import NumPy
from flashsim.profiling.pallas_kernels import Pallas
from flashsim.profiling.profile import Profile
from flashsim.profiling.recording import Recorder
from flashsim.profiling.torch_operators import Torch

FRONTENDS: Mapping[str, tuple[Callable[[], Frontend], ...]] = {
    "torch": (Torch,),
    "jax": (Pallas, Jax),
    "numpy": (NumPy,),
}
"""By the library whose arrays a function takes: what makes a frontend, one for each call. Where a
library has several, the first that records a launch is taken.
"""
NAMES: Mapping[str, tuple[str, ...]] = {
    "Q": ("q", "query", "queries"),
    "K": ("k", "key", "keys"),
    "V": ("v", "value", "values"),
}
"""By which names, in lower case, a function's parameters are taken for Q, K and V."""
CAUSAL = ("causal", "is_causal")
SCALE = ("scale", "sm_scale", "softmax_scale")
LAYOUTS = {"BHND": -2, "BNHD": -3}
"""The axis of rows in each order of axes: batch B, heads H, rows N, width d."""
HEADS = {"BHND": -3, "BNHD": -2}
"""The axis of heads."""


def count(
    function: Callable[..., Any],
    *arguments: Any,
    layout: str = "BHND",
    direction: str = "forward",
    **keywords: Any,
) -> Profile:
    """Call `function(*arguments, **keywords)` and return what it reads and writes in HBM.

    Kernels of Triton and of Pallas run in an interpreter, and are counted by their instructions.
    Operators of PyTorch, JAX or NumPy are counted as if each read its operands once and wrote its
    result once. The first array among
    the arguments says which library the function is written for; without any it is JAX where the
    function's module imports JAX and not PyTorch, else PyTorch. Beside Pallas's kernels, operators
    are not counted.

    Parameters named q, k, v (or query, key, value) are taken for Q, K and V, and the first returned
    array of O's size for O; then the result is compared with flashsim's programs. It is not where
    the three are not arrays of their own, or where the function is a module with weights, which
    computes more than attention. `layout` is the order of axes of arrays with four, "BHND" or
    "BNHD"; with three they are (heads, N, d), with two (N, d). An argument `causal` or `is_causal`
    says whether the attention is causal, aligned at the bottom right. `direction="backward"` counts
    the pass that computes dQ, dK, dV from a random dO; what the forward pass before it moves is not
    counted.

    Raises `ProfilingError` where a kernel cannot be counted, such as one that reads outside its
    arrays; the message names the line.
    """
    check_choice("layout", layout, tuple(LAYOUTS))
    check_direction(direction)
    values = _arguments_by_name(function, arguments, keywords)
    frontends = FRONTENDS[_library_of_arrays(function, values)]
    for make in frontends:
        frontend = make()
        recorder = Recorder(row_axis=LAYOUTS[layout])
        problem = _add_arguments(frontend, recorder, function, values, layout)
        error = None
        if direction == "backward":
            if problem is None:
                raise ValueError(
                    f"{name_of(function)} has no arguments q, k and v, each an array of its own; "
                    "expected them for its backward pass"
                )
            _run_backward(frontend, recorder, function, values)
        else:
            with frontend.listening(recorder):
                results = frontend.run(function, arguments, keywords)
            outputs = _outputs(frontend, recorder, results)
            if problem is not None:
                _name_output(recorder, outputs, "output")
                error = _difference(frontend, values, results, problem, layout)
        if recorder.launches:
            return Profile.of(name_of(function), recorder, problem, direction, error)
    kinds = " or ".join(make().kernels for make in frontends)
    raise ProfilingError(
        f"{name_of(function)} ran none of {kinds}; expected a function that does, of arguments "
        "that are arrays of the same library"
    )


def _add_arguments(
    frontend: Frontend,
    recorder: Recorder,
    function: Callable[..., Any],
    values: Mapping[str, Any],
    layout: str,
) -> Problem | None:
    """Add the arrays among a call's arguments, and a module's weights. Return the problem of Q, K
    and V; None where these are not three arrays of their own.
    """
    weights = _of_module(function, "named_parameters")
    roles = {} if weights else _roles(values)
    arrays = {**values, **weights, **_of_module(function, "named_buffers")}
    for name, value in arrays.items():
        role = roles.get(name)
        if frontend.is_array(value):
            if role is None:
                frontend.add(recorder, name, value, "extra")
            else:
                frontend.add(recorder, role, value, "input")
        elif role is not None:
            raise ValueError(
                f"{name} is of the type {type(value).__name__}; expected an array as "
                f"{frontend.kernels} take them"
            )
    inputs = [array for array in recorder.memory.arrays() if array.role == "input"]
    if len(inputs) < len(NAMES):
        return None
    return _problem(values, roles, layout)


def _difference(
    frontend: Frontend, values: Mapping[str, Any], results: Any, problem: Problem, layout: str
) -> Difference | None:
    """Return how far a call's first array is from attention; None where it has arguments that may
    change what it computes.
    """
    roles = _roles(values)
    operands = {role: values[name] for name, role in roles.items()}
    scale = None
    for name, value in values.items():
        if name in SCALE and value is not None:
            scale = float(value)
        elif name not in roles and not _is_neutral(value):
            return None
    for result in _values_in(results):
        if frontend.is_array(result):
            return difference(operands, result, problem, layout, scale)
    return None


def _is_neutral(value: Any) -> bool:
    """Return whether an argument changes how attention is computed at most, and not what it is:
    such as a block size, or a dropout probability of 0.
    """
    if isinstance(value, float):
        return value == 0.0
    return isinstance(value, bool | int | str | type(None))


def _outputs(frontend: Frontend, recorder: Recorder, results: Any) -> list[Array]:
    """Return the recorder's arrays that are among a call's results. These are written, whatever
    made them.
    """
    outputs = list(frontend.arrays_of(recorder, results))
    for array in outputs:
        recorder.settle(array.name)
    return outputs


def _run_backward(
    frontend: Frontend,
    recorder: Recorder,
    function: Callable[..., Any],
    values: Mapping[str, Any],
) -> None:
    """Run the forward pass, forget what it moved, run the backward pass, and name its arrays."""
    names = {role: name for name, role in _roles(values).items()}
    by = [names[role] for role in NAMES]
    with frontend.listening(recorder):
        output, pullback = frontend.with_gradient(function, values, by)
    _name_output(recorder, _outputs(frontend, recorder, output), "input")
    recorder.forget()
    normals = np.random.default_rng(0).standard_normal(tuple(output.shape), np.float32)
    gradient = frontend.make(normals, str(output.dtype).removeprefix("torch."))
    frontend.add(recorder, "dO", gradient, "input")
    with frontend.listening(recorder):
        gradients = pullback(gradient)
    for role, result in zip(NAMES, gradients, strict=True):
        for array in _outputs(frontend, recorder, result)[:1]:
            recorder.rename(array.name, f"d{role}", "output")


def count_attention(
    function: Callable[..., Any],
    problem: Problem,
    *,
    layout: str = "BHND",
    direction: str = "forward",
    library: str | None = None,
    **keywords: Any,
) -> Profile:
    """Call `function(Q, K, V, **keywords)` on normally distributed arrays of a problem's lengths,
    heads and type, and return what its kernels read and write, as `count` does.

    library  whose arrays they are: "torch", "jax" or "numpy"; None: JAX's where the function's
             module imports JAX and not PyTorch, else PyTorch's

    A parameter `causal` or `is_causal` of the function is set as the problem's mask is, and a
    parameter `scale`, `sm_scale` or `softmax_scale` that has no default to the problem's scale.
    """
    check_choice("layout", layout, tuple(LAYOUTS))
    parameters = inspect.signature(function).parameters
    for name in CAUSAL:
        if name in parameters:
            keywords.setdefault(name, not isinstance(problem.mask, All))
    for name in SCALE:
        if name in parameters and parameters[name].default is inspect.Parameter.empty:
            keywords.setdefault(name, problem.scale)
    if library is None:
        library = _library_of(function)
    check_choice("library", library, tuple(FRONTENDS))
    Q, K, V = _operands(problem, layout, FRONTENDS[library][0]())
    return count(function, Q, K, V, layout=layout, direction=direction, **keywords)


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's name, for people."""
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__name__", type(inner).__name__))


def _arguments_by_name(
    function: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by the names of parameters, defaults included."""
    try:
        # A module of PyTorch passes everything on.
        signature = inspect.signature(getattr(function, "forward", function))
    except (TypeError, ValueError):  # of some functions in C
        names = _documented_names(function)
        for place in range(len(names), len(arguments)):
            names.append(f"argument_{place}")
        return {**dict(zip(names, arguments, strict=False)), **keywords}
    try:
        bound = signature.bind(*arguments, **keywords)
    except TypeError as error:
        raise ValueError(f"{name_of(function)}{signature} cannot be called so: {error}") from None
    bound.apply_defaults()
    return dict(bound.arguments)


def _library_of(function: Callable[..., Any]) -> str:
    """Return "jax" where a function's module imports JAX and not PyTorch; else "torch"."""
    inner = inspect.unwrap(getattr(function, "func", function))
    modules = set()
    for value in getattr(inner, "__globals__", {}).values():
        name = getattr(value, "__name__", "") if inspect.ismodule(value) else ""
        modules.add(name.partition(".")[0])
    if "jax" in modules and not modules & {"torch", "triton"}:
        return "jax"
    return "torch"


def _documented_names(function: Callable[..., Any]) -> list[str]:
    """Return the parameters that the first line of a function's docstring lists, as PyTorch's
    functions in C do: "name(query, key, value, mask=None) -> Tensor".
    """
    text = (function.__doc__ or "").strip()
    head = re.match(rf"{re.escape(name_of(function))}\(([^()]*)\)", text)
    if head is None:
        return []
    parameters = head[1].replace("*,", "").split(",")
    return [parameter.split("=")[0].strip() for parameter in parameters]


def _of_module(function: Callable[..., Any], method: str) -> dict[str, Any]:
    """Return the arrays by name that a method of PyTorch's modules yields, where the function is a
    module, or a method of one; empty otherwise.
    """
    module = getattr(function, "__self__", function)
    if not hasattr(module, method):
        return {}
    return dict(getattr(module, method)())


def _library_of_arrays(function: Callable[..., Any], values: Mapping[str, Any]) -> str:
    """Return the library of the first array among a call's arguments; where there is none, that of
    the function.
    """
    for value in _values_in(dict(values)):
        for library, frontends in FRONTENDS.items():
            if frontends[0]().is_array(value):
                return library
    return _library_of(function)


def _values_in(value: Any) -> Iterator[Any]:
    """Yield a value, or those in a tuple, list or dictionary."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        for part in value:
            yield from _values_in(part)
    else:
        yield value


def _roles(values: Mapping[str, Any]) -> dict[str, str]:
    """Return "Q", "K", "V" by the names of the arguments that are these."""
    roles = {}
    for role, names in NAMES.items():
        for name, value in values.items():
            if name.lower() in names and hasattr(value, "shape"):
                roles[name] = role
    return roles


def _problem(values: Mapping[str, Any], roles: Mapping[str, str], layout: str) -> Problem:
    """Return the problem of a call's arguments. Raises ValueError where they are no attention's."""
    shapes = {}
    for name, role in roles.items():
        shape = tuple(values[name].shape)
        if not 2 <= len(shape) <= 4:
            raise ValueError(f"{name} has the shape {shape}; expected 2 to 4 axes")
        if len(shape) == 4:
            shape = (
                shape[0] * shape[HEADS[layout]],
                shape[LAYOUTS[layout]],
                shape[3],
            )
        elif len(shape) == 2:
            shape = (1, *shape)
        shapes[role] = shape
    heads, N_q, d = shapes["Q"]
    kv_heads, N_k, _ = shapes["K"]
    d_v = shapes["V"][2]
    names = {role: name for name, role in roles.items()}
    causal = any(bool(values.get(name)) for name in CAUSAL)
    return Problem.of(
        N_q=N_q,
        N_k=N_k,
        d=d,
        d_v=d_v,
        heads=heads,
        kv_heads=kv_heads,
        dtype=str(values[names["Q"]].dtype).removeprefix("torch."),
        causal=causal,
    )


def _operands(problem: Problem, layout: str, frontend: Frontend) -> Iterator[Any]:
    """Yield Q, K and V, normally distributed, of one batch entry."""
    random = np.random.default_rng(problem.seed)
    shape = problem.shape
    kv_heads = problem.heads // problem.group
    for heads, rows, width in (
        (problem.heads, shape.N_q, shape.d),
        (kv_heads, shape.N_k, shape.d),
        (kv_heads, shape.N_k, shape.d_v),
    ):
        axes = (1, heads, rows, width)
        if layout == "BNHD":
            axes = (1, rows, heads, width)
        yield frontend.make(random.standard_normal(axes, np.float32), problem.dtype.name)


def _name_output(recorder: Recorder, outputs: Sequence[Array], role: Role) -> None:
    """Give the name O to the first returned array that was written and has O's size; where there is
    none, to the first array of that size that was written and not read.
    """
    arrays = {array.name: array for array in recorder.memory.arrays()}
    stores = {line.array for line in recorder.lines.values() if line.kind != "read"}
    loads = {line.array for line in recorder.lines.values() if line.kind == "read"}
    size = arrays["Q"].size // arrays["Q"].shape[-1] * arrays["V"].shape[-1]
    candidates = [array.name for array in outputs if array.name in stores]
    candidates += sorted(stores - loads)
    for name in candidates:
        if arrays[name].size == size:
            recorder.rename(name, "O", role)
            return

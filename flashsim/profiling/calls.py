"""A call of a kernel, counted: which arrays are Q, K, V and O, and what the kernel computes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np

from flashsim.attention.arguments import check_choice, check_direction
from flashsim.attention.masks.rules import All
from flashsim.attention.problem import Problem
from flashsim.memory.traffic import Role
from flashsim.profiling.arrays import Array
from flashsim.profiling.errors import ProfilingError
from flashsim.profiling.frontend import Frontend
from flashsim.profiling.pallas_kernels import Pallas
from flashsim.profiling.profile import Profile
from flashsim.profiling.recording import Recorder
from flashsim.profiling.triton_kernels import Triton

FRONTENDS: Mapping[str, Callable[[], Frontend]] = {"torch": Triton, "jax": Pallas}
"""By the library whose arrays a kernel takes: what makes a frontend, one for each call."""
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
    """Call `function(*arguments, **keywords)`, whose kernels run in an interpreter, and return
    what they read and write.

    Kernels of Triton take PyTorch's tensors; kernels of Pallas take JAX's arrays. Parameters named
    q, k, v (or query, key, value) are taken for Q, K and V, and the first returned array of O's
    shape for O; then the result is compared with flashsim's programs. `layout` is the order of axes
    of arrays with four, "BHND" or "BNHD"; with three they are (heads, N, d), with two (N, d). An
    argument `causal` or `is_causal` says whether the kernel is causal, aligned at the bottom right.
    `direction="backward"` counts the pass that computes dQ, dK, dV from a random dO; what the
    forward pass before it moves is not counted.

    Raises `ProfilingError` where a kernel cannot be counted, such as one that reads outside its
    arrays; the message names the line.
    """
    check_choice("layout", layout, tuple(LAYOUTS))
    check_direction(direction)
    recorder = Recorder(row_axis=LAYOUTS[layout])
    values = _arguments_by_name(function, arguments, keywords)
    roles = _roles(values)
    _check_distinct(values, roles)
    frontend = _frontend_of(function, values)
    for name, value in values.items():
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
    problem = None
    if len(roles) == len(NAMES):
        problem = _problem(values, roles, layout)
    elif direction == "backward":
        raise ValueError(
            f"{name_of(function)} has no arguments q, k and v; expected them for its backward pass"
        )
    with frontend.listening(recorder):
        if direction == "forward":
            results = frontend.run(function, arguments, keywords)
        else:
            _run_backward(frontend, recorder, function, values, roles)
    if not recorder.launches:
        raise ProfilingError(
            f"{name_of(function)} launched none of {frontend.kernels}; expected a function that "
            "does"
        )
    if problem is not None and direction == "forward":
        _name_output(recorder, frontend.arrays_of(recorder, results), "output")
    return Profile.of(name_of(function), recorder, problem, direction)


def _run_backward(
    frontend: Frontend,
    recorder: Recorder,
    function: Callable[..., Any],
    values: Mapping[str, Any],
    roles: Mapping[str, str],
) -> None:
    """Run the forward pass, forget what it moved, run the backward pass, and name its arrays."""
    names = {role: name for name, role in roles.items()}
    by = [names[role] for role in NAMES]
    output, pullback = frontend.with_gradient(function, values, by)
    _name_output(recorder, frontend.arrays_of(recorder, output), "input")
    recorder.forget()
    normals = np.random.default_rng(0).standard_normal(tuple(output.shape), np.float32)
    gradient = frontend.make(normals, str(output.dtype).removeprefix("torch."))
    frontend.add(recorder, "dO", gradient, "input")
    gradients = pullback(gradient)
    for role, result in zip(NAMES, gradients, strict=True):
        for array in frontend.arrays_of(recorder, result):
            recorder.rename(array.name, f"d{role}", "output")
            break


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

    library  whose arrays they are: "torch" or "jax"; None: JAX's where the function's module
             imports JAX and not PyTorch, else PyTorch's

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
    Q, K, V = _operands(problem, layout, FRONTENDS[library]())
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
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some functions in C
        return {**{f"argument_{place}": value for place, value in enumerate(arguments)}, **keywords}
    try:
        bound = signature.bind(*arguments, **keywords)
    except TypeError as error:
        raise ValueError(f"{name_of(function)}{signature} cannot be called so: {error}") from None
    bound.apply_defaults()
    return dict(bound.arguments)


def _frontend_of(function: Callable[..., Any], values: Mapping[str, Any]) -> Frontend:
    """Return a frontend whose arrays are among a call's arguments; where there are none, that of
    the function's library.
    """
    for make in FRONTENDS.values():
        frontend = make()
        if any(frontend.is_array(value) for value in values.values()):
            return frontend
    return FRONTENDS[_library_of(function)]()


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


def _roles(values: Mapping[str, Any]) -> dict[str, str]:
    """Return "Q", "K", "V" by the names of the arguments that are these."""
    roles = {}
    for role, names in NAMES.items():
        for name, value in values.items():
            if name.lower() in names and hasattr(value, "shape"):
                roles[name] = role
    return roles


def _check_distinct(values: Mapping[str, Any], roles: Mapping[str, str]) -> None:
    """Raise ValueError where one array is two of Q, K, V: its accesses could be those of either."""
    for name, other in combinations(roles, 2):
        if values[name] is values[other]:
            raise ValueError(f"{other} is the same array as {name}; expected a copy of its own")


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


def _name_output(recorder: Recorder, results: Iterator[Array], role: Role) -> None:
    """Give the first returned array that the kernels wrote the name O; where none was returned, the
    first array of O's size that they wrote and did not read.
    """
    arrays = {array.name: array for array in recorder.memory.arrays()}
    stores = {line.array for line in recorder.lines.values() if line.kind != "read"}
    loads = {line.array for line in recorder.lines.values() if line.kind == "read"}
    size = arrays["Q"].size // arrays["Q"].shape[-1] * arrays["V"].shape[-1]
    candidates = [array.name for array in results if array.name in stores]
    candidates += [name for name in sorted(stores - loads) if arrays[name].size == size]
    if candidates:
        recorder.rename(candidates[0], "O", role)

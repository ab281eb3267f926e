"""`trace`: what is run, recorded and told, to step through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from typing import Any

import numpy as np

from flashsim.algorithms.own import forward_of, resolve
from flashsim.algorithms.program import MatrixProgram
from flashsim.algorithms.record import Algorithm
from flashsim.attention.arguments import check_array, check_observers
from flashsim.attention.inputs import (
    HEADS_FIRST,
    check_inputs,
    check_layout,
    check_shape_of_dO,
    errors_with_layout,
    heads_first,
    to_layout,
)
from flashsim.memory.sram import Observer
from flashsim.simulate.api import backward, forward
from flashsim.simulate.matrices import run_program
from flashsim.tracing.about import traced
from flashsim.tracing.recording import Recorder
from flashsim.tracing.traces import Trace


def trace(
    what: str | Algorithm | MatrixProgram | Callable[..., Any],
    *given: Any,
    dO: Any = None,
    head: Any = None,
    **options: Any,
) -> Trace:
    """Run `flashsim.forward(what, Q, K, V, **options)` on one head, and return its trace; with dO,
    its backward pass's.

    given  Q, K, V
    dO     the output's gradient, (..., H_q, N_q, d_v): the trace is of `flashsim.backward(what,
           run, dO)`, where `run` is the forward pass, which is not recorded. `what` is then a
           backward pass's name, "q_outer_two_pass" included, and blocks and M are the forward
           pass's
    head   an index into Q's leading axes, (0, 3) or 3; None where there is but one head. K and V
           are those of its KV head, and dK, dV are this head's part. Options must be one head's: a
           mask without leading axes

    `what` may also be a `MatrixProgram`, with its operands in the record's order in place of Q, K,
    V, and the options of `flashsim.simulate.matrices.run_program`; or a function that returns a run
    and takes `observers`, such as `flashsim.mlp.run` or `flashsim.forward`: it is called with
    `given` and the options, and the trace is of its first launch.

    Raises ValueError as what it runs does, and for several heads without `head`.
    """
    observers = check_observers(options.pop("observers", ()))
    if callable(what) and "observers" in signature(what).parameters:
        return _recorded(partial(what, *given, **options), observers)
    if isinstance(what, MatrixProgram):
        if len(given) != len(what.operands):
            raise ValueError(
                f"{what.name!r} takes {', '.join(what.operands)}; expected {len(what.operands)} "
                f"arrays in this order, and got {len(given)}"
            )
        operands = dict(zip(what.operands, given, strict=True))
        return _recorded(partial(run_program, what, operands, **options), observers)
    if len(given) != 3:
        raise ValueError(f"expected Q, K, V, and got {len(given)} arrays")
    layout = check_layout(options.pop("layout", HEADS_FIRST))
    Q, K, V = given
    Q, K, V = heads_first(layout, Q, K, V)
    with errors_with_layout(layout):
        inputs = check_inputs(Q, K, V)
    Q = inputs.Q
    K = inputs.K
    V = inputs.V
    dO = None if dO is None else to_layout("dO", check_array("dO", dO), layout)
    if dO is not None:
        check_shape_of_dO(dO, (*Q.shape[:-1], V.shape[-1]), layout)
    if head is not None:
        position = _index(head, inputs.leading)
        Q = Q[position]
        K = K[inputs.kv(position)]
        V = V[inputs.kv(position)]
        dO = None if dO is None else dO[position]
    elif any(axis > 1 for axis in inputs.leading):
        raise ValueError(f"Q has leading axes {inputs.leading}; a trace is of one head: give head=")
    if dO is None:
        return _recorded(partial(forward, what, Q, K, V, **options), observers)
    algorithm = resolve(what, "backward")
    return _recorded(
        partial(backward, algorithm, forward(forward_of(algorithm), Q, K, V, **options), dO),
        observers,
    )


def _recorded(call: Callable[..., Any], observers: Sequence[Observer]) -> Trace:
    recorder = Recorder()
    return traced(recorder, call(observers=[*observers, recorder]))


def _index(head: Any, leading: tuple[int, ...]) -> tuple[int, ...]:
    index = tuple(head) if isinstance(head, tuple | list) else (head,)
    whole = all(isinstance(i, int | np.integer) and not isinstance(i, bool) for i in index)
    if (
        not whole
        or len(index) != len(leading)
        or any(not 0 <= i < n for i, n in zip(index, leading, strict=True))
    ):
        raise ValueError(
            f"head is {head!r}; expected an index into Q's leading axes {leading}, counted from 0"
        )
    return index

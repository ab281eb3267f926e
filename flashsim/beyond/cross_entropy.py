"""Cut cross-entropy: −log softmax(x · Eᵀ) at each row's label, and its gradients, with no logit in HBM.

run = flashsim.cross_entropy.loss(X, E, y)                     # run.loss, run.L (log-sum-exp), run.hbm, run.sram
flashsim.cross_entropy.gradient(run, g).dX                     # and .gradient(run, g, to="E").dE
flashsim.cross_entropy.count(N=8192, v=256_000, d=2304)        # cost, by shapes alone; .exact(…) by formula
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flashsim.beyond.parts.labels import NONE
from flashsim.beyond.programs import programs
from flashsim.machine.memory import Observer
from flashsim.problem.arguments import check_array, check_choice, check_count, shown
from flashsim.problem.inputs import Array
from flashsim.problem.options import check_how
from flashsim.simulate.matrices import count_program, run_program
from flashsim.simulate.results import Result
from flashsim.support.sizes import Size
from flashsim.theory.program import ExactProgram, exact_program

PASSES = {"loss": "cut_cross_entropy", "X": "cut_cross_entropy_dx", "E": "cut_cross_entropy_de"}
HOW = ("M", "blocks", "sizing", "enforce", "dtype")
"""What `count` and `exact` take besides lengths."""


def loss(
    X: Any, E: Any, y: Any, *,
    ignore: int | None = None, M: Size | None = None, blocks: tuple[int, int] | None = None, sizing: str = "fit",
    enforce: bool | None = None, observers: Sequence[Observer] = (),
) -> Result:
    """Return each row's loss (N,) of X (N, d) under the classifier E (v, d) and labels y (N,), as `run.loss`; `run.L` (N,).

    y        whole numbers from 0 to v − 1
    ignore   the label, such as −100, of rows that are left out: their loss and gradients are 0
    M, blocks, sizing, enforce, observers  as in `flashsim.forward`, but that sizing is "fit" by default

    Raises ValueError for arguments that make no sense, such as labels out of range; SramOverflow.
    """
    shape = check_array("E", E).shape
    if len(shape) != 2:
        raise ValueError(f"E has shape {shape}; expected (v, d)")
    labels = _labels(y, shape[0], ignore)
    return run_program(
        programs()[PASSES["loss"]], {"X": X, "E": E, "y": labels}, M=M, blocks=blocks, sizing=sizing, enforce=enforce,
        observers=observers,
    )


def gradient(
    run: Result, g: Any, *,
    to: str = "X", M: Size | None = None, blocks: tuple[int, int] | None = None, sizing: str = "fit",
    enforce: bool | None = None, observers: Sequence[Observer] = (),
) -> Result:
    """Return the gradient of Σ g_i · loss_i to X (N, d) as `.dX`, or to E (v, d) as `.dE`, of what `loss` returned.

    g   (N,), of X's type: 1/N for the mean
    to  "X" or "E": each is a pass of its own
    M   by default the loss's

    Raises ValueError as `loss` does.
    """
    if not isinstance(run, Result) or run.algorithm != PASSES["loss"]:
        raise ValueError(f"run is {shown(run)}; expected what flashsim.cross_entropy.loss returned")
    program = programs()[PASSES[check_choice("to", to, ("X", "E"))]]
    given = run.plan.given
    return run_program(
        program, {**{name: given[name] for name in ("X", "E", "y")}, "L": run.L, "g": g}, M=run.plan.M if M is None else M,
        blocks=blocks, sizing=sizing, enforce=enforce, observers=observers,
    )


def count(*, N: int, v: int, d: int, of: str = "loss", **how: Any) -> Result:
    """Count what the loss moves, or a gradient `of` "X" or "E", on shapes alone.

    The rest is `flashsim.simulate.matrices.count_program`'s: M, blocks, sizing, enforce, dtype, observers.
    """
    check_how(count, how, (*HOW, "observers"))
    return count_program(programs()[PASSES[check_choice("of", of, PASSES)]], {"N": N, "d": d, "v": v}, **how)


def exact(*, N: int, v: int, d: int, of: str = "loss", **how: Any) -> ExactProgram:
    """Return the same by formula, with which `count` agrees by `==`."""
    check_how(exact, how, HOW)
    return exact_program(PASSES[check_choice("of", of, PASSES)], {"N": N, "d": d, "v": v}, **how)


def _labels(y: Any, v: int, ignore: Any) -> Array:
    array = check_array("y", y)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"y has shape {array.shape}, dtype {array.dtype}; expected whole numbers, (N,)")
    out = np.zeros(array.shape, bool)
    if ignore is not None:
        if isinstance(ignore, bool) or not isinstance(ignore, int | np.integer):
            raise ValueError(f"ignore is {shown(ignore)}; expected a whole number")
        out = array == ignore
    wrong = array[~out & ((array < 0) | (array >= check_count("v", v)))]
    if len(wrong):
        raise ValueError(f"y holds {wrong[0]}; expected labels from 0 to v − 1 = {v - 1}" + (
            f", or ignore = {ignore}" if ignore is not None else "; rows to be left out are named by ignore="
        ))
    return np.where(out, NONE, array).astype(np.uint32)

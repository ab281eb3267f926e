"""What the paper's Figure 3 compares attention with: approximations, linear in N, each on the same memory.

    run = flashsim.approximate.linformer(Q, K, V, E, F)             # run.O, run.L, run.hbm, run.sram
    flashsim.approximate.count("linformer", N=4096, d=64, k=256)    # cost, by shapes alone; .exact(…) by formula

How well they approximate is not modelled: each computes its own formula.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flashsim.algorithms.beyond import programs
from flashsim.checking import check_array, check_choice, check_scale
from flashsim.memory import Observer
from flashsim.run.programs import ProgramRun, ProgramTally, count_program, run_program
from flashsim.sizes import Size
from flashsim.theory.program import ExactProgram, exact_program

METHODS: Mapping[str, str] = {"linformer": "tau"}
"""Each method's option, which moves nothing."""


def linformer(
    Q: Any,
    K: Any,
    V: Any,
    E: Any,
    F: Any,
    *,
    scale: float | None = None,
    M: Size | None = None,
    blocks: tuple[int, int, int, int] | None = None,
    sizing: str = "fit",
    enforce: bool | None = None,
    observers: Sequence[Observer] = (),
    trace: bool = False,
) -> ProgramRun:
    """Return softmax(τ Q (E K)ᵀ) F V of Q, K (N, d), V (N, e), E, F (k, N) as `run.O`, with log-sum-exps `run.L` (N,).

    scale    τ; None: 1/√d
    blocks   (B_r, B_c, B_e, B_k): rows of Q; keys to a mixture; mixtures that are made at once, and that are attended to
    M, sizing, enforce, observers, trace  as in `flashsim.forward`, but that sizing is "fit" by default

    Raises ValueError for arguments that make no sense, and for inputs so large that O overflows; SramOverflow.
    """
    return run_program(
        programs()["linformer"], {"Q": Q, "K": K, "V": V, "E": E, "F": F}, M=M, blocks=blocks, sizing=sizing, enforce=enforce,
        options={"tau": _scale(Q, scale)}, observers=observers, trace=trace,
    )  # fmt: skip


def count(
    method: str,
    *,
    N: int,
    d: int,
    k: int,
    e: int | None = None,
    M: Size | None = None,
    blocks: tuple[int, int, int, int] | None = None,
    sizing: str = "fit",
    enforce: bool | None = None,
    dtype: Any = "float32",
    observers: Sequence[Observer] = (),
) -> ProgramTally:
    """Count what a method of `METHODS` would move, on shapes alone; `k` mixtures. `e`, V's width, is d by default."""
    name, sizes = _asked(method, N, d, k, e)
    return count_program(
        programs()[name], sizes, M=M, blocks=blocks, sizing=sizing, enforce=enforce, dtype=dtype,
        options={METHODS[name]: 1.0}, observers=observers,
    )  # fmt: skip


def exact(
    method: str,
    *,
    N: int,
    d: int,
    k: int,
    e: int | None = None,
    M: Size | None = None,
    blocks: tuple[int, int, int, int] | None = None,
    sizing: str = "fit",
    enforce: bool | None = None,
    dtype: Any = "float32",
) -> ExactProgram:
    """Return the same by formula: equal, whatever the arguments."""
    name, sizes = _asked(method, N, d, k, e)
    return exact_program(name, sizes, M=M, blocks=blocks, sizing=sizing, enforce=enforce, dtype=dtype)


def _asked(method: Any, N: Any, d: Any, k: Any, e: Any) -> tuple[str, dict[str, Any]]:
    return check_choice("method", method, METHODS), {"N": N, "d": d, "k": k, "e": d if e is None else e}


def _scale(Q: Any, scale: Any) -> float:
    shape = check_array("Q", Q).shape
    return check_scale(scale, shape[-1] if shape and shape[-1] else 1)

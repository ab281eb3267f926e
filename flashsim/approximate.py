"""What the paper's Figure 3 compares attention with: approximations, linear in N, each on the same memory.

    run = flashsim.approximate.linformer(Q, K, V, E, F)             # run.O, run.L, run.hbm, run.sram
    W = flashsim.approximate.features(256, 64, seed=0)              # and .performer(Q, K, V, W)
    flashsim.approximate.count("linformer", N=4096, d=64, k=256)    # cost, by shapes alone; .exact(…) by formula

How well they approximate is not modelled: each computes its own formula.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flashsim.algorithms.beyond import programs
from flashsim.checking import check_array, check_choice, check_count, check_scale, check_seed
from flashsim.inputs import Array, float_dtype
from flashsim.memory import Observer
from flashsim.run.programs import ProgramRun, ProgramTally, count_program, run_program
from flashsim.sizes import Size
from flashsim.theory.program import ExactProgram, exact_program

METHODS: Mapping[str, str] = {"linformer": "tau", "performer": "c", "performer_materialised": "c"}
"""Each method's option, which moves nothing."""
PHI = {"on_chip": "performer", "in_hbm": "performer_materialised"}


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


def performer(
    Q: Any,
    K: Any,
    V: Any,
    W: Any,
    *,
    scale: float | None = None,
    phi: str = "on_chip",
    M: Size | None = None,
    blocks: tuple[int, int, int, int] | None = None,
    sizing: str = "fit",
    enforce: bool | None = None,
    observers: Sequence[Observer] = (),
    trace: bool = False,
) -> ProgramRun:
    """Return φ(Q) (φ(K)ᵀ V), divided by φ(Q) (φ(K)ᵀ 1), of Q, K (N, d), V (N, e), features W (k, d), as `run.O`.

    φ(x)_f = e^{w_f · x′ − ‖x′‖²/2}, x′ = √τ x: over random w_f, φ(q) · φ(k) is e^{τ q · k} on average.

    W        such as `features(k, d)`
    scale    τ ≥ 0; None: 1/√d
    phi      "on_chip"; "in_hbm": the logarithms of φ(Q) and φ(K) are written, and read again, as method
             "performer_materialised" of `count` and `exact`
    blocks   (B_r, B_c, B_f, B_g): rows of Q; keys to a feature; features that read keys at once, and that are read
    M, sizing, enforce, observers, trace  as in `linformer`

    Raises ValueError for arguments that make no sense, and for inputs so large that O overflows; SramOverflow.
    """
    tau, method = _scale(Q, scale), PHI[check_choice("phi", phi, PHI)]
    if tau < 0:
        raise ValueError(f"scale is {tau}; expected at least 0, as features take its root")
    return run_program(
        programs()[method], {"Q": Q, "K": K, "V": V, "W": W}, M=M, blocks=blocks, sizing=sizing, enforce=enforce,
        options={"c": tau**0.5}, observers=observers, trace=trace,
    )  # fmt: skip


def features(k: int, d: int, *, seed: int = 0, dtype: Any = "float64") -> Array:
    """Return k random features (k, d), each of independent normal numbers, those of one d × d block orthogonal to each other.

    Orthogonal ones approximate better, say Performer's authors. Raises ValueError for what is no size, seed or type.
    """
    k, d, stored = check_count("k", k), check_count("d", d), float_dtype(dtype)
    rng = np.random.default_rng(check_seed(seed))
    lengths = np.linalg.norm(rng.normal(size=(k, d)), axis=1, keepdims=True)
    Z = rng.normal(size=(-(-k // d), d, d))
    directions, R = np.linalg.qr(Z)
    directions = directions * np.sign(np.diagonal(R, axis1=1, axis2=2))[:, None, :]
    W: Array = (lengths * directions.swapaxes(1, 2).reshape(-1, d)[:k]).astype(stored)
    return W


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
    """Count what a method would move, on shapes alone; `k`: mixtures, or features. `e`, V's width, is d by default."""
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

"""Causal linear attention: O_i = Σ_{j ≤ i} (q_i · k_j) v_j, in chunks, whose past is a state of d × e numbers.

    run = flashsim.linear.attention(Q, K, V)          # run.O, run.hbm, run.sram
    flashsim.linear.count(N=65_536, d=64)             # cost, by shapes alone
    flashsim.linear.exact(N=65_536, d=64)             # cost, by formula

Q and K have been through their feature map. O_i is not divided by Σ_j q_i · k_j; a column of ones in V gives that sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flashsim.beyond.programs import programs
from flashsim.machine.memory import Observer
from flashsim.problem.arguments import check_choice, check_count
from flashsim.problem.options import check_how
from flashsim.simulate.matrices import count_program, run_program
from flashsim.simulate.results import Result
from flashsim.support.sizes import Size
from flashsim.theory.program import ExactProgram, exact_program

STATES = {"on_chip": "linear_attention", "in_hbm": "linear_attention_two_pass", "buffered": "linear_attention_buffered"}
HOW = ("M", "enforce", "dtype")
"""What `count` and `exact` take besides lengths."""


def attention(
    Q: Any, K: Any, V: Any, *,
    state: str = "on_chip", M: Size | None = None, chunk: int | None = None, enforce: bool | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Return causal linear attention O (N, e) of Q, K (N, d), V (N, e) as `run.O`, with what it cost.

    state   "on_chip": from chunk to chunk, so that all is read once; "in_hbm": the state before each chunk is written first, so
            that chunks can run side by side; "buffered": as a token at a time is decoded, with the state in HBM, written once a
            chunk
    chunk   rows of a chunk; None: as many as fit M, or, buffered, as move the least
    M, enforce, observers  as in `flashsim.forward`

    Raises ValueError for arguments that make no sense, and for inputs so large that O overflows; SramOverflow.
    """
    return run_program(
        programs()[_name(state)], {"Q": Q, "K": K, "V": V}, M=M, blocks=_blocks(chunk), enforce=enforce, observers=observers
    )


def count(*, N: int, d: int, e: int | None = None, state: str = "on_chip", chunk: int | None = None, **how: Any) -> Result:
    """Count what `attention` would move, on shapes alone. `e`, the width of V, is d by default. Errors as there.

    The rest is `flashsim.simulate.matrices.count_program`'s: M, enforce, dtype, observers.
    """
    check_how(count, how, (*HOW, "observers"))
    return count_program(programs()[_name(state)], {"N": N, "d": d, "e": d if e is None else e}, blocks=_blocks(chunk), **how)


def exact(*, N: int, d: int, e: int | None = None, state: str = "on_chip", chunk: int | None = None, **how: Any) -> ExactProgram:
    """Return the same by formula: equal, whatever the arguments."""
    check_how(exact, how, HOW)
    return exact_program(_name(state), {"N": N, "d": d, "e": d if e is None else e}, blocks=_blocks(chunk), **how)


def _name(state: Any) -> str:
    return STATES[check_choice("state", state, STATES)]


def _blocks(chunk: Any) -> tuple[Any] | None:
    return None if chunk is None else (check_count("chunk", chunk),)

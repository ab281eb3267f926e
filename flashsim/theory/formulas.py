"""The closed forms as text to read, array by array, for runs without mask and dropout that compute all tiles."""

from __future__ import annotations

from flashsim.checking import checked
from flashsim.records import Blocks
from flashsim.theory.problem import ceil_div

Formulas = dict[str, dict[str, tuple[str, str]]]

SYMBOLS = {
    "N_q": "queries",
    "N_k": "keys",
    "d": "width of Q and K",
    "d_v": "width of V and O",
    "T_r": "⌈N_q / B_r⌉",
    "T_c": "⌈N_k / B_c⌉",
    "T_v": "⌈d_v / B_c⌉: blocks of the columns of V",
    "U_c": "⌈N_k / B_r⌉: panels of keys in Algorithm 3",
    "p": "1 if a row fits in SRAM (forward N_k + 2 ≤ M, backward 2 N_k + 1 ≤ M), else 2",
}

_FLASH = {
    "Q": ("T_c * N_q * d", "0"),
    "K": ("N_k * d", "0"),
    "V": ("N_k * d_v", "0"),
    "O": ("T_c * N_q * d_v", "(T_c + 1) * N_q * d_v"),
    "l": ("T_c * N_q", "(T_c + 1) * N_q"),
    "m": ("T_c * N_q", "(T_c + 1) * N_q"),
}

FORMULAS: Formulas = {
    "standard": {
        "Q": ("N_q * d", "0"),
        "K": ("T_r * N_k * d", "0"),
        "V": ("T_r * N_k * d_v", "0"),
        "S": ("p * N_q * N_k", "N_q * N_k"),
        "P": ("N_q * N_k", "N_q * N_k"),
        "O": ("0", "N_q * d_v"),
    },
    "flash_basic": _FLASH,
    "flash": _FLASH,
    "block_sparse": _FLASH,
    "memory_efficient": {
        "Q": ("2 * N_q * d", "0"),
        "K": ("2 * T_r * N_k * d", "0"),
        "V": ("T_r * N_k * d_v", "0"),
        "O": ("0", "N_q * d_v"),
        "L": ("N_q", "N_q"),
    },
    "rabe_staats": {
        "Q": ("T_c * N_q * d", "0"),
        "K": ("N_k * d", "0"),
        "V": ("N_k * d_v", "0"),
        "O": ("0", "N_q * d_v"),
        "l": ("0", "N_q"),
        "m": ("0", "N_q"),
        "O_parts": ("T_c * N_q * d_v", "T_c * N_q * d_v"),
        "l_parts": ("T_c * N_q", "T_c * N_q"),
        "m_parts": ("T_c * N_q", "T_c * N_q"),
    },
    "small_cache": {
        "Q": ("T_c * N_q * d", "0"),
        "K": ("T_r * N_k * d", "0"),
        "V": ("T_r * N_k * d_v", "0"),
        "S": ("T_v * N_q * N_k", "N_q * N_k"),
        "O": ("0", "N_q * d_v"),
        "L": ("0", "N_q"),
    },
    "q_outer": {
        "Q": ("N_q * d", "0"),
        "K": ("T_r * N_k * d", "0"),
        "V": ("T_r * N_k * d_v", "0"),
        "O": ("0", "N_q * d_v"),
        "L": ("0", "N_q"),
    },
    "split_kv": {
        "Q": ("T_c * N_q * d", "0"),
        "K": ("T_r * N_k * d", "0"),
        "V": ("T_r * N_k * d_v", "0"),
        "O": ("0", "N_q * d_v"),
        "O_parts": ("T_c * N_q * d_v", "T_c * N_q * d_v"),
        "l_parts": ("T_c * N_q", "T_c * N_q"),
        "m_parts": ("T_c * N_q", "T_c * N_q"),
    },
}
"""Forward: (reads, writes) of each array, `SYMBOLS` explained there."""

_FLASH_BACKWARD = {
    "Q": ("T_c * N_q * d", "0"),
    "K": ("N_k * d", "0"),
    "V": ("N_k * d_v", "0"),
    "O": ("T_c * N_q * d_v", "0"),
    "dO": ("T_c * N_q * d_v", "0"),
    "l": ("T_c * N_q", "0"),
    "m": ("T_c * N_q", "0"),
    "dQ": ("T_c * N_q * d", "(T_c + 1) * N_q * d"),
    "dK": ("0", "2 * N_k * d"),
    "dV": ("0", "2 * N_k * d_v"),
}

FORMULAS_BACKWARD: Formulas = {
    "standard": {
        "Q": ("U_c * N_q * d", "0"),
        "K": ("T_r * N_k * d", "0"),
        "V": ("T_r * N_k * d_v", "0"),
        "dO": ("(U_c + 1) * N_q * d_v", "0"),
        "P": ("(p + 1) * N_q * N_k", "0"),
        "dP": ("p * N_q * N_k", "N_q * N_k"),
        "dS": ("2 * N_q * N_k", "N_q * N_k"),
        "dQ": ("0", "N_q * d"),
        "dK": ("0", "N_k * d"),
        "dV": ("0", "N_k * d_v"),
    },
    "flash": _FLASH_BACKWARD,
    "block_sparse": _FLASH_BACKWARD,
    "memory_efficient": {
        "Q": ("(2 * N_k + 1) * N_q * d", "0"),
        "K": ("(N_q + 2) * N_k * d", "0"),
        "V": ("(N_q + 1) * N_k * d_v", "0"),
        "O": ("N_q * d_v", "0"),
        "dO": ("2 * (N_k + 1) * N_q * d_v", "0"),
        "L": ("(2 * N_k + 1) * N_q", "0"),
        "D": ("(N_k + 1) * N_q", "N_q"),
        "dQ": ("0", "N_q * d"),
        "dK": ("0", "N_k * d"),
        "dV": ("0", "N_k * d_v"),
    },
    "rabe_staats": {**_FLASH_BACKWARD, "dK": ("0", "N_k * d"), "dV": ("0", "N_k * d_v")},
    "q_outer": {
        "Q": ("T_c * N_q * d", "0"),
        "K": ("N_k * d", "0"),
        "V": ("N_k * d_v", "0"),
        "O": ("N_q * d_v", "0"),
        "dO": ("(T_c + 1) * N_q * d_v", "0"),
        "L": ("T_c * N_q", "0"),
        "D": ("T_c * N_q", "N_q"),
        "dQ": ("T_c * N_q * d", "(T_c + 1) * N_q * d"),
        "dK": ("0", "N_k * d"),
        "dV": ("0", "N_k * d_v"),
    },
    "q_outer_two_pass": {
        "Q": ("(T_c + 1) * N_q * d", "0"),
        "K": ("(T_r + 1) * N_k * d", "0"),
        "V": ("(T_r + 1) * N_k * d_v", "0"),
        "O": ("N_q * d_v", "0"),
        "dO": ("(T_c + 2) * N_q * d_v", "0"),
        "L": ("(T_c + 1) * N_q", "0"),
        "D": ("(T_c + 1) * N_q", "N_q"),
        "dQ": ("0", "N_q * d"),
        "dK": ("0", "N_k * d"),
        "dV": ("0", "N_k * d_v"),
    },
}
"""Backward: (reads, writes) of each array, `SYMBOLS` explained there."""


@checked
def symbols(
    N_q: int, N_k: int, d: int, d_v: int, M: int, blocks: Blocks, *, direction: str = "forward"
) -> dict[str, int]:
    """Return the value of each of `SYMBOLS`, to evaluate a formula with."""
    row = N_k + 2 if direction == "forward" else 2 * N_k + 1
    return {
        "N_q": N_q,
        "N_k": N_k,
        "d": d,
        "d_v": d_v,
        "T_r": blocks.T_r,
        "T_c": blocks.T_c,
        "T_v": ceil_div(d_v, blocks.B_c),
        "U_c": ceil_div(N_k, blocks.B_r),
        "p": 1 if row <= M else 2,
    }

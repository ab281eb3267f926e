"""The closed forms, written from the paper and not from the simulator: the two must agree with `==`.

Symbols: N_q, N_k lengths (N when equal), d and d_v widths, M elements of SRAM, B_r × B_c tiles of S, T_r = ⌈N_q/B_r⌉,
T_c = ⌈N_k/B_c⌉. Each algorithm's forms, derived, are in `flash`, `standard`, `appendix_b`, `q_outer` and `small_cache`, those
of heads that share keys and values in `groups`; as text, in `FORMULAS` and `FORMULAS_BACKWARD`; put together with masks,
dropout and block sizes, in `exact`. The theorems' Θ expressions and their constants, derived, are in `bounds`.

Of flashsim nothing is imported but records and the mask objects that users make.
"""

from __future__ import annotations

from flashsim.theory.bounds import (
    block_sparse_constants,
    compulsory,
    extra_memory,
    flash_backward_constants,
    flash_constants,
    flash_over_compulsory_constant,
    matmul_flops,
    proof_accounting,
    proposition_4,
    q_outer_constants,
    small_cache_constants,
    standard_backward_constants,
    standard_backward_small_M_constants,
    standard_constants,
    standard_small_M_constants,
    theorem_2_flash,
    theorem_2_standard,
    theorem_5_flash,
    theorem_5_standard,
    theorem_saha_ye,
)
from flashsim.theory.counts import BYTES, Exact, exact
from flashsim.theory.formulas import FORMULAS, FORMULAS_BACKWARD, SYMBOLS, symbols

__all__ = [
    "BYTES",
    "FORMULAS",
    "FORMULAS_BACKWARD",
    "SYMBOLS",
    "Exact",
    "block_sparse_constants",
    "compulsory",
    "exact",
    "extra_memory",
    "flash_backward_constants",
    "flash_constants",
    "flash_over_compulsory_constant",
    "matmul_flops",
    "proof_accounting",
    "proposition_4",
    "q_outer_constants",
    "small_cache_constants",
    "standard_backward_constants",
    "standard_backward_small_M_constants",
    "standard_constants",
    "standard_small_M_constants",
    "symbols",
    "theorem_2_flash",
    "theorem_2_standard",
    "theorem_5_flash",
    "theorem_5_standard",
    "theorem_saha_ye",
]

"""The closed forms, written from the paper and not from the simulator: the two must agree with `==`.

Symbols: N_q, N_k lengths (N when equal), d and d_v widths, M elements of SRAM, B_r × B_c tiles of S, T_r = ⌈N_q/B_r⌉,
T_c = ⌈N_k/B_c⌉. An algorithm's forms are derived in the file that has the name of the algorithm's file, and which ends in
its `Form`; those of heads that share keys and values, in `groups`. `exact` adds masks, dropout and block sizes.
The theorems' Θ expressions and their constants are derived in `bounds`; what no schedule can beat is proved in `lower` and
`lower_backward`.

Theory imports nothing of flashsim but records, the checks of arguments and the mask objects that users make.
"""

from __future__ import annotations

from flashsim.theory.counts import Exact, exact
from flashsim.theory.form import Form, form_of, formulas, symbols
from flashsim.theory.formulas import SYMBOLS
from flashsim.theory.kernel_products import (
    kernel_materialised_constants,
    kernel_product_bound,
    kernel_x_outer_constants,
    kernel_z_outer_constants,
)
from flashsim.theory.lower import LowerBound, lower_bound
from flashsim.theory.lower_backward import BackwardBound, lower_bound_backward
from flashsim.theory.problem import BYTES, NoClosedForm
from flashsim.theory.program import ExactProgram, ProgramForm, exact_program
from flashsim.theory.theorems import (
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

__all__ = [
    "BYTES",
    "SYMBOLS",
    "BackwardBound",
    "Exact",
    "ExactProgram",
    "Form",
    "LowerBound",
    "NoClosedForm",
    "ProgramForm",
    "block_sparse_constants",
    "compulsory",
    "exact",
    "exact_program",
    "extra_memory",
    "flash_backward_constants",
    "flash_constants",
    "flash_over_compulsory_constant",
    "form_of",
    "formulas",
    "kernel_materialised_constants",
    "kernel_product_bound",
    "kernel_x_outer_constants",
    "kernel_z_outer_constants",
    "lower_bound",
    "lower_bound_backward",
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

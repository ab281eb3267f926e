"""The closed forms, written from the paper and not from the simulator: the two must agree with
`==`.

Symbols: N_q, N_k lengths (N when equal), d and d_v widths, M elements of SRAM, B_r × B_c tiles of
S, T_r = ⌈N_q/B_r⌉, T_c = ⌈N_k/B_c⌉. An algorithm's forms are derived in the file that has the name
of the algorithm's file, and which ends in its `Form`; those of heads that share keys and values, in
`groups`. `exact` adds masks, dropout and block sizes. The theorems' Θ expressions and their
constants are derived in `theorems`; what no schedule can beat is proved in `bounds`.

Theory imports nothing of flashsim but records, the checks of arguments and the mask objects that
users make.
"""

from types import ModuleType as _Module

from flashsim.theory.bounds.backward import BackwardBound as BackwardBound
from flashsim.theory.bounds.backward import lower_bound_backward as lower_bound_backward
from flashsim.theory.bounds.forward import LowerBound as LowerBound
from flashsim.theory.bounds.forward import lower_bound as lower_bound
from flashsim.theory.bounds.rows import lower_bound_rows as lower_bound_rows
from flashsim.theory.closed_form import Exact as Exact
from flashsim.theory.closed_form import NoClosedForm as NoClosedForm
from flashsim.theory.counts import exact as exact
from flashsim.theory.form import Form as Form
from flashsim.theory.form import form_of as form_of
from flashsim.theory.form import formulas as formulas
from flashsim.theory.form import symbols as symbols
from flashsim.theory.formulas import SYMBOLS as SYMBOLS
from flashsim.theory.kernel_products import (
    kernel_materialised_constants as kernel_materialised_constants,
)
from flashsim.theory.kernel_products import kernel_product_bound as kernel_product_bound
from flashsim.theory.kernel_products import kernel_x_outer_constants as kernel_x_outer_constants
from flashsim.theory.kernel_products import kernel_z_outer_constants as kernel_z_outer_constants
from flashsim.theory.matrices import MatrixForm as MatrixForm
from flashsim.theory.matrices import exact_program as exact_program
from flashsim.theory.problem import BYTES as BYTES
from flashsim.theory.theorems import block_sparse_constants as block_sparse_constants
from flashsim.theory.theorems import compulsory as compulsory
from flashsim.theory.theorems import extra_memory as extra_memory
from flashsim.theory.theorems import flash_backward_constants as flash_backward_constants
from flashsim.theory.theorems import flash_constants as flash_constants
from flashsim.theory.theorems import (
    flash_over_compulsory_constant as flash_over_compulsory_constant,
)
from flashsim.theory.theorems import matmul_flops as matmul_flops
from flashsim.theory.theorems import proof_accounting as proof_accounting
from flashsim.theory.theorems import proposition_4 as proposition_4
from flashsim.theory.theorems import q_outer_constants as q_outer_constants
from flashsim.theory.theorems import small_cache_constants as small_cache_constants
from flashsim.theory.theorems import standard_backward_constants as standard_backward_constants
from flashsim.theory.theorems import (
    standard_backward_small_M_constants as standard_backward_small_M_constants,
)
from flashsim.theory.theorems import standard_constants as standard_constants
from flashsim.theory.theorems import standard_small_M_constants as standard_small_M_constants
from flashsim.theory.theorems import theorem_2_flash as theorem_2_flash
from flashsim.theory.theorems import theorem_2_standard as theorem_2_standard
from flashsim.theory.theorems import theorem_5_flash as theorem_5_flash
from flashsim.theory.theorems import theorem_5_standard as theorem_5_standard
from flashsim.theory.theorems import theorem_saha_ye as theorem_saha_ye

__all__ = sorted(
    name for name, value in globals().items() if name[0] != "_" and not isinstance(value, _Module)
)

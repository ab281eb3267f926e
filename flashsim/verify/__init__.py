"""The ledger: every claim of the paper that flashsim checks, the range it was tried on, what was measured, the verdict.

The last are not the paper's: the systems of the book chapter among the sources, what is optimal, Saha and Ye's, on what
attention costs where M < d², and a lower bound.

Each check runs one claim and returns a `Claim`. Nothing here is fitted to pass: counts are compared by `==`, constants
are derived in `flashsim.theory`, and rounding bounds in `flashsim.reference`.
"""

from __future__ import annotations

from flashsim.verify import (
    appendices,
    beyond,
    chapter,
    figure_3,
    lower,
    practice,
    programs,
    propositions,
    section_4,
    theorem_5,
    theorems_1_2,
)
from flashsim.verify.claim import Check, Claim
from flashsim.verify.running import run

__all__ = ["Check", "Claim", "checks", "run"]


def checks() -> list[Check]:
    """Return every check, in the order of the paper. Each takes `full`: sweep widely, or keep to seconds."""
    return [
        theorems_1_2.theorem_1_exact,
        theorems_1_2.theorem_1_induction,
        theorems_1_2.theorem_1_flops,
        theorems_1_2.theorem_1_memory,
        theorems_1_2.theorem_2_counts,
        theorems_1_2.theorem_2_flash_bounds,
        theorems_1_2.theorem_2_exponents,
        theorems_1_2.theorem_2_standard,
        theorems_1_2.theorem_2_standard_small_M,
        propositions.proposition_3,
        propositions.proposition_4_counts,
        propositions.proposition_4_bounds,
        propositions.proposition_4_patterns,
        theorem_5.gradients_exact,
        theorem_5.theorem_5_counts,
        theorem_5.theorem_5_flash_bounds,
        theorem_5.theorem_5_exponents,
        theorem_5.theorem_5_standard,
        theorem_5.theorem_5_standard_small_M,
        appendices.equation_4,
        appendices.no_dropout_mask_kept,
        appendices.D_in_d_vectors,
        appendices.rabe_staats,
        appendices.block_sparse_is_algorithm_2_with_a_skip,
        beyond.kernel_products_exact,
        beyond.kernel_products_bounds,
        beyond.sparse_mlp_exact,
        beyond.fusing_pays_from_d_squared,
        figure_3.approximations_exact,
        figure_3.clusters_exact,
        figure_3.approximations_cross,
        section_4.memory_footprint,
        section_4.what_the_speedup_depends_on,
        programs.cut_cross_entropy,
        programs.linear_attention,
        programs.planted_bugs,
        chapter.loops_exchanged,
        chapter.flash_decoding,
        chapter.grouped_heads,
        chapter.tree_masks,
        chapter.third_level,
        chapter.what_is_optimal,
        practice.saha_ye_small_cache,
        lower.nothing_below_the_lower_bound,
        lower.nothing_below_the_backward_bound,
        lower.q_outer_is_optimal,
    ]

"""Naive softmax attention and its gradients in plain NumPy: the oracle of every test, and how far rounding may lead.

`attention` forms the whole N_q × N_k matrix, subtracts each row's maximum before the exponential (so no finite score
overflows), and divides once. `gradients` differentiates that, by Algorithm 3's formulas. In float64 their own error
against exact arithmetic on the given numbers is within the bounds given here for chip=float64, stored=float64.

Masks and dropout are arrays here: `mask` is boolean, True = attend, `keep` is boolean, True = the weight is kept, and
divided by 1 − dropout_p. Both broadcast to (..., N_q, N_k), as does `bias`, which is added to the scaled scores. A query whose
every key is masked has O = 0, l = 0, m = −∞ and gradients 0. What is masked is never read: NaN in a masked key or value stays
there.
"""

from flashsim.reference.approximate import (
    Approximate,
    linformer,
    linformer_bounds,
    performer,
    performer_bounds,
    reformer,
    reformer_bounds,
    smyrf,
    smyrf_bounds,
)
from flashsim.reference.kernels import (
    kernel_gradient,
    kernel_gradient_bounds,
    kernel_product,
    kernel_product_bounds,
)
from flashsim.reference.linear import linear_attention, linear_attention_bounds
from flashsim.reference.logits import CrossEntropy, cross_entropy, cross_entropy_bounds
from flashsim.reference.mlp import sparse_mlp, sparse_mlp_bounds
from flashsim.reference.oracle import Attention, Three, attention, attention_with_statistics, bias_gradient, gradients
from flashsim.reference.rounding import (
    BackwardRounding,
    Rounding,
    backward_rounding,
    bias_gradient_bound,
    error_bound,
    gradient_bounds,
    group_bound,
    of_bound,
    rounding,
    score_reach,
)

__all__ = [
    "Approximate",
    "Attention",
    "BackwardRounding",
    "CrossEntropy",
    "Rounding",
    "Three",
    "attention",
    "attention_with_statistics",
    "backward_rounding",
    "bias_gradient",
    "bias_gradient_bound",
    "cross_entropy",
    "cross_entropy_bounds",
    "error_bound",
    "gradient_bounds",
    "gradients",
    "group_bound",
    "kernel_gradient",
    "kernel_gradient_bounds",
    "kernel_product",
    "kernel_product_bounds",
    "linear_attention",
    "linear_attention_bounds",
    "linformer",
    "linformer_bounds",
    "of_bound",
    "performer",
    "performer_bounds",
    "reformer",
    "reformer_bounds",
    "rounding",
    "score_reach",
    "smyrf",
    "smyrf_bounds",
    "sparse_mlp",
    "sparse_mlp_bounds",
]

"""Naive softmax attention and its gradients in plain NumPy: the oracle of every test, and how far
rounding may lead.

`attention` forms the whole N_q × N_k matrix, subtracts each row's maximum before the exponential
(so no finite score overflows), and divides once. `gradients` differentiates that, by Algorithm 3's
formulas. In float64 their own error against exact arithmetic on the given numbers is within the
bounds given here for chip=float64, stored=float64.

Masks and dropout are arrays here: `mask` is boolean, True = attend, `keep` is boolean, True = the
weight is kept, and divided by 1 − dropout_p. Both broadcast to (..., N_q, N_k), as does `bias`,
which is added to the scaled scores. A rule, such as `flashsim.Causal()`, is refused; of a run,
`run.plan.attended(head)` is the array of one query head, whose index is () where there is one head.

A query whose every key is masked has O = 0, l = 0, m = −∞ and gradients 0. What is masked is never
read: NaN in a masked key or value stays there.
"""

from types import ModuleType as _Module

from flashsim.reference.approximate import Approximate as Approximate
from flashsim.reference.approximate import linformer as linformer
from flashsim.reference.approximate import linformer_bounds as linformer_bounds
from flashsim.reference.approximate import performer as performer
from flashsim.reference.approximate import performer_bounds as performer_bounds
from flashsim.reference.approximate import reformer as reformer
from flashsim.reference.approximate import reformer_bounds as reformer_bounds
from flashsim.reference.approximate import smyrf as smyrf
from flashsim.reference.approximate import smyrf_bounds as smyrf_bounds
from flashsim.reference.kernels import kernel_gradient as kernel_gradient
from flashsim.reference.kernels import kernel_gradient_bounds as kernel_gradient_bounds
from flashsim.reference.kernels import kernel_product as kernel_product
from flashsim.reference.kernels import kernel_product_bounds as kernel_product_bounds
from flashsim.reference.mlp import sparse_mlp as sparse_mlp
from flashsim.reference.mlp import sparse_mlp_bounds as sparse_mlp_bounds
from flashsim.reference.oracle import Attention as Attention
from flashsim.reference.oracle import Three as Three
from flashsim.reference.oracle import attention as attention
from flashsim.reference.oracle import attention_with_statistics as attention_with_statistics
from flashsim.reference.oracle import bias_gradient as bias_gradient
from flashsim.reference.oracle import gradients as gradients
from flashsim.reference.oracle import sink_gradient as sink_gradient
from flashsim.reference.rounding import BackwardRounding as BackwardRounding
from flashsim.reference.rounding import Rounding as Rounding
from flashsim.reference.rounding import backward_rounding as backward_rounding
from flashsim.reference.rounding import bias_gradient_bound as bias_gradient_bound
from flashsim.reference.rounding import error_bound as error_bound
from flashsim.reference.rounding import gradient_bounds as gradient_bounds
from flashsim.reference.rounding import group_bound as group_bound
from flashsim.reference.rounding import of_bound as of_bound
from flashsim.reference.rounding import rounding as rounding
from flashsim.reference.rounding import score_reach as score_reach
from flashsim.reference.rounding import sink_gradient_bound as sink_gradient_bound

__all__ = sorted(
    name for name, value in globals().items() if name[0] != "_" and not isinstance(value, _Module)
)

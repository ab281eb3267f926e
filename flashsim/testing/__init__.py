"""Property tests for anyone's attention kernel: declare what it takes (`Spec`), and let Hypothesis
find its bugs.

    from flashsim.testing import Spec, check_attention
    check_attention(my_attention, Spec(causal="bottom_right", masks=True), max_examples=300)

`parametrize_with_checks` makes a pytest test of each check, `wrap` makes kernels on PyTorch, CuPy
or JAX arrays take NumPy ones; `varlen`, `paged` and `mla` adapt kernels of packed sequences, paged
caches and latents; and `flashsim check module:function` does it all on the command line. Needs
Hypothesis, which the extra `testing` brings.
"""

from __future__ import annotations

from importlib.util import find_spec

from flashsim.support.install import extra_with

if find_spec("hypothesis") is None:
    raise ModuleNotFoundError(
        f"flashsim.testing needs Hypothesis: {extra_with('hypothesis')}", name="hypothesis"
    )

from flashsim.testing.adapters import mla, paged, varlen
from flashsim.testing.case import Case
from flashsim.testing.checks import CHECKS
from flashsim.testing.checkup import (
    AttentionCheckFailed,
    check_attention,
    parametrize_with_checks,
    replay,
)
from flashsim.testing.problem import Problem
from flashsim.testing.report import Failure, Report
from flashsim.testing.spec import Spec
from flashsim.testing.strategies import cases
from flashsim.testing.wrapping import wrap

__all__ = [
    "CHECKS",
    "AttentionCheckFailed",
    "Case",
    "Failure",
    "Problem",
    "Report",
    "Spec",
    "cases",
    "check_attention",
    "mla",
    "paged",
    "parametrize_with_checks",
    "replay",
    "varlen",
    "wrap",
]

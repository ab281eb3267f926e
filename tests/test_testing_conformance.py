"""The kit finds nothing wrong with attentions that are right: ours, plain NumPy ones, PyTorch's, JAX's and Triton's.

Few examples by default. FLASHSIM_EXAMPLES=2000 in the environment asks for more; scripts/kit_conformance.py makes a table.
"""

from __future__ import annotations

import os

import pytest

from tests.implementations import IMPLEMENTATIONS

EXAMPLES = int(os.environ.get("FLASHSIM_EXAMPLES", "10"))
SLOW = {"memory_efficient": 0.25, "small_cache": 0.5}  # the share of them that it is given


QUICK = ("flash", "q_outer", "standard", "numpy_tiled")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in IMPLEMENTATIONS]
)
def test_a_correct_attention_passes(name: str) -> None:
    implementation = IMPLEMENTATIONS[name]
    if implementation.missing:
        pytest.skip(implementation.missing)
    share = implementation.share * (SLOW.get(name, 1.0) if EXAMPLES < 100 else 1.0)
    report = implementation.build().check(max_examples=max(10, round(share * EXAMPLES)))
    assert not report.failures, str(report)
    assert sum(tally.tried for tally in report.tallies.values()) > report.examples


def test_expected_failures_say_why() -> None:
    for implementation in IMPLEMENTATIONS.values():
        if not implementation.missing:
            assert all(len(reason) > 20 for reason in implementation.build().expected_failures.values())

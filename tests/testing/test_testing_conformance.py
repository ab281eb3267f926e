"""The kit finds nothing wrong with attentions that are right: ours, plain NumPy ones, PyTorch's,
JAX's and Triton's.

Few examples; scripts/kit_conformance.py tries more, and makes a table.
"""

import pytest

from tests.helpers.implementations import IMPLEMENTATIONS

QUICK = ("numpy_tiled",)
SLOW = {
    "hybrid_streamed": 0.2,
    "memory_efficient": 0.2,
    "small_cache": 0.2,
    "small_cache_hybrid": 0.4,
    "streamed": 0.4,
    "tiles_streamed": 0.12,  # a long one takes minutes
}  # the share of the examples that it is given


@pytest.mark.parametrize(
    ("name", "examples"),
    [
        *((name, 10) for name in QUICK),
        *(pytest.param(name, 25, marks=pytest.mark.slow) for name in IMPLEMENTATIONS),
    ],
)
def test_a_correct_attention_passes(name: str, examples: int) -> None:
    implementation = IMPLEMENTATIONS[name]
    if implementation.missing:
        pytest.skip(implementation.missing)
    share = implementation.share * SLOW.get(name, 1.0)
    report = implementation.build().check(max_examples=max(3, round(share * examples)))
    assert not report.failures, str(report)
    assert sum(tally.tried for tally in report.tallies.values()) > report.examples


def test_expected_failures_say_why() -> None:
    for implementation in IMPLEMENTATIONS.values():
        if not implementation.missing:
            assert all(
                len(reason) > 20 for reason in implementation.build().expected_failures.values()
            )

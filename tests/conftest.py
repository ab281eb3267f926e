"""Shared by all tests: Hypothesis settings, and how long the fuzzers run.

`pytest tests/test_fuzz.py --fuzz 100000` tries as many examples in each test that is decorated with
`@settings(settings.get_profile("fuzz"))`.
"""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, Phase, settings

settings.register_profile("flashsim", deadline=None, max_examples=30, print_blob=True)
settings.register_profile(  # scripts/mutation.py's: what fails, fails every time, and need not be made small
    "mutants",
    settings.get_profile("flashsim"),
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
)
settings.register_profile("wide", settings.get_profile("flashsim"), max_examples=300)  # .ci/run's, for searches
settings.load_profile("flashsim")

FUZZ_EXAMPLES = 100
if (
    signal.getsignal(signal.SIGINT) == signal.SIG_IGN
):  # as in a shell's background job; processes started here inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz", type=int, default=FUZZ_EXAMPLES, metavar="N", help="examples that each fuzzer tries")


def pytest_configure(config: pytest.Config) -> None:
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    examples = config.getoption("--fuzz")
    settings.register_profile(
        "fuzz", settings.get_profile("flashsim"), max_examples=examples, suppress_health_check=slow
    )

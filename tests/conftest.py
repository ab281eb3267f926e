"""Shared by all tests: Hypothesis settings, a BLAS thread a process, how long the fuzzers run, a
browser.

`pytest tests/simulate/test_fuzz.py --fuzz 100000` tries as many examples in each test that is decorated with
`@settings(settings.get_profile("fuzz"))`.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

# before NumPy is imported: each core has a process of its own
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

settings.register_profile("flashsim", deadline=None, max_examples=10, print_blob=True)
# scripts/research/mutation.py's: what fails, fails every time, and need not be made small
settings.register_profile(
    "mutants",
    settings.get_profile("flashsim"),
    max_examples=30,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
)
# CONTRIBUTING.md
settings.register_profile("wide", settings.get_profile("flashsim"), max_examples=300)
settings.load_profile("flashsim")

FUZZ_EXAMPLES = 30
# the first takes half the time
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
# viewports
DESK = {"width": 1280, "height": 720}
PHONE = {"width": 390, "height": 844}
# as in a shell's background job; processes started here inherit it
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _tracer() -> Iterator[None]:
    """A debugger in a test takes the place of coverage's tracer, for all tests that follow: give
    it back.
    """
    before = sys.gettrace()
    yield
    if before and sys.gettrace() is not before:
        sys.settrace(before)


@pytest.fixture
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of figures are written empty: for tests that look at what else there is."""
    monkeypatch.setattr("flashsim.plots.saving.drawn", lambda figure, form: b"")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium from the system, driven by Playwright; without either, skip and say what
    is missing.
    """
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: pip install playwright"
    )
    chromium = next(filter(None, map(shutil.which, BROWSERS)), None)
    if chromium is None:
        pytest.skip("no Chromium on this system: apt-get install chromium-headless-shell")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


def until(page: Any, condition: str) -> None:
    """Wait for a condition: not with Playwright's own waiting, which needs the `eval` that the
    page forbids.
    """
    deadline = time.monotonic() + 20
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(20)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz",
        type=int,
        default=FUZZ_EXAMPLES,
        metavar="N",
        help="examples that each fuzzer tries",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")


def pytest_configure(config: pytest.Config) -> None:
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    examples = config.getoption("--fuzz")
    settings.register_profile(
        "fuzz", settings.get_profile("flashsim"), max_examples=examples, suppress_health_check=slow
    )

"""Photograph the step player where a maximum rises by the most: figures/step.png, and
step_phone.png, what a phone shows.

python scripts/step_picture.py

Needs Playwright and a Chromium: pip install ".[browser]", apt-get install chromium-headless-shell.
"""

import argparse
import shlex
import shutil
import tempfile
from pathlib import Path

import numpy as np

from flashsim.cli import parse
from flashsim.cli.step import recorded
from flashsim.support.entry import run_script
from flashsim.support.files import write_whole
from flashsim.tracing import Step

ROOT = Path(__file__).resolve().parents[1]
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
SCREENS = (("step", 1280, 720, 1), ("step_phone", 390, 700, 2))
COMMAND = "flashsim step --algorithm flash --N 12 --d 4 --blocks 3 4 --causal"


def rise(step: Step) -> float:
    """Return by how much the maximum of a row that had one rises in this step, at most."""
    old, new = step.pairs["m"]
    assert old is not None
    assert new is not None
    return float((new - old)[np.isfinite(old)].max())


def photograph() -> None:
    """Write the page to a temporary file, open it at the step, save what a desk and a phone
    show, and say which step it is.
    """
    from playwright.sync_api import sync_playwright

    trace, _ = recorded(parse(shlex.split(COMMAND)[1:]))
    step = max((s for s in trace.steps if s.rescaled), key=rise)
    chromium = next(filter(None, map(shutil.which, BROWSERS)), None)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        page_file = trace.save(Path(folder) / "step.html")
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, width, height, pixels in SCREENS:
            page = browser.new_page(
                viewport={"width": width, "height": height}, device_scale_factor=pixels
            )
            page.goto(f"{page_file.as_uri()}#t={step.number}")
            page.wait_for_selector("html[data-ready]", state="attached")
            write_whole(ROOT / "figures" / f"{name}.png", page.screenshot())
        browser.close()
    print(
        f"{', '.join(f'figures/{name}.png' for name, *_ in SCREENS)}: step {step.number}, "
        f"{step.label}"
    )


def main() -> None:
    """Photograph: there are no options."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    photograph()


if __name__ == "__main__":
    run_script(main)

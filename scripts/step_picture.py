"""Photograph the step player: figures/step.png.

Needs Playwright and a Chromium: pip install ".[browser]", apt-get install chromium.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from flashsim.cli import main

ROOT = Path(__file__).resolve().parents[1]
ASKED = ["step", "--algorithm", "flash", "--n", "12", "--d", "4", "--blocks", "3", "4", "--causal"]
AT = "#t=46"


def photograph() -> None:
    """Write the page to a temporary file, open it, and save what 1280 × 720 pixels show of step 46."""
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        page_file = Path(folder) / "step.html"
        main([*ASKED, "-o", str(page_file)])
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        page.goto(page_file.as_uri() + AT)
        page.wait_for_selector("html[data-ready]", state="attached")
        page.screenshot(path=str(ROOT / "figures" / "step.png"))
        browser.close()


if __name__ == "__main__":
    photograph()

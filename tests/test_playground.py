"""The playground in a browser: its JavaScript, made from theory's Python, says what theory says; and it is used by hand."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flashsim import playground, theory
from flashsim.cli import main
from flashsim.playground.javascript import Script, expression

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The page, opened once; at the end, see that it asked for nothing and complained of nothing."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: pip install playwright"
    )
    if CHROMIUM is None:
        pytest.skip("no Chromium on this system: apt-get install chromium")
    path = tmp_path_factory.mktemp("playground") / "page.html"
    path.write_text(playground.page(), encoding="utf-8")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        found = browser.new_page(viewport={"width": 1280, "height": 720})
        said: list[str] = []
        found.on("console", lambda message: said.append(message.text))
        found.on("pageerror", lambda error: said.append(str(error)))
        found.on("request", lambda request: said.append(request.url))
        found.goto(path.as_uri())
        yield found
        browser.close()
    assert said == [path.as_uri()]


COUNTED = """(settings) => settings.map(([name, direction, ...sizes]) => {
  const form = FORMS.find((one) => one.name === name && one.direction === direction);
  const [N, d, M, B_r, B_c] = sizes.map(BigInt), { arrays, peak } = count(form, { N, d, M, B_r, B_c });
  const moved = Object.fromEntries(arrays.map(([array, ...counts]) => [array, counts.map(String)]));
  const blocks = [true, false].map((fit) => lineOne(form, { N, d, M }, fit));
  return [moved, String(peak), ...blocks.map(({ B_r, B_c }) => [B_r, B_c].map(String))];
})"""
UNNAMED = """[...document.querySelectorAll('button, input, select, canvas, section')]
  .filter((e) => !(e.ariaLabel || e.labels?.length || e.innerText.trim())).length"""


def test_it_says_what_theory_says_at_a_thousand_settings(page: Any) -> None:
    """At sizes from 1 to beyond 2^53 / N², so that counts are beyond what a JavaScript number holds exactly."""
    rng = random.Random(0)
    forms = page.evaluate("FORMS.map(({name, direction}) => [name, direction])")
    assert {("flash", "forward"), ("q_outer", "forward"), ("standard", "backward")} <= {tuple(form) for form in forms}
    settings = []
    for n in range(1000):
        N, d, M, B_r, B_c = (int(2 ** rng.uniform(0, most)) for most in (40 if n % 10 == 0 else 14, 9, 22, 12, 12))
        settings.append((*forms[n % len(forms)], N, d, M, B_r, B_c))
    found = page.evaluate(
        COUNTED, [[*names, *map(str, sizes)] for *names, a, b, c, e, f in settings for sizes in [(a, b, c, e, f)]]
    )
    largest = 0
    for (name, direction, N, d, M, B_r, B_c), (arrays, peak, fit, paper) in zip(settings, found, strict=True):
        sizes = {"N": N, "d": d, "M": M, "direction": direction}
        exact = theory.exact(name, **sizes, blocks=(B_r, B_c))
        assert arrays == {array: [str(a.reads), str(a.writes)] for array, a in exact.hbm.by_array.items()}
        assert int(peak) == exact.sram.peak
        wanted = theory.exact(name, **sizes, sizing="paper").blocks
        assert [int(size) for size in paper] == [wanted.B_r, wanted.B_c]
        if N < 2000:
            wanted = theory.exact(name, **sizes, sizing="fit").blocks
            assert [int(size) for size in fit] == [wanted.B_r, wanted.B_c], (name, sizes)
        largest = max(largest, exact.accesses)
    assert largest > 2**60


def test_sliders_and_numbers_redraw_at_once(page: Any) -> None:
    page.select_option("#algorithm", "0")
    for name, value in (("N", "12"), ("d", "4"), ("M", "128"), ("B_r", "4"), ("B_c", "4")):
        page.fill(f"input[type=number][aria-label^='{name},']", value)
    exact = theory.exact("flash", N=12, d=4, M=128, blocks=(4, 4))
    assert page.inner_text("#peak") == f": at most {exact.sram.peak} of M = 128, {exact.sram.peak / 1.28:.1f}%"
    assert page.inner_text("#tiles") == ": 3 × 3 tiles of 4 × 4, visited column by column"
    assert page.locator("#accesses tbody tr").all_inner_texts()[-1].split("\t")[1:3] == [
        str(exact.reads),
        str(exact.writes),
    ]
    page.focus("input[type=range][aria-label^='B_c,']")
    page.keyboard.press("ArrowRight")
    assert "3 × 2 tiles of 4 × 6" in page.inner_text("#tiles")
    page.select_option("#algorithm", "1")
    assert page.inner_text("#tiles").endswith("visited row by row")
    page.fill("input[type=number][aria-label^='M,']", "60")
    assert "too many" in page.inner_text("#peak")
    page.click("#fit")
    assert "too many" not in page.inner_text("#peak")
    page.fill("input[type=number][aria-label^='M,']", "0")
    assert page.get_attribute("input[type=number][aria-label^='M,']", "aria-invalid") == "true"
    assert page.inner_text("#said").startswith("M is 0; expected a whole number from 1")
    page.evaluate("location.hash = '#algorithm=flash&N=100&d=8&M=4000&B_r=10&B_c=20'")
    page.wait_for_timeout(50)
    assert "10 × 5 tiles of 10 × 20" in page.inner_text("#tiles")
    assert "with the largest blocks that fit makes" in page.inner_text("#versus")
    page.fill("input[type=number][aria-label^='M,']", "3")
    assert page.inner_text("#versus") == "Of standard attention no blocks fit into M = 3."
    page.evaluate("location.hash = '#algorithm=flash&N=1000000000000000&d=8&M=1000000000000001'")
    page.wait_for_timeout(50)
    assert page.evaluate("['N', 'M'].map((name) => String(playground.sizes[name]))") == [str(10**15), "3"]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_it_fits(page: Any, width: int, scheme: str) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(UNNAMED) == 0
    small = "[...document.querySelectorAll('button, input, select')].filter((e) => e.offsetHeight < 24).length"
    assert page.evaluate(small) == 0


def test_what_is_not_translated_is_refused() -> None:
    def power(a: int) -> int:
        return a**2

    with pytest.raises(TypeError, match=r"power: a \*\* 2 is not translated"):
        Script().of(power)
    with pytest.raises(TypeError, match=r"N_q / 2 is not translated"):
        expression("N_q / 2", "s")
    assert expression("(T_c + 1) * N_q", "s") == "((s.T_c + 1n) * s.N_q)"


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["playground", "-o", str(tmp_path / "play.html")]) == 0
    assert (tmp_path / "play.html").read_text(encoding="utf-8") == playground.page()
    assert main(["playground", "-o", str(tmp_path / "play.txt")]) == 2
    assert "expected FILE.html" in capsys.readouterr().err

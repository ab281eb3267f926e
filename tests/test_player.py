"""The player in a real browser: headless Chromium from the system, driven by Playwright, with pages opened from disk.

    apt-get install chromium && pip install ".[browser]"

Without either these tests skip, and say what is missing.
"""

from __future__ import annotations

import html
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import Fixed, patterns
from flashsim.trace import Trace
from flashsim.trace.bugs import planted

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this system: apt-get install chromium")

DESK, PHONE = {"width": 1280, "height": 720}, {"width": 390, "height": 844}
Opener = Callable[..., Any]


def recorded(name: str = "flash", n: int = 12, d: int = 4, blocks: tuple[int, int] = (3, 4), **options: Any) -> Trace:
    rng = np.random.default_rng(0)
    Q, K, V = (rng.standard_normal((n, d)).astype(np.float32) * 2 for _ in range(3))
    return flashsim.trace(name, Q, K, V, sizing=Fixed(*blocks, enforced=False), M=4 * d * max(blocks), **options)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Opener]:
    """Save a trace and open its page; at the end, see that it asked for nothing and complained of nothing."""
    contexts: list[Any] = []
    complaints: list[str] = []
    requests: list[str] = []

    def opened(
        trace: Trace, *, at: str = "", versus: Trace | None = None, text: str | None = None, **options: Any
    ) -> Any:
        path = tmp_path / f"page{len(contexts)}.html"
        path.write_text(trace.html(versus=versus) if text is None else text, encoding="utf-8")
        context = browser.new_context(**{"viewport": DESK, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri() + at)
        page.wait_for_selector("html[data-ready], #message:not([hidden])", state="attached")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(tmp_path.as_uri())] == []
    assert len(set(requests)) == len(contexts)


def press(page: Any, key: str, times: int = 1) -> None:
    for _ in range(times):
        page.keyboard.press(key)


def until(page: Any, condition: str) -> None:
    """Wait for a condition: not with Playwright's own waiting, which needs the `eval` that the page forbids."""
    deadline = time.monotonic() + 20
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(20)


def step(page: Any) -> int:
    return int(page.evaluate("player.t"))


def counters(page: Any, view: int = 0) -> dict[str, tuple[int, int]]:
    """Read the HBM table as a person does: reads so far, writes so far, by array."""
    rows = page.locator(".hbm").nth(view).locator("tbody tr").all_inner_texts()
    cells = [row.split("\t") for row in rows]
    return {row[0]: (int(row[2].replace(",", "")), int(row[4].replace(",", ""))) for row in cells}


def state(page: Any) -> str:
    """Return all that a step shows: text and pictures."""
    return str(
        page.evaluate(
            "[...document.querySelectorAll('#views, #where')].map((e) => e.innerHTML.replaceAll(' class=\"\"', '')).join() + "
            "[...document.querySelectorAll('.grid, #sparks')].map((c) => c.toDataURL()).join()"
        )
    )


@pytest.mark.parametrize("name", ["flash", "standard", "q_outer", "split_kv"])
def test_stepping_to_the_end_shows_the_run_s_counts(open_page: Opener, name: str) -> None:
    trace = recorded(name)
    page = open_page(trace)
    press(page, "ArrowRight", len(trace.steps) - 1)
    assert step(page) == len(trace.steps) - 1
    shown = counters(page)
    for array in trace.about.arrays:
        assert shown["ℓ" if array.name == "l" else array.name.replace("l_parts", "ℓparts").replace("_", "")] == (
            array.reads,
            array.writes,
        )
    assert shown["total"] == (trace.events[-1].reads, trace.events[-1].writes)
    assert "They equal the closed form." in page.inner_text(".versus")


def test_every_step_shows_its_counts_line_and_occupancy(open_page: Opener) -> None:
    trace = recorded(causal=True)
    page = open_page(trace)
    for number, at in enumerate(trace.steps):
        last = trace.events[at.last]
        assert counters(page)["total"] == (last.reads, last.writes)
        assert page.inner_text(".fill").startswith(f"{last.occupancy:,} of M = 64")
        assert page.inner_text(".listing .on .number") == str(last.paper_line)
        assert page.inner_text(".now").startswith(f"line {last.paper_line}")
        assert page.inner_text("#where") == f"step {number} of {len(trace.steps) - 1}"
        assert page.locator(".over").is_visible() == (last.occupancy > 64)
        press(page, "ArrowRight")


def test_scrubbing_back_restores(open_page: Opener) -> None:
    page = open_page(recorded(causal=True))
    page.evaluate("player.go(41)")
    before = state(page)
    for key in ("End", "Home", "ArrowDown", "ArrowDown", "ArrowUp"):
        press(page, key)
        assert state(page) != before
    page.locator("#scrub").fill("41")
    assert state(page) == before


def test_shown_values_are_the_tensors(open_page: Opener) -> None:
    """Cells round; what they show on hovering is exact."""
    trace = recorded(causal=True)
    page = open_page(trace)
    steps = [at for at in trace.steps if at.tile in ((0, 0), (2, 1), (3, 2))]
    assert len(steps) == 24
    for at in steps:
        page.evaluate(f"player.go({at.number})")
        for offset, event in enumerate(trace.events[at.first : at.last + 1]):
            assert event.value is not None
            page.locator(".events button").nth(offset).click()
            found = exact_values(page, ".tile td")
            assert np.array_equal(np.array(found, np.float32).reshape(event.value.shape), event.value)
    last = steps[-1]
    page.evaluate(f"player.go({last.number})")
    old, new = last.pairs["O"]
    assert old is not None
    assert new is not None
    found = exact_values(page, ".pairs td[data-tip^='O,']")
    want = np.concatenate([old, new], axis=1)
    assert np.array_equal(np.array(found, np.float32).reshape(want.shape), want)


def exact_values(page: Any, selector: str) -> list[float]:
    tips = page.eval_on_selector_all(selector, "cells => cells.map(cell => cell.dataset.tip)")
    words = [tip.rsplit(": ", 1)[1].replace("−", "-").replace("∞", "inf") for tip in tips]
    return [float(word) for word in words]


def test_all_digits_are_to_be_had_without_a_mouse(open_page: Opener) -> None:
    trace = recorded()
    at = next(s for s in trace.steps if s.label == "line 10" and s.number > 40)
    page = open_page(trace, at=f"#t={at.number}")
    page.focus(".digits")
    press(page, "Enter")
    shown = [float(text.replace("−", "-")) for text in page.locator(".tile td").all_inner_texts()]
    value = trace.events[at.last].value
    assert value is not None
    assert np.array_equal(np.array(shown, np.float32).reshape(value.shape), value)
    page.focus(".grid")
    assert page.inner_text("#tip").startswith(f"tile (i, j) = {at.tile}: current")


def test_the_factor_is_e_to_the_old_less_the_new_maximum(open_page: Opener) -> None:
    trace = recorded()
    number = next(s.number for s in trace.steps if s.rescaled)
    page = open_page(trace, at=f"#t={number}")
    old, new = trace.steps[number].pairs["m"]
    assert old is not None
    assert new is not None
    shown = [float(text) for text in page.locator(".pairs .factor").all_inner_texts()]
    np.testing.assert_allclose(shown, np.exp(old - new)[:, 0], atol=6e-5)


def test_links_to_a_step(open_page: Opener) -> None:
    page = open_page(recorded(), at="#t=23")
    assert step(page) == 23
    page.evaluate("location.hash = '#t=7'")
    until(page, "player.t === 7")
    press(page, "ArrowRight")
    until(page, "location.hash === '#t=8'")
    page.evaluate("location.hash = '#t=100000'")
    until(page, "player.t === player.length - 1")


def test_keys_and_the_next_buttons_land_where_the_trace_says(open_page: Opener) -> None:
    trace = recorded(causal=True)
    steps = trace.steps
    starts = [s.number for s in steps if s.tile and (s.number == 0 or steps[s.number - 1].turn != s.turn)]
    page = open_page(trace)
    for start in starts[:4]:
        press(page, "ArrowDown")
        assert step(page) == start
    press(page, "ArrowUp")
    assert step(page) == starts[2]
    press(page, "Home")
    for want in [s.number for s in steps if s.rescaled][:3]:
        page.click("#next-rescale")
        assert step(page) == want
    press(page, "Home")
    for want in [s.number for s in steps if s.moved][:3]:
        page.click("#next-max")
        assert step(page) == want
    press(page, "Home")
    moves = ("load", "store")
    for want in [s.number for s in steps if any(e.kind in moves for e in trace.events[s.first : s.last + 1])][:4]:
        page.click("#next-hbm")
        assert step(page) == want
    press(page, "End")
    page.click("#next-rescale", force=True)
    assert step(page) == len(steps) - 1
    assert page.inner_text("#said") == "There is none after this step."


def test_it_plays_and_pauses(open_page: Opener) -> None:
    trace = recorded()
    page = open_page(trace)
    page.select_option("#speed", "120")
    page.locator("body").press(" ")
    until(page, "player.t > 5")
    page.locator("body").press(" ")
    assert not page.evaluate("player.playing")
    page.click("#play")
    until(page, "player.t === player.length - 1")
    assert not page.evaluate("player.playing")


def test_the_keyboard_alone_reaches_everything(open_page: Opener) -> None:
    page = open_page(recorded(causal=True), at="#t=46")
    reached = set()
    for _ in range(60):
        press(page, "Tab")
        reached.add(
            page.evaluate(
                "document.activeElement.id || document.activeElement.className || document.activeElement.innerText"
            )
        )
    controls = page.eval_on_selector_all(
        "button, input, select, [tabindex]",
        "all => all.filter(e => e.offsetParent).map(e => e.id || e.className || e.innerText)",
    )
    assert set(controls) - reached == set()
    unnamed = page.eval_on_selector_all(
        "button, input, select, canvas:not([aria-hidden]), section, [role]",
        "all => all.filter(e => !(e.getAttribute('aria-label') || e.innerText.trim() || e.closest('[hidden]')))"
        ".map(e => e.outerHTML)",
    )
    assert unnamed == []
    page.focus(".show-source")
    press(page, "Enter")
    assert page.locator(".source").is_visible()
    assert "S_ij" in page.inner_text(".source") or "on_chip" in page.inner_text(".source .on")


def test_python_source_is_lit_where_the_run_is(open_page: Opener) -> None:
    trace = recorded()
    page = open_page(trace, at="#t=3")
    page.click(".show-source")
    assert page.locator(".source .on").all_inner_texts() == [
        "            S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 10"
    ]


def test_what_is_spoken(open_page: Opener) -> None:
    page = open_page(recorded(causal=True), at="#t=3")
    assert page.inner_text("#said") == "Step 3, line 10, j = 0, i = 0: compute S_ij. SRAM 74 of 64."
    label = page.get_attribute(".grid", "aria-label")
    assert label == "Score matrix of 4 by 3 tiles: current tile row 0, column 0; 0 done, 0 skipped, 11 ahead"
    assert page.get_attribute("#scrub", "aria-valuetext") == "step 3 of 99, line 10"


def test_skipped_and_masked_tiles_are_told_apart(open_page: Opener) -> None:
    trace = recorded("block_sparse", 24, 4, (3, 3), block_mask=patterns.butterfly)
    page = open_page(trace, at="#t=100000")
    skipped = int((~patterns.butterfly(8, 8)).sum())
    assert f"{63 - skipped} done, {skipped} skipped" in (page.get_attribute(".grid", "aria-label") or "")
    assert "skipped" in page.inner_text(".legend")
    page = open_page(recorded(causal=True))
    assert "masked" in page.inner_text(".legend")
    assert "skipped" not in page.inner_text(".legend")


def test_a_tile_visited_thrice_is_done_after_the_third_visit(open_page: Opener) -> None:
    trace = recorded("standard")
    ends = {at.tile: at.number for at in trace.steps if at.tile}  # the last step of each tile
    page = open_page(trace)
    for number in (20, 40, len(trace.steps) - 5):
        page.evaluate(f"player.go({number})")
        done = sum(end < number for end in ends.values())
        assert f" {done} done, " in (page.get_attribute(".grid", "aria-label") or "")
    assert 0 < done < len(ends)


def test_a_chosen_tile_is_left_with_its_step(open_page: Opener) -> None:
    trace = recorded()
    page = open_page(trace, at="#t=2")
    page.locator(".events button").first.click()
    assert page.locator(".events [aria-pressed=true]").inner_text().startswith("load Q")
    press(page, "ArrowRight")
    assert page.locator(".events [aria-pressed=true]").inner_text().startswith("compute S")
    assert page.locator(".tile td").count() == 12


def test_reduced_motion_plays_slowly(open_page: Opener) -> None:
    assert open_page(recorded(), reduced_motion="reduce").input_value("#speed") == "2"
    assert open_page(recorded()).input_value("#speed") == "8"


def test_hovering_tells_numbers(open_page: Opener) -> None:
    page = open_page(recorded(causal=True), at="#t=10")
    box = page.locator(".grid").bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 60)
    assert page.inner_text("#tip").startswith("tile (i, j) = (0, 0): done\nqueries 0 to 2, keys 0 to 3")
    page.hover(".bar > span")
    assert page.inner_text("#tip") == "K[0]: 16 elements, loaded"


def test_two_runs_go_in_step(open_page: Opener) -> None:
    first, second = recorded(causal=True), recorded("q_outer", causal=True)
    page = open_page(first, versus=second, at="#t=30")
    for view, trace in enumerate((first, second)):
        last = trace.events[trace.steps[30].last]
        assert counters(page, view)["total"] == (last.reads, last.writes)
    press(page, "End")
    for view, trace in enumerate((first, second)):
        assert counters(page, view)["total"] == (trace.events[-1].reads, trace.events[-1].writes)
    assert page.locator("#next-difference").is_hidden()


def test_a_planted_bug_s_first_difference_is_found(open_page: Opener) -> None:
    right = recorded()
    with planted("flash", "no_rescale") as known:
        wrong = recorded(known)
    page = open_page(right, versus=wrong)
    changed = page.locator(".source:visible .changed").all_inner_texts()
    assert [text.strip() for text in changed] == ["l_i * exp(m_i - finite(m_i_new)) * O_i", "l_i * O_i"]
    page.click("#next-difference")
    same_until = next(
        s.number
        for s in right.steps
        if not np.array_equal(right.events[s.last].value, wrong.events[s.last].value)  # type: ignore[arg-type]
    )
    assert step(page) == same_until
    assert right.steps[same_until].label == "line 15"


@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["1280×720", "390×844"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_follows_the_colour_scheme(open_page: Opener, viewport: dict[str, int], scheme: str) -> None:
    page = open_page(recorded(causal=True), at="#t=46", viewport=viewport, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(n) for n in ground[4:-1].split(",")) < 380) == (scheme == "dark")
    for part in (".grid", ".sram", ".listing .on", "#play", "#scrub"):
        assert page.locator(part).first.is_visible()
    transport = page.locator("#transport").bounding_box()
    assert transport["y"] + transport["height"] <= viewport["height"] + 1
    assert transport["height"] < viewport["height"] / 3
    two = open_page(recorded(), versus=recorded("standard"), viewport=viewport, color_scheme=scheme)
    assert two.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


def test_fifteen_hundred_steps_load_and_step_in_time(open_page: Opener) -> None:
    trace = recorded("flash_basic", 256, 16, (16, 16))
    assert len(trace.steps) == 1553
    page = open_page(trace)
    opened, took = 10_000.0, 10_000.0
    for _ in range(3):  # the best of three, as the machine may be busy
        page.reload()
        page.wait_for_selector("html[data-ready]", state="attached")
        opened = min(opened, float(page.evaluate("document.documentElement.dataset.ready")))
        took = min(took, float(page.evaluate(STEP_TIME)))
    assert opened < 1000, f"opened in {opened} ms"
    assert took < 16, f"a step took {took} ms"


STEP_TIME = """() => {
  const times = [];
  for (let t = 700; t < 760; t++) {
    const start = performance.now();
    player.go(t);
    document.body.offsetHeight;  // lay out what changed
    times.push(performance.now() - start);
  }
  return times.sort((a, b) => a - b)[30];
}"""


def test_without_values_it_says_so_and_counts(open_page: Opener) -> None:
    trace = recorded("flash", 256, 4, (16, 16))
    page = open_page(trace, at="#t=100000")
    assert "steps are more than 2,000" in page.inner_text(".notes")
    assert counters(page)["total"] == (trace.events[-1].reads, trace.events[-1].writes)
    press(page, "Home")
    page.click("#next-rescale")
    assert step(page) == next(s.number for s in trace.steps if s.rescaled)


def test_it_runs_in_jupyter_s_frame(open_page: Opener) -> None:
    trace = recorded()
    page = open_page(trace, text=f"<!DOCTYPE html><html data-ready><body>{trace._repr_html_()}</body></html>")
    frame = page.frame_locator("iframe")
    frame.locator("#forward").click()
    assert frame.locator("#where").inner_text() == f"step 1 of {len(trace.steps) - 1}"
    page.wait_for_timeout(400)  # until the address would change


def test_a_damaged_trace_is_said(browser: Any, tmp_path: Path) -> None:
    text = recorded().html()
    start = text.index('type="text/plain">') + 40
    path = tmp_path / "damaged.html"
    path.write_text(text[:start] + text[start + 400 :], encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector("#message:not([hidden])")
    assert "cannot show its trace" in page.inner_text("#message")
    page.close()


def test_titles_are_escaped(open_page: Opener) -> None:
    from dataclasses import replace

    trace = recorded()
    nasty = "<b onclick=x>&\"'"
    page = open_page(replace(trace, about=replace(trace.about, title=nasty, options=nasty, command=nasty)))
    assert page.inner_text("h1") == nasty
    assert page.title() == f"{nasty}, step by step"
    assert html.escape(nasty) not in page.inner_text("h1")

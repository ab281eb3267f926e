"""Pages on a lecture hall's screen, on a phone, and as two runs side by side at a desk."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flashsim.learn import gallery, playground
from flashsim.learn.gallery.files import index
from flashsim.plots import FIGURES
from flashsim.tracing.page import page_of
from tests.conftest import DESK, PHONE, until
from tests.helpers.recorded import RECORDED, recorded

HALL = {"width": 1920, "height": 1080}
Opener = Callable[..., Any]
# a slide's width in inches, and the size of a figure's text
SLIDE = 13.33
POINTS = 8


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Opener]:
    pages: list[Any] = []

    def show(text: str, viewport: dict[str, int], index: str = "") -> Any:
        path = tmp_path / f"{len(pages)}.html"
        path.write_text(text, encoding="utf-8")
        page = browser.new_page(viewport=viewport)
        pages.append(page)
        page.goto(path.as_uri() + index)
        if 'id="trace"' in text:
            page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield show
    for page in pages:
        page.close()


@cache
def lesson() -> str:
    return dict(gallery.files(["flash_basic"]))["flash_basic.html"]


def box(page: Any, selector: str) -> dict[str, float]:
    result: dict[str, float] = page.locator(selector).first.bounding_box()
    return result


def test_all_grows_with_the_screen(opened: Opener) -> None:
    desk = opened(lesson(), DESK, "#t=20")
    hall = opened(lesson(), HALL, "#t=20")
    for part in (".tile td", ".listing li.on", ".under .legend li", "#play", ".grid"):
        small = box(desk, part)
        large = box(hall, part)
        for side in ("x", "y", "width", "height"):
            assert large[side] == pytest.approx(1.5 * small[side], abs=5), (part, side)
    pixels = "(canvas => [canvas.width, canvas.clientWidth])(document.querySelector('.grid'))"
    drawn, wide = hall.evaluate(pixels)
    assert drawn == pytest.approx(1.5 * wide, abs=2)  # as sharp as the screen


def test_the_lessons_list_grows_with_the_screen(opened: Opener) -> None:
    lessons = index([*gallery.pages().values()])
    desk = opened(lessons, DESK)
    hall = opened(lessons, HALL)
    for part in ("h1", "main svg", "main .faint", "article h2"):
        small = box(desk, part)["height"]
        large = box(hall, part)["height"]
        assert large == pytest.approx(1.5 * small, abs=1), part
    hall.set_viewport_size(DESK)
    until(hall, "getComputedStyle(document.body).zoom === '1'")


SMALLEST = """(() => {
  const zoom = parseFloat(getComputedStyle(document.body).zoom);
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const sizes = [];
  while (texts.nextNode()) {
    const around = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || !around.checkVisibility()) continue;
    sizes.push(parseFloat(getComputedStyle(around).fontSize));
  }
  return zoom * Math.min(...sizes);
})()"""


@pytest.mark.parametrize("name", ["flash_basic", "pinned"])
def test_no_word_in_a_hall_is_below_eleven_pixels(name: str, opened: Opener) -> None:
    """Nor an index of an index: the "new" of m_new in an exponent. One run and two."""
    page = opened(dict(gallery.files([name]))[f"{name}.html"], HALL, "#t=0")
    for step in (0, 28, 31):
        page.evaluate(f"player.go({step})")
        assert page.evaluate(SMALLEST) >= 11, step


def test_a_mouse_finds_there_what_it_finds_at_a_desk(opened: Opener) -> None:
    messages = []
    for viewport, times in ((DESK, 1), (HALL, 1.5)):
        page = opened(lesson(), viewport, "#t=20")
        grid = box(page, ".grid")
        x = grid["x"] + 0.35 * grid["width"]
        page.mouse.move(x, grid["y"] + 0.75 * grid["height"])
        until(page, "!document.querySelector('#tip').hidden")
        assert 0 < box(page, "#tip")["x"] - x < 25 * times
        messages.append(page.locator("#tip").inner_text())
        sparks = box(page, "#sparks")
        middle_x = sparks["x"] + sparks["width"] / 2
        middle_y = sparks["y"] + sparks["height"] / 2
        page.mouse.click(middle_x, middle_y)
        messages.append(page.locator("#where").inner_text())
    assert messages[:2] == messages[2:]
    assert messages[1] in ("step 28 of 57", "step 29 of 57")


def test_a_presenter_s_keys_go_by_the_list(opened: Opener) -> None:
    page = opened(lesson(), HALL, "#t=0&panel=tiles&steps=7,3,30")
    output = []
    for key in ("PageDown", "PageDown", "PageDown", "PageDown", "PageUp"):
        page.keyboard.press(key)
        output.append(page.evaluate("Number(document.querySelector('#scrub').value)"))
    assert output == [3, 7, 30, 30, 7]
    until(page, "location.hash === '#t=7&panel=tiles&steps=3,7,30'")
    page = opened(lesson(), HALL, "#t=0")  # without a list: the lesson's moments
    links = page.eval_on_selector_all(".moments a", "all => all.map(a => a.hash)")
    moments = [int(link.removeprefix("#t=")) for link in links]
    page.keyboard.press("PageDown")
    assert page.evaluate("Number(document.querySelector('#scrub').value)") == min(
        step for step in moments if step > 0
    )


@pytest.mark.parametrize("chart", FIGURES.values(), ids=FIGURES)
def test_text_on_a_slide_is_of_ten_points_at_least(chart: Any) -> None:
    width = chart.slide or max(7.2, 3.5 * chart.panels)
    assert POINTS * SLIDE / width >= 10


def test_a_phone_shows_the_key_the_picture_and_whole_numbers(opened: Opener) -> None:
    page = opened(lesson(), PHONE)
    assert not page.evaluate("document.querySelector('#lesson').open")  # its text is folded
    bar = box(page, "#transport")["y"]
    for part in (".listing", ".grid", ".under .legend"):
        result = box(page, part)
        assert result["y"] + result["height"] <= bar, part
    page = opened(lesson(), PHONE, "#t=24")
    ends = page.eval_on_selector_all(
        ".pairs td", "all => all.map(one => one.getBoundingClientRect().right)"
    )
    assert 0 < max(ends) <= 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    lines = page.eval_on_selector_all(
        ".now .symbol", "all => all.map(one => one.getClientRects().length)"
    )
    assert set(lines) == {1}  # no symbol is broken over two


def test_on_a_phone_a_run_s_own_step_is_a_word_of_its_own(opened: Opener) -> None:
    page = opened(page_of(recorded("flash_basic"), recorded("q_outer"))[0], PHONE, "#t=24")
    assert " its step 24 of " in page.locator(".now").first.text_content()


def test_the_playground_s_total_stays_in_sight_on_a_phone(opened: Opener) -> None:
    page = opened(playground.page(), PHONE)
    output = page.locator("#sum")
    desk = opened(playground.page(), DESK)
    total, _, text = output.inner_text().partition("; ")
    assert total in desk.locator("#accesses").inner_text()
    assert text.removeprefix("SRAM ").removesuffix(" of M") in desk.locator("#peak").inner_text()
    assert box(page, "#sum")["y"] + box(page, "#sum")["height"] == pytest.approx(844, abs=1)
    page.evaluate("window.scrollTo(0, 300)")
    assert box(page, "#sum")["y"] + box(page, "#sum")["height"] == pytest.approx(844, abs=1)
    assert not desk.locator("#sum").is_visible()


@pytest.mark.parametrize("backward", [False, True])
def test_two_runs_have_a_key_and_a_total(backward: bool, opened: Opener) -> None:
    direction, names = (
        ("backward", ("q_outer", "q_outer_two_pass"))
        if backward
        else ("forward", ("flash_basic", "q_outer"))
    )
    first, second = map(RECORDED[direction], names)
    page = opened(page_of(first, second)[0], DESK, "#t=24")
    bar = box(page, "#transport")["y"]
    for view in page.locator(".view").all():
        assert view.locator(".legend.key").is_visible()
        assert "current" in view.locator(".legend.key").inner_text()
        memory = view.locator(".memory").bounding_box()
        total = view.locator(".hbm .sum td").last.bounding_box()
        foot_of_memory = memory["y"] + memory["height"]
        assert total["y"] + total["height"] <= min(foot_of_memory + 1, bar)
        if not backward:  # whose eleven arrays scroll, below the total
            last = view.locator(".hbm tbody tr:not(.sum)").last.bounding_box()
            assert last["y"] + last["height"] <= total["y"] + 1

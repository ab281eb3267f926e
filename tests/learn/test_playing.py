"""A student's file is played beside the right run, and the page says where the two part."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flashsim.cli import main
from flashsim.learn.exercises import exercises
from flashsim.learn.exercises.grading import start
from tests.helpers.exercise_solutions import SOLUTIONS

Shown = Callable[[], Any]
PLAYED = {name: task for name, task in exercises().items() if task.as_algorithm}


@pytest.fixture
def open_player(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Open the page that `flashsim step FILE` writes of a text, and return what it is asked."""
    monkeypatch.chdir(tmp_path)
    opened = []

    def show(name: str, text: str, *options: str) -> Any:
        Path(exercises()[name].file).write_text(text, encoding="utf-8")
        assert main(["step", exercises()[name].file, *options, "-o", "page.html"]) == 0
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        opened.append(page)
        page.goto((tmp_path / "page.html").as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield show
    for page in opened:
        page.close()


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", "--N 10 --d 3 --blocks 4 3"])
@pytest.mark.parametrize("name", sorted(PLAYED.keys() & SOLUTIONS.keys()))
def test_a_solution_parts_nowhere(name: str, options: str, open_player: Any) -> None:
    page = open_player(name, SOLUTIONS[name], *options.split())
    assert page.locator("#next-difference").is_hidden()
    assert page.locator(".source:visible .changed").count() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "right", "wrong", "parts"),
    [
        ("inner_loop", "l_i * exp(m_i - m_new) * O_i", "l_i * O_i", "O_new = on_chip("),
        ("inner_loop", "sram.loop(blocks.T_c)", "sram.loop(blocks.T_c - 1)", "sram.store(m[i]"),
        ("inner_loop", "Q_i @ K_j.T", "2 * (Q_i @ K_j.T)", "S_ij"),
        ("inner_loop", "sram.store(m[i], m_new)", "sram.store(m[i], m_tilde)", "sram.store(m[i]"),
        ("inner_loop", "            sram.store(l[i], l_new)\n", "", "sram.load(Q[i]"),
        ("divide_once", "exp(m_i - m_new) * O_i + P_ij", "O_i + P_ij", "O_i = on_chip(O_i"),
        ("divide_once", "O_i = on_chip(O_i / l_i, over=O_i)", "pass", "sram.store(O[i]"),
    ],
)
def test_a_mistake_parts_at_its_line(
    name: str, right: str, wrong: str, parts: str, open_player: Any
) -> None:
    assert SOLUTIONS[name].count(right) == 1
    page = open_player(name, SOLUTIONS[name].replace(right, wrong))
    page.click("#next-difference")
    now = page.locator(".view").first.locator(".now").inner_text()
    assert parts in now, now
    mine = page.locator(".view").first
    its = page.locator(".view").last
    assert its.locator(".differs, .changed").count() == 0  # the right run's numbers are right
    if "O_new" in parts:
        assert mine.locator(".pairs .differs, .tile .differs").count() > 0


def test_the_planted_bug_parts_at_line_12(open_player: Any) -> None:
    exercise = exercises()["planted_bug"]
    page = open_player("planted_bug", exercise.starting_text())
    page.click("#next-difference")
    assert page.locator(".view").first.locator(".now b").first.inner_text() == "line 12"
    changed = page.locator(".source:visible .changed").all_inner_texts()
    assert any("l_i * exp(m_tilde_ij - m_i_new) * O_i" in line for line in changed)


def test_what_cannot_be_played_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    start("5", tmp_path)
    start("1", tmp_path)
    Path("06_x.py").write_text(
        SOLUTIONS["divide_once"].replace("m_i = sram.full", "m_i = sram.ful"), encoding="utf-8"
    )
    for typed, message in {
        "05_inner_loop.py": "05_inner_loop.py cannot be played yet: 8 holes are left, at lines ",
        "01_load_a_tile.py": "is of exercise 1, which is not a whole algorithm; 5, 6, 13 can be played",
        "06_x.py": "06_x.py cannot be played yet: Line 8: AttributeError",
        "nothing.py": "nothing.py is not there; expected a file of `flashsim exercise start`",
        "06_x.py --bug no_mask": "leave out --bug and --backward",
    }.items():
        assert main(["step", *typed.split()]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert message in err
        assert err.count("\n") == 1
    assert main(["exercise", "check", "05_inner_loop.py"]) == 1
    assert (
        "Where it parts from the right run: flashsim step 05_inner_loop.py --open"
        in capsys.readouterr().out
    )

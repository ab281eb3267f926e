"""The playground in a browser: its JavaScript, made from theory's Python, says what theory says;
and it is used by hand.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import flashsim
from flashsim import theory
from flashsim.attention.inputs import REFERENCE_D, REFERENCE_N
from flashsim.cli import main
from flashsim.learn import playground
from flashsim.learn.playground.javascript import Script, Symbol, expression, formulas_of
from tests.conftest import DESK


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The page, opened once; at the end, see that it asked for nothing and complained of
    nothing.
    """
    path = tmp_path_factory.mktemp("playground") / "page.html"
    path.write_text(playground.page(), encoding="utf-8")
    page = browser.new_page(viewport=DESK)
    events: list[str] = []
    page.on("console", lambda message: events.append(message.text))
    page.on("pageerror", lambda error: events.append(str(error)))
    page.on("request", lambda request: events.append(request.url))
    page.goto(path.as_uri())
    yield page
    page.close()
    assert events == [path.as_uri()]


COUNTED = """(settings) => settings.map(([name, direction, ...sizes]) => {
  const form = FORMS.find((one) => one.name === name && one.direction === direction), causal = sizes.pop();
  const [N_q, N_k, d, M, B_r, B_c] = sizes.map(BigInt), { arrays, peak } = costs(form, { N_q, N_k, d, M, B_r, B_c, causal });
  const moved = Object.fromEntries(arrays.map(([array, reads, writes]) => [array, [reads, writes].map(String)]));
  const blocks = [true, false].map((fit) => lineOne(form, { N_q, N_k, d, M, causal }, fit));
  return [moved, String(peak), ...blocks.map(({ B_r, B_c }) => [B_r, B_c].map(String))];
})"""
UNNAMED = """[...document.querySelectorAll('button, input, select, canvas, section')]
  .filter((e) => !(e.ariaLabel || e.labels?.length || e.innerText.trim())).length"""


def test_it_says_what_theory_says_at_a_thousand_settings(page: Any) -> None:
    """At sizes from 1 to beyond 2^53 / N², so that counts are beyond what a JavaScript number holds
    exactly.

    Of a third, queries and keys are as many; every other is causal, and then half of the rest have
    nearly as many.
    """
    rng = random.Random(0)
    forms = page.evaluate("FORMS.map(({name, direction}) => [name, direction])")
    assert {("flash", "forward"), ("q_outer", "forward"), ("standard", "backward")} <= {
        tuple(form) for form in forms
    }
    settings = []
    for n in range(1000):
        top = 40 if n % 10 == 0 else 14
        N_q, N_k, d, M, B_r, B_c = (
            int(2 ** rng.uniform(0, most)) for most in (top, top, 9, 22, 12, 12)
        )
        N_k = (N_q, N_k, max(N_q + rng.randint(-9, 9), 1))[rng.randrange(3)]
        settings.append((*forms[n % len(forms)], N_q, N_k, d, M, B_r, B_c, rng.random() < 0.5))
    result = page.evaluate(
        COUNTED,
        [
            [*names, *map(str, sizes), causal]
            for *both, causal in settings
            for names, sizes in [(both[:2], both[2:])]
        ],
    )
    largest = 0
    for setting, (arrays, peak, fit, paper) in zip(settings, result, strict=True):
        name, direction, N_q, N_k, d, M, B_r, B_c, causal = setting
        sizes: dict[str, Any] = {
            "N_q": N_q,
            "N_k": N_k,
            "d": d,
            "M": M,
            "direction": direction,
            "causal": causal,
        }
        if name == "block_sparse":
            sizes["block_mask"] = "live"
        exact = theory.exact(name, **sizes, blocks=(B_r, B_c))
        assert arrays == {
            array: [str(a.reads), str(a.writes)] for array, a in exact.hbm.by_array.items()
        }, setting
        assert int(peak) == exact.sram.peak, setting
        expected = theory.exact(name, **sizes, sizing="paper").blocks
        assert [int(size) for size in paper] == [expected.B_r, expected.B_c]
        if max(N_q, N_k) < 2000:
            expected = theory.exact(name, **sizes, sizing="fit").blocks
            assert [int(size) for size in fit] == [expected.B_r, expected.B_c], (name, sizes)
        largest = max(largest, exact.accesses)
    assert largest > 2**60


def test_sliders_and_numbers_redraw_at_once(page: Any) -> None:
    page.select_option("#algorithm", "0")
    for name, value in (
        ("N_q", "12"),
        ("N_k", "12"),
        ("d", "4"),
        ("M", "128"),
        ("B_r", "4"),
        ("B_c", "4"),
    ):
        page.fill(f"input[type=number][aria-label^='{name},']", value)
    exact = theory.exact("flash", N=12, d=4, M=128, blocks=(4, 4))
    assert (
        page.inner_text("#peak")
        == f": at most {exact.sram.peak} of M = 128, {exact.sram.peak / 1.28:.1f}%"
    )
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
    assert page.evaluate("['N_q', 'M'].map((name) => String(playground.sizes[name]))") == [
        str(10**15),
        "3",
    ]


def test_it_begins_with_blocks_that_fit_and_keeps_to_them(page: Any) -> None:
    """Until blocks are given, they are `forward`'s: whatever size changes, and for each
    algorithm.
    """
    page.evaluate("location.hash = '#algorithm=flash&N=300&d=8&M=900'")
    page.wait_for_timeout(50)
    for name, N, M in (
        ("flash", 300, 900),
        ("flash", 300, 500),
        ("flash", 77, 500),
        ("q_outer", 77, 500),
    ):
        page.select_option(
            "#algorithm", str(page.evaluate(f"FORMS.findIndex((form) => form.name === {name!r})"))
        )
        for size, value in (("N_q", N), ("N_k", N), ("M", M)):
            page.fill(f"input[type=number][aria-label^='{size},']", str(value))
        exact = theory.exact(name, N=N, d=8, M=M)
        assert f"tiles of {exact.blocks.B_r} × {exact.blocks.B_c}" in page.inner_text("#tiles")
        sums = page.locator("#accesses tbody tr").all_inner_texts()[-1].split("\t")[1:3]
        assert [int(each.replace(",", "")) for each in sums] == [exact.reads, exact.writes]


def test_it_refuses_what_a_run_refuses(page: Any) -> None:
    """Blocks that are given and do not fit have no accesses to show; line 1's, asked for by
    name, say what they are over M.
    """
    sizes: dict[str, Any] = {"N": 300, "d": 8, "M": 200}
    page.evaluate("location.hash = '#algorithm=flash&N=300&d=8&M=200&B_r=8&B_c=40'")
    page.wait_for_timeout(50)
    with pytest.raises(flashsim.SramOverflow):
        flashsim.count("flash", **sizes, blocks=(8, 40))
    over = theory.exact("flash", **sizes, blocks=(8, 40)).sram.over
    message = f"A run refuses these blocks: they need {over} elements more than M = 200."
    assert page.locator("#accesses tbody tr").all_inner_texts() == [message]
    assert page.inner_text("#versus") == ""
    assert page.evaluate("find('#sum').textContent").startswith("no run; ")
    page.wait_for_timeout(350)
    assert page.inner_text("#said").startswith("no run; ")
    page.click("#paper")
    paper = theory.exact("flash", **sizes, sizing="paper")
    assert paper.sram.over
    assert f"{paper.sram.over} over M, as line 1 is printed" in page.inner_text("#peak")
    assert (
        page.locator("#accesses tbody tr").all_inner_texts()[-1].split("\t")[1]
        == f"{paper.reads:,}"
    )
    page.wait_for_timeout(350)
    assert "sizing=paper" in page.evaluate("location.hash")
    page.fill("input[type=number][aria-label^='B_c,']", str(paper.blocks.B_c))  # now they are given
    page.fill("input[type=number][aria-label^='B_r,']", str(paper.blocks.B_r - 1))
    page.fill("input[type=number][aria-label^='B_r,']", str(paper.blocks.B_r))
    assert "a run refuses these blocks" in page.inner_text("#peak")
    page.click("#fit")
    assert "%" in page.inner_text("#peak")
    assert "too many" not in page.inner_text("#peak")


def test_every_step_of_a_slider_is_another_size(page: Any) -> None:
    """From 2 the arrow keys lead to 1, too: with two steps of one size they would lead back."""
    page.fill("input[type=number][aria-label^='B_r,']", "4")
    page.focus("input[type=range][aria-label^='B_r,']")
    for key, sizes in (
        ("ArrowLeft", ["3", "2", "1", "1"]),
        ("ArrowRight", ["2", "3", "4", "6", "8", "12"]),
    ):
        for size in sizes:
            page.keyboard.press(key)
            assert page.input_value("input[type=number][aria-label^='B_r,']") == size
    page.keyboard.press("End")
    assert page.input_value("input[type=number][aria-label^='B_r,']") == str(2**14)


def test_a_causal_mask_is_a_box_to_tick(page: Any) -> None:
    page.evaluate("location.hash = '#algorithm=q_outer&N_q=6&N_k=9&d=4&M=4000&B_r=2&B_c=3'")
    page.wait_for_timeout(50)
    options: dict[str, Any] = {"N_q": 6, "N_k": 9, "d": 4, "M": 4000, "blocks": (2, 3)}
    for causal in (False, True):
        page.set_checked("#causal", causal)
        exact = theory.exact("q_outer", **options, causal=causal)
        assert page.locator("#accesses tbody tr.sum").inner_text().split("\t")[1] == str(
            exact.reads
        )
        assert ("without the mask" in page.inner_text("#accesses")) == causal
    page.wait_for_timeout(350)
    assert "causal=true" in page.evaluate("location.hash")
    page.set_checked("#causal", False)


def test_forms_are_traced_in_symbols() -> None:
    q_outer = formulas_of(theory.form_of("q_outer", "forward"))
    assert q_outer["K"] == ("(s.tiles.C * s.d)", "0n")
    assert q_outer["O"] == ("0n", "(s.N_q * s.d_v)")
    with pytest.raises(TypeError, match=r"whether .* is true is not known"):
        bool(Symbol("s.N_q"))


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_it_fits(page: Any, width: int, scheme: str) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(UNNAMED) == 0
    small = (
        "[...document.querySelectorAll('button, input, select')].filter((e) => e.offsetHeight < "
        "24).length"
    )
    assert page.evaluate(small) == 0


def test_what_is_not_translated_is_refused() -> None:
    def power(a: int) -> int:
        return a**2

    with pytest.raises(
        TypeError, match=r"power: a \*\* 2 is not translated .*; expected assignments"
    ):
        Script().of(power)

    def enclosed(a: int) -> int:
        return a + power(a)

    with pytest.raises(TypeError, match=r"enclosed: power is not known where"):
        Script().of(enclosed)
    with pytest.raises(TypeError, match="unsupported operand"):
        expression("N_q / 2", "s")
    assert expression("(T_c + 1) * N_q", "s") == "((s.T_c + 1n) * s.N_q)"


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["playground", "-o", str(tmp_path / "play.html")]) == 0
    assert (tmp_path / "play.html").read_text(encoding="utf-8") == playground.page()
    assert main(["playground", "-o", str(tmp_path / "play.txt")]) == 2
    assert "expected FILE.html" in capsys.readouterr().err


def test_it_begins_at_the_reference_and_a_slider_of_M_over_d2_ends_at_the_papers_figure_2(
    page: Any,
) -> None:
    """What is saved, by count, at both ends, and what is said of it; the reference is `flashsim
    count`'s default.
    """
    options: dict[str, Any] = {"N": REFERENCE_N, "d": REFERENCE_D, "sizing": "fit"}
    begun = page.evaluate("Object.entries(REFERENCE).map(([name, size]) => [name, Number(size)])")
    M = dict(begun)["M"]
    assert dict(begun) == {"N_q": REFERENCE_N, "N_k": REFERENCE_N, "d": REFERENCE_D, "M": 25_600}
    page.evaluate(f"location.hash = '#algorithm=flash&N={REFERENCE_N}&d={REFERENCE_D}&M={M}'")
    page.wait_for_timeout(50)
    page.click("#fit")
    for M in (25_600, 98_304):
        standard, flash = (
            theory.exact(name, **options, M=M).accesses for name in ("standard", "flash")
        )
        message = page.inner_text("#versus")
        assert f"makes {standard:,}: {1000 * standard // flash / 1000:g} times" in message
        assert f"The factor follows M/d², here {M / REFERENCE_D**2:g}." in message
        assert page.inner_text("#share") == f"{M / REFERENCE_D**2:g}"
        assert ("the paper’s Figure 2" in message) == (M == 98_304)
        page.focus("#saved")
        page.keyboard.press("End")
    assert page.evaluate("String(playground.sizes.M)") == "98304"
    assert "too many" not in page.inner_text("#peak")

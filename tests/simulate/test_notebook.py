"""At a prompt and in a notebook: what `import flashsim` reaches, what help begins with, and how
results show.
"""

import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import flashsim
import flashsim.analysis.proving
import flashsim.memory.traffic
from flashsim.drawing.proof import picture
from flashsim.drawing.style import Panels, column_figure
from flashsim.plots import plot_run

Q, K, V = np.random.default_rng(0).normal(size=(3, 9, 4)).astype(np.float32)
TILES: dict[str, Any] = {"M": 200, "blocks": (4, 5)}
LATER = {
    "cache": "hardware.cache",
    "machines": "hardware.machines",
    "observers": "tracing.observers",
    "plots": "plots",
    "testing": "testing",
    "tune": "analysis.tune",
}


def test_modules_are_there_once_they_are_asked_for() -> None:
    assert {*LATER, "load_trace", "forward", "__version__"} <= {*dir(flashsim)}
    for name, module in LATER.items():
        assert getattr(flashsim, name) is sys.modules[f"flashsim.{module}"]
    with pytest.raises(AttributeError, match=r"^module 'flashsim' has no attribute 'plot'$"):
        _ = flashsim.plot


def test_help_begins_with_five_lines_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    documented = flashsim.__doc__ or ""
    indented = [line.strip() for line in documented.splitlines() if line.startswith("    ")]
    lines = indented[:5]
    inputs = {"flashsim": flashsim, "numpy": np}
    exec("\n".join(indented[5:]), inputs)
    assert all(line.startswith("flashsim.") for line in lines)
    assert max(map(len, documented.splitlines()[1:])) <= 80
    for line in lines:
        few = line.replace("Spec()", "Spec(), max_examples=3")
        assert eval(few, inputs) is not None, line
    assert (tmp_path / "flash.html").exists()


def test_results_show_in_a_line() -> None:
    run = flashsim.forward("flash", Q, K, V, **TILES)
    tally = flashsim.count("flash", N=9, d=4, **TILES)
    costs = (
        f"{run.hbm.accesses:,} HBM accesses, blocks 4 × 5 (given), SRAM peak {run.sram.peak:,} of "
        "M = 200)"
    )
    assert repr(run) == f"Result('flash': O (9, 4) float32, {costs}"
    assert repr(tally) == f"Result('flash': {costs}"
    gradients = flashsim.backward("flash", run, run.O, M=1000)
    assert repr(gradients).startswith(
        "Result('flash', backward: dQ (9, 4) float32, dK (9, 4) float32, dV (9, 4) float32, "
    )
    assert repr(run.hbm).startswith(
        f"Traffic({run.hbm.accesses:,} accesses, {run.hbm.reads:,} of them reads: Q 72, K 36,"
    )
    traced = flashsim.trace("flash", Q, K, V, blocks=(4, 5))
    assert re.fullmatch(
        r"Trace\('flash', forward: \d+ events, N_q = 9, N_k = 9, d = 4, d_v = 4, blocks 4 × 5\)",
        repr(traced),
    )


def test_a_peak_above_m_says_by_how_much() -> None:
    tally = flashsim.count("flash", N=9, d=4, M=50, sizing="paper")
    assert tally.sram.over == tally.sram.peak - 50 > 0
    assert f"SRAM peak {tally.sram.peak}, {tally.sram.over} over M = 50)" in repr(tally)
    assert flashsim.count("flash", N=9, d=4, M=50).sram.over == 0


def test_results_are_tables_in_a_notebook() -> None:
    run = flashsim.forward("flash", Q, K, V, **TILES)
    tally = flashsim.count("flash", N=9, d=4, **TILES)
    back = flashsim.backward("flash", run, run.O, M=1000)
    for output in (run, tally, run.hbm, back):
        traffic = output if isinstance(output, flashsim.memory.traffic.Traffic) else output.hbm
        result = re.findall(r"<tr>(.*?)</tr>", output._repr_html_())[1:]
        rows = [tuple(re.findall(r"<td>(.*?)</td>", row)) for row in result]
        assert rows[-1] == (
            "total",
            *(f"{n:,}" for n in (traffic.reads, traffic.writes, traffic.accesses, traffic.bytes)),
        )
        assert {row[0]: row[1] for row in rows[:-1]} == {
            name: f"{a.reads:,}" for name, a in traffic.by_array.items()
        }
    assert f"peak {run.sram.peak} of M" in run._repr_html_()
    program = replace(tally.plan.program, name="<b>")
    named = replace(tally, plan=replace(tally.plan, program=program))
    assert "<b>" not in named._repr_html_()


def rows_of(output: Any) -> dict[str, list[str]]:
    result = re.findall(r"<tr>(.*?)</tr>", output._repr_html_())[1:]
    cells = [re.findall(r"<td>(.*?)</td>", row) for row in result]
    return {first: rest for first, *rest in cells}


def test_what_is_proved_tuned_and_exact_shows_too() -> None:
    proof = flashsim.prove(N=256, d=16, M=2000)
    assert proof.best is not None
    assert f"no schedule moves less than {proof.bound.accesses:,} elements" in repr(proof)
    assert f"moves {proof.best.accesses:,}, {proof.ratio:.3f} × that" in repr(proof)
    rows = rows_of(proof)
    assert rows["lower bound"][0] == f"{proof.bound.accesses:,}"
    assert [f"{proof.best.accesses:,}", f"{proof.ratio:.3f}"] in rows.values()

    tuned = flashsim.tune.tune(N=256, d=16, M=2000)
    assert f"{tuned.best.algorithm!r} in blocks of {tuned.best.blocks.B_r} × " in repr(tuned)
    assert f"the lower bound {tuned.bound:,}" in repr(tuned)
    rows = rows_of(tuned)
    assert next(iter(rows)) == tuned.best.algorithm
    assert {name: cells[2] for name, cells in rows.items()} == {
        name: f"{choice.accesses:,}" for name, choice in tuned.by_loops.items()
    }

    exact = flashsim.theory.exact("flash", N=9, d=4, **TILES)
    tally = flashsim.count("flash", N=9, d=4, **TILES)
    assert repr(exact) == (
        f"Exact('flash': {tally.hbm.accesses:,} HBM accesses, blocks 4 × 5 (given), {tally.sram})"
    )
    assert rows_of(exact) == rows_of(tally)

    result = flashsim.optimum(N=2, d=2, M=40)
    assert f"{result.lower:,} elements, the optimum" in repr(result)
    assert rows_of(result)["no schedule moves less than"] == [f"{result.lower:,}"]
    for output in (proof, tuned, exact, result):
        assert len(repr(output).splitlines()) == 1


def test_a_plot_shows_in_a_notebook_where_pyplot_is_not_imported() -> None:
    run = flashsim.forward("flash", Q, K, V)
    tally = flashsim.count("flash", N=9, d=4)
    panels = Panels(column_figure(1), 2, 1)
    drawn = run.plot()
    output: list[Any] = [drawn, panels, panels[0].figure]
    for ax in output:
        assert ax._repr_png_().startswith(b"\x89PNG")
    assert {text.get_text() for text in drawn.texts} >= {f"flash: {run.hbm.accesses:,}"}
    mine = column_figure(2).subplots()
    assert plot_run({"flash": run}, mine) is mine
    assert tally.plot(mine) is mine


SIZES: list[dict[str, Any]] = [
    {"N": 4096, "d": 64, "M": 25_600},
    {"N": 256, "d": 16, "M": 2000},
    {"N": 50, "d": 8, "M": 300},  # pairs kept are the better case of G
    {"N": 256, "d": 64, "M": 2000},  # the combined bound
    {"N": 256, "d": 64, "M": 2000, "direction": "backward"},
    {"N": 256, "d": 16, "M": 2},  # nothing fits
    {"N": 1000, "d": 16, "M": 1500, "causal": True},
]


@cache
def proved(index: int) -> flashsim.analysis.proving.Proof:
    return flashsim.prove(**SIZES[index])


def drawn(proof: flashsim.analysis.proving.Proof) -> tuple[ElementTree.Element, list[float], str]:
    """Return a proof's picture, the widths of its bars, and its words."""
    html = proof._repr_html_()
    svg = ElementTree.fromstring(html[html.index("<svg") : html.index("</svg>") + 6])
    rectangles = [rect for rect in svg.iter("rect") if rect.get("height") == "18"]
    bars = [float(rect.get("width", 0)) for rect in rectangles]
    return svg, bars, " ".join(text.text or "" for text in svg.iter("text"))


@pytest.mark.parametrize("sizes", range(len(SIZES)))
def test_a_proof_s_picture_is_to_scale(sizes: int) -> None:
    """The bound and the schedule to one scale, the phases' ends where they are, what is on chip
    beside what is read.
    """
    proof = proved(sizes)
    index = proof.bound
    best = proof.best
    svg, (bound, *more), text = drawn(proof)
    assert max(bound, *more) == 660
    on_chip, read = more[-2:]
    assert on_chip / (on_chip + read) == pytest.approx(index.M / index.Y, abs=1e-3)
    if best is None:
        assert len(more) == 2
    else:
        assert more[0] / bound == pytest.approx(proof.ratio, rel=1e-3)
        assert f"{best.accesses:,}: {best.algorithm} in blocks of " in text
        assert f"{proof.ratio:.3f} × the bound" in text
    assert f"{index.accesses:,}, the bound: {index.n:,} phases" in text
    paths = [path.get("d") or "" for path in svg.iter("path")]
    cuts = [float(path[1:].split()[0]) for path in paths]
    if cuts:
        charges = index.Y - index.M
        ends = [index.Y + turn * charges for turn in range(index.n - 1)]
        np.testing.assert_allclose(
            np.array(cuts) / bound, np.array(ends) / index.accesses, atol=1e-3
        )
    assert bool(cuts) == (index.n < 300)  # thinner ones would be a smear


@pytest.mark.parametrize("sizes", range(3))
def test_a_proof_s_box_is_the_largest_that_a_phase_allows(sizes: int) -> None:
    """Of all i × i × c within Y elements, looked for anew: its edges as drawn, and its products
    as written.
    """
    index = proved(sizes).bound
    svg, _, text = drawn(proved(sizes))
    i = np.linspace(1, index.Y, 200_001)
    made = np.minimum(i * i, 2 * i * index.d)  # the room of P: itself, or of Q and K that make it
    c = (index.Y - made) / (2 * i)  # what is left is V and O
    products_of_i = np.where(c > 0, i * i * c, 0)
    most = int(np.argmax(products_of_i))
    faces = []
    for face in svg.iter("polygon"):
        corners = (face.get("points") or "").split()
        faces.append([tuple(map(float, corner.split(","))) for corner in corners])
    front, side, _ = faces
    wide = front[1][0] - front[0][0]
    deep = 2 * (side[1][0] - side[0][0])
    assert wide / deep == pytest.approx(i[most] / c[most], rel=0.02)
    products = float(i[most] ** 2 * c[most])
    written = int(re.findall(r"so ([\d,]+) products at most", text)[0].replace(",", ""))
    assert written == pytest.approx(products, rel=1e-3)
    assert f"{index.pairs * index.d_v:,} products P_ik V_kc are needed: {index.n:,} phases" in text
    assert (index.n - 1) * written < index.pairs * index.d_v <= index.n * written


def test_a_proof_without_phases_has_no_picture() -> None:
    """Each input once is all that it says."""
    assert "<svg" not in flashsim.prove(N=64, d=64, M=25_600)._repr_html_()


def test_words_of_a_proof_s_picture_are_within_it(browser: Any) -> None:
    page = browser.new_page()
    large = flashsim.theory.lower_bound(N=10**6, d=128, M=10**5)
    pictures = [proved(index)._repr_html_() for index in range(len(SIZES))]
    page.set_content(
        "".join(
            [
                *pictures,
                picture(large, 2 * large.accesses, "hybrid_streamed in blocks of 1,000 × 1,000"),
            ]
        )
    )
    ends = page.evaluate(
        "[...document.querySelectorAll('svg text')].map(t => t.getBBox().x + t.getBBox().width)"
    )
    page.close()
    assert len(ends) > 5 * len(SIZES) - 5
    assert max(ends) <= 660

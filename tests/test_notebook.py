"""At a prompt and in a notebook: what `import flashsim` reaches, what help begins with, and how results show."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flashsim
import flashsim.machine.traffic
from flashsim.drawing.style import Panels, column_figure
from flashsim.plots import plot_run

Q, K, V = np.random.default_rng(0).normal(size=(3, 9, 4)).astype(np.float32)
LATER = {
    "cache": "hardware.cache", "machines": "hardware.machines", "observers": "tracing.observers", "plots": "plots",
    "testing": "testing", "tune": "optimal.tune",
}  # fmt: skip


def test_modules_are_there_once_they_are_asked_for() -> None:
    assert {*LATER, "load_trace", "forward", "__version__"} <= {*dir(flashsim)}
    for name, module in LATER.items():
        assert getattr(flashsim, name) is sys.modules[f"flashsim.{module}"]
    with pytest.raises(AttributeError, match=r"^module 'flashsim' has no attribute 'plot'$"):
        _ = flashsim.plot


def test_help_begins_with_five_lines_that_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    documented = flashsim.__doc__ or ""
    indented = [line.strip() for line in documented.splitlines() if line.startswith("    ")]
    lines, given = indented[:5], {"flashsim": flashsim, "numpy": np}
    exec("\n".join(indented[5:]), given)
    assert all(line.startswith("flashsim.") for line in lines)
    assert max(map(len, documented.splitlines()[1:])) <= 80
    for line in lines:
        few = line.replace("Spec()", "Spec(), max_examples=3")
        assert eval(few, given) is not None, line
    assert (tmp_path / "flash.html").exists()


def test_results_show_in_a_line() -> None:
    run = flashsim.forward("flash", Q, K, V, M=200, blocks=(4, 5))
    tally = flashsim.count("flash", N=9, d=4, M=200, blocks=(4, 5))
    costs = f"{run.hbm.accesses:,} HBM accesses, blocks 4 × 5 (given), SRAM peak {run.sram.peak:,} of M = 200)"
    assert repr(run) == f"Run('flash': O (9, 4) float32, {costs}"
    assert repr(tally) == f"Tally('flash': {costs}"
    gradients = flashsim.backward("flash", run, run.O, M=1000)
    assert repr(gradients).startswith("Gradients('flash': dQ (9, 4) float32, dK (9, 4) float32, dV (9, 4) float32, ")
    assert repr(run.hbm).startswith(
        f"Traffic({run.hbm.accesses:,} accesses, {run.hbm.reads:,} of them reads: Q 72, K 36,"
    )
    traced = flashsim.trace("flash", Q, K, V, blocks=(4, 5))
    assert re.fullmatch(
        r"Trace\('flash', forward: \d+ events, N_q = 9, N_k = 9, d = 4, d_v = 4, blocks 4 × 5\)", repr(traced)
    )


def test_a_peak_above_m_says_by_how_much() -> None:
    tally = flashsim.count("flash", N=9, d=4, M=50)
    assert tally.sram.over == tally.sram.peak - 50 > 0
    assert f"SRAM peak {tally.sram.peak}, {tally.sram.over} over M = 50)" in repr(tally)
    assert flashsim.count("flash", N=9, d=4, M=200, sizing="fit").sram.over == 0


def test_results_are_tables_in_a_notebook() -> None:
    run = flashsim.forward("flash", Q, K, V, M=200, blocks=(4, 5))
    tally = flashsim.count("flash", N=9, d=4, M=200, blocks=(4, 5))
    for shown in (run, tally, run.hbm, flashsim.backward("flash", run, run.O, M=1000)):
        traffic = shown if isinstance(shown, flashsim.machine.traffic.Traffic) else shown.hbm
        found = re.findall(r"<tr>(.*?)</tr>", shown._repr_html_())[1:]
        rows = [tuple(re.findall(r"<td>(.*?)</td>", row)) for row in found]
        assert rows[-1] == (
            "total",
            *(f"{n:,}" for n in (traffic.reads, traffic.writes, traffic.accesses, traffic.bytes)),
        )
        assert {row[0]: row[1] for row in rows[:-1]} == {name: f"{a.reads:,}" for name, a in traffic.by_array.items()}
    assert f"peak {run.sram.peak} of M" in run._repr_html_()
    named = flashsim.Tally("<b>", tally.hbm, tally.sram, tally.blocks, tally.flops)
    assert "<b>" not in named._repr_html_()


def rows_of(shown: Any) -> dict[str, list[str]]:
    found = re.findall(r"<tr>(.*?)</tr>", shown._repr_html_())[1:]
    cells = [re.findall(r"<td>(.*?)</td>", row) for row in found]
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

    exact = flashsim.theory.exact("flash", N=9, d=4, M=200, blocks=(4, 5))
    tally = flashsim.count("flash", N=9, d=4, M=200, blocks=(4, 5))
    assert repr(exact) == f"Exact('flash': {tally.hbm.accesses:,} HBM accesses, blocks 4 × 5 (given), {tally.sram})"
    assert rows_of(exact) == rows_of(tally)

    found = flashsim.optimum(N=2, d=2, M=40)
    assert f"{found.lower:,} elements, the optimum" in repr(found)
    assert rows_of(found)["no schedule moves less than"] == [f"{found.lower:,}"]
    for shown in (proof, tuned, exact, found):
        assert len(repr(shown).splitlines()) == 1


def test_a_plot_shows_in_a_notebook_where_pyplot_is_not_imported() -> None:
    run = flashsim.forward("flash", Q, K, V)
    tally = flashsim.count("flash", N=9, d=4)
    panels = Panels(column_figure(1), 2, 1)
    drawn = run.plot()
    shown: list[Any] = [drawn, panels, panels[0].figure]
    for ax in shown:
        assert ax._repr_png_().startswith(b"\x89PNG")
    assert {text.get_text() for text in drawn.texts} >= {f"flash: {run.hbm.accesses:,}"}
    mine = column_figure(2).subplots()
    assert plot_run({"flash": run}, mine) is mine
    assert tally.plot(mine) is mine

"""The pictures, by their content: what is drawn where, against theory; and the files, byte for byte."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text

import flashsim
from flashsim import plots, theory

ROOT = Path(__file__).parent.parent
N, D = 1024, 64


def line(ax: Axes, gid: str) -> Line2D:
    (found,) = [x for x in ax.get_lines() if x.get_gid() == gid]
    return found


def xy(ax: Axes, gid: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in np.asarray(line(ax, gid).get_xydata(), float)]


def area(ax: Axes, gid: str) -> PolyCollection:
    (found,) = [x for x in ax.collections if x.get_gid() == gid]
    assert isinstance(found, PolyCollection)
    return found


def figure_of(ax: Axes) -> Figure:
    assert isinstance(ax.figure, Figure)
    return ax.figure


def legend_texts(ax: Axes) -> list[str]:
    legend = ax.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def readable(figure: Figure) -> Iterator[Text]:
    """Yield the texts that a reader sees: not empty, and no tick labels outside the view."""
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis, *(child.yaxis for child in ax.child_axes)):
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks():
                tick.label1.set_visible(tick.label1.get_visible() and low <= tick.get_loc() <= high)
                tick.label2.set_visible(tick.label2.get_visible() and low <= tick.get_loc() <= high)
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        if text.get_visible() and text.get_text().strip():
            yield text


def draw(figure: Figure) -> None:
    FigureCanvasAgg(figure).draw()  # type: ignore[no-untyped-call]


def assert_readable(figure: Figure) -> None:
    draw(figure)
    texts = {text: text.get_window_extent() for text in readable(figure)}
    assert len(texts) > 10
    for text, box in texts.items():
        assert float(text.get_fontsize()) >= 8
        assert min(box.x0, box.y0) >= 0, text
        assert box.x1 <= figure.bbox.x1, text
        assert box.y1 <= figure.bbox.y1, text
    for (a, box_a), (b, box_b) in combinations(texts.items(), 2):
        assert not box_a.padded(-0.5).overlaps(box_b.padded(-0.5)), (a.get_text(), b.get_text())


def test_importing_flashsim_imports_no_matplotlib() -> None:
    lean = "import sys, flashsim; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", lean], check=True)
    headless = "import sys, flashsim.plots; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", headless], check=True)


# ------------------------------------------------------------------------------------------------- Figure 2, middle


@pytest.fixture(scope="module")
def blocks() -> Axes:
    return plots.plot_blocks(N=N, d=D)


def exact(B_c: int, dtype: str = "float16") -> theory.Exact:
    return theory.exact("flash_basic", N=N, d=D, dtype=dtype, blocks=(min(B_c, D), B_c))


def test_blocks_axes(blocks: Axes) -> None:
    assert (blocks.get_xscale(), blocks.get_yscale()) == ("log", "log")
    assert blocks.get_ylabel() == "HBM accesses (elements)"
    assert "$B_c$" in blocks.get_xlabel()
    assert "N = 1,024, d = 64, float16" in blocks.get_xlabel()
    assert "until SRAM is full" in blocks.get_title(loc="left")
    draw(figure_of(blocks))
    (in_bytes,) = blocks.child_axes
    assert in_bytes.get_ylabel() == "at 2 bytes each\n(ℓ, m take 4: ≤ 2.0% more)"
    assert in_bytes.get_ylim() == pytest.approx([2 * y for y in blocks.get_ylim()])


def test_blocks_curve_is_the_closed_form_and_the_runs_lie_on_it(blocks: Axes) -> None:
    curve = xy(blocks, "theory")
    assert curve == [(B_c, exact(B_c).accesses) for B_c in range(16, N + 1)]
    points = xy(blocks, "simulator")
    assert {2**e for e in range(4, 11)} <= {x for x, _ in points}
    assert set(points) <= set(curve)
    assert xy(blocks, "paper") == [(200, theory.exact("flash_basic", N=N, d=D, M=51_200).accesses)]
    assert set(xy(blocks, "paper")) <= set(curve)


def test_blocks_horizontal_lines(blocks: Axes) -> None:
    standard = theory.exact("standard", N=N, d=D, M=51_200).accesses
    assert {y for _, y in xy(blocks, "standard")} == {standard}
    assert {y for _, y in xy(blocks, "floor")} == {4 * N * D}


def test_blocks_limit_is_where_theory_stops_fitting(blocks: Axes) -> None:
    (limit,) = {int(x) for x, _ in xy(blocks, "limit")}
    assert exact(limit).sram.peak <= 51_200 < exact(limit + 1).sram.peak
    flashsim.count("flash_basic", N=N, d=D, M=51_200, blocks=(D, limit))
    with pytest.raises(flashsim.SramOverflow):
        flashsim.count("flash_basic", N=N, d=D, M=51_200, blocks=(D, limit + 1))
    (outline,) = area(blocks, "does not fit").get_paths()
    assert outline.get_extents().x0 == limit
    assert outline.get_extents().x1 == pytest.approx(blocks.get_xlim()[1])


def test_blocks_where_everything_and_where_nothing_fits() -> None:
    roomy = plots.plot_blocks(N=128, d=16, M=10**6)
    assert not [x for x in roomy.collections if x.get_gid() == "does not fit"]
    assert "⌈M/4d⌉ ≥ N = 128" in legend_texts(roomy)
    tight = plots.plot_blocks(N=128, d=16, M=20)
    assert plots.blocks_data(N=128, d=16, M=20)["largest_that_fits"] is None
    assert area(tight, "does not fit").get_paths()[0].get_extents().x0 == pytest.approx(tight.get_xlim()[0])
    assert not [x for x in tight.get_lines() if x.get_gid() in {"limit", "paper"}]


def test_blocks_bytes_are_exact_for_32_bit_inputs_and_above_the_axis_for_16() -> None:
    single, half = (plots.blocks_data(N=256, d=32, dtype=dtype) for dtype in ("float32", "float16"))
    assert all(p["bytes"] == 4 * p["accesses"] for p in single["simulator"])
    assert all(p["bytes"] > 2 * p["accesses"] for p in half["simulator"])
    (in_bytes,) = plots.plot_blocks(N=256, d=32, dtype="float32").child_axes
    assert in_bytes.get_ylabel() == "at 4 bytes each"


def test_long_sequences_are_counted_on_shapes() -> None:
    data = plots.blocks_data(N=4096, d=64)
    assert data["simulator_ran_on"] == "shapes"
    assert {p["B_c"]: p["accesses"] for p in data["simulator"]}.items() <= dict(
        zip(data["theory"]["B_c"], data["theory"]["accesses"], strict=True)
    ).items()
    assert plots.blocks_data(N=64, d=8)["simulator_ran_on"] == "numbers"


def test_blocks_errors_name_the_argument() -> None:
    with pytest.raises(ValueError, match="int8"):
        plots.blocks_data(dtype="int8")
    with pytest.raises(ValueError, match="N"):
        plots.blocks_data(N=0)


# -------------------------------------------------------------------------------------------------------- Theorem 2


def test_theorem2_slopes() -> None:
    data = plots.theorem2_data()["panels"]
    for variable, expected in (("N", 2), ("d", 2), ("M", -1)):
        fit = data[variable]["fits"]["flash_basic"]
        assert fit["slope"] == pytest.approx(expected, abs=0.04)
        assert fit["residual"] < 0.03
    assert data["N"]["fits"]["standard"]["slope"] == pytest.approx(2, abs=0.06)
    assert data["N"]["fits"]["proof"]["slope"] == pytest.approx(2, abs=0.01)
    assert data["d"]["fits"]["proof"]["slope"] == pytest.approx(0, abs=0.03)
    assert data["M"]["fits"]["proof"] == {"slope": 0, "intercept": pytest.approx(9.0326, abs=1e-4), "residual": 0}
    assert all(data[variable]["fits"]["standard"]["residual"] > 0.05 for variable in "dM")


def test_theorem2_draws_the_counts_within_their_band() -> None:
    axes = plots.plot_theorem2()
    fixed = {"N": 16_384, "d": 64, "M": 51_200}
    for ax, variable in zip(axes, "NdM", strict=True):
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
        assert ax.get_ylabel() == "HBM accesses (elements)"
        assert ax.get_xlabel()
        assert ax.get_title(loc="left")
        band = area(ax, "band").get_paths()[0].vertices
        for name in ("flash_basic", "standard"):
            for value, accesses in xy(ax, name):
                at = {**fixed, variable: int(value)}
                assert at["d"] <= at["M"] <= at["N"] * at["d"]
                assert accesses == theory.exact(name, N=at["N"], d=at["d"], M=at["M"]).accesses
                if name == "flash_basic":
                    low, high = sorted({float(y) for x, y in np.asarray(band) if x == value})
                    assert low <= accesses <= high
                    assert (low, high) == pytest.approx(
                        [c * theory.theorem_2_flash(**at) for c in theory.flash_constants(at["d"])]
                    )
        for value, accesses in xy(ax, "proof"):
            at = {**fixed, variable: int(value)}
            assert accesses == sum(theory.proof_accounting(at["N"], at["d"]))
        assert any("FlashAttention: slope" in text and "residual 0.0" in text for text in legend_texts(ax))
    assert {x for x, _ in xy(axes[1], "M = d²")} == {51_200**0.5}
    assert {x for x, _ in xy(axes[2], "M = d²")} == {64**2}


# --------------------------------------------------------------------------------------------------- a run, by array


@pytest.fixture(scope="module")
def tallies() -> dict[str, flashsim.Run | flashsim.Tally]:
    return {name: flashsim.count(name, N=N, d=D, M=51_200, dtype="float16") for name in ("standard", "flash_basic")}


def test_run_draws_every_read_and_write(tallies: dict[str, flashsim.Run | flashsim.Tally]) -> None:
    ax = plots.plot_run(tallies)
    bars = {bar.get_gid(): bar for bar in ax.patches if isinstance(bar, Rectangle)}
    for name, tally in tallies.items():
        for array, traffic in tally.hbm.by_array.items():
            for way, elements in (("reads", traffic.reads), ("writes", traffic.writes)):
                bar = bars.pop(f"{name} {array} {way}", None)
                assert (bar.get_width() if bar else 0) == elements
                assert bar is None or bool(bar.get_hatch()) == (way == "writes")
    assert not bars
    texts = [text.get_text() for text in ax.texts]
    assert "standard: 5,111,808" in texts
    assert "flash_basic: 1,402,880" in texts
    assert {"2.1 M", "393 k", "65.5 k", "13.3 k"} <= set(texts)
    assert ax.get_title(loc="left") == "flash_basic makes 3.64× fewer HBM accesses"
    assert ax.get_xlabel() == "HBM accesses (elements)"
    assert legend_texts(ax) == ["read", "written"]


def test_run_takes_runs_one_or_equal_ones_and_refuses_none() -> None:
    Q, K, V = np.random.default_rng(0).standard_normal((3, 64, 8))
    run = flashsim.forward("flash_basic", Q, K, V)
    assert plots.plot_run({"flash": run}).get_title(loc="left") == "What flash moves, by array"
    assert plots.plot_run({"a": run, "b": run}).get_title(loc="left") == "b makes as many HBM accesses"
    more = plots.plot_run({"flash": run, "small": flashsim.count("flash_basic", N=64, d=8, M=64)})
    assert "× more HBM accesses" in more.get_title(loc="left")
    with pytest.raises(ValueError, match="empty"):
        plots.plot_run({})


# ------------------------------------------------------------------------------------------------ all, and the files


def test_given_axes_are_returned_and_settings_kept(tallies: dict[str, flashsim.Run | flashsim.Tally]) -> None:
    before = dict(matplotlib.rcParams)
    axes = list(Figure(figsize=(15, 3)).subplots(1, 5))
    assert plots.plot_blocks(N=128, d=16, ax=axes[0]) is axes[0]
    given = axes[1:4]
    assert plots.plot_theorem2(ax=given) is given
    assert plots.plot_run(tallies, ax=axes[4]) is axes[4]
    assert dict(matplotlib.rcParams) == before


def test_texts_are_large_enough_inside_and_apart(
    blocks: Axes, tallies: dict[str, flashsim.Run | flashsim.Tally]
) -> None:
    for ax in (blocks, plots.plot_theorem2()[0], plots.plot_run(tallies)):
        assert figure_of(ax).get_figwidth() == 3.5
        assert_readable(figure_of(ax))


def test_save_writes_three_files_the_same_every_time(tmp_path: Path) -> None:
    data = plots.blocks_data(N=256, d=32)
    contents = []
    for folder in ("a", "b"):
        figure = plots.column_figure(3.4)
        plots.plot_blocks(N=256, d=32, ax=figure.subplots())
        files = plots.save(figure, tmp_path / folder / "v1.2", data, "python here.py")
        assert [path.name for path in files] == ["v1.2.png", "v1.2.svg", "v1.2.json"]
        contents.append([path.read_bytes() for path in files])
    assert contents[0] == contents[1]

    record = json.loads(contents[0][2])
    assert record["command"] == "python here.py"
    assert set(record["made_with"]) == {"python", "numpy", "matplotlib", "flashsim"}
    assert record["machine"].startswith("any")
    assert record["data"] == data
    assert b"<text" not in contents[0][1]
    assert b"<dc:date>" not in contents[0][1]
    pixels = imread(tmp_path / "a" / "v1.2.png")
    assert pixels.shape[:2] == (680, 700)
    assert len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0)) > 100


@pytest.mark.parametrize("name", ["figure_2_middle", "theorem_2"])
def test_scripts_draw_what_is_in_figures(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [f"scripts/{name}.py", "-o", str(tmp_path / name)])
    runpy.run_path(str(ROOT / "scripts" / f"{name}.py"), run_name="__main__")
    made = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    kept = json.loads((ROOT / "figures" / f"{name}.json").read_text(encoding="utf-8"))
    assert made["command"] == f"python scripts/{name}.py -o {tmp_path / name}"
    assert kept["command"] == f"python scripts/{name}.py"
    assert made["data"] == kept["data"]
    assert all((ROOT / "figures" / f"{name}{suffix}").stat().st_size > 10_000 for suffix in (".png", ".svg"))

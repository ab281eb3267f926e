"""The pictures, by their content: what is drawn where, against theory; and the files, byte for
byte.
"""

import inspect
import json
import re
import runpy
import shlex
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from gpu_pictures import plot_figure_3, plot_ladder
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text

import flashsim
from flashsim import plots, theory
from flashsim.algorithms import FORWARD
from flashsim.analysis.tune import best_of
from flashsim.cli import main
from flashsim.drawing.bars import draw_bar
from flashsim.drawing.style import canvas, compared, looks
from flashsim.extensions import approximate
from flashsim.plots import lower
from flashsim.plots.appendix_b5 import appendix_b5_data, plot_appendix_b5
from flashsim.plots.blocks import blocks_data, plot_blocks
from flashsim.plots.by_array import arrays_data, plot_arrays
from flashsim.plots.chart import count_arguments
from flashsim.plots.footprint import memory_data, plot_memory
from flashsim.plots.fusing import pays_from
from flashsim.plots.lower import lower_backward_data, lower_data
from flashsim.plots.saving import figure_of
from flashsim.plots.sparsity import plot_sparsity, sparsity_data
from flashsim.plots.theorems import plot_theorem2, plot_theorem5, theorem2_data, theorem5_data
from flashsim.plots.traffic import plot_traffic, traffic_data
from tests.helpers.counting import moved
from tests.helpers.own import two_sweeps

ROOT = Path(__file__).parents[2]
N = 1024
D = 64
LENGTH = 512  # of the sequences below that blocks of every size cut up


def line(ax: Axes, gid: str) -> Line2D:
    (result,) = [x for x in ax.get_lines() if x.get_gid() == gid]
    return result


def xy(ax: Axes, gid: str) -> list[tuple[float, float]]:
    points = np.asarray(line(ax, gid).get_xydata(), float)
    return [(float(x), float(y)) for x, y in points]


def area(ax: Axes, gid: str) -> PolyCollection:
    (result,) = [x for x in ax.collections if x.get_gid() == gid]
    assert isinstance(result, PolyCollection)
    return result


def legend_texts(ax: Axes) -> list[str]:
    legend = ax.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def readable(figure: Figure) -> Iterator[Text]:
    """Yield the texts that a reader sees: not empty, and no tick labels outside the view."""
    for ax in figure.axes:
        with_children = [ax.xaxis, ax.yaxis, *(child.yaxis for child in ax.child_axes)]
        for axis in with_children:
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks():
                tick.label1.set_visible(tick.label1.get_visible() and low <= tick.get_loc() <= high)
                tick.label2.set_visible(tick.label2.get_visible() and low <= tick.get_loc() <= high)
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        if text.get_visible() and text.get_text().strip():
            yield text


def assert_readable(figure: Figure) -> None:
    figure.draw_without_rendering()
    texts = {text: text.get_window_extent() for text in readable(figure)}
    assert len(texts) > 10
    for text, box in texts.items():
        assert float(text.get_fontsize()) >= 8
        assert min(box.x0, box.y0) >= 0, text
        assert box.x1 <= figure.bbox.x1, text
        assert box.y1 <= figure.bbox.y1, text
    lows, highs = np.sort(
        [box.padded(-0.5).get_points() for box in texts.values()], axis=1
    ).swapaxes(0, 1)
    before = (lows[:, None] <= highs).all(axis=2)
    words = [text.get_text() for text in texts]
    overlapping = np.argwhere(np.triu(before & before.T, 1))
    assert [(words[a], words[b]) for a, b in overlapping] == []


# -------------------------------------------------------------------------------------------------
# Figure 2, middle


@pytest.fixture(scope="module")
def blocks() -> Axes:
    drawn: Axes = plot_blocks(blocks_data(N=LENGTH, d=D, dtype="float16", backward=True))
    return drawn


PASSES = (("flash_basic", "forward"), ("flash", "backward"))


def exact(B_c: int, dtype: str = "float16") -> theory.Exact:
    blocks = (min(B_c, D), B_c)
    return theory.exact("flash_basic", N=LENGTH, d=D, dtype=dtype, blocks=blocks)


def said_beside(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def test_blocks_curve_is_the_closed_form_and_the_runs_lie_on_it(blocks: Axes) -> None:
    assert (blocks.get_xscale(), blocks.get_yscale()) == ("log", "log")
    assert blocks.get_ylabel() == "HBM accesses (10³ elements)"
    assert "$B_c$" in blocks.get_xlabel()
    assert "N = 512, d = 64, float16" in blocks.get_xlabel()
    assert "until SRAM is full" in blocks.get_title(loc="left")
    assert not blocks.child_axes  # one unit
    # as in the other figures
    standard = flashsim.count("standard", N=LENGTH, d=D, M=51_200, sizing="fit")
    assert {y for _, y in xy(blocks, "standard")} == {standard.hbm.accesses}
    assert {y for _, y in xy(blocks, "floor")} == {4 * LENGTH * D}
    curve = xy(blocks, "theory")
    assert curve == [(B_c, exact(B_c).accesses) for B_c in range(16, 223)]  # as far as they fit
    points = xy(blocks, "simulator")
    assert [x for x, _ in points] == [16, 24, 32, 48, 64, 96, 128, 192]
    assert set(points) <= set(curve)
    (words,) = (text for text in said_beside(blocks) if "⌈M/4d⌉ = 200" in text)
    how: dict[str, Any] = {
        "N": LENGTH,
        "d": D,
        "M": 51_200,
        "sizing": "paper",
    }
    shares = []
    for name, way in PASSES:
        tally = flashsim.count(name, **how, direction=way)
        shares.append(tally.sram.peak / 51_200)
    assert "needs {:.0%} and {:.0%} of M".format(*shares) in words
    assert xy(blocks, "paper") == [(200, theory.exact("flash_basic", **how).accesses)]
    assert set(xy(blocks, "paper")) <= set(curve)
    for which in ("", "backward "):  # a diamond's edge says of which pass it is
        assert (
            line(blocks, f"{which}paper").get_markeredgecolor()
            == line(blocks, f"{which}theory").get_color()
        )


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("M", [1500, 25_600, 51_200, 60_000])
def test_no_more_than_a_fifth_of_blocks_is_grey_and_no_key_lies_on_lines(
    M: int, wide: bool, backward: bool
) -> None:
    data = blocks_data(N=LENGTH, d=D, M=M, backward=backward)
    ax = plot_blocks(data, wide=wide)
    figure_of(ax).draw_without_rendering()
    (outline,) = area(ax, "does not fit").get_paths()
    start, end = (
        ax.transData.transform((x, 1))[0]
        for x in (outline.get_extents().x0, outline.get_extents().x1)
    )
    whole = ax.get_window_extent()
    assert 0 < end - start <= whole.width / 5
    assert ax.get_legend() is None
    for text in ax.texts:
        box = text.get_window_extent()
        assert whole.x0 <= box.x0 <= box.x1 <= whole.x1, text
        for drawn in ax.get_lines():
            path = drawn.get_transform().transform(np.asarray(drawn.get_xydata(), float))
            steps = [] if drawn.get_linestyle() == "None" else [*pairwise(path)]
            between = [np.linspace(a, b, 99) for a, b in steps]
            points = np.concatenate([path, *between])
            assert not box.count_contains(points), (text, drawn.get_gid())
    assert_readable(figure_of(ax))


def test_blocks_is_of_the_forward_pass_unless_both_are_asked_for() -> None:
    assert "backward" not in blocks_data(N=64, d=8)
    assert "backward" in blocks_data(N=64, d=8, backward=True)


@pytest.mark.parametrize(("name", "direction"), PASSES)
def test_blocks_limit_is_where_a_run_stops_fitting(name: str, direction: str, blocks: Axes) -> None:
    which = "backward " * (direction == "backward")
    (limit,) = {int(x) for x, _ in xy(blocks, f"{which}limit")}
    point: dict[str, Any] = {
        "N": LENGTH,
        "d": D,
        "M": 51_200,
        "direction": direction,
    }
    flashsim.count(name, **point, blocks=(D, limit))
    with pytest.raises(flashsim.SramOverflow):
        flashsim.count(name, **point, blocks=(D, limit + 1))
    (outline,) = area(blocks, "does not fit").get_paths()  # of neither pass
    forward_limit = xy(blocks, "limit")[0][0]
    assert outline.get_extents().x0 == max(forward_limit, limit)
    assert outline.get_extents().x1 == pytest.approx(blocks.get_xlim()[1])


def test_blocks_where_everything_and_where_nothing_fits() -> None:
    roomy = plot_blocks(blocks_data(N=32, d=16, M=10**6))
    assert not [x for x in roomy.collections if x.get_gid() == "does not fit"]
    assert any("⌈M/4d⌉ ≥ N = 32" in text for text in said_beside(roomy))
    assert [text for text in said_beside(roomy) if "FlashAttention" in text] == [
        "FlashAttention\ncircles: simulated runs"
    ]
    tight = plot_blocks(blocks_data(N=32, d=16, M=20, backward=True))
    assert blocks_data(N=32, d=16, M=20)["largest_that_fits"] is None
    assert not [x for x in tight.collections if x.get_gid() == "does not fit"]
    assert not [x for x in tight.get_lines() if x.get_gid() == "limit"]
    assert xy(tight, "theory") == xy(tight, "simulator") == []
    assert tight.get_title(loc="left") == "Not even single rows\nof K and V fit M"
    # of curves that are not there
    assert not [text for text in said_beside(tight) if "FlashAttention" in text]
    half = plot_blocks(blocks_data(N=32, d=16, M=400, backward=True))
    assert [x for x, _ in xy(half, "theory")] == [1, 2, 3, 4, 5]
    few = plot_blocks(blocks_data(N=32, d=16, M=130, backward=True))
    assert len(xy(few, "theory")) == 1
    assert xy(few, "backward theory") == []


def test_blocks_backward_curve_is_the_specs_closed_form(blocks: Axes) -> None:
    N = LENGTH
    for B_c, accesses in xy(blocks, "backward theory"):
        T_c = -(-N // int(B_c))
        once = 2 * N * D + 3 * N * D + 2 * N * D
        each_turn = 4 * N * D + 2 * N + N * D
        assert accesses == once + T_c * each_turn
    (limit,) = {int(x) for x, _ in xy(blocks, "backward limit")}
    sizes = [x for x, _ in xy(blocks, "backward theory")]
    assert sizes == list(range(16, limit + 1))
    standard = flashsim.count(
        "standard", N=LENGTH, d=D, M=51_200, sizing="fit", direction="backward"
    ).hbm.accesses
    assert {y for _, y in xy(blocks, "backward standard")} == {standard}
    small = blocks_data(N=64, d=8, backward=True)
    assert small["backward"]["floor"] == 8 * 64 * 8


def test_blocks_of_any_small_size() -> None:
    """A few octaves of block sizes, marked; from B_c = 1 where there are no more."""
    ax = Figure().subplots()
    for N_k in (1, 2, 3, 5, 8, 13, 16, 20):
        ax.clear()
        data = blocks_data(N_q=21 - N_k, N=N_k, d=3, backward=False)
        plot_blocks(data, ax=ax)
        sizes = [x for x, _ in xy(ax, "theory")]
        assert sizes == list(range(max(N_k // 8, 1), N_k + 1))
        marked = {x for x, _ in xy(ax, "simulator")}
        for B_c in (1, 2, 4, 8, 16):
            if sizes[0] <= B_c <= N_k:
                assert B_c in marked
        assert set(xy(ax, "simulator")) <= set(xy(ax, "theory"))
        low, high = ax.get_xlim()
        ticks_within = sum(low <= tick <= high for tick in ax.get_xticks())
        assert ticks_within >= min(N_k.bit_length(), 3)


def test_data_of_blocks_is_of_what_is_asked() -> None:
    """Bytes are exact for 32-bit inputs, and more for 16; forward may stand alone; long
    sequences are counted on shapes.
    """
    single = blocks_data(N=64, d=8, dtype="float32")
    half = blocks_data(N=64, d=8, dtype="float16")
    assert all(p["bytes"] == 4 * p["accesses"] for p in single["simulator"])
    assert all(p["bytes"] > 2 * p["accesses"] for p in half["simulator"])
    data = blocks_data(N=2049, d=16)
    for drawn in plot_blocks(data).get_lines():
        assert not str(drawn.get_gid()).startswith("backward")
    assert (single["simulator_ran_on"], data["simulator_ran_on"]) == ("numbers", "shapes")
    theory_of = data["theory"]
    curve = dict(zip(theory_of["B_c"], theory_of["accesses"], strict=True))
    for point in data["simulator"]:
        assert curve[point["B_c"]] == point["accesses"]
    for wrong, message in (({"dtype": "int8"}, "int8"), ({"N": 0}, "N")):
        with pytest.raises(ValueError, match=message):
            blocks_data(**wrong)


def test_blocks_runs_no_more_tiles_with_numbers_than_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However small M is: line 1's own blocks, and standard attention's, may be single rows."""
    tiles = []

    def followed(*args: Any, **how: Any) -> flashsim.Result:
        run = flashsim.forward(*args, **how)
        tiles.append(run.blocks.tiles)
        return run

    monkeypatch.setattr("flashsim.plots.blocks.forward", followed)
    data = blocks_data(N=256, d=8, M=400)
    assert data["simulator_ran_on"] == "numbers"
    assert data["simulator"][0]["B_c"] == 2
    assert max(tiles) == 128 * 128
    tiles.clear()
    # single rows: of a quarter of what fits
    assert blocks_data(N=256, d=8, M=40)["simulator_ran_on"] == "shapes"
    assert blocks_data(N=2048, d=1, backward=False)["simulator_ran_on"] == "shapes"
    assert tiles == []


# --------------------------------------------------------------------------------------------------
# Theorem 2


THEOREMS: dict[str, tuple[Any, Any, str, Any]] = {
    "forward": (theorem2_data, plot_theorem2, "flash_basic", theory.flash_constants),
    "backward": (theorem5_data, plot_theorem5, "flash", theory.flash_backward_constants),
}


@pytest.mark.parametrize("direction", THEOREMS)
def test_theorems_draw_the_counts_within_their_band_with_their_slopes(direction: str) -> None:
    data_of, plot, own, constants = THEOREMS[direction]
    data = data_of(dtype="float16")
    fits = {variable: panel["fits"] for variable, panel in data["panels"].items()}
    for variable, expected in (("N", 2), ("d", 2), ("M", -1)):
        assert fits[variable][own]["slope"] == pytest.approx(expected, abs=0.04)
        assert fits[variable][own]["residual"] < 0.031
    assert fits["N"]["standard"]["slope"] == pytest.approx(2, abs=0.06)
    assert fits["N"]["proof"]["slope"] == pytest.approx(2, abs=0.01)
    assert fits["d"]["proof"]["slope"] == pytest.approx(0, abs=0.03)
    assert fits["M"]["proof"]["slope"] == 0
    assert fits["M"]["proof"]["residual"] == 0
    assert all(fits[variable]["standard"]["residual"] > 0.05 for variable in "dM")
    axes = plot(data)
    fixed = {"N": 16_384, "d": 64, "M": 51_200}
    for ax, variable in zip(axes, "NdM", strict=True):
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
        assert (
            ax.get_ylabel() == "backward\n" * (direction == "backward") + "HBM accesses (elements)"
        )
        assert ax.get_xlabel()
        assert ax.get_title(loc="left")
        band = np.asarray(area(ax, "band").get_paths()[0].vertices)
        for name in (own, "standard"):
            for value, accesses in xy(ax, name):
                point: dict[str, Any] = {**fixed, variable: int(value)}
                assert point["d"] <= point["M"] <= point["N"] * point["d"]
                assert (
                    accesses
                    == theory.exact(name, **point, direction=direction, sizing="paper").accesses
                )
                if name == own:
                    low, high = sorted({float(y) for x, y in band if x == value})
                    assert low <= accesses <= high
                    unit = theory.theorem_2_flash(**point)
                    band_of = [constant * unit for constant in constants(point["d"])]
                    assert (low, high) == pytest.approx(band_of)
        for value, accesses in xy(ax, "proof"):
            point = {**fixed, variable: int(value)}
            assert accesses == sum(theory.proof_accounting(point["N"], point["d"], direction))
        assert any(
            "FlashAttention: slope" in text and "residual 0.0" in text for text in legend_texts(ax)
        )
    assert {x for x, _ in xy(axes[1], "M = d²")} == {51_200**0.5}
    assert {x for x, _ in xy(axes[2], "M = d²")} == {64**2}


# --------------------------------------------------------------------------------------------------
# Figure 2, left


def widths(ax: Axes) -> dict[str, float]:
    bars = [bar for bar in ax.patches if isinstance(bar, Rectangle)]
    return {str(bar.get_gid()): bar.get_width() for bar in bars}


def test_traffic_bars_are_the_counts_beside_the_papers_numbers() -> None:
    data = traffic_data()
    by_bytes, by_flops, by_pass = plot_traffic(data)
    run: dict[str, Any] = {
        "N": 1024,
        "d": 64,
        "heads": 1024,
        "dtype": "float16",
        "causal": True,
        "dropout_p": 0.1,
    }
    drawn = widths(by_bytes)
    for name, gigabytes in (("standard", 40.3), ("flash", 4.4)):
        for kilobytes in (100, 192, 512):
            options: dict[str, Any] = {"M": 512 * kilobytes, "sizing": "fit"}
            tallies = [
                flashsim.count(name, **run, **options, direction=w) for w in ("forward", "backward")
            ]
            assert all(tally.sram.over == 0 for tally in tallies)
            assert drawn.pop(f"{name} {kilobytes}") == sum(t.hbm.bytes for t in tallies)
        assert drawn.pop(f"{name} paper") == gigabytes * 1e9
    assert not drawn
    products = 2 * 1024**2 * 64 * 1024
    assert data["product_flops"] == products
    of_model = {name: data["model"][name]["flops"] for name in ("standard", "flash")}
    assert of_model["standard"]["matmul"] == 6 * products
    assert of_model["flash"]["matmul"] == 7 * products
    flops = {name: of_name["total"] for name, of_name in of_model.items()}
    ratios = {"standard flops": 1, "flash flops": flops["flash"] / flops["standard"]}
    paper = {"standard paper flops": 1, "flash paper flops": 75.2 / 66.6}
    assert widths(by_flops) == pytest.approx({**ratios, **paper}, rel=1e-14)
    for name in ("standard", "flash"):
        passes = data["model"][name]["passes"]
        assert (
            sum(row["reads"] + row["writes"] for row in passes)
            == data["model"][name]["by_M"][0]["bytes"]
        )
    drawn = widths(by_pass)
    assert len(drawn) == 2 * (11 + 2)
    for name in ("standard", "flash"):
        for row in data["model"][name]["passes"]:
            for way in ("reads", "writes"):
                assert drawn[f"{name} {row['direction']} {row['pass']} {way}"] == row[way]
    data = data["model"]  # the passes are those of Algorithms 0 and 3
    passes = [
        "QKᵀ",
        "mask",
        "softmax",
        "dropout",
        "PV",
        "dV",
        "dP",
        "dropout",
        "softmax",
        "dQ",
        "dK",
    ]
    assert [row["pass"] for row in data["standard"]["passes"]] == passes
    # bytes
    N_by_N = 2 * 1024**2 * 1024
    N_by_d = 2 * 1024 * 64 * 1024
    QK, mask, softmax, dropout, PV, *_ = data["standard"]["passes"]
    T_r = data["standard"]["by_M"][0]["T_r"]
    assert (QK["reads"], QK["writes"]) == ((1 + T_r) * N_by_d, N_by_N)
    for row in (mask, softmax):
        assert row["reads"] == N_by_N
        assert row["writes"] == N_by_N
    # Z is a byte an element
    assert (dropout["reads"], dropout["writes"]) == (N_by_N, N_by_N + N_by_N // 2)
    assert (PV["reads"], PV["writes"]) == (N_by_N + T_r * N_by_d, N_by_d)
    once = data["standard"]["by_M"][-1]  # in blocks of 1,024 × 64
    assert (once["T_r"], once["bytes"]) == (1, 18 * N_by_N + 12 * N_by_d)
    assert [row["pass"] for row in data["flash"]["passes"]] == ["Algorithm 2", "Algorithm 4"]


# ----------------------------------------------------------------- Figure 2, right; Figure 3, right


def test_sparsity_counts_lie_on_the_line_from_the_floor_to_flash() -> None:
    data = sparsity_data(dtype="float16", sizing="paper")
    ax = plot_sparsity(data)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    length = data["N"]
    d = data["d"]
    floors = {"forward": 3 * length * d + 2 * length, "backward": 7 * length * d}
    for direction, numbers in data["directions"].items():
        flash = flashsim.count(
            "flash", N=length, d=d, M=data["M"], direction=direction, sizing="paper"
        ).hbm.accesses
        assert (numbers["floor"], numbers["flash"]) == (floors[direction], flash)
        total = data["T_r"] * data["T_c"]
        for point in (*numbers["random"], *numbers["patterns"].values()):
            assert (point["accesses"] - numbers["floor"]) * total == (
                flash - numbers["floor"]
            ) * point["tiles"]
        assert numbers["random"][0]["s"] == 1
        random = [(p["s"], p["accesses"]) for p in numbers["random"]]
        assert xy(ax, f"{direction} random") == random
        assert xy(ax, f"{direction} patterns") == [
            (p["s"], p["accesses"]) for p in numbers["patterns"].values()
        ]
        assert {y for _, y in xy(ax, f"{direction} floor")} == {numbers["floor"]}
        assert {y for _, y in xy(ax, f"{direction} flash")} == {flash}
        butterfly = flashsim.patterns.butterfly(data["T_r"], data["T_c"])
        assert numbers["patterns"]["butterfly"]["s"] == butterfly.mean()


def test_memory_is_linear_or_quadratic_and_crosses_40_GB_where_it_says() -> None:
    data = memory_data(dtype="float16")
    ax = plot_memory(data)
    heads, d = data["heads"], data["d"]

    def extra(name: str, n: int) -> int:
        if name == "standard":
            return int(heads * 4 * n * n * 2)
        of_tiles = 0
        if name == "rabe_staats":
            T_c = flashsim.count(
                name, N=n, d=d, M=data["M"], dtype="float16", sizing="fit"
            ).blocks.T_c
            of_tiles = T_c * n * (2 * d + 4 + 4)
        return int(heads * (2 * n * 4 + of_tiles))

    for name in ("standard", "flash", "memory_efficient", "rabe_staats"):
        assert xy(ax, name) == [(n, extra(name, n)) for n in data["N"]]
        crosses = data["crosses"][name]
        assert extra(name, crosses) <= data["limit"] < extra(name, crosses + 1)
        assert xy(ax, f"{name} crosses") == [(crosses, data["limit"])]
        filled = [
            8 * n * d * 2 * heads + extra(name, n)
            for n in (data["fills"][name], data["fills"][name] + 1)
        ]
        assert filled[0] <= data["limit"] < filled[1]
    assert f"{data['fills']['flash']:,}" in " ".join(text.get_text() for text in ax.texts)
    assert {y for _, y in xy(ax, "limit")} == {40e9}
    inputs_outputs = [8 * n * d * 2 * heads for n in data["N"]]
    assert data["inputs_outputs"]["bytes"] == inputs_outputs
    assert data["arrays"]["standard"] == ["S", "P", "dP", "dS"]
    assert sorted(data["arrays"]["flash"]) == ["l", "m"]


# --------------------------------------------------------------------------------------------------
# Appendix B.5


def test_appendix_b5_draws_ratios_and_prints_counts() -> None:
    data = appendix_b5_data(dtype="float16", sizing="paper")
    ax = plot_appendix_b5(data)
    texts = {text.get_text().split("  ")[0] for text in ax.texts}
    for measure, counts in data["measures"].items():
        for name, counted in counts.items():
            ((ratio, _),) = xy(ax, f"{measure} {name}")
            assert ratio == counted / counts["flash"]
            assert f"{counted:,}" in texts
    assert data["products"] == {"flash": 5, "rabe_staats": 6, "memory_efficient": 8}
    measures = data["measures"]
    assert measures["forward accesses"]["flash"] == measures["forward accesses"]["rabe_staats"]
    difference = (
        measures["backward accesses"]["flash"] - measures["backward accesses"]["rabe_staats"]
    )
    assert difference == 2 * N * D  # dK and dV, set to zero
    of_tiles = data["T_c"] * N * (D + 2)
    assert measures["extra"] == {
        "flash": 2 * N,
        "rabe_staats": 2 * N + of_tiles,
        "memory_efficient": 2 * N,
    }


# --------------------------------------------------------------------------------------------------
# a run, by array


def test_arrays_draws_every_read_and_write_of_every_algorithm() -> None:
    data = arrays_data(dtype="float16")
    directions = data["directions"].items()
    for ax, (direction, bars) in zip(plot_arrays(data), directions, strict=True):
        drawn = widths(ax)
        for (name, by_array), text in zip(bars.items(), bar_titles(ax), strict=True):
            pattern = flashsim.patterns.butterfly if name == "block_sparse" else None
            options: dict[str, Any] = {
                "M": 51_200,
                "sizing": "fit",
                "direction": direction,
                "block_mask": pattern,
            }
            tally = flashsim.count(name, N=N, d=D, **options)
            assert tally.sram.over == 0
            by_array_of_data = {X: (a["reads"], a["writes"]) for X, a in by_array.items()}
            assert moved(tally) == by_array_of_data
            label = text.partition(":")[0]
            assert f": {tally.hbm.accesses:,}" in text
            assert ("cut" in text) == (tally.hbm.accesses > ax.get_xlim()[1])
            for array, parts in by_array.items():
                for way, elements in parts.items():
                    assert drawn.pop(f"{label} {array} {way}", 0) == elements
        assert not drawn


BEST = "the best blocks that fit"


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("pareto", "all block sizes"),
        *((name, BEST) for name in ("cache_size", "lower", "lower_backward")),
        ("fusing", "the largest blocks that fit"),
    ],
)
def test_figures_of_all_M_name_their_setting(name: str, blocks: str) -> None:
    """N, d, M, the dtype, who chose the blocks, and how many heads: below each axis, or along
    it.
    """
    data = record_of(name)["data"]
    labels = [ax.get_xlabel() for ax in plots.FIGURES[name].draw(data).axes]
    words = [label for label in labels if label]
    assert words
    for text in words:
        for part in ("N", f"d = {data['d']:,}", "float32", blocks, "one head"):
            assert part in text, text
        assert "M = " in text or "M / d²" in text or "size M" in text


@pytest.mark.parametrize("name", ["arrays", "appendix_b5", "sparsity", "l2"])
def test_figures_take_blocks_that_fit_and_say_what_line_1s_need(name: str) -> None:
    """By default the picture says that blocks fit; with line 1's it says what share of M they
    need.
    """
    chart = plots.FIGURES[name]
    for options, words in (
        ({}, "the largest blocks that fit M"),
        ({"sizing": "paper"}, "line 1's blocks: needs "),
    ):
        data = chart.data(N=96, d=8, M=600, **options)
        panels = chart.draw(data).axes
        assert all(words in ax.get_xlabel() and "float32" in ax.get_xlabel() for ax in panels), (
            options
        )
    peaks = data["sram_peak"] if name == "arrays" else {"": data["sram_peak"]}
    for ax, peak in zip(panels, peaks.values(), strict=True):
        assert f"needs {peak / 600:.0%} of M" in ax.get_xlabel()
    ways = ("forward",) if name == "l2" else ("forward", "backward")
    needs = []
    for way in ways:
        tally = flashsim.count("flash", N=96, d=8, M=600, direction=way, sizing="paper")
        needs.append(tally.sram.peak)
    assert max(peaks.values()) == max(needs)


@pytest.mark.parametrize(
    ("name", "direction"),
    [("theorem2", "forward"), ("theorem5", "backward")],
)
def test_each_panel_of_a_theorem_says_what_its_own_blocks_need(name: str, direction: str) -> None:
    data = record_of(name)["data"]
    axes = plots.FIGURES[name].draw(data).axes
    for ax, (variable, panel) in zip(axes, data["panels"].items(), strict=True):
        needs = []
        for value in panel["values"]:
            size = {**panel["fixed"], variable: value}
            tally = flashsim.count("flash", **size, direction=direction, sizing="paper")
            needs.append(tally.sram.peak / size["M"])
        least, most = (f"{share:.0%}" for share in (min(needs), max(needs)))
        words = least if least == most else f"{least} to {most}"
        assert ax.get_xlabel().endswith(
            f"{data['dtype']}, one head\nline 1's blocks: they need {words} of M"
        )


def bar_titles(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts if ": " in text.get_text()]


@pytest.fixture(scope="module")
def tallies() -> dict[str, flashsim.Result | flashsim.Result]:
    how: dict[str, Any] = {"M": 51_200, "dtype": "float16", "sizing": "paper"}
    return {name: flashsim.count(name, N=N, d=D, **how) for name in ("standard", "flash_basic")}


def test_run_draws_every_read_and_write(
    tallies: dict[str, flashsim.Result | flashsim.Result],
) -> None:
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
    assert {"2,100", "393", "65.5", "13.3"} <= set(texts)
    assert ax.get_title(loc="left") == "flash_basic: 3.64× fewer HBM accesses"
    assert ax.get_xlabel() == "HBM accesses (10³ elements)"
    assert legend_texts(ax) == ["read", "written"]
    assert figure_of(ax).get_figwidth() == 3.5
    assert_readable(figure_of(ax))
    Q, K, V = np.random.default_rng(0).standard_normal((3, 64, 8))
    run = flashsim.forward("flash_basic", Q, K, V)
    small = flashsim.count("flash_basic", N=64, d=8, M=64)
    for arguments, title in (
        ({"flash": run}, "flash: HBM accesses by array"),
        ({"a": run, "b": run}, "b: as many HBM accesses"),
        ({"flash": run, "small": small}, "small: .*× more HBM accesses"),
    ):
        assert re.match(title, plots.plot_run(arguments).get_title(loc="left"))
    with pytest.raises(ValueError, match="empty"):
        plots.plot_run({})


def test_the_eight_largest_arrays_of_a_bar_have_their_numbers_below_it() -> None:
    ax = canvas(None, 2.0)
    by_array = {f"A{n}": {"reads": 20 - n, "writes": 0} for n in range(9)}
    draw_bar(ax, 1, "run", by_array, 999)
    below = [text.get_text() for text in ax.texts if text.get_position()[1] == 1.38]
    assert below == [str(20 - n) for n in range(8)]


# ------------------------------------------------------------------------------------------------
# all, and the files


def test_the_main_figure_is_of_one_head() -> None:
    size: dict[str, Any] = {"N": 64, "d": 8, "M": 400}
    runs = {
        name: flashsim.count(name, **size, sizing="fit", heads=6)
        for name in ("standard", "flash_basic")
    }
    figure = plots.run_figure(runs, heads=6, **size, dtype="float32")
    assert figure.get_figwidth() == 3.5
    assert_readable(figure)
    by_array, by_block = figure.axes
    hbm = flashsim.count("flash_basic", **size, sizing="fit").hbm
    assert f"flash_basic: {hbm.accesses:,}" in [text.get_text() for text in by_array.texts]
    point = dict(xy(by_block, "theory"))
    assert hbm.accesses == point[flashsim.count("flash_basic", **size, sizing="fit").blocks.B_c]
    assert by_array.get_title(loc="left").startswith("Algorithm 1: ")
    assert by_array.get_xlabel() == "HBM accesses (elements), one head"
    assert by_block.get_ylabel() == "HBM accesses (10³ elements)"
    # a label that is not a subject
    runs = {name: flashsim.count(name, **size) for name in ("standard", "q_outer")}
    drawn = plots.run_figure(runs, **size, dtype="float32")
    title = drawn.axes[0].get_title(loc="left")
    assert re.fullmatch(r"loops exchanged: [\d.]+× fewer HBM accesses", title)


def test_given_axes_are_returned_and_settings_kept(
    tallies: dict[str, flashsim.Result | flashsim.Result],
) -> None:
    before = dict(matplotlib.rcParams)
    axes = list(Figure(figsize=(40, 3)).subplots(1, 16))
    assert plot_blocks(blocks_data(N=32, d=8), ax=axes[0]) is axes[0]
    arguments = axes[1:4]
    assert plot_theorem2(ax=arguments) is arguments
    assert plots.plot_run(tallies, ax=axes[4]) is axes[4]
    for name, draw_on, ax in (
        ("sparsity", plot_sparsity, axes[5]),
        ("memory", plot_memory, axes[6]),
        ("appendix_b5", plot_appendix_b5, axes[7]),
        ("theorem5", plot_theorem5, axes[8:11]),
        ("traffic", plot_traffic, axes[11:14]),
        ("arrays", plot_arrays, axes[14:]),
    ):
        assert draw_on(record_of(name)["data"], ax=ax) is ax
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("name", plots.FIGURES)
def test_figures_are_drawn_from_their_data_and_readable(name: str) -> None:
    """From what is kept of it: that this is what is counted now is
    `test_the_command_of_a_record_makes_its_data`'s.
    """
    chart = plots.FIGURES[name]
    figure = chart.draw(record_of(name)["data"])
    assert figure.get_figwidth() == (2.1 * 3.5 if name == "arrays" else 3.5)
    assert figure.get_figheight() < 9
    assert_readable(figure)
    assert chart.about


GPU_PICTURES: Any = runpy.run_path(str(ROOT / "scripts" / "gpu_figures.py"))["DRAWN"]


@pytest.mark.parametrize(
    ("record", "draw_it"),
    [
        pytest.param(record, draw_it, id=name)
        for record, pictures in GPU_PICTURES.items()
        for name, draw_it in pictures.items()
    ],
)
def test_a_gpu_s_picture_names_it_and_is_readable_on_a_phone(record: str, draw_it: Any) -> None:
    """One printed column, 3.5 inches: on a phone 8 points are 11 pixels."""
    measured = record_of(record)
    figure = figure_of(draw_it(measured))
    assert figure.get_figwidth() == 3.5
    assert_readable(figure)
    assert [text for text in words(figure) if MILLION.search(text)] == []
    assert any(measured["machine"]["gpu"] in text for text in words(figure))


MILLION = re.compile(r"\d ?[MG](?![A-Za-z/])")
"""A number with M or G behind it; MB, GB/s and M/d² are none."""


def test_a_million_is_told_from_M() -> None:
    for million in ("2M", "0.5 M", "12.3 G", "standard: 2 M\n"):
        assert MILLION.search(million)
    for other in ("M = 25,600", "100 MB", "1,555 GB/s", "2 M/d²", "10⁶", "needs 108% of M"):
        assert not MILLION.search(other)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", plots.FIGURES)
def test_M_is_the_size_of_sram_and_never_a_million(name: str, wide: bool) -> None:
    figure = plots.FIGURES[name].draw(record_of(name)["data"], wide=wide)
    figure.draw_without_rendering()
    assert [text for text in words(figure) if MILLION.search(text)] == []


def keys(figure: Figure) -> dict[str, Any]:
    """Return what each word of the figure's keys stands beside."""
    legends = [
        *figure.legends,
        *(legend for ax in figure.axes if (legend := ax.get_legend()) is not None),
    ]
    return {
        text.get_text(): handle
        for key in legends
        for text, handle in zip(key.texts, key.legend_handles, strict=True)
    }


def test_grey_bands_and_the_colours_of_bars_have_keys() -> None:
    approximate = plots.FIGURES["approximate"].draw(record_of("approximate")["data"])
    for figure in (figure_of(plot_figure_3(record_of("gpu_figure_3"))), approximate):
        (band,) = (
            patch for ax in figure.axes for patch in ax.patches if patch.get_gid() == "paper"
        )
        assert keys(figure)["the paper's crossings"].get_facecolor() == band.get_facecolor()
    figure = figure_of(plot_ladder(record_of("gpu_ladder")))
    colours = {bar.get_facecolor() for bar in figure.axes[0].patches}
    keyed = [
        handle.get_facecolor() for handle in keys(figure).values() if isinstance(handle, Rectangle)
    ]
    assert len(colours) == 3
    assert sorted(colours) == sorted(keyed)


SMALL: dict[str, Any] = {
    "N": 96,
    "d": 8,
    "M": 4000,
    "blocks": (8, 12),
}
OTHER: dict[str, Any] = {
    "N": 128,
    "N_q": 80,
    "d": 16,
    "d_v": 4,
    "M": "4KB",
    "dtype": "float64",
    "blocks": (4, 8),
    "machine": "H200",
    "algorithms": ["split_kv"],
}


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if isinstance(text, Text)]


@pytest.mark.slow
@pytest.mark.parametrize("name", plots.FIGURES)
def test_every_option_that_a_figure_takes_is_in_its_numbers_and_its_picture(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # each is tuned anew
    fewer = {"lower.LENGTHS": slice(2), "saved._PARTS": slice(None, None, 4)}
    for points, few in fewer.items():
        module, _, constant = points.partition(".")
        every = getattr(import_module(f"flashsim.plots.{module}"), constant)
        monkeypatch.setattr(f"flashsim.plots.{points}", every[few])
    monkeypatch.setattr("flashsim.plots.approximate._LAST", 256)
    chart = plots.FIGURES[name]
    theorem = name.startswith("theorem")
    small = {"N": 16_384, "d": 48, "M": 20_000} if theorem else SMALL
    other = {**OTHER, "N": 8192, "algorithms": ["q_outer"]} if theorem else OTHER
    arguments = {option: value for option, value in small.items() if option in chart.takes}
    arguments |= {"P": (1, 2)} if name == "hops" else {}
    options = set(chart.takes) & set(OTHER)
    before = json.dumps(chart.data(**arguments)) if options else ""
    drawn = words(chart.draw(json.loads(before))) if options else []
    for option in options:
        # what, given, would leave this nothing to change
        freed = {"dtype": "M", "M": "blocks"}.get(option)
        without = {name: value for name, value in arguments.items() if name != freed}
        point = before if without == arguments else json.dumps(chart.data(**without))
        changed = without | {option: other[option]}
        numbers = json.loads(json.dumps(chart.data(**changed)))
        claimed = () if option == "algorithms" else (option,)
        assert [
            key
            for key in numbers
            if key not in claimed and numbers[key] != json.loads(point).get(key)
        ], option
        assert without != arguments or words(chart.draw(numbers)) != drawn, option
    for option in set(OTHER) - options:
        with pytest.raises(TypeError, match=option):
            chart.data(**{option: OTHER[option]})


def test_the_legend_of_cache_size_covers_no_point() -> None:
    figure = plots.FIGURES["cache_size"].draw(record_of("cache_size")["data"])
    figure.draw_without_rendering()
    (ax,) = figure.axes
    legend = ax.get_legend()
    assert legend is not None
    box = legend.get_window_extent()
    assert ax.get_window_extent().x0 <= box.x0  # nor a number of the axis
    for line in ax.get_lines():
        if not str(line.get_gid()).startswith("M = "):
            points = np.asarray(line.get_xydata(), np.float64)
            drawn = points[np.isfinite(points[:, 1])]
            assert not box.count_contains(ax.transData.transform(drawn)), line.get_gid()


def test_slides_titles_are_whole_and_free() -> None:
    """Wider and taller than printed: a long title ends within the slide, and a legend below one
    stays below it.
    """
    chart = plots.FIGURES["same_curve"]
    figure = chart.draw(record_of("same_curve")["data"], wide=True)
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in readable(figure)]
    assert all(box.x1 <= figure.bbox.x1 for box in boxes)
    chart = plots.FIGURES["arrays"]
    figure = chart.draw(chart.data(N=48, d=4, M="1KB"), wide=True)
    figure.draw_without_rendering()
    title = next(text for text in readable(figure) if text.get_text().startswith("Forward:"))
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert not title.get_window_extent().overlaps(legend.get_window_extent())


def test_a_figure_by_name_on_axes_of_ones_own_and_as_a_slide() -> None:
    ax = Figure().subplots()
    assert plots.draw("pareto", N=24, d=4, M="1KB", ax=ax) is ax
    assert "N = 24, d = 4" in ax.get_xlabel()
    small: dict[str, Any] = {"N": 64, "d": 8}
    for name, panels, sizes in (("blocks", 1, small), ("theorem5", 3, {})):
        drawn = plots.draw(name, wide=True, **sizes)
        figure = plots.figure_of(drawn)
        drawn_panels = 1 if isinstance(drawn, Axes) else len(drawn)
        assert drawn_panels == panels == plots.FIGURES[name].panels
        assert figure.get_figwidth() * 9 == pytest.approx(figure.get_figheight() * 16)
        assert_readable(figure)
    for wrong, words in (
        ({"name": "nothing"}, "no figure 'nothing'"),
        ({"name": "traffic", "N": 64}, "traffic does not take N; it takes sizing"),
        ({"name": "cache_size", "M": 64}, "cache_size does not take M; it takes N, d, algorithms"),
        ({"name": "theorem2", "ax": Figure().subplots()}, "ax: got one; expected 3 axes"),
        ({"name": "blocks", "ax": ax, "wide": True}, "wide is for a new figure"),
    ):
        with pytest.raises(ValueError, match=words):
            plots.draw(**wrong)


def test_figures_have_the_same_defaults_as_counts() -> None:
    options = inspect.signature(flashsim.count).parameters
    for chart in plots.FIGURES.values():
        # times are of the type that rates are of
        of_rates = "flops" in chart.takes or chart.name == "roofline"
        for name in ("M",) if of_rates else ("M", "dtype"):
            assert chart.takes.get(name, options[name].default) == options[name].default


def test_arguments_of_counts_of_a_figure_over_lengths_have_no_length() -> None:
    """What is left are arguments of a count, to which the figure adds each N."""
    arguments = count_arguments(d=8, M="1KB", dtype="float16")
    assert arguments == {"d": 8, "M": 512, "dtype": "float16", "sizing": "fit"}
    assert count_arguments(N=64, d=8, M="1KB", dtype="float16") == {"N": 64, **arguments}
    with pytest.raises(ValueError, match=r"^N is 0; expected "):
        count_arguments(N=0, d=8, M=None, dtype="float16")


def test_the_size_asked_for_is_the_size_counted() -> None:
    how: dict[str, Any] = {
        "N": 128,
        "d": 8,
        "M": "2KB",
        "dtype": "float16",
    }
    data = plots.FIGURES["pareto"].data(**how)
    assert (data["N"], data["M"]) == (128, 1024)
    B_r, B_c, peak, accesses = data["algorithms"]["flash"]["best"]
    tally = flashsim.count("flash", **how, blocks=(B_r, B_c))
    assert tally.sram.peak == peak
    assert tally.hbm.accesses == accesses
    measures = appendix_b5_data(N=96, d=8, blocks=(8, 12))["measures"]
    tally = flashsim.count("flash", N=96, d=8, blocks=(8, 12))
    assert measures["forward accesses"]["flash"] == tally.hbm.accesses
    with pytest.raises(flashsim.SramOverflow):
        arrays_data(N=96, d=8, M=600, blocks=(64, 64))
    with pytest.raises(ValueError, match="no range of"):
        theorem2_data(N=64, M=10**6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        {"N": 4096, "d": 128, "M": 116_736},
        {"N": 300, "d": 32, "M": 4096},
    ],
)
def test_blocks_is_readable_at_other_shapes(shape: dict[str, Any]) -> None:
    assert_readable(figure_of(plot_blocks(blocks_data(**shape))))


@pytest.mark.slow
def test_approximations_are_drawn_where_closed_forms_cross(monkeypatch: pytest.MonkeyPatch) -> None:
    data = plots.FIGURES["approximate"].data(d=16, k=64, M=4096)
    axes = plots.FIGURES["approximate"].draw(data).axes
    shape: dict[str, Any] = {"d": 16, "M": 4096}
    for name in ("linformer", "performer"):
        point = data["crosses"][name]["q_outer"]
        for N, fewer in ((point - 64, False), (point, True), (point + 64, True)):
            approximated = approximate.count(name, N=N, k=64, **shape)
            attention = flashsim.count("q_outer", N=N, sizing="fit", **shape)
            assert (approximated.hbm.accesses < attention.hbm.accesses) == fewer
        assert {x for x, _ in xy(axes[0], f"{name} crosses")} == {point}
        tally = approximate.count(name, N=512, k=64, **shape)
        assert (512, tally.hbm.accesses) in xy(axes[0], f"{name} accesses")
        assert (512, tally.flops.matmul) in xy(axes[1], f"{name} flops")
        assert (512, tally.hbm.extra) in xy(axes[2], f"{name} extra")
    assert data["C"] == 36  # the most that fit
    smyrf = approximate.exact("smyrf", N=9999, rounds=4, C=36, **shape)
    assert smyrf.sram.over == 0
    reformer = approximate.exact("reformer", N=9999, rounds=4, C=37, **shape)
    assert reformer.sram.over > 0
    tally = approximate.count("reformer", N=512, rounds=4, C=36, **shape)
    assert (512, tally.hbm.accesses) in xy(axes[0], "reformer accesses")
    assert (512, tally.flops.matmul) in xy(axes[1], "reformer flops")
    assert (512, tally.hbm.extra + 2 * 4 * 512) in xy(axes[2], "smyrf extra")
    with pytest.raises(
        ValueError, match="C is 37; expected clusters that fit in M = 4,096 elements, d = 16"
    ):
        plots.FIGURES["approximate"].data(d=16, k=64, M=4096, C=37)
    for M, words in (
        (1, "M is 1; expected at least 33 elements, which 'standard' needs"),
        (100, "cuts N = 8,192 into 8,192 × "),
    ):
        with pytest.raises(ValueError, match=words):
            plots.FIGURES["approximate"].data(d=16, k=64, M=M)
    window = flashsim.count("sliding_window", N=512, window=(32, 31), sizing="fit", **shape)
    assert (512, window.hbm.accesses) in xy(axes[0], "sliding_window accesses")
    assert (512, 2 * 512**2) in xy(axes[2], "standard extra")
    # crossings are not looked for below
    monkeypatch.setattr("flashsim.plots.approximate._LAST", 128)
    paper = plots.FIGURES["approximate"].data(d=16, M=4096)
    axes = plots.FIGURES["approximate"].draw(paper).axes
    for N, k, C in ((128, 16, 4), (512, 64, 16), (8192, 256, 36)):
        linformer = approximate.count("linformer", N=N, k=k, **shape)
        assert (N, linformer.hbm.accesses) in xy(axes[0], "linformer accesses")
        counted = approximate.count("smyrf", N=N, rounds=4, C=C, **shape)
        assert (N, counted.flops.matmul) in xy(axes[1], "smyrf flops")
    assert "k = min(N/8, 256)" in axes[2].get_xlabel()
    none = plots.FIGURES["approximate"].data(d=16, k=4096, M=4096)
    assert none["crosses"]["linformer"]["q_outer"] is None
    drawn = plots.FIGURES["approximate"].draw(none)
    assert "crosses" not in [line.get_gid() for line in drawn.axes[0].get_lines()]


def test_save_writes_three_files_the_same_every_time(tmp_path: Path) -> None:
    data = blocks_data(N=64, d=8)
    contents = []
    for folder in ("a", "b"):
        figure = plots.column_figure(3.4)
        plot_blocks(data, ax=figure.subplots())
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
    colours = (pixels * 255).round().astype(np.uint8).view(np.uint32)
    assert len(np.unique(colours)) > 100


def test_every_algorithm_has_a_look_of_its_own() -> None:
    result = looks([*FORWARD, "mine.py:f", "mine.py:g"])
    assert result["flash"] == looks(["flash"])["flash"]
    assert result["mine.py:f"].label == "mine.py:f"
    drawn = looks([*compared(), "mine.py:f", "mine.py:g"]).values()
    assert (
        len({(look.colour, look.marker) for look in drawn})
        == len({look.label for look in drawn})
        == len(drawn)
    )


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("pareto", {"N": 16, "d": 2, "M": 100}),
        ("cache_size", {"N": 16, "d": 2}),
        ("blocks", {"N": 16, "d": 4, "backward": False}),
        ("arrays", {}),
        ("theorem2", {}),
    ],
)
def test_ones_own_algorithm_is_drawn_too(name: str, size: dict[str, Any], tmp_path: Path) -> None:
    chart = plots.FIGURES[name]
    mine = two_sweeps(tmp_path / "mine.py")
    data = json.loads(json.dumps(chart.data(**size, algorithms=[mine])))
    axes = chart.draw(data).axes
    own = "mine.py:two_sweeps"

    def counted(**shape: Any) -> int:
        return flashsim.count(mine, **shape).hbm.accesses

    match name:
        case "pareto":
            frontier = [
                (peak, accesses) for _, _, peak, accesses in data["algorithms"][own]["frontier"]
            ]
            assert xy(axes[0], f"{own} frontier") == frontier
            B_r, B_c, _, accesses = data["algorithms"][own]["best"]
            assert accesses == counted(**size, blocks=(B_r, B_c))
        case "cache_size":
            best = best_of(mine, N=16, d=2, M=data["M"][-1])
            assert best is not None
            assert xy(axes[0], own)[-1][1] == best.accesses
        case "blocks":
            accesses = counted(N=16, d=4, M=10**6, blocks=(4, 16))
            assert xy(axes[0], own)[-1] == (16, accesses)
        case "arrays":
            accesses = counted(N=N, d=D)
            assert f"{own}: {accesses:,}" in [text.get_text() for text in axes[0].texts]
            assert own not in data["directions"]["backward"]
        case "theorem2":
            accesses = counted(N=1024, d=64, sizing="paper")
            assert xy(axes[0], own)[0] == (1024, accesses)
            assert round(data["panels"]["M"]["fits"][own]["slope"]) == -1


def test_where_fusing_pays_is_read_off_the_curves() -> None:
    rooms = [1, 2, 4, 8]
    for accesses, M in (
        ({"x": [80, 40, 20, 10], "y": [40, 40, 40, 40], "z": [99, 99, 99, 30]}, 2),
        ({"x": [80, 40, 20, 10], "y": [28.3, 28.3, 28.3, 28.3]}, 2**1.5),
        ({"x": [None, 40, 20, 10], "y": [50, 50, 50, 50]}, 2),
        ({"x": [9, 9, 9, 9], "y": [5, 50, 50, 5]}, None),
    ):
        result = pays_from(rooms, accesses, ["x"])  # type: ignore[arg-type]
        assert result == (None if M is None else pytest.approx(M, rel=1e-3))


def record_of(name: str) -> dict[str, Any]:
    """Return the record of a figure that the repository keeps."""
    record: dict[str, Any] = json.loads(
        (ROOT / "figures" / f"{name}.json").read_text(encoding="utf-8")
    )
    return record


@pytest.mark.usefixtures("no_pictures")
def test_all_are_drawn_by_the_commands_of_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the records' data and bare axes, which two tests here count and draw."""
    monkeypatch.chdir(tmp_path)
    options: dict[str, dict[str, Any]] = {}

    def recorded(name: str, chart: plots.Chart) -> plots.Chart:
        def data(**arguments: Any) -> dict[str, Any]:
            options[name] = arguments
            result: dict[str, Any] = record_of(name)["data"]
            return result

        return replace(chart, data=data, draw_on=lambda data, axes: None)

    charts = {name: recorded(name, chart) for name, chart in plots.FIGURES.items()}
    monkeypatch.setattr(plots, "FIGURES", charts)
    assert main(["plot", "--all", "-o", "figures"]) == 0
    assert options == {name: chart.docs_arguments for name, chart in charts.items()}
    saved = capsys.readouterr().out.splitlines()
    for name, message in zip(charts, saved, strict=True):
        files = [f"figures/{name}{suffix}" for suffix in (".png", ".svg", ".json")]
        assert message == "Saved " + ", ".join(files)
        made = json.loads((tmp_path / "figures" / f"{name}.json").read_text(encoding="utf-8"))
        record = record_of(name)
        assert made["command"] == record["command"]
        assert made["data"] == record["data"]


EXACT = [name for name, chart in plots.FIGURES.items() if chart.exact]


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("name", EXACT)
def test_the_command_of_a_record_makes_its_data(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record = record_of(name)
    assert main(shlex.split(record["command"])[1:]) == 0
    made = json.loads((tmp_path / "figures" / f"{name}.json").read_text(encoding="utf-8"))
    assert made["command"] == record["command"]
    assert made["data"] == record["data"]


@pytest.mark.parametrize(
    ("direction", "made"), [("forward", lower_data), ("backward", lower_backward_data)]
)
def test_the_pictures_of_lower_bounds_show_what_a_count_of_that_pass_moves(
    direction: str, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lower, "LENGTHS", ())
    monkeypatch.setattr(lower, "CACHES", (2.0,))
    (point,) = made(N=128, d=8)["by_M"]
    for name, accesses in point["accesses"].items():
        choice = best_of(name, N=128, d=8, M=point["M"], direction=direction)
        assert choice
        how: dict[str, Any] = {"M": point["M"], "direction": direction}
        blocks = choice.blocks.B_r, choice.blocks.B_c
        tally = flashsim.count(name, N=128, d=8, blocks=blocks, **how)
        assert accesses == tally.hbm.accesses
    assert 0 < point["bound"] <= min(point["accesses"].values())

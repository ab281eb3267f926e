"""A sweep's picture: data against counts, one line for each algorithm, ticks, what does not fit,
and whose settings it has.
"""

import io
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text

import flashsim
from flashsim import theory
from flashsim.analysis.sweeping import Sweep
from flashsim.analysis.sweeping.series import sweep_data
from flashsim.cli import main
from tests.helpers.cases import Arguments

M = 25_600
SIZES = (16, 32, 48, 64, 80)
NAMES = ("FlashAttention", "loops exchanged")


def of_blocks(algorithms: Any = ("flash", "q_outer"), **how: Any) -> Sweep:
    squares = [(side, side) for side in SIZES]
    arguments: Arguments = {"N": [1024], "d": [64], "M": [M], "blocks": squares, "check": 0}
    return flashsim.sweep(algorithms=list(algorithms), **arguments | how)


def series(ax: Axes) -> dict[str, Line2D]:
    lines = [line for line in ax.get_lines() if line.get_gid() == "series"]
    return {str(line.get_label()): line for line in lines}


def xy(line: Line2D) -> list[tuple[int, int]]:
    points = np.asarray(line.get_xydata(), float)
    return [(int(x), int(y)) for x, y in points]


def shades(ax: Axes) -> list[Rectangle]:
    return [
        patch
        for patch in ax.patches
        if isinstance(patch, Rectangle) and patch.get_gid() == "does not fit"
    ]


def reason(ax: Axes) -> str:
    (text,) = [text for text in ax.texts if text.get_gid() == "why"]
    return str(text.get_text())


def shown_ticks(ax: Axes) -> list[str]:
    low, high = ax.get_xlim()
    pairs = zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)
    return [label.get_text() for tick, label in pairs if low <= tick <= high]


@pytest.fixture(scope="module")
def blocks() -> Sweep:
    return of_blocks()


# -------------------------------------------------------------------------------------------------
# accesses against B_c


def test_each_algorithm_is_one_connected_line_of_what_is_counted(blocks: Sweep) -> None:
    ax = Figure().subplots()
    assert blocks.plot(x="B_c", ax=ax) is ax
    assert tuple(series(ax)) == NAMES
    sizes = [side for side in SIZES if side < 80]
    for name, line in zip(("flash", "q_outer"), series(ax).values(), strict=True):
        counted = []
        for side in sizes:
            blocks_of_side = (side, side)
            tally = flashsim.count(name, N=1024, d=64, M=M, blocks=blocks_of_side)
            counted.append(tally.hbm.accesses)
        assert xy(line) == list(zip(sizes, counted, strict=True))
        assert line.get_linestyle() == "-"
        assert line.get_marker() not in ("", "None", None)
    legend = ax.get_legend()
    assert legend is not None
    assert tuple(text.get_text() for text in legend.get_texts()) == NAMES
    assert "$B_c$" in ax.get_xlabel()
    assert ax.get_ylabel() == "HBM accesses (10⁶ elements)"
    assert shown_ticks(ax) == ["16", "32", "48", "64", "80"]
    low, high = ax.get_ylim()
    texts = [
        label.get_text()
        for tick, label in zip(ax.get_yticks(), ax.get_yticklabels(), strict=True)
        if low <= tick <= high
    ]
    assert len(texts) >= 3
    assert [float(text) * 1e6 for text in texts] == [
        tick for tick in ax.get_yticks() if low <= tick <= high
    ]


def test_what_does_not_fit_is_grey_with_its_reason(blocks: Sweep) -> None:
    ax = blocks.plot(x="B_c")
    (shade,) = shades(ax)
    assert shade.get_x() == 80
    assert shade.get_x() + shade.get_width() >= ax.get_xlim()[1]
    assert "M = 25,600" in reason(ax)
    assert "$B_c$ = 80" in reason(ax)
    for side, fits in ((64, True), (80, False)):
        exact = theory.exact("flash", N=1024, d=64, M=M, blocks=(side, side))
        assert (exact.sram.peak <= M) == fits


def test_limits_that_differ_are_said_by_algorithm() -> None:
    squares = [(side, side) for side in range(16, 161, 8)]
    swept = of_blocks(["flash", "standard"], blocks=squares)
    first: dict[str, int] = {}
    for row in swept:
        if row["status"] == "does not fit":
            first.setdefault(row["algorithm"], row["B_c"])
    assert first["flash"] != first["standard"]
    ax = swept.plot(x="B_c")
    assert sorted(shade.get_x() for shade in shades(ax)) == sorted(first.values())
    assert f"from $B_c$ = {first['flash']} on: FlashAttention" in reason(ax)
    assert f"from $B_c$ = {first['standard']} on: standard" in reason(ax)


def test_no_more_than_a_fifth_is_grey_where_nothing_fits() -> None:
    swept = of_blocks(blocks=[(side, side) for side in range(16, 257, 16)])
    ax = swept.plot(x="B_c")
    (shade,) = shades(ax)
    to_axes = ax.transData + ax.transAxes.inverted()
    assert shade.get_x() == 80
    assert 0.8 <= to_axes.transform((80, 1))[0] < 1


def test_a_memory_that_is_too_small_is_grey_on_the_left() -> None:
    rooms = [2000, 4000, 8000, 16_000, 32_000, 64_000]
    options: Arguments = {"d": 64, "blocks": (32, 32), "check": 0}
    swept = flashsim.sweep(["flash", "q_outer"], N=1024, M=rooms, **options)
    flash = [row for row in swept if row["algorithm"] == "flash"]
    lacking = [row["M"] for row in flash if row["status"] == "does not fit"]
    assert lacking == [2000, 4000, 8000][: len(lacking)] != []
    ax = swept.plot()
    (shade,) = shades(ax)
    assert shade.get_x() <= ax.get_xlim()[0]
    assert shade.get_x() + shade.get_width() == lacking[-1]
    assert "up to" in reason(ax)


def test_where_all_fits_nothing_is_grey() -> None:
    ax = of_blocks(blocks=[(16, 16), (32, 32)]).plot(x="B_c")
    assert shades(ax) == []
    assert [text for text in ax.texts if text.get_gid() == "why"] == []


def test_an_algorithm_of_which_nothing_fits_is_said() -> None:
    swept = of_blocks(["flash", "standard"], blocks=[(80, 80), (96, 96)])
    assert {row["algorithm"] for row in swept.ok} == {"standard"}
    assert "at no size: FlashAttention" in reason(swept.plot(x="B_c"))


# --------------------------------------------------------------------------------------------------
# the series


OBLONG = [(B_r, B_c) for B_r in (16, 32) for B_c in (16, 32, 48)]
OF_64_ROWS = [(64, B_c) for B_c in (16, 32, 48)]


@pytest.mark.parametrize(
    ("arguments", "x", "labels"),
    [
        ({"N": [512, 1024]}, "B_c", ["FlashAttention, N = 512", "FlashAttention, N = 1,024"]),
        (
            {"d": [32, 64], "N": [512, 1024]},
            "B_c",
            [f"N = {N}, d = {d}" for N in ("512", "1,024") for d in (32, 64)],
        ),
        (
            {"causal": [False, True]},
            "B_c",
            ["FlashAttention, not causal", "FlashAttention, causal"],
        ),
        ({}, "B_r", ["FlashAttention"]),
        ({}, "peak", ["FlashAttention"]),
        ({}, None, ["FlashAttention"]),
        ({"blocks": OBLONG}, "B_c", ["$B_r$ = 16", "$B_r$ = 32"]),
        ({"blocks": OBLONG}, "B_r", [f"$B_c$ = {B}" for B in (16, 32, 48)]),
        ({"blocks": OF_64_ROWS}, "B_c", ["FlashAttention"]),
        ({"blocks": [None], "M": [10_000, 20_000, 40_000]}, "B_c", ["FlashAttention"]),
    ],
)
def test_lines_are_made_by_all_that_varies_besides_x(
    arguments: dict[str, Any], x: str | None, labels: list[str]
) -> None:
    ax = of_blocks(["flash"], **arguments).plot(x=x)
    named = [label.removeprefix("FlashAttention, ") for label in series(ax)]
    assert sorted(named) == sorted(label.removeprefix("FlashAttention, ") for label in labels)
    for line in series(ax).values():
        assert line.get_linestyle() != "None"
        assert len(xy(line)) > 1


@pytest.mark.parametrize(
    ("x", "values"),
    [
        ("N", [128, 256, 512, 1024]),
        ("d", [16, 32, 64]),
        ("M", [10_000, 20_000, 40_000]),
    ],
)
def test_other_columns_are_drawn_likewise(x: str, values: list[int]) -> None:
    arguments: Arguments = {"N": 512, "d": 32, "M": M, "sizing": "fit"}
    swept = flashsim.sweep(["flash", "q_outer"], **arguments | {x: values}, check=0)
    ax = swept.plot(x=x)
    assert tuple(series(ax)) == NAMES
    for name, line in zip(("flash", "q_outer"), series(ax).values(), strict=True):
        counted = []
        for value in values:
            tally = flashsim.count(name, **arguments | {x: value})
            counted.append((value, tally.hbm.accesses))
        assert xy(line) == counted
    assert shown_ticks(ax) == [f"{value:,}" for value in values]


def test_axes_are_logarithmic_where_a_range_asks_for_them() -> None:
    options: Arguments = {"d": 64, "sizing": "fit", "check": 0}
    narrow = flashsim.sweep("flash", N=[256, 300, 400], **options).plot()
    assert narrow.get_xscale() == "linear"
    assert narrow.get_yscale() == "linear"
    wide = flashsim.sweep("flash", N=[64, 300, 4000], **options).plot()
    assert wide.get_xscale() == "log"
    assert wide.get_yscale() == "log"


def test_what_is_fixed_is_in_the_title(blocks: Sweep) -> None:
    title = " ".join(blocks.plot(x="B_c").get_title().split())
    assert title == "forward, N = 1,024, d = 64, M = 25,600, heads = 1, float32"
    columns = of_blocks(["flash"], blocks=OF_64_ROWS).plot(x="B_c")
    assert "$B_r$ = 64" in " ".join(columns.get_title().split())


# --------------------------------------------------------------- what must move, and what is proved


def test_what_must_move_and_the_lower_bound_are_drawn_if_asked() -> None:
    swept = of_blocks(bound=True)
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({}, {"lower bound"}),
        ({"bound": False}, set()),
        ({"compulsory": True, "bound": False}, {"compulsory"}),
        ({"compulsory": True, "bound": True}, {"compulsory", "lower bound"}),
    ]
    for options, gids in cases:
        ax = swept.plot(x="B_c", **options)
        lines = {line.get_gid(): line for line in ax.get_lines()}
        del lines["series"]
        assert {*lines} == gids
        if "compulsory" in gids:
            assert {y for _, y in xy(lines["compulsory"])} == {4 * 1024 * 64}
        if "lower bound" in gids:
            bound = swept[0]["lower_bound_elements"]
            assert {y for _, y in xy(lines["lower bound"])} == {bound}
    with pytest.raises(
        ValueError,
        match=r"bound=True: this sweep has no lower bounds; flashsim\.sweep\(…, bound=True\) finds",
    ):
        of_blocks().plot(x="B_c", bound=True)
    floors: list[dict[str, Any]] = [{"compulsory": True}, {"bound": True}]
    for floor in floors:
        with pytest.raises(ValueError, match="=True is of accesses; y is 'peak_elements'"):
            swept.plot(x="B_c", y="peak", **floor)


# --------------------------------------------------------------------------------------------------
# whose settings


SERIF: Any = {
    "font.family": "serif",
    "font.size": 13,
    "axes.spines.right": True,
    "lines.linewidth": 3,
}


def test_axes_of_ones_own_keep_their_settings(blocks: Sweep) -> None:
    with mpl.rc_context(SERIF):
        ax = Figure(figsize=(8, 5), dpi=77).subplots()
        before = dict(mpl.rcParams)
        blocks.plot(x="B_c", ax=ax)
        assert dict(mpl.rcParams) == before
        figure = ax.figure
        assert isinstance(figure, Figure)
        assert (figure.dpi, [*figure.get_size_inches()]) == (77, [8, 5])
        assert all(spine.get_visible() for spine in ax.spines.values())
        assert all(
            spine.get_linewidth() == mpl.rcParams["axes.linewidth"] for spine in ax.spines.values()
        )
        assert ax.xaxis.label.get_fontsize() == 13
        assert {label.get_fontsize() for label in ax.get_xticklabels()} == {13}
        assert {line.get_linewidth() for line in series(ax).values()} == {3}
        legend = ax.get_legend()
        assert legend is not None
        labels = [ax.xaxis.label, ax.yaxis.label, ax.title]
        texts = [*ax.texts, *legend.get_texts(), *labels]
        assert {text.get_fontfamily()[0] for text in texts} == {"serif"}
    smaller = mpl.rc_context({"font.size": 6})
    with smaller:
        small = blocks.plot(x="B_c", ax=Figure().subplots())
    for a, b in zip(small.texts, ax.texts, strict=True):
        size_of_6 = float(a.get_fontsize()) / 6
        size_of_13 = float(b.get_fontsize()) / 13
        assert size_of_6 == pytest.approx(size_of_13)


def test_what_is_drawn_before_stays_in_view(blocks: Sweep) -> None:
    ax = Figure().subplots()
    ax.plot([300, 400], [1, 2])
    blocks.plot(x="B_c", ax=ax)
    assert ax.get_xlim()[1] >= 400


def test_a_new_figure_has_the_size_and_the_colours_of_the_settings(blocks: Sweep) -> None:
    dark: Any = {
        "figure.figsize": (5, 3),
        "figure.facecolor": "black",
        "axes.facecolor": "black",
        "text.color": "white",
    }
    with mpl.rc_context(dark):
        ax = blocks.plot(x="B_c")
        assert [*ax.figure.get_size_inches()] == [5, 3]  # type: ignore[union-attr]
        assert ax.get_facecolor() == ax.figure.get_facecolor() == (0, 0, 0, 1)
        assert {line.get_markerfacecolor() for line in series(ax).values()} == {
            (0.0, 0.0, 0.0, 1.0)
        }
        (why,) = [text for text in ax.texts if text.get_gid() == "why"]
        assert why.get_color() == "white"
        notebook: Any = ax
        assert notebook._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
def test_a_picture_is_saved_in_each_form(form: str, blocks: Sweep) -> None:
    file = io.BytesIO()
    blocks.plot(x="B_c").figure.savefig(file, format=form)  # type: ignore[union-attr]
    assert len(file.getvalue()) > 5000


# --------------------------------------------------------------------------------------------------
# nothing overlaps


def words_of(figure: Figure) -> Iterator[Text]:
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks():
                tick.label1.set_visible(low <= tick.get_loc() <= high)
                tick.label2.set_visible(False)
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        if text.get_visible() and text.get_text().strip():
            yield text


def assert_nothing_overlaps(ax: Axes) -> None:
    figure = ax.figure
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()
    boxes = {text: text.get_window_extent() for text in words_of(figure)}
    assert len(boxes) > 8
    for text, box in boxes.items():
        assert box.x0 >= -1, text
        assert box.y0 >= -1, text
        assert box.x1 <= figure.bbox.x1 + 1, text
        assert box.y1 <= figure.bbox.y1 + 1, text
    texts = list(boxes)
    for number, one in enumerate(texts):
        for other in texts[number + 1 :]:
            box = boxes[one].padded(-0.5)
            assert not box.overlaps(boxes[other].padded(-0.5)), (one, other)
    legend = ax.get_legend()
    whys = [text for text in ax.texts if text.get_gid() == "why"]
    for line in series(ax).values():
        path = ax.transData.transform(np.asarray(line.get_xydata(), float))
        pieces = [np.linspace(a, b, 50) for a, b in pairwise(path)]
        dense = np.concatenate(pieces)
        if legend is not None:
            assert not legend.get_window_extent().count_contains(dense)
        for why in whys:
            assert not why.get_window_extent().count_contains(dense)


@pytest.mark.parametrize(("size", "points"), [((3.3, 2.8), 8), ((6.4, 4.8), 10), ((12, 6.75), 18)])
@pytest.mark.parametrize("settings", [{}, {"font.family": "serif"}])
@pytest.mark.parametrize("which", ["two", "range", "four", "length"])
def test_nothing_overlaps_at_any_size(
    which: str, settings: Any, size: tuple[float, float], points: int, blocks: Sweep
) -> None:
    squares = [(side, side) for side in range(16, 257, 16)]
    lengths = [2**e for e in range(7, 14)]
    if which == "two":
        swept = blocks
    elif which == "range":
        swept = of_blocks(["flash", "q_outer", "standard"], blocks=squares)
    elif which == "four":
        swept = of_blocks(N=[1024, 2048])
    else:
        names = ["flash", "standard"]
        swept = flashsim.sweep(names, N=lengths, d=64, sizing="fit", check=0)
    with mpl.rc_context({"figure.figsize": size, "font.size": points, **settings}):
        assert_nothing_overlaps(swept.plot(compulsory=which == "two"))


# --------------------------------------------------------------------------------------------------
# the command line


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


COMMAND = ["sweep", "flash", "q_outer", "--N", "1024", "--d", "64", "--check", "0"]


@pytest.mark.parametrize(
    ("typed", "pairs"),
    [
        (["16..64:16"], [(16, 16), (32, 32), (48, 48), (64, 64)]),
        (["16:64:x2"], [(16, 16), (32, 32), (64, 64)]),
        (["64", "16..48:16"], [(64, 16), (64, 32), (64, 48)]),
        (["32", "48"], [(32, 48)]),
        (["8..16:8", "16..32:16"], [(8, 16), (8, 32), (16, 16), (16, 32)]),
    ],
)
def test_ranges_of_blocks(typed: list[str], pairs: list[tuple[int, int]], here: Path) -> None:
    assert main([*COMMAND, "--blocks", *typed, "--json", "rows.json"]) == 0
    rows = json.loads(Path("rows.json").read_text(encoding="utf-8"))["rows"]
    flash = [row for row in rows if row["algorithm"] == "flash"]
    assert [(row["B_r"], row["B_c"]) for row in flash] == pairs
    assert here


def test_ranges_of_blocks_add_up(here: Path) -> None:
    assert (
        main([*COMMAND, "--blocks", "16..32:16", "--blocks", "64", "88", "--json", "rows.json"])
        == 0
    )
    rows = json.loads(Path("rows.json").read_text(encoding="utf-8"))["rows"]
    assert [row["blocks"] for row in rows[:3]] == ["16 × 16", "32 × 32", "64 × 88"]
    assert here


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (
            ["64"],
            (
                "argument --blocks: got '64'; expected B_r B_c, as 64 88, or a range of square "
                "blocks, as 16..256:16"
            ),
        ),
        (["16", "32", "48"], "argument --blocks: got '16 32 48'; expected B_r B_c"),
        (
            ["16..256"],
            "argument --blocks: got '16..256'; expected START..STOP:STEP, as 128..4096:128",
        ),
        (["256..16:16"], "argument --blocks: got '256..16:16'; expected a range from 256 up"),
        (["16..64:0"], "argument --blocks: got '0'; expected a whole number of at least 1"),
        (["x"], "argument --blocks: got 'x'"),
        (["16...64:16"], "argument --blocks: got"),
    ],
)
def test_what_is_no_range_of_blocks_is_said(
    typed: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, "--blocks", *typed]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert here


def test_the_command_line_draws_the_same(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    options = [word for form in files for word in (f"--{form}", f"p.{form}")]
    assert main([*COMMAND, "--blocks", "16..256:16", *options]) == 0
    assert "Saved p.png, p.svg, p.pdf" in capsys.readouterr().out
    for form, start in files.items():
        content = Path(f"p.{form}").read_bytes()
        assert content.startswith(start)
    first = {form: Path(f"p.{form}").read_bytes() for form in files}
    assert main([*COMMAND, "--blocks", "16..256:16", *options]) == 0
    assert {form: Path(f"p.{form}").read_bytes() for form in files} == first
    assert here


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["--png", "p.svg"], "argument --png: got 'p.svg'; expected a file that ends in .png"),
        (
            ["--png", "no/p.png"],
            "argument --png: no/p.png cannot be written: there is no folder no",
        ),
        (["--png", "p.png", "-o", "p"], "argument --png: p.png is what -o writes too"),
        (["--compulsory"], "--compulsory is for a picture: give --png FILE, or -o STEM"),
    ],
)
def test_pictures_that_cannot_be_written_are_said_before_the_work(
    typed: list[str],
    message: str,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*args: Any, **how: Any) -> None:
        raise AssertionError("counted before the target was checked")

    monkeypatch.setattr("flashsim.analysis.sweeping.running.sweep", never)
    assert main([*COMMAND, "--blocks", "16..32:16", *typed]) == 2
    assert message in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_data_says_what_does_not_fit(blocks: Sweep) -> None:
    data = json.loads(json.dumps(sweep_data(blocks, x="B_c")))
    assert [line["unfit"] for line in data["lines"]] == [[80], [80]]
    assert [line["of"] for line in data["lines"]] == [
        {"algorithm": "flash"},
        {"algorithm": "q_outer"},
    ]

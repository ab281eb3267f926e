"""Sweeps beside what no schedule can beat: the bound's columns, what the picture says, and a
bundle that is made again.
"""

import csv
import io
import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

import flashsim
from flashsim.analysis.sweeping import Sweep
from flashsim.attention.masks import patterns
from flashsim.cli import main
from flashsim.plots import figure_of, plot_sweep, sweep_data
from flashsim.theory import lower_bound
from flashsim.theory.bounds import certificate
from tests.helpers.cases import Arguments
from tests.helpers.own import TWO_SWEEPS, two_sweeps

OPTIONS: Arguments = {"d": 8, "M": 300, "sizing": "fit", "bound": True}
OF_64 = OPTIONS | {"N": 64}
OF_96 = OPTIONS | {"N": 96}
OPTIONS |= {"N": [40, 96]}


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_bound_is_that_of_prove(direction: str, causal: bool) -> None:
    sweep = flashsim.sweep(["flash", "q_outer"], **OPTIONS, direction=direction, causal=causal)
    for row in sweep:
        proof = flashsim.prove(N=row["N"], d=8, M=300, direction=direction, causal=causal)
        assert row["lower_bound_elements"] == proof.bound.accesses
        assert row["over_bound"] == row["accesses_elements"] / proof.bound.accesses >= 1
        assert row["no_bound"] is None
    assert [each["bound"] for each in sweep.certificates] == sorted(
        {row["lower_bound_elements"] for row in sweep}
    )
    assert all(certificate.check(each) for each in sweep.certificates)


def test_heads_that_share_a_KV_head_are_rows_of_one_problem() -> None:
    for gqa in ("separate", "grouped"):
        sharing: dict[str, Any] = {"heads": 8, "kv_heads": 2, "gqa": gqa}
        sweep = flashsim.sweep("q_outer", **OF_64, **sharing, causal=True)
        (row,) = sweep
        (proof,) = sweep.certificates
        assert proof["allowed"] == "given"  # the rows of four heads are not one triangle
        assert row["lower_bound_elements"] > row["compulsory_elements"]
        pairs = 4 * 64 * 65 // 2
        one = lower_bound(N_q=4 * 64, N_k=64, d=8, M=300, pairs=pairs)
        assert row["lower_bound_elements"] == 2 * one.accesses
        assert row["over_bound"] >= 1
    (alone,) = flashsim.sweep("q_outer", **OF_64, heads=8, causal=True)
    proof_of_one = flashsim.prove(N=64, d=8, M=300, causal=True)
    assert alone["lower_bound_elements"] == 8 * proof_of_one.bound.accesses


def test_what_is_left_out_is_not_bounded() -> None:
    """Pairs outside a window, and outside of the tiles that are computed."""
    (window,) = flashsim.sweep("sliding_window", **OF_96, window=8)
    every = np.ones((96, 96), bool)
    band = np.tril(every) & np.triu(every, -8)
    of_window = flashsim.prove(N=96, d=8, M=300, mask=band)
    assert window["lower_bound_elements"] == of_window.bound.accesses
    (sparse,) = flashsim.sweep(
        "block_sparse", **{**OPTIONS, "N": 90}, block_mask=patterns.butterfly
    )
    B_r = sparse["B_r"]
    B_c = sparse["B_c"]
    tiles = patterns.butterfly(sparse["T_r"], sparse["T_c"])
    rows = np.arange(90)[:, None] // B_r
    columns = np.arange(90) // B_c
    live = tiles[rows, columns]
    assert not live.all()
    of_tiles = flashsim.prove(N=90, d=8, M=300, mask=live)
    assert sparse["lower_bound_elements"] == of_tiles.bound.accesses


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"sizing": "paper"}, "its blocks need more than M, and the bound is of what fits M"),
        ({"dropout_p": 0.5}, "a schedule that knows what is dropped need not compute it"),
        (
            {"block_mask": patterns.butterfly, "heads": 2, "kv_heads": 1, "gqa": "grouped"},
            "of rows of several heads",
        ),
        ({"mask": flashsim.SlidingWindow(3, 0), "N": 2**27}, "too many to look at each"),
    ],
)
def test_where_none_is_known_the_reason_is_said_once(options: dict[str, Any], why: str) -> None:
    name = "block_sparse" if "block_mask" in options else "flash"
    sweep = flashsim.sweep(name, **{**OPTIONS, **options})
    assert (
        sweep.ok.column("lower_bound_elements")
        == sweep.ok.column("over_bound")
        == [None] * len(sweep)
    )
    assert all(why in text for text in sweep.column("no_bound"))
    assert " ".join(sweep.as_text().split()).count(why) == 1
    assert sweep.certificates == []


def test_an_algorithm_of_ones_own_has_a_bound_and_is_told_if_it_beats_it(tmp_path: Path) -> None:
    (row,) = flashsim.sweep(two_sweeps(tmp_path / "mine.py"), **OF_96)
    proof = flashsim.prove(N=96, d=8, M=300)
    assert row["lower_bound_elements"] == proof.bound.accesses

    def diagonal(hbm: Any, sram: Any, Q: Any, K: Any, V: Any, blocks: Any) -> Any:
        """Attention within blocks."""
        O = hbm.empty("O", V.shape, V.dtype, "output").divide(blocks.B_r)
        Q = Q.divide(blocks.B_r)
        K = K.divide(blocks.B_r)
        V = V.divide(blocks.B_r)
        for i in sram.loop(blocks.T_r):
            Q_i, K_i, V_i = sram.load(Q[i], K[i], V[i])
            P = sram.on_chip(np.exp(Q_i @ K_i.T))
            O_i = sram.on_chip(P @ V_i / P.sum(axis=1, keepdims=True))
            sram.store(O[i], O_i)
        return O

    sweep = flashsim.sweep(diagonal, **OF_96)
    assert sweep[0]["over_bound"] < 1
    assert "1 point below the bound: test_sweep_bounds.py:diagonal computes less" in sweep.as_text(
        width=200
    )

    def only_v(hbm: Any, sram: Any, Q: Any, K: Any, V: Any, blocks: Any) -> Any:
        O = hbm.empty("O", V.shape, V.dtype, "output").divide(blocks.B_r)
        V = V.divide(blocks.B_r)
        for i in sram.loop(blocks.T_r):
            V_i = sram.load(V[i])
            sram.store(O[i], sram.on_chip(V_i * 1.0))
        return O

    (row,) = flashsim.sweep(only_v, **OF_96)
    assert row["status"] == "refused"
    assert "computes an O that is not attention" in row["reason"]


def test_columns_are_there_where_they_were_asked_for() -> None:
    without = flashsim.sweep("flash", **{**OPTIONS, "bound": False})
    assert not {"lower_bound_elements", "over_bound", "no_bound"} & {*without.columns}
    sweep = flashsim.sweep("flash", **OPTIONS)
    assert sweep.about["over_bound"] == "accesses ÷ lower bound"
    (first, *_) = csv.DictReader(io.StringIO(sweep.to_csv()))
    assert first["lower_bound_elements"] == str(sweep[0]["lower_bound_elements"])
    (first_row, *_) = json.loads(sweep.to_json())["rows"]
    assert first_row["over_bound"] == sweep[0]["over_bound"]
    assert "certificate" not in first
    assert "certificate" not in first_row
    pandas = pytest.importorskip("pandas")
    assert sweep.to_pandas()["lower_bound_elements"].dtype in (pandas.Int64Dtype(), np.int64)
    assert list(flashsim.sweep(points=sweep, bound=True)) == list(sweep)


def test_tables_show_them() -> None:
    one = flashsim.sweep("flash", **OPTIONS)
    head, _, first, *_ = one.as_text().splitlines()
    assert "lower bound  ÷ bound" in head
    assert f"{one[0]['lower_bound_elements']:,}" in first
    assert f" {one[0]['over_bound']:.2f} " in first
    both = flashsim.sweep(["flash", "q_outer"], **OPTIONS)
    head, _, first, *_ = both.as_text().splitlines()
    assert head.split()[-4:] == ["bound", "least", "÷", "bound"]
    least = min(row["over_bound"] for row in both if row["N"] == 40)
    assert first.split()[-2:] == [f"{both[0]['lower_bound_elements']:,}", f"{least:.2f}"]


# -------------------------------------------------------------------------------------------------
# what tables and pictures say


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"N": [8, 9], "d": 4, "M": 500},
            "flash, forward, d = 4, M = 500, heads = 1, float32, sizing = ",
        ),
        (
            {"N": 8, "d": [4, 5], "causal": True},
            "flash, forward, N = 8, M = 25,600, heads = 1, float32, causal, sizing = ",
        ),
        (
            {"N_q": 8, "N_k": [9, 10], "d": 4, "d_v": 5},
            "flash, forward, N_q = 8, d = 4, d_v = 5, M = 25,600, ",
        ),
        ({"N": [8, 9], "d": 4, "heads": 4, "kv_heads": 2}, "heads = 4, kv_heads = 2, float32"),
        ({"N": [8, 9], "d": 4, "blocks": (2, 4)}, "float32, blocks = 2 × 4"),
    ],
)
def test_what_is_fixed_is_below_the_table_and_in_the_title(
    arguments: dict[str, Any], text: str
) -> None:
    sweep = flashsim.sweep("flash", **arguments)
    assert text in sweep.fixed
    assert f"{sweep.fixed}; HBM accesses in elements" in sweep.as_text(width=200)
    title = sweep.plot().get_title()
    assert " ".join(title.split()) == re.sub(r"\b([Nd])_([qkv])\b", r"$\1_\2$", sweep.fixed)


def looks(sweep: Sweep, **how: Any) -> list[tuple[Any, ...]]:
    drawn = [
        line
        for line in sweep.plot(**how).get_lines()
        if line.get_gid() != "lower bound" and np.size(line.get_xdata())
    ]

    return [(line.get_color(), line._dash_pattern, line.get_linewidth()) for line in drawn]  # type: ignore[attr-defined]


def test_no_two_lines_look_alike() -> None:
    """Of more values than there are dashes, or colours, and of several algorithms that have no
    look.
    """
    many: Arguments = {"N": [64, 128], "d": 16, "check": 0}
    rooms = [400 + 16 * n for n in range(20)]
    for sweep in (
        flashsim.sweep("flash", **many, M=rooms),
        flashsim.sweep(["flash", "q_outer"], **many, M=rooms),
        flashsim.sweep(
            ["snake", "streamed", "q_outer_pinned", "tiles_streamed", "hybrid_streamed"],
            **many,
            M=2000,
            sizing="fit",
        ),
    ):
        there = looks(sweep, x="N")
        assert len(there) >= 5
        assert len({*map(str, there)}) == len(there)


def test_what_is_mixed_in_a_line_is_said_with_what_separates_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = flashsim.sweep(["flash", "q_outer"], N=[64, 128], d=[4, 8], causal=[False, True])
    data = sweep_data(sweep, by="algorithm")
    assert (data["by"], data["mixed"]) == (["algorithm"], ["d", "causal"])
    ax = plot_sweep(data)
    legend = ax.get_legend()
    assert legend is not None
    hint = "d and causal vary within a line: --by algorithm d causal"
    assert " ".join(legend.get_title().get_text().split()) == hint
    assert {line.get_linestyle() for line in ax.get_lines()} == {"None"}
    assert sweep_data(sweep)["mixed"] == []
    diagonal = flashsim.sweep(points=[{"N": 64, "d": 4}, {"N": 128, "d": 8}])
    assert sweep_data(diagonal, x="N", by=())["mixed"] == []
    monkeypatch.chdir(tmp_path)
    command = ["sweep", "flash", "q_outer", "--N", "64", "128", "256", "--d", "4", "8", "-o", "p"]
    assert main([*command, "--by", "algorithm"]) == 0
    assert "The picture: d varies within a line: --by algorithm d" in capsys.readouterr().out
    assert main(command) == 0
    assert "The picture: a line for each of --by algorithm d" in capsys.readouterr().out


def test_the_bound_is_drawn_below_the_lines() -> None:
    sweep = flashsim.sweep(["flash", "q_outer"], **OPTIONS)
    data = sweep_data(sweep)
    ax = plot_sweep(data)
    (line,) = [line for line in ax.get_lines() if line.get_gid() == "lower bound"]
    bounds = {row["N"]: row["lower_bound_elements"] for row in sweep}
    drawn = [tuple(point) for point in np.asarray(line.get_xydata())]
    assert drawn == sorted(bounds.items())
    assert all(each["bounds"] == sorted(bounds.items()) for each in data["lines"])
    assert figure_of(ax) is not None
    assert "bounds" not in sweep_data(sweep, y="over_bound")["lines"][0]


# --------------------------------------------------------------------------------------------------
# the bundle


def unpacked(path: Path, to: Path) -> list[str]:
    with zipfile.ZipFile(path) as file:
        file.extractall(to)
        return sorted(file.namelist())


def test_a_bundle_s_command_makes_its_rows_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "bundled.py").write_text(TWO_SWEEPS, encoding="utf-8")
    (tmp_path / "in" / "shapes.csv").write_text("N,d\n64,8\n96,16\n", encoding="utf-8")
    command = [
        "sweep",
        "flash",
        f"{tmp_path}/in/bundled.py:two_sweeps",
        "--points=in/shapes.csv",
        "--M",
        "900",
        "1800",
    ]
    assert (
        main(
            [
                *command,
                "--jobs",
                "1",
                "--cs",
                "x.csv",
                "-op",
                "--y",
                "over_bound",
                "--bundle",
                "out.zip",
            ]
        )
        == 0
    )
    names = unpacked(tmp_path / "out.zip", tmp_path / "new")
    proofs = [name for name in names if name.startswith("certificates/")]
    assert {*names} - {*proofs} == {
        "README.txt",
        "bundled.py",
        "command.json",
        "made_with.json",
        "picture.json",
        "picture.png",
        "picture.svg",
        "rows.csv",
        "rows.json",
        "shapes.csv",
    }
    monkeypatch.chdir(tmp_path / "new")
    again = json.loads(Path("command.json").read_text(encoding="utf-8"))["run"]
    assert again[:2] == ["flashsim", "sweep"]
    assert not any(str(tmp_path) in word for word in again)
    assert main(again[1:]) == 0
    assert (
        Path("again.csv").read_bytes()
        == Path("rows.csv").read_bytes()
        == (tmp_path / "x.csv").read_bytes()
    )
    rows = json.loads(Path("rows.json").read_text(encoding="utf-8"))["rows"]
    certificates = [json.loads(Path(name).read_text(encoding="utf-8")) for name in proofs]
    bounds = {proof["bound"] for proof in certificates}
    assert bounds == {row["lower_bound_elements"] for row in rows} != {None}
    for name in proofs:
        assert main(["prove", "--check", name]) == 0
    made = json.loads(Path("made_with.json").read_text(encoding="utf-8"))
    assert {"flashsim", "python", "numpy", "date", "commit"} == {*made}
    assert " ".join(again) in Path("README.txt").read_text(encoding="utf-8")


def test_a_bundle_of_one_point_has_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "flash", "--N", "64", "--d", "8", "--bundle", "one.zip"]) == 0
    names = unpacked(tmp_path / "one.zip", tmp_path / "new")
    assert "picture.png" not in names
    assert "certificates/0001.json" in names


def test_what_cannot_be_bundled_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, text in (("a", TWO_SWEEPS), ("b", f"{TWO_SWEEPS}\n# another\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(text, encoding="utf-8")
    for algorithms, message in (
        (
            ["a/mine.py:two_sweeps", "b/mine.py:two_sweeps"],
            "two inputs are called mine.py; expected other names",
        ),
        (
            ["tests.helpers.two_sweeps:two_sweeps"],
            "tests.helpers.two_sweeps:two_sweeps names no file to put into it",
        ),
    ):
        assert main(["sweep", *algorithms, "--N", "64", "--d", "8", "--bundle", "out.zip"]) != 0
        assert f"argument --bundle: {message}" in capsys.readouterr().err
        assert os.listdir(tmp_path) == ["a", "b"] or not (tmp_path / "out.zip").exists()
    for target, message in (
        ("no/out.zip", "argument --bundle: no/out.zip cannot be written"),
        ("rows.txt", "--bundle: got 'rows.txt'; expected a file that ends in .zip"),
    ):
        assert main(["sweep", "flash", "--N", "64", "--d", "8", "--bundle", target]) == 2
        assert message in capsys.readouterr().err


def test_an_axis_that_doubles_has_ticks_at_what_was_counted() -> None:
    def axes_of(lengths: list[int]) -> Any:
        sweep = flashsim.sweep("flash", N=lengths, d=8, M=300, sizing="fit")
        return plot_sweep(sweep_data(sweep))

    powers = [2**n for n in range(10, 17)]
    for lengths, text in (
        ([128, 256, 512, 1024], ["128", "256", "512", "1,024"]),
        (powers, [f"{N:,}" for N in powers]),
        ([128, 256, 500], None),
    ):
        ax = axes_of(lengths)
        assert ax.get_xscale() == ("log" if text else "linear")
        assert text in (None, [label.get_text() for label in ax.get_xticklabels()])
    with mpl.rc_context({"figure.figsize": (3.3, 2.8)}):  # too narrow for all
        ax = axes_of(powers)
        assert [label.get_text() for label in ax.get_xticklabels()] == [
            "1,024",
            "4,096",
            "16,384",
            "65,536",
        ]

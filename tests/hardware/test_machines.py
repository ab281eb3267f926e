"""Machines, the roofline, and the book chapter's intensities."""

import json
import math
import re
from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

import flashsim
from flashsim import plots
from flashsim.cli import main
from flashsim.hardware.cache import L2
from flashsim.hardware.machines import MACHINES, Machine, kv_tile, predict, roofline
from flashsim.hardware.reading import machine_of, read_machine
from flashsim.plots.l2 import l2_data, plot_l2
from flashsim.plots.roofline import _APART, _point, plot_roofline, roofline_data

ROUND = Machine(
    name="round",
    sram_per_sm=1024,
    sms=1,
    l2=1 << 20,
    hbm=1 << 30,
    bandwidth=100.0,
    peak={"float16": 1000.0},
    sources={},
)


def test_presets_are_complete_and_say_their_sources() -> None:
    assert list(MACHINES) == ["A100-40GB", "H100", "H200", "B200", "MI300X", "TPU v5p", "M2"]
    for name, machine in MACHINES.items():
        assert machine.name == name
        messages = ", ".join(machine.sources)
        assert all(
            what in messages for what in ("sram_per_sm", "sms", "l2", "hbm", "bandwidth", "peak")
        )
        assert machine.sram_per_sm < machine.l2 < machine.hbm or (name, machine.l2) == (
            "TPU v5p",
            0,
        )
        assert machine.notes
        if name != "TPU v5p":
            assert (
                machine.peak_for("float16")
                == machine.peak_for("bfloat16")
                >= machine.peak_for("float32")
            )
        assert machine.M("float32") * 2 == machine.M("float16") == machine.sram_per_sm // 2
    ridges = {name: round(machine.ridge("bfloat16")) for name, machine in MACHINES.items()}
    assert ridges == {
        "A100-40GB": 201,
        "H100": 295,
        "H200": 206,
        "B200": 281,
        "MI300X": 247,
        "TPU v5p": 166,
        "M2": 36,
    }
    assert MACHINES["H200"].l2_share("float32") == 60 * 2**20 // 132 // 4
    with pytest.raises(
        ValueError, match="M2 has no float64 arithmetic; it has float16, bfloat16, float32"
    ):
        MACHINES["M2"].ridge("float64")


def test_roofline_is_the_longer_of_the_two_times() -> None:
    moving = roofline(ROUND, nbytes=200, flops=1000, dtype="float16")
    assert (moving.time, moving.intensity, moving.bound, moving.ridge) == (
        2.0,
        5.0,
        "bandwidth",
        10.0,
    )
    assert moving.reached == 500
    computing = roofline(ROUND, nbytes=50, flops=1000, dtype="float16")
    assert (computing.time, computing.intensity, computing.bound) == (1.0, 20.0, "compute")
    assert computing.reached == 1000
    # at the ridge both take as long
    assert roofline(ROUND, nbytes=100, flops=1000, dtype="float16").bound == "compute"
    assert roofline(ROUND, 0, 10, dtype="float16").intensity == math.inf
    assert roofline(ROUND, 10, 0, dtype="float16").bound == "bandwidth"
    for nbytes, flops in ((-1, 1), (1, -1), (0, 0), (math.nan, 1)):
        with pytest.raises(ValueError, match=r"expected (a finite number ≥ 0|not both to be 0)"):
            roofline(ROUND, nbytes, flops, dtype="float16")


@pytest.mark.parametrize("machine", MACHINES.values(), ids=list(MACHINES))
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_predictions_are_counted_at_the_machines_M(machine: Machine, direction: str) -> None:
    index: dict[str, Any] = {
        "N": 2048,
        "d": 64,
        "heads": 16,
        "dtype": "bfloat16",
        "direction": direction,
    }
    predicted = {
        name: predict(machine, name, **index) for name in ("standard", "flash", "memory_efficient")
    }
    for name, line in predicted.items():
        tally = flashsim.count(name, M=machine.sram_per_sm // 2, **index)
        assert (line.nbytes, line.flops) == (tally.hbm.bytes, tally.flops.total)
        assert line.time == max(
            line.nbytes / machine.bandwidth, line.flops / machine.peak["bfloat16"]
        )
        assert line.bound == ("compute" if line.intensity >= line.ridge else "bandwidth")
    assert (
        max(predicted["flash"].time, predicted["standard"].time)
        < predicted["memory_efficient"].time
    )
    # M/d²: the larger tiles of a backward pass need more room to pay
    small = machine.sram_per_sm // 2 < 8 * 64**2
    assert (predicted["flash"].time < predicted["standard"].time) == (
        direction == "forward" or not small
    )
    assert predicted["standard"].bound == "bandwidth"
    if "float32" in machine.peak:  # the dtype that all else is of
        assert predict(machine, "flash", N=64, d=16) == predict(
            machine, "flash", N=64, d=16, dtype="float32"
        )


def test_the_chapters_prefill_tile_is_32_flop_per_byte_and_prints_as_32_75() -> None:
    tile = kv_tile(B_q=32, B_k=32, d=128)
    assert (tile.flops, tile.nbytes) == (2 * 262_144, 2 * 8 * 1024)
    assert tile.intensity == 32
    assert tile.as_printed == Fraction(524, 16) == Fraction("32.75")
    assert tile.as_printed == 32 * Fraction(1024, 1000) - Fraction(288, 16_000)
    for B_k in (16, 64):
        for d in (64, 128):
            assert kv_tile(B_q=32, B_k=B_k, d=d).intensity == 32
    assert kv_tile(B_q=64, B_k=64, d=128).intensity == 64


def test_the_chapters_decode_is_1_flop_per_byte() -> None:
    tile = kv_tile(B_q=1, B_k=32, d=128)
    assert (tile.flops, tile.nbytes) == (16_384, 16_384)
    assert tile.intensity == tile.as_printed == 1
    for rows in (1, 32):  # nor is the prefill tile bound by arithmetic at any of these bandwidths
        tile = kv_tile(B_q=rows, B_k=32, d=128)
        for machine in MACHINES.values():
            line = roofline(machine, tile.nbytes, tile.flops, dtype="bfloat16")
            assert line.bound == "bandwidth"
    larger = kv_tile(B_q=64, B_k=32, d=128)
    bound = {
        n: roofline(m, larger.nbytes, larger.flops, dtype="bfloat16").bound
        for n, m in MACHINES.items()
    }
    assert [n for n, by in bound.items() if by == "compute"] == ["M2"]


def test_the_chapters_decode_time() -> None:
    kv_cache = 2 * 4096 * 128 * 2
    assert kv_cache == 2 * 2**20
    chapter = Machine("chapter", 32 * 1024, 10, 0, 0, 200e9, {"float16": 3.6e12}, {})
    line = roofline(chapter, kv_cache, 4 * 4096 * 128, dtype="float16")
    assert (line.intensity, line.bound) == (1, "bandwidth")
    assert 1e3 * line.time == pytest.approx(0.01, rel=0.05)  # "~0.01 ms per head"
    # "~0.32 ms for 32 heads": 0.336, rounded before × 32
    assert 32e3 * line.time == pytest.approx(0.32, rel=0.05)


# --------------------------------------------------------------------------------------------------
# figures


@cache
def at(machine: str, N: int, dtype: str) -> dict[str, Any]:
    return roofline_data(machine=machine, N=N, d=64, dtype=dtype)


def xy(ax: Axes, gid: str) -> list[tuple[float, float]]:
    (line,) = [x for x in ax.get_lines() if x.get_gid() == gid]
    points = np.asarray(line.get_xydata(), float)
    return [(float(x), float(y)) for x, y in points]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "N"),
    [*((name, 64) for name in MACHINES), ("A100-40GB", 1024)],
)
def test_roofline_figure_has_its_points_on_the_roof(machine: str, N: int) -> None:
    """Backward, 1024 rows do not move where there is an L2."""
    on = MACHINES[machine]
    dtype = next(iter(on.peak))
    data = at(machine, N, dtype)
    for ax, (direction, points) in zip(
        plot_roofline(data), data["directions"].items(), strict=True
    ):
        (left, low), corner, (right, high) = xy(ax, "roof")
        assert corner == (on.ridge(dtype), on.peak[dtype])
        assert low == pytest.approx(left * on.bandwidth)
        assert high == on.peak[dtype]
        for name in ("standard", "flash", "memory_efficient"):
            how: dict[str, Any] = {"dtype": dtype, "direction": direction, "sizing": "fit"}
            line = predict(on, name, N=N, d=64, **how)
            assert points["algorithms"][name]["time"] == line.time
            # as it hardly differs from FlashAttention
            if not any(drawn.get_gid() == name for drawn in ax.get_lines()):
                flash = points["algorithms"]["flash"]["intensity"]
                assert max(line.intensity, flash) <= _APART * min(line.intensity, flash)
                continue
            ((x, y),) = xy(ax, name)
            assert x == line.intensity
            assert left < x < right
            assert y == pytest.approx(min(on.peak[dtype], x * on.bandwidth))
        legend = ax.get_legend()
        traffic = any("→" in text.get_text() for text in legend.get_texts())
        assert ("→ with L2" in legend.get_title().get_text()) == traffic
    # the first dtype of each machine has 2 bytes
    assert data["chapter"]["prefill"]["intensity"] == 32
    assert data["chapter"]["prefill"]["printed"] == 32.75
    assert data["chapter"]["decode"]["intensity"] == data["chapter"]["decode"]["printed"] == 1


@pytest.mark.parametrize(
    ("machine", "dtype", "whose", "binds"),
    [
        (
            "A100-40GB",
            "float32",
            "19.5 TFLOP/s, float32\nwithout tensor cores.\n",
            "Arithmetic binds FlashAttention and standard",
        ),
        (
            "A100-40GB",
            "float16",
            "312 TFLOP/s, float16.\n",
            "Bandwidth binds FlashAttention and standard",
        ),
        (
            "M2",
            "float32",
            "3.6 TFLOP/s, float32.\n",
            "Bandwidth binds FlashAttention and standard;\n"
            "with the L2, arithmetic binds FlashAttention",
        ),
    ],
)
def test_roofline_says_whose_peak_it_is(machine: str, dtype: str, whose: str, binds: str) -> None:
    data = roofline_data(machine=machine, dtype=dtype, N=256)
    title = plot_roofline(data)[0].get_title("left")
    assert whose in title
    assert title.endswith(binds)
    itemsize = np.dtype(dtype).itemsize
    assert [data["chapter"][tile]["intensity"] for tile in ("prefill", "decode")] == [
        64 / itemsize,
        2 / itemsize,
    ]


def test_the_roofline_is_by_default_of_what_attention_runs_on() -> None:
    """16 bits, on tensor cores, where standard attention is bound by bandwidth, as the paper
    says.
    """
    for name, machine in MACHINES.items():
        data = roofline_data(machine=name, N=64)
        assert data["dtype"] == ("bfloat16" if name == "TPU v5p" else "float16")
        assert data["peak"] == max(machine.peak.values())
        assert data["plain"] is False
        assert data["directions"]["forward"]["algorithms"]["standard"]["bound"] == "bandwidth"
    plain = Machine("plain", 96 * 1024, 10, 0, 0, 1e9, {"float32": 1e10}, {})
    assert roofline_data(machine=plain, N=64)["dtype"] == "float32"
    title = plot_roofline(roofline_data())[0].get_title("left")
    assert (
        "Bandwidth binds FlashAttention and standard;\nwith the L2, arithmetic binds FlashAttention"
        in title
    )


@pytest.mark.parametrize("bounds", list(product(("compute", "bandwidth"), repeat=4)))
def test_what_a_roofline_claims_follows_from_its_numbers(bounds: tuple[str, ...]) -> None:
    flash, standard, flash_l2, standard_l2 = bounds
    data = {
        "algorithms": {"flash": {"bound": flash}, "standard": {"bound": standard}},
        "through_l2": {"flash": {"bound": flash_l2}, "standard": {"bound": standard_l2}},
    }
    text = _point(data).lower().replace("\n", " ")
    words = {"compute": "arithmetic", "bandwidth": "bandwidth"}
    before, _, after = text.partition("; with the l2, ")
    for name, bound, through in (
        ("flashattention", flash, flash_l2),
        ("standard", standard, standard_l2),
    ):
        of_name = re.split(", ", before) if flash != standard else [before]
        (clause,) = (clause for clause in of_name if name in clause)
        assert words[bound] in clause
        assert (name in after) == (bound != through)
    if flash != flash_l2 and standard != standard_l2 and flash_l2 != standard_l2:
        assert words[flash_l2] in after
        assert words[standard_l2] in after


def test_roofline_through_the_l2() -> None:
    data = at("A100-40GB", 1024, "float16")
    flash = data["directions"]["forward"]["through_l2"]["flash"]
    N = 1024
    d = 64
    assert flash["bytes"] == 4 * N * d * 2 + 2 * N * 4  # ℓ and m in float32
    assert flash["bound"] == "compute"
    assert data["directions"]["forward"]["algorithms"]["flash"]["bound"] == "bandwidth"
    standard = data["directions"]["forward"]["through_l2"]["standard"]
    assert standard["bytes"] > 2 * 2 * N * N * 2
    with pytest.raises(ValueError, match="unknown machine 'V100'; known: A100-40GB, H100"):
        roofline_data(machine="V100")


@pytest.mark.slow
def test_l2_figure_falls_from_the_models_accesses_to_the_compulsory() -> None:
    data = l2_data(N=384, dtype="float16")
    N = data["N"]
    d = data["d"]
    M = data["M"]
    ax = plot_l2(data)
    floors = {
        "flash": 4 * N * d + 2 * N,
        "standard": 4 * N * d + 2 * N * N,
    }
    for name, floor in floors.items():
        sizes, dram = zip(*xy(ax, name), strict=True)
        assert list(sizes) == data["sizes"]
        assert list(dram) == sorted(dram, reverse=True)
        traffic = flashsim.count(name, N=N, d=d, M=M, sizing="fit").hbm.accesses
        assert dram[0] == traffic == data["curves"][name]["accesses"]
        compulsory = data["curves"][name]["compulsory"]
        assert dram[-1] == floor == sum(compulsory.values())
        assert {y for _, y in xy(ax, f"{name} compulsory")} == {floor}
    sizes, dram = zip(*xy(ax, "flash"), strict=True)
    at_the_floor = [size for size, traffic in zip(sizes, dram, strict=True) if traffic == dram[-1]]
    knee = at_the_floor[0]
    assert 2 * N * d < knee <= 4 * N * d  # Q, O and the blocks of K, V around them
    assert knee < data["per_sm"]["A100-40GB"] == MACHINES["A100-40GB"].l2_share("float16")
    assert plots.FIGURES["l2"].data is l2_data


def test_l2_figure_says_how_much_of_its_runs_is_done() -> None:
    messages: list[tuple[int, int]] = []

    def on_done(done: int, of: int) -> None:
        messages.append((done, of))

    data = l2_data(N=32, d=4, M=300, on_done=on_done)
    assert messages == [(percent, 100) for percent in range(1, 101)]
    assert data == l2_data(N=32, d=4, M=300)
    assert "on_done" not in plots.FIGURES["l2"].takes


def test_dram_bytes_take_each_array_at_its_own_size() -> None:
    zeros = np.zeros((64, 8), np.float16)
    l2 = L2(0)
    run = flashsim.forward("flash", zeros, zeros, zeros, M=256, observers=[l2])
    assert l2.dram_bytes(run.hbm) == run.hbm.bytes > 2 * run.hbm.accesses


# --------------------------------------------------------------------------------------------------
# machines of one's own

MINE = {
    "name": "mine",
    "sram_per_sm": "96KB",
    "sms": 40,
    "l2": "32MB",
    "hbm": "24GB",
    "bandwidth": 6e11,
    "peak": {"fp16": 1e14},
}


@pytest.mark.usefixtures("no_pictures")
def test_the_documented_file_is_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```toml\n(# mine\.toml\n.*?)```", page, re.DOTALL)
    (tmp_path / "mine.toml").write_text(block, encoding="utf-8")
    on = read_machine(tmp_path / "mine.toml")
    assert on.M("float16") == 96 * 1024 // 2
    assert on.sms == 40
    assert on.l2 == 32 * 2**20
    assert on.hbm == 24 * 2**30
    assert (on.bandwidth, on.peak) == (6e11, {"float16": 1.2e14, "float32": 3e13})
    monkeypatch.chdir(tmp_path)
    mine = ["--machine", "mine.toml"]
    size = ["--N", "32", "--d", "8"]
    assert main(["plot", "roofline", *mine, "--dtype", "float16", *size, "-o", "r"]) == 0
    data = json.loads(Path("r.json").read_text(encoding="utf-8"))["data"]
    assert data["machine"] == "my GPU"
    assert data["peak"] == 1.2e14
    assert data["M"] == on.M("float16")
    size = ["--N", "16", "--d", "4"]
    assert main(["plot", "l2", *mine, *size, "--json", "l2.json", "-o", "l"]) == 0
    assert json.loads(Path("l2.json").read_text(encoding="utf-8"))["per_sm"] == {
        "my GPU": on.l2_share("float32")
    }


def test_json_is_read_as_toml_is(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(
        json.dumps({**MINE, "sources": {"sms": "the shop"}, "notes": "old"}), encoding="utf-8"
    )
    on = read_machine(file)
    assert (on.sram_per_sm, on.peak, on.sources, on.notes) == (
        96 * 1024,
        {"float16": 1e14},
        {"sms": "the shop"},
        "old",
    )
    assert predict(on, "flash", N=64, d=16, dtype="float16").ridge == 1e14 / 6e11
    assert roofline_data(machine=on, N=64, dtype="float16")["machine"] == "mine"
    without_l2 = {name: value for name, value in MINE.items() if name != "l2"}
    file.write_text(json.dumps(without_l2), encoding="utf-8")
    assert read_machine(file).l2 == 0
    assert roofline_data(machine=str(file), N=64, dtype="float16")["l2_share"] == 0


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"smss": 3}, "it has 'smss', perhaps sms is meant; expected name, sram_per_sm, l2"),
        ({"sms": None}, "sms is None; expected `int`, got `null`"),
        ({"sms": True}, "sms is True; expected `int`, got `bool`"),
        ({"sms": 0}, "sms is 0; expected a whole number of at least 1"),
        ({"hbm": -1}, "hbm is -1; expected bytes, or text with a unit"),
        ({"sram_per_sm": 0}, "sram_per_sm is 0; expected bytes"),
        ({"l2": "32 apples"}, "l2: '32 apples' is not a size"),
        ({"bandwidth": "fast"}, "bandwidth is 'fast'; expected `float`, got `str`"),
        ({"bandwidth": 0}, "bandwidth is 0.0; expected bytes/s, a finite number above 0"),
        ({"bandwidth": 10**400}, "bandwidth is "),
        ({"peak": {}}, "peak is {}; expected FLOP/s by dtype"),
        ({"peak": {"float17": 1e12}}, "float17"),
        (
            {"peak": {"float16": 0}},
            "peak of float16 is 0.0; expected FLOP/s, a finite number above 0",
        ),
        ({"name": ""}, "name is ''; expected text"),
        ({"sources": ["x"]}, "sources is ['x']; expected `object`, got `array`"),
    ],
)
def test_what_is_no_machine_is_said(
    changed: dict[str, Any], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({**MINE, **changed}), encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        read_machine(file)
    assert str(caught.value).startswith(f"{file}: ")
    command = ["plot", "roofline", "--machine", str(file)]
    assert main([*command, "-o", str(tmp_path / "r")]) == 2
    err = capsys.readouterr().err
    assert str(file) in err
    assert "\n" not in err.rstrip()


def test_files_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    for name, text, message in (
        ("a.json", "{", "cannot be read as JSON"),
        ("a.toml", "= 3", "cannot be read as TOML"),
        ("a.txt", "", "is neither .json nor .toml"),
        ("b.json", "[]", "expected `object`, got `array`"),
        ("c.json", '{"name": "x"}', "object missing required field `sram_per_sm`"),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            read_machine(tmp_path / name)
    with pytest.raises(ValueError, match=r"no\.json cannot be read: No such file"):
        machine_of("no.json")
    with pytest.raises(
        ValueError, match=r"unknown machine 3; known: .*; yours is FILE\.json or FILE\.toml"
    ):
        machine_of(3)  # type: ignore[arg-type]

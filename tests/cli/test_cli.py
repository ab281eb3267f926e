"""The command line, as a person and as a pipe use it."""

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import cli
from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.analysis import verify
from flashsim.analysis.verify import appendices, theorem_5, theorems_1_2
from flashsim.attention import qkv
from flashsim.attention.inputs import REFERENCE_D, REFERENCE_N
from flashsim.cli import COMMANDS, PURPOSES, ROUTE, inputs, main, parse
from flashsim.learn.playground.page import FIRST
from flashsim.plots import FIGURES, Chart
from flashsim.support.sizes import human_bytes, parse_size
from flashsim.support.tables import console, print_table, problem
from tests.helpers.pages import ROOT, text_of

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


def arrays(*leading: int, n: int = 24, d: int = 4, dtype: Any = np.float32) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=(*leading, n, d)).astype(dtype) for name in "qkv"}


def refused(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"flashsim {command[0]}: error: ")
    assert err.count("\n") == 1
    return err


def test_without_a_command_it_says_where_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert re.findall(r"^  (flashsim .*?)  ", out, re.MULTILINE) == list(ROUTE)
    assert "flashsim --help" in out
    assert max(map(len, out.splitlines())) <= 80
    for command in ROUTE:
        assert parse(command.split()[1:]).name == command.split()[1]


def test_help_lists_each_command_once_under_what_it_is_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    listed = re.findall(
        r"^(\w[\w ]*):$|^  ([a-z]+) {2,}[A-Z]", out.partition("\noptions:")[0], re.MULTILINE
    )
    assert [purpose or name for purpose, name in listed] == [
        word for purpose, commands in PURPOSES.items() for word in (purpose, *commands)
    ]
    assert sorted(COMMANDS) == sorted(
        file.stem
        for file in Path(cli.__file__).parent.glob("*.py")
        if "EXAMPLES = " in text_of(file)
    )


def test_gpu_alone_is_gpu_info(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["gpu"])
    text = capsys.readouterr().out
    assert main(["gpu", "info"]) == status
    assert capsys.readouterr().out == text != ""


# --------------------------------------------------------------------------------------------------
# run


def test_run_on_the_bundled_sample(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for part in (
        "Gettysburg",
        "12 heads, N = 331, d = 32, float32",
        "M = 25,600 elements (100 KB of float32)",
        "by array",
    ):
        assert part in out
    assert "Standard attention moves 4.87× the elements that FlashAttention does. The factor" in out
    assert "follows M/d², here 25 (" in out
    assert "Saved flashsim-run.png, flashsim-run.svg, flashsim-run.json" in out
    numbers = json.loads(Path("flashsim-run.json").read_text(encoding="utf-8"))
    assert numbers["command"] == "flashsim run"
    flash = numbers["data"]["algorithms"]["flash"]
    want = flashsim.theory.exact("flash", N=331, d=32, M=25_600, heads=12, sizing="fit")
    assert (flash["reads"], flash["writes"], flash["sram"]["peak"]) == (
        want.reads,
        want.writes,
        want.sram.peak,
    )
    assert flash["error_of_rounding_bound"] < 1
    assert all(made["sram"]["peak"] <= 25_600 for made in numbers["data"]["algorithms"].values())
    assert Path("flashsim-run.png").stat().st_size > 10_000


@pytest.mark.usefixtures("no_pictures")
def test_run_says_of_each_flashattention_what_it_saves(capsys: pytest.CaptureFixture[str]) -> None:
    for names in (["flash", "flash_basic"], ["flash_basic", "flash"]):
        main(["run", "--head", "0", "--algorithm", "standard", *names])
        text = " ".join(capsys.readouterr().out.split())
        assert re.findall(r"that FlashAttention \((\w+)\) does", text) == names


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    "kind", ["npz", "NPZ upper-case names", "npy stacked", "npy three", "safetensors"]
)
def test_run_on_the_user_s_own_file(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = arrays(2, 3)
    files = ["mine.npz"]
    match kind:
        case "npz":
            np.savez("mine.npz", **inputs, other=np.ones(3))
        case "NPZ upper-case names":
            np.savez("mine.npz", **{name.upper(): a for name, a in inputs.items()})
        case "npy stacked":
            files = ["mine.npy"]
            np.save("mine.npy", np.stack(list(inputs.values())))
        case "npy three":
            files = [f"{name}.npy" for name in "qkv"]
            for name, file in zip("qkv", files, strict=True):
                np.save(file, inputs[name])
        case "safetensors":
            from safetensors.numpy import save_file

            files = ["mine.safetensors"]
            save_file(inputs, "mine.safetensors")
    command = [
        "run",
        "--qkv",
        *files,
        "--M",
        "256B",
        "--head",
        "1,2",
        "--algorithm",
        "flash_basic",
        "--json",
        "-",
    ]
    assert main([*command, "-o", "out/figure"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["shapes"]["Q"] == [24, 4]
    assert numbers["algorithms"]["flash_basic"]["sram"]["capacity"] == 64
    assert Path("out/figure.svg").exists()
    run = flashsim.forward(
        "flash_basic", *(inputs[name][1, 2] for name in "qkv"), M=64, sizing="fit"
    )
    assert numbers["algorithms"]["flash_basic"]["accesses"] == run.hbm.accesses


BARE = """
import sys
for name in ("IPython", "cupy", "hypothesis", "ml_dtypes", "nbclient", "nbformat", "pandas", "pytest", "safetensors", "torch"):
    sys.modules[name] = None  # as if it were not installed
from flashsim.cli import main
sys.exit((main(["count", "--N", "8", "--d", "4"]), main(["serve", "fp8", "--keys", "8", "--d", "4", "--group", "4"])) != (0, 2))
"""


def test_every_command_loads_with_what_pip_install_brings_alone() -> None:
    ran = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    how = 'pip install -e ".[bfloat16]" (in the clone)'
    assert (
        ran.stderr
        == f"flashsim serve: error: dtype float8_e4m3fn needs the package ml_dtypes: {how}\n"
    )


BFLOAT16 = """
import sys
sys.modules["ml_dtypes"] = None  # as if it were not installed
from pathlib import Path
from flashsim.attention.qkv import UnreadableInput, load_qkv
try:
    load_qkv([Path("mine.safetensors")])
except UnreadableInput as error:
    print(error)
del sys.modules["ml_dtypes"]
qkv = load_qkv([Path("mine.safetensors")])
print(qkv.shape, qkv.V.astype("float32").tolist())
"""


def test_a_bfloat16_file_is_read_though_nothing_has_imported_its_type() -> None:
    from ml_dtypes import bfloat16
    from safetensors.numpy import save_file

    inputs = {name: (np.arange(6).reshape(3, 2) / 4).astype(bfloat16) for name in "qkv"}
    save_file(inputs | {"other": np.ones(3, bfloat16)}, "mine.safetensors")
    ran = subprocess.run(
        [sys.executable, "-c", BFLOAT16], capture_output=True, text=True, check=True
    )
    without, read = ran.stdout.splitlines()
    assert without.startswith(
        "mine.safetensors cannot be read as .safetensors: bfloat16 needs the package ml_dtypes: pip"
    )
    assert read == (
        "{'N': 3, 'N_q': 3, 'd': 2, 'd_v': 2, 'dtype': 'bfloat16'} [[0.0, 0.25], [0.5, 0.75], "
        "[1.0, 1.25]]"
    )


# ------------------------------------------------------------------------------------------------
# count, plot, verify


def test_count_shows_lines_arrays_and_what_fills_sram(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", "flash_basic", "--N", "1024", "--d", "64", "--sizing", "paper"]) == 0
    out = capsys.readouterr().out
    assert "8  load                    Q             176    720,896" in out
    assert "T_c·N_q·d" in out
    assert "2,406,400 accesses, 9.18 MB; equal to the closed form" in out
    assert (
        "SRAM at its fullest: 27,776 elements, 108% of M, 2,176 too many\n= K[0] 6,400 + V[0] "
        "6,400 + Q[0] 4,096"
    ) in out
    assert "Blocks as in line 1" in out
    assert "The blocks of line 1 need more than M" in out


@pytest.mark.usefixtures("no_pictures")
def test_every_command_has_the_same_algorithm_and_sizing_if_it_is_told_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`flash` in blocks that fit: at the reference the same number everywhere."""
    sizes: dict[str, Any] = {"N": REFERENCE_N, "d": REFERENCE_D}
    expected = flashsim.theory.exact("flash", **sizes, sizing="fit").accesses
    for command in ("count", "sweep"):
        assert (
            main(
                [
                    command,
                    *(word for name, size in sizes.items() for word in (f"--{name}", str(size))),
                ]
            )
            == 0
        )
        assert f"{expected:,}" in capsys.readouterr().out
    assert main(["run", "--head", "0", "--json", "-"]) == 0
    ran = json.loads(capsys.readouterr().out)["algorithms"]
    assert list(ran) == ["standard", "flash"]
    fitting = flashsim.theory.exact("flash", N=331, d=32, sizing="fit").accesses
    assert ran["flash"]["accesses"] == fitting
    assert main(["step", "--text", "--N", "4", "--d", "2"]) == 0
    assert capsys.readouterr().out.startswith("Algorithm 2, FlashAttention, complete\n")
    assert FIRST[0] == "flash"


@pytest.mark.parametrize(
    "command", ["standard", "standard --backward", "small_cache", "q_outer --backward"]
)
def test_count_speaks_of_the_paper_s_blocks_only_where_there_are_some(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            ["count", *command.split(), "--N", "64", "--d", "8", "--M", "2000", "--sizing", "paper"]
        )
        == 0
    )
    assert ("Blocks as in" in capsys.readouterr().out) is (command == "q_outer --backward")


STARRED = (
    "flash --dropout 0.5",
    "flash --backward --heads 8 --kv-heads 2",
    "q_outer --causal --heads 3",
)


@pytest.mark.parametrize(
    "command",
    [
        *(f"{name} --backward" for name in BACKWARD),
        *FORWARD,
        *STARRED,
        "flash --heads 8 --kv-heads 2 --gqa grouped",
        "flash --causal",
    ],
)
def test_count_s_formulas_give_its_counts_or_a_star_says_why(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every cell of a count that is not 0 has a formula, worked out here, or a star."""
    assert main(["count", *command.split(), "--N", "48", "--d", "8", "--M", "500"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    values = dict(re.findall(r"\b([BT]_[rc]) = (\d+)", out)) | dict(
        re.findall(r"^(p|s|W|T_[vd]|[RU]_[cdkqrvD]) = ([\d,]+):", out, re.M)
    )
    values |= {"N_q": "48", "N_k": "48", "d": "8", "d_v": "8"} | dict(
        re.findall(r"(N_q) = (\d+) of a group", out)
    )
    times = int((re.findall(r"^each times (\d+) ", out, re.MULTILINE) or ["1"])[0])
    table = out.partition("\nby array")[2].partition("\ntotal")[0]
    rows = [line for line in table.splitlines()[2:] if line.strip()]
    cells = [(int(n.replace(",", "")), formula) for row in rows for n, formula in pairs(row)]
    plain = {name: int(value.replace(",", "")) for name, value in values.items()}
    terms = [(n, formula) for n, formula in cells if formula != "*"]
    assert all(
        n == times * eval(formula.replace("·", "*") or "0", {}, plain) for n, formula in terms
    )
    assert ("*" in table) == ("\n*: " in out)
    assert ("*" in table) == (command in STARRED)


def pairs(row: str) -> list[tuple[str, str]]:
    """Return (elements, formula) of the reads and the writes of a row of the table by array."""
    _, reads, writes, *formulas = re.split(r" {2,}", row.rstrip())
    first, *second = formulas
    if not second and reads == "0":
        return [(reads, ""), (writes, first)]
    return [(reads, first), (writes, second[0] if second else "")]


def test_options_as_they_were_once_spelled(capsys: pytest.CaptureFixture[str]) -> None:
    size = "--d 4 --M 300 --json -"
    for old, new in (("--n 9", "--N 9"), ("--N_q 3 --N_k 9 --d_v 5", "--N-q 3 --N-k 9 --d-v 5")):
        messages = []
        for lengths in (old, new):
            assert main(f"count {lengths} {size}".split()) == 0
            messages.append(capsys.readouterr().out)
        assert messages[0] == messages[1]
    assert main(["count", "--help"]) == 0
    options, _, _ = capsys.readouterr().out.partition("examples:")
    for right in ("N_k − N_q", "N_q, N_k", "split_kv"):
        options = options.replace(right, "")
    assert "_k" not in options


def test_count_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    command = (
        "count standard --N-q 5 --N-k 9 --d 4 --d-v 3 --heads 7 --dtype bfloat16 --M 228KB --json -"
    )
    assert main(command.split()) == 0
    numbers = json.loads(capsys.readouterr().out)
    want = flashsim.theory.exact(
        "standard", N_q=5, N_k=9, d=4, d_v=3, heads=7, dtype="bfloat16", M=228 * 512
    )
    assert numbers["accesses"] == want.accesses
    assert numbers["bytes"] == want.hbm.bytes == 2 * want.accesses
    assert numbers["sram"]["capacity"] == 228 * 512
    assert sum(line["elements"] for line in numbers["by_line"]) * 7 == want.accesses


def test_verify_prints_the_ledger(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two claims; tests/analysis/test_verify.py tries each."""
    monkeypatch.setattr(
        verify, "checks", lambda: [theorem_5.theorem_5_standard, appendices.no_dropout_mask_kept]
    )
    assert main(["verify", "--json", "ledger.json"]) == 0
    out, err = capsys.readouterr()
    assert "2 claims, all hold" in out
    assert err == ""
    claims = json.loads(Path("ledger.json").read_text(encoding="utf-8"))["claims"]
    assert [claim["source"] for claim in claims] == ["Theorem 5", "Appendix B.4"]
    assert all(claim["holds"] and claim["tried"] and claim["measured"] for claim in claims)


def test_verify_exits_by_its_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flashsim.theory, "flash_constants", lambda d: (4.0, 18.0))
    monkeypatch.setattr(verify, "checks", lambda: [theorems_1_2.theorem_2_flash_bounds])
    assert main(["verify"]) == 1
    assert "FAILS  Theorem 2: FlashAttention: 12/5 ≤ accesses" in capsys.readouterr().out


@pytest.mark.usefixtures("no_pictures")
def test_plot_blocks_writes_its_numbers_as_csv(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["plot", "blocks", "--N", "96", "--d", "8", "--M", "1024"]
    assert main([*options, "--backward", "--csv", "b.csv"]) == 0
    assert "flashsim-blocks.json, b.csv" in capsys.readouterr().out
    rows = list(csv.DictReader(io.StringIO(Path("b.csv").read_text(encoding="utf-8"))))
    algorithms = {"forward": "flash_basic", "backward": "flash"}
    assert {row["direction"] for row in rows} == {*algorithms}
    for row in rows:
        direction = row["direction"]
        how: dict[str, Any] = {"M": 10**6, "blocks": (int(row["B_r"]), int(row["B_c"]))}
        name = algorithms[direction]
        if row["curve"] == "standard":  # which reads rows again where M is small
            name = "standard"
            how = {"M": 1024, "sizing": "fit"}
        tally = flashsim.count(name, N=96, d=8, direction=direction, **how)
        fits = tally.sram.peak <= 1024
        assert (row["peak_elements"], row["fits"]) == (str(tally.sram.peak), str(fits).lower())
        assert row["accesses_elements"] == str(tally.hbm.accesses)
    assert {row["fits"] for row in rows} == {"true", "false"}
    assert {row["curve"] for row in rows} == {
        "closed form",
        "count",
        "run",
        "line 1's blocks",
        "standard",
    }
    assert main([*options, "--csv", "-"]) == 0
    out, err = capsys.readouterr()
    assert (out.splitlines()[0], err) == (
        "curve,direction,B_r,B_c,accesses_elements,peak_elements,fits",
        "",
    )
    assert "backward" not in out
    for command, text in (
        ([*options, "--csv", "-", "--json", "-"], "--csv - and --json - both want stdout"),
        (["plot", "pareto", "--csv", "p.csv"], "--csv is for blocks; pareto does not take it"),
        (["plot", "pareto", "--backward"], "--backward is for blocks; pareto does not take it"),
        (["plot", "--all", "--csv", "p.csv"], "--csv is for one figure; name it in place of --all"),
        (
            [*options, "--csv", "no/b.csv"],
            "argument --csv: no/b.csv cannot be written: there is no folder no",
        ),
    ):
        assert main(command) == 2
        assert text in capsys.readouterr().err


TOO_LARGE = ("--M", "100", "--blocks", "16", "16")


def test_count_goes_on_beyond_an_M_that_is_not_enforced(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("count", "flash", "--N", "64", "--d", "8", *TOO_LARGE)
    assert "does not fit in SRAM" in refused(capsys, *sizes)
    for direction in ("forward", "backward"):
        flags = ("--backward",) if direction == "backward" else ()
        assert main([*sizes, *flags, "--no-enforce", "--json", "count.json"]) == 0
        assert " too many" in capsys.readouterr().out
        data = json.loads(Path("count.json").read_text(encoding="utf-8"))
        tally = flashsim.count(
            "flash", N=64, d=8, M=100, blocks=(16, 16), enforce=False, direction=direction
        )
        assert data["sram"] == tally.sram.to_dict()
        assert data["sram"]["peak"] > data["sram"]["capacity"] == 100
        assert data["accesses"] == tally.hbm.accesses
        assert data["equals_theory"] is True


@pytest.mark.usefixtures("no_pictures")
def test_run_goes_on_beyond_an_M_that_is_not_enforced(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("small.npz", **arrays())
    command = ("run", "--qkv", "small.npz", "--algorithm", "flash", "--backward", *TOO_LARGE)
    assert "does not fit in SRAM" in refused(capsys, *command)
    assert main([*command, "--no-enforce"]) == 0
    data = json.loads(Path("flashsim-run.json").read_text(encoding="utf-8"))["data"]
    for passes in (data["algorithms"], data["backward"]):
        assert passes["flash"]["sram"]["peak"] > 100
        assert passes["flash"]["sram"]["enforced"] is False


def test_step_goes_on_beyond_an_M_that_is_not_enforced(capsys: pytest.CaptureFixture[str]) -> None:
    command = ("step", "--N", "64", "--d", "8", *TOO_LARGE, "-o", "x.json.gz")
    assert "does not fit in SRAM" in refused(capsys, *command)
    assert main([*command, "--no-enforce"]) == 0
    about = flashsim.load_trace("x.json.gz").about
    assert about.peak > about.M == 100
    assert not about.enforced


def test_sweep_goes_on_beyond_an_M_that_is_not_enforced(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sweep", "flash", "--N", "64", "--d", "8", *TOO_LARGE, "--csv", "-"]
    status = {}
    for flags in ((), ("--no-enforce",)):
        main([*command, *flags])
        (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
        status[flags] = row["status"]
    assert status == {(): "does not fit", ("--no-enforce",): "ok"}


def test_count_and_step_take_the_mask_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    mask = np.random.default_rng(0).random((24, 24)) < 0.5
    np.save("mask.npy", mask)
    sizes: dict[str, Any] = {"N": 24, "d": 4, "M": 256}
    common = ("--N", "24", "--d", "4", "--M", "256", "--mask", "mask.npy")
    for flags, more in (
        ((), {"mask": mask}),
        (("--causal",), {"mask": mask, "causal": True}),
        (("--backward",), {"mask": mask, "direction": "backward"}),
    ):
        assert main(["count", "flash", *common, *flags, "--json", "count.json"]) == 0
        data = json.loads(Path("count.json").read_text(encoding="utf-8"))
        tally = flashsim.count("flash", **sizes, **more)
        assert data["by_array"] == tally.hbm.to_dict()["by_array"]
        assert data["by_array"]["mask"]["reads"] > 0
        assert data["arguments"]["mask"] == "Dense(array of shape (24, 24))"
        assert data["equals_theory"] is True
    assert main(["step", "flash", *common, "-o", "x.json.gz"]) == 0
    about = flashsim.load_trace("x.json.gz").about
    assert about.options == "Dense(array of shape (24, 24))"
    reads = {array.name: array.reads for array in about.arrays}
    assert reads["mask"] == mask.size
    capsys.readouterr()
    np.save("mask.npy", mask[:5])
    for command in ("count", "step"):
        error = refused(capsys, command, "flash", *common)
        assert "mask has shape (5, 24); expected" in error


def _draw_width(data: Mapping[str, Any], ax: Any) -> None:
    ax.plot([0, 1], [0, data["d"]])


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    ("option", "error"),
    [
        (("--N", "64"), "mine does not take it; it takes --d, --M"),
        (("--backward",), "--backward is for blocks; mine does not take it; it takes --d, --M"),
        (("--M", "1KB"), ""),  # of the default dtype
    ],
)
def test_a_figure_of_ones_own_says_what_it_takes(
    option: tuple[str, ...],
    error: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def mine_data(*, d: int = 64, M: int = 100) -> dict[str, Any]:
        return {"d": d, "M": M}

    mine = Chart("mine", mine_data, "a figure of one's own", 3.0, _draw_width)
    monkeypatch.setitem(FIGURES, "mine", mine)
    assert main(["plot", "mine", *option]) == (2 if error else 0)
    assert error in capsys.readouterr().err
    if not error:
        record = json.loads(Path("flashsim-mine.json").read_text(encoding="utf-8"))
        assert record["data"] == {"d": 64, "M": 256}


def test_each_argument_of_a_figure_has_a_default() -> None:
    def mine_data(*, N: int, d: int = 64) -> dict[str, Any]:
        return {"N": N, "d": d}

    with pytest.raises(ValueError, match=r"^figure 'mine': mine_data has no default for N; "):
        Chart("mine", mine_data, "a figure of one's own", 3.0, _draw_width)


@pytest.mark.usefixtures("no_pictures")
def test_plot_saves_three_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            ["plot", "blocks", "--N", "96", "--d", "8", "--M", "1024", "-o", "pictures/blocks.png"]
        )
        == 0
    )
    assert (
        "Saved pictures/blocks.png, pictures/blocks.svg, pictures/blocks.json"
        in capsys.readouterr().out
    )
    assert (
        json.loads(Path("pictures/blocks.json").read_text(encoding="utf-8"))["data"]["M"] == 1_024
    )
    assert (
        main(["plot", "approximate", "--k", "32", "--d", "8", "--json", "-", "-o", "pictures/k"])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["k"] == 32
    assert main(["plot", "theorem2", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert Path("flashsim-theorem2.png").exists()


def test_a_figure_is_found_by_its_file() -> None:
    result = {
        "figures/blocks.png": "blocks",
        "l2.svg": "l2",
        "figures/figure_2_left": "traffic",
        "figure_2_middle": "blocks",
        "figure_2_right.json": "sparsity",
        "figure_3_right": "memory",
        "accesses_by_array": "arrays",
    }
    # of the pages
    drawn = {file.stem for file in (ROOT / "figures").glob("*.json")} & FIGURES.keys()
    assert len(drawn) > 10
    for typed, name in (result | {f"figures/{name}.json": name for name in drawn}).items():
        assert parse(["plot", typed]).figure == name


@pytest.mark.usefixtures("no_pictures")
def test_arrays_of_a_causal_mask_and_of_shared_kv_heads(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["plot", "arrays", "--N", "64", "--d", "8", "--M", "600"]
    assert main([*options, "--causal", "--heads", "8", "--kv-heads", "2", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    shape: dict[str, Any] = {
        "N": 64,
        "d": 8,
        "M": 600,
        "causal": True,
        "heads": 8,
        "kv_heads": 2,
        "gqa": "grouped",
    }
    for direction in ("forward", "backward"):
        tally = flashsim.count("q_outer", **shape, direction=direction, sizing="fit")
        traffic = {
            name: {"reads": of.reads, "writes": of.writes}
            for name, of in tally.hbm.by_array.items()
        }
        assert data["directions"][direction]["q_outer"] == traffic
    axes = FIGURES["arrays"](data)
    text = (
        "N = 64, d = 8, M = 600, float32, causal\nthe largest blocks that fit M, 8 heads on 2 KV "
        "heads"
    )
    assert axes[0].get_xlabel().endswith(text)


# --------------------------------------------------------------------------------------------------
# shell


@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_a_table_that_is_too_wide_is_stacked(
    width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(row, *(f"{row[0]}{n}" for n in range(8))) for row in ("first", "second")]
    print_table(
        ("name", *(f"column {n}" for n in range(8))), rows, console(width=width, soft_wrap=True)
    )
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    heads = [line for line in lines if line.startswith("name")]
    assert re.findall(r"column \d", " ".join(heads)) == [f"column {n}" for n in range(8)]
    assert len(heads) == {30: 4, 60: 2, 80: 2, 200: 1}[width]
    assert all(f"{row}{n}" in " ".join(lines) for row in "fs" for n in range(8))


def test_a_problem_s_widths_are_said_once_where_they_are_equal() -> None:
    assert problem(2, 2, 1000, int("1000")) == "N = 2, d = 1000"
    assert problem(2, 3, 1000, 999) == "N_q = 2, N_k = 3, d = 1000, d_v = 999"


def test_python_m_flashsim(capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "flashsim", "count", "--N", "64", "--d", "8"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert done.stdout.startswith("Algorithm 2, FlashAttention, complete\n")
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"flashsim {flashsim.__version__}\n"


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_reads_well(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*command.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert "examples:" in out or not command
    assert max(map(len, out.splitlines())) <= 80
    assert "SUPPRESS" not in out
    assert "None" not in out


@pytest.mark.usefixtures("no_pictures")
def test_a_sink_is_a_logit_for_all_query_heads_or_one_for_each(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape: dict[str, Any] = {"N": 12, "d": 4, "M": 400, "blocks": (4, 4)}
    options = [
        "count",
        "q_outer",
        "--N",
        "12",
        "--d",
        "4",
        "--M",
        "400",
        "--blocks",
        "4",
        "4",
        "--json",
        "-",
    ]
    for heads, typed, logit in ((1, "0.5", 0.5), (3, "-.5e1", -5), (2, "-inf", -np.inf)):
        assert main([*options, "--causal", "--heads", str(heads), "--sink", typed]) == 0
        counted = json.loads(capsys.readouterr().out)
        tally = flashsim.count(
            "q_outer", **shape, heads=heads, causal=True, mask=flashsim.Sink(logit)
        )
        assert counted["arguments"]["mask"] == f"Sink({float(logit)})"
        assert (counted["reads"], counted["equals_theory"]) == (tally.hbm.reads, True)
        assert tally.hbm.by_array["sink"].reads == 3 * heads
    monkeypatch.chdir(tmp_path)
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 6, 3))
    np.savez("a.npz", q=q, k=k, v=v)
    options = [
        "run",
        "--qkv",
        "a.npz",
        "--M",
        "200",
        "--algorithm",
        "q_outer",
        "--backward",
        "--json",
        "-",
        "--quiet",
    ]
    assert main([*options, "--sink", "-1,20"]) == 0
    ran = json.loads(capsys.readouterr().out)
    assert ran["algorithms"]["q_outer"]["by_array"]["sink"]["reads"] == 2
    assert main([*options[:-3], "--sink", "-1,20"]) == 0
    assert "sink -1,20" in capsys.readouterr().out
    assert main(["step", "--sink", "2", "--causal", "--text"]) == 0
    assert "Sink" in capsys.readouterr().out


def test_an_offset_moves_the_causal_mask(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = [
        "--N_q",
        "12",
        "--N_k",
        "20",
        "--d",
        "4",
        "--M",
        "400",
        "--blocks",
        "4",
        "4",
        "--causal",
        "--offset",
        "-3",
    ]
    assert main(["count", "block_sparse", "--block-mask", "live", *options, "--json", "-"]) == 0
    counted = json.loads(capsys.readouterr().out)
    shape: dict[str, Any] = {"N_q": 12, "N_k": 20, "d": 4, "M": 400, "blocks": (4, 4)}
    tally = flashsim.count(
        "block_sparse", **shape, mask=flashsim.Causal(offset=-3), block_mask="live"
    )
    assert (counted["reads"], counted["equals_theory"]) == (tally.hbm.reads, True)
    assert counted["arguments"]["mask"] == "Causal(offset=-3)"
    trace = tmp_path / "step.json.gz"
    assert (
        main(["step", "--n", "6", "--d", "2", "--causal", "--offset", "2", "-o", str(trace)]) == 0
    )
    about = flashsim.load_trace(trace).about
    assert about.options == "Causal(offset=2)"
    assert all(array.exact == (array.reads, array.writes) for array in about.arrays)


def test_sizes_are_read_and_written() -> None:
    for text, itemsize, elements in (
        ("25600", 4, 25_600),
        ("100KB", 4, 25_600),
        ("100 kb", 2, 51_200),
        ("1.5MB", 4, 393_216),
        ("25,600", 2, 25_600),
        ("192KiB", 2, 98_304),
        ("64B", 4, 16),
    ):
        assert parse_size(text, itemsize) == elements
    assert [human_bytes(n) for n in (1, 1023, 1024, 102_400, 40.3 * 2**30, 2.0**50)] == [
        "1 B",
        "1023 B",
        "1 KB",
        "100 KB",
        "40.3 GB",
        "1,024 TB",
    ]


# --------------------------------------------------------------------------------------------------
# sample


def test_the_bundled_sample_is_real_and_says_where_it_is_from() -> None:
    sample = qkv.load_sample()
    assert sample.Q.shape == sample.K.shape == sample.V.shape == (12, 331, 32)
    assert sample.Q.dtype == np.float16
    padded = qkv.load_sample(padded=True)
    mask = qkv.sample_mask()
    assert padded.Q.shape == (12, 384, 32)
    assert mask.dtype == bool
    assert (mask.shape, int(mask.sum())) == ((384,), 331)
    Q, K = (a.astype(np.float64) for a in (sample.Q, sample.K))
    S = Q @ K.swapaxes(-1, -2) / np.sqrt(32)
    assert S.min() < -50
    assert S.max() > 70
    assert (Path(qkv.__file__).parent / "data" / qkv.SAMPLE).stat().st_size <= 1_000_000


@pytest.mark.parametrize(
    ("arguments", "M"),
    [  # line 1's M of blocks of three or four rows, 16 elements a row; more where the blocks need more
        ("standard", 48),
        ("standard --blocks 3 4", 64),
        ("small_cache --blocks 3 4", 64),
        ("flash --blocks 3 4", 86),
        ("memory_efficient --backward --blocks 3 4", 71),  # of which its backward pass needs 60
    ],
)
def test_without_m_it_is_line_1_s_of_the_blocks_or_what_they_need(arguments: str, M: int) -> None:
    options = parse(["step", "--N", "12", "--d", "4", "--algorithm", *arguments.split()])
    Q, K, V = inputs.operands(options)
    algorithm = {"forward": FORWARD, "backward": BACKWARD}[options.direction][arguments.split()[0]]
    result = inputs.arguments(options, Q, K, V, [algorithm])
    assert result["M"] == M
    assert flashsim.forward(arguments.split()[0], Q, K, V, **result).sram.peak <= M


def test_serve_says_which_elements_are_of_another_size_and_both_say_the_work(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        main(
            [
                "serve",
                "paged",
                "--keys",
                "100",
                "50",
                "--d",
                "16",
                "--dtype",
                "float16",
                "--page",
                "16",
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert (
        "In elements, of 2 bytes in float16; those of table, lengths, L are of 4 bytes."
        in " ".join(out.split())
    )
    products = 2 * 2 * (100 + 50) * 16  # 2·n·d for each of QKᵀ and PV
    traffic = re.search(r"^total .* ([\d,]+)$", out, re.MULTILINE)
    assert traffic
    assert (
        f"{products:,} FLOPs in matrix products, "
        f"{products / int(traffic[1].replace(',', '')):.3g} per byte moved"
    ) in out
    assert main(["serve", "fp8", "--keys", "100", "--d", "16"]) == 0
    assert "those of K, V are of 1 byte" in capsys.readouterr().out
    assert main(["serve", "varlen", "--keys", "100", "--d", "16", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["flops"]["matmul"] == 4 * 100 * 16
    assert main(["count", "--N", "1024", "--d", "64", "--heads", "3"]) == 0
    tally = flashsim.count("flash", N=1024, d=64, heads=3, sizing="fit")
    assert tally.flops.matmul == 3 * 4 * 1024**2 * 64
    text = (
        f"{tally.flops.matmul:,} FLOPs in matrix products, "
        f"{tally.flops.matmul / tally.hbm.bytes:.3g} per byte moved; "
    )
    assert f"{text}{tally.flops.other:,} others" in " ".join(capsys.readouterr().out.split())

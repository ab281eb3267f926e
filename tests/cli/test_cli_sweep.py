"""`flashsim sweep`: questions answered by one command, ranges, files, and what is refused."""

import csv
import io
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import flashsim
from flashsim.analysis.sweeping import costs, points, records, running
from flashsim.analysis.sweeping.rows import rows_of
from flashsim.cli import main
from flashsim.support.entry import Terminated
from tests.helpers.own import FORM, TWO_SWEEPS

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


def printed(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main(["sweep", *command]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return " ".join(out.split())


def rows(capsys: pytest.CaptureFixture[str], *command: str) -> list[dict[str, str]]:
    assert main(["sweep", *command, "--csv", "-"]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_where_does_flash_beat_standard(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "flash", "standard", "--N", "1:200:1", "--d", "64")
    least = {
        name: [flashsim.count(name, N=N, d=64).hbm.accesses for N in (33, 34, 200)]
        for name in ("flash", "standard")
    }
    assert [mine < other for mine, other in zip(*least.values(), strict=True)] == [
        False,
        True,
        True,
    ]
    assert "flash moves fewer than standard from N = 34 on (tried: N = 1 to 200, 200 values)" in out
    assert "20 of 200 shown" in out


def test_which_M_halves_the_traffic(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(
        capsys, "flash", "--N", "4096", "--d", "64", "--M", "100KB:300KB:100B", "--sizing", "paper"
    )
    (M,) = (
        int(part.replace(",", "")) for part in out.split("or less: from M = ")[1].split(" on ")[:1]
    )
    traffic = [
        flashsim.count("flash", N=4096, d=64, M=each, sizing="paper").hbm.accesses
        for each in (25_600, M - 25, M)
    ]
    assert traffic[2] <= traffic[0] / 2 < traffic[1]


def test_when_does_q_outer_beat_flash(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(
        capsys, "q_outer", "flash", "--N", "64:4096:x2", "--d", "64", "128", "--backward", "both"
    )
    assert "q_outer moves fewer than flash at all 28 points that both have" in out
    assert flashsim.sweep(["q_outer", "flash"], N=[64, 4096], d=64).where_fewer("flash") == []


def test_answers_differ_by_what_else_varies(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(
        capsys,
        "flash",
        "standard",
        "block_sparse",
        "--N",
        "1:200:1",
        "--d",
        "64",
        "128",
        "--M",
        "6400",
        "--sizing",
        "paper",
    )
    fewer = []
    for N in range(1, 201):
        flash, standard = (
            flashsim.count(name, N=N, d=64, M=6400, sizing="paper")
            for name in ("flash", "standard")
        )
        if flash.hbm.accesses < standard.hbm.accesses:
            fewer.append(N)
    assert [N for N in range(68, 201) if N not in fewer] == [*range(76, 85), 101]
    assert fewer[0] == 68
    assert (
        "d = 64: flash moves fewer than standard at N = 68 to 75, at N = 85 to 100, from N = 102 on"
        in out
    )
    assert "d = 128: flash nowhere moves fewer than standard" in out
    assert "flash and block_sparse move equally many at all 400 points that both have" in out


def test_every_option_arrives(capsys: pytest.CaptureFixture[str]) -> None:
    command = (
        "flash split_kv --N-q 1 8 --N-k 64 --d 8 --d-v 4 --M 2KB --dtype float16 float32 --blocks "
        "4 8 --blocks 8 8 "
        "--heads 4 --kv-heads 2 --gqa grouped separate --dropout 0.1 --causal both --backward both "
        "--splits 1:4:x2"
    )
    result = rows(capsys, *command.split(), "--check", "0")
    want = flashsim.sweep(
        ["flash", "split_kv"],
        N_q=[1, 8],
        N_k=64,
        d=8,
        d_v=4,
        M=["2048B"],
        dtype=["float16", "float32"],
        blocks=[(4, 8), (8, 8)],
        heads=4,
        kv_heads=2,
        gqa=["grouped", "separate"],
        dropout_p=0.1,
        causal=[False, True],
        direction=["forward", "backward"],
        splits=[1, 2, 4],
        check=0,
    )
    assert result == list(csv.DictReader(io.StringIO(want.to_csv())))
    assert {row["M"] for row in result} == {"512", "1024"}


@pytest.mark.parametrize(
    ("typed", "values"),
    [
        ("7", [7]),
        ("8:20:4", [8, 12, 16, 20]),
        ("8:21:4", [8, 12, 16, 20]),
        ("8:64:x2", [8, 16, 32, 64]),
        ("8:70:x2", [8, 16, 32, 64]),
        ("4:14:x1.5", [4, 6, 9, 14]),
        ("8:8:1", [8]),
        ("1000:1000000:x10", [1000, 10_000, 100_000, 1_000_000]),
    ],
)
def test_ranges(typed: str, values: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    assert [int(row["N"]) for row in rows(capsys, "--N", typed, "--d", "4")] == values


def test_dtypes_as_people_write_them(capsys: pytest.CaptureFixture[str]) -> None:
    short, whole = (
        rows(capsys, "--N", "64", "--d", "8", "--dtype", *names)
        for names in (["fp16"], ["float16"])
    )
    assert short == whole


def test_ranges_of_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    def sizes(*typed: str) -> list[str]:
        return [row["M"] for row in rows(capsys, "--N", "8", "--d", "4", "--M", *typed)]

    assert sizes("1KB:3KB:1KB", "100") == ["256", "512", "768", "100"]
    assert sizes("1KB:4KB:x2", "--dtype", "float16") == ["512", "1024", "2048"]
    assert sizes("1,000:3,000:1000") == ["1000", "2000", "3000"]


def test_a_line_of_very_many_names_is_read_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    names = ",".join(["N", "d", *(f"c{number}" for number in range(100_000))])
    Path("wide.csv").write_text(f"{names}\n8,4{100_000 * ',1'}\n", encoding="utf-8")
    before = time.process_time()
    assert main(["sweep", "--points", "wide.csv"]) == 2
    assert time.process_time() - before < 10
    assert "sweep takes no argument 'c0'" in capsys.readouterr().err


def test_files_are_written_with_how_they_were_made(capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "flash",
        "standard",
        "--N",
        "8:64:x2",
        "--d",
        "4",
        "--csv",
        "a.csv",
        "--json",
        "a.json",
        "-o",
        "a",
        "--y",
        "traffic",
    ]
    assert "Saved a.csv, a.png, a.svg, a.json" not in printed(
        capsys, *command[:-4], "-o", "b", "--y", "traffic"
    )
    record = json.loads(Path("a.json").read_text(encoding="utf-8"))
    assert record["command"] == (
        "flashsim sweep flash standard --N 8:64:x2 --d 4 --csv a.csv --json a.json -o b --y traffic"
    )
    assert (record["flashsim"], record["points"], record["cross_checked"]) == (
        flashsim.__version__,
        8,
        8,
    )
    assert len(Path("a.csv").read_text(encoding="utf-8").splitlines()) == 9
    drawn = json.loads(Path("b.json").read_text(encoding="utf-8"))
    assert (drawn["command"], drawn["data"]["y"], len(drawn["data"]["lines"])) == (
        record["command"],
        "traffic_bytes",
        2,
    )
    assert main(["sweep", *command]) == 2
    assert "argument --json: a.json is what -o writes too" in capsys.readouterr().err


def test_nothing_to_count_is_said_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "sweep",
                "flash",
                "--N",
                "64",
                "--d",
                "64",
                "128",
                "--M",
                "60",
                "--sizing",
                "paper",
                "-o",
                "a",
            ]
        )
        == 1
    )
    assert "2 that make no sense" in capsys.readouterr().out
    assert not Path("a.png").exists()


def test_an_interrupt_leaves_no_file_and_the_old_one_as_it_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(many: Sequence[points.Point]) -> list[records.Row]:
        raise KeyboardInterrupt

    Path("old.csv").write_text("before", encoding="utf-8")
    monkeypatch.setattr(running, "rows_of", interrupted)
    assert main(["sweep", "--N", "8", "--d", "4", "--csv", "old.csv", "--json", "new.json"]) == 130
    text = "interrupted (0 of 1 points were done, and are lost; --resume FILE keeps them)\n"
    assert capsys.readouterr() == ("", text)
    assert {path.name for path in Path().iterdir()} == {"old.csv"}
    assert Path("old.csv").read_text(encoding="utf-8") == "before"


SWEPT = [
    "sweep",
    "flash",
    "standard",
    "--N",
    "8:247:1",
    "--d",
    "4",
    "--check",
    "0",
    "--resume",
    "kept",
    "--csv",
    "a.csv",
]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, Terminated])
def test_an_interrupt_keeps_what_is_done_and_the_same_command_goes_on(
    stop: type[BaseException], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces: list[int] = []

    def stopped(many: Sequence[points.Point], most: int = 3) -> list[records.Row]:
        if len(pieces) == most:
            raise stop
        pieces.append(len(many))
        return rows_of(many)

    assert main([*SWEPT[:-4], "--csv", "whole.csv"]) == 0
    capsys.readouterr()
    monkeypatch.setattr(running, "rows_of", stopped)
    assert main(SWEPT) == (130 if stop is KeyboardInterrupt else 143)
    word = "interrupted" if stop is KeyboardInterrupt else "terminated"
    assert (
        capsys.readouterr().err
        == f"{word} (150 of 480 points are kept in kept; the same again goes on)\n"
    )
    assert not Path("a.csv").exists()
    with Path("kept").open("a", encoding="utf-8") as file:
        file.write('{"piece": 4, "rows": [{"N": ')  # as where the machine went off
    pieces.clear()
    monkeypatch.setattr(running, "rows_of", partial(stopped, most=99))
    assert main(SWEPT) == 0
    assert sum(pieces) == 480 - 150
    assert Path("a.csv").read_bytes() == Path("whole.csv").read_bytes()
    pieces.clear()
    assert main(SWEPT) == 0
    assert pieces == []


def test_what_is_kept_is_of_one_sweep_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SWEPT) == 0
    kept = Path("kept").read_bytes()
    Path("mine.py").write_text(TWO_SWEEPS, encoding="utf-8")
    assert main(["sweep", "mine.py:two_sweeps", "--N", "8", "--d", "4", "--resume", "mine"]) == 0
    Path("mine.py").write_text(TWO_SWEEPS.replace("return O", "return  O"), encoding="utf-8")
    sys.modules.pop("mine")
    for command in (
        [*SWEPT, "--M", "900"],
        [*SWEPT, "--causal"],
        [*SWEPT, "--N", "9"],
        ["sweep", "mine.py:two_sweeps", "--N", "8", "--d", "4", "--resume", "mine"],
        ["sweep", "--N", "8", "--d", "4", "--resume", "mine.py"],
    ):
        assert main(command) == 2
        assert "is of another sweep, or of none" in capsys.readouterr().err
    assert Path("kept").read_bytes() == kept


def test_a_difference_is_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(point: points.Point) -> costs.Cost:
        return costs.Cost("refused", "by hand")

    monkeypatch.setattr(running, "by_count", wrong)
    assert main(["sweep", "--N", "8", "--d", "4", "--csv", "a.csv"]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), Path("a.csv").exists()) == ("", 1, False)
    assert "closed form and count differ for 'flash'" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "longest"),
    [
        (["flash", "standard"], 300),
        (["small_cache", "swept.py:two_sweeps", "formed.py:two_sweeps"], 100),
    ],
)
def test_processes_find_the_same(
    names: list[str], longest: int, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("swept.py").write_text(TWO_SWEEPS, encoding="utf-8")
    Path("formed.py").write_text(TWO_SWEEPS + FORM, encoding="utf-8")
    # more than one process is given at once
    command: list[Any] = [*names, "--N", f"1:{longest}:1", "--d", "8", "64"]
    assert rows(capsys, *command, "--jobs", "2") == rows(capsys, *command)

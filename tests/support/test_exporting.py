"""Results as dictionaries, JSON and DataFrames: every count exactly the integer it is."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flashsim
import flashsim.memory.traffic
from flashsim.cli import main
from flashsim.support import exporting, provenance

LARGE = flashsim.count("flash", N=2**42, d=128, heads=2, M=4096)


def run() -> tuple[flashsim.Result, flashsim.Result]:
    Q, K, V = np.random.default_rng(0).normal(size=(3, 2, 12, 4)).astype(np.float32)
    forward = flashsim.forward("flash", Q, K, V, M=120, causal=True)
    return forward, flashsim.backward("flash", forward, np.ones_like(Q))


def test_a_tally_as_plain_data() -> None:
    assert LARGE.hbm.accesses > 2**63
    record = LARGE.to_dict()
    assert record == {
        "algorithm": "flash",
        **LARGE.plan.described(),
        "hbm": LARGE.hbm.to_dict(),
        "sram": {"peak": LARGE.sram.peak, "capacity": 4096, "over": 0, "enforced": True},
        "blocks": {
            "B_r": 7,
            "B_c": 7,
            "T_r": -(-(2**42) // 7),
            "T_c": -(-(2**42) // 7),
        },
        "sizing": "fit",
        "flops": {"matmul": LARGE.flops.matmul, "other": LARGE.flops.other},
    }
    traffic = record["hbm"]
    assert [
        traffic[name] for name in ("reads", "writes", "init_writes", "accesses", "bytes", "extra")
    ] == [
        LARGE.hbm.reads,
        LARGE.hbm.writes,
        LARGE.hbm.init_writes,
        LARGE.hbm.accesses,
        LARGE.hbm.bytes,
        LARGE.hbm.extra,
    ]
    O = LARGE.hbm.by_array["O"]
    assert traffic["by_array"]["O"] == {
        "reads": O.reads,
        "writes": O.writes,
        "init_writes": O.init_writes,
        "accesses": O.accesses,
        "bytes": O.bytes,
        "size": O.size,
        "itemsize": 4,
        "role": "output",
    }
    assert list(traffic["by_array"]) == list(LARGE.hbm.by_array)


def test_options_are_their_values_in_json_and_objects_are_named() -> None:
    run = flashsim.forward("split_kv", *np.ones((3, 8, 4)), M=200, merge="tree")
    assert run.to_dict()["options"]["merge"] == "tree"


def test_json_is_the_dictionary(tmp_path: Path) -> None:
    swept = flashsim.sweep(N=[2**42, 0], d=4)
    for result in (LARGE, LARGE.hbm, *run(), swept):
        text = result.to_json()
        # a notebook shows what its last line returns
        assert result.to_json(tmp_path / "result.json") is None
        assert (tmp_path / "result.json").read_text(encoding="utf-8") == text
        record = json.loads(text)
        made = record.pop("made_with")
        assert record == result.to_dict()
        assert (made["flashsim"], made["numpy"]) == (flashsim.__version__, np.__version__)
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", made["date"])
        assert "NaN" not in text


def test_the_commit_is_that_of_the_clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "file").write_text("1", encoding="utf-8")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    head = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    monkeypatch.setattr(provenance, "SOURCES", tmp_path)
    assert provenance.commit.__wrapped__() == head
    (tmp_path / "file").write_text("2", encoding="utf-8")
    assert provenance.commit.__wrapped__() == f"{head}-dirty"
    monkeypatch.setattr(provenance, "SOURCES", tmp_path / "elsewhere")
    assert provenance.commit.__wrapped__() is None


def test_a_command_s_json_says_what_it_was_made_with(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", "--N", "64", "--d", "8", "--json", "-"]) == 0
    of_command = json.loads(capsys.readouterr().out)["made_with"]
    assert of_command == json.loads(LARGE.to_json())["made_with"]
    assert of_command.keys() == {"flashsim", "python", "numpy", "date", "commit"}


def test_a_run_says_what_it_was_of() -> None:
    forward, backward = run()
    record = forward.to_dict()
    assert {
        name: record[name]
        for name in ("direction", "N_q", "N_k", "d", "d_v", "leading", "dtype", "scale", "gqa")
    } == {
        "direction": "forward",
        "N_q": 12,
        "N_k": 12,
        "d": 4,
        "d_v": 4,
        "leading": [2],
        "dtype": "float32",
        "scale": 0.5,
        "gqa": "separate",
    }
    assert (record["mask"], record["dropout_p"], record["seed"]) == ("Causal()", 0.0, 0)
    assert backward.to_dict()["direction"] == "backward"
    assert backward.to_dict()["hbm"] == backward.hbm.to_dict()
    assert not {"O", "dQ"} & {*record, *backward.to_dict()}
    Q = np.ones((2, 6, 3, 4))
    shared = flashsim.forward("flash", Q, Q[:, :2], Q[:, :2], M=120, gqa="grouped")
    record = shared.to_dict()
    assert record["leading"] == [2, 6]
    assert record["kv_heads"] == 4
    assert record["gqa"] == "grouped"


def test_a_table_by_array() -> None:
    pytest.importorskip("pandas", reason='pandas is not installed: pip install -e ".[pandas]"')
    forward, _ = run()
    for result in (LARGE, forward, forward.hbm):
        traffic = result if isinstance(result, flashsim.memory.traffic.Traffic) else result.hbm
        table = result.to_pandas()
        assert table.index.name == "array"
        assert list(table.index) == list(traffic.by_array)
        for name in ("reads", "writes", "init_writes", "accesses", "bytes", "size"):
            column = [getattr(array, name) for array in traffic.by_array.values()]
            assert table[name].tolist() == column
            assert table[name].sum() == sum(column)
    assert str(forward.to_pandas().reads.dtype) == "int64"
    # more than int64 holds
    table = exporting.to_pandas([{"n": 2**63}, {"n": 1}], ["n"])
    assert table["n"].tolist() == [2**63, 1]
    blocks = forward.to_pandas().attrs["blocks"]
    assert blocks == {"B_r": 4, "B_c": 5, "T_r": 3, "T_c": 3}


@pytest.mark.parametrize("what", ["Tally", "Traffic", "Sweep"])
def test_without_pandas_the_error_says_what_to_install(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    results: dict[str, Any] = {
        "Tally": LARGE,
        "Traffic": LARGE.hbm,
        "Sweep": flashsim.sweep(N=8, d=4),
    }
    with pytest.raises(ModuleNotFoundError, match=r'pip install -e "\.\[pandas\]"'):
        results[what].to_pandas()


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_proofs_and_tunings_are_what_their_commands_write(
    direction: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments: dict[str, Any] = {"N": 16, "d": 4, "M": 60, "direction": direction}
    for name, record in (
        ("prove", flashsim.prove(**arguments)),
        ("tune", flashsim.tune.tune(**arguments)),
    ):
        command = [name, "--N", "16", "--d", "4", "--M", "60", "--json", "-"]
        assert main([*command, *["--backward"] * (direction == "backward")]) == 0
        written = json.loads(capsys.readouterr().out)
        assert written.pop("command").startswith(f"flashsim {name} ")
        assert json.loads(record.to_json()) == written
        assert {"flashsim", "date", "commit"} <= written["made_with"].keys()
        assert record.to_json(tmp_path / f"{name}.json") is None
        assert not hasattr(record, "to_pandas")
    assert main(["prove", "--check", str(tmp_path / "prove.json")]) == 0

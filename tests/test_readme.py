"""What README shows is what happens: its code runs, its output is real, its table is the source."""

from __future__ import annotations

import doctest
import inspect
import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim.algorithms import BACKWARD, FORWARD, Algorithm, algorithm_1_flash_basic, backward_passes
from flashsim.algorithms.own import PARTS as PARTS_OF_ONES_OWN
from flashsim.cli import main
from flashsim.reference import attention, error_bound, rounding
from flashsim.testing.mutants import ALL
from tests.implementations import IMPLEMENTATIONS

README = Path(__file__).parent.parent / "README.md"
TEXT = README.read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def matches(shown: str, line: str) -> bool:
    """Whether an output line is as shown, where … stands for anything."""
    return re.fullmatch(re.escape(shown).replace("…", ".*"), line.rstrip()) is not None


@pytest.mark.parametrize("block", blocks("console"), ids=lambda block: block.splitlines()[0])
def test_commands_print_what_is_shown(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command, *shown = block.splitlines()
    assert command.startswith("$ flashsim ")
    assert main(shlex.split(command.removeprefix("$ flashsim "))) == (1 if "FAILS" in block else 0)
    printed = capsys.readouterr().out.rstrip().splitlines()
    at = 0
    for line, wanted in enumerate(shown):
        if wanted == "…":  # any lines
            following = shown[line + 1]
            at = next(i for i in range(at, len(printed)) if matches(following, printed[i]))
        else:
            assert matches(wanted, printed[at])
            at += 1
    assert at == len(printed)


def test_python_sessions_print_what_is_shown() -> None:
    sessions = [block for block in blocks("python") if block.startswith(">>>")]
    assert len(sessions) >= 3
    test = doctest.DocTestParser().get_doctest("".join(sessions), {}, "README", str(README), 0)
    assert doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL).run(test).failed == 0
    overflow = "".join(re.findall(r"^flashsim\.memory\.SramOverflow: (.*)$", TEXT, re.MULTILINE))
    with pytest.raises(Exception, match=re.escape(overflow)):
        exec(re.findall(r">>> (.*blocks=\(64, 100\)\))", TEXT)[0], {"flashsim": __import__("flashsim")})


def test_the_debugging_walk_is_real(tmp_path: Path) -> None:
    (script,) = (block for block in blocks("python") if block.startswith("# walk.py"))
    (walk,) = blocks("pdb")
    (tmp_path / "walk.py").write_text(script, encoding="utf-8")
    commands = re.findall(r"^\(Pdb\) (.*)$", walk, re.MULTILINE)
    shown = [line for line in walk.splitlines() if not line.startswith(("$", "(Pdb)"))]
    done = subprocess.run(
        [sys.executable, "-m", "pdb", "walk.py"],
        input="\n".join([*commands, "q", ""]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    printed = done.stdout.replace("(Pdb) ", "")
    at = 0
    for line in shown:
        found = printed.find(line, at)
        assert found >= 0, f"{line!r} not printed, in order, in:\n{done.stdout}{done.stderr}"
        at = found


def test_an_algorithm_of_ones_own_does_what_is_said(tmp_path: Path) -> None:
    (script,) = (block for block in blocks("python") if block.startswith("# mine.py"))
    assert len(script.splitlines()) <= 25
    scope: dict[str, Any] = {}
    exec(script, scope)
    mine = scope["two_sweeps"]
    Q, K, V = (np.random.default_rng(n).normal(size=(50, 8)) for n in range(3))
    run = flashsim.forward(mine, Q, K, V, M=500, sizing="fit")
    assert run.sram.enforced
    assert (abs(run.O - attention(Q, K, V)) <= error_bound(Q, K, V, **rounding(mine, run.blocks))).all()
    assert flashsim.count(mine, N=50, d=8, M=500, sizing="fit", dtype="float64").hbm == run.hbm
    assert flashsim.trace(mine, Q, K, V, M=500).save(tmp_path / "mine.html").exists()
    assert ", ".join(PARTS_OF_ONES_OWN) == "tau, MASK, dropout, live"


def test_a_mask_of_ones_own_needs_allows_alone() -> None:
    class Dilated(flashsim.Mask):
        """Every other key of the last nine."""

        def allows(self, rows: Any, cols: Any, shape: Any, head: Any) -> Any:
            apart = rows[:, None] - cols[None, :]
            return (apart >= 0) & (apart < 9) & (apart % 2 == 0)

    Q, K, V = (np.random.default_rng(n).normal(size=(30, 4)) for n in range(3))
    apart = np.arange(30)[:, None] - np.arange(30)
    whole = (apart >= 0) & (apart < 9) & (apart % 2 == 0)
    for name in ("standard", "flash", "q_outer", "small_cache"):
        run = flashsim.forward(name, Q, K, V, mask=Dilated(), M=200)
        assert np.allclose(run.O, attention(Q, K, V, mask=whole), rtol=1e-12), name


def test_every_algorithm_has_its_row() -> None:
    """Name, and a link to the file that holds it, forward and backward; no other rows, and no numbers."""
    table = TEXT.partition("<!-- table of algorithms -->")[2].partition("<!-- end of")[0]
    rows = {row[0].strip(" `"): row[1:] for row in re.findall(r"^\| (`\w+`) \| (.*) \| (.*) \|$", table, re.MULTILINE)}
    assert list(rows) == list(FORWARD)
    assert len(rows) == len(table.strip().splitlines()) - 2
    for name, (forward, backward) in rows.items():
        assert links(forward) == [file_of(FORWARD[name])], name
        assert links(backward) == [file_of(BACKWARD[back]) for back in backward_passes(name)], name
    said = {name for _, backward in rows.values() for name in re.findall(r"`(\w+)`: ", backward)}
    assert said == BACKWARD.keys() - FORWARD.keys()


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)#]+)\)", text)


def file_of(algorithm: Algorithm) -> str:
    return str(Path(inspect.getfile(algorithm.run)).relative_to(README.parent))


def test_tables_are_as_made_and_only_they_are_written() -> None:
    written = runpy.run_path(str(README.parent / "scripts" / "readme_tables.py"))["written"]
    assert written(TEXT) == TEXT
    first, marker, rest = TEXT.partition("<!-- table of kernels -->\n")
    old = rest.replace("| 335.9 |", "| 1.0 |", 1)
    assert old != rest
    assert written(first + marker + old + "| `standard` | 74.6 |\n") == TEXT + "| `standard` | 74.6 |\n"
    with pytest.raises(ValueError, match="end of table of algorithms"):
        written(TEXT.replace("<!-- end of table of algorithms -->", ""))


def test_algorithm_1_s_table_is_its_source() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| .*? \| (.*) \|$", TEXT, re.MULTILINE))
    assert list(map(int, rows)) == list(range(1, 17))
    source = re.sub(r"\s+", "", inspect.getsource(algorithm_1_flash_basic.flash_basic).replace("# line 12\n", ""))
    for line, cell in rows.items():
        for code in re.findall(r"`([^`]+)`", cell):
            assert re.sub(r"\s+", "", code) in source, f"line {line}"
    printed = dict(re.findall(r"^    (\d+) +(.*)$", algorithm_1_flash_basic.__doc__ or "", re.MULTILINE))
    for line, text in re.findall(r"^\| (\d+) \| (.*?) \|", TEXT, re.MULTILINE):
        assert printed[line] == text


def test_files_that_are_linked_exist() -> None:
    assert len(links(TEXT)) > 8
    for link in links(TEXT):
        assert (README.parent / link).exists(), link


def test_speeds_are_the_benchmarked_ones() -> None:
    rows = json.loads((README.parent / "figures" / "bench_cpu.json").read_text(encoding="utf-8"))["rows"]
    measured = re.findall(r"^\| [^|]+ \| ([\d.]+) \| [≤≥] [\d.]+ \|$", TEXT, re.MULTILINE)
    values = [row["value"] for row in rows if "interpret=True" not in row["what"]]
    order = [*values[:5], values[6], values[5]]  # README puts Triton first
    assert len(measured) == len(order)
    for said, value in zip(measured, order, strict=True):
        digits = len(said.partition(".")[2])
        assert said == f"{value:.{digits}f}"


def test_numbers_about_real_data_are_the_measured_ones() -> None:
    statistics = json.loads((README.parent / "figures" / "qkv_statistics.json").read_text(encoding="utf-8"))[
        "statistics"
    ]
    first, gaussian = statistics["layer 0"], statistics["gaussian"]
    said = re.sub(r"\s+", " ", TEXT)
    assert f"from −{-first['score_min']:.0f} to +{first['score_max']:.0f}" in said
    assert f"by up to {first['by_key_block']['32']['largest_rise']:.0f} from one block of 32 keys" in said
    assert f"within ±{max(-gaussian['score_min'], gaussian['score_max']) + 0.05:.1f}" in said
    assert f"jump by at most {gaussian['by_key_block']['32']['largest_rise']:.1f}" in said
    layers = [statistics[f"layer {n}"] for n in range(6)]
    assert f"All but one of the {sum(layer['rows'] for layer in layers):,} row maxima are positive" in said
    assert sum(layer["rows_with_negative_max"] for layer in layers) == 1
    shares = [round(100 * layer["rows_with_max_at_first_token"] / layer["rows"]) for layer in layers]
    assert f"in {shares[0]}% of rows in layer 0 and in {', '.join(map(str, shares[1:-1]))} and {shares[-1]}% in" in said
    rising = gaussian["by_key_block"]["32"]["mean_rising_blocks"]
    assert all(layer["by_key_block"]["32"]["mean_rising_blocks"] < rising for layer in layers[1:])


def test_numbers_about_the_kit_are_the_recorded_ones() -> None:
    data = json.loads((README.parent / "figures" / "kit_matrix.json").read_text(encoding="utf-8"))["data"]
    said = re.sub(r"\s+", " ", TEXT)
    late = [row["name"] for row in data["mutants"] if row["written"] == "after"]
    assert {row["name"] for row in data["mutants"]} == {mutant.name for mutant in ALL}
    assert len(ALL) == data["caught_with_every_seed"]
    assert f"[{len(ALL)} small attentions]" in said
    assert f"shape notices {data['caught_by_the_textbook_test']}." in said
    assert f"{len(late)} of them were written after" in said
    assert f"the kit noticed {len(late) - len(data['missed_when_frozen'])} of these" in said

    record = json.loads((README.parent / "figures" / "kit_conformance.json").read_text(encoding="utf-8"))
    subjects = record["implementations"]
    assert set(subjects) == set(IMPLEMENTATIONS)
    assert all(subject["ok"] for subject in subjects.values())
    assert f"[{len(subjects)} correct implementations]" in said
    assert f"with {record['examples']:,} examples each" in said
    fewer = [name for name, subject in subjects.items() if subject["examples"] < record["examples"]]
    assert set(fewer) == set(record["fewer_examples"]) == {"jax_pallas", "triton"}
    assert {subjects[name]["examples"] for name in fewer} == {200}

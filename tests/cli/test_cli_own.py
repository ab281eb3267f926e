"""An algorithm of one's own, FILE.py:NAME, goes wherever a name goes on the command line; what
is wrong with it is one line.
"""

import bdb
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import flashsim
from flashsim.cli import main
from flashsim.reference import attention, error_bound, of_bound, rounding
from tests.helpers.own import FORM, SKIPPING, TWO_SWEEPS
from tests.helpers.two_sweeps import two_sweeps

SMALL = ("--n", "11", "--d", "3", "--blocks", "2", "4")  # T_r = 6, T_c = 3
BOTH_WAYS = """
from dataclasses import replace

from flashsim.algorithms import BACKWARD
from flashsim.algorithms.with_sink import variants

def attention(hbm, sram, Q, K, V, blocks, tau, MASK, dropout, sink):
    return variants()["flash"].run(hbm, sram, Q, K, V, blocks, tau, MASK, dropout, sink)[:3]

def gradients(hbm, sram, *rest):
    return BACKWARD["flash"].run(hbm, sram, *rest)

RECORD = replace(variants()["flash"], name="mine", run=attention)
OF_RECORD = replace(BACKWARD["flash"], name="mine, backward", of="mine", run=gradients)
OF_FUNCTION = replace(OF_RECORD, name="attention, backward", of="both.py:attention")
"""
TWICE = """
    found = BACKWARD["flash"].run(hbm, sram, *rest)
    if hbm.arithmetic:
        found[0]._storage.values *= 2
    return found
"""
ROW_SUMS = """
from flashsim import Kind, MatrixProgram

def row_sums(hbm, sram, X, blocks):
    return X

program = MatrixProgram(
    title="Row sums", run=row_sums, operands={"X": Kind("N", "d")}, returns={"X": Kind("N", "d")}, blocks={"B": "N"},
)
"""
FILES = {
    "both.py": BOTH_WAYS,
    "twice.py": BOTH_WAYS.replace('\n    return BACKWARD["flash"].run(hbm, sram, *rest)\n', TWICE),
    "mine.py": TWO_SWEEPS,
    "formed.py": TWO_SWEEPS + FORM,
    "wrong.py": (TWO_SWEEPS + FORM).replace("2 * blocks.T_r", "3 * blocks.T_r"),
    "peak.py": (TWO_SWEEPS + FORM).replace("+ 2 * r)", "+ 3 * r)"),
    "other.py": TWO_SWEEPS.replace("/ l_i)", "/ l_i / 2)"),
    "typo.py": TWO_SWEEPS.replace("rowmax(S_ij)", "rowmx(S_ij)"),
    "unloaded.py": TWO_SWEEPS.replace("sram.load(K[j]).T", "K[j].T"),
    "syntax.py": "import numpy\n\ndef f(hbm, sram, Q, K, V, blocks)\n    return Q\n",
    "needs.py": "import numpy\n\nimport no_such_package\n",
    "helped.py": "import helper\nf = helper.two_sweeps\n",
    "helper.py": TWO_SWEEPS,
    "loads.py": SKIPPING,
    "stops.py": TWO_SWEEPS.replace("    on_chip = ", "    breakpoint()\n    on_chip = "),
    "halts.py": "import bdb\n\nraise bdb.BdbQuit\n",
    "plain.py": "def attention(q, k, v):\n    return q\n\nN = 3\n",
    "sums.py": ROW_SUMS,
}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, text in FILES.items():
        Path(name).write_text(text, encoding="utf-8")
    yield
    for name in {Path(file).stem for file in FILES} - before:
        sys.modules.pop(name, None)


def said(capsys: pytest.CaptureFixture[str], *command: str, status: int = 0) -> str:
    assert main(command) == status
    out, err = capsys.readouterr()
    assert err == ""
    return out


@pytest.mark.usefixtures("no_pictures")
def test_run_compares_with_naive_attention_and_with_the_form(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 24, 4)).astype(np.float32)
    np.savez("small.npz", q=q, k=k, v=v)
    files = ("mine.py", "formed.py", "wrong.py", "peak.py", "other.py")
    command = ("run", "--qkv", "small.npz", "--M", "256", "--algorithm", "flash_basic")
    out = said(capsys, *command, *(f"{file}:two_sweeps" for file in files), status=1)
    rows = re.findall(r"equals the closed form +(.+)", out)  # of a table that is stacked
    assert [cell for row in rows for cell in re.split(" {2,}", row.rstrip())] == [
        "yes, by array",
        "no closed form",
        "yes, by array",
        "NO",
        "NO",
        "no closed form",
    ]
    assert out.count("TOO LARGE") == 1  # other.py's
    numbers = json.loads(Path("flashsim-run.json").read_text(encoding="utf-8"))["data"][
        "algorithms"
    ]
    assert list(numbers) == ["flash_basic", *(f"{file}:two_sweeps" for file in files)]
    run = flashsim.forward(two_sweeps, q, k, v, M=256, sizing="fit")
    bound = error_bound(q, k, v, **rounding(two_sweeps, run.blocks))
    assert (
        numbers["mine.py:two_sweeps"]["error_of_rounding_bound"]
        == of_bound(run.O, attention(q, k, v), bound)
        > 0
    )
    assert numbers["other.py:two_sweeps"]["error_of_rounding_bound"] > 1
    assert [numbers[f"{file}:two_sweeps"]["equals_theory"] for file in files] == [
        None,
        True,
        False,
        False,
        None,
    ]


@pytest.mark.usefixtures("no_pictures")
def test_run_backward_takes_the_pass_in_the_same_file(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 24, 4)).astype(np.float32)
    np.savez("small.npz", q=q, k=k, v=v)
    own = "both.py:RECORD", "both.py:attention"
    said(
        capsys,
        "run",
        "--qkv",
        "small.npz",
        "--M",
        "256",
        "--causal",
        "--backward",
        "--algorithm",
        "flash",
        *own,
    )
    numbers = json.loads(Path("flashsim-run.json").read_text(encoding="utf-8"))["data"]["backward"]
    flash, *mine = numbers.values()
    assert [result["accesses"] for result in mine] == 2 * [flash["accesses"]]
    assert [result["error_of_rounding_bound"] for result in mine] == 2 * [
        flash["error_of_rounding_bound"]
    ]
    wrong = said(
        capsys,
        "run",
        "--qkv",
        "small.npz",
        "--M",
        "256",
        "--backward",
        "--algorithm",
        "twice.py:RECORD",
        status=1,
    )
    assert "backward" in wrong


@pytest.mark.usefixtures("no_pictures")
def test_a_mask_from_a_file_and_an_offset_hold_both(capsys: pytest.CaptureFixture[str]) -> None:
    q = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    np.savez("small.npz", q=q, k=q, v=q)
    mask = np.arange(8) < np.array([[8]] * 4 + [[2]] * 4)
    np.save("mask.npy", mask)
    blocks = "--causal", "--offset", "1", "--blocks", "2", "2", "--algorithm", "split_kv"
    said(capsys, "run", "--qkv", "small.npz", "--mask", "mask.npy", *blocks)
    (result,) = json.loads(Path("flashsim-run.json").read_text(encoding="utf-8"))["data"][
        "algorithms"
    ].values()
    traffic = [
        flashsim.forward("split_kv", q, q, q, blocks=(2, 2), mask=each).hbm.accesses
        for each in (
            flashsim.Causal(1) & flashsim.Dense(mask),
            flashsim.Dense(mask),
            flashsim.Causal(1),
        )
    ]
    assert result["accesses"] == traffic[0]
    assert traffic[0] not in traffic[1:]


def test_a_file_that_did_not_load_is_read_again(capsys: pytest.CaptureFixture[str]) -> None:
    count = "count", "later.py:two_sweeps", "--N", "8", "--d", "2"
    Path("later.py").write_text(TWO_SWEEPS + "\nimport no_such_package\n", encoding="utf-8")
    for _ in range(2):
        assert main(count) == 2
        assert "No module named 'no_such_package'" in capsys.readouterr().err
    Path("later.py").write_text(TWO_SWEEPS, encoding="utf-8")
    assert "accesses" in said(capsys, *count)
    del sys.modules["later"]


def test_count_is_by_array_and_by_line_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    size = ("--N", "64", "--d", "8", "--M", "4KB", "--blocks", "16", "16")
    out = said(capsys, "count", "mine.py:two_sweeps", *size)
    line = next(
        n for n, text in enumerate(TWO_SWEEPS.splitlines(), 1) if "sram.load(K[j], V[j])" in text
    )
    assert re.search(rf"^{line} of mine.py  load +V +16 +2,048$", out, re.MULTILINE)
    assert " accesses, 28 KB; no closed form" in out
    assert out == said(capsys, "count", "--algorithm", "mine.py:two_sweeps", *size)
    out = said(capsys, "count", "formed.py:two_sweeps", *size)
    assert "equal to the closed form" in out
    assert "2·T_r·N_k·d" in out
    assert "NOT EQUAL TO THE CLOSED FORM" in said(
        capsys, "count", "wrong.py:two_sweeps", *size, status=1
    )


def test_count_says_whose_shape_blocks_have_and_that_tune_looks_for_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    size = ("--N", "64", "--d", "8", "--M", "4KB")
    hint = "flashsim tune, with this function and sizes, looks for"
    out = said(capsys, "count", "mine.py:two_sweeps", *size)
    assert "the largest blocks of Algorithm 1's shape, or turned, that fit\n" in out
    assert hint in " ".join(out.split())
    for other in (
        ["mine.py:two_sweeps", "--blocks", "4", "4"],
        ["formed.py:two_sweeps"],
        ["flash"],
    ):
        assert "flashsim tune" not in said(capsys, "count", *other, *size)


def test_tune_tries_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(
        capsys,
        "tune",
        "--N",
        "16",
        "--d",
        "2",
        "--M",
        "100",
        "--algorithm",
        "mine.py:two_sweeps",
        "rabe_staats",
    )
    assert re.search(r"two_sweeps +two_sweeps", out)
    assert re.search(r"rabe_staats +Appendix B.5, Rabe and Staats", out)


def test_step_makes_a_page_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    said(
        capsys,
        "step",
        "--algorithm",
        "formed.py:two_sweeps",
        "--vs",
        "flash_basic",
        "--n",
        "4",
        "--d",
        "2",
    )
    assert "two_sweeps and Algorithm 1" in Path("flashsim-step.html").read_text(encoding="utf-8")
    text = said(capsys, "step", "--algorithm", "mine.py:two_sweeps", *SMALL, "--text")
    assert "step 0 · line 15 of mine.py · i = 1\n    Q_i = sram.load(Q[i])" in text


def test_debug_stops_at_a_line_of_the_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = next(n for n, text in enumerate(TWO_SWEEPS.splitlines(), 1) if "O_i = on_chip(" in text)
    monkeypatch.setattr(sys, "stdin", io.StringIO("p 'at', i, j, K_j.shape\nq\n"))
    monkeypatch.setenv("PYTHONBREAKPOINT", "")
    out = said(
        capsys,
        "debug",
        "--algorithm",
        "mine.py:two_sweeps",
        "--stop",
        str(line),
        "--at",
        "i=3,j=2",
        *SMALL,
    )
    assert (
        f"two_sweeps, line {line}, i = 3 of 1…6, j = 2 of 1…3 (in Python i == 2 and j == 1). "
        "The memories"
    ) in out
    assert f"mine.py({line})two_sweeps()\n-> O_i = on_chip(O_i + on_chip" in out
    assert "('at', 2, 1, (4, 3))" in out
    bdb.Breakpoint.clearBreakpoints()


@pytest.mark.parametrize(
    "command",
    [
        ("step", "stops.py:two_sweeps"),
        ("count", "stops.py:two_sweeps", "--N", "12", "--d", "4"),
        ("sweep", "stops.py:two_sweeps", "--N", "12", "24", "--d", "4"),
        ("run", "--head", "0", "--algorithm", "stops.py:two_sweeps"),
    ],
    ids=lambda command: command[0],
)
def test_a_debugger_that_quits_is_an_interrupt(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flashsim", *command],
        input="q\n" * 9,
        env={**os.environ, "PYTHONBREAKPOINT": "", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.count("(Pdb)") == 1
    assert done.returncode == 130
    assert re.fullmatch(r"interrupted \(at line 10 of \S*stops.py: .*\)\n", done.stderr)
    assert not Path("flashsim-step.html").exists()


def test_a_debugger_that_quits_while_the_file_is_imported_is_an_interrupt(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["count", "halts.py:f", "--N", "12", "--d", "4"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_debug_with_another_hook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events = []
    monkeypatch.setattr(
        sys, "breakpointhook", lambda: events.append(sys._getframe(1).f_locals["i"])
    )
    assert "ran to its end" in said(capsys, "debug", "mine.py:two_sweeps", "--line", "27", *SMALL)
    assert events == [*range(6)]


def test_a_plot_draws_it(capsys: pytest.CaptureFixture[str]) -> None:
    size = ("--N", "16", "--d", "2", "--M", "100")
    out = said(capsys, "plot", "pareto", *size, "--algorithm", "mine.py:two_sweeps", "--json", "-")
    assert list(json.loads(out)["algorithms"]) == ["flash", "q_outer", "mine.py:two_sweeps"]


REFUSED = {
    "run --algorithm mine.py": "'mine.py' is not of the form FILE.py:NAME, such as mine.py:attention",
    r"run --algorithm C:\new\mine.py": r"'C:\\new\\mine.py' is not of the form FILE.py:NAME",
    "run --algorithm flsh": "there is no algorithm 'flsh', perhaps you mean 'flash'; there are standard, ",
    "run --algorithm nowhere.py:f": "there is no file nowhere.py",
    "run --algorithm mine.py:two_sweps": "mine.py has no 'two_sweps'; it defines two_sweeps",
    "run --algorithm syntax.py:f": "syntax.py, line 3: SyntaxError: expected ':': def f(hbm, sram, Q, K, V, blocks)",
    "run --algorithm needs.py:f": "needs.py, line 3: ModuleNotFoundError: No module named 'no_such_package'",
    "run --algorithm plain.py:N": "plain.py:N is of type int; expected a function, or a flashsim Algorithm",
    "run --algorithm sums.py:program": "sums.py:program is a MatrixProgram; expected an algorithm of attention. In Python, flashsim.run_program and flashsim.count_program take it",
    "count --N 4 --d 2 sums.py:program": "sums.py:program is a MatrixProgram; expected an algorithm of attention. In Python, flashsim.run_program",
    "run --algorithm plain.py:attention": "attention takes (q, k, v); expected f(hbm, sram, Q, K, V, blocks)",
    "run --algorithm mine.py:two_sweeps --causal": "'mine.py:two_sweeps' (two_sweeps) has no mask",
    "run --algorithm mine.py:two_sweeps --blocks 99 99 --M 99": "does not fit in SRAM",
    "run --algorithm mine.py:two_sweeps --backward": "'mine.py:two_sweeps' has no backward pass",
    "run --algorithm typo.py:two_sweeps": "NameError: name 'rowmx' is not defined (at line 20 of ",
    "run --algorithm unloaded.py:two_sweeps": "is in HBM. To compute with it, bring a block on chip",
    "count --N 4 --d 2 mine.py:nothing": "mine.py has no 'nothing'",
    "count --N 4 --d 2 mine.py:two_sweeps --algorithm flash": "an algorithm is given twice: leave out NAME or --algorithm",
    "count --N 4 --d 2 typo.py:two_sweeps": "at line 20 of ",
    "tune --N 4 --d 2 --algorithm mine.py:two_sweeps --backward": "has no backward pass: its file lacks one",
    "step --algorithm mine.py:two_sweeps --bug no_rescale": "has no place in 'mine.py:two_sweeps', forward",
    "step --vs mine:two_sweps": "mine has no 'two_sweps'",
    "debug --line 9": "an algorithm is missing: expected NAME, one of standard, ",
    "debug mine.py:two_sweeps --line 99": "--line is '99', which labels nothing in two_sweeps; labels to stop at: line 9, ",
    "debug mine.py:two_sweeps --line 27 --at j=1": "line 27 of two_sweeps is in no loop over j: the loops around it are over i",
    "plot theorem5 --algorithm mine.py:two_sweeps": "has no backward pass: its file lacks one",
    "plot sparsity --algorithm mine.py:two_sweeps": "--algorithm is for ",
}


@pytest.mark.parametrize("command", REFUSED)
def test_what_is_wrong_is_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(os.listdir())
    assert main(command.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"flashsim {command.split()[0]}: error: ")
    assert err.count("\n") == 1
    assert REFUSED[command] in err
    assert set(os.listdir()) - {"__pycache__"} == before


def test_files_that_need_files_beside_them_and_names_of_pythons_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    size = ("--N", "8", "--d", "2", "--json", "-")
    want = json.loads(said(capsys, "count", "mine.py:two_sweeps", *size))["accesses"]
    assert json.loads(said(capsys, "count", "helped.py:f", *size))["accesses"] == want
    import random

    Path("random.py").write_text(TWO_SWEEPS, encoding="utf-8")
    assert json.loads(said(capsys, "count", "random.py:two_sweeps", *size))["accesses"] == want
    assert sys.modules["random"] is random


@pytest.mark.parametrize(
    "command",
    [
        "count loads.py:two_sweeps --n 11 --d 3 --blocks 2 4 --json -",
        "run --algorithm standard loads.py:two_sweeps --json -",
        "tune loads.py:two_sweeps --n 11 --d 3 --M 100 --json -",
        "sweep loads.py:two_sweeps --n 11 --d 3 --blocks 2 4 --json -",
        "step --algorithm loads.py:two_sweeps --n 11 --d 3 --blocks 2 4 --text",
        "step --algorithm loads.py:two_sweeps --vs flash --n 11 --d 3 --blocks 2 4",
    ],
)
def test_options_of_ones_own_are_given_by_name(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*more: str) -> str:
        assert main([*command.split(), *more]) == 0
        return re.sub(r'"(command|date|seconds)": .*|--option \S+', "", capsys.readouterr().out)

    once = printed("--option", "times=1")
    if "--vs" not in command:
        assert printed("--option", "times=3", "kind=b").replace('"times": 3', '"times": 1') != once
    assert main([*command.split(), "--option", "tmes=3"]) == 2
    theirs = (
        "argument --option: there is no option 'tmes', perhaps you mean 'times'; there are kind, "
        "times"
    )
    assert theirs in capsys.readouterr().err
    assert main([*command.split(), "--option", "times"]) == 2
    assert (
        "argument --option: got 'times'; expected NAME=VALUE, such as window=64"
        in capsys.readouterr().err
    )


def test_several_values_of_an_option_are_swept_and_elsewhere_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = [
        "loads.py:two_sweeps",
        "--n",
        "11",
        "--d",
        "3",
        "--blocks",
        "2",
        "4",
        "--option",
        "times=1",
        "times=3",
    ]
    assert main(["sweep", *sizes, "--csv", "-"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert main(["count", *sizes]) == 2
    assert "argument --option: times is given twice, 1 and 3" in capsys.readouterr().err

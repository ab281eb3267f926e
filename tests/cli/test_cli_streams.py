"""How a command ends where its streams or its files fail, or Ctrl-C is pressed: a status, a
line, and nothing half done.
"""

import errno
import io
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import plots, testing
from flashsim.analysis import verify
from flashsim.analysis.verify import comparison
from flashsim.cli import COMMANDS, main, outputs
from flashsim.support.entry import guarded

COUNT = ("count", "--N", "64", "--d", "8")
STEP = ("step", "--text", "--n", "4", "--d", "2", "--causal")


pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


def run_in(encoding: str, *command: str) -> tuple[str, str]:
    """Return stdout and stderr, each of this encoding, and status."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        main(command)
    assert out.errors == err.errors == "strict"  # as it was
    for stream in (out, err):
        stream.flush()
        stream.seek(0)
    return out.read(), err.read()


# --------------------------------------------------------------------------------------------------
# encodings


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize(
    "command",
    [
        COUNT,
        ("tune", "--N", "64", "--d", "8"),
        STEP,
        ("example", "prefill"),
        ("check", "--list"),
        ("--help",),
    ]
    + [(name, "--help") for name in COMMANDS],
    ids=" ".join,
)
def test_what_an_encoding_lacks_is_spelled(command: tuple[str, ...], encoding: str) -> None:
    out, err = run_in(encoding, *command)
    assert len(out) > 100
    assert not err
    assert "\\u" not in out


@pytest.mark.parametrize("columns", ["1", "3", "20", "500"])
@pytest.mark.parametrize(
    "command", [COUNT, ("tune", "--N", "64", "--d", "8"), STEP, ("tune", "--help")], ids=" ".join
)
def test_a_terminal_may_have_any_width(
    command: tuple[str, ...],
    columns: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(command) == 0
    assert capsys.readouterr().err == ""


def test_letters_that_are_alike_take_the_place_of_others() -> None:
    out, _ = run_in("ascii", *STEP)
    assert "B_r x B_c" in out
    assert "m~_ij = rowmax(S_ij^masked)" in out
    assert "S_ij = tau Q_i K_jT." in out
    out, err = run_in("latin-1", "run", "--qkv", "日本.npz")  # errors are spelled, too
    assert not out
    assert err.startswith("flashsim run: error: \\u65e5\\u672c.npz is not there")
    assert "expected a number p with 0 <= p < 1" in run_in("ascii", *COUNT, "--dropout", "2")[1]
    command = "example", "prefill", "--json", "-"  # which is escaped, and not spelled
    spelled, expected = (
        json.loads(run_in(encoding, *command)[0]) for encoding in ("ascii", "utf-8")
    )
    assert spelled == expected
    assert not json.dumps(expected, ensure_ascii=False).isascii()


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.skipif(
    sys.platform in ("darwin", "win32"), reason="file names are UTF-8 or UTF-16 there"
)
def test_names_that_are_no_utf_8(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 8, 4)).astype(np.float32)
    with open(b"\xff.npz", "wb") as file:
        np.savez(file, q=q, k=k, v=v)
    inputs, stem, target = (os.fsdecode(name) for name in (b"\xff.npz", b"\xfe", b"\xfd.json"))
    assert main(["run", "--qkv", inputs, "-o", stem, "--json", target, "--quiet", "--M", "64"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("\\xff.npz\n")
    assert "Saved \\xfe.png, \\xfe.svg, \\xfe.json" in out
    assert json.loads(Path(target).read_text(encoding="utf-8"))["source"] == "\\xff.npz"
    assert json.loads(Path(f"{stem}.json").read_text(encoding="utf-8"))["command"].startswith(
        "flashsim run --qkv '\\xff"
    )
    assert main(["step", "--qkv", inputs, "-o", f"{stem}.html"]) == 0
    assert main(["step", "--qkv", inputs, "-o", f"{stem}.json.gz"]) == 0
    capsys.readouterr()
    assert main(["run", "--qkv", os.fsdecode(b"no\xff.npz")]) == 2
    assert "error: no\\xff.npz is not there" in capsys.readouterr().err


# -------------------------------------------------------------------------------------------------
# pipes and streams


class Broken(io.TextIOWrapper):
    """A stream that cannot be written to."""

    def __init__(self, number: int) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")
        self.number = number

    def write(self, text: str) -> int:
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(
    "command",
    [COUNT, STEP, (*COUNT, "--json", "-"), ("--help",), ("count", "--help"), ("--version",)],
    ids=" ".join,
)
@pytest.mark.parametrize(("number", "status"), [(errno.EPIPE, 141), (errno.ENOSPC, 2)])
def test_a_stream_that_fails(
    command: tuple[str, ...],
    number: int,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Broken(number))
        assert main(command) == status
    assert capsys.readouterr().err.partition(": error: ")[2] == (
        "" if status == 141 else "No space left on device\n"
    )


def test_closed_streams(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        assert main(COUNT) == 2
    assert capsys.readouterr().err == "flashsim count: error: standard output is closed\n"
    for stderr in (None, Broken(errno.EPIPE)):  # which fails, and changes nothing
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", stderr)
            assert main(["count"]) == 2
        assert capsys.readouterr().out == ""


def test_a_reader_that_has_gone_on_windows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "win32")  # where a closed pipe is an invalid argument
        patch.setattr(sys, "stdout", Broken(errno.EINVAL))
        assert main(COUNT) == 141
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Broken(errno.EINVAL))
        assert main(COUNT) == 2
    assert capsys.readouterr().err == "flashsim count: error: Invalid argument\n"


def test_a_real_pipe() -> None:
    script = f'"{sys.executable}" -m flashsim {" ".join(COUNT)} | true; exit ${{PIPESTATUS[0]}}'
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, check=False, timeout=60, env=buffered
    )
    assert (done.returncode, done.stdout, done.stderr) == (141, b"", b"")


# -------------------------------------------------------------------------------------------------
# room and interrupts


@pytest.mark.parametrize(
    "error", [MemoryError(), OverflowError("too large to convert to C long")], ids=repr
)
def test_what_is_too_large_is_said_so(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(comparison, "count_lines", fail)
    assert main(COUNT) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("flashsim count: error: this is too large for this machine")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "where", "name"),
    [
        (("run", "--json", "numbers.json"), plots, "save"),
        (("run", "--json", "numbers.json"), comparison, "run_all"),
        (("plot", "arrays", "--json", "numbers.json"), plots, "save"),
        (("verify", "--json", "numbers.json"), verify, "checks"),
        (
            ("check", "flashsim.testing.mutants:D_omitted", "--json", "numbers.json"),
            testing,
            "check_attention",
        ),
        (("run", "--json", "numbers.json"), Path, "replace"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_ctrl_c_ends_with_130_and_leaves_no_file_in_part(
    command: tuple[str, ...],
    where: Any,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(where, name, interrupt)
    if command[0] == "run":
        command = (*command, "--head", "0", "--algorithm", "standard")
    Path("numbers.json").write_text("old", encoding="utf-8")
    assert main(command) == 130
    assert capsys.readouterr().err == "interrupted\n"
    (result,) = Path().iterdir()
    text = result.read_text(encoding="utf-8")
    assert text == "old" or json.loads(text)


def test_a_real_ctrl_c() -> None:
    code = (
        "import sys; from flashsim.cli import main; print('ready', flush=True); "
        "sys.exit(main(['verify', '--full']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout
        running.stdout.readline()
        time.sleep(0.3)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
    assert (running.returncode, out, err) == (130, "", "interrupted\n")


# ----------------------------------------------------------------------- before the work, and after


def test_targets_are_checked_before_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(*_: object, **__: object) -> None:
        raise AssertionError("it has worked first")

    for where, name in (
        (comparison, "run_all"),
        (verify, "checks"),
        (testing, "check_attention"),
        (plots, "run_figure"),
    ):
        monkeypatch.setattr(where, name, work)
    for command in (
        "run --json none/x",
        "run -o x --json x.svg",
        "verify --json none/x",
        "check flashsim.testing.mutants:D_omitted --json none/x",
        "bench --json none/x",
    ):
        assert main(command.split()) == 2
        assert "argument --json: " in capsys.readouterr().err


def test_what_is_not_finite_is_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    outputs.write_json(
        "-", {"a": [float("nan"), (float("inf"), np.float64("-inf"))], "b": {"c": 1.5}}
    )
    assert json.loads(capsys.readouterr().out) == {"a": [None, [None, None]], "b": {"c": 1.5}}


# --------------------------------------------------------------------------------------------------
# scripts


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "record.json is not JSON"),
        (b"{", "record.json is not JSON"),
        (b"\xff", "record.json is not JSON"),
        (b"[" * 100_000, "record.json is not JSON"),
        (
            b"[]",
            (
                "record.json has no machine and no results; expected a JSON object with machine, "
                "results"
            ),
        ),
        (
            b"3",
            (
                "record.json has no machine and no results; expected a JSON object with machine, "
                "results"
            ),
        ),
        (
            b'{"steps": []}',
            "record.json has no machine; expected a JSON object with machine, steps",
        ),
        (b'{"machine": 1, "results": [3]}', "record.json has not what gpu_times draws: TypeError"),
        (None, "record.json is not there; expected a JSON file"),
    ],
)
def test_a_record_that_is_none_is_refused_in_one_line(
    content: bytes | None,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if content is not None:
        Path("record.json").write_bytes(content)
    script = Path(flashsim.__file__).parents[1] / "scripts" / "gpu_figures.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--record", "record.json", "-o", "."])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(script), run_name="__main__")
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert err.startswith(f"gpu_figures.py: error: {text}")
    assert err.count("\n") == 1


class Interrupted:
    """A descriptor during whose naming Ctrl-C is typed."""

    def __set_name__(self, owner: type, name: str) -> None:
        raise KeyboardInterrupt


def test_ctrl_c_while_a_class_is_made_is_an_interrupt(capsys: pytest.CaptureFixture[str]) -> None:
    """Modules that are imported make classes. Python before 3.12 raised a RuntimeError of it."""

    def work() -> int:
        type("Made", (), {"form": Interrupted()})
        return 0

    assert guarded("flashsim", work) == 130
    assert capsys.readouterr().err == "interrupted\n"

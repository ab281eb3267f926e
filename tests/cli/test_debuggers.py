"""Debuggers stop in the run on numbers alone: pdb, and debugpy over DAP, which VS Code speaks; in
all, with the default blocks.

A debugger knows a breakpoint by its file and line. Blocks that fit are found without reaching it.
"""

import contextlib
import json
import re
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import flashsim
from tests.helpers.pages import OWN, ROOT, blocks

ATTENTION = '''
import numpy as np
import flashsim


def tile(Q_i, K_j):
    return np.exp(Q_i @ K_j.T)  # helper


def attention(hbm, sram, Q, K, V, blocks):
    """Softmax without a maximum."""
    Q, K, V = Q.divide(blocks.B_r), K.divide(blocks.B_c), V.divide(blocks.B_c)
    O = hbm.empty("O", (Q.shape[0], V.shape[1]), Q.dtype, "output").divide(blocks.B_r)
    for i in sram.loop(blocks.T_r):
        Q_i = sram.load(Q[i])
        O_i = sram.full((Q_i.shape[0], V.shape[1]), 0.0)
        l_i = sram.full((Q_i.shape[0], 1), 0.0)
        for j in sram.loop(blocks.T_c):
            K_j, V_j = sram.load(K[j], V[j])
            STOP
            P_ij = sram.on_chip(tile(Q_i, K_j))  # here
            l_i = sram.on_chip(l_i + P_ij.sum(1, keepdims=True), over=l_i)
            O_i = sram.on_chip(O_i + P_ij @ V_j, over=O_i)
        sram.store(O[i], sram.on_chip(O_i / l_i, over=O_i))
    return O


if __name__ == "__main__":
    X = np.random.default_rng(0).normal(size=(3, 12, 4))
    run = flashsim.forward(attention, *X, M=100)
    print("tiles", run.blocks.T_r * run.blocks.T_c)
'''
TILES = 9


def written(folder: Path, stop: str = "pass") -> Path:
    file = folder / "mine.py"
    file.write_text(ATTENTION.replace("STOP", stop), encoding="utf-8")
    return file


def line_of(file: Path, mark: str) -> int:
    return next(
        n for n, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1) if mark in line
    )


def stops_of_pdb(folder: Path, typed: list[str], *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command, "mine.py"],
        input="\n".join([*typed, "q", ""]),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.stdout


@pytest.mark.parametrize("mark", ["# here", "# helper"])
def test_pdb_stops_in_the_run_alone(mark: str, tmp_path: Path) -> None:
    file = written(tmp_path)
    typed = [
        f"b mine.py:{line_of(file, mark)}",
        *["c", "p 'seen', type(Q_i).__name__"] * TILES,
        "c",
    ]
    output = stops_of_pdb(tmp_path, typed, "-m", "pdb")
    assert output.count("('seen', 'ndarray')") == TILES
    assert f"tiles {TILES}" in output  # no further stop
    assert output.count(f"mine.py({line_of(file, mark)})") == TILES


def test_a_breakpoint_in_the_function_stops_once_for_each_tile(tmp_path: Path) -> None:
    written(tmp_path, "breakpoint()")
    output = stops_of_pdb(tmp_path, ["p 'seen', type(Q_i).__name__", "c"] * TILES)
    assert output.count("('seen', 'ndarray')") == TILES
    assert f"tiles {TILES}" in output


def test_pdb_stops_in_a_built_in_algorithm_s_run_alone(tmp_path: Path) -> None:
    call = "flashsim.forward('flash', *np.random.default_rng(0).normal(size=(3, 12, 4)), M=100)"
    (tmp_path / "mine.py").write_text(
        f"import numpy as np, flashsim\nrun = {call}\nprint('tiles', run.blocks.tiles)\n"
    )
    algorithm = "flashsim/algorithms/algorithm_2_flash.py"
    line = line_of(ROOT / algorithm, "S_ij = on_chip")
    tiles = flashsim.count("flash", N=12, d=4, M=100, dtype="float64").blocks.tiles
    typed = [f"b {algorithm}:{line}", *["c", "p 'seen', type(Q_i).__name__"] * tiles, "c"]
    output = stops_of_pdb(tmp_path, typed, "-m", "pdb")
    assert 1 < output.count("('seen', 'ndarray')") == tiles
    assert f"tiles {tiles}\n" in output  # no further stop


# --------------------------------------------------------------------------------------------------
# step by step

WALK = """
import sys
import numpy as np
import flashsim

X = np.random.default_rng(0).normal(size=(3, 6, 2))
flashsim.forward("flash_basic", *X, M=40)
print("skips", getattr(getattr(sys.gettrace(), "__self__", None), "skip", None))
"""
ALGORITHM_1 = "flashsim/algorithms/algorithm_1_flash_basic.py"


def places(output: str) -> list[str]:
    """Return where pdb stopped: "file.py function"."""
    return [f"{file} {function}" for file, function in PLACE.findall(output)]


PLACE = re.compile(r"> \S*?([^/\s]+)\(\d+\)(\w+)\(\)")


def test_pdb_steps_through_an_inner_turn_in_the_algorithm_and_its_notation(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(WALK, encoding="utf-8")
    line = line_of(ROOT / ALGORITHM_1, "Q_i, O_i, l_i, m_i = sram.load")
    steps = 100
    typed = [f"b {ALGORITHM_1}:{line}", "c", "c", "cl 1", *["s"] * steps, "c"]
    output = stops_of_pdb(tmp_path, typed, "-m", "pdb")
    walked = places(output)
    assert len(walked) == 2 + steps
    assert {*walked} == {
        "algorithm_1_flash_basic.py flash_basic",
        "notation.py rowmax",
        "notation.py rowsum",
        "shapes.py T_r",
    }
    lines = re.findall(r"> \S+\((\d+)\)\w+\(\)", output)
    _, begin, end, *_ = [step for step, display in enumerate(lines) if display == str(line)]
    assert end - begin < 30  # it was 554, with the memory
    assert "skips None" in output


def test_after_a_breakpoint_in_the_function_pdb_steps_from_line_to_line(tmp_path: Path) -> None:
    written(tmp_path, "breakpoint() if (i, j) == (1, 0) else None")
    output = stops_of_pdb(tmp_path, [*["s"] * 40, "c"])
    assert {*places(output)} == {"mine.py attention", "mine.py tile", "shapes.py T_c"}
    assert len(places(output)) == 41


def test_a_breakpoint_in_the_memory_is_hit_and_pdb_walks_on_there(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(WALK, encoding="utf-8")
    line = line_of(ROOT / "flashsim/memory/sram.py", "if not self._loads:")
    typed = [f"b flashsim/memory/sram.py:{line}", "c", "n", "n", "s", "q"]
    walked = places(stops_of_pdb(tmp_path, typed, "-m", "pdb"))
    assert walked == ["sram.py load"] * 4


def test_pdb_stops_on_each_device(tmp_path: Path) -> None:
    call = "flashsim.devices.forward('ring', *X, P=2, M=900, blocks=(4, 4))"
    (tmp_path / "mine.py").write_text(
        "import numpy as np, flashsim.devices\n"
        "X = np.random.default_rng(0).normal(size=(3, 8, 4))\n"
        f"run = {call}\nprint('at the end')\n"
    )
    program = "flashsim/devices/programs/ring.py"
    line = line_of(ROOT / program, "P_tilde_ij = on_chip")
    stop = ["c", "p 'seen', device.rank"]
    output = stops_of_pdb(tmp_path, [f"b {program}:{line}", *stop * 4, "c"], "-m", "pdb")
    assert re.findall(r"\('seen', (\d)\)", output) == ["0", "1", "1", "0"]
    assert "at the end" in output


def test_a_name_whose_room_another_tile_took_shows_nan(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(WALK, encoding="utf-8")
    line = line_of(ROOT / ALGORITHM_1, "P_tilde_ij = on_chip")
    shows = ["p 'S', bool(np.isnan(S_ij).all())", "p 'P', P_tilde_ij.max()", "p sram"]
    typed = [f"b {ALGORITHM_1}:{line}", "c", "!import numpy as np", shows[0], "n", *shows, "q"]
    output = stops_of_pdb(tmp_path, typed, "-m", "pdb")
    assert re.findall(r"\('S', (\w+)\)", output) == ["False", "True"]
    assert re.search(r"\('P', (?:np\.float64\()?1\.0", output)
    assert "P_tilde_ij " in output.partition("elements in use")[2]
    assert "S_ij " not in output.partition("elements in use")[2].replace("P_tilde_ij", "")


class Client:
    """What an editor says to debugpy: requests and events are JSON behind a length."""

    def __init__(self, port: int) -> None:
        deadline = time.monotonic() + 30
        while True:
            try:
                self._socket = socket.create_connection(("127.0.0.1", port), timeout=120)
                break
            except OSError:
                assert time.monotonic() < deadline, "debugpy does not listen"
                time.sleep(0.1)
        self._file = self._socket.makefile("rwb")
        self._sent = 0
        self._seen: list[dict[str, Any]] = []

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def send(self, command: str, **arguments: Any) -> int:
        self._sent += 1
        message = json.dumps(
            {"seq": self._sent, "type": "request", "command": command, "arguments": arguments}
        ).encode()
        self._file.write(b"Content-Length: %d\r\n\r\n%s" % (len(message), message))
        self._file.flush()
        return self._sent

    def ask(self, command: str, **arguments: Any) -> Any:
        sent = self.send(command, **arguments)
        answer = self.wait(
            lambda message: message["type"] == "response" and message["request_seq"] == sent
        )
        assert answer["success"], answer
        return answer.get("body")

    def event(self, *names: str) -> dict[str, Any]:
        return self.wait(lambda message: message["type"] == "event" and message["event"] in names)

    def wait(self, condition: Any) -> dict[str, Any]:
        for message in self._seen:
            if condition(message):
                self._seen.remove(message)
                return message
        while True:
            message = self._read()
            if condition(message):
                return message
            self._seen.append(message)

    def _read(self) -> dict[str, Any]:
        length = 0
        while (line := self._file.readline().strip()) or not length:
            assert line or length, "debugpy has gone"
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        message: dict[str, Any] = json.loads(self._file.read(length))
        return message


@contextlib.contextmanager
def debugged(
    folder: Path, script: str, breakpoints: dict[Path, list[dict[str, Any]]], **how: Any
) -> Iterator[Client]:
    """Run a script under debugpy as VS Code's F5 does, and stop at breakpoints of these files
    and lines. `how` is as in launch.json.
    """
    pytest.importorskip(
        "debugpy", reason="debugpy is not installed: pip install ipykernel, which brings it"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-Xfrozen_modules=off",
        "-m",
        "debugpy",
        "--listen",
        f"127.0.0.1:{port}",
        "--wait-for-client",
    ]
    process = subprocess.Popen(
        [*command, script], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        client = Client(port)
        try:
            client.ask(
                "initialize",
                adapterID="debugpy",
                pathFormat="path",
                linesStartAt1=True,
                columnsStartAt1=True,
            )
            attached = client.send("attach", **{"justMyCode": False, **how})
            client.event("initialized")
            for file, of in breakpoints.items():
                breakpoints_set = client.ask(
                    "setBreakpoints", source={"path": str(file)}, breakpoints=of
                )
                assert all(each["verified"] for each in breakpoints_set["breakpoints"]), (
                    breakpoints_set
                )
            client.ask("configurationDone")
            client.wait(
                lambda message: message["type"] == "response" and message["request_seq"] == attached
            )
            yield client
        finally:
            client.close()
    finally:
        process.kill()
        process.communicate()


def stops(client: Client, *expressions: str) -> Iterator[list[str]]:
    """At each stop: the file and line, and what expressions are worth."""
    while True:
        event = client.event("stopped", "terminated", "exited")
        if event["event"] != "stopped":
            return
        thread = event["body"]["threadId"]
        frame = client.ask("stackTrace", threadId=thread, startFrame=0, levels=1)["stackFrames"][0]
        worth = [
            client.ask("evaluate", expression=each, frameId=frame["id"], context="watch")["result"]
            for each in expressions
        ]
        yield [f"{Path(frame['source']['path']).name}:{frame['line']}", *worth]
        client.send("continue", threadId=thread)


@pytest.mark.parametrize("mark", ["# here", "# helper"])
def test_an_editor_stops_in_the_run_alone(mark: str, tmp_path: Path) -> None:
    file = written(tmp_path)
    line = line_of(file, mark)
    with debugged(tmp_path, "mine.py", {file: [{"line": line}]}) as client:
        met = list(stops(client, "type(Q_i).__name__", "bool(abs(Q_i).sum() > 0)"))
    assert met == [[f"mine.py:{line}", "'ndarray'", "True"]] * TILES


def test_an_editor_stops_at_a_breakpoint_in_the_function_once_for_each_tile(tmp_path: Path) -> None:
    file = written(tmp_path, "breakpoint()")
    with debugged(tmp_path, "mine.py", {}) as client:
        met = list(stops(client, "type(Q_i).__name__"))
    assert [worth for _, worth in met] == ["'ndarray'"] * TILES
    assert {where.split(":")[0] for where, _ in met} == {file.name}


def test_an_editor_follows_the_pages_sessions(tmp_path: Path) -> None:
    """docs/debug.md's breakpoints, in the file of an algorithm and in one of one's own, by
    default blocks.
    """
    for page in (ROOT / "docs" / "debug.md", OWN):
        for text in blocks(page, "python"):
            if text.startswith(("# walk.py", "# try_it.py", "# mine.py")):
                (tmp_path / re.findall(r"\w+\.py", text)[0]).write_text(
                    textwrap.dedent(text), encoding="utf-8"
                )
    # what a script of the user's imports, wherever it is installed
    where = "import flashsim; print(flashsim.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", where], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    algorithm = Path(done.stdout.strip()).parent / "algorithms" / "algorithm_1_flash_basic.py"
    with debugged(
        tmp_path, "walk.py", {algorithm: [{"line": 61, "condition": "j == 1"}]}
    ) as client:
        met = next(stops(client, "S_ij.round(2).tolist()", "sram.capacity"))
    assert met == [
        "algorithm_1_flash_basic.py:61",
        "[[-0.06, -0.15, -0.11], [0.34, 0.08, -0.38]]",
        "40",
    ]
    with debugged(tmp_path, "try_it.py", {tmp_path / "mine.py": [{"line": 15}]}) as client:
        first, *others = stops(client, "(i, j)", "S_ij.round(2).tolist()[0]")
    assert first == ["mine.py:15", "(0, 0)", "[-0.15, -0.04]"]
    assert [index for _, index, _ in others] == ["(0, 1)", "(0, 2)", "(1, 0)", "(1, 1)", "(1, 2)"]


def configuration() -> dict[str, Any]:
    """Return docs/debug.md's launch.json."""
    page = (ROOT / "docs" / "debug.md").read_text(encoding="utf-8")
    text = re.findall(r"```json\n(.*?)```", page, re.DOTALL)[0]
    (of_page,) = json.loads(textwrap.dedent(text))["configurations"]
    return dict(of_page)


def installed(elsewhere: Path) -> Path:
    """Return the folder of the flashsim that a program outside of the clone imports."""
    done = subprocess.run(
        [sys.executable, "-c", "import flashsim; print(flashsim.__file__)"],
        cwd=elsewhere,
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(done.stdout.strip()).parents[1]


def test_an_editor_steps_as_the_page_configures_it(tmp_path: Path) -> None:
    of_page = configuration()
    (tmp_path / "mine.py").write_text(WALK, encoding="utf-8")
    algorithm = installed(tmp_path) / ALGORITHM_1
    line = line_of(algorithm, "Q_i, O_i, l_i, m_i = sram.load")
    stop = {"line": line, "condition": "j == 0 and i == 1"}
    how = {key: of_page[key] for key in ("justMyCode", "rules")}
    walked = []
    with debugged(tmp_path, "mine.py", {algorithm: [stop]}, **how) as client:
        thread = client.event("stopped")["body"]["threadId"]
        for _ in range(40):
            client.send("stepIn", threadId=thread)
            client.event("stopped")
            frames = client.ask("stackTrace", threadId=thread, startFrame=0, levels=1)
            (frame,) = frames["stackFrames"]
            walked.append((Path(frame["source"]["path"]).name, frame["line"]))
            if walked[-1] == (algorithm.name, line):
                break
    assert walked[-1] == (algorithm.name, line)
    assert len(walked) < 30  # it was 420, with the memory
    assert {name for name, _ in walked} <= {algorithm.name, "notation.py", "shapes.py"}


def test_an_editor_stops_at_breakpoints_in_the_copy_that_debug_runs(tmp_path: Path) -> None:
    """`flashsim debug` under an editor runs a copy of the algorithm: with breakpoint() in it."""
    file = written(tmp_path)
    here = line_of(file, "# here")
    words = ["debug", "mine.py:attention", "--line", str(here), "--at", "i=1,j=2"]
    words += ["--N", "6", "--d", "2", "--M", "60", "--blocks", "3", "3"]
    (tmp_path / "debugging.py").write_text(f"from flashsim.cli import main\nmain({words})\n")
    of_user = {"line": line_of(file, "O_i = sram.on_chip(O_i + P_ij"), "condition": "i == 1"}
    with debugged(tmp_path, "debugging.py", {file: [of_user]}) as client:
        met = list(stops(client, "(i, j)"))
    assert met == [
        [f"mine.py:{here}", "(0, 1)"],
        [f"mine.py:{of_user['line']}", "(1, 0)"],
        [f"mine.py:{of_user['line']}", "(1, 1)"],
    ]

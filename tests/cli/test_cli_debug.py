"""`flashsim debug`: it stops in the algorithm's own frame, at the line and tile that it is
given.
"""

import bdb
import inspect
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.cli import main
from flashsim.tracing import stops

SIZES = ("--n", "11", "--d", "3", "--blocks", "2", "4")  # T_r = 6, T_c = 3, the last blocks ragged


@pytest.fixture
def debug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., str]]:
    """What a session shows, given the options and what is typed."""
    monkeypatch.setenv("HOME", "/nonexistent")
    before = signal.getsignal(signal.SIGINT)

    def session(
        *options: str, typed: str = "", hook: str = "", status: int = 0, error: str = ""
    ) -> str:
        monkeypatch.setenv("PYTHONBREAKPOINT", hook)
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        assert main(["debug", *options]) == status
        out, err = capsys.readouterr()
        assert (error in err) if error else not err
        return out

    yield session
    bdb.Breakpoint.clearBreakpoints()  # each of a process of its own
    signal.signal(signal.SIGINT, before)


def source_line(output: str) -> tuple[str, str]:
    """Return the last (function, source) that pdb said it stopped at."""
    function, source = re.findall(r"^(?:\(Pdb\) )?> .*\)(\w+)\(\)\n-> (.*)$", output, re.MULTILINE)[
        -1
    ]
    return function, source


Debug = Callable[..., str]


def test_the_tile_is_the_one_asked_for_and_its_numbers_are_right(debug: Debug) -> None:
    output = debug(
        *("flash_basic", "--line", "12", "--at", "j=3,i=4", *SIZES),
        typed="p 'at', i, j\np P_tilde_ij.tolist()\np sram\np hbm\np Q\nq\n",
    )
    assert source_line(output) == ("flash_basic", "O_i_new = on_chip(  # line 12")
    assert "('at', 3, 2)" in output
    rng = np.random.default_rng(0)
    Q, K, _ = (rng.standard_normal((11, 3), np.float32) for _ in "QKV")
    S_ij = np.multiply(2 * Q, 3**-0.5, dtype=np.float32)[6:8] @ K[8:11].T
    printed = re.search(r"\[\[.*\]\]", output)
    assert printed
    assert np.allclose(eval(printed[0]), np.exp(S_ij - S_ij.max(axis=1, keepdims=True)), rtol=1e-5)
    # of SRAM, and of HBM
    for part in ("K[2]", "Q[3]", "accesses", "<Q in HBM, 11×3, in 6 × 1 blocks>"):
        assert part in output
    assert "ran to its end" not in output


@pytest.mark.slow
def test_without_at_it_stops_at_every_tile_once_and_then_says_that_the_run_is_over(
    debug: Debug,
) -> None:
    output = debug("flash_basic", "--line", "12", *SIZES, typed="p 'at', j, i\nc\n" * 18)
    visited = [(int(j), int(i)) for j, i in re.findall(r"\('at', (\d), (\d)\)", output)]
    assert visited == [(j, i) for j in range(3) for i in range(6)]
    assert output.endswith("Algorithm 1, FlashAttention ran to its end.\n")


def test_a_loop_is_stopped_at_as_it_begins(debug: Debug) -> None:
    output = debug("flash", "--line", "8", *SIZES, typed="p 'at', j\nc\n" * 3)
    assert re.findall(r"\('at', (\d)\)", output) == ["0", "1", "2"]
    assert "ran to its end" in output


@pytest.mark.slow
def test_a_tile_of_a_loop_that_does_not_begin_at_0(debug: Debug) -> None:
    output = debug("snake", "--line", "17", "--at", "i=1,j=3", *SIZES, typed="p 'at', i, j\nq\n")
    assert "line 17, i = 1 of 1…6, j = 3 of 1…3 (in Python i == 0 and j == 2). " in output
    assert "('at', 0, 2)" in output


def test_commands_come_from_a_file_and_its_end_quits(debug: Debug, tmp_path: Path) -> None:
    file = tmp_path / "commands"
    file.write_text("p 'at', i\nn\n", encoding="utf-8")
    output = debug(
        "flash", "--line", "9", "--at", "i=2", "--commands", str(file), *SIZES, typed="p 'typed'\n"
    )
    assert "('at', 1)" in output
    assert source_line(output) == ("flash", "S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 10")
    assert "'typed'" not in output
    assert "ran to its end" not in output


@pytest.mark.slow
def test_the_backward_pass(debug: Debug) -> None:
    output = debug(
        *("flash", "--backward", "--line", "13", "--at", "i=5,j=2", *SIZES),
        typed="p 'at', j, i\nq\n",
    )
    assert "('at', 1, 4)" in output
    assert source_line(output)[0] == "flash_backward"


def test_with_a_sink_it_stops_in_the_variant_that_runs(
    debug: Debug, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("flash", "--line", "6", "--sink", "2", *SIZES)
    output = debug(*options, typed="p sink.l\nq\n")
    assert source_line(output)[0] == "flash_with_sink"
    assert "(Pdb) 1.0" in output
    names: list[str] = []
    monkeypatch.setattr(
        sys, "breakpointhook", lambda: names.append(sys._getframe(1).f_code.co_name)
    )
    assert main(["debug", *options]) == 0
    assert names == ["flash_with_sink"]


def test_an_overflow_can_be_debugged_up_to_where_it_happens(debug: Debug) -> None:
    options = ("flash", "--line", "10", *SIZES, "--M", "40")
    assert "(Pdb) 40\n" in debug(
        *options, typed="p sram.occupancy\nc\n", status=2, error="does not fit in SRAM"
    )


def test_a_process_of_its_own_reads_what_is_piped_into_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flashsim", "debug", "flash", "--line", "8", *SIZES],
        input="p 'at', j\nq\n",
        env={**os.environ, "PYTHONBREAKPOINT": "", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "('at', 0)" in done.stdout


# --------------------------------------------------------------------------------------------------
# other hooks

HOOK = """
import pdb, sys
def told():
    frame = sys._getframe(1)
    print("at", frame.f_code.co_name, frame.f_locals["j"], frame.f_locals["i"])
    sys.settrace(lambda *_: None)
    def next_line(frame, event, _):
        print("then", frame.f_code.co_filename, frame.f_lineno)
        frame.f_trace = None
        sys.settrace(None)
    frame.f_trace = next_line
def set_trace():
    pdb.Pdb().set_trace(sys._getframe(1))
"""


@pytest.fixture
def hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hooks.py").write_text(HOOK, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "hooks", raising=False)


@pytest.mark.usefixtures("hooks")
def test_another_hook_is_called_by_the_algorithms_own_frame(debug: Debug) -> None:
    module = Path(inspect.getsourcefile(FORWARD["flash_basic"].run) or "")
    lines = module.read_text(encoding="utf-8").splitlines()
    options = ("flash_basic", "--line", "12", "--at", "j=3,i=4", *SIZES)
    output = debug(*options, hook="hooks.told").splitlines()
    arguments = next(number for number, line in enumerate(lines, 1) if line.endswith("# line 12"))
    assert output[1:] == [
        "at flash_basic 2 3",
        f"then {module} {arguments}",
        "Algorithm 1, FlashAttention ran to its end.",
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("hooks")
def test_another_pdb_quits_quietly(debug: Debug) -> None:
    output = debug(
        "flash_basic", "--line", "10", *SIZES, typed="p 'at', i\nq\n", hook="hooks.set_trace"
    )
    assert source_line(output) == ("flash_basic", "m_tilde_ij = on_chip(rowmax(S_ij))  # line 10")
    assert "('at', 0)" in output
    assert "ran to its end" not in output


def test_the_copy_with_a_breakpoint_is_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[dict[str, Any]] = []

    def hook() -> None:
        frame = inspect.currentframe()
        assert frame is not None
        assert isinstance(frame.f_back, FrameType)
        frames.append({name: frame.f_back.f_locals[name] for name in ("i", "j")})

    before = dict(FORWARD)
    monkeypatch.setattr(sys, "breakpointhook", hook)
    assert main(["debug", "block_sparse", "--line", "9", *SIZES, "--block-mask", "local"]) == 0
    assert before == FORWARD
    assert len(frames) == flashsim.patterns.local(6, 3).sum()


def test_numbers_are_the_same_with_the_breakpoint_in(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    Q, K, V, dO = (rng.standard_normal((7, 3)) for _ in range(4))
    monkeypatch.setattr(sys, "breakpointhook", lambda: None)
    sizes: dict[str, Any] = {"M": 1000, "blocks": (2, 3)}
    for known in (FORWARD, BACKWARD):
        for algorithm in known.values():
            made = flashsim.forward(algorithm.forward_pass, Q, K, V, **sizes)
            label = next(iter(stops.labels(algorithm)))
            stopping = stops.with_breakpoint(algorithm, stops.find_stop(algorithm, label, {}), {})
            assert stopping.run is not algorithm.run
            if known is FORWARD:
                again = flashsim.forward(stopping, Q, K, V, **sizes)
                assert (again.O == made.O).all()
                assert again.hbm == made.hbm
            else:
                assert np.isfinite(flashsim.backward(stopping, made, dO).dQ).all()


# --------------------------------------------------------------------------------------------------
# refusals


def test_breakpoints_that_are_off_and_commands_for_another_debugger_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
    monkeypatch.setenv("PYTHONBREAKPOINT", "0")
    assert main(["debug", "flash", "--line", "9"]) == 2
    assert "PYTHONBREAKPOINT=0 turns breakpoints off" in capsys.readouterr().err
    monkeypatch.setenv("PYTHONBREAKPOINT", "ipdb.set_trace")
    assert main(["debug", "flash", "--line", "9", "--commands", "x"]) == 2
    assert "breakpoint() calls ipdb.set_trace here" in capsys.readouterr().err


@pytest.mark.parametrize("label", ["1", "equation 1"])
def test_of_lines_that_share_a_label_the_first_in_the_loops_asked_for(label: str) -> None:
    algorithm = FORWARD["memory_efficient"]
    at_once = stops.find_stop(algorithm, label, {})
    inside = stops.find_stop(algorithm, label, {"j": 0})
    lines = Path(at_once.file).read_text(encoding="utf-8").splitlines()
    assert lines[at_once.line - 1].strip() == "for i in sram.loop(blocks.T_r):  # equation 1"
    assert lines[inside.line - 1].strip() == "k_j = sram.load(K[j])  # equation 1"
    assert [variable for variable, _ in inside.loops] == ["i", "j"]


# --------------------------------------------------------------------------------------------------
# summaries


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_summaries_of_the_memories_fit_on_a_screen(direction: str) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((66, 8), np.float32) for _ in range(4)]
    tallest = widest = 0

    def look(event: flashsim.memory.sram.Event) -> None:
        nonlocal tallest, widest
        if event.site not in events:
            events.add(event.site)
            for memory in (event.sram, event.sram.hbm):
                lines = repr(memory).splitlines()
                tallest, widest = max(tallest, len(lines)), max(widest, *map(len, lines))

    sizes: dict[str, Any] = {"M": 200_000, "blocks": (64, 64)}
    for algorithm in (FORWARD if direction == "forward" else BACKWARD).values():
        events: set[tuple[str, int]] = set()
        takes: dict[str, dict[str, Any]] = {"MASK": {"causal": True}, "dropout": {"dropout_p": 0.1}}
        parts = {
            name: value
            for part in takes
            if part in algorithm.parts
            for name, value in takes[part].items()
        }
        watched = [look] if direction == "forward" else []
        # a word or a row at a time
        slow = "streamed" in algorithm.name or algorithm.name == "memory_efficient"
        Q, K, V, dO = (array[:18] if slow else array for array in arrays)
        made = flashsim.forward(
            algorithm.forward_pass, Q, K, V, **sizes, **parts, observers=watched
        )
        if direction == "backward":
            flashsim.backward(algorithm.name, made, dO, observers=[look])
        assert events
    assert 10 < tallest <= 24
    assert 50 < widest <= 100

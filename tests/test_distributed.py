"""Devices for real: the same files over MPI and torch.distributed, in processes that mpiexec and torchrun start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DIES = """
import os, sys
import numpy as np
from flashsim.devices import LinkError, distributed
engine = distributed.engine(timeout=5)
if engine.rank == 1:
    engine.wait = lambda *_: os._exit(3)
X = np.ones((32, 4))
try:
    distributed.forward("ring", X, X, X, engine=engine)
except LinkError as error:
    print("LinkError:", error, flush=True)
    os._exit(4)
print("finished", flush=True)
"""


def launcher(engine: str, processes: int) -> list[str]:
    """The command that starts processes of this Python. Skips where the engine is not installed."""
    if engine == "torch":
        if find_spec("torch") is None:
            pytest.skip("torch is not installed: pip install flashsim[dist]")
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    mpiexec = Path(sys.executable).parent / "mpiexec"
    if find_spec("mpi4py") is None or not (mpiexec.exists() or shutil.which("mpiexec")):
        pytest.skip("mpi4py and mpiexec are not installed: pip install flashsim[dist]")
    return [str(mpiexec) if mpiexec.exists() else "mpiexec", "-n", str(processes), sys.executable]


def started(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, cwd=ROOT)


@pytest.mark.parametrize(
    ("engine", "processes", "asked"),
    [
        ("mpi", 4, "ring --N 130 --d 8 --heads 4 --kv-heads 2 --causal"),
        ("mpi", 4, "ulysses --N 65 --d 8 --heads 6 --kv-heads 3 --layout striped --causal"),
        ("mpi", 4, "mesh --N 130 --d 8 --columns 2 --dtype bfloat16"),
        ("torch", 2, "ring --N 130 --d 8 --heads 4 --kv-heads 2 --causal"),
        ("torch", 4, "mesh --N 131 --d 8 --columns 2 --dtype float16"),
    ],
)
def test_bits_counts_and_bytes_are_the_simulation_s(engine: str, processes: int, asked: str) -> None:
    module = ["-m", "--"] if engine == "torch" else ["-m"]  # torchrun reads --d as an option of its own
    done = started([*launcher(engine, processes), *module, "flashsim", "devices", *asked.split()])
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line[:1].isdigit()]
    assert [row[0] for row in rows] == [str(rank) for rank in range(processes)]
    assert all(row[2] == row[3] != "0" and row[-2:] == ["yes", "yes"] for row in rows)
    if engine == "mpi":
        assert sum(int(row[4].replace(",", "")) for row in rows) == sum(int(row[2].replace(",", "")) for row in rows)


def test_processes_that_were_asked_for_different_things_say_so() -> None:
    each = ["-m", "flashsim", "devices", "ring", "--d", "8", "--N"]
    command = launcher("mpi", 1)
    done = started([*command, *each, "64", ":", *command[1:], *each, "65"])
    assert done.returncode != 0
    assert done.stderr.count("the processes were asked for different things: rank 0: ring, N = 64") == 2


@pytest.mark.parametrize("engine", ["mpi", "torch"])
def test_a_process_that_ends_ends_the_others(engine: str, tmp_path: Path) -> None:
    script = tmp_path / "dies.py"
    script.write_text(DIES)
    done = started([*launcher(engine, 3), str(script)])
    assert done.returncode != 0
    assert done.stdout.count("finished") <= 1  # rank 2 waits for rank 1; rank 0 need not


def test_without_a_launcher_the_error_says_how_to_start_it() -> None:
    from flashsim.devices import distributed

    with pytest.raises(
        ValueError, match=r"engine is None; expected 'torch' or 'mpi', .*torchrun --standalone --nproc-per-node 4"
    ):
        distributed.engine()

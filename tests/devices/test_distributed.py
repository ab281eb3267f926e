"""Devices for real: the same files over MPI and torch.distributed, in processes that mpiexec and
torchrun start.
"""

import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from flashsim.devices import engines
from tests.helpers.processes import started

DIES = """
import os, sys
import numpy as np
from flashsim.devices import LinkError, distributed
engine = distributed.engine(timeout=5)
if engine.rank == 1 and sys.argv[1] == "early":
    os._exit(3)
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

FAULTS = """
import os, sys, time
import numpy as np
from flashsim.devices import Device, LinkError, distributed
from flashsim.memory.hbm import HBM
from flashsim.memory.sram import SRAM
engine, began = distributed.engine(timeout=8), time.monotonic()
rank = engine.rank

def tried(what, run):
    try:
        run()
        said = "finished"
    except ValueError as error:
        said = f"ValueError: {error}"
    except LinkError as error:
        said = f"{'in time' if time.monotonic() - began < 25 else 'late'}: {error}"
    with open(os.path.join(sys.argv[1], f"{what} {rank}"), "w") as file:
        file.write(said)

def forward(N, **how):
    X = np.ones((N, 4))
    return distributed.forward("ring", X, X, X, engine=engine, **how)

def message():
    hbm = HBM()
    device = Device(rank, engine.size, hbm, SRAM(hbm, 100), engine)
    X, Y = hbm.place("X", np.ones((6, 2))), hbm.empty("Y", (4, 2), np.float64)
    sent = X.rows(0, (2, 4, 6)[rank])
    device.wait(device.post(sends=[(sent, (rank + 1) % engine.size)], receives=[(Y, (rank - 1) % engine.size)]))

tried("lengths", lambda: forward(32 + rank))
tried("layouts", lambda: forward(32, layout="striped" if rank == 1 else "zigzag"))
tried("none", lambda: forward(32))
tried("gradients", lambda: distributed.backward(forward(32), np.full((32, 4), 1.0 + (rank == 2)), engine=engine))
tried("shapes", lambda: distributed.backward(forward(32), np.ones((32, 3 + (rank > 0))), engine=engine))
tried("message", message)
time.sleep(1)
os._exit(0)
"""


def launcher(engine: str, processes: int) -> list[str]:
    """The command that starts processes of this Python. Skips where the engine is not installed."""
    if engine == "torch":
        if find_spec("torch") is None:
            pytest.skip('torch is not installed: pip install -e ".[dist]"')
        return [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(processes),
        ]
    mpiexec = Path(sys.executable).parent / "mpiexec"
    if find_spec("mpi4py") is None or not (mpiexec.exists() or shutil.which("mpiexec")):
        pytest.skip('mpi4py and mpiexec are not installed: pip install -e ".[dist]"')
    command = str(mpiexec) if mpiexec.exists() else "mpiexec"
    return [command, "-n", str(processes), sys.executable]


@pytest.mark.parametrize(
    ("engine", "processes", "options"),
    [
        ("mpi", 4, "ring --N 130 --d 8 --heads 4 --kv-heads 2 --causal"),
        ("mpi", 4, "ulysses --N 65 --d 8 --heads 6 --kv-heads 3 --layout striped --causal"),
        ("mpi", 4, "mesh --N 130 --d 8 --columns 2 --dtype bfloat16"),
        ("torch", 2, "ring --N 130 --d 8 --heads 4 --kv-heads 2 --causal"),
        ("torch", 4, "mesh --N 131 --d 8 --columns 2 --dtype float16"),
        ("mpi", 4, "ring --backward --N 66 --d 8 --d-v 5 --heads 4 --kv-heads 2 --causal"),
        (
            "mpi",
            4,
            "ulysses --backward --N 65 --d 8 --heads 6 --kv-heads 3 --layout striped --causal",
        ),
        ("mpi", 4, "mesh --backward --N 66 --d 8 --columns 2 --dtype bfloat16"),
        (
            "torch",
            2,
            "ring --backward --N 66 --d 8 --heads 4 --kv-heads 2 --causal --dtype bfloat16",
        ),
        ("torch", 4, "ulysses --backward --N 65 --d 8 --heads 5 --layout zigzag"),
    ],
)
def test_bits_counts_and_bytes_are_the_simulation_s(
    engine: str, processes: int, options: str
) -> None:
    # torchrun reads --d as an option of its own
    module = ["-m", "--"] if engine == "torch" else ["-m"]
    command = [*launcher(engine, processes), *module, "flashsim", "devices"]
    done = started([*command, *options.split()])
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line[:1].isdigit()]
    assert [row[0] for row in rows] == [str(rank) for rank in range(processes)]
    for row in rows:
        assert row[2] == row[3] != "0"
        assert row[-2:] == ["yes", "yes"]

    def total(column: int) -> int:
        return sum(int(row[column].replace(",", "")) for row in rows)

    if engine == "mpi":
        assert total(4) == total(2)


def test_processes_that_were_asked_for_different_things_say_so() -> None:
    each = ["-m", "flashsim", "devices", "ring", "--d", "8", "--N"]
    command = launcher("mpi", 1)
    first = [*command, *each, "64"]
    second = [*command[1:], *each, "65"]
    done = started([*first, ":", *second])
    assert done.returncode != 0
    assert (
        done.stderr.count("the processes were asked for different things: rank 0: ring, N = 64")
        == 2
    )


@pytest.mark.parametrize(
    ("engine", "when"),
    [
        ("mpi", "late"),
        ("mpi", "early"),
        ("torch", "late"),
        pytest.param("torch", "early", marks=pytest.mark.slow),
    ],
)
def test_a_process_that_ends_ends_the_others(engine: str, when: str, tmp_path: Path) -> None:
    script = tmp_path / "dies.py"
    script.write_text(DIES)
    done = started([*launcher(engine, 3), str(script), when])
    assert done.returncode != 0
    # rank 2 waits for rank 1; rank 0 need not
    assert done.stdout.count("finished") <= (when == "late")
    assert "Traceback" not in done.stderr or engine == "torch"  # torchrun's own


@pytest.mark.parametrize("engine", ["mpi", "torch"])
def test_faults_are_said_in_time(engine: str, tmp_path: Path) -> None:
    """On every rank, different N, and different layouts; then all is well; then a message cut
    short, and one too long.
    """
    script = tmp_path / "faults.py"
    script.write_text(FAULTS)
    started([*launcher(engine, 3), str(script), str(tmp_path)])
    for rank in range(3):
        for what in ("lengths", "layouts"):
            text = (tmp_path / f"{what} {rank}").read_text()
            assert text.startswith(
                "in time: the processes were asked for different things: rank 0: ring, N = 32"
            )
        assert (tmp_path / f"none {rank}").read_text() == "finished"
        text = (tmp_path / f"gradients {rank}").read_text()
        assert text.startswith(
            "in time: the processes were asked for different things: rank 0: ring, backward, N = 32"
        )
        text = (tmp_path / f"shapes {rank}").read_text()
        assert text.startswith(
            "in time: the processes were" if rank else "ValueError: dO has shape (32, 3)"
        )
    short, long = ((tmp_path / f"message {rank}").read_text() for rank in (1, 0))
    assert re.match(
        r"in time: rank 1, at line \d+ of faults.py, received 32 bytes from rank 0; expected 64",
        short,
    )
    from_gloo = "received 96 bytes from rank 2; expected 64"
    assert re.match(
        rf"in time: rank 0, at line \d+ of faults.py, {'lost its message' if engine == 'mpi' else from_gloo}",
        long,
    )


def test_a_process_has_the_gpu_of_its_number_or_is_told_that_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: 2))
    )
    for index in ("-1", "2", "3"):
        monkeypatch.setenv("LOCAL_RANK", index)
        with pytest.raises(ValueError, match=f"of GPU {index}; this host has 2"):
            engines.Nccl()


def test_at_first_nothing_is_handed_over_or_received(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = SimpleNamespace(Get_rank=lambda: 0, Get_size=lambda: 1)
    monkeypatch.setitem(
        sys.modules, "mpi4py", SimpleNamespace(MPI=SimpleNamespace(COMM_WORLD=alone))
    )
    assert (engines.Mpi().handed, engines.Mpi().received) == (0, 0)


def test_without_a_launcher_the_error_says_how_to_start_it() -> None:
    from flashsim.devices import distributed

    with pytest.raises(
        ValueError,
        match=r"engine is None; expected 'torch' or 'nccl' or 'mpi', .*torchrun --standalone --nproc-per-node 4",
    ):
        distributed.engine()

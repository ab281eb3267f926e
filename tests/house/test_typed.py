"""What a type checker sees of a call: a keyword that there is not, before anything is run."""

import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.attention.options import Options

ROOT = Path(__file__).parents[2]
CALLS = """
from typing import Any

import numpy as np

import flashsim
import flashsim.observers as observers
import flashsim.tune
from flashsim import theory

Q, K, V = np.ones((3, 8, 4))
flashsim.forward("flash", Q, K, V, casual=True)
flashsim.count("flash", N=8, d=4, casual=True)
theory.exact("flash", N=8, d=4, casual=True)
run = flashsim.forward("flash", Q, K, V)
flashsim.backward("flash", run, Q, casual=True)
flashsim.count("split_kv", N=8, d=4, splits="two")
flashsim.tune.tune(N=8, d=4, casual=True)
observers.Ledger(casual=True)

flashsim.forward("flash", Q, K, V, causal=True)
flashsim.count("split_kv", N=8, d=4, splits=2, merge="tree")
flashsim.count("sliding_window", N=8, d=4, window=(3, 0))
theory.exact("block_sparse", N=8, d=4, block_mask="live", causal=True)
flashsim.tune.tune(N=8, d=4, causal=True)
observers.Ledger()
own: dict[str, Any] = {"mine": 3}
flashsim.count("flash", N=8, d=4, **own)
"""


def test_the_options_that_are_typed_are_those_that_records_declare() -> None:
    declared = {
        option.name
        for record in (*FORWARD.values(), *BACKWARD.values())
        for option in record.options
    }
    assert get_type_hints(Options).keys() == declared


@pytest.mark.slow
def test_mypy_sees_a_keyword_that_there_is_not(tmp_path: Path) -> None:
    (file := tmp_path / "calls.py").write_text(CALLS, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        str(ROOT / "pyproject.toml"),
        "--no-error-summary",
    ]
    command += ["--cache-dir", str(tmp_path / "cache"), "--follow-imports", "silent", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    wrong = [line for line in done.stdout.splitlines() if ": error: " in line]
    lines = {int(line.split(":")[1]): line for line in wrong}
    index = {
        number
        for number, line in enumerate(CALLS.splitlines(), 1)
        if "casual" in line or '"two"' in line
    }
    assert lines.keys() == index, done.stdout
    assert sum("casual" in line for line in wrong) == 6

"""Use one: stepping in a debugger, where a tile is a plain array under the paper's name."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np

from flashsim.algorithms import algorithm_1_flash_basic

SCRIPT = """
import numpy as np
import flashsim
rng = np.random.default_rng(0)
Q, K, V = (rng.normal(size=(6, 2)) for _ in range(3))
flashsim.forward("flash_basic", Q, K, V, scale=1.0, M=100, blocks=(2, 3))
"""


def test_pdb_reads_s_ij_at_line_9(tmp_path: Path) -> None:
    source = Path(inspect.getsourcefile(algorithm_1_flash_basic) or "")
    lines = source.read_text(encoding="utf-8").splitlines()
    after_line_9 = next(n for n, line in enumerate(lines, 1) if line.endswith("# line 10"))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    commands = f"""b flashsim/algorithms/{source.name}:{after_line_9}, i == 2 and j == 1
c
p type(S_ij).__name__, type(S_ij) is np.ndarray if 'np' in dir() else type(S_ij)
p S_ij.tolist()
p sram
p hbm
p Q
n
p m_tilde_ij.ravel().tolist()
q
"""
    done = subprocess.run(
        [sys.executable, "-m", "pdb", str(script)],
        input=commands,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    rng = np.random.default_rng(0)
    Q, K, _ = (rng.normal(size=(6, 2)) for _ in range(3))
    S_ij = Q[4:6] @ K[3:6].T
    assert "S_ij = on_chip(Q_i @ K_j.T)  # line 9" in lines[after_line_9 - 2]
    assert str(S_ij.tolist()) in done.stdout, done.stdout + done.stderr
    assert "<class 'numpy.ndarray'>" in done.stdout
    assert str(S_ij.max(axis=1).tolist()) in done.stdout
    assert "<Q in HBM, 6×2, in 3 × 1 blocks>" in done.stdout
    assert "K[1]" in done.stdout  # in the summary of SRAM
    assert "accesses" in done.stdout  # and of HBM

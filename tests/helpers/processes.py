"""Programs in processes of their own."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def started(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, env=environment, cwd=ROOT
    )

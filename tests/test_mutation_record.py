"""figures/mutation.json is of what is tested today: at most a tenth of the lines that were mutated have changed since."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BESIDE = ("gpu", "cli", "plots", "learn/gallery")  # as in scripts/research/mutants.py


def git(*arguments: str) -> str:
    found = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"no git history here: git {arguments[0]} says {found.stderr.strip()[:80]}")
    return found.stdout


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_record_of_mutants_is_of_today() -> None:
    commit = json.loads((ROOT / "figures/mutation.json").read_text(encoding="utf-8"))["commit"]
    mutated = ["flashsim/*.py", *(f":!flashsim/{room}/*" for room in BESIDE)]
    lines = sum(int(row.rpartition(":")[2]) for row in git("grep", "-c", "", commit, "--", *mutated).splitlines())
    changed = [row.split("\t")[:2] for row in git("diff", "--numstat", commit, "--", *mutated).splitlines()]
    most = max(sum(int(row[side]) for row in changed) for side in (0, 1))  # added, or removed
    assert most <= lines / 10, f"{most:,} of {lines:,} lines changed since {commit}: run scripts/research/mutation.py"

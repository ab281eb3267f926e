"""Kernels on Hopper return the same bits in a build in which much happens as late as it may:
kernels/delays.cuh.

There a thread that does not wait for all that it needs is overtaken. Planted, each such race is
seen.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.delayed_kernels import GROUPS
from tests.helpers.hopper import ON_HOPPER

WORKER = Path(__file__).parents[1].joinpath("helpers", "delayed_kernels.py")
LATE = "-DDELAYED=1"
pytestmark = ON_HOPPER

RACES = {  # a group of kernels, its file, and what is to happen before those who need it are done
    "P_ij is written over while the other consumer's product reads it": (
        "backward-256",
        "hopper_backward_wide.cu",
        "return base + 6 * TILE + n % 2 * SIDE;",
        "return base + 6 * TILE;",
    ),
    "K_j of dQ's pass is free before its product is done": (
        "backward-256",
        "hopper_backward_wide.cu",
        "finish<0>(S_ij), finish<0>(dQ_i);\n                sram.K_j.evict(n);",
        "sram.K_j.evict(n);\n                finish<0>(S_ij), finish<0>(dQ_i);",
    ),
    "Q_i and dO_i are free before dV_j's product is done": (
        "backward-128",
        "hopper_backward.cu",
        "finish<first ? 0 : 1>();\n        sram.dO_i.evict(n);\n        sram.Q_i.free(n).arrive();",
        "sram.dO_i.evict(n);\n        sram.Q_i.free(n).arrive();\n        finish<first ? 0 : 1>();",
    ),
    "V_j is free before O_i's product is done": (
        "forward-128",
        "hopper.cu",
        "if (!first) finish<0>(O_i);\n        if (!first) sram.evict_V(kv);",
        "if (!first) sram.evict_V(kv);\n        if (!first) finish<0>(O_i);",
    ),
    "of the kernel to read, V_j is free before O_i's product is done": (
        "to-read",
        "hopper_forward.cu",
        "if (!first) finish<0>(O_i);\n        if (!first) sram.evict_V(n - 1);",
        "if (!first) sram.evict_V(n - 1);\n        if (!first) finish<0>(O_i);",
    ),
    "of a cache, V_j is free before O_i's product is done": (
        "decoding",
        "hopper_decode.cu",
        "finish<1>(O_i);\n            sram.V_j.evict(kv);",
        "sram.V_j.evict(kv);\n            finish<1>(O_i);",
    ),
    "of more queries, V_j is free before O_i's product is done": (
        "grouped",
        "hopper_grouped.cu",
        "if (!first) finish<0>(O_i);\n        if (!first) sram.V_j.evict(n - 1);",
        "if (!first) sram.V_j.evict(n - 1);\n        if (!first) finish<0>(O_i);",
    ),
    "of 8 bits, V_j is free before O_i's product is done": (
        "8-bits",
        "hopper_fp8.cu",
        "if (!maxima) finish<0>(O_i);\n            if (upper) sram.V_j.evict(n - 1);",
        "if (upper) sram.V_j.evict(n - 1);\n            if (!maxima) finish<0>(O_i);",
    ),
}


@pytest.fixture(scope="module")
def right() -> dict[str, Any]:
    """Return what the usual build returns, by group, as far as it was asked for."""
    return {}


def digests(group: str, *options: str, bugs: dict[str, Any] | None = None) -> Any:
    """Return, by case, the digests of what each run returned."""
    arguments = json.dumps({"options": options, "bugs": bugs or {}})
    command = [sys.executable, str(WORKER), group, arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=WORKER.parents[1], timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def usual(right: dict[str, Any], group: str) -> Any:
    if group not in right:
        right[group] = digests(group)
    return right[group]


@pytest.mark.parametrize("group", GROUPS)
def test_bits_are_the_same_however_late_things_happen(group: str, right: dict[str, Any]) -> None:
    result = digests(group, LATE)
    assert result == usual(right, group)
    for case, runs in result.items():
        assert all(run == runs[0] for run in runs), case


@pytest.mark.parametrize("race", RACES.values(), ids=RACES)
def test_a_planted_race_is_seen(race: tuple[str, str, str, str], right: dict[str, Any]) -> None:
    group, file, before, after = race
    result = digests(group, LATE, bugs={file: [(before, after)]})
    expected = usual(right, group)
    assert [case for case, runs in result.items() if runs != expected[case]]

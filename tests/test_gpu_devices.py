"""Attention over several GPUs: its pieces, its messages over gloo without a GPU, and all of it where there are two or more."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashsim import devices
from flashsim.attention.problem import Problem
from flashsim.devices.share import Share
from flashsim.gpu.compiling import MissingGPU, compile_file
from flashsim.gpu.devices import tiles
from flashsim.gpu.devices.pieces import pieces
from tests.test_distributed import started

WORKER = Path(__file__).with_name("over_gpus.py")
FLOAT16, BFLOAT16 = 6e-4, 5e-3  # of ‖found − right‖ / ‖right‖: two or three roundings


def share(where: list[Any], causal: bool = True) -> Share:
    N = sum(map(len, where))
    return Share(Problem.of(N=N, d=8, causal=causal), where, where, N, N)


def seen(share: Share, rank: int, src: int) -> Any:
    """How often each pair of rows and keys is in a piece."""
    found = np.zeros((share.rows(rank), share.rows(src)), int)
    for piece in pieces(share, rank, src):
        rows = piece.end - piece.first
        allowed = np.tri(rows, piece.keys, piece.keys - rows, int) if piece.causal else 1
        found[piece.first : piece.end, : piece.keys] += allowed
    return found


@pytest.mark.parametrize("layout", devices.layouts.LAYOUTS)
@pytest.mark.parametrize(("N", "P"), [(64, 4), (65, 4), (67, 3), (3, 4), (1, 2), (40, 1)])
def test_one_piece_at_most_holds_every_allowed_pair_once(layout: str, N: int, P: int) -> None:
    where = devices.positions(layout, N, P)
    for rank, src in np.ndindex(P, P):
        allowed = where[rank][:, None] >= where[src]
        assert np.array_equal(seen(share(where), rank, src), allowed)
        assert len(pieces(share(where), rank, src)) <= 1 + (N % (2 * P) > 0)
        assert (seen(share(where, causal=False), rank, src) == 1).all()


def test_pieces_of_rows_that_are_anywhere() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        owner = rng.integers(3, size=rng.integers(1, 40))
        where = [np.flatnonzero(owner == p) for p in range(3)]
        for rank, src in np.ndindex(3, 3):
            assert np.array_equal(seen(share(where), rank, src), where[rank][:, None] >= where[src])


@pytest.mark.parametrize("variant", tiles.VARIANTS, ids=lambda variant: variant.functions[0])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_merging_kernel_compiles(variant: Any, arch: str) -> None:
    try:
        compiled = compile_file(variant.file, variant.functions, dict(variant.defines), arch)
    except MissingGPU as error:
        pytest.skip(str(error))
    assert all((r.spill_stores, r.spill_loads, r.stack) == (0, 0, 0) for r in compiled.resources.values())


def found_on(engine: str, processes: int, examples: int) -> dict[str, Any]:
    """What the worker's processes found."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    done = started([*torchrun, str(WORKER), engine, str(examples)])
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    found: dict[str, Any] = json.loads(line.removeprefix("FOUND "))
    return found


def look_at(found: dict[str, Any], processes: int) -> None:
    for tried in found["cases"]:
        most = BFLOAT16 if tried["case"].get("dtype") else FLOAT16
        assert max(tried["errors"].values()) < most, tried
        assert tried["errors"].get("lse", 0) < 1e-6
        assert tried["agree"] == [[True, True]] * processes  # words, and bytes handed over
    assert found["kit"]["ok"], found["kit"]["said"]
    expected = (
        "name is 'mesh'; expected 'ring' or 'ulysses'", "expected (H_q, n, d) and twice (H_kv, n, d)",
        "expected all float16 or all bfloat16", "rows are shared out", "the processes were asked for different things",
        "rows are shared out",
    )  # fmt: skip
    for said, part in zip(found["refused"], expected, strict=True):
        assert part in said


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: pip install flashsim[dist]")
def test_messages_and_pieces_make_up_attention_on_three_processes() -> None:
    """PyTorch's arithmetic in the kernels' place; of three parts O is summed in float32."""
    look_at(found_on("torch", 3, 3), 3)


def gpus() -> int:
    """How many GPUs PyTorch sees here."""
    if find_spec("torch") is None:
        return 0
    count = "import torch; print(torch.cuda.device_count() if torch.distributed.is_nccl_available() else 0)"
    return int(subprocess.run([sys.executable, "-c", count], capture_output=True, text=True, check=True).stdout)


def test_attention_over_all_gpus_of_this_host() -> None:
    """Kernels and NCCL; and the simulation's program, whose blocks travel between GPUs; and both passes as a graph."""
    P = gpus()
    if P < 2:
        pytest.skip(f"{P} GPUs with PyTorch and NCCL; expected 2 or more")
    found = found_on("nccl", P, 12)
    look_at(found, P)
    assert found["same bits"] == found["captured"] == [True] * P

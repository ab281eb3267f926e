"""Attention over several GPUs: its pieces, its messages over gloo without a GPU, and all of it
where there are two or more.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import devices_pictures
import numpy as np
import pytest

from flashsim import devices
from flashsim.attention.problem import Problem
from flashsim.devices import LinkError, theory
from flashsim.devices.engines import Nccl
from flashsim.devices.share import Share
from flashsim.gpu.devices.pieces import pieces
from tests.helpers.pages import has_numbers, paragraphs, text_of
from tests.helpers.processes import ROOT, started

WORKER = Path(__file__).parents[1].joinpath("helpers", "over_gpus.py")
# of ‖found − right‖ / ‖right‖: two or three roundings
FLOAT16 = 6e-4
BFLOAT16 = 5e-3


def share(where: list[Any], causal: bool = True) -> Share:
    N = sum(map(len, where))
    problem = Problem.of(N=N, d=8, causal=causal)
    return Share(problem, where, where, N, N)


def seen(share: Share, rank: int, src: int) -> Any:
    """How often each pair of rows and keys is in a piece."""
    result = np.zeros((share.rows(rank), share.rows(src)), int)
    for piece in pieces(share, rank, src):
        rows = piece.end - piece.first
        allowed: Any = 1
        if piece.causal:
            allowed = np.tri(rows, piece.keys, piece.keys - rows, int)
        result[piece.first : piece.end, : piece.keys] += allowed
    return result


@pytest.mark.parametrize("layout", devices.layouts.LAYOUTS)
@pytest.mark.parametrize(
    ("N", "P"),
    [(64, 4), (65, 4), (67, 3), (3, 4), (1, 2), (40, 1)],
)
def test_one_piece_at_most_holds_every_allowed_pair_once(layout: str, N: int, P: int) -> None:
    where = devices.positions(layout, N, P)
    for rank, src in np.ndindex(P, P):
        allowed = where[rank][:, None] >= where[src]
        assert np.array_equal(seen(share(where), rank, src), allowed)
        ragged = N % (2 * P) > 0
        assert len(pieces(share(where), rank, src)) <= 1 + ragged
        assert (seen(share(where, causal=False), rank, src) == 1).all()


def test_pieces_of_rows_that_are_anywhere() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        owner = rng.integers(3, size=rng.integers(1, 40))
        where = [np.flatnonzero(owner == p) for p in range(3)]
        for rank, src in np.ndindex(3, 3):
            allowed = where[rank][:, None] >= where[src]
            assert np.array_equal(seen(share(where), rank, src), allowed)


def found_on(engine: str, processes: int, examples: int) -> dict[str, Any]:
    """What the worker's processes found."""
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(processes),
    ]
    done = started([*torchrun, str(WORKER), engine, str(examples)])
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    result: dict[str, Any] = json.loads(line.removeprefix("FOUND "))
    return result


def look_at(result: dict[str, Any], processes: int) -> None:
    for tried in result["cases"]:
        most = BFLOAT16 if tried["case"].get("dtype") else FLOAT16
        assert max(tried["errors"].values()) < most, tried
        assert tried["errors"].get("lse", 0) < 1e-6
        assert tried["agree"] == [[True, True]] * processes  # words, and bytes handed over
    assert result["kit"]["ok"], result["kit"]["said"]
    expected = (
        "name is 'mesh'; expected 'ring' or 'ulysses'",
        "expected (H_q, n, d) and twice (H_kv, n, d)",
        "expected all float16 or all bfloat16",
        "rows are shared out",
        "the processes were asked for different things",
        "rows are shared out",
    )
    for text, part in zip(result["refused"], expected, strict=True):
        assert part in text


@pytest.mark.skipif(
    find_spec("torch") is None, reason='torch is not installed: pip install -e ".[dist]"'
)
def test_messages_and_pieces_make_up_attention_on_three_processes() -> None:
    """PyTorch's arithmetic in the kernels' place; of three parts O is summed in float32."""
    look_at(found_on("torch", 3, 3), 3)


def gpus() -> int:
    """How many GPUs PyTorch sees here."""
    if find_spec("torch") is None:
        return 0
    count = (
        "import torch; print(torch.cuda.device_count() if torch.distributed.is_nccl_available() "
        "else 0)"
    )
    return int(
        subprocess.run(
            [sys.executable, "-c", count], capture_output=True, text=True, check=True
        ).stdout
    )


def test_attention_over_all_gpus_of_this_host() -> None:
    """Kernels and NCCL; and the simulation's program, whose blocks travel between GPUs; and both
    passes as a graph.
    """
    P = gpus()
    if P < 2:
        pytest.skip(f"{P} GPUs with PyTorch and NCCL; expected 2 or more")
    result = found_on("nccl", P, 12)
    look_at(result, P)
    assert result["same bits"] == result["captured"] == [True] * P


RECORD: dict[str, Any] = json.loads(
    (ROOT / "figures" / "devices_gpu.json").read_text(encoding="utf-8")
)


def test_the_record_is_of_every_length_and_way() -> None:
    lengths = sorted({result["N"] for result in RECORD["results"]})
    assert lengths[0] == 2048
    assert lengths[-1] == 65_536
    assert RECORD["heads"] == 16
    assert RECORD["d"] == 128
    ways = [(r["N"], r["causal"], r["direction"]) for r in RECORD["results"]]
    assert ways == [
        (N, causal, way)
        for N in lengths
        for causal in (False, True)
        for way in ("forward", "backward")
    ]
    assert RECORD["machine"]["gpus"] >= 2
    assert len(RECORD["commit"]) == 40
    for result in RECORD["results"]:
        names = set(devices_pictures.LOOKS) | {"one GPU", "kernels alone", "messages alone"}
        assert set(result["ms"]) >= {
            name for name in names if result["causal"] or "context" not in name
        }
        for median, least, most in result["ms"].values():
            assert 0 < least <= median <= most


def model(program: str, N: int) -> dict[str, list[int]]:
    """The bytes that each GPU sends."""
    P = RECORD["machine"]["gpus"]
    layout = "contiguous" if program == "ulysses" else "zigzag"
    where = devices.positions(layout, N, P)
    problem = Problem.of(N=N, d=RECORD["d"], heads=RECORD["heads"])
    of = Share(problem, where, where, N, N)
    if program == "ulysses":
        return {
            "forward": [2 * theory.ulysses_words(of, p) for p in range(P)],
            "backward": [2 * theory.ulysses_kept_backward_words(of, p) for p in range(P)],
        }
    once = [theory.ring_words(of, p, 1) for p in range(P)]
    twice = [theory.ring_words(of, p, 2) for p in range(P)]
    backward = []
    for of_keys, both in zip(once, twice, strict=True):
        of_gradients = both - of_keys  # dK and dV in 32 bits
        backward.append(2 * of_keys + 4 * of_gradients)
    return {
        "forward": [2 * words for words in once],
        "backward": backward,
    }


def test_bytes_handed_over_are_the_model_s_and_nvlink_s_within_a_hundredth() -> None:
    for result in RECORD["results"]:
        for name, of in result["bytes"].items():
            program = name.split(",")[0]
            modelled = model(program, result["N"])[result["direction"]]
            assert of["handed"] == modelled
            assert of["model"] == modelled
    lengths = {result["N"] for result in RECORD["results"]}
    assert len(RECORD["counters"]) == 4 * len(lengths)
    for counted in RECORD["counters"]:
        sent = model(counted["program"], counted["N"])[counted["direction"]]
        modelled = [counted["repeats"] * of_device for of_device in sent]
        assert counted["model"] == modelled
        for end in ("sent", "received"):
            assert counted[end] == pytest.approx(modelled, rel=0.01)


def test_what_a_device_sends_backward_under_ulysses() -> None:
    """3 devices of 4, 3 and 3 rows; 6 query heads, 3 KV heads: counted by hand for device 0."""
    where = devices.positions("contiguous", 10, 3)
    problem = Problem.of(N=10, d=8, heads=6, kv_heads=3)
    of = Share(problem, where, where, 10, 10)
    dO = 4 * 4 * 8
    dQ = 6 * 2 * 8
    dKV = 6 * 1 * 16
    assert theory.ulysses_kept_backward_words(of, 0) == dO + dQ + dKV


def test_the_pages_numbers_are_the_measured_ones() -> None:
    page = paragraphs(text_of(ROOT / "docs" / "devices.md"))
    results = RECORD["results"]

    def most(name: str, of: str, names: tuple[str, ...]) -> str:
        errors = []
        for result in results:
            for each, of_each in result["errors"].items():
                if each.split(",")[0] == name:
                    errors += [of_each[X][of] for X in of_each if X in names]
        return f"{max(errors):.1e}"

    grads = "dQ", "dK", "dV"
    errors = (
        most("ring", "one GPU", ("O",)),
        most("ring", "float64", ("O",)),
        most("one GPU", "float64", ("O",)),
    )
    assert has_numbers(page, f"{' '.join(errors)} {most('ring', 'one GPU', grads)}")
    for X in ("O", "dK", "dV"):
        assert most("ulysses", "one GPU", (X,)) == "0.0e+00"
    ranges = []
    for end in ("sent", "received"):
        ratios = []
        for c in RECORD["counters"]:
            ratios += [
                of_end / of_model for of_end, of_model in zip(c[end], c["model"], strict=True)
            ]
        ranges.append(f"{min(ratios):.4f} {max(ratios):.4f}")
    assert has_numbers(page, " ".join(ranges))
    operations, bytes_sent = devices_pictures.rates(RECORD, causal=False)
    assert has_numbers(page, f"{bytes_sent / 1e9:.0f} {operations / 1e12:.0f}", about="TFLOP/s")
    for say in (devices_pictures.predicted, devices_pictures.measured):
        assert has_numbers(page, f"{say(RECORD, False):,.0f} {say(RECORD, True):,.0f}")
    causal = devices_pictures.results_of(RECORD, "forward", True)
    (one,) = (result for result in causal if result["N"] == 16_384)
    messages, alone, ring, without = (
        devices_pictures.median(one, name)
        for name in ("messages alone", "kernels alone", "ring", "ring, no overlap")
    )
    assert has_numbers(page, f"16,384 {messages:.2f} {ring - alone:.2f} {without - alone:.2f}")
    last = causal[-1]
    theirs, of_one, ours = (
        devices_pictures.median(last, name)
        for name in ("context_parallel, allgather", "one GPU, PyTorch", "ring")
    )
    assert has_numbers(page, f"{of_one / theirs:.2f} {theirs:.1f} {ours:.1f}")
    assert [5 * sent for sent in model("ulysses", last["N"])["backward"]] == model(
        "ring", last["N"]
    )["backward"]


def test_messages_hide_where_the_lines_cross() -> None:
    ms = {2048: (4.0, 1.0), 8192: (1.0, 4.0)}  # messages, kernels of two steps
    results = [
        {
            "N": N,
            "causal": False,
            "direction": "forward",
            "ms": {"messages alone": [m], "kernels alone": [k]},
            "bytes": {},
        }
        for N, (m, k) in ms.items()
    ]
    record = {"machine": {"gpus": 2}, "results": results}
    # 8 falls to 1/2
    assert devices_pictures.measured(record, False) == pytest.approx(2048 * 4 ** (3 / 4))
    with pytest.raises(ValueError, match=r"8\.00 to 8\.00 times"):
        devices_pictures.measured({**record, "results": results[:1]}, False)


def test_the_figure_has_a_line_for_each_contestant() -> None:
    axes = devices_pictures.plot_devices(RECORD)
    for panel, (direction, causal) in zip(axes, devices_pictures.CASES, strict=True):
        results = devices_pictures.results_of(RECORD, direction, causal)
        drawn = {str(line.get_gid()): line for line in panel.get_lines()}
        ring = drawn[f"{direction} {causal} ring"]
        assert np.asarray(ring.get_ydata()).tolist() == [
            r["ms"]["one GPU"][0] / r["ms"]["ring"][0] for r in results
        ]
        assert (f"{direction} {causal} context_parallel, allgather" in drawn) == causal


def dying(engine: str, processes: int, what: str) -> list[tuple[int, str, str]]:
    """What each process returns and says: they are started alone, as torchrun would end them for
    one that ended.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    around = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "WORLD_SIZE": str(processes),
    }
    around |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    script = [sys.executable, str(WORKER.with_name("dying_gpus.py")), engine, what]
    each = [
        subprocess.Popen(
            script,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env=around | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(processes)
    ]
    try:
        text = [one.communicate(timeout=240) for one in each]
    finally:
        for one in each:
            one.kill()
    return [(one.returncode, *of) for one, of in zip(each, text, strict=True)]


def look_at_the_dead(result: list[tuple[int, str, str]], most: float) -> None:
    *others, last = result
    assert (last[0], last[1].split()[-1]) == (3, "once")
    for rank, (code, out, err) in enumerate(others):
        messages = re.match(rf"(?ms).*^once\nLinkError after ([\d.]+) s: rank {rank}\b.*", out)
        assert messages, (code, out, err[-3000:])
        assert float(messages[1]) < most
        assert "\nand again: " in out
        assert code == 0, err[-3000:]


class Stuck:
    """A GPU that is never done, whose engine cannot be ended: as NCCL's, which waits for graphs
    to go.
    """

    Event = property(lambda self: lambda: self)
    cuda = group = WORLD = property(lambda self: self)
    record = _get_backend = lambda self, *_: self
    query = lambda self: False  # noqa: E731

    def abort(self) -> None:
        time.sleep(30)


def test_an_engine_that_cannot_be_ended_is_left() -> None:
    engine: Any = object.__new__(Nccl)
    engine.rank, engine.device, engine._timeout = 1, None, timedelta(seconds=0.1)
    engine._torch = engine._dist = Stuck()
    began = time.monotonic()
    graph = MagicMock()
    Nccl.graphs.add(graph)
    for message in (r"nothing for 0\.1 s", "NCCL was ended before"):
        with pytest.raises(LinkError, match=f"rank 1 did not hear from all processes: {message}"):
            engine.finish()
        graph.reset.assert_called_once()
    assert graph not in Nccl.graphs
    assert time.monotonic() - began < 5


@pytest.mark.skipif(
    find_spec("torch") is None, reason='torch is not installed: pip install -e ".[dist]"'
)
@pytest.mark.parametrize("what", ["links", "program"])
def test_a_process_that_ends_is_noticed_by_the_others_over_gloo(what: str) -> None:
    look_at_the_dead(dying("torch", 2, what), 10)


@pytest.mark.parametrize("what", ["graph", "links", "program", "many", "many graphs"])
def test_a_gpu_whose_process_ends_is_noticed_by_the_others(what: str) -> None:
    """NCCL itself waits for ever, and PyTorch watches over no graph."""
    if (P := gpus()) < 2:
        pytest.skip(f"{P} GPUs with PyTorch and NCCL; expected 2 or more")
    result = dying("nccl", P, what)
    look_at_the_dead(result, 10)
    assert all("the GPU is free: 8" in out for _, out, _ in result[:-1])

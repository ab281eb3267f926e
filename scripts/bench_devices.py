"""Measure attention over this host's GPUs, beside one GPU and PyTorch's context_parallel:
figures/devices_gpu.json.

torchrun --standalone --nproc-per-node 2 scripts/bench_devices.py --commit "$(git rev-parse HEAD)"

16 heads, d = 128, float16; the ring with zigzag and striped rows, and Ulysses; forward and
backward. Of each length: errors against one GPU and, for two heads, float64; bytes handed over
beside the model's, and, for calls that repeat, beside what the GPUs' NVLink counters say; and the
ms of calls that take turns in one run, medians of rounds, of the slowest GPU.

Calls are CUDA graphs but for those that say otherwise, and PyTorch's. "kernels alone" sends
nothing, "messages alone" computes nothing.
"""

import argparse
import contextlib
import datetime
import json
import math
import os
import random
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from flashsim import gpu
from flashsim.devices import distributed, positions, theory
from flashsim.gpu.devices import Captured, Links, backward, forward
from flashsim.gpu.machine import machine
from flashsim.support.entry import run_script
from flashsim.support.files import check_target, write_whole

HEADS = 16
WIDTH = 128
SAMPLE = (0, 15)
LENGTHS = (2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 32_768, 65_536)
TURN_MS = 15.0  # of a contestant's turn at least
COUNTED = 2**33  # bytes that go over while counters are watched
# NVML's field values, in KiB a link
DATA_TX = 138
DATA_RX = 139
NVLINKS = 18
Calls = dict[str, Callable[[], Any]]


class Silent(Links):
    """Sends nothing: what is received is what would have been sent."""

    def post(self, sends: Any, receives: Any) -> list[Any]:
        """Let each tensor that is to be received be one that is sent."""
        for (there, _), (here, _) in zip(sends, receives, strict=True):
            here.set_(there)
        return []


def main() -> int:
    """Measure, and write the record by the first process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("figures/devices_gpu.json"))
    parser.add_argument("--commit", help="of the sources, for the record")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    check_target(options.output)
    engine: Any = distributed.engine("nccl", timeout=120)
    mesh = dist.init_device_mesh("cuda", (engine.size,))
    record: dict[str, Any] = {
        "command": shlex.join(["torchrun", "…", "scripts/bench_devices.py", *sys.argv[1:]]),
        "commit": options.commit,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine()
        | {"gpus": engine.size, "nccl": ".".join(map(str, torch.cuda.nccl.version()))},
        "heads": HEADS,
        "d": WIDTH,
        "rounds": options.rounds,
        "results": [],
        "counters": [],
    }
    for N in options.lengths:
        whole = inputs(N, engine.device)
        record["counters"] += counted(engine, whole)
        for causal in (False, True):
            for result in measured(engine, mesh, whole, causal, options.rounds):
                record["results"].append(result)
                if engine.rank == 0:
                    text = {name: times[0] for name, times in result["ms"].items()}
                    print(json.dumps(result | {"ms": text}), flush=True)
                    write_whole(options.output, json.dumps(record, indent=1) + "\n")
    engine.close()
    return 0


def inputs(N: int, device: Any) -> list[Any]:
    """Return q, k, v, do (heads, N, d), the same in each process."""
    source = torch.Generator(device).manual_seed(N)
    return [
        torch.randn(HEADS, N, WIDTH, device=device, dtype=torch.float16, generator=source)
        for _ in range(4)
    ]


def own(engine: Any, whole: list[Any], layout: str) -> list[Any]:
    """Return this process's rows."""
    return [X[:, rows_of(engine, X.shape[1], layout)].contiguous() for X in whole]


def rows_of(engine: Any, N: int, layout: str) -> Any:
    """Return this process's positions."""
    return torch.tensor(positions(layout, N, engine.size)[engine.rank], device=engine.device)


def measured(
    engine: Any, mesh: Any, whole: list[Any], causal: bool, rounds: int
) -> Iterator[dict[str, Any]]:
    """Yield results forward and backward: errors, bytes, and [median, least, most] of each
    contestant's ms.
    """
    q, k, v, do = whole
    N = q.shape[1]
    sizes = {"N": q.shape[1], "causal": causal}
    right = dict(zip(("O", "dQ", "dK", "dV"), exact(q, k, v, do, causal), strict=True))
    o, lse = gpu.forward(q[None], k[None], v[None], causal=causal, return_lse=True)
    grads = gpu.backward(q[None], k[None], v[None], o, lse, do[None], causal=causal)
    one = dict(zip(right, (X[0] for X in (o, *grads)), strict=True))
    programs = {"ring": ("ring", "zigzag"), "ulysses": ("ulysses", "contiguous")}
    if causal:
        programs["ring, striped"] = "ring", "striped"
    errors: dict[str, Any] = {
        "one GPU": {X: {"float64": error(one[X][[*SAMPLE]], Y)} for X, Y in right.items()}
    }
    traffic = {}
    parts = {}
    for name, (program, layout) in programs.items():
        rows = rows_of(engine, N, layout)
        inputs = own(engine, whole, layout)
        links = Links(engine)
        part = forward(program, *inputs[:3], links=links, layout=layout, causal=causal)
        handed = [links.bytes]
        result = dict(zip(right, (part.O, *backward(part, inputs[3])), strict=True))
        handed.append(links.bytes - handed[0])
        traffic[name] = engine.everyone_s((handed, model(program, part.share, engine.rank)))
        each = {
            X: {
                "float64": error(Y[[*SAMPLE]], right[X][:, rows]),
                "one GPU": error(Y, one[X][:, rows]),
            }
            for X, Y in result.items()
        }
        everyone = engine.everyone_s(each)
        errors[name] = {
            X: {of: max(one[X][of] for one in everyone) for of in each[X]} for X in each
        }
        parts[name] = part, inputs
    for n, direction in enumerate(("forward", "backward")):
        with contextlib.ExitStack() as within:
            calls, note = contestants(
                engine, mesh, whole, parts, causal, direction, (o, lse), within
            )
            ms = race(engine, calls, rounds)
            del calls
        kept = ("dQ", "dK", "dV") if n else ("O",)
        yield {
            "direction": direction,
            **sizes,
            "ms": ms,
            "bytes": {
                name: {"handed": [h[n] for h, _ in of], "model": [m[n] for _, m in of]}
                for name, of in traffic.items()
            },
            "errors": {name: {X: of[X] for X in kept} for name, of in errors.items()},
            **note,
        }
        torch.cuda.empty_cache()


def contestants(
    engine: Any,
    mesh: Any,
    whole: list[Any],
    parts: Any,
    causal: bool,
    direction: str,
    saved: Any,
    within: Any,
) -> tuple[Calls, dict[str, Any]]:
    """Return calls by name, and what is to be said of PyTorch's."""
    (q, k, v, do), (o, lse) = (X[None] for X in whole), saved
    run = {"forward": partial(gpu.forward, q, k, v, causal=causal, return_lse=True)}
    run["backward"] = partial(gpu.backward, q, k, v, o, lse, do, causal=causal)
    calls: Calls = {"one GPU": Captured(run[direction])}

    def ours(name: str, links: Any) -> Callable[[], Any]:
        part, inputs = parts[name]
        program = part.name
        layout = {"ring, striped": "striped", "ulysses": "contiguous"}.get(name, "zigzag")
        if direction == "forward":
            return partial(forward, program, *inputs[:3], links=links, layout=layout, causal=causal)
        return partial(backward, replace(part, links=links), inputs[3])

    for name in parts:
        calls[name] = Captured(ours(name, Links(engine)))
    calls["ring, no overlap"] = Captured(ours("ring", Links(engine, overlap=False)))
    calls["ring, no graph"] = ours("ring", Links(engine))
    calls["kernels alone"] = Captured(ours("ring", Silent(engine)))
    _, inputs = parts["ring"]
    calls["messages alone"] = Captured(partial(messages, Links(engine), inputs[1:3], direction))
    try:
        return calls, context_parallel(engine, mesh, whole, parts, causal, direction, within, calls)
    except Exception as error:  # a contestant that cannot do this must not end the run
        return calls, {"context_parallel": f"{type(error).__name__}: {error}"[:300]}


def messages(links: Links, inputs: list[Any], direction: str) -> None:
    """Send what the ring sends, one message after the other."""
    rounds = [(inputs, links.size - 1)]
    if direction == "backward":
        rounds.append(([X.float() for X in inputs], links.size))
    for sent, hops in rounds:
        here = [torch.empty_like(X) for X in sent]
        for _ in range(hops):
            right = (links.rank + 1) % links.size
            left = (links.rank - 1) % links.size
            links.wait(links.post([(X, right) for X in sent], [(X, left) for X in here]))


def context_parallel(
    engine: Any,
    mesh: Any,
    whole: list[Any],
    parts: Any,
    causal: bool,
    direction: str,
    within: Any,
    calls: Calls,
) -> dict[str, Any]:
    """Add PyTorch's calls, with cuDNN's kernels, on one GPU and over all, which it balances
    under a causal mask only.
    """
    if not causal:
        return {}
    from torch.distributed.tensor.experimental import context_parallel as over_all
    from torch.distributed.tensor.experimental._attention import set_rotate_method
    from torch.nn.attention import SDPBackend, sdpa_kernel

    alone = torch.nn.functional.scaled_dot_product_attention
    differs = {}
    within.enter_context(sdpa_kernel(SDPBackend.CUDNN_ATTENTION))
    q, k, v, do = (X[None] for X in whole)
    leaves = [X.detach().requires_grad_(direction == "backward") for X in (q, k, v)]
    o = alone(*leaves, is_causal=True)
    one = partial(alone, *leaves, is_causal=True)
    if direction == "backward":
        one = partial(torch.autograd.grad, o, leaves, do, retain_graph=True)
    calls["one GPU, PyTorch"] = one
    buffers = [X.clone() for X in (q, k, v, do)]
    within.enter_context(
        over_all(mesh, buffers=buffers, buffer_seq_dims=[2] * 4, no_restore_buffers={*buffers})
    )
    mine = [X.detach().clone().requires_grad_(direction == "backward") for X in buffers[:3]]
    gradient = buffers[3].clone()
    for method in ("allgather", "alltoall"):
        set_rotate_method(method)
        o = torch.nn.functional.scaled_dot_product_attention(*mine, is_causal=True)
        differs[method] = error(o[0].detach(), parts["ring"][0].O)

        def attend(method: str = method) -> Any:
            set_rotate_method(method)
            return torch.nn.functional.scaled_dot_product_attention(*mine, is_causal=True)

        def differentiate(method: str = method, o: Any = o) -> Any:
            set_rotate_method(method)
            return torch.autograd.grad(o, mine, gradient, retain_graph=True)

        calls[f"context_parallel, {method}"] = attend if direction == "forward" else differentiate
    return {
        "context_parallel's O against the ring's": max(
            max(each.values()) for each in engine.everyone_s(differs)
        )
    }


def race(engine: Any, calls: Calls, rounds: int) -> dict[str, list[float]]:
    """Return [median, least, most] over rounds of the ms of each call, of the GPU that took
    longest; all take turns.
    """
    ready, result = torch.zeros(1, device=engine.device), {name: list[float]() for name in calls}

    def turn(call: Callable[[], Any], launches: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        dist.all_reduce(ready)  # so that GPUs start together
        start.record()
        for _ in range(launches):
            call()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / launches

    for call in calls.values():
        turn(call, 2)
    launches = {}
    for name, call in calls.items():
        launches[name] = max(
            1, min(100, math.ceil(TURN_MS / max(engine.everyone_s(turn(call, 2)))))
        )
    for n in range(rounds):  # in another order each time: what came before warms a GPU
        for name in random.Random(n).sample(list(calls), len(calls)):
            result[name].append(turn(calls[name], launches[name]))
    everyone = engine.everyone_s(result)
    slowest = {
        name: [max(each) for each in zip(*(one[name] for one in everyone), strict=True)]
        for name in result
    }
    return {
        name: [round(f(ms), 5) for f in (statistics.median, min, max)]
        for name, ms in slowest.items()
    }


def counted(engine: Any, whole: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield, of each program, what NVLink's counters say was sent and received by each GPU, in
    bytes, and the model's.
    """
    for program, layout in (("ring", "zigzag"), ("ulysses", "contiguous")):
        inputs = own(engine, whole, layout)
        links = Links(engine)
        part = forward(program, *inputs[:3], links=links, layout=layout)
        both = model(program, part.share, engine.rank)
        for direction, modelled in zip(("forward", "backward"), both, strict=True):
            call: Any = partial(forward, program, *inputs[:3], links=links, layout=layout)
            call = Captured(call if direction == "forward" else partial(backward, part, inputs[3]))
            repeats = max(1, COUNTED // max(engine.everyone_s(modelled)))
            torch.cuda.synchronize()
            engine.everyone_s("ready")
            before = nvlink(engine)
            for _ in range(repeats):
                call()
            torch.cuda.synchronize()
            time.sleep(0.1)  # what the counters say comes late
            engine.everyone_s("done")
            text = [b - a for a, b in zip(before, nvlink(engine), strict=True)]
            each = engine.everyone_s((text, modelled * repeats))
            yield {
                "program": program,
                "direction": direction,
                "N": whole[0].shape[1],
                "repeats": repeats,
                "sent": [sent for (sent, _), _ in each],
                "received": [result for (_, result), _ in each],
                "model": [sent for _, sent in each],
            }


def nvlink(engine: Any) -> list[int]:
    """Return the bytes that this GPU has sent, and received, over all its links, by NVML."""
    pynvml = import_module("pynvml")
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(int(os.environ["LOCAL_RANK"]))
    result = []
    for field in (DATA_TX, DATA_RX):
        values = pynvml.nvmlDeviceGetFieldValues(handle, [(field, link) for link in range(NVLINKS)])
        result.append(1024 * sum(value.value.ullVal for value in values if value.nvmlReturn == 0))
    return result


def model(program: str, share: Any, rank: int) -> list[int]:
    """Return the bytes that a process sends forward and backward: 16 bits a word, but 32 of the
    ring's dK and dV.
    """
    if program == "ulysses":
        return [
            2 * theory.ulysses_words(share, rank),
            2 * theory.ulysses_kept_backward_words(share, rank),
        ]
    once, twice = (theory.ring_words(share, rank, passes) for passes in (1, 2))
    return [2 * once, 2 * once + 4 * (twice - once)]


def exact(q: Any, k: Any, v: Any, do: Any, causal: bool) -> list[Any]:
    """Return O, dQ, dK, dV of the sample's heads in float64."""
    result = []
    for head in SAMPLE:
        Q, K, V, dO = (X[head].double() for X in (q, k, v, do))
        O, dQ, dK, dV = (torch.zeros_like(X) for X in (Q, Q, K, V))
        for first in range(0, len(Q), 2048):
            rows = slice(first, min(first + 2048, len(Q)))
            keys = rows.stop if causal else len(Q)
            S = WIDTH**-0.5 * Q[rows] @ K[:keys].T
            if causal:
                S += torch.full_like(S, -math.inf).triu(first + 1)
            P = S.softmax(1)
            dP = dO[rows] @ V[:keys].T
            dS = WIDTH**-0.5 * P * (dP - (P * dP).sum(1, keepdim=True))
            O[rows], dQ[rows] = P @ V[:keys], dS @ K[:keys]
            dK[:keys] += dS.T @ Q[rows]
            dV[:keys] += P.T @ dO[rows]
        result.append((O, dQ, dK, dV))
    return [torch.stack(each) for each in zip(*result, strict=True)]


def error(result: Any, right: Any) -> float:
    """Return ‖found − right‖ / ‖right‖."""
    return float((result.double() - right.double()).norm() / right.double().norm())


if __name__ == "__main__":
    run_script(main)

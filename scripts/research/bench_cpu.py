"""Benchmark the simulator on one CPU thread, in ratios within one run: absolute times do not
travel, ratios mostly do.

    # a table on stdout, every raw number in a file
    python scripts/research/bench_cpu.py --json figures/bench_cpu.json
    # small sizes, to try it; the targets are not for these
    python scripts/research/bench_cpu.py --quick

* `flashsim.forward`, counting, against textbook attention in NumPy: time and peak memory. The
  textbook forms N × N matrices. By default malloc gives them back to the operating system, and
  every call pays for fresh pages: how much varies several-fold from call to call on a virtual
  machine. So time is measured twice: with malloc told to keep freed memory ("warm pages", the ratio
  to trust), and as NumPy runs by default ("fresh pages").
* `flashsim.count`, which does no arithmetic: its time.
* `flashsim.forward` against FlashAttention kernels run without their accelerator: two that ship
  with JAX, and one in Triton, below. Each is checked against the textbook before it is timed, and
  skipped where its package is missing.

Contestants take turns (A B A B …) in one fresh process per comparison, pinned to one CPU, with
BLAS, XLA and torch on one thread. The first call, with its compilation and first page faults, is
reported apart; times are medians of the others, with quartiles. Peak memory is a process's
high-water mark (VmHWM, on Linux; unlike ru_maxrss it does not start from the parent's), less that
of a process that only imports and makes the inputs.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import math
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text
from threadpoolctl import threadpool_info, threadpool_limits

import flashsim
from flashsim.support.entry import run_script
from flashsim.support.files import write_whole

if TYPE_CHECKING:
    import triton.language as tl  # at run time `triton_interpreter` imports it

Array = NDArray[Any]
Call = Callable[[], Any]
Record = dict[str, Any]
# ours and theirs in words, and the value that a target is about
Reader = Callable[[Record], tuple[str, str, float]]

# NPROC: XLA
ONE_THREAD = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "NPROC"), "1"
)
ONE_THREAD["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
ON_CPU = {"JAX_PLATFORMS": "cpu", "TRITON_INTERPRET": "1"}
KEEP_FREED = {
    "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1000000000000:glibc.malloc.trim_threshold=1000000000000"  # noqa: E501
}
TOLERANCE = 1e-5  # what a peer may differ by from the textbook, in float64, on Gaussian inputs
progress = Console(stderr=True)


@dataclass(frozen=True)
class Sizes:
    """The problems, and how often each is timed after the first call."""

    N: int
    backward_N: int
    peer_N: int
    rounds: int
    d: int = 64
    M: int = 51_200


FULL = Sizes(N=8192, backward_N=4096, peer_N=1024, rounds=15)
QUICK = Sizes(N=2048, backward_N=1024, peer_N=256, rounds=3)


def naive(Q: Array, K: Array, V: Array) -> Array:
    """Textbook attention."""
    S = Q @ K.T * Q.dtype.type(1 / math.sqrt(Q.shape[1]))
    P: Array = np.exp(S - S.max(axis=1, keepdims=True))
    P /= P.sum(axis=1, keepdims=True)
    return P @ V


def naive_backward(Q: Array, K: Array, V: Array, P: Array, dO: Array) -> Array:
    """Textbook gradients, given P from the forward pass; returns dQ, dK, dV side by side."""
    tau = Q.dtype.type(1 / math.sqrt(Q.shape[1]))
    dV = P.T @ dO
    dP = dO @ V.T
    dS = P * (dP - (P * dP).sum(axis=1, keepdims=True))
    return np.hstack([tau * (dS @ K), tau * (dS.T @ Q), dV])


def inputs(N: int, d: int) -> tuple[Array, Array, Array]:
    """Gaussian Q, K, V (N, d)."""
    rng = np.random.default_rng(0)
    Q, K, V = (rng.standard_normal((N, d), dtype=np.float32) for _ in range(3))
    return Q, K, V


def simulate(Q: Array, K: Array, V: Array, M: int | None) -> Array:
    """Run the simulator, counting; return O."""
    O: Array = flashsim.forward("flash_basic", Q, K, V, M=M, sizing="paper").O
    return O


def pallas_lowered(Q: Array, K: Array, V: Array) -> Call:
    """JAX's Pallas kernel for GPUs, `interpret=True`: jitted, so XLA compiles the kernel's steps
    for the CPU.
    """
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.gpu.attention import BlockSizes, mha

    q, k, v = (jnp.asarray(a)[None, :, None, :] for a in (Q, K, V))
    blocks, scale = BlockSizes(block_q=64, block_k=64), 1 / math.sqrt(Q.shape[1])
    return lambda: np.asarray(
        mha(q, k, v, None, sm_scale=scale, block_sizes=blocks, interpret=True)
    )[0, :, 0]


def pallas_tpu(Q: Array, K: Array, V: Array) -> Call:
    """JAX's Pallas kernel for TPUs in its TPU interpreter, which simulates the TPU's memories
    and copies.
    """
    import jax.numpy as jnp
    from jax.experimental.pallas import tpu
    from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, flash_attention

    q, k, v = (jnp.asarray(a)[None, None] for a in (Q, K, V))
    # 128 is the least it takes
    blocks = BlockSizes(block_q=128, block_k_major=128, block_k=128, block_b=1)
    scale = 1 / math.sqrt(Q.shape[1])

    def call() -> Any:
        with tpu.force_tpu_interpret_mode():
            return np.asarray(flash_attention(q, k, v, sm_scale=scale, block_sizes=blocks))[0, 0]

    return call


def triton_kernel(
    Q: Any,
    K: Any,
    V: Any,
    O: Any,
    scale: Any,
    N: Any,
    d: tl.constexpr,
    B_r: tl.constexpr,
    B_c: tl.constexpr,
) -> None:
    """FlashAttention's forward in Triton: one program per block of B_r queries."""
    i = tl.program_id(0) * B_r + tl.arange(0, B_r)
    cols = tl.arange(0, d)
    q = tl.load(Q + i[:, None] * d + cols[None, :]) * scale
    m = tl.full((B_r,), float("-inf"), tl.float32)
    l = tl.zeros((B_r,), tl.float32)
    o = tl.zeros((B_r, d), tl.float32)
    for start in range(0, N, B_c):
        j = start + tl.arange(0, B_c)
        k = tl.load(K + j[:, None] * d + cols[None, :])
        v = tl.load(V + j[:, None] * d + cols[None, :])
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - m_new[:, None])
        shrink = tl.exp(m - m_new)
        l = shrink * l + tl.sum(p, 1)
        o = shrink[:, None] * o + tl.dot(p, v, input_precision="ieee")
        m = m_new
    tl.store(O + i[:, None] * d + cols[None, :], o / l[:, None])


def triton_interpreter(Q: Array, K: Array, V: Array) -> Call:
    """A FlashAttention forward in Triton, in Triton's interpreter (TRITON_INTERPRET=1)."""
    # the kernel's own name for it: importing Triton here leaves the other comparisons without it
    global tl
    import torch
    import triton
    import triton.language as tl

    torch.set_num_threads(1)
    kernel = triton.jit(triton_kernel)
    q, k, v = (torch.from_numpy(a) for a in (Q, K, V))
    o = torch.empty_like(q)
    N, d = Q.shape
    run = kernel[(N // 64,)]
    return lambda: run(q, k, v, o, 1 / math.sqrt(d), N, d=d, B_r=64, B_c=64) or o.numpy()


PEERS: dict[str, tuple[str, Callable[[Array, Array, Array], Call]]] = {
    "pallas_lowered": (
        "JAX Pallas GPU kernel, interpret=True (which XLA compiles), blocks 64×64",
        pallas_lowered,
    ),
    "pallas_tpu": ("JAX Pallas TPU kernel in the TPU interpreter, blocks 128×128", pallas_tpu),
    "triton": ("Triton kernel, TRITON_INTERPRET=1, blocks 64×64", triton_interpreter),
}


def take_turns(contestants: dict[str, Call], rounds: int, reference: Call | None = None) -> Record:
    """Call each contestant once, check the results, then time them in turn, `rounds` times.

    Returns each one's timing, with how far its first result lies from the reference; ValueError
    where that is too far.
    """
    first = {name: timed(call) for name, call in contestants.items()}
    record: Record = {name: {"first_s": duration} for name, (duration, _) in first.items()}
    if reference is not None:
        expected = reference()
        for name, (_, result) in first.items():
            difference = float(np.abs(result - expected).max())
            if not difference < TOLERANCE:
                raise ValueError(f"{name} is off by {difference:.2g} from textbook attention")
            record[name]["difference"] = difference
    turns = [{name: timed(call)[0] for name, call in contestants.items()} for _ in range(rounds)]
    for name, timing in record.items():
        timing["calls_s"] = [turn[name] for turn in turns]
        low, timing["median_s"], high = statistics.quantiles(
            timing["calls_s"], n=4, method="inclusive"
        )
        timing["quartiles_s"] = [low, high]
    return record


def timed(call: Call) -> tuple[float, Any]:
    """Return the seconds that a call takes, and its result."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def work_time(sizes: Sizes, _: str) -> Record:
    """Time the simulator against the textbook."""
    Q, K, V = inputs(sizes.N, sizes.d)
    contestants = {
        "simulator": lambda: simulate(Q, K, V, sizes.M),
        "theirs": lambda: naive(Q, K, V),
    }
    return take_turns(contestants, sizes.rounds, reference=lambda: naive(Q, K, V))


def work_backward(sizes: Sizes, _: str) -> Record:
    """Time the simulator's backward pass (Algorithm 4) against the textbook's, each given what
    its forward pass keeps.
    """
    Q, K, V = inputs(sizes.backward_N, sizes.d)
    dO = np.random.default_rng(1).standard_normal(V.shape, dtype=np.float32)
    run = flashsim.forward("flash", Q, K, V, M=sizes.M, sizing="paper")
    S = Q @ K.T * Q.dtype.type(run.problem.scale)
    P = np.exp(S - S.max(axis=1, keepdims=True))
    P /= P.sum(axis=1, keepdims=True)

    def simulated() -> Array:
        result = flashsim.backward("flash", run, dO)
        return np.hstack([result.dQ, result.dK, result.dV])

    contestants = {"simulator": simulated, "theirs": lambda: naive_backward(Q, K, V, P, dO)}
    return take_turns(contestants, sizes.rounds, reference=lambda: naive_backward(Q, K, V, P, dO))


def work_memory(sizes: Sizes, what: str) -> Record:
    """Return the high-water mark of a process that makes the inputs and then runs the simulator,
    naive, or nothing.
    """
    arrays = inputs(sizes.N, sizes.d)
    if what == "theirs":
        naive(*arrays)
    elif what == "simulator":
        simulate(*arrays, sizes.M)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return {
        "peak_kib": next(
            int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")
        )
    }


def work_count(sizes: Sizes, _: str) -> Record:
    """Time counting alone."""
    return take_turns(
        {"simulator": lambda: flashsim.count("flash_basic", N=2**20, d=128, sizing="paper")},
        rounds=100,
    )


def work_peer(sizes: Sizes, name: str) -> Record:
    """Time the simulator against a peer, if that is installed."""
    Q, K, V = inputs(sizes.peer_N, sizes.d)
    try:
        peer = PEERS[name][1](Q, K, V)
    except ModuleNotFoundError as missing:
        return {"unmeasured": f"not installed ({missing.name})"}
    exact = (a.astype(np.float64) for a in (Q, K, V))
    contestants = {"simulator": lambda: simulate(Q, K, V, None), "theirs": peer}
    return take_turns(contestants, sizes.rounds, reference=lambda: naive(*exact))


WORK = {
    "time": work_time,
    "backward": work_backward,
    "memory": work_memory,
    "count": work_count,
    "peer": work_peer,
}


def in_fresh_process(
    job: str, what: str, quick: bool, environment: dict[str, str] | None = None
) -> Record:
    """Run one worker by itself, on one thread; return what it measured, or {"unmeasured": why}."""
    progress.print(f"[dim]{job} {what} …[/dim]")
    command = [sys.executable, __file__, "--worker", job, what, *(["--quick"] if quick else [])]
    settings = os.environ | ONE_THREAD | ON_CPU | (environment or {})
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {
            "unmeasured": "failed: "
            + (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        }
    record: Record = json.loads(done.stdout.splitlines()[-1])
    return record


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    problem: str
    ours: str
    theirs: str
    value: float | None  # what the target is about; None where it was not measured
    target: str
    verdict: str


def judge(
    what: str, problem: str, record: Record, read: Reader, *, most: float = 0, least: float = 0
) -> Row:
    """Read the record and judge it by one of the two bounds, unless there was nothing to
    measure.
    """
    target = f"≥ {least:g}" if least else f"≤ {most:g}"
    if "unmeasured" in record:
        return Row(what, problem, "", "", None, target, record["unmeasured"])
    ours, theirs, value = read(record)
    meets = value >= least if least else value <= most
    return Row(what, problem, ours, theirs, value, target, "meets target" if meets else "misses")


def spell(timing: Record) -> str:
    """Return a timing in words: median (quartiles), first."""
    times = (timing["median_s"], *timing["quartiles_s"], timing["first_s"])
    median, low, high, first = (
        np.format_float_positional(t * 1e3, 3, fractional=False, trim="-") for t in times
    )
    return f"{median} ms ({low}–{high})\nfirst {first} ms"


def seconds(record: Record) -> tuple[str, str, float]:
    """Our time."""
    return spell(record["simulator"]), "", record["simulator"]["median_s"]


def slowdown(record: Record) -> tuple[str, str, float]:
    """Our time by theirs."""
    ours = record["simulator"]
    theirs = record["theirs"]
    return spell(ours), spell(theirs), ours["median_s"] / theirs["median_s"]


def speedup(record: Record) -> tuple[str, str, float]:
    """Their time by ours."""
    ours, theirs, ratio = slowdown(record)
    return ours, theirs, 1 / ratio


def memory(record: Record) -> tuple[str, str, float]:
    """Our peak memory above the inputs', by theirs."""
    ours, theirs = (
        record[name]["peak_kib"] - record["inputs"]["peak_kib"] for name in ("simulator", "theirs")
    )
    return f"{ours / 1024:.1f} MiB", f"{theirs / 1024:.1f} MiB", ours / theirs


def measure(sizes: Sizes, quick: bool) -> tuple[list[Row], dict[str, Record]]:
    """Run every worker; return the table's rows and the raw numbers."""
    warm = in_fresh_process("time", "warm pages", quick, KEEP_FREED)
    fresh = in_fresh_process("time", "fresh pages", quick)
    gradients = in_fresh_process("backward", "warm pages", quick, KEEP_FREED)
    peaks = {
        what: in_fresh_process("memory", what, quick) for what in ("inputs", "simulator", "theirs")
    }
    peaks = next((peak for peak in peaks.values() if "unmeasured" in peak), peaks)
    counting = in_fresh_process("count", "", quick)
    peers = {name: in_fresh_process("peer", name, quick) for name in PEERS}

    large = describe(sizes.N, sizes.d, sizes.M)
    small = describe(sizes.peer_N, sizes.d, None)
    backward = describe(sizes.backward_N, sizes.d, sizes.M)
    rows = [
        judge("time ÷ naive NumPy's, warm pages", large, warm, slowdown, most=1.5),
        judge("time ÷ naive NumPy's, fresh pages", large, fresh, slowdown, most=1.5),
        judge("peak memory ÷ naive NumPy's", large, peaks, memory, most=0.1),
        judge("backward: time ÷ naive NumPy's, warm pages", backward, gradients, slowdown, most=2),
        judge("count: seconds", describe(2**20, 128, None), counting, seconds, most=0.2),
    ]
    rows += [
        judge(f"speed-up over {PEERS[name][0]}", small, peers[name], speedup, least=30)
        for name in PEERS
    ]
    measured = {
        "time_warm_pages": warm,
        "time_fresh_pages": fresh,
        "backward_warm_pages": gradients,
    }
    return rows, measured | {"memory": peaks, "count": counting} | peers


def describe(N: int, d: int, M: int | None) -> str:
    """Return the simulator's problem in words."""
    tally = flashsim.count("flash_basic", N=N, d=d, M=M, sizing="paper")
    return f"N={N}, d={d}\nM={tally.sram.capacity}\nB_r={tally.blocks.B_r}, B_c={tally.blocks.B_c}"


def table(rows: list[Row], quick: bool) -> Table:
    """Return the rows as a table."""
    caption = "Times: median (quartiles) of the calls after the first. Ratios are of medians."
    caption += " Targets are for the full sizes, not for these." if quick else ""
    made = Table(title="flashsim in float32 on one CPU thread", caption=caption, show_lines=True)
    for heading in ("what", "problem", "flashsim", "theirs", "value", "target", "verdict"):
        made.add_column(heading, justify="right" if heading in ("value", "target") else "left")
    for r in rows:
        value = "" if r.value is None else f"{r.value:.3g}"
        colour = {"meets target": "green", "misses": "red"}.get(r.verdict, "yellow")
        made.add_row(r.what, r.problem, r.ours, r.theirs, value, r.target, Text(r.verdict, colour))
    return made


def surroundings() -> Record:
    """Return what the numbers depend on: machine, versions, date, command."""
    versions = {"python": platform.python_version()}
    for package in ("flashsim", "numpy", "jax", "jaxlib", "torch", "triton"):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    cpuinfo = (
        Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    )
    model = re.search(r"model name\s*: (.*)", cpuinfo)
    return {
        "command": shlex.join(["python", "scripts/research/bench_cpu.py", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": (
            f"{model[1] if model else platform.processor()}, {os.cpu_count()} CPUs, "
            f"{platform.platform()}"
        ),
        "versions": versions,
        "blas": [
            f"{pool['internal_api']} {pool['version']} ({pool.get('architecture')})"
            for pool in threadpool_info()
        ],
        "environment": {"all": ONE_THREAD | ON_CPU, "time_warm_pages": KEEP_FREED},
    }


def parse_arguments() -> argparse.Namespace:
    """Return the command line; the help text says what each option does."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every raw number here")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Print the table, or, as a worker, one record."""
    args = parse_arguments()
    sizes = QUICK if args.quick else FULL
    if args.worker:
        job, what = args.worker
        with threadpool_limits(1):
            print(json.dumps(WORK[job](sizes, what)))
        return
    if hasattr(os, "sched_setaffinity"):  # the workers inherit it
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rows, raw = measure(sizes, args.quick)
    Console(width=None if sys.stdout.isatty() else 130).print(table(rows, args.quick))
    if args.json:
        record = surroundings() | {
            "sizes": asdict(sizes),
            "rows": [asdict(r) for r in rows],
            "measured": raw,
        }
        write_whole(args.json, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
        progress.print(f"wrote {args.json}")


if __name__ == "__main__":
    run_script(main)

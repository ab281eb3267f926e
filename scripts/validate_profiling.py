"""Lay what `flashsim.profiling` counts beside the machine: bytes that kernels move between L2
and SMs, by a GPU's counters, beside the sectors that an interpreter shows: Triton's of the example,
and JAX's Pallas kernel for GPUs, `jax.experimental.pallas.ops.gpu.attention.mha`.

# on a machine with a GPU, Triton and ncu: the counters alone
python scripts/validate_profiling.py --counters counters.json
# where Triton's interpreter runs, with a GPU or without: figures/validate_profiling.json
python scripts/validate_profiling.py --beside counters.json
"""

import argparse
import datetime
import json
import math
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flashsim.attention.problem import Problem
from flashsim.gpu.machine import machine
from flashsim.gpu.profiling import profiled, run_marked
from flashsim.profiling import count_attention
from flashsim.support.entry import run_script
from flashsim.support.files import check_target, write_whole
from flashsim.support.tables import print_table

MEASURE = "--measure"


@dataclass(frozen=True)
class Case:
    """One call of attention."""

    kernel: str
    direction: str
    N: int
    d: int
    heads: int
    causal: bool
    B_r: int
    B_c: int


CASES = (
    Case("triton", "forward", 1024, 64, 4, False, 64, 64),
    Case("triton", "forward", 1024, 64, 4, True, 64, 64),
    Case("triton", "forward", 1000, 64, 4, True, 128, 32),
    Case("triton", "forward", 512, 128, 8, False, 64, 32),
    Case("triton", "backward", 512, 64, 4, False, 64, 64),
    Case("triton", "backward", 512, 64, 4, True, 32, 64),
    Case("pallas", "forward", 512, 64, 4, False, 64, 64),
    Case("pallas", "forward", 512, 64, 4, True, 64, 64),
)


def main() -> int:
    """Count and measure every case, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(MEASURE, action="store_true", help="run every case once, for ncu")
    parser.add_argument("--counters", type=Path, help="where to write the GPU's counters")
    parser.add_argument("--beside", type=Path, help="the counters, to be laid beside the counts")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("figures/validate_profiling.json")
    )
    options = parser.parse_args()
    if options.measure:
        run_marked([_call(case) for case in CASES])
    elif options.counters:
        _write_counters(options.counters)
    elif options.beside:
        _write_comparison(options.beside, options.output)
    else:
        parser.error("expected --counters FILE or --beside FILE")
    return 0


def _write_counters(target: Path) -> None:
    import triton

    check_target(target)
    rows = profiled("scripts.validate_profiling", MEASURE)
    record = {
        "command": shlex.join(["python", "scripts/validate_profiling.py", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {**machine(), "triton": triton.__version__, "jax": version("jax")},
        "rows": rows,
    }
    write_whole(target, json.dumps(record, indent=1) + "\n")


def _write_comparison(counters: Path, target: Path) -> None:
    import triton

    check_target(target)
    measured = json.loads(counters.read_text(encoding="utf-8"))
    rows = []
    for case, row in zip(CASES, measured.pop("rows"), strict=True):
        print(case, file=sys.stderr, flush=True)
        rows.append({**asdict(case), **_counted(case), **row})
    record = {
        "command": shlex.join(["python", "scripts/validate_profiling.py", *sys.argv[1:]]),
        "triton": triton.__version__,
        "jax": version("jax"),
        "measured": measured,
        "rows": rows,
    }
    write_whole(target, json.dumps(record, indent=1) + "\n")
    _print(rows)


def _call(case: Case) -> Callable[[], Any]:
    """Return the call on the GPU that is measured; its kernels are compiled before."""
    if case.kernel == "pallas":
        return _pallas_call(case)
    import torch

    from flashsim.profiling.triton_example import attention

    shape = (1, case.heads, case.N, case.d)
    operands = [torch.randn(shape, dtype=torch.float16, device="cuda") for _ in range(3)]
    forward = partial(attention, causal=case.causal, B_r=case.B_r, B_c=case.B_c)
    if case.direction == "forward":
        forward(*operands)
        torch.cuda.synchronize()
        return partial(forward, *operands)
    for operand in operands:
        operand.requires_grad_()
    output = forward(*operands)
    gradient = torch.randn_like(output)
    backward = partial(torch.autograd.grad, output, operands, gradient, retain_graph=True)
    backward()
    torch.cuda.synchronize()
    return backward


def _pallas_call(case: Case) -> Callable[[], Any]:
    import jax

    shape = (1, case.N, case.heads, case.d)
    keys = jax.random.split(jax.random.key(0), 3)
    operands = [jax.random.normal(key, shape, "float16") for key in keys]
    compiled = jax.jit(partial(_mha(case), causal=case.causal))
    compiled(*operands).block_until_ready()
    return lambda: compiled(*operands).block_until_ready()


def _mha(case: Case) -> Callable[..., Any]:
    from jax.experimental.pallas.ops.gpu.attention import BlockSizes, mha

    sizes = BlockSizes(case.B_r, case.B_c, case.B_r, case.B_c, case.B_r, case.B_c)

    def attention(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
        scale = 1 / math.sqrt(case.d)
        return mha(q, k, v, None, sm_scale=scale, causal=causal, block_sizes=sizes)

    return attention


def _counted(case: Case) -> dict[str, int]:
    """Return the bytes that an interpreter shows for the case."""
    problem = Problem.of(N=case.N, d=case.d, heads=case.heads, causal=case.causal, dtype="float16")
    if case.kernel == "pallas":
        profile = count_attention(_mha(case), problem, layout="BNHD", library="jax")
    else:
        from flashsim.profiling.triton_example import attention

        profile = count_attention(
            attention, problem, direction=case.direction, B_r=case.B_r, B_c=case.B_c
        )
    reads = 0
    writes = 0
    for line in profile.lines:
        if line.kind == "read":
            reads += line.sectors * 32
        else:
            writes += line.sectors * 32
    return {"sector_bytes_read": reads, "sector_bytes_written": writes}


def _print(rows: list[dict[str, Any]]) -> None:
    table = []
    for row in rows:
        sizes = f"N={row['N']} d={row['d']} {row['B_r']}×{row['B_c']}"
        name = f"{row['kernel']} {row['direction']} {sizes}"
        if row["causal"]:
            name += " causal"
        reads = row["l2_reads"] / row["sector_bytes_read"]
        writes = row["l2_writes"] / row["sector_bytes_written"]
        table.append((name, row["sector_bytes_read"], f"{reads:.4f}", f"{writes:.4f}"))
    headings = ("case", "bytes read, counted", "measured ÷ counted, reads", "writes")
    print_table(headings, table)


if __name__ == "__main__":
    run_script(main)

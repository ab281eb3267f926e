"""Count attention kernels of libraries, and write the table of docs/profiling.md:
figures/profile_kernels.json.

# with PyTorch, Triton, fla-core and JAX 0.10, on a CPU
python scripts/profile_kernels.py
"""

import argparse
import json
import math
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flashsim.attention.problem import Problem
from flashsim.profiling import Profile, count_attention
from flashsim.support.entry import run_script
from flashsim.support.files import check_target, write_whole

N = 512
HEADS = 2
PAGE = Path("docs/profiling.md")
BEGIN = "<!-- table of kernels -->\n"
END = "<!-- end of table of kernels -->\n"


@dataclass(frozen=True)
class Case:
    """A kernel of a library, and how it is called.

    make  returns its attention of q, k, v and causal
    d     the width of a head that it is counted at
    """

    package: str
    name: str
    make: Callable[[], Callable[..., Any]]
    d: int
    causal: bool
    library: str
    layout: str = "BHND"


def eager() -> Callable[..., Any]:
    """Naive attention in PyTorch."""
    import torch

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return torch.softmax(scores, -1) @ v

    return attention


def example() -> Callable[..., Any]:
    """flashsim's example in Triton."""
    from flashsim.profiling.triton_example import attention

    return attention


def fla() -> Callable[..., Any]:
    """fla-core's causal attention in Triton."""
    from fla.ops.attn.parallel import parallel_attn

    def attention(q: Any, k: Any, v: Any, causal: bool = True) -> Any:
        assert causal
        return parallel_attn(q, k, v)

    return attention


def jax_tpu_flash() -> Callable[..., Any]:
    """JAX's flash attention for TPUs, in blocks of 128."""
    from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, flash_attention

    sizes = BlockSizes(128, 128, 128, 1)

    def attention(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
        scale = 1 / math.sqrt(q.shape[-1])
        return flash_attention(q, k, v, causal=causal, sm_scale=scale, block_sizes=sizes)

    return attention


def jax_splash() -> Callable[..., Any]:
    """JAX's splash attention for TPUs, which is causal by a mask that it is made with."""
    import jax
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel,
        splash_attention_mask,
    )

    mask = splash_attention_mask.MultiHeadMask(
        [splash_attention_mask.CausalMask((N, N)) for _ in range(HEADS)]
    )
    sizes = splash_attention_kernel.BlockSizes(block_q=128, block_kv=128, block_kv_compute=128)

    def attention(q: Any, k: Any, v: Any, causal: bool = True, scale: float = 1.0) -> Any:
        assert causal
        assert scale == 1  # it has none of its own
        kernel = splash_attention_kernel.make_splash_mha(
            mask, block_sizes=sizes, head_shards=1, q_seq_shards=1
        )
        return jax.vmap(kernel)(q, k, v)

    return attention


def jax_gpu_mha() -> Callable[..., Any]:
    """JAX's attention for GPUs, through Triton."""
    from jax.experimental.pallas.ops.gpu.attention import BlockSizes, mha

    sizes = BlockSizes(64, 64, 64, 64, 64, 64)

    def attention(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
        scale = 1 / math.sqrt(q.shape[-1])
        return mha(q, k, v, None, sm_scale=scale, causal=causal, block_sizes=sizes)

    return attention


CASES = (
    Case("torch", "naive attention, operator by operator", eager, 64, False, "torch"),
    Case("flashsim", "the example in Triton", example, 64, False, "torch"),
    Case("flashsim", "the example in Triton", example, 64, True, "torch"),
    Case("fla-core", "`parallel_attn`, Triton", fla, 16, True, "torch", "BNHD"),
    Case("jax", "`flash_attention` for TPUs, Pallas", jax_tpu_flash, 128, False, "jax"),
    Case("jax", "`flash_attention` for TPUs, Pallas", jax_tpu_flash, 128, True, "jax"),
    Case("jax", "`splash_attention` for TPUs, Pallas", jax_splash, 128, True, "jax"),
    Case("jax", "`mha` for GPUs, Pallas", jax_gpu_mha, 64, False, "jax", "BNHD"),
    Case("jax", "`mha` for GPUs, Pallas", jax_gpu_mha, 64, True, "jax", "BNHD"),
)


def main() -> int:
    """Count every case, and write the record and the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("figures/profile_kernels.json"))
    options = parser.parse_args()
    check_target(options.output)
    rows = []
    for case in CASES:
        print(f"{case.package} {case.name}", file=sys.stderr, flush=True)
        problem = Problem.of(N=N, d=case.d, heads=HEADS, causal=case.causal)
        profile = count_attention(case.make(), problem, layout=case.layout, library=case.library)
        rows.append(row(case, profile))
    record = {
        "command": shlex.join(["python", "scripts/profile_kernels.py", *sys.argv[1:]]),
        "triton": version("triton"),
        "N": N,
        "heads": HEADS,
        "rows": rows,
    }
    write_whole(options.output, json.dumps(record, indent=1) + "\n")
    write_table(rows)
    return 0


def row(case: Case, profile: Profile) -> dict[str, Any]:
    """Return what the table says of one kernel."""
    program = profile.nearest
    assert program is not None
    assert profile.difference is not None
    accesses = sum(profile.by_array[name].accesses for name in program.by_array)
    waste: dict[str, list[str]] = {}
    for finding in profile.findings:
        arrays = waste.setdefault(finding.kind, [])
        if finding.array not in arrays:
            arrays.append(finding.array)
    return {
        "package": case.package,
        "version": version(case.package),
        "name": case.name,
        "d": case.d,
        "causal": case.causal,
        "blocks": program.blocks,
        "algorithm": program.algorithm,
        "accesses": profile.hbm.accesses,
        "over_closed_form": accesses / program.accesses,
        "over_fewest": profile.over_bound(),
        "is_attention": not profile.difference.is_wrong,
        "findings": waste,
    }


def write_table(rows: list[dict[str, Any]]) -> None:
    """Write the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    write_whole(PAGE, before + BEGIN + table(rows) + END + after)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a table in Markdown."""
    lines = [
        "| kernel | d | blocks | Q, K, V, O ÷ closed form | all ÷ fewest | findings |",
        "|---|--:|---|--:|--:|---|",
    ]
    for each in rows:
        name = f"{each['package']} {each['version']}: {each['name']}"
        if each["package"] == "flashsim":
            name = each["name"]
        if each["causal"]:
            name += ", causal"
        blocks = "–"
        if each["blocks"] is not None:
            blocks = " × ".join(map(str, each["blocks"]))
        ratio = f"{each['over_closed_form']:.3f} of `{each['algorithm']}`"
        findings = "; ".join(
            f"{kind}: {', '.join(arrays)}" for kind, arrays in each["findings"].items()
        )
        cells = (name, each["d"], blocks, ratio, f"{each['over_fewest']:.2f}", findings or "–")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run_script(main)

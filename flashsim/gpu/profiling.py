"""The hardware's own counters: a program runs under Nsight Compute, and counts between two
marker kernels are added.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flashsim.gpu.compiling import MissingGPU, import_cupy

METRICS = {
    "dram_reads": "dram__bytes_read.sum",
    "dram_writes": "dram__bytes_write.sum",
    "l2_reads": "l1tex__m_xbar2l1tex_read_bytes.sum",
    "l2_writes": "l1tex__m_l1tex2xbar_write_bytes.sum",
}
BEGIN = "flashsim_begin"
END = "flashsim_end"
UNITS = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


def profiled(module: str, *arguments: str) -> list[dict[str, float]]:
    """Run `python -m module`, which must call `run_marked`, under ncu. Return each call's METRICS,
    summed over its kernels.

    Caches are flushed before every kernel; clocks are not fixed. Raises MissingGPU if ncu is
    missing or fails.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        raise MissingGPU("Nsight Compute's ncu is not on the PATH; it comes with the CUDA toolkit")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "counters.csv"
        command = [
            ncu,
            "--clock-control",
            "none",
            "--metrics",
            ",".join(METRICS.values()),
            "--csv",
            "--page",
            "raw",
            "--log-file",
            str(log),
            sys.executable,
            "-m",
            module,
            *arguments,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MissingGPU(
                f"ncu ended with {done.returncode}: {(done.stderr or done.stdout)[-800:]}"
            )
        return parse(log.read_text(encoding="utf-8"))


def run_marked(calls: Iterable[Callable[[], Any]]) -> None:
    """Run each call once, between two marker kernels, for ncu."""
    cupy = import_cupy()
    begin, end = (
        cupy.ElementwiseKernel("float32 x", "float32 y", "y = x", name) for name in (BEGIN, END)
    )
    one = cupy.zeros(1, "float32")
    for call in calls:
        begin(one)
        call()
        end(one)
        cupy.cuda.runtime.deviceSynchronize()


def parse(text: str) -> list[dict[str, float]]:
    """Return each pass's counters from ncu's raw CSV, added over the kernels between its two
    markers.
    """
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith('"ID"'))
    names, units, *rows = list(csv.reader(lines[start:]))
    counters: list[dict[str, float]] = []
    inside = False
    for row in rows:
        kernel = dict(zip(names, row, strict=False))
        if BEGIN in kernel["Kernel Name"]:
            counters.append(dict.fromkeys(METRICS, 0.0))
            inside = True
        elif END in kernel["Kernel Name"]:
            inside = False
        elif inside:
            for key, metric in METRICS.items():
                unit = UNITS[dict(zip(names, units, strict=False))[metric]]
                counters[-1][key] += float(kernel[metric].replace(",", "")) * unit
    return counters

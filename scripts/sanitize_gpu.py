"""Run small launches of each kernel on Hopper under compute-sanitizer and keep what it found:
figures/gpu_sanitizer.json.

# on a machine with a GPU and compute-sanitizer
python scripts/sanitize_gpu.py --commit "$(git rev-parse HEAD)"

memcheck sees accesses out of bounds, initcheck reads of what nobody has written, both in HBM.
racecheck follows accesses to shared memory, and who arrives at an mbarrier, but does not see that a
warp's lanes have met before one of them arrives for all. Of what it reports nvdisasm says which
instructions it was: UBLKCP is a bulk copy, LDS and STS are a thread's own load and store.
SANITIZER_LOG=FOLDER keeps all that the tools said.
"""

import argparse
import datetime
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import flashsim
from flashsim import gpu
from flashsim.gpu import hopper
from flashsim.gpu.compiling import MissingGPU, cache_folder, import_cupy
from flashsim.gpu.machine import machine
from flashsim.support.entry import run_script
from flashsim.support.files import write_whole

TOOLS: dict[str, tuple[str, ...]] = {
    "memcheck": (),
    "initcheck": (),
    "racecheck": ("--racecheck-report", "analysis", "--demangle", "no"),
    "synccheck": (),
}
LIMIT = 300  # seconds a tool
PARTS = 8  # processes that compile
CODE = "import scripts.sanitize_gpu as own; own.launch_all({})"


def main() -> int:
    """Run every tool, print and write the record; return 1 if one found something or could not
    run.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commit", required=True, help="of the sources that are tested")
    parser.add_argument(
        "--only", choices=TOOLS, nargs="+", default=list(TOOLS), help="tools. Default: all"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("figures/gpu_sanitizer.json"))
    options = parser.parse_args()
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        raise MissingGPU("compute-sanitizer is not on the PATH; it comes with the CUDA toolkit")
    result = {}
    with tempfile.TemporaryDirectory(prefix="flashsim-") as folder:
        os.environ["FLASHSIM_CACHE"] = folder  # of cubins, which are to be those that are watched
        # to compile
        parts = [
            subprocess.Popen([sys.executable, "-c", CODE.format(part)]) for part in range(PARTS)
        ]
        if sum(part.wait() for part in parts):
            raise RuntimeError("a kernel cannot be compiled or launched; its error is above")
        for tool in options.only:
            result[tool] = _watched(sanitizer, tool)
            print(tool, json.dumps(result[tool]), flush=True)
    record = {
        "command": shlex.join(["python", "scripts/sanitize_gpu.py", *sys.argv[1:]]),
        "commit": options.commit,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "launches": [name for name, _ in launches()],
        "tools": result,
    }
    write_whole(options.output, json.dumps(record, indent=1) + "\n")
    return int(any(of["errors"] != 0 for of in result.values()))


def _watched(sanitizer: str, tool: str) -> dict[str, Any]:
    """Run all launches under a tool: its errors, None if it did not come to an end, and the last
    it said.
    """
    command = [
        sanitizer,
        "--tool",
        tool,
        *TOOLS[tool],
        "--report-api-errors",
        "no",
        sys.executable,
        "-c",
        CODE.format(""),
    ]
    start = time.monotonic()
    log = os.environ.get("SANITIZER_LOG")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
        text = done.stdout + done.stderr
    except subprocess.TimeoutExpired as late:
        text = (late.stdout or b"").decode() + f"\nended after {LIMIT} s"
    if log:
        write_whole(Path(log) / f"{tool}.txt", text)
    summary = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", text)
    whole = "all launched" in text
    return {
        "errors": int(summary[1]) if summary and whole else None,
        "of": Counter(
            re.findall(
                r"(?:at|access by|in) [^\n]*?(?:\b|_Z\d+)((?:hopper|merge|prepare|round_|transpose|tensor_core)[a-z_]*)",  # noqa: E501
                text,
            )
        ),
        "instructions": _instructions(text),
        "seconds": round(time.monotonic() - start, 1),
        "said": text.strip().splitlines()[-12:] if not whole else [],
    }


def _instructions(text: str) -> dict[str, dict[str, int]]:
    """Return the opcodes of the accesses that racecheck reports, by kind: "Write", "Read"."""
    reported = re.findall(r"(Write|Read) access at (\w+)\+0x([0-9a-f]+)", text)
    code = _disassembled() if reported and shutil.which("nvdisasm") else {}
    result: dict[str, Counter[str]] = {}
    for kind, function, index in reported:
        result.setdefault(kind, Counter())[
            code.get((function, int(index, 16)), "not disassembled")
        ] += 1
    return {kind: dict(opcodes) for kind, opcodes in result.items()}


def _disassembled() -> dict[tuple[str, int], str]:
    """Return the opcode at each address of each function that was loaded, from the folder of
    cubins.
    """
    result = {}
    for cubin in sorted(cache_folder().glob("*.load.cubin")):
        text = subprocess.run(
            ["nvdisasm", "-c", cubin], capture_output=True, text=True, check=True
        ).stdout
        function = ""
        for line in text.splitlines():
            label = re.match(r"\.text\.(\w+):", line)
            function = label[1] if label else function
            instruction = re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?(\S+)", line)
            if instruction:
                result[function, int(instruction[1], 16)] = instruction[2]
    return result


def launch_all(part: int | None = None) -> None:
    """Launch everything once, or a part, with each array in an allocation of its own, so that
    its ends are watched.
    """
    cupy = import_cupy()
    cupy.cuda.set_allocator(None)
    for name, launch in list(launches())[part :: 1 if part is None else PARTS]:
        launch()
        cupy.cuda.runtime.deviceSynchronize()
        print(name, flush=True)
    print("all launched", flush=True)


def launches() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield what is launched: every kernel on wgmma and TMA, each way in which it masks, of each
    width, on ragged sizes.
    """
    ways: dict[str, dict[str, Any]] = {
        "full": {},
        "causal": {"causal": True},
        "window": {"mask": flashsim.SlidingWindow(100, 0)},
        "window, sums for maxima": {"mask": flashsim.SlidingWindow(100, 31)},
        "block mask": {
            "block_mask": lambda T_r, T_c: np.arange(T_r * T_c).reshape(T_r, T_c) % 2 == 0
        },
    }
    arrays = {
        "array": {"mask": _half(300, 333)},
        "array, causal": {"mask": _half(300, 333), "causal": True},
        "array of padding, causal": {"mask": _half(1, 333), "causal": True},
        "array of heads": {"mask": _half(2, 300, 333)},
    }
    ways |= arrays
    wholes = {
        d: [_normal(1, H, N, d) for H, N in ((2, 300), (1, 333), (1, 333), (2, 300))]
        for d in hopper.HEAD_DIMS
    }
    for d, (q, k, v, do) in wholes.items():
        for (name, options), p in itertools.product(ways.items(), (0.0, 0.3)):
            call = partial(gpu.forward, q, k, v, kernel="hopper", dropout_p=p, **options)
            yield f"hopper, d = {d}, {name}{', dropout' * (p > 0)}", call
        if d == hopper.WIDEST:
            # O and L: initcheck misses what TMA writes
            written = (_normal(*q.shape), _normal(*q.shape[:3], dtype="float32"))
            for mask in ("full", "causal", "window"):
                call = partial(gpu.backward, q, k, v, *written, do, kernel="hopper", **ways[mask])
                yield f"hopper_backward_wide, {mask}", call
            continue
        masks = ("full", "causal", "window", "block mask", *arrays)
        for mask, p, deterministic in itertools.product(masks, (0.0, 0.3), (False, True)):
            if mask in arrays and p:  # which it has not
                continue
            way = mask, "dropout" * (p > 0), "deterministic" * deterministic or "in any order"
            call = partial(_backward, q, k, v, do, deterministic, {**ways[mask], "dropout_p": p})
            yield f"hopper_backward, d = {d}, {', '.join(filter(None, way))}", call
        few = _normal(2, 8, 3, d)
        # whole heads, in clusters of 4, of 8, merged later, pairs merged later
        for N_k in (150, 300, 3000, 4400, 4200):
            cache = [_normal(2, 2, N_k, d) for _ in "kv"]
            options = {"kernel": "hopper_decode", "causal": True, "return_lse": True}
            yield (
                f"hopper_decode, d = {d}, N_k = {N_k}",
                partial(gpu.forward, few, *cache, **options),
            )
        # whole, in clusters of 4, of 8, merged later, of 2
        for B, N_k in ((1, 300), (1, 500), (1, 3000), (1, 8000), (10, 1000)):
            # 120 queries of a KV head
            more = [_normal(B, H, N, d) for H, N in ((12, 40), (4, N_k), (4, N_k))]
            options = {"kernel": "hopper_decode", "causal": True, "return_lse": True}
            yield (
                f"hopper_grouped, d = {d}, B = {B}, N_k = {N_k}",
                partial(gpu.forward, *more, **options),
            )
        yield from _serving(d)
    q, k, v, _ = wholes[128]
    fours = _normal(1, 1, 332, 128)
    for causal in (False, True):
        of = "causal" if causal else "full"
        yield f"hopper_fp8, {of}", partial(_fp8, q, k, v, causal, False)
        yield (
            f"hopper_fp8, {of}, keys of V contiguous",
            partial(_fp8, q, fours, fours, causal, True),
        )


def _serving(d: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield launches on keys in pages, and on packed batches, where sequences are short, long,
    and empty.
    """
    lengths = np.array([300, 0, 1, 3100], np.int32)
    N = 3
    for page, splits in itertools.product((16, 128), (None, 1, 3)):  # None: by pairs of blocks
        needed = -(-lengths // page)
        table = np.full((len(lengths), needed.max()), -1, np.int32)
        free = np.arange(needed.sum())[::-1]
        for s, ends in enumerate(np.cumsum(needed)):
            table[s, : needed[s]] = free[ends - needed[s] : ends]
        pools = (_normal(len(free), 2, page, d) for _ in "kv")
        inputs = (_normal(len(lengths), 8, N, d), *pools, table, lengths)
        call = partial(gpu.paged, *inputs, splits=splits, check=False, return_lse=True)
        yield f"paged, d = {d}, pages of {page}, splits = {splits}", call
    ends_q, ends_k = (np.cumsum([0, *of]) for of in ((300, 0, 65, 1), (333, 7, 65, 200)))
    for causal in (False, True):
        q, k, v = (
            _normal(heads, of[-1], d) for heads, of in ((2, ends_q), (1, ends_k), (1, ends_k))
        )
        call = partial(gpu.varlen, q, k, v, ends_q, ends_k, causal=causal, return_lse=True)
        yield f"varlen, d = {d}, {'causal' if causal else 'full'}", call


def _backward(q: Any, k: Any, v: Any, do: Any, deterministic: bool, options: dict[str, Any]) -> Any:
    # by tensor_core, since initcheck misses what TMA writes; without masks but the causal one, for
    # want of them
    o, lse = gpu.forward(
        q, k, v, return_lse=True, kernel="tensor_core", dropout_p=options["dropout_p"]
    )
    return gpu.backward(
        q, k, v, o, lse, do, deterministic=deterministic, kernel="hopper", **options
    )


def _fp8(q: Any, k: Any, v: Any, causal: bool, keys_contiguous: bool) -> Any:
    return gpu.forward(
        gpu.to_fp8(q), gpu.to_fp8(k), gpu.to_fp8(v, keys_contiguous=keys_contiguous), causal=causal
    )


def _half(*shape: int) -> Any:
    """Return a mask, of which half is true."""
    return import_cupy().asarray(np.random.default_rng(0).random(shape) < 0.5)


def _normal(*shape: int, dtype: str = "float16") -> Any:
    """Return random numbers, made on the host: what makes them on the GPU need not be watched."""
    return import_cupy().asarray(np.random.default_rng(0).standard_normal(shape).astype(dtype))


if __name__ == "__main__":
    run_script(main)

"""Bytes that the model predicts, compared with those that Nsight Compute reads from the hardware's
counters.

    record = validate()        # runs itself once under ncu, and once alone for the times

If the working set exceeds the L2, the model's HBM accesses are compared with DRAM bytes
(`dram__bytes_read.sum`, `dram__bytes_write.sum`). Otherwise they are compared with what moves
between L2 and SMs (`l1tex__m_xbar2l1tex_read_bytes.sum`, `l1tex__m_l1tex2xbar_write_bytes.sum`).
The L2's own sector counts are not used, since they lack requests that are merged on the way. Each
pass runs alone, between two marker kernels. Caches are flushed before every kernel; clocks are not
fixed.

    standard     every pass of Algorithms 0 and 3 at GPT-2 medium's shape. Each operand is read from
                 DRAM once, as in the proofs: what cuBLAS's tiles read again is in the L2, though N
                 × N matrices as a whole do not fit
    algorithm_1  Theorem 2 in silicon: two heads per SM, B_c from 16 up. Q and O of the heads at
                 work exceed the L2
    algorithm_4  Theorem 5 likewise
    on chip      the loops exchanged: the model's accesses are between SM and L2, and DRAM sees only
                 what is compulsory

Up to the L2's size of written bytes may still be in it when a kernel ends. So the tolerance of
writes is that size plus 1% (2% for the passes of standard attention).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.machine import machine
from flashsim.gpu.profiling import METRICS, profiled, run_marked
from flashsim.memory.traffic import Traffic
from flashsim.simulate.api import count

GPT2 = (64, 16, 1024, 64)  # GPT-2 medium as in the paper's Figure 2 (left): B, H, N, d
SILICON = (264, 1, 2048, 64)  # two heads for each of 132 SMs; Q and O of 132 heads are 138 MB
OnPass = Callable[[str], None]


@dataclass(frozen=True)
class Pass:
    """One pass: how to run it, and the bytes that the model predicts at a level ("DRAM" or "L2").

    `within` is the tolerance as a part of the prediction; for writes, the L2's size is added. None:
    reported only.
    """

    group: str
    name: str
    level: str
    reads: float
    writes: float
    within: float | None
    run: Callable[[], Any]
    B_c: int | None = None


def passes() -> Iterator[Pass]:
    """Yield all passes. Their arrays are allocated when a pass is reached, and freed after it."""
    yield from _standard()
    yield from _algorithm_1()
    yield from _algorithm_4()
    yield from _on_chip()


def _normal(*shape: int, dtype: str = "float16") -> Any:
    cupy = import_cupy()
    return cupy.random.default_rng(0).standard_normal(shape, dtype=cupy.float32).astype(dtype)


def _standard() -> Iterator[Pass]:
    """Algorithms 0 and 3 without mask and dropout."""
    from flashsim.gpu import standard

    B, H, N, d = GPT2
    size = {"N·d": B * H * N * d * 2, "N·N": B * H * N * N * 2}  # bytes
    q, k, v, do = (_normal(*GPT2) for _ in range(4))
    for step in standard.steps(q, k, v, do, d**-0.5):
        reads, writes = (
            sum(size[matrix] for matrix in matrices) for matrices in (step.reads, step.writes)
        )
        yield Pass("standard", step.name, "DRAM", reads, writes, 0.02, step.run)


def _bytes(traffic: Traffic) -> tuple[int, int]:
    """Return the bytes of float32 that traffic reads and writes."""
    return 4 * traffic.reads, 4 * traffic.writes


def _algorithm_1() -> Iterator[Pass]:
    from flashsim import gpu

    B, H, N, d = SILICON
    q, k, v = (_normal(*SILICON, dtype="float32") for _ in range(3))
    for B_c in (16, 32, 64, 128, 256):
        blocks = (64, B_c)
        reads, writes = _bytes(
            count("flash_basic", N=N, d=d, M=10**6, blocks=blocks, heads=B * H).hbm
        )
        yield Pass(
            "algorithm_1",
            f"B_c = {B_c}",
            "DRAM",
            reads,
            writes,
            0.01,
            lambda blocks=blocks: gpu.forward(q, k, v, kernel="algorithm_1", blocks=blocks),  # type: ignore[misc]
            B_c,
        )


def _algorithm_4() -> Iterator[Pass]:
    from flashsim import gpu

    B, H, N, d = SILICON
    q, k, v, do = (_normal(*SILICON, dtype="float32") for _ in range(4))
    o, lse = gpu.forward(q, k, v, kernel="algorithm_2", return_lse=True)
    for B_c in (16, 32, 64):
        blocks = (32, B_c)
        reads, writes = _bytes(
            count("flash", N=N, d=d, M=10**6, blocks=blocks, heads=B * H, direction="backward").hbm
        )
        yield Pass(
            "algorithm_4",
            f"B_c = {B_c}",
            "DRAM",
            reads,
            writes,
            0.01,
            lambda blocks=blocks: gpu.backward(  # type: ignore[misc]
                q, k, v, o, lse, do, kernel="algorithm_2", blocks=blocks
            ),
            B_c,
        )


def _on_chip() -> Iterator[Pass]:
    """Yield q_outer and the rungs with tensor cores, at a shape whose K and V stay in the L2
    while they are read repeatedly.
    """
    from flashsim import gpu
    from flashsim.gpu import tensor_core

    shape = (4, 16, 4096, 64)
    B, H, N, d = shape
    for name, dtype, blocks in (
        ("q_outer", "float32", (64, 64)),
        ("tensor_core", "float16", tensor_core.block_sizes(64)),
    ):
        q, k, v = (_normal(*shape, dtype=dtype) for _ in range(3))
        width = 4 if dtype == "float32" else 2
        arrays = count("q_outer", N=N, d=d, M=10**7, blocks=blocks, heads=B * H).hbm.by_array
        lse = arrays["L"].writes * 4
        reads = sum(arrays[name].reads for name in "QKV") * width
        options: dict[str, Any] = {"kernel": name, "return_lse": True}
        if name == "q_outer":
            options["blocks"] = blocks

        def run(q: Any = q, k: Any = k, v: Any = v, options: dict[str, Any] = options) -> Any:
            return gpu.forward(q, k, v, **options)

        yield Pass(
            "on chip", f"{name}, SM ↔ L2", "L2", reads, arrays["O"].writes * width + lse, 0.05, run
        )
        once = B * H * N * d * width
        yield Pass("compulsory", f"{name}, DRAM", "DRAM", 3 * once, once + lse, None, run)


# --------------------------------------------------------------------------------------------------
# running


def validate(on_pass: OnPass | None = None) -> dict[str, Any]:
    """Return plain data: rows of predicted and measured bytes with times, and the machine.

    Raises MissingGPU without a GPU or without Nsight Compute (`ncu`).
    """
    on = machine()
    counted = profiled("flashsim.gpu.validation")
    rows = []
    for each, counters in zip(passes(), counted, strict=True):
        if on_pass is not None:
            on_pass(f"{each.group}: {each.name}")
        level = "dram" if each.level == "DRAM" else "l2"
        bytes_moved = {way: counters[f"{level}_{way}"] for way in ("reads", "writes")}
        rows.append(
            {
                **_row(each, bytes_moved, on["l2_bytes"]),
                "counters": counters,
                "ms": _milliseconds(each.run),
            }
        )
    return {"machine": on, "metrics": METRICS, "rows": rows}


def _row(each: Pass, bytes_moved: dict[str, float], l2_bytes: int) -> dict[str, Any]:
    """Return a pass as plain data. Its error is the larger of the two, as a part of the
    prediction.
    """
    row: dict[str, Any] = {
        key: getattr(each, key) for key in ("group", "name", "level", "within", "B_c")
    }
    row["error"] = 0.0
    for way in ("reads", "writes"):
        predicted = getattr(each, way)
        measured = bytes_moved[way]
        row[f"predicted_{way}"] = predicted
        row[f"measured_{way}"] = measured
        excess = measured - predicted
        lack = predicted - measured
        off = max(excess, lack - (l2_bytes if way == "writes" and each.level == "DRAM" else 0), 0.0)
        row["error"] = max(row["error"], off / predicted)
    row["agrees"] = None if each.within is None else row["error"] <= each.within
    return row


def _milliseconds(run: Callable[[], Any], rounds: int = 5) -> float:
    cupy = import_cupy()
    run()
    best = []
    for _ in range(rounds):
        start = cupy.cuda.Event()
        end = cupy.cuda.Event()
        start.record()
        run()
        end.record()
        end.synchronize()
        best.append(float(cupy.cuda.get_elapsed_time(start, end)))
    return sorted(best)[len(best) // 2]


def main() -> None:
    """Run every pass once, for ncu."""
    run_marked(each.run for each in passes())


if __name__ == "__main__":
    main()

"""The same programs on real processes, one a device: over torch.distributed (gloo, or NCCL between
GPUs) or MPI.

    # in each process that torchrun or mpiexec has started
    engine = flashsim.devices.distributed.engine()
    # part.O: own rows
    part = flashsim.devices.distributed.forward("ring", Q, K, V, engine=engine, causal=True)
    # gradients.dQ: own rows
    gradients = flashsim.devices.distributed.backward(part, dO, engine=engine)
    engine.close()

Each process has its rows in its own HBM, and runs the same file as the simulation.
`flashsim.devices.engines` has the libraries that send messages. Processes with different arguments
raise LinkError.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashsim.attention.arguments import check_flag
from flashsim.attention.inputs import Array, check_dO, chip_dtype
from flashsim.devices.api import (
    DeviceCosts,
    DevicesPlan,
    by_rows,
    check_operands,
    own_rows,
    share_out,
    values_of,
)
from flashsim.devices.engines import Processes, engine, started_by
from flashsim.devices.record import DevicesProgram
from flashsim.devices.share import Share
from flashsim.memory.device import Device, LinkError
from flashsim.memory.hbm import HBM
from flashsim.memory.sram import SRAM
from flashsim.simulate.pipeline import place, run_on_device
from flashsim.support.blas import one_blas_thread
from flashsim.support.sizes import Size

__all__ = ["Costs", "Gradients", "Part", "backward", "engine", "forward", "started_by"]


@dataclass(frozen=True)
class Costs:
    """What one process moved.

    costs     as the memory and the links count them
    handed    bytes that were handed to the engine
    received  bytes that the engine says it received; None where it does not say
    """

    costs: DeviceCosts
    handed: int
    received: int | None


@dataclass(frozen=True)
class Part(Costs):
    """One process's part of a forward pass: own rows of O, (H_q, n, d_v), and of L; of Ulysses, L
    of own heads.

    program, share, inputs  what was run, and Q, K, V, whole, (heads, N, width)
    """

    program: DevicesProgram
    share: Share
    columns: int
    inputs: Mapping[str, Array]
    O: Array
    L: Array


@dataclass(frozen=True)
class Gradients(Costs):
    """One process's part of a backward pass: own rows, (heads, n, width), in the inputs' type."""

    dQ: Array
    dK: Array
    dV: Array


def forward(
    name: str,
    Q: Any,
    K: Any,
    V: Any,
    *,
    engine: Processes,
    layout: str | None = None,
    columns: int | None = None,
    M: Size | None = None,
    blocks: tuple[int, int] | None = None,
    causal: bool = False,
    mask: Any = None,
    scale: float | None = None,
    check_finite: bool = True,
) -> Part:
    """Run this process's part of `flashsim.devices.forward`, on as many devices as there are
    processes.

    Q, K, V are whole, and the same in every process, which takes its own rows of them. Arguments
    and errors as there; LinkError, too, if processes have different arguments.
    """

    def agreed() -> Any:
        inputs, problem = check_operands(
            Q, K, V, M=M, scale=scale, causal=causal, mask=mask, check_finite=check_finite
        )
        shared = share_out(name, "forward", problem, engine.size, layout, columns, blocks)
        arrays = {X: by_rows(getattr(inputs, X)) for X in "QKV"}
        return *shared, arrays

    program, share, C, inputs = _agreed(engine, agreed)
    own = own_rows(program, share, engine.rank, inputs)
    costs, (O, L) = _run(engine, program, share, C, own)
    return Part(
        **costs,
        program=program,
        share=share,
        columns=C,
        inputs=inputs,
        O=O.reshape(share.H_q, -1, share.problem.shape.d_v),
        L=L,
    )


def backward(
    part: Part,
    dO: Any,
    *,
    engine: Processes,
    columns: int | None = None,
    M: Size | None = None,
    blocks: tuple[int, int] | None = None,
    check_finite: bool = True,
) -> Gradients:
    """Run this process's part of `flashsim.devices.backward` of the program that made `part`, on
    the same rows.

    dO (H_q, N, d_v) is whole, and the same in every process. Arguments and errors as there;
    LinkError as in `forward`.
    """

    def agreed() -> Any:
        problem = part.share.problem
        finite = check_flag("check_finite", check_finite)
        shape_of_O = (*problem.leading, problem.shape.N_q, problem.shape.d_v)
        O = np.broadcast_to(np.zeros((), problem.dtype), shape_of_O)
        gradient = by_rows(check_dO(dO, O, check_finite=finite))
        problem = problem.with_memory(M)
        shared = share_out(
            part.program.name, "backward", problem, engine.size, part.share.where, columns, blocks
        )
        return *shared, {**part.inputs, "dO": gradient}

    program, share, C, inputs = _agreed(engine, agreed)
    own = own_rows(program, share, engine.rank, inputs)
    own["O"] = part.O.reshape(-1, part.O.shape[-1])
    own["L"] = part.L
    costs, (dQ, dK, dV) = _run(engine, program, share, C, own)
    return Gradients(
        **costs,
        dQ=_of_heads(dQ, share.H_q, share),
        dK=_of_heads(dK, share.H_kv, share),
        dV=_of_heads(dV, share.H_kv, share),
    )


def _of_heads(rows: Array, heads: int, share: Share) -> Array:
    """Return a gradient by heads, in the inputs' type."""
    by_heads = rows.reshape(heads, -1, rows.shape[1])
    return by_heads.astype(share.problem.dtype)


def _agreed(
    engine: Processes, agreed: Callable[[], Any]
) -> tuple[DevicesProgram, Share, int, dict[str, Array]]:
    """Return what a call checks its arguments to be, if all processes find the same. Raises
    ValueError, and LinkError.
    """
    try:
        arguments: tuple[DevicesProgram, Share, int, dict[str, Array]] = agreed()
    except ValueError:
        engine.everyone_s("an error of its own")
        raise
    words = engine.everyone_s(_word(*arguments))
    if len(set(words)) > 1:
        text = "; ".join(f"rank {rank}: {word}" for rank, word in enumerate(words))
        raise LinkError(f"the processes were asked for different things: {text}")
    return arguments


def _word(
    program: DevicesProgram,
    share: Share,
    columns: int,
    inputs: Mapping[str, Array],
) -> str:
    """Return what all processes must agree on, as a line."""
    problem = share.problem
    sums = hashlib.sha256()
    for array in (*inputs.values(), *share.where):
        sums.update(array.tobytes())
    name = program.name if program.direction == "forward" else f"{program.name}, backward"
    text = (
        f"{name}, N = {len(share)}, {problem.heads} heads, M = {problem.M}, {problem.dtype.name}, "
        f"scale {problem.scale:.6g}"
    )
    blocks = f"blocks {share.B_r} × {share.B_c}, {columns} columns"
    return f"{text}, {problem.mask!r}, {blocks}, arrays and rows {sums.hexdigest()[:8]}"


def _run(
    engine: Processes, program: DevicesProgram, share: Share, columns: int, own: Mapping[str, Array]
) -> tuple[dict[str, Any], list[Array]]:
    """Run a program on own rows; return what it cost, and what it returned."""
    hbm = HBM()
    handed = engine.handed
    received = engine.received
    dtype = chip_dtype(share.problem.dtype)
    sram = SRAM(hbm, share.problem.M, dtype=dtype, fold=False)
    device = Device(engine.rank, engine.size, hbm, sram, engine)
    plan = DevicesPlan.of(program, share, columns, own)
    launch = plan.launch(own)
    placed = place(launch, hbm)
    with one_blas_thread(), np.errstate(over="ignore", under="ignore", invalid="ignore"):
        results = [values_of(matrix) for matrix in run_on_device(plan, launch, device, placed)]
    costs = DeviceCosts(hbm.traffic, sram.use, device.links)
    received_words = (
        None if engine.received is None or received is None else engine.received - received
    )
    return {"costs": costs, "handed": engine.handed - handed, "received": received_words}, results

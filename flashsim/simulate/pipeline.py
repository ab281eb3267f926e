"""`simulate`: the one way from a plan to what its launches leave. Whatever runs on the counted
memory runs here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from flashsim.attention.inputs import chip_dtype
from flashsim.memory.alike import count_alike
from flashsim.memory.debuggers import stepping_over_memory
from flashsim.memory.device import Device
from flashsim.memory.errors import MemoryModelError
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.network import Network
from flashsim.memory.shape_only import ShapeOnly
from flashsim.memory.sram import SRAM, Observer
from flashsim.memory.turns import TooManyTurns, Watch
from flashsim.simulate.following import check_on_chip
from flashsim.simulate.outcome import Outcome
from flashsim.simulate.plan import Launch, Plan
from flashsim.support.blas import one_blas_thread

OnLaunch = Callable[[int], None]
Memory = tuple[HBM, SRAM, tuple[Matrix, ...]]
"""A launch's memory, and the matrices that its function returned."""


def simulate(
    plan: Plan, observers: Sequence[Any] = (), on_launch: OnLaunch | None = None
) -> Outcome:
    """Run all launches of a plan.

    observers  called with each event of the memory; of devices, a sequence of observers for each
    on_launch  called after each launch with the number of those that are done

    Raises `SramOverflow` where an enforced M is exceeded, MemoryModelError where a function breaks
    a rule of the memory.
    """
    run_launches = _run_side_by_side if plan.side_by_side else _run_one_by_one
    if not plan.arithmetic:
        return run_launches(plan, observers, on_launch)
    with (
        stepping_over_memory(),
        one_blas_thread(),
        np.errstate(over="ignore", under="ignore", invalid="ignore"),
    ):
        return run_launches(plan, observers, on_launch)


def _run_one_by_one(
    plan: Plan, observers: Sequence[Observer], on_launch: OnLaunch | None
) -> Outcome:
    outcome = Outcome()
    for number, launch in enumerate(plan.launches(outcome)):
        hbm, sram, returned = run_launch(plan, launch, observers, is_first=number == 0)
        outcome.add_cost(hbm, sram)
        plan.keep(outcome, launch, hbm, returned)
        if on_launch is not None:
            on_launch(number + 1)
    return outcome


def run_launch(
    plan: Plan, launch: Launch, observers: Sequence[Observer] = (), is_first: bool = True
) -> Memory:
    """Run one launch. A user's function that only counts may run several times, until what is
    counted at once is alike.
    """
    if plan.arithmetic or not plan.is_user_defined:
        return _run_once(plan, launch, None, observers, is_first)
    try:
        return count_alike(partial(_run_once, plan, launch), observers)
    except TooManyTurns as error:
        from flashsim.theory.form import has_form

        raise ValueError(
            f"{error}{', or flashsim.theory.exact' if has_form(plan.program) else ''}"
        ) from None


def _run_once(
    plan: Plan,
    launch: Launch,
    watch: Watch | None,
    observers: Sequence[Observer],
    is_first: bool = True,
) -> Memory:
    hbm = HBM(arithmetic=plan.arithmetic)
    placed = place(launch, hbm)
    chip = chip_dtype(plan.problem.dtype)
    sram = SRAM(
        hbm,
        plan.problem.M,
        enforced=plan.enforced,
        dtype=chip,
        observers=observers,
        fold=launch.folds,
        watch=watch,
    )
    arguments = launch.make_arguments(hbm, sram)
    if not plan.is_user_defined:
        result = plan.program.run(hbm, sram, *launch.first, *placed, *arguments)
        return hbm, sram, check_returned(plan, launch, hbm, result)
    function = plan.program.run
    if watch is not None:
        function = partial(watch.call, function)
    elif is_first:
        function = check_on_chip(function, sram)
    result = sram.call(function, hbm, sram, *launch.first, *placed, *arguments)
    return hbm, sram, check_returned(plan, launch, hbm, result)


def place(launch: Launch, hbm: HBM) -> list[Matrix]:
    """Put a launch's operands in HBM; return those that its function takes."""
    placed = {}
    for operand in launch.operands:
        placed[operand.name] = hbm.place(
            operand.name, operand.values, operand.dtype, index=operand.index
        )
    if launch.takes is None or len(launch.takes) == len(placed):
        return list(placed.values())
    return [placed[name] for name in launch.takes]


def _run_side_by_side(
    plan: Plan, observers: Sequence[Sequence[Observer]], on_launch: OnLaunch | None
) -> Outcome:
    """Run a launch on each device of a network, where a device has what was its own, or was
    posted to it.
    """
    outcome = Outcome()
    launches = list(plan.launches(outcome))
    network = Network(
        len(launches),
        plan.problem.M,
        dtype=chip_dtype(plan.dtype),
        enforced=plan.enforced,
        arithmetic=plan.arithmetic,
        observers=observers,
        fold=launches[0].folds,
    )
    placed = [
        place(launch, device.hbm) for launch, device in zip(launches, network.devices, strict=True)
    ]

    def run(device: Device) -> tuple[Matrix, ...]:
        return run_on_device(plan, launches[device.rank], device, placed[device.rank])

    returned = network.run(run)
    outcome.devices = network.devices
    for launch, device, matrices in zip(launches, network.devices, returned, strict=True):
        outcome.add_cost(device.hbm, device.sram)
        plan.keep(outcome, launch, device.hbm, matrices)
        if on_launch is not None:
            on_launch(device.rank + 1)
    return outcome


def run_on_device(
    plan: Plan, launch: Launch, device: Device, placed: Sequence[Matrix]
) -> tuple[Matrix, ...]:
    """Run a launch on a device, whose operands are placed; return the matrices that its function
    returned.
    """
    arguments = launch.make_arguments(device.hbm, device.sram)
    function = plan.program.run
    if plan.is_user_defined:
        function = check_on_chip(function, device.sram)
    result = function(device, *launch.first, *placed, *arguments)
    return check_returned(plan, launch, device.hbm, result)


def check_returned(plan: Plan, launch: Launch, hbm: HBM, result: Any) -> tuple[Matrix, ...]:
    """Return the matrices that a function returned. Raises MemoryModelError where they are not
    those that it should return.
    """
    matrices = result if isinstance(result, tuple) else (result,)
    if not launch.returns:
        return matrices
    who = f"{plan.program.name!r} ({plan.program.title}) returned"
    names = tuple(matrix.name if isinstance(matrix, Matrix) else None for matrix in matrices)
    if names not in launch.returns:
        described = ", ".join(map(_described, matrices))
        if isinstance(result, tuple):
            described = f"({described})"
        expected = " or ".join("(" + ", ".join(names) + ")" for names in launch.returns)
        raise MemoryModelError(f"{who} {described}; expected {expected}, matrices in HBM")
    for matrix in matrices:
        shape = plan.shape_of(matrix.name)
        if shape is not None and matrix.shape != shape:
            raise MemoryModelError(f"{who} {matrix.name} of shape {matrix.shape}; expected {shape}")
        if not hbm.holds(matrix):
            raise MemoryModelError(
                f"{who} an {matrix.name} of another HBM; expected one that was made in the hbm it "
                "was called with"
            )
    return matrices


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray | ShapeOnly):
        return "an array"
    return str(getattr(value, "name", value))

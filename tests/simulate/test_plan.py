"""A plan's repr, as a debugger's prompt prints it: one line of names, shapes and dtypes."""

from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import HBM, SRAM, Kind, MatrixProgram, count_program, devices, run_program, serving
from flashsim.memory.hbm import Matrix
from flashsim.simulate.outcome import Outcome
from flashsim.simulate.plan import Operand, Plan
from flashsim.simulate.sums import GROUP_SUM, PassPlan

Q, K, V = np.random.default_rng(0).normal(size=(3, 2, 16, 4))
RUN = flashsim.forward("flash", Q, K, V, M=200, blocks=(4, 4))
ARRAYS = "Q (2, 16, 4) float64, K (2, 16, 4) float64, V (2, 16, 4) float64"
STATES = "l (2, 16, 1) float64, m (2, 16, 1) float64, L (2, 16, 1) float64"
GRADIENT = "O (2, 16, 4) float64, dO (2, 16, 4) float64"
LENGTHS = "N_q = 16, N_k = 16, d = 4, d_v = 4"
PAGED = "Q (7, 4) float32, K (52, 4) float32, V (52, 4) float32"
TABLES = "table (2, 8) uint32, lengths (2, 1) uint32"


def twice(hbm: HBM, sram: SRAM, X: Matrix, blocks: Any) -> Matrix:
    Y = hbm.empty("Y", X.shape, X.dtype, "output").divide(blocks.B)
    X = X.divide(blocks.B)
    for i in sram.loop(len(X)):
        X_i = sram.load(X[i])
        sram.store(Y[i], sram.on_chip(2 * X_i, over=X_i))
    return Y


TWICE = MatrixProgram(
    title="Twice",
    run=twice,
    operands={"X": Kind("N", "d")},
    returns={"Y": Kind("N", "d")},
    blocks={"B": "N"},
)
PLANS: dict[str, tuple[Plan, str]] = {
    "attention": (RUN.plan, f"AttentionPlan('flash', {ARRAYS}, M = 200)"),
    "attention, backward": (
        flashsim.backward("flash", RUN, Q, M=300).plan,
        f"AttentionPlan('flash', {ARRAYS}, {STATES}, {GRADIENT}, M = 300)",
    ),
    "attention, counted": (
        flashsim.count("flash", N=16, d=4, M=200).plan,
        f"AttentionPlan('flash', {LENGTHS}, float32, M = 200)",
    ),
    "a pass": (
        PassPlan.after(RUN.plan, GROUP_SUM, [[Operand("dK", Q[0], Q.dtype)]]),
        f"PassPlan({GROUP_SUM.name!r}, dK (16, 4) float64, M = 200)",
    ),
    "matrices": (
        run_program(TWICE, {"X": Q[0]}, M=100, blocks=(4,)).plan,
        "MatrixPlan('twice', X (16, 4) float64, M = 100)",
    ),
    "matrices, counted": (
        count_program(TWICE, {"N": 16, "d": 4}, M=100, blocks=(4,)).plan,
        "MatrixPlan('twice', N = 16, d = 4, float32, M = 100)",
    ),
    "devices": (
        devices.forward("ring", Q, K, V, P=2, M=200).plan,
        f"DevicesPlan('ring', {ARRAYS}, M = 200)",
    ),
    "devices, counted": (
        devices.count("ring", P=2, N=16, d=4, M=200).plan,
        f"DevicesPlan('ring', {LENGTHS}, float32, M = 200)",
    ),
    "a batch, counted": (
        serving.count("paged", queries=[3, 4], keys=[20, 30], d=4, page=4, M=500).plan,
        f"BatchPlan('paged', {PAGED}, {TABLES}, M = 500)",
    ),
}


@pytest.mark.parametrize("kind", PLANS)
def test_a_plan_is_shown_in_one_line(kind: str) -> None:
    plan, line = PLANS[kind]
    assert repr(plan) == line


def test_what_a_plan_has_is_shown_in_one_line() -> None:
    assert repr(RUN.plan.inputs) == f"Inputs({ARRAYS})"
    (launch, _) = RUN.plan.launches(Outcome())
    operands = "Q (16, 4) float64, K (16, 4) float64, V (16, 4) float64"
    assert repr(launch) == f"Launch({operands})"
    assert repr(launch.operands[1]) == "Operand(K (16, 4) float64)"
    shape_alone = Operand("K", (16, 4), np.dtype(np.float32))
    assert repr(shape_alone) == "Operand(K (16, 4) float32)"

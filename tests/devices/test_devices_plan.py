"""Costs by formula alone: what is counted, quickly for thousands of devices, and time by the
model.
"""

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashsim import devices, plots
from flashsim.attention.problem import Problem
from flashsim.cli import main
from flashsim.devices import theory
from flashsim.devices.bounds import allowed, most_work
from flashsim.devices.layouts import LAYOUTS, positions
from flashsim.devices.planning import PLANNED, hidden_from, lock_step, plan, star_trail
from flashsim.devices.programs import programs
from flashsim.devices.share import Share


def in_hbm(device: Any) -> int:
    """The elements of all of a device's arrays."""
    return sum(array.size for array in device.hbm.by_array.values())


def divisors(P: int) -> list[int]:
    return [C for C in range(1, P + 1) if P % C == 0]


@pytest.mark.parametrize("name", PLANNED)
@given(st.data())
def test_a_plan_is_what_is_counted(name: str, data: st.DataObject) -> None:
    H_kv = data.draw(st.integers(1, 3))
    g = data.draw(st.integers(1, 3))
    N = data.draw(st.integers(1, 40))
    most_devices = min(8, H_kv * g) if name == "ulysses" else 8
    options: dict[str, Any] = {
        "P": data.draw(st.integers(1, most_devices)),
        "N": N,
        "d": 3,
        "d_v": 2,
        "heads": g * H_kv,
        "kv_heads": H_kv,
        "M": 200,
        "causal": data.draw(st.booleans()),
        "layout": data.draw(st.sampled_from(LAYOUTS)),
    }
    tally = devices.count(name, **options)
    planned = plan(name, **options)
    share = tally.share
    P = planned.P
    assert planned.words == tally.words
    assert planned.most_words == max(one.words for one in tally.devices)
    assert planned.columns == tally.plan.columns
    assert planned.room == max(map(in_hbm, tally.devices)) + 200
    if planned.accesses is not None:
        assert planned.accesses in [one.hbm.accesses for one in tally.devices]
    if name == "ring":
        for s, most in enumerate(lock_step(share, options["layout"])):
            pairs = []
            for p in range(P):
                sender = (p - s) % P
                pairs.append(allowed(share, share.where[p], share.where[sender]))
            assert most == max(pairs)
    if name == "mesh":
        for C in divisors(P):
            for direction in ("forward", "backward"):
                sent = sum(theory.mesh_words(share, p, C, direction) for p in range(P))
                assert theory.mesh_total(share, C, direction) == sent
            tiles = []
            for p in range(0, P, C):
                rows = np.concatenate([*share.where[p : p + C]])
                for c in range(C):
                    cols = np.concatenate([*share.where[c::C]])
                    tiles.append(allowed(share, rows, cols))
            work = most_work(tally.plan.program, share, C)
            assert work == g * H_kv * max(tiles)


def test_thousands_of_devices_take_a_second() -> None:
    shape: dict[str, Any] = {
        "P": 4096,
        "N": 2**20,
        "d": 128,
        "heads": 64,
        "kv_heads": 8,
    }
    for name, causal in (("ring", True), ("mesh", True), ("ring", False)):
        began = time.process_time()
        result = plan(name, **shape, causal=causal, flops=1e15, link=1e11)
        assert time.process_time() - began < 3  # under a second on a quiet machine
        assert result.words == 4096 * result.most_words


def test_time_by_hand() -> None:
    """4 devices of 4 rows, d = d_v = 2, float32: a tile of 16 pairs is 128 operations, a hop 64
    bytes.
    """
    options: dict[str, Any] = {
        "P": 4,
        "N": 16,
        "d": 2,
        "M": 100,
        "flops": 128.0,
    }
    ring = plan("ring", **options, link=64.0)
    assert (ring.compute, ring.links, ring.seconds) == (4, 3, 4)
    assert plan("ring", **options, link=32.0).seconds == 3 * 2 + 1
    mesh = plan("mesh", **options, link=64.0, columns=2)
    assert (mesh.compute, mesh.links, mesh.seconds) == (4, 2.5, 6.5)  # 4·2 + 4·4 + 4·(2 + 2) words
    ulysses = plan("ulysses", **options, link=96.0, heads=4)
    assert (ulysses.compute, ulysses.links, ulysses.seconds) == (16, 4, 20)  # 96 words


def test_what_a_causal_ring_wastes() -> None:
    """In step, contiguous rows cost as much as no mask but in the first step; zigzag and striped
    ones half.
    """
    options: dict[str, Any] = {
        "P": 8,
        "N": 4096,
        "d": 64,
        "flops": 1e12,
        "link": 1e30,
        "causal": True,
    }
    wasted = {}
    for layout in LAYOUTS:
        result = plan("ring", layout=layout, **options)
        assert result.seconds is not None
        wasted[layout] = 1 - result.mean * 256 / 1e12 / result.seconds
    assert [round(wasted[layout], 3) for layout in LAYOUTS] == [0.467, 0.002, 0.0]


def test_from_where_messages_are_hidden() -> None:
    """One row less than said, and a hop takes longer than its tile; at the row said, it does
    not.
    """
    shape: dict[str, Any] = {"P": 4, "d": 64, "dtype": "float16", "layout": "contiguous"}
    speeds: dict[str, Any] = {"flops": 312e12, "link": 300e9}
    assert hidden_from(heads=1, kv_heads=1, itemsize=2, **speeds) == 1040
    assert hidden_from(heads=8, kv_heads=2, itemsize=2, causal=True, **speeds) == 520
    for rows, hidden in ((1039, False), (1040, True)):
        result = plan("ring", N=4 * rows, **shape, **speeds)
        assert (result.seconds == result.compute) is hidden


def test_star_trail_by_hand() -> None:
    """C = 2 of 4 devices: each gathers the other's Q, K, V; half pass the team's K, V on; no
    ring; parts of O come back.
    """
    where = positions("contiguous", 16, 4)
    of_four = Problem.of(N=16, d=2, M=100)
    gathered = 4 * 2 + 4 * 4 + 4 * (2 + 2)
    passed_on = 2 * 8 * 4
    columns_and_words = star_trail(Share(of_four, where, where, 1, 1))
    assert columns_and_words == (2, 4 * gathered + passed_on)
    of_three = Problem.of(N=12, d=2, M=100)
    where = positions("contiguous", 12, 3)
    assert star_trail(Share(of_three, where, where, 1, 1)) is None


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("tree", {}, "name is 'tree'; expected"),
        ("ulysses", {"P": 3}, "P is 3; expected at most 2 devices under Ulysses"),
        ("mesh", {"columns": 3}, "columns is 3; expected a divisor of P = 2"),
        ("ring", {"columns": 2}, "columns is 2; expected None, because 'ring' has no columns"),
        ("ring", {"link": 0}, "link is 0; expected a number above 0"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, change: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {
        "P": 2,
        "N": 8,
        "d": 2,
        "heads": 2,
        "M": 100,
        "flops": 1.0,
        "link": 1.0,
    }
    with pytest.raises(ValueError, match=message):
        plan(name, **options | change)


def test_programs_that_are_planned_are_programs() -> None:
    assert {*PLANNED} == {*programs()} - {"tree"}


def test_the_command_prints_plans_beside_the_bound(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "devices",
        "--plan",
        "--P",
        "4:8:x2",
        "--N",
        "4096",
        "--d",
        "64",
        "--flops",
        "1e14",
        "--link",
        "1e11",
    ]
    assert main(arguments) == 0
    rows = []
    for line in capsys.readouterr().out.splitlines():
        if line.startswith(("4", "8")):
            rows.append(line.split())
    assert [row[1].rstrip(",") for row in rows] == [
        "ring",
        "TASP",
        "StarTrail",
        "mesh",
        "ring",
        "TASP",
        "StarTrail",
        "mesh",
    ]
    result = plan("mesh", P=4, N=4096, d=64, flops=1e14, link=1e11)
    assert result.seconds is not None
    assert rows[3][-4:] == [
        f"{result.most_words:,}",
        "1.008",
        f"{result.room:,}",
        f"{result.seconds * 1e3:.3f}",
    ]
    assert rows[0][-3] == rows[1][-3] == "1.500"
    for wrong in (["--P", "4:8"], ["--flops", "1e12"], ["--plan", "--backward"]):
        assert main(["devices", "--N", "64", "--d", "4", *wrong]) == 2


def test_the_figure_of_time_has_plans_over_the_arithmetic_alone() -> None:
    options: dict[str, Any] = {"N": 256, "d": 4, "heads": 8, "kv_heads": 2}
    figure = plots.FIGURES["devices_time"]
    data = figure.data(**options, P=(4, 16), links=(1e9,), flops=1e12)
    lines = data["panels"][0]["lines"]
    options |= {"dtype": "bfloat16", "causal": True}
    result = plan("ring", P=4, layout="contiguous", flops=1e12, link=1e9, **options)
    assert result.seconds is not None
    alone = 8 * (256 * 257 // 2) * 16 / 4 / 1e12
    assert lines["ring, contiguous"][0] == round(result.seconds / alone, 4)
    assert lines["ulysses"][1] is None
    of_N = data["of_N"]
    assert of_N["P"] == 4
    assert of_N["N"] == [16, 64, 256, 1024, 4096]
    assert of_N["lines"]["ring, contiguous"][2] == lines["ring, contiguous"][0]
    assert of_N["lines"]["mesh, striped"] == sorted(of_N["lines"]["mesh, striped"], reverse=True)


def test_the_error_of_a_ring_grows_with_hops_where_unfinished_rows_are_kept_in_16_bits() -> None:
    figure = plots.FIGURES["hops"]
    kept = figure.data(N=96, d=8, P=(1, 12))["kept"]
    assert (
        kept["float32"][0]
        == pytest.approx(kept["float32"][1], rel=0.02)
        == pytest.approx(kept["bfloat16"][0], rel=0.02)
    )
    assert kept["bfloat16"][1] > 1.8 * kept["float32"][1]


def test_what_is_in_hbm_of_a_mesh_is_of_the_device_s_own_row_and_column() -> None:
    problem = Problem.of(N=11, d=3, d_v=2, M=200)
    # lengths 2, 2, 2, 2, 2, 1
    where = positions("contiguous", 11, 6)
    _ = problem.shape
    share = Share(problem, where, where, 2, 2)
    room = theory.forms()["mesh", "forward"].room
    assert room is not None
    rows_of = [len(rows) for rows in where]
    for C in (1, 2, 3, 6):
        for p in range(6):
            first = p // C * C
            row = sum(rows_of[first : first + C])
            column = sum(rows_of[p % C :: C])
            by_hand = row * 7 + rows_of[p] * (4 * C - 1) + column * 5
            assert room(share, p, C) == by_hand


@pytest.mark.parametrize("wrong", [[[0, 1], [1, 2]], [[0, 1], [2]], [[0, 1], [2, 4]]])
def test_each_position_is_on_one_device(wrong: list[list[int]]) -> None:
    where = [np.array([0, 1]), np.array([2, 3])]
    others = [np.array(rows) for rows in wrong]
    problem = Problem.of(N=4, d=2, M=100)
    assert Share(problem, where, where, 1, 1).most_rows == 2
    with pytest.raises(ValueError, match=r"where has \d positions; expected each of 0 to 3 once"):
        Share(problem, others, where, 1, 1)
    with pytest.raises(ValueError, match=r"queries has \d positions"):
        Share(problem, where, others, 1, 1)

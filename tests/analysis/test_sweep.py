"""Sweeps: rows that equal counts, points that make no sense, tables in and out, what is
cross-checked, questions answered.
"""

import csv
import importlib
import io
import itertools
import json
import math
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import theory
from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.analysis.sweeping import Disagreement, Sweep, costs, crossovers, points, running
from flashsim.analysis.sweeping.records import meaning
from flashsim.attention.masks import patterns
from flashsim.cli import main
from flashsim.support.jobs import in_any_order
from tests.helpers.cases import Arguments
from tests.helpers.own import FORM, TWO_SWEEPS, two_sweeps

SMALL: Arguments = {"N": [9, 24], "d": [4, 8], "M": [60, 700]}
FUSED_OR_NOT = ["flash", "standard"]
EITHER_LOOP = ["flash", "q_outer"]


def keys(sweep: Sweep, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in sweep]


# --------------------------------------------------------------------------------------------------
# the points


def test_rows_are_what_is_counted() -> None:
    """Each by `flashsim.count` itself, in every column; a row has no counts where a count is an
    error, and else has.
    """
    options: Arguments = {
        "blocks": [None, (5, 3)],
        "causal": [False, True],
        "direction": ["forward", "backward"],
    }
    names = ["flash", "q_outer", "standard"]
    sweep = flashsim.sweep(names, **SMALL, **options, check=0)
    every = itertools.product(names, *options.values(), *SMALL.values())
    assert len(sweep) == len(list(every)) == 3 * 2 * 2 * 2 * 8
    for row in sweep:
        arguments = {name: row[name] for name in ("N", "d", "M", "causal", "direction")}
        blocks = None if row["blocks"] is None else (5, 3)
        try:
            tally = flashsim.count(row["algorithm"], **arguments, blocks=blocks)
        except (ValueError, flashsim.SramOverflow):
            assert row["accesses_elements"] is None
            assert row["status"] != "ok"
            assert row["reason"]
            continue
        hbm = tally.hbm
        B = tally.blocks
        assert row["status"] == "ok"
        sums = ("reads", "writes", "init_writes", "accesses", "extra")
        for name in sums:
            assert row[f"{name}_elements"] == getattr(hbm, name)
        assert row["peak_elements"] == tally.sram.peak
        assert row["traffic_bytes"] == hbm.bytes
        assert row["matmul_flops"] == tally.flops.matmul
        for name in ("B_r", "B_c", "T_r", "T_c"):
            assert row[name] == getattr(B, name)
        for name, array in hbm.by_array.items():
            assert row[f"{name}_reads_elements"] == array.reads
            assert row[f"{name}_writes_elements"] == array.writes
    assert {status for (status,) in keys(sweep, "status")} == {"ok", "does not fit"}


def test_formulas_stand_beside_the_counts() -> None:
    ways = ["forward", "backward"]
    forward, backward = flashsim.sweep(
        "flash", N=64, d=8, M=200, heads=4, kv_heads=2, direction=ways
    )
    Q_and_O = 64 * 8 + 64 * 8
    K_and_V = 64 * 8 + 64 * 8
    assert forward["compulsory_elements"] == 4 * Q_and_O + 2 * K_and_V
    assert backward["compulsory_elements"] == 4 * 3 * 64 * 8 + 2 * 4 * 64 * 8
    assert (
        forward["over_compulsory"] == forward["accesses_elements"] / forward["compulsory_elements"]
    )
    assert forward["theta_elements"] == 4 * theory.theorem_2_flash(64, 8, 200)
    assert forward["intensity_flops_per_byte"] == forward["matmul_flops"] / forward["traffic_bytes"]
    (standard,) = flashsim.sweep("standard", N=64, d=8, M=200)
    assert standard["theta_elements"] == 64 * 8 + 64 * 64
    (wide,) = flashsim.sweep("flash", N=64, d=8, d_v=4, M=200)
    assert wide["theta_elements"] is None


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_what_a_theorem_says_of_a_pass_is_known_where_there_is_one(direction: str) -> None:
    records = FORWARD if direction == "forward" else BACKWARD
    quadratic = ["flash", "q_outer"]
    if direction == "forward":
        quadratic.append("flash_basic")
    else:
        quadratic += ["q_outer_two_pass", "q_outer_streamed"]
    sweep = flashsim.sweep([*records], N=64, d=8, M=200, direction=direction)
    thetas = {row["algorithm"]: row["theta_elements"] for row in sweep}
    expected = dict.fromkeys(quadratic, theory.theorem_2_flash(64, 8, 200))
    expected |= {
        "standard": theory.theorem_2_standard(64, 8),
        "small_cache": theory.theorem_saha_ye(64, 8, 200),
    }
    assert {name: thetas[name] for name in expected} == expected
    for name, theta in thetas.items():
        assert (theta is None) == (
            theory.form_of(records[name].forward_pass, "forward").theta is None
        ), name
    assert all(thetas.get(name) is None for name in ("snake", "block_sparse", "sliding_window"))


def test_one_value_or_many() -> None:
    pairs = np.array([[4, 4], [8, 8]])
    N_of_numpy = np.array([8, 16])
    arrays = flashsim.sweep("flash", N=N_of_numpy, d=np.int64(4), blocks=pairs)
    squares = ((4, 4), (8, 8))
    lists = flashsim.sweep(["flash"], N=range(8, 17, 8), d=[4], blocks=squares)
    assert list(arrays) == list(lists)
    assert keys(lists, "blocks", "N") == [
        ("4 × 4", 8),
        ("4 × 4", 16),
        ("8 × 8", 8),
        ("8 × 8", 16),
    ]
    for one in ((4, 2), [4, 2], [(4, 2)], np.array([4, 2])):
        sweep = flashsim.sweep(N=8, d=4, blocks=one)
        assert keys(sweep, "B_r", "B_c") == [(4, 2)]
    sweep = flashsim.sweep(N=iter([8]), d={4}, causal=(True, False))
    assert keys(sweep, "causal") == [(True,), (False,)]
    sizes: Arguments = {"N": 64, "d": 4, "M": 200}
    windows = flashsim.sweep("sliding_window", **sizes, window=[4, (4, 4)])
    assert keys(windows, "window", "status") == [(4, "ok"), ("(4, 4)", "ok")]
    one_window = flashsim.sweep("sliding_window", **sizes, window=(4, 4))
    assert keys(one_window, "window") == [("(4, 4)",)]
    mask = np.ones((8, 8), bool)
    masked = flashsim.sweep(N=8, d=4, mask=mask)
    assert keys(masked, "mask") == [("array of shape (8, 8)",)]
    masks = [flashsim.Causal(), mask, None]
    assert len(flashsim.sweep(N=8, d=4, mask=masks)) == 3


def test_what_exceeds_M_is_counted_where_that_is_asked_for() -> None:
    too_much: Arguments = {"N": 64, "d": 8, "M": 100, "blocks": (16, 16)}
    refused, counted = flashsim.sweep("flash", **too_much, enforce=[True, False])
    assert refused["status"] == "does not fit"
    assert counted["status"] == "ok"
    assert counted["checked"] is True
    want = flashsim.count("flash", **too_much, enforce=False)
    assert counted["accesses_elements"] == want.hbm.accesses
    assert counted["peak_over_M"] > 1


def test_blocks_of_ones_own_need_no_room_for_line_1() -> None:
    arguments: Arguments = {"N": 16, "d": 128, "M": 100}
    arguments |= {"blocks": (1, 1), "sizing": "paper"}
    (row,) = flashsim.sweep("flash", **arguments, enforce=False, check=0)
    assert row["status"] == "ok"
    counted = flashsim.count("flash", **arguments, enforce=False)
    assert row["accesses_elements"] == counted.hbm.accesses


def test_kv_heads_are_the_heads_by_default() -> None:
    sweep = flashsim.sweep(N=8, d=4, heads=[1, 4])
    assert sweep.column("kv_heads") == [1, 4]
    assert sweep.axes == {"heads": [1, 4]}


def test_an_option_is_varied_for_those_that_have_it() -> None:
    sweep = flashsim.sweep(["flash", "split_kv"], N=[8, 16], d=4, splits=[1, 2])
    assert keys(sweep, "algorithm", "splits", "N") == [
        ("flash", None, 8),
        ("flash", None, 16),
        ("split_kv", 1, 8),
        ("split_kv", 1, 16),
        ("split_kv", 2, 8),
        ("split_kv", 2, 16),
    ]


@pytest.mark.parametrize(
    ("what", "options", "reason"),
    [
        ("flash", {"N": 0}, "N is 0; expected at least 1"),
        ("flash", {"N": 2.5}, "N is 2.5; expected a whole number"),
        ("flash", {"d": "many"}, "d is 'many'; expected a whole number"),
        (
            "flash",
            {"d": 128, "M": 100, "sizing": "paper"},
            "M = 100 elements is too small: the paper takes M ≥ d",
        ),
        (
            "flash",
            {"d": 128, "M": 100},
            "blocks of 1 × 1, the smallest, take 519 elements of SRAM, 419 more than M = 100",
        ),
        (
            "flash",
            {"M": 60, "sizing": "fit", "d": 64},
            "blocks of 1 × 1, the smallest, take 263 elements of SRAM",
        ),
        (
            "flash",
            {"blocks": (64, 100), "M": 25_600, "d": 64, "N": 1024},
            "2,176 more than M = 25,600",
        ),
        ("flash", {"heads": 3, "kv_heads": 2}, "heads is 3; expected a multiple of kv_heads = 2"),
        ("flash", {"direction": "sideways"}, "direction is 'sideways'"),
        ("flash_basic", {"direction": "backward"}, "'flash_basic' has no backward pass here"),
        ("flash_basic", {"causal": True}, "'flash_basic' has neither mask nor dropout"),
        ("block_sparse", {"block_mask": np.ones((3, 3), bool)}, "block_mask has shape (3, 3)"),
    ],
)
def test_a_point_that_makes_no_sense_is_a_row_with_the_reason(
    what: str, options: dict[str, Any], reason: str
) -> None:
    arguments = {"N": 16, "d": 4, **options}
    sweep = flashsim.sweep([what, "memory_efficient"], **arguments)
    row = sweep[0]
    assert reason in row["reason"]
    assert row["status"] in ("refused", "does not fit")
    assert row["accesses_elements"] is None
    with pytest.raises((ValueError, flashsim.SramOverflow)):
        flashsim.count(what, **arguments)
    assert sweep.refused[0]["algorithm"] == what


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"algorithms": "flsh"}, ValueError, "unknown algorithm 'flsh'"),
        ({"algorithms": []}, ValueError, r"algorithms is \[\]; expected at least one value"),
        ({"N": []}, ValueError, r"N is \[\]; expected at least one value"),
        ({"N": None}, ValueError, "a length is missing"),
        ({"d": None}, ValueError, "d is missing"),
        ({"widnow": 3}, TypeError, "sweep takes no argument 'widnow'; did you mean 'window'"),
        ({"splits": [1, 2]}, ValueError, "'flash' takes no option splits; 'split_kv' does"),
        (
            {"N": range(1025), "d": range(1025)},
            ValueError,
            "this is 1,050,625 points; expected at most 1,048,576",
        ),
        ({"check": -1}, ValueError, "check is -1"),
        ({"jobs": 0}, ValueError, "jobs is 0"),
        ({"on_points": 3}, ValueError, "on_points is 3"),
        ({"points": [{"N": 3}]}, ValueError, "N is given twice"),
        ({"points": [{"n": 3}]}, TypeError, "takes no argument 'n'; did you mean 'N'"),
        ({"points": []}, ValueError, "points has no rows"),
        ({"points": "shapes.csv"}, ValueError, "points is 'shapes.csv'; expected a table"),
        ({"points": [3]}, ValueError, "points has the row 3"),
        ({"points": {"heads": [1], "d_v": [1, 2]}}, ValueError, "several lengths: heads 1, d_v 2"),
        ({"N": range(10**9)}, ValueError, "N has more than 1,048,576 values; expected fewer"),
        ({"N": itertools.count(1)}, ValueError, "N has more than 1,048,576 values; expected fewer"),
        (
            {"N": None, "points": ({"N": 1} for _ in itertools.count())},
            ValueError,
            "points has more than 1,048,576 values",
        ),
    ],
)
def test_what_is_wrong_everywhere_is_said_at_once(
    arguments: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        flashsim.sweep(**{"algorithms": "flash", "N": 8, "d": 4, **arguments})


# --------------------------------------------------------------------------------------------------
# tables in


def test_a_table_s_rows_meet_every_combination_of_the_rest() -> None:
    table = [
        {"label": "small", "N": 8, "d": 4},
        {"label": "large", "N": 16, "d": 8, "M": 100.0},
    ]
    sweep = flashsim.sweep(["flash", "standard"], points=table, causal=[False, True])
    assert keys(sweep, "label", "N", "d", "M", "algorithm", "causal")[::3] == [
        ("small", 8, 4, 25_600, "flash", False),
        ("small", 8, 4, 25_600, "standard", True),
        ("large", 16, 8, 100, "standard", False),
    ]
    by_columns = {
        "label": ["small", "large"],
        "N": [8, 16],
        "d": [4, 8],
        "M": [math.nan, 100.0],
    }
    same = flashsim.sweep(FUSED_OR_NOT, points=by_columns, causal=[False, True])
    assert list(same) == list(sweep)


def test_a_sweep_is_a_table(tmp_path: Path) -> None:
    """In Python and as CSV: the same rows come of it."""
    arguments: Arguments = {
        "N": [9, 24],
        "d": 4,
        "M": [60, 700],
        "direction": ["forward", "backward"],
        "blocks": [None, (8, 4)],
        "splits": [1, 3],
        "block_mask": ["live", patterns.butterfly],
    }
    sweep = flashsim.sweep(["flash", "split_kv", "block_sparse"], **arguments, check=0)
    assert list(flashsim.sweep(points=sweep, check=0)) == list(sweep)
    csv = tmp_path / "sweep.csv"
    again = tmp_path / "again.csv"
    sweep.to_csv(csv)
    command = ["sweep", "--points", str(csv), "--check", "0"]
    assert main([*command, "--csv", str(again)]) == 0
    assert again.read_bytes() == csv.read_bytes()


# --------------------------------------------------------------------------------------------------
# cross-checked


def test_a_sweep_read_back_varies_in_what_it_varied_in() -> None:
    """N_q and N_k, where they are N, and d_v, where it is d, are not arguments of their own."""
    lengths: Arguments = {"N": [64, 256, 1024], "d": [16, 32]}
    sweep = flashsim.sweep(EITHER_LOOP, **lengths, heads=[2, 4], M=2000)
    back = flashsim.sweep(points=sweep)
    assert back.axes == sweep.axes
    assert crossovers.sentences(back) == crossovers.sentences(sweep) != []
    apart = flashsim.sweep(N_q=[8, 16], N_k=[8, 16], d=8, d_v=[8, 9])
    again = flashsim.sweep(points=apart)
    assert {"N_q", "N_k", "d_v"} <= set(again.axes)
    square = [{"N_q": N, "N_k": N, "d": 4} for N in (8, 16)]
    axes = flashsim.sweep(points=square).axes
    assert axes == {"N_q": [8, 16], "N_k": [8, 16]}


def test_a_row_without_a_width_says_so_and_dtypes_are_called_by_one_name() -> None:
    table = [{"N": 8, "d": 4}, {"N": 8}]
    (_, row) = flashsim.sweep(points=table)
    assert row["reason"] == "d is missing: give the head dimension"
    dtypes = ["fp16", np.float16, "half", "int8"]
    sweep = flashsim.sweep(N=8, d=4, dtype=dtypes)
    assert keys(sweep, "dtype") == [
        ("float16",),
        ("float16",),
        ("float16",),
        ("int8",),
    ]


def test_the_sample_is_seeded_and_has_some_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[points.Point] = []

    def by_count(point: points.Point) -> costs.Cost:
        counted.append(point)
        return costs.by_count(point)

    monkeypatch.setattr(running, "by_count", by_count)
    arguments: Arguments = {
        "N": range(8, 108),
        "d": 4,
        "direction": ["forward", "backward"],
        "check": 8,
    }
    first = flashsim.sweep(EITHER_LOOP, **arguments, seed=1)
    again = flashsim.sweep(EITHER_LOOP, **arguments, seed=1)
    other = flashsim.sweep(EITHER_LOOP, **arguments, seed=2)
    assert list(first) == list(again) != list(other)
    sample = [row for row in first if row["checked"]]
    assert sample != [row for row in other if row["checked"]]
    ways = [(row["algorithm"], row["direction"]) for row in sample]
    each = itertools.product(EITHER_LOOP, ["forward", "backward"])
    assert sorted(ways) == sorted(2 * [*each])
    assert first.checked == 8
    assert len(counted) == 24
    for check, checked in {0: 0, 1: 1, 3: 3, 9: 4}.items():
        small = flashsim.sweep(EITHER_LOOP, N=[8, 9], d=4, check=check)
        assert small.checked == checked
    pattern: dict[str, Any] = {"blocks": (4, 4), "block_mask": patterns.butterfly}
    few, many = flashsim.sweep("block_sparse", N=[64, 4096], d=4, **pattern)
    # a pattern's 2²⁸ tiles would take hours
    assert few["checked"] is True
    assert many["checked"] is False
    assert many["status"] == "ok"


def test_a_closed_form_that_is_wrong_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its traffic, a peak that is too large or too small, or its FLOPs."""
    right = theory.form_of("flash", "forward")
    for form in (
        replace(right, traffic=lambda p, blocks, tiles: p.array("Q", "input", reads=7)),
        replace(right, peak=lambda p, blocks, tiles: p.M + 1),
        replace(right, peak=lambda p, blocks, tiles: 1),
        replace(right, products=(1, 2)),
    ):
        monkeypatch.setattr(points, "form_of", lambda what, direction, form=form: form)
        with pytest.raises(
            Disagreement, match=r"closed form and count differ for 'flash' at .*N=8"
        ):
            flashsim.sweep(N=8, d=4, blocks=[(4, 4)])
        unchecked = flashsim.sweep(N=8, d=4, blocks=[(4, 4)], check=0)
        assert len(unchecked) == 1


def test_points_can_be_handed_to_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one's own algorithm, too, whose form has a lambda."""
    (tmp_path / "swept_elsewhere.py").write_text(TWO_SWEEPS + FORM, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    own_algorithm = importlib.import_module("swept_elsewhere").two_sweeps
    names = {"forward": [*FORWARD, own_algorithm], "backward": [*BACKWARD]}
    for direction, passes in names.items():
        arguments: Arguments = {"direction": direction, "N": 8, "d": 4}
        for point in points.points_of(passes, None, arguments, flashsim.sweep):
            handed = pickle.loads(pickle.dumps(point))
            assert (handed.arguments, handed.algorithm_pass.name) == (
                point.arguments,
                point.algorithm_pass.name,
            )
            assert handed.algorithm_pass.form is point.algorithm_pass.form is not None


def test_what_has_no_closed_form_is_counted_and_a_mask_of_ones_own_is_called_by_its_class(
    tmp_path: Path,
) -> None:
    class Even(flashsim.Mask):
        def allows(self, rows: Any, cols: Any, shape: Any, head: Any) -> Any:
            return np.broadcast_to(cols % 2 == 0, (len(rows), len(cols)))

    masks = [Even(), Even() & flashsim.Causal()]
    text = repr(flashsim.sweep("flash", N=8, d=4, mask=masks))
    assert "Even()" in text
    assert "0x" not in text
    own_algorithm = two_sweeps(tmp_path / "mine.py")
    sizes: Arguments = {"N": 24, "d": 4, "M": 200}
    own = flashsim.sweep(own_algorithm, **sizes)[0]
    masked = flashsim.sweep("block_sparse", **sizes, mask=Even(), block_mask="live")[0]
    for row in (own, masked):
        assert row["source"] == "count"
        assert row["checked"] is False
    tally = flashsim.count(own_algorithm, **sizes)
    assert own["accesses_elements"] == tally.hbm.accesses
    too_large = flashsim.sweep(own_algorithm, **sizes, blocks=(24, 24))
    assert keys(too_large, "status") == [("does not fit",)]


def test_what_computes_nothing_is_refused_with_its_reason() -> None:
    def nothing(hbm: Any, sram: Any, Q: Any, K: Any, V: Any, blocks: Any) -> Any:
        O_shape = (Q.shape[0], V.shape[1])
        return hbm.empty("O", O_shape, Q.dtype, "output")

    names = ["flash", nothing]
    sweep = flashsim.sweep(names, N=[24, 32], d=4, M=200)
    assert keys(sweep, "status")[2:] == [("refused",), ("refused",)]
    assert all("rows of it were never stored" in row["reason"] for row in [*sweep][2:])
    assert [row["intensity_flops_per_byte"] for row in sweep][2:] == [None, None]
    assert "null" in sweep.to_json()
    sweep.plot()


def test_processes_and_progress() -> None:
    from joblib import parallel_config

    calls: list[tuple[int, int]] = []
    arguments: Arguments = {"N": range(8, 608), "d": [4, 8], "M": 200}
    arguments["check"] = 0

    def note(done: int, of: int) -> None:
        calls.append((done, of))

    alone = flashsim.sweep(**arguments, on_points=note)
    assert calls == [(500, 1200), (1000, 1200), (1200, 1200)]
    with parallel_config(backend="threading", n_jobs=2):
        for jobs in (None, 3):
            assert list(flashsim.sweep(**arguments, jobs=jobs)) == list(alone)


class Heads(int):
    """A whole number of a class of its own."""


@pytest.mark.parametrize(
    "arguments",
    [
        {"N": [9, 2**40], "d": 4, "M": 200, "blocks": [None, (999, 999)]},
        {"N": 40, "d": 8, "M": 300, "bound": True, "direction": ["forward", "backward"]},
        {"N": 8, "d": 4, "dropout_p": [np.float64(0.5), 0.25], "heads": [Heads(2)]},
        {"N": [0, 2.5], "d": ["many", [5]], "blocks": [("a", 3), (2.5, 4)]},
        {"algorithms": "standard", "N": 64, "d": 8, "M": 200},
    ],
)
def test_a_file_of_rows_gives_them_back_as_they_were(
    arguments: dict[str, Any], tmp_path: Path
) -> None:
    """Integers of any size, numbers of NumPy, text, certificates; and none is computed again."""
    without = flashsim.sweep(**arguments)
    file = tmp_path / "kept"
    first = flashsim.sweep(**arguments, resume=file)
    text = file.read_bytes()
    again = flashsim.sweep(**arguments, resume=file, jobs=no_work)
    assert first.rows == again.rows == without.rows
    assert again.to_csv() == without.to_csv()
    assert again.certificates == without.certificates
    assert file.read_bytes() == text


def no_work(work: Any, pieces: Any) -> Iterator[Any]:
    assert pieces == []
    return iter(())


def test_a_line_of_a_file_that_is_not_rows_is_computed_again(tmp_path: Path) -> None:
    arguments: Arguments = {"N": range(8, 128), "d": 4, "M": 200}
    arguments["check"] = 0
    file = tmp_path / "kept"
    whole = flashsim.sweep(**arguments, resume=file)
    header, first, second, third = file.read_text(encoding="utf-8").splitlines()
    short = json.loads(second)
    short["rows"].pop()
    other = json.loads(third) | {"piece": 7}
    for line in (
        json.dumps(short),
        json.dumps(other),
        second.replace('"accesses_elements":', '"accesses_elements":"x", "y":'),
        '{"piece":' + 10_000 * "[",
        '{"x":' + 10_000 * "[",
        '{"piece":1,"rows":["\udcff"]}',  # a byte that is not UTF-8
        "[]",
    ):
        text = "\n".join([header, first, line, ""])
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
        counted: list[int] = []

        def count_pieces(work: Any, pieces: Any, counted: Any = counted) -> Iterator[Any]:
            counted.append(len(pieces))
            return in_any_order(work, pieces, 1)

        assert flashsim.sweep(**arguments, resume=file, jobs=count_pieces).rows == whole.rows
        assert counted == [2]


# --------------------------------------------------------------------------------------------------
# tables out


def test_csv_and_json_hold_every_row_exactly(tmp_path: Path) -> None:
    arguments: Arguments = {
        "N": [9, 2**40],
        "blocks": [None, (999, 999)],
        "causal": [False, True],
    }
    sweep = flashsim.sweep(["flash", "standard"], **arguments, d=4, M=200)
    assert sweep.to_csv(tmp_path / "rows.csv") is None
    lines = list(csv.DictReader(io.StringIO(sweep.to_csv())))
    assert (tmp_path / "rows.csv").read_bytes().decode() == sweep.to_csv()
    loaded = json.loads(sweep.to_json())
    assert sweep.to_json(tmp_path / "rows.json") is None
    assert loaded == json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert loaded["rows"] == list(sweep)
    assert (loaded["flashsim"], loaded["points"], loaded["ok"]) == (
        flashsim.__version__,
        16,
        len(sweep.ok),
    )
    assert loaded["ok"] + loaded["does_not_fit"] + loaded["refused"] == 16
    assert loaded["cross_checked"] == sweep.checked == 16
    assert list(loaded["columns"]) == list(sweep.columns) == list(lines[0])
    for line, row in zip(lines, sweep, strict=True):
        assert line == {
            name: ""
            if value is None
            else str(value).lower()
            if isinstance(value, bool)
            else str(value)
            for name, value in row.items()
        }
    assert max(row["matmul_flops"] or 0 for row in sweep) > 2**63
    assert all(meaning(name) or name in ("algorithm", "mask", "splits") for name in sweep.columns)


def test_no_text_of_a_csv_is_a_formula(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = ["=1+1", "+1", "-1", "@SUM(A1)", "'=1", "\t=1"]
    file = tmp_path / "found.csv"
    table = [{"N": 8, "d": 4, "label": label} for label in labels]
    flashsim.sweep(points=table).to_csv(file)
    text = file.read_bytes().decode()
    _, *lines = csv.reader(io.StringIO(text, newline=""))
    assert [cell for cell, *_ in lines] == [f"'{label}" for label in labels]
    assert main(["sweep", "--points", str(file), "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["label"] for row in rows] == labels


def test_what_a_terminal_would_obey_is_spelled() -> None:
    def rude(hbm: Any, sram: Any, Q: Any, K: Any, V: Any, blocks: Any) -> Any:
        raise ValueError("\x1b[2J")

    table = [{"N": N, "label": f"\x1b[31m{N}"} for N in (8, 9)]
    sweep = flashsim.sweep(["flash"], d=4, points=table)
    assert "\x1b" not in sweep.as_text()
    refused = flashsim.sweep(rude, N=8, d=4)[0]
    assert refused["reason"].startswith("\\x1b[2J (at line")


def test_pandas_holds_integers_exactly() -> None:
    pytest.importorskip("pandas", reason='pandas is not installed: pip install -e ".[pandas]"')
    options: Arguments = {"d": 4, "M": 200}
    options["blocks"] = [(4, 4), (999, 999)]
    small = flashsim.sweep(N=[8, 16], **options)
    large = flashsim.sweep(N=[8, 2**40], **options)
    table = small.to_pandas()
    dtypes = [str(table[name].dtype) for name in ("N", "accesses_elements", "causal")]
    assert dtypes == ["int64", "Int64", "bool"]
    assert table.accesses_elements.dropna().tolist() == small.ok.column("accesses")
    assert table.attrs["cross_checked"] == 4
    assert table.attrs["columns"]["peak_elements"] == "the most in SRAM at once"
    assert large.to_pandas().matmul_flops.dropna().tolist() == large.ok.column("matmul_flops")
    assert list(flashsim.sweep(points=table)) == list(small)
    assert list(table.columns) == list(small.columns)


def test_rows_by_index_and_columns_by_short_names() -> None:
    sweep = flashsim.sweep(N=[8, 16, 24], d=4)
    assert sweep[-1]["N"] == 24
    assert [row["N"] for row in sweep[1:]] == [16, 24]
    assert len(sweep[:2]) == 2
    blocks = [None, (999, 999)]
    some = flashsim.sweep(N=[8, 16], d=4, blocks=blocks, M=100)
    for part in (some.ok, some.refused, some[:1]):
        assert part.columns == some.columns
    assert len(some.ok.plot().get_lines()) == 1
    assert len(some.plot().get_lines()) == 1
    assert sweep.column("accesses") == sweep.column("accesses_elements")
    assert sweep.axes == {"N": [8, 16, 24]}
    with pytest.raises(IndexError):
        sweep[3]
    with pytest.raises(
        ValueError, match="there is no column 'acesses', perhaps you mean 'accesses_elements'"
    ):
        sweep.column("acesses")


def test_a_sweep_shows_what_varies() -> None:
    sweep = flashsim.sweep(FUSED_OR_NOT, N=range(8, 108), d=4, M=[100, 400])
    text = repr(sweep)
    assert (
        "400 points over algorithm (2), N (100), M (2): 400 with counts, 32 cross-checked by "
        "counting"
    ) in text
    assert "10 of 200 shown" in text
    assert max(map(len, text.splitlines()[1:])) <= 80
    wide = flashsim.sweep(FUSED_OR_NOT, N=[8, 16], d=16, M=100_000, sizing="paper")
    assert wide.as_text() == wide.as_text(width=80) != wide.as_text(width=81)
    html = sweep._repr_html_()
    assert html.count("<tr>") == 11
    assert "<caption>" in html
    assert "1 point makes no sense: N is 0; expected at least 1" in repr(
        flashsim.sweep(N=[8, 0], d=4)
    )
    assert "1 of 200 shown" in sweep.as_text(most=1)
    for most in (0, 2.5):
        with pytest.raises(ValueError, match=f"most is {most}"):
            sweep.as_text(most)  # type: ignore[arg-type]
    # whatever it is
    directions = ["forward", ["backward"]]
    refused = flashsim.sweep(N=8, d=[4, [5]], direction=directions, heads=[[2]])
    assert len(refused.refused) == len(refused) == 4
    assert "heads is [2]" in repr(refused)
    assert refused.axes["d"] == [4, "[5]"]


# --------------------------------------------------------------------------------------------------
# questions


def test_where_one_moves_fewer_than_another() -> None:
    sweep = flashsim.sweep(FUSED_OR_NOT, N=range(1, 60), d=[16, 64])
    for run in sweep.where_fewer("flash"):
        assert run["algorithm"] == "flash"
        assert run["than"] == "standard"
        assert run["along"] == "N"
        assert run["of"] == 59
    for d in (16, 64):
        runs = sweep.where_fewer("flash", "standard", along="N")
        fewer_by_runs: list[int] = []
        for run in runs:
            if run["d"] == d:
                fewer_by_runs += range(run["from"], run["to"] + 1)
        fewer = []
        for N in range(1, 60):
            flash = flashsim.count("flash", N=N, d=d).hbm.accesses
            if flash < flashsim.count("standard", N=N, d=d).hbm.accesses:
                fewer.append(N)
        assert fewer
        assert len(fewer) < 59
        assert fewer_by_runs == fewer
    with pytest.raises(
        ValueError, match="there are no counts of 'q_outer'; there are of 'flash', 'standard'"
    ):
        sweep.where_fewer("q_outer")
    with pytest.raises(ValueError, match="no argument of numbers varies"):
        flashsim.sweep(["flash", "standard"], N=8, d=4).where_fewer("flash")


def test_only_what_can_be_compared_is_compared() -> None:
    blocks = [None, (2, 2)]
    sweep = flashsim.sweep(FUSED_OR_NOT, N=[32, 64], d=4, M=100, blocks=blocks)
    for along in ("blocks", "d", "accesses", "algorithm"):
        with pytest.raises(
            ValueError, match=r"along is .*; expected an argument of numbers that varies: N"
        ):
            sweep.where_fewer("flash", along=along)
    with pytest.raises(ValueError, match="y is 'status', which is 'ok' in a row; expected numbers"):
        sweep.where_fewer("flash", y="status")
    with pytest.raises(ValueError, match="than is 'flash', the algorithm itself"):
        sweep.where_fewer("flash", than="flash")
    no_theta = flashsim.sweep(FUSED_OR_NOT, N_q=[8, 9], N_k=4, d=4)
    assert no_theta[0]["theta_elements"] is None
    assert no_theta.where_fewer("flash", y="theta") == []


def test_points_that_look_alike_are_not_taken_for_one() -> None:
    lower = np.tril(np.ones((4, 4), bool))
    diagonal = np.eye(4, dtype=bool)
    masks = [lower, diagonal]
    common: Arguments = {"N": 8, "d": [4, 5], "M": 100, "blocks": (2, 2)}
    sweep = flashsim.sweep(["block_sparse", "flash"], block_mask=masks, **common)
    with pytest.raises(
        ValueError,
        match="several points of 'block_sparse' at d = 4 have other counts, and look alike",
    ):
        sweep.where_fewer("flash")
    assert crossovers.sentences(sweep) == []
    alike = flashsim.sweep(EITHER_LOOP, N=4, d=[4, 5], M=100, mask=masks)
    # not beside each other, where one would hide another
    assert len(alike.as_text().splitlines()) >= 3 + len(alike)
    table = [
        {"label": "lower", "block_mask": lower},
        {"label": "diagonal", "block_mask": diagonal},
    ]
    labelled = flashsim.sweep("block_sparse", points=table, **common)
    assert labelled.where_fewer("block_sparse") == []


def test_a_table_holds_the_algorithms_beside_each_other() -> None:
    names = ["flash", "q_outer", "flash_basic"]
    sweep = flashsim.sweep(names, N=range(8, 208, 8), d=4, M=100)
    text = sweep.as_text(most=5, width=200)
    head, _, *lines, omitted, unit = text.splitlines()
    assert head.split() == ["N", "flash", "q_outer", "flash_basic", "fewest"]
    lengths = [int(line.split()[0]) for line in lines]
    assert lengths == [8, 56, 104, 152, 200]
    for line in lines:
        cells = line.split()
        N, *counts = (int(cell.replace(",", "")) for cell in cells[:4])
        for name, count in zip(names, counts, strict=True):
            assert count == flashsim.count(name, N=N, d=4, M=100).hbm.accesses
        assert cells[4] == "q_outer"
        assert counts[1] == min(counts)
    assert omitted == "5 of 25 shown"
    assert unit.startswith("forward, d = 4, M = 100, heads = 1, float32, sizing = ")


def test_ratios_are_to_the_first_of_their_own_line() -> None:
    sweep = flashsim.sweep("flash", N=[16, 64], d=[4, 8], M=100)
    head, _, *lines, _ = sweep.as_text(width=90).splitlines()
    assert head.split("  ")[2:] == ["accesses", "÷ first", "÷ compulsory", "peak ÷ M", "B_r × B_c"]
    for row, line in zip(sweep, lines, strict=True):
        first = flashsim.count("flash", N=16, d=row["d"], M=100)
        ratios = (
            row["accesses_elements"] / first.hbm.accesses,
            row["over_compulsory"],
            row["peak_elements"] / 100,
        )
        assert line.split()[3:6] == [f"{ratio:.2f}" for ratio in ratios]


def test_columns_that_are_too_many_for_the_width_are_left_out() -> None:
    sweep = flashsim.sweep("flash", N=[16, 64], d=[4, 8], M=100)
    head, rule, *_ = sweep.as_text(width=40).splitlines()
    assert head.split("  ")[2:] == ["accesses", "÷ first", "÷ compulsory"]
    assert len(rule) <= 40
    head, *_ = sweep.as_text(width=1).splitlines()
    assert head.split() == ["d", "N", "accesses"]


def test_answers_say_no_more_than_was_found() -> None:
    assert (
        crossovers._halves("M", {1: 8, 2: 4, 3: 4})
        == "half of what M = 1 moves, or less: from M = 2 on"
    )
    assert (
        crossovers._halves("M", {1: 8, 2: 3, 3: 5, 4: 4})
        == "half of what M = 1 moves, or less: from M = 4 on"
    )
    assert crossovers._halves("M", {1: 8, 2: 3, 3: 5}) == ""
    names = ["flash", "block_sparse"]
    equal = flashsim.sweep(names, N=[8, 64], d=[4, 8], M=100)
    assert equal.where_fewer("flash") == []
    assert crossovers.sentences(equal) == [
        "flash and block_sparse move equally many at all 4 points that both have"
    ]
    rooms = [100, 300, 1000, 5000]
    sweep = flashsim.sweep("flash", N=64, d=[4, 8, 16], M=rooms)
    text = crossovers.sentences(sweep)
    assert len(text) == 3
    assert crossovers.sentences(sweep, most=1) == [text[0], "and 2 more such lines"]
    by_turns = {n: -(n % 2) for n in range(10)}
    all_equal = dict.fromkeys(range(10), 0)
    every_other = crossovers._comparison_of_lines("a", "b", "N", by_turns, all_equal)
    assert every_other == (
        "a moves fewer than b at N = 1, at N = 3, at N = 5, at N = 7, and in 1 more range (tried: "
        "N = 0 to 9, 10 values)"
    )


def test_a_picture_has_a_line_for_each_combination() -> None:
    lengths: Arguments = {"N": [64, 8, 512], "d": [4, 8], "M": 100}
    sweep = flashsim.sweep(FUSED_OR_NOT, **lengths, causal=[False, True])
    ax = sweep.plot()
    assert ax.get_xlabel() == "N"
    assert ax.get_ylabel() == "HBM accesses (elements)"
    assert ax.get_xscale() == "log"
    drawn = {line.get_label(): line for line in ax.get_lines()}
    assert len(drawn) == 8
    rows = [row for row in sweep if row["algorithm"] == "flash" and row["d"] == 8]
    causal = [[row["N"], row["accesses_elements"]] for row in rows if row["causal"]]
    line = drawn["FlashAttention, d = 8, causal"]
    assert np.asarray(line.get_xydata()).tolist() == sorted(causal)
    own = sweep.plot(x="d", y="peak_over_M", by="algorithm", ax=ax)
    assert own is ax
    with pytest.raises(ValueError, match="status is 'ok' in a row; expected numbers to draw"):
        sweep.plot(y="status")
    with pytest.raises(ValueError, match="no row has both"):
        flashsim.sweep(N=[0, -1], d=4).plot()
    for ends in ((512, 2048), (128, 1 << 17)):  # ticks to read a logarithmic axis by
        ax = flashsim.sweep("flash", N=ends, d=64).plot()
        assert ax.get_yscale() == "log"
        low, high = ax.get_ylim()
        assert 3 <= sum(low <= tick <= high for tick in ax.get_yticks()) <= 9


@pytest.mark.parametrize("lines", [2, 9, 14, 20])
def test_a_picture_s_key_is_within_it_and_beside_the_axes(lines: int) -> None:
    lengths = list(range(600, 630))
    rooms = [10_000 + 1_000 * n for n in range(lines)]
    ax = flashsim.sweep("flash", N=lengths, d=64, M=rooms).plot()
    figure = ax.figure
    legend = ax.get_legend()
    assert legend is not None
    figure.draw_without_rendering()  # type: ignore[union-attr]
    box = legend.get_window_extent()
    assert box.x0 >= ax.get_window_extent().x1
    assert box.x1 <= ax.figure.bbox.x1
    assert box.y0 >= 0

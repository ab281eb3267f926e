"""flashsim beside AccelForge, a mapper that knows nothing of it: the bound holds, and one
statistic is all that is between.
"""

import json
import re
import runpy
from collections import Counter
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

import flashsim
from flashsim import serving, theory
from tests.helpers.cases import Arguments
from tests.helpers.pages import ROOT, has_numbers, paragraphs, text_of

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "referee.py"))
NEAR, POINTS, STREAMED, best, statistic = (
    SCRIPT[name] for name in ("NEAR", "POINTS", "STREAMED", "best", "statistic")
)
FRONTS: list[dict[str, Any]] = json.loads(POINTS.read_text(encoding="utf-8"))
FORWARD = [front for front in FRONTS if front["direction"] == "forward"]
NAMES = [f"{front['N']}, {front['d']}, {front['direction']}" for front in FRONTS]
QUICK = []
for front in FORWARD:
    marks = [pytest.mark.slow] if front["N"] > 1024 else []
    QUICK.append(pytest.param(front, marks=marks))


@cache
def recorded() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(
        (ROOT / "figures" / "referee.json").read_text(encoding="utf-8")
    )["rows"]
    return rows


def rows_of(front: dict[str, Any]) -> list[dict[str, Any]]:
    names = ("N", "d", "direction")
    return [row for row in recorded() if all(row[name] == front[name] for name in names)]


@cache
def bound(N: int, d: int, direction: str, M: int) -> Any:
    lower: Any = theory.lower_bound if direction == "forward" else theory.lower_bound_backward
    return lower(N_q=N, N_k=N, d=d, d_v=d, M=M)


@pytest.mark.slow
@pytest.mark.parametrize("front", FRONTS, ids=NAMES)
def test_none_of_its_mappings_moves_less_than_the_bound(front: dict[str, Any]) -> None:
    for M, accesses in front["fused"] + front["unfused"]:
        assert bound(front["N"], front["d"], front["direction"], M).accesses <= accesses


def test_the_rows_are_of_all_its_points() -> None:
    for front in FRONTS:
        points = [[row["M"], row["accesses"]] for row in rows_of(front)]
        assert points == front["fused"]
    assert sum(len(front["fused"]) for front in FORWARD) == 80


@pytest.mark.parametrize("front", QUICK, ids=NAMES[:3])
def test_the_best_here_moves_at_most_a_fiftieth_more_with_the_room_of_one_statistic(
    front: dict[str, Any],
) -> None:
    """At its M, or with L_i's elements more; one element less would not do. What is recorded is
    what is found.
    """
    N = front["N"]
    d = front["d"]
    for row in rows_of(front):
        ours = best(N, d, row["M"], names=STREAMED)
        most = NEAR * row["accesses"]
        assert (ours and ours.accesses) == row["ours"]
        if ours is None or ours.accesses > most:
            room = row["M"] + row["more"]
            more = best(N, d, room, names=STREAMED)
            less = best(N, d, room - 1, names=STREAMED)
            assert more is not None
            assert more.accesses <= most
            assert 0 < row["more"] <= row["statistic"] == statistic(more, N, d, room)
            assert less is None or less.accesses > most
        else:
            assert row["more"] == 0


def test_backward_one_element_is_all_that_is_between() -> None:
    """Where the best here moves more than 1.02 times as much, it does not with D_n's element more.

    Nor would it without what AccelForge has not: L, D, and what D is made of, O and dO.
    """
    rows = rows_of(FRONTS[3])
    without = {}
    for number, row in enumerate(rows):
        behind = row["ours"] > NEAR * row["accesses"]
        assert (row["more"], row["statistic"]) == (behind, behind)
        if behind or number % 4 == 0:
            ours = best(row["N"], row["d"], row["M"], "backward")
            assert (ours and ours.accesses) == row["ours"]
        if behind:
            more = best(row["N"], row["d"], row["M"] + 1, "backward", STREAMED)
            assert more.accesses <= NEAR * row["accesses"]
            sizes = {name: row[name] for name in ("N", "d", "M", "direction")}
            blocks = (ours.blocks.B_r, ours.blocks.B_c)
            tally = theory.exact(ours.algorithm, **sizes, blocks=blocks)
            arrays = [tally.hbm.by_array[name] for name in ("L", "D", "O")]
            own = sum(array.reads + array.writes for array in arrays)
            of_dO = row["N"] * row["d"]
            without[row["M"]] = row["ours"] - own - of_dO - row["accesses"]
    assert without == {138: 0, 274: 0}
    ratios = [row["ours"] / row["accesses"] for row in rows]
    assert max(ratios) < 1.024
    assert (len(rows), sum(ratio > 1 for ratio in ratios)) == (34, 11)


@pytest.mark.parametrize("front", FORWARD[:2], ids=NAMES[:2])
def test_between_its_points_the_best_here_moves_less(front: dict[str, Any]) -> None:
    """Halfway to the next size that AccelForge can use, from M = 11 on: its tiles divide the
    lengths, and do not fill M.
    """
    for (M, accesses), (next_M, _) in pairwise(front["fused"]):
        between = (M + next_M) // 2
        if M >= 11:
            ours = best(front["N"], front["d"], between, names=STREAMED)
            assert ours is not None
            assert ours.accesses < accesses, (M, between)


def test_its_accesses_are_sums_of_whole_sweeps() -> None:
    """What its points at N = 1,024, d = 64 are, in products of lengths; ours adds N, for L, in
    as many more for L_i.
    """
    N = 1024
    d = 64
    points = dict(FORWARD[1]["fused"])
    assert points[3] == 4 * N * N * d + N * N + N * d
    assert points[21] == N * N * d + N * N + N * d
    one_matrix = N * d
    assert points[2 * d * 128 + 128 + 1] == 8 * 2 * one_matrix + 2 * one_matrix
    least = theory.compulsory(N, N, d, d, "forward")
    assert points[2 * d * N + 2 * d + 1] == least
    room = {32: 4129, 64: 8257, 128: 16_513, 256: 33_025, 512: 66_049}
    for rows, M in room.items():
        assert rows * (2 * d + 1) + 1 == M
        ours = M + rows
        tally = flashsim.count("streamed", N=N, d=d, M=ours, blocks=(rows, 1))
        assert tally.hbm.accesses == points[M] + N
        assert tally.sram.peak == ours


def test_standard_attention_is_its_unfused_mapping() -> None:
    """GPT-3 6.7B at N = 256, d = 128, 32 heads: Q, K, V, O once, S and P written and read."""
    tally = flashsim.count("standard", N=256, d=128, heads=32, M=10**6)
    one_head = 4 * 256 * 128 + 4 * 256**2
    assert tally.hbm.accesses == 12_582_912 == 32 * one_head


def test_what_serves_moves_what_its_unfused_mappings_move() -> None:
    """Grouped heads, and latents absorbed or not, tensor by tensor; unabsorbed, each head here
    reads C for itself.
    """
    here = {"A": "P", "WK": "W_UK", "WV": "W_UV"}
    for row in json.loads((POINTS.parent / "serving.json").read_text(encoding="utf-8")):
        name = row["workload"]
        arguments = row["sizes"]
        other = {
            (here.get(of, of), way): n
            for text, n in row["moved"].items()
            for of, way in [text.split()]
        }
        H = arguments.get("H", 1)
        w = arguments.get("D", arguments.get("W"))
        M = 10**9
        if name == "gqa":
            heads: Arguments = {
                "heads": arguments["G"] * arguments["R"],
                "kv_heads": arguments["G"],
            }
            tally = flashsim.count("standard", N=arguments["N"], d=w, **heads, M=M, gqa="grouped")
        elif name == "mla":  # a row of C is a key, and its first u columns are a value
            heads = {"heads": H, "kv_heads": 1}
            tally = flashsim.count(
                "standard",
                N_q=arguments["M"],
                N_k=arguments["N"],
                d=w,
                d_v=arguments["U"],
                **heads,
                M=M,
                gqa="grouped",
            )
        else:
            tally = flashsim.count(
                "standard", N_q=arguments["M"], N_k=arguments["N"], d=w, heads=H, M=M
            )
        ours: Counter[tuple[str, str]] = Counter()
        for array, accesses in tally.hbm.by_array.items():
            of = "C" if name == "mla" and array in "KV" else array
            traffic = {(of, "read"): accesses.reads, (of, "write"): accesses.writes}
            ours += Counter(traffic)
        if name == "mla_expanded":
            sizes: Arguments = {
                "queries": arguments["M"],
                "keys": [arguments["N"]],
                "d": w,
                "heads": H,
                "kv_heads": H,
                "M": M,
            }
            made = serving.count(
                "mla_expanded", **sizes, latent=arguments["W"], rope=0
            ).hbm.by_array
            for of in ("C", "W_UK", "W_UV"):
                ours[of, "read"] += made[of].reads
            for of in ("K", "V"):
                ours[of, "write"] += made[of].writes
            other["C", "read"] *= H
        assert ours == other
        assert row["accesses"] == sum(row["moved"].values())


def test_the_pages_numbers_are_the_recorded_ones() -> None:
    page = paragraphs(text_of(ROOT / "docs" / "prove.md"))
    forward = [row for row in recorded() if row["direction"] == "forward"]
    nearest = min(
        accesses / least.accesses
        for front in FORWARD
        for M, accesses in front["fused"]
        for least in [bound(front["N"], front["d"], "forward", M)]
        if least.accesses > least.compulsory
    )
    assert has_numbers(page, f"{nearest:.3f}")
    points = [row for row in forward if row["ours"] is not None]
    fewer = sum(row["ours"] < row["accesses"] for row in points)
    assert has_numbers(page, f"{fewer} 80")


def test_calculators_differ_as_the_page_says() -> None:
    """LLM-Viewer's and GenZ's formulas for one head, M = 192 KB of float16: exact counts and the
    bound lie between them.
    """
    N = 4096
    d = 128
    M = 192 * 1024 // 2
    rows = min(-(-192 * 1024 // (2 * d)), d)
    llm_viewer = N * d + 2 * N * N + -(-N // rows) * N * d * 2
    genz = theory.compulsory(N, N, d, d, "forward")
    tiles: Arguments = {"blocks": (rows, 1), "dtype": "float16"}
    tally = flashsim.count("q_outer", N=N, d=d, M=M, **tiles)
    in_its_blocks = tally.hbm
    proof = flashsim.prove(N=N, d=d, M=M, dtype="float16")
    assert proof.best is not None
    numbers = [llm_viewer, in_its_blocks.accesses, proof.best.accesses, proof.bound.accesses, genz]
    assert (
        numbers
        == sorted(numbers, reverse=True)
        == [67_633_152, 34_607_104, 12_566_528, 11_283_105, 2_097_152]
    )
    # O's size is all that is between, but for L
    assert llm_viewer - in_its_blocks.accesses == 2 * N * N - N * d - N
    assert in_its_blocks.by_array["K"].reads == 32 * N * d
    page = (ROOT / "docs" / "calculators.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| .* \| ([\d,]+) \| .* \|$", page, re.MULTILINE) == [
        f"{number:,}" for number in numbers
    ]
    assert has_numbers(paragraphs(page), f"{proof.bound.accesses / genz:.1f}")

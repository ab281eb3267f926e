"""What serves, program by program. What each must satisfy is in tests/contract."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import serving
from flashsim.cli import main
from flashsim.cli import serve as command
from flashsim.memory.errors import MemoryModelError
from flashsim.memory.sram import Event
from flashsim.serving import schedules
from flashsim.serving.api import BatchPlan, finished
from flashsim.serving.programs import programs
from flashsim.serving.schedules import schedule_of
from flashsim.simulate.results import Result
from flashsim.theory.closed_form import Exact
from flashsim.tracing.planting import mutated
from tests.helpers.counting import moved
from tests.helpers.ragged import DRAWN, Drawn, in_pages

ROOT = Path(__file__).resolve().parents[2]


def drawn(name: str, seed: int) -> Drawn:
    return DRAWN[name](np.random.default_rng(seed))


# --------------------------------------------------------------------------------------------------
# pages


def one_page(**changed: Any) -> Result:
    """Two sequences of 3 and 2 keys on pages of 2 rows: 1, 0 and 3."""
    rng = np.random.default_rng(0)
    options: dict[str, Any] = {
        "Q": [rng.normal(size=(2, 1, 4))] * 2,
        "K": rng.normal(size=(1, 8, 4)),
        "V": rng.normal(size=(1, 8, 4)),
        "table": [[1, 0], [3, -1]],
        "lengths": [3, 2],
        "page": 2,
        "M": 1000,
    }
    return serving.paged(**options | changed)


def test_counts_by_hand() -> None:
    """2 rows a sequence, in one block: 3 words of the table, a length each, 5 keys of 4 columns; by
    pages 6 keys.

    Words are read for each KV head, and kept once.
    """
    for tail, keys in (("rows", 5), ("page", 6)):
        assert moved(one_page(tail=tail)) == {
            "Q": (4 * 4, 0),
            "K": (4 * keys, 0),
            "V": (4 * keys, 0),
            "table": (3, 0),
            "lengths": (2, 0),
            "O": (0, 4 * 4),
            "L": (0, 4),
        }
    how: dict[str, Any] = {
        "queries": 1,
        "keys": [3, 2],
        "d": 4,
        "page": 2,
        "M": 1000,
        "heads": 6,
    }
    one = serving.count("paged", **how, kv_heads=1).hbm.by_array
    three = serving.count("paged", **how, kv_heads=3).hbm.by_array
    assert (one["table"].reads, one["table"].size) == (3, 4)
    assert (three["table"].reads, three["table"].size) == (9, 4)
    assert three["K"].reads == 3 * one["K"].reads
    assert three["K"].size == 3 * one["K"].size


def test_permuted_and_shared_pages_change_no_bit() -> None:
    rng = np.random.default_rng(1)
    Q = [rng.normal(size=(2, 1, 4))] * 2
    K = [rng.normal(size=(1, 7, 4))] * 2
    how: dict[str, Any] = {"page": 3, "M": 1000}
    runs = []
    for seed in range(3):
        table, n, to_pool = in_pages(np.random.default_rng(seed), K, 3)
        pool = to_pool(K)
        runs.append(serving.paged(Q, pool, pool, table, n, **how))
    torch_like = np.array([table[0]] * 2, np.int32)
    shared = serving.paged(Q, pool, pool, torch_like, n, **how)
    for run in (*runs, shared):
        assert np.array_equal(run.O, runs[0].O)
        assert np.array_equal(run.O[0], run.O[1])
        assert moved(run) == moved(runs[0])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"table": [[1, -1], [3, -1]]},
            r"table\[0, 1\] is −1 \(no page\), but sequence 0 has keys on its page 1; expected",
        ),
        (
            {"table": [[1, 0], [4, 0]]},
            r"table\[1, 0\] is 4, but sequence 1 .* expected one of 4 pages, 0 to 3",
        ),
        (
            {"lengths": [5, 2]},
            r"lengths\[0\] is 5; expected at most 4, as table has 2 pages of 2 for each sequence",
        ),
        ({"lengths": [-1, 2]}, r"lengths\[0\] is -1; expected whole numbers from 0 to 2³²−1"),
        (
            {"table": [[1, -2], [3, 0]]},
            r"table\[0, 1\] is -2; expected whole numbers from −1 to 2³²−1",
        ),
        ({"lengths": [3]}, r"lengths has shape \(1,\); expected \(2,\)"),
        ({"table": [[1, 0]]}, r"table has shape \(1, 2\); expected \(2, ·\)"),
        ({"table": [[1.0, 0], [3, 0]]}, "table is .*; expected whole numbers"),
        ({"table": [[1, 2**32], [3, 0]]}, r"table\[0, 1\] is 4294967296; expected whole numbers"),
        ({"page": 3}, "K has 8 rows; expected a multiple of page = 3"),
        ({"page": 0}, "page is 0"),
        ({"tail": "all"}, "tail is 'all'; expected 'rows' or 'page'"),
        (
            {"Q": [np.ones((2, 1, 4)), np.ones((2, 4))]},
            r"Q\[1\] has shape \(2, 4\); expected \(heads, length, width\)",
        ),
        (
            {"Q": [np.ones((2, 1, 4)), np.ones((1, 1, 4))]},
            r"Q\[1\] has shape \(1, 1, 4\); expected \(2, ·, 4\), as Q\[0\]",
        ),
        ({"Q": []}, r"Q is \[\]; expected a list of arrays"),
        (
            {"V": np.ones((1, 6, 4))},
            r"K has shape \(1, 8, 4\) and V has shape \(1, 6, 4\); expected the same number of heads",
        ),
        (
            {"V": np.ones((1, 8, 4), "float32")},
            "dtypes are float64, float64, float32; expected one",
        ),
        ({"M": 5}, "M = 5 elements is too small for 'paged'"),
    ],
)
def test_what_makes_no_sense_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        one_page(**changed)


def test_lengths_that_make_no_sense_are_refused_and_a_missing_option_is_named() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"name": "pages"}, "name is 'pages'; expected"),
        ({"queries": [1]}, "queries has 1 lengths; expected 2, one for each sequence, as keys has"),
        ({"keys": [3, -1]}, r"keys\[1\] is -1; expected at least 0"),
        ({"heads": 3, "kv_heads": 2}, "heads is 3; expected a multiple of kv_heads = 2"),
        (
            {"pages": 2},
            r"options of 'paged' are page, pages; expected page, tail \(may be left out\)",
        ),
        (
            {"name": "decode"},
            r"options of 'decode' are page; expected schedule \(may be left out\), workers",
        ),
        ({"name": "varlen"}, "options of 'varlen' are page; expected none"),
        (
            {"name": "cascade", "page": 1},
            r"options of 'cascade' are page; expected prefix \(may be left out\), levels",
        ),
    ]
    options: dict[str, Any] = {
        "queries": 1,
        "keys": [3, 2],
        "d": 4,
        "M": 1000,
    }
    for changed, message in refused:
        with pytest.raises(ValueError, match=message):
            serving.count(**{"name": "paged", **options, "page": 2, **changed})
    message = r"^workers missing; 'decode' takes schedule \(may be left out\), workers, splits \(may be left out\)$"
    with pytest.raises(ValueError, match=message):
        serving.count("decode", **options)


def test_parts_of_splits_are_of_the_chip_s_type() -> None:
    counted = serving.count(
        "paged_split",
        queries=1,
        keys=[9, 4],
        d=2,
        page=2,
        splits=2,
        dtype="float16",
        M=100,
    )
    assert serving.exact(counted).hbm == counted.hbm
    for name in ("O_parts", "l_parts", "m_parts"):
        assert counted.hbm.by_array[name].itemsize == 4


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_types_are_the_inputs(dtype: str) -> None:
    case = drawn("paged", 3)
    batch = case.run.problem
    plan = case.run.plan
    of_type = dict(plan.operands)
    for name, operand in plan.operands.items():
        if operand.dtype.kind == "f":
            of_type[name] = operand.astype(dtype)
    batch_of_type = replace(batch, dtype=np.dtype(dtype))
    run = finished(BatchPlan.of(plan.program, batch_of_type, plan.options, of_type))
    assert {O.dtype for O in run.O} == {np.dtype(dtype)}
    exact = serving.exact(run)
    assert exact.hbm == run.hbm
    assert run.hbm.by_array["table"].itemsize == 4
    assert run.hbm.by_array["L"].itemsize == 4


# -------------------------------------------------------------------------------------------------
# what it amounts to


def test_the_figure_has_what_is_counted() -> None:
    """Its numbers are those of the claims: a table is 0.05% at p = 16, a prefix saves B_r times
    at most, Stream-K is even.
    """
    # test_plots makes it anew
    text = (ROOT / "figures" / "serving.json").read_text(encoding="utf-8")
    data = json.loads(text)["data"]
    share = {page: words for page, _, words in data["pages"]}
    waste = {page: keys for page, keys, _ in data["pages"]}
    assert round(share[1], 4) == 0.0078
    assert round(share[16], 4) == 0.0005
    assert round(waste[16], 3) == 0.015
    assert round(waste[256], 3) == 0.255
    for _, savings in data["prefix"]:
        for saving, most in zip(savings, (16, 64, 128), strict=True):
            assert saving < most
    assert data["prefix"][0][1][0] < 1
    assert data["prefix"][-1][1][0] > 1
    assert np.allclose(data["padding"][0][1], 1, rtol=1e-4)  # without padding, but for the words
    most_padded = data["padding"][-1][1]
    assert np.allclose(most_padded, (2.6, 1.6, 1.2), rtol=0.05)
    assert data["splits"][0] == [0, 1, 138]
    assert data["splits"][64] == [64, 1, 2048]


def test_a_sequence_in_a_batch_is_the_sequence_alone() -> None:
    """The same bits: nothing of another sequence comes near."""
    rng = np.random.default_rng(4)
    Q = [rng.normal(size=(4, n, 4)) for n in (3, 1, 0)]
    K = [rng.normal(size=(2, n, 4)) for n in (7, 5, 2)]
    V = [rng.normal(size=(2, n, 4)) for n in (7, 5, 2)]
    cu_q = [0, 3, 4, 4]
    cu_k = [0, 7, 12, 14]
    how: dict[str, Any] = {"M": 1000, "blocks": (4, 3)}
    shared_out: dict[str, Any] = {"workers": 3, "schedule": "fixed", "splits": 2}
    Q_all = np.concatenate(Q, axis=1)
    K_all = np.concatenate(K, axis=1)
    V_all = np.concatenate(V, axis=1)
    whole = [
        serving.decode(Q, K, V, **shared_out, **how),
        serving.varlen(Q_all, K_all, V_all, cu_q, cu_k, **how),
        serving.cascade(Q, [*zip(K, V, strict=True)], **how),
    ]
    for s in range(3):
        ends_q = [0, Q[s].shape[1]]
        ends_k = [0, K[s].shape[1]]
        alone = [
            serving.decode([Q[s]], [K[s]], [V[s]], **shared_out, **how),
            serving.varlen(Q[s], K[s], V[s], ends_q, ends_k, **how),
            serving.cascade([Q[s]], [(K[s], V[s])], **how),
        ]
        for one, run in zip(alone, whole, strict=True):
            assert np.array_equal(one.O[0], run.O[s])
            assert np.array_equal(one.lse[0], run.lse[s])


def test_stream_k_does_each_tile_once_and_evenly() -> None:
    """Over any number of workers, those that have nothing to do included."""
    tally = serving.count(
        "decode",
        queries=[3, 0, 1, 2],
        keys=[40, 9, 0, 17],
        d=2,
        workers=1,
        blocks=(2, 3),
        M=100,
    )
    for workers in range(1, 40):
        plan = schedule_of(tally.problem, "stream_k", workers, 1)
        done: list[int] = []
        for segments in plan.workers:
            for segment in segments:
                done.extend(range(segment.first, segment.end))
        tiles = sum(segments[-1].end for segments in plan.problems)
        assert len(done) == tiles
        assert plan.busiest == -(-tiles // workers)
        assert {segments[0].first for segments in plan.problems} == {0}
        for segments in plan.problems:
            for before, after in pairwise(segments):
                assert before.end == after.first


def busiest(run: Result, workers: int) -> int:
    """The most tiles that a worker loads, by the events of its turns, not by what a schedule
    says.
    """
    loaded = [0] * workers

    def note(event: Event) -> None:
        if event.kind == "load" and event.name.startswith("K["):
            loaded[dict(event.loops)["w"]] += 1

    plan = run.plan
    one_head = replace(plan.batch, heads=plan.batch.group, kv_heads=1)
    finished(BatchPlan.of(plan.program, one_head, plan.options, plan.operands), [note])
    return max(loaded)


def without_regard_to_lengths(plan: Any) -> int:
    most = 0
    for segments in plan.workers:
        longest = max((one.end - one.first for one in segments), default=0)
        most = max(most, len(segments) * longest)
    return most


FIXED: dict[str, Any] = {
    "right": None,
    "two share a worker": ("number % workers", "number % workers // 2"),
    "one is large": ("size = ceil_div(T, splits)", "size = max(T - splits + 1, 1)"),
    "segments of one worker are taken as alike": without_regard_to_lengths,
}
EVEN = [  # P, T, t, G
    (6, 12, 4, 5),
    (6, 12, 4, 24),
    (6, 12, 4, 40),
    (1, 12, 3, 2),
    (7, 6, 1, 3),
]
RAGGED = [(1, 1), (2, 3), (3, 2), (5, 4)]  # workers, splits


@pytest.mark.parametrize("name", FIXED)
def test_the_busiest_worker_of_fixed_splits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """P problems of T tiles in t | T parts: ⌈P·t/G⌉·T/t tiles. Of ragged ones, what its turns
    load. Bugs are seen.
    """
    bug = FIXED[name]
    if isinstance(bug, tuple):
        monkeypatch.setattr(schedules, "schedule_of", mutated(schedules.schedule_of, bug))
    elif bug is not None:
        monkeypatch.setattr(schedules.Schedule, "busiest", property(bug))
    rng = np.random.default_rng(11)
    differs = 0
    for P, T, t, G in EVEN:
        keys = [2 * T] * P
        tally = serving.count("decode", queries=1, keys=keys, d=1, workers=1, blocks=(1, 2), M=100)
        plan = schedules.schedule_of(tally.problem, "fixed", G, t)
        by_hand = -(-P * t // G) * T // t
        differs += plan.busiest != by_hand
    for workers, splits in RAGGED:
        Q = [rng.normal(size=(1, n, 2)) for n in (3, 1, 0, 2)]
        K = [rng.normal(size=(1, n, 2)) for n in (17, 9, 4, 2)]
        run = serving.decode(
            Q,
            K,
            K,
            workers=workers,
            schedule="fixed",
            splits=splits,
            blocks=(2, 2),
            M=100,
        )
        plan = schedules.schedule_of(run.problem, "fixed", workers, splits)
        differs += plan.busiest != busiest(run, workers)
    assert (differs > 0) == (bug is not None)


def test_gradients_are_finite_differences() -> None:
    rng = np.random.default_rng(6)
    inputs = {
        "Q": rng.normal(size=(2, 5, 3)),
        "K": rng.normal(size=(1, 6, 3)),
        "V": rng.normal(size=(1, 6, 2)),
    }
    dO = [rng.normal(size=(2, 3, 2)), rng.normal(size=(2, 2, 2))]
    ends: dict[str, Any] = {"cu_q": [0, 3, 5], "cu_k": [0, 4, 6]}

    def run(**changed: Any) -> Result:
        return serving.varlen(**inputs | changed, **ends, M=200, blocks=(2, 2))

    def loss(**changed: Any) -> float:
        products = [O * dO_s for O, dO_s in zip(run(**changed).O, dO, strict=True)]
        return float(sum(product.sum() for product in products))

    gradients = serving.varlen_backward(run(), dO)
    for name, X in inputs.items():
        step = rng.normal(size=X.shape) * 1e-6
        above = loss(**{name: X + step})
        below = loss(**{name: X - step})
        gradient = np.concatenate(getattr(gradients, f"d{name}"), axis=1)
        slope = (gradient * step).sum()
        assert (above - below) / 2 == pytest.approx(slope, rel=1e-6)


def test_a_tree_of_prefixes_by_hand() -> None:
    """4 rows in blocks of 2: the root's 5 keys pass twice, those of the first three sequences, 2
    of them, twice, too.
    """
    levels = [[(0, 4, 5)], [(0, 3, 2)]]
    tally = serving.count(
        "cascade",
        queries=1,
        keys=[1, 0, 3, 2],
        d=2,
        levels=levels,
        blocks=(2, 2),
        M=100,
    )
    assert moved(tally) == {
        "Q": (3 * 4 * 2, 0),
        "K_p": (2 * (2 * 5 + 2 * 2), 0),
        "V_p": (2 * (2 * 5 + 2 * 2), 0),
        "K": (2 * 6, 0),
        "V": (2 * 6, 0),
        "O": (2 * 4 * 2, 3 * 4 * 2),
        "L": (2 * 4, 3 * 4),
        "O_new": (2 * 4 * 2, 2 * 4 * 2),
        "L_new": (2 * 4, 2 * 4),
    }


def test_a_table_that_is_not_checked_is_seen() -> None:
    """What the refusals are for: without them a run reads a page that is another's."""
    wrong = ("b = check_word(", "b = (lambda name, s, j, word, pages: word % pages)(")
    unchecked = mutated(programs()["paged"].run, wrong)
    plan = one_page().plan
    words = np.array([[1, 2**32 - 1], [3, 0]], np.uint32)
    plan = replace(plan, operands={**plan.operands, "table": words})
    assert finished(replace(plan, program=replace(plan.program, run=unchecked)))
    with pytest.raises(ValueError, match="sequence 0 has keys on its page 1"):
        finished(plan)


# --------------------------------------------------------------------------------------------------
# latents


def test_latents_by_hand() -> None:
    """2 tokens of 3 heads are 6 rows, in blocks of 4: both see the second token, so all 5 keys
    of 4 columns.
    """
    tally = serving.count(
        "mla",
        queries=2,
        keys=[5],
        heads=3,
        kv_heads=1,
        d=4,
        d_v=3,
        blocks=(4, 2),
        M=100,
    )
    assert moved(tally) == {
        "Q": (6 * 4, 0),
        "C": (2 * 5 * 4, 0),
        "O": (0, 6 * 3),
        "L": (0, 6),
    }
    assert tally.sram.peak == 4 * (4 + 3) + 2 * 4 + 4 * 2 + 3 * 4
    own = serving.count(
        "mla_expanded",
        queries=2,
        keys=[5],
        heads=3,
        d=4,
        d_v=3,
        latent=6,
        rope=1,
        blocks=(1, 2),
        M=100,
    )
    assert moved(own) == {
        "Q": (6 * 4, 0),
        "C": (3 * 2 * 5 * 7, 0),
        "W_UK": (3 * 3 * 6, 0),
        "W_UV": (3 * 3 * 6, 0),
        "K": (3 * 9 * 4, 3 * 5 * 4),
        "V": (3 * 9 * 3, 3 * 5 * 3),
        "O": (0, 6 * 3),
        "L": (0, 6),
    }
    assert own.hbm.by_array["C"].size == 5 * 7  # one for all heads
    assert own.sram.peak == 3 * 6 + 2 * (7 + 4)


def test_latents_of_deepseek_fit_in_blocks_of_64() -> None:
    options: dict[str, Any] = {
        "queries": 1,
        "keys": [130],
        "heads": 128,
        "kv_heads": 1,
        "dtype": "float16",
        "M": "227KB",
    }
    options |= {"d": 576, "d_v": 512}
    assert serving.count("mla", **options, blocks=(64, 64)).sram.peak == 110_784
    with pytest.raises(flashsim.SramOverflow):
        serving.count("mla", **options, blocks=(128, 1))


def latent(**changed: Any) -> Result:
    """2 heads of 3 + 1 columns over 5 latents of 2 + 1."""
    rng = np.random.default_rng(7)
    W_UK = rng.normal(size=(2, 3, 2))
    C = [rng.normal(size=(1, 5, 3))]
    Q = [serving.absorb(rng.normal(size=(2, 1, 4)), W_UK)]
    inputs: dict[str, Any] = {
        "Q": Q,
        "C": C,
        "latent": 2,
        "scale": 0.5,
        "M": 100,
    }
    return serving.mla(**inputs | changed)


def test_absorbed_and_not_agree_and_the_trace_is_theirs() -> None:
    rng = np.random.default_rng(8)
    Q = [rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 1, 4))]
    C = [rng.normal(size=(1, 5, 3)), rng.normal(size=(1, 0, 3))]
    W_UK = rng.normal(size=(2, 3, 2))
    W_UV = rng.normal(size=(2, 5, 2))
    own = serving.mla_expanded(Q, C, W_UK, W_UV, M=100)
    absorbed = [serving.absorb(q, W_UK) for q in Q]
    how: dict[str, Any] = {"latent": 2, "scale": 0.5, "M": 100}
    run = serving.mla(absorbed, C, **how)
    for s in range(2):
        O = run.O[s] @ W_UV.swapaxes(1, 2)
        assert np.allclose(O, own.O[s], rtol=1e-12)
        assert np.allclose(run.lse[s], own.lse[s], rtol=1e-12)
    assert not run.O[1].any()  # of no key
    trace = flashsim.trace(serving.mla, Q=absorbed, C=C, **how)
    kinds = {array.name: array.kind for array in trace.about.arrays}
    assert (kinds["C"], trace.about.shape.N_k) == (("N_k", "d"), 5)


# --------------------------------------------------------------------------------------------------
# quantised


def test_quantised_by_hand() -> None:
    """7 keys in tiles of 3 meet groups of 4: 1, 2 and 1 of them. 5 columns of 4 bits are 3
    bytes, in groups 2.
    """
    tally = serving.count(
        "quantised",
        queries=1,
        keys=[7],
        d=5,
        bits=4,
        group=4,
        blocks=(1, 3),
        M=200,
        dtype="float16",
    )
    assert moved(tally) == {
        "Q": (5, 0),
        "K": (7 * 3, 0),
        "k_scale": (4 * 5, 0),
        "k_zero": (4 * 5, 0),
        "V": (7 * 3, 0),
        "v_scale": (7 * 2, 0),
        "v_zero": (7 * 2, 0),
        "O": (0, 5),
        "L": (0, 1),
    }
    assert tally.hbm.by_array["K"].itemsize == 1
    row = 5 + 5 + 3
    scores = 3
    keys = 3 * (5 + 5 + 3 + 3 + 2 * 2)
    groups = 2 * 2 * 5
    assert tally.sram.peak == row + scores + keys + groups  # of the second tile


def test_integers_are_packed_from_the_lowest_bits() -> None:
    """Of each group, the smallest is 0 and the largest all ones; where all are equal, the scale
    is 0.
    """
    X = np.array([[[0.0, 10, 5], [3, 40, 5], [1, 20, 5], [2, 30, 5]]], "float32")
    packed, scale, zero = serving.quantise(X, bits=2, group=4, axis="channel")
    assert packed.tolist() == [[[0b0000], [0b1111], [0b0101], [0b1010]]]
    assert scale.tolist() == [[[1, 10, 0]]]
    assert zero.tolist() == [[[0, 10, 5]]]
    packed, scale, zero = serving.quantise(X, bits=8, group=2, axis="token")
    assert packed.tolist() == [[[0, 255, 0]] * 4]
    assert zero.tolist() == [[[0, 5], [3, 5], [1, 5], [2, 5]]]


def test_quantised_in_float16_is_what_was_stored() -> None:
    """Theory has the bytes of each type: integers of 1, scales of 2, L of 4. One key is its own
    zero.
    """
    rng = np.random.default_rng(9)
    Q = [rng.normal(size=(1, 1, 4)).astype("float16")]
    K = [rng.normal(size=(1, 1, 4)).astype("float16")]
    V = [rng.normal(size=(1, 1, 4)).astype("float16")]
    run = serving.quantised(Q, K, V, bits=2, group=8, M=200)
    assert serving.exact(run).hbm == run.hbm
    by_array = run.hbm.by_array
    assert by_array["V"].itemsize == 1
    assert by_array["v_scale"].itemsize == 2
    assert by_array["L"].itemsize == 4
    one = serving.quantised(Q, K, V, bits=8, group=1, M=200)
    assert np.array_equal(one.O[0], V[0])


X = np.ones((1, 3, 2))
Y = np.ones((1, 2, 2))
GROUP = (0, 1, X, X)


def one_sequence(function: Callable[..., Any], **options: Any) -> Any:
    return function([X], [X], [X], **options)


def cascade(**shared: Any) -> Any:
    """One sequence and what keys it shares."""
    return serving.cascade([X], [(X, X)], **shared)


def paged(word: int, length: int, **options: Any) -> Any:
    """One sequence, with one word in its table, on one page."""
    return serving.paged([X], Y, Y, [[word]], [length], page=2, **options)


def mla_paged(C: Any, word: int, length: int) -> Any:
    """The same with latents."""
    return serving.mla_paged([X], C, [[word]], [length], latent=1, scale=1, page=2)


def backward_of_other_rows() -> Any:
    run = serving.varlen(X, X, X, [0, 3], [0, 3])
    return serving.varlen_backward(run, [Y])


def prefix_of_two_heads() -> Any:
    Q = np.ones((2, 3, 2))
    prefix = np.ones((2, 1, 2))
    return serving.cascade([Q], [(X, X)], prefix=(prefix, prefix))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: serving.varlen(X, X, X, [0, 4], [0, 3]),
            r"cu_q\[1\] is 4, where sequence 0 ends; .* to 3, the rows of Q",
        ),
        (
            lambda: serving.varlen(X, X, X, [0, 2, 1], [0, 3]),
            r"cu_q\[2\] is 1, where sequence 1 ends; expected 2",
        ),
        (
            lambda: serving.varlen(X, X, X, [0, 2, 3], [0, 3]),
            "cu_k has 2 ends; expected 3, as cu_q has",
        ),
        (
            lambda: serving.varlen(X, X, X, [0], [0, 3]),
            r"cu_q is \[0\]; expected where each sequence begins",
        ),
        (
            lambda: serving.varlen(X, Y, X, [0, 3], [0, 2]),
            r"K has shape \(1, 2, 2\) and V has shape \(1, 3, 2\)",
        ),
        (
            lambda: serving.varlen_backward(one_page(), [X]),
            "expected what flashsim.serving.varlen returned",
        ),
        (backward_of_other_rows, r"dO\[0\] has shape \(1, 2, 2\)"),
        (
            lambda: serving.decode([X], [X, X], [X], workers=2),
            "K has 2 sequences; expected 1, as Q has",
        ),
        (
            lambda: serving.decode([X], [X], [Y], workers=2),
            r"K\[0\] has shape \(1, 3, 2\) and V\[0\] has shape \(1, 2, 2\)",
        ),
        (
            lambda: one_sequence(serving.decode, workers=0),
            "workers is 0; expected at least 1",
        ),
        (
            lambda: one_sequence(serving.decode, workers=2, splits=3),
            "splits is 3; expected 1, as schedule 'stream_k' cuts",
        ),
        (
            lambda: cascade(prefix=(X, Y)),
            r"prefix,K has shape .* and prefix,V has shape \(1, 2",
        ),
        (
            lambda: cascade(levels=[[(0, 2, X, X)]]),
            r"levels\[0\]\[0\] has sequences 0 to 2",
        ),
        (
            lambda: cascade(levels=[[GROUP, GROUP]]),
            r"levels\[0\]\[1\] has sequences 0 to 1",
        ),
        (
            lambda: one_sequence(serving.quantised, bits=3, group=2),
            "bits is 3; expected 2, 4 or 8",
        ),
        (
            lambda: one_sequence(serving.quantised, bits=2, group=0),
            "group is 0; expected at least 1",
        ),
        (
            lambda: serving.quantise(X, bits=2, group=1, axis="head"),
            "axis is 'head'; expected 'channel' or 'token'",
        ),
        (
            lambda: latent(scale=None),
            "scale is None; expected a finite number: that of the model before W_UK was absorbed",
        ),
        (lambda: latent(latent=4), "latent is 4; expected at most 3"),
        (
            lambda: latent(C=[X]),
            r"Q\[0\] has shape \(2, 1, 3\) and C\[0\] has shape \(1, 3, 2\); expected the same d",
        ),
        (lambda: latent(C=[X, X]), "C has 2 sequences; expected 1, as Q has"),
        (
            lambda: serving.absorb(Y, np.ones((1, 3, 2))),
            r"W_UK has shape \(1, 3, 2\); expected \(1, at most 2, ·\)",
        ),
        (
            lambda: serving.mla_expanded([X], [X], Y, X[..., :1]),
            r"W_UK has shape \(1, 2, 2\) and W_UV \(1, 3, 1\)",
        ),
        (
            lambda: serving.mla_expanded([X], [X], X, X),
            r"Q\[0\] has shape \(1, 3, 2\), C\[0\] .*; expected \(H_q, ·, d \+ r\)",
        ),
        (
            lambda: serving.count("mla", queries=1, keys=[1], d=2, d_v=3),
            "d_v is 3; expected at most d = 2, as V is the first",
        ),
        (
            lambda: paged(word=0, length=2, splits=0),
            "splits is 0; expected at least 1",
        ),
        (
            lambda: paged(word=0, length=-2),
            r"lengths\[0\] is -2; expected whole numbers from 0 to 2³²−1",
        ),
        (
            lambda: paged(word=2**40, length=2),
            r"table\[0, 0\] is 1,?099.*; expected whole numbers",
        ),
        (lambda: serving.cascade([X], [None]), r"suffixes\[0\] is None; expected \(K, V\)"),
        (lambda: serving.cascade([X], [(X, X, X)]), r"suffixes\[0\] is .*; expected \(K, V\)"),
        (
            lambda: cascade(prefix=np.array(3.0)),
            r"prefix is .*; expected \(K, V\)",
        ),
        (
            lambda: cascade(prefix=np.stack([X, X, X])),
            r"prefix is .*; expected \(K, V\)",
        ),
        (lambda: cascade(levels=[3]), r"levels\[0\] is 3; expected a list"),
        (lambda: cascade(levels="ab"), "levels is 'ab'; expected a list"),
        (
            lambda: cascade(levels=[[(0, 1, X)]]),
            r"levels\[0\]\[0\] is .*; expected \(first, end, K, V\)",
        ),
        (
            lambda: cascade(levels=[[GROUP]], prefix=(X, X)),
            "expected one of the two",
        ),
        (prefix_of_two_heads, "prefix has 2 KV heads"),
        (
            lambda: mla_paged(Y, word=-1, length=2),
            r"table\[0, 0\] is −1 .no page., ",
        ),
        (
            lambda: mla_paged(Y, word=0, length=9),
            r"lengths\[0\] is 9; expected at most 2",
        ),
        (
            lambda: mla_paged(X, word=0, length=2),
            "C has 3 rows; expected a multiple of page",
        ),
        (
            lambda: serving.fp8([X], [X], [X], dtype="e3m4"),
            "dtype is 'e3m4'; expected 'e4m3' or 'e5m2'",
        ),
        (lambda: one_sequence(serving.fp8, group=0), "group is 0; expected at least 1"),
        (
            lambda: serving.fp8([X], [X * np.nan], [X]),
            "O of sequence 0 is not finite",
        ),
        (
            lambda: serving.exact(X),  # type: ignore[arg-type]
            "tally is array.*; expected what flashsim.serving's functions return",
        ),
    ],
)
def test_ragged_inputs_that_make_no_sense_are_refused(
    call: Callable[[], Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_the_command_counts_and_fails_where_theory_differs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(command.PROGRAMS) == set(programs())
    options = [
        "serve",
        "decode",
        "--keys",
        "500",
        "90",
        "--d",
        "64",
        "--workers",
        "8",
        "--json",
        "-",
    ]
    assert main(options) == 0
    report = json.loads(capsys.readouterr().out)
    tally = serving.count("decode", queries=1, keys=[500, 90], d=64, workers=8)
    assert report["agrees"] is True
    assert report["hbm"]["accesses"] == tally.hbm.accesses

    right = BatchPlan.exact

    def wrong(plan: BatchPlan) -> Exact:
        form = right(plan)
        return replace(form, hbm=form.hbm.times(2))

    monkeypatch.setattr(BatchPlan, "exact", wrong)
    assert main(["serve", "varlen", "--keys", "9", "--d", "4"]) == 1
    assert "The counts differ from theory." in capsys.readouterr().err


def test_what_overflows_or_is_not_finite_is_an_error_that_names_the_sequence() -> None:
    ones = np.ones((1, 6, 4))
    ends = [0, 2, 6]
    message = r"^O of sequence 1 is not finite; expected finite numbers in its rows"
    for wrong in (np.nan, np.inf, 1e200):
        Q = 1e200 * ones if wrong == 1e200 else ones
        K = ones.copy()
        K[0, 3, 0] = wrong
        with pytest.raises(ValueError, match=message):
            serving.varlen(Q, K, ones, ends, ends, M=400)
    run = serving.varlen(ones, ones, ones, ends, ends, M=400)
    dO = [np.ones_like(O) for O in run.O]
    dO[1][0, 0, 0] = np.nan
    with pytest.raises(ValueError, match=r"^dQ of sequence 1 is not finite"):
        serving.varlen_backward(run, dO)


def test_hundreds_of_sequences() -> None:
    """The tallies of as many ends as Python keeps no two ints alike for."""
    ends = range(301)
    rng = np.random.default_rng(0)
    Q = rng.normal(size=(1, 300, 2))
    K = rng.normal(size=(1, 300, 2))
    V = rng.normal(size=(1, 300, 2))
    run = serving.varlen(Q, K, V, ends, ends, M=100)
    for s, O in enumerate(run.O):
        assert np.array_equal(O, V[:, s : s + 1])


def test_keys_and_values_may_be_one_array() -> None:
    X = np.random.default_rng(0).normal(size=(2, 1, 3, 2))
    pair = tuple(X)
    as_array = serving.cascade([X[0]], [X], prefix=X, M=100)
    as_pair = serving.cascade([X[0]], [pair], prefix=pair, M=100)
    assert np.array_equal(as_array.O[0], as_pair.O[0])


def test_log_sum_exps_are_stored_in_the_chip_s_type_backward_too() -> None:
    rng = np.random.default_rng(0)

    def sequences() -> list[Any]:
        return [rng.normal(size=(2, n, 2)).astype("float16") for n in (3, 2)]

    Q, K, V = (np.concatenate(sequences(), axis=1) for _ in range(3))
    how: dict[str, Any] = {"M": 200, "blocks": (2, 2)}
    run = serving.varlen(Q, K, V, cu_q=[0, 3, 5], cu_k=[0, 3, 5], **how)
    back = serving.varlen_backward(run, sequences(), **how)
    assert back.hbm.by_array["L"].itemsize == 4
    assert back.hbm.by_array["Q"].itemsize == 2


def test_a_program_of_the_users_own_that_stores_a_part_of_a_result_is_refused() -> None:
    """To count it would be to count what is not the problem."""

    def without_the_last(
        hbm: Any, sram: Any, batch: Any, Q: Any, K: Any, V: Any, *words: Any
    ) -> Any:
        N_q = Q.shape[0]
        d_v = V.shape[1]
        O = hbm.empty("O", (N_q, d_v), V.dtype, "output")
        L = hbm.full("L", (N_q, 1), 0.0, sram.dtype, "output")
        Q = Q.divide(1)
        blocks_of_O = O.divide(1)
        for i in sram.loop(len(Q) - 1):
            sram.store(blocks_of_O[i], sram.load(Q[i]))
        return O, L

    program = replace(programs()["varlen"], name="mine", run=without_the_last)
    batch: Any = {"queries": [9, 8], "keys": [9, 8]}
    message = r"'mine' .* stores 64 of the 68 elements that its sequences have of O"
    with pytest.raises(MemoryModelError, match=message):
        serving.count(program, **batch, d=4, M=200, blocks=(2, 2))


def test_every_turn_of_a_program_of_the_users_own_is_counted() -> None:
    def every_third_row(
        hbm: Any, sram: Any, batch: Any, Q: Any, K: Any, V: Any, *words: Any
    ) -> Any:
        N_q = Q.shape[0]
        d_v = V.shape[1]
        O = hbm.full("O", (N_q, d_v), 0.0, V.dtype, "output")
        L = hbm.full("L", (N_q, 1), 0.0, sram.dtype, "output")
        Q = Q.divide(1)
        for i in sram.loop(len(Q)):
            if i % 3 == 0:
                sram.load(Q[i])
        return O, L

    program = replace(programs()["varlen"], name="mine", run=every_third_row)
    lengths: dict[str, Any] = {
        "queries": [9, 8],
        "keys": [9, 8],
        "d": 4,
        "M": 200,
    }
    counted = serving.count(program, **lengths, blocks=(2, 2))
    assert counted.hbm.by_array["Q"].reads == 6 * 4  # rows 0, 3, … 15
    with pytest.raises(ValueError, match=r"no closed form of 'mine'.*; expected blocks=\(B_r"):
        serving.count(program, **lengths)
    with pytest.raises(ValueError, match="no closed form of 'mine'"):
        serving.exact(counted)

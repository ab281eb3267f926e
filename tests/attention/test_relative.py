"""A relative bias: what its table means, what it moves, its gradient, by head and by group; and
who refuses it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import Bias, Causal, RelativeBias, theory
from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.attention.masks import relative
from flashsim.reference import attention, bias_gradient
from tests.helpers.cases import Arguments, Array, forward_of, swap

TAKE = [name for name, a in FORWARD.items() if "MASK" in a.parts and name != "standard"]
LEARN = [name for name, a in BACKWARD.items() if a.gives_dS and name != "standard"]
rng = np.random.default_rng(0)
APART = np.arange(5)[:, None] + 7 - 5 - np.arange(7)
Q = rng.normal(size=(4, 5, 3))
dO = rng.normal(size=(4, 5, 2))
K = rng.normal(size=(2, 7, 3))
V = rng.normal(size=(2, 7, 2))


def asked(name: str, mask: RelativeBias, **more: Any) -> dict[str, Any]:
    return {
        "mask": mask,
        "causal": True,
        "blocks": (1 if name == "memory_efficient" else 3, 2),
        "M": 400,
        **more,
    }


def exact(name: str, how: dict[str, Any], direction: str = "forward") -> tuple[Any, ...]:
    """Both what theory says, and what is counted on shapes."""
    sizes: Arguments = {
        "N_q": 5,
        "N_k": 7,
        "d": 3,
        "d_v": 2,
        "heads": 4,
        "kv_heads": 2,
        "dtype": "float64",
    }
    result = theory.exact(name, direction=direction, **sizes, **how)
    tally = flashsim.count(name, direction=direction, **sizes, **how)
    assert (tally.hbm, tally.sram) == (result.hbm, result.sram)
    return result.hbm, result.sram


def oracle(table: Array, mask: RelativeBias) -> tuple[Array, Array]:
    """O, and the table's gradient: dS, summed by bucket, over the heads that share a table."""
    biases = table[..., mask.buckets(APART)]
    score_terms: dict[str, Any] = {
        "bias": np.broadcast_to(biases, (4, 5, 7)),
        "mask": APART >= 0,
    }
    k = K.repeat(2, 0)
    v = V.repeat(2, 0)
    O = attention(Q, k, v, **score_terms)
    each = np.zeros((4, table.shape[-1]))
    all_dS = bias_gradient(Q, k, v, dO, **score_terms)
    for own, dS in zip(each, all_dS, strict=True):
        np.add.at(own, mask.buckets(APART), dS)
    tables = np.prod(table.shape[:-1])
    if len(each) == tables:
        return O, each
    return O, each.sum(0).reshape(table.shape)


@pytest.mark.slow
@pytest.mark.parametrize("gqa", ["separate", "grouped"])
@pytest.mark.parametrize("name", LEARN)
def test_a_table_is_a_bias_by_distance_and_counted_as_theory_says(name: str, gqa: str) -> None:
    for shape in ((4,), (1, 4), (4, 4)):
        table = rng.normal(size=shape)
        for mask in (RelativeBias(table), RelativeBias.t5(table, most=5)):
            how = asked(name, mask, gqa=gqa)
            run = flashsim.forward(forward_of(name), Q, K, V, **how)
            result = flashsim.backward(name, run, dO)
            O, dT = oracle(table, mask)
            assert np.allclose(run.O, O, rtol=0, atol=1e-12)
            assert result.dB is not None
            assert np.allclose(result.dB, dT, rtol=0, atol=1e-12)
            if len(shape) == 1:
                assert (run.hbm, run.sram) == exact(forward_of(name), how)
                assert (result.hbm, result.sram) == exact(name, how, "backward")


@pytest.mark.parametrize("name", sorted({*TAKE} - {forward_of(name) for name in LEARN}))
def test_forward_passes_without_a_backward_take_it_too(name: str) -> None:
    table = rng.normal(size=4)
    run = flashsim.forward(name, Q, K, V, **asked(name, RelativeBias(table)))
    O, _ = oracle(table, RelativeBias(table))
    assert np.allclose(run.O, O, rtol=0, atol=1e-12)
    assert (run.hbm, run.sram) == exact(name, asked(name, RelativeBias(table)))


def test_gradients_are_differences() -> None:
    table = rng.normal(size=4)

    def run(table: Array) -> flashsim.Result:
        options = asked("q_outer", RelativeBias(table))
        return flashsim.forward("q_outer", Q, K, V, **options)

    def loss(table: Array) -> float:
        return float((run(table).O * dO).sum())

    result = flashsim.backward("q_outer", run(table), dO)
    slopes = []
    for step in 1e-5 * np.eye(4):
        rise = loss(table + step) - loss(table - step)
        slopes.append(rise / 2e-5)
    assert result.dB == pytest.approx(slopes, rel=1e-6, abs=1e-9)


def test_what_it_moves() -> None:
    """12 tiles of 4 × 5, all live: each loads the table, 8 numbers; an array of biases has 200."""
    index: dict[str, Any] = {"N_q": 12, "N_k": 20, "d": 2, "blocks": (4, 5), "M": 400}
    masks = {"table": RelativeBias(np.zeros(8)), "array": Bias(np.zeros((12, 20)))}
    reads = {}
    for name, mask in masks.items():
        tally = flashsim.count("q_outer", **index, mask=mask)
        reads[name] = tally.hbm.by_array["bias"].reads
    assert reads == {"table": 12 * 8, "array": 12 * 20}
    back = flashsim.count(
        "q_outer", **index, direction="backward", mask=RelativeBias(np.zeros(8))
    ).hbm.by_array["dB"]
    assert back.reads == 96
    assert back.writes == 104
    assert back.init_writes == 8
    assert back.size == 8


def test_t5_s_buckets_by_hand() -> None:
    """Of 8 for both sides: distances 0 and 1 apart, 2 and more by logarithm, 4 more for keys
    behind; of 4 on one side.
    """
    apart = np.array([-9, -3, -2, -1, 0, 1, 2, 3, 4, 5, 9])
    assert relative.t5_buckets(apart, 8, 8, True).tolist() == [7, 6, 6, 5, 0, 1, 2, 2, 3, 3, 3]
    assert relative.t5_buckets(apart, 4, 8, False).tolist() == [0, 0, 0, 0, 0, 1, 2, 2, 3, 3, 3]


def test_what_is_no_relative_bias_is_refused_by_name() -> None:
    X = rng.normal(size=(6, 4))
    refused: list[tuple[str, Callable[[], flashsim.Mask]]] = [
        (r"RelativeBias's table has shape \(\); expected", lambda: RelativeBias(1.0)),
        (
            r"RelativeBias's table has shape \(2, 0\); expected",
            lambda: RelativeBias(np.ones((2, 0))),
        ),
        ("RelativeBias's table has NaN", lambda: RelativeBias([np.nan])),
        ("RelativeBias's table has dtype int64", lambda: RelativeBias([1])),
        (
            r"expected a number from 0 to 1 for each",
            lambda: RelativeBias([0.0, 1.0], lambda apart: apart),
        ),
        (
            r"RelativeBias's table has shape \(2,\); expected",
            lambda: RelativeBias(np.zeros((2, 3))),
        ),
        ("expected one Bias at most", lambda: RelativeBias([0.0]) & Bias(np.zeros((6, 6)))),
        (
            r"adds a bias in a pass of its own, .* expected Bias\(table\[buckets\]\)",
            lambda: RelativeBias([0.0]),
        ),
    ]
    for text, call in refused:
        with pytest.raises(ValueError, match=text):
            flashsim.forward("standard" if "own" in text else "flash", X, X, X, mask=call())
    with pytest.raises(ValueError, match="in a pass of its own"):
        theory.exact("standard", N=6, d=4, mask=RelativeBias([0.0]))
    assert (
        repr(RelativeBias(np.zeros((2, 3))) & Causal())
        == "RelativeBias(table of shape (2, 3)) & Causal()"
    )


PLANTED: list[tuple[str, Any, str, str]] = [
    ("positions are rows", RelativeBias._entries, "rows // self._group", "rows"),
    ("aligned at the top left", RelativeBias._entries, "shape.N_k - shape.N_q // self._group", "0"),
    (
        "heads of a group have the first one's table",
        RelativeBias._entries,
        "rows % tables",
        "rows * 0",
    ),
    (
        "of a bucket that is there twice, once",
        RelativeBias.summed,
        "np.add.at(sums[0], self._entries(rows, cols, shape), dS)",
        "sums[0][self._entries(rows, cols, shape)] += dS",
    ),
    ("the sides of T5 are swapped", relative.t5_buckets, "apart < 0", "apart > 0"),
]


@pytest.mark.parametrize(
    ("what", "function", "before", "after"), PLANTED, ids=[bug[0] for bug in PLANTED]
)
def test_a_bug_is_noticed(
    what: str, function: Any, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = rng.normal(size=(4, 8))
    want, dT = oracle(table, RelativeBias.t5(table, most=5))
    swap(function, before, after, monkeypatch)
    mask = RelativeBias.t5(table, most=5)
    run = flashsim.forward("q_outer", Q, K, V, **asked("q_outer", mask, gqa="grouped"))
    dB = flashsim.backward("q_outer", run, dO).dB
    assert dB is not None
    error_of_O = float(np.abs(run.O - want).max())
    error_of_dB = float(np.abs(dB - dT).max())
    assert max(error_of_O, error_of_dB) > 1e-3

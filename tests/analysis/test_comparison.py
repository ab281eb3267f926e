"""Runs beside naive attention and theory: what is off is said, and NaN is not a small error."""

from typing import Any

import numpy as np
import pytest

from flashsim import reference
from flashsim.algorithms import BACKWARD, FORWARD, Algorithm, sink_gradient
from flashsim.algorithms.blocks import Fixed
from flashsim.analysis.verify import comparison
from flashsim.attention.masks.rules import Causal
from flashsim.attention.masks.sink import Sink
from flashsim.attention.qkv import QKV
from flashsim.tracing.planting import planted
from tests.helpers.cases import swap

rng = np.random.default_rng(0)
Q, K, V = rng.normal(size=(3, 9, 4))
GIVEN = QKV(Q, K, V, "a test")


def compared(algorithm: Algorithm) -> comparison.Comparison:
    with np.errstate(all="ignore"):
        forwards, _ = comparison.run_all(
            GIVEN, [algorithm], lambda *_: lambda *_: None, both_ways=False, M=100
        )
    return forwards[algorithm.name]


def test_a_right_run_is_ok_and_watched() -> None:
    calls = []

    def watch(title: str, heads: int) -> comparison.OnHead:
        return lambda done, of: calls.append((title, heads, done, of))

    for results in comparison.run_all(GIVEN, ["flash"], watch, both_ways=True, M=100):
        assert results["flash"].ok
        assert results["flash"].equals_theory
        assert 0 < (results["flash"].error_of_bound or 0) < 1
    forward = FORWARD["flash"].title
    backward = BACKWARD["flash"].title
    assert calls == [(forward, 1, 1, 1), (backward, 1, 1, 1)]


def test_a_block_mask_of_live_tiles_leaves_out_what_is_masked_alone() -> None:
    for mask in (None, Causal()):
        arguments = {"blocks": (3, 3), "M": 200, "block_mask": "live", "mask": mask}
        for results in comparison.run_all(
            GIVEN, ["block_sparse"], lambda *_: lambda *_: None, both_ways=True, **arguments
        ):
            assert results["block_sparse"].ok
            assert results["block_sparse"].error_of_bound is not None


@pytest.mark.parametrize(
    "sizes", [{"sizing": "paper"}, {"sizing": "fit", "blocks": (2, 2)}], ids=str
)
def test_blocks_are_chosen_for_both_passes_where_they_were_left_to_fit(
    sizes: dict[str, Any],
) -> None:
    arguments = {"M": 100, "block_mask": "live"}
    back = BACKWARD["block_sparse"]
    fit = arguments | {"sizing": "fit"}
    for_both = comparison.sized_for_both(back, GIVEN.Q, GIVEN.K, GIVEN.V, fit)
    assert isinstance(for_both["sizing"], Fixed)
    own = arguments | sizes
    for_both = comparison.sized_for_both(back, GIVEN.Q, GIVEN.K, GIVEN.V, own)
    assert for_both == own


@pytest.mark.parametrize("gqa", ["separate", "grouped"])
def test_a_sink_is_one_of_what_is_compared_and_so_is_its_gradient(
    gqa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Q = rng.normal(size=(4, 9, 4))
    K, V = rng.normal(size=(2, 2, 9, 4))
    inputs = QKV(Q, K, V, "a test")
    mask = Sink([3.0, -1.0, -np.inf, 0.5]) & Causal(offset=-1)

    def results() -> list[comparison.Comparison]:
        options = {"mask": mask, "gqa": gqa, "blocks": (4, 3), "M": 200}
        both = comparison.run_all(
            inputs, ["q_outer"], lambda *_: lambda *_: None, both_ways=True, **options
        )
        return [outcome["q_outer"] for outcome in both]

    for result in results():
        assert result.ok
        assert (result.error_of_bound or 0) > 0
    swap(sink_gradient.sink_gradient, "ds - rowsum", "ds - 1.001 * rowsum", monkeypatch)
    assert [result.ok for result in results()] == [True, False]


@pytest.mark.parametrize("factor", ["float('nan')", "float('inf')", "1.001"])
def test_a_wrong_result_is_not_ok(factor: str) -> None:
    result = compared(
        planted(FORWARD["flash"], ("/ nonzero(l_i_new)", f"/ nonzero(l_i_new) * {factor}"))
    )
    assert result.equals_theory is not None
    assert not result.ok


def test_a_wrong_count_is_not_ok() -> None:
    result = compared(
        planted(
            FORWARD["flash"],
            ("sram.store(m[i], m_i_new)", "sram.store(m[i], m_i_new); sram.store(m[i], m_i_new)"),
        )
    )
    assert result.equals_theory is False
    assert not result.ok


@pytest.mark.parametrize(
    ("result", "want", "bound", "part"),
    [
        ([1.0, 2.0], [1.0, 2.5], [0.1, 1.0], 0.5),
        ([1.0], [1.0], [0.0], 0.0),
        ([1.0], [1.5], [0.0], np.inf),
        ([np.nan], [1.0], [1.0], np.inf),
        ([np.nan], [1.0], [np.inf], np.inf),
        ([np.inf], [1.0], [1.0], np.inf),
        ([np.inf], [1.0], [np.inf], 0.0),
        ([], [], [], 0.0),
    ],
)
def test_the_part_of_its_bound_that_an_error_is(
    result: object, want: object, bound: object, part: float
) -> None:
    assert reference.of_bound(result, want, bound) == part

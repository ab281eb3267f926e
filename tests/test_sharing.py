"""An L2 that several multiprocessors share: by hand, the same as the L2 of one, and never more than all of it moved."""

from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.hardware.cache import L2
from flashsim.hardware.machines import MACHINES
from flashsim.hardware.sharing import SharedL2, _Stage


def played(name: str, l2: L2, N: int = 4, d: int = 2, M: int = 200, heads: int = 1, **how: Any) -> L2:
    X = np.ones((heads, N, d)) if heads > 1 else np.ones((N, d))
    flashsim.forward(name, X, X, X, M=M, observers=[l2], **how)
    l2.flush()
    return l2


def test_two_row_blocks_side_by_side_load_K_and_V_once() -> None:
    """Each i reads Q_i, K_0, V_0, K_1, V_1 of two lines each, and the cache holds two lines.

    One after the other, no line is there any more when it is read again. Side by side, the first brings a block, and the second
    hits it in the same round.
    """
    how: dict[str, Any] = {"blocks": (2, 2)}
    alone = played("q_outer", L2(4, line=2), **how)
    together = played("q_outer", SharedL2(4, line=2, sms=2), **how)
    assert [alone.by_array[name].dram_reads for name in "QKV"] == [8, 16, 16]
    assert [together.by_array[name].dram_reads for name in "QKV"] == [8, 8, 8]
    assert [together.by_array[name].hits for name in "QKV"] == [0, 8, 8]
    assert together.by_array["O"] == alone.by_array["O"]
    assert together.accesses == alone.accesses


def test_more_multiprocessors_than_pieces_and_fewer() -> None:
    """Six row blocks on four multiprocessors: four together, then two, so K and V come twice, whose two blocks do not stay."""
    for sms, times in ((1, 6), (2, 3), (3, 2), (4, 2), (6, 1), (99, 1)):
        l2 = played("q_outer", SharedL2(4, line=2, sms=sms), N=12, blocks=(2, 2))
        assert (l2.by_array["K"].reads, l2.by_array["K"].dram_reads) == (6 * 24, times * 24), sms


def test_turns_that_write_what_others_touch_are_one_multiprocessor_s() -> None:
    """FlashAttention's O_i is written for each j: heads alone are shared out."""
    for size in (4, 100):
        alone = played("flash", L2(size, line=2), N=8, blocks=(2, 2))
        one_head = played("flash", SharedL2(size, line=2, sms=4), N=8, blocks=(2, 2))
        assert one_head.by_array == alone.by_array
    several = played("flash", SharedL2(100, line=2, sms=4), N=8, blocks=(2, 2), heads=4)
    in_turn = played("flash", L2(100, line=2), N=8, blocks=(2, 2), heads=4)
    assert several.accesses == in_turn.accesses
    assert several.dram_accesses > in_turn.dram_accesses  # four heads at once have a quarter of the cache each


@pytest.mark.parametrize(
    ("first", "second", "independent"),
    [
        ((0, 4, True), (4, 4, True), True),
        ((0, 4, False), (0, 4, False), True),
        ((0, 4, True), (3, 1, False), False),
        ((0, 4, False), (3, 4, True), False),
        ((0, 4, True), (2, 1, True), False),
    ],
)
def test_turns_are_independent_where_none_writes_what_another_touches(
    first: tuple[int, int, bool], second: tuple[int, int, bool], independent: bool
) -> None:
    stage = _Stage(0)
    for turn, (start, elements, write) in enumerate((first, second)):
        stage.add(turn, [("O", start, elements, write)], 0, 8)
        stage.add(turn, [("O", start, elements, write)], 0, 8)  # its own is no other's
    assert (stage.independent, len(stage.pieces)) == (independent, 1 + independent)


def test_a_loop_waits_for_the_one_before() -> None:
    """Algorithm 0 writes S, then reads it: with room for all, no element of S comes from DRAM, whoever wrote it."""
    l2 = played("standard", SharedL2(10**6, line=2, sms=5), N=16, sizing="fit", M=40)
    assert l2.by_array["S"].reads == l2.by_array["S"].hits > 0
    assert l2.by_array["P"].dram_reads == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", FORWARD)
def test_one_multiprocessor_is_the_L2_that_there_was(name: str) -> None:
    for size in (0, 24, 400):
        how: dict[str, Any] = {"N": 8, "d": 4, "M": 60, "heads": 2, "sizing": "fit"}
        one, other = played(name, L2(size, line=4), **how), played(name, SharedL2(size, line=4, sms=1), **how)
        assert (one.total, one.by_array) == (other.total, other.by_array)
        many = played(name, SharedL2(size, line=4, sms=7), **how)
        assert (many.reads, many.writes) == (one.reads, one.writes)


@pytest.mark.parametrize("name", BACKWARD)
def test_with_room_for_all_sharing_changes_nothing(name: str) -> None:
    X = np.ones((2, 12, 4))
    of = BACKWARD[name].forward_pass
    found = []
    for l2 in (L2(10**6), SharedL2(10**6, sms=5)):
        run = flashsim.forward(of, X, X, X, M=100)
        flashsim.backward(name, run, X, observers=[l2])
        l2.flush()
        found.append((l2.by_array, l2.total))
    assert found[0] == found[1]


def test_a_machine_has_one() -> None:
    l2 = SharedL2.of(MACHINES["H100"], "float16")
    assert (l2.size, l2.sms, l2.line) == (50 * 2**20 // 2, 132, 32)
    with pytest.raises(ValueError, match="sms is 0; expected at least 1"):
        SharedL2(100, sms=0)
    with pytest.raises(ValueError, match="use forward"):
        flashsim.count("flash", N=1024, d=64, observers=[SharedL2(100, sms=2)])

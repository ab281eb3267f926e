"""The simulated memory cannot be beaten: copies die with their turn, free reads and writes are
refused, and so is too little.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.memory.errors import MemoryModelError
from flashsim.memory.hbm import HBM
from flashsim.memory.lifetimes import Lifetimes
from flashsim.memory.source import PACKAGE
from flashsim.memory.sram import SRAM
from flashsim.reference import attention
from flashsim.simulate import rehearsal
from tests.helpers.cases import Arguments
from tests.helpers.memory_cheats import CHEATS
from tests.helpers.memory_honest import END, A, honest
from tests.helpers.memory_honest import S as S_LINE
from tests.helpers.own import module_of

rng = np.random.default_rng(0)
N = 22
D = 4
Q, K, V = rng.normal(size=(3, N, D))
HOW: Arguments = {"blocks": (4, 5), "M": 300}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_run_that_beats_the_memory_is_refused(cheat: str) -> None:
    with pytest.raises(MemoryModelError) as caught:
        flashsim.forward(CHEATS[cheat], Q, K, V, **HOW)
    assert not isinstance(caught.value, flashsim.SramOverflow)
    assert any("memory_cheats.py" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_count_that_beats_the_memory_is_refused(cheat: str) -> None:
    with pytest.raises((MemoryModelError, TypeError)) as caught:
        flashsim.count(CHEATS[cheat], N=N, d=D, dtype="float64", **HOW)
    assert not isinstance(caught.value, flashsim.SramOverflow)


def of_inputs(K: Any, V: Any) -> Any:
    """Return an algorithm that has K and V from a closure, not from HBM: nothing of it is a
    tile, and nothing can die.
    """
    keys = K
    values = V

    def beating(hbm: Any, sram: Any, Q: Any, K: Any, V: Any, blocks: Any) -> Any:
        O = hbm.empty("O", (Q.shape[0], V.shape[1]), V.dtype, "output")
        O = O.divide(blocks.B_r)
        Q = Q.divide(blocks.B_r)
        for i in sram.loop(blocks.T_r):
            P = sram.on_chip(np.exp(sram.load(Q[i]) @ keys.T))
            O_i = sram.on_chip(P @ values / P.sum(axis=1, keepdims=True))
            sram.store(O[i], O_i)
        return O

    return beating


def test_inputs_that_do_not_come_from_hbm_make_fewer_accesses_than_any_schedule() -> None:
    beating = of_inputs(K, V)
    text = r"makes 176 accesses, and no schedule makes fewer than \d+ at this problem, with M = 300 elements on chip: numbers"
    with pytest.raises(MemoryModelError, match=text):
        flashsim.forward(beating, Q, K, V, **HOW)
    with pytest.raises(MemoryModelError, match="is not attention"):  # on other inputs
        flashsim.count(beating, N=N, d=D, dtype="float64", **HOW)


def test_the_lower_bound_is_a_net_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without looks, copies live; at a size where that gains enough, the accesses tell."""
    monkeypatch.setattr(SRAM, "_looked_through", lambda self, frame: None)
    big = [rng.normal(size=(96, D)) for _ in range(3)]
    with pytest.raises(MemoryModelError, match="no schedule makes fewer than"):
        flashsim.forward(CHEATS["x * 1"], *big, blocks=(12, 12), M=160)
    with pytest.raises(MemoryModelError, match="no schedule makes fewer than"):
        flashsim.forward(CHEATS["tobytes"], *big, blocks=(12, 12), M=160)


def test_without_both_nets_the_copies_are_exact_and_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the nets are for: this is the run that they refuse."""
    monkeypatch.setattr(SRAM, "_looked_through", lambda self, frame: None)
    monkeypatch.setattr("flashsim.simulate.rehearsal.least_accesses", lambda *_: None)
    run = flashsim.forward(CHEATS["x * 1"], Q, K, V, **HOW)
    assert np.allclose(run.O, attention(Q, K, V))
    assert run.hbm.accesses == 4 * N * D


def test_a_record_s_backward_pass_is_compared_with_its_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flash = replace(BACKWARD["flash"], name="mine", of="flash")
    run = flashsim.forward("flash", Q, K, V, **HOW)
    assert np.array_equal(
        flashsim.backward(flash, run, V).dQ, flashsim.backward("flash", run, V).dQ
    )
    monkeypatch.setattr("flashsim.simulate.rehearsal.least_accesses", lambda *_: 10**6)
    with pytest.raises(MemoryModelError, match="no schedule makes fewer than 1,000,000"):
        flashsim.backward(flash, run, V)
    with pytest.raises(MemoryModelError, match="no schedule makes fewer than 1,000,000"):
        flashsim.count(flash, N=N, d=D, direction="backward", **HOW)


def test_tune_and_sweep_refuse_what_forward_refuses() -> None:
    cheat = CHEATS["x * 1"]
    with pytest.raises((MemoryModelError, TypeError)):
        flashsim.tune.tune(N=24, d=D, M=300, algorithms=[cheat])
    (row,) = flashsim.sweep(cheat, N=24, d=D, M=300, sizing="fit").rows
    assert row["status"] == "refused"


WRONG = {
    "not rescaled": (A, A.replace("exp(m_i - m_new) * O_i", "O_i")),
    "not divided": (END, ""),
    "not put on chip": (S_LINE, S_LINE.replace("on_chip(Q_i @ K_j.T)", "Q_i @ K_j.T")),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_count_of_what_is_wrong_is_refused(wrong: str, tmp_path: Path) -> None:
    before, after = WRONG[wrong]
    text = honest()["as it stands"]
    assert before in text
    mine = module_of(text.replace(before, after), tmp_path / "mine.py").mine
    message = "not on chip" if wrong == "not put on chip" else "computes an O that is not attention"
    with pytest.raises(MemoryModelError, match=message):
        flashsim.count(mine, N=1024, d=64, sizing="fit")


def test_a_count_raises_what_forward_raises_at_these_sizes(tmp_path: Path) -> None:
    """A float64 constant widens float32 tiles: shapes do not show it, numbers do."""
    text = honest()["as it stands"].replace("K_j.T)", "K_j.T + np.zeros((1, 1)))")
    mine = module_of(text, tmp_path / "mine.py").mine
    error = "of float64 came on chip, which computes in float32"
    narrow = [X.astype("float32") for X in (Q, K, V)]
    with pytest.raises(TypeError, match=error):
        flashsim.forward(mine, *narrow, **HOW)
    with pytest.raises(TypeError, match=error):
        flashsim.count(mine, N=N, d=D, dtype="float32", **HOW)
    in_float64 = flashsim.count(mine, N=N, d=D, dtype="float64", **HOW)
    assert in_float64.hbm.reads


def test_an_algorithm_that_leaves_out_pairs_of_its_own_is_counted(tmp_path: Path) -> None:
    """Causal by tiles, by a plain `if`: it is attention of the pairs that it brings together."""
    text = honest()["as it stands"].replace(
        "            K_j, V_j",
        "            if j > i:\n                continue\n            K_j, V_j",
    )
    mine = module_of(text, tmp_path / "mine.py").mine
    tally = flashsim.count(mine, N=N, d=D, dtype="float64", blocks=(4, 4), M=300)
    assert tally.blocks.T_r == 6


@pytest.mark.parametrize(
    "turns", ["range(0, blocks.T_c, 2)", "max(blocks.T_c - 1, 1)", "range(min(2, blocks.T_c))"]
)
def test_a_pattern_that_leaves_out_keys_is_counted_as_it_runs(turns: str, tmp_path: Path) -> None:
    """Every other block, all but the last, the first two: each query meets a key, and that is
    what its O is attention of.
    """
    text = honest()["as it stands"].replace("sram.loop(blocks.T_c)", f"sram.loop({turns})")
    mine = module_of(text, tmp_path / "mine.py").mine
    run = flashsim.forward(mine, Q, K, V, **HOW)
    tally = flashsim.count(mine, N=N, d=D, dtype="float64", **HOW)
    assert tally.hbm == run.hbm
    assert tally.sram == run.sram


def test_a_rehearsal_is_run_once_for_a_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    run = rehearsal._run

    def counting(*arguments: Any) -> str:
        calls.append(arguments)
        return run(*arguments)

    monkeypatch.setattr(rehearsal, "_run", counting)
    mine = module_of(honest()["as it stands"], tmp_path / "mine.py").mine
    for size in (1024, 2048, 4096):
        flashsim.count(mine, N=size, d=64, blocks=(64, 64))
    assert len(calls) == 1


def test_a_matrix_is_placed_and_peeked_at_by_hand_before_and_after_the_loops_only() -> None:
    hbm = HBM()
    X = hbm.place("X", np.ones((4, 2))).divide(2)
    sram = SRAM(hbm, 100)
    for i in sram.loop(2):
        tile = sram.load(X[i])
        with pytest.raises(
            MemoryModelError,
            match=r"hbm.peek\('X'\) in an algorithm is a read of HBM that is not counted",
        ):
            hbm.peek("X")
        with pytest.raises(
            MemoryModelError, match=r"hbm.place\('Y\d', …\) in an algorithm .* would be a write"
        ):
            hbm.place(f"Y{i}", tile)
        words = np.ones((1, 1), np.float32).view(np.uint32)
        with pytest.raises(
            MemoryModelError,
            match="takes numbers of rows or blocks, 4 at most here; got 1,065,353,216",
        ):
            hbm.place(f"Y{i}", words, index=True)
        table = np.array([[1, 2**32 - 1]])
        hbm.place(f"table{i}", table, index=True)
    assert hbm.peek("X").shape == (4, 2)
    assert hbm.place("Y", np.ones((1, 1))).shape == (1, 1)


def test_observers_and_a_debugger_s_prompt_may_peek(tmp_path: Path) -> None:
    events = []

    def observer(event: Any) -> None:
        if event.kind == "store":
            events.append(event.sram.hbm.peek("O").copy())

    text = honest()["as it stands"].replace(
        "# END", "import code; code.InteractiveInterpreter({'h': hbm}).runsource('h.peek(\"Q\")')"
    )
    mine = module_of(text, tmp_path / "mine.py").mine
    run = flashsim.forward(mine, Q, K, V, observers=[observer], **HOW)
    assert len(events) == 6
    assert np.array_equal(events[-1], run.O)


def test_flashsim_s_own_algorithms_are_honest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked through as a user's are, none loses anything."""
    rooms = ("algorithms", "extensions")
    others = tuple(f"{PACKAGE}{room}{os.sep}" for room in os.listdir(PACKAGE) if room not in rooms)
    tiles: Arguments = {"blocks": (4, 5), "M": 500}
    want = {name: flashsim.forward(name, Q, K, V, **tiles).O for name in FORWARD}
    looks = []
    for module in ("source", "reach", "holders"):
        monkeypatch.setattr(f"flashsim.memory.{module}.PACKAGE", others)
    monkeypatch.setattr(Lifetimes, "_pause", lambda self, start: looks.append(start))
    for algorithm in FORWARD.values():
        looks.clear()
        run = flashsim.forward(algorithm, Q, K, V, **tiles)
        assert looks, algorithm.name
        assert np.array_equal(run.O, want[algorithm.name])
        for each in BACKWARD.values():
            if each.forward_pass == algorithm.name:
                assert np.isfinite(flashsim.backward(each, run, Q).dQ).all()


HONEST = honest()


def test_there_are_fifty_honest_ones() -> None:
    assert len(HONEST) >= 50


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_algorithm_is_not_accused(name: str, tmp_path: Path) -> None:
    mine = module_of(HONEST[name], tmp_path / "mine.py").mine
    for width, blocks in ((D, (4, 5)), (3, (4, 5)), (D, (1, 1)), (D, (5, 3)), (D, (2, 22))):
        V_ = rng.normal(size=(N, width))
        tiles: Arguments = {"blocks": blocks, "M": 400}
        run = flashsim.forward(mine, Q, K, V_, **tiles)
        assert np.allclose(run.O, attention(Q, K, V_), rtol=1e-9), blocks
        tally = flashsim.count(mine, N=N, d=D, d_v=width, dtype="float64", **tiles)
        assert tally.hbm == run.hbm


def test_hbm_is_closed_to_an_algorithm_that_has_loaded_something_outside_of_loops_too() -> None:
    def peeks(hbm: Any, sram: Any, Q: Any, K: Any, V: Any, blocks: Any) -> Any:
        sram.load(Q.divide(blocks.B_r)[0])
        return hbm.peek("K")

    def places(hbm: Any, sram: Any, Q: Any, K: Any, V: Any, blocks: Any) -> Any:
        sram.load(Q.divide(blocks.B_r)[0])
        return hbm.place("O", np.zeros(Q.shape))

    X = np.random.default_rng(0).normal(size=(8, 4))
    for algorithm in (peeks, places):
        with pytest.raises(MemoryModelError, match="not counted"):
            flashsim.forward(algorithm, X, X, X, M=100, blocks=(4, 4))

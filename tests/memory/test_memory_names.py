"""What a name shows in a debugger: the numbers that it was given, or NaN once they are gone.

A tile is a plain array, and several names may be bound to it. When another quantity takes its room,
each of these names reads as evicted, and none shows the other quantity's numbers.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import approximate, devices, kernels, mlp
from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.memory.errors import MemoryModelError, NotOnChip
from flashsim.memory.hbm import HBM
from flashsim.memory.source import PACKAGE
from flashsim.memory.sram import SRAM, Event
from tests.golden.record import OPTIONS
from tests.helpers import ragged
from tests.helpers.cases import Arguments
from tests.helpers.own import module_of

PROGRAMS = tuple(
    os.path.join(PACKAGE, *room, "")
    for room in (
        ("algorithms",),
        ("extensions", "programs"),
        ("serving", "programs"),
        ("devices", "programs"),
    )
)
PLACES = {("mla_expanded", "X_j")}
"""(function, variable): a tile whose parts are computed one after the other."""


class Names:
    """Follows programs line by line, and notes each variable whose tile becomes other numbers:
    (function, variable). Parts of tiles, and tiles that are written in parts, are left out.
    """

    def __init__(self) -> None:
        self.changes = set[tuple[str, str]]()
        self.lines = 0
        self._seen: dict[int, dict[str, tuple[Any, Any]]] = {}

    def enter(self, frame: FrameType, _event: str, _: Any) -> Any:
        return self.follow if frame.f_code.co_filename.startswith(PROGRAMS) else None

    def follow(self, frame: FrameType, event: str, _: Any) -> Any:
        """Compare the variables with what they were at the line before."""
        events = self._seen.setdefault(id(frame), {})
        self.lines += 1
        tiles = {
            name: value
            for name, value in frame.f_locals.items()
            if isinstance(value, np.ndarray) and value.dtype.kind == "f"
        }
        written_in_parts = {id(value.base) for value in tiles.values()}
        for name, value in tiles.items():
            is_part = value.base is not None or id(value) in written_in_parts
            known, numbers = events.get(name, (None, None))
            if known is value and not is_part and not is_equal_or_gone(value, numbers):
                self.changes.add((frame.f_code.co_name, name))
            events[name] = value, value.copy()
        if event == "return":
            del self._seen[id(frame)]
        return self.follow


def is_equal_or_gone(value: Any, numbers: Any) -> bool:
    if np.array_equal(value, numbers, equal_nan=True):
        return True
    return bool(np.isnan(value).all())


@contextlib.contextmanager
def followed() -> Iterator[Names]:
    names = Names()
    before = sys.gettrace()
    threading.settrace(names.enter)
    sys.settrace(names.enter)
    try:
        yield names
    finally:
        sys.settrace(before)
        threading.settrace(before)


def attention(name: str) -> None:
    Q, K, V, dO = np.random.default_rng(0).normal(size=(4, 7, 3))
    algorithm = FORWARD[name]
    how: Arguments = dict(OPTIONS.get(name, {}))
    if "MASK" in algorithm.parts:
        how["causal"] = True
    if "dropout" in algorithm.parts:
        how["dropout_p"] = 0.25
    made = flashsim.forward(name, Q, K, V, M=2000, blocks=(3, 2), **how)
    for backward, record in BACKWARD.items():
        if record.forward_pass == name:
            flashsim.backward(backward, made, dO)


def with_a_sink() -> None:
    Q, K, V = np.random.default_rng(0).normal(size=(3, 7, 3))
    for name in ("standard", "flash", "q_outer", "split_kv"):
        mask = flashsim.Sink(0.5)
        options = OPTIONS.get(name, {})
        flashsim.forward(name, Q, K, V, M=2000, blocks=(4, 3), mask=mask, **options)


def extensions() -> None:
    rng = np.random.default_rng(0)
    X, Z, W = rng.normal(size=(3, 21, 6))
    V, dY = rng.normal(size=(2, 21, 2))
    for order in ("x_outer", "z_outer", "materialised"):
        run = kernels.product(X, Z, V, order=order, M=900, blocks=(7, 5))
    kernels.gradient(run, dY)
    W1 = rng.normal(size=(6, 9))
    W2 = rng.normal(size=(9, 6))
    for fused in (True, False):
        mlp.run(X, W1, W2, fused=fused, M=900, blocks=(4, 3, 3, 3))
    E, F = rng.normal(size=(2, 5, 21))
    approximate.linformer(X, Z, W, E, F, M=900)
    for phi in ("on_chip", "in_hbm"):
        features = approximate.features(4, 6)
        approximate.performer(X, Z, W, features, phi=phi, M=900)
    hashes = approximate.lsh_hashes(X, Z, 2)
    approximate.smyrf(X, Z, W, *hashes, C=8, M=2000)


def serving() -> None:
    for draw in (
        ragged.paged,
        ragged.cascade,
        ragged.varlen,
        ragged.varlen_backward,
        ragged.decode,
        ragged.latents_in_pages,
        ragged.quantised,
        ragged.fp8,
    ):
        draw(np.random.default_rng(1))
    ragged.paged(np.random.default_rng(1), splits=True)
    for absorbed in (True, False):
        ragged.latents(np.random.default_rng(1), absorbed=absorbed)


def over_devices() -> None:
    rng = np.random.default_rng(0)
    Q, dO = rng.normal(size=(2, 2, 8, 3))
    K, V = rng.normal(size=(2, 2, 8, 3))
    tiles: Arguments = {"M": 900, "blocks": (4, 4)}
    for name in ("ring", "ulysses", "mesh", "tree"):
        with contextlib.suppress(ValueError):
            run = devices.forward(name, Q, K, V, P=2, causal=True, **tiles)
            devices.backward(name, run, dO)


@pytest.mark.parametrize("name", FORWARD)
def test_no_name_of_an_algorithm_shows_another_quantity(name: str) -> None:
    with followed() as names:
        attention(name)
    assert names.lines > 50
    assert names.changes <= PLACES


@pytest.mark.parametrize("programs", [with_a_sink, extensions, serving, over_devices])
def test_no_name_of_another_program_shows_another_quantity(programs: Callable[[], None]) -> None:
    with followed() as names:
        programs()
    assert names.lines > 500
    assert names.changes <= PLACES


# --------------------------------------------------------------------------------------------------
# what takes the room of a tile


def chip(**options: Any) -> tuple[HBM, SRAM]:
    hbm = HBM()
    return hbm, SRAM(hbm, 1000, **options)


def numbers() -> Any:
    return np.arange(12.0).reshape(6, 2)


def test_after_a_result_took_its_room_a_name_reads_as_evicted() -> None:
    hbm, sram = chip()
    Q = hbm.place("Q", numbers())
    for _ in sram.loop(1):
        S_ij = sram.on_chip(2 * sram.load(Q[0]))
        transposed = S_ij.T
        kept = [S_ij]
        P_ij = sram.on_chip(S_ij + 1, over=S_ij)
        assert P_ij.tolist() == (2 * numbers() + 1).tolist()
        for stale in (S_ij, transposed, kept[0]):
            assert np.isnan(stale).all()
        assert (sram.occupancy, sram.peak) == (24, 24)
        assert list(sram.resident) == ["Q[0]", "P_ij"]
        with pytest.raises(NotOnChip, match="another tile took its room"):
            sram.store(Q[0], S_ij)
        with pytest.raises(NotOnChip):
            sram.evict(S_ij)
        sram.store(Q[0], P_ij)
    assert np.isnan(P_ij).all()
    assert (sram.occupancy, sram.resident, sram._last_in) == (0, {}, {})


def test_what_a_name_held_before_the_next_turn_s_result_reads_as_evicted() -> None:
    hbm, sram = chip()
    O = hbm.empty("O", (6, 2), np.float64)
    Q = hbm.place("Q", numbers())
    for _ in sram.loop(1):
        Q_i = sram.load(Q[0])
        O_i = sram.full((6, 2), 1.0)
        l_i = sram.full((6, 1), 0.0)
        for _ in sram.loop(3):
            before = O_i
            O_i = sram.on_chip(O_i * 2, over=O_i)
            l_i = sram.on_chip(l_i + 1, over=l_i)
            assert np.isnan(before).all()
            assert list(sram.resident) == ["Q[0]", "O_i", "l_i"]  # in order of arrival
        assert (O_i == 8).all()
        assert (l_i == 3).all()
        sram.store(O[0], O_i)
        assert sram.peak == sram.occupancy == 30
    for gone in (Q_i, O_i, l_i):
        assert np.isnan(gone).all()
    assert (sram.occupancy, sram.resident, sram._last_in) == (0, {}, {})


def test_a_result_that_nobody_names_is_written_into_the_tile() -> None:
    hbm, sram = chip()
    K = hbm.place("K", numbers()).divide(4)
    O_i = sram.full((6, 2), 1.0)
    sram.on_chip(O_i * 3, over=O_i)
    assert (O_i == 3).all()
    K_here = sram.load(K[0])
    sram.load(K[1], over=K_here)
    assert K_here[:2].tolist() == numbers()[4:].tolist()
    assert np.isnan(K_here[2:]).all()
    assert list(sram.resident) == ["O_i", "K[1]"]
    assert sram.peak == 20


def test_a_room_is_known_by_its_first_tile() -> None:
    """A tile that is there before a loop may be named by `over` in each turn."""
    hbm, sram = chip()
    K = hbm.place("K", numbers()).divide(2)
    room = sram.full((2, 2), 0.0)
    last = room
    for j in sram.loop(3):
        K_j = sram.load(K[j], over=room)
        assert np.isnan(last).all()
        assert K_j.tolist() == numbers()[2 * j : 2 * j + 2].tolist()
        last = sram.on_chip(K_j * 2, over=room)
        assert np.isnan(K_j).all()
        with pytest.raises(NotOnChip):
            sram.on_chip(K_j * 2, over=K_j)
    assert last.tolist() == (2 * numbers()[4:]).tolist()
    assert sram.peak == sram.occupancy == 4


def test_a_result_over_a_tile_has_numbers_of_its_own() -> None:
    _, sram = chip(dtype=np.float32)
    m_i = sram.full((6, 1), 0.0)
    m_new = sram.on_chip(m_i + 1)
    m_i = sram.on_chip(m_new, over=m_i)  # another tile's
    m_i = sram.on_chip(m_i + 1, over=m_i)
    assert (m_new == 1).all()
    assert (m_i == 2).all()
    S = sram.full((6, 2), 1.0)
    T = np.arange(12, dtype=np.float64).reshape(2, 6).T
    S = sram.on_chip(T, over=S)  # of another type and order, and a part of another array
    assert S.dtype == np.float32
    assert S.flags.c_contiguous
    assert S.tolist() == T.tolist()
    S = sram.on_chip(S + 1, over=S)
    assert T[0].tolist() == [0, 6]
    P = sram.on_chip(np.negative(S, out=S), over=S)  # NumPy wrote into S: it is P
    assert P is S
    assert (sram.occupancy, sram.peak) == (24, 24)


def test_a_part_is_a_place_in_its_tile() -> None:
    _, sram = chip()
    O_i = sram.full((6, 2), 1.0)
    column = O_i[:, :1]
    column = sram.on_chip(column + 1, over=column)
    assert O_i.tolist() == [[2.0, 1.0]] * 6
    sram.on_chip(O_i * 3, over=O_i)
    assert (column == 6).all()
    O_new = sram.on_chip(O_i * 3, over=O_i)
    assert np.isnan(column).all()
    with pytest.raises(NotOnChip):
        sram.on_chip(column + 1, over=column)
    assert O_new.tolist() == [[18.0, 9.0]] * 6


def test_where_only_shapes_are_counted_a_stale_name_is_refused() -> None:
    hbm = HBM(arithmetic=False)
    sram = SRAM(hbm, 1000)
    Q = hbm.place("Q", (6, 2), np.float64)
    for _ in sram.loop(1):
        S_ij = sram.on_chip(2 * sram.load(Q[0]))
        P_ij = sram.on_chip(S_ij + 1, over=S_ij)
        for _ in sram.loop(2):
            P_ij = sram.on_chip(P_ij * 2, over=P_ij)
        sram.on_chip(P_ij * 2, over=P_ij)
        with pytest.raises(NotOnChip):
            S_ij + 1
        with pytest.raises(NotOnChip):
            sram.store(Q[0], S_ij)
        sram.store(Q[0], P_ij)
        assert (sram.occupancy, sram.peak) == (24, 24)
    assert sram._last_in == {}


def test_observers_see_the_new_tile_and_its_eviction() -> None:
    messages: list[Event] = []
    _, sram = chip(observers=[messages.append])
    for _ in sram.loop(1):
        S_ij = sram.full((2, 2), 1.0)
        P_ij = sram.on_chip(S_ij * 2, over=S_ij)
    events = [(event.kind, event.name) for event in messages if event.elements == 4]
    assert events == [("compute", "S_ij"), ("compute", "P_ij"), ("evict", "P_ij")]
    assert np.isnan(P_ij).all()


STALE = """
def mine(hbm, sram, Q, K, V, blocks):
    O = hbm.empty("O", V.shape, V.dtype, "output").divide(blocks.B_r)
    Q = Q.divide(blocks.B_r)
    for i in sram.loop(blocks.T_r):
        Q_i = sram.load(Q[i])
        P_i = sram.on_chip(2 * Q_i, over=Q_i)
        sram.store(O[i], sram.on_chip(Q_i + P_i))
    return O
"""


def test_a_user_s_function_that_computes_with_a_stale_name_is_told_where(tmp_path: Path) -> None:
    mine = module_of(STALE, tmp_path / "mine.py").mine
    X = np.ones((4, 2))
    with pytest.raises(MemoryModelError, match=r"after P = on_chip\(…, over=S\)") as caught:
        flashsim.forward(mine, X, X, X, M=100, blocks=(2, 2))
    assert "sram.store(O[i], sram.on_chip(Q_i + P_i))" in caught.value.__notes__[0]

"""A schedule of the row game (`flashsim.analysis.games.game`), run on the memory with real numbers.

    Require: Q, K, V in HBM, on-chip SRAM of size M, softmax scaling constant τ, and a schedule:
             turns that say which rows to evict, which to load, which products to make, and which
             rows are then done.
    1  for rows without a product do: write O_i = 0, L_i = −∞ to HBM. end for
    2  for each turn of the schedule do
    3    for each row to evict do
    4      Write O_i, ℓ_i, m_i to HBM, if it is one of O.
    5      Evict it.
    6    for each row to load do
    7      Load Q_i, K_j or V_j from HBM to on-chip SRAM.
    8      Initialize O_i = (0)_{1×d}, ℓ_i = 0, m_i = −∞ on SRAM, if it is one of O that is new.
    9      Load O_i, ℓ_i, m_i from HBM to on-chip SRAM, if it is one of O that was evicted.
    10   for each product (i, j) do
    11     S_ij = τ Q_i K_jᵀ.
    12     ℓ_i ← e^{m_i − max(m_i, S_ij)} ℓ_i + e^{S_ij − max(m_i, S_ij)}.
    13     O_i ← e^{m_i − max(m_i, S_ij)} O_i + e^{S_ij − max(m_i, S_ij)} V_j.
    14     m_i ← max(m_i, S_ij).
    15   for each row of O that is done do
    16     O_i ← O_i / ℓ_i, L_i = m_i + log ℓ_i.
    17     Write O_i, L_i to HBM.
    18   Evict the rows that are done.
    19 end for
    20 Return O, L.

The listing is ours. All blocks are one row. Line 12 needs no room for the new maximum: it is made
anew in lines 12 to 14.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from flashsim.algorithms.notation import exp, log, maximum
from flashsim.algorithms.parts import MaskFunction
from flashsim.algorithms.record import Algorithm, every_block
from flashsim.analysis.games.game import Pair, State, Unit, after, needs
from flashsim.attention.options import Option
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix, Tile
from flashsim.memory.sram import SRAM


class Turn(NamedTuple):
    """One move of the game: rows to evict, rows to load or begin, products to make, rows that are
    then done.
    """

    evict: tuple[Unit, ...]
    load: tuple[Unit, ...]
    products: tuple[Pair, ...]
    done: tuple[Unit, ...]


class Schedule(tuple[Turn, ...]):
    """The turns, in order."""

    def __str__(self) -> str:
        return f"of {len(self)} turns"


def turns(todo: Iterable[Pair], steps: Iterable[tuple[Pair, Sequence[Unit]]]) -> Schedule:
    """Return each step as a turn, with the loads and the products that follow from it."""
    state = State(frozenset(), frozenset(todo))
    schedule = []
    for pair, evicted in steps:
        successor = after(state, pair, evicted)
        need = needs(frozenset({pair}))
        chip = (state.chip - {*evicted}) | need
        turn = Turn(
            evict=tuple(sorted(evicted)),
            load=tuple(sorted(need - state.chip)),
            products=tuple(sorted(state.todo - successor.todo)),
            done=tuple(sorted(chip - successor.chip)),
        )
        schedule.append(turn)
        state = successor
    return Schedule(schedule)


def row_game(
    hbm: HBM,
    sram: SRAM,
    Q: Matrix,
    K: Matrix,
    V: Matrix,
    blocks: Blocks,
    tau: float,
    MASK: MaskFunction,
    schedule: Sequence[Turn],
) -> tuple[Matrix, Matrix]:
    """Run on Q (N_q, d), K (N_k, d), V (N_k, d_v); return O (N_q, d_v) and L (N_q, 1), in HBM.

    A mask is in the schedule, which has allowed products alone: MASK is not asked.
    """
    on_chip = sram.on_chip
    N_q = Q.shape[0]
    N_k = K.shape[0]
    d_v = V.shape[1]
    O = hbm.empty("O", (N_q, d_v), V.dtype, "output").divide(1)
    L = hbm.empty("L", (N_q, 1), sram.dtype, "output").divide(1)
    rows = {"Q": Q.divide(1), "K": K.divide(1), "V": V.divide(1)}
    if any(X == "O" for turn in schedule for X, _ in turn.evict):
        O_part = hbm.empty("O_part", (N_q, d_v), sram.dtype).divide(1)
        l = hbm.empty("l", (N_q, 1), sram.dtype).divide(1)
        m = hbm.empty("m", (N_q, 1), sram.dtype).divide(1)
    products = np.zeros((len(schedule), N_q, N_k), bool)
    for number, turn in enumerate(schedule):
        for i, j in turn.products:
            products[number, i, j] = True
    for i in sram.loop(  # line 1
        N_q, where=np.array([not products[:, i].any() for i in range(N_q)])
    ):
        O_i = sram.full((1, d_v), 0.0)  # line 1
        L_i = sram.full((1, 1), float("-inf"))  # line 1
        sram.store(O[i], O_i)  # line 1
        sram.store(L[i], L_i)  # line 1
    chip: dict[Unit, tuple[Tile, ...]] = {}
    begun = set()
    for number, turn in enumerate(schedule):  # line 2
        for X, n in turn.evict:  # line 3
            if X == "O":
                O_i, l_i, m_i = chip[X, n]
                sram.store(O_part[n], O_i)  # line 4
                sram.store(l[n], l_i)  # line 4
                sram.store(m[n], m_i)  # line 4
            sram.evict(*chip.pop((X, n)))  # line 5
        for X, n in turn.load:  # line 6
            if X != "O":
                chip[X, n] = (sram.load(rows[X][n]),)  # line 7
            elif n not in begun:
                begun.add(n)
                O_i = sram.full((1, d_v), 0.0)  # line 8
                l_i = sram.full((1, 1), 0.0)  # line 8
                m_i = sram.full((1, 1), float("-inf"))  # line 8
                chip[X, n] = O_i, l_i, m_i
            else:
                chip[X, n] = sram.load(O_part[n], l[n], m[n])  # line 9
        for i in sram.loop(N_q, where=products[number].any(1)):  # line 10
            (Q_i,) = chip["Q", i]
            O_i, l_i, m_i = chip["O", i]
            for j in sram.loop(N_k, where=products[number, i]):  # line 10
                (K_j,) = chip["K", j]
                (V_j,) = chip["V", j]
                S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 11
                l_i = on_chip(  # line 12
                    exp(m_i - maximum(m_i, S_ij)) * l_i + exp(S_ij - maximum(m_i, S_ij)),
                    over=l_i,
                )
                O_i = on_chip(  # line 13
                    exp(m_i - maximum(m_i, S_ij)) * O_i + exp(S_ij - maximum(m_i, S_ij)) * V_j,
                    over=O_i,
                )
                m_i = on_chip(maximum(m_i, S_ij), over=m_i)  # line 14
            chip["O", i] = O_i, l_i, m_i
        for i in sram.loop(  # line 15
            N_q, where=np.array([("O", i) in turn.done for i in range(N_q)])
        ):
            O_i, l_i, m_i = chip["O", i]
            O_i = on_chip(O_i / l_i, over=O_i)  # line 16
            L_i = on_chip(m_i + log(l_i), over=l_i)  # line 16
            sram.store(O[i], O_i)  # line 17
            sram.store(L[i], L_i)  # line 17
            chip["O", i] = O_i, L_i, m_i
        for unit in turn.done:
            sram.evict(*chip.pop(unit))  # line 18
    # line 19: end for
    return O, L  # line 20


REPLAY = Algorithm(
    name="row_game",
    title="An optimum of the row game",
    run=row_game,
    line_1=lambda rows, d: (1, 1),
    returns=("O", "L"),
    options=(Option("schedule", (), Schedule, help="turns"),),
    rounds=every_block,
)
"""`flashsim.forward(REPLAY, Q, K, V, M=M, blocks=(1, 1), schedule=turns)`."""

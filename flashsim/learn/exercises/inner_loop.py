"""Exercise 5: Algorithm 1, lines 9 to 13, judged by Theorem 1's induction."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from flashsim.algorithms.notation import rowmax, rowsum
from flashsim.attention.inputs import Array
from flashsim.attention.shapes import Blocks
from flashsim.learn.exercises.judging import Stage, Turns, expect, expect_count
from flashsim.learn.exercises.work import Work
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM
from flashsim.simulate.api import count

NUMBER = 5
TITLE = "Algorithm 1, lines 9 to 13"
RIGHT = "flash_basic"
LINES = """\
 9  S_ij = Q_i K_j^T
10  m~_ij = rowmax(S_ij), P~_ij = exp(S_ij - m~_ij), l~_ij = rowsum(P~_ij)
11  m_i_new = max(m_i, m~_ij)
    l_i_new = exp(m_i - m_i_new) l_i + exp(m~_ij - m_i_new) l~_ij
12  O_i <- (l_i exp(m_i - m_i_new) O_i + exp(m~_ij - m_i_new) P~_ij V_j)
           / l_i_new"""
TEXT = f'''
Algorithm 1, without the lines that do the work. Q is scaled by 1/sqrt(d)
already. Line 12 keeps O_i divided by l_i at all times, so the old sum is
l_i * O_i:

{LINES}
13  l_i <- l_i_new, m_i <- m_i_new; all three are written to HBM

It is judged by the paper's own induction: after the turn (j, i), the rows of
block i hold m, l and O of attention over the keys of the blocks up to j. The
check names turns from 1, as the paper does; j and i below count from 0.
"""

from flashsim.algorithms.notation import exp, maximum, rowmax, rowsum


def flash(hbm, sram, Q, K, V, O, l, m, blocks):
    on_chip = sram.on_chip
    for j in sram.loop(blocks.T_c):  # line 5
        K_j, V_j = sram.load(K[j], V[j])  # line 6
        for i in sram.loop(blocks.T_r):  # line 7
            Q_i, O_i, l_i, m_i = sram.load(Q[i], O[i], l[i], m[i])  # line 8
            S_ij = ...  # line 9
            m_tilde = ...  # line 10, on chip as all that follow
            P_tilde = ...
            l_tilde = ...
            m_new = ...  # line 11
            l_new = ...
            O_new = ...  # line 12
            ...  # lines 12 and 13: store all three
'''
HINTS = (
    (
        "Each line of the algorithm is a line of code: products are @, what is on chip is wrapped "
        "in on_chip(…)."
    ),
    "P_tilde = on_chip(exp(S_ij - m_tilde)), and l_tilde = on_chip(rowsum(P_tilde)).",
    (
        "m_new = on_chip(maximum(m_i, m_tilde)); l_new has the two factors exp(m_i - m_new) and "
        "exp(m_tilde - m_new)."
    ),
    (
        "O_new = on_chip((l_i * exp(m_i - m_new) * O_i + exp(m_tilde - m_new) * (P_tilde @ V_j)) / "
        "l_new), then three stores"
    ),
)


class State(NamedTuple):
    """m, l (rows, 1) and O (rows, d_v) of some rows, over some keys."""

    m: Array
    l: Array
    O: Array


def over(Q: Array, K: Array, V: Array) -> State:
    """Return the state that attention over these keys has; no key: −∞, 0, 0."""
    if not len(K):
        return State(
            np.full((len(Q), 1), -np.inf), np.zeros((len(Q), 1)), np.zeros((len(Q), V.shape[1]))
        )
    S = Q @ K.T
    m = S.max(1, keepdims=True)
    l = np.exp(S - m).sum(1, keepdims=True)
    return State(m, l, np.exp(S - m) @ V / l)


class Problem(NamedTuple):
    """Random Q, K and V, and the blocks that they are cut into."""

    Q: Array
    K: Array
    V: Array
    blocks: Blocks

    @classmethod
    def of(cls, N_q: int, N_k: int, d: int, B_r: int, B_c: int) -> Problem:
        """Draw one of this size."""
        rng = np.random.default_rng(N_k)
        Q = 1.5 * rng.normal(size=(N_q, d))
        K = rng.normal(size=(N_k, d))
        V = rng.normal(size=(N_k, d))
        return cls(Q, K, V, Blocks(B_r, B_c, N_q=N_q, N_k=N_k))

    def placed(self, watched: Turns) -> tuple[Stage, list[Matrix]]:
        """Return a stage with Q, K and V, and these in blocks."""
        stage = Stage({"Q": self.Q, "K": self.K, "V": self.V}, observers=[watched])
        B = self.blocks
        return stage, [
            stage.divided(name, rows) for name, rows in (("Q", B.B_r), ("K", B.B_c), ("V", B.B_c))
        ]

    def at(self, i: int, j: int) -> tuple[slice, slice, State, State]:
        """Return the rows of block i, the keys of block j, and the rows' states before these
        keys and after them.
        """
        B_r = self.blocks.B_r
        B_c = self.blocks.B_c
        Q = self.Q
        K = self.K
        V = self.V
        rows = slice(i * B_r, (i + 1) * B_r)
        keys = slice(j * B_c, min((j + 1) * B_c, len(K)))
        before, after = (over(Q[rows], K[:end], V[:end]) for end in (keys.start, keys.stop))
        return rows, keys, before, after


PROBLEMS = Problem.of(6, 12, 4, 2, 4), Problem.of(5, 10, 3, 2, 3)


def whole(flash: Callable[..., object]) -> Callable[..., tuple[Matrix, ...]]:
    """Return a student's loops with the lines around them, as a forward pass."""

    def flash_basic(
        hbm: HBM, sram: SRAM, Q: Matrix, K: Matrix, V: Matrix, blocks: Blocks
    ) -> tuple[Matrix, ...]:
        N = Q.shape[0]
        d_v = V.shape[1]
        B_r = blocks.B_r
        B_c = blocks.B_c
        O = hbm.full("O", (N, d_v), 0.0, V.dtype, "output")  # line 2
        l = hbm.full("l", (N, 1), 0.0, sram.dtype)  # line 2
        m = hbm.full("m", (N, 1), float("-inf"), sram.dtype)  # line 2
        divided = (
            X.divide(rows)
            for X, rows in ((Q, B_r), (K, B_c), (V, B_c), (O, B_r), (l, B_r), (m, B_r))
        )
        flash(hbm, sram, *divided, blocks)
        return O, l, m

    return flash_basic


def grade(work: Work) -> str:
    flash = work.function("flash")
    turns = sum(run(flash, problem) for problem in PROBLEMS)
    return (
        f"m, l and O were right after each of {turns} inner turns, at two sizes, one ragged; reads "
        "and writes =="
    )


def run(flash: Callable[..., object], problem: Problem) -> int:
    """Run a student's Algorithm 1 once and judge it; return the number of inner turns."""
    (N_q, d), N_k, blocks = problem.Q.shape, len(problem.K), problem.blocks
    T_r = blocks.T_r
    T_c = blocks.T_c
    stage, divided = problem.placed(watched := Turns(matrices=("m", "l", "O")))
    for name, columns, value in (("O", d, 0.0), ("l", 1, 0.0), ("m", 1, -np.inf)):
        divided.append(stage.output(name, (N_q, columns), blocks.B_r, value))
    watched.judge(
        lambda: flash(stage.hbm, stage.sram, *divided, blocks), partial(_judge, problem), T_r * T_c
    )
    counted = count("flash_basic", N_q=N_q, N_k=N_k, d=d, M=10**6, blocks=(blocks.B_r, blocks.B_c))
    for name, want in counted.hbm.by_array.items():
        got = stage.moved(name)
        reads = want.reads
        writes = want.writes
        inside = (
            f"{name}[j] is loaded in the inner loop, {T_r} times as often: line 6 stands outside "
            "it."
        )
        again = f"{name} is loaded more often than line 8 says: the tile is on chip already."
        more = (
            {inside: T_r * reads, again + " ": reads + N_k * d * T_r}
            if name in "KV"
            else {again: 2 * reads}
        )
        expect_count(f"Elements of {name} read", got[0], reads, more)
        stored = f"{name} is stored twice a turn. Line 2 writes it once, and then each turn once."
        twice = {stored: writes + writes * T_c // (T_c + 1)}
        expect_count(f"Elements of {name} written, line 2 included", got[1], writes, twice)
    return T_r * T_c


def _judge(problem: Problem, values: dict[str, Array], j: int, i: int) -> None:
    rows, keys, before, want = problem.at(i, j)
    Q_i, K_j, (m, l, O), l_new = problem.Q[rows], problem.K[keys], before, want.l
    S = Q_i @ K_j.T
    m_tilde = rowmax(S)
    P_tilde = np.exp(S - m_tilde)
    l_tilde = rowsum(P_tilde)
    PV = P_tilde @ problem.V[keys]
    with np.errstate(all="ignore"):
        a = np.exp(m - want.m)
        b = np.exp(m_tilde - want.m)
        square = (
            {"K_j is not transposed: line 9 is Q_i K_j^T.": rowmax(Q_i @ K_j)}
            if S.shape == Q_i.shape
            else {}
        )
        mistakes = {
            "m": {
                "This is the block's maximum alone. Line 11 takes the larger of m_i and m~_ij.": m_tilde
            }
            | scaled(want.m, problem)
            | square,
            "l": {
                (
                    "The old l_i is not rescaled: where the maximum rose, its terms are too "
                    f"large. {FACTOR}."
                ): l + b * l_tilde,
                f"l~_ij was summed {OWN}. The factor exp(m~_ij - m_new) brings it to m_new.": a * l
                + l_tilde,
                "Neither l_i nor l~_ij is rescaled. Each has a factor that brings it to m_new.": l
                + l_tilde,
                "l_new is l~_ij alone, so the keys before are forgotten.": b * l_tilde,
                "P~_ij is against the old m_i. It is against the block's own maximum, m~_ij.": (
                    a * l + b * rowsum(np.exp(S - m))
                ),
                f"The old l_i is {INVERSE}. {FACTOR}.": l / a + b * l_tilde,
                f"l~_ij is {INVERSE}. The factor is exp(m~_ij - m_new).": a * l + l_tilde / b,
                SCALED_P: a * l + b * scaled_sum(S - m_tilde, problem),
            },
            "O": {
                (
                    "The old O_i is not rescaled: it was summed against the old maximum. "
                    f"{FACTOR}, as for l_i."
                ): ((l * O + b * PV) / l_new),
                "O_i comes from HBM divided by l_i. Multiply by l_i to have the old sum back.": (
                    a * O + b * PV
                )
                / l_new,
                f"P~_ij V_j was summed {OWN}. Its factor is exp(m~_ij - m_new).": (l * a * O + PV)
                / l_new,
                f"The old O_i is {INVERSE}. {FACTOR}, as for l_i.": (l / a * O + b * PV) / l_new,
                f"P~_ij V_j is {INVERSE}. Its factor is exp(m~_ij - m_new).": (l * a * O + PV / b)
                / l_new,
                "O is not divided by l_new.": l * a * O + b * PV,
                "O is divided by l_new twice.": (l * a * O + b * PV) / l_new**2,
                "O is divided by the old l_i, and it should be by l_new.": (l * a * O + b * PV) / l,
                "Only the new block's part is divided by l_new. Both are.": l * a * O
                + b * PV / l_new,
            },
        }
    for name, wrongs in mistakes.items():
        stays = (
            f"{name} in HBM stayed as it was before the turn. Is {name}_new stored to {name}[i]?"
        )
        said = f"After turn j = {j + 1}, i = {i + 1} (keys 0 to {keys.stop - 1}), {name}_i"
        expect(
            said, values[name][rows], getattr(want, name), {stays: getattr(before, name), **wrongs}
        )


def scaled(scores: Array, problem: Problem) -> dict[str, Array]:
    """Return hints for scores that were scaled in the exercise, once or twice, with what they
    are then.
    """
    d = problem.Q.shape[1]
    said = f"The scores are {{}}. {NO_SCALE}."
    factors = {
        "divided by √d": d**-0.5,
        "divided by d, which is √d twice": 1 / d,
        "multiplied by √d": d**0.5,
    }
    return {said.format(how): factor * scores for how, factor in factors.items()}


def scaled_sum(scores: Array, problem: Problem) -> Array:
    """Return the sum of each row's weights where what the exponential is taken of was divided by
    √d.
    """
    return np.asarray(np.exp(scores * problem.Q.shape[1] ** -0.5).sum(axis=1, keepdims=True))


NO_SCALE = "Q is scaled by 1/√d already, before it is loaded"
SCALED_P = f"The argument of exp is divided by √d. {NO_SCALE}."
OWN = "against the block's own maximum"
INVERSE = "rescaled by the inverse of what it should be"
FACTOR = "The factor is exp(m_i - m_new)"
